"""Copies of a whole network: chains start too where each copy stands as the first one does, on devices of its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from hdl.errors import OutOfTimeError
from hdl.tensor import Kind
from placement.problem.deadline import Deadline
from placement.problem.instance import Cable, Configuration, Device, Instance, Item, Link
from placement.problem.plan import Assignment
from placement.problem.validate import violations
from placement.search import descent
from placement.search.search import SearchOptions, find_plan
from placement.search.twins import Twins, like_groups

CLOCK, CYCLES = 1_000, 10
OPTIONS = SearchOptions(
    seed=1, exact_choices=0, anneal_moves=20_000, anneal_budget=40_000, proves=False, explain=False, tidy_seconds=0.0
)


def device(name: str, **changes: int) -> Device:
    base = Device(name=name, part="P", dsp=100, m20k=100, alm=100, dram_bytes_per_s=0, link_bits_per_s=10**4)
    return replace(base, **changes)  # type: ignore[arg-type]


def item(name: str, dsp: int, pinned: str | None = None) -> Item:
    made = Configuration(label="c", cycles_per_frame=CYCLES, dsp=dsp)
    return Item(name=name, configurations={"P": (made,)}, layer=name, pinned=pinned)


def link(source: str, target: str, bits: int) -> Link:
    return Link(source=source, target=target, kind=Kind.ACTIVATION, bits_per_frame=Fraction(bits))


def copied(length: int, copies: int, devices: Sequence[Device], dsp: int = 20, bits: int = 10) -> Instance:
    """So many chains from one source, which only the last hop of the first one has no like of."""
    names = [[f"n{at}@{copy}" for at in range(length)] for copy in range(copies)]
    items = [item("deal", 1, devices[0].name), *(item(name, dsp) for chain in names for name in chain)]
    items += [item(f"sum@{copy}", 1) for copy in range(1, copies)]
    links = [link("deal", chain[0], 1) for chain in names]
    links += [link(a, b, bits) for chain in names for a, b in itertools.pairwise(chain)]
    links += [link(chain[-1], f"sum@{copy}", 1) for copy, chain in enumerate(names) if copy]
    return Instance(name="copies", clock_hz=CLOCK, items=tuple(items), links=tuple(links), devices=tuple(devices))


def copies_of(length: int, copies: int) -> tuple[tuple[str, ...], ...]:
    chains = [tuple(f"n{at}@{copy}" for copy in range(copies)) for at in range(length)]
    return (*chains, ("", *(f"sum@{copy}" for copy in range(1, copies))))


def devices_of(count: int, **changes: int) -> list[Device]:
    return [device(f"d{n}", **changes) for n in range(count)]


def test_groups_have_equally_many_devices_of_each_shape() -> None:
    devices = [device("a0"), device("b0", dsp=5), device("a1"), device("a2"), device("b1", dsp=5), device("c", dsp=7)]
    assert like_groups(devices, 2) == ((0, 1), (2, 4))
    assert like_groups(devices, 3) == ((0,), (2,), (3,))
    assert like_groups(devices, 4) == ()
    assert like_groups(devices, 1) == ((0, 2, 3, 1, 4, 5),)


@pytest.mark.parametrize("copies", [2, 3])
def test_every_copy_stands_as_the_first_does(copies: int) -> None:
    instance = copied(8, copies, devices_of(2 * copies))
    twins = Twins.of(instance, replace(OPTIONS, copies=copies_of(8, copies)))
    assert twins is not None
    # the first copies, what there are no copies of, and what the first ones alone have not
    assert [one.name for one in twins.first.items] == ["deal", *(f"n{at}@0" for at in range(8)), "sum@1"]
    assert {(one.source, one.target) for one in twins.first.links} == {
        ("deal", "n0@0"), *((f"n{at}@0", f"n{at + 1}@0") for at in range(7))
    }  # fmt: skip
    found = twins.placed(CYCLES, 20_000, Deadline())
    assert found is not None
    where = {one.name: device for one, device in zip(instance.items, found.devices, strict=True)}
    assert where["deal"] == 0
    assert {where[f"n{at}@0"] for at in range(8)} == {0, 1}
    for copy in range(copies):
        assert all(where[f"n{at}@{copy}"] == where[f"n{at}@0"] + 2 * copy for at in range(8))
    assert all(where[f"sum@{copy}"] == where["sum@1"] + 2 * (copy - 1) for copy in range(1, copies))


def test_there_are_none_without_copies_or_like_devices_or_over_cables_or_where_pins_say_otherwise() -> None:
    options = replace(OPTIONS, copies=copies_of(4, 2))
    instance = copied(4, 2, devices_of(2))
    assert Twins.of(instance, options) is not None
    assert Twins.of(instance, OPTIONS) is None
    assert Twins.of(copied(4, 2, [device("d0"), device("d1", dsp=99)]), options) is None
    assert Twins.of(instance.with_pins({"n1@1": "d1"}), options) is None
    cable = Cable(a="d0", b="d1", bits_per_s=10**4, a_port=0, b_port=0)
    assert Twins.of(replace(instance, cables=(cable,)), options) is None


def test_a_search_goes_on_from_there() -> None:
    """640 items on 64 devices that are full but for a hundredth, whose cables carry what chains in a row want."""
    instance = copied(80, 8, devices_of(64, dsp=203, link_bits_per_s=1_700))
    options = replace(OPTIONS, anneal_moves=5_000, anneal_budget=10_000)
    plan = find_plan(instance, replace(options, copies=copies_of(80, 8)))
    assert violations(instance, plan) == []
    assert plan.cycles_per_frame == CYCLES
    with pytest.raises(OutOfTimeError):
        find_plan(instance, options)


def test_a_plan_with_copies_is_not_slower_where_they_have_no_place_as_the_first_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance, tried = copied(6, 2, devices_of(3)), []

    def nowhere(_: Twins, cycles: int, *__: object) -> Assignment | None:
        tried.append(cycles)
        return None

    monkeypatch.setattr(descent.Twins, "placed", nowhere)
    plan = find_plan(instance, replace(OPTIONS, copies=copies_of(6, 2)))
    assert tried
    assert plan.cycles_per_frame == find_plan(instance, OPTIONS).cycles_per_frame
