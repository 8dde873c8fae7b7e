"""`dagtrain drive`: train a cluster on Ethernet from here, and keep what it has learnt.

Data, their order and checkpoints are those of `dagtrain train`: a checkpoint of the one goes on in the other.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dagtrain.files import write_text
from dagtrain.flow.hosting import host_settings
from dagtrain.flow.placed import graph_of, load_placed_graph, load_plan
from dagtrain.flow.result import Interrupted, StepResult
from dagtrain.flow.train_step import DRIVEN, NO_DATA, data_name, epoch_record, other_keys, training_of
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace
from dagtrain.host.cluster import Cluster, Feeds, Trained
from dagtrain.host.endpoint import DeviceReset
from dagtrain.host.twin import Twin
from dagtrain.host.wiring import ADDRESSES, read_wiring
from dagtrain.passes.access_state import access_state
from dagtrain.planning.choices import folded_graph
from dagtrain.progress import Panel, Progress
from dagtrain.training.curves import Curves
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import NO_METRICS, Emulator, Metrics
from dagtrain.training.feeds import check_dataset
from dagtrain.training.spec import choose_data
from hdl.errors import DagtrainError

HEADINGS = ("device", "sent", "heard", "again", "dropped", "round trip, ms", "credits")


@dataclass(frozen=True, kw_only=True)
class DriveOptions:
    """What the user said."""

    # where all frames go, ADDRESS[:PORT]; None: to each device's own address
    host: str | None = None
    # the address and port to take here
    bind: str | None = None
    # what a host knows of the cluster; None: as emitted
    addresses: Path | None = None
    epochs: int = 1
    data: str | None = None
    held_out: str | None = None
    stratify: bool = False
    seed: int = 1
    # checkpoints to write, and to go on from
    save: Path | None = None
    resume: Path | None = None
    # batches between checkpoints within an epoch
    every: int = 50
    # train the same in the emulator, and compare every loss and all state
    compare: bool = False
    # write event files too
    tensorboard: bool = False
    # seconds in which every device must answer
    answer_seconds: float = 10.0


@dataclass
class _Drive:
    """A training of a cluster under way."""

    cluster: Cluster
    data: Dataset
    held_out: Dataset
    options: DriveOptions
    identity: Mapping[str, Any]
    epochs: list[dict[str, float]] = field(default_factory=list)
    # of the batches of the next epoch, by the number of batches behind them
    begun: dict[int, Metrics] = field(default_factory=dict)
    # batches that the checkpoint has
    saved: int = 0
    twin: Twin | None = None
    # batches whose losses were told; how often devices began anew, and behind which of those batches last
    told: int = 0
    resets: int = 0
    reset_at: int = -1
    interrupted: bool = False

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return len(self.data) // self.cluster.wiring.batch

    def take_up(self, record: Any) -> None:
        """Go on behind a checkpoint.  Raises `DagtrainError` where it is of another training."""
        path = self.options.resume
        assert path is not None
        known, self.epochs, begun = training_of(record, path)
        if other := other_keys(known, self.identity):
            raise DagtrainError(f"{path} is of a training with other {other}", "give what it was trained with")
        self.saved = self.cluster.batches
        self.begun = {self.saved: begun}

    def begin_twin(self) -> None:
        """Compare with an emulator that begins as the cluster does."""
        emulator = Emulator(self.cluster.emulator.graph)
        if self.options.resume is not None:
            emulator.load(self.options.resume)
        self.twin = Twin(emulator, self.data)

    def save(self, batches: int) -> None:
        """Write the emulator's state, behind so many batches, if that is wanted."""
        if self.options.save is None or (batches == self.saved and self.options.save.exists()):
            return
        begun = self.begun.get(batches, NO_METRICS)
        record = {"identity": self.identity, "epochs": self.epochs, "begun": asdict(begun)}
        self.cluster.emulator.save(self.options.save, record)
        self.saved = batches

    def feeds(self, epoch: int) -> Iterator[Feeds]:
        """Of the batches of an epoch that are not trained yet."""
        first = epoch * self.per_epoch
        for number, index in enumerate(self.data.batches(self.cluster.wiring.batch, self.options.seed, epoch), first):
            if number >= self.cluster.batches:
                if self.twin is not None:
                    self.twin.feed(index, (epoch, number))
                yield self.cluster.emulator.feeds(self.data, index, (epoch, number))

    async def epoch(self, curves: Curves, progress: Progress) -> bool:
        """The next epoch; whether it came to its end."""
        epoch, cluster = len(self.epochs), self.cluster
        while True:
            try:
                total, batches = await self._trained(epoch, curves, progress)
                break
            except DeviceReset as fault:
                if self.reset_at == self.told:
                    raise
                self.reset_at = self.told
                self.resets += 1
                behind = await cluster.begin_anew()
                progress.advance(0, note=f"{fault.what}: all go on from batch {behind}")
        if self.twin is not None:
            self.twin.check_state(cluster.emulator)
        whole = batches == (epoch + 1) * self.per_epoch
        if whole:
            # in a thread, so that devices do not wait for an answer
            tested = await asyncio.to_thread(cluster.emulator.evaluate, self.held_out)
            self.epochs.append(epoch_record(epoch, total, tested))
            self.begun = {}
            curves.add(batches, self.epochs[-1])
        self.save(batches)
        return whole

    async def _trained(self, epoch: int, curves: Curves, progress: Progress) -> tuple[Metrics, int]:
        """All of an epoch that is not trained yet: its metrics, and the batches behind the state that was kept."""
        cluster = self.cluster
        total = self.begun.get(cluster.batches, NO_METRICS)
        every = self.options.every if self.options.save else 0
        async for trained in cluster.train(self.feeds(epoch), every):
            total += trained.metrics
            if trained.batch > self.told:
                self.told = trained.batch
                self.begun[trained.batch] = total
                if self.twin is not None:
                    await self.twin.check(trained)
                self._tell(trained, total, curves, progress)
            kept = cluster.kept()
            if every and kept is not None and kept > self.saved and kept % every == 0:
                self.save(await cluster.take_state(kept))
        return total, await cluster.take_state()

    def _tell(self, trained: Trained, total: Metrics, curves: Curves, progress: Progress) -> None:
        figures = {
            "epoch": len(self.epochs) + 1,
            "batch_loss": trained.metrics.loss,
            "batch_accuracy": trained.metrics.accuracy,
            "images_per_second": trained.images_per_second,
            "retransmitted": sum(device.retransmitted for device in trained.devices),
        }
        curves.add(trained.batch, figures)
        progress.advance(note=f"{trained.images_per_second:,.0f} images/s; {total}")
        if isinstance(progress, Panel):
            progress.show([HEADINGS, *map(_row, trained.devices)])

    def stop(self) -> None:
        """Ctrl-C: end where a checkpoint can be kept; a second one ends at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.cluster.stop()


def _row(device: Any) -> tuple[str, ...]:
    dropped = ", ".join(f"{count} {cause}" for cause, count in device.drops.items()) or "0"
    rtt = "" if device.rtt_us is None else f"{device.rtt_us / 1000:.2f}"
    counts = (f"{count:,}" for count in (device.sent, device.heard, device.retransmitted))
    return device.name, *counts, dropped, rtt, f"{device.credits:,} of {device.most_credits:,}"


def run(workspace: Workspace, options: DriveOptions, progress: Progress) -> StepResult:
    """Train a cluster over the network."""
    problems = [
        f"--{name} must be at least 1, not {value}"
        for name, value in (("epochs", options.epochs), ("every", options.every))
        if value < 1
    ]
    if problems:
        raise DagtrainError.listing("", problems)
    source = data_name(workspace, options.data)
    if source is None:
        raise DagtrainError(NO_DATA.replace("train needs", "drive needs"))
    graph = access_state(folded_graph(load_placed_graph(workspace), load_plan(workspace)))
    wiring = read_wiring(options.addresses or workspace.folder("emit") / ADDRESSES)
    choice = choose_data(source, options.held_out, options.stratify)
    data, held_out = (
        check_dataset(graph, part, name) for part, name in zip(choice.parts(options.seed), choice.names, strict=True)
    )
    cluster = Cluster(wiring, graph, host_settings(options.host, options.bind, wiring, options.answer_seconds))
    identity = {"data": choice.digest, "seed": options.seed, "steps": graph_of(workspace)}
    drive = _Drive(cluster, data, held_out, options, identity)
    folder = workspace.root / DRIVEN
    try:
        asyncio.run(_train(drive, folder, progress))
    except KeyboardInterrupt:
        drive.interrupted = True
    if drive.interrupted:
        kept = drive.saved and options.save and options.save.exists()
        cure = f"--resume {options.save} goes on" if kept else "nothing is kept without --save"
        where = f"a checkpoint stands at batch {drive.saved}: {cure}" if kept else cure
        if drive.told:
            _result(drive, folder)
        found = [] if drive.twin is None else [_verdict(drive.twin)]
        raise Interrupted("\n".join([f"interrupted; {where}", *found]))
    return _result(drive, folder)


async def _train(drive: _Drive, folder: Path, progress: Progress) -> None:
    options, cluster = drive.options, drive.cluster
    async with cluster:
        record = await cluster.load_state(options.resume)
        if options.resume is not None:
            drive.take_up(record)
        if options.compare:
            drive.begin_twin()
        curves = Curves(folder, folder, cluster.batches, options.tensorboard)
        with suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, drive.stop)
        try:
            progress.begin("drive", options.epochs * drive.per_epoch)
            progress.advance(cluster.batches)
            while len(drive.epochs) < options.epochs and not drive.interrupted:
                await drive.epoch(curves, progress)
        finally:
            curves.close()
        progress.end()


def _compared(twin: Twin) -> dict[str, Any]:
    return {"batches": twin.batches, "words": twin.words, "mismatches": twin.mismatches}


def _verdict(twin: Twin) -> str:
    verdict = "every bit equal" if not twin.mismatches else "MISMATCH: " + "; ".join(twin.mismatches[:5])
    return f"{twin.batches} batches and {twin.words:,} words of state against the emulator: {verdict}"


def _result(drive: _Drive, folder: Path) -> StepResult:
    devices = [asdict(device) for device in drive.cluster.devices]
    meta = {
        "schema_version": SCHEMA_VERSION,
        "batches": drive.cluster.batches,
        "resets": drive.resets,
        "epochs": drive.epochs,
        "saved": str(drive.options.save) if drive.options.save else None,
        "devices": devices,
        **({} if drive.twin is None else {"compared": _compared(drive.twin)}),
    }
    write_text(folder / "drive.json", json.dumps(meta, indent=1) + "\n")
    lines = [f"{drive.cluster.batches} batches on {len(devices)} devices"]
    if drive.epochs:
        last = drive.epochs[-1]
        lines.append(f"held-out accuracy {last['held_out_accuracy']:.2%}, loss {last['held_out_loss']:.4f}")
    lines += [f"{', '.join(f'{n} {c}' for c, n in d['drops'].items())} frames of {d['name']} dropped, "
              f"{d['retransmitted']} sent again" for d in devices if d["drops"]]  # fmt: skip
    if drive.resets:
        lines.append(f"devices began anew {drive.resets} times, and all of them from a checkpoint")
    if drive.options.save:
        lines.append(f"checkpoint at batch {drive.saved}: {drive.options.save}")
    twin = drive.twin
    if twin is not None:
        lines.append(_verdict(twin))
    return StepResult("drive", folder, True, tuple(lines), meta, passed=twin is None or not twin.mismatches)
