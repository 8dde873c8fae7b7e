"""INCEPTIONN's published numbers beside ours (paper, ours, quotient, verdict), and what its codec does to gradients.

    python benchmarks/inceptionn.py                      # the table, and the model of exchange (Figure 15)
    python benchmarks/inceptionn.py bound [--strided]    # greatest error over all float32 below 1, some CPU minutes
    python benchmarks/inceptionn.py shares [--epochs 2]  # of 2, 10, 18 and 34 bits while the digits network learns

What the paper prints stands in benchmarks/papers/inceptionn.toml, with the sentence.
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks import collectives, hdc
from benchmarks.beside_paper import HEADS, PAPERS, Row, Value, print_table, rows_of
from dagtrain.graph.executor import Executor, Mode
from dagtrain.passes.autodiff import differentiate
from dagtrain.training.feeds import feeds_of
from dagtrain.training.sources import load_digits
from examples.models.published import NETWORKS
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.collective import Collective
from hdl.engine.codec.float_codec import EXPONENT_BIAS, MANTISSA_BITS, FloatCodec, Kind, Tag, mean_bits
from hdl.layers.wiring.update import Update
from hdl.recipe import Recipe
from importers.onnx import NormMode, import_model

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
BOUNDS = (10, 8, 6)
WORKERS = 4
# of communication with both its algorithm and its codec (Figure 12, in words)
LESS_COMMUNICATION = 0.807
# of the paper's network; from "almost" linear or constant on
LINK_GBPS, NEARLY = 10.0, 0.25
LITERAL = Kind.LITERAL.value
MIB = 1 << 20


def tables() -> dict[str, Any]:
    """What the paper prints."""
    return tomllib.loads((PAPERS / "inceptionn.toml").read_text())


def rows() -> list[Row]:
    """All published numbers beside ours."""
    return rows_of("inceptionn", measures())


def measures() -> dict[str, Value]:
    """Measure -> ours."""
    return {**_ratios(), **_steps(), **_simulated(), **_learnt(), **_sizes(), **_engine()}


def ratio(shares: dict[Tag, float]) -> float:
    """Of compression, where each tag has a share of all float32 elements."""
    return 32 / mean_bits(shares)


def _ratios() -> dict[str, Value]:
    found: dict[int, list[float]] = {bits: [] for bits in BOUNDS}
    zeros = []
    for row in tables()["shares"]:
        shares = {tag: share / 100 for tag, share in zip(Tag, row["bits_2_10_18_34"], strict=True)}
        found[row["bound_bits"]].append(ratio(shares))
        if row["bound_bits"] == BOUNDS[0]:
            zeros.append(100 * shares[Tag.ZERO])
    return {
        "least ratio at 2^-10": min(found[10]),
        "greatest ratio at 2^-10": max(found[10]),
        "greatest ratio": max(max(ratios) for ratios in found.values()),
        "least 2-bit share at 2^-10": min(zeros),
    }


def _steps() -> dict[str, Value]:
    totals = {row["measure"]: row["paper"] for row in tables()["row"]}
    found: dict[str, Value] = {}
    for row in tables()["steps"]:
        net, total, communicating = row["net"], totals[f"{row['net']} s"], row["communicate"]
        found[f"{net} s"] = sum(seconds for step, seconds in row.items() if step != "net")
        found[f"{net} communication %"] = 100 * communicating / total
        found[f"{net} less time %"] = 100 * (1 - 1 / WORKERS) * (communicating + row["sum"]) / total
        found[f"{net} less communication %"] = 100 * (1 - ring_words(WORKERS) / central_words(WORKERS))
        found[f"{net} speed-up"] = total / (total - LESS_COMMUNICATION * communicating)
    return found


def central_words(workers: int) -> float:
    """Words that follow one another for each word of the model: gradients to one aggregator, weights back by a tree
    (8.4, the term in beta)."""
    return workers + math.log2(workers)


def ring_words(workers: int) -> float:
    """The same where workers pass blocks round a ring."""
    return 2 * (workers - 1) / workers


def _simulated() -> dict[str, Value]:
    """Figures 12 and 15, from what `benchmarks.collectives` has simulated over links of 10 Gb/s."""
    taken = {
        (Collective(point.collective), point.workers, point.coded): point.simulated
        for point in collectives.known()
        if point.link_gbps == LINK_GBPS
    }
    central, ring = (taken[way, WORKERS, False] for way in (Collective.CENTRAL, Collective.RING))
    coded_central, coded_ring = (taken[way, WORKERS, True] for way in (Collective.CENTRAL, Collective.RING))
    grown = {
        way: taken[way, 2 * WORKERS, False] / taken[way, WORKERS, False]
        for way in (Collective.CENTRAL, Collective.RING)
    }
    return {
        "WA+C less communication than WA %": 100 * (1 - coded_central / central),
        "INC+C less communication than WA %": 100 * (1 - coded_ring / central),
        "INC+C less communication than INC %": 100 * (1 - coded_ring / ring),
        "WA's time with workers": _growth(grown[Collective.CENTRAL]),
        "INC's time with workers": _growth(grown[Collective.RING]),
    }


def _growth(twice: float) -> str:
    """Of what takes so many times as long with twice the workers."""
    if abs(twice - 2) <= NEARLY:
        return "almost linear"
    return "almost constant" if abs(twice - 1) <= NEARLY else f"{twice:.2f} times with twice the workers"


def _learnt() -> dict[str, Value]:
    """Figures 4, 13 and 14 and the row HDC of Table III, from what `benchmarks.hdc` has trained."""
    found = hdc.known()
    base = hdc.mean_last(found, hdc.NONE)
    lost = {form: base - hdc.mean_last(found, form) for form in hdc.forms()}
    most = max(hdc.TRUNCATIONS)
    zeros = {
        bits: float(np.mean([one.shares[0] for one in hdc.of_form(found, f"{LITERAL}:{bits}")])) for bits in BOUNDS
    }
    more = hdc.epochs_more(found, f"{LITERAL}:{BOUNDS[0]}")
    loosest = lost[f"{LITERAL}:{BOUNDS[-1]}"]
    return {
        "truncation that harms HDC more": "of w" if lost[f"w:{most}"] > lost[f"g:{most}"] else "of g",
        "greatest ratio of truncation": max(hdc.ratio(found, f"g:{bits}") for bits in hdc.TRUNCATIONS),
        "HDC more epochs at 2^-10": "at most 2" if more <= 2 else f"{more:.1f}",
        "HDC points lost at 2^-6": "below 2" if loosest < 2 else f"{loosest:.1f}",
        "HDC 2-bit share grows with the bound": str(
            sorted(BOUNDS, key=zeros.__getitem__) == sorted(BOUNDS, reverse=True)
        ),
        **{f"HDC 2-bit share at 2^-{bits} %": zeros[bits] for bits in BOUNDS},
    }


def _sizes() -> dict[str, Value]:
    names = {"AlexNet": "alexnet", "ResNet-50": "resnet50", "VGG-16": "vgg16"}
    hidden = 500
    dense = [(28 * 28, hidden), *[(hidden, hidden)] * 3, (hidden, 10)]
    return {
        **{f"{net} MiB": 4 * NETWORKS[name].parameters / MIB for net, name in names.items()},
        "HDC MiB": 4 * sum(made * (given + 1) for given, made in dense) / MIB,
    }


def _engine() -> dict[str, Value]:
    """Of the bursts that `hdl.engine.codec` makes of the paper's codec in the paper's words."""
    bursts = Bursts(codec=FloatCodec(BOUNDS[0], Kind.LITERAL), elements=1, lanes=8)
    longest = bursts.most_granules * bursts.granule
    # from the beginning of a word to the end of the longest burst that begins in it, at its last granule
    reach = bursts.burst_bits - bursts.granule + longest
    return {
        "least bits of a burst": float(bursts.tag_bits),
        "greatest bits of a burst": float(longest),
        "bits of words that a burst needs": float(-(-reach // bursts.burst_bits) * bursts.burst_bits),
    }


@dataclass(frozen=True)
class Scan:
    """Of a codec over float32 elements from 0 to below 1."""

    inputs: int
    # in bounds
    worst: float
    # elements whose error is not below the bound
    reaching: int
    # elements that are not below the bound, and become 0
    vanished: int

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        return f"{self.inputs:,}", f"{self.worst:.8f}", f"{self.reaching:,}", f"{self.vanished:,}"


def scan(codec: FloatCodec, stride: int = 1) -> Scan:
    """Every ``stride``-th of the 127 * 2^23 elements; signs make no difference (tested apart)."""
    inputs, worst, reaching, vanished = 0, 0.0, 0, 0
    for exponent in range(EXPONENT_BIAS):
        words = np.arange(exponent << MANTISSA_BITS, (exponent + 1) << MANTISSA_BITS, stride, dtype=np.uint32)
        tags, codes = codec.encode(words)
        back = codec.decode(tags, codes).view(np.float32)
        errors = np.abs(words.view(np.float32).astype(np.float64) - back)
        inputs += words.size
        worst = max(worst, float(errors.max()) * 2.0**codec.bound_bits)
        reaching += int((errors >= 2.0**-codec.bound_bits).sum())
        vanished += int(((back == 0) & (tags != Tag.ZERO)).sum())
    return Scan(inputs, worst, reaching, vanished)


def shares(epochs: int) -> Iterator[tuple[str, ...]]:
    """Of each codec, over all gradients of the digits network, in float32, while it learns."""
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    graph = differentiate(import_model(DIGITS / "digits.onnx", norm=NormMode.NONE, recipe=recipe))
    sums = {node.inputs["g"] for node in graph.nodes if isinstance(node.layer, Update)}
    data, executor = load_digits(), Executor(graph, Mode.SINGLE)
    codecs = [FloatCodec(bits, kind) for kind in Kind for bits in BOUNDS]
    counts: dict[FloatCodec, Counter[int]] = {codec: Counter() for codec in codecs}

    def count(edge: str, array: Any) -> None:
        if edge in sums:
            # sums over a batch become means, as the update has them
            words = (np.ravel(array) / recipe.batch).astype(np.float32).view(np.uint32)
            for codec in codecs:
                counts[codec].update(codec.encode(words)[0].tolist())

    for index in data.batches(recipe.batch, epochs, 0):
        executor.step(feeds_of(graph, data, index), count)
    for codec in codecs:
        all_of = sum(counts[codec].values())
        found = {tag: counts[codec][tag] / all_of for tag in Tag}
        told = (f"{100 * found[tag]:.1f}" for tag in Tag)
        yield codec.kind.value, f"2^-{codec.bound_bits}", *told, f"{ratio(found):.2f}"


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("table", "bound", "shares"), default="table")
    parser.add_argument("--strided", action="store_true", help="every 1009th element alone")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if options.what == "bound":
        stride = 1009 if options.strided else 1
        print_table(("codec", "bound", "inputs", "worst error, bounds", "reach the bound", "not below it, yet 0"), [
            (codec.kind.value, f"2^-{codec.bound_bits}", *scan(codec, stride).cells)
            for codec in (FloatCodec(bits, kind) for kind in Kind for bits in BOUNDS)
        ])  # fmt: skip
    elif options.what == "shares":
        print_table(
            ("codec", "bound", *(f"{2 + tag.code_bits} bits %" for tag in Tag), "ratio"), list(shares(options.epochs))
        )
    else:
        print_table(HEADS, [row.cells for row in rows()])
        print("\nWords in a row for each word of the model, in those of four workers and an aggregator (Figure 15):\n")
        one = central_words(WORKERS)
        print_table(("workers", "aggregator", "ring"), [
            (str(p), f"{central_words(p) / one:.3f}", f"{ring_words(p) / one:.3f}") for p in (4, 6, 8)
        ])  # fmt: skip


if __name__ == "__main__":
    main()
