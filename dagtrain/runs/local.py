"""Jobs in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from dagtrain.runs.job import Job, Outcome, Report, T, attempt
from dagtrain.runs.runner import TRIES
from hdl.elaboration.processes import begin_worker, end_pool
from hdl.errors import ProcessLost


@dataclass(frozen=True)
class LocalRunner:
    """As many processes as are wanted, each with its share of the cores; one does its jobs in this process."""

    # None: one a core
    workers: int | None = None

    def outcomes(self, jobs: Sequence[Job[T]]) -> Iterator[Outcome[T]]:
        """What comes of each job, as it ends; see `Runner`."""
        cores = sorted(os.sched_getaffinity(0))
        workers = min(len(jobs), self.workers or len(cores))
        if workers < 2:
            yield from (attempt(job.work, *job.words).of(job) for job in jobs)
            return
        slots = [_Slot(shares(cores, workers)[index]) for index in range(workers)]
        try:
            yield from _shared_out(jobs, slots)
        finally:
            for slot in slots:
                slot.end()


def shares(cores: Sequence[int], workers: int) -> list[tuple[int, ...]]:
    """The cores of each worker: all cores are somebody's, and where there are fewer than workers, a core is several
    workers'."""
    if len(cores) < workers:
        return [(cores[index % len(cores)],) for index in range(workers)]
    return [tuple(cores[index::workers]) for index in range(workers)]


class _Slot:
    """A process for one job at a time: if it is ended from outside, that says which job it was at."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        self._cores = cores
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, job: Job[T]) -> Future[Report[T]]:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, spawn, _begin, (self._cores,))
        return self._pool.submit(attempt, job.work, *job.words)

    def end(self) -> None:
        if self._pool is not None:
            end_pool(self._pool)
            self._pool = None


def _begin(cores: tuple[int, ...]) -> None:
    begin_worker()
    os.sched_setaffinity(0, cores)


def _shared_out(jobs: Sequence[Job[T]], slots: Sequence[_Slot]) -> Iterator[Outcome[T]]:
    """Outcomes of jobs that idle slots take in order."""
    tries = [0] * len(jobs)
    waiting, idle = deque(range(len(jobs))), deque(slots)
    running: dict[Future[Any], tuple[int, _Slot]] = {}
    while waiting or running:
        while waiting and idle:
            number, slot = waiting.popleft(), idle.popleft()
            tries[number] += 1
            running[slot.submit(jobs[number])] = number, slot
        ended = wait(running, return_when=FIRST_COMPLETED).done
        for future in sorted(ended, key=lambda future: running[future][0]):
            number, slot = running.pop(future)
            idle.append(slot)
            try:
                outcome = future.result().of(jobs[number])
            except BrokenProcessPool:
                slot.end()
                if tries[number] < TRIES:
                    waiting.appendleft(number)
                    continue
                outcome = Outcome(jobs[number], None, lost(jobs[number].name), 0.0)
            except BaseException as fault:
                fault.add_note(f"in {jobs[number].name}")
                raise
            yield outcome


def lost(name: str) -> ProcessLost:
    """The error of a job all of whose workers were lost."""
    return ProcessLost(
        f"{name}: {TRIES} workers that tried it were ended from outside, as when memory runs out",
        "give them more memory, or have fewer at once with --workers; what is done is kept",
    )
