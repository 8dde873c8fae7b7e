"""The memory ports of an FPGA: what lies in DRAM, where, and the AXI4 masters that all of it shares.

Structure (units of `hdl.dram.store`, `hdl.dram.deal`, `hdl.dram.axi` and `hdl.dram.widen`)::

    producer ─▶ DramFifo ─▶ consumer        a stash, or a shortcut that waits for the long way
    producer ─▶ Deal ═▶ DramFifo … ═▶ Collect ─▶ consumer       the same, dealt out over memory channels
    update ─▶ DramFifo ─▶ conv              the next version of weights, until the one in use is out (`Layer.parked`)
    update ─▶ DramReplay ─▶ conv            weights, a version a batch in, a copy a frame out (`Layer.replayed`)
    layer ─▶ DramFifo ─▶ the same layer     sums of gradients under way, optimiser state (`Layer.rings`)
                DramConstant ─▶ conv        frozen weights, read once a frame (`Layer.fetched`)
  chain ─▶ LoadedConstant ─▶ conv, chain    the same, loaded by a host (`Layer.fetches_loaded`)
        every unit ─▶ tree of AxiMerge ─▶ AXI4 port `m_axi_…` of the device, one a memory channel
        narrow units of a group ─▶ tree of AxiMerge ─▶ AxiWiden, which stands in that tree for a unit

Regions of a channel follow each other from address 0, each a whole number of bursts at a multiple of the burst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Self

from dagtrain.emission.assembly import Assembly
from dagtrain.emission.links import unit_module
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from dagtrain.emission.stored import MOST_LOAD, DramUse, Stored
from hdl.convert.netlist import Direction
from hdl.dram.axi import CHANNELS, FORWARD, LENGTH_BITS, RESPONSE_BITS, AxiFormat, AxiMerge
from hdl.dram.deal import Collect, Deal, elements_a_turn
from hdl.dram.region import regroup
from hdl.dram.store import DramUnit
from hdl.dram.widen import AxiWiden
from hdl.errors import DagtrainError
from hdl.layers.storage import Ring
from hdl.recipe import Recipe
from hdl.simulate.models.dram import StuckBit
from hdl.tensor import Port

# prefix of the AXI4 signals of a device
AXI_PREFIX = "m_axi"
# what messages call the arbiters of a memory port
MEMORY_ROLE = "memory port"
# of a group of narrow units: words a cycle either way, and units, at most
GROUP_LOAD = 3 * MOST_LOAD
GROUP_UNITS = 16
# of a word a cycle, to which the rate of a memory is cut down
RATE_PARTS = 64
_SIZE_BITS, _BURST_BITS, _INCREMENT = 3, 2, 1


# what messages call the ends of a stream that is dealt out begins with them
DEAL_ROLE, COLLECT_ROLE = "deal of ", "collect of "


def store_role(region: str) -> str:
    """What messages call the unit in front of a region."""
    return f"DRAM of {region}"


def store_port(region: str) -> str:
    """The prefix of the nets of that unit's AXI port."""
    return f"dram_{verilog_name(region)}"


@dataclass(frozen=True)
class Held:
    """What a region starts with, or gets when state is loaded: a ring's, version 0 of weights, or those that stay."""

    node: str
    # name in `Layer.images`
    image: str
    # training state, compared at the end of a co-simulation
    is_state: bool
    tensors: int
    unit: DramUnit
    # whether it comes by streams, and the image leaves it out
    loaded: bool = False


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
    """A memory channel of one device as its port sees it."""

    # prefix of the port's signals
    port: str
    format: AxiFormat
    regions: tuple[Region, ...]

    @property
    def file_name(self) -> str:
        """Name of the file of its image."""
        return f"dram{self.port.removeprefix(AXI_PREFIX)}.mem"

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
    # the memory moves `words` words in `cycles` cycles, reads and writes together, each one a cycle at most
    words: int = 1
    cycles: int = 1
    # device -> bytes/s of each of its channels, instead of those
    bytes_per_s: Mapping[str, Fraction] = field(default_factory=dict)
    # of 256 cycles, those in which it stalls
    stall_256: int = 32
    seed: int = 1
    # a broken cell
    stuck: StuckBit | None = None

    def behind(self, device: str, word_bits: int, clock_hz: float) -> MemoryModel:
        """The memory at a port of a device with such words and such a clock."""
        if device not in self.bytes_per_s:
            return replace(self, bytes_per_s={})
        wanted = self.bytes_per_s[device] * 8 / (word_bits * Fraction(clock_hz))
        # no faster than it is, in parts that the model counts quickly
        rate = max(Fraction(1, RATE_PARTS), min(Fraction(2), Fraction(int(wanted * RATE_PARTS), RATE_PARTS)))
        return replace(self, words=rate.numerator, cycles=rate.denominator, bytes_per_s={})


@dataclass(frozen=True)
class _Master:
    """An AXI port of a unit."""

    # prefix of its nets
    net: str
    channel: int
    stored: Stored


@dataclass
class MemoryPort:
    """The memory ports of one device under construction."""

    assembly: Assembly
    library: ModuleLibrary
    use: DramUse
    # memory ports of the device
    channels: int = 1
    # channel → what lies there
    regions: dict[int, list[Region]] = field(default_factory=dict)
    # that want the memory
    masters: list[_Master] = field(default_factory=list)
    # error flags of units
    errors: list[str] = field(default_factory=list)
    # arbiters and wideners so far
    _merges: int = field(default=0, init=False)
    _wideners: int = field(default=0, init=False)

    def working(self, busy: Fraction) -> Self:
        """The same port for a node that works on a share of all frames, whose units are as fast as it wants them."""
        return replace(self, use=self.use.at(busy=busy))

    def add_fifo(self, edge: str, source_lanes: int, sink: Port, depth_beats: int, nets: tuple[str, str]) -> None:
        """A FIFO of at least ``depth_beats`` beats of the sink between two nets, or several, dealt out."""
        parts = self.use.dealt.get(edge, 1)
        stored = self.use.fifo(source_lanes, sink, depth_beats, parts)
        regions = fifo_regions(edge, parts)
        for region, between in zip(regions, self._dealt(edge, source_lanes, sink, nets, parts), strict=True):
            self._add(region, stored, _through(between), ())

    def _dealt(
        self, edge: str, source_lanes: int, sink: Port, nets: tuple[str, str], parts: int
    ) -> list[tuple[str, str]]:
        """The nets of each part of a stream between two nets: these alone, or those that it is dealt out to and
        collected from."""
        if parts == 1:
            return [nets]
        label = verilog_name(edge)
        deal, collect = deal_units(source_lanes, sink, parts)
        dealt = [self.assembly.stream(f"d_{label}_{part}", deal.payload_bits) for part in range(parts)]
        back = [self.assembly.stream(f"b_{label}_{part}", collect.payload_bits) for part in range(parts)]
        for kind, role, unit, ends in (
            ("deal", DEAL_ROLE, deal, [nets[0], *dealt]),
            ("collect", COLLECT_ROLE, collect, [*back, nets[1]]),
        ):
            module = unit_module(self.library, kind, unit)
            streams = dict(zip(unit.streams, ends, strict=True))
            self.assembly.instance(module, f"{kind}_{label}", streams, role=f"{role}{edge}")
        return list(zip(dealt, back, strict=True))

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
        """Two versions of a replayed tensor of ``node``, read once a frame; ``version0`` are beats of the sink, where
        these do not come by a stream."""
        stored = self.use.replay(source_lanes, sink, recipe)
        held = Held(node, sink.name, False, 1, stored.unit, recipe.loaded)
        contents = () if recipe.loaded else stored.unit.image([version0], sink.lanes)
        self._add(edge, stored, _through(nets), contents, held)

    def add_parked(
        self, edge: str, source_lanes: int, sink: Port, load_cycles: int, batch: int, nets: tuple[str, str]
    ) -> None:
        """What a layer takes all at once, once a batch."""
        self._add(edge, self.use.parked(source_lanes, sink, load_cycles, batch), _through(nets), ())

    def add_ring(self, node: str, ring: Ring, preloaded: Sequence[int], nets: tuple[str, str]) -> None:
        """What a layer keeps outside; ``preloaded`` are the beats that stand in it at the start."""
        stored = self.use.ring(ring)
        tensors = [preloaded[at : at + ring.back.beats] for at in range(0, len(preloaded), ring.back.beats)]
        contents = stored.unit.image(tensors, ring.back.lanes) if tensors else ()
        held = Held(node, ring.name, True, ring.preload, stored.unit, ring.loaded) if ring.preload else None
        self._add(f"{node}.{ring.name}", stored, _through(nets), contents, held)

    def add_constant(self, node: str, region: str, port: Port, beats: Sequence[int], net: str) -> None:
        """What a layer fetches through a port, and nobody writes; ``beats`` of that port."""
        stored = self.use.constant(port)
        held = Held(node, port.name, True, 1, stored.unit)
        self._add(region, stored, {"y": net}, stored.unit.image([beats], port.lanes), held)

    def add_loaded(self, node: str, region: str, port: Port, words: int, nets: Mapping[str, str]) -> None:
        """What a layer fetches through a port, and a host loads, by so many words; ``nets`` of load, dump and y."""
        stored = self.use.constant(port, words)
        self._add(region, stored, nets, (), Held(node, port.name, True, 1, stored.unit, loaded=True))

    def _add(
        self,
        name: str,
        stored: Stored,
        nets: Mapping[str, str],
        contents: Sequence[int],
        held: Held | None = None,
    ) -> None:
        unit, form = stored.unit, self.use.format
        ratio = form.data_bits // unit.format.data_bits
        channel = self.use.channel_of.get(name, 0)
        regions = self.regions.setdefault(channel, [])
        base = allocate(regions, unit, form, f"{self.assembly.name}: {name}")
        words = tuple(regroup(contents, unit.format.data_bits, form.data_bits) if ratio > 1 else contents)
        regions.append(Region(name, base, unit.region_words // ratio, words, held))
        label = verilog_name(name)
        master = self._axi(store_port(name), unit.format)
        error = self.assembly.wire(f"dram_error_{label}")
        streams = {**nets, **axi_nets(master, "m")}
        signals = {"base": f"{unit.format.address_bits}'d{base * ratio}", "error": error}
        module = unit_module(self.library, "dram_store", unit)
        self.assembly.instance(module, f"u_dram_{label}", streams, signals, role=store_role(name))
        self.masters.append(_Master(master, channel, stored))
        self.errors.append(error)

    def _axi(self, prefix: str, form: AxiFormat) -> str:
        for name, width in form.ports(prefix).items():
            self.assembly.stream(name, width)
        return prefix

    def finish(self) -> tuple[DeviceMemory, ...]:
        """The trees of arbiters, the ports, the error flag; the memory of each channel that holds anything."""
        memories = []
        for channel, regions in sorted(self.regions.items()):
            port = channel_prefix(channel, self.channels)
            axi4_port(self.assembly, self.use.format, self._channel(channel), port)
            memories.append(DeviceMemory(port, self.use.format, tuple(regions)))
        if memories:
            self.assembly.port("dram_error", 1, Direction.OUT)
            self.assembly.assigns.append(("dram_error", " | ".join(self.errors)))
        return tuple(memories)

    def _channel(self, channel: int) -> str:
        """The one master that all units of a channel are behind."""
        form = self.use.format
        here = [master for master in self.masters if master.channel == channel]
        level = [master.net for master in here if master.stored.unit.format == form]
        for narrow in self.use.narrow_formats:
            units = [master for master in here if master.stored.unit.format == narrow]
            for group in grouped([master.stored.load for master in units]):
                level.append(self._widened([units[position].net for position in group], narrow))
        return self._merged(level, form)

    def _widened(self, masters: Sequence[str], narrow: AxiFormat) -> str:
        """The port of a group of narrow units."""
        net = self._merged(masters, narrow)
        unit = AxiWiden(narrow=narrow, wide=self.use.format, burst=self.use.group_burst(narrow))
        out = self._axi(f"dram_widened{self._wideners}", self.use.format)
        streams = {**axi_nets(net, "a"), **axi_nets(out, "m")}
        module = unit_module(self.library, "axi_widen", unit)
        self.assembly.instance(module, f"dram_widen{self._wideners}", streams, role=MEMORY_ROLE)
        self._wideners += 1
        return out

    def _merged(self, masters: Sequence[str], form: AxiFormat) -> str:
        """A tree of arbiters; of its levels, every second one is cut."""
        level, cut = list(masters), False
        while len(level) > 1:
            merge = unit_module(self.library, "axi_merge", AxiMerge(format=form, cut=cut))
            cut = not cut
            merged = []
            for a, b in zip(level[::2], level[1::2], strict=False):
                out = self._axi(f"dram_merged{self._merges}", form)
                streams = {**axi_nets(a, "a"), **axi_nets(b, "b"), **axi_nets(out, "m")}
                self.assembly.instance(merge, f"dram_merge{self._merges}", streams, role=MEMORY_ROLE)
                merged.append(out)
                self._merges += 1
            level = merged + level[len(level) - len(level) % 2 :]
        return level[0]


def _through(nets: tuple[str, str]) -> dict[str, str]:
    """Streams of what stands between two nets."""
    return dict(zip("xy", nets, strict=True))


def fifo_regions(edge: str, parts: int) -> list[str]:
    """The regions of the FIFO of an edge in DRAM, dealt out to so many parts."""
    return [f"{edge}.dealt{part}" for part in range(parts)] if parts > 1 else [edge]


def deal_units(source_lanes: int, sink: Port, parts: int) -> tuple[Deal, Collect]:
    """What deals a stream of so many lanes out to parts, and what collects it for a sink."""
    bits, elements = sink.tensor.fixed.width, elements_a_turn(source_lanes, sink.lanes)
    deal = Deal(payload_bits=source_lanes * bits, parts=parts, turn=elements // source_lanes)
    return deal, Collect(payload_bits=sink.payload_bits, parts=parts, turn=elements // sink.lanes)


def channel_prefix(channel: int, channels: int) -> str:
    """The prefix of a channel's AXI4 signals, of so many channels of a device."""
    return f"{AXI_PREFIX}{channel}" if channels > 1 else AXI_PREFIX


def grouped(loads: Sequence[Fraction]) -> list[list[int]]:
    """Positions of narrow units that are widened together, those with the most to carry first.

    There is at most one group more than the sum of all units' `group_share`: where a unit begins a group, each one
    before has all its units, or, since no unit has more than a third of `GROUP_LOAD`, two thirds of its load."""
    groups: list[list[int]] = []
    for position in sorted(range(len(loads)), key=lambda at: -loads[at]):
        for group in groups:
            carried = sum((loads[member] for member in group), loads[position])
            if len(group) < GROUP_UNITS and carried <= GROUP_LOAD:
                group.append(position)
                break
        else:
            groups.append([position])
    return groups


def group_share(load: Fraction) -> Fraction:
    """Of a group's widener and its place in the tree of arbiters, what a unit of this load is counted with."""
    return max(load * 3 / (2 * GROUP_LOAD), Fraction(1, GROUP_UNITS))


def allocate(regions: Sequence[Region], unit: DramUnit, form: AxiFormat, what: str) -> int:
    """The first word behind all regions at which ``unit`` may begin.

    Raises `DagtrainError` when it ends past the address space."""
    ratio = form.data_bits // unit.format.data_bits
    burst, words = unit.burst // ratio, unit.region_words // ratio
    end = max((region.base + region.words for region in regions), default=0)
    base = -(-end // burst) * burst
    if base + words > 1 << form.address_bits:
        raise DagtrainError(
            f"{what}: {words} words in DRAM from word {base} on end past the {form.address_bits}-bit "
            "addresses of the memory port",
            "keep less in DRAM or widen the addresses",
        )
    return base


def axi_nets(net: str, prefix: str) -> dict[str, str]:
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


def axi4_port(assembly: Assembly, form: AxiFormat, net: str, prefix: str) -> None:
    """The master's five streams as AXI4 signals ``<prefix>_…``; addresses in bytes, strobes all ones."""
    byte_bits = (form.data_bits // 8).bit_length() - 1
    for channel, parts in axi4_payloads(form).items():
        ours = channel in FORWARD
        way, back = (Direction.OUT, Direction.IN) if ours else (Direction.IN, Direction.OUT)
        (assembly.readers if ours else assembly.writers)[f"{net}_{channel}"] = MEMORY_ROLE
        valid = assembly.port(f"{prefix}_{channel}valid", 1, way)
        ready = assembly.port(f"{prefix}_{channel}ready", 1, back)
        if ours:
            assembly.assigns += [(valid, f"{net}_{channel}_valid"), (f"{net}_{channel}_ready", ready)]
        else:
            assembly.assigns += [(f"{net}_{channel}_valid", valid), (ready, f"{net}_{channel}_ready")]
        names, low = [], 0
        for signal, bits in parts:
            address = signal.endswith("addr")
            name = assembly.port(f"{prefix}_{signal}", bits + byte_bits * address, way)
            names.append(name)
            if ours:
                value = f"{net}_{channel}_payload[{low + bits - 1}:{low}]"
                assembly.assigns.append((name, f"{{{value}, {byte_bits}'d0}}" if address and byte_bits else value))
            low += bits
        if not ours:
            assembly.assigns.append((f"{net}_{channel}_payload", f"{{{', '.join(reversed(names))}}}"))
        if channel in ("aw", "ar"):
            size = assembly.port(f"{prefix}_{channel}size", _SIZE_BITS, Direction.OUT)
            burst = assembly.port(f"{prefix}_{channel}burst", _BURST_BITS, Direction.OUT)
            assembly.assigns += [(size, f"{_SIZE_BITS}'d{byte_bits}"), (burst, f"{_BURST_BITS}'d{_INCREMENT}")]
    strobe = assembly.port(f"{prefix}_wstrb", form.data_bits // 8, Direction.OUT)
    assembly.assigns.append((strobe, f"{{{form.data_bits // 8}{{1'b1}}}}"))
