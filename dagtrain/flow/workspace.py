"""The working folder: what each step left there, and whether it still holds.

Every step owns one folder ``<out>/<step>/``.  Its `stamp.json` fingerprints everything the step depended on:
options, input files, the results of earlier steps and the program itself.  A step whose inputs are unchanged
has nothing to do.  A step writes into a fresh folder that takes the place of the old one only when it is complete,
so Ctrl-C, a full disk or an error leaves the earlier result as it was.

The stamp vouches for the result: it holds the SHA-256 of every file, and whoever reads a result has all of it
checked first, and all that it rests on.  A file that was changed, removed or added is an error that names it
and the command that makes the result again; that command takes a spoilt result for none.

The stamp also says which results of earlier steps the work rests on.  When one of those has been made anew since, the
result no longer holds: steps that need it ask for it to be made again instead of mixing two models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, cast

import dagtrain
from dagtrain.files import replaced_folder, write_text
from hdl.errors import DagtrainError, Problem
from hdl.records import first, misfits, parse_json, shown

T = TypeVar("T")

SCHEMA_VERSION = 1
# the folder of what is served, in the working folder, in which others work meanwhile
SERVED = "serve"
# of stamps
STAMP_SCHEMA = 2
STAMP = "stamp.json"
# steps whose results others rest on, and the commands that make them
COMMANDS = {
    "import": "dagtrain import MODEL.onnx",
    "place": "dagtrain place --devices CLUSTER.toml",
    "emit": "dagtrain emit",
    "cosim": "dagtrain cosim",
    "simulate": "dagtrain simulate",
    "debug": "dagtrain debug",
    "timing": "dagtrain timing",
    "train": "dagtrain train",
    "profile": "dagtrain profile",
}
STEPS = tuple(COMMANDS)
# in place of a command where a program calls the steps
BY_PROGRAM = "a program that uses dagtrain.api"
# of a stamp, what doesn't tell which result it is
NOT_TOLD = frozenset({"fingerprint", "command"})
# step -> folder of working files for which its stamp does not vouch
SCRATCH = {"cosim": "bench", "simulate": "bench", "debug": "bench"}
# what Quartus leaves in emit/<device>/, which nothing here reads: folders, and the layout of its windows
QUARTUS_FOLDERS = frozenset({"db", "dni", "incremental_db", "output_files", "qdb", "tmp-clearbox"})
QUARTUS_SUFFIX = ".qws"
# spoilt files of a result that a message names
SHOWN_FILES = 6


class MissingStep(DagtrainError):
    """A step needs the result of an earlier one that is not there, does not hold any more, or is damaged."""


class State(StrEnum):
    """How the result of a step stands."""

    ABSENT = "not there"
    HOLDS = "holds"
    OUTDATED = "outdated"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Standing:
    """How the result of a step stands, and why."""

    step: str
    state: State
    # what came in between; empty where it holds or is not there
    why: str
    # what makes it, or makes it again
    command: str


@dataclass(frozen=True)
class Workspace:
    """The folder in which the steps leave their results."""

    root: Path
    # what makes the results that are left, as a user types it
    command: str = BY_PROGRAM
    # step and fingerprint -> what is wrong with its files; looked at once
    _looked: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    def folder(self, step: str) -> Path:
        """Where a step leaves its results."""
        return self.root / step

    def require(self, step: str, command: str) -> Path:
        """The folder of an earlier step's result, every file of it and of what it rests on as it was written.

        Raises `MissingStep` naming what is wrong and the command to run."""
        folder = self.folder(step)
        if not self.fingerprint(step):
            raise MissingStep(f"{folder} holds no result of `dagtrain {step}`", f"run `{command}` first")
        renewed = self._renewed(step)
        if renewed:
            raise MissingStep(
                f"{folder} is of an earlier `dagtrain {renewed}`, which has been run anew since",
                f"run `{command}` again",
            )
        spoilt = [problem for name in (*self._rests_on(step), step) if (problem := self._spoilt(name))]
        if spoilt:
            raise MissingStep.listing("", spoilt)
        return folder

    def standing(self, step: str) -> Standing:
        """How a step's result stands: `require` gives one that holds."""
        command = COMMANDS.get(step, f"dagtrain {step}")
        if not self.fingerprint(step):
            return Standing(step, State.ABSENT, "", command)
        renewed = self._renewed(step)
        if renewed:
            return Standing(step, State.OUTDATED, f"`dagtrain {renewed}` has been run anew since", command)
        for name in (*self._rests_on(step), step):
            wrong = self._wrong_files(name)
            if wrong:
                more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
                return Standing(step, State.DAMAGED, wrong[0].removeprefix(f"{self.root}/") + more, command)
        return Standing(step, State.HOLDS, "", command)

    def steps(self) -> list[str]:
        """The steps that left results, those that others rest on first."""
        stamped = {path.parent.relative_to(self.root).as_posix() for path in self.root.glob(f"[!.]*/{STAMP}")}
        return [step for step in STEPS if step in stamped] + sorted(stamped - set(STEPS))

    def holds(self, step: str) -> bool:
        """Whether a step left a result and nothing that it rests on has been made anew since."""
        return bool(self.fingerprint(step)) and not self._renewed(step)

    def intact(self, step: str) -> bool:
        """Whether a step left a result and its files are as it wrote them."""
        return bool(self.fingerprint(step)) and not self._wrong_files(step)

    def made_from(self, step: str, earlier: str) -> bool:
        """Whether a step's result was made from that of an earlier one."""
        return earlier in self._stamp(step).get("earlier", {})

    def fingerprint(self, step: str) -> str:
        """The fingerprint of what a step last left, and of what from; "" if it never completed."""
        return str(self._stamp(step).get("fingerprint", ""))

    def made_by(self, step: str) -> str:
        """The command that left a step's result; "" if it never completed."""
        return str(self._stamp(step).get("command", ""))

    def run(self, step: str, depends_on: Mapping[str, Any], work: Callable[[Path], None]) -> bool:
        """Do a step's work into a fresh folder unless nothing changed; returns whether anything was done.

        ``depends_on`` holds the fingerprints of earlier steps under the steps' names."""
        if self.unchanged(step, depends_on):
            return False
        self.leave(step, depends_on, work)
        return True

    def unchanged(self, step: str, depends_on: Mapping[str, Any]) -> bool:
        """Whether a step's result is there, was made from the same, and is as it was written."""
        return self._stamp(step).get("inputs") == _inputs(step, depends_on) and self.intact(step)

    def leave(self, step: str, depends_on: Mapping[str, Any], work: Callable[[Path], None]) -> None:
        """Have a step's result written, whole, in the place of the one before."""
        inputs = _inputs(step, depends_on)
        earlier = {name: value for name, value in depends_on.items() if name in STEPS}
        with replaced_folder(self.folder(step)) as fresh:
            work(fresh)
            files = file_digests(step, fresh)
            stamp = {"schema_version": STAMP_SCHEMA, "step": step, "inputs": inputs, "earlier": earlier, "files": files}
            stamp |= {"fingerprint": stamp_fingerprint(stamp), "command": self.command}
            write_text(fresh / STAMP, json.dumps(stamp, indent=1) + "\n")
        self._looked.clear()

    def _stamp(self, step: str) -> dict[str, Any]:
        """The stamp of a step's result; empty where there is none that can be read and fits itself."""
        try:
            stamp = json.loads((self.folder(step) / STAMP).read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(stamp, dict) or stamp.get("schema_version") != STAMP_SCHEMA:
            return {}
        tables = [stamp.get("files"), stamp.get("earlier")]
        if not all(isinstance(table, dict) for table in tables) or stamp.get("fingerprint") != stamp_fingerprint(stamp):
            return {}
        return stamp

    def _renewed(self, step: str) -> str:
        """The first step that a result rests on, at any distance, and that has been made anew since; "" if none."""
        for name, fingerprint in self._stamp(step).get("earlier", {}).items():
            if self.fingerprint(name) != fingerprint:
                return str(name)
            further = self._renewed(name)
            if further:
                return further
        return ""

    def _rests_on(self, step: str) -> list[str]:
        """The steps that a result rests on, at any distance, earliest first."""
        direct = self._stamp(step).get("earlier", {})
        found = {name for one in direct for name in (*self._rests_on(one), one)}
        return [name for name in STEPS if name in found]

    def _spoilt(self, step: str) -> Problem | None:
        """What to say of a result whose files are not as they were written; None if they are."""
        wrong = self._wrong_files(step)
        if not wrong:
            return None
        more = f" and {len(wrong) - SHOWN_FILES} more" if len(wrong) > SHOWN_FILES else ""
        command = COMMANDS.get(step, f"dagtrain {step}")
        what = f"{', '.join(wrong[:SHOWN_FILES])}{more} since `dagtrain {step}` ended"
        return Problem(what, f"run `{command}` again")

    def _wrong_files(self, step: str) -> tuple[str, ...]:
        """Files of a result that are not as its stamp says, with what happened to them."""
        key = step, self.fingerprint(step)
        if key not in self._looked:
            folder, written = self.folder(step), self._stamp(step).get("files", {})
            found = file_digests(step, folder)
            self._looked[key] = tuple(
                f"{folder / name} {_event(written.get(name), found.get(name))}"
                for name in sorted({*written, *found})
                if written.get(name) != found.get(name)
            )
        return self._looked[key]


def stamp_fingerprint(stamp: Mapping[str, Any]) -> str:
    """The digest of what a stamp says of its result."""
    return digest({name: value for name, value in stamp.items() if name not in NOT_TOLD})


def _event(written: str | None, found: str | None) -> str:
    if written is None:
        return "was added"
    return "was removed" if found is None else "was changed"


def _inputs(step: str, depends_on: Mapping[str, Any]) -> str:
    return digest({"step": step, "program": program_hash(), **depends_on})


def file_digests(step: str, folder: Path) -> dict[str, str]:
    """Name below the folder -> SHA-256 of every file for which a stamp vouches."""
    scratch = folder / SCRATCH.get(step, STAMP)
    paths = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    own = [path for path in paths if path != folder / STAMP and not path.is_relative_to(scratch)]
    if step == "emit":
        own = [path for path in own if not _left_by_quartus(path.relative_to(folder))]
    return {path.relative_to(folder).as_posix(): _content_digest(path) for path in sorted(own)}


def _left_by_quartus(path: Path) -> bool:
    """Whether a file below emit/ is one that Quartus writes beside its project in <device>/."""
    below = path.parts[1:]
    return (len(below) > 1 and below[0] in QUARTUS_FOLDERS) or (len(below) == 1 and path.suffix == QUARTUS_SUFFIX)


def _content_digest(path: Path) -> str:
    """SHA-256 of a file, or why it can't be told."""
    try:
        return file_digest(path)
    except OSError as error:
        return f"unreadable: {error.strerror}"


def digest(value: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def program_hash() -> str:
    """A fingerprint of this program's own sources: another version does not trust earlier results."""
    root = Path(dagtrain.__file__).parent.parent
    found = hashlib.sha256()
    for package in ("dagtrain", "hdl", "importers", "placement"):
        for path in sorted((root / package).rglob("*.py")):
            found.update(str(path.relative_to(root)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def read_json(path: Path, command: str, kind: type[T]) -> T:
    """The JSON object of a step's result, of one of the types of `dagtrain.flow.records`.

    Raises `MissingStep` for a file that is damaged, of another version, or not of that type: it names the file, each
    place and value that is wrong, and the command to run again."""
    try:
        document = parse_json(path.read_text())
    except OSError as error:
        raise MissingStep(f"{path} cannot be read: {error.strerror}", f"run `{command}` again") from error
    except ValueError as error:
        raise MissingStep(f"{path} is damaged ({error})", f"run `{command}` again") from error
    if not isinstance(document, dict):
        raise MissingStep(f"{path} is damaged (no JSON object)", f"run `{command}` again")
    version = document.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise MissingStep(
            f"{path} has schema version {shown(version)}, this version reads {SCHEMA_VERSION}", f"run `{command}` again"
        )
    problems = misfits(kind, document)
    if problems:
        raise MissingStep.listing(f"{path} is damaged", first(problems), f"run `{command}` again")
    return cast(T, document)
