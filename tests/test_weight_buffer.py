"""The weight buffer alone, with one place and with two: which version each frame reads, and when the next one is taken.

Reads of random words in random numbers a frame, claims that run ahead of them, and weights that come early or only
after the batch whose gradients make them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line
from hdl.engine.weights.buffer import READ_LATENCY, weight_buffer
from hdl.memory import address_width
from hdl.recipe import LoadedRecipe, Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, Run, StreamPort, run_streams
from hdl.stream import Stream
from hdl.streams import queue

WIDTH = 12
# words that may wait behind the buffer
WAITING = 4
# frames that may be claimed and not yet read
CLAIMED = 3
VERSIONS = 5
NEVER = -1


@block
def buffer_bench(
    domain: ClockReset,
    w: Stream,
    c: Stream,
    r: Stream,
    y: Stream,
    *,
    words: int,
    recipe: Recipe,
    slots: int,
    closed: bool,
    contents: Any,
) -> Any:
    """A beat on ``c`` claims a frame; one on ``r`` (offset, and above it: last of the frame) puts a word on ``y``.

    With ``closed`` version ``v`` is offered only after all frames of batch ``v - 1`` have been read."""
    offset_bits = address_width(words)
    batch = recipe.batch
    loaded_words = recipe.rounds * words if isinstance(recipe, LoadedRecipe) else 0
    come, found, taken = Stream(WIDTH), Stream(WIDTH), Stream(WIDTH)
    claim, claimable, advance, may, last = (Signal(bool(0)) for _ in range(5))
    offset = Signal(intbv(0)[offset_bits:])
    ahead = Signal(intbv(0, min=0, max=CLAIMED + 1))
    # frames of the batch that were read, and words of versions that may come
    frames = Signal(intbv(0, min=0, max=batch))
    owed = Signal(intbv(loaded_words, min=0, max=(VERSIONS + 2) * words + 1))
    earn, spend = Signal(bool(0)), Signal(bool(0))
    buffer = weight_buffer(
        domain, come, claim, claimable, advance, offset, last, found.payload,
        words=words, recipe=recipe, contents=contents, slots=slots,
    )  # fmt: skip
    mark = delay_line(domain.clk, advance, found.valid, cycles=READ_LATENCY)
    places = result_places(domain, advance, taken, may, places=WAITING)
    hold = queue(domain, found, taken, depth=WAITING)

    @always_comb
    def offers() -> None:
        come.valid.next = w.valid and (owed != 0 or not closed)
        come.payload.next = w.payload
        w.ready.next = come.ready and (owed != 0 or not closed)

    @always_comb
    def claims() -> None:
        c.ready.next = claimable and ahead != CLAIMED
        claim.next = c.valid and claimable and ahead != CLAIMED

    @always_comb
    def reads() -> None:
        r.ready.next = may and ahead != 0
        advance.next = r.valid and may and ahead != 0
        last.next = r.payload[offset_bits]
        # always one of a word, as from the walker
        offset.next = 0
        if r.valid:
            offset.next = r.payload[offset_bits:0]

    @always_comb
    def leaves() -> None:
        y.valid.next = taken.valid
        y.payload.next = taken.payload
        taken.ready.next = y.ready

    @always(domain.clk.posedge)
    def count() -> None:
        if claim and not (advance and last):
            ahead.next = ahead + 1
        elif advance and last and not claim:
            ahead.next = ahead - 1
        if domain.rst:
            ahead.next = 0

    @always_comb
    def account() -> None:
        earn.next = advance and last and frames == batch - 1
        spend.next = come.valid and come.ready

    @always(domain.clk.posedge)
    def credit() -> None:
        if earn:
            frames.next = 0
        elif advance and last:
            frames.next = frames + 1
        if closed and earn and spend:
            owed.next = owed + words - 1
        elif closed and earn:
            owed.next = owed + words
        elif closed and spend:
            owed.next = owed - 1
        if domain.rst:
            frames.next = 0
            owed.next = loaded_words

    return buffer, mark, places, hold, offers, claims, reads, leaves, count, account, credit


@dataclass(frozen=True)
class Traffic:
    """Frames and versions of one run."""

    recipe: Recipe
    words: int
    slots: int
    seed: int
    # word offsets by frame
    offsets: list[list[int]] = field(default_factory=list)
    # words by version
    versions: list[list[int]] = field(default_factory=list)

    @staticmethod
    def random(recipe: Recipe, words: int, slots: int, seed: int) -> Traffic:
        """The last frame is the last one that reads the last version."""
        rng = np.random.default_rng(seed)
        frames = Traffic(recipe, words, slots, seed).frames_until(VERSIONS - 1)
        offsets = [[int(at) for at in rng.integers(0, words, rng.integers(1, 2 * words + 2))] for _ in range(frames)]
        versions = [[int(code) for code in rng.integers(0, 1 << WIDTH, words)] for _ in range(VERSIONS)]
        return Traffic(recipe, words, slots, seed, offsets, versions)

    def design(self, closed: bool) -> Design:
        """The bench for this traffic."""
        offset_bits = address_width(self.words)
        # of weights that are loaded it matters to nobody
        image = self.versions[0 if not self.recipe.loaded else -1] + [0] * (self.slots - 1) * self.words

        def build(images: Any) -> Any:
            streams = [Stream(WIDTH), Stream(1), Stream(offset_bits + 1), Stream(WIDTH)]
            return buffer_bench(
                ClockReset(), *streams, words=self.words, recipe=self.recipe, slots=self.slots,
                closed=closed, contents=images.get("weights"),
            )  # fmt: skip

        ports = [StreamPort("w", WIDTH, Direction.IN), StreamPort("c", 1, Direction.IN)]
        ports += [StreamPort("r", offset_bits + 1, Direction.IN), StreamPort("y", WIDTH, Direction.OUT)]
        return Design("buffer_bench", build, tuple(ports), {"weights": image})

    def run(self, stall: float, closed: bool, backend: Backend = Backend.MYHDL) -> Run:
        """Every word read must be of the version that the recipe says."""
        offset_bits = address_width(self.words)
        end = 1 << offset_bits
        reads = [at for offsets in self.offsets for at in (*offsets[:-1], offsets[-1] | end)]
        version_of = self.recipe.loaded_version if isinstance(self.recipe, LoadedRecipe) else self.recipe.version
        seen = [self.versions[version_of(frame)] for frame in range(len(self.offsets))]
        expected = [version[at] for version, offsets in zip(seen, self.offsets, strict=True) for at in offsets]
        found = run_streams(
            backend,
            self.design(closed),
            {
                "w": [code for version in self.versions[self.first :] for code in version],
                "c": [0] * len(self.offsets),
                "r": reads,
            },
            {"y": len(expected)},
            seed=self.seed,
            stall_probability=stall,
            max_cycles=20_000,
        )
        assert found.outputs["y"] == expected, self.context
        return found

    @property
    def context(self) -> str:
        """For messages."""
        return f"{self.recipe}, {self.words} words, {self.slots} slots, seed {self.seed}"

    def last_reads(self, run: Run) -> list[int]:
        """Cycle of the last read of each version."""
        fires = iter(run.fire_cycles["r"])
        ends = [[next(fires) for _ in offsets][-1] for offsets in self.offsets]
        return [ends[self.frames_until(version) - 1] for version in range(VERSIONS)]

    @property
    def first(self) -> int:
        """The first version that comes."""
        return 0 if self.recipe.loaded else 1

    def frames_until(self, version: int) -> int:
        """Frames that read this version or one before."""
        if self.recipe.loaded and self.recipe.staleness:
            return version * self.recipe.batch + self.recipe.staleness
        return (version + 1) * self.recipe.batch + self.recipe.staleness

    def check_places(self, run: Run) -> None:
        """A version is taken after the last read of the one in its place, and claimed after all of it is there."""
        last = self.last_reads(run)
        for version in range(self.first, VERSIONS):
            came = version - self.first
            taken = run.fire_cycles["w"][came * self.words : (came + 1) * self.words]
            claimed = run.fire_cycles["c"][self.frames_until(version - 1) if version else 0]
            context = f"version {version}, {self.context}"
            before = last[version - self.slots] if version >= self.slots else NEVER
            assert taken[0] > before, f"{context}: taken in cycle {taken[0]}, its place was read until {before}"
            assert claimed > taken[-1], f"{context}: claimed in cycle {claimed}, complete in {taken[-1]}"


RECIPES = [
    Recipe(batch=batch, staleness=staleness) for batch, staleness in [(1, 0), (1, 1), (3, 0), (3, 1), (3, 3), (4, 2)]
]
NAMES = [f"batch{recipe.batch}-staleness{recipe.staleness}" for recipe in RECIPES]


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("words", [1, 2, 5, 8])
@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_every_frame_reads_its_version_and_no_place_is_written_before_its_last_read(
    recipe: Recipe, words: int, slots: int
) -> None:
    for seed, stall in enumerate((0.0, 0.3, 0.7)):
        traffic = Traffic.random(recipe, words, slots, seed)
        traffic.check_places(traffic.run(stall, closed=False))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_weights_that_wait_for_the_batch_before_do_not_deadlock(recipe: Recipe, slots: int) -> None:
    for seed, stall in enumerate((0.0, 0.4)):
        traffic = Traffic.random(recipe, 4, slots, 50 + seed)
        traffic.check_places(traffic.run(stall, closed=True))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_weights_that_are_loaded_are_read_by_the_frames_of_an_uninterrupted_training(
    recipe: Recipe, slots: int
) -> None:
    # frame t after batch n reads what frame n * batch + t reads without a break: from 2 batches on, of 3 versions
    loaded = LoadedRecipe.of(recipe)
    for frame in range(3 * recipe.batch):
        wanted = recipe.version(2 * recipe.batch + frame) - (2 - (loaded.rounds - 1))
        assert loaded.loaded_version(frame) == wanted
    for seed, (stall, words) in enumerate(((0.0, 1), (0.3, 5), (0.7, 2))):
        traffic = Traffic.random(loaded, words, slots, seed)
        for closed in (False, True):
            traffic.check_places(traffic.run(stall, closed))


@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
@pytest.mark.parametrize("words", [1, 5])
def test_the_verilog_of_one_place_reads_the_same_versions(words: int, backend: Backend) -> None:
    traffic = Traffic.random(Recipe(batch=3, staleness=1), words, 1, 90)
    traffic.check_places(traffic.run(0.3, False, backend))


@pytest.mark.parametrize("slots", [1, 2])
def test_the_verilog_is_accepted_by_every_tool_without_a_warning(slots: int, tmp_path: Path) -> None:
    design = Traffic.random(Recipe(batch=3, staleness=1), 5, slots, 91).design(closed=True)
    path = design.convert().write(tmp_path)
    lint_verilog([path], design.name)
    compile_icarus([path], design.name)
    check_yosys([path], design.name)


@pytest.mark.parametrize("words", [1, 2, 9])
def test_a_single_place_is_filled_in_as_many_cycles_as_it_has_words(words: int) -> None:
    traffic = Traffic.random(Recipe(batch=2), words, 1, 7)
    run = traffic.run(0.0, closed=False)
    for version, last in enumerate(traffic.last_reads(run)[:-1], 1):
        taken = run.fire_cycles["w"][(version - 1) * words : version * words]
        assert taken == list(range(last + 1, last + 1 + words)), f"version {version}, {words} words"
        assert run.fire_cycles["c"][traffic.frames_until(version - 1)] == taken[-1] + 1
