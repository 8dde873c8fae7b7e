"""Tags and codes of integers, and integers of these: the stages by which `IntegerCodec` becomes a circuit.

elements ─▶ magnitudes ─▶ tags ─▶ sizes ─▶ whether the burst is sent as it is ─▶ codes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from myhdl import Signal, always_comb, block, concat, intbv

from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.element_codec import TAG_BITS
from hdl.engine.codec.integer_codec import IntegerCodec, IntegerTag
from hdl.engine.codec.layouts import Packing, Stage, Unpacking
from hdl.engine.codec.stages import Fields, bits_in, fields, granule_bits, next_stage, tag_sums
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of

# lanes whose sizes are added in one stage
GROUP = 4


@dataclass(frozen=True)
class IntegerPacking(Packing):
    """As the base class, and before codes are known."""

    codec: IntegerCodec

    @property
    def groups(self) -> int:
        """Whose sizes are added first."""
        return max(1, self.bursts.lanes // GROUP)

    @property
    def measured(self) -> list[Fields]:
        """Elements, magnitudes of what is not dropped."""
        codec, lanes = self.codec, self.bursts.lanes
        return fields((codec.width, lanes), (codec.width - codec.drop, lanes))

    @property
    def tagged(self) -> list[Fields]:
        """Elements, small codes, tags."""
        codec, lanes = self.codec, self.bursts.lanes
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


def integer_coder(bursts: Bursts, codec: IntegerCodec) -> Sequence[Stage]:
    """From bursts to `Packing.gathered` of level 0; 4 cycles."""
    form = IntegerPacking(bursts, codec)
    return (
        (partial(measure, form=form), bits_in(form.measured)),
        (partial(tag_elements, form=form), bits_in(form.tagged)),
        (partial(add_sizes, form=form), bits_in(form.sized)),
        (partial(judge_size, form=form), bits_in(form.judged)),
        (partial(choose_codes, form=form), bits_in(form.gathered(0))),
    )


def integer_decoder(bursts: Bursts, codec: IntegerCodec) -> Sequence[Stage]:
    """From `Unpacking.apart` to bursts; no cycle."""
    return ((partial(decode_elements, form=Unpacking(bursts), codec=codec), bursts.burst_bits),)


@block
def measure(domain: ClockReset, x: Stream, y: Stream, *, form: IntegerPacking) -> Instances:
    """Magnitudes beside their elements.  Costs an adder a lane; 1 cycle.

    Ports:
        x: in, stream of elements.
        y: out, stream of ``form.measured``, from registers.
    """
    width, drop, lanes = form.codec.width, form.codec.drop, form.bursts.lanes
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
def tag_elements(domain: ClockReset, x: Stream, y: Stream, *, form: IntegerPacking) -> Instances:
    """Tags and small codes; 1 cycle.

    Ports:
        x: in, stream of ``form.measured``.
        y: out, stream of ``form.tagged``, from registers.
    """
    codec, lanes = form.codec, form.bursts.lanes
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
def add_sizes(domain: ClockReset, x: Stream, y: Stream, *, form: IntegerPacking) -> Instances:
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
def judge_size(domain: ClockReset, x: Stream, y: Stream, *, form: IntegerPacking) -> Instances:
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
def choose_codes(domain: ClockReset, x: Stream, y: Stream, *, form: IntegerPacking) -> Instances:
    """The code of each element, and its granules.  Costs a multiplexer a bit; no cycle.

    Ports:
        x: in, stream of ``form.judged``.
        y: out, stream of ``form.gathered(0)``, in the same cycle.
    """
    codec, lanes = form.codec, form.bursts.lanes
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
def decode_elements(domain: ClockReset, x: Stream, y: Stream, *, form: Unpacking, codec: IntegerCodec) -> Instances:
    """Elements of tags and codes; an adder a lane, no cycle.

    Ports:
        x: in, stream of ``form.apart``.
        y: out, stream of elements, in the same cycle.
    """
    lanes, from_tags = form.bursts.lanes, form.apart[1].start
    width, window, drop = codec.width, codec.window, codec.drop
    bound = 1 << width - 1

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready

    @always_comb
    def decode() -> None:
        code = intbv(0)[width:]
        element = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            code[:] = x.payload[bits_of(lane, width)]
            element[:] = 0
            if x.payload[from_tags + 2 * lane + 1]:
                element[:] = code.signed()
            elif x.payload[from_tags + 2 * lane]:
                element[:] = code[window:]
                if code[window]:
                    element[:] = -element
                element[:] = element << drop
            y.payload.next[bits_of(lane, width)] = element[width:]

    return connect, decode
