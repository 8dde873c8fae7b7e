"""What benchmarks/hypar.py computes; tests/test_papers.py holds it against the paper."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks import hypar
from placement.hypar.communication import Counting
from placement.hypar.convention import EVERY
from placement.hypar.search import greedy, model_parallelism
from placement.hypar.simulation import Array
from placement.hypar.topology import Links
from tests.import_support import ROOT


def test_no_convention_gives_both_totals_of_sfc() -> None:
    net = hypar.NETS["sfc"]
    for convention in EVERY:
        counting = Counting(hypar.BATCH, convention)
        model = hypar.gigabytes(net, model_parallelism(net, hypar.LEVELS), counting)
        printed = hypar.gigabytes(net, greedy(net, hypar.LEVELS, counting), counting)
        assert abs(model / 0.723 - 1) > 0.05 or abs(printed / 0.681 - 1) > 0.05


def test_by_turns_data_parallelism_flattens_on_a_fat_tree_and_falls_on_another() -> None:
    fat, constant = ([data for _, data, _ in hypar.scaling(Array(topology=hypar.TREES[links]))] for links in Links)
    assert all(more > less for less, more in pairwise(fat))
    assert constant.index(max(constant)) == 2


def test_overlapping_opens_the_gap_between_communication_and_time() -> None:
    space = hypar.vgg_space(Array(overlapped=True))
    # no sum of maps of conv5_2 holds up what is behind it, though more is communicated
    assert hypar.peaks(space) == "0000 1111"
    assert space["0000 1111"] > 1.02 * space["0001 1111"] > space["1000 1111"]


def test_the_search_of_all_ten_networks_takes_less_than_a_second() -> None:
    assert hypar.search_seconds() < 1


@pytest.mark.slow
def test_the_page_has_every_table() -> None:
    page = (ROOT / "docs" / "hypar.md").read_text()
    for head, heads, cells in hypar.tables():
        assert cells, head
        assert not [line for row in (heads, *cells) if (line := f"| {' | '.join(row)} |") not in page], head
