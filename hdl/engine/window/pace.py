"""How long an engine is at each strip of a frame, in steady state, when nothing stalls it but its own ports.

Results wait in a queue and leave one after another, each for as many cycles as it has beats.  A strip whose results
take longer to leave than to make lasts as long as they do; and where strips are of unlike work, as those of an error
engine with a stride are, the queue helps over no more than it holds.  With w(n) cycles of work on result n and h(n) in
which it leaves, and p places in the queue, its last operation is in cycle

    done(n) = max(done(n - 1), left(n - p)) + w(n)
    left(n) = max(left(n - 1) + h(n - 1), done(n) + latency)
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
from numba import njit

from hdl.engine.window.walk import Walk
from hdl.fixed import IntArray

# frames after which nothing changes any more: a queue is full, or never
SETTLED = 16


def word_beats(elements: int, word: int, lanes: int) -> tuple[int, ...]:
    """Beats of each of the words in which a pixel of so many elements leaves: the last one may not be full."""
    ends = [min(elements, at) for at in range(0, elements + word, word)]
    beats = [-(-end // lanes) for end in ends]
    return tuple(max(1, later - now) for now, later in itertools.pairwise(beats))


def even_shares(total: int, parts: int) -> list[int]:
    """So many as equal parts as whole numbers allow."""
    return [(part + 1) * total // parts - part * total // parts for part in range(parts)]


@lru_cache(maxsize=4096)
def unlike_strips(walk: Walk, holds: tuple[int, ...], latency: int, places: int) -> tuple[int, ...]:
    """Cycles of each strip of one pass whose pixels are of unlike work.

    Args:
        holds: cycles in which each result of a pixel leaves.
        latency: from the last operation on a result until it can leave.
        places: results on which work has ended and that have not left, at most.
    """
    each = [along * down * reduce for along, down, reduce, _ in map(walk.limits, range(walk.phases))]
    if max(holds) <= min(each):
        return tuple(walk.strip_cycles)
    if min(holds) >= max(each):
        return (walk.columns.outputs * sum(holds),) * walk.rows.outputs
    works = np.array(
        [
            [_work(walk, row, column) for column in range(walk.columns.outputs)]
            for row in range(walk.rows.outputs)
        ],
        np.int64,
    )  # fmt: skip
    return tuple(int(cycles) for cycles in _settled(works, np.array(holds, np.int64), latency, places))


def _work(walk: Walk, row: int, column: int) -> int:
    """Operations on each result of a pixel."""
    along, down, reduce, _ = walk.limits(walk.rows.phase(row) * walk.columns.phases + walk.columns.phase(column))
    return along * down * reduce


@njit(cache=True)
def _settled(works: IntArray, holds: IntArray, latency: int, places: int) -> IntArray:
    """Cycles of each row of the first frame that takes as long as the one before."""
    rows, columns = works.shape
    left = np.zeros(places, np.int64)
    found, before = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    done, free, count = 0, 0, 0
    for _ in range(SETTLED):
        for row in range(rows):
            start = done
            for column in range(columns):
                for hold in holds:
                    done = max(done, left[count % places]) + works[row, column]
                    leaves = max(free, done + latency)
                    left[count % places] = leaves
                    free = leaves + hold
                    count += 1
            found[row] = done - start
        if (found == before).all():
            break
        before[:] = found
    return found
