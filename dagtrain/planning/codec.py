"""Codecs on the links of a plan: where they make training faster.

What a codec leaves of gradients is part of what is trained, and was chosen when copies were made.  Whether a link
carries that in few words or as it is changes no bit: only time, and what stands at the link's ends.  So a plan may do
either, link by link.  Here its placement stays as it was found, with codecs on all links.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from dagtrain.emission.links import Crossing, crossings_of
from dagtrain.graph.ir import Graph
from dagtrain.passes.place import place
from dagtrain.passes.plain_links import plain_links
from dagtrain.planning.carry import places_of
from dagtrain.planning.choices import chosen_graph, memory_homes, plan_choices, plan_pace, uncoded
from dagtrain.planning.realise import Realiser
from dagtrain.planning.results import Planned, with_binding
from dagtrain.planning.searcher import Searcher
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from placement.problem.cluster import Cluster, with_mtu
from placement.problem.deadline import Ended
from placement.problem.plan import Bound, Plan, with_bound


@dataclass(frozen=True)
class CodedHop:
    """What a node makes, and a codec has left few bits of, on the links that carry it or may."""

    node: str
    # from device to device
    ways: tuple[tuple[str, str], ...]
    # a batch, on all of them: as it is, and in few words, as plans count on
    plain_bits: int
    coded_bits: int

    @property
    def saved_bits(self) -> int:
        """A batch; below 0 where a plan has to count on more words."""
        return self.plain_bits - self.coded_bits


def coded_hops(graph: Graph, plan: Plan, cluster: Cluster) -> list[CodedHop]:
    """Those of a plan of a graph whose links carry few words, or would if the plan did not say otherwise."""
    choices = {name: replace(choice, plain=False) for name, choice in plan_choices(plan).items()}
    folded = plan_pace(plan).fold(chosen_graph(graph, choices))
    devices, bits = [device.name for device in cluster.devices], cluster.link_word_bits
    found: dict[str, list[Crossing]] = defaultdict(list)
    for crossing in crossings_of(place.run(folded, places_of(plan), devices), devices):
        if crossing.bursts(bits):
            found[folded.maker(crossing.edge)[0].name].append(crossing)
    return [
        CodedHop(
            node,
            tuple((each.source_device, each.target_device) for each in crossings),
            bits * sum(replace(each, coding=None).words(bits) for each in crossings),
            bits * sum(each.words(bits) for each in crossings),
        )
        for node, crossings in found.items()
    ]


def held_plain(searcher: Searcher, plan: Plan, nodes: Collection[str]) -> Planned | None:
    """The placement of a plan, priced and timed anew, whose links carry as it is what these nodes make, and in few
    words all else that a codec has left few bits of.  None where it does not hold, or there is no time to tell.

    The bound of a search with other codecs does not speak of it: it has that of all foldings for its own."""
    problem = replace(
        searcher.problem, graph=plain_links(searcher.problem.graph, nodes), cluster=_cluster(searcher, plan)
    )
    made, homes = searcher.of_plan(plan, problem), memory_homes(plan_choices(plan))
    try:
        held = Realiser(made).fixed(places_of(plan), plan_pace(plan).folds, homes, explain=False)
    except (Ended, InfeasibleError, OutOfTimeError, FoldingError):
        return None
    bound = Bound(plan.any_bound_cycles_per_frame, plan.any_bound_basis)
    return with_binding(replace(held, plan=with_bound(held.plan, bound, bound)), plan)


def with_codec_where_it_gains(searcher: Searcher, planned: Planned) -> Planned:
    """The plan whose links carry as they are what trains no slower so: all that a codec has left few bits of if that
    can be, else of either half what can be, those first on which few words save least.  What was found is told."""
    plan = planned.plan
    hops = coded_hops(searcher.problem.graph, plan, _cluster(searcher, plan))
    kept, plain = planned, list[str]()
    # the next one last
    groups = [[hop.node for hop in sorted(hops, key=lambda hop: (hop.saved_bits, hop.node))]]
    while groups and hops:
        group = groups.pop()
        held = held_plain(searcher, plan, [*plain, *group])
        if held is not None and held.plan.training_cycles <= kept.plan.training_cycles:
            kept, plain = replace(held, searched=planned.searched), [*plain, *group]
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    if hops:
        left = set(uncoded(plan_choices(kept.plan)))
        searcher.warn(
            f"codec: on links of {sum(hop.node not in left for hop in hops)} of {len(hops)} tensors that copies hand "
            f"on; without it on the others this placement trains no slower, with {_alm(plan) - _alm(kept.plan):,} "
            "logic cells less"
        )
    return kept


@dataclass(frozen=True)
class CodecWorth:
    """What the codec is worth on the links of some tensors: one placement priced and timed twice, nothing searched."""

    # who makes them
    nodes: tuple[str, ...]
    # from device to device
    ways: tuple[tuple[str, str], ...]
    # a batch: as they are, and in few words, as plans count on
    plain_bits: int
    coded_bits: int
    # whether the plan has it on all of them
    has: bool
    # frames a second in training; None: the placement does not hold so
    with_fps: float | None
    without_fps: float | None
    # logic cells that it takes of all devices; None where one of both does not hold
    alm: int | None

    @property
    def gain(self) -> float | None:
        """Share by which training is faster with it; None where only one of both holds, or none."""
        return self.with_fps / self.without_fps - 1 if self.with_fps and self.without_fps else None

    @property
    def is_worth_it(self) -> bool:
        """Whether training is faster with it, or only there with it."""
        return self.with_fps is not None if self.gain is None else self.gain > 0


def codec_worths(searcher: Searcher, plan: Plan, most: int) -> Iterator[CodecWorth]:
    """What the codec is worth to a plan: on all links that carry few words or might, then on those of each tensor on
    which it saves most bits, ``most`` of them."""
    hops = coded_hops(searcher.problem.graph, plan, _cluster(searcher, plan))
    hops.sort(key=lambda hop: (-hop.saved_bits, hop.node))
    held = partial(held_plain, searcher, plan)
    plain = frozenset(uncoded(plan_choices(plan)))
    now = held(plain)
    for some in [hops] * (len(hops) > 1) + [[hop] for hop in hops[:most]]:
        nodes = frozenset(hop.node for hop in some)
        there = now if not nodes & plain else held(plain - nodes)
        away = now if nodes <= plain else held(plain | nodes)
        yield CodecWorth(
            nodes=tuple(hop.node for hop in some),
            ways=tuple(dict.fromkeys(way for hop in some for way in hop.ways)),
            plain_bits=sum(hop.plain_bits for hop in some),
            coded_bits=sum(hop.coded_bits for hop in some),
            has=not nodes & plain,
            with_fps=there.plan.throughput_fps if there else None,
            without_fps=away.plan.throughput_fps if away else None,
            alm=_alm(there.plan) - _alm(away.plan) if there and away else None,
        )


def _cluster(searcher: Searcher, plan: Plan) -> Cluster:
    """With the MTU of a plan, where that was left to the planner."""
    cluster = searcher.problem.cluster
    return with_mtu(cluster, plan.mtu) if cluster.network.chooses_mtu else cluster


def _alm(plan: Plan) -> int:
    return sum(use.alm for use in plan.devices)
