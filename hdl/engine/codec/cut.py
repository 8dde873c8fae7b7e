"""What a codec leaves of integers, as a circuit: each element becomes what is decoded of its code."""

from __future__ import annotations

from myhdl import Signal, always_comb, block, concat, intbv

from hdl.engine.codec.integer_codec import Cut, IntegerCodec
from hdl.engine.codec.stages import bits_in, fields, next_stage
from hdl.random_bits import ROUNDING_BITS
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of

# of `cut_stream`
CUT_CYCLES = 3


@block
def cut_stream(
    domain: ClockReset, x: Stream, y: Stream, *, codec: IntegerCodec, lanes: int, beside: bool = False
) -> Instances:
    """`IntegerCodec.encode`, then `IntegerCodec.decode`.  Costs two adders a lane, three where bits are rounded;
    `CUT_CYCLES`, one beat a cycle.

    Ports:
        x: in, stream of ``lanes`` elements of ``codec.width`` bits; with `Cut.STOCHASTIC` 16 random bits a lane above
            them.
        y: out, stream of ``lanes`` elements of ``codec.width`` bits, from registers; with ``beside`` those of ``x``
            above them.
    """
    width, drop, window, sign = codec.width, codec.drop, codec.window, codec.width - 1
    # of the random bits of a lane, as many as are cut off
    random_bits = drop if codec.cut is Cut.STOCHASTIC else 0
    raw_from, half, spare = codec.raw_from, (1 << drop) >> 1 if codec.cut is Cut.NEAREST else 0, ROUNDING_BITS - drop
    # elements, magnitudes, random bits; elements, rounded magnitudes, whether they are kept whole
    measured = fields((width, lanes), (width, lanes), *[(random_bits, lanes)] * (random_bits > 0))
    counted = fields((width, lanes), (window, lanes), (1, lanes))
    from_magnitudes, from_counts, from_raws, from_random = (
        measured[1].start, counted[1].start, counted[2].start, measured[1].end,
    )  # fmt: skip
    from_x, bound, top, above = width * lanes, 1 << width, width + 1, drop + window
    first, second = Stream(bits_in(measured)), Stream(bits_in(counted))
    magnitudes, counts, elements = (Signal(intbv(0)[bits:]) for bits in (first.width, second.width, from_x))
    last = Signal(intbv(0)[y.width :]) if beside else elements
    whole, noise = Signal(intbv(0)[from_x:]), Signal(intbv(0)[lanes * max(1, random_bits) :])
    inputs: Instances
    stages = (
        next_stage(domain, x, magnitudes, first),
        next_stage(domain, first, counts, second),
        next_stage(domain, second, last, y),
    )

    @always_comb
    def measure() -> None:
        magnitude = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            magnitude[:] = x.payload[bits_of(lane, width)].signed()
            if x.payload[lane * width + sign]:
                magnitude[:] = -magnitude
            whole.next[bits_of(lane, width)] = magnitude[width:]

    if random_bits:

        @always_comb
        def draw() -> None:
            for lane in range(lanes):
                noise.next[bits_of(lane, random_bits)] = x.payload[from_x + lane * 16 + 16 : from_x + lane * 16 + spare]

        @always_comb
        def connect() -> None:
            magnitudes.next = concat(noise, whole, x.payload[from_x:])

        @always_comb
        def count() -> None:
            total = intbv(0)[top:]
            for lane in range(lanes):
                total[:] = first.payload[bits_of(lane, width, from_magnitudes)]
                counts.next[from_raws + lane] = total >= raw_from
                total[:] = total + first.payload[bits_of(lane, random_bits, from_random)]
                counts.next[bits_of(lane, width)] = first.payload[bits_of(lane, width)]
                counts.next[bits_of(lane, window, from_counts)] = total[above:drop]

        inputs = draw, connect, count

    else:

        @always_comb
        def connect_all() -> None:
            magnitudes.next = concat(whole, x.payload[from_x:])

        @always_comb
        def count_all() -> None:
            total = intbv(0)[top:]
            for lane in range(lanes):
                total[:] = first.payload[bits_of(lane, width, from_magnitudes)]
                counts.next[from_raws + lane] = total >= raw_from
                total[:] = total + half
                counts.next[bits_of(lane, width)] = first.payload[bits_of(lane, width)]
                counts.next[bits_of(lane, window, from_counts)] = total[above:drop]

        inputs = connect_all, count_all

    @always_comb
    def choose() -> None:
        element = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            element[:] = second.payload[bits_of(lane, window, from_counts)]
            if second.payload[lane * width + sign]:
                element[:] = -element
            element[:] = element << drop
            if second.payload[from_raws + lane]:
                element[:] = second.payload[bits_of(lane, width)].signed()
            elements.next[bits_of(lane, width)] = element[width:]

    if not beside:
        return stages, measure, inputs, choose

    @always_comb
    def set_beside() -> None:
        last.next = concat(second.payload[from_x:], elements)

    return stages, measure, inputs, choose, set_beside
