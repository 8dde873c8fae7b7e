"""`dagtrain timing`: the slowest path of Verilog modules, between registers (`hdl.timing`)."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagtrain.flow.result import StepResult
from dagtrain.flow.tools import require_tools
from dagtrain.flow.workspace import Workspace
from dagtrain.progress import Progress
from hdl.errors import DagtrainError
from hdl.simulate.design import cache_folder
from hdl.timing import NET_PS, ModuleTiming, TimingPath, time_module

# limits of a module's slowest path
MODULE_PS = 4000


@dataclass(frozen=True, kw_only=True)
class TimingOptions:
    """What the user said."""

    # Verilog files of one module each
    files: tuple[Path, ...]
    # delay of every net
    net_ps: int = NET_PS
    module_ps: int = MODULE_PS


def run(workspace: Workspace, options: TimingOptions, progress: Progress) -> StepResult:
    """Time the modules; whole results are kept by the digest of their text."""
    if options.net_ps < 0:
        raise DagtrainError(f"--net-ps must be at least 0, not {options.net_ps}")
    require_tools("yosys")
    texts = dict(_module(path) for path in options.files)
    found = worst_first(_timed(texts, options.net_ps, progress))
    broken = [item for item in found if item.worst.ps > options.module_ps or item.loose_products]
    data = {"net_ps": options.net_ps, "module_limit_ps": options.module_ps, "modules": [_as_data(it) for it in found]}
    lines = [line for timing in found for line in _lines(timing, options.module_ps)]
    lines.append(f"{len(found) - len(broken)} of {len(found)} modules keep the limits")
    return StepResult("timing", workspace.folder("timing"), True, tuple(lines), data, not broken)


def _module(path: Path) -> tuple[str, str]:
    """Name and text of the one module in a file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DagtrainError(f"{path} cannot be read as Verilog: {error}") from error
    names = re.findall(r"^\s*module\s+(\w+)", text, re.MULTILINE)
    if len(names) != 1:
        raise DagtrainError(f"{path} holds {len(names)} Verilog modules; give files of one module each")
    return names[0], text


def _timed(texts: Mapping[str, str], net_ps: int, progress: Progress) -> list[ModuleTiming]:
    progress.begin("timing", len(texts))
    found = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [pool.submit(time_module, text, name, net_ps, cache_folder() / "timing") for name, text in texts.items()]
        try:
            for job in jobs:
                found.append(job.result())
                progress.advance(note=found[-1].module)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    progress.end()
    return found


def _as_data(timing: ModuleTiming) -> dict[str, Any]:
    return {
        "module": timing.module,
        "paths": [dataclasses.asdict(path) for path in timing.paths],
        "products": [{**dataclasses.asdict(item), "registered": item.registered} for item in timing.products],
    }


def _lines(timing: ModuleTiming, limit_ps: int) -> list[str]:
    loose = timing.loose_products
    verdict = "pass" if timing.worst.ps <= limit_ps and not loose else "FAIL"
    products = f", {len(loose)} of {len(timing.products)} products not between registers" if timing.products else ""
    lines = [f"{verdict} {timing.module}: {timing.worst.ps / 1000:.2f} ns{products}"]
    shown = [path for path in timing.paths if path.ps > limit_ps] or timing.paths[:1]
    for path in shown:
        lines.append(f"    {path.ps / 1000:.2f} ns, {path.levels} levels: {path.start} -> {path.end}")
        lines.append(f"        {_way(path)}")
    lines += [f"    {item.cell.removeprefix('MISTRAL_')}: {item.touches}" for item in loose]
    return lines


def _way(path: TimingPath) -> str:
    """The cells, with the time at each one's output; the bits of an adder are one."""
    shown: list[str] = []
    for step, after in zip(path.steps, (*path.steps[1:], None), strict=True):
        if not (after and step.cell == after.cell == "ALUT_ARITH"):
            shown.append(f"{step.cell} {_short(step.signal)} {step.ps / 1000:.2f}")
    return " | ".join(shown) or "straight"


def _short(signal: str) -> str:
    """Without what Yosys appends to names of its own."""
    return re.sub(r"_MISTRAL_.*$", "~", signal)


def worst_first(timings: Sequence[ModuleTiming]) -> list[ModuleTiming]:
    """Slowest first."""
    return sorted(timings, key=lambda timing: (-timing.worst.ps, timing.module))
