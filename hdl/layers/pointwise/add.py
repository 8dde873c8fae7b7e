"""Sum of two maps: where branches join, forwards, and where errors of several consumers meet, backwards.

y = a + b,  aligned exactly, rounded once and saturated
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from myhdl import block

from hdl.engine.arithmetic.rounding import exact_sum, sum_cycles, sum_stream
from hdl.fixed import Fixed, FloatArray, IntArray, requantised_sum
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.elementwise import ElementWise
from hdl.layers.shape import RowPart
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.tensor import Kind, Port


@dataclass(frozen=True, kw_only=True)
class Add(ElementWise):
    """Sinks ``a`` and ``b``, source ``y``; an adder a lane, and one more where bits are rounded away."""

    # ACTIVATION forwards, ERROR backwards
    kind: Kind = Kind.ACTIVATION
    a_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    b_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    # whether b waits for a like a stash, having come long before it
    early: bool = field(default=False, metadata=QUIET)

    @property
    def sinks(self) -> tuple[Port, ...]:
        """a, b."""
        return self.map_port("a", self.kind), self.map_port("b", Kind.STASH if self.early else self.kind)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.map_port("y", self.kind),)

    @property
    def sum_fixed(self) -> Fixed:
        """A format that holds every sum exactly."""
        return exact_sum(self.a_fixed, self.b_fixed)

    @property
    def pipeline_cycles(self) -> int:
        """Sum and rounding."""
        return sum_cycles(self.a_fixed, self.b_fixed, self.y_fixed)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sum, rounded once."""
        del state
        return {"y": requantised_sum((inputs["a"], self.a_fixed), (inputs["b"], self.b_fixed), self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"y": inputs["a"] + inputs["b"]}

    def row_part(self, first: int, end: int) -> RowPart | None:
        """Of these rows alone."""
        return self.rows_alone(first, end)

    def backward(self, tape: Tape) -> None:
        """The same error to both branches."""
        for sink in ("a", "b"):
            if tape.needs_error(sink):
                tape.give_error(sink, tape.error("y"))

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        return add(domain, streams["a"], streams["b"], streams["y"], cfg=self)

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
def add(domain: ClockReset, a: Stream, b: Stream, y: Stream, *, cfg: Add) -> Instances:
    """The sum of two streams.

    Ports:
        a, b: in, streams of ``cfg.lanes`` codes of ``cfg.a_fixed``, of ``cfg.b_fixed``; taken together.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``, `sum_cycles` later, from registers.
    """
    formats = {"a_fixed": cfg.a_fixed, "b_fixed": cfg.b_fixed, "target": cfg.y_fixed}
    return sum_stream(domain, a, b, y, lanes=cfg.lanes, **formats)
