"""Two to four streams into one, fairly."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import Policy, pipe, same_width

# streams that one merge takes at most: as many as a look-up table of six inputs chooses from
MOST_MERGED = 4


@block
def merge(domain: ClockReset, xs: Sequence[Stream], y: Stream, *, longest: int = 1) -> Instances:
    """Streams into one; where both of two have beats they take turns, and so do both of two pairs.  One keeps its turn
    while it has beats, up to ``longest`` of them if others have some.

    Cost: 2 payload + 3 flip-flops, two multiplexers a payload bit, one of which chooses from all ``xs``, and for each
    two that take turns a flip-flop, with ``longest`` above 1 a counter.  Latency: 1 cycle.  No ready depends on
    ``y.ready`` in the same cycle, so merges make trees of any height.  Not deterministic in the order of the streams:
    use it where the beats say what they are.

    Ports:
        xs: in, 2 to 4 streams of one width; the ready of each is combinational in the others' valid.
        y: out, stream as wide, 1 cycle later; valid and payload from registers.
    """
    if not 2 <= len(xs) <= MOST_MERGED:
        raise ValueError(f"a merge takes 2 to {MOST_MERGED} streams, not {len(xs)}")
    width = same_width("merge", xs[0], y)
    for x in xs[1:]:
        same_width("merge", x, y)
    chosen = Stream(width)
    stage = pipe(domain, chosen, y, policy=Policy.FULL)
    if len(xs) == 2:
        return stage, _merge_two(domain, *xs, chosen, longest=longest)
    if len(xs) == 3:
        return stage, _merge_three(domain, *xs, chosen, longest=longest)
    return stage, _merge_four(domain, *xs, chosen, longest=longest)


@block
def _merge_two(domain: ClockReset, a: Stream, b: Stream, y: Stream, *, longest: int) -> Instances:
    """Ports:
    a, b: in, streams of one width.
    y: out, stream as wide, in the same cycle.
    """
    fire, may_a, may_b, from_a = (Signal(bool(0)) for _ in range(4))
    turns = take_turns(domain, a.valid, b.valid, fire, may_a, may_b, longest=longest)

    @always_comb
    def go() -> None:
        y.valid.next = a.valid or b.valid
        fire.next = (a.valid or b.valid) and y.ready
        from_a.next = a.valid and may_a

    @always_comb
    def choose() -> None:
        if from_a:
            y.payload.next = a.payload
        else:
            y.payload.next = b.payload

    @always_comb
    def answer() -> None:
        a.ready.next = y.ready and may_a
        b.ready.next = y.ready and may_b

    return turns, go, choose, answer


@block
def _merge_three(domain: ClockReset, a: Stream, b: Stream, c: Stream, y: Stream, *, longest: int) -> Instances:
    """Ports:
    a, b, c: in, streams of one width.
    y: out, stream as wide, in the same cycle.
    """
    fire, fire_first, first, from_first, from_a = (Signal(bool(0)) for _ in range(5))
    may_first, may_a, may_b, may_c = (Signal(bool(0)) for _ in range(4))
    inner = take_turns(domain, a.valid, b.valid, fire_first, may_a, may_b, longest=longest)
    outer = take_turns(domain, first, c.valid, fire, may_first, may_c, longest=longest)

    @always_comb
    def sides() -> None:
        first.next = a.valid or b.valid
        from_first.next = (a.valid or b.valid) and may_first
        from_a.next = a.valid and may_a

    @always_comb
    def go() -> None:
        y.valid.next = first or c.valid
        fire.next = (first or c.valid) and y.ready
        fire_first.next = from_first and y.ready

    @always_comb
    def choose() -> None:
        if from_first:
            if from_a:
                y.payload.next = a.payload
            else:
                y.payload.next = b.payload
        else:
            y.payload.next = c.payload

    @always_comb
    def answer() -> None:
        a.ready.next = y.ready and may_first and may_a
        b.ready.next = y.ready and may_first and may_b
        c.ready.next = y.ready and may_c

    return inner, outer, sides, go, choose, answer


@block
def _merge_four(
    domain: ClockReset, a: Stream, b: Stream, c: Stream, d: Stream, y: Stream, *, longest: int
) -> Instances:
    """Ports:
    a, b, c, d: in, streams of one width.
    y: out, stream as wide, in the same cycle.
    """
    fire, fire_first, fire_second, first, second = (Signal(bool(0)) for _ in range(5))
    # which pair goes, and whether it is the first of it: two bits, so that a bit of the payload takes one table
    from_first, from_left = Signal(bool(0)), Signal(bool(0))
    may_first, may_second, may_a, may_b, may_c, may_d = (Signal(bool(0)) for _ in range(6))
    left = take_turns(domain, a.valid, b.valid, fire_first, may_a, may_b, longest=longest)
    right = take_turns(domain, c.valid, d.valid, fire_second, may_c, may_d, longest=longest)
    outer = take_turns(domain, first, second, fire, may_first, may_second, longest=longest)

    @always_comb
    def sides() -> None:
        first.next = a.valid or b.valid
        second.next = c.valid or d.valid
        from_first.next = (a.valid or b.valid) and may_first

    @always_comb
    def pick() -> None:
        if from_first:
            from_left.next = a.valid and may_a
        else:
            from_left.next = c.valid and may_c

    @always_comb
    def choose() -> None:
        if from_first:
            if from_left:
                y.payload.next = a.payload
            else:
                y.payload.next = b.payload
        elif from_left:
            y.payload.next = c.payload
        else:
            y.payload.next = d.payload

    @always_comb
    def go() -> None:
        y.valid.next = first or second
        fire.next = (first or second) and y.ready
        fire_first.next = from_first and y.ready
        fire_second.next = second and may_second and y.ready

    @always_comb
    def answer() -> None:
        a.ready.next = y.ready and may_first and may_a
        b.ready.next = y.ready and may_first and may_b
        c.ready.next = y.ready and may_second and may_c
        d.ready.next = y.ready and may_second and may_d

    return left, right, outer, sides, pick, choose, go, answer


@block
def take_turns(domain: ClockReset, a: Bit, b: Bit, fire: Bit, may_a: Bit, may_b: Bit, *, longest: int = 1) -> Instances:
    """Which of two sides may go; of two that have beats one, and each side's leave does not hang on its own beat.

    Ports:
        a, b: in, 1 bit: this side has a beat.
        fire: in, 1 bit: the beat of a side that may go is taken at this edge.
        may_a, may_b: out, 1 bit, combinational in the other side's beat: this side may go.
    """
    if longest == 1:
        return _alternate(domain, a, b, fire, may_a, may_b)
    return _in_bursts(domain, a, b, fire, may_a, may_b, longest=longest)


@block
def _alternate(domain: ClockReset, a: Bit, b: Bit, fire: Bit, may_a: Bit, may_b: Bit) -> Instances:
    """See `take_turns`, for its ports."""
    # whose turn it is where both have beats: the second side's
    turn = Signal(bool(0))

    @always_comb
    def choose() -> None:
        may_a.next = not turn or not b
        may_b.next = turn or not a

    @always(domain.clk.posedge)
    def step() -> None:
        if fire:
            turn.next = a and (not turn or not b)
        if domain.rst:
            turn.next = False

    return choose, step


@block
def _in_bursts(domain: ClockReset, a: Bit, b: Bit, fire: Bit, may_a: Bit, may_b: Bit, *, longest: int) -> Instances:
    """See `take_turns`, for its ports."""
    # whose turn it is, and whether it has had all of its beats; how many it has had
    turn, spent, from_a = (Signal(bool(0)) for _ in range(3))
    run = Signal(intbv(0, min=0, max=longest + 1))
    last = longest - 1

    @always_comb
    def choose() -> None:
        may_a.next = turn == spent or not b
        may_b.next = turn != spent or not a
        from_a.next = a and (turn == spent or not b)

    @always(domain.clk.posedge)
    def step() -> None:
        if fire:
            if turn != from_a:
                if run != longest:
                    run.next = run + 1
                    spent.next = run == last
            else:
                turn.next = not turn
                run.next = 1
                spent.next = False
        if domain.rst:
            turn.next = False
            run.next = 0
            spent.next = False

    return choose, step
