"""The keyed check of a frame as a circuit: `hdl.link.ethernet.keyed.tag_of`, a round a clock."""

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
ROUNDS = WORDS * WORD_ROUNDS + FINAL_ROUNDS


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
        return ROUNDS + 1

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (key,) = self.signals(self.inputs)
        return keyed_tag(domain, key, streams["x"], streams["y"])


@block
def sip_round(
    a: Bits, b: Bits, c: Bits, d: Bits, after_a: Bits, after_b: Bits, after_c: Bits, after_d: Bits
) -> Instances:
    """`hdl.link.ethernet.keyed.sip_round`: two sums in a row, of two each.

    Ports:
        a, b, c, d: in, 64 bits.
        after_a, after_b, after_c, after_d: out, 64 bits, in the same cycle.
    """
    sum_a, sum_c, turned_a, last_a, last_c = (Signal(modbv(0)[64:]) for _ in range(5))
    mid_b, mid_d = (Signal(intbv(0)[64:]) for _ in range(2))

    @always_comb
    def first_sums() -> None:
        sum_a.next = a + b
        sum_c.next = c + d

    @always_comb
    def first_turns() -> None:
        turned_a.next = concat(sum_a[32:], sum_a[64:32])
        mid_b.next = concat(b[51:], b[64:51]) ^ sum_a
        mid_d.next = concat(d[48:], d[64:48]) ^ sum_c

    @always_comb
    def last_sums() -> None:
        last_c.next = sum_c + mid_b
        last_a.next = turned_a + mid_d

    @always_comb
    def last_turns() -> None:
        after_a.next = last_a
        after_b.next = concat(mid_b[47:], mid_b[64:47]) ^ last_c
        after_c.next = concat(last_c[32:], last_c[64:32])
        after_d.next = concat(mid_d[43:], mid_d[64:43]) ^ last_a

    return first_sums, first_turns, last_sums, last_turns


@block
def keyed_tag(domain: ClockReset, key: Bits, x: Stream, y: Stream) -> Instances:
    """See `KeyedTag`.  Cost: 256 bits of adders, 512 flip-flops.  Latency: `KeyedTag.latency_cycles`, and one tag at a
    time.

    Ports:
        key: in, 64 bits, steady.
        x: in, stream of 208 bits; ready while there is nothing to do, from registers.
        y: out, stream of 64 bits; valid from registers.
    """
    a, b, c, d, mixed_c, mixed_d, mixed_a = (Signal(modbv(0)[64:]) for _ in range(7))
    after_a, after_b, after_c, after_d = (Signal(modbv(0)[64:]) for _ in range(4))
    rounds = sip_round(a, b, mixed_c, mixed_d, after_a, after_b, after_c, after_d)
    message = Signal(intbv(0)[64 * WORDS :])
    # 0: nothing to do; k: round k; behind the last round: the tag is there
    step = Signal(intbv(0, min=0, max=ROUNDS + 2))
    done, last_word_round = ROUNDS + 1, WORDS * WORD_ROUNDS
    low_a, low_b, low_c, low_d = START
    high, covered, spare = SECOND_HALF, 8 * COVERED_BYTES, 64 * WORDS - 8
    odd, absorbs = (Signal(bool(0)) for _ in range(2))
    tag = Signal(intbv(0)[64:])

    @always_comb
    def place() -> None:
        odd.next = step[0]
        absorbs.next = step <= last_word_round

    @always_comb
    def enter() -> None:
        mixed_d.next = d
        mixed_c.next = c
        if absorbs and odd:
            mixed_d.next = d ^ message[64:]
        if step == last_word_round + 1:
            mixed_c.next = c ^ 255

    @always_comb
    def leave() -> None:
        mixed_a.next = after_a
        if absorbs and not odd:
            mixed_a.next = after_a ^ message[64:]

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
            d.next = key ^ (low_d ^ high)
            message.next = 0
            message.next[covered:] = x.payload
            message.next[64 * WORDS : spare] = COVERED_BYTES
        elif step != done:
            a.next = mixed_a
            b.next = after_b
            c.next = after_c
            d.next = after_d
            if not odd:
                message.next = message >> 64

    @always(domain.clk.posedge)
    def count() -> None:
        if step == done:
            if y.ready:
                step.next = 0
        elif step != 0 or x.valid:
            step.next = step + 1
        if domain.rst:
            step.next = 0

    return rounds, place, enter, leave, handshake, out, advance, count
