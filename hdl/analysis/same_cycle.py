"""What follows what within a clock cycle: the ports on which an output depends through logic alone.

It is found in the text of the generators, so it holds for every state.  It errs on the side of dependence: where both
ways through a choice give the same, the output still follows the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdl.analysis.dataflow import EVERY_BIT, Logic, Node, Op
from hdl.analysis.expressions import Visitor
from hdl.analysis.liveness import trace
from hdl.elaboration.ports import port_signals

# signals of a stream, and the other one of it that each must not follow within a cycle
FORBIDDEN = (("ready", "valid"), ("valid", "ready"), ("payload", "ready"))


def followed_ports(block: Any, name: str) -> dict[str, frozenset[str]]:
    """The ports that each port of an elaborated block follows in the same cycle; an input follows itself alone.

    Raises `UnknownConstruct` for what the analysis does not understand, `ConversionError` for ports that can't be."""
    liveness = trace(block, Visitor())
    stores = {port: liveness.store(signal) for port, signal in port_signals(block, name).items()}
    names = {store: port for port, store in stores.items()}
    return {port: _followed(store, names) for port, store in stores.items()}


def broken_handshakes(block: Any, name: str) -> list[str]:
    """What the contract of `hdl.stream` forbids within a cycle, of all streams at a block's ports: that ready follows
    the valid of its own stream, or valid or payload their own ready.  Raises as `followed_ports`."""
    followed = followed_ports(block, name)
    streams = [port.removesuffix("_ready") for port in followed if port.endswith("_ready")]
    return [
        f"{name}: {signal} of stream {stream} follows its own {other} in the same cycle"
        for stream in streams
        for signal, other in FORBIDDEN
        if f"{stream}_{other}" in followed.get(f"{stream}_{signal}", ())
    ]


def _followed(port: Node, names: Mapping[Node, str]) -> frozenset[str]:
    reached: dict[Node, int] = {}
    waiting = {port: EVERY_BIT}
    while waiting:
        asked, waiting = waiting, {}
        for node, bits in asked.items():
            new = bits & ~reached.get(node, 0)
            if new:
                reached[node] = reached.get(node, 0) | new
                for source, wanted in _needs(node, new):
                    waiting[source] = waiting.get(source, 0) | wanted
    return frozenset(names[node] for node in reached if node in names and (node is not port or not node.flows))


def _needs(node: Node, new: int) -> list[tuple[Node, int]]:
    """The bits of other nodes on which ``new`` bits of this one depend in the same cycle."""
    if node.op is Op.STORE:
        # a register, or a memory that is written at the clock edge
        if node.start is not None:
            return []
        found = []
        for value, low, width, conditions in node.flows:
            wanted = new >> low & ((1 << width) - 1)
            if wanted:
                found += [(value, wanted), *((condition, EVERY_BIT) for condition in conditions)]
        return found
    if node.op is Op.BITWISE and node.amount is Logic.AND:
        left, right = node.inputs
        return [(left, new & ~right.zeros), (right, new & ~left.zeros)]
    return node.needs(new)
