"""`hdl.layers.wiring.update.Update.definition`, compiled: a pass over the elements instead of one an operation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from hdl.engine.arithmetic.scalar import Scalar
from hdl.fixed import Fixed, IntArray
from hdl.random_kernel import permuted


class Factor(NamedTuple):
    """A `Scalar`."""

    mantissa: int
    shift: int


class Rounding(NamedTuple):
    """Down by ``shift``, which is above 0, into [low, high]; random bits go up by ``up``, or down where negative."""

    shift: int
    up: int
    low: int
    high: int


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
    return Factor(scalar.mantissa, scalar.shift)


def rounding(fraction_bits: int, target: Fixed, random_bits: int = 0) -> Rounding:
    """From sums with ``fraction_bits`` into ``target``."""
    shift = fraction_bits - target.fraction_bits
    return Rounding(shift, shift - random_bits, target.low, target.high)


@njit(cache=True)
def _times(code: int, by: Factor) -> int:
    product = code * by.mantissa
    return product >> by.shift if by.shift >= 0 else product << -by.shift


@njit(cache=True)
def _nearest(code: int, to: Rounding) -> int:
    return min(max((code + (1 << (to.shift - 1))) >> to.shift, to.low), to.high)


@njit(cache=True)
def _stochastic(code: int, to: Rounding, random16: Any) -> int:
    noise: int = random16 << to.up if to.up >= 0 else random16 >> -to.up
    return min(max((code + noise) >> to.shift, to.low), to.high)


@njit(cache=True, nogil=True)
def step(
    gradient: IntArray,
    momentum: IntArray,
    master: IntArray,
    weight: IntArray,
    first: int,
    numbers: Numbers,
    words: npt.NDArray[np.uint32],
    batch: int,
) -> None:
    """A batch's update of the elements that are given, in place; ``weight`` is written only, ``first`` is the
    index of the first."""
    for index in range(len(gradient)):
        random = permuted(np.uint32(first + index), np.uint32(batch), words)
        pushed = min(max(gradient[index], -numbers.clip), numbers.clip)
        seen = _nearest(master[index], numbers.weight)
        push = _times(pushed, numbers.gradient_factor) + _times(seen, numbers.decay_factor)
        total = _times(momentum[index], numbers.momentum_factor) + push
        moved = _stochastic(total, numbers.momentum, np.int64(random >> np.uint32(16)))
        along = moved
        if numbers.nesterov:
            along = _nearest(_times(moved, numbers.momentum_factor) + push, numbers.momentum)
        total = (master[index] << numbers.guard) - _times(along, numbers.rate)
        kept = _stochastic(total, numbers.master, np.int64(random & np.uint32(0xFFFF)))
        momentum[index], master[index], weight[index] = moved, kept, _nearest(kept, numbers.weight)
