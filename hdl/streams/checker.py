"""The watcher of the stream contract of `hdl.stream`.

`StreamChecker` looks at one stream once a clock cycle and raises `ContractViolation` when ``valid`` falls
before the beat was taken, or the payload changes while it waits.  The test drivers of `hdl.simulate` run one
on every port.  `monitor` puts one on a stream inside a MyHDL test.
"""

from __future__ import annotations

from myhdl import always, block

from hdl.errors import ContractViolation
from hdl.signals import Bit, Clock, Instances
from hdl.stream import Stream


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


@block
def monitor(clk: Clock, rst: Bit, stream: Stream, name: str) -> Instances:
    """A `StreamChecker` on ``stream`` in a MyHDL simulation; not convertible.

    Ports:
        stream: in, stream of any width; observed at each rising edge, forgotten while ``rst`` is high.
    """
    checker = StreamChecker(name)
    cycle = [0]

    @always(clk.posedge)
    def watch() -> None:
        checker.observe(cycle[0], bool(stream.valid), bool(stream.ready), int(stream.payload), bool(rst))
        cycle[0] += 1

    return watch
