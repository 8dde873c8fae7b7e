"""Shapes of small expressions, and where they stand in a model.

>>> x = Tensor("x")
>>> SILU = Op("Mul", x, Op("Sigmoid", x))
>>> for found in match(SILU, node.outputs[0], scene): found["x"]  # doctest: +SKIP

A pattern matches backwards from a tensor.  Inputs of `Add`, `Mul`, `Max`, `Min` match in any order.  A name stands for
the same tensor wherever it occurs; what is bound under a name is a tensor, for an `Op` its first result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations

from importers.onnx.model import Array, OnnxModel, OnnxNode

COMMUTATIVE = {"Add", "Mul", "Max", "Min"}
# by how much the number of a formula may be off in a file: half precision
NEAR = 1e-3

Found = Mapping[str, str]


@dataclass(frozen=True)
class Tensor:
    """Any tensor that is no constant."""

    name: str


@dataclass(frozen=True)
class Constant:
    """Any constant; with ``near``, one number close to it."""

    name: str = ""
    near: float | None = None


@dataclass(frozen=True, init=False)
class Op:
    """A node of one of these operators (separated by blanks) whose inputs match; further ones must be left out."""

    operators: tuple[str, ...]
    inputs: tuple[Pattern, ...]
    # under which its result is bound
    name: str

    def __init__(self, operators: str, *inputs: Pattern, name: str = "") -> None:
        object.__setattr__(self, "operators", tuple(operators.split()))
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "name", name)


@dataclass(frozen=True, init=False)
class Either:
    """One of several spellings."""

    options: tuple[Pattern, ...]

    def __init__(self, *options: Pattern) -> None:
        object.__setattr__(self, "options", options)


Pattern = Tensor | Constant | Op | Either


def number(value: float, name: str = "") -> Constant:
    """One number close to ``value``."""
    return Constant(name, value)


@dataclass(frozen=True)
class Scene:
    """A model, and the shapes of its tensors as far as they are known."""

    model: OnnxModel
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def producer(self, tensor: str) -> OnnxNode | None:
        """The node that makes a tensor."""
        return self.model.producers.get(tensor)

    def made(self, found: Found, name: str) -> OnnxNode:
        """The node whose result a pattern bound under ``name``."""
        return self.model.producers[found[name]]

    def constant(self, tensor: str) -> Array | None:
        """The value of a tensor, if it is known."""
        return self.model.constants.get(tensor)

    def number(self, tensor: str) -> float | None:
        """The one number that a tensor is, if it is known to be one."""
        value = self.model.constants.get(tensor)
        if value is None or value.size != 1 or value.dtype.kind not in "fiu":
            return None
        return float(value.reshape(()))

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """The shape of a tensor, if it is known."""
        return self.shapes.get(tensor)


def match(pattern: Pattern, tensor: str, scene: Scene) -> Iterator[Found]:
    """Every way in which a pattern matches, as names of its parts and the tensors that they are."""
    yield from _match(pattern, tensor, scene, {})


def first_match(pattern: Pattern, tensor: str, scene: Scene) -> Found | None:
    """The first of them."""
    return next(match(pattern, tensor, scene), None)


def _match(pattern: Pattern, tensor: str, scene: Scene, found: dict[str, str]) -> Iterator[dict[str, str]]:
    match pattern:
        case Either(options=options):
            for option in options:
                yield from _match(option, tensor, scene, found)
        case Tensor(name=name):
            if scene.constant(tensor) is None:
                yield from _bound(name, tensor, found)
        case Constant(name=name, near=near):
            value = scene.constant(tensor)
            if value is not None and (near is None or _is_near(scene.number(tensor), near)):
                yield from _bound(name, tensor, found)
        case Op():
            node = scene.producer(tensor)
            if node is not None and node.op in pattern.operators and node.outputs[0] == tensor:
                for bound in _bound(pattern.name, tensor, found):
                    yield from _inputs(pattern, node, scene, bound)


def _inputs(pattern: Op, node: OnnxNode, scene: Scene, found: dict[str, str]) -> Iterator[dict[str, str]]:
    given = node.inputs
    while given and not given[-1]:
        given = given[:-1]
    if len(given) != len(pattern.inputs):
        return
    for order in permutations(given) if node.op in COMMUTATIVE else (given,):
        yield from _in_order(pattern.inputs, order, scene, found)


def _in_order(
    patterns: tuple[Pattern, ...], tensors: tuple[str, ...], scene: Scene, found: dict[str, str]
) -> Iterator[dict[str, str]]:
    if not patterns:
        yield found
        return
    for bound in _match(patterns[0], tensors[0], scene, found):
        yield from _in_order(patterns[1:], tensors[1:], scene, bound)


def _bound(name: str, tensor: str, found: dict[str, str]) -> Iterator[dict[str, str]]:
    if not name:
        yield found
    elif found.get(name, tensor) == tensor:
        yield {**found, name: tensor}


def _is_near(value: float | None, wanted: float) -> bool:
    return value is not None and math.isclose(value, wanted, rel_tol=NEAR, abs_tol=NEAR * NEAR)
