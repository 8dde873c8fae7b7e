"""What benchmarks/hypar.py computes; tests/test_papers.py holds it against the paper."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks import hypar
from placement.hypar.communication import DP, MP, Counting
from placement.hypar.convention import EVERY, SECTION_3_4
from placement.hypar.network import Layer, Net
from placement.hypar.search import greedy, model_parallelism
from placement.hypar.step_time import Array, Links


def test_no_convention_gives_both_totals_of_sfc() -> None:
    net = hypar.NETS["sfc"]
    for convention in EVERY:
        counting = Counting(hypar.BATCH, convention)
        model = hypar.gigabytes(net, model_parallelism(net, hypar.LEVELS), counting)
        printed = hypar.gigabytes(net, greedy(net, hypar.LEVELS, counting), counting)
        assert abs(model / 0.723 - 1) > 0.05 or abs(printed / 0.681 - 1) > 0.05


def test_the_time_of_one_layer() -> None:
    layer = Layer(name="a", weights=100, macs=1000, input=10, output=10, pooled=10)
    net, counting = Net("one", (layer,)), Counting(8, SECTION_3_4)
    # three passes of 8 samples on four accelerators of two units, each 168 engines at 250 MHz
    computing = 3 * 8 * 1000 / (4 * 2 * 168 * 250e6)
    # H1: 2 × 100 words of gradients; H2: two pairs with 2 × 40 words of a map each, half of the batch
    words = 2 * 100, 2 * 2 * 40
    for links, level_links in ((Links.FAT, (4, 4)), (Links.CONSTANT, (2, 4))):
        communicating = sum(32 * count / (many * 1.6e9) for count, many in zip(words, level_links, strict=True))
        found = Array(units=2, links=links).seconds(net, {"a": (DP, MP)}, counting)
        assert found == pytest.approx(computing + communicating)


def test_data_parallelism_flattens_on_a_fat_tree_and_falls_on_another() -> None:
    fat, constant = ([data for _, data, _ in hypar.scaling(Array(links=links))] for links in Links)
    assert all(more > less for less, more in pairwise(fat))
    assert constant.index(max(constant)) == 2


def test_the_search_of_all_ten_networks_takes_less_than_a_second() -> None:
    assert hypar.search_seconds() < 1
