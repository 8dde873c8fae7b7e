"""The sender of a stream over the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.link.format import LinkEnd, adapter_cycles
from hdl.memory import address_width
from hdl.signals import Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.counter import counter
from hdl.streams.fifo import queue, queue_latency
from hdl.streams.pipes import Policy, pipe
from hdl.streams.width import width_adapter


@dataclass(frozen=True, kw_only=True)
class Egress(LinkEnd):
    """The sending end of one element stream: packs, numbers, and waits for credits.

    Streams: ``x`` elements in, ``credits`` credit words in, ``y`` words out.  Inputs: ``number`` of the stream,
    ``device`` it goes to.
    """

    # from a credit to the word that it lets pass
    credit_cycles: ClassVar[int] = 2
    # words that the receiver's FIFO holds
    credits: int
    # words that may wait for credits and for their turn at the port, beside the two of the stages around the gate
    queued: int = 0

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {
            "x": self.lanes * self.element_bits,
            "credits": self.format.payload_bits,
            "y": self.format.payload_bits,
        }

    @property
    def latency_cycles(self) -> int:
        """From the last beat of a word to the word, if there is a credit."""
        return adapter_cycles(self.lanes, self.per_word) + queue_latency(self.queued) + 1

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        number, device = self.signals(self.inputs)
        return link_egress(domain, number, device, streams["x"], streams["credits"], streams["y"], unit=self)


@block
def link_egress(
    domain: ClockReset, number: Bits, device: Bits, x: Stream, credits: Stream, y: Stream, *, unit: Egress
) -> Instances:
    """See `Egress`.  Cost: the width adapter, a stage of a word, one of a word or of a beat of ``x`` if that is less,
    counters, a FIFO of the words that are queued.  Latency: those of the adapter and of the FIFO + 1.  ``x.ready`` does
    not depend on ``y.ready`` in the same cycle.

    Ports:
        number: in, as wide as the field "stream", constant.
        device: in, as wide as the field "device", constant.
        x: in, stream of ``lanes * element_bits`` bits.
        credits: in, stream of `LinkFormat.payload_bits` bits, always ready; spent from 2 cycles later on.
        y: out, stream of `LinkFormat.payload_bits` bits; valid and payload from registers.
    """
    form = unit.format
    entered, packed = Stream(x.width), Stream(unit.per_word * unit.element_bits)
    waiting = Stream(packed.width) if unit.queued else packed
    word = Stream(form.payload_bits)
    # ready is cut where that takes the fewest registers
    early = x.width <= form.payload_bits
    door = pipe(domain, x, entered, policy=Policy.S2M if early else Policy.NONE)
    adapter = width_adapter(domain, entered, packed, element_bits=unit.element_bits, flush_every=unit.elements)
    queued = queue(domain, packed, waiting, depth=unit.queued) if unit.queued else []
    stage = pipe(domain, word, y, policy=Policy.M2S if early else Policy.FULL)
    final, most = unit.final, unit.credits
    position = Signal(intbv(0)[address_width(unit.words) :])
    order = Signal(intbv(0)[form.sequence_bits :])
    credit = Signal(intbv(0, min=0, max=unit.credits + 1))
    # credits that came in the cycle before, and one less
    counted = len(credit)
    returned, gained = (Signal(modbv(0)[counted:]) for _ in range(2))
    came, may_send, fire, last = (Signal(bool(0)) for _ in range(4))
    places = counter(domain, fire, position, count=unit.words)
    sequence = counter(domain, fire, order, count=1 << form.sequence_bits)
    last_at, sequence_at, stream_at, credit_at, device_at = form.header
    total, data_bits = form.payload_bits, form.word_bits

    @always_comb
    def header() -> None:
        word.payload.next[data_bits:0] = waiting.payload
        word.payload.next[last_at] = last
        word.payload.next[stream_at:sequence_at] = order
        word.payload.next[credit_at:stream_at] = number
        word.payload.next[credit_at] = False
        word.payload.next[total:device_at] = device

    @always_comb
    def gate() -> None:
        credits.ready.next = True
        may_send.next = credit != 0
        last.next = position == final

    @always_comb
    def handshake() -> None:
        word.valid.next = waiting.valid and may_send
        waiting.ready.next = word.ready and may_send
        fire.next = waiting.valid and word.ready and may_send

    @always(domain.clk.posedge)
    def credit_in() -> None:
        came.next = credits.valid
        returned.next = credits.payload[counted:]
        gained.next = credits.payload[counted:] - 1
        if domain.rst:
            came.next = False

    @always(domain.clk.posedge)
    def step() -> None:
        if fire and came:
            credit.next = credit + gained
        elif fire:
            credit.next = credit - 1
        elif came:
            credit.next = credit + returned
        if domain.rst:
            credit.next = most

    return door, adapter, queued, stage, places, sequence, header, gate, handshake, credit_in, step
