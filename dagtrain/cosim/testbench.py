"""A MyHDL testbench of emitted FPGAs: MyHDL plays the host, Verilator or Icarus runs the Verilog of all devices.

MyHDL drives images and labels with random stalls, takes the metrics with random back-pressure, watches the contract of
streams at every host port, and at the end has all training state written.  The network between devices and their
memories are Verilog, as in the bench of `dagtrain.cosim.bench`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myhdl import Signal, always, block, intbv

from dagtrain.cosim.bench import (
    BENCH,
    CLUSTER,
    Bench,
    BenchOptions,
    Recording,
    add_cluster,
    bench_modules,
    host_net,
)
from dagtrain.cosim.cluster import SETTLE_FRAMES, Feeds, emulate, write_sources
from dagtrain.cosim.compare import ClusterRun, compare, compare_start
from dagtrain.cosim.emitted import EmittedModule, load_emitted
from dagtrain.cosim.simulator import RunLog
from dagtrain.emission.assembly import Assembly
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from dagtrain.executor import Executor, Mode
from dagtrain.ir import Graph
from dagtrain.progress import Progress, Silent
from hdl.errors import ToolError
from hdl.layers.base import to_beats
from hdl.netlist import Direction
from hdl.simulate import Design, cache_folder
from hdl.simulate.cosimulation import CosimulationProgram, Engine, build_cosimulation, one_core
from hdl.simulate.drivers import Bench as Drivers
from hdl.simulate.myhdl_run import fresh_simulator, simulate
from hdl.verilog import write_image

# intervals of the pipeline for which a batch may be under way beyond the frames that it needs
SLACK_FRAMES = 40
# cycles for which the order to write the state stands, and its signal
DUMP_CYCLES = 4
DUMP = f"{BENCH}_dump"


def simulate_under_myhdl(
    delivered: Delivered,
    graph: Graph,
    library: ModuleLibrary,
    feeds: Sequence[Feeds],
    folder: Path,
    network: NetworkModel,
    memory: MemoryModel,
    stall: float,
    seed: int,
    engine: Engine = Engine.VERILATOR,
    progress: Progress | None = None,
    optimise: bool = True,
) -> ClusterRun:
    """Train on ``feeds``, a batch each, and compare with the golden models of the folded ``graph`` in every bit.

    ``stall``: share of cycles in which a host stream stalls.
    ``optimise`` False builds fast and runs slowly: right for few frames.

    Raises `DeadlockError` when the metrics don't come, `ContractViolation` when a host port breaks the stream contract,
    `ToolError` when a link or memory reports an error.
    """
    progress = progress or Silent()
    frames = len(feeds) * graph.recipe.batch
    interval = delivered.cycles_per_frame
    # the last frame still has to go all the way back, and its gradients into the weights
    settle = (SETTLE_FRAMES + delivered.needed_staleness + 2) * interval + network.latency_cycles + 4096
    options = BenchOptions(frames=frames, batch=graph.recipe.batch, network=network, memory=memory, seed=seed)
    cluster, bench = _cluster(delivered, library, folder, options)
    progress.begin(f"build for {engine.value}", 1)
    state = [dump.statement for dump in bench.dumps]
    program = build_cosimulation(
        engine, CLUSTER, cluster.ports, cluster.sources, folder, on_rise={DUMP: state}, optimise=optimise
    )
    progress.end()
    golden = Executor(graph, Mode.GOLDEN)
    start = compare_start(delivered, golden)
    expected = emulate(golden, feeds)
    inputs = _inputs(graph, feeds)
    counts = {verilog_name(node): recording.beats for node, recording in bench.recorded.items()}
    host = Design(CLUSTER, lambda _: None, cluster.streams)
    limit = (frames + SLACK_FRAMES) * 4 * interval + settle
    drivers = Drivers(host, inputs, counts, seed, stall, limit, settle + DUMP_CYCLES)
    progress.begin("frames under MyHDL", frames)
    _run(program, drivers, FrameCount(drivers, sum(counts.values()) // frames, progress))
    progress.end()
    run = drivers.result()
    for node, recording in bench.recorded.items():
        port = graph.by_name[node].layer.sinks[0]
        write_image(folder / recording.file_name, run.outputs[verilog_name(node)], port.payload_bits)
    first = next(iter(bench.recorded))
    ends = run.fire_cycles[verilog_name(first)][:: bench.recorded[first].beats // frames]
    return compare(bench, golden, expected, folder, RunLog(drivers.cycle, tuple(ends)), frames, start, {})


def emitted_cluster(
    emitted: Path, folder: Path, network: NetworkModel | None = None, memory: MemoryModel | None = None
) -> EmittedModule:
    """All FPGAs of the folder that `dagtrain emit` left, with a network between them and their memories, as one module.

    Its streams are those of the host, named after their nodes; ``network_error`` and ``memory_error`` rise when a link
    loses a word or a memory refuses an address.  What surrounds the FPGAs is written into ``folder``, from where the
    simulation must run.  Raises `DagtrainError`."""
    network, memory = network or NetworkModel(), memory or MemoryModel()
    options = BenchOptions(frames=1, batch=1, network=network, memory=memory)
    return _cluster(load_emitted(emitted), ModuleLibrary(cache_folder() / "modules"), folder, options)[0]


def _cluster(
    delivered: Delivered, library: ModuleLibrary, folder: Path, options: BenchOptions
) -> tuple[EmittedModule, Bench]:
    """The cluster with the host's streams as its ports, and what is recorded and dumped of it."""
    assembly = Assembly(CLUSTER, "All FPGAs with their network")
    dumps = add_cluster(assembly, delivered.devices, library, options, folder)
    recorded = _host_ports(assembly, delivered, options.frames)
    made = assembly.module()
    texts, modules = {CLUSTER: made.to_verilog()}, bench_modules(assembly, delivered.devices)
    bench = Bench(texts, {}, recorded, tuple(dumps), modules)
    return EmittedModule(CLUSTER, made.ports, tuple(write_sources(delivered, bench, library, folder)), {}), bench


def _host_ports(assembly: Assembly, delivered: Delivered, frames: int) -> dict[str, Recording]:
    """The host's streams become ports of the cluster; returns those that are recorded."""
    recorded = {}
    for device in delivered.devices:
        for host in device.manifest.host_ports:
            name, inside = verilog_name(host.node), host_net(assembly, host)
            assembly.stream_port(name, host.payload_bits, host.direction)
            if host.direction is Direction.IN:
                assembly.connect(source=name, target=inside)
            else:
                assembly.connect(source=inside, target=name)
                beats = host.beats_per_frame * frames
                recorded[host.node] = Recording(f"{name}.beats.mem", beats, "", device.manifest.device)
    return recorded


def _inputs(graph: Graph, feeds: Sequence[Feeds]) -> dict[str, list[int]]:
    found = {}
    for node in feeds[0]:
        layer = graph.by_name[node].layer
        port = layer.sources[0]
        beats = [to_beats(layer, port.name, port.tensor.fixed.encode(feed[node])) for feed in feeds]
        found[verilog_name(node)] = [beat for part in beats for beat in part]
    return found


def _run(program: CosimulationProgram, drivers: Drivers, count: FrameCount) -> None:
    with fresh_simulator(), one_core():
        signals: dict[str, Any] = {
            port.name: Signal(intbv(0)[port.width :]) if port.name.endswith("_payload") else Signal(bool(0))
            for port in program.ports
        }

        def attach(given: Mapping[str, Any]) -> Any:
            return program.attach(given), watch(given, drivers, count)

        simulate(signals, {}, drivers, attach)


@dataclass
class FrameCount:
    """Tells how many frames' results have come, each in so many beats."""

    drivers: Drivers
    beats: int
    progress: Progress
    done: int = 0

    def look(self) -> None:
        """Once a cycle."""
        frames = sum(len(sink.beats) for sink in self.drivers.sinks) // self.beats
        if frames > self.done:
            self.progress.advance(frames - self.done, note=f"cycle {self.drivers.cycle:,}")
            self.done = frames


@block
def watch(signals: Mapping[str, Any], drivers: Drivers, count: FrameCount) -> Any:
    """Orders the dump shortly before the bench ends, and stops at an error of a link or a memory.  Not convertible."""
    clk, rst, dump = signals["clk"], signals["rst"], signals[DUMP]
    network_error, memory_error = signals["network_error"], signals["memory_error"]

    @always(clk.posedge)
    def look() -> None:
        if not rst and (network_error or memory_error):
            what = "the network lost a word" if network_error else "a memory refused an address"
            raise ToolError(f"{what} in cycle {drivers.cycle}")
        dump.next = drivers.ends_within(DUMP_CYCLES)
        count.look()

    return look
