"""Pricing a level: what is elaborated for it, and when."""

from __future__ import annotations

import pickle

import pytest

from dagtrain.planning.prices import Prices
from dagtrain.progress import Silent
from hdl.costs.estimate import Circuit, Estimator
from hdl.costs.resources import Resources
from tests.test_relays import residual, small_cluster


class Watching(Silent):
    """Notes how many circuits had been elaborated when a bar began and when it ended."""

    def __init__(self, elaborated: list[Circuit]) -> None:
        self.elaborated = elaborated
        # label, elaborated before, elaborated inside, length of the bar
        self.bars: list[tuple[str, int, int, int | None]] = []
        self._open: tuple[str, int, int | None] = "", 0, None

    def begin(self, label: str, total: int | None = None) -> None:
        self._open = label, len(self.elaborated), total

    def end(self, note: str = "") -> None:
        del note
        label, before, total = self._open
        self.bars.append((label, before, len(self.elaborated) - before, total))


@pytest.mark.parametrize("spread", [False, True])
def test_whatever_a_level_needs_is_elaborated_before_it_is_priced_and_counted_by_its_bar(
    spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    elaborated: list[Circuit] = []

    def note(circuit: Circuit) -> Resources:
        # as it gets to another process
        elaborated.append(pickle.loads(pickle.dumps(circuit)))
        return Resources(registers=1)

    monkeypatch.setattr("hdl.costs.estimate._elaborated", note)
    monkeypatch.setattr("hdl.costs.estimate.in_processes", lambda *_: (result for result in ()))
    graph, cluster = residual(2), small_cluster(3, 40)
    bars = Watching(elaborated)
    prices = Prices(graph, cluster, Estimator(":memory:"), {}, bars)
    devices = [device.name for device in cluster.devices]
    places = {node.name: devices[number % 3] for number, node in enumerate(graph.nodes)} if spread else None
    level = prices.level(2048, assignment=places)
    if not spread:
        prices.instance([2048])
    assert level.offers
    for label, _, inside, total in bars.bars:
        assert inside == (total if label.startswith("circuits") else 0), f"{inside} elaborated at {label}"
    kinds = {circuit.configuration.split("(")[0].split()[0] for circuit in elaborated}
    assert {"Conv", "queue"} <= kinds
    assert {"Egress", "Ingress"} <= kinds
    assert len({circuit.key for circuit in elaborated}) == len(elaborated)
