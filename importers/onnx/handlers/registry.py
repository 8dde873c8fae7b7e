"""The tables: which function turns which ONNX operator into layers, and which writes which layer as operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hdl.layers.base import Layer

if TYPE_CHECKING:
    from dagtrain.graph.ir import Node
    from importers.onnx.context import Lowering
    from importers.onnx.model import OnnxNode
    from importers.onnx.writing import Writing

Handler = Callable[["OnnxNode", "Lowering"], None]

Writer = Callable[["Node", "Writing"], None]

HANDLERS: dict[str, Handler] = {}
WRITERS: dict[type[Layer], Writer] = {}


def handles(*operators: str) -> Callable[[Handler], Handler]:
    """Register a handler for these operators."""

    def register(handler: Handler) -> Handler:
        for operator in operators:
            if operator in HANDLERS:
                raise ValueError(f"operator {operator} has two handlers")
            HANDLERS[operator] = handler
        return handler

    return register


def writes(*layers: type[Layer]) -> Callable[[Writer], Writer]:
    """Register what writes these layers as ONNX operators, so that the handlers read the same layers again."""

    def register(writer: Writer) -> Writer:
        for layer in layers:
            if layer in WRITERS:
                raise ValueError(f"layer {layer.__name__} has two writers")
            WRITERS[layer] = writer
        return writer

    return register
