"""The long fault campaign: runs are kept as they end and not run again, the table is of all of them, and what went
wrong in one is told.  The cluster itself is not simulated here (tests/test_cosim_ethernet.py does)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import network_campaign
from benchmarks.network_campaign import DOWN, OFTEN, RARE, RESET, Planned, campaign, campaign_table
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.network import PairCounts
from hdl.errors import DagtrainError


def run_of(planned: Planned) -> ClusterRun:
    """What a good run comes to: 100 words, and as many lost frames as the seed says."""
    counts = dict.fromkeys(PairCounts.__dataclass_fields__, 0)
    pair = PairCounts(**{**counts, "lost": planned.seed, "frames": 1000, "again": 2})
    return ClusterRun(
        cycles=5000,
        cycles_per_frame=100.0,
        batch_cycles=(),
        compared_words=100,
        mismatches=(),
        losses=(),
        pairs=(pair, pair),
        resets=int(planned.kind == RESET),
    )


class World:
    """A cluster in which runs come to what a test says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.emitted, self.devices = "first", ["a", "b"]
        # name of a run -> what it comes to, or the error it ends in; and whose counters are wrong
        self.outcomes: dict[str, ClusterRun | DagtrainError] = {}
        self.miscounted: dict[int, str] = {}
        self.ran: list[str] = []
        delivered = SimpleNamespace(cycles_per_frame=10)
        ready = SimpleNamespace(delivered=delivered, graph=SimpleNamespace(recipe=SimpleNamespace(batch=4)))
        world = self

        def run(planned: Planned, _: Any, batch_cycles: int, folder: Path) -> ClusterRun:
            assert batch_cycles == 40
            assert folder.is_dir()
            world.ran.append(planned.name)
            outcome = world.outcomes.get(planned.name, run_of(planned))
            if isinstance(outcome, DagtrainError):
                raise outcome
            return outcome

        def uncounted(found: ClusterRun, *_: object) -> Iterator[str]:
            if what := world.miscounted.get(found.pairs[0].lost):
                yield what

        patch.setattr(network_campaign, "prepared", lambda *_: ready)
        patch.setattr(network_campaign, "framed_devices", lambda _: world.devices)
        patch.setattr(network_campaign, "wiring_of", lambda _: SimpleNamespace(form=None))
        patch.setattr(network_campaign, "uncounted", uncounted)
        patch.setattr(network_campaign.Workspace, "fingerprint", lambda *_: world.emitted)
        patch.setattr(Planned, "run", run)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_what_is_kept_is_not_run_again_and_the_table_is_of_all(world: World, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    first = campaign(tmp_path, 2, kept)
    # ended behind its first run, which is kept
    assert next(first) == f"1 {DOWN}: 100 words, every bit equal"
    first.close()
    assert list(json.loads(kept.read_text())["runs"]) == [f"1 {DOWN}"]
    told = list(campaign(tmp_path, 2, kept))
    assert len(told) == 3
    assert world.ran == [f"{seed} {kind}" for seed in (1, 2) for kind in (DOWN, RESET)]
    assert list(campaign(tmp_path, 2, kept)) == []
    assert len(list(campaign(tmp_path, 10, kept))) == 16
    table, right = campaign_table(kept)
    assert right
    rows = [line for line in table.splitlines() if line.startswith(("| all", "| each"))]
    often, rare = ([row for row in rows if start in row] for start in (f"all, {OFTEN:g}", f"each up to {RARE:g}"))
    # seed 10 alone has many faults; lost frames of seeds 1 to 9, twice
    assert [row.split(" | ")[2] for row in often] == ["1", "1"]
    assert rare[1] == f"| each up to {RARE:g} | {DOWN} | 9 | 900 | 0 | 0 | 0 | 0 | 18,000 | 90 | 0 | 0 | 0 | 0 | 36 |"
    assert rare[0].split(" | ")[7] == "9"


def test_a_world_that_fails_is_kept_and_told(world: World, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    good = run_of(Planned(2, RESET))
    world.outcomes = {
        f"1 {DOWN}": DagtrainError("nothing moves any more"),
        f"2 {RESET}": ClusterRun(**{**vars(good), "mismatches": ("conv.w: word 3 differs",)}),
    }
    world.miscounted = {3: "fpga1 counted {'CRC': 1}, where {'CRC': 2} came"}
    told = list(campaign(tmp_path, 3, kept))
    assert told[0] == f"1 {DOWN}: 0 words, nothing moves any more"
    assert told[3].endswith("100 words, ['conv.w: word 3 differs']")
    table, right = campaign_table(kept)
    assert not right
    assert table.splitlines()[-4:] == [
        f"seed 1 {DOWN}: nothing moves any more",
        f"seed 2 {RESET}: conv.w: word 3 differs",
        f"seed 3 {RESET}: fpga1 counted {{'CRC': 1}}, where {{'CRC': 2}} came",
        f"seed 3 {DOWN}: fpga1 counted {{'CRC': 1}}, where {{'CRC': 2}} came",
    ]
    # wrong bits, runs that stood still, and those not counted, by row
    cells = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("| each")]
    assert [row[5:8] for row in cells] == [["1", "0", "1"], ["0", "1", "1"]]


def test_runs_of_other_files_and_files_without_ethernet_are_refused(world: World, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    list(campaign(tmp_path, 1, kept))
    world.emitted = "second"
    with pytest.raises(DagtrainError, match=r"kept\.json is of other files than .* has"):
        list(campaign(tmp_path, 1, kept))
    world.devices = []
    with pytest.raises(DagtrainError, match=r"has no devices with Ethernet ports; emit a cluster file"):
        list(campaign(tmp_path, 1, kept))


def test_faults_follow_from_seed_and_kind_alone() -> None:
    assert Planned(10, DOWN).rates() == dict.fromkeys(Planned(10, DOWN).rates(), OFTEN)
    for seed in range(1, 10):
        rates = Planned(seed, RESET).rates()
        assert all(0 < rate <= RARE for rate in rates.values()), seed
        assert rates == Planned(seed, RESET).rates() != Planned(seed, DOWN).rates()
