"""`dagtrain place` on models whose layers cannot keep every pace."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, get_type_hints

import jsonschema
import pytest

from dagtrain.cli import placing
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow import estimate_step, place_step, placed, sweep_step
from dagtrain.flow.emit_step import planned_design
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.levers import Levers, levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.flow.placed import load_placed_graph, load_plan, load_plan_cluster
from dagtrain.flow.workspace import Workspace
from dagtrain.passes.fold import fold_graph, weight_groups
from dagtrain.planning import planner, searcher
from dagtrain.planning.choices import Pace, chosen_graph, cluster_dram, plan_choices, plan_pace
from dagtrain.planning.ladder import Ladder, NoRoomError
from dagtrain.planning.levels import least_cycles, never_idle_fps
from dagtrain.planning.planner import Planner
from dagtrain.planning.problem import Problem
from dagtrain.planning.rate import plan_time, wired_graph
from dagtrain.planning.realise import RESERVES, Realiser
from dagtrain.planning.recomputing import Recompute
from dagtrain.planning.results import Found, Planned, Start
from dagtrain.planning.searcher import Searcher
from dagtrain.progress import Silent
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Resources
from hdl.errors import FoldingError, InfeasibleError
from hdl.parts.catalogue import PARTS
from placement.problem.cluster import parse_cluster, read_cluster
from placement.problem.deadline import Deadline, Ended
from placement.problem.instance import Instance, instance_from_json
from placement.problem.network import WORDS
from placement.problem.plan import Plan, plan_from_json, plan_schema
from placement.problem.validate import violations
from placement.search.search import SearchOptions
from tests.cosim_support import DEVICES, placement, residual_net
from tests.flow_support import CLUSTER, Case, Clock, QuickEstimator, call, new_case, quick_costs
from tests.test_relays import small_cluster


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
        Planner(graph, cut, Estimator(), SearchOptions(), {}, Silent()).fixed(nodes, dict.fromkeys(nodes, 4096))

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
    early = _plan(case, "--gap", "0.5")
    assert early["throughput_fps"] <= free["throughput_fps"] * (1 + 1e-9)


@pytest.mark.slow
def test_a_run_ends_at_the_first_plan_that_is_proven_to_be_within_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    searched: list[Plan] = []
    search = Searcher.search

    def noted(self: Searcher, *words: Any, **options: Any) -> Plan:
        searched.append(search(self, *words, **options))
        return searched[-1]

    monkeypatch.setattr(Searcher, "search", noted)

    def within(gap: str) -> tuple[Plan, int]:
        searched.clear()
        _plan(case, "--gap", gap)
        return load_plan(case.workspace), len(searched)

    def proven(plan: Plan) -> Fraction:
        return 1 - Fraction(plan.any_bound_cycles_per_frame, plan.cycles_per_frame)

    best, whole = within("0.0001")
    near = proven(best)
    # as far from the bound as a first plan is
    first, early = within("0.97")
    assert proven(first) <= Fraction(97, 100)
    # one on all devices, one of whole layers and one on the first, where training may be faster
    assert early <= 3 < whole
    assert "unchanged" in case.step("place", "--gap", "0.97").out
    # a goal that the best plan reaches ends the run there
    between, some = within(f"{float(near) + 0.002:.6f}")
    assert proven(between) <= near + Fraction(3, 1000)
    assert some <= whole


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--solver", "magic"), "--solver magic: no such solver; one of fast, literal"),
        (("--same-device", "loss"), "--same-device loss: name two layers at least"),
        (("--same-device", "ghost,loss"), "no item or layer named 'ghost'"),
        (("--exclude", "moon"), "no device named 'moon' to exclude"),
        (("--gap", "5"), "gap is 5.0, must be at least 0 and below 1: 0.05 is 5 %"),
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


@pytest.mark.slow
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
    # three blocks a device: multipliers bind
    outcome = case.step("place", "--cap", "dsp=0.0007", "--explain")
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
    assert "unchanged" in case.step("place", "--cap", "dsp=0.0007", "--explain").out


def test_sweep_plans_every_size_and_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr(sweep_step, "Estimator", QuickEstimator)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    options = ("--cap", "dsp=0.001", "--sweep", "--workers", "1")
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


def test_a_sweep_leaves_further_devices_empty_where_that_trains_faster(tmp_path: Path) -> None:
    none = {**dict.fromkeys(sweep_step.MEASURED), "devices": 1, "why": "too small"}
    two = {
        "devices": 2, "used_devices": 2, "throughput_fps": 900.0, "steady_fps": 1000.0, "bound_fps": 1000.0, "dsp": 8,
        "dsp_capacity": 8, "why": "dsp",
    }  # fmt: skip
    three = {
        **two, "devices": 3, "used_devices": 3, "throughput_fps": 800.0, "steady_fps": 1500.0, "bound_fps": 1500.0,
        "dsp": 12, "dsp_capacity": 12,
    }  # fmt: skip
    kept = sweep_step._no_slower(three, [none, two])
    assert kept == {**two, "devices": 3, "bound_fps": 1500.0, "dsp_capacity": 12}
    assert "3 devices, 1 of them empty: 900 frames/s in training, 1,000 inside a batch" in sweep_step._line(kept)
    assert sweep_step._no_slower(two, [none]) is two
    # a search that priced slower levels alone proves nothing of a plan that is faster
    slow = {**three, "throughput_fps": 500.0, "steady_fps": 600.0, "bound_fps": 622.0}
    assert sweep_step._no_slower(slow, [two])["bound_fps"] == 1000.0
    assert sweep_step._no_slower(none, []) is none
    # pins that a plan of two cannot keep; a ring of two, whose ways are others in one of three
    options, switch = PlaceOptions(devices=tmp_path), parse_cluster(CLUSTER, "cluster.toml")
    chain, ring = (replace(switch, network=replace(WORDS, topology=name)) for name in ("chain", "ring"))
    assert [sweep_step._alone(options, cluster) for cluster in (switch, chain, ring)] == [False, False, True]
    assert sweep_step._alone(replace(options, pins=("conv=third",)), switch)


@pytest.mark.parametrize(
    ("devices", "sizes"), [(1, [1, 2]), (3, [1, 2, 3, 4, 6]), (11, [1, 2, 3, 4, 6, 8, 11, 12, 16, 22])]
)
def test_sweep_sizes_hold_the_cluster_and_twice_it(devices: int, sizes: list[int]) -> None:
    assert sweep_step.sweep_sizes(devices) == sizes


def test_a_mesh_grows_by_whole_rows() -> None:
    assert sweep_step.sweep_sizes(6, 3) == [1, 2, 3, 6, 12]
    assert sweep_step.sweep_sizes(8, 4) == [1, 2, 3, 4, 8, 12, 16]


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
    resumed = Ladder.resumed

    def watched(ladder: Ladder, start: Start | None) -> Any:
        starts.append(resumed(ladder, start))
        return starts[-1]

    monkeypatch.setattr(Ladder, "resumed", watched)
    options = ("--cap", "dsp=0.001", "--time-limit")
    # time is over once a plan is on disk
    clock = Clock()
    monkeypatch.setattr(place_step, "Deadline", lambda limit, _clock: Deadline(limit, clock))
    leave = Workspace.leave

    def left(workspace: Workspace, *words: Any) -> None:
        leave(workspace, *words)
        clock.now += 5.0

    monkeypatch.setattr(Workspace, "leave", left)
    outcome = case.step("place", *options, "5")
    assert outcome.code == 0, outcome.error
    assert "goes on from this plan" in outcome.out
    early = json.loads((case.out / "place" / "plan.json").read_text())
    assert starts == [None]
    longer = ("600", "--first-fps", f"{early['steady_fps']:.0f}")
    later = _plan(case, *options, *longer)
    assert starts[1] is not None, "the same problem goes on with another limit, or to be begun at another pace"
    assert later["throughput_fps"] >= early["throughput_fps"]
    assert "unchanged" in case.step("place", *options, *longer).out
    assert "goes on" not in case.step("place", *options, *longer).out
    # another problem begins anew
    _plan(case, "--cap", "dsp=0.002", "--time-limit", "5")
    assert starts[2] is None
    # as does one whose files are damaged
    (case.out / "place" / "searched-plan.json").write_text("{")
    _plan(case, "--cap", "dsp=0.002", "--time-limit", "60")
    assert starts[3] is None


def _ended_early(case: Case, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    """The plan of a search that ends with the first one that holds, as by Ctrl-C."""

    def end(*_: object, **__: object) -> Plan:
        raise Ended("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(Ladder, "better", end)
        return _plan(case, *options)


def test_going_on_with_a_goal_that_the_earlier_plan_reached_looks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    early = _ended_early(case, monkeypatch)

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("a placement is looked for, or priced")

    with monkeypatch.context() as patch:
        patch.setattr(Ladder, "better", never)
        patch.setattr(Realiser, "with_links", never)
        # training may be faster all the same
        for name in ("try_whole_layers", "try_without_rests"):
            patch.setattr(planner, name, lambda *_: None)
        patch.setattr(planner, "on_fewer_devices", lambda *_: ())
        later = _plan(case, "--gap", "0.97")
    assert later["items"] == early["items"]
    # proven now
    assert 1 < later["any_bound_cycles_per_frame"] <= later["cycles_per_frame"]


def test_going_on_prices_a_placement_again_only_if_the_earlier_plan_is_slower_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    _ended_early(case, monkeypatch)
    resumed, priced = Ladder.resumed, list[bool]()

    def watched(ladder: Ladder, start: Start | None) -> Found | None:
        best, found = ladder.searcher.best, None
        planned = best.planned
        assert start is not None
        assert planned is not None
        for slower in (1, 0):
            plan = replace(planned.plan, cycles_per_frame=start.plan.cycles_per_frame + slower)
            best.planned = replace(planned, plan=plan)
            found = resumed(ladder, start)
            assert found is not None
            priced.append(found.plan is ladder.priced)
        best.planned = planned
        raise Ended("interrupted")

    monkeypatch.setattr(Ladder, "resumed", watched)
    assert case.step("place").code == 0
    assert priced == [False, True]


@pytest.mark.parametrize(("batch", "staleness", "factor"), [(32, 32, 2), (4, 0, 64)])
def test_going_on_never_ends_with_a_slower_plan(
    batch: int, staleness: int, factor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    recipe = case.write("recipe.toml", f"batch = {batch}\nstaleness = {staleness}\n")
    assert case.step("import", "--recipe", recipe).code == 0
    early = _ended_early(case, monkeypatch)
    slowed = []

    def slower(realiser: Realiser, found: Found) -> Planned:
        """Links and homes leave room for a slower pace only."""
        places = {item.item: item.device for item in found.plan.items}
        pace = factor * int(early["cycles_per_frame"])
        slowed.append(realiser.fixed(places, dict.fromkeys(places, pace), found=found.plan))
        return slowed[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Realiser, "with_links", slower)
        patch.setattr(Realiser, "holding", lambda *_: None)
        later = _plan(case)
    assert slowed[0].plan.throughput_fps < early["throughput_fps"] == later["throughput_fps"]
    assert later["items"] == early["items"]
    instance = instance_from_json((case.out / "place" / "instance.json").read_text())
    assert violations(instance, plan_from_json((case.out / "place" / "plan.json").read_text())) == []


def test_going_on_takes_a_plan_of_a_slower_pace_that_trains_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    # no frame may be stale: the way to the other device and back is waited for in every batch
    assert case.step("import", "--recipe", case.write("recipe.toml", "batch = 1\nstaleness = 0\n")).code == 0
    hosts = {node.name for node in load_training_graph(case.workspace).nodes if node.layer.pinned_to_host}

    def spread(realiser: Realiser, found: Found) -> Planned:
        places = {item.item: "head" if item.item in hosts else "worker" for item in found.plan.items}
        return realiser.fixed(places, dict.fromkeys(places, found.plan.cycles_per_frame), found=found.plan)

    def together(realiser: Realiser, found: Found) -> Planned:
        places = dict.fromkeys((item.item for item in found.plan.items), "head")
        return realiser.fixed(places, dict.fromkeys(places, 2 * int(early["cycles_per_frame"])), found=found.plan)

    with monkeypatch.context() as patch:
        patch.setattr(Realiser, "with_links", spread)
        early = _ended_early(case, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Realiser, "with_links", together)
        patch.setattr(Realiser, "holding", lambda *_: None)
        later = _plan(case)
    assert later["steady_fps"] < early["steady_fps"]
    assert later["throughput_fps"] > early["throughput_fps"]


def test_a_first_plan_that_did_not_wait_for_the_bound_of_all_foldings_gets_it_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr(searcher, "QUICK_NODES", 0)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    search, known = Searcher.search, list[int]()

    def once(self: Searcher, *words: Any, **options: Any) -> Plan:
        if known:
            raise Ended("interrupted")
        plan = search(self, *words, **options)
        known.append(plan.any_bound_cycles_per_frame)
        return plan

    monkeypatch.setattr(Searcher, "search", once)
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    plan = load_plan(case.workspace)
    assert known == [1]
    assert 1 < plan.any_bound_cycles_per_frame <= plan.cycles_per_frame
    assert "all foldings" in plan.any_bound_basis


@pytest.mark.slow
def test_a_search_that_cannot_go_on_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    faults = (
        ('"gap": 0.5, "nothing": ', "of the earlier one is damaged"),
        ('"gap": 0.5', "is not valid any more: bound"),
    )
    for seed, (spoilt, message) in enumerate(faults):
        _ended_early(case, monkeypatch, "--seed", str(seed))
        path = case.out / "place" / "searched-plan.json"
        path.write_text(re.sub(r'"gap": [0-9.e-]+', spoilt, path.read_text()))
        case.restamp("place")
        outcome = case.step("place", "--seed", str(seed))
        assert outcome.code == 0, outcome.error
        assert "warning: the search starts over" in outcome.out
        assert message in outcome.out


def test_the_plan_file_is_as_its_schema_in_docs_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parent.parent / "docs" / "plan.schema.json"
    schema = json.loads(path.read_text())
    assert schema == plan_schema(), "write plan_schema() of placement/problem/plan.py into docs/plan.schema.json"
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


def _planner(case: Case, estimator: Any) -> Planner:
    assert case.step("import").code == 0
    graph, cluster = load_training_graph(case.workspace), read_cluster(case.cluster)
    return Planner(graph, cluster, estimator, SearchOptions(), {}, Silent())


def test_nodes_are_looked_for_with_the_block_memories_that_they_were_found_to_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = _planner(new_case(tmp_path / "case"), QuickEstimator())
    planned = planner.run()
    plan, placed_level = planned.plan, Realiser._placed
    assert planned.searched is not None
    levels = planned.searched.levels
    realiser = Realiser(planner.searcher)
    assert realiser.missed(plan, levels) == {}, "nothing is deep here"

    def deeper(self: Realiser, *where: Any, **how: Any) -> Any:
        """Where it is placed, a node has five blocks more in every configuration."""
        level = placed_level(self, *where, **how)
        menus = {
            part: [replace(c, m20k=c.m20k + 5) for c in menu] for part, menu in level.offers[plan.items[3].item].items()
        }
        return replace(level, offers={**level.offers, plan.items[3].item: menus})

    monkeypatch.setattr(Realiser, "_placed", deeper)
    missed = realiser.missed(plan, levels)
    assert missed == {plan.items[3].item: 5}
    searched: list[Instance] = []

    def search(_searcher: Any, instance: Instance, _options: Any) -> Any:
        searched.append(instance)
        return plan

    monkeypatch.setattr(type(planner.searcher), "search", search)
    for more in ({}, missed):
        realiser.with_reserve(plan, levels, Fraction(0), more)
    without, reckoned = searched
    for before, after in zip(without.items, reckoned.items, strict=True):
        for part, menu in before.configurations.items():
            blocks = [b.m20k - a.m20k for a, b in zip(menu, after.configurations[part], strict=True)]
            assert set(blocks) <= {missed[before.name]}, before.name


def test_a_reserve_is_looked_for_at_near_levels_and_among_circuits_that_the_plan_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = _planner(new_case(tmp_path / "case"), QuickEstimator())
    plan = planner.run().plan
    pace = plan.cycles_per_frame
    asked: list[list[int]] = []
    searched: list[Instance] = []

    def priced(_realiser: Realiser, _homes: Any, levels: list[int]) -> list[Any]:
        """As where memories elsewhere keep all of them from being folded."""
        asked.append([level // pace for level in levels])
        return []

    def search(_searcher: Any, instance: Instance, _options: Any) -> Any:
        searched.append(instance)
        return plan

    monkeypatch.setattr(Realiser, "_priced", priced)
    monkeypatch.setattr(type(planner.searcher), "search", search)
    found = Realiser(planner.searcher).with_reserve(plan, [times * pace for times in (1, 2, 3, 4)], Fraction(0), {})
    assert (asked, found) == ([[1, 2, 3]], plan)
    (instance,) = searched
    parts = {device.name: device.part for device in instance.devices}
    for item, own in zip(
        instance.items, sorted(plan.items, key=lambda one: instance.item_index[one.item]), strict=True
    ):
        menu = item.configurations[parts[own.device]]
        assert any(
            (one.tile, one.cycles_per_frame, json.loads(one.payload)["cycles"], one.dsp)
            == (own.tile, own.cycles_per_frame, json.loads(own.payload)["cycles"], own.dsp)
            for one in menu
        ), own
        assert all(one.label.endswith(" as found") for one in menu)


def test_reserves_grow_until_a_placement_keeps_the_pace_it_was_found_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = _planner(new_case(tmp_path / "case"), QuickEstimator())
    planned = planner.run()
    # share, None for the placement found at first -> the T found with it, and the one at which that holds
    outcomes: dict[Fraction | None, tuple[int, int | None]] = {}
    tried: list[Fraction] = []

    def at(cycles: int) -> Any:
        plan = replace(planned.plan, cycles_per_frame=cycles, batch_cycles=planned.plan.batch_frames * cycles)
        return replace(planned, plan=plan)

    def reserved(_realiser: Realiser, _plan: Any, _levels: Any, share: Fraction, _missed: Any) -> Any:
        tried.append(share)
        return at(outcomes[share][0]).plan if share in outcomes else None

    def holding(_realiser: Realiser, plan: Any, _found: Any) -> Any:
        held = next(held for cycles, held in outcomes.values() if cycles == plan.cycles_per_frame)
        return None if held is None else at(held)

    def slower(_realiser: Realiser, plan: Any, *_: Any) -> Any:
        return at(10 * plan.cycles_per_frame)

    monkeypatch.setattr(Realiser, "with_reserve", reserved)
    monkeypatch.setattr(Realiser, "missed", lambda *_: Counter())
    monkeypatch.setattr(Realiser, "holding", holding)
    monkeypatch.setattr(Realiser, "at_slower_levels", slower)

    def held(found: tuple[int, int | None], **shares: tuple[int, int | None]) -> tuple[int, list[Fraction]]:
        outcomes.clear()
        tried.clear()
        outcomes.update({None: found, **{Fraction(int(name[1:]), 100): outcome for name, outcome in shares.items()}})
        made = Realiser(planner.searcher).with_links(Found(at(100).plan, (90, 110)))
        return made.plan.cycles_per_frame, [100 * share for share in tried]

    assert [100 * share for share in RESERVES[:4]] == [0, 1, 3, 6]
    # it holds nearly as it was found
    assert held((100, 101)) == (101, [])
    # what it was found to miss is enough
    assert held((100, None), _0=(101, 102)) == (102, [0])
    # it needs a reserve, and keeps the pace found with it
    assert held((100, 150), _0=(102, 145), _1=(103, 140), _3=(110, 111), _6=(115, 115)) == (111, [0, 1, 3])
    # it doesn't hold without one, and there is no room for a larger one
    assert held((100, None), _0=(101, None), _1=(104, None), _3=(108, 130)) == (130, [0, 1, 3, 6])
    # nothing holds: all slower
    assert held((100, None), _0=(101, None), _1=(104, None)) == (1040, [0, 1, 3])


def test_what_is_priced_of_nodes_at_different_paces_is_what_is_built(tmp_path: Path) -> None:
    class Marking(QuickEstimator):
        """Takes width adapters for a multiplication each."""

        def __init__(self, multiplications: int) -> None:
            self.multiplications = multiplications

        def block(self, configuration: str, widths: Mapping[str, int], build: Callable[..., Any]) -> Resources:
            made = super().block(configuration, widths, build)
            adapts = configuration.startswith("width adapter")
            return replace(made, multipliers={(16, 16): self.multiplications}) if adapts else made

    case = new_case(tmp_path / "case")
    adapters = Marking(1)
    planner = _planner(case, adapters)
    graph, cluster, prices = planner.problem.graph, planner.problem.cluster, planner.searcher.prices
    devices = [device.name for device in cluster.devices]
    group = {node.name: members[0].name for members in weight_groups(graph) for node in members}
    heads = {name: group.get(name, name) for name in graph.by_name}
    places = {
        node.name: devices[0] if node.layer.pinned_to_host else devices["pool" in node.name] for node in graph.nodes
    }
    folds = {name: 256 if index % 2 else 64 for index, name in enumerate(dict.fromkeys(heads.values()))}
    folds = {name: folds[head] for name, head in heads.items()}
    plans = {}
    for adapters.multiplications in (0, 1):
        prices.known.clear()
        plans[adapters.multiplications] = planner.fixed(places, folds).plan
    plan = plans[1]
    pace = plan_pace(plan)
    assert pace.folds == folds
    assert {cycles for cycles, *_ in prices.known} == {pace.interval}, "buffers are priced for the same interval"
    assert {part.name for part in pace.parts} == {device.board.part.name for device in cluster.devices}
    assert pace == Pace.of(chosen_graph(graph, plan_choices(plan)), folds, prices.parts)
    design = planned_design(graph, plan, cluster, ModuleLibrary(cache_folder() / "modules"))
    assert design.cycles_per_frame == pace.interval < 256
    instances = [instance for device in design.devices for instance in device.top.instances]
    built = [instance for instance in instances if instance.name.startswith("adapt_")]
    assert len(built) > 1
    assert sum(use.dsp for use in plan.devices) - sum(use.dsp for use in plans[0].devices) == len(built)


def test_an_estimate_is_made_anew_for_a_plan_with_other_circuits_at_the_same_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    pace = plan_pace(plan_from_json(json.dumps(_plan(case))))
    made: list[int] = []
    monkeypatch.setattr(estimate_step, "_work", lambda folder, *_: _note(folder, made))
    for factor in (1, 1, 2):
        other = Pace(pace.interval, {name: factor * cycles for name, cycles in pace.folds.items()})
        monkeypatch.setattr(estimate_step, "plan_pace", lambda _plan, other=other: other)
        assert case.step("estimate").code == 0
    assert len(made) == 2


def _note(folder: Path, made: list[int]) -> None:
    made.append(1)
    meta = {"schema_version": 1, "part": "AGFB014", "cycles_per_frame": 1, "layers": []}
    (folder / "estimate.json").write_text(json.dumps(meta))


@pytest.mark.parametrize("staleness", [0, 4])
def test_the_rate_of_training_in_whole_batches_stands_before_the_pace_inside_one(
    staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    recipe = case.write("recipe.toml", f"batch = 4\nstaleness = {staleness}\n")
    assert case.step("import", "--recipe", recipe).code == 0
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    plan = load_plan(case.workspace)
    time = plan_time(plan, load_placed_graph(case.workspace), load_plan_cluster(case.workspace))
    assert plan.batch_cycles == max(time.cycles, 4 * plan.cycles_per_frame)
    # with D = 0 the pipeline drains at every batch; of four frames that is most of the time
    waits = plan.batch_cycles > 1.2 * 4 * plan.cycles_per_frame
    assert waits if staleness == 0 else plan.batch_cycles >= 4 * plan.cycles_per_frame
    assert plan.throughput_fps == pytest.approx(plan.clock_hz * 4 / plan.batch_cycles)
    said = outcome.out.split("place: done\n")[1].splitlines()
    assert f"frames/s in training: a batch of 4 frames with staleness {staleness} takes" in said[0]
    assert "frames/s inside a batch" in said[1]


def test_what_multipliers_would_do_that_never_idle_is_told_beside_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path)
    assert case.step("import").code == 0
    told = case.step("place")
    assert told.code == 0
    imported = json.loads((case.out / "import" / "import.json").read_text())
    plan, meta = load_plan(case.workspace), json.loads((case.out / "place" / "place.json").read_text())
    macs = sum(imported[f"{which}_macs"] for which in ("forward", "error", "gradient"))
    cluster = load_plan_cluster(case.workspace)
    a_second = sum(2 * device.board.dsp * device.board.clock_hz for device in cluster.devices)
    assert meta["never_idle_fps"] == pytest.approx(a_second / macs)
    assert plan.steady_fps < meta["never_idle_fps"]
    # a block of AMD's multiplies once
    once = [replace(one, board=replace(one.board, part=PARTS["XC7VX690T"])) for one in cluster.devices]
    graph, half = load_placed_graph(case.workspace), replace(cluster, devices=tuple(once))
    assert never_idle_fps(graph, plan, half) == pytest.approx(a_second / macs / 2)
    # … and searches begin at a pace that they can keep
    few = [
        replace(each, devices=tuple(replace(one, board=replace(one.board, dsp=20)) for one in each.devices))
        for each in (cluster, half)
    ]
    fast, slow = (least_cycles(Problem(graph, each, SearchOptions(seed=1), {})) for each in few)
    assert slow > 1.5 * fast
    assert f"{plan.steady_fps / meta['never_idle_fps']:.1%} of that inside a batch" in told.out


def test_the_warning_of_a_deep_pipeline_says_what_its_staleness_would_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)

    def trained(name: str, staleness: int) -> tuple[float, dict[str, Any]]:
        case = new_case(tmp_path / name)
        recipe = case.write("recipe.toml", f"batch = 16\nstaleness = {staleness}\n")
        assert case.step("import", "--recipe", recipe).code == 0
        assert case.step("place").code == 0
        return load_plan(case.workspace).throughput_fps, json.loads((case.out / "place" / "place.json").read_text())

    slow, meta = trained("slow", 0)
    (warning,) = meta["warnings"]
    staleness, said = re.search(r"with a staleness of (\d+) it would get ([\d,]+),", warning).groups()
    assert int(staleness) == meta["needed_staleness"] > 0
    fast, meta = trained("fast", int(staleness))
    assert meta["warnings"] == []
    assert float(said.replace(",", "")) == pytest.approx(fast, rel=0.01)
    assert fast > 1.05 * slow
    # of many nodes that is not worked out
    monkeypatch.setattr(placed, "WORKED_OUT_NODES", 3)
    (warning,) = trained("many", 0)[1]["warnings"]
    assert f"a staleness of up to {staleness} may cost less (not worked out for so many nodes), and larger" in warning


def test_ports_that_are_nearly_full_are_told_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = residual_net(1), small_cluster(3, 400)
    names = dict(zip(DEVICES, (device.name for device in cluster.devices), strict=True))
    places = {node: names[device] for node, device in placement(graph, "dealt out").items()}
    laid = wired_graph(fold_graph(graph, 400), places, cluster, 400, cluster_dram(cluster, 400))
    words = Counter[tuple[str, str]]()
    for edge, hop in laid.hops.items():
        port = laid.graph.producers[edge][1]
        sent = -(-port.elements // hop.word) / (graph.recipe.batch if port.tensor.kind.per_batch else 1)
        rates = hop.source_rate, hop.target_rate
        for device, way, rate in ((hop.source, "sending", rates[0]), (hop.target, "receiving", rates[1])):
            words[device, way] += sent / rate / 400
        for device, way, rate in ((hop.target, "sending", rates[1]), (hop.source, "receiving", rates[0])):
            words[device, way] += sent / hop.credit_batch / rate / 400
    shares = sorted(words.values())
    assert len(shares) > 2
    monkeypatch.setattr(placed, "edges_that_wait", lambda laid, _: [*laid.hops])
    for limit, told in ((shares[-3], 2), (shares[-2], 0), (1.0, 0)):
        monkeypatch.setattr(placed, "FULL_PORT", limit)
        warnings = [*placed._full_ports(laid, 400)]
        assert [line.split()[1] for line in warnings] == [str(told)] * bool(told)
        for device, way in words if told else ():
            assert (f"{device} {way} {words[device, way]:.1%}" in warnings[0]) == (words[device, way] > limit)
    # nor one where the words of all have room
    monkeypatch.setattr(placed, "FULL_PORT", shares[-3])
    roomy = replace(laid, graph=replace(laid.graph, queued=frozenset(laid.hops)))
    assert [*placed._full_ports(roomy, 400)] == []
    # a port that is just as full as may be is not told
    monkeypatch.setattr(placed, "FULL_PORT", 0.75)
    for third, told in ((300, []), (301, ["2"])):
        first, second, last = (device.name for device in cluster.devices)
        busy = {(first, True): 400.0, (second, False): 300.0, (last, True): third}
        monkeypatch.setattr(placed, "busy_ports", lambda *_, busy=busy: busy)
        assert [line.split()[1] for line in placed._full_ports(laid, 400)] == told


@pytest.mark.slow
def test_a_sweep_has_the_same_bytes_whoever_plans(tmp_path: Path) -> None:
    swept = []
    for words in (("--workers", "1"), ("--workers", "2"), ("--runner", "dask", "--workers", "2")):
        case = new_case(tmp_path / "-".join(words))
        assert case.step("import").code == 0
        outcome = case.step("place", "--cap", "dsp=0.001", "--sweep", *words)
        assert outcome.code == 0, outcome.error
        swept.append({name: (case.out / "sweep" / name).read_bytes() for name in ("sweep.json", "sweep.svg")})
    assert swept[0] == swept[1] == swept[2]


def test_a_sweep_that_nobody_could_run_is_refused_before_anything_is_planned(tmp_path: Path) -> None:
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    outcome = case.step("place", "--sweep", "--runner", "farm")
    assert outcome.code == 1
    assert outcome.error == "error: --runner farm: no such runner; one of local, dask\n"
    assert not (case.out / "place").exists()


LEVERS = (
    "share_weights", "multiply_constants", "recompute", "ragged_tiles", "share_statistics", "deal_streams",
    "small_buffers",
)  # fmt: skip


def test_levers_are_all_that_are_not_given(tmp_path: Path) -> None:
    class Seen:
        """A net that only says what it is asked."""

        def place(self, options: Any) -> Any:
            return options

    def asked(**words: str) -> Any:
        (job,) = placing.place(Path("cluster.toml"), **words)
        return job(Seen())

    def ways(options: Any) -> dict[str, str]:
        return {name: getattr(options, name) for name in LEVERS}

    assert ways(asked()) == ways(asked(levers="never")) == dict.fromkeys(LEVERS, "never")
    assert ways(asked(levers="auto")) == dict.fromkeys(LEVERS, "auto")
    for name in LEVERS:
        assert ways(asked(levers="auto", **{name: "never"})) == {**dict.fromkeys(LEVERS, "auto"), name: "never"}
        assert ways(asked(**{name: "always"})) == {**dict.fromkeys(LEVERS, "never"), name: "always"}
    # nothing else depends on it
    assert replace(asked(levers="auto"), **dict.fromkeys(LEVERS, "never")) == asked()
    assert levers_wanted(asked(levers="auto")).recompute is Recompute.AUTO
    # every option with such ways is one of them, but for the codec, which has a default of its own
    assert {*LEVERS, "codec"} == {*get_type_hints(Levers)}
    wrong = new_case(tmp_path).step("place", "--levers", "some")
    assert wrong.code != 0
    assert "--levers some: no such way; one of auto, never" in wrong.error


def test_levers_that_leave_no_room_are_left_out_and_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    # however few block memories sharing saves
    monkeypatch.setattr("dagtrain.planning.sharing.LEAST_DRAM_BLOCKS", 0)
    search, asked = Planner.run, list[bool]()

    def full(self: Planner, *further: Any) -> Planned:
        asked.append(bool(self.problem.graph.lenders))
        if asked[-1]:
            raise InfeasibleError("m20k of at least 14408 needed")
        return search(self, *further)

    monkeypatch.setattr(Planner, "run", full)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    # what the user insists on is not left out
    refused = case.step("place", "--share-weights", "always", "--no-remote")
    assert refused.code != 0
    assert "14408 needed" in refused.error
    assert asked == [True]
    outcome = case.step("place", "--levers", "auto", "--gap", "0.3", "--no-remote")
    assert outcome.code == 0, outcome.error
    assert asked[1] is True
    assert asked[-1] is False
    assert "this plan is without them, as of --share-weights never --recompute never" in outcome.out
    assert case.step("place", "--levers", "auto", "--gap", "0.3", "--no-remote").out.startswith("place: unchanged")


def test_other_levers_are_tried_before_slower_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr("dagtrain.planning.sharing.LEAST_DRAM_BLOCKS", 0)
    find, asked = Searcher.find, list[tuple[bool, bool]]()
    # whether lenders, and others, have a plan at the first level
    rooms = {True: False, False: True}

    def found(self: Searcher, levels: Sequence[int], *further: Any) -> Plan:
        lends, first = bool(self.problem.graph.lenders), min(levels) < 2 * firsts.setdefault("level", min(levels))
        asked.append((lends, first))
        if first and not rooms[lends]:
            raise InfeasibleError("m20k of at least 14408 needed")
        return find(self, levels, *further)

    monkeypatch.setattr(Searcher, "find", found)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    options = ("--levers", "auto", "--gap", "0.3", "--no-remote", "--no-split")
    firsts: dict[str, int] = {}
    outcome = case.step("place", *options)
    assert outcome.code == 0, outcome.error
    assert asked[:2] == [(True, True), (False, True)]
    assert {lends for lends, _ in asked[1:]} == {False}
    # where neither has one there, the levers that were asked for come first at slower levels
    rooms[False] = False
    asked.clear()
    slower = case.step("place", *options, "--seed", "2")
    assert slower.code == 0, slower.error
    assert asked[:4] == [(True, True), (False, True), (True, True), (True, False)]
    assert "this plan is without them" not in slower.out


def test_a_search_that_was_ended_with_fewer_levers_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr("dagtrain.planning.sharing.LEAST_DRAM_BLOCKS", 0)
    run, begun = Planner.run, list[tuple[bool, bool]]()

    def ended(self: Planner, start: Start | None = None, *further: Any) -> Planned:
        begun.append((bool(self.problem.graph.lenders), start is not None))
        if begun[-1][0]:
            raise NoRoomError("m20k of at least 14408 needed")
        planned = run(self, start, *further)
        assert planned.searched is not None
        return replace(planned, searched=replace(planned.searched, finished=len(begun) > 2))

    monkeypatch.setattr(Planner, "run", ended)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    options = ("place", "--levers", "auto", "--gap", "0.3", "--no-remote", "--no-split")
    for wanted in ([(True, False), (False, False)], [(False, True)]):
        begun_before = len(begun)
        outcome = case.step(*options)
        assert outcome.code == 0, outcome.error
        assert begun[begun_before:] == wanted
        assert "this plan is without them" in outcome.out
        assert ("goes on" in outcome.out) == (len(begun) == 2)
