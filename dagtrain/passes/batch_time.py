"""The cycles that a batch of training takes: what a placed and folded graph, its recipe and its links make of it.

Analysis, not transformation.  Inside a batch a frame leaves every T cycles, T the interval of the slowest engine.  At
its end there is more to pay, which depends on the staleness D: frame t wants the weights after ⌊(t - D) / B⌋ updates.
An update is complete only when the last frame of its batch has gone forward, come back as an error and been summed,
the sums have left and gone through the update, and the new weights lie at their users.  With D = 0 the first frame of a
batch waits for all that, so a batch takes B T and nearly the whole round trip; with D at least the pipeline's depth in
frames nobody waits, and there remain the rests of gradient engines while their sums leave, and of engines that keep a
single version of their weights while they load the next one.

So a batch's cycles follow from when everything happens, which `batch_time` finds frame by frame, node by node, by the
recurrence of `hdl.passage`: in topological order along all edges but the delayed ones, since the weights of frame t
come of earlier frames.  Along an edge everything is later by the cycles of its FIFO, or of the network.  Nothing waits
for room in a FIFO, so what is faster than the slowest engine runs ahead of it; in the long run all of them are held to
its pace, so the batch takes as long as it does where it takes longest.  The recurrence goes on until that repeats.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dagtrain.ir import Graph, Node, is_delayed
from hdl.link import elements_per_word
from hdl.passage import LONG_AGO, Flow, Passage
from hdl.streams import queue_latency
from hdl.streams.width import AdapterKind, adapter_kind

# batches that take as long as one another when it repeats; batches after which it does, if ever
ALIKE = 3
MOST_BATCHES = 12
# cycles by which batches may differ that are called alike: flows are kept at some elements only
SAME_CYCLES = 0.5


# cycles through the network ports at both ends of a stream: packing, merging, splitting, the receiver's FIFO
PORT_CYCLES = 24


@dataclass(frozen=True)
class Way:
    """What lies between the producer and the consumer of an edge."""

    # that every element takes
    cycles: int
    # elements that go together, once the last of them is there
    word: int = 1

    def arriving(self, flow: Flow) -> Flow:
        """How a flow at the producer comes to the consumer."""
        if self.word == 1:
            return flow.later(self.cycles)
        whole = np.ceil(flow.elements / self.word) * self.word
        return Flow(flow.elements, flow.at(whole) + self.cycles)


@dataclass(frozen=True)
class BatchTime:
    """The time of training in whole batches."""

    # frames a batch
    batch: int
    # from one batch to the next, once all batches take as long
    cycles: int

    @property
    def cycles_per_frame(self) -> Fraction:
        """Of training."""
        return Fraction(self.cycles, self.batch)


class BatchClock:
    """A folded streaming graph, frame after frame."""

    def __init__(self, graph: Graph, ways: Mapping[str, Way]) -> None:
        self.graph = graph
        self.ways = ways
        self.passages = {node.name: Passage(node.layer) for node in graph.nodes}
        # edge -> when each version of its weights had left, the first one of an update first
        self.versions: dict[str, list[float]] = {}
        # edge -> how the last frame passed at its producer
        self.offered: dict[str, Flow] = {}
        self.frames = 0

    def frame(self) -> None:
        """Takes one more frame through the graph."""
        recipe = self.graph.recipe
        ends_batch = (self.frames + 1) % recipe.batch == 0
        version = recipe.version(self.frames)
        for node in self.graph.nodes:
            if ends_batch or not node.layer.works_per_batch:
                self._node(node, version, ends_batch)
        self.frames += 1

    def _node(self, node: Node, version: int, ends_batch: bool) -> None:
        layer = node.layer
        if not layer.sinks:
            made = self.passages[node.name].host()
        else:
            arriving: dict[str, Flow] = {}
            weights = LONG_AGO
            for port in layer.sinks:
                edge = node.inputs[port.name]
                if is_delayed(layer, port):
                    if version:
                        weights = max(weights, self.versions[edge][version - 1] + self.ways[edge].cycles)
                elif ends_batch or not port.tensor.kind.per_batch:
                    arriving[port.name] = self.ways[edge].arriving(self.offered[edge])
            made = self.passages[node.name].frame(arriving, weights, ends_batch=ends_batch)
        for name, flow in made.items():
            edge = node.outputs[name]
            self.offered[edge] = flow
            if layer.port(name).tensor.kind.per_batch:
                self.versions.setdefault(edge, []).append(flow.last)

    def ends(self) -> list[float]:
        """When the last tensor had passed, of every edge."""
        return [flow.last for flow in self.offered.values()]


def batch_time(graph: Graph, ways: Mapping[str, Way]) -> BatchTime:
    """Cycles of one batch in the long run.

    Args:
        graph: folded, streaming.
        ways: edge -> what lies on it (`edge_ways`)."""
    clock, batch = BatchClock(graph, ways), graph.recipe.batch
    before: list[float] = []
    slowest: list[float] = []
    for _ in range(MOST_BATCHES):
        for _ in range(batch):
            clock.frame()
        ends = clock.ends()
        if before:
            slowest.append(max(end - earlier for end, earlier in zip(ends, before, strict=True)))
        if len(slowest) >= ALIKE and max(slowest[-ALIKE:]) - min(slowest[-ALIKE:]) < SAME_CYCLES:
            break
        before = ends
    return BatchTime(batch, math.ceil(slowest[-1]))


def edge_ways(
    graph: Graph,
    fifo_beats: Mapping[str, int],
    crossing: Collection[str],
    *,
    network_cycles: int,
    word_bits: int,
    stored: Mapping[str, int] | None = None,
) -> dict[str, Way]:
    """Edge -> what lies on it: a width adapter where lanes differ and a FIFO, or the network; then DRAM, if stored.

    Args:
        crossing: edges that cross the network.
        network_cycles: from port to port.
        word_bits: of a word of the network.
        stored: edges that go through DRAM -> cycles that it adds."""
    found: dict[str, Way] = {}
    outside = stored or {}
    for edge, _producer, source, _consumer, sink in graph.edges:
        if edge in crossing:
            word = elements_per_word(source.tensor.fixed.width, word_bits)
            found[edge] = Way(network_cycles + PORT_CYCLES + outside.get(edge, 0), word)
        else:
            adapter = adapter_kind(source.lanes, sink.lanes) is not AdapterKind.WIRE
            found[edge] = Way(adapter + queue_latency(fifo_beats[edge]) + outside.get(edge, 0))
    return found
