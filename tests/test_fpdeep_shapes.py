"""FPDeep's mapping on chains and grids of boards, counted over the ways of words: benchmarks/fpdeep_shapes.py."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from benchmarks import fpdeep
from benchmarks.fpdeep_designs import FIGURE_10, PORTS, middle, one_dimension
from benchmarks.fpdeep_shapes import Shape, Sums, between, compared, crossover, fullest, orders, shapes
from placement.fpdeep.mapping import fastest
from placement.problem.routes import Routing, chain_cables, mesh_cables

NAMES = ("1", "2", "3", "4")
SQUARE = Shape("2 × 2", Routing(NAMES, mesh_cables(NAMES, [1] * 4, 2), 2))
ROW = Shape("chain", Routing(NAMES, chain_cables(NAMES, [1] * 4)))


def test_words_between_boards_that_are_not_joined_count_on_every_cable_of_their_way() -> None:
    # all talk to all, 10 words each way
    sent = {pair: {"a": Fraction(10)} for pair in itertools.permutations(range(4), 2)}
    places = orders(4)
    # each half to the other one, over the middle of the chain
    row = fullest(ROW, sent, Sums.ROW, places)
    assert (row.words, row.ports) == (40 / 5, 5)
    # a cable of the square has its own words and two of the four pairs at corners, each way
    square = fullest(SQUARE, sent, Sums.ROW, places)
    assert (square.words, square.ports) == (20 / 5, 5)


def test_the_best_order_has_boards_that_talk_side_by_side() -> None:
    # 1 - 3 - 2 - 4
    there = {(0, 2): {"a": Fraction(6)}, (1, 2): {"b": Fraction(8)}, (1, 3): {"c": Fraction(4)}}
    sent = there | {(b, a): words for (a, b), words in there.items()}
    for shape in (ROW, SQUARE):
        found = fullest(shape, sent, Sums.ROW, orders(4))
        assert (found.words, {found.source, found.target}, found.layers) == (8 / 5, {2, 3}, ("b",))
        # the second and the third have two cables each, and ten ports for them
        assert found.wanted == pytest.approx(min(max(6 / p, 8 / (PORTS - p)) for p in range(1, PORTS)))


def test_a_cable_wants_ports_for_the_fuller_one_of_its_directions() -> None:
    for pair in ((0, 1), (1, 0)):
        found = fullest(ROW, {pair: {"a": Fraction(10)}}, Sums.ROW, orders(4))
        assert (found.words, found.wanted) == (10 / 5, pytest.approx(10 / PORTS))


def test_partial_sums_that_are_passed_on_are_the_mappings_cuts() -> None:
    stages = middle(fpdeep.chain("VGG-16"))
    for boards in FIGURE_10:
        sent = between(stages, fpdeep.DSP, boards, Sums.ROW)
        assert len(sent) == 2 * (boards - 1)
        for cut in fastest(stages, boards, fpdeep.DSP).cuts:
            assert sum(sent[cut.board, cut.board + 1].values()) == cut.forward
            assert sum(sent[cut.board + 1, cut.board].values()) == cut.backward


def test_grids_hold_all_boards_and_words_never_wait_in_a_circle() -> None:
    for boards in FIGURE_10:
        found = list(shapes(boards))
        assert len(found) == -(-boards // 2)
        for shape in found:
            assert len(shape.routing.devices) == boards
            assert shape.routing.circle() == ()
            assert all(max(row) >= 1 for row in shape.routing.distance)


def test_a_chain_is_at_least_as_good_as_in_the_order_of_the_mapping_and_no_worse_than_a_cut() -> None:
    chain = fpdeep.chain("VGG-16")
    for one in compared(chain, fpdeep.DSP):
        in_order = one_dimension(middle(chain), fpdeep.DSP, one.boards)
        assert one.chain.words == pytest.approx(in_order.words)
        # dealt out as wanted, ports are of no less use
        assert one.chain.wanted <= one.chain.words * (1 + 1e-6)
        # a grid holds a chain of all its boards, so that it can be as good then
        assert one.grid_wanted <= one.chain.wanted * (1 + 1e-6)


def test_above_five_boards_one_dimension_is_better_as_long_as_ports_are_dealt_out_equally() -> None:
    chain = fpdeep.chain("VGG-16")
    found = compared(chain, fpdeep.DSP)
    assert [one.better for one in found] == ["equal", "equal", "1-D", "1-D", "1-D"]
    assert crossover(chain, fpdeep.DSP) == "5"
    assert "1-D" not in {one.better_wanted for one in found}
