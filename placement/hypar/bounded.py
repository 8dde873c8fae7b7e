"""The least sum of costs of nodes and of pairs of nodes where elimination's tables are too large: by CP-SAT, with a
bound that is proven.

Variables, in English:
    is[i, a]        node i has label a
    both[i, j, a, b]   node i has label a and node j, paired with it, label b

The labels of a pair agree with those of its nodes: sums of `both` over b are `is[i, a]`, over a `is[j, b]`.  Left out
are labels that no least sum has (`domination`), and of a pair's costs what its rows and columns have in common, which
nodes bear.  (Wainwright and Jordan, "Graphical Models, Exponential Families, and Variational Inference", 2008: the
local polytope.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

from hdl.errors import DagtrainError
from placement.exact.model import Effort, solve
from placement.hypar.domination import undominated

Table = npt.NDArray[np.float64]
Pair = tuple[str, str, Table]
# labels of a node beyond which comparing them all takes too long
MOST_LABELS = 64
# halvings of the smallest share of an integer, and how large sums may be
MOST_HALVINGS, MOST_COST = 40, 2.0**60


@dataclass(frozen=True)
class Found:
    """Labels with their cost, and a cost that none is below."""

    cost: float
    labels: dict[str, int]
    bound: float


def least(single: Mapping[str, Table], pairs: Sequence[Pair], effort: Effort) -> Found:
    """The least sum that is found.  Raises `DagtrainError` where there are too many labels."""
    if max(map(len, single.values())) > MOST_LABELS:
        raise DagtrainError(
            f"layers are joined so closely that {max(map(len, single.values()))} choices of each are too many",
            "ask for fewer levels, or leave out --exact",
        )
    left = undominated(single, pairs)
    costs = {name: table[left[name]] for name, table in single.items()}
    tables = [(a, b, table[np.ix_(left[a], left[b])]) for a, b, table in pairs]
    scale = _scale([*costs.values(), *(table for _, _, table in tables)])
    model, chosen = _model(costs, tables, scale)
    solver, status = solve(model, effort)
    is_known = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    labels = {}
    for name, variables in chosen.items():
        # with none found each node goes by its own costs
        values = [solver.value(variable) for variable in variables] if is_known else -costs[name]
        labels[name] = int(left[name][np.argmax(values)])
    cost = sum(float(table[labels[name]]) for name, table in single.items())
    cost += sum(float(table[labels[a], labels[b]]) for a, b, table in pairs)
    if status == cp_model.OPTIMAL:
        return Found(cost, labels, cost)
    alone = sum(float(table.min()) for table in (*costs.values(), *(table for _, _, table in tables)))
    return Found(cost, labels, max(alone, solver.best_objective_bound / scale))


def _scale(tables: Sequence[Table]) -> float:
    """What makes all costs integers."""
    scale = 1.0
    while any((scale * table % 1).any() for table in tables):
        scale *= 2
        assert scale <= 2.0**MOST_HALVINGS, "amounts are shares of integers"
    if scale * sum(float(np.abs(table).max()) for table in tables) > MOST_COST:
        raise DagtrainError("amounts are too large to be compared exactly", "ask for fewer levels or a smaller batch")
    return scale


def _model(
    costs: Mapping[str, Table], tables: Sequence[Pair], scale: float
) -> tuple[cp_model.CpModel, dict[str, list[cp_model.IntVar]]]:
    """And is[i, a] of every node."""
    model = cp_model.CpModel()
    chosen = {name: [model.new_bool_var(f"is[{name}, {a}]") for a in range(len(costs[name]))] for name in costs}
    bears = {name: scale * table for name, table in costs.items()}
    terms: list[tuple[cp_model.IntVar, float]] = []
    for variables in chosen.values():
        model.add_exactly_one(variables)
    for a, b, table in tables:
        rest = scale * table
        rows = rest.min(axis=1)
        rest = rest - rows[:, None]
        columns = rest.min(axis=0)
        rest = rest - columns[None, :]
        bears[a] = bears[a] + rows
        bears[b] = bears[b] + columns
        if rest.any():
            terms += _both(model, chosen[a], chosen[b], rest)
    for name, variables in chosen.items():
        terms += zip(variables, bears[name], strict=True)
    model.minimize(sum(int(cost) * variable for variable, cost in terms if cost))
    return model, chosen


def _both(
    model: cp_model.CpModel, first: Sequence[cp_model.IntVar], second: Sequence[cp_model.IntVar], rest: Table
) -> list[tuple[cp_model.IntVar, float]]:
    """Costs of both[i, j, a, b]."""
    both = [[model.new_bool_var("") for _ in second] for _ in first]
    for variable, row in zip(first, both, strict=True):
        model.add(sum(row) == variable)
    for variable, column in zip(second, zip(*both, strict=True), strict=True):
        model.add(sum(column) == variable)
    return [(both[a][b], float(rest[a, b])) for a, b in zip(*np.nonzero(rest), strict=True)]
