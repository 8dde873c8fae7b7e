"""The long fault campaign of docs/network.md: faults of many seeds, ports down, devices reset.

python benchmarks/network.py --campaign build/digits-ethernet --seeds 100

What each run came to is kept in ``network_campaign.json`` beside this file as it ends, and not run again:
the campaign may be ended and begun at any time, and the table is of all that is kept.  A run that stands still, or
has a wrong bit, is kept like any other and named below the table.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.network_faults import uncounted
from dagtrain.cosim.cluster import framed_devices, simulate_cluster
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.resets import RESET_CYCLES, train_through_resets
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.switch_host import wiring_of
from dagtrain.files import write_text
from dagtrain.flow.cosim_step import CosimOptions, Prepared, prepared
from dagtrain.flow.emit_step import COMMAND, library
from dagtrain.flow.workspace import Workspace
from dagtrain.progress import Silent
from hdl.errors import DagtrainError
from hdl.simulate.models.ethernet import RATES, Faults, chance

KEPT = Path(__file__).with_suffix(".json")
# the greatest share of frames to which each thing happens, but for each tenth seed
RARE, OFTEN, SHARE = 1e-3, 5e-2, 10
# cycles for which a port is down; batches of a run, the fewest between which weights are trained
DOWN_CYCLES, BATCHES = 10_000, 2
DOWN, RESET = "a port down", "a device reset"
KINDS = (DOWN, RESET)
COUNTS = ("frames", "lost", "doubled", "reordered", "corrupted", "down", "again")


@dataclass(frozen=True)
class Planned:
    """A run: what befalls the cluster follows from seed and kind."""

    seed: int
    kind: str

    @property
    def often(self) -> bool:
        """Whether it is one of those with many faults."""
        return self.seed % SHARE == 0

    @property
    def name(self) -> str:
        """Among what is kept."""
        return f"{self.seed} {self.kind}"

    def number(self, purpose: int, below: int) -> int:
        """A random one."""
        return chance(self.seed, KINDS.index(self.kind), 0, purpose) % below

    def rates(self) -> dict[str, float]:
        """Of each thing that may happen to a frame."""
        if self.often:
            return dict.fromkeys(RATES, OFTEN)
        return {name: RARE * (1 + self.number(at, 1000)) / 1000 for at, name in enumerate(RATES)}

    def port(self, ready: Prepared) -> int:
        """That goes down, or whose device is reset."""
        return self.number(len(RATES) + 1, len(framed_devices(ready.delivered)))

    def run(self, ready: Prepared, batch_cycles: int, folder: Path) -> ClusterRun:
        """What it comes to; the port goes down, or its device is reset, in the middle half of the time of batches."""
        span = BATCHES * batch_cycles
        first, port = span // 4 + self.number(len(RATES), span // 2), self.port(ready)
        network = replace(ready.network, faults=Faults(**self.rates()), seed=self.seed, capture=True)
        parts = ready.delivered, ready.graph, library(), ready.feeds, folder
        if self.kind == RESET:
            network = replace(network, resets=((port, first, first + RESET_CYCLES),))
            return train_through_resets(*parts, network, self.seed, lambda _: None)
        down = replace(network.faults, down=((port, first, first + DOWN_CYCLES),))
        return simulate_cluster(
            *parts, Simulator.VERILATOR, replace(network, faults=down), 0, self.seed, Silent(), optimise=True
        )


def campaign(folder: Path, seeds: int, kept: Path = KEPT) -> Iterator[str]:
    """Runs all that are not kept, and says of each what it came to.

    Raises `DagtrainError` where nothing fit was emitted, or other files than those of the runs that are kept."""
    workspace = Workspace(folder)
    ready = prepared(workspace, CosimOptions(batches=BATCHES, stall=0.0, efficiency=False))
    if not framed_devices(ready.delivered):
        raise DagtrainError(
            f"{folder} has no devices with Ethernet ports", "emit a cluster file with kind = 'ethernet'"
        )
    emitted = workspace.fingerprint("emit")
    known = _known(kept) or {"emitted": emitted, "runs": {}}
    if known["emitted"] != emitted:
        raise DagtrainError(
            f"{kept} is of other files than {folder} has: `{COMMAND}` gave others then", f"remove {kept}"
        )
    cycles = ready.delivered.cycles_per_frame * ready.graph.recipe.batch
    for planned in (Planned(seed, kind) for seed in range(1, seeds + 1) for kind in KINDS):
        if planned.name not in known["runs"]:
            known["runs"][planned.name] = found = _came_of(planned, ready, cycles)
            write_text(kept, json.dumps(known, indent=1, sort_keys=True) + "\n")
            yield f"{planned.name}: {found['words']:,} words, {found['stands'] or found['wrong'] or 'every bit equal'}"


def _known(kept: Path) -> dict[str, Any] | None:
    return json.loads(kept.read_text()) if kept.is_file() else None


def _came_of(planned: Planned, ready: Prepared, batch_cycles: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dagtrain-campaign-") as name:
        folder, skipped = Path(name), planned.port(ready) if planned.kind == RESET else None
        try:
            run = planned.run(ready, batch_cycles, folder)
        except DagtrainError as error:
            return {"words": 0, "wrong": [], "stands": str(error), "uncounted": []}
        return {
            "words": run.compared_words,
            "wrong": list(run.mismatches),
            "stands": "",
            "uncounted": list(uncounted(run, folder, wiring_of(ready.delivered).form, skipped)),
            "cycles": run.cycles,
            "resets": run.resets,
            **{name: sum(getattr(pair, name) for pair in run.pairs) for name in COUNTS},
        }


def campaign_table(kept: Path = KEPT) -> tuple[str, bool]:
    """All runs that are kept as Markdown, and whether all of them are right."""
    runs = (_known(kept) or {"runs": {}})["runs"]
    rows: dict[tuple[bool, str], list[Mapping[str, Any]]] = {}
    wrong = []
    for name, run in runs.items():
        seed, _, kind = name.partition(" ")
        rows.setdefault((Planned(int(seed), kind).often, kind), []).append(run)
        wrong += [f"seed {name}: {what}" for what in (*run["wrong"], run["stands"], *run["uncounted"]) if what]
    lines = [
        "| faults | beside them | runs | words compared | wrong bits in | stood still | not counted in | brought back "
        "| frames | lost | doubled | reordered | damaged | down | sent again |",
        "|" + " --- |" * 15,
        *(_row(often, kind, found) for (often, kind), found in sorted(rows.items())),
    ]
    return "\n".join([*lines, *wrong]), not wrong


def _row(often: bool, kind: str, runs: list[Mapping[str, Any]]) -> str:
    def total(name: str) -> int:
        return sum(run.get(name, 0) for run in runs)

    counts = [sum(bool(run[name]) for run in runs) for name in ("wrong", "stands", "uncounted")]
    rate = f"all, {OFTEN:g}" if often else f"each up to {RARE:g}"
    told = [total("words"), *counts, total("resets"), *map(total, COUNTS)]
    return f"| {rate} | {kind} | {len(runs)} | {' | '.join(f'{count:,}' for count in told)} |"
