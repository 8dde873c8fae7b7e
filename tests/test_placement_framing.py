"""Plans count with what frames leave of a link's rate, exactly, and the validator works that out by itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dagtrain.flow.placed import load_plan, load_plan_cluster
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import LEAST_MTU, MOST_MTU, WORD_BITS, FrameFormat
from hdl.tensor import Kind
from placement.problem.cluster import Cluster, parse_cluster
from placement.problem.instance import (
    Configuration,
    Device,
    Exchange,
    Framing,
    Instance,
    Item,
    Link,
    NetworkPort,
    instance_from_json,
    instance_to_json,
)
from placement.problem.network import MTUS
from placement.problem.plan import Bound, Plan, assignment_of, build_plan, instance_digest
from placement.problem.validate import Rule, _words_share, violations
from placement.search.search import find_plan
from tests.flow_support import CLUSTER, new_case, quick_costs

CLOCK = 200_000_000
# of 256-bit words at an MTU of 1500
SHARE = Fraction(352, 383)
FRAMING = Framing(mtu=1500, word_bits=256, keyed=False, round_trip_cycles=2000)
# 44 beats fit into a frame, 45 hold its 44 words: two frames for the host, a round trip of words for the other device
PORT = NetworkPort(m20k=(0, 0), alm=(0, 0), replay_words=(1640, 1730))
CABLE = 40 * 10**9


def pair(share: Fraction = SHARE, framing: Framing | None = FRAMING, bits: int = 1_000_003) -> Instance:
    """Two items that stand apart, and a stream between them that binds."""
    menu = {"P": (Configuration(label="c", cycles_per_frame=10),)}
    return Instance(
        name="pair",
        clock_hz=CLOCK,
        items=tuple(Item(name=name, configurations=menu, pinned=device) for name, device in (("a", "d0"), ("b", "d1"))),
        links=(Link(source="a", target="b", kind=Kind.ACTIVATION, bits_per_frame=Fraction(bits)),),
        devices=tuple(
            Device(
                name=f"d{n}", part="P", dsp=1, m20k=1, alm=1, dram_bytes_per_s=1, link_bits_per_s=CABLE,
                link_efficiency=share, port=PORT if framing else None,
            )
            for n in range(2)
        ),
        framing=framing,
    )  # fmt: skip


def least(share: Fraction) -> int:
    return -int(-Fraction(1_000_003 * CLOCK) / (CABLE * share) // 1)


def test_a_plan_and_its_bound_have_the_pace_that_frames_leave() -> None:
    plan = find_plan(pair())
    assert violations(pair(), plan) == []
    assert plan.cycles_per_frame == plan.bound_cycles_per_frame == least(SHARE) == 5441
    assert find_plan(pair(Fraction(1), None)).cycles_per_frame == least(Fraction(1)) == 5001
    # what the report calls usable, rounded up
    assert plan.devices[0].link_capacity_bits_per_s == -int(-CABLE * SHARE // 1)


@pytest.mark.parametrize("share", [Fraction(1), SHARE * Fraction(102, 100)], ids=["forgotten", "2 % too good"])
def test_an_efficiency_that_is_wrong_is_seen(share: Fraction) -> None:
    """In the instance, and in a plan that was made with it."""
    wrong = pair(share)
    plan = find_plan_unjudged(wrong)
    assert plan.cycles_per_frame == least(share)
    found = violations(wrong, plan)
    assert {violation.rule for violation in found} >= {Rule.NETWORK, Rule.OBJECTIVE}
    text = f"d0: words have {share} of the link's rate in the instance, 352/383 in truth"
    assert text in [violation.message for violation in found]
    exceeds = rf"d0: egress of 1000003 bits a frame × 200000000 Hz / {least(share)} cycles exceeds .* bits/s"
    assert any(re.fullmatch(exceeds, violation.message) for violation in found)
    # the same plan beside a right instance
    claimed = replace(plan, instance_digest=instance_digest(pair()))
    assert {violation.rule for violation in violations(pair(), claimed)} >= {Rule.NETWORK, Rule.OBJECTIVE}


def find_plan_unjudged(instance: Instance) -> Plan:
    """A plan as the search makes it, before anyone judges it."""
    right = find_plan(pair())
    return build_plan(instance, assignment_of(instance, right), Bound(1, "none"), seed=0)


def test_the_validator_s_own_count_is_the_formula_s() -> None:
    for word_bits in WORD_BITS:
        for keyed in (False, True):
            for mtu in (*range(LEAST_MTU, LEAST_MTU + 80), 1500, 4160, 9000, MOST_MTU):
                form = FrameFormat(word_bits=word_bits, mtu=mtu, key=1 if keyed else None)
                told = _words_share(Framing(mtu=mtu, word_bits=word_bits, keyed=keyed, round_trip_cycles=1))
                assert told == form.efficiency(), (word_bits, mtu, keyed)


def test_an_instance_comes_back_from_its_file() -> None:
    assert instance_from_json(instance_to_json(pair())) == pair()
    plain = instance_to_json(pair(Fraction(1), None))
    assert '"schema": 3' in plain
    assert not any(key in plain for key in ("framing", "link_efficiency", "cables", "mesh", "exchanges", "copies"))
    with pytest.raises(DagtrainError, match=r"has schema 2, this version reads 3; write it again"):
        instance_from_json(plain.replace('"schema": 3', '"schema": 2'))


def test_what_is_not_built_yet_is_told_at_once() -> None:
    base = pair()
    with pytest.raises(DagtrainError) as caught:
        replace(
            base,
            items=(replace(base.items[0], copies=2), base.items[1]),
            exchanges=(Exchange(item="a", bits_per_batch=Fraction(8)),),
        )
    told = [f"{what}: not built yet" for what in ("exchanges", "copies of items")]
    assert [problem.what for problem in caught.value.problems] == told


@pytest.mark.parametrize(("share", "framing"), [(Fraction(0), FRAMING), (Fraction(11, 10), FRAMING), (SHARE, None)])
def test_an_efficiency_that_can_not_be_is_refused(share: Fraction, framing: Framing | None) -> None:
    with pytest.raises(DagtrainError, match=r"device 'd0': words are .* of its link's rate"):
        pair(share, framing)


ETHERNET = CLUSTER + '[network]\nkind = "ethernet"\nmtu = 1500\n'


def test_a_cluster_file_s_frames_reach_the_instance() -> None:
    devices = parse_cluster(ETHERNET).placement_devices()
    assert [device.link_efficiency for device in devices] == [Fraction(112, 125)] * 2
    assert devices[0].word_bits_per_s == Fraction(112, 125) * 10**11
    assert [device.link_efficiency for device in parse_cluster(CLUSTER).placement_devices()] == [1, 1]


def test_a_word_s_way_takes_half_the_round_trip_and_two_full_frames() -> None:
    words, frames = parse_cluster(CLUSTER), parse_cluster(ETHERNET)
    assert (words.way_cycles, words.network_cycles) == (200, 512)
    # 5 µs at 200 MHz, 64 until a frame closes, and twice a frame of 1 476 bytes, 64 a cycle
    assert frames.way_cycles == 1000 + 64 + 2 * 24
    assert frames.network_cycles == 2 * frames.way_cycles
    slow = parse_cluster(ETHERNET.replace("1500", "9000") + "rtt_us = 0.5\n")
    assert slow.way_cycles == 50 + 64 + 2 * 141


@pytest.mark.slow
def test_a_longer_way_needs_more_staleness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    needed = {}
    for rtt in (1, 1000):
        case = new_case(tmp_path / str(rtt))
        case.cluster.write_text(f"{ETHERNET}rtt_us = {rtt}\n")
        assert case.step("import").code == 0
        assert case.step("place", "--pin", "c_node=worker").code == 0
        plan = load_plan(case.workspace)
        needed[rtt] = json.loads((case.out / "place" / "place.json").read_text())["needed_staleness"], plan.batch_cycles
    assert needed[1][0] < needed[1000][0]
    assert needed[1][1] < needed[1000][1]


def test_place_counts_with_frames_and_emit_wants_to_know_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    case.cluster.write_text(ETHERNET)
    assert case.step("import").code == 0
    planned = case.step("place", "--pin", "c_node=worker")
    assert planned.code == 0, planned.error
    instance = instance_from_json((case.out / "place" / "instance.json").read_text())
    assert instance.framing == Framing(mtu=1500, word_bits=512, keyed=False, round_trip_cycles=2224)
    plan = load_plan(case.workspace)
    assert violations(instance, plan) == []
    assert plan.crossings
    refused = case.step("emit")
    assert refused.code == 1
    assert "network.host_mac is missing" in refused.error
    # a planner that forgets what frames take is caught before it writes anything
    right = Cluster.placement_devices
    monkeypatch.setattr(
        Cluster, "placement_devices", lambda self: tuple(replace(d, link_efficiency=Fraction(1)) for d in right(self))
    )
    caught = case.step("place", "--pin", "c_node=worker", "--seed", "2")
    assert caught.code != 0
    assert "words have 1 of the link's rate in the instance, 112/125 in truth" in caught.error


@pytest.mark.parametrize(("gbit", "rtt"), [("100", "1"), ("0.4", "1")], ids=["the way binds", "the link binds"])
def test_the_planner_chooses_the_mtu(gbit: str, rtt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short way where links have room, long frames where they have none; files and later steps know which."""
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case")
    base = ETHERNET.replace("link_gbit_per_s = 100", f"link_gbit_per_s = {gbit}") + f"rtt_us = {rtt}\n"
    case.cluster.write_text(base.replace("mtu = 1500", 'mtu = "auto"'))
    assert case.step("import").code == 0
    planned = case.step("place", "--pin", "c_node=worker")
    assert planned.code == 0, planned.error
    plan = load_plan(case.workspace)
    instance = instance_from_json((case.out / "place" / "instance.json").read_text())
    assert plan.mtu == {"100": 576, "0.4": 9000}[gbit]
    told = re.search(r"network\.mtu = (\d+), chosen from (.*)", planned.out)
    assert told is not None
    assert int(told[1]) == plan.mtu
    rates = {int(mtu): float(rate.replace(",", "")) for mtu, rate in re.findall(r"(\d+): ([\d,.]+) frames/s", told[2])}
    assert list(rates) == list(MTUS)
    assert rates[plan.mtu] == max(rates.values())
    assert len(set(rates.values())) > 1
    # what is told of it is what a file that says so gets
    assert instance.framing is not None
    assert instance.framing.mtu == plan.mtu
    assert violations(instance, plan) == []
    assert load_plan_cluster(case.workspace).network == replace(
        parse_cluster(base.replace("1500", str(plan.mtu))).network, chooses_mtu=True
    )
    spoilt = violations(instance, replace(plan, mtu=1500))
    assert [violation.rule for violation in spoilt] == [Rule.INSTANCE]
    assert "frames of an MTU of 1500, the instance of" in spoilt[0].message
