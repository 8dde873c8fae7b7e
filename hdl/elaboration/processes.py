"""One function over many circuits, in as many processes as there are cores, where that pays."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from hdl.errors import ProcessLost

# layers that are worth starting processes for, which takes a second or two, and layers worth handing to those there are
LEAST_TO_START, LEAST_TO_SHARE = 16, 2
# allocations, and collections of the younger generation, after which Python looks for cycles in such a process
RARELY = 50_000, 50, 100

T = TypeVar("T")


class Circuit(Protocol):
    """What is worked on, such as a layer; it can be sent to another process."""

    @property
    def multipliers(self) -> int:
        """Those in parallel: what takes longest has most."""


CircuitT = TypeVar("CircuitT", bound=Circuit)

# the processes once they have been started: they stay until this one ends
_pool: ProcessPoolExecutor | None = None


def in_processes(
    work: Callable[[CircuitT], T], circuits: Mapping[str, CircuitT], least: int = LEAST_TO_START
) -> Generator[tuple[str, T], None, None]:
    """(key, result of ``work``) of every circuit, or of none if there is one core, or fewer than ``least`` to start
    processes for.

    The widest come first, so that no process is left with one of them at the end.  ``work`` must be a function of a
    module.  Raises `ProcessLost` when one of the processes is ended from outside; those that are left end, too."""
    global _pool
    workers = len(os.sched_getaffinity(0))
    if workers < 2 or len(circuits) < (least if _pool is None else LEAST_TO_SHARE):
        return
    order = sorted(circuits, key=lambda key: (-circuits[key].multipliers, key))
    pool, _pool = _pool or _started(workers), None
    try:
        begun = [pool.submit(work, circuits[key]) for key in order]
        for key, result in zip(order, begun, strict=True):
            yield key, result.result()
        _pool = pool
    except BrokenProcessPool as error:
        raise ProcessLost(
            f"one of {workers} processes that elaborate circuits was ended from outside, as when memory runs out",
            "give this command more memory; what was elaborated is kept, so it goes on from there",
        ) from error
    finally:
        # interrupted or failed: nobody waits for the rest
        if _pool is not pool:
            end_pool(pool)


def _started(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), begin_worker)


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End a pool with what its processes are at: a wide layer takes them seconds, in which nobody could leave."""
    # `terminate_workers` of Python 3.14; what is cancelled before is an error of the pool's own thread
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False)
    for process in processes:
        process.terminate()


def begin_worker() -> None:
    """Leave interrupts to the parent, and end when it does, even when it is killed."""
    # nearly all that elaboration makes lives as long as its circuit: to look through it is in vain
    gc.freeze()
    gc.set_threshold(*RARELY)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
