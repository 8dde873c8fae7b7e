"""One suite over all layers: what every circuit owes to its golden model, its declared cycles and its Verilog.

Each class's `examples` run for a few batches of random codes.  To run one case: ``-k Relu-1``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import VerilogModule
from hdl.costs.estimate import Circuit, elaborated_contents
from hdl.errors import DeadlockError
from hdl.layers.base import Layer
from hdl.layers.capabilities import engines_of
from hdl.layers.registry import load_layers
from hdl.simulate import Backend, Run, check_no_x, run_streams
from hdl.tensor import Port
from tests.layer_support import (
    BATCHES,
    Case,
    CaseDesign,
    all_examples,
    assert_equal_bits,
    deals,
    design_of,
    frame_ends,
    frames_a_batch,
    make_case,
    reads_frames,
    simulate,
    sound_examples,
    traffic,
)
from tests.passage_support import said_and_measured

# cycles after which a simulation that should end has locked; what one that may lock is given beyond twice what it
# takes when it doesn't
MOST_CYCLES, PATIENCE_CYCLES = 4_000, 64
# cycles by which results of a layer may come sooner or later than said
CLOSE_CYCLES = 3
# frames a batch of what is compiled, at least, beyond those that fill queues
LEAST_BATCH = 9
# examples of each class that are simulated in MyHDL and Icarus and read by every tool; that are compiled, for bits and
# cycles in Verilator; the others only in the slow suite
SOURCE, QUICK = 1, 2


LAYERS = all_examples(load_layers().values())
NAMES = sorted(LAYERS)


def example(name: str, *marks: pytest.MarkDecorator) -> Any:
    """An example as a parameter; all tests of one run in one process, where its traffic and Verilog are made once."""
    return pytest.param(name, marks=(pytest.mark.xdist_group(name), *marks))


EXAMPLES = [example(name) for name in NAMES]


def first(count: int) -> list[Any]:
    """The first examples of each class; the others only in the slow suite."""
    return [example(name, *[pytest.mark.slow] * (int(name.rsplit("-")[-1]) >= count)) for name in NAMES]


SOURCE_FIRST, QUICK_FIRST = first(SOURCE), first(QUICK)
# those of which each frame passes all ports; circuits of what deals frames out run between copies in test_copies.py
ALL_FRAMES = [item for item in QUICK_FIRST if not deals(LAYERS[item.values[0]])]


# the simulator that tells cycles: all tests of an example share one build of it, and each run takes it milliseconds
PACED = Backend.VERILATOR

KINDS = sorted({name.rsplit("-")[0] for name in NAMES})


def paced_layer(name: str) -> Layer:
    """The example with batches so large that queues fill, also those of tiny frames: what is converted and compiled."""
    layer = LAYERS[name]
    if not hasattr(layer, "recipe"):
        return layer
    batch = max(LEAST_BATCH + 64 // layer.cycles_per_frame, layer.recipe.batch)
    return dataclasses.replace(layer, recipe=dataclasses.replace(layer.recipe, batch=batch))  # type: ignore[type-var]


@cache
def case(name: str, batches: int = BATCHES) -> Case:
    """Golden traffic of an example in large batches."""
    return make_case(paced_layer(name), batches)


@cache
def converted(name: str) -> VerilogModule:
    """The Verilog of an example, through the conversion lint."""
    return design(name).verilog


@cache
def unstalled(name: str, batches: int = BATCHES) -> Run:
    """The traffic of an example through its circuit at full pace, simulated once for all tests."""
    return simulate(case(name, batches), design(name, batches), PACED, stall=0.0, seed=1)


@cache
def design(name: str, batches: int = BATCHES) -> CaseDesign:
    """The design of an example, made and converted once for all tests, with the images of the traffic of so many
    batches, which need no other build."""
    if batches == BATCHES:
        return design_of(case(name), name.replace("-", "_").lower())
    return dataclasses.replace(design(name), images=case(name, batches).images, converted=lambda: converted(name))


@pytest.mark.parametrize("kind", sorted(load_layers()))
def test_a_layer_makes_its_examples(kind: str) -> None:
    sound_examples(load_layers()[kind])


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_model_gives_tensors_of_the_declared_shapes_and_ranges(name: str) -> None:
    found = case(name)
    for port in found.layer.sources:
        all_frames = found.layer.frames_at(port.name, frames_a_batch(found.layer))
        frames = 1 if port.tensor.kind.per_batch else all_frames
        for tensor in found.tensors[port.name]:
            assert tensor.shape == (frames, *port.tensor.shape)
            assert tensor.dtype == np.int64
            assert tensor.min() >= port.tensor.fixed.low
            assert tensor.max() <= port.tensor.fixed.high


@pytest.mark.parametrize("name", SOURCE_FIRST)
def test_myhdl_circuit_equals_the_golden_model_in_every_bit_under_random_stalls(name: str) -> None:
    # small batches: MyHDL takes a millisecond a cycle
    found = make_case(LAYERS[name])
    assert_equal_bits(found, design_of(found), Backend.MYHDL, seed=11)


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_verilog_in_verilator_equals_the_golden_model_in_every_bit_under_random_stalls(name: str) -> None:
    for seed in (21, 22):
        assert_equal_bits(case(name), design(name), Backend.VERILATOR, seed)


@pytest.mark.parametrize("name", SOURCE_FIRST)
def test_verilog_in_icarus_equals_the_golden_model_in_every_bit_under_random_stalls(name: str) -> None:
    assert_equal_bits(case(name, 1), design(name, 1), Backend.ICARUS, seed=31)


@pytest.mark.parametrize("name", SOURCE_FIRST)
def test_verilog_shows_no_x_while_inputs_that_are_not_valid_are_x(name: str) -> None:
    inputs, counts = traffic(case(name, 1), design(name, 1))
    check_no_x(design(name, 1), inputs, counts, seed=41)


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_measured_cycles_a_frame_are_the_declared_ones(name: str) -> None:
    # a batch into which no next version of weights comes
    batches = 1 if hasattr(LAYERS[name], "recipe") and reads_frames(LAYERS[name]) else BATCHES
    layer, result = paced_layer(name), unstalled(name, batches)
    frames = frames_a_batch(layer)
    # where frames are dealt out, the ports that pass all of them
    passing = [port.name for port in (*layer.sources, *layer.sinks) if layer.frames_at(port.name, frames) == frames]
    sources, sinks = (
        [port for port in ports if not port.tensor.kind.per_batch and port.name in passing]
        for ports in (layer.sources, layer.sinks)
    )
    if not sources and not sinks:
        for port in layer.sources:
            ends = frame_ends(result, port)
            assert -(-(ends[-1] - ends[-2]) // frames) == layer.cycles_per_frame, (layer, ends)
        return
    # the steady middle of a batch; of sinks, the one that doesn't run ahead
    first, last = (frames - 5, frames - 1) if frames > 5 else (3, 3 * frames - 1)
    for engine in engines_of(layer):
        own = {port.name for port in (*engine.sinks, *engine.sources)}
        measured = []
        for port in (port for port in sources or sinks if port.name in own):
            ends = frame_ends(result, port)
            measured.append((ends[last] - ends[first]) / (last - first))
        assert max(measured) == engine.cycles_per_frame, (layer, measured)
        assert not sources or min(measured) == engine.cycles_per_frame, (layer, measured)
    assert layer.cycles_per_frame == max(engine.cycles_per_frame for engine in engines_of(layer))


@pytest.mark.parametrize("name", SOURCE_FIRST)
def test_verilog_is_accepted_by_every_tool_without_a_warning(name: str, tmp_path: Path) -> None:
    module = converted(name)
    files = [module.write(tmp_path)]
    lint_verilog(files, module.name)
    compile_icarus(files, module.name)
    if int(name.rsplit("-")[-1]) < QUICK:
        check_yosys(files, module.name)


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_declared_multipliers_are_those_of_the_circuit(name: str) -> None:
    circuit = Circuit.of_layer(LAYERS[name])
    assert elaborated_contents(circuit.widths, circuit.build).multiplier_count == LAYERS[name].multipliers


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_declared_memories_are_those_of_the_circuit_and_of_the_images(name: str) -> None:
    found = converted(name).images
    declared = {memory.name: (memory.depth, memory.width) for memory in LAYERS[name].memories()}
    assert {name: (image.depth, image.width) for name, image in found.items()} == declared
    for memory, words in case(name).images.items():
        depth, width = declared[memory]
        assert len(words) == depth
        assert all(0 <= word < 1 << width for word in words)


@pytest.mark.parametrize("name", ALL_FRAMES)
def test_outputs_come_from_no_more_input_than_declared(name: str) -> None:
    found = case(name)
    for source in found.layer.sources:
        if not source.tensor.kind.per_batch:
            for beats in asked_beats(source):
                # nothing of a batch, and all of what is fetched
                fetched = {port.name for port in found.layer.fetched}
                given = dict.fromkeys(found.inputs.keys() - fetched, 0) | needed(found, source, beats)
                run = paced(name, source, beats, given)
                assert run is not None, (source.name, beats)
                came = run.outputs[design(name).names[source.name]]
                assert len(came) >= beats
                assert came == found.outputs[source.name][: len(came)]


def asked_beats(source: Port) -> list[int]:
    """Numbers of a source's beats that are looked at: the first, half of a frame, all of it."""
    return sorted({1, -(-source.beats // 2), source.beats})


def needed(found: Case, source: Port, beats: int) -> dict[str, int]:
    """Sink -> beats that must have come for so many of a source, of a frame; none of a sink of batches."""
    elements = found.layer.required(source.name, beats * source.lanes)
    for port in found.layer.sinks:
        assert port.tensor.kind.per_batch or 0 <= elements[port.name] <= port.tensor.elements
    return {
        port.name: -(-elements[port.name] // port.lanes) for port in found.layer.sinks if not port.tensor.kind.per_batch
    }


def paced(name: str, source: Port, beats: int, given: Mapping[str, int], limit: int = MOST_CYCLES) -> Run | None:
    """The run until so many beats came out of a source when so many are given to some of the sinks, and all to the
    others; None if they don't come within the limit."""
    found, made = case(name), design(name)
    inputs = {made.names[port]: part[: given.get(port, len(part))] for port, part in found.inputs.items()}
    counts = {made.names[source.name]: beats}
    try:
        return run_streams(PACED, made, inputs, counts, seed=1, max_cycles=limit, drain_cycles=0)
    except DeadlockError:
        return None


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_need_no_less_input_than_declared(kind: str) -> None:
    # source, sink, and whether all of the sink is asked for -> whether some example needs every beat that is
    tight: dict[tuple[str, str, bool], bool] = {}
    for name in (name for name in NAMES if name.rsplit("-")[0] == kind and not deals(LAYERS[name])):
        layer = LAYERS[name]
        sinks = [port for port in layer.sinks if not port.tensor.kind.per_batch]
        for source in (port for port in layer.sources if not port.tensor.kind.per_batch):
            for beats in asked_beats(source):
                asked = needed(case(name), source, beats)
                pairs = {port.name: (source.name, port.name, asked[port.name] == port.beats) for port in sinks}
                open_pairs = {sink: pair for sink, pair in pairs.items() if asked[sink] and not tight.get(pair)}
                if open_pairs:
                    whole = paced(name, source, beats, {})
                    assert whole is not None, (name, source.name, beats)
                for sink, pair in open_pairs.items():
                    # what comes with all input comes about as soon without some of it, or never
                    limit = 2 * whole.cycles + PATIENCE_CYCLES
                    less = paced(name, source, beats, {sink: asked[sink] - 1}, limit)
                    tight[pair] = less is None
    assert all(tight.values()), tight


@pytest.mark.parametrize("name", ALL_FRAMES)
def test_outputs_come_when_the_declared_cycles_say(name: str) -> None:
    found, result = case(name), unstalled(name)
    for source in found.layer.sources:
        if not source.tensor.kind.per_batch:
            needed = found.layer.required(source.name, source.lanes)
            entered = [
                result.fire_cycles[sink.name][max(-(-needed[sink.name] // sink.lanes), 1) - 1]
                for sink in found.layer.sinks
                if not sink.tensor.kind.per_batch
            ]
            # what gives a frame the weights that stand here waits for nothing of it
            latest = max(entered, default=result.fire_cycles[source.name][0])
            assert result.fire_cycles[source.name][0] - latest <= found.layer.pipeline_cycles, source.name
    # what is loaded comes first; schedules know the layer whose memory a store is
    if found.layer.sinks and not found.layer.accessed and not found.layer.is_store:
        for source, first, last, *measured in said_and_measured(found.layer, result, BATCHES):
            late = CLOSE_CYCLES + BATCHES * found.layer.stolen_cycles
            assert first - CLOSE_CYCLES <= measured[0] <= first + late, source
            assert last - CLOSE_CYCLES <= measured[1] <= last + late, source
