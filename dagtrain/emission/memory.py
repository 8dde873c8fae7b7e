"""The memory port of an FPGA: what lies in DRAM, where, and the AXI4 master that all of it shares.

Structure (units of `hdl.dram.store` and `hdl.dram.axi`)::

    producer ─▶ DramFifo ─▶ consumer        a stash, or a shortcut that waits for the long way
    update ─▶ DramFifo ─▶ conv              the next version of weights, until the one in use is out (`Layer.parked`)
    update ─▶ DramReplay ─▶ conv            weights, a version a batch in, a copy a frame out (`Layer.replayed`)
    layer ─▶ DramFifo ─▶ the same layer     sums of gradients under way, optimiser state (`Layer.rings`)
        every unit ─▶ tree of AxiMerge ─▶ AXI4 port `m_axi_…` of the device

Regions follow each other from address 0, each a whole number of bursts at a multiple of the burst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dagtrain.emission.assembly import Assembly
from dagtrain.emission.links import unit_module
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from hdl.convert.netlist import Direction
from hdl.dram.axi import CHANNELS, FORWARD, LENGTH_BITS, RESPONSE_BITS, AxiFormat, AxiMerge
from hdl.dram.store import DramFifo, DramReplay, DramUnit
from hdl.errors import DagtrainError
from hdl.layers.storage import Ring
from hdl.recipe import Recipe
from hdl.streams.width import elements_per_word, wire_words
from hdl.tensor import Port

# prefix of the AXI4 signals of a device
AXI_PREFIX = "m_axi"
# what messages call the arbiters of a memory port
MEMORY_ROLE = "memory port"
# cycles in a store's queues and adapters, at most
STORE_CYCLES = 64
_SIZE_BITS, _BURST_BITS, _INCREMENT = 3, 2, 1


@dataclass(frozen=True, kw_only=True)
class DramUse:
    """What a design keeps in DRAM beside what its layers keep outside, how its memory ports look, and the units."""

    # edges whose FIFO lies in DRAM
    edges: frozenset[str] = frozenset()
    format: AxiFormat = field(default_factory=AxiFormat)
    # words a burst; two of them fit a memory made of logic
    burst: int = 8
    # words that a unit may have under way at least, a few bursts
    prefetch: int = 16
    # the pace of the pipeline: a unit has under way what passes at that pace within the memory's latency; 0: no more
    cycles_per_frame: int = 0
    latency_cycles: int = 128

    def fifo(self, source_lanes: int, sink: Port, depth_beats: int) -> DramFifo:
        """The FIFO of an edge: at least ``depth_beats`` beats of the sink."""
        # one tensor more, as a burst's place is free only when all of it has been read
        capacity = -(-depth_beats * sink.lanes // sink.tensor.elements) + 1
        return DramFifo(**self._fields(sink, source_lanes, sink.lanes, Fraction(1)), capacity=capacity)

    def delay_cycles(self, sink: Port) -> int:
        """By which an element comes later at most than through a FIFO on chip: it waits for its burst to fill, for that
        to be written, and to be read."""
        elements = self.burst * elements_per_word(sink.tensor.fixed.width, self.format.data_bits)
        filling = self.cycles_per_frame * min(elements, sink.tensor.elements) // sink.tensor.elements
        return filling + 2 * (self.latency_cycles + self.burst) + STORE_CYCLES

    def replay(self, source_lanes: int, sink: Port, recipe: Recipe) -> DramReplay:
        """Two versions of a replayed sink's tensor."""
        fields = self._fields(sink, source_lanes, sink.lanes, Fraction(1))
        return DramReplay(**fields, batch=recipe.batch, staleness=recipe.staleness)

    def parked(self, source_lanes: int, sink: Port, load_cycles: int) -> DramFifo:
        """The FIFO in which a tensor waits until a layer takes all of it within ``load_cycles``."""
        frames = Fraction(max(1, self.cycles_per_frame), max(1, load_cycles))
        # as in every FIFO of tensors, one more
        return DramFifo(**self._fields(sink, source_lanes, sink.lanes, frames), capacity=2)

    def ring(self, ring: Ring) -> DramFifo:
        """The FIFO between the two ports of a ring."""
        fields = self._fields(ring.out, ring.out.lanes, ring.back.lanes, ring.per_frame)
        return DramFifo(**fields, capacity=ring.capacity, preload=ring.preload)

    def _fields(self, port: Port, x_lanes: int, y_lanes: int, tensors_per_frame: Fraction) -> dict[str, Any]:
        words = wire_words(port.tensor.elements, port.tensor.fixed.width, self.format.data_bits)
        pace = words * tensors_per_frame / self.cycles_per_frame if self.cycles_per_frame else 0
        under_way = 2 + math.ceil(pace * self.latency_cycles / self.burst)
        return {
            "format": self.format,
            "element_bits": port.tensor.fixed.width,
            "x_lanes": x_lanes,
            "y_lanes": y_lanes,
            "elements": port.tensor.elements,
            "burst": self.burst,
            "prefetch": max(self.prefetch, under_way * self.burst),
        }


@dataclass(frozen=True)
class Held:
    """What a region starts with: a ring's state, or version 0 of weights."""

    node: str
    # name in `Layer.images`
    image: str
    # training state, compared at the end of a co-simulation
    is_state: bool
    tensors: int
    unit: DramUnit


@dataclass(frozen=True)
class Region:
    """A part of a device's memory."""

    # edge of the graph, or node and ring
    name: str
    # first word, and their number
    base: int
    words: int
    # words at the start, from ``base``; empty: anything
    contents: tuple[int, ...]
    holds: Held | None = None


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device as its port sees it."""

    format: AxiFormat
    regions: tuple[Region, ...]

    @property
    def words(self) -> int:
        """Words in use."""
        return max(region.base + region.words for region in self.regions)

    @property
    def image(self) -> list[tuple[int, Sequence[int]]]:
        """Contents before the first frame: (first word, words) of each region that has any."""
        return [(region.base, region.contents) for region in self.regions if region.contents]


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """The memory behind each port in a co-simulation; see `hdl.simulate.models.dram`."""

    latency_cycles: int = 40
    # the memory moves `words` words in `cycles` cycles, reads and writes together
    words: int = 1
    cycles: int = 1
    # of 256 cycles, those in which it stalls
    stall_256: int = 32
    seed: int = 1


@dataclass
class MemoryPort:
    """The memory port of one device under construction."""

    assembly: Assembly
    library: ModuleLibrary
    use: DramUse
    regions: list[Region] = field(default_factory=list)
    # prefixes of AXI ports that want the memory
    masters: list[str] = field(default_factory=list)
    # error flags of units
    errors: list[str] = field(default_factory=list)

    def add_fifo(self, edge: str, source_lanes: int, sink: Port, depth_beats: int, nets: tuple[str, str]) -> None:
        """A FIFO of at least ``depth_beats`` beats of the sink between two nets."""
        self._add(edge, self.use.fifo(source_lanes, sink, depth_beats), nets, ())

    def add_weights(
        self,
        node: str,
        edge: str,
        source_lanes: int,
        sink: Port,
        recipe: Recipe,
        version0: Sequence[int],
        nets: tuple[str, str],
    ) -> None:
        """Two versions of a replayed tensor of ``node``, read once a frame; ``version0`` are beats of the sink."""
        unit = self.use.replay(source_lanes, sink, recipe)
        held = Held(node, sink.name, False, 1, unit)
        self._add(edge, unit, nets, unit.image([version0], sink.lanes), held)

    def add_parked(self, edge: str, source_lanes: int, sink: Port, load_cycles: int, nets: tuple[str, str]) -> None:
        """What a layer takes all at once."""
        self._add(edge, self.use.parked(source_lanes, sink, load_cycles), nets, ())

    def add_ring(self, node: str, ring: Ring, preloaded: Sequence[int], nets: tuple[str, str]) -> None:
        """What a layer keeps outside; ``preloaded`` are the beats that stand in it at the start."""
        unit = self.use.ring(ring)
        tensors = [preloaded[at : at + ring.back.beats] for at in range(0, len(preloaded), ring.back.beats)]
        contents = unit.image(tensors, ring.back.lanes) if tensors else ()
        held = Held(node, ring.name, True, ring.preload, unit) if ring.preload else None
        self._add(f"{node}.{ring.name}", unit, nets, contents, held)

    def _add(
        self,
        name: str,
        unit: DramUnit,
        nets: tuple[str, str],
        contents: Sequence[int],
        held: Held | None = None,
    ) -> None:
        base = allocate(self.regions, unit, self.use.format, f"{self.assembly.name}: {name}")
        self.regions.append(Region(name, base, unit.region_words, tuple(contents), held))
        label = verilog_name(name)
        master = self._axi(f"dram_{label}")
        error = self.assembly.wire(f"dram_error_{label}")
        streams = {"x": nets[0], "y": nets[1], **_port(master, "m")}
        signals = {"base": f"{unit.format.address_bits}'d{base}", "error": error}
        module = unit_module(self.library, "dram_store", unit)
        self.assembly.instance(module, f"u_dram_{label}", streams, signals, role=f"DRAM of {name}")
        self.masters.append(master)
        self.errors.append(error)

    def _axi(self, prefix: str) -> str:
        for name, width in self.use.format.ports(prefix).items():
            self.assembly.stream(name, width)
        return prefix

    def finish(self) -> DeviceMemory | None:
        """The tree of arbiters, the port, the error flag; None if nothing lies in DRAM."""
        if not self.regions:
            return None
        level, count, cut = list(self.masters), 0, False
        while len(level) > 1:
            # of the levels of the tree, every second one is cut
            merge = unit_module(self.library, "axi_merge", AxiMerge(format=self.use.format, cut=cut))
            cut = not cut
            merged = []
            for a, b in zip(level[::2], level[1::2], strict=False):
                out = self._axi(f"dram_merged{count}")
                streams = {**_port(a, "a"), **_port(b, "b"), **_port(out, "m")}
                self.assembly.instance(merge, f"dram_merge{count}", streams, role=MEMORY_ROLE)
                merged.append(out)
                count += 1
            level = merged + level[len(level) - len(level) % 2 :]
        _axi4_port(self.assembly, self.use.format, level[0])
        self.assembly.port("dram_error", 1, Direction.OUT)
        self.assembly.assigns.append(("dram_error", " | ".join(self.errors)))
        return DeviceMemory(self.use.format, tuple(self.regions))


def allocate(regions: Sequence[Region], unit: DramUnit, form: AxiFormat, what: str) -> int:
    """The first word behind all regions at which ``unit`` may begin.

    Raises `DagtrainError` when it ends past the address space."""
    end = max((region.base + region.words for region in regions), default=0)
    base = -(-end // unit.burst) * unit.burst
    if base + unit.region_words > 1 << form.address_bits:
        raise DagtrainError(
            f"{what}: {unit.region_words} words in DRAM from word {base} on end past the {form.address_bits}-bit "
            "addresses of the memory port",
            "keep less in DRAM or widen the addresses",
        )
    return base


def _port(net: str, prefix: str) -> dict[str, str]:
    """Streams of a unit's AXI port ``prefix`` → nets."""
    return {f"{prefix}_{channel}": f"{net}_{channel}" for channel in CHANNELS}


def axi4_payloads(form: AxiFormat) -> Mapping[str, tuple[tuple[str, int], ...]]:
    """Channel → (AXI4 signal, bits) of the payload, low bits first; ``awaddr``, ``araddr`` count bytes on the port."""
    return {
        "aw": (("awaddr", form.address_bits), ("awlen", LENGTH_BITS)),
        "w": (("wdata", form.data_bits), ("wlast", 1)),
        "b": (("bresp", RESPONSE_BITS),),
        "ar": (("araddr", form.address_bits), ("arlen", LENGTH_BITS)),
        "r": (("rdata", form.data_bits), ("rresp", RESPONSE_BITS), ("rlast", 1)),
    }


def _axi4_port(assembly: Assembly, form: AxiFormat, net: str) -> None:
    """The master's five streams as AXI4 signals ``m_axi_…``; addresses in bytes, strobes all ones."""
    byte_bits = (form.data_bits // 8).bit_length() - 1
    for channel, parts in axi4_payloads(form).items():
        ours = channel in FORWARD
        way, back = (Direction.OUT, Direction.IN) if ours else (Direction.IN, Direction.OUT)
        (assembly.readers if ours else assembly.writers)[f"{net}_{channel}"] = MEMORY_ROLE
        valid = assembly.port(f"{AXI_PREFIX}_{channel}valid", 1, way)
        ready = assembly.port(f"{AXI_PREFIX}_{channel}ready", 1, back)
        if ours:
            assembly.assigns += [(valid, f"{net}_{channel}_valid"), (f"{net}_{channel}_ready", ready)]
        else:
            assembly.assigns += [(f"{net}_{channel}_valid", valid), (ready, f"{net}_{channel}_ready")]
        names, low = [], 0
        for signal, bits in parts:
            address = signal.endswith("addr")
            name = assembly.port(f"{AXI_PREFIX}_{signal}", bits + byte_bits * address, way)
            names.append(name)
            if ours:
                value = f"{net}_{channel}_payload[{low + bits - 1}:{low}]"
                assembly.assigns.append((name, f"{{{value}, {byte_bits}'d0}}" if address and byte_bits else value))
            low += bits
        if not ours:
            assembly.assigns.append((f"{net}_{channel}_payload", f"{{{', '.join(reversed(names))}}}"))
        if channel in ("aw", "ar"):
            size = assembly.port(f"{AXI_PREFIX}_{channel}size", _SIZE_BITS, Direction.OUT)
            burst = assembly.port(f"{AXI_PREFIX}_{channel}burst", _BURST_BITS, Direction.OUT)
            assembly.assigns += [(size, f"{_SIZE_BITS}'d{byte_bits}"), (burst, f"{_BURST_BITS}'d{_INCREMENT}")]
    strobe = assembly.port(f"{AXI_PREFIX}_wstrb", form.data_bits // 8, Direction.OUT)
    assembly.assigns.append((strobe, f"{{{form.data_bits // 8}{{1'b1}}}}"))
