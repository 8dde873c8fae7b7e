"""The network of examples/mnist: its script, its data, that it learns; all steps in the slow suite."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest

from dagtrain.passes.autodiff import differentiate
from dagtrain.training.feeds import check_dataset
from dagtrain.training.spec import choose_data
from hdl.recipe import Recipe
from importers.onnx import import_model
from tests.flow_support import call

MNIST = Path(__file__).parent.parent / "examples" / "mnist"
RECIPE = Recipe(**tomllib.loads((MNIST / "recipe.toml").read_text()))


def test_the_mnist_script_writes_the_committed_file(tmp_path: Path) -> None:
    command = [sys.executable, str(MNIST / "make_mnist_onnx.py"), str(tmp_path / "mnist.onnx")]
    subprocess.run(command, check=True, capture_output=True)
    assert onnx.load(tmp_path / "mnist.onnx") == onnx.load(MNIST / "mnist.onnx")


def test_its_data_fit_and_are_held_out_of_each_digit() -> None:
    graph = differentiate(import_model(MNIST / "mnist.onnx", recipe=RECIPE))
    train, held_out = (check_dataset(graph, part, "mnist5k") for part in choose_data(str(MNIST / "data.toml")).parts(1))
    assert (len(train), len(held_out)) == (4000, 1000)
    np.testing.assert_array_equal(np.bincount(held_out.classes()), [100] * 10)
    frames = train.frames(np.arange(0, 4000, 10))
    assert abs(frames.mean()) < 0.1
    assert abs(frames.std() - 1) < 0.1


@pytest.mark.slow
def test_mnist_goes_through_all_steps(tmp_path: Path) -> None:
    outcome = call(
        "run", MNIST / "mnist.onnx", "--data", MNIST / "data.toml", "--recipe", MNIST / "recipe.toml",
        "--devices", MNIST / "cluster.toml", "--batches", 2, "--epochs", 6, "--no-efficiency", "--out", tmp_path,
    )  # fmt: skip
    assert outcome.code == 0, outcome.error
    assert "every bit equal" in outcome.out
    assert call("export", "--out", tmp_path).code == 0
    assert call("evaluate", tmp_path / "export" / "mnist.onnx", "--out", tmp_path).code == 0
    trained = json.loads((tmp_path / "train" / "train.json").read_text())["epochs"][-1]["held_out_accuracy"]
    exported = json.loads((tmp_path / "evaluate" / "evaluate.json").read_text())["accuracy"]
    assert trained > 0.92
    assert abs(trained - exported) <= 0.003
