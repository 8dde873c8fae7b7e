"""The search against brute force on tiny random instances, forced placements, errors, reproducibility."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.synthetic import devices, instance_of, resnet18, small_residual, vgg_mini
from hdl.errors import DagtrainError, InfeasibleError, OutOfTimeError
from hdl.tensor import Kind
from placement.annealing import encode
from placement.annealing.heuristic import Annealer
from placement.annealing.settle import settle
from placement.bounds.neighbourhood import Neighbourhoods
from placement.bounds.packing import refuted_packing
from placement.bounds.window import Windows
from placement.diagnosis.infeasible import overfull
from placement.exact.model import Answer, Effort, build_model, decide
from placement.problem.flat import flatten, menu_at
from placement.problem.instance import Configuration, Device, Instance, Item, Link
from placement.problem.options import OptionTable
from placement.problem.plan import Assignment, Bound, assignment_of, build_plan, hop_levels, least_cycles
from placement.problem.validate import violations
from placement.search import descent
from placement.search.search import Progress, SearchOptions, find_plan, plan_from_assignment
from tests.bound_instances import stored
from tests.suites import quick

CLOCK = 1000


def brute_force(instance: Instance) -> int | None:
    """Least T over all placements, by trying all of them; None if there is none."""
    best: int | None = None
    names = [device.name for device in instance.devices]
    for places in itertools.product(range(len(instance.devices)), repeat=len(instance.items)):
        where = {item.name: n for item, n in zip(instance.items, places, strict=True)}
        if any(item.pinned not in (None, names[where[item.name]]) for item in instance.items):
            continue
        if len({where[item.name] for item in instance.items if item.same_device}) > 1:
            continue
        level: dict[str, int] = {}
        equal = True
        for item in instance.items:  # in topological order by construction
            into = [link for link in instance.links if link.target == item.name and link.kind.hops_must_match]
            hops = {level[link.source] + (where[link.source] != where[item.name]) for link in into} or {0}
            equal = equal and len(hops) == 1
            level[item.name] = max(hops)
        if not equal:
            continue
        rates: list[tuple[Fraction, int]] = []
        cut = [link for link in instance.links if where[link.source] != where[link.target]]
        ports = [[0, 0] for _ in instance.devices]
        for link in cut:
            ports[where[link.source]][0] += link.sender_m20k
            ports[where[link.source]][1] += link.sender_alm
            ports[where[link.target]][0] += link.receiver_m20k
            ports[where[link.target]][1] += link.receiver_alm
        for n, device in enumerate(instance.devices):
            out = sum((link.bits_per_frame for link in cut if where[link.source] == n), Fraction(0))
            into_device = sum((link.bits_per_frame for link in cut if where[link.target] == n), Fraction(0))
            rates += [(out, device.link_bits_per_s), (into_device, device.link_bits_per_s)]
        menus = [item.configurations[instance.devices[n].part] for item, n in zip(instance.items, places, strict=True)]
        for picks in itertools.product(*menus):
            if len({pick.tile for pick in picks if pick.tile is not None}) > 1:
                continue
            demands = list(rates)
            fits = True
            for n, device in enumerate(instance.devices):
                here = [pick for pick, place in zip(picks, places, strict=True) if place == n]
                fits = (
                    fits
                    and sum(c.dsp for c in here) <= device.dsp
                    and sum(c.m20k for c in here) + ports[n][0] <= device.m20k
                )
                fits = fits and sum(c.alm for c in here) + ports[n][1] <= device.alm
                demands.append((Fraction(sum(c.dram_bytes_per_frame for c in here)), device.dram_bytes_per_s))
            if not fits or any(demand and not capacity for demand, capacity in demands):
                continue
            cycles = max(pick.cycles_per_frame for pick in picks)
            for demand, capacity in demands:
                if demand:
                    cycles = max(cycles, -int(-(demand * CLOCK) // capacity))
            best = cycles if best is None else min(best, cycles)
    return best


def test_network_bounds_refute_what_blocks_alone_allow() -> None:
    instance = _chain(dsp=4, link=100)
    flat = flatten(instance)

    def effort(seconds: float) -> Effort:
        return Effort(deterministic_seconds=seconds)

    # at 99 cycles a link carries 9.9 bits a frame of the 10 that each link has; a and b need 4 DSP blocks each of 4
    for bound in (Windows(instance, flat, 0, 5.0, effort), Neighbourhoods(instance, flat, effort, 5.0)):
        assert not bound.refuted(100)
    assert Windows(instance, flat, 0, 5.0, effort).refuted(99)
    assert Neighbourhoods(instance, flat, effort, 5.0).refuted(99)
    assert not refuted_packing(instance, flat, 100, effort(1.0))


@pytest.mark.parametrize("number", range(0, len(stored()), 20))
def test_annealing_alone_gives_valid_plans_no_better_than_the_optimum(number: int) -> None:
    known = stored()[number]
    problem = known.problem
    options = SearchOptions(
        exact_choices=0, anneal_moves=20_000, anneal_budget=400_000, seed=number, exclude=problem.exclude,
        same_device=(problem.together,) if problem.together else (),
    )  # fmt: skip
    plan = find_plan(problem.instance, options)
    assert violations(problem.instance, plan) == []
    assert known.optimum <= plan.cycles_per_frame <= 1.5 * known.optimum


def test_one_seed_gives_one_plan_to_the_byte() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    annealing = SearchOptions(seed=3, exact_choices=0, anneal_moves=50_000, anneal_budget=200_000)
    for options in (SearchOptions(seed=3), annealing):
        assert find_plan(instance, options).to_json() == find_plan(instance, options).to_json()


def test_small_net_is_planned_to_optimality() -> None:
    instance = instance_of("vgg mini", vgg_mini, devices((2, "10AX115")))
    seen: list[Progress] = []
    plan = find_plan(instance, on_progress=seen.append)
    assert plan.status == "optimal"
    assert plan.gap == 0.0
    assert [b.kind for b in plan.binding] == ["dsp"]
    assert seen[-1].cycles_per_frame == plan.cycles_per_frame
    assert seen[-1].gap == 0.0
    bounds = [progress.bound_cycles_per_frame for progress in seen]
    assert bounds == sorted(bounds)


def test_links_are_named_when_they_bind() -> None:
    instance = _chain(dsp=4, link=100)
    plan = find_plan(instance)
    assert plan.cycles_per_frame == 100
    assert [b.kind for b in plan.binding] == ["links", "links", "links", "links"]
    assert "10 egress bits a frame at 100 a second take 100 cycles" in plan.binding[0].reason


def _chain(*, dsp: int, link: int = 10_000, m20k: int = 10) -> Instance:
    """in (d0) → a → b → out (d0); a and b take 4 DSP each at 10 cycles and 1 at 400."""
    tiny = (Configuration(label="t", cycles_per_frame=1),)
    engine = (
        Configuration(label="fast", cycles_per_frame=10, dsp=4, m20k=2),
        Configuration(label="slow", cycles_per_frame=400, dsp=1, m20k=2),
    )
    items = (
        Item(name="in", configurations={"P": tiny}, pinned="d0"),
        Item(name="a", configurations={"P": engine}),
        Item(name="b", configurations={"P": engine}),
        Item(name="out", configurations={"P": tiny}, pinned="d0"),
    )
    links = tuple(
        Link(source=s, target=t, kind=Kind.ACTIVATION, bits_per_frame=Fraction(10))
        for s, t in itertools.pairwise(("in", "a", "b", "out"))
    )
    machines = tuple(
        Device(name=f"d{n}", part="P", dsp=dsp, m20k=m20k, alm=0, dram_bytes_per_s=0, link_bits_per_s=link)
        for n in range(2)
    )
    return Instance(name="chain", clock_hz=CLOCK, items=items, links=links, devices=machines)


def test_an_item_too_large_for_every_device_is_named_with_its_numbers() -> None:
    message = (
        r"^no placement of 'chain' at \d+ cycles a frame \(.* frames/s\):\n  item 'a' fits no device: on d0, d1 "
        r"'fast' needs 2 m20k of 1\n  item 'b' fits no device: .*; "
        r"use larger devices, or split the layer \(dagtrain import --split\)$"
    )
    with pytest.raises(InfeasibleError, match=message):
        find_plan(_chain(dsp=4, m20k=1))


def test_of_many_items_and_devices_too_small_for_them_few_are_named() -> None:
    chain = _chain(dsp=4, m20k=1)
    items = tuple(replace(chain.items[1], name=f"i{n}") for n in range(7))
    devices = tuple(replace(_device(f"d{n}", 4), m20k=1) for n in range(9))
    with pytest.raises(InfeasibleError) as caught:
        find_plan(replace(chain, items=items, links=(), devices=devices))
    lines = str(caught.value).splitlines()
    assert len(lines) == 7
    assert all("on d0, d1, d2 and 6 more 'fast' needs 2 m20k of 1" in line for line in lines[1:-1])
    assert lines[-1].strip().startswith("and 2 more; ")


def test_too_little_of_a_block_in_the_whole_cluster_is_named() -> None:
    message = r"at 50 cycles .*: dsp of at least 8 needed, all devices together have 6; add devices, raise the DSP"
    with pytest.raises(InfeasibleError, match=message):
        find_plan(replace(_chain(dsp=4), devices=(_device("d0", 4), _device("d1", 2))), SearchOptions(least_fps=20))


def _device(name: str, dsp: int) -> Device:
    return Device(name=name, part="P", dsp=dsp, m20k=9, alm=0, dram_bytes_per_s=0, link_bits_per_s=10_000)


def test_links_are_named_when_they_forbid_the_least_throughput() -> None:
    with pytest.raises(InfeasibleError, match=r"possible by relaxing .*link bandwidth \(give devices faster links"):
        find_plan(_chain(dsp=4, link=100), SearchOptions(least_fps=20))


def test_equal_hops_are_named_when_they_forbid_a_placement() -> None:
    instance = _chain(dsp=4)
    shortcut = Link(source="in", target="out", kind=Kind.ACTIVATION, bits_per_frame=Fraction(1))
    with pytest.raises(InfeasibleError, match=r"possible by relaxing .*equal hops \(use fewer devices"):
        find_plan(replace(instance, links=(*instance.links, shortcut)), SearchOptions(least_fps=20))


def test_pins_are_named_when_they_forbid_a_placement() -> None:
    with pytest.raises(InfeasibleError, match=r"possible by relaxing .*pinned items \(pin fewer"):
        find_plan(_chain(dsp=4).with_pins({"a": "d1", "b": "d1"}), SearchOptions(least_fps=20))


def test_running_out_of_time_is_not_called_infeasible() -> None:
    instance = instance_of("ResNet-18", resnet18, devices((1, "AGFB027"), (4, "AGFB014"), (6, "10AX115")))
    options = SearchOptions(
        anneal_moves=1, anneal_budget=1_000, refutation_seconds=0.01, decision_seconds=0.01, least_fps=2000
    )
    with pytest.raises(OutOfTimeError, match="no placement of 'ResNet-18' found, and none excluded"):
        find_plan(instance, options)


def test_least_throughput_must_be_possible_for_the_clock() -> None:
    for fps in (0.0, -1.0, 1e12):
        with pytest.raises(DagtrainError, match="must lie above 0"):
            find_plan(_chain(dsp=4), SearchOptions(least_fps=fps))


def test_pins_are_obeyed_and_unknown_ones_all_listed() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    pins = {"block_conv1.forward": "10AX115-1", "block_conv2.gradient": "10AX115-0"}
    plan = find_plan(instance.with_pins(pins))
    places = {entry.item: entry.device for entry in plan.items}
    assert {name: places[name] for name in pins} == pins
    with pytest.raises(DagtrainError, match="no item named 'x'; no item named 'y'"):
        instance.with_pins({"x": "10AX115-1", "y": "10AX115-1"})
    with pytest.raises(DagtrainError, match="pinned to 'nowhere'; devices are AGFB014-0, 10AX115-0, 10AX115-1"):
        instance.with_pins({"stem.forward": "nowhere"})


def test_items_of_a_tile_group_share_a_tile_in_every_plan() -> None:
    instance = instance_of("vgg mini", vgg_mini, devices((2, "10AX115")))
    for options in (SearchOptions(), SearchOptions(exact_choices=0)):
        tiles: dict[str, set[str | None]] = {}
        for item, entry in zip(instance.items, find_plan(instance, options).items, strict=True):
            if item.tile_group is not None:
                tiles.setdefault(item.tile_group, set()).add(entry.tile)
        assert set(tiles) == {"conv1", "conv2", "conv3", "fc"}
        assert all(len(kept) == 1 for kept in tiles.values())


# --- forced placements -------------------------------------------------------------------------------------------


def _residual_everywhere_on(instance: Instance, device: str) -> dict[str, str]:
    return {item.name: item.pinned or device for item in instance.items}


def test_forced_placement_crosses_in_both_branches_of_a_residual_block() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    places = _residual_everywhere_on(instance, "AGFB014-0")
    # the body's second half and the whole projection branch: one hop each before the join, forward and backward
    for item in instance.items:
        if item.layer in ("block_conv2", "block_norm2", "block_conv3", "block_norm3", "block_relu2", "gap", "fc"):
            places[item.name] = "10AX115-0"
    places |= {"block.add": "10AX115-0", "block.error_fork": "10AX115-0"}
    places |= {"block_norm1.error": "AGFB014-0", "block.error_add": "AGFB014-0"}
    plan = plan_from_assignment(instance, places)
    assert {entry.item: entry.device for entry in plan.items} == places
    crossings = {(c.source, c.target) for c in plan.crossings if c.kind in ("activation", "error")}
    assert ("block_relu1.forward", "block_conv2.fork") in crossings
    assert ("block.fork", "block_conv3.fork") in crossings
    assert ("block_conv2.error", "block_relu1.error") in crossings
    assert ("block_conv3.error", "block.error_add") in crossings
    assert plan.bound_basis.startswith("with every item on its given device: ")


def test_forced_placement_with_unequal_hops_names_the_join() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    places = _residual_everywhere_on(instance, "AGFB014-0") | {"block_norm1.forward": "10AX115-0"}
    message = r"unequal hops at 'block.add' 2 hops over 'block_norm2.forward' and 0 hops over 'block_norm3.forward'"
    with pytest.raises(InfeasibleError, match=message):
        plan_from_assignment(instance, places)


def test_forced_placement_may_not_move_a_pinned_item() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    places = {item.name: "10AX115-0" for item in instance.items}
    with pytest.raises(InfeasibleError, match="'input' is pinned to 'AGFB014-0' but assigned to '10AX115-0'"):
        plan_from_assignment(instance, places)


def test_forced_placement_lists_missing_and_unknown_names() -> None:
    instance = _chain(dsp=8)
    with pytest.raises(DagtrainError, match=r"'b' is given no device; .*no item named 'z'; no device named 'q'"):
        plan_from_assignment(instance, {"in": "d0", "a": "d0", "out": "d0", "z": "q"})


def test_forced_placement_takes_the_cheapest_configurations_at_the_best_throughput() -> None:
    instance = _chain(dsp=8)
    slow_link = Configuration(label="wasteful", cycles_per_frame=5, dsp=5, m20k=2)
    items = tuple(
        replace(item, configurations={"P": (slow_link, *item.configurations["P"])}) if item.name == "a" else item
        for item in instance.items
    )
    instance = replace(instance, items=items)
    # b alone sets T = 10: a at 5 cycles would be a waste
    plan = plan_from_assignment(instance, {"in": "d0", "a": "d0", "b": "d1", "out": "d0"})
    assert plan.cycles_per_frame == 10
    assert {entry.item: entry.configuration for entry in plan.items}["a"] == "fast"


def test_cases_of_large_items_are_asked_for_only_where_items_can_be_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(_instance: object, _flat: object, cycles: int) -> bool:
        asked.append(cycles)
        return False

    monkeypatch.setattr(descent, "refuted_by_cases", noted)
    instance = stored()[0].problem.instance
    plan = find_plan(instance)
    assert asked
    asked.clear()
    fixed = plan_from_assignment(instance, {item.item: item.device for item in plan.items})
    assert not asked
    assert fixed.cycles_per_frame == plan.cycles_per_frame


def test_assignment_can_be_read_back_from_a_plan() -> None:
    instance = _chain(dsp=4)
    plan = find_plan(instance)
    assignment = assignment_of(instance, plan)
    assert [instance.devices[n].name for n in assignment.devices] == [entry.device for entry in plan.items]
    assert hop_levels(instance, assignment.devices) == [entry.hops for entry in plan.items]


def test_assignment_that_needs_links_where_there_are_none_has_no_throughput_and_no_plan() -> None:
    instance = _chain(dsp=4, link=0)
    apart = Assignment((0, 0, 1, 0), (0, 0, 0, 0))
    assert least_cycles(instance, apart) is None
    assert least_cycles(instance, Assignment((0, 0, 0, 0), (0, 1, 1, 0))) == 400
    with pytest.raises(DagtrainError, match="uses DRAM or links of a device that has none"):
        build_plan(instance, apart, Bound(1, "none"), seed=0)


# --- annealing ---------------------------------------------------------------------------------------------------


def test_contraction_keeps_pins_couplings_and_merges_light_items() -> None:
    instance = instance_of("vgg mini", vgg_mini, devices((2, "10AX115")))
    coupled = replace(
        instance,
        items=tuple(
            replace(item, same_device="together") if item.name in ("conv1.forward", "conv3.forward") else item
            for item in instance.items
        ),
    )
    flat = flatten(coupled)
    menu = menu_at(coupled, flat, 40_000)
    assert menu is not None
    apart = encode.contract(coupled, 40_000, None)
    merged = encode.contract(coupled, 40_000, encode.light_items(coupled, menu, flat, 40_000))
    assert apart is not None
    assert merged is not None
    index = coupled.item_index
    for units in (apart, merged):
        assert units[index["conv1.forward"]] == units[index["conv3.forward"]]
        assert sorted(set(units)) == list(range(max(units) + 1))
    assert max(apart) + 1 == len(coupled.items) - 1
    assert merged[index["conv2.update"]] == merged[index["conv2.gradient"]]
    assert merged[index["relu1.forward"]] == merged[index["conv1.forward"]]
    assert max(merged) < max(apart) // 2


def test_contraction_leaves_relays_apart() -> None:
    instance = instance_of("small residual", small_residual, devices((2, "10AX115")))
    short = next(link for link in instance.links if (link.source, link.target) == ("block_norm3.forward", "block.add"))
    light = min(instance.items, key=lambda item: max(c.alm for menu in item.configurations.values() for c in menu))
    relay = replace(light, name="relay", pinned=None, tile_group=None, layer="relay")
    others = tuple(link for link in instance.links if link is not short)
    ways = (replace(short, target="relay"), replace(short, source="relay"))
    before = next(n for n, item in enumerate(instance.items) if item.name == short.target)
    items = (*instance.items[:before], relay, *instance.items[before:])
    relayed = replace(instance, items=items, links=(*others, *ways))
    units = encode.contract(relayed, 40_000, [True] * len(relayed.items))
    assert units is not None
    assert units.count(units[relayed.item_index["relay"]]) == 1
    # what nothing goes by beside joins a neighbour
    alone = encode.contract(replace(relayed, links=(*others, ways[0])), 40_000, [True] * len(relayed.items))
    assert alone is not None
    assert alone.count(alone[relayed.item_index["relay"]]) > 1


def test_mirror_start_keeps_the_engines_of_a_layer_together() -> None:
    instance = instance_of("ResNet-18", resnet18, devices((4, "10AX115")))
    encoded = encode.encode(instance, flatten(instance), 700_000, merge=False)
    assert encoded is not None
    start = encode.mirror_start(encoded.problem, None)
    layers: dict[str, set[int]] = {}
    for item, unit in zip(instance.items, encoded.problem.unit, strict=True):
        if item.pinned is None:
            layers.setdefault(item.layer, set()).add(int(start.device[unit]))
    assert all(len(used) == 1 for used in layers.values())
    assert len(set.union(*layers.values())) == 4


@pytest.mark.slow
def test_resnet18_is_planned_on_the_posters_eleven_devices() -> None:
    instance = instance_of("ResNet-18", resnet18, devices((1, "AGFB027"), (4, "AGFB014"), (6, "10AX115")))
    plan = find_plan(instance)
    assert violations(instance, plan) == []
    assert plan.gap <= 0.02


def test_chains_start_near_given_devices_while_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    near = {item.name: instance.devices[i % 3].name for i, item in enumerate(instance.items)}
    started: list[Assignment | None] = []

    def attempt(
        _annealer: Annealer, _cycles: int, _moves: int, best: Assignment | None, *, given: bool, every: bool
    ) -> None:
        assert not every
        started.append(best if given else None)

    monkeypatch.setattr(Annealer, "attempt", attempt)
    # found by the exact model in the end
    find_plan(instance, SearchOptions(near=near, exact_choices=0, window_seconds=0.0, anneal_budget=1_000))
    assert started[0] is not None
    assert started[0].devices == tuple(i % 3 for i in range(len(instance.items)))


def test_what_is_given_to_start_from_is_left_as_it_is_where_it_holds() -> None:
    instance = instance_of("ResNet-18", resnet18, devices((1, "AGFB027"), (4, "AGFB014"), (6, "10AX115")))
    plan = find_plan(instance, SearchOptions(proves=False, tidy_seconds=0.0))
    # any configurations: those of these tiles are chosen anew
    near = assignment_of(instance, plan)
    flat = flatten(instance)
    for given in (True, False):
        annealer = Annealer(instance, flat, seed=3, workers=1)
        found = annealer.attempt(plan.cycles_per_frame, 1, near, given=given)
        assert (found is not None) == given
        assert found is None or found.devices == near.devices


def with_less(instance: Instance, device: str, **capacities: int) -> Instance:
    """The instance with these capacities of a device."""
    found = [replace(own, **capacities) if own.name == device else own for own in instance.devices]
    return replace(instance, devices=tuple(found))


@pytest.mark.parametrize("seed", quick(1, [0, 1]))
def test_where_a_plan_does_not_fit_any_more_what_is_broken_moves_and_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    instance = instance_of("ResNet-18", resnet18, devices((1, "AGFB027"), (4, "AGFB014"), (6, "10AX115")))
    # with some room
    plan = find_plan(instance, SearchOptions(proves=False, tidy_seconds=0.0, gap=0.2, seed=seed))
    fullest = max(plan.devices, key=lambda use: use.dsp / use.dsp_capacity)
    smaller = with_less(instance, fullest.device, dsp=fullest.dsp * 19 // 20)

    def attempt(*_: object, **__: object) -> None:
        raise AssertionError("it need not be looked for anew")

    monkeypatch.setattr(Annealer, "attempt", attempt)
    options = SearchOptions(proves=False, tidy_seconds=0.0, gap=0.5, seed=seed, mended=plan)
    mended = find_plan(smaller, options)
    assert violations(smaller, mended) == []
    assert mended.cycles_per_frame <= plan.cycles_per_frame
    before, after = ({item.item: item.device for item in each.items} for each in (plan, mended))
    moved = {name for name, device in before.items() if after[name] != device}
    assert any(before[name] == fullest.device for name in moved)
    assert len(moved) < len(before) / 3
    # the same plan again
    assert find_plan(smaller, options) == mended


def test_a_plan_that_can_not_be_mended_at_its_pace_is_at_a_somewhat_slower_one(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = instance_of("ResNet-18", resnet18, devices((1, "AGFB027"), (4, "AGFB014"), (6, "10AX115")))
    plan = find_plan(instance, SearchOptions(proves=False, tidy_seconds=0.0, gap=0.2))
    asked: list[int] = []

    def mended(_annealer: Annealer, cycles: int, near: Assignment) -> Assignment | None:
        asked.append(cycles)
        return near if cycles >= plan.cycles_per_frame * 102 / 100 else None

    monkeypatch.setattr(Annealer, "mended", mended)
    options = SearchOptions(proves=False, tidy_seconds=0.0, gap=0.5, mended=plan)
    assert violations(instance, find_plan(instance, options)) == []
    assert asked == [-(-plan.cycles_per_frame * part // 1000) for part in (1000, 1005, 1010, 1015, 1020)]
    # never at paces that nobody wants
    asked.clear()
    find_plan(instance, replace(options, least_fps=instance.clock_hz / (plan.cycles_per_frame * Fraction(1012, 1000))))
    assert asked == [-(-plan.cycles_per_frame * part // 1000) for part in (1000, 1005, 1010)]


def two_parts(**fast: tuple[tuple[str, int, int], ...]) -> Instance:
    """Two engines of a tile group; ``fast``: part -> tiles with cycles and DSP blocks, of which a device has 8."""
    offers = {
        part: tuple(
            Configuration(label=tile, cycles_per_frame=cycles, dsp=dsp, tile=tile) for tile, cycles, dsp in tiles
        )
        for part, tiles in fast.items()
    }
    items = tuple(Item(name=name, configurations=offers, tile_group="g") for name in ("a", "b"))
    ends = tuple(
        Device(name=part, part=part, dsp=8, m20k=1, alm=1, dram_bytes_per_s=0, link_bits_per_s=0) for part in fast
    )
    return Instance(name="two", clock_hz=CLOCK, items=items, links=(), devices=ends)


def test_searches_begin_with_a_tile_that_can_be_built_everywhere() -> None:
    # the cheapest one is too slow on the other part, as of another clock
    instance = two_parts(P=(("few", 100, 1), ("many", 50, 2)), Q=(("few", 150, 1), ("many", 75, 2)))
    menu = menu_at(instance, flatten(instance), 100)
    assert menu is not None
    assert menu.slots == (("many", "few"),)
    # where either can be, the cheapest
    menu = menu_at(instance, flatten(instance), 150)
    assert menu is not None
    assert menu.slots == (("few", "many"),)


def test_what_is_near_stays_on_devices_where_the_first_tile_can_not_be_built() -> None:
    # on Q only with more multipliers than a P has
    instance = two_parts(P=(("few", 100, 1), ("many", 50, 9)), Q=(("few", 150, 1), ("many", 75, 4)))
    encoded = encode.encode(instance, flatten(instance), 100, merge=False)
    assert encoded is not None
    (few, _), many = encoded.menu.slots[0], encoded.menu.slots[0].index("many")
    assert few == "few"
    start = encode.start_from(encoded, instance, Assignment((1, 1), (1, 1)))
    assert (start.device.tolist(), start.tile.tolist()) == ([1, 1], [many])
    # a tile that is no more: another one that can be built there
    start = encode.start_from(encoded, instance, Assignment((1, 1), (0, 0)))
    assert (start.device.tolist(), start.tile.tolist()) == ([1, 1], [many])
    # and what can't be built with any one where it is goes where it can
    start = encode.start_from(encoded, instance, Assignment((0, 1), (0, 1)))
    assert (start.device.tolist(), start.tile.tolist()) == ([0, 0], [0])
    lost = encode.repaired(encoded.problem, encode.Start(np.array([1, 1]), np.array([0])))
    assert (lost.device.tolist(), lost.tile.tolist()) == ([0, 0], [0])


def test_a_plan_without_room_anywhere_is_not_mended_but_looked_for_anew() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    plan = find_plan(instance)
    # fewer multipliers everywhere than it has there
    smaller = instance
    for use in plan.devices:
        smaller = with_less(smaller, use.device, dsp=use.dsp * 9 // 10)
    annealer = Annealer(smaller, flatten(smaller), seed=0, workers=1)
    assert annealer.mended(plan.cycles_per_frame, assignment_of(instance, plan)) is None
    slower = find_plan(smaller, SearchOptions(mended=plan))
    assert violations(smaller, slower) == []
    assert slower.cycles_per_frame > plan.cycles_per_frame


def test_devices_without_room_for_configurations_are_told() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    plan = find_plan(instance, SearchOptions(gap=0.3))
    fullest = max(plan.devices, key=lambda use: use.dsp / use.dsp_capacity)
    near, at = assignment_of(instance, plan), instance.device_index[fullest.device]
    for smaller, full in ((instance, False), (with_less(instance, fullest.device, dsp=fullest.dsp // 2), True)):
        encoded = encode.encode(smaller, flatten(smaller), plan.cycles_per_frame, merge=False)
        assert encoded is not None
        found = settle(encoded, smaller, encode.start_from(encoded, smaller, near))
        assert found == [at] if full else isinstance(found, Assignment)


def test_devices_without_room_for_an_assignment_are_named_with_what_they_lack() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    plan = find_plan(instance, SearchOptions(gap=0.3))
    assert overfull(instance, assignment_of(instance, plan).devices) == []
    fullest = max(plan.devices, key=lambda use: use.dsp / use.dsp_capacity)
    places = {item.item: item.device for item in plan.items}
    least = sum(
        min(c.dsp for c in item.configurations["AGFB014" if fullest.device == instance.devices[0].name else "10AX115"])
        for item in instance.items
        if places[item.name] == fullest.device
    )
    assert least > 0
    at = assignment_of(instance, plan).devices
    assert overfull(with_less(instance, fullest.device, dsp=least), at) == []
    with pytest.raises(
        InfeasibleError, match=f"{fullest.device} would take at least {least:,} dsp of {least - 1:,}; add"
    ):
        plan_from_assignment(with_less(instance, fullest.device, dsp=least - 1), places)
    # both that lack room, and all that they lack
    less = with_less(instance, fullest.device, dsp=0, alm=0)
    assert [problem.what.split()[0] for problem in overfull(less, at)] == [fullest.device] * 2


@pytest.mark.parametrize(
    ("name", "end"), [("receiver_m20k", 1), ("sender_m20k", 0), ("receiver_alm", 1), ("sender_alm", 0)]
)
def test_ports_of_links_that_cross_count_for_room(name: str, end: int) -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    first, *rest = instance.links
    wider = replace(instance, links=(replace(first, **{name: 10**9}), *rest))
    places = [0] * len(instance.items)
    assert not any("1,000" in problem.what for problem in overfull(wider, places))
    places[instance.item_index[first.target]] = 1
    (told,) = (problem.what for problem in overfull(wider, places) if "1,000" in problem.what)
    assert told.startswith(f"{instance.devices[end].name} would take at least 1,000,")
    assert f" {name.partition('_')[2]} of " in told


def test_one_device_is_planned_by_the_exact_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = instance_of("VGG mini", vgg_mini, devices((1, "AGFB014")))
    assert sum(len(menu) for item in instance.items for menu in item.configurations.values()) > 500

    def anneal(*_: object) -> None:
        raise AssertionError("nothing is left to chance")

    monkeypatch.setattr(Annealer, "attempt", anneal)
    plan = find_plan(instance)
    assert (plan.cycles_per_frame, plan.status) == (24_576, "optimal")
    # one level faster, CP-SAT finds the whole problem infeasible
    faster = build_model(instance, OptionTable(instance).at(24_575))
    assert decide(faster, Effort(deterministic_seconds=60.0))[0] is Answer.INFEASIBLE
