"""Room for words at senders, where ports of a placement are full.

A plan counts the words that pass a port in a frame's time, and takes a port that has time for all of them to let them
pass when they come.  Streams take turns there, though, and an engine whose words wait for their turn waits too, which
costs a pipeline of engines that work nearly all the time some per cent where many ports are full
(`benchmarks/full_ports.py`).  Words that may wait at the sender take that up, with receivers that are as deep as their
block memories (`dagtrain.emission.links.held_words`).  So a placement found is given such room where it needs it, of
what it leaves free: no search has to count it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dagtrain.graph.ir import Graph
from dagtrain.passes.queue_words import Room
from dagtrain.planning.choices import plan_choices
from dagtrain.planning.fifo_costs import queue_resources
from dagtrain.schedule.batch_time import busy_ports, slowest_engine
from dagtrain.schedule.network import Hop, PortEnd
from dagtrain.schedule.wired import Wired
from hdl.costs.estimate import Contents
from hdl.costs.resources import fit
from hdl.memory import BLOCK_ROWS, LOGIC_MEMORY_WORDS
from hdl.parts.catalogue import part
from placement.problem.plan import Plan

# share of a frame's time from which on a port that is busy keeps words waiting, and an engine that works can't make up
# for its rests
BUSY = 0.85
# words a frame of streams that have such room, at least: fewer wait for a short time
LEAST_WORDS = 64


def edges_that_wait(laid: Wired, frame_cycles: float) -> list[str]:
    """The edges whose words are to have room at their senders where memories allow it: streams of frames that pass a
    full port, or output to a cable, at so many cycles a frame; those of the most words first.  None where ports alone
    are that slow, and all engines rest for long."""
    if slowest_engine(laid.graph, laid.periods) <= BUSY * frame_cycles:
        return []
    full = {end for end, cycles in busy_ports(laid.graph, laid.hops).items() if cycles > BUSY * frame_cycles}
    found: dict[str, float] = {}
    for edge, _producer, source, _consumer, _sink in laid.graph.streams:
        hop = laid.hops.get(edge)
        if hop is None or source.tensor.kind.per_batch or not full.intersection(ends_of(hop)):
            continue
        words = -(-source.elements // hop.word) * float(laid.graph.passing(edge))
        if words >= LEAST_WORDS:
            found[edge] = words
    return sorted(found, key=lambda edge: (-found[edge], edge))


def ends_of(hop: Hop) -> Iterator[PortEnd]:
    """What words take their turns at on their way."""
    yield hop.source, True
    yield hop.target, False
    yield from hop.way


def with_room(edges: Iterable[str], laid: Wired, plan: Plan, estimator: Contents) -> dict[str, int]:
    """Edge -> words for which there is room at its sender, of these in turn, in what a plan leaves free of devices:
    those of block memories as wide as can be, else of memories made of logic."""
    free = {use.device: (use.m20k_capacity - use.m20k, use.alm_capacity - use.alm) for use in plan.devices}
    parts = {use.device: part(use.part) for use in plan.devices}
    found: dict[str, int] = {}
    for edge in edges:
        hop, width = laid.hops[edge], laid.graph.tensor(edge).fixed.width
        for words in (BLOCK_ROWS, LOGIC_MEMORY_WORDS):
            taken = fit(queue_resources(hop.word * width, words, estimator), parts[hop.source])
            left = free[hop.source][0] - taken.m20k, free[hop.source][1] - taken.alm
            if min(left) >= 0:
                free[hop.source], found[edge] = left, words
                break
    return found


def sources_of(rooms: Mapping[str, int], graph: Graph) -> dict[str, tuple[Room, ...]]:
    """Node -> its sources that these edges begin at, and the words of each."""
    found: dict[str, tuple[Room, ...]] = defaultdict(tuple)
    for edge, words in rooms.items():
        producer, source = graph.producers[edge]
        found[producer.name] += ((source.name, words),)
    return dict(found)


def differ_in_room_alone(plan: Plan, other: Plan) -> bool:
    """Whether two plans are alike, and as fast inside a batch, but for words that may wait at senders."""
    choices = [
        {name: replace(choice, queued=()) for name, choice in plan_choices(each).items()} for each in (plan, other)
    ]
    return plan.cycles_per_frame == other.cycles_per_frame and choices[0] == choices[1]
