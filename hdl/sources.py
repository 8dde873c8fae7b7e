"""A fingerprint of the code that decides what a circuit is: the key of every cache of circuits and their costs."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def code_hash() -> str:
    """SHA-256 over the Python sources of this package, in the order of their paths."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
