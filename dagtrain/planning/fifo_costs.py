"""What FIFOs in front of sinks cost, and what makes beats as wide as sinks take them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

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
