"""One function for each ONNX operator; importing this package fills the table `HANDLERS`."""

from importers.onnx.handlers import add, concat, convolution, dense, elementwise, normalisation, pooling, views
from importers.onnx.handlers.registry import HANDLERS

__all__ = ["HANDLERS", "add", "concat", "convolution", "dense", "elementwise", "normalisation", "pooling", "views"]
