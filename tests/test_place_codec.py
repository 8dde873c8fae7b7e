"""`place --codec` and what `--explain` says of codecs: links carry few words only where training is faster for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.links import NetworkModel
from dagtrain.flow import explain_step
from dagtrain.flow.emit_step import planned_design
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.flow.placed import load_folded_graph, load_placed_graph, load_plan, load_plan_cluster
from dagtrain.passes.plain_links import plain_links, plain_nodes
from dagtrain.planning import codec
from dagtrain.planning.choices import Choice, plan_choices, uncoded
from dagtrain.planning.rate import plan_time
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.engine.loss.numbers import METRICS
from hdl.errors import DagtrainError
from hdl.layers.exchange.exchange import Exchange
from tests.cosim_support import simulate_design
from tests.flow_support import Case, QuickEstimator, new_case, quick_costs, with_few_dsp
from tests.test_coded_links import LIBRARY, apart, coded_graph
from tests.test_copies import BATCHES, trained

WAY = ("--copy", "*=2", "--exchange", "ring", "--compress", "bounded:10,ratio=2.5")
HOPS = {f"{layer}.gradient.g.exchange@{copy}" for layer in ("c_node", "y_node") for copy in (0, 1)}


def placed(root: Path, monkeypatch: pytest.MonkeyPatch, gbit_per_s: float, *words: str) -> tuple[Case, str]:
    """A case with a plan of two copies of all, each on a board of its own, between links of a speed; what was said."""
    quick_costs(monkeypatch)
    monkeypatch.setattr(explain_step, "Estimator", QuickEstimator)
    cluster = with_few_dsp(0.003).replace("link_gbit_per_s = 100\n", f"link_gbit_per_s = {gbit_per_s}\n")
    case = new_case(root, cluster)
    recipe = case.write("recipe.toml", "batch = 6\nstaleness = 3\n")
    assert case.step("import", "--recipe", recipe, *WAY).code == 0
    boards = {"@0": "head", "@1": "worker"}
    copies = {node.layer_of for node in load_training_graph(case.workspace).nodes if node.layer_of[-2:] in boards}
    pins = [word for name in sorted(copies) for word in ("--pin", f"{name}={boards[name[-2:]]}")]
    outcome = case.step("place", *pins, *words)
    assert outcome.code == 0, outcome.error
    return case, outcome.out


def left_plain(case: Case) -> set[str]:
    """Nodes whose values links carry as they are in the plan."""
    return set(uncoded(plan_choices(load_plan(case.workspace))))


def logic_cells(case: Case) -> int:
    return sum(use.alm for use in load_plan(case.workspace).devices)


@pytest.mark.slow
def test_links_with_room_carry_gradients_as_they_are_and_no_value_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always, told = placed(tmp_path / "always", monkeypatch, 100)
    auto, said = placed(tmp_path / "auto", monkeypatch, 100, "--codec", "auto")
    assert (left_plain(always), left_plain(auto)) == (set(), HOPS)
    assert "exchange: ring, 4 streams of gradients between devices: " in told
    assert "exchange: ring, 0 streams of gradients between devices: 0 bits a batch are planned" in said
    less = logic_cells(always) - logic_cells(auto)
    assert "codec: on links of 0 of 4 tensors that copies hand on; without it on the others" in said
    assert f"trains no slower, with {less:,} logic cells less" in said
    assert less > 1000
    assert load_plan(auto.workspace).training_cycles <= load_plan(always.workspace).training_cycles
    # what is built: no codec stands on a link, what copies hand on went through it all the same
    for case, coded in ((always, 4), (auto, 0)):
        graph, plan = load_placed_graph(case.workspace), load_plan(case.workspace)
        design = planned_design(graph, plan, load_plan_cluster(case.workspace), LIBRARY)
        assert sum(crossing.bursts(64) is not None for crossing in design.crossings) == coded
        layers = [node.layer for node in load_folded_graph(case.workspace).nodes if isinstance(node.layer, Exchange)]
        assert len(layers) == 4
        assert all(layer.codec is not None for layer in layers)


def test_slow_links_keep_the_codec_where_training_is_faster_for_it_and_explain_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always, _ = placed(tmp_path / "always", monkeypatch, 2, "--gap", "0.3", "--explain")
    auto, _ = placed(tmp_path / "auto", monkeypatch, 2, "--gap", "0.3", "--codec", "auto", "--explain")
    # all at once is slower; some are not
    assert left_plain(always) == set()
    plain = left_plain(auto)
    assert 0 < len(plain) < len(HOPS)
    assert load_plan(auto.workspace).training_cycles <= load_plan(always.workspace).training_cycles
    for case in (always, auto):
        found = json.loads((case.out / "explain" / "explain.json").read_text())
        whole, *each = found["codecs"]
        assert set(whole["nodes"]) == HOPS == {name for one in each for name in one["nodes"]}
        assert (whole["plain_bits"], whole["coded_bits"]) == tuple(
            sum(one[name] for one in each) for name in ("plain_bits", "coded_bits")
        )
        assert whole["with_fps"] > whole["without_fps"]
        assert [one["has"] for one in each] == [not set(one["nodes"]) & left_plain(case) for one in each]
        told = [line for line in found["lines"] if line.startswith("codec on ")]
        assert told[0].startswith("codec on all 4 tensors that it may be on: 6,656 bits a batch are planned, with ")
        assert told[0].endswith("%): worth it")
        # what the plan leaves away is not worth it, and what it keeps is
        for one, line in zip(each, told[1:], strict=True):
            worth = one["with_fps"] > one["without_fps"]
            assert line.startswith(f"codec on what {one['nodes'][0]} makes (")
            assert line.endswith(": worth it") == worth
            assert one["alm"] > 0
            if case is auto:
                assert worth == (one["nodes"][0] not in plain)
                assert worth or line.endswith(": not worth it, and the plan is without it")


@pytest.mark.slow
def test_rates_that_explain_says_are_those_of_the_placement_with_its_links_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, _ = placed(tmp_path, monkeypatch, 1, "--explain")
    whole, *_ = json.loads((case.out / "explain" / "explain.json").read_text())["codecs"]
    plan, cluster = load_plan(case.workspace), load_plan_cluster(case.workspace)
    assert whole["with_fps"] == plan.throughput_fps
    # by the clock of batches alone
    choices = {name: replace(choice, plain=name in HOPS) for name, choice in plan_choices(plan).items()}
    items = tuple(replace(item, payload=choices[item.item].to_payload()) for item in plan.items)
    slower = plan_time(replace(plan, items=items), load_placed_graph(case.workspace), cluster)
    assert whole["without_fps"] == pytest.approx(plan.clock_hz / slower.cycles_per_frame)


def test_where_a_plan_is_no_faster_without_a_codec_nothing_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always, _ = placed(tmp_path / "always", monkeypatch, 100)
    monkeypatch.setattr(codec, "held_plain", lambda *_: None)
    auto, said = placed(tmp_path / "auto", monkeypatch, 100, "--codec", "auto")
    assert "codec: on links of 4 of 4 tensors" in said
    assert load_plan(always.workspace) == load_plan(auto.workspace)


def test_plain_links_of_a_graph_are_what_is_said_and_no_others() -> None:
    graph = coded_graph()
    names = {"conv2.gradient.g.exchange@1"}
    found = plain_links(graph, names)
    assert set(plain_nodes(found)) == names
    changed = {edge for edge, *_ in graph.streams if graph.coding(edge) != found.coding(edge)}
    # the sum, as forks hand it on
    assert changed == {edge for edge, *_ in graph.streams if graph.maker(edge)[0].name in names}
    assert "conv2.gradient.g@0" in changed
    assert plain_links(found, ()).nodes == graph.nodes
    with pytest.raises(DagtrainError) as caught:
        plain_links(graph, [graph.nodes[0].name, "nobody"])
    assert "nobody: no such node" in str(caught.value)
    assert f"{graph.nodes[0].name}: hands on nothing of a codec; leave it as it is" in str(caught.value)


def test_a_choice_says_that_links_are_plain_and_else_nothing() -> None:
    assert "plain" not in Choice(cycles=5).to_payload()
    plain = Choice(cycles=5, plain=True)
    assert Choice.from_payload(plain.to_payload()) == plain
    assert plain.label == "T5 plain"


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(DagtrainError, match="--codec never: no such way; one of always, auto"):
        levers_wanted(PlaceOptions(Path("cluster.toml"), codec="never"))


@pytest.mark.slow
def test_links_of_both_kinds_train_to_the_bits_of_the_emulator(tmp_path: Path) -> None:
    coded = coded_graph(name="a convolution")
    graph = plain_links(coded, ["conv2.gradient.g.exchange@0"])
    design = apart(graph)
    ends: list[Any] = [crossing.bursts(64) is not None for crossing in design.crossings if crossing.edge.count(".g")]
    assert {True, False} == set(ends)
    feeds = [synthetic_feeds(graph, 5, 100 + n) for n in range(BATCHES)]
    network = NetworkModel(latency_cycles=60, stall_256=16, seed=4)
    ran = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False
    )
    assert ran.mismatches == ()
    # of the graph with codecs on all links
    records = np.concatenate([each.reshape(-1, 2) for each in trained(coded)[1]])
    assert np.array_equal(ran.losses, METRICS.decode(records[:, 0]))
