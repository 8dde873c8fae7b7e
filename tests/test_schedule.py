"""The learning rate's schedule, Nesterov's momentum, clipped gradients: beside formulas, PyTorch, and the circuit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dagtrain.flow.import_step import RecipeError, load_recipe
from hdl.engine.arithmetic.scalar import MANTISSA_BITS
from hdl.engine.weights.rate import LEAST_CYCLES, RateLines
from hdl.fixed import Fixed
from hdl.layers.storage import Home
from hdl.layers.wiring.update import Update
from hdl.recipe import COSINE_SEGMENTS, Recipe, Schedule
from hdl.simulate import Backend
from hdl.tensor import Tile
from tests.layer_support import assert_equal_bits, design_of, make_case, simulate

COSINE, STEP = Schedule.COSINE, Schedule.STEP
RECIPES = {
    "warm-up alone": Recipe(warm_up=7),
    "cosine": Recipe(schedule=COSINE, period=1000),
    "cosine after warm-up": Recipe(schedule=COSINE, period=1000, warm_up=50, learning_rate=0.3),
    "long cosine to a tenth": Recipe(schedule=COSINE, period=3_000_000, final_rate=0.1, batch=3),
    "cosine shorter than its segments": Recipe(schedule=COSINE, period=3, warm_up=1),
    "steps": Recipe(schedule=STEP, period=30, warm_up=5),
    "a step every batch": Recipe(schedule=STEP, period=1, step_factor=0.5),
    "many steps": Recipe(schedule=STEP, period=2000, step_factor=0.9),
}


def lines_of(recipe: Recipe) -> RateLines:
    return RateLines(recipe, source_fraction=12, target_fraction=40)


def batches(recipe: Recipe) -> list[int]:
    """All bends and their neighbours, and batches between and behind them."""
    last = recipe.bends[-1]
    near = {batch + step for batch in recipe.bends for step in (-1, 0, 1)}
    return sorted({batch for batch in near | set(range(0, last + 20, last // 2000 + 1)) if batch >= 0})


def torch_share(recipe: Recipe, batch: int) -> float:
    """LinearLR, then StepLR or CosineAnnealingLR, written from their documentation."""
    if batch < recipe.warm_up:
        return 1 / recipe.warm_up + (1 - 1 / recipe.warm_up) * batch / max(1, recipe.warm_up - 1)
    since = batch - recipe.warm_up
    if recipe.schedule is STEP:
        return float(recipe.step_factor ** (since // recipe.period))
    if recipe.schedule is COSINE:
        done = min(since, recipe.period) / recipe.period
        return recipe.final_rate + (1 - recipe.final_rate) * (1 + math.cos(math.pi * done)) / 2
    return 1.0


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_real_schedule_is_that_of_the_formulas(recipe: Recipe) -> None:
    for batch in batches(recipe):
        assert recipe.share(batch) == pytest.approx(torch_share(recipe, batch), rel=1e-12, abs=2.0**-18)
    assert recipe.rate(batch) == recipe.learning_rate * recipe.share(batch)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_circuits_rate_is_as_close_to_the_real_one_as_is_said(recipe: Recipe) -> None:
    lines = lines_of(recipe)
    full = lines.largest.mantissa
    assert 1 << (MANTISSA_BITS - 1) <= full < 1 << MANTISSA_BITS
    # a chord under an arc of a cosine; a mantissa that is cut off
    curve = (math.pi / COSINE_SEGMENTS) ** 2 / 16 if recipe.schedule is COSINE else 0.0
    for batch in batches(recipe):
        mantissa = lines.mantissa(batch)
        assert 0 <= mantissa <= full
        allowed = curve * 1.02 + 1.5 / full
        assert abs(mantissa / full - recipe.share(batch)) <= allowed, f"batch {batch}"
    for batch in recipe.bends:
        assert abs(lines.mantissa(batch) - recipe.share(batch) * full) <= 1
    top = max(0, recipe.warm_up - 1)
    assert lines.mantissa(top) == full


def test_words_are_those_of_a_memory() -> None:
    for recipe in RECIPES.values():
        lines = lines_of(recipe)
        assert all(0 <= word < 1 << lines.word_bits for word in lines.words)
        assert len(lines.words) == len(lines.lines)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(batch=1, schedule=COSINE, period=29, warm_up=4, learning_rate=0.9),
        Recipe(batch=1, schedule=COSINE, period=90, learning_rate=1.0, momentum=0.0),
        Recipe(batch=1, schedule=STEP, period=3, step_factor=0.3, warm_up=2, learning_rate=1.0),
        Recipe(batch=1, schedule=STEP, period=1, step_factor=0.7, nesterov=True, clip=20.0),
    ],
    ids=["cosine", "long cosine", "steps", "a step every batch, nesterov, clip"],
)
@pytest.mark.parametrize("home", [Home.ON_CHIP, Home.DRAM])
def test_the_circuit_takes_every_batch_at_its_rate_beyond_the_last_bend(recipe: Recipe, home: Home) -> None:
    layer = Update(shape=(2,), w_lanes=2, recipe=recipe, state=home, g_fixed=Fixed(16, 8), w_fixed=Fixed(16, 4))
    count = recipe.bends[-1] + 8
    case = make_case(layer, batches=count, seed=5)
    assert_equal_bits(case, design_of(case), Backend.VERILATOR, seed=1, stall=0.3)
    run = simulate(case, design_of(case), Backend.VERILATOR, stall=0.0, seed=1)
    assert np.diff(run.fire_cycles["w"]).tolist() == [layer.cycles_per_batch] * (count - 1)
    assert layer.cycles_per_batch >= LEAST_CYCLES


def test_the_golden_update_follows_the_schedule_of_the_reference() -> None:
    recipe = Recipe(
        batch=4, schedule=COSINE, period=20, warm_up=5, learning_rate=0.05, nesterov=True, weight_decay=1e-3
    )
    layer = Update(shape=(4, 4, 3, 3), tile=Tile(), recipe=recipe)
    rng = np.random.default_rng(3)
    start = {"w": layer.w_fixed.decode(layer.w_fixed.encode(rng.normal(size=layer.shape)))}
    exact, real = layer.start(start), layer.start_reference(start)
    for _ in range(30):
        g = layer.g_fixed.encode(rng.normal(size=layer.shape))
        codes = layer.golden(exact, {"g": g})["w"]
        values = layer.reference(real, {"g": layer.g_fixed.decode(g)})["w"]
        assert np.abs(layer.w_fixed.decode(codes) - values).max() < 4e-3


# ---- Nesterov, clip


def test_nesterovs_momentum_is_that_of_torch() -> None:
    recipe = Recipe(batch=4, learning_rate=0.1, momentum=0.5, weight_decay=0.01, nesterov=True)
    layer = Update(shape=(3,), recipe=recipe)
    w, buffer = np.array([1.0, -2.0, 0.5]), np.zeros(3)
    state = layer.start_reference({"w": w})
    for gradient_sum in ([4.0, 8.0, -4.0], [0.0, 2.0, 1.0], [1.0, 1.0, 1.0]):
        # torch: g = grad + decay * w; buf = momentum * buf + g; g = g + momentum * buf; w = w - lr * g
        g = np.array(gradient_sum) / 4 + 0.01 * w
        buffer = 0.5 * buffer + g
        w = w - 0.1 * (g + 0.5 * buffer)
        np.testing.assert_allclose(layer.reference(state, {"g": np.array(gradient_sum)})["w"], w, rtol=1e-12)


def test_gradients_are_cut_off_at_the_clip_and_no_sooner() -> None:
    # of the mean of 4 frames: 2 * 4 / 2**-8 codes of the sum
    layer = Update(shape=(7,), recipe=Recipe(batch=4, clip=2.0, momentum=0.0, learning_rate=1.0))
    assert layer.clip_code == 2048
    codes = np.array([-32768, -2049, -2048, 0, 2047, 2048, 2049])
    state = layer.start({"w": np.zeros(7)})
    w = layer.golden(state, {"g": codes})["w"]
    assert (w[0], w[1]) == (w[2], w[2])
    assert (w[6], w[5]) == (w[5], -w[2])
    assert w[4] != w[5]
    reference = layer.reference(layer.start_reference({"w": np.zeros(7)}), {"g": layer.g_fixed.decode(codes)})["w"]
    np.testing.assert_allclose(layer.w_fixed.decode(w), reference, atol=layer.w_fixed.step)


def test_the_circuit_cuts_gradients_off_where_the_golden_model_does() -> None:
    # a power of two, around which sampled codes lie thick
    layer = Update(shape=(64,), w_lanes=8, recipe=Recipe(batch=4, clip=4.0, momentum=0.0, learning_rate=0.5))
    assert layer.clip_code == 4096
    case = make_case(layer, batches=120, seed=7)
    near = np.concatenate([g.reshape(-1) for g in case.tensors["g"]])
    assert {-4097, -4096, -4095, 4095, 4096, 4097} <= set(near.tolist())
    assert_equal_bits(case, design_of(case), Backend.VERILATOR, seed=1, stall=0.1)


@pytest.mark.parametrize(("clip", "code"), [(0.0, None), (1e9, None), (128.0 / 4, None), (127.9 / 4, 32742), (1e-9, 1)])
def test_a_clip_beyond_the_format_costs_nothing_and_the_least_is_a_step(clip: float, code: int | None) -> None:
    assert Update(shape=(3,), recipe=Recipe(batch=4, clip=clip)).clip_code == code


@pytest.mark.torch
@pytest.mark.parametrize("name", RECIPES)
def test_the_reference_is_pytorchs_sgd_with_its_schedulers(name: str) -> None:
    import torch

    recipe = replace(RECIPES[name], nesterov=True, clip=0.3, weight_decay=0.01, momentum=0.8, batch=2)
    if recipe.period > 10_000:
        recipe = replace(recipe, period=40)
    layer = Update(shape=(5,), recipe=recipe)
    rng = np.random.default_rng(4)
    start = rng.normal(size=5)
    weight = torch.nn.Parameter(torch.tensor(start))
    sgd = torch.optim.SGD([weight], lr=recipe.learning_rate, momentum=0.8, weight_decay=0.01, nesterov=True)
    rates = torch.optim.lr_scheduler
    after = {
        Schedule.CONSTANT: lambda: rates.ConstantLR(sgd, 1.0, 0),
        STEP: lambda: rates.StepLR(sgd, recipe.period, recipe.step_factor),
        COSINE: lambda: rates.CosineAnnealingLR(sgd, recipe.period, recipe.final_rate * recipe.learning_rate),
    }[recipe.schedule]()
    whole = after
    if recipe.warm_up:
        warm = rates.LinearLR(sgd, 1 / recipe.warm_up, 1.0, max(1, recipe.warm_up - 1))
        whole = rates.SequentialLR(sgd, [warm, after], [recipe.warm_up])
    state = layer.start_reference({"w": start})
    for batch in range(min(45, recipe.warm_up + recipe.period or 20)):
        gradient = rng.normal(size=5)
        weight.grad = torch.tensor(gradient / 2)
        torch.nn.utils.clip_grad_value_([weight], 0.3)
        assert sgd.param_groups[0]["lr"] == pytest.approx(recipe.rate(batch), rel=1e-6, abs=1e-6)
        sgd.step()
        whole.step()
        made = layer.reference(state, {"g": gradient})["w"]
        np.testing.assert_allclose(made, weight.detach().numpy(), rtol=1e-6, atol=1e-7)


# ---- what the user says


def test_a_recipe_with_all_keys_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('schedule = "cosine"\nperiod = 900\nwarm_up = 90\nfinal_rate = 0.01\nnesterov = true\nclip = 1\n')
    recipe = Recipe(schedule=COSINE, period=900, warm_up=90, final_rate=0.01, nesterov=True, clip=1.0)
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ('schedule = "cosinus"', ["schedule", "'constant', 'step' or 'cosine'"]),
        ('schedule = "cosine"', ["schedule cosine needs a period of at least 1 batch, not 0"]),
        ("period = 5", ["a constant schedule has none, not 5"]),
        ('schedule = "step"\nperiod = 2\nstep_factor = 0.99', [r"step_factor must be at most 0.905, not 0.99"]),
        (
            "nesterov = true\nmomentum = 0.0\nclip = -1.0\nwarm_up = -3\nfinal_rate = 2\nstep_factor = 1.0",
            ["nesterov needs a momentum", "clip must be", "warm_up must", "final_rate is", "step_factor must"],
        ),
    ],
)
def test_bad_values_are_listed_all_at_once(text: str, problems: list[str], tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    for problem in problems:
        assert problem in str(caught.value)
