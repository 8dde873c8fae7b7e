"""Ethernet in a co-simulation: MACs of FPGAs on a switch in C++, and a host at one more port of it.

``network.h`` is the bench's side.  What happens depends on the seed alone: the bench runs ahead to a cycle that the
host has chosen, then both exchange the frames that have come out of the host's port and those that enter there.
"""

from __future__ import annotations

import heapq
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from dagtrain.cosim.clocks import CLUSTER_CLOCK
from dagtrain.cosim.connection import taken
from dagtrain.emission.capture import capture
from hdl.convert.netlist import Direction, PortDecl
from hdl.errors import ToolError
from hdl.link.ethernet.frame import Dropped, FrameFormat
from hdl.link.ethernet.receiver import COUNTER_BITS, Cause
from hdl.simulate.models import ethernet
from hdl.simulate.models.ethernet import EthernetSwitch

HEADER = Path(__file__).with_name("network.h")
SWITCH_HEADER = Path(ethernet.__file__).with_name("ethernet.h")
# in the folder of a build: the MACs, and the headers by names under which the texts count for what is built
MACS_FILE = "macs.inc"
HEADERS = {"network.inc": HEADER, "ethernet.inc": SWITCH_HEADER}
# in the folder of a run: what the switch is, what it has counted, all frames
SWITCH_FILE, COUNTS_FILE, FRAMES_FILE = "switch.txt", "network.txt", "frames.bin"
# where the outermost module writes what Ethernet ports have counted: top, frames dropped, flags of peers
PORTS_FILE = "ports.txt"
# cycle and number of frames, or bytes; cycle, port, way and bytes
_STAMP, _LOGGED = struct.Struct("=QI"), struct.Struct("=QHHI")
# next cycle, number of frames, whether the host has all that it waits for
_ANSWER = struct.Struct("=QII")


class Mac(Enum):
    """How a MAC takes beats."""

    AXI_STREAM = "axi-stream"
    AVALON = "avalon-st"


@dataclass(frozen=True, kw_only=True)
class MacPort:
    """The ports of the bench through which a MAC gets frames of an FPGA and gives it some."""

    # of the switch
    number: int
    # of their names
    prefix: str
    kind: Mac
    # of a beat
    word_bits: int
    # clocks of the bench at which it takes and gives beats
    takes_at: str = CLUSTER_CLOCK
    gives_at: str = CLUSTER_CLOCK

    @property
    def ports(self) -> tuple[PortDecl, ...]:
        """As the bench has them."""
        sent, got = Direction.OUT, Direction.IN
        return (
            *(PortDecl(clk, 1, got) for clk in (self.takes_at, self.gives_at) if clk.startswith(f"{self.prefix}_")),
            *(PortDecl(f"{self.prefix}_tx_{name}", bits, sent) for name, bits in self._signals.items()),
            PortDecl(f"{self.prefix}_tx_{self._ready}", 1, got),
            *(PortDecl(f"{self.prefix}_rx_{name}", bits, got) for name, bits in self._signals.items()),
            PortDecl(f"{self.prefix}_rx_{self._bad}", 1, got),
            PortDecl(self.reset, 1, got),
        )

    @property
    def reset(self) -> str:
        """The port that resets the FPGA alone."""
        return f"{self.prefix}_reset"

    @property
    def _axi(self) -> bool:
        return self.kind is Mac.AXI_STREAM

    @property
    def _ready(self) -> str:
        return "tready" if self._axi else "ready"

    @property
    def _bad(self) -> str:
        return "tuser" if self._axi else "error"

    @property
    def _signals(self) -> dict[str, int]:
        """Of both ways: valid, data, last, size and, where there is a mark of it, first."""
        size = self.word_bits // 8
        if self._axi:
            return {"tvalid": 1, "tdata": self.word_bits, "tlast": 1, "tkeep": size}
        return {
            "valid": 1,
            "data": self.word_bits,
            "endofpacket": 1,
            "empty": (size - 1).bit_length(),
            "startofpacket": 1,
        }

    def row(self, clocks: Sequence[str]) -> str:
        """It as a ``MacPins`` of C++, in a bench with these clocks."""
        valid, *rest = self._signals
        data, last, size, first = (*rest, "")[:4]

        def pin(way: str, name: str) -> str:
            return f"&bench.{self.prefix}_{way}_{name}" if name else "nullptr"

        pins = [pin("tx", name) for name in (valid, self._ready, data, last, size, first)]
        pins += [pin("rx", name) for name in (valid, data, last, self._bad, size, first)]
        pins.append(f"&bench.{self.reset}")
        kind = f"{self.number}, {str(not self._axi).lower()}, {self.word_bits // 8}"
        return f"    {{{kind}, {clocks.index(self.takes_at)}, {clocks.index(self.gives_at)}, {', '.join(pins)}}},\n"


def write_macs(folder: Path, macs: Sequence[MacPort], clocks: Sequence[str] = (CLUSTER_CLOCK,)) -> None:
    """What C++ includes of a bench with these clocks and with MACs, in the order of the switch's ports; none: nothing
    is left of it."""
    for name, header in HEADERS.items():
        if macs:
            (folder / name).write_text(header.read_text())
        else:
            (folder / name).unlink(missing_ok=True)
    if macs:
        (folder / MACS_FILE).write_text("".join(mac.row(clocks) for mac in macs))
    else:
        (folder / MACS_FILE).unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------ the host

# cycle, frame
Stamped = tuple[int, bytes]


class SwitchHost(Protocol):
    """Who is at the host's port of the switch."""

    @property
    def done(self) -> bool:
        """Whether it has all that it waits for, so that a bench that has finished may end."""
        ...

    def exchange(self, cycle: int, frames: Sequence[Stamped]) -> tuple[int, Sequence[Stamped]] | None:
        """The bench has come to a cycle, and these frames have come out of the port since the call before.

        Returns the cycle, later than this one, of the next call, and frames that enter from this cycle on, in the order
        of their cycles; None ends the run."""
        ...


@dataclass(frozen=True)
class PausingHost:
    """A host whose program the system leaves standing now and then."""

    host: SwitchHost
    # (first cycle, cycle behind the last)
    pauses: Sequence[tuple[int, int]]

    @property
    def done(self) -> bool:
        """See `SwitchHost`."""
        return self.host.done

    def exchange(self, cycle: int, frames: Sequence[Stamped]) -> tuple[int, Sequence[Stamped]] | None:
        """See `SwitchHost`."""
        answer = self.host.exchange(cycle, frames)
        if answer is None:
            return None
        later, entering = answer
        return next((end for first, end in self.pauses if first <= later < end), later), entering


def answer_bench(connection: socket.socket, host: SwitchHost) -> None:
    """Answer a bench until it ends, or the host does."""
    with suppress(EOFError, ConnectionError):
        while True:
            cycle, count = _STAMP.unpack(taken(connection, _STAMP.size))
            frames = []
            for _ in range(count):
                came, size = _STAMP.unpack(taken(connection, _STAMP.size))
                frames.append((came, taken(connection, size)))
            answer = host.exchange(cycle, frames)
            if answer is None:
                return
            later, entering = answer
            parts = [_ANSWER.pack(later, len(entering), host.done)]
            parts += [_STAMP.pack(when, len(frame)) + frame for when, frame in entering]
            connection.sendall(b"".join(parts))


# ------------------------------------------------------------------------------------------------ what came of it


def write_switch(folder: Path, switch: EthernetSwitch) -> None:
    """What the bench reads when it begins a run in a folder."""
    (folder / SWITCH_FILE).write_text(switch.text)


@dataclass(frozen=True)
class PairCounts:
    """Frames from a port of the switch to another one: what befell them there, and what they were."""

    source: int
    target: int
    entered: int
    lost: int
    doubled: int
    reordered: int
    corrupted: int
    down: int
    left: int
    # those to this port alone, and of them DATA, DATA that was sent before, bytes on the cable of all and of those
    frames: int
    data: int
    again: int
    sent_bytes: int
    again_bytes: int

    @property
    def share_lost(self) -> float:
        """Of the cable's time that frames took, what those sent again did."""
        return self.again_bytes / self.sent_bytes if self.sent_bytes else 0.0


def read_counts(folder: Path) -> tuple[PairCounts, ...]:
    """Of each pair of ports between which frames went, in a run in a folder."""
    path = folder / COUNTS_FILE
    if not path.is_file():
        raise ToolError(f"the simulation left no {path}")
    return tuple(PairCounts(*map(int, line.split())) for line in path.read_text().splitlines())


def join_counts(paths: Sequence[Path], into: Path) -> None:
    """Of programs that each counted what passed their ports, as one would have."""
    total: dict[tuple[int, ...], list[int]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            source, target, *counts = map(int, line.split())
            before = total.setdefault((source, target), [0] * len(counts))
            total[source, target] = [a + b for a, b in zip(before, counts, strict=True)]
    rows = (" ".join(map(str, (*pair, *counts))) for pair, counts in sorted(total.items()))
    into.write_text("".join(f"{row} \n" for row in rows))


@dataclass(frozen=True)
class PortCounts:
    """What the Ethernet port of a device counted."""

    # module
    top: str
    dropped: Mapping[Cause, int]
    # three flags a peer: lost, stranger, unsent
    faults: int
    # frames that found no room on their way from the clock of the MAC
    overflow: int = 0


def read_ports(folder: Path) -> tuple[PortCounts, ...]:
    """Of each device, in a run in a folder."""
    found = []
    for line in (folder / PORTS_FILE).read_text().splitlines():
        top, dropped, faults, overflow = line.split()
        counts = int(dropped, 16)
        each = {cause: counts >> cause * COUNTER_BITS & ((1 << COUNTER_BITS) - 1) for cause in Cause}
        found.append(PortCounts(top, each, int(faults, 16), int(overflow, 16)))
    return tuple(found)


@dataclass(frozen=True)
class Passed:
    """A frame as it passes a port of the switch."""

    cycle: int
    port: int
    # whether it goes to the port, and not from there
    arrives: bool
    frame: bytes


def read_frames(folder: Path) -> Iterator[Passed]:
    """All frames of a run in a folder, in their order."""
    yield from _logged(folder / FRAMES_FILE)


def _logged(path: Path) -> Iterator[Passed]:
    with path.open("rb") as stream:
        while head := stream.read(_LOGGED.size):
            cycle, port, way, size = _LOGGED.unpack(head)
            yield Passed(cycle, port, bool(way), stream.read(size))


def join_frames(paths: Sequence[Path], into: Path) -> None:
    """Of programs that each logged what passed their ports, as one would have: in a cycle first those from ports, the
    host's last, then those to ports, each in the order of ports."""
    with into.open("wb") as file:
        for one in heapq.merge(*map(_logged, paths), key=lambda one: (one.cycle, one.arrives, one.port)):
            file.write(_LOGGED.pack(one.cycle, one.port, one.arrives, len(one.frame)) + one.frame)


def damaged(folder: Path, form: FrameFormat) -> dict[int, Counter[str]]:
    """Port → frames that arrive there damaged in a run in a folder, by the name of the cause that the codec gives."""
    found: dict[int, Counter[str]] = {}
    for passed in read_frames(folder):
        if passed.arrives:
            counts = found.setdefault(passed.port, Counter())
            try:
                form.parse(passed.frame)
            except Dropped as dropped:
                counts[dropped.cause.name] += 1
    return found


def write_capture(path: Path, folder: Path, ports: Sequence[str], clock_hz: int) -> int:
    """All frames of a run as a capture file, an interface for each port by its name; how many there are."""
    count = 0
    with capture(path, ports, clock_hz) as written:
        for passed in read_frames(folder):
            written.write(passed.port, passed.frame, passed.cycle, arrives=passed.arrives)
            count += 1
    return count
