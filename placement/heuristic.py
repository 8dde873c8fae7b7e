"""Looks for a placement at one T by annealing: several chains at once, rounded to configurations, checked exactly.

Chains run side by side in threads (the kernel releases the interpreter's lock). What counts is a chain's number, not
which one ends first, so the outcome does not depend on the machine or its load.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from placement import anneal, encode
from placement.flat import Flat, Ints
from placement.instance import Instance
from placement.plan import Assignment, least_cycles, unequal_joins
from placement.settle import settle

# of M20K and DRAM kept back, one after the other, while placements found do not survive rounding
MARGINS = (0.0, 0.004, 0.015)
# moves to repair a placement that did not survive rounding, as a share of a chain's
REPAIR_SHARE = 0.25


class Annealer:
    """Annealing chains for one instance; remembers where they ended."""

    def __init__(self, instance: Instance, flat: Flat, *, seed: int, workers: int) -> None:
        self.instance, self.flat, self.seed, self.workers = instance, flat, seed, workers
        self.runs = 0
        # moves made so far by each chain, an upper bound
        self.moves = 0
        # set to end all chains at once; what they found is then lost
        self.stop: Ints = np.zeros(1, dtype=np.int64)

    def end(self) -> None:
        """End all chains at once; what they found is lost. For the wall clock, in another thread."""
        self.stop[0] = 1

    def attempt(self, cycles: int, moves: int, best: Assignment | None, *, merge: bool = True) -> Assignment | None:
        """A placement at T or None. The first chain starts from `best` (mirrored ranges without one), the second one
        from `best` but hotter or from ranges over shuffled devices, in turn, and so on."""
        encoded = encode.encode(self.instance, self.flat, cycles, merge=merge)
        if encoded is None:
            return None
        self.runs += 1
        self.moves += moves
        starts = [self._start(encoded, best, chain) for chain in range(self.workers)]
        with ThreadPoolExecutor(max_workers=self.workers) as pool:
            chains: list[Future[Assignment | None]] = [
                pool.submit(self._chain, encoded, start, moves, chain, hottest, merge)
                for chain, (start, hottest) in enumerate(starts)
            ]
            try:
                found = [chain.result() for chain in chains]
            except BaseException:
                self.stop[0] = 1
                raise
        placements = [(least_cycles(self.instance, a) or cycles, k, a) for k, a in enumerate(found) if a is not None]
        return min(placements)[2] if placements else None

    def _seed(self, chain: int) -> int:
        return (self.seed * 1_000_003 + self.runs * 7919 + chain * 104_729) % 2**31

    def _start(self, encoded: encode.Encoded, best: Assignment | None, chain: int) -> tuple[encode.Start, float]:
        """Where a chain starts, and how hot."""
        fresh = chain > 0 and (self.runs + chain) % 2 == 0
        if best is not None and not fresh:
            hottest = anneal.HOTTEST * (0.4 if chain == 0 else 1.0)
            return encode.start_from(encoded, self.instance, best), hottest
        shuffled = chain > 0 or (best is None and self.runs > 1)
        rng = np.random.default_rng(self._seed(chain)) if shuffled else None
        return encode.mirror_start(encoded.problem, rng), anneal.HOTTEST

    def _chain(
        self, encoded: encode.Encoded, start: encode.Start, moves: int, chain: int, hottest: float, merge: bool
    ) -> Assignment | None:
        seed = self._seed(chain)
        problem = encoded.problem
        for margin in MARGINS:
            if margin:
                tighter = encode.encode(self.instance, self.flat, encoded.cycles_per_frame, merge=merge, margin=margin)
                assert tighter is not None, "a smaller capacity changes no menu"
                problem = tighter.problem
                moves, hottest = max(1, int(moves * REPAIR_SHARE)), anneal.HOTTEST * 0.1
            energy, start = anneal.anneal(problem, start, moves=moves, seed=seed, hottest=hottest, stop=self.stop)
            if energy > 0.0 or self.stop[0]:
                return None
            found = settle(encoded, self.instance, start, self.seed)
            if found is not None:
                return found if self.holds(found, encoded.cycles_per_frame) else None
        return None

    def holds(self, assignment: Assignment, cycles: int) -> bool:
        """Whether hops and rates hold exactly at T: the kernel adds up floats, this does not."""
        least = least_cycles(self.instance, assignment)
        return least is not None and least <= cycles and not unequal_joins(self.instance, assignment.devices)
