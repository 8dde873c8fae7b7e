"""The errors of this project.  Every message says what, where, which value, and the cure."""

from __future__ import annotations


class DagtrainError(Exception):
    """Root of everything this project raises on purpose."""


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

    def __init__(self, message: str, items: tuple[str, ...]) -> None:
        super().__init__(message)
        self.items = items


class OutOfTimeError(DagtrainError):
    """The time or cycle limit was hit before the work was done."""


class ToolError(DagtrainError):
    """An external tool failed; the message carries its own words."""


class ToolTimeout(ToolError):
    """An external tool did not finish in the time that it was given."""


class ToolMissing(ToolError):
    """An external tool isn't installed."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"{tool} is not installed or not on the PATH; install it with `make setup`")
        self.tool = tool


class ConversionError(DagtrainError):
    """A circuit that can't be turned into Verilog of the same meaning."""


class ContractViolation(DagtrainError):
    """A circuit broke the stream contract of `hdl.stream`."""


class DeadlockError(OutOfTimeError):
    """A simulation stopped making progress before all expected beats came."""
