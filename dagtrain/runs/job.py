"""A job, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hdl.errors import DagtrainError

T = TypeVar("T")


@dataclass(frozen=True)
class Job(Generic[T]):
    """Work that may be done in another process, on another machine, and more than once where a worker is lost.

    It leaves nothing but its result."""

    # as progress and errors name it
    name: str
    # a function of a module
    work: Callable[..., T]
    # what it is called with; all can be pickled
    words: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of a job."""

    job: Job[T]
    # None where there is an error
    result: T | None
    # what `Job.work` raised on purpose, or that all workers were lost that tried it
    error: DagtrainError | None
    # of the try that succeeded
    seconds: float

    @property
    def value(self) -> T:
        """The result.  Raises the job's error."""
        if self.error is not None:
            raise self.error
        # a job may well give None
        return self.result  # type: ignore[return-value]


@dataclass(frozen=True)
class Report(Generic[T]):
    """What a worker sends back of a try."""

    result: T | None
    error: DagtrainError | None
    seconds: float

    def of(self, job: Job[T]) -> Outcome[T]:
        """As the outcome of ``job``."""
        return Outcome(job, self.result, self.error, self.seconds)


def attempt(work: Callable[..., T], *words: Any) -> Report[T]:
    """Do a job in this process; errors on purpose are results like any other."""
    began = time.monotonic()
    try:
        result = work(*words)
    except DagtrainError as error:
        return Report(None, error, time.monotonic() - began)
    return Report(result, None, time.monotonic() - began)
