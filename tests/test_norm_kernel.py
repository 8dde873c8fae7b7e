"""The compiled kernels of online normalisation equal their NumPy definition in every bit."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hdl import threads
from hdl.fixed import Fixed, IntArray
from hdl.layers.norm.kernel import ROW
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.norm.online_norm_backward import OnlineNormBackward
from hdl.recipe import Recipe

RECIPES = [
    Recipe(batch=5),
    Recipe(batch=4, staleness=3, norm_lag=0, norm_forward_decay=0.9, norm_backward_decay=0.5),
    Recipe(batch=3, staleness=3, norm_lag=4),
]


def layers() -> list[Any]:
    cases = []
    for kind in (OnlineNorm, OnlineNormBackward):
        for index, layer in enumerate(kind.examples()):
            for number, recipe in enumerate(RECIPES):
                cases.append(pytest.param(replace(layer, recipe=recipe), id=f"{kind.__name__}-{index}-{number}"))
    wide = {"height": 3, "width": 5, "channels": 4}
    cases.append(pytest.param(OnlineNorm(**wide, x_fixed=Fixed(16, 3), y_fixed=Fixed(16, 14)), id="forward-formats"))
    backward = OnlineNormBackward(**wide, e_fixed=Fixed(16, 18), dx_fixed=Fixed(16, 9), gamma_fixed=Fixed(16, 15))
    cases.append(pytest.param(backward, id="backward-formats"))
    for kind in (OnlineNorm, OnlineNormBackward):
        # several rows of pixels side by side, the last of them shorter; channels that are one row each
        for size in ({"height": 7, "width": 5, "channels": 12}, {"height": 2, "width": 3, "channels": ROW + 5}):
            cases.append(pytest.param(kind(**size, recipe=RECIPES[1]), id=f"{kind.__name__}-rows-{size['channels']}"))
    return cases


def batch(layer: Any, rng: np.random.Generator) -> dict[str, IntArray]:
    frames = layer.recipe.batch
    inputs = {}
    for port in layer.sinks:
        codes = layer.sample(port.name, rng, 1 if port.tensor.kind.per_batch else frames)
        inputs[port.name] = codes[0] if port.tensor.kind.per_batch else codes >> int(rng.integers(0, 6))
    return inputs


def assert_same(found: Any, wanted: Any, name: str) -> None:
    """Entries of a state: arrays, lists of them, arrays by port."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), name
        for key in wanted:
            assert_same(found[key], wanted[key], f"{name} of {key}")
    else:
        np.testing.assert_array_equal(np.array(found), np.array(wanted), err_msg=name)


@pytest.mark.parametrize("layer", layers())
def test_the_kernel_equals_the_definition_over_several_batches(layer: Any) -> None:
    equals_the_definition(layer)


@pytest.mark.parametrize("kind", [OnlineNorm, OnlineNormBackward])
def test_threads_that_share_the_channels_make_the_same(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    equals_the_definition(kind(height=5, width=5, channels=8, recipe=RECIPES[1]))


def equals_the_definition(layer: Any) -> None:
    """Kernel and definition, over several batches."""
    rng = np.random.default_rng(13)
    parameters = {name: rng.normal(size=shape) for name, shape in layer.parameter_shapes().items()}
    state = layer.start(parameters)
    defined = copy.deepcopy(state)
    for number in range(4):
        inputs = batch(layer, rng)
        given, expected = layer.golden(state, inputs), layer.definition(defined, inputs)
        for port, codes in expected.items():
            np.testing.assert_array_equal(given[port], codes, err_msg=f"batch {number}, {port}")
        assert state.keys() == defined.keys()
        for name in state.keys() - {"initial", "previous"}:
            assert_same(state[name], defined[name], name)


def test_evaluation_freezes_the_statistics() -> None:
    rng = np.random.default_rng(14)
    layer = OnlineNorm(height=2, width=2, channels=3, recipe=Recipe(batch=4, norm_forward_decay=0.5))
    state = layer.start({"gamma": np.ones(3), "beta": np.zeros(3)})
    weights = {"gamma": layer.gamma_fixed.encode(np.ones(3)), "beta": layer.beta_fixed.encode(np.zeros(3))}
    layer.golden(state, {"x": layer.sample("x", rng, 4), **weights})
    kept = copy.deepcopy(state)
    frame = layer.sample("x", rng, 1)
    used, used_state = layer.evaluating(state, 6)
    made = used.golden(used_state, {"x": np.repeat(frame, 6, axis=0), **weights})["y"]
    np.testing.assert_array_equal(made, np.repeat(made[:1], 6, axis=0))
    np.testing.assert_array_equal(made[0], layer.golden(copy.deepcopy(state), {"x": frame, **weights})["y"][0])
    for name in ("mean", "variance", "tables"):
        assert_same(state[name], kept[name], name)
