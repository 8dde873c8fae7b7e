"""Which forward and error engines share one weight memory: what the user wants, or where that saves block memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from fractions import Fraction

from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.share_weights import share_weights, sharing_nodes
from dagtrain.planning.choices import memory_bits
from dagtrain.planning.costs import LEAST_DRAM_BLOCKS
from dagtrain.planning.ladder import SLOW_RATIO
from dagtrain.planning.levels import least_cycles
from dagtrain.planning.problem import Problem
from hdl.costs.resources import Resources, fit
from hdl.errors import FoldingError
from hdl.layers.base import Layer
from hdl.layers.storage import Home
from hdl.parts.part import Part

# share of a cluster's block memories that weights may fill where engines share them: sums of gradients, maps and
# buffers want the rest
MOST_WEIGHTS = Fraction(1, 4)


class ShareWeights(Enum):
    """Whether forward and error engine of a layer have one weight memory, and stand on one device."""

    # where it saves as many block memories as make DRAM worth its units
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def with_shared_weights(problem: Problem, wanted: ShareWeights) -> Graph:
    """The graph of a problem in which engines share weights as wanted; pinned apart they never do.

    `AUTO` looks at the tiles of the slow level that planning begins with: engines share where that saves blocks, but
    not the largest weights of a network whose weights want more than `MOST_WEIGHTS` of them, where boards have DRAM:
    these pass by, once a frame for each engine."""
    if wanted is ShareWeights.NEVER:
        return problem.graph
    pairs = {
        name: lender
        for name, (_, lender) in sharing_nodes(problem.graph)
        if len({problem.pins[end] for end in (name, lender) if end in problem.pins}) < 2
    }
    if wanted is ShareWeights.AUTO:
        parts = tuple({device.board.part.name: device.board.part for device in problem.cluster.devices}.values())
        slow = round(least_cycles(problem) * SLOW_RATIO)
        saved = saved_blocks(problem.graph, pairs, slow, parts)
        pairs = {name: lender for name, lender in pairs.items() if saved[name] >= LEAST_DRAM_BLOCKS}
        for name in largest_weights(problem, pairs, slow):
            del pairs[name]
    return share_weights(problem.graph, tuple(pairs))


def largest_weights(problem: Problem, pairs: Mapping[str, str], cycles: int) -> list[str]:
    """Nodes that would borrow the largest weights, as many as it takes until the rest, one version of each, fill no
    more than `MOST_WEIGHTS` of all block memories; of engines that can have them outside at so many cycles a frame.
    None where a board has no DRAM."""
    usable = {device.name for device in problem.devices}
    boards = [device.board for device in problem.cluster.devices if device.name in usable]
    if not all(board.dram_bytes_per_s for board in boards):
        return []
    room = MOST_WEIGHTS * sum(board.m20k * board.part.m20k_bits for board in boards)
    bits = {name: weight_bits(problem.graph.by_name[lender].layer) for name, lender in pairs.items()}
    found: list[str] = []
    for name in sorted(bits, key=lambda name: (-bits[name], name)):
        if sum(bits.values()) <= room:
            break
        if all(_passes_by(problem.graph.by_name[end].layer, cycles) for end in (name, pairs[name])):
            found.append(name)
            del bits[name]
    return found


def _passes_by(layer: Layer, cycles: int) -> bool:
    """Whether an engine of so many cycles a frame can have its weights outside."""
    outside = layer.at(Home.DRAM)
    if outside is None:
        return False
    try:
        outside.fold(cycles)
    except FoldingError:
        return False
    return True


def weight_bits(layer: Layer) -> int:
    """Of the largest tensor that comes to a layer once a batch."""
    return max(map(memory_bits, (*layer.sinks, *layer.held_parameters)), default=0)


def saved_blocks(graph: Graph, pairs: Mapping[str, str], cycles: int, parts: Sequence[Part]) -> dict[str, int]:
    """Node that would borrow weights, with who would lend them -> block memories that saves on the part where it saves
    fewest, folded for these cycles a frame; below 0 where it costs some; nothing where they can't be so fast."""
    try:
        apart = fold_graph.run(graph, cycles, parts).by_name
        shared = fold_graph.run(share_weights(graph, tuple(pairs)), cycles, parts)
    except FoldingError:
        return dict.fromkeys(pairs, 0)
    both = {node.name: node.layer for node in shared.circuits}
    return {
        name: min(
            _blocks(apart[name].layer, part) + _blocks(apart[lender].layer, part) - _blocks(both[lender], part, True)
            for part in parts
        )
        for name, lender in pairs.items()
    }


def _blocks(layer: Layer, part: Part, dual: bool = False) -> int:
    """Of the memories with an image."""
    shapes = {(memory.depth, memory.width): 1 for memory in layer.memories()}
    return fit(Resources(dual_memories=shapes) if dual else Resources(memories=shapes), part).m20k
