"""Every beat of a co-simulation beside the emulator: a seeded wrong bit in any layer is named to the pixel."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from dagtrain.cosim.cluster import simulate_cluster
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.trace import Traces
from dagtrain.emission.delivered import Delivered, load_delivered
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.device import instance_name, produced_net
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.ir import Role
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from tests.cosim_support import BATCH, CYCLES, DEVICES, deliver, placement, residual_net

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCHES = 2
# which fault is at work: none of them with 0
CHOICE = "wrong.mem"


@dataclass(frozen=True)
class Fault:
    """A bit that is turned round in one beat of what a node sends."""

    node: str
    edge: str
    device: str
    tensor: int
    # of the tensor, in order of the stream
    place: int
    bit: int


def run(delivered: Delivered, design: ClusterDesign, folder: Path) -> Traces:
    found: list[Traces] = []
    feeds = [synthetic_feeds(design.graph, BATCH, seed) for seed in range(BATCHES)]
    simulate_cluster(
        delivered, design.graph, LIBRARY, feeds, folder, Simulator.VERILATOR,
        NetworkModel(latency_cycles=50, stall_256=32, seed=1), 32, 1, Silent(), optimise=False, on_traces=found.append,
    )  # fmt: skip
    (traces,) = found
    return traces


@pytest.fixture(scope="module")
def design() -> ClusterDesign:
    graph = residual_net(0)
    return design_cluster(graph, placement(graph, "dealt out"), DEVICES, CYCLES, LIBRARY, word_bits=64)


def faults(design: ClusterDesign, layers: int, seed: int) -> list[Fault]:
    """In so many layers of different kinds, drawn by seed."""
    rng = random.Random(seed)
    graph = design.graph
    homes = {name: device.name for device in design.devices for name in device.nodes}
    kinds: dict[tuple[str, Role], list[tuple[str, str]]] = {}
    for edge, (node, port) in graph.producers.items():
        streams = {stream[0] for stream in graph.streams}
        if node.layer.sinks and edge in streams and not port.tensor.kind.per_batch:
            kinds.setdefault((type(node.layer).__name__, node.role), []).append((node.name, edge))
    chosen = rng.sample(sorted(kinds, key=str), layers)
    found = []
    for kind in chosen:
        name, edge = rng.choice(kinds[kind])
        port = graph.producers[edge][1]
        tensor, place = rng.randrange(BATCHES * BATCH), rng.randrange(port.elements)
        found.append(Fault(name, edge, homes[name], tensor, place, rng.randrange(port.tensor.fixed.width)))
    return found


def spoil(folder: Path, found: list[Fault], design: ClusterDesign) -> None:
    """Put all faults into the delivered tops; a file tells which of them is at work."""
    for number, fault in enumerate(found, 1):
        path = next(folder.glob(f"{fault.device}/rtl/{fault.device}.v"))
        port = design.graph.producers[fault.edge][1]
        net = produced_net(fault.edge)
        text = path.read_text()
        head = re.search(rf"^\w[^;]* {instance_name(fault.node)} \([^;]*;", text, re.MULTILINE)
        assert head, fault
        instance = head[0]
        assert f"({net}_payload)" in instance, fault
        beat, lane = divmod(fault.place, port.lanes)
        bit = lane * port.tensor.fixed.width + fault.bit
        own = f"""wire [{port.payload_bits - 1}:0] right_{number};
reg [31:0] choice_{number} [0:0];
reg [31:0] beat_{number} = 0;
initial $readmemh("{CHOICE}", choice_{number});
always @(posedge clk) if ({net}_valid && {net}_ready && !rst) beat_{number} <= beat_{number} + 1;
wire now_{number} = choice_{number}[0] == {number} && beat_{number} == {fault.tensor * port.beats + beat};
assign {net}_payload = now_{number} ? right_{number} ^ ({port.payload_bits}'d1 << {bit}) : right_{number};
{instance.replace(f"({net}_payload)", f"(right_{number})")}"""
        path.write_text(text.replace(instance, own))


def expected_index(design: ClusterDesign, fault: Fault) -> tuple[int, ...]:
    """Where the number stands, of the layer's own order."""
    node, port = design.graph.producers[fault.edge]
    order = node.layer.stream_order(port.name)
    flat = fault.place if order is None else int(order[fault.place])
    _, width, channels = port.tensor.shape
    row, rest = divmod(flat, width * channels)
    return (row, *divmod(rest, channels))


@pytest.mark.parametrize("layers", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_seeded_wrong_bit_in_any_layer_is_named_to_the_pixel(
    design: ClusterDesign, layers: int, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chosen = faults(design, layers, seed)
    deliver(design, LIBRARY, tmp_path / "emit")
    spoil(tmp_path / "emit", chosen, design)
    delivered = load_delivered([tmp_path / "emit" / device.name for device in design.devices])
    bench = tmp_path / "bench"
    bench.mkdir()
    for number, fault in enumerate([None, *chosen]):
        (bench / CHOICE).write_text(f"{number:x}\n")
        traces = run(delivered, design, bench)
        if fault is None:
            assert not traces.wrong
            assert not traces.short
            edges = {stream[0] for stream in design.graph.streams}
            assert traces.streams >= len(edges)
            continue
        first = traces.wrong[0]
        batch, frame = divmod(fault.tensor, BATCH)
        assert (first.traced.node, first.traced.edge, first.traced.device) == (fault.node, fault.edge, fault.device)
        assert (first.element.batch, first.element.frame) == (batch, frame), fault
        assert first.element.index == expected_index(design, fault), fault
        assert bin(first.found ^ first.expected).count("1") == 1 or fault.bit == first.fixed.width - 1
        assert first.cycle > 0
