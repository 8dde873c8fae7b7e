"""Online normalisation over the frames of a batch, compiled: what `online_norm.py` defines in NumPy, frame by frame.

A frame's statistics depend on the frame before, so NumPy would spend its time on calls with a handful of numbers.
Tests hold these kernels to the NumPy definition, bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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

# pixels lie side by side in rows of about so many numbers: of short ones a loop spends more time around its vector
# instructions than in them
ROW = 128

# a `Scalar`, or a `Mean`: times a mantissa, down by a shift (after ``pre``)
_Factor = tuple[int, int]
# least and greatest code of a format
_Range = tuple[int, int]
# constants without the names of their fields: numba tells the type of a plain tuple ten times as fast
Plain = tuple[Any, ...]


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


def forward_constants(numbers: ForwardNumbers, gamma: Fixed, beta: Fixed, y: Fixed) -> Plain:
    """`ForwardConstants` of one `OnlineNorm`."""
    scaled_bits = gamma.fraction_bits + NORMAL.fraction_bits
    sum_bits = max(scaled_bits, beta.fraction_bits)
    constants = ForwardConstants(
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
    return tuple(constants)


def backward_constants(numbers: BackwardNumbers, gamma: Fixed, inverse: Fixed) -> Plain:
    """`BackwardConstants` of one `OnlineNormBackward`."""
    scaled_bits = gamma.fraction_bits + numbers.e.fraction_bits
    control_v_bits = numbers.control_v.fraction_bits + numbers.normal.fraction_bits
    v_bits = max(scaled_bits, control_v_bits)
    product_bits = numbers.shaped.fraction_bits + inverse.fraction_bits
    u_bits = max(product_bits, numbers.control_u.fraction_bits)
    constants = BackwardConstants(
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
    return tuple(constants)


def _range(fixed: Fixed) -> _Range:
    return fixed.low, fixed.high


def _scalar(scalar: Scalar) -> _Factor:
    return scalar.mantissa, scalar.shift


def _mean(mean: Mean) -> _Factor:
    """Mantissa 0 stands for a number of pixels that is a power of two."""
    return 0 if mean.is_shift else mean.reciprocal, mean.pre


@njit(cache=True)
def _round_shift(code: int, shift: int) -> int:
    # no branch, so that a loop becomes vector instructions
    down = max(shift, 0)
    return ((code + ((1 << down) >> 1)) >> down) << max(-shift, 0)


@njit(cache=True)
def _within(code: int, limits: _Range) -> int:
    low, high = limits
    return min(max(code, low), high)


@njit(cache=True)
def _fit(code: int, shift: int, limits: _Range) -> int:
    return _within(_round_shift(code, shift), limits)


@njit(cache=True)
def _rounded(code: int, factor: _Factor) -> int:
    mantissa, shift = factor
    return _round_shift(code * mantissa, shift)


@njit(cache=True)
def _times(code: int, factor: _Factor) -> int:
    mantissa, shift = factor
    return ((code * mantissa) >> max(shift, 0)) << max(-shift, 0)


@njit(cache=True)
def _mean_of(total: int, mean: _Factor) -> int:
    reciprocal, pre = mean
    shifted = _round_shift(total, pre)
    return shifted if reciprocal == 0 else _round_shift(shifted * reciprocal, RECIPROCAL_BITS)


@njit(cache=True)
def _root(number: Any) -> Any:
    """Rounded down; below 2**53, where float64 is off by one at most."""
    root = np.int64(np.sqrt(np.float64(number)))
    root -= np.int64(root * root > number)
    return root + np.int64((root + 1) * (root + 1) <= number)


@njit(cache=True, error_model="numpy")
def _quotient(number: Any, divisor: Any) -> Any:
    """Rounded down, of positive numbers below 2**53: float64's may have been rounded up to the next integer."""
    quotient = np.int64(np.float64(number) / np.float64(divisor))
    return quotient - np.int64(quotient * divisor > number)


@njit(cache=True)
def _side_by_side(first: int, end: int, channels: int, pixels: int) -> int:
    """Pixels a row; one where a thread works on some of the channels only."""
    return max(1, min(ROW // channels, pixels)) if end - first == channels else 1


@njit(cache=True)
def _repeat(values: IntArray, first: int, end: int, row: IntArray) -> None:
    """Those of the channels, once for every pixel of a row."""
    for at in range(0, len(row), end - first):
        for c in range(end - first):
            row[at + c] = values[first + c]


@njit(cache=True)
def _fold(row: IntArray, sums: IntArray) -> None:
    """Sums of a row's pixels."""
    sums[:] = 0
    for at in range(0, len(row), len(sums)):
        for c in range(len(sums)):
            sums[c] += row[at + c]


# a row each, ``count`` numbers from ``at`` on of maps: few arrays in a loop, and places that can't be negative, so that
# it becomes vector instructions; slices would cost more than a short row


@njit(cache=True)
def _normalise(
    at: Any, count: int, x: IntArray, centre: IntArray, inverse: IntArray, k: ForwardConstants, normal: IntArray
) -> None:
    for each in range(count):
        c = np.uint64(each)
        normal[at + c] = _fit(((x[at + c] << 1) - centre[c]) * inverse[c], k.normal_shift, k.normal)


@njit(cache=True)
def _scale(
    at: Any, count: int, normal: IntArray, gamma: IntArray, beta: IntArray, k: ForwardConstants, y: IntArray
) -> None:
    for each in range(count):
        c = np.uint64(each)
        total = ((gamma[c] * normal[at + c]) << k.gamma_shift) + (beta[c] << k.beta_shift)
        y[at + c] = _fit(total, k.y_shift, k.y)


@njit(cache=True)
def _add_powers(at: Any, count: int, x: IntArray, sums: IntArray, squares: IntArray) -> None:
    for each in range(count):
        c = np.uint64(each)
        sums[c] += x[at + c]
        squares[c] += x[at + c] * x[at + c]


@njit(cache=True)
def _add_gradients(at: Any, count: int, e: IntArray, n: IntArray, g_gamma: IntArray, g_beta: IntArray) -> None:
    for each in range(count):
        c = np.uint64(each)
        g_gamma[c] += e[at + c] * n[at + c]
        g_beta[c] += e[at + c]


@njit(cache=True)
def _shape(
    at: Any, count: int, e: IntArray, n: IntArray, gamma: IntArray, control: IntArray, k: BackwardConstants, s: IntArray
) -> None:
    for each in range(count):
        c = np.uint64(each)
        total = ((gamma[c] * e[at + c]) << k.gamma_shift) - ((control[c] * n[at + c]) << k.control_v_shift)
        s[c] = _fit(total, k.shaped_shift, k.shaped)


@njit(cache=True)
def _control(
    at: Any, count: int, s: IntArray, inverse: IntArray, control: IntArray, k: BackwardConstants, dx: IntArray
) -> None:
    for each in range(count):
        c = np.uint64(each)
        total = ((s[c] * inverse[c]) << k.inverse_shift) - (control[c] << k.control_u_shift)
        dx[at + c] = _fit(total, k.dx_shift, k.dx)


@njit(cache=True)
def _add_controls(
    at: Any, count: int, s: IntArray, n: IntArray, dx: IntArray, sum_v: IntArray, sum_u: IntArray
) -> None:
    for each in range(count):
        c = np.uint64(each)
        sum_v[c] += s[c] * n[at + c]
        sum_u[c] += dx[at + c]


@njit(cache=True)
def _advance(sums: IntArray, squares: IntArray, mean: IntArray, variance: IntArray, k: ForwardConstants) -> None:
    """`ForwardNumbers.step`."""
    for c in range(len(sums)):
        now = _mean_of(sums[c], k.mean_of_x)
        away = now - mean[c]
        short_now, short_away = _round_shift(now, k.square_shift), _round_shift(away, k.square_shift)
        square = _round_shift(short_now * short_now, SQUARE_GUARD)
        distance = _round_shift(short_away * short_away, SQUARE_GUARD)
        within = max(_mean_of(squares[c], k.mean_of_square) - square, 0)
        change = within + _times(distance, k.kept) - variance[c]
        variance[c] = min(variance[c] + _rounded(change, k.fresh), k.variance_top)
        mean[c] += _rounded(away, k.fresh)


@njit(cache=True, error_model="numpy")
def _look_up(mean: IntArray, variance: IntArray, k: ForwardConstants, centre: IntArray, inverse: IntArray) -> None:
    """`ForwardNumbers.table`."""
    for c in range(len(mean)):
        root = _root((variance[c] + k.epsilon) << ROOT_EXTRA)
        centre[c] = _fit(mean[c], k.centre_shift, k.centre)
        inverse[c] = min(_quotient(k.numerator + (root >> 1), root), k.inverse_top)


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
    constants: Plain,
    y: IntArray,
    normal: IntArray,
) -> None:
    """Frames ``x`` (frames, pixels, channels) to ``y`` and ``normal``; ``mean`` and ``variance`` advance.

    Frames from ``fresh_from`` on take gamma and beta of ``fresh``, those before of ``stale``.  ``centre`` and
    ``inverse`` are tables by frame: the first lag + 1 rows are given, the others are made.  Channels from ``first`` to
    ``end``.  ``constants``: as `forward_constants` gives them."""
    k = ForwardConstants(*constants)
    frames, pixels, channels = x.shape
    ahead, width = len(centre) - frames, end - first
    together = _side_by_side(first, end, channels, pixels)
    centres, inverses, gammas, betas, row_sums, row_squares = [np.empty(together * width, np.int64) for _ in range(6)]
    sums, squares = np.empty(width, np.int64), np.empty(width, np.int64)
    xs, ys, normals = x.reshape(-1), y.reshape(-1), normal.reshape(-1)
    for t in range(frames):
        gamma, beta = fresh if t >= fresh_from else stale
        _repeat(centre[t], first, end, centres)
        _repeat(inverse[t], first, end, inverses)
        _repeat(gamma, first, end, gammas)
        _repeat(beta, first, end, betas)
        row_sums[:] = 0
        row_squares[:] = 0
        for pixel in range(0, pixels, together):
            at = np.uint64((t * pixels + pixel) * channels + first)
            count = min(together, pixels - pixel) * width
            _normalise(at, count, xs, centres, inverses, k, normals)
            _scale(at, count, normals, gammas, betas, k, ys)
            _add_powers(at, count, xs, row_sums, row_squares)
        _fold(row_sums, sums)
        _fold(row_squares, squares)
        _advance(sums, squares, mean[first:end], variance[first:end], k)
        _look_up(mean[first:end], variance[first:end], k, centre[t + ahead, first:end], inverse[t + ahead, first:end])


@njit(cache=True)
def _integrate(
    sums: IntArray, numbers: tuple[_Factor, _Range, _Factor, _Range], state: IntArray, control: IntArray
) -> None:
    """`BackwardNumbers.step` and ``table`` of either part of the control process."""
    mean, limits, gain, controls = numbers
    for c in range(len(sums)):
        state[c] = _within(state[c] + _mean_of(sums[c], mean), limits)
        control[c] = _within(_rounded(state[c], gain), controls)


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
    constants: Plain,
    dx: IntArray,
    g_gamma: IntArray,
    g_beta: IntArray,
) -> None:
    """Errors ``e`` (frames, pixels, channels) to ``dx``; ``v`` and ``u`` advance; tables as in `forward_batch`.

    The sums of e normal and of e are added to ``g_gamma`` and ``g_beta``.  ``constants``: as `backward_constants` gives
    them."""
    k = BackwardConstants(*constants)
    frames, pixels, channels = e.shape
    ahead, width = len(control_v) - frames, end - first
    together = _side_by_side(first, end, channels, pixels)
    gammas, controls_v, inverses, controls_u, shaped, row_v, row_u, row_gamma, row_beta = [
        np.zeros(together * width, np.int64) for _ in range(9)
    ]
    sum_v, sum_u = np.empty(width, np.int64), np.empty(width, np.int64)
    errors, normals, made = e.reshape(-1), normal.reshape(-1), dx.reshape(-1)
    for t in range(frames):
        _repeat(fresh if t >= fresh_from else stale, first, end, gammas)
        _repeat(control_v[t], first, end, controls_v)
        _repeat(inverse[t], first, end, inverses)
        _repeat(control_u[t], first, end, controls_u)
        row_v[:] = 0
        row_u[:] = 0
        for pixel in range(0, pixels, together):
            at = np.uint64((t * pixels + pixel) * channels + first)
            count = min(together, pixels - pixel) * width
            _add_gradients(at, count, errors, normals, row_gamma, row_beta)
            _shape(at, count, errors, normals, gammas, controls_v, k, shaped)
            _control(at, count, shaped, inverses, controls_u, k, made)
            _add_controls(at, count, shaped, normals, made, row_v, row_u)
        _fold(row_v, sum_v)
        _fold(row_u, sum_u)
        _integrate(sum_v, (k.mean_v, k.state_v, k.gain_v, k.control_v), v[first:end], control_v[t + ahead, first:end])
        _integrate(sum_u, (k.mean_u, k.state_u, k.gain_u, k.control_u), u[first:end], control_u[t + ahead, first:end])
    _fold(row_gamma, g_gamma[first:end])
    _fold(row_beta, g_beta[first:end])
