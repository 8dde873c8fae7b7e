"""The command line on boards that cables join: what is emitted, co-simulated, simulated, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagtrain.emission.manifest import read_manifest
from dagtrain.flow import cosim_step
from dagtrain.flow.cosim_step import CosimOptions
from dagtrain.progress import Silent
from hdl.errors import DagtrainError
from placement.problem.plan import plan_from_json
from tests.cosim_support import CLOSE
from tests.flow_support import CLUSTER, Case, Outcome, call, new_case, quick_costs

DIGITS = Path(__file__).parent.parent / "examples" / "digits"
# what the interval of a batch may differ between levels
INTERVAL = 0.001

# both ends of a chain have room for about half of the network each, the board between them for nothing
CHAIN = CLUSTER.replace(
    """link_gbit_per_s = 100

[[device]]
name = "head"
board = "agilex"
""",
    """link_gbit_per_s = 100
ports = 2
utilisation = { dsp = 0.003 }

[[board]]
name = "small"
part = "AGFB014"
dram_gb_per_s = 0
dram_gbyte = 0
link_gbit_per_s = 100
ports = 2
utilisation = { dsp = 0.0002 }

[network]
topology = "chain"

[[device]]
name = "head"
board = "agilex"

[[device]]
name = "between"
board = "small"
""",
)


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The tiny net placed on a chain of three."""
    quick_costs(monkeypatch)
    case = new_case(tmp_path, CHAIN)
    case.must("import", "place")
    return case


@pytest.mark.slow
def test_emitted_boards_of_a_chain_have_ports_for_their_cables(chain: Case) -> None:
    assert chain.step("emit").code == 0
    cables = {}
    for path in sorted((chain.out / "emit").glob("*/manifest.json")):
        manifest = read_manifest(path)
        assert manifest.network is not None
        cables[manifest.device] = [(cable.port, cable.device) for cable in manifest.network.cables or ()]
    assert cables == {"head": [(0, "between")], "between": [(0, "head"), (1, "worker")], "worker": [(0, "between")]}
    assert read_manifest(chain.out / "emit" / "between" / "manifest.json").nodes == ()


def test_events_tell_of_every_cable(chain: Case) -> None:
    outcome = chain.step("simulate", "--level", "fast")
    assert outcome.code == 0, outcome.error
    told = json.loads((chain.out / "simulate" / "simulate.json").read_text())
    ways = {(cable["source"], cable["target"]): cable["bits"] for cable in told["cables"]}
    # what one end says to the other goes over both cables
    assert ways["head", "between"] == ways["between", "worker"] > 0
    assert ways["worker", "between"] == ways["between", "head"] > 0
    assert len(ways) == 4


@pytest.mark.slow
def test_an_emitted_chain_trains_to_the_bits_of_the_emulator(chain: Case) -> None:
    chain.must("emit")
    outcome = chain.step("cosim", "--batches", "2", "--no-efficiency")
    assert outcome.code == 0, outcome.error
    assert "every bit equal" in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["chain", "ring", "mesh"])
def test_the_digits_network_trains_over_cables_to_the_bits_of_the_emulator(shape: str, tmp_path: Path) -> None:
    """By the commands of docs/cluster-file.md, with what it says of them."""

    def must(*words: object) -> Outcome:
        outcome = call(*words, "--out", tmp_path)
        assert outcome.code == 0, outcome.error
        return outcome

    must("import", DIGITS / "digits.onnx", "--data", "digits", "--recipe", DIGITS / "recipe.toml")
    must("place", "--devices", DIGITS / f"cluster-{shape}.toml", "--gap", "0.3")
    plan = plan_from_json((tmp_path / "place" / "plan.json").read_text())
    assert {item.device for item in plan.items} == {use.device for use in plan.devices}
    assert any(route.through for route in plan.routes)
    must("emit")
    told = {}
    for level, words in (("fast", ("--level", "fast")), ("exact", ("--stall", "0"))):
        must("simulate", *words, "--batches", "4")
        told[level] = json.loads((tmp_path / "simulate" / "simulate.json").read_text())
    ways = [{(way["source"], way["target"]): way["bits"] for way in of["cables"]} for of in told.values()]
    assert ways[0] == ways[1]
    exact = told["exact"]["batch_interval"]
    assert told["fast"]["batch_interval"] == pytest.approx(exact, rel=INTERVAL)
    assert plan.batch_cycles == pytest.approx(exact, rel=CLOSE)
    assert "every bit equal" in must("cosim", "--batches", "2", "--no-efficiency").out


def test_ranks_do_not_share_cables(chain: Case) -> None:
    chain.must("emit")
    with pytest.raises(DagtrainError, match=r"^--mpi: words go over cables, which one program simulates alone; "):
        cosim_step.run(chain.workspace, CosimOptions(mpi=True, batches=1), Silent())
