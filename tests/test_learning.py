"""The digits net learns in 16 bits with the staleness of a placed pipeline (study: benchmarks/learning.py)."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from benchmarks.learning import DIGITS, Run, judge, train
from dagtrain.graph.executor import Mode
from hdl.recipe import Recipe

RECIPE = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))


def run(mode: Mode, staleness: int, epochs: int) -> list[float]:
    return train(Run(1, mode, replace(RECIPE, seed=1, staleness=staleness), epochs, batches=16))


def test_two_epochs_in_16_bits_reach_90_percent_of_held_out_digits() -> None:
    assert run(Mode.GOLDEN, RECIPE.staleness, epochs=2)[-1] > 0.9


@pytest.mark.slow
def test_sixteen_bits_and_staleness_cost_at_most_a_point_against_float_without() -> None:
    exact, plain = run(Mode.GOLDEN, RECIPE.staleness, epochs=10), run(Mode.REFERENCE, 0, epochs=10)
    assert exact[-1] >= 0.97
    assert plain[-1] - exact[-1] <= 0.01


def test_the_study_names_every_broken_promise() -> None:
    assert judge(plain=[0.99, 0.99], exact=[0.985, 0.985]) == []
    broken = judge(plain=[0.99, 0.99], exact=[0.99, 0.95])
    assert [line.split()[0] for line in broken] == ["mean", "worst", "mean"]
