"""The levers that the user of `dagtrain place` wants, and the graph that is planned with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, cast, get_type_hints

from dagtrain.flow.place_options import PlaceOptions, parse_pins
from dagtrain.graph.ir import Graph
from dagtrain.passes.multiply_constants import multiply_constants, multiplying_nodes
from dagtrain.passes.ragged_tiles import ragged_tiles
from dagtrain.passes.share_statistics import share_statistics
from dagtrain.passes.small_buffers import small_buffers
from dagtrain.passes.spread_updates import spread_updates
from dagtrain.planning.problem import (
    Codec,
    DealStreams,
    MultiplyConstants,
    Problem,
    RaggedTiles,
    ShareStatistics,
    SmallBuffers,
)
from dagtrain.planning.recomputing import Recompute, with_recomputing
from dagtrain.planning.sharing import ShareWeights, with_shared_weights
from hdl.errors import DagtrainError
from hdl.errors import Problem as Wrong
from placement.problem.cluster import Cluster
from placement.search.search import SearchOptions


@dataclass(frozen=True)
class Levers:
    """Circuits that the planner may offer beside the plain ones."""

    share_weights: ShareWeights
    multiply_constants: MultiplyConstants
    recompute: Recompute
    ragged_tiles: RaggedTiles
    share_statistics: ShareStatistics
    deal_streams: DealStreams
    small_buffers: SmallBuffers
    codec: Codec


def levers_wanted(options: PlaceOptions) -> Levers:
    """The levers that the user wants.  Raises `DagtrainError` naming all that can't be wanted so."""
    problems: list[Wrong] = []
    chosen: dict[str, Enum] = {}
    for name, kind in get_type_hints(Levers).items():
        text, known = getattr(options, name), [mode.value for mode in kind]
        if text in known:
            chosen[name] = kind(text)
        else:
            where = f"--{name.replace('_', '-')} {text}"
            problems.append(Wrong("no such way", f"one of {', '.join(known)}", where))
    if problems:
        raise DagtrainError.listing("", problems)
    return Levers(**cast(dict[str, Any], chosen))


def sparing(options: PlaceOptions) -> PlaceOptions | None:
    """The options without the levers that take some block memories to save others, which may be the scarcer ones, where
    these were left to the planner; None where none was.

    A memory that two engines share lies on chip, where each of its own could lie in DRAM; a map that is made again
    takes a circuit, and FIFOs before it that may lie in no DRAM."""
    left: dict[str, Any] = {
        name: "never" for name in ("share_weights", "recompute") if getattr(options, name) == ShareWeights.AUTO.value
    }
    return replace(options, **left) if left else None


def with_levers(graph: Graph, cluster: Cluster, search: SearchOptions, options: PlaceOptions) -> Graph:
    """The graph that is planned: rewritten as the wanted levers say.  Constants that may go on multipliers where
    that is faster (`MultiplyConstants.AUTO`), and streams that may be dealt out, are left to the planner.

    Raises `DagtrainError` naming all levers, or all pins, that can't be."""
    levers = levers_wanted(options)
    if levers.ragged_tiles is RaggedTiles.AUTO:
        graph = ragged_tiles(graph)
    if levers.small_buffers is SmallBuffers.AUTO:
        graph = small_buffers(graph)
    graph = with_recomputing(Problem(graph, cluster, search, {}), levers.recompute)
    if options.update_frames != 1:
        graph = spread_updates(graph, options.update_frames)
    if levers.share_statistics is ShareStatistics.AUTO:
        graph = share_statistics(graph)
    pins = parse_pins(options.pins, graph, cluster)
    graph = with_shared_weights(Problem(graph, cluster, search, pins), levers.share_weights)
    if levers.multiply_constants is MultiplyConstants.ALWAYS:
        graph = multiply_constants(graph, tuple(multiplying_nodes(graph)))
    return graph
