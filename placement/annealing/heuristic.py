"""Looks for a placement at one T by annealing: several chains at once, rounded to configurations, checked exactly.

Chains run side by side in threads (the kernel releases the interpreter's lock). What counts is a chain's number, not
which one ends first, so the outcome does not depend on the machine or its load.

There are two kinds. *Coarse* chains move light items with their neighbours and give each device one exchange rate,
which needs no rounding: good where multipliers are scarce. *Fine* ones move every item by itself and let devices mix
two rates: good where memories and DRAM are full to the last block.

On a large cluster a chain mostly ends with one thing broken in one place. So what is broken is mended there: only the
items around it move, again and again from the best state so far. A state that does not survive rounding is annealed a
little further, coolly, on devices that seem somewhat smaller, which nearly always helps.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf

import numpy as np

from placement.annealing import anneal, encode
from placement.annealing.settle import settle
from placement.problem.flat import Flat, Ints
from placement.problem.instance import Instance
from placement.problem.plan import Assignment, least_cycles, unequal_joins

# moves to repair a state that is no placement yet, as a share of a chain's, and how hot
REPAIR_SHARE, REPAIR_HOTTEST = 0.3, 0.05 * anneal.HOTTEST
# tries to repair, and the energy up to which a state is worth it
REPAIRS, NEAR = 12, 0.01
# moves to mend what is broken in one place, how hot, and how many units move: fewer and more by turns
MEND_MOVES, MEND_HOTTEST, MEND_UNITS = 400_000, 0.3 * anneal.HOTTEST, (120, 250)
# … where that is at most this share of all units
MEND_SHARE = 0.25
# a placement that is given is mended by units that are broken and those beside them; by more than so many times as many
MENDED_UNITS = (1, 2, 5)
# … and how often again, on devices without room for what was found, which seem so much smaller each time
MENDS, LESS_MENDED = 10, 0.01
# by how much devices seem smaller after each rounding that failed: M20K blocks, and DRAM bandwidth
LESS_M20K, LESS_DRAM = 4, 0.001
# after so many wins in a row a kind of chain has all threads, but for every fourth attempt
STREAK = 2

# a problem, how near a state comes there, and that state
Repaired = tuple[encode.Problem, float, encode.Start]
# anneals a state a little further, given devices without room for what it becomes, and a seed
Repair = Callable[[Repaired, list[int], int], Repaired]


class Annealer:
    """Annealing chains for one instance; remembers where they ended."""

    def __init__(self, instance: Instance, flat: Flat, *, seed: int, workers: int) -> None:
        self.instance, self.flat, self.seed, self.workers = instance, flat, seed, workers
        self.runs = 0
        # moves that each chain was given so far; what mends and repairs comes on top
        self.moves = 0
        # the kind of chain that came nearer last (coarse?), and how often in a row
        self.winner, self.streak = True, 0
        # set to end all chains at once; what they found is then lost
        self.stop: Ints = np.zeros(1, dtype=np.int64)

    def end(self) -> None:
        """End all chains at once; what they found is lost. For the wall clock, in another thread."""
        self.stop[0] = 1

    def attempt(
        self, cycles: int, moves: int, best: Assignment | None, *, given: bool = False, every: bool = False
    ) -> Assignment | None:
        """A placement at T or None. Even chains are coarse and odd ones fine, unless one kind keeps winning. Every
        other time even chains start from `best` and cooler; else chains start afresh from mirrored ranges of layers
        over the devices in some order. Where `best` is `given` and not yet a placement, the other times even chains
        start from it, too, so cool that they leave most of it as it is; `every`: all chains do."""
        self.runs += 1
        self.moves += moves
        kinds = [chain % 2 == 0 for chain in range(self.workers)]
        if self.streak >= STREAK and self.runs % 4:
            kinds = [self.winner] * self.workers
        with ThreadPoolExecutor(max_workers=self.workers) as pool:
            chains: list[Future[tuple[float, Assignment | None]]] = [
                pool.submit(self._chain, cycles, moves, best, chain, coarse, given, every)
                for chain, coarse in enumerate(kinds)
            ]
            try:
                found = [chain.result() for chain in chains]
            except BaseException:
                self.stop[0] = 1
                raise
        self._keep_score(kinds, [energy for energy, _ in found])
        placements = [
            (least_cycles(self.instance, a) or cycles, k, a) for k, (_, a) in enumerate(found) if a is not None
        ]
        return min(placements)[2] if placements else None

    def _keep_score(self, kinds: list[bool], energies: list[float]) -> None:
        """Which kind came nearest; both as near is no win."""
        if len(set(kinds)) < 2:
            return
        nearest = {kind for kind, energy in zip(kinds, energies, strict=True) if energy <= min(energies)}
        if nearest == {self.winner}:
            self.streak += 1
        else:
            self.winner, self.streak = min(nearest), int(len(nearest) == 1)

    def _seed(self, chain: int) -> int:
        return (self.seed * 1_000_003 + self.runs * 7919 + chain * 104_729) % 2**31

    def _start(
        self, encoded: encode.Encoded, best: Assignment | None, chain: int, given: bool, every: bool
    ) -> tuple[encode.Start, float]:
        """Where a chain starts, and how hot."""
        if best is not None and (every or (chain % 2 == 0 and (given or self.runs % 2 == 0))):
            hottest = REPAIR_HOTTEST if every or self.runs % 2 else anneal.HOTTEST * 0.4
            return encode.start_from(encoded, self.instance, best), hottest
        rng = np.random.default_rng(self._seed(chain)) if self.runs > 2 or chain % 2 else None
        return encode.mirror_start(encoded.problem, rng), anneal.HOTTEST

    def _chain(
        self, cycles: int, moves: int, best: Assignment | None, chain: int, coarse: bool, given: bool, every: bool
    ) -> tuple[float, Assignment | None]:
        """How near one chain comes (its first energy, 0 only with a placement), and what it finds."""
        seed = self._seed(chain)
        encoded = encode.encode(self.instance, self.flat, cycles, merge=coarse, mixes=not coarse, seed=seed)
        if encoded is None:
            return inf, None
        start, hottest = self._start(encoded, best, chain, given, every)
        problem = encoded.problem
        energy, state = anneal.anneal(
            problem, encode.repaired(problem, start), moves=moves, seed=seed, hottest=hottest, stop=self.stop
        )
        energy, state = self._where_broken(problem, energy, state, moves, seed)

        def repaired(begun: Repaired, full: list[int], seed: int) -> Repaired:
            problem, before, state = begun
            if before <= 0.0:
                problem = encode.unmixed_at(encode.tightened(problem, LESS_M20K, LESS_DRAM), full)
            repairs = max(1, int(moves * REPAIR_SHARE))
            energy, state = anneal.anneal(
                problem, state, moves=repairs, seed=seed, hottest=REPAIR_HOTTEST, stop=self.stop
            )
            return problem, *self._where_broken(problem, energy, state, repairs, seed)

        return self._rounded(encoded, (encoded.problem, energy, state), REPAIRS, seed, repaired)

    def mended(self, cycles: int, near: Assignment) -> Assignment | None:
        """A placement at T that differs from one near it by what is broken there, and by as little else as may be; None
        where that isn't found soon."""
        encoded = encode.encode(self.instance, self.flat, cycles, merge=False, seed=self.seed)
        if encoded is None:
            return None

        def repaired(begun: Repaired, full: list[int], seed: int) -> Repaired:
            problem, _, state = begun
            problem = encode.tightened_at(problem, full, LESS_MENDED)
            energy, found = anneal.anneal(problem, state, moves=0, seed=seed)
            broken = anneal.broken_units(problem, state)
            for wider in MENDED_UNITS:
                if energy <= 0.0 or self.stop[0]:
                    break
                focused = encode.focused(problem, state, broken, 1 + wider * len(broken))
                energy, found = anneal.anneal(
                    focused, state, moves=MEND_MOVES, seed=seed, hottest=REPAIR_HOTTEST, stop=self.stop
                )
            return problem, energy, found

        self.runs += 1
        seed = self._seed(0)
        state = encode.start_from(encoded, self.instance, near)
        return self._rounded(encoded, repaired((encoded.problem, inf, state), [], seed), MENDS, seed, repaired)[1]

    def _rounded(
        self, encoded: encode.Encoded, begun: Repaired, repairs: int, seed: int, repaired: Repair
    ) -> tuple[float, Assignment | None]:
        """How near a state comes, repaired on devices that seem smaller where it can't be rounded as it is, and what it
        becomes."""
        # what fits but is not rounded yet is near, but no placement
        first = max(begun[1], NEAR * 1e-3)
        for repair in range(repairs + 1):
            _, energy, state = begun
            if self.stop[0] or energy > NEAR:
                break
            full: list[int] = []
            # once devices seem smaller, a little too much for them may still fit
            if energy <= 0.0 or repair:
                found = settle(encoded, self.instance, state, self.seed)
                if isinstance(found, Assignment) and self.holds(found, encoded.cycles_per_frame):
                    return 0.0, found
                full = [] if isinstance(found, Assignment) else found
            if repair < repairs:
                begun = repaired(begun, full, seed + repair)
        return first, None

    def _where_broken(
        self, problem: encode.Problem, energy: float, state: encode.Start, moves: int, seed: int
    ) -> tuple[float, encode.Start]:
        """The state with what is broken annealed anew, in as many moves again, if that is a small part of it."""
        for attempt in range(moves // MEND_MOVES):
            if energy <= 0.0 or self.stop[0]:
                break
            count = MEND_UNITS[attempt % len(MEND_UNITS)]
            focused = encode.focused(problem, state, anneal.broken_units(problem, state), count)
            if len(focused.free) > len(problem.pin) * MEND_SHARE:
                break
            mended, other = anneal.anneal(
                focused, state, moves=MEND_MOVES, seed=seed + attempt, hottest=MEND_HOTTEST, stop=self.stop
            )
            if mended <= energy:
                energy, state = mended, other
        return energy, state

    def holds(self, assignment: Assignment, cycles: int) -> bool:
        """Whether hops and rates hold exactly at T: the kernel adds up floats, this does not."""
        least = least_cycles(self.instance, assignment)
        return least is not None and least <= cycles and not unequal_joins(self.instance, assignment.devices)
