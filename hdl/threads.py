"""Parts of one array's work on all cores at once, for golden models of large maps; results never depend on how many.

Compiled loops and products of matrices let go of Python's lock, so threads are enough.  Small work stays in its thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")

# elements of a compiled loop below which a second thread brings less than it costs
LEAST_ELEMENTS = 1 << 16


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)))


# a forked process has none of the threads
os.register_at_fork(after_in_child=_pool.cache_clear)


def mapped(work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """``work`` of every part, in their order; on all cores if there are several.  ``work`` must not call this."""
    given = list(parts)
    return map(work, given) if len(given) < 2 else _pool().map(work, given)


def in_ranges(work: Callable[[int, int], object], count: int, weight: int = 1) -> None:
    """Calls ``work(first, end)`` for ranges that make up ``count`` things of ``weight`` elements each, a range a core
    where there are enough."""
    ranges = min(count, count * weight // LEAST_ELEMENTS)
    if ranges > 1:
        ranges = min(ranges, len(os.sched_getaffinity(0)))
    if ranges < 2:
        work(0, count)
        return
    own, *others = pairwise(count * number // ranges for number in range(ranges + 1))
    # this thread does one itself: the fewer have to wake up, the sooner all is done
    given = [_pool().submit(work, *bounds) for bounds in others]
    try:
        work(*own)
    finally:
        wait(given)
    for each in given:
        each.result()
