"""Convolution: golden models against plain loops, derivatives, folding, and the circuits' bits and cycles."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from dagtrain.graph.builder import GraphBuilder
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.fold import fold_graph
from hdl.costs.resources import count
from hdl.engine.window.convolution import RESULTS
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import from_beats, pack, to_beats
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.conv.engine import MOST_PARKED_BITS
from hdl.layers.conv.gemm import gemm
from hdl.layers.folding import divisors, lanes_for, weight_lanes
from hdl.layers.storage import Home
from hdl.memory import BLOCK_WORDS
from hdl.recipe import Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, Run, StreamPort, run_streams
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.tensor import Tile, in_order
from tests.conv_support import chooser
from tests.layer_support import elaborate, seeds

ENGINES = (Conv, ConvError, ConvGradient)
# of random layers, with words of a block memory: those of parts, and one, so that all memories have several blocks
SEEDS = [*((seed, BLOCK_WORDS) for seed in range(3)), (0, 1), (1, 1)]


def plain_conv(layer: Any, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One frame by definition, pixel by pixel."""
    top, left, bottom, right = layer.padding
    padded = np.pad(x, ((top, bottom), (left, right), (0, 0)))
    (kh, kw), (sh, sw), (dh, dw) = layer.kernel, layer.stride, layer.dilation
    y = np.zeros(layer.output_shape, x.dtype)
    for row, column in np.ndindex(*layer.output_shape[:2]):
        patch = padded[row * sh :: dh, column * sw :: dw][:kh, :kw]
        patches = patch.reshape(kh, kw, layer.groups, -1)
        kernels = w.reshape(layer.groups, -1, *w.shape[1:])
        y[row, column] = np.einsum("hwgc,gmchw->gm", patches, kernels).reshape(-1)
    return y


def random_engine(engine: type[Layer], seed: int) -> Any:
    """A small engine of any shape, tile, lanes, formats and recipe."""
    rng = np.random.default_rng(seed)
    pick = chooser(rng)
    while True:
        kernel = (int(rng.integers(1, 5)), int(rng.integers(1, 4)))
        batch = int(rng.integers(2, 5))
        fields: dict[str, Any] = {
            "height": int(rng.integers(1, 7)),
            "width": int(rng.integers(1, 7)),
            "channels": pick((1, 2, 3, 4, 6)),
            "filters": pick((1, 2, 3, 4, 6)),
            "kernel": kernel,
            "stride": (int(rng.integers(1, 4)), int(rng.integers(1, 4))),
            "padding": tuple(int(rng.integers(0, kernel[axis % 2] + 1)) for axis in range(4)),
            "recipe": Recipe(batch=batch, staleness=int(rng.integers(0, batch + 1)), seed=seed),
        }
        try:
            layer: Any = engine(**fields)
        except ShapeError:
            continue
        tiles = tuple(layer.tiles(10**6))
        tile = pick(tiles)
        lanes = {"w_lanes": pick(divisors(tile.size))}
        formats = {}
        for port in (*layer.sinks, *layer.sources):
            if not port.tensor.kind.per_batch:
                lanes[f"{port.name}_lanes"] = pick(divisors(port.tensor.shape[-1]))
            signed = port.name not in ("x", "y") or rng.random() < 0.7
            formats[f"{port.name}_fixed"] = Fixed(int(rng.integers(4, 19)), int(rng.integers(2, 12)), signed)
        return dataclasses.replace(layer, tile=tile, **lanes, **formats)


def simulate(layer: Any, batches: int, seed: int, stall: float, backend: Backend = Backend.MYHDL) -> Run:
    """Runs a circuit for whole batches; every bit must equal the golden model's."""
    rng = np.random.default_rng(seed)
    batch = layer.recipe.batch
    inputs = {
        port.name: layer.sample(port.name, rng, batches if port.tensor.kind.per_batch else batches * batch)
        for port in layer.sinks
    }
    state = layer.start({"w": layer.w_fixed.decode(inputs["w"][0])} if "w" in inputs else {})
    contents = layer.images(state)
    images = {memory.name: contents[memory.name] for memory in layer.memories()}
    found: dict[str, list[np.ndarray]] = {port.name: [] for port in layer.sources}
    for number in range(batches):
        given = {
            name: codes[number] if layer.port(name).tensor.kind.per_batch else codes[number * batch :][:batch]
            for name, codes in inputs.items()
        }
        for name, codes in layer.golden(state, given).items():
            found[name].append(codes[None] if layer.port(name).tensor.kind.per_batch else codes)
    beats = {name: to_beats(layer, name, codes) for name, codes in inputs.items()}
    if "w" in beats and layer.streamed:
        versions = [layer.recipe.version(frame) for frame in range(batches * batch)]
        beats["w"] = to_beats(layer, "w", inputs["w"][versions])
    elif "w" in beats:
        beats["w"] = beats["w"][layer.port("w").beats :]
    expected = {name: to_beats(layer, name, np.concatenate(codes)) for name, codes in found.items()}
    if isinstance(layer, ConvGradient) and layer.streamed:
        beats["acc_in"] = expected["acc_out"] = running_sums(layer, inputs, batches)
    ports = [StreamPort(port.name, port.payload_bits, Direction.IN) for port in layer.sinks]
    ports += [StreamPort(port.name, port.payload_bits, Direction.OUT) for port in layer.sources]
    if "acc_in" in beats:
        (ring,) = layer.rings
        ports += [StreamPort("acc_in", ring.back.payload_bits, Direction.IN)]
        ports += [StreamPort("acc_out", ring.out.payload_bits, Direction.OUT)]

    def build(given: Any) -> Any:
        streams = {port.name: Stream(port.width) for port in ports}
        return layer.circuit(ClockReset(), streams, given)

    run = run_streams(
        backend,
        Design(type(layer).__name__.lower(), build, tuple(ports), images),
        beats,
        {name: len(codes) for name, codes in expected.items()},
        seed=seed,
        stall_probability=stall,
        max_cycles=200_000,
    )
    for name, codes in expected.items():
        assert run.outputs[name] == codes, (layer, name, seed)
    return run


def running_sums(layer: ConvGradient, inputs: dict[str, np.ndarray], batches: int) -> list[int]:
    """What a gradient engine stores outside: the sum over a batch after every frame but the last, in stream order."""
    found: list[int] = []
    order, batch = layer.tile.order(layer.weight_shape), layer.recipe.batch
    for number in range(batches):
        total = np.zeros(layer.weight_shape, np.int64)
        for frame in range(number * batch, number * batch + batch - 1):
            x, e = (inputs[name][frame : frame + 1] for name in ("x", "e"))
            total = total + layer.sums(x, e)
            found += pack(in_order(total.reshape(-1), order), layer.sum_bits, layer.w_lanes)
    return found


def ends(layer: Any, run: Run, port: str) -> list[int]:
    """Cycles of the last beats of tensors at a port."""
    return run.fire_cycles[port][layer.port(port).beats - 1 :: layer.port(port).beats]


# ---------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("layer", Conv.examples(), ids=str)
def test_golden_model_is_the_plain_loop_rounded_once(layer: Conv) -> None:
    rng = np.random.default_rng(1)
    x, w = layer.sample("x", rng, layer.recipe.batch), layer.sample("w", rng, 1)[0]
    y = layer.golden(layer.start({"w": layer.w_fixed.decode(w)}), {"x": x, "w": w})["y"]
    sums = np.stack([plain_conv(layer, frame, w) for frame in x])
    assert np.array_equal(y, requantise(sums, 20, layer.y_fixed))


@pytest.mark.parametrize("number", range(len(ConvGradient.example_fields())))
def test_error_and_gradient_are_the_derivatives_of_the_forward_layer(number: int) -> None:
    forward, error, gradient = (engine.examples()[number] for engine in ENGINES)
    rng = np.random.default_rng(number)
    x = rng.normal(size=(forward.recipe.batch, *forward.input_shape))
    w = rng.normal(size=forward.weight_shape)
    e = rng.normal(size=(forward.recipe.batch, *forward.output_shape))

    def loss(x: np.ndarray, w: np.ndarray) -> float:
        return float((forward.reference({}, {"x": x, "w": w})["y"] * e).sum())

    dx = error.reference({}, {"e": e, "w": w})["dx"]
    g = gradient.reference({}, {"x": x, "e": e})["g"]
    for value, found in ((x, dx), (w, g)):
        for _ in range(12):
            at = tuple(int(rng.integers(n)) for n in value.shape)
            step = np.zeros_like(value)
            step[at] = 1e-3
            moved = [loss(x + sign * step, w) if value is x else loss(x, w + sign * step) for sign in (1, -1)]
            assert found[at] == pytest.approx((moved[0] - moved[1]) / 2e-3, rel=1e-5, abs=1e-7)


def test_stale_frames_use_the_version_before() -> None:
    layer = Conv(height=1, width=1, channels=1, filters=1, kernel=(1, 1), recipe=Recipe(batch=3, staleness=2))
    layer = layer.with_formats({"w": Fixed(16, 0), "x": Fixed(16, 0), "y": Fixed(16, 0)})
    state = layer.start({"w": np.full((1, 1, 1, 1), 7.0)})
    ones = np.ones((3, 1, 1, 1), np.int64)
    versions = [np.full((1, 1, 1, 1), n, np.int64) for n in (7, 8, 9)]
    seen = [layer.golden(state, {"x": ones, "w": version})["y"].ravel().tolist() for version in versions]
    assert seen == [[7, 7, 7], [7, 7, 8], [8, 8, 9]]


def test_sums_beyond_float64_are_still_exact() -> None:
    wide = Fixed(27, 0)
    layer = Conv(height=1, width=1, channels=8, filters=1, kernel=(1, 1))
    layer = layer.with_formats({"x": wide, "w": wide, "y": Fixed(62, 0)})
    x = np.full((16, 1, 1, 8), wide.high)
    x[:, :, :, 0] = 1
    w = np.full((1, 8, 1, 1), wide.high)
    w[0, 0] = 1
    y = layer.golden(layer.start({"w": wide.decode(w)}), {"x": x, "w": w})["y"]
    assert y.ravel().tolist() == [7 * wide.high**2 + 1] * 16


def test_a_fully_connected_layer_is_a_matrix_product() -> None:
    layer = gemm(3, 2, 4, 5, Recipe(batch=2))
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 2, 4)), rng.normal(size=(5, 4, 3, 2))
    y = layer.reference({}, {"x": x, "w": w})["y"]
    assert layer.output_shape == (1, 1, 5)
    assert np.allclose(y[:, 0, 0], x.transpose(0, 3, 1, 2).reshape(2, -1) @ w.reshape(5, -1).T)


# ---------------------------------------------------------------------------------------------- folding


def test_no_engine_of_a_fully_connected_layer_multiplies_by_what_is_not_there() -> None:
    net = GraphBuilder("dense", Recipe(batch=2), seed=1)
    x = net.relu(net.conv(net.input(4, 6, 1), 8, 1))
    training = fold_graph.run(differentiate(net.classify(net.gemm(x, 16))), 512)
    engines = [node.layer for node in training.nodes if node.whole == "gemm1" and node.layer.macs]
    assert [type(layer).__name__ for layer in engines] == ["Conv", "ConvGradient", "ConvError"]
    for layer in engines:
        assert layer.multipliers * layer.cycles_per_frame == layer.macs == 4 * 6 * 8 * 16


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", seeds(5))
def test_fold_keeps_its_promise_with_every_tile(engine: type[Layer], seed: int) -> None:
    layer = random_engine(engine, seed)
    slowest = dataclasses.replace(layer, tile=Tile(), w_lanes=1).walk.cycles
    # of these the last two are often too fast
    for cycles in (slowest, slowest // 3, slowest // 10, slowest // 50, 5):
        tiles = tuple(layer.tiles(cycles))
        assert layer.has_tile(cycles) == bool(tiles)
        sizes = [tile.size for tile in tiles]
        assert sizes == sorted(sizes)
        assert len(set(tiles)) == len(tiles)
        for tile in tiles:
            folded = layer.fold(cycles, tile)
            assert folded.cycles_per_frame <= cycles
            assert folded.multipliers == tile.size
            assert folded.w_lanes == weight_lanes(folded.weight_count, tile.size, cycles)
            for port in folded.frame_ports:
                assert port.lanes == lanes_for(port.tensor.elements, port.tensor.shape[-1], cycles)


def test_fold_says_what_is_impossible() -> None:
    layer = Conv(height=8, width=8, channels=4, filters=4, kernel=(3, 3))
    assert tuple(layer.tiles(10)) == ()
    assert not layer.has_tile(10)
    with pytest.raises(FoldingError, match="no tile manages 10 cycles a frame; allow more cycles"):
        layer.fold(10)


def test_conv_rejects_a_tile_of_more_channels_than_it_has() -> None:
    with pytest.raises(FoldingError, match=r"pi the channels .*, pk be one of \[1, 3, 9\]"):
        Conv(height=8, width=8, channels=4, filters=4, kernel=(3, 3), tile=Tile(1, 5, 1))


def test_conv_rejects_a_kernel_larger_than_its_map() -> None:
    with pytest.raises(ShapeError, match="does not fit the map"):
        Conv(height=2, width=2, channels=4, filters=4, kernel=(3, 3))


def test_conv_rejects_no_weight_lanes() -> None:
    with pytest.raises(FoldingError, match="0 weight lanes do not divide a tile of 1"):
        Conv(height=8, width=8, channels=4, filters=4, kernel=(3, 3), w_lanes=0)


def test_fields_stand_in_the_order_that_names_of_circuits_are_made_of() -> None:
    """Those that every name says; quiet ones are said where they are not as usual."""
    window, tile = ["kernel", "stride", "padding"], ["recipe", "w_lanes", "tile"]
    own = ["x_lanes", "y_lanes", "tensor_id", "x_fixed", "w_fixed", "y_fixed"]
    dense, depthwise = (
        [field.name for field in dataclasses.fields(kind) if field.metadata != QUIET] for kind in (Conv, DepthwiseConv)
    )
    assert dense == ["height", "width", "channels", "filters", *window, *tile, "weights", *own]
    assert depthwise == ["height", "width", "channels", *window, *tile, *own]


def test_error_engine_with_stride_does_not_offer_parallel_taps() -> None:
    fields: dict[str, Any] = {"height": 8, "width": 8, "channels": 2, "filters": 2, "kernel": (3, 3)}
    assert {tile.pk for tile in ConvError(**fields, stride=(2, 2)).tiles(10**6)} == {1}
    assert {tile.pk for tile in ConvError(**fields, stride=(2, 1)).tiles(10**6)} == {1, 3}
    assert {tile.pk for tile in ConvError(**fields).tiles(10**6)} == {1, 3, 9}


# ---------------------------------------------------------------------------------------------- circuits


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", seeds(8))
def test_random_engines_agree_with_the_golden_model_in_every_bit(engine: type[Layer], seed: int) -> None:
    simulate(random_engine(engine, 100 + seed), 3, seed, 0.0 if seed % 2 else 0.4)


@pytest.mark.parametrize("engine", [Conv, ConvError])
@pytest.mark.parametrize("seed", seeds(7))
def test_frames_take_exactly_the_declared_cycles(engine: type[Layer], seed: int) -> None:
    layer = random_engine(engine, seed)
    # one version only: whether the next one arrives in time is not the engine's to say
    layer = dataclasses.replace(layer, recipe=Recipe(batch=12))
    run = simulate(layer, 1, seed, 0.0)
    at = ends(layer, run, layer.sources[0].name)
    assert at[-1] - at[6] == 5 * layer.cycles_per_frame, (layer, at)


@pytest.mark.parametrize("seed", seeds(4))
def test_gradients_take_the_declared_cycles_within_and_between_batches(seed: int) -> None:
    layer = random_engine(ConvGradient, seed)
    batch = 24
    layer = dataclasses.replace(layer, recipe=Recipe(batch=batch))
    run = simulate(layer, 3, seed, 0.0, Backend.VERILATOR)
    arrivals = max(ends(layer, run, port)[batch - 3] - ends(layer, run, port)[batch - 9] for port in ("x", "e"))
    assert arrivals == 6 * layer.cycles_per_frame, layer
    at = ends(layer, run, "g")
    if layer.walk.cycles == layer.cycles_per_frame:
        assert at[2] - at[1] == batch * layer.cycles_per_frame + layer.drain_cycles, (layer, at)


@pytest.mark.parametrize("engine", [Conv, ConvError])
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_frames_wait_for_weights_that_come_late(engine: type[Layer], staleness: int) -> None:
    # 64 beats a version, but only two cycles a batch
    fields: dict[str, Any] = {"height": 1, "width": 1, "channels": 8, "filters": 8, "kernel": (1, 1)}
    layer: Any = engine(**fields, tile=Tile(8, 8, 1), recipe=Recipe(batch=2, staleness=staleness))
    lanes = {f"{port.name}_lanes": 8 for port in (*layer.sinks, *layer.sources) if port.name != "w"}
    simulate(dataclasses.replace(layer, **lanes), 6, staleness, 0.0)


@pytest.mark.parametrize("shift", [-3, -1, 0, 1, 2, 20, 31])
@pytest.mark.parametrize("signed", [True, False])
def test_results_are_rounded_to_nearest_and_saturated(shift: int, signed: bool) -> None:
    layer = Conv(height=8, width=8, channels=1, filters=1, kernel=(1, 1), recipe=Recipe(batch=1))
    # few fraction bits, so that every kind of result occurs
    small = {"x": Fixed(6, 0), "w": Fixed(6, 0)} if shift < 3 else {"x": Fixed(16, 0), "w": Fixed(16, 0)}
    simulate(layer.with_formats({**small, "y": Fixed(9, -shift, signed)}), 4, shift + 5, 0.0)


def streamed_engine(engine: type[Layer], seed: int) -> Any:
    """A small engine whose weights come once a frame."""
    while True:
        layer = random_engine(engine, seed)
        seed += 1000
        try:
            layer = dataclasses.replace(layer, weights=Home.DRAM)
        except FoldingError:
            continue
        if layer.walk.cycles < 600:
            return layer


@pytest.mark.parametrize("engine", [Conv, ConvError])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("seed", seeds(4))
def test_no_output_leaves_before_the_inputs_that_it_requires(engine: type[Layer], streamed: bool, seed: int) -> None:
    layer = streamed_engine(engine, 20 + seed) if streamed else random_engine(engine, 20 + seed)
    run = simulate(layer, 1, seed, 0.0)
    sink, source = layer.sinks[0], layer.sources[0]
    for beat, left in enumerate(run.fire_cycles[source.name]):
        frame, place = divmod(beat, source.beats)
        needed = layer.required(source.name, (place + 1) * source.lanes)[sink.name]
        last_needed = frame * sink.beats + -(-needed // sink.lanes) - 1
        assert run.fire_cycles[sink.name][last_needed] < left, (layer, beat)


@pytest.mark.parametrize("engine", ENGINES)
def test_streamed_weights_give_the_same_bits_from_memories_of_several_blocks(
    engine: type[Layer], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = streamed_engine(engine, 5)
    registers = count(elaborate(layer)[0]).registers
    monkeypatch.setattr("hdl.memory.BLOCK_WORDS", 1)
    # the sums over passes of the error engine have a register of their own behind the memory
    assert (count(elaborate(layer)[0]).registers > registers) == (engine is not ConvError)
    for stall in (0.0, 0.4):
        simulate(layer, 2, 3, stall, Backend.VERILATOR)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", seeds(4))
def test_streamed_weights_give_the_same_bits(engine: type[Layer], seed: int) -> None:
    simulate(streamed_engine(engine, seed), 2, seed, 0.0 if seed % 2 else 0.4)


@pytest.mark.parametrize("engine", [Conv, ConvError])
@pytest.mark.parametrize(("seed", "block_words"), SEEDS)
def test_streamed_weights_cost_no_cycles(
    engine: type[Layer], seed: int, block_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hdl.memory.BLOCK_WORDS", block_words)
    layer = dataclasses.replace(streamed_engine(engine, 50 + seed), recipe=Recipe(batch=14))
    layer = layer.fold(layer.cycles_per_frame, layer.tile)
    at = ends(layer, simulate(layer, 1, seed, 0.0, Backend.VERILATOR), layer.sources[0].name)
    assert at[-1] - at[5] == 8 * layer.cycles_per_frame, (layer, at)


@pytest.mark.parametrize(("seed", "block_words"), SEEDS)
def test_sums_outside_cost_no_cycles(seed: int, block_words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdl.memory.BLOCK_WORDS", block_words)
    layer = dataclasses.replace(streamed_engine(ConvGradient, 50 + seed), recipe=Recipe(batch=14))
    layer = layer.fold(layer.walk.cycles + 100, layer.tile)
    run = simulate(layer, 1, seed, 0.0)
    at = run.fire_cycles["acc_out"][layer.port("g").beats - 1 :: layer.port("g").beats]
    assert at[-1] - at[4] == 8 * layer.cycles_per_frame, (layer, at)


@pytest.mark.parametrize("tile", [Tile(4, 2, 1), Tile(2, 2, 1)])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("engine", [Conv, ConvError])
def test_a_fully_connected_layer_uses_each_streamed_weight_once_without_pause(
    engine: type[Layer], lanes: int, tile: Tile
) -> None:
    fields: dict[str, Any] = {"height": 1, "width": 1, "channels": 32, "filters": 8, "kernel": (1, 1)}
    layer: Any = engine(**fields, tile=tile, w_lanes=lanes, weights=Home.DRAM, recipe=Recipe(batch=12))
    at = ends(layer, simulate(layer, 1, 0, 0.0, Backend.VERILATOR), layer.sources[0].name)
    assert at[-1] - at[5] == 6 * layer.cycles_per_frame
    assert layer.cycles_per_frame == layer.weight_count // lanes


@pytest.mark.parametrize("engine", ENGINES)
def test_verilog_with_streamed_weights_agrees_under_stalls(engine: type[Layer]) -> None:
    simulate(streamed_engine(engine, 9), 3, 3, 0.3, Backend.VERILATOR)


def test_engines_keep_their_multipliers_busy() -> None:
    fields: dict[str, Any] = {"height": 8, "width": 8, "channels": 8, "filters": 8, "kernel": (3, 3)}
    fields |= {"padding": (1, 1, 1, 1), "tile": Tile(4, 4, 3), "recipe": Recipe(batch=8)}
    for layer in (Conv(**fields, x_lanes=2, y_lanes=2), ConvError(**fields, e_lanes=2, dx_lanes=2)):
        run = simulate(layer, 1, 0, 0.0, Backend.VERILATOR)
        at = ends(layer, run, layer.sources[0].name)
        assert layer.macs / (layer.multipliers * (at[-1] - at[-2])) >= 0.95


@pytest.mark.parametrize("engine", ENGINES)
def test_verilog_agrees_under_stalls(engine: type[Layer]) -> None:
    simulate(random_engine(engine, 7), 4, 3, 0.3, Backend.VERILATOR)


def test_streams_carry_weights_tile_by_tile() -> None:
    layer = Conv(height=4, width=4, channels=2, filters=2, kernel=(1, 2), tile=Tile(2, 1, 2), w_lanes=2)
    order = [int(n) for n in layer.stream_order("w")]  # type: ignore[union-attr]
    assert order == [0, 1, 4, 5, 2, 3, 6, 7]
    weights = np.arange(8).reshape(1, 2, 2, 1, 2)
    assert np.array_equal(from_beats(layer, "w", to_beats(layer, "w", weights)), weights)
    assert math.prod(layer.weight_shape) == layer.weight_count


@pytest.mark.parametrize("engine", [Conv, ConvError])
@pytest.mark.parametrize("seed", seeds(6))
def test_one_version_of_weights_on_chip_gives_the_same_bits(engine: type[Layer], seed: int) -> None:
    layer = dataclasses.replace(random_engine(engine, 300 + seed), weights=Home.PARKED)
    assert layer.memories()[0].depth == layer.words
    simulate(layer, 4, seed, 0.0 if seed % 2 else 0.4, Backend.VERILATOR)


@pytest.mark.parametrize("engine", [Conv, ConvError])
@pytest.mark.parametrize("seed", seeds(6))
def test_an_engine_rests_no_longer_than_declared_while_it_takes_the_next_version(
    engine: type[Layer], seed: int
) -> None:
    batch = 12
    layer = dataclasses.replace(random_engine(engine, 320 + seed), weights=Home.PARKED, recipe=Recipe(batch=batch))
    run = simulate(layer, 3, seed, 0.0, Backend.VERILATOR)
    at = ends(layer, run, layer.sources[0].name)
    pauses = [at[start] - at[start - 1] - layer.cycles_per_frame for start in (batch, 2 * batch)]
    # words of the next version that wait in front of the memory
    waiting = 2 * layer.tile.size // layer.w_lanes
    # pixels of an error that no tap reaches need none
    busy = engine is Conv and layer.walk.cycles == layer.cycles_per_frame
    least = layer.weight_count // layer.w_lanes - waiting if busy else 0
    assert all(least <= pause <= layer.load_cycles for pause in pauses), (layer, pauses)
    if layer.walk.cycles == layer.cycles_per_frame:
        assert layer.strips is not None
        assert pauses == 2 * [layer.strips.load_cycles], layer
    # the rest of it is not taken while the one before is in use; after that, results may still wait to leave
    beats, source = layer.port("w").beats, layer.sources[0]
    results = layer.tile.po if engine is Conv else layer.tile.pi
    leaving = RESULTS * -(-results // source.lanes)
    if beats > waiting:
        assert run.fire_cycles["w"][waiting] > at[batch - 1] - layer.pipeline_cycles - leaving, layer


@pytest.mark.parametrize("engine", [Conv, ConvError])
def test_lanes_of_parked_weights_let_the_fifo_of_the_map_bridge_the_rest(engine: type[Layer]) -> None:
    fields: dict[str, Any] = {"height": 14, "width": 14, "channels": 64, "filters": 64, "kernel": (3, 3)}
    layer: Any = engine(**fields, padding=(1, 1, 1, 1), weights=Home.PARKED, recipe=Recipe(batch=16))
    cycles = 500_000
    folded = layer.fold(cycles)
    assert folded.load_cycles <= cycles / (2 * 14)
    assert folded.cycles_per_frame + folded.load_cycles / 16 <= cycles
    assert dataclasses.replace(folded, w_lanes=folded.w_lanes // 2).load_cycles > cycles / (2 * 14)
    two = dataclasses.replace(folded, weights=Home.ON_CHIP)
    assert 2 * folded.memories()[0].depth == two.memories()[0].depth
    with pytest.raises(FoldingError):
        # no slack is left to load in
        folded.fold(folded.cycles_per_frame, folded.tile)


@pytest.mark.parametrize("engine", [Conv, ConvError])
def test_parked_weights_come_through_a_memory_port_and_in_half_a_frame_at_most(engine: type[Layer]) -> None:
    """Of large weights and small maps: two rows of the map last far shorter than it takes to load them."""
    fields: dict[str, Any] = {"height": 7, "width": 7, "channels": 512, "filters": 512, "kernel": (3, 3)}
    layer: Any = engine(**fields, padding=(1, 1, 1, 1), weights=Home.PARKED, recipe=Recipe(batch=256))
    cycles = 400_000
    folded = layer.fold(cycles)
    assert folded.port("w").payload_bits == MOST_PARKED_BITS
    # 73 728 words of 32 weights
    assert cycles / (2 * 7) < 73_728 < folded.load_cycles < 73_800 <= cycles / 2
    assert folded.cycles_per_frame + folded.load_cycles / 256 <= cycles
    assert layer.fold(150_000).load_cycles == folded.load_cycles
    with pytest.raises(FoldingError, match="does not manage 147456 cycles a frame"):
        layer.fold(2 * 73_728)
