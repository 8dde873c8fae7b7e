"""The keyed check of a frame: SipHash-2-4 with the cluster's 64-bit key.

It is computed over the 22 bytes of the frame's own header and its CRC, 26 bytes, so four words of 64 bits and 12 rounds
a frame whatever the width of the link.  docs/network.md says what that protects against and what not.

Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
# rounds a word, and after the last
WORD_ROUNDS, FINAL_ROUNDS = 2, 4
START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
# the second half of SipHash's key of 128 bits is the cluster's key XOR this
SECOND_HALF = int.from_bytes(b"dagtrain", "little")

State = tuple[int, int, int, int]


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> (64 - by)) & MASK


def sip_round(state: State) -> State:
    """One round."""
    a, b, c, d = state
    a, c = (a + b) & MASK, (c + d) & MASK
    b, d = _rotated(b, 13) ^ a, _rotated(d, 16) ^ c
    a = _rotated(a, 32)
    c, a = (c + b) & MASK, (a + d) & MASK
    b, d = _rotated(b, 17) ^ c, _rotated(d, 21) ^ a
    return a, b, _rotated(c, 32), d


def siphash(data: bytes, low: int, high: int) -> int:
    """SipHash-2-4 of bytes with a key of two 64-bit halves, the first 8 bytes little-endian in ``low``."""
    state: State = (START[0] ^ low, START[1] ^ high, START[2] ^ low, START[3] ^ high)
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 255])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        a, b, c, d = state
        state = (a, b, c, d ^ word)
        for _ in range(WORD_ROUNDS):
            state = sip_round(state)
        a, b, c, d = state
        state = (a ^ word, b, c, d)
    a, b, c, d = state
    state = (a, b, c ^ 255, d)
    for _ in range(FINAL_ROUNDS):
        state = sip_round(state)
    a, b, c, d = state
    return a ^ b ^ c ^ d


def tag_of(key: int, covered: bytes) -> int:
    """The 64-bit tag of the bytes that it covers, under the cluster's 64-bit key."""
    return siphash(covered, key, key ^ SECOND_HALF)
