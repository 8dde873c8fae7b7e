"""What follows what within a cycle, in modules that are wired together."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hdl.analysis.same_cycle import FORBIDDEN
from hdl.convert.netlist import Module, identifiers

# module -> port -> ports that it follows in the same cycle
Followed = Mapping[str, Mapping[str, Collection[str]]]


def broken_streams(top: Module, followed: Followed) -> list[str]:
    """What the contract of `hdl.stream` forbids within a cycle, of all streams of a module that only instantiates.

    A net is taken as a whole: its bits are not told from one another.
    Raises KeyError for an instance of a module that is not in ``followed``."""
    follows = _nets(top, followed)
    nets = [port.name for port in top.ports] + [wire.name for wire in top.wires]
    found = []
    for stream in (net.removesuffix("_ready") for net in nets if net.endswith("_ready")):
        for signal, other in FORBIDDEN:
            if f"{stream}_{other}" in _reached(f"{stream}_{signal}", follows):
                found.append(f"{top.name}: {signal} of stream {stream} follows its own {other} in the same cycle")
    return found


def _nets(top: Module, followed: Followed) -> dict[str, set[str]]:
    """Net -> those that it follows straight away."""
    follows: dict[str, set[str]] = {}
    for net, expression in top.assigns:
        for target in identifiers(net):
            follows.setdefault(target, set()).update(identifiers(expression))
    for instance in top.instances:
        inside = followed[instance.module]
        nets = {port: identifiers(text) for port, text in instance.connections.items()}
        for port, sources in inside.items():
            for target in nets.get(port, ()):
                for source in sources:
                    follows.setdefault(target, set()).update(set(nets.get(source, ())) - {target})
    return follows


def _reached(net: str, follows: Mapping[str, Collection[str]]) -> set[str]:
    """All nets that a net follows, over others too."""
    found: set[str] = set()
    waiting = [net]
    while waiting:
        new = set(follows.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found
