"""The testbenches of docs/testbenches.md run as they stand there, and see a wrong bit in what was delivered."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dagtrain.cosim.emitted import emitted_device, emitted_layer
from hdl.errors import DagtrainError
from tests.flow_support import CLUSTER, Case, new_case, quick_costs, with_few_dsp
from tests.suites import quick

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "testbenches.md"
# the first device alone
ONE = CLUSTER[: CLUSTER.rindex("[[device]]")]
# what the page calls the reader's own folder, layer and device
NAMES = re.compile(r"^WORKING, (NODE|DEVICE|BATCHES) = .*$", re.MULTILINE)


def blocks() -> dict[str, str]:
    """The Python blocks of the page by file name."""
    found = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(found)


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A small network on one FPGA, as far as its Verilog."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        case = new_case(tmp_path_factory.mktemp("own testbenches"))
        case.write("cluster.toml", with_few_dsp(0.01, ONE))
        return case.must("import", "place", "emit")


def bench(case: Case, name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a block of the page as a file of its own, with the names of the case."""
    chosen = {"NODE": "c_node", "DEVICE": "head", "BATCHES": 2}
    where = f"Path({str(case.out)!r})"
    text = NAMES.sub(lambda found: f"WORKING, {found[1]} = {where}, {chosen[found[1]]!r}", blocks()[name])
    assert str(case.out) in text
    file = folder / name
    file.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, file], cwd=folder, env=environment, capture_output=True, text=True, timeout=1200
    )


@pytest.mark.xdist_group("own testbenches")
@pytest.mark.parametrize("name", quick(1, sorted(blocks())))
def test_a_testbench_of_the_page_runs_as_it_stands_there(name: str, emitted: Case, tmp_path: Path) -> None:
    run = bench(emitted, name, tmp_path)
    assert run.returncode == 0, run.stderr
    assert re.search(r"\d+ (codes equal|beats out)", run.stdout)


@pytest.mark.slow
@pytest.mark.xdist_group("own testbenches")
@pytest.mark.parametrize("name", ["layer_bench.py", pytest.param("device_bench.py", marks=pytest.mark.slow)])
def test_a_testbench_of_the_page_sees_a_wrong_weight_that_was_delivered(
    name: str, emitted: Case, tmp_path: Path
) -> None:
    case = Case(tmp_path / "case")
    shutil.copytree(emitted.root, case.root)
    image = case.out / "emit" / "head" / "images" / "c_node.weights.mem"
    words = image.read_text().splitlines()
    image.write_text("\n".join([f"{int(words[0], 16) ^ 0x4000:0{len(words[0])}x}", *words[1:]]) + "\n")
    run = bench(case, name, tmp_path)
    assert run.returncode != 0
    assert "Mismatched elements" in run.stderr


@pytest.mark.xdist_group("own testbenches")
def test_the_layer_that_is_not_there_is_named_with_those_that_are(emitted: Case) -> None:
    with pytest.raises(DagtrainError, match=r"no device of .* has a layer 'nope'; there are .*\bc_node\b"):
        emitted_layer(emitted.out / "emit", "nope")
    with pytest.raises(DagtrainError, match="has no device 'nope'; it has head"):
        emitted_device(emitted.out / "emit", "nope")
    with pytest.raises(DagtrainError, match="image is no circuit of head: it is a stream of the host"):
        emitted_layer(emitted.out / "emit", "image")
