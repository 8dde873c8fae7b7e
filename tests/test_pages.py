"""Pages of docs/ that tell what commands print: the commands run, and print it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.import_support import ROOT
from tests.page_support import PAGES, blocks, folder_of, matches, run_page

# one process: pages go on in the folder of others
pytestmark = pytest.mark.xdist_group("pages")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize("name", PAGES)
def test_commands_of_a_page_print_what_it_says(name: str, root: Path) -> None:
    before = PAGES[name]
    if before and not (root / before).is_dir():
        # it was not run, but left out by name
        run_page(before, folder_of(before, root))
    for ran in run_page(name, folder_of(name, root)):
        ran.check()


@pytest.mark.parametrize(
    ("expected", "printed", "wanted"),
    [
        ("a 1\nb\n", "a 1\nb\n", True),
        ("a 1\nb\n", "a 2\nb\n", False),
        ("a …\nb\n", "a 2\nb\n", True),
        ("a …\n", "a 2\nb\n", False),
        ("…\nb\n", "a\n\nc\nb\n", True),
        ("…\nb\n", "a\nc\n", False),
        ("", "a\n", False),
    ],
)
def test_what_a_page_leaves_open(expected: str, printed: str, wanted: bool) -> None:
    assert matches(expected, printed) is wanted


@pytest.mark.torch
def test_the_model_of_the_tutorial_is_what_its_script_writes(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the optional extra: pip install -e .[torch]")
    (script,) = (text for _, _, text in blocks("tutorial") if text.startswith("# model.py\n"))
    (tmp_path / "model.py").write_text(script)
    done = subprocess.run([sys.executable, "model.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    fresh, kept = (onnx.load(path) for path in (tmp_path / "model.onnx", ROOT / "examples" / "tutorial" / "model.onnx"))
    for one, other in zip(fresh.graph.node, kept.graph.node, strict=True):
        assert (one.op_type, one.input, one.output, one.attribute) == (
            other.op_type, other.input, other.output, other.attribute,
        )  # fmt: skip
    for one, other in zip(fresh.graph.initializer, kept.graph.initializer, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(numpy_helper.to_array(one), numpy_helper.to_array(other))
    for values in ("input", "output"):
        one, other = ([(item.name, item.type) for item in getattr(file.graph, values)] for file in (fresh, kept))
        assert one == other
    assert fresh.opset_import == kept.opset_import
