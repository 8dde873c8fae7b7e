"""Memories in block memory of other devices, chosen by the planner: parameter balancing.

FPDeep evens out the block memories that boards take by moving weights and gradients to those of neighbours, so that S,
the largest share of any board, is least (Wang, Geng et al., IEEE TC 2020, section 3.4 with equation (12)).  Here block
memory is a constraint like any other, and a memory in a store (`dagtrain.passes.remote_memory`) costs blocks where that
stands and weights × bits a frame on the links between.  So there is no phase of its own: where block memory keeps a
plan from being faster, or there is none, one is searched of the graph with stores, and kept if it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.graph.ir import Graph, Node
from dagtrain.passes.form import Form
from dagtrain.passes.remote_memory import storable, store_of
from dagtrain.planning.choices import plan_choices
from dagtrain.planning.former import FormedPlan, Former, FormMissingError, beside
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Searched, Start
from hdl.errors import InfeasibleError, OutOfTimeError
from hdl.layers.capabilities import is_engine
from hdl.layers.storage import Home
from hdl.tensor import Kind
from placement.problem.cluster import Cluster
from placement.problem.deadline import Ended
from placement.problem.plan import Plan

# a device with this share of its block memories taken is called full
FULL = Fraction(9, 10)
# shares of the memories that may be moved, those that free most first
SHARES = (Fraction(1, 4), Fraction(1))
# sums go out and come back within a frame: the way there takes this part of one at most
WAYS = 16
# block memories that a memory must free for a store to be worth its ports
LEAST_BLOCKS = 8


def memory_share(plan: Plan) -> float:
    """S of equation (12): the largest share of block memory of any board, of what a plan may use of it."""
    return max((use.m20k / use.m20k_capacity for use in plan.devices if use.m20k_capacity), default=0.0)


def freed_bits(node: Node) -> int:
    """About the bits that an engine frees where it stands if its memory is in a store: two versions of weights, one of
    frozen ones, or sums, less the whole maps that it keeps then, since it goes over them once for each part of that."""
    layer = node.layer.at(Home.REMOTE)
    if layer is None or not is_engine(layer):
        return 0
    ports = (*layer.sinks, *layer.sources)
    replayed = [port.tensor.bits for port in ports if port.tensor.kind is Kind.REPLAY]
    own = sum((1 if layer.held_parameters else 2) * bits for bits in replayed)
    own += sum(ring.out.tensor.bits for ring in layer.remote)
    return own - 2 * sum(port.tensor.bits for port in ports if not port.tensor.kind.of_parameter)


@dataclass(frozen=True)
class Balancer:
    """Plans a network with memories of some of its engines in stores."""

    former: Former
    cluster: Cluster

    def rescue(self, form: Form, planner: Planner, failed: InfeasibleError) -> FormedPlan:
        """A plan where there is none without stores.

        Raises what that search said where there is none with them either."""
        names = self._worth_it(planner.problem.graph, None)
        for share in reversed(SHARES) if len(self.cluster.devices) > 1 else ():
            if self.former.deadline.over:
                break
            chosen = _first(names, share)
            if not chosen:
                break
            stored = replace(form, remote=form.remote | chosen)
            try:
                return self.former.plan(stored, self.former.planner(stored))
            except Ended:
                raise
            except (FormMissingError, InfeasibleError, OutOfTimeError):
                continue
        raise failed

    def run(self, found: FormedPlan) -> FormedPlan:
        """The best plan found, from one without these stores on.  None is searched where no full device keeps it from
        being faster, or where the search before was ended."""
        searched = found.planned.searched
        full = full_devices(found.planned.plan)
        if searched is None or found.at_goal or not searched.finished or not full or len(self.cluster.devices) < 2:
            return found
        names = self._worth_it(found.graph, found.planned.plan, full)
        tried: set[frozenset[str]] = {frozenset()}
        for share in SHARES:
            chosen = _first(names, share)
            if chosen in tried:
                continue
            tried.add(chosen)
            if self.former.deadline.over:
                return found.unfinished(searched)
            try:
                better, ended = self._better(found, searched, chosen)
            except FormMissingError as error:
                return found.warned(f"warning: memories were not tried elsewhere: {error}")
            if ended and better is None:
                return found.unfinished(searched)
            if better is not None:
                return replace(better, share_without_stores=memory_share(found.planned.plan))
        return found

    def _better(self, found: FormedPlan, searched: Searched, chosen: frozenset[str]) -> tuple[FormedPlan | None, bool]:
        """The plan with these memories in stores, None where that is not faster; and whether the search was ended."""

        def promises(planner: Planner, known_cycles: Fraction) -> tuple[bool, Start | None]:
            graph = planner.problem.graph
            near = {**beside(graph, found.graph, searched), **emptiest(graph, chosen, found.planned.plan)}
            start = planner.promising(searched, near, known_cycles)
            return start is not None, start

        return self.former.better(found, replace(found.form, remote=found.form.remote | chosen), promises)

    def _worth_it(self, graph: Graph, plan: Plan | None, full: Collection[str] = ()) -> Sequence[str]:
        """Nodes whose memories free blocks, those that free most first; of a plan on its full devices."""
        smallest = min(device.board.part.m20k_bits for device in self.cluster.devices)
        freed = {node.name: freed_bits(node) for node in storable(graph) if node.whole not in self.former.untouched}
        names = [name for name, bits in freed.items() if bits >= LEAST_BLOCKS * smallest]
        if plan is not None:
            places = {item.item: item.device for item in plan.items}
            choices = plan_choices(plan)
            # sums that the network may hold up
            short = plan.cycles_per_frame < WAYS * self.cluster.network_cycles
            names = [
                name
                for name in names
                if places[name] in full
                and choices[name].memory is not Home.DRAM
                and not (short and graph.by_name[name].layer.at(Home.REMOTE).remote)  # type: ignore[union-attr]
            ]
        return sorted(names, key=lambda name: (-freed[name], name))


def full_devices(plan: Plan) -> frozenset[str]:
    """Devices whose block memories are about all taken."""
    return frozenset(use.device for use in plan.devices if use.m20k >= FULL * use.m20k_capacity)


def emptiest(graph: Graph, names: Collection[str], plan: Plan) -> Mapping[str, str]:
    """Store -> device to begin with, the largest first, each where most block memory is free then."""
    free = {use.device: use.m20k_capacity - use.m20k for use in plan.devices}
    stores = [graph.by_name[store_of(name)] for name in names]
    bits = {store.name: sum(image.depth * image.width for image in store.layer.memories()) for store in stores}
    unit = max(1, sum(bits.values()) // max(1, sum(free.values())))
    found: dict[str, str] = {}
    for name in sorted(bits, key=lambda name: (-bits[name], name)):
        device = max(free, key=lambda name: (free[name], name))
        found[name] = device
        free[device] -= bits[name] // unit
    return found


def _first(names: Sequence[str], share: Fraction) -> frozenset[str]:
    """A share of them, rounded up."""
    return frozenset(names[: -int(-len(names) * share // 1)])
