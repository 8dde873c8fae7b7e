"""Layers in parts, chosen by the planner: those that fit no FPGA, and large ones where parts make a faster plan.

An engine that takes much of an FPGA leaves gaps beside it that nothing fills.  Split by channels
(`dagtrain.passes.split_layers`) it becomes several that may stand apart, at the price of copies of one of its maps.
Split by rows (`dagtrain.passes.split_rows`) there are copies of a halo alone, but of all its weights, and rows wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.graph.ir import Graph, GraphError, Role
from dagtrain.passes.form import Form
from dagtrain.passes.split_layers import Parts
from dagtrain.passes.split_rows import why_not
from dagtrain.planning.former import FormedPlan, Former, FormMissingError, beside, whole_of
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Searched, Start
from hdl.errors import TooLargeError
from hdl.layers.base import Layer
from hdl.layers.capabilities import is_further_copy
from placement.problem.instance import RESOURCES

# shares of its device above which parts of an engine may pack better: the largest engines are tried first
LARGE = (Fraction(2, 3), Fraction(1, 3))
# parts beyond which a layer that fits no device is given up
MOST_PARTS = 64
# of nodes that hand on what others make: nothing of it is in parts
WIRING = (Role.FORK, Role.RELAY, Role.DEAL, Role.COUNTER, Role.RECOMPUTE)


@dataclass(frozen=True)
class Splitter:
    """Plans a network with some of its layers in parts."""

    former: Former

    def run(self, form: Form, planner: Planner, start: Start | None = None) -> FormedPlan:
        """The best plan found; ``form`` to begin with, its planner, and the search that it goes on from.

        Raises `InfeasibleError` naming what to relax, or `OutOfTimeError`, which is `Ended` at the deadline, or
        `FormMissingError` where a layer that fits no device has to be in parts."""
        found = self._feasible(form, planner, start)
        tried: list[Mapping[str, Parts]] = []
        for share in LARGE:
            searched = found.planned.searched
            if searched is None or found.at_goal:
                break
            if self.former.deadline.over or not searched.finished:
                return found.unfinished(searched)
            parts = found.form.parts
            large = _large(found.graph, searched, share)
            ways = [self._more_parts(found.graph, parts, large), self._by_rows(found, large)]
            for further in [way for way in ways if way and way not in tried]:
                tried.append(further)
                try:
                    better, ended = self._better(found, searched, {**parts, **further})
                except FormMissingError as error:
                    # the plan found holds all the same
                    return found.warned(f"warning: large layers were not tried in parts: {error}")
                except GraphError:
                    # some node of a layer has no such parts
                    continue
                if ended and better is None:
                    # what parts bring is not known
                    return found.unfinished(searched)
                if better is not None:
                    found = better
                    break
        return found

    def _feasible(self, form: Form, planner: Planner, start: Start | None) -> FormedPlan:
        """The plan with as many parts as it takes for every engine to fit some device."""
        while True:
            graph = planner.problem.graph
            try:
                return self.former.plan(form, planner, start)
            except TooLargeError as error:
                if not set(error.items) <= graph.by_name.keys():
                    # relays, which can't be in parts
                    raise
                wholes = {graph.by_name[name].whole for name in error.items}
                further = self._more_parts(graph, form.parts, wholes)
                if not further.keys() >= wholes or self.former.deadline.over:
                    raise
                form = replace(form, parts={**form.parts, **further})
                planner, start = self.former.planner(form), None

    def _better(
        self, found: FormedPlan, searched: Searched, parts: Mapping[str, Parts]
    ) -> tuple[FormedPlan | None, bool]:
        """The plan with these parts, None where that is not faster; and whether the search was ended."""

        def promises(planner: Planner, known_cycles: Fraction) -> tuple[bool, Start | None]:
            near = beside(planner.problem.graph, found.graph, searched)
            start = planner.promising(searched, near, known_cycles)
            return start is not None, start

        return self.former.better(found, replace(found.form, parts=parts), promises)

    def _by_rows(self, found: FormedPlan, wholes: Collection[str]) -> dict[str, Parts]:
        """Two parts by rows of those of these layers of the model that are whole and can be in such parts."""
        graph, parts = found.graph, {}
        for whole in sorted(set(wholes) - set(self.former.untouched) - set(found.form.parts)):
            if _can_be_in_rows(graph, whole):
                parts[whole] = Parts(2, by_rows=True)
        return parts

    def _more_parts(self, graph: Graph, parts: Mapping[str, Parts], wholes: Collection[str]) -> dict[str, Parts]:
        """Twice the parts of those of these layers of the model that can have more."""
        found: dict[str, Parts] = {}
        for whole in sorted(set(wholes) - set(self.former.untouched)):
            layers = [node.layer for node in graph.nodes if node.is_layer and node.whole == whole]
            # of copies the first is split as all are
            engines = [layer for layer in layers if not is_further_copy(layer)]
            more = _twice(engines, parts.get(whole))
            if more is not None and (not more.by_rows or whole in parts or _can_be_in_rows(graph, whole)):
                found[whole] = more
        return found


def _twice(engines: Sequence[Layer], now: Parts | None) -> Parts | None:
    """Twice as many parts of a layer, all of whose nodes these are; None if it can't have more.

    A layer is split in the way that copies the smaller one of its maps; by rows, where its channels stay together."""
    count = now.count if now is not None else 1
    if now is not None and now.by_rows:
        return _twice_by_rows(engines, count)
    ways = [now.by_inputs] if now is not None else [True, False]
    options = []
    for by_inputs in ways:
        how = Parts(2 * count, by_inputs)
        splittable = [layer for layer in engines if how.of(layer, 1) is not None]
        channels = sum(how.channels(layer) for layer in splittable)
        copied = sum(layer.port("y" if by_inputs else "x").tensor.elements for layer in splittable)
        more = min(how.count, channels, MOST_PARTS)
        if more > count:
            options.append((copied, by_inputs, Parts(more, by_inputs)))
    if options or now is not None:
        return min(options)[-1] if options else None
    return _twice_by_rows(engines, count)


def _twice_by_rows(engines: Sequence[Layer], count: int) -> Parts | None:
    """Twice as many parts by rows, of which these are ``count``."""
    rows = [layer.rows_made for layer in engines if layer.row_part(0, layer.rows_made) is not None]
    more = min(2 * count, sum(rows), MOST_PARTS)
    return Parts(more, by_rows=True) if len(rows) == len(engines) and more > count else None


def _can_be_in_rows(graph: Graph, whole: str) -> bool:
    """Whether all nodes of a layer of the model, of which there are no copies, can be in two parts by rows."""
    nodes = [node for node in graph.nodes if node.whole == whole and node.role not in WIRING]
    works = [node for node in nodes if not node.layer.works_per_batch]
    return bool(works) and all(why_not(node, 2) is None and node.name not in graph.dealt for node in works)


def _large(graph: Graph, searched: Searched, share: Fraction) -> set[str]:
    """Layers of the model one of whose nodes takes more than a share of the device that it stands on."""
    instance = searched.instance
    found = set()
    for item in searched.plan.items:
        device = instance.devices[instance.device_index[item.device]]
        shares = (Fraction(getattr(item, resource), max(1, getattr(device, resource))) for resource in RESOURCES)
        if max(shares) > share:
            found.add(whole_of(graph, searched, item.item))
    return found
