"""Words that no compressor made: the decompressor goes on, whatever they are, and makes of them what its rules say.

Which words are whole is the link's to find out.  Where a tensor ends the decompressor knows from its number of bursts
alone; so damage may spoil what comes behind it, and no word is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hdl.engine.codec import decompressor
from hdl.engine.codec.bursts import ESCAPE, Bursts
from hdl.engine.codec.decompressor import Decompressor
from hdl.engine.codec.element_codec import TAG_BITS
from hdl.engine.codec.float_codec import FloatCodec, Kind
from hdl.engine.codec.integer_codec import IntegerCodec
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.simulate import Backend, run_streams
from tests import test_compression, test_float_compression
from tests.mutated import Mutator
from tests.suites import quick
from tests.test_compression import design, seeded

FLOATS = Bursts(codec=FloatCodec(10, Kind.BOUNDED), elements=43, lanes=8)
INTEGERS = Bursts(codec=IntegerCodec(5), elements=70)
FORMS = [FLOATS, INTEGERS, Bursts(codec=IntegerCodec(5), elements=11, lanes=4)]
# tensors of a stream, half of them damaged, and streams: one in the suite, all with the slow ones
TENSORS, STREAMS = 1000, 40
# that are drawn for a stream
KINDS = 50

Damage = Callable[[list[int], Bursts, np.random.Generator], list[int]]


def named(bursts: Bursts) -> str:
    return f"{type(bursts.codec).__name__}-{bursts.lanes}"


def some_word(bursts: Bursts, rng: np.random.Generator) -> int:
    return int.from_bytes(rng.bytes(bursts.burst_bits // 8), "little")


def flipped(words: list[int], bursts: Bursts, rng: np.random.Generator) -> list[int]:
    """Up to eight bits."""
    for _ in range(rng.integers(1, 9)):
        words[rng.integers(len(words))] ^= 1 << int(rng.integers(bursts.burst_bits))
    return words


def dropped(words: list[int], _: Bursts, rng: np.random.Generator) -> list[int]:
    """A word that is not there."""
    del words[rng.integers(len(words))]
    return words


def doubled(words: list[int], _: Bursts, rng: np.random.Generator) -> list[int]:
    """A word that comes twice."""
    at = int(rng.integers(len(words)))
    return [*words[: at + 1], *words[at:]]


def replaced(words: list[int], bursts: Bursts, rng: np.random.Generator) -> list[int]:
    """Another word, or one of all zeros or ones, from which on tags are the last ones, or marks."""
    words[rng.integers(len(words))] = (some_word(bursts, rng), 0, (1 << bursts.burst_bits) - 1)[rng.integers(3)]
    return words


def random_words(words: list[int], bursts: Bursts, rng: np.random.Generator) -> list[int]:
    """None of the words that were there."""
    return [some_word(bursts, rng) for _ in words]


DAMAGES: tuple[Damage, ...] = flipped, dropped, doubled, replaced, random_words


def drawn(bursts: Bursts, count: int, rng: np.random.Generator) -> list[IntArray]:
    """Tensors of all tags."""
    draw = test_float_compression.drawn if isinstance(bursts.codec, FloatCodec) else test_compression.drawn
    return draw(bursts, count, rng)


def damaged(bursts: Bursts, tensors: int, rng: np.random.Generator) -> list[int]:
    """Words of tensors, half of which are damaged."""
    packed, found = [bursts.pack(tensor) for tensor in drawn(bursts, KINDS, rng)], list[int]()
    for _ in range(tensors):
        words = list(packed[rng.integers(KINDS)])
        found += DAMAGES[rng.integers(len(DAMAGES))](words, bursts, rng) if rng.random() < 0.5 else words
    return found


@dataclass(frozen=True)
class Given:
    """A burst that the words give."""

    # as a beat of the circuit; None of one that is longer than any which a compressor makes
    beat: int | None
    # where it ends, in bits from the beginning of the word where it begins
    end: int


def burst_at(bursts: Bursts, bits: int, at: int) -> Given:
    """A burst from a bit on."""
    codec, start = bursts.codec, at
    tags = [bits >> at + TAG_BITS * lane & ESCAPE for lane in range(bursts.lanes)]
    if codec.has_mark and tags[0] == ESCAPE:
        tags, at = [codec.last_tag] * bursts.lanes, at + bursts.granule
    else:
        tags, at = [min(tag, codec.last_tag) for tag in tags], at + bursts.tag_bits
    codes = []
    for tag in tags:
        codes.append(bits >> at & (1 << codec.sizes[tag]) - 1)
        at += codec.sizes[tag]
    one = Bursts(codec=codec, elements=bursts.lanes, lanes=bursts.lanes)
    (beat,) = one.beats(codec.restored(np.array(tags, np.uint8), np.array(codes, np.int64)))
    return Given(beat if at - start <= bursts.most_granules * bursts.granule else None, at)


def given_by(bursts: Bursts, words: list[int]) -> list[Given]:
    """All bursts whose words have come."""
    word, at, found = bursts.burst_bits, 0, list[Given]()
    while True:
        # a tensor begins a word
        if len(found) % bursts.count == 0:
            at = -(-at // word) * word
        first = at // word
        near = sum(each << word * index for index, each in enumerate(words[first : first + 3]))
        given = burst_at(bursts, near, at - first * word)
        end = first * word + given.end
        if given.beat is None and end > (first + 2) * word:
            # longer than any that a compressor makes: what follows is looked for a word before
            end -= word
        if end > len(words) * word or first + 1 + (given.end > word) > len(words):
            return found
        found.append(given)
        at = end


def check(backend: Backend, bursts: Bursts, words: list[int], stall: float) -> int:
    """Runs the circuit; how many bursts of it were known beforehand."""
    expected = given_by(bursts, words)
    found = run_streams(
        backend,
        design(Decompressor(bursts=bursts)),
        {"x": words},
        {"y": len(expected)},
        seed=len(words),
        stall_probability=stall,
        # a burst and a word a cycle, thrice that where either may wait
        max_cycles=3 * (len(words) + len(expected)) + 200,
        drain_cycles=40,
    )
    wrong = [
        at
        for at, (beat, given) in enumerate(zip(found.outputs["y"], expected, strict=True))
        if given.beat not in (None, beat)
    ]
    assert not wrong, f"bursts {wrong[:5]} of {len(expected)}"
    return sum(given.beat is not None for given in expected)


@pytest.mark.parametrize("bursts", quick(2, FORMS, named))
def test_a_decompressor_goes_on_behind_damaged_words(bursts: Bursts) -> None:
    rng = seeded()
    assert check(Backend.VERILATOR, bursts, damaged(bursts, TENSORS, rng), 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("bursts", FORMS, ids=named)
def test_20_000_damaged_tensors(bursts: Bursts) -> None:
    rng = seeded()
    for stream in range(STREAMS):
        check(Backend.VERILATOR, bursts, damaged(bursts, TENSORS, rng), 0.3 * (stream % 2))


@pytest.mark.parametrize("bursts", FORMS, ids=named)
def test_undamaged_words_are_those_of_the_golden_model(bursts: Bursts) -> None:
    tensors = drawn(bursts, 20, seeded())
    words = [word for tensor in tensors for word in bursts.pack(tensor)]
    beats = [beat for tensor in tensors for beat in bursts.beats(bursts.unpack(bursts.pack(tensor)))]
    assert [given.beat for given in given_by(bursts, words)] == beats


@pytest.mark.parametrize(
    ("block", "old", "new"),
    # where a burst ended with its word, and where one has bits in the next word
    quick(
        1,
        [
            ("buffer_bursts", "skip.next = place == word", "skip.next = place > word"),
            (
                "buffer_bursts",
                "not skip and not long and (not beyond or x.valid)",
                "not skip and not long and not beyond",
            ),
        ],
    ),
)
def test_a_decompressor_that_waits_is_found(
    block: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = damaged(FLOATS, 60, np.random.default_rng(3))
    Mutator(monkeypatch, tmp_path)(decompressor, decompressor, block, {old: new})
    with pytest.raises((AssertionError, DagtrainError)):
        check(Backend.MYHDL, FLOATS, words, 0.2)
