"""Layers in parts, chosen by the planner: those that fit no FPGA, and large ones where parts make a faster plan.

An engine that takes much of an FPGA leaves gaps beside it that nothing fills.  Split by channels
(`dagtrain.passes.split_layers`) it becomes several that may stand apart, at the price of copies of one of its maps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dagtrain.graph.ir import Graph
from dagtrain.passes.split_layers import Parts
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Planned, Searched, Start
from hdl.errors import DagtrainError, InfeasibleError, OutOfTimeError, TooLargeError
from hdl.layers.base import Layer
from hdl.layers.capabilities import is_further_copy
from placement.problem.deadline import Deadline
from placement.problem.instance import RESOURCES

# shares of its device above which parts of an engine may pack better: the largest engines are tried first
LARGE = (Fraction(2, 3), Fraction(1, 3))
# parts beyond which a layer that fits no device is given up
MOST_PARTS = 64


class PartsMissingError(DagtrainError):
    """The network cannot be had with other layers in parts, as its model is gone or has changed."""


@dataclass(frozen=True)
class SplitPlan:
    """A plan, the graph that it is for, and the layers of that graph that are in parts."""

    planned: Planned
    graph: Graph
    parts: Mapping[str, Parts]
    # what a user should know of how it was found
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Splitter:
    """Plans a network with some of its layers in parts."""

    # the planner of the imported graph with so many parts of these layers; raises `PartsMissingError`
    planner: Callable[[Mapping[str, Parts]], Planner]
    # layers that the user speaks of by name: they stay as they are
    untouched: Collection[str] = ()
    # when to end; all planners have the same
    deadline: Deadline = field(default_factory=Deadline)
    # told of every plan that is faster than the one before
    keep: Callable[[SplitPlan], None] = lambda _: None

    def run(self, parts: Mapping[str, Parts], planner: Planner, start: Start | None = None) -> SplitPlan:
        """The best plan found; ``parts`` to begin with, their planner, and the search that it goes on from.

        Raises `InfeasibleError` naming what to relax, or `OutOfTimeError`, which is `Ended` at the deadline, or
        `PartsMissingError` where a layer that fits no device has to be in parts."""
        found = self._feasible(dict(parts), planner, start)
        tried: Mapping[str, Parts] = {}
        for share in LARGE:
            searched = found.planned.searched
            if searched is None or planner.problem.reached(found.planned.plan):
                break
            if self.deadline.over or not searched.finished:
                return replace(found, planned=replace(found.planned, searched=replace(searched, finished=False)))
            further = self._more_parts(found.graph, found.parts, _large(found.graph, searched, share))
            if not further or further == tried:
                continue
            tried = further
            try:
                better, ended = self._better(found, searched, {**found.parts, **further})
            except PartsMissingError as error:
                # the plan found holds all the same
                warning = f"warning: large layers were not tried in parts: {error}"
                return replace(found, warnings=(*found.warnings, warning))
            if ended and better is None:
                # what parts bring is not known: the same command finds out
                return replace(found, planned=replace(found.planned, searched=replace(searched, finished=False)))
            found = replace(better, warnings=found.warnings) if better is not None else found
        return found

    def _feasible(self, parts: Mapping[str, Parts], planner: Planner, start: Start | None) -> SplitPlan:
        """The plan with as many parts as it takes for every engine to fit some device."""
        while True:
            graph = planner.problem.graph
            try:
                planned = planner.run(start, self._keeping(graph, parts))
                return SplitPlan(planned, graph, parts, tuple(planner.warnings))
            except TooLargeError as error:
                if not set(error.items) <= graph.by_name.keys():
                    # relays, which can't be in parts
                    raise
                wholes = {graph.by_name[name].whole for name in error.items}
                further = self._more_parts(graph, parts, wholes)
                if not further.keys() >= wholes or self.deadline.over:
                    raise
                parts = {**parts, **further}
                planner, start = self.planner(parts), None

    def _better(
        self, found: SplitPlan, searched: Searched, parts: Mapping[str, Parts]
    ) -> tuple[SplitPlan | None, bool]:
        """The plan with these parts, None where that is not faster; and whether the search was ended."""
        planner, known_cycles = self.planner(parts), found.planned.plan.training_cycles
        graph, better = planner.problem.graph, None
        try:
            start = planner.promising(searched, _beside(graph, found.graph, searched), known_cycles)
            if start is not None:
                planned = planner.run(start, self._keeping(graph, parts, known_cycles), known_cycles)
                if planned.plan.training_cycles < known_cycles:
                    better = SplitPlan(planned, graph, parts)
        except (InfeasibleError, OutOfTimeError):
            # the deadline, or the placement has no room for its network ports
            return None, self.deadline.over
        return better, self.deadline.over

    def _keeping(
        self, graph: Graph, parts: Mapping[str, Parts], known_cycles: Fraction | None = None
    ) -> Callable[[Planned], None]:
        """What keeps plans of this graph that are faster than those before."""

        def keep(planned: Planned) -> None:
            if known_cycles is None or planned.plan.training_cycles < known_cycles:
                self.keep(SplitPlan(planned, graph, parts))

        return keep

    def _more_parts(self, graph: Graph, parts: Mapping[str, Parts], wholes: Collection[str]) -> dict[str, Parts]:
        """Twice the parts of those of these layers of the model that can have more."""
        found: dict[str, Parts] = {}
        for whole in sorted(set(wholes) - set(self.untouched)):
            layers = [node.layer for node in graph.nodes if node.is_layer and node.whole == whole]
            # of copies the first is split as all are
            engines = [layer for layer in layers if not is_further_copy(layer)]
            more = _twice(engines, parts.get(whole))
            if more is not None:
                found[whole] = more
        return found


def _twice(engines: Sequence[Layer], now: Parts | None) -> Parts | None:
    """Twice as many parts of a layer, all of whose nodes these are; None if it can't have more.

    A layer is split first in the way that copies the smaller one of its maps."""
    ways = [now.by_inputs] if now is not None else [True, False]
    count = now.count if now is not None else 1
    options = []
    for by_inputs in ways:
        how = Parts(2 * count, by_inputs)
        splittable = [layer for layer in engines if how.of(layer, 1) is not None]
        channels = sum(how.channels(layer) for layer in splittable)
        copied = sum(layer.port("y" if by_inputs else "x").tensor.elements for layer in splittable)
        more = min(how.count, channels, MOST_PARTS)
        if more > count:
            options.append((copied, by_inputs, Parts(more, by_inputs)))
    return min(options)[-1] if options else None


def _large(graph: Graph, searched: Searched, share: Fraction) -> set[str]:
    """Layers of the model one of whose nodes takes more than a share of the device that it stands on."""
    instance = searched.instance
    found = set()
    for item in searched.plan.items:
        device = instance.devices[instance.device_index[item.device]]
        shares = (Fraction(getattr(item, resource), max(1, getattr(device, resource))) for resource in RESOURCES)
        if max(shares) > share:
            found.add(_whole(graph, searched, item.item))
    return found


def _whole(graph: Graph, searched: Searched, item: str) -> str:
    """The layer of the model that an item of a search over a graph, a relay too, belongs to."""
    instance = searched.instance
    return graph.by_name[instance.items[instance.item_index[item]].layer].whole


def _beside(graph: Graph, before: Graph, searched: Searched) -> dict[str, str]:
    """Devices to begin with of all nodes of a graph with more parts: those of the whole layer's in a plan of the graph
    before; of layers that were in parts there, that of the first part."""
    placed = {item.item: item.device for item in searched.plan.items}
    layers: dict[str, str] = {}
    for name, device in placed.items():
        layers.setdefault(_whole(before, searched, name), device)
    found: dict[str, str] = {}
    for node in graph.nodes:
        # nodes are called after their layer
        same = node.whole + node.name.removeprefix(node.layer_of)
        found[node.name] = placed.get(same, layers[node.whole])
    return found
