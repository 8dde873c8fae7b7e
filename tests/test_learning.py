"""The digits net learns in 16 bits with the staleness of a placed pipeline (study: benchmarks/learning.py)."""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.families import forward, residual
from benchmarks.learning import DIGITS, Run, judge, train
from benchmarks.learning_table import Done, Store, digest, table
from benchmarks.learning_table import Run as TableRun
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Array, Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.formats import propagate_formats
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import load_digits
from hdl.fixed import Fixed
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.recipe import Recipe

RECIPE = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))


def run(mode: Mode, staleness: int, epochs: int) -> list[float]:
    return train(Run(1, mode, replace(RECIPE, seed=1, staleness=staleness), epochs, batches=16))


def test_two_epochs_in_16_bits_reach_90_percent_of_held_out_digits() -> None:
    assert run(Mode.GOLDEN, RECIPE.staleness, epochs=2)[-1] > 0.9


def deep_net(blocks: int, filters: int) -> Graph:
    """A fresh residual network: without statistics its maps double with every block."""
    net = GraphBuilder("deep", replace(RECIPE, seed=1, staleness=0, learning_rate=0.01), seed=3)
    x = net.max_pool(net.relu(net.norm(net.conv(net.input(8, 8, 1), filters, 3, padding=1))), 2, 2)
    for _ in range(blocks):
        x = residual(net, x, filters, stride=1)
    return differentiate(net.classify(net.gemm(net.global_average_pool(x), 10)))


def test_a_deep_fresh_network_learns_since_its_norms_begin_with_the_statistics_of_data() -> None:
    training = deep_net(blocks=16, filters=6)
    data, held_out = load_digits().split(0.2, 1)
    feeds = [Emulator(training).feeds(data, index) for index in islice(data.batches(RECIPE.batch, 1, 0), 2)]
    norms = {node.name: node.layer.channels for node in training.nodes if isinstance(node.layer, OnlineNorm)}
    blank = {name: {"mean": np.zeros(count), "variance": np.ones(count)} for name, count in norms.items()}
    learnt = {}
    for name, carried in (("settled", {}), ("blank", blank)):
        emulator = Emulator(calibrate(replace(training, carried=carried), feeds))
        emulator.train_epoch(data, 1, epoch=0)
        learnt[name] = emulator.evaluate(held_out).accuracy
    assert learnt["settled"] > 0.4, learnt
    assert learnt["blank"] < 0.2, learnt


def test_black_pixels_do_not_blow_up_the_errors_of_a_fresh_convnext() -> None:
    emulator = Emulator(differentiate(forward("ConvNeXt", RECIPE, 8, seed=2)), Mode.REFERENCE)
    data = load_digits()
    peaks: dict[str, float] = {}

    def watch(edge: str, array: Array) -> None:
        peaks[edge] = float(np.abs(array).max())

    emulator.executor.step(emulator.feeds(data, next(data.batches(RECIPE.batch, 1, 0))), watch)
    # 1 / sqrt(epsilon) is 316, and errors of the scores are below 1
    assert peaks["channel_norm1.inverse"] < 100
    assert peaks["channel_norm1.error.dx"] < 10


@pytest.mark.slow
def test_sixteen_bits_and_staleness_cost_at_most_a_point_against_float_without() -> None:
    exact, plain = run(Mode.GOLDEN, RECIPE.staleness, epochs=10), run(Mode.REFERENCE, 0, epochs=10)
    assert exact[-1] >= 0.97
    assert plain[-1] - exact[-1] <= 0.01


def test_the_study_names_every_broken_promise() -> None:
    assert judge(plain=[0.99, 0.99], exact=[0.985, 0.985]) == []
    broken = judge(plain=[0.99, 0.99], exact=[0.99, 0.95])
    assert [line.split()[0] for line in broken] == ["mean", "worst", "mean"]


def test_the_table_gives_no_verdict_before_all_seeds_are_there_and_names_a_broken_promise(tmp_path: Path) -> None:
    store = Store(tmp_path / "learning.json")
    options = argparse.Namespace(only=["VGG"], data=["digits"], seeds=2, staleness=None)
    rows = []
    for seed, mode, accuracy in ((1, Mode.REFERENCE, 0.98), (1, Mode.GOLDEN, 0.97), (2, Mode.REFERENCE, 0.96)):
        store.note(TableRun("VGG", "digits", mode, seed), Done("digest", [0.5, accuracy], 1.0, None))
        rows.append(table(Store(store.path), options)[0][-1])
    assert rows[0] == "| VGG | digits | 0 | 98.00 (98.0–98.0) | – | – | – |"
    assert rows[1] == "| VGG | digits | 1 | 98.00 (98.0–98.0) | 97.00 (97.0–97.0) | -1.00 | – |"
    for last, verdict, broken in ((0.951, "holds", False), (0.949, "**broken**", True)):
        store.note(TableRun("VGG", "digits", Mode.GOLDEN, 2), Done("digest", [last], 1.0, None))
        lines, found = table(Store(store.path), options)
        assert lines[-1].endswith(f"| {verdict} |")
        assert found is broken


def test_a_run_is_known_by_all_that_its_bits_follow_from() -> None:
    run = TableRun("VGG", "digits", Mode.GOLDEN, 1)
    graph = differentiate(forward("VGG", RECIPE, 8, seed=1))
    other = replace(graph, carried={"norm": {"mean": np.ones(1)}})
    louder = replace(graph, parameters={key: 2 * value for key, value in graph.parameters.items()})
    wider = propagate_formats(graph, {"conv1.y": Fixed(16, 3)})
    assert len({digest(run, one) for one in (graph, other, louder, wider)}) == 4
    assert digest(run, graph) == digest(run, differentiate(forward("VGG", RECIPE, 8, seed=1)))
