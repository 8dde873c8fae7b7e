"""What a step tells its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a step that says how to go on."""


@dataclass(frozen=True)
class StepResult:
    """The outcome of one step."""

    step: str
    # where its files are
    folder: Path
    # False if nothing had changed since the step last ran
    done: bool
    # what a person wants to know, one fact a line
    lines: tuple[str, ...] = ()
    # the same for a program
    data: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    # what is read in columns, under its headings
    table: Sequence[Sequence[str]] = ()
    # whether it could not be done, for a reason that the lines say, and need not be
    left_out: bool = False
    # False when the step ran but its verdict is negative (a mismatch in co-simulation)
    passed: bool = True
