"""Plans of a network in several forms: with layers in parts, and copies of layers, where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dagtrain.graph.ir import Graph
from dagtrain.passes.form import Form
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Planned, Searched, Start
from hdl.errors import DagtrainError, InfeasibleError, OutOfTimeError
from placement.problem.deadline import Deadline


class FormMissingError(DagtrainError):
    """The network cannot be had in another form, as its model is gone or has changed."""


@dataclass(frozen=True)
class FormedPlan:
    """A plan, and the form of the network that it is for."""

    planned: Planned
    planner: Planner
    form: Form
    # what a user should know of how it was found
    warnings: tuple[str, ...] = ()
    # the largest share of block memory of any board in the plan without stores that this one is faster than
    share_without_stores: float | None = None

    @property
    def graph(self) -> Graph:
        """The training graph of that form."""
        return self.planner.problem.graph

    @property
    def at_goal(self) -> bool:
        """Whether no faster plan is wanted."""
        return self.planned.searched is None or self.planner.problem.reached(self.planned.plan)

    def unfinished(self, searched: Searched) -> FormedPlan:
        """The same, when it is not known whether another form is faster: the same command finds out."""
        return replace(self, planned=replace(self.planned, searched=replace(searched, finished=False)))

    def warned(self, warning: str) -> FormedPlan:
        """The same, with one more warning."""
        return replace(self, warnings=(*self.warnings, warning))


@dataclass(frozen=True)
class Former:
    """Plans a network in one form or another."""

    # the planner of the imported graph in this form; raises `FormMissingError`, or `GraphError` where it has none such
    planner: Callable[[Form], Planner]
    # layers that the user speaks of by name: they stay as they are
    untouched: Collection[str] = ()
    # when to end; all planners have the same
    deadline: Deadline = field(default_factory=Deadline)
    # told of every plan that is faster than the one before
    keep: Callable[[FormedPlan], None] = lambda _: None

    def plan(self, form: Form, planner: Planner, start: Start | None = None) -> FormedPlan:
        """The best plan in a form, whose planner that is, gone on from ``start``; raises as `Planner.run` does."""
        planned = planner.run(start, self._keeping(planner, form))
        return FormedPlan(planned, planner, form, tuple(planner.warnings))

    def better(
        self, found: FormedPlan, form: Form, promises: Callable[[Planner, Fraction], tuple[bool, Start | None]]
    ) -> tuple[FormedPlan | None, bool]:
        """The plan in another form, None where that is not faster; and whether the search was ended.

        ``promises``: whether the planner of that form may find one of fewer cycles a frame in training, and where it
        goes on from.

        Raises as ``planner`` does."""
        planner, known_cycles = self.planner(form), found.planned.plan.training_cycles
        better = None
        try:
            promising, start = promises(planner, known_cycles)
            if not promising:
                return None, self.deadline.over
            planned = planner.run(start, self._keeping(planner, form, known_cycles), known_cycles)
            if planned.plan.training_cycles < known_cycles:
                better = FormedPlan(planned, planner, form, found.warnings)
        except (InfeasibleError, OutOfTimeError):
            # the deadline, or the placement has no room for its network ports
            return None, self.deadline.over
        return better, self.deadline.over

    def _keeping(self, planner: Planner, form: Form, known_cycles: Fraction | None = None) -> Callable[[Planned], None]:
        """What keeps plans of this form that are faster than those before."""

        def keep(planned: Planned) -> None:
            if known_cycles is None or planned.plan.training_cycles < known_cycles:
                self.keep(FormedPlan(planned, planner, form))

        return keep


def whole_of(graph: Graph, searched: Searched, item: str) -> str:
    """The layer of the model that an item of a search over a graph, a relay too, belongs to."""
    instance = searched.instance
    return graph.by_name[instance.items[instance.item_index[item]].layer].whole


def beside(graph: Graph, before: Graph, searched: Searched) -> Mapping[str, str]:
    """Devices to begin with of all nodes of a graph in another form: those of the whole layer's in a plan of the graph
    before; of layers that were in parts there, that of the first part."""
    placed = {item.item: item.device for item in searched.plan.items}
    layers: dict[str, str] = {}
    for name, device in placed.items():
        layers.setdefault(whole_of(before, searched, name), device)
    found: dict[str, str] = {}
    for node in graph.nodes:
        # nodes are called after their layer
        same = node.whole + node.name.removeprefix(node.layer_of)
        found[node.name] = placed.get(same, layers[node.whole])
    return found
