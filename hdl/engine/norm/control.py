"""The control process of the backward circuit: its two states, and the controls that the data path takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from myhdl import Signal, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import (
    WIDE_PRODUCT_LATENCY,
    add_lanes,
    delay_vector,
    join_lanes,
    multiply_constant,
    signed_lanes,
    split_lanes,
    split_word,
    started,
)
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import requantise_lanes
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.norm.bundles import Beat, FrameSums, LineWrite, StateSteps
from hdl.engine.norm.numbers import Mean
from hdl.engine.norm.shapes import (
    CONTROL_SUMS_AT,
    DX_AT,
    SHAPED_AT,
    STATE_AT,
    TABLE_AT,
    BackwardShape,
    control_sum_widths,
)
from hdl.engine.norm.sums import MEAN_LATENCY, channel_sums, mean_bits, mean_lanes, part_sums
from hdl.engine.weights.sections import MemoryAccess, accessed_dual_port
from hdl.fixed import Fixed
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter, queue, width_adapter


@block
def control_process(
    domain: ClockReset,
    beat: Beat,
    correlation: Bits,
    dx: Bits,
    written: LineWrite,
    may: Bit | None,
    *,
    shape: BackwardShape,
    contents: Mapping[str, Sequence[int]],
    access: Mapping[str, MemoryAccess] | None = None,
) -> Instances:
    """Sums s n and dx over each frame, advances v and u, and writes their controls into the table.

    Ports:
        beat: in, all of it but ``group``.
        correlation: in, as of `error_path`, `SHAPED_AT` + 2 cycles after a beat is accepted.
        dx: in, ``lanes`` codes of ``shape.numbers.dx``, `DX_AT` cycles after it.
        written: out, `TABLE_AT` cycles after a group's last beat, or as much later as it waits: ``lanes`` codes of
            ``shape.numbers.control_v`` and above them as many of ``shape.numbers.control_u``; lanes and groups are
            those of ``shape.slow``.
        may: out, 1 bit, from registers: there is a place for a group's sums.  None where none wait.
        access: in and out, of v and u; or None.
    """
    ways = access or {}
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.slow.groups
    v_width, u_width = numbers.shaped.width + numbers.normal.width, numbers.dx.width
    v_values, u_values = signed_lanes(lanes, v_width), signed_lanes(lanes, u_width)
    v_sums, u_sums = (signed_lanes(shape.slow.lanes, width) for width in control_sum_widths(shape))
    whole = None if may is None else frame_sums(shape)
    ready = Signal(bool(0)) if shape.multiplied else None
    begin = [] if ready is None else started(domain, ready)
    early, first, last, complete, same = (Signal(bool(0)) for _ in range(5))
    place = Signal(intbv(0)[address_width(groups) :])
    counting = counter(domain, complete, place, count=groups)
    write_state = Signal(bool(0))
    write_place = Signal(intbv(0)[len(place) :])
    controls_v = Signal(intbv(0)[len(v_sums) * numbers.control_v.width :])
    controls_u = Signal(intbv(0)[len(u_sums) * numbers.control_u.width :])
    last_group = groups - 1
    values_at = CONTROL_SUMS_AT - 1
    correlation_at = SHAPED_AT + 2
    sums = [
        split_word(
            domain.clk, correlation, v_values, width=v_width, signed=True, base=0, cycles=values_at - correlation_at
        ),
        split_word(domain.clk, dx, u_values, width=u_width, signed=True, base=0, cycles=values_at - DX_AT),
        delay_vector(domain.clk, beat.fire, early, cycles=values_at - 2),
        delay_vector(domain.clk, beat.first_pixel, first, cycles=values_at - 2),
        delay_vector(domain.clk, beat.last_pixel, last, cycles=values_at - 2),
        channel_sums(
            domain,
            early,
            first,
            last,
            v_values,
            whole.v if whole else v_sums,
            whole.complete if whole else complete,
            groups=shape.groups,
        ),
        channel_sums(domain, early, first, last, u_values, whole.u if whole else u_sums, same, groups=shape.groups),
    ]
    wait = [] if whole is None else waiting_sums(domain, beat, whole, v_sums, u_sums, complete, may, shape=shape)
    timing = [
        delay_vector(domain.clk, complete, write_state, cycles=STATE_AT - CONTROL_SUMS_AT),
        delay_vector(domain.clk, place, write_place, cycles=STATE_AT - CONTROL_SUMS_AT),
        delay_vector(domain.clk, write_state, written.enable, cycles=TABLE_AT - STATE_AT),
        delay_vector(domain.clk, write_place, written.group, cycles=TABLE_AT - STATE_AT),
    ]
    steps = StateSteps(complete, place, write_state, write_place)
    v_path = control_state(
        domain.clk,
        v_sums,
        steps,
        controls_v,
        ready,
        ways.get("v"),
        mean=numbers.mean_v,
        gain=numbers.gain_v,
        state=numbers.state_v,
        control=numbers.control_v,
        groups=groups,
        contents=contents.get("v"),
        public="v",
    )
    u_path = control_state(
        domain.clk,
        u_sums,
        steps,
        controls_u,
        ready,
        ways.get("u"),
        mean=numbers.mean_u,
        gain=numbers.gain_u,
        state=numbers.state_u,
        control=numbers.control_u,
        groups=groups,
        contents=contents.get("u"),
        public="u",
    )

    @always_comb
    def out() -> None:
        written.line.next = concat(controls_u, controls_v)
        written.done.next = written.enable and written.group == last_group

    return sums, wait, timing, begin, v_path, u_path, counting, out


def frame_sums(shape: BackwardShape) -> FrameSums:
    """Of all lanes."""
    v_width, u_width = control_sum_widths(shape)
    return FrameSums(signed_lanes(shape.lanes, v_width), signed_lanes(shape.lanes, u_width), Signal(bool(0)))


@block
def waiting_sums(
    domain: ClockReset,
    beat: Beat,
    whole: FrameSums,
    v_sums: Sequence[Bits],
    u_sums: Sequence[Bits],
    complete: Bit,
    may: Bit,
    *,
    shape: BackwardShape,
) -> Instances:
    """Sums of all lanes wait in a queue, from which those of some lanes come a cycle.

    Ports:
        beat: in; takes ``fire`` and ``last_pixel``.
        whole: in, all of it.
        v_sums, u_sums: out, signed signals of ``shape.slow.lanes`` lanes, combinational.
        complete: out, 1 bit, with them: they are there.
        may: out, 1 bit, from registers: there is a place in the queue for what a beat accepted now ends.
    """
    lanes, chosen, widths = shape.lanes, shape.slow.lanes, control_sum_widths(shape)
    v_width, u_width = widths
    base = chosen * v_width
    low, high = Signal(intbv(0)[lanes * v_width :]), Signal(intbv(0)[lanes * u_width :])
    made, sums, parts = (Stream(lanes * sum(widths)) for _ in range(3))
    few = Stream(chosen * sum(widths))
    reserve = Signal(bool(0))
    join_v, join_u = join_lanes(whole.v, low), join_lanes(whole.u, high)
    hold = queue(domain, made, sums, depth=shape.control_depth)
    places = result_places(domain, reserve, sums, may, places=shape.control_depth)
    part = part_sums(sums, parts, lanes=lanes, chosen=chosen, widths=widths)
    adapt = width_adapter(domain, parts, few, element_bits=few.width)
    summed = whole.complete

    @always_comb
    def reserve_sums() -> None:
        reserve.next = beat.fire and beat.last_pixel

    @always_comb
    def give() -> None:
        made.valid.next = summed
        made.payload.next = concat(high, low)

    @always_comb
    def take() -> None:
        complete.next = few.valid
        few.ready.next = True
        for lane in range(chosen):
            v_sums[lane].next = few.payload[bits_of(lane, v_width)].signed()
            u_sums[lane].next = few.payload[bits_of(lane, u_width, base)].signed()

    return join_v, join_u, hold, places, part, adapt, reserve_sums, give, take


@block
def control_state(
    clk: Clock,
    sums: Sequence[Bits],
    steps: StateSteps,
    controls: Bits,
    ready: Bit | None,
    access: MemoryAccess | None = None,
    *,
    mean: Mean,
    gain: Scalar,
    state: Fixed,
    control: Fixed,
    groups: int,
    contents: Sequence[int] | None,
    public: str,
) -> Instances:
    """``state += mean of sums``, at `STATE_AT`; ``controls = gain * state``, at `TABLE_AT`; both saturated.

    Ports:
        sums: in, signed signals of one width, as ``steps`` read, `CONTROL_SUMS_AT` cycles after a group's last beat.
        steps: in; they write `STATE_AT` cycles after it.
        controls: out, ``len(sums)`` codes of ``control``, `TABLE_AT` cycles after it.
        ready: in, as of `hdl.engine.arithmetic.lanes.multiply_constant`.
        access: in and out, a second way to the states; or None.

    Args:
        state, control: formats.
        public: name of the states' image.
    """
    lanes = len(sums)
    old, new = (Signal(intbv(0)[lanes * state.width :]) for _ in range(2))
    olds, news = signed_lanes(lanes, state.width), signed_lanes(lanes, state.width)
    mean_width = mean_bits(len(sums[0]), mean)
    means = signed_lanes(lanes, mean_width)
    totals = signed_lanes(lanes, max(mean_width, state.width) + 1)
    products = signed_lanes(lanes, gain.product_bits(state.width) + 1)
    if access is not None:
        store = accessed_dual_port(
            clk, steps.write, steps.write_place, new, steps.read, steps.place, old, access,
            depth=groups, contents=contents, public=public,
        )  # fmt: skip
    else:
        store = simple_dual_port(
            clk,
            steps.write,
            steps.write_place,
            new,
            steps.read,
            steps.place,
            old,
            depth=groups,
            width=len(old),
            contents=contents,
            output_register=True,
            image=public,
        )
    arithmetic = [
        mean_lanes(clk, sums, means, mean=mean, ready=ready),
        # two cycles of the memory
        split_word(clk, old, olds, width=state.width, signed=True, base=0, cycles=MEAN_LATENCY - 2),
        add_lanes(clk, olds, means, totals),
        requantise_lanes(clk, totals, new, shift=0, target=state),
        split_lanes(clk, new, news, width=state.width),
        multiply_constant(clk, news, products, factor=gain.mantissa, cycles=WIDE_PRODUCT_LATENCY, ready=ready),
        requantise_lanes(clk, products, controls, shift=gain.shift, target=control),
    ]
    return store, arithmetic
