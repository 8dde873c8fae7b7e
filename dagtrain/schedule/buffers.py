"""How deep the FIFO on each edge must be so that the pipeline keeps its interval.

Analysis, not transformation.  In steady state an element waits on an edge from when its producer offers it to
when its consumer takes it; frames follow each other every ``cycles``.  The depth is the most that lies there at any
time, plus the burst by which an engine may run ahead of the even rate: producers compute row by row, so one
row of the map on either side, and a few beats for registers.  A consumer that hands every beat on at once leaves the
burst to the FIFOs behind it, but for what it takes more slowly than an engine of unlike strips makes it (`held_back`).
What is made again of a map that waits has none, since it is there when it is wanted; but for engines that store rows,
and take them when they have room.

`deadlock_beats` says how much of a depth is there so that the pipeline moves at all: where streams part and meet again,
the short branch must hold what the long branch takes in before it gives its first result.  The rest of the depth keeps
the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.schedule.schedule import Schedule
from hdl.layers.base import Layer
from hdl.strips import Strips
from hdl.tensor import Port

# beats that registers at both ends of an edge may hold or demand at once
REGISTER_BEATS = 4
# elements of a per-batch stream that wait between two engines; their users hold a whole tensor themselves
PER_BATCH_BEATS = 2


def fifo_beats(graph: Graph, plan: Schedule) -> Mapping[str, int]:
    """Depth in beats (of the consumer's lanes) of the FIFO in front of each edge's consumer."""
    depths = _store_beats(graph, plan)
    graph = graph.computing
    waiting = {
        edge: plan.frames_waiting(edge) * source.tensor.elements
        for edge, _producer, source, _consumer, _sink in graph.edges
        if not source.tensor.kind.per_batch
    }
    for edge, producer, source, consumer, sink in graph.edges:
        if edge not in waiting:
            depths[edge] = PER_BATCH_BEATS
            continue
        even = _hands_on(consumer, sink, waiting) or (producer.role is Role.RECOMPUTE and consumer.layer.strips is None)
        burst = 0 if even else burst_elements(source.tensor.shape)
        burst = max(burst, held_back(graph, edge, source, sink))
        depths[edge] = math.ceil((waiting[edge] + burst) / sink.lanes) + REGISTER_BEATS
    return depths


def wide_beats(graph: Graph, edge: str, source: Port, sink: Port, depth: int) -> int | None:
    """Depth, in beats of the producer's lanes, of a FIFO that stands in front of what makes beats narrower, instead of
    behind it: where rows dealt out to parts come as fast as all of the map does, an adapter in front would let them
    pass at the pace of one part, and hold up the others; and it would hold up an engine while that is at strips of
    little work.  None: it stands behind, or nothing makes beats narrower."""
    if source.lanes <= sink.lanes or (edge not in graph.bursts and not held_back(graph, edge, source, sink)):
        return None
    return -(-depth * sink.lanes // source.lanes)


def held_back(graph: Graph, edge: str, source: Port, sink: Port) -> int:
    """Elements of an edge that wait at most because its consumer takes fewer in a cycle than the producer gives: of
    results of an engine that is at some strips for less time than their results take to pass so.  0: none, or as many
    pass as are made.

    In an error engine of stride 2 and kernels of 3x3, a row of the map gets products of one row of weights, and the
    next one of two: with as many lanes as take all of them in the time of a frame, the first ones hold it up, and it
    waits with the others."""
    if source.lanes <= sink.lanes or source.tensor.kind.per_batch:
        return 0
    made = _made_by(graph, edge)
    return max((_waiting(strips, result, sink) for strips, result in made), default=0)


def _made_by(graph: Graph, edge: str) -> Iterator[tuple[Strips, Port]]:
    """Engines with strips whose results come over an edge, through layers that hand them on as they come."""
    producer, source = graph.producers[edge]
    layer = producer.layer
    if layer.strips is not None:
        yield layer.strips, source
    elif _passes_on(layer, [port for port, _ in frame_inputs(producer)]):
        for _, before in frame_inputs(producer):
            yield from _made_by(graph, before)


def _waiting(strips: Strips, result: Port, sink: Port) -> int:
    """Elements of results that wait at most in front of a sink, and a pixel, of whose parts the same is true; 0 where
    the engine has the time to wait for each strip.  Results that are made in several passes wait inside."""
    count = strips.parts or result.tensor.shape[0]
    if strips.reordered or len(strips.cycles) != count:
        return 0
    each = Fraction(result.tensor.elements, count)
    # that strips last, and that their results take to pass
    made, passing = [max(Fraction(cycles), each / result.lanes) for cycles in strips.cycles], each / sink.lanes
    slower = sum(made) >= sink.beats
    if sum(max(cycles, passing) for cycles in made) <= (sum(made) if slower else sink.beats):
        return 0
    # what is made faster than it passes waits; where less is made than passes all in all, enough has to wait before for
    # what is made more slowly
    lying, most = Fraction(0), Fraction(0)
    for cycles in 2 * made:
        gained = each - cycles * sink.lanes
        lying = max(Fraction(0), lying + (gained if slower else -gained))
        most = max(most, lying)
    return math.ceil(most) + result.tensor.shape[-1]


def _store_beats(graph: Graph, plan: Schedule) -> dict[str, int]:
    """Of edges to and from stores: what comes in a round trip over the network, at the engine's own pace; else what
    registers hold, since what a store gives waits there."""
    depths: dict[str, int] = {}
    for edge, producer, _source, consumer, sink in graph.edges:
        if sink.tensor.kind.of_store:
            pace = max(1, *(node.layer.cycles_per_frame for node in (producer, consumer) if not node.layer.is_store))
            trip = 2 * plan.crossing.get(edge, 0)
            passing = 0 if sink.tensor.kind.per_batch else math.ceil(sink.beats * trip / pace)
            depths[edge] = min(sink.beats, passing) + PER_BATCH_BEATS
    return depths


def _hands_on(consumer: Node, sink: Port, waiting: Mapping[str, float]) -> bool:
    """Whether a beat of ``sink`` goes on in the cycle in which it comes: of a layer that hands on, if what goes with it
    lies in the other FIFOs already."""
    sinks = frame_inputs(consumer)
    if not _passes_on(consumer.layer, [port for port, _ in sinks]):
        return False
    burst = burst_elements(sink.tensor.shape)
    return all(waiting[edge] >= burst for port, edge in sinks if port.name != sink.name)


def _passes_on(layer: Layer, sinks: Sequence[Port]) -> bool:
    """Whether a layer takes a beat of every sink and gives one at every source in every cycle."""
    sources = [port for port in layer.sources if not port.tensor.kind.per_batch]
    if not sources or not sinks or len({(port.beats, port.lanes) for port in (*sources, *sinks)}) > 1:
        return False
    beat = {port.name: port.lanes for port in sinks}
    return layer.cycles_per_frame == sinks[0].beats and all(
        layer.required(source.name, source.lanes) == beat for source in sources
    )


def burst_elements(shape: tuple[int, ...]) -> int:
    """Elements by which producer and consumer of a map may differ from the even rate: a row at either end.

    Rows of a map of height 1 (vectors) come and go as a whole."""
    height, width, channels = shape
    return 2 * width * channels if height > 1 else width * channels


def deadlock_beats(graph: Graph, edge: str) -> int:
    """Least depth in beats (of the consumer's lanes) at which a per-frame edge cannot deadlock; 0 if none can.

    From `Layer.required` alone, of a folded streaming graph.  Before its consumer takes beat j of the edge, its other
    sinks must have got what goes with that beat.  What this needs is followed back to where the branches parted; all
    that came by there came by towards the edge as well, and but for the j - 1 beats that are gone lies on it.  The
    worst j counts.

    Exact where layers hold nothing on the way: a producer that parts the streams itself, by an eager fork (`Fork`, or
    a layer with several sources), in front of which the last of those beats waits while the long branch has it; a
    consumer that takes its sinks in lockstep (`Add`, `ReluError` and other element-wise layers); equal lanes.
    Elsewhere it may be more than the least: by the ring of rows of a `ConvGradient` and the word before it, which fill
    with the stash before the first error (in tests/test_buffers.py, four rows of 16 beats and a word of 2 beats, so 13
    beats suffice where this says 79); by what layers of a short branch hold; by the beat of a width adapter."""
    producer, source = graph.producers[edge]
    ((consumer, sink),) = graph.consumers[edge]
    if sink.tensor.kind.per_batch:
        return 0
    lying = 0
    for beat in range(1, sink.beats + 1):
        needed = _needed(graph, _beside(consumer, sink, beat))
        there = _passed(graph, needed).get(edge, 0)
        lying = max(lying, -(-there // sink.lanes) - (beat - 1))
    parts_here = len([port for port in producer.layer.sources if not port.tensor.kind.per_batch]) > 1
    return max(0, lying - 1) if parts_here and source.lanes == sink.lanes else lying


def frame_inputs(node: Node) -> list[tuple[Port, str]]:
    """Sinks that take a tensor with every frame, and the edges into them; but what stores give when it is wanted."""
    ports = [(node.layer.port(name), edge) for name, edge in node.inputs.items()]
    return [(port, edge) for port, edge in ports if not port.tensor.kind.of_parameter]


def _beside(consumer: Node, sink: Port, beat: int) -> dict[str, int]:
    """Edge -> elements that must have come at the other sinks for the consumer to take a beat of ``sink``."""
    layer, first = consumer.layer, (beat - 1) * sink.lanes + 1
    needs: dict[str, int] = {}
    for source in layer.sources:
        if not source.tensor.kind.per_batch:
            uses = range(source.lanes, source.tensor.elements + 1, source.lanes)
            enough = next((n for n in uses if layer.required(source.name, n).get(sink.name, 0) >= first), None)
            if enough is not None:
                for name, count in layer.required(source.name, enough).items():
                    needs[name] = min(needs.get(name, count), count)
    if not needs:
        # no result a frame: all sinks at the same share of the frame
        needs = {p.name: -(-beat * p.tensor.elements // sink.beats) for p, _ in frame_inputs(consumer)}
    return {edge: needs.get(p.name, 0) for p, edge in frame_inputs(consumer) if p.name != sink.name}


def _needed(graph: Graph, wanted: dict[str, int]) -> dict[str, int]:
    """Edge -> elements that must have passed so that ``wanted`` can: against the streams."""
    needed = dict(wanted)
    for node in reversed(graph.nodes):
        for name, edge in node.outputs.items():
            source = node.layer.port(name)
            count = needed.get(edge, 0)
            if source.tensor.kind.per_batch or not count:
                continue
            whole = min(source.tensor.elements, _whole_beats(count, source, graph.consumers[edge]))
            required = node.layer.required(name, whole)
            for sink, before in frame_inputs(node):
                needed[before] = max(needed.get(before, 0), required.get(sink.name, 0))
    return needed


def _whole_beats(count: int, source: Port, uses: tuple[tuple[Node, Port], ...]) -> int:
    """Elements rounded up to beats of all users, then of the source."""
    for _, sink in uses:
        count = max(count, -(-count // sink.lanes) * sink.lanes)
    return -(-count // source.lanes) * source.lanes


def _passed(graph: Graph, needed: dict[str, int]) -> dict[str, int]:
    """Edge -> elements that have to find room for ``needed`` to pass: with the streams.

    1. A node with several sources cannot give to one what it does not give to the others.
    2. What has so been forced upon a node flows on through it.
    3. All others may wait with what nobody needs yet."""
    passed = dict(needed)
    for node in graph.nodes:
        inputs = {sink.name: passed.get(edge, 0) for sink, edge in frame_inputs(node)}
        forced = any(passed.get(edge, 0) > needed.get(edge, 0) for _, edge in frame_inputs(node))
        sources = [(node.layer.port(name), edge) for name, edge in node.outputs.items()]
        sources = [(source, edge) for source, edge in sources if not source.tensor.kind.per_batch]
        if inputs and (forced or len(sources) > 1):
            for source, edge in sources:
                passed[edge] = max(passed.get(edge, 0), _producible(node.layer, source, inputs))
    return passed


def _producible(layer: Layer, source: Port, inputs: dict[str, int]) -> int:
    """The most elements of a source, in whole beats, that come of these elements at the sinks."""
    low, high = 0, source.beats
    while low < high:
        middle = (low + high + 1) // 2
        required = layer.required(source.name, middle * source.lanes)
        if all(required.get(name, 0) <= count for name, count in inputs.items()):
            low = middle
        else:
            high = middle - 1
    return low * source.lanes
