"""Room at senders: words of some streams wait there for their turn at a full port, and their engines work on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from dagtrain.graph.ir import Graph, Stage
from dagtrain.passes.apply import graph_pass
from hdl.errors import DagtrainError, Problem

# a source, and words that may wait at its sender
Room = tuple[str, int]


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def queue_words(graph: Graph, sources: Mapping[str, Collection[Room]]) -> Graph:
    """The streaming graph in which so many words of these sources, by node, may wait at their senders, and of no
    others.

    Raises `DagtrainError` that lists nodes and sources that there are not, and numbers of words that are none."""
    problems, queued = [], dict[str, int]()
    for name, rooms in sources.items():
        outputs = graph.by_name[name].outputs if name in graph.by_name else {}
        for port, words in rooms:
            where = f"{name}.{port}"
            problems += [Problem("no such source", where=where)] if port not in outputs else []
            problems += [Problem(f"{words} words can't wait", "let 1 or more", where)] if words < 1 else []
            queued |= {outputs[port]: words} if port in outputs else {}
    if problems:
        raise DagtrainError.listing(f"graph {graph.name}", problems)
    return replace(graph, queued=queued)
