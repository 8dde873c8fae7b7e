"""When each edge's frame begins, at the steady interval of the pipeline: the base of buffer depths and staleness.

Analysis, not transformation.  In steady state every per-frame edge carries one frame each ``cycles`` (the
pipeline's interval T), so one number an edge says it all: the cycle at which frame 0 begins to flow there.
A source can begin when each sink has got what the first element needs (`Layer.required`), the sink's share of
T later, plus the layer's own pipeline; a crossing edge adds the latency of the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dagtrain.ir import Graph, Node, is_delayed
from hdl.tensor import Kind


@dataclass(frozen=True)
class Schedule:
    """Start cycles of frame 0, under an interval of ``cycles`` a frame."""

    # pipeline interval T
    cycles: int
    # edge -> cycle at which its producer offers the first element of frame 0
    offered: Mapping[str, int]
    # edge -> cycle at which its consumer takes the first element of frame 0
    taken: Mapping[str, int]
    # per-batch edge -> cycles from the last frame's start at its producer until the tensor has left
    batch_delay: Mapping[str, int]

    def frames_waiting(self, edge: str) -> float:
        """Frames that lie on an edge in steady state."""
        return max(0.0, (self.taken[edge] - self.offered[edge]) / self.cycles)


def schedule(graph: Graph, cycles: int, crossing_cycles: Mapping[str, int] | None = None) -> Schedule:
    """The schedule of a streaming graph at ``cycles`` a frame.

    ``crossing_cycles`` gives, for edges that cross the network, the cycles between leaving and arriving."""
    crossing = crossing_cycles or {}
    offered: dict[str, int] = {}
    taken: dict[str, int] = {}
    batch_delay: dict[str, int] = {}
    for node in graph.nodes:
        if _works_per_batch(node):
            _schedule_per_batch(graph, node, crossing, offered, taken, batch_delay)
            continue
        arrivals = {
            port: offered[edge] + crossing.get(edge, 0)
            for port, edge in node.inputs.items()
            if not _is_delayed_sink(node, port)
        }
        _take(node, arrivals, taken, cycles)
        for port, edge in node.outputs.items():
            offered[edge] = _offer(node, port, arrivals, cycles)
            if node.layer.port(port).tensor.kind.per_batch:
                batch_delay[edge] = offered[edge]
    return Schedule(cycles, offered, taken, batch_delay)


def needed_staleness(graph: Graph, plan: Schedule, crossing_cycles: Mapping[str, int] | None = None) -> int:
    """The least staleness D, in frames, at which no engine ever waits for its weights.

    The new weights of a batch leave the update once the gradient of the batch's last frame has drained; the
    engine that uses them for frame ``batch + D`` must not start that frame earlier (see `Recipe.staleness`)."""
    crossing = crossing_cycles or {}
    worst = 0
    for edge, _producer, _source, consumer, sink in graph.edges:
        if not is_delayed(consumer.layer, sink):
            continue
        ready = plan.offered[edge] + crossing.get(edge, 0) + sink.beats
        first_use = min(
            plan.taken[used] for port, used in consumer.inputs.items() if not _is_delayed_sink(consumer, port)
        )
        worst = max(worst, math.ceil((ready - first_use) / plan.cycles))
    return worst


def _works_per_batch(node: Node) -> bool:
    ports = (*node.layer.sinks, *node.layer.sources)
    return all(port.tensor.kind.per_batch for port in ports)


def _is_delayed_sink(node: Node, port: str) -> bool:
    return is_delayed(node.layer, node.layer.port(port))


def _schedule_per_batch(
    graph: Graph,
    node: Node,
    crossing: Mapping[str, int],
    offered: dict[str, int],
    taken: dict[str, int],
    batch_delay: dict[str, int],
) -> None:
    """Updates and forks of weights: a beat passes through in the layer's pipeline; tensors follow each other."""
    arrival = max((offered[edge] + crossing.get(edge, 0) for edge in node.inputs.values()), default=0)
    for edge in node.inputs.values():
        taken[edge] = arrival
    for port, edge in node.outputs.items():
        offered[edge] = arrival + node.layer.pipeline_cycles
        batch_delay[edge] = offered[edge] + graph.tensor(edge).elements // node.layer.port(port).lanes


def _take(node: Node, arrivals: Mapping[str, int], taken: dict[str, int], cycles: int) -> None:
    """An engine takes a sink's first element when the other sinks have what the first output needs beside it."""
    for port in arrivals:
        others = [
            arrivals[other] + _share(node, source.name, other, cycles)
            for source in node.layer.sources
            for other in arrivals
            if other != port and not source.tensor.kind.per_batch
        ]
        if not others:
            others = [start for other, start in arrivals.items() if other != port]
        taken[node.inputs[port]] = max([arrivals[port], *others])


def _offer(node: Node, source: str, arrivals: Mapping[str, int], cycles: int) -> int:
    if node.layer.port(source).tensor.kind.per_batch:
        # the tensor leaves after the batch's last frame; relative to that frame, one interval after its start
        return max(arrivals.values(), default=0) + cycles + node.layer.pipeline_cycles
    starts = [start + _share(node, source, port, cycles) for port, start in arrivals.items()]
    return max(starts, default=0) + (node.layer.pipeline_cycles if arrivals else 0)


def _share(node: Node, source: str, sink: str, cycles: int) -> int:
    """Cycles until a sink that flows at one frame a T has got what the source's first beat needs."""
    layer = node.layer
    needed = layer.required(source, layer.port(source).lanes).get(sink, 0)
    total = layer.port(sink).tensor.elements
    return math.ceil(needed / total * cycles)


def is_stash(graph: Graph, edge: str) -> bool:
    """Whether an edge is a stash edge."""
    return graph.tensor(edge).kind is Kind.STASH
