"""What a circuit does in a cycle, told by nets of its Verilog: of a walker inside, or of its streams; for benches."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


@dataclass(frozen=True)
class Handshakes:
    """Streams of a circuit without a walker, as prefixes of their nets below a bench.

    It is *busy* in a cycle in which a beat of a map enters.  Where none does it is *blocked* if nobody takes a beat
    that it offers; *starved* if a map that it reads has no beat, or weights have not come for which it waits; and else
    it computes what it has got, which is busy too."""

    # that it reads frame by frame; all that it reads where there is none, as gradients
    maps: tuple[str, ...]
    # that it reads once a batch beside
    weights: tuple[str, ...]
    sent: tuple[str, ...]
    # the ending of handshakes behind gates
    gated: str = ""

    @property
    def enters(self) -> str:
        """A beat of a map enters in this cycle."""
        return self._any(f"({net}_valid{self.gated} && {net}_ready{self.gated})" for net in self.maps)

    @property
    def blocked(self) -> str:
        """Nobody takes what it offers, if none enters."""
        return self._any(f"({net}_valid && !{net}_ready{self.gated})" for net in self.sent)

    @property
    def starved(self) -> str:
        """A Verilog expression."""
        missing = [f"!{net}_valid{self.gated}" for net in self.maps]
        missing += [f"({net}_ready && !{net}_valid{self.gated})" for net in self.weights]
        return f"!{self.enters} && !{self.blocked} && {self._any(missing)}"

    @property
    def busy(self) -> str:
        """A Verilog expression."""
        return f"({self.enters} || !{self.blocked} && !({self.starved}))"

    def _any(self, conditions: Iterable[str]) -> str:
        return f"({' || '.join(conditions) or '0'})"


def activities(text: str) -> tuple[Activity, ...]:
    """Of all walkers of a module, in the order of its circuits; ``text`` is its Verilog."""
    waiting = _WAITING.search(text)
    return tuple(
        Activity(f"{walker}_{issue}", f"{walker}_token", waiting[1] if waiting else "")
        for walker, issue in _ISSUE.findall(text)
    )
