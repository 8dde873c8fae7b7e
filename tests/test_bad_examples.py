"""A layer whose examples are bad fails alone: the suites over all layers are collected, and run, as without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

# loaded by pytest before it collects; layers as the registry would find them
LAYERS = """
from hdl.layers.pointwise.relu import Relu


class BrokenMaker(Relu):
    __module__ = "hdl.layers.pointwise.broken"

    @classmethod
    def examples(cls):
        return (cls(height=1, width=1, channels=1), 1 / 0)


class BrokenExample(Relu):
    __module__ = "hdl.layers.pointwise.broken"
    variants = ({}, {"lanes": 5})


class BrokenPorts(Relu):
    __module__ = "hdl.layers.pointwise.broken"

    @property
    def sinks(self):
        raise KeyError("x")


class BrokenNone(Relu):
    __module__ = "hdl.layers.pointwise.broken"

    @classmethod
    def examples(cls):
        return ()


class SoundOne(Relu):
    __module__ = "hdl.layers.pointwise.broken"
"""
# every suite that is collected over the examples of all layers
SUITES = ("layer_conformance", "meaning", "autodiff", "storage", "same_cycle")
ROOT = Path(__file__).parent.parent


def test_bad_examples_fail_one_test_each_which_names_the_layer_and_all_other_tests_run(tmp_path: Path) -> None:
    (tmp_path / "broken_layers.py").write_text(LAYERS)
    wanted = "Broken or SoundOne-0 and (golden or backward)"
    files = [f"tests/test_{suite}.py" for suite in SUITES]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "broken_layers",
            "-p",
            "no:cacheprovider",
            "-rA",
            "-q",
            "-k",
            wanted,
            *files,
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = {
        outcome: re.findall(rf"^{outcome} (\S+)", run.stdout, re.MULTILINE) for outcome in ("FAILED", "PASSED", "ERROR")
    }
    broken = ("BrokenExample", "BrokenMaker", "BrokenNone", "BrokenPorts")
    suite = "tests/test_layer_conformance.py::test_a_layer_makes_its_examples"
    assert sorted(found["FAILED"]) == [f"{suite}[{name}]" for name in broken], run.stdout
    assert not found["ERROR"], run.stdout
    sound = {name.partition("::")[0] for name in found["PASSED"] if "SoundOne" in name}
    assert sound >= {f"tests/test_{suite}.py" for suite in ("layer_conformance", "meaning", "autodiff")}, run.stdout
    assert "BrokenMaker.examples: ZeroDivisionError: division by zero" in run.stdout
    assert "BrokenPorts.examples: KeyError: 'x'" in run.stdout
    assert "BrokenNone has no examples" in run.stdout
    assert "BrokenExample.examples: FoldingError: BrokenExample: 5 lanes do not divide 3 channels" in run.stdout
