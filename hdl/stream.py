"""The one interface between circuits.

Contract, for every stream in this project:

* ``fire = valid & ready``: a beat is transferred on each rising clock edge where both are high.
* ``valid`` never waits for ``ready``, and once high it stays high until ``fire``.
* ``payload`` is stable while ``valid & ~ready``.
* ``ready`` may depend on anything except, combinationally, on ``valid`` of the same stream.

The payload is one flat unsigned vector; a beat of ``n`` lanes of ``w`` bits holds lane 0 in the low bits.
A feature map flows in raster order (row, column), channels innermost, ``lanes`` channels a beat.
`hdl.streams.checker` watches this contract in every layer test, `hdl.analysis.same_cycle` finds what breaks its last
clause, or lets ``valid`` or ``payload`` follow their own ``ready`` within a cycle.
"""

from __future__ import annotations

from myhdl import Signal, intbv

from hdl.signals import Bit, Bits


class Stream:
    """``valid``, ``ready`` and a ``payload`` of ``width`` bits.  As a port ``x`` it becomes ``x_valid`` …"""

    def __init__(self, width: int) -> None:
        if width < 1:
            raise ValueError(f"a stream payload needs at least 1 bit, not {width}")
        self.valid: Bit = Signal(bool(0))
        self.ready: Bit = Signal(bool(0))
        self.payload: Bits = Signal(intbv(0)[width:])

    @property
    def width(self) -> int:
        """Payload width in bits."""
        return len(self.payload)


def bits_of(lane: int, width: int, start: int = 0) -> slice:
    """The bits of a lane, ``width`` each, in a vector whose lane 0 begins at bit ``start``, for reading and writing:
    ``y.payload.next[bits_of(lane, 8)] = x.payload[bits_of(lane, 8)]``; see `hdl.elaboration.lane_slices`."""
    low = start + lane * width
    return slice(low + width, low)
