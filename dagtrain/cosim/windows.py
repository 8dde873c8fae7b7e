"""Several programs that simulate a cluster together, each with some of its devices: how they keep in step.

A conservative parallel simulation.  A word is under way for at least the network's latency, so all may run
ahead for as long (a window) before any of them has to know what has left for it meanwhile.  At the end of a window they
exchange that, with the cycles in which it left, and how they stand; from the latter all draw the same conclusions
(`Conductor`).  So every word arrives, and the run ends, in the cycle in which it would in one program.

``windows.h`` is the bench's side.  How ranks reach one another is a `Transport`.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from dagtrain.cosim.connection import taken
from hdl.convert.netlist import Direction, PortDecl
from hdl.errors import DagtrainError

HEADER = Path(__file__).with_name("windows.h")
# in the folder of a build: the lanes, and the header by a name under which its text counts for what is built
LANES_FILE, HEADER_FILE = "lanes.inc", "windows.inc"
# in the folder of a run: what the bench has to know of the others
SHARE_FILE = "windows.txt"
# ports of the outermost module, through which the others end it
PORTS = (
    PortDecl("settling", 1, Direction.OUT),
    PortDecl("activity", 32, Direction.OUT),
    PortDecl("over", 1, Direction.IN),
    PortDecl("halt", 1, Direction.IN),
)

T = TypeVar("T")


# ------------------------------------------------------------------------------------------------ who has what


@dataclass(frozen=True)
class Share:
    """What one of the ranks simulates."""

    rank: int
    # rank of every device, by its place in the cluster
    homes: tuple[int, ...]

    @property
    def here(self) -> tuple[int, ...]:
        """Places of its devices."""
        return tuple(place for place, rank in enumerate(self.homes) if rank == self.rank)


def dealt_out(devices: int, ranks: int) -> tuple[int, ...]:
    """The rank of every device: neighbours together, ranks that have one more first; with a rank more than devices the
    first one has none, and is the host alone.

    Raises `DagtrainError` for more ranks than that."""
    if ranks > devices + 1:
        raise DagtrainError(
            f"{ranks} ranks for {devices} devices",
            f"start at most {devices + 1}: one a device, and one for the emulator and the comparison",
        )
    first = int(ranks > devices)
    working = ranks - first
    return tuple(first + place * working // devices for place in range(devices))


@dataclass(frozen=True, kw_only=True)
class LanePort:
    """The end of a lane of the switch between a device that is here and one that is not, at ports of the bench."""

    # places of devices
    source: int
    target: int
    # whether its words leave from here
    leaves: bool
    # of a word
    bits: int

    @property
    def net(self) -> str:
        """Of the stream."""
        return f"lane_{self.source}_{self.target}"

    @property
    def ports(self) -> tuple[PortDecl, ...]:
        """As the bench has them; the network takes every word that leaves."""
        way = Direction.OUT if self.leaves else Direction.IN
        given = PortDecl(f"{self.net}_valid", 1, way), PortDecl(f"{self.net}_payload", self.bits, way)
        return given if self.leaves else (*given, PortDecl(f"{self.net}_ready", 1, Direction.OUT))

    @property
    def row(self) -> str:
        """It as a ``LanePins`` of C++."""
        # as Verilator stores a port
        size = next((size for size in (1, 2, 4, 8) if self.bits <= 8 * size), 4 * -(-self.bits // 32))
        ready = "nullptr" if self.leaves else f"&bench.{self.net}_ready"
        pins = f"&bench.{self.net}_valid, &bench.{self.net}_payload, {ready}"
        return f"    {{{self.source}, {self.target}, {size}, {str(self.leaves).lower()}, {pins}}},\n"


def write_lanes(folder: Path, lanes: Sequence[LanePort] | None) -> None:
    """What C++ includes of a bench that has a part of a cluster; None: it has all, and nothing is left of that."""
    if lanes is None:
        for name in (LANES_FILE, HEADER_FILE):
            (folder / name).unlink(missing_ok=True)
    else:
        (folder / HEADER_FILE).write_text(HEADER.read_text())
        (folder / LANES_FILE).write_text("".join(lane.row for lane in lanes))


# ------------------------------------------------------------------------------------------------ when it ends


class Fault(IntEnum):
    """What ends a bench at once."""

    NONE = 0
    MEMORY = 1
    NETWORK = 2


class End(IntEnum):
    """Whether a bench ends, and why."""

    GOES_ON = 0
    FINISHED = 1
    # nothing moves any more
    STUCK = 2
    # its own fault, or that of another one
    FAULTY = 3
    ABANDONED = 4


@dataclass(frozen=True)
class Status:
    """How a bench stands at the end of a window."""

    # the last one of the window, or that of its fault
    cycle: int
    # the cycle behind which what it counts changed last, and from which on it has all; -1: never
    changed: int
    settled: int
    # beats of metrics that have come
    progress: int
    fault: Fault = Fault.NONE
    # the last cycle in which a network with frames was not quiet, and for how many it has to be until the run may end
    busy: int = -1
    heard: int = 0

    # with what aligns it
    FORM = struct.Struct("=qqqIIqI4x")

    @classmethod
    def of(cls, data: bytes) -> Status:
        """As the bench writes it."""
        cycle, changed, settled, progress, fault, busy, heard = cls.FORM.unpack(data)
        return cls(cycle, changed, settled, progress, Fault(fault), busy, heard)


@dataclass(frozen=True)
class Orders:
    """What a bench does next."""

    # the last cycle of the next window
    next: int
    # in the next cycle: all state is written; all streams are told, because nothing moves
    over: bool = False
    halt: bool = False
    end: End = End.GOES_ON

    # with what aligns it
    FORM = struct.Struct("=qIII4x")

    @property
    def data(self) -> bytes:
        """As the bench reads it."""
        return self.FORM.pack(self.next, self.over, self.halt, self.end)


@dataclass
class Conductor:
    """Tells benches that are in step how to go on, as the outermost module of one bench for all would
    (`dagtrain.cosim.outermost`): the same statuses, the same orders."""

    # cycles that a word is under way before anybody can see it
    look_ahead: int
    settle_cycles: int
    stuck_cycles: int
    # what ends the run, and the cycle in which that is known
    _end: End = End.GOES_ON
    _known: int = 0

    def orders(self, statuses: Sequence[Status]) -> list[Orders]:
        """Of each rank."""
        faulty = [(status.cycle, status.fault, rank) for rank, status in enumerate(statuses) if status.fault]
        if faulty:
            *_, first = min(faulty)
            return [Orders(0, end=End.FAULTY if rank == first else End.ABANDONED) for rank in range(len(statuses))]
        return [self._common(statuses)] * len(statuses)

    def _common(self, statuses: Sequence[Status]) -> Orders:
        now, later = statuses[0].cycle, statuses[0].cycle + self.look_ahead
        if self._end:
            # a network with frames has to be quiet for a while from then on
            quiet = max(self._known - 1, *(status.busy for status in statuses))
            ends = quiet + 1 + max(status.heard for status in statuses) if self._end is End.FINISHED else now
            return Orders(now, end=self._end) if now >= ends else Orders(min(later, ends))
        if all(status.settled >= 0 for status in statuses):
            over = max(status.settled for status in statuses) + self.settle_cycles
            if now >= over:
                self._end, self._known = End.FINISHED, now + 1
                return Orders(now + 1, over=True)
            return Orders(min(later, over))
        stuck = max(status.changed for status in statuses) + 1 + self.stuck_cycles
        if now >= stuck:
            self._end = End.STUCK
            return Orders(now + 1, halt=True)
        return Orders(min(later, stuck))


# ------------------------------------------------------------------------------------------------ between ranks


class Transport(Protocol):
    """How ranks reach one another."""

    @property
    def rank(self) -> int:
        """Of this one."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Give each rank its part; returns what each gave this one, in the order of ranks.  All call it together."""
        ...

    def abort(self, code: int) -> None:
        """End all ranks at once, wherever they are."""
        ...


class RankError(DagtrainError):
    """Another rank has failed."""

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(what)
        self.rank = rank


class AllError(DagtrainError):
    """What all ranks find out together."""


_WELL, _FAILED = b"\0", b"\1"


@dataclass
class Ranks:
    """Ranks that do the same in step, over a transport; where one of them fails all do."""

    transport: Transport
    # one of them has failed, so there is nobody to talk to; or the user wants this one to end
    failed: bool = False
    interrupted: bool = False
    # all others help
    helped: bool = False

    @property
    def rank(self) -> int:
        """Of this one."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self.transport.size

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """As `Transport.exchange`.  Raises `RankError` where another one has failed since."""
        came = self.transport.exchange([_WELL + part for part in parts])
        for rank, part in enumerate(came):
            if part[:1] == _FAILED:
                raise RankError(rank, part[1:].decode())
        return [part[1:] for part in came]

    def shared(self, mine: T) -> list[T]:
        """What each rank has, by rank, everywhere."""
        return [pickle.loads(part) for part in self.exchange([pickle.dumps(mine)] * self.size)]

    def given(self, parts: Sequence[Any] | None = None) -> Any:
        """The part that rank 0 gives this one, of what it has for each."""
        told = [pickle.dumps(part) for part in parts or [None] * self.size]
        return pickle.loads(self.exchange(told)[0])

    def collected(self, mine: T) -> list[T]:
        """What each rank has, by rank, at rank 0; nothing elsewhere."""
        told = [pickle.dumps(mine), *[b""] * (self.size - 1)]
        return [pickle.loads(part) for part in self.exchange(told) if part]

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is raised inside, and is not raised by all, is told to the others, who then raise it as `RankError`."""
        try:
            yield
        except AllError:
            self.failed = True
            raise
        except RankError:
            self.failed = True
            raise
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        except Exception as error:
            self.failed = True
            what = str(error) if isinstance(error, DagtrainError) else repr(error)
            self.transport.exchange([_FAILED + what.encode()] * self.size)
            raise

    def dismiss(self) -> None:
        """Rank 0 has nothing more to do for the others."""
        if not self.failed:
            self.given([None] * self.size)


class LocalTransport:
    """Ranks that are threads of one process."""

    def __init__(self, rank: int, queues: Sequence[Sequence[SimpleQueue[bytes]]]) -> None:
        self.rank, self._queues = rank, queues

    @classmethod
    def of(cls, size: int) -> list[LocalTransport]:
        """One for each of so many ranks."""
        queues: list[list[SimpleQueue[bytes]]] = [[SimpleQueue() for _ in range(size)] for _ in range(size)]
        return [cls(rank, queues) for rank in range(size)]

    @property
    def size(self) -> int:
        """See `Transport`."""
        return len(self._queues)

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """See `Transport`."""
        for queue, part in zip(self._queues[self.rank], parts, strict=True):
            queue.put(part)
        return [row[self.rank].get() for row in self._queues]

    def abort(self, code: int) -> None:
        """See `Transport`."""
        raise SystemExit(code)


# ------------------------------------------------------------------------------------------------ a rank's bench

_SIZE = struct.Struct("=I")


@dataclass
class Window:
    """Where a bench of one rank meets those of the others: answers the bench at the end of each window."""

    ranks: Ranks
    conductor: Conductor
    # gets the beats of metrics that have come at all ranks
    on_progress: Callable[[int], None]

    def answer(self, connection: socket.socket) -> None:
        """Until the bench ends."""
        with suppress(EOFError, ConnectionError):
            while True:
                status = taken(connection, Status.FORM.size)
                parts = [status + self._part(connection) for _ in range(self.ranks.size)]
                self._answer(connection, self.ranks.exchange(parts))

    def idle(self) -> None:
        """In the place of a bench, where this rank has no devices: as one that has all that it waits for."""
        orders = Orders(0)
        while orders.end is End.GOES_ON:
            status = Status(orders.next, -1, 0, 0)
            mine = Status.FORM.pack(*vars(status).values())
            orders = self._orders(self.ranks.exchange([mine] * self.ranks.size))

    def _answer(self, connection: socket.socket, came: Sequence[bytes]) -> None:
        orders, behind = self._orders(came), [part[Status.FORM.size :] for part in came]
        connection.sendall(orders.data + b"".join(_SIZE.pack(len(part)) + part for part in behind))

    def _orders(self, came: Sequence[bytes]) -> Orders:
        statuses = [Status.of(part[: Status.FORM.size]) for part in came]
        self.on_progress(sum(status.progress for status in statuses))
        return self.conductor.orders(statuses)[self.ranks.rank]

    @staticmethod
    def _part(connection: socket.socket) -> bytes:
        (size,) = _SIZE.unpack(taken(connection, _SIZE.size))
        return taken(connection, size)
