"""What benchmarks/fpdeep.py computes; tests/test_papers.py holds it against the papers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import onnx
import pytest

from benchmarks import fpdeep
from benchmarks.fpdeep_designs import (
    BATCH,
    CLOCK_HZ,
    LINK_BITS_PER_S,
    PORTS,
    Widest,
    compared,
    crossover,
    designs,
    flows,
    one_dimension,
    two_dimensions,
)
from dagtrain.flow.mapping_step import chain_of
from dagtrain.passes.autodiff import differentiate
from examples.models import hypar_nets
from examples.models.published import NETWORKS
from importers.onnx import NormMode, import_model
from placement.fpdeep.chain import Chain, Layer
from placement.hypar.published import PUBLISHED
from tests.import_support import ROOT


def layer(name: str, channels: int, side: int) -> Layer:
    """3 × 3, as many channels out as in, on a map of ``side`` × ``side``."""
    macs, words = 9 * channels**2 * side**2, channels * side**2
    return Layer(
        name=name, inputs=channels, outputs=channels, taps=9, input_words=words, output_words=words,
        forward_macs=macs, error_macs=macs, gradient_macs=macs,
    )  # fmt: skip


def test_operations_are_those_of_the_published_networks() -> None:
    for net, name in (("VGG-16", "vgg16"), ("VGG-19", "vgg19")):
        assert fpdeep.gop(net) == pytest.approx(6 * NETWORKS[name].gmacs, rel=1e-4)
    assert fpdeep.gop("AlexNet") == pytest.approx(6.81, abs=0.005)
    assert fpdeep.gop("AlexNet", grouped=True) == pytest.approx(4.35, abs=0.005)


@pytest.mark.slow
def test_an_imported_file_is_the_same_chain(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(hypar_nets.model(PUBLISHED["alexnet"]), path)
    imported = chain_of(differentiate(import_model(path, norm=NormMode.NONE)))
    mine = chain_of(fpdeep.training("AlexNet"))
    assert [replace(layer, name="") for layer in imported.layers] == [replace(layer, name="") for layer in mine.layers]


def test_the_page_has_all_tables_and_its_pictures_are_those_drawn() -> None:
    page = (ROOT / "docs" / "fpdeep.md").read_text()
    for _, heads, cells in fpdeep.sections():
        assert not [line for row in (heads, *cells) if (line := f"| {' | '.join(row)} |") not in page]
    for name, text in fpdeep.plots().items():
        assert (ROOT / "docs" / name).read_text() == text
        assert f"]({name})" in page


def test_designs_of_two_layers_on_two_boards_that_are_counted_by_hand() -> None:
    chain = Chain("two", (layer("a", 4, 6), layer("b", 4, 6)))
    words, weights, macs = 4 * 36, 9 * 16, 9 * 16 * 36
    found = designs(chain, 90, boards=2)
    # both boards work on half a batch, three phases of two layers, then sum gradients round a ring
    busy = BATCH * 2 * 3 * macs / (2 * 90 * CLOCK_HZ)
    passed = 2 * (2 * weights)
    summing = passed * 16 / (2 * LINK_BITS_PER_S)
    assert found["DP"].metrics == pytest.approx({
        "parallel options": 128, "FLOP utilisation": busy / (busy + summing), "storage": 2 * (4 * weights + 2 * words),
        "footprint": passed, "bandwidth": passed / (busy + summing),
    })  # fmt: skip
    # a layer a board: a map and its errors cross; the first board keeps three frames, the second one
    assert found["LP"].metrics == pytest.approx({
        "parallel options": 2, "FLOP utilisation": 1, "storage": 4 * weights + 4 * words,
        "footprint": BATCH * 2 * words, "bandwidth": BATCH * 2 * words / busy,
    })  # fmt: skip
    # two outputs and the second layer's input, summed and handed round
    passed = 2 * BATCH * 3 * words
    assert found["MP"].footprint == passed
    assert found["MP"].seconds == pytest.approx(busy + passed * 16 / (2 * LINK_BITS_PER_S))
    assert found["FPDeep"].footprint == BATCH * 2 * words
    assert found["FPDeep"].busy == pytest.approx(busy)


def test_flows_between_boards_that_are_counted_by_hand() -> None:
    # three boards: a on the first and half of the second, b on its other half and the third
    chain = Chain("two", (layer("a", 6, 4), layer("b", 6, 4)))
    words = 6 * 16
    # partial sums of a to its last board and errors back; b's input to both of its boards; its partial sums
    taken = Fraction(2, 3) * words
    assert flows(chain, 900, 3) == {
        (0, 1): {"a": words}, (1, 0): {"a": words}, (1, 2): {"b": words, "a": taken}, (2, 1): {"b": words, "a": taken},
    }  # fmt: skip
    assert two_dimensions(chain, 900, 3) == Widest(float((words + taken) / (PORTS // 2)), "b, a", 2)
    # b's own cut carries the same on a row of boards: partial sums, and the channels that the last board takes
    assert one_dimension(chain, 900, 3) == Widest(float((words + taken) / (PORTS // 2)), "b", 2)


def test_from_where_on_one_dimension_is_better() -> None:
    chain = fpdeep.chain("VGG-16")
    rows = compared(chain, fpdeep.DSP)
    last_not_better = max(boards for boards, row, square in rows if row.words >= square.words)
    assert crossover(chain, fpdeep.DSP) == str(last_not_better)
