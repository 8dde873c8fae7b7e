"""Long runs: one epoch of the digits network in the emitted Verilog, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagtrain.data import load_digits
from dagtrain.flow import cosim_step, emit_step, import_step, place_step
from dagtrain.flow.workspace import Workspace
from dagtrain.progress import Silent

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits"


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The digits network, imported, placed on its three FPGAs and emitted."""
    space = Workspace(tmp_path_factory.mktemp("digits"))
    model = import_step.ImportOptions(model=EXAMPLE / "digits.onnx", recipe=EXAMPLE / "recipe.toml", data="digits")
    import_step.run(space, model, Silent())
    place_step.run(space, place_step.PlaceOptions(devices=EXAMPLE / "cluster.toml"), Silent())
    emit_step.run(space, emit_step.EmitOptions(), Silent())
    return space


@pytest.mark.slow
def test_the_digits_cluster_trains_four_batches_to_the_bits_of_the_emulator(emitted: Workspace) -> None:
    result = cosim_step.run(emitted, cosim_step.CosimOptions(batches=4), Silent())
    assert result.passed
    assert result.data["devices"] == 3
    assert result.data["compared_words"] > 20_000


@pytest.mark.slow
def test_an_epoch_in_verilog_equals_the_emulator_in_every_bit(emitted: Workspace) -> None:
    batch = json.loads((emitted.folder("import") / "graph.json").read_text())["recipe"]["batch"]
    batches = int(len(load_digits()) * 0.8) // batch
    result = cosim_step.run(emitted, cosim_step.CosimOptions(batches=batches, stall=0.05), Silent())
    assert result.passed
    assert result.data["frames"] == batches * batch
