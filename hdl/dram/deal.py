"""A stream dealt out over several memory channels, and collected again::

    x ─▶ Deal ─▶ ys0 ─▶ store ─▶ xs0 ─▶ Collect ─▶ y
             ╰─▶ ys1 ─▶ store ─▶ xs1 ─╯

``turn`` beats go to part 0, the next ones to part 1, and so on; after the last part it is part 0's turn again.
Collected in the same turns, all beats are where they were.  Where beats of ``x`` and of ``y`` hold unlike numbers of
elements, turns are of as many elements: `elements_a_turn`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import collect, deal
from hdl.unit import Unit


def elements_a_turn(x_lanes: int, y_lanes: int) -> int:
    """The fewest elements that are whole beats of so many of them on either side."""
    return math.lcm(x_lanes, y_lanes)


@dataclass(frozen=True, kw_only=True)
class _InTurns(Unit):
    """What both ends share."""

    # bits of a beat
    payload_bits: int
    parts: int
    # beats that go to one part before it is the next one's turn
    turn: int = 1

    def __post_init__(self) -> None:
        if self.parts < 2 or self.turn < 1:
            raise ValueError(f"turns of {self.turn} beats for {self.parts} parts: at least 1 beat, 2 parts")


@dataclass(frozen=True, kw_only=True)
class Deal(_InTurns):
    """``x`` dealt out over ``ys0`` …"""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": self.payload_bits, **{f"ys{part}": self.payload_bits for part in range(self.parts)}}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        ys = [streams[f"ys{part}"] for part in range(self.parts)]
        return deal(domain, streams["x"], ys, turn=self.turn)


@dataclass(frozen=True, kw_only=True)
class Collect(_InTurns):
    """``xs0`` … collected in ``y``."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {**{f"xs{part}": self.payload_bits for part in range(self.parts)}, "y": self.payload_bits}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        xs = [streams[f"xs{part}"] for part in range(self.parts)]
        return collect(domain, xs, streams["y"], turn=self.turn)
