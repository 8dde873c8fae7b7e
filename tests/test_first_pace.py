"""`place --first-fps`: the pace whose circuits are elaborated first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dagtrain.planning.prices import Prices
from placement.problem.deadline import Deadline
from tests.flow_support import Case, new_case, quick_costs


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    quick_costs(monkeypatch)
    made = new_case(tmp_path)
    assert made.step("import").code == 0
    return made


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    found: list[list[int]] = []
    instance = Prices.instance

    def noted(self: Prices, levels: Iterable[int], deadline: Deadline | None = None) -> Any:
        found.append(list(levels))
        return instance(self, found[-1], deadline)

    monkeypatch.setattr(Prices, "instance", noted)
    return found


# 200 MHz
@pytest.mark.parametrize(("fps", "cycles"), [(100_000, 2_000), (66_667, 2_999), (50_000.5, 3_999)])
def test_circuits_of_the_pace_that_is_told_are_priced_first(
    fps: float, cycles: int, case: Case, priced: list[list[int]]
) -> None:
    assert case.step("place", "--first-fps", fps).code == 0
    assert priced[0] == [cycles]
    # and others after it
    assert len({level for levels in priced for level in levels}) > 1


def test_none_faster_than_multipliers_allow_and_none_slower_than_is_wanted(case: Case, priced: list[list[int]]) -> None:
    assert case.step("place").code == 0
    usual = priced[0]
    priced.clear()
    assert case.step("place", "--first-fps", 1e12).code == 0
    (least,) = priced[0]
    assert 1 < least < usual[0]
    priced.clear()
    assert case.step("place", "--first-fps", 1, "--least-fps", 50_000).code == 0
    assert priced[0] == [4_000]


@pytest.mark.parametrize("fps", [0, -5, "nan"])
def test_what_is_no_pace_is_refused(fps: float, case: Case) -> None:
    outcome = case.step("place", "--first-fps", fps)
    assert outcome.code == 1
    assert "--first-fps" in outcome.error
    assert "is no pace" in outcome.error
