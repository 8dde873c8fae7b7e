"""Convolution of narrow codes in 32-bit sums, beside the definition in 64 bits."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hdl.fixed import Fixed, IntArray, requantise
from hdl.layers.conv import narrow
from hdl.layers.conv.correlate import correlate, correlate_error, correlate_gradient
from hdl.layers.conv.dense import Conv, ConvGradient
from hdl.layers.conv.pair_sums import MOST_PAIRS
from hdl.layers.window import Window

HERE = Path(__file__).parent
LOW, HIGH = -(1 << 15), (1 << 15) - 1
# a code whose low part is the most negative one; its high part is 1
LOWEST_PART = 128
WINDOWS = (
    Window((3, 3), (1, 1), (1, 1, 1, 1), height=5, width=4),
    Window((3, 2), (2, 3), (1, 0, 2, 1), (1, 2), height=7, width=6),
    Window((1, 1), (3, 2), height=4, width=5),
)


def agree(window: Window, x: IntArray, w: IntArray, e: IntArray, shift: int) -> None:
    """All three products."""
    sizes, target, fraction_bits = w.shape[:2], Fixed(16, 3), shift + 3
    # of some frames the weights of the batch before
    versions = [(slice(0, len(x) // 3), w[::-1, ::-1]), (slice(len(x) // 3, None), w)]
    for transposed, maps, define in ((False, x, correlate), (True, e, correlate_error)):
        found = narrow.Correlation(window, *sizes, shift, target, transposed)(maps, versions)
        sums = np.concatenate([define(window, maps[frames], weights) for frames, weights in versions])
        assert np.array_equal(found, requantise(sums, fraction_bits, target))
    assert np.array_equal(narrow.gradient(window, x, e), correlate_gradient(window, x, e))


@pytest.mark.parametrize("chunk_bytes", [narrow.CHUNK_BYTES, 1])
def test_any_window_on_any_map(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "CHUNK_BYTES", chunk_bytes)
    seed = int(np.random.default_rng().integers(1 << 32))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    done = 0
    while done < 20:
        kernel, stride, dilation, size = (tuple(map(int, rng.integers(1, most, 2))) for most in (5, 4, 3, 12))
        padding = tuple(map(int, rng.integers(0, 4, 4)))
        window = Window(kernel, stride, padding, dilation, height=size[0], width=size[1])
        if min(window.output) < 1:
            continue
        frames, channels, filters = map(int, rng.integers(1, (20, 20, 40)))
        shapes = (frames, *size, channels), (filters, channels, *kernel), (frames, *window.output, filters)
        x, w, e = (rng.integers(LOW, HIGH + 1, shape) for shape in shapes)
        agree(window, x, w, e, int(rng.integers(-2, 30)))
        done += 1


@pytest.mark.parametrize("code", [LOW, LOWEST_PART, LOW + LOWEST_PART, HIGH])
@pytest.mark.parametrize("width", [2 * MOST_PAIRS, 2 * MOST_PAIRS + 3])
def test_the_largest_sums_fit_32_bits_for_as_long_as_they_stay_there(code: int, width: int) -> None:
    # of as many channels, filters and columns as are summed in 32 bits, and some more
    window = Window((1, 1), height=1, width=1)
    codes = np.full(width, LOW)
    row, factors = codes.reshape(1, 1, 1, -1), np.full(width, code)
    agree(window, row, factors.reshape(1, -1, 1, 1), np.full((1, 1, 1, 1), code), 30)
    agree(window, np.full((1, 1, 1, 1), LOW), factors.reshape(-1, 1, 1, 1), row, 30)
    along = Window((1, 1), height=1, width=width)
    one = np.full((1, 1, 1, 1), code)
    agree(along, codes.reshape(1, 1, -1, 1), one, factors.reshape(1, 1, -1, 1), 30)


def test_only_formats_of_16_bits_or_fewer_are_narrow() -> None:
    assert narrow.is_narrow(Fixed(16, 3), Fixed(15, 3, signed=False))
    assert not narrow.is_narrow(Fixed(16, 3), Fixed(16, 3, signed=False))
    assert not narrow.is_narrow(Fixed(17, 3))
    # wider ones are still exact
    shape = {"height": 2, "width": 3, "channels": 2, "filters": 3, "kernel": (2, 2), "x_fixed": Fixed(17, 0)}
    x = np.full((1, 2, 3, 2), 1 << 15)
    conv = Conv(**shape, w_fixed=Fixed(16, 0), y_fixed=Fixed(32, 0))
    assert np.unique(conv.codes(x, [(slice(0, None), np.ones(conv.weight_shape, np.int64))])).tolist() == [8 << 15]
    e = np.ones((1, *conv.output_shape), np.int64)
    assert np.unique(ConvGradient(**shape).sums(x, e)).tolist() == [2 << 15]


def test_a_kernel_a_channel_is_what_its_definition_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(np.random.default_rng().integers(1 << 32))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    extremes, several_pieces = np.array([LOW, LOW, HIGH]), 2 * MOST_PAIRS + 3
    for window in WINDOWS:
        for channels, chunk_bytes in ((1, narrow.CHUNK_BYTES), (7, 1), (several_pieces, 1 << 16)):
            monkeypatch.setattr(narrow, "CHUNK_BYTES", chunk_bytes)
            x = rng.choice(extremes, (2, window.height, window.width, channels))
            e = rng.choice(extremes, (2, *window.output, channels))
            w = rng.choice(extremes, (2, channels, 1, *window.kernel))
            versions, shift, target = [(slice(0, 1), w[0]), (slice(1, None), w[1])], 7, Fixed(16, 3)
            patches = [window.patches(x[frames]) for frames, _ in versions]
            by_tap = [part.reshape(channels, -1).T for part in w]
            forward = [np.einsum("fhwtc,tc->fhwc", *pair) for pair in zip(patches, by_tap, strict=True)]
            back = [window.scatter(e[part][:, :, :, None] * t) for (part, _), t in zip(versions, by_tap, strict=True)]
            for transposed, maps, sums in ((False, x, forward), (True, e, back)):
                made = narrow.ChannelCorrelation(window, 1, channels, shift, target, transposed)(maps, versions)
                assert np.array_equal(made, requantise(np.concatenate(sums), shift + 3, target))
            wanted = np.einsum("fhwtc,fhwc->ct", window.patches(x), e)
            assert np.array_equal(narrow.channel_gradient(window, x, e).reshape(channels, -1), wanted)


@pytest.mark.slow
def test_a_processor_with_shorter_vectors_has_the_same_bits(tmp_path: Path) -> None:
    """All of the above compiled for one without AVX-512, in a cache of its own."""
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    asked = [sys.executable, "-c", "from hdl.layers.conv import pair_sums; print(pair_sums.ROWS, pair_sums.LANES)"]
    tile = subprocess.run(asked, env=environment, cwd=HERE.parent, check=True, capture_output=True, text=True)
    assert tile.stdout.split() == ["6", "8"]
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", __file__]
    subprocess.run(tests, env=environment, cwd=HERE.parent, check=True)
