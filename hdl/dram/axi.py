"""An AXI4 master port as five streams, and how two masters share one.

Each AXI channel is a `hdl.stream.Stream`; the netlist cuts the payloads into AXI's signals:

    aw, ar: address of a *word* (low), beats - 1 in 8 bits (high).  AxADDR is the address with log2(bytes a word) zeros
            appended; AxSIZE = log2(bytes a word), AxBURST = INCR, AxID = 0
    w:      data (low), last (high); WSTRB all ones
    b:      response, 2 bits
    r:      data (low), response, last (high)

All transactions carry one ID, so answers come in the order of requests.  Nothing orders reads after writes but the
write's answer, which the units of `hdl.dram.store` wait for.  A burst never crosses 4 KiB: it is at most `max_burst`
long, and starts at a multiple of its unit's burst length, a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always_comb, block

from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue
from hdl.streams.fork_join import fork
from hdl.streams.merge import merge
from hdl.streams.pipes import Policy, pipe
from hdl.unit import Unit

CHANNELS = ("aw", "w", "b", "ar", "r")
# channels that a master drives
FORWARD = ("aw", "w", "ar")
LENGTH_BITS = 8
RESPONSE_BITS = 2
BOUNDARY_BYTES = 4096
# bursts that an arbiter remembers: writes whose data it hasn't passed, writes without answer, reads without answer
_OUTSTANDING = (4, 16, 16)


@dataclass(frozen=True, kw_only=True)
class AxiFormat:
    """Widths of a port."""

    # bits of a data word: a power of two, 64 to 512 on real boards
    data_bits: int = 512
    # bits of a word address
    address_bits: int = 26

    def __post_init__(self) -> None:
        if self.data_bits not in (8, 16, 32, 64, 128, 256, 512, 1024) or not 8 <= self.address_bits <= 58:
            raise ValueError(f"{self}: AXI data are 8 to 1024 bits, a power of two; word addresses 8 to 58 bits")

    @property
    def max_burst(self) -> int:
        """The longest burst in words: 256, or 4 KiB if that is less."""
        return min(1 << LENGTH_BITS, BOUNDARY_BYTES * 8 // self.data_bits)

    @property
    def widths(self) -> Mapping[str, int]:
        """Channel → payload bits."""
        request = self.address_bits + LENGTH_BITS
        return {
            "aw": request,
            "w": self.data_bits + 1,
            "b": RESPONSE_BITS,
            "ar": request,
            "r": self.data_bits + RESPONSE_BITS + 1,
        }

    def narrowed(self, data_bits: int) -> AxiFormat:
        """A port to the same bytes with words of ``data_bits`` bits, which divide these."""
        return AxiFormat(
            data_bits=data_bits, address_bits=self.address_bits + (self.data_bits // data_bits).bit_length() - 1
        )

    def ports(self, prefix: str) -> dict[str, int]:
        """Stream name ``<prefix>_<channel>`` → payload bits."""
        return {f"{prefix}_{channel}": width for channel, width in self.widths.items()}


class Axi:
    """The five streams of a port.  As a port ``m`` they become ``m_aw_valid`` …

    A master drives aw, w and ar and takes b and r.  As a port of a block they are in and out."""

    def __init__(self, form: AxiFormat) -> None:
        self.aw, self.w, self.b, self.ar, self.r = (Stream(form.widths[channel]) for channel in CHANNELS)

    @classmethod
    def of(cls, streams: Mapping[str, Stream], prefix: str) -> Axi:
        """The port made of existing streams ``<prefix>_aw`` …"""
        port = cls.__new__(cls)
        port.aw, port.w, port.b, port.ar, port.r = (streams[f"{prefix}_{channel}"] for channel in CHANNELS)
        return port


@dataclass(frozen=True, kw_only=True)
class AxiMerge(Unit):
    """Two masters ``a`` and ``b`` share the port ``m``, burst by burst, in turns."""

    format: AxiFormat
    # whether data and answers pass through a stage that cuts valid, payload and ready; with every second one cut, paths
    # stay short in a tree of any height
    cut: bool = True

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {**self.format.ports("a"), **self.format.ports("b"), **self.format.ports("m")}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return axi_merge(domain, *(Axi.of(streams, prefix) for prefix in "abm"), form=self.format, cut=self.cut)


@block
def axi_merge(domain: ClockReset, a: Axi, b: Axi, m: Axi, *, form: AxiFormat, cut: bool) -> Instances:
    """See `AxiMerge`.  Cost: four requests of flip-flops, three queues of one bit, and with ``cut`` four words of data.
    Latency: 1 cycle a request; with ``cut``, 1 for data and answers.

    Ports:
        a, b: in and out, ports of ``form`` that two masters drive.
        m: in and out, port of ``form`` that this block drives; requests from registers, with ``cut`` data too.
    """
    requests = form.widths["aw"]
    turns = [Stream(1) for _ in range(6)]
    writes, reads = Stream(requests + 1), Stream(requests + 1)
    write_heads = [Stream(requests + 1) for _ in range(3)]
    read_heads = [Stream(requests + 1) for _ in range(2)]
    write_merge = _tagged_merge(domain, a.aw, b.aw, writes)
    read_merge = _tagged_merge(domain, a.ar, b.ar, reads)
    write_fork = fork(domain, writes, write_heads)
    read_fork = fork(domain, reads, read_heads)
    requests_out = [_untag(write_heads[0], m.aw), _untag(read_heads[0], m.ar)]
    tags = [_only_tag(head, turns[i]) for i, head in enumerate((write_heads[1], write_heads[2], read_heads[1]))]
    queues = [queue(domain, turns[i], turns[3 + i], depth=_OUTSTANDING[i]) for i in range(3)]
    inner = [Stream(form.widths[channel]) for channel in "wbr"]
    policy = Policy.FULL if cut else Policy.NONE
    ways = ((inner[0], m.w), (m.b, inner[1]), (m.r, inner[2]))
    stages = [pipe(domain, x, y, policy=policy) for x, y in ways]
    data = _select(turns[3], a.w, b.w, inner[0])
    answers = _route(turns[4], inner[1], a.b, b.b, last_bit=-1)
    read = _route(turns[5], inner[2], a.r, b.r, last_bit=form.widths["r"] - 1)
    return write_merge, read_merge, write_fork, read_fork, requests_out, tags, queues, stages, data, answers, read


@block
def _tagged_merge(domain: ClockReset, a: Stream, b: Stream, y: Stream) -> Instances:
    """`merge` with the source, 0 or 1, as another bit on top."""
    zero, one = Stream(y.width), Stream(y.width)
    tags = [_tag(a, zero, bit=False), _tag(b, one, bit=True)]
    both = merge(domain, [zero, one], y)
    return tags, both


@block
def _tag(x: Stream, y: Stream, *, bit: bool) -> Instances:
    width = x.width

    @always_comb
    def out() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready
        y.payload.next[width:] = x.payload
        y.payload.next[width] = bit

    return out


@block
def _untag(x: Stream, y: Stream) -> Instances:
    width = y.width

    @always_comb
    def out() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready
        y.payload.next = x.payload[width:]

    return out


@block
def _only_tag(x: Stream, y: Stream) -> Instances:
    top = x.width - 1

    @always_comb
    def out() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready
        y.payload.next = x.payload[top]

    return out


@block
def _select(turn: Stream, a: Stream, b: Stream, y: Stream) -> Instances:
    """Bursts of ``a`` (turn 0) and ``b`` (turn 1) in the order of the turns; the top bit ends a burst."""
    top = y.width - 1
    valid, last, chosen = Signal(bool(0)), Signal(bool(0)), Signal(bool(0))

    @always_comb
    def choose() -> None:
        chosen.next = turn.payload[0]
        if turn.payload[0]:
            valid.next = turn.valid and b.valid
            last.next = b.payload[top]
            y.payload.next = b.payload
        else:
            valid.next = turn.valid and a.valid
            last.next = a.payload[top]
            y.payload.next = a.payload

    @always_comb
    def out() -> None:
        y.valid.next = valid
        a.ready.next = turn.valid and not chosen and y.ready
        b.ready.next = turn.valid and chosen and y.ready
        turn.ready.next = valid and last and y.ready

    return choose, out


@block
def _route(turn: Stream, x: Stream, a: Stream, b: Stream, *, last_bit: int) -> Instances:
    """Answers to ``a`` (turn 0) or ``b`` (turn 1); a turn ends where ``last_bit`` is set, -1: with every beat."""
    valid, last, chosen, room = (Signal(bool(0)) for _ in range(4))
    each = last_bit < 0
    bit = max(0, last_bit)

    @always_comb
    def choose() -> None:
        chosen.next = turn.payload[0]
        valid.next = x.valid and turn.valid
        last.next = each or x.payload[bit]
        if turn.payload[0]:
            room.next = b.ready
        else:
            room.next = a.ready

    @always_comb
    def out() -> None:
        a.valid.next = valid and not chosen
        b.valid.next = valid and chosen
        a.payload.next = x.payload
        b.payload.next = x.payload
        x.ready.next = turn.valid and room
        turn.ready.next = valid and last and room

    return choose, out
