"""Random bits: statistics, golden rounding, and the circuits against both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.random import HASH_LATENCY, ROUNDING_LATENCY, hash32_pipeline, round_stochastically, stream_indices
from hdl.errors import FoldingError
from hdl.fixed import Fixed
from hdl.layers.beats import pack, unpack
from hdl.random_bits import (
    hash32,
    high_half,
    low_half,
    requantise_stochastically,
    stable_id,
    stochastic_round_shift,
    tensor_key,
)
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.stream import Stream
from hdl.tensor import EMPTY, Tile

KEY = tensor_key(1, stable_id("conv1.weight"))
BACKENDS = [Backend.MYHDL, Backend.VERILATOR]
WORD32 = Fixed(32, 0, signed=False)


# ------------------------------------------------------------------------------------------ statistics


def test_the_hash_is_a_fixed_function_of_index_step_and_key() -> None:
    assert [int(word) for word in hash32([0, 1, 2**32 - 1], 5, KEY)] == [
        int(hash32([i], 5, KEY)[0]) for i in (0, 1, -1)
    ]
    assert int(hash32([3], 7, 9)[0]) == 2971875188
    assert stable_id("conv1.weight") == 3410522421


@pytest.mark.parametrize("key", [0, KEY, tensor_key(2, 0)])
def test_every_bit_of_the_hash_is_balanced(key: int) -> None:
    words = hash32(np.arange(1 << 16), 3, key)
    shares = np.array([((words >> np.uint32(bit)) & 1).mean() for bit in range(32)])
    # four standard deviations of a fair coin thrown 65 536 times, with 32 coins
    assert np.abs(shares - 0.5).max() < 4.5 * 0.5 / 256, shares


@pytest.mark.parametrize("key", [0, KEY, tensor_key(2, 0)])
@pytest.mark.parametrize("half", [high_half, low_half])
def test_neighbouring_elements_steps_and_the_two_halves_are_uncorrelated(key: int, half: Any) -> None:
    index = np.arange(1 << 16)
    here = half(hash32(index, 3, key)) - 32767.5
    others = {
        "next element": np.roll(here, 1),
        "four on": np.roll(here, 4),
        "a row on": np.roll(here, 9),
        "next step": half(hash32(index, 4, key)) - 32767.5,
        "other tensor": half(hash32(index, 3, key + 1)) - 32767.5,
        "other half": (low_half if half is high_half else high_half)(hash32(index, 3, key)) - 32767.5,
    }
    for name, other in others.items():
        assert abs(np.corrcoef(here, other)[0, 1]) < 4.5 / 256, name
    over_steps = np.array([float(half(hash32([17], step, key))[0]) for step in range(4096)])
    assert abs(np.corrcoef(over_steps[:-1], over_steps[1:])[0, 1]) < 4.5 / 64


def test_flipping_one_input_bit_flips_each_output_bit_with_probability_one_half() -> None:
    rng = np.random.default_rng(4)
    index, step = rng.integers(0, 1 << 20, 4000), rng.integers(0, 1 << 12, 4000)
    base = hash32(index, step, KEY)
    for bit in range(20):
        for changed in (hash32(index ^ (1 << bit), step, KEY), hash32(index, step ^ (1 << min(bit, 12)), KEY)):
            flips = np.array([(((changed ^ base) >> np.uint32(at)) & 1).mean() for at in range(32)])
            assert np.abs(flips - 0.5).max() < 0.05, (bit, flips)


# -------------------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize("shift", [1, 5, 15, 16, 17, 20])
def test_stochastic_rounding_is_unbiased_and_never_off_by_a_step(shift: int) -> None:
    code = int(2**shift * 3.3) - 2 ** (shift + 2)
    noise = np.arange(1 << 16, dtype=np.int64)
    rounded = stochastic_round_shift(np.full(1 << 16, code, np.int64), shift, noise)
    exact = code / 2**shift
    assert set(np.unique(rounded)) <= {int(np.floor(exact)), int(np.ceil(exact))}
    assert abs(rounded.mean() - exact) <= 2.0**-16


def test_stochastic_rounding_by_no_or_a_negative_shift_is_exact() -> None:
    codes = np.array([-5, 0, 7], np.int64)
    noise = np.full(3, 65535, np.int64)
    assert stochastic_round_shift(codes, 0, noise).tolist() == [-5, 0, 7]
    assert stochastic_round_shift(codes, -3, noise).tolist() == [-40, 0, 56]


# -------------------------------------------------------------------------------------------- circuits


@block
def pipeline_control(domain: ClockReset, x: Any, y: Any, enable: Any, latency: int) -> Any:
    """Valid bits beside a pipeline with ``enable``."""
    valid = Signal(intbv(0)[latency + 1 :])

    @always_comb
    def drive() -> None:
        y.valid.next = valid[latency - 1]
        enable.next = y.ready or not valid[latency - 1]
        x.ready.next = y.ready or not valid[latency - 1]

    @always(domain.clk.posedge)
    def shift() -> None:
        if domain.rst:
            valid.next = 0
        elif enable:
            valid.next[latency:1] = valid[latency - 1 :]
            valid.next[0] = x.valid

    return drive, shift


@block
def hash_stream(domain: ClockReset, x: Any, y: Any, key: int) -> Any:
    """`hash32_pipeline` between streams: payload is the step above the indices."""
    enable = Signal(bool(0))
    index = Signal(intbv(0)[len(x.payload) - 32 :])
    step = Signal(intbv(0)[32:])
    top, bottom = len(x.payload), len(x.payload) - 32
    control = pipeline_control(domain, x, y, enable, HASH_LATENCY)
    pipeline = hash32_pipeline(domain.clk, enable, index, step, key, y.payload)

    @always_comb
    def split() -> None:
        index.next = x.payload[bottom:]
        step.next = x.payload[top:bottom]

    return control, pipeline, split


@block
def rounding_stream(domain: ClockReset, x: Any, y: Any, lanes: int, width: int, shift: int, target: Fixed) -> Any:
    """`round_stochastically` between streams: payload is the random bits above the codes."""
    enable = Signal(bool(0))
    codes = Signal(intbv(0)[lanes * width :])
    random = Signal(intbv(0)[lanes * 16 :])
    top, bottom = lanes * (width + 16), lanes * width
    control = pipeline_control(domain, x, y, enable, ROUNDING_LATENCY)
    pipeline = round_stochastically(
        domain.clk, enable, codes, random, y.payload, lanes=lanes, shift=shift, target=target
    )

    @always_comb
    def split() -> None:
        codes.next = x.payload[bottom:]
        random.next = x.payload[top:bottom]

    return control, pipeline, split


@block
def index_stream(domain: ClockReset, y: Any, shape: tuple[int, ...], tile: Tile, lanes: int) -> Any:
    """`stream_indices` as a stream."""
    advance = Signal(bool(0))
    live = Signal(bool(0))
    indices = stream_indices(domain, advance, y.payload, shape=shape, tile=tile, lanes=lanes)

    @always(domain.clk.posedge)
    def start() -> None:
        live.next = not domain.rst

    @always_comb
    def drive() -> None:
        y.valid.next = live
        advance.next = live and y.ready

    return indices, start, drive


def run_pair(backend: Backend, name: str, circuit: Any, x_width: int, y_width: int, beats: list[int]) -> list[int]:
    """Beats through a circuit with streams x and y under random stalls."""

    def factory(_images: Any) -> Any:
        domain = ClockReset()
        return circuit(domain, Stream(x_width), Stream(y_width))

    ports = (StreamPort("x", x_width, Direction.IN), StreamPort("y", y_width, Direction.OUT))
    run = run_streams(
        backend, Design(name, factory, ports), {"x": beats}, {"y": len(beats)}, seed=5, stall_probability=0.3
    )
    return run.outputs["y"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_hash_circuit_equals_the_golden_hash(backend: Backend, lanes: int) -> None:
    rng = np.random.default_rng(6)
    index, step = rng.integers(0, 1 << 32, (60, lanes)), rng.integers(0, 1 << 32, 60)
    index[:2], step[:2] = 0, 0
    beats = [low | (int(count) << (32 * lanes)) for low, count in zip(pack(index, 32, lanes), step, strict=True)]
    out = run_pair(
        backend, f"hash_{lanes}", lambda *ports: hash_stream(*ports, KEY), 32 * lanes + 32, 32 * lanes, beats
    )
    expected = np.stack([hash32(row, int(count), KEY) for row, count in zip(index, step, strict=True)])
    assert unpack(out, WORD32, lanes).reshape(-1, lanes).tolist() == expected.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("lanes", "width", "shift", "target"),
    [
        (1, 40, 11, Fixed(16, 8)),
        (3, 40, 20, Fixed(16, 8)),
        (2, 20, 16, Fixed(16, 8)),
        (2, 20, 0, Fixed(16, 8)),
        (1, 12, -2, Fixed(16, 8)),
        (1, 12, -6, Fixed(16, 8)),
        (2, 24, 10, Fixed(8, 0, signed=False)),
        (1, 60, 28, Fixed(32, 0)),
    ],
)
def test_the_rounding_circuit_equals_the_golden_rounding(
    backend: Backend, lanes: int, width: int, shift: int, target: Fixed
) -> None:
    rng = np.random.default_rng(7)
    source = Fixed(width, 0)
    codes = rng.integers(source.low, source.high + 1, (80, lanes))
    codes[::3] >>= max(0, width - target.width - max(shift, 0) + 2)
    codes[0], codes[1] = source.low, source.high
    noise = rng.integers(0, 1 << 16, (80, lanes))
    noise[:2] = 65535
    pairs = zip(pack(codes, width, lanes), pack(noise, 16, lanes), strict=True)
    out = run_pair(
        backend,
        f"rounding_{lanes}_{width}_{abs(shift)}_{shift > 0}_{target.width}",
        lambda *ports: rounding_stream(*ports, lanes, width, shift, target),
        lanes * (width + 16),
        lanes * target.width,
        [low | (high << (lanes * width)) for low, high in pairs],
    )
    expected = requantise_stochastically(codes, target.fraction_bits + shift, target, noise)
    assert unpack(out, target, lanes).reshape(-1, lanes).tolist() == expected.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "tile", "lanes"),
    [
        ((4, 6, 3, 3), Tile(2, 3, 3), 6),
        ((4, 6, 3, 3), Tile(2, 3, 9), 54),
        ((4, 6, 1, 1), Tile(4, 2, 1), 1),
        ((2, 2, 3, 3), Tile(), 1),
        ((2, 1, 3, 3), Tile(2, 1, 3), 2),
        # more beats a tile than a gate has inputs for
        ((8, 10, 1, 1), Tile(8, 10, 1), 1),
        ((16, 18, 3, 3), Tile(8, 9, 3), 3),
        # ragged ones
        ((5, 4, 1, 1), Tile(2, 3), 2),
        ((5, 7, 1, 3), Tile(3, 4, 3), 9),
        ((12,), Tile(), 4),
        ((1,), Tile(), 1),
    ],
)
def test_the_index_circuit_follows_the_tile_order_and_starts_anew(
    backend: Backend, shape: tuple[int, ...], tile: Tile, lanes: int
) -> None:
    def factory(_images: Any) -> Any:
        return index_stream(ClockReset(), Stream(32 * lanes), shape, tile, lanes)

    order = np.arange(int(np.prod(shape))) if len(shape) == 1 else tile.order(shape)
    beats = len(order) // lanes
    name = f"index_{'x'.join(map(str, shape))}_{tile.size}_{lanes}"
    design = Design(name, factory, (StreamPort("y", 32 * lanes, Direction.OUT),))
    run = run_streams(backend, design, {}, {"y": 2 * beats + 1}, seed=8, stall_probability=0.3, drain_cycles=0)
    expected = np.concatenate([order, order, order[:lanes]])
    found = unpack(run.outputs["y"], WORD32, lanes)[: len(expected)]
    # that of an empty place is any number
    assert found[expected != EMPTY].tolist() == expected[expected != EMPTY].tolist()


def test_lanes_that_do_not_divide_a_tile_are_refused() -> None:
    with pytest.raises(FoldingError, match=r"4 lanes of weights or gradients do not divide a tile of 6 "):
        stream_indices(
            ClockReset(),
            Signal(bool(0)),
            Signal(intbv(0)[128:]),
            shape=(4, 6, 3, 3),
            tile=Tile(2, 3, 1),
            lanes=4,
        )
