"""An AXI4 port in front of a memory controller with Avalon-MM, as Intel's EMIF has one.

What Avalon asks for (Avalon Interface Specifications, MNL-AVABUSREF, pipelined bursts): a command stands until
``ready``; address and length of a burst come with its first word; words that are read come when the controller has
them, and it can't be made to wait.  So a burst is asked for only where all of it finds room here.  The controller tells
of no errors, and serves commands of one port in their order: a write is answered when its last word was taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.axi import LENGTH_BITS, RESPONSE_BITS, Axi, AxiFormat
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue
from hdl.unit import Unit

# words of a controller's longest burst, and bits of its burst count
MOST_BURST, COUNT_BITS = 64, 7
# bursts that may be read at once
_OUTSTANDING = 4


@dataclass(frozen=True, kw_only=True)
class AvalonMemory(Unit):
    """Serves the AXI port ``m`` by a memory controller; inputs and outputs are the controller's ports."""

    format: AxiFormat
    # words of the longest burst that masters ask for
    burst: int = MOST_BURST

    def __post_init__(self) -> None:
        if not 1 <= self.burst <= MOST_BURST:
            raise ValueError(f"a controller's bursts have 1 to {MOST_BURST} words, not {self.burst}")

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return self.format.ports("m")

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants."""
        return {"amm_ready": 1, "amm_readdata": self.format.data_bits, "amm_readdatavalid": 1}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        bits = self.format.data_bits
        return {
            "amm_read": 1,
            "amm_write": 1,
            "amm_address": self.format.address_bits,
            "amm_writedata": bits,
            "amm_burstcount": COUNT_BITS,
            "amm_byteenable": bits // 8,
        }

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        ports = *self.signals(self.inputs), *self.signals(self.outputs)
        return avalon_memory(domain, Axi.of(streams, "m"), *ports, unit=self)


@block
def avalon_memory(
    domain: ClockReset,
    m: Axi,
    amm_ready: Bit,
    amm_readdata: Bits,
    amm_readdatavalid: Bit,
    amm_read: Bit,
    amm_write: Bit,
    amm_address: Bits,
    amm_writedata: Bits,
    amm_burstcount: Bits,
    amm_byteenable: Bits,
    *,
    unit: AvalonMemory,
) -> Instances:
    """See `AvalonMemory`.  Cost: a queue of `_OUTSTANDING` longest bursts, one of their lengths, counters.

    Ports:
        m: in and out, port of ``unit.format`` that a master drives; data to write pass through one gate.
        amm_ready, amm_readdatavalid: in, 1 bit.
        amm_readdata: in, ``unit.format.data_bits`` bits.
        amm_read, amm_write: out, 1 bit.
        amm_address: out, ``unit.format.address_bits`` bits, from registers.
        amm_writedata: out, ``unit.format.data_bits`` bits.
        amm_burstcount: out, 7 bits, from registers.
        amm_byteenable: out, ``unit.format.data_bits // 8`` bits, all ones.
    """
    form = unit.format
    data_bits, address_bits, request_bits = form.data_bits, form.address_bits, m.aw.width
    every = (1 << form.data_bits // 8) - 1
    last_at = data_bits + RESPONSE_BITS
    writing, reading, answering, prefer_read, take_write, take_read = (Signal(bool(0)) for _ in range(6))
    address = Signal(intbv(0)[address_bits:])
    count = Signal(intbv(0)[COUNT_BITS:])
    # words of the coming burst that are out
    given = Signal(intbv(0)[LENGTH_BITS:])
    came, data = Stream(data_bits), Stream(data_bits)
    asked, length = Stream(LENGTH_BITS), Stream(LENGTH_BITS)
    # a length stays until its burst has left, so all words that are asked for find room
    words = queue(domain, came, data, depth=_OUTSTANDING * unit.burst)
    lengths = queue(domain, asked, length, depth=_OUTSTANDING)
    ends, leaves, idle, to_read, to_write = (Signal(bool(0)) for _ in range(5))

    @always_comb
    def pick() -> None:
        idle.next = not writing and not reading and not answering
        # who has the turn does not hang on whether it comes
        to_read.next = idle and asked.ready and (prefer_read or not m.aw.valid)
        to_write.next = idle and not (prefer_read and m.ar.valid and asked.ready)

    @always_comb
    def accept() -> None:
        m.ar.ready.next = to_read
        m.aw.ready.next = to_write
        take_read.next = to_read and m.ar.valid
        take_write.next = to_write and m.aw.valid
        asked.valid.next = to_read and m.ar.valid
        asked.payload.next = m.ar.payload[request_bits:address_bits]

    @always_comb
    def command() -> None:
        amm_read.next = reading
        amm_write.next = writing and m.w.valid
        amm_address.next = address
        amm_burstcount.next = count
        amm_writedata.next = m.w.payload[data_bits:]
        amm_byteenable.next = every
        m.w.ready.next = writing and amm_ready
        m.b.valid.next = answering
        m.b.payload.next = 0

    @always_comb
    def answer() -> None:
        came.valid.next = amm_readdatavalid
        came.payload.next = amm_readdata
        ends.next = given == length.payload
        leaves.next = data.valid and m.r.ready
        m.r.valid.next = data.valid
        m.r.payload.next[data_bits:] = data.payload
        m.r.payload.next[last_at:data_bits] = 0
        m.r.payload.next[last_at] = given == length.payload
        data.ready.next = m.r.ready
        length.ready.next = data.valid and m.r.ready and given == length.payload

    @always(domain.clk.posedge)
    def step() -> None:
        if take_write:
            address.next = m.aw.payload[address_bits:]
            count.next = m.aw.payload[request_bits:address_bits] + 1
            writing.next = True
            prefer_read.next = True
        if take_read:
            address.next = m.ar.payload[address_bits:]
            count.next = m.ar.payload[request_bits:address_bits] + 1
            reading.next = True
            prefer_read.next = False
        if reading and amm_ready:
            reading.next = False
        if writing and amm_ready and m.w.valid and m.w.payload[data_bits]:
            writing.next = False
            answering.next = True
        if answering and m.b.ready:
            answering.next = False
        if domain.rst:
            writing.next = False
            reading.next = False
            answering.next = False
            prefer_read.next = False

    @always(domain.clk.posedge)
    def give() -> None:
        if leaves:
            if ends:
                given.next = 0
            else:
                given.next = given + 1
        if domain.rst:
            given.next = 0

    return words, lengths, pick, accept, command, answer, step, give
