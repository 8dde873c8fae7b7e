"""The fault campaign of docs/network.md: a cluster trains over Ethernet in Verilator while the network does its worst.

python benchmarks/network.py --faults build/digits-ethernet --seeds 100 --batches 4

The folder is that of `dagtrain --out`, in which a cluster over Ethernet was emitted.  Every run is compared with the
emulator in every bit; every frame that arrives damaged must be counted by whom it reaches, for the cause that the codec
gives.  Stops with a message at the first run that fails in either.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dagtrain.cosim.cluster import framed_devices, simulate_cluster
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.network import damaged
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.switch_host import wiring_of
from dagtrain.flow.cosim_step import CosimOptions, Prepared, prepared
from dagtrain.flow.emit_step import library
from dagtrain.flow.workspace import Workspace
from dagtrain.progress import Silent
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import Drop, FrameFormat
from hdl.link.ethernet.receiver import Cause
from hdl.simulate.models.ethernet import Faults

# what frames are damaged by: causes that the codec and circuits give alike
DAMAGE = (Cause.SHORT, Cause.FOREIGN, Cause.CHECKSUM, Cause.VERSION, Cause.LENGTH, Cause.CRC, Cause.TAG)
RARE, OFTEN = 1e-3, 5e-2
# of every seed only the first row is run; of the others each tenth
SHARE = 10
# port, first cycle, and the one behind the last
DOWN = (1, 50_000, 60_000)


def _all(rate: float) -> Faults:
    return Faults(loss=rate, duplicate=rate, reorder=rate, corrupt=rate)


# row → what the network does, and whether every seed is run
ROWS: dict[str, tuple[Faults, bool]] = {
    "none": (Faults(), False),
    f"all, {RARE:g}": (_all(RARE), True),
    f"loss, {RARE:g}": (Faults(loss=RARE), False),
    "loss, 0.01": (Faults(loss=1e-2), False),
    f"all, {OFTEN:g}": (_all(OFTEN), False),
    "a port down for 10 000 cycles": (Faults(down=(DOWN,)), False),
}


@dataclass(frozen=True)
class Row:
    """What the runs of a row came to, summed."""

    name: str
    loss: float
    runs: tuple[ClusterRun, ...]

    def total(self, name: str) -> int:
        """Of all pairs of all runs."""
        return sum(getattr(pair, name) for run in self.runs for pair in run.pairs)

    @property
    def cycles(self) -> float:
        """Of a run."""
        return sum(run.cycles for run in self.runs) / len(self.runs)

    @property
    def busiest(self) -> tuple[float, float]:
        """Of the pair that sends most: the part of the cable's time that is left for what was not sent before, and
        frames a cycle."""
        pairs = {(pair.source, pair.target) for run in self.runs for pair in run.pairs}

        def of(pair: tuple[int, int], name: str) -> int:
            return sum(getattr(one, name) for run in self.runs for one in run.pairs if (one.source, one.target) == pair)

        most = max(pairs, key=lambda pair: of(pair, "sent_bytes"))
        left = 1 - of(most, "again_bytes") / of(most, "sent_bytes")
        return left, of(most, "frames") / (self.cycles * len(self.runs))


def campaign(folder: Path, seeds: int, batches: int) -> Iterator[Row]:
    """Every row of the table.  Raises `SystemExit` where a bit is wrong or a fault is not counted, and `DagtrainError`
    where nothing fit was emitted, or nothing moves any more."""
    ready = prepared(Workspace(folder), CosimOptions(batches=batches, stall=0.0, efficiency=False))
    if not framed_devices(ready.delivered):
        raise DagtrainError(
            f"{folder} has no devices with Ethernet ports", "emit a cluster file with kind = 'ethernet'"
        )
    for name, (faults, each) in ROWS.items():
        count = seeds if each else max(1, seeds // SHARE)
        runs = tuple(_run(ready, faults, seed) for seed in range(1, count + 1))
        yield Row(name, faults.loss, runs)


def _run(ready: Prepared, faults: Faults, seed: int) -> ClusterRun:
    network = replace(ready.network, faults=faults, seed=seed, capture=True)
    with tempfile.TemporaryDirectory(prefix="dagtrain-faults-") as name:
        folder = Path(name)
        run = simulate_cluster(
            ready.delivered, ready.graph, library(), ready.feeds, folder, Simulator.VERILATOR, network, 0, 1, Silent()
        )
        if run.mismatches:
            raise SystemExit(f"seed {seed}, {faults}: {'; '.join(run.mismatches)}")
        for what in uncounted(run, folder, wiring_of(ready.delivered).form):
            raise SystemExit(f"seed {seed}, {faults}: {what}")
    return run


def uncounted(run: ClusterRun, folder: Path, form: FrameFormat, skipped: int | None = None) -> Iterator[str]:
    """Who has counted other frames as damaged than came to it, or given up or been short of room; ``skipped``: the port
    of a device whose counters began anew."""
    wanted = damaged(folder, form)
    for number, port in enumerate(run.ports):
        if number == skipped:
            continue
        found = {cause.name: port.dropped[cause] for cause in DAMAGE if port.dropped[cause]}
        came: Mapping[str, int] = wanted.get(number, {})
        if found != dict(came):
            yield f"{port.top} counted {found}, where {dict(came)} came"
        if port.dropped[Cause.OVERRUN] or port.faults:
            yield f"{port.top} had no room for {port.dropped[Cause.OVERRUN]} frames, flags {port.faults:#x}"
    host = {Drop(name).name: count for name, count in run.host_dropped.items()}
    found = {cause.name: host[cause.name] for cause in DAMAGE if cause.name in host}
    came = wanted.get(len(run.ports), {})
    if found != dict(came):
        yield f"the host counted {found}, where {dict(came)} came"


def faults_table(folder: Path, seeds: int, batches: int, latency: int = CosimOptions().latency_cycles) -> str:
    """The campaign as Markdown."""
    rows = list(campaign(folder, seeds, batches))
    # frames on their way between the busiest pair: there and back
    window = rows[0].busiest[1] * 2 * latency
    return "\n".join(
        [
            "| faults | runs | words compared | wrong | frames | lost | doubled | reordered | damaged | down "
            "| sent again | cycles | left | 1 / (1 + p · W) |",
            "|" + " --- |" * 14,
            *(_line(row, rows[0], window) for row in rows),
        ]
    )


def _line(row: Row, good: Row, window: float) -> str:
    counts: Sequence[int] = [
        row.total(name) for name in ("frames", "lost", "doubled", "reordered", "corrupted", "down", "again")
    ]
    words = sum(run.compared_words for run in row.runs)
    lossy = row.loss or row is good
    cells = [
        row.name,
        f"{len(row.runs)}",
        f"{words:,}",
        f"{sum(len(run.mismatches) for run in row.runs)}",
        *(f"{count:,}" for count in counts),
        f"× {row.cycles / good.cycles:.3f}",
        f"{row.busiest[0]:.4f}",
        f"{1 / (1 + row.loss * window):.4f}" if lossy else "",
    ]
    return f"| {' | '.join(cells)} |"
