"""Copies of a whole network on groups of like boards: where the search for their plan begins.

Twice the boards hold the same pipeline twice, each copy on a group of boards of its own, with half of the frames each.
So one pipeline is planned on one group, and that plan, again on every group, is where the search of all copies begins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from dagtrain.graph.ir import Graph
from dagtrain.passes.exchange import COPY
from dagtrain.passes.form import Form
from dagtrain.passes.insert_relays import relay_of
from dagtrain.passes.replicate import NormSync, most_copies
from dagtrain.planning.carry import places_of, tiles_of
from dagtrain.planning.choices import plan_choices, relayed
from dagtrain.planning.copying import copies_of
from dagtrain.planning.former import Former, FormMissingError, Group
from dagtrain.planning.ladder import taken
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Searched, Start
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from hdl.layers.wiring.deal import Collect, Deal
from placement.problem.instance import Device

# the number of a copy in the name of a node or an edge
NUMBER = re.compile(rf"{COPY}(\d+)")


@dataclass(frozen=True)
class Grouper:
    """Plans copies of a whole network."""

    former: Former

    def start(self, form: Form, planner: Planner) -> Start | None:
        """Where the search of a form with copies, whose planner that is, may begin: with a plan of one of them, again
        on every group of boards.

        None where not all layers that can have copies have equally many, boards make no like groups, or there is no
        plan of one copy on its group.  Raises `Ended` at the deadline."""
        problem = planner.problem
        copies = copies_of_all(problem.graph, form.norm_sync)
        groups = like_groups(problem.devices, copies)
        if copies == 1 or not groups or problem.cluster.network.cables or self.former.untouched or form.remote:
            return None
        first, *others = groups
        group = Group(tuple(name for devices in others for name in devices), copies)
        try:
            planned = self.former.planner(replace(form, copies={}), group).run()
            assert planned.searched is not None, "a planner's own plan knows its search"
            twins = [dict(zip(first, devices, strict=True)) for devices in groups]
            return again(planner, planned.searched, twins)
        except (FormMissingError, InfeasibleError, OutOfTimeError, FoldingError):
            self.former.deadline.check()
            return None


def copies_of_all(graph: Graph, norm_sync: NormSync) -> int:
    """How many copies all layers have that can have some; 1 where they have unlike numbers."""
    counts = copies_of(graph)
    able = {layer for layer, most in most_copies(graph, norm_sync).items() if most > 1}
    return next(iter(counts.values())) if able <= counts.keys() and len({*counts.values()}) == 1 else 1


def like_groups(devices: Sequence[Device], count: int) -> list[list[str]]:
    """So many groups of devices with the same boards each, in the same order; none where they don't come out even."""
    shapes: dict[object, list[str]] = {}
    for device in devices:
        shapes.setdefault(device.shape, []).append(device.name)
    if any(len(names) % count for names in shapes.values()):
        return []
    sizes = {shape: len(names) // count for shape, names in shapes.items()}
    return [
        [name for shape, names in shapes.items() for name in names[at * sizes[shape] : (at + 1) * sizes[shape]]]
        for at in range(count)
    ]


def again(planner: Planner, single: Searched, twins: Sequence[Mapping[str, str]]) -> Start:
    """Where a search of copies begins whose every copy stands as a single one does in its plan.

    ``twins``: for each copy, device of the single one -> device that stands for it.

    Raises as a search does that finds no placement there."""
    graph, edges = planner.problem.graph, relayed(plan_choices(single.plan))
    ways = ways_out(graph)
    same = [edge for edge, *_ in graph.streams if NUMBER.sub("", edge) in edges]
    searcher = planner.searcher.with_relays([*ways, *same]) if ways or same else planner.searcher
    near = _near(searcher.problem.graph, places_of(single.plan), twins, {relay_of(edge) for edge in ways})
    of_one = taken(single.levels, single.plan, planner.problem.cluster)
    levels = tuple(sorted({ceil(Fraction(level, len(twins))) for level in of_one}))
    instance = searcher.prices.instance(levels, searcher.time.looking)
    known = tiles_of(single.plan)
    tiles = {name: known[like] for name in near if (like := NUMBER.sub("", name)) in known}
    options = replace(searcher.quick, near=near, near_tiles=tiles)
    return Start(searcher.search(instance, options, bounded=False), levels)


def ways_out(graph: Graph) -> list[str]:
    """Edges to first copies, of what is collected from all of them in the end.

    The first copies stand on the group of the ends of copies: what is for the others goes to their groups and comes
    back, and for equal hops what is for the first ones has to go by way of another device, too."""
    collected = {node.layer.kind for node in graph.nodes if isinstance(node.layer, Collect)}
    dealing = [node for node in graph.nodes if isinstance(node.layer, Deal) and node.layer.kind in collected]
    return [node.outputs[node.layer.sources[0].name] for node in dealing]


def _near(
    graph: Graph, places: Mapping[str, str], twins: Sequence[Mapping[str, str]], away: Collection[str]
) -> dict[str, str]:
    """Node -> device to begin with: that which stands for the one where a single copy has its like; of what that
    doesn't have, where it has what makes the first of what it reads.

    ``away``: nodes that are to stand on another group than the first."""
    like = {node.name: places.get(NUMBER.sub("", node.name)) for node in graph.nodes}
    for node in graph.nodes:
        # what a single copy has not comes after what it reads
        for edge in node.inputs.values():
            like[node.name] = like[node.name] or like[graph.producers[edge][0].name]
    found: dict[str, str] = {}
    for node in graph.nodes:
        place = like[node.name]
        assert place is not None, f"{node.name} reads what a single copy has"
        number = NUMBER.search(node.name)
        copy = int(number.group(1)) if number and node.name not in away else int(node.name in away)
        found[node.name] = twins[copy][place]
    return found
