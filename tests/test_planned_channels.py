"""Plans with narrow streams to DRAM on several channels, and what is emitted of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.device import ring_region, stored_edges, stored_streams
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import (
    GROUP_LOAD,
    GROUP_UNITS,
    MemoryModel,
    MemoryPort,
    channel_prefix,
    fifo_regions,
    group_share,
    grouped,
)
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.stored import MOST_LOAD, DramUse, Stored, can_be_dealt
from dagtrain.flow.emit_step import planned_design
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.graph.ir import Graph
from dagtrain.planning.choices import (
    Dealing,
    chosen_dram,
    chosen_graph,
    cluster_dealing,
    cluster_dram,
    plan_choices,
    planned_channels,
)
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.levers import LEVERS
from dagtrain.planning.menus import Menu
from dagtrain.planning.planner import Planner
from dagtrain.planning.port_tables import PortTables
from dagtrain.planning.prices import Prices
from dagtrain.planning.problem import Problem
from dagtrain.planning.results import Planned
from dagtrain.planning.walls import Outlooker
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.resources import Resources
from hdl.dram.axi import AxiFormat
from hdl.dram.store import DramUnit
from hdl.errors import DagtrainError
from hdl.layers.base import Layer
from placement.problem.cluster import Cluster, parse_cluster
from placement.problem.deadline import Deadline
from placement.problem.validate import violations
from placement.search.search import SearchOptions
from tests.cosim_support import simulate_design
from tests.flow_support import CLUSTER, QuickEstimator
from tests.test_relays import residual

KEYS = "clock_mhz = 200\ndram_word_bits = 512\ndram_unit_bits = 64"


class MemoryEstimator(QuickEstimator):
    """Memories too, all deep, so that there is something to gain from DRAM."""

    def layer(self, layer: Layer) -> Resources:
        """Declared multipliers and memories."""
        shapes = Counter((4096, memory.width) for memory in layer.memories())
        return super().layer(layer) + Resources(memories=dict(shapes))


def cluster(keys: str = KEYS, channels: int = 3, m20k: int = 60) -> Cluster:
    text = CLUSTER.replace("clock_mhz = 200", keys).replace(
        "dram_gbyte = 32", f"dram_gbyte = 32\ndram_channels = {channels}"
    )
    read = parse_cluster(text)
    devices = (replace(device, board=replace(device.board, m20k=m20k)) for device in read.devices)
    return replace(read, devices=tuple(devices))


def planned(of: Cluster) -> Planned:
    estimator: Any = MemoryEstimator()
    return Planner(residual(2), of, estimator, SearchOptions(seed=1), {}, Silent()).run()


def test_a_plan_puts_every_region_on_a_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 1)
    three = cluster()
    found = planned(three)
    plan, choices = found.plan, plan_choices(found.plan)
    assert violations(found.instance, plan) == []
    graph = chosen_graph(residual(2), choices)
    channels = planned_channels(graph, plan)
    # as emission calls them
    rings = {ring_region(node.name, ring) for node in graph.nodes for ring in node.layer.rings}
    assert channels.keys() == stored_edges(graph, chosen_dram(graph, choices, three, 1)) | rings
    assert len(channels) >= 6
    assert set(channels.values()) == {0, 1, 2}
    for use in plan.devices:
        assert sum(use.dram_channel_bytes_per_frame) == use.dram_bytes_per_frame


# cycles a frame, and bytes a second of a memory channel: too few for the maps at that pace
PACE, CHANNEL_RATE = 4000, 50_000_000


class FifoEstimator(QuickEstimator):
    """FIFOs on chip take memories, and nothing else does, so that these go to DRAM."""

    def block(self, configuration: str, widths: Mapping[str, int], build: Callable[..., Any]) -> Resources:
        """As deep as 64 of those of maps that wait for the way back."""
        kind, _, depth = configuration.partition(" ")
        deep = {(64 * int(depth), widths["x"]): 1} if kind == "queue" and int(depth) > 760 and widths["x"] > 1 else {}
        return super().block(configuration, widths, build) + Resources(memories=deep)


def slow_cluster(rate: int = CHANNEL_RATE, channels: int = 4) -> Cluster:
    """A board with memory channels, so slow that none carries a map of the network."""
    fast = cluster("clock_mhz = 200\ndram_word_bits = 64", channels=channels, m20k=20)
    devices = (replace(d, board=replace(d.board, dram_bytes_per_s=channels * rate)) for d in fast.devices[:1])
    return replace(fast, devices=tuple(devices))


@pytest.mark.parametrize(("rate", "fewest"), [(CHANNEL_RATE, 3), (CHANNEL_RATE * 6 // 5, 2), (CHANNEL_RATE * 3, 1)])
def test_a_stream_is_dealt_out_over_the_fewest_channels_that_carry_it(
    rate: int, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 1)
    graph, slow, estimator = residual(2), slow_cluster(rate), FifoEstimator()
    assert cluster_dealing(slow, PACE) == Dealing(4, rate * PACE // slow.clock_hz)
    costs = Prices(graph, slow, estimator, {}, Silent(), deal=True).costs(PACE)  # type: ignore[arg-type]
    room, found = costs.dealing.channel_bytes, Counter[int]()
    for node in costs.folded.nodes:
        for offer in costs.offers(node):
            regions = stored_streams(replace(node, layer=offer.layer), offer.choice.parts)
            assert len(offer.dram_streams) == len(offer.dram_bytes) == len(regions) == len(set(regions))
            for sink, parts in offer.choice.parts.items() if offer.choice.dealt else ():
                lanes, port = costs.folded.producers[node.inputs[sink]][1].lanes, node.layer.port(sink)
                found[parts] += 1
                for other in range(1, parts + 1):
                    if can_be_dealt(lanes, port, other):
                        each = costs.dram.bytes_per_frame(costs.dram.fifo(lanes, port, 1, other))
                        assert (each <= room) == (other == parts), f"{node.name}.{sink} to {other}"
    assert max(found, default=1) == fewest
    plain = Prices(graph, slow, estimator, {}, Silent()).costs(PACE)  # type: ignore[arg-type]
    assert not any(offer.choice.dealt for node in plain.folded.nodes for offer in plain.offers(node))


def test_a_stream_that_no_unit_keeps_up_with_is_not_offered_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 1)
    monkeypatch.setattr(DramUse, "delay_cycles", lambda *_: 0)
    graph, fast, estimator = residual(2), slow_cluster(10**12), FifoEstimator()
    # 144 words of 64 bits a map
    for cycles, wanted in ((144, {False: {1}, True: {1}}), (143, {False: set(), True: {2}})):
        for deal in (False, True):
            costs = Prices(graph, fast, estimator, {}, Silent(), deal=deal).costs(cycles)  # type: ignore[arg-type]
            offers = costs.offers(costs.folded.by_name["conv2.gradient"])
            found = {offer.choice.parts["x"] for offer in offers if "x" in offer.choice.fifos}
            assert found == wanted[deal], f"{cycles} cycles, {deal}"


def test_a_copy_has_as_much_longer_for_a_frame_in_dram_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 1)
    monkeypatch.setattr(DramUse, "delay_cycles", lambda *_: 0)
    graph, fast, estimator = residual(2, copies=2), slow_cluster(10**12), FifoEstimator()
    for cycles, kept in ((72, True), (71, False)):
        costs = Prices(graph, fast, estimator, {}, Silent()).costs(cycles)  # type: ignore[arg-type]
        for copy in range(2):
            offers = costs.offers(costs.folded.by_name[f"conv2.gradient@{copy}"])
            assert any("x" in offer.choice.fifos for offer in offers) == kept, f"{cycles} cycles, copy {copy}"


@pytest.mark.parametrize("period", [Fraction(1), Fraction(2)])
def test_units_that_are_emitted_are_as_fast_as_their_node_wants_them(
    period: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycles, name = 160, "conv2.gradient"
    made: dict[str, DramUnit] = {}
    add = MemoryPort._add

    def adding(self: MemoryPort, region: str, stored: Stored, *more: Any) -> None:
        made[region] = stored.unit
        add(self, region, stored, *more)

    monkeypatch.setattr(MemoryPort, "_add", adding)
    for copies in (1, 2):
        graph = residual(2, copies)
        sinks = [node for node in graph.nodes if node.name.startswith(name) and "x" in node.inputs]
        assert len(sinks) == copies
        edges = frozenset(node.inputs["x"] for node in sinks)
        use = DramUse(edges=edges, format=AxiFormat(data_bits=64, address_bits=16), cycles_per_frame=cycles)
        placed = dict.fromkeys((node.name for node in graph.nodes), "alpha")
        design = design_cluster(
            graph, placed, ("alpha",), cycles, ModuleLibrary(cache_folder() / "modules"), dram=use,
            periods={"alpha": period}, word_bits=64,
        )  # fmt: skip
        for node in sinks:
            edge = node.inputs["x"]
            sink, lanes = design.graph.by_name[node.name].layer.port("x"), design.graph.producers[edge][1].lanes
            wanted, other = (
                replace(use, cycles_per_frame=pace).fifo(lanes, sink, design.fifo_beats[edge])
                for pace in (int(cycles / period) * copies, int(cycles / period) * (3 - copies))
            )
            assert made[edge] == wanted.unit
            assert made[edge].prefetch != other.unit.prefetch


def placed_alone(graph: Graph, slow: Cluster, deal: bool) -> Planned:
    """All nodes on one board, folded for a pace at which no memory channel carries a map."""
    estimator: Any = FifoEstimator()
    names = [node.name for node in graph.nodes]
    planner = Planner(graph, slow, estimator, SearchOptions(seed=1), {}, Silent(), deal=deal)
    return planner.fixed(dict.fromkeys(names, slow.devices[0].name), dict.fromkeys(names, 2304))


def test_a_plan_with_dealt_streams_is_faster_and_says_what_emission_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 1)
    graph, slow = residual(2), slow_cluster(channels=8)
    whole, dealt = (placed_alone(graph, slow, deal) for deal in (False, True))
    plan, choices = dealt.plan, plan_choices(dealt.plan)
    assert whole.plan.cycles_per_frame > 1.5 * plan.cycles_per_frame >= 1.5 * 2304
    assert violations(dealt.instance, plan) == []
    assert not any(choice.dealt for choice in plan_choices(whole.plan).values())
    chosen = chosen_graph(graph, choices)
    use = chosen_dram(chosen, choices, slow, plan.cycles_per_frame)
    assert use.dealt
    channels = planned_channels(chosen, plan)
    made = {name for edge in stored_edges(chosen, use) for name in fifo_regions(edge, use.dealt.get(edge, 1))}
    assert channels.keys() == made | {
        ring_region(node.name, ring) for node in chosen.nodes for ring in node.layer.rings
    }
    # the validator wants a channel for every part
    item = next(item for item in plan.items if choices[item.item].dealt)
    spoilt = replace(item, dram_channels=item.dram_channels[1:])
    wrong = replace(plan, items=tuple(spoilt if each is item else each for each in plan.items))
    assert any("streams to DRAM" in violation.message for violation in violations(dealt.instance, wrong))


@pytest.mark.slow
def test_what_is_emitted_of_a_plan_with_dealt_streams_trains_to_the_bits_of_the_emulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 1)
    graph, slow, library = residual(2), slow_cluster(channels=8), ModuleLibrary(cache_folder() / "modules")
    plan = placed_alone(graph, slow, True).plan
    design = planned_design(graph, plan, slow, library)
    (device,) = design.devices
    made = {region.name: memory.port for memory in device.memories for region in memory.regions}
    planned = planned_channels(chosen_graph(graph, plan_choices(plan)), plan)
    assert made == {name: channel_prefix(channel, 8) for name, channel in planned.items()}
    assert sum(".dealt" in name for name in made) == 16
    feeds = [synthetic_feeds(design.graph, 2, 100 + index) for index in range(2)]
    run = simulate_design(
        design, library, feeds, tmp_path, Simulator.VERILATOR, NetworkModel(), 64, 3, Silent(), optimise=False,
        memory=MemoryModel(latency_cycles=30, words=1, cycles=2, stall_256=64),
    )  # fmt: skip
    assert run.mismatches == ()


def test_dealt_streams_are_a_lever_that_is_taken_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 1)
    graph, slow, estimator = residual(2), slow_cluster(), FifoEstimator()
    prices = Prices(graph, slow, estimator, {}, Silent(), deal=True)  # type: ignore[arg-type]
    (lever,) = (lever for lever in LEVERS if lever.name == "dealt streams")
    menu = Menu.of(prices.costs(PACE), LEVERS)
    offered, others = ([offer.choice.dealt for _, offer in menu.with_levers(levers)] for levers in ([lever], []))
    assert any(offered)
    assert not any(others)
    for deal in (False, True):
        problem = Problem(graph, slow, SearchOptions(), {}, deal=deal)
        found = Outlooker(problem, prices, (lever,)).look(Deadline())
        assert found.taken == ({"dealt streams"} if deal else frozenset())


def test_an_unknown_way_to_deal_streams_is_refused() -> None:
    with pytest.raises(DagtrainError, match=r"^--deal-streams always: no such way; one of auto, never$"):
        levers_wanted(PlaceOptions(Path("cluster.toml"), deal_streams="always"))


def test_what_narrow_streams_take_is_counted_and_a_group_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 1)
    graph = residual(2)
    clusters = [cluster(keys, 2) for keys in (KEYS, KEYS.replace("\ndram_unit_bits = 64", ""))]
    estimator: Any = MemoryEstimator()
    narrow, wide = (Prices(graph, of, estimator, {}, Silent()).level(4000) for of in clusters)
    compared = 0
    for name, by_part in wide.offers.items():
        cheap = {c.payload: c for c in narrow.offers[name]["AGFB014"]}
        for c in by_part["AGFB014"]:
            assert sum(c.dram_streams) == c.dram_bytes_per_frame == sum(cheap[c.payload].dram_streams)
            # weights that are loaded at once need words as wide as their beats
            assert cheap[c.payload].alm <= c.alm, c
            compared += cheap[c.payload].alm < c.alm
            assert c.dram_streams or cheap[c.payload].alm == c.alm
    assert compared >= 6
    assert wide.reserved["AGFB014"].alm == 0
    group = narrow.reserved["AGFB014"].alm
    for of, level, less in zip(clusters, (narrow, wide), (group, 0), strict=True):
        made = Prices(graph, of, estimator, {}, Silent()).of_levels([level], ())
        # … and merges and a split of the network's port
        rest = PortTables(graph, of, estimator, lambda *_: None).rest(of.placement_devices()[0]).alm
        assert rest > 0
        assert [d.alm for d in made.devices] == [d.board.alm - 2 * less - rest for d in of.devices]
    assert group > 0


def test_a_bound_of_all_foldings_melts_channels_whose_streams_it_does_not_know() -> None:
    prices = Prices(residual(2), cluster(), MemoryEstimator(), {}, Silent())  # type: ignore[arg-type]
    assert {device.dram_channels for device in Foldings(prices).instance.devices} == {1}
    assert {device.dram_channels for device in prices.of_levels([prices.level(4000)], ()).devices} == {3}


def test_the_shares_of_all_units_and_a_group_pay_for_all_groups() -> None:
    rng = random.Random(5)
    most = Fraction(0)
    for _ in range(300):
        loads = [Fraction(rng.choice([0, 1, 5, 12, 17, 24, 25]), 100) for _ in range(rng.randrange(1, 60))]
        groups = grouped(loads)
        assert sorted(at for group in groups for at in group) == list(range(len(loads)))
        assert all(len(group) <= GROUP_UNITS for group in groups)
        assert all(sum(loads[at] for at in group) <= GROUP_LOAD for group in groups)
        shares = sum(map(group_share, loads))
        assert len(groups) <= shares + 1, loads
        most = max(most, len(groups) - shares)
    # the group that is reserved is needed
    assert most > 0
    assert group_share(MOST_LOAD) == Fraction(1, 2)


def test_reads_and_writes_that_count_apart_take_what_they_move() -> None:
    graph = residual(2)
    twice, apart = (cluster_dram(cluster(keys), 1000) for keys in (KEYS, KEYS + "\ndram_apart = true"))
    conv = next(node.layer for node in graph.nodes if node.name == "conv2")
    sink = conv.port("w")
    weights = twice.replay(1, sink, graph.recipe)
    stash = twice.fifo(1, conv.port("x"), 100)
    assert twice.bytes_per_frame(weights) == 2 * weights.port_words(twice.format) * 64
    frozen = twice.constant(sink)
    assert twice.bytes_per_frame(frozen) == 2 * frozen.port_words(twice.format) * 64
    assert apart.bytes_per_frame(frozen) == frozen.port_words(apart.format) * 64
    batch = graph.recipe.batch
    assert apart.bytes_per_frame(weights) == Fraction(batch + 1, batch) * weights.port_words(twice.format) * 64
    assert apart.bytes_per_frame(stash) == twice.bytes_per_frame(stash)
