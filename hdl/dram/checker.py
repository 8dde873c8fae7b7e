"""The watcher of an AXI4 port as `hdl.dram.axi` has it: what AXI4 and that module promise of bursts.

`AxiChecker` is told of every cycle and raises `ContractViolation` where a channel breaks the contract of streams, a
burst leaves its 4 KiB, ``last`` stands at another word than the request says, data are read that nobody asked for, or
a write is answered before its last word.  Data may be written before their request is taken, as AXI4 allows.
`axi_monitor` puts one on a port in a MyHDL simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from myhdl import always, block

from hdl.dram.axi import BOUNDARY_BYTES, CHANNELS, RESPONSE_BITS, Axi, AxiFormat
from hdl.errors import ContractViolation
from hdl.signals import ClockReset, Instances
from hdl.streams.checker import Handshake, StreamChecker


class AxiChecker:
    """Call `observe` with the values of all channels just before each rising clock edge."""

    def __init__(self, name: str, form: AxiFormat) -> None:
        self.name, self.form = name, form
        self._streams = {channel: StreamChecker(f"{name}_{channel}") for channel in CHANNELS}
        # words of bursts that were asked for, and of those whose data came, in order, each until it meets the other
        self._asked_writes: deque[int] = deque()
        self._came_writes: deque[int] = deque()
        # words of the burst that is being written, bursts without answer, words of bursts that are to be read
        self._words = 0
        self._unanswered = 0
        self._reads: deque[int] = deque()
        # bursts asked for, either way; cycles in which the data of one to write are not offered, or data read not taken
        self.bursts = 0
        self.idle_cycles = 0
        self.refused_cycles = 0

    def observe(self, cycle: int, beats: Mapping[str, Handshake], reset: bool = False) -> None:
        """Check one cycle: channel → its signals.  Raises `ContractViolation`."""
        fired = {
            channel: self._streams[channel].observe(cycle, beat.valid, beat.ready, beat.payload, reset)
            for channel, beat in beats.items()
        }
        if reset:
            return
        where = f"port {self.name}, cycle {cycle}"
        if fired["b"]:
            self._unanswered -= 1
            if self._unanswered < 0:
                raise ContractViolation(f"{where}: a write is answered before its last word")
        if fired["r"]:
            self._read(where, beats["r"].payload)
        if fired["aw"]:
            self._asked_writes.append(self._request(where, beats["aw"].payload))
        if fired["ar"]:
            self._reads.append(self._request(where, beats["ar"].payload))
        if fired["w"]:
            self._write(beats["w"].payload)
        self._meet(where)
        self.idle_cycles += bool(self._asked_writes) and not beats["w"].valid
        self.refused_cycles += beats["r"].valid and not beats["r"].ready

    def _request(self, where: str, payload: int) -> int:
        """The words of a burst."""
        self.bursts += 1
        address = payload & ((1 << self.form.address_bits) - 1)
        words = (payload >> self.form.address_bits) + 1
        size = self.form.data_bits // 8
        first, last = address * size, (address + words) * size - 1
        if first // BOUNDARY_BYTES != last // BOUNDARY_BYTES:
            raise ContractViolation(f"{where}: a burst of {words} words at byte {first:#x} crosses 4 KiB")
        return words

    def _read(self, where: str, payload: int) -> None:
        if not self._reads:
            raise ContractViolation(f"{where}: data are read that nobody asked for")
        self._reads[0] -= 1
        last = bool(payload >> (self.form.data_bits + RESPONSE_BITS) & 1)
        if last != (self._reads[0] == 0):
            raise ContractViolation(f"{where}: last is {int(last)} with {self._reads[0]} words of the burst to come")
        if last:
            self._reads.popleft()

    def _write(self, payload: int) -> None:
        self._words += 1
        if payload >> self.form.data_bits & 1:
            self._came_writes.append(self._words)
            self._words = 0

    def _meet(self, where: str) -> None:
        """Hold data that came against what was asked."""
        while self._asked_writes and self._came_writes:
            asked, came = self._asked_writes.popleft(), self._came_writes.popleft()
            if asked != came:
                raise ContractViolation(f"{where}: last came after {came} words of a burst of {asked}")
            self._unanswered += 1
        if self._asked_writes and self._words >= self._asked_writes[0]:
            asked = self._asked_writes[0]
            raise ContractViolation(f"{where}: {self._words} words of a burst of {asked} came without last")


@block
def axi_monitor(domain: ClockReset, port: Axi, *, checker: AxiChecker) -> Instances:
    """``checker`` on ``port`` in a MyHDL simulation; not convertible.

    Ports:
        port: in, port of ``checker.form``, watched at each rising edge.
    """
    cycle = [0]

    @always(domain.clk.posedge)
    def watch() -> None:
        streams = {channel: getattr(port, channel) for channel in CHANNELS}
        beats = {n: Handshake(bool(s.valid), bool(s.ready), int(s.payload)) for n, s in streams.items()}
        checker.observe(cycle[0], beats, bool(domain.rst))
        cycle[0] += 1

    return watch
