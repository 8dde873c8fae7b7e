"""Ports of Ethernet in plans: what they take depends on peers, and search, bounds and validator count the same."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from hdl.errors import DagtrainError, InfeasibleError
from hdl.tensor import Kind
from placement.annealing import anneal, encode
from placement.exact import literal, model
from placement.problem.flat import flatten
from placement.problem.instance import (
    Configuration,
    Device,
    Framing,
    Instance,
    Item,
    Link,
    NetworkPort,
    instance_from_json,
    instance_to_json,
)
from placement.problem.options import OptionTable
from placement.problem.plan import Bound, Plan, assignment_of, build_plan, plan_from_json
from placement.problem.ports import beside_ports, with_all_peers
from placement.problem.validate import Rule, violations
from placement.search.search import SearchOptions, find_plan
from tests.bound_instances import Problem, on_ethernet, optimum, stored

CASES = [known for known in stored() if not known.problem.together and not known.problem.exclude][::9]


@cache
def cases() -> tuple[tuple[Problem, int | None], ...]:
    """Instances on Ethernet, and the least T by trying everything."""
    found = (on_ethernet(known.problem) for known in CASES)
    return tuple((problem, optimum(problem)) for problem in found)


def test_the_search_ends_at_the_optimum_of_everything_tried() -> None:
    plain = {known.problem.seed: known.optimum for known in CASES}
    for problem, least in cases():
        try:
            plan = find_plan(problem.instance, SearchOptions(explain=False))
        except InfeasibleError:
            assert least is None, f"seed {problem.seed}"
            continue
        assert (plan.bound_cycles_per_frame, plan.cycles_per_frame) == (least, least), f"seed {problem.seed}"
        assert violations(problem.instance, plan) == []
    # ports bind in some of them: there is no placement at all, or a slower one than without
    slower = [least is None or least > plain[problem.seed] for problem, least in cases()]
    assert 3 <= sum(slower) < len(slower)


def _answers(instance: Instance, cycles: int) -> set[model.Answer]:
    """Of the exact model and of the poster's, at one T."""
    found = beside_ports(instance)
    table = OptionTable(found)
    effort = model.Effort(deterministic_seconds=5.0)
    exact, _ = model.decide(model.build_model(found, table.at(cycles)), effort)
    return {exact, literal.decide(found, table, cycles, effort)[0]}


def test_both_models_know_the_optimum() -> None:
    for problem, least in cases()[::3]:
        if least is not None:
            assert _answers(problem.instance, least) == {model.Answer.FEASIBLE}, f"seed {problem.seed}"
            assert _answers(problem.instance, least - 1) == {model.Answer.INFEASIBLE}, f"seed {problem.seed}"


def test_annealing_counts_peers_through_all_its_moves() -> None:
    """What is kept up to date move by move is what is counted afresh, and nothing broken is called whole."""
    for problem, least in cases()[:12]:
        found = beside_ports(problem.instance)
        for cycles in {least or 1000, (least or 1000) - 1}:
            encoded = encode.encode(found, flatten(found), cycles, merge=False)
            if encoded is None:
                continue
            start = encode.mirror_start(encoded.problem, None)
            energy, state = anneal.anneal(encoded.problem, start, moves=3000, seed=problem.seed % 100)
            fresh = anneal._fresh(encoded.problem, state.device.copy(), state.tile.copy())
            again = float(fresh.energy.sum()) + anneal.HOP_ENERGY * float(fresh.skews[0])
            assert energy == pytest.approx(again, abs=1e-9), f"seed {problem.seed}"
            if least is None or cycles < least:
                assert energy > 0.0, f"seed {problem.seed}"


# --- a chain of devices ------------------------------------------------------------------------------------------


ROUND_TRIP = 2000
# of 256-bit words at an MTU of 1500: 45 beats hold 44 words
FRAMING = Framing(mtu=1500, word_bits=256, keyed=False, round_trip_cycles=ROUND_TRIP)
BITS = 256 * 100
CYCLES = 200


def port(replay: tuple[int, ...] = (90, 1200, 1300, 1400)) -> NetworkPort:
    return NetworkPort(
        m20k=(10, 14, 18, 22), alm=(1000, 1500, 2000, 2500), replay_words=replay,
        host_in_bits_per_frame=Fraction(512), host_out_bits_per_frame=Fraction(256),
    )  # fmt: skip


def chain(alm: int = 3000, ports: NetworkPort | None = None) -> Instance:
    """Three items on three devices, the middle one with two peers, at half a word a cycle."""
    menu = {"P": (Configuration(label="c", cycles_per_frame=CYCLES, alm=500),)}
    return Instance(
        name="chain",
        clock_hz=200_000_000,
        items=tuple(Item(name=f"i{n}", configurations=menu, pinned=f"d{n}") for n in range(3)),
        links=tuple(
            Link(
                source=f"i{n}", target=f"i{n + 1}", kind=Kind.ACTIVATION, bits_per_frame=Fraction(BITS),
                credit_bits_per_frame=Fraction(63), sender_alm=100, receiver_alm=100,
            )
            for n in range(2)
        ),
        devices=tuple(
            Device(
                name=f"d{n}", part="P", dsp=1, m20k=20, alm=alm, dram_bytes_per_s=1, link_bits_per_s=40 * 10**9,
                link_efficiency=Fraction(352, 383), port=ports or port(),
            )
            for n in range(3)
        ),
        framing=FRAMING,
    )  # fmt: skip


def planned(instance: Instance) -> Plan:
    """The only plan there is, before anyone judges it."""
    right = find_plan(chain())
    return build_plan(instance, assignment_of(instance, right), Bound(1, "none"), seed=0)


def edited(plan: Plan, device: int, **changes: Any) -> Plan:
    devices = list(plan.devices)
    devices[device] = replace(devices[device], **changes)
    return replace(plan, devices=tuple(devices))


def test_a_plan_tells_ports_and_comes_back_from_its_file() -> None:
    plan = find_plan(chain())
    ends, middle, _ = plan.devices
    assert (ends.peers, ends.port_m20k, ends.port_alm, ends.replay_words) == (1, 14, 1500, 1200)
    assert (middle.peers, middle.port_m20k, middle.port_alm, middle.replay_words) == (2, 18, 2000, 1300)
    assert (ends.m20k, ends.alm, middle.alm) == (14, 500 + 100 + 1500, 500 + 200 + 2000)
    # a tensor out, credits and the host's in
    assert (ends.egress_bits_per_frame, ends.ingress_bits_per_frame) == (str(BITS + 256), str(63 + 512))
    assert plan_from_json(plan.to_json()) == plan
    assert instance_from_json(instance_to_json(chain())) == chain()
    assert find_plan(chain(alm=2700)).cycles_per_frame == CYCLES
    with pytest.raises(InfeasibleError):
        find_plan(chain(alm=2699), SearchOptions(explain=False))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"port_alm": 1960, "alm": 2660}, "port_alm is 1960 in the plan, 2000 in truth"),
        ({"port_m20k": 17, "m20k": 17}, "port_m20k is 17 in the plan, 18 in truth"),
        ({"peers": 1, "port_alm": 1500, "alm": 2200}, "peers is 1 in the plan, 2 in truth"),
        ({"replay_words": 90}, "replay_words is 90 in the plan, 1300 in truth"),
        ({"egress_bits_per_frame": str(BITS + 63)}, "egress_bits_per_frame is '25663' in the plan, '25919' in truth"),
    ],
    ids=["2 % too little", "a block too little", "a peer forgotten", "the replay of one peer", "the host forgotten"],
)
def test_a_port_told_wrong_is_seen(changes: dict[str, Any], told: str) -> None:
    found = violations(chain(), edited(find_plan(chain()), 1, **changes))
    assert Rule.RECORD in {violation.rule for violation in found}
    assert any(told in violation.message for violation in found), found


def test_what_peers_add_counts_for_the_validator_though_all_records_agree() -> None:
    found = violations(chain(alm=2699), planned(chain(alm=2699)))
    assert [(violation.rule, violation.message) for violation in found] == [
        (Rule.RESOURCES, "d1: 2700 alm used of 2699")
    ]


def test_a_replay_memory_that_is_too_small_is_seen() -> None:
    """Half a word a cycle for a round trip of 2 000, in beats of 45 for 44 words; two frames of 45 for the others."""
    needed = {1: 1023 + 90, 2: 1023 + 90 + 90}
    assert violations(chain(), planned(chain())) == []
    exact = port((90, needed[1], needed[2], 1400))
    assert violations(chain(ports=exact), planned(chain(ports=exact))) == []
    for replay in ((90, needed[1] - 1, needed[2], 1400), (45, 90, 135, 180)):
        spoilt = chain(ports=port(replay))
        found = violations(spoilt, planned(spoilt))
        assert {violation.rule for violation in found} == {Rule.REPLAY}
        message = f"d0: {replay[1]} words for 2 peers, who need {needed[1]}"
        assert message in [violation.message for violation in found]


@pytest.mark.parametrize("who", ["_peer_costs", "peers_of"])
def test_a_search_that_forgets_peers_is_found(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once nothing, once the last peer costs nothing: the validator has the last word."""
    right = model.peers_of
    wrong = (lambda *_: []) if who == "_peer_costs" else (lambda m, n: right(m, n)[:-1])
    monkeypatch.setattr(model, who, wrong)
    with pytest.raises(DagtrainError, match=r"rejected by the validator.*d1: 2700 alm used of 2699"):
        find_plan(chain(alm=2699), SearchOptions(explain=False))


def test_ports_that_can_not_be_are_all_told_at_once() -> None:
    with pytest.raises(DagtrainError) as caught:
        chain(ports=replace(port((90, 80)), m20k=(3, 2, 4), host_in_bits_per_frame=Fraction(-1)))
    told = [problem.what for problem in caught.value.problems if "'d0'" in problem.what]
    assert told == [
        "device 'd0': -1 bits a frame between it and the host",
        "device 'd0': m20k of a port are 3, 2, 4, less with more peers",
        "device 'd0': replay_words of a port with 0 to 1 of 3 devices",
    ]
    with pytest.raises(DagtrainError, match="a port of frames there is where words cross the network in frames"):
        replace(chain(), framing=None)


def test_where_peers_cost_next_to_nothing_searches_look_at_ports_with_all_of_them() -> None:
    """Else at ports as they are; both ways the plan is the instance's own."""
    plenty = replace(chain(), devices=tuple(replace(d, m20k=1000, alm=100_000) for d in chain().devices))
    assert [device.alm for device in with_all_peers(plenty).devices] == [98_000] * 3
    assert [device.port_blocks(2) for device in with_all_peers(plenty).devices] == [(0, 0)] * 3
    assert [use.port_alm for use in find_plan(plenty).devices] == [1500, 2000, 1500]
    assert with_all_peers(chain()) == chain()
    # what only ports as they are have room for is found all the same, and nothing else
    small = chain(ports=replace(port(), alm=(1000, 1005, 1010, 1015), m20k=(10, 10, 10, 10)))
    for alm in (1605, 1604):
        room = {"d0": alm, "d1": 1710, "d2": 1605}
        tight = replace(small, devices=tuple(replace(d, alm=room[d.name]) for d in small.devices))
        simpler = with_all_peers(beside_ports(tight))
        assert [device.alm for device in simpler.devices] == [alm - 1010, 700, 595]
        if alm == 1605:
            assert find_plan(tight).cycles_per_frame == CYCLES
        else:
            with pytest.raises(InfeasibleError):
                find_plan(tight, SearchOptions(explain=False))
