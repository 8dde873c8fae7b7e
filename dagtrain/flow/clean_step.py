"""`dagtrain clean`: results out of the working folder, and nothing else that lies there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dagtrain.files import OutputError
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import STAMP, Workspace
from hdl.errors import DagtrainError


@dataclass(frozen=True)
class Found:
    """Results that can be removed."""

    root: Path
    # step -> its folder
    folders: dict[str, Path]
    size_bytes: int

    @property
    def text(self) -> str:
        """All of them in a line."""
        return f"{', '.join(str(self.root / step) for step in self.folders)} ({self.size_bytes / 1e6:,.1f} MB)"


def found(workspace: Workspace, steps: Sequence[str]) -> Found:
    """The results of steps, of all without any named: folders that hold a step's stamp, or folders of such.

    Raises `DagtrainError` naming all steps that left none."""
    root = workspace.root
    owned = {path.name: path for path in sorted(root.glob("[!.]*")) if path.is_dir() and _is_result(path)}
    unknown = [step for step in steps if step not in owned]
    if unknown:
        known = f"there are results of {', '.join(owned)}" if owned else "no step has left anything there"
        raise DagtrainError(f"{root} holds no result of {', '.join(unknown)}", known)
    folders = {step: path for step, path in owned.items() if step in steps or not steps}
    return Found(root, folders, sum(_size(path) for path in folders.values()))


def run(found: Found) -> StepResult:
    """Remove what was found.  Raises `OutputError` for what can't be."""
    for path in found.folders.values():
        # a stamp that is gone first leaves no half result that vouches for itself
        try:
            (path / STAMP).unlink(missing_ok=True)
            shutil.rmtree(path)
        except OSError as error:
            raise OutputError(f"cannot remove {path}: {error.strerror or error}", "free it and try again") from error
    line = f"removed {found.text}" if found.folders else f"{found.root} holds no results"
    data = {"removed": sorted(found.folders), "size_bytes": found.size_bytes}
    return StepResult("clean", found.root, bool(found.folders), (line,), data)


def _is_result(folder: Path) -> bool:
    return (folder / STAMP).is_file() or any(folder.glob(f"*/{STAMP}"))


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
