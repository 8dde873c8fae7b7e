"""The errors a user can meet: each carries one clear message that says what, where, the value and the cure."""

from __future__ import annotations


class DagtrainError(Exception):
    """Root of every error that is reported to the user as a message, without a traceback."""


class ShapeError(DagtrainError):
    """Tensor shapes of a layer, or of its neighbours, do not fit together."""


class FoldingError(DagtrainError):
    """A parallelism (lanes, taps, tiles) that the layer's shape cannot use."""


class ImportProblem(DagtrainError):
    """A model file that cannot be read, or says something that is not supported."""


class InfeasibleError(DagtrainError):
    """It is proven that no solution exists; the message names what to relax."""


class OutOfTimeError(DagtrainError):
    """The search budget ended before a solution, or a proof that there is none, was found."""


class ToolError(DagtrainError):
    """An external tool (simulator, synthesiser) ran and failed."""


class ToolMissing(DagtrainError):
    """An external tool is not installed."""


class ConversionError(DagtrainError):
    """A circuit that cannot be, or must not be, converted to Verilog."""


class ContractViolation(DagtrainError):
    """A stream broke its contract: valid, payload, order or count."""
