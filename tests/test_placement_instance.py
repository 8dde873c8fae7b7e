"""Instances: what they refuse, Pareto fronts, and files."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.synthetic import devices, instance_of, small_residual
from hdl.errors import DagtrainError
from hdl.tensor import Kind
from placement.problem.instance import (
    Configuration,
    Device,
    Instance,
    Item,
    Link,
    hop_order,
    instance_from_json,
    instance_to_json,
    pareto,
)
from placement.problem.plan import plan_from_json
from placement.search.search import find_plan

DEVICE = Device(name="d0", part="P", dsp=1, m20k=1, alm=1, dram_bytes_per_s=1, link_bits_per_s=1)
PLAIN = Configuration(label="c", cycles_per_frame=1)
ITEM = Item(name="a", configurations={"P": (PLAIN,)})


def make(*items: Item, links: tuple[Link, ...] = (), machines: tuple[Device, ...] = (DEVICE,)) -> Instance:
    return Instance(name="t", clock_hz=1, items=items, links=links, devices=machines)


def link(source: str, target: str, kind: Kind = Kind.ACTIVATION, bits: int = 1) -> Link:
    return Link(source=source, target=target, kind=kind, bits_per_frame=Fraction(bits))


def test_instance_lists_all_its_problems_at_once() -> None:
    with pytest.raises(DagtrainError) as caught:
        Instance(
            name="t",
            clock_hz=0,
            items=(
                ITEM,
                ITEM,
                Item(name="b", configurations={"Q": (PLAIN,)}, pinned="d7"),
                Item(name="c", configurations={"P": (PLAIN, replace(PLAIN, dsp=-2))}),
                Item(name="d", configurations={"P": (replace(PLAIN, tile="x"),)}),
            ),
            links=(link("a", "z"), link("a", "b", bits=-1)),
            devices=(DEVICE, replace(DEVICE, m20k=-5)),
        )
    for problem in (
        "clock_hz is 0, must be positive",
        "item 'a' appears 2 times",
        "device 'd0' appears 2 times",
        "device 'd0': m20k is -5",
        "item 'b' is pinned to 'd7'; devices are d0, d0",
        "item 'b' has no configuration on any part of the cluster",
        "item 'c' on P: configuration 'c' appears 2 times",
        "item 'c' on P, configuration 'c': dsp is -2",
        "item 'd' on P, configuration 'c': tile 'x' but tile group None",
        "link 'a' → 'z': no item named 'z'",
        "link 'a' → 'b': -1 bits a frame",
    ):
        assert problem in str(caught.value)


def test_instance_refuses_groups_that_cannot_agree() -> None:
    tiled = [
        Item(name=name, configurations={"P": (replace(PLAIN, tile=tile),)}, tile_group="g")
        for name, tile in (("a", "x"), ("b", "y"))
    ]
    with pytest.raises(DagtrainError, match="tile group 'g': no tile is offered by all of a, b"):
        make(*tiled)
    machines = (DEVICE, replace(DEVICE, name="d1"))
    coupled = [replace(ITEM, name=n, same_device="s", pinned=d) for n, d in (("a", "d0"), ("b", "d1"))]
    with pytest.raises(DagtrainError, match="coupled by same_device 's' are pinned to different devices d0, d1"):
        make(*coupled, machines=machines)


def test_instance_refuses_cycles_of_hop_links_but_not_of_others() -> None:
    items = (ITEM, replace(ITEM, name="b"))
    with pytest.raises(DagtrainError, match="activation and error links form a cycle through a, b"):
        make(*items, links=(link("a", "b"), link("b", "a", Kind.ERROR)))
    weight_loop = make(*items, links=(link("a", "b", Kind.GRADIENT), link("b", "a", Kind.WEIGHT)))
    assert sorted(hop_order(weight_loop)) == [0, 1]


def test_instance_without_items_or_devices_is_refused() -> None:
    with pytest.raises(DagtrainError, match="has no devices; has no items"):
        make(machines=())


@pytest.mark.parametrize("seed", range(10))
def test_pareto_keeps_exactly_what_nothing_else_of_its_tile_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    menu = [
        Configuration(
            label=f"c{k}", cycles_per_frame=int(a), dsp=int(b), m20k=int(c), alm=int(d), dram_bytes_per_frame=int(e),
            tile=(None, "x")[int(t)],
        )
        for k, (a, b, c, d, e, t) in enumerate(rng.integers(0, [4, 4, 4, 2, 2, 2], (60, 6)))
    ]  # fmt: skip

    def beats(a: Configuration, b: Configuration) -> bool:
        one, other = (a.cycles_per_frame, *a.costs), (b.cycles_per_frame, *b.costs)
        return a.tile == b.tile and all(x <= y for x, y in zip(one, other, strict=True)) and one != other

    best = [c for c in menu if not any(beats(other, c) for other in menu)]
    values = {(c.tile, c.cycles_per_frame, c.costs) for c in best}
    front = pareto(menu)
    assert {(c.tile, c.cycles_per_frame, c.costs) for c in front} == values
    assert len(front) == len(values), "of equals one stays"
    assert pareto(reversed(menu)) == front, "the order given does not matter"


def test_instance_survives_its_file_to_the_byte() -> None:
    instance = instance_of("small", small_residual, devices((1, "AGFB014"), (2, "10AX115")))
    text = instance_to_json(instance)
    assert instance_from_json(text) == instance
    assert instance_to_json(instance_from_json(text)) == text
    thirds = make(ITEM, replace(ITEM, name="b"), links=(replace(link("a", "b"), bits_per_frame=Fraction(1, 3)),))
    assert instance_from_json(instance_to_json(thirds)).links[0].bits_per_frame == Fraction(1, 3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r.pop("items"), "cannot be read: items is missing"),
        (lambda r: r.update(schema=99), "has schema 99, this version reads 3"),
        (lambda r: r["items"][0].update(colour="red"), r"items\[0\]\.colour = 'red': unknown key"),
        (lambda r: r["links"][0].update(kind="wire"), r"links\[0\]\.kind = 'wire': input should be 'activation'"),
        (
            lambda r: r["links"][0].update(bits_per_frame="many"),
            r"bits_per_frame = 'many': input is not a valid fraction",
        ),
    ],
)
def test_spoilt_instance_file_is_refused(spoil: object, message: str) -> None:
    record = json.loads(instance_to_json(make(ITEM, replace(ITEM, name="b"), links=(link("a", "b"),))))
    spoil(record)  # type: ignore[operator]
    with pytest.raises(DagtrainError, match=message):
        instance_from_json(json.dumps(record))
    with pytest.raises(DagtrainError, match="cannot be read: Expecting property name"):
        instance_from_json("{")


def test_spoilt_plan_file_is_refused() -> None:
    text = find_plan(make(ITEM)).to_json()
    for broken, message in (
        ("[", "plan cannot be read: Expecting value"),
        ("[" * 3000, "plan cannot be read: values are nested too deep"),
        ("null", "plan cannot be read: no JSON object"),
        (text.replace('"schema": 2', '"schema": 7'), "plan has schema 7, this version reads 2; run"),
        (text.replace('"hops"', '"hopps"'), r"plan cannot be read: items\[0\]\.hops is missing"),
        (text.replace('"status"', '"state"'), "plan cannot be read: status is missing; state = .*: unknown key"),
    ):
        with pytest.raises(DagtrainError, match=message):
            plan_from_json(broken)
