"""Constants in DRAM that a host loads and dumps: frozen weights of circuits whose state comes by streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.axi import Axi, axi_merge
from hdl.dram.bursts import burst_reader, burst_writer
from hdl.dram.region import Constant
from hdl.dram.rules import Bursts
from hdl.dram.store import DramUnit
from hdl.engine.weights.access import Batches, Begin, state_link
from hdl.engine.weights.records import CHAIN_BITS, WORD_BITS
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, take_bits, width_adapter
from hdl.streams.fifo import queue
from hdl.streams.width import elements_per_word


@dataclass(frozen=True, kw_only=True)
class LoadedConstant(Constant, DramUnit):
    """`hdl.dram.store.DramConstant` whose tensor comes by the chain of state, ``x_lanes`` elements a word, and leaves
    by it; the memory's image may hold anything.  Streams ``load`` and ``dump`` of the chain in place of ``x``."""

    @property
    def chain_words(self) -> int:
        """Words of its LOAD and of its STATE."""
        return self.elements // self.x_lanes

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        others = {name: bits for name, bits in super().streams.items() if name != "x"}
        return {"load": CHAIN_BITS, "dump": CHAIN_BITS, **others}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (base,), (error,) = self.signals(self.inputs), self.signals(self.outputs)
        ends = (streams[name] for name in ("load", "dump", "y"))
        return loaded_constant(domain, base, *ends, Axi.of(streams, "m"), error, unit=self)


@block
def loaded_constant(
    domain: ClockReset, base: Bits, load: Stream, dump: Stream, y: Stream, m: Axi, error: Bit, *, unit: LoadedConstant
) -> Instances:
    """See `LoadedConstant`.  Cost: a link of the chain, a writer and two readers of bursts that share the port, queues
    of two bursts, of ``prefetch`` words and of a burst, four width adapters, counters.

    Nothing is read before the whole tensor was written; then one word a cycle, less a cycle a burst.  What is dumped is
    read for it, beside what waits for ``y``.

    Ports:
        base: in, ``unit.format.address_bits`` bits, constant: word address, a multiple of ``burst``.
        load: in, stream of `CHAIN_BITS` bits.
        dump: out, stream as wide, 1 cycle later; valid and payload from registers.
        y: out, stream of ``unit.y_lanes * unit.element_bits`` bits.
        m: in and out, port of ``unit.format`` that this block drives; requests and data from registers.
        error: out, 1 bit, from the cycle after the memory's answer until ``rst``.
    """
    bits = unit.element_bits
    word_bits = elements_per_word(bits, unit.format.data_bits) * bits
    short = replace(unit, prefetch=unit.burst)
    both, read_again = Axi(unit.format), Axi(unit.format)
    begin, batches = Begin(), Batches()
    taken, given = Stream(WORD_BITS), Stream(WORD_BITS)
    narrow, leaving = Stream(unit.x_lanes * bits), Stream(unit.x_lanes * bits)
    packed, fetched, out, fetched_again, again = (Stream(word_bits) for _ in range(5))
    slot, slot_again = (Signal(intbv(0)[address_width(unit.ring_bursts) :]) for _ in range(2))
    popped, popped_again, bad = (Signal(bool(0)) for _ in range(3))
    writes, reads, dumps = Bursts(), Bursts(), Bursts()
    link = state_link(domain, load, dump, taken, given, begin, batches, words=unit.chain_words)
    cut = take_bits(taken, narrow, low=0)
    pack = width_adapter(domain, narrow, packed, element_bits=bits, flush_every=unit.elements)
    writer = burst_writer(domain, base, packed, both, writes, unit=unit)
    reader = burst_reader(domain, base, slot, both, fetched, popped, reads, unit=unit)
    fifo = queue(domain, fetched, out, depth=unit.prefetch)
    unpack = width_adapter(domain, out, y, element_bits=bits, flush_every=unit.elements)
    dumper = burst_reader(domain, base, slot_again, read_again, fetched_again, popped_again, dumps, unit=short)
    fifo_again = queue(domain, fetched_again, again, depth=short.prefetch)
    unpack_again = width_adapter(domain, again, leaving, element_bits=bits, flush_every=unit.elements)
    places = counter(domain, reads.started, slot, count=unit.ring_bursts)
    places_again = counter(domain, dumps.started, slot_again, count=unit.ring_bursts)
    rule = loaded_rule(domain, taken, batches, writes, reads, dumps)
    port = axi_merge(domain, both, read_again, m, form=unit.format, cut=True)

    @always_comb
    def watch() -> None:
        popped.next = out.valid and out.ready
        popped_again.next = again.valid and again.ready
        error.next = bad
        read_again.aw.valid.next = False
        read_again.aw.payload.next = 0
        read_again.w.valid.next = False
        read_again.w.payload.next = 0
        read_again.b.ready.next = True

    @always_comb
    def widen() -> None:
        given.valid.next = leaving.valid
        given.payload.next = leaving.payload
        leaving.ready.next = given.ready

    @always(domain.clk.posedge)
    def keep() -> None:
        bad.next = bad or writes.error or reads.error or dumps.error
        if domain.rst:
            bad.next = False

    return (
        link, cut, pack, writer, reader, fifo, unpack, dumper, fifo_again, unpack_again, places, places_again, rule,
        port, watch, widen, keep,
    )  # fmt: skip


@block
def loaded_rule(
    domain: ClockReset, taken: Stream, batches: Batches, writes: Bursts, reads: Bursts, dumps: Bursts
) -> Instances:
    """A tensor may be written any time, read when all of it was, and read once more whenever it is dumped.

    Ports:
        taken: in, stream of what is loaded, only watched.
        batches: in and out; drives ``rests``, from a register, takes ``giving``.
        writes: in and out; drives ``may_start``, combinational in ``rst``, takes ``tensor_done``.
        reads: in and out; drives ``may_start``, from a register.
        dumps: in and out; drives ``may_start``, from a register, takes ``started`` and ``last``.
    """
    rst = domain.rst
    # all of it was written once; nothing is under way to the memory; it is dumped, was so a cycle before; bursts of
    # the tensor that is dumped are still to start
    known, gave, wanted = (Signal(bool(0)) for _ in range(3))
    settled = Signal(bool(1))

    @always_comb
    def allow() -> None:
        writes.may_start.next = not rst
        reads.may_start.next = known
        dumps.may_start.next = wanted
        batches.rests.next = settled

    @always(domain.clk.posedge)
    def keep() -> None:
        gave.next = batches.giving
        if batches.giving and not gave:
            wanted.next = True
        elif dumps.started and dumps.last:
            wanted.next = False
        if writes.tensor_done:
            known.next = True
            settled.next = True
        elif taken.valid and taken.ready:
            settled.next = False
        if rst:
            gave.next = False
            wanted.next = False
            known.next = False
            settled.next = True

    return allow, keep
