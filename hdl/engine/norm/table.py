"""The table between what happens once a frame and the data path: a line a group, for each frame of lag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.memory import address_width, simple_dual_port


@block
def line_table(
    clk: Any,
    rst: Any,
    fire: Any,
    group: Any,
    last_pixel: Any,
    line: Any,
    write: Any,
    write_group: Any,
    write_line: Any,
    shape: Any,
    contents: Sequence[int] | None,
) -> Any:
    """What the data path needs of the statistics, for ``norm_lag + 1`` frames: ``line`` two cycles after ``fire``."""
    groups, banks = shape.groups, shape.recipe.norm_lag + 1
    depth, last_group = groups * banks, groups - 1
    last_base = depth - groups
    base, write_base = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    read_at, write_at = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    store = simple_dual_port(
        clk,
        write,
        write_at,
        write_line,
        fire,
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
        read_at.next = base + group
        write_at.next = write_base + write_group

    @always(clk.posedge)
    def turn() -> None:
        if fire and last_pixel and group == last_group:
            if base == last_base:
                base.next = 0
            else:
                base.next = base + groups
        if write and write_group == last_group:
            if write_base == last_base:
                write_base.next = 0
            else:
                write_base.next = write_base + groups
        if rst:
            base.next = 0
            write_base.next = 0

    return store, address, turn
