"""The aggregate bound: all devices of a part melted into one, links, hops and configurations' integrality dropped.

Devices that are melted into one are a *pool*. With prices λ ≥ 0 for every resource of every pool, no placement at T
costs less than

    Σ_items min over (pool, configuration usable at T) of λ · costs      (items of a tile group: the best common tile)

and none may cost more than λ · capacities. If the first exceeds the second, T is impossible: λ is the certificate, and
it is checked in integers. Good prices come from the cutting-plane method (Kelley 1960; Dantzig and Wolfe's master,
seen from the dual): each evaluation yields the load of the cheapest choice, a linear upper bound on the value of every
other price. The prices are also the shadow prices of the cluster's resources.

One evaluation takes milliseconds for thousands of items, so T is bisected. Where items are known, or assumed, to stand
on certain devices (`placement.bounds.cases`), these devices are pools of their own. Of the network it knows nothing, so
it holds over a switch as on cables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit
from ortools.linear_solver import pywraplp

from placement.problem.flat import Flat, Floats, Ints
from placement.problem.instance import Instance

# prices are rounded to multiples of 1 / SCALE of a part's whole capacity
SCALE = 2**40
# cutting planes for one T
MOST_CUTS = 80


@dataclass(frozen=True)
class Certificate:
    """Proof that T is impossible: prices at which everything costs more than the cluster is worth."""

    cycles_per_frame: int
    # (pool, 4): price of one DSP block, M20K block, ALM, DRAM byte a frame, integers of a common unit
    prices: Ints
    # least total cost at these prices, and the cluster's worth
    cost: int
    worth: int


class Aggregate:
    """Refutes values of T for one instance.

    Args:
        apart: item → device (positions), for items that are taken to stand there; each of these devices is a pool.
    """

    def __init__(self, instance: Instance, flat: Flat, apart: Mapping[int, int] | None = None) -> None:
        self.instance, self.flat = instance, flat
        apart = apart or {}
        alone = {device: len(flat.parts) + n for n, device in enumerate(sorted(set(apart.values())))}
        # device → pool, pool → part: one pool a part, in the order of parts, then the devices apart
        self.pool = [alone.get(n, flat.parts.index(device.part)) for n, device in enumerate(instance.devices)]
        self.part = np.array(
            [*range(len(flat.parts)), *(flat.parts.index(instance.devices[n].part) for n in alone)], dtype=np.int64
        )
        # item → the pool it must be in, −1: any
        self.only = np.full(len(instance.items), -1, dtype=np.int64)
        for i, item in enumerate(instance.items):
            device = apart.get(i, None if item.pinned is None else instance.device_index[item.pinned])
            if device is not None:
                self.only[i] = self.pool[device]
        self.widest = max([len(names) for names in flat.tiles], default=1)

    def capacities(self, cycles: int) -> Ints:
        """(pool, 4): DSP, M20K, ALM and DRAM bytes a frame of all devices of a pool together at T."""
        return self._gather(cycles, np.add)

    def _gather(self, cycles: int, combine: np.ufunc) -> Ints:
        """(pool, 4): the sum, or the maximum, of what its devices have."""
        totals = np.zeros((len(self.part), 4), dtype=np.int64)
        for device, pool in zip(self.instance.devices, self.pool, strict=True):
            dram = min(2**53, device.dram_bytes_per_s * cycles // self.instance.clock_hz)
            totals[pool] = combine(totals[pool], np.array([*device.capacities, dram], dtype=np.int64))
        return totals

    def refute(self, cycles: int) -> Certificate | None:
        """Proof that T is impossible, or None if this relaxation allows it (or prices were not found)."""
        totals = self.capacities(cycles)
        cuts: list[Floats] = []
        prices = np.full(totals.shape, 1.0 / totals.size)
        for _ in range(MOST_CUTS):
            certificate, load = self._check(cycles, prices, totals)
            if certificate is not None:
                return certificate
            if load is None:
                return self._unbuildable(cycles, totals)
            cuts.append(load / np.maximum(totals, 1) + np.where((totals == 0) & (load > 0), 1e3, 0.0))
            value, prices = _best_prices(cuts)
            if value <= 1.0:
                return None
        return None

    def prices(self, cycles: int) -> Floats:
        """(pool, 4): the prices, as shares of the worth of the whole cluster, at which this T comes closest to
        costing too much: what is scarce costs most."""
        totals = self.capacities(cycles)
        cuts: list[Floats] = []
        prices = np.full(totals.shape, 1.0 / totals.size)
        for _ in range(MOST_CUTS):
            _, load = self._check(cycles, prices, totals)
            if load is None:
                break
            cuts.append(load / np.maximum(totals, 1) + np.where((totals == 0) & (load > 0), 1e3, 0.0))
            value, best = _best_prices(cuts)
            if (prices * cuts[-1]).sum() >= value - 1e-6:
                break
            prices = best
        return prices

    def _check(self, cycles: int, prices: Floats, totals: Ints) -> tuple[Certificate | None, Floats | None]:
        """Evaluate prices (shares of capacity): a certificate if they refute T, and the load of the cheapest choice
        (None if some item has no choice)."""
        whole = np.floor(prices * SCALE / np.maximum(totals, 1)).astype(np.int64)
        # a resource that a part lacks may cost anything; nothing that needs it is usable there
        whole = np.where(totals == 0, 0, whole)
        limits = self._gather(cycles, np.maximum)
        flat = self.flat
        cost, load = _cheapest(
            flat.cycles, flat.costs, flat.tile, flat.start, flat.group, len(flat.parts), self.part, self.only, cycles,
            limits, whole, max(1, len(flat.tiles)), max(1, self.widest),
        )  # fmt: skip
        if cost < 0:
            return None, None
        worth = int((whole.astype(object) * totals.astype(object)).sum())
        return (Certificate(cycles, whole, int(cost), worth) if int(cost) > worth else None), load

    def _unbuildable(self, cycles: int, totals: Ints) -> Certificate:
        return Certificate(cycles, np.zeros_like(totals), 1, 0)


def _best_prices(cuts: list[Floats]) -> tuple[float, Floats]:
    """Prices (shares that add up to 1) with the largest least value over the loads seen so far, and that value."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    shape = cuts[0].shape
    shares = [solver.NumVar(0.0, 1.0, "") for _ in range(cuts[0].size)]
    value = solver.NumVar(0.0, solver.infinity(), "")
    solver.Add(sum(shares) == 1.0)
    for load in cuts:
        row = solver.Constraint(0.0, solver.infinity())
        row.SetCoefficient(value, -1.0)
        for share, use in zip(shares, load.ravel(), strict=True):
            row.SetCoefficient(share, float(use) if use > 1e-9 else 0.0)
    solver.Maximize(value)
    status = solver.Solve()
    assert status == pywraplp.Solver.OPTIMAL, f"GLOP ends with status {status} on a bounded feasible program"
    found = np.array([max(0.0, share.solution_value()) for share in shares]).reshape(shape)
    return float(value.solution_value()), found / found.sum()


@njit(cache=True, nogil=True)
def _cheapest(
    cycles: Ints, costs: Ints, tile: Ints, start: Ints, group: Ints, parts: int, part: Ints, only: Ints, T: int,
    limits: Ints, prices: Ints, groups: int, widest: int,
) -> tuple[int, Floats]:  # fmt: skip
    """(least cost of all items at integer prices, −1 if some item has no choice; (pool, 4) load of that choice)."""
    items, pools = len(group), len(limits)
    best = np.full(items, -1, dtype=np.int64)
    row_of = np.zeros(items, dtype=np.int64)
    sums = np.zeros((groups, widest), dtype=np.int64)
    for sweep in range(2):
        if sweep == 1:
            tile_of = np.zeros(groups, dtype=np.int64)
            for g in range(groups):
                for t in range(widest):
                    if sums[g, t] >= 0 and (sums[g, tile_of[g]] < 0 or sums[g, t] < sums[g, tile_of[g]]):
                        tile_of[g] = t
        least = np.empty(widest, dtype=np.int64)
        for i in range(items):
            g = group[i]
            if sweep == 1 and g < 0:
                continue
            least[:] = -1
            for p in range(pools):
                if only[i] >= 0 and only[i] != p:
                    continue
                for row in range(start[i * parts + part[p]], start[i * parts + part[p] + 1]):
                    t = tile[row]
                    if cycles[row] > T or (sweep == 1 and t != tile_of[g]):
                        continue
                    value = 0
                    usable = True
                    for r in range(4):
                        usable = usable and costs[row, r] <= limits[p, r]
                        value += prices[p, r] * costs[row, r]
                    if usable and (least[t] < 0 or value < least[t]):
                        least[t] = value
                        if g < 0 or sweep == 1:
                            best[i] = value
                            row_of[i] = p * len(cycles) + row
            if g >= 0 and sweep == 0:
                for t in range(widest):
                    sums[g, t] = -1 if least[t] < 0 or sums[g, t] < 0 else sums[g, t] + least[t]
    load = np.zeros((pools, 4))
    total = 0
    for i in range(items):
        if best[i] < 0:
            return -1, load
        total += best[i]
        for r in range(4):
            load[row_of[i] // len(cycles), r] += costs[row_of[i] % len(cycles), r]
    return total, load
