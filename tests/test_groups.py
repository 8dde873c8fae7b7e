"""Copies of a network on groups of like boards: their search begins with the plan of one copy, on every group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dagtrain.passes.form import Form
from dagtrain.planning.groups import Grouper, like_groups
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Planned, Start
from dagtrain.planning.searcher import Searcher
from hdl.errors import InfeasibleError
from placement.problem.instance import Device, Instance
from placement.problem.plan import Plan, unequal_joins
from placement.search.search import SearchOptions
from tests.flow_support import Case, new_case, quick_costs
from tests.test_copies import small_devices

SMALL = Device(
    name="a0", part="AGFB014", dsp=4, m20k=9, alm=900, dram_bytes_per_s=10**9, link_bits_per_s=10**9
)  # fmt: skip
LARGE = replace(SMALL, name="b0", part="AGFB027", dsp=8)


def named(device: Device, *names: str) -> list[Device]:
    return [replace(device, name=name) for name in names]


def test_groups_have_the_same_boards_in_the_same_order() -> None:
    devices = [*named(SMALL, "a0", "a1"), *named(LARGE, "b0", "b1"), *named(SMALL, "a2", "a3")]
    assert like_groups(devices, 2) == [["a0", "a1", "b0"], ["a2", "a3", "b1"]]
    assert like_groups(devices, 1) == [["a0", "a1", "a2", "a3", "b0", "b1"]]


def test_boards_that_do_not_come_out_even_make_no_groups() -> None:
    assert like_groups([*named(SMALL, "a0", "a1"), *named(LARGE, "b0")], 2) == []
    # a clock of its own makes a board unlike others
    assert like_groups([*named(SMALL, "a0"), replace(SMALL, name="a1", clock_hz=10**8)], 2) == []


@dataclass
class Beginning:
    """How a search with copies began."""

    start: Start | None = None
    # node -> device to begin with
    near: Mapping[str, str] = field(default_factory=dict)
    instance: Instance | None = None


def began(case: Case, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[Beginning, dict[str, Any]]:
    """How the search with copies began, and the plan that it came to."""
    found, start, search = Beginning(), Grouper.start, Searcher.search

    def started(self: Grouper, form: Form, planner: Planner) -> Start | None:
        found.start = start(self, form, planner)
        return found.start

    def searched(self: Searcher, instance: Instance, options: SearchOptions, bounded: bool = True) -> Plan:
        if options.near is not None and not bounded and found.start is None:
            found.near, found.instance = options.near, instance
        return search(self, instance, options, bounded)

    monkeypatch.setattr(Grouper, "start", started)
    monkeypatch.setattr(Searcher, "search", searched)
    outcome = case.step("place", "--no-split", "--no-remote", *options)
    monkeypatch.undo()
    assert outcome.code == 0, outcome.error
    return found, json.loads((case.out / "place" / "plan.json").read_text())


@pytest.mark.parametrize("exchange", [pytest.param("central", marks=pytest.mark.slow), "chain"])
def test_copies_begin_as_the_plan_of_one_on_every_group(
    exchange: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (new_case(tmp_path / str(count), small_devices(count)) for count in (2, 4))
    for case in (one, two):
        assert case.step("import", "--exchange", exchange).code == 0
    quick_costs(monkeypatch)
    none, single = began(one, monkeypatch)
    assert none.start is None, "there are no copies"
    quick_costs(monkeypatch)
    beginning, plan = began(two, monkeypatch, "--replicas", "2")
    near, instance = beginning.near, beginning.instance
    assert instance is not None
    devices = ["head", "worker", "f0", "f1"]
    of_one = {item["item"]: devices.index(item["device"]) for item in single["items"]}
    assert set(of_one.values()) == {0, 1}
    wanted = {f"{name}@{copy}": devices[place + 2 * copy] for name, place in of_one.items() for copy in range(2)}
    there = [name for name in wanted if name in near]
    assert len(there) > (12 if exchange == "chain" else 8)
    assert [name for name in there if near[name] != wanted[name]] == []
    # what one has not stands with its copy, too; only the relay of the first one goes by way of another group
    (relay,) = [name for name in near if name.endswith(".relay")]
    for name, device in near.items():
        group = int("@1" in name or name == relay)
        assert device in devices[2 * group :][:2], name
    # so branches join after equal hops
    assert unequal_joins(instance, tuple(instance.device_index[near[item.name]] for item in instance.items)) == []
    # half of the cycles for each frame, on twice the boards
    assert beginning.start is not None
    assert beginning.start.plan.cycles_per_frame <= -(-single["cycles_per_frame"] // 2)
    assert plan["cycles_per_frame"] <= beginning.start.plan.cycles_per_frame


@pytest.mark.parametrize("why", ["names of devices", "boards", "copies", "no plan of one"])
def test_where_there_are_no_groups_copies_are_searched_from_the_start(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path, small_devices(5 if why == "boards" else 4))
    assert case.step("import").code == 0
    begun: list[tuple[int, Start | None]] = []

    def run(self: Planner, start: Start | None = None, *_: object) -> Planned:
        begun.append((len(self.problem.devices), start))
        raise InfeasibleError("nothing is planned")

    monkeypatch.setattr(Planner, "run", run)
    options = {
        "names of devices": ("--replicas", "2", "--pin", "c_node@0=head"),
        "copies": ("--copy", "c_node=2"),
    }
    outcome = case.step("place", "--no-split", "--no-remote", *options.get(why, ("--replicas", "2")))
    assert "nothing is planned" in outcome.error
    # only where there are groups one of them is planned first
    of_one = [(2, None)] if why == "no plan of one" else []
    assert begun == [*of_one, (5 if why == "boards" else 4, None)]
