"""Pipeline stages: they cut the paths of valid and payload (master to slave), of ready (slave to master), or both."""

from __future__ import annotations

from enum import Enum

from myhdl import Signal, always, always_comb, block, intbv

from hdl.signals import ClockReset, Instances
from hdl.stream import Stream


class Policy(Enum):
    """Which paths a pipeline stage cuts with registers."""

    # a wire: no registers, no latency
    NONE = "none"
    # valid and payload
    M2S = "m2s"
    # ready
    S2M = "s2m"
    # all three, one beat a cycle
    FULL = "full"
    # all three, one beat every two cycles
    HALF = "half"


def same_width(what: str, x: Stream, y: Stream) -> int:
    """The payload width of both streams.  Raises ValueError if they differ."""
    if x.width != y.width:
        raise ValueError(f"{what}: x has {x.width} payload bits, y has {y.width}; they must be equal")
    return x.width


@block
def wire(domain: ClockReset, x: Stream, y: Stream) -> Instances:
    """Connects ``x`` to ``y``.  Cost: none.  Latency: 0.

    Ports:
        x: in, stream of any width.
        y: out, stream as wide as ``x``, in the same cycle.
    """
    same_width("wire", x, y)

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        y.payload.next = x.payload
        x.ready.next = y.ready

    return connect


@block
def m2s_pipe(domain: ClockReset, x: Stream, y: Stream) -> Instances:
    """Registers valid and payload; ready passes through one gate.

    Cost: payload + 1 flip-flops.  Latency: 1 cycle.  Holds 1 beat, one beat a cycle.

    Ports:
        x: in, stream of any width; its ready is combinational in that of ``y``.
        y: out, stream as wide as ``x``, 1 cycle later; valid and payload from registers.
    """
    width = same_width("m2s_pipe", x, y)
    valid = Signal(bool(0))
    payload = Signal(intbv(0)[width:])
    take = Signal(bool(0))

    @always_comb
    def connect() -> None:
        take.next = y.ready or not valid

    @always_comb
    def out() -> None:
        x.ready.next = take
        y.valid.next = valid
        y.payload.next = payload

    @always(domain.clk.posedge)
    def step() -> None:
        if take:
            valid.next = x.valid
            payload.next = x.payload
        if domain.rst:
            valid.next = False

    return connect, out, step


@block
def s2m_pipe(domain: ClockReset, x: Stream, y: Stream) -> Instances:
    """Registers ready (a skid buffer): a beat that comes while ``y`` stalls is kept aside.

    Cost: payload + 1 flip-flops and a 2:1 multiplexer a payload bit.  Latency: 0 cycles, 1 after a stall.

    Ports:
        x: in, stream of any width; its ready from a register.
        y: out, stream as wide as ``x``; valid and payload combinational in those of ``x``.
    """
    width = same_width("s2m_pipe", x, y)
    full = Signal(bool(0))
    skid = Signal(intbv(0)[width:])

    @always_comb
    def out() -> None:
        x.ready.next = not full
        y.valid.next = x.valid or full
        if full:
            y.payload.next = skid
        else:
            y.payload.next = x.payload

    @always(domain.clk.posedge)
    def step() -> None:
        if not full:
            skid.next = x.payload
        full.next = (x.valid or full) and not y.ready
        if domain.rst:
            full.next = False

    return out, step


@block
def half_pipe(domain: ClockReset, x: Stream, y: Stream) -> Instances:
    """Registers valid, payload and ready at half the rate: ready is low while the stage holds a beat.

    Cost: payload + 1 flip-flops.  Latency: 1 cycle.  One beat every two cycles.

    Ports:
        x: in, stream of any width; its ready from a register.
        y: out, stream as wide as ``x``, 1 cycle later; valid and payload from registers.
    """
    width = same_width("half_pipe", x, y)
    valid = Signal(bool(0))
    payload = Signal(intbv(0)[width:])

    @always_comb
    def out() -> None:
        x.ready.next = not valid
        y.valid.next = valid
        y.payload.next = payload

    @always(domain.clk.posedge)
    def step() -> None:
        if valid:
            if y.ready:
                valid.next = False
        else:
            valid.next = x.valid
            payload.next = x.payload
        if domain.rst:
            valid.next = False

    return out, step


@block
def pipe(domain: ClockReset, x: Stream, y: Stream, *, policy: Policy = Policy.FULL) -> Instances:
    """A stage of the named policy.

    FULL is `s2m_pipe` then `m2s_pipe`: all outputs come from registers.  Cost: 2 payload + 2 flip-flops and a
    multiplexer a payload bit.  Latency: 1 cycle.  Holds 2 beats, one beat a cycle.

    Ports:
        x: in, stream of any width.
        y: out, stream as wide as ``x``; latency as the policy says.
    """
    if policy is Policy.FULL:
        middle = Stream(x.width)
        first = s2m_pipe(domain, x, middle)
        second = m2s_pipe(domain, middle, y)
        return first, second
    stages = {Policy.NONE: wire, Policy.M2S: m2s_pipe, Policy.S2M: s2m_pipe, Policy.HALF: half_pipe}
    return stages[policy](domain, x, y)


@block
def take_bits(x: Stream, y: Stream, *, low: int) -> Instances:
    """The bits of a payload from ``low`` on, as many as ``y`` has; no cost.

    Ports:
        x: in, stream of at least ``low + y.width`` bits.
        y: out, stream of any width, in the same cycle.
    """
    high = low + y.width

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        y.payload.next = x.payload[high:low]
        x.ready.next = y.ready

    return connect
