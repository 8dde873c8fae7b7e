"""Convolutions in groups, dilated ones and average pools in whole devices: on chip, parked, in DRAM."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import move_memories
from dagtrain.training.feeds import synthetic_feeds
from hdl.layers.storage import Home
from hdl.recipe import Recipe
from tests.cosim_support import BATCH
from tests.test_cosim_dram import designed, stored, streaming, train, use


def windows_net(staleness: int) -> Graph:
    """Groups with stride, dilated groups between pools of both kinds of counting, a pad of zeros."""
    net = GraphBuilder("windows", Recipe(batch=BATCH, staleness=staleness), seed=31)
    x = net.relu(net.conv(net.input(8, 8, 2), 8, kernel=3, padding=1))
    x = net.average_pool(net.conv(x, 8, kernel=3, padding=1, stride=2, groups=4), 1, 1, padding=1, counted=1)
    x = net.average_pool(net.relu(net.conv(x, 8, kernel=3, padding=2, groups=2, dilation=2)), 3, 1, padding=1)
    x = net.average_pool(x, 2, 2, padding=1, counted=1)
    graph = differentiate(net.classify(net.gemm(x, 3)))
    return insert_forks(calibrate(graph, [synthetic_feeds(graph, 2, seed=1)]))


@pytest.mark.slow
@pytest.mark.parametrize("home", [Home.PARKED, Home.DRAM])
def test_windows_of_every_kind_change_no_bit(home: Home, tmp_path: Path) -> None:
    graph = windows_net(2)
    names = ("conv2", "conv3")
    if home is Home.DRAM:
        graph = streaming(graph, names)
    else:
        engines = [
            node.name for node in graph.nodes if node.layer_of in names and node.role in (Role.FORWARD, Role.ERROR)
        ]
        graph = move_memories(graph, {name: home for name in engines if graph.by_name[name].parameters})
    design = designed(graph, "one", use())
    assert len(stored(design)) >= 2
    run = train(design, tmp_path)
    assert run.mismatches == ()
    assert len(run.losses) == 4 * BATCH
