"""Payloads of frames as bytes: what `hdl.link.ethernet.frame.Burst` says, without a number for each word."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hdl.link.ethernet.frame import DESCRIPTOR, DESCRIPTOR_BITS, DescriptorFlag, Drop, Dropped, FrameFormat

# stream, words, sequence, flags and credits
_DESCRIPTOR = struct.Struct(">HBBI")
_LAST, _CREDIT = int(DescriptorFlag.LAST), int(DescriptorFlag.CREDIT)
_FLAGS_AT = DESCRIPTOR["descriptor.credits"].bits
_CREDITS = (1 << _FLAGS_AT) - 1
_KNOWN = _LAST | _CREDIT
_UNUSED = bytes(DESCRIPTOR_BITS // 8)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Words of one stream in a frame, or credits for it."""

    stream: int
    # whole words
    words: bytes = b""
    # number of the first of them, modulo 256
    sequence: int = 0
    # whether the last of them ends a tensor
    last: bool = False
    credits: int = 0


def payload_of(chunks: Sequence[Chunk], form: FrameFormat) -> bytes:
    """The payload of chunks, of which each has words, at most 255, or credits."""
    size, parts = form.word_bytes, []
    for start in range(0, len(chunks), form.descriptors):
        group = chunks[start : start + form.descriptors]
        told = b"".join(
            _DESCRIPTOR.pack(
                chunk.stream,
                len(chunk.words) // size,
                chunk.sequence,
                chunk.credits | (_CREDIT if chunk.credits else chunk.last) << _FLAGS_AT,
            )
            for chunk in group
        )
        parts.append(told.ljust(size, b"\0"))
        parts += [chunk.words for chunk in group]
    return b"".join(parts)


def chunks_of(payload: bytes, form: FrameFormat) -> list[Chunk]:
    """The chunks of a payload of whole beats; exactly where `FrameFormat.bursts_of` does, it raises `Dropped`."""
    return list(_chunks(payload, form))


def _chunks(payload: bytes, form: FrameFormat) -> Iterator[Chunk]:
    size, at = form.word_bytes, 0
    while at < len(payload):
        told = payload[at : at + size].rstrip(b"\0")
        used = -(-len(told) // len(_UNUSED))
        at += size
        if not used:
            raise Dropped(Drop.PAYLOAD, f"no descriptors at byte {at - size}")
        for descriptor in range(at - size, at - size + used * len(_UNUSED), len(_UNUSED)):
            stream, count, sequence, rest = _DESCRIPTOR.unpack_from(payload, descriptor)
            flags, credits = rest >> _FLAGS_AT, rest & _CREDITS
            returns = bool(flags & _CREDIT)
            alone = not credits or not (count or sequence or flags & _LAST)
            if flags & ~_KNOWN or returns != bool(credits) or bool(count) == returns or not alone:
                raise Dropped(Drop.PAYLOAD, f"descriptor {payload[descriptor : descriptor + 8].hex()}")
            end = at + count * size
            if end > len(payload):
                raise Dropped(Drop.PAYLOAD, f"{count} words at byte {at}")
            yield Chunk(stream, payload[at:end], sequence, bool(flags & _LAST), credits)
            at = end
