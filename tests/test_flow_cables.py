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
from tests.flow_support import CLUSTER, Case, new_case, quick_costs

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


def test_ranks_do_not_share_cables(chain: Case) -> None:
    chain.must("emit")
    with pytest.raises(DagtrainError, match=r"^--mpi: words go over cables, which one program simulates alone; "):
        cosim_step.run(chain.workspace, CosimOptions(mpi=True, batches=1), Silent())
