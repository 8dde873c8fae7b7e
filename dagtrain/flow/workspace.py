"""The working folder: what each step left there, and whether it still holds.

Every step owns one folder ``<out>/<step>/``.  Its `stamp.json` fingerprints everything the step depended on:
options, input files, the results of earlier steps and the program itself.  A step whose fingerprint is unchanged
has nothing to do.  A step writes into a fresh folder that takes the place of the old one only when it is complete,
so Ctrl-C, a full disk or an error leaves the earlier result as it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagtrain
from dagtrain.files import replaced_folder, write_text
from hdl.errors import DagtrainError

SCHEMA_VERSION = 1


class MissingStep(DagtrainError):
    """A step needs the result of an earlier one that is not there."""


@dataclass(frozen=True)
class Workspace:
    """The folder in which the steps leave their results."""

    root: Path

    def folder(self, step: str) -> Path:
        """Where a step leaves its results."""
        return self.root / step

    def require(self, step: str, command: str) -> Path:
        """The folder of an earlier step; raises `MissingStep` naming the command to run first."""
        folder = self.folder(step)
        if not (folder / "stamp.json").exists():
            raise MissingStep(f"{folder} holds no result of `dagtrain {step}`; run `{command}` first")
        return folder

    def fingerprint(self, step: str) -> str:
        """The fingerprint under which a step last completed; "" if it never did."""
        stamp = self.folder(step) / "stamp.json"
        if not stamp.exists():
            return ""
        try:
            return str(json.loads(stamp.read_text())["fingerprint"])
        except (json.JSONDecodeError, KeyError, UnicodeDecodeError):
            return ""

    def run(self, step: str, depends_on: Mapping[str, Any], work: Callable[[Path], None]) -> bool:
        """Do a step's work into a fresh folder unless nothing changed; returns whether anything was done."""
        fingerprint = digest({"step": step, "program": program_hash(), **depends_on})
        if self.fingerprint(step) == fingerprint:
            return False
        with replaced_folder(self.folder(step)) as fresh:
            work(fresh)
            stamp = {"schema_version": SCHEMA_VERSION, "step": step, "fingerprint": fingerprint}
            write_text(fresh / "stamp.json", json.dumps(stamp, indent=1) + "\n")
        return True


def digest(value: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def program_hash() -> str:
    """A fingerprint of this program's own sources: another version does not trust earlier results."""
    root = Path(dagtrain.__file__).parent.parent
    found = hashlib.sha256()
    for package in ("dagtrain", "hdl", "importers", "placement"):
        for path in sorted((root / package).rglob("*.py")):
            found.update(str(path.relative_to(root)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def read_json(path: Path, command: str) -> Any:
    """Parsed JSON of a step's result; a damaged file names the command that makes it anew."""
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise MissingStep(f"{path} cannot be read ({error}); run `{command}` again") from error
