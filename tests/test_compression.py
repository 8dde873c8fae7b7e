"""Compressor and decompressor of integers: circuits beside the words of the golden model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hdl.engine.codec import compressor, decompressor, integer_coder
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.compressor import Compressor
from hdl.engine.codec.decompressor import Decompressor
from hdl.engine.codec.integer_codec import Cut, IntegerCodec, IntegerTag
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, Run, StreamPort, run_streams
from hdl.stream import Stream
from hdl.unit import Unit
from tests.mutated import Mutator
from tests.suites import quick

# of elements that are sent as they are, those that have the size of small codes
SPOILT = 0.3
# as the paper's words: 16 elements of 16 bits
WIDE = Bursts(codec=IntegerCodec(5), elements=40)
# bytes, an odd small code, elements of a width that is no power of two, nothing dropped
FORMS = [
    Bursts(codec=IntegerCodec(5), elements=11, lanes=4),
    Bursts(codec=IntegerCodec(3, window=4, cut=Cut.NEAREST), elements=9, lanes=4),
    Bursts(codec=IntegerCodec(2, width=12, window=7), elements=16, lanes=8),
    Bursts(codec=IntegerCodec(0, window=15), elements=3, lanes=2),
]


def named(bursts: Bursts) -> str:
    codec = bursts.codec
    return f"{bursts.lanes}x{codec.width}-{codec.drop}-{codec.window}-{bursts.elements}"


def seeded() -> np.random.Generator:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def element(bursts: Bursts, tag: int, rng: np.random.Generator) -> int:
    """Any that has this tag."""
    codec = bursts.codec
    if tag == IntegerTag.ZERO:
        return 0
    small = int(rng.integers(1, 1 << codec.window)) << codec.drop
    if tag == IntegerTag.RAW and codec.drop and rng.random() < SPOILT:
        return small + 1
    large = int(rng.integers(1, 1 << codec.width - 1)) | (1 << codec.drop + codec.window)
    chosen = small if tag == IntegerTag.SMALL else min(large, (1 << codec.width - 1) - 1)
    if tag == IntegerTag.RAW and codec.drop + codec.window == codec.width - 1:
        # all but the least element, and what is dropped, fit a small code
        chosen = 1 << codec.width - 1 if codec.drop == 0 else chosen | 1
    return -chosen if chosen == 1 << codec.width - 1 or rng.random() < 0.5 else chosen


def drawn(bursts: Bursts, count: int, rng: np.random.Generator) -> list[IntArray]:
    """Tensors of all tags, and of few bits or many."""
    shares = ((1, 1, 1), (8, 1, 1), (1, 8, 1), (0, 1, 9), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    found = []
    for _ in range(count):
        share = np.array(shares[rng.integers(len(shares))])
        tags = rng.choice(3, bursts.elements, p=share / share.sum())
        found.append(np.array([element(bursts, int(tag), rng) for tag in tags]))
    return found


def design(unit: Unit) -> Design:
    def factory(_: Mapping[str, Sequence[int]]) -> Any:
        return unit.build(ClockReset(), {name: Stream(width) for name, width in unit.streams.items()})

    ports = StreamPort("x", unit.streams["x"], Direction.IN), StreamPort("y", unit.streams["y"], Direction.OUT)
    return Design(type(unit).__name__.lower(), factory, ports)


def run(backend: Backend, unit: Unit, beats: Sequence[int], expected: Sequence[int], stall: float) -> Run:
    """Feeds a circuit, and holds what comes against what is expected."""
    limit = 4 * (len(beats) + len(expected)) + 400
    found = run_streams(
        backend,
        design(unit),
        {"x": beats},
        {"y": len(expected)},
        seed=len(beats),
        stall_probability=stall,
        max_cycles=limit,
    )
    assert found.outputs["y"] == expected
    return found


def both(backend: Backend, bursts: Bursts, tensors: Sequence[IntArray], stall: float) -> tuple[Run, Run]:
    plain = [beat for tensor in tensors for beat in bursts.beats(tensor)]
    words = [word for tensor in tensors for word in bursts.pack(tensor)]
    kept = [beat for tensor in tensors for beat in bursts.beats(bursts.codec.restored(*bursts.codec.coded(tensor)))]
    return (
        run(backend, Compressor(bursts=bursts), plain, words, stall),
        run(backend, Decompressor(bursts=bursts), words, kept, stall),
    )


# ------------------------------------------------------------------------------------------------------ golden model


def test_tags_are_low_and_codes_above_them_in_the_order_of_elements() -> None:
    bursts = Bursts(codec=IntegerCodec(4), elements=4, lanes=4)
    # 0; 3 in units of 16; -5 of them; 1000, which is no multiple
    (word,) = bursts.pack(np.array([0, 48, -80, 1000]))
    assert f"{word:064b}".lstrip("0").zfill(40) == f"{1000:016b}" + "10000101" + "00000011" + "10" + "01" + "01" + "00"
    assert bursts.unpack([word]).tolist() == [0, 48, -80, 1000]


@pytest.mark.parametrize("bursts", [WIDE, *FORMS], ids=named)
def test_nothing_is_lost_and_what_is_cut_has_the_bits_of_the_codec(bursts: Bursts) -> None:
    rng = seeded()
    for tensor in drawn(bursts, 200, rng):
        words = bursts.pack(tensor)
        assert (bursts.unpack(words) == tensor).all()
        assert len(words) <= bursts.most_words
    codec = replace(bursts.codec, cut=Cut.STOCHASTIC)
    whole = rng.integers(-(1 << codec.width - 1), 1 << codec.width - 1, 4096)
    tags, codes = codec.encode(whole, rng.integers(0, 1 << 16, whole.size))
    flat = replace(bursts, codec=codec, elements=whole.size)
    again, again_codes = flat.coded(codec.decode(tags, codes))
    assert (np.ravel(again)[: whole.size] == tags).all()
    assert (np.ravel(again_codes)[: whole.size] == codes).all()


def test_incompressible_bursts_are_a_mark_longer_and_no_more() -> None:
    bursts = Bursts(codec=IntegerCodec(5), elements=16 * 32)
    words = bursts.pack(np.full(bursts.elements, 12345))
    assert len(words) == 33 == bursts.most_words
    assert words[0] & 0xFF == 3
    # one code of 8 bits beside 15 of 16 would take as much as 16 and the tags: 280 bits, not 264
    near = np.full(bursts.elements, 12345)
    near[::16] = 32
    assert len(bursts.pack(near)) == 33
    # and one that takes as many bits as a mark and all elements has its tags
    fits = np.where(np.arange(bursts.elements) % 16 < 3, 32, 12345)
    assert bursts.pack(fits)[0] & 3 == IntegerTag.SMALL


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"codec": IntegerCodec(1, width=9)}, "elements of 9 bits can't lie in bursts; take an even number"),
        ({"lanes": 6}, "a burst of 6 elements is impossible; take a power of two from 2 on"),
        ({"elements": 0}, "a tensor of 0 elements has no burst; take at least 1"),
    ],
)
def test_impossible_bursts_are_refused(form: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(WIDE, **form)


def test_words_of_no_tensor_are_refused() -> None:
    words = WIDE.pack(np.arange(40) * 321)
    with pytest.raises(ValueError, match=r"^\d+ words are not those of a tensor of \d+ bits$"):
        WIDE.unpack([*words, 0])
    with pytest.raises(ValueError, match=r"^4 of 16 tags are 3$"):
        WIDE.unpack([0xFF << 4, *words])


# ---------------------------------------------------------------------------------------------------------- circuits


@pytest.mark.parametrize("stall", [0.0, 0.4])
@pytest.mark.parametrize("bursts", quick(2, [WIDE, *FORMS], named))
def test_circuits_have_the_words_of_the_golden_model_in_myhdl(bursts: Bursts, stall: float) -> None:
    both(Backend.MYHDL, bursts, drawn(bursts, 6, seeded()), stall)


@pytest.mark.parametrize("backend", quick(1, [Backend.ICARUS, Backend.VERILATOR]))
@pytest.mark.parametrize("bursts", quick(1, FORMS, named))
def test_circuits_have_them_in_verilog(bursts: Bursts, backend: Backend) -> None:
    tensors = drawn(bursts, 60, seeded())
    for stall in (0.0, 0.4):
        both(backend, bursts, tensors, stall)


@pytest.mark.parametrize("backend", quick(0, [Backend.ICARUS, Backend.VERILATOR]))
def test_circuits_have_them_with_16_elements_a_burst(backend: Backend) -> None:
    tensors = drawn(WIDE, 400, seeded())
    for stall in (0.0, 0.4):
        both(backend, WIDE, tensors, stall)


def test_all_mixes_of_tags_of_four_elements_pass() -> None:
    bursts = Bursts(codec=IntegerCodec(5), elements=4 * 2 * 81, lanes=4)
    rng = seeded()
    mixes = [list(tags) for tags in product(range(3), repeat=4)] * 2
    rng.shuffle(mixes)
    tensor = np.array([element(bursts, tag, rng) for tags in mixes for tag in tags])
    both(Backend.MYHDL, bursts, [tensor], 0.3)


def begins(bursts: Bursts, tensor: IntArray) -> list[tuple[int, int]]:
    """(granule of a word, granules) of each burst."""
    tags, _ = bursts.coded(tensor)
    found, at = [], 0
    for row in tags.tolist():
        length = min(bursts.tag_granules + sum(bursts.granules[tag] for tag in row), bursts.most_granules)
        found.append((at, length))
        at = (at + length) % bursts.word_granules
    return found


@pytest.mark.slow
def test_bursts_of_all_lengths_begin_at_all_granules() -> None:
    bursts = Bursts(codec=IntegerCodec(5), elements=16 * 2000)
    tensors = drawn(bursts, 1, rng := seeded()) + [
        np.array([element(bursts, int(tag), rng) for row in range(2000) for tag in mixed(row % 33, rng)])
        for _ in range(3)
    ]
    seen = {begin for tensor in tensors for begin in begins(bursts, tensor)}
    assert {place for place, _ in seen} == set(range(32))
    assert {length for _, length in seen} == set(range(4, 34))
    # tags that go on in the next word, with each number of granules there, and a burst that ends two words
    assert {place for place, length in seen if place + length > 32} >= {29, 30, 31}
    assert any(place + length == 64 for place, length in seen)
    for stall in (0.0, 0.4):
        both(Backend.VERILATOR, bursts, tensors, stall)


def mixed(granules: int, rng: np.random.Generator) -> IntArray:
    """Tags of 16 elements that take so many granules."""
    tags = np.zeros(16, np.int64)
    while tags.sum() < granules:
        tags[rng.choice(np.flatnonzero(tags < 2))] += 1
    return tags


@pytest.mark.parametrize("elements", [1, 2, 3, 4])
def test_a_tensor_may_end_at_each_element_of_a_burst(elements: int) -> None:
    bursts = Bursts(codec=IntegerCodec(5), elements=elements, lanes=4)
    both(Backend.MYHDL, bursts, drawn(bursts, 5, seeded()), 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("elements", range(1, 18))
def test_a_tensor_may_end_at_each_of_16_elements(elements: int) -> None:
    bursts = replace(WIDE, elements=elements)
    both(Backend.ICARUS, bursts, drawn(bursts, 40, seeded()), 0.3)


@pytest.mark.parametrize(("tag", "every"), [(0, 1), (1, 1), (2, 1), (None, 16)])
def test_a_burst_and_a_word_pass_in_a_cycle(tag: int | None, every: int) -> None:
    rng = seeded()
    bursts = Bursts(codec=IntegerCodec(5), elements=4 * 80, lanes=4)
    if tag is None:
        (tensor,) = drawn(bursts, 1, rng)
    else:
        tensor = np.array([element(bursts, tag, rng) for _ in range(bursts.elements)])
    words = len(bursts.pack(tensor))
    latency = 40
    for found in both(Backend.MYHDL, bursts, [tensor], 0.0):
        assert found.cycles <= max(words, bursts.count) * (1 + 1 / every if tag is None else 1) + latency


FAULTS: Mapping[str, tuple[ModuleType, str, Mapping[str, str]]] = {
    "tag order reversed": (
        integer_coder,
        "tag_elements",
        {"bits_of(lane, 2, from_tags)": "bits_of(lanes - 1 - lane, 2, from_tags)"},
    ),
    "last burst not flushed": (
        compressor,
        "place_burst",
        {"judge() -> None:\n            ends.next = last or": "judge() -> None:\n            ends.next ="},
    ),
    "tensor begins within a word": (
        compressor,
        "place_burst",
        {"if last or total == 2 * word:": "if total == 2 * word:"},
    ),
    "sign of what is dropped": (integer_coder, "tag_elements", {" or (element & dropped) != 0": ""}),
    "second word of a burst forgotten": (
        compressor,
        "merge_words",
        {"second.next = x.payload[twice_at]\n            else": "second.next = False\n            else"},
    ),
    "codes in the wrong half": (
        compressor,
        "gather",
        {"code[:] = x.payload[bits_of(2 * pair + 1, width)]": "code[:] = x.payload[bits_of(2 * pair, width)]"},
    ),
    "marks are tags": (decompressor, "add_tags", {"if x.payload[from_marks + place]:": "if False:"}),
    "a mark takes sizes of the next word": (
        decompressor,
        "burst_end",
        {"straddles.next = not held[from_alone + index]": "straddles.next = True"},
    ),
    "waits for a word that does not come": (
        decompressor,
        "find_end",
        {"max(0, granules + 1 - first)": "max(0, granules - first)"},
    ),
    "rest of a word is a burst": (
        decompressor,
        "buffer_bursts",
        {"elif beyond:\n                place.next = word": "elif beyond:\n                place.next = 0"},
    ),
}


@pytest.mark.parametrize("name", quick(2, FAULTS))
def test_seeded_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, block, changes = FAULTS[name]
    # marks from all granules on; the last burst ends with its word
    bursts = Bursts(codec=IntegerCodec(5), elements=4 * 21, lanes=4)
    even = np.zeros(bursts.elements, np.int64)
    even[10:13] = 32
    tensors = [np.full(bursts.elements, 12345), *drawn(bursts, 7, np.random.default_rng(7)), even]
    Mutator(monkeypatch, tmp_path)(home, home, block, changes)
    with pytest.raises((AssertionError, DagtrainError)):
        both(Backend.MYHDL, bursts, tensors, 0.2)
