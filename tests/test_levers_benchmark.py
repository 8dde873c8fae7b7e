"""Rows of docs/networks.md: the page has what is kept, and a plan that trains slower than its row is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import levers
from benchmarks.levers import LOST, MARKS, ROWS, Known, known, page, table, verdict
from benchmarks.networks import CASES, Planned, Step
from hdl.errors import DagtrainError

USE = {"dsp": 10, "dsp_capacity": 40, "m20k": 7, "m20k_capacity": 10, "alm": 30, "alm_capacity": 100}
FULL = {"dsp": 20, "dsp_capacity": 20, "m20k": 2, "m20k_capacity": 10, "alm": 0, "alm_capacity": 20}
PLAN = {
    "steady_fps": 120.0,
    "throughput_fps": 100.0,
    "bound_fps": 130.0,
    "any_bound_fps": 140.0,
    "never_idle_fps": 160.0,
    "crossings": ["a", "b"],
    "devices": [USE, FULL],
}
RECORD = {"seconds": 12.5, "finished": False}
FOUND = Planned(120.0, 100.0, 130.0, 140.0, 160.0, 2, 30 / 60, 9 / 20, 30 / 120, 12.5, False)


def test_the_page_has_the_rows_that_are_kept() -> None:
    """The table of the docs is that of the store, row by row; marks that are not there are said."""
    text = levers.DOCS.read_text()
    assert page(text, known()) == text
    with pytest.raises(DagtrainError, match="has no table"):
        page(text.replace(MARKS[1], ""), known())


def test_every_row_is_a_case_and_is_kept() -> None:
    """None is left out of the table without a word."""
    assert set(ROWS) <= set(CASES)
    assert list(known()) == list(ROWS)
    assert all(len(row.commit) >= 8 for row in known().values())


def test_a_plan_that_is_there_has_the_numbers_of_its_files(tmp_path: Path) -> None:
    """Shares are those of all devices together, not the mean of shares."""
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "place" / "place.json").write_text(json.dumps(RECORD))
    assert levers.there(tmp_path) == FOUND


def test_a_row_is_planned_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of a run before is gone when planning begins, which would go on from it."""
    (tmp_path / "resnet18" / "place").mkdir(parents=True)
    step = Step(1.0, 1.0, {"place": {**PLAN, **RECORD}}, "", 1.0)

    def planned(case: str, further: object, out: Path, numbers: object) -> tuple[Step, Step]:
        del case, further, numbers
        assert not out.exists()
        return step, step

    monkeypatch.setattr(levers, "planned", planned)
    assert levers.plan_row("resnet18", tmp_path / "resnet18") == FOUND


@pytest.mark.parametrize(
    ("share", "good", "word"), [(1, True, "as it was"), (1.02, True, "gained"), (0.98, False, "LOST")]
)
def test_a_row_that_is_lost_is_told(share: float, good: bool, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By what training comes to: 2 % are too much, and what stays within the bound is as it was."""
    before = Known("0123abcd", FOUND)
    assert verdict("resnet18", replace(FOUND, training_fps=100 * share), before) == good
    assert capsys.readouterr().out.rstrip().endswith(f"of 100.0 as of 0123abcd: {word}")
    # what happens inside a batch is no excuse
    assert not verdict("resnet18", replace(FOUND, steady_fps=240.0, training_fps=100 * (1 - LOST) - 0.1), before)


def test_the_command_fails_for_a_lost_row_and_writes_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--write` changes the row that was planned, here and on the page, and no other."""
    store, docs = tmp_path / "levers.json", tmp_path / "networks.md"
    store.write_text(levers.STORE.read_text())
    docs.write_text(levers.DOCS.read_text())
    before = known()
    slower = replace(before["resnet50"].plan, training_fps=before["resnet50"].plan.training_fps / 2)
    monkeypatch.setattr(levers, "STORE", store)
    monkeypatch.setattr(levers, "DOCS", docs)
    monkeypatch.setattr(levers, "plan_row", lambda *_: slower)
    monkeypatch.setattr(levers, "known", lambda: before.copy())
    assert levers.main(["resnet50"]) == 1
    assert store.read_text() == levers.STORE.read_text()
    assert docs.read_text() == page(docs.read_text(), before)
    assert levers.main(["resnet50", "--write"]) == 1
    after = known(store)
    assert after["resnet50"].plan == slower
    assert {case: row for case, row in after.items() if case != "resnet50"} == {
        case: row for case, row in before.items() if case != "resnet50"
    }
    assert docs.read_text() == page(docs.read_text(), after)
    monkeypatch.setattr(levers, "plan_row", lambda *_: "no room")
    assert levers.main(["resnet50"]) == 1
    assert "resnet50: no room" in capsys.readouterr().out


def test_rows_are_cells_of_the_table() -> None:
    """Each has as many as the heads, and says when its limit ended its search."""
    lines = table({"resnet18": Known("0123abcd", FOUND)})
    assert [len(line) for line in lines] == [len(levers.HEADS)]
    assert lines[0][2:4] == ("120.0", "100")
    assert lines[0][-4:] == ("160, 75.0% of it", "50%, 45%, 25%", "2", "12 s, ended early")
