"""Online normalisation over the frames of a batch, compiled: what `online_norm.py` defines in NumPy, frame by frame.

A frame's statistics depend on the frame before, so NumPy would spend its time on calls with a handful of numbers.
Tests hold these kernels to the NumPy definition, bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.norm.numbers import (
    NORMAL,
    RECIPROCAL_BITS,
    ROOT_EXTRA,
    SQUARE_GUARD,
    BackwardNumbers,
    ForwardNumbers,
    Mean,
)
from hdl.fixed import Fixed, IntArray


class _Factor(NamedTuple):
    """A `Scalar`, or a `Mean`: times ``mantissa``, down by ``shift`` (after ``pre``)."""

    mantissa: int
    shift: int


class _Range(NamedTuple):
    """The codes of a format."""

    low: int
    high: int


class ForwardConstants(NamedTuple):
    """All numbers of the forward data path and its statistics; names as in `OnlineNorm.golden`."""

    normal_shift: int
    normal: _Range
    gamma_shift: int
    beta_shift: int
    y_shift: int
    y: _Range
    mean_of_x: _Factor
    mean_of_square: _Factor
    square_shift: int
    kept: _Factor
    fresh: _Factor
    variance_top: int
    epsilon: int
    numerator: int
    inverse_top: int
    centre_shift: int
    centre: _Range


class BackwardConstants(NamedTuple):
    """All numbers of the backward data path and its control; names as in `OnlineNormBackward.golden`."""

    gamma_shift: int
    control_v_shift: int
    shaped_shift: int
    shaped: _Range
    inverse_shift: int
    control_u_shift: int
    dx_shift: int
    dx: _Range
    mean_v: _Factor
    mean_u: _Factor
    state_v: _Range
    state_u: _Range
    gain_v: _Factor
    gain_u: _Factor
    control_v: _Range
    control_u: _Range


def forward_constants(numbers: ForwardNumbers, gamma: Fixed, beta: Fixed, y: Fixed) -> ForwardConstants:
    """Of one `OnlineNorm`."""
    scaled_bits = gamma.fraction_bits + NORMAL.fraction_bits
    sum_bits = max(scaled_bits, beta.fraction_bits)
    return ForwardConstants(
        normal_shift=numbers.centre.fraction_bits + numbers.inverse.fraction_bits - NORMAL.fraction_bits,
        normal=_range(NORMAL),
        gamma_shift=sum_bits - scaled_bits,
        beta_shift=sum_bits - beta.fraction_bits,
        y_shift=sum_bits - y.fraction_bits,
        y=_range(y),
        mean_of_x=_mean(numbers.mean_of_x),
        mean_of_square=_mean(numbers.mean_of_square),
        square_shift=numbers.square_shift,
        kept=_scalar(numbers.kept),
        fresh=_scalar(numbers.fresh),
        variance_top=numbers.variance.high - numbers.epsilon_code,
        epsilon=numbers.epsilon_code,
        numerator=1 << numbers.numerator_bits,
        inverse_top=numbers.inverse.high,
        centre_shift=numbers.mean.fraction_bits - numbers.centre.fraction_bits,
        centre=_range(numbers.centre),
    )


def backward_constants(numbers: BackwardNumbers, gamma: Fixed, inverse: Fixed) -> BackwardConstants:
    """Of one `OnlineNormBackward`."""
    scaled_bits = gamma.fraction_bits + numbers.e.fraction_bits
    control_v_bits = numbers.control_v.fraction_bits + numbers.normal.fraction_bits
    v_bits = max(scaled_bits, control_v_bits)
    product_bits = numbers.shaped.fraction_bits + inverse.fraction_bits
    u_bits = max(product_bits, numbers.control_u.fraction_bits)
    return BackwardConstants(
        gamma_shift=v_bits - scaled_bits,
        control_v_shift=v_bits - control_v_bits,
        shaped_shift=v_bits - numbers.shaped.fraction_bits,
        shaped=_range(numbers.shaped),
        inverse_shift=u_bits - product_bits,
        control_u_shift=u_bits - numbers.control_u.fraction_bits,
        dx_shift=u_bits - numbers.dx.fraction_bits,
        dx=_range(numbers.dx),
        mean_v=_mean(numbers.mean_v),
        mean_u=_mean(numbers.mean_u),
        state_v=_range(numbers.state_v),
        state_u=_range(numbers.state_u),
        gain_v=_scalar(numbers.gain_v),
        gain_u=_scalar(numbers.gain_u),
        control_v=_range(numbers.control_v),
        control_u=_range(numbers.control_u),
    )


def _range(fixed: Fixed) -> _Range:
    return _Range(fixed.low, fixed.high)


def _scalar(scalar: Scalar) -> _Factor:
    return _Factor(scalar.mantissa, scalar.shift)


def _mean(mean: Mean) -> _Factor:
    """Mantissa 0 stands for a number of pixels that is a power of two."""
    return _Factor(0 if mean.is_shift else mean.reciprocal, mean.pre)


@njit(cache=True)
def _round_shift(code: int, shift: int) -> int:
    # no branch, so that a loop becomes vector instructions
    down = max(shift, 0)
    return ((code + ((1 << down) >> 1)) >> down) << max(-shift, 0)


@njit(cache=True)
def _fit(code: int, shift: int, limits: _Range) -> int:
    return min(max(_round_shift(code, shift), limits.low), limits.high)


@njit(cache=True)
def _rounded(code: int, factor: _Factor) -> int:
    return _round_shift(code * factor.mantissa, factor.shift)


@njit(cache=True)
def _times(code: int, factor: _Factor) -> int:
    return ((code * factor.mantissa) >> max(factor.shift, 0)) << max(-factor.shift, 0)


@njit(cache=True)
def _mean_of(total: int, mean: _Factor) -> int:
    shifted = _round_shift(total, mean.shift)
    return shifted if mean.mantissa == 0 else _round_shift(shifted * mean.mantissa, RECIPROCAL_BITS)


@njit(cache=True)
def _root(number: int) -> int:
    root = np.int64(np.sqrt(np.float64(number)))
    if root * root > number:
        root -= 1
    if (root + 1) * (root + 1) <= number:
        root += 1
    return root  # type: ignore[return-value]


# a row of channels each: few arrays in a loop, counted from 0, so that it becomes vector instructions


@njit(cache=True)
def _normalise(x: IntArray, centre: IntArray, inverse: IntArray, k: ForwardConstants, normal: IntArray) -> None:
    for c in range(len(x)):
        normal[c] = _fit(((x[c] << 1) - centre[c]) * inverse[c], k.normal_shift, k.normal)


@njit(cache=True)
def _scale(normal: IntArray, gamma: IntArray, beta: IntArray, k: ForwardConstants, y: IntArray) -> None:
    for c in range(len(normal)):
        y[c] = _fit(((gamma[c] * normal[c]) << k.gamma_shift) + (beta[c] << k.beta_shift), k.y_shift, k.y)


@njit(cache=True)
def _add_products(left: IntArray, right: IntArray, sums: IntArray) -> None:
    for c in range(len(left)):
        sums[c] += left[c] * right[c]


@njit(cache=True)
def _add(values: IntArray, sums: IntArray) -> None:
    for c in range(len(values)):
        sums[c] += values[c]


@njit(cache=True)
def _shape(e: IntArray, n: IntArray, gamma: IntArray, control: IntArray, k: BackwardConstants, s: IntArray) -> None:
    for c in range(len(e)):
        total = ((gamma[c] * e[c]) << k.gamma_shift) - ((control[c] * n[c]) << k.control_v_shift)
        s[c] = _fit(total, k.shaped_shift, k.shaped)


@njit(cache=True)
def _control(s: IntArray, inverse: IntArray, control: IntArray, k: BackwardConstants, dx: IntArray) -> None:
    for c in range(len(s)):
        dx[c] = _fit(((s[c] * inverse[c]) << k.inverse_shift) - (control[c] << k.control_u_shift), k.dx_shift, k.dx)


@njit(cache=True, nogil=True)
def forward_batch(
    first: int,
    end: int,
    x: IntArray,
    stale: tuple[IntArray, IntArray],
    fresh: tuple[IntArray, IntArray],
    fresh_from: int,
    centre: IntArray,
    inverse: IntArray,
    mean: IntArray,
    variance: IntArray,
    k: ForwardConstants,
    y: IntArray,
    normal: IntArray,
) -> None:
    """Frames ``x`` (frames, pixels, channels) to ``y`` and ``normal``; ``mean`` and ``variance`` advance.

    Frames from ``fresh_from`` on take gamma and beta of ``fresh``, those before of ``stale``.  ``centre`` and
    ``inverse`` are tables by frame: the first lag + 1 rows are given, the others are made.  Channels from ``first`` to
    ``end``."""
    frames, pixels, channels = x.shape
    ahead = len(centre) - frames
    sums = np.zeros(channels, np.int64)
    squares = np.zeros(channels, np.int64)
    part = slice(first, end)
    for t in range(frames):
        gamma, beta = fresh if t >= fresh_from else stale
        sums[:] = 0
        squares[:] = 0
        for pixel in range(pixels):
            codes, made = x[t, pixel, part], normal[t, pixel, part]
            _normalise(codes, centre[t, part], inverse[t, part], k, made)
            _scale(made, gamma[part], beta[part], k, y[t, pixel, part])
            _add(codes, sums[part])
            _add_products(codes, codes, squares[part])
        for c in range(first, end):
            _advance(sums[c], squares[c], mean, variance, c, k)
            root = _root((variance[c] + k.epsilon) << ROOT_EXTRA)
            centre[t + ahead, c] = _fit(mean[c], k.centre_shift, k.centre)
            inverse[t + ahead, c] = min((k.numerator + (root >> 1)) // root, k.inverse_top)


@njit(cache=True)
def _advance(total: int, squares: int, mean: IntArray, variance: IntArray, c: int, k: ForwardConstants) -> None:
    """`ForwardNumbers.step` of one channel."""
    now = _mean_of(total, k.mean_of_x)
    away = now - mean[c]
    short_now, short_away = _round_shift(now, k.square_shift), _round_shift(away, k.square_shift)
    square = _round_shift(short_now * short_now, SQUARE_GUARD)
    distance = _round_shift(short_away * short_away, SQUARE_GUARD)
    within = max(_mean_of(squares, k.mean_of_square) - square, 0)
    change = within + _times(distance, k.kept) - variance[c]
    variance[c] = min(variance[c] + _rounded(change, k.fresh), k.variance_top)
    mean[c] += _rounded(away, k.fresh)


@njit(cache=True, nogil=True)
def backward_batch(
    first: int,
    end: int,
    e: IntArray,
    normal: IntArray,
    inverse: IntArray,
    stale: IntArray,
    fresh: IntArray,
    fresh_from: int,
    control_v: IntArray,
    control_u: IntArray,
    v: IntArray,
    u: IntArray,
    k: BackwardConstants,
    dx: IntArray,
    g_gamma: IntArray,
    g_beta: IntArray,
) -> None:
    """Errors ``e`` (frames, pixels, channels) to ``dx``; ``v`` and ``u`` advance; tables as in `forward_batch`.

    The sums of e normal and of e are added to ``g_gamma`` and ``g_beta``."""
    frames, pixels, channels = e.shape
    ahead = len(control_v) - frames
    sum_v, sum_u = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    shaped = np.empty(end - first, np.int64)
    part = slice(first, end)
    for t in range(frames):
        gamma = fresh if t >= fresh_from else stale
        sum_v[:] = 0
        sum_u[:] = 0
        for pixel in range(pixels):
            n, error, out = normal[t, pixel, part], e[t, pixel, part], dx[t, pixel, part]
            _add_products(error, n, g_gamma[part])
            _add(error, g_beta[part])
            _shape(error, n, gamma[part], control_v[t, part], k, shaped)
            _control(shaped, inverse[t, part], control_u[t, part], k, out)
            _add_products(shaped, n, sum_v[part])
            _add(out, sum_u[part])
        for c in range(first, end):
            v[c] = min(max(v[c] + _mean_of(sum_v[c], k.mean_v), k.state_v.low), k.state_v.high)
            u[c] = min(max(u[c] + _mean_of(sum_u[c], k.mean_u), k.state_u.low), k.state_u.high)
            control_v[t + ahead, c] = min(max(_rounded(v[c], k.gain_v), k.control_v.low), k.control_v.high)
            control_u[t + ahead, c] = min(max(_rounded(u[c], k.gain_u), k.control_u.low), k.control_u.high)
