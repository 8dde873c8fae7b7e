"""Infeasible and odd instances: the constraints at fault are named, minimally; odd ones are handled or refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from hdl.errors import DagtrainError, InfeasibleError, OutOfTimeError
from hdl.tensor import Kind
from placement.diagnosis.infeasible import smallest_fault
from placement.exact.model import Effort, Family
from placement.problem.instance import Configuration, Device, Instance, Item, Link
from placement.problem.options import OptionTable
from placement.problem.validate import violations
from placement.search.search import SearchOptions, find_plan

CLOCK = 1000
EFFORT = Effort(deterministic_seconds=2.0)


def device(name: str, **changes: int) -> Device:
    base = Device(name=name, part="P", dsp=9, m20k=9, alm=99, dram_bytes_per_s=10**6, link_bits_per_s=10**6)
    return replace(base, **changes)  # type: ignore[arg-type]


def item(name: str, pinned: str | None = None, same_device: str | None = None, **costs: int) -> Item:
    c = Configuration(label="c", cycles_per_frame=costs.pop("cycles", 10), **costs)  # type: ignore[arg-type]
    return Item(name=name, configurations={"P": (c,)}, pinned=pinned, same_device=same_device, layer=name)


def chain(items: Sequence[Item], devices: Sequence[Device], bits: int = 10, more: tuple[Link, ...] = ()) -> Instance:
    links = tuple(link(a.name, b.name, bits) for a, b in itertools.pairwise(items))
    return Instance(name="odd", clock_hz=CLOCK, items=tuple(items), links=(*links, *more), devices=tuple(devices))


def link(source: str, target: str, bits: int, kind: Kind = Kind.ACTIVATION) -> Link:
    return Link(source=source, target=target, kind=kind, bits_per_frame=Fraction(bits))


def message_of(instance: Instance, **options: float) -> str:
    with pytest.raises(InfeasibleError) as caught:
        find_plan(instance, SearchOptions(**options))  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("resource", ["dsp", "m20k", "alm"])
def test_block_that_two_items_cannot_share_is_named_with_its_devices(resource: str) -> None:
    # three items of 5 on two devices of 9: in all there is enough
    instance = chain([item(n, **{resource: 5}) for n in "abc"], [device(n, **{resource: 9}) for n in ("d0", "d1")])
    words = {"dsp": "DSP blocks", "m20k": "block memories", "alm": "logic cells"}[resource]
    assert f"at fault together: {words} of d0, d1" in message_of(instance)
    assert "utilisation cap" in message_of(instance)


def test_dram_that_is_too_slow_is_named() -> None:
    instance = chain([item(n, dram_bytes_per_frame=600) for n in "abc"], [device("d0", dram_bytes_per_s=20_000)] * 1)
    told = message_of(instance, least_fps=20.0)
    assert "DRAM" in told
    assert "at fault together: DRAM bandwidth of d0" in told
    assert "give devices more DRAM bandwidth" in told


def test_link_at_fault_is_named_with_the_blocks_that_force_the_cut() -> None:
    slow = [device("d0", link_bits_per_s=100), device("d1", link_bits_per_s=100)]
    told = message_of(chain([item("a", dsp=5), item("b", dsp=5)], slow), least_fps=20.0)
    # both ends lie apart; each device's link alone forbids the cut
    assert "at fault together: DSP blocks of d0, d1, link bandwidth of d" in told
    assert "give devices faster links" in told


def test_pins_at_fault_are_named_and_those_of_others_are_not() -> None:
    items = [item("a", pinned="d0", dsp=5), item("b", pinned="d0", dsp=5), item("c", pinned="d1", dsp=1)]
    told = message_of(chain(items, [device("d0"), device("d1")]))
    assert told.endswith("at fault together: DSP blocks of d0, pinned items of a, b")
    assert "pin fewer items, or pin them to other devices" in told


def test_join_at_fault_is_named() -> None:
    items = [item("a", pinned="d0"), item("b", pinned="d1"), item("c", pinned="d0"), item("x"), item("y")]
    instance = chain(items, [device("d0"), device("d1")], more=(link("a", "c", 1),))
    told = message_of(instance)
    assert "at fault together: equal hops at c, pinned items of a, b, c" in told
    assert "use fewer devices or larger ones" in told


def test_coupled_items_at_fault_are_named() -> None:
    items = [item("a", same_device="s", dsp=5), item("b", same_device="s", dsp=5), item("c")]
    told = message_of(chain(items, [device("d0"), device("d1")]))
    assert "coupled items of " in told


def test_smallest_fault_is_empty_where_nothing_is_at_fault_and_minimal_where_something_is() -> None:
    items = [item("a", dsp=5), item("b", dsp=5), item("c", pinned="d0")]
    fine = chain(items, [device("d0"), device("d1")])
    assert smallest_fault(fine, OptionTable(fine), 100, EFFORT) == []
    tight = chain(items, [device("d0"), device("d1", dsp=4)])
    assert smallest_fault(tight, OptionTable(tight), 100, EFFORT) == [(Family.DSP, "d0"), (Family.DSP, "d1")]


# --- odd instances -----------------------------------------------------------------------------------------------


def test_links_without_bandwidth_keep_everything_on_one_device() -> None:
    instance = chain([item(n, dsp=2) for n in "abcd"], [device(n, link_bits_per_s=0) for n in ("d0", "d1")])
    for options in (SearchOptions(), SearchOptions(exact_choices=0)):
        plan = find_plan(instance, options)
        assert len({entry.device for entry in plan.items}) == 1
        assert plan.crossings == ()
        assert violations(instance, plan) == []


def test_weightless_links_may_cross_where_there_is_no_bandwidth() -> None:
    instance = chain([item(n, dsp=5) for n in "ab"], [device(n, link_bits_per_s=0) for n in ("d0", "d1")], bits=0)
    for options in (SearchOptions(), SearchOptions(exact_choices=0)):
        assert len({entry.device for entry in find_plan(instance, options).items}) == 2


def test_one_device_takes_everything_or_nothing() -> None:
    items = [item(n, dsp=3) for n in "abc"]
    assert find_plan(chain(items, [device("d0")])).status == "optimal"
    assert "dsp of at least 9 needed, all devices together have 8" in message_of(chain(items, [device("d0", dsp=8)]))


def test_more_devices_than_layers_leave_devices_empty() -> None:
    instance = chain([item("a", dsp=5), item("b", dsp=5)], [device(f"d{n}") for n in range(40)])
    for options in (SearchOptions(), SearchOptions(exact_choices=0)):
        plan = find_plan(instance, options)
        assert plan.status == "optimal"
        assert sum(use.items > 0 for use in plan.devices) == 2


def test_chain_of_ten_thousand_layers_is_planned() -> None:
    items = [item(f"i{k}", dsp=1 + k % 3, m20k=1) for k in range(10_000)]
    machines = [device(f"d{n}", dsp=2_600, m20k=9_000) for n in range(8)]
    instance = chain(items, machines)
    plan = find_plan(instance, SearchOptions(anneal_budget=1_000_000, anneal_moves=1_000))
    assert plan.status == "optimal"
    assert violations(instance, plan) == []


def test_pins_of_coupled_items_must_not_contradict_each_other() -> None:
    items = [item("a", pinned="d0", same_device="s"), item("b", pinned="d1", same_device="s")]
    with pytest.raises(DagtrainError, match="coupled by same_device 's' are pinned to different devices d0, d1"):
        chain(items, [device("d0"), device("d1")])
    instance = chain([item("a", pinned="d0"), item("b", pinned="d1")], [device("d0"), device("d1")])
    with pytest.raises(InfeasibleError, match="are pinned apart: 'a' to 'd0', 'b' to 'd1'; remove a pin"):
        find_plan(instance, SearchOptions(same_device=(("a", "b"),)))


@pytest.mark.parametrize("what", ["dsp", "dram_bytes_per_frame", "cycles"])
def test_costs_beyond_64_bit_sums_are_refused_with_the_item(what: str) -> None:
    instance = chain([item("a", **{what: 2**60}), item("b")], [device("d0", dsp=2**61)])
    with pytest.raises(DagtrainError, match=r"item 'a' on P has a cost of 1152921504606846976.*at most 2\^53"):
        find_plan(instance)


def test_capacities_and_streams_beyond_64_bit_sums_are_refused() -> None:
    with pytest.raises(DagtrainError, match="device 'd0' has a capacity of"):
        find_plan(chain([item("a")], [device("d0", dsp=2**60)]))
    with pytest.raises(DagtrainError, match=r"link 'a' → 'b' has 1.15e.18 bits a frame"):
        find_plan(chain([item("a"), item("b")], [device("d0")], bits=2**60))


def test_costs_just_below_the_limit_are_planned() -> None:
    big = 2**52
    instance = chain([item(n, dsp=big - 1) for n in "ab"], [device(n, dsp=big) for n in ("d0", "d1")])
    for options in (SearchOptions(), SearchOptions(exact_choices=0)):
        assert find_plan(instance, options).status == "optimal"


def test_running_out_of_time_before_any_plan_is_another_error_than_infeasible() -> None:
    items = [item(f"i{k}", dsp=k % 7 + 1) for k in range(60)]
    machines = [device(f"d{n}", dsp=-(-sum(k % 7 + 1 for k in range(60)) // 6)) for n in range(6)]
    options = SearchOptions(anneal_budget=0, decision_seconds=1e-9, exact_choices=10**6)
    with pytest.raises(OutOfTimeError, match="none excluded"):
        find_plan(chain(items, machines), options)


def test_items_alike_stand_on_one_device_without_the_layer_that_has_the_name_of_one() -> None:
    items = [item("a", dsp=3), replace(item("a.gradient", dsp=4), layer="a"), item("b", dsp=3)]
    instance = chain(items, [device("d0"), device("d1")])
    alike = (("a", "b"),)
    plan = find_plan(instance, SearchOptions(alike=alike))
    places = {placed.item: placed.device for placed in plan.items}
    assert places["a"] == places["b"] != places["a.gradient"]
    assert plan.bound_basis.startswith("with all items of each of 1 groups on one device: ")
    # the whole layer has no room there
    with pytest.raises(InfeasibleError):
        find_plan(instance, SearchOptions(same_device=alike))
