"""What became of a file: which operators became which layers, what was decided, what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagtrain.graph.ir import Graph
from hdl.errors import Problem
from importers.onnx.norm import NormChoice


@dataclass
class Operator:
    """One operator of the model once idioms are rewritten."""

    nodes: int = 0
    # kinds of layers, and how many of each
    layers: Counter[str] = field(default_factory=Counter)
    # nodes that have a problem, or follow from one
    lost: int = 0

    @property
    def text(self) -> str:
        """What became of it, in words."""
        made = [f"{kind} {count}" if count > 1 else kind for kind, count in sorted(self.layers.items())]
        if not made and not self.lost:
            return "nothing"
        return ", ".join([*made, *([f"{self.lost} not imported"] if self.lost else [])])


@dataclass(frozen=True)
class Attempt:
    """All that is known of a file once everything was tried."""

    # at Stage.FORWARD; None if there are problems
    graph: Graph | None = None
    # what was dropped or changed and the user may want to know
    notes: tuple[str, ...] = ()
    # of every convolution
    norms: tuple[NormChoice, ...] = ()
    # idiom -> how often it was spelt out
    idioms: Mapping[str, int] = field(default_factory=dict)
    # nodes on constants and shapes alone, computed ahead
    folded: int = 0
    operators: Mapping[str, Operator] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """For programs."""
        return {
            "layers": None if self.graph is None else len(self.graph.nodes),
            "operators": [
                {"operator": name, "nodes": item.nodes, "layers": dict(sorted(item.layers.items())), "lost": item.lost}
                for name, item in sorted(self.operators.items())
            ],
            "idioms": dict(self.idioms),
            "folded": self.folded,
            "norms": [{"node": item.node, "fate": item.fate.value, "why": item.why} for item in self.norms],
            "notes": list(self.notes),
            "problems": [{"where": item.where, "what": item.what, "cure": item.cure} for item in self.problems],
        }
