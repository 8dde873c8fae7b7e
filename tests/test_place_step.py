"""`dagtrain place` on models whose layers cannot keep every pace."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dagtrain.flow import planning, sweep_step
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.planning import RESERVES, Planner
from dagtrain.passes.fold import fold_graph
from dagtrain.progress import Silent
from hdl.errors import FoldingError, InfeasibleError
from hdl.estimate import Estimator
from placement.cluster import read_cluster
from placement.instance import instance_from_json
from placement.plan import plan_from_json, plan_schema
from placement.search import SearchOptions
from placement.validate import violations
from tests.flow_support import Case, QuickEstimator, call, new_case, quick_costs


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
        (("--cap", "dsp=1.5", "--cap", "lut=1"), "--cap dsp=1.5: '1.5' is no share above 0 and at most 1"),
        (("--cap", "dsp=1.5", "--cap", "lut=1"), "--cap lut=1: no resource 'lut'; one of dsp, m20k, alm"),
        (("--cap", "alm"), "--cap alm: '' is no share"),
        (("--cap", "dsp=0.5", "--cap", "dsp=0.6"), "dsp is already capped at 0.5"),
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


def test_caps_of_the_command_line_stand_in_for_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    free, capped = _plan(case), _plan(case, "--cap", "dsp=0.001", "--cap", "m20k=0.5")
    part = read_cluster(case.cluster).devices[0].board.part
    for use in capped["devices"]:
        assert (use["dsp_capacity"], use["m20k_capacity"]) == (int(part.dsp * 0.001), int(part.m20k * 0.5))
    assert [use["alm_capacity"] for use in capped["devices"]] == [use["alm_capacity"] for use in free["devices"]]
    assert capped["throughput_fps"] < free["throughput_fps"]


def test_explain_says_what_binds_and_what_would_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    # four blocks a device: multipliers bind
    outcome = case.step("place", "--cap", "dsp=0.001", "--explain")
    assert outcome.code == 0, outcome.error
    found = json.loads((case.out / "explain" / "explain.json").read_text())
    level = found["next_level"]
    need, have = level["demand"]["dsp"]
    assert level["refuted"]
    assert need > have
    assert f"needs at least {need} of {have} DSP blocks" in outcome.out
    assert "scarce on AGFB014: DSP blocks 100%" in outcome.out
    assert found["growth"][0]["throughput_fps"] > found["throughput_fps"]
    assert "one more AGFB014: " in outcome.out
    assert {price["resource"] for price in found["shadow_prices"]} >= {"dsp", "m20k", "alm", "link_bits_per_s"}
    assert "unchanged" in case.step("place", "--cap", "dsp=0.001", "--explain").out


def test_sweep_plans_every_size_and_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr(sweep_step, "Estimator", QuickEstimator)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    options = ("--cap", "dsp=0.001", "--sweep")
    planned: list[int] = []
    plan_size = sweep_step._point

    def point(graph: Any, cluster: Any, *further: Any) -> dict[str, Any]:
        planned.append(len(cluster.devices))
        if len(planned) == 3:
            raise KeyboardInterrupt
        return plan_size(graph, cluster, *further)

    monkeypatch.setattr(sweep_step, "_point", point)
    assert case.step("place", *options).code == 130
    assert not (case.out / "sweep" / "sweep.json").exists()
    outcome = case.step("place", *options)
    assert outcome.code == 0, outcome.error
    assert planned == [1, 2, 3, 3, 4]
    points = json.loads((case.out / "sweep" / "sweep.json").read_text())["points"]
    assert [entry["devices"] for entry in points] == [1, 2, 3, 4]
    # one device has too few blocks for any plan, and says so
    assert points[0]["throughput_fps"] is None
    assert "dsp" in points[0]["why"]
    rates = [entry["throughput_fps"] for entry in points[1:]]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    assert "<svg" in (case.out / "sweep" / "sweep.svg").read_text()
    assert "sweep: unchanged" in case.step("place", *options).out


@pytest.mark.parametrize(
    ("devices", "sizes"), [(1, [1, 2]), (3, [1, 2, 3, 4, 6]), (11, [1, 2, 3, 4, 6, 8, 11, 12, 16, 22])]
)
def test_sweep_sizes_hold_the_cluster_and_twice_it(devices: int, sizes: list[int]) -> None:
    assert sweep_step.sweep_sizes(devices) == sizes


def test_a_larger_cluster_goes_through_its_devices_again(tmp_path: Path) -> None:
    cluster = read_cluster(new_case(tmp_path / "case").cluster)
    grown = sweep_step.resized(cluster, 5)
    assert [device.name for device in grown.devices] == ["head", "worker", "head-2", "worker-2", "head-3"]
    assert sweep_step.resized(cluster, 1).devices == cluster.devices[:1]


def test_a_search_that_was_ended_early_goes_on_from_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    starts: list[Any] = []
    resumed = Planner._resumed

    def watched(planner: Planner) -> Any:
        starts.append(resumed(planner))
        return starts[-1]

    monkeypatch.setattr(Planner, "_resumed", watched)
    # the first search is over before its limit is looked at again
    monkeypatch.setattr(planning, "LEAST_SEARCH_SECONDS", 0.05)
    options = ("--cap", "dsp=0.001", "--time-limit")
    outcome = case.step("place", *options, "0.001")
    assert outcome.code == 0, outcome.error
    assert "goes on from this plan" in outcome.out
    early = json.loads((case.out / "place" / "plan.json").read_text())
    assert starts == [None]
    later = _plan(case, *options, "60")
    assert starts[1] is not None, "the same problem with another limit goes on"
    assert later["throughput_fps"] >= early["throughput_fps"]
    assert "unchanged" in case.step("place", *options, "60").out
    assert "goes on" not in case.step("place", *options, "60").out
    # another problem begins anew
    _plan(case, "--cap", "dsp=0.002", "--time-limit", "0.001")
    assert starts[2] is None
    # as does one whose files are damaged
    (case.out / "place" / "searched-plan.json").write_text("{")
    _plan(case, "--cap", "dsp=0.002", "--time-limit", "60")
    assert starts[3] is None


def test_the_plan_file_is_as_its_schema_in_docs_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parent.parent / "docs" / "plan.schema.json"
    schema = json.loads(path.read_text())
    assert schema == plan_schema(), "write plan_schema() of placement/plan.py into docs/plan.schema.json"
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    plan = _plan(case)
    jsonschema.validate(plan, schema)
    for broken in ({**plan, "speed": 3}, {**plan, "items": [{}]}, {key: plan[key] for key in plan if key != "gap"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)
    printed = json.loads(case.step("place", "--json").out)
    assert printed["seconds"] >= 0
    assert printed["throughput_fps"] == plan["throughput_fps"]


def test_the_search_behind_a_plan_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    _plan(case)
    folder = case.out / "place"
    instance = instance_from_json((folder / "searched-instance.json").read_text())
    assert violations(instance, plan_from_json((folder / "searched-plan.json").read_text())) == []
    levels = json.loads((folder / "place.json").read_text())["levels"]
    assert levels == sorted(set(levels))
    assert len(levels) >= 2


def test_levels_between_the_search_and_what_holds_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    estimator: Any = QuickEstimator()
    graph, cluster = load_training_graph(case.workspace), read_cluster(case.cluster)
    planner = Planner(graph, cluster, estimator, SearchOptions(), {}, Silent())
    planned = planner.run()
    tried: list[int] = []
    reserves: list[Fraction] = []
    room = Fraction(1)

    def at(cycles: int) -> Any:
        return replace(planned, plan=replace(planned.plan, cycles_per_frame=cycles))

    def holds(_planner: Planner, _plan: Any, cycles: int, _found: Any) -> Any:
        tried.append(cycles)
        return at(cycles) if cycles >= 130 else None

    def reserved(_planner: Planner, _plan: Any, _cycles: int, share: Fraction) -> Any:
        reserves.append(share)
        return planned.plan if share < room else None

    monkeypatch.setattr(Planner, "_with_reserve", reserved)
    monkeypatch.setattr(Planner, "_holds_at", holds)
    best = planner._between_levels(at(200), at(100).plan)
    assert best.plan.cycles_per_frame == 134
    # what doesn't hold is tried with more reserve
    assert tried == [141, 118, 118, 128, 128, 134]
    least, middle, largest = RESERVES
    assert reserves == [middle, middle, largest, middle, largest, middle]
    # and where a placement leaves no such reserve, with less
    reserves.clear()
    room = middle
    assert planner._between_levels(at(150), at(130).plan).plan.cycles_per_frame == 131
    assert reserves == [middle, least] * 3
    # a level that some layer can't keep is passed over, and none is left below the plan's own
    reserves.clear()

    def fold(graph: Any, cycles: int) -> None:
        del graph
        if cycles < 120:
            raise FoldingError("too fast")

    with monkeypatch.context() as patch:
        patch.setattr(planning, "fold_graph", fold)
        assert planner._foldable(100, planned.plan) == 123
        assert planner._foldable(120, planned.plan) == 120
        assert planner._between_levels(at(110), at(100).plan).plan.cycles_per_frame == 110
    assert not reserves
    # close enough to the search's own: nothing is tried
    reserves.clear()
    assert planner._between_levels(at(101), at(100).plan).plan.cycles_per_frame == 101
    assert not reserves
