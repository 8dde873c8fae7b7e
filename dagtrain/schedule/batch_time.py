"""The cycles that a batch of training takes: what a placed and folded graph, its recipe and its links make of it.

Analysis, not transformation.  Inside a batch a frame leaves every T cycles, T the interval of the slowest engine.  At
its end there is more to pay, which depends on the staleness D: frame t wants the weights after ⌊(t - D) / B⌋ updates.
An update is complete only when the last frame of its batch has gone forward, come back as an error and been summed,
the sums have left and gone through the update, and the new weights lie at their users.  With D = 0 the first frame of a
batch waits for all that, so a batch takes B T and nearly the whole round trip; with D at least the pipeline's depth in
frames nobody waits, and there remain the rests of gradient engines while their sums leave, and of engines that keep a
single version of their weights while they load the next one.

So a batch's cycles follow from when everything happens, which `batch_time` finds frame by frame, node by node, by the
recurrence of `dagtrain.schedule.batch_kernel`.  Along an edge everything is later by the cycles of its FIFO, or of the
network, where it waits besides for what shares its ports (`dagtrain.schedule.network`).  What is faster than the rest
runs ahead as far as the FIFOs behind it have room for whole frames.  What goes once a batch has little room on its way,
and a gradient engine rests until its sums have left.  The recurrence goes on until batches take as long as one another,
where they take longest.  Where ports are full it matters who is served first (`Order`).

Cycles are those of the cluster's clock; a layer on a device of another clock goes through its frames in its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.graph.ir import Graph
from dagtrain.schedule.batch_clock import ONE_CLOCK, BatchClock, Order, Way, computing_ways
from dagtrain.schedule.network import Hop, PortEnd, port_cycles_per_frame
from hdl.fixed import FloatArray
from hdl.streams import queue_latency
from hdl.streams.width import AdapterKind, adapter_kind
from hdl.tensor import Port

# batches that take as long as one another when it repeats, with staleness 0, where a batch knows of the one before
# only, and with more; batches after which it does, if ever
ALIKE_DRAINED, ALIKE = 2, 3
MOST_BATCHES = 12
# cycles, or the share of a batch, by which batches may differ that are called alike: flows are kept at some elements
# only, and where ports are busy what waits for new weights finds another queue in every batch
SAME_CYCLES, SAME_SHARE = 0.5, 5e-4
# of sums of fractions
ROUNDED = 1e-6
# where a port takes longer for a frame than the slowest engine, turns matter; but for batches that take no more of its
# time than so
ALL_BUSY = 1.01

# batches so many times as long are reckoned from two that are a frame apart, of at least so many frames
MUCH_LONGER = 4
SHORT_BATCH = 4


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


def batch_time(graph: Graph, ways: Mapping[str, Way], periods: Mapping[str, Fraction] = ONE_CLOCK) -> BatchTime:
    """Cycles of one batch in the long run: as many as everything takes, and no port of the network carries it in fewer.

    Args:
        graph: folded, streaming.
        ways: edge -> what lies on it (`edge_ways`).
        periods: nodes on devices of another clock than the cluster's -> what a cycle there lasts in cycles of that."""
    recipe, port = graph.recipe, _busiest_port(graph, ways)
    cycles = _batch_cycles(graph, ways, periods)
    least = recipe.batch * port
    # where the oldest frames first keep a port busy all the time, so do turns
    if port > slowest_engine(graph, periods) and cycles > ALL_BUSY * least:
        cycles = _batch_cycles(graph, ways, periods, Order.TURNS)
    return BatchTime(recipe.batch, math.ceil(max(cycles, least) - ROUNDED))


def _batch_cycles(
    graph: Graph, ways: Mapping[str, Way], periods: Mapping[str, Fraction], order: Order = Order.OLDEST
) -> float:
    """Cycles of one batch in the long run, from when everything happens.

    Each further frame of a batch adds its interval at most, and beyond some length of the batch exactly that: what
    batches cost beside is paid once each.  So long batches are reckoned from short ones, once a frame more costs as
    much as the slowest engine or port takes.  Where a whole batch may be stale that is not before new weights, from its
    last frame on, take less time than a batch, which is as long as one frame that waits for those of the frame before:
    shorter ones are not tried, but where ports are full, and hold up what new weights wait for.  What waits for them
    all the same, with room to run ahead in longer batches, does so in these too."""
    recipe = graph.recipe
    slowest = max(slowest_engine(graph, periods), _busiest_port(graph, ways))
    # frames after which turns of copies come again; batches of no whole number of these are worked out as they are
    turns = math.lcm(*(len(frames.turns) for frames in graph.dealt.values()))
    if recipe.batch % turns:
        return _long_run(graph, ways, recipe.batch, recipe.staleness, periods, order, SAME_SHARE)[0]
    short = SHORT_BATCH * turns
    there_and_back = 0.0
    if order is Order.OLDEST and min(recipe.staleness, recipe.batch // MUCH_LONGER) >= short:
        there_and_back, _ = _long_run(graph, ways, turns, 0, periods, order)
    while short * MUCH_LONGER <= recipe.batch:
        # the frames that may be stale are some of one batch, or so many that nothing ever waits
        some, all_of_it = 2 * (recipe.staleness + 1) <= short, recipe.staleness >= short
        if some or (all_of_it and short * slowest >= there_and_back):
            cycles, waited = _long_run(graph, ways, short, min(recipe.staleness, short), periods, order)
            if waited and not some:
                break
            less = short - turns
            fewer, _ = _long_run(graph, ways, less, min(recipe.staleness, less), periods, order)
            more = (cycles - fewer) / turns
            if more >= slowest - 2 * SAME_CYCLES:
                return cycles + (recipe.batch - short) * more
        short *= 2
    return _long_run(graph, ways, recipe.batch, recipe.staleness, periods, order, SAME_SHARE)[0]


def _busiest_port(graph: Graph, ways: Mapping[str, Way]) -> float:
    """Cycles that a frame takes of it."""
    return max(busy_ports(graph, {edge: way.hop for edge, way in ways.items() if way.hop}).values(), default=0.0)


def busy_ports(graph: Graph, hops: Mapping[str, Hop]) -> dict[PortEnd, float]:
    """Cycles that a frame takes of every port, with its share of what goes once a batch."""
    return port_cycles_per_frame(
        (hops[edge], math.ceil(source.elements / hops[edge].word) * _tensors_per_frame(graph, edge, source))
        for edge, _p, source, _c, _s in graph.streams
        if edge in hops
    )


def _tensors_per_frame(graph: Graph, edge: str, source: Port) -> float:
    """Those that pass an edge."""
    return 1 / graph.recipe.batch if source.tensor.kind.per_batch else float(graph.passing(edge))


def _long_run(
    graph: Graph,
    ways: Mapping[str, Way],
    batch: int,
    staleness: int,
    periods: Mapping[str, Fraction] = ONE_CLOCK,
    order: Order = Order.OLDEST,
    same: float = 0.0,
) -> tuple[float, bool]:
    """Cycles of a batch once all take as long, and whether anything waited for weights in the last one.

    Where ports are full no two take as long: the mean of the last ones once they differ by less than ``same`` of a
    batch, or of the later half of `MOST_BATCHES`."""
    recipe = replace(graph.recipe, batch=batch, staleness=staleness)
    computing = graph.computing
    own = math.ceil(own_cycles(computing, periods))
    clock = BatchClock(computing, computing_ways(graph, ways), recipe, own, periods, order)
    alike = ALIKE if staleness else ALIKE_DRAINED
    ends: list[FloatArray] = []
    slowest: list[float] = []
    for _ in range(MOST_BATCHES):
        ends.append(clock.batch())
        if len(ends) > 1:
            slowest.append(_slowest_edge(ends, 1))
        if len(slowest) >= alike:
            apart = max(slowest[-alike:]) - min(slowest[-alike:])
            if apart < SAME_CYCLES:
                return slowest[-1], clock.waited
            if apart < same * slowest[-1]:
                return _slowest_edge(ends, alike), clock.waited
    return _slowest_edge(ends, MOST_BATCHES // 2), clock.waited


def _slowest_edge(ends: Sequence[FloatArray], batches: int) -> float:
    """Cycles a batch of the last ones, where they took longest; ``ends``: by batch and edge."""
    return float((ends[-1] - ends[-1 - batches]).max()) / batches


def slowest_engine(graph: Graph, periods: Mapping[str, Fraction] = ONE_CLOCK) -> float:
    """Cycles a frame; of one of several copies, a frame of all."""
    return _slowest(graph, periods)[0]


def own_cycles(graph: Graph, periods: Mapping[str, Fraction] = ONE_CLOCK) -> float:
    """Cycles that the slowest engine takes for a frame; of one of several copies, a frame that it gets."""
    return -_slowest(graph, periods)[1]


def _slowest(graph: Graph, periods: Mapping[str, Fraction]) -> tuple[float, float]:
    """Cycles a frame of the slowest engine, and, less than 0, those that it takes for one: the fewest of equal ones."""
    engines = ((node.layer.cycles_per_frame * periods.get(node.name, 1), graph.busy(node.name)) for node in graph.nodes)
    return max((float(cycles * busy), -float(cycles)) for cycles, busy in engines)


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
        holds = hops[edge].credits * hops[edge].word if edge in hops else fifo_beats[edge] * sink.lanes
        room = holds / source.elements
        room = 0.0 if edge in outside else min(1.0, room) if source.tensor.kind.per_batch else max(1.0, room)
        if edge in hops:
            found[edge] = Way(behind * period, hops[edge], room)
        else:
            adapter = adapter_kind(source.lanes, sink.lanes) is not AdapterKind.WIRE
            found[edge] = Way((adapter + queue_latency(fifo_beats[edge]) + behind) * period, room=room)
    return found
