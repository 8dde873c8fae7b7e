"""Rectified linear units, plain and with a ceiling (relu6), and the mask that is all they keep for the way back.

y = min(max(x, 0), ceiling)        mask = 1 where 0 < x < ceiling        dx = e where mask, else 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from myhdl import always_comb, block, instances, intbv

from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.base import ElementWise
from hdl.stream import Stream
from hdl.streams import fork, join, m2s_pipe
from hdl.tensor import Kind, Port, Tensor

BIT = Fixed(1, 0, signed=False)


@dataclass(frozen=True, kw_only=True)
class Relu(ElementWise):
    """Sink ``x``; sources ``y`` in the format of x, and the stash ``mask``, one bit an element."""

    # largest output, None for plain relu
    ceiling: float | None = None
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (Port("x", Tensor(self.shape, self.x_fixed, Kind.ACTIVATION), self.lanes),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y, mask."""
        return (
            Port("y", Tensor(self.shape, self.x_fixed, Kind.ACTIVATION), self.lanes),
            Port("mask", Tensor(self.shape, BIT, Kind.STASH), self.lanes),
        )

    @property
    def ceiling_code(self) -> int:
        """The ceiling as a code; one past the greatest code if there is none."""
        if self.ceiling is None:
            return self.x_fixed.high + 1
        return int(self.x_fixed.encode(self.ceiling))

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Compare and select."""
        del state
        x, top = inputs["x"], self.ceiling_code
        return {"y": np.clip(x, 0, top), "mask": ((x > 0) & (x < top)).astype(np.int64)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        x = inputs["x"]
        top = np.inf if self.ceiling is None else self.ceiling
        return {"y": np.clip(x, 0, top), "mask": ((x > 0) & (x < top)).astype(np.float64)}

    def backward(self, tape: Tape) -> None:
        """The masked error."""
        if tape.needs_error("x"):
            engine = ReluError(height=self.height, width=self.width, channels=self.channels)
            made = tape.add("error", engine, {"e": tape.error("y"), "mask": tape.value("mask")})
            tape.give_error("x", made["dx"])

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """A comparison and a register a lane."""
        del images
        return relu(clk, rst, streams["x"], streams["y"], streams["mask"], self.lanes, self.x_fixed, self.ceiling_code)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Plain, with a ceiling, with a ceiling beyond the format."""
        return (
            cls(height=3, width=2, channels=4, lanes=2),
            cls(height=2, width=2, channels=3, lanes=3, ceiling=6.0),
            cls(height=1, width=1, channels=5, ceiling=6.0, x_fixed=Fixed(16, 14)),
        )


@dataclass(frozen=True, kw_only=True)
class ReluError(ElementWise):
    """Sinks ``e`` and ``mask``; source ``dx`` in the format of e."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, mask."""
        return (
            Port("e", Tensor(self.shape, self.e_fixed, Kind.ERROR), self.lanes),
            Port("mask", Tensor(self.shape, BIT, Kind.STASH), self.lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """dx."""
        return (Port("dx", Tensor(self.shape, self.e_fixed, Kind.ERROR), self.lanes),)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Select."""
        del state
        return {"dx": inputs["e"] * inputs["mask"]}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"dx": inputs["e"] * inputs["mask"]}

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """A gate and a register a lane."""
        del images
        return relu_error(clk, rst, streams["e"], streams["mask"], streams["dx"], self.lanes, self.e_fixed.width)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """One and several lanes."""
        return (cls(height=2, width=3, channels=4, lanes=2), cls(height=1, width=1, channels=3))


@block
def relu(clk: Any, rst: Any, x: Stream, y: Stream, mask: Stream, lanes: int, fixed: Fixed, top: int) -> Any:
    """One beat a cycle; one register before the fork into y and mask."""
    width = fixed.width
    low, high = fixed.low, fixed.high + 1
    pair = lanes * (width + 1)
    computed, held = Stream(pair), Stream(pair)
    parts = [Stream(pair) for _ in range(2)]
    register = m2s_pipe(clk, rst, computed, held)
    split = fork(clk, rst, held, parts)
    to_y = take_bits(parts[0], y, lanes * width, 0)
    to_mask = take_bits(parts[1], mask, pair, lanes * width)
    values = lanes * width

    # no code reaches a ceiling beyond the format: a comparison that nobody needs, which synthesis would not see
    if top > fixed.high:

        @always_comb
        def clamp() -> None:
            value = intbv(0, min=low, max=high)
            for lane in range(lanes):
                value[:] = x.payload[lane * width + width : lane * width].signed()
                if value <= 0:
                    computed.payload.next[lane * width + width : lane * width] = 0
                    computed.payload.next[values + lane] = False
                else:
                    computed.payload.next[lane * width + width : lane * width] = x.payload[
                        lane * width + width : lane * width
                    ]
                    computed.payload.next[values + lane] = True

    else:

        @always_comb
        def clamp() -> None:
            value = intbv(0, min=low, max=high)
            for lane in range(lanes):
                value[:] = x.payload[lane * width + width : lane * width].signed()
                if value <= 0:
                    computed.payload.next[lane * width + width : lane * width] = 0
                    computed.payload.next[values + lane] = False
                elif value >= top:
                    computed.payload.next[lane * width + width : lane * width] = top
                    computed.payload.next[values + lane] = False
                else:
                    computed.payload.next[lane * width + width : lane * width] = x.payload[
                        lane * width + width : lane * width
                    ]
                    computed.payload.next[values + lane] = True

    @always_comb
    def handshake() -> None:
        computed.valid.next = x.valid
        x.ready.next = computed.ready

    return instances()


@block
def take_bits(x: Stream, y: Stream, high: int, low: int) -> Any:
    """Bits [high, low) of a payload; no cost."""

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        y.payload.next = x.payload[high:low]
        x.ready.next = y.ready

    return connect


@block
def relu_error(clk: Any, rst: Any, e: Stream, mask: Stream, dx: Stream, lanes: int, width: int) -> Any:
    """One beat a cycle; one register."""
    both = Stream(lanes * (width + 1))
    computed = Stream(lanes * width)
    joined = join(clk, rst, [e, mask], both)
    register = m2s_pipe(clk, rst, computed, dx)
    values = lanes * width

    @always_comb
    def select() -> None:
        for lane in range(lanes):
            if both.payload[values + lane]:
                computed.payload.next[lane * width + width : lane * width] = both.payload[
                    lane * width + width : lane * width
                ]
            else:
                computed.payload.next[lane * width + width : lane * width] = 0

    @always_comb
    def handshake() -> None:
        computed.valid.next = both.valid
        both.ready.next = computed.ready

    return instances()
