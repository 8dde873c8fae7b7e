"""The table of networks that nobody chose for dagtrain: problems without what differs, the docs as kept."""

from __future__ import annotations

import json

import pytest

from benchmarks.other_networks import BEGIN, DOCS, END, NETWORKS, STORE, Row, kind, table


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        ("node /a/Pad (Pad): pads in mode reflect; only constants are supported", "Pad: pads in mode reflect"),
        (
            "uses operators that are not supported: Resize (14, first at /b/Resize), "
            "ReduceSum (2, first at /c); supported",
            "uses operators that are not supported: Resize, ReduceSum",
        ),
        ("it does not exist; give the path", "it does not exist"),
    ],
)
def test_problems_are_told_without_their_nodes(problem: str, wanted: str) -> None:
    assert kind(problem) == wanted


def test_who_imports_is_listed_and_who_does_not_has_its_reasons() -> None:
    rows: dict[str, Row] = {
        "b": {"imports": True, "layers": 9, "problems": []},
        "a": {"imports": False, "layers": 0, "problems": ["Pad: x", "y"]},
    }
    assert [*table(rows)] == ["1 of 2 networks import: b.", "", "| refused | for |", "|---|---|", "| a | Pad: x; y |"]


def test_docs_have_what_is_kept() -> None:
    found = json.loads(STORE.read_text())
    assert {*found} <= {*NETWORKS}
    assert DOCS.read_text().split(BEGIN)[1].split(END)[0].strip() == "\n".join(table(found))
