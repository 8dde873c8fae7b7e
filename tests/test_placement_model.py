"""Each constraint of the model, alone, with a feasible and an infeasible case at its very edge."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from hdl.tensor import Kind
from placement.exact import model as m
from placement.problem.instance import Configuration, Device, Instance, Item, Link
from placement.problem.options import OptionTable

CLOCK = 100
EFFORT = m.Effort(deterministic_seconds=5.0)


def item(name: str, *menu: Configuration, **more: str) -> Item:
    menu = menu or (Configuration(label="c", cycles_per_frame=10, dsp=3, m20k=2, alm=5, dram_bytes_per_frame=7),)
    return Item(name=name, configurations={"P": menu}, **more)  # type: ignore[arg-type]


def link(source: str, target: str, kind: Kind = Kind.ACTIVATION, bits: Fraction = Fraction(8)) -> Link:
    return Link(source=source, target=target, kind=kind, bits_per_frame=bits)


def instance(items: list[Item], links: tuple[Link, ...] = (), **device: int) -> Instance:
    shape = {"dsp": 100, "m20k": 100, "alm": 100, "dram_bytes_per_s": 10_000, "link_bits_per_s": 10_000} | device
    return Instance(
        name="t",
        clock_hz=CLOCK,
        items=tuple(items),
        links=links,
        devices=tuple(Device(name=f"d{n}", part="P", **shape) for n in range(2)),
    )


def solved(problem: Instance, *constraints: Callable[[m.Model], None], cycles: int = 10) -> m.Answer:
    model = m.Model(problem, OptionTable(problem).at(cycles))
    m.place_once(model)
    for constraint in constraints:
        constraint(model)
    return m.decide(model, EFFORT)[0]


@pytest.mark.parametrize("end", ["sender_alm", "sender_m20k", "receiver_alm", "receiver_m20k"])
def test_the_network_port_takes_blocks_of_the_device_it_is_on(end: str) -> None:
    resource, at = end.split("_")[1], int(end.startswith("receiver"))
    blocks = partial(m.respect_blocks, resource=resource)
    cost = {"alm": 5, "m20k": 2}[resource]

    def with_room(capacity: int) -> Instance:
        problem = instance([item("a"), item("b")], (replace(link("a", "b"), **{end: 3}),))  # type: ignore[arg-type]
        devices = list(problem.devices)
        devices[at] = replace(devices[at], **{resource: capacity})  # type: ignore[arg-type]
        return replace(problem, devices=tuple(devices))

    apart = (on("a", 0), on("b", 1), blocks)
    assert solved(with_room(cost + 3), *apart) is m.Answer.FEASIBLE
    assert solved(with_room(cost + 2), *apart) is m.Answer.INFEASIBLE
    # together there is no port
    assert solved(with_room(2 * cost), on("a", at), on("b", at), blocks) is m.Answer.FEASIBLE


def on(name: str, device: int) -> Callable[[m.Model], None]:
    """Force an item onto a device, by hand, so that one constraint can be tested alone."""

    def force(model: m.Model) -> None:
        model.solver.add(model.on[model.instance.item_index[name], device] == 1)

    return force


def test_place_once_gives_every_item_one_device_and_one_configuration() -> None:
    menu = (Configuration(label="x", cycles_per_frame=10, dsp=1), Configuration(label="y", cycles_per_frame=9, m20k=1))
    problem = instance([item("a", *menu), item("b")])
    model = m.Model(problem, OptionTable(problem).at(10))
    m.place_once(model)
    answer, assignment = m.decide(model, EFFORT)
    assert answer is m.Answer.FEASIBLE
    assert assignment is not None
    assert all(n in (0, 1) for n in assignment.devices)
    assert assignment.configurations[0] in (0, 1)


def test_place_once_refuses_two_devices_for_one_item() -> None:
    assert solved(instance([item("a")]), on("a", 0), on("a", 1)) is m.Answer.INFEASIBLE


def test_place_once_refuses_engines_slower_than_the_target() -> None:
    assert solved(instance([item("a")]), cycles=10) is m.Answer.FEASIBLE
    assert solved(instance([item("a")]), cycles=9) is m.Answer.INFEASIBLE


@pytest.mark.parametrize(("resource", "need"), [("dsp", 3), ("m20k", 2), ("alm", 5)])
def test_blocks_of_a_device_may_be_filled_but_not_overfilled(resource: str, need: int) -> None:
    def blocks(model: m.Model) -> None:
        m.respect_blocks(model, resource)

    items = [item("a"), item("b")]
    together = (on("a", 0), on("b", 0), blocks)
    assert solved(instance(items, **{resource: 2 * need}), *together) is m.Answer.FEASIBLE
    assert solved(instance(items, **{resource: 2 * need - 1}), *together) is m.Answer.INFEASIBLE


def test_dram_bandwidth_is_demanded_at_the_target_throughput() -> None:
    items = [item("a"), item("b")]
    together = (on("a", 0), on("b", 0), m.respect_dram)
    # 14 bytes a frame at 100 / 10 frames a second
    assert solved(instance(items, dram_bytes_per_s=140), *together) is m.Answer.FEASIBLE
    assert solved(instance(items, dram_bytes_per_s=139), *together) is m.Answer.INFEASIBLE
    assert solved(instance(items, dram_bytes_per_s=139), *together, cycles=11) is m.Answer.FEASIBLE


@pytest.mark.parametrize("kind", list(Kind))
def test_links_of_every_kind_load_the_network_when_cut(kind: Kind) -> None:
    items, links = [item("a"), item("b")], (link("a", "b", kind, Fraction(17, 2)),)
    apart = (on("a", 0), on("b", 1), m.respect_links)
    # 8.5 bits a frame at 10 frames a second
    assert solved(instance(items, links, link_bits_per_s=85), *apart) is m.Answer.FEASIBLE
    assert solved(instance(items, links, link_bits_per_s=84), *apart) is m.Answer.INFEASIBLE
    together = (on("a", 0), on("b", 0), m.respect_links)
    assert solved(instance(items, links, link_bits_per_s=0), *together) is m.Answer.FEASIBLE


def test_egress_and_ingress_are_limited_each_for_itself() -> None:
    items = [item("a"), item("b"), item("c")]
    fan_out = (link("a", "b"), link("a", "c"))
    fan_in = (link("a", "c"), link("b", "c"))
    places = {"out": (on("a", 0), on("b", 1), on("c", 1)), "in": (on("a", 0), on("b", 0), on("c", 1))}
    there_and_back = (link("a", "b"), link("b", "c", Kind.STASH))
    for links, way in ((fan_out, "out"), (fan_in, "in")):
        assert solved(instance(items, links, link_bits_per_s=160), *places[way], m.respect_links) is m.Answer.FEASIBLE
        answer = solved(instance(items, links, link_bits_per_s=159), *places[way], m.respect_links)
        assert answer is m.Answer.INFEASIBLE
    both_ways = (on("a", 0), on("b", 1), on("c", 0), m.respect_links)
    assert solved(instance(items, there_and_back, link_bits_per_s=80), *both_ways) is m.Answer.FEASIBLE


DIAMOND = (link("a", "b"), link("b", "d"), link("a", "d"))


def test_branches_that_join_need_equal_hops() -> None:
    problem = instance([item("a"), item("b"), item("d")], DIAMOND)
    both_cross = (on("a", 0), on("b", 0), on("d", 1), m.equal_hops)
    out_and_back = (on("a", 0), on("b", 1), on("d", 0), m.equal_hops)
    assert solved(problem, *both_cross) is m.Answer.FEASIBLE
    assert solved(problem, *out_and_back) is m.Answer.INFEASIBLE


@pytest.mark.parametrize("kind", list(Kind))
def test_equal_hops_bind_activation_and_error_links_only(kind: Kind) -> None:
    links = (link("a", "b"), link("b", "d"), link("a", "d", kind))
    answer = solved(
        instance([item("a"), item("b"), item("d")], links), on("a", 0), on("b", 1), on("d", 0), m.equal_hops
    )
    assert (answer is m.Answer.INFEASIBLE) is (kind in (Kind.ACTIVATION, Kind.ERROR))


def test_items_without_arriving_links_are_at_hop_zero() -> None:
    links = (link("a", "d"), link("b", "d"))
    problem = instance([item("a"), item("b"), item("d")], links)
    assert solved(problem, on("a", 0), on("b", 0), on("d", 1), m.equal_hops) is m.Answer.FEASIBLE
    assert solved(problem, on("a", 0), on("b", 1), on("d", 1), m.equal_hops) is m.Answer.INFEASIBLE


def test_pinned_items_stand_on_their_device() -> None:
    problem = instance([item("a", pinned="d1")])
    assert solved(problem, on("a", 1), m.pin_items) is m.Answer.FEASIBLE
    assert solved(problem, on("a", 0), m.pin_items) is m.Answer.INFEASIBLE


def test_item_pinned_to_a_device_that_cannot_hold_it_is_infeasible() -> None:
    base = instance([item("a", pinned="d1")])
    problem = replace(base, devices=(base.devices[0], replace(base.devices[1], part="Q")))
    assert solved(problem) is m.Answer.FEASIBLE
    assert solved(problem, m.pin_items) is m.Answer.INFEASIBLE


def _tiled(label: str, tile: str, dsp: int) -> Configuration:
    return Configuration(label=label, cycles_per_frame=10, dsp=dsp, m20k=10 - dsp, tile=tile)


def test_items_of_a_tile_group_share_a_tile() -> None:
    # a wants tile x for its DSP, b wants y; one of them must give way
    a = item("a", _tiled("ax", "x", 1), _tiled("ay", "y", 4), tile_group="g")
    b = item("b", _tiled("bx", "x", 4), _tiled("by", "y", 1), tile_group="g")

    def blocks(model: m.Model) -> None:
        m.respect_blocks(model, "dsp")

    together = (on("a", 0), on("b", 0), blocks)
    assert solved(instance([a, b], dsp=5), *together, m.share_tiles) is m.Answer.FEASIBLE
    assert solved(instance([a, b], dsp=4), *together) is m.Answer.FEASIBLE
    assert solved(instance([a, b], dsp=4), *together, m.share_tiles) is m.Answer.INFEASIBLE


def test_coupled_items_stand_on_one_device() -> None:
    problem = instance([item("a", same_device="s"), item("b", same_device="s")])
    assert solved(problem, on("a", 1), on("b", 1), m.couple_items) is m.Answer.FEASIBLE
    assert solved(problem, on("a", 0), on("b", 1), m.couple_items) is m.Answer.INFEASIBLE


def test_ordering_equal_devices_loses_nothing_but_mirror_images() -> None:
    problem = instance([item("a"), item("b")])
    assert solved(problem, on("a", 0), on("b", 1), m.order_equal_devices) is m.Answer.FEASIBLE
    assert solved(problem, on("a", 1), on("b", 0), m.order_equal_devices) is m.Answer.INFEASIBLE
    pinned = instance([item("a"), item("b", pinned="d0")])
    assert solved(pinned, on("a", 1), on("b", 0), m.order_equal_devices) is m.Answer.FEASIBLE


@pytest.mark.parametrize("family", list(m.Family))
def test_each_family_can_be_relaxed_alone(family: m.Family) -> None:
    """An instance that breaks exactly one family is infeasible, and feasible without that family."""
    a, b = item("a"), item("b")
    broken = {
        m.Family.DSP: instance([a], dsp=2),
        m.Family.M20K: instance([a], m20k=1),
        m.Family.ALM: instance([a], alm=4),
        m.Family.DRAM: instance([a], dram_bytes_per_s=69),
        m.Family.LINKS: instance(
            [item("a", pinned="d0"), item("b", pinned="d1")], (link("a", "b"),), link_bits_per_s=79
        ),
        m.Family.HOPS: instance([item("a", pinned="d0"), item("b", pinned="d1"), item("d", pinned="d0")], DIAMOND),
        m.Family.PINS: instance([item("a", pinned="d0"), item("b", pinned="d0")], dsp=5),
        m.Family.SAME_DEVICE: instance([replace(a, same_device="s"), replace(b, same_device="s")], dsp=5),
        m.Family.TILES: instance(
            [
                item("a", _tiled("ax", "x", 1), _tiled("ay", "y", 4), tile_group="g", pinned="d0"),
                item("b", _tiled("bx", "x", 4), _tiled("by", "y", 1), tile_group="g", pinned="d0"),
            ],
            dsp=4,
        ),
    }[family]
    options = OptionTable(broken).at(10)
    assert m.decide(m.build_model(broken, options), EFFORT)[0] is m.Answer.INFEASIBLE
    relaxed = m.build_model(broken, options, without=frozenset({family}))
    assert m.decide(relaxed, EFFORT)[0] is m.Answer.FEASIBLE


def test_budget_that_ends_is_unknown_and_not_infeasible() -> None:
    # packing 40 odd sizes into two devices that are exactly full is hard at first sight
    sizes = [Configuration(label="c", cycles_per_frame=10, dsp=1000 + 37 * k * k % 911) for k in range(40)]
    half = sum(c.dsp for c in sizes) // 2
    problem = instance([item(f"i{k}", c) for k, c in enumerate(sizes)], dsp=half)
    model = m.build_model(problem, OptionTable(problem).at(10))
    assert m.decide(model, m.Effort(deterministic_seconds=1e-6))[0] is m.Answer.UNKNOWN


def _planted() -> tuple[Instance, m.Assignment]:
    """60 items that fill six devices to the last block in one planted way, which no search hits by luck."""
    rng = np.random.default_rng(5)
    places = tuple(int(n) for n in rng.integers(0, 6, 60))
    menu = [
        Configuration(label="c", cycles_per_frame=10, dsp=int(d), m20k=int(k), alm=int(a))
        for d, k, a in rng.integers(100, 1000, (60, 3))
    ]
    devices = tuple(
        Device(
            name=f"d{n}", part="P", dram_bytes_per_s=0, link_bits_per_s=0,
            dsp=sum(c.dsp for c, place in zip(menu, places, strict=True) if place == n),
            m20k=sum(c.m20k for c, place in zip(menu, places, strict=True) if place == n),
            alm=sum(c.alm for c, place in zip(menu, places, strict=True) if place == n),
        )
        for n in range(6)
    )  # fmt: skip
    items = tuple(item(f"i{k}", c) for k, c in enumerate(menu))
    problem = Instance(name="t", clock_hz=CLOCK, items=items, links=(), devices=devices)
    return problem, m.Assignment(places, (0,) * 60)


@pytest.mark.slow
def test_hint_of_a_solution_saves_the_search() -> None:
    problem, planted = _planted()
    effort = m.Effort(deterministic_seconds=1.0)
    model = m.build_model(problem, OptionTable(problem).at(10))
    assert m.decide(model, effort)[0] is m.Answer.UNKNOWN
    m.add_hint(model, planted)
    assert m.decide(model, effort) == (m.Answer.FEASIBLE, planted)


def test_ctrl_c_stops_the_solver_at_once() -> None:
    problem, _ = _planted()
    model = m.build_model(problem, OptionTable(problem).at(10))
    alarm = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    alarm.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        m.decide(model, m.Effort(deterministic_seconds=1000.0))
    assert time.monotonic() - begin < 20


# --- options -----------------------------------------------------------------------------------------------------


def test_options_are_the_pareto_front_of_what_is_usable() -> None:
    menu = (
        Configuration(label="fast", cycles_per_frame=5, dsp=8),
        Configuration(label="slow", cycles_per_frame=10, dsp=2),
        Configuration(label="slow but DRAM", cycles_per_frame=10, dsp=3, dram_bytes_per_frame=9),
        Configuration(label="slower", cycles_per_frame=20, dsp=1),
    )
    table = OptionTable(instance([item("a", *menu)]))
    assert table.levels() == [5, 10, 20]
    assert [table.at(t).by_part[0]["P"] for t in (4, 5, 9, 10, 19, 20)] == [(), (0,), (0,), (1,), (1,), (3,)]
    assert table.at(4).without_choice() == [0]


def test_tiles_that_another_beats_everywhere_are_dropped() -> None:
    a = item("a", _tiled("ax", "x", 1), _tiled("ay", "y", 4), replace(_tiled("az", "z", 4), m20k=9), tile_group="g")
    b = item("b", _tiled("bx", "x", 4), _tiled("by", "y", 1), replace(_tiled("bz", "z", 1), m20k=9), tile_group="g")
    options = OptionTable(instance([a, b])).at(10)
    assert options.tiles["g"] == ("x", "y")
    assert options.by_part[0]["P"] == (0, 1)


def test_tile_with_a_middle_way_that_no_other_offers_is_kept() -> None:
    # x has the least of each cost, but never both at once; for b alone x is better
    def tiled(label: str, tile: str, dsp: int, m20k: int) -> Configuration:
        return Configuration(label=label, cycles_per_frame=10, dsp=dsp, m20k=m20k, tile=tile)

    a = item("a", tiled("1", "x", 1, 9), tiled("2", "x", 9, 1), tiled("3", "y", 5, 5), tile_group="g")
    b = item("b", tiled("1", "x", 1, 1), tiled("2", "y", 2, 2), tile_group="g")
    assert OptionTable(instance([a, b])).at(10).tiles["g"] == ("x", "y")
    assert OptionTable(instance([a, b], dsp=7, m20k=7)).at(9).tiles["g"] == ()


def test_cheapest_configurations_take_the_smallest_share_of_their_devices() -> None:
    menu = (
        Configuration(label="much DSP", cycles_per_frame=10, dsp=40, m20k=1),
        Configuration(label="balanced", cycles_per_frame=9, dsp=10, m20k=2),
        Configuration(label="much memory", cycles_per_frame=10, dsp=1, m20k=50),
    )
    problem = instance([item(name, *menu) for name in "abc"])
    options = OptionTable(problem).at(10)
    wasteful = m.Assignment((0, 1, 1), (0, 0, 2))
    assert m.cheapest_configurations(problem, options, wasteful, EFFORT) == m.Assignment((0, 1, 1), (1, 1, 1))
    # where memory is scarce, DSP blocks are cheap: 40 of 1000 and 1 of 20 beat 10 of 1000 and 2 of 20
    scarce = instance([item(name, *menu) for name in "abc"], dsp=1000, m20k=20)
    options = OptionTable(scarce).at(10)
    assert m.cheapest_configurations(scarce, options, wasteful, EFFORT).configurations == (0, 0, 0)


def test_a_hinted_model_without_a_solution_is_answered_and_does_not_end_the_process() -> None:
    # OR-tools 9.15 aborts here where a model with a hint has several workers
    for cycles in range(10, 30):
        problem = instance(
            [item("a"), item("b"), item("c")], (link("a", "b"), link("b", "c")), dsp=5, link_bits_per_s=1
        )
        model = m.build_model(problem, OptionTable(problem).at(cycles))
        m.add_hint(model, m.Assignment((0, 1, 0), (0, 0, 0)))
        assert m.decide(model, m.Effort(deterministic_seconds=1.0, workers=2))[0] is m.Answer.INFEASIBLE
