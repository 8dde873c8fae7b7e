"""The weight memory of two readers alone: which version each reads, that no place is written that one still reads, and
that a reader which never rests gets its next version all the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line
from hdl.engine.weights.buffer import READ_LATENCY
from hdl.engine.weights.shared import WeightPort, shared_weight_buffer
from hdl.errors import FoldingError
from hdl.layers.conv.dense import Conv, ConvError
from hdl.layers.conv.pair import ConvPair
from hdl.layers.storage import Home
from hdl.memory import address_width
from hdl.recipe import Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, Run, StreamPort, run_streams
from hdl.stream import Stream
from hdl.streams import queue
from hdl.tensor import Tile

WIDTH = 12
# words that may wait behind a reader, more than are under way; frames that it may have claimed; versions
WAITING, CLAIMED, VERSIONS = 12, 3, 5


@block
def reader(domain: ClockReset, port: WeightPort, r: Stream, y: Stream, *, offset_bits: int) -> Any:
    """A beat on ``r`` (offset, and above it: last of the frame) puts a word on ``y``; asks as a walk does, 2 cycles
    after it has begun an operation."""
    found, taken = Stream(WIDTH), Stream(WIDTH)
    issue, may, last, done = (Signal(bool(0)) for _ in range(4))
    begun, ends = Signal(bool(0)), Signal(bool(0))
    offset = Signal(intbv(0)[offset_bits:])
    ahead = Signal(intbv(0, min=0, max=CLAIMED + 1))
    mark = delay_line(domain.clk, port.advance, found.valid, cycles=READ_LATENCY)
    places = result_places(domain, issue, taken, may, places=WAITING)
    hold = queue(domain, found, taken, depth=WAITING)

    @always_comb
    def decide() -> None:
        issue.next = r.valid and may and ahead != 0 and not port.pause
        r.ready.next = may and ahead != 0 and not port.pause
        last.next = r.payload[offset_bits]
        port.claim.next = port.claimable and ahead != CLAIMED
        done.next = r.valid and may and ahead != 0 and not port.pause and r.payload[offset_bits]

    @always_comb
    def leaves() -> None:
        found.payload.next = port.word
        y.valid.next = taken.valid
        y.payload.next = taken.payload
        taken.ready.next = y.ready

    @always(domain.clk.posedge)
    def ask() -> None:
        begun.next = issue and not domain.rst
        ends.next = last
        port.advance.next = begun
        port.frame_last.next = ends
        port.offset.next = offset
        if issue:
            offset.next = r.payload[offset_bits:]

    @always(domain.clk.posedge)
    def count() -> None:
        if port.claim and not done:
            ahead.next = ahead + 1
        elif done and not port.claim:
            ahead.next = ahead - 1
        if domain.rst:
            ahead.next = 0

    return mark, places, hold, decide, leaves, ask, count


@block
def memory_bench(
    domain: ClockReset, w: Stream, a: Stream, b: Stream, ya: Stream, yb: Stream, *, words: int, recipe: Recipe,
    slots: int, contents: Any,
) -> Any:  # fmt: skip
    """Two readers at one memory."""
    first, second = WeightPort(words, WIDTH), WeightPort(words, WIDTH)
    bits = address_width(words)
    return (
        shared_weight_buffer(domain, w, first, second, words=words, recipe=recipe, slots=slots, contents=contents),
        reader(domain, first, a, ya, offset_bits=bits),
        reader(domain, second, b, yb, offset_bits=bits),
    )


@dataclass(frozen=True)
class Traffic:
    """Frames of both readers, and versions."""

    recipe: Recipe
    words: int
    slots: int
    seed: int
    # by reader: word offsets by frame
    offsets: tuple[list[list[int]], list[list[int]]]
    # words by version
    versions: list[list[int]]

    @staticmethod
    def random(recipe: Recipe, words: int, slots: int, seed: int, reads: int = 0) -> Traffic:
        """Frames of as many reads each, or of a random number."""
        rng = np.random.default_rng(seed)
        frames = VERSIONS * recipe.batch + recipe.staleness

        def frame() -> list[int]:
            return [int(at) for at in rng.integers(0, words, reads or rng.integers(1, 2 * words + 2))]

        offsets = [frame() for _ in range(frames)], [frame() for _ in range(frames)]
        versions = [[int(code) for code in rng.integers(0, 1 << WIDTH, words)] for _ in range(VERSIONS)]
        return Traffic(recipe, words, slots, seed, offsets, versions)

    def design(self) -> Design:
        """The bench."""
        request = address_width(self.words) + 1
        image = self.versions[0] + [0] * (self.slots - 1) * self.words
        widths = {"w": WIDTH, "a": request, "b": request, "ya": WIDTH, "yb": WIDTH}

        def build(images: Any) -> Any:
            streams = [Stream(width) for width in widths.values()]
            given = {"words": self.words, "recipe": self.recipe, "slots": self.slots}
            return memory_bench(ClockReset(), *streams, **given, contents=images.get("weights"))

        ports = (
            StreamPort(name, width, Direction.OUT if name.startswith("y") else Direction.IN)
            for name, width in widths.items()
        )
        return Design("memory_bench", build, tuple(ports), {"weights": image})

    def run(self, stall: float, backend: Backend = Backend.MYHDL) -> Run:
        """Every word read must be of the version that the recipe says."""
        end = 1 << address_width(self.words)
        inputs = {"w": [code for version in self.versions[1:] for code in version]}
        expected = {}
        for name, frames in zip("ab", self.offsets, strict=True):
            inputs[name] = [at for offsets in frames for at in (*offsets[:-1], offsets[-1] | end)]
            seen = [self.versions[self.recipe.version(frame)] for frame in range(len(frames))]
            expected[f"y{name}"] = [v[at] for v, offsets in zip(seen, frames, strict=True) for at in offsets]
        counts = {name: len(words) for name, words in expected.items()}
        found = run_streams(
            backend, self.design(), inputs, counts, seed=self.seed, stall_probability=stall, max_cycles=20_000
        )
        context = f"{self.recipe}, {self.words} words, {self.slots} places, seed {self.seed}"
        assert {name: found.outputs[name] for name in expected} == expected, context
        return found

    def last_read(self, run: Run, name: str, version: int) -> int:
        """Cycle in which a reader begins its last read of a version."""
        frames = (version + 1) * self.recipe.batch + self.recipe.staleness
        reads = sum(len(offsets) for offsets in self.offsets["ab".index(name)][:frames])
        return run.fire_cycles[name][reads - 1]


RECIPES = [Recipe(batch=batch, staleness=stale) for batch, stale in [(1, 0), (1, 1), (3, 0), (3, 1), (3, 3)]]


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("words", [1, 2, 5])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"batch{recipe.batch}-staleness{recipe.staleness}")
def test_both_readers_see_their_versions_and_no_place_is_written_that_one_still_reads(
    recipe: Recipe, words: int, slots: int
) -> None:
    for seed, stall in enumerate((0.0, 0.3, 0.7)):
        traffic = Traffic.random(recipe, words, slots, seed)
        run = traffic.run(stall)
        for version in range(slots, VERSIONS):
            taken = run.fire_cycles["w"][(version - 1) * words]
            for name in "ab":
                assert taken > traffic.last_read(run, name, version - slots), (version, name, seed)


@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
@pytest.mark.parametrize("slots", [1, 2])
def test_the_verilog_reads_the_same_versions(slots: int, backend: Backend) -> None:
    Traffic.random(Recipe(batch=3, staleness=1), 5, slots, 90).run(0.3, backend)


@pytest.mark.parametrize("slots", [1, 2])
def test_the_verilog_is_accepted_by_every_tool_without_a_warning(slots: int, tmp_path: Path) -> None:
    design = Traffic.random(Recipe(batch=3, staleness=1), 5, slots, 91).design()
    path = design.convert().write(tmp_path)
    lint_verilog([path], design.name)
    compile_icarus([path], design.name)
    check_yosys([path], design.name)


def test_a_reader_that_never_rests_pauses_a_cycle_for_each_word_of_the_next_version() -> None:
    words, reads = 8, 100
    traffic = Traffic.random(Recipe(batch=2), words, 2, 7, reads)
    run = traffic.run(0.0)
    paused = run.fire_cycles["a"][-1] - run.fire_cycles["a"][0] - (sum(map(len, traffic.offsets[0])) - 1)
    written = (VERSIONS - 1) * words
    # a few find a cycle before the first read
    assert written - 3 <= paused <= written
    # the first one comes within the frame at work, long before anybody is through with version 0
    assert run.fire_cycles["w"][words - 1] < traffic.last_read(run, "a", 0) - reads
    # and the other reader never notices
    assert run.fire_cycles["b"][-1] - run.fire_cycles["b"][0] == sum(map(len, traffic.offsets[1])) - 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tile": Tile(1, 2)}, "can't share weights; fold both for one tile"),
        ({"height": 5}, "can't share weights"),
        ({"weights": Home.PARKED}, "can't share weights"),
        ({"frozen": True}, "can't share weights"),
    ],
)
def test_engines_that_differ_do_not_share(changed: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"height": 4, "width": 4, "channels": 2, "filters": 2, "kernel": (1, 1), "tile": Tile(2)}
    with pytest.raises(FoldingError, match=message):
        ConvPair.of(Conv(**fields), ConvError(**{**fields, **changed}))


def test_weights_that_come_once_a_frame_are_not_shared() -> None:
    fields: dict[str, Any] = {"height": 6, "width": 6, "channels": 2, "filters": 2, "kernel": (1, 1)}
    with pytest.raises(FoldingError, match="weights that two engines share lie on chip; keep them there"):
        ConvPair.of(Conv(**fields, weights=Home.DRAM), ConvError(**fields, weights=Home.DRAM))
