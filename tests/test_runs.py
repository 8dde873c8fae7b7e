"""Jobs over processes and machines: all are done, failures are told by job, and a worker that is lost loses nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.runs.dask import DaskRunner
from dagtrain.runs.job import Job
from dagtrain.runs.local import LocalRunner, shares
from dagtrain.runs.runner import TRIES, Runner, RunnerOptions, runner_of
from hdl.errors import DagtrainError, ProcessLost
from tests import run_jobs

ROOT = Path(__file__).parent.parent
# until workers of Dask are there or a job has begun
PATIENCE_SECONDS = 120
# that Dask takes where nobody says otherwise
DASK_HTTP_PORT = 8787


def jobs(work: Any, numbers: Sequence[int], *words: Any) -> list[Job[Any]]:
    return [Job(f"job {number}", work, (number, *words)) for number in numbers]


def results(runner: Runner, wanted: Sequence[Job[Any]]) -> dict[str, Any]:
    return {outcome.job.name: outcome.value for outcome in runner.outcomes(wanted)}


SQUARES = {f"job {number}": number * number for number in range(5)}


@pytest.mark.parametrize("workers", [1, 2])
def test_all_jobs_are_done_once_each(workers: int) -> None:
    assert results(LocalRunner(workers), jobs(run_jobs.square, range(5))) == SQUARES
    assert results(LocalRunner(workers), []) == {}


def test_one_worker_is_this_process_and_several_share_its_cores() -> None:
    mine = os.getpid(), tuple(sorted(os.sched_getaffinity(0)))
    assert set(results(LocalRunner(1), jobs(run_jobs.where, range(3))).values()) == {mine}
    found = set(results(LocalRunner(2), jobs(run_jobs.where, range(4))).values())
    assert len(found) == 2
    assert mine[0] not in {process for process, _ in found}
    assert {cores for _, cores in found} == set(shares(mine[1], 2))


def test_every_core_is_somebody_s_and_no_worker_is_without() -> None:
    assert shares([0, 1, 2, 3, 4], 2) == [(0, 2, 4), (1, 3)]
    assert shares([7], 3) == [(7,), (7,), (7,)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_is_refused_leaves_the_others_alone(workers: int) -> None:
    found = {outcome.job.name: outcome for outcome in LocalRunner(workers).outcomes(jobs(run_jobs.refused, range(4)))}
    assert {name: outcome.result for name, outcome in found.items() if outcome.error is None} == {
        "job 0": 0,
        "job 2": 2,
    }
    assert {str(outcome.error) for outcome in found.values() if outcome.error} == {
        "1 is odd; double it", "3 is odd; double it",
    }  # fmt: skip
    with pytest.raises(DagtrainError, match="1 is odd; double it"):
        _ = found["job 1"].value


def test_a_fault_of_the_program_says_in_which_job() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(LocalRunner(2).outcomes(jobs(run_jobs.broken, [1, 0, 2])))
    assert caught.value.__notes__ == ["in job 0"]


def test_a_job_whose_process_is_killed_is_done_anew_and_no_other_is(tmp_path: Path) -> None:
    wanted = [
        *jobs(run_jobs.noted, range(3), tmp_path, 0.2),
        *(Job(f"job {number}", run_jobs.killed_at_first, (number, tmp_path, TRIES - 1)) for number in (3, 4)),
    ]
    assert results(LocalRunner(2), wanted) == SQUARES
    assert [len(list(tmp_path.glob(f"{number}-*"))) for number in range(3)] == [1, 1, 1]
    assert {(tmp_path / f"tried-{number}").read_text() for number in (3, 4)} == {"x" * TRIES}


def test_a_job_that_kills_every_process_is_told_and_the_others_are_done(tmp_path: Path) -> None:
    wanted = [Job("heavy", run_jobs.killed_at_first, (9, tmp_path, TRIES)), *jobs(run_jobs.square, range(5))]
    found = {outcome.job.name: outcome for outcome in LocalRunner(2).outcomes(wanted)}
    assert isinstance(found["heavy"].error, ProcessLost)
    assert "heavy: 3 workers that tried it were ended from outside" in str(found["heavy"].error)
    assert {name: outcome.value for name, outcome in found.items() if name != "heavy"} == SQUARES
    assert (tmp_path / "tried-9").read_text() == "x" * TRIES


def test_who_leaves_early_leaves_no_process(tmp_path: Path) -> None:
    outcomes = LocalRunner(2).outcomes([*jobs(run_jobs.square, [1]), *jobs(run_jobs.noted, [2], tmp_path, 600.0)])
    assert next(outcomes).value == 1
    waited = time.monotonic()
    while not (begun := list(tmp_path.iterdir())):
        assert time.monotonic() - waited < PATIENCE_SECONDS
        time.sleep(0.05)
    process = int(begun[0].name.split("-")[1])
    outcomes.close()
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() - waited < PATIENCE_SECONDS
        time.sleep(0.05)


def test_all_that_is_wrong_with_a_runner_is_told_at_once() -> None:
    with pytest.raises(DagtrainError) as caught:
        RunnerOptions(runner="cluster", workers=0)
    assert str(caught.value) == (
        "--runner cluster: no such runner; one of local, dask; --workers 0: not a number of workers; write at least 1"
    )
    with pytest.raises(DagtrainError, match="only Dask has a scheduler; add --runner dask"):
        RunnerOptions(scheduler="tcp://127.0.0.1:1")
    with pytest.raises(DagtrainError, match="give --scheduler or --workers"):
        RunnerOptions(runner="dask", scheduler="tcp://127.0.0.1:1", workers=2)


def test_dask_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.runs.runner.find_spec", lambda _: None)
    with pytest.raises(DagtrainError, match=r"not installed; install it with `pip install 'dagtrain\[dask\]'`"):
        RunnerOptions(runner="dask")


def test_dask_does_all_jobs_with_what_they_share_and_refuses_some() -> None:
    shared = np.arange(1000)
    wanted = [Job(f"total {number}", run_jobs.total, (shared, number)) for number in range(3)]
    runner = runner_of(RunnerOptions(runner="dask", workers=1), run_jobs.program)
    found = {outcome.job.name: outcome for outcome in runner.outcomes([*wanted, *jobs(run_jobs.refused, [1])])}
    assert str(found.pop("job 1").error) == "1 is odd; double it"
    assert {name: outcome.value for name, outcome in found.items()} == {
        f"total {number}": 499500 + number for number in range(3)
    }


def test_two_clusters_made_for_the_occasion_go_on_one_machine() -> None:
    with ExitStack() as stack:
        with suppress(OSError):  # another program has it already: as good
            stack.enter_context(socket.create_server(("", DASK_HTTP_PORT)))
        assert results(
            runner_of(RunnerOptions(runner="dask", workers=1), run_jobs.program), jobs(run_jobs.square, [3])
        ) == {"job 3": 9}


def test_a_job_that_imports_in_vain_is_no_other_version() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught:
        list(
            runner_of(RunnerOptions(runner="dask", workers=1), run_jobs.program).outcomes(jobs(run_jobs.forgetful, [1]))
        )
    assert caught.value.__notes__ == ["in job 1"]


@contextmanager
def dask_on_this_machine(
    folder: Path, workers: int, path: Path = ROOT
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and workers, programs of their own as users start them, that find modules in ``path``: address,
    workers."""
    place = folder / "scheduler.json"
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *words, "--no-dashboard", "--scheduler-file", str(place)]
        where = {**os.environ, "PYTHONPATH": str(path)}
        process = subprocess.Popen(command, cwd=folder, env=where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started.append(process)
        return process

    try:
        start("scheduler", "--host", "127.0.0.1", "--port", "0")
        began = time.monotonic()
        while not place.exists():
            assert time.monotonic() - began < PATIENCE_SECONDS
            time.sleep(0.1)
        running = [start("worker", "--nthreads", "1", "--no-nanny") for _ in range(workers)]
        yield json.loads(place.read_text())["address"], running
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_killing_a_worker_of_a_real_scheduler_in_mid_run_loses_nothing(tmp_path: Path) -> None:
    with dask_on_this_machine(tmp_path, 2) as (address, workers):
        outcomes = DaskRunner(address, None, run_jobs.program).outcomes(jobs(run_jobs.noted, range(5), tmp_path, 1.0))
        found: dict[str, Any] = {}
        killed = None
        for outcome in outcomes:
            found[outcome.job.name] = outcome.value
            if len(found) == 2:
                killed = one_at_work(workers, tmp_path, found)
                killed.send_signal(signal.SIGKILL)
        assert killed is not None
        assert killed.wait() == -signal.SIGKILL
        assert found == SQUARES
        assert {process for _, process in begun(tmp_path)} == {worker.pid for worker in workers}, "the other went on"


def begun(folder: Path) -> list[tuple[str, int]]:
    """Jobs that have noted their process."""
    names = [path.name.split("-") for path in folder.glob("[0-9]-*")]
    return [(f"job {number}", int(process)) for number, process in names]


def one_at_work(
    workers: Sequence[subprocess.Popen[bytes]], folder: Path, found: dict[str, Any]
) -> subprocess.Popen[bytes]:
    """A worker that has begun what isn't found yet, whichever of them the scheduler has given work."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_SECONDS:
        busy = {process for job, process in begun(folder) if job not in found}
        for worker in workers:
            if worker.pid in busy:
                return worker
        time.sleep(0.01)
    pytest.fail("no worker has begun what is left")


def test_a_worker_with_other_sources_does_nothing(tmp_path: Path) -> None:
    with dask_on_this_machine(tmp_path, 1) as (address, _):
        runner = DaskRunner(address, None, run_jobs.program_of_its_process)
        (outcome,) = runner.outcomes(jobs(run_jobs.square, [2]))
        assert "has other sources of dagtrain; install the same version there" in str(outcome.error)


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.runs.dask.CONNECT_SECONDS", 1)
    with pytest.raises(DagtrainError, match=r"--scheduler tcp://127.0.0.1:9: no Dask scheduler answers"):
        list(DaskRunner("tcp://127.0.0.1:9", None, run_jobs.program).outcomes(jobs(run_jobs.square, [2])))


def test_dask_that_does_not_know_the_program_is_told_what_to_install(tmp_path: Path) -> None:
    with (
        dask_on_this_machine(tmp_path, 1, tmp_path) as (address, _),
        pytest.raises(DagtrainError, match=r"of Dask cannot import dagtrain \(.*\); install the same version there"),
    ):
        list(DaskRunner(address, None, run_jobs.program).outcomes(jobs(run_jobs.square, [2])))
