"""Small placement problems that have a placement, their optima by trying everything, and what binds in them.

    .venv/bin/python -m tests.bound_instances

makes `tests/bound_optima.json` anew: for every instance its seed, the least cycles a frame, and every kind of
constraint without which it would be less. Nothing here shares code with the search, its bounds or its solvers; it reads
the plain data of `placement.problem.instance` alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdl.tensor import Kind
from placement.problem.instance import (
    Configuration,
    Device,
    Framing,
    Instance,
    Item,
    Link,
    NetworkPort,
    instance_to_json,
)

LINK_KINDS = tuple(kind for kind in Kind if not kind.of_store)
STORE = Path(__file__).with_name("bound_optima.json")
CLOCK = 1000
# instances kept at least, and of every kind of constraint those in which it binds
LEAST_INSTANCES, LEAST_BINDING = 200, 12
# constraints that may bind; the last: devices of one part that differ in capacities or links
KINDS = (
    "dsp", "m20k", "alm", "dram", "egress", "ingress", "hops", "pins", "same device", "exclude", "tiles", "ports",
    "unlike devices",
)  # fmt: skip


# blocks that are scarce beside what a seed makes tight, so that it matters; kinds beside which networks are fast
TIGHT_TOO = {
    "egress": ("dsp",), "ingress": ("dsp",), "hops": ("dsp", "m20k"), "exclude": ("dsp",), "ports": ("m20k", "alm"),
    "same device": ("dsp", "alm"), "pins": ("dsp", "m20k"), "tiles": ("dsp",),
}  # fmt: skip
LOOSE = ("hops", "exclude", "ports", "same device", "tiles", "dsp", "m20k", "alm")

# those by hand in which credits bind
CREDITS = range(-10, -7)


@dataclass(frozen=True)
class Problem:
    """An instance, and what a search of it is told beside it."""

    seed: int
    instance: Instance
    # names of items that must stand on one device, of a device that must be left empty
    together: tuple[str, ...]
    exclude: tuple[str, ...]


# --- the generator -----------------------------------------------------------------------------------------------


def problem(seed: int) -> Problem:
    """Four or five items on two or three devices, with capacities a little above what a placement drawn first takes: so
    there is one, and what has the least room binds. The seed chooses what is tight."""
    if seed < 0:
        return _by_hand()[-1 - seed]
    rng = np.random.default_rng([2024, seed])
    tight = KINDS[seed % len(KINDS)]
    machines = 2 if tight == "exclude" else int(rng.integers(2, 4))
    unlike = tight in ("unlike devices", "exclude", "tiles") or bool(rng.integers(2))
    parts = ["P"] * machines if unlike else [("P", "Q")[int(rng.integers(2))] for _ in range(machines)]
    count = int(rng.integers(4, 6))
    grouped = tight == "tiles" or rng.random() < 0.3
    items = _items(rng, count, sorted(set(parts)), grouped)
    links = _links(rng, count, tight)
    places = _planted(rng, count, machines, links, tight)
    picks = []
    for item, n in zip(items, places, strict=True):
        # members of the group take one tile
        menu = item.configurations[parts[n]]
        picks.append(int(rng.choice([k for k, c in enumerate(menu) if c.tile in (None, "ab"[seed // len(KINDS) % 2])])))
    items = [
        replace(item, pinned=f"d{places[i]}") if i == 0 or (i == count - 1 and tight == "pins") else item
        for i, item in enumerate(items)
    ]
    devices = _devices(rng, items, links, parts, places, picks, tight, unlike)
    pairs = [pair for pair in itertools.combinations(range(count), 2) if places[pair[0]] == places[pair[1]]]
    together: tuple[str, ...] = ()
    if pairs and (tight == "same device" or rng.random() < 0.15):
        together = tuple(f"i{i}" for i in pairs[int(rng.integers(len(pairs)))])
        if bool(rng.integers(2)):
            items = [replace(item, same_device="s") if item.name in together else item for item in items]
            together = ()
    exclude: tuple[str, ...] = ()
    if tight == "exclude":
        # one more device, as good as the best: it would help, and may not be used
        best = _best([device for device in devices if device.part == devices[-1].part])
        devices = (*devices, replace(best, name=f"d{machines}"))
        exclude = (f"d{machines}",)
    made = Instance(name=f"bound {seed}", clock_hz=CLOCK, items=tuple(items), links=links, devices=devices)
    return Problem(seed, made, together, exclude)


def _by_hand() -> list[Problem]:
    """What is at a limit to the last unit, and hardly drawn."""

    def item(number: int, pinned: str | None = None, **costs: int) -> Item:
        cost: dict[str, Any] = {"cycles_per_frame": 100, **costs}
        menu = {"P": (Configuration(label="c", **cost),)}
        return Item(name=f"i{number}", configurations=menu, layer=f"l{number}", pinned=pinned)

    def device(number: int, **has: int) -> Device:
        none = {"dsp": 0, "m20k": 0, "alm": 0, "dram_bytes_per_s": 0, "link_bits_per_s": 100_000}
        return Device(name=f"d{number}", part="P", **{**none, **has})

    def link(source: int, target: int, bits: int, credits: int = 0, kind: Kind = Kind.ACTIVATION) -> Link:
        return Link(
            source=f"i{source}", target=f"i{target}", kind=kind, bits_per_frame=Fraction(bits),
            credit_bits_per_frame=Fraction(credits),
        )  # fmt: skip

    chain = (link(0, 1, 500),)
    fork = (link(0, 1, 1), link(0, 2, 1), link(1, 3, 1), link(2, 4, 1), link(3, 4, 1))
    # 500 bits one way, 550 the other way with the credits of the first
    there_and_back = (link(0, 1, 500, credits=100), link(1, 0, 450, kind=Kind.WEIGHT))
    cases: list[tuple[list[Item], tuple[Link, ...], list[Device]]] = [
        # every block of a device
        ([item(0, dsp=70), item(1, m20k=60, alm=900)], (), [device(0, dsp=70), device(1, m20k=60, alm=900)]),
        ([item(0, dsp=70)], (), [device(0, dsp=70)]),
        ([item(0, alm=70), item(1)], chain, [device(0, alm=70)]),
        # one link as fat as its devices can send in so many cycles, between items that stand apart
        ([item(0, "d0"), item(1, "d1")], chain, [device(n, link_bits_per_s=2_000) for n in (0, 1)]),
        # the larger one of two devices comes later
        ([item(0, dsp=180), item(1, dsp=40)], chain, [device(0, dsp=50), device(1, dsp=200)]),
        # two items that fill two equal devices, and the link between them
        ([item(n, dsp=100) for n in (0, 1)], chain, [device(n, dsp=100, link_bits_per_s=2_000) for n in (0, 1)]),
        # i2 has crossed before it meets i3, which crosses there
        ([item(0, "d0"), item(1), item(2, dsp=50), item(3, dsp=60), item(4, dsp=50)], fork,
         [device(0, dsp=60), device(1, dsp=100)]),
        # credits beside another stream fill the link of the device between, wherever that is; with them, what arrives
        # at one device; what leaves the other one
        ([item(n, dsp=100) for n in (0, 1, 2)], (link(0, 1, 500, credits=100), link(1, 2, 450)),
         [device(n, dsp=100, link_bits_per_s=2_000) for n in (0, 1, 2)]),
        ([item(0, "d0"), item(1, "d1")], there_and_back, [device(0, link_bits_per_s=2_000), device(1)]),
        ([item(0, "d0"), item(1, "d1")], there_and_back, [device(0), device(1, link_bits_per_s=2_000)]),
    ]  # fmt: skip
    return [
        Problem(-1 - number, Instance(name=f"by hand {number}", clock_hz=CLOCK, items=tuple(items), links=links,
                                      devices=tuple(devices)), (), ())
        for number, (items, links, devices) in enumerate(cases)
    ]  # fmt: skip


def _items(rng: np.random.Generator, count: int, parts: Sequence[str], grouped: bool) -> list[Item]:
    """Every item has two or three configurations on each part: the faster, the more blocks."""
    items = []
    for i in range(count):
        in_group = grouped and i in (1, 2)
        choices = 2 if in_group or bool(rng.integers(2)) else 3
        work, store, logic = (int(rng.integers(low, high)) for low, high in ((20, 90), (15, 80), (200, 900)))
        moved = int(rng.integers(20, 200)) if rng.random() < 0.6 else 0
        menu = {}
        for part in parts:
            scale = 1.0 if part == "P" else float(rng.uniform(0.6, 1.4))
            configurations = []
            tiles = "ab" if bool(rng.integers(3)) else "ba"
            for k in range(choices):
                slow = float(rng.uniform(0.9, 1.1)) * (1 + k) * 300
                configurations.append(
                    Configuration(
                        label=f"c{k}", cycles_per_frame=int(slow), dsp=int(work * scale * 300 / slow * 2),
                        m20k=int(store * scale * float(rng.uniform(0.4, 1.3))),
                        alm=int(logic * scale * float(rng.uniform(0.5, 1.3))),
                        dram_bytes_per_frame=moved * int(rng.integers(2)),
                        tile=tiles[k] if in_group else None,
                    )
                )  # fmt: skip
            menu[part] = tuple(configurations)
        items.append(Item(name=f"i{i}", configurations=menu, layer=f"l{i // 2}", tile_group="g" if in_group else None))
    return items


def _links(rng: np.random.Generator, count: int, tight: str) -> tuple[Link, ...]:
    links = []
    for i, j in itertools.combinations(range(count), 2):
        shortcut = tight == "hops" and j == i + 2
        if j != i + 1 and not shortcut and rng.random() > 0.2:
            continue
        kinds = (Kind.ACTIVATION, Kind.ERROR) if tight == "hops" or rng.random() < 0.6 else LINK_KINDS
        ends = {"sender_m20k": 2, "sender_alm": 60, "receiver_m20k": 4, "receiver_alm": 90}
        ported = tight == "ports" or (tight not in LOOSE and rng.random() < 0.3)
        most = 4000 if tight not in LOOSE else 200
        links.append(
            Link(
                source=f"i{i}", target=f"i{j}", kind=kinds[int(rng.integers(len(kinds)))],
                bits_per_frame=Fraction(int(rng.integers(1, most)), int(rng.integers(1, 4))),
                **{name: int(rng.integers(amount // 2, amount * 2)) if ported else 0 for name, amount in ends.items()},
            )
        )  # fmt: skip
    return tuple(links)


def _planted(
    rng: np.random.Generator, count: int, machines: int, links: tuple[Link, ...], tight: str
) -> tuple[int, ...]:
    """Devices of the items of the placement drawn first; hops are equal, and rather several devices than one."""
    found = (0,) * count
    for _ in range(60):
        places = tuple(int(n) for n in rng.integers(0, machines, count))
        if len(set(places)) > len(set(found)) and equal_hops(links, places):
            found = places
    del tight
    return found


def _devices(
    rng: np.random.Generator, items: Sequence[Item], links: tuple[Link, ...], parts: Sequence[str],
    places: Sequence[int], picks: Sequence[int], tight: str, unlike: bool,
) -> tuple[Device, ...]:  # fmt: skip
    """Capacities above what the planted placement takes: 2 % for what is tight, else up to twice."""
    chosen = [item.configurations[parts[n]][k] for item, n, k in zip(items, places, picks, strict=True)]
    pace = max(c.cycles_per_frame for c in chosen)
    devices = []
    for n, part in enumerate(parts):
        here = [c for c, place in zip(chosen, places, strict=True) if place == n]
        ends = [[0, 0], [0, 0]]
        bits = [Fraction(0), Fraction(0)]
        for link in links:
            source, target = (places[int(name[1:])] for name in (link.source, link.target))
            for side, (mine, other) in enumerate(((source, target), (target, source))):
                if mine == n != other:
                    bits[side] += link.bits_per_frame
                    ends[side] = [a + b for a, b in zip(ends[side], link.ends[side], strict=True)]
        used = {
            "dsp": sum(c.dsp for c in here),
            "m20k": sum(c.m20k for c in here) + ends[0][0] + ends[1][0],
            "alm": sum(c.alm for c in here) + ends[0][1] + ends[1][1],
        }

        def room(kinds: tuple[str, ...]) -> float:
            near = tight in kinds or (kinds[0] in TIGHT_TOO.get(tight, ())) or (unlike and rng.random() < 0.3)
            return float(rng.uniform(1.0, 1.03) if near else rng.uniform(1.2, 2.5))

        base = {"dsp": 60, "m20k": 60, "alm": 900}
        sizes = {
            name: int(max(used[name], 0 if unlike else base[name]) * room((name, "ports" if name != "dsp" else name)))
            for name in used
        }
        # rates at which the planted placement runs at the pace of its engines, or somewhat slower
        slower = float(rng.uniform(1.05, 1.6)) if tight in ("egress", "ingress", "dram") else 1.0
        fat = bits[tight == "ingress"] if tight in ("egress", "ingress") and bits[tight == "ingress"] else max(bits)
        wide = room(("ingress", "egress")) if tight not in LOOSE else 9.0
        rate = math.ceil(float(fat) * CLOCK / (pace * slower) * wide)
        moved = sum(c.dram_bytes_per_frame for c in here)
        memory = math.ceil(moved * CLOCK / (pace * slower) * (room(("dram",)) if tight not in LOOSE else 9.0))
        devices.append(
            Device(
                name=f"d{n}", part=part, **sizes, dram_bytes_per_s=memory if moved else int(rng.integers(0, 2)) * 300,
                link_bits_per_s=rate if max(bits) else int(rng.integers(0, 3)) * 1000,
            )
        )  # fmt: skip
    if unlike:
        return tuple(devices)
    # devices of one part are alike: each has the most of any
    return tuple(replace(_best([d for d in devices if d.part == device.part]), name=device.name) for device in devices)


def _best(devices: Sequence[Device]) -> Device:
    """A device with the most that any of these has."""
    names = ("dsp", "m20k", "alm", "dram_bytes_per_s", "link_bits_per_s")
    most: dict[str, Any] = {name: max(getattr(device, name) for device in devices) for name in names}
    return replace(devices[0], **most)


# of words of 512 bits in frames of 1 500 bytes
FRAMING = Framing(mtu=1500, word_bits=512, keyed=False, round_trip_cycles=1)
SHARE = Fraction(112, 125)


def on_ethernet(known: Problem) -> Problem:
    """The same items on devices with ports that are dear: capacities as they were, and in addition what a port takes
    with a number of peers that the seed chooses, so that one more is too many, or just fits."""
    rng = np.random.default_rng([2026, known.seed + 100])
    count = len(known.instance.devices)
    devices, like = [], {}
    for device in known.instance.devices:
        if device.shape not in like:
            m20k, alm = (np.cumsum(rng.integers(0, most, count + 1)).tolist() for most in (12, 200))
            host = (Fraction(int(rng.integers(0, 200)), 3) for _ in range(2))
            port = NetworkPort(
                m20k=tuple(m20k), alm=tuple(alm), replay_words=tuple(10**6 * (n + 1) for n in range(count + 1)),
                host_in_bits_per_frame=next(host), host_out_bits_per_frame=next(host),
            )  # fmt: skip
            like[device.shape] = port, int(rng.integers(0, count))
        port, peers = like[device.shape]
        more = {"m20k": device.m20k + port.m20k[peers], "alm": device.alm + port.alm[peers]}
        devices.append(replace(device, **more, port=port, link_efficiency=SHARE))
    return replace(known, instance=replace(known.instance, devices=tuple(devices), framing=FRAMING))


# --- the optimum -------------------------------------------------------------------------------------------------


def equal_hops(links: Sequence[Link], places: Sequence[int]) -> bool:
    """Whether branches of activations and errors meet after equally many crossings; items are named i0, i1 … in
    topological order."""
    hops = [0] * len(places)
    for i in range(len(places)):
        into = {
            hops[int(link.source[1:])] + (places[int(link.source[1:])] != places[i])
            for link in links
            if link.kind.hops_must_match and int(link.target[1:]) == i
        }
        if len(into) > 1:
            return False
        hops[i] = max(into, default=0)
    return True


def optima(problem: Problem) -> dict[str, int | None]:
    """The least T under all constraints, as "", and without each kind alone; None where there is no placement."""
    found = {kind: _least(problem, kind) for kind in ("", *KINDS[:-1])}
    best = {
        part: _best([device for device in problem.instance.devices if device.part == part])
        for part in {device.part for device in problem.instance.devices}
    }
    alike = tuple(replace(best[device.part], name=device.name) for device in problem.instance.devices)
    found[KINDS[-1]] = _least(replace(problem, instance=replace(problem.instance, devices=alike)), "")
    return found


def optimum(problem: Problem) -> int | None:
    """The least T of all placements."""
    return _least(problem, "")


def _least(problem: Problem, without: str) -> int | None:
    """The least T over all devices and configurations of all items, one kind of constraint left out."""
    instance = problem.instance
    best: int | None = None
    for places in itertools.product(range(len(instance.devices)), repeat=len(instance.items)):
        if not _allowed(problem, places, without):
            continue
        menus = [item.configurations[instance.devices[n].part] for item, n in zip(instance.items, places, strict=True)]
        found = _least_on(instance, places, menus, without)
        if found is not None:
            best = found if best is None else min(best, found)
    return best


def _allowed(problem: Problem, places: Sequence[int], without: str) -> bool:
    instance = problem.instance
    names = [instance.devices[n].name for n in places]
    of = dict(zip((item.name for item in instance.items), names, strict=True))
    if without != "pins" and any(item.pinned not in (None, of[item.name]) for item in instance.items):
        return False
    coupled = [[item.name for item in instance.items if item.same_device == "s"], list(problem.together)]
    if without != "same device" and any(len({of[name] for name in names}) > 1 for names in coupled):
        return False
    if without != "exclude" and set(names) & set(problem.exclude):
        return False
    return without == "hops" or equal_hops(instance.links, places)


def _least_on(
    instance: Instance, places: Sequence[int], menus: Sequence[tuple[Configuration, ...]], without: str
) -> int | None:
    """The least T over all configurations of items on these devices."""
    # one row a combination of configurations, one column an item
    rows = np.array(list(itertools.product(*(range(len(menu)) for menu in menus))))

    def of(name: str) -> NDArray[np.int64]:
        return np.stack([np.array([getattr(c, name) for c in menu])[rows[:, i]] for i, menu in enumerate(menus)], 1)

    fits = np.ones(len(rows), dtype=bool)
    grouped = [i for i, item in enumerate(instance.items) if item.tile_group is not None]
    if grouped and without != "tiles":
        tiles = np.stack([np.array([c.tile == "a" for c in menus[i]])[rows[:, i]] for i in grouped], 1)
        fits &= tiles.all(1) | ~tiles.any(1)
    cycles = of("cycles_per_frame").max(1)
    crossing = [link for link in instance.links if places[int(link.source[1:])] != places[int(link.target[1:])]]
    standing = np.array(places)
    for n, device in enumerate(instance.devices):
        here = standing == n
        out = [link for link in crossing if places[int(link.source[1:])] == n]
        into = [link for link in crossing if places[int(link.target[1:])] == n]
        met = {link.target for link in out} | {link.source for link in into}
        peers = len({places[int(name[1:])] for name in met})
        for name in ("dsp", "m20k", "alm"):
            ports = 0
            if name != "dsp" and without != "ports":
                ports += getattr(device.port, name)[peers] if device.port and here.any() else 0
                ports += sum(getattr(link, f"sender_{name}") for link in out)
                ports += sum(getattr(link, f"receiver_{name}") for link in into)
            if without != name:
                fits &= of(name)[:, here].sum(1) + ports <= getattr(device, name)
        for kind, links, others in (("egress", out, into), ("ingress", into, out)):
            bits = sum((link.bits_per_frame for link in links), Fraction(0))
            bits += sum((link.credit_bits_per_frame for link in others), Fraction(0))
            if device.port and here.any():
                out_of = kind == "egress"
                bits += device.port.host_out_bits_per_frame if out_of else device.port.host_in_bits_per_frame
            if bits and without != kind:
                if not device.link_bits_per_s:
                    return None
                cycles = np.maximum(cycles, math.ceil(bits * CLOCK / (device.link_bits_per_s * device.link_efficiency)))
        moved = of("dram_bytes_per_frame")[:, here].sum(1)
        if without != "dram":
            if device.dram_bytes_per_s:
                cycles = np.maximum(cycles, -(-moved * CLOCK // device.dram_bytes_per_s))
            else:
                fits &= moved == 0
    return int(cycles[fits].min()) if fits.any() else None


# --- the store ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """A stored instance: its optimum, and what binds."""

    problem: Problem
    optimum: int
    binds: tuple[str, ...]


@cache
def stored() -> tuple[Known, ...]:
    """All stored instances."""
    record = json.loads(STORE.read_text())
    return tuple(
        Known(problem(entry["seed"]), entry["optimum"], tuple(entry["binds"])) for entry in record["instances"]
    )


def digest(problems: Sequence[Problem]) -> str:
    """SHA-256 of the instances and what searches of them are told."""
    found = hashlib.sha256()
    for each in problems:
        found.update(instance_to_json(each.instance).encode())
        found.update(json.dumps([each.together, each.exclude]).encode())
    return found.hexdigest()


def _drawn() -> Iterator[tuple[Problem, int, tuple[str, ...]]]:
    """Problems in the order of their seeds until there are enough of every kind: those in which a kind binds that is
    still wanted, and of the others as many as are needed; then those in which credits bind."""
    counts: Counter[str] = Counter()
    kept = 0
    for seed in itertools.count(CREDITS.stop):
        if kept >= LEAST_INSTANCES and all(counts[kind] >= LEAST_BINDING for kind in KINDS):
            break
        drawn, least, binds = _known(seed)
        if kept < LEAST_INSTANCES or any(counts[kind] < LEAST_BINDING for kind in binds):
            kept += 1
            counts.update(binds)
            yield drawn, least, binds
    yield from map(_known, CREDITS)


def _known(seed: int) -> tuple[Problem, int, tuple[str, ...]]:
    drawn = problem(seed)
    found = optima(drawn)
    least = found.pop("")
    assert least is not None, f"seed {seed}: the planted placement is one"
    return drawn, least, tuple(kind for kind in KINDS if found[kind] is not None and found[kind] < least)  # type: ignore[operator]


def main() -> None:
    """Write the store."""
    drawn = list(_drawn())
    record = {
        "command": "python -m tests.bound_instances",
        "digest": digest([each for each, _, _ in drawn]),
        "instances": [
            {"seed": each.seed, "optimum": least, "binds": list(binds)} for each, least, binds in drawn
        ],
    }  # fmt: skip
    rows = ",\n".join(json.dumps(entry) for entry in record.pop("instances"))  # type: ignore[arg-type]
    head = json.dumps(record)[:-1]
    STORE.write_text(f'{head}, "instances": [\n{rows}\n]}}\n')
    counts = Counter(kind for _, _, binds in drawn for kind in binds)
    print(f"{len(drawn)} instances; binding in: " + ", ".join(f"{kind} {counts[kind]}" for kind in KINDS))


if __name__ == "__main__":
    main()
