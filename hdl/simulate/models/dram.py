"""A memory behind an AXI4 port with limited bandwidth and latency, for simulation: it converts to Verilog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.axi import Axi, AxiFormat
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bits, ClockReset, Instances
from hdl.simulate.models.host import stalls
from hdl.simulate.models.link import link_wire
from hdl.stream import Stream
from hdl.streams.fifo import queue

# requests, and words to write, that the model takes before it serves them
_REQUESTS = 8


@dataclass(frozen=True, kw_only=True)
class StuckBit:
    """A cell of a memory that is broken."""

    word: int
    bit: int
    value: bool


@block
def dram_model(
    domain: ClockReset,
    m: Axi,
    *,
    form: AxiFormat,
    depth: int,
    latency: int = 20,
    words: int = 1,
    cycles: int = 1,
    stall_256: int = 0,
    seed: int = 1,
    contents: Sequence[int] | None = None,
    stuck: StuckBit | None = None,
) -> Instances:
    """``depth`` words from the image "dram"; reads and writes share ``words`` words in ``cycles`` cycles.

    Serves one burst after another, reads and writes in turns, with no word in a random ``stall_256`` of 256
    cycles; answers take ``latency`` cycles after the memory.  An address past ``depth`` is answered with an error.
    ``stuck``: a bit that keeps no other value, whatever is written.

    Ports:
        m: in and out, port of ``form`` that a master drives.
    """
    data_bits, address_bits = form.data_bits, form.address_bits
    aw, ar, w = (Stream(form.widths[channel]) for channel in ("aw", "ar", "w"))
    queues = [
        queue(domain, m.aw, aw, depth=_REQUESTS),
        queue(domain, m.ar, ar, depth=_REQUESTS),
        queue(domain, m.w, w, depth=_REQUESTS),
    ]
    answer, data = Stream(form.widths["b"]), Stream(form.widths["r"])
    answer_wire = link_wire(domain, answer, m.b, latency=latency)
    data_wire = link_wire(domain, data, m.r, latency=latency)
    go, reading, writing, prefer_write, bad, have, have_last, have_bad = (Signal(bool(0)) for _ in range(8))
    gate = stalls(domain, go, probability_256=stall_256, seed=seed)
    # the burst under way
    address, last_address = (Signal(intbv(0)[address_bits + 1 :]) for _ in range(2))
    limit = cycles + words
    budget = Signal(intbv(0, min=0, max=limit + 1))
    pay, fetch, put, take_write, take_read, answering, idle = (Signal(bool(0)) for _ in range(7))
    write_first, write_last, read_first, read_last = (Signal(intbv(0)[address_bits + 1 :]) for _ in range(4))
    place = Signal(intbv(0)[address_width(depth) :])
    word, incoming = Signal(intbv(0)[data_bits:]), Signal(intbv(0)[data_bits:])
    last_at, request_bits, place_bits = form.widths["r"] - 1, aw.width, len(place)
    kept = incoming if stuck is None else Signal(intbv(0)[data_bits:])
    faults = [] if stuck is None else [stuck_cell(place, incoming, kept, stuck=stuck)]
    store = simple_dual_port(
        domain.clk,
        put,
        place,
        kept,
        fetch,
        place,
        word,
        depth=depth,
        width=data_bits,
        contents=contents,
        image="dram",
    )

    @always_comb
    def ends() -> None:
        write_first.next = aw.payload[address_bits:]
        write_last.next = aw.payload[address_bits:] + aw.payload[request_bits:address_bits]
        read_first.next = ar.payload[address_bits:]
        read_last.next = ar.payload[address_bits:] + ar.payload[request_bits:address_bits]

    @always_comb
    def pick() -> None:
        idle.next = not reading and not writing and not answering
        take_write.next = aw.valid and idle and (prefer_write or not ar.valid)
        take_read.next = ar.valid and idle and (not prefer_write or not aw.valid)
        aw.ready.next = idle and (prefer_write or not ar.valid)
        ar.ready.next = idle and (not prefer_write or not aw.valid)

    @always_comb
    def serve() -> None:
        fetch.next = reading and go and budget >= cycles and not bad and (not have or data.ready)
        put.next = writing and w.valid and go and budget >= cycles and not bad
        w.ready.next = writing and go and budget >= cycles
        incoming.next = w.payload[data_bits:]
        pay.next = go and budget >= cycles and ((reading and (not have or data.ready)) or (writing and w.valid))
        if bad:
            place.next = 0
        else:
            place.next = address[place_bits:]

    @always_comb
    def out() -> None:
        data.valid.next = have
        data.payload.next[data_bits:] = word
        data.payload.next[last_at:data_bits] = 0
        if have_bad:
            data.payload.next[last_at:data_bits] = 2
        data.payload.next[last_at] = have_last
        answer.valid.next = answering
        answer.payload.next = 0
        if bad:
            answer.payload.next = 2

    @always(domain.clk.posedge)
    def step() -> None:
        if take_write:
            address.next = write_first
            last_address.next = write_last
            writing.next = True
            prefer_write.next = False
            bad.next = write_last >= depth
        if take_read:
            address.next = read_first
            last_address.next = read_last
            reading.next = True
            prefer_write.next = True
            bad.next = read_last >= depth
        if pay:
            if address == last_address:
                reading.next = False
                writing.next = False
                answering.next = writing
            else:
                address.next = address + 1
        if answering and answer.ready:
            answering.next = False
        if pay and reading:
            have.next = True
            have_last.next = address == last_address
            have_bad.next = bad
        elif data.ready:
            have.next = False
        if domain.rst:
            reading.next = False
            writing.next = False
            answering.next = False
            have.next = False
            prefer_write.next = False

    @always(domain.clk.posedge)
    def spend() -> None:
        if pay:
            budget.next = budget + words - cycles
        elif budget < cycles:
            budget.next = budget + words
        if domain.rst:
            budget.next = cycles

    return queues, answer_wire, data_wire, gate, faults, store, ends, pick, serve, out, step, spend


@block
def stuck_cell(place: Bits, word: Bits, kept: Bits, *, stuck: StuckBit) -> Instances:
    """What a memory keeps of a word whose place has a stuck bit.

    Ports:
        place: in, any number of bits.
        word: in, any number of bits.
        kept: out, as wide as ``word``, in the same cycle.
    """
    broken, bit, value = stuck.word, stuck.bit, stuck.value

    @always_comb
    def keep() -> None:
        kept.next = word
        if place == broken:
            kept.next[bit] = value

    return keep
