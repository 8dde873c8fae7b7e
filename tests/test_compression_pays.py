"""`benchmarks.compression_pays`: traffic of links is what the planner counts, and the page has what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import compression_pays as pays
from benchmarks.compression_pays import (
    BATCHES,
    CODECS,
    COPIES,
    INTEGERS,
    NETS,
    NONE,
    PAGE,
    SHOWN_BATCH,
    WORD_BITS,
    Kept,
    PortLoad,
    Traffic,
    kept,
    plots,
    traffic,
    way,
    with_text,
)
from benchmarks.fpdeep import Bare
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from hdl.errors import DagtrainError
from hdl.recipe import Recipe

BITS = dict.fromkeys(CODECS, 16.0) | {INTEGERS: 5.0}


@pytest.fixture(scope="module")
def found() -> Kept:
    return kept()


def two_layers(_: str = "") -> Graph:
    """A convolution of 8 x 32 x 3 x 3 and a dense layer of 10 x 512 weights."""
    build = Bare("two", Recipe(batch=SHOWN_BATCH))
    x = build.relu(build.conv(build.input(8, 8, 8), 32, 3, padding=1))
    return differentiate(build.classify(build.gemm(build.max_pool(x, 2, 2), 10, bias=False)))


def test_what_ports_carry_of_two_copies_is_that_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pays, "training", two_layers)
    one = traffic("two", 2, INTEGERS, BITS)
    sizes = (8 * 32 * 9, 10 * 512)
    # a board sends each tensor once, its own sum or that of both: bursts of 16 elements, 3.2 times fewer words
    words = sum(-(-(elements // 16) * 10 // 32) for elements in sizes)
    # of the first board
    received, sent = one.ports[0], one.ports[1]
    assert one.ends == one.most_ends == 4
    for port in one.ports:
        # words that give credits back come on top
        assert 0 <= port.batch / WORD_BITS - words < 0.1 * words
    # of every other frame 8 x 8 x 8 codes go to the other board, and a word of errors; a word of scores comes back
    assert 1 <= sent.frame / (WORD_BITS * (32 + 1) / 2) < 1.1
    assert 1 <= received.frame / (WORD_BITS / 2) < 2.1
    plain = traffic("two", 2, NONE, BITS)
    assert (plain.ends, [port.frame for port in plain.ports]) == (0, [port.frame for port in one.ports])
    # exact sums of one tensor, of which a word has room for few, and 16 bits of the other one
    conv, dense = sizes
    some = sorted((conv // 16 + dense // 6, dense // 16 + conv // 6))
    for port in plain.ports:
        assert 0.8 * some[0] < port.batch / WORD_BITS < 1.3 * some[1]


def test_links_and_multipliers_bind_as_they_say() -> None:
    load = PortLoad(frame=100.0, batch=6400.0)
    assert load.fps(2000.0, 64) == 10
    cases = tuple(Traffic("net", 2, codec, (load, PortLoad(50.0, 0.0)), 0, 0) for codec in (NONE, INTEGERS))
    less = replace(cases[1], ports=(PortLoad(100.0, 0.0),))
    found = Kept({}, 0, {"net": int(pays.multipliers() * pays.CLOCK_HZ * 2 / 10)}, (cases[0], less))
    assert found.multipliers_fps("net", 2) == pytest.approx(10)
    assert found.enough_gbps("net", 2, NONE, 64) == pytest.approx(2e-6)
    assert found.fps("net", 2, NONE, 64, 1e-6) == pytest.approx(5)
    assert found.fps("net", 2, NONE, 64, 1.0) == pytest.approx(10)
    assert found.gain("net", 2, INTEGERS, 64, 1e-6) == pytest.approx(2)
    assert found.gain("net", 2, INTEGERS, 64, 2e-6) == pytest.approx(1)


def test_a_codec_never_makes_links_slower_and_gains_less_the_faster_they_are(found: Kept) -> None:
    assert {(one.net, one.copies, one.codec) for one in found.traffic} == {
        (net, copies, codec) for net in NETS for copies in COPIES for codec in CODECS
    }
    for net in NETS:
        for copies in COPIES:
            for batch in BATCHES:
                gains = [round(found.gain(net, copies, INTEGERS, batch, rate), 9) for rate in pays.RATES_GBPS]
                assert gains == sorted(gains, reverse=True)
                assert gains[0] >= 1 == gains[-1]
                enough = [found.enough_gbps(net, copies, codec, batch) for codec in CODECS]
                assert enough == sorted(enough, reverse=True)


def test_the_page_has_all_tables_and_its_pictures_are_those_drawn(found: Kept) -> None:
    page = PAGE.read_text()
    assert with_text(page, found) == page
    drawn = plots(found)
    assert len(drawn) == len(NETS)
    for name, text in drawn.items():
        assert (PAGE.parent / name).read_text() == text
        assert f"({name})" in page
    with pytest.raises(DagtrainError, match="has no tables; write <!-- begin"):
        with_text("# A page", found)


def test_what_is_kept_is_what_is_counted_now(found: Kept) -> None:
    for codec in (NONE, INTEGERS):
        assert traffic("ResNet-18", 2, codec, found.element_bits) == found.of("ResNet-18", 2, codec)
    assert found.macs["ResNet-18"] == sum(node.layer.macs for node in pays.training("ResNet-18").nodes)


@pytest.mark.slow
def test_ratios_that_are_kept_are_those_measured_now(found: Kept) -> None:
    assert pays.ratios() == pytest.approx(dict(found.element_bits))
    assert pays.codec_alm() == pytest.approx(found.codec_alm, rel=0.02)


def test_a_way_counts_on_the_bits_that_are_said() -> None:
    assert way(NONE, BITS).codec is None
    assert way(INTEGERS, BITS).ratio_percent == 320
