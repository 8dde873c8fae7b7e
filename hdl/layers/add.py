"""Sum of two maps: where branches join, forwards, and where errors of several consumers meet, backwards.

y = a + b,  aligned exactly, rounded once and saturated
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myhdl import always_comb, block, instances, intbv

from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer, State, Tape
from hdl.layers.elementwise import ElementWise, sum_format
from hdl.stream import Stream
from hdl.streams import join, m2s_pipe
from hdl.tensor import Kind, Port, Tensor


@dataclass(frozen=True, kw_only=True)
class Add(ElementWise):
    """Sinks ``a`` and ``b``, source ``y``; one adder a lane, one register."""

    # ACTIVATION forwards, ERROR backwards
    kind: Kind = Kind.ACTIVATION
    a_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    b_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """a, b."""
        return (
            Port("a", Tensor(self.shape, self.a_fixed, self.kind), self.lanes),
            Port("b", Tensor(self.shape, self.b_fixed, self.kind), self.lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.shape, self.y_fixed, self.kind), self.lanes),)

    @property
    def sum_fixed(self) -> Fixed:
        """A format that holds every sum exactly."""
        return sum_format(self.a_fixed, self.b_fixed)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sum, rounded once."""
        del state
        fraction_bits = self.sum_fixed.fraction_bits
        total = (inputs["a"] << (fraction_bits - self.a_fixed.fraction_bits)) + (
            inputs["b"] << (fraction_bits - self.b_fixed.fraction_bits)
        )
        return {"y": requantise(total, fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"y": inputs["a"] + inputs["b"]}

    def backward(self, tape: Tape) -> None:
        """The same error to both branches."""
        for sink in ("a", "b"):
            if tape.needs_error(sink):
                tape.give_error(sink, tape.error("y"))

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """One beat a cycle."""
        del images
        return add(clk, rst, streams["a"], streams["b"], streams["y"], self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Equal and unequal binary points, rounding, widening."""
        return (
            cls(height=2, width=3, channels=4, lanes=2),
            cls(height=1, width=2, channels=3, lanes=3, a_fixed=Fixed(16, 10), b_fixed=Fixed(16, 7)),
            cls(height=1, width=1, channels=6, y_fixed=Fixed(16, 11), kind=Kind.ERROR),
            cls(height=2, width=2, channels=2, a_fixed=Fixed(16, 12), b_fixed=Fixed(12, 3), y_fixed=Fixed(16, 5)),
        )


@block
def add(clk: Any, rst: Any, a: Stream, b: Stream, y: Stream, cfg: Add) -> Any:
    """The sum and its rounding before one register."""
    lanes, total = cfg.lanes, cfg.sum_fixed
    both, computed = Stream(a.width + b.width), Stream(y.width)
    joined = join(clk, rst, [a, b], both)
    register = m2s_pipe(clk, rst, computed, y)
    a_width, b_width, y_width = cfg.a_fixed.width, cfg.b_fixed.width, cfg.y_fixed.width
    a_shift = total.fraction_bits - cfg.a_fixed.fraction_bits
    b_shift = total.fraction_bits - cfg.b_fixed.fraction_bits
    cut = max(0, total.fraction_bits - cfg.y_fixed.fraction_bits)
    grow = max(0, cfg.y_fixed.fraction_bits - total.fraction_bits)
    half = (1 << cut) >> 1
    bound = 1 << (max(total.width + 1, y_width) + grow)
    low, high = cfg.y_fixed.low, cfg.y_fixed.high
    b_start = a.width

    @always_comb
    def compute() -> None:
        left = intbv(0, min=-bound, max=bound)
        right = intbv(0, min=-bound, max=bound)
        rounded = intbv(0, min=-bound, max=bound)
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            left[:] = both.payload[lane * a_width + a_width : lane * a_width].signed()
            right[:] = both.payload[b_start + lane * b_width + b_width : b_start + lane * b_width].signed()
            left[:] = left << a_shift
            right[:] = right << b_shift
            rounded[:] = left + right
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
        computed.valid.next = both.valid
        both.ready.next = computed.ready

    return instances()
