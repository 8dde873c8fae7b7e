"""What is compiled for the emulator's sake beside its definition in NumPy (norms: tests/test_norm_kernel.py)."""

from __future__ import annotations

import copy
import itertools
import os
import threading

import numpy as np
import pytest

from hdl.fixed import Fixed, requantise, round_shift
from hdl.layers.window import Window
from hdl.layers.wiring.update import Update
from hdl.random_bits import (
    hash32,
    high_half,
    requantise_by_element,
    requantise_stochastically,
    stochastic_round_shift,
)
from hdl.recipe import Recipe, Schedule
from hdl.threads import LEAST_ELEMENTS, in_ranges, mapped

FORMATS = (Fixed(16, 8), Fixed(5, -2), Fixed(8, 8, signed=False))
SEED = 20261122


def codes(rng: np.random.Generator, bits: int, shape: tuple[int, ...] = (3, 5, 7)) -> np.ndarray:
    """Random, with 0, ±1, halves of a step and both ends among them."""
    found = rng.integers(-(1 << bits), 1 << bits, shape)
    ends = np.array([0, 1, -1, 128, -128, 384, -384, 127, -129, -(1 << bits), (1 << bits) - 1])
    found.reshape(-1)[: len(ends)] = ends
    return found


@pytest.mark.parametrize("target", FORMATS, ids=str)
@pytest.mark.parametrize("fraction_bits", [-4, 0, 7, 8, 9, 16, 30])
def test_rounding_to_nearest_is_that_of_numpy(target: Fixed, fraction_bits: int) -> None:
    rng = np.random.default_rng(SEED)
    for bits in (4, 12, 40):
        given = codes(rng, bits)
        wanted = target.saturate(round_shift(given, fraction_bits - target.fraction_bits))
        for array in (given, given.astype(np.float64), np.asfortranarray(given), given[::-1, ::2][::-1]):
            want = wanted if array.shape == given.shape else wanted[:, ::2]
            np.testing.assert_array_equal(requantise(array, fraction_bits, target), want)


@pytest.mark.parametrize("target", FORMATS, ids=str)
@pytest.mark.parametrize("fraction_bits", [0, 8, 9, 20, 30])
def test_stochastic_rounding_is_that_of_numpy(target: Fixed, fraction_bits: int) -> None:
    rng = np.random.default_rng(SEED)
    given = codes(rng, 40)
    random16 = rng.integers(0, 1 << 16, given.shape)
    random16.reshape(-1)[:4] = [0, 65535, 0, 65535]
    wanted = target.saturate(stochastic_round_shift(given, fraction_bits - target.fraction_bits, random16))
    np.testing.assert_array_equal(requantise_stochastically(given, fraction_bits, target, random16), wanted)


@pytest.mark.parametrize("fraction_bits", [0, 8, 9, 20, 30])
def test_rounding_by_element_draws_the_word_of_each_element(fraction_bits: int) -> None:
    rng = np.random.default_rng(SEED)
    for shape in ((3, 5, 7), (2, LEAST_ELEMENTS + 3)):
        given, target = codes(rng, 40, shape), Fixed(16, 8)
        random = high_half(hash32(np.arange(given.size).reshape(shape), 11, 0xABC))
        wanted = requantise_stochastically(given, fraction_bits, target, random)
        for array in (given, given.astype(np.float64)):
            found = requantise_by_element(array, fraction_bits, target, 11, 0xABC)
            np.testing.assert_array_equal(found, wanted)


RECIPES = [
    Recipe(batch=4, momentum=0.9, weight_decay=1e-3, learning_rate=0.5),
    Recipe(batch=4, momentum=0.0, weight_decay=0.0, learning_rate=8.0, nesterov=False, clip=0.5),
    Recipe(batch=3, momentum=0.75, weight_decay=0.01, nesterov=True),
    Recipe(batch=4, schedule=Schedule.COSINE, period=6, warm_up=2, nesterov=True),
]


@pytest.mark.parametrize("shape", [(7,), (2, 3, 2, 2), (300, 500)], ids=str)
@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_an_update_is_what_its_definition_says(number: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng([SEED, number])
    layer = Update(shape=shape, recipe=RECIPES[number], tensor_id=5)
    state = layer.start({"w": rng.normal(size=shape)})
    defined = copy.deepcopy(state)
    for batch in range(4):
        gradient = layer.g_fixed.saturate(codes(rng, 16, (max(11, *shape), *shape))[0])
        gradient.reshape(-1)[:5] = [0, 1, -1, layer.g_fixed.low, layer.g_fixed.high]
        found, wanted = layer.golden(state, {"g": gradient}), layer.definition(defined, {"g": gradient})
        np.testing.assert_array_equal(found["w"], wanted["w"], err_msg=f"weights after batch {batch}")
        for name in ("master", "momentum", "batch"):
            np.testing.assert_array_equal(state[name], defined[name], err_msg=f"{name} after batch {batch}")


def test_ranges_make_up_the_whole_in_several_threads_where_it_is_large() -> None:
    for count, weight in ((0, 1), (1, 1 << 30), (5, 1), (3 * LEAST_ELEMENTS + 1, 1), (7, LEAST_ELEMENTS)):
        touched, threads = np.zeros(count, np.int64), set()

        def work(first: int, end: int, touched: np.ndarray = touched, threads: set[int] = threads) -> None:
            touched[first:end] += 1
            threads.add(threading.get_ident())

        in_ranges(work, count, weight)
        assert (touched == 1).all()
        small = count < 2 or count * weight < 2 * LEAST_ELEMENTS or len(os.sched_getaffinity(0)) < 2
        own = {threading.get_ident()}
        assert threads <= own if small else threads > own


def test_results_of_parts_come_in_their_order_and_their_errors_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # whatever cores there are
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert list(mapped(lambda part: part * 2, range(9))) == list(range(0, 18, 2))
    for failing in (0, 1):
        with pytest.raises(ZeroDivisionError):
            in_ranges(lambda first, end, failing=failing: end // (first - failing), 2, LEAST_ELEMENTS)


WINDOWS = [
    Window((3, 2), (1, 1), (1, 0, 1, 1), height=5, width=4),
    Window((2, 3), (2, 3), (0, 2, 1, 0), height=6, width=7),
    Window((1, 1), height=4, width=4),
    Window((3, 3), (1, 2), (2, 1, 2, 1), (2, 1), height=7, width=6),
    Window((2, 3), (1, 1), (-1, 2, 1, -2), height=6, width=7),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_patches_are_what_every_output_pixel_sees(window: Window) -> None:
    maps = codes(np.random.default_rng(SEED), 10, (2, window.height, window.width, 3))
    for dtype in (np.dtype(np.int64), np.dtype(np.float64)):
        found = window.patches(maps, dtype)
        assert found.dtype == dtype
        assert found.shape == (2, *window.output, window.taps, 3)
        for row, column, tap in itertools.product(*map(range, (*window.output, window.taps))):
            y = row * window.stride[0] - window.padding[0] + tap // window.kernel[1] * window.dilation[0]
            x = column * window.stride[1] - window.padding[1] + tap % window.kernel[1] * window.dilation[1]
            inside = 0 <= y < window.height and 0 <= x < window.width
            np.testing.assert_array_equal(found[:, row, column, tap], maps[:, y, x] if inside else 0)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_scatter_is_the_transpose_of_patches(window: Window) -> None:
    rng = np.random.default_rng(SEED)
    maps = codes(rng, 10, (2, window.height, window.width, 3))
    weights = codes(rng, 10, (2, *window.output, window.taps, 3))
    assert (window.patches(maps) * weights).sum() == (maps * window.scatter(weights)).sum()
    assert window.scatter(weights.astype(np.float64)).dtype == np.float64
