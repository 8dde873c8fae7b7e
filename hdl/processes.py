"""One function over many layers, in as many processes as there are cores, where that pays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from hdl.layers.base import Layer

# layers that are worth starting processes for, which takes a second or two, and layers worth handing to those there are
LEAST_TO_START, LEAST_TO_SHARE = 16, 2

T = TypeVar("T")

# the processes once they have been started: they stay until this one ends
_pool: ProcessPoolExecutor | None = None


def in_processes(work: Callable[[Layer], T], layers: Mapping[str, Layer]) -> Iterator[tuple[str, T]]:
    """(key, result of ``work``) of every layer, or of none if they are few or there is one core.

    The widest layers come first, so that no process is left with one of them at the end.  ``work`` must be a function
    of a module."""
    global _pool
    workers = len(os.sched_getaffinity(0))
    if workers < 2 or len(layers) < (LEAST_TO_START if _pool is None else LEAST_TO_SHARE):
        return
    order = sorted(layers, key=lambda key: (-layers[key].multipliers, key))
    pool, _pool = _pool or _started(workers), None
    try:
        yield from zip(order, pool.map(work, [layers[key] for key in order]), strict=True)
        _pool = pool
    finally:
        # interrupted or failed: what was not begun never is
        if _pool is not pool:
            pool.shutdown(wait=False, cancel_futures=True)


def _started(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _follow_parent)


def _follow_parent() -> None:
    """Leave interrupts to the parent, and end when it does, even when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
