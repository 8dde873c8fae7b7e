"""One function over many layers, in as many processes as there are cores, where that pays."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from hdl.layers.base import Layer

# layers that are worth starting processes for, which takes a second or two
LEAST_PARALLEL = 16

T = TypeVar("T")


def in_processes(work: Callable[[Layer], T], layers: Mapping[str, Layer]) -> Iterator[tuple[str, T]]:
    """(key, result of ``work``) of every layer, or of none if they are few or there is one core.

    The widest layers come first, so that no process is left with one of them at the end.  ``work`` must be a function
    of a module."""
    workers = len(os.sched_getaffinity(0))
    if workers < 2 or len(layers) < LEAST_PARALLEL:
        return
    order = sorted(layers, key=lambda key: (-layers[key].multipliers, key))
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _leave_interrupts_to_the_parent)
    try:
        yield from zip(order, pool.map(work, [layers[key] for key in order]), strict=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
