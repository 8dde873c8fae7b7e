"""Files that are whole or not there: write beside, then rename."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hdl.errors import DagtrainError


class OutputError(DagtrainError):
    """A file or folder that cannot be written."""


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; parent folders are made."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; parent folders are made.

    Raises `OutputError` for a full disk, a read-only folder and the like; nothing half-written stays."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; free or choose another --out") from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A fresh folder that takes the place of ``path`` once the body has succeeded; else ``path`` stays as it was.

    Raises `OutputError` where the place cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; free or choose another --out") from error
    try:
        yield beside
        beside.chmod(0o755)
        _swap(beside, path, path.with_name(f".{path.name}.old.{os.getpid()}"))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; free or choose another --out") from error
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
