"""What errors carry: what is wrong and the cure, each in its field; several problems as a list."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import dagtrain.cli  # noqa: F401 - so that all errors are known
import importers.onnx  # noqa: F401
from dagtrain.cosim.simulator import BrokenError, StuckError
from hdl.errors import DagtrainError, FoldingError, Problem, TooLargeError, ToolMissing

ROOT = Path(__file__).parents[1]
PACKAGES = ("hdl", "placement", "importers", "dagtrain")


def test_an_error_prints_what_is_wrong_and_the_cure() -> None:
    error = FoldingError("conv1 manages 7 cycles a frame", "allow more cycles")
    assert (error.what, error.cure) == ("conv1 manages 7 cycles a frame", "allow more cycles")
    assert str(error) == "conv1 manages 7 cycles a frame; allow more cycles"
    assert error.problems == (Problem("conv1 manages 7 cycles a frame", "allow more cycles"),)
    assert str(DagtrainError("nothing works")) == "nothing works"


def test_several_problems_stay_apart() -> None:
    problems = (Problem("is narrow", "widen it", "conv1"), Problem("is wide; very"))
    error = DagtrainError.listing("the net", problems, "read the docs")
    assert str(error) == "the net: conv1: is narrow; widen it; is wide; very; read the docs"
    assert error.problems == problems
    assert error.cure == "read the docs"
    assert str(DagtrainError.listing("", problems)) == "conv1: is narrow; widen it; is wide; very"
    assert str(FoldingError.listing("the net", problems, lines=True)) == (
        "the net:\n  conv1: is narrow; widen it\n  is wide; very"
    )
    assert str(DagtrainError.listing("", ["a", "b"], lines=True)) == "a\nb"


@pytest.mark.parametrize(
    "error",
    [
        FoldingError("a", "b"),
        FoldingError.listing("a", ["b", Problem("c", "d", "e")]),
        ToolMissing("yosys"),
        TooLargeError("a", "b", ("conv1",)),
        StuckError("a", nets={("top", "net"): (True, False)}),
        BrokenError(1, 2, "a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_processes_whole(error: DagtrainError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert vars(there) == vars(error)


def _kinds() -> set[str]:
    """Names of all errors of this project."""
    found, left = {DagtrainError}, [DagtrainError]
    while left:
        more = set(left.pop().__subclasses__()) - found
        found |= more
        left += more
    return {kind.__name__ for kind in found}


def test_no_error_writes_its_cure_into_what_is_wrong() -> None:
    kinds, wrong = _kinds(), []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds and call.args:
                text = call.args[0]
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                if any(isinstance(part, ast.Constant) and "; " in str(part.value) for part in parts):
                    wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    # who waits for whom is a third sentence, and no cure
    assert [where for where in wrong if not where.startswith("dagtrain/cosim/cluster.py")] == []
