"""What-if answers against instances whose answer is known by hand, and against new searches."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from benchmarks.synthetic import devices, instance_of, vgg_mini
from hdl.tensor import Kind
from placement.problem.instance import Configuration, Device, Instance, Item, Link
from placement.problem.plan import Plan
from placement.search.search import SearchOptions, find_plan
from placement.search.whatif import ShadowPrice, growth, next_level, quick_bound, scarcity, shadow_prices

CLOCK = 1000


def machine(name: str, **changes: int) -> Device:
    base = Device(name=name, part="P", dsp=8, m20k=9, alm=9, dram_bytes_per_s=1000, link_bits_per_s=1000)
    return replace(base, **changes)  # type: ignore[arg-type]


def two_items(first: Configuration, second: Configuration, machines: tuple[Device, ...], bits: int = 1) -> Instance:
    items = tuple(
        Item(name=name, layer=name, configurations={"P": menu}, pinned="d0" if name == "a" else None)
        for name, menu in (("a", (first,)), ("b", (second,)))
    )
    links = (Link(source="a", target="b", kind=Kind.ACTIVATION, bits_per_frame=Fraction(bits)),)
    return Instance(name="two", clock_hz=CLOCK, items=items, links=links, devices=machines)


def of(prices: tuple[ShadowPrice, ...], device: str, resource: str) -> ShadowPrice:
    return next(price for price in prices if (price.device, price.resource) == (device, resource))


def test_dram_that_binds_has_its_price_and_nothing_else_has_one() -> None:
    c = Configuration(label="c", cycles_per_frame=10, dsp=1, dram_bytes_per_frame=50)
    instance = two_items(c, replace(c, dram_bytes_per_frame=0), (machine("d0"),))
    plan = find_plan(instance)
    assert plan.cycles_per_frame == 50
    prices = shadow_prices(instance, plan, more=0.25)
    best = prices[0]
    assert (best.device, best.resource) == ("d0", "dram_bytes_per_s")
    assert best.sure_gain == pytest.approx(0.25)
    assert best.possible_gain == pytest.approx(0.25)
    assert str(best) == "+25% DRAM bandwidth on d0 → +25.0% fps as placed, bound +25.0%"
    assert all(price.sure_gain == 0 and price.possible_gain == 0 for price in prices[1:])


def test_link_that_binds_has_a_price_only_if_both_its_ends_allow_it() -> None:
    c = Configuration(label="c", cycles_per_frame=10, dsp=5)
    instance = two_items(c, c, (machine("d0"), machine("d1", link_bits_per_s=2000)), bits=40)
    plan = find_plan(instance)
    assert plan.cycles_per_frame == 40
    prices = shadow_prices(instance, plan, more=1.0)
    assert of(prices, "d0", "link_bits_per_s").sure_gain == pytest.approx(1.0)
    assert of(prices, "d1", "link_bits_per_s").sure_gain == 0


def test_blocks_get_a_price_by_searching_when_a_faster_engine_then_fits() -> None:
    fast = Configuration(label="fast", cycles_per_frame=10, dsp=9)
    slow = Configuration(label="slow", cycles_per_frame=20, dsp=1)
    instance = two_items(fast, slow, (machine("d0", dsp=8),))
    items = tuple(replace(item, configurations={"P": (fast, slow)}) for item in instance.items[:1])
    instance = replace(instance, items=(*items, replace(instance.items[1], configurations={"P": (
        replace(slow, cycles_per_frame=5),)})))  # fmt: skip
    plan = find_plan(instance)
    assert plan.cycles_per_frame == 20
    price = of(shadow_prices(instance, plan, more=0.25, moves=1000), "d0", "dsp")
    assert price.sure_gain == 0, "the placement itself has no use for blocks"
    assert price.searched_gain == pytest.approx(1.0)
    assert price.possible_gain >= 0.99


@cache
def vgg() -> tuple[Instance, Plan]:
    instance = instance_of("vgg mini", vgg_mini, devices((2, "10AX115")))
    return instance, find_plan(instance)


def test_next_level_says_what_it_needs_and_that_it_is_refuted() -> None:
    instance, plan = vgg()
    step = next_level(instance, plan)
    assert step is not None
    assert step.cycles_per_frame < plan.cycles_per_frame
    assert step.refuted == (plan.status == "optimal")
    need, have = step.demand["dsp"]
    assert need > have == 2 * 1290
    fastest = replace(plan, cycles_per_frame=1)
    assert next_level(instance, fastest) is None


def test_growth_by_a_board_is_what_a_search_on_the_larger_cluster_finds() -> None:
    instance, plan = vgg()
    found = growth(instance, plan)
    assert [g.part for g in found] == ["10AX115"]
    larger = instance_of("vgg mini", vgg_mini, devices((3, "10AX115")))
    again = find_plan(replace(larger, items=instance.items, links=instance.links))
    assert found[0].throughput_fps == pytest.approx(again.throughput_fps)
    assert plan.throughput_fps < found[0].throughput_fps <= found[0].bound_fps


def test_scarcity_prices_what_the_bound_rests_on() -> None:
    instance, plan = vgg()
    prices = scarcity(instance, plan)["10AX115"]
    assert sum(prices.values()) == pytest.approx(1.0)
    assert prices["dsp"] > 0.95
    assert quick_bound(instance) == plan.bound_cycles_per_frame


@pytest.mark.parametrize("seed", range(2))
def test_what_if_answers_are_the_same_twice(seed: int) -> None:
    instance, plan = vgg()
    answers = [(growth(instance, plan, moves=50_000, seed=seed), shadow_prices(instance, plan)) for _ in range(2)]
    assert answers[0] == answers[1]
    assert len({p.device for p in answers[0][1]}) == 2
    assert list(itertools.chain.from_iterable(answers)) != []
    assert SearchOptions(seed=seed).seed == seed
