"""Copies of layers, chosen by the planner: of layers that are too slow with a device to themselves, or of all.

Such a layer keeps the whole pipeline at its pace, however many devices there are.  Each of r copies
(`dagtrain.passes.replicate`) has r times as long for a frame, or as its share of frames says where devices are unlike
(`dagtrain.planning.shares`), and all together give the bits of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.replicate import NUMBER, Copies, NormSync, copies_of, most_copies, shares_of
from dagtrain.planning.foldings import ANY_PACE
from dagtrain.planning.former import FormedPlan, Former, FormMissingError
from dagtrain.planning.levels import LEAST_RATIO
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Start
from dagtrain.planning.shares import Engines, shares_of_groups, unlike_shares
from placement.bounds.bound import alone
from placement.problem.clocks import in_time

# paces that are tried, as shares of the cycles a frame of the plan so far
PACES = (Fraction(1, 2), Fraction(4, 5))
# so many times as many copies of all layers are tried where copies of slow ones bring nothing
MORE_OF_ALL = 2


@dataclass(frozen=True)
class Slow:
    """A layer of the model that no device is large enough for at some pace."""

    layer: str
    # those of its nodes for which that is so, the slowest first
    nodes: tuple[str, ...]
    # that its slowest node needs with the best device to itself
    cycles_per_frame: int
    # with which its nodes would do; None where no number of copies does, or the layer can't have so many
    copies: int | None


def slow_layers(
    graph: Graph, alone: Mapping[str, int], cycles: float, norm_sync: NormSync = NormSync.TOGETHER
) -> dict[str, Slow]:
    """Layer of the model -> what there is to know of it, of those that have a node too slow for so many cycles a frame.

    ``alone``: node -> cycles a frame that it needs with the best device to itself.

    What works once a batch is there once, however many copies its layer has, and so are the ends of copies."""
    most, slow = most_copies(graph, norm_sync), dict[str, dict[str, int | None]]()
    for name, needed in sorted(alone.items(), key=lambda each: -each[1]):
        node = graph.by_name.get(name)
        if node is None or needed <= cycles:
            # relays are no nodes
            continue
        # a copy needs so long for its share of frames
        wanted: int | None = math.ceil(needed / graph.busy(name) / Fraction(cycles))
        if node.layer.works_per_batch or node.role is Role.DEAL or (wanted or 0) > most.get(node.whole, 1):
            wanted = None
        slow.setdefault(node.whole, {})[name] = wanted
    found = {}
    for layer, nodes in slow.items():
        able = [wanted for wanted in nodes.values() if wanted is not None]
        copies = max(able) if len(able) == len(nodes) else None
        found[layer] = Slow(layer, (*nodes,), alone[next(iter(nodes))], copies)
    return found


@dataclass(frozen=True)
class Copier:
    """Plans a network with copies of some of its layers."""

    former: Former

    def run(self, found: FormedPlan) -> FormedPlan:
        """The best plan found, from one without these copies on.  None is searched where the bound of foldings tells
        that copies make it no faster inside a batch, or where the search before was ended."""
        try:
            while (better := self._further(found)) is not found:
                found = better
        except FormMissingError as error:
            return found.warned(f"warning: copies were not tried: {error}")
        return found

    def _further(self, found: FormedPlan) -> FormedPlan:
        """A faster plan with more copies; the same if there is none, or if the search was ended.

        Raises `FormMissingError` where they can't be made."""
        searched, tried = found.planned.searched, [copies_of(found.graph)]
        if searched is None or not searched.finished:
            return found

        def promises(planner: Planner, _: Fraction) -> tuple[bool, Start | None]:
            # copies make the pipeline deeper: where it is no faster inside a batch, it is not in training
            least = planner.searcher.any_bound.proven(self.former.deadline).cycles_per_frame
            return least * LEAST_RATIO <= found.planned.plan.cycles_per_frame, None

        for copies in self._offers(found):
            if copies in tried:
                continue
            tried.append(copies)
            if self.former.deadline.over:
                return found.unfinished(searched)
            better, ended = self.former.better(found, replace(found.form, copies=copies), promises)
            if ended and better is None:
                return found.unfinished(searched)
            if better is not None:
                return better
        return found

    def _offers(self, found: FormedPlan) -> Iterator[dict[str, Copies]]:
        """Layer -> copies, of what may make a faster plan, the most promising first."""
        graph, now = found.graph, copies_of(found.graph)
        most_of, untouched = most_copies(graph, found.form.norm_sync), self.former.untouched
        able = {layer: most for layer, most in most_of.items() if layer not in untouched and most > 1}
        instance = found.planner.searcher.any_bound.foldings.instance
        timed = in_time(instance)
        needed = alone(timed, ANY_PACE)
        unlike: list[dict[str, Copies]] = []
        for pace in PACES:
            cycles = found.planned.plan.cycles_per_frame * pace
            slow = slow_layers(graph, needed, float(cycles), found.form.norm_sync)
            more = {name: one.copies for name, one in slow.items() if one.copies is not None and name in able}
            yield {**now, **more}
            shares = {
                name: unlike_shares(timed, _engines(graph, slow[name]), cycles, able[name]) or copies
                for name, copies in more.items()
            }
            unlike.append({**now, **shares})
        count = MORE_OF_ALL * max((len(shares_of(copies)) for copies in now.values()), default=1)
        yield {**now, **{layer: count for layer, most in able.items() if most >= count}}
        # behind equal ones: where both are faster, plans with those have been gone on from to faster ones
        yield from unlike
        clocks = [device.clock_hz or instance.clock_hz for device in instance.devices]
        if groups := shares_of_groups(clocks, count):
            yield {**now, **{layer: groups for layer, most in able.items() if most >= sum(groups)}}


def _engines(graph: Graph, slow: Slow) -> Engines:
    """What there is of a layer in each of its copies."""
    node = slow.nodes[0]
    return Engines(node, graph.busy(node), len({NUMBER.sub("", name) for name in slow.nodes}))
