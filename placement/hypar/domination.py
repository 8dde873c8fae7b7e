"""Which labels of a node no least sum can have: another label is cheaper whatever the neighbours' are.

Label a of a node is dominated by b where

    single(a) - single(b) + sum over neighbours of min over their labels of (pair(a, .) - pair(b, .)) > 0.

(Desmet et al., "The dead-end elimination theorem and its use in protein side-chain positioning", Nature 1992; as
Goldstein has it.)  What is left holds every least sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def undominated(single: Mapping[str, Table], pairs: Sequence[tuple[str, str, Table]]) -> dict[str, Labels]:
    """Labels of every node that are left, in order, when none is dominated any more."""
    left = {name: np.arange(len(table)) for name, table in single.items()}
    around: dict[str, list[tuple[str, Table]]] = {name: [] for name in single}
    for a, b, table in pairs:
        around[a].append((b, table))
        around[b].append((a, table.T))
    waiting = dict.fromkeys(single)
    while waiting:
        name = next(iter(waiting))
        del waiting[name]
        kept = left[name][_kept(single[name], left[name], [(table, left[other]) for other, table in around[name]])]
        if len(kept) < len(left[name]):
            left[name] = kept
            waiting |= dict.fromkeys(other for other, _ in around[name])
            waiting[name] = None
    return left


def _kept(single: Table, labels: Labels, around: Sequence[tuple[Table, Labels]]) -> npt.NDArray[np.bool_]:
    """Whether each label is undominated by all of them."""
    more = single[labels][:, None] - single[labels][None, :]
    for table, theirs in around:
        costs = table[np.ix_(labels, theirs)]
        more = more + (costs[:, None, :] - costs[None, :, :]).min(axis=-1)
    return np.asarray((more <= 0).all(axis=1))
