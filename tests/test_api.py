"""dagtrain from Python: the page that tells of it runs, keywords are those of the commands, errors list all."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dagtrain
from hdl.errors import DagtrainError
from tests.flow_support import new_case, quick_costs, with_few_dsp
from tests.import_support import ROOT

BLOCKS = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path, with_few_dsp(0.002))
    case.data()
    case.model.rename(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCKS.findall((ROOT / "docs" / "python.md").read_text())
    assert len(blocks) >= 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "it is no ONNX model" in said
    plan, run, training, judged = (names[name] for name in ("plan", "run", "training", "judged"))
    assert plan.throughput_fps <= plan.bound_fps
    assert plan.device_of(names["node"]) in {device.device for device in plan.devices}
    assert all(file.is_file() for files in names["design"].files.values() for file in files)
    assert run.equal
    assert len(run.losses) == run.data["frames"]
    assert 0 < training.accuracy <= 1
    # the same frames, judged twice
    assert judged.accuracy == pytest.approx(training.accuracy)
    assert names["net"].export().path.is_file()
    states = {step["step"]: step["state"] for step in names["again"].status().data["steps"]}
    assert states == {**dict.fromkeys(states, "holds"), "report": "not there"}


def test_a_plan_is_the_same_by_command_and_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case").must("import")
    assert case.step("place", "--cap", "dsp=0.5", "--pin", "c_node=worker").code == 0
    net = dagtrain.load(str(case.model), str(tmp_path / "build"), norm="as-is")
    plan = net.place(str(case.cluster), caps="dsp=0.5", pins=["c_node=worker"])  # type: ignore[arg-type]
    assert (plan.folder / "plan.json").read_bytes() == (case.out / "place" / "plan.json").read_bytes()
    assert not net.place(case.cluster, caps=("dsp=0.5",), pins=("c_node=worker",)).result.done
    with pytest.raises(DagtrainError, match="no node 'conv9'"):
        plan.device_of("conv9")


def test_unknown_keywords_are_named_all_at_once(tmp_path: Path) -> None:
    net = dagtrain.Network(tmp_path)
    with pytest.raises(DagtrainError) as raised:
        net.place("cluster.toml", pin=["a=b"], timelimit=3)  # type: ignore[call-arg]
    assert [problem.what for problem in raised.value.problems] == ["no option 'pin'", "no option 'timelimit'"]
    assert "time_limit_seconds" in raised.value.cure


def test_words_beyond_the_file_are_no_options(tmp_path: Path) -> None:
    # they would be taken for options in the order of their declaration, or for nothing
    with pytest.raises(TypeError):
        dagtrain.Network(tmp_path).place("cluster.toml", ("a=b",))  # type: ignore[misc]
    with pytest.raises(TypeError):
        dagtrain.Network(tmp_path).probe("c.y", 1, 1, None, None, None, 24, None, 1, "too many")  # type: ignore[call-arg]


def test_help_shows_the_options_of_a_step() -> None:
    signature = inspect.signature(dagtrain.Network.place)
    assert {"devices", "pins", "gap", "time_limit_seconds"} <= set(signature.parameters)
    assert dagtrain.Network.cosim.__doc__


@pytest.mark.parametrize(
    ("light", "absent"),
    [("dagtrain", {"myhdl"}), ("dagtrain.cli", {"numpy", "networkx"})],
)
def test_no_room_is_opened_before_it_is_needed(light: str, absent: set[str]) -> None:
    words = [sys.executable, "-c", f"import sys, {light}; print(*sorted(sys.modules))"]
    loaded = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert light in loaded
    assert not {"ortools", "pandas", "onnx", "numba", "dagtrain.api", *absent} & set(loaded)
