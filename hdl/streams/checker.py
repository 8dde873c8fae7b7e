"""The watcher of the stream contract of `hdl.stream`.

`StreamChecker` looks at one stream once a clock cycle and raises `ContractViolation` when ``valid`` falls
before the beat was taken, or the payload changes while it waits.  Whoever drives a side of the stream can turn its
signal round for a moment between two clock edges and `probe` what the other side makes of it: nothing, within a cycle.
The test drivers of `hdl.simulate` do all that on every port; a source that waits a cycle or more for ``ready`` locks
with their sinks, some of which wait for ``valid``.  `monitor` puts a checker on a stream inside a MyHDL test, where it
drives nothing and can't probe; `hdl.analysis.same_cycle` finds the same in the text, for every state.
"""

from __future__ import annotations

from typing import NamedTuple

from myhdl import always, block

from hdl.errors import ContractViolation
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream


class Handshake(NamedTuple):
    """The signals of a stream at one moment."""

    valid: bool
    ready: bool
    payload: int


class StreamChecker:
    """Call `observe` with the values just before each rising clock edge."""

    def __init__(self, name: str) -> None:
        self.name = name
        # payload of the beat that waits to be taken, None if there is none
        self._waiting: int | None = None

    def observe(self, cycle: int, valid: bool, ready: bool, payload: int, reset: bool = False) -> bool:
        """Check one cycle; True if a beat is transferred.  Raises `ContractViolation`."""
        if reset:
            self._waiting = None
            return False
        if self._waiting is not None:
            if not valid:
                raise ContractViolation(f"stream {self.name}, cycle {cycle}: valid fell before the beat was taken")
            if payload != self._waiting:
                raise ContractViolation(
                    f"stream {self.name}, cycle {cycle}: payload changed from {self._waiting:#x} to {payload:#x} "
                    "while valid waited for ready"
                )
        self._waiting = payload if valid and not ready else None
        return bool(valid and ready)

    def probe(self, cycle: int, before: Handshake, after: Handshake) -> None:
        """Check that only the one that was turned round differs, ``valid`` or ``ready``; a payload counts while it is
        valid.  Raises `ContractViolation`."""
        where = f"stream {self.name}, cycle {cycle}"
        if before.valid != after.valid and before.ready != after.ready:
            raise ContractViolation(f"{where}: valid and ready follow one another in the same cycle")
        if before.ready != after.ready and before.valid and before.payload != after.payload:
            raise ContractViolation(f"{where}: payload follows ready in the same cycle")


@block
def monitor(domain: ClockReset, stream: Stream, name: str) -> Instances:
    """A `StreamChecker` on ``stream`` in a MyHDL simulation; not convertible.

    Ports:
        stream: in, stream of any width, watched at each rising edge; what it did is forgotten while ``rst`` is high.
    """
    checker = StreamChecker(name)
    cycle = [0]

    @always(domain.clk.posedge)
    def watch() -> None:
        checker.observe(cycle[0], bool(stream.valid), bool(stream.ready), int(stream.payload), bool(domain.rst))
        cycle[0] += 1

    return watch
