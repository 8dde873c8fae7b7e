"""The cycles that a batch of training takes: what a placed and folded graph, its recipe and its links make of it.

Analysis, not transformation.  Inside a batch a frame leaves every T cycles, T the interval of the slowest engine.  At
its end there is more to pay, which depends on the staleness D: frame t wants the weights after ⌊(t - D) / B⌋ updates.
An update is complete only when the last frame of its batch has gone forward, come back as an error and been summed,
the sums have left and gone through the update, and the new weights lie at their users.  With D = 0 the first frame of a
batch waits for all that, so a batch takes B T and nearly the whole round trip; with D at least the pipeline's depth in
frames nobody waits, and there remain the rests of gradient engines while their sums leave, and of engines that keep a
single version of their weights while they load the next one.

So a batch's cycles follow from when everything happens, which `batch_time` finds frame by frame, node by node, by the
recurrence of `hdl.layers.passage`: in topological order along all edges but the delayed ones, since the weights of
frame t come of earlier frames.  Along an edge everything is later by the cycles of its FIFO, or of the
network, where it waits besides for what shares its ports (`dagtrain.schedule.network`).  Nothing waits for room in a
FIFO, so what is faster than the slowest engine runs ahead of it; in the long run all of them are held to its pace, so
the batch takes as long as it does where it takes longest.  The recurrence goes on until that repeats.

Cycles are those of the cluster's clock; a layer on a device of another clock goes through its frames in its own.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType

from dagtrain.graph.ir import Graph, Node, is_delayed
from dagtrain.schedule.network import Hop, Network, port_cycles_per_frame
from hdl.layers.passage import LONG_AGO, Flow, Passage
from hdl.recipe import Recipe
from hdl.streams import queue_latency
from hdl.streams.width import AdapterKind, adapter_kind
from hdl.tensor import Port

# of the nodes of a cluster of one clock
ONE_CLOCK: Mapping[str, Fraction] = MappingProxyType({})

# batches that take as long as one another when it repeats, with staleness 0, where a batch knows of the one before
# only, and with more; batches after which it does, if ever
ALIKE_DRAINED, ALIKE = 2, 3
MOST_BATCHES = 12
# cycles by which batches may differ that are called alike: flows are kept at some elements only
SAME_CYCLES = 0.5
# of sums of fractions
ROUNDED = 1e-6

# batches so many times as long are reckoned from two that are a frame apart, of at least so many frames
MUCH_LONGER = 4
SHORT_BATCH = 4


@dataclass(frozen=True)
class Way:
    """What lies between the producer and the consumer of an edge."""

    # that every element takes on the consumer's device, of the cluster's clock
    cycles: float
    # over the network
    hop: Hop | None = None


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


class _When(enum.Enum):
    """What comes at a sink."""

    # a tensor with every frame
    FRAME = "frame"
    # one with the last frame of a batch
    BATCH = "batch"
    # the weights of a frame's version, which left a batch or more before
    VERSION = "version"


@dataclass(frozen=True)
class _Step:
    """A node, with what it is asked for every frame worked out."""

    passage: Passage
    # (sink, edge, when it comes)
    sinks: tuple[tuple[str, str, _When], ...]
    # source -> (edge, whether it leaves once a batch)
    sources: Mapping[str, tuple[str, bool]]
    # what a cycle of its device lasts, in cycles of the cluster's clock
    period: float = 1.0

    @classmethod
    def of(cls, node: Node, period: Fraction | None) -> _Step:
        """Of a node of the folded graph."""
        layer = node.layer

        def when(port: Port) -> _When:
            if is_delayed(layer, port):
                return _When.VERSION
            return _When.BATCH if port.tensor.kind.per_batch else _When.FRAME

        sinks = ((port.name, node.inputs[port.name], when(port)) for port in layer.sinks)
        sources = {
            port.name: (node.outputs[port.name], port.tensor.kind.per_batch)
            for port in layer.sources
            if port.name in node.outputs
        }
        return cls(Passage(layer), tuple(sinks), sources, float(period or 1))

    def frame(self, arriving: Mapping[str, Flow], weights: float, *, ends_batch: bool) -> Mapping[str, Flow]:
        """How a frame leaves: the passage counts in cycles of its device."""
        if self.period == 1.0:
            return self.passage.frame(arriving, weights, ends_batch=ends_batch) if self.sinks else self.passage.host()
        own = {name: flow.scaled(1 / self.period) for name, flow in arriving.items()}
        weights = weights if weights == LONG_AGO else weights / self.period
        made = self.passage.frame(own, weights, ends_batch=ends_batch) if self.sinks else self.passage.host()
        return {name: flow.scaled(self.period) for name, flow in made.items()}


class BatchClock:
    """A folded streaming graph, frame after frame."""

    def __init__(
        self, graph: Graph, ways: Mapping[str, Way], recipe: Recipe, periods: Mapping[str, Fraction] = ONE_CLOCK
    ) -> None:
        self.recipe = recipe
        self.steps = [_Step.of(node, periods.get(node.name)) for node in graph.nodes]
        passages = {node.name: step.passage for node, step in zip(graph.nodes, self.steps, strict=True)}
        for name, lender in graph.lenders.items():
            passages[name].beside, passages[lender.name].beside = passages[lender.name], passages[name]
        # edge -> when each version of its weights had left, the first one of an update first
        self.versions: dict[str, list[float]] = {}
        # edge -> how the last frame passed at its producer, and comes to its consumer
        self.offered: dict[str, Flow] = {}
        self.arriving: dict[str, Flow] = {}
        self.ways = ways
        self.network = Network([way.hop for way in ways.values() if way.hop], math.ceil(slowest_engine(graph, periods)))
        self.frames = 0
        # whether a node waited for nothing but its weights; who asks resets it
        self.waited = False

    def frame(self) -> None:
        """Takes one more frame through the graph."""
        ends_batch = (self.frames + 1) % self.recipe.batch == 0
        version = self.recipe.version(self.frames)
        for step in self.steps:
            if ends_batch or not step.passage.works_per_batch:
                self._take(step, version, ends_batch)
        self.frames += 1

    def _take(self, step: _Step, version: int, ends_batch: bool) -> None:
        arriving: dict[str, Flow] = {}
        weights = LONG_AGO
        for name, edge, when in step.sinks:
            if when is _When.VERSION:
                if version:
                    weights = max(weights, self.versions[edge][version - 1])
            elif ends_batch or when is _When.FRAME:
                arriving[name] = self.arriving[edge]
        made = step.frame(arriving, weights, ends_batch=ends_batch)
        self.waited |= step.passage.waited
        for name, (edge, per_batch) in step.sources.items():
            if name not in made:
                continue
            self.offered[edge] = flow = made[name]
            way = self.ways[edge]
            if way.hop:
                flow = self.network.passing(edge, way.hop, flow)
            self.arriving[edge] = flow = flow.later(way.cycles)
            if per_batch:
                self.versions.setdefault(edge, []).append(flow.last)

    def ends(self) -> list[float]:
        """When the last tensor had passed, of every edge."""
        return [flow.last for flow in self.offered.values()]


def batch_time(graph: Graph, ways: Mapping[str, Way], periods: Mapping[str, Fraction] = ONE_CLOCK) -> BatchTime:
    """Cycles of one batch in the long run: as many as everything takes, and no port of the network carries it in fewer.

    Args:
        graph: folded, streaming.
        ways: edge -> what lies on it (`edge_ways`).
        periods: nodes on devices of another clock than the cluster's -> what a cycle there lasts in cycles of that."""
    cycles = max(_batch_cycles(graph, ways, periods), graph.recipe.batch * _busiest_port(graph, ways))
    return BatchTime(graph.recipe.batch, math.ceil(cycles - ROUNDED))


def _batch_cycles(graph: Graph, ways: Mapping[str, Way], periods: Mapping[str, Fraction]) -> float:
    """Cycles of one batch in the long run, from when everything happens.

    Each further frame of a batch adds its interval at most, and beyond some length of the batch exactly that: what
    batches cost beside is paid once each.  So long batches are reckoned from short ones, once a frame more costs as
    much as the slowest engine or port takes."""
    recipe = graph.recipe
    slowest = max(slowest_engine(graph, periods), _busiest_port(graph, ways))
    short = SHORT_BATCH
    while short * MUCH_LONGER <= recipe.batch:
        # the frames that may be stale are some of one batch, or so many that nothing ever waits
        some, all_of_it = 2 * (recipe.staleness + 1) <= short, recipe.staleness >= short
        if some or all_of_it:
            cycles, waited = _long_run(graph, ways, short, min(recipe.staleness, short), periods)
            if some or not waited:
                one_less, _ = _long_run(graph, ways, short - 1, min(recipe.staleness, short - 1), periods)
                more = cycles - one_less
                if more >= slowest - 2 * SAME_CYCLES:
                    return cycles + (recipe.batch - short) * more
        short *= 2
    return _long_run(graph, ways, recipe.batch, recipe.staleness, periods)[0]


def _busiest_port(graph: Graph, ways: Mapping[str, Way]) -> float:
    """Cycles that a frame takes of it, with its share of what goes once a batch."""
    sources = ((source, ways[edge].hop) for edge, _p, source, _c, _s in graph.streams)
    return port_cycles_per_frame(
        (hop, math.ceil(source.elements / hop.word) / (graph.recipe.batch if source.tensor.kind.per_batch else 1))
        for source, hop in sources
        if hop
    )


def _long_run(
    graph: Graph,
    ways: Mapping[str, Way],
    batch: int,
    staleness: int,
    periods: Mapping[str, Fraction] = ONE_CLOCK,
) -> tuple[float, bool]:
    """Cycles of a batch once all take as long, and whether anything waited for weights in the last one."""
    clock = BatchClock(graph, ways, replace(graph.recipe, batch=batch, staleness=staleness), periods)
    alike = ALIKE if staleness else ALIKE_DRAINED
    before: list[float] = []
    slowest: list[float] = []
    for _ in range(MOST_BATCHES):
        clock.waited = False
        for _ in range(batch):
            clock.frame()
        ends = clock.ends()
        if before:
            slowest.append(max(end - earlier for end, earlier in zip(ends, before, strict=True)))
        if len(slowest) >= alike and max(slowest[-alike:]) - min(slowest[-alike:]) < SAME_CYCLES:
            break
        before = ends
    return slowest[-1], clock.waited


def slowest_engine(graph: Graph, periods: Mapping[str, Fraction] = ONE_CLOCK) -> float:
    """Cycles a frame."""
    return max(node.layer.cycles_per_frame * float(periods.get(node.name, 1)) for node in graph.nodes)


def edge_ways(
    graph: Graph,
    fifo_beats: Mapping[str, int],
    hops: Mapping[str, Hop],
    stored: Mapping[str, int] | None = None,
    periods: Mapping[str, Fraction] = ONE_CLOCK,
) -> dict[str, Way]:
    """Edge -> what lies on it: a width adapter where lanes differ and a FIFO, or the network; then DRAM, if stored.

    Args:
        hops: edges that cross the network -> their way.
        stored: edges that go through DRAM -> cycles that it adds.
        periods: as in `batch_time`."""
    found: dict[str, Way] = {}
    outside = stored or {}
    for edge, _producer, source, consumer, sink in graph.edges:
        behind, period = outside.get(edge, 0), float(periods.get(consumer.name, 1))
        if edge in hops:
            found[edge] = Way(behind * period, hops[edge])
        else:
            adapter = adapter_kind(source.lanes, sink.lanes) is not AdapterKind.WIRE
            found[edge] = Way((adapter + queue_latency(fifo_beats[edge]) + behind) * period)
    return found
