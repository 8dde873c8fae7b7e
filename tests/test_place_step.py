"""`dagtrain place` on models whose layers cannot keep every pace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagtrain.flow.import_step import load_training_graph
from dagtrain.passes.fold import fold_graph
from hdl.errors import FoldingError
from tests.flow_support import call, new_case, quick_costs


def test_a_pace_at_which_one_layer_cannot_be_folded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    # with its norm the network can be folded for 64 cycles a frame, and for 80, but not for 72
    assert call("import", case.model, "--norm", "online", "--out", case.out).code == 0
    graph = load_training_graph(case.workspace)
    for cycles in (64, 80):
        fold_graph(graph, cycles)
    with pytest.raises(FoldingError, match="c_node_norm"):
        fold_graph(graph, 72)
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    plan = json.loads((case.out / "place" / "plan.json").read_text())
    assert plan["cycles_per_frame"] <= 64
