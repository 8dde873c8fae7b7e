"""`dagtrain place` on models whose layers cannot keep every pace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.planning import Planner
from dagtrain.passes.fold import fold_graph
from dagtrain.progress import Silent
from hdl.errors import FoldingError, InfeasibleError
from hdl.estimate import Estimator
from placement.cluster import read_cluster
from placement.search import SearchOptions
from tests.flow_support import Case, call, new_case, quick_costs


def test_a_pace_at_which_one_layer_cannot_be_folded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    # with its norm the network can be folded for 64 cycles a frame, and for 80, but not for 72
    assert call("import", case.model, "--norm", "online", "--out", case.out).code == 0
    graph = load_training_graph(case.workspace)
    for cycles in (64, 80):
        fold_graph(graph, cycles)
    with pytest.raises(FoldingError, match="c_node_norm"):
        fold_graph(graph, 72)
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    plan = json.loads((case.out / "place" / "plan.json").read_text())
    assert plan["cycles_per_frame"] <= 64


def test_a_device_with_too_few_memories_made_of_logic_is_refused(tmp_path: Path) -> None:
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    graph, cluster = load_training_graph(case.workspace), read_cluster(case.cluster)
    device = cluster.devices[0]
    nodes = {node.name: device.name for node in graph.nodes}

    def plan(blocks: int) -> None:
        part = replace(device.board.part, lut_memory=replace(device.board.part.lut_memory, blocks=blocks))
        small = replace(device, board=replace(device.board, part=part))
        cut = replace(cluster, devices=(small, *cluster.devices[1:]))
        Planner(graph, cut, Estimator(), SearchOptions(), {}, Silent()).fixed(nodes, 4096)

    plan(device.board.part.lut_memory.blocks)
    with pytest.raises(InfeasibleError, match=rf"{device.name} would need \d+ memories made of logic and has 3"):
        plan(3)


def _plan(case: Case, *options: str) -> dict[str, Any]:
    outcome = case.step("place", *options)
    assert outcome.code == 0, outcome.error
    plan: dict[str, Any] = json.loads((case.out / "place" / "plan.json").read_text())
    return plan


def test_place_does_what_its_options_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    free = _plan(case)
    layers = sorted({item["layer"] for item in free["items"]})
    head, worker = (device["device"] for device in free["devices"])
    alone = _plan(case, "--exclude", worker)
    assert {item["device"] for item in alone["items"]} == {head}
    assert alone["throughput_fps"] <= free["throughput_fps"]
    together = _plan(case, "--same-device", ",".join(layers))
    assert len({item["device"] for item in together["items"]}) == 1
    literal = _plan(case, "--solver", "literal")
    assert literal["throughput_fps"] * 1.06 >= free["throughput_fps"]
    assert "equations (1)" in literal["bound_basis"]
    for options in (("--gap", "0.5"), ("--time-limit", "0.001")):
        early = _plan(case, *options)
        assert early["throughput_fps"] <= free["throughput_fps"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--solver", "magic"), "--solver magic: no such solver; one of fast, literal"),
        (("--same-device", "loss"), "--same-device loss: name two layers at least"),
        (("--same-device", "ghost,loss"), "no item or layer named 'ghost'"),
        (("--exclude", "moon"), "no device named 'moon' to exclude"),
        (("--gap", "1.5"), "gap is 1.5, must be at least 0 and below 1"),
        (("--time-limit", "-1"), "time limit is -1.0 s, must be positive"),
    ],
)
def test_place_refuses(options: tuple[str, ...], wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    outcome = case.step("place", *options)
    assert outcome.code != 0
    assert wanted in outcome.error
    assert not (case.out / "place").exists()
