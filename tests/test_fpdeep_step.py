"""`dagtrain place --mapping fpdeep`: what it makes of a training graph, says beside the plan, and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from dagtrain.flow.documents import results_schema
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.mapping_step import chain_of, multipliers_a_block
from dagtrain.flow.placed import load_folded_graph
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.insert_forks import insert_forks
from hdl.errors import DagtrainError
from hdl.parts.catalogue import PARTS
from hdl.recipe import Recipe
from placement.fpdeep.chain import Layer
from placement.fpdeep.mapping import fastest
from tests.flow_support import CLUSTER, new_case, quick_costs

TWO_BOARDS = CLUSTER.replace(
    '[[device]]\nname = "head"',
    '[[board]]\nname = "virtex"\npart = "XC7VX690T"\ndram_gb_per_s = 25.6\ndram_gbyte = 8\nlink_gbit_per_s = 40\n\n'
    '[[device]]\nname = "head"',
).replace('name = "worker"\nboard = "agilex"', 'name = "worker"\nboard = "virtex"')


def chained() -> Graph:
    """Two convolutions, a pool and a dense layer, all that stands between beside them."""
    net = GraphBuilder("chained", Recipe())
    x = net.relu(net.norm(net.conv(net.input(8, 8, 2), 4, kernel=3, padding=1)))
    x = net.max_pool(net.relu(net.conv(x, 6, kernel=3, padding=1, groups=2)), 2, 2)
    return differentiate(net.classify(net.gemm(x, 5)))


def test_a_training_graph_becomes_layers_with_their_multiplications_by_phase() -> None:
    chain = chain_of(chained())
    first, second, dense = (9 * 2 * 4 * 64, 9 * 4 * 6 * 64 // 2, 6 * 16 * 5)
    assert chain.layers == (
        # the first one sends no error back
        Layer(
            name="conv1", inputs=2, outputs=4, taps=9, input_words=128, output_words=256,
            forward_macs=first, error_macs=0, gradient_macs=first,
        ),
        Layer(
            name="conv2", inputs=4, outputs=6, taps=9, input_words=256, output_words=384,
            forward_macs=second, error_macs=second, gradient_macs=second, groups=2,
        ),
        Layer(
            name="gemm1", inputs=96, outputs=5, taps=1, input_words=96, output_words=5,
            forward_macs=dense, error_macs=dense, gradient_macs=dense, off_chip=True,
        ),
    )  # fmt: skip


def test_networks_that_branch_are_refused_with_all_places() -> None:
    net = GraphBuilder("residual", Recipe())
    x = net.conv(net.input(6, 6, 2), 4, kernel=3, padding=1)
    y = net.add(net.conv(x, 4, kernel=3, padding=1), x)
    graph = differentiate(net.classify(net.gemm(y, 3)))
    expected = (
        r"^--mapping fpdeep: residual is no chain of layers: add1: 2 maps meet in it; conv1: conv2, add1 take its map; "
        r"FPDeep names such networks as future work; use the search alone$"
    )
    for branching in (graph, insert_forks(graph)):
        with pytest.raises(DagtrainError, match=expected):
            chain_of(branching)


def test_products_of_16_bits_in_a_block() -> None:
    assert multipliers_a_block(PARTS["XC7VX690T"]) == 1
    assert multipliers_a_block(PARTS["10AX115"]) == 2


def test_the_command_tells_the_mapping_and_then_the_plan_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case").must("import")
    outcome = case.step("place", "--mapping", "fpdeep", "--cap", "dsp=0.01", "--gap", 0.6, "--json")
    assert outcome.code == 0, outcome.error
    alone, plan, beside = json.loads(outcome.out)
    jsonschema.Draft202012Validator(results_schema()).validate([alone, plan, beside])
    assert (alone["step"], plan["step"], beside["step"]) == ("mapping", "place", "mapping")
    assert alone["ours"] is None
    told = {key for key in alone if key not in ("ours", "done")}
    assert {key: alone[key] for key in told} == {key: beside[key] for key in told}

    dsp = int(PARTS["AGFB014"].dsp * 0.01)
    graph = load_training_graph(case.workspace)
    mapped = fastest(chain_of(graph), 2, dsp * multipliers_a_block(PARTS["AGFB014"]))
    assert alone["fps"] == float(200_000_000 / mapped.cycles)
    assert [board["device"] for board in alone["boards"]] == ["head", "worker"]
    assert all(0 < board["dsp"] <= dsp for board in alone["boards"])
    # the dense layer of 144 inputs and 3 classes, at 16 bits
    assert sum(board["dram_bytes_per_frame"] for board in alone["boards"]) == 144 * 3 * 2
    # a port of 512 bits at 200 MHz in each direction carries less than 70 % of 76.8 GB/s
    assert alone["dram_bytes_per_s"] == plan["devices"][0]["dram_capacity_bytes_per_s"] == 25_600_000_000

    ours = beside["ours"]
    assert (ours["fps"], ours["bound_fps"]) == (plan["steady_fps"], plan["bound_fps"])
    folded = load_folded_graph(case.workspace)
    work = sum(node.layer.macs for node in folded.nodes)
    slots = sum(node.layer.multipliers for node in folded.nodes if node.layer.macs) * plan["cycles_per_frame"]
    assert ours["idle"] == pytest.approx(1 - work / slots)

    text = case.step("place", "--mapping", "fpdeep", "--cap", "dsp=0.01", "--gap", 0.6).out
    assert "our plan, in circuits:" in text
    assert "weights off the chip, each read once a frame: worker needs" in text
    assert "our idle" in text


@pytest.mark.parametrize(
    ("cluster", "words", "problem"),
    [
        (CLUSTER, ("--mapping", "hypar"), "--mapping hypar: no such mapping; one of fpdeep"),
        (
            TWO_BOARDS, ("--mapping", "fpdeep"),
            "--mapping fpdeep: boards differ: agilex (AGFB014), virtex (XC7VX690T); FPDeep maps to equal boards: "
            "exclude the others",
        ),
        (
            CLUSTER, ("--mapping", "fpdeep", "--exclude", "head", "--exclude", "worker", "--exclude", "tail"),
            "--mapping fpdeep: --exclude: no device tail; no device is left; exclude fewer",
        ),
        (
            CLUSTER, ("--mapping", "fpdeep", "--cap", "dsp=0.0001"),
            "FPDeep's mapping: board 1: a tile for each engine of c_node takes 18 DSPs of 0; take more boards or ",
        ),
    ],
    ids=["unknown", "unlike boards", "no board", "no room"],
)  # fmt: skip
def test_what_it_has_no_mapping_for_is_told_before_any_search(
    cluster: str, words: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    case = new_case(tmp_path / "case", cluster).must("import")
    outcome = case.step("place", *words)
    assert outcome.code == 1
    assert problem in " ".join(outcome.error.split())
    assert not (case.out / "place").exists()
