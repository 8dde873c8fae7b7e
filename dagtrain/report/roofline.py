"""The roofline of each FPGA and of its engines: multiplications a second against multiplications a byte, of DRAM and
of the network.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures"
(2009).  The roof is what the DSP blocks do at the FPGA's clock or, where a byte serves few multiplications, what the
bytes of a second are good for.  The plan stands below it, and so does each engine, with the bytes of its own streams;
the roof of an engine are its multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dagtrain.report.chart import line_chart
from dagtrain.report.contents import Contents, placed
from hdl.layers.base import Layer
from hdl.layers.capabilities import is_engine
from hdl.parts.catalogue import part
from hdl.tensor import Kind
from placement.problem.plan import DeviceUse, Plan

# of which a product is made
FACTORS = frozenset({Kind.ACTIVATION, Kind.STASH, Kind.ERROR, Kind.WEIGHT})
# bits of both factors where no engine says any
USUAL_BITS = (16, 16)
# products that fill whole DSP blocks which make up to four each
FULL = 12
# how far the axis goes on beyond what it shows, as a factor
BEYOND = 4
# the two ways
DRAM, NETWORK = "DRAM", "network"
GIGA = 10**9


@dataclass(frozen=True, kw_only=True)
class Way:
    """DRAM, or the network in its busier direction."""

    name: str
    bytes_per_frame: Fraction
    # that the plan may use
    bytes_per_s: Fraction


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Of an FPGA."""

    device: str
    # multiplications a frame of its nodes
    macs: int
    # multiplications a second of all DSP blocks that the plan may use
    peak: Fraction
    ways: tuple[Way, ...]
    # frames a second inside a batch, and in training
    steady_fps: Fraction
    training_fps: Fraction

    @property
    def rate(self) -> Fraction:
        """Multiplications a second inside a batch."""
        return self.macs * self.steady_fps

    @property
    def training_rate(self) -> Fraction:
        """Multiplications a second in training."""
        return self.macs * self.training_fps

    def intensity(self, way: Way) -> Fraction | None:
        """Multiplications a byte; None where no byte passes."""
        return self.macs / way.bytes_per_frame if way.bytes_per_frame else None

    def roof(self, way: Way, intensity: Fraction) -> Fraction:
        """Multiplications a second that one way allows."""
        return min(self.peak, intensity * way.bytes_per_s)

    @property
    def roofs(self) -> dict[str, Fraction]:
        """What DSP blocks and each way that is used allow, multiplications a second."""
        used = [(way, intensity) for way in self.ways if (intensity := self.intensity(way)) is not None]
        return {"DSP blocks": self.peak, **{way.name: intensity * way.bytes_per_s for way, intensity in used}}

    @property
    def lowest(self) -> str:
        """The lowest of them."""
        return min(self.roofs, key=self.roofs.__getitem__)

    @property
    def share(self) -> Fraction:
        """Of the roof that is reached inside a batch."""
        return self.rate / self.roofs[self.lowest] if self.macs else Fraction(0)


@dataclass(frozen=True, kw_only=True)
class EnginePoint:
    """Where an engine stands."""

    node: str
    device: str
    # multiplications a frame
    macs: int
    # way -> bytes a frame of its streams: to DRAM and back; in their busier direction between FPGAs
    bytes_per_frame: Mapping[str, Fraction]
    # multiplications a second: of all its multipliers, inside a batch, and as co-simulated; None where none told
    roof: Fraction
    rate: Fraction
    simulated: Fraction | None

    def intensity(self, way: str) -> Fraction | None:
        """Multiplications a byte; None where no byte passes."""
        size = self.bytes_per_frame[way]
        return self.macs / size if size else None

    @property
    def share(self) -> Fraction:
        """Of its roof that is reached inside a batch."""
        return self.rate / self.roof


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What `dagtrain simulate` says of an FPGA."""

    # multiplications a second in training
    rate: Fraction
    # way -> bytes a frame, of those that it counts
    bytes_per_frame: Mapping[str, Fraction]


def engine_points(contents: Contents) -> tuple[EnginePoint, ...]:
    """Of every engine of the plan."""
    plan = contents.plan
    items, uses = {item.item: item for item in plan.items}, {use.device: use for use in plan.devices}
    steady = Fraction(plan.clock_hz, plan.cycles_per_frame)
    ends = contents.cosim["batch_cycles"] if contents.cosim else ()
    simulated = Fraction(plan.clock_hz * plan.batch_frames, ends[-1]) if ends else None
    found = []
    for node in contents.folded.nodes:
        if is_engine(node.layer):
            item, macs = items[node.name], math.ceil(node.layer.macs * contents.folded.busy(node.name))
            sent, got = (
                sum(Fraction(one.bits_per_frame) for one in plan.crossings if getattr(one, end) == node.name)
                for end in ("source", "target")
            )
            size = {DRAM: Fraction(item.dram_bytes_per_frame), NETWORK: Fraction(max(sent, got)) / 8}
            found.append(
                EnginePoint(
                    node=node.name, device=item.device, macs=macs, bytes_per_frame=size, rate=macs * steady,
                    roof=Fraction(node.layer.multipliers * (uses[item.device].clock_hz or plan.clock_hz)),
                    simulated=None if simulated is None else macs * simulated,
                )
            )  # fmt: skip
    return tuple(found)


def cluster_efficiency(found: Sequence[Roofline]) -> Fraction:
    """Multiplications of the algorithm inside a batch, of what the DSP blocks of all FPGAs could do meanwhile."""
    peak = sum(roof.peak for roof in found)
    return Fraction(sum(roof.rate for roof in found)) / peak if peak else Fraction(0)


def rooflines(contents: Contents) -> tuple[Roofline, ...]:
    """Of every FPGA of the plan."""
    plan, homes = contents.plan, placed(contents.plan)
    found = []
    for use in plan.devices:
        here = [node for node in contents.folded.nodes if homes[node.name] == use.device]
        made = [products_a_block(use, node.layer) for node in here if is_engine(node.layer)]
        per_block = max(made, default=_products(use, USUAL_BITS))
        found.append(
            Roofline(
                device=use.device,
                macs=math.ceil(sum(node.layer.macs * contents.folded.busy(node.name) for node in here)),
                peak=use.dsp_capacity * per_block * (use.clock_hz or plan.clock_hz),
                ways=(_dram(use), _network(plan, use)),
                steady_fps=Fraction(plan.clock_hz, plan.cycles_per_frame),
                training_fps=plan.clock_hz / plan.training_cycles,
            )
        )
    return tuple(found)


def products_a_block(use: DeviceUse, layer: Layer) -> Fraction:
    """Products of an engine that a DSP block of the FPGA makes in a cycle."""
    ports = [port for port in (*layer.sinks, *layer.held_parameters) if port.tensor.kind in FACTORS]
    widest = sorted((port.tensor.fixed.width for port in ports), reverse=True)[:2]
    return _products(use, (widest[0], widest[-1]))


def _products(use: DeviceUse, bits: tuple[int, int]) -> Fraction:
    return Fraction(FULL, part(use.part).dsp_blocks({bits: FULL}))


def _dram(use: DeviceUse) -> Way:
    """A channel has its part of the bandwidth, so the fullest one counts for all."""
    channels = use.dram_channel_bytes_per_frame
    size = max(channels) * len(channels) if channels else use.dram_bytes_per_frame
    return Way(name=DRAM, bytes_per_frame=Fraction(size), bytes_per_s=Fraction(use.dram_capacity_bytes_per_s))


def _network(plan: Plan, use: DeviceUse) -> Way:
    """Of a device on cables the fullest one counts, with all words that go through it."""
    here = [cable for cable in plan.cables if use.device in (cable.from_device, cable.to_device)]
    if here:
        fullest = max(here, key=lambda cable: Fraction(cable.bits_per_frame) / cable.capacity_bits_per_s)
        size, rate = Fraction(fullest.bits_per_frame) / 8, Fraction(fullest.capacity_bits_per_s, 8)
        return Way(name=NETWORK, bytes_per_frame=size, bytes_per_s=rate)
    busier = max(Fraction(use.egress_bits_per_frame), Fraction(use.ingress_bits_per_frame))
    return Way(name=NETWORK, bytes_per_frame=busier / 8, bytes_per_s=Fraction(use.link_capacity_bits_per_s, 8))


def roofline_chart(found: Roofline, engines: Sequence[EnginePoint] = (), simulated: Simulated | None = None) -> str:
    """SVG text: a roof for each way that the FPGA has, points where the plan stands and where a simulation does, and a
    ring for each of its engines that moves bytes; "" without multiplications."""
    ways = [way for way in found.ways if way.bytes_per_s]
    if not (found.macs and found.peak and ways):
        return ""
    ridges = {way.name: found.peak / way.bytes_per_s for way in ways}
    stands = {way.name: at for way in ways if (at := found.intensity(way)) is not None}
    here = [one for one in engines if one.device == found.device]
    rings = {
        name: {one.node: (float(at), float(one.rate / GIGA)) for one in here if (at := one.intensity(name)) is not None}
        for name in stands
    }
    told = simulated.bytes_per_frame if simulated else {}
    also = {name: found.macs / size for name, size in told.items() if size and name in ridges}
    across = [
        *ridges.values(),
        *stands.values(),
        *also.values(),
        *(Fraction(x) for each in rings.values() for x, _ in each.values()),
    ]
    ends = min(across) / BEYOND, max(across) * BEYOND
    series: dict[str, list[tuple[float, float]]] = {}
    for way in ways:
        line = (ends[0], ridges[way.name], ends[1])
        series[f"{way.name} roof"] = [(float(x), float(found.roof(way, x) / GIGA)) for x in line]
    for name, at in stands.items():
        series[name] = [(float(at), float(found.rate / GIGA))]
    for name, at in also.items():
        assert simulated is not None
        series[f"{name}, simulated"] = [(float(at), float(simulated.rate / GIGA))]
    roofs = frozenset(f"{way.name} roof" for way in ways)
    labels = "multiplications a byte", "10⁹ multiplications a second"
    return line_chart(found.device, *labels, series, logarithmic=True, unmarked=roofs, rings=rings)
