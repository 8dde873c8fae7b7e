"""How long engines are at each strip, where their ports hold them up: what is declared is what their Verilog takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hdl.engine.window.pace import even_shares, word_beats
from hdl.errors import FoldingError, ShapeError
from hdl.layers.conv.dense import ConvError
from hdl.layers.conv.depthwise import DepthwiseConvError
from hdl.layers.folding import divisors
from hdl.layers.pool.average_pool import AveragePoolError
from hdl.layers.pool.max_pool import MaxPool, MaxPoolError
from hdl.layers.registry import load_layers
from hdl.layers.windowed import Windowed
from hdl.simulate import Backend
from hdl.tensor import Tile
from tests.layer_support import design_of, frame_ends, make_case, seeds, simulate

FRAMES, MOST_CYCLES = 14, 4000
STRIDES = ((2, 2), (2, 1), (1, 2), (3, 3))
KERNELS = ((3, 3), (1, 1), (3, 1), (5, 3))


def measured(layer: Any, seed: int) -> float:
    """Cycles a frame, in steady state, of the port that doesn't run ahead."""
    batches = 4
    if hasattr(layer, "recipe"):
        layer, batches = dataclasses.replace(layer, recipe=dataclasses.replace(layer.recipe, batch=FRAMES)), 1
    case = make_case(layer, batches, seed)
    result = simulate(case, design_of(case), Backend.VERILATOR, 0.0, seed)
    ports = [port for port in (*layer.sources, *layer.sinks) if not port.tensor.kind.per_batch]
    found = []
    for port in ports:
        ends = frame_ends(result, port)
        first, last = len(ends) // 2, len(ends) - 2
        found.append((ends[last] - ends[first]) / (last - first))
    return max(found)


def naive(layer: Windowed) -> int:
    """Cycles of its work and of its ports, as if a queue without end lay between them."""
    return max(layer.walk.cycles, layer.walk.words, *(port.beats for port in layer.frame_ports))


def uneven(seed: int) -> Any:
    """An error engine some of whose strips take longer to leave than to make, and others longer to make."""
    rng = np.random.default_rng(seed)
    for _ in range(10_000):
        channels = int(rng.choice((8, 12, 16, 32)))
        width = int(rng.integers(24, 64))
        kernel, stride = KERNELS[rng.integers(len(KERNELS))], STRIDES[rng.integers(len(STRIDES))]
        fields: dict[str, Any] = {
            "height": int(rng.integers(2, 5)), "width": width, "channels": channels, "kernel": kernel,
            "stride": stride, "padding": tuple(int(rng.integers(0, kernel[side % 2])) for side in range(4)),
            "dx_lanes": int(rng.choice(divisors(channels))),
        }  # fmt: skip
        lanes = int(rng.choice(divisors(channels)))
        kind: Any = (MaxPoolError, AveragePoolError, ConvError, DepthwiseConvError)[rng.integers(4)]
        try:
            if kind is ConvError:
                # tiles that divide and ragged ones, dense and in groups, with and without dilation
                tile, dilation = Tile(int(rng.choice((1, 2, 4, 5, 8))), lanes, 1), (int(rng.integers(1, 3)), 1)
                groups = int(rng.choice((1, 1, 2)))
                layer: Any = ConvError(**fields, filters=8, tile=tile, e_lanes=8, groups=groups, dilation=dilation)
            elif kind is DepthwiseConvError:
                layer = DepthwiseConvError(**fields, tile=Tile(lanes, 1, 1), e_lanes=channels)
            else:
                layer = kind(**fields, engine_lanes=lanes, e_lanes=channels)
        except (ShapeError, FoldingError):
            continue
        if layer.walk.passes == 1 and naive(layer) < layer.cycles_per_frame <= MOST_CYCLES:
            return layer
    raise AssertionError(f"no engine of seed {seed}")


@pytest.mark.parametrize("seed", seeds(24))
def test_engines_of_unlike_strips_take_exactly_the_declared_cycles(seed: int) -> None:
    layer = uneven(seed)
    assert measured(layer, seed) == layer.cycles_per_frame, (seed, naive(layer), layer)


def test_unlike_strips_take_a_tenth_longer_than_their_work_and_their_beats() -> None:
    fields: dict[str, Any] = {"height": 4, "width": 32, "channels": 32, "kernel": (3, 3), "stride": (2, 2)}
    pool = MaxPoolError(**fields, padding=(1, 1, 1, 1), engine_lanes=2, e_lanes=1, dx_lanes=1)
    assert naive(pool) == 4608
    assert measured(pool, 1) == pool.cycles_per_frame == 5020


def test_few_rows_that_leave_slowly_are_worth_more_rows_of_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part by rows: results leave slower than they are made, so the row of the next frame finds room later."""
    pool = MaxPoolError(
        height=3, width=27, channels=32, kernel=(3, 3), stride=(2, 2), padding=(2, 0, 2, 0), engine_lanes=4,
        e_lanes=1, dx_lanes=1,
    )  # fmt: skip
    assert max(pool.walk.strip_cycles) < min(pool.strip_cycles)
    assert pool.ring_rows("e") == 4
    assert measured(pool, 1) == pool.cycles_per_frame == 3 * 27 * 32
    # as many as strips that last as long as their work want, and one fewer than there are
    assert pool.walk.ring_rows(pool.port("e").beats // 3, pool.cycles_per_frame, tuple(pool.walk.strip_cycles)) == 2
    for rows, cycles in ((2, 3314), (3, 2898)):
        monkeypatch.setattr(MaxPoolError, "ring_rows", lambda *_, rows=rows: rows)
        assert measured(pool, 1) == cycles


def test_results_that_leave_as_fast_as_they_come_cost_nothing() -> None:
    fields: dict[str, Any] = {"height": 8, "width": 8, "channels": 8, "kernel": (2, 2), "stride": (2, 2)}
    pool = MaxPool(**fields, engine_lanes=8, x_lanes=8, y_lanes=8)
    assert pool.strip_cycles == tuple(pool.walk.strip_cycles)


@pytest.mark.parametrize("seed", seeds(12))
def test_folding_gives_results_as_many_lanes_as_unlike_strips_need(seed: int) -> None:
    layer = uneven(seed)
    least = layer.walk.cycles if hasattr(layer, "tile") else naive(layer)
    tile = (layer.tile,) if hasattr(layer, "tile") else ()
    folded = layer.fold(least, *tile)
    assert folded.cycles_per_frame <= least < layer.cycles_per_frame
    assert measured(folded, seed) == folded.cycles_per_frame, (seed, folded)


def test_words_leave_in_whole_beats() -> None:
    assert word_beats(16, 8, 2) == (4, 4)
    assert word_beats(16, 4, 8) == (1, 1, 1, 1)
    # three elements a word, two a beat; a last word of two elements
    assert word_beats(12, 3, 2) == (2, 1, 2, 1)
    assert word_beats(8, 3, 1) == (3, 3, 2)
    assert even_shares(10, 4) == [2, 3, 2, 3]


def test_strips_of_like_work_take_no_longer_than_that_and_what_passes_after_one_another() -> None:
    """By which layers with time to spare are folded without a look at their strips."""
    found = [layer for kind in load_layers().values() for layer in kind.examples() if isinstance(layer, Windowed)]
    likely = [layer for layer in found if layer.walk.phases == 1]
    assert len(likely) > 10
    for layer in likely:
        passing = sum(layer.port(name).beats for name in layer.words_along)
        assert sum(layer.strip_cycles) <= layer.walk.cycles + passing, layer
