"""Compressor and decompressor of float32: circuits beside the golden model, and that beside what is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hdl.engine.codec import compressor, decompressor, float_coder, stages
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.coders import coder_of, decoder_of
from hdl.engine.codec.float_codec import EXPONENT_BIAS, MANTISSA_BITS, FloatCodec, Kind, Tag
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.simulate import Backend
from tests.mutated import Mutator
from tests.suites import quick
from tests.test_compression import begins, both, seeded
from tests.test_float_codec import SPECIAL, elements, printed_decoding, printed_encoding

# as the paper's words
PAPER = Bursts(codec=FloatCodec(10, Kind.LITERAL), elements=8 * 5 + 3, lanes=8)
OURS = replace(PAPER, codec=FloatCodec(10, Kind.BOUNDED))
# both ends of the bounds, fewer lanes
FORMS = [
    OURS,
    PAPER,
    replace(OURS, codec=FloatCodec(6, Kind.BOUNDED)),
    replace(OURS, codec=FloatCodec(15, Kind.BOUNDED)),
    replace(PAPER, codec=FloatCodec(15, Kind.LITERAL)),
    replace(PAPER, codec=FloatCodec(1, Kind.LITERAL)),
    replace(OURS, codec=FloatCodec(1, Kind.BOUNDED), lanes=4),
    replace(PAPER, codec=FloatCodec(8, Kind.LITERAL), lanes=2),
]
# granules of bursts of 8 elements: no mix of codes of 0, 1, 2 and 4 comes to 31
LENGTHS = frozenset(2 + size for size in {*range(33)} - {31})
# tags of 8 elements, all of them and by the granules of their codes
MIXES: IntArray = np.indices((4,) * 8).reshape(8, -1).T
MIXES_OF = {size - 2: MIXES[np.array((0, 1, 2, 4))[MIXES].sum(axis=1) == size - 2] for size in LENGTHS}
# granules of bursts, behind which the next one begins at the last granule of a word; so many that all stages are full
TO_LAST = (*[2] * 27, 9)
MANTISSAS = (0, 1, 0x400000, (1 << MANTISSA_BITS) - 1)


def named(bursts: Bursts) -> str:
    assert isinstance(bursts.codec, FloatCodec)
    return f"{bursts.lanes}-{bursts.codec.kind.value}-{bursts.codec.bound_bits}"


def exponents(codec: FloatCodec, tag: int) -> range:
    """Of all elements that have this tag."""
    ends = 0, EXPONENT_BIAS - codec.bound_bits, codec.large_from, EXPONENT_BIAS, 256
    return range(ends[tag], ends[tag + 1])


def of_tags(codec: FloatCodec, tags: Iterable[int], rng: np.random.Generator) -> IntArray:
    """Elements that have these tags, ends of their ranges among them; where no element has one, of the tag above."""
    found = []
    for tag in tags:
        among = exponents(codec, tag) or exponents(codec, tag + 1)
        exponent = rng.choice([among[0], among[-1], rng.integers(among[0], among[-1] + 1)])
        mantissa = rng.choice([*MANTISSAS, *rng.integers(0, 1 << MANTISSA_BITS, 4)])
        found.append(int(rng.integers(2)) << 31 | int(exponent) << MANTISSA_BITS | int(mantissa))
    return np.array(found, np.int64)


def drawn(bursts: Bursts, count: int, rng: np.random.Generator) -> list[IntArray]:
    """Tensors of all tags, and of few bits or many."""
    assert isinstance(bursts.codec, FloatCodec)
    shares = ((1, 1, 1, 1), (8, 1, 1, 0), (1, 8, 1, 1), (0, 1, 0, 9), (1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    found = []
    for _ in range(count):
        share = np.array(shares[rng.integers(len(shares))])
        found.append(of_tags(bursts.codec, rng.choice(4, bursts.elements, p=share / share.sum()), rng))
    return found


def of_lengths(bursts: Bursts, lengths: Sequence[int], rng: np.random.Generator) -> IntArray:
    """A burst of so many granules each."""
    assert isinstance(bursts.codec, FloatCodec)
    return np.concatenate([of_tags(bursts.codec, mixed(length - bursts.tag_granules, rng), rng) for length in lengths])


def mixed(granules: int, rng: np.random.Generator) -> IntArray:
    """Tags of 8 elements that take so many granules."""
    choices = MIXES_OF[granules]
    return choices[rng.integers(len(choices))]


# ------------------------------------------------------------------------------------------------------ golden model


@pytest.mark.parametrize("bound_bits", [1, 6, 10, 15])
def test_words_are_tags_and_codes_as_printed_side_by_side(bound_bits: int) -> None:
    words = elements(500)
    bursts = Bursts(codec=FloatCodec(bound_bits, Kind.LITERAL), elements=words.size, lanes=8)
    text = ""
    for start in range(0, words.size, 8):
        pairs = [printed_encoding(int(word), bound_bits) for word in words[start : start + 8]]
        pairs += [(0, 0)] * (8 - len(pairs))
        burst = "".join(f"{code:0{size}b}" for tag, code in reversed(pairs) if (size := Tag(tag).code_bits))
        text = burst + "".join(f"{tag:02b}" for tag, _ in reversed(pairs)) + text
    packed = bursts.pack(words.astype(np.int64))
    assert sum(word << 256 * at for at, word in enumerate(packed)) == int(text, 2)
    assert len(packed) == -(-len(text) // 256) == bursts.words(words.astype(np.int64))
    back = [printed_decoding(*printed_encoding(int(word), bound_bits)) for word in words]
    assert bursts.unpack(packed).tolist() == back


def test_bursts_take_16_to_272_bits() -> None:
    bursts = replace(OURS, elements=8 * 16)
    assert len(bursts.pack(np.zeros(bursts.elements, np.int64))) == 1
    assert len(bursts.pack(np.full(bursts.elements, 0x3F800000))) == 17 == bursts.most_words
    assert (bursts.granule, bursts.granules, bursts.most_granules) == (8, (0, 1, 2, 4), 34)


def test_more_than_8_elements_a_burst_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^a burst of 16 elements is impossible; take at most 8$"):
        replace(OURS, lanes=16)


def test_a_codec_without_circuits_is_named() -> None:
    class Unknown:
        sizes, width, has_mark = (0, 8, 16), 16, True

    strange = replace(OURS, codec=Unknown())  # type: ignore[arg-type]
    for circuits in (coder_of, decoder_of):
        with pytest.raises(TypeError, match=r"^Unknown has no circuits$"):
            circuits(strange)


# ---------------------------------------------------------------------------------------------------------- circuits


@pytest.mark.parametrize("stall", [0.0, 0.4])
@pytest.mark.parametrize("bursts", quick(2, FORMS, named))
def test_circuits_have_the_words_of_the_golden_model_in_myhdl(bursts: Bursts, stall: float) -> None:
    both(Backend.MYHDL, bursts, drawn(bursts, 6, seeded()), stall)


@pytest.mark.parametrize("backend", quick(1, [Backend.ICARUS, Backend.VERILATOR]))
@pytest.mark.parametrize("bursts", quick(1, FORMS, named))
def test_circuits_have_them_in_verilog(bursts: Bursts, backend: Backend) -> None:
    tensors = drawn(bursts, 60, seeded())
    for stall in (0.0, 0.4):
        both(backend, bursts, tensors, stall)


@pytest.mark.parametrize("backend", quick(1, Backend))
@pytest.mark.parametrize("bursts", quick(1, [OURS, PAPER], named))
def test_circuits_take_all_kinds_of_numbers(bursts: Bursts, backend: Backend) -> None:
    """Zeros, ones, subnormal numbers, infinities, NaN, both ends of every range, both signs."""
    words = elements(200).astype(np.int64)
    assert set(SPECIAL) <= set(words.tolist())
    both(backend, replace(bursts, elements=words.size), [words, words[::-1]], 0.3)


def test_all_mixes_of_tags_of_four_elements_pass() -> None:
    rng = seeded()
    mixes = list(product(range(4), repeat=4))
    rng.shuffle(mixes)
    bursts = replace(OURS, elements=4 * len(mixes), lanes=4)
    assert isinstance(bursts.codec, FloatCodec)
    both(Backend.MYHDL, bursts, [of_tags(bursts.codec, np.ravel(mixes), rng)], 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_all_mixes_of_tags_of_eight_elements_pass(kind: Kind) -> None:
    rng, codec = seeded(), FloatCodec(10, kind)
    mixes = rng.permutation(MIXES)
    bursts = Bursts(codec=codec, elements=mixes.size, lanes=8)
    both(Backend.VERILATOR, bursts, [of_tags(codec, np.ravel(mixes), rng)], 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
def test_bursts_of_all_lengths_begin_at_all_granules(backend: Backend) -> None:
    rng, wanted, lengths, place = seeded(), set(product(range(32), LENGTHS)), list[int](), 0
    # on from where the last one ended: a length that is still to be seen there, else any
    while wanted:
        here = [length for at, length in wanted if at == place]
        lengths.append(int(rng.choice(here or sorted(LENGTHS))))
        wanted.discard((place, lengths[-1]))
        place = (place + lengths[-1]) % 32
    bursts = replace(OURS, elements=8 * len(lengths))
    tensor = of_lengths(bursts, lengths, rng)
    assert set(begins(bursts, tensor)) == set(product(range(32), LENGTHS))
    for stall in (0.0, 0.4):
        both(backend, bursts, [tensor, tensor], stall)


@pytest.mark.parametrize("elements", quick(2, [1, 7, 2, 3, 4, 5, 6, 8, 9]))
def test_a_tensor_may_end_at_each_element_of_a_burst(elements: int) -> None:
    bursts = replace(OURS, elements=elements)
    both(Backend.MYHDL, bursts, drawn(bursts, 8, seeded()), 0.3)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("last", [True, False], ids=["last", "inside"])
def test_a_burst_may_reach_a_third_word(last: bool, stall: float) -> None:
    rng = seeded()
    lengths = [*TO_LAST, 34] if last else [*TO_LAST, 34, 30, 34, 32, 34, 34, 2]
    bursts = replace(OURS, elements=8 * len(lengths))
    tensors = [of_lengths(bursts, lengths, rng) for _ in range(3)]
    assert (31, 34) in begins(bursts, tensors[0])
    both(Backend.MYHDL, bursts, tensors, stall)


@pytest.mark.parametrize("tag", [*Tag, None])
def test_a_burst_and_a_word_pass_in_a_cycle(tag: Tag | None) -> None:
    rng = seeded()
    bursts = replace(OURS, elements=8 * 150)
    assert isinstance(bursts.codec, FloatCodec)
    tags = [int(tag)] * bursts.elements if tag is not None else rng.integers(0, 4, bursts.elements)
    tensor = of_tags(bursts.codec, tags, rng)
    words, latency = len(bursts.pack(tensor)), 40
    # a burst in 16 may end two words, and so take a cycle more
    most = max(words, bursts.count) * (17 / 16 if tag is None else 1) + latency
    for found in both(Backend.MYHDL, bursts, [tensor], 0.0):
        assert found.cycles <= most


FAULTS: Mapping[str, tuple[ModuleType, ModuleType, str, Mapping[str, str]]] = {
    "tag order reversed": (
        float_coder,
        float_coder,
        "shift_mantissas",
        {"bits_of(lane, 2, to_tags)": "bits_of(lanes - 1 - lane, 2, to_tags)"},
    ),
    "last burst not flushed": (
        compressor,
        compressor,
        "place_burst",
        {"judge_long() -> None:\n            ends.next = last or": "judge_long() -> None:\n            ends.next ="},
    ),
    "shift off by one": (
        float_coder,
        float_coder,
        "tag_floats",
        {"large_top = (EXPONENT_BIAS - 1) % turn + turn": "large_top = (EXPONENT_BIAS - 2) % turn + turn"},
    ),
    "small codes count in another place": (
        float_coder,
        float_coder,
        "tag_floats",
        {"small_top = (EXPONENT_BIAS - 1 - _steps_up(codec)) % turn": "small_top = (EXPONENT_BIAS - 1) % turn"},
    ),
    "exponent off by one": (
        float_coder,
        float_coder,
        "make_floats",
        {"large_top, small_top = EXPONENT_BIAS - 1, ": "large_top, small_top = EXPONENT_BIAS, "},
    ),
    "sign of zeros": (float_coder, float_coder, "make_floats", {"tag != zero and element[top]": "tag != zero"}),
    "first 1 not looked for": (
        float_coder,
        float_coder,
        "align_codes",
        {"half, quarter = bits - 8, bits - 4": "half, quarter = bits - 8, bits - 5"},
    ),
    "third word of a tensor forgotten": (
        compressor,
        compressor,
        "place_burst",
        {"thrice.next = last and total > 2 * word": "thrice.next = False"},
    ),
    "rest behind two words forgotten": (
        compressor,
        compressor,
        "merge_words",
        {"held.next = held[rest:word]": "held.next = 0"},
    ),
    "third word not looked at": (
        decompressor,
        decompressor,
        "buffer_bursts",
        {"place == last_place\n": "place == word\n"},
    ),
    "third word not waited for": (
        decompressor,
        decompressor,
        "buffer_bursts",
        {"not full or skip or long or": "not full or skip or"},
    ),
    "stays behind a mark": (
        decompressor,
        decompressor,
        "buffer_bursts",
        {"behind_mark.next = False\n            if domain.rst": "behind_mark.next = True\n            if domain.rst"},
    ),
    "sizes of large codes": (decompressor, stages, "tag_sums", {"large = bursts.granules[-2]": "large = small"}),
}


@pytest.mark.parametrize("name", quick(3, FAULTS))
def test_seeded_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user, home, block, changes = FAULTS[name]
    rng = np.random.default_rng(7)
    lengths = [*TO_LAST, 34, 30, 34, 34, 12, 2, 21, 25, 34]
    bursts = replace(PAPER if name == "sign of zeros" else OURS, elements=8 * len(lengths))
    # small magnitudes of either sign, of which no bit is left by the printed codec
    small = 1 << 31 | 118 << MANTISSA_BITS
    tensors = [of_lengths(bursts, lengths, rng), *drawn(bursts, 3, rng), np.full(bursts.elements, small)]
    assert begins(bursts, tensors[0])[-1] == (31, 34)
    Mutator(monkeypatch, tmp_path)(user, home, block, changes)
    with pytest.raises((AssertionError, DagtrainError)):
        both(Backend.MYHDL, bursts, tensors, 0.5)
