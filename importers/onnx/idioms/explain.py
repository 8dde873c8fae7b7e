"""Idioms half recognised: where they break."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from importers.onnx.idioms.idiom import Idiom, Step
from importers.onnx.idioms.pattern import Scene
from importers.onnx.model import LOST, OnnxModel, OnnxNode
from importers.onnx.problems import Problems


def explain(
    model: OnnxModel,
    shapes: Mapping[str, tuple[int, ...]],
    idioms: Sequence[Idiom],
    known: Collection[str],
    problems: Problems,
) -> OnnxModel:
    """The model with `LOST` in place of nodes that mean an idiom and are no part of one; why goes to ``problems``.

    Nodes whose operator is ``known`` may stand for themselves."""
    told: set[str] = set()
    needless: set[str] = set()
    scene = Scene(model, shapes)
    for idiom in idioms:
        for node in model.nodes:
            if node.op in idiom.signs and node.op not in known:
                seen, what, cure = _broken(idiom, node, scene, needless)
                problems.add(str(node), what, cure)
                told.update(item.name for item in seen)
    if not told:
        return model
    nodes = tuple(_lost(node, needless, scene) if node.name in told else node for node in model.nodes)
    return replace(model, nodes=nodes).live()


def _lost(node: OnnxNode, needless: Collection[str], scene: Scene) -> OnnxNode:
    """`LOST` in place of a node, which reads no more what is ``needless``; the shape of what it makes stays known."""
    shape = scene.shape(node.outputs[0])
    inputs = tuple(name for name in node.inputs if name not in needless)
    return replace(node, op=LOST, inputs=inputs, attributes={} if shape is None else {"shape": list(shape)})


def _broken(idiom: Idiom, sign: OnnxNode, scene: Scene, needless: set[str]) -> tuple[list[OnnxNode], str, str]:
    """(the nodes that are recognised, what is wrong with them, the cure); tensors that had better be numbers become
    ``needless``."""
    seen = [sign]
    for index, step in enumerate(idiom.steps):
        readers = scene.model.readers(seen[-1].outputs[0])
        ends = len(readers) != 1 or readers[0].op not in step.operators
        if ends and seen[-1].op in idiom.last and _why(idiom, seen[-1], scene):
            break
        if len(readers) != 1:
            many = f"{seen[-1]} is read by {len(readers)} nodes"
            return seen, f"begins {idiom.name} spelt out, which breaks there: {many}", _cure(step)
        node = readers[0]
        if node.op not in step.operators:
            return seen, f"begins {idiom.name} spelt out, which breaks at {node}", _cure(step)
        computed = [
            name for name in node.inputs if name and name not in seen[-1].outputs and name not in scene.model.constants
        ]
        seen.append(node)
        if step.constant and computed:
            needless.update(computed)
            what = f"begins {idiom.name} whose {step.constant} is computed ({computed[0]}, read by {node})"
            return [*seen, *_rest(node, idiom.steps[index + 1 :], scene)], what, "export it with a number"
    cure = "export the operator itself, or in evaluation mode"
    return seen, f"is part of {idiom.name} spelt out up to {seen[-1]}, but {_reason(idiom, seen, scene)}", cure


def _rest(node: OnnxNode, steps: Sequence[Step], scene: Scene) -> Iterator[OnnxNode]:
    """The nodes behind one that follow some steps."""
    for step in steps:
        readers = scene.model.readers(node.outputs[0])
        if len(readers) != 1 or readers[0].op not in step.operators:
            return
        node = readers[0]
        yield node


def _reason(idiom: Idiom, seen: list[OnnxNode], scene: Scene) -> str:
    """What the idiom says of the nodes behind the last step, the first of which may be its last node."""
    node: OnnxNode | None = seen[-1]
    while node is not None and node.op in idiom.last:
        told = _why(idiom, node, scene)
        if told:
            return told
        readers = scene.model.readers(node.outputs[0])
        node = readers[0] if len(readers) == 1 else None
    return "its formula is another one"


def _why(idiom: Idiom, node: OnnxNode, scene: Scene) -> str:
    return "" if idiom.why is None else idiom.why(node, scene)


def _cure(step: Step) -> str:
    return f"{step.what} must follow"
