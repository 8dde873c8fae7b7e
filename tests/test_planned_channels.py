"""Plans with narrow streams to DRAM on several channels, and what is emitted of them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dagtrain.emission.device import ring_region, stored_edges
from dagtrain.emission.memory import GROUP_LOAD, GROUP_UNITS, group_share, grouped
from dagtrain.emission.stored import MOST_LOAD
from dagtrain.planning.choices import chosen_dram, chosen_graph, cluster_dram, plan_choices, planned_channels
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.planner import Planner
from dagtrain.planning.prices import Prices
from dagtrain.planning.results import Planned
from dagtrain.progress import Silent
from hdl.costs.resources import Resources
from hdl.layers.base import Layer
from placement.problem.cluster import Cluster, parse_cluster
from placement.problem.validate import violations
from placement.search.search import SearchOptions
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
        assert [d.alm for d in made.devices] == [d.board.alm - 2 * less for d in of.devices]
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
    batch = graph.recipe.batch
    assert apart.bytes_per_frame(weights) == Fraction(batch + 1, batch) * weights.port_words(twice.format) * 64
    assert apart.bytes_per_frame(stash) == twice.bytes_per_frame(stash)
