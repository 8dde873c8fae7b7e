"""Payloads to words and credits of streams."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.link.ethernet.frame import DESCRIPTOR, DESCRIPTOR_BITS, DescriptorFlag
from hdl.link.format import LinkFormat
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.pipes import m2s_pipe


@block
def unpack_words(domain: ClockReset, x: Stream, y: Stream, malformed: Bit, *, form: LinkFormat) -> Instances:
    """Words and credits of payloads.

    Ports:
        x: in, stream of ``form.word_bits + 1`` bits: beats of payloads, and a bit that ends one.
        y: out, stream of `LinkFormat.payload_bits` bits; a cycle for each word, credit and beat of descriptors.
        malformed: out, 1 bit, from a register until reset: descriptors announce other words than there are.
    """
    word_bits, slots = form.word_bits, form.word_bits // DESCRIPTOR_BITS
    group = Signal(intbv(0)[word_bits:])
    current, after = (Signal(intbv(0)[DESCRIPTOR_BITS:]) for _ in range(2))
    word = Stream(form.payload_bits)
    stage = m2s_pipe(domain, word, y)
    # words of the descriptor that went, and one more
    done, following = (Signal(modbv(0)[8:]) for _ in range(2))
    sequence = Signal(modbv(0)[8:])
    there, over, credit, counts, more, final, fire, ends, data = (Signal(bool(0)) for _ in range(9))
    last_at, sequence_at, stream_at, credit_at, device_at = form.header
    total, stream_bits, top = form.payload_bits, credit_at - stream_at, DESCRIPTOR_BITS // 8 - 1
    stream_low, words_low, sequence_low, flags_low, credits_low = (field.low for field in DESCRIPTOR.values())
    stream_end, words_end, sequence_end = stream_low + stream_bits, words_low + 8, sequence_low + 8
    last_flag, credit_flag = (
        flags_low + flag.bit_length() - 1 for flag in (DescriptorFlag.LAST, DescriptorFlag.CREDIT)
    )
    credit_bits = DESCRIPTOR["descriptor.credits"].bits
    credits_end, next_low = credits_low + credit_bits, DESCRIPTOR_BITS if slots > 1 else 0

    @always_comb
    def swap() -> None:
        for i in range(top + 1):
            current.next[bits_of(i, 8)] = group[bits_of(top - i, 8)]
            after.next[bits_of(i, 8)] = group[bits_of(top - i, 8, next_low)]

    @always_comb
    def look() -> None:
        credit.next = there and current[credit_flag]
        counts.next = current[words_end:words_low] != 0
        final.next = current[credit_flag] or following == current[words_end:words_low]
        more.next = slots > 1 and (after[words_end:words_low] != 0 or after[credit_flag])
        sequence.next = current[sequence_end:sequence_low] + done

    @always_comb
    def judge() -> None:
        # what the descriptor announces is still to come
        data.next = there and not credit and counts and not over

    @always_comb
    def handshake() -> None:
        word.valid.next = credit or (data and x.valid)
        x.ready.next = not there or (data and word.ready)
        fire.next = word.ready and (credit or (data and x.valid))
        ends.next = data and x.valid and word.ready and x.payload[word_bits]

    @always_comb
    def out() -> None:
        word.payload.next[word_bits:0] = x.payload[word_bits:]
        word.payload.next[last_at] = final and current[last_flag]
        word.payload.next[stream_at:sequence_at] = sequence
        if credit:
            word.payload.next[word_bits:0] = current[credits_end:credits_low]
            word.payload.next[last_at] = True
            word.payload.next[stream_at:sequence_at] = 0
        word.payload.next[credit_at:stream_at] = current[stream_end:stream_low]
        word.payload.next[credit_at] = credit
        word.payload.next[total:device_at] = 0

    @always(domain.clk.posedge)
    def step() -> None:
        if not there:
            # descriptors; those behind which the payload ends announce credits at most
            group.next = x.payload[word_bits:]
            over.next = x.payload[word_bits]
            there.next = x.valid
            done.next = 0
            following.next = 1
        elif fire:
            if final:
                group.next = group >> next_low
                there.next = more
                done.next = 0
                following.next = 1
            else:
                done.next = following
                following.next = following + 1
        elif not credit and not data:
            there.next = False
            malformed.next = True
        if ends:
            over.next = True
            if not final:
                there.next = False
                malformed.next = True
        if domain.rst:
            there.next = False
            malformed.next = False

    return stage, swap, look, judge, handshake, out, step
