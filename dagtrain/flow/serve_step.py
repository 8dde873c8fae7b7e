"""`dagtrain serve`: the emitted Verilog of all FPGAs, simulated, behind a UDP socket of this machine.

Whatever drives FPGAs on a network drives it unchanged: `dagtrain drive --host 127.0.0.1:PORT`.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagtrain.cosim.cluster import port_names
from dagtrain.cosim.network import read_counts
from dagtrain.cosim.serve import build_served, serve_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.files import write_text
from dagtrain.flow.cosim_network import CAPTURE, NetworkOptions, capture_frames, pair_meta
from dagtrain.flow.cosim_step import load_emitted
from dagtrain.flow.emit_step import COMMAND, library
from dagtrain.flow.placed import load_plan
from dagtrain.flow.result import Interrupted, StepResult
from dagtrain.flow.tools import SIMULATORS, require_tools
from dagtrain.flow.workspace import SCHEMA_VERSION, SERVED, Workspace
from dagtrain.host.bridge import Bridge
from dagtrain.host.wiring import ADDRESSES, read_wiring
from dagtrain.progress import Progress
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import UDP_PORT

# where it is found: on this machine, and from nowhere else
ADDRESS = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class ServeOptions(NetworkOptions):
    """What the user said."""

    # UDP port; 0: any
    port: int = UDP_PORT
    # of the switch
    latency_cycles: int = 200
    seed: int = 1
    # whether the simulation is compiled for long runs
    optimise: bool = True


def run(workspace: Workspace, options: ServeOptions, progress: Progress) -> StepResult:
    """Simulate until Ctrl-C."""
    problems = options.network_problems()
    if not 0 <= options.port < 1 << 16:
        problems.append(f"--port must lie in 0 to 65535, not {options.port}")
    if options.latency_cycles < 1:
        problems.append(f"--latency must be at least 1 cycle, not {options.latency_cycles}")
    if problems:
        raise DagtrainError.listing("serve", problems)
    workspace.require("emit", COMMAND)
    delivered, plan = load_emitted(workspace), load_plan(workspace)
    network = NetworkModel(
        latency_cycles=options.latency_cycles,
        stall_256=0,
        seed=options.seed,
        resets=options.resets(delivered),
        faults=options.faults(delivered),
        capture=options.pcap,
    )
    wiring = read_wiring(workspace.folder("emit") / ADDRESSES)
    require_tools(*SIMULATORS["verilator"])
    folder = workspace.root / SERVED
    bench = folder / "bench"
    bridge = Bridge(wiring, (ADDRESS, options.port))
    try:
        progress.begin("build for verilator", 1)
        program = build_served(
            delivered, wiring.batch, library(), bench, network, options.seed, optimise=options.optimise
        )
        progress.end()
        progress.begin(f"serve at {ADDRESS}:{bridge.bound[1]}")
        with _stopped_by_interrupt(bridge):
            log = serve_cluster(program, delivered, bench, network, bridge, _Beats(progress, wiring.batch))
    finally:
        bridge.close()
    if options.pcap:
        capture_frames(folder, bench, delivered, plan.clock_hz)
    return _result(folder, bench, port_names(delivered), log.cycles, bridge, options)


@dataclass
class _Beats:
    """Tells of metrics that have left."""

    progress: Progress
    batch: int
    seen: int = 0

    def __call__(self, beats: int) -> None:
        self.progress.advance(beats - self.seen, f"{beats:,} beats of metrics sent to the host")
        self.seen = beats


@contextmanager
def _stopped_by_interrupt(bridge: Bridge) -> Iterator[None]:
    """Ctrl-C ends the simulation, a second one at once."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        bridge.stop()

    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:
        # not in the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; `dagtrain serve` begins anew") from None
    finally:
        signal.signal(signal.SIGINT, before)


def _result(
    folder: Path, bench: Path, names: list[str], cycles: int, bridge: Bridge, options: ServeOptions
) -> StepResult:
    pairs: list[dict[str, Any]] = [pair_meta(one, names) for one in read_counts(bench)]
    meta = {
        "schema_version": SCHEMA_VERSION,
        "cycles": cycles,
        "from_host": bridge.entered,
        "to_host": bridge.left,
        "dropped": {cause.value: count for cause, count in bridge.drops.items()},
        "pairs": pairs,
    }
    write_text(folder / "serve.json", json.dumps(meta, indent=1) + "\n")
    again = sum(pair["retransmitted"] for pair in pairs)
    lines = [
        f"{cycles:,} cycles; {bridge.entered:,} frames came from the host, {bridge.left:,} went there; of "
        f"{sum(pair['frames'] for pair in pairs):,} in the network {again:,} were sent again",
        *([f"{folder / CAPTURE} (frames of all ports)"] if options.pcap else []),
    ]
    return StepResult("serve", folder, True, tuple(lines), meta)
