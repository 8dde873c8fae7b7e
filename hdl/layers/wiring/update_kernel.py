"""`hdl.layers.wiring.update.Update.definition`, compiled: a pass over the elements instead of one an operation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from hdl.engine.arithmetic.scalar import Scalar
from hdl.fixed import Fixed, IntArray
from hdl.random_kernel import BLOCK, noise, random_words

# a `Scalar`: mantissa, shift
Factor = tuple[int, int]
# down by a shift, which is above 0, into [low, high]
Rounding = tuple[int, int, int]


class Numbers(NamedTuple):
    """Constants of an update; names as in its definition."""

    clip: int
    momentum_factor: Factor
    gradient_factor: Factor
    decay_factor: Factor
    rate: Factor
    momentum: Rounding
    master: Rounding
    weight: Rounding
    guard: int
    nesterov: bool


def factor(scalar: Scalar) -> Factor:
    """Of the kernel's kind."""
    return scalar.mantissa, scalar.shift


def rounding(fraction_bits: int, target: Fixed) -> Rounding:
    """From sums with ``fraction_bits`` into ``target``."""
    return fraction_bits - target.fraction_bits, target.low, target.high


@njit(cache=True)
def _times(code: int, by: Factor) -> int:
    # no branch, so that a loop becomes vector instructions
    mantissa, shift = by
    return ((code * mantissa) >> max(shift, 0)) << max(-shift, 0)


@njit(cache=True)
def _nearest(code: int, to: Rounding) -> int:
    shift, low, high = to
    return min(max((code + (1 << (shift - 1))) >> shift, low), high)


@njit(cache=True)
def _stochastic(code: int, to: Rounding, random16: Any) -> Any:
    shift, low, high = to
    return min(max((code + noise(random16, shift)) >> shift, low), high)


@njit(cache=True, nogil=True)
def step(
    first: int,
    end: int,
    gradient: IntArray,
    momentum: IntArray,
    master: IntArray,
    constants: tuple[Any, ...],
    words: npt.NDArray[np.uint32],
    batch: int,
    moved: IntArray,
    kept: IntArray,
    weight: IntArray,
) -> None:
    """A batch's update of the elements from ``first`` to ``end``: what momentum and master become, and the weight.

    ``constants``: the fields of `Numbers`, without names, since numba tells the type of a plain tuple ten times as
    fast."""
    numbers = Numbers(*constants)
    random = np.empty(BLOCK, np.uint32)
    for start in range(first, end, BLOCK):
        part = slice(start, min(start + BLOCK, end))
        random_words(start, batch, words, random[: part.stop - part.start])
        _block(gradient[part], momentum[part], master[part], numbers, random, moved[part], kept[part], weight[part])


@njit(cache=True)
def _block(
    gradient: IntArray,
    momentum: IntArray,
    master: IntArray,
    numbers: Numbers,
    random: npt.NDArray[np.uint32],
    moved: IntArray,
    kept: IntArray,
    weight: IntArray,
) -> None:
    for index in range(len(gradient)):
        pushed = min(max(gradient[index], -numbers.clip), numbers.clip)
        seen = _nearest(master[index], numbers.weight)
        push = _times(pushed, numbers.gradient_factor) + _times(seen, numbers.decay_factor)
        total = _times(momentum[index], numbers.momentum_factor) + push
        along = _stochastic(total, numbers.momentum, np.int64(random[index] >> np.uint32(16)))
        moved[index] = along
        if numbers.nesterov:
            along = _nearest(_times(along, numbers.momentum_factor) + push, numbers.momentum)
        total = (master[index] << numbers.guard) - _times(along, numbers.rate)
        new = _stochastic(total, numbers.master, np.int64(random[index] & np.uint32(0xFFFF)))
        kept[index] = new
        weight[index] = _nearest(new, numbers.weight)
