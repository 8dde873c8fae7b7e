"""From a training graph and a cluster to a plan: costs of every layer off its elaborated circuit, then the search.

The cost of a node at T cycles a frame (`dagtrain.flow.costs`) depends on what only a placement tells: which edges cross
the network, and, through the depths of FIFOs, which layers keep their memory in DRAM.  So planning goes in two steps:
search at a ladder of T as if nothing crossed and all lay on chip, then price the placement found with its links and
homes until these stay what they are, and let the validator judge that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from dagtrain.emission.memory import DramUse
from dagtrain.flow.choices import dram_format, memory_homes, plan_choices
from dagtrain.flow.costs import LevelCosts, Offer
from dagtrain.ir import Graph, Node
from dagtrain.passes.fold import fold_graph, weight_groups
from dagtrain.progress import Progress
from dagtrain.summary import base_layer
from hdl.errors import FoldingError, InfeasibleError
from hdl.estimate import Estimator
from hdl.link import wire_words
from hdl.parts import Part
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
# how often the home of memories may change what FIFOs cost, and that the homes, before they are kept
HOME_ROUNDS = 3
# steps by which a placement may slow down to make room for its network ports
LINK_STEPS = 8
LINK_RATIO = 1.03
# multipliers of 16-bit operands in a DSP block of every part
MULTIPLIERS_PER_DSP = 2


@dataclass(frozen=True)
class Planned:
    """A plan and the instance that it speaks of (what its validator needs)."""

    plan: Plan
    instance: Instance
    # every node is folded for this many cycles a frame
    fold_cycles: int


@dataclass(frozen=True)
class PricedLevel:
    """Configurations at one number of cycles a frame."""

    # node -> part -> configurations
    offers: Mapping[str, Mapping[str, Sequence[Configuration]]]
    # nodes of weight groups with a tile
    tiled: frozenset[str]
    # (node, label of a configuration) -> bytes that lie in DRAM
    dram_bytes: Mapping[tuple[str, str], int]


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
        homes = memory_homes(plan_choices(plan))
        failure: InfeasibleError | None = None
        for cycles in _slower(plan.cycles_per_frame, levels):
            try:
                return self.fixed(assignment, cycles, homes, plan)
            except (InfeasibleError, FoldingError) as error:
                failure = error if isinstance(error, InfeasibleError) else failure
        raise failure or InfeasibleError(f"{self.graph.name}: the placement found has no room for its network ports")

    def fixed(
        self, assignment: Mapping[str, str], cycles: int, homes: frozenset[str] = frozenset(), found: Plan | None = None
    ) -> Planned:
        """The plan of a given placement folded for ``cycles``, links priced in; the bound of ``found`` is kept.

        ``homes``: nodes whose memory lies in DRAM at first; the plan may say otherwise."""
        for free in [True] * HOME_ROUNDS + [False]:
            level = self._priced(cycles, homes, assignment, free)
            instance = self._instance([level])
            plan = plan_from_assignment(instance, assignment, self.search)
            wanted = memory_homes(plan_choices(plan))
            if wanted == homes:
                break
            homes = wanted
        self._check_memory_size(plan, level)
        return Planned(plan if found is None else _with_bound(plan, found), instance, cycles)

    def _check_memory_size(self, plan: Plan, level: PricedLevel) -> None:
        """Raises `InfeasibleError` when what lies in a device's DRAM is larger than it."""
        used: Counter[str] = Counter()
        for item in plan.items:
            used[item.device] += level.dram_bytes[item.item, item.configuration]
        problems = [
            f"{device.name} would hold {used[device.name]:,} bytes in DRAM and has {device.board.dram_bytes:,}"
            for device in self.cluster.devices
            if used[device.name] > device.board.dram_bytes
        ]
        if problems:
            raise InfeasibleError(f"{plan.instance}: {'; '.join(problems)}; raise dram_gbyte or add devices")

    # ---- instance

    def instance(self, levels: Iterable[int]) -> Instance:
        """The placement problem with the choices of every node at each level that all layers can keep."""
        wanted = list(levels)
        self.progress.begin("costs", len(wanted) * len(self.graph.nodes))
        priced: list[PricedLevel] = []
        for cycles in wanted:
            # folding is not monotonic: lanes that suit more cycles can be too few for somewhat fewer
            try:
                priced.append(self._priced(cycles, frozenset(), None))
            except FoldingError:
                if not priced and cycles == wanted[-1]:
                    raise
        self.progress.end()
        return self._instance(priced)

    def _priced(
        self, cycles: int, homes: frozenset[str], assignment: Mapping[str, str] | None, free: bool = True
    ) -> PricedLevel:
        """Every node's configurations by part at one level; kept, because rounds of refinement ask again."""
        key = (cycles, homes, tuple(sorted(assignment.items())) if assignment else None, free)
        if key in self._known:
            self.progress.advance(len(self.graph.nodes))
            return self._known[key]
        level = LevelCosts(
            graph=self.graph,
            cycles=cycles,
            homes=homes,
            dram=self._dram,
            estimator=self.estimator,
            assignment=assignment,
            devices=[device.name for device in self.cluster.devices],
            link_word_bits=self.cluster.link_word_bits,
            free=free,
        )
        offers: dict[str, dict[str, list[Configuration]]] = {}
        sizes: dict[tuple[str, str], int] = {}
        circuits = 0

        def report(count: int) -> None:
            nonlocal circuits
            circuits += count
            self.progress.advance(0, note=f"{circuits} circuits for {cycles:,} cycles")

        self.estimator.prepare(level.layers(), report)
        for node in level.folded.nodes:
            offers[node.name] = {part.name: [] for part in self._parts}
            for offer in level.offers(node):
                sizes[node.name, offer.choice.label] = offer.dram_bytes
                for part in self._parts:
                    offers[node.name][part.name].append(_configuration(offer, part))
            self.progress.advance(note=node.name)
        self._known[key] = PricedLevel(offers, frozenset(level.tiles), sizes)
        return self._known[key]

    def _instance(self, levels: Sequence[PricedLevel]) -> Instance:
        items = []
        for node in self._by_layer():
            offers = {
                part.name: pareto(c for level in levels for c in level.offers[node.name][part.name])
                for part in self._parts
            }
            items.append(self._item(node, offers, any(node.name in level.tiled for level in levels)))
        instance = Instance(
            name=f"{self.graph.name} on {self.cluster.name}",
            clock_hz=self.cluster.clock_hz,
            items=tuple(items),
            links=tuple(self._links()),
            devices=self.cluster.placement_devices(),
        )
        return instance.with_pins(self.pins) if self.pins else instance

    def _by_layer(self) -> list[Node]:
        """Nodes layer by layer in the order of the network, as the search's first guess wants them."""
        order: dict[str, int] = {}
        for node in self.graph.nodes:
            order.setdefault(base_layer(node.name), len(order))
        return sorted(self.graph.nodes, key=lambda node: order[base_layer(node.name)])

    def _item(self, node: Node, offers: Mapping[str, tuple[Configuration, ...]], tiled: bool) -> Item:
        return Item(
            name=node.name,
            configurations=offers,
            pinned=self.cluster.devices[0].name if node.layer.pinned_to_host else None,
            tile_group=self._group_of(node) if tiled else None,
            layer=base_layer(node.name),
        )

    def _group_of(self, node: Node) -> str:
        return self._groups[node.name]

    @cached_property
    def _parts(self) -> tuple[Part, ...]:
        """Part types of the cluster, each once."""
        return tuple({device.board.part.name: device.board.part for device in self.cluster.devices}.values())

    @cached_property
    def _dram(self) -> DramUse:
        """The form of memory ports and of the units at them."""
        return DramUse(format=dram_format(self.cluster))

    @cached_property
    def _known(self) -> dict[Any, PricedLevel]:
        return {}

    @cached_property
    def _groups(self) -> dict[str, str]:
        """Node -> the first node of its weight group."""
        return {member.name: members[0].name for members in weight_groups(self.graph) for member in members}

    def _links(self) -> Iterable[Link]:
        word_bits, batch = self.cluster.link_word_bits, self.graph.recipe.batch
        for _edge, producer, source, consumer, _sink in self.graph.edges:
            tensor = source.tensor
            words = wire_words(tensor.elements, tensor.fixed.width, word_bits)
            bits = Fraction(words * word_bits, batch if tensor.kind.per_batch else 1)
            yield Link(source=producer.name, target=consumer.name, kind=tensor.kind, bits_per_frame=bits)


def _configuration(offer: Offer, part: Part) -> Configuration:
    usage, tile = offer.usage(part), offer.tile
    return Configuration(
        label=offer.choice.label,
        cycles_per_frame=offer.cycles_per_frame,
        dsp=usage.dsp,
        m20k=usage.m20k,
        alm=usage.alm,
        dram_bytes_per_frame=offer.dram_bytes_per_frame,
        tile=f"{tile.po}x{tile.pi}x{tile.pk}" if tile else None,
        payload=offer.choice.to_payload(),
    )


def _multipliers(graph: Graph) -> int:
    """Multipliers of all engines: what no placement can do without."""
    return sum(node.layer.multipliers for node in graph.nodes)


def _ladder_from(cycles: int) -> list[int]:
    levels = [cycles]
    while len(levels) < LADDER_STEPS:
        levels.append(max(levels[-1] + 1, math.ceil(levels[-1] * LADDER_RATIO)))
    return levels


def _slower(cycles: int, levels: Sequence[int]) -> list[int]:
    """``cycles``, the slower ones among ``levels``, and small steps."""
    steps = [math.ceil(cycles * LINK_RATIO**step) for step in range(LINK_STEPS)]
    return sorted({*steps, *(level for level in levels if level > cycles)})


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
