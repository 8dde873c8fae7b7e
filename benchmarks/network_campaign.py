"""The long fault campaign of docs/network.md: by seed frames are lost, doubled, reordered and damaged, and in each run
a port is down for a while, and a device is reset in mid batch and brought back.

python benchmarks/network.py --campaign build/digits-ethernet --seeds 100

All runs are of one program: nothing that is compiled follows from a seed.  What each came to is kept in
``network_campaign.json`` beside this file as it ends, and not run again: the campaign may be ended and begun at any
time, and the table is of all that is kept.  A run that stands still, or has a wrong bit, is kept like any other and
named below the table.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.network_faults import uncounted
from dagtrain.cosim.cluster import framed_devices
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.resets import RESET_CYCLES, train_through_resets
from dagtrain.cosim.switch_host import wiring_of
from dagtrain.files import write_text
from dagtrain.flow.cosim_step import CosimOptions, Prepared, prepared
from dagtrain.flow.emit_step import COMMAND, library
from dagtrain.flow.workspace import Workspace, digest, file_digests
from hdl.errors import DagtrainError
from hdl.simulate.models.ethernet import RATES, Faults, chance

KEPT = Path(__file__).with_suffix(".json")
# the greatest share of frames to which each thing happens, but for each tenth seed
RARE, OFTEN, SHARE = 1e-3, 5e-2, 10
# cycles for which a port is down; batches of a run, the fewest between which weights are trained
DOWN_CYCLES, BATCHES = 10_000, 2
# of what is compiled
BENCH_SEED = 1
COUNTS = ("frames", "lost", "doubled", "reordered", "corrupted", "down", "again")


@dataclass(frozen=True)
class Planned:
    """A run: what befalls the cluster follows from the seed."""

    seed: int

    @property
    def often(self) -> bool:
        """Whether it is one of those with many faults."""
        return self.seed % SHARE == 0

    def number(self, purpose: int, below: int) -> int:
        """A random one."""
        return chance(self.seed, 0, 0, purpose) % below

    def rates(self) -> dict[str, float]:
        """Of each thing that may happen to a frame."""
        if self.often:
            return dict.fromkeys(RATES, OFTEN)
        return {name: RARE * (1 + self.number(at, 1000)) / 1000 for at, name in enumerate(RATES)}

    def stretch(self, cycles: int, devices: int, purpose: int, length: int) -> tuple[int, int, int]:
        """(port, first cycle, the one behind the last) in the middle half of the time of batches."""
        first = cycles // 4 + self.number(purpose, cycles // 2)
        return self.number(purpose + 1, devices), first, first + length

    def network(self, cycles: int, devices: int) -> tuple[Faults, tuple[int, int, int]]:
        """Faults, with a port down, and the reset, in so many cycles of batches."""
        down = self.stretch(cycles, devices, len(RATES), DOWN_CYCLES)
        return Faults(**self.rates(), down=(down,)), self.stretch(cycles, devices, len(RATES) + 2, RESET_CYCLES)

    def run(self, ready: Prepared, folder: Path) -> tuple[ClusterRun, int]:
        """What it comes to, and the port of the device that is reset."""
        cycles = BATCHES * ready.delivered.cycles_per_frame * ready.graph.recipe.batch
        faults, reset = self.network(cycles, len(framed_devices(ready.delivered)))
        network = replace(ready.network, faults=faults, resets=(reset,), seed=self.seed, capture=True)
        parts = ready.delivered, ready.graph, library(), ready.feeds, folder, network, BENCH_SEED
        return train_through_resets(*parts, lambda _: None, optimise=True), reset[0]


def campaign(folder: Path, seeds: int, kept: Path = KEPT) -> Iterator[str]:
    """Runs all that are not kept, and says of each what it came to.

    Raises `DagtrainError` where nothing fit was emitted, or other files than those of the runs that are kept."""
    workspace = Workspace(folder)
    ready = prepared(workspace, CosimOptions(batches=BATCHES, stall=0.0, efficiency=False))
    if not framed_devices(ready.delivered):
        raise DagtrainError(
            f"{folder} has no devices with Ethernet ports", "emit a cluster file with kind = 'ethernet'"
        )
    emitted = digest(file_digests("emit", workspace.require("emit", COMMAND)))
    known = _known(kept) or {"emitted": emitted, "runs": {}}
    if known["emitted"] != emitted:
        raise DagtrainError(
            f"{kept} is of other files than {folder} has: `{COMMAND}` gave others then", f"remove {kept}"
        )
    for seed in range(1, seeds + 1):
        if str(seed) not in known["runs"]:
            known["runs"][str(seed)] = found = _came_of(Planned(seed), ready)
            write_text(kept, json.dumps(known, indent=1, sort_keys=True) + "\n")
            came = found["stands"] or found["wrong"] or found["uncounted"] or "every bit equal"
            yield f"seed {seed} of {seeds}: {found['words']:,} words, {came}"


def _known(kept: Path) -> dict[str, Any] | None:
    return json.loads(kept.read_text()) if kept.is_file() else None


def _came_of(planned: Planned, ready: Prepared) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dagtrain-campaign-") as name:
        folder = Path(name)
        try:
            run, began_anew = planned.run(ready, folder)
        except DagtrainError as error:
            return {"words": 0, "wrong": [], "stands": str(error), "uncounted": []}
        missed = [] if run.resets else ["a device was reset, and nobody brought it back"]
        return {
            "words": run.compared_words,
            "wrong": list(run.mismatches),
            "stands": "",
            "uncounted": [*uncounted(run, folder, wiring_of(ready.delivered).form, began_anew), *missed],
            "cycles": run.cycles,
            "resets": run.resets,
            **{name: sum(getattr(pair, name) for pair in run.pairs) for name in COUNTS},
        }


def campaign_table(kept: Path = KEPT) -> tuple[str, bool]:
    """All runs that are kept as Markdown, and whether all of them are right."""
    runs = (_known(kept) or {"runs": {}})["runs"]
    rows: dict[bool, list[Mapping[str, Any]]] = {}
    wrong = []
    for seed, run in sorted(runs.items(), key=lambda item: int(item[0])):
        rows.setdefault(Planned(int(seed)).often, []).append(run)
        wrong += [f"seed {seed}: {what}" for what in (*run["wrong"], run["stands"], *run["uncounted"]) if what]
    lines = [
        "| faults | seeds | words compared | wrong bits in | stood still | not counted in | brought back "
        "| frames | lost | doubled | reordered | damaged | down | sent again |",
        "|" + " --- |" * 14,
        *(_row(often, found) for often, found in sorted(rows.items())),
    ]
    return "\n".join([*lines, *wrong]), not wrong


def _row(often: bool, runs: list[Mapping[str, Any]]) -> str:
    def total(name: str) -> int:
        return sum(run.get(name, 0) for run in runs)

    counts = [sum(bool(run[name]) for run in runs) for name in ("wrong", "stands", "uncounted")]
    rate = f"all, {OFTEN:g}" if often else f"each up to {RARE:g}"
    told = [total("words"), *counts, total("resets"), *map(total, COUNTS)]
    return f"| {rate} | {len(runs)} | {' | '.join(f'{count:,}' for count in told)} |"
