"""The fingerprint of the code that decides what a circuit is: the key of every cache of circuits and their costs.

It covers this whole package, not a list of its files: a list forgets the next file that matters.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path


@cache
def code_hash(root: Path = Path(__file__).parent) -> str:
    """SHA-256 over all sources under ``root``, by default of this package, in the order of their paths."""
    digest = hashlib.sha256()
    for source in sorted(root.rglob("*.py")):
        digest.update(f"{source.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where built simulators are kept: ``$DAGTRAIN_CACHE`` or ``~/.cache/dagtrain``."""
    folder = Path(os.environ.get("DAGTRAIN_CACHE") or Path.home() / ".cache" / "dagtrain")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
