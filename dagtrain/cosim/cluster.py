"""A whole cluster in one Verilog simulation, training, and its comparison with the emulator in every bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagtrain.cosim.bench import Bench, BenchOptions, design_bench, memory_image
from dagtrain.cosim.simulator import RunLog, Simulator, build, execute, read_memory
from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.executor import Executor, Mode
from dagtrain.files import write_text
from dagtrain.progress import Progress
from hdl.fixed import IntArray
from hdl.layers.base import to_beats, unpack
from hdl.tensor import Port
from hdl.verilog import write_image, write_sparse_image

Feeds = Mapping[str, npt.NDArray[Any]]

# intervals of the pipeline that pass between the last weights and the dump of the state
SETTLE_FRAMES = 2
# intervals without any progress after which the pipeline is called deadlocked
STUCK_FRAMES = 200
# mismatches described one by one
SHOWN_MISMATCHES = 40


@dataclass(frozen=True)
class ClusterRun:
    """The outcome of a co-simulation."""

    cycles: int
    # mean interval between frames at the loss, over the second half of the run
    cycles_per_frame: float
    # memory words and beats compared
    compared_words: int
    # empty if every bit is equal
    mismatches: tuple[str, ...]
    # of each frame, as the hardware recorded them
    losses: tuple[float, ...]


def simulate_cluster(
    design: ClusterDesign,
    library: ModuleLibrary,
    feeds: Sequence[Feeds],
    folder: Path,
    simulator: Simulator,
    network: NetworkModel,
    host_stall_256: int,
    seed: int,
    progress: Progress,
    optimise: bool = True,
    memory: MemoryModel | None = None,
    before_run: Callable[[], None] = lambda: None,
) -> ClusterRun:
    """Train on ``feeds``, a batch each, in the Verilog of all devices, and compare with the golden models.

    ``optimise`` False builds fast and runs slowly: right for few frames.
    ``memory`` describes the DRAM of devices that use any.
    ``before_run`` is called once the simulation is built: what else is going on should end before it runs.
    Everything the simulation reads and writes stays in ``folder``."""
    frames = len(feeds) * design.graph.recipe.batch
    options = BenchOptions(
        frames=frames,
        network=network,
        memory=memory or MemoryModel(),
        host_stall_256=host_stall_256,
        seed=seed,
        settle_cycles=SETTLE_FRAMES * design.cycles_per_frame + network.latency_cycles + 4096,
    )
    bench = design_bench(design.graph, design.devices, library, options, design.form)
    program = _build(design, bench, library, folder, simulator, progress, optimise)
    golden = Executor(design.graph, Mode.GOLDEN)
    expected = emulate(golden, feeds)
    _write_inputs(design, bench, feeds, folder)
    before_run()
    progress.begin("co-simulation", frames)
    seen = 0

    def on_frame(records: int) -> None:
        nonlocal seen
        done = records * frames // total_records
        progress.advance(done - seen)
        seen = done

    total_records = sum(recording.beats for recording in bench.recorded.values())
    stuck = STUCK_FRAMES * design.cycles_per_frame + 20 * network.latency_cycles
    log = execute(program, folder, on_frame, stuck_after_cycles=stuck)
    progress.end()
    return compare(design, bench, golden, expected, folder, log, frames)


def _build(
    design: ClusterDesign,
    bench: Bench,
    library: ModuleLibrary,
    folder: Path,
    simulator: Simulator,
    progress: Progress,
    optimise: bool,
) -> Path:
    progress.begin(f"build for {simulator.value}", 1)
    sources = write_sources(design, bench, library, folder)
    program = build(folder / "sim", sources, simulator, optimise)
    progress.end()
    return program.resolve()


def write_sources(design: ClusterDesign, bench: Bench, library: ModuleLibrary, folder: Path) -> list[Path]:
    """Write the Verilog of all devices and of the bench, and the images of memories; returns the Verilog files."""
    sources = []
    used = {instance.module for device in design.devices for instance in device.top.instances} | set(bench.modules)
    for module in library:
        if module.name in used:
            sources.append(module.verilog.write(_made(folder / "rtl")))
    texts = {device.top.name: device.top.to_verilog() for device in design.devices} | dict(bench.texts)
    for name, text in texts.items():
        path = folder / "rtl" / f"{name}.v"
        write_text(path, text)
        sources.append(path)
    for device in design.devices:
        for image in device.images:
            write_image(folder / image.file_name, image.words, image.width)
        if device.memory:
            write_sparse_image(folder / memory_image(device), device.memory.image, device.memory.format.data_bits)
    return [path.resolve() for path in sources]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def emulate(golden: Executor, feeds: Sequence[Feeds]) -> dict[str, IntArray]:
    """What every host output must have received: stacked over all frames."""
    parts: dict[str, list[Any]] = {}
    for feed in feeds:
        for name, array in golden.step(feed).items():
            parts.setdefault(name, []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _write_inputs(design: ClusterDesign, bench: Bench, feeds: Sequence[Feeds], folder: Path) -> None:
    for node, file_name in bench.played.items():
        layer = design.graph.by_name[node].layer
        port = layer.sources[0]
        codes = port.tensor.fixed.encode(np.concatenate([feed[node] for feed in feeds]))
        write_image(folder / file_name, to_beats(layer, port.name, codes), port.payload_bits)


def compare(
    design: ClusterDesign,
    bench: Bench,
    golden: Executor,
    expected: Mapping[str, IntArray],
    folder: Path,
    log: RunLog,
    frames: int,
) -> ClusterRun:
    """What the bench recorded and dumped into ``folder``, beside what the golden models say."""
    mismatches: list[str] = []
    compared = 0
    losses: list[float] = []
    for node, recording in bench.recorded.items():
        layer = design.graph.by_name[node].layer
        port = layer.sinks[0]
        got = read_memory(folder / recording.file_name)
        want = to_beats(layer, port.name, expected[node])
        compared += len(want)
        mismatches += differences(node, got, want)
        losses += _losses(port, got)
    for dump in bench.dumps:
        holder = design.graph.by_name[dump.node]
        want = holder.layer.images(golden.states[holder.name])[dump.image]
        got = dump.contents(read_memory(folder / dump.file_name))
        compared += len(want)
        mismatches += differences(f"{dump.device}: {holder.name}.{dump.image}", got, want)
    return ClusterRun(log.cycles, _interval(log, frames), compared, tuple(mismatches[:SHOWN_MISMATCHES]), tuple(losses))


def differences(what: str, got: Sequence[int], want: Sequence[int]) -> list[str]:
    """Descriptions of a difference between words: the count, and the first word."""
    if len(got) != len(want):
        return [f"{what}: {len(got)} words instead of {len(want)}"]
    wrong = [index for index, (a, b) in enumerate(zip(got, want, strict=True)) if a != b]
    if not wrong:
        return []
    first = wrong[0]
    return [
        f"{what}: {len(wrong)} of {len(want)} words differ, first word {first}: {got[first]:#x}, not {want[first]:#x}"
    ]


def _losses(port: Port, beats: Sequence[int]) -> list[float]:
    """Losses (element 0 of each record, u32.16) of recorded metrics."""
    codes = unpack(beats, port.tensor.fixed, port.lanes).reshape(-1, port.tensor.shape[-1])
    return [float(code) / 65536 for code in codes[:, 0]]


def _interval(log: RunLog, frames: int) -> float:
    """Mean cycles between frames over the second half of the run."""
    stamps = log.frame_cycles
    if len(stamps) < 4:
        return float(log.cycles) / frames
    half = len(stamps) // 2
    share = frames * (len(stamps) - 1 - half) / len(stamps)
    return (stamps[-1] - stamps[half]) / share
