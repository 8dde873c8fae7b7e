"""What FIFOs in front of sinks cost, and what makes beats as wide as sinks take them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dagtrain.graph.ir import Graph
from dagtrain.schedule.buffers import wide_beats
from hdl.costs.estimate import Contents
from hdl.costs.resources import Resources
from hdl.signals import ClockReset
from hdl.stream import Stream
from hdl.streams import bordering_adapter, queue
from hdl.tensor import Port


def queue_resources(payload_bits: int, depth: int, estimator: Contents) -> Resources:
    """Contents of a FIFO."""
    build = partial(_queue_between, depth=depth)
    return estimator.block(f"queue {depth}", {"x": payload_bits, "y": payload_bits}, build)


def channel_resources(graph: Graph, edge: str, sink: Port, depth: int, estimator: Contents) -> list[Resources]:
    """Contents of what lies on an edge within a device: a FIFO of so many beats of the sink, or of the producer's where
    that stands first, and a width adapter where lanes differ."""
    source = graph.producers[edge][1]
    wide = wide_beats(graph, edge, source, sink, depth)
    bits, beats = (sink.payload_bits, depth) if wide is None else (source.payload_bits, wide)
    return [queue_resources(bits, beats, estimator), *adapter_resources(source, sink, estimator)]


def adapter_resources(source: Port, sink: Port, estimator: Contents) -> list[Resources]:
    """Contents of what makes beats as wide as the consumer takes them, where producer and consumer are folded for
    different cycles."""
    if source.lanes == sink.lanes:
        return []
    bits = sink.tensor.fixed.width
    streams = {"x": source.lanes * bits, "y": sink.lanes * bits}
    return [estimator.block(f"width adapter {bits}", streams, partial(_adapter_between, element_bits=bits))]


def _queue_between(domain: ClockReset, streams: Mapping[str, Stream], *, depth: int) -> Any:
    return queue(domain, streams["x"], streams["y"], depth=depth)


def _adapter_between(domain: ClockReset, streams: Mapping[str, Stream], *, element_bits: int) -> Any:
    return bordering_adapter(domain, streams["x"], streams["y"], element_bits=element_bits)
