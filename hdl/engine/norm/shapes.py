"""What the two circuits of online normalisation are built from, and when their signals show what."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Self

from hdl.engine.arithmetic.lanes import WIDE_PRODUCT_LATENCY, WIDE_SCALE_LATENCY, constant_multipliers
from hdl.engine.arithmetic.requantise import REQUANTISE_LATENCY
from hdl.engine.arithmetic.serial import reciprocal_latency, root_latency, square_latency
from hdl.engine.norm.numbers import NORMAL, SQUARE_GUARD, BackwardNumbers, ForwardNumbers
from hdl.engine.norm.sums import MEAN_LATENCY, mean_bits, mean_scalar
from hdl.engine.random import HASH_LATENCY
from hdl.fixed import Fixed
from hdl.recipe import Recipe
from hdl.streams import queue_latency

# beats that may be on their way; more than the latency of data path and queue, so that it never limits the rate
RESULTS = 32
# forward: cycles, counted from that in which a beat is accepted, in which a signal shows what belongs to it
X_AT = 3
NORMAL_AT = 7
Y_AT = 12
# from the last beat's acceptance to its sums in the queue
SUMS_AT = 4
# the same counted from the start of the sequential unit on a group
SQUARES_AT = MEAN_LATENCY + 4
# backward: as those of the forward circuit's data path
OPERANDS_AT = 4
SHAPED_AT = 8
DX_AT = 13
GRADIENT_SUMS_AT, LEAST_GRADIENT_SUMS_AT = HASH_LATENCY + 1, 4
CONTROL_SUMS_AT = DX_AT + 2
STATE_AT = CONTROL_SUMS_AT + MEAN_LATENCY + 1 + REQUANTISE_LATENCY
TABLE_AT = STATE_AT + 1 + WIDE_PRODUCT_LATENCY + REQUANTISE_LATENCY


# cycles from a beat of one frame to the same beat of the next at least: state is written before it is read again
SETTLING = 8


def shortest_frame(beats: int) -> int:
    """Least cycles between frames of so many beats: a frame shorter than `SETTLING` is followed by a pause."""
    return beats if beats >= SETTLING else beats + SETTLING


@dataclass(frozen=True)
class NormShape(ABC):
    """What the circuits of both directions are built from."""

    numbers: ForwardNumbers | BackwardNumbers
    recipe: Recipe
    groups: int
    # channels a cycle
    lanes: int
    # cycles between beats of the data path, as the ports deliver them
    beat_cycles: int
    gamma: Fixed
    # whether products with constants, and squares, are made by multipliers
    multiplied: bool = field(default=False, kw_only=True)
    # channels whose statistics or controls advance at a time, a divisor of ``lanes``; 0: as ``lanes``
    statistic_lanes: int = field(default=0, kw_only=True)

    @property
    def slow(self) -> Self:
        """Of the unit that works once a frame and channel, whose groups are those of its own lanes."""
        lanes = self.statistic_lanes or self.lanes
        return replace(self, lanes=lanes, groups=self.groups * self.lanes // lanes, statistic_lanes=0)

    @property
    @abstractmethod
    def multipliers(self) -> int:
        """Those that `multiplied` takes, a lane."""

    @property
    def banks(self) -> int:
        """Frames whose lines stand in the table."""
        return self.recipe.norm_lag + 1

    @property
    def beats(self) -> int:
        """Beats a frame."""
        return self.numbers.pixels * self.groups

    @property
    def cycles(self) -> int:
        """Cycles a frame."""
        return max(shortest_frame(self.beats), math.ceil(self.loop_cycles / self.banks))

    @property
    @abstractmethod
    def loop_cycles(self) -> int:
        """From the first beat of a frame, unstalled, to the first beat of the frame that uses what it leaves."""


@dataclass(frozen=True)
class ForwardShape(NormShape):
    """Everything that the forward circuit is built from."""

    numbers: ForwardNumbers
    beta: Fixed
    y: Fixed

    @property
    def scaled_bits(self) -> int:
        """Fraction bits of gamma * normal."""
        return self.gamma.fraction_bits + NORMAL.fraction_bits

    @property
    def sum_bits(self) -> int:
        """Fraction bits of gamma * normal + beta, exact."""
        return max(self.scaled_bits, self.beta.fraction_bits)

    @property
    def sum_width(self) -> int:
        """Bits of it."""
        product = self.gamma.width + NORMAL.width + self.sum_bits - self.scaled_bits
        return max(product, self.beta.width + self.sum_bits - self.beta.fraction_bits) + 1

    @property
    def square_bits(self) -> int:
        """Even bits of the magnitudes that are squared once a frame."""
        return (self.numbers.x.width + 11) // 2 * 2

    @property
    def multipliers(self) -> int:
        """Of two means, what is kept of a distance and taken of two changes; of two squares."""
        numbers, bits = self.numbers, square_bits(self)
        products = [
            *(
                (mean_bits(width, mean), mean_scalar(mean))
                for width, mean in zip(sum_widths(self), (numbers.mean_of_x, numbers.mean_of_square), strict=True)
            ),
            (numbers.mean.width + 2, numbers.fresh),
            (bits, numbers.kept),
            (bits + 2, numbers.fresh),
        ]
        return 2 + sum(constant_multipliers(width, scalar.mantissa) for width, scalar in products)

    @property
    def statistics_at(self) -> int:
        """When the new statistics of a group stand."""
        return SQUARES_AT + square_latency(self.square_bits) + 2 * WIDE_SCALE_LATENCY + 4

    @property
    def root_at(self) -> int:
        """When the root is there."""
        return self.statistics_at + 1 + root_latency(self.numbers.root_bits)

    @property
    def table_at(self) -> int:
        """When a group's line of the table is written."""
        return self.root_at + reciprocal_latency(self.numbers.inverse.width)

    @property
    def cycles_a_group(self) -> int:
        """Cycles between groups in the sequential unit: its three parts work on different groups."""
        root = root_latency(self.numbers.root_bits)
        return max(self.statistics_at + 1, root + 1, reciprocal_latency(self.numbers.inverse.width) + 1)

    @property
    def cycles(self) -> int:
        """Cycles a frame."""
        return max(super().cycles, self.slow.groups * self.cycles_a_group)

    @property
    def sums_depth(self) -> int:
        """Places of the queue of sums."""
        return max(4, self.groups)

    @property
    def loop_cycles(self) -> int:
        """From the first beat of a frame, unstalled, to the first beat of the frame that uses its statistics."""
        flow = (self.numbers.pixels - 1) * self.groups * self.beat_cycles
        first_sum = flow + SUMS_AT + queue_latency(self.sums_depth)
        groups = self.slow.groups
        if groups == self.groups:
            return first_sum + (groups - 1) * max(self.cycles_a_group, self.beat_cycles) + self.table_at + 2
        arrived = (self.groups - 1) * self.beat_cycles + (groups // self.groups - 1) * self.cycles_a_group
        # through the width adapter
        return first_sum + 1 + max((groups - 1) * self.cycles_a_group, arrived) + self.table_at + 2


def square_bits(shape: ForwardShape) -> int:
    """Bits of a square, with a sign."""
    return 2 * shape.square_bits - SQUARE_GUARD + 2


def sum_widths(shape: ForwardShape) -> tuple[int, int]:
    """Bits of a frame's sums of x and of its square."""
    growth = (shape.numbers.pixels - 1).bit_length()
    return shape.numbers.x.width + growth, 2 * shape.numbers.x.width + growth


@dataclass(frozen=True)
class BackwardShape(NormShape):
    """Everything that the backward circuit is built from."""

    numbers: BackwardNumbers
    inverse: Fixed
    g_gamma: Fixed
    g_beta: Fixed
    # of the random bits
    key_gamma: int
    key_beta: int
    # batches of an earlier training
    begun: int = 0
    # whether sums of gradients leave as they are, in the formats ``g_gamma`` and ``g_beta``
    exact: bool = False

    @property
    def multipliers(self) -> int:
        """Of two means and two gains."""
        numbers = self.numbers
        parts = (
            (control_sum_widths(self)[0], numbers.mean_v, numbers.state_v, numbers.gain_v),
            (control_sum_widths(self)[1], numbers.mean_u, numbers.state_u, numbers.gain_u),
        )
        return sum(
            constant_multipliers(mean_bits(width, mean), mean_scalar(mean).mantissa)
            + constant_multipliers(state.width, gain.mantissa)
            for width, mean, state, gain in parts
        )

    @property
    def gradient_sums_at(self) -> int:
        """When a beat is in the sums of gradients, which meet their random bits at once where they do not wait."""
        return GRADIENT_SUMS_AT if self.slow.lanes == self.lanes else LEAST_GRADIENT_SUMS_AT

    @property
    def gradient_depth(self) -> int:
        """Places of each queue of gradients."""
        return max(4, self.groups)

    @property
    def cycles(self) -> int:
        """Cycles a frame."""
        return max(super().cycles, self.slow.groups)

    @property
    def loop_cycles(self) -> int:
        """From the first beat of a frame, unstalled, to the first beat of the frame that uses its control."""
        groups, last = self.slow.groups, (self.beats - 1) * self.beat_cycles
        if groups == self.groups:
            return last + TABLE_AT + 2
        first = (self.beats - self.groups) * self.beat_cycles
        worked = max(last + groups // self.groups - 1, first + groups - 1)
        # through the queue and the width adapter
        return worked + queue_latency(self.control_depth) + 1 + TABLE_AT + 2

    @property
    def control_depth(self) -> int:
        """Places of the queue of sums, where controls of some channels advance after those of others."""
        return max(RESULTS, self.groups)


def control_sum_widths(shape: BackwardShape) -> tuple[int, int]:
    """Bits of a frame's sums of shaped error times normalised map, and of dx."""
    numbers, growth = shape.numbers, (shape.numbers.pixels - 1).bit_length()
    return numbers.shaped.width + numbers.normal.width + growth, numbers.dx.width + growth
