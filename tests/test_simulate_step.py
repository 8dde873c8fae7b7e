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


def test_frames_are_whole_batches_or_the_first_of_one_and_an_unchanged_step_is_not_done_again(case: Case) -> None:
    whole = told(case, "--batches", 1, "--stall", 0)
    batch = whole["batch"]
    first = told(case, "--frames", batch + 1, "--stall", 0)
    assert first["done"]
    assert len(first["frame_cycles"]) == len(first["batches"]) * batch == 2 * batch
    again = told(case, "--frames", batch + 1, "--stall", 0)
    assert not again["done"]
    assert {**again, "done": True} == first
    # in the same cycles, and nothing behind them
    part = told(case, "--frames", batch - 1, "--stall", 0)
    assert part["frame_cycles"] == whole["frame_cycles"][:-1]
    assert part["worked_cycles"] < whole["worked_cycles"]
    assert part["batches"] == [whole["batches"][0] | {
        "last_result": part["frame_cycles"][-1], "last_weights": None, "drain_cycles": 0
    }]  # fmt: skip
    assert f"  {batch - 1} of {batch} frames, " in case.step("simulate", "--frames", batch - 1, "--stall", 0).out


def test_of_the_first_frames_events_tell_what_they_tell_of_the_batch(case: Case) -> None:
    whole = told(case, "--level", "fast", "--batches", 1)
    batch = whole["batch"]
    part = told(case, "--level", "fast", "--frames", batch - 1)
    assert part["frame_cycles"] == whole["frame_cycles"][:-1]
    # and what was done until then
    end = part["frame_cycles"][-1]
    assert end <= part["worked_cycles"] < whole["worked_cycles"]
    for before, node in zip(whole["nodes"], part["nodes"], strict=True):
        assert node["spans"] == [[first, last] for first, last in before["spans"] if last <= end]
    assert any(len(node["spans"]) < batch - 1 for node in part["nodes"] if not node["per_batch"])
    assert sum(cable["bits"] for cable in part["cables"]) < sum(cable["bits"] for cable in whole["cables"])
    assert part["batches"][0]["last_weights"] is None
    assert whole["full"]["first_frame"] == part["full"]["first_frame"]
    exact = told(case, "--frames", batch - 1, "--stall", 0)
    assert part["full"]["cycles_per_frame"] == pytest.approx(exact["full"]["cycles_per_frame"], rel=0.01)
    assert part["full"]["idle"] == pytest.approx(exact["full"]["idle"], abs=0.01)
    assert f"  {batch - 1} of {batch} frames, " in case.step("simulate", "--level", "fast", "--frames", batch - 1).out


def test_faults_are_of_frames_and_of_the_exact_level(case: Case) -> None:
    for words, message in (
        (("--loss", 0.1), "--loss: words go over this network as they are, there are no frames"),
        (
            ("--loss", 2, "--link-down", "fpga0"),
            "--loss must lie in [0, 1], not 2.0; --link-down fpga0 is not PORT:FIRST",
        ),
        (("--level", "fast", "--corrupt", 0.5), "--corrupt: of --level exact, events know no frames"),
    ):
        outcome = case.step("simulate", *words)
        assert outcome.code == 1
        assert message in outcome.error


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
