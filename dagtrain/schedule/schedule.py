"""When each edge's frame flows, at the steady interval of the pipeline: the base of buffer depths and staleness.

Analysis, not transformation.  In steady state every per-frame edge carries one frame each ``cycles`` (the pipeline's
interval T); what differs is when frame 0 begins and ends to flow there.  A source begins when each sink has got what
the first beat needs (`Layer.required`), and ends when the last input has come or the engine is through, whichever is
later; both plus the layer's pipeline.  An edge that crosses the network begins and ends later by its latency.

What makes maps again for the way back (`Role.RECOMPUTE`) works as late as those who want them allow: FIFOs behind it
are shallow and soon full, and what it makes them of waits in front of it.

Where frames are dealt out to copies of a layer, one of them passes the edges between in each so many intervals, and may
take that long.  Each copy counts from when its own first frame is dealt; what collects their frames again gets the end
of one while the next ones come, and hands each on within an interval.

Stores, and edges to and from them, have no flows: what stands there comes when it is wanted, so new weights are only
later by the way from their store (`Graph.computing`).

Cycles are those of the cluster's clock; a node on a device of another clock takes more or fewer of them for its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

import numpy as np

from dagtrain.graph.ir import Graph, Node, Role, is_delayed
from hdl.recipe import Dealt
from hdl.tensor import Port

T = TypeVar("T", int, float)


@dataclass(frozen=True)
class Flow:
    """The cycles at which the first and the last element of frame 0 pass (of a batch's last frame, for tensors that
    pass once a batch)."""

    first: int
    last: int

    def later(self, cycles: int) -> Flow:
        """The same flow, later."""
        return Flow(self.first + cycles, self.last + cycles)

    def within(self, cycles: int) -> Flow:
        """The same flow, no longer than so many cycles up to its end."""
        return Flow(max(self.first, self.last - cycles), self.last)

    def at_least(self, cycles: int) -> Flow:
        """The same flow, so many cycles long or longer."""
        return Flow(self.first, max(self.last, self.first + cycles))

    def at(self, share: float) -> float:
        """When that share of the frame has passed."""
        return self.first + share * (self.last - self.first)

    def passed(self, cycle: float) -> float:
        """Share of the frame that has passed by a cycle."""
        if self.last <= self.first:
            return float(cycle >= self.first)
        return min(1.0, max(0.0, (cycle - self.first) / (self.last - self.first)))


@dataclass(frozen=True)
class Schedule:
    """Flows of frame 0 under an interval of ``cycles`` a frame."""

    # pipeline interval T
    cycles: int
    # edge -> how its producer offers it
    offered: Mapping[str, Flow]
    # edge -> how its consumer takes it
    taken: Mapping[str, Flow]
    # edge that not all frames pass -> which of every batch do
    dealt: Mapping[str, Dealt] = field(default_factory=dict)
    # edge that crosses the network -> cycles between leaving and arriving
    crossing: Mapping[str, int] = field(default_factory=dict)

    def frames_waiting(self, edge: str) -> float:
        """The most of a frame, or of several, that lies on a per-frame edge at any time in steady state."""
        offered, taken, cycles = self.offered[edge], self.taken[edge], self.cycles
        uneven = 0
        if edge in self.dealt:
            frames = self.dealt[edge]
            # where turns are not alike, a frame comes a turn sooner here and there, and waits for the one before
            cycles, uneven = math.floor(cycles / frames.busy), frames.are_uneven
        span = math.ceil((max(offered.last, taken.last) - offered.first) / cycles) + 1
        shifts = [shift * cycles for shift in range(-span, span + 1)]
        corners = (offered.first, offered.last, taken.first, taken.last)
        return uneven + max(
            sum(offered.passed(cycle + shift) - taken.passed(cycle + shift) for shift in shifts) for cycle in corners
        )


def schedule(
    graph: Graph,
    cycles: int,
    crossing_cycles: Mapping[str, int] | None = None,
    periods: Mapping[str, Fraction] | None = None,
) -> Schedule:
    """The schedule of a streaming graph at ``cycles`` a frame.

    ``crossing_cycles`` gives, for edges that cross the network, the cycles between leaving and arriving; ``periods``,
    for nodes on devices of another clock than the cluster's, what a cycle there lasts in cycles of that."""
    everything = crossing_cycles or {}
    graph, crossing = graph.computing, computing_delays(graph, everything)
    offered: dict[str, Flow] = {}
    taken: dict[str, Flow] = {}
    for node in graph.nodes:
        lasting = Lasting((periods or {}).get(node.name))
        arrivals = {
            port: offered[edge].later(crossing.get(edge, 0))
            for port, edge in node.inputs.items()
            if not is_delayed(node.layer, node.layer.port(port))
        }
        for port, edge in node.inputs.items():
            if port in arrivals:
                taken[edge] = _taken(node, port, arrivals, lasting)
                if node.layer.dealt(port) is not None:
                    taken[edge] = taken[edge].within(cycles)
        for port, edge in node.outputs.items():
            host = not arrivals
            offered[edge] = (
                _from_host(node.layer.port(port), cycles) if host else _offered(node, port, arrivals, lasting)
            )
            if any(node.layer.dealt(sink) is not None for sink in arrivals):
                offered[edge] = offered[edge].within(cycles)
            if node.layer.dealt(port) is not None:
                # waits behind, and leaves as fast as copies need it
                beats = node.layer.port(port).beats
                offered[edge] = offered[edge].at_least(math.floor(cycles / graph.passing(edge)) * (beats - 1) // beats)
                # of the latest frame: what goes another way waits for that
                offered[edge] = offered[edge].later(math.ceil(graph.dealt_edges[edge].late * cycles))
    for node in reversed(graph.nodes):
        if node.role is Role.RECOMPUTE:
            _hold_back(graph, node, crossing, offered, taken, Lasting((periods or {}).get(node.name)))
    return Schedule(cycles, offered, taken, graph.dealt_edges, everything)


def computing_delays(graph: Graph, delays: Mapping[str, T]) -> Mapping[str, T]:
    """Of edges of `Graph.computing`, what they add to the way of what passes, and what a store that reads them adds."""
    if graph.computing is graph:
        return delays
    found = dict(delays)
    for node in graph.nodes:
        behind = [delays[edge] for edge in node.outputs.values() if edge in delays] if node.layer.is_store else []
        for edge in node.inputs.values() if behind else ():
            found[edge] = sum(behind, start=found[edge]) if edge in found else behind[0]
    return found


def needed_staleness(graph: Graph, plan: Schedule, crossing_cycles: Mapping[str, int] | None = None) -> int:
    """The least staleness D, in frames, at which no engine ever waits for its weights.

    The weights of a batch are complete at their user some time after the batch's last frame; they are wanted for the
    frame that comes ``1 + D`` frames after that one (see `Recipe.staleness`)."""
    graph, crossing = graph.computing, computing_delays(graph, crossing_cycles or {})
    worst = 0
    for edge, _producer, _source, consumer, sink in graph.edges:
        if not is_delayed(consumer.layer, sink):
            continue
        ready = plan.offered[edge].last + crossing.get(edge, 0)
        first_use = min(
            plan.taken[used].first
            for port, used in consumer.inputs.items()
            if not is_delayed(consumer.layer, consumer.layer.port(port))
        )
        worst = max(worst, math.ceil((ready - first_use) / plan.cycles) - 1)
    return worst


@dataclass(frozen=True)
class Lasting:
    """How long a device's cycles last in cycles of the cluster's clock; None: as long."""

    period: Fraction | None = None

    def __call__(self, cycles: int) -> int:
        """Of so many, rounded up."""
        return cycles if self.period is None else math.ceil(cycles * self.period)


def _works_per_batch(node: Node) -> bool:
    ports = (*node.layer.sinks, *node.layer.sources)
    return all(port.tensor.kind.per_batch for port in ports)


def _taken(node: Node, port: str, arrivals: Mapping[str, Flow], lasting: Lasting) -> Flow:
    """An engine begins with a sink when the others have what the first output needs beside it, and is through with it
    no sooner than the engine's own pace allows."""
    arrival, layer = arrivals[port], node.layer
    within = layer.frame_share(port)
    if within is not None:
        return _share_of(_gathered(node, arrivals, lasting), within)
    first = max([arrival.first, *(flow.first for other, flow in arrivals.items() if other != port)])
    for source in layer.sources:
        if source.tensor.kind.per_batch or _works_per_batch(node):
            continue
        needs = layer.required(source.name, source.lanes)
        for other, flow in arrivals.items():
            if other != port:
                share = needs.get(other, 0) / layer.port(other).tensor.elements
                first = max(first, math.ceil(flow.at(share)))
    beats = max(1, layer.port(port).beats)
    per_batch = layer.port(port).tensor.kind.per_batch
    pace = 0 if per_batch else lasting(layer.cycles_per_frame * (beats - 1) // beats)
    last = max(first + pace, *(flow.last for flow in arrivals.values()))
    return Flow(first, last)


def _share_of(frame: Flow, share: tuple[Fraction, Fraction]) -> Flow:
    """What passes within a share of a frame's time."""
    return Flow(math.floor(frame.at(float(share[0]))), math.ceil(frame.at(float(share[1]))))


def _gathered(node: Node, arrivals: Mapping[str, Flow], lasting: Lasting) -> Flow:
    """A frame that is put together of shares, one after the other at full rate, so late that none is waited for."""
    pace, layer = lasting(node.layer.cycles_per_frame), node.layer
    begins = []
    for port, flow in arrivals.items():
        share = layer.frame_share(port)
        assert share is not None
        begins += [flow.first - math.floor(pace * share[0]), flow.last - math.floor(pace * share[1])]
    return Flow(max(begins), max(begins) + pace)


def _hold_back(
    graph: Graph,
    node: Node,
    crossing: Mapping[str, int],
    offered: dict[str, Flow],
    taken: dict[str, Flow],
    lasting: Lasting,
) -> None:
    """Changes the flows around a node so that it hands on what waits before it when the first user takes it."""
    ((port, edge),) = (
        (port, edge) for port, edge in node.inputs.items() if not node.layer.port(port).tensor.kind.per_batch
    )
    wanted, pipeline = [], lasting(node.layer.pipeline_cycles)
    for made in node.outputs.values():
        taken[made] = _wanted(graph, made, taken[made])
        wanted.append(taken[made].later(-crossing.get(made, 0) - pipeline))
    arrived, beats = taken[edge], node.layer.port(port).beats
    last = max(arrived.last, min(flow.last for flow in wanted))
    pace = lasting(node.layer.cycles_per_frame * (beats - 1) // beats)
    first = max(arrived.first, min(last - pace, *(flow.first for flow in wanted)))
    taken[edge] = Flow(first, last)
    offered.update(dict.fromkeys(node.outputs.values(), taken[edge].later(pipeline)))


def _wanted(graph: Graph, edge: str, taken: Flow) -> Flow:
    """How an edge must be taken that is taken so by the results: an engine that stores rows takes them ahead."""
    ((consumer, sink),) = graph.consumers[edge]
    strips = consumer.layer.strips
    if strips is None or sink.name not in strips.stored:
        return taken
    begun = np.cumsum([0, *strips.cycles[:-1]]) / sum(strips.cycles)
    ahead = float(np.max(strips.stored[sink.name] / sink.tensor.elements - begun))
    return taken.later(-math.ceil(ahead * (taken.last - taken.first)))


def _from_host(source: Port, cycles: int) -> Flow:
    """A frame comes evenly within the interval: a host that is faster waits, and what waits there needs no FIFO."""
    return Flow(0, cycles * (source.beats - 1) // source.beats)


def _offered(node: Node, port: str, arrivals: Mapping[str, Flow], lasting: Lasting) -> Flow:
    layer = node.layer
    source = layer.port(port)
    pipeline = lasting(layer.pipeline_cycles)
    if _works_per_batch(node):
        first = max(flow.first for flow in arrivals.values()) + pipeline
        return Flow(first, max(flow.last for flow in arrivals.values()) + pipeline)
    if source.tensor.kind.per_batch:
        # leaves after the batch's last frame has been worked through
        begin = max(_taken(node, sink, arrivals, lasting).last for sink in arrivals) + pipeline
        return Flow(begin, begin + lasting(source.beats))
    whole = layer.frame_share(port)
    if whole is not None:
        (arrival,) = arrivals.values()
        pace = lasting(layer.cycles_per_frame)
        return _share_of(arrival.at_least(pace), whole).later(pipeline)
    if any(layer.frame_share(sink) is not None for sink in arrivals):
        return _gathered(node, arrivals, lasting).later(pipeline)
    needs = layer.required(port, source.lanes)
    first = max(
        math.ceil(flow.at(needs.get(sink, 0) / layer.port(sink).tensor.elements)) for sink, flow in arrivals.items()
    )
    beats = max(1, source.beats)
    pace = lasting(layer.cycles_per_frame * (beats - 1) // beats)
    last = max(first + pace, *(flow.last for flow in arrivals.values()))
    return Flow(first, last).later(pipeline)
