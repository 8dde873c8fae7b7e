"""The errors of this project.  Every one says what, where, which value, and the cure, each in a field of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; printed as ``where: what; cure``."""

    # what is wrong, with the offending value
    what: str
    # what the user can do; empty where that is plain
    cure: str = ""
    # node, file, option …, in the user's own words; empty where ``what`` says it
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}; {self.cure}" if self.cure else f"{place}{self.what}"


class DagtrainError(Exception):
    """Root of everything this project raises on purpose; printed as ``what; cure``.

    ``what`` says what is wrong, where, and with which value, ``cure`` what the user can do (it may be empty)."""

    def __init__(self, what: str, cure: str = "", /) -> None:
        self.what = what
        self.cure = cure
        # all that is wrong: more than one thing in an error made by `listing`
        self.problems: tuple[Problem, ...] = (Problem(what, cure),)

    @classmethod
    def listing(cls, head: str, problems: Iterable[Problem | str], cure: str = "", *, lines: bool = False) -> Self:
        """An error of several problems, in one line or one a line; ``head`` says what they have in common."""
        found = tuple(Problem(problem) if isinstance(problem, str) else problem for problem in problems)
        texts = [str(problem) for problem in found]
        listed = "\n".join(f"  {text}" if head else text for text in texts) if lines else "; ".join(texts)
        apart = "" if not head else ":\n" if lines else ": "
        error = cls(f"{head}{apart}{listed}", cure)
        error.problems = found
        return error

    def __str__(self) -> str:
        return f"{self.what}; {self.cure}" if self.cure else self.what


class ShapeError(DagtrainError):
    """Tensor shapes that don't fit one another or a layer."""


class FoldingError(DagtrainError):
    """A parallelism that a layer can't be built with."""


class ImportProblem(DagtrainError):
    """A model file that can't be understood."""


class InfeasibleError(DagtrainError):
    """No solution exists; the message says which constraint to relax."""


class TooLargeError(InfeasibleError):
    """Items of a placement that fit no device, by name in ``items``."""

    def __init__(self, what: str, cure: str, items: tuple[str, ...], /) -> None:
        super().__init__(what, cure)
        self.items = items


class OutOfTimeError(DagtrainError):
    """The time or cycle limit was hit before the work was done."""


class ProcessLost(DagtrainError):
    """A process of this program was ended from outside, as a system does that is out of memory."""


class ToolError(DagtrainError):
    """An external tool failed; the message carries its own words."""


class ToolTimeout(ToolError):
    """An external tool did not finish in the time that it was given."""


class ToolMissing(ToolError):
    """An external tool isn't installed."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"{tool} is not installed or not on the PATH", "install it with `make setup`")
        self.tool = tool


class ConversionError(DagtrainError):
    """A circuit that can't be turned into Verilog of the same meaning."""


class ContractViolation(DagtrainError):
    """A circuit broke the stream contract of `hdl.stream`."""


class DeadlockError(OutOfTimeError):
    """A simulation stopped making progress before all expected beats came."""
