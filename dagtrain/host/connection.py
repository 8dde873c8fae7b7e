"""A host's connection to a cluster: all devices are reset and answer, streams to and from them can be used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

from dagtrain.emission.ethernet import FIRST_EPOCH
from dagtrain.host.endpoint import ACK_US, EPOCH_STEP, Endpoint, Pair, Place, not_bound
from dagtrain.host.streams import Incoming, LinkFault, Outgoing
from dagtrain.host.wiring import FROM_DEVICE, TO_DEVICE, DeviceTable, StreamTable, Wiring, neighbour_command
from hdl.errors import Problem
from hdl.link.ethernet.frame import HOST
from hdl.link.ethernet.protocol import EPOCHS, Peer, Rules

# seconds for which an epoch is tried; twice as long whenever one of each third was refused
EPOCH_SECONDS, THIRDS = 0.3, 3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to reach a cluster."""

    # all frames go here, and not to devices' own addresses
    gateway: Place | None = None
    # the host's own address; None: as the wiring says, or any port where there is a gateway
    bind: Place | None = None
    # within which every device must have answered
    answer_seconds: float = 10.0
    # to try first; None: by the time of day
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """How the pair with a device stands."""

    name: str
    # frames sent, heard, sent again, and dropped by cause
    sent: int
    heard: int
    retransmitted: int
    drops: Mapping[str, int]
    rtt_us: float | None
    # words that may be sent, and those that could be if nothing were on its way
    credits: int
    most_credits: int


class Connection:
    """The host of a cluster; ``async with`` connects to it and resets it.

    Raises `LinkFault`, with all problems, where devices do not answer, run another plan, or stop."""

    def __init__(self, wiring: Wiring, settings: Settings | None = None) -> None:
        self.wiring = wiring
        self.settings = settings or Settings()
        first = int(time.time()) % EPOCHS if self.settings.epoch is None else self.settings.epoch
        self._endpoint = self.end(first)

    def end(self, epoch: int) -> Endpoint:
        """The host's end of all pairs."""
        return Endpoint(HOST, self.wiring.form, epoch, self._pairs)

    def rules(self) -> Rules:
        """Of each pair; the timer follows the round trips."""
        wiring, form = self.wiring, self.wiring.form
        return Rules(
            window=wiring.window,
            replay_beats=wiring.window * form.payload_beats,
            word_bytes=form.word_bytes,
            timer_cycles=1,
            ack_cycles=ACK_US,
        )

    # what a pair is made of
    pair: type[Pair] = Pair

    def _pairs(self, epoch: int) -> Sequence[Pair]:
        wiring, rules = self.wiring, self.rules()
        digest = int(wiring.digest, 16)
        return [
            self.pair(
                name=device.name,
                place=self.settings.gateway or device.place,
                peer=Peer(number=HOST, other=device.number, epoch=epoch, digest=digest),
                rules=rules,
                outgoing={
                    s.number: Outgoing(s.number, s.layout(wiring.word_bits), s.credits)
                    for s in wiring.streams_of(device.name, TO_DEVICE)
                },
                incoming={
                    s.number: Incoming(s.number, s.layout(wiring.word_bits), s.credits)
                    for s in wiring.streams_of(device.name, FROM_DEVICE)
                },
            )
            for device in wiring.device
        ]

    async def __aenter__(self) -> Self:
        settings, host = self.settings, self.wiring.host
        bind = settings.bind or (("", 0) if settings.gateway else (str(host.ip or ""), host.port))
        try:
            self._endpoint.open(bind)
        except OSError as error:
            raise not_bound(bind, error, "--bind") from error
        try:
            await self._connect(self._endpoint.epoch)
        except BaseException:
            self._endpoint.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._endpoint.close()

    async def _connect(self, first: int) -> None:
        """Reset all devices, to an epoch that each of them thinks later than its own, and from there to the next: one
        that stood at the first epoch by chance has then begun anew too.  None stays in the epoch of devices that nobody
        has reset, so that one that begins anew is seen."""
        now = asyncio.get_running_loop().time
        deadline = now() + self.settings.answer_seconds
        for attempt in count():
            seconds = EPOCH_SECONDS * 2 ** (attempt // THIRDS)
            if await self._answered(first + attempt * EPOCH_STEP, min(seconds, deadline - now())):
                break
            if now() >= deadline:
                raise self._unanswered()
        last = (self._endpoint.epoch + 1) % EPOCHS
        if not await self._answered(last + (last == FIRST_EPOCH), deadline - now()):
            raise self._unanswered()

    async def _answered(self, epoch: int, seconds: float) -> bool:
        """Whether all devices come to an epoch in time; one that stood at it, and was not reset, may break rules."""
        self._endpoint.reset(epoch)
        pairs = self._endpoint.pairs.values()
        with suppress(TimeoutError, LinkFault):
            async with asyncio.timeout(max(0.01, seconds)):
                await self._endpoint.until(lambda: all(pair.peer.greeted for pair in pairs))
                return True
        return False

    def _unanswered(self) -> LinkFault:
        problems = []
        for device in self.wiring.device:
            pair = self._endpoint.pairs[device.number]
            where = f"device {device.number} ({device.name}) at {pair.place[0]}:{pair.place[1]}"
            if pair.foreign is not None:
                what = f"runs plan {pair.foreign:08x}, the host plan {self.wiring.digest}"
                problems.append(Problem(what, "emit, build and load the same plan on all devices", where))
            elif not pair.peer.greeted:
                dropped = ", ".join(f"{number} {cause.value}" for cause, number in pair.drops.items())
                what = f"no answer within {self.settings.answer_seconds:g} s"
                problems.append(
                    Problem(what + (f"; frames dropped: {dropped}" if dropped else ""), _cure(device), where)
                )
        if self._endpoint.fault:
            problems.append(Problem(self._endpoint.fault, "program the devices anew"))
        if self._endpoint.unsendable:
            problems.append(Problem(f"a frame could not be sent to {self._endpoint.unsendable}", "see `ip route`"))
        return LinkFault.listing("the cluster can't be reached", problems, lines=True)

    @property
    def devices(self) -> tuple[DeviceState, ...]:
        """How the pairs with all devices stand."""
        found = []
        for pair in self._endpoint.pairs.values():
            found.append(
                DeviceState(
                    name=pair.name,
                    sent=sum(pair.sent.values()),
                    heard=pair.heard,
                    retransmitted=pair.retransmitted,
                    drops={cause.value: number for cause, number in pair.drops.items()},
                    rtt_us=pair.rtt_us,
                    credits=sum(stream.credits for stream in pair.outgoing.values()),
                    most_credits=sum(stream.most for stream in pair.outgoing.values()),
                )
            )
        return tuple(found)

    def _outgoing(self, stream: StreamTable) -> Outgoing:
        return self._pair_of(stream).outgoing[stream.number]

    def _incoming(self, stream: StreamTable) -> Incoming:
        return self._pair_of(stream).incoming[stream.number]

    def _pair_of(self, stream: StreamTable) -> Pair:
        return next(pair for pair in self._endpoint.pairs.values() if pair.name == stream.device)


def _cure(device: DeviceTable) -> str:
    command = neighbour_command(device)
    if not command:
        return "see that it runs, and that no firewall drops UDP"
    return f"see that it is configured and cabled; devices answer no ARP, so enter its address: `{command}`"
