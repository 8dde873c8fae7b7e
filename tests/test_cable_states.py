"""All states of the words between devices that cables join: where sinks take what comes, some word can always go on.

A state is what the buffer of each wire holds, two words at most, as the stage behind a cable does; a word that waits
for the next wire keeps those behind it waiting.  Devices send whatever they want whenever there is room.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from placement.problem.routes import Routing
from tests.test_routes import chain, clockwise_ring, mesh, pairs_of

ROOM = 2
# by wire: the devices that words are for, the first one in front
State: TypeAlias = tuple[tuple[int, ...], ...]


def all_states(routing: Routing) -> Iterator[State]:
    """Whether they can be reached or not: each wire with any of the words that ways lead over it."""
    over: list[set[int]] = [set() for _ in routing.wires]
    for source, target in pairs_of(routing):
        for wire in routing.way(source, target):
            over[wire].add(target)
    held = [
        [words for count in range(ROOM + 1) for words in itertools.product(sorted(targets), repeat=count)]
        for targets in over
    ]
    return itertools.product(*held)


def going_on(routing: Routing, state: State) -> Iterator[tuple[int, int]]:
    """(wire, next wire) of each word that can go on; the next wire is -1 where its device takes it."""
    for wire, words in enumerate(state):
        if words:
            onward = routing.next_wire[routing.wires[wire].target][words[0]]
            if onward < 0 or len(state[onward]) < ROOM:
                yield wire, onward


def is_stuck(routing: Routing, state: State) -> bool:
    return any(state) and next(going_on(routing, state), None) is None


def after(routing: Routing, state: State) -> Iterator[State]:
    """States one step later: a word goes on, or a device sends one."""
    for wire, onward in going_on(routing, state):
        found = list(state)
        found[wire] = state[wire][1:]
        if onward >= 0:
            found[onward] = (*state[onward], state[wire][0])
        yield tuple(found)
    for source, target in pairs_of(routing):
        first = routing.next_wire[source][target]
        if source != target and len(state[first]) < ROOM:
            yield (*state[:first], (*state[first], target), *state[first + 1 :])


@pytest.mark.parametrize("routing", [chain(4), chain(4, closed=True), mesh(2, 2)], ids=["chain", "ring", "mesh"])
def test_in_every_state_some_word_can_go_on(routing: Routing) -> None:
    """So none is ever stuck: without new words each step brings one nearer to its device, until all are there."""
    count = 0
    for state in all_states(routing):
        assert not is_stuck(routing, state), state
        count += 1
    assert count > 10_000


def test_words_that_all_go_round_in_one_direction_come_to_wait_for_one_another() -> None:
    routing = clockwise_ring()
    empty: State = ((),) * len(routing.wires)
    reached, edge, stuck = {empty}, [empty], []
    while edge:
        edge = [later for state in edge for later in dict.fromkeys(after(routing, state)) if later not in reached]
        edge = list(dict.fromkeys(edge))
        reached.update(edge)
        stuck += [state for state in edge if is_stuck(routing, state)]
    # every buffer of the ring is full of words for devices farther on
    assert stuck
    for state in stuck:
        full = [wire for wire, words in enumerate(state) if words]
        assert len(full) == 4
        assert all(len(state[wire]) == ROOM and state[wire][0] != routing.wires[wire].target for wire in full)
