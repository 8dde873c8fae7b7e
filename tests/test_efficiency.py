"""MAC-slot efficiency: measured cycles of engines, and what engines wait for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagtrain.cosim import efficiency
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.efficiency import measure, measure_graph, runs_alone, waits_for, write_efficiency
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow import cosim_step
from dagtrain.flow.report_step import gather
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.progress import Silent
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.recipe import Recipe
from hdl.tensor import Tile
from tests.flow_support import new_case, quick_costs

CONV = Conv(height=4, width=4, channels=2, filters=4, kernel=(3, 3), padding=(1, 1, 1, 1), recipe=Recipe(batch=6))


def small_net(batch: int = 12) -> Graph:
    """One convolution and a classifier, folded for 300 cycles a frame."""
    build = GraphBuilder("net", Recipe(batch=batch), seed=3)
    x = build.relu(build.conv(build.input(4, 4, 2), 4, kernel=3, padding=1))
    graph = build.classify(build.gemm(build.global_average_pool(x), 3))
    return fold_graph(insert_forks(differentiate(graph)), 300)


def measured(layer: Layer) -> float:
    return measure(layer, ModuleLibrary().layer(layer))


def test_a_convolution_that_waits_for_nothing_multiplies_in_every_slot() -> None:
    layer = replace(CONV, tile=Tile(po=2, pi=2, pk=1))
    assert measured(layer) == layer.macs / layer.multipliers == 4 * 4 * 9 * 2
    assert waits_for(layer, measured(layer)) == ""


def test_a_port_slower_than_the_arithmetic_is_measured_and_named() -> None:
    layer = replace(CONV, kernel=(1, 1), padding=(0, 0, 0, 0), tile=Tile(po=4, pi=2, pk=1), x_lanes=2, y_lanes=1)
    cycles = measured(layer)
    assert cycles == 64
    assert waits_for(layer, cycles) == ("port y, 1 of 4 channels a beat, takes 64 cycles a frame, arithmetic 16")


def test_pixels_without_taps_are_named() -> None:
    layer = ConvError(height=4, width=4, channels=1, filters=4, kernel=(1, 1), stride=(2, 2), recipe=Recipe(batch=6))
    cycles = measured(layer)
    assert layer.macs == 16
    assert cycles == 28
    assert waits_for(layer, cycles) == (
        "12 of 28 cycles go to pixels that no tap reaches, a cycle each (stride 2x2, kernel 1x1)"
    )


def test_a_gradient_engine_is_measured_at_its_sinks() -> None:
    layer = ConvGradient(height=4, width=4, channels=2, filters=2, kernel=(1, 1), recipe=Recipe(batch=6))
    assert measured(layer) == layer.cycles_per_frame == 64


def test_cycles_beyond_the_declared_ones_are_told() -> None:
    assert "80.0 cycles a frame measured where its rule gives 64" in waits_for(
        replace(CONV, kernel=(1, 1), padding=(0, 0, 0, 0), tile=Tile(po=2, pi=1, pk=1)), 80.0
    )


def test_every_engine_of_a_graph_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, library = small_net(), ModuleLibrary()
    found = measure_graph(graph, library, Silent(), tmp_path / "cache")
    engines = [node.name for node in graph.nodes if runs_alone(node.layer)]
    assert [one.node for one in found] == engines
    assert {name.split(".")[-1] for name in engines} >= {"gradient", "error"}
    declared = {name: graph.by_name[name].layer.cycles_per_frame for name in engines}
    assert {one.node: one.cycles_per_frame for one in found} == declared
    assert len(list((tmp_path / "cache").iterdir())) == len({repr(graph.by_name[name].layer) for name in engines})

    def never(*_arguments: object) -> float:
        raise AssertionError("measured again")

    monkeypatch.setattr(efficiency, "measure", never)
    assert measure_graph(graph, library, Silent(), tmp_path / "cache") == found
    write_efficiency(tmp_path / "efficiency.json", found)
    written = json.loads((tmp_path / "efficiency.json").read_text())
    assert written["schema_version"] == 1
    assert [engine["node"] for engine in written["engines"]] == engines
    assert all(("waits_for" in engine) == (engine["efficiency"] < 0.95) for engine in written["engines"])


def test_gradient_engines_of_batches_too_short_to_measure_are_left_out(tmp_path: Path) -> None:
    found = measure_graph(small_net(batch=2), ModuleLibrary(), Silent(), tmp_path)
    assert len(found) == 3
    assert not any("gradient" in one.node for one in found)


def test_the_command_leaves_what_the_report_reads_unless_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setenv("DAGTRAIN_CACHE", str(tmp_path / "cache"))
    case = new_case(tmp_path / "case").must("import", "place").pretend_emit()
    # the cluster in simulation is not what is tested here; engines take a cycle a frame more than declared

    def simulated(*_arguments: Any, **_options: Any) -> ClusterRun:
        return ClusterRun(1000, 40.0, (160,), 10, (), (1.0,))

    bare: Any = SimpleNamespace(sources=(), manifest=SimpleNamespace(ethernet=None))
    monkeypatch.setattr(cosim_step, "load_emitted", lambda _workspace: Delivered((bare,)))
    monkeypatch.setattr(cosim_step, "simulate_cluster", simulated)
    monkeypatch.setattr(efficiency, "measure", lambda layer, _module: layer.cycles_per_frame + 1)
    outcome = case.step("cosim")
    assert outcome.code == 0, outcome.error
    assert "MAC engines measured alone: " in outcome.out
    found = gather(case.workspace).measured
    assert found is not None
    contents = gather(case.workspace)
    folded = fold_graph(contents.graph, contents.folds, contents.parts)
    assert [engine["node"] for engine in found] == [node.name for node in folded.nodes if runs_alone(node.layer)]
    assert {engine["cycles_per_frame"] - folded.by_name[engine["node"]].layer.cycles_per_frame for engine in found} == {
        1
    }
    assert case.step("cosim", "--no-efficiency").code == 0
    assert gather(case.workspace).measured is None
