"""What tests of whole clusters share: a small residual network and placements of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dagtrain.cosim.cluster import Feeds, simulate_cluster
from dagtrain.cosim.compare import ClusterRun
from dagtrain.emission.cables import wire_rates
from dagtrain.emission.delivered import Delivered, load_delivered
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import hops_of
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.project import write_cluster
from dagtrain.emission.stored import DramUse
from dagtrain.flow.emit_step import network_files
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import keep_in_dram
from dagtrain.passes.queue_words import queue_words
from dagtrain.passes.replicate import Copies, replicate
from dagtrain.passes.split_rows import split_rows
from dagtrain.schedule.wired import Wired
from dagtrain.training.feeds import synthetic_feeds
from hdl.dram.axi import AxiFormat
from hdl.layers.pointwise.sigmoid import Sigmoid
from hdl.layers.pointwise.silu import Silu
from hdl.recipe import Recipe
from hdl.simulate.models.link import LEAST_LATENCY
from placement.problem.routes import Routing

BATCH = 4
CYCLES = 1200
# what a rate that is printed may differ from a simulated one without stalls
CLOSE = 0.02
DEVICES = ("alpha", "beta", "gamma")
# of all devices that `deliver` writes
CLOCK_HZ = 200 * 10**6
# cycles a frame of `tiny_net`
TINY_CYCLES = 64
# what `tiny_design` keeps in DRAM
TINY_DRAM = DramUse(format=AxiFormat(data_bits=64, address_bits=16), burst=8, prefetch=32)


def residual_net(staleness: int, batch: int = BATCH) -> Graph:
    """A streaming graph with a residual block, a norm, a pool and a dense layer: every kind of edge, few weights."""
    builder = GraphBuilder("residual", Recipe(batch=batch, staleness=staleness), seed=5)
    x = builder.relu(builder.norm(builder.conv(builder.input(6, 6, 2), 4, 3, padding=1)))
    y = builder.relu(builder.conv(x, 4, 3, padding=1), ceiling=6.0)
    y = builder.max_pool(builder.add(builder.conv(y, 4, 1), builder.conv(x, 4, 1)), 2, 2)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def copied_net(
    staleness: int, batch: int, copies: Mapping[str, Copies] | None = None, rows: Mapping[str, int] | None = None
) -> Graph:
    """The residual block without the norm, frames dealt out to so many copies of layers, or rows to so many parts."""
    builder = GraphBuilder("copied", Recipe(batch=batch, staleness=staleness), seed=5)
    x = builder.relu(builder.conv(builder.input(6, 6, 2), 4, 3, padding=1))
    y = builder.relu(builder.conv(x, 4, 3, padding=1), ceiling=6.0)
    y = builder.max_pool(builder.add(builder.conv(y, 4, 1), builder.conv(x, 4, 1)), 2, 2)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 5)))
    graph = calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)])
    return insert_forks(replicate(split_rows(graph, rows or {}), copies or {}))


def inception_net(staleness: int, batch: int = BATCH) -> Graph:
    """A streaming graph whose branches meet side by side, in equal and unequal numbers of channels."""
    builder = GraphBuilder("inception", Recipe(batch=batch, staleness=staleness), seed=9)
    x = builder.relu(builder.conv(builder.input(6, 6, 2), 4, 3, padding=1))
    y = builder.concat(builder.relu(builder.conv(x, 3, 3, padding=1)), builder.conv(x, 4, 1))
    y = builder.concat(y, x)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def squeezed_net(staleness: int, batch: int = BATCH) -> Graph:
    """A streaming graph with squeeze-and-excitation: a map that waits a frame for what is made of all of it."""
    builder = GraphBuilder("squeezed", Recipe(batch=batch, staleness=staleness), seed=7)
    x = builder.activation(Silu, builder.norm(builder.conv(builder.input(6, 6, 2), 6, 3, padding=1)))
    s = builder.relu(builder.gemm(builder.global_average_pool(x), 3))
    x = builder.mul(x, builder.activation(Sigmoid, builder.gemm(s, 6)))
    y = builder.channel_affine(builder.conv(x, 4, 1), np.array([0.7, -1.3, 0.02, 2.0]), np.array([0.1, 0.0, -3.0, 0.5]))
    y = builder.mul(y, builder.dropout(builder.channel_affine(y, np.full(4, 0.3)), 0.25, per_frame=True))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def shuffle_net(staleness: int) -> Graph:
    """A streaming graph with a unit of ShuffleNetV2: half of the channels goes by, all are shuffled; then slices that
    overlap and leave some channels to nobody."""
    builder = GraphBuilder("shuffle", Recipe(batch=BATCH, staleness=staleness), seed=14)
    a, b = builder.split(builder.relu(builder.conv(builder.input(6, 6, 2), 8, 3, padding=1)), 4)
    b = builder.relu(builder.norm(builder.conv(b, 4, 1)))
    b = builder.relu(builder.conv(builder.depthwise(b, 3, padding=1), 4, 1))
    x = builder.channel_shuffle(builder.concat(a, b), 2)
    x = builder.add(builder.channel_slice(x, 1, 5), builder.channel_slice(x, 2, 5))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def convnext_net(staleness: int) -> Graph:
    """A streaming graph with a block of ConvNeXt: depthwise, normalised over channels, wider and narrow again."""
    builder = GraphBuilder("convnext", Recipe(batch=BATCH, staleness=staleness), seed=15)
    x = builder.conv(builder.input(6, 6, 2), 6, 3, padding=1)
    y = builder.channel_norm(builder.depthwise(x, 3, padding=1))
    x = builder.add(builder.conv(builder.relu(builder.conv(y, 12, 1)), 6, 1), x)
    training = differentiate(builder.classify(builder.gemm(builder.channel_norm(builder.global_average_pool(x)), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def alexnet(staleness: int) -> Graph:
    """A streaming graph that begins as AlexNet does: normalised across channels, then pooled."""
    builder = GraphBuilder("alexnet", Recipe(batch=BATCH, staleness=staleness), seed=16)
    x = builder.relu(builder.conv(builder.input(6, 6, 2), 8, 3, padding=1))
    x = builder.max_pool(builder.local_response_norm(x, 5, alpha=0.05, beta=0.75, bias=2.0), 2, 2)
    x = builder.local_response_norm(builder.relu(builder.conv(x, 6, 3, padding=1)), 3, alpha=0.02)
    training = differentiate(builder.classify(builder.gemm(x, 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def twelve_net(staleness: int, batch: int = BATCH) -> Graph:
    """A streaming graph of larger maps, 12 x 12, with a stride and a pool: most of its work is in its first layers."""
    builder = GraphBuilder("twelve", Recipe(batch=batch, staleness=staleness), seed=12)
    x = builder.max_pool(builder.relu(builder.conv(builder.input(12, 12, 3), 8, 3, padding=1)), 2, 2)
    y = builder.relu(builder.conv(x, 8, 3, padding=1, stride=2))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 10)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def placement(graph: Graph, kind: str) -> dict[str, str]:
    """Node -> device: everything on one; the branches of the block apart; layers dealt out in turn; updates of weights
    on another device than all else."""
    layers = list(dict.fromkeys(node.layer_of for node in graph.nodes))
    where = {
        "one": dict.fromkeys(layers, DEVICES[0]),
        "branches apart": {
            name: DEVICES[{"conv2": 1, "relu2": 1, "conv3": 1, "conv4": 2}.get(name, 0)] for name in layers
        },
        "dealt out": {name: DEVICES[index % 3] for index, name in enumerate(layers)},
        "updates apart": dict.fromkeys(layers, DEVICES[0]),
    }[kind]
    apart = kind == "updates apart"
    return {
        node.name: DEVICES[1]
        if apart and node.role is Role.UPDATE
        else DEVICES[0]
        if node.layer.pinned_to_host
        else where[node.layer_of]
        for node in graph.nodes
    }


def deliver(design: ClusterDesign, library: ModuleLibrary, folder: Path) -> Delivered:
    """The files of all devices as `dagtrain emit` leaves them in ``folder``, read back."""
    parts = {device.name: "AGFB014" for device in design.devices}
    folder.mkdir(parents=True, exist_ok=True)
    write_cluster(folder, design, library, parts, CLOCK_HZ / 10**6, network_files(folder, design))
    return load_delivered([folder / device.name for device in design.devices])


def simulate_design(
    design: ClusterDesign, library: ModuleLibrary, feeds: Sequence[Feeds], folder: Path, *rest: Any, **options: Any
) -> ClusterRun:
    """`simulate_cluster` of a design's files, which are delivered below ``folder``."""
    delivered = deliver(design, library, folder / "emit")
    return simulate_cluster(delivered, design.graph, library, feeds, folder / "bench", *rest, **options)


def tiny_net(staleness: int = 1) -> Graph:
    """A streaming graph small enough for Icarus: a shortcut around a convolution, few frames a batch."""
    builder = GraphBuilder("tiny", Recipe(batch=2, staleness=staleness), seed=3)
    x = builder.relu(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1))
    y = builder.add(builder.norm(builder.conv(x, 2, 1)), x)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 3)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, 2, seed) for seed in range(2)]))


def tiny_placement(graph: Graph) -> dict[str, str]:
    """The branch on a device of its own."""
    return {
        node.name: DEVICES[int(node.layer_of in ("conv2", "norm1") and not node.layer.pinned_to_host)]
        for node in graph.nodes
    }


def tiny_design(
    library: ModuleLibrary, word_bits: int = 64, net: Graph | None = None, dram: DramUse = TINY_DRAM, **options: Any
) -> ClusterDesign:
    """The tiny network on two devices, momenta of one layer in DRAM; or ``net``, a variant of it."""
    graph = net or keep_in_dram(tiny_net(), ["conv2.w.update"])
    return design_cluster(
        graph, tiny_placement(graph), DEVICES, TINY_CYCLES, library, word_bits=word_bits, dram=dram, **options
    )


def queued_net(graph: Graph) -> Graph:
    """A network all of whose senders have room for words, as many as a memory of blocks has, one of logic, or
    registers."""
    words = itertools.cycle((512, 64, 3))
    return queue_words(graph, {node.name: [(source, next(words)) for source in node.outputs] for node in graph.nodes})


def wired_of(design: ClusterDesign, network_cycles: int, routing: Routing | None = None) -> Wired:
    """A design with a network, or cables, of such latency, as a bench has them."""
    wires: tuple[Fraction, ...] = ()
    if routing is None:
        # through the switch, with the merges of most of its ways
        network_cycles += LEAST_LATENCY + len(design.devices) - 1
    else:
        wires = wire_rates(routing, design.form.word_bits, CLOCK_HZ)
    rates = {name: min(1.0, float(1 / period)) for name, period in design.periods.items()}
    hops = hops_of(
        design.crossings, design.form, design.receiver_beats, network_cycles, rates, design.periods, routing,
        [device.name for device in design.devices], wires,
    )  # fmt: skip
    placed = design.graph.placed
    periods = {node: design.periods[device] for node, device in placed.items() if device in design.periods}
    bits = design.form.payload_bits if design.crossings else 0
    return Wired(design.graph, design.fifo_beats, hops, {}, periods, bits)


def said_batch_cycles(design: ClusterDesign, network_cycles: int, routing: Routing | None = None) -> int:
    """Cycles of a batch as `batch_time` says."""
    return wired_of(design, network_cycles, routing).batch_time.cycles
