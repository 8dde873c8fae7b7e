"""`dagtrain simulate`: a step as any, on the files that were emitted."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.flow_support import Case, call, new_case, quick_costs, with_few_dsp
from tests.import_support import ROOT

DIGITS = ROOT / "examples" / "digits"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        return new_case(tmp_path_factory.mktemp("case"), with_few_dsp(0.002)).must("import", "place", "emit")


def test_wrong_options_are_told_in_one_message(case: Case) -> None:
    outcome = case.step("simulate", "--level", "rough", "--batches", 0, "--frames", 0, "--stall", 1, "--latency", 0)
    assert outcome.code == 1
    for part in (
        "--batches must be at least 1, not 0",
        "--stall must lie in [0, 1), not 1",
        "--latency must be at least 1 cycle, not 0",
        "--level must be one of exact, fast, not rough",
        "--frames must be at least 1, not 0",
    ):
        assert part in outcome.error, part
    assert not (case.out / "simulate").exists()


def test_files_that_were_changed_since_are_not_simulated(case: Case) -> None:
    path = min((case.out / "emit").glob("*/rtl/*.v"))
    before = path.read_text()
    path.write_text(before + "\n")
    outcome = case.step("simulate")
    path.write_text(before)
    assert outcome.code == 1
    assert path.name in outcome.error
    assert "dagtrain emit" in outcome.error


def test_frames_are_whole_batches_and_an_unchanged_step_is_not_done_again(case: Case) -> None:
    first = told(case, "--frames", 5, "--stall", 0)
    assert first["done"]
    batch = first["batch"]
    assert len(first["frame_cycles"]) == len(first["batches"]) * batch == -(-5 // batch) * batch
    again = told(case, "--frames", 5, "--stall", 0)
    assert not again["done"]
    assert {**again, "done": True} == first


def told(case: Case, *words: object) -> dict[str, Any]:
    """What it prints for programs."""
    outcome = case.step("simulate", *words, "--json")
    assert outcome.code == 0, outcome.error
    found: dict[str, Any] = json.loads(outcome.out)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("stall", [0, 0.25])
def test_digits_on_three_fpgas_take_the_cycles_of_the_cosimulation(stall: float, tmp_path: Path) -> None:
    words: dict[str, tuple[object, ...]] = {
        "import": (DIGITS / "digits.onnx", "--data", "digits", "--recipe", DIGITS / "recipe.toml"),
        "place": ("--devices", DIGITS / "cluster.toml"),
        "emit": (),
        "cosim": ("--batches", 3, "--stall", stall, "--seed", 11, "--no-efficiency"),
        "simulate": ("--batches", 3, "--stall", stall, "--seed", 11),
    }
    found: dict[str, Any] = {}
    for name, more in words.items():
        outcome = call(name, *more, "--out", tmp_path, "--json")
        assert outcome.code == 0, (name, outcome.error)
        found[name] = json.loads(outcome.out)
    assert found["cosim"]["equal"]
    ends = [batch["last_result"] for batch in found["simulate"]["batches"]]
    assert found["cosim"]["batch_cycles"] == [later - end for end, later in itertools.pairwise(ends)]
    if not stall:
        # the plan foretells the pace of training to the cycle
        assert found["simulate"]["batch_interval"] == found["place"]["batch_cycles"]
    # of what is left of three batches nothing differs but the bench's wait behind the last
    assert 0 < found["simulate"]["cycles"] < found["cosim"]["cycles"]
