"""The control process of the backward circuit: its two states, and the controls that the data path takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from myhdl import Signal, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import (
    WIDE_PRODUCT_LATENCY,
    add_lanes,
    delay_vector,
    multiply_constant,
    signed_lanes,
    split_lanes,
    split_word,
    started,
)
from hdl.engine.arithmetic.requantise import requantise_lanes
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.norm.bundles import Beat, LineWrite, StateSteps
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
from hdl.engine.norm.sums import MEAN_LATENCY, channel_sums, mean_bits, mean_lanes
from hdl.fixed import Fixed
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.streams import counter


@block
def control_process(
    domain: ClockReset,
    beat: Beat,
    correlation: Bits,
    dx: Bits,
    written: LineWrite,
    *,
    shape: BackwardShape,
    contents: Mapping[str, Sequence[int]],
) -> Instances:
    """Sums s n and dx over each frame, advances v and u, and writes their controls into the table.

    Ports:
        beat: in, all of it but ``group``.
        correlation: in, as of `error_path`, `SHAPED_AT` + 2 cycles after a beat is accepted.
        dx: in, ``lanes`` codes of ``shape.numbers.dx``, `DX_AT` cycles after it.
        written: out, `TABLE_AT` cycles after a group's last beat: ``lanes`` codes of ``shape.numbers.control_v`` and
            above them ``lanes`` of ``shape.numbers.control_u``.
    """
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    v_width, u_width = numbers.shaped.width + numbers.normal.width, numbers.dx.width
    v_values, u_values = signed_lanes(lanes, v_width), signed_lanes(lanes, u_width)
    v_sums, u_sums = (signed_lanes(lanes, width) for width in control_sum_widths(shape))
    ready = Signal(bool(0)) if shape.multiplied else None
    begin = [] if ready is None else started(domain, ready)
    early, first, last, complete, same = (Signal(bool(0)) for _ in range(5))
    place = Signal(intbv(0)[address_width(groups) :])
    counting = counter(domain, complete, place, count=groups)
    write_state = Signal(bool(0))
    write_place = Signal(intbv(0)[len(place) :])
    controls_v = Signal(intbv(0)[lanes * numbers.control_v.width :])
    controls_u = Signal(intbv(0)[lanes * numbers.control_u.width :])
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
        channel_sums(domain, early, first, last, v_values, v_sums, complete, groups=groups),
        channel_sums(domain, early, first, last, u_values, u_sums, same, groups=groups),
    ]
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

    return sums, timing, begin, v_path, u_path, counting, out


@block
def control_state(
    clk: Clock,
    sums: Sequence[Bits],
    steps: StateSteps,
    controls: Bits,
    ready: Bit | None,
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
