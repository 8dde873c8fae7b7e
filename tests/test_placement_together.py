"""Items that are alike stand together, as many at a time as find room."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from placement.problem.instance import Configuration, Device, Instance, Item
from placement.problem.restrict import restrict

ALIKE = ("a0", "a1", "a2", "a3")


def instance(items: Sequence[Item], **capacities: int) -> Instance:
    sizes = {"dsp": 100, "m20k": 100, "alm": 100, **capacities}
    devices = tuple(
        Device(name=f"d{n}", part="P", dram_bytes_per_s=0, link_bits_per_s=0, **sizes)  # type: ignore[arg-type]
        for n in range(4)
    )
    return Instance(name="alike", clock_hz=1_000, items=tuple(items), links=(), devices=devices)


def item(name: str, *costs: tuple[int, int, int], same_device: str | None = None) -> Item:
    menu = tuple(
        Configuration(label=str(n), cycles_per_frame=10 + n, dsp=dsp, m20k=m20k, alm=alm)
        for n, (dsp, m20k, alm) in enumerate(costs)
    )
    return Item(name=name, configurations={"P": menu}, same_device=same_device, layer=name)


def together(problem: Instance, *groups: tuple[str, ...]) -> list[list[str]]:
    """Names of items that are coupled."""
    found: dict[str, list[str]] = {}
    for one in restrict(problem, (), (), groups).instance.items:
        if one.same_device is not None:
            found.setdefault(one.same_device, []).append(one.name)
    return list(found.values())


@pytest.mark.parametrize("resource", range(3))
@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (18, [["a0", "a1", "a2", "a3"]]),
        # four take 76 of 75 that they may
        (19, [["a0", "a1"], ["a2", "a3"]]),
        (37, [["a0", "a1"], ["a2", "a3"]]),
        (38, []),
        (101, []),
    ],
)
def test_as_many_stand_together_as_find_room(resource: int, cost: int, expected: list[list[str]]) -> None:
    costs = (1,) * resource + (cost,) + (1,) * (2 - resource)
    assert together(instance([item(name, costs) for name in ALIKE]), ALIKE) == expected


def test_a_resource_is_counted_as_its_least_configuration_takes_it() -> None:
    items = [item(name, (18, 50, 1), (50, 18, 1)) for name in ALIKE]
    assert together(instance(items), ALIKE) == [list(ALIKE)]


def test_what_shares_a_memory_with_them_counts_too() -> None:
    def pairs(cost: int) -> Instance:
        lent = [item(f"b{n}", (cost, 1, 1), same_device=f"pair {n}") for n in range(4)]
        return instance([item(name, (12, 1, 1), same_device=f"pair {n}") for n, name in enumerate(ALIKE)] + lent)

    lent = tuple(f"b{n}" for n in range(4))
    assert together(pairs(6), ALIKE, lent) == [[*ALIKE, *lent]]
    assert together(pairs(7), ALIKE, lent) == [["a0", "a1", "b0", "b1"], ["a2", "a3", "b2", "b3"]]


def test_parts_are_as_many_as_room_takes_where_numbers_dont_divide() -> None:
    names = tuple(f"a{n}" for n in range(5))
    assert together(instance([item(name, (25, 1, 1)) for name in names]), names) == [
        ["a0", "a1", "a2"], ["a3", "a4"]
    ]  # fmt: skip


def test_what_its_bound_takes_for_granted_is_said_of_those_alone_that_stand_together() -> None:
    few, many = (tuple(f"{name}{n}" for n in range(2)) for name in "ab")
    problem = instance([*(item(name, (1, 1, 1)) for name in few), *(item(name, (80, 1, 1)) for name in many)])
    assert "1 groups" in restrict(problem, (), (), (few, many)).note
    assert restrict(problem, (), (), (many,)).note == ""
