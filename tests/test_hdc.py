"""What stands behind `benchmarks/hdc.py` and `benchmarks/collectives.py`: its codec, its gradients, its ring."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from benchmarks import collectives, hdc
from benchmarks.hdc import BOUNDS, HIDDEN, Exchange, Learnt, Network, Singles, kept_bits, truncated
from dagtrain.flow.import_step import load_recipe
from hdl.engine.codec.collective import Collective
from hdl.engine.codec.float_codec import FloatCodec, Kind
from tests.import_support import ROOT

CODECS = [FloatCodec(bits, kind) for kind in Kind for bits in BOUNDS]


def drawn(count: int) -> Singles:
    """Of all magnitudes, with zeros, ones, halves, subnormal numbers and the extremes among them."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    some = draw.normal(size=count) * np.exp2(draw.uniform(-40, 3, count))
    ends = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0**-10, 2.0**-6, 1e-40, 3e38, -3e38, np.inf, -np.inf]
    return np.concatenate([some, ends]).astype(np.float32)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_is_left_of_an_element_is_what_the_codec_decodes(codec: FloatCodec) -> None:
    elements = drawn(20_000)
    words = elements.view(np.uint32)
    tags, codes = codec.encode(words)
    exchange = Exchange(f"{codec.kind.value}:{codec.bound_bits}")
    sent = exchange.sent(elements)
    assert np.array_equal(sent.view(np.uint32) << 1, codec.decode(tags, codes) << 1)  # -0 is 0
    assert exchange.counts == Counter({tag: int(count) for tag, count in enumerate(np.bincount(tags, minlength=4))})
    assert kept_bits(codec).dtype == np.uint32


def test_truncated_bits_are_zero_and_the_others_stay() -> None:
    assert truncated(np.float32([1 + 2**-7, -1 - 2**-6, 1.5]), 17).tolist() == [1, -1 - 2**-6, 1.5]
    assert truncated(np.float32([1.5]), 24).view(np.uint32).tolist() == [0x3F000000]


def test_gradients_are_slopes_of_the_loss() -> None:
    draw = np.random.default_rng(3)
    network = Network(20, 4, seed=3)
    frames, labels = draw.normal(size=(6, 20)).astype(np.float32), draw.integers(0, 4, 6)

    def loss() -> float:
        scores = network.forward(frames)[-1].astype(np.float64)
        scores -= scores.max(1, keepdims=True)
        return float(np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(6), labels]))

    gradient = network.gradient(frames, labels)
    start = network.vector.copy()
    # along itself, and along each layer alone, of which any may be wrong
    for first, end in zip(network.ends, network.ends[1:], strict=False):
        way = np.zeros_like(gradient)
        way[first:end] = gradient[first:end] / np.linalg.norm(gradient[first:end])
        found = []
        for step in (1e-2, -1e-2):
            network.vector = start + np.float32(step) * way
            found.append(loss())
        assert (found[0] - found[1]) / 2e-2 == pytest.approx(float(gradient @ way), rel=0.02)


@pytest.mark.parametrize("workers", [2, 4, 5])
def test_a_ring_gives_the_mean_but_for_what_hops_lose(workers: int) -> None:
    gradients = [np.float32(1e-2) * drawn(1_003)[:1_003].clip(-1, 1) for _ in range(workers)]
    mean = np.mean([gradient.astype(np.float64) for gradient in gradients], axis=0)
    assert np.abs(Exchange("none").total(gradients) - mean).max() < 1e-7
    for bits in BOUNDS:
        off = np.abs(Exchange(f"bounded:{bits}").total(gradients) - mean).max()
        # a bound a hop, and the mean is over as many
        assert 2.0 ** -(bits + 4) < off < 2.0**-bits


def test_hops_of_two_workers_by_hand() -> None:
    """The second block begins with the second worker, whose small element loses its last bit before it is added."""
    one, two = np.float32([2**-4] * 2), np.float32([2**-4 + 2**-11] * 2)
    assert Exchange("bounded:10").total([one, two]).tolist() == [2**-4 + 2**-12, 2**-4]
    one, two = np.float32([0.75, 0.75]), np.float32([0.125, 0.125])
    assert Exchange("g:24").total([one, two]).tolist() == [0.25, 0.25]


def test_epochs_count_until_the_accuracy_of_float32_is_near() -> None:
    found = [Learnt("none", 1, (80.0, 90.0, 91.0)), Learnt("literal:10", 1, (70.0, 80.0, 90.0))]
    assert hdc.epochs_more(found, "literal:10") == 1.0  # 3 + 1 never came to 90.5, of 3
    assert hdc.ratio(found, "g:16") == 2.0
    assert hdc.ratio(found, "g:22") == 2.0
    assert hdc.ratio(found, "g:24") == 4.0


def test_recipes_are_those_of_the_paper() -> None:
    recipe = load_recipe(ROOT / "examples" / "recipes" / "inceptionn-hdc.toml")
    assert recipe.batch == hdc.WORKERS * hdc.FRAMES
    assert np.float32(recipe.learning_rate) == hdc.RATE
    assert np.float32(recipe.momentum) == hdc.MOMENTUM
    assert recipe.weight_decay == hdc.DECAY
    assert HIDDEN == 500
    others = sorted((ROOT / "examples" / "recipes").glob("inceptionn-*.toml"))
    assert [load_recipe(path).batch for path in others] == [256, 100, 64, 256]


@pytest.mark.parametrize("collective", [Collective.RING, Collective.CENTRAL])
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_an_exchange_takes_as_long_as_words_over_the_busiest_port(collective: Collective, workers: int) -> None:
    point = collectives.exchanged(collective, workers, 10.0, coded=False, layers=workers)
    assert point.simulated == pytest.approx(point.words, rel=0.03)


def test_coding_gains_a_ring_what_it_says_and_an_aggregator_nothing() -> None:
    ring, central = (
        collectives.exchanged(way, 2, 10.0, coded=True, layers=2) for way in (Collective.RING, Collective.CENTRAL)
    )
    assert ring.simulated == pytest.approx(2 * 100 / collectives.RATIO_PERCENT * 0.5, rel=0.1)
    assert central.simulated == pytest.approx(2.0, rel=0.05)
