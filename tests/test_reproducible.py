"""The emitted files are the same bytes whatever the order of Python's sets, the folder and the number of processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# layers by position among a class's examples: processes with several inputs, a fork, a tree of sums, a table
LAYERS = "Relu Add BiasGradient MaxPool SoftmaxCrossEntropy"


def digests(program: str, hash_seed: str, folder: Path, *words: str) -> dict[str, str]:
    """File -> digest of what ``program`` writes into the folder in a process of its own, nothing cached."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "DAGTRAIN_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", program, str(folder / "out"), *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, text=True, stderr=subprocess.PIPE, timeout=900)
    assert done.returncode == 0, done.stderr
    files = [path for path in sorted((folder / "out").rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder / "out")): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_modules_are_the_same_for_any_hash_seed(tmp_path: Path) -> None:
    found = [digests("tests.emit_modules", seed, tmp_path / seed, *LAYERS.split(), "ethernet") for seed in ("1", "2")]
    # a module for each layer, and four of the Ethernet port
    assert len(found[0]) == len(LAYERS.split()) + 4
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("network", [(), ("ethernet",)], ids=["words", "ethernet"])
def test_a_whole_cluster_is_the_same_for_any_hash_seed_folder_cache_and_number_of_processes(
    network: tuple[str, ...], tmp_path: Path
) -> None:
    found = {
        seed: digests("tests.emit_cluster", seed, tmp_path / folder, processes, *network)
        for seed, folder, processes in (("0", "one", "1"), ("1", "another", "2"), ("random", "third of them", "2"))
    }
    # from a warm cache, in another folder
    again = digests("tests.emit_cluster", "7", tmp_path / "one", "1", *network)
    assert len(again) > 100
    assert found["0"] == found["1"] == found["random"] == again
