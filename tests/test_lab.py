"""The script of examples/lab: a training's whole life over Ethernet, with simulated FPGAs."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAB = ROOT / "examples" / "lab"


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["small", ""])
def test_the_life_of_a_training_ends_in_onnxruntime(setting: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"DAGTRAIN": str(Path(sys.executable).with_name("dagtrain")), "LAB_PORT": str(port)}
    told["LAB"] = str(LAB / setting) if setting else ""
    run = subprocess.run(
        [LAB / "life.sh", tmp_path], env={**os.environ, **told}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    steps = re.findall(r"^== (\w+)", run.stdout, re.MULTILINE)
    assert steps == ["import", "place", "emit", "serve", "drive", "drive", "export", "evaluate", "train", "export"]
    # what the second driver compared is what was left of the epoch
    driven = json.loads((tmp_path / "drive" / "drive.json").read_text())
    assert 0 < driven["compared"]["batches"] < driven["batches"]
    assert driven["compared"]["mismatches"] == []
    assert driven["devices"][1:], "one device is no cluster"
    served = json.loads((tmp_path / "serve" / "serve.json").read_text())
    for fate in ("lost", "retransmitted"):
        assert sum(pair[fate] for pair in served["pairs"]) > 0, fate
    assert (tmp_path / "serve" / "capture.pcapng").stat().st_size > 100_000
    evaluated = json.loads((tmp_path / "evaluate" / "evaluate.json").read_text())
    assert evaluated["with"] == "onnxruntime"
    assert evaluated["frames"] > 1000
    assert "FPGAs and emulator have learnt the same bits" in run.stdout
