"""Parts of `dagtrain.schedule.batch_clock` one by one: layers, ports and crossings without a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dagtrain.rows import rows_of
from dagtrain.schedule import batch_kernel as kernel
from dagtrain.schedule.network import Hop, Network
from dagtrain.schedule.passages import Passages, Stream
from dagtrain.schedule.pools import Pool, Scratch
from dagtrain.schedule.ports import BINS_PER_FRAME, KEPT_FRAMES, ONE_STREAM, Calendars, Merges
from hdl.layers.base import Layer
from hdl.layers.passage import LONG_AGO, passage

# tensors that may wait to cross an edge; numbers for which there is room, of anything
WAITING, MUCH = 8, 1 << 20


class Parts:
    """What is asked of the kernel: rows of what is there, and none of all else."""

    def __init__(self) -> None:
        self.numbers, self.integers, self.scratch = Pool(float), Pool(int), Scratch()
        self.passages = Passages(self.numbers, self.scratch)
        self.calendars = Calendars(self.integers, 1)
        self.network: Network | None = None
        self.edges: list[dict[str, float]] = []
        self.flows = 0

    def begin(self) -> None:
        """All is told."""
        none: list[dict[str, float]] = []
        self.tables = kernel.Tables(
            rows_of(kernel.WANT, self.passages.wants),
            self.network.ways if self.network else rows_of(kernel.HOP, none),
            self.network.stops if self.network else rows_of(kernel.STOP, none), rows_of(kernel.ROOM, none),
            rows_of(kernel.DEALT, none), self.numbers.joined, self.integers.joined, 1, 0,
            KEPT_FRAMES * BINS_PER_FRAME, False,
        )  # fmt: skip
        used, nothing, whole = self.calendars.words, np.empty((1, 1)), np.empty(1, np.int64)
        counters = np.zeros(kernel.COUNTERS, np.int64)
        counters[kernel.USED] = len(used)
        used = np.concatenate([used, np.empty(MUCH)])
        self.state = kernel.State(
            rows_of(kernel.NODE, self.passages.nodes), rows_of(kernel.PORT, self.passages.ports),
            rows_of(kernel.EDGE, self.edges), self.calendars.rows, np.empty(self.scratch.size), np.empty(MUCH),
            np.empty((kernel.PIECE_ROWS, MUCH)), np.empty(MUCH), used, np.empty(self.flows),
            nothing, nothing, nothing, whole, np.empty(1), whole, whole, whole, counters,
        )  # fmt: skip


class Layers(Parts):
    """Layers, frame after frame; of two each reads the other's weights."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__()
        self.layers = layers
        for number, layer in enumerate(layers):
            streams = {port.name: Stream(-1) for port in (*layer.sinks, *layer.sources)}
            beside = 1 - number if len(layers) == 2 else -1
            self.passages.add(passage(layer), streams, {"beside": beside, "dealt": -1, "period": 1})
        self.begin()

    def frame(
        self, number: int, arriving: Mapping[str, tuple[Any, Any]], weights: float = LONG_AGO, *, ends_batch: bool
    ) -> dict[str, Any]:
        """Source -> cycles at its marks with the next frame of a layer; ``arriving``: sink -> elements, and the cycles
        by which so many have come."""
        layer, node = passage(self.layers[number]), self.state.nodes[number]
        for port, sink in enumerate(layer.sinks, node["first"]):
            self.state.ports["there"][port] = 0
            if sink.port.name in arriving:
                flow = np.interp(sink.marks, *arriving[sink.port.name])
                kernel.take_flow(self.tables, self.state, port, int(self.state.ports["marks_at"][port]), flow, 1.0)
        kernel.pass_frame(self.tables, self.state, number, float(weights), ends_batch)
        found = {}
        for port, source in enumerate(layer.sources, node["middle"]):
            row = self.state.ports[port]
            if row["there"]:
                found[source.port.name] = self.state.scratch[row["at"] : row["at"] + row["marks"]].copy()
        return found


class Calendar(Parts):
    """One direction of a port, in bins of so many cycles; ``crossing``: when tensors that cross were first offered."""

    def __init__(
        self, width: int, rate: float, merges: Merges = ONE_STREAM, crossing: Sequence[float] = (kernel.NEVER,)
    ) -> None:
        super().__init__()
        self.calendars = Calendars(self.integers, width)
        self.calendars.add(rate, merges)
        self.edges = [{"crossing": cycle} for cycle in crossing]
        self.begin()

    def enter(self, words: Any, cycles: Any, stream: int = 0) -> Any:
        """When these words have passed."""
        passed = np.zeros(len(words))
        kernel.enter(self.tables, self.state, 0, stream, words, cycles, passed)
        assert self.state.counters[kernel.USED] <= len(self.state.used)
        return passed

    @property
    def bins(self) -> Any:
        """Words in each, by stream and merge."""
        row = self.state.calendars[0]
        return self.state.used[row["at"] : row["at"] + row["bins"] * row["columns"]].reshape(
            row["bins"], row["columns"]
        )

    @property
    def first_cycle(self) -> int:
        """Before which nothing is known any more."""
        row = self.state.calendars[0]
        return int(row["first"] * row["width"])


class Crossings(Parts):
    """Streams over the network, whose tensors are kept at these elements."""

    def __init__(self, hops: Mapping[str, Hop], elements: Any, pieces: int, *, turns: bool) -> None:
        super().__init__()
        self.network, self.elements = Network(hops, BINS_PER_FRAME, self.numbers, self.integers, turns=turns), elements
        self.calendars, self.index = self.network.calendars, {edge: number for number, edge in enumerate(hops)}
        for edge in hops:
            number, way = self.network.way(edge, elements, pieces)
            self.edges.append(
                {
                    "hop": number,
                    "marks_at": self.numbers.at(elements),
                    "marks": len(elements),
                    "leave_at": self.flows,
                    "leave_size": WAITING,
                    "arrived_at": self.scratch.at(2 * int(way["arrivals"])),
                    "crossing": kernel.NEVER,
                    "last": LONG_AGO,
                }
            )
            self.flows += WAITING * (int(way["counts"]) + 1)
        self.begin()

    def cross(self, edge: str, cycles: Any) -> Any:
        """How a tensor arrives that is offered so."""
        number, flow = self.index[edge], np.empty(len(cycles))
        kernel.leave(self.tables, self.state, number, 0, cycles)
        while not kernel.through(self.tables, self.state, number):
            assert kernel.piece_begins(self.tables, self.state, number) <= cycles[-1]
            assert kernel.has_room(self.tables, self.state, number)
            kernel.carry(self.tables, self.state, number)
        kernel.arrive(self.tables, self.state, number, flow)
        return flow
