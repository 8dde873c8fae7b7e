"""One function for each ONNX operator, and one for each layer's way back; importing this package fills both tables from
all its modules.

A handler makes layers of one node and knows no other node; whatever it can't do is an `Unsupported` with a cure.
"""

import importlib
import pkgutil

from importers.onnx.handlers.registry import HANDLERS, WRITERS

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["HANDLERS", "WRITERS"]
