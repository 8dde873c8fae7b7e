"""Hosts for co-simulations that run wholly in Verilog: a player that feeds a stream, a recorder that keeps one.

Both are circuits, so the same test bench runs in Icarus and Verilator; what they play or kept lies in a memory with
an image.  Stalls are pseudo-random from a linear-feedback shift register with a stated seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, instances, intbv

from hdl.memory import address_width, read_only, simple_dual_port
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream

# a maximal-length 16-bit Galois register: x^16 + x^14 + x^13 + x^11 + 1
LFSR_TAPS = 0xB400


@block
def stalls(domain: ClockReset, go: Bit, *, probability_256: int, seed: int) -> Instances:
    """Random pauses.

    Ports:
        go: out, 1 bit, from a register: low in about ``probability_256`` of 256 cycles.
    """
    start = seed & 0xFFFF or 1
    register = Signal(intbv(start)[16:])

    @always(domain.clk.posedge)
    def shift() -> None:
        if domain.rst:
            register.next = start
        elif register[0]:
            register.next = (register >> 1) ^ LFSR_TAPS
        else:
            register.next = register >> 1

    @always(domain.clk.posedge)
    def decide() -> None:
        go.next = register[8:] >= probability_256

    return instances()


@block
def stream_player(
    domain: ClockReset,
    y: Stream,
    *,
    depth: int,
    probability_256: int,
    seed: int,
    contents: Sequence[int] | None = None,
) -> Instances:
    """Offers ``depth`` beats from the image "beats" once, in order, one a cycle, with stalls.

    Ports:
        y: out, stream of any width; valid from a register, payload from the memory.
    """
    width = len(y.payload)
    last = depth - 1
    address = Signal(intbv(0)[address_width(depth) :])
    word = Signal(intbv(0)[width:])
    valid, read, exhausted, go = (Signal(bool(0)) for _ in range(4))
    store = read_only(domain.clk, read, address, word, depth=depth, width=width, contents=contents, image="beats")
    gate = stalls(domain, go, probability_256=probability_256, seed=seed)

    @always_comb
    def fetch() -> None:
        read.next = go and (not valid or y.ready) and not exhausted and not domain.rst

    @always(domain.clk.posedge)
    def step() -> None:
        if read:
            valid.next = True
            if address == last:
                exhausted.next = True
            else:
                address.next = address + 1
        elif valid and y.ready:
            valid.next = False
        if domain.rst:
            valid.next = False
            exhausted.next = False
            address.next = 0

    @always_comb
    def out() -> None:
        y.valid.next = valid
        y.payload.next = word

    return store, gate, fetch, step, out


@block
def stream_recorder(domain: ClockReset, x: Stream, *, depth: int, probability_256: int, seed: int) -> Instances:
    """Keeps ``depth`` beats in the image "beats"; should more come, each in the place of the one before.

    Ports:
        x: in, stream of any width; ready at random, from a register.
    """
    width = len(x.payload)
    address = Signal(intbv(0)[address_width(depth) :])
    unread = Signal(intbv(0)[width:])
    go, fire, never = (Signal(bool(0)) for _ in range(3))
    store = simple_dual_port(
        domain.clk, fire, address, x.payload, never, address, unread, depth=depth, width=width, image="beats"
    )
    gate = stalls(domain, go, probability_256=probability_256, seed=seed)

    @always_comb
    def accept() -> None:
        fire.next = go and x.valid
        x.ready.next = go
        never.next = False

    @always(domain.clk.posedge)
    def step() -> None:
        if fire and address != depth - 1:
            address.next = address + 1
        if domain.rst:
            address.next = 0

    return store, gate, accept, step
