"""What waits for the way back in fewer bits than it had on the way forward: a map, rounded once.

    y = x, to nearest, ties up, saturated

The gradient of weights is then that of the rounded map; the forward pass is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hdl.engine.arithmetic.rounding import round_stream, rounding_cycles
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.meaning import Again, State
from hdl.layers.pointwise.elementwise import ElementWise
from hdl.layers.shape import RowPart
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.tensor import Kind, Port


@dataclass(frozen=True, kw_only=True)
class Narrow(ElementWise):
    """Sink ``x``, source ``y``, both stashes.  `dagtrain.passes.narrow_stashes` puts it behind the fork."""

    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(8, 4)  # noqa: RUF009 - frozen

    @property
    def cut(self) -> int:
        """Bits rounded away."""
        return self.x_fixed.fraction_bits - self.y_fixed.fraction_bits

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (self.map_port("x", Kind.STASH),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.map_port("y", Kind.STASH),)

    @property
    def pipeline_cycles(self) -> int:
        """Rounding and saturation."""
        return rounding_cycles(self.cut)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Rounded once."""
        del state
        return {"y": requantise(inputs["x"], self.x_fixed.fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The same number."""
        del state
        return {"y": inputs["x"]}

    def row_part(self, first: int, end: int) -> RowPart | None:
        """Of these rows alone."""
        return self.rows_alone(first, end)

    def again(self) -> tuple[Again, ...]:
        """The same of x."""
        return (Again(self, {"x": "x"}),)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.arithmetic.rounding.round_stream`."""
        del images
        return round_stream(domain, streams["x"], streams["y"], lanes=self.lanes, shift=self.cut, target=self.y_fixed)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Half the bits; some fewer; fewer above alone."""
        return (
            cls(height=2, width=3, channels=4, lanes=2),
            cls(height=1, width=1, channels=5, y_fixed=Fixed(12, 4)),
            cls(height=2, width=1, channels=3, lanes=3, x_fixed=Fixed(12, 6), y_fixed=Fixed(8, 6)),
        )
