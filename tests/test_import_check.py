"""`dagtrain import --check` says all that becomes of a file and writes nothing; notes of an import reach the user."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dagtrain.cli import app
from tests.import_support import model, node, save

RNG = np.random.default_rng(91)
RUNNER = CliRunner()
HEAD = (node("GlobalAveragePool", "m", "p"), node("Flatten", "p", "f"), node("Gemm", "f v", "s", transB=1))
CONSTANTS = {"k": RNG.standard_normal((4, 2, 3, 3)), "b": RNG.standard_normal(4), "v": RNG.standard_normal((3, 4))}


def good(folder: Path) -> Path:
    """SiLU spelt out, normalisation folded, a softmax at the end."""
    nodes = [node("Conv", "x k b", "c"), node("Sigmoid", "c", "g"), node("Mul", "c g", "m"), *HEAD]
    return save(model([*nodes, node("Softmax", "s", "y")], CONSTANTS), folder)


def bad(folder: Path) -> Path:
    """Two problems."""
    nodes = [node("Conv", "x k b", "c"), node("Tan", "c", "t"), node("Clip", "c one", "l"), node("Add", "t l", "m")]
    return save(model([*nodes, *HEAD], {**CONSTANTS, "one": np.float32(1)}, outputs=["s"]), folder)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_check_tells_operators_normalisation_notes_and_writes_nothing(tmp_path: Path) -> None:
    path = good(tmp_path)
    result = RUNNER.invoke(app, ["import", str(path), "--check"])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["Conv", "1", "Conv"] in lines
    assert ["Silu", "1", "Silu"] in lines
    assert ["Flatten", "1", "nothing"] in lines
    # the file has none
    assert ["BatchNormalization", "0", "OnlineNorm"] in lines
    assert "c_node  put back       the file has no BatchNormalization: it was folded" in result.output
    assert "SiLU: spelt out 1 time, rewritten" in result.output
    assert "note: node y_node (Softmax) at the end was dropped" in result.output
    assert result.output.splitlines()[-1] == f"{path} can be imported: 7 layers"
    assert [item.name for item in tmp_path.iterdir()] == ["net.onnx"]


def test_a_check_tells_all_problems_and_fails(tmp_path: Path) -> None:
    path = bad(tmp_path)
    result = RUNNER.invoke(app, ["import", str(path), "--check"])
    assert result.exit_code == 1
    problems = [line for line in result.output.splitlines() if line.startswith("problem: ")]
    assert [line.split("; ")[0] for line in problems] == [
        "problem: node l_node (Clip): clips at min=1.0",
        "problem: uses operators that are not supported: Tan (1, first at t_node)",
    ]
    assert ["Tan", "1", "1", "not", "imported"] in [line.split() for line in result.output.splitlines()]
    assert result.output.splitlines()[-1] == f"{path} can't be imported, 2 problems"


def test_what_draws_is_named_once_and_parts_of_a_broken_idiom_are_no_problems_of_their_own(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x k b", "c"),
        node("RandomNormalLike", "c", "noise"),
        node("Add", "c noise", "n"),
        node("RandomUniformLike", "n", "u"),
        node("ReduceMean", "n", "share", keepdims=0),
        node("Less", "u share", "l"),
        node("Cast", "l", "k1", to=1),
        node("Mul", "n k1", "m"),
        *HEAD,
    ]
    path = save(model(nodes, CONSTANTS, outputs=["s"]), tmp_path)
    found = json.loads(RUNNER.invoke(app, ["import", str(path), "--check", "--json"]).output)
    assert [(problem["where"], problem["what"]) for problem in found["problems"]] == [
        ("node u_node (RandomUniformLike)",
         "begins dropout or stochastic depth whose ratio is computed (share, read by node l_node (Less))"),
        ("node noise_node (RandomNormalLike)", "draws random numbers"),
    ]  # fmt: skip


def test_a_check_for_programs(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["import", str(bad(tmp_path)), "--check", "--json"])
    found = json.loads(result.output)
    assert (result.exit_code, found["passed"], found["layers"]) == (1, False, None)
    assert [problem["where"] for problem in found["problems"]] == ["node l_node (Clip)", ""]
    assert {"operator": "Conv", "nodes": 1, "layers": {"Bias": 1, "Conv": 1}, "lost": 0} not in found["operators"]
    assert {"operator": "Tan", "nodes": 1, "layers": {}, "lost": 1} in found["operators"]
    found = json.loads(RUNNER.invoke(app, ["import", str(good(tmp_path)), "--check", "--json"]).output)
    assert (found["passed"], found["layers"], found["idioms"], found["problems"]) == (True, 7, {"SiLU": 1}, [])
    assert found["norms"][0] == {
        "node": "c_node", "fate": "put back", "why": "the file has no BatchNormalization: it was folded"
    }  # fmt: skip


def test_a_check_of_what_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_text("hello")
    result = RUNNER.invoke(app, ["import", str(path), "--check"])
    assert result.exit_code == 1
    assert result.output.startswith("problem: it is no ONNX model")


def test_a_check_refuses_what_it_would_not_read(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["import", str(good(tmp_path)), "--check", "--data", "digits", "--split", "c=2"])
    assert str(result.exception) == (
        "--check looks at the model alone and would not read --data, --split; leave it out"
    )


def test_notes_of_an_import_reach_the_user(tmp_path: Path) -> None:
    path = good(tmp_path)
    result = RUNNER.invoke(app, ["import", str(path), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    wanted = [
        "node y_node (Softmax) at the end was dropped: the loss (softmax with cross-entropy) holds it",
        "normalisation put back at c_node: the file has no BatchNormalization: it was folded; "
        "`--norm as-is` leaves it out",
    ]
    assert found["notes"] == wanted
    again = RUNNER.invoke(app, ["import", str(path)])
    assert [line.strip() for line in again.stdout.splitlines()[3:5]] == wanted
