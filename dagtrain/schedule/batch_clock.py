"""A folded streaming graph in the order of time: its tables for `dagtrain.schedule.batch_kernel`, batch after batch."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from dagtrain.graph.ir import Graph, Node, is_delayed
from dagtrain.rows import Rows, rows_of
from dagtrain.schedule import batch_kernel as kernel
from dagtrain.schedule.network import Hop, Network
from dagtrain.schedule.passages import Passages, Stream
from dagtrain.schedule.pools import Pool, Scratch
from dagtrain.schedule.ports import BINS_PER_FRAME, KEPT_FRAMES
from hdl.fixed import FloatArray, IntArray
from hdl.layers.passage import LONG_AGO, passage
from hdl.recipe import Dealt, Recipe
from hdl.tensor import Port

# of the nodes of a cluster of one clock
ONE_CLOCK: Mapping[str, Fraction] = MappingProxyType({})
# pieces in which tensors cross the network where streams have turns at its ports
PIECES = 12
# tensors that come, or wait to cross the network, on an edge, and frames and batches, for which there is room at first
FIRST_COME, FIRST_LEAVE, FIRST_FRAMES, FIRST_BATCHES = 4, 2, 64, 8


@dataclass(frozen=True)
class Way:
    """What lies between the producer and the consumer of an edge."""

    # that every element takes on the consumer's device, of the cluster's clock
    cycles: float
    # over the network
    hop: Hop | None = None
    # frames that it holds, 1 or more; of weights and gradients the share of a tensor, 1 at most; 0: in DRAM, where
    # there is always room
    room: float = 0.0

    @property
    def ahead(self) -> tuple[float, float]:
        """Frames that the producer may be ahead of the consumer, 1 or more, and cycles until it knows of room."""
        if self.hop is None:
            return self.room, 0.0
        return max(1.0, self.room * self.hop.ahead / self.hop.credits), self.hop.back_cycles


class Order(enum.Enum):
    """What comes next of all that can be worked out."""

    # what happens first, in so small pieces that all streams at a port have their turns: as arbiters do it
    TURNS = "turns"
    # the oldest frame: the least that new weights can wait
    OLDEST = "oldest"


class BatchClock:
    """A folded streaming graph without stores, in the order of time.

    Args:
        ways: edge -> what lies on it.
        frame_cycles: of the slowest engine, for a frame of its own.
        periods: nodes on devices of another clock than the cluster's -> what a cycle there lasts in cycles of that."""

    def __init__(
        self,
        graph: Graph,
        ways: Mapping[str, Way],
        recipe: Recipe,
        frame_cycles: int,
        periods: Mapping[str, Fraction] = ONE_CLOCK,
        order: Order = Order.OLDEST,
    ) -> None:
        self.graph, self.ways, self.recipe, self.order = graph, ways, recipe, order
        self.numbers, self.integers, self.scratch = Pool(float), Pool(int), Scratch()
        makers = {edge: (node, port) for node in graph.nodes for port, edge in node.outputs.items()}
        # of what happens at the same time, by name
        self.edges = {edge: number for number, edge in enumerate(sorted(makers))}
        self.index = {node.name: number for number, node in enumerate(graph.nodes)}
        self.dealt: list[dict[str, float]] = []
        self._copies: dict[Dealt, int] = {}
        self.passages = Passages(self.numbers, self.scratch)
        hops = {edge: way.hop for edge, way in ways.items() if way.hop}
        self.network = Network(hops, frame_cycles, self.numbers, self.integers, turns=order is Order.TURNS)
        self._rooms: list[dict[str, float]] = []
        beside = {name: lender.name for name, lender in graph.lenders.items()}
        beside |= {lender: name for name, lender in beside.items()}
        for node in graph.nodes:
            self._add(node, float(periods.get(node.name) or 1), self.index.get(beside.get(node.name, ""), -1))
        edges = rows_of(kernel.EDGE, [self._edge(edge, *makers[edge]) for edge in self.edges])
        self.batches = 0
        self._begin(edges)

    # ---- tables

    def _copy(self, dealt: Dealt | None) -> int:
        """The row of which frames are dealt so; -1: all."""
        if dealt is None:
            return -1
        dealt = replace(dealt, batch=self.recipe.batch, staleness=self.recipe.staleness)
        if dealt not in self._copies:
            self._copies[dealt] = len(self.dealt)
            own = [place for place, copy in enumerate(dealt.turns) if copy == dealt.copy]
            before = [sum(place < frames for place in own) for frames in range(len(dealt.turns))]
            tables = (np.array(table) for table in (dealt.turns, own, before))
            turns_at, own_at, before_at = map(self.integers.at, tables)
            self.dealt.append(
                {
                    "share": dealt.share(dealt.batch),
                    "copy": dealt.copy,
                    "turns_at": turns_at,
                    "turns": len(dealt.turns),
                    "own_at": own_at,
                    "own": len(own),
                    "before_at": before_at,
                }
            )
        return self._copies[dealt]

    def _add(self, node: Node, period: float, beside: int) -> None:
        """The row of a node, those of its ports, and of the room behind it where it may run ahead of older frames."""
        layer = node.layer

        def kind(port: Port) -> int:
            if is_delayed(layer, port):
                return kernel.VERSION
            return kernel.BATCH if port.tensor.kind.per_batch else kernel.FRAME

        streams = {port.name: Stream(self.edges[node.inputs[port.name]], kind(port)) for port in layer.sinks}
        made = {port.name: node.outputs.get(port.name) for port in layer.sources}
        streams |= {name: Stream(-1 if edge is None else self.edges[edge]) for name, edge in made.items()}
        begin = len(self._rooms)
        if self.order is Order.TURNS:
            for port in layer.sources:
                edge = made[port.name]
                if edge is not None and self.ways[edge].room and not port.tensor.kind.per_batch:
                    (frames, back), (user, _) = self.ways[edge].ahead, self.graph.consumers[edge][0]
                    self._rooms.append(
                        {"frames": frames, "back": back, "user": self.index[user.name], "edge": self.edges[edge]}
                    )
        dealt = self._copy(self.graph.dealt.get(node.name))
        told: dict[str, float] = {
            "beside": beside,
            "dealt": dealt,
            "period": period,
            "rooms_at": begin,
            "rooms_end": len(self._rooms),
        }
        self.passages.add(passage(layer), streams, told)

    def _edge(self, edge: str, maker: Node, port: str) -> dict[str, float]:
        way, users = self.ways[edge], self.graph.consumers.get(edge, ())
        nodes = [self.index[user.name] for user, _ in users]
        source = next(source for source in passage(maker.layer).sources if source.port.name == port)
        strips, users_at = maker.layer.strips, self.integers.at(np.array(nodes, int))
        row: dict[str, float] = {
            "maker": self.index[maker.name],
            "users_at": users_at,
            "users_end": users_at + len(nodes),
            "cycles": way.cycles,
            "hop": -1,
            "room": way.room,
            "dealt": self._copy(self.graph.dealt_edges.get(edge)),
            "per_batch": source.per_batch,
            "taken": any(not is_delayed(user.layer, sink) for user, sink in users),
            "to_batches": any(user.layer.works_per_batch for user, _ in users),
            "aside": min(1.0, strips.sum_word / source.port.elements) if strips and source.per_batch else 0.0,
            "marks_at": self.numbers.at(source.marks),
            "marks": len(source.marks),
            "crossing": kernel.NEVER,
            "last": LONG_AGO,
            "come_size": FIRST_COME,
            "leave_size": FIRST_LEAVE,
        }
        if way.hop:
            row["hop"], hop = self.network.way(edge, source.marks, PIECES if self.order is Order.TURNS else 1)
            row["arrived_at"] = self.scratch.at(2 * int(hop["arrivals"]))
        return row

    def _begin(self, edges: Rows) -> None:
        """All as before the first frame."""
        nodes = rows_of(kernel.NODE, self.passages.nodes)
        ports = rows_of(kernel.PORT, self.passages.ports)
        calendars, ways = self.network.calendars, self.network.ways
        self.tables = kernel.Tables(
            rows_of(kernel.WANT, self.passages.wants), ways, self.network.stops,
            rows_of(kernel.ROOM, self._rooms), rows_of(kernel.DEALT, self.dealt),
            self.numbers.joined, self.integers.joined, self.recipe.batch, self.recipe.staleness,
            KEPT_FRAMES * BINS_PER_FRAME, self.order is Order.OLDEST,
        )  # fmt: skip
        used = calendars.words
        self.counters = np.zeros(kernel.COUNTERS, np.int64)
        self.counters[kernel.USED] = self.counters[kernel.WANTED] = len(used)
        # in a ring of what waits to cross, words of a tensor behind its frame
        self._slots = np.where(edges["hop"] >= 0, ways["counts"][edges["hop"]] + 1 if len(ways) else 0, 0)
        flows = self._ring(edges, "come", edges["marks"], np.arange(len(edges)), np.zeros(0))
        flows = self._ring(edges, "leave", self._slots, np.arange(len(edges)), flows)
        entries = len(nodes) + len(edges) + 1
        longest = max(ports["marks"].max(), nodes["strips"].max())
        counts, streams = (rows[name].max(initial=0) for rows, name in ((ways, "counts"), (calendars.rows, "streams")))
        self.state = kernel.State(
            nodes, ports, edges, calendars.rows, np.empty(self.scratch.size), np.empty(longest),
            np.empty((kernel.PIECE_ROWS, counts + 2)), np.empty(streams), used, flows,
            np.empty((len(nodes), FIRST_FRAMES)), np.empty((len(edges), FIRST_BATCHES)),
            np.empty((len(edges), FIRST_BATCHES)), np.empty(entries, np.int64), np.empty(entries),
            np.empty(entries, np.int64), np.empty(len(nodes), np.int64), np.empty(len(nodes), np.int64), self.counters,
        )  # fmt: skip
        kernel.begin(self.tables, self.state)

    # ---- batches

    @property
    def waited(self) -> bool:
        """Whether a node waited for nothing but its weights in the last batch."""
        return bool(self.counters[kernel.WAITED])

    def batch(self) -> FloatArray:
        """Takes one more batch through the graph; when the last tensor of it had passed, of every edge."""
        self.batches += 1
        self.counters[kernel.WAITED] = 0
        done = False
        while not done:
            self._enlarge()
            assert self.counters[kernel.LENGTH], "a streaming graph waits for nothing that waits for it"
            done = kernel.run_batch(self.tables, self.state, self.batches * self.recipe.batch)
            assert self.counters[kernel.USED] <= len(self.state.used), "room is made before anything is entered"
        found: FloatArray = self.state.ends[:, self.batches - 1]
        return found.copy()

    def _enlarge(self) -> None:
        """Twice the room for whatever is full."""
        state, self.counters[kernel.FULL] = self.state, 0
        edges = state.edges

        def wider(table: FloatArray, used: FloatArray) -> FloatArray:
            return np.concatenate([table, np.empty_like(table)], axis=1) if used.max() == table.shape[1] else table

        flows = state.flows
        for ring, slots, full in (
            ("come", edges["marks"], edges["came"] - edges["gone"] == edges["come_size"]),
            ("leave", self._slots, edges["offered"] - edges["left"] == edges["leave_size"]),
        ):
            if full.any():
                flows = self._ring(edges, ring, slots, np.flatnonzero(full), flows)
        used, wanted = state.used, int(self.counters[kernel.WANTED])
        if wanted > len(used):
            used = np.concatenate([used, np.empty(2 * wanted - len(used))])
        self.state = state._replace(
            used=used,
            flows=flows,
            done=wider(state.done, state.nodes["done"]),
            versions=wider(state.versions, edges["versions"]),
            ends=wider(state.ends, edges["ends"]),
        )

    @staticmethod
    def _ring(edges: Rows, ring: str, slots: IntArray, full: IntArray, flows: FloatArray) -> FloatArray:
        """The rings of these edges behind all others, twice as large; ``slots``: numbers of an entry, by edge."""
        at, size = f"{ring}_at", f"{ring}_size"
        first, last = ("gone", "came") if ring == "come" else ("left", "offered")
        parts, length = [flows], len(flows)
        for edge in full:
            row, slot = edges[edge], int(slots[edge])
            old, new = int(row[size]), 2 * int(row[size])
            moved = np.empty((new, slot))
            for entry in range(int(row[first]), int(row[last])):
                begin = int(row[at]) + entry % old * slot
                moved[entry % new] = flows[begin : begin + slot]
            row[at], row[size] = length, new
            parts.append(moved.ravel())
            length += moved.size
        return np.concatenate(parts)


def computing_ways(graph: Graph, ways: Mapping[str, Way]) -> Mapping[str, Way]:
    """Of edges of `Graph.computing`, what lies on them, with the way from the store that reads them."""
    behind = {edge: way.cycles + (way.hop.cycles if way.hop else 0) for edge, way in ways.items()}
    far = {
        edge: sum(behind[out] for out in node.outputs.values())
        for node in graph.nodes
        if node.layer.is_store
        for edge in node.inputs.values()
    }
    kept = {edge: replace(way, cycles=way.cycles + far.get(edge, 0)) for edge, way in ways.items()}
    return kept if far else ways
