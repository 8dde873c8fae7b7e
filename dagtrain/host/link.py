"""The host's network port behind a UDP socket, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, cast

from dagtrain.host.port import HostPort
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import UDP_PORT

# (IPv4 address, UDP port)
Place = tuple[str, int]
# words of a stream that wait at most before `send` waits too
MOST_WAITING = 4096
MICROSECONDS = 10**6


class HostLink(asyncio.DatagramProtocol):
    """Streams of words to and from devices, for the time of ``async with``; times of its port are microseconds."""

    def __init__(self, port: HostPort, places: Mapping[int, Place], local: Place = ("0.0.0.0", UDP_PORT)) -> None:
        """``places``: device → where it is; ``local``: where to listen."""
        self.port, self.local = port, local
        self._places = dict(places)
        self._devices = {place: device for device, place in self._places.items()}
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failed: DagtrainError | None = None
        self._closed = asyncio.Event()
        # set when anything has happened
        self._event = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Raises `DagtrainError` where the address cannot be listened at."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_datagram_endpoint(lambda: self, local_addr=self.local)
        except OSError as error:
            raise DagtrainError(
                f"UDP port {self.local[1]} of {self.local[0]}: {error.strerror or error}",
                "end the program that has it, or give another address of this machine",
            ) from None
        self._pump()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    async def send(self, stream: int, words: Iterable[int]) -> None:
        """Words of a stream; waits while many of it are not on their way yet.

        Raises:
            DagtrainError: a device is lost, runs another plan, or sent what it must not."""
        self.port.give(stream, words)
        self._pump()
        await self._until(lambda: self.port.waiting(stream) <= MOST_WAITING or None)

    async def receive(self, stream: int) -> tuple[int, ...]:
        """The words of the next tensor of a stream.  Raises as `send`."""
        found: tuple[int, ...] = await self._until(lambda: self.port.take(stream))
        self._pump()
        return found

    async def _until(self, ask: Any) -> Any:
        """What a question has for an answer as soon as that is not None."""
        while (answer := ask()) is None:
            if self._failed is not None:
                raise self._failed
            self._event.clear()
            await self._event.wait()
        return answer

    def _now(self) -> int:
        return int(asyncio.get_running_loop().time() * MICROSECONDS)

    def _pump(self) -> None:
        """Send what is to be sent, and wake up when there is more."""
        if self._transport is None or self._failed is not None:
            return
        now = self._now()
        for device, datagram in self.port.speak(now):
            self._transport.sendto(datagram, self._places[device])
        self._failed = self.port.problem
        if self._timer is not None:
            self._timer.cancel()
        due = self.port.due_at()
        if due is not None:
            delay = max(0, due - now) / MICROSECONDS
            self._timer = asyncio.get_running_loop().call_later(delay, self._pump)
        self._event.set()

    # ---------------------------------------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See the base class."""
        # what asyncio makes for UDP is no subclass of it
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """See the base class."""
        try:
            self.port.hear(data, self._devices.get((addr[0], addr[1])), self._now())
        except DagtrainError as error:
            self._failed = error
            self._event.set()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See the base class."""
        self._transport = None
        self._closed.set()

    def error_received(self, exc: Exception) -> None:
        """See the base class: nobody listens there yet; what was sent is sent again."""
