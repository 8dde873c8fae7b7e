"""Bursts of elements to words: INCEPTIONN's compression engine for integers; `hdl.engine.codec.bursts` says which bits.

    bursts ─▶ magnitudes ─▶ tags ─▶ sizes ─▶ codes side by side, a level of the tree a stage ─▶ aligned ─▶ words

Source: Li, Park et al., MICRO 2018, Figure 9: compression blocks, a binary tree of shifters, and the alignment unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, concat, intbv, modbv

from hdl.engine.codec.bursts import ESCAPE, Bursts
from hdl.engine.codec.integer_codec import TAG_BITS, IntegerTag
from hdl.engine.codec.stages import BurstUnit, Fields, bits_in, fields, granule_bits, next_stage, tag_sums
from hdl.memory import address_width
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter, pipe

# lanes whose sizes are added in one stage
GROUP = 4


class Compressor(BurstUnit):
    """Bursts at ``x``, words at ``y``: one a cycle each, but a cycle more where a burst ends two words."""

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See `compressor`."""
        return compressor(domain, streams["x"], streams["y"], bursts=self.bursts)


@dataclass(frozen=True)
class Packing:
    """What lies where in the payloads between stages."""

    bursts: Bursts

    @property
    def groups(self) -> int:
        """Whose sizes are added first."""
        return max(1, self.bursts.lanes // GROUP)

    @property
    def measured(self) -> list[Fields]:
        """Elements, magnitudes of what is not dropped."""
        codec, lanes = self.bursts.codec, self.bursts.lanes
        return fields((codec.width, lanes), (codec.width - codec.drop, lanes))

    @property
    def tagged(self) -> list[Fields]:
        """Elements, small codes, tags."""
        codec, lanes = self.bursts.codec, self.bursts.lanes
        return fields((codec.width, lanes), (codec.small_bits, lanes), (TAG_BITS, lanes))

    @property
    def sized(self) -> list[Fields]:
        """As `tagged`, then granules by group."""
        group = self.bursts.lanes // self.groups
        return [*self.tagged, Fields(self.tagged[-1].end, granule_bits(self.bursts, group), self.groups)]

    @property
    def judged(self) -> list[Fields]:
        """As `tagged`, then whether all elements are sent as they are."""
        return [*self.tagged, Fields(self.tagged[-1].end, 1)]

    def gathered(self, level: int) -> list[Fields]:
        """Codes side by side, granules of each, tags, whether elements are sent as they are."""
        nodes, width = self.bursts.lanes >> level, self.bursts.codec.width << level
        return fields(
            (width, nodes), (granule_bits(self.bursts, 1 << level), nodes), (TAG_BITS, self.bursts.lanes), (1, 1)
        )

    @property
    def burst_bits(self) -> int:
        """Of the longest burst."""
        return self.bursts.most_granules * self.bursts.granule

    @property
    def joined(self) -> list[Fields]:
        """A burst, its granules."""
        return fields((self.burst_bits, 1), (self.bursts.most_granules.bit_length(), 1))

    @property
    def place_bits(self) -> int:
        """Of a granule of a word."""
        return address_width(self.bursts.word_granules)

    @property
    def first_places(self) -> int:
        """Bits of a place by which the first stage shifts, of `place_bits`."""
        return (self.place_bits + 1) // 2

    def placed(self, places: int) -> list[Fields]:
        """A burst that was shifted by the low so many bits of its place; the place, whether it ends a word, or two."""
        most = min((1 << places) - 1, self.bursts.word_granules - 1) * self.bursts.granule
        return fields((self.burst_bits + most, 1), (self.place_bits, 1), (1, 1), (1, 1))


@block
def compressor(domain: ClockReset, x: Stream, y: Stream, *, bursts: Bursts) -> Instances:
    """Tensor after tensor, each from the beginning of a word on.

    Costs about as many registers as a burst has bits for each stage: four, one a level of the tree, and seven.  Moves a
    burst and a word a cycle; a burst that ends two words takes two cycles.

    Ports:
        x: in, stream of ``bursts.lanes`` signed elements, zeros behind the last one of a tensor.
        y: out, stream of words as wide as ``x``; valid, payload and ready from registers.
    """
    form = Packing(bursts)
    measured, tagged, sized = (Stream(bits_in(each)) for each in (form.measured, form.tagged, form.sized))
    judged, chosen = Stream(bits_in(form.judged)), Stream(bits_in(form.gathered(0)))
    nodes = [chosen, *(Stream(bits_in(form.gathered(level + 1))) for level in range(form.bursts.levels))]
    placed = [Stream(bits_in(form.placed(places))) for places in (0, form.first_places, form.place_bits)]
    joined, whole = Stream(bits_in(form.joined)), Stream(bursts.burst_bits)
    return (
        measure(domain, x, measured, form=form),
        tag_elements(domain, measured, tagged, form=form),
        add_sizes(domain, tagged, sized, form=form),
        judge_size(domain, sized, judged, form=form),
        choose_codes(judged, chosen, form=form),
        [gather(domain, nodes[level], nodes[level + 1], form=form, level=level) for level in range(form.bursts.levels)],
        join_tags(domain, nodes[form.bursts.levels], joined, form=form),
        place_burst(domain, joined, placed[0], form=form),
        shift_up(domain, placed[0], placed[1], form=form, low=0, high=form.first_places),
        shift_up(domain, placed[1], placed[2], form=form, low=form.first_places, high=form.place_bits),
        merge_words(domain, placed[2], whole, form=form),
        pipe(domain, whole, y),
    )


@block
def measure(domain: ClockReset, x: Stream, y: Stream, *, form: Packing) -> Instances:
    """Magnitudes beside their elements.  Costs an adder a lane; 1 cycle.

    Ports:
        x: in, stream of elements.
        y: out, stream of ``form.measured``, from registers.
    """
    width, drop, lanes = form.bursts.codec.width, form.bursts.codec.drop, form.bursts.lanes
    kept, start, sign = width - drop, form.measured[1].start, width - 1
    bound = 1 << kept
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        code = intbv(0)[width:]
        magnitude = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            code[:] = x.payload[bits_of(lane, width)]
            # where anything is dropped, it is not looked at
            magnitude[:] = code[width:drop].signed()
            if code[sign]:
                magnitude[:] = -magnitude
            computed.next[bits_of(lane, width)] = code
            computed.next[bits_of(lane, kept, start)] = magnitude[kept:]

    return stage, compute


@block
def tag_elements(domain: ClockReset, x: Stream, y: Stream, *, form: Packing) -> Instances:
    """Tags and small codes; 1 cycle.

    Ports:
        x: in, stream of ``form.measured``.
        y: out, stream of ``form.tagged``, from registers.
    """
    codec, lanes = form.bursts.codec, form.bursts.lanes
    width, window, sign, dropped = codec.width, codec.window, codec.width - 1, (1 << codec.drop) - 1
    kept, from_magnitudes = form.measured[1].width, form.measured[1].start
    small_bits, from_smalls, from_tags = codec.small_bits, form.tagged[1].start, form.tagged[2].start
    greatest = (1 << window) - 1
    zero, small, raw = (int(tag) for tag in IntegerTag)
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        element = intbv(0)[width:]
        magnitude = intbv(0)[kept:]
        code = intbv(0)[small_bits:]
        tag = intbv(0)[2:]
        for lane in range(lanes):
            element[:] = x.payload[bits_of(lane, width)]
            magnitude[:] = x.payload[bits_of(lane, kept, from_magnitudes)]
            if magnitude > greatest or (element & dropped) != 0:
                tag[:] = raw
            elif magnitude == 0:
                tag[:] = zero
            else:
                tag[:] = small
            code[:] = magnitude[window:]
            code[window] = element[sign]
            computed.next[bits_of(lane, width)] = element
            computed.next[bits_of(lane, small_bits, from_smalls)] = code
            computed.next[bits_of(lane, 2, from_tags)] = tag

    return stage, compute


@block
def add_sizes(domain: ClockReset, x: Stream, y: Stream, *, form: Packing) -> Instances:
    """Granules that the codes of a few lanes take; 1 cycle.

    Ports:
        x: in, stream of ``form.tagged``.
        y: out, stream of ``form.sized``, from registers.
    """
    lanes, from_tags = form.bursts.lanes // form.groups, form.tagged[2].start
    sums = Signal(intbv(0)[form.sized[3].width * form.groups :])
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)
    adds = tag_sums(x.payload, sums, bursts=form.bursts, start=from_tags, every=lanes, lanes=lanes)

    @always_comb
    def compute() -> None:
        computed.next = concat(sums, x.payload)

    return stage, adds, compute


@block
def judge_size(domain: ClockReset, x: Stream, y: Stream, *, form: Packing) -> Instances:
    """Whether codes and tags would take more than the elements and a mark; 1 cycle.

    Ports:
        x: in, stream of ``form.sized``.
        y: out, stream of ``form.judged``, from registers.
    """
    groups, sums, same = form.groups, form.sized[3], form.judged[3].start
    bits, start = sums.width, sums.start
    most = form.bursts.most_granules - form.bursts.tag_granules
    total_bits = granule_bits(form.bursts, form.bursts.lanes)
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        total = intbv(0)[total_bits:]
        for group in range(groups):
            total[:] = total + x.payload[bits_of(group, bits, start)]
        computed.next[same:] = x.payload[same:]
        computed.next[same] = total > most

    return stage, compute


@block
def choose_codes(x: Stream, y: Stream, *, form: Packing) -> Instances:
    """The code of each element, and its granules.  Costs a multiplexer a bit; no cycle.

    Ports:
        x: in, stream of ``form.judged``.
        y: out, stream of ``form.gathered(0)``, in the same cycle.
    """
    codec, lanes = form.bursts.codec, form.bursts.lanes
    width, small_bits, bits = codec.width, codec.small_bits, granule_bits(form.bursts, 1)
    from_smalls, from_tags, escape_at = (each.start for each in form.judged[1:])
    from_sizes, to_tags, to_escape = (each.start for each in form.gathered(0)[1:])
    tags_end, tags_to = escape_at, to_escape
    small, raw = form.bursts.granules[IntegerTag.SMALL], form.bursts.granules[IntegerTag.RAW]

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready

    @always_comb
    def choose() -> None:
        code = intbv(0)[width:]
        size = intbv(0)[bits:]
        for lane in range(lanes):
            code[:] = 0
            size[:] = 0
            if x.payload[escape_at] or x.payload[from_tags + 2 * lane + 1]:
                code[:] = x.payload[bits_of(lane, width)]
                size[:] = raw
            elif x.payload[from_tags + 2 * lane]:
                code[:] = x.payload[bits_of(lane, small_bits, from_smalls)]
                size[:] = small
            y.payload.next[bits_of(lane, width)] = code
            y.payload.next[bits_of(lane, bits, from_sizes)] = size
        y.payload.next[tags_to:to_tags] = x.payload[tags_end:from_tags]
        y.payload.next[to_escape] = x.payload[escape_at]

    return connect, choose


@block
def gather(domain: ClockReset, x: Stream, y: Stream, *, form: Packing, level: int) -> Instances:
    """A level of the tree: the codes of each right neighbour behind those of its left one; 1 cycle.

    Ports:
        x: in, stream of ``form.gathered(level)``.
        y: out, stream of ``form.gathered(level + 1)``, from registers.
    """
    codes, sizes, tags, _ = form.gathered(level)
    _, sums, tags_to, _ = form.gathered(level + 1)
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
    codes, sizes, tags, _ = form.gathered(form.bursts.levels)
    size_low, tags_low, escape_at = sizes.start, tags.start, tags.end
    burst_bits, codes_bits, granule, tag_bits = form.burst_bits, codes.width, bursts.granule, bursts.tag_bits
    longest, tag_granules, length_bits = bursts.most_granules, bursts.tag_granules, form.joined[1].width
    coded_bits, mark, end = burst_bits - tag_bits, ESCAPE, y.width
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

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
    fire, last, ends, twice = (Signal(bool(0)) for _ in range(4))
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

    @always_comb
    def judge() -> None:
        ends.next = last or total >= word
        twice.next = total == 2 * word or (last and total > word)

    @always_comb
    def out() -> None:
        computed.next = concat(twice, ends, place, x.payload[length_low:])

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

    return stage, count, handshake, add, wrap, judge, out, move


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
    """The alignment unit: words as they get full, and the last one of a tensor.  Costs a word of registers; no cycle.

    Ports:
        x: in, stream of ``form.placed(form.place_bits)``; its ready passes through a gate.
        y: out, stream of words, in the same cycle.
    """
    word, high = y.width, form.placed(form.place_bits)[0].width
    ends_at, twice_at = (each.start for each in form.placed(form.place_bits)[2:])
    held = Signal(intbv(0)[word:])
    second = Signal(bool(0))

    @always_comb
    def handshake() -> None:
        x.ready.next = y.ready and not second
        y.valid.next = second or (x.valid and x.payload[ends_at])

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
