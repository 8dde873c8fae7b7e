"""`dagtrain self-test`: have boards that `dagtrain bring-up` was made for test themselves, and read what they found."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from dagtrain.files import write_text
from dagtrain.flow.bring_up_step import BRING_UP, COMMAND
from dagtrain.flow.hosting import host_settings
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace
from dagtrain.host.connection import Settings
from dagtrain.host.selftest import SelfTest, Verdict, summary
from dagtrain.host.wiring import ADDRESSES, Wiring, read_wiring
from dagtrain.progress import Progress
from hdl.errors import DagtrainError
from hdl.selftest.march import COUNT_BITS

SELF_TEST = "self-test"


@dataclass(frozen=True, kw_only=True)
class SelfTestOptions:
    """What the user said."""

    # where all frames go, ADDRESS[:PORT]; None: to each device's own address
    host: str | None = None
    # the address and port to take here
    bind: str | None = None
    # what a host knows of the cluster; None: that of `dagtrain bring-up`
    addresses: Path | None = None
    # over each link
    words: int = 1_000_000
    # of each memory channel that are marched through; None: all
    bursts: int | None = None
    # seconds in which every device must answer
    answer_seconds: float = 10.0


def run(workspace: Workspace, options: SelfTestOptions, progress: Progress) -> StepResult:
    """Test once."""
    problems = [
        f"--{name} must lie in 1 to {(1 << COUNT_BITS) - 2:,}, not {value:,}"
        for name, value in (("words", options.words), ("bursts", options.bursts))
        if value is not None and not 1 <= value < (1 << COUNT_BITS) - 1
    ]
    if problems:
        raise DagtrainError.listing("", problems)
    if options.addresses is None:
        workspace.require(BRING_UP, COMMAND)
    path = options.addresses or workspace.folder(BRING_UP) / ADDRESSES
    wiring = read_wiring(path)
    if not all(device.values for device in wiring.device):
        raise DagtrainError(f"{path} is of a cluster that trains", f"name the file that `{COMMAND}` left")
    _check_bursts(options.bursts, wiring)
    settings = host_settings(options.host, options.bind, wiring, options.answer_seconds)
    progress.begin(SELF_TEST)
    verdict = asyncio.run(_test(wiring, settings, options))
    progress.end()
    return _result(workspace.root / SELF_TEST, verdict)


def _check_bursts(bursts: int | None, wiring: Wiring) -> None:
    """Raises `DagtrainError` for more bursts than a memory has."""
    short = [
        f"{device.name} has {device.bursts:,}"
        for device in wiring.device
        if device.bursts and device.bursts < (bursts or 0)
    ]
    if short:
        raise DagtrainError(f"--bursts {bursts:,} are more than memory has: {', '.join(short)}", "leave it out for all")


async def _test(wiring: Wiring, settings: Settings, options: SelfTestOptions) -> Verdict:
    async with SelfTest(wiring, settings) as test:
        return await test.test(options.words, options.bursts)


def _result(folder: Path, verdict: Verdict) -> StepResult:
    meta = {
        "schema_version": SCHEMA_VERSION,
        "reports": verdict.reports,
        "injected": verdict.injected,
        "problems": list(verdict.problems),
    }
    write_text(folder / "self-test.json", json.dumps(meta, indent=1) + "\n")
    lines = (*summary(verdict), *(f"WRONG: {problem}" for problem in verdict.problems))
    return StepResult(SELF_TEST, folder, True, lines, meta, passed=not verdict.problems)
