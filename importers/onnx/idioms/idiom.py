"""What an idiom is: nodes that together spell out one operator, and what takes the place of the last of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from importers.onnx.idioms.pattern import Scene
from importers.onnx.model import Array, OnnxModel, OnnxNode


@dataclass(frozen=True)
class Rewrite:
    """Takes the place of the last node of an idiom: the nodes before it go where nobody else reads them."""

    # the last one makes what the idiom makes
    nodes: tuple[OnnxNode, ...]
    # new constants
    constants: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """Where an idiom goes on from a node that only it has."""

    operators: tuple[str, ...]
    # what stands there, in words: "a comparison"
    what: str
    # what its other input is, which must be a constant: "ratio"; "" if it has none, or a computed one
    constant: str = ""


@dataclass(frozen=True)
class Idiom:
    """One way, or several, of spelling out one operator."""

    # in words, for notes and problems: "dropout"
    name: str
    # operators of its last node
    last: tuple[str, ...]
    # what to put in place of a last node; None where the idiom doesn't stand before it
    rewrite: Callable[[OnnxNode, Scene], Rewrite | None]
    # operators that mean this idiom wherever they stand
    signs: tuple[str, ...] = ()
    # how it goes on from such an operator to its last node
    steps: tuple[Step, ...] = ()
    # what is wrong with a last node that all steps lead to; "" if that is not known
    why: Callable[[OnnxNode, Scene], str] | None = None


def in_place(
    node: OnnxNode, op: str, *inputs: str, attributes: Mapping[str, object] | None = None, module: str = ""
) -> OnnxNode:
    """A node that makes what ``node`` makes, under its name."""
    return replace(
        node, op=op, inputs=inputs, outputs=node.outputs[:1], attributes=dict(attributes or {}), module=module
    )


def apply(idiom: Idiom, model: OnnxModel, shapes: Mapping[str, tuple[int, ...]]) -> OnnxModel:
    """The model with every instance of an idiom rewritten; what only the idiom read is left to `OnnxModel.live`."""
    scene = Scene(model, shapes)
    nodes: list[OnnxNode] = []
    count = 0
    constants: dict[str, Array] = {}
    notes: dict[str, None] = {}
    for node in model.nodes:
        found = idiom.rewrite(node, scene) if node.op in idiom.last else None
        if found is None:
            nodes.append(node)
        else:
            nodes += found.nodes
            count += 1
            constants |= found.constants
            notes |= dict.fromkeys(found.notes)
    if not count:
        return model
    return replace(
        model,
        nodes=tuple(nodes),
        constants={**model.constants, **constants},
        notes=(*model.notes, *notes),
        rewritten=(*model.rewritten, *[idiom.name] * count),
    ).live()
