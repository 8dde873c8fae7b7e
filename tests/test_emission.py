"""Verilog of a device is linted once, and again when it, or what it was found to be, is another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagtrain.emission import project
from dagtrain.emission.device import queue_module
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.project import lint_devices, module_head
from dagtrain.files import write_text
from hdl.errors import ToolError

CLEAN = "module inner (\n    a,\n    y\n);\n\ninput a;\noutput y;\nassign y = ~a;\nendmodule\n"
TOP = "module top (input wire a, output wire y);\ninner u_inner (.a(a), .y(y));\nendmodule\n"
DIRTY = CLEAN.replace("output y;\nassign y = ~a;", "output y;\nreg y;\nalways @(*) if (a) y = 1;")


def device(folder: Path, inner: str) -> Path:
    (folder / "rtl").mkdir(parents=True, exist_ok=True)
    (folder / "rtl" / "inner.v").write_text(inner)
    (folder / "rtl" / "top.v").write_text(TOP)
    (folder / "files.f").write_text("rtl/inner.v\nrtl/top.v\n")
    return folder


def lint(folder: Path, known: Path) -> None:
    lint_devices({folder: "top"}, known)


def refuse(*_: object) -> None:
    raise AssertionError("linted again")


def test_clean_verilog_is_linted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "known"
    lint(device(tmp_path / "one", CLEAN), known)
    monkeypatch.setattr(project, "lint_verilog", refuse)
    lint(device(tmp_path / "two", CLEAN), known)
    with pytest.raises(AssertionError, match="linted again"):
        lint(device(tmp_path / "three", CLEAN.replace("~a", "a")), known)


def test_what_devices_share_is_linted_once_and_every_device_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linted: list[str] = []
    monkeypatch.setattr(project, "lint_verilog", lambda _sources, top: linted.append(top))
    folders = [device(tmp_path / name, CLEAN) for name in ("one", "two", "three")]
    named: list[str] = []
    lint_devices(dict.fromkeys(folders, "top"), tmp_path / "known", named.append)
    assert linted.count("inner") == 1
    assert named == ["one", "two", "three"]


def test_threads_may_write_the_same_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: write_text(tmp_path / "same", "text"), range(400)))
    assert [path.name for path in tmp_path.iterdir()] == ["same"]


def test_dirty_verilog_is_never_taken_for_clean(tmp_path: Path) -> None:
    known = tmp_path / "known"
    folder = device(tmp_path / "one", DIRTY)
    for _ in range(2):
        with pytest.raises(ToolError, match="inner"):
            lint(folder, known)
    assert not known.exists() or not list(known.iterdir())


def test_a_top_that_connects_what_its_modules_do_not_have_is_dirty(tmp_path: Path) -> None:
    folder = device(tmp_path / "one", CLEAN)
    (folder / "rtl" / "top.v").write_text(TOP.replace(".a(a)", ".a(a), .b(a)"))
    with pytest.raises(ToolError, match="b"):
        lint(folder, tmp_path / "known")


def test_the_head_of_a_module_has_its_parameters_and_ports_alone() -> None:
    text = (
        'module m #(\n    parameter INIT_w = ""\n) (\n    clk,\n    y\n);\n\ninput clk;\noutput [3:0] y;\n'
        "wire [3:0] y;\nreg [3:0] inside;\nassign y = inside;\nendmodule\n"
    )
    assert module_head(text) == (
        'module m #(\n    parameter INIT_w = ""\n) (\n    clk,\n    y\n);\n\ninput clk;\noutput [3:0] y;\nendmodule\n'
    )


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"text": 1}'])
def test_a_module_whose_file_in_the_cache_is_damaged_is_converted_again(text: str, tmp_path: Path) -> None:
    first = queue_module(ModuleLibrary(tmp_path), 8, 2)
    (path,) = tmp_path.glob("queue_*.json")
    kept = path.read_text()
    path.write_text(text)
    assert queue_module(ModuleLibrary(tmp_path), 8, 2) == first
    assert path.read_text() == kept
