"""Which maps are made again for the way back instead of waiting for it: as the user wants, or where it saves memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.recompute import kept_edge, kept_edges, recompute
from dagtrain.planning.costs import LEAST_DRAM_BLOCKS
from dagtrain.planning.ladder import SLOW_RATIO
from dagtrain.planning.levels import least_cycles
from dagtrain.planning.problem import Problem
from dagtrain.schedule.buffers import fifo_beats
from dagtrain.schedule.schedule import schedule
from hdl.costs.resources import Resources, fit
from hdl.errors import FoldingError
from hdl.parts.part import Part
from hdl.tensor import Kind


class Recompute(Enum):
    """Whether maps that follow from one that waits anyway are made of it again."""

    # where it saves as many block memories as make DRAM worth its units
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def with_recomputing(problem: Problem, wanted: Recompute) -> Graph:
    """The graph of a problem in which maps are made again as wanted.

    `AUTO` looks at FIFOs at the slow level that planning begins with."""
    if wanted is Recompute.NEVER:
        return problem.graph
    edges: Collection[str] = kept_edges(problem.graph)
    if wanted is Recompute.AUTO:
        parts = tuple({device.board.part.name: device.board.part for device in problem.cluster.devices}.values())
        saved = saved_blocks(problem.graph, edges, round(least_cycles(problem) * SLOW_RATIO), parts)
        edges = [edge for edge in edges if saved[edge] >= LEAST_DRAM_BLOCKS]
    return recompute(problem.graph, edges) if edges else problem.graph


def saved_blocks(graph: Graph, edges: Collection[str], cycles: int, parts: Sequence[Part]) -> dict[str, int]:
    """Edge that would wait alone (`recompute`) -> block memories of FIFOs that this saves on the part where it saves
    fewest, folded for these cycles a frame, nothing in DRAM; nothing where layers can't be so fast."""
    try:
        before = fold_graph.run(graph, cycles, parts)
        after = fold_graph.run(recompute.run(graph, edges), cycles, parts)
    except FoldingError:
        return dict.fromkeys(edges, 0)
    origins = {sink: edge for edge, sinks in kept_edges(graph).items() for sink in sinks}
    blocks = [(_blocks(before, cycles, part, origins), _blocks(after, cycles, part, {})) for part in parts]
    return {edge: min(was.get(edge, 0) - becomes.get(edge, 0) for was, becomes in blocks) for edge in edges}


def _blocks(folded: Graph, cycles: int, part: Part, origins: Mapping[tuple[str, str], str]) -> dict[str, int]:
    """Edge that waits -> block memories of the FIFOs of all that read on the way back what follows from it.

    ``origins``: of sinks that read what does not come of that edge in this graph."""
    depths, found = fifo_beats(folded, schedule(folded, cycles)), Counter[str]()
    for node in folded.nodes:
        for port in node.layer.sinks:
            if port.tensor.kind is Kind.STASH:
                edge = node.inputs[port.name]
                memory = Resources(memories={(depths[edge], port.payload_bits): 1})
                found[origins.get((node.name, port.name)) or kept_edge(folded, edge)] += fit(memory, part).m20k
    return found
