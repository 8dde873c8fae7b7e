"""Training of copies that exchange coded gradients, as benchmarks/exchange.py does it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exchange import Exchanging, Form
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.replicate import replicate
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import Emulator
from dagtrain.training.feeds import synthetic_feeds
from hdl.engine.codec.collective import Collective
from hdl.recipe import Recipe

BATCH, COPIES = 6, 3


@pytest.fixture(scope="module")
def graph() -> Graph:
    build = GraphBuilder("net", Recipe(batch=BATCH, learning_rate=0.1), seed=5)
    x = build.relu(build.conv(build.input(4, 4, 1), 3, 3, padding=1))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    calibrated = calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(2)])
    return replicate(calibrated, {"*": COPIES})


@pytest.fixture(scope="module")
def data() -> Dataset:
    draw = np.random.default_rng(7)
    return Dataset(draw.normal(size=(4 * BATCH, 1, 4, 4)), draw.integers(0, 3, 4 * BATCH))


def weights(graph: Graph, data: Dataset, form: Form | None) -> bytes:
    emulator = Exchanging(graph, form) if form else Emulator(graph)
    emulator.train_epoch(data, 1, 0)
    return b"".join(np.ascontiguousarray(array).tobytes() for _, array in sorted(emulator.executor.weights.items()))


@pytest.mark.parametrize("collective", Collective)
def test_a_codec_that_drops_nothing_changes_nothing(graph: Graph, data: Dataset, collective: Collective) -> None:
    alone = weights(graph, data, Form(COPIES, collective=collective))
    assert weights(graph, data, Form(COPIES, 15, collective=collective)) == alone
    assert weights(graph, data, Form(COPIES, 15, feedback=True, collective=collective)) == alone


def test_gradients_that_are_coded_are_what_is_learnt_from(graph: Graph, data: Dataset) -> None:
    forms = [None, Form(COPIES), Form(COPIES, 6), Form(COPIES, 6, feedback=True)]
    assert len({weights(graph, data, form) for form in forms}) == len(forms)
