"""All layers by class name, from every module of `hdl.layers`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import hdl.layers
from hdl.layers.base import Layer


@cache
def load_layers() -> dict[str, type[Layer]]:
    """Class name -> concrete layer."""
    for module in pkgutil.iter_modules(hdl.layers.__path__):
        importlib.import_module(f"hdl.layers.{module.name}")
    return {kind.__name__: kind for kind in Layer.concrete() if kind.__module__.startswith("hdl.layers.")}
