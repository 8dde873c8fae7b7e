"""Numbers that the user chooses: bits by kind and layer, narrow stashes, counters of saturations; in every simulator.

Bits and cycles of the two layers stand in tests/test_layer_conformance.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Array, Executor
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import CalibrationOptions, calibrate
from dagtrain.passes.count_saturations import CounterError, count_saturations
from dagtrain.passes.formats import free_sources, propagate_formats
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.widths import WidthError, Widths
from dagtrain.report.profile_page import error_text, remark
from dagtrain.training.divergence import divergences, first_to_leave
from dagtrain.training.feeds import synthetic_feeds
from dagtrain.training.profile import profile
from hdl.fixed import Fixed
from hdl.layers.wiring.saturation_counter import SaturationCounter, at_an_end
from hdl.recipe import Recipe
from hdl.tensor import Kind
from tests.flow_support import Case, new_case, quick_costs, with_few_dsp
from tests.layer_support import design_of, make_case

RECIPE = Recipe(batch=4)
BITS = ("activation=12,weight=9,error=11,gradient=14,stash=7", "conv2:activation=10,stash=6", "gemm*:weight=18")


def net(bits: tuple[str, ...] = (), headroom: int = 2, recipe: Recipe = RECIPE) -> Graph:
    """A training graph with a shortcut and a norm."""
    build = GraphBuilder("net", recipe, seed=3)
    x = build.relu(build.norm(build.conv(build.input(6, 6, 2), 4, kernel=3, padding=1)))
    x = build.relu(build.add(build.conv(x, 4, kernel=3, padding=1), x))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    feeds = [synthetic_feeds(training, 4, seed) for seed in range(3)]
    options = CalibrationOptions(width=Widths.parse(bits), headroom=dict.fromkeys(Kind, headroom))
    return calibrate(training, feeds, options)


def test_all_that_is_wrong_with_bits_is_said_at_once() -> None:
    with pytest.raises(WidthError) as caught:
        Widths.parse(("activation", "weigth=8,error=40", ":error=8", "error=8,error=9", "stash=", "a:gradient=3"))
    text = str(caught.value)
    for part in (
        "'activation' is not KIND=BITS",
        "'weigth' is no kind of tensor; kinds are activation, error, stash, weight, gradient, sum, master, momentum",
        "error of 40 bits can't be built; choose 4 to 18",
        "names no layer before the colon",
        "gives error twice",
        "stash of no bits",
        "gradient of 3 bits",
    ):
        assert part in text, text


def test_the_last_that_fits_holds() -> None:
    widths = Widths.parse(("activation=12", "conv*:activation=10,weight=8", "conv2:activation=9"))
    assert [widths.of(name, Kind.ACTIVATION) for name in ("relu1", "conv1", "conv2")] == [12, 10, 9]
    assert [widths.of(name, Kind.WEIGHT) for name in ("gemm1", "conv1")] == [16, 8]
    assert widths.chosen("gemm1", Kind.WEIGHT) is None


def test_a_layer_that_is_not_there_is_an_error_that_names_some_that_are() -> None:
    with pytest.raises(WidthError, match=r"--bits convx: no layer has such a name; names are like .*conv1"):
        net(("convx:weight=8",))


def test_every_format_has_the_bits_that_were_asked_for() -> None:
    graph = net(BITS)
    for node in graph.nodes:
        for port in free_sources(node.layer):
            tensor = graph.tensor(node.outputs[port])
            wanted = {Kind.ACTIVATION: 12, Kind.WEIGHT: 9, Kind.ERROR: 11, Kind.GRADIENT: 14}.get(tensor.kind)
            if node.whole == "conv2" and tensor.kind is Kind.ACTIVATION:
                wanted = 10
            if node.whole.startswith("gemm") and tensor.kind is Kind.WEIGHT:
                wanted = 18
            if node.role is not Role.NARROW:
                assert tensor.fixed.width == wanted, (node.name, port)


def test_stashes_wait_in_fewer_bits_with_the_range_of_what_they_were() -> None:
    graph = net(BITS)
    narrow = {node.name: node for node in graph.nodes if node.role is Role.NARROW}
    assert set(narrow) == {"input1.y.narrow", "relu1.y.narrow", "average1.y.narrow"}
    for node in narrow.values():
        x, y = node.layer.port("x").tensor.fixed, node.layer.port("y").tensor.fixed
        assert y.width == 7
        assert y.width - y.fraction_bits == x.width - x.fraction_bits
        readers = [reader.name for reader, _ in graph.consumers[node.outputs["y"]]]
        assert all(name.endswith(".gradient") for name in readers), readers
    assert graph.by_name["conv2"].inputs["x"] == "relu1.y"


def test_a_stash_is_never_widened() -> None:
    assert not [node for node in net(("activation=8,stash=12",)).nodes if node.role is Role.NARROW]


def test_counters_count_every_number_at_an_end() -> None:
    graph = count_saturations(net(("activation=5,error=5,gradient=4,weight=4",), headroom=0), ("*",))
    counters = {node.name: node for node in graph.nodes if node.role is Role.COUNTER}
    assert "conv1.y.saturations" in counters
    assert "conv2.w.update.w.saturations" in counters
    assert "relu1.y.saturations" not in counters
    executor = Executor(insert_forks(graph))
    wanted = dict.fromkeys(counters, 0)

    def observe(edge: str, codes: Array) -> None:
        name = f"{edge}.saturations"
        if name in wanted:
            wanted[name] += at_an_end(codes, graph.tensor(edge).fixed)

    for seed in range(5):
        feeds = synthetic_feeds(graph, 4, seed)
        # louder than what the formats were chosen for
        executor.step({**feeds, "input1": 8 * feeds["input1"]}, observe)
    counted = {name: executor.states[name]["count"] for name in counters}
    assert counted == wanted
    assert sum(count > 0 for count in counted.values()) >= 5, counted
    before = dict(counted)
    executor.evaluate(synthetic_feeds(graph, 4, 9))
    assert {name: executor.states[name]["count"] for name in counters} == before


def test_counting_does_not_change_a_bit() -> None:
    plain, counted = net(), count_saturations(net(), ("*",))
    one, two = Executor(plain), Executor(counted)
    for seed in range(3):
        np.testing.assert_equal(one.step(synthetic_feeds(plain, 4, seed)), two.step(synthetic_feeds(counted, 4, seed)))


def test_a_pattern_that_fits_nothing_is_an_error() -> None:
    with pytest.raises(CounterError, match=r"--count-saturations relu9\.y: .* such a name; names are like "):
        count_saturations(net(), ("relu9.y", "conv1.y"))


@pytest.mark.parametrize("fixed", [Fixed(4, 2), Fixed(3, 0, signed=False)], ids=str)
def test_both_ends_count_and_neither_what_stands_beside_them_nor_a_zero(fixed: Fixed) -> None:
    layer = SaturationCounter(shape=(1, 1, 5), x_fixed=fixed)
    state = layer.start({})
    layer.golden(state, {"x": np.array([[[[fixed.low, fixed.low + 1, fixed.high, fixed.high - 1, fixed.high]]]])})
    assert state["count"] == 2 + fixed.signed
    state["count"] = 2**32 - 1
    layer.golden(state, {"x": np.array([[[[1, fixed.high, fixed.high, 1, 1]]]])})
    assert layer.images(state)["saturations"] == [1]


def test_a_profile_tells_saturation_resolution_and_range_of_numbers_made_to_have_them() -> None:
    build = GraphBuilder("flat", Recipe(batch=4), seed=3)
    training = differentiate(build.classify(build.gemm(build.input(1, 1, 4), 2)))
    graph = propagate_formats(training, {"input1.y": Fixed(8, 4)})
    images = np.array([[100.0, -100.0, 0.0, 1.0], [0.01, -0.02, 4.0, 0.75], [7.9, 8.0, -8.0, 0.03], [0, 0, 0, 2]])
    feeds = {"input1": images.reshape(4, 1, 1, 4), "loss1.label": np.zeros((4, 1, 1, 1))}
    found = {one.edge: one for one in profile(insert_forks(graph), [feeds])}["input1.y"]
    assert (found.numbers, found.fixed) == (16, Fixed(8, 4))
    # 100, -100, 8 and -8; 7.9 is 126 steps
    assert found.saturated == 4
    # four zeros, and 0.01, -0.02, 0.03, of which the last is nearest to 0 too
    assert (found.zeros, found.below_step) == (7, 3)
    assert found.peak == 100.0
    assert found.octaves == {-7: 1, -6: 2, -1: 1, 0: 1, 1: 1, 2: 2, 3: 2, 6: 2}
    assert found.signal_to_error_db < 10
    assert profile(insert_forks(graph), []) == ()


@pytest.mark.parametrize(
    ("bits", "edge"),
    [
        ("conv2:activation=5", "conv2.y"),
        ("norm1:error=5", "norm1.backward.dx"),
        ("conv1:gradient=4", "conv1.gradient.g"),
        ("gemm1:weight=4", "gemm1.w.update.w"),
        ("activation=16", None),
    ],
)
def test_the_layer_that_diverges_is_the_one_with_too_few_bits(bits: str, edge: str | None) -> None:
    graph = insert_forks(net((bits,)))
    epochs = [[synthetic_feeds(graph, 4, 10 * epoch + batch) for batch in range(6)] for epoch in range(2)]
    found = divergences(graph, epochs, threshold=0.04)
    first = first_to_leave(found)
    assert (first and first.edge) == edge
    if first:
        assert first.layer == bits.split(":")[0]
        assert first.left is not None
        assert first.own_errors[first.left - 1] > 0.04
    assert {len(errors) for one in found for errors in (one.errors, one.own_errors)} == {2}


def test_what_the_recipe_clips_is_no_saturation_and_no_divergence() -> None:
    graph = insert_forks(net(recipe=Recipe(batch=4, clip=1e-3)))
    feeds = [synthetic_feeds(graph, 4, seed) for seed in range(4)]
    profiles = {one.edge: one for one in profile(graph, feeds)}
    cut = {edge for edge, one in profiles.items() if one.kind is Kind.GRADIENT and one.saturation > 0.01}
    assert "conv1.gradient.g" in cut
    assert not [edge for edge in cut if "saturates" in remark(profiles[edge])]
    # the same numbers are remarked upon where nobody clips them
    assert "saturates" in remark(replace(profiles["conv1.gradient.g"], clipped=False))
    own = {one.edge: one.own_errors[0] for one in divergences(graph, [feeds], threshold=0.05)}
    assert max(own[edge] for edge in cut) < 0.05


def test_a_tensor_diverges_in_the_epoch_in_which_its_own_error_is_too_large_first() -> None:
    build = GraphBuilder("flat", Recipe(batch=4), seed=3)
    training = differentiate(build.classify(build.gemm(build.input(1, 1, 4), 2)))
    graph = insert_forks(propagate_formats(training, {"input1.y": Fixed(8, 4)}))
    fits, ends = np.array([1.0, -2.0, 0.5, 0.0]), np.array([10.0, 4.0, 0.0, 0.0])
    feeds = [
        {"input1": np.tile(images, (4, 1)).reshape(4, 1, 1, 4), "loss1.label": np.zeros((4, 1, 1, 1))}
        for images in (fits, ends)
    ]
    found = {one.edge: one for one in divergences(graph, [feeds[:1], feeds], threshold=0.1)}["input1.y"]
    # 10 becomes 127 / 16, which is off by 2.0625; squares of the second epoch: 5.25 a frame and 116
    assert found.errors == (0.0, pytest.approx(2.0625 / np.sqrt(5.25 + 116)))
    assert found.own_errors == found.errors
    assert found.left == 2
    assert "loss1.metrics" not in {one.edge for one in divergences(graph, [feeds], threshold=0.1)}


def test_synthesis_is_told_to_keep_the_count() -> None:
    layer = SaturationCounter(shape=(1, 1, 4), lanes=2)
    assert "(* noprune, keep *) reg" in design_of(make_case(layer)).convert().text


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """Imported with chosen numbers, placed, emitted."""
    case = new_case(tmp_path_factory.mktemp("numbers"), with_few_dsp(0.002))
    words = [
        "--bits",
        "activation=9,weight=8,error=10,gradient=12,stash=6,sum=18,master=12,momentum=14",
        "--bits",
        "[cy]*:activation=6",
    ]
    outcome = case.step("import", *words, "--count-saturations", "*", "--recipe", recipe(case.root))
    assert outcome.code == 0, outcome.error
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        yield case.must("place", "emit")


def recipe(folder: Path) -> Path:
    """Few frames a batch."""
    path = folder / "recipe.toml"
    path.write_text("batch = 4\nstaleness = 2\nlearning_rate = 0.5\n")
    return path


@pytest.mark.slow
def test_the_verilog_of_chosen_numbers_trains_as_the_emulator_does_and_counts_alike(built: Case) -> None:
    images = np.random.default_rng(1).standard_normal((8, 2, 6, 6)).astype(np.float32)
    # far beyond what the formats were chosen for
    np.savez(built.root / "loud.npz", images=20 * images, labels=np.arange(8) % 3)
    outcome = built.step("cosim", "--batches", 2, "--no-efficiency", "--json", "--data", built.root / "loud.npz")
    assert outcome.code == 0, outcome.out + outcome.error
    result = json.loads(outcome.out)
    assert result["mismatches"] == []
    counted = result["saturations"]
    assert set(counted) >= {"image.y", "c_node.y", "c_node.w.update.w", "y_node.gradient.g", "y_node.error.dx"}
    assert sum(count > 0 for count in counted.values()) >= 3, counted


def test_the_page_of_a_profile_names_what_does_not_fit(built: Case) -> None:
    outcome = built.step("profile", "--batches", 2)
    assert outcome.code == 0, outcome.error
    page = (built.out / "profile" / "profile.html").read_text()
    assert page.count("<svg") == page.count("</svg>") == len(profile_record(built)["tensors"])
    assert "formats stand out" in outcome.out or "every format fits" in outcome.out
    coarse = [one["edge"] for one in profile_record(built)["tensors"] if "too coarse" in one["remark"]]
    assert coarse, "numbers of 6 bits are coarse"
    assert {one["sum_bits"] for one in profile_record(built)["tensors"] if "sum_bits" in one} == {18}
    assert "sums of 18 bits" in page
    assert all(edge in page for edge in coarse)


def test_the_layer_that_diverges_in_training_is_named_by_command(built: Case) -> None:
    outcome = built.step("profile", "--batches", 1, "--train", "--epochs", 2, "--data", built.data(20), "--json")
    assert outcome.code == 0, outcome.error
    training = json.loads(outcome.out)["training"]
    assert (training["epochs"], training["threshold"]) == (2, 0.05)
    first = next(one for one in training["tensors"] if one["edge"] == training["first"])
    assert first["own_errors"][first["left"] - 1] > 0.05
    before = training["tensors"][: training["tensors"].index(first)]
    assert max((one["own_errors"][0] for one in before), default=0.0) <= 0.05
    page = (built.out / "profile" / "profile.html").read_text()
    assert f"Layer {first['layer']} diverges" in page
    table = page.split('id="training-table"')[1]
    for one in training["tensors"]:
        row = next(row for row in table.split("<tr>") if row.startswith(f"<td>{one['edge']}</td>"))
        for error in (*one["own_errors"], *one["errors"]):
            assert f">{error_text(error)}</td>" in row
    again = built.step("profile", "--batches", 1, "--train", "--epochs", 2, "--data", built.data(20))
    assert f"layer {first['layer']} diverges" in again.out


def test_options_of_training_beside_float64_go_with_it(built: Case) -> None:
    outcome = built.step("profile", "--batches", 0, "--epochs", 2)
    assert outcome.code == 1
    assert "--batches must be at least 1" in outcome.error
    assert "--epochs and --threshold go with --train" in outcome.error
    outcome = built.step("profile", "--train", "--epochs", 0, "--threshold", 0)
    for part in ("--epochs must be at least 1", "--threshold must be above 0", "--train needs data"):
        assert part in outcome.error


def profile_record(case: Case) -> Any:
    return json.loads((case.out / "profile" / "profile.json").read_text())
