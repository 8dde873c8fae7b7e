"""Words that wait at senders, where ports are full: every bit as without, and who gets the room."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import families, full_ports
from benchmarks.simulate_fast import cluster_of
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.queue_words import queue_words
from dagtrain.planning import queues
from dagtrain.planning.choices import plan_choices, queueing
from dagtrain.planning.fifo_costs import queue_resources
from dagtrain.planning.planner import Planner
from dagtrain.planning.queues import edges_that_wait, ends_of, sources_of, with_room
from dagtrain.planning.rate import wired
from dagtrain.planning.realise import Realiser
from dagtrain.planning.results import Planned
from dagtrain.progress import Silent
from dagtrain.schedule.batch_time import busy_ports
from dagtrain.schedule.network import SENDER_WORDS
from dagtrain.schedule.wired import Wired
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Usage, fit
from hdl.errors import DagtrainError, InfeasibleError
from hdl.layers.storage import Home
from hdl.memory import BLOCK_ROWS, filled
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from placement.problem.validate import violations
from placement.search.search import SearchOptions
from tests.cosim_support import (
    CLOSE,
    CYCLES,
    DEVICES,
    placement,
    queued_net,
    residual_net,
    said_batch_cycles,
    simulate_design,
    wired_of,
)
from tests.flow_support import CLUSTER, new_case, quick_costs, with_few_dsp

LIBRARY = ModuleLibrary(cache_folder() / "modules")
NETWORK_CYCLES = 90
# of the chain: cycles a frame of its engines, and ports that are a little slower
PACE, FULL_GBIT = 16_384, 45


# ---- circuits


def design(**options: Any) -> ClusterDesign:
    """A residual block whose branches are apart, all senders with room."""
    graph = queued_net(residual_net(1))
    return design_cluster(graph, placement(graph, "branches apart"), DEVICES, CYCLES, LIBRARY, word_bits=64, **options)


def trained(made: ClusterDesign, folder: Path, network: NetworkModel, **options: Any) -> ClusterRun:
    graph, batch = made.graph, made.graph.recipe.batch
    feeds = [synthetic_feeds(graph, batch, 100 + index) for index in range(3)]
    run = simulate_design(
        made, LIBRARY, feeds, folder, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False, **options
    )
    assert run.mismatches == ()
    assert len(run.losses) == 3 * batch
    return run


@pytest.mark.slow
@pytest.mark.parametrize("pooled", [False, True])
def test_a_cluster_trains_to_the_bits_of_the_emulator_in_the_time_that_is_told(pooled: bool, tmp_path: Path) -> None:
    made = design(pooled=pooled)
    run = trained(made, tmp_path, NetworkModel(latency_cycles=NETWORK_CYCLES, stall_256=0), stretch_cycles=CYCLES)
    assert run.batch_cycles[-1] == pytest.approx(said_batch_cycles(made, NETWORK_CYCLES), rel=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_streams_that_are_held_up_change_no_bit(seed: int, tmp_path: Path) -> None:
    # senders and receivers are watched: their credits, their words
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, words=1, cycles=2, stall_256=40, seed=seed)
    trained(design(), tmp_path, network, hold_cycles=200)


def test_senders_have_room_and_receivers_all_of_their_memories() -> None:
    made = design()
    modules = {module.name: module.verilog.text for module in LIBRARY}
    senders = {
        unit.name: modules[unit.module]
        for device in made.devices
        for unit in device.top.instances
        if unit.module.startswith("link_egress")
    }
    assert len(senders) == len(made.crossings) > 4
    assert {crossing.queued for crossing in made.crossings} == {512, 64, 3}
    for crossing in made.crossings:
        assert f"[0:{crossing.queued}-1]" in senders[f"egress_{verilog_name(crossing.edge)}"]
    queued = {crossing.edge: crossing.queued for crossing in made.crossings}
    for edge, hop in wired_of(made, NETWORK_CYCLES).hops.items():
        (asked,) = {device.link_words[edge] for device in made.devices if edge in device.link_words}
        assert hop.credits == filled(asked) >= asked
        assert hop.sender_words == SENDER_WORDS + queued[edge]


@pytest.mark.parametrize(("words", "all_of_them"), [(1, 32), (32, 32), (33, 64), (64, 64), (65, 512), (513, 1024)])
def test_a_memory_of_wide_words_has_room_for_those_of_its_blocks(words: int, all_of_them: int) -> None:
    assert filled(words) == all_of_them


def test_only_sources_that_there_are_get_room() -> None:
    graph = residual_net(1)
    assert queue_words(queued_net(graph), {}).queued == {}
    named = {"conv1": (("y", 0), ("z", 1)), "conv99": (("y", 1),)}
    with pytest.raises(DagtrainError, match=r"conv1\.y.*0 words can't wait.*conv1\.z.*no such.*conv99\.y") as error:
        queue_words(graph, named)
    assert len(error.value.problems) == 3


# ---- plans


def chain() -> Graph:
    """Seven convolutions one behind the other."""
    net = GraphBuilder("chain", Recipe(batch=32, staleness=32), seed=5)
    x = net.input(32, 32, 3)
    for _ in range(7):
        x = net.relu(net.norm(net.conv(x, 16, 3, padding=1)))
    return insert_forks(differentiate(net.classify(families.head(net, x))))


GRAPH = chain()


def fixed(gbit: float) -> tuple[Planned, Wired]:
    """The chain dealt out to five boards with such ports."""
    cluster = cluster_of(5, gbit)
    layers = list(dict.fromkeys(node.layer_of for node in GRAPH.nodes))
    # the last one has little to say
    boards = {layer: number % 4 if number < len(layers) - 4 else 4 for number, layer in enumerate(layers)}
    where = {
        node.name: cluster.devices[0 if node.layer.pinned_to_host else boards[node.layer_of]].name
        for node in GRAPH.nodes
    }
    planner = Planner(GRAPH, cluster, Estimator(), SearchOptions(), {}, Silent())
    planned = Realiser(planner.searcher).fixed(where, dict.fromkeys(where, PACE), explain=False)
    assert violations(planned.instance, planned.plan) == []
    return planned, wired(planned.plan, GRAPH, cluster)


@pytest.fixture(scope="module")
def full() -> tuple[Planned, Wired]:
    """With ports that are slower than the engines by a twentieth."""
    return fixed(FULL_GBIT)


@pytest.fixture(scope="module")
def plain() -> tuple[Planned, Wired]:
    """As if no port were full."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queues, "BUSY", 1.1)
        return fixed(FULL_GBIT)


def test_full_ports_have_room_for_words_in_front_of_them(full: tuple[Planned, Wired]) -> None:
    planned, laid = full
    cycles = planned.plan.cycles_per_frame
    assert PACE < cycles < PACE / queues.BUSY
    ends = {end for end, busy in busy_ports(laid.graph, laid.hops).items() if busy > queues.BUSY * cycles}
    assert set(busy_ports(laid.graph, laid.hops)) > ends
    assert laid.graph.queued == dict.fromkeys(edges_that_wait(laid, cycles), BLOCK_ROWS)
    for edge, hop in laid.hops.items():
        port = laid.graph.producers[edge][1]
        words = -(-port.elements // hop.word)
        waits = not port.tensor.kind.per_batch and words >= queues.LEAST_WORDS and not ends.isdisjoint(ends_of(hop))
        assert (edge in laid.graph.queued) == waits
        assert hop.sender_words == SENDER_WORDS + BLOCK_ROWS * waits
    # a choice comes back from the plan
    named = queueing(plan_choices(planned.plan))
    rooms = {GRAPH.by_name[node].outputs[source]: words for node, found in named.items() for source, words in found}
    assert rooms == laid.graph.queued
    assert sources_of(laid.graph.queued, GRAPH).keys() == named.keys()


def test_room_is_counted(full: tuple[Planned, Wired], plain: tuple[Planned, Wired]) -> None:
    (planned, laid), (without, small) = full, plain
    assert not small.graph.queued
    assert without.plan.cycles_per_frame == planned.plan.cycles_per_frame
    for use, before in zip(planned.plan.devices, without.plan.devices, strict=True):
        sent = [laid.hops[edge] for edge in laid.graph.queued if laid.hops[edge].source == use.device]
        # RAMB36 of 512 x 72, in halves of 36
        bits = [hop.word * laid.graph.tensor(edge).fixed.width for edge, hop in laid.hops.items() if hop in sent]
        assert use.m20k - before.m20k == pytest.approx(sum(math.ceil(each / 36) / 2 for each in bits), abs=len(bits))
        assert use.alm > before.alm


@pytest.mark.parametrize("logic", [0, 2, 99])
@pytest.mark.parametrize("left", [-1, 0, 1])
def test_room_is_given_as_far_as_a_device_has_some_left(left: int, logic: int, full: tuple[Planned, Wired]) -> None:
    planned, laid = full
    estimator, waiting = Estimator(), edges_that_wait(laid, planned.plan.cycles_per_frame)
    first, second, *others = planned.plan.devices
    sent = [edge for edge in waiting if laid.hops[edge].source == second.device]

    def takes(edge: str, words: int) -> Usage:
        bits = laid.hops[edge].word * laid.graph.tensor(edge).fixed.width
        return fit(queue_resources(bits, words, estimator), part(second.part))

    # just enough blocks for the first three, or one less, or more, and logic for so many more; elsewhere plenty
    blocks = sum(takes(edge, 512).m20k for edge in sent[:3]) + left
    cells = sum(takes(edge, 512).alm for edge in sent[:3]) + sum(takes(edge, 64).alm for edge in sent[3 : 3 + logic])
    plenty = {"m20k_capacity": 10**6, "alm_capacity": 10**9}
    tight = replace(second, m20k_capacity=second.m20k + blocks, alm_capacity=second.alm + cells)
    devices = tight, *(replace(use, **plenty) for use in (first, *others))
    found = with_room(waiting, laid, replace(planned.plan, devices=devices), estimator)
    assert {edge: found[edge] for edge in waiting if edge not in sent} == {
        edge: 512 for edge in waiting if edge not in sent
    }
    for edge in sent:
        for words in (512, 64):
            costs = takes(edge, words)
            if costs.m20k <= blocks and costs.alm <= cells:
                assert found[edge] == words
                blocks, cells = blocks - costs.m20k, cells - costs.alm
                break
        else:
            assert edge not in found
    given = {found.get(edge) for edge in sent}
    assert 512 in given
    assert (64 if logic else None) in given


def test_ports_that_are_slow_while_engines_rest_have_no_room() -> None:
    planned, laid = fixed(FULL_GBIT / 2)
    assert planned.plan.cycles_per_frame > 1.8 * PACE
    assert not laid.graph.queued
    assert edges_that_wait(laid, PACE / queues.BUSY * 0.999)
    assert not edges_that_wait(laid, PACE / queues.BUSY)


def test_where_a_plan_does_not_hold_with_all_the_room_half_of_it_is_tried(
    full: tuple[Planned, Wired], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, laid = full
    count, tried = len(laid.graph.queued), list[int]()
    hold = Realiser._without_room

    def refusing(self: Realiser, *args: Any, **options: Any) -> Planned:
        tried.append(len(self.searcher.problem.graph.queued))
        made = hold(self, *args, **options)
        if tried[-1] == count:
            raise InfeasibleError("no room")
        if tried[-1] == count // 2:
            # slower, or with something else elsewhere
            return replace(made, plan=replace(made.plan, cycles_per_frame=made.plan.cycles_per_frame + 1))
        if tried[-1] == count // 4:
            first, *others = made.plan.items
            payload = replace(plan_choices(made.plan)[first.item], memory=Home.DRAM).to_payload()
            return replace(made, plan=replace(made.plan, items=(replace(first, payload=payload), *others)))
        return made

    monkeypatch.setattr(Realiser, "_without_room", refusing)
    _, less = fixed(FULL_GBIT)
    assert tried == [0, count, count // 2, count // 4, count // 8]
    # those of the most words
    assert less.graph.queued.keys() == set(edges_that_wait(laid, PACE)[: count // 8])


def test_only_a_plan_can_be_without_room(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        full_ports.main(["--without-room"])
    assert ended.value.code == 2
    assert "--without-room is of a plan: say --plan" in capsys.readouterr().err


@pytest.mark.slow
def test_commands_plan_emit_and_simulate_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr(queues, "BUSY", 0.0)
    monkeypatch.setattr(queues, "LEAST_WORDS", 0)
    case = new_case(tmp_path, with_few_dsp(0.003, CLUSTER))
    recipe = case.write("recipe.toml", "batch = 4\nstaleness = 4\n")
    for words in (("import", "--recipe", recipe, "--data", case.data()), ("place",), ("emit",)):
        outcome = case.step(*words)
        assert outcome.code == 0, outcome.error
        if words == ("place",):
            said = r"^  full ports: 512 words of each of \d+ streams may wait at their senders$"
            assert re.search(said, outcome.out, re.MULTILINE)
    as_planned, larger = full_ports.ROOMS[0], full_ports.Room("larger", sender=600)
    seen: list[set[int]] = []
    monkeypatch.setattr(
        full_ports, "pace", lambda laid, _: seen.append({h.sender_words for h in laid.hops.values()}) or 7
    )
    for without in (False, True):
        assert len([*full_ports.of_plan(case.out, [as_planned, larger], 4, without_room=without)]) == 2
    assert seen == [{SENDER_WORDS, SENDER_WORDS + 512}, {600}, {SENDER_WORDS}, {600}]
    for level in ("fast", "exact"):
        outcome = case.step("simulate", "--level", level, "--batches", "2")
        assert outcome.code == 0, outcome.error
    outcome = case.step("cosim", "--batches", "2", "--no-efficiency", "--hold", "40")
    assert outcome.code == 0, outcome.error
    assert json.loads((case.out / "cosim" / "cosim.json").read_text())["mismatches"] == []
    manifests = [json.loads(path.read_text()) for path in (case.out / "emit").glob("*/manifest.json")]
    crossings = [one for manifest in manifests for one in manifest["ingress"]]
    assert crossings
    assert all(one["words"] in (32, 64, 512) and one["credit_batch"] < one["words"] / 3 for one in crossings)
