"""What a simulation is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from hdl.convert.netlist import Direction
from hdl.convert.verilog import VerilogModule, convert
from hdl.elaboration.ports import port_signals
from hdl.errors import ConversionError
from hdl.signals import Bits, Instances

Beats = Sequence[int]


class Backend(Enum):
    """What simulates the circuit."""

    # the MyHDL block itself
    MYHDL = "myhdl"
    # its Verilog in Icarus, driven by MyHDL over VPI
    ICARUS = "icarus"
    # its Verilog in Verilator, driven by C++
    VERILATOR = "verilator"


@dataclass(frozen=True)
class StreamPort:
    """A stream of the circuit: its argument name, payload width in bits, direction seen from the circuit."""

    name: str
    width: int
    direction: Direction


@dataclass(frozen=True)
class Design:
    """A circuit to simulate.

    The circuit takes a `hdl.signals.ClockReset`, or a clock and a reset named ``clk`` and ``rst``.
    """

    # name of the Verilog module
    name: str
    # elaborates the block with fresh signals; gets the memory images by name (empty when converting)
    factory: Callable[[Mapping[str, Sequence[int]]], Instances]
    streams: tuple[StreamPort, ...]
    # contents of the named memories: raw words
    images: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # values of input ports that are no streams, held for the whole run
    constants: Mapping[str, int] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[StreamPort, ...]:
        """Streams into the circuit."""
        return tuple(port for port in self.streams if port.direction is Direction.IN)

    @property
    def outputs(self) -> tuple[StreamPort, ...]:
        """Streams out of the circuit."""
        return tuple(port for port in self.streams if port.direction is Direction.OUT)

    @cached_property
    def verilog(self) -> VerilogModule:
        """What `convert` gives, once for all runs of the design."""
        return self.convert()

    def convert(self) -> VerilogModule:
        """The Verilog of the circuit, its ports checked against `streams`, `images` and `constants`."""
        module = convert(self.factory({}), self.name)
        found = {port.name: (port.width, port.direction) for port in module.ports}
        expected = dict.fromkeys(("clk", "rst"), (1, Direction.IN))
        for port in self.streams:
            back = Direction.OUT if port.direction is Direction.IN else Direction.IN
            expected[f"{port.name}_valid"] = (1, port.direction)
            expected[f"{port.name}_ready"] = (1, back)
            expected[f"{port.name}_payload"] = (port.width, port.direction)
        for name, wanted in expected.items():
            if found.get(name) != wanted:
                got = found.get(name)
                seen = f"{got[0]} bits, {got[1].value}" if got else "no such port"
                raise ConversionError(
                    f"{self.name}: port {name} should be {wanted[0]} bits, {wanted[1].value}, but is {seen}"
                    " (an output that nothing drives becomes an input)"
                )
        for name, (_, direction) in found.items():
            if direction is Direction.IN and name not in expected and name not in self.constants:
                raise ConversionError(f"{self.name}: input {name} is neither of a stream nor in `constants`")
        if unknown := set(self.images) - set(module.images):
            raise ConversionError(f"{self.name}: images {sorted(unknown)} are of no memory of the circuit")
        return module

    def signals(self, block: Instances) -> dict[str, Bits]:
        """Port signals of an elaborated block by name, checked against `streams`."""
        found = port_signals(block, self.name)
        for port in self.streams:
            payload = found.get(f"{port.name}_payload")
            if payload is None or len(payload) != port.width:
                seen = "missing" if payload is None else f"{len(payload)} bits wide"
                raise ConversionError(f"{self.name}: stream {port.name} of {port.width} bits is {seen}")
        return found


@dataclass(frozen=True)
class Run:
    """What came out of a simulation.  Cycle 0 is the first clock edge after reset."""

    # payloads by output stream
    outputs: dict[str, list[int]]
    # cycle of every transfer, by stream, inputs and outputs
    fire_cycles: dict[str, list[int]]
    # clock cycles from the end of reset to the last expected beat, inclusive
    cycles: int
