"""One function for each ONNX operator; importing this package fills the table `HANDLERS`.

A handler makes layers of one node and knows no other node; whatever it can't do is an `Unsupported` with a cure.
"""

from importers.onnx.handlers import add, concat, convolution, dense, elementwise, mul, normalisation, pooling, views
from importers.onnx.handlers.registry import HANDLERS

__all__ = [
    "HANDLERS",
    "add",
    "concat",
    "convolution",
    "dense",
    "elementwise",
    "mul",
    "normalisation",
    "pooling",
    "views",
]
