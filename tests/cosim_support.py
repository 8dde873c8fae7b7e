"""What tests of whole clusters share: a small residual network and placements of it."""

from __future__ import annotations

from dagtrain.builder import GraphBuilder
from dagtrain.feeds import synthetic_feeds
from dagtrain.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.summary import base_layer
from hdl.recipe import Recipe

BATCH = 4
CYCLES = 1200
DEVICES = ("alpha", "beta", "gamma")


def residual_net(staleness: int) -> Graph:
    """A streaming graph with a residual block, a norm, a pool and a dense layer: every kind of edge, few weights."""
    builder = GraphBuilder("residual", Recipe(batch=BATCH, staleness=staleness), seed=5)
    x = builder.relu(builder.norm(builder.conv(builder.input(6, 6, 2), 4, 3, padding=1)))
    y = builder.relu(builder.conv(x, 4, 3, padding=1), ceiling=6.0)
    y = builder.max_pool(builder.add(builder.conv(y, 4, 1), builder.conv(x, 4, 1)), 2, 2)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def inception_net(staleness: int) -> Graph:
    """A streaming graph whose branches meet side by side, in equal and unequal numbers of channels."""
    builder = GraphBuilder("inception", Recipe(batch=BATCH, staleness=staleness), seed=9)
    x = builder.relu(builder.conv(builder.input(6, 6, 2), 4, 3, padding=1))
    y = builder.concat(builder.relu(builder.conv(x, 3, 3, padding=1)), builder.conv(x, 4, 1))
    y = builder.concat(y, x)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def placement(graph: Graph, kind: str) -> dict[str, str]:
    """Node -> device: everything on one; the branches of the block apart; layers dealt out in turn."""
    layers = list(dict.fromkeys(base_layer(node.name) for node in graph.nodes))
    where = {
        "one": dict.fromkeys(layers, DEVICES[0]),
        "branches apart": {
            name: DEVICES[{"conv2": 1, "relu2": 1, "conv3": 1, "conv4": 2}.get(name, 0)] for name in layers
        },
        "dealt out": {name: DEVICES[index % 3] for index, name in enumerate(layers)},
    }[kind]
    return {
        node.name: DEVICES[0] if node.layer.pinned_to_host else where[base_layer(node.name)] for node in graph.nodes
    }
