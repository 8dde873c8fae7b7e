"""Sums over neighbouring channels, and powers from tables: what local response normalisation is made of."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv, modbv

from hdl.engine.arithmetic.lanes import delay_vector
from hdl.engine.arithmetic.mac import tree_levels
from hdl.engine.norm.local_response_numbers import ENTRY_EXTRA, POWER_BITS, PowerTable
from hdl.memory import address_width, read_only
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import m2s_pipe, read_stream, wire

# cycles of `power_stream`: address, read, its register, product, difference
POWER_CYCLES = 5


def window_cycles(terms: int) -> int:
    """Cycles of `channel_windows` and `sum_windows`, from the last beat that is needed."""
    return 2 + tree_levels(terms)


@block
def square_stream(domain: ClockReset, x: Stream, y: Stream, *, lanes: int) -> Instances:
    """Each code squared; a multiplier a lane between registers, `PRODUCT_CYCLES`.

    Ports:
        x: in, stream of ``lanes`` signed codes of one width; its ready is combinational in that of ``y``.
        y: out, stream of ``lanes`` signed squares, twice as wide, from registers.
    """
    width = x.width // lanes
    wide, bound, square_bound = 2 * width, 1 << (width - 1), 1 << (2 * width - 1)
    codes, computed = Stream(x.width), Stream(y.width)
    hold, register = m2s_pipe(domain, x, codes), m2s_pipe(domain, computed, y)

    @always_comb
    def multiply() -> None:
        code = intbv(0, min=-bound, max=bound)
        square = intbv(0, min=-square_bound, max=square_bound)
        for lane in range(lanes):
            code[:] = codes.payload[bits_of(lane, width)].signed()
            square[:] = code * code
            computed.payload.next[bits_of(lane, wide)] = square[wide:]

    @always_comb
    def handshake() -> None:
        computed.valid.next = codes.valid
        codes.ready.next = computed.ready

    return hold, register, multiply, handshake


def reach(beats: int, lanes: int, neighbours: int) -> int:
    """Beats of a pixel of ``beats`` in which so many neighbours on one side stand."""
    return min(-(-neighbours // lanes), beats - 1)


@block
def channel_windows(
    domain: ClockReset, x: Stream, y: Stream, *, lanes: int, beats: int, before: int, after: int
) -> Instances:
    """Each beat of a pixel with its neighbours on both sides, zeros beyond the pixel.

    Costs registers for as many beats as the neighbours stand in.  A beat waits for those after it in its own pixel, and
    for no other: where a pixel may begin, the registers move on without a beat.

    Ports:
        x: in, stream of ``lanes`` numbers of one width; its ready is combinational in that of ``y``.
        y: out, stream of ``before + lanes + after`` numbers of that width, 2 cycles after the last beat that it needs,
            from registers.
    """
    width = x.width // lanes
    ahead, behind = reach(beats, lanes, after), reach(beats, lanes, before)
    total, final = ahead + behind + 1, beats - 1
    chain = [Signal(intbv(0)[x.width :]) for _ in range(total)]
    valid = [Signal(bool(0)) for _ in range(ahead + 1)]
    inside = [Signal(bool(0)) for _ in range(total)]
    flat = Signal(intbv(0)[total * x.width :])
    entering, leaving = (Signal(intbv(0)[address_width(beats) :]) for _ in range(2))
    go, ready, fire, gone = (Signal(bool(0)) for _ in range(4))
    masks = [
        is_inside(leaving, inside[place], beats=beats, distance=place - behind)
        for place in range(total)
        if place != behind
    ]
    windows = Stream(y.width)
    register = m2s_pipe(domain, windows, y)
    own = delay_vector(domain.clk, valid[ahead], inside[behind], cycles=0)
    beat = x.width
    # of the numbers wanted, those that are there; the others lie beyond any pixel
    lost = max(0, before - behind * lanes)
    start = (behind * lanes - before + lost) * width
    count = (before + lanes + after) * width
    there = min(count - lost * width, total * beat - start)
    low, end = lost * width, lost * width + there

    @always_comb
    def decide() -> None:
        ready.next = windows.ready or not valid[ahead]

    @always_comb
    def handshake() -> None:
        x.ready.next = ready
        windows.valid.next = valid[ahead]
        fire.next = ready and x.valid
        go.next = ready and (x.valid or entering == 0)
        gone.next = windows.ready and valid[ahead]

    @always_comb
    def mask() -> None:
        for place in range(total):
            flat.next[bits_of(place, beat)] = 0
            if inside[place]:
                flat.next[bits_of(place, beat)] = chain[total - 1 - place]

    @always_comb
    def window() -> None:
        windows.payload.next = 0
        windows.payload.next[end:low] = flat[start + there : start]

    @always(domain.clk.posedge)
    def move() -> None:
        if go:
            chain[0].next = x.payload
            for place in range(1, total):
                chain[place].next = chain[place - 1]

    @always(domain.clk.posedge)
    def step() -> None:
        if gone:
            valid[ahead].next = False
        if go:
            valid[0].next = x.valid
            for place in range(1, ahead + 1):
                valid[place].next = valid[place - 1]
        if fire:
            if entering == final:
                entering.next = 0
            else:
                entering.next = entering + 1
        if gone:
            if leaving == final:
                leaving.next = 0
            else:
                leaving.next = leaving + 1
        if domain.rst:
            for place in range(ahead + 1):
                valid[place].next = False
            entering.next = 0
            leaving.next = 0

    return masks, register, own, decide, handshake, mask, window, move, step


@block
def is_inside(place: Bits, inside: Bit, *, beats: int, distance: int) -> Instances:
    """Whether the beat ``distance`` (not 0) after that at ``place`` is of the same pixel; combinational.

    Ports:
        place: in, `address_width` ``(beats)`` bits.
        inside: out, 1 bit, in the same cycle.
    """
    least, most = -distance, beats - distance

    if distance < 0:

        @always_comb
        def begun() -> None:
            inside.next = place >= least

        return begun

    @always_comb
    def not_over() -> None:
        inside.next = place < most

    return not_over


@block
def sum_windows(domain: ClockReset, x: Stream, y: Stream, *, lanes: int, terms: int) -> Instances:
    """Sums of each ``terms`` neighbours; an adder a term and lane, a register a level of the trees.

    Ports:
        x: in, stream of ``lanes + terms - 1`` signed numbers of one width.
        y: out, stream of ``lanes`` signed sums, `tree_levels` ``(terms)`` bits wider, as many cycles later.
    """
    width = x.width // (lanes + terms - 1)
    apart = Stream(lanes * terms * width)

    @always_comb
    def spread() -> None:
        for lane in range(lanes):
            for term in range(terms):
                apart.payload.next[bits_of(lane * terms + term, width)] = x.payload[bits_of(lane + term, width)]

    @always_comb
    def handshake() -> None:
        apart.valid.next = x.valid
        x.ready.next = apart.ready

    return spread, handshake, add_terms(domain, apart, y, lanes=lanes, terms=terms)


@block
def add_terms(domain: ClockReset, x: Stream, y: Stream, *, lanes: int, terms: int) -> Instances:
    """Sums of each ``terms`` numbers side by side, a level of a tree a cycle.

    Ports:
        x: in, stream of ``lanes * terms`` signed numbers of one width.
        y: out, stream of ``lanes`` signed sums, `tree_levels` ``(terms)`` bits wider, as many cycles later.
    """
    if terms == 1:
        return wire(domain, x, y)
    width, half, odd = x.width // (lanes * terms), terms // 2, terms % 2
    kept, wide, bound = half + odd, width + 1, 1 << width
    added, held = (Stream(lanes * kept * wide) for _ in range(2))
    register = m2s_pipe(domain, added, held)
    rest = add_terms(domain, held, y, lanes=lanes, terms=kept)

    @always_comb
    def add() -> None:
        a = intbv(0, min=-bound, max=bound)
        b = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            for pair in range(half):
                a[:] = x.payload[bits_of(lane * terms + 2 * pair, width)].signed()
                b[:] = x.payload[bits_of(lane * terms + 2 * pair + 1, width)].signed()
                a[:] = a + b
                added.payload.next[bits_of(lane * kept + pair, wide)] = a[wide:]
            if odd == 1:
                a[:] = x.payload[bits_of(lane * terms + terms - 1, width)].signed()
                added.payload.next[bits_of(lane * kept + half, wide)] = a[wide:]

    @always_comb
    def handshake() -> None:
        added.valid.next = x.valid
        x.ready.next = added.ready

    return register, rest, add, handshake


@block
def power_stream(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    *,
    lanes: int,
    table: PowerTable,
    public: str,
    contents: Sequence[int] | None = None,
) -> Instances:
    """`PowerTable.codes`, `POWER_CYCLES`; a read-only memory and a multiplier a lane.

    Ports:
        x: in, stream of ``lanes`` codes of ``table.strength``.
        y: out, stream of ``lanes`` codes of ``table.power``, from registers.
    """
    width, between, entry_bits, slope_bits = x.width // lanes, table.between_bits, table.entry_bits, table.slope_bits
    place_bits, word_bits = table.place_bits, entry_bits + slope_bits
    codes, product_bits = lanes * between, slope_bits + between
    at, betweens = Stream(x.width), Signal(intbv(0)[codes:])
    addresses = [Signal(intbv(0)[place_bits:]) for _ in range(lanes)]
    words = [Signal(intbv(0)[word_bits:]) for _ in range(lanes)]
    fetch = Signal(bool(0))
    read, held = (Stream(codes + lanes * word_bits) for _ in range(2))
    multiplied, products = (Stream(lanes * (entry_bits + product_bits)) for _ in range(2))
    computed = Stream(y.width)
    results = ConcatSignal(*reversed([betweens, *words]))
    stores = [
        read_only(domain.clk, fetch, addresses[lane], words[lane], depth=1 << place_bits, width=word_bits,
                  contents=contents, image=f"{public}{lane}")
        for lane in range(lanes)
    ]  # fmt: skip
    stages = (
        m2s_pipe(domain, x, at),
        read_stream(domain, at.valid, fetch, results, read),
        m2s_pipe(domain, read, held),
        m2s_pipe(domain, multiplied, products),
        m2s_pipe(domain, computed, y),
    )

    @always_comb
    def address() -> None:
        for lane in range(lanes):
            addresses[lane].next = at.payload[lane * width + width : lane * width + between]

    @always_comb
    def take() -> None:
        at.ready.next = read.ready or not read.valid

    @always(domain.clk.posedge)
    def keep() -> None:
        if fetch:
            for lane in range(lanes):
                betweens.next[bits_of(lane, between)] = at.payload[lane * width + between : lane * width]

    @always_comb
    def multiply() -> None:
        slope = intbv(0)[slope_bits:]
        place = intbv(0)[between:]
        product = intbv(0)[product_bits:]
        for lane in range(lanes):
            place[:] = held.payload[bits_of(lane, between)]
            slope[:] = held.payload[codes + lane * word_bits + word_bits : codes + lane * word_bits + entry_bits]
            product[:] = slope * place
            multiplied.payload.next[
                lane * (entry_bits + product_bits) + entry_bits : lane * (entry_bits + product_bits)
            ] = held.payload[codes + lane * word_bits + entry_bits : codes + lane * word_bits]
            multiplied.payload.next[
                (lane + 1) * (entry_bits + product_bits) : lane * (entry_bits + product_bits) + entry_bits
            ] = product

    @always_comb
    def subtract() -> None:
        number = modbv(0)[entry_bits:]
        less = modbv(0)[entry_bits:]
        for lane in range(lanes):
            number[:] = products.payload[
                lane * (entry_bits + product_bits) + entry_bits : lane * (entry_bits + product_bits)
            ]
            less[:] = products.payload[
                (lane + 1) * (entry_bits + product_bits) : lane * (entry_bits + product_bits) + entry_bits + between
            ]
            # an entry is larger than what is taken from it
            number[:] = number - less
            computed.payload.next[bits_of(lane, POWER_BITS)] = number[entry_bits:ENTRY_EXTRA]

    @always_comb
    def handshake() -> None:
        multiplied.valid.next = held.valid
        held.ready.next = multiplied.ready

    @always_comb
    def hand_on() -> None:
        computed.valid.next = products.valid
        products.ready.next = computed.ready

    return stores, stages, address, take, keep, multiply, subtract, handshake, hand_on
