"""Sizes of what frames come into."""

from __future__ import annotations

from dataclasses import dataclass

from hdl.link.ethernet.claims import CLAIMS_CYCLES
from hdl.link.ethernet.frame import HEADER_BYTES, FrameFormat
from hdl.link.format import LinkFormat

# from the last beat of a frame at the port to what becomes of it, without the register at the port
VERDICT_CYCLES = CLAIMS_CYCLES + 1
# words of a block memory at least: a store of fewer takes as many blocks
LEAST_STORE = 512


@dataclass(frozen=True, kw_only=True)
class FrameSink:
    """Sizes of a receiver."""

    frames: FrameFormat
    form: LinkFormat
    peers: int

    @property
    def store(self) -> int:
        """Beats that are stored, a power of two: a longest payload and what comes until it is known to be whole."""
        return max(LEAST_STORE, 1 << (self.frames.payload_beats + 3 * VERDICT_CYCLES - 1).bit_length())

    @property
    def size_bits(self) -> int:
        """Bits of the number of bytes of a beat."""
        return self.frames.word_bytes.bit_length()

    @property
    def beat_bits(self) -> int:
        """Bits of a beat from the MAC: its data, byte 0 in the low bits; whether it is the last of its frame; whether
        the MAC found the frame bad, with the last; bytes that it has."""
        return self.frames.word_bits + 2 + self.size_bits

    @property
    def judged_bits(self) -> int:
        """Bits of a beat to the receiver: with a key, also whether the tag is wrong, with the last."""
        return self.beat_bits + (self.frames.key is not None)

    @property
    def header_beats(self) -> int:
        """Beats of the headers."""
        return HEADER_BYTES // self.frames.word_bytes
