"""Digests of what fixed seeds give, in tests/same_bytes.json: Verilog, the emulator's states, plans, estimates.

A change that is meant to leave everything as it is leaves these as they are.  `python -m tests.same_bytes` writes
them anew; the changelog says why a byte had to change.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.circuits import demo_design, network_layers
from dagtrain.emission.design import design_cluster
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.project import write_cluster
from dagtrain.files import write_text
from dagtrain.flow.emit_step import library
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.planning.choices import Pace
from dagtrain.planning.planner import Planner
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.costs.estimate import Estimator
from hdl.recipe import Recipe
from placement.problem.cluster import read_cluster
from placement.search.search import SearchOptions, find_plan
from tests.bound_instances import problem
from tests.cosim_support import DEVICES, residual_net
from tests.flow_support import CLUSTER, QuickEstimator

STORE = Path(__file__).parent / "same_bytes.json"
# a basic block's multipliers are few at this pace
BLOCK_CYCLES = 1_806_336
# batches of the emulator: momenta and the noise of rounding come into play
BATCHES = 3
# instances placed by the search of each solver
INSTANCES = 10


def digest(*parts: bytes | str) -> str:
    """Of the parts, told from one another by their lengths."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(f"{len(data)}\0".encode() + data)
    return found.hexdigest()[:16]


def training(builder: GraphBuilder, y: str, classes: int) -> Graph:
    """The streaming graph of a classifier over these features, its formats from one batch."""
    graph = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), classes)))
    return insert_forks(calibrate(graph, [synthetic_feeds(graph, 2, seed=1)]))


def basic_block() -> Graph:
    """The first block of ResNet-18's second stage: halves the map beside a 1x1 shortcut, and doubles the channels."""
    net = GraphBuilder("basic_block", Recipe(batch=2), seed=18)
    x = net.input(56, 56, 64)
    y = net.relu(net.norm(net.conv(x, 128, 3, stride=2, padding=1)))
    y = net.norm(net.conv(y, 128, 3, padding=1))
    return training(net, net.relu(net.add(y, net.norm(net.conv(x, 128, 1, stride=2)))), 10)


def inverted_residual() -> Graph:
    """The second block of MobileNetV2's second stage: sixfold expansion, a depthwise convolution, a shortcut."""
    net = GraphBuilder("inverted_residual", Recipe(batch=2), seed=2)
    x = net.input(56, 56, 24)
    y = net.relu(net.norm(net.conv(x, 144, 1)), ceiling=6.0)
    y = net.relu(net.norm(net.depthwise(y, 3, padding=1)), ceiling=6.0)
    return training(net, net.add(net.norm(net.conv(y, 24, 1)), x), 10)


def _delivered(design: Any, modules: ModuleLibrary) -> dict[str, str]:
    """Digest of every delivered file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cluster(folder, design, modules, {device.name: "AGFB014" for device in design.devices}, 200.0)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in files}


def _block(graph: Graph) -> dict[str, str]:
    """Delivered files of a block, dealt out to two devices."""
    modules = library()
    layers = list(dict.fromkeys(node.layer_of for node in graph.nodes))
    turns = {name: DEVICES[index % 2] for index, name in enumerate(layers)}
    placed = {node.name: DEVICES[0] if node.layer.pinned_to_host else turns[node.layer_of] for node in graph.nodes}
    return _delivered(design_cluster(graph, placed, DEVICES, BLOCK_CYCLES, modules, word_bits=64), modules)


def verilog_of_the_demo() -> dict[str, str]:
    """Every file delivered for the digits network."""
    modules = library()
    return _delivered(demo_design(modules), modules)


def verilog_of_blocks() -> dict[str, str]:
    """Every file delivered for a block of ResNet-18 and one of MobileNetV2."""
    blocks = {graph.name: _block(graph) for graph in (basic_block(), inverted_residual())}
    return {f"{name}/{file}": found for name, files in blocks.items() for file, found in files.items()}


def verilog_of_layers() -> dict[str, str]:
    """Circuits of layers of networks for ImageNet."""
    return {name: digest(text) for name, text in network_layers().items()}


def emulator() -> dict[str, str]:
    """Results and states after a few batches, of nets with and without staleness."""
    found = {}
    for graph in (residual_net(0), residual_net(2), inverted_residual()):
        executor = Executor(graph)
        frames = graph.recipe.batch
        results = [executor.step(synthetic_feeds(graph, frames, seed)) for seed in range(BATCHES)]
        name = f"{graph.name}, D = {graph.recipe.staleness}"
        found[f"{name}: results"] = digest(*(_bytes(result) for result in results))
        found[f"{name}: states"] = digest(_bytes(executor.states))
        found[f"{name}: weights"] = digest(_bytes(executor.weights))
    return found


def _bytes(value: Any) -> bytes:
    """Of nested mappings, sequences, arrays and numbers."""
    if isinstance(value, Mapping):
        return b"".join(str(key).encode() + b"\0" + _bytes(item) for key, item in sorted(value.items()))
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return b"[" + b",".join(map(_bytes, value)) + b"]"
    return repr(value).encode()


def plans() -> dict[str, str]:
    """Plans of small instances, and of a network with quick costs."""
    found = {}
    for seed in range(INSTANCES):
        drawn = problem(seed)
        for exact, solver in ((2_500, "exact"), (0, "annealed")):
            options = SearchOptions(
                seed=seed,
                same_device=(drawn.together,) if drawn.together else (),
                exclude=drawn.exclude,
                exact_choices=exact,
                anneal_moves=20_000,
                anneal_budget=100_000,
                workers=1,
            )
            found[f"instance {seed}, {solver}"] = digest(find_plan(drawn.instance, options).to_json())
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "cluster.toml"
        file.write_text(CLUSTER)
        cluster = read_cluster(file)
    options = SearchOptions(workers=1, anneal_moves=20_000, anneal_budget=200_000)
    planned = Planner(residual_net(1), cluster, QuickEstimator(), options, {}, Silent()).run()
    found["residual"] = digest(planned.plan.to_json())
    return found


def estimates() -> dict[str, str]:
    """Contents of the circuits of a net whose kinds of layers are many, at two paces."""
    estimator = Estimator(":memory:")
    found = {}
    for graph, cycles in ((residual_net(1), 300), (inverted_residual(), BLOCK_CYCLES)):
        folded = Pace.of(graph, dict.fromkeys(graph.by_name, cycles)).fold(graph)
        for node in folded.nodes:
            contents = estimator.layer(node.layer)
            found[f"{graph.name}, {node.name}"] = digest(repr(contents))
    return found


GROUPS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "verilog of the demo": verilog_of_the_demo,
    "verilog of blocks": verilog_of_blocks,
    "verilog of layers": verilog_of_layers,
    "emulator": emulator,
    "plans": plans,
    "estimates": estimates,
}


def stored() -> dict[str, dict[str, str]]:
    """What was written."""
    found: dict[str, dict[str, str]] = json.loads(STORE.read_text())
    return found


def main() -> None:
    """Write the store."""
    write_text(STORE, json.dumps({name: group() for name, group in GROUPS.items()}, indent=1) + "\n")
    print({name: len(items) for name, items in stored().items()})


if __name__ == "__main__":
    main()
