"""What the processes of one training send each other: a head in JSON, and arrays as they lie in memory.

Nothing that arrives is code: heads are parsed, arrays have the type and shape that the head says.  Both ends have shown
that they know a key before the first message (`multiprocessing.connection`).  On one machine a large array is written
once, into memory that its readers have too.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.fixed import Fixed

Array = npt.NDArray[Any]
Head = dict[str, Any]
# below, to look at others' memory costs more than to be sent a copy
LEAST_SHARED_BYTES = 1 << 16
# narrowest first
CODES = (np.int8, np.int16, np.int32, np.int64)


class Gone(Exception):
    """The other end of a link is not there any more."""


@dataclass
class Link:
    """One end of a connection, at which several threads may send."""

    connection: Connection
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # a head and its array are two writes: the second one would wait for the first one's acknowledgement
        with self._socket() as end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, head: Head, arrays: Sequence[Array | Placed] = ()) -> None:
        """A message.  Raises `Gone`."""
        told = [astuple(each) if isinstance(each, Placed) else (each.dtype.str, each.shape) for each in arrays]
        try:
            with self._sending:
                self.connection.send_bytes(json.dumps({"head": head, "arrays": told}).encode())
                for array in arrays:
                    if not isinstance(array, Placed):
                        self.connection.send_bytes(_bytes(np.ascontiguousarray(array)))
        except OSError as error:
            raise Gone from error

    def receive(self) -> tuple[Head, list[Array | Placed]]:
        """The next message.  Raises `Gone`."""
        try:
            message = json.loads(self.connection.recv_bytes())
            arrays: list[Array | Placed] = []
            for kind, shape, *where in message["arrays"]:
                if where:
                    arrays.append(Placed(kind, tuple(shape), *where))
                    continue
                array = np.empty(shape, kind)
                self.connection.recv_bytes_into(_bytes(array))
                arrays.append(array)
        except (EOFError, OSError) as error:
            raise Gone from error
        return message["head"], arrays

    def end(self) -> None:
        """End the connection for who waits at either end; a second time does nothing."""
        # to close it alone would leave it open to the thread that reads
        with suppress(OSError), self._socket() as end:
            end.shutdown(socket.SHUT_RDWR)

    def _socket(self) -> socket.socket:
        return socket.socket(fileno=os.dup(self.connection.fileno()))


@dataclass(frozen=True)
class Placed:
    """An array in the memory of a process of this machine."""

    kind: str
    shape: tuple[int, ...]
    process: int
    file: int


class Board:
    """Where a process puts arrays for others of this machine, and looks at theirs.

    What is put there stands until the same name is put there again."""

    def __init__(self, shared: bool) -> None:
        """``shared``: whether all readers are on this machine."""
        self._shared = shared
        self._own: dict[tuple[str, int], tuple[int, mmap.mmap]] = {}
        self._others: dict[tuple[int, int], mmap.mmap] = {}

    def put(self, name: str, codes: Array, fixed: Fixed) -> Array | Placed:
        """Codes of a format in as few bytes as hold all of them, as a message takes them."""
        kind = _narrowest(fixed)
        size = codes.size * np.dtype(kind).itemsize
        if not self._shared or size < LEAST_SHARED_BYTES:
            return codes.astype(kind)
        if (name, size) not in self._own:
            # without a name in the file system: it ends with the last process that has it
            file = os.memfd_create("dagtrain")
            os.truncate(file, size)
            self._own[name, size] = file, mmap.mmap(file, size)
        file, memory = self._own[name, size]
        np.copyto(np.frombuffer(memory, kind).reshape(codes.shape), codes, casting="unsafe")
        return Placed(np.dtype(kind).str, codes.shape, os.getpid(), file)

    def codes(self, given: Array | Placed) -> Array:
        """What a message has; if it was put on a board, as it stands there, not to be written to."""
        if isinstance(given, Placed):
            at = given.process, given.file
            if at not in self._others:
                with open(f"/proc/{given.process}/fd/{given.file}", "rb") as file:
                    self._others[at] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            given = np.frombuffer(self._others[at], given.kind).reshape(given.shape)
        return given.astype(np.int64, copy=False)

    def close(self) -> None:
        """Put nothing there any more; what others look at stays."""
        while self._own:
            _, (file, _) = self._own.popitem()
            os.close(file)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class Inbox:
    """What has come and nobody has taken yet, by name."""

    def __init__(self) -> None:
        self._came: dict[str, tuple[Head, list[Array | Placed]]] = {}
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, name: str, head: Head, arrays: list[Array | Placed]) -> None:
        """Something has come."""
        with self._changed:
            self._came[name] = head, arrays
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Nothing more will come."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def take(self, name: str, seconds: float | None = None) -> tuple[Head, list[Array | Placed]]:
        """What has this name, waiting for it.  Raises what `fail` was told, and `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._came or self._failure is not None, seconds):
                raise TimeoutError(name)
            if name in self._came:
                return self._came.pop(name)
            assert self._failure is not None
            raise self._failure


def _narrowest(fixed: Fixed) -> type[np.signedinteger[Any]]:
    return next(kind for kind in CODES if np.iinfo(kind).min <= fixed.low and fixed.high <= np.iinfo(kind).max)
