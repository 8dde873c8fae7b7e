"""All layers by class name, from every module below `hdl.layers`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

import hdl.layers
from hdl.layers.base import Layer

ROOM = hdl.layers.__name__ + "."


@cache
def load_layers() -> dict[str, type[Layer]]:
    """Class name -> concrete layer."""
    for module in pkgutil.walk_packages(hdl.layers.__path__, ROOM):
        importlib.import_module(module.name)
    return by_name([kind for kind in Layer.concrete() if kind.__module__.startswith(ROOM)])


def by_name(kinds: Iterable[type[Layer]]) -> dict[str, type[Layer]]:
    """Class name -> layer.  Raises `TypeError` where two have one name: a stored graph would mean either."""
    found: dict[str, type[Layer]] = {}
    for kind in kinds:
        other = found.setdefault(kind.__name__, kind)
        if other is not kind:
            raise TypeError(f"two layers are named {kind.__name__}: in {other.__module__} and in {kind.__module__}")
    return found
