"""A cluster in Verilator with a host at its switch that nobody here knows: it trains for as long as that one likes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dagtrain.cosim.bench import add_cluster, bench_modules, heard, mac_ports, results_of
from dagtrain.cosim.cluster import bench_clocks, write_network, write_sources
from dagtrain.cosim.network import SwitchHost
from dagtrain.cosim.outermost import outermost_text
from dagtrain.cosim.parts import BENCH, CLUSTER, Bench, BenchOptions
from dagtrain.cosim.simulator import RunLog, Simulator, build, execute
from dagtrain.cosim.watch import Watch
from dagtrain.emission.assembly import Assembly
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from hdl.errors import DagtrainError

# batches, and cycles in which nothing moves, after which a bench would end: a host that works never gets there, and one
# that rests may rest
ENDLESS_BATCHES, ENDLESS_CYCLES = 1 << 16, (1 << 31) - 1


def build_served(
    delivered: Delivered,
    batch: int,
    library: ModuleLibrary,
    folder: Path,
    network: NetworkModel,
    seed: int,
    *,
    optimise: bool = True,
    memory: MemoryModel | None = None,
) -> Path:
    """The program that simulates a cluster in ``folder``, made there.  Raises `DagtrainError` where its host does not
    speak over the network."""
    ports = [host.node for device in delivered.devices for host in device.manifest.host_ports]
    macs = mac_ports(delivered.devices)
    if ports or not macs:
        raise DagtrainError(
            f"no host on a network feeds this cluster: {', '.join(ports) or 'its words'} go through ports of their own",
            'write network.kind = "ethernet" in the cluster file, and emit with --host network',
        )
    options = BenchOptions(
        frames=ENDLESS_BATCHES * batch,
        batch=batch,
        network=network,
        memory=memory or MemoryModel(seed=seed),
        host_stall_256=0,
        seed=seed,
        stuck_cycles=ENDLESS_CYCLES,
    )
    assembly = Assembly(CLUSTER, "All FPGAs with their network")
    add_cluster(assembly, delivered.devices, library, options, folder)
    # peers that are lost, such as a host that went away, are no end: the next one resets
    assembly.assigns = [pair if pair[0] != "network_error" else (pair[0], "1'b0") for pair in assembly.assigns]
    recorded = {s.node: heard(device, s, options) for device in delivered.devices for s in results_of(device)}
    pins = [port for mac in macs.values() for port in mac.ports]
    text = outermost_text(delivered.devices, recorded, (), (), options, Watch(), pins)
    texts = {CLUSTER: assembly.module().to_verilog(), BENCH: text}
    modules = bench_modules(assembly, delivered.devices)
    bench = Bench(texts, {}, recorded, (), modules, (), macs=tuple(macs.values()))
    sources, clocks = write_sources(delivered, bench, library, folder), bench_clocks(delivered, seed)
    return build(folder / "sim", sources, Simulator.VERILATOR, optimise, clocks, (), bench.macs).resolve()


def serve_cluster(
    program: Path,
    delivered: Delivered,
    folder: Path,
    network: NetworkModel,
    host: SwitchHost,
    on_beats: Callable[[int], None],
) -> RunLog:
    """Run such a program until the host ends it; ``on_beats`` gets the number of beats of metrics that have left.

    Raises `ToolError` where the simulation ends by itself."""
    told = write_network(folder, delivered, network)
    return execute(program, folder, on_beats, arguments=told, host=host)
