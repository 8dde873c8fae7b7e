"""What `dagtrain.schedule.batch_kernel` says of a layer's outputs in a simulated run, given when its inputs came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hdl.layers.base import Layer
from hdl.layers.capabilities import Batched, engines_of
from hdl.layers.conv.engine import WindowEngine
from hdl.layers.passage import LONG_AGO, marks
from hdl.simulate import Run
from hdl.tensor import Kind, Port
from tests.clock_support import Layers
from tests.layer_support import frames_a_batch, reads_frames


def said_and_measured(layer: Layer, run: Run, batches: int) -> Iterator[tuple[str, float, float, int, int]]:
    """(source, first and last cycle as said, first and last as measured) of every tensor that leaves a layer."""
    layers, frames = Layers(*engines_of(layer)), frames_a_batch(layer)
    for frame in range(frames * batches):
        ends_batch = (frame + 1) % frames == 0
        if layer.works_per_batch and not ends_batch:
            continue
        for number, engine in enumerate(layers.layers):
            arriving = {
                port.name: _flow(port, run, _index(port, frame, frames))
                for port in engine.sinks
                if _counts(layer, port, ends_batch)
            }
            made = layers.frame(number, arriving, _weights(layer, run, frame), ends_batch=ends_batch)
            for source, flow in made.items():
                port = layer.port(source)
                fires = _fires(port, run.fire_cycles[source], _index(port, frame, frames))
                yield source, flow[0], flow[-1], fires[0], fires[-1]


def _counts(layer: Layer, port: Port, ends_batch: bool) -> bool:
    if port.tensor.kind is Kind.WEIGHT and reads_frames(layer):
        return False
    return ends_batch or not port.tensor.kind.per_batch


def _index(port: Port, frame: int, frames: int) -> int:
    return frame // frames if port.tensor.kind.per_batch else frame


def _fires(port: Port, cycles: Sequence[int], tensor: int) -> Sequence[int]:
    return cycles[tensor * port.beats : (tensor + 1) * port.beats]


def _flow(port: Port, run: Run, tensor: int) -> tuple[Any, Any]:
    """How a tensor came, elements and cycles; what waits for another sink in a loop of its own was offered long
    before."""
    kept = marks(port.tensor, port.lanes)
    if port.beats == 1 and port.tensor.kind is Kind.STASH:
        return kept, np.full(len(kept), LONG_AGO)
    beats = (np.ceil(kept / port.lanes) - 1).astype(int)
    fires = _fires(port, run.fire_cycles[port.name], tensor)
    return kept, np.array([fires[beat] for beat in beats], np.float64)


def _weights(layer: Layer, run: Run, frame: int) -> float:
    """When the last weight of the frame's version came, version 0 is there; or of its first pass over the map, where
    they come once a frame."""
    if layer.fetched:
        (port,) = layer.fetched
        assert isinstance(layer, WindowEngine)
        return _fires(port, run.fire_cycles[port.name], frame)[port.beats // layer.walk.passes - 1]
    recipe = layer.recipe if isinstance(layer, Batched) else None
    if not recipe or not reads_frames(layer) or not recipe.version(frame):
        return LONG_AGO
    ports = [port for port in layer.sinks if port.tensor.kind is Kind.WEIGHT]
    last = [_fires(port, run.fire_cycles[port.name], recipe.version(frame) - 1)[-1] for port in ports]
    return max(last, default=LONG_AGO)
