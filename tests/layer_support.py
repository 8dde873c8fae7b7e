"""Random traffic for any layer, through its golden model and through its circuit in any simulator."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from myhdl import always, block

from hdl.convert.netlist import Direction
from hdl.convert.verilog import VerilogModule
from hdl.elaboration.ports import port_signals, subblocks
from hdl.engine.weights.records import Kind as Records
from hdl.engine.weights.records import Record, chain_of, start
from hdl.fixed import FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.beats import to_beats
from hdl.layers.capabilities import Batched, Counting
from hdl.layers.meaning import State
from hdl.layers.storage import DUMP, LOAD
from hdl.recipe import LoadedRecipe, Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Run, StreamPort, run_streams
from hdl.stream import Stream
from hdl.tensor import Kind, Port

BATCHES = 3
# bits of memories whose contents come by a stream
NONSENSE = int("10" * 1024, 2)
# memories that no training changes
CONSTANT = frozenset({"rates"})
# frames a batch of layers without a recipe
FRAMES = 3
STALL = 0.35
QUICK_SEEDS = 3


def seeds(count: int) -> list[Any]:
    """Seeds of random circuits as parameters; those from `QUICK_SEEDS` on only in the slow suite."""
    return [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= QUICK_SEEDS)) for seed in range(count)]


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer with the traffic of some batches."""

    layer: Layer
    # beats by port
    inputs: Mapping[str, Sequence[int]]
    outputs: Mapping[str, Sequence[int]]
    images: Mapping[str, Sequence[int]]
    # tensors by port, as the golden model made them
    tensors: Mapping[str, Sequence[IntArray]]


@dataclasses.dataclass(frozen=True)
class CaseDesign(Design):
    """A design that knows how its ports are called in the circuit, and may be converted elsewhere."""

    # port -> name of its stream in the circuit
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    converted: Callable[[], VerilogModule] | None = None

    def convert(self) -> VerilogModule:
        """The Verilog, from ``converted`` if given."""
        return self.converted() if self.converted else super().convert()


def sound_examples(kind: type[Layer]) -> tuple[Layer, ...]:
    """The examples of a class.  Raises AssertionError, which names it, where it can't make them, or where one is of no
    use to a test because it can't tell its ports."""
    try:
        found = kind.examples()
        for layer in found:
            assert isinstance(layer, kind), f"{layer!r} is none of it"
            ports = [*layer.sinks, *layer.sources]
            assert ports, f"{layer} has no ports"
    except Exception as error:
        raise AssertionError(f"{kind.__name__}.examples: {type(error).__name__}: {error}") from error
    # the host's ports have no circuit of their own
    assert found or kind.pinned_to_host, f"{kind.__name__} has no examples"
    return found


def all_examples(kinds: Iterable[type[Layer]]) -> dict[str, Layer]:
    """Every example by class name and number, for tests to be collected over.  Those of a class whose examples aren't
    sound are left out: one test of tests/test_layer_conformance.py fails for it, and all others run."""
    found: dict[str, Layer] = {}
    for kind in kinds:
        with contextlib.suppress(AssertionError):
            found |= {f"{kind.__name__}-{number}": layer for number, layer in enumerate(sound_examples(kind))}
    return found


def frames_a_batch(layer: Layer) -> int:
    """Frames a batch of the test."""
    recipe: Recipe | None = layer.recipe if isinstance(layer, Batched) else None
    return recipe.batch if recipe else FRAMES


def deals(layer: Layer) -> bool:
    """Whether some of its ports pass only some of the frames."""
    frames = frames_a_batch(layer)
    return any(layer.frames_at(port.name, frames) < frames for port in (*layer.sinks, *layer.sources))


def reads_frames(layer: Layer) -> bool:
    """Whether weights at the layer's sinks serve frames, so that version 0 is an image."""
    return any(not port.tensor.kind.per_batch for port in (*layer.sinks, *layer.sources))


def make_case(layer: Layer, batches: int = BATCHES, seed: int = 1) -> Case:
    """Random tensors through the golden model."""
    rng = np.random.default_rng(seed)
    loading = Loading.of(layer)
    batches += loading.behind if loading is not None else 0
    per_batch = {port.name for port in (*layer.sinks, *layer.sources) if port.tensor.kind.per_batch}
    weights = {port.name for port in layer.sinks if port.tensor.kind is Kind.WEIGHT}
    delayed = weights if reads_frames(layer) else set()
    versions = {name: layer.sample(name, rng, batches) for name in sorted(delayed)}
    initial = {name: layer.port(name).tensor.fixed.decode(codes[0]) for name, codes in versions.items()}
    for port in layer.held_parameters:
        initial[port.name] = port.tensor.fixed.decode(layer.sample(port.name, rng, 1)[0])
    for port in layer.sources:
        if port.tensor.kind is Kind.WEIGHT and not weights:
            fixed = port.tensor.fixed
            initial[port.name] = fixed.decode(rng.integers(fixed.low, fixed.high + 1, port.tensor.shape))
    state = layer.start(initial)
    contents = layer.images(state)
    images = {memory.name: contents[memory.name] for memory in layer.memories()}
    if loading is not None:
        # what nobody may read: all but tables and frozen weights
        kept = CONSTANT | {"weights"} if layer.held_parameters else CONSTANT
        changed = [memory for memory in layer.memories() if memory.name not in kept]
        images |= {memory.name: [NONSENSE % (1 << memory.width)] * memory.depth for memory in changed}
        loading.keep(layer, state)
    rings: dict[str, list[int]] = {port.name: [] for port in ring_ports(layer)}
    tensors: dict[str, list[IntArray]] = {port.name: [] for port in (*layer.sinks, *layer.sources)}
    for batch in range(batches):
        inputs: dict[str, IntArray] = {}
        for port in layer.sinks:
            if port.name in delayed:
                inputs[port.name] = versions[port.name][batch]
            elif port.name in per_batch:
                inputs[port.name] = layer.sample(port.name, rng, 1)[0]
            else:
                frames = layer.frames_at(port.name, frames_a_batch(layer))
                inputs[port.name] = layer.sample(port.name, rng, frames)
        for ring in layer.rings if loading is None else ():
            rings[ring.back.name] += layer.images(state)[ring.name]
        for name, tensor in (inputs | layer.golden(state, inputs)).items():
            tensors[name].append(tensor[None] if name in per_batch else tensor)
        for ring in layer.rings if loading is None else ():
            rings[ring.out.name] += layer.images(state)[ring.name]
        if loading is not None:
            loading.keep(layer, state)
    if loading is not None:
        loading.drop(
            tensors, delayed, {name: layer.port(name).tensor.fixed.encode(values) for name, values in initial.items()}
        )
    for ring in layer.rings if loading is not None else ():
        out = loading.passing(ring.name)
        rings[ring.out.name] = [beat for tensor in out for beat in tensor]
        # the last one stays
        rings[ring.back.name] = [beat for tensor in out[:-1] for beat in tensor]
    for port in layer.fetched:
        rings[port.name] = batches * frames_a_batch(layer) * layer.images(state)[port.name]
    beats = {
        # version 0 is the image
        name: [
            beat for tensor in found[name in delayed and loading is None :] for beat in to_beats(layer, name, tensor)
        ]
        for name, found in tensors.items()
    }
    sent, given = ({}, {}) if loading is None else ({LOAD.name: loading.sent}, {DUMP.name: loading.given})
    return Case(
        layer,
        {port.name: beats[port.name] for port in layer.sinks}
        | {r.back.name: rings[r.back.name] for r in layer.rings}
        | {port.name: rings[port.name] for port in layer.fetched}
        | (sent if layer.accessed else {}),
        {port.name: beats[port.name] for port in layer.sources}
        | {r.out.name: rings[r.out.name] for r in layer.rings}
        | (given if layer.accessed else {}),
        images,
        tensors,
    )


def ring_ports(layer: Layer) -> tuple[Port, ...]:
    """Ports beside the graph: of state that comes with the traffic of every batch and leaves changed."""
    return tuple(port for ring in layer.rings for port in (ring.back, ring.out))


@dataclasses.dataclass
class Loading:
    """The traffic of a layer whose state is loaded behind a batch, and dumped behind the next one and the last."""

    # what its counters stand at, frames a batch, versions of weights that are loaded
    begun: int
    batch: int
    rounds: int
    # words of its state before the first batch and behind every one
    states: list[list[int]] = dataclasses.field(default_factory=list)
    # likewise, what stands in its rings
    tensors: dict[str, list[list[int]]] = dataclasses.field(default_factory=dict)
    behind: int = 1

    @classmethod
    def of(cls, layer: Layer) -> Loading | None:
        """None where nothing is loaded."""
        if not isinstance(layer, Batched) or not isinstance(layer.recipe, LoadedRecipe):
            return None
        begun = layer.begun if isinstance(layer, Counting) else 0
        # of the training, of which a copy has a share
        batch = layer.recipe.dealt.batch if layer.recipe.dealt else layer.recipe.batch
        return cls(begun, batch, layer.recipe.rounds)

    def keep(self, layer: Layer, state: State) -> None:
        """What it holds behind a batch, or before the first."""
        self.states.append(layer.state_words(state))
        for ring in layer.rings:
            self.tensors.setdefault(ring.name, []).append(layer.images(state)[ring.name])

    def passing(self, ring: str) -> list[list[int]]:
        """The tensors that go out to a ring: those that are loaded, those of batches, again those that are dumped."""
        found = self.tensors[ring]
        loaded, (first, *later) = found[self.behind + 1 - self.rounds :][: self.rounds], found[self.behind + 1 :]
        return [*loaded, first, first, *later, found[-1]]

    def drop(self, tensors: dict[str, list[IntArray]], delayed: set[str], initial: Mapping[str, IntArray]) -> None:
        """Forget what passes before the load, less the versions of weights that it brings."""
        for name, found in tensors.items():
            if name not in initial:
                del found[: self.behind]
            elif name in delayed:
                # version 0 is among them
                del found[: self.behind + 1 - self.rounds]
            elif self.rounds > 1:
                found.insert(0, initial[name][None])

    @property
    def sent(self) -> list[int]:
        """Also what is none of its own, and the state of a circuit behind it."""
        loaded = self.states[self.behind + 1 - self.rounds :][: self.rounds]
        loads = [record for words in loaded for record in (self.start, *own(Records.LOAD, words))]
        return chain_of([*loads, *self.foreign, self.run(1), Record(Records.DUMP), self.run(), Record(Records.DUMP)])

    @property
    def given(self) -> list[int]:
        """What it takes is missing, what it dumps stands in front of the DUMP."""
        states = self.states[self.behind + 1], self.states[-1]
        early, late = ([*own(Records.STATE, words), Record(Records.DUMP)] for words in states)
        return chain_of([*[self.start] * self.rounds, *self.foreign, self.run(1), *early, self.run(), *late])

    @property
    def start(self) -> Record:
        """In front of each round."""
        return start(self.begun + self.behind, self.batch)

    @property
    def foreign(self) -> list[Record]:
        """Of another length, and one too many."""
        return [Record(Records.LOAD, (3,) * (len(self.states[0]) + 1)), *own(Records.LOAD, self.states[0])]

    def run(self, batches: int | None = None) -> Record:
        """So many batches, or all but the first."""
        return Record(Records.RUN, (batches or len(self.states) - 2 - self.behind,))


def own(kind: Records, words: Sequence[int]) -> list[Record]:
    """The record of a layer that has words of state."""
    return [Record(kind, tuple(words))] if words else []


def elaborate(layer: Layer, images: Mapping[str, Sequence[int]] | None = None) -> tuple[Any, dict[str, Stream]]:
    """The circuit with fresh streams."""
    ports = (*layer.sinks, *layer.sources, *layer.beside)
    streams = {port.name: Stream(port.payload_bits) for port in ports}
    return layer.circuit(ClockReset(), streams, images or None), streams


def design_of(case: Case, name: str = "dut", converted: Callable[[], VerilogModule] | None = None) -> CaseDesign:
    """The design of a case."""
    block, streams = elaborate(case.layer)
    found = {id(signal): port for port, signal in port_signals(block, name).items()}
    names = {port: found[id(stream.valid)].removesuffix("_valid") for port, stream in streams.items()}
    ports = [
        *(_stream_port(port, names, Direction.IN) for port in case.layer.sinks),
        *(_stream_port(port, names, Direction.OUT) for port in case.layer.sources),
        *(_stream_port(ring.back, names, Direction.IN) for ring in case.layer.rings),
        *(_stream_port(ring.out, names, Direction.OUT) for ring in case.layer.rings),
        *(_stream_port(port, names, Direction.IN) for port in case.layer.fetched),
    ]
    if case.layer.accessed:
        ports += [_stream_port(LOAD, names, Direction.IN), _stream_port(DUMP, names, Direction.OUT)]
    made = Design(name, lambda given: elaborate(case.layer, given)[0], tuple(ports), case.images)
    unused = [block]

    def convert() -> VerilogModule:
        return dataclasses.replace(made, factory=lambda _: unused.pop()).convert() if unused else made.convert()

    return CaseDesign(name, made.factory, made.streams, made.images, {}, names, converted or convert)


def _stream_port(port: Port, names: Mapping[str, str], direction: Direction) -> StreamPort:
    return StreamPort(names[port.name], port.payload_bits, direction)


def traffic(case: Case, design: CaseDesign) -> tuple[dict[str, Sequence[int]], dict[str, int]]:
    """Input beats and expected numbers of output beats by stream of the circuit."""
    inputs = {design.names[port]: beats for port, beats in case.inputs.items()}
    return inputs, {design.names[port]: len(beats) for port, beats in case.outputs.items()}


def simulate(case: Case, design: CaseDesign, backend: Backend, stall: float, seed: int) -> Run:
    """Simulate a case; keys of the result are ports."""
    inputs, counts = traffic(case, design)
    run = run_streams(backend, design, inputs, counts, seed=seed, stall_probability=stall)
    back = {stream: port for port, stream in design.names.items()}
    return Run(
        {back[name]: beats for name, beats in run.outputs.items()},
        {back[name]: cycles for name, cycles in run.fire_cycles.items()},
        run.cycles,
    )


def assert_equal_bits(case: Case, design: CaseDesign, backend: Backend, seed: int, stall: float = STALL) -> None:
    """Every beat of every output under random stalls."""
    result = simulate(case, design, backend, stall, seed)
    for port, beats in case.outputs.items():
        got = result.outputs[port]
        wrong = [at for at, (left, right) in enumerate(zip(got, beats, strict=True)) if left != right]
        assert not wrong, (
            f"{case.layer}, seed {seed}: {len(wrong)} of {len(beats)} beats of {port} differ, first beat {wrong[0]}: "
            f"{got[wrong[0]]:#x}, golden {beats[wrong[0]]:#x}"
        )


def frame_ends(result: Run, port: Port) -> list[int]:
    """Cycles in which the last beats of tensors passed."""
    return result.fire_cycles[port.name][port.beats - 1 :: port.beats]


class DirectTape:
    """A tape that computes every backward node at once; edges are names of arrays."""

    def __init__(self, layer: Layer, inputs: Mapping[str, FloatArray], rng: np.random.Generator) -> None:
        self.layer = layer
        self.arrays: dict[str, FloatArray] = dict(inputs)
        self.arrays.update(forward(layer, inputs))
        self.errors = {
            port.name: rng.normal(size=self.arrays[port.name].shape)
            for port in layer.sources
            if port.tensor.kind is Kind.ACTIVATION
        }
        self.arrays.update((f"error of {name}", value) for name, value in self.errors.items())
        # sink -> derivative of sum(error * source)
        self.derivatives: dict[str, FloatArray] = {}

    def value(self, port: str) -> str:
        return port

    def error(self, port: str) -> str:
        return f"error of {port}"

    def needs_error(self, port: str) -> bool:
        del port
        return True

    def add(self, suffix: str, layer: Layer, inputs: Mapping[str, str]) -> dict[str, str]:
        values = {port: self.arrays[edge] for port, edge in inputs.items()}
        parameters = {port.name: values[port.name] for port in layer.sinks if port.tensor.kind is Kind.WEIGHT}
        parameters |= {port.name: self.arrays[port.name] for port in layer.held_parameters}
        made = layer.reference(layer.start_reference(parameters), values) if layer.sources else {}
        self.arrays.update((f"{suffix}.{port}", value) for port, value in made.items())
        return {port: f"{suffix}.{port}" for port in made}

    def give_error(self, port: str, edge: str) -> None:
        assert port not in self.derivatives, f"two errors for sink {port}"
        self.derivatives[port] = self.arrays[edge]

    def learn(self, sink: str, gradient: str) -> str:
        self.derivatives[sink] = self.arrays[gradient]
        return sink

    def connect(self, node_edge_sink: str, edge: str) -> None:
        raise AssertionError(f"{node_edge_sink} <- {edge}: a layer under test has all its inputs")


def forward(layer: Layer, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    parameters = {name: inputs[name] for name in layer.parameter_shapes()}
    return layer.reference(layer.start_reference(parameters), inputs)


@block
def watch_memories(clk: Any, circuit: Any, held: dict[str, list[int]]) -> Any:
    """Keeps in ``held`` what memories with an image hold; MyHDL clears signals when a simulation ends."""
    memories = {sub.kwargs["image"]: sub.symdict["mem"] for sub in subblocks(circuit) if sub.kwargs.get("image")}

    @always(clk.posedge)
    def watch() -> None:
        held.update((name, [int(word) for word in words]) for name, words in memories.items())

    return watch
