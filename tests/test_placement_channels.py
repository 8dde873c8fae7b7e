"""Streams to DRAM on memory channels: spread, exact model, bound, validator, each also with a fault put in."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from hdl.errors import DagtrainError
from placement.diagnosis.walls import Walls
from placement.exact import model as m
from placement.problem.channels import in_channels, spread
from placement.problem.instance import (
    Configuration,
    Device,
    Instance,
    Item,
    instance_from_json,
    instance_to_json,
    pareto,
)
from placement.problem.options import OptionTable
from placement.problem.plan import Plan, assignment_of, least_cycles, plan_from_json
from placement.problem.validate import Rule, violations
from placement.search.search import SearchOptions, find_plan
from tests.bound_mutants import Mutant, module, mutated

CLOCK = 1000
# bytes a second of a device
RATE = 1000
EFFORT = m.Effort(deterministic_seconds=10.0)


def configuration(*streams: int, alm: int = 1, label: str = "c", cycles: int = 1) -> Configuration:
    return Configuration(
        label=label, cycles_per_frame=cycles, alm=alm, dram_bytes_per_frame=sum(streams), dram_streams=streams
    )


def instance(
    menus: dict[str, tuple[Configuration, ...]], channels: int = 2, count: int = 1, alm: int = 100
) -> Instance:
    return Instance(
        name="channels",
        clock_hz=CLOCK,
        items=tuple(Item(name=name, configurations={"P": menu}) for name, menu in menus.items()),
        links=(),
        devices=tuple(
            Device(
                name=f"d{n}", part="P", dsp=0, m20k=0, alm=alm, dram_bytes_per_s=RATE, link_bits_per_s=1,
                dram_channels=channels,
            )
            for n in range(count)
        ),
    )  # fmt: skip


def fullest(sizes: tuple[int, ...], channels: int, way: tuple[int, ...]) -> int:
    loads = [0] * channels
    for size, channel in zip(sizes, way, strict=True):
        loads[channel] += size
    return max(loads)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_few_streams_are_spread_as_evenly_as_can_be(channels: int) -> None:
    rng = random.Random(7)
    for _ in range(25):
        sizes = tuple(rng.choice([0, 1, 2, 3, 5, 8, 13, 21]) for _ in range(rng.randrange(1, 7)))
        ways = itertools.product(range(channels), repeat=len(sizes))
        best = min(fullest(sizes, channels, way) for way in ways)
        found = spread(sizes, channels)
        assert set(found) <= set(range(channels))
        assert fullest(sizes, channels, found) == best, f"{sizes} on {channels}"
    # largest first alone gives 7 and 5 here
    assert fullest((3, 3, 2, 2, 2), 2, spread((3, 3, 2, 2, 2), 2)) == 6


def test_many_streams_are_spread_within_the_largest_of_even() -> None:
    rng = random.Random(3)
    sizes = tuple(rng.randrange(1, 100) for _ in range(60))
    assert fullest(sizes, 4, spread(sizes, 4)) <= sum(sizes) / 4 + max(sizes)


def solved(problem: Instance, cycles: int) -> m.Answer:
    return m.decide(m.build_model(problem, OptionTable(problem).at(cycles)), EFFORT)[0]


# together 12 bytes a frame, which two channels carry in 12 cycles, 6 bytes each
EVEN = {"a": (configuration(3, 3),), "b": (configuration(2, 2, 2),)}
# together 12 as well, of which 8 can't be cut
UNEVEN = {"a": (configuration(8),), "b": (configuration(2, 2),)}


def test_the_exact_model_knows_what_fits_each_channel() -> None:
    assert solved(instance(EVEN), 12) is m.Answer.FEASIBLE
    assert solved(instance(EVEN), 11) is m.Answer.INFEASIBLE
    assert solved(instance(UNEVEN), 16) is m.Answer.FEASIBLE
    assert solved(instance(UNEVEN), 15) is m.Answer.INFEASIBLE
    assert solved(instance(UNEVEN, channels=1), 12) is m.Answer.FEASIBLE


def brute(problem: Instance) -> int:
    """The least T over all devices, configurations and channels."""
    best = 10**9
    menus = [item.configurations["P"] for item in problem.items]
    for devices in itertools.product(range(len(problem.devices)), repeat=len(menus)):
        for picks in itertools.product(*(range(len(menu)) for menu in menus)):
            chosen = [menu[k] for menu, k in zip(menus, picks, strict=True)]
            cycles = max(c.cycles_per_frame for c in chosen)
            for n, device in enumerate(problem.devices):
                here = [c for c, place in zip(chosen, devices, strict=True) if place == n]
                if sum(c.alm for c in here) > device.alm:
                    break
                sizes = tuple(size for c in here for size in c.dram_streams)
                ways = itertools.product(range(device.dram_channels), repeat=len(sizes))
                load = min(fullest(sizes, device.dram_channels, way) for way in ways)
                cycles = max(cycles, -(-load * device.dram_channels * CLOCK // RATE))
            else:
                best = min(best, cycles)
    return best


def random_instance(seed: int) -> Instance:
    rng = random.Random(seed)

    def menu() -> tuple[Configuration, ...]:
        def streams() -> tuple[int, ...]:
            return tuple(rng.randrange(1, 9) for _ in range(rng.randrange(1, 3)))

        # as much through one stream as through two costs the same, and fits worse
        one = configuration(*streams(), alm=rng.randrange(1, 4), label="a")
        two = configuration(*streams(), alm=rng.randrange(1, 4), label="b", cycles=rng.randrange(1, 10))
        return pareto([one, two])

    names = "pqr"[: rng.randrange(2, 4)]
    return instance({name: menu() for name in names}, channels=rng.randrange(2, 4), count=2, alm=rng.randrange(6, 12))


SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_search_finds_the_optimum_over_channels_and_never_bounds_above_it(seed: int) -> None:
    problem = random_instance(seed)
    best = brute(problem)
    plan = find_plan(problem, SearchOptions(seed=1))
    assert plan.bound_cycles_per_frame <= best == plan.cycles_per_frame, f"seed {seed}"
    assert violations(problem, plan) == []
    assert plan_from_json(plan.to_json()) == plan
    assert instance_from_json(instance_to_json(problem)) == problem
    assert least_cycles(problem, assignment_of(problem, plan)) == best


def test_an_instance_with_one_channel_says_nothing_of_channels() -> None:
    problem = instance({"a": (Configuration(label="c", cycles_per_frame=1, dram_bytes_per_frame=5),)}, channels=1)
    plan = find_plan(problem)
    assert plan.cycles_per_frame == 5
    assert "channels" not in instance_to_json(problem).replace('"name": "channels"', "")
    assert "dram_channel" not in plan.to_json()


def test_of_configurations_that_cost_the_same_those_stay_whose_streams_fit_elsewhere() -> None:
    one, cut = configuration(8, label="one"), configuration(4, 4, label="cut")
    assert {c.label for c in pareto([one, cut])} == {"one", "cut"}
    assert [c.label for c in pareto([configuration(4, 4), configuration(4, 5, label="worse")])] == ["c"]


# --------------------------------------------------------------------------------------------- the validator


def uneven() -> tuple[Instance, Plan]:
    problem = instance(UNEVEN)
    return problem, find_plan(problem)


def edited(plan: Plan, name: str, *channels: int) -> Plan:
    items = tuple(replace(e, dram_channels=channels) if e.item == name else e for e in plan.items)
    return replace(plan, items=items)


SPOILT: dict[str, tuple[Callable[[Plan], Plan], Rule, str]] = {
    "all through one channel": (
        lambda p: edited(edited(p, "a", 0), "b", 0, 0), Rule.DRAM, "memory channel 0 with 12 bytes a frame",
    ),
    "a channel too many": (lambda p: edited(p, "a", 2), Rule.DRAM, r"'a' has channels \[2\] for 1 streams"),
    "a stream without channel": (lambda p: edited(p, "b", 1), Rule.DRAM, r"'b' has channels \[1\] for 2 streams"),
    "no channels": (lambda p: edited(p, "a"), Rule.DRAM, r"'a' has channels \[\] for 1 streams"),
    "loads of channels": (
        lambda p: replace(p, devices=(replace(p.devices[0], dram_channel_bytes_per_frame=(6, 6)),)),
        Rule.RECORD, r"dram_channel_bytes_per_frame is \(6, 6\) in the plan",
    ),
    "a faster memory": (lambda p: replace(p, cycles_per_frame=12), Rule.OBJECTIVE, "DRAM and links need 16.000"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_the_validator_rejects_wrong_channels(name: str) -> None:
    problem, plan = uneven()
    assert violations(problem, plan) == []
    spoil, rule, message = SPOILT[name]
    assert any(v.rule is rule and re.search(message, v.message) for v in violations(problem, spoil(plan)))


def test_annealing_takes_what_is_dealt_out_where_no_channel_carries_the_whole() -> None:
    menus = {name: (configuration(8, label="whole"), configuration(4, 4, alm=3, label="dealt")) for name in "ab"}
    plan = find_plan(instance(menus, count=2), SearchOptions(seed=1, exact_choices=0))
    assert plan.cycles_per_frame == plan.bound_cycles_per_frame == 8
    assert {item.configuration for item in plan.items} == {"dealt"}
    # as fast as its largest stream on the faster one of two devices, and where one has a single channel as on that
    problem = instance(menus, count=2)
    first, second = problem.devices
    faster, single = replace(second, dram_bytes_per_s=2 * RATE), replace(second, dram_channels=1)
    for other, cycles in ((second, [16, 8]), (faster, [8, 4]), (single, [8, 4])):
        found = in_channels(replace(problem, devices=(first, other)))
        assert [c.cycles_per_frame for c in found.items[0].configurations["P"]] == cycles
    alone = instance(menus, channels=1)
    assert in_channels(alone) is alone


def test_walls_know_that_no_stream_is_faster_than_its_channel() -> None:
    whole, dealt = configuration(8, label="whole"), configuration(4, 4, alm=3, label="dealt")
    for menu, cycles in (((whole,), 16), ((whole, dealt), 8)):
        found = Walls(instance({"a": menu})).standing()
        assert found is not None
        assert found.cycles_per_frame == pytest.approx(cycles, rel=1e-4)


def test_streams_that_are_not_all_bytes_are_refused() -> None:
    wrong = replace(configuration(3, 4), dram_bytes_per_frame=8)
    with pytest.raises(DagtrainError, match=r"streams of 3, 4 bytes to DRAM, 8 in all"):
        instance({"a": (wrong,)})
    with pytest.raises(DagtrainError, match=r"device 'd0': 0 memory channels"):
        instance(EVEN, channels=0)


# --------------------------------------------------------------------------------------- faults put in


def exact_wrong() -> bool:
    """Whether the exact model admits what doesn't fit, or refuses what does."""
    model = module("model")
    ask = [(EVEN, 12, True), (EVEN, 11, False), (UNEVEN, 15, False), (UNEVEN, 16, True)]

    def answer(menus: dict[str, tuple[Configuration, ...]], cycles: int) -> bool:
        problem = instance(menus)
        made = model.build_model(problem, OptionTable(problem).at(cycles))
        return bool(model.decide(made, model.Effort(deterministic_seconds=10.0))[0].name == "FEASIBLE")

    return any(answer(menus, cycles) is not fits for menus, cycles, fits in ask)


def bound_wrong() -> bool:
    """Whether the bound of an item alone is above, or below, what its largest stream needs."""
    problem = instance({"a": (configuration(8, 1),)})
    return bool(module("bound").single_bound(problem, 10**6).cycles_per_frame != 16)


def validator_wrong() -> bool:
    """Whether the validator lets an overfull channel pass, or a good plan not."""
    problem, plan = uneven()
    full = edited(edited(plan, "a", 0), "b", 0, 0)
    found = [v.message for v in module("validate").violations(problem, full)]
    return not any("memory channel 0" in message for message in found) or bool(
        module("validate").violations(problem, plan)
    )


FAULTS: list[tuple[Mutant, Callable[[], bool]]] = [
    (Mutant("model", "            if device.dram_channels > 1:\n", "            if False:\n", ""), exact_wrong),
    (
        Mutant("model", "model.solver.add(device.dram_channels * sum(load) <=", "model.solver.add(sum(load) <=", ""),
        exact_wrong,
    ),
    (Mutant("model", "model.solver.add(sum(ways) == pick)", "model.solver.add(sum(ways) <= pick)", ""), exact_wrong),
    (Mutant("bound", "device.dram_channels * max(c.streams, default=0)", "0", ""), bound_wrong),
    (
        Mutant(
            "bound", "device.dram_channels * max(c.streams, default=0)", "device.dram_channels * sum(c.streams)", ""
        ),
        bound_wrong,
    ),
    (Mutant("validate", "if load * device.dram_channels * clock >", "if load * clock >", ""), validator_wrong),
]


@pytest.mark.parametrize(("mutant", "question"), FAULTS, ids=[fault[0].name for fault in FAULTS])
def test_a_fault_in_what_knows_channels_is_found(mutant: Mutant, question: Callable[[], bool]) -> None:
    assert not question()
    with mutated(mutant):
        assert question()
