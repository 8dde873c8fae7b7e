"""Two streams into one, fairly."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import Policy, pipe, same_width


@block
def merge(domain: ClockReset, a: Stream, b: Stream, y: Stream) -> Instances:
    """Two streams into one; where both have beats they take turns.

    Cost: 2 payload + 3 flip-flops and two multiplexers a payload bit.  Latency: 1 cycle.  No ready depends on
    ``y.ready`` in the same cycle, so merges make trees of any height.  Not deterministic in the order of the two: use
    it where the beats say what they are.

    Ports:
        a, b: in, streams of one width; the ready of each is combinational in the other's valid.
        y: out, stream as wide, 1 cycle later; valid and payload from registers.
    """
    width = same_width("merge", a, y)
    same_width("merge", b, y)
    chosen = Stream(width)
    stage = pipe(domain, chosen, y, policy=Policy.FULL)
    turn, from_a, from_b = (Signal(bool(0)) for _ in range(3))

    @always_comb
    def choose() -> None:
        from_a.next = not turn or not b.valid
        from_b.next = turn or not a.valid

    @always_comb
    def out() -> None:
        a.ready.next = chosen.ready and from_a
        b.ready.next = chosen.ready and from_b
        chosen.valid.next = a.valid or b.valid
        if from_a and a.valid:
            chosen.payload.next = a.payload
        else:
            chosen.payload.next = b.payload

    @always(domain.clk.posedge)
    def step() -> None:
        if chosen.ready:
            if from_a and a.valid:
                turn.next = True
            elif from_b and b.valid:
                turn.next = False
        if domain.rst:
            turn.next = False

    return stage, choose, out, step


@block
def burst_merge(domain: ClockReset, a: Stream, b: Stream, y: Stream, *, longest: int) -> Instances:
    """As `merge`, but one keeps its turn while it has beats, up to ``longest`` of them if the other has some.

    Cost: that of `merge` and a counter.  Latency: 1 cycle.

    Ports:
        a, b: in, streams of one width; the ready of each is combinational in the other's valid.
        y: out, stream as wide, 1 cycle later; valid and payload from registers.
    """
    width = same_width("burst_merge", a, y)
    same_width("burst_merge", b, y)
    chosen = Stream(width)
    stage = pipe(domain, chosen, y, policy=Policy.FULL)
    # whose turn it is, and how many beats it has had
    turn, other, spent, take_a, take_b = (Signal(bool(0)) for _ in range(5))
    run = Signal(intbv(0, min=0, max=longest + 1))
    last = longest - 1

    @always_comb
    def choose() -> None:
        other.next = turn != spent
        take_a.next = not other or not b.valid
        take_b.next = other or not a.valid

    @always_comb
    def out() -> None:
        a.ready.next = chosen.ready and take_a
        b.ready.next = chosen.ready and take_b
        chosen.valid.next = a.valid or b.valid
        if take_a and a.valid:
            chosen.payload.next = a.payload
        else:
            chosen.payload.next = b.payload

    @always(domain.clk.posedge)
    def step() -> None:
        if chosen.ready and (a.valid or b.valid):
            if turn == (not (take_a and a.valid)):
                if run != longest:
                    run.next = run + 1
                    spent.next = run == last
            else:
                turn.next = not turn
                run.next = 1
                spent.next = longest == 1
        if domain.rst:
            turn.next = False
            run.next = 0
            spent.next = False

    return stage, choose, out, step
