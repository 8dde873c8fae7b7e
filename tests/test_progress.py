"""What `dagtrain place` tells of its progress: all circuits counted, plan, bound and gap of searches, full bars."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Task

from dagtrain.console import BarProgress
from dagtrain.flow import place_step
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.planning.prices import Prices
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Resources
from hdl.layers.base import Layer
from tests.flow_support import new_case, quick_costs


@dataclass
class Bar:
    """A task as it was told."""

    label: str
    total: int | None
    done: int = 0
    notes: list[str] = field(default_factory=list)
    ended: bool = False


class Recorded:
    """Keeps all tasks and refuses what belongs to none."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []

    def begin(self, label: str, total: int | None = None) -> None:
        assert not self.bars or self.bars[-1].ended, f"{label} begins before {self.bars[-1].label} ended"
        self.bars.append(Bar(label, total))

    def advance(self, units: int = 1, note: str = "") -> None:
        bar = self.bars[-1]
        assert not bar.ended, f"{bar.label} goes on after its end"
        bar.done += units
        assert bar.total is None or bar.done <= bar.total, f"{bar.label}: {bar.done}/{bar.total}"
        bar.notes += [note] if note else []

    def end(self, note: str = "") -> None:
        self.bars[-1].ended = True
        self.bars[-1].notes += [note] if note else []


@pytest.mark.slow
def test_planning_counts_circuits_and_shows_where_searches_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case").must("import")
    bars = Recorded()
    wanted: list[int] = []
    elaborate = Prices._elaborate

    def watched(prices: Prices, *words: Any) -> None:
        elaborate(prices, *words)
        wanted.append(prices.wanted_circuits)

    monkeypatch.setattr(Prices, "_elaborate", watched)
    # the circuits are counted by what makes them known
    monkeypatch.setattr(place_step, "Estimator", lambda: Estimator(":memory:"))
    monkeypatch.setattr("hdl.costs.estimate.in_processes", lambda *_: (result for result in ()))
    monkeypatch.setattr(Estimator, "layer", _quick_layer)
    monkeypatch.setattr(Estimator, "block", lambda *_: Resources(registers=10))
    place_step.run(case.workspace, PlaceOptions(devices=case.cluster, caps=("dsp=0.001",)), bars)
    assert all(bar.ended for bar in bars.bars)
    circuits = [bar for bar in bars.bars if bar.label.startswith("circuits at")]
    assert [bar.total for bar in circuits] == wanted
    for bar in bars.bars:
        assert bar.total is None or bar.done == bar.total, f"{bar.label} ends at {bar.done}/{bar.total}"
    labels = [bar.label.split()[0] for bar in bars.bars]
    assert labels[:4] == ["circuits", "costs", "circuits", "search"]
    assert bars.bars[2].label == "circuits of network ports"
    searches = [bar for bar in bars.bars if bar.label == "search"]
    assert len(searches) >= 2
    assert re.match(r"start: no plan yet, at most [\d,.]+ fps", searches[0].notes[0])
    assert re.search(r": [\d,.]+ of at most [\d,.]+ fps, gap [\d.]+%", searches[-1].notes[-1])


def _quick_layer(_estimator: Estimator, layer: Layer) -> Resources:
    return Resources(multipliers={(16, 16): int(layer.multipliers)} if layer.multipliers else {}, registers=100)


def test_bars_end_full_and_do_not_move_afterwards() -> None:
    with BarProgress() as bars:
        bars.advance()
        bars.begin("costs", 4)
        bars.advance(2)
        bars.end()
        bars.advance(5)
        bars.begin("search")
        bars.advance(note="first: 3 fps")
        bars.advance(2)
        bars.end()
        bars.advance(400)
        shown: list[Task] = bars.tasks
        assert [(task.description, task.completed, task.total) for task in shown] == [("costs", 4, 4), ("search", 3, 3)]
        assert all(task.finished for task in shown)
