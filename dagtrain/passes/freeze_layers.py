"""Frozen layers: their parameters stay as the model brings them, as is usual where only the last layers are fine-tuned.

A frozen layer has no gradient and no update, and its weights stand in a memory that nobody writes.  Where nothing that
learns lies before, `dagtrain.passes.autodiff` lays no way back at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from dagtrain.graph.ir import Graph, GraphError, Node, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.widths import near
from hdl.errors import Problem
from hdl.layers.base import Layer
from hdl.layers.capabilities import frozen

# names that a message about a pattern shows
SHOWN = 5


@graph_pass(Stage.FORWARD, Stage.FORWARD)
def freeze_layers(graph: Graph, patterns: Sequence[str]) -> Graph:
    """The forward graph with the layers frozen whose names match one of the patterns (``*``, ``?``, ``[ab]``).

    Layers without parameters, or with none that is trained, are as they are.  Raises `GraphError` with all that is
    wrong: a pattern that no layer with parameters matches, a layer that can't be frozen, nothing left that learns."""
    weighted = {node.name: node for node in graph.nodes if node.layer.parameter_shapes()}
    problems: list[Problem | str] = []
    chosen: set[str] = set()
    for pattern in patterns:
        found = [name for name in weighted if fnmatchcase(name, pattern)]
        chosen.update(found)
        if not found:
            problems.append(_unmatched(graph, pattern, list(weighted)))
    made = {name: frozen(weighted[name].layer) for name in sorted(chosen) if weighted[name].layer.trained()}
    problems += [f"{name} ({type(weighted[name].layer).__name__}) can't be frozen" for name in made if not made[name]]
    if (
        not problems
        and patterns
        and not any(node.layer.trained() for node in weighted.values() if node.name not in made)
    ):
        problems.append(Problem("nothing is left that learns", "freeze fewer layers"))
    if problems:
        raise GraphError.listing("freeze", problems)
    return replace(graph, nodes=tuple(_changed(node, made.get(node.name)) for node in graph.nodes))


def _changed(node: Node, layer: Layer | None) -> Node:
    return node if layer is None else replace(node, layer=layer)


def _unmatched(graph: Graph, pattern: str, names: list[str]) -> Problem:
    """What is wrong with a pattern that no layer with parameters matches."""
    others = [node.name for node in graph.nodes if node.name not in names and fnmatchcase(node.name, pattern)]
    if others:
        return Problem(f"{pattern!r} matches only layers without weights: {', '.join(others[:SHOWN])}", _choice(names))
    return Problem(f"no layer matches {pattern!r}", near(pattern, names))


def _choice(names: list[str]) -> str:
    more = ", …" if len(names) > SHOWN else ""
    return f"layers with weights are {', '.join(names[:SHOWN])}{more}"
