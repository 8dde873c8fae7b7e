"""The fixed circuits whose timing is held: those of benchmarks/timing.py, layers of networks for ImageNet, the demo.

The demo's are those of the plan in tests/demo_plan.json, which `dagtrain place` found for it: the digits network is
imported and its circuits are generated, so a change of any of them is a change of its text here.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.timing import ALONE, LAYERS, MODULE, circuit_text, layer_circuit
from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.project import used_modules
from dagtrain.files import write_text
from dagtrain.flow import import_step
from dagtrain.flow.emit_step import chosen_design, library
from dagtrain.flow.import_options import ImportOptions
from dagtrain.flow.timing_step import DeviceVerilog
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.storage import layer_from_json, layer_to_json
from dagtrain.planning.choices import Choice, Pace, chosen_graph
from dagtrain.progress import Silent
from hdl.layers.base import Layer
from placement.problem.cluster import read_cluster
from placement.problem.plan import Plan

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "digits"
DEMO_PLAN = ROOT / "tests" / "demo_plan.json"
NETWORK_LAYERS = ROOT / "tests" / "imagenet_layers.json"


def alone() -> dict[str, str]:
    """Verilog of links, memory ports, self-tests and deep memories, by name."""
    units = {name: circuit_text(unit.streams, unit.build) for name, unit in ALONE.items()}
    return units | {name: circuit_text(*layer_circuit(layer)) for name, layer in LAYERS.items()}


def network_layers() -> dict[str, str]:
    """Verilog of the layers of ResNet-18 and MobileNetV2, by name."""
    stored = json.loads(NETWORK_LAYERS.read_text())
    return {name: circuit_text(*layer_circuit(layer_from_json(item, name))) for name, item in stored.items()}


def keep_plan(plan: Plan) -> None:
    """Write `DEMO_PLAN`: where the plan puts each node, and what it builds of it."""
    nodes = {item.item: {"device": item.device, "choice": json.loads(item.payload)} for item in plan.items}
    lines = [f"{json.dumps(name)}: {json.dumps(node)}" for name, node in sorted(nodes.items())]
    write_text(DEMO_PLAN, "{\n" + ",\n".join(lines) + "\n}\n")


def demo_design(modules: ModuleLibrary) -> ClusterDesign:
    """The demo's cluster, whose circuits are in ``modules`` afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(Path(folder))
        model, recipe = EXAMPLE / "digits.onnx", EXAMPLE / "recipe.toml"
        import_step.run(space, ImportOptions(model=model, recipe=recipe, data="digits"), Silent())
        graph = import_step.load_training_graph(space)
    nodes = json.loads(DEMO_PLAN.read_text())
    placed = {name: node["device"] for name, node in nodes.items()}
    choices = {name: Choice.from_payload(json.dumps(node["choice"])) for name, node in nodes.items()}
    pace = Pace.of(chosen_graph(graph, choices), {name: choice.cycles for name, choice in choices.items()})
    cluster = read_cluster(EXAMPLE / "cluster.toml")
    devices = [device.name for device in cluster.devices]
    return chosen_design(graph, placed, choices, pace, devices, cluster, modules)


def demo_devices() -> list[DeviceVerilog]:
    """Verilog of the demo's FPGAs."""
    modules = library()
    return [
        DeviceVerilog(
            device.name,
            device.top.name,
            device.top.to_verilog(),
            {module.name: module.text for module in used_modules(device.top, modules)},
        )
        for device in demo_design(modules).devices
    ]


# Verilog of a circuit of the demo that stands for its kind; engines are longer, and take Yosys up to a minute
MOST_CHARACTERS = 50_000
# of a layer that is drawn: mapping many more takes Yosys minutes, and they are all alike
MOST_MULTIPLIERS = 16


def draw_layers() -> None:
    """Write `NETWORK_LAYERS`: of each kind of layer of ResNet-18 and MobileNetV2 the circuit of the middle width."""
    from benchmarks.elaboration import NETWORKS, circuits_of

    kinds: dict[str, dict[str, Layer]] = {}
    for network in NETWORKS:
        found: dict[str, dict[str, Layer]] = {}
        for key, (kind, layer) in circuits_of(network):
            if kind == "layer" and layer.multipliers <= MOST_MULTIPLIERS:
                found.setdefault(f"{type(layer).__name__}, {network.split('-')[0]}", {})[key] = layer
        # a kind of the first network that has it
        seen = {name.split(",")[0] for name in kinds}
        kinds |= {name: layers for name, layers in found.items() if name.split(",")[0] not in seen}
    drawn = {}
    for name, layers in sorted(kinds.items()):
        order = sorted(layers, key=lambda key: (sum(port.payload_bits for port in layers[key].sinks), key))
        drawn[name] = layer_to_json(layers[order[len(order) // 2]])
    lines = [f"{json.dumps(name)}: {json.dumps(item)}" for name, item in drawn.items()]
    write_text(NETWORK_LAYERS, "{\n" + ",\n".join(lines) + "\n}\n")


@dataclass(frozen=True)
class FixedCircuits:
    """What is timed."""

    # circuit -> (name of its Verilog module, text)
    modules: Mapping[str, tuple[str, str]]
    devices: Sequence[DeviceVerilog] = ()


def fixed_circuits() -> FixedCircuits:
    """All of them, generated anew."""
    single = {name: (MODULE, text) for name, text in {**alone(), **network_layers()}.items()}
    devices = demo_devices()
    inside = {name: (name, text) for device in devices for name, text in device.modules.items()}
    return FixedCircuits({**single, **inside}, devices)


def circuits_of_each_kind() -> FixedCircuits:
    """Those that stand alone, and the smallest circuit of each kind of the demo that is short enough."""
    single = {name: (MODULE, text) for name, text in alone().items()}
    smallest: dict[str, tuple[str, str]] = {}
    for device in demo_devices():
        for name, text in device.modules.items():
            kind = kind_of(name)
            if kind not in smallest or (len(text), name) < (len(smallest[kind][1]), smallest[kind][0]):
                smallest[kind] = name, text
    short = {name: (name, text) for name, text in smallest.values() if len(text) <= MOST_CHARACTERS}
    return FixedCircuits(single | short)


def kind_of(module: str) -> str:
    """Of a module's name, which ends in a hash."""
    return re.sub(r"_[0-9a-f]{10}$", "", module)
