"""What handlers see of the world: tensors of the network, constants, attributes, and the graph in the making."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from dagtrain.graph.ir import Node, Role
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.recipe import Recipe
from importers.onnx.model import Array, OnnxModel, OnnxNode
from importers.onnx.names import Names
from importers.onnx.normalise import infer_shapes
from importers.onnx.problems import Problems, Unsupported


@dataclass(frozen=True)
class Value:
    """A tensor of the network: an edge, and the shape under which ONNX sees it.

    ONNX numbers elements (batch, channel, row, column); every ``shape`` is a view of that order, so a flattened map is
    the same edge with another shape."""

    edge: str
    # height, width, channels: what the edge carries
    map: tuple[int, int, int]
    # in ONNX, the batch included
    shape: tuple[int, ...]
    # no layer makes it, because of a problem that is told already; all that is known is its shape, as ONNX has it
    is_guess: bool = False


class Lost(Exception):
    """An input of this node comes from a node that has a problem of its own."""


class Attributes:
    """Attributes of one node, read by name; what nobody has read in the end is not supported."""

    def __init__(self, node: OnnxNode) -> None:
        self._given = dict(node.attributes)

    def get(self, name: str, default: Any) -> Any:
        """The attribute, or its default."""
        return self._given.pop(name, default)

    def expect(self, name: str, *allowed: Any) -> None:
        """The attribute must be absent or have one of these values."""
        value = self._given.pop(name, allowed[0])
        if value not in allowed:
            wanted = " or ".join(map(str, allowed))
            raise Unsupported(f"{name}={value} is not supported", f"export with {name}={wanted}")

    def ignore(self, *names: str) -> None:
        """These have no meaning for training here."""
        for name in names:
            self._given.pop(name, None)

    def finish(self) -> None:
        """`Unsupported` if an attribute was not read."""
        if self._given:
            listed = ", ".join(f"{name}={value}" for name, value in sorted(self._given.items()))
            raise Unsupported(f"attribute {listed} is not supported", "export without it")


@dataclass
class Lowering:
    """The forward graph in the making; what handlers see of the world."""

    model: OnnxModel
    recipe: Recipe
    problems: Problems
    nodes: list[Node] = field(default_factory=list)
    parameters: dict[str, FloatArray] = field(default_factory=dict)
    # see `Graph.carried`
    carried: dict[str, dict[str, FloatArray]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    names: Names = field(default_factory=Names)
    # ONNX tensor -> value; None where its node had a problem
    values: dict[str, Value | None] = field(default_factory=dict)
    # tensors that follow from constants and shapes alone, though they could not be computed
    fixed: set[str] = field(default_factory=set)
    # weight that can't be copied -> node that took it
    takers: dict[str, str] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor -> its shape as far as ONNX knows, for what follows from a node that has a problem."""
        return infer_shapes(self.model)

    def guess(self, node: OnnxNode) -> None:
        """What is known of the results of a node that made none: the map of an input of the same shape, or what a shape
        of four axes says."""
        given = [value for name in node.inputs if (value := self.values.get(name)) is not None]
        for name in node.outputs:
            shape = self.shapes.get(name)
            if not name or shape is None or self.values.get(name) is not None:
                continue
            like = next((value.map for value in given if value.shape == shape), None)
            if like is None and len(shape) == 4 and shape[0] == self.batch and min(shape) > 0:
                like = (shape[2], shape[3], shape[1])
            if like is not None:
                self.values[name] = Value(name, like, shape, is_guess=True)

    @property
    def batch(self) -> int:
        """ONNX's batch, by which views are checked."""
        return self.model.image_shape[0]

    # ---- what handlers read

    def value(self, node: OnnxNode, index: int = 0) -> Value:
        """The tensor of the network at an input."""
        name = node.inputs[index]
        if name in self.model.constants:
            raise Unsupported(f"input {index} ({name}) is a constant", "this operator needs the network's tensor there")
        value = self.values.get(name)
        if value is None:
            raise Lost
        return value

    def has(self, node: OnnxNode, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(node.inputs) and node.inputs[index] != ""

    def is_constant(self, node: OnnxNode, index: int) -> bool:
        """Whether an input is there and known."""
        return self.has(node, index) and node.inputs[index] in self.model.constants

    def constant(self, node: OnnxNode, index: int) -> Array:
        """The known value at an input."""
        name = node.inputs[index]
        if name not in self.model.constants:
            if self.values.get(name) is None:
                raise Lost
            raise Unsupported(f"input {index} ({name}) is computed by the network", "it must be a constant")
        return self.model.constants[name]

    def number(self, node: OnnxNode, index: int) -> float:
        """The one number that is known at an input."""
        value = self.constant(node, index)
        if value.size != 1 or value.dtype.kind not in "fiub":
            name, shape = node.inputs[index], "x".join(map(str, value.shape))
            raise Unsupported(
                f"input {index} ({name}) is of shape {shape or '()'} and {value.dtype}", "it must be a number"
            )
        return float(value.reshape(()))

    def weight(self, node: OnnxNode, index: int) -> FloatArray:
        """A trained parameter.  Equal vectors that an exporter merged are copied; weights tied on purpose are not."""
        name = node.inputs[index]
        value = np.asarray(self.constant(node, index), np.float64)
        if value.size and np.ptp(value) > 0 and self.takers.setdefault(name, node.name) != node.name:
            raise Unsupported(f"shares weights {name} with {self.takers[name]}", "export with a weight for each node")
        return value

    def map_of(self, node: OnnxNode, index: int = 0) -> Value:
        """A tensor that ONNX sees as (batch, channels, height, width)."""
        value = self.value(node, index)
        height, width, channels = value.map
        if value.shape == (self.batch, channels, height, width) or (height == width == 1 and is_vector(value.shape)):
            return value
        if len(value.shape) == 2:
            what = f"input {index} of shape {list(value.shape)} is a flattened map of {channels}x{height}x{width}"
            raise Unsupported(what, "put it before Flatten or Reshape: behind it each pixel counts as a channel")
        raise Unsupported(
            f"input {index} of shape {list(value.shape)} is a reshaped map of {channels}x{height}x{width}",
            "reshapes that move elements between channels, rows and columns are not supported",
        )

    def vector_of(self, node: OnnxNode, index: int = 0) -> Value:
        """A tensor that ONNX sees as (batch, features)."""
        value = self.value(node, index)
        if len(value.shape) != 2:
            raise Unsupported(f"input {index} has shape {list(value.shape)}", "flatten it to (batch, features) before")
        return value

    def learns(self, value: Value) -> bool:
        """Whether anything that a tensor comes from is trained; else it is data, prepared perhaps."""
        makers = {made: node for node in self.nodes for made in node.outputs.values()}
        waiting, seen = [value.edge], {value.edge}
        while waiting:
            maker = makers.get(waiting.pop())
            # of a guess nobody knows
            if maker is None or maker.layer.trained():
                return True
            fresh = set(maker.inputs.values()) - seen
            seen |= fresh
            waiting += fresh
        return False

    # ---- what handlers make

    def add(
        self,
        name: str,
        layer: Layer,
        inputs: Mapping[str, Value],
        weights: Mapping[str, FloatArray] | None = None,
    ) -> dict[str, str]:
        """Add a layer under a name like ``name``; returns its edges by source."""
        unique = self.names.take(name)
        shapes = layer.parameter_shapes()
        for sink, value in (weights or {}).items():
            if value.shape != shapes[sink]:
                raise Unsupported(f"weights of shape {list(value.shape)} do not fit {shapes[sink]}", "export again")
        keys = {sink: f"{unique}.{sink}" for sink in weights or {}}
        edges = {port.name: f"{unique}.{port.name}" for port in layer.sources}
        self.parameters.update((keys[sink], _compact(value)) for sink, value in (weights or {}).items())
        sinks = {port: value.edge for port, value in inputs.items()}
        self.nodes.append(Node(unique, layer, sinks, edges, keys, Role.forward(layer)))
        return edges

    def emit(
        self,
        node: OnnxNode,
        layer: Layer,
        inputs: Mapping[str, Value],
        weights: Mapping[str, FloatArray] | None = None,
        name: str = "",
        view: tuple[int, ...] | None = None,
    ) -> Value:
        """Add a layer whose source ``y`` is a map; its ONNX shape is ``view`` or (batch, channels, height, width)."""
        edges = self.add(name or node.label, layer, inputs, weights)
        height, width, channels = layer.port("y").tensor.shape
        shape = view or (self.batch, channels, height, width)
        return Value(edges["y"], (height, width, channels), shape)

    def give(self, node: OnnxNode, value: Value, index: int = 0) -> None:
        """An output of a node."""
        self.values[node.outputs[index]] = value

    def see_as(self, node: OnnxNode, shape: Iterable[int]) -> None:
        """The output is the first input under another shape."""
        value = self.value(node)
        view = tuple(int(size) for size in shape)
        if math.prod(view) != math.prod(value.shape):
            raise Unsupported(f"reshapes {list(value.shape)} to {list(view)}", "the numbers of elements differ")
        if not view or view[0] != self.batch:
            raise Unsupported(
                f"reshapes {list(value.shape)} (batch {self.batch}) to {list(view)}",
                "a reshape must leave the batch, the first dimension, alone",
            )
        self.give(node, replace(value, shape=view))


def _compact(values: FloatArray) -> FloatArray:
    """The same numbers in float32, as files have them, unless that would round."""
    small = values.astype(np.float32)
    return cast(FloatArray, small) if np.array_equal(small, values) else values


def is_vector(shape: tuple[int, ...]) -> bool:
    """Whether a view is (batch, features), perhaps with further dimensions of size 1."""
    return len(shape) >= 2 and all(size == 1 for size in shape[2:])
