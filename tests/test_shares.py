"""Shares of frames for copies on boards of unlike speed."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import pytest

from dagtrain.planning.shares import MOST_TURNS, Engines, busiest, by_speed, shares_of_groups, unlike_shares
from placement.problem.clocks import in_time
from placement.problem.instance import Configuration, Device, Instance, Item


@pytest.mark.parametrize("seed", range(60))
def test_no_shares_of_so_many_turns_are_sooner(seed: int) -> None:
    rng = random.Random(seed)
    times, turns = [rng.randint(1, 30) for _ in range(rng.randint(2, 3))], rng.randint(4, 14)
    ways = [shares for shares in product(range(1, turns), repeat=len(times)) if sum(shares) <= turns]
    least = min(busiest(times, shares) for shares in ways)
    found = by_speed(times, turns)
    assert busiest(times, found) == least, seed
    # the fewest turns with which that is so
    assert sum(found) == min(sum(shares) for shares in ways if busiest(times, shares) == least), seed


def test_shares_follow_speed() -> None:
    assert by_speed([2, 3]) == (3, 2)
    assert by_speed([1, 1]) == (1, 1)
    assert by_speed([5, 5, 5]) == (1, 1, 1)
    # a whole number of frames each: 16 turns are too few for all 17 in exact proportion
    assert by_speed([1, 16]) == (15, 1)
    assert busiest([1, 16], (15, 1)) == 1
    assert busiest([2, 3], (1, 1)) == Fraction(3, 2)


def instance(clocks: list[int], dsp: list[int], pinned: str | None = None) -> Instance:
    """One item of two tiles on boards of these clocks in MHz and DSP blocks."""
    tiles = (
        Configuration(label="wide", tile="wide", cycles_per_frame=600, dsp=8),
        Configuration(label="narrow", tile="narrow", cycles_per_frame=1200, dsp=4),
    )
    item = Item(name="c", configurations={"p": tiles}, layer="c", pinned=pinned, tile_group="c")
    devices = tuple(
        Device(
            name=f"d{n}", part="p", dsp=dsp[n], m20k=9, alm=9, dram_bytes_per_s=0, link_bits_per_s=9,
            clock_hz=clock * 1_000_000,
        )
        for n, clock in enumerate(clocks)
    )  # fmt: skip
    return in_time(Instance(name="one", clock_hz=200_000_000, items=(item,), links=(), devices=devices))


def shares(
    clocks: list[int], dsp: list[int], cycles: int, most: int = 16, busy: Fraction = Fraction(1), count: int = 1
) -> object:
    return unlike_shares(instance(clocks, dsp), Engines("c", busy, count), Fraction(cycles), most)


def test_a_layer_gets_the_fewest_copies_that_are_fast_enough() -> None:
    # 400 and 600 cycles of 200 MHz for a frame: 240 together
    assert shares([300, 200], [8, 8], 240) == (3, 2)
    # not fast enough, but the soonest there is
    assert shares([300, 200], [8, 8], 100) == (3, 2)
    # two boards of 300 MHz do it alike
    assert shares([300, 200, 300], [8, 8, 8], 200) is None
    # and with the third it is sooner
    assert shares([300, 200, 300], [8, 8, 8], 199) == (3, 3, 2)
    # these are eight turns, for a batch of eight and more; in fewer it takes longer
    assert shares([300, 200, 300], [8, 8, 8], 199, most=7) == (2, 2, 1)
    # of a copy that works on three of five frames all takes five thirds
    assert shares([300, 200], [8, 8], 240, busy=Fraction(3, 5)) == (3, 2)
    # and is not fast enough with two, nor with three
    assert shares([300, 200, 300], [8, 8, 8], 200, busy=Fraction(3, 5)) == (3, 3, 2)
    # two engines a copy: each copy wants two boards, and waits for the slower one
    assert shares([300, 200, 300, 200], [8] * 4, 240, count=2) == (3, 2)
    assert shares([300, 200, 200, 200], [8] * 4, 240, count=2) is None


def test_copies_have_one_tile() -> None:
    """A board that has no room for the wide one takes part with the narrow one alone, and so do all."""
    # wide on the first alone: no two copies; narrow on both: 800 and 1200
    assert shares([300, 200], [8, 4], 480) == (3, 2)
    # boards unlike in multipliers alone are alike with one tile
    assert shares([200, 200], [8, 4], 100) is None
    # a layer that is to stand on one board has no copies elsewhere
    pinned = instance([300, 200], [8, 8], pinned="d0")
    assert unlike_shares(pinned, Engines("c", Fraction(1)), Fraction(1), 16) is None


def test_groups_of_boards() -> None:
    assert shares_of_groups([200, 300], 2) == (3, 2)
    assert shares_of_groups([200, 300, 300, 200], 2) == (3, 2)
    # equal clocks: any number of copies has equal parts of all boards
    assert shares_of_groups([200, 200, 200], 2) is None
    # a group of two boards and one of one, and of one and one that are as fast as it
    assert shares_of_groups([400, 200, 200], 2) == (3, 1)
    assert shares_of_groups([300, 100, 200, 200], 2) == (5, 3)
    assert shares_of_groups([300, 200], 3) is None
    # groups of two, two and one
    assert shares_of_groups([300, 300, 200, 200, 200], 3) == (3, 2, 1)
    assert shares_of_groups([300] * 20 + [200], MOST_TURNS + 1) is None
