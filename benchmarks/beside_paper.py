"""Published numbers beside ours: what benchmarks/papers/*.toml print, what benchmarks compute, quotient and verdict."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hdl.errors import DagtrainError

HEADS = ("figure", "measure", "paper", "ours", "quotient", "verdict")
PAPERS = Path(__file__).parent / "papers"
Value = float | str


@dataclass(frozen=True)
class Row:
    """A published number or pattern beside ours."""

    figure: str
    measure: str
    paper: Value
    # None: not computed
    ours: Value | None
    # share; None where it is not reproduced
    tolerance: float | None
    why: str

    @property
    def within(self) -> bool:
        """Whether ours is within the tolerance."""
        if self.tolerance is None or self.ours is None:
            return False
        if isinstance(self.paper, str) or isinstance(self.ours, str):
            return self.paper == self.ours
        return abs(self.ours / self.paper - 1) <= self.tolerance + 1e-12

    @property
    def verdict(self) -> str:
        """In words."""
        if self.tolerance is None:
            return f"not reproduced: {self.why}"
        limit = f"within {self.tolerance:.1%}" if self.tolerance else "exact"
        return limit if self.within else f"OUTSIDE: should be {limit}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        quotient = ""
        if isinstance(self.paper, float | int) and isinstance(self.ours, float):
            quotient = f"{self.ours / self.paper:.3f}"
        return self.figure, self.measure, _text(self.paper), _text(self.ours), quotient, self.verdict


def _text(value: Value | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def rows_of(paper: str, ours: Mapping[str, Value]) -> list[Row]:
    """All numbers of a paper, by the name of its file, beside ours by measure."""
    published_rows = tomllib.loads((PAPERS / f"{paper}.toml").read_text())["row"]
    return [
        Row(
            row["figure"],
            row["measure"],
            row["paper"],
            ours.get(row["measure"]),
            row.get("tolerance"),
            row.get("why", ""),
        )
        for row in published_rows
    ]


def with_table(
    page: str, path: Path, marks: tuple[str, str], heads: Sequence[str], cells: Sequence[Sequence[str]]
) -> str:
    """A page of the docs with a table between two marks.  Raises `DagtrainError` where these are not in it."""
    begin, end = marks
    before, found, rest = page.partition(begin)
    _, mark, after = rest.partition(end)
    if not found or not mark:
        raise DagtrainError(f"{path.name} has no table", f"write {begin} and {end} where it should stand")
    lines = [heads, ("---",) * len(heads), *cells]
    return "\n".join([f"{before}{begin}", *(f"| {' | '.join(line)} |" for line in lines), f"{end}{after}"])


def print_table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """As Markdown."""
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for row in cells:
        print(f"| {' | '.join(row)} |")
