"""How long work tells of its progress without knowing who listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


class Progress(Protocol):
    """A listener: the command line draws bars, tests and libraries pass `Silent`."""

    def begin(self, label: str, total: int | None = None) -> None:
        """A task begins; ``total`` units of work, if known."""

    def advance(self, units: int = 1, note: str = "") -> None:
        """Some of the task is done; ``note`` is its newest figure."""

    def end(self, note: str = "") -> None:
        """The task is complete."""


@runtime_checkable
class Panel(Protocol):
    """A listener that also shows a table of figures that change."""

    def show(self, rows: Sequence[Sequence[str]]) -> None:
        """The newest figures, headings first."""


class Silent:
    """A listener that ignores everything."""

    def begin(self, label: str, total: int | None = None) -> None:
        """Ignore."""

    def advance(self, units: int = 1, note: str = "") -> None:
        """Ignore."""

    def end(self, note: str = "") -> None:
        """Ignore."""
