"""Everything wrong with a model file, gathered so that the user sees it at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hdl.errors import ImportProblem, Problem


@dataclass
class Problems:
    """A growing list of problems of one file."""

    # as the user named it
    file: str
    found: list[Problem] = field(default_factory=list)

    def add(self, where: str, what: str, cure: str) -> None:
        """Note a problem; the same one twice counts once."""
        problem = Problem(what, cure, where)
        if problem not in self.found:
            self.found.append(problem)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Note several."""
        for problem in problems:
            self.add(problem.where, problem.what, problem.cure)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.found)

    def raise_if_any(self) -> None:
        """`ImportProblem` with all problems, one a line."""
        if not self.found:
            return
        head, several = f"{self.file} can't be imported", len(self.found) > 1
        raise ImportProblem.listing(
            f"{head}, {len(self.found)} problems" if several else head, self.found, lines=several
        )


def some(names: Sequence[str], most: int = 5) -> str:
    """Names in a row, the first few where there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class Unsupported(Exception):
    """Raised while one node is looked at; becomes a `Problem` at that node, so it never leaves the importer."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure
