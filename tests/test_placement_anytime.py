"""The search stops where it is told to, keeps what it has, continues from plans, and obeys restrictions."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.synthetic import devices, instance_of, mobilenet_v2, resnet18, small_residual, vgg_mini
from hdl.errors import DagtrainError, InfeasibleError, OutOfTimeError
from placement.annealing import encode
from placement.annealing.heuristic import Annealer
from placement.bounds.aggregate import Aggregate
from placement.exact.model import Answer, Effort, build_model, decide
from placement.problem.deadline import Deadline, Ended
from placement.problem.flat import flatten, menu_at
from placement.problem.instance import Instance
from placement.problem.options import OptionTable
from placement.problem.plan import hop_levels, unequal_joins
from placement.problem.validate import violations
from placement.search.descent import FIRST_STEPS, Descent
from placement.search.search import Progress, SearchOptions, find_plan
from tests.flow_support import Clock

# no proof to be had quickly, so the search would go on
HARD = ((6, "10AX115"),)

# of tests/test_placement_anneal.py
pytestmark = pytest.mark.xdist_group("annealing kernel")


@cache
def hard() -> Instance:
    return instance_of("MobileNetV2", mobilenet_v2, devices(*HARD))


@cache
def small() -> Instance:
    return instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))


def test_gap_ends_the_search_once_it_is_reached() -> None:
    seen: list[Progress] = []
    plan = find_plan(hard(), SearchOptions(gap=0.15), seen.append)
    assert plan.gap <= 0.15
    assert violations(hard(), plan) == []
    gaps = [p.gap for p in seen if p.gap is not None]
    assert all(gap > 0.15 for gap in gaps[:-1]), "it stops at the first report below the gap"
    assert seen[-1].bound_basis
    assert seen[-1].bound_fps >= (seen[-1].throughput_fps or 0)


@pytest.mark.parametrize("least", [None, 400.0])
def test_only_what_must_be_so_fast_is_looked_for_until_the_moves_are_spent(
    least: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[int, int]] = []

    def nothing(self: Annealer, cycles: int, moves: int, *_: Any, **__: Any) -> None:
        self.moves += moves
        tried.append((cycles, moves))

    monkeypatch.setattr(Annealer, "attempt", nothing)
    monkeypatch.setattr(Descent, "exact", lambda *_: Answer.UNKNOWN)
    options = SearchOptions(least_fps=least, anneal_moves=1_000, anneal_budget=100_000, explain=False, proves=False)
    with pytest.raises(OutOfTimeError):
        find_plan(hard(), options)
    spent = sum(moves for _, moves in tried)
    if least is None:
        assert len(tried) <= len(FIRST_STEPS) + 1
        assert {moves for _, moves in tried} == {1_000}
    else:
        slowest = int(hard().clock_hz / least)
        last = [moves for cycles, moves in tried if cycles == slowest]
        assert last == sorted(last)
        # each twice as long as the one before, up to the longest
        assert last[-1] > 8 * last[0]
        assert options.anneal_budget <= spent < options.anneal_budget + last[-1]


def test_at_the_time_limit_the_search_ends_with_the_best_plan_so_far() -> None:
    clock, seen = Clock(), list[Progress]()

    def pass_time(progress: Progress) -> None:
        seen.append(progress)
        clock.now += 8.0 if progress.cycles_per_frame is not None else 0.0

    plan = find_plan(hard(), SearchOptions(), pass_time, Deadline(8.0, clock))
    assert violations(hard(), plan) == []
    assert [progress.cycles_per_frame is not None for progress in seen] == [False] * (len(seen) - 1) + [True]
    assert plan.cycles_per_frame <= (seen[-1].cycles_per_frame or 0)


def test_chains_of_annealing_end_at_the_limit_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, left = Clock(), list[bool]()
    attempt = Annealer.attempt

    def chain(annealer: Annealer, *words: Any, **further: Any) -> Any:
        left.append(bool(annealer.stop[0]))
        if len(left) == 2:
            # as when the limit comes while a chain runs
            clock.now += 8.0
            annealer.end()
        return attempt(annealer, *words, **further)

    monkeypatch.setattr(Annealer, "attempt", chain)
    with suppress(OutOfTimeError):
        find_plan(hard(), SearchOptions(exact_choices=0), deadline=Deadline(8.0, clock))
    assert left == [False, False]


def test_time_limit_before_any_plan_is_out_of_time() -> None:
    with pytest.raises(OutOfTimeError, match="none excluded"):
        find_plan(hard(), SearchOptions(time_limit_seconds=1e-3))


def test_ctrl_c_returns_the_best_plan_so_far_and_is_passed_on_without_one() -> None:
    state: list[Progress] = []

    def interrupt_when_placed(progress: Progress) -> None:
        state.append(progress)
        if progress.cycles_per_frame is not None and len(state) < 100:
            state.extend([progress] * 100)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    plan = find_plan(hard(), SearchOptions(), interrupt_when_placed)
    assert violations(hard(), plan) == []

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_plan(hard(), SearchOptions(), interrupt)


def test_ctrl_c_that_is_listened_to_ends_the_search_in_order() -> None:
    deadline, seen = Deadline(), list[Progress]()

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if progress.cycles_per_frame is not None:
            os.kill(os.getpid(), signal.SIGINT)

    with deadline.listening():
        plan = find_plan(hard(), SearchOptions(), interrupt, deadline)
    assert violations(hard(), plan) == []
    assert deadline.interrupted
    assert sum(progress.cycles_per_frame is not None for progress in seen) == 1
    with pytest.raises(Ended, match="interrupted: no placement"):
        find_plan(hard(), SearchOptions(), deadline=deadline)


def test_search_continues_from_a_plan_and_never_returns_a_slower_one() -> None:
    quick = find_plan(hard(), SearchOptions(gap=0.2))
    seen: list[Progress] = []
    options = SearchOptions(start=quick, anneal_moves=1, anneal_budget=1, window_seconds=0.0, seed=7)
    again = find_plan(hard(), options, seen.append)
    assert again.cycles_per_frame <= quick.cycles_per_frame
    assert seen[0].cycles_per_frame == quick.cycles_per_frame, "the plan counts from the first report on"


def test_plan_of_another_instance_is_no_start() -> None:
    vgg = instance_of("VGG mini", vgg_mini, devices((2, "10AX115")))
    other = find_plan(vgg)
    with pytest.raises(DagtrainError, match=r"is not valid here: instance: .*; search without it"):
        find_plan(hard(), SearchOptions(start=other))
    with pytest.raises(DagtrainError, match="uses device '10AX115-1', which is excluded"):
        find_plan(vgg, SearchOptions(start=other, exclude=("10AX115-1",)))
    apart = next(e.item for e in other.items if e.device == "10AX115-1")
    with pytest.raises(DagtrainError, match=f"puts '{apart}' apart from items of its group|puts 'input' apart"):
        find_plan(vgg, SearchOptions(start=other, same_device=(("input", apart),)))


def test_excluded_devices_stay_empty_and_the_bound_says_so() -> None:
    free = find_plan(small())
    plan = find_plan(small(), SearchOptions(exclude=("10AX115-0", "10AX115-1")))
    assert {entry.device for entry in plan.items} == {"AGFB014-0"}
    assert [use.items for use in plan.devices][1:] == [0, 0]
    assert plan.cycles_per_frame >= free.cycles_per_frame
    assert plan.bound_basis.startswith("without 10AX115-0, 10AX115-1: ")
    assert violations(small(), plan) == []
    with pytest.raises(InfeasibleError, match=r"'input' is pinned to 'AGFB014-0'.*excluded"):
        find_plan(small(), SearchOptions(exclude=("AGFB014-0",)))
    with pytest.raises(DagtrainError, match="no device named 'x' to exclude"):
        find_plan(small(), SearchOptions(exclude=("x",)))


@pytest.mark.parametrize("exact", [0, 2_500])
def test_layers_to_stand_on_one_device_do_in_every_solver(exact: int) -> None:
    groups = (("stem", "fc"), ("fc", "block_conv2.gradient"))
    plan = find_plan(small(), SearchOptions(same_device=groups, exact_choices=exact, gap=0.5))
    layers = ("stem", "fc")
    places = {e.device for e in plan.items if e.layer in layers or e.item == "block_conv2.gradient"}
    assert len(places) == 1
    assert "with stem and fc on one device" in plan.bound_basis
    with pytest.raises(DagtrainError, match="no item or layer named 'nonsense'"):
        find_plan(small(), SearchOptions(same_device=(("stem", "nonsense"),)))


def test_senseless_options_are_refused_all_at_once() -> None:
    with pytest.raises(DagtrainError, match=r"gap is 1\.5, .*; time limit is -1 s, .*; workers is 0, "):
        SearchOptions(gap=1.5, time_limit_seconds=-1, workers=0)


def test_seed_gives_the_same_plan_to_the_byte_however_loaded_the_machine() -> None:
    instance = instance_of("ResNet-18", resnet18, devices((4, "10AX115")))
    options = SearchOptions(seed=5, anneal_moves=10_000, anneal_budget=50_000, window_seconds=0.5)
    first = find_plan(instance, options).to_json()
    stop = threading.Event()
    burners = [threading.Thread(target=_burn, args=(stop,)) for _ in range(2)]
    for burner in burners:
        burner.start()
    try:
        assert find_plan(instance, options).to_json() == first
    finally:
        stop.set()
        for burner in burners:
            burner.join()


def _burn(stop: threading.Event) -> None:
    while not stop.is_set():
        np.linalg.norm(np.ones((400, 400)) @ np.ones((400, 400)))


# --- the parts ---------------------------------------------------------------------------------------------------


def test_cycle_basis_is_balanced_exactly_when_hops_match() -> None:
    instance = small()
    cycles = encode.hop_cycles(instance)
    counts = [0, 0]
    for seed in range(300):
        rng = np.random.default_rng(seed)
        places = [0] * len(instance.items)
        # few changes at random borders, so that some states have equal hops
        for _ in range(int(rng.integers(1, 4))):
            layer, device, single = rng.choice(instance.items).layer, int(rng.integers(3)), bool(rng.integers(2))
            for i, item in enumerate(instance.items):
                if item.layer == layer and (not single or rng.random() < 0.5):
                    places[i] = device
        sums = [sum(sign * (places[a] != places[b]) for (a, b), sign in cycle.items()) for cycle in cycles]
        matching = not unequal_joins(instance, tuple(places))
        assert (not any(sums)) == matching, f"seed {seed}: hops {hop_levels(instance, tuple(places))}"
        counts[matching] += 1
    assert min(counts) > 30, "states of both sorts"


@pytest.mark.parametrize("seed", range(12))
def test_aggregate_bound_refutes_nothing_that_the_merged_cluster_can_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    instance = instance_of("vgg", vgg_mini, devices((2, "10AX115"), (1, "AGFB014")))
    shrunk = tuple(replace(d, m20k=int(rng.integers(150, 700)), dsp=int(rng.integers(300, 1300)),
                           dram_bytes_per_s=int(rng.integers(1, 9)) * 10**9) for d in instance.devices)  # fmt: skip
    instance = replace(instance, devices=shrunk)
    aggregate = Aggregate(instance, flatten(instance))
    table = OptionTable(instance)
    levels = table.levels()
    for cycles in (levels[len(levels) // 4], levels[len(levels) // 2], levels[-1]):
        certificate = aggregate.refute(cycles)
        options = table.at(cycles)
        if certificate is None or options.without_choice():
            continue
        assert certificate.cost > certificate.worth
        answer, _ = decide(build_model(instance, options), Effort(deterministic_seconds=3.0))
        assert answer is not Answer.FEASIBLE, f"T = {cycles} is refuted but has a placement"


def test_menu_offers_at_its_ends_the_least_memory_and_the_least_traffic() -> None:
    instance = small()
    flat = flatten(instance)
    menu = menu_at(instance, flat, 4_000)
    assert menu is not None
    for i in range(len(instance.items)):
        for row in menu.row_of[i].ravel():
            if row >= 0:
                memory, traffic = menu.costs[row, :, 1], menu.costs[row, :, 3]
                assert memory[0] == memory.min()
                assert traffic[-1] == traffic.min()
