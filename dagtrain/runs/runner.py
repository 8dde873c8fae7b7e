"""Who runs jobs, as the user says it: `--runner local|dask`, `--workers`, `--scheduler`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Protocol

from dagtrain.runs.job import Job, Outcome, T
from hdl.errors import DagtrainError, Problem

# tries of a job whose workers are lost
TRIES = 3


class Runner(Protocol):
    """Runs jobs somewhere."""

    def outcomes(self, jobs: Sequence[Job[T]]) -> Iterator[Outcome[T]]:
        """What comes of each job, as it ends; left early, what is running is ended.

        A job whose worker is lost is done anew, `TRIES` times at most.  A fault of the program in a job is raised, with
        the job's name as a note."""


class Kind(StrEnum):
    """Of runners."""

    # processes of this machine
    LOCAL = "local"
    # workers of Dask distributed, on any machines
    DASK = "dask"


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """What the user said.  Raises `DagtrainError` naming all that is wrong."""

    # of `Kind`
    runner: str = Kind.LOCAL.value
    # how many jobs at once; None: one a core, or all workers of the scheduler
    workers: int | None = None
    # address of a Dask scheduler that runs already, such as tcp://10.0.0.1:8786
    scheduler: str | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise DagtrainError.listing("", problems)


def runner_of(options: RunnerOptions, program: Callable[[], str]) -> Runner:
    """The runner that is wanted; ``program``, a function of a module, gives the fingerprint of the sources at work."""
    if options.runner == Kind.LOCAL:
        from dagtrain.runs.local import LocalRunner

        return LocalRunner(options.workers)
    from dagtrain.runs.dask import DaskRunner

    return DaskRunner(options.scheduler, options.workers, program)


def _problems(options: RunnerOptions) -> Iterator[Problem]:
    kinds = [kind.value for kind in Kind]
    if options.runner not in kinds:
        yield Problem("no such runner", f"one of {', '.join(kinds)}", f"--runner {options.runner}")
    if options.workers is not None and options.workers < 1:
        yield Problem("not a number of workers", "write at least 1", f"--workers {options.workers}")
    if options.scheduler is not None and options.runner == Kind.LOCAL:
        what = "only Dask has a scheduler"
        yield Problem(what, f"add --runner {Kind.DASK.value}", f"--scheduler {options.scheduler}")
    if options.scheduler is not None and options.workers is not None:
        what = "the scheduler's workers are there already"
        yield Problem(what, "give --scheduler or --workers", f"--workers {options.workers}")
    if options.runner == Kind.DASK and find_spec("distributed") is None:
        what = "Dask distributed is not installed"
        yield Problem(what, "install it with `pip install 'dagtrain[dask]'`", f"--runner {options.runner}")
