"""Fingerprints of the code that decides what a circuit is: the keys of every cache of circuits and their costs."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

# what circuits are made of: folders and files of this package
CIRCUITS = (
    "layers",
    "engine",
    "streams",
    "axi.py",
    "bench.py",
    "dram.py",
    "dram_model.py",
    "fixed.py",
    "link.py",
    "link_model.py",
    "memory.py",
    "random_bits.py",
    "random_kernel.py",
    "recipe.py",
    "stream.py",
    "tensor.py",
    "unit.py",
)
# what turns a circuit into Verilog, and what counts it
CONVERSION = ("elaboration.py", "verilog.py", "netlist.py")
COUNTING = ("dataflow.py", "intervals.py", "ranges.py", "expressions.py", "liveness.py", "resources.py")


@cache
def code_hash(extra: tuple[str, ...] = ()) -> str:
    """SHA-256 over the sources of all circuits and of ``extra`` files of this package, in the order of their paths."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for name in sorted((*CIRCUITS, *extra)):
        path = root / name
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(source.relative_to(root)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()
