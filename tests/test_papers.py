"""Published numbers beside ours: what is called reproduced stays so, and the page says the same."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from benchmarks import fpdeep, hypar, inceptionn
from benchmarks.beside_paper import PAPERS, Row
from tests.import_support import ROOT

# by paper: its rows, and how many we claim to reproduce
ROWS = {"hypar": (hypar.rows, 22), "inceptionn": (inceptionn.rows, 28), "fpdeep": (fpdeep.rows, 21)}


@pytest.fixture(scope="module", params=ROWS)
def paper(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def rows(paper: str) -> list[Row]:
    return ROWS[paper][0]()


def test_what_is_reproduced_stays_so(paper: str, rows: list[Row]) -> None:
    reproduced = [row for row in rows if row.tolerance is not None]
    assert len(reproduced) >= ROWS[paper][1]
    assert not [row.cells for row in reproduced if not row.within]


def test_every_number_says_where_it_stands_and_what_is_claimed(paper: str, rows: list[Row]) -> None:
    tables = tomllib.loads((PAPERS / f"{paper}.toml").read_text())["row"]
    allowed = {"figure", "sentence", "measure", "paper", "tolerance", "why"}
    for row in tables:
        assert set(row) <= allowed
        assert row["sentence"]
        # claimed or explained, and never both
        assert ("tolerance" in row) != bool(row.get("why")), row
    assert len({row.measure for row in rows}) == len(rows)


def test_the_page_has_the_table(paper: str, rows: list[Row]) -> None:
    page = (ROOT / "docs" / f"{paper}.md").read_text()
    assert not [line for row in rows if (line := f"| {' | '.join(row.cells)} |") not in page]


def test_a_number_beyond_its_tolerance_is_told() -> None:
    row = Row("6", "a ratio", 2.0, 2.09, 0.05, "")
    assert row.within
    assert row.cells == ("6", "a ratio", "2", "2.09", "1.045", "within 5.0%")
    for other in (replace(row, ours=2.11), replace(row, ours=1.89), replace(row, ours=None)):
        assert not other.within
        assert other.verdict == "OUTSIDE: should be within 5.0%"
    assert not replace(row, paper="0011", ours="0010").within
