"""Signals that go together between the parts of the circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hdl.engine.weights.access import Batches, Begin
from hdl.engine.weights.sections import MemoryAccess
from hdl.signals import Bit, Bits


@dataclass(frozen=True)
class Beat:
    """The next beat: where in its frame it stands, and whether it is accepted."""

    # combinational: it is accepted at this edge
    fire: Bit
    # from a register, a number below ``groups``: which group of its pixel
    group: Bits
    # from registers: its pixel is the first, the last of the frame
    first_pixel: Bit
    last_pixel: Bit


@dataclass(frozen=True)
class BatchBeat(Beat):
    """A beat, and where in its batch it stands."""

    # from registers: its frame is the first, the last of the batch
    first_frame: Bit
    last_frame: Bit


@dataclass(frozen=True)
class ForwardRoom:
    """There is a place for what a beat makes; from registers."""

    y: Bit
    normal: Bit
    # in the first pixel of a frame
    inverse: Bit
    # in the last pixel of a frame
    sums: Bit


@dataclass(frozen=True)
class BackwardRoom:
    """There is a place for what a beat makes; from registers."""

    dx: Bit
    # in the last pixel of a batch
    g_gamma: Bit
    g_beta: Bit
    # in the last pixel of a frame; None where there always is
    control: Bit | None = None


@dataclass(frozen=True)
class LineWrite:
    """A line of the table, as it is written."""

    # at this edge
    enable: Bit
    # whose, `address_width` of ``groups`` bits; with `enable`
    group: Bits
    # with `enable`
    line: Bits
    # combinational: it is the last of its frame, with which the table is there
    done: Bit


@dataclass(frozen=True)
class FrameSums:
    """Sums over a frame, a number a lane each."""

    # of shaped error times normalised map, of dx
    v: Sequence[Bits]
    u: Sequence[Bits]
    # 1 bit: they are complete
    complete: Bit


@dataclass(frozen=True)
class StateSteps:
    """When states of a group are read and written."""

    # the state of group `place` is read at this edge
    read: Bit
    place: Bits
    # the state of group `write_place` is written at this edge
    write: Bit
    write_place: Bits


@dataclass(frozen=True)
class NormState:
    """State of a norm that is loaded and dumped."""

    begin: Begin
    batches: Batches
    # by names of images; of the table a frame, the oldest first
    memories: Mapping[str, MemoryAccess]


@dataclass(frozen=True)
class GradientSteps:
    """When gradients of a group are complete, and which random bits they are rounded with."""

    # combinational: the next beat is accepted at this edge; it is of the last pixel of its batch
    fire: Bit
    last: Bit
    # 1 cycle after such a beat, from registers: canonical indices of its elements, 32 bits each, and the number of its
    # batch, 32 bits
    index: Bits
    step: Bits
