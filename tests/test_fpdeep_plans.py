"""FPDeep's mapping beside plans of ours: the page prints what is kept, and that is the mapping as computed anew."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import fpdeep_plans
from benchmarks.beside_paper import with_table
from benchmarks.fpdeep_plans import CASES, ROOT, TABLES
from dagtrain.flow.mapping_step import chain_of, multipliers_a_block
from dagtrain.passes.autodiff import differentiate
from examples.models import poster_nets
from importers.onnx import import_model
from placement.fpdeep.mapping import fastest
from placement.problem.cluster import parse_cluster


def test_the_page_has_the_tables_of_what_is_kept() -> None:
    page, found = fpdeep_plans.DOCS.read_text(), fpdeep_plans.tables()
    assert found.keys() == CASES.keys()
    for name, (heads, cells) in found.items():
        assert with_table(page, fpdeep_plans.DOCS, fpdeep_plans.marks(name), heads, cells) == page, name


def test_the_mapping_that_is_kept_is_the_one_of_the_network_and_its_boards(tmp_path: Path) -> None:
    onnx.save(poster_nets.vggmini(), tmp_path / "vggmini.onnx")
    graph = differentiate(import_model(tmp_path / "vggmini.onnx"))
    cluster = parse_cluster((ROOT / "examples" / "clusters" / "vggmini-poster.toml").read_text())
    board = cluster.devices[0].board
    mapped = fastest(chain_of(graph), len(cluster.devices), board.dsp * multipliers_a_block(board.part))
    kept = fpdeep_plans.known()["vggmini"]["mapping"]
    assert kept["fps"] == pytest.approx(float(board.clock_hz / mapped.cycles))
    assert kept["whole_passes_fps"] == pytest.approx(float(board.clock_hz / mapped.whole_cycles))


def test_no_plan_is_faster_than_its_bound() -> None:
    planned = [record for record in fpdeep_plans.known().values() if record["mapping"]["ours"]]
    assert planned
    for record in planned:
        assert 0 < record["mapping"]["ours"]["fps"] <= record["any_bound_fps"] * (1 + 1e-9)


def test_a_plan_below_its_bound_is_not_called_proven() -> None:
    record: dict[str, Any] = copy.deepcopy(fpdeep_plans.known()["vggmini"])
    record["any_bound_fps"] = 2 * record["mapping"]["ours"]["fps"]
    (_, *fps), *_ = TABLES["vggmini"](record)[1]
    assert "proven" not in fps[-1]
    assert "no folding has more than" in fps[-1]
