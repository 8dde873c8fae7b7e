"""What the forward and the backward circuit of online normalisation share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.lanes import (
    WIDE_SCALE_LATENCY,
    delay_vector,
    join_lanes,
    round_lanes,
    scale_rounded,
    signed_lanes,
    split_lanes,
)
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.norm.numbers import RECIPROCAL_BITS, Mean
from hdl.memory import address_width, simple_dual_port
from hdl.stream import bits_of

# cycles of `mean_lanes`
MEAN_LATENCY = 1 + WIDE_SCALE_LATENCY
# up to so many groups, sums circulate in registers; more lie in a memory
RING_GROUPS = 4
# cycles from a beat of one frame to the same beat of the next at least: state is written before it is read again
SETTLING = 8


@block
def beat_counter(
    clk: Any, rst: Any, fire: Any, group: Any, first_pixel: Any, last_pixel: Any, *, pixels: int, groups: int
) -> Any:
    """Where in the frame the next beat stands: its ``group`` within the pixel; whether the pixel is first or last."""
    last_group = groups - 1
    final = pixels - 1
    before_final = max(pixels - 2, 0)
    single = 1 if pixels == 1 else 0
    pixel = Signal(intbv(0, min=0, max=max(2, pixels)))

    @always(clk.posedge)
    def count() -> None:
        if fire:
            if group != last_group:
                group.next = group + 1
            else:
                group.next = 0
                if pixel == final:
                    pixel.next = 0
                    first_pixel.next = True
                    last_pixel.next = single == 1
                else:
                    pixel.next = pixel + 1
                    first_pixel.next = False
                    last_pixel.next = pixel == before_final
        if rst:
            group.next = 0
            pixel.next = 0
            first_pixel.next = True
            last_pixel.next = single == 1

    return count


@block
def frame_gate(
    clk: Any,
    rst: Any,
    claimable: Any,
    done: Any,
    start: Any,
    claim: Any,
    permit: Any,
    finish: Any,
    *,
    credits: int,
    spacing: int,
    beats: int,
) -> Any:
    """Lets a frame start when its weights are there and the statistics it uses are computed.

    Args:
        claimable, claim: of `hdl.engine.weights.buffer`.
        done: in, the statistics after the next frame (in order) are in the table.
        start: in, the first beat of a frame fires; only while ``permit``.
        permit: out, the next frame may start; from a register.
        finish: in, the last beat of a frame fires.
        credits: frames that may start before the first ``done``, norm_lag + 1.
        spacing: least cycles between the starts of frames, at least `shortest_frame`; the layer's cycles a frame, so
            that frames don't come in bursts of ``credits``.
        beats: beats of a frame.
    """
    rest = spacing - 2
    short = beats < SETTLING
    settle = SETTLING - 1 if short else 0
    # of a short frame: it has started and not finished
    running = Signal(bool(0))
    settling = Signal(intbv(0, min=0, max=settle + 2))
    free = Signal(intbv(credits, min=0, max=credits + 1))
    resting = Signal(intbv(0, min=0, max=rest + 1))

    @always_comb
    def decide() -> None:
        claim.next = claimable and free != 0 and resting == 0 and settling == 0 and not running and not permit

    @always(clk.posedge)
    def count() -> None:
        if claim and not done:
            free.next = free - 1
        elif done and not claim:
            free.next = free + 1
        if start:
            resting.next = rest
        elif resting != 0:
            resting.next = resting - 1
        running.next = short and not finish and (start or running)
        if finish:
            settling.next = settle
        elif settling != 0:
            settling.next = settling - 1
        if claim:
            permit.next = True
        elif start:
            permit.next = False
        if rst:
            free.next = credits
            resting.next = 0
            settling.next = 0
            running.next = False
            permit.next = False

    return decide, count


def shortest_frame(beats: int) -> int:
    """Least cycles between frames of so many beats: a frame shorter than `SETTLING` is followed by a pause."""
    return beats if beats >= SETTLING else beats + SETTLING


@block
def channel_sums(
    clk: Any, rst: Any, early: Any, first: Any, last: Any, values: Any, totals: Any, complete: Any, *, groups: int
) -> Any:
    """Sums of ``values`` by channel, from the first to the last beat of each group.

    Costs registers for `RING_GROUPS` groups or fewer, else a memory of ``groups`` words.

    Args:
        early: in, two cycles before ``values`` of the next group (in order) are there.
        first, last: in, with ``early``: the sum starts with these values; is complete with them.
        values, totals: lists of signed lanes.
        complete: out, ``totals`` are complete sums; three cycles after ``early``.
    """
    valid, fresh, final = (Signal(bool(0)) for _ in range(3))
    waits = [
        delay_vector(clk, early, valid, cycles=2),
        delay_vector(clk, first, fresh, cycles=2),
        delay_vector(clk, last, final, cycles=2),
    ]
    if groups <= RING_GROUPS:
        sums = ring_sums(clk, valid, fresh, values, totals, groups=groups)
    else:
        sums = memory_sums(clk, rst, early, valid, fresh, values, totals, groups=groups)

    @always(clk.posedge)
    def mark() -> None:
        complete.next = valid and final

    return waits, sums, mark


@block
def ring_sums(clk: Any, valid: Any, fresh: Any, values: Any, totals: Any, *, groups: int) -> Any:
    """`channel_sums` in a ring of registers."""
    lanes, bits = len(values), len(totals[0])
    others = (groups - 1) * lanes
    ring = signed_lanes(max(1, others), bits)

    if groups == 1:

        @always(clk.posedge)
        def add_single() -> None:
            for lane in range(lanes):
                if valid:
                    if fresh:
                        totals[lane].next = values[lane]
                    else:
                        totals[lane].next = totals[lane] + values[lane]

        return add_single

    back = others - lanes

    @always(clk.posedge)
    def add() -> None:
        for lane in range(lanes):
            if valid:
                if fresh:
                    totals[lane].next = values[lane]
                else:
                    totals[lane].next = ring[back + lane] + values[lane]

    @always(clk.posedge)
    def turn() -> None:
        if valid:
            for lane in range(lanes):
                ring[lane].next = totals[lane]
            for slot in range(back):
                ring[lanes + slot].next = ring[slot]

    return add, turn


@block
def memory_sums(
    clk: Any, rst: Any, early: Any, valid: Any, fresh: Any, values: Any, totals: Any, *, groups: int
) -> Any:
    """`channel_sums` in a memory."""
    lanes, bits = len(values), len(totals[0])
    word, total = (Signal(intbv(0)[lanes * bits :]) for _ in range(2))
    write = Signal(bool(0))
    place, write_at = (Signal(intbv(0)[address_width(groups) :]) for _ in range(2))
    final = groups - 1
    store = simple_dual_port(
        clk, write, write_at, total, early, place, word, depth=groups, width=lanes * bits, output_register=True
    )
    wait = delay_vector(clk, place, write_at, cycles=3)
    join = join_lanes(totals, total)

    @always(clk.posedge)
    def count() -> None:
        if early:
            if place == final:
                place.next = 0
            else:
                place.next = place + 1
        if rst:
            place.next = 0

    @always(clk.posedge)
    def add() -> None:
        old = intbv(0, min=-(1 << (bits - 1)), max=1 << (bits - 1))
        write.next = valid
        if valid:
            for lane in range(lanes):
                old[:] = word[bits_of(lane, bits)].signed()
                if fresh:
                    totals[lane].next = values[lane]
                else:
                    totals[lane].next = old + values[lane]

    return store, wait, join, count, add


@block
def mean_lanes(clk: Any, sums: Any, means: Any, *, mean: Mean) -> Any:
    """`Mean.of` on each lane, `MEAN_LATENCY` cycles."""
    lanes, bits = len(sums), max(len(sums[0]) - mean.pre, 2) + 1
    shifted = signed_lanes(lanes, bits)
    first = round_lanes(clk, sums, shifted, shift=mean.pre)
    scalar = Scalar(1, 0) if mean.is_shift else Scalar(mean.reciprocal, RECIPROCAL_BITS)
    second = scale_rounded(clk, shifted, means, scalar=scalar)
    return first, second


@block
def split_word(clk: Any, word: Any, lanes: Any, *, width: int, signed: bool, base: int, cycles: int) -> Any:
    """Delays part of a word by ``cycles`` (at least 1), the last of which splits it into lanes."""
    late = Signal(intbv(0)[len(word) :])
    wait = delay_vector(clk, word, late, cycles=cycles - 1)
    split = split_lanes(clk, late, lanes, width=width, signed=signed, base=base)
    return wait, split


@block
def line_table(
    clk: Any,
    rst: Any,
    fire: Any,
    group: Any,
    last_pixel: Any,
    line: Any,
    write: Any,
    write_group: Any,
    write_line: Any,
    shape: Any,
    contents: Sequence[int] | None,
) -> Any:
    """What the data path needs of the statistics, for ``norm_lag + 1`` frames: ``line`` two cycles after ``fire``."""
    groups, banks = shape.groups, shape.recipe.norm_lag + 1
    depth, last_group = groups * banks, groups - 1
    last_base = depth - groups
    base, write_base = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    read_at, write_at = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    store = simple_dual_port(
        clk,
        write,
        write_at,
        write_line,
        fire,
        read_at,
        line,
        depth=depth,
        width=len(line),
        contents=contents,
        output_register=True,
        image="table",
    )

    @always_comb
    def address() -> None:
        read_at.next = base + group
        write_at.next = write_base + write_group

    @always(clk.posedge)
    def turn() -> None:
        if fire and last_pixel and group == last_group:
            if base == last_base:
                base.next = 0
            else:
                base.next = base + groups
        if write and write_group == last_group:
            if write_base == last_base:
                write_base.next = 0
            else:
                write_base.next = write_base + groups
        if rst:
            base.next = 0
            write_base.next = 0

    return store, address, turn
