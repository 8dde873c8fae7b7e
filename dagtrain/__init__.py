"""dagtrain: from an ONNX model to streaming FPGA hardware that trains it, layer-parallel, on a cluster.

In the root stands what every room uses, whole files, progress, rates, threads, and the command line, which uses all
rooms; whatever knows a graph, a plan, a circuit or a step has a room of its own (docs/architecture.md draws them).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagtrain.api import Network as Network
    from dagtrain.api import load as load

__version__ = "0.1.0"
# of `dagtrain.api`
PUBLIC = ("Network", "load")


def __getattr__(name: str) -> object:
    """`dagtrain.load` and `dagtrain.Network`, which bring all rooms with them: only who asks waits for that."""
    if name in PUBLIC:
        return getattr(import_module("dagtrain.api"), name)
    raise AttributeError(f"module 'dagtrain' has no attribute {name!r}")
