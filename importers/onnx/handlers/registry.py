"""The table of operators: which function turns which ONNX operator into layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importers.onnx.context import Lowering
    from importers.onnx.model import OnnxNode

Handler = Callable[["OnnxNode", "Lowering"], None]

HANDLERS: dict[str, Handler] = {}


def handles(*operators: str) -> Callable[[Handler], Handler]:
    """Register a handler for these operators."""

    def register(handler: Handler) -> Handler:
        for operator in operators:
            if operator in HANDLERS:
                raise ValueError(f"operator {operator} has two handlers")
            HANDLERS[operator] = handler
        return handler

    return register
