"""HyPar's published numbers beside ours: paper, ours, quotient, verdict; then tables of what has no number in its text.

python benchmarks/hypar.py

What the paper prints stands in benchmarks/papers/hypar.toml, with the sentence; conventions and the models of time and
energy are those of docs/hypar.md.  It takes about a minute.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.beside_paper import HEADS, Row, Value, print_table, rows_of
from placement.hypar.communication import BYTES, DP, MP, Above, Choices, Counting, column, total
from placement.hypar.convention import EVERY, NAMED, SECTION_3_4
from placement.hypar.energy import Prices, joules
from placement.hypar.iteration import iteration
from placement.hypar.network import Layer, Net
from placement.hypar.published import PUBLISHED, published
from placement.hypar.search import data_parallelism, exact, greedy, model_parallelism, weird_trick
from placement.hypar.simulation import Accelerator, Array
from placement.hypar.topology import HTree, Layout, Links, Torus

BATCH, LEVELS = 256, 4
PRINTED = Counting(BATCH, SECTION_3_4)
# of the rows
ARRAY, PRICES = Array(), Prices()
NETS = {name: network.net for name, network in PUBLISHED.items()}
EXTREME = ("sfc", "sconv")
TREES = {links: partial(HTree.of_one, links=links) for links in Links}
TORI = {layout: partial(Torus, layout=layout) for layout in Layout}
WAYS = {"by turns": False, "overlapped": True}
UNITS = (1, 4, 8, 9, 12, 16, 32)
OTHER_PRICES = {"no SRAM": Prices(sram=0.0), "links 640 pJ": Prices(link=640.0)}


def rows() -> list[Row]:
    """All published numbers beside ours."""
    return rows_of("hypar", measures())


def measures() -> dict[str, Value]:
    """Measure -> ours."""
    return {
        **_section_3_4(), **_choices(), **_speed_ups(), **_energies(), **_spaces(), **_totals(), **_scaling(),
        **_torus(), **_trick(),
    }  # fmt: skip


def _section_3_4() -> dict[str, Value]:
    counting = Counting(32, SECTION_3_4)
    sizes = {"dense": (70 * 100, 100), "conv": (5 * 5 * 20 * 50, 8 * 8 * 50)}
    found: dict[str, Value] = {}
    for name, (weights, made) in sizes.items():
        layer = Layer(name=name, weights=weights, macs=1, input=1, output=made, pooled=made)
        for choice, word in ((DP, "dp"), (MP, "mp")):
            found[f"{name} {word} KB"] = BYTES * counting.intra(layer, Above(), choice) / 1000
    return found


def columns_text(choices: Choices) -> str:
    """By layer, each H1 first."""
    return " ".join("".join(map(str, chosen)) for chosen in choices.values())


def _choices() -> dict[str, Value]:
    vgg = hypar("vgg-a")
    return {
        **{f"{name} choices": columns_text(hypar(name)) for name in EXTREME},
        "vgg-a conv5_2 fc1": columns_text({name: vgg[name] for name in ("conv5_2", "fc1")}),
    }


@cache
def hypar(name: str) -> dict[str, tuple[int, ...]]:
    """Algorithm 2's choices for one of the ten networks."""
    return greedy(NETS[name], LEVELS, PRINTED)


def model(name: str) -> Choices:
    """Model Parallelism for one of the ten networks."""
    return model_parallelism(NETS[name], LEVELS)


@cache
def data_seconds(name: str, array: Array = ARRAY) -> float:
    """Of a step in Data Parallelism."""
    return array.seconds(NETS[name], data_parallelism(NETS[name], LEVELS), PRINTED)


def speed_up(name: str, choices: Choices, array: Array = ARRAY, base: Array | None = None) -> float:
    """Over data parallelism, on the same array or on ``base``."""
    return data_seconds(name, base or array) / array.seconds(NETS[name], choices, PRINTED)


def mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _eight(found: dict[str, float]) -> list[float]:
    return [ratio for name, ratio in found.items() if name not in EXTREME]


def _speed_ups() -> dict[str, Value]:
    found = {name: speed_up(name, hypar(name)) for name in NETS}
    return {
        **{f"{name} speed-up": ratio for name, ratio in found.items()},
        "mean speed-up": mean(list(found.values())),
        "sfc model parallelism speed-up": speed_up("sfc", model("sfc")),
        "least speed-up of eight": min(_eight(found)),
        "greatest speed-up of eight": max(_eight(found)),
    }


# ---- Figure 7


def spent(net: Net, choices: Choices, counting: Counting = PRINTED, prices: Prices = PRICES) -> float:
    """Joules of a step."""
    levels = len(next(iter(choices.values())))
    return joules(iteration(net, choices, counting), 2**levels, prices).total


def saving(name: str, choices: Choices, prices: Prices = PRICES) -> float:
    """Energy of data parallelism over that of these choices."""
    net = NETS[name]
    return spent(net, data_parallelism(net, LEVELS), prices=prices) / spent(net, choices, prices=prices)


def _energies() -> dict[str, Value]:
    found = {name: saving(name, hypar(name)) for name in NETS}
    order = {"HyPar": found["sfc"], "MP": saving("sfc", model("sfc")), "DP": 1.0}
    groups = (name if name in EXTREME else "the eight" for name in _falling(found))
    return {
        "mean energy": mean(list(found.values())),
        "sfc energy": order["HyPar"],
        "sfc model parallelism energy": order["MP"],
        "order of sfc's energies": ", ".join(_falling(order)),
        "sconv energy": found["sconv"],
        "least energy of eight": min(_eight(found)),
        "greatest energy of eight": max(_eight(found)),
        "order of networks by energy": ", ".join(name for name, _ in itertools.groupby(groups)),
    }


def _falling(values: dict[str, float]) -> list[str]:
    return sorted(values, key=values.__getitem__, reverse=True)


# ---- Figures 9 and 10: 256 points around HyPar's choices


def lenet_space(array: Array) -> dict[str, float]:
    """Speed-up of Lenet-c by the choices of all layers at H1 and at H4."""
    base = hypar("lenet-c")
    found = {}
    for h1, h4 in itertools.product(itertools.product((DP, MP), repeat=4), repeat=2):
        point = {name: (h1[i], *base[name][1:3], h4[i]) for i, name in enumerate(base)}
        found[columns_text({"H1": h1, "H4": h4})] = speed_up("lenet-c", point, array)
    return found


def vgg_space(array: Array, counting: Counting = PRINTED) -> dict[str, float]:
    """Speed-up of VGG-A by the choices at all levels of conv5_2 and of fc1."""
    net = NETS["vgg-a"]
    base, one = greedy(net, LEVELS, counting), array.seconds(net, data_parallelism(net, LEVELS), counting)
    found = {}
    for a, b in itertools.product(range(2**LEVELS), repeat=2):
        changed = {"conv5_2": column(a, LEVELS), "fc1": column(b, LEVELS)}
        found[columns_text(changed)] = one / array.seconds(net, {**base, **changed}, counting)
    return found


def peaks(space: dict[str, float]) -> str:
    """Where a space is highest: all points there that are alike."""
    most = max(space.values())
    return " or ".join(point for point, ratio in space.items() if math.isclose(ratio, most, rel_tol=1e-9))


def _spaces() -> dict[str, Value]:
    vgg = vgg_space(ARRAY)
    return {
        "lenet-c peak at H1 H4": peaks(lenet_space(ARRAY)),
        "vgg-a peak at conv5_2 fc1": peaks(vgg),
        "vgg-a speed-up at conv5_2 fc1 1000 1111": vgg["1000 1111"],
    }


# ---- Figure 8


def gigabytes(net: Net, choices: Choices, counting: Counting = PRINTED) -> float:
    """A step."""
    return BYTES * total(net, choices, counting) / 1e9


def _totals() -> dict[str, Value]:
    models = {name: gigabytes(net, model(name)) for name, net in NETS.items()}
    hypars = {name: gigabytes(net, hypar(name)) for name, net in NETS.items()}
    return {
        "sfc GB": hypars["sfc"],
        "sfc model parallelism GB": models["sfc"],
        "mean GB": mean(list(hypars.values())),
        "mean model parallelism GB": mean(list(models.values())),
    }


# ---- Figure 11


def scaling(array: Array) -> list[tuple[int, float, float]]:
    """(accelerators, gain of data parallelism over one, gain of HyPar) for VGG-A."""
    net = NETS["vgg-a"]
    # on one nothing is exchanged, whatever is chosen
    alone = Array(array.accelerator, _alone, array.overlapped).seconds(net, data_parallelism(net, 0), PRINTED)
    found = [(1, 1.0, 1.0)]
    for levels in range(1, 7):
        both = data_parallelism(net, levels), greedy(net, levels, PRINTED)
        data, best = (alone / array.seconds(net, choices, PRINTED) for choices in both)
        found.append((2**levels, data, best))
    return found


def _alone(levels: int) -> HTree:
    return HTree(levels)


def _scaling() -> dict[str, Value]:
    points = scaling(ARRAY)
    return {
        "accelerators of the fastest data parallelism": float(max(points, key=lambda point: point[1])[0]),
        "accelerators of the fastest hypar": float(max(points, key=lambda point: point[2])[0]),
    }


# ---- Figure 12


@cache
def on_torus(layout: Layout, overlapped: bool = False) -> dict[str, float]:
    """Network -> speed of HyPar's choices on the torus over data parallelism on the H-tree."""
    base = replace(ARRAY, overlapped=overlapped)
    torus = replace(base, topology=TORI[layout])
    return {name: speed_up(name, hypar(name), torus, base) for name in NETS}


def _torus() -> dict[str, Value]:
    torus = on_torus(Layout.HALVES)
    tree = {name: speed_up(name, hypar(name)) for name in NETS}
    faster = [name for name in NETS if torus[name] >= tree[name]]
    return {
        "mean torus speed-up": mean(list(torus.values())),
        "sfc beyond 10 on both": "yes" if min(torus["sfc"], tree["sfc"]) > 10 else "no",
        "networks that the torus makes as fast": ", ".join(faster) or "none",
    }


# ---- Figure 13


@cache
def trick() -> dict[str, tuple[float, float]]:
    """HyPar's speed and saving over the trick's for fc3 and conv5 of VGG-E, each alone, by batch and levels."""
    found = {}
    layers = published("vgg-e").by_name
    for name, batch, levels in itertools.product(("conv5_1", "fc3"), (32, 4096), (2, 3, 4)):
        net = Net(name, (replace(layers[name], inputs=()),))
        counting = Counting(batch, SECTION_3_4)
        both = weird_trick(net, levels), greedy(net, levels, counting)
        other, best = (ARRAY.seconds(net, choices, counting) for choices in both)
        more, less = (spent(net, choices, counting) for choices in both)
        found[f"{name} b{batch} h{levels}"] = other / best, more / less
    return found


def _trick() -> dict[str, Value]:
    speeds, savings = (list(values) for values in zip(*trick().values(), strict=True))
    return {
        "mean over the trick": mean(speeds),
        "most over the trick": max(speeds),
        "mean energy over the trick": mean(savings),
    }


# ---- what is printed


def main() -> None:
    """Print all tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print_table(HEADS, [row.cells for row in rows()])
    for head, heads, cells in tables():
        print(f"\n{head}:\n")
        print_table(heads, cells)
    print(f"\nall ten networks, greedy and exact: {search_seconds():.2f} CPU s")


def tables() -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """(what it shows, heads, cells) of all but the first."""
    yield (
        "Choices at batch 256 on 16 accelerators (Figure 5), and GB a step",
        ("network", "layers by choices H1…H4", "greedy GB", "exact GB", "dp GB", "mp GB"),
        list(_networks()),
    )
    yield (
        "Speed over data parallelism (Figure 6)",
        ("network", *(f"{who} {way}" for way in WAYS for who in ("mp", "HyPar"))),
        list(_speeds()),
    )
    yield (
        "Speed of HyPar by processing units of an accelerator (Figure 6)",
        (
            "units",
            *(f"{what} {way}" for way in WAYS for what in ("mean", "least", "sfc", "lenet-c", "alexnet", "vgg-a")),
        ),
        list(_by_units()),
    )
    yield (
        "Energy of data parallelism over others' (Figure 7)",
        ("network", "dp J", "HyPar J", "mp", "HyPar", *OTHER_PRICES),
        list(_savings()),
    )
    yield (
        "Where Figures 9 and 10 are highest",
        ("network", "convention", "links", "way", "units", "peak at", "there", "HyPar's", "1000 1111"),
        list(_highest()),
    )
    yield "Totals of SFC (Figure 8), all conventions", ("convention", "mp GB", "HyPar GB"), list(_conventions())
    yield (
        "VGG-A on 1 to 64 accelerators (Figure 11)",
        ("accelerators", *(f"{who} {links} {way}" for links in Links for way in WAYS for who in ("dp", "HyPar"))),
        list(_scales()),
    )
    yield (
        "Speed of HyPar over data parallelism on the H-tree (Figure 12)",
        ("network", *(f"{where} {way}" for way in WAYS for where in ("H-tree", *(f"torus {name}" for name in Layout)))),
        list(_topologies()),
    )
    yield (
        "Over the trick (Figure 13)",
        ("point", "speed", "energy"),
        list(_tricks()),
    )


def search_seconds() -> float:
    """CPU seconds of both searches of all ten networks."""
    begun = time.process_time()
    for net in NETS.values():
        greedy(net, LEVELS, PRINTED)
        exact(net, LEVELS, PRINTED)
    return time.process_time() - begun


def _networks() -> Iterator[tuple[str, ...]]:
    for name, net in NETS.items():
        kinds: dict[str, list[str]] = {}
        for layer, chosen in hypar(name).items():
            kinds.setdefault("".join(map(str, chosen)), []).append(layer)
        told = ", ".join(f"{chosen} {_span(layers)}" for chosen, layers in kinds.items())
        choices = hypar(name), exact(net, LEVELS, PRINTED), data_parallelism(net, LEVELS), model(name)
        yield name, told, *(f"{gigabytes(net, chosen):.4g}" for chosen in choices)


def _span(layers: Sequence[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]}…{layers[-1]}"


def _with_mean(found: dict[str, list[float]]) -> Iterator[tuple[str, ...]]:
    for name, ratios in found.items():
        yield name, *(f"{ratio:.3g}" for ratio in ratios)
    yield "geometric mean", *(f"{mean(list(ratios)):.3g}" for ratios in zip(*found.values(), strict=True))


def _speeds() -> Iterator[tuple[str, ...]]:
    arrays = [replace(ARRAY, overlapped=overlapped) for overlapped in WAYS.values()]
    yield from _with_mean(
        {
            name: [speed_up(name, choices, array) for array in arrays for choices in (model(name), hypar(name))]
            for name in NETS
        }
    )


def _by_units() -> Iterator[tuple[str, ...]]:
    for units in UNITS:
        cells: list[float] = []
        for overlapped in WAYS.values():
            array = replace(ARRAY, accelerator=Accelerator(units), overlapped=overlapped)
            found = {name: speed_up(name, hypar(name), array) for name in NETS}
            named = (found[name] for name in ("sfc", "lenet-c", "alexnet", "vgg-a"))
            cells += [mean(list(found.values())), min(_eight(found)), *named]
        yield str(units), *(f"{cell:.3g}" for cell in cells)


def _savings() -> Iterator[tuple[str, ...]]:
    found = {}
    for name in NETS:
        others = [saving(name, hypar(name), prices) for prices in OTHER_PRICES.values()]
        found[name] = [saving(name, model(name)), saving(name, hypar(name)), *others]
    for (name, *cells), net in itertools.zip_longest(_with_mean(found), NETS.values()):
        both = (data_parallelism(net, LEVELS), hypar(name)) if net else ()
        yield name, *([f"{spent(net, choices):.3g}" for choices in both] or ["", ""]), *cells


def _highest() -> Iterator[tuple[str, ...]]:
    cases = [(links, way, 12) for links, way in itertools.product(Links, WAYS)]
    for links, way, units in [*cases, (Links.FAT, "overlapped", 9)]:
        array = Array(Accelerator(units), TREES[links], WAYS[way])
        space = lenet_space(array)
        at = peaks(space)
        told = (f"{ratio:.3f}" for ratio in (max(space.values()), space["0011 0011"]))
        yield "lenet-c", str(SECTION_3_4), links, way, str(units), at, *told, ""
        for name, convention in NAMED.items():
            space = vgg_space(array, Counting(BATCH, convention))
            told = (f"{ratio:.3f}" for ratio in (max(space.values()), space["0001 1111"], space["1000 1111"]))
            yield "vgg-a", name, links, way, str(units), peaks(space), *told


def _scales() -> Iterator[tuple[str, ...]]:
    points = [
        scaling(Array(topology=TREES[links], overlapped=overlapped))
        for links, overlapped in itertools.product(Links, WAYS.values())
    ]
    for row in zip(*points, strict=True):
        yield str(row[0][0]), *(f"{gain:.2f}" for _, *both in row for gain in both)


def _topologies() -> Iterator[tuple[str, ...]]:
    found: dict[str, list[float]] = {name: [] for name in NETS}
    for overlapped in WAYS.values():
        tree = {name: speed_up(name, hypar(name), replace(ARRAY, overlapped=overlapped)) for name in NETS}
        for ratios in (tree, *(on_torus(layout, overlapped) for layout in Layout)):
            for name, ratio in ratios.items():
                found[name].append(ratio)
    yield from _with_mean(found)


def _tricks() -> Iterator[tuple[str, ...]]:
    points = trick()
    unlike = [point for point in points.values() if point != (1.0, 1.0)]
    means = {"mean of all": list(points.values()), "mean where choices differ": unlike}
    for name, (speed, less) in points.items():
        yield name, f"{speed:.2f}", f"{less:.2f}"
    for name, of in means.items():
        yield name, *(f"{mean(list(ratios)):.2f}" for ratios in zip(*of, strict=True))


def _conventions() -> Iterator[tuple[str, ...]]:
    net = NETS["sfc"]
    for convention in EVERY:
        counting = Counting(BATCH, convention)
        both = model("sfc"), greedy(net, LEVELS, counting)
        yield ",".join(convention.switches), *(f"{gigabytes(net, choices, counting):.3f}" for choices in both)


if __name__ == "__main__":
    main()
