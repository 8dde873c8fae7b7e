"""Rounding of a stream: nearest, ties towards plus infinity, saturated; the hardware of `hdl.fixed.requantise`."""

from __future__ import annotations

from typing import Any

from myhdl import always_comb, block, instances, intbv

from hdl.fixed import Fixed
from hdl.stream import Stream
from hdl.streams import m2s_pipe


@block
def round_stream(clk: Any, rst: Any, x: Stream, y: Stream, *, lanes: int, shift: int, target: Fixed) -> Any:
    """``lanes`` signed codes a beat of x, each times ``2**-shift`` into a code of ``target``.

    Costs an adder, a comparison and a register a lane; one cycle, one beat a cycle."""
    width, y_width = x.width // lanes, target.width
    computed = Stream(lanes * y_width)
    register = m2s_pipe(clk, rst, computed, y)
    cut, grow = max(0, shift), max(0, -shift)
    half = (1 << cut) >> 1
    bound = 1 << (max(width, cut, y_width) + grow)
    low, high = target.low, target.high

    @always_comb
    def compute() -> None:
        rounded = intbv(0, min=-bound, max=bound)
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            rounded[:] = x.payload[lane * width + width : lane * width].signed()
            rounded[:] = rounded + half
            code[:] = rounded >> cut
            code[:] = code << grow
            if code > high:
                code[:] = high
            elif code < low:
                code[:] = low
            computed.payload.next[lane * y_width + y_width : lane * y_width] = code[y_width:]

    @always_comb
    def handshake() -> None:
        computed.valid.next = x.valid
        x.ready.next = computed.ready

    return instances()


@block
def scale_stream(clk: Any, rst: Any, x: Stream, y: Stream, *, lanes: int, factor: int) -> Any:
    """``lanes`` signed codes a beat, each times a positive constant, exactly: adders only, and a register a lane."""
    width, y_width = x.width // lanes, y.width // lanes
    computed = Stream(y.width)
    register = m2s_pipe(clk, rst, computed, y)
    bound = 1 << (y_width - 1)

    @always_comb
    def compute() -> None:
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            code[:] = x.payload[lane * width + width : lane * width].signed()
            code[:] = code * factor
            computed.payload.next[lane * y_width + y_width : lane * y_width] = code[y_width:]

    @always_comb
    def handshake() -> None:
        computed.valid.next = x.valid
        x.ready.next = computed.ready

    return instances()
