"""Update: golden model against the textbook rule, and what stochastic rounding must give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, block

from hdl.engine.scalar import Scalar
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.base import Tile, to_beats
from hdl.layers.update import MASTER_EXTRA, Update
from hdl.recipe import Recipe
from hdl.simulate import Backend, Design, Direction, Run, StreamPort, run_streams
from hdl.stream import Stream
from hdl.verilog import subblocks

# with state on chip; that from outside runs in the conformance suite and in whole clusters
EXAMPLES = [layer for layer in Update.examples() if not layer.rings]


def initial(layer: Update, rng: np.random.Generator, scale: float = 0.2) -> np.ndarray:
    return layer.w_fixed.decode(layer.w_fixed.encode(rng.normal(size=layer.shape) * scale))


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: str(layer.shape))
def test_golden_update_stays_within_a_step_of_the_reference(layer: Update) -> None:
    rng = np.random.default_rng(1)
    start = {"w": initial(layer, rng)}
    state, reference = layer.start(start), layer.start_reference(start)
    for _ in range(20):
        g = layer.g_fixed.encode(rng.normal(size=layer.shape) * 0.3 * layer.recipe.batch)
        codes = layer.golden(state, {"g": g})["w"]
        values = layer.reference(reference, {"g": layer.g_fixed.decode(g)})["w"]
    # the gradient is exact; the momentum's rounding errors add up through the learning rate
    noise = layer.recipe.learning_rate / layer.recipe.batch * layer.momentum_fixed.step * 100
    assert np.abs(layer.w_fixed.decode(codes) - values).max() < layer.w_fixed.step * 0.6 + noise


def test_reference_is_sgd_with_momentum_and_weight_decay_as_in_torch() -> None:
    recipe = Recipe(batch=4, learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    layer = Update(shape=(3,), recipe=recipe)
    w = np.array([1.0, -2.0, 0.5])
    buffer = np.zeros(3)
    state = layer.start_reference({"w": w})
    for gradient_sum in ([4.0, 8.0, -4.0], [0.0, 2.0, 1.0], [1.0, 1.0, 1.0]):
        # torch: d = grad + decay * w; buf = momentum * buf + d; w = w - lr * buf, with the mean gradient
        buffer = 0.5 * buffer + np.array(gradient_sum) / 4 + 0.01 * w
        w = w - 0.1 * buffer
        out = layer.reference(state, {"g": np.array(gradient_sum)})["w"]
        np.testing.assert_allclose(out, w, rtol=1e-12)


def test_weight_decay_can_be_left_out() -> None:
    recipe = Recipe(batch=1, weight_decay=0.5, momentum=0.0)
    layer = Update(shape=(4,), recipe=recipe, decay=False)
    state = layer.start({"w": np.full(4, 0.5)})
    assert layer.golden(state, {"g": np.zeros(4, np.int64)})["w"].tolist() == [0.5 * 2**12] * 4


def test_steps_far_below_the_weights_resolution_move_the_master_by_their_mean() -> None:
    recipe = Recipe(batch=16, learning_rate=1e-6, momentum=0.0)
    layer = Update(shape=(4096,), recipe=recipe, g_fixed=Fixed(16, 10))
    state = layer.start({"w": np.zeros(4096)})
    steps = 8
    for _ in range(steps):
        layer.golden(state, {"g": np.full(4096, 1, np.int64)})
    moved = layer.master_fixed.decode(state["master"])
    expected = -steps * 1e-6 / 16 * 2.0**-10
    # a step is a sixtieth of the master's last bit
    assert abs(expected) < layer.master_fixed.step
    assert moved.mean() == pytest.approx(expected, rel=0.2)


def test_weights_and_momentum_saturate() -> None:
    layer = Update(shape=(2,), recipe=Recipe(batch=1, learning_rate=1.0, momentum=0.9))
    state = layer.start({"w": np.zeros(2)})
    extreme = np.array([layer.g_fixed.low, layer.g_fixed.high])
    for _ in range(100):
        w = layer.golden(state, {"g": extreme})["w"]
    assert w.tolist() == [layer.w_fixed.high, layer.w_fixed.low]
    assert state["master"].tolist() == [layer.master_fixed.high, layer.master_fixed.low]
    assert np.all(np.abs(state["momentum"]) <= layer.momentum_fixed.high + 1)


def test_tile_and_lanes_change_the_order_but_not_one_bit() -> None:
    rng = np.random.default_rng(2)
    g = rng.integers(-3000, 3000, (6, 4, 3, 3))
    w = rng.normal(size=g.shape)
    layers = [
        Update(shape=g.shape),
        Update(shape=g.shape, tile=Tile(3, 2, 9), w_lanes=6),
    ]
    results = []
    for layer in layers:
        state = layer.start({"w": w})
        results.append([layer.golden(state, {"g": g})["w"] for _ in range(3)])
    np.testing.assert_array_equal(results[0], results[1])


def test_images_hold_the_state_in_stream_order() -> None:
    layer = Update(shape=(2, 2), tile=Tile(1, 2, 1), w_lanes=2)
    state = layer.start({"w": np.array([[1.0, -1.0], [0.5, 0.25]])})
    images = layer.images(state)
    one = 1 << (12 + MASTER_EXTRA)
    assert images["master"] == [one | ((1 << 32) - one) << 32, (one >> 1) | (one >> 2) << 32]
    assert images["momentum"] == [0, 0]
    for memory in layer.memories():
        assert len(images[memory.name]) == memory.depth
        assert all(0 <= word < 1 << memory.width for word in images[memory.name])


def test_two_tensors_draw_different_bits() -> None:
    w = np.zeros(64)
    g = np.full(64, 77, np.int64)
    made = []
    for tensor_id in (1, 2):
        layer = Update(shape=(64,), tensor_id=tensor_id)
        state = layer.start({"w": w})
        layer.golden(state, {"g": g})
        made.append(state["master"])
    assert (made[0] != made[1]).any()


def test_fold_takes_the_fewest_lanes_within_a_frames_time() -> None:
    layer = Update(shape=(8, 8, 3, 3), recipe=Recipe(batch=4))
    folded = layer.fold(200, Tile(2, 2, 3))
    assert (folded.tile, folded.w_lanes) == (Tile(2, 2, 3), 3)
    assert folded.cycles_per_batch == 576 // 3


def test_impossible_foldings_and_shapes_are_refused() -> None:
    with pytest.raises(FoldingError, match=r"Update of \(6, 4\): 3 lanes do not divide a tile of 4 weights"):
        Update(shape=(6, 4), tile=Tile(2, 2, 1), w_lanes=3)
    with pytest.raises(FoldingError, match=r"Update of \(6, 4\): Tile\(po=4, pi=1, pk=1\) does not divide it"):
        Update(shape=(6, 4), tile=Tile(4, 1, 1))
    with pytest.raises(FoldingError, match=r"Update of \(6,\): 4 lanes do not divide 6 elements"):
        Update(shape=(6,), w_lanes=4)
    with pytest.raises(ShapeError, match="at least one dimension"):
        Update(shape=())
    with pytest.raises(FoldingError, match=r"need sums of \d+ bits, more than 62"):
        Update(shape=(6,), g_fixed=Fixed(16, -20), w_fixed=Fixed(16, 30))
    with pytest.raises(FoldingError, match=r"Update of \(600,\) needs 600 cycles a frame with 1 lanes, more than 10;"):
        Update(shape=(600,), recipe=Recipe(batch=1)).fold(10)


def test_a_scalar_has_seventeen_significant_bits_or_is_exact() -> None:
    assert Scalar.of(0.25, 4, 10) == Scalar(1, -4)
    assert Scalar.of(0.0, 3, 3).times(np.array([5, -5])).tolist() == [0, 0]
    for value in (0.9, 0.001, 1.25e-3, 3.3):
        scalar = Scalar.of(value, 0, 20)
        assert abs(scalar.times(np.array([1 << 20]))[0] / 2**40 / value - 1) < 2**-17
    with pytest.raises(ValueError, match="not negative, not -1"):
        Scalar.of(-1.0, 0, 0)


# -------------------------------------------------------------------------------------------- circuit


def run_circuit(
    layer: Update, backend: Backend, batches: int, stall: float, held: dict[str, list[int]] | None = None
) -> tuple[Run, list[int], dict[str, list[int]]]:
    """The circuit on random gradients (extremes included); its run, the beats that it should give, the final images.

    In MyHDL ``held`` gets what the memories hold in the end."""
    rng = np.random.default_rng(11)
    state = layer.start({"w": initial(layer, rng, 1.0)})
    images = layer.images(state)
    gradients = layer.sample("g", rng, batches)
    gradients[1:] >>= rng.integers(0, 12, gradients[1:].shape)
    expected = np.stack([layer.golden(state, {"g": g})["w"] for g in gradients])

    def factory(contents: Any) -> Any:
        clk, rst = Signal(bool(0)), Signal(bool(0))
        streams = {port.name: Stream(port.payload_bits) for port in (*layer.sinks, *layer.sources)}
        circuit = layer.circuit(clk, rst, streams, contents)
        if held is not None:
            circuit.subs = [*circuit.subs, watch_memories(clk, circuit, held)]
        return circuit

    bits = layer.port("g").payload_bits, layer.port("w").payload_bits
    ports = (StreamPort("g", bits[0], Direction.IN), StreamPort("w", bits[1], Direction.OUT))
    design = Design(f"update_{'x'.join(map(str, layer.shape))}", factory, ports, images)
    beats = to_beats(layer, "g", gradients)
    run = run_streams(backend, design, {"g": beats}, {"w": len(beats)}, seed=12, stall_probability=stall)
    return run, to_beats(layer, "w", expected), layer.images(state)


@block
def watch_memories(clk: Any, circuit: Any, held: dict[str, list[int]]) -> Any:
    """Keeps in ``held`` what memories with an image hold; MyHDL clears signals when a simulation ends."""
    memories = {sub.kwargs["image"]: sub.symdict["mem"] for sub in subblocks(circuit) if sub.kwargs.get("image")}

    @always(clk.posedge)
    def watch() -> None:
        held.update((name, [int(word) for word in words]) for name, words in memories.items())

    return watch


# the conformance suite runs every example with fewer batches in all simulators
@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: str(layer.shape))
@pytest.mark.parametrize("stall", [0.1, 0.5])
def test_circuit_equals_golden_in_every_bit_over_many_batches(layer: Update, stall: float) -> None:
    run, expected, _ = run_circuit(layer, Backend.VERILATOR, 12, stall)
    assert run.outputs["w"] == expected


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: str(layer.shape))
def test_memories_hold_the_final_state(layer: Update) -> None:
    held: dict[str, list[int]] = {}
    _, _, wanted = run_circuit(layer, Backend.MYHDL, 2, 0.2, held)
    assert held == wanted


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: str(layer.shape))
def test_a_batch_takes_the_declared_cycles(layer: Update) -> None:
    run, expected, _ = run_circuit(layer, Backend.VERILATOR, 4, 0.0)
    assert run.outputs["w"] == expected
    beats = layer.elements // layer.w_lanes
    starts = run.fire_cycles["w"][::beats]
    assert np.diff(starts).tolist() == [layer.cycles_per_batch] * 3
    assert run.fire_cycles["w"][0] - run.fire_cycles["g"][0] <= layer.pipeline_cycles
