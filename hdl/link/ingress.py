"""The receiver of a stream from the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from myhdl import Signal, always, always_comb, block, intbv

from hdl.link.format import COUNT_BITS, LinkEnd, adapter_cycles, credit_batch
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.counter import counter
from hdl.streams.fifo import queue, queue_latency
from hdl.streams.pipes import wire
from hdl.streams.width import width_adapter


@dataclass(frozen=True, kw_only=True)
class Ingress(LinkEnd):
    """The receiving end of one element stream: FIFO, sequence check, unpacking, return of credits.

    With ``pooled`` words wait in a `hdl.link.pool.ReceivePool` in front of it, and it has no FIFO.

    Streams: ``x`` words in, ``y`` elements out, ``credits`` to be returned out.  Inputs: ``number`` of the stream,
    ``device`` that sends it.  Output: ``error``, sticky: a word was lost, doubled, or came out of order, ``last``
    stood at the wrong place, or the sender spent credits that it did not have.
    """

    # from the last word of a batch that leaves the FIFO to its credits
    credit_cycles: ClassVar[int] = 2
    # words that the FIFO, or the region of the pool, holds: the credits of the sender
    depth: int
    # of them, those beyond what credits are batched for: room that its memory has anyway
    spare: int = 0
    pooled: bool = False

    def __post_init__(self) -> None:
        bits = min(self.format.word_bits, COUNT_BITS)
        if not 0 <= self.spare <= self.depth - 2 or self.batch >> bits:
            spared = f" with {self.spare} to spare" if self.spare else ""
            raise ValueError(
                f"a link FIFO needs at least 2 words, and credits that {bits} bits can count, not {self.depth} words"
                f"{spared}"
            )

    @property
    def batch(self) -> int:
        """Words that it frees before it returns their credits in one credit word."""
        return credit_batch(self.depth - self.spare)

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {
            "x": self.format.payload_bits,
            "y": self.lanes * self.element_bits,
            "credits": self.format.returned_bits,
        }

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"error": 1}

    @property
    def latency_cycles(self) -> int:
        """From a word to its first beat."""
        held = 0 if self.pooled else queue_latency(self.depth)
        return held + adapter_cycles(self.per_word, self.lanes)

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        number, device = self.signals(self.inputs)
        (error,) = self.signals(self.outputs)
        return link_ingress(domain, number, device, streams["x"], streams["y"], streams["credits"], error, unit=self)


@block
def link_ingress(
    domain: ClockReset,
    number: Bits,
    device: Bits,
    x: Stream,
    y: Stream,
    credits: Stream,
    error: Bit,
    *,
    unit: Ingress,
) -> Instances:
    """See `Ingress`.  Cost: a queue of ``depth`` words, the width adapter, counters.  Latency: of both.  Where words
    wait in a pool there is no queue; their places are free once they have come here.

    Credits go back many at a time (`credit_batch`), so few words are credit words, but for small FIFOs.

    Ports:
        number: in, as wide as the field "stream", constant.
        device: in, as wide as the field "device", constant.
        x: in, stream of `LinkFormat.payload_bits` bits; without a pool always ready for a word that had a credit.
        y: out, stream of ``lanes * element_bits`` bits.
        credits: out, stream of `LinkFormat.returned_bits` bits; valid from a register, payload constant.
        error: out, 1 bit, from the cycle after the fault until ``rst``.
    """
    form = unit.format
    used = unit.per_word * unit.element_bits
    arriving, waiting = Stream(used), Stream(used)
    fifo = wire(domain, arriving, waiting) if unit.pooled else queue(domain, arriving, waiting, depth=unit.depth)
    taken = Stream(used)
    adapter = width_adapter(domain, taken, y, element_bits=unit.element_bits, flush_every=unit.elements)
    final, batch, depth = unit.final, unit.batch, unit.depth
    may_wait = unit.pooled
    others = batch - 1
    # freed words whose credits have not gone back; never above depth while the sender spends only what it has
    freed = Signal(intbv(0, min=0, max=unit.depth + 1))
    position = Signal(intbv(0)[address_width(unit.words) :])
    order = Signal(intbv(0)[form.sequence_bits :])
    seen_order = Signal(intbv(0)[form.sequence_bits :])
    seen_last, bad, wrong, fire, free, offer, send = (Signal(bool(0)) for _ in range(7))
    places = counter(domain, fire, position, count=unit.words)
    sequence = counter(domain, fire, order, count=1 << form.sequence_bits)
    last_at, sequence_at, stream_at, _, _ = form.header
    count_bits, stream_end, end = COUNT_BITS, COUNT_BITS + form.width("stream"), form.returned_bits

    @always_comb
    def enter() -> None:
        x.ready.next = arriving.ready
        arriving.valid.next = x.valid
        arriving.payload.next = x.payload[used:]
        fire.next = x.valid and arriving.ready
        seen_order.next = x.payload[stream_at:sequence_at]
        seen_last.next = x.payload[last_at]

    @always_comb
    def judge() -> None:
        wrong.next = seen_order != order or seen_last != (position == final)

    @always_comb
    def leave() -> None:
        taken.valid.next = waiting.valid
        taken.payload.next = waiting.payload
        waiting.ready.next = taken.ready
        free.next = waiting.valid and taken.ready

    @always_comb
    def out() -> None:
        error.next = bad
        credits.valid.next = offer
        send.next = offer and credits.ready

    @always_comb
    def address() -> None:
        credits.payload.next[count_bits:0] = batch
        credits.payload.next[stream_end:count_bits] = number
        credits.payload.next[end:stream_end] = device

    @always(domain.clk.posedge)
    def check() -> None:
        if fire and wrong:
            bad.next = True
        # a sender with credit never finds the FIFO full
        if x.valid and not arriving.ready and not may_wait:
            bad.next = True
        if domain.rst:
            bad.next = False

    @always(domain.clk.posedge)
    def count() -> None:
        if send and free:
            freed.next = freed - others
        elif send:
            freed.next = freed - batch
        elif free and freed != depth:
            freed.next = freed + 1
        if send:
            offer.next = False
        elif not offer:
            offer.next = freed >= batch
        if domain.rst:
            freed.next = 0
            offer.next = False

    return fifo, adapter, places, sequence, enter, judge, leave, out, address, check, count
