"""`dagtrain cosim`: all FPGAs' emitted Verilog in one simulation, training whole batches, against the emulator.

The simulation compiles the files that `dagtrain emit` left and loads the images of the manifests.  The graph of the
plan only says what must come out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any

from dagtrain.cosim.bench import has_cables
from dagtrain.cosim.circuits import Circuit, circuits
from dagtrain.cosim.cluster import Feeds, bench_clocks, simulate_cluster, spoken
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.efficiency import WELL_USED, EngineMeasurements, Measurement, write_efficiency
from dagtrain.cosim.inside import Inner, read_inside
from dagtrain.cosim.ranks import simulate_on_ranks
from dagtrain.cosim.resets import train_through_resets
from dagtrain.cosim.simulator import Simulator, is_long, step_ps
from dagtrain.cosim.testbench import simulate_under_myhdl
from dagtrain.cosim.timeline import STRETCHES
from dagtrain.cosim.trace import traced_streams
from dagtrain.cosim.viewers import GTKWAVE, SURFER, write_views
from dagtrain.cosim.waves import (
    Wave,
    WaveKind,
    Window,
    chosen_inside,
    chosen_waves,
    parse_range,
    read_waves,
    write_waves,
)
from dagtrain.emission.delivered import Delivered, load_delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.files import write_text
from dagtrain.flow.cosim_network import CAPTURE, NetworkOptions, capture_frames, network_lines, network_meta
from dagtrain.flow.cosim_ranks import helped_ranks
from dagtrain.flow.emit_step import COMMAND, library, load_emitted_graph
from dagtrain.flow.placed import load_plan, load_plan_cluster
from dagtrain.flow.records import CosimRecord, EmitRecord, ImportRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.show import saturated
from dagtrain.flow.tools import SIMULATORS, require_tools
from dagtrain.flow.trained import begun_from, weights_digest
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, program_hash, read_json
from dagtrain.graph.ir import Graph
from dagtrain.planning.choices import folded_graph
from dagtrain.progress import Progress
from dagtrain.training.feeds import check_dataset, feeds_of, synthetic_feeds
from dagtrain.training.spec import choose_data
from hdl.errors import DagtrainError
from hdl.simulate.cosimulation import Engine
from placement.problem.cluster import Cluster
from placement.problem.plan import Plan

# waveforms in the step's folder, with the ending of their kind
WAVES = "waves"
VIEWS = f"{WAVES}{GTKWAVE} for GTKWave and {WAVES}{SURFER} for Surfer"
# what engines did in a batch among others
TIMELINE = "timeline.json"
# poorly used engines that the summary names
SHOWN_ENGINES = 3


@dataclass(frozen=True, kw_only=True)
class CosimOptions(NetworkOptions):
    """What the user said."""

    batches: int = 4
    # share of cycles in which hosts and network stall
    stall: float = 0.25
    latency_cycles: int = 200
    # stretches for which ports are shut, see `dagtrain.cosim.bench.BenchOptions`; 0: never
    hold_cycles: int = 0
    # verilator or icarus run a Verilog bench, myhdl a MyHDL testbench of what `engine` runs
    simulator: str = "verilator"
    # verilator or icarus, under MyHDL only; None: verilator
    engine: str | None = None
    data: str | None = None
    # cycles "100:900" in which the host on the network does nothing
    host_pause: str | None = None
    # what `dagtrain emit` must have begun from; None: whatever it did
    weights: Path | None = None
    seed: int = 1
    # also measure the MAC-slot efficiency of every engine, alone and without stalls, in Verilator
    efficiency: bool = True
    # waveforms of streams: vcd or fst, of nodes whose names match (none: all), while frames "3:4" pass (counted from 1
    # over the whole run), in cycles "100:900"
    waves: str | None = None
    wave_nodes: tuple[str, ...] = ()
    wave_frames: str | None = None
    wave_cycles: str | None = None
    # also all signals inside the circuits of those nodes
    wave_inside: bool = False
    # share the FPGAs among the ranks of an MPI program, of which this process is the first
    mpi: bool = False


def run(workspace: Workspace, options: CosimOptions, progress: Progress) -> StepResult:
    """Co-simulate unless nothing changed."""
    problems = _problems(options)
    if problems:
        raise DagtrainError.listing("cosim", problems)
    workspace.require("emit", COMMAND)
    depends = {"emit": workspace.fingerprint("emit"), **asdict(options)}
    done = workspace.run("cosim", depends, lambda folder: _work(folder, workspace, options, progress))
    folder = workspace.folder("cosim")
    meta = read_json(folder / "cosim.json", "dagtrain cosim", CosimRecord)
    verdict = "every bit equal" if meta["equal"] else "MISMATCH: " + "; ".join(meta["mismatches"][:5])
    lines = (
        f"{meta['frames']} frames in {meta['batches']} batches on {meta['devices']} FPGAs, {meta['cycles']:,} cycles; "
        f"{_batches(meta)}",
        f"losses, weights, momenta and normalisation state against the emulator: {verdict} "
        f"({meta['compared_words']:,} words)",
        *(() if options.waves is None else (f"{folder / WAVES}.{options.waves} (waveforms), with {VIEWS}",)),
        *(network_lines(meta["network"]) if "network" in meta else ()),
        *((f"{folder / CAPTURE} (frames of all ports)",) if options.pcap else ()),
        *(line for line in (saturated(meta["saturations"]), meta["traffic"], meta["mac_efficiency"]) if line),
    )
    return StepResult("cosim", folder, done, lines, meta, passed=meta["equal"])


def _batches(meta: Mapping[str, Any]) -> str:
    """How long batches took beside what the plan says."""
    planned = f"planned {meta['planned_batch_cycles']:,} cycles a batch without stalls"
    if not meta["batch_cycles"]:
        return f"one batch tells no interval between batches, {planned}"
    return f"the last batch took {meta['batch_cycles'][-1]:,} with stalls in {meta['stall']:.0%} of cycles; {planned}"


def run_problems(batches: int, stall: float, latency_cycles: int) -> list[str]:
    """What is wrong with how long, and in what network, FPGAs are to be simulated."""
    problems = []
    if batches < 1:
        problems.append(f"--batches must be at least 1, not {batches}")
    if not 0 <= stall < 1:
        problems.append(f"--stall must lie in [0, 1), not {stall}")
    if latency_cycles < 1:
        problems.append(f"--latency must be at least 1 cycle, not {latency_cycles}")
    return problems


def _problems(options: CosimOptions) -> list[str]:
    problems = run_problems(options.batches, options.stall, options.latency_cycles)
    problems += options.network_problems()
    if options.hold_cycles < 0:
        problems.append(f"--hold must be at least 0 cycles, not {options.hold_cycles}")
    if options.waves is not None:
        kinds = [kind.value for kind in WaveKind]
        if options.waves not in kinds:
            problems.append(f"--waves must be one of {', '.join(kinds)}, not {options.waves}")
        if options.simulator == "myhdl":
            problems.append("--waves needs --simulator verilator or icarus")
        if options.wave_inside and not options.wave_nodes:
            problems.append("--wave-inside needs --wave-nodes: circuits have thousands of signals")
        if options.wave_inside and options.simulator == "icarus":
            problems.append("--wave-inside needs --simulator verilator")
    elif options.wave_nodes or options.wave_frames or options.wave_cycles or options.wave_inside:
        problems.append("--wave-nodes, --wave-frames, --wave-cycles and --wave-inside go with --waves vcd or fst")
    ranges = (
        ("--wave-frames", options.wave_frames, 1),
        ("--wave-cycles", options.wave_cycles, 0),
        ("--host-pause", options.host_pause, 0),
    )
    for option, text, least in ranges:
        try:
            parse_range(text, option, least)
        except DagtrainError as error:
            problems.append(str(error))
    if options.reset and (options.waves is not None or options.hold_cycles or options.simulator != "verilator"):
        problems.append("--reset goes without --waves and --hold, and with --simulator verilator")
    if options.mpi:
        problems += [f"--mpi goes without {option}" for option, said in _not_on_ranks(options).items() if said]
    if options.simulator not in SIMULATORS:
        problems.append(f"--simulator must be one of {', '.join(SIMULATORS)}, not {options.simulator}")
    engines = [engine.value for engine in Engine]
    if options.engine is not None and options.simulator != "myhdl":
        problems.append(f"--engine {options.engine} goes with --simulator myhdl, not {options.simulator}")
    elif options.engine is not None and options.engine not in engines:
        problems.append(f"--engine must be one of {', '.join(engines)}, not {options.engine}")
    return problems


def _not_on_ranks(options: CosimOptions) -> dict[str, bool]:
    """Options that look into all FPGAs at once, and whether they were said."""
    return {
        f"--simulator {options.simulator}": options.simulator != "verilator",
        "--hold": options.hold_cycles > 0,
        "--waves": options.waves is not None,
        "--reset": bool(options.reset),
    }


def _engine(options: CosimOptions) -> Engine:
    """What runs the Verilog under a MyHDL testbench."""
    return Engine(options.engine or Engine.VERILATOR.value)


def _tools(options: CosimOptions) -> tuple[str, ...]:
    """The programs that the simulation needs."""
    if options.simulator != "myhdl":
        return SIMULATORS[options.simulator]
    # MyHDL talks to Icarus over VPI
    return SIMULATORS["verilator"] if _engine(options) is Engine.VERILATOR else SIMULATORS["myhdl"]


@dataclass(frozen=True)
class Prepared:
    """What is simulated, on what."""

    delivered: Delivered
    # as the plan builds it
    graph: Graph
    # batches
    feeds: Sequence[Feeds]
    network: NetworkModel
    memory: MemoryModel
    # of 256 cycles, those in which hosts and network stall
    stall_256: int


def prepared(workspace: Workspace, options: CosimOptions) -> Prepared:
    """What `emit` left, and batches for it.

    Raises `DagtrainError` where it does not begin from the checkpoint that was said."""
    plan, delivered = load_plan(workspace), load_emitted(workspace)
    begun = load_emitted_graph(workspace)
    if options.weights is not None and weights_digest(begun) != weights_digest(begun_from(begun, options.weights)):
        command = f"dagtrain emit --weights {options.weights}"
        raise DagtrainError(
            f"{workspace.folder('emit')} does not begin from {options.weights}", f"run `{command}` first"
        )
    graph = folded_graph(begun, plan)
    imported = read_json(workspace.folder("import") / "import.json", "dagtrain import MODEL.onnx", ImportRecord)
    source = options.data or imported["data"]
    batch = graph.recipe.batch
    if source is None:
        feeds = [synthetic_feeds(graph, batch, options.seed + index) for index in range(options.batches)]
    else:
        dataset = check_dataset(graph, choose_data(source).load(), source)
        order = list(dataset.batches(batch, options.seed, 0))
        feeds = [feeds_of(graph, dataset, order[index % len(order)]) for index in range(options.batches)]
    stall_256 = round(options.stall * 256)
    cluster = load_plan_cluster(workspace)
    network = NetworkModel(
        latency_cycles=options.latency_cycles,
        bits_per_s=link_rates(cluster),
        stall_256=stall_256,
        seed=options.seed,
        host_pauses=host_pauses(delivered, options.host_pause),
        resets=options.resets(delivered),
        faults=options.faults(delivered),
        capture=options.pcap,
    )
    memory = memory_model(cluster, stall_256, options.seed)
    return Prepared(delivered, graph, feeds, network, memory, stall_256)


def link_rates(cluster: Cluster) -> Mapping[str, int]:
    """Device -> bits/s of its link to a switch of words, as the plan counts on; cables have their own."""
    if cluster.routing is not None or cluster.network.frames is not None:
        return {}
    share = cluster.network.efficiency
    return {device.name: int(device.board.link_bits_per_s * share) for device in cluster.devices}


def memory_model(cluster: Cluster, stall_256: int, seed: int) -> MemoryModel:
    """The memories of a cluster, each channel with its part of the bandwidth that the plan may use."""
    rates = {
        device.name: Fraction(device.board.dram_bytes_per_s, device.board.dram_channels)
        for device in cluster.devices
        if device.board.dram_bytes_per_s
    }
    return MemoryModel(bytes_per_s=rates, stall_256=stall_256, seed=seed)


def host_pauses(delivered: Delivered, text: str | None) -> tuple[tuple[int, int], ...]:
    """Of ``--host-pause``, with the cycle behind the last.  Raises `DagtrainError` where no host is on the network."""
    pause = parse_range(text, "--host-pause", 0)
    if pause is None:
        return ()
    if not spoken(delivered):
        raise DagtrainError("--host-pause: the host has ports of its own", "emit with --host network")
    return ((pause[0], pause[1] + 1),)


def _work(folder: Path, workspace: Workspace, options: CosimOptions, progress: Progress) -> None:
    require_tools(*_tools(options), *(SIMULATORS["verilator"] if options.efficiency else ()))
    plan, ready, modules = load_plan(workspace), prepared(workspace, options), library()
    delivered, graph = ready.delivered, ready.graph
    if options.mpi and has_cables(delivered.devices):
        raise DagtrainError("--mpi: words go over cables, which one program simulates alone", "leave --mpi out")
    bench, stretch = folder / "bench", max(1, plan.batch_cycles // STRETCHES)
    # a batch may take many times as long as its frames: what fills and drains the pipeline counts
    optimise = is_long(options.batches * plan.batch_cycles)
    with ExitStack() as stack:
        engines = stack.enter_context(EngineMeasurements(graph, modules, delivered)) if options.efficiency else None
        if options.reset:
            outcome = _through_resets(ready, bench, options.seed, optimise, progress)
        elif options.simulator == "myhdl":
            outcome = simulate_under_myhdl(
                delivered, graph, modules, ready.feeds, bench, ready.network, ready.memory, options.stall,
                options.seed, _engine(options), progress, optimise, options.hold_cycles, stretch,
            )  # fmt: skip
        elif options.mpi:
            outcome = simulate_on_ranks(
                helped_ranks(), program_hash(), delivered, graph, modules, ready.feeds, bench, progress,
                network=ready.network, host_stall_256=ready.stall_256, seed=options.seed, memory=ready.memory,
                optimise=optimise, stretch_cycles=stretch,
            )  # fmt: skip
        else:
            cycles = Window(*(parse_range(options.wave_cycles, "--wave-cycles", 0) or ()))
            inside = _inside(ready, options) if options.wave_inside else ()
            outcome = simulate_cluster(
                delivered, graph, modules, ready.feeds, bench, Simulator(options.simulator), ready.network,
                ready.stall_256, options.seed, progress, optimise, ready.memory, options.hold_cycles,
                on_traces=(lambda _: None) if options.waves else None, waves=cycles.arguments if options.waves else (),
                inside=inside, stretch_cycles=stretch,
            )  # fmt: skip
            if options.waves:
                _write_waves(folder, ready, plan, options, cycles, inside)
        measured = engines.results(progress) if engines else None
    meta = _meta(outcome, options, graph.recipe.batch, delivered, plan)
    if outcome.pairs:
        meta["network"] = network_meta(outcome, delivered)
    if options.pcap:
        capture_frames(folder, bench, delivered, plan.clock_hz)
    if measured is not None:
        write_efficiency(folder / "efficiency.json", measured)
        meta["mac_efficiency"] = _efficiency_line(measured)
    if outcome.timeline is not None:
        write_text(folder / TIMELINE, outcome.timeline.to_json())
    write_text(folder / "cosim.json", json.dumps(meta, indent=1) + "\n")


def _through_resets(ready: Prepared, bench: Path, seed: int, optimise: bool, progress: Progress) -> ClusterRun:
    progress.begin("co-simulation")

    def on_beats(beats: int) -> None:
        progress.advance(0, note=f"{beats:,} beats of metrics sent to the host")

    run = train_through_resets(
        ready.delivered, ready.graph, library(), ready.feeds, bench, ready.network, seed, on_beats, optimise
    )
    progress.end()
    return run


def _inside(ready: Prepared, options: CosimOptions) -> tuple[Circuit, ...]:
    """Circuits of the nodes that were chosen.  Raises `DagtrainError` where there are none."""
    known = circuits(ready.delivered.devices, ready.graph)
    found = tuple(
        one for one in known if any(fnmatchcase(name, each) for name in one.nodes for each in options.wave_nodes)
    )
    if not found:
        names = ", ".join(sorted(name for one in known for name in one.nodes))
        raise DagtrainError("--wave-nodes chooses no circuit to look into", f"there are {names}")
    return found


def _write_waves(
    folder: Path, ready: Prepared, plan: Plan, options: CosimOptions, cycles: Window, inside: Sequence[Circuit]
) -> None:
    frames = parse_range(options.wave_frames, "--wave-frames", 1)
    counted = None if frames is None else (frames[0] - 1, frames[1] - 1)
    waves = read_waves(folder / "bench", traced_streams(ready.delivered.devices, ready.graph), ready.graph)
    chosen = chosen_waves(waves, options.wave_nodes, counted, cycles)
    inner = inner_signals(folder / "bench", ready, options.seed, plan, inside, chosen)
    file = write_waves(folder / WAVES, chosen, WaveKind(options.waves), clock_period_ps(plan), inner)
    write_views(file, chosen, inner)


def inner_signals(
    bench: Path, ready: Prepared, seed: int, plan: Plan, inside: Sequence[Circuit], chosen: Sequence[Wave]
) -> list[Inner]:
    """What a bench that ran in a folder recorded inside circuits, while streams of their nodes are shown."""
    if not inside:
        return []
    clocks, period = bench_clocks(ready.delivered, seed), clock_period_ps(plan)
    return chosen_inside(read_inside(bench, inside, lambda step: step_ps(step, clocks, period)), chosen, period)


def clock_period_ps(plan: Plan) -> int:
    """Of the cluster's clock."""
    return round(10**12 / plan.clock_hz)


def load_emitted(workspace: Workspace) -> Delivered:
    """What `emit` left."""
    folder = workspace.require("emit", COMMAND)
    meta = read_json(folder / "emit.json", COMMAND, EmitRecord)
    return load_delivered([folder / device["name"] for device in meta["devices"]])


def _efficiency_line(measured: tuple[Measurement, ...]) -> str:
    """What the measurement found, in one line."""
    if not measured:
        return "no engine could be measured alone"
    low = sorted((one for one in measured if one.waits_for), key=lambda one: one.efficiency)
    good = f"{len(measured) - len(low)} of {len(measured)} multiply in at least {WELL_USED:.0%} of their slots"
    waiting = "".join(f"; {one.node} in {one.efficiency:.1%} ({one.waits_for})" for one in low[:SHOWN_ENGINES])
    return f"MAC engines measured alone: {good}{waiting}{'; …' if len(low) > SHOWN_ENGINES else ''}"


def _meta(
    outcome: ClusterRun, options: CosimOptions, batch: int, delivered: Delivered, plan: Plan
) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "batches": options.batches,
        "frames": options.batches * batch,
        "devices": len(delivered.devices),
        "cycles": outcome.cycles,
        "cycles_per_frame": outcome.cycles_per_frame,
        "batch_cycles": list(outcome.batch_cycles),
        "planned_batch_cycles": plan.batch_cycles,
        "planned_cycles_per_frame": plan.cycles_per_frame,
        "stall": options.stall,
        "compared_words": outcome.compared_words,
        "equal": not outcome.mismatches,
        "mismatches": list(outcome.mismatches),
        "losses": list(outcome.losses),
        "saturations": dict(outcome.saturations),
        "traffic": outcome.traffic,
        "mac_efficiency": "",
    }
