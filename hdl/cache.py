"""The fingerprint of the code that decides what a circuit is, the key of every cache of circuits and their costs, and
the folder in which these are kept.

The fingerprint covers this whole package, not a list of its files: a list forgets the next file that matters.
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import cache
from pathlib import Path
from stat import S_ISREG

DAY_S = 86_400
# of what is kept in the folders of the cache; the costs of circuits, in one file beside them, are some ten megabytes
MOST_BYTES = 4 << 30


@cache
def code_hash(root: Path = Path(__file__).parent) -> str:
    """SHA-256 over all sources under ``root``, by default of this package, in the order of their paths."""
    digest = hashlib.sha256()
    for source in sorted(root.rglob("*.py")):
        digest.update(f"{source.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where built simulators and converted circuits are kept: ``$DAGTRAIN_CACHE`` or ``~/.cache/dagtrain``; pruned
    once a day."""
    folder = Path(os.environ.get("DAGTRAIN_CACHE") or Path.home() / ".cache" / "dagtrain")
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "pruned"
    if not stamp.exists() or time.time() - stamp.stat().st_mtime > DAY_S:
        stamp.touch()
        prune(folder)
    return folder


def prune(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove files in the folders of ``folder``, the least recently used first, until they take no more than
    ``most_bytes``.  What was used within a day stays: somebody may be at work with it."""
    found = []
    for path in folder.glob("*/**/*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            # another process prunes
            continue
        if S_ISREG(status.st_mode):
            found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    excess = sum(size for _, size, _ in found) - most_bytes
    for used, size, path in sorted(found):
        if excess <= 0 or time.time() - used < DAY_S:
            return
        path.unlink(missing_ok=True)
        excess -= size
