"""Layer normalisation over the channels of each pixel, without scale and shift, which are layers of their own.

Ba, Kiros, Hinton, "Layer Normalization", 2016, as ConvNeXt has it.  Means over the channels of a pixel:

    y = (x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon)
    dx = (e - mean(e) - y * mean(e * y)) / sqrt(mean((x - mean(x))**2) + epsilon)

Mean and variance are exact; 1 / sqrt is read from a table of 512 chords, off by less than 2**-17 of itself
(`hdl.engine.norm.channel_numbers`).  y and the inverse of the deviation, one number a pixel, are kept for the way back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hdl.engine.norm.channel_norm import (
    backward_latency,
    channel_norm,
    channel_norm_error,
    forward_latency,
    inverse_cycles,
    normal_cycles,
    shape_cycles,
)
from hdl.engine.norm.channel_numbers import (
    ENTRY_BITS,
    INDEX_BITS,
    SLOPE_BITS,
    ChannelErrorNumbers,
    ChannelNumbers,
    root_table,
)
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.elementwise import OfMap, ToMap
from hdl.layers.storage import Memory
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor

INVERSE = Fixed(16, 12, signed=False)


@dataclass(frozen=True, kw_only=True)
class ChannelNorm(OfMap):
    """Sink ``x``, source ``y``, stash source ``inverse`` (height, width, 1).

    C channels of w bits must have w + log2 C of at most 27."""

    # added to the variance
    epsilon: float = 1e-5
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    inverse_fixed: Fixed = INVERSE

    # squares, what the root multiplies
    products = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        # says what can't be
        _ = self.numbers

    @cached_property
    def numbers(self) -> ChannelNumbers:
        """The arithmetic."""
        return ChannelNumbers(self.x_fixed, self.y_fixed, self.inverse_fixed, self.channels, self.epsilon)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y, inverse."""
        return (
            self.map_port("y", Kind.ACTIVATION),
            Port("inverse", Tensor((self.height, self.width, 1), self.inverse_fixed, Kind.STASH)),
        )

    # ---- cycles

    @property
    def multipliers(self) -> int:
        """Beside the products, the square of the sum and the slope of the table."""
        return super().multipliers + 2

    @property
    def pipeline_cycles(self) -> int:
        """As of y, which takes longer, and all beats of a pixel."""
        return self.latency_cycles("y") + self.pixel_beats

    def latency_cycles(self, source: str) -> int:
        """From the last beat of a pixel: sums, root, and what is made of both."""
        latency = forward_latency(self.numbers, self.pixel_beats, self.lanes)
        return latency + normal_cycles(self.numbers) if source == "y" else latency - 1 + inverse_cycles(self.numbers)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Whole pixels."""
        pixels = elements if source == "inverse" else -(-elements // self.channels)
        return {"x": pixels * self.channels}

    # ---- meaning

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """See `ChannelNumbers`."""
        del state
        y, inverse = self.numbers.normalised(inputs["x"])
        return {"y": y, "inverse": inverse}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        away = inputs["x"] - inputs["x"].mean(-1, keepdims=True)
        inverse = ((away * away).mean(-1, keepdims=True) + self.epsilon) ** -0.5
        return {"y": away * inverse, "inverse": inverse}

    @property
    def closeness(self) -> dict[str, float]:
        """The root, what it multiplies, one rounding.  Where all codes of a pixel are equal, epsilon's rounding too."""
        numbers = self.numbers
        distance = 2.0 ** (self.y_fixed.fraction_bits - numbers.distance_fraction - 1)
        flat = max(numbers.off, numbers.off_flat)
        return {
            "y": 0.5 + distance + (self.y_fixed.high + 1) * numbers.off,
            "inverse": 0.5 + (self.inverse_fixed.high + 1) * flat,
        }

    def backward(self, tape: Tape) -> None:
        """The exact gradient, of y as it was rounded."""
        if tape.needs_error("x"):
            engine = ChannelNormError(**self.map)
            inputs = {"e": tape.error("y"), "normal": tape.value("y"), "inverse": tape.value("inverse")}
            tape.give_error("x", tape.add("error", engine, inputs)["dx"])

    # ---- hardware

    def memories(self) -> tuple[Memory, ...]:
        """The table."""
        return (Memory("root", 1 << INDEX_BITS, ENTRY_BITS + SLOPE_BITS),)

    def images(self, state: State) -> dict[str, list[int]]:
        """Slopes above entries."""
        del state
        return {"root": [slope << ENTRY_BITS | entry for entry, slope in root_table()]}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        ports = (streams[name] for name in ("x", "y", "inverse"))
        contents = images["root"] if images else None
        return channel_norm(domain, *ports, numbers=self.numbers, lanes=self.lanes, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Several lanes, one, all; numbers of channels that are and are not powers of two; other formats, one pixel."""
        return (
            cls(height=2, width=3, channels=8, lanes=2, y_fixed=Fixed(16, 12)),
            cls(height=2, width=2, channels=6, lanes=6, epsilon=1e-6, y_fixed=Fixed(16, 14)),
            cls(height=3, width=2, channels=5, x_fixed=Fixed(12, 3), inverse_fixed=Fixed(16, 14, signed=False)),
            cls(height=1, width=1, channels=2, lanes=2, epsilon=0.5),
            cls(height=1, width=2, channels=96, lanes=4, x_fixed=Fixed(16, 11)),
        )


@dataclass(frozen=True, kw_only=True)
class ChannelNormError(ToMap):
    """Sinks ``e``, ``normal`` (what was y) and ``inverse`` (height, width, 1), source ``dx``.

    Both means are kept in 27 bits of the range of e and saturate there, which needs a map that isn't normalised."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    normal_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    inverse_fixed: Fixed = INVERSE
    dx_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    # errors by codes, codes by their mean, what is left by the inverse
    products = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        # says what can't be
        _ = self.numbers

    @cached_property
    def numbers(self) -> ChannelErrorNumbers:
        """The arithmetic."""
        return ChannelErrorNumbers(self.e_fixed, self.normal_fixed, self.inverse_fixed, self.channels)

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, normal, inverse."""
        return (
            self.map_port("e", Kind.ERROR),
            self.map_port("normal", Kind.STASH),
            Port("inverse", Tensor((self.height, self.width, 1), self.inverse_fixed, Kind.STASH)),
        )

    @property
    def pipeline_cycles(self) -> int:
        """As of the first beat, and all beats of a pixel."""
        return self.latency_cycles("dx") + self.pixel_beats

    def latency_cycles(self, source: str) -> int:
        """From the last beat of a pixel: sums, means, and what is made of both."""
        del source
        return backward_latency(self.lanes, self.pixel_beats) + shape_cycles(self.numbers, self.dx_fixed.fraction_bits)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Whole pixels."""
        del source
        pixels = -(-elements // self.channels)
        return {"e": pixels * self.channels, "normal": pixels * self.channels, "inverse": pixels}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """See `ChannelErrorNumbers`."""
        del state
        return {"dx": self.numbers.errors(inputs["e"], inputs["normal"], inputs["inverse"], self.dx_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        e, normal = inputs["e"], inputs["normal"]
        shaped = e - e.mean(-1, keepdims=True) - normal * (e * normal).mean(-1, keepdims=True)
        return {"dx": shaped * inputs["inverse"]}

    @property
    def closeness(self) -> dict[str, float]:
        """What both means and one rounding are off, times the largest inverse, and one rounding."""
        off = self.numbers.off * self.e_fixed.step * (self.inverse_fixed.high + 1) * self.inverse_fixed.step
        return {"dx": 0.5 + off / self.dx_fixed.step}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        ports = (streams[name] for name in ("e", "normal", "inverse", "dx"))
        target = self.dx_fixed
        return channel_norm_error(domain, *ports, numbers=self.numbers, lanes=self.lanes, target=target)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of `ChannelNorm`."""
        return (
            cls(height=2, width=3, channels=8, lanes=2, normal_fixed=Fixed(16, 12)),
            cls(height=2, width=2, channels=6, lanes=6, normal_fixed=Fixed(16, 14), dx_fixed=Fixed(16, 10)),
            cls(height=3, width=2, channels=5, e_fixed=Fixed(12, 9), inverse_fixed=Fixed(16, 14, signed=False)),
            cls(height=1, width=1, channels=2, lanes=2),
            cls(height=1, width=2, channels=96, lanes=4),
        )
