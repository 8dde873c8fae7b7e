"""A cluster that trains: state is loaded into it, batches are fed, losses come back, state is kept.

What devices are asked for in which order says docs/state.md: RUN for each batch, DUMP behind those that are kept.  A
checkpoint at staleness above 0 needs the state behind two batches in succession, so both are asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy.typing as npt

from dagtrain.emission.state import Dumped, dumped, held, links_of, load_records, restored, rounds
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph
from dagtrain.host.connection import Connection, DeviceState, Settings
from dagtrain.host.streams import Outgoing
from dagtrain.host.wiring import (
    DeviceTable,
    StreamTable,
    Wiring,
    WiringError,
)
from dagtrain.training.emulator import Emulator, Metrics
from dagtrain.training.feeds import host_ports
from hdl.engine.loss.numbers import METRICS
from hdl.engine.weights.records import COUNT_AT, KIND_BITS, Kind, Record, StateError, records_of, words_of
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.link.ethernet.protocol import EPOCHS

Feeds = Mapping[str, npt.ArrayLike]
# bytes of a stream that are kept ready to be sent; batches under way beyond those that staleness lets begin
AHEAD_BYTES, AHEAD_BATCHES = 1 << 20, 2


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A batch that the cluster has trained."""

    # from 1, over all trainings of this state
    batch: int
    metrics: Metrics
    # since the batch before
    images_per_second: float
    # loss and whether it was right, of each frame, as numbers on the wire
    records: IntArray
    devices: tuple[DeviceState, ...]


class Cluster(Connection):
    """A cluster of devices that trains; ``async with`` connects to it and resets it.

    ``graph`` is the folded one that the devices were made of.  Raises `LinkFault`, with all problems, where devices do
    not answer, run another plan, or stop."""

    def __init__(self, wiring: Wiring, graph: Graph, settings: Settings | None = None) -> None:
        super().__init__(wiring, settings)
        self.emulator = Emulator(graph)
        self.image, self.label, self.output = host_ports(graph)
        self.check(graph)
        self._stop = False
        # batches → what all devices held behind them
        self._states: dict[int, Dumped] = {}
        # batches behind which each device was asked for its state, and what came
        self._asked: dict[str, deque[int]] = {device.name: deque() for device in wiring.device}
        self._came: dict[int, dict[str, Dumped]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._task_fault: BaseException | None = None
        # asked for; and whose results have come
        self._batches = self._done = 0
        self._loaded = False

    # -------------------------------------------------------------------------------------------- connection

    def check(self, graph: Graph) -> None:
        """Raises `WiringError`, with all problems, where the wiring is of another graph."""
        _check(self.wiring, graph)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end_tasks()
        await super().__aexit__(kind, error, trace)

    async def begin_anew(self) -> int:
        """After `DeviceReset`: reset all devices, to a later epoch, and load the last checkpoint into them; the batches
        behind it, from which on they are to be fed again."""
        kept, loaded = self.kept(), self.emulator.executor.batches
        if kept is not None and kept > loaded:
            await self.take_state(kept)
        await self._end_tasks()
        self._task_fault = None
        self._came = {}
        for asked in self._asked.values():
            asked.clear()
        await self._connect((self._endpoint.epoch + 1) % EPOCHS)
        self._loaded = False
        await self.load_state(self.emulator.executor)
        return self._batches

    @property
    def batches(self) -> int:
        """Batches behind the state that devices were asked to train to."""
        return self._batches

    # -------------------------------------------------------------------------------------------- streams

    async def _until_wanted(self) -> None:
        """Until devices have so few batches whose results are missing that they may wait for the next."""
        recipe = self.emulator.graph.recipe
        ahead = AHEAD_BATCHES + -(-recipe.staleness // recipe.batch)
        await self._until(lambda: self._stop or self._batches - self._done < ahead)

    async def _until_ahead(self, streams: Sequence[Outgoing]) -> None:
        """Until there is room for more to be kept ready."""
        self._endpoint.soon()
        await self._until(lambda: all(stream.backlog < AHEAD_BYTES for stream in streams))

    async def _until(self, ready: Any) -> None:
        await self._endpoint.until(lambda: self._task_fault is not None or ready())
        if self._task_fault is not None:
            raise self._task_fault

    def _state_streams(self, carries: str) -> Iterator[tuple[DeviceTable, StreamTable]]:
        for device in self.wiring.device:
            for stream in self.wiring.streams_of(device.name, (carries,)):
                yield device, stream

    def _tell(self, record: Record) -> None:
        """A record for every device that has state."""
        for device, stream in self._state_streams("load"):
            self._say(stream, [record])
            if record.kind is Kind.DUMP:
                self._asked[device.name].append(self._batches)
        self._endpoint.soon()

    def _say(self, stream: StreamTable, records: Sequence[Record]) -> None:
        layout = stream.layout(self.wiring.word_bits)
        size = layout.word_bits // 8
        words = b"".join(word.to_bytes(size, "little") for word in words_of(records))
        self._outgoing(stream).offer(words)

    # -------------------------------------------------------------------------------------------- state

    async def load_state(self, source: Path | Executor | None = None) -> Any:
        """Load a checkpoint, an executor's state, or what the graph begins with, into devices that were just reset;
        the record of the checkpoint.  Raises `StorageError` for a checkpoint of another graph."""
        if self._loaded:
            raise StateError("state is loaded once after a reset", "leave the cluster and enter it again")
        self._loaded = True
        record = None
        if isinstance(source, Path):
            record = self.emulator.load(source)
        elif source is not None:
            self.emulator.executor = source
        executor = self.emulator.executor
        self._batches = executor.batches
        for device, stream in self._state_streams("load"):
            self._say(stream, load_records(executor, device.links))
        self._states = {self._batches: held(executor)}
        self._tasks = [
            asyncio.create_task(self._guarded(partial(self._read_dumps, device, stream)))
            for device, stream in self._state_streams("dump")
        ]
        await self._until_ahead([self._outgoing(stream) for _, stream in self._state_streams("load")])
        return record

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """A task whose error reaches whoever waits."""
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._task_fault = self._task_fault or error
        finally:
            self._endpoint.soon()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def _read_dumps(self, device: DeviceTable, stream: StreamTable) -> None:
        """What comes out of a device's chain: records that all have read, and states in front of each DUMP."""
        incoming = self._incoming(stream)
        # of the longest record that this chain knows
        most = max([1, *(link.words for link in device.links)])
        words: list[int] = []
        states: list[int] = []
        while True:
            await self._endpoint.until(lambda: bool(incoming.tensors))
            while incoming.tensors:
                words += [int(word) & (1 << 64) - 1 for word in incoming.layout.decode(incoming.get())]
            self._endpoint.soon()
            while words and len(words) > (behind := _behind(words[0], most, device.name)):
                record, words = words[: 1 + behind], words[1 + behind :]
                (read,) = records_of(record)
                if read.kind is Kind.LOAD:
                    raise StateError(f"{device.name} has no use for {behind} words of state", "load its own plan")
                if read.kind in (Kind.STATE, Kind.DUMP):
                    states += record
                if read.kind is Kind.DUMP:
                    self._dumped(device, states)
                    states = []

    def _dumped(self, device: DeviceTable, words: Sequence[int]) -> None:
        if not self._asked[device.name]:
            raise StateError(f"{device.name} dumped state that nobody asked for", "reset the cluster")
        batches = self._asked[device.name].popleft()
        came = self._came.setdefault(batches, {})
        came[device.name] = dumped(words, device.links, batches)
        if len(came) == len(self._asked_devices()):
            del self._came[batches]
            found = Dumped(batches, {})
            for part in came.values():
                found = found | part
            newest = {number: state for number, state in self._states.items() if number >= batches - 2}
            self._states = {**newest, batches: found}

    def _asked_devices(self) -> list[str]:
        return [device.name for device, _ in self._state_streams("load")]

    def kept(self) -> int | None:
        """Batches behind the newest checkpoint that can be saved."""
        rounds = self.wiring.rounds
        whole = [n for n in self._states if rounds == 1 or n - 1 in self._states]
        return max(whole, default=None)

    async def take_state(self, batches: int | None = None) -> int:
        """Let `emulator` stand where a checkpoint does, the newest that was asked for or one that `kept` has told; the
        batches behind it."""
        pending = [*self._came, *(number for asked in self._asked.values() for number in asked)]
        if pending and batches is None:
            newest = max(pending)
            await self._until(lambda: newest in self._states)
        batches = self.kept() if batches is None else batches
        if batches is None:
            raise StateError("there is no state to save", "train a batch first")
        earlier = self._states.get(batches - 1) if self.wiring.rounds > 1 else None
        self.emulator.executor = restored(self.emulator.graph, self._states[batches], earlier)
        return batches

    async def save_state(self, path: Path, record: Any = None) -> int:
        """Write that checkpoint as `dagtrain train` writes them; the batches behind it."""
        batches = await self.take_state()
        self.emulator.save(path, record)
        return batches

    # -------------------------------------------------------------------------------------------- training

    def stop(self) -> None:
        """End training behind the next batch whose state can be kept."""
        self._stop = True
        self._endpoint.soon()

    async def train(self, batches: Iterable[Feeds], every: int = 0) -> AsyncIterator[Trained]:
        """Feed batches and give what came of each.  State is kept behind every ``every``-th batch and the last.  Raises
        `DeviceReset` where `begin_anew` goes on."""
        if not self._loaded:
            await self.load_state()
        self._stop = False
        self._done = self._batches
        feeding = asyncio.create_task(self._guarded(partial(self._feed, batches, every)))
        self._tasks.append(feeding)
        stream = self.wiring.only("result")
        incoming, batch = self._incoming(stream), self.wiring.batch
        found: list[bytes] = []
        since = time.monotonic()
        while True:
            await self._until(lambda: bool(incoming.tensors) or (feeding.done() and self._done == self._batches))
            if not incoming.tensors:
                break
            while incoming.tensors and len(found) < batch:
                found.append(incoming.get())
            self._endpoint.soon()
            if len(found) == batch:
                now = time.monotonic()
                self._done += 1
                records = incoming.layout.decode(b"".join(found), signed=True)
                yield Trained(
                    batch=self._done,
                    metrics=_metrics(records),
                    images_per_second=batch / max(1e-9, now - since),
                    records=records,
                    devices=self.devices,
                )
                found, since = [], now
        self._tasks.remove(feeding)

    async def _feed(self, batches: Iterable[Feeds], every: int) -> None:
        """RUN, images and labels of each batch, DUMP behind those to be kept and, where two states make one checkpoint,
        behind those before."""
        ahead, rest = self.wiring.rounds, iter(batches)
        coming = deque(islice(rest, ahead))
        while coming:
            feeds = coming.popleft()
            self._tell(Record(Kind.RUN, (1,)))
            self._batches += 1
            await self._feed_frames(feeds)
            await self._until_wanted()
            if self._stop:
                rest, coming = iter(()), deque(islice(coming, ahead - 1))
            coming.extend(islice(rest, 1))
            kept = every and any((self._batches + later) % every == 0 for later in range(ahead))
            if kept or len(coming) < ahead:
                self._tell(Record(Kind.DUMP))

    async def _feed_frames(self, feeds: Feeds) -> None:
        streams = []
        for name, carries in ((self.image, "image"), (self.label, "label")):
            port = self.emulator.graph.by_name[name].layer.sources[0]
            codes: IntArray = port.tensor.fixed.encode(feeds[name])
            if len(codes) != self.wiring.batch or codes[0].size != port.elements:
                raise DagtrainError(f"{name} is fed {codes.shape}, not {self.wiring.batch} of {port.elements} numbers")
            outgoing = self._outgoing(self.wiring.only(carries))
            mask = (1 << outgoing.layout.element_bits) - 1
            outgoing.offer(outgoing.layout.encode(codes.reshape(len(codes), -1) & mask))
            streams.append(outgoing)
        await self._until_ahead(streams)


def _check(wiring: Wiring, graph: Graph) -> None:
    """Raises `WiringError`, with all problems, where a wiring is of another graph."""
    image, label, output = (graph.by_name[name].layer for name in host_ports(graph))
    wanted: list[tuple[str, object, object]] = [
        ("batch", wiring.batch, graph.recipe.batch),
        ("rounds", wiring.rounds, rounds(graph.recipe.staleness)),
    ]
    for carries, port in (("image", image.sources[0]), ("label", label.sources[0]), ("result", output.sinks[0])):
        stream = wiring.only(carries)
        wanted.append((f"element_bits of the {carries} stream", stream.element_bits, port.tensor.fixed.width))
        wanted.append((f"elements of the {carries} stream", stream.elements, port.elements))
    problems = [f"{what} {given} where the plan has {own}" for what, given, own in wanted if given != own]
    told = {link.node: link.words for device in wiring.device for link in device.links if link.words}
    own = {link.node: link.words for link in links_of(graph.nodes, graph) if link.words}
    for node in sorted({*told, *own}):
        if told.get(node) != own.get(node):
            problems.append(
                f"{told.get(node, 'no')} words of state of {node} where the plan has {own.get(node, 'none')}"
            )
    if problems:
        cure = "emit again, and load all devices anew"
        raise WiringError.listing(f"the addresses are not of this plan of {graph.name}", problems, cure, lines=True)


def _behind(header: int, most: int, device: str) -> int:
    """Words behind a header.  Raises `StateError` for what is none: a count is believed only of a known kind, and of no
    more words than any record of the device has."""
    if header & ((1 << KIND_BITS) - 1) not in set(Kind):
        list(records_of([header]))
    if (count := header >> COUNT_AT) > most:
        raise StateError(f"{device} speaks of {count} words of state, where {most} are the most", "load its own plan")
    return count


def _metrics(records: IntArray) -> Metrics:
    loss, right = METRICS.decode(records[:, 0]), records[:, 1]
    return Metrics(len(records), float(loss.mean()), float(right.mean()))
