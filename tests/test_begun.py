"""Hardware that begins from a checkpoint: weights, momenta, statistics, to the bit; `run` without data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dagtrain.flow.placed import load_folded_graph, load_placed_graph
from dagtrain.flow.trained import begun_from, weights_digest
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.storage import StorageError
from dagtrain.graph.stores import first_images
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.training.emulator import Emulator
from dagtrain.training.feeds import synthetic_feeds
from hdl.layers.base import Layer
from hdl.layers.capabilities import Counting, going_on
from hdl.layers.registry import load_layers
from hdl.layers.wiring.update import Update
from hdl.recipe import Recipe, Schedule
from hdl.simulate import Backend
from tests.flow_support import Case, call, new_case, quick_costs, with_few_dsp
from tests.import_support import model, node, save
from tests.layer_support import assert_equal_bits, design_of, make_case

RECIPE = (
    "batch = 4\nstaleness = 2\nlearning_rate = 0.1\nmomentum = 0.9\nnorm_forward_decay = 0.9\n"
    'schedule = "cosine"\nwarm_up = 6\nperiod = 50\n'
)
# schedules of a training without staleness: they run down, step down, and rise, while it goes on
SCHEDULES = {
    "cosine": {"schedule": Schedule.COSINE, "warm_up": 2, "period": 12},
    "step": {"schedule": Schedule.STEP, "period": 3, "step_factor": 0.5},
    "warm-up": {"warm_up": 20},
}
# batches behind a circuit that goes on: between bends of the examples' schedules, and behind the last
FEW_BEHIND, MANY_BEHIND = 2, 1000


def counting() -> dict[str, Layer]:
    """The first example of each layer that counts batches, and all with a schedule, as they go on."""
    found: dict[str, Layer] = {}
    for kind in load_layers().values():
        for number, layer in enumerate(kind.examples()):
            scheduled = isinstance(layer, Update) and layer.recipe.is_scheduled
            if isinstance(layer, Counting) and (not number or scheduled):
                for behind in (FEW_BEHIND, MANY_BEHIND) if scheduled else (MANY_BEHIND,):
                    found[f"{kind.__name__}-{number} after {behind}"] = going_on(layer, behind)
    return found


COUNTING = counting()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """All steps of a net with normalisation, on two FPGAs, without data."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        case = new_case(tmp_path_factory.mktemp("run"), with_few_dsp(0.005))
        rng = np.random.default_rng(3)
        norm = {name: np.full(4, value) for name, value in (("g", 1.0), ("b", 0.0), ("m", 0.0), ("v", 1.0))}
        constants = {
            "k": rng.standard_normal((4, 2, 3, 3)) / 4,
            "w": rng.standard_normal((3, 4)),
            "s": np.zeros(3),
            **norm,
        }
        nodes = [
            node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
            node("BatchNormalization", "c g b m v", "n"),
            node("Relu", "n", "r"),
            node("GlobalAveragePool", "r", "a"),
            node("Flatten", "a", "f"),
            node("Gemm", "f w s", "y", transB=1),
        ]
        save(model(nodes, constants), case.root)
        outcome = call(
            "run", case.model, "--devices", case.cluster, "--recipe", case.write("recipe.toml", RECIPE),
            "--pin", "c_node=worker", "--batches", 2, "--no-efficiency", "--out", case.out,
        )  # fmt: skip
        assert outcome.code == 0, outcome.error
        assert "train: left out\n  there is no data: give --data" in outcome.out
        assert "report: done" in outcome.out
        case.write("run.txt", outcome.out)
        yield case


@pytest.fixture
def case(run: Case, tmp_path: Path) -> Case:
    """A copy of it, and data far from what the statistics begin with."""
    shutil.copytree(run.root, tmp_path / "case")
    case = Case(tmp_path / "case")
    rng = np.random.default_rng(1)
    images = (2 + 3 * rng.standard_normal((40, 2, 6, 6))).astype(np.float32)
    np.savez(case.root / "data.npz", images=images, labels=rng.integers(0, 3, 40))
    return case


def test_run_without_data_works_to_the_report_and_says_what_was_left_out(run: Case) -> None:
    page = (run.out / "report" / "report.html").read_text()
    assert "`dagtrain train` has not been run" in (run.root / "run.txt").read_text()
    assert "every bit equal" in (run.root / "run.txt").read_text()
    assert "<svg" in page
    assert not (run.out / "train").exists()


@pytest.mark.slow
def test_verilog_begun_from_a_checkpoint_trains_on_as_the_emulator_does(case: Case) -> None:
    data = ("--data", case.root / "data.npz")
    assert case.step("train", *data, "--epochs", 3).code == 0
    trained = case.out / "train"
    quiet = ("--no-efficiency", "--batches", 2, "--json", *data)
    refused = case.step("cosim", "--weights", trained, *quiet)
    assert refused.code == 1
    assert f"does not begin from {trained}; run `dagtrain emit --weights {trained}` first" in refused.error
    fresh = json.loads(case.step("cosim", *quiet).out)

    outcome = case.step("emit", "--weights", trained)
    assert outcome.code == 0, outcome.error
    assert "unchanged" in case.step("emit", "--weights", trained).out
    outcome = case.step("cosim", "--weights", trained, *quiet)
    assert outcome.code == 0, outcome.error
    begun = json.loads(outcome.out)
    assert begun["mismatches"] == []
    assert begun["compared_words"] == fresh["compared_words"]
    assert begun["losses"] != fresh["losses"]
    assert "emit: done" in case.step("emit").out


@pytest.mark.parametrize("name", COUNTING)
def test_a_circuit_that_goes_on_has_random_bits_and_rates_of_the_batch_at_hand(name: str) -> None:
    case = make_case(COUNTING[name])
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed=1)


def test_layers_that_go_on_are_all_whose_state_counts() -> None:
    for kind in load_layers().values():
        for layer in kind.examples()[:1]:
            ports = (*layer.sinks, *layer.sources, *layer.held_parameters)
            state = layer.start({port.name: np.zeros(port.tensor.shape) for port in ports})
            assert isinstance(layer, Counting) == bool({"batch", "frame"} & state.keys()), kind.__name__


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_training_that_begins_from_a_checkpoint_is_the_one_that_was_left(schedule: str, tmp_path: Path) -> None:
    recipe = Recipe(batch=4, staleness=0, learning_rate=0.1, weight_decay=1e-3, **SCHEDULES[schedule])
    builder = GraphBuilder("left", recipe, seed=4)
    x = builder.dropout(builder.relu(builder.bias(builder.conv(builder.input(4, 4, 2), 4, 3, padding=1))), 0.3)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 3)))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, 4, seed) for seed in range(2)]))
    left = Emulator(graph)
    for batch in range(7):
        left.executor.step(synthetic_feeds(graph, 4, batch))
    left.save(tmp_path / "state.npz")
    begun = Executor(begun_from(graph, tmp_path))
    anew = Executor(replace(begun.graph, nodes=graph.nodes))
    for batch in range(7, 10):
        feeds = synthetic_feeds(graph, 4, batch)
        wanted, found, other = left.executor.step(feeds), begun.step(feeds), anew.step(feeds)
        for name, codes in wanted.items():
            np.testing.assert_array_equal(found[name], codes)
        for edge, weights in left.executor.weights.items():
            np.testing.assert_array_equal(begun.weights[edge], weights)
    # the counters are what makes it so
    assert any(not np.array_equal(anew.weights[edge], weights) for edge, weights in begun.weights.items())
    assert begun.batches == left.executor.batches == 10
    assert any(not np.array_equal(other[name], codes) for name, codes in wanted.items())


def test_what_is_carried_over_is_all_that_training_left_with_its_counters(case: Case) -> None:
    assert case.step("train", "--data", case.root / "data.npz", "--epochs", 2).code == 0
    graph = load_placed_graph(case.workspace)
    left = Emulator(graph)
    left.load(case.out / "train" / "state.npz")
    begun = begun_from(graph, case.out / "train")
    executor = Executor(begun)
    kept = {"master", "momentum", "mean", "variance", "v", "u"}
    seen: set[str] = set()
    for name, state in left.executor.states.items():
        for key, value in state.items():
            if key in kept:
                np.testing.assert_array_equal(executor.states[name][key], value, err_msg=f"{name}.{key}")
                assert np.any(np.asarray(value)), f"{name}.{key} is as at the start"
                seen.add(key)
            if key == "batch":
                assert executor.states[name][key] == value == 16
    assert seen == kept
    for edge, weights in left.executor.weights.items():
        np.testing.assert_array_equal(executor.weights[edge], weights)
    # the tables that the circuits read say the same as those of the emulator
    for item in graph.nodes:
        if "tables" in executor.states[item.name]:
            for pair in executor.states[item.name]["tables"]:
                np.testing.assert_array_equal(pair, left.executor.states[item.name]["tables"][-1])
    assert weights_digest(begun) == weights_digest(begun_from(begun, case.out / "train"))
    assert weights_digest(begun) != weights_digest(graph)


def test_without_a_checkpoint_images_are_those_of_the_model(case: Case) -> None:
    graph = load_folded_graph(case.workspace)
    for item in graph.nodes:
        wanted = item.layer.images(item.layer.start(graph.initial(item)))
        assert first_images(graph, item) == wanted


def test_a_checkpoint_of_another_graph_is_refused(case: Case, tmp_path: Path) -> None:
    other = new_case(tmp_path / "other")
    assert other.step("import", "--data", other.data()).code == 0
    assert other.step("train", "--epochs", 1).code == 0
    with pytest.raises(StorageError, match=r"give what `dagtrain train` left of this plan"):
        begun_from(load_placed_graph(case.workspace), other.out / "train")
    outcome = case.step("emit", "--weights", other.out / "train")
    assert outcome.code == 1
    assert "is of another version of graph net" in outcome.error
    outcome = case.step("emit", "--weights", "nowhere")
    assert outcome.code == 1
    assert "nowhere" in outcome.error
