"""Tags and codes of float32, and float32 of these: the stages by which `FloatCodec` becomes a circuit.

    elements ─▶ tags and shifts ─▶ codes  …  codes ─▶ the first 1 in steps of 8 and 4 ─▶ … of 2 and 1 ─▶ elements

Source: Li, Park et al., MICRO 2018, Algorithms 2 and 3: the compression and decompression blocks of Figures 9 and 10.
Magnitudes of 7 bits are the upper ones of 15, so one shifter serves both; what they count in is a constant beside
exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from myhdl import Signal, always_comb, block, intbv

from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.element_codec import TAG_BITS
from hdl.engine.codec.float_codec import EXPONENT_BIAS, LARGE_BITS, MANTISSA_BITS, SMALL_BITS, FloatCodec, Tag
from hdl.engine.codec.layouts import Packing, Stage, Unpacking
from hdl.engine.codec.stages import Fields, bits_in, fields, granule_bits, next_stage
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of

# of a float32, and of a place among the bits of a magnitude
EXPONENT_BITS, PLACE_BITS = 8, 4
# of a mantissa with its 1, below those of a magnitude
BELOW = MANTISSA_BITS + 1 - LARGE_BITS


def float_coder(bursts: Bursts, codec: FloatCodec) -> Sequence[Stage]:
    """From bursts to `Packing.gathered` of level 0; 2 cycles."""
    form = Packing(bursts)
    return (
        (partial(tag_floats, bursts=bursts, codec=codec), bits_in(_tagged(bursts))),
        (partial(shift_mantissas, form=form), bits_in(form.gathered(0))),
    )


def float_decoder(bursts: Bursts, codec: FloatCodec) -> Sequence[Stage]:
    """From `Unpacking.apart` to bursts; 2 cycles."""
    first, second = _aligned(bursts, 2), _aligned(bursts, PLACE_BITS)
    return (
        (partial(align_codes, form=Unpacking(bursts)), bits_in(first)),
        (partial(align_further, bursts=bursts), bits_in(second)),
        (partial(make_floats, bursts=bursts, codec=codec), bursts.burst_bits),
    )


def _steps_up(codec: FloatCodec) -> int:
    """Places by which the first bit of an 8-bit code lies below that of a 16-bit code, which is 1/2."""
    return codec.small_place - SMALL_BITS


def _tagged(bursts: Bursts) -> list[Fields]:
    """Elements, by how much mantissas are to be shifted, tags."""
    return fields((bursts.codec.width, bursts.lanes), (PLACE_BITS, bursts.lanes), (TAG_BITS, bursts.lanes))


def _aligned(bursts: Bursts, places: int) -> list[Fields]:
    """Elements, or a sign above a magnitude; the high so many bits of the zeros above its first 1; tags."""
    return fields((bursts.codec.width, bursts.lanes), (places, bursts.lanes), (TAG_BITS, bursts.lanes))


@block
def tag_floats(domain: ClockReset, x: Stream, y: Stream, *, bursts: Bursts, codec: FloatCodec) -> Instances:
    """Tags, by the exponents, and how far these lie below those of magnitudes without leading zeros; 1 cycle.

    Costs three comparisons and two adders of 4 bits a lane.

    Ports:
        x: in, stream of elements.
        y: out, stream of elements, shifts, tags, from registers.
    """
    width, lanes = codec.width, bursts.lanes
    _, shifts, tags = _tagged(bursts)
    shift_bits, from_shifts, from_tags = shifts.width, shifts.start, tags.start
    zero, small, large, raw = (int(tag) for tag in Tag)
    raw_from, large_from, small_from = EXPONENT_BIAS, codec.large_from, EXPONENT_BIAS - codec.bound_bits
    # exponents of magnitudes without leading zeros: of them and of an exponent the low bits say what is between
    turn, sum_bits = 1 << PLACE_BITS, PLACE_BITS + 1
    large_top = (EXPONENT_BIAS - 1) % turn + turn
    small_top = (EXPONENT_BIAS - 1 - _steps_up(codec)) % turn + turn
    low, high, low_end = MANTISSA_BITS, MANTISSA_BITS + EXPONENT_BITS, MANTISSA_BITS + PLACE_BITS
    exponent_bits = EXPONENT_BITS
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        element = intbv(0)[width:]
        exponent = intbv(0)[exponent_bits:]
        places = intbv(0)[shift_bits:]
        distance = intbv(0)[sum_bits + 1 :]
        tag = intbv(0)[2:]
        for lane in range(lanes):
            element[:] = x.payload[bits_of(lane, width)]
            exponent[:] = element[high:low]
            places[:] = element[low_end:low]
            distance[:] = small_top - places
            if exponent >= raw_from:
                tag[:] = raw
            elif exponent >= large_from:
                tag[:] = large
                distance[:] = large_top - places
            elif exponent >= small_from:
                tag[:] = small
            else:
                tag[:] = zero
            computed.next[bits_of(lane, width)] = element
            computed.next[bits_of(lane, shift_bits, from_shifts)] = distance[shift_bits:]
            computed.next[bits_of(lane, 2, from_tags)] = tag

    return stage, compute


@block
def shift_mantissas(domain: ClockReset, x: Stream, y: Stream, *, form: Packing) -> Instances:
    """Codes, and their granules; a shifter of 15 bits a lane, 1 cycle.

    Ports:
        x: in, stream of elements, shifts, tags.
        y: out, stream of ``form.gathered(0)``, from registers.
    """
    bursts = form.bursts
    width, lanes = bursts.codec.width, bursts.lanes
    _, shifts, tags = _tagged(bursts)
    shift_bits, from_shifts, from_tags = shifts.width, shifts.start, tags.start
    _, sizes, to_tags = (each.start for each in form.gathered(0))
    size_bits, magnitude_bits, small_bits = granule_bits(bursts, 1), LARGE_BITS, SMALL_BITS
    below, above, one, sign = BELOW, MANTISSA_BITS, LARGE_BITS - 1, width - 1
    unused = LARGE_BITS - SMALL_BITS
    small, large, raw = int(Tag.SMALL), int(Tag.LARGE), int(Tag.RAW)
    small_size, large_size, raw_size = bursts.granules[1:]
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        element = intbv(0)[width:]
        magnitude = intbv(0)[magnitude_bits:]
        code = intbv(0)[width:]
        size = intbv(0)[size_bits:]
        tag = intbv(0)[2:]
        for lane in range(lanes):
            element[:] = x.payload[bits_of(lane, width)]
            tag[:] = x.payload[bits_of(lane, 2, from_tags)]
            magnitude[:] = element[above:below]
            magnitude[one] = True
            for place in range(shift_bits):
                if x.payload[from_shifts + lane * shift_bits + place]:
                    magnitude[:] = magnitude >> (1 << place)
            code[:] = 0
            size[:] = 0
            if tag == raw:
                code[:] = element
                size[:] = raw_size
            elif tag == large:
                code[:] = magnitude
                code[magnitude_bits] = element[sign]
                size[:] = large_size
            elif tag == small:
                code[:] = magnitude[magnitude_bits:unused]
                code[small_bits] = element[sign]
                size[:] = small_size
            computed.next[bits_of(lane, width)] = code
            computed.next[bits_of(lane, size_bits, sizes)] = size
            computed.next[bits_of(lane, 2, to_tags)] = tag

    return stage, compute


@block
def align_codes(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking) -> Instances:
    """Signs and magnitudes, whose first 1 is in the upper 4 bits then, if there is any; 1 cycle.

    Ports:
        x: in, stream of ``form.apart``.
        y: out, stream of elements or magnitudes, the high bits of their places, tags, from registers.
    """
    bursts = form.bursts
    width, lanes, from_x = bursts.codec.width, bursts.lanes, form.apart[1].start
    _, places, tags = _aligned(bursts, 2)
    place_bits, from_places, from_tags = places.width, places.start, tags.start
    bits, small_bits, unused, sign = LARGE_BITS, SMALL_BITS, LARGE_BITS - SMALL_BITS, width - 1
    small, large, raw = int(Tag.SMALL), int(Tag.LARGE), int(Tag.RAW)
    half, quarter = bits - 8, bits - 4
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        code = intbv(0)[width:]
        magnitude = intbv(0)[bits:]
        place = intbv(0)[place_bits:]
        tag = intbv(0)[2:]
        for lane in range(lanes):
            code[:] = x.payload[bits_of(lane, width)]
            tag[:] = x.payload[bits_of(lane, 2, from_x)]
            magnitude[:] = 0
            if tag == large:
                magnitude[:] = code[bits:]
            elif tag == small:
                magnitude[bits:unused] = code[small_bits:]
            place[:] = 0
            if magnitude[bits:half] == 0:
                magnitude[:] = magnitude << 8
                place[1] = True
            if magnitude[bits:quarter] == 0:
                magnitude[:] = magnitude << 4
                place[0] = True
            if tag != raw:
                if tag == large:
                    code[sign] = code[bits]
                else:
                    code[sign] = code[small_bits]
                code[bits:] = magnitude
            computed.next[bits_of(lane, width)] = code
            computed.next[bits_of(lane, place_bits, from_places)] = place
            computed.next[bits_of(lane, 2, from_tags)] = tag

    return stage, compute


@block
def align_further(domain: ClockReset, x: Stream, y: Stream, *, bursts: Bursts) -> Instances:
    """Magnitudes whose first 1 is their top bit, if there is any; 1 cycle.

    Ports:
        x: in, stream of elements or magnitudes, the high bits of their places, tags.
        y: out, stream of the same with all bits of their places, from registers.
    """
    width, lanes = bursts.codec.width, bursts.lanes
    _, early, tags = _aligned(bursts, 2)
    _, places, tags_to = _aligned(bursts, PLACE_BITS)
    early_bits, from_early, from_tags, end = early.width, early.start, tags.start, x.width
    place_bits, from_places, to_tags, end_to = places.width, places.start, tags_to.start, y.width
    bits, raw, top, pair = LARGE_BITS, int(Tag.RAW), LARGE_BITS - 1, LARGE_BITS - 2
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        element = intbv(0)[width:]
        magnitude = intbv(0)[bits:]
        place = intbv(0)[place_bits:]
        for lane in range(lanes):
            element[:] = x.payload[bits_of(lane, width)]
            magnitude[:] = element[bits:]
            place[:] = x.payload[bits_of(lane, early_bits, from_early)]
            place[:] = place << 2
            if magnitude[bits:pair] == 0:
                magnitude[:] = magnitude << 2
                place[1] = True
            if not magnitude[top]:
                magnitude[:] = magnitude << 1
                place[0] = True
            if x.payload[bits_of(lane, 2, from_tags)] != raw:
                element[bits:] = magnitude
            computed.next[bits_of(lane, width)] = element
            computed.next[bits_of(lane, place_bits, from_places)] = place
        computed.next[end_to:to_tags] = x.payload[end:from_tags]

    return stage, compute


@block
def make_floats(domain: ClockReset, x: Stream, y: Stream, *, bursts: Bursts, codec: FloatCodec) -> Instances:
    """Elements of magnitudes without leading zeros; a subtraction from one of two constants a lane, no cycle.

    Ports:
        x: in, stream of elements or magnitudes, their places, tags.
        y: out, stream of elements, in the same cycle.
    """
    width, lanes = codec.width, bursts.lanes
    _, places, tags = _aligned(bursts, PLACE_BITS)
    place_bits, from_places, from_tags = places.width, places.start, tags.start
    zero, small, raw = int(Tag.ZERO), int(Tag.SMALL), int(Tag.RAW)
    large_top, small_top = EXPONENT_BIAS - 1, EXPONENT_BIAS - 1 - _steps_up(codec)
    bits, top, sign, low, exponent_bits = LARGE_BITS, LARGE_BITS - 1, width - 1, MANTISSA_BITS, EXPONENT_BITS
    below, high = BELOW, MANTISSA_BITS + EXPONENT_BITS

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready

    @always_comb
    def make() -> None:
        element = intbv(0)[width:]
        found = intbv(0)[width:]
        exponent = intbv(0)[exponent_bits:]
        place = intbv(0)[place_bits:]
        tag = intbv(0)[2:]
        for lane in range(lanes):
            element[:] = x.payload[bits_of(lane, width)]
            place[:] = x.payload[bits_of(lane, place_bits, from_places)]
            tag[:] = x.payload[bits_of(lane, 2, from_tags)]
            exponent[:] = large_top - place
            if tag == small:
                exponent[:] = small_top - place
            found[:] = 0
            if tag == raw:
                found[:] = element
            elif tag != zero and element[top]:
                found[sign] = element[sign]
                found[high:low] = exponent
                found[low:below] = element[top:]
            y.payload.next[bits_of(lane, width)] = found

    return connect, make
