"""The training graph as a model summary: layer, shape, weights, multiplications forward / error / gradient, stash."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dagtrain.graph.ir import Graph, Node, Role
from hdl.tensor import Kind


@dataclass(frozen=True)
class LayerSummary:
    """One forward layer with everything that serves it."""

    name: str
    kind: str
    # (height, width, channels) of the layer's output
    output_shape: tuple[int, ...]
    # weights, frozen ones included
    weights: int
    # multiplications a frame
    forward_macs: int
    error_macs: int
    gradient_macs: int
    # bits a frame kept for the backward pass
    stash_bits: int
    # nodes of the training graph that serve this layer
    nodes: int
    # of the weights, those that stay as they are
    frozen: int = 0


@dataclass(frozen=True)
class Summary:
    """A whole model."""

    name: str
    layers: tuple[LayerSummary, ...]

    @property
    def weights(self) -> int:
        """Weights, frozen ones included."""
        return sum(layer.weights for layer in self.layers)

    @property
    def frozen(self) -> int:
        """Of the weights, those that stay as they are."""
        return sum(layer.frozen for layer in self.layers)

    @property
    def forward_macs(self) -> int:
        """Multiplications a frame, forward."""
        return sum(layer.forward_macs for layer in self.layers)

    @property
    def error_macs(self) -> int:
        """Multiplications a frame, error back-propagation."""
        return sum(layer.error_macs for layer in self.layers)

    @property
    def gradient_macs(self) -> int:
        """Multiplications a frame, weight gradients."""
        return sum(layer.gradient_macs for layer in self.layers)

    @property
    def stash_bits(self) -> int:
        """Bits a frame kept for the backward pass."""
        return sum(layer.stash_bits for layer in self.layers)


def summarise(graph: Graph) -> Summary:
    """The summary of a training graph (forks and sums of errors are counted with the layer that caused them)."""
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault(node.layer_of, []).append(node)
    return Summary(graph.name, tuple(_layer(graph, name, nodes) for name, nodes in groups.items()))


def _layer(graph: Graph, name: str, nodes: list[Node]) -> LayerSummary:
    first = next(node for node in nodes if node.is_layer)
    ports = first.layer.sources or first.layer.sinks
    keys = {key for node in nodes for key in node.parameters.values()}
    return LayerSummary(
        name=name,
        kind=type(first.layer).__name__,
        output_shape=ports[0].tensor.shape,
        weights=sum(math.prod(graph.parameters[key].shape) for key in keys),
        forward_macs=first.layer.macs,
        error_macs=sum(node.layer.macs for node in nodes if node.role is Role.ERROR),
        gradient_macs=sum(node.layer.macs for node in nodes if node.role is Role.GRADIENT),
        stash_bits=sum(_stash_bits(nodes)),
        nodes=len(nodes),
        frozen=sum(math.prod(port.tensor.shape) for port in first.layer.held_parameters),
    )


def _stash_bits(nodes: Iterable[Node]) -> Iterable[int]:
    """Bits a frame at the stash sinks of backward engines."""
    for node in nodes:
        for port in node.layer.sinks:
            if port.tensor.kind is Kind.STASH and node.layer.sources:
                yield port.tensor.bits
