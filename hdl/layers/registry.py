"""All layers by class name, from every module below `hdl.layers`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import hdl.layers
from hdl.layers.base import Layer

ROOM = hdl.layers.__name__ + "."


@cache
def load_layers() -> dict[str, type[Layer]]:
    """Class name -> concrete layer."""
    for module in pkgutil.walk_packages(hdl.layers.__path__, ROOM):
        importlib.import_module(module.name)
    return {kind.__name__: kind for kind in Layer.concrete() if kind.__module__.startswith(ROOM)}
