"""Verilog of a device is linted once, and again when it, or what it was found to be, is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagtrain.emission import project
from dagtrain.emission.project import lint_device
from hdl.errors import ToolError

CLEAN = "module inner (input wire a, output wire y);\nassign y = ~a;\nendmodule\n"
TOP = "module top (input wire a, output wire y);\ninner u_inner (.a(a), .y(y));\nendmodule\n"
DIRTY = "module inner (input wire a, output reg y);\nalways @(*) if (a) y = 1;\nendmodule\n"


def device(folder: Path, inner: str) -> Path:
    (folder / "rtl").mkdir(parents=True, exist_ok=True)
    (folder / "rtl" / "inner.v").write_text(inner)
    (folder / "rtl" / "top.v").write_text(TOP)
    (folder / "files.f").write_text("rtl/inner.v\nrtl/top.v\n")
    return folder


def refuse(*_: object) -> None:
    raise AssertionError("linted again")


def test_clean_verilog_is_linted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "known"
    lint_device(device(tmp_path / "one", CLEAN), "top", known)
    monkeypatch.setattr(project, "lint_verilog", refuse)
    lint_device(device(tmp_path / "two", CLEAN), "top", known)
    with pytest.raises(AssertionError, match="linted again"):
        lint_device(device(tmp_path / "three", CLEAN.replace("~a", "a")), "top", known)
    with pytest.raises(AssertionError, match="linted again"):
        lint_device(tmp_path / "one", "inner", known)


def test_dirty_verilog_is_never_taken_for_clean(tmp_path: Path) -> None:
    known = tmp_path / "known"
    folder = device(tmp_path / "one", DIRTY)
    for _ in range(2):
        with pytest.raises(ToolError, match="inner"):
            lint_device(folder, "top", known)
    assert not known.exists() or not list(known.iterdir())
