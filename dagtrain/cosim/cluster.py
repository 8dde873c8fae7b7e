"""A whole cluster in one Verilog simulation, training, and its comparison with the emulator in every bit.

What is simulated are the delivered files; what must come out is told by the emulator of the placed graph alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagtrain.cosim.bench import design_bench
from dagtrain.cosim.circuits import Circuit
from dagtrain.cosim.clocks import clock_of, mac_clocks
from dagtrain.cosim.compare import SHOWN_MISMATCHES, ClusterRun, Compared, batch_ends, compare, compare_start
from dagtrain.cosim.deadlock import explain
from dagtrain.cosim.network import PausingHost, read_counts, read_ports, write_switch
from dagtrain.cosim.parts import Bench, BenchOptions
from dagtrain.cosim.simulator import (
    BenchClock,
    BrokenError,
    Listener,
    RunLog,
    Simulator,
    StuckError,
    build,
    execute,
    is_long,
)
from dagtrain.cosim.switch_host import NetworkHost, host_of
from dagtrain.cosim.timeline import probes_for, read_timeline
from dagtrain.cosim.trace import TRACE_FILE, Made, Traces, compare_traces, passed_on, traced_streams
from dagtrain.cosim.watch import Watched
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.device import (
    adapted_net,
    consumed_net,
    fetched_net,
    fetched_region,
    outside_net,
    produced_net,
    ring_region,
    stored_net,
)
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.manifest import DeliveryError
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.state import load_records
from dagtrain.files import write_text
from dagtrain.graph.executor import Executor, Mode, Observer
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress
from dagtrain.schedule.buffers import wide_beats
from hdl.convert.images import write_image
from hdl.engine.weights.records import WORD_BITS, Kind, Record, words_of
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.layers.beats import to_beats
from hdl.simulate.models.ethernet import EthernetSwitch
from hdl.tensor import Kind as Edges

Feeds = Mapping[str, npt.NDArray[Any]]

# what the host's port of the switch is called
HOST_NAME = "host"

# stretches for which a port may stay shut before the pipeline is called deadlocked
HELD_STRETCHES = 24
# intervals of the pipeline that pass between the last weights and the dump of the state
SETTLE_FRAMES = 2
# timers within which a frame has come through a network that loses some
RESENT_TIMES = 12
# part of its frequency by which a clock of a MAC is off at most
MAC_DRIFT = 200e-6
# of the host's timers for which nothing may move
HOST_TIMERS = 8
# intervals without any progress after which the pipeline is called deadlocked
STUCK_FRAMES = 200


def simulate_cluster(
    delivered: Delivered,
    graph: Graph,
    library: ModuleLibrary,
    feeds: Sequence[Feeds],
    folder: Path,
    simulator: Simulator,
    network: NetworkModel,
    host_stall_256: int,
    seed: int,
    progress: Progress,
    optimise: bool | None = None,
    memory: MemoryModel | None = None,
    hold_cycles: int = 0,
    on_traces: Callable[[Traces], None] | None = None,
    waves: Sequence[str] = (),
    inside: Sequence[Circuit] = (),
    stretch_cycles: int = 0,
) -> ClusterRun:
    """Train on ``feeds``, a batch each, in the delivered Verilog, and compare with the golden models of the folded
    ``graph``.

    ``library`` makes the bench's own modules.
    ``optimise`` False builds fast and runs slowly; None chooses by the cycles to simulate (`is_long`).
    ``memory`` describes the DRAM of devices that use any.
    ``hold_cycles``: see `BenchOptions`.
    ``waves`` tells the bench in which cycles it writes waveforms (`dagtrain.cosim.waves.Window`), where it traces.
    ``inside``: circuits of which Verilator records every signal in those cycles.
    ``stretch_cycles``: in stretches of so many, what engines do is counted, and how full FIFOs are; 0: neither is.
    ``on_traces`` gets every beat inside the FPGAs beside the emulator, also where the simulation then fails.
    Everything the simulation writes stays in ``folder``."""
    check_simulator(delivered, simulator)
    frames = len(feeds) * graph.recipe.batch
    options = bench_options(
        delivered, graph, len(feeds), network, memory or MemoryModel(), seed,
        host_stall_256=host_stall_256, hold_cycles=hold_cycles,
    )  # fmt: skip
    traced = traced_streams(delivered.devices, graph) if on_traces else ()
    probed = probes_for(delivered, graph, options, stretch_cycles)
    bench = design_bench(delivered.devices, library, options, folder, traced, probed)
    progress.begin(f"build for {simulator.value}", 1)
    sources, clocks = write_sources(delivered, bench, library, folder), bench_clocks(delivered, seed)
    if optimise is None:
        optimise = is_long(frames * delivered.cycles_per_frame)
    paths = [one.path for one in inside]
    program = build(folder / "sim", sources, simulator, optimise, clocks, paths, bench.macs).resolve()
    progress.end()
    golden = Executor(graph, Mode.GOLDEN)
    started = compare_start(delivered, golden)
    sent: dict[str, list[IntArray]] = {log.edge: [golden.weights[log.edge]] * log.loaded for log in bench.weights}
    made = Made(traced, passed_on(graph, {edge: tuple(versions) for edge, versions in sent.items()}))
    write_loads(delivered, bench, golden, len(feeds), folder)
    expected = emulate(golden, feeds, sent, made)
    write_inputs(graph, bench, feeds, folder)
    told = (*waves, *(write_network(folder, delivered, network) if bench.macs else ()))
    progress.begin("co-simulation", frames)
    listener = Listener(progress, frames, sum(recording.beats for recording in bench.recorded.values()))
    host = NetworkHost(delivered, graph, feeds) if spoken(delivered) else None
    try:
        pausing = host and PausingHost(host, network.host_pauses)
        log = execute(program, folder, listener.on_frame, arguments=told, host=pausing, on_cycle=listener.on_cycle)
    except StuckError as error:
        raise located(error, delivered, options, listener.seen) from None
    except BrokenError as error:
        raise named(error, bench, graph) from None
    finally:
        if host is not None:
            host.close()
        if on_traces and (folder / TRACE_FILE).is_file():
            on_traces(compare_traces(folder, traced, graph, made))
    progress.end()
    run = judged(bench, golden, expected, folder, log, frames, started, sent, host)
    ends = batch_ends(log.frame_cycles, len(feeds))
    return run if probed is None else replace(run, timeline=read_timeline(folder, probed, ends))


def framed_devices(delivered: Delivered) -> tuple[str, ...]:
    """Devices with Ethernet ports."""
    return tuple(device.manifest.device for device in delivered.devices if device.manifest.ethernet)


def port_names(delivered: Delivered) -> list[str]:
    """Of the switch's ports: devices, then the host; none where there is no switch."""
    framed = framed_devices(delivered)
    return [*framed, HOST_NAME] if framed else []


def port_bits_per_cycle(delivered: Delivered, network: NetworkModel) -> Fraction:
    """What a port of the switch carries each way."""
    first = next(port for device in delivered.devices if (port := device.manifest.ethernet))
    return Fraction(first.word_bits * network.words, network.cycles)


def check_simulator(delivered: Delivered, simulator: Simulator) -> None:
    """Raises `DagtrainError` where it has no switch for what devices send."""
    framed = framed_devices(delivered)
    if framed and simulator is not Simulator.VERILATOR:
        raise DagtrainError(f"the Ethernet of {', '.join(framed)} runs in {Simulator.VERILATOR.value} alone")


def judged(
    bench: Bench,
    golden: Executor,
    expected: Mapping[str, IntArray],
    folder: Path,
    log: RunLog,
    frames: int,
    start: Compared,
    sent: Mapping[str, Sequence[IntArray]],
    host: NetworkHost | None,
) -> ClusterRun:
    """`compare`, with what came to the host, and what switch, ports and host have counted."""
    if host is not None:
        host.write_results(bench, folder)
    run = compare(bench, golden, expected, folder, log, frames, start, sent)
    if not bench.macs:
        return run
    run = replace(run, pairs=read_counts(folder), ports=read_ports(folder))
    return run if host is None else with_state(replace(run, host_dropped=host.dropped), host, golden)


def with_state(run: ClusterRun, host: NetworkHost, golden: Executor) -> ClusterRun:
    """With what the host has got of state that devices dumped behind the last batch."""
    words, different = host.state_differences(golden)
    mismatches = (*run.mismatches, *(f"dumped {what}" for what in different))[:SHOWN_MISMATCHES]
    return replace(run, compared_words=run.compared_words + words, mismatches=mismatches)


def spoken(delivered: Delivered) -> bool:
    """Whether the host speaks over the network."""
    ports = [device.manifest.ethernet for device in delivered.devices]
    return any(port is not None and host_of(port) is not None for port in ports)


def is_loaded(delivered: Delivered) -> bool:
    """Whether the host loads the state over the network."""
    ports = [device.manifest.ethernet for device in delivered.devices]
    return any(stream.carries == "load" for port in ports if port for stream in port.host_streams)


def write_network(folder: Path, delivered: Delivered, network: NetworkModel) -> tuple[str, ...]:
    """What the switch of a run in a folder reads; returns what the bench is told besides."""
    ports = [device.manifest.ethernet for device in delivered.devices]
    macs = {port.own.address.mac: number for number, port in enumerate(filter(None, ports))}
    host = host_of(next(filter(None, ports)))
    if host is not None:
        macs[host.mac] = len(macs)
    switch = EthernetSwitch(
        ports=macs,
        latency=network.latency_cycles,
        bits_per_cycle=port_bits_per_cycle(delivered, network),
        faults=network.faults,
        seed=network.seed,
    )
    write_switch(folder, switch)
    resets = ",".join(f"{port}:{first}:{end}" for port, first, end in network.resets)
    told = [f"+resets={resets}"] if resets else []
    return (f"+mac_stall={network.stall_256}", *(["+frames"] if network.capture else []), *told)


def bench_clocks(delivered: Delivered, seed: int) -> tuple[BenchClock, ...]:
    """The clocks of the network, of devices and of MACs that have their own, of any phase by ``seed``; none if there is
    one."""
    rng = random.Random(f"{seed}/clocks")
    own = [
        BenchClock(clock_of(device), device.manifest.clock_mhz, rng.random())
        for device in delivered.devices
        if device.manifest.device in delivered.clocks
    ]
    for device in delivered.devices:
        port = device.manifest.ethernet
        if port is not None and port.mac_mhz is not None:
            # of two oscillators
            own += [
                BenchClock(clk, port.mac_mhz * (1 + rng.uniform(-MAC_DRIFT, MAC_DRIFT)), rng.random())
                for clk in mac_clocks(delivered.devices)[device.manifest.device]
            ]
    return (BenchClock("clk", delivered.network_mhz), *own) if own else ()


def bench_options(
    delivered: Delivered,
    graph: Graph,
    batches: int,
    network: NetworkModel,
    memory: MemoryModel,
    seed: int,
    *,
    host_stall_256: int = 0,
    hold_cycles: int = 0,
) -> BenchOptions:
    """What surrounds delivered FPGAs, with waits as long as their pipeline wants them."""
    interval, latency, resent = delivered.cycles_per_frame, network.latency_cycles, 0
    ports = [device.manifest.ethernet for device in delivered.devices if device.manifest.ethernet]
    timers, waits = [port.timer_cycles for port in ports], 0
    if timers:
        waits = HOST_TIMERS * max(port.host_timer_cycles for port in ports)
        waits += max((end - first for first, end in network.host_pauses), default=0)
        # the same for most networks, so that they need no build of their own
        down = max((end - first for _, first, end in network.faults.down), default=0)
        latency = max(timers) * max(1, -(-4 * latency // max(timers)))
        resent = RESENT_TIMES * latency * max(1, -(-2 * down // (RESENT_TIMES * latency)))
    return BenchOptions(
        frames=batches * graph.recipe.batch,
        batch=graph.recipe.batch,
        network=network,
        memory=memory,
        host_stall_256=host_stall_256,
        seed=seed,
        settle_cycles=SETTLE_FRAMES * interval + latency + 4096 + resent,
        stuck_cycles=STUCK_FRAMES * interval + 20 * latency + HELD_STRETCHES * hold_cycles + 4 * resent + waits,
        hold_cycles=hold_cycles,
        staleness=graph.recipe.staleness,
    )


def located(error: StuckError, delivered: Delivered, options: BenchOptions, done: int) -> StuckError:
    """The error with the frame that the host waits for, of which ``done`` are out, and who waits for whom."""
    if not error.nets:
        return error
    batch, frame = divmod(done, options.batch)
    waits = f"the host waits for frame {frame + 1} of batch {batch + 1}"
    where = waits if done < options.frames else "all frames are out"
    return StuckError(f"{error}; {where}; {explain(delivered, error.nets)}", nets=error.nets)


def named(error: BrokenError, bench: Bench, graph: Graph) -> BrokenError:
    """The error with what its watcher saw."""
    return BrokenError(error.number, error.beat, describe(bench.watched[error.number], error, graph))


def describe(watched: Watched, error: BrokenError, graph: Graph) -> str:
    """What a watcher saw: device, part, frame and batch."""
    where = f"beat {error.beat + 1}"
    if watched.net in (counted := counted_nets(graph)):
        beats, tensors = counted[watched.net]
        tensor, beat = divmod(error.beat, beats)
        batch, frame = divmod(tensor, tensors)
        within = "" if tensors == 1 else f"{'frame' if tensors == graph.recipe.batch else 'tensor'} {frame + 1} of "
        where = f"beat {beat + 1} of {within}batch {batch + 1}"
    return f"{watched.device}: {watched.part}, {where}: {error}"


def counted_nets(graph: Graph) -> dict[str, tuple[int, int]]:
    """Net of a stream inside an FPGA -> beats of a tensor, tensors of a batch."""
    batch, found = graph.recipe.batch, {}
    for edge, _, source, consumer, sink in graph.edges:
        made = 1 if source.tensor.kind.per_batch else batch
        if source.tensor.kind is Edges.SUMS:
            made = max(1, batch - 1)
        # weights outside come once a frame
        read = batch if sink.name in consumer.layer.replayed else made
        found[produced_net(edge)] = source.beats, made
        found |= dict.fromkeys((consumed_net(edge), adapted_net(edge), fetched_net(edge)), (sink.beats, read))
        if wide_beats(graph, edge, source, sink, 1) is not None:
            # between the FIFO and the adapter behind it
            found[adapted_net(edge)] = source.beats, made
    for node in graph.nodes:
        for ring in node.layer.rings:
            name, tensors = ring_region(node.name, ring), int(ring.per_frame * batch)
            if tensors:
                out, back = (outside_net(node.name, port) for port in (ring.out, ring.back))
                found |= dict.fromkeys((out, stored_net(name)), (ring.out.beats, tensors))
                found |= dict.fromkeys((back, fetched_net(name)), (ring.back.beats, tensors))
        for port in node.layer.fetched:
            nets = outside_net(node.name, port), fetched_net(fetched_region(node.name, port))
            found |= dict.fromkeys(nets, (port.beats, batch))
    return found


def write_sources(delivered: Delivered, bench: Bench, library: ModuleLibrary, folder: Path) -> list[Path]:
    """Write the Verilog of the bench into ``folder``; returns its files and those delivered.

    Raises `DeliveryError` where these have the name of a module of the bench, or differ between devices."""
    modules = delivered.modules()
    texts = dict(bench.texts)
    texts |= {module.name: module.verilog.text for module in library if module.name in bench.modules}
    both = sorted(str(modules[name]) for name in texts.keys() & modules.keys())
    if both:
        raise DeliveryError(f"{', '.join(both)}: the co-simulation has modules of these names", "rename the devices")
    texts |= bench.tops
    for name, text in texts.items():
        write_text(folder / "rtl" / f"{name}.v", text)
    for name, loaded in bench.loaded.items():
        write_image(folder / name, loaded.words, loaded.bits)
    own = [folder / "rtl" / f"{name}.v" for name in texts]
    return [path.resolve() for path in (*(path for name, path in modules.items() if name not in texts), *own)]


def emulate(
    golden: Executor,
    feeds: Sequence[Feeds],
    sent: dict[str, list[IntArray]] | None = None,
    observe: Observer | None = None,
) -> dict[str, IntArray]:
    """What every host output must have received: stacked over all frames.

    ``sent`` gets the new weights of every batch, by edge; ``observe`` sees every edge of every batch."""
    parts: dict[str, list[Any]] = {}
    for feed in feeds:
        for name, array in golden.step(feed, observe).items():
            parts.setdefault(name, []).append(array)
        for edge, versions in (sent or {}).items():
            versions.append(golden.weights[edge])
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def write_loads(delivered: Delivered, bench: Bench, golden: Executor, batches: int, folder: Path) -> None:
    """Files of what is loaded into each device by a port, so that it begins as ``golden`` stands, trains so many
    batches, and dumps its state."""
    for device in delivered.devices:
        state, name = device.manifest.state, device.manifest.device
        if state is not None and name in bench.loads:
            records = [*load_records(golden, state.links), Record(Kind.RUN, (batches,)), Record(Kind.DUMP)]
            write_image(folder / bench.loads[name], words_of(records), WORD_BITS)


def write_inputs(graph: Graph, bench: Bench, feeds: Sequence[Feeds], folder: Path) -> None:
    """Files of what host ports are fed."""
    for node, file_name in bench.played.items():
        layer = graph.by_name[node].layer
        port = layer.sources[0]
        codes = port.tensor.fixed.encode(np.concatenate([feed[node] for feed in feeds]))
        write_image(folder / file_name, to_beats(layer, port.name, codes), port.payload_bits)
