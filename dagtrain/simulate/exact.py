"""The exact level: the control of delivered Verilog in Verilator, with the bench, network, hosts and memories of the
co-simulation, and their random stalls.

What it counts is, cycle for cycle, what `dagtrain cosim` would count with the same options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dagtrain.cosim.bench import design_bench, link_carries, weight_logs
from dagtrain.cosim.cluster import (
    Feeds,
    bench_clocks,
    bench_options,
    located,
    port_bits_per_cycle,
    port_names,
    spoken,
    write_loads,
    write_network,
)
from dagtrain.cosim.network import PairCounts, read_counts
from dagtrain.cosim.parts import Bench
from dagtrain.cosim.simulator import Listener, RunLog, Simulator, StuckError, build, execute
from dagtrain.cosim.switch_host import NetworkHost
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.manifest import DeliveryError
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.files import write_text
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress
from dagtrain.simulate.control import Control, control_of
from dagtrain.simulate.probes import Heard, Told, read_told, told_of
from dagtrain.simulate.result import BatchWork, CableWork, Level, Simulation, binding, full_work
from dagtrain.training.feeds import host_inputs
from hdl.errors import DagtrainError


@dataclass(frozen=True, kw_only=True)
class ExactOptions:
    """How long, and in what surroundings."""

    batches: int
    # of the first batch, those with whose results it ends; None: when all batches are trained
    results: int | None = None
    network: NetworkModel
    memory: MemoryModel
    # of 256 cycles, those in which hosts stall
    host_stall_256: int = 0
    seed: int = 1


@dataclass(frozen=True)
class ExactRun:
    """A run."""

    simulation: Simulation
    log: RunLog
    control: Control


def simulate_exactly(
    delivered: Delivered,
    graph: Graph,
    library: ModuleLibrary,
    folder: Path,
    options: ExactOptions,
    progress: Progress,
    optimise: bool = True,
) -> ExactRun:
    """Train for some batches, or a part of one, without values, and tell when what happened.

    ``folder`` gets all that is written.
    ``graph`` is placed and folded, and was emitted.
    ``optimise`` False builds fast and runs slowly.
    Raises `DataDependentError` for control that reads data, `DagtrainError` for a part of a batch that nobody feeds."""
    surroundings = bench_options(
        delivered, graph, options.batches, options.network, options.memory, options.seed,
        host_stall_256=options.host_stall_256,
    )  # fmt: skip
    if options.results is not None:
        if spoken(delivered):
            raise DagtrainError(
                f"{options.results} frames: a host on the network feeds whole batches",
                f"give {graph.recipe.batch} or more",
            )
        surroundings = replace(surroundings, results=options.results, settle_cycles=0)
    told = told_of(delivered.devices, graph, weight_logs(delivered.devices))
    bench = design_bench(delivered.devices, library, surroundings, folder, values=False, beside=told.text)
    progress.begin("slice", 1)
    control = control_of(delivered.devices, bench, _texts(delivered, bench, library))
    progress.end()
    progress.begin("build for verilator", 1)
    sources = []
    for name, text in control.texts.items():
        write_text(folder / "rtl" / f"{name}.v", text)
        sources.append((folder / "rtl" / f"{name}.v").resolve())
    clocks = bench_clocks(delivered, options.seed)
    program = build(folder / "sim", sources, Simulator.VERILATOR, optimise, clocks, macs=bench.macs).resolve()
    progress.end()
    frames, records = surroundings.recorded_frames, sum(recording.beats for recording in bench.recorded.values())
    progress.begin("simulation", frames)
    listener = Listener(progress, frames, records)
    arguments = write_network(folder, delivered, options.network) if bench.macs else ()
    if bench.loads:
        write_loads(delivered, bench, Executor(graph, Mode.GOLDEN), options.batches, folder)
    host = NetworkHost(delivered, graph, _nothing(graph, options.batches)) if spoken(delivered) else None
    try:
        log = execute(program, folder, listener.on_frame, arguments=arguments, host=host, on_cycle=listener.on_cycle)
    except StuckError as error:
        raise located(error, delivered, surroundings, listener.seen) from None
    finally:
        if host is not None:
            host.close()
    progress.end()
    heard = read_told(folder, told, graph)
    if bench.macs:
        cables = _framed(delivered, options.network, read_counts(folder))
    else:
        cables = _cables(delivered, options.network, told, heard.words)
    return ExactRun(_simulation(delivered, graph, options, told, heard, log, cables), log, control)


def _nothing(graph: Graph, batches: int) -> list[Feeds]:
    """Zeros for so many batches: what a host that speaks over the network sends."""
    ports = {name: graph.by_name[name].layer.sources[0].tensor for name in host_inputs(graph)}
    return [{name: np.zeros((graph.recipe.batch, *tensor.shape)) for name, tensor in ports.items()}] * batches


def _texts(delivered: Delivered, bench: Bench, library: ModuleLibrary) -> dict[str, str]:
    """Module -> Verilog.  Raises `DeliveryError` where a delivered one has the name of one of the bench."""
    texts = dict(bench.texts) | {m.name: m.verilog.text for m in library if m.name in bench.modules}
    modules = delivered.modules()
    both = sorted(str(modules[name]) for name in texts.keys() & modules.keys())
    if both:
        raise DeliveryError(f"{', '.join(both)}: the simulation has modules of these names", "rename the devices")
    return {name: path.read_text() for name, path in modules.items()} | texts


def _simulation(
    delivered: Delivered,
    graph: Graph,
    options: ExactOptions,
    told: Told,
    heard: Heard,
    log: RunLog,
    cables: tuple[CableWork, ...],
) -> Simulation:
    batch = graph.recipe.batch
    results = _of_frames(log.frame_cycles, options.results or options.batches * batch)
    return Simulation(
        level=Level.EXACT,
        clock_mhz=delivered.network_mhz,
        batch=batch,
        cycles=results[-1],
        worked_cycles=log.cycles,
        frame_cycles=results,
        nodes=heard.nodes,
        cables=cables,
        batches=_batches(heard, told, results, batch),
        binds=binding(heard.nodes, cables, log.cycles),
        full=full_work(heard.nodes, heard.works, results, {node: float(graph.busy(node)) for node in graph.by_name})
        if options.batches == 1
        else None,
    )


def _of_frames(stamps: Sequence[int], frames: int) -> tuple[int, ...]:
    """The cycle of the last record of each frame, of those of all records."""
    records = len(stamps) // frames
    return tuple(stamps[records - 1 :: records])


def _cables(delivered: Delivered, network: NetworkModel, told: Told, words: Sequence[int]) -> tuple[CableWork, ...]:
    ports = {device.manifest.device: device for device in delivered.devices if device.manifest.network}
    records = [device.manifest.network for device in ports.values() if device.manifest.network]
    bits = records[0].format.payload_bits if records else 0
    return tuple(
        CableWork(
            source=lane.source,
            target=lane.target,
            bits=count * bits,
            bits_per_cycle=bits * float(min(link_carries(ports[lane.source], network), lane.carries)),
        )
        for lane, count in zip(told.lanes, words, strict=True)
        if count
    )


def _framed(delivered: Delivered, network: NetworkModel, pairs: Sequence[PairCounts]) -> tuple[CableWork, ...]:
    """What frames took between ports of the switch, those sent again too."""
    names, rate = port_names(delivered), float(port_bits_per_cycle(delivered, network))
    return tuple(
        CableWork(source=names[pair.source], target=names[pair.target], bits=8 * pair.sent_bytes, bits_per_cycle=rate)
        for pair in pairs
        if pair.sent_bytes
    )


def _batches(heard: Heard, told: Told, results: Sequence[int], batch: int) -> tuple[BatchWork, ...]:
    """Of all batches; versions of weights that were loaded count for none."""
    found = []
    for number in range(-(-len(results) // batch)):
        first = number * batch
        last = min(first + batch, len(results)) - 1
        begun = [node.spans[first].first for node in heard.nodes if not node.per_batch and len(node.spans) > first]
        sent = [
            versions[log.loaded + number]
            for log, versions in zip(told.weights, heard.versions, strict=True)
            if last == first + batch - 1
        ]
        found.append(
            BatchWork(
                first_cycle=min(begun),
                first_result=results[first],
                last_result=results[last],
                last_weights=max(sent, default=None),
            )
        )
    return tuple(found)
