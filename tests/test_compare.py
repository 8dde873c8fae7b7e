"""The comparison names what differs: every kind of word that a co-simulation compares, falsified one at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dagtrain.cosim.bench import design_bench
from dagtrain.cosim.cluster import emulate
from dagtrain.cosim.compare import Compared, compare, compare_start
from dagtrain.cosim.locate import element_at
from dagtrain.cosim.parts import Bench, BenchOptions
from dagtrain.cosim.simulator import RunLog, read_memory
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.executor import Executor, Mode
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.convert.images import write_image
from hdl.errors import ToolError
from hdl.fixed import IntArray
from hdl.layers.beats import pack, to_beats
from hdl.layers.wiring.update import Update
from tests.cosim_support import deliver, tiny_design

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCHES = 3


@dataclass
class Ran:
    """Files as a faultless co-simulation leaves them, and what the emulator says."""

    folder: Path
    bench: Bench
    golden: Executor
    expected: dict[str, IntArray]
    sent: dict[str, list[IntArray]]
    start: Compared

    def compare(self) -> tuple[str, ...]:
        frames = BATCHES * self.golden.graph.recipe.batch
        log = RunLog(1000, (1,) * frames)
        run = compare(self.bench, self.golden, self.expected, self.folder, log, frames, self.start, self.sent)
        return run.mismatches

    def falsified(self, file: str, word: int) -> str:
        """The one mismatch with the lowest bit of a word flipped; then the file is as before."""
        path = self.folder / file
        before = path.read_text()
        words = [int(line, 16) for line in before.split()]
        words[word] ^= 1
        write_image(path, words, 4)
        found = self.compare()
        path.write_text(before)
        assert len(found) == 1, found
        return found[0]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder, design = tmp_path_factory.mktemp("ran"), tiny_design(LIBRARY)
    delivered = deliver(design, LIBRARY, folder / "emit")
    graph = design.graph
    options = BenchOptions(frames=BATCHES * graph.recipe.batch, batch=graph.recipe.batch, network=NetworkModel())
    bench = design_bench(delivered.devices, LIBRARY, options, folder)
    golden = Executor(graph, Mode.GOLDEN)
    start = compare_start(delivered, golden)
    sent: dict[str, list[IntArray]] = {log.edge: [] for log in bench.weights}
    feeds = [synthetic_feeds(graph, graph.recipe.batch, 7 + batch) for batch in range(BATCHES)]
    found = Ran(folder, bench, golden, emulate(golden, feeds, sent), sent, start)
    _write(found)
    return found


def _write(ran: Ran) -> None:
    """What hardware without faults would record and dump."""
    golden = ran.golden
    for node, recording in ran.bench.recorded.items():
        layer = golden.graph.by_name[node].layer
        write_image(ran.folder / recording.file_name, to_beats(layer, layer.sinks[0].name, ran.expected[node]), 64)
    for log in ran.bench.weights:
        _, port = golden.graph.producers[log.edge]
        reader, sink = golden.graph.consumers[log.edge][0]
        order = reader.layer.stream_order(sink.name)
        codes = np.stack(ran.sent[log.edge]).reshape(BATCHES, -1)[:, slice(None) if order is None else order]
        write_image(ran.folder / log.file_name, pack(codes, port.tensor.fixed.width, port.lanes), port.payload_bits)
    for dump in ran.bench.dumps:
        beats = golden.graph.by_name[dump.node].layer.images(golden.states[dump.node])[dump.image]
        words = dump.layout.words(beats, dump.form) if dump.layout and dump.form else beats
        write_image(ran.folder / dump.file_name, words, 64)


def test_hardware_without_faults_has_no_mismatch(ran: Ran) -> None:
    assert ran.start.mismatches == ran.compare() == ()
    kinds = {(dump.node.split(".")[-1], dump.image) for dump in ran.bench.dumps}
    assert kinds == {
        ("update", "master"),
        ("update", "momentum"),
        ("update", "state"),
        ("norm1", "mean"),
        ("norm1", "variance"),
        ("backward", "u"),
        ("backward", "v"),
    }
    assert len(ran.bench.weights) >= 6


def test_a_wrong_loss_names_frame_and_batch(ran: Ran) -> None:
    # two beats a frame: loss, correctness
    wanted = (
        r"alpha: loss of loss1\.results at the host's port: 1 of 6 frames differ, "
        r"first frame 2 of batch 2: 0x\w+, not 0x\w+"
    )
    assert re.fullmatch(wanted, ran.falsified("loss1_results.beats.mem", 2 * 3))


def test_a_wrong_correctness_names_frame_and_batch(ran: Ran) -> None:
    found = ran.falsified("loss1_results.beats.mem", 2 * 4 + 1)
    assert re.match(r"alpha: correctness of loss1\.results .* first frame 1 of batch 3: 0x[01], not 0x[01]$", found)


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("loss1_results.beats.mem", "alpha: loss1.results: 11 beats instead of 12"),
        ("beta.norm1.mean.mem", "beta: mean of norm1 after batch 3, the last one: 0 words instead of 1"),
    ],
)
def test_words_that_are_missing_are_counted(file: str, wanted: str, ran: Ran) -> None:
    before = (ran.folder / file).read_text()
    (ran.folder / file).write_text("\n".join(before.split()[:-1]) + "\n")
    found = ran.compare()
    (ran.folder / file).write_text(before)
    assert found == (wanted,)


def test_every_stream_of_weights_is_compared_and_named_with_batch_and_element(ran: Ran) -> None:
    for log in ran.bench.weights:
        node, _ = ran.golden.graph.producers[log.edge]
        found = ran.falsified(log.file_name, log.beats)
        wanted = (
            rf"{log.device}: weights of {re.escape(node.name)} sent after batch 2: 1 of \d+ elements differ, "
            rf"first {re.escape(log.edge)}\[0(, 0)*\]: -?0x\w+, not -?0x\w+"
        )
        assert re.fullmatch(wanted, found), found


def test_every_memory_of_training_state_is_compared_and_named_with_its_element(ran: Ran) -> None:
    for dump in ran.bench.dumps:
        found = ran.falsified(dump.file_name, 0)
        # of a pair that lies in DRAM the master comes first
        name = "master" if dump.image == "state" else dump.image
        wanted = (
            rf"{dump.device}: {dump.image} of {re.escape(dump.node)} after batch {BATCHES}, the last one: 1 of "
            rf"\d+ words differ, first {name}\[0(, 0)*\] in word 0: 0x\w+, not 0x\w+"
        )
        assert re.fullmatch(wanted, found), found


def test_every_element_of_folded_weights_is_found_by_its_bits(ran: Ran) -> None:
    node = ran.golden.graph.by_name["conv2"]
    layer, state = node.layer, ran.golden.states[node.name]
    (memory,) = layer.memories()
    found = {
        element_at(layer.images, state, memory.name, word, bit)
        for word in range(memory.depth)
        for bit in range(memory.width)
    }
    shape = layer.port("w").tensor.shape
    # the half for the next version holds none
    assert found == {"", *(f"initial[{', '.join(map(str, index))}]" for index in np.ndindex(*shape))}


def test_a_momentum_beside_its_master_is_told_apart(ran: Ran) -> None:
    node = ran.golden.graph.by_name["conv2.w.update"]
    layer, state = node.layer, ran.golden.states[node.name]
    assert isinstance(layer, Update)
    width = layer.state_fixed.width
    found = [element_at(layer.images, state, "state", 1, bit) for bit in range(width)]
    names = [name.partition("[")[0] for name in found]
    assert names == ["master"] * layer.master_fixed.width + ["momentum"] * layer.momentum_width
    assert len({name.partition("[")[2] for name in found}) == 1


def test_words_with_bits_that_nobody_has_written_are_told_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "y.mem"
    path.write_text("// words\n@00000000\n00f1 002a\n")
    assert read_memory(path) == [0xF1, 0x2A]
    path.write_text("// words\n@00000000\n00f1\n0x2x\n")
    with pytest.raises(ToolError, match=r"y.mem, line 4: .*unknown: 0x2x"):
        read_memory(path)
