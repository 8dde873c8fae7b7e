"""INCEPTIONN's codec: as printed, and with a bound that holds."""

from __future__ import annotations

import math
import random
import struct

import numpy as np
import pytest

from benchmarks.inceptionn import Scan, scan
from hdl.engine.codec.float_codec import EXPONENT_BIAS, FloatCodec, Kind, Tag

BOUNDS = range(1, 16)
SPECIAL = [0, 1, 0x007FFFFF, 0x00800000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00001]


def printed_encoding(word: int, bound_bits: int) -> tuple[int, int]:
    """Algorithm 2, line by line, on a string of bits."""
    bound = 127 - bound_bits
    f = f"{word:032b}"
    s, e, m = f[0], int(f[1:9], 2), f[9:]
    if e >= 127:
        return 0b11, word
    if e < bound:
        return 0b00, 0
    shifted = ("0" * (127 - e) + "1" + m)[:24]
    # shifted[0] is bit 23
    if e >= bound + math.ceil((127 - bound) / 2):
        return 0b10, int(s + shifted[1:16], 2)
    return 0b01, int(s + shifted[1:8], 2)


def printed_decoding(tag: int, code: int) -> int:
    """Algorithm 3, line by line; without a first 1, nothing."""
    if tag == 0b11:
        return code
    if tag == 0b00:
        return 0
    width, zeros = (8, 16) if tag == 0b01 else (16, 8)
    v = f"{code:0{width}b}"
    if "1" not in v[1:]:
        return 0
    shift = v[1:].index("1") + 1
    m = (v[1:] + "0" * shift)[shift:] + "0" * zeros
    return int(f"{v[0]}{127 - shift:08b}{m}", 2)


def elements(count: int = 3000) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Of every exponent, both signs, ends of every range."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    ends = [exponent << 23 | mantissa for exponent in range(100, 129) for mantissa in (0, 1, 0x400000, 0x7FFFFF)]
    words = SPECIAL + ends + [draw.randrange(100, 128) << 23 | draw.getrandbits(23) for _ in range(count)]
    return np.array(words + [word | 1 << 31 for word in words], np.uint32)


@pytest.mark.parametrize("bound_bits", [1, 6, 7, 8, 10, 15])
def test_literal_is_what_is_printed(bound_bits: int) -> None:
    words, codec = elements(), FloatCodec(bound_bits, Kind.LITERAL)
    tags, codes = codec.encode(words)
    wanted = [printed_encoding(int(word), bound_bits) for word in words]
    assert list(zip(tags.tolist(), codes.tolist(), strict=True)) == wanted
    assert codec.decode(tags, codes).tolist() == [printed_decoding(*pair) for pair in wanted]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("bound_bits", BOUNDS)
def test_what_is_decoded_is_kept_from_then_on(kind: Kind, bound_bits: int) -> None:
    codec = FloatCodec(bound_bits, kind)
    once = codec.decode(*codec.encode(elements()))
    assert np.array_equal(codec.decode(*codec.encode(once)), once)


@pytest.mark.parametrize("bound_bits", BOUNDS)
def test_bounded_keeps_its_bound_nearer_to_zero_and_of_the_same_sign(bound_bits: int) -> None:
    codec = FloatCodec(bound_bits, Kind.BOUNDED)
    words = elements()
    tags, codes = codec.encode(words)
    assert all(int(code) < 1 << Tag(tag).code_bits for tag, code in zip(tags, codes, strict=True))
    small = (words & 0x7FFFFFFF) < EXPONENT_BIAS << 23
    back = codec.decode(tags, codes)
    assert np.array_equal(back[~small], words[~small])
    given, found = words[small].view(np.float32).astype(np.float64), back[small].view(np.float32)
    assert np.abs(given - found).max() < 2.0**-bound_bits
    assert (np.abs(found) <= np.abs(given)).all()
    assert (given * found >= 0).all()


def test_literal_breaks_its_bound() -> None:
    codec = FloatCodec(10, Kind.LITERAL)
    # just below the last place of an 8-bit code
    word = np.array([struct.unpack("<I", struct.pack("<f", 0.0078))[0]], np.uint32)
    tags, codes = codec.encode(word)
    assert (tags[0], codes[0]) == (Tag.SMALL, 0)
    assert codec.decode(tags, codes)[0] == 0


@pytest.mark.parametrize("bound_bits", [-1, 0, 16])
def test_impossible_bounds_are_refused(bound_bits: int) -> None:
    with pytest.raises(ValueError, match=f"2\\^-{bound_bits} is impossible; take 1 to 15"):
        FloatCodec(bound_bits, Kind.BOUNDED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "bound_bits", "worst", "reaching", "vanished"),
    [
        (Kind.LITERAL, 6, 0.99999994, 0, 0),
        (Kind.LITERAL, 8, 1.99999988, 20_971_520, 8_388_608),
        (Kind.LITERAL, 10, 7.99999952, 39_845_888, 25_165_824),
        (Kind.BOUNDED, 6, 0.99999994, 0, 0),
        (Kind.BOUNDED, 8, 0.99999994, 0, 0),
        (Kind.BOUNDED, 10, 0.99999994, 0, 0),
    ],
)
def test_all_elements_below_one(kind: Kind, bound_bits: int, worst: float, reaching: int, vanished: int) -> None:
    found = scan(FloatCodec(bound_bits, kind))
    assert found == Scan(127 << 23, pytest.approx(worst, abs=5e-9), reaching, vanished)
