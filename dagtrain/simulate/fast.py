"""The fast level: a plan simulated by events of what layers declare, with nothing emitted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dagtrain.graph.ir import Graph, Node
from dagtrain.progress import Progress
from dagtrain.schedule.wired import Wired
from dagtrain.simulate.events import RUNS, Events, simulate_events
from dagtrain.simulate.result import (
    BatchWork,
    CableWork,
    FullWork,
    Level,
    NodeWork,
    Simulation,
    Span,
    binding,
    full_work,
)
from hdl.fixed import FloatArray
from hdl.tensor import Kind


def simulate_fast(
    wired: Wired, batches: int, clock_mhz: float, progress: Progress, *, runs: int = RUNS, frames: int | None = None
) -> Simulation:
    """Trains so many batches; cycles count from the host's first beat.  ``runs`` and ``frames`` as of
    `simulate_events`: of a run that ends before its batch all that was done until then is told.

    Raises `DeadlockError` where everything waits for something else."""
    batch, seen = wired.graph.recipe.batch, 0
    progress.begin("simulation", frames or batches * batch)

    def on_frames(count: int) -> None:
        nonlocal seen
        progress.advance(count - seen)
        seen = count

    happened = simulate_events(wired, batches, runs=runs, frames=frames, on_frames=on_frames)
    progress.end()
    results = _results(wired.graph, happened)[: frames or batches * batch]
    cycles, worked = math.ceil(results[-1]), math.ceil(max(results[-1], happened.cycles))
    told = tuple(math.ceil(cycle) for cycle in results)
    until = math.inf if frames is None else cycles
    spans = {node.name: _spans(happened, node.name, until) for node in wired.graph.nodes}
    works = {node.name: _works(node, float(wired.periods.get(node.name, 1)), happened) for node in wired.graph.nodes}
    nodes, cables = _nodes(wired, spans, works, worked), _cables(wired, happened)
    return Simulation(
        level=Level.FAST,
        clock_mhz=clock_mhz,
        batch=batch,
        cycles=cycles,
        worked_cycles=worked,
        frame_cycles=told,
        nodes=nodes,
        cables=cables,
        batches=_batches(wired.graph, happened, results),
        binds=binding(nodes, cables, worked),
        full=_full(wired.graph, nodes, works, told) if batches == 1 else None,
    )


def _results(graph: Graph, happened: Events) -> FloatArray:
    """When the results of each frame had come to the host."""
    ends = [happened.last[node.name] for node in graph.nodes if node.layer.sinks and not node.layer.sources]
    frames = happened.batches * graph.recipe.batch
    return np.asarray(np.maximum.reduce([end for end in ends if len(end) == frames]), np.float64)


def _spans(happened: Events, node: str, until: float) -> tuple[Span, ...]:
    """Of the frames, or batches, that a node has done by a cycle."""
    ended = happened.ended[node]
    first, last = happened.first[node][:ended], happened.last[node][:ended]
    return tuple(Span(math.floor(a), math.ceil(b)) for a, b in zip(first, last, strict=True) if b <= until)


def _works(node: Node, period: float, happened: Events) -> Callable[[float], float]:
    """Cycles of the cluster in which a node's multipliers have worked until one of them: evenly in each frame, of which
    one that has begun takes as long as the one before it."""
    ended = happened.ended[node.name]
    first, last = happened.first[node.name], happened.last[node.name].copy()
    if 0 < ended < len(first):
        last[ended:] = first[ended:] + last[ended - 1] - first[ended - 1]
    whole = _busy_cycles(node) * period

    def until(cycle: float) -> float:
        begun = first <= cycle
        begun[ended + (ended > 0) :] = False
        return whole * float(np.minimum(1.0, (cycle - first[begun]) / np.maximum(1.0, (last - first)[begun])).sum())

    return until


def _nodes(
    wired: Wired, spans: Mapping[str, tuple[Span, ...]], works: Mapping[str, Callable[[float], float]], cycles: int
) -> tuple[NodeWork, ...]:
    return tuple(
        NodeWork(
            node=node.name,
            device=wired.graph.placed[node.name],
            per_batch=node.layer.works_per_batch,
            spans=spans[node.name],
            multipliers=int(node.layer.multipliers),
            busy_multiplier_cycles=round(int(node.layer.multipliers) * works[node.name](cycles)),
        )
        for node in wired.graph.nodes
    )


def _full(
    graph: Graph, nodes: Sequence[NodeWork], works: Mapping[str, Callable[[float], float]], results: Sequence[int]
) -> FullWork | None:
    """While every engine is at work."""
    at_results = {
        node.node: [round(node.multipliers * works[node.node](cycle)) for cycle in results]
        for node in nodes
        if node.multipliers
    }
    return full_work(nodes, at_results, results, {node: float(graph.busy(node)) for node in graph.by_name})


def _busy_cycles(node: Node) -> int:
    """Cycles of a frame, or a batch, in which a node's multipliers are at work: operations of an engine, beats that
    enter any other circuit."""
    strips = node.layer.strips
    if strips is not None:
        return sum(strips.cycles)
    per_batch = node.layer.works_per_batch
    sinks = [port.beats for port in node.layer.sinks if port.tensor.kind.per_batch == per_batch]
    return max(sinks, default=0)


def _cables(wired: Wired, happened: Events) -> tuple[CableWork, ...]:
    """By pairs of devices in the order of hops, credits the other way; where cables join devices, what went over each,
    whomever it was for."""
    if happened.passed:
        return tuple(
            CableWork(
                source=output.device,
                target=output.target,
                bits=count * wired.word_bits,
                bits_per_cycle=wired.word_bits * output.rate,
            )
            for output, count in happened.passed.items()
            if count
        )
    words: Counter[tuple[str, str]] = Counter()
    rates: dict[str, float] = {}
    for edge, hop in wired.hops.items():
        words[hop.source, hop.target] += happened.words[edge]
        words[hop.target, hop.source] += happened.credit_words[edge]
        rates |= {hop.source: hop.source_rate, hop.target: hop.target_rate}
    return tuple(
        CableWork(
            source=source,
            target=target,
            bits=count * wired.word_bits,
            bits_per_cycle=wired.word_bits * min(rates[source], rates[target]),
        )
        for (source, target), count in words.items()
        if count
    )


def _batches(graph: Graph, happened: Events, results: FloatArray) -> tuple[BatchWork, ...]:
    batch = graph.recipe.batch
    # what hosts send early waits for room
    all_frames = [happened.first[node.name] for node in graph.nodes if node.layer.sinks]
    begun = np.minimum.reduce([first for first in all_frames if len(first) == happened.batches * batch])
    whole = len(results) == happened.batches * batch
    updates = [
        happened.last[node.name]
        for node in graph.nodes
        if node.layer.works_per_batch and any(port.tensor.kind is Kind.WEIGHT for port in node.layer.sources)
    ]
    return tuple(
        BatchWork(
            first_cycle=math.floor(begun[number * batch]),
            first_result=math.ceil(results[number * batch]),
            last_result=math.ceil(results[min((number + 1) * batch, len(results)) - 1]),
            last_weights=math.ceil(max(last[number] for last in updates)) if updates and whole else None,
        )
        for number in range(happened.batches)
    )
