"""A MyHDL testbench of emitted FPGAs: MyHDL plays the host and drives all clocks, Verilator or Icarus runs the Verilog
of all devices.

MyHDL drives images and labels with random stalls, takes the metrics with random back-pressure, and watches the
contract of streams at every host port.  All else is Verilog, as in the bench of `dagtrain.cosim.bench`: the network
between devices, their memories, and the outermost module, which writes new weights and training state and tells when
all is done or nothing moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from myhdl import StopSimulation, always, block

from dagtrain.cosim.bench import add_cluster, bench_modules, host_net, recording, watched_bench, weight_logs
from dagtrain.cosim.clocks import clock_of
from dagtrain.cosim.cluster import (
    Feeds,
    bench_clocks,
    bench_options,
    emulate,
    framed_devices,
    located,
    named,
    write_sources,
)
from dagtrain.cosim.compare import ClusterRun, batch_ends, compare, compare_start
from dagtrain.cosim.emitted import EmittedModule, load_emitted
from dagtrain.cosim.outermost import PORTS, WATCH_FILE, outermost_text
from dagtrain.cosim.parts import BENCH, CLUSTER, Bench, BenchOptions, Recording
from dagtrain.cosim.simulator import BrokenError, RunLog, StuckError, is_long, refusal, seen_by_watchers, stuck_error
from dagtrain.cosim.timeline import Probes, probes_for, read_timeline
from dagtrain.cosim.watch import Watch, watch
from dagtrain.emission.assembly import Assembly
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress, Silent
from hdl.convert.images import write_image
from hdl.convert.netlist import Direction, Module
from hdl.engine.weights.records import WORD_BITS
from hdl.errors import DagtrainError, DeadlockError
from hdl.fixed import IntArray
from hdl.layers.beats import to_beats
from hdl.simulate import Design, cache_folder
from hdl.simulate.cosimulation import CosimulationProgram, Engine, one_core
from hdl.simulate.drivers import Bench as Drivers
from hdl.simulate.myhdl_run import ONE_CLOCK, ClockTimes, fresh_simulator, simulate

# of a microsecond: MyHDL counts times of several clocks in them
PICOSECONDS = 10**6
# intervals of the pipeline that a frame may take with stalls before the testbench gives up
SLACK = 4


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
    optimise: bool | None = None,
    hold_cycles: int = 0,
    stretch_cycles: int = 0,
) -> ClusterRun:
    """Train on ``feeds``, a batch each, and compare with the golden models of the folded ``graph`` in every bit.

    ``stall``: share of cycles in which a host stream stalls.
    ``optimise`` False builds fast and runs slowly; None chooses by the cycles to simulate (`is_long`).
    ``hold_cycles``: see `BenchOptions`.
    ``stretch_cycles``: in stretches of so many, what engines do is counted, and how full FIFOs are; 0: neither is.

    Raises `StuckError` when nothing moves any more or a link loses words, `DeadlockError` when it goes on and on,
    `ContractViolation` when a host port breaks the stream contract, `BrokenError` for what a watcher saw, `ToolError`
    when a memory reports an error.
    """
    progress = progress or Silent()
    if any(device.manifest.state for device in delivered.devices):
        raise DagtrainError(
            "what was emitted begins with state that a host loads, which this testbench does not play",
            "simulate in Verilog alone, or drive `emitted_cluster` by a testbench of your own",
        )
    framed = framed_devices(delivered)
    if framed:
        raise DagtrainError(
            f"this testbench has no switch for the Ethernet of {', '.join(framed)}",
            "simulate with --simulator verilator, or drive `emitted_cluster` by a testbench of your own",
        )
    options = bench_options(delivered, graph, len(feeds), network, memory, seed, hold_cycles=hold_cycles)
    frames, interval = options.frames, delivered.cycles_per_frame
    probed = probes_for(delivered, graph, options, stretch_cycles)
    module, bench = _outermost(delivered, library, options, folder, probed)
    module = replace(module, clocks=clock_times(delivered, seed), at=host_clock(delivered))
    progress.begin(f"build for {engine.value}", 1)
    if optimise is None:
        optimise = is_long(options.frames * delivered.cycles_per_frame)
    program = module.build(folder, engine, optimise=optimise)
    progress.end()
    golden = Executor(graph, Mode.GOLDEN)
    start = compare_start(delivered, golden)
    sent: dict[str, list[IntArray]] = {log.edge: [] for log in bench.weights}
    expected = emulate(golden, feeds, sent)
    inputs = _inputs(graph, feeds)
    counts = {verilog_name(node): kept.beats for node, kept in bench.recorded.items()}
    host = Design(BENCH, lambda _: None, module.streams)
    # a batch may wait for weights for as long as it is not called stuck
    limit = SLACK * frames * interval + (len(feeds) + 1) * options.stuck_cycles + options.settle_cycles
    limit = limit * module.clocks["clk"].period // module.clocks[module.at].period
    drivers = Drivers(host, inputs, counts, seed, stall, limit, limit)
    count = FrameCount(drivers, sum(counts.values()) // frames, progress)
    progress.begin("frames under MyHDL", frames)
    try:
        _run(module, program, drivers, count)
    except StuckError as error:
        raise located(error, delivered, options, count.done) from None
    except BrokenError as error:
        raise named(error, bench, graph) from None
    progress.end()
    run = drivers.result()
    for node, kept in bench.recorded.items():
        port = graph.by_name[node].layer.sinks[0]
        write_image(folder / kept.file_name, run.outputs[verilog_name(node)], port.payload_bits)
    log = RunLog(count.cycle, tuple(count.ends), seen_by_watchers(folder))
    found = compare(bench, golden, expected, folder, log, frames, start, sent)
    # the bench counts from its first cycle on
    ends = [count.resets + cycle for cycle in batch_ends(count.ends, len(feeds))]
    return replace(found, timeline=read_timeline(folder, probed, ends)) if probed else found


def emitted_cluster(
    emitted: Path, folder: Path, network: NetworkModel | None = None, memory: MemoryModel | None = None
) -> EmittedModule:
    """All FPGAs of the folder that `dagtrain emit` left, with a network between them and their memories, as one module.

    Its streams are those of the host, named after their nodes; ``network_error`` and ``memory_error`` rise when a link
    loses a word or a memory refuses an address.  What surrounds the FPGAs is written into ``folder``, from where the
    simulation must run.  Raises `DagtrainError`."""
    network, memory = network or NetworkModel(), memory or MemoryModel()
    options = BenchOptions(frames=1, batch=1, network=network, memory=memory)
    delivered, library = load_emitted(emitted), ModuleLibrary(cache_folder() / "modules")
    made, bench = _cluster(delivered, library, options, folder)
    sources = tuple(write_sources(delivered, bench, library, folder))
    clocks, at = clock_times(delivered, options.seed), host_clock(delivered)
    return EmittedModule(CLUSTER, made.ports, sources, {}, clocks, at)


def clock_times(delivered: Delivered, seed: int) -> Mapping[str, ClockTimes]:
    """The clocks of the bench in picoseconds, of any phase by ``seed``; where there is one, in steps of its own."""
    found = {}
    for clock in bench_clocks(delivered, seed):
        period = round(PICOSECONDS / clock.mhz)
        found[clock.name] = ClockTimes(1 + round(clock.phase * period), period // 2, period - period // 2)
    return found or ONE_CLOCK


def host_clock(delivered: Delivered) -> str:
    """The clock of the bench at which the host's streams stand.

    Raises `DagtrainError` where they stand at several."""
    found = {clock_of(device): device.manifest.device for device in delivered.devices if device.manifest.host_ports}
    if len(found) > 1:
        names = ", ".join(found.values())
        raise DagtrainError(f"a MyHDL testbench plays the host at one clock, and {names} have their own host ports")
    return next(iter(found))


def _outermost(
    delivered: Delivered, library: ModuleLibrary, options: BenchOptions, folder: Path, probed: Probes | None
) -> tuple[EmittedModule, Bench]:
    """What MyHDL drives, and what it records and dumps."""
    made, bench = _cluster(delivered, library, options, folder)
    clocks = {clock_of(device) for device in delivered.devices}
    own = {port.name for port in PORTS} | clocks
    host = [port for port in made.ports if port.name not in own]
    watching = watch(delivered.devices, options.reads) if options.hold_cycles else Watch()
    text = outermost_text(
        delivered.devices, bench.recorded, bench.weights, bench.dumps, options, watching, host, (), probed
    )
    bench = watched_bench(replace(bench, texts={**bench.texts, BENCH: text}), delivered.devices, watching)
    ports = (*PORTS, *(port for port in made.ports if port.name in clocks - {"clk"}), *host)
    return EmittedModule(BENCH, ports, tuple(write_sources(delivered, bench, library, folder)), {}), bench


def _cluster(delivered: Delivered, library: ModuleLibrary, options: BenchOptions, folder: Path) -> tuple[Module, Bench]:
    """All FPGAs with the host's streams as ports, and what is recorded and dumped of them."""
    assembly = Assembly(CLUSTER, "All FPGAs with their network")
    dumps = add_cluster(assembly, delivered.devices, library, options, folder)
    recorded = _host_ports(assembly, delivered, options)
    made, modules = assembly.module(), bench_modules(assembly, delivered.devices)
    texts = {CLUSTER: made.to_verilog()}
    return made, Bench(texts, {}, recorded, tuple(dumps), modules, weight_logs(delivered.devices))


def _host_ports(assembly: Assembly, delivered: Delivered, options: BenchOptions) -> dict[str, Recording]:
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
                recorded[host.node] = recording(assembly, device, host, options)
        state = device.manifest.state
        if state is not None:
            top = device.manifest.top
            assembly.stream_port(state_port(top, state.load), WORD_BITS, Direction.IN)
            assembly.connect(source=state_port(top, state.load), target=f"{top}_{state.load}")
            assembly.stream_port(state_port(top, state.dump), WORD_BITS, Direction.OUT)
            assembly.connect(source=f"{top}_{state.dump}", target=state_port(top, state.dump))
    return recorded


def state_port(top: str, net: str) -> str:
    """A stream of a cluster by which a device's state is loaded or dumped."""
    return f"{net}_of_{top}"


def _inputs(graph: Graph, feeds: Sequence[Feeds]) -> dict[str, list[int]]:
    found = {}
    for node in feeds[0]:
        layer = graph.by_name[node].layer
        port = layer.sources[0]
        beats = [to_beats(layer, port.name, port.tensor.fixed.encode(feed[node])) for feed in feeds]
        found[verilog_name(node)] = [beat for part in beats for beat in part]
    return found


def _run(module: EmittedModule, program: CosimulationProgram, drivers: Drivers, count: FrameCount) -> None:
    (program.folder / WATCH_FILE).unlink(missing_ok=True)
    with fresh_simulator(), one_core():
        signals = module.signals()

        def attach(given: Mapping[str, Any]) -> Any:
            return program.attach(given), look_on(given, count, program.folder)

        simulate(signals, {}, drivers, attach, module.clocks, module.at)
        if not count.finished:
            raise DeadlockError(f"new weights or state have not all been written after {count.cycle} cycles")


@dataclass
class FrameCount:
    """Tells how many frames' results have come, each in so many beats."""

    drivers: Drivers
    beats: int
    progress: Progress
    done: int = 0
    # of the network, since reset; those in which the results of each frame had come
    cycle: int = 0
    resets: int = 0
    ends: list[int] = field(default_factory=list)
    # the outermost module said so
    finished: bool = False

    @property
    def records(self) -> int:
        """Beats that came."""
        return sum(len(sink.beats) for sink in self.drivers.sinks)

    def look(self) -> None:
        """Once a cycle of the network."""
        self.cycle += 1
        frames = self.records // self.beats
        if frames > self.done:
            self.progress.advance(frames - self.done, note=f"cycle {self.cycle:,}")
            self.ends += [self.cycle] * (frames - self.done)
            self.done = frames


@block
def look_on(signals: Mapping[str, Any], count: FrameCount, folder: Path) -> Any:
    """Ends the simulation when the outermost module says so.  Not convertible."""
    clk, rst = signals["clk"], signals["rst"]
    finished, stuck = signals["finished"], signals["stuck"]
    errors = {name: signals[f"{name}_error"] for name in ("memory", "network")}

    @always(clk.posedge)
    def look() -> None:
        if rst:
            count.resets += 1
        else:
            count.look()
        if finished:
            count.finished = True
            raise StopSimulation
        if stuck:
            raise stuck_error(folder, count.cycle, count.records)
        for name, error in errors.items():
            if error and not rst:
                raise refusal(folder, name, count.cycle)

    return look
