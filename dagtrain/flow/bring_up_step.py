"""`dagtrain bring-up`: cluster file -> one folder an FPGA with which a board is tested before anything is trained."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from dagtrain.emission.board import FOLDER, board_project
from dagtrain.emission.device import DeviceDesign
from dagtrain.emission.dissector import write_dissector
from dagtrain.emission.project import lint_devices
from dagtrain.emission.selftest import SelfTest, design_selftest
from dagtrain.files import write_text
from dagtrain.flow.emit_step import library
from dagtrain.flow.records import BringUpRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.tools import require_tools
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, read_json
from dagtrain.host.designed import selftest_wiring
from dagtrain.host.wiring import ADDRESSES, wiring_text
from dagtrain.progress import Progress
from hdl.cache import cache_folder
from placement.problem.cluster import Cluster, ClusterDevice, read_cluster

# the folder, and the command that makes it
BRING_UP, COMMAND = "bring-up", "dagtrain bring-up --devices cluster.toml"


@dataclass(frozen=True, kw_only=True)
class BringUpOptions:
    """What the user said."""

    devices: Path
    # run `verilator --lint-only -Wall` over every top
    lint: bool = True


def run(workspace: Workspace, options: BringUpOptions, progress: Progress) -> StepResult:
    """Write the tops unless nothing changed."""
    cluster = read_cluster(options.devices)
    depends = {"cluster": hashlib.sha256(repr(cluster).encode()).hexdigest(), "lint": options.lint}
    done = workspace.run(BRING_UP, depends, lambda folder: _work(folder, cluster, options, progress))
    folder = workspace.folder(BRING_UP)
    meta = read_json(folder / "bring-up.json", COMMAND, BringUpRecord)
    lines = tuple(
        f"{device['name']} ({device['part']}): words to {device['links']} devices and back, {device['channels']} memory"
        f" channels of {device['words']:,} words, {device['values']} values in a report; "
        + (f"project {device['board']}" if device["board"] else f"no project of its board: {device['no_board'][0]}")
        for device in meta["devices"]
    )
    return StepResult(BRING_UP, folder, done, lines, meta)


def _work(folder: Path, cluster: Cluster, options: BringUpOptions, progress: Progress) -> None:
    if options.lint:
        require_tools("verilator")
    progress.begin(BRING_UP, len(cluster.devices))
    test = design_selftest(cluster, library())
    write_text(folder / ADDRESSES, wiring_text(selftest_wiring(test)))
    test.write(folder, [folder / ADDRESSES, write_dissector(folder / ADDRESSES.parent)])
    if options.lint:
        tops = {folder / device.name: device.top.name for device in test.devices}
        lint_devices(tops, cache_folder() / "lint", lambda name: progress.advance(note=f"{name} is clean"))
    meta = {"schema_version": SCHEMA_VERSION, "devices": _devices(folder, test, lint=options.lint)}
    write_text(folder / "bring-up.json", json.dumps(meta, indent=1) + "\n")
    progress.end()


def _devices(folder: Path, test: SelfTest, *, lint: bool) -> list[dict[str, object]]:
    return [
        {
            "name": device.name,
            "part": placed.board.part.name,
            "links": len(test.devices) - 1,
            "channels": len(device.memories),
            "words": max((memory.words for memory in device.memories), default=0),
            "values": len(test.values[device.name]),
            **_board(folder / device.name, test, device, placed, lint=lint),
        }
        for device, placed in zip(test.devices, test.cluster.devices, strict=True)
    ]


def _board(
    folder: Path, test: SelfTest, device: DeviceDesign, placed: ClusterDevice, *, lint: bool
) -> dict[str, object]:
    """The project of a device's board, written, or why there is none."""
    own = placed.board.clock_hz if device.name in test.cluster.periods else test.cluster.clock_hz
    project, reasons = board_project(folder, placed.board, own / 10**6, device, library(), lint=lint)
    return {"board": project and f"{device.name}/{FOLDER}/{project.name}", "no_board": reasons}
