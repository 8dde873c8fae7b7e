"""The fast level: a plan simulated by events of what layers declare, with nothing emitted."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from dagtrain.graph.ir import Graph, Node
from dagtrain.progress import Progress
from dagtrain.schedule.wired import Wired
from dagtrain.simulate.events import RUNS, Events, simulate_events
from dagtrain.simulate.result import BatchWork, CableWork, Level, NodeWork, Simulation, Span, binding
from hdl.fixed import FloatArray
from hdl.tensor import Kind


def simulate_fast(wired: Wired, batches: int, clock_mhz: float, progress: Progress, *, runs: int = RUNS) -> Simulation:
    """Trains so many batches; cycles count from the host's first beat.  ``runs`` as of `simulate_events`.

    Raises `DeadlockError` where everything waits for something else."""
    batch, seen = wired.graph.recipe.batch, 0
    progress.begin("simulation", batches * batch)

    def on_frames(count: int) -> None:
        nonlocal seen
        progress.advance(count - seen)
        seen = count

    happened = simulate_events(wired, batches, runs=runs, on_frames=on_frames)
    progress.end()
    results = _results(wired.graph, happened)
    cycles, worked = math.ceil(results[-1]), math.ceil(happened.cycles)
    nodes, cables = _nodes(wired, happened), _cables(wired, happened)
    return Simulation(
        level=Level.FAST,
        clock_mhz=clock_mhz,
        batch=batch,
        cycles=cycles,
        worked_cycles=worked,
        frame_cycles=tuple(math.ceil(cycle) for cycle in results),
        nodes=nodes,
        cables=cables,
        batches=_batches(wired.graph, happened, results),
        binds=binding(nodes, cables, worked),
    )


def _results(graph: Graph, happened: Events) -> FloatArray:
    """When the results of each frame had come to the host."""
    ends = [happened.last[node.name] for node in graph.nodes if node.layer.sinks and not node.layer.sources]
    frames = happened.batches * graph.recipe.batch
    return np.asarray(np.maximum.reduce([end for end in ends if len(end) == frames]), np.float64)


def _nodes(wired: Wired, happened: Events) -> tuple[NodeWork, ...]:
    found = []
    for node in wired.graph.nodes:
        first, last = happened.first[node.name], happened.last[node.name]
        multipliers = int(node.layer.multipliers)
        busy = _busy_cycles(node) * float(wired.periods.get(node.name, 1)) * len(first)
        found.append(
            NodeWork(
                node=node.name,
                device=wired.graph.placed[node.name],
                per_batch=node.layer.works_per_batch,
                spans=tuple(Span(math.floor(a), math.ceil(b)) for a, b in zip(first, last, strict=True)),
                multipliers=multipliers,
                busy_multiplier_cycles=round(multipliers * busy),
            )
        )
    return tuple(found)


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
    begun = np.minimum.reduce([first for first in all_frames if len(first) == len(results)])
    updates = [
        happened.last[node.name]
        for node in graph.nodes
        if node.layer.works_per_batch and any(port.tensor.kind is Kind.WEIGHT for port in node.layer.sources)
    ]
    return tuple(
        BatchWork(
            first_cycle=math.floor(begun[number * batch]),
            first_result=math.ceil(results[number * batch]),
            last_result=math.ceil(results[(number + 1) * batch - 1]),
            last_weights=math.ceil(max(last[number] for last in updates)) if updates else None,
        )
        for number in range(happened.batches)
    )
