"""What the command line says: to people on wide and narrow terminals, to logs, to programs; where results stand."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dagtrain import cli
from dagtrain.console import summary_table
from dagtrain.graph.summary import LayerSummary, Summary
from dagtrain.rates import short_count
from tests.flow_support import Case, Outcome, call, new_case, quick_costs


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A model imported and placed; tests work on copies."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        yield new_case(tmp_path_factory.mktemp("console")).must("import", "place")


@pytest.fixture
def case(placed: Case, tmp_path: Path) -> Case:
    shutil.copytree(placed.root, tmp_path / "case")
    return Case(tmp_path / "case")


def document(outcome: Outcome) -> dict[str, Any]:
    """The one JSON document on standard output."""
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


# ---- options of all commands


def test_the_version_is_that_of_the_package() -> None:
    assert call("--version").out.split() == ["dagtrain", cli.version("dagtrain")]


def test_quiet_says_nothing_and_verbose_a_line_a_task_where_there_is_no_terminal(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    for words, out, wanted in (
        (("-q",), "", ""),
        ((), "import: done", ""),
        (("-v",), "import: done", "import: 17 nodes, "),
    ):
        shutil.rmtree(case.out, ignore_errors=True)
        outcome = case.step("import", *words)
        assert outcome.code == 0
        for said, expected in ((outcome.out, out), (outcome.error, wanted)):
            assert expected in said, (words, said)
            assert bool(expected) == bool(said), (words, said)


@pytest.mark.slow
def test_bars_are_drawn_on_a_terminal_alone(tmp_path: Path) -> None:
    case = new_case(tmp_path)
    words = [sys.executable, "-m", "dagtrain.cli", "import", str(case.model), "--norm", "as-is", "--out", str(case.out)]
    piped = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert piped.stderr == ""
    shutil.rmtree(case.out)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(words, stderr=theirs, stdout=subprocess.DEVNULL, env=environment) as child:
        os.close(theirs)
        drawn = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:
                break
            if not part:
                break
            drawn += part
        assert child.wait(120) == 0
    os.close(ours)
    assert "━" in drawn.decode()


def test_the_working_folder_can_be_said_once_for_all_commands(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGTRAIN_OUT", str(case.out))
    assert document(call("status", "--json"))["folder"] == str(case.out)
    assert document(call("status", "--json", "--out", case.root / "other"))["folder"] == str(case.root / "other")


def test_shells_complete_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        environment = {
            **os.environ,
            "_DAGTRAIN_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        run = "import sys; from dagtrain.cli import main; sys.argv = ['dagtrain']; main()"
        done = subprocess.run([sys.executable, "-c", run], env=environment, capture_output=True, text=True, timeout=60)
        return done.stdout.split()

    assert completed("dagtrain pl") == ["place"]
    assert completed("dagtrain place --dev") == ["--devices"]


@pytest.mark.parametrize("command", ["import", "show", "status", "clean"])
def test_a_command_imports_what_its_own_step_needs(command: str, case: Case) -> None:
    code = "import sys; from dagtrain.cli import main\ntry: main()\nfinally: print(*sorted(sys.modules))"
    more = {"import": [str(case.model), "--check"], "clean": ["--yes"]}.get(command, [])
    words = [sys.executable, "-c", code, command, *more, "--json", "--out", str(case.out)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "dagtrain.api" in loaded
    assert not loaded & {"ortools", "pandas", "jinja2", "dagtrain.planning", "dagtrain.cosim", "dagtrain.host"}


# ---- errors for programs


def test_with_json_every_error_is_a_document_that_lists_all_problems(case: Case) -> None:
    bad = case.write("bad.toml", '[cluster]\nname = 3\nclock_mhz = "fast"\n')
    outcome = call("place", "--devices", bad, "--out", case.out, "--json")
    error = document(outcome)["error"]
    assert outcome.code == error["exit_code"] == 1
    assert len(error["problems"]) >= 2
    assert all(set(problem) == {"where", "what", "cure"} for problem in error["problems"])
    assert outcome.error == f"error: {error['message']}\n"
    plain = call("place", "--devices", bad, "--out", case.out)
    assert (plain.out, plain.error) == ("", outcome.error)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [(("plaice",), "No such command"), (("place", "--gab", "1"), "--gab"), (("cosim", "--batches", "x"), "batches")],
)
def test_with_json_words_that_no_command_knows_are_a_document_too(words: tuple[str, ...], wanted: str) -> None:
    outcome = call(*words, "--json")
    error = document(outcome)["error"]
    assert (outcome.code, error["exit_code"], error["kind"]) == (2, 2, "usage")
    assert wanted in error["message"]
    assert "--help" in error["problems"][0]["cure"]
    assert call(*words).code == 2


def test_with_json_a_fault_of_the_program_is_a_document_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(**_words: object) -> None:
        raise KeyError("lost")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "app", fault)
    outcome = call("show", "--json")
    assert (outcome.code, document(outcome)["error"]["kind"]) == (cli.CRASHED, "crash")


# ---- status and clean


def states(case: Case) -> dict[str, str]:
    """Step -> how its result stands."""
    outcome = call("status", "--out", case.out, "--json")
    assert outcome.code == 0, outcome.error
    return {step["step"]: step["state"] for step in document(outcome)["steps"]}


def test_status_tells_what_holds_what_does_not_and_what_comes_next(case: Case) -> None:
    before = case.snapshot()
    imported_from = json.loads((case.out / "import" / "import.json").read_text())["source"]["path"]
    found = document(call("status", "--out", case.out, "--json"))
    assert [step["step"] for step in found["steps"]] == ["import", "place", "emit", "cosim", "train", "report"]
    assert states(case) == dict.fromkeys(("import", "place"), "holds") | dict.fromkeys(
        ("emit", "cosim", "train", "report"), "not there"
    )
    assert found["next"] == "dagtrain emit"
    assert case.snapshot() == before
    assert Path(imported_from).is_file()


def test_status_names_what_came_in_between(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    plan = case.out / "place" / "plan.json"
    text = plan.read_text()
    plan.write_text(text + " ")
    assert "damaged" in call("status", "--out", case.out).out
    why = {step["step"]: step["why"] for step in document(call("status", "--out", case.out, "--json"))["steps"]}
    assert why["place"] == "place/plan.json was changed"
    assert states(case) == {**states(case), "import": "holds", "place": "damaged"}
    plan.write_text(text)
    assert states(case)["place"] == "holds"
    assert case.step("import", "--bits", "activation=12").code == 0
    assert states(case) == {**states(case), "import": "holds", "place": "outdated"}
    case.model.write_bytes(b"another model")
    found = document(call("status", "--out", case.out, "--json"))
    assert (found["steps"][0]["state"], found["next"]) == ("outdated", f"dagtrain import {case.model.resolve()}")


def test_clean_removes_results_and_nothing_else(case: Case) -> None:
    own = case.out / "notes"
    own.mkdir()
    (own / "mine.txt").write_text("mine")
    unasked = call("clean", "--out", case.out)
    assert unasked.code == 1
    assert "say --yes" in unasked.error
    assert (case.out / "import").is_dir()
    unknown = call("clean", "trian", "--yes", "--out", case.out)
    assert unknown.code == 1
    assert "holds no result of trian" in unknown.error
    assert document(call("clean", "place", "--yes", "--json", "--out", case.out))["removed"] == ["place"]
    assert sorted(path.name for path in case.out.iterdir() if path.is_dir()) == ["import", "notes"]
    assert call("clean", "-y", "--out", case.out).code == 0
    assert sorted(path.name for path in case.out.iterdir() if path.is_dir()) == ["notes"]
    assert "holds no results" in call("clean", "--out", case.out).out


# ---- show


def test_a_count_keeps_three_digits() -> None:
    counts = (0, 7, 512, 999, 1000, 1234, 34_560, 999_499, 999_500, 1_814_073_344, 5 * 10**17)
    assert [short_count(count) for count in counts] == [
        "0", "7", "512", "999", "1.00k", "1.23k", "34.6k", "999k", "1.00M", "1.81G", "500P",
    ]  # fmt: skip


def test_a_summary_fits_a_terminal_of_80_columns_and_loses_no_layer() -> None:
    names = ("stem", "features_18_conv_block_3_projection_conv_with_a_name_that_never_ends", "classifier")
    layers = tuple(
        LayerSummary(name, "SoftmaxCrossEntropy", (112, 112, 1280), 10**8, 10**10, 10**10, 10**10, 10**9, 6)
        for name in names
    )
    summary = Summary("mobilenetv2", layers)
    for columns in (80, 100, 120, 160, 200):
        console = Console(width=columns, file=io.StringIO(), record=True)
        console.print(summary_table(summary, columns))
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= columns
        # whole names, on several lines where they are long, and whole words and numbers
        assert all(name in together(text) for name in names)
        assert text.count("SoftmaxCrossEntropy") == len(names)
        assert text.count("112x112x1280") == len(names)
        wide = columns >= 160
        assert text.count("10,000,000,000") == (3 * len(names) if wide else 0)
        assert ("gradient" in text) == wide
        assert "total" in text
        assert "…" not in text
    # what needs fewer columns is wide in fewer
    small = Summary("small", (LayerSummary("stem", "Conv", (8, 8, 8), 72, 4608, 0, 4608, 1024, 3),))
    forms = {columns: len(summary_table(small, columns).columns) for columns in range(60, 100)}
    assert sorted(forms.values()) == list(forms.values())
    assert {forms[60], forms[80]} == {6, 8}


def together(text: str) -> str:
    """The first column of a table in one line."""
    return "".join(re.split(r"\s{2,}|│", line.strip("│ ┃"))[0].strip() for line in text.splitlines())
