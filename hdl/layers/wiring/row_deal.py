"""The rows of a map dealt out to parts of a layer, each of which sees some neighbouring rows::

    x ─▶ RowDeal ─▶ y0 = x[starts[0]:ends[0]]
               ╰──▶ y1 = x[starts[1]:ends[1]]

A row of the *halo*, which the windows of two parts read, goes to both; one that no window reads goes nowhere.  No value
changes.  There is no way back: parts are made of a training graph (`dagtrain.passes.split_rows`), in which an error
engine in parts gets a halo of errors as a forward engine gets one of activations, so that each row's error is one sum,
rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from myhdl import Signal, always, always_comb, block, intbv

from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State
from hdl.layers.pointwise.elementwise import OfMap, OfRows
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, m2s_pipe
from hdl.streams.fork_join import row_of
from hdl.tensor import Kind, Port, Tensor


@dataclass(frozen=True, kw_only=True)
class RowDeal(OfRows, OfMap):
    """Sink ``x``; sources ``y0``, ``y1``, …, the rows from ``starts[i]`` to before ``ends[i]``, in the format of x.

    Eager: no part waits for a beat of the halo that another one has not taken.  Costs a register a bit of a beat, two
    counters, and two comparisons and two flip-flops a part.  Raises `ShapeError` for rows out of order."""

    # first row of each part, and the row behind its last; both ascend
    starts: tuple[int, ...] = (0,)
    ends: tuple[int, ...] = (1,)
    kind: Kind = Kind.ACTIVATION
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges = list(zip(self.starts, self.ends, strict=False))
        ascending = list(self.starts) == sorted(self.starts) and list(self.ends) == sorted(self.ends)
        if (
            not ranges
            or len(self.starts) != len(self.ends)
            or not ascending
            or any(not 0 <= first < end <= self.height for first, end in ranges)
        ):
            raise ShapeError(
                f"{type(self).__name__}: parts from rows {self.starts} to before {self.ends} do not ascend within "
                f"{self.height} rows",
                "give each part one row at least, and both ends in their order",
            )
        if self.kind.per_batch:
            raise ShapeError(f"{type(self).__name__}: a tensor of kind {self.kind.value} comes once a batch, not dealt")

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """First row and the row behind the last, of each part."""
        return tuple(zip(self.starts, self.ends, strict=True))

    @property
    def sources(self) -> tuple[Port, ...]:
        """y0, y1, …"""
        return tuple(
            Port(f"y{part}", Tensor((end - first, self.width, self.channels), self.x_fixed, self.kind), self.lanes)
            for part, (first, end) in enumerate(self.ranges)
        )

    def frame_share(self, port: str) -> tuple[Fraction, Fraction] | None:
        """Of a part its rows' share."""
        if port == "x":
            return None
        first, end = self.ranges[int(port[1:])]
        return Fraction(first, self.height), Fraction(end, self.height)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All rows that come before."""
        before = self.starts[int(source[1:])] * self.width * self.channels
        return {"x": before + -(-elements // self.lanes) * self.lanes}

    # ---- meaning

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The rows of each."""
        del state
        return {f"y{part}": inputs["x"][:, first:end] for part, (first, end) in enumerate(self.ranges)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The rows of each."""
        del state
        return {f"y{part}": np.array(inputs["x"][:, first:end]) for part, (first, end) in enumerate(self.ranges)}

    # ---- hardware

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `deal_rows`."""
        del images
        return deal_rows(domain, streams["x"], [streams[port.name] for port in self.sources], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Halos of two rows and of none, rows that nobody reads, a part alone, parts that see nearly all; two pixels a
        beat, and a row."""
        return (
            cls(height=6, width=3, channels=4, lanes=2, starts=(0, 2), ends=(4, 6)),
            cls(height=5, width=4, channels=3, lanes=6, starts=(0, 2), ends=(3, 5)),
            cls(height=3, width=2, channels=2, lanes=2, starts=(1,), ends=(2,), kind=Kind.STASH),
            cls(height=4, width=1, channels=2, lanes=2, starts=(0, 1), ends=(3, 4), x_fixed=Fixed(12, 4)),
            cls(height=2, width=1, channels=1, starts=(0, 0), ends=(1, 2), x_fixed=Fixed(1, 0, signed=False)),
            cls(height=7, width=2, channels=3, starts=(1, 3, 4), ends=(3, 5, 6), kind=Kind.ERROR),
            cls(height=4, width=3, channels=2, lanes=6, starts=(0, 1, 2), ends=(2, 3, 4), kind=Kind.ERROR),
        )


@block
def deal_rows(domain: ClockReset, x: Stream, ys: Sequence[Stream], *, cfg: RowDeal) -> Instances:
    """A fork whose outputs take some rows of a frame each.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        ys: out, streams as wide, 1 cycle later; valid from registers through a gate, payload from registers.
    """
    count, last_beat, last_row = len(ys), cfg.row_beats - 1, cfg.height - 1
    held = Stream(x.width)
    beat, row = (Signal(intbv(0)[address_width(size) :]) for size in (last_beat + 1, cfg.height))
    ends_row, fire, taken = (Signal(bool(0)) for _ in range(3))
    chosen = [Signal(bool(first == 0)) for first in cfg.starts]
    wanted, ready, done = row_of(chosen), row_of([y.ready for y in ys]), Signal(intbv(0)[count:])
    parts = (
        m2s_pipe(domain, x, held),
        counter(domain, fire, beat, count=last_beat + 1),
        counter(domain, ends_row, row, count=last_row + 1),
        [
            within_rows(domain, ends_row, row, chosen[i], first=cfg.starts[i], last=cfg.ends[i] - 1, rows=cfg.height)
            for i in range(count)
        ],
        [_row_output(held, ys[i], chosen[i], done, i) for i in range(count)],
    )

    @always_comb
    def accept() -> None:
        taken.next = ((done | ready) & wanted) == wanted

    @always_comb
    def handshake() -> None:
        held.ready.next = taken
        fire.next = held.valid and taken
        ends_row.next = held.valid and taken and beat == last_beat

    @always(domain.clk.posedge)
    def step() -> None:
        if held.valid:
            if taken:
                done.next = 0
            else:
                done.next = done | (ready & wanted)
        if domain.rst:
            done.next = 0

    return parts, accept, handshake, step


@block
def within_rows(
    domain: ClockReset, ends_row: Bit, row: Bits, inside: Bit, *, first: int, last: int, rows: int
) -> Instances:
    """Whether a row lies between two ones, both included; costs two comparisons and a flip-flop.

    Ports:
        ends_row: in, 1 bit: the row ends with this cycle.
        row: in, an index below ``rows``.
        inside: out, 1 bit, from a register.
    """
    at_start, before_first = first == 0, (first - 1) % rows

    @always(domain.clk.posedge)
    def step() -> None:
        if ends_row:
            if row == before_first:
                inside.next = True
            elif row == last:
                inside.next = False
        if domain.rst:
            inside.next = at_start

    return step


@block
def _row_output(x: Stream, y: Stream, chosen: Bit, done: Bits, index: int) -> Instances:
    """The beats of a part that it has not taken yet."""

    @always_comb
    def out() -> None:
        y.valid.next = x.valid and chosen and not done[index]
        y.payload.next = x.payload

    return out
