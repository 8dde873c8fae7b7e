"""Smooth labels and mean squared error: beside formulas and PyTorch, at ties and extremes, and in whole nets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.import_step import RecipeError, load_recipe
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.errors import ShapeError
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.loss.choice import loss_of
from hdl.layers.loss.mean_squared_error import MeanSquaredError
from hdl.layers.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.recipe import Loss, Recipe, Schedule
from hdl.simulate import Backend
from tests.cosim_support import CYCLES, DEVICES, placement, simulate_design
from tests.layer_support import assert_equal_bits, design_of, make_case

SQUARED = Recipe(batch=4, loss=Loss.MEAN_SQUARED_ERROR)
SMOOTH = Recipe(batch=4, label_smoothing=0.1)


def batch(layer: Layer, x: list[list[float]], labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(error, metrics) of the golden model, codes."""
    codes = layer.port("x").tensor.fixed.encode(np.array(x))[:, None, None, :]
    made = layer.golden({}, {"x": codes, "label": np.array(labels)[:, None, None, None]})
    return made["error"][:, 0, 0, :], made["metrics"][:, 0, 0, :]


# ---- smooth labels


@pytest.mark.parametrize("smoothing", [0.1, 0.5, 0.999, 2.0**-20])
@pytest.mark.parametrize("classes", [2, 10, 33])
def test_the_error_of_smooth_labels_is_that_of_the_formula(smoothing: float, classes: int) -> None:
    rng = np.random.default_rng(classes)
    layer = SoftmaxCrossEntropy(classes=classes, smoothing=smoothing, x_fixed=Fixed(16, 10), e_fixed=Fixed(32, 28))
    x = rng.normal(size=(50, classes)) * rng.choice([0.0, 1.0, 8.0], (50, 1))
    labels = rng.integers(0, classes, 50)
    error, _ = batch(layer, x.tolist(), labels.tolist())
    x = layer.x_fixed.decode(layer.x_fixed.encode(x))
    share = np.exp(x - x.max(1, keepdims=True))
    target = np.full(x.shape, smoothing / classes)
    target[np.arange(50), labels] += 1 - smoothing
    wanted = share / share.sum(1, keepdims=True) - target
    assert np.abs(layer.e_fixed.decode(error) - wanted).max() < 2.0**-14


def test_smoothing_changes_no_loss_that_is_told_and_no_answer() -> None:
    scores, labels = [[0.0, 0.0, 0.0], [5.0, -5.0, 5.0], [127.0, -128.0, 0.0]], [0, 2, 1]
    plain, smooth = (SoftmaxCrossEntropy(classes=3, smoothing=share) for share in (0.0, 0.3))
    np.testing.assert_array_equal(batch(plain, scores, labels)[1], batch(smooth, scores, labels)[1])
    assert (batch(plain, scores, labels)[0] != batch(smooth, scores, labels)[0]).all(1).any()


def test_smoothing_outside_its_range_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"smoothing must lie in \[0, 1\), not 1.0"):
        SoftmaxCrossEntropy(classes=3, smoothing=1.0)


# ---- mean squared error


def test_mean_squared_error_by_hand_at_ties_and_extremes() -> None:
    layer = MeanSquaredError(classes=4, x_fixed=Fixed(16, 8), error_fixed=Fixed(16, 8))
    error, metrics = batch(layer, [[1.0, 1.0, 0.0, -1.0], [0.0, 1.0, 0.0, 0.0], [-128.0, 127.0, 0.0, 0.0]], [1, 1, 0])
    assert (error / 256).tolist() == [[0.5, 0.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0], [-64.5, 63.5, 0.0, 0.0]]
    # the first of two largest is not the label's
    assert metrics[:, 1].tolist() == [0, 1, 0]
    assert (metrics[:, 0] / 65536).tolist() == [0.5, 0.0, (129**2 + 127**2) / 4]


def test_losses_too_large_saturate() -> None:
    layer = MeanSquaredError(classes=2, x_fixed=Fixed(16, 0), error_fixed=Fixed(16, 8))
    error, metrics = batch(layer, [[32767.0, -32768.0]], [1])
    assert metrics[0].tolist() == [2**32 - 1, 0]
    assert error[0].tolist() == [32767, -32768]


@pytest.mark.parametrize("layer", [MeanSquaredError(classes=3), SoftmaxCrossEntropy(classes=3, smoothing=0.25)])
def test_circuits_equal_golden_in_every_bit_over_many_frames(layer: Layer) -> None:
    case = make_case(layer, batches=20, seed=9)
    for seed, stall in ((1, 0.0), (2, 0.5)):
        assert_equal_bits(case, design_of(case), Backend.VERILATOR, seed, stall)


def test_impossible_losses_are_refused() -> None:
    with pytest.raises(ShapeError, match="at least 2 classes, not 1"):
        MeanSquaredError(classes=1)
    with pytest.raises(ShapeError, match="takes signed scores"):
        MeanSquaredError(classes=3, x_fixed=Fixed(16, 8, signed=False))
    with pytest.raises(ShapeError, match="too wide"):
        MeanSquaredError(classes=1000, x_fixed=Fixed(24, 8))


# ---- PyTorch


@pytest.mark.torch
@pytest.mark.parametrize("recipe", [SQUARED, SMOOTH, replace(SMOOTH, label_smoothing=0.7), Recipe()])
def test_errors_are_pytorchs_gradients(recipe: Recipe) -> None:
    import torch
    from torch.nn import functional

    layer: Any = loss_of(recipe, 7)
    rng = np.random.default_rng(8)
    x, labels = rng.normal(size=(5, 7)) * 3, rng.integers(0, 7, 5)
    scores = torch.tensor(x, requires_grad=True)
    if recipe.loss is Loss.MEAN_SQUARED_ERROR:
        hot = functional.one_hot(torch.tensor(labels), 7).double()
        loss = functional.mse_loss(scores, hot)
    else:
        loss = functional.cross_entropy(scores, torch.tensor(labels), label_smoothing=recipe.label_smoothing)
    loss.backward()
    values = {"x": x[:, None, None, :], "label": labels[:, None, None, None].astype(float)}
    made = layer.reference({}, values)
    assert scores.grad is not None
    # the update divides the sum over frames by their number
    np.testing.assert_allclose(made["error"][:, 0, 0, :] / 5, scores.grad.numpy(), rtol=1e-6, atol=1e-9)
    if not recipe.label_smoothing:
        assert made["metrics"][..., 0].mean() == pytest.approx(float(loss.detach()), rel=1e-9)


# ---- whole nets


def net(recipe: Recipe) -> Graph:
    builder = GraphBuilder("losses", recipe, seed=4)
    x = builder.relu(builder.conv(builder.input(5, 5, 2), 4, 3, padding=1))
    graph = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 5)))
    return insert_forks(calibrate(graph, [synthetic_feeds(graph, 4, seed) for seed in range(3)]))


@pytest.mark.parametrize("recipe", [SQUARED, SMOOTH])
def test_a_net_learns_a_batch_by_heart_and_survives_its_file(recipe: Recipe, tmp_path: Path) -> None:
    graph = net(replace(recipe, learning_rate=0.1))
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json").nodes == graph.nodes
    exact, real = Executor(graph), Executor(graph, Mode.REFERENCE)
    feeds = synthetic_feeds(graph, 4, seed=1)
    losses = []
    for _ in range(60):
        (codes,), (values,) = exact.step(feeds).values(), real.step(feeds).values()
        losses.append((codes[..., 0].mean() / 65536, values[..., 0].mean()))
    assert losses[-1][0] < 0.6 * losses[0][0]
    assert losses[-1][0] == pytest.approx(losses[-1][1], rel=0.05)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(batch=4, staleness=2, schedule=Schedule.COSINE, period=2, warm_up=1, nesterov=True, loss=SQUARED.loss),
        pytest.param(
            Recipe(batch=4, schedule=Schedule.STEP, period=1, step_factor=0.5, clip=0.05, label_smoothing=0.1),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["cosine, nesterov, mean squared error", "steps, clip, smooth labels"],
)
def test_verilog_of_a_whole_net_trains_to_the_bits_of_the_emulator(recipe: Recipe, tmp_path: Path) -> None:
    graph = net(recipe)
    library = ModuleLibrary(cache_folder() / "modules")
    made = design_cluster(graph, placement(graph, "one"), DEVICES, CYCLES, library, word_bits=64)
    feeds = [synthetic_feeds(graph, 4, 100 + index) for index in range(5)]
    rest = Simulator.VERILATOR, NetworkModel(), 64, 1, Silent()
    run = simulate_design(made, library, feeds, tmp_path, *rest, optimise=False)
    assert run.mismatches == ()
    assert run.compared_words > 100


# ---- what the user says


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('loss = "hinge"', "'cross-entropy' or 'mean-squared-error'"),
        ("label_smoothing = 1.0", "label_smoothing must lie in [0, 1), not 1.0"),
        (
            'loss = "mean-squared-error"\nlabel_smoothing = 0.1',
            "label_smoothing is for the loss cross-entropy, not mean-squared-error",
        ),
    ],
)
def test_bad_losses_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert problem in str(caught.value)
