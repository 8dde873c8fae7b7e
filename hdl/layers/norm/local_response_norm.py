"""Local response normalisation across channels, as AlexNet and the first GoogLeNet have it.

Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", 2012.  With the sum
over ``size`` channels around c, of which those beyond the map are 0:

    s[c] = bias + alpha / size * sum of x[c']**2        y[c] = x[c] * s[c]**-beta
    dx[c] = e[c] * s[c]**-beta - 2 alpha beta / size * x[c] * sum of e[c'] * x[c'] * s[c']**(-beta - 1)

the second sum over all c' for which c counts.  Sums are exact; the strength s is rounded once and kept for the way
back, which is the gradient at that strength; powers of it are read from tables of 1 024 chords
(`hdl.engine.norm.local_response_numbers`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from myhdl import block

from hdl.engine.arithmetic.products import PRODUCT_CYCLES, product_stream
from hdl.engine.arithmetic.rounding import (
    round_stream,
    rounding_cycles,
    scale_cycles,
    scale_stream,
    sum_cycles,
    sum_stream,
)
from hdl.engine.norm.local_response import (
    POWER_CYCLES,
    channel_windows,
    power_stream,
    reach,
    square_stream,
    sum_windows,
    window_cycles,
)
from hdl.engine.norm.local_response_numbers import LocalResponseErrorNumbers, LocalResponseNumbers, PowerTable
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.affine import offset_stream
from hdl.layers.pointwise.elementwise import ElementWise, OfMap, ToMap
from hdl.layers.storage import Memory
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import fork, queue
from hdl.tensor import Kind, Port

STRENGTH = Fixed(16, 13, signed=False)
# beats that queues hold beyond what their latencies ask for, and those in front of what comes later
SLACK, EARLY = 8, 12


def strength_for(bias: float) -> Fixed:
    """The format in which strengths begin, before they are calibrated: at least twice the bias."""
    return Fixed(16, min(STRENGTH.fraction_bits, 15 - math.frexp(max(bias, 1.0))[1]), signed=False)


@dataclass(frozen=True, kw_only=True)
class _LocalResponse(ElementWise):
    """What both directions share."""

    # channels that count for one: (size - 1) // 2 before it, the others after it
    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    strength_fixed: Fixed = STRENGTH

    def __post_init__(self) -> None:
        super().__post_init__()
        # says what can't be
        _ = self.numbers

    @cached_property
    def numbers(self) -> LocalResponseNumbers:
        """The arithmetic."""
        return LocalResponseNumbers(
            type(self).__name__, self.x_fixed, self.strength_fixed, self.channels, self.size, self.alpha, self.beta,
            self.bias,
        )  # fmt: skip

    def with_beats_after(self, elements: int, after: int) -> int:
        """Elements with all beats in which channels after them stand that count, in their pixel."""
        pixel, beat = divmod(-(-elements // self.lanes) - 1, self.pixel_beats)
        beats = min(self.pixel_beats, beat + 1 + reach(self.pixel_beats, self.lanes, after))
        return pixel * self.channels + beats * self.lanes

    @abstractmethod
    def tables(self) -> dict[str, PowerTable]:
        """By what their images are named after."""

    def memories(self) -> tuple[Memory, ...]:
        """Tables, one a lane."""
        return tuple(
            Memory(f"{name}{lane}", 1 << table.place_bits, table.entry_bits + table.slope_bits)
            for name, table in self.tables().items()
            for lane in range(self.lanes)
        )

    def images(self, state: State) -> dict[str, list[int]]:
        """Slopes above entries."""
        del state
        words = {
            name: [slope << table.entry_bits | entry for entry, slope in table.rows]
            for name, table in self.tables().items()
        }
        return {f"{name}{lane}": found for name, found in words.items() for lane in range(self.lanes)}


@dataclass(frozen=True, kw_only=True)
class LocalResponseNorm(_LocalResponse, OfMap):
    """Sink ``x``, source ``y``, stash source ``strength``.

    The strength saturates at the end of its format, from where on y is too large."""

    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    # squares, slopes, what x is multiplied by
    products = 3

    @property
    def sources(self) -> tuple[Port, ...]:
        """y, strength."""
        return self.map_port("y", Kind.ACTIVATION), self.map_port("strength", Kind.STASH)

    def tables(self) -> dict[str, PowerTable]:
        """The power that x is multiplied by."""
        return {"power": self.numbers.power}

    # ---- cycles

    @property
    def y_cut(self) -> int:
        """Bits that are rounded away from y."""
        return self.x_fixed.fraction_bits + self.numbers.power.power.fraction_bits - self.y_fixed.fraction_bits

    @property
    def pipeline_cycles(self) -> int:
        """Of y, and of the beats in which its neighbours stand."""
        return self.latency_cycles("y") + reach(self.pixel_beats, self.lanes, self.numbers.after)

    def latency_cycles(self, source: str) -> int:
        """Squares, windows, sums, scaling, rounding; the power and a product."""
        numbers = self.numbers
        strength = PRODUCT_CYCLES + window_cycles(self.size) + rounding_cycles(numbers.cut)
        strength += scale_cycles(numbers.short_bits, numbers.factor[0]) + 1
        strength += rounding_cycles(numbers.total_fraction - self.strength_fixed.fraction_bits)
        return (
            strength if source == "strength" else strength + POWER_CYCLES + PRODUCT_CYCLES + rounding_cycles(self.y_cut)
        )

    def required(self, source: str, elements: int) -> dict[str, int]:
        """With the channels after it that count."""
        del source
        return {"x": self.with_beats_after(elements, self.numbers.after)}

    # ---- meaning

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """See `LocalResponseNumbers`."""
        del state
        strength = self.numbers.strengths(inputs["x"])
        return {"y": self.numbers.normalised(inputs["x"], strength, self.y_fixed), "strength": strength}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        x, numbers = inputs["x"], self.numbers
        strength = self.bias + self.alpha / self.size * numbers.windows(x * x, numbers.before, numbers.after)
        return {"y": x * strength**-self.beta, "strength": strength}

    @property
    def closeness(self) -> dict[str, float]:
        """Of the strength, its constants and its rounding; of y, the power's error for the largest x, and its own."""
        x = (self.x_fixed.high + 1) * self.x_fixed.step
        return {
            "y": 0.5 + x * self.numbers.power_off / self.y_fixed.step,
            "strength": self.numbers.strength_off / self.strength_fixed.step,
        }

    def backward(self, tape: Tape) -> None:
        """The gradient, at the strength that was kept."""
        if tape.needs_error("x"):
            engine = LocalResponseNormError(
                **self.map, size=self.size, alpha=self.alpha, beta=self.beta, bias=self.bias,
                strength_fixed=self.strength_fixed,
            )  # fmt: skip
            inputs = {"e": tape.error("y"), "x": tape.value("x"), "strength": tape.value("strength")}
            tape.give_error("x", tape.add("error", engine, inputs)["dx"])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        ports = (streams[name] for name in ("x", "y", "strength"))
        return local_response_norm(domain, *ports, cfg=self, contents=images["power0"] if images else None)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Neighbours in other beats and in their own; even sizes and 1; more neighbours than channels; large alpha."""
        return (
            cls(height=2, width=2, channels=8, lanes=2),
            cls(height=2, width=2, channels=6, lanes=6, size=4, alpha=0.01, beta=0.5, bias=2.0, y_fixed=Fixed(16, 10)),
            cls(height=1, width=3, channels=7, size=9, x_fixed=Fixed(12, 5), alpha=0.002),
            cls(height=1, width=1, channels=3, size=1, strength_fixed=Fixed(12, 8, signed=False), bias=0.5),
        )


@dataclass(frozen=True, kw_only=True)
class LocalResponseNormError(_LocalResponse, ToMap):
    """Sinks ``e``, ``x`` and ``strength``, source ``dx``."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    dx_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    # slopes of both tables, x and e by the powers, e by a share, x by a sum
    products = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        # says what can't be
        _ = self.error_numbers

    @cached_property
    def error_numbers(self) -> LocalResponseErrorNumbers:
        """The arithmetic."""
        return LocalResponseErrorNumbers(self.numbers, self.e_fixed)

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, x, strength."""
        return self.map_port("e", Kind.ERROR), self.map_port("x", Kind.STASH), self.map_port("strength", Kind.STASH)

    def tables(self) -> dict[str, PowerTable]:
        """The power that e is multiplied by, and its slope."""
        return {"power": self.numbers.power, "slope": self.error_numbers.slope}

    # ---- cycles

    @property
    def share_cut(self) -> int:
        """Bits that are rounded away from x times a power."""
        numbers = self.error_numbers
        return self.x_fixed.fraction_bits + numbers.slope.power.fraction_bits - numbers.share.fraction_bits

    @property
    def total_cut(self) -> int:
        """Bits that are rounded away from a sum."""
        numbers = self.error_numbers
        return self.e_fixed.fraction_bits + numbers.share.fraction_bits - numbers.total.fraction_bits

    @property
    def pipeline_cycles(self) -> int:
        """As of one beat, and of those in which its neighbours stand."""
        return self.latency_cycles("dx") + reach(self.pixel_beats, self.lanes, self.numbers.before)

    def latency_cycles(self, source: str) -> int:
        """The power, a share, a product, windows, sums, a product, a difference."""
        del source
        shares = POWER_CYCLES + PRODUCT_CYCLES + rounding_cycles(self.share_cut)
        sums = PRODUCT_CYCLES + window_cycles(self.size) + rounding_cycles(self.total_cut)
        numbers = self.error_numbers
        return shares + sums + PRODUCT_CYCLES + sum_cycles(numbers.direct, numbers.across, self.dx_fixed)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """With the channels after it for which it counts."""
        del source
        return dict.fromkeys(("e", "x", "strength"), self.with_beats_after(elements, self.numbers.before))

    # ---- meaning

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """See `LocalResponseErrorNumbers`."""
        del state
        return {"dx": self.error_numbers.errors(inputs["e"], inputs["x"], inputs["strength"], self.dx_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula; no strength is below the bias."""
        del state
        e, x, numbers = inputs["e"], inputs["x"], self.error_numbers
        shares = e * x * numbers.slope.values(inputs["strength"])
        sums = self.numbers.windows(shares, self.numbers.after, self.numbers.before)
        return {"dx": e * self.numbers.power.values(inputs["strength"]) - x * sums}

    @property
    def closeness(self) -> dict[str, float]:
        """What powers, shares and sums are off for the largest e and x, and one rounding."""
        return {"dx": 0.5 + self.error_numbers.off / self.dx_fixed.step}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        ports = (streams[name] for name in ("e", "x", "strength", "dx"))
        contents = {name: images[f"{name}0"] for name in self.tables()} if images else {}
        return local_response_norm_error(domain, *ports, cfg=self, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of `LocalResponseNorm`."""
        return (
            cls(height=2, width=2, channels=8, lanes=2),
            cls(height=2, width=2, channels=6, lanes=6, size=4, alpha=0.01, beta=0.5, bias=2.0, dx_fixed=Fixed(16, 10)),
            cls(height=1, width=3, channels=7, size=9, x_fixed=Fixed(12, 5), alpha=0.002),
            cls(height=1, width=1, channels=3, size=1, strength_fixed=Fixed(12, 8, signed=False), bias=0.5),
        )


@block
def local_response_norm(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    strength: Stream,
    *,
    cfg: LocalResponseNorm,
    contents: Sequence[int] | None = None,
) -> Instances:
    """Squares, their sums, the strength, its power; x waits beside.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        y: out, stream of as many of ``cfg.y_fixed``, ``cfg.latency_cycles`` after the last beat that it needs.
        strength: out, stream of as many of ``cfg.strength_fixed``, likewise.
    """
    numbers, lanes, power = cfg.numbers, cfg.lanes, cfg.numbers.power
    square, total = 2 * cfg.x_fixed.width, numbers.total_bits
    parts, made = [Stream(x.width) for _ in range(2)], Stream(strength.width)
    squares, windows = Stream(lanes * square), Stream((lanes + cfg.size - 1) * square)
    sums, short = Stream(lanes * numbers.sum_bits), Stream(lanes * numbers.short_bits)
    scaled, shifted = Stream(lanes * numbers.scaled_bits), Stream(lanes * total)
    copies, held = [Stream(strength.width) for _ in range(2)], Stream(x.width)
    powers, products = Stream(lanes * power.power.width), Stream(lanes * (cfg.x_fixed.width + power.power.width))
    depth = cfg.latency_cycles("y") + reach(cfg.pixel_beats, lanes, numbers.after) + SLACK
    cut = numbers.total_fraction - cfg.strength_fixed.fraction_bits
    return (
        fork(domain, x, parts),
        square_stream(domain, parts[0], squares, lanes=lanes),
        channel_windows(
            domain, squares, windows, lanes=lanes, beats=cfg.pixel_beats, before=numbers.before, after=numbers.after
        ),
        sum_windows(domain, windows, sums, lanes=lanes, terms=cfg.size),
        round_stream(domain, sums, short, lanes=lanes, shift=numbers.cut, target=Fixed(numbers.short_bits, 0)),
        scale_stream(domain, short, scaled, lanes=lanes, factor=numbers.factor[0]),
        offset_stream(domain, scaled, shifted, lanes=lanes, grow=0, offset=numbers.offset),
        round_stream(domain, shifted, made, lanes=lanes, shift=cut, target=cfg.strength_fixed),
        fork(domain, made, [strength, copies[0]]),
        power_stream(domain, copies[0], powers, lanes=lanes, table=power, public="power", contents=contents),
        queue(domain, parts[1], held, depth=depth),
        product_stream(domain, held, powers, products, lanes=lanes, a_fixed=cfg.x_fixed, b_fixed=power.power),
        round_stream(domain, products, y, lanes=lanes, shift=cfg.y_cut, target=cfg.y_fixed),
    )


@block
def local_response_norm_error(
    domain: ClockReset,
    e: Stream,
    x: Stream,
    strength: Stream,
    dx: Stream,
    *,
    cfg: LocalResponseNormError,
    contents: Mapping[str, Sequence[int]],
) -> Instances:
    """Both powers, shares, their sums; e and x wait beside.

    Ports:
        e, x: in, streams of ``cfg.lanes`` codes of ``cfg.e_fixed``, of ``cfg.x_fixed``.
        strength: in, stream of as many of ``cfg.strength_fixed``.
        dx: out, stream of as many of ``cfg.dx_fixed``, ``cfg.latency_cycles`` after the last beats that it needs.
    """
    numbers, lanes = cfg.error_numbers, cfg.lanes
    power, slope, share, total = cfg.numbers.power, numbers.slope, numbers.share, numbers.total
    e_parts, x_parts = ([Stream(part.width) for _ in range(2)] for part in (e, x))
    e_held, x_held = ([Stream(part.width) for _ in range(2)] for part in (e, x))
    strengths = [Stream(strength.width) for _ in range(2)]
    powers, slopes = (Stream(lanes * table.power.width) for table in (power, slope))
    direct, waiting = (Stream(lanes * numbers.direct.width) for _ in range(2))
    products, shares = Stream(lanes * (cfg.x_fixed.width + slope.power.width)), Stream(lanes * share.width)
    terms = Stream(lanes * (cfg.e_fixed.width + share.width))
    windows = Stream((lanes + cfg.size - 1) * (cfg.e_fixed.width + share.width))
    sums, totals = Stream(lanes * numbers.sum_bits), Stream(lanes * total.width)
    across = Stream(lanes * numbers.across.width)
    depth = cfg.latency_cycles("dx") + reach(cfg.pixel_beats, lanes, cfg.numbers.before) + SLACK
    return (
        fork(domain, strength, strengths),
        power_stream(domain, strengths[0], powers, lanes=lanes, table=power, public="power",
                     contents=contents.get("power")),
        power_stream(domain, strengths[1], slopes, lanes=lanes, table=slope, public="slope",
                     contents=contents.get("slope")),
        fork(domain, e, e_parts),
        fork(domain, x, x_parts),
        [queue(domain, part, held, depth=EARLY) for part, held in zip(e_parts, e_held, strict=True)],
        queue(domain, x_parts[0], x_held[0], depth=EARLY),
        queue(domain, x_parts[1], x_held[1], depth=depth),
        product_stream(domain, e_held[0], powers, direct, lanes=lanes, a_fixed=cfg.e_fixed, b_fixed=power.power),
        queue(domain, direct, waiting, depth=depth),
        product_stream(domain, x_held[0], slopes, products, lanes=lanes, a_fixed=cfg.x_fixed, b_fixed=slope.power),
        round_stream(domain, products, shares, lanes=lanes, shift=cfg.share_cut, target=share),
        product_stream(domain, e_held[1], shares, terms, lanes=lanes, a_fixed=cfg.e_fixed, b_fixed=share),
        channel_windows(domain, terms, windows, lanes=lanes, beats=cfg.pixel_beats, before=cfg.numbers.after,
                        after=cfg.numbers.before),
        sum_windows(domain, windows, sums, lanes=lanes, terms=cfg.size),
        round_stream(domain, sums, totals, lanes=lanes, shift=cfg.total_cut, target=total),
        product_stream(domain, totals, x_held[1], across, lanes=lanes, a_fixed=total, b_fixed=cfg.x_fixed),
        sum_stream(domain, waiting, across, dx, lanes=lanes, a_fixed=numbers.direct, b_fixed=numbers.across,
                   target=cfg.dx_fixed, minus=True),
    )  # fmt: skip
