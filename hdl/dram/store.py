"""Streams through DRAM: a FIFO for stashes, a ring for optimiser state, a replay buffer for weights, constants.

The first three are one machine (`dram_store`): elements are packed into words, words go out in bursts, come back in
bursts, and are unpacked.  They differ in who may write and read which burst when:

* `DramFifo`: a burst may be written while the ring has room, read once its write was answered.
* `DramFifo` with ``preload``: the same, but the ring starts with bursts from the memory's image: optimiser state that
  is read in order and written back in order.
* `DramReplay`: one tensor a batch, read once a frame.  Frame t reads version max(0, (t - D) // B); version 0 is the
  memory's image, later ones come from the stream.  Two buffers: version v is written where version v - 2 was, when
  the last frame of that has been read, and first read when its last word was written.
* `LoadedReplay`: the same where all versions come from the stream, those that are loaded first: frame t reads version
  `hdl.recipe.LoadedRecipe.loaded_version` of t.

`DramConstant` is the half of it that reads: a tensor of the memory's image, again and again.

A tensor starts a new word and a new burst: a word waits for the rest of its burst, but never for the next tensor.
Tensors lie in memory from ``base`` on, each at a multiple of `tensor_bursts` bursts, its words side by side.
``base`` must be a multiple of the burst length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.axi import Axi
from hdl.dram.bursts import burst_reader, burst_writer
from hdl.dram.region import Constant, Region, Replay, Ring
from hdl.dram.rules import Bursts, constant_rule, replay_rule, ring_rule
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue
from hdl.streams.width import elements_per_word, width_adapter
from hdl.unit import Unit


@dataclass(frozen=True, kw_only=True)
class DramUnit(Region, Unit):
    """A store as a unit.

    Streams: ``x`` elements in, ``y`` elements out, ``m_aw`` … ``m_r`` the AXI port.  Input: ``base``, the first word
    address.  Output: ``error``, sticky: the memory answered with an error.
    """

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        bits = self.element_bits
        return {"x": self.x_lanes * bits, "y": self.y_lanes * bits, **self.format.ports("m")}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"base": self.format.address_bits}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"error": 1}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (base,), (error,) = self.signals(self.inputs), self.signals(self.outputs)
        return dram_store(domain, base, streams["x"], streams["y"], Axi.of(streams, "m"), error, unit=self)


@dataclass(frozen=True, kw_only=True)
class DramFifo(Ring, DramUnit):
    """A FIFO of whole bursts, or a ring of optimiser state."""


@dataclass(frozen=True, kw_only=True)
class DramReplay(Replay, DramUnit):
    """A tensor a batch, read once a frame."""


@dataclass(frozen=True, kw_only=True)
class LoadedReplay(DramReplay):
    """The same where state is loaded: nothing is read before the first version has come."""

    loaded: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class DramConstant(Constant, DramUnit):
    """A tensor that is only read, as often as it is taken.  Stream ``x`` is missing."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {name: bits for name, bits in super().streams.items() if name != "x"}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (base,), (error,) = self.signals(self.inputs), self.signals(self.outputs)
        return dram_constant(domain, base, streams["y"], Axi.of(streams, "m"), error, unit=self)


@block
def dram_store(domain: ClockReset, base: Bits, x: Stream, y: Stream, m: Axi, error: Bit, *, unit: Region) -> Instances:
    """See the module.  Cost: a queue of two bursts, one of ``prefetch`` words, two width adapters, counters.

    Latency from the last word of a burst in to its first word out: the memory's, and about 12 cycles.  One word a
    cycle in and one out, less a cycle a burst.

    Ports:
        base: in, ``format.address_bits`` bits, constant: word address, a multiple of ``burst``.
        x: in, stream of ``x_lanes * element_bits`` bits.
        y: out, stream of ``y_lanes * element_bits`` bits.
        m: in and out, port of ``format`` that this block drives; requests from registers, b and r always ready.
        error: out, 1 bit, from the cycle after the answer until ``rst``.
    """
    bits = unit.element_bits
    word_bits = elements_per_word(bits, unit.format.data_bits) * bits
    packed, out, fetched = Stream(word_bits), Stream(word_bits), Stream(word_bits)
    pack = width_adapter(domain, x, packed, element_bits=bits, flush_every=unit.elements)
    unpack = width_adapter(domain, out, y, element_bits=bits, flush_every=unit.elements)
    fifo = queue(domain, fetched, out, depth=unit.prefetch)
    slot = Signal(intbv(0)[address_width(unit.ring_bursts) :])
    popped, bad = Signal(bool(0)), Signal(bool(0))
    writes, reads = Bursts(), Bursts()
    writer = burst_writer(domain, base, packed, m, writes, unit=unit)
    reader = burst_reader(domain, base, slot, m, fetched, popped, reads, unit=unit)
    if isinstance(unit, Replay):
        rule = replay_rule(
            domain, slot, writes, reads,
            bursts=unit.tensor_bursts, batch=unit.batch, first=unit.first_frames, preload=int(not unit.loaded),
        )  # fmt: skip
    else:
        rule = ring_rule(domain, slot, writes, reads, slots=unit.ring_bursts, preload=unit.preload_bursts)

    @always_comb
    def watch() -> None:
        popped.next = out.valid and out.ready
        error.next = bad

    @always(domain.clk.posedge)
    def keep() -> None:
        bad.next = bad or writes.error or reads.error
        if domain.rst:
            bad.next = False

    return pack, unpack, fifo, writer, reader, rule, watch, keep


@block
def dram_constant(domain: ClockReset, base: Bits, y: Stream, m: Axi, error: Bit, *, unit: Constant) -> Instances:
    """See the module.  Cost: a queue of ``prefetch`` words, a width adapter, counters.

    One word a cycle from reset on, less a cycle a burst.

    Ports:
        base: in, ``format.address_bits`` bits, constant: word address, a multiple of ``burst``.
        y: out, stream of ``y_lanes * element_bits`` bits.
        m: in and out, port of ``format`` that this block drives: aw and w never, ar from registers; b and r always
            ready.
        error: out, 1 bit, from the cycle after the answer until ``rst``.
    """
    bits = unit.element_bits
    word_bits = elements_per_word(bits, unit.format.data_bits) * bits
    out, fetched = Stream(word_bits), Stream(word_bits)
    unpack = width_adapter(domain, out, y, element_bits=bits, flush_every=unit.elements)
    fifo = queue(domain, fetched, out, depth=unit.prefetch)
    slot = Signal(intbv(0)[address_width(unit.ring_bursts) :])
    popped, bad = Signal(bool(0)), Signal(bool(0))
    reads = Bursts()
    reader = burst_reader(domain, base, slot, m, fetched, popped, reads, unit=unit)
    rule = constant_rule(domain, slot, reads, bursts=unit.ring_bursts)

    @always_comb
    def watch() -> None:
        popped.next = out.valid and out.ready
        error.next = bad
        m.aw.valid.next = False
        m.aw.payload.next = 0
        m.w.valid.next = False
        m.w.payload.next = 0
        m.b.ready.next = True

    @always(domain.clk.posedge)
    def keep() -> None:
        bad.next = bad or reads.error
        if domain.rst:
            bad.next = False

    return unpack, fifo, reader, rule, watch, keep
