"""Graphs whose circuits are huge: those of a level take minutes to elaborate, so searches may take as long.

Devices of such a cluster hold a layer or two, and branches beside one another cross the network often: placements that
fit mostly fail by a few hops.  So relays are there from the beginning, on all shortcuts, instead of behind the climb
(`dagtrain.planning.relays`), and chains are longer: on ResNet-50 over 32 devices, chains of as many moves as others
have end with a device a few per cent over, and of many times as many with none.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from dagtrain.planning.levels import HUGE_MULTIPLIERS, least_cycles, multipliers
from dagtrain.planning.problem import Problem
from dagtrain.planning.relays import places_for_relays
from dagtrain.planning.searcher import Searcher
from hdl.errors import FoldingError

# moves, as many times those of others; and how many times longer again chains are once there is a placement
MOVES, DESCENT_LENGTH = 16, 4


def is_huge(problem: Problem) -> bool:
    """Whether the circuits are at the fastest level that multipliers allow."""
    with suppress(FoldingError):
        return multipliers(problem.graph, least_cycles(problem)) > HUGE_MULTIPLIERS
    return False


def thorough(searcher: Searcher, *, begun: bool) -> Searcher:
    """One of longer searches, with relays on all shortcuts unless the search has ``begun``: it goes on from a plan that
    has some."""
    edges = () if begun else places_for_relays(searcher.problem)
    made = searcher.with_relays(edges) if edges else searcher
    search = made.problem.search
    longer = replace(
        search,
        anneal_moves=MOVES * search.anneal_moves,
        anneal_budget=MOVES * search.anneal_budget,
        descent_length=DESCENT_LENGTH,
    )
    return replace(made, problem=replace(made.problem, search=longer))
