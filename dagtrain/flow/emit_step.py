"""`dagtrain emit`: plan -> one folder of Verilog for each FPGA."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dagtrain.emission.board import board_project
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.device import DeviceDesign
from dagtrain.emission.dissector import write_dissector
from dagtrain.emission.ethernet import Ethernet
from dagtrain.emission.manifest import COMMAND as COMMAND
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.project import lint_devices, used_modules, write_cluster
from dagtrain.files import write_text
from dagtrain.flow.placed import load_placed_graph, load_plan, load_plan_cluster
from dagtrain.flow.records import EmitRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.tools import require_tools
from dagtrain.flow.trained import begun_from, weights_digest
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.ir import Graph
from dagtrain.host.designed import designed_wiring
from dagtrain.host.wiring import ADDRESSES, wiring_text
from dagtrain.planning.choices import (
    Choice,
    Pace,
    chosen_dram,
    chosen_graph,
    plan_choices,
    plan_pace,
    planned_channels,
)
from dagtrain.progress import Progress
from dagtrain.training.emulator import Emulator
from hdl.cache import cache_folder
from hdl.errors import DagtrainError
from placement.problem.cluster import Cluster
from placement.problem.plan import Plan

# the checkpoint that the design begins from, in the step's folder
BEGUN = "begun.npz"
# how state comes in and goes out
STATE_ACCESS = ("none", "ports")
# how the host is reached
PORTS, NETWORK = HOST_ACCESS = ("ports", "network")


@dataclass(frozen=True, kw_only=True)
class EmitOptions:
    """What the user said."""

    # run `verilator --lint-only -Wall` over every top
    lint: bool = True
    # a checkpoint to begin from, or the folder that `dagtrain train` left; None: the weights of the model
    weights: Path | None = None
    # "ports": devices have streams by which a host loads and dumps state; "none": it stands in images
    state_access: str = STATE_ACCESS[0]
    # "network": the host's streams are streams of Ethernet ports; "ports": they are ports of a device; None: "network"
    # where there is one that it speaks
    host: str | None = None

    def __post_init__(self) -> None:
        if self.host not in (None, *HOST_ACCESS):
            raise DagtrainError(f"--host {self.host} is unknown", f"choose one of {', '.join(HOST_ACCESS)}")
        if self.state_access not in STATE_ACCESS:
            raise DagtrainError(
                f"--state-access {self.state_access} is unknown", f"choose one of {', '.join(STATE_ACCESS)}"
            )


def run(workspace: Workspace, options: EmitOptions, progress: Progress) -> StepResult:
    """Emit unless nothing changed."""
    graph = load_placed_graph(workspace)
    if options.weights is not None:
        graph = begun_from(graph, options.weights)
    plan, cluster = load_plan(workspace), load_plan_cluster(workspace)
    options = replace(options, host=host_access(options.host, cluster))
    depends: dict[str, Any] = {
        "import": workspace.fingerprint("import"),
        "place": workspace.fingerprint("place"),
        "lint": options.lint,
    }
    if options.weights is not None:
        depends["weights"] = weights_digest(graph)
    if options.state_access != STATE_ACCESS[0]:
        depends["state_access"] = options.state_access
    if options.host != PORTS:
        depends["host"] = options.host
    done = workspace.run("emit", depends, lambda folder: _work(folder, graph, plan, cluster, options, progress))
    folder = workspace.folder("emit")
    meta = read_json(folder / "emit.json", COMMAND, EmitRecord)
    lines = tuple(
        f"{device['name']}: {device['nodes']} nodes, {device['modules']} distinct modules, "
        f"{device['egress']} streams out, {device['ingress']} in"
        + (f"; project of its board {device['board']}" if "board" in device else "")
        for device in meta["devices"]
    )
    return StepResult("emit", folder, done, lines, meta)


def load_emitted_graph(workspace: Workspace) -> Graph:
    """The placed graph with what the emitted design begins with."""
    folder, graph = workspace.require("emit", COMMAND), load_placed_graph(workspace)
    return begun_from(graph, folder / BEGUN) if (folder / BEGUN).is_file() else graph


def library() -> ModuleLibrary:
    """The modules of a design, kept on disk between runs."""
    return ModuleLibrary(cache_folder() / "modules")


def host_access(chosen: str | None, cluster: Cluster) -> str:
    """How the host is reached.  Raises `DagtrainError` where there is no network that it could speak on."""
    framed = cluster.network.frames is not None
    if chosen == NETWORK and not framed:
        raise DagtrainError(
            "--host network: the cluster file says network.kind = 'words', which no host speaks",
            'write network.kind = "ethernet", or leave --host out',
        )
    return chosen or (NETWORK if framed else PORTS)


def plan_digest(plan: Plan) -> int:
    """The first 32 bits of a plan's SHA-256, by which devices know who trains with the same one."""
    return int.from_bytes(hashlib.sha256(plan.to_json().encode()).digest()[:4], "big")


def planned_design(
    graph: Graph,
    plan: Plan,
    cluster: Cluster,
    modules: ModuleLibrary,
    *,
    state_access: bool = False,
    host: str | None = None,
) -> ClusterDesign:
    """The design of a plan: every node folded as the plan says, its memory and itself where it says; with streams by
    which state is loaded and dumped, if so chosen, and the ``host`` of `HOST_ACCESS` (as in `EmitOptions`)."""
    placed = {item.item: item.device for item in plan.items}
    devices = [device.device for device in plan.devices]
    choices = plan_choices(plan)
    channels = planned_channels(chosen_graph(graph, choices), plan)
    ethernet = None
    if cluster.network.frames is not None:
        ethernet = Ethernet.of(cluster, plan_digest(plan), host=host_access(host, cluster) == NETWORK)
    return chosen_design(
        graph, placed, choices, plan_pace(plan), devices, cluster, modules, channels, state_access, ethernet
    )


def chosen_design(
    graph: Graph,
    placed: Mapping[str, str],
    choices: Mapping[str, Choice],
    pace: Pace,
    devices: Sequence[str],
    cluster: Cluster,
    modules: ModuleLibrary,
    channels: Mapping[str, int] | None = None,
    state_access: bool = False,
    ethernet: Ethernet | None = None,
) -> ClusterDesign:
    """The design of nodes where they are ``placed``, each built as chosen for it, what lies in DRAM in its channel."""
    graph = chosen_graph(graph, choices)
    return design_cluster(
        graph,
        placed,
        devices,
        pace.interval,
        modules,
        word_bits=cluster.link_word_bits,
        network_cycles=cluster.network_cycles,
        dram=replace(chosen_dram(graph, choices, cluster, pace.interval), channel_of=channels or {}),
        folds=pace.folds,
        parts=pace.parts,
        # devices that hold nothing may pass words on
        periods={
            device: period
            for device, period in cluster.periods.items()
            if cluster.routing is not None or device in set(placed.values())
        },
        state_access=state_access,
        ethernet=ethernet,
        pooled=cluster.network.pooled,
        routing=cluster.routing,
    )


def _work(folder: Path, graph: Graph, plan: Plan, cluster: Cluster, options: EmitOptions, progress: Progress) -> None:
    if options.lint:
        require_tools("verilator")
    modules = library()
    progress.begin("emit", len(plan.devices) + 1)
    with_ports = options.state_access != STATE_ACCESS[0]
    design = planned_design(graph, plan, cluster, modules, state_access=with_ports, host=options.host)
    progress.advance(note=f"{len(list(modules))} distinct modules")
    parts = {use.device: use.part for use in plan.devices}
    write_cluster(folder, design, modules, parts, plan.clock_hz / 1e6, network_files(folder, design))
    if options.lint:
        tops = {folder / device.name: device.top.name for device in design.devices}
        lint_devices(tops, cache_folder() / "lint", lambda name: progress.advance(note=f"{name} is clean"))
    boards = _boards(folder, design, cluster, modules, lint=options.lint)
    if options.weights is not None:
        Emulator(graph).save(folder / BEGUN)
    summaries = [
        _summary(device.name, len(device.nodes), len(used_modules(device.top, modules)), device)
        | ({"board": boards[device.name]} if device.name in boards else {})
        for device in design.devices
    ]
    meta: Mapping[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "cycles_per_frame": plan.cycles_per_frame,
        "needed_staleness": design.needed_staleness,
        "devices": summaries,
    }
    write_text(folder / "emit.json", json.dumps(meta, indent=1) + "\n")
    progress.end()


def _boards(
    folder: Path, design: ClusterDesign, cluster: Cluster, modules: ModuleLibrary, *, lint: bool
) -> dict[str, str]:
    """Projects of boards, by device, where all around a top is known (`dagtrain bring-up` says why it is not)."""
    placed, found = {device.name: device.board for device in cluster.devices}, {}
    for device in design.devices:
        board = placed[device.name]
        own = board.clock_hz if device.name in design.periods else cluster.clock_hz
        project, _ = board_project(folder / device.name, board, own / 10**6, device, modules, lint=lint)
        if project is not None:
            found[device.name] = str(project.relative_to(folder))
    return found


def network_files(folder: Path, design: ClusterDesign) -> list[Path]:
    """Write what the host and Wireshark are told of the Ethernet, if there is one."""
    if design.ethernet is None:
        return []
    network = folder / ADDRESSES.parent
    if any(device.name == network.name for device in design.devices):
        raise DagtrainError(
            f"a device is called {network.name!r}, as the folder of what the host is told",
            "give it another name in the cluster file",
        )
    network.mkdir()
    found = [write_dissector(network)]
    if design.ethernet.host is not None:
        write_text(folder / ADDRESSES, wiring_text(designed_wiring(design)))
        found.append(folder / ADDRESSES)
    return found


def _summary(name: str, nodes: int, modules: int, device: DeviceDesign) -> dict[str, object]:
    return {
        "name": name,
        "nodes": nodes,
        "modules": modules,
        "egress": len(device.egress),
        "ingress": len(device.ingress),
    }
