"""Layers as rows of `dagtrain.schedule.batch_kernel`: their ports, and what these want of one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dagtrain.schedule import batch_kernel as kernel
from dagtrain.schedule.pools import Pool, Scratch
from hdl.layers.passage import LONG_AGO, LayerPassage, PortPassage


@dataclass(frozen=True)
class Stream:
    """What a port of a node reads or writes."""

    # its number; -1: nothing
    edge: int
    # of a sink, what comes there: `batch_kernel.FRAME`, …
    kind: int = kernel.FRAME


class Passages:
    """Layers, their ports and what these want of one another, as rows."""

    def __init__(self, numbers: Pool, scratch: Scratch) -> None:
        self.numbers, self.scratch = numbers, scratch
        self.nodes: list[dict[str, float]] = []
        self.ports: list[dict[str, float]] = []
        self.wants: list[dict[str, float]] = []

    def add(self, layer: LayerPassage, streams: Mapping[str, Stream], told: Mapping[str, float]) -> None:
        """One more node, which reads and writes these by its ports; ``told``: what its row says beside."""
        first, strips = len(self.ports), layer.strips
        index = {sink.port.name: first + number for number, sink in enumerate(layer.sinks)}
        middle = first + len(layer.sinks)
        row: dict[str, float] = {
            "first": first,
            "middle": middle,
            "end": middle + len(layer.sources),
            "weight_cycles": layer.weight_cycles,
            "cycles_per_frame": layer.cycles_per_frame,
            "per_batch": layer.works_per_batch,
            "free": LONG_AGO,
            "weights": LONG_AGO,
            "began": LONG_AGO,
            "loaded": LONG_AGO,
        }
        for sink in layer.sinks:
            along = layer.along.get(sink.port.name)
            behind = {} if along is None else {"behind_at": self.numbers.at(along.behind)}
            self._port(sink, streams[sink.port.name], behind)
        for source in layer.sources:
            wants = {} if strips or source.per_batch else layer.needs[source.port.name]
            begin = len(self.wants)
            self.wants += [
                {"port": index[sink], "counts_at": self.numbers.at(counts)} for sink, counts in wants.items()
            ]
            made: dict[str, float] = {
                "latency": source.latency_cycles,
                "wants_at": begin,
                "wants_end": len(self.wants),
                "per_batch": source.per_batch,
            }
            if source.strip is not None and source.share is not None and source.left is not None:
                tables = (source.strip, source.share, source.left)
                made |= zip(("strip_at", "share_at", "left_at"), map(self.numbers.at, tables), strict=True)
            self._port(source, streams[source.port.name], made)
        if strips is not None:
            row |= self._in_strips(layer, index)
        self.nodes.append(row | dict(told))

    def _port(self, port: PortPassage, stream: Stream, told: Mapping[str, float]) -> None:
        self.ports.append(
            {
                "edge": stream.edge,
                "kind": stream.kind,
                "marks_at": self.numbers.at(port.marks),
                "marks": len(port.marks),
                "even_at": self.numbers.at(port.even),
                "beat_cycles": port.beat_cycles,
                "at": self.scratch.at(len(port.marks)),
                "last": LONG_AGO,
            }
            | dict(told)
        )

    def _in_strips(self, layer: LayerPassage, index: Mapping[str, int]) -> dict[str, float]:
        """What the row of an engine says beside, and what its strips want of its sinks."""
        strips, at = layer.strips, self.numbers.at
        assert strips is not None
        stored = len(self.wants)
        self.wants += [
            {"port": index[sink], "counts_at": at(np.asarray(counts, np.float64))}
            for sink, counts in strips.stored.items()
        ]
        along = len(self.wants)
        self.wants += [
            {"port": index[sink], "counts_at": at(how.before), "through_at": at(how.through), "slow": how.slow}
            for sink, how in layer.along.items()
        ]
        return {
            "strips": len(strips.cycles),
            "cycles_at": at(layer.cycles),
            "reordered": strips.reordered,
            "begin_cycles": strips.begin_cycles,
            "along_cycles": strips.along_cycles,
            "along_work": strips.along_work,
            "result_cycles": strips.result_cycles,
            "rest_cycles": strips.rest_cycles,
            "load_cycles": strips.load_cycles,
            "stored_at": stored,
            "along_at": along,
            "along_end": len(self.wants),
            "strips_at": self.scratch.at(2 * len(strips.cycles)),
        }
