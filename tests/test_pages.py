"""Pages of docs/ that tell what commands print: the commands run, and print it."""

from __future__ import annotations

import re
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


def ran(name: str, root: Path) -> Path:
    """The folder of a page whose commands have run."""
    if not (root / name).is_dir():
        before = PAGES[name]
        if before:
            ran(before, root)
        for command in run_page(name, folder_of(name, root)):
            command.check()
    return root / name


# pages whose commands take longest beside the tutorial's
LONG = ("slow-plan", "boards", "own-cluster")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in PAGES])
def test_commands_of_a_page_print_what_it_says(name: str, root: Path) -> None:
    ran(name, root)


# pages that leave files -> their working folder
LEAVING = dict.fromkeys(("tutorial", "boards", "formats", "circuits", "mismatch"), "build") | {"slow-plan": "stale"}


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_steps_leave_the_files_that_the_page_names(long: bool, root: Path) -> None:
    folders = [ran(page, root) / folder for page, folder in LEAVING.items() if long or page not in LONG]
    found = {path.relative_to(folder).as_posix() for folder in folders for path in folder.rglob("*") if path.is_file()}
    found = {name for name in found if not name.startswith(".")}
    page = (ROOT / "docs" / "files.md").read_text()
    named = [name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]
    patterns = {name: re.compile(anything(name)) for name in named}
    assert not [name for name in found if not any(pattern.fullmatch(name) for pattern in patterns.values())]
    steps = {name.split("/")[0] for name in found}
    missing = {
        name
        for name, pattern in patterns.items()
        if name.split("/")[0] in steps and not any(map(pattern.fullmatch, found))
    }
    # left where options ask for it, where the plan has a graph of its own, or boards are of known kinds
    assert missing == {
        "cosim/capture.pcapng",
        "cosim/efficiency.json",
        "cosim/waves.vcd",
        "cosim/waves.gtkw",
        "cosim/waves.sucl",
        "emit/<device>/board/",
        "place/graph.json",
        "place/graph.npz",
    }
    # of steps that no page runs the code has the names
    source = "".join(path.read_text() for path in (ROOT / "dagtrain").rglob("*.py"))
    assert all(f'{name.split("/")[-1]}"' in source for name in named if name.split("/")[0] not in {*steps, "*"})


def anything(name: str) -> str:
    """The regular expression of a name with `<…>` and `*` for one part of a path and `**` for several."""
    return re.sub(r"<\w+>|\\\*\\\*|\\\*", lambda place: ".*" if place[0] == r"\*\*" else "[^/]*", re.escape(name))


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
