"""The script of examples/lab: a training's whole life over Ethernet, with simulated FPGAs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_life_of_a_training_ends_in_onnxruntime(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"DAGTRAIN": str(Path(sys.executable).with_name("dagtrain")), "LAB_PORT": str(port)}
    script = ROOT / "examples" / "lab" / "life.sh"
    run = subprocess.run([script, tmp_path], env={**os.environ, **told}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "against the emulator: every bit equal" in run.stdout
    assert "FPGAs and emulator have learnt the same bits" in run.stdout
