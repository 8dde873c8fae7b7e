"""A structural module under construction: wires for streams, instances of stream modules, ports of the module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagtrain.emission.modules import StreamModule
from hdl.convert.netlist import Direction, Instance, Module, PortDecl, Value, Wire, instantiate


@dataclass
class Assembly:
    """Collects wires and instances; `module` freezes them."""

    name: str
    comment: str = ""
    ports: list[PortDecl] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    assigns: list[tuple[str, str]] = field(default_factory=list)
    parameters: dict[str, int | str] = field(default_factory=dict)
    # name -> (bits, value)
    constants: dict[str, tuple[int, int]] = field(default_factory=dict)
    # stream net -> who writes it, who reads it
    writers: dict[str, str] = field(default_factory=dict)
    readers: dict[str, str] = field(default_factory=dict)
    # instances whose streams out all carry what comes in, as messages call them -> beats that they hold
    copies: dict[str, int] = field(default_factory=dict)
    # of all instances but those that are told another
    reset: str = "rst"
    # nets that are connected
    _same: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port("clk", 1, Direction.IN)
        self.port("rst", 1, Direction.IN)

    def port(self, name: str, width: int, direction: Direction) -> str:
        """Declare a port; returns its name."""
        self.ports.append(PortDecl(name, width, direction))
        return name

    def wire(self, name: str, width: int = 1) -> str:
        """Declare a wire; returns its name."""
        self.wires.append(Wire(name, width))
        return name

    def stream(self, net: str, payload_bits: int) -> str:
        """Declare the three wires of an internal stream; returns the net's prefix."""
        self.wire(f"{net}_valid")
        self.wire(f"{net}_ready")
        self.wire(f"{net}_payload", payload_bits)
        return net

    def stream_port(self, net: str, payload_bits: int, direction: Direction) -> str:
        """Declare a stream port; ``direction`` is that of valid and payload."""
        back = Direction.OUT if direction is Direction.IN else Direction.IN
        self.port(f"{net}_valid", 1, direction)
        self.port(f"{net}_ready", 1, back)
        self.port(f"{net}_payload", payload_bits, direction)
        return net

    def connect(self, source: str, target: str) -> None:
        """Connect two stream nets, which then have the same ends."""
        self._same.append((source, target))
        self.assigns += [
            (f"{target}_valid", f"{source}_valid"),
            (f"{target}_payload", f"{source}_payload"),
            (f"{source}_ready", f"{target}_ready"),
        ]

    def constant(self, name: str, bits: int, value: int) -> str:
        """Declare a constant of the module; returns its name."""
        self.constants[name] = bits, value
        return name

    def silence(self, net: str, payload_bits: int) -> None:
        """Nothing ever comes on a stream net."""
        self.assigns += [(f"{net}_valid", "1'b0"), (f"{net}_payload", f"{payload_bits}'d0")]

    def drain(self, net: str) -> None:
        """Take every beat of a stream net, for nobody."""
        self.assigns.append((f"{net}_ready", "1'b1"))

    def instance(
        self,
        module: StreamModule,
        name: str,
        streams: Mapping[str, str],
        signals: Mapping[str, str] | None = None,
        parameters: Mapping[str, Value] | None = None,
        role: str = "",
    ) -> None:
        """Instantiate a stream module: ``streams`` maps its streams to nets, ``signals`` its other ports.

        ``role`` is what messages call the instance, by default its name."""
        ways = {port.name: port.direction for port in module.verilog.ports}
        connections = {"clk": "clk", "rst": self.reset, **(signals or {})}
        for stream, net in streams.items():
            prefix = module.prefixes[stream]
            ends = self.writers if ways[f"{prefix}_valid"] is Direction.OUT else self.readers
            ends[net] = role or name
            for part in ("valid", "ready", "payload"):
                connections[f"{prefix}_{part}"] = f"{net}_{part}"
        self.raw_instance(module.name, module.verilog.ports, name, connections, parameters)

    def raw_instance(
        self,
        module: str,
        ports: tuple[PortDecl, ...],
        name: str,
        connections: Mapping[str, str],
        parameters: Mapping[str, Value] | None = None,
    ) -> None:
        """Instantiate any module; connections are checked against its ports."""
        declared = {port.name for port in ports}
        wanted = {port: net for port, net in connections.items() if port in declared or port not in ("clk", "rst")}
        widths = {port.name: port.width for port in self.ports} | {wire.name: wire.width for wire in self.wires}
        self.instances.append(instantiate(module, ports, name, wanted, widths, parameters))

    def ends(self) -> list[tuple[str, str, str, int]]:
        """(net, who writes it, who reads it, payload bits) of every stream inside that has both."""
        for source, target in self._same:
            if source in self.writers:
                self.writers.setdefault(target, self.writers[source])
            if target in self.readers:
                self.readers.setdefault(source, self.readers[target])
        bits = {wire.name.removesuffix("_payload"): wire.width for wire in self.wires if wire.name.endswith("_payload")}
        both = sorted(self.writers.keys() & self.readers.keys() & bits.keys())
        return [(net, self.writers[net], self.readers[net], bits[net]) for net in both]

    def module(self) -> Module:
        """The finished module."""
        return Module(
            self.name,
            tuple(self.ports),
            tuple(self.wires),
            tuple(self.instances),
            tuple(self.assigns),
            self.parameters,
            self.comment,
            self.constants,
        )
