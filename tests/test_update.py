"""Update: golden model against the textbook rule, and what stochastic rounding must give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.tools import check_yosys
from hdl.convert.verilog import convert
from hdl.dram.axi import Axi, AxiFormat
from hdl.dram.store import DramFifo, dram_store
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.weights.update import PIPELINE, RESULTS, update_outside
from hdl.engine.weights.update_outside_access import update_outside_accessed
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.beats import to_beats
from hdl.layers.capabilities import with_loaded_state
from hdl.layers.storage import DUMP, LOAD, Home
from hdl.layers.wiring.update import MASTER_EXTRA, Update
from hdl.recipe import Recipe, Schedule
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, Run, StreamPort, run_streams
from hdl.simulate.models.dram import dram_model
from hdl.stream import Stream
from hdl.tensor import Tile
from tests.layer_support import Case, assert_equal_bits, design_of, elaborate, make_case, simulate, watch_memories

# with state on chip, and with state from outside; tests/test_state_access.py has those that load theirs by streams
EXAMPLES = [layer for layer in Update.examples() if not layer.rings and not layer.recipe.loaded]
OUTSIDE = [layer for layer in Update.examples() if layer.rings and not layer.recipe.loaded]


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


def test_master_and_momentum_of_chosen_bits_keep_the_range_of_weight_and_gradient() -> None:
    usual, narrow = Update(shape=(4,)), Update(shape=(4,), master_width=20, momentum_width=13)
    assert (usual.master_fixed, usual.momentum_fixed) == (Fixed(32, 28), Fixed(24, 12))
    assert (narrow.master_fixed, narrow.momentum_fixed) == (Fixed(20, 16), Fixed(13, 1))
    w = np.array([1.0, -1.0, 0.5, 7.0])
    state = narrow.start({"w": w})
    assert narrow.carried(state)["master"].tolist() == w.tolist()
    assert {memory.name: memory.width for memory in narrow.memories()} == {"master": 20, "momentum": 13}
    again = narrow.start({"w": w, **narrow.carried(state)})
    assert again["master"].tolist() == state["master"].tolist()
    for bits, said in (
        ({"master_width": 17}, "master of 17 bits .* 18"),
        ({"momentum_width": 7}, "momentum of 7 .* 8"),
    ):
        with pytest.raises(FoldingError, match=said):
            Update(shape=(4,), **bits)


def test_a_narrow_master_and_momentum_move_by_the_mean_of_steps_below_theirs() -> None:
    recipe = Recipe(batch=1, learning_rate=0.25, momentum=0.5)
    layer = Update(shape=(4000,), recipe=recipe, master_width=18, momentum_width=12, g_fixed=Fixed(16, 12))
    # steps of 2**-14 and 2**-4
    assert (layer.master_fixed.step, layer.momentum_fixed.step) == (2.0**-14, 2.0**-4)
    state = layer.start({"w": np.zeros(4000)})
    for _ in range(20):
        layer.golden(state, {"g": np.full(4000, 5, np.int64)})
    # the momentum tends to g / (1 - 0.5)
    g = 5 * 2.0**-12
    exact = -0.25 * sum(g * (1 - 0.5**n) / 0.5 for n in range(1, 21))
    moved = layer.master_fixed.decode(state["master"])
    assert moved.mean() == pytest.approx(exact, rel=0.06)
    assert len(np.unique(state["momentum"])) > 1


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
    with pytest.raises(FoldingError, match=r"Update of \(6, 4\): Tile\(po=7, pi=1, pk=1\) does not fit it"):
        Update(shape=(6, 4), tile=Tile(7, 1, 1))
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
        domain = ClockReset()
        streams = {port.name: Stream(port.payload_bits) for port in (*layer.sinks, *layer.sources)}
        circuit = layer.circuit(domain, streams, contents)
        if held is not None:
            circuit.subs = [*circuit.subs, watch_memories(domain.clk, circuit, held)]
        return circuit

    bits = layer.port("g").payload_bits, layer.port("w").payload_bits
    ports = (StreamPort("g", bits[0], Direction.IN), StreamPort("w", bits[1], Direction.OUT))
    design = Design(f"update_{'x'.join(map(str, layer.shape))}", factory, ports, images)
    beats = to_beats(layer, "g", gradients)
    run = run_streams(backend, design, {"g": beats}, {"w": len(beats)}, seed=12, stall_probability=stall)
    return run, to_beats(layer, "w", expected), layer.images(state)


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


# ----------------------------------------------------------------------------------- state from outside


def name_of(layer: Update) -> str:
    return "x".join(map(str, layer.shape))


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("layer", OUTSIDE, ids=name_of)
def test_weights_and_state_outside_equal_golden_in_every_bit_under_stalls(layer: Update, backend: Backend) -> None:
    case = make_case(layer, batches=5, seed=3)
    for seed, stall in ((1, 0.2), (2, 0.6)):
        assert_equal_bits(case, design_of(case), backend, seed, stall)


@pytest.mark.parametrize("layer", [layer for layer in OUTSIDE if layer.rates is None], ids=name_of)
def test_state_outside_goes_a_beat_a_cycle_however_short_the_tensor(layer: Update) -> None:
    case = make_case(layer, batches=40)
    run = simulate(case, design_of(case), Backend.VERILATOR, stall=0.0, seed=1)
    beats = layer.elements // layer.w_lanes
    assert layer.cycles_per_batch == beats
    for port in ("g", "state_in", "w", "state_out"):
        assert np.diff(run.fire_cycles[port][::beats]).tolist() == [beats] * 39, port
    assert run.fire_cycles["g"] == run.fire_cycles["state_in"]
    assert run.fire_cycles["w"][0] - run.fire_cycles["g"][0] <= layer.pipeline_cycles
    assert run.fire_cycles["state_out"][0] - run.fire_cycles["g"][0] <= layer.pipeline_cycles


def test_only_state_on_chip_waits_until_what_it_reads_is_written() -> None:
    short = Update(shape=(3,))
    outside = short.at(Home.DRAM)
    assert outside is not None
    assert (short.cycles_per_batch, outside.cycles_per_batch) == (PIPELINE, 3)
    assert (len(short.memories()), outside.memories()) == (2, ())


def test_an_element_of_state_outside_has_the_master_below_the_momentum() -> None:
    layer = Update(shape=(2,), w_lanes=2, state=Home.DRAM)
    state = {"master": np.array([5, -1]), "momentum": np.array([-2, 3]), "batch": 0}
    low, high = 5 | (2**24 - 2) << 32, (2**32 - 1) | 3 << 32
    assert layer.images(state) == {"state": [low | high << 56]}


def test_state_too_wide_for_one_code_stays_on_chip() -> None:
    widest = Update(shape=(2,), momentum_width=30).at(Home.DRAM)
    assert widest is not None
    assert widest.rings[0].back.payload_bits == 62
    assert Update(shape=(2,), momentum_width=31).at(Home.DRAM) is None


@pytest.mark.parametrize("layer", OUTSIDE, ids=name_of)
def test_yosys_accepts_the_circuit_with_state_outside(layer: Update, tmp_path: Path) -> None:
    module = convert(elaborate(layer)[0], "update_outside")
    check_yosys([module.write(tmp_path)], module.name)


@block
def opens_late(domain: ClockReset, x: Stream, y: Stream, *, cycles: int) -> Any:
    """Nothing passes in the first ``cycles`` cycles, then everything."""
    left = Signal(intbv(cycles, min=0, max=cycles + 1))

    @always_comb
    def gate() -> None:
        y.valid.next = x.valid and left == 0
        y.payload.next = x.payload
        x.ready.next = y.ready and left == 0

    @always(domain.clk.posedge)
    def count() -> None:
        if left != 0:
            left.next = left - 1
        if domain.rst:
            left.next = cycles

    return gate, count


@block
def update_opening_late(
    domain: ClockReset, g: Stream, state_in: Stream, w: Stream, state_out: Stream, *, layer: Update, late: str
) -> Any:
    """The circuit with the source ``late`` closed for `CLOSED` cycles."""
    streams = {"g": g, "state_in": state_in, "w": w, "state_out": state_out}
    inner = Stream(streams[late].width)
    gate = opens_late(domain, inner, streams[late], cycles=CLOSED)
    streams |= {late: inner}
    circuit = update_outside(domain, **streams, shape=layer.circuit_shape)
    return gate, circuit


CLOSED = 300


@pytest.mark.parametrize("late", ["w", "state_out"])
def test_a_blocked_output_stops_the_update_before_anything_is_lost(late: str) -> None:
    layer = OUTSIDE[0]
    case = make_case(layer, batches=3)
    ports = {port.name: port for port in (*layer.sinks, *layer.sources, layer.rings[0].back, layer.rings[0].out)}

    def factory(images: Any) -> Any:
        del images
        streams = {name: Stream(port.payload_bits) for name, port in ports.items()}
        return update_opening_late(ClockReset(), **streams, layer=layer, late=late)

    sides = {name: Direction.IN if name in case.inputs else Direction.OUT for name in ports}
    design = Design("late", factory, tuple(StreamPort(n, p.payload_bits, sides[n]) for n, p in ports.items()))
    counts = {name: len(beats) for name, beats in case.outputs.items()}
    run = run_streams(Backend.MYHDL, design, case.inputs, counts, seed=1)
    assert run.outputs == case.outputs
    assert run.fire_cycles[late][0] >= CLOSED
    # the other output yields all that entered, and no more than the blocked one has places for enters
    other = "w" if late == "state_out" else "state_out"
    for name in ("g", "state_in", other):
        assert sum(cycle < CLOSED for cycle in run.fire_cycles[name]) == RESULTS, name


# ------------------------------------------------------------------------------- through a memory model

FORM = AxiFormat(data_bits=64, address_bits=12)
DEPTH, BASE, BURST = 512, 32, 16


def ring_unit(layer: Update) -> DramFifo:
    """The FIFO between the ports of the layer's ring."""
    (ring,) = layer.rings
    return DramFifo(
        format=FORM, element_bits=ring.back.tensor.fixed.width, x_lanes=ring.out.lanes, y_lanes=ring.back.lanes,
        elements=ring.back.tensor.elements, burst=BURST, prefetch=2 * BURST,
        capacity=ring.capacity, preload=0 if ring.loaded else ring.preload,
    )  # fmt: skip


@block
def update_in_dram(
    domain: ClockReset,
    base: Any,
    g: Stream,
    w: Stream,
    errors: Stream,
    load: Stream | None = None,
    dump: Stream | None = None,
    *,
    layer: Update,
    contents: Any,
) -> Any:
    """The circuit, its ring and a slow memory; ``errors`` is valid after an error."""
    unit = ring_unit(layer)
    back, out = Stream(unit.streams["y"]), Stream(unit.streams["x"])
    port, error = Axi(FORM), Signal(bool(0))
    if load is None or dump is None:
        circuit = update_outside(domain, g, back, w, out, shape=layer.circuit_shape, images=contents)
    else:
        circuit = update_outside_accessed(
            domain, g, back, w, out, load, dump, shape=layer.circuit_shape, images=contents
        )  # fmt: skip
    ring = dram_store(domain, base, out, back, port, error, unit=unit)
    model = dram_model(
        domain, port, form=FORM, depth=DEPTH, latency=25, cycles=2, stall_256=60, contents=contents.get("dram")
    )  # fmt: skip

    @always_comb
    def watch() -> None:
        errors.valid.next = error
        errors.payload.next = 1

    return circuit, ring, model, watch


# shorter than a burst, a burst, several bursts and a part
RINGS = [
    Update(shape=(3,), recipe=Recipe(batch=2, weight_decay=1e-3), state=Home.DRAM),
    Update(shape=(BURST,), recipe=Recipe(batch=2), w_lanes=2, state=Home.DRAM),
    OUTSIDE[0],
]
# the same with state that is loaded once or twice, and with rates of a schedule
LOADED_RINGS = [
    with_loaded_state(replace(layer, recipe=replace(layer.recipe, **settings), begun=begun))
    for layer, settings, begun in (
        (RINGS[0], {"warm_up": 5}, 0),
        (RINGS[1], {"staleness": 1}, 7),
        (RINGS[2], {"staleness": 2, "schedule": Schedule.STEP, "period": 2}, 2),
    )
]


def ring_case(layer: Update, batches: int, held: dict[str, list[int]] | None = None) -> tuple[Case, Design]:
    """Random traffic, and the design that closes the ring through memory.  In MyHDL ``held`` gets the memory."""
    case = make_case(layer, batches, seed=4)
    unit = ring_unit(layer)
    beats = layer.rings[0].back.beats
    image = [0] * DEPTH
    if layer.accessed:
        # what nobody may read
        image[BASE : BASE + unit.region_words] = [0xDEAD_BEEF] * unit.region_words
    else:
        image[BASE : BASE + unit.region_words] = unit.image([case.inputs["state_in"][:beats]], layer.w_lanes)
    widths = {name: layer.port(name).payload_bits for name in ("g", "w")} | {"errors": 1}
    widths |= {port.name: port.payload_bits for port in (LOAD, DUMP) if layer.accessed}

    def factory(images: Any) -> Any:
        domain, base = ClockReset(), Signal(intbv(0)[FORM.address_bits :])
        streams = (Stream(width) for width in widths.values())
        circuit = update_in_dram(domain, base, *streams, layer=layer, contents=images)
        if held is not None:
            circuit.subs = [*circuit.subs, watch_memories(domain.clk, circuit, held)]
        return circuit

    ports = [
        StreamPort(name, width, Direction.IN if name in case.inputs else Direction.OUT)
        for name, width in widths.items()
    ]
    return case, Design("update_in_dram", factory, tuple(ports), {"dram": image, **case.images}, {"base": BASE})


def through_memory(case: Case, design: Design, backend: Backend, seed: int, stall: float = 0.0, **options: Any) -> None:
    """Every beat that leaves the circuit for others than the memory is that of the case."""
    inside = {port.name for ring in case.layer.rings for port in (ring.back, ring.out)}
    sent = {name: beats for name, beats in case.inputs.items() if name not in inside}
    wanted = {name: beats for name, beats in case.outputs.items() if name not in inside}
    counts = {name: len(beats) for name, beats in wanted.items()}
    run = run_streams(backend, design, sent, counts, seed=seed, stall_probability=stall, **options)
    assert run.outputs == {**wanted, "errors": []}, f"seed {seed}"


@pytest.mark.parametrize(
    ("layer", "backend"),
    [
        # the last takes MyHDL and Icarus many seconds
        pytest.param(
            layer,
            backend,
            id=f"{name_of(layer)}-{backend.value}{'-loaded' * layer.accessed}",
            marks=[pytest.mark.slow] if layer is layers[-1] and backend is not Backend.VERILATOR else [],
        )
        for layers in (RINGS, LOADED_RINGS)
        for layer in layers
        for backend in Backend
    ],
)
def test_a_ring_through_memory_changes_no_weight_over_many_batches(layer: Update, backend: Backend) -> None:
    case, design = ring_case(layer, batches=6)
    # the block itself takes seconds a run, and stalls the more
    for seed, stall in ((2, 0.4),) if backend is Backend.MYHDL else ((1, 0.0), (2, 0.4)):
        through_memory(case, design, backend, seed, stall)


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layer, id=f"{name_of(layer)}{'-loaded' * layer.accessed}", marks=[pytest.mark.slow] * last)
        for layers in (RINGS, LOADED_RINGS)
        for layer, last in zip(layers, (False, False, True), strict=True)
    ],
)
def test_after_training_the_memory_holds_the_final_state_and_nothing_else_changed(layer: Update) -> None:
    held: dict[str, list[int]] = {}
    case, design = ring_case(layer, 4, held)
    beats, unit = layer.rings[0].back.beats, ring_unit(layer)
    final = case.outputs["state_out"][-beats:]
    assert final != case.inputs["state_in"][:beats]
    # the last burst's way into the memory
    drain = 200 + 4 * unit.region_words
    through_memory(case, design, Backend.MYHDL, 1, drain_cycles=drain)
    wanted = list(design.images["dram"])
    words = unit.words(final, layer.w_lanes)
    wanted[BASE : BASE + len(words)] = words
    assert held == {**case.images, "dram": wanted}
