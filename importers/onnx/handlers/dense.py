"""Gemm and MatMul: fully connected layers, which are convolutions whose kernel covers the map."""

from __future__ import annotations

import dataclasses

import numpy as np

from hdl.fixed import FloatArray
from hdl.layers.conv.gemm import gemm
from hdl.layers.pointwise.bias import Bias
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.registry import handles
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported


@handles("Gemm")
def general_product(node: OnnxNode, state: Lowering) -> None:
    """alpha A B + beta C, with A the network's tensor; the scalars go into the weights."""
    attributes = Attributes(node)
    attributes.expect("transA", 0)
    transposed = attributes.get("transB", 0)
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    attributes.finish()
    weight = state.weight(node, 1)
    name = node.label
    y = _dense(node, state, _times(alpha, weight if transposed else weight.T), name)
    if state.has(node, 2):
        filters = y.map[2]
        vector = beta * state.weight(node, 2)
        if vector.size not in (1, filters) or (vector.ndim > 1 and vector.shape[-1] != vector.size):
            raise Unsupported(f"C of shape {list(vector.shape)} meets {filters} outputs", "export a bias of one row")
        layer = Bias(height=1, width=1, channels=filters, recipe=state.recipe)
        values = np.broadcast_to(vector.reshape(-1), (filters,)).copy()
        y = state.emit(node, layer, {"x": y}, {"b": values}, f"{name}_bias", view=y.shape)
    state.give(node, y)


@handles("MatMul")
def product(node: OnnxNode, state: Lowering) -> None:
    """A B, with A the network's tensor; an addition of a constant after it becomes the bias."""
    Attributes(node).finish()
    weight = state.weight(node, 1)
    state.give(node, _dense(node, state, weight.T, node.label))


def _times(factor: float, weight: FloatArray) -> FloatArray:
    """The product; weights of gigabytes are not copied for a factor of 1."""
    return weight if factor == 1 else factor * weight


def _dense(node: OnnxNode, state: Lowering, weight: FloatArray, name: str) -> Value:
    """``weight`` is (outputs, features), features in ONNX's order (channel, row, column)."""
    x = state.vector_of(node)
    height, width, channels = x.map
    if weight.ndim != 2 or weight.shape[1] != x.shape[1]:
        raise Unsupported(f"weights of shape {list(weight.shape)} meet {x.shape[1]} features", "export again")
    filters = weight.shape[0]
    layer = gemm(height, width, channels, filters, state.recipe)
    kernel = np.ascontiguousarray(weight.reshape(filters, channels, height, width))
    y = state.emit(node, layer, {"x": x}, {"w": kernel}, name)
    return dataclasses.replace(y, shape=(state.batch, filters))
