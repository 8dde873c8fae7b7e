"""HyPar's published numbers beside ours: paper, ours, quotient, verdict; then tables of what has no number in its text.

python benchmarks/hypar.py

What the paper prints stands in benchmarks/papers/hypar.toml, with the sentence; conventions and the model of time are
those of docs/hypar.md.  It takes seconds.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.beside_paper import HEADS, Row, Value, print_table, rows_of
from placement.hypar.communication import BYTES, DP, MP, Above, Choices, Counting, column, total
from placement.hypar.convention import EVERY, SECTION_3_4
from placement.hypar.network import Layer, Net
from placement.hypar.published import PUBLISHED, published
from placement.hypar.search import data_parallelism, exact, greedy, model_parallelism, weird_trick
from placement.hypar.step_time import Array, Links

BATCH, LEVELS = 256, 4
PRINTED = Counting(BATCH, SECTION_3_4)
ARRAY = Array()
NETS = {name: network.net for name, network in PUBLISHED.items()}
EXTREME = ("sfc", "sconv")


def rows() -> list[Row]:
    """All published numbers beside ours."""
    return rows_of("hypar", measures())


def measures() -> dict[str, Value]:
    """Measure -> ours."""
    return {**_section_3_4(), **_choices(), **_speed_ups(), **_spaces(), **_totals(), **_scaling(), **_trick()}


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
    vgg = greedy(NETS["vgg-a"], LEVELS, PRINTED)
    return {
        **{f"{name} choices": columns_text(greedy(NETS[name], LEVELS, PRINTED)) for name in EXTREME},
        "vgg-a conv5_2 fc1": columns_text({name: vgg[name] for name in ("conv5_2", "fc1")}),
    }


def speed_up(net: Net, choices: Choices, counting: Counting = PRINTED, array: Array = ARRAY) -> float:
    """Over data parallelism."""
    levels = len(next(iter(choices.values())))
    return array.seconds(net, data_parallelism(net, levels), counting) / array.seconds(net, choices, counting)


def mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _speed_ups() -> dict[str, Value]:
    found = {name: speed_up(net, greedy(net, LEVELS, PRINTED)) for name, net in NETS.items()}
    eight = [ratio for name, ratio in found.items() if name not in EXTREME]
    return {
        **{f"{name} speed-up": ratio for name, ratio in found.items()},
        "mean speed-up": mean(list(found.values())),
        "sfc model parallelism speed-up": speed_up(NETS["sfc"], model_parallelism(NETS["sfc"], LEVELS)),
        "least speed-up of eight": min(eight),
        "greatest speed-up of eight": max(eight),
    }


def _spaces() -> dict[str, Value]:
    """Figures 9 and 10: 256 points around HyPar's choices."""
    lenet, vgg = NETS["lenet-c"], NETS["vgg-a"]
    base = greedy(lenet, LEVELS, PRINTED)
    by_level = {}
    for h1, h4 in itertools.product(itertools.product((DP, MP), repeat=4), repeat=2):
        point = {name: (h1[i], *base[name][1:3], h4[i]) for i, name in enumerate(base)}
        by_level[columns_text({"H1": h1, "H4": h4})] = speed_up(lenet, point)
    base = greedy(vgg, LEVELS, PRINTED)
    by_layer = {}
    for a, b in itertools.product(range(2**LEVELS), repeat=2):
        changed = {"conv5_2": column(a, LEVELS), "fc1": column(b, LEVELS)}
        by_layer[columns_text(changed)] = speed_up(vgg, {**base, **changed})
    return {
        "lenet-c peak at H1 H4": max(by_level, key=by_level.__getitem__),
        "vgg-a peak at conv5_2 fc1": max(by_layer, key=by_layer.__getitem__),
        "vgg-a speed-up at conv5_2 fc1 1000 1111": by_layer["1000 1111"],
    }


def gigabytes(net: Net, choices: Choices, counting: Counting = PRINTED) -> float:
    """A step."""
    return BYTES * total(net, choices, counting) / 1e9


def _totals() -> dict[str, Value]:
    model = {name: gigabytes(net, model_parallelism(net, LEVELS)) for name, net in NETS.items()}
    hypar = {name: gigabytes(net, greedy(net, LEVELS, PRINTED)) for name, net in NETS.items()}
    return {
        "sfc GB": hypar["sfc"],
        "sfc model parallelism GB": model["sfc"],
        "mean GB": mean(list(hypar.values())),
        "mean model parallelism GB": mean(list(model.values())),
    }


def scaling(array: Array) -> list[tuple[int, float, float]]:
    """Figure 11: (accelerators, gain of data parallelism over one, gain of HyPar) for VGG-A."""
    net = NETS["vgg-a"]
    one = array.computing_seconds(net, BATCH, 0)
    found = [(1, 1.0, 1.0)]
    for levels in range(1, 7):
        both = data_parallelism(net, levels), greedy(net, levels, PRINTED)
        data, hypar = (one / array.seconds(net, choices, PRINTED) for choices in both)
        found.append((2**levels, data, hypar))
    return found


def _scaling() -> dict[str, Value]:
    points = scaling(ARRAY)
    return {
        "accelerators of the fastest data parallelism": float(max(points, key=lambda point: point[1])[0]),
        "accelerators of the fastest hypar": float(max(points, key=lambda point: point[2])[0]),
    }


def trick() -> dict[str, float]:
    """Figure 13: HyPar's speed over the trick's for fc3 and conv5 of VGG-E, each alone, by batch and levels."""
    found = {}
    layers = published("vgg-e").by_name
    for name, batch, levels in itertools.product(("conv5_1", "fc3"), (32, 4096), (2, 3, 4)):
        net = Net(name, (Layer(**{**vars(layers[name]), "inputs": ()}),))
        counting = Counting(batch, SECTION_3_4)
        printed, other = greedy(net, levels, counting), weird_trick(net, levels)
        ratio = ARRAY.seconds(net, other, counting) / ARRAY.seconds(net, printed, counting)
        found[f"{name} b{batch} h{levels}"] = ratio
    return found


def _trick() -> dict[str, Value]:
    found = list(trick().values())
    return {"mean over the trick": mean(found), "most over the trick": max(found)}


def main() -> None:
    """Print all tables."""
    print_table(HEADS, [row.cells for row in rows()])
    print("\nChoices at batch 256 on 16 accelerators (Figure 5), GB a step and speed-up over data parallelism:\n")
    print_table(
        ("network", "layers by choices H1…H4", "greedy GB", "exact GB", "dp GB", "mp GB", "speed-up"), list(_networks())
    )
    print("\nTotals of SFC (Figure 8), all conventions:\n")
    print_table(("convention", "mp GB", "HyPar GB"), list(_conventions()))
    for links in Links:
        print(f"\nVGG-A on 1 to 64 accelerators (Figure 11), {links} links:\n")
        points = scaling(Array(links=links))
        print_table(
            ("accelerators", "dp", "HyPar"), [(str(n), f"{data:.2f}", f"{best:.2f}") for n, data, best in points]
        )
    print("\nSpeed over the trick (Figure 13):\n")
    print_table(("point", "ratio"), [(name, f"{ratio:.2f}") for name, ratio in trick().items()])
    print(f"\nall ten networks, greedy and exact: {search_seconds():.2f} CPU s")


def search_seconds() -> float:
    """CPU seconds of both searches of all ten networks."""
    begun = time.process_time()
    for net in NETS.values():
        greedy(net, LEVELS, PRINTED)
        exact(net, LEVELS, PRINTED)
    return time.process_time() - begun


def _networks() -> Iterator[tuple[str, ...]]:
    for name, net in NETS.items():
        printed = greedy(net, LEVELS, PRINTED)
        kinds: dict[str, list[str]] = {}
        for layer, chosen in printed.items():
            kinds.setdefault("".join(map(str, chosen)), []).append(layer)
        told = ", ".join(f"{chosen} {_span(layers)}" for chosen, layers in kinds.items())
        amounts = [
            gigabytes(net, choices)
            for choices in (
                printed, exact(net, LEVELS, PRINTED), data_parallelism(net, LEVELS), model_parallelism(net, LEVELS),
            )
        ]  # fmt: skip
        yield name, told, *(f"{amount:.4g}" for amount in amounts), f"{speed_up(net, printed):.2f}"


def _span(layers: Sequence[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]}…{layers[-1]}"


def _conventions() -> Iterator[tuple[str, ...]]:
    net = NETS["sfc"]
    for convention in EVERY:
        counting = Counting(BATCH, convention)
        both = model_parallelism(net, LEVELS), greedy(net, LEVELS, counting)
        yield ",".join(convention.switches), *(f"{gigabytes(net, choices, counting):.3f}" for choices in both)


if __name__ == "__main__":
    main()
