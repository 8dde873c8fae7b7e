"""Ctrl-C at any moment of `dagtrain place`: the best plan so far is kept, whole and valid.  The signals are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dagtrain.flow import place_step
from dagtrain.flow.workspace import Workspace
from dagtrain.planning.ladder import Ladder
from dagtrain.planning.prices import Prices
from dagtrain.planning.realise import Realiser
from dagtrain.planning.splitting import Splitter
from placement.problem.instance import instance_from_json
from placement.problem.plan import Plan, plan_from_json
from placement.problem.validate import violations
from placement.search.descent import Descent
from tests.flow_support import Case, new_case, quick_costs
from tests.suites import quick

# four blocks a device: multipliers bind, so there are many levels
OPTIONS = ("--cap", "dsp=0.001")


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    quick_costs(monkeypatch)
    made = new_case(tmp_path / "case")
    assert made.step("import").code == 0
    return made


def _plan(case: Case) -> Plan:
    """The plan on disk, which the validator accepts, in a folder that is whole."""
    folder = case.out / "place"
    plan = plan_from_json((folder / "plan.json").read_text())
    assert violations(instance_from_json((folder / "instance.json").read_text()), plan) == []
    assert (folder / "stamp.json").is_file()
    assert [path.name for path in case.out.iterdir() if path.name.startswith(".place")] == []
    return plan


def _press(monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], number: int, after_a_plan: bool) -> list[int]:
    """Have Ctrl-C pressed when a function is called for the n-th time (``after_a_plan``: that is on disk); T of the
    plans written until then."""
    target, name = where
    work, leave = getattr(target, name), Workspace.leave
    calls, written, pressed = [], list[int](), list[int]()

    def watched(*words: Any, **options: Any) -> Any:
        if written or not after_a_plan:
            calls.append(name)
            if len(calls) == number:
                pressed.extend(written)
                os.kill(os.getpid(), signal.SIGINT)
        return work(*words, **options)

    def left(workspace: Workspace, *words: Any) -> None:
        leave(workspace, *words)
        written.append(plan_from_json((workspace.folder("place") / "plan.json").read_text()).cycles_per_frame)

    monkeypatch.setattr(Workspace, "leave", left)
    monkeypatch.setattr(target, name, watched)
    return pressed


@pytest.mark.parametrize("number", [1, 2])
def test_before_the_first_placement_there_is_nothing_to_keep(
    number: int, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = (Prices, "_elaborate") if number == 1 else (Descent, "find_bound")
    _press(monkeypatch, where, 1, after_a_plan=False)
    outcome = case.step("place", *OPTIONS)
    assert outcome.code == 130, outcome.error
    assert "interrupted; the results of earlier steps are as they were" in outcome.error
    assert not (case.out / "place").exists()


# what is interrupted -> the function that does it, at which call, and whether a plan is on disk by then; the first ones
# are in the quick suite
MOMENTS: dict[str, tuple[tuple[Any, str], int, bool]] = {
    "writing the first plan": ((place_step, "write_placed"), 1, False),
    "a later search": ((Descent, "report"), 2, True),
    "writing the last plan": ((place_step, "write_placed"), 1, True),
    "pricing the first placement found": ((Realiser, "fixed"), 1, False),
    "elaborating for a later level": ((Prices, "_elaborate"), 1, True),
    "pricing a later level": ((Prices, "_elaborate"), 2, True),
    "the bound of a later search": ((Descent, "find_bound"), 1, True),
    "pricing a later placement": ((Realiser, "fixed"), 1, True),
    "trying parts": ((Splitter, "_more_parts"), 1, True),
}


@pytest.mark.parametrize("moment", quick(1, MOMENTS))
def test_ctrl_c_at_any_moment_keeps_the_best_plan_so_far(
    moment: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, number, after_a_plan = MOMENTS[moment]
    with monkeypatch.context() as patch:
        written = _press(patch, where, number, after_a_plan)
        outcome = case.step("place", *OPTIONS)
    assert outcome.code == 0, outcome.error
    early = _plan(case)
    assert bool(written) == after_a_plan
    assert all(early.cycles_per_frame <= cycles for cycles in written)
    if "last" not in moment:
        assert "goes on from this plan" in outcome.out
    assert case.step("place", *OPTIONS).code == 0
    assert _plan(case).cycles_per_frame <= early.cycles_per_frame


def test_the_third_ctrl_c_leaves_at_once_and_the_plan_written_stays(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_words: Any) -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Ladder, "faster", press)
    assert case.step("place", *OPTIONS).code == 0
    _plan(case)


@pytest.mark.parametrize("costs", ["quick", pytest.param("of circuits", marks=pytest.mark.slow)])
def test_ctrl_c_from_outside_keeps_the_plan_written(costs: str, tmp_path: Path) -> None:
    """A process of its own and all that it started: the signal comes when its first plan is on disk."""
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    code = """
import os, signal, sys
from dagtrain import cli
from dagtrain.flow import place_step
from dagtrain.flow.workspace import Workspace
from tests.flow_support import QuickEstimator
if sys.argv.pop(1) == "quick":
    place_step.Estimator = QuickEstimator
leave = Workspace.leave
def left(*words):
    leave(*words)
    print("written", flush=True)
    sys.stdin.readline()
Workspace.leave = left
cli.main()
"""
    words = ["place", "--devices", str(case.cluster), *OPTIONS, "--out", str(case.out)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", code, costs, *words]
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        early = _plan(case)
        os.killpg(process.pid, signal.SIGINT)
        try:
            out, error = process.communicate("\n" * 9, timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, error
    assert "goes on from this plan" in out
    assert "Traceback" not in error
    assert _plan(case).cycles_per_frame <= early.cycles_per_frame
