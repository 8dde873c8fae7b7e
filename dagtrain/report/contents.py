"""What the report says, as plain data: figures taken from the results of the steps, nothing recomputed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dagtrain.emission.manifest import Manifest
from dagtrain.graph.ir import Graph
from dagtrain.graph.summary import Summary
from dagtrain.passes.fold import fold_graph
from hdl.layers.capabilities import is_engine
from hdl.parts.catalogue import part
from hdl.parts.part import Part, common_name
from placement.problem.instance import ticks
from placement.problem.plan import DeviceUse, Plan

# an engine that multiplies in less of its slots than this is said to wait for something
WELL_USED = 0.95


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything a report can show.  What is None was not made, and the note of the same name says why."""

    graph: Graph
    summary: Summary
    imported: Mapping[str, Any]
    plan: Plan
    # node -> cycles a frame that it is folded for; the parts of the cluster
    folds: Mapping[str, int]
    parts: Sequence[Part]
    placing: Mapping[str, Any]
    emitted: Mapping[str, Any]
    # of every FPGA
    manifests: Sequence[Manifest]
    cosim: Mapping[str, Any] | None = None
    cosim_note: str = ""
    train: Mapping[str, Any] | None = None
    train_note: str = ""
    timing: Mapping[str, Any] | None = None
    timing_note: str = ""
    # of `dagtrain simulate`
    simulation: Mapping[str, Any] | None = None
    # one record an engine, of a measurement in simulation
    measured: Sequence[Mapping[str, Any]] | None = None
    # of a batch among others, counted in co-simulation
    timeline: Mapping[str, Any] | None = None
    # that left all this, in their order
    commands: Sequence[str] = ()

    @cached_property
    def folded(self) -> Graph:
        """The graph as the plan builds it."""
        return fold_graph(self.graph, self.folds, self.parts)


@dataclass(frozen=True)
class TimedKind:
    """The slowest module of a kind of circuit."""

    kind: str
    # distinct modules
    modules: int
    worst_ps: int
    levels: int
    start: str
    end: str
    products: int
    loose_products: int


def timed_kinds(timing: Mapping[str, Any]) -> tuple[TimedKind, ...]:
    """The modules of `dagtrain timing` by kind, the slowest first."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for module in timing["modules"]:
        kinds.setdefault(module["module"].rpartition("_")[0], []).append(module)
    found = []
    for kind, modules in kinds.items():
        paths = [path for module in modules for path in module["paths"][:1]]
        none: Mapping[str, Any] = {"ps": 0, "levels": 0, "start": "", "end": ""}
        path = max(paths, key=lambda path: int(path["ps"]), default=none)
        products = [product for module in modules for product in module["products"]]
        loose = sum(not product["registered"] for product in products)
        ends = path["start"], path["end"]
        found.append(TimedKind(kind, len(modules), path["ps"], path["levels"], *ends, len(products), loose))
    return tuple(sorted(found, key=lambda item: (-item.worst_ps, item.kind)))


@dataclass(frozen=True)
class Bar:
    """How full something is."""

    label: str
    used: int
    capacity: int
    unit: str = ""
    # whether the plan names it as what keeps it from being faster
    binds: bool = False

    @property
    def share(self) -> float:
        """Used part, 0 where there is nothing to use."""
        return self.used / self.capacity if self.capacity else 0.0

    @property
    def text(self) -> str:
        """Numbers beside the bar."""
        return f"{self.used:,} of {self.capacity:,}{self.unit} ({self.share:.1%})" if self.capacity else "none"


def device_bars(plan: Plan, use: DeviceUse) -> tuple[Bar, ...]:
    """Utilisation of a device: blocks, then bandwidths, against what the plan may use."""
    return _bars([_through_cables(plan, use)], part(use.part).block_memory, part(use.part).logic_cell.name)


def _through_cables(plan: Plan, use: DeviceUse) -> DeviceUse:
    """What a device takes, on cables with the words that it passes on."""
    if not plan.cables:
        return use
    out = sum(cable.bits_per_s for cable in plan.cables if cable.from_device == use.device)
    into = sum(cable.bits_per_s for cable in plan.cables if cable.to_device == use.device)
    return replace(use, egress_bits_per_s=out, ingress_bits_per_s=into)


def whole_bars(plan: Plan) -> tuple[Bar, ...]:
    """The same of all devices together, with what binds."""
    names, binding = block_names(plan), {binding.kind for binding in plan.binding}
    bars = _bars([_through_cables(plan, use) for use in plan.devices], names.memory, names.cell)
    kinds = ("dsp", "m20k", "alm", "dram", "links", "links")
    return tuple(replace(bar, binds=kind in binding) for bar, kind in zip(bars, kinds, strict=True))


def _bars(uses: Sequence[DeviceUse], memory: str, cell: str) -> tuple[Bar, ...]:
    mega = 10**6

    def total(name: str) -> int:
        return sum(getattr(use, name) for use in uses)

    return (
        Bar("DSP blocks", total("dsp"), total("dsp_capacity")),
        Bar(memory, total("m20k"), total("m20k_capacity")),
        Bar(cell, total("alm"), total("alm_capacity")),
        Bar("DRAM", total("dram_bytes_per_s") // mega, total("dram_capacity_bytes_per_s") // mega, " MB/s"),
        Bar("network out", total("egress_bits_per_s") // mega, total("link_capacity_bits_per_s") // mega, " Mbit/s"),
        Bar("network in", total("ingress_bits_per_s") // mega, total("link_capacity_bits_per_s") // mega, " Mbit/s"),
    )


@dataclass(frozen=True)
class Names:
    """What the parts of a plan call their blocks."""

    memory: str
    cell: str


def block_names(plan: Plan) -> Names:
    """Those of its parts, or words for all where families differ."""
    parts = [part(use.part) for use in plan.devices]
    return Names(
        common_name((one.block_memory for one in parts), "block memory"),
        common_name((one.logic_cell.name for one in parts), "logic cell"),
    )


def plan_paces(plan: Plan) -> dict[str, int]:
    """Node -> cycles a frame of the plan's clock."""
    clocks = _clocks(plan)
    return {item.item: ticks(item.cycles_per_frame, plan.clock_hz, clocks[item.device]) for item in plan.items}


def _clocks(plan: Plan) -> dict[str, int]:
    """Device -> its clock, Hz."""
    return {use.device: use.clock_hz or plan.clock_hz for use in plan.devices}


@dataclass(frozen=True)
class LayerUse:
    """All nodes of a forward layer together, in the plan."""

    layer: str
    nodes: int
    devices: str
    # of the plan's clock
    cycles_per_frame: int
    dsp: int
    m20k: int
    alm: int


def layer_uses(plan: Plan) -> tuple[LayerUse, ...]:
    """Resources by forward layer, in the order of the plan."""
    names, paces = dict.fromkeys(item.layer for item in plan.items), plan_paces(plan)
    groups = {name: [item for item in plan.items if item.layer == name] for name in names}
    return tuple(
        LayerUse(
            name,
            len(items),
            ", ".join(sorted({item.device for item in items})),
            max(paces[item.item] for item in items),
            sum(item.dsp for item in items),
            sum(item.m20k for item in items),
            sum(item.alm for item in items),
        )
        for name, items in groups.items()
    )


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A MAC engine and how much of its slots multiply something that the algorithm needs."""

    node: str
    kind: str
    # multiplications a frame of its own
    macs: int
    multipliers: int
    # by the layer's own rule
    declared_cycles: int
    # between frames in simulation, None where nobody measured
    measured_cycles: float | None = None
    # what the measurement says that the engine waits for
    waits_for: str = ""
    # cycles of its device in one of the plan's clock
    speed: float = 1.0
    # share of all frames that it works on
    busy: float = 1.0

    @property
    def declared(self) -> float:
        """MAC-slot efficiency inside a frame by the declared cycles."""
        return self.macs / (self.multipliers * self.declared_cycles)

    @property
    def measured(self) -> float | None:
        """MAC-slot efficiency inside a frame by the measured cycles."""
        return None if self.measured_cycles is None else self.macs / (self.multipliers * self.measured_cycles)

    def at(self, cycles_per_frame: int) -> float:
        """MAC-slot efficiency in a pipeline whose slowest node needs this many cycles of the plan's clock."""
        return self.macs * self.busy / (self.multipliers * cycles_per_frame * self.speed)

    @property
    def wasted(self) -> str:
        """Why slots stay empty, for an engine that is not well used; "" for the others."""
        best = self.measured if self.measured is not None else self.declared
        if best >= WELL_USED:
            return ""
        needed = self.macs / self.multipliers
        return self.waits_for or (
            f"{self.declared_cycles - needed:,.0f} of {self.declared_cycles:,} cycles a frame fill and drain the "
            "engine or belong to lanes without work"
        )


def engines(contents: Contents) -> tuple[Engine, ...]:
    """Every MAC engine of the placed graph, folded as the plan says, with its measurement if there is one."""
    measured = {str(record["node"]): record for record in contents.measured or ()}
    found, clocks = [], _clocks(contents.plan)
    homes = placed(contents.plan)
    for node in contents.folded.nodes:
        layer = node.layer
        if not is_engine(layer):
            continue
        record = measured.get(node.name)
        found.append(
            Engine(
                node=node.name,
                kind=type(layer).__name__,
                macs=layer.macs,
                multipliers=layer.multipliers,
                declared_cycles=layer.cycles_per_frame,
                measured_cycles=None if record is None else float(record["cycles_per_frame"]),
                waits_for="" if record is None else str(record.get("waits_for", "")),
                speed=clocks[homes[node.name]] / contents.plan.clock_hz,
                busy=float(contents.folded.busy(node.name)),
            )
        )
    return tuple(found)


def slowest(plan: Plan, count: int = 8) -> tuple[str, ...]:
    """Nodes that need all of the plan's cycles a frame, at most ``count`` of them."""
    names = [name for name, cycles in plan_paces(plan).items() if cycles == plan.cycles_per_frame]
    return tuple(names[:count]) + (("…",) if len(names) > count else ())


def placed(plan: Plan) -> dict[str, str]:
    """Node -> device."""
    return {item.item: item.device for item in plan.items}
