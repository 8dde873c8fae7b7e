"""The table between what happens once a frame and the data path: a line a group, for each frame of lag."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.norm.bundles import Beat, LineWrite
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bits, ClockReset, Instances


@block
def line_table(
    domain: ClockReset,
    beat: Beat,
    line: Bits,
    written: LineWrite,
    *,
    groups: int,
    banks: int,
    contents: Sequence[int] | None,
) -> Instances:
    """What the data path needs of the statistics, a line a group, for each of ``banks`` frames.

    Ports:
        beat: in, all of it but ``first_pixel``.
        line: out, of any width, 2 cycles after a beat is accepted.
        written: in, all of it but ``done``; groups in order, frames in order.
    """
    depth, last_group = groups * banks, groups - 1
    last_base = depth - groups
    base, write_base = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    read_at, write_at = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    store = simple_dual_port(
        domain.clk,
        written.enable,
        write_at,
        written.line,
        beat.fire,
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
        read_at.next = base + beat.group
        write_at.next = write_base + written.group

    @always(domain.clk.posedge)
    def turn() -> None:
        if beat.fire and beat.last_pixel and beat.group == last_group:
            if base == last_base:
                base.next = 0
            else:
                base.next = base + groups
        if written.enable and written.group == last_group:
            if write_base == last_base:
                write_base.next = 0
            else:
                write_base.next = write_base + groups
        if domain.rst:
            base.next = 0
            write_base.next = 0

    return store, address, turn
