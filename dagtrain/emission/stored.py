"""What a design keeps in DRAM: which unit stands on a stream, how wide it is, and how much goes through it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from hdl.dram.axi import AxiFormat
from hdl.dram.deal import elements_a_turn
from hdl.dram.store import DramConstant, DramFifo, DramReplay, DramUnit, LoadedReplay
from hdl.engine.weights.loaded_constant import LoadedConstant
from hdl.layers.storage import Ring
from hdl.recipe import Recipe
from hdl.streams.width import elements_per_word, wire_words
from hdl.tensor import Port

# cycles in a store's queues and adapters, at most; in what widens a narrow one, beside a burst
STORE_CYCLES = 64
WIDEN_CYCLES = 16
# a narrow unit carries its stream several times over, so that it is no slower than a wide one, and what goes through
# it takes hardly more of the memory
MOST_LOAD = Fraction(1, 4)
LEAST_FILLED = Fraction(15, 16)
# words of a narrow unit's burst at least, of which two fit a memory made of logic, and its bytes
NARROW_BURST, NARROW_BURST_BYTES = 16, 256


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A unit and what goes through it."""

    unit: DramUnit
    # tensors a frame
    reads: Fraction
    writes: Fraction
    # words a cycle either way while it is in use, at the pace of the pipeline
    load: Fraction

    @property
    def keeps_up(self) -> bool:
        """Whether the unit is fast enough: it writes and reads a word a cycle."""
        return self.load <= 1

    def port_words(self, port: AxiFormat) -> int:
        """Words of the memory port that a tensor takes."""
        unit = self.unit
        ratio = port.data_bits // unit.format.data_bits
        last = unit.tensor_words - (unit.tensor_bursts - 1) * unit.burst
        return (unit.tensor_bursts - 1) * (unit.burst // ratio) + -(-last // ratio)


@dataclass(frozen=True, kw_only=True)
class DramUse:
    """What a design keeps in DRAM beside what its layers keep outside, how its memory ports look, and the units."""

    # edges whose FIFO lies in DRAM
    edges: frozenset[str] = frozenset()
    format: AxiFormat = field(default_factory=AxiFormat)
    # bits a word of the narrowest units, which are widened in groups; 0: all are as wide as the port
    unit_bits: int = 0
    # memory ports of the devices that have several, and the one of a region, by its name, if not the first
    channels: Mapping[str, int] = field(default_factory=dict)
    channel_of: Mapping[str, int] = field(default_factory=dict)
    # of those of ``edges`` whose FIFO is dealt out over memory ports: into how many parts
    dealt: Mapping[str, int] = field(default_factory=dict)
    # whether reads and writes count apart, since they share the memory's bandwidth as they come
    apart: bool = False
    # words a burst of units as wide as the port; two of them fit a memory made of logic
    burst: int = 8
    # words that such a unit may have under way at least, a few bursts
    prefetch: int = 16
    # the pace of the pipeline: a unit has under way what passes at that pace within the memory's latency; 0: no more
    cycles_per_frame: int = 0
    latency_cycles: int = 128

    def __post_init__(self) -> None:
        if not self.dealt.keys() <= self.edges:
            raise ValueError(f"{', '.join(sorted(self.dealt.keys() - self.edges))}: dealt out, and not in DRAM")

    def at(self, period: Fraction | None = None, busy: Fraction = Fraction(1)) -> DramUse:
        """The same where a cycle lasts ``period`` of those in which the pace is told, None: one; at the pace of what
        works on a share of all frames alone, as a copy does."""
        lasting = (1 if period is None else period) * busy
        return self if lasting == 1 else replace(self, cycles_per_frame=int(self.cycles_per_frame / lasting))

    def fifo(self, source_lanes: int, sink: Port, depth_beats: int, parts: int = 1) -> Stored:
        """The FIFO of an edge: at least ``depth_beats`` beats of the sink; or one of so many parts into which it is
        dealt out, each with its part of every tensor.  Raises ValueError where `can_be_dealt` says no."""
        if not can_be_dealt(source_lanes, sink, parts):
            raise ValueError(f"a tensor of {sink.elements} elements is not dealt out to {parts} parts in equal turns")
        # one tensor more, as a burst's place is free only when all of it has been read
        capacity = -(-depth_beats * sink.lanes // sink.elements) + 1
        fields, load = self._fields(sink, source_lanes, sink.lanes, Fraction(1), sink.tensor.fixed.width, parts)
        return self._stored(DramFifo(**fields, capacity=capacity), load)

    def delay_cycles(self, sink: Port, parts: int = 1) -> int:
        """By which an element comes later at most than through a FIFO on chip: it waits for its burst to fill, for that
        to be written, and to be read."""
        unit = self.fifo(sink.lanes, sink, sink.beats, parts).unit
        elements = unit.burst * elements_per_word(unit.element_bits, unit.format.data_bits)
        filling = self.cycles_per_frame * min(elements, unit.elements) // unit.elements
        widening = 0 if unit.format == self.format else 2 * (unit.burst + WIDEN_CYCLES)
        return filling + 2 * (self.latency_cycles + unit.burst) + STORE_CYCLES + widening

    def replay(self, source_lanes: int, sink: Port, recipe: Recipe) -> Stored:
        """Two versions of a replayed sink's tensor."""
        least = max(source_lanes * sink.tensor.fixed.width, sink.payload_bits)
        fields, load = self._fields(sink, source_lanes, sink.lanes, Fraction(1), least)
        make = LoadedReplay if recipe.loaded else DramReplay
        unit = make(**fields, batch=recipe.batch, staleness=recipe.staleness)
        return Stored(unit=unit, reads=Fraction(1), writes=Fraction(1, recipe.batch), load=load)

    def constant(self, port: Port, words: int = 0) -> Stored:
        """What a layer fetches once a frame, and nobody writes, or only a host, by so many ``words`` of state."""
        lanes = port.elements // words if words else port.lanes
        fields, load = self._fields(port, lanes, port.lanes, Fraction(1), port.payload_bits)
        make = LoadedConstant if words else DramConstant
        return Stored(unit=make(**fields), reads=Fraction(1), writes=Fraction(0), load=load)

    def parked(self, source_lanes: int, sink: Port, load_cycles: int, batch: int) -> Stored:
        """The FIFO in which a tensor, one a batch, waits until a layer takes all of it within ``load_cycles``."""
        frames = Fraction(max(1, self.cycles_per_frame), max(1, load_cycles))
        fields, load = self._fields(sink, source_lanes, sink.lanes, frames, sink.payload_bits)
        # as in every FIFO of tensors, one more
        return self._stored(DramFifo(**fields, capacity=2), load, Fraction(1, batch))

    def ring(self, ring: Ring) -> Stored:
        """The FIFO between the two ports of a ring."""
        least = max(ring.out.payload_bits, ring.back.payload_bits)
        fields, load = self._fields(ring.out, ring.out.lanes, ring.back.lanes, ring.per_frame, least)
        preload = 0 if ring.loaded else ring.preload
        return self._stored(DramFifo(**fields, capacity=ring.capacity, preload=preload), load, ring.per_frame)

    def bytes_per_frame(self, stored: Stored) -> Fraction:
        """That a memory is busy with a unit: twice the larger of reads and writes, as the port does both at once, or
        both, where they count apart."""
        tensors = stored.reads + stored.writes if self.apart else 2 * max(stored.reads, stored.writes)
        return tensors * stored.port_words(self.format) * (self.format.data_bits // 8)

    @property
    def narrow_formats(self) -> list[AxiFormat]:
        """Of units that are narrower than the port, from the narrowest on."""
        widths: list[int] = []
        while self.unit_bits and self.unit_bits << len(widths) < self.format.data_bits:
            widths.append(self.unit_bits << len(widths))
        return [self.format.narrowed(bits) for bits in widths]

    def group_burst(self, form: AxiFormat) -> int:
        """Words of the port in a burst of units of a narrow format."""
        return _narrow_burst(form.data_bits) * form.data_bits // self.format.data_bits

    @staticmethod
    def _stored(unit: DramUnit, load: Fraction, tensors: Fraction = Fraction(1)) -> Stored:
        return Stored(unit=unit, reads=tensors, writes=tensors, load=load)

    def _fields(
        self, port: Port, x_lanes: int, y_lanes: int, tensors_per_frame: Fraction, least_bits: int, parts: int = 1
    ) -> tuple[dict[str, Any], Fraction]:
        """Fields of a unit for this pace, and words a cycle of it; words of at least ``least_bits``, or the port's.

        ``parts``: how many units have a part of each tensor."""
        elements, bits = port.elements // parts, port.tensor.fixed.width
        narrow = (
            form for form in self.narrow_formats if self._suits(form, elements, bits, tensors_per_frame, least_bits)
        )
        form = next(narrow, self.format)
        pace = self._pace(form, elements, bits, tensors_per_frame)
        if form == self.format:
            burst = self.burst
            prefetch = max(self.prefetch, (2 + math.ceil(pace * self.latency_cycles / burst)) * burst)
        else:
            burst = _narrow_burst(form.data_bits)
            prefetch = burst + max(burst, math.ceil(pace * self.latency_cycles))
        fields = {
            "format": form,
            "element_bits": bits,
            "x_lanes": x_lanes,
            "y_lanes": y_lanes,
            "elements": elements,
            "burst": burst,
            "prefetch": prefetch,
        }
        return fields, pace

    def _pace(self, form: AxiFormat, elements: int, element_bits: int, tensors_per_frame: Fraction) -> Fraction:
        """Words a cycle."""
        words = wire_words(elements, element_bits, form.data_bits)
        return words * tensors_per_frame / self.cycles_per_frame if self.cycles_per_frame else Fraction(0)

    def _suits(
        self, form: AxiFormat, elements: int, element_bits: int, tensors_per_frame: Fraction, least_bits: int
    ) -> bool:
        """Whether a narrow unit carries a stream as well as one of the port's width."""
        if form.data_bits < max(least_bits, element_bits):
            return False
        filled = elements_per_word(element_bits, form.data_bits) * (self.format.data_bits // form.data_bits)
        enough = filled >= LEAST_FILLED * elements_per_word(element_bits, self.format.data_bits)
        return enough and self._pace(form, elements, element_bits, tensors_per_frame) <= MOST_LOAD


def can_be_dealt(source_lanes: int, sink: Port, parts: int) -> bool:
    """Whether so many parts get as many whole turns of every tensor, from a source of so many lanes to a sink."""
    return parts == 1 or sink.elements % (parts * elements_a_turn(source_lanes, sink.lanes)) == 0


def _narrow_burst(data_bits: int) -> int:
    """Words a burst of a narrow unit."""
    return max(NARROW_BURST, NARROW_BURST_BYTES * 8 // data_bits)
