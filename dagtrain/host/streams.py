"""Ends of streams of words at a program: what `Egress` and `Ingress` are in a device."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dagtrain.host.chunks import Chunk
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.link.ethernet.frame import MOST_WORDS
from hdl.link.format import credit_batch
from hdl.streams.width import elements_per_word, wire_words

SEQUENCES = 256
# numbers that fill words without a bit between them
_WHOLE = {8: "<u1", 16: "<u2", 32: "<u4", 64: "<u8"}


class LinkFault(DagtrainError):
    """A device that broke a rule of a stream, or is lost."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How numbers lie in the words of a stream."""

    word_bits: int
    element_bits: int
    # of a tensor; 0: no tensors, each word holds one element
    elements: int

    @cached_property
    def words(self) -> int:
        """Words of a tensor; 0 where there are none."""
        return wire_words(self.elements, self.element_bits, self.word_bits) if self.elements else 0

    @cached_property
    def per_word(self) -> int:
        """Elements of a word."""
        return elements_per_word(self.element_bits, self.word_bits) if self.elements else 1

    def encode(self, codes: IntArray) -> bytes:
        """The words of codes (tensors, elements), or (words,) where there are no tensors."""
        rows = codes.reshape(-1, self.elements or 1)
        padded = np.zeros((len(rows), (self.words or 1) * self.per_word), np.uint64)
        padded[:, : rows.shape[1]] = rows.astype(np.uint64)
        bits = self.element_bits
        if bits in _WHOLE and bits * self.per_word == self.word_bits:
            return padded.astype(_WHOLE[bits]).tobytes()
        places = np.arange(bits, dtype=np.uint64)
        single = (padded.reshape(-1, self.per_word)[:, :, None] >> places & np.uint64(1)).astype(np.uint8)
        spare = self.word_bits - bits * self.per_word
        flat = np.pad(single.reshape(len(single), -1), ((0, 0), (0, spare)))
        return np.packbits(flat, axis=1, bitorder="little").tobytes()

    def decode(self, words: bytes, signed: bool = False) -> IntArray:
        """Codes (tensors, elements) of whole tensors, or (words,); of 64 bits only their bits count."""
        raw = np.frombuffer(words, np.uint8).reshape(-1, self.word_bits // 8)
        bits = np.unpackbits(raw, axis=1, bitorder="little", count=self.per_word * self.element_bits)
        weights = np.uint64(1) << np.arange(self.element_bits, dtype=np.uint64)
        values: IntArray = (bits.reshape(-1, self.element_bits) * weights).sum(axis=1, dtype=np.uint64).astype(np.int64)
        if signed and self.element_bits < 64:
            half = 1 << (self.element_bits - 1)
            values = (values + half) % (2 * half) - half
        if not self.elements:
            return values
        return values.reshape(-1, self.words * self.per_word)[:, : self.elements]


@dataclass
class Outgoing:
    """The sending end of a stream."""

    number: int
    layout: Layout
    # words that the receiver has room for
    credits: int
    # tensors of which words are still to be sent
    waiting: deque[memoryview] = field(default_factory=deque)
    # bytes of them
    backlog: int = 0
    # of the next word
    sequence: int = 0

    def __post_init__(self) -> None:
        self.most = self.credits

    def offer(self, words: bytes) -> None:
        """More words: whole tensors, or any number where there are none."""
        size = self.layout.words * self.layout.word_bits // 8 or len(words)
        view = memoryview(words)
        self.waiting.extend(view[start : start + size] for start in range(0, len(view), size))
        self.backlog += len(view)

    def take(self, beats: int) -> Chunk | None:
        """What may be sent of the stream in so many beats, as one chunk; None if nothing may."""
        count = min(beats, self.credits, MOST_WORDS)
        if count < 1 or not self.waiting:
            return None
        words = self.waiting[0]
        part = words[: count * self.layout.word_bits // 8]
        ended = len(part) == len(words)
        if ended:
            self.waiting.popleft()
        else:
            self.waiting[0] = words[len(part) :]
        sent = 8 * len(part) // self.layout.word_bits
        chunk = Chunk(self.number, bytes(part), self.sequence, ended and bool(self.layout.elements))
        self.backlog -= len(part)
        self.credits -= sent
        self.sequence = (self.sequence + sent) % SEQUENCES
        return chunk

    def fault(self, chunk: Chunk) -> str:
        """What is wrong with credits that came back; "" if nothing is."""
        if self.credits + chunk.credits > self.most:
            return f"{chunk.credits} credits came back where {self.most - self.credits} words were unpaid"
        return ""


@dataclass
class Incoming:
    """The receiving end of a stream."""

    number: int
    layout: Layout
    # words that it holds: the credits of the sender
    depth: int
    # whole tensors that have come, and the words of one under way; single words where there are no tensors
    tensors: deque[bytes] = field(default_factory=deque)
    under_way: bytes = b""
    # words that have come and are not taken; those taken whose credits have not gone back
    held: int = 0
    freed: int = 0
    # of the next word
    sequence: int = 0

    @property
    def paid(self) -> int:
        """Credits that go back now."""
        return self.freed if self.freed >= credit_batch(self.depth) else 0

    def fault(self, chunk: Chunk) -> str:
        """What is wrong with words that came; "" if nothing is."""
        size = self.layout.word_bits // 8
        count = len(chunk.words) // size
        if chunk.sequence != self.sequence:
            return f"word {chunk.sequence} came where {self.sequence} was due"
        if self.held + self.freed + count > self.depth:
            return f"{count} words came without credits"
        due = self.layout.words - len(self.under_way) // size
        if self.layout.words and (count > due or chunk.last != (count == due)):
            return f"{count} words{', the last of a tensor,' if chunk.last else ''} came where {due} were due"
        return "a tensor ended where there are none" if chunk.last and not self.layout.words else ""

    def put(self, chunk: Chunk) -> None:
        """Words without fault have come."""
        size = self.layout.word_bits // 8
        count = len(chunk.words) // size
        self.sequence = (self.sequence + count) % SEQUENCES
        self.held += count
        if not self.layout.words:
            self.tensors.append(chunk.words)
            return
        self.under_way += chunk.words
        if chunk.last:
            self.tensors.append(self.under_way)
            self.under_way = b""

    def get(self) -> bytes:
        """The oldest tensor, or some words; there is one."""
        found = self.tensors.popleft()
        count = 8 * len(found) // self.layout.word_bits
        self.held -= count
        self.freed += count
        return found
