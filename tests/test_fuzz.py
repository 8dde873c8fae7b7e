"""Spoilt files of every kind: never a traceback, never a hang, never more memory than a laptop has.

The quick cases run with the other tests; thousands of them with ``make test-slow``.  A fault names seed and case, and
``FUZZ_SEED`` chooses other seeds.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from dagtrain import cli
from tests.flow_support import CLUSTER, Case, new_case, quick_costs, tiny_model
from tests.fuzzing import Outcome, attempt, hunt, spoil_bytes, spoil_fields, spoil_folder, spoil_toml
from tests.import_support import model, node

SEED = int(os.environ.get("FUZZ_SEED", "1"))


def bases() -> list[onnx.ModelProto]:
    """Small models with every kind of field that the importer reads."""
    rng = np.random.default_rng(5)
    norm = {f"n{what}": rng.random(4) + 0.5 for what in ("scale", "shift", "mean", "var")}
    constants = {"k": rng.standard_normal((4, 2, 3, 3)), "d": rng.standard_normal((4, 1, 3, 3)), **norm}
    constants |= {"w": rng.standard_normal((3, 36)), "b": rng.standard_normal(3), "shape": np.array([0, -1])}
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1], strides=[1, 1], dilations=[1, 1], group=1, kernel_shape=[3, 3]),
        node("BatchNormalization", "c nscale nshift nmean nvar", "n", epsilon=1e-5, momentum=0.9),
        node("Clip", "n zero six", "r"),
        node("Constant", "", "zero", value=onnx.numpy_helper.from_array(np.float32(0), "z")),
        node("Constant", "", "six", value_float=6.0),
        node("Conv", "r d", "e", pads=[1, 1, 1, 1], group=4),
        node("Add", "e r", "a"),
        node("MaxPool", "a", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", "p", "s"),
        node("Reshape", "p shape", "f"),
        node("Gemm", "f w b", "g", transB=1, alpha=1.0, beta=1.0),
        node("Softmax", "g", "y", axis=1),
    ]
    sized = [
        node("ConstantOfShape", "size", "big", value=onnx.numpy_helper.from_array(np.array([1.0], np.float32), "one")),
        node("Mul", "x big", "m"),
        node("GlobalAveragePool", "m", "q"),
        node("Flatten", "q", "y"),
    ]
    spelt_out = [
        node("Transpose", "x", "t", perm=[0, 2, 3, 1]),
        node("MatMul", "t m", "n"),
        node("RandomUniformLike", "n", "r"),
        node("Less", "r half", "l"),
        node("Cast", "l", "o", to=1),
        node("Div", "o half", "d"),
        node("Mul", "n d", "e"),
        node("Sigmoid", "e", "g"),
        node("Mul", "g e", "s"),
        node("ReduceMean", "s", "a", axes=[1, 2], keepdims=0),
        node("Gemm", "a v", "y", transB=1),
        node("ArgMax", "y", "label", axis=1),
    ]
    numbers = {"m": rng.random((2, 4)), "half": np.float32(0.5), "v": rng.random((3, 4))}
    idioms = model(spelt_out, numbers, outputs=("label", "y"), opset=13)
    return [tiny_model(), model(nodes, constants), model(sized, {"size": np.array([1, 2, 1, 1])}), idioms]


def import_faults(count: int, folder: Path, bytewise: bool) -> list[str]:
    """`dagtrain import` on models spoilt in bytes or in fields."""
    models = bases()
    path = folder / "net.onnx"

    def case(rng: random.Random, index: int) -> Outcome:
        base = models[index % len(models)]
        path.write_bytes(spoil_bytes(base.SerializeToString(), rng) if bytewise else spoil_fields(base, rng))
        return attempt(
            ("import", path, "--norm", rng.choice(("online", "none", "as-is")), "--out", folder / "out"), folder
        )

    return hunt(count, SEED, case)


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A working folder as far as its plan."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        return new_case(tmp_path_factory.mktemp("fuzz")).must("import", "place")


def cluster_faults(count: int, case: Case, folder: Path) -> list[str]:
    """`dagtrain place` on cluster files spoilt, and recipes for `import`."""
    recipe = "batch = 4\nstaleness = 0\nlearning_rate = 0.02\nmomentum = 0.9\nweight_decay = 0.0001\nseed = 1\n"
    path = folder / "spoilt.toml"
    out = folder / "out"

    def spoilt(rng: random.Random, index: int) -> Outcome:
        text = recipe if index % 3 == 0 else CLUSTER
        path.write_bytes(spoil_toml(text, rng))
        if index % 3 == 0:
            return attempt(("import", case.model, "--norm", "as-is", "--recipe", path, "--out", out), folder)
        shutil.copytree(case.out / "import", out / "import", dirs_exist_ok=True)
        return attempt(("place", "--devices", path, "--time-limit", "2", "--out", out), folder)

    return hunt(count, SEED, spoilt)


def folder_faults(count: int, case: Case, folder: Path) -> list[str]:
    """Later steps on damaged results of earlier ones."""
    out = folder / "build"
    steps = (
        ("show",),
        ("report",),
        ("train", "--epochs", "1", "--data", case.data()),
        ("place", "--devices", case.cluster),
    )

    spoilt = Case(folder)

    def damaged(rng: random.Random, index: int) -> Outcome:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(case.out, out)
        what = spoil_folder(out, rng)
        if rng.random() < 0.6:
            # so that the readers themselves meet it, not only the digests of the stamp
            for step in ("import", "place"):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    spoilt.restamp(step)
        outcome = attempt((*steps[index % len(steps)], "--out", out), folder)
        return Outcome(f"{outcome.fault} after {what}" if outcome.fault else "", outcome.error)

    return hunt(count, SEED, damaged)


@pytest.mark.parametrize("bytewise", [True, False])
def test_spoilt_models_are_refused_or_imported(bytewise: bool, tmp_path: Path) -> None:
    assert import_faults(15, tmp_path, bytewise) == []


def test_spoilt_cluster_files_and_recipes_are_refused_or_used(
    placed: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    assert cluster_faults(20, placed, tmp_path) == []


def test_damaged_folders_are_refused_or_used(placed: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    assert folder_faults(15, placed, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("bytewise", [True, False])
def test_thousands_of_spoilt_models_are_refused_or_imported(bytewise: bool, tmp_path: Path) -> None:
    assert import_faults(2500, tmp_path, bytewise) == []


@pytest.mark.slow
def test_thousands_of_spoilt_cluster_files_and_recipes_are_refused_or_used(
    placed: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    assert cluster_faults(2000, placed, tmp_path) == []


@pytest.mark.slow
def test_a_thousand_damaged_folders_are_refused_or_used(
    placed: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    assert folder_faults(1000, placed, tmp_path) == []


def test_the_hunt_sees_a_traceback_a_hang_and_a_glutton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        raise KeyError("lost")

    def hang() -> None:
        while True:
            pass

    def eat() -> None:
        np.ones(250_000_000)

    for fault, seconds, wanted in (
        (crash, 10, "KeyError: 'lost'"), (hang, 1, "more than 1 s"), (eat, 10, "GB of memory")
    ):  # fmt: skip
        monkeypatch.setattr("tests.fuzzing.TIME_LIMIT_S", seconds)
        monkeypatch.setattr(cli, "main", fault)
        assert wanted in attempt((), tmp_path).fault


def test_a_fault_of_the_program_ends_with_a_message_and_a_file_of_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(**_words: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(cli, "app", fault)
    outcome = attempt(("show",), tmp_path)
    assert outcome.fault.startswith("exit code 70: ")
    assert "error: a fault of dagtrain itself, KeyError: 'lost'" in outcome.error
    assert "dagtrain show" in outcome.error
    assert "Traceback" in outcome.error
