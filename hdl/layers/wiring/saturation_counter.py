"""Counts on the way: how many numbers of a stream stood at an end of their format, as those do that were cut off.

The stream passes as it is.  A number that fits the end exactly counts like one that was saturated: the count is never
too small, and a format with head room has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from myhdl import Signal, always, block, intbv

from hdl.engine.arithmetic.mac import adder_trees, signed_signal, tree_levels
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.meaning import State
from hdl.layers.storage import Memory
from hdl.layers.wiring.fork import Fork
from hdl.memory import running_count
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import wire
from hdl.tensor import Kind

# of the count, which wraps
COUNT_BITS = 32


def at_an_end(codes: IntArray, fixed: Fixed) -> int:
    """Codes that are the greatest of their format, or of a signed one the least; the 0 of an unsigned one is no end."""
    greatest = int(np.count_nonzero(codes == fixed.high))
    return greatest + int(np.count_nonzero(codes == fixed.low)) if fixed.signed else greatest


@dataclass(frozen=True, kw_only=True)
class SaturationCounter(Fork):
    """Sink ``x``, source ``y0`` of the same kind; `dagtrain.passes.count_saturations` puts it behind a source.

    Evaluation does not count: the count is one of training."""

    kinds: tuple[Kind, ...] = (Kind.ACTIVATION,)

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Nothing has been counted."""
        del parameters
        return {"count": 0}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The same, counted."""
        state["count"] = (state["count"] + at_an_end(inputs["x"], self.x_fixed)) % (1 << COUNT_BITS)
        return super().golden(state, inputs)

    def memories(self) -> tuple[Memory, ...]:
        """The count."""
        return (Memory("saturations", 1, COUNT_BITS, is_state=True),)

    def images(self, state: State) -> dict[str, list[int]]:
        """The count so far."""
        return {"saturations": [state["count"]]}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """A wire and what looks at it."""
        contents = images["saturations"] if images else None
        return saturation_counter(
            domain, streams["x"], streams["y0"], lanes=self.lanes, fixed=self.x_fixed, contents=contents
        )

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Several lanes of few bits, so that ends come often; one lane; unsigned."""
        return (
            cls(shape=(2, 2, 4), x_fixed=Fixed(4, 2), lanes=4),
            cls(shape=(1, 3, 2), kinds=(Kind.ERROR,), x_fixed=Fixed(3, 1)),
            cls(shape=(2, 2, 3), kinds=(Kind.STASH,), x_fixed=Fixed(3, 0, signed=False), lanes=3),
        )


@block
def saturation_counter(
    domain: ClockReset, x: Stream, y: Stream, *, lanes: int, fixed: Fixed, contents: Sequence[int] | None = None
) -> Instances:
    """Passes beats as they are; the count is `running_count`, ``1 + tree_levels(lanes)`` cycles behind them.

    Costs a comparison and a register a lane, a tree of adders, and the count.

    Ports:
        x: in, stream of ``lanes`` codes of ``fixed``.
        y: out, stream as wide as ``x``, in the same cycle.
    """
    width = fixed.width
    high = fixed.high
    low = fixed.low & ((1 << width) - 1) if fixed.signed else high
    flags = [signed_signal(2) for _ in range(lanes)]
    total = [signed_signal(2 + tree_levels(lanes))] if lanes > 1 else flags
    bits = len(total[0])
    number = total[0]
    more = Signal(intbv(0)[bits:])
    passing = wire(domain, x, y)
    tree = adder_trees(domain.clk, flags, total, terms=lanes) if lanes > 1 else ()
    count = running_count(domain.clk, more, width=COUNT_BITS, contents=contents, image="saturations")

    @always(domain.clk.posedge)
    def look() -> None:
        code = intbv(0)[width:]
        for lane in range(lanes):
            code[:] = x.payload[bits_of(lane, width)]
            flags[lane].next = 0
            if x.valid and y.ready:
                if code == low:
                    flags[lane].next = 1
                if code == high:
                    flags[lane].next = 1

    @always(domain.clk.posedge)
    def hand_on() -> None:
        more.next = number[bits:]

    return passing, tree, count, look, hand_on
