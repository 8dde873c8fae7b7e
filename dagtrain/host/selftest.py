"""A cluster whose devices test themselves: what they are told to do, and what their counters then say.

Every device sends words to every other while its memory is marched through; then one word more goes over each link
with a bit turned over, which has to be counted as one wrong bit there, and as nothing else anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dagtrain.host.connection import Connection
from dagtrain.host.streams import LinkFault
from dagtrain.host.wiring import DeviceTable
from hdl.fixed import IntArray
from hdl.link.ethernet.receiver import Cause
from hdl.selftest.console import Order, order

# device -> name of a value -> value
Reports = Mapping[str, Mapping[str, int]]
# frames that arrive damaged, and those that a network that loses or doubles makes
DAMAGED = tuple(f"dropped.{cause.name.lower()}" for cause in (Cause.CHECKSUM, Cause.LENGTH, Cause.CRC, Cause.TAG))
# between two looks at counters that have not yet got where they should be, and how often none has moved when it is over
LOOK_SECONDS, LOOKS = 0.02, 50
INJECTED = "one bit turned over"


@dataclass(frozen=True)
class Verdict:
    """What the test of a cluster came to."""

    # of all devices, before the bits that were turned over and behind them
    reports: Reports
    injected: Reports
    # what is wrong; empty: nothing
    problems: tuple[str, ...]


class SelfTest(Connection):
    """The host of a self-test; see `dagtrain.host.connection.Connection`."""

    async def test(self, words: int, bursts: int | None = None) -> Verdict:
        """``words`` over each link, a march through ``bursts`` of each memory channel or all of it, and a bit turned
        over on each link.

        Raises `LinkFault` where nothing moves any more."""
        for device in self.wiring.device:
            self._order(device, *(order(Order.RUN, link, words) for link in range(len(peers(device, "to")))))
            all_of_it = bursts or device.bursts or 0
            self._order(device, *(order(Order.MARCH, at, all_of_it) for at in range(len(channels(device.values)))))
        reports = await self._settled(words, 1)
        for device in self.wiring.device:
            self._order(device, *(order(Order.RUN, link, 1, 1) for link in range(len(peers(device, "to")))))
        injected = await self._settled(words + 1, 1)
        problems = [*_problems(reports), *_uncounted(reports, injected)]
        return Verdict(reports, injected, tuple(problems))

    async def report(self, device: DeviceTable) -> dict[str, int]:
        """What a device tells now."""
        self._order(device, order(Order.REPORT))
        (stream,) = self.wiring.streams_of(device.name, ("report",))
        incoming, words = self._incoming(stream), list[int]()
        while len(words) < len(device.values):
            await self._endpoint.until(lambda: bool(incoming.tensors))
            words += [int(word) for word in incoming.layout.decode(incoming.get()).astype(np.uint64)]
            self._endpoint.soon()
        return dict(zip(device.values, words, strict=True))

    def _order(self, device: DeviceTable, *words: int) -> None:
        (stream,) = self.wiring.streams_of(device.name, ("order",))
        outgoing = self._outgoing(stream)
        codes: IntArray = np.array(words, np.uint64).astype(np.int64)
        if len(codes):
            outgoing.offer(outgoing.layout.encode(codes))
            self._endpoint.soon()

    async def _settled(self, words: int, marches: int) -> Reports:
        """Reports once all words have left and come, and all marches have ended.  Raises `LinkFault` where that never
        happens, with what is missing."""
        before, still = None, 0
        while True:
            reports = {device.name: await self.report(device) for device in self.wiring.device}
            missing = list(_missing(reports, words, marches))
            if not missing:
                return reports
            moved = {name: {**told, "cycles": 0} for name, told in reports.items()}
            still = still + 1 if moved == before and not _busy(reports) else 0
            if still == LOOKS:
                raise LinkFault.listing("the self-test stands still", missing, "see that all cables are in", lines=True)
            before = moved
            await asyncio.sleep(LOOK_SECONDS)


def peers(device: DeviceTable, way: str) -> list[str]:
    """Devices that it sends words ``to`` or gets some ``from``, in the order of links."""
    last = {"to": "sent", "from": "words"}[way]
    return [name.removeprefix(f"{way}.").removesuffix(f".{last}") for name in device.values
            if name.startswith(f"{way}.") and name.endswith(f".{last}")]  # fmt: skip


def channels(values: Iterable[str]) -> list[str]:
    """Memory channels, as these values call them."""
    return [name.removesuffix(".done") for name in values if name.startswith("dram.") and name.endswith(".done")]


def _busy(reports: Reports) -> bool:
    return any(value for told in reports.values() for name, value in told.items() if name.endswith(".busy"))


def _missing(reports: Reports, words: int, marches: int) -> Iterator[str]:
    for device, told in reports.items():
        for name, value in told.items():
            if name.endswith((".sent", ".words")) and value != words:
                yield f"{device}: {name} is {value:,} of {words:,}"
            if name.endswith(".done") and value != marches:
                yield f"{device}: {name.removesuffix('.done')} has not been marched through"


def _problems(reports: Reports) -> Iterator[str]:
    """What counters say is wrong.  Frames that were lost or damaged on their way are none: they were sent again."""
    for device, told in reports.items():
        for name, value in told.items():
            if name.endswith((".wrong_words", ".refused", "unknown_orders")) and value:
                yield f"{device}: {name} is {value:,}"
            if name in ("net.error", "net.malformed", "net.faults") and value:
                yield f"{device}: {name} is {value:#x}"
        for channel in (
            name.removesuffix(".done") for name in told if name.startswith("dram.") and name.endswith(".done")
        ):
            if told[f"{channel}.wrong"]:
                yield f"{device}: {_broken(channel, told)}"


def _broken(channel: str, told: Mapping[str, int]) -> str:
    """What a march found."""
    parts = sorted(
        (int(name.removeprefix(f"{channel}.bits") or 0), value)
        for name, value in told.items()
        if name.startswith(f"{channel}.bits")
    )
    bits = [64 * part + bit for part, value in parts for bit in range(64) if value >> bit & 1]
    shown = ", ".join(map(str, bits[:8])) + (f" and {len(bits) - 8} more" if len(bits) > 8 else "")
    wrong, first, element = (told[f"{channel}.{name}"] for name in ("wrong", "first", "element"))
    where = f"the first at address {first:#x} in element {element} of the march"
    return f"{channel} has {wrong:,} wrong words, {where}; bits {shown} differ"


def _uncounted(before: Reports, behind: Reports) -> Iterator[str]:
    """Links whose bit that was turned over was not counted as one."""
    for device, told in behind.items():
        for name, value in told.items():
            more = value - before[device][name]
            if name.endswith((".wrong_words", ".wrong_bits")) and more != 1:
                yield f"{device}: {name} went up by {more} for {INJECTED}"


def summary(verdict: Verdict) -> Sequence[str]:
    """A line a device."""
    lines = []
    for device, told in verdict.reports.items():
        sent = sum(value for name, value in told.items() if name.endswith(".sent"))
        came = sum(value for name, value in told.items() if name.endswith(".words"))
        came -= sum(value for name, value in told.items() if name.endswith(".wrong_words"))
        damaged = sum(told[name] for name in DAMAGED)
        marched = len(channels(told))
        lines.append(
            f"{device}: {sent:,} words sent, {came:,} came right, {damaged:,} frames arrived damaged and were sent "
            f"again, {marched} memory channels marched through"
        )
    return lines
