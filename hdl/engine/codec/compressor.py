"""Bursts of elements to words: INCEPTIONN's compression engine; `hdl.engine.codec.bursts` says which bits.

    bursts ─▶ tags and codes, by the codec ─▶ codes side by side, a level of the tree a stage ─▶ aligned ─▶ words

Source: Li, Park et al., MICRO 2018, Figure 9: compression blocks, a binary tree of shifters, and the alignment unit.

The stages that make codes are the codec's (`hdl.engine.codec.coders`): four for integers, two for float32, for which a
tensor's last burst may end three words.
"""

from __future__ import annotations

from collections.abc import Mapping

from myhdl import Signal, always, always_comb, block, concat, intbv, modbv

from hdl.engine.codec.bursts import ESCAPE, Bursts
from hdl.engine.codec.coders import coder_of
from hdl.engine.codec.layouts import Packing
from hdl.engine.codec.stages import BurstUnit, bits_in, next_stage
from hdl.memory import address_width
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter, pipe


class Compressor(BurstUnit):
    """Bursts at ``x``, words at ``y``: one a cycle each, but a cycle more where a burst ends two words."""

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See `compressor`."""
        return compressor(domain, streams["x"], streams["y"], bursts=self.bursts)


@block
def compressor(domain: ClockReset, x: Stream, y: Stream, *, bursts: Bursts) -> Instances:
    """Tensor after tensor, each from the beginning of a word on.

    Costs about as many registers as a burst has bits for each stage: four, one a level of the tree, and seven.  Moves a
    burst and a word a cycle; a burst that ends two words takes two cycles.

    Ports:
        x: in, stream of ``bursts.lanes`` signed elements, zeros behind the last one of a tensor.
        y: out, stream of words as wide as ``x``; valid, payload and ready from registers.
    """
    form, coder = Packing(bursts), coder_of(bursts)
    coded = [x, *(Stream(bits) for _, bits in coder)]
    nodes = [coded[-1], *(Stream(bits_in(form.gathered(level + 1))) for level in range(form.bursts.levels))]
    placed = [Stream(bits_in(form.placed(places))) for places in (0, form.first_places, form.place_bits)]
    joined, whole = Stream(bits_in(form.joined)), Stream(bursts.burst_bits)
    return (
        [stage(domain, coded[at], coded[at + 1]) for at, (stage, _) in enumerate(coder)],
        [gather(domain, nodes[level], nodes[level + 1], form=form, level=level) for level in range(form.bursts.levels)],
        join_tags(domain, nodes[form.bursts.levels], joined, form=form),
        place_burst(domain, joined, placed[0], form=form),
        shift_up(domain, placed[0], placed[1], form=form, low=0, high=form.first_places),
        shift_up(domain, placed[1], placed[2], form=form, low=form.first_places, high=form.place_bits),
        merge_words(domain, placed[2], whole, form=form),
        pipe(domain, whole, y),
    )


@block
def gather(domain: ClockReset, x: Stream, y: Stream, *, form: Packing, level: int) -> Instances:
    """A level of the tree: the codes of each right neighbour behind those of its left one; 1 cycle.

    Ports:
        x: in, stream of ``form.gathered(level)``.
        y: out, stream of ``form.gathered(level + 1)``, from registers.
    """
    codes, sizes, tags = form.gathered(level)[:3]
    _, sums, tags_to = form.gathered(level + 1)[:3]
    pairs, granule = sums.count, form.bursts.granule
    width, size_bits, sum_bits = codes.width, sizes.width, sums.width
    from_sizes, from_sums = sizes.start, sums.start
    rest, end, rest_to, end_to = tags.start, x.width, tags_to.start, y.width
    double = 2 * width
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        code = intbv(0)[double:]
        total = intbv(0)[sum_bits:]
        for pair in range(pairs):
            code[:] = x.payload[bits_of(2 * pair + 1, width)]
            for place in range(size_bits):
                if x.payload[from_sizes + 2 * pair * size_bits + place]:
                    code[:] = code << (granule << place)
            code[:] = code | x.payload[bits_of(2 * pair, width)]
            total[:] = x.payload[bits_of(2 * pair, size_bits, from_sizes)]
            total[:] = total + x.payload[bits_of(2 * pair + 1, size_bits, from_sizes)]
            computed.next[bits_of(pair, double)] = code
            computed.next[bits_of(pair, sum_bits, from_sums)] = total
        computed.next[end_to:rest_to] = x.payload[end:rest]

    return stage, compute


@block
def join_tags(domain: ClockReset, x: Stream, y: Stream, *, form: Packing) -> Instances:
    """A burst, and its granules; 1 cycle.

    Ports:
        x: in, stream of ``form.gathered(form.bursts.levels)``.
        y: out, stream of ``form.joined``, from registers.
    """
    bursts = form.bursts
    codes, sizes, tags = form.gathered(form.bursts.levels)[:3]
    size_low, tags_low, escape_at = sizes.start, tags.start, tags.end
    burst_bits, codes_bits, granule, tag_bits = form.burst_bits, codes.width, bursts.granule, bursts.tag_bits
    longest, tag_granules, length_bits = bursts.most_granules, bursts.tag_granules, form.joined[1].width
    coded_bits, mark, end = burst_bits - tag_bits, ESCAPE, y.width
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    if not bursts.codec.has_mark:

        @always_comb
        def compute_coded() -> None:
            length = intbv(0)[length_bits:]
            length[:] = x.payload[tags_low:size_low]
            length[:] = length + tag_granules
            computed.next = concat(length, x.payload[coded_bits:], x.payload[escape_at:tags_low])

        return stage, compute_coded

    @always_comb
    def compute() -> None:
        value = intbv(0)[burst_bits:]
        length = intbv(0)[length_bits:]
        if x.payload[escape_at]:
            value[:] = x.payload[codes_bits:]
            value[:] = value << granule
            value[:] = value | mark
            length[:] = longest
        else:
            value[:] = x.payload[coded_bits:]
            value[:] = value << tag_bits
            value[:] = value | x.payload[escape_at:tags_low]
            length[:] = x.payload[tags_low:size_low]
            length[:] = length + tag_granules
        computed.next[burst_bits:] = value
        computed.next[end:burst_bits] = length

    return stage, compute


@block
def place_burst(domain: ClockReset, x: Stream, y: Stream, *, form: Packing) -> Instances:
    """The granule of a word where a burst begins, and how many words it ends; 1 cycle.

    Ports:
        x: in, stream of ``form.joined``.
        y: out, stream of ``form.placed(0)``, from registers.
    """
    bursts = form.bursts
    lengths = form.joined[1]
    length_low, length_end = lengths.start, lengths.end
    word, final, place_bits = bursts.word_granules, bursts.count - 1, form.place_bits
    total_bits = (2 * word).bit_length()
    place = Signal(intbv(0)[place_bits:])
    total, over = (Signal(modbv(0)[total_bits:]) for _ in range(2))
    fire, last, ends, twice, thrice = (Signal(bool(0)) for _ in range(5))
    burst = Signal(intbv(0)[address_width(bursts.count) :])
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)
    count = counter(domain, fire, burst, count=bursts.count)

    @always_comb
    def handshake() -> None:
        fire.next = x.valid and x.ready
        last.next = burst == final

    @always_comb
    def add() -> None:
        total.next = x.payload[length_end:length_low] + place

    @always_comb
    def wrap() -> None:
        over.next = total - word

    outputs: Instances
    if bursts.codec.has_mark:

        @always_comb
        def judge() -> None:
            ends.next = last or total >= word
            twice.next = total == 2 * word or (last and total > word)

        @always_comb
        def out() -> None:
            computed.next = concat(twice, ends, place, x.payload[length_low:])

        outputs = judge, out

    else:

        @always_comb
        def judge_long() -> None:
            ends.next = last or total >= word
            twice.next = total >= 2 * word or (last and total > word)
            thrice.next = last and total > 2 * word

        @always_comb
        def out_long() -> None:
            computed.next = concat(thrice, twice, ends, place, x.payload[length_low:])

        outputs = judge_long, out_long

    @always(domain.clk.posedge)
    def move() -> None:
        if fire:
            if last or total == 2 * word:
                place.next = 0
            elif total >= word:
                place.next = over[place_bits:]
            else:
                place.next = total[place_bits:]
        if domain.rst:
            place.next = 0

    return stage, count, handshake, add, wrap, outputs, move


@block
def shift_up(domain: ClockReset, x: Stream, y: Stream, *, form: Packing, low: int, high: int) -> Instances:
    """A burst further up by what bits ``low`` to ``high`` of its place say; a multiplexer a bit for each, 1 cycle.

    Ports:
        x: in, stream of ``form.placed(low)``.
        y: out, stream of ``form.placed(high)``, from registers.
    """
    shifted, before, granule = form.placed(high)[0].width, form.placed(low)[0].width, form.bursts.granule
    places = high - low
    end, end_to, bit = x.width, y.width, before + low
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        value = intbv(0)[shifted:]
        value[:] = x.payload[before:]
        for place in range(places):
            if x.payload[bit + place]:
                value[:] = value << (granule << (low + place))
        computed.next[shifted:] = value
        computed.next[end_to:shifted] = x.payload[end:before]

    return stage, compute


@block
def merge_words(domain: ClockReset, x: Stream, y: Stream, *, form: Packing) -> Instances:
    """The alignment unit: words as they get full, and the last one of a tensor.  Costs as many registers as a burst may
    have bits behind the first word that it ends; no cycle.

    Ports:
        x: in, stream of ``form.placed(form.place_bits)``; its ready passes through a gate.
        y: out, stream of words, in the same cycle.
    """
    word, high = y.width, form.placed(form.place_bits)[0].width
    ends_at, twice_at, end = form.placed(form.place_bits)[2].start, form.placed(form.place_bits)[3].start, x.width
    rest, last_at = high - word, end - 1
    held = Signal(intbv(0)[rest:])
    second, third = (Signal(bool(0)) for _ in range(2))

    @always_comb
    def handshake() -> None:
        x.ready.next = y.ready and not second
        y.valid.next = second or (x.valid and x.payload[ends_at])

    if rest > word:

        @always_comb
        def out_long() -> None:
            if second:
                y.payload.next = held[word:]
            else:
                y.payload.next = held[word:] | x.payload[word:]

        @always(domain.clk.posedge)
        def step_long() -> None:
            if y.ready and second:
                held.next = held[rest:word]
                second.next = third
                third.next = False
            elif y.ready and x.valid:
                if x.payload[ends_at]:
                    held.next = x.payload[high:word]
                    second.next = x.payload[twice_at]
                    third.next = x.payload[last_at]
                else:
                    held.next = held | x.payload[word:]
            if domain.rst:
                held.next = 0
                second.next = False
                third.next = False

        return handshake, out_long, step_long

    @always_comb
    def out() -> None:
        if second:
            y.payload.next = held
        else:
            y.payload.next = held | x.payload[word:]

    @always(domain.clk.posedge)
    def step() -> None:
        if y.ready and second:
            held.next = 0
            second.next = False
        elif y.ready and x.valid:
            if x.payload[ends_at]:
                held.next = x.payload[high:word]
                second.next = x.payload[twice_at]
            else:
                held.next = held | x.payload[word:]
        if domain.rst:
            held.next = 0
            second.next = False

    return handshake, out, step
