"""Streams whose elements a codec has left few bits of, in few words of the network: how, and what both ends are.

    elements ─▶ bursts ─▶ compressor ─▶ words ─▶ link ─▶ words ─▶ decompressor ─▶ bursts ─▶ elements

Nothing is lost on the way, whatever passes (`hdl.engine.codec.bursts`): what an edge carries is the same with and
without.  Only how many words that takes depends on the data, and so does time; so a plan counts on a *stated* number
of bits, and credits make the sender wait where data need more.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from myhdl import block

from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.compressor import compressor
from hdl.engine.codec.decompressor import decompressor
from hdl.engine.codec.element_codec import TAG_BITS
from hdl.engine.codec.integer_codec import Cut, IntegerCodec
from hdl.link.format import adapter_cycles
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import s2m_pipe
from hdl.streams.width import width_adapter, wire_words
from hdl.unit import Unit

# stages beside those of the tree: of `compressor`, and of `decompressor` from the word that a burst ends in
COMPRESSOR_STAGES, DECOMPRESSOR_STAGES = 9, 8


@dataclass(frozen=True)
class Coding:
    """What is left by a codec, and how many bits of it a plan counts on.

    ``ratio``: bits of elements to those of their words, as was stated; None: the worst that can be, a little below 1.
    Raises ValueError for a ratio that no elements have."""

    codec: IntegerCodec
    ratio: Fraction | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and not 1 <= self.ratio <= self.most_ratio:
            raise ValueError(
                f"a ratio of {float(self.ratio):g} is impossible: take 1 to {float(self.most_ratio):g}, since each "
                f"element of {self.codec.width} bits has a tag of {TAG_BITS}"
            )

    @property
    def most_ratio(self) -> Fraction:
        """Of zeros alone."""
        return Fraction(self.codec.width, TAG_BITS)

    def bursts(self, elements: int, word_bits: int) -> Bursts | None:
        """How tensors of so many elements lie in words of so many bits; None where they are not coded: where a word has
        no room for two elements, or a tensor is no longer than a burst, or elements have an odd number of bits."""
        lanes = 1 << max(1, word_bits // self.codec.width).bit_length() - 1
        if lanes < 2 or elements <= lanes or self.codec.width % 2:
            return None
        # how elements were rounded makes no other circuit
        return Bursts(codec=replace(self.codec, cut=Cut.TRUNCATE), elements=elements, lanes=lanes)

    def words(self, bursts: Bursts) -> int:
        """That a plan counts on for a tensor."""
        if self.ratio is None:
            return bursts.most_words
        return math.ceil(bursts.count / self.ratio)

    def elements_per_word(self, bursts: Bursts) -> int:
        """That a plan counts on."""
        return bursts.lanes if self.ratio is None else int(bursts.lanes * self.ratio)


def coded_words(elements: int, element_bits: int, word_bits: int, coding: Coding | None) -> tuple[int, int]:
    """Words of a tensor of an edge that is coded so, or not: those that a plan counts on, and the most there can be."""
    bursts = coding.bursts(elements, word_bits) if coding else None
    if coding is None or bursts is None:
        words = wire_words(elements, element_bits, word_bits)
        return words, words
    return coding.words(bursts), bursts.most_words


@dataclass(frozen=True, kw_only=True)
class CodedEnd(Unit, ABC):
    """Either end: ``lanes`` elements a beat on one side, words as wide as a burst on the other."""

    bursts: Bursts
    lanes: int

    @property
    def _stages(self) -> int:
        """Between a beat of elements and bursts, and of the tree."""
        return adapter_cycles(self.lanes, self.bursts.lanes) + self.bursts.levels


class CompressedEnd(CodedEnd):
    """The sending end: elements at ``x``, words at ``y``."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": self.lanes * self.bursts.codec.width, "y": self.bursts.burst_bits}

    @property
    def latency_cycles(self) -> int:
        """From the last beat of what ends a word to that word."""
        return self._stages + COMPRESSOR_STAGES

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See `compressed_end`."""
        return compressed_end(domain, streams["x"], streams["y"], bursts=self.bursts)


class DecompressedEnd(CodedEnd):
    """The receiving end: words at ``x``, elements at ``y``."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": self.bursts.burst_bits, "y": self.lanes * self.bursts.codec.width}

    @property
    def latency_cycles(self) -> int:
        """From the word that ends a burst to its first beat."""
        return self._stages + DECOMPRESSOR_STAGES

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See `decompressed_end`."""
        return decompressed_end(domain, streams["x"], streams["y"], bursts=self.bursts)


@block
def compressed_end(domain: ClockReset, x: Stream, y: Stream, *, bursts: Bursts) -> Instances:
    """Elements to words.  Costs a stage of a beat of ``x``, a width adapter, and `compressor`.

    Ports:
        x: in, stream of elements, any number a beat that divides ``bursts.elements``; ready from a register.
        y: out, stream of words; valid, payload and ready from registers.
    """
    entered, whole = Stream(x.width), Stream(bursts.burst_bits)
    return (
        s2m_pipe(domain, x, entered),
        width_adapter(domain, entered, whole, element_bits=bursts.codec.width, flush_every=bursts.elements),
        compressor(domain, whole, y, bursts=bursts),
    )


@block
def decompressed_end(domain: ClockReset, x: Stream, y: Stream, *, bursts: Bursts) -> Instances:
    """Words to elements.  Costs `decompressor` and a width adapter.

    Ports:
        x: in, stream of words.
        y: out, stream of elements, any number a beat that divides ``bursts.elements``.
    """
    whole = Stream(bursts.burst_bits)
    return (
        decompressor(domain, x, whole, bursts=bursts),
        width_adapter(domain, whole, y, element_bits=bursts.codec.width, flush_every=bursts.elements),
    )
