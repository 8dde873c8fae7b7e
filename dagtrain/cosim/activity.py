"""What a walker does in a cycle, told by nets of the Verilog that its circuit becomes; for benches around it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# of `walker`: `loop_nest` decides in ``issue``, `row_grants` says ``token``; of `error_gate`: error words that wait
_ISSUE = re.compile(r"^wire (\w*walker\d+)_(loop_nest\d+_issue);", re.MULTILINE)
_WAITING = re.compile(r"^reg (?:\[\d+:0\] )?(\w*error_gate\d+_waiting) ", re.MULTILINE)


@dataclass(frozen=True)
class Activity:
    """Nets of a module that say what one of its walkers does."""

    # an operation starts; the rows and weights that it needs are there
    issue: str
    token: str
    # how many words of the other operand wait; "" if there is but one
    waiting: str

    def busy(self, path: str) -> str:
        """A Verilog expression, of the instance at ``path``: an operation starts in this cycle."""
        return f"{path}.{self.issue}"

    def starved(self, path: str) -> str:
        """None does, since an operand has not come.  In other cycles that are not busy the walker is blocked: nobody
        takes what it makes, or a memory that it shares serves another."""
        missing = f"!{path}.{self.token}"
        if self.waiting:
            missing = f"({missing} || {path}.{self.waiting} == 0)"
        return f"!{path}.{self.issue} && {missing}"


def activities(text: str) -> tuple[Activity, ...]:
    """Of all walkers of a module, in the order of its circuits; ``text`` is its Verilog."""
    waiting = _WAITING.search(text)
    return tuple(
        Activity(f"{walker}_{issue}", f"{walker}_token", waiting[1] if waiting else "")
        for walker, issue in _ISSUE.findall(text)
    )
