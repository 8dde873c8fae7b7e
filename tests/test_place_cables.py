"""`dagtrain place` where cables join the boards, and no switch: plan, cables in the output and in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagtrain.flow import sweep_step
from dagtrain.planning.port_tables import PortTables
from dagtrain.report import contents, roofline
from hdl.costs.estimate import Estimator
from placement.problem.cluster import parse_cluster, read_cluster
from placement.problem.instance import instance_from_json
from placement.problem.plan import plan_from_json
from placement.problem.validate import violations
from tests.flow_support import CLUSTER, Case, QuickEstimator, call, new_case, quick_costs
from tests.test_relays import residual

DIGITS = Path(__file__).parent.parent / "examples" / "digits"


def test_the_digits_network_is_placed_on_a_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    assert call("import", DIGITS / "digits.onnx", "--out", tmp_path).code == 0
    outcome = call("place", "--devices", DIGITS / "cluster-chain.toml", "--out", tmp_path, "--gap", "0.3")
    assert outcome.code == 0, outcome.error
    plan = plan_from_json((tmp_path / "place" / "plan.json").read_text())
    instance = instance_from_json((tmp_path / "place" / "instance.json").read_text())
    cluster = read_cluster(DIGITS / "cluster-chain.toml")
    assert instance.cables == cluster.network.cables
    assert instance.routing == cluster.routing
    assert violations(instance, plan) == []
    assert {item.device for item in plan.items} == {"fpga0", "fpga1", "fpga2"}
    assert [(cable.from_device, cable.to_device) for cable in plan.cables] == [
        ("fpga0", "fpga1"), ("fpga1", "fpga0"), ("fpga1", "fpga2"), ("fpga2", "fpga1"),
    ]  # fmt: skip
    far = [route for route in plan.routes if {route.from_device, route.to_device} == {"fpga0", "fpga2"}]
    assert all(route.through == ("fpga1",) for route in far)
    assert "cables: the fullest, fpga" in outcome.out
    # what a device passes on is in its bars and its roof
    middle = plan.devices[1]
    bars = {bar.label: bar for bar in contents.device_bars(plan, middle)}
    assert bars["network out"].used == sum(c.bits_per_s for c in plan.cables if c.from_device == "fpga1") // 10**6
    assert bars["network out"].capacity == 25_600
    way = roofline._network(plan, middle)
    assert way.bytes_per_s == 12_800_000_000 // 8


# of the four boards of the example: who passes on words between those that no cable joins, there and back
PASSING = {
    "ring": {("fpga0", "fpga2"): ("fpga1", "fpga1"), ("fpga1", "fpga3"): ("fpga0", "fpga0")},
    "mesh": {("fpga0", "fpga3"): ("fpga1", "fpga2"), ("fpga1", "fpga2"): ("fpga0", "fpga3")},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["ring", "mesh"])
def test_the_digits_network_is_spread_over_a_ring_and_a_mesh(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    path = DIGITS / f"cluster-{shape}.toml"
    assert call("import", DIGITS / "digits.onnx", "--out", tmp_path).code == 0
    outcome = call("place", "--devices", path, "--out", tmp_path, "--gap", "0.6")
    assert outcome.code == 0, outcome.error
    plan = plan_from_json((tmp_path / "place" / "plan.json").read_text())
    instance = instance_from_json((tmp_path / "place" / "instance.json").read_text())
    assert instance.routing == read_cluster(path).routing
    assert violations(instance, plan) == []
    assert {item.device for item in plan.items} == {"fpga0", "fpga1", "fpga2", "fpga3"}
    assert len(plan.cables) == 8
    far = {(route.from_device, route.to_device): route.through for route in plan.routes if route.through}
    assert far
    back = {(b, a): ways[1:] for (a, b), ways in PASSING[shape].items()}
    there = {ends: ways[:1] for ends, ways in PASSING[shape].items()}
    assert far.items() <= (there | back).items()


THREE = CLUSTER.replace(
    'board = "agilex"\n\n[[device]]\nname = "worker"', 'board = "agilex"\n\n[[device]]\ncount = 2\nname = "worker"'
)


def _text(topology: str) -> str:
    text = THREE.replace("link_gbit_per_s = 100", "link_gbit_per_s = 100\nports = 2")
    return f'{text}\n[network]\ntopology = "{topology}"\n'


def _case(root: Path, topology: str) -> Case:
    return new_case(root, _text(topology))


def test_what_has_no_meaning_on_cables_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = _case(tmp_path / "case", "chain")
    assert case.step("import").code == 0
    explained = case.step("place", "--explain")
    assert explained.code == 0, explained.error
    assert "one more board: not asked, for nothing says to which others its cables would go" in explained.out
    mapped = case.step("place", "--mapping", "fpdeep")
    assert mapped.code == 0, mapped.error
    apart = case.step("place", "--mapping", "fpdeep", "--exclude", "worker-0")
    assert apart.code != 0
    assert "head and worker-1 are joined by no cable as fast as their ports; FPDeep maps to a row of" in apart.error


@pytest.mark.slow
def test_chains_rings_and_meshes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr(sweep_step, "Estimator", QuickEstimator)
    chain = parse_cluster(_text("chain"), "chain.toml")
    joined = {size: sweep_step.resized(chain, size) for size in (1, 2, 5)}
    assert [len(joined[size].network.cables) for size in (1, 2, 5)] == [0, 1, 4]
    assert joined[1].routing is None
    last = joined[5].network.cables[-1]
    assert (last.a, last.b, last.bits_per_s) == ("head-2", "worker-0-2", 100 * 10**9)
    ring = parse_cluster(_text("ring"), "ring.toml")
    assert [len(sweep_step.resized(ring, size).network.cables) for size in (2, 3, 6)] == [1, 3, 6]
    mesh = parse_cluster(_text("mesh").replace("ports = 2", "ports = 4") + "shape = [1, 3]\n", "mesh.toml")
    six = sweep_step.resized(mesh, 6)
    assert len(six.network.cables) == 7
    routing = six.routing
    assert routing is not None
    assert routing.distance[0][5] == 3
    # a point of a chain is the plan that the file of its size gives
    case = _case(tmp_path / "case", "chain")
    assert case.step("import").code == 0
    swept = case.step("place", "--sweep", "--cap", "dsp=0.001", "--workers", "1")
    assert swept.code == 0, swept.error
    points = json.loads((case.out / "sweep" / "sweep.json").read_text())["points"]
    assert [point["devices"] for point in points] == [1, 2, 3, 4, 6]
    placed = case.step("place", "--cap", "dsp=0.001", "--gap", "0.02", "--json")
    assert points[2]["throughput_fps"] == json.loads(placed.out)["throughput_fps"]


def test_a_sweep_says_what_no_larger_cluster_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = _case(tmp_path / "case", "chain")
    assert case.step("import").code == 0
    assert case.step("place", "--gap", "0.3").code == 0
    text = case.cluster.read_text()
    ends = text.replace("ports = 2", "ports = 1").replace("count = 2\n", "")
    case.cluster.write_text(ends)
    swept = case.step("place", "--sweep")
    assert swept.code != 0
    assert "board 'agilex' has ports = 1, and with 3 devices it needs 2; write ports = 2" in swept.error
    cables = '[[cable]]\na = "head:0"\nb = "worker:0"\n'
    case.cluster.write_text(ends.replace('topology = "chain"', f'topology = "cables"\n{cables}'))
    swept = case.step("place", "--sweep")
    assert swept.code != 0
    assert "on cables, and nothing says how more or fewer would be joined; sweep with" in swept.error


def test_an_excluded_device_passes_words_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = _case(tmp_path / "case", "chain")
    assert case.step("import").code == 0
    outcome = case.step("place", "--exclude", "worker-0", "--pin", "r_node=worker-1")
    assert outcome.code == 0, outcome.error
    plan = plan_from_json((case.out / "place" / "plan.json").read_text())
    assert {item.device for item in plan.items} == {"head", "worker-1"}
    assert {route.through for route in plan.routes} == {("worker-0",)}


def test_what_passes_on_words_takes_its_part_of_a_device() -> None:
    """More in the middle of a chain than at its end, and nothing at a switch."""
    text, port = (DIGITS / "cluster-chain.toml").read_text(), Estimator()
    chain = parse_cluster(text)
    switch = parse_cluster(text.replace('topology = "chain"', 'topology = "switch"').replace("ports = 2", "ports = 1"))
    end, middle, _ = (PortTables(residual(1), chain, port, lambda *_: None).rest(d) for d in chain.placement_devices())
    plain = PortTables(residual(1), switch, port, lambda *_: None).rest(switch.placement_devices()[0])
    assert middle.alm > end.alm > plain.alm > 0
