"""`dagtrain timing`: the slowest paths of emitted modules and device tops (`hdl.costs.timing`), beside limits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.project import module_head
from dagtrain.files import write_text
from dagtrain.flow.cosim_step import load_emitted
from dagtrain.flow.records import TimingRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.tools import require_tools
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, read_json
from dagtrain.progress import Progress
from hdl.cache import cache_folder
from hdl.costs.cell_delays import CellDelays
from hdl.costs.timing import NET_PS, ModuleTiming, ReadyPath, map_module, ready_paths, time_module, time_netlist
from hdl.errors import DagtrainError

# modules that a path of ready signals may enter
READY_MODULES = 2
# modules and paths of a device that are printed although they keep the limits
SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class TimingOptions:
    """What the user said."""

    # Verilog files of one module each; none: what `dagtrain emit` left
    files: tuple[Path, ...] = ()
    # delay of every net
    net_ps: int = NET_PS
    # limits of the slowest path of a module, and of a device top
    module_ps: int = 4000
    top_ps: int = 4500


@dataclass(frozen=True)
class DeviceVerilog:
    """A device top to be timed: its text, and the modules that it instantiates by name."""

    name: str
    top: str
    text: str
    modules: Mapping[str, str]


@dataclass(frozen=True)
class DeviceTiming:
    """The top of a device."""

    name: str
    timing: ModuleTiming
    ready: tuple[ReadyPath, ...]


def run(workspace: Workspace, options: TimingOptions, progress: Progress) -> StepResult:
    """Time files, or the emitted devices unless nothing changed."""
    for name, value in (("--net-ps", options.net_ps), ("--module-ps", options.module_ps), ("--top-ps", options.top_ps)):
        if value < 0:
            raise DagtrainError(f"{name} must be at least 0, not {value}")
    require_tools("yosys")
    if options.files:
        found = _timed(dict(_module(path) for path in options.files), options.net_ps, progress)
        data = _as_data(found, {}, (), options)
        return StepResult("timing", workspace.folder("timing"), True, _table(data), data, passed=_passed(data))
    devices = [_device(device) for device in load_emitted(workspace).devices]
    depends = {"emit": workspace.fingerprint("emit"), **asdict(options)}
    done = workspace.run("timing", depends, lambda fresh: _work(fresh, devices, options, progress))
    kept = read_json(workspace.folder("timing") / "timing.json", "dagtrain timing", TimingRecord)
    return StepResult("timing", workspace.folder("timing"), done, _table(kept), kept, passed=_passed(kept))


def _module(path: Path) -> tuple[str, str]:
    """Name and text of the one module in a file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DagtrainError(f"{path} cannot be read as Verilog: {error}") from error
    names = re.findall(r"^\s*module\s+(\w+)", text, re.MULTILINE)
    if len(names) != 1:
        raise DagtrainError(f"{path} holds {len(names)} Verilog modules", "give files of one module each")
    return names[0], text


def _device(delivered: DeliveredDevice) -> DeviceVerilog:
    texts = {path.stem: path.read_text() for path in delivered.sources}
    top = delivered.manifest.top
    return DeviceVerilog(delivered.manifest.device, top, texts.pop(top), texts)


def _work(folder: Path, devices: Sequence[DeviceVerilog], options: TimingOptions, progress: Progress) -> None:
    texts = {name: text for device in devices for name, text in device.modules.items()}
    found = _timed(texts, options.net_ps, progress)
    delays = {timing.module: timing.delays for timing in found}
    progress.begin("devices", len(devices))
    tops = []
    for device in devices:
        tops.append(time_device(device, delays, options.net_ps))
        progress.advance(note=device.name)
    progress.end()
    users = {name: [device.name for device in devices if name in device.modules] for name in texts}
    data = _as_data(found, users, tops, options)
    write_text(folder / "timing.json", json.dumps(data, indent=1) + "\n")


def time_device(device: DeviceVerilog, delays: Mapping[str, CellDelays], net_ps: int) -> DeviceTiming:
    """The paths of a top between its modules, whose delays are known by name.  Raises `ToolError`, `ToolMissing`."""
    heads = "\n".join(module_head(text) for text in device.modules.values())
    netlist = map_module(device.text, device.top, blackboxes=heads)
    return DeviceTiming(device.name, time_netlist(netlist, net_ps, delays), ready_paths(netlist, delays))


def _timed(texts: Mapping[str, str], net_ps: int, progress: Progress) -> list[ModuleTiming]:
    """Every module, the slowest first; the longest texts are begun first."""
    progress.begin("timing", len(texts))
    order = sorted(texts, key=lambda name: -len(texts[name]))
    found = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [pool.submit(time_module, texts[name], name, net_ps, cache_folder() / "timing") for name in order]
        try:
            for job in jobs:
                found.append(job.result())
                progress.advance(note=found[-1].module)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    progress.end()
    return sorted(found, key=lambda timing: (-timing.worst.ps, timing.module))


# ------------------------------------------------------------------------------------------------- results


def _as_data(
    modules: Sequence[ModuleTiming],
    users: Mapping[str, Sequence[str]],
    devices: Sequence[DeviceTiming],
    options: TimingOptions,
) -> dict[str, Any]:
    slow = [timing for timing in modules if timing.worst.ps > options.module_ps]
    loose = [product for timing in modules for product in timing.loose_products]
    slow_tops = [device for device in devices if device.timing.worst.ps > options.top_ps]
    long_ready = [path for device in devices for path in device.ready if len(path.instances) > READY_MODULES]
    rules = [
        (f"modules take at most {options.module_ps / 1000:.1f} ns", len(slow), len(modules)),
        ("products stand between registers", len(loose), sum(len(timing.products) for timing in modules)),
    ]
    if devices:
        rules += [
            (f"device tops take at most {options.top_ps / 1000:.1f} ns", len(slow_tops), len(devices)),
            (
                f"paths of ready enter at most {READY_MODULES} modules",
                len(long_ready),
                sum(len(device.ready) for device in devices),
            ),
        ]
    return {
        "schema_version": SCHEMA_VERSION,
        "net_ps": options.net_ps,
        "module_limit_ps": options.module_ps,
        "top_limit_ps": options.top_ps,
        "ready_limit_modules": READY_MODULES,
        "rules": [{"rule": rule, "broken": broken, "of": total} for rule, broken, total in rules],
        "devices": [
            {
                "device": device.name,
                "paths": [asdict(path) for path in device.timing.paths],
                "ready": [asdict(path) for path in device.ready[: max(SHOWN, _broken(device))]],
            }
            for device in devices
        ],
        "modules": [
            {
                "module": timing.module,
                "devices": list(users.get(timing.module, ())),
                "paths": [asdict(path) for path in timing.paths],
                "products": [{**asdict(item), "registered": item.registered} for item in timing.products],
            }
            for timing in modules
        ],
    }


def _broken(device: DeviceTiming) -> int:
    return sum(len(path.instances) > READY_MODULES for path in device.ready)


def _passed(data: Mapping[str, Any]) -> bool:
    return not any(rule["broken"] for rule in data["rules"])


# --------------------------------------------------------------------------------------------------- text


def _table(data: Mapping[str, Any]) -> tuple[str, ...]:
    lines = [f"static timing at {data['net_ps']} ps a net, cells of Cyclone 10 GX"]
    for device in data["devices"]:
        lines += _device_lines(device, data)
    for shown, module in enumerate(data["modules"]):
        broken = module["paths"] and module["paths"][0]["ps"] > data["module_limit_ps"]
        if broken or shown < SHOWN or not all(item["registered"] for item in module["products"]):
            lines += _module_lines(module, data["module_limit_ps"])
    for rule in data["rules"]:
        verdict = f"FAIL in {rule['broken']:,} of {rule['of']:,}" if rule["broken"] else f"pass, all {rule['of']:,}"
        lines.append(f"{rule['rule']}: {verdict}")
    return tuple(lines)


def _device_lines(device: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    worst = device["paths"][0]["ps"] if device["paths"] else 0
    lines = [f"{device['device']}: {worst / 1000:.2f} ns with hierarchy kept"]
    over = [path for path in device["paths"] if path["ps"] > data["top_limit_ps"]]
    for path in over or device["paths"][:1]:
        lines += _path_lines(path)
    for path in device["ready"][:SHOWN]:
        lines.append(f"    ready enters {len(path['instances'])}: {path['start']} -> {' -> '.join(path['instances'])}")
    return lines


def _module_lines(module: Mapping[str, Any], limit_ps: int) -> list[str]:
    paths, products = module["paths"], module["products"]
    worst = paths[0]["ps"] if paths else 0
    loose = [item for item in products if not item["registered"]]
    verdict = "FAIL" if worst > limit_ps or loose else "pass"
    note = f", {len(loose)} of {len(products)} products not between registers" if products else ""
    lines = [f"{verdict} {module['module']}: {worst / 1000:.2f} ns{note}"]
    for path in [path for path in paths if path["ps"] > limit_ps] or paths[:1]:
        lines += _path_lines(path)
    return lines + [f"    {item['cell'].removeprefix('MISTRAL_')}: {item['touches']}" for item in loose]


def _path_lines(path: Mapping[str, Any]) -> list[str]:
    """Ends, and the cells with the time at each one's output; the bits of an adder are one."""
    shown, steps = [], path["steps"]
    for step, after in pairwise([*steps, {"cell": ""}]):
        if not step["cell"] == after["cell"] == "ALUT_ARITH":
            # without what Yosys appends to names of its own
            signal = re.sub(r"_MISTRAL_.*$", "~", step["signal"])
            shown.append(f"{step['cell']} {signal} {step['ps'] / 1000:.2f}")
    return [
        f"    {path['ps'] / 1000:.2f} ns, {path['levels']} levels: {path['start']} -> {path['end']}",
        f"        {' | '.join(shown) or 'straight'}",
    ]
