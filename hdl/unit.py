"""Circuits between layers (links, DRAM) as a netlist needs them: ports by name, and how to build the block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, intbv

from hdl.signals import Bits, ClockReset, Instances
from hdl.stream import Stream


@dataclass(frozen=True, kw_only=True)
class Unit(ABC):
    """One unit; its ``repr`` determines the circuit.  Verilog ports are named as here: ``clk``, ``rst``,
    ``<stream>_valid`` …, `inputs`, `outputs`."""

    @property
    @abstractmethod
    def streams(self) -> Mapping[str, int]:
        """Stream name → payload bits."""

    @property
    def inputs(self) -> Mapping[str, int]:
        """Input ports that a netlist ties to constants → bits."""
        return {}

    @property
    def outputs(self) -> Mapping[str, int]:
        """Output ports that are no streams → bits."""
        return {}

    @abstractmethod
    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """The elaborated block between ``streams``; its other ports are signals of its own."""

    def signals(self, ports: Mapping[str, int]) -> list[Bits]:
        """Fresh signals for ports of these widths."""
        return [Signal(intbv(0)[width:]) if width > 1 else Signal(bool(0)) for width in ports.values()]
