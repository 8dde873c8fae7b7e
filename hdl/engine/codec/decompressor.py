"""Words to bursts of elements: INCEPTIONN's decompression engine (`hdl.engine.codec.bursts`).

    words ─▶ sizes by granule ─▶ ends of bursts ─▶ burst buffer ─▶ tags and codes ─▶ codes apart, a level of the tree
    a stage ─▶ elements

Source: Li, Park et al., MICRO 2018, Figure 10: burst buffer, tag decoder, decompression blocks.

Where a burst ends follows from its tags, and there begins the next one: a loop that has to turn once a cycle.  So ends
are found ahead, for a burst that would begin at each granule of a word, and the loop only chooses one.  Where tags go
on in the next word its part of the sizes is added in the loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from myhdl import Signal, always, always_comb, block, concat, intbv, modbv

from hdl.engine.codec.bursts import ESCAPE, Bursts
from hdl.engine.codec.coders import decoder_of
from hdl.engine.codec.element_codec import TAG_BITS
from hdl.engine.codec.layouts import Unpacking
from hdl.engine.codec.stages import BurstUnit, bits_in, granule_bits, next_stage, tag_sums
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter, m2s_pipe, pipe
from hdl.streams.fork_join import row_of


class Decompressor(BurstUnit):
    """Words at ``x``, bursts at ``y``: one a cycle each, but a cycle more at the end of a tensor."""

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See `decompressor`."""
        return decompressor(domain, streams["x"], streams["y"], bursts=self.bursts)


@block
def decompressor(domain: ClockReset, x: Stream, y: Stream, *, bursts: Bursts) -> Instances:
    """Tensor after tensor, each from the beginning of a word on.

    Costs about as many registers as a burst has bits for each stage: two words with the ends of all bursts, one stage a
    level of the tree, and seven.  Moves a burst and a word a cycle; a tensor takes up to a cycle more.  Words that
    no compressor made give some elements.

    Ports:
        x: in, stream of words.
        y: out, stream of ``bursts.lanes`` signed elements, as wide as ``x``; valid, payload and ready from registers.
    """
    form = Unpacking(bursts)
    measured, sized, ended, buffered, split = (
        Stream(bits_in(each)) for each in (form.measured, form.sized, form.ended, form.buffered, form.split)
    )
    nodes = [Stream(bits_in(form.parted(level))) for level in range(form.bursts.levels, 0, -1)]
    nodes.append(Stream(bits_in(form.apart)))
    decoder = decoder_of(bursts)
    decoded = [nodes[-1], *(Stream(bits) for _, bits in decoder)]
    return (
        measure_granules(domain, x, measured, form=form),
        add_tags(domain, measured, sized, form=form),
        find_ends(domain, sized, ended, form=form),
        buffer_bursts(domain, ended, buffered, form=form),
        shift_down(domain, buffered, split, form=form),
        first_sizes(domain, split, nodes[0], form=form),
        [
            part(domain, nodes[at], nodes[at + 1], form=form, level=form.bursts.levels - at)
            for at in range(form.bursts.levels)
        ],
        [stage(domain, decoded[at], decoded[at + 1]) for at, (stage, _) in enumerate(decoder)],
        pipe(domain, decoded[-1], y),
    )


@block
def measure_granules(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking) -> Instances:
    """Of each granule, what its tags would make of it; 1 cycle.

    Ports:
        x: in, stream of words.
        y: out, stream of ``form.measured``, from registers.
    """
    sizes = form.measured[1]
    count, granule, tags, mark = sizes.count, form.bursts.granule, form.granule_tags, ESCAPE
    sums, marked = Signal(intbv(0)[sizes.width * count :]), Signal(intbv(0)[count:])
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)
    adds = tag_sums(x.payload, sums, bursts=form.bursts, start=0, every=tags, lanes=tags)

    if not form.bursts.codec.has_mark:

        @always_comb
        def compute_sizes() -> None:
            computed.next = concat(sums, x.payload)

        return stage, adds, compute_sizes

    @always_comb
    def look() -> None:
        for place in range(count):
            marked.next[place] = x.payload[bits_of(place, granule)] & mark == mark

    @always_comb
    def compute() -> None:
        computed.next = concat(marked, sums, x.payload)

    return stage, adds, look, compute


@block
def add_tags(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking) -> Instances:
    """What codes would take whose tags begin at each granule; 1 cycle.

    Ports:
        x: in, stream of ``form.measured``.
        y: out, stream of ``form.sized``, from registers.
    """
    bursts, straddling = form.bursts, form.straddling
    sizes = form.measured[1]
    count, bits, word = sizes.count, sizes.width, bursts.burst_bits
    from_sizes, from_marks, sum_bits, ahead_bits = sizes.start, sizes.end, form.sized[1].width, form.sized[-1].width
    inside, marked = count - straddling, bursts.most_granules - bursts.tag_granules
    places, adders = count + straddling, []
    padded = total = Signal(intbv(0)[places * bits :])
    for level in range(bursts.tag_granules.bit_length() - 1):
        distance, width = 1 << level, len(total) // places
        places -= distance
        following = Signal(intbv(0)[places * granule_bits(bursts, form.granule_tags << level + 1) :])
        adders.append(add_following(total, following, width=width, distance=distance))
        total = following
    sums, ahead = Signal(intbv(0)[sum_bits * count :]), Signal(intbv(0)[ahead_bits * straddling :])
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def pad() -> None:
        # nothing is behind the last granule
        padded.next = x.payload[from_marks:from_sizes]

    @always_comb
    def look_ahead() -> None:
        size = intbv(0)[ahead_bits:]
        for place in range(straddling):
            size[:] = size + x.payload[bits_of(place, bits, from_sizes)]
            ahead.next[bits_of(place, ahead_bits)] = size

    if not bursts.codec.has_mark:

        @always_comb
        def compute_tags() -> None:
            computed.next = concat(ahead, total, x.payload[word:])

        return stage, adders, pad, look_ahead, compute_tags

    @always_comb
    def choose() -> None:
        for place in range(count):
            sums.next[bits_of(place, sum_bits)] = total[bits_of(place, sum_bits)]
            if x.payload[from_marks + place]:
                sums.next[bits_of(place, sum_bits)] = marked

    end = x.width
    first_alone = from_marks + inside

    @always_comb
    def compute() -> None:
        computed.next = concat(ahead, x.payload[end:first_alone], sums, x.payload[word:])

    return stage, adders, pad, choose, look_ahead, compute


@block
def add_following(terms: Bits, sums: Bits, *, width: int, distance: int) -> Instances:
    """To each field the one so many further up, as far as there is one.  Costs their adders; no cycle.

    Ports:
        terms: in, fields of ``width`` bits.
        sums: out, ``distance`` fields fewer, at most a bit wider, in the same cycle.
    """
    count = len(terms) // width - distance
    sum_bits = len(sums) // count

    @always_comb
    def add() -> None:
        total = intbv(0)[sum_bits:]
        for place in range(count):
            total[:] = terms[bits_of(place, width)]
            total[:] = total + terms[bits_of(place + distance, width)]
            sums.next[bits_of(place, sum_bits)] = total

    return add


@block
def find_ends(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking) -> Instances:
    """Where a burst from each granule on would end; 1 cycle.

    Ports:
        x: in, stream of ``form.sized``.
        y: out, stream of ``form.ended``, from registers.
    """
    sums = form.sized[1]
    count, rest, end, word = sums.count, sums.end, x.width, form.bursts.burst_bits
    followers = [Signal(intbv(0)[form.place_bits :]) for _ in range(count)]
    crossing, beyond = ([Signal(bool(0)) for _ in range(count)] for _ in range(2))
    ends = [
        find_end(x.payload, followers[place], crossing[place], beyond[place], form=form, place=place)
        for place in range(count)
    ]
    all_followers, all_crossing, all_beyond = (row_of(each) for each in (followers, crossing, beyond))
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def compute() -> None:
        computed.next = concat(x.payload[end:rest], all_beyond, all_crossing, all_followers, x.payload[word:])

    return stage, ends, compute


@block
def find_end(sizes: Bits, following: Bits, crosses: Bit, beyond: Bit, *, form: Unpacking, place: int) -> Instances:
    """Where a burst from one granule on ends; no cycle.

    Ports:
        sizes: in, the bits of ``form.sized``.
        following: out, ``form.place_bits`` bits: where the next burst begins, in this word or the next one.
        crosses: out, 1 bit: not in this word.
        beyond: out, 1 bit: this burst has bits in the next word.
    """
    sums, granules = form.sized[1], form.bursts.word_granules
    low, bits, total_bits = sums.start + place * sums.width, form.place_bits, form.behind_bits
    high = low + sums.width
    first = place + form.bursts.tag_granules
    # sizes from which on the next burst begins in the next word, and this one ends there
    least, least_beyond = max(0, granules - first), max(0, granules + 1 - first)
    behind, rest = (Signal(modbv(0)[total_bits:]) for _ in range(2))

    @always_comb
    def add() -> None:
        behind.next = sizes[high:low] + first

    @always_comb
    def wrap() -> None:
        rest.next = behind - granules

    if not least:
        # what begins so late ends in the next word, of any size
        @always_comb
        def end_late() -> None:
            crosses.next = sizes[low] or not sizes[low]
            beyond.next = sizes[high:low] != 0 or least_beyond == 0
            following.next = rest[bits:]

        return add, wrap, end_late

    @always_comb
    def judge() -> None:
        crosses.next = sizes[high:low] >= least
        beyond.next = sizes[high:low] >= least_beyond

    @always_comb
    def out() -> None:
        following.next = behind[bits:]
        if crosses:
            following.next = rest[bits:]

    return add, wrap, judge, out


@block
def buffer_bursts(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking) -> Instances:
    """The burst buffer: the word where a burst begins, beside the one that is offered; 2 cycles.

    Costs registers of a word with its ends and of a burst, and multiplexers.  Without marks a burst may reach a third
    word: one that begins at the last granule of a word and whose tags are all the last one.  That granule is dropped,
    and what is left is a burst behind a mark at the beginning of the next word.

    Ports:
        x: in, stream of ``form.ended``; its ready passes through what chooses an end.
        y: out, stream of ``form.buffered``, 2 cycles later, from registers.
    """
    bursts, ahead = form.bursts, form.ended[-1]
    held = Signal(intbv(0)[ahead.start :])
    place, following = (Signal(intbv(0)[form.place_bits :]) for _ in range(2))
    burst = Signal(intbv(0)[address_width(bursts.count) :])
    full, skip, crosses, beyond, last, can, fire, load = (Signal(bool(0)) for _ in range(8))
    word, final, kept = bursts.word_granules, bursts.count - 1, ahead.start
    computed = Stream(y.width)
    taken = Signal(intbv(0)[form.buffered[1].end :])
    stage = m2s_pipe(domain, computed, y)
    count = counter(domain, fire, burst, count=bursts.count)
    found = burst_end(held, place, x.payload, following, crosses, beyond, form=form)

    @always_comb
    def judge() -> None:
        skip.next = place == word
        last.next = burst == final

    @always_comb
    def accept() -> None:
        x.ready.next = load

    if not bursts.codec.has_mark:
        long, behind_mark = (Signal(bool(0)) for _ in range(2))
        _, followers, crossing, above = form.ended[:4]
        bits, from_followers, crossing_at, above_at = followers.width, followers.start, crossing.start, above.start
        ahead_bits, last_place = ahead.width, word - 1
        # of a burst from the last granule on whose tags are all the last one, by what of it each word knows
        own, others = 1 + bursts.granules[-1] * bursts.lanes // 2, bursts.granules[-1] * bursts.lanes // 2
        takes = take_burst(held, place, x.payload, taken, form=form)

        @always_comb
        def find_long() -> None:
            long.next = (
                full
                and x.valid
                and place == last_place
                and held[bits_of(last_place, bits, from_followers)] == own
                and x.payload[bits_of(0, ahead_bits, kept)] == others
            )

        @always_comb
        def offer_short() -> None:
            can.next = full and not skip and not long and (not beyond or x.valid)

        @always_comb
        def handshake_long() -> None:
            computed.valid.next = can
            computed.payload.next = concat(behind_mark, taken)
            fire.next = can and computed.ready
            load.next = not full or skip or long or (computed.ready and (crosses or last))

        @always(domain.clk.posedge)
        def fill_long() -> None:
            if load and x.valid:
                held.next = x.payload[kept:]
                if long:
                    # as long as a mark and its elements
                    held.next[bits_of(0, bits, from_followers)] = 1
                    held.next[crossing_at] = True
                    held.next[above_at] = True

        @always(domain.clk.posedge)
        def step_long() -> None:
            if load and x.valid:
                full.next = True
            elif skip or (computed.ready and (crosses or last) and not beyond):
                full.next = False
            if skip or long:
                place.next = 0
            elif fire:
                if not last:
                    place.next = following
                elif beyond:
                    place.next = word
                else:
                    place.next = 0
            if long:
                behind_mark.next = True
            elif fire:
                behind_mark.next = False
            if domain.rst:
                full.next = False
                place.next = 0
                behind_mark.next = False

        return stage, count, found, takes, judge, find_long, offer_short, handshake_long, accept, fill_long, step_long

    takes = take_burst(held, place, x.payload, computed.payload, form=form)

    @always_comb
    def offer() -> None:
        can.next = full and not skip and (not beyond or x.valid)

    @always_comb
    def handshake() -> None:
        computed.valid.next = can
        fire.next = can and computed.ready
        # while another word is waited for that changes nothing
        load.next = not full or skip or (computed.ready and (crosses or last))

    @always(domain.clk.posedge)
    def fill() -> None:
        if load and x.valid:
            held.next = x.payload[kept:]

    @always(domain.clk.posedge)
    def step() -> None:
        if load and x.valid:
            full.next = True
        elif skip or (computed.ready and (crosses or last) and not beyond):
            full.next = False
        if skip:
            place.next = 0
        elif fire:
            if not last:
                place.next = following
            elif beyond:
                place.next = word
            else:
                place.next = 0
        if domain.rst:
            full.next = False
            place.next = 0

    return stage, count, found, takes, judge, offer, handshake, accept, fill, step


@block
def burst_end(
    held: Bits, place: Bits, offered: Bits, following: Bits, crosses: Bit, beyond: Bit, *, form: Unpacking
) -> Instances:
    """Where a burst ends; no cycle.

    Ports:
        held: in, the first fields of ``form.ended``, all but the last ones.
        place: in, ``form.place_bits`` bits, where it begins.
        offered: in, the bits of ``form.ended`` of the next word.
        following: out, ``form.place_bits`` bits: where the next burst begins, in this word or the next one.
        crosses: out, 1 bit: not in this word.
        beyond: out, 1 bit: this burst has bits in the next word, which is to be waited for.
    """
    straddling, inside = form.straddling, form.bursts.word_granules - form.straddling
    _, followers, crossing, above = form.ended[:4]
    from_followers, from_crossing, from_above = (each.start for each in (followers, crossing, above))
    # where there are marks: whether the next word adds nothing
    from_alone, ahead = above.end, form.ended[-1]
    from_ahead = ahead.start
    bits, ahead_bits = followers.width, ahead.width
    chosen, late = Signal(intbv(0)[bits:]), Signal(modbv(0)[bits:])
    chosen_crossing, chosen_above = (Signal(intbv(0)[1:]) for _ in range(2))
    straddles = Signal(bool(0))
    choices = (
        choose_field(held, place, chosen, start=from_followers, count=followers.count),
        choose_field(held, place, chosen_crossing, start=from_crossing, count=followers.count),
        choose_field(held, place, chosen_above, start=from_above, count=followers.count),
    )

    @always_comb
    def judge() -> None:
        crosses.next = chosen_crossing[0]
        beyond.next = chosen_above[0]

    @always_comb
    def out() -> None:
        following.next = chosen
        if straddles:
            following.next = late

    if not form.bursts.codec.has_mark:

        @always_comb
        def look_one_ahead() -> None:
            straddles.next = place == inside
            late.next = held[bits_of(inside, bits, from_followers)] + offered[bits_of(0, ahead_bits, from_ahead)]

        return choices, judge, look_one_ahead, out

    @always_comb
    def look_ahead() -> None:
        late.next = 0
        straddles.next = False
        for index in range(straddling):
            if place == inside + index:
                straddles.next = not held[from_alone + index]
                late.next = (
                    held[bits_of(inside + index, bits, from_followers)]
                    + offered[bits_of(index, ahead_bits, from_ahead)]
                )

    return choices, judge, look_ahead, out


@block
def choose_field(values: Bits, place: Bits, chosen: Bits, *, start: int, count: int) -> Instances:
    """One of several fields: a tree of multiplexers, no cycle.

    Ports:
        values: in, any bits, among them ``count`` fields as wide as ``chosen`` from ``start`` on.
        place: in, which of them.
        chosen: out, any number of bits, in the same cycle.
    """
    width, places, end = len(chosen), address_width(count), start + count * len(chosen)
    rest = [*(Signal(intbv(0)[width << power :]) for power in range(places, 0, -1)), chosen]
    halves = [choose_half(rest[at], place, rest[at + 1], power=places - 1 - at) for at in range(places)]
    padded = rest[0]

    @always_comb
    def take() -> None:
        padded.next = values[end:start]

    return take, halves


@block
def choose_half(values: Bits, place: Bits, chosen: Bits, *, power: int) -> Instances:
    """The upper half where a bit of a place says so, else the lower one; no cycle.

    Ports:
        values: in, twice as wide as ``chosen``.
        place: in, more than ``power`` bits.
        chosen: out, any number of bits, in the same cycle.
    """
    width, both = len(chosen), len(values)

    @always_comb
    def choose() -> None:
        chosen.next = values[width:]
        if place[power]:
            chosen.next = values[both:width]

    return choose


@block
def take_burst(held: Bits, place: Bits, offered: Bits, y: Bits, *, form: Unpacking) -> Instances:
    """A burst shifted down by the high bits of its place, and the low ones; no cycle.

    Ports:
        held: in, the first fields of ``form.ended``, all but the last ones.
        place: in, ``form.place_bits`` bits, where it begins.
        offered: in, the bits of ``form.ended`` of the next word.
        y: out, the bits of ``form.buffered``.
    """
    word, both = form.bursts.burst_bits, 2 * form.bursts.burst_bits
    late, shifted, end, granule = form.late_places, form.buffered[0].width, form.buffered[1].end, form.bursts.granule
    early = address_width(form.bursts.word_granules) - late

    @always_comb
    def take() -> None:
        value = intbv(0)[both:]
        value[:] = concat(offered[word:], held[word:])
        for power in range(early):
            if place[late + power]:
                value[:] = value >> (granule << (late + power))
        y.next[shifted:] = value[shifted:]
        y.next[end:shifted] = place[late:]

    return take


@block
def shift_down(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking) -> Instances:
    """A burst to its tags and codes; 1 cycle.

    Ports:
        x: in, stream of ``form.buffered``.
        y: out, stream of ``form.split``, from registers.
    """
    bursts, (shifted, places) = form.bursts, form.buffered[:2]
    late, bits, from_places, granule = places.width, shifted.width, places.start, bursts.granule
    burst_end, tags_end, word, end = form.burst_bits, bursts.tag_bits, bursts.burst_bits, y.width
    marked_end = word + granule
    lanes, mark, raw, tag_bits = bursts.lanes, ESCAPE, bursts.codec.last_tag, TAG_BITS
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    if not bursts.codec.has_mark:
        mark_at = x.width - 1

        @always_comb
        def compute_long() -> None:
            value = intbv(0)[bits:]
            value[:] = x.payload[bits:]
            for power in range(late):
                if x.payload[from_places + power]:
                    value[:] = value >> (granule << power)
            if x.payload[mark_at]:
                computed.next[word:] = value[marked_end:granule]
                for lane in range(lanes):
                    computed.next[bits_of(lane, tag_bits, word)] = raw
            else:
                computed.next[word:] = value[burst_end:tags_end]
                computed.next[end:word] = value[tags_end:]

        return stage, compute_long

    @always_comb
    def compute() -> None:
        value = intbv(0)[bits:]
        value[:] = x.payload[bits:]
        for power in range(late):
            if x.payload[from_places + power]:
                value[:] = value >> (granule << power)
        if value[2:] == mark:
            computed.next[word:] = value[burst_end:granule]
            for lane in range(lanes):
                computed.next[bits_of(lane, tag_bits, word)] = raw
        else:
            computed.next[word:] = value[burst_end:tags_end]
            computed.next[end:word] = value[tags_end:]

    return stage, compute


@block
def first_sizes(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking) -> Instances:
    """The size of the lower half of all codes; 1 cycle.

    Ports:
        x: in, stream of ``form.split``.
        y: out, stream of ``form.parted(form.bursts.levels)``, from registers.
    """
    word, from_tags, end, half = form.bursts.burst_bits, form.split[1].start, form.split[1].end, form.bursts.lanes // 2
    size = Signal(intbv(0)[form.parted(form.bursts.levels)[1].width :])
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)
    adds = tag_sums(x.payload, size, bursts=form.bursts, start=from_tags, every=2 * half, lanes=half)

    @always_comb
    def compute() -> None:
        computed.next = concat(x.payload[end:from_tags], size, x.payload[word:])

    return stage, adds, compute


@block
def part(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking, level: int) -> Instances:
    """A level of the tree: codes of the upper half of each node beside those of the lower one; 1 cycle.

    Ports:
        x: in, stream of ``form.parted(level)``.
        y: out, stream of ``form.parted(level - 1)``, or of ``form.apart``, from registers.
    """
    codes, sizes, tags = form.parted(level)
    nodes, width, half, size_bits, from_sizes = codes.count, codes.width, codes.width // 2, sizes.width, sizes.start
    granule, from_tags, tags_end = form.bursts.granule, tags.start, tags.end
    halves = Signal(intbv(0)[form.bursts.burst_bits :])
    computed = Signal(intbv(0)[y.width :])
    stage = next_stage(domain, x, computed, y)

    @always_comb
    def separate() -> None:
        value = intbv(0)[width:]
        for node in range(nodes):
            value[:] = x.payload[bits_of(node, width)]
            halves.next[bits_of(2 * node, half)] = value[half:]
            for power in range(size_bits):
                if x.payload[from_sizes + node * size_bits + power]:
                    value[:] = value >> (granule << power)
            halves.next[bits_of(2 * node + 1, half)] = value[half:]

    if level == 1:

        @always_comb
        def compute() -> None:
            computed.next = concat(x.payload[tags_end:from_tags], halves)

        return stage, separate, compute

    below = Signal(intbv(0)[2 * nodes * form.parted(level - 1)[1].width :])
    lanes = form.bursts.lanes // (2 * nodes)
    adds = tag_sums(x.payload, below, bursts=form.bursts, start=from_tags, every=lanes, lanes=lanes // 2)

    @always_comb
    def compute_all() -> None:
        computed.next = concat(x.payload[tags_end:from_tags], below, halves)

    return stage, separate, adds, compute_all
