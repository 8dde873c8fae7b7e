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

# moves to repair a placement that did not survive rounding, as a share of a chain's
REPAIR_SHARE = 0.3
# tries to repair, each with other factors for the items' exchange rates
REPAIRS = 3
# energy up to which a state is worth repairing
NEAR = 0.05


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

    def attempt(self, cycles: int, moves: int, best: Assignment | None) -> Assignment | None:
        """A placement at T or None. Even chains move light items with their neighbours, odd ones every item by itself.
        Every other time even chains start from `best` and cooler; else chains start afresh from mirrored ranges of
        layers over the devices in some order."""
        self.runs += 1
        self.moves += moves
        with ThreadPoolExecutor(max_workers=self.workers) as pool:
            chains: list[Future[Assignment | None]] = [
                pool.submit(self._chain, cycles, moves, best, chain) for chain in range(self.workers)
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
        if best is not None and chain % 2 == 0 and self.runs % 2 == 0:
            return encode.start_from(encoded, self.instance, best), anneal.HOTTEST * 0.4
        rng = np.random.default_rng(self._seed(chain)) if self.runs > 2 or chain % 2 else None
        return encode.mirror_start(encoded.problem, rng), anneal.HOTTEST

    def _chain(self, cycles: int, moves: int, best: Assignment | None, chain: int) -> Assignment | None:
        """What one chain finds. Odd chains let devices mix exchange rates first; what does not survive rounding is
        annealed further with one rate a device, which needs no rounding, and with other factors for the items."""
        seed, merge = self._seed(chain), chain % 2 == 0
        start: encode.Start | None = None
        hottest = anneal.HOTTEST
        for repair in range(1 + REPAIRS):
            mixes = chain % 2 == 1 and repair == 0
            encoded = encode.encode(self.instance, self.flat, cycles, merge=merge, mixes=mixes, seed=seed + repair)
            if encoded is None:
                return None
            if start is None:
                start, hottest = self._start(encoded, best, chain)
            elif repair == 1:
                moves, hottest = max(1, int(moves * REPAIR_SHARE)), anneal.HOTTEST * 0.2
            energy, start = anneal.anneal(
                encoded.problem, encode.repaired(encoded.problem, start), moves=moves, seed=seed, hottest=hottest,
                stop=self.stop,
            )  # fmt: skip
            if self.stop[0] or energy > NEAR:
                return None
            found = settle(encoded, self.instance, start, self.seed) if energy <= 0.0 else None
            if found is not None:
                return found if self.holds(found, cycles) else None
        return None

    def holds(self, assignment: Assignment, cycles: int) -> bool:
        """Whether hops and rates hold exactly at T: the kernel adds up floats, this does not."""
        least = least_cycles(self.instance, assignment)
        return least is not None and least <= cycles and not unequal_joins(self.instance, assignment.devices)
