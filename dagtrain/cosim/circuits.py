"""Where the circuit of a node stands in delivered FPGAs: its instance below the bench, and its Verilog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagtrain.cosim.clocks import clock_of
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.device import instance_name
from dagtrain.graph.ir import Graph

# in a top: an instance, with parameters or without
_MODULE = re.compile(r"^(\w+) #\($")
_NAMED = re.compile(r"^\) (\w+) \($")
_PLAIN = re.compile(r"^(\w+) (\w+) \($")


@dataclass(frozen=True)
class Circuit:
    """The instance of a node's module."""

    # and those that borrow its memory, which are part of its circuit
    nodes: tuple[str, ...]
    device: str
    clk: str
    # Verilog path below the bench
    path: str
    source: Path


def circuits(devices: Sequence[DeliveredDevice], graph: Graph) -> tuple[Circuit, ...]:
    """Of all nodes that are circuits of their own."""
    return tuple(one for device in devices for one in _circuits(device, graph))


def _circuits(device: DeliveredDevice, graph: Graph) -> Iterable[Circuit]:
    manifest = device.manifest
    sources = {path.stem: path for path in device.sources}
    modules = instances(sources[manifest.top].read_text())
    for name in manifest.nodes:
        instance = instance_name(name)
        if instance in modules:
            borrower = graph.borrowers.get(name)
            nodes = (name,) if borrower is None else (name, borrower.name)
            path = f"dut.fpga_{manifest.top}.{instance}"
            yield Circuit(nodes, manifest.device, clock_of(device), path, sources[modules[instance]])


def instances(top: str) -> dict[str, str]:
    """Instance -> module, of the Verilog of a device's top."""
    found, module = {}, ""
    for line in top.splitlines():
        if begun := _MODULE.match(line):
            module = begun[1]
        elif named := _NAMED.match(line):
            found[named[1]] = module
        elif plain := _PLAIN.match(line):
            found[plain[2]] = plain[1]
    return found
