"""One stream to several, several to one."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv

from hdl.signals import Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import same_width, wire


def side_by_side(signals: Sequence[Bits]) -> Bits:
    """The signals as one vector, the first in bit 0.  At least two."""
    vector: Bits = ConcatSignal(*reversed(signals))
    return vector


def row_of(signals: Sequence[Bits]) -> Bits:
    """`side_by_side` of any number of signals: one alone as it is."""
    return side_by_side(signals) if len(signals) > 1 else signals[0]


@block
def fork(domain: ClockReset, x: Stream, ys: Sequence[Stream]) -> Instances:
    """Gives each beat of ``x`` to every ``ys``, to each as soon as it is ready (eager).

    Cost: one flip-flop an output.  Latency: 0.  ``x.ready`` is combinational in every ``ys[i].ready``: put a
    `pipe` of policy S2M before it where that path gets long.

    Ports:
        x: in, stream of any width.
        ys: out, streams as wide as ``x``, in the same cycle; each is valid until it has taken the beat.
    """
    if not ys:
        raise ValueError("a fork needs at least one output")
    if len(ys) == 1:
        return wire(domain, x, ys[0])
    count = len(ys)
    ready = side_by_side([y.ready for y in ys])
    done = Signal(intbv(0)[count:])
    all_ready = Signal(bool(0))
    every = (1 << count) - 1
    outputs = [_fork_output(x, ys[i], done, i) for i in range(count)]

    @always_comb
    def accept() -> None:
        all_ready.next = (done | ready) == every

    @always_comb
    def out() -> None:
        x.ready.next = all_ready

    @always(domain.clk.posedge)
    def step() -> None:
        if x.valid:
            if all_ready:
                done.next = 0
            else:
                done.next = done | ready
        if domain.rst:
            done.next = 0

    return outputs, accept, out, step


@block
def _fork_output(x: Stream, y: Stream, done: Bits, index: int) -> Instances:
    same_width("fork", x, y)

    @always_comb
    def out() -> None:
        y.valid.next = x.valid and not done[index]
        y.payload.next = x.payload

    return out


@block
def join(domain: ClockReset, xs: Sequence[Stream], y: Stream) -> Instances:
    """One beat of each ``xs`` makes one beat of ``y``: their payloads side by side, ``xs[0]`` in the low bits.

    Cost: no flip-flops.  Latency: 0.  Each ``ready`` is combinational in ``y.ready`` and the *other* valids.

    Ports:
        xs: in, streams of any widths.
        y: out, stream as wide as all ``xs`` together, in the same cycle.
    """
    if not xs:
        raise ValueError("a join needs at least one input")
    total = sum(x.width for x in xs)
    if y.width != total:
        raise ValueError(f"join: the inputs have {total} payload bits together, y has {y.width}; they must be equal")
    if len(xs) == 1:
        return wire(domain, xs[0], y)
    valid = side_by_side([x.valid for x in xs])
    payload = side_by_side([x.payload for x in xs])
    every = (1 << len(xs)) - 1
    inputs = [_join_input(xs[i], y, valid, every - (1 << i)) for i in range(len(xs))]

    @always_comb
    def out() -> None:
        y.valid.next = valid == every
        y.payload.next = payload

    return inputs, out


@block
def _join_input(x: Stream, y: Stream, valid: Bits, others: int) -> Instances:
    @always_comb
    def out() -> None:
        x.ready.next = y.ready and (valid & others) == others

    return out
