"""Where the time of planning goes: how much of it searches may have, and what it went into."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from placement.problem.deadline import Deadline

# what time goes into while circuits are elaborated
CIRCUITS = "circuits"
# a placement found is priced well before the time limit: what the slowest took so far, so many times
HOLDING_MARGIN = 2.0
# … less what circuits took that are known since then: so large a part of them the next placement has anew
RENEWED = 0.25
# … and before the first one, a search has at most this share of what is left
FIRST_SHARE = 0.5


@contextmanager
def spending(spent: MutableMapping[str, float], what: str, deadline: Deadline) -> Iterator[None]:
    """Within, time is spent on ``what``: its seconds by the deadline's clock are added."""
    began = deadline.spent_seconds
    try:
        yield
    finally:
        spent[what] += deadline.spent_seconds - began


@dataclass
class Timetable:
    """The time of the searches of one graph on some devices."""

    # when to end: whatever takes long asks it
    deadline: Deadline = field(default_factory=Deadline)
    # seconds by what they went into
    spent: MutableMapping[str, float] = field(default_factory=lambda: defaultdict(float))
    # what pricing a placement would take at most, seconds
    holding_seconds: float = 0.0

    @property
    def looking(self) -> Deadline:
        """For what only looks for placements: it leaves the time that pricing one takes."""
        return self.deadline.leaving(HOLDING_MARGIN * self.holding_seconds)

    @property
    def looking_first(self) -> Deadline:
        """For a search as long as there is no plan."""
        return self.looking.within(FIRST_SHARE * self.looking.seconds_left)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Within, one placement is priced."""
        began, elaborated = self.deadline.spent_seconds, self.spent[CIRCUITS]
        try:
            yield
        finally:
            known = (1 - RENEWED) * (self.spent[CIRCUITS] - elaborated)
            self.holding_seconds = max(self.holding_seconds, self.deadline.spent_seconds - began - known)

    @contextmanager
    def closing(self) -> Iterator[Deadline]:
        """Within, the deadline is what the ended work has left for making its find hold: `Deadline.closing`."""
        whole, self.deadline = self.deadline, self.deadline.closing()
        try:
            yield self.deadline
        finally:
            self.deadline = whole
