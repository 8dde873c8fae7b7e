"""Sockets over which a bench in C++ talks to this program while it runs."""

from __future__ import annotations

import socket
from collections.abc import Callable
from threading import Thread
from typing import Self

# answers a bench until it ends; returning ends it
Answer = Callable[[socket.socket], None]


class BenchConnection:
    """Answers a bench in a thread, from `begin` on until the bench has ended or the answer does.  Leaving the context
    waits for it, and raises what it raised.  The bench knows the socket by ``name``."""

    def __init__(self, name: str, answer: Answer) -> None:
        self._name, self._answer = name, answer
        self._fault: BaseException | None = None
        self._thread: Thread | None = None
        self._ours, self._theirs = socket.socketpair()

    @property
    def descriptor(self) -> int:
        """The file that the bench has to inherit."""
        return self._theirs.fileno()

    @property
    def argument(self) -> str:
        """How it is told of it."""
        return f"+{self._name}={self.descriptor}"

    def __enter__(self) -> Self:
        return self

    def begin(self) -> None:
        """The bench has been started."""
        self._theirs.close()
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._theirs.close()
        if self._thread is not None:
            self._thread.join()
        self._ours.close()
        if self._fault is not None:
            raise self._fault

    def _serve(self) -> None:
        try:
            self._answer(self._ours)
        except BaseException as error:
            self._fault = error
        # the bench ends too
        self._ours.close()


def taken(connection: socket.socket, size: int) -> bytes:
    """So many bytes.  Raises `EOFError` where there are none any more."""
    parts, rest = [], size
    while rest:
        part = connection.recv(rest)
        if not part:
            raise EOFError
        parts.append(part)
        rest -= len(part)
    return b"".join(parts)
