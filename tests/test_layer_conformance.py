"""One suite over all layers: what every circuit owes to its golden model, its declared cycles and its Verilog.

Each class's `examples` run for a few batches of random codes.  To run one case: ``-k Relu-1``.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from myhdl import Signal

import hdl.layers
from hdl.fixed import IntArray
from hdl.layers.base import Layer, to_beats
from hdl.netlist import Direction
from hdl.recipe import Recipe
from hdl.resources import count
from hdl.simulate import Backend, Design, Run, StreamPort, check_no_x, run_streams
from hdl.stream import Stream
from hdl.tensor import Kind, Port
from hdl.verilog import VerilogModule, check_yosys, compile_icarus, convert, lint_verilog, port_signals

BATCHES = 3
# frames a batch of layers without a recipe
FRAMES = 3
STALL = 0.35
# examples of each class whose Verilog is simulated and synthesised; that of the others only in the slow suite
QUICK = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """One example of a layer with the traffic of some batches."""

    layer: Layer
    # beats by port
    inputs: Mapping[str, Sequence[int]]
    outputs: Mapping[str, Sequence[int]]
    images: Mapping[str, Sequence[int]]
    # tensors by port, as the golden model made them
    tensors: Mapping[str, Sequence[IntArray]]


def all_layers() -> dict[str, Layer]:
    """Every example of every layer, by class name and number."""
    for module in pkgutil.iter_modules(hdl.layers.__path__):
        importlib.import_module(f"hdl.layers.{module.name}")
    kinds = [kind for kind in Layer.registry if kind.__module__.startswith("hdl.layers.")]
    return {f"{kind.__name__}-{number}": example for kind in kinds for number, example in enumerate(kind.examples())}


LAYERS = all_layers()
NAMES = sorted(LAYERS)
QUICK_FIRST = [
    name if int(name.rsplit("-")[-1]) < QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES
]


def frames_a_batch(layer: Layer) -> int:
    """Frames a batch of the test."""
    recipe: Recipe | None = getattr(layer, "recipe", None)
    return recipe.batch if recipe else FRAMES


@cache
def case(name: str, batches: int = BATCHES, least_batch: int = 0) -> Case:
    """Golden traffic of an example; ``least_batch`` enlarges its batches."""
    layer = LAYERS[name]
    if least_batch and hasattr(layer, "recipe"):
        recipe = dataclasses.replace(layer.recipe, batch=max(least_batch, layer.recipe.batch))
        layer = dataclasses.replace(layer, recipe=recipe)  # type: ignore[type-var]
    return make_case(layer, batches)


def make_case(layer: Layer, batches: int, seed: int = 1) -> Case:
    """Random tensors through the golden model."""
    rng = np.random.default_rng(seed)
    per_batch = {port.name for port in (*layer.sinks, *layer.sources) if port.tensor.kind.per_batch}
    delayed = (
        {port.name for port in layer.sinks if port.tensor.kind is Kind.WEIGHT} if layer_reads_frames(layer) else set()
    )
    versions = {name: layer.sample(name, rng, batches) for name in delayed}
    initial = {name: layer.port(name).tensor.fixed.decode(codes[0]) for name, codes in versions.items()}
    for port in layer.sources:
        if port.tensor.kind is Kind.WEIGHT and not delayed:
            codes = rng.integers(port.tensor.fixed.low, port.tensor.fixed.high + 1, port.tensor.shape)
            initial[port.name] = port.tensor.fixed.decode(codes)
    state = layer.start(initial)
    images = layer.images(state)
    tensors: dict[str, list[IntArray]] = {port.name: [] for port in (*layer.sinks, *layer.sources)}
    for batch in range(batches):
        inputs: dict[str, IntArray] = {}
        for port in layer.sinks:
            if port.name in delayed:
                inputs[port.name] = versions[port.name][batch]
            elif port.name in per_batch:
                inputs[port.name] = layer.sample(port.name, rng, 1)[0]
            else:
                inputs[port.name] = layer.sample(port.name, rng, frames_a_batch(layer))
        for name, tensor in (inputs | layer.golden(state, inputs)).items():
            tensors[name].append(tensor[None] if name in per_batch else tensor)
    beats = {
        name: [beat for tensor in found[name in delayed :] for beat in to_beats(layer, name, tensor)]
        for name, found in tensors.items()
    }
    return Case(
        layer,
        {port.name: beats[port.name] for port in layer.sinks},
        {port.name: beats[port.name] for port in layer.sources},
        images,
        tensors,
    )


def layer_reads_frames(layer: Layer) -> bool:
    """Whether weights at the layer's sinks serve frames, so that version 0 is an image."""
    return any(not port.tensor.kind.per_batch for port in layer.sinks)


def elaborate(layer: Layer, images: Mapping[str, Sequence[int]] | None = None) -> tuple[Any, dict[str, Stream]]:
    """The circuit with fresh streams."""
    streams = {port.name: Stream(port.payload_bits) for port in (*layer.sinks, *layer.sources)}
    return layer.circuit(Signal(bool(0)), Signal(bool(0)), streams, images or None), streams


@cache
def converted(name: str) -> VerilogModule:
    """The Verilog of an example, through the conversion lint."""
    return convert(elaborate(LAYERS[name])[0], module_name(name))


def module_name(name: str) -> str:
    """A name for Verilog."""
    return name.replace("-", "_").lower()


class CaseDesign(Design):
    """A design of an example, converted once for all tests."""

    def convert(self) -> VerilogModule:
        """The kept module."""
        return converted(next(name for name in NAMES if module_name(name) == self.name))


def design_of(name: str, layer: Layer, images: Mapping[str, Sequence[int]]) -> tuple[Design, dict[str, str]]:
    """The design, and the circuit's name of each port's stream."""
    module = module_name(name)
    block, streams = elaborate(layer)
    found = {id(signal): port for port, signal in port_signals(block, module).items()}
    names = {port: found[id(stream.valid)].removesuffix("_valid") for port, stream in streams.items()}
    ports = [
        *(stream_port(port, names, Direction.IN) for port in layer.sinks),
        *(stream_port(port, names, Direction.OUT) for port in layer.sources),
    ]
    return CaseDesign(module, lambda given: elaborate(layer, given)[0], tuple(ports), images), names


def stream_port(port: Port, names: Mapping[str, str], direction: Direction) -> StreamPort:
    """A port as the simulator wants it."""
    return StreamPort(names[port.name], port.payload_bits, direction)


def run(name: str, found: Case, backend: Backend, stall: float, seed: int) -> tuple[Run, dict[str, str]]:
    """Simulate a case."""
    design, names = design_of(name, found.layer, found.images)
    inputs = {names[port]: beats for port, beats in found.inputs.items()}
    counts = {names[port]: len(beats) for port, beats in found.outputs.items()}
    return run_streams(backend, design, inputs, counts, seed=seed, stall_probability=stall), names


def compare(name: str, backend: Backend, seed: int) -> None:
    """Every beat of every output under random stalls."""
    found = case(name)
    result, names = run(name, found, backend, STALL, seed)
    for port, beats in found.outputs.items():
        got = result.outputs[names[port]]
        wrong = [at for at, (left, right) in enumerate(zip(got, beats, strict=True)) if left != right]
        assert not wrong, (
            f"{found.layer}, seed {seed}: {len(wrong)} of {len(beats)} beats of {port} differ, first beat {wrong[0]}: "
            f"{got[wrong[0]]:#x}, golden {beats[wrong[0]]:#x}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_golden_model_gives_tensors_of_the_declared_shapes_and_ranges(name: str) -> None:
    found = case(name)
    for port in found.layer.sources:
        frames = 1 if port.tensor.kind.per_batch else frames_a_batch(found.layer)
        for tensor in found.tensors[port.name]:
            assert tensor.shape == (frames, *port.tensor.shape)
            assert tensor.dtype == np.int64
            assert tensor.min() >= port.tensor.fixed.low
            assert tensor.max() <= port.tensor.fixed.high


@pytest.mark.parametrize("name", NAMES)
def test_myhdl_circuit_equals_the_golden_model_in_every_bit_under_random_stalls(name: str) -> None:
    compare(name, Backend.MYHDL, seed=11)


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_verilog_in_verilator_equals_the_golden_model_in_every_bit_under_random_stalls(name: str) -> None:
    for seed in (21, 22):
        compare(name, Backend.VERILATOR, seed)


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_verilog_in_icarus_equals_the_golden_model_in_every_bit_under_random_stalls(name: str) -> None:
    compare(name, Backend.ICARUS, seed=31)


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_verilog_shows_no_x_while_inputs_that_are_not_valid_are_x(name: str) -> None:
    found = case(name)
    design, names = design_of(name, found.layer, found.images)
    inputs = {names[port]: beats for port, beats in found.inputs.items()}
    counts = {names[port]: len(beats) for port, beats in found.outputs.items()}
    check_no_x(design, inputs, counts, seed=41)


@pytest.mark.parametrize("name", NAMES)
def test_measured_cycles_a_frame_are_the_declared_ones(name: str) -> None:
    # queues must have filled, also those of tiny frames
    batches = 1 if hasattr(LAYERS[name], "recipe") and layer_reads_frames(LAYERS[name]) else 3
    found = case(name, batches, least_batch=9 + 64 // LAYERS[name].cycles_per_frame)
    layer, frames = found.layer, frames_a_batch(found.layer)
    result, names = run(name, found, Backend.MYHDL, 0.0, seed=1)
    sources = [port for port in layer.sources if not port.tensor.kind.per_batch]
    sinks = [port for port in layer.sinks if not port.tensor.kind.per_batch]
    if sources or sinks:
        # the steady middle of a batch; of sinks, the one that doesn't run ahead
        first, last = (frames - 5, frames - 1) if frames > 5 else (3, 3 * frames - 1)
        measured = []
        for port in sources or sinks:
            ends = frame_ends(result, names[port.name], port)
            measured.append((ends[last] - ends[first]) / (last - first))
        assert max(measured) == layer.cycles_per_frame, (layer, measured)
        assert not sources or min(measured) == layer.cycles_per_frame, (layer, measured)
    else:
        for port in layer.sources:
            ends = frame_ends(result, names[port.name], port)
            assert -(-(ends[-1] - ends[-2]) // frames) == layer.cycles_per_frame, (layer, ends)


def frame_ends(result: Run, name: str, port: Port) -> list[int]:
    """Cycles in which the last beats of tensors passed."""
    return result.fire_cycles[name][port.beats - 1 :: port.beats]


@pytest.mark.parametrize("name", NAMES)
def test_verilog_is_accepted_by_every_tool_without_a_warning(name: str, tmp_path: Path) -> None:
    module = converted(name)
    files = [module.write(tmp_path)]
    lint_verilog(files, module.name)
    compile_icarus(files, module.name)
    if int(name.rsplit("-")[-1]) < QUICK:
        check_yosys(files, module.name)


@pytest.mark.parametrize("name", NAMES)
def test_declared_multipliers_are_those_of_the_circuit(name: str) -> None:
    assert count(elaborate(LAYERS[name])[0]).multiplier_count == LAYERS[name].multipliers


@pytest.mark.parametrize("name", NAMES)
def test_declared_memories_are_those_of_the_circuit_and_of_the_images(name: str) -> None:
    layer = LAYERS[name]
    found = converted(name).images
    declared = {memory.name: (memory.depth, memory.width) for memory in layer.memories()}
    assert {name: (image.depth, image.width) for name, image in found.items()} == declared
    for memory, words in case(name).images.items():
        depth, width = declared[memory]
        assert len(words) == depth
        assert all(0 <= word < 1 << width for word in words)
