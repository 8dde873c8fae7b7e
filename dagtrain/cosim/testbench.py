"""A MyHDL testbench of emitted FPGAs: MyHDL plays the host, Icarus runs the Verilog of all devices over VPI.

MyHDL drives images and labels with random stalls, takes the metrics with random back-pressure, watches the contract of
streams at every host port, and at the end has all training state written.  The network between devices and their
memories are Verilog, as in the bench of `dagtrain.cosim.bench`.  Icarus is slow: for small networks and few batches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import myhdl
from myhdl import Signal, always, block, intbv

from dagtrain.cosim.bench import (
    BENCH,
    CLUSTER,
    Bench,
    BenchOptions,
    Dump,
    Recording,
    add_cluster,
    bench_modules,
    host_net,
)
from dagtrain.cosim.cluster import SETTLE_FRAMES, Feeds, emulate, write_sources
from dagtrain.cosim.compare import ClusterRun, compare, compare_start
from dagtrain.cosim.simulator import RunLog
from dagtrain.emission.assembly import Assembly
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from dagtrain.executor import Executor, Mode
from dagtrain.ir import Graph
from hdl.errors import ToolError
from hdl.layers.base import to_beats
from hdl.netlist import Direction, PortDecl
from hdl.simulate import Design, StreamPort
from hdl.simulate.drivers import Bench as Drivers
from hdl.simulate.icarus import check_message_size, vpi_module
from hdl.simulate.myhdl_run import fresh_simulator, simulate
from hdl.verilog import run_tool, write_image

# intervals of the pipeline for which a batch may be under way beyond the frames that it needs
SLACK_FRAMES = 40
TOP = f"{BENCH}_top"
# cycles for which the order to write the state stands
DUMP_CYCLES = 4


def simulate_under_myhdl(
    delivered: Delivered,
    graph: Graph,
    library: ModuleLibrary,
    feeds: Sequence[Feeds],
    folder: Path,
    network: NetworkModel,
    memory: MemoryModel,
    stall: float,
    seed: int,
) -> ClusterRun:
    """Train on ``feeds``, a batch each, and compare with the golden models of the folded ``graph`` in every bit.

    ``stall``: share of cycles in which a host stream stalls.  Raises `DeadlockError` when the metrics don't come,
    `ContractViolation` when a host port breaks the stream contract, `ToolError` when a link or memory reports an error.
    """
    frames = len(feeds) * graph.recipe.batch
    interval = delivered.cycles_per_frame
    # the last frame still has to go all the way back, and its gradients into the weights
    settle = (SETTLE_FRAMES + delivered.needed_staleness + 2) * interval + network.latency_cycles + 4096
    options = BenchOptions(frames=frames, batch=graph.recipe.batch, network=network, memory=memory, seed=seed)
    assembly = Assembly(CLUSTER, "All FPGAs with their network")
    dumps = add_cluster(assembly, delivered.devices, library, options, folder)
    streams, recorded = _host_ports(assembly, delivered, frames)
    made = assembly.module()
    texts, modules = {CLUSTER: made.to_verilog()}, bench_modules(assembly, delivered.devices)
    bench = Bench(texts, {}, recorded, tuple(dumps), modules)
    program = _compile(delivered, bench, made.ports, library, folder)
    golden = Executor(graph, Mode.GOLDEN)
    start = compare_start(delivered, golden)
    expected = emulate(golden, feeds)
    inputs = _inputs(graph, feeds)
    counts = {verilog_name(node): recording.beats for node, recording in recorded.items()}
    host = Design(CLUSTER, lambda _: None, streams)
    limit = (frames + SLACK_FRAMES) * 4 * interval + settle
    drivers = Drivers(host, inputs, counts, seed, stall, limit, settle + DUMP_CYCLES)
    _run(program, made.ports, drivers, folder)
    run = drivers.result()
    for node, recording in recorded.items():
        port = graph.by_name[node].layer.sinks[0]
        write_image(folder / recording.file_name, run.outputs[verilog_name(node)], port.payload_bits)
    first = next(iter(recorded))
    ends = run.fire_cycles[verilog_name(first)][:: recorded[first].beats // frames]
    return compare(bench, golden, expected, folder, RunLog(drivers.cycle, tuple(ends)), frames, start)


def _host_ports(
    assembly: Assembly, delivered: Delivered, frames: int
) -> tuple[tuple[StreamPort, ...], dict[str, Recording]]:
    """The host's streams as ports of the cluster."""
    streams, recorded = [], {}
    for device in delivered.devices:
        for host in device.manifest.host_ports:
            name, inside = verilog_name(host.node), host_net(assembly, host)
            assembly.stream_port(name, host.payload_bits, host.direction)
            streams.append(StreamPort(name, host.payload_bits, host.direction))
            if host.direction is Direction.IN:
                assembly.connect(source=name, target=inside)
            else:
                assembly.connect(source=inside, target=name)
                recorded[host.node] = Recording(f"{name}.beats.mem", host.beats_per_frame * frames, "")
    return tuple(streams), recorded


def _inputs(graph: Graph, feeds: Sequence[Feeds]) -> dict[str, list[int]]:
    found = {}
    for node in feeds[0]:
        layer = graph.by_name[node].layer
        port = layer.sources[0]
        beats = [to_beats(layer, port.name, port.tensor.fixed.encode(feed[node])) for feed in feeds]
        found[verilog_name(node)] = [beat for part in beats for beat in part]
    return found


def _compile(
    delivered: Delivered, bench: Bench, ports: Sequence[PortDecl], library: ModuleLibrary, folder: Path
) -> Path:
    sources = write_sources(delivered, bench, library, folder)
    check_message_size(CLUSTER, ports)
    top = folder / "rtl" / f"{TOP}.v"
    top.write_text(_top(ports, bench.dumps))
    program = folder / "top.vvp"
    run_tool(["iverilog", "-g2005", "-o", program, "-s", TOP, *sources, top])
    return program


def _top(ports: Sequence[PortDecl], dumps: Sequence[Dump]) -> str:
    """The module around the cluster: ports to and from MyHDL, and the state to files when ``dump`` rises."""
    kinds = {Direction.IN: "reg", Direction.OUT: "wire"}
    declared = "".join(f"{kinds[port.direction]} [{port.width - 1}:0] {port.name};\n" for port in ports)
    connected = ", ".join(f".{port.name}({port.name})" for port in ports)
    inward = ", ".join(["dump", *(port.name for port in ports if port.direction is Direction.IN)])
    outward = ", ".join(port.name for port in ports if port.direction is Direction.OUT)
    writes = "\n".join(f"    {dump.statement}" for dump in dumps)
    return f"""module {TOP};
reg dump;
{declared}{CLUSTER} dut ({connected});
initial begin
    $from_myhdl({inward});
    $to_myhdl({outward});
end
always @(posedge dump) begin
{writes}
end
endmodule
"""


def _run(program: Path, ports: Sequence[PortDecl], drivers: Drivers, folder: Path) -> None:
    vpi = vpi_module()
    program, folder = program.resolve(), folder.resolve()
    with fresh_simulator():
        signals: dict[str, Any] = {port.name: Signal(intbv(0)[port.width :]) for port in ports}
        for name in ("clk", "rst", "network_error", "memory_error"):
            signals[name] = Signal(bool(0))
        signals["dump"] = Signal(bool(0))

        def attach(given: Mapping[str, Any]) -> Any:
            verilog = myhdl.Cosimulation(f"vvp -M {vpi.parent} -m {vpi.stem} {program}", **given)
            return verilog, watch(given, drivers)

        here = Path.cwd()
        os.chdir(folder)
        try:
            simulate(signals, {}, drivers, attach)
        finally:
            os.chdir(here)


@block
def watch(signals: Mapping[str, Any], drivers: Drivers) -> Any:
    """Orders the dump shortly before the bench ends, and stops at an error of a link or a memory.  Not convertible."""
    clk, rst, dump = signals["clk"], signals["rst"], signals["dump"]
    network_error, memory_error = signals["network_error"], signals["memory_error"]

    @always(clk.posedge)
    def look() -> None:
        if not rst and (network_error or memory_error):
            what = "the network lost a word" if network_error else "a memory refused an address"
            raise ToolError(f"{what} in cycle {drivers.cycle}")
        dump.next = drivers.ends_within(DUMP_CYCLES)

    return look
