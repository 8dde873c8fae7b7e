"""Jobs on the workers of Dask distributed: those of a scheduler that runs somewhere, or a cluster made for the occasion
on this machine.

Dask does a job anew whose worker is lost; what jobs have in common is sent once, in a form from which it can be made
again whoever is lost.  Workers do nothing with other sources than those of the program that sends jobs.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import uuid4

import dask
import distributed

from dagtrain.runs.job import Job, Outcome, Report, T, attempt
from dagtrain.runs.local import lost
from dagtrain.runs.runner import TRIES
from hdl.errors import DagtrainError

# until a scheduler answers
CONNECT_SECONDS = 10
# of a cluster made for the occasion, which has an HTTP server even without a dashboard: any free port, so that two
# such clusters go on one machine
HTTP_ADDRESS = "127.0.0.1:0"
# what a job and its words may take without a warning
LARGE = "distributed.admin.large-graph-warning-threshold"


class ProgramsDiffer(DagtrainError):
    """A worker has other sources than the program that sends it jobs."""


@dataclass(frozen=True)
class DaskRunner:
    """The workers of a scheduler, or ``workers`` processes of this machine."""

    # None: a cluster of processes on this machine, which ends with the jobs
    scheduler: str | None
    # of that cluster; None: one a core
    workers: int | None
    # a function of a module: fingerprint of the sources at work
    program: Callable[[], str]

    def outcomes(self, jobs: Sequence[Job[T]]) -> Iterator[Outcome[T]]:
        """What comes of each job, as it ends; see `Runner`.  Raises `DagtrainError` where no scheduler answers."""
        if not jobs:
            return
        with ExitStack() as stack:
            client = self._client(stack, len(jobs))
            futures = self._sent(client, jobs)
            for future in distributed.as_completed(futures):
                job = futures[future]
                yield _outcome(job, future)

    def _client(self, stack: ExitStack, jobs: int) -> distributed.Client:
        """Of the scheduler that is there, or of a new one; all that was begun ends with ``stack``."""
        quiet = {"distributed.scheduler.allowed-failures": TRIES - 1, LARGE: "1 TiB"}
        stack.enter_context(dask.config.set(quiet))
        address = self.scheduler or stack.enter_context(
            distributed.LocalCluster(
                n_workers=min(jobs, self.workers or len(os.sched_getaffinity(0))),
                threads_per_worker=1,
                dashboard_address=HTTP_ADDRESS,
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
            )
        )
        try:
            return stack.enter_context(distributed.Client(address, timeout=CONNECT_SECONDS))
        except (OSError, ValueError) as error:
            raise DagtrainError(
                f"--scheduler {self.scheduler}: no Dask scheduler answers ({error})",
                "start one with `dask scheduler`, and workers with `dask worker ADDRESS`",
            ) from error

    def _sent(self, client: distributed.Client, jobs: Sequence[Job[T]]) -> dict[distributed.Future, Job[T]]:
        """What will come of each job."""
        shared = _shared(client, jobs)
        program, run = self.program(), uuid4().hex
        return {
            client.submit(
                _checked, self.program, program, job.work, *(shared.get(id(word), word) for word in job.words),
                key=f"{job.name}-{number}-{run}", pure=False, priority=-number,
            ): job
            for number, job in enumerate(jobs)
        }  # fmt: skip


def _shared(client: distributed.Client, jobs: Sequence[Job[Any]]) -> dict[int, distributed.Future]:
    """Words that several jobs have in common, by identity, as what makes them again from their bytes."""
    words = {id(word): word for job in jobs for word in job.words}
    counts = Counter(number for job in jobs for number in {id(word) for word in job.words})
    return {
        number: client.submit(pickle.loads, pickle.dumps(word), pure=False)
        for number, word in words.items()
        if counts[number] > 1
    }


def _checked(program: Callable[[], str], wanted: str, work: Callable[..., T], *words: Any) -> Report[T]:
    """Do a job in a worker, if its sources are those that the job was made by."""
    if _fingerprint(program) != wanted:
        where = distributed.get_worker().address
        what, cure = f"worker {where} has other sources of dagtrain", "install the same version there"
        return Report(None, ProgramsDiffer(what, cure), 0.0)
    return attempt(work, *words)


@cache
def _fingerprint(program: Callable[[], str]) -> str:
    return program()


def _is_unknown(job: Job[Any], error: ImportError | RuntimeError) -> bool:
    """Whether it is that a scheduler (from Dask 2024.12 on) or a worker doesn't know the function that it is sent, and
    not that the job itself imports in vain."""
    if isinstance(error, ImportError):
        return bool(error.name) and f"{job.work.__module__}.".startswith(f"{error.name}.")
    return "deserialization" in str(error)


def _outcome(job: Job[T], future: distributed.Future) -> Outcome[T]:
    try:
        report: Report[T] = future.result()
    except distributed.KilledWorker:
        return Outcome(job, None, lost(job.name), 0.0)
    except (ImportError, RuntimeError) as error:
        if not _is_unknown(job, error):
            error.add_note(f"in {job.name}")
            raise
        what = f"scheduler or workers of Dask cannot import dagtrain ({error.__cause__ or error})"
        raise ProgramsDiffer(what, "install the same version there, and start them anew") from error
    except BaseException as fault:
        fault.add_note(f"in {job.name}")
        raise
    return report.of(job)
