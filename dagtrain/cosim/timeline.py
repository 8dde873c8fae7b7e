"""What engines do, and how full FIFOs are, while a batch trains among others: counted every cycle, told in stretches.

An engine with a walk is *busy* in a cycle in which an operation of it starts, *starved* in one in which none does
because an operand has not come, and else *blocked*; other circuits are told by their streams
(`dagtrain.cosim.activity`).  The level of a FIFO is what has entered less what has left, of one in DRAM words written
less words read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from dagtrain.cosim.activity import Handshakes, activities
from dagtrain.cosim.circuits import circuits
from dagtrain.cosim.clocks import clock_of
from dagtrain.cosim.parts import BenchOptions
from dagtrain.emission.delivered import Delivered, DeliveredDevice
from dagtrain.emission.device import adapted_net, consumed_net, fetched_net
from dagtrain.emission.links import ARRIVED, ARRIVING, UNPOOLED, receiver_name, receiver_role
from dagtrain.emission.manifest import Manifest
from dagtrain.emission.memory import store_port, store_role
from dagtrain.graph.ir import Graph, Node, Role
from hdl.fixed import IntArray

SCHEMA_VERSION = 1
# stretches of a planned batch
STRETCHES = 64
# what the bench writes: a line a stretch, all counters
COUNTS_FILE = "timeline.txt"
# batches without which none has another one before and behind it
LEAST_BATCHES = 3


# nodes that compute nothing
PASSIVE = frozenset({Role.FORK, Role.RELAY, Role.DEAL, Role.HOST, Role.COUNTER, Role.STORE})


@dataclass(frozen=True)
class Engine:
    """A circuit of a node."""

    node: str
    device: str
    clk: str
    # Verilog expressions below the bench; in other cycles it is blocked
    busy: str
    starved: str


@dataclass(frozen=True)
class Level:
    """A FIFO."""

    # as the manifest calls it
    name: str
    device: str
    clk: str
    # beats, or words of the network
    depth: int
    # Verilog expressions below the bench: one enters, one leaves
    enters: str
    leaves: str
    # of these a word
    per_word: int = 1


@dataclass(frozen=True)
class Probes:
    """What is counted."""

    engines: tuple[Engine, ...]
    levels: tuple[Level, ...]
    # of a stretch, at the clock of the network
    cycles: int

    @property
    def clocks(self) -> tuple[str, ...]:
        """All that are counted at."""
        own = [*(engine.clk for engine in self.engines), *(level.clk for level in self.levels)]
        return tuple(dict.fromkeys(["clk", *own]))


@dataclass(frozen=True)
class EngineShares:
    """Cycles of an engine's clock in each stretch."""

    node: str
    device: str
    busy: tuple[int, ...]
    starved: tuple[int, ...]
    blocked: tuple[int, ...]


@dataclass(frozen=True)
class FifoLevels:
    """The most beats, or words of the network, that lay in a FIFO in each stretch."""

    name: str
    device: str
    depth: int
    highest: tuple[int, ...]


@dataclass(frozen=True)
class Timeline:
    """A batch among others, from the results of the last frame of the batch before to those of its own."""

    # counted from 1
    batch: int
    # of the first stretch, and cycles of each, at the clock of the network
    first_cycle: int
    stretch_cycles: int
    engines: tuple[EngineShares, ...]
    fifos: tuple[FifoLevels, ...]

    def to_json(self) -> str:
        """The text of the file that the report reads."""
        record: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "batch": self.batch,
            "first_cycle": self.first_cycle,
            "stretch_cycles": self.stretch_cycles,
            "engines": [vars(engine) for engine in self.engines],
            "fifos": [vars(fifo) for fifo in self.fifos],
        }
        return json.dumps(record) + "\n"


def probes_for(delivered: Delivered, graph: Graph, options: BenchOptions, cycles: int) -> Probes | None:
    """What a bench with these options counts in stretches of so many cycles; nothing in stretches of none."""
    return probes(delivered.devices, graph, cycles, "_open" if options.hold_cycles else "") if cycles else None


def probes(devices: Sequence[DeliveredDevice], graph: Graph, cycles: int, gated: str = "") -> Probes:
    """All nodes that compute and all FIFOs of delivered FPGAs, in stretches of so many cycles.

    ``gated``: the ending of handshakes behind gates."""
    parts = _queues, _in_dram
    levels = [one for device in devices for each in parts for one in each(device, gated)]
    levels += [one for device in devices for one in _receivers(device, gated)]
    return Probes(tuple(engines(devices, graph, gated)), tuple(levels), cycles)


def engines(devices: Sequence[DeliveredDevice], graph: Graph, gated: str) -> Iterable[Engine]:
    manifests = {device.manifest.device: device.manifest for device in devices}
    for circuit in circuits(devices, graph):
        # a node that borrows another's memory is the second walk of its circuit
        walks = activities(circuit.source.read_text())
        for name, walk in zip_longest(circuit.nodes, walks[: len(circuit.nodes)]):
            node = graph.by_name[name]
            if walk is not None:
                told = walk.busy(circuit.path), walk.starved(circuit.path)
            elif node.role in PASSIVE:
                continue
            else:
                told = by_streams(manifests[circuit.device], node, gated)
            yield Engine(name, circuit.device, circuit.clk, *told)


def by_streams(manifest: Manifest, node: Node, gated: str) -> tuple[str, str]:
    """(busy, starved) of a circuit without a walk; see `dagtrain.cosim.activity.Handshakes`."""
    prefix = f"dut.fpga_{manifest.top}."
    per_batch = [sink for sink in node.layer.sinks if sink.tensor.kind.per_batch]
    rare: set[str] = set()
    # what reads no map is there for gradients
    if len(per_batch) < len(node.layer.sinks):
        edges = [node.inputs[sink.name] for sink in per_batch]
        rare = {net(edge) for edge in edges for net in (consumed_net, adapted_net, fetched_net)}
    read = [stream.net for stream in manifest.streams if stream.reader == node.name]
    found = Handshakes(
        maps=tuple(f"{prefix}{net}" for net in read if net not in rare),
        weights=tuple(f"{prefix}{net}" for net in read if net in rare),
        sent=tuple(f"{prefix}{stream.net}" for stream in manifest.streams if stream.writer == node.name),
        gated=gated,
    )
    return found.busy, found.starved


def _queues(device: DeliveredDevice, gated: str) -> Iterable[Level]:
    manifest = device.manifest
    readers = {stream.reader: stream.net for stream in manifest.streams}
    writers = {stream.writer: stream.net for stream in manifest.streams}
    prefix = f"dut.fpga_{manifest.top}."
    for copy in manifest.copies:
        if copy.depth:
            ends = prefix + readers[copy.part], prefix + writers[copy.part]
            enters, leaves = (_passes(net, gated) for net in ends)
            yield Level(copy.part, manifest.device, clock_of(device), copy.depth, enters, leaves)


def _in_dram(device: DeliveredDevice, gated: str) -> Iterable[Level]:
    """FIFOs in DRAM, by the words that their units write and read."""
    manifest = device.manifest
    widths = {stream.net: stream.payload_bits for stream in manifest.streams}
    for memory in manifest.memory or ():
        for region in memory.regions:
            if region.contents is None:
                written, read = (f"{store_port(region.name)}_{channel}" for channel in "wr")
                ends = (f"dut.fpga_{manifest.top}.{net}" for net in (written, read))
                enters, leaves = (_passes(net, gated) for net in ends)
                # data, and whether it is the last of its burst
                per_word = memory.format.data_bits // (widths[written] - 1)
                name, clk = store_role(region.name), clock_of(device)
                yield Level(name, manifest.device, clk, region.words, enters, leaves, per_word)


def _passes(net: str, gated: str) -> str:
    """A beat of a stream passes."""
    return f"({net}_valid{gated} && {net}_ready{gated} && !rst)"


def _receivers(device: DeliveredDevice, gated: str) -> Iterable[Level]:
    """FIFOs behind the network port, by two nets of `hdl.link.ingress`; of receivers that have one memory, by what
    comes to it."""
    manifest = device.manifest
    nets = {stream.net for stream in manifest.streams}
    for crossing in manifest.ingress:
        top = f"dut.fpga_{manifest.top}"
        path = f"{top}.{receiver_name(crossing.edge)}"
        enters = f"({path}.fire && !rst)"
        if UNPOOLED in nets:
            assert manifest.network
            form, arriving = manifest.network.format, ARRIVED if ARRIVED in nets else ARRIVING
            word = f"{top}.{arriving}_payload"
            stream, credit = (form.verilog_field(word, field) for field in ("stream", "credit"))
            enters = f"({_passes(f'{top}.{arriving}', gated)} && {stream} == {crossing.stream_number} && !{credit})"
        ends = enters, f"({path}.free && !rst)"
        yield Level(receiver_role(crossing.edge), manifest.device, clock_of(device), crossing.words, *ends)


def counting_text(found: Probes) -> str:
    """Verilog for the outermost module, which counts all that and writes a line a stretch."""
    counters = {clk: f"cycles_{clk}" for clk in found.clocks}
    declared = [f"reg [31:0] {', '.join(f'{name} = 0' for name in counters.values())};"]
    declared += [f"reg [31:0] seen_{clk} = 0;" for clk in counters]
    declared += [f"reg [31:0] busy_{n} = 0, starved_{n} = 0;" for n in range(len(found.engines))]
    declared += [f"reg [31:0] level_{n} = 0, highest_{n} = 0;" for n in range(len(found.levels))]
    processes = [_process(found, clk) for clk in counters]
    told = [*counters.values()]
    told += [name for n in range(len(found.engines)) for name in (f"busy_{n}", f"starved_{n}")]
    told += [f"(level_{n} > highest_{n} ? level_{n} : highest_{n})" for n in range(len(found.levels))]
    written = "\n".join(f'        $fwrite(timeline, "%0d ", {value});' for value in told)
    lines = "\n".join([*declared, *processes])
    return f"""integer timeline;
initial timeline = $fopen("{COUNTS_FILE}", "w");
reg [31:0] stretch_number = 0, stretch_cycle = 0;
{lines}
always @(posedge clk) begin
    stretch_cycle <= stretch_cycle + 1;
    if (stretch_cycle == {found.cycles - 1}) begin
        stretch_cycle <= 0;
        stretch_number <= stretch_number + 1;
{written}
        $fwrite(timeline, "\\n");
    end
end
"""


def _process(found: Probes, clk: str) -> str:
    """What is counted at a clock."""
    lines = [f"    cycles_{clk} <= cycles_{clk} + 1;", f"    seen_{clk} <= stretch_number;"]
    for n, engine in enumerate(found.engines):
        if engine.clk == clk:
            lines.append(f"    if ({engine.busy}) busy_{n} <= busy_{n} + 1;")
            lines.append(f"    if ({engine.starved}) starved_{n} <= starved_{n} + 1;")
    for n, level in enumerate(found.levels):
        if level.clk == clk:
            lines.append(f"    level_{n} <= level_{n} + {level.enters} - {level.leaves};")
            lines.append(f"    if (seen_{clk} != stretch_number || level_{n} > highest_{n}) highest_{n} <= level_{n};")
    body = "\n".join(lines)
    return f"always @(posedge {clk}) begin\n{body}\nend"


def read_timeline(folder: Path, found: Probes, ends: Sequence[int]) -> Timeline | None:
    """The last batch that had another one behind it, of what a bench wrote in ``folder``.

    ``ends``: the cycle in which the results of each batch had come.  None where there are too few batches, or all of
    one fits into a stretch."""
    if len(ends) < LEAST_BATCHES:
        return None
    counts = np.loadtxt(folder / COUNTS_FILE, dtype=np.int64, ndmin=2)
    first, last = ends[-3] // found.cycles, min(len(counts), -(-ends[-2] // found.cycles))
    counted = len(found.clocks) + 2 * len(found.engines)
    stretches = np.diff(counts[:, :counted], axis=0, prepend=0)[first:last]
    highest = -(-counts[first:last, counted:] // [level.per_word for level in found.levels])
    return Timeline(
        len(ends) - 1, first * found.cycles, found.cycles,
        tuple(_shares(found, n, stretches) for n in range(len(found.engines))),
        tuple(
            FifoLevels(level.name, level.device, level.depth, tuple(highest[:, n].tolist()))
            for n, level in enumerate(found.levels)
        ),
    )  # fmt: skip


def _shares(found: Probes, number: int, stretches: IntArray) -> EngineShares:
    engine, first = found.engines[number], len(found.clocks) + 2 * number
    busy, starved = stretches[:, first], stretches[:, first + 1]
    blocked = stretches[:, found.clocks.index(engine.clk)] - busy - starved
    return EngineShares(engine.node, engine.device, *(tuple(part.tolist()) for part in (busy, starved, blocked)))
