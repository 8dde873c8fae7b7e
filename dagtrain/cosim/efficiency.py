"""How well each MAC engine uses its multipliers, measured in simulation of its Verilog.

Every distinct engine of a folded graph runs alone, inputs always there and outputs always taken, for a few frames
inside one batch.  Its MAC-slot efficiency is ``macs / (multipliers * measured cycles a frame)``, the share of slots
(multiplier x cycle) that hold a multiplication of the algorithm.  Filling the pipeline before the first frame and
draining sums between batches are not part of it.

Measurements are kept in the cache folder under the engine's configuration and the code of all circuits.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dagtrain.emission.delivered import Delivered
from dagtrain.emission.modules import ModuleLibrary, StreamModule
from dagtrain.files import write_text
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress
from hdl.cache import cache_folder, code_hash
from hdl.convert.netlist import Direction
from hdl.convert.verilog import VerilogModule
from hdl.layers.base import Layer
from hdl.layers.beats import to_beats
from hdl.layers.capabilities import is_engine, with_own_memory
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, StreamPort, run_streams
from hdl.stream import Stream
from hdl.tensor import Kind, Port

SCHEMA_VERSION = 1
# an engine that multiplies in less of its slots than this gets a reason
WELL_USED = 0.95
# frames over whose ends the interval is taken
STEADY_FRAMES = 4
# frames before them, and cycles until the queues of tiny frames have filled
FILL_FRAMES, FILL_CYCLES = 2, 64
# cycles beyond which a run is called stuck: several times what is declared, and the pipeline
STUCK_FACTOR, STUCK_CYCLES = 4, 100_000
# niceness of measurements beside other work
LOW_PRIORITY = 10


@dataclass(frozen=True)
class Measurement:
    """One engine of the graph."""

    node: str
    # between ends of frames, in steady state
    cycles_per_frame: float
    # multiplications of the algorithm over slots
    efficiency: float
    # why slots stay empty; "" if at least `WELL_USED` of them don't
    waits_for: str


@dataclass(frozen=True)
class _EngineDesign(Design):
    """A design whose Verilog is there already."""

    module: VerilogModule | None = None

    def convert(self) -> VerilogModule:
        return self.module or super().convert()


def runs_alone(layer: Layer) -> bool:
    """Whether a layer multiplies tile by tile, with weights or sums in the device, so that it can run alone."""
    elsewhere = any(port.tensor.kind.of_store for port in (*layer.sinks, *layer.sources))
    return is_engine(layer) and not (layer.rings or layer.replayed or layer.fetched or elsewhere)


class EngineMeasurements:
    """Measurements of every engine of a folded graph, each distinct configuration once, in the background.

    They take the time of the cores that other work leaves.  Use it in a ``with`` statement: what was not begun at its
    end never is.

    Gradient engines rest between batches, so they are measured inside one; those whose batch is too short to
    reach a steady state are left out.  ``cache`` is a folder, by default one in the cache of circuits.

    Simulated is the Verilog that ``delivered`` has of an engine; ``library`` tells its ports, and makes the Verilog
    where nothing was delivered."""

    def __init__(
        self, graph: Graph, library: ModuleLibrary, delivered: Delivered | None = None, cache: Path | None = None
    ) -> None:
        alone = (replace(node, layer=with_own_memory(node.layer)) for node in graph.nodes)
        engines = [node for node in alone if runs_alone(node.layer)]
        self._nodes = [node for node in engines if _frames(node.layer) >= _least_frames(node.layer)]
        self._folder = cache or cache_folder() / "efficiency"
        layers = {repr(node.layer): node.layer for node in self._nodes}
        files = delivered.modules() if delivered else {}
        # conversion is not safe in threads; builds and simulations are processes of their own
        modules = {key: _delivered(library.layer(layer), files) for key, layer in layers.items()}
        self._paths = {key: _path(self._folder, key, module) for key, module in modules.items()}
        self._known = {key: found for key, path in self._paths.items() if (found := _load(path)) is not None}
        missing = [(key, layer, modules[key]) for key, layer in layers.items() if key not in self._known]
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), initializer=_give_way)
        self._jobs = {key: self._pool.submit(measure, layer, module) for key, layer, module in missing}

    def __enter__(self) -> EngineMeasurements:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def results(self, progress: Progress) -> tuple[Measurement, ...]:
        """Wait for all measurements, with progress."""
        progress.begin("MAC engines", len(self._known) + len(self._jobs))
        progress.advance(len(self._known))
        for key, job in self._jobs.items():
            self._known[key] = job.result()
            _store(self._paths[key], key, self._known[key])
            progress.advance()
        self._jobs = {}
        progress.end()
        return tuple(_measurement(node.name, node.layer, self._known[repr(node.layer)]) for node in self._nodes)


def _give_way() -> None:
    """Lower the priority of this thread, on Linux, and of the processes that it starts."""
    os.setpriority(os.PRIO_PROCESS, 0, LOW_PRIORITY)


def measure_graph(
    graph: Graph, library: ModuleLibrary, progress: Progress, cache: Path | None = None
) -> tuple[Measurement, ...]:
    """See `EngineMeasurements`; nothing else runs meanwhile."""
    with EngineMeasurements(graph, library, cache=cache) as measurements:
        return measurements.results(progress)


def write_efficiency(path: Path, measurements: Sequence[Measurement]) -> None:
    """The file that the report reads."""
    engines: list[dict[str, Any]] = []
    for found in measurements:
        engine = {
            "node": found.node,
            "cycles_per_frame": found.cycles_per_frame,
            "efficiency": round(found.efficiency, 6),
        }
        engines.append(engine | ({"waits_for": found.waits_for} if found.waits_for else {}))
    write_text(path, json.dumps({"schema_version": SCHEMA_VERSION, "engines": engines}, indent=1) + "\n")


def measure(layer: Any, module: StreamModule) -> float:
    """Cycles a frame of an engine in steady state, unstalled, in Verilator.

    At its sources; of an engine without sources of frames, at the sink that does not run ahead."""
    frames = _frames(layer)
    rng = np.random.default_rng(1)
    state = layer.start({port.name: _initial(layer, port, rng) for port in _weights(layer)})
    beats: dict[str, list[int]] = {}
    for port in layer.sinks:
        # version 0 of the weights is an image; frames inside the first batch use no other
        count = layer.recipe.version(frames - 1) if port.tensor.kind.per_batch else frames
        codes = layer.sample(port.name, rng, count)
        beats[module.prefixes[port.name]] = to_beats(layer, port.name, codes) if count else []
    counts = {
        module.prefixes[port.name]: port.beats * (1 if port.tensor.kind.per_batch else frames) for port in layer.sources
    }
    run = run_streams(
        Backend.VERILATOR,
        _design(layer, module, layer.images(state)),
        beats,
        counts,
        seed=1,
        max_cycles=STUCK_FACTOR * (frames + 2) * layer.cycles_per_frame + STUCK_CYCLES,
    )
    first = frames - 1 - STEADY_FRAMES
    intervals = []
    for port in _frame_ports(layer.sources) or _frame_ports(layer.sinks):
        ends = run.fire_cycles[module.prefixes[port.name]][port.beats - 1 :: port.beats]
        intervals.append((ends[frames - 1] - ends[first]) / STEADY_FRAMES)
    return max(intervals)


def waits_for(layer: Any, cycles: float) -> str:
    """What keeps an engine from multiplying in all its slots, from its numbers; "" if it is well used.

    ``layer`` is an engine with a tile and a walk, ``cycles`` its measured cycles a frame."""
    needed = layer.macs / layer.multipliers
    if needed >= WELL_USED * cycles:
        return ""
    if cycles > layer.cycles_per_frame:
        return f"{cycles:,.1f} cycles a frame measured where its rule gives {layer.cycles_per_frame:,}"
    walk, reasons = layer.walk, []
    slowest = max(_frame_ports((*layer.sinks, *layer.sources)), key=lambda port: port.beats)
    if slowest.beats > walk.cycles:
        reasons.append(
            f"port {slowest.name}, {slowest.lanes} of {slowest.tensor.shape[-1]} channels a beat, takes "
            f"{slowest.beats:,} cycles a frame, arithmetic {walk.cycles:,}"
        )
    if walk.words > max(walk.cycles, slowest.beats):
        reasons.append(f"the stored map, a word a cycle, takes {walk.words:,} cycles, arithmetic {walk.cycles:,}")
    if layer.cycles_per_frame > max(walk.cycles, walk.words, slowest.beats):
        reasons.append(
            f"errors, {layer.tile.po} filters a cycle, take {layer.cycles_per_frame:,} cycles, "
            f"arithmetic {walk.cycles:,}"
        )
    if walk.cycles > needed:
        reasons.append(
            f"{walk.cycles - needed:,.0f} of {walk.cycles:,} cycles go to pixels that no tap reaches, a cycle each "
            f"(stride {layer.stride[0]}x{layer.stride[1]}, kernel {layer.kernel[0]}x{layer.kernel[1]})"
        )
    return "; ".join(reasons)


def _measurement(node: str, layer: Any, cycles: float) -> Measurement:
    return Measurement(node, cycles, layer.macs / (layer.multipliers * cycles), waits_for(layer, cycles))


def _frames(layer: Any) -> int:
    """Frames to simulate: exactly a batch for an engine that only gives a tensor a batch."""
    return _least_frames(layer) if _frame_ports(layer.sources) else int(layer.recipe.batch)


def _least_frames(layer: Layer) -> int:
    return FILL_FRAMES + STEADY_FRAMES + FILL_CYCLES // layer.cycles_per_frame


def _frame_ports(ports: Sequence[Port]) -> list[Port]:
    return [port for port in ports if not port.tensor.kind.per_batch]


def _weights(layer: Layer) -> list[Port]:
    return [port for port in layer.sinks if port.tensor.kind is Kind.WEIGHT]


def _initial(layer: Layer, port: Port, rng: np.random.Generator) -> Any:
    return port.tensor.fixed.decode(layer.sample(port.name, rng, 1)[0])


def _design(layer: Layer, module: StreamModule, images: Mapping[str, Sequence[int]]) -> _EngineDesign:
    def elaborate(contents: Mapping[str, Sequence[int]]) -> Any:
        streams = {port.name: Stream(port.payload_bits) for port in (*layer.sinks, *layer.sources)}
        return layer.circuit(ClockReset(), streams, contents or None)

    ports = [
        *(StreamPort(module.prefixes[port.name], port.payload_bits, Direction.IN) for port in layer.sinks),
        *(StreamPort(module.prefixes[port.name], port.payload_bits, Direction.OUT) for port in layer.sources),
    ]
    return _EngineDesign(module.name, elaborate, tuple(ports), images, module=module.verilog)


def _delivered(module: StreamModule, files: Mapping[str, Path]) -> StreamModule:
    """The module with the text that was delivered."""
    if module.name not in files:
        return module
    return replace(module, verilog=replace(module.verilog, text=files[module.name].read_text()))


def _path(folder: Path, key: str, module: StreamModule) -> Path:
    text = f"{SCHEMA_VERSION}|{code_hash()}|{_rules()}|{key}|{module.verilog.text}"
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def _rules() -> str:
    return f"{STEADY_FRAMES}|{FILL_FRAMES}|{FILL_CYCLES}"


def _load(path: Path) -> float | None:
    return float(json.loads(path.read_text())["cycles_per_frame"]) if path.exists() else None


def _store(path: Path, key: str, cycles: float) -> None:
    write_text(path, json.dumps({"engine": key, "cycles_per_frame": cycles}) + "\n")
