"""The annealing kernel keeps its books, chains of the kind that wins get the threads, cases refute what sums allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from benchmarks.synthetic import devices, instance_of, mobilenet_v2, small_residual
from hdl.tensor import Kind
from placement.annealing import anneal, encode
from placement.annealing.encode import Problem, Start
from placement.annealing.heuristic import STREAK, Annealer
from placement.bounds.aggregate import Aggregate
from placement.bounds.cases import refuted_by_cases
from placement.problem.flat import Ints, flatten
from placement.problem.instance import Configuration, Device, Instance, Item, Link
from placement.problem.plan import Assignment

# one process compiles the kernel, not two at the same time
pytestmark = pytest.mark.xdist_group("annealing kernel")

CLOCK = 1000


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("coarse", [True, False])
def test_the_energy_kept_move_by_move_is_that_of_the_final_state(seed: int, coarse: bool) -> None:
    rng = np.random.default_rng(seed)
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (3, "10AX115")))
    # devices small enough for every sort of excess, ports that take blocks
    tight = tuple(
        replace(
            device, dsp=int(rng.integers(50, 300)), m20k=int(rng.integers(60, 250)),
            alm=int(rng.integers(9_000, 40_000)), dram_bytes_per_s=int(rng.integers(0, 4)) * 10**8,
            link_bits_per_s=int(rng.integers(1, 50)) * 10**7,
        )
        for device in instance.devices
    )  # fmt: skip
    links = tuple(
        replace(
            link, sender_m20k=1, sender_alm=300, receiver_m20k=2, receiver_alm=200,
            credit_bits_per_frame=link.bits_per_frame / 7,
        )
        for link in instance.links
    )  # fmt: skip
    instance = replace(instance, devices=tight, links=links)
    encoded = encode.encode(
        instance, flatten(instance), int(rng.integers(60_000, 200_000)), merge=coarse, mixes=not coarse, seed=seed
    )
    assert encoded is not None
    start = encode.mirror_start(encoded.problem, rng)
    # hot enough that many moves which raise the energy are made
    energy, state = anneal.anneal(encoded.problem, start, moves=4_000, seed=seed, hottest=1.0, coldest=0.1)
    again, same = anneal.anneal(encoded.problem, state, moves=0, seed=seed)
    assert energy == pytest.approx(again, abs=1e-9), f"seed {seed}"
    assert (same.device == state.device).all()
    assert (state.device != start.device).any()


def _placed(count: int, cycles: int) -> tuple[Annealer, encode.Encoded, encode.Start]:
    """A network on so many FPGAs with a state that breaks nothing."""
    instance = instance_of("mobilenet", mobilenet_v2, devices((count, "AGFB014")))
    flat = flatten(instance)
    encoded = encode.encode(instance, flat, cycles, merge=False, seed=0)
    assert encoded is not None
    energy, state = anneal.anneal(encoded.problem, encode.mirror_start(encoded.problem, None), moves=1_000_000, seed=0)
    assert energy == 0.0
    return Annealer(instance, flat, seed=0, workers=1), encoded, state


def _broken(
    problem: encode.Problem, state: encode.Start, rng: np.random.Generator, units: Sequence[int] | Ints
) -> tuple[encode.Start, float]:
    """The state with one of these units on a wrong device, and its energy."""
    while True:
        wrong = state.copy()
        wrong.device[rng.choice(units)] = rng.integers(len(problem.part))
        energy, _ = anneal.anneal(problem, wrong, moves=0, seed=0)
        if energy > 0.0:
            return wrong, energy


@pytest.mark.parametrize("seed", range(4))
def test_what_is_broken_in_one_place_is_mended_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    annealer, encoded, placed = _placed(10, 300_000)
    problem = encoded.problem
    broken, energy = _broken(problem, placed, np.random.default_rng(seed), range(len(problem.pin)))
    seen: list[encode.Problem] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(arguments[0])
        return anneal_itself(*arguments, **options)

    anneal_itself = anneal.anneal
    monkeypatch.setattr(anneal, "anneal", watched)
    monkeypatch.setattr("placement.annealing.heuristic.MEND_MOVES", 50_000)
    monkeypatch.setattr("placement.annealing.heuristic.MEND_UNITS", (60,))
    mended, state = annealer._where_broken(problem, energy, broken, 1_000_000, seed)
    assert mended == 0.0, f"seed {seed}"
    moved = np.flatnonzero(state.device != broken.device)
    assert len(moved) > 0
    assert {int(unit) for unit in moved} <= {int(unit) for focused in seen for unit in focused.free}
    # with nowhere to be mended alone, it is left as it is
    monkeypatch.setattr("placement.annealing.heuristic.MEND_SHARE", 0.0)
    assert annealer._where_broken(problem, energy, broken, 1_000_000, seed)[0] == energy


def test_only_what_is_near_moves_in_a_focused_problem() -> None:
    _, encoded, state = _placed(10, 300_000)
    problem = encoded.problem
    # near a tile group's first engine alone
    focused = encode.focused(problem, state, problem.unit[[encoded.flat.members[20][0]]], 30)
    assert 30 <= len(focused.free) < len(problem.pin) / 2
    # something is broken elsewhere too, so that it doesn't end, and hot, so that units would go anywhere
    far = np.setdiff1d(np.arange(len(problem.pin)), focused.free)
    state, _ = _broken(problem, state, np.random.default_rng(1), far)
    focused = focused._replace(pin=np.where(focused.pin >= 0, state.device, -1))
    _, after = anneal.anneal(focused, state, moves=20_000, seed=1, hottest=9.0, coldest=9.0)
    moved = np.flatnonzero(after.device != state.device)
    assert len(moved) > 10
    assert set(moved) <= set(focused.free)
    whole = [
        g for g in range(len(problem.slots)) if set(problem.unit[list(encoded.flat.members[g])]) <= set(focused.free)
    ]
    np.testing.assert_array_equal(focused.free_groups, whole)
    partly = [g for g in encoded.flat.members if len(np.intersect1d(problem.unit[list(g)], focused.free))]
    assert 0 < len(whole) < len(partly), "every group lies wholly inside or outside"
    assert set(np.flatnonzero(after.tile != state.tile)) <= set(whole)


def test_tightened_devices_lose_memory_and_bandwidth_and_nothing_else() -> None:
    instance = instance_of("small", small_residual, devices((2, "10AX115")))
    encoded = encode.encode(instance, flatten(instance), 400_000)
    assert encoded is not None
    before, after = encoded.problem.capacity, encode.tightened(encoded.problem, 4, 0.25).capacity
    np.testing.assert_array_equal(after[:, 1], before[:, 1] - 4)
    np.testing.assert_array_equal(after[:, 3], before[:, 3] * 0.75)
    np.testing.assert_array_equal(after[:, [0, 2, 4, 5]], before[:, [0, 2, 4, 5]])


def test_the_kind_of_chain_that_keeps_winning_gets_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = instance_of("small", small_residual, devices((2, "10AX115")))
    annealer = Annealer(instance, flatten(instance), seed=0, workers=2)
    tried: list[list[bool]] = []

    def chain(
        cycles: int, moves: int, best: object, number: int, coarse: bool, given: bool, every: bool
    ) -> tuple[float, None]:
        del cycles, moves, best, given, every
        if number == 0:
            tried.append([])
        tried[-1].append(coarse)
        return (0.5 if coarse else 0.1), None

    monkeypatch.setattr(annealer, "_chain", chain)
    annealer.workers = 1
    assert annealer.attempt(1000, 10, None) is None
    assert tried == [[True]], "one kind alone has not won"
    annealer.workers = 2
    for _ in range(2 * STREAK + 4):
        annealer.attempt(1000, 10, None)
    # both kinds until fine ones have won often enough, then fine ones, and both again at every fourth attempt
    assert [len(set(kinds)) for kinds in tried[1:]] == [2, 2, 2, 1, 1, 1, 2, 1]
    assert tried[5] == [False, False]


@pytest.mark.parametrize(("given", "every", "starting"), [(False, False, []), (True, False, [0]), (True, True, [0, 1])])
def test_chains_start_where_they_are_told(
    given: bool, every: bool, starting: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = instance_of("small", small_residual, devices((2, "10AX115")))
    annealer = Annealer(instance, flatten(instance), seed=0, workers=2)
    begun: list[bool] = []

    def annealed(_: Problem, start: Start, **__: object) -> tuple[float, Start]:
        # but for what is pinned
        begun.append(float((start.device == 1).mean()) > 0.8)
        return 1.0, start

    monkeypatch.setattr("placement.annealing.heuristic.anneal.anneal", annealed)
    monkeypatch.setattr(annealer, "_where_broken", lambda _, energy, state, *__: (energy, state))
    best = Assignment((1,) * len(instance.items), (0,) * len(instance.items))
    assert annealer.attempt(10**6, 10, best, given=given, every=every) is None
    assert len(begun) == 2
    assert sum(begun) == len(starting)


def _giant() -> Instance:
    """Two equal devices; one item takes nearly all memory of one. The others stream from DRAM or take memory: enough of
    both in all, but beside the giant is DRAM bandwidth without the memory that goes with it."""
    giant = (Configuration(label="g", cycles_per_frame=10, m20k=99),)
    either = (
        Configuration(label="chip", cycles_per_frame=10, m20k=30),
        Configuration(label="dram", cycles_per_frame=10, m20k=10, dram_bytes_per_frame=40),
    )
    items = [Item(name="giant", configurations={"P": giant})]
    items += [Item(name=f"i{k}", configurations={"P": either}) for k in range(5)]
    links = tuple(
        Link(source="giant", target=f"i{k}", kind=Kind.ACTIVATION, bits_per_frame=Fraction(1)) for k in range(5)
    )
    machines = tuple(
        Device(name=f"d{n}", part="P", dsp=1, m20k=100, alm=1, dram_bytes_per_s=100 * CLOCK, link_bits_per_s=10**9)
        for n in range(2)
    )
    return Instance(name="giant", clock_hz=CLOCK, items=tuple(items), links=links, devices=machines)


def test_cases_see_that_what_a_giant_leaves_is_of_little_use() -> None:
    instance = _giant()
    flat = flatten(instance)
    # at T = 10 the other device has 100 M20K and 1000 bytes, but no item may need more than T: all five are there
    assert Aggregate(instance, flat).refute(10) is None
    slow = replace(instance, devices=tuple(replace(d, dram_bytes_per_s=8 * CLOCK) for d in instance.devices))
    # 80 bytes a frame on each device: two items stream and three take 30: 110 M20K; both devices' bytes would be enough
    assert Aggregate(slow, flatten(slow)).refute(10) is None
    assert refuted_by_cases(slow, flatten(slow), 10)
    assert not refuted_by_cases(instance, flat, 10)
    # a third device gives them room again
    three = replace(slow, devices=(*slow.devices, replace(slow.devices[0], name="d2")))
    assert not refuted_by_cases(three, flatten(three), 10)


def test_halves_of_a_convolution_multiply_as_often_as_the_whole() -> None:
    cluster = devices((2, "10AX115"))
    whole = instance_of("small", small_residual, cluster)
    split = instance_of("small", small_residual, cluster, split_above=20_000)

    def weight_bits(instance: Instance, layer: str) -> Fraction:
        links = (link for link in instance.links if link.kind is Kind.WEIGHT and link.target.startswith(layer))
        return sum((link.bits_per_frame for link in links if link.target.endswith(".forward")), Fraction(0))

    halved = {item.layer.removesuffix("_part0") for item in split.items if item.layer.endswith("_part0")}
    assert halved == {"block_conv2"}
    # fork, concat, deal and sum, and six nodes more for the second half
    assert len(split.items) == len(whole.items) + 10
    for layer in ("stem", "block_conv1", "block_conv2", "fc"):
        assert weight_bits(split, layer) == weight_bits(whole, layer) > 0


def test_cases_raise_the_bound_of_a_network_with_one_giant_gradient() -> None:
    instance = instance_of("mobilenet", mobilenet_v2, devices((6, "10AX115")))
    flat = flatten(instance)
    # 112 × 112 pixels in six passes each: where engines of five are needed, the gradient of 1 280 × 1 000 weights has
    # no device
    assert Aggregate(instance, flat).refute(75_263) is None
    assert refuted_by_cases(instance, flat, 75_263)
    assert not refuted_by_cases(instance, flat, 75_264)


def test_a_mix_of_rates_that_cannot_be_rounded_is_mended_by_other_devices() -> None:
    # half of the memory on chip and half of its bytes moved would fit on either device, one whole on the larger alone
    memory = (
        Configuration(label="chip", cycles_per_frame=1, m20k=1100),
        Configuration(label="dram", cycles_per_frame=1, dram_bytes_per_frame=800),
    )
    other = (Configuration(label="only", cycles_per_frame=1, dram_bytes_per_frame=300),)
    items = (
        Item(name="a", configurations={"P": other}, pinned="small"),
        Item(name="m", configurations={"P": memory}),
        Item(name="b", configurations={"P": other}, pinned="large"),
    )
    links = tuple(Link(source=s, target=t, kind=Kind.ACTIVATION, bits_per_frame=Fraction(1)) for s, t in ("am", "mb"))
    machines = tuple(
        Device(name=name, part="P", dsp=0, m20k=m20k, alm=0, dram_bytes_per_s=900, link_bits_per_s=99)
        for name, m20k in (("small", 1000), ("large", 1200))
    )
    instance = Instance(name="one memory", clock_hz=CLOCK, items=items, links=links, devices=machines)
    given = Assignment((0, 0, 1), (0, 0, 0))
    annealer = Annealer(instance, flatten(instance), seed=0, workers=2)
    # fine chains
    annealer.winner, annealer.streak = False, STREAK
    found = annealer.attempt(CLOCK, 10_000, given, every=True)
    assert found is not None
    assert found.devices[1] == 1
