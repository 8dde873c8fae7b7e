"""Files that are whole or not there: write beside, then rename.

What a killed process left beside is called ``.NAME.tmp-…`` or ``.NAME.old-…``; the next that takes the working folder
clears it away (`working_folder`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.lib.npyio import NpzFile

from hdl.errors import DagtrainError

# marks in the names of what is being written, and of what it takes the place of
FRESH, OLD = ".tmp-", ".old-"
# held by the process that works in a folder; says which
LOCK = ".lock"


class OutputError(DagtrainError):
    """A file or folder that cannot be written."""


# what NumPy and zipfile raise for damaged archives, beside OSError and ValueError: truncated, a member missing, packed
# or encrypted in a way that they do not know, a header that is no expression or asks for more than an address
ARCHIVE_ERRORS = (
    EOFError, KeyError, NotImplementedError, RuntimeError, SyntaxError, ArithmeticError, struct.error,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextmanager
def open_archive(path: Path) -> Iterator[NpzFile]:
    """An ``.npz`` file to read arrays from.  Raises `OSError`, and `ValueError` for what is no archive of arrays."""
    try:
        with path.open("rb") as raw:
            if raw.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX and not zipfile.is_zipfile(raw):
                raise ValueError("it is no archive of arrays")
            raw.seek(0)
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, NpzFile):
                raise ValueError("it holds one array, and no archive of arrays")
            with file:
                yield file
    except ARCHIVE_ERRORS as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C, and what asks to end, wait until the body is through.

    A `zipfile.ZipFile` that an exception meets between two of its own lines can't be closed any more."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # what was not set from Python can't be set again, and raises nothing here
    found = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    before = {each: handler for each, handler in found.items() if handler is not None}
    heard: list[int] = []
    try:
        for each in before:
            signal.signal(each, lambda number, _: heard.append(number))
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in heard[-1:]:
            signal.raise_signal(number)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; parent folders are made."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; parent folders are made.

    Raises `OutputError` for a full disk, a read-only folder and the like; nothing half-written stays."""
    with replaced_file(path) as file:
        file.write(data)


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A fresh file that takes the place of ``path`` once the body has succeeded; parent folders are made.

    Raises `OutputError` as `write_bytes`; nothing half-written stays."""
    beside = path.with_name(f".{path.name}{FRESH}{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w+b") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}", "free or choose another --out") from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A fresh folder that takes the place of ``path`` once the body has succeeded; else ``path`` stays as it was.

    Raises `OutputError` where the place cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{path.name}{FRESH}", dir=path.parent))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}", "free or choose another --out") from error
    try:
        yield beside
        beside.chmod(0o755)
        _swap(beside, path, path.with_name(f".{path.name}{OLD}{os.getpid()}"))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}", "free or choose another --out") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _swap(fresh: Path, path: Path, old: Path) -> None:
    """Let ``fresh`` take the place of ``path``, which goes by way of ``old``; on any error or Ctrl-C it comes back."""
    try:
        if path.exists():
            path.rename(old)
        fresh.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def working_folder(path: Path) -> Iterator[None]:
    """The folder for this process alone; what earlier ones that were killed left half-written there is cleared away.

    Folders that were not there are made, and go again if nothing was written.  Raises `OutputError` where another
    process works in it, or it can't be made."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}", "free or choose another --out") from error
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        # nothing can be written there: a step that would says so, one that has nothing to do need not
        yield
        return
    try:
        _take(lock, path)
        try:
            _clear(path)
            yield
        finally:
            os.ftruncate(lock, 0)
    finally:
        os.close(lock)
        if made and [entry.name for entry in path.iterdir()] == [LOCK]:
            (path / LOCK).unlink()
            for folder in made:
                if not any(folder.iterdir()):
                    folder.rmdir()


def _take(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 100, 0).decode(errors="replace").strip() or "another process"
        raise OutputError(
            f"dagtrain is already at work in {path} ({holder})", "wait until it has ended, or choose another --out"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()}\n".encode(), 0)


def _clear(path: Path) -> None:
    """Old folders whose place is empty come back; all else that was under way goes."""
    for old in path.glob(f".*{OLD}*"):
        place = path / old.name[1:].rpartition(OLD)[0]
        if not place.exists():
            old.rename(place)
    for pattern in (f".*{FRESH}*", f"*/.*{FRESH}*", f".*{OLD}*"):
        for left in path.glob(pattern):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
