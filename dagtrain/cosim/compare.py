"""The delivered hardware's words beside the emulator's: initial images, metrics of every frame, training state."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagtrain.cosim.bench import Bench
from dagtrain.cosim.simulator import RunLog, read_memory
from dagtrain.emission.delivered import Delivered, DeliveredDevice
from dagtrain.emission.device import first_images
from dagtrain.emission.manifest import COMMAND, DeliveryError
from dagtrain.executor import Executor
from hdl.fixed import IntArray
from hdl.layers.base import to_beats, unpack
from hdl.tensor import Port

# mismatches described one by one
SHOWN_MISMATCHES = 40


@dataclass(frozen=True)
class ClusterRun:
    """The outcome of a co-simulation."""

    cycles: int
    # mean interval between frames at the loss, over the second half of the run
    cycles_per_frame: float
    # from the last frame of each batch to that of the next one, at the loss
    batch_cycles: tuple[int, ...]
    # memory words and beats compared
    compared_words: int
    # empty if every bit is equal
    mismatches: tuple[str, ...]
    # of each frame, as the hardware recorded them
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Compared:
    """Words held against each other."""

    words: int
    mismatches: tuple[str, ...]


def compare_start(delivered: Delivered, golden: Executor) -> Compared:
    """The delivered images of memories beside what the graph starts with.

    Raises `DeliveryError` where a device has other images than its nodes."""
    placed = [node for device in delivered.devices for node in device.manifest.nodes]
    if sorted(placed) != sorted(golden.graph.by_name):
        raise DeliveryError(f"the manifests name other nodes than the placed graph; run `{COMMAND}` again")
    mismatches: list[str] = []
    words = 0
    for device in delivered.devices:
        for what, got, want in _initial_words(device, golden):
            words += len(want)
            mismatches += differences(f"{device.manifest.device}: {what} at the start", got, want)
    return Compared(words, tuple(mismatches))


def _initial_words(device: DeliveredDevice, golden: Executor) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
    """(what it is, words that were delivered, words that the graph starts with) of every image."""
    manifest, graph = device.manifest, golden.graph
    known = {(image.node, image.image) for image in manifest.images}
    wanted = {(name, memory.name) for name in manifest.nodes for memory in graph.by_name[name].layer.memories()}
    if known != wanted:
        names = ", ".join(f"{node}.{image}" for node, image in sorted(known ^ wanted))
        raise DeliveryError(
            f"the manifest of {manifest.device} has other images than its layers: {names}; run `{COMMAND}` again"
        )
    for image in manifest.images:
        want = first_images(graph, graph.by_name[image.node])[image.image]
        yield f"{image.node}.{image.image} ({image.file})", device.words(image), want
    memory = manifest.memory
    if memory is None:
        return
    parts = dict(device.memory_words())
    regions = {region.base: region for region in memory.regions if region.contents}
    if parts.keys() != regions.keys():
        raise DeliveryError(f"{device.folder / memory.image} has other parts than the manifest; run `{COMMAND}` again")
    for base, region in regions.items():
        held = region.contents
        assert held is not None
        got = held.beats(parts[base], memory.format)
        yield (
            f"{held.node}.{held.image} ({memory.image})",
            got,
            first_images(graph, graph.by_name[held.node])[held.image],
        )


def compare(
    bench: Bench,
    golden: Executor,
    expected: Mapping[str, IntArray],
    folder: Path,
    log: RunLog,
    frames: int,
    start: Compared,
) -> ClusterRun:
    """What the bench recorded and dumped into ``folder``, beside what the golden models say; and ``start``."""
    mismatches = list(start.mismatches)
    compared = start.words
    losses: list[float] = []
    for node, recording in bench.recorded.items():
        layer = golden.graph.by_name[node].layer
        port = layer.sinks[0]
        got = read_memory(folder / recording.file_name)
        want = to_beats(layer, port.name, expected[node])
        compared += len(want)
        mismatches += differences(node, got, want)
        losses += _losses(port, got)
    for dump in bench.dumps:
        holder = golden.graph.by_name[dump.node]
        want = holder.layer.images(golden.states[holder.name])[dump.image]
        got = dump.contents(read_memory(folder / dump.file_name))
        compared += len(want)
        mismatches += differences(f"{dump.device}: {holder.name}.{dump.image}", got, want)
    intervals = _interval(log, frames), batch_cycles(log.frame_cycles, frames // golden.graph.recipe.batch)
    return ClusterRun(log.cycles, *intervals, compared, tuple(mismatches[:SHOWN_MISMATCHES]), tuple(losses))


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


def batch_cycles(stamps: Sequence[int], batches: int) -> tuple[int, ...]:
    """Cycles from the end of each batch to that of the next one, of the cycles at which records came."""
    records = max(1, len(stamps) // batches)
    return tuple(later - end for end, later in itertools.pairwise(stamps[records - 1 :: records]))


def _interval(log: RunLog, frames: int) -> float:
    """Mean cycles between frames over the second half of the run."""
    stamps = log.frame_cycles
    if len(stamps) < 4:
        return float(log.cycles) / frames
    half = len(stamps) // 2
    share = frames * (len(stamps) - 1 - half) / len(stamps)
    return (stamps[-1] - stamps[half]) / share
