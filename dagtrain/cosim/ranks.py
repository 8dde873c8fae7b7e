"""A cluster simulated by several ranks, each with some of its devices, and compared as one program's simulation is.

Rank 0 emulates and compares; all others need the delivered files alone.  Inputs and results go through the transport:
no folder is shared.  All that is compared or counted afterwards is what one program would have left.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from dagtrain.cosim.bench import SWITCH_WORDS, design_bench
from dagtrain.cosim.clocks import clock_of
from dagtrain.cosim.cluster import (
    Feeds,
    bench_clocks,
    bench_options,
    emulate,
    framed_devices,
    located,
    spoken,
    write_inputs,
    write_loads,
    write_network,
    write_sources,
)
from dagtrain.cosim.cluster import judged as compared
from dagtrain.cosim.compare import ClusterRun, batch_ends, compare_start
from dagtrain.cosim.gather import gather, merged_timeline
from dagtrain.cosim.network import PausingHost, SwitchHost
from dagtrain.cosim.parts import Bench, BenchOptions
from dagtrain.cosim.simulator import (
    BenchEnd,
    Ended,
    Simulator,
    StuckError,
    answers_of,
    build,
    is_long,
    judged,
    run_bench,
)
from dagtrain.cosim.switch_host import NetworkHost
from dagtrain.cosim.timeline import Probes, probes_for, read_timeline
from dagtrain.cosim.windows import (
    SHARE_FILE,
    AllError,
    Conductor,
    RankError,
    Ranks,
    Share,
    Window,
    dealt_out,
)
from dagtrain.emission.delivered import Delivered, load_delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.manifest import MANIFEST
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.files import FRESH
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress
from hdl.convert.tools import run_tool
from hdl.errors import DagtrainError
from hdl.fixed import IntArray

# MyHDL converts in one thread at a time: ranks may be threads
_DESIGNING = Lock()


@dataclass(frozen=True)
class Job:
    """What all ranks simulate, as rank 0 says it."""

    # in their order
    devices: tuple[str, ...]
    options: BenchOptions
    # rank of every device
    homes: tuple[int, ...]
    # of all devices; each rank counts its own
    probed: Probes | None
    optimise: bool
    # rank of every Ethernet port, in the order of the switch's; none where words go over the network as they are
    ports: tuple[int, ...] = ()

    @property
    def look_ahead(self) -> int:
        """Cycles of a window: a word is seen behind the edge before that at which it is taken, a frame later."""
        return self.options.network.latency_cycles - 1

    @property
    def conductor(self) -> Conductor:
        """Of any rank."""
        options = self.options
        return Conductor(self.look_ahead, options.settle_cycles, options.stuck_cycles)

    @property
    def share_text(self) -> str:
        """What C++ knows of the others: ranks, latency, words that the switch has room for, who has which device, or
        which port of an Ethernet."""
        latency = self.options.network.latency_cycles
        numbers = [max(self.homes) + 1, latency, latency + SWITCH_WORDS, *(self.ports or self.homes)]
        return " ".join(map(str, numbers))


@dataclass(frozen=True)
class Standing:
    """What a rank works with, to be the same everywhere."""

    machine: str
    program: str
    simulator: str
    # of all delivered files
    digest: str
    # what is wrong besides
    problem: str = ""


@dataclass(frozen=True)
class Left:
    """What a rank's simulation left."""

    end: BenchEnd
    # by name
    files: dict[str, bytes]


# ------------------------------------------------------------------------------------------------ rank 0


def simulate_on_ranks(
    ranks: Ranks,
    program: str,
    delivered: Delivered,
    graph: Graph,
    library: ModuleLibrary,
    feeds: Sequence[Feeds],
    folder: Path,
    progress: Progress,
    *,
    network: NetworkModel,
    host_stall_256: int,
    seed: int,
    memory: MemoryModel | None = None,
    optimise: bool | None = None,
    stretch_cycles: int = 0,
) -> ClusterRun:
    """As `dagtrain.cosim.cluster.simulate_cluster`, the same in every bit and cycle, by all ranks, of which this is the
    first; the others are in `help_out`.  ``program``: its fingerprint, which has to be the same everywhere.

    What each rank's simulation wrote stays in a folder of ``folder``.
    Raises `DagtrainError`, also for what is wrong at another rank."""
    frames = len(feeds) * graph.recipe.batch
    options = bench_options(
        delivered, graph, len(feeds), network, memory or MemoryModel(), seed, host_stall_256=host_stall_256
    )
    optimised = is_long(frames * delivered.cycles_per_frame) if optimise is None else optimise
    probed = probes_for(delivered, graph, options, stretch_cycles)
    job = _job(delivered, ranks.size, options, probed, optimised)
    with first_of(ranks):
        ranks.given([job] * ranks.size)
        check_alike(ranks, program, delivered)
        own = _designed(ranks.rank, job, delivered, library, folder / "rank0")
        benches = ranks.collected(own)
        bench = _joined(benches)
        folder.mkdir(parents=True, exist_ok=True)
        golden = Executor(graph, Mode.GOLDEN)
        started = compare_start(delivered, golden)
        sent: dict[str, list[IntArray]] = {log.edge: [golden.weights[log.edge]] * log.loaded for log in bench.weights}
        write_loads(delivered, bench, golden, len(feeds), folder)
        write_inputs(graph, bench, feeds, folder)
        inputs = ranks.given([_inputs(one, folder) for one in benches])
        expected = emulate(golden, feeds, sent)
        total = sum(recording.beats for recording in bench.recorded.values())

        seen = 0

        def on_progress(records: int) -> None:
            nonlocal seen
            progress.advance(records * frames // total - seen)
            seen = records * frames // total

        progress.begin("co-simulation", frames)
        host = NetworkHost(delivered, graph, feeds) if spoken(delivered) else None
        at_switch = host and PausingHost(host, network.host_pauses)
        try:
            left = _simulated(ranks, job, own, inputs, delivered, folder / "rank0", library, on_progress, at_switch)
            all_left = ranks.collected(left)
        finally:
            if host is not None:
                host.close()
    progress.end()
    for rank, one in enumerate(all_left):
        _write(folder / f"rank{rank}", one.files)
    folders = [folder / f"rank{rank}" for rank in sorted(set(job.homes))]
    gather(folders, folder)
    end = _whole([one.end for one in all_left])
    try:
        log = judged(folder, end)
    except StuckError as error:
        raise located(error, delivered, options, seen) from None
    run = compared(bench, golden, expected, folder, log, frames, started, sent, host)
    if job.probed is None:
        return run
    ends = batch_ends(log.frame_cycles, len(feeds))
    parts = [read_timeline(folder / f"rank{rank}", _own_probes(job, rank), ends) for rank in sorted(set(job.homes))]
    return replace(run, timeline=merged_timeline(parts, job.probed))


def _job(delivered: Delivered, ranks: int, options: BenchOptions, probed: Probes | None, optimise: bool) -> Job:
    """What so many ranks do.  Raises `DagtrainError` where they are too many."""
    names, framed = tuple(device.manifest.device for device in delivered.devices), framed_devices(delivered)
    homes = dealt_out(len(names), ranks)
    if framed and 0 not in homes:
        # the host's port of the switch is the first rank's
        raise DagtrainError(
            f"--mpi: {ranks} ranks for {len(names)} devices on Ethernet, whose host is beside one of them",
            f"start at most {len(names)}",
        )
    ports = tuple(home for name, home in zip(names, homes, strict=True) if name in framed)
    return Job(names, options, homes, probed, optimise, ports)


@contextmanager
def first_of(ranks: Ranks) -> Iterator[None]:
    """What goes wrong at another rank is told here."""
    try:
        with ranks.together():
            yield
    except RankError as error:
        raise DagtrainError(f"rank {error.rank}: {error}") from None


def _inputs(bench: Bench | None, folder: Path) -> dict[str, bytes]:
    """What a rank's bench reads, of what was written into a folder for all."""
    if bench is None:
        return {}
    names = [*bench.played.values(), *bench.loads.values()]
    return {name: (folder / name).read_bytes() for name in names}


def _joined(benches: Sequence[Bench | None]) -> Bench:
    """What the benches of all ranks read and write, as one."""
    first, *rest = filter(None, benches)
    for bench in rest:
        first = replace(
            first,
            played={**first.played, **bench.played},
            recorded={**first.recorded, **bench.recorded},
            dumps=(*first.dumps, *bench.dumps),
            weights=(*first.weights, *bench.weights),
            loads={**first.loads, **bench.loads},
            states=(*first.states, *bench.states),
        )
    return first


def _whole(ends: Sequence[BenchEnd]) -> BenchEnd:
    """How the cluster ended: as the rank that could say so did."""
    told = next(end for end in ends if end.how is not Ended.ABANDONED)
    return replace(told, frame_cycles=tuple(sorted(cycle for end in ends for cycle in end.frame_cycles)))


# ------------------------------------------------------------------------------------------------ all others


def help_out(ranks: Ranks, program: str, emitted: Path, library: ModuleLibrary) -> bool:
    """Do what rank 0 asks for, until it has no more to do; returns whether all went well.

    ``emitted``: the folder that `dagtrain emit` left here, beside which this rank works."""
    try:
        with ranks.together():
            while (job := ranks.given()) is not None:
                with TemporaryDirectory(prefix=f".rank{ranks.rank}{FRESH}", dir=_beside(emitted)) as name:
                    _help(ranks, job, program, emitted, library, Path(name))
    except DagtrainError:
        # rank 0 tells it
        return False
    return True


def _beside(emitted: Path) -> Path | None:
    """As far from the delivered files as rank 0 works from them: then one build serves many runs."""
    return emitted.parent if emitted.is_dir() else None


def _help(ranks: Ranks, job: Job, program: str, emitted: Path, library: ModuleLibrary, scratch: Path) -> None:
    try:
        delivered, problem = load_delivered([emitted / name for name in job.devices]), ""
    except DagtrainError as error:
        delivered, problem = None, str(error)
    check_alike(ranks, program, delivered, problem)
    assert delivered is not None
    folder = scratch / "bench" / f"rank{ranks.rank}"
    bench = _designed(ranks.rank, job, delivered, library, folder)
    ranks.collected(bench)
    ranks.collected(_simulated(ranks, job, bench, ranks.given(), delivered, folder, library))


# ------------------------------------------------------------------------------------------------ each of them


def check_alike(ranks: Ranks, program: str, delivered: Delivered | None, problem: str = "") -> None:
    """Raises `DagtrainError`, the same at all ranks, where one of them has other files or another program than the
    first."""
    digest = delivered_digest(delivered) if delivered else ""
    standings = ranks.shared(Standing(platform.node(), program, _simulator(), digest, problem))
    first, problems = standings[0], []
    for rank, one in enumerate(standings):
        where = f"rank {rank} on {one.machine}"
        if one.problem:
            problems.append(f"{where}: {one.problem}")
            continue
        what = {
            "another version of dagtrain": one.program != first.program,
            f"{one.simulator} instead of {first.simulator}": one.simulator != first.simulator,
            "other files of the FPGAs": one.digest != first.digest,
        }
        problems += [f"{where} has {name} than rank 0 on {first.machine}" for name, wrong in what.items() if wrong]
    if problems:
        cure = "install the same programs everywhere, and copy the working folder's emit/ from rank 0's machine"
        raise AllError.listing("cosim", problems, cure)


def _simulator() -> str:
    """What simulates here: machines exchange words as they lie in memory."""
    return f"{run_tool(['verilator', '--version']).strip()} on a {sys.byteorder}-endian {platform.machine()}"


def delivered_digest(delivered: Delivered) -> str:
    """Of all files of all devices that a simulation reads."""
    found = hashlib.sha256()
    for device in delivered.devices:
        images = [image.file for image in device.manifest.images]
        images += [memory.image for memory in device.manifest.memory or ()]
        for path in (device.folder / MANIFEST, *device.sources, *(device.folder / file for file in images)):
            data = path.read_bytes()
            found.update(f"{path.name} {len(data)}\n".encode() + data)
    return found.hexdigest()


def _own_probes(job: Job, rank: int) -> Probes:
    """What a rank counts."""
    assert job.probed is not None
    own = {name for name, home in zip(job.devices, job.homes, strict=True) if home == rank}
    return replace(
        job.probed,
        engines=tuple(one for one in job.probed.engines if one.device in own),
        levels=tuple(one for one in job.probed.levels if one.device in own),
    )


def _designed(rank: int, job: Job, delivered: Delivered, library: ModuleLibrary, folder: Path) -> Bench | None:
    """The bench of a rank's devices; None: it has none."""
    if rank not in job.homes:
        return None
    probed = _own_probes(job, rank) if job.probed else None
    with _DESIGNING:
        return design_bench(
            delivered.devices, library, job.options, folder, probed=probed, share=Share(rank, job.homes)
        )


def _simulated(
    ranks: Ranks,
    job: Job,
    bench: Bench | None,
    inputs: dict[str, bytes],
    delivered: Delivered,
    folder: Path,
    library: ModuleLibrary,
    on_progress: Callable[[int], None] = lambda _: None,
    host: SwitchHost | None = None,
) -> Left:
    """Build a rank's bench and run it in step with the others; ``host`` is at the host's port of a switch."""
    window = Window(ranks, job.conductor, on_progress)
    if bench is None:
        window.idle()
        return Left(BenchEnd(Ended.ABANDONED, 0, ()), {})
    _write(folder, inputs)
    here = Share(ranks.rank, job.homes).here
    own = Delivered(tuple(delivered.devices[place] for place in here))
    sources, clocks = write_sources(own, bench, library, folder), bench_clocks(delivered, job.options.seed)
    names = {"clk", *map(clock_of, own.devices), *(clk for mac in bench.macs for clk in (mac.takes_at, mac.gives_at))}
    kept = [clock for clock in clocks if clock.name in names]
    built = build(
        folder / "sim", sources, Simulator.VERILATOR, job.optimise, kept, macs=bench.macs, lanes=bench.lanes
    ).resolve()  # fmt: skip
    (folder / SHARE_FILE).write_text(f"{ranks.rank} {job.share_text}")
    told = write_network(folder, delivered, job.options.network) if bench.macs else ()
    before = {*inputs, SHARE_FILE}
    end = run_bench(built, folder, lambda _: None, None, told, {"windows": window.answer, **answers_of(host)})
    made = {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in before}
    return Left(end, {name: path.read_bytes() for name, path in made.items()})


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
