"""Online normalisation: reference against the published equations, integers against the reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.training.feeds import feeds_of
from dagtrain.training.profile import profile
from dagtrain.training.sources import load_digits
from hdl.engine.norm.numbers import NORMAL, ForwardNumbers, Mean, integer_root
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.beats import to_beats
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.norm.online_norm_backward import OnlineNormBackward
from hdl.recipe import Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, Run, StreamPort, run_streams
from hdl.stream import Stream
from hdl.tensor import Kind
from importers.onnx import import_model
from tests.layer_support import watch_memories

# those whose scale and shift come as streams; frozen ones are run by tests/test_layer_conformance.py
# examples of each that are run over many frames in the default suite
MANY = 3
FORWARD = [layer for layer in OnlineNorm.examples() if not layer.frozen]
BACKWARD = [layer for layer in OnlineNormBackward.examples() if not layer.frozen]


class Published:
    """Forward and backward control process of Chiley et al. 2019, one sample (channels, height, width) at a time."""

    def __init__(self, channels: int, decay_forward: float, decay_backward: float, epsilon: float) -> None:
        self.mu, self.var = np.zeros(channels), np.ones(channels)
        self.u, self.v = np.zeros(channels), np.zeros(channels)
        self.af, self.ab, self.epsilon = decay_forward, decay_backward, epsilon

    def forward(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        channels = len(sample)
        flat = sample.reshape(channels, -1)
        scale = np.sqrt(self.var + self.epsilon)
        out = np.array([(flat[c] - self.mu[c]) / scale[c] for c in range(channels)])
        for c in range(channels):
            mean = flat[c].sum() / flat.shape[1]
            within = ((flat[c] - mean) ** 2).sum() / flat.shape[1]
            old = self.mu[c]
            self.var[c] = self.af * self.var[c] + (1 - self.af) * within + self.af * (1 - self.af) * (mean - old) ** 2
            self.mu[c] = old + (1 - self.af) * (mean - old)
        return out.reshape(sample.shape), scale

    def backward(self, grad: np.ndarray, out: np.ndarray, scale: np.ndarray) -> np.ndarray:
        result = np.empty_like(grad)
        for c in range(len(grad)):
            first = grad[c] - (1 - self.ab) * self.v[c] * out[c]
            self.v[c] += (first * out[c]).mean()
            result[c] = first / scale[c] - (1 - self.ab) * self.u[c]
            self.u[c] += result[c].mean()
        return result


def batches(layer: OnlineNorm, count: int, seed: int, spread: float = 2.0) -> np.ndarray:
    """Maps whose channels differ in mean and spread, on the grid of x."""
    rng = np.random.default_rng(seed)
    offset, scale = rng.normal(size=layer.channels), rng.uniform(0.3, spread, layer.channels)
    values = rng.normal(size=(count, layer.recipe.batch, *layer.shape)) * scale + offset
    return layer.x_fixed.decode(layer.x_fixed.encode(values))


def weights(layer: Any, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = {"gamma": rng.uniform(0.5, 1.5, layer.channels), "beta": rng.normal(size=layer.channels)}
    return {name: np.round(value * 4096) / 4096 for name, value in values.items()}


def pair(lag: int, **fields: Any) -> tuple[OnlineNorm, OnlineNormBackward]:
    base: dict[str, Any] = {"height": 4, "width": 3, "channels": 5} | fields
    base["recipe"] = Recipe(batch=6, norm_lag=lag, norm_forward_decay=0.95, norm_backward_decay=0.9)
    forward = OnlineNorm(**base)
    return forward, OnlineNormBackward(**base, inverse_fixed=forward.numbers.inverse)


# ------------------------------------------------------------------------------------------- reference


def test_reference_without_lag_equals_the_published_equations() -> None:
    forward, backward = pair(0)
    parameters = weights(forward, 2)
    state, back = forward.start_reference(parameters), backward.start_reference(parameters)
    published = Published(5, 0.95, 0.9, 1e-5)
    rng = np.random.default_rng(3)
    for x in batches(forward, 4, 4):
        made = forward.reference(state, {"x": x, **parameters})
        e = rng.normal(size=x.shape)
        inputs = {"e": e, "gamma": parameters["gamma"], "normal": made["normal"], "inverse": made["inverse"]}
        errors = backward.reference(back, inputs)
        for t in range(len(x)):
            out, scale = published.forward(x[t].transpose(2, 0, 1))
            y = out * parameters["gamma"][:, None, None] + parameters["beta"][:, None, None]
            np.testing.assert_allclose(made["y"][t], y.transpose(1, 2, 0), rtol=1e-10, atol=1e-12)
            grad = e[t].transpose(2, 0, 1) * parameters["gamma"][:, None, None]
            dx = published.backward(grad, out, scale)
            np.testing.assert_allclose(errors["dx"][t], dx.transpose(1, 2, 0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lag", [1, 3])
def test_with_a_lag_a_frame_uses_the_state_that_many_frames_older(lag: int) -> None:
    late, late_back = pair(lag)
    prompt, _ = pair(0)
    parameters = weights(late, 5)
    unit = {"gamma": np.ones(5), "beta": np.zeros(5)}
    late_state, prompt_state = late.start_reference(parameters), prompt.start_reference(parameters)
    x = batches(late, 1, 6)[0]
    late_made = late.reference(late_state, {"x": x, **unit})
    prompt_made = prompt.reference(prompt_state, {"x": x, **unit})
    np.testing.assert_allclose(late_made["inverse"][lag:], prompt_made["inverse"][:-lag], rtol=1e-12)
    np.testing.assert_allclose(late_made["inverse"][:lag], np.broadcast_to(prompt_made["inverse"][0], (lag, 1, 1, 5)))
    # at rest the control process does nothing for the first 1 + lag frames
    back = late_back.start_reference(parameters)
    e = np.random.default_rng(7).normal(size=x.shape)
    inputs = {"e": e, "gamma": np.ones(5), "normal": late_made["normal"], "inverse": late_made["inverse"]}
    dx = late_back.reference(back, inputs)["dx"]
    plain = e * late_made["inverse"]
    np.testing.assert_allclose(dx[: lag + 1], plain[: lag + 1])
    assert np.abs(dx[lag + 1] - plain[lag + 1]).max() > 1e-6


def test_gradients_of_scale_and_shift_equal_central_differences() -> None:
    forward, backward = pair(1)
    parameters = weights(forward, 8)
    x = batches(forward, 1, 9)[0]
    direction = np.random.default_rng(10).normal(size=x.shape)

    def loss(values: dict[str, np.ndarray]) -> float:
        return float((forward.reference(forward.start_reference(values), {"x": x, **values})["y"] * direction).sum())

    made = forward.reference(forward.start_reference(parameters), {"x": x, **parameters})
    inputs = {"e": direction, "gamma": parameters["gamma"], "normal": made["normal"], "inverse": made["inverse"]}
    gradients = backward.reference(backward.start_reference(parameters), inputs)
    for name in ("gamma", "beta"):
        for channel in range(5):
            step = np.zeros(5)
            step[channel] = 1e-4
            high = loss(parameters | {name: parameters[name] + step})
            low = loss(parameters | {name: parameters[name] - step})
            assert gradients[f"g_{name}"][channel] == pytest.approx((high - low) / 2e-4, rel=1e-5)


def test_without_control_the_error_is_the_derivative_with_constant_statistics() -> None:
    forward, backward = pair(0)
    parameters = weights(forward, 11)
    x = batches(forward, 1, 12)[0][:1]
    made = forward.reference(forward.start_reference(parameters), {"x": x, **parameters})
    e = np.random.default_rng(13).normal(size=x.shape)
    inputs = {"e": e, "gamma": parameters["gamma"], "normal": made["normal"], "inverse": made["inverse"]}
    dx = backward.reference(backward.start_reference(parameters), inputs)["dx"]
    step = np.zeros_like(x)
    step[0, 2, 1, 3] = 1e-4
    values = [
        (forward.reference(forward.start_reference(parameters), {"x": x + sign * step, **parameters})["y"] * e).sum()
        for sign in (1, -1)
    ]
    assert dx[0, 2, 1, 3] == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-5)


def test_the_control_process_makes_errors_orthogonal_to_ones_and_to_the_normalised_map() -> None:
    forward, backward = pair(1)
    parameters = {"gamma": np.ones(5), "beta": np.zeros(5)}
    state, back = forward.start(parameters), backward.start(parameters)
    codes = {name: forward.port(name).tensor.fixed.encode(value) for name, value in parameters.items()}
    rng = np.random.default_rng(14)
    raw, left = np.zeros((2, 5)), np.zeros((2, 5))
    for index, x in enumerate(batches(forward, 120, 15)):
        made = forward.golden(state, {"x": forward.x_fixed.encode(x), **codes})
        normal = NORMAL.decode(made["normal"])
        e = rng.normal(size=x.shape) * 0.2 + 0.3 + 0.5 * normal
        inputs = {"e": backward.e_fixed.encode(e), "gamma": codes["gamma"]}
        dx = backward.golden(back, inputs | {name: made[name] for name in ("normal", "inverse")})["dx"]
        if index >= 60:
            plain = e * forward.numbers.inverse.decode(made["inverse"])
            raw += np.abs([plain.mean((0, 1, 2)), (plain * normal).mean((0, 1, 2))])
            left += np.abs(
                [
                    backward.dx_fixed.decode(dx).mean((0, 1, 2)),
                    (backward.dx_fixed.decode(dx) * normal).mean((0, 1, 2)),
                ]
            )
    assert np.all(left < 0.25 * raw), (left / raw).round(3)


# ------------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize("layer", FORWARD, ids=lambda layer: f"{layer.shape}")
def test_golden_follows_the_reference(layer: OnlineNorm) -> None:
    grids = {name: layer.port(name).tensor.fixed for name in layer.parameter_shapes()}
    codes = {name: grids[name].encode(value) for name, value in weights(layer, 16).items()}
    parameters = {name: grids[name].decode(code) for name, code in codes.items()}
    state, reference = layer.start(parameters), layer.start_reference(parameters)
    for x in batches(layer, 40, 17, spread=1.0):
        made = layer.golden(state, {"x": layer.x_fixed.encode(x), **codes})
        wanted = layer.reference(reference, {"x": x, **parameters})
        inverse = layer.numbers.inverse
        np.testing.assert_allclose(inverse.decode(made["inverse"]), wanted["inverse"], rtol=2e-3)
        clamped = np.clip(wanted["normal"], NORMAL.low * NORMAL.step, NORMAL.high * NORMAL.step)
        np.testing.assert_allclose(NORMAL.decode(made["normal"]), clamped, atol=0.02)
        y = parameters["gamma"] * clamped + parameters["beta"]
        np.testing.assert_allclose(layer.y_fixed.decode(made["y"]), y, atol=0.03)


@pytest.mark.parametrize("layer", BACKWARD, ids=lambda layer: f"{layer.shape}")
def test_golden_backward_follows_the_reference(layer: OnlineNormBackward) -> None:
    rng = np.random.default_rng(18)
    gamma = weights(layer, 19)["gamma"]
    state, reference = layer.start({"gamma": gamma}), layer.start_reference({"gamma": gamma})
    gamma_code = layer.gamma_fixed.encode(gamma)
    frames = (layer.recipe.batch, *layer.shape)
    for _ in range(40):
        e = layer.e_fixed.encode(rng.normal(size=frames) * 0.3 + 0.1)
        normal = layer.normal_fixed.encode(rng.normal(size=frames))
        inverse = layer.inverse_fixed.encode(rng.uniform(0.3, 2, (layer.recipe.batch, 1, 1, layer.channels)))
        made = layer.golden(state, {"e": e, "gamma": gamma_code, "normal": normal, "inverse": inverse})
        values = {"e": layer.e_fixed.decode(e), "normal": layer.normal_fixed.decode(normal), "gamma": gamma}
        wanted = layer.reference(reference, values | {"inverse": layer.inverse_fixed.decode(inverse)})
        if layer.needs_dx:
            np.testing.assert_allclose(layer.dx_fixed.decode(made["dx"]), wanted["dx"], atol=2e-3)
        for name in ("g_gamma", "g_beta"):
            decoded = layer.port(name).tensor.fixed.decode(made[name])
            assert np.abs(decoded - wanted[name]).max() <= layer.port(name).tensor.fixed.step


def test_statistics_of_constant_data_converge_to_its_mean_and_variance() -> None:
    layer = OnlineNorm(height=7, width=7, channels=2, recipe=Recipe(batch=50, norm_forward_decay=0.98))
    parameters = {"gamma": np.ones(2), "beta": np.zeros(2)}
    state = layer.start(parameters)
    codes = {name: layer.port(name).tensor.fixed.encode(value) for name, value in parameters.items()}
    frame = np.random.default_rng(20).normal(size=layer.shape) * [0.25, 20.0] + [3.0, -50.0]
    x = np.broadcast_to(layer.x_fixed.encode(frame), (50, *layer.shape))
    for _ in range(20):
        made = layer.golden(state, {"x": x, **codes})
    values = layer.x_fixed.decode(x[0])
    numbers = layer.numbers
    np.testing.assert_allclose(numbers.mean.decode(state["mean"]), values.mean((0, 1)), rtol=1e-4)
    np.testing.assert_allclose(numbers.variance.decode(state["variance"]), values.var((0, 1)), rtol=2e-3)
    np.testing.assert_allclose(NORMAL.decode(made["normal"][-1]).std((0, 1)), 1, rtol=5e-3)


def test_statistics_survive_the_largest_data() -> None:
    numbers = ForwardNumbers(Fixed(16, 8), 1 << 14, 0.5, 1e-5)
    low = np.array([-(1 << 15)])
    mean, variance = numbers.start(1)
    for _ in range(40):
        mean, variance = numbers.step(mean, variance, low << 14, low**2 << 14)
    assert numbers.mean.decode(mean)[0] == pytest.approx(-128.0, rel=1e-6)
    assert 0 <= variance[0] < 1 << 12
    swing = numbers.step(np.array([(1 << 31) - 1]), np.array([numbers.variance.high - 1]), low << 14, low**2 << 14)
    assert swing[1][0] <= numbers.variance.high - numbers.epsilon_code


def test_the_inverse_saturates_for_a_vanishing_variance() -> None:
    numbers = ForwardNumbers(Fixed(16, 8), 4, 0.5, 1e-9)
    centre, inverse = numbers.table(np.array([0, 0]), np.array([0, 65536 << 8]))
    assert inverse.tolist() == [numbers.inverse.high, 1 << numbers.inverse.fraction_bits]
    assert centre.tolist() == [0, 0]


@pytest.mark.parametrize("pixels", [1, 2, 3, 49, 64, 196, 12544])
def test_a_mean_is_right_to_24_bits(pixels: int) -> None:
    mean = Mean(pixels, 8, 24)
    sums = np.array([-(1 << 15) * pixels, 12345 * pixels // 3, -1, 0, 32767 * pixels])
    exact = sums / pixels * 2.0**16
    assert np.abs(mean.of(sums) - exact).max() <= 1 + np.abs(exact).max() * 2.0**-23


def test_integer_root_is_the_floor_of_the_root() -> None:
    numbers = np.array([0, 1, 3, 4, 2**48 - 1, (2**24 - 1) ** 2, (2**24 - 1) ** 2 - 1, 2**50 + 12345])
    roots = integer_root(numbers)
    assert np.all(roots * roots <= numbers)
    assert np.all((roots + 1) ** 2 > numbers)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_staleness_chooses_the_version_of_scale_and_shift(staleness: int) -> None:
    recipe = Recipe(batch=3, staleness=staleness)
    layer = OnlineNorm(height=2, width=2, channels=1, recipe=recipe)
    state = layer.start({"gamma": np.ones(1), "beta": np.zeros(1)})
    x = np.full((3, 2, 2, 1), 256, np.int64)
    versions = []
    for version in range(4):
        inputs = {"x": x, "gamma": np.zeros(1, np.int64), "beta": np.array([version << 12])}
        versions += (layer.golden(state, inputs)["y"][:, 0, 0, 0] >> 8).tolist()
    assert versions == [recipe.version(t) for t in range(12)]


def test_gradients_are_rounded_without_bias_and_never_twice_alike() -> None:
    layer = OnlineNormBackward(height=1, width=1, channels=512, recipe=Recipe(batch=1), g_beta_fixed=Fixed(16, 4))
    state = layer.start({"gamma": np.ones(512)})
    ones = np.ones(512, np.int64)
    inputs = {
        "e": np.full((1, 1, 1, 512), 64, np.int64),
        "gamma": ones << 12,
        "normal": np.zeros((1, 1, 1, 512), np.int64),
        "inverse": np.full((1, 1, 1, 512), 1 << 14, np.int64),
    }
    first, second = (layer.golden(state, inputs)["g_beta"] for _ in range(2))
    # 64 / 4096 of the format's step of 1 / 16 is a quarter
    assert set(first.tolist()) == {0, 1}
    assert first.mean() == pytest.approx(0.25, abs=0.08)
    assert (first != second).any()


# ------------------------------------------------------------------------------------ shape and folding


@pytest.mark.parametrize("layer", [*FORWARD, *BACKWARD], ids=lambda layer: f"{type(layer).__name__}{layer.shape}")
def test_images_fit_their_memories(layer: Any) -> None:
    images = layer.images(layer.start(weights(layer, 21)))
    assert set(images) == {memory.name for memory in layer.memories()}
    for memory in layer.memories():
        assert len(images[memory.name]) == memory.depth
        assert all(0 <= word < 1 << memory.width for word in images[memory.name])


def test_calibration_leaves_y_a_range_of_eight() -> None:
    layer = OnlineNorm(height=2, width=2, channels=1)
    assert layer.with_formats({"y": Fixed(16, 15)}).y_fixed == Fixed(16, 12)
    assert layer.with_formats({"y": Fixed(16, 5)}).y_fixed == Fixed(16, 5)
    assert layer.with_formats({"x": Fixed(16, 3)}).port("inverse").tensor.fixed == Fixed(18, 19, signed=False)


def test_fold_takes_the_lanes_of_the_map() -> None:
    layer = OnlineNorm(height=8, width=8, channels=12, recipe=Recipe(batch=4))
    folded = layer.fold(400)
    assert (folded.lanes, folded.core, folded.w_lanes, folded.multipliers) == (2, 2, 1, 6)
    small = OnlineNorm(height=2, width=2, channels=12).fold(80)
    # the map alone would need one lane, the roots of its 12 variances more
    assert (small.lanes, small.core) == (1, 6)
    with pytest.raises(
        FoldingError, match=r"OnlineNorm \(8, 8, 12\) needs \d+ cycles a frame with 12 lanes, more than 63"
    ):
        layer.fold(63)


def test_impossible_lanes_shapes_and_formats_are_refused() -> None:
    with pytest.raises(FoldingError, match="OnlineNorm 2x2x4: 3 lanes do not divide 4 channels"):
        OnlineNorm(height=2, width=2, channels=4, lanes=3)
    with pytest.raises(FoldingError, match="OnlineNorm 2x2x4: 4 weight lanes do not divide 2 core lanes"):
        OnlineNorm(height=2, width=2, channels=4, lanes=2, w_lanes=4)
    with pytest.raises(FoldingError, match="2x2x4: 2 core lanes must be a multiple of 4 lanes and divide 4 channels"):
        OnlineNorm(height=2, width=2, channels=4, lanes=4, core_lanes=2)
    with pytest.raises(FoldingError, match="2x2x4: 3 inverse lanes do not divide 4 channels"):
        OnlineNorm(height=2, width=2, channels=4, inverse_lanes=3)
    fine = OnlineNorm(height=2, width=2, channels=4, beta_fixed=Fixed(16, 54))
    with pytest.raises(
        FoldingError,
        match=r"beta s16\.54 added to gamma s16\.12 times the normalised map s16\.12 takes 63 bits, more than 62;",
    ):
        fine.fold(1000)
    assert replace(fine, beta_fixed=Fixed(16, 53)).fold(1000).engine.sum_width == 62
    with pytest.raises(ShapeError, match="all dimensions must be positive"):
        OnlineNormBackward(height=2, width=0, channels=4)
    with pytest.raises(FoldingError, match=r"signed data of at most 16 bits, not s20\.8"):
        OnlineNorm(height=2, width=2, channels=4, x_fixed=Fixed(20, 8)).start(weights(FORWARD[0], 1))


# -------------------------------------------------------------------------------------------- circuit


def golden_run(layer: Any, count: int, seed: int) -> tuple[Any, dict[str, list[int]], dict[str, list[int]], Any]:
    """Start images, beats of sinks and of sources over ``count`` batches of random codes, and the final state."""
    rng = np.random.default_rng(seed)
    drawn = {port.name: layer.sample(port.name, rng, count * frames_of(layer, port)) for port in layer.sinks}
    if "x" in drawn:
        # data of every scale, so that variances move
        drawn["x"] >>= rng.integers(0, 10, layer.channels)
    versions = {name: drawn[name] for name in layer.parameter_shapes()}
    initial = {name: layer.port(name).tensor.fixed.decode(codes[0]) for name, codes in versions.items()}
    state = layer.start(initial)
    images = layer.images(state)
    made: dict[str, list[Any]] = {port.name: [] for port in layer.sources}
    for batch in range(count):
        inputs = {}
        for port in layer.sinks:
            frames = frames_of(layer, port)
            part = drawn[port.name][batch * frames : (batch + 1) * frames]
            inputs[port.name] = part[0] if port.tensor.kind.per_batch else part
        for name, codes in layer.golden(state, inputs).items():
            made[name] += list(codes) if not layer.port(name).tensor.kind.per_batch else [codes]
    given = {name: codes[1:] if name in versions else codes for name, codes in drawn.items()}
    beats = {name: to_beats(layer, name, codes) for name, codes in given.items()}
    return images, beats, {name: to_beats(layer, name, np.stack(codes)) for name, codes in made.items()}, state


def frames_of(layer: Any, port: Any) -> int:
    return 1 if port.tensor.kind.per_batch else layer.recipe.batch


def run_circuit(
    layer: Any, backend: Backend, count: int, *stalls: float, seed: int = 31
) -> tuple[list[Run], dict[str, list[int]], dict[str, list[int]]]:
    """A run for each probability of stalls, the expected beats, and in MyHDL the words that memories with an image
    hold in the end."""
    images, beats, expected, _ = golden_run(layer, count, seed)
    held: dict[str, list[int]] = {}

    def factory(contents: Any) -> Any:
        domain = ClockReset()
        streams = {port.name: Stream(port.payload_bits) for port in (*layer.sinks, *layer.sources)}
        circuit = layer.circuit(domain, streams, contents)
        if backend is Backend.MYHDL:
            circuit.subs = [*circuit.subs, watch_memories(domain.clk, circuit, held)]
        return circuit

    ports = tuple(StreamPort(port.name, port.payload_bits, Direction.IN) for port in layer.sinks)
    ports += tuple(StreamPort(port.name, port.payload_bits, Direction.OUT) for port in layer.sources)
    design = Design(f"norm_{type(layer).__name__}_{layer.pixels}_{layer.channels}", factory, ports, images)
    counts = {name: len(words) for name, words in expected.items()}
    runs = [
        run_streams(
            backend, design, beats, counts, seed=seed, stall_probability=stall, max_cycles=200_000, drain_cycles=400
        )
        for stall in stalls
    ]
    return runs, expected, held


# the conformance suite runs every example for its bits, and the first ones for their cycles, with fewer batches
MANY_FRAMES = pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layer, marks=[pytest.mark.slow] * (number >= MANY), id=f"{type(layer).__name__}{layer.shape}")
        for layers in (FORWARD, BACKWARD)
        for number, layer in enumerate(layers)
    ],
)


@MANY_FRAMES
def test_circuit_equals_golden_in_every_bit_over_many_frames(layer: Any) -> None:
    runs, expected, _ = run_circuit(layer, Backend.VERILATOR, 36 // layer.recipe.batch, 0.1, 0.5)
    for run in runs:
        for name, words in expected.items():
            assert run.outputs[name] == words, name


def test_frames_of_two_beats_read_the_state_that_the_frame_before_left() -> None:
    # only bursts after pauses bring the beats of one group close together, hence many seeds
    layer = OnlineNormBackward(height=1, width=1, channels=2, recipe=Recipe(batch=4, norm_lag=4))
    for seed in range(8):
        (run,), expected, _ = run_circuit(layer, Backend.VERILATOR, 10, 0.5, seed=seed)
        assert run.outputs["dx"] == expected["dx"], f"seed {seed}"


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layer, marks=[pytest.mark.slow] * (number >= 1), id=f"{type(layer).__name__}{layer.shape}")
        for layers in (FORWARD[:3], BACKWARD[:3])
        for number, layer in enumerate(layers)
    ],
)
def test_memories_hold_the_final_state(layer: Any) -> None:
    count = 2
    _, _, held = run_circuit(layer, Backend.MYHDL, count, 0.2)
    wanted = layer.images(golden_run(layer, count, 31)[3])
    states = [memory.name for memory in layer.memories() if memory.is_state]
    assert states
    for name in states:
        assert held[name] == wanted[name], name


@MANY_FRAMES
def test_frames_follow_at_the_declared_cycles(layer: Any) -> None:
    (run,), _, _ = run_circuit(layer, Backend.VERILATOR, 24 // layer.recipe.batch, 0.0)
    name, beats = ("x" if isinstance(layer, OnlineNorm) else "e"), layer.pixels * layer.channels // layer.lanes
    steady = np.diff(run.fire_cycles[name][::beats])
    assert set(steady[-6:].tolist()) == {layer.cycles_per_frame}, steady


def test_a_norm_adds_at_most_twice_the_error_that_other_layers_of_the_digits_net_do() -> None:
    recipe = Recipe(batch=16, staleness=9)
    training = differentiate(import_model(Path(__file__).parent.parent / "examples/digits/digits.onnx", recipe=recipe))
    data = load_digits()
    feeds = [feeds_of(training, data, index) for index in islice(data.batches(recipe.batch, 1, 0), 12)]
    graph = calibrate(training, feeds[:8])
    found = profile(graph, feeds)
    norms = {
        node.outputs[port] for node in graph.nodes if isinstance(node.layer, OnlineNorm) for port in ("y", "inverse")
    }
    maps = [one for one in found if one.kind in (Kind.ACTIVATION, Kind.ERROR) or one.edge in norms]
    others = [one.own_error_steps for one in maps if one.edge not in norms]
    worst = max(one.own_error_steps for one in maps if one.edge in norms)
    assert 0.25 < max(others) < 0.4
    assert worst <= 2 * max(others), worst
