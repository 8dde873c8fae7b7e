"""The working folder: what each step left there, and whether it still holds.

Every step owns one folder ``<out>/<step>/``.  Its `stamp.json` fingerprints everything the step depended on:
options, input files, the results of earlier steps and the program itself.  A step whose fingerprint is unchanged
has nothing to do.  A step writes into a fresh folder that takes the place of the old one only when it is complete,
so Ctrl-C, a full disk or an error leaves the earlier result as it was.

The stamp also says which results of earlier steps the work rests on.  When one of those has been made anew since, the
result no longer holds: steps that need it ask for it to be made again instead of mixing two models.
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
# steps whose results others rest on
STEPS = ("import", "place", "emit", "cosim", "train")


class MissingStep(DagtrainError):
    """A step needs the result of an earlier one that is not there, does not hold any more, or is damaged."""


@dataclass(frozen=True)
class Workspace:
    """The folder in which the steps leave their results."""

    root: Path

    def folder(self, step: str) -> Path:
        """Where a step leaves its results."""
        return self.root / step

    def require(self, step: str, command: str) -> Path:
        """The folder of an earlier step's result; raises `MissingStep` naming the command to run first."""
        folder = self.folder(step)
        if not self.fingerprint(step):
            raise MissingStep(f"{folder} holds no result of `dagtrain {step}`; run `{command}` first")
        renewed = self._renewed(step)
        if renewed:
            raise MissingStep(
                f"{folder} is of an earlier `dagtrain {renewed}`, which has been run anew since; run `{command}` again"
            )
        return folder

    def holds(self, step: str) -> bool:
        """Whether a step left a result and nothing that it rests on has been made anew since."""
        return bool(self.fingerprint(step)) and not self._renewed(step)

    def fingerprint(self, step: str) -> str:
        """The fingerprint under which a step last completed; "" if it never did."""
        return str(self._stamp(step).get("fingerprint", ""))

    def run(self, step: str, depends_on: Mapping[str, Any], work: Callable[[Path], None]) -> bool:
        """Do a step's work into a fresh folder unless nothing changed; returns whether anything was done.

        ``depends_on`` holds the fingerprints of earlier steps under the steps' names."""
        if self.unchanged(step, depends_on):
            return False
        self.leave(step, depends_on, work)
        return True

    def unchanged(self, step: str, depends_on: Mapping[str, Any]) -> bool:
        """Whether a step's result is there and was made from the same."""
        return self.fingerprint(step) == _fingerprint(step, depends_on)

    def leave(self, step: str, depends_on: Mapping[str, Any], work: Callable[[Path], None]) -> None:
        """Have a step's result written, whole, in the place of the one before."""
        fingerprint = _fingerprint(step, depends_on)
        earlier = {name: value for name, value in depends_on.items() if name in STEPS}
        with replaced_folder(self.folder(step)) as fresh:
            work(fresh)
            stamp = {"schema_version": SCHEMA_VERSION, "step": step, "fingerprint": fingerprint, "earlier": earlier}
            write_text(fresh / "stamp.json", json.dumps(stamp, indent=1) + "\n")

    def _stamp(self, step: str) -> dict[str, Any]:
        """The stamp of a step's result; empty where there is none that can be read."""
        try:
            stamp = json.loads((self.folder(step) / "stamp.json").read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def _renewed(self, step: str) -> str:
        """The first step that a result rests on, at any distance, and that has been made anew since; "" if none."""
        for name, fingerprint in self._stamp(step).get("earlier", {}).items():
            if self.fingerprint(name) != fingerprint:
                return str(name)
            further = self._renewed(name)
            if further:
                return further
        return ""


def _fingerprint(step: str, depends_on: Mapping[str, Any]) -> str:
    return digest({"step": step, "program": program_hash(), **depends_on})


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


class Record(dict[str, Any]):
    """An object of a step's result file; a key that is not there names the file and the command that makes it anew."""

    def __init__(self, values: Mapping[str, Any], path: Path, command: str) -> None:
        super().__init__(values)
        self._path, self._command = path, command

    def __missing__(self, key: str) -> Any:
        raise MissingStep(f"{self._path} has no field {key!r}; run `{self._command}` again")


def read_json(path: Path, command: str) -> Any:
    """The JSON object of a step's result; a damaged file, or one of another version, names the command to run again."""
    try:
        document = json.loads(path.read_text(), object_hook=lambda values: Record(values, path, command))
    except OSError as error:
        raise MissingStep(f"{path} cannot be read: {error.strerror}; run `{command}` again") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise MissingStep(f"{path} is damaged ({error}); run `{command}` again") from error
    if not isinstance(document, Record):
        raise MissingStep(f"{path} is damaged (no JSON object); run `{command}` again")
    if document["schema_version"] != SCHEMA_VERSION:
        raise MissingStep(
            f"{path} has schema version {document['schema_version']}, this version reads {SCHEMA_VERSION}; "
            f"run `{command}` again"
        )
    return document
