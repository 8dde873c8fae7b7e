"""From a training graph and a cluster to a plan: costs of every layer off its elaborated circuit, then the search.

The cost of a node at T cycles a frame is its engine, the FIFO in front of each of its sinks, and, where a sink's edge
crosses the network, both ends of the link.  Which edges cross is known only when a placement is, so planning goes in
two steps: search with local FIFOs at a ladder of T, then price the placement found once more with its links, and let
the validator judge that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from dagtrain.emission.links import NETWORK_CYCLES, Crossing, crossings_of, link_format, link_words
from dagtrain.ir import Graph, Node
from dagtrain.passes.buffers import fifo_beats
from dagtrain.passes.fold import fold_graph, weight_groups, weight_tiles
from dagtrain.passes.schedule import schedule
from dagtrain.progress import Progress
from dagtrain.summary import base_layer
from hdl.errors import FoldingError, InfeasibleError
from hdl.estimate import Estimator
from hdl.link import Egress, Ingress, LinkFormat, Merge, Split, wire_words
from hdl.parts import Part
from hdl.resources import Resources, Usage, fit
from hdl.streams import queue
from hdl.unit import Unit
from placement.cluster import Cluster
from placement.instance import Configuration, Instance, Item, Link, pareto
from placement.plan import Plan
from placement.search import Progress as SearchProgress
from placement.search import SearchOptions, find_plan, plan_from_assignment

# T levels of the first ladder, each this much slower than the one before
LADDER_RATIO = 1.25
LADDER_STEPS = 6
# steps in which the first T is looked for, where multipliers alone would fit
LADDER_STEP = 1.03
# how often the ladder may grow by as many steps again when even its slowest T has no plan
LADDER_GROWTHS = 4
# levels put between the proven bound and the plan found, in each round of refinement
REFINEMENT_LEVELS = 3
REFINEMENT_ROUNDS = 2
# multipliers of 16-bit operands in a DSP block of every part
MULTIPLIERS_PER_DSP = 2


@dataclass(frozen=True)
class Planned:
    """A plan and the instance that it speaks of (what its validator needs)."""

    plan: Plan
    instance: Instance
    # every node is folded for this many cycles a frame
    fold_cycles: int


@dataclass
class Planner:
    """Plans one graph on one cluster."""

    graph: Graph
    cluster: Cluster
    estimator: Estimator
    search: SearchOptions
    pins: Mapping[str, str]
    progress: Progress

    def run(self) -> Planned:
        """Search, refine, price with links.

        Raises `InfeasibleError` naming what to relax, or `OutOfTimeError`."""
        levels = self._ladder()
        best: Plan | None = None
        for _ in range(LADDER_GROWTHS):
            try:
                best = self._find(levels)
                break
            except InfeasibleError as error:
                last = error
                levels = _ladder_from(round(levels[-1] * LADDER_RATIO))
        if best is None:
            raise last
        for _ in range(REFINEMENT_ROUNDS):
            finer = _between(best.bound_cycles_per_frame, best.cycles_per_frame, levels)
            if not finer:
                break
            levels = sorted({*levels, *finer})
            found = self._find([level for level in levels if level <= best.cycles_per_frame] or levels)
            best = found if found.cycles_per_frame <= best.cycles_per_frame else best
        return self._with_links(best, levels)

    # ---- ladder

    def _ladder(self) -> list[int]:
        """T levels from the least that multipliers, ports and engines allow."""
        macs = sum(node.layer.macs for node in self.graph.nodes)
        blocks = sum(device.dsp for device in self.cluster.placement_devices())
        cycles = max(1, math.ceil(macs / (MULTIPLIERS_PER_DSP * max(1, blocks))))
        while True:
            try:
                if _multipliers(fold_graph(self.graph, cycles)) <= MULTIPLIERS_PER_DSP * blocks:
                    return _ladder_from(cycles)
            except FoldingError:
                if cycles > 1 << 40:
                    raise
            if cycles > 1 << 40:
                return _ladder_from(cycles)
            cycles = math.ceil(cycles * LADDER_STEP)

    def _find(self, levels: Sequence[int]) -> Plan:
        instance = self.instance(levels)
        self.progress.begin("search")

        def report(state: SearchProgress) -> None:
            cycles = state.cycles_per_frame
            fps = f"{instance.clock_hz / cycles:,.1f} fps" if cycles else "no plan yet"
            gap = f", gap {state.gap:.2%}" if state.gap is not None else ""
            self.progress.advance(note=f"{state.stage}: {fps}{gap}")

        plan = find_plan(instance, self.search, report)
        self.progress.end(note=f"{plan.throughput_fps:,.1f} fps, gap {plan.gap:.2%}")
        return plan

    def _with_links(self, plan: Plan, levels: Sequence[int]) -> Planned:
        """The placement found, at the least T of the ladder at which it fits with its links priced in."""
        assignment = {item.item: item.device for item in plan.items}
        candidates = sorted({plan.cycles_per_frame, *(level for level in levels if level > plan.cycles_per_frame)})
        failure: InfeasibleError | None = None
        for cycles in candidates:
            try:
                return self.fixed(assignment, cycles, plan)
            except (InfeasibleError, FoldingError) as error:
                failure = error if isinstance(error, InfeasibleError) else failure
        raise failure or InfeasibleError(f"{self.graph.name}: the placement found has no room for its network ports")

    def fixed(self, assignment: Mapping[str, str], cycles: int, found: Plan | None = None) -> Planned:
        """The plan of a given placement at ``cycles``, links priced in; the bound of ``found`` is kept."""
        instance = self.instance([cycles], assignment)
        plan = plan_from_assignment(instance, assignment, self.search)
        if found is not None:
            plan = _with_bound(plan, found)
        return Planned(plan, instance, cycles)

    # ---- instance

    def instance(self, levels: Iterable[int], assignment: Mapping[str, str] | None = None) -> Instance:
        """The placement problem with one configuration a node and level."""
        wanted = list(levels)
        self.progress.begin("costs", len(wanted) * len(self.graph.nodes))
        offers: dict[str, dict[str, list[Configuration]]] = {node.name: {} for node in self.graph.nodes}
        parts = {device.board.part.name: device.board.part for device in self.cluster.devices}
        priced = 0
        for cycles in wanted:
            # folding is not monotonic: lanes that suit more cycles can be too few for somewhat fewer
            try:
                self._price_level(cycles, parts, offers, assignment)
                priced += 1
            except FoldingError:
                if not priced and cycles == wanted[-1]:
                    raise
        self.progress.end()
        tiles = weight_tiles(self.graph, wanted[-1])
        items = tuple(self._item(node, offers[node.name], node.name in tiles) for node in self._by_layer())
        devices = self.cluster.placement_devices()
        instance = Instance(
            name=f"{self.graph.name} on {self.cluster.name}",
            clock_hz=self.cluster.clock_hz,
            items=items,
            links=tuple(self._links()),
            devices=devices,
        )
        return instance.with_pins(self.pins) if self.pins else instance

    def _by_layer(self) -> list[Node]:
        """Nodes layer by layer in the order of the network, as the search's first guess wants them."""
        order: dict[str, int] = {}
        for node in self.graph.nodes:
            order.setdefault(base_layer(node.name), len(order))
        return sorted(self.graph.nodes, key=lambda node: order[base_layer(node.name)])

    def _item(self, node: Node, offers: Mapping[str, list[Configuration]], tiled: bool) -> Item:
        return Item(
            name=node.name,
            configurations={part: pareto(found) for part, found in offers.items()},
            pinned=self.cluster.devices[0].name if node.layer.pinned_to_host else None,
            tile_group=self._group_of(node) if tiled else None,
            layer=base_layer(node.name),
        )

    def _group_of(self, node: Node) -> str:
        return self._groups[node.name]

    @cached_property
    def _groups(self) -> dict[str, str]:
        """Node -> the first node of its weight group."""
        return {member.name: members[0].name for members in weight_groups(self.graph) for member in members}

    def _price_level(
        self,
        cycles: int,
        parts: Mapping[str, Part],
        offers: dict[str, dict[str, list[Configuration]]],
        assignment: Mapping[str, str] | None,
    ) -> None:
        folded = fold_graph(self.graph, cycles)
        tiles = weight_tiles(self.graph, cycles)
        links = _LinkCosts.of(folded, assignment, [d.name for d in self.cluster.devices], self.cluster.link_word_bits)
        depths = fifo_beats(folded, schedule(folded, cycles, links.delays))
        for node in folded.nodes:
            contents = node_resources(node, depths, links, self.estimator)
            tile = tiles.get(node.name)
            for name, part in parts.items():
                usage = fit_all(contents, part)
                offers[node.name].setdefault(name, []).append(
                    Configuration(
                        label=f"T{cycles}",
                        cycles_per_frame=node.layer.cycles_per_frame,
                        dsp=usage.dsp,
                        m20k=usage.m20k,
                        alm=usage.alm,
                        tile=f"{tile.po}x{tile.pi}x{tile.pk}" if tile else None,
                        payload=str(cycles),
                    )
                )
            self.progress.advance(note=node.name)

    def _links(self) -> Iterable[Link]:
        word_bits, batch = self.cluster.link_word_bits, self.graph.recipe.batch
        for _edge, producer, source, consumer, _sink in self.graph.edges:
            tensor = source.tensor
            words = wire_words(tensor.elements, tensor.fixed.width, word_bits)
            bits = Fraction(words * word_bits, batch if tensor.kind.per_batch else 1)
            yield Link(source=producer.name, target=consumer.name, kind=tensor.kind, bits_per_frame=bits)


@dataclass(frozen=True)
class _LinkCosts:
    """Which edges cross the network, and the units at their ends."""

    crossings: Mapping[str, Crossing]
    form: LinkFormat

    @classmethod
    def of(
        cls, graph: Graph, assignment: Mapping[str, str] | None, devices: Sequence[str], word_bits: int
    ) -> _LinkCosts:
        found = crossings_of(graph, assignment, devices) if assignment else ()
        return cls({crossing.edge: crossing for crossing in found}, link_format(found, len(devices), word_bits))

    @property
    def delays(self) -> dict[str, int]:
        return dict.fromkeys(self.crossings, NETWORK_CYCLES)

    def sending(self, edge: str, beats: int) -> tuple[Unit, ...]:
        """Units at the sending end: the sender, the split that gets its credits, its place in the merge tree."""
        crossing = self.crossings[edge]
        words = link_words(crossing, beats, self.form.word_bits)
        egress = Egress(
            format=self.form,
            element_bits=crossing.element_bits,
            lanes=crossing.source.lanes,
            elements=crossing.elements,
            credits=words,
        )
        return egress, Split(format=self.form), Merge(format=self.form)

    def receiving(self, edge: str, beats: int) -> tuple[Unit, ...]:
        """Units at the receiving end, its FIFO included."""
        crossing = self.crossings[edge]
        words = link_words(crossing, beats, self.form.word_bits)
        ingress = Ingress(
            format=self.form,
            element_bits=crossing.element_bits,
            lanes=crossing.sink.lanes,
            elements=crossing.elements,
            depth=words,
        )
        return ingress, Split(format=self.form), Merge(format=self.form)


def node_resources(
    node: Node, depths: Mapping[str, int], links: _LinkCosts, estimator: Estimator
) -> tuple[Resources, ...]:
    """Contents of a node's circuits: its engine, the FIFO or receiver of each sink, the sender of each source."""
    found = [estimator.layer(node.layer)]
    for port in node.layer.sinks:
        edge = node.inputs[port.name]
        if edge in links.crossings:
            found += [_unit_resources(unit, estimator) for unit in links.receiving(edge, depths[edge])]
        elif node.layer.sources:
            found.append(queue_resources(port.payload_bits, depths[edge], estimator))
    for port in node.layer.sources:
        edge = node.outputs[port.name]
        if edge in links.crossings:
            found += [_unit_resources(unit, estimator) for unit in links.sending(edge, depths[edge])]
    return tuple(found)


def fit_all(contents: Iterable[Resources], part: Part) -> Usage:
    """Blocks of several circuits side by side; DSP blocks are not shared between circuits."""
    total = Usage()
    for resources in contents:
        total = total + fit(resources, part)
    return total


def queue_resources(payload_bits: int, depth: int, estimator: Estimator) -> Resources:
    """Contents of a FIFO."""

    def build(clk: Any, rst: Any, streams: Any) -> Any:
        return queue(clk, rst, streams["x"], streams["y"], depth=depth)

    return estimator.block(f"queue {depth}", {"x": payload_bits, "y": payload_bits}, build)


def _unit_resources(unit: Unit, estimator: Estimator) -> Resources:
    return estimator.block(repr(unit), dict(unit.streams), unit.build)


def _multipliers(graph: Graph) -> int:
    """Multipliers of all engines: what no placement can do without."""
    return sum(node.layer.multipliers for node in graph.nodes)


def _ladder_from(cycles: int) -> list[int]:
    levels = [cycles]
    while len(levels) < LADDER_STEPS:
        levels.append(max(levels[-1] + 1, math.ceil(levels[-1] * LADDER_RATIO)))
    return levels


def _between(low: int, high: int, known: Sequence[int]) -> list[int]:
    """New levels between the bound and the plan, evenly spaced in ratio."""
    below = max((level for level in known if level < high), default=max(1, low - 1))
    low = max(low - 1, below, 1)
    if high - low <= 1 or high / low < 1.005:
        return []
    step = (high / low) ** (1 / (REFINEMENT_LEVELS + 1))
    found = {round(low * step**index) for index in range(1, REFINEMENT_LEVELS + 1)}
    return sorted(level for level in found if low < level < high)


def _with_bound(plan: Plan, found: Plan) -> Plan:
    """The plan with the bound of the search that found it: the forced one's own bound speaks of its placement only."""
    bound = min(found.bound_cycles_per_frame, plan.cycles_per_frame)
    fps = plan.clock_hz / bound
    gap = 1 - bound / plan.cycles_per_frame
    return replace(
        plan,
        bound_cycles_per_frame=bound,
        bound_fps=fps,
        bound_basis=found.bound_basis,
        gap=gap,
        status="optimal" if gap == 0 else "feasible",
        binding=found.binding,
    )
