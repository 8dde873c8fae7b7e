"""From a checked ONNX model to the forward graph: one handler an operator, found by a decorator."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from dagtrain.ir import Graph, Node, Stage, verify
from hdl.errors import DagtrainError
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.layers.host import HostInput
from hdl.layers.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.recipe import Recipe
from importers.onnx.load import Constant, Model, Operation, Problems


class NormMode(Enum):
    """What becomes of normalisation."""

    # batch normalisation becomes online normalisation, also where it had been folded into a convolution
    ONLINE = "online"
    # batch normalisation is folded into the convolution before it; biases stay
    NONE = "none"
    # batch normalisation becomes online normalisation, a bias stays a bias
    AS_IS = "as-is"


@dataclass(frozen=True)
class Value:
    """A tensor of the forward graph."""

    edge: str
    # (height, width, channels)
    shape: tuple[int, int, int]
    # the ONNX tensor is (N, channels * height * width), in ONNX's order
    flat: bool = False


Handler = Callable[["Translation", Operation], None]

HANDLERS: dict[str, Handler] = {}


def handles(*operators: str) -> Callable[[Handler], Handler]:
    """Register a function as the handler of these operators."""

    def register(handler: Handler) -> Handler:
        for operator in operators:
            HANDLERS[operator] = handler
        return handler

    return register


class Unsupported(Exception):
    """A node that cannot be translated; the message says what and the cure."""


@dataclass
class Translation:
    """A forward graph in the making."""

    model: Model
    norm: NormMode
    recipe: Recipe
    problems: Problems
    values: dict[str, Value] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    parameters: dict[str, FloatArray] = field(default_factory=dict)
    # tensor -> number of operations that read it
    uses: Counter[str] = field(default_factory=Counter)

    def value(self, operation: Operation, index: int = 0) -> Value:
        """The tensor at an input that must depend on the image."""
        name = operation.inputs[index] if index < len(operation.inputs) else ""
        if name not in self.values:
            kind = "is a constant" if name in self.model.constants else "was not translated"
            raise Unsupported(f"input {index} ({name or 'absent'}) {kind}")
        return self.values[name]

    def constant(self, operation: Operation, index: int, default: Constant | None = None) -> Constant:
        """The value of an input that must not depend on the image."""
        name = operation.inputs[index] if index < len(operation.inputs) else ""
        if name == "" and default is not None:
            return default
        if name not in self.model.constants:
            raise Unsupported(f"input {index} ({name or 'absent'}) is not a constant; freeze it in the export")
        return self.model.constants[name]

    def add(
        self,
        operation: Operation,
        layer: Layer,
        inputs: Mapping[str, Value],
        weights: Mapping[str, Constant] | None = None,
        suffix: str = "",
    ) -> Value:
        """Add a node named after the operation; returns its first output."""
        name = self.unique(operation.name + suffix)
        outputs = {port.name: f"{name}.{port.name}" for port in layer.sources}
        keys = {sink: f"{name}.{sink}" for sink in weights or {}}
        for sink, array in (weights or {}).items():
            self.parameters[keys[sink]] = np.asarray(array, np.float64)
        self.nodes[name] = Node(name, layer, {port: item.edge for port, item in inputs.items()}, outputs, keys)
        first = layer.sources[0]
        height, width, channels = first.tensor.shape
        return Value(outputs[first.name], (height, width, channels))

    def unique(self, wanted: str) -> str:
        """A Verilog-safe name without dots that no node has yet."""
        name = re.sub(r"\W+", "_", wanted).strip("_") or "node"
        name = name if name[0].isalpha() else f"n{name}"
        taken, number = name, 1
        while taken in self.nodes:
            number += 1
            taken = f"{name}_{number}"
        return taken

    def result(self, operation: Operation, value: Value) -> None:
        """The operation's first output is this tensor."""
        self.values[operation.outputs[0]] = value


def translate(model: Model, norm: NormMode, recipe: Recipe) -> Graph:
    """The verified forward graph, with softmax and cross-entropy behind its output.

    Raises `ImportProblem` listing everything that cannot be translated, unknown operators with their counts."""
    problems = Problems(model.file)
    unknown = Counter(item.op for item in model.operations if item.op not in HANDLERS)
    for operator, number in sorted(unknown.items()):
        first = next(item.name for item in model.operations if item.op == operator)
        problems.add(
            f"operator {operator} is not supported ({number} of {len(model.operations)} nodes, first {first}); "
            f"supported are {', '.join(sorted(HANDLERS))}"
        )
    translation = Translation(model, norm, recipe, problems)
    translation.uses.update(name for item in model.operations for name in item.inputs)
    shape = model.shapes[model.input]
    source = HostInput(height=shape[2], width=shape[3], channels=shape[1])
    image = Operation("image", "Input", (), (model.input,))
    translation.result(image, translation.add(image, source, {}))
    _translate_all(translation, unknown)
    problems.raise_if_any()
    return _finish(translation)


def _translate_all(translation: Translation, unknown: Mapping[str, int]) -> None:
    """All operations in order; one that fails is reported once, not again by all that read it."""
    failed: set[str] = set()
    for item in translation.model.operations:
        if item.op in unknown or any(name in failed for name in item.inputs):
            failed.update(item.outputs)
            continue
        try:
            HANDLERS[item.op](translation, item)
        except (Unsupported, DagtrainError, ValueError) as error:
            translation.problems.add(f"node {item.name} ({item.op}): {error}")
            failed.update(item.outputs)


def _finish(translation: Translation) -> Graph:
    model = translation.model
    logits = translation.values[model.output]
    height, width, channels = logits.shape
    if (height, width) != (1, 1):
        translation.problems.add(
            f"output {model.output} is a map of {height}x{width}, not a vector of classes; only classifiers can be trained"
        )
        translation.problems.raise_if_any()
    loss = Operation("loss", "Loss", (), ())
    translation.add(loss, SoftmaxCrossEntropy(classes=channels), {"x": logits})
    graph = Graph(model.name, tuple(translation.nodes.values()), translation.recipe, translation.parameters)
    return verify(graph.with_nodes(graph.nodes), Stage.FORWARD)
