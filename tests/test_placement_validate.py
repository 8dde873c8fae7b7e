"""The validator accepts a good plan and rejects every way of spoiling it, for the right reason."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

import placement.problem.validate
from benchmarks.synthetic import devices, instance_of, small_residual
from placement.problem.instance import Instance, instance_from_json, instance_to_json
from placement.problem.plan import Bound, Plan, assignment_of, build_plan, instance_digest, plan_from_json
from placement.problem.validate import Rule, violations
from placement.search.search import SearchOptions, find_plan, judged, plan_from_assignment


@cache
def good() -> tuple[Instance, Plan]:
    """The small residual net, its second half forced to another device, some items coupled."""
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    coupled = ("block_conv2.gradient", "block_conv2.update")
    items = tuple(replace(item, same_device="g" if item.name in coupled else None) for item in instance.items)
    instance = replace(instance, items=items)
    places = {item.name: item.pinned or "AGFB014-0" for item in instance.items}
    far = ("block_conv2", "block_norm2", "block_conv3", "block_norm3", "block_relu2", "gap", "fc")
    places |= {item.name: "10AX115-0" for item in instance.items if item.layer in far}
    places |= {"block.add": "10AX115-0", "block.error_fork": "10AX115-0"}
    return instance, plan_from_assignment(instance, places)


def _edit_item(plan: Plan, name: str, **changes: object) -> Plan:
    items = tuple(replace(e, **changes) if e.item == name else e for e in plan.items)  # type: ignore[arg-type]
    return replace(plan, items=items)


def _edit_device(plan: Plan, index: int, **changes: object) -> Plan:
    uses = list(plan.devices)
    uses[index] = replace(uses[index], **changes)  # type: ignore[arg-type]
    return replace(plan, devices=tuple(uses))


def _edit_crossing(plan: Plan, **changes: object) -> Plan:
    first, *rest = plan.crossings
    return replace(plan, crossings=(replace(first, **changes), *rest))  # type: ignore[arg-type]


def _other_tile(plan: Plan) -> Plan:
    instance, _ = good()
    entry = next(e for e in plan.items if e.item == "block_conv1.forward")
    menu = instance.items[instance.item_index[entry.item]].configurations["AGFB014"]
    other = next(c for c in menu if c.tile != entry.tile)
    return _edit_item(
        plan, entry.item, configuration=other.label, tile=other.tile, cycles_per_frame=other.cycles_per_frame,
        dsp=other.dsp, m20k=other.m20k, alm=other.alm, dram_bytes_per_frame=other.dram_bytes_per_frame,
    )  # fmt: skip


Spoil = Callable[[Plan], Plan]

SPOILERS: dict[str, tuple[Spoil, Rule, str]] = {
    "move a layer": (
        lambda p: _edit_item(p, "block_relu1.forward", device="10AX115-1"),
        Rule.HOPS, "join at 'block.add' with unequal hops: 2 over 'block_norm2.forward', 1 over 'block_norm3.forward'",
    ),
    "move a layer, records left": (
        lambda p: _edit_item(p, "stem.update", device="10AX115-1"),
        Rule.RECORD, "crossing stem.gradient stem.update gradient AGFB014-0 10AX115-1",
    ),
    "unpin the loss": (
        lambda p: _edit_item(p, "loss", device="10AX115-0"),
        Rule.PINS, "'loss' is pinned to 'AGFB014-0' but on '10AX115-0'",
    ),
    "separate coupled items": (
        lambda p: _edit_item(p, "block_conv2.update", device="AGFB014-0"),
        Rule.SAME_DEVICE, "coupled as 'g' are spread over 10AX115-0, AGFB014-0",
    ),
    "mix tiles in a group": (_other_tile, Rule.TILES, "tile group 'block_conv1' mixes tiles"),
    "place an item twice": (
        lambda p: replace(p, items=(*p.items, p.items[3])), Rule.PLACED_ONCE, "is placed 2 times",
    ),
    "forget an item": (
        lambda p: replace(p, items=p.items[1:]), Rule.PLACED_ONCE, "item 'input' is not placed",
    ),
    "invent an item": (
        lambda p: replace(p, items=(*p.items, replace(p.items[0], item="ghost"))),
        Rule.PLACED_ONCE, "'ghost' is unknown to the instance",
    ),
    "unknown configuration": (
        lambda p: _edit_item(p, "stem.forward", configuration="magic"),
        Rule.PLACED_ONCE, "'stem.forward' has configuration 'magic', which is none of the",
    ),
    "unknown device": (
        lambda p: _edit_item(p, "stem.forward", device="fpga9"), Rule.PLACED_ONCE, "unknown device 'fpga9'",
    ),
    "claim more throughput": (
        lambda p: replace(p, throughput_fps=p.throughput_fps * 1.01), Rule.OBJECTIVE, "frames/s, 200000000 Hz",
    ),
    "claim a higher pace in a batch": (
        lambda p: replace(p, steady_fps=p.steady_fps * 1.01), Rule.OBJECTIVE, "frames/s in a batch, 200000000 Hz",
    ),
    "claim a shorter batch": (
        lambda p: replace(p, batch_cycles=p.batch_cycles - 1), Rule.OBJECTIVE, "its frames alone take",
    ),
    "claim a longer batch": (
        lambda p: replace(p, batch_cycles=p.batch_cycles + 1), Rule.OBJECTIVE, "frames/s, 200000000 Hz * 1 /",
    ),
    "no frames in a batch": (
        lambda p: replace(p, batch_frames=0, staleness_frames=0), Rule.OBJECTIVE, "a batch of 0 frames",
    ),
    "claim fewer cycles": (
        lambda p: replace(p, cycles_per_frame=p.cycles_per_frame - 1), Rule.OBJECTIVE, "engines, DRAM and links need",
    ),
    "claim more cycles than needed": (
        lambda p: replace(p, cycles_per_frame=p.cycles_per_frame + 1), Rule.OBJECTIVE, "engines, DRAM and links need",
    ),
    "zero cycles": (lambda p: replace(p, cycles_per_frame=0), Rule.OBJECTIVE, "must be at least 1"),
    "bound above the plan": (
        lambda p: replace(p, bound_cycles_per_frame=p.cycles_per_frame + 1), Rule.BOUND, "lies between 1 and the plan",
    ),
    "wrong gap": (lambda p: replace(p, gap=0.5), Rule.BOUND, "gap 0.5"),
    "wrong gap of the pace": (lambda p: replace(p, steady_gap=0.5), Rule.BOUND, "gap 0.5 inside a batch"),
    "a slower batch with the gap of the pace": (
        lambda p: replace(
            p, batch_cycles=2 * p.cycles_per_frame, throughput_fps=p.clock_hz / (2 * p.cycles_per_frame),
        ),
        Rule.BOUND, "(bound − throughput) / bound is",
    ),
    "wrong bound rate": (lambda p: replace(p, bound_fps=1.0), Rule.BOUND, "bound of 1.0 frames/s"),
    "wrong status": (lambda p: replace(p, status="brilliant"), Rule.BOUND, "status 'brilliant', should be"),
    "drop a crossing": (
        lambda p: replace(p, crossings=p.crossings[1:]), Rule.RECORD, "is missing from the plan",
    ),
    "double a crossing": (
        lambda p: replace(p, crossings=(*p.crossings, p.crossings[0])), Rule.RECORD, "not in the placement",
    ),
    "lighten a crossing": (
        lambda p: _edit_crossing(p, bits_per_frame="1"), Rule.RECORD, "is missing from the plan",
    ),
    "wrong hop level": (
        lambda p: _edit_item(p, "loss", hops=0), Rule.RECORD, "item 'loss': hops is 0 in the plan, 2 in truth",
    ),
    "understate DSP of an item": (
        lambda p: _edit_item(p, "block_conv1.forward", dsp=0), Rule.RECORD, "dsp is 0 in the plan",
    ),
    "wrong payload": (
        lambda p: _edit_item(p, "stem.forward", payload="x"), Rule.RECORD, "payload is 'x' in the plan, '' in truth",
    ),
    "wrong layer": (lambda p: _edit_item(p, "loss", layer="stem"), Rule.RECORD, "layer is 'stem' in the plan"),
    "understate use of a device": (lambda p: _edit_device(p, 0, m20k=0), Rule.RECORD, "m20k is 0 in the plan"),
    "overstate capacity of a device": (
        lambda p: _edit_device(p, 1, dsp_capacity=10**6), Rule.RECORD, "dsp_capacity is 1000000 in the plan, 1290",
    ),
    "understate link load": (
        lambda p: _edit_device(p, 0, egress_bits_per_frame="0"), Rule.RECORD, "egress_bits_per_frame is '0'",
    ),
    "forget a device": (lambda p: replace(p, devices=p.devices[:-1]), Rule.RECORD, "plan lists devices"),
    "another clock": (lambda p: replace(p, clock_hz=1), Rule.INSTANCE, "plan's clock is 1 Hz"),
    "another instance": (lambda p: replace(p, instance_digest="0" * 64), Rule.INSTANCE, "with digest 000000000000"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILERS)
def test_spoilt_plan_is_rejected_for_the_right_reason(name: str) -> None:
    instance, plan = good()
    spoil, rule, words = SPOILERS[name]
    found = violations(instance, spoil(plan))
    assert any(v.rule is rule and words in v.message for v in found), [str(v) for v in found]


def test_good_plan_is_accepted_and_survives_its_file() -> None:
    instance, plan = good()
    assert violations(instance, plan) == []
    again = plan_from_json(plan.to_json())
    assert again == plan
    assert violations(instance, again) == []


def _reassigned(instance: Instance, **edits: object) -> tuple[Instance, Plan]:
    """The good plan rebuilt, honestly recorded, for an instance whose first device is smaller."""
    smaller = replace(instance, devices=(replace(instance.devices[0], **edits), *instance.devices[1:]))  # type: ignore[arg-type]
    return smaller, build_plan(smaller, assignment_of(instance, good()[1]), Bound(1, "none"), seed=0)


@pytest.mark.parametrize("resource", ["dsp", "m20k", "alm"])
def test_overfull_device_is_rejected_though_all_records_agree(resource: str) -> None:
    instance, plan = good()
    used = getattr(plan.devices[0], resource)
    smaller, overfull = _reassigned(instance, **{resource: used - 1})
    found = violations(smaller, overfull)
    assert [v.rule for v in found] == [Rule.RESOURCES]
    assert found[0].message == f"AGFB014-0: {used} {resource} used of {used - 1}"
    exact, full = _reassigned(instance, **{resource: used})
    assert violations(exact, full) == []


def test_link_that_is_too_thin_is_rejected_at_the_exact_bit() -> None:
    instance, plan = good()
    egress = int(plan.devices[0].egress_bits_per_frame)
    # at T cycles a frame the load is egress · clock / T bits a second
    least = -(-egress * instance.clock_hz // plan.cycles_per_frame)
    for rate, fits in ((least, True), (least - 1, False)):
        thinner = replace(instance, devices=(replace(instance.devices[0], link_bits_per_s=rate), *instance.devices[1:]))
        honest = build_plan(thinner, assignment_of(instance, plan), Bound(1, "none"), seed=0)
        claimed = replace(
            honest, cycles_per_frame=plan.cycles_per_frame, throughput_fps=plan.throughput_fps,
            instance_digest=instance_digest(thinner),
        )  # fmt: skip
        rules = {v.rule for v in violations(thinner, claimed)}
        assert (Rule.NETWORK in rules) is not fits


def test_credits_are_part_of_what_links_carry() -> None:
    """They go the other way, so the target's egress and the source's ingress grow, and the least T with them."""
    instance, plan = good()
    crossing = next(c for c in plan.crossings if c.from_device == plan.devices[0].device)
    back = Fraction(7, 2)
    links = tuple(
        replace(link, credit_bits_per_frame=back) if (link.source, link.target) == (crossing.source, crossing.target)
        else link
        for link in instance.links
    )  # fmt: skip
    credited = replace(instance, links=links)
    assert instance_from_json(instance_to_json(credited)) == credited
    honest = build_plan(credited, assignment_of(credited, plan), Bound(1, "none"), seed=0)
    assert violations(credited, honest) == []
    places = [use.device for use in honest.devices]
    source, target = places.index(crossing.from_device), places.index(crossing.to_device)
    for index, name in ((target, "egress_bits_per_frame"), (source, "ingress_bits_per_frame")):
        assert Fraction(getattr(honest.devices[index], name)) == Fraction(getattr(plan.devices[index], name)) + back
        without = _edit_device(honest, index, **{name: getattr(plan.devices[index], name)})
        assert [v.rule for v in violations(credited, without)] == [Rule.RECORD]
    # a link that is full with them
    egress = Fraction(honest.devices[target].egress_bits_per_frame)
    least = math.ceil(egress * instance.clock_hz / plan.cycles_per_frame)
    for rate, fits in ((least, True), (math.ceil((egress - back) * instance.clock_hz / plan.cycles_per_frame), False)):
        devices_ = list(credited.devices)
        devices_[target] = replace(devices_[target], link_bits_per_s=rate)
        thinner = replace(credited, devices=tuple(devices_))
        honest = build_plan(thinner, assignment_of(thinner, plan), Bound(1, "none"), seed=0)
        claimed = replace(honest, cycles_per_frame=plan.cycles_per_frame)
        assert (Rule.NETWORK in {v.rule for v in violations(thinner, claimed)}) is not fits


def test_dram_that_is_not_there_is_rejected() -> None:
    instance = instance_of("small", small_residual, devices((1, "10AX115")))
    last = instance.items[-1]
    menu = tuple(replace(c, dram_bytes_per_frame=1000) for c in last.configurations["10AX115"])
    last = replace(last, configurations={"10AX115": menu})
    instance = replace(instance, items=(*instance.items[:-1], last))
    plan = find_plan(instance)
    starved = replace(instance, devices=(replace(instance.devices[0], dram_bytes_per_s=10**6),))
    found = violations(starved, replace(plan, instance_digest=instance_digest(starved)))
    assert any(v.rule is Rule.DRAM and "exceeds 1000000 bytes/s" in v.message for v in found)


def test_search_never_hands_out_a_plan_that_the_validator_rejects() -> None:
    instance, plan = good()
    with pytest.raises(Exception, match="rejected by the validator, which is a bug of the search: objective"):
        judged(instance, replace(plan, throughput_fps=1.0))


def test_validator_knows_nothing_of_the_solver_or_the_model() -> None:
    source = Path(placement.problem.validate.__file__).read_text(encoding="utf-8")
    imports = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name for name in imports if name.startswith("placement")} == {
        "placement.problem.instance.Configuration",
        "placement.problem.instance.Framing",
        "placement.problem.instance.Instance",
        "placement.problem.instance.instance_to_json",
        "placement.problem.plan.Plan",
    }
    assert "ortools" not in source


@pytest.mark.parametrize("seed", range(3))
def test_every_seeds_plan_is_valid(seed: int) -> None:
    instance, _ = good()
    plan = find_plan(instance, SearchOptions(seed=seed, exact_choices=0, anneal_moves=100_000))
    assert violations(instance, plan) == []
