"""The keyed check of a frame as a circuit: `hdl.link.ethernet.keyed.tag_of`, half a round a clock.

Both halves of a round of SipHash are alike: two sums, two words turned and put on top of them, one sum turned by half.
They differ in who is added to whom, which changing two registers' places makes equal, and in how far words are turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, concat, intbv, modbv

from hdl.link.ethernet.frame import CRC_BYTES, DTL_BYTES, TAG_BYTES
from hdl.link.ethernet.keyed import FINAL_ROUNDS, SECOND_HALF, START, WORD_ROUNDS
from hdl.signals import Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.unit import Unit

KEY_BITS = 64
# what a tag covers: DTL and CRC
COVERED_BYTES = DTL_BYTES + CRC_BYTES
# SipHash's words: the last one has what is left of the bytes, and their number in its highest byte
WORDS = COVERED_BYTES // 8 + 1
# clocks: of a word, up to the end of the last one, and of all
WORD_STEPS = 2 * WORD_ROUNDS
ABSORBING = WORDS * WORD_STEPS
STEPS = ABSORBING + 2 * FINAL_ROUNDS


@dataclass(frozen=True, kw_only=True)
class KeyedTag(Unit):
    """Tags of frames.

    Streams: ``x`` what is covered, ``y`` its tag; byte 0 of both, as they stand in the frame, in the low bits.  Input:
    ``key``.
    """

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": 8 * COVERED_BYTES, "y": 8 * TAG_BYTES}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"key": KEY_BITS}

    @property
    def latency_cycles(self) -> int:
        """From what is covered to the tag."""
        return STEPS + 1

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (key,) = self.signals(self.inputs)
        return keyed_tag(domain, key, streams["x"], streams["y"])


@block
def keyed_tag(domain: ClockReset, key: Bits, x: Stream, y: Stream) -> Instances:
    """See `KeyedTag`.  Cost: 128 bits of adders, 512 flip-flops.  Latency: `KeyedTag.latency_cycles`, and one tag at a
    time.

    Ports:
        key: in, 64 bits, steady.
        x: in, stream of 208 bits; ready while there is nothing to do, from registers.
        y: out, stream of 64 bits; valid from registers.
    """
    a, b, c, d, sum_a, sum_c = (Signal(modbv(0)[64:]) for _ in range(6))
    # what comes on top of the sums, ready before these are
    on_a, on_c, into_c = (Signal(intbv(0)[64:]) for _ in range(3))
    # 0: nothing to do; k: the k-th clock; behind the last one: the tag is there
    step = Signal(intbv(0, min=0, max=STEPS + 2))
    second, ends, last = (Signal(bool(0)) for _ in range(3))
    # the word at hand in the low bits
    message = Signal(intbv(0)[64 * WORDS :])
    tag = Signal(intbv(0)[64:])
    done, absorbing, word_mask = STEPS + 1, ABSORBING, WORD_STEPS - 1
    low_a, low_b, low_c, low_d = START
    high, covered, spare = SECOND_HALF, 8 * COVERED_BYTES, 64 * WORDS - 8

    @always_comb
    def place() -> None:
        second.next = not step[0]
        # the last clock of a word; of the last word
        ends.next = (step & word_mask) == 0 and step <= absorbing
        last.next = step == absorbing

    @always_comb
    def sums() -> None:
        sum_a.next = a + b
        sum_c.next = c + d

    @always_comb
    def turn() -> None:
        on_a.next = concat(b[51:], b[64:51])
        on_c.next = concat(d[48:], d[64:48])
        if second:
            on_a.next = concat(b[47:], b[64:47])
            on_c.next = concat(d[43:], d[64:43])
            if ends:
                on_c.next = concat(d[43:], d[64:43]) ^ message[128:64]

    @always_comb
    def absorb() -> None:
        into_c.next = 0
        if ends:
            into_c.next = message[64:]

    @always_comb
    def handshake() -> None:
        x.ready.next = step == 0
        y.valid.next = step == done
        tag.next = a ^ b ^ c ^ d

    @always_comb
    def out() -> None:
        for i in range(TAG_BYTES):
            y.payload.next[bits_of(i, 8)] = tag[bits_of(TAG_BYTES - 1 - i, 8)]

    @always(domain.clk.posedge)
    def advance() -> None:
        if step == 0:
            a.next = key ^ low_a
            b.next = key ^ (low_b ^ high)
            c.next = key ^ low_c
            d.next = key ^ (low_d ^ high) ^ x.payload[64:]
            message.next = 0
            message.next[covered:] = x.payload
            message.next[64 * WORDS : spare] = COVERED_BYTES
        elif step != done:
            a.next = sum_c ^ into_c
            b.next = sum_a ^ on_a
            c.next = concat(sum_a[32:], sum_a[64:32])
            d.next = sum_c ^ on_c
            if ends:
                message.next = message >> 64
            if last:
                c.next = concat(sum_a[32:], sum_a[64:32]) ^ 255

    @always(domain.clk.posedge)
    def count() -> None:
        if step == done:
            if y.ready:
                step.next = 0
        elif step != 0 or x.valid:
            step.next = step + 1
        if domain.rst:
            step.next = 0

    return place, sums, turn, absorb, handshake, out, advance, count
