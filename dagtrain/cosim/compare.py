"""The delivered hardware's words beside the emulator's: initial images, metrics of every frame, training state."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dagtrain.cosim.locate import element_at
from dagtrain.cosim.network import PairCounts, PortCounts
from dagtrain.cosim.parts import Bench, StateLog, WeightLog
from dagtrain.cosim.simulator import RunLog, read_memory
from dagtrain.cosim.timeline import Timeline
from dagtrain.cosim.watch import traffic_line
from dagtrain.emission.delivered import Delivered, DeliveredDevice
from dagtrain.emission.manifest import COMMAND, DeliveryError
from dagtrain.emission.state import Dumped, differences, dumped
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Role
from dagtrain.graph.stores import computing_node, images_of
from hdl.engine.weights.records import Kind, StateError, records_of, words_of
from hdl.fixed import IntArray
from hdl.layers.beats import from_beats, unpack
from hdl.layers.meaning import State
from hdl.tensor import Port, from_order

# what the host gets of a frame
RECORD = ("loss", "correctness")
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
    # what was held up inside, in one line; "" if nothing was
    traffic: str = ""
    # of tensors behind which they are counted, by edge, as the hardware counted
    saturations: Mapping[str, int] = field(default_factory=dict)
    # what was counted of a batch among others; None if nothing was
    timeline: Timeline | None = None
    # frames between ports of the switch, and what devices' ports counted, in the order of ports
    pairs: tuple[PairCounts, ...] = ()
    ports: tuple[PortCounts, ...] = ()
    # by the host, by cause
    host_dropped: Mapping[str, int] = field(default_factory=dict)
    # how often the host brought the cluster back
    resets: int = 0
    # in which each record had come
    frame_cycles: tuple[int, ...] = ()


@dataclass(frozen=True)
class Compared:
    """Words held against each other."""

    words: int
    mismatches: tuple[str, ...]


def compare_start(delivered: Delivered, golden: Executor) -> Compared:
    """The delivered images of memories beside what the graph starts with; of an executor that has done no batch.

    Raises `DeliveryError` where a device has other images than its nodes."""
    placed = [node for device in delivered.devices for node in device.manifest.nodes]
    if sorted(placed) != sorted(golden.graph.by_name):
        raise DeliveryError("the manifests name other nodes than the placed graph", f"run `{COMMAND}` again")
    mismatches: list[str] = []
    words = 0
    for device in delivered.devices:
        for node, image, file, got in _initial_words(device, golden):
            where = Where(device.manifest.device, node, f"at the start, in {file}")
            want = golden.images(node)[image]
            words += len(want)
            mismatches += _image_differences(golden, where, image, got, want)
    return Compared(words, tuple(mismatches))


@dataclass(frozen=True)
class Where:
    """Of what words are."""

    device: str
    node: str
    # "after batch 3, the last one", say
    when: str

    def message(self, tensor: str, wrong: int, total: int, unit: str, first: str) -> str:
        """A difference of ``wrong`` among ``total``."""
        what = f"{self.device}: {tensor} of {self.node} {self.when}"
        return f"{what}: {wrong} of {total} {unit} differ, first {first}"


def _initial_words(device: DeliveredDevice, golden: Executor) -> Iterator[tuple[str, str, str, Sequence[int]]]:
    """(node, image, file, words that were delivered) of every image."""
    manifest, graph = device.manifest, golden.graph
    known = {(image.node, image.image) for image in manifest.images}
    wanted = {(name, memory.name) for name in manifest.nodes for memory in graph.by_name[name].layer.memories()}
    if known != wanted:
        names = ", ".join(f"{node}.{image}" for node, image in sorted(known ^ wanted))
        raise DeliveryError(
            f"the manifest of {manifest.device} has other images than its layers: {names}", f"run `{COMMAND}` again"
        )
    for image in manifest.images:
        yield image.node, image.image, image.file, device.words(image)
    for memory in manifest.memory or ():
        parts = dict(device.memory_words(memory))
        regions = {r.base: r for r in memory.regions if r.contents and not r.contents.loaded}
        if parts.keys() != regions.keys():
            raise DeliveryError(
                f"{device.folder / memory.image} has other parts than the manifest", f"run `{COMMAND}` again"
            )
        for base, region in regions.items():
            held = region.contents
            assert held is not None
            yield held.node, held.image, memory.image, held.beats(parts[base], memory.format)


def compare(
    bench: Bench,
    golden: Executor,
    expected: Mapping[str, IntArray],
    folder: Path,
    log: RunLog,
    frames: int,
    start: Compared,
    sent: Mapping[str, Sequence[IntArray]],
) -> ClusterRun:
    """What the bench recorded and dumped into ``folder``, beside what the golden models say; and ``start``.

    ``sent`` are the new weights of every batch, by edge."""
    mismatches = list(start.mismatches)
    compared = start.words
    losses: list[float] = []
    for name, recording in bench.recorded.items():
        port = golden.graph.by_name[name].layer.sinks[0]
        got = read_memory(folder / recording.file_name)
        where = Where(recording.device, name, "at the host's port")
        compared += len(expected[name]) * port.beats
        mismatches += _record_differences(golden, where, got, expected[name])
        losses += _losses(port, got)
    for weights in bench.weights:
        got = read_memory(folder / weights.file_name)
        compared += len(sent[weights.edge]) * weights.beats
        mismatches += _weight_differences(golden, weights, got, np.stack(sent[weights.edge]))
    counted: dict[str, int] = {}
    for dump in bench.dumps:
        node = golden.graph.by_name[dump.node]
        want = golden.images(dump.node)[dump.image]
        got = dump.contents(read_memory(folder / dump.file_name))
        if node.role is Role.COUNTER:
            counted[node.inputs["x"]] = got[0]
        compared += len(want)
        where = Where(dump.device, dump.node, f"after batch {frames // golden.graph.recipe.batch}, the last one")
        mismatches += _image_differences(golden, where, dump.image, got, want)
    for state in bench.states:
        words, different = state_differences(golden, state, read_memory(folder / state.file_name))
        compared += words
        mismatches += different
    intervals = _interval(log, frames), batch_cycles(log.frame_cycles, frames // golden.graph.recipe.batch)
    traffic = traffic_line(bench.watched, log.seen)
    shown = tuple(mismatches[:SHOWN_MISMATCHES])
    return ClusterRun(
        log.cycles, *intervals, compared, shown, tuple(losses), traffic, counted, frame_cycles=log.frame_cycles
    )


def state_differences(golden: Executor, log: StateLog, got: Sequence[int]) -> tuple[int, list[str]]:
    """Words of state that a device has dumped behind the last batch, and what is wrong with them."""
    layers = {link.node: golden.graph.by_name[link.node].layer for link in log.state.links if link.words}
    words = {node: tuple(layer.state_words(golden.states[node])) for node, layer in layers.items()}
    wanted = Dumped(golden.batches, words)
    handed_on = [Kind.START] * log.state.rounds + [Kind.RUN]
    try:
        records = list(records_of(got))
        if [record.kind for record in records[: len(handed_on)]] != handed_on:
            kinds = ", ".join(record.kind.name for record in records)
            return 0, [f"{log.device}: {kinds} came out of its chain of state"]
        found = dumped(words_of(records[len(handed_on) :]), log.state.links, golden.batches)
    except StateError as error:
        return 0, [f"{log.device}: {error.what}"]
    told = [f"{log.device}: dumped {what}" for what in differences(found, wanted, "the emulator")]
    return sum(map(len, words.values())), told


def _image_differences(
    golden: Executor, where: Where, image: str, got: Sequence[int], want: Sequence[int]
) -> list[str]:
    """Words of a memory, laid out as `Layer.images` does."""
    if len(got) != len(want):
        return [f"{where.device}: {image} of {where.node} {where.when}: {len(got)} words instead of {len(want)}"]
    wrong = [index for index, (a, b) in enumerate(zip(got, want, strict=True)) if a != b]
    if not wrong:
        return []
    word = wrong[0]
    difference = got[word] ^ want[word]
    low = (difference & -difference).bit_length() - 1
    owner = computing_node(golden.graph, golden.graph.by_name[where.node])
    state = golden.states[owner.name]

    def images(changed: State) -> dict[str, list[int]]:
        return images_of(golden.graph, golden.graph.by_name[where.node], {owner.name: changed})

    element = element_at(images, state, image, word, low)
    first = f"{element or 'no element'} in word {word}: {got[word]:#x}, not {want[word]:#x}"
    return [where.message(image, len(wrong), len(want), "words", first)]


def _record_differences(golden: Executor, where: Where, got: Sequence[int], want: IntArray) -> list[str]:
    """Records that the host got, one a frame: loss and correctness."""
    layer = golden.graph.by_name[where.node].layer
    port = layer.sinks[0]
    if len(got) != len(want) * port.beats:
        return [f"{where.device}: {where.node}: {len(got)} beats instead of {len(want) * port.beats}"]
    found = from_beats(layer, port.name, got).reshape(len(want), -1)
    wanted = want.reshape(len(want), -1)
    mismatches = []
    for column, name in enumerate(RECORD):
        wrong = np.flatnonzero(found[:, column] != wanted[:, column])
        if len(wrong):
            batch, frame = divmod(int(wrong[0]), golden.graph.recipe.batch)
            codes = f"{found[wrong[0], column]:#x}, not {wanted[wrong[0], column]:#x}"
            first = f"frame {frame + 1} of batch {batch + 1}: {codes}"
            mismatches.append(where.message(name, len(wrong), len(want), "frames", first))
    return mismatches


def _weight_differences(golden: Executor, log: WeightLog, got: Sequence[int], want: IntArray) -> list[str]:
    """New weights of every batch on their way to an engine."""
    node, port = golden.graph.producers[log.edge]
    # the order is that of the engine, also behind a fork
    reader, sink = golden.graph.consumers[log.edge][0]
    order = reader.layer.stream_order(sink.name)
    if len(got) != len(want) * port.beats:
        beats = f"{len(got)} beats instead of {len(want) * port.beats}"
        return [f"{log.device}: weights {log.edge} of {node.name}: {beats}"]
    found = from_order(unpack(got, port.tensor.fixed, port.lanes).reshape(len(want), -1), order)
    for batch, (version, wanted) in enumerate(zip(found.reshape(want.shape), want, strict=True)):
        wrong = np.argwhere(version != wanted)
        if len(wrong):
            index = tuple(map(int, wrong[0]))
            codes = f"{version[index]:#x}, not {wanted[index]:#x}"
            when = f"after batch {batch + 1 - log.loaded}" if batch >= log.loaded else "when state was loaded"
            where = Where(log.device, node.name, f"sent {when}")
            first = f"{log.edge}[{', '.join(map(str, index))}]: {codes}"
            return [where.message("weights", len(wrong), wanted.size, "elements", first)]
    return []


def _losses(port: Port, beats: Sequence[int]) -> list[float]:
    """Losses (element 0 of each record, u32.16) of the whole records among recorded metrics."""
    whole = beats[: len(beats) // port.beats * port.beats]
    codes = unpack(whole, port.tensor.fixed, port.lanes).reshape(-1, port.tensor.shape[-1])
    return [float(code) / 65536 for code in codes[:, 0]]


def batch_ends(stamps: Sequence[int], batches: int) -> Sequence[int]:
    """The cycle in which the last record of each batch came, of those of all records."""
    records = max(1, len(stamps) // batches)
    return stamps[records - 1 :: records]


def batch_cycles(stamps: Sequence[int], batches: int) -> tuple[int, ...]:
    """Cycles from the end of each batch to that of the next one, of the cycles at which records came."""
    return tuple(later - end for end, later in itertools.pairwise(batch_ends(stamps, batches)))


def _interval(log: RunLog, frames: int) -> float:
    """Mean cycles between frames over the second half of the run."""
    stamps = log.frame_cycles
    if len(stamps) < 4:
        return float(log.cycles) / frames
    half = len(stamps) // 2
    share = frames * (len(stamps) - 1 - half) / len(stamps)
    return (stamps[-1] - stamps[half]) / share
