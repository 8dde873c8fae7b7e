"""Emitted Verilog under a testbench of one's own: a layer or a whole FPGA out of the folder of `dagtrain emit`.

    stem = emitted_layer(Path("build/emit"), "stem")
    ports = stem.signals()
    program = stem.build(Path("bench"))
    myhdl.Simulation(program.attach(ports), my_testbench(ports)).run()

What is compiled are the files that were delivered, and nothing else: sources of ``files.f``, images of the manifest,
ports as the Verilog declares them.  See docs/testbenches.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from myhdl import Signal, intbv

from dagtrain.emission.delivered import Delivered, load_delivered
from dagtrain.emission.device import instance_name
from dagtrain.emission.manifest import COMMAND, MANIFEST
from hdl.convert.netlist import Direction, PortDecl
from hdl.errors import DagtrainError
from hdl.simulate import Design, Run, StreamPort
from hdl.simulate.cosimulation import CosimulationProgram, Engine, build_cosimulation, one_core
from hdl.simulate.drivers import Bench
from hdl.simulate.myhdl_run import ONE_CLOCK, ClockTimes, fresh_simulator, simulate
from hdl.stream import Stream

# the three signals of a stream
STREAM_SIGNALS = ("valid", "ready", "payload")


class Ports(dict[str, Any]):
    """MyHDL signals by port name."""

    def stream(self, name: str) -> Stream:
        """The signals ``<name>_valid``, ``<name>_ready`` and ``<name>_payload`` as one stream."""
        try:
            valid, ready, payload = (self[f"{name}_{signal}"] for signal in STREAM_SIGNALS)
        except KeyError as missing:
            known = ", ".join(sorted(key.removesuffix("_valid") for key in self if key.endswith("_valid")))
            raise DagtrainError(
                f"there is no stream {name} (no port {missing})", f"there are {known or 'none'}"
            ) from None
        stream = Stream(len(payload))
        stream.valid, stream.ready, stream.payload = valid, ready, payload
        return stream


@dataclass(frozen=True)
class EmittedModule:
    """A module as it was delivered."""

    name: str
    ports: tuple[PortDecl, ...]
    # all that it may instantiate, itself included
    sources: tuple[Path, ...]
    # parameter -> file that a memory starts with
    images: Mapping[str, Path]
    # that `run` drives, by port, and the one at which its streams stand
    clocks: Mapping[str, ClockTimes] = field(default_factory=lambda: ONE_CLOCK)
    at: str = "clk"

    @property
    def streams(self) -> tuple[StreamPort, ...]:
        """Its streams, each as seen from the module."""
        found = {port.name: port for port in self.ports}
        names = [name.removesuffix("_valid") for name in found if name.endswith("_valid")]
        return tuple(
            StreamPort(name, found[f"{name}_payload"].width, found[f"{name}_valid"].direction)
            for name in names
            if f"{name}_payload" in found and f"{name}_ready" in found
        )

    def signals(self) -> Ports:
        """A fresh MyHDL signal for each port: of one bit a bool, wider ones an unsigned `intbv`; a stream's payload is
        always an `intbv`."""
        payloads = {f"{stream.name}_payload" for stream in self.streams}
        return Ports(
            (p.name, Signal(bool(0)) if p.width == 1 and p.name not in payloads else Signal(intbv(0)[p.width :]))
            for p in self.ports
        )

    def build(self, folder: Path, engine: Engine = Engine.VERILATOR, *, optimise: bool = True) -> CosimulationProgram:
        """Build it into ``folder`` to be driven by MyHDL; see `build_cosimulation` for ``optimise`` and errors."""
        images = {parameter: str(path.resolve()) for parameter, path in self.images.items()}
        return build_cosimulation(
            engine, self.name, self.ports, self.sources, folder, parameters=images, optimise=optimise
        )

    def run(
        self,
        inputs: Mapping[str, Sequence[int]],
        expected_counts: Mapping[str, int],
        folder: Path,
        *,
        engine: Engine = Engine.VERILATOR,
        optimise: bool = True,
        seed: int = 1,
        stall_probability: float = 0.25,
        max_cycles: int = 100_000,
        drain_cycles: int = 16,
    ) -> Run:
        """Build it and feed it beats from MyHDL, with random stalls and the contract of every stream watched.

        Streams into the module that ``inputs`` doesn't name stay silent.  Arguments and errors are those of
        `hdl.simulate.run_streams`."""
        design = Design(self.name, lambda _images: None, self.streams)
        beats = {port.name: inputs.get(port.name, ()) for port in design.inputs} | dict(inputs)
        bench = Bench(design, beats, expected_counts, seed, stall_probability, max_cycles, drain_cycles)
        program = self.build(folder, engine, optimise=optimise)
        with fresh_simulator(), one_core():
            simulate(self.signals(), {}, bench, program.attach, self.clocks, self.at)
        return bench.result()


def emitted_device(emitted: Path, device: str) -> EmittedModule:
    """The whole FPGA ``device`` of the folder that `dagtrain emit` left.  Raises `DagtrainError`."""
    names = _names(emitted)
    if device not in names:
        raise DagtrainError(f"{emitted} has no device {device!r}", f"it has {', '.join(names)}")
    (found,) = load_delivered([emitted / device]).devices
    manifest = found.manifest
    ports = tuple(PortDecl(port.name, port.width, port.direction) for port in manifest.ports)
    images = {image.parameter: found.folder / image.file for image in manifest.images}
    return EmittedModule(manifest.top, ports, tuple(found.sources), images)


def emitted_layer(emitted: Path, node: str) -> EmittedModule:
    """The circuit of the layer ``node`` of the placed graph, memories as they start.  Raises `DagtrainError`."""
    devices = load_emitted(emitted).devices
    home = next((device for device in devices if node in device.manifest.nodes), None)
    if home is None:
        known = sorted(name for device in devices for name in device.manifest.nodes)
        raise DagtrainError(f"no device of {emitted} has a layer {node!r}", f"there are {', '.join(known)}")
    paths = {path.stem: path for path in home.sources}
    # as `hdl.convert.netlist` writes an instance
    instance = re.compile(rf"^(\w+)(?: #\(\n(?:    [^\n]*\n)*\))? {instance_name(node)} \($", re.MULTILINE)
    found = instance.search(paths[home.manifest.top].read_text())
    if not found or found[1] not in paths:
        reason = "it is a stream of the host, or reads the weights of a forward engine and is part of its circuit"
        raise DagtrainError(f"{node} is no circuit of {home.manifest.device}: {reason}")
    # a layer's circuit is one flat module in a file of its own
    source = paths[found[1]]
    images = {f"INIT_{i.image}": home.folder / i.file for i in home.manifest.images if i.node == node}
    return EmittedModule(source.stem, _ports_of(source), (source,), images)


def load_emitted(emitted: Path) -> Delivered:
    """All devices of the folder that `dagtrain emit` left.  Raises `DagtrainError`."""
    return load_delivered([emitted / name for name in _names(emitted)])


def _names(emitted: Path) -> list[str]:
    """The devices that were emitted."""
    names = sorted(path.parent.name for path in emitted.glob(f"*/{MANIFEST}"))
    if not names:
        raise DagtrainError(f"{emitted} holds no emitted device", f"run `{COMMAND}` first")
    return names


# as MyHDL declares a port
_PORT = re.compile(r"^(input|output) (signed )?(?:\[(\d+):0\] )?(\w+);$", re.MULTILINE)


def _ports_of(source: Path) -> tuple[PortDecl, ...]:
    return tuple(
        PortDecl(name, int(high) + 1 if high else 1, Direction(direction), bool(signed))
        for direction, signed, high, name in _PORT.findall(source.read_text())
    )
