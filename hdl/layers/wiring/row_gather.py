"""A map put together of rows that parts of a layer have made, one part's after the other's::

    x0 ─▶ RowGather ─▶ y = (x0, x1, …) along the rows
    x1 ──╯

Rows that come before their turn wait in the FIFO that every sink has.  No value changes.  The inverse of
`hdl.layers.wiring.row_deal` where parts have no row in common, and like that one without a way back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import numpy as np
from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.tables import look_up, signal_for
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State
from hdl.layers.pointwise.elementwise import OfRows
from hdl.memory import address_width
from hdl.signals import Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import m2s_pipe
from hdl.streams.fork_join import side_by_side
from hdl.tensor import Kind, Port, Tensor


@dataclass(frozen=True, kw_only=True)
class RowGather(OfRows):
    """Sinks ``x0``, ``x1``, … of so many rows each; source ``y``, in the same format.

    One of the sinks moves in step with the pipeline, the others' rows may have come a longer way through the network.
    Costs a register a bit of a beat, two counters and a multiplexer.  Raises `ShapeError` for rows that are not those
    of the map."""

    # of each part
    rows: tuple[int, ...] = (1,)
    # the sink that moves in step, if y does
    in_step: int = 0
    kind: Kind = Kind.ACTIVATION
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rows or min(self.rows) < 1 or sum(self.rows) != self.height:
            raise ShapeError(
                f"{type(self).__name__}: parts of {self.rows} rows are no map of {self.height} rows",
                "give each part one row at least, and as many together as the map has",
            )
        if not 0 <= self.in_step < len(self.rows):
            raise ShapeError(f"{type(self).__name__}: there is no part {self.in_step} among {len(self.rows)}")
        if self.kind.per_batch:
            raise ShapeError(f"{type(self).__name__}: what is of kind {self.kind.value} comes once a batch, in no rows")

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first row of each part, and the number of all."""
        return tuple(accumulate(self.rows, initial=0))

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x0, x1, …"""
        kinds = [self.kind if part == self.in_step else Kind.STASH for part in range(len(self.rows))]
        return tuple(
            Port(f"x{part}", Tensor((count, self.width, self.channels), self.x_fixed, kinds[part]), self.lanes)
            for part, count in enumerate(self.rows)
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.shape, self.x_fixed, self.kind), self.lanes),)

    def frame_share(self, port: str) -> tuple[Fraction, Fraction] | None:
        """Of a part its rows' share."""
        if port == "y":
            return None
        part = int(port[1:])
        return Fraction(self.firsts[part], self.height), Fraction(self.firsts[part + 1], self.height)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All rows of the parts before, and what comes before in the one whose turn it is."""
        del source
        row, passed = self.width * self.channels, -(-elements // self.lanes) * self.lanes
        return {
            f"x{part}": min(max(0, passed - first * row), count * row)
            for part, (first, count) in enumerate(zip(self.firsts, self.rows, strict=False))
        }

    # ---- meaning

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The rows of all."""
        del state
        return {"y": np.concatenate([inputs[port.name] for port in self.sinks], axis=1)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The rows of all."""
        del state
        return {"y": np.concatenate([inputs[port.name] for port in self.sinks], axis=1)}

    # ---- hardware

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `gather_rows`."""
        del images
        return gather_rows(domain, [streams[port.name] for port in self.sinks], streams["y"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Two and three parts, one alone, halos of a row at either side of one that moves in step; two pixels a beat,
        and a row."""
        return (
            cls(height=5, width=3, channels=4, lanes=2, rows=(2, 3)),
            cls(height=5, width=4, channels=3, lanes=6, rows=(2, 3)),
            cls(height=3, width=2, channels=2, lanes=2, rows=(1, 1, 1), kind=Kind.STASH, x_fixed=Fixed(12, 4)),
            cls(height=2, width=1, channels=1, rows=(2,)),
            cls(height=6, width=2, channels=3, rows=(1, 4, 1), in_step=1, kind=Kind.ERROR),
            cls(height=4, width=3, channels=2, lanes=6, rows=(1, 2, 1), in_step=1, kind=Kind.ERROR),
        )


@block
def gather_rows(domain: ClockReset, xs: Sequence[Stream], y: Stream, *, cfg: RowGather) -> Instances:
    """The beats of each part's rows in turn.

    Ports:
        xs: in, streams of ``cfg.lanes`` codes of ``cfg.x_fixed``; the one whose turn it is has the ready of a register.
        y: out, stream as wide, 1 cycle later, from registers.
    """
    count, width = len(xs), y.width
    if count == 1:
        return m2s_pipe(domain, xs[0], y)
    lasts = tuple(rows * cfg.row_beats - 1 for rows in cfg.rows)
    final = count - 1
    valid, payload = side_by_side([x.valid for x in xs]), side_by_side([x.payload for x in xs])
    part, beat = Signal(intbv(0)[address_width(count) :]), Signal(intbv(0)[address_width(max(lasts) + 1) :])
    offered, last = Signal(bool(0)), signal_for(lasts)
    whole = Stream(width)
    parts = (
        m2s_pipe(domain, whole, y),
        look_up(part, last, table=lasts),
        [_gathered(xs[i], whole, part, i) for i in range(count)],
    )

    @always_comb
    def choose() -> None:
        offered.next = False
        whole.payload.next = 0
        for i in range(count):
            if part == i:
                offered.next = valid[i]
                whole.payload.next = payload[bits_of(i, width)]

    @always_comb
    def handshake() -> None:
        whole.valid.next = offered

    @always(domain.clk.posedge)
    def move() -> None:
        if offered and whole.ready:
            if beat != last:
                beat.next = beat + 1
            else:
                beat.next = 0
                if part == final:
                    part.next = 0
                else:
                    part.next = part + 1
        if domain.rst:
            beat.next = 0
            part.next = 0

    return parts, choose, handshake, move


@block
def _gathered(x: Stream, y: Stream, part: Bits, index: int) -> Instances:
    """Ready in its turn."""

    @always_comb
    def out() -> None:
        x.ready.next = y.ready and part == index

    return out
