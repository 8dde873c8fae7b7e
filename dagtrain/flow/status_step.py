"""`dagtrain status`: what the steps left, whether it holds, and what comes next."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from dagtrain.flow.records import ImportRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import COMMANDS, STAMP, Standing, State, Workspace, read_json

# the steps that lead from a model to what trains it, in order; others are looked at where they were run
MAIN = ("import", "place", "emit", "cosim", "train", "report")


def run(workspace: Workspace) -> StepResult:
    """How every step's result stands; writes nothing."""
    further = [step for step in workspace.steps() if step not in MAIN]
    found = [_looked_at(workspace, step) for step in (*MAIN, *further)]
    following = next((one.command for one in found if one.step in MAIN and one.state is not State.HOLDS), "")
    rows = [("step", "result", "made", "remark")]
    rows += [(one.step, one.state.value, _made(workspace, one), one.why) for one in found]
    lines = (f"next: {following}" if following else "all steps hold",)
    data = {
        "folder": str(workspace.root),
        "steps": [
            {"step": one.step, "state": one.state.value, "why": one.why, "command": one.command} for one in found
        ],
        "next": following,
    }
    return StepResult("status", workspace.root, False, lines, data, table=rows)


def _looked_at(workspace: Workspace, step: str) -> Standing:
    """How a result stands; an import also against the file that was imported."""
    standing = workspace.standing(step)
    if step != "import" or standing.state is not State.HOLDS:
        return standing
    # readers of models come with it
    from dagtrain.flow.import_step import model_digest

    meta = read_json(workspace.folder(step) / "import.json", COMMANDS[step], ImportRecord)
    model = Path(meta["source"]["path"])
    try:
        changed = model_digest(model) != meta["source"]["model"]
    except OSError as error:
        return Standing(step, State.HOLDS, f"{model} cannot be read any more: {error.strerror}", COMMANDS[step])
    if changed:
        return Standing(step, State.OUTDATED, f"{model} has changed since", f"dagtrain import {model}")
    return standing


def _made(workspace: Workspace, standing: Standing) -> str:
    if standing.state is State.ABSENT:
        return ""
    seconds = os.stat(workspace.folder(standing.step) / STAMP).st_mtime
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
