"""`place --remote`, `--no-remote`, `--no-dram`: memories of layers in block memory of other boards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from dagtrain.flow import place_step
from dagtrain.flow.placed import load_placed_graph, load_plan, load_searched
from dagtrain.graph.ir import Node, Role
from dagtrain.passes.form import Form
from dagtrain.planning.balancing import freed_bits, full_devices, memory_share
from dagtrain.planning.choices import plan_choices
from dagtrain.planning.former import FormedPlan, Former
from hdl.costs.resources import Resources
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv, ConvGradient
from hdl.layers.pointwise.relu import Relu
from hdl.layers.storage import Home
from placement.problem.cluster import read_cluster, without_dram
from placement.problem.validate import violations
from tests.flow_support import CLUSTER, Case, QuickEstimator, new_case, quick_costs
from tests.import_support import model, node, save

# channels of the dense layer of `wide_model`: of its weights, in two versions, 26 block memories
WIDE = 128
# boards that multiply and have few block memories, and one that has nothing else
UNLIKE = """
[cluster]
name = "unlike"
clock_mhz = 200

[[board]]
name = "multiplies"
part = "10AX115"
dram_gb_per_s = 38.4
dram_gbyte = 8
link_gbit_per_s = 100
utilisation = {{ dsp = 0.02, m20k = {blocks}, alm = 0.8 }}

[[board]]
name = "remembers"
part = "10AX115"
dram_gb_per_s = 38.4
dram_gbyte = 8
link_gbit_per_s = 100
utilisation = {{ dsp = 0.0005, m20k = 0.5, alm = 0.8 }}

[[device]]
name = "one"
board = "multiplies"

[[device]]
name = "two"
board = "multiplies"

[[device]]
name = "memory"
board = "remembers"
"""


class RememberingEstimator(QuickEstimator):
    """With the memories that layers declare."""

    def layer(self, layer: Layer) -> Resources:
        """Memories as well."""
        memories: dict[tuple[int, int], int] = {}
        for memory in layer.memories():
            shape = memory.depth, memory.width
            memories[shape] = memories.get(shape, 0) + 1
        return replace(super().layer(layer), memories=memories)


def wide_model() -> ModelProto:
    """A dense layer of many weights, and a small one behind it."""
    rng = np.random.default_rng(2)
    constants = {"v": rng.standard_normal((WIDE, WIDE)) / 12, "w": rng.standard_normal((3, WIDE)) / 12}
    nodes = [
        node("Flatten", "x", "f"),
        node("Gemm", "f v", "c", transB=1),
        node("Relu", "c", "r"),
        node("Gemm", "r w", "y", transB=1),
    ]
    return model(nodes, constants, image=("N", WIDE, 1, 1))


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The model, on boards of which none that multiplies has room for the weights of an engine."""
    monkeypatch.setattr(place_step, "Estimator", RememberingEstimator)
    case = new_case(tmp_path, UNLIKE.format(blocks=0.0085))
    save(wide_model(), tmp_path)
    return case.must("import")


def told(case: Case, *words: str) -> dict[str, Any]:
    """The plan that a command leaves, and what it took."""
    outcome = case.step(*words)
    assert outcome.code == 0, outcome.error
    found: dict[str, Any] = json.loads((case.out / "place" / "plan.json").read_text())
    return found | json.loads((case.out / "place" / "place.json").read_text())


def test_where_no_board_has_room_for_weights_they_lie_on_another_one(wide: Case) -> None:
    without = wide.step("place", "--no-split", "--no-dram", "--no-remote")
    assert without.code == 1
    assert "item 'c_node' fits no device" in without.error
    found = told(wide, "place", "--no-split", "--no-dram")
    assert found["remote"] == ["c_node", "c_node.gradient"]
    assert {item["item"]: item["device"] for item in found["items"]}["c_node.store"] == "memory"
    assert found["share_without_stores"] is None
    plan, graph = load_plan(wide.workspace), load_placed_graph(wide.workspace)
    assert {node.name for node in graph.nodes if node.role is Role.STORE} == {
        f"{name}.store" for name in found["remote"]
    }
    assert memory_share(plan) <= 1
    again = wide.step("place", "--no-split", "--no-dram")
    assert again.out.startswith("place: unchanged")
    assert f"memories on other boards: of {', '.join(found['remote'])} (as --remote makes)" in again.out
    assert f"largest share of M20K of any board: {memory_share(plan):.1%}" in again.out
    assert full_devices(plan) <= {device.device for device in plan.devices}
    assert {choice.memory for choice in plan_choices(plan).values()} == {Home.ON_CHIP}
    assert violations(load_searched(wide.workspace).instance, load_searched(wide.workspace).plan) == []


def test_where_a_full_board_holds_a_plan_up_its_memories_are_tried_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_step, "Estimator", RememberingEstimator)
    case = new_case(tmp_path, UNLIKE.format(blocks=0.01))
    save(wide_model(), tmp_path)
    case.must("import")
    forms: list[Form] = []
    better = Former.better

    def tried(former: Former, found: FormedPlan, form: Form, promises: Any) -> Any:
        forms.append(form)
        return better(former, found, form, promises)

    monkeypatch.setattr(Former, "better", tried)
    found = told(case, "place", "--no-split", "--no-dram")
    assert full_devices(load_plan(case.workspace)) == {"two"}
    assert [form.remote for form in forms] == [frozenset({"c_node"})]
    # never slower
    assert found["remote"] == []
    forms.clear()
    assert (
        told(case, "place", "--no-split", "--no-dram", "--no-remote")["cycles_per_frame"] == found["cycles_per_frame"]
    )
    assert forms == []


def test_a_memory_that_the_user_wants_elsewhere_is_there_and_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path).must("import")
    found = told(case, "place", "--no-split", "--remote", "y_node", "--remote", "c_node.w.update")
    # all engines of a layer
    assert found["remote"] == ["c_node.w.update", "y_node", "y_node.error", "y_node.gradient"]
    pins = "--pin", "y_node=head", "--pin", "y_node.store=worker"
    pinned = told(case, "place", "--no-split", "--remote", "y_node", *pins)
    places = {item["item"]: item["device"] for item in pinned["items"]}
    assert (places["y_node"], places["y_node.store"]) == ("head", "worker")


def test_all_that_is_wrong_with_memories_elsewhere_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path, CLUSTER[: CLUSTER.rindex("[[device]]")]).must("import")
    words = ("--remote", "y_node", "--remote", "nobody", "--remote", "r_node")
    outcome = case.step("place", *words, "--no-remote")
    assert outcome.code == 1
    for part in (
        "--remote and --no-remote are both given; leave one of them out",
        "--remote without a network: there is one device; give the cluster another, or leave it out",
        "--remote nobody: no layer or node nobody; `dagtrain show` lists them",
        "--remote r_node: has no memory that could lie in a store; leave it out",
    ):
        assert part in outcome.error
    assert "--remote y_node:" not in outcome.error


def test_boards_without_dram_are_those_of_the_file_otherwise(tmp_path: Path) -> None:
    case = new_case(tmp_path)
    cluster = read_cluster(case.cluster)
    bare = without_dram(cluster)
    assert all(device.board.dram_bytes_per_s == device.board.dram_bytes == 0 for device in bare.devices)
    assert [device.board.m20k for device in bare.devices] == [device.board.m20k for device in cluster.devices]


def test_an_engine_frees_what_it_keeps_less_the_maps_that_it_stores_then() -> None:
    engine = Conv(height=1, width=1, channels=WIDE, filters=WIDE, kernel=(1, 1))
    graph_node = Node("dense", engine)
    weights, maps = 16 * WIDE * WIDE, 16 * (WIDE + WIDE)
    assert freed_bits(graph_node) == 2 * weights - 2 * maps
    gradient = ConvGradient(height=1, width=1, channels=WIDE, filters=WIDE, kernel=(1, 1))
    assert freed_bits(Node("sums", gradient)) == WIDE * WIDE * gradient.sum_bits - 2 * maps
    large = Conv(height=64, width=64, channels=4, filters=4, kernel=(1, 1))
    assert freed_bits(Node("early", large)) < 0
    assert freed_bits(Node("relu", Relu(height=1, width=1, channels=4))) == 0
