"""The one way through which every pass goes: what it requires is verified before, what it ensures after.

    graph = insert_forks(calibrate(differentiate(forward), batches))

A pass is a function Graph -> Graph with `graph_pass` above it; to call it is to `apply` it.  `Pass.run` is the function
alone, for whoever only wants to know what a graph would cost: planning folds a network hundreds of times, reads
numbers off it and throws it away.  The graph that is built in the end is folded once more, by `apply`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, Generic, ParamSpec

from dagtrain.graph.ir import G, Graph, Stage, verify

P = ParamSpec("P")


@dataclass(frozen=True)
class Pass(Generic[P, G]):
    """A function from graphs of one stage to graphs of another, and how they are checked."""

    # without any check of either graph
    run: Callable[Concatenate[Graph, P], G]
    # what the graph given must promise
    requires: Stage
    # what the graph made promises
    ensures: Stage

    def __call__(self, graph: Graph, *args: P.args, **kwargs: P.kwargs) -> G:
        return apply(self, graph, *args, **kwargs)


def apply(step: Pass[P, G], graph: Graph, *args: P.args, **kwargs: P.kwargs) -> G:
    """What the pass makes of a graph, both verified; ``args`` are the pass's own.

    Raises `GraphError` with all breaches of the stage that the graph must have or the stage that it gets, and what
    the pass raises."""
    return verify(step.run(verify(graph, step.requires), *args, **kwargs), step.ensures)


def graph_pass(requires: Stage, ensures: Stage) -> Callable[[Callable[Concatenate[Graph, P], G]], Pass[P, G]]:
    """Makes a pass of a function."""

    def made(run: Callable[Concatenate[Graph, P], G]) -> Pass[P, G]:
        found = Pass(run, requires, ensures)
        object.__setattr__(found, "__doc__", run.__doc__)
        return found

    return made
