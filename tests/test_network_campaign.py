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
from benchmarks.network_campaign import DOWN_CYCLES, OFTEN, RARE, Planned, campaign, campaign_table
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
        resets=1,
    )


class World:
    """A cluster in which runs come to what a test says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.emitted, self.devices = "first", ["a", "b"]
        # seed -> what its run comes to, or the error it ends in; and whose counters are wrong
        self.outcomes: dict[int, ClusterRun | DagtrainError] = {}
        self.miscounted: dict[int, str] = {}
        self.ran: list[int] = []
        ready = SimpleNamespace(delivered=None)
        world = self

        def run(planned: Planned, _: Any, folder: Path) -> tuple[ClusterRun, int]:
            assert folder.is_dir()
            world.ran.append(planned.seed)
            outcome = world.outcomes.get(planned.seed, run_of(planned))
            if isinstance(outcome, DagtrainError):
                raise outcome
            return outcome, 1

        def uncounted(found: ClusterRun, _folder: Path, _form: object, began_anew: int) -> Iterator[str]:
            assert began_anew == 1
            if what := world.miscounted.get(found.pairs[0].lost):
                yield what

        patch.setattr(network_campaign, "prepared", lambda *_: ready)
        patch.setattr(network_campaign, "framed_devices", lambda _: world.devices)
        patch.setattr(network_campaign, "wiring_of", lambda _: SimpleNamespace(form=None))
        patch.setattr(network_campaign, "uncounted", uncounted)
        patch.setattr(network_campaign.Workspace, "require", lambda workspace, *_: workspace.root)
        patch.setattr(network_campaign, "file_digests", lambda *_: world.emitted)
        patch.setattr(Planned, "run", run)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_what_is_kept_is_not_run_again_and_the_table_is_of_all(world: World, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    first = campaign(tmp_path, 2, kept)
    # ended behind its first run, which is kept
    assert next(first) == "seed 1 of 2: 100 words, every bit equal"
    first.close()
    assert list(json.loads(kept.read_text())["runs"]) == ["1"]
    assert len(list(campaign(tmp_path, 2, kept))) == 1
    assert world.ran == [1, 2]
    assert list(campaign(tmp_path, 2, kept)) == []
    assert len(list(campaign(tmp_path, 10, kept))) == 8
    table, right = campaign_table(kept)
    assert right
    # seed 10 alone has many faults; lost frames of seeds 1 to 9, twice
    assert table.splitlines()[2:] == [
        f"| each up to {RARE:g} | 9 | 900 | 0 | 0 | 0 | 9 | 18,000 | 90 | 0 | 0 | 0 | 0 | 36 |",
        f"| all, {OFTEN:g} | 1 | 100 | 0 | 0 | 0 | 1 | 2,000 | 20 | 0 | 0 | 0 | 0 | 4 |",
    ]


def test_a_world_that_fails_is_kept_and_told(world: World, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    good = vars(run_of(Planned(2)))
    world.outcomes = {
        1: DagtrainError("nothing moves any more"),
        2: ClusterRun(**{**good, "mismatches": ("conv.w: word 3 differs",)}),
        4: ClusterRun(**{**good, "resets": 0}),
    }
    world.miscounted = {3: "fpga1 counted {'CRC': 1}, where {'CRC': 2} came"}
    told = list(campaign(tmp_path, 4, kept))
    assert told[0] == "seed 1 of 4: 0 words, nothing moves any more"
    assert told[1].endswith("100 words, ['conv.w: word 3 differs']")
    table, right = campaign_table(kept)
    assert not right
    assert table.splitlines()[-4:] == [
        "seed 1: nothing moves any more",
        "seed 2: conv.w: word 3 differs",
        "seed 3: fpga1 counted {'CRC': 1}, where {'CRC': 2} came",
        "seed 4: a device was reset, and nobody brought it back",
    ]
    # seeds, words; then wrong bits, runs that stood still, and those not counted
    cells = [cell.strip() for cell in table.splitlines()[2].split("|")]
    assert cells[2:7] == ["4", "300", "1", "1", "2"]


def test_runs_of_other_files_and_files_without_ethernet_are_refused(world: World, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    list(campaign(tmp_path, 1, kept))
    world.emitted = "second"
    with pytest.raises(DagtrainError, match=r"kept\.json is of other files than .* has"):
        list(campaign(tmp_path, 1, kept))
    world.devices = []
    with pytest.raises(DagtrainError, match=r"has no devices with Ethernet ports; emit a cluster file"):
        list(campaign(tmp_path, 1, kept))


def test_faults_follow_from_the_seed_alone_and_befall_every_run_in_mid_training() -> None:
    assert Planned(10).rates() == dict.fromkeys(Planned(10).rates(), OFTEN)
    seen = set()
    for seed in range(1, 10):
        rates = Planned(seed).rates()
        assert all(0 < rate <= RARE for rate in rates.values()), seed
        assert rates == Planned(seed).rates() != Planned(seed + 10).rates()
        faults, reset = Planned(seed).network(4000, 3)
        ((port, first, end),) = faults.down
        assert (faults.loss, end - first) == (rates["loss"], DOWN_CYCLES)
        assert all(place in range(3) and 1000 <= at < 3000 for place, at, _ in (reset, (port, first, end)))
        seen |= {("down", port), ("reset", reset[0])}
    # every device, each way
    assert len(seen) == 6
