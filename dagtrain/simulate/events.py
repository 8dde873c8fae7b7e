"""Events of a placed graph, simulated: every beat of every stream, by what layers declare of time.

Nothing is emitted and no value is computed.  A node is a process with the facts of its layer (`Layer.required`,
`Layer.latency_cycles`, `Layer.waiting`, `Layer.strips`), an edge a FIFO of its depth, or a way over the network with
words, credits and ports; frames see versions of the weights by the recipe's rule.  What follows is worked out by
`dagtrain.simulate.events_kernel`.

`dagtrain.schedule.batch_time` rests on the same facts.  It takes frames as a whole and lets nothing wait for room
inside one, which is quick enough to ask for every plan of a search; here each beat has a time and a FIFO is as deep as
it is, so one that is too shallow slows the pipeline down, or stops it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dagtrain.graph.ir import Node, is_delayed
from dagtrain.rows import Rows
from dagtrain.schedule.buffers import wide_beats
from dagtrain.schedule.network import SENDER_WORDS, Hop, Output, round_trip_words
from dagtrain.schedule.wired import Wired
from dagtrain.simulate import events_kernel as kernel
from hdl.errors import DagtrainError
from hdl.fixed import FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.passage import marks, needs
from hdl.link.format import turns_taken
from hdl.link.forward import INPUT_WORDS
from hdl.recipe import Dealt
from hdl.records import first as shown
from hdl.simulate.models.link import SPARE_WORDS
from hdl.streams import queue_latency
from hdl.streams.width import AdapterKind, adapter_kind
from hdl.strips import Strips
from hdl.tensor import Port

_Thing = TypeVar("_Thing")
# turns of nodes and ports between two looks at the progress, and at Ctrl-C
TURNS_AT_ONCE = 1 << 20
# entries of the heap for each that may be in it
HEAP = 64
# runs of beats in which a long tensor passes, at least, if nothing is said
RUNS = 512
# beats of a frame up to which a layer is asked for each
MOST_ASKED = 1 << 12
# beats that rings of times hold beside those that may be asked for
SLACK = 8
# lengths of a run that a round trip of credits may be longer by: where it leaves and where it is read, and one to spare
ROUND_TRIPS_OF_A_RUN = 3
# by which what leaves in a round trip of credits may differ where several words on the network are one
NEAR = 0.01


class DeadlockError(DagtrainError):
    """A cluster that stops: who waits for whom."""


@dataclass(frozen=True)
class Events:
    """What happened."""

    wired: Wired
    batches: int
    # edges that are streams, in the order of what follows
    edges: tuple[str, ...]
    # node -> cycles of its first and of its last beat of every frame, or batch, that it works on
    first: Mapping[str, FloatArray]
    last: Mapping[str, FloatArray]
    # node -> how many of them it has ended, the first ones
    ended: Mapping[str, int]
    # edge -> cycles that its producer waited for room; the first cycle in which it did
    blocked: Mapping[str, float]
    full: Mapping[str, float]
    # edge over the network -> words, credits included in none
    words: Mapping[str, int]
    credit_words: Mapping[str, int]
    # where cables join devices, what goes from one to another by each -> words and credits, whomever they are for
    passed: Mapping[Output, int]
    # edge -> cycles in which beats were written, and read, where they were kept
    written: Mapping[str, FloatArray]
    read: Mapping[str, FloatArray]
    # how often a node or a port had its turn
    turns: int
    # until the last beat, or the last word or credit on the network; of a run that ends before, until then: what no
    # network joins may be ahead
    cycles: float


def simulate_events(
    wired: Wired,
    batches: int,
    *,
    keep: bool = False,
    fine: bool = False,
    runs: int = RUNS,
    frames: int | None = None,
    on_frames: Callable[[int], None] = lambda _: None,
) -> Events:
    """Trains so many batches.

    ``frames``: the run ends when the results of so many, fewer than a batch, have come.
    ``keep``: the cycle of every beat is kept.
    ``fine``: beat by beat, however long tensors are; else in runs of beats, ``runs`` a tensor at least, where they have
    more than twice as many.
    ``on_frames`` is told now and then how many frames have passed the last node that any has passed.
    Raises `DeadlockError` where everything waits for something else."""
    built = _Builder(wired, batches, keep, 0 if fine or keep else runs)
    recipe = wired.graph.recipe
    channels, ports, nodes, devices = built.channels(), built.ports(), built.nodes(), built.ends()
    outputs, queues = built.outputs(), built.queues()
    state, tables, turns = built.state(nodes, queues), built.tables(), 0
    kernel.begin(nodes, state)
    results = [
        number
        for number, node in enumerate(wired.graph.nodes)
        if not node.layer.sources and nodes["frames"][number] == batches * recipe.batch
    ]
    passed, wanted = 0, batches * recipe.batch if frames is None else frames
    while state.length[0] and (frames is None or passed < wanted):
        turns += kernel.run(
            channels, ports, nodes, devices, outputs, queues, tables, state, recipe.batch, recipe.staleness,
            TURNS_AT_ONCE, -1 if frames is None or not results else results[0], wanted,
        )  # fmt: skip
        passed = min((int(ports["frame"][nodes["first"][number]]) for number in results), default=0)
        on_frames(min(passed, wanted))
    found = built.events(channels, ports, nodes, outputs, state, turns)
    problems = built.waiting(channels, state) if frames is None or passed < wanted else []
    if problems:
        raise DeadlockError.listing(
            f"{wired.graph.name}: the pipeline stops for ever after {math.ceil(found.cycles):,} cycles", problems,
            "give the FIFOs named as full more room, or leave their depths to the planner",
        )  # fmt: skip
    return found


class _Row(NamedTuple):
    """An edge with its ends."""

    edge: str
    producer: Node
    source: Port
    consumer: Node
    sink: Port
    # beats of the ports that are one here
    run: tuple[int, int] = (1, 1)


class _Run(NamedTuple):
    """How long a run of an edge may be."""

    # share of a tensor
    share: float = 1.0
    # elements of which a run that is longer than a beat is an even part; 0: of any
    even: int = 0

    def __and__(self, other: _Run) -> _Run:
        return _Run(min(self.share, other.share), math.gcd(self.even, other.even))


def _run_limits(wired: Wired) -> dict[str, _Run]:
    """Of edges over the network, and of all behind them that layers make at once of what comes there.

    A run takes half of what the receiver holds beside words whose credits it keeps back: a longer one would wait for
    ever.  Words of a run wait for its last one, and their credits too: so much longer a round trip must not let fewer
    pass than come in a frame.  Where words wait for credits anyway, those that come back together are whole runs, or
    beats."""
    graph, limits = wired.graph, {}
    pace = _frame_cycles(wired)
    for edge, producer, source, consumer, sink in graph.streams:
        limits[edge], hop = _Run(), wired.hops.get(edge)
        if hop is None:
            continue
        share = (hop.credits - hop.credit_batch) * hop.word / (2 * source.elements)
        # a port takes a cycle for a beat
        ends = ((producer, source), (consumer, sink))
        cycles = max(port.beats * float(wired.periods.get(node.name, 1)) for node, port in ends)
        if not source.tensor.kind.per_batch:
            cycles = max(cycles, pace / float(graph.passing(edge)))
        spare = (cycles * hop.word / source.elements - hop.word_cycles) * hop.round_trip_words
        if spare > 0:
            run = spare / ROUND_TRIPS_OF_A_RUN * min(source.lanes, sink.lanes)
            limits[edge] = _Run(min(share, run / source.elements))
        else:
            limits[edge] = _Run(share, hop.credit_batch * hop.word if hop.word_cycles > 1 else 0)
    changed = True
    while changed:
        changed = False
        for node in wired.graph.nodes:
            if node.layer.strips is not None or not node.layer.sinks:
                continue
            for source in node.layer.sources:
                made, kind = node.outputs.get(source.name, ""), source.tensor.kind.per_batch
                sinks = (port for port in node.layer.sinks if port.tensor.kind.per_batch == kind)
                limit = reduce(operator.and_, (limits[node.inputs[port.name]] for port in sinks), _Run())
                if made in limits and limits[made] & limit != limits[made]:
                    limits[made], changed = limits[made] & limit, True
    return limits


def _frame_cycles(wired: Wired) -> float:
    """Cycles of the cluster from frame to frame, at least."""
    frames = (node for node in wired.graph.nodes if not node.layer.works_per_batch)
    return max(
        (wired.graph.cycles_per_frame(node) * float(wired.periods.get(node.name, 1)) for node in frames), default=0.0
    )


def _in_runs(row: _Row, limit: _Run, runs: int) -> _Row:
    """An edge whose tensors are long, with ports as wide as a run of beats: a part of a row, or of what an engine makes
    at a time, of which a tensor has ``runs`` or more (0: beats pass one by one), within ``limit``."""
    source, sink = row.source, row.sink
    if not runs or max(source.beats, sink.beats) <= 2 * runs:
        return row
    lanes, parts = math.lcm(source.lanes, sink.lanes), 1
    if not source.tensor.kind.per_batch:
        strips = [node.layer.strips for node in (row.producer, row.consumer)]
        parts = math.lcm(int(source.tensor.shape[0]), *(one.parts for one in strips if one is not None and one.parts))
    whole, ragged = divmod(source.elements, parts * lanes)
    if ragged:
        return row
    most = min(whole, source.elements // lanes // runs, int(limit.share * source.elements) // lanes)
    lengths = (long for long in range(most, 1, -1) if whole % long == 0 and limit.even % (long * lanes) == 0)
    long = lanes * next(lengths, 1)
    run = long // source.lanes, long // sink.lanes
    return row._replace(source=replace(source, lanes=long), sink=replace(sink, lanes=long), run=run)


def _taken_ahead(row: _Row) -> _Row:
    """An edge whose consumer takes beats before it needs them, which is all that it does beat by beat: it reads what
    goes on from there at once."""
    _, lanes = row.consumer.layer.taken_ahead(row.sink.name)
    if lanes <= row.sink.lanes or row.run != (1, 1):
        return row
    return row._replace(sink=replace(row.sink, lanes=lanes))


@dataclass
class _PortRow:
    """A row of `kernel.PORT`."""

    port: Port
    channel: int
    kind: int
    turns: int = -1
    latency: float = 0.0
    holds: int = 0
    use: int = 0
    unit: int = 1
    words_at: int = 0
    joined: int = 1
    table: int = 0
    beat_cycles: int = 1
    # beats that are one here
    run: int = 1


def _words_at_once(wired: Wired, rows: Sequence[_Row]) -> dict[str, int]:
    """Of edges over the network, words that are one here: no more than a run, or than credits come back for together,
    and so many that in a round trip of credits as many may leave.

    Streams take turns before a port, where one's words would pass too seldom beside others' that pass as one: in a
    round of turns each has the share of words that it needs, beside others that pass with every frame."""
    found: dict[str, int] = {}
    for crossing in _by_port(wired, rows):
        frames = [row for row in crossing if not row.source.tensor.kind.per_batch]
        once = {row.edge: _at_once(row, wired.hops[row.edge], math.inf) for row in crossing}
        words = {row.edge: row.source.elements / wired.hops[row.edge].word for row in frames}
        cycles = max(_frame_cycles(wired), sum(words.values()))
        while True:
            together = sum(once[row.edge] for row in frames)
            longer = [row for row in frames if once[row.edge] > 1]
            if not longer or all(once[row.edge] * cycles >= words[row.edge] * together for row in frames):
                break
            # which costs the fewest turns
            row = max(longer, key=lambda row: once[row.edge] ** 2 / words[row.edge])
            once[row.edge] = _at_once(row, wired.hops[row.edge], once[row.edge] - 1)
        found |= once
    return found


def _by_port(wired: Wired, rows: Sequence[_Row]) -> Iterable[Sequence[_Row]]:
    """Edges that leave each device."""
    found: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        if row.edge in wired.hops:
            found[wired.hops[row.edge].source].append(row)
    return found.values()


def _at_once(row: _Row, hop: Hop, most: float) -> int:
    """Words of an edge that may be one, of ``most``."""
    if row.run == (1, 1):
        return 1
    whole = max(1, int(min(most, row.source.lanes // hop.word, hop.credit_batch)))
    return next(
        words
        for words in range(whole, 0, -1)
        if abs(words * round_trip_words(hop.credits // words, hop.credit_batch // words) - hop.round_trip_words)
        <= NEAR * hop.round_trip_words
    )


def _holds(waiting: int, source: _PortRow, sinks: Sequence[_PortRow]) -> int:
    """Runs that wait in a layer that works at once, in front of a source where so many beats do.

    Of what passes in runs that do not end together one is known with the end of the run of the other that it takes the
    last part of, later than its beats by up to a run: so much more waits.  Where one takes several, these do not pass
    at once."""
    beats, late = source.port.beats, Fraction(0)
    if source.run == 1:
        return waiting
    lengths = [beats, *(sink.port.beats for sink in sinks if sink.run > 1)]
    for one, other in itertools.combinations(lengths, 2):
        if one != other:
            late += Fraction(beats, min(one, other)) - Fraction(beats, math.lcm(one, other))
    shorter = any(sink.port.beats > beats for sink in sinks)
    return max(math.ceil(Fraction(waiting, source.run) + late), int(shorter))


class _Turns(NamedTuple):
    """Who takes turns before a port: channels or queues, then twos of them (`turns_taken`)."""

    # by number
    members: tuple[int, ...]

    # of each two
    sides: tuple[tuple[int, int], ...]
    # of each of them and of each two, the two of which it is a side; -1: it is the port
    into: IntArray

    @classmethod
    def of(cls, members: Sequence[int]) -> _Turns:
        """Of these channels or queues, in the order of their merges."""
        sides = turns_taken(len(members))
        into = np.full(len(members) + len(sides), -1)
        for two, pair in enumerate(sides):
            into[list(pair)] = two
        return cls(tuple(members), sides, into)


class _Builder:
    """Arrays for the kernel."""

    def __init__(self, wired: Wired, batches: int, keep: bool, runs: int) -> None:
        graph = wired.graph
        self.wired, self.graph, self.batches, self.keep = wired, graph, batches, keep
        limits = _run_limits(wired)
        self.rows = [_taken_ahead(_in_runs(_Row(*row), limits[row[0]], runs)) for row in graph.streams]
        self.at_once = _words_at_once(wired, self.rows)
        self.channel = {row.edge: number for number, row in enumerate(self.rows)}
        self.index = {node.name: number for number, node in enumerate(graph.nodes)}
        self.batch = graph.recipe.batch
        # tables of all layers, each once
        self.pair: list[int] = []
        self.needed: list[IntArray] = []
        self.cycles: list[FloatArray] = []
        self.counts: list[IntArray] = []
        self.gates: list[IntArray] = []
        self.dealt: list[IntArray] = []
        self.shares: list[FloatArray] = []
        self.sizes: dict[str, int] = defaultdict(int)
        self.known: dict[tuple[str, int, bytes], int] = {}
        self.starts: list[tuple[int, int, int]] = []
        self.all_ports: list[_PortRow] = []
        # of all rings and spans
        self.times = 0
        self.strips = [node.layer.strips for node in graph.nodes]
        # what words and credits of all hops take at least: they come to a device in the order in which they left others
        self.way = min((min(hop.cycles, hop.back_cycles) for hop in wired.hops.values()), default=0)
        # what passes words on between cables, and its inputs: (device that words come from, device where they wait)
        self.ways = list(dict.fromkeys(way for hop in wired.hops.values() for way in (hop.way, hop.back)))
        self.passing = _numbered(output for way in self.ways for output in way)
        self.inputs = _numbered((one, each.device) for each in self.passing for one in each.merged)
        ends = {end for hop in wired.hops.values() for end in (hop.source, hop.target)}
        self.devices = _numbered(sorted(ends | {each.device for each in self.passing}))
        # cycles by which words come sooner over each cable than the least there, and later behind the last one: credits
        # may be known before they have come through the device
        early = [
            (sum(each.cycles for each in way) - cycles) / (len(way) - 1)
            for hop in wired.hops.values()
            for way, cycles in ((hop.way, hop.cycles), (hop.back, hop.back_cycles))
            if way
        ]
        self.early = max(0, math.ceil(max(early, default=0)))
        # by device: channels that leave it, in the order in which its port has them; by output: inputs before it
        self.turns = [
            *(_Turns.of([self.channel[e] for e, h in wired.hops.items() if h.source == end]) for end in self.devices),
            *(_Turns.of([self.inputs[one, each.device] for one in each.merged]) for each in self.passing),
        ]
        for node, strips in zip(graph.nodes, self.strips, strict=True):
            self._add(node, strips)

    # ---- ports

    def period(self, node: Node) -> float:
        """Cycles of the cluster that one of the node's lasts."""
        return float(self.wired.periods.get(node.name, 1))

    def frames(self, node: Node) -> int:
        """Frames, or batches, that a node works on."""
        if node.layer.works_per_batch:
            return self.batches
        dealt = self.graph.dealt.get(node.name)
        return self.batches * (self.batch if dealt is None else dealt.share(self.batch))

    def tensors(self, edge: str, port: Port) -> int:
        """That pass an edge."""
        if port.tensor.kind.per_batch:
            return self.batches
        dealt = self.graph.dealt_edges.get(edge)
        return self.batches * (self.batch if dealt is None else dealt.share(self.batch))

    def _add(self, node: Node, strips: Strips | None) -> None:
        layer, first = node.layer, len(self.all_ports)
        period = self.period(node)
        words = strips.words if strips else {}
        for port in layer.sinks:
            kind = kernel.FRAME
            if port.tensor.kind.per_batch:
                kind = kernel.VERSION if is_delayed(layer, port) else kernel.BATCH
            channel = self.channel[node.inputs[port.name]]
            edge = self.rows[channel]
            row = _PortRow(edge.sink, channel, kind, run=edge.run[1])
            row.beat_cycles = row.run * max(1, port.lanes // words.get(port.name, port.lanes))
            if port.name in layer.borrowed:
                row.use = kernel.BORROWED
            self._deal(row, layer, port)
            self.all_ports.append(row)
        middle = len(self.all_ports)
        for port in layer.sources:
            given = node.outputs.get(port.name)
            kind = kernel.BATCH if port.tensor.kind.per_batch else kernel.FRAME
            channel = -1 if given is None else self.channel.get(given, -1)
            row = _PortRow(port, channel, kind)
            if channel >= 0:
                row.port, row.run = self.rows[channel].source, self.rows[channel].run[0]
            row.beat_cycles = row.run * max(1, port.lanes // words.get(port.name, port.lanes))
            if layer.sinks:
                row.latency = float(strips.result_cycles if strips else layer.latency_cycles(port.name)) * period
            if strips is not None:
                beats = strips.results * words.get(port.name, port.lanes) // row.port.lanes
                row.holds = max(1 if row.run == 1 else 2, beats)
                # of the end of a sum, which leaves beside the engine's work
                row.unit = strips.sum_word // row.port.lanes
            elif (kind == kernel.FRAME and layer.sinks) or layer.works_per_batch:
                row.holds = _holds(layer.waiting(port.name), row, self.all_ports[first:middle])
            self._deal(row, layer, port)
            self.all_ports.append(row)
        self.starts.append((first, middle, len(self.all_ports)))
        if strips is not None:
            self._strip_tables(strips, self.all_ports[first:middle], self.all_ports[middle:])
        elif layer.sinks:
            self._pair_tables(layer, self.all_ports[first:middle], self.all_ports[middle:])

    def _deal(self, row: _PortRow, layer: Layer, port: Port) -> None:
        dealt = layer.dealt(port.name)
        if dealt is not None:
            row.turns = self._turns(dealt)

    def _turns(self, dealt: Dealt) -> int:
        """Where the turns of a copy lie: of every frame of a batch, and of what is behind it, how many before are its
        own, and which frames these are."""
        before = [dealt.share(frame) for frame in range(self.batch + 1)]
        own = [frame for frame in range(self.batch) if before[frame] < before[frame + 1]]
        return self._table("turns", self.dealt, np.array([*before, *own], np.int64))

    # ---- tables

    def _table(self, name: str, arrays: list[Any], made: Any, beside: Any = None) -> int:
        """Where an array lies, once for all that are equal and have an equal one ``beside``."""
        hashed = hashlib.sha256(made)
        if beside is not None:
            hashed.update(beside)
        key = name, len(made), hashed.digest()
        if key not in self.known:
            self.known[key] = self.sizes[name]
            arrays.append(made)
            self.sizes[name] += len(made)
        return self.known[key]

    def _pair_tables(self, layer: Layer, sinks: Sequence[_PortRow], sources: Sequence[_PortRow]) -> None:
        for source in sources:
            source.table = len(self.pair)
            for sink in sinks:
                even = source.kind == kernel.BATCH or sink.kind != kernel.FRAME
                found = None if even else _needs(layer, source.port, sink.port)
                if found is None:
                    self.pair += [-1, -1]
                    continue
                self.pair += [self._table("needed", self.needed, each) for each in found]

    def _strip_tables(self, strips: Strips, sinks: Sequence[_PortRow], sources: Sequence[_PortRow]) -> None:
        count = len(strips.cycles)
        for sink in sinks:
            if sink.kind != kernel.FRAME:
                continue
            port, name = sink.port, sink.port.name
            along = name in strips.along
            if sink.use != kernel.BORROWED:
                sink.use = kernel.ALONG if along else kernel.STORED
            word = strips.words.get(name, port.lanes)
            sink.unit = max(1, word // port.lanes)
            sink.joined = int(name != strips.apart)
            if along:
                held = strips.along_words * word // port.lanes if port.lanes > word else strips.along_words
                sink.holds = max(2, held)
                sink.words_at = self.ring(sink.holds)
            elements = strips.along[name] if along else strips.stored[name]
            beats = np.minimum(np.ceil(elements / port.lanes), port.beats).astype(np.int64)
            counts = np.concatenate([np.zeros(port.beats, np.int64), beats])
            gates = np.zeros(port.beats + count, np.int64)
            if not along:
                gates[: port.beats] = _gates(strips.room[name], strips.stored[name], sink)
            sink.table = self._table("counts", self.counts, counts, gates)
            at = self._table("gates", self.gates, gates, counts)
            assert at == sink.table
        for source in sources:
            if source.kind == kernel.FRAME and not strips.reordered:
                made = _shares(strips, source.port, self._giving(strips, source.port))
                source.table = self._table("shares", self.shares, made)

    def _giving(self, strips: Strips, port: Port) -> int:
        """Strips of a frame that give results: the last ones."""
        return strips.parts or int(port.tensor.shape[0])

    # ---- rows

    def ring(self, size: int) -> int:
        """Where a ring of so many times lies."""
        self.times += size
        return self.times - size

    def channels(self) -> Rows:
        """Of `kernel.CHANNEL`."""
        writers, readers = self._by_channel(sources=True), self._by_channel(sources=False)
        found = np.zeros(len(self.rows), kernel.CHANNEL)
        for number, row in enumerate(self.rows):
            writer, reader = writers[number], readers[number]
            column = self._column(row, writer, reader)
            column |= self._rings(row, writer, reader, column)
            for name, value in column.items():
                found[number][name] = value
            for name in ("write", "read", "sent", "arrived", "credit"):
                found[number][f"{name}_at"] = self.ring(column[f"{name}_size"])
        found["full"] = kernel.NEVER
        return found

    def _by_channel(self, *, sources: bool) -> dict[int, _PortRow]:
        found = {}
        for first, middle, end in self.starts:
            for row in self.all_ports[middle:end] if sources else self.all_ports[first:middle]:
                if row.channel >= 0 and row.use != kernel.BORROWED:
                    found[row.channel] = row
        return found

    def _column(self, row: _Row, writer: _PortRow, reader: _PortRow) -> dict[str, Any]:
        source, sink, hop = row.source, row.sink, self.wired.hops.get(row.edge)
        depth, outside = self.wired.fifo_beats[row.edge], row.edge in self.wired.stored
        lanes = row.producer.layer.port(source.name).lanes, row.consumer.layer.port(sink.name).lanes
        period, kind = self.period(row.consumer), adapter_kind(*lanes)
        adapted = kind is not AdapterKind.WIRE
        behind = self.wired.stored.get(row.edge, 0)
        latency = float(behind) if hop else float(adapted + queue_latency(depth) + behind)
        ends = (row.producer.layer.port(source.name), row.consumer.layer.port(sink.name))
        wide = None if hop or outside else wide_beats(self.graph, row.edge, *ends, depth)
        unpacked = 1.0 if hop or wide is not None else max(1.0, lanes[0] / lanes[1])
        inside = sum(lanes) + min(lanes) if kind is AdapterKind.GEARBOX else max(lanes)
        room = (depth * lanes[1] if wide is None else wide * lanes[0]) + (inside if adapted else 0)
        room += row.consumer.layer.taken_ahead(sink.name)[0]
        if row.run != (1, 1):
            # what is shallower than runs lets them pass
            room = max(math.ceil(room / source.lanes), 2) * source.lanes
        column: dict[str, Any] = {
            "writer": self.index[row.producer.name],
            "reader": self.index[row.consumer.name],
            "elements": source.elements,
            "write_lanes": source.lanes,
            "read_lanes": sink.lanes,
            "write_beats": source.beats,
            "read_beats": sink.beats,
            # what makes several beats of one takes the next one behind them, while the next one is put together
            "write_step": max(writer.beat_cycles, writer.run * unpacked) * self.period(row.producer),
            "read_step": reader.beat_cycles * period,
            "latency": latency * period,
            "room_latency": self.period(row.producer),
            "room": max(room, source.elements) if outside else room,
            "tensors": self.tensors(row.edge, source),
            "words": 1,
        }
        if hop is not None:
            at_once = self.at_once[row.edge]
            column |= {
                "stored": outside,
                "word": hop.word * at_once,
                "words": math.ceil(source.elements / (hop.word * at_once)),
                "at_once": at_once,
                "sender_words": max(SENDER_WORDS, hop.sender_words // at_once),
                "door": self.door(row, hop),
                "adapted": row.run == (1, 1) and adapter_kind(hop.word, sink.lanes) is not AdapterKind.WIRE,
                "cycles": self.way,
                "behind": hop.cycles - self._under_way(hop.way),
                "credits_behind": hop.back_cycles - self._under_way(hop.back),
                "credits": hop.credits // at_once,
                "credit_batch": hop.credit_batch // at_once,
                "source": self.devices[hop.source],
                "target": self.devices[hop.target],
            }
        return column

    def _under_way(self, way: Sequence[Output]) -> int:
        """Cycles from leaving a device until a word's turn at the last port that it passes."""
        return sum(each.cycles - self.early for each in way[:-1]) if way else self.way

    def door(self, row: _Row, hop: Hop) -> int:
        """Elements that wait in front of the sender: a run, or a beat of which it does not hold all words."""
        lanes, word = row.source.lanes, hop.word
        held = all(
            (first + lanes - 1) // word - hop.sender_words < first // word
            for first in range(0, math.lcm(lanes, word), lanes)
        )
        return 0 if held and row.run == (1, 1) else lanes

    def _rings(self, row: _Row, writer: _PortRow, reader: _PortRow, column: Mapping[str, Any]) -> dict[str, int]:
        """How many times are kept."""
        source, sink, tensors, hop = row.source, row.sink, column["tensors"], self.wired.hops.get(row.edge)
        waiting = column["room"] if hop is None else (column["sender_words"] + 2) * column["word"] + 2 * source.lanes
        write = waiting // source.lanes + writer.holds + SLACK
        # what has left the sender and was not read: words that credits were given for, and what lies in DRAM
        held = column["room"] if hop is None or column["stored"] else 0
        waiting = held if hop is None else (column["credits"] + column["credit_batch"]) * column["word"] + held
        strips = self.strips[column["reader"]]
        behind = 0
        if strips is not None and sink.name in strips.stored:
            behind = int(strips.room[sink.name].max())
        elif strips is None:
            behind = self._behind(row)
        read = (waiting + behind) // sink.lanes + (reader.holds + 2) * reader.unit + 2 * SLACK
        all_write, all_read = tensors * source.beats, tensors * sink.beats
        words = column["credits"] + column["credit_batch"] + SLACK if hop else 0
        arrived = words + held // column["word"] if hop else 0
        return {
            "write_size": all_write if self.keep else min(write, all_write),
            "read_size": all_read if self.keep else min(read, all_read),
            "sent_size": max(words, column["sender_words"] + SLACK) if hop else 0,
            "arrived_size": arrived,
            "credit_size": column["credits"] // column["credit_batch"] + SLACK if hop else 0,
        }

    def _behind(self, row: _Row) -> int:
        """Elements that a layer that works at once may have read before it gives what is made of the first of them."""
        first, middle, end = self.starts[self.index[row.consumer.name]]
        place = next(i for i in range(middle - first) if self.all_ports[first + i].port.name == row.sink.name)
        found = 0
        for source in self.all_ports[middle:end]:
            if source.kind == kernel.FRAME or row.consumer.layer.works_per_batch:
                beats = math.ceil((source.holds + 2) * row.sink.beats / source.port.beats)
                if self.pair[source.table + 2 * place] >= 0:
                    beats += row.sink.beats
                found = max(found, beats * row.sink.lanes)
        return found

    def ports(self) -> Rows:
        """Of `kernel.PORT`."""
        found = np.zeros(len(self.all_ports), kernel.PORT)
        for name in ("channel", "kind", "turns", "latency", "holds", "use", "unit", "words_at", "joined", "table"):
            found[name] = [getattr(row, name) for row in self.all_ports]
        found["began"] = -kernel.NEVER
        return found

    def nodes(self) -> Rows:
        """Of `kernel.NODE`."""
        found = np.zeros(len(self.graph.nodes), kernel.NODE)
        found["beside"] = -1
        for name, lender in self.graph.lenders.items():
            found["beside"][self.index[name]] = self.index[lender.name]
            found["beside"][self.index[lender.name]] = self.index[name]
        for number, (node, strips) in enumerate(zip(self.graph.nodes, self.strips, strict=True)):
            for name, value in self._node(node, strips, self.starts[number]).items():
                found[number][name] = value
        return found

    def _node(self, node: Node, strips: Strips | None, ports: tuple[int, int, int]) -> dict[str, Any]:
        layer, period = node.layer, self.period(node)
        dealt, frames = self.graph.dealt.get(node.name), self.frames(node)
        found: dict[str, Any] = dict(zip(("first", "middle", "end"), ports, strict=True)) | {
            "kind": kernel.STRIPS if strips else kernel.AT_ONCE if layer.sinks else kernel.HOST,
            "per_batch": layer.works_per_batch,
            "turns": -1 if dealt is None else self._turns(dealt),
            "share": self.batch if dealt is None else dealt.share(self.batch),
            "cycles_per_frame": layer.cycles_per_frame * period,
            "weight_cycles": layer.weight_cycles * period,
            "frames": frames,
            "first_at": self.ring(frames),
            "last_at": self.ring(frames),
        }
        if strips is None:
            return found
        names = ("begin_cycles", "along_cycles", "along_work", "along_free", "result_cycles", "rest_cycles")
        for name in (*names, "load_cycles", "free_cycles"):
            found[name] = getattr(strips, name) * period
        cycles = np.array(strips.cycles, np.float64) * period
        maps = [port for port in layer.sources if not port.tensor.kind.per_batch]
        ends = 4 * len(cycles) + SLACK
        return found | {
            "places": 0 if layer.replayed or layer.parked else 2,
            "strips": len(cycles),
            "cycles_at": self._table("cycles", self.cycles, cycles),
            "giving": self._giving(strips, maps[0]) if maps else 1,
            "reordered": strips.reordered,
            "ends_at": self.ring(ends),
            "ends_size": ends,
        }

    def ends(self) -> Rows:
        """Of `kernel.DEVICE`."""
        found = np.zeros(len(self.devices), kernel.DEVICE)
        found["rate"] = 1.0
        for hop in self.wired.hops.values():
            for device, rate in ((hop.source, hop.source_rate), (hop.target, hop.target_rate)):
                found["rate"][self.devices[device]] = rate
        self._take_turns(found, slice(len(self.devices)))
        found["queue"] = [self.inputs.get((device, device), -1) for device in self.devices]
        return found

    def _take_turns(self, rows: Rows, which: slice) -> None:
        """Where these have whom in tables."""
        counts = [len(turns.members) for turns in self.turns]
        rows["leaving_at"], rows["leaving_end"] = _begins(counts)[which], np.cumsum(counts)[which]
        rows["twos_at"] = _begins([len(turns.sides) for turns in self.turns])[which]
        rows["into_at"] = _begins([len(turns.into) for turns in self.turns])[which]

    def outputs(self) -> Rows:
        """Of `kernel.OUTPUT`."""
        found = np.zeros(len(self.passing), kernel.OUTPUT)
        self._take_turns(found, slice(len(self.devices), None))
        found["rate"] = [each.rate for each in self.passing]
        found["cycles"] = [each.cycles - self.early for each in self.passing]
        found["queue"] = [-1 if each.arrives else self.inputs[each.device, each.target] for each in self.passing]
        return found

    def queues(self) -> Rows:
        """Of `kernel.QUEUE`."""
        found = np.zeros(len(self.inputs), kernel.QUEUE)
        devices = len(self.graph.nodes)
        outputs = devices + len(self.devices) + len(self.rows)
        for (_, at), number in self.inputs.items():
            found[number]["device"] = self.devices[at]
        for device, place in self.devices.items():
            if (device, device) in self.inputs:
                row = found[self.inputs[device, device]]
                # those of the input and of the merge before it
                row["sender"], row["room"] = devices + place, 2 * INPUT_WORDS
                # credits that wait there beside words
                back = (hop for hop in self.wired.hops.values() if hop.target == device)
                row["size"] = row["room"] + SLACK + sum(hop.credits // hop.credit_batch + SLACK for hop in back)
        for each, place in self.passing.items():
            if not each.arrives:
                row = found[self.inputs[each.device, each.target]]
                row["sender"], row["room"] = outputs + place, each.cycles + SPARE_WORDS + INPUT_WORDS
                row["size"] = row["room"] + SLACK
        found["at"] = _begins(found["size"].tolist())
        return found

    def tables(self) -> kernel.Tables:
        """Of all rows."""
        return kernel.Tables(
            pair=np.array(self.pair or [0], np.int64),
            needed=_joined(self.needed, np.int64),
            counts=_joined(self.counts, np.int64),
            gates=_joined(self.gates, np.int64),
            turns=_joined(self.dealt, np.int64),
            leaving=_joined([np.array(turns.members, np.int64) for turns in self.turns], np.int64),
            sides=np.array([pair for turns in self.turns for pair in turns.sides] or [(0, 0)], np.int64),
            into=_joined([turns.into for turns in self.turns], np.int64),
            onward=self._onward(),
            cycles=_joined(self.cycles, np.float64),
            shares=_joined(self.shares, np.float64),
        )

    def _onward(self) -> IntArray:
        """Device, device that a word is for -> the output by which it leaves; -1 where none does."""
        found = np.full((len(self.devices), len(self.devices)), -1)
        for way in self.ways:
            for each in way:
                found[self.devices[each.device], self.devices[way[-1].device]] = self.passing[each]
        return found

    def state(self, nodes: Rows, queues: Rows) -> kernel.State:
        """Of a run that begins."""
        channels, count = len(self.rows), len(nodes)
        who, waiting = count + len(self.devices) + channels + len(self.passing), int(queues["size"].sum())
        times = np.zeros(self.times)
        for node in nodes:
            times[node["first_at"] : node["first_at"] + node["frames"]] = kernel.NEVER
        return kernel.State(
            times,
            np.full((count, self.batches), -kernel.NEVER),
            np.full((channels, self.batches), kernel.NEVER),
            np.full((count, self.batches), kernel.NEVER),
            np.zeros(HEAP * who),
            np.zeros(HEAP * who, np.int64),
            np.full(who, kernel.NEVER),
            np.zeros(1, np.int64),
            np.zeros(max(1, sum(len(turns.sides) for turns in self.turns)), np.int64),
            np.zeros(max((len(turns.members) for turns in self.turns), default=0) + 1, np.int64),
            np.zeros(waiting),
            np.zeros(waiting, np.int64),
        )

    # ---- afterwards

    def waiting(self, channels: Rows, state: kernel.State) -> list[str]:
        """What has not passed and why, if anything has not."""
        full, empty = [], []
        for number, row in enumerate(self.rows):
            channel = channels[number]
            if channel["read"] >= channel["tensors"] * row.sink.beats:
                continue
            tensor = int(channel["written"]) // row.source.beats + 1
            ends = f"{row.edge} from {row.producer.name} to {row.consumer.name}"
            if kernel.room_for(channels, state, number, channel["written"]) == kernel.NEVER:
                full.append(f"full: {ends}, {self.wired.fifo_beats[row.edge]} beats deep, in tensor {tensor:,}")
            elif kernel.arrival(channels, state, number, channel["read"]) == kernel.NEVER:
                empty.append(f"empty: {ends}, in tensor {tensor:,}")
        return shown([*full, *empty])

    def events(
        self, channels: Rows, ports: Rows, nodes: Rows, outputs: Rows, state: kernel.State, turns: int
    ) -> Events:
        """What the kernel has worked out, by name."""
        names, times = [row.edge for row in self.rows], state.times

        def spans(which: str) -> dict[str, FloatArray]:
            at = nodes[which]
            return {node.name: times[at[i] : at[i] + nodes["frames"][i]] for i, node in enumerate(self.graph.nodes)}

        def kept(which: str) -> dict[str, FloatArray]:
            at, size = channels[f"{which}_at"], channels[f"{which}_size"]
            return {edge: times[at[i] : at[i] + size[i]] for i, edge in enumerate(names)} if self.keep else {}

        crossing = [i for i, edge in enumerate(names) if edge in self.wired.hops]
        return Events(
            self.wired, self.batches, tuple(names), spans("first_at"), spans("last_at"),
            {node.name: self._ended(i, channels, ports, nodes) for i, node in enumerate(self.graph.nodes)},
            {edge: float(channels["blocked"][i]) for i, edge in enumerate(names)},
            {edge: float(channels["full"][i]) for i, edge in enumerate(names) if channels["full"][i] < kernel.NEVER},
            {names[i]: self._words(i, channels[i]) for i in crossing},
            {names[i]: int(channels["returned"][i]) for i in crossing},
            {each: int(outputs["passed"][i]) for each, i in self.passing.items() if not each.arrives},
            kept("write"), kept("read"), turns,
            float(state.heap_time[0]) if state.length[0] else self._end(channels, times),
        )  # fmt: skip

    def _ended(self, number: int, channels: Rows, ports: Rows, nodes: Rows) -> int:
        """Frames, or batches, that a node has done."""
        node, layer = nodes[number], self.graph.nodes[number].layer
        if node["kind"] == kernel.STRIPS:
            return int(node["strip"] // node["strips"])
        kind = kernel.BATCH if layer.works_per_batch else kernel.FRAME
        first = node["middle"] if node["kind"] == kernel.HOST else node["first"]
        done = [node["frames"]]
        for port in ports[first : node["end"]]:
            if port["channel"] < 0 or port["kind"] != kind:
                continue
            channel = channels[port["channel"]]
            host = node["kind"] == kernel.HOST
            done.append(channel["written"] // channel["write_beats"] if host else port["frame"])
        return int(min(done))

    def _words(self, number: int, channel: Any) -> int:
        """Words that left for the network: those that are one here end with a tensor, whose last ones may be fewer."""
        row = self.rows[number]
        tensors, within = divmod(int(channel["sent"]), int(channel["words"]))
        each = math.ceil(row.source.elements / self.wired.hops[row.edge].word)
        return tensors * each + within * int(channel["at_once"])

    def _end(self, channels: Rows, times: FloatArray) -> float:
        """The last time of any ring."""
        ends = [0.0]
        for name, count in (("write", "written"), ("read", "read"), ("sent", "sent"), ("credit", "repaid")):
            row = channels[channels[count] > 0]
            last = row[f"{name}_at"] + (row[count] - 1) % row[f"{name}_size"]
            ends += [float(time) for time in times[last]]
        return max(ends)


def _numbered(things: Iterable[_Thing]) -> dict[_Thing, int]:
    """All different ones, in their order."""
    return {one: number for number, one in enumerate(dict.fromkeys(things))}


def _begins(counts: Sequence[int]) -> IntArray:
    """Where each of so many begins, one behind the other."""
    return np.cumsum(counts, dtype=np.int64) - np.array(counts, np.int64)


def _joined(arrays: Sequence[Any], kind: Any) -> Any:
    return np.concatenate(arrays).astype(kind) if arrays else np.zeros(1, kind)


def _needs(layer: Layer, source: Port, sink: Port) -> tuple[IntArray, IntArray] | None:
    """Beats of a sink that each beat of a source needs, and the first beat of the source that needs each of the sink,
    or as many as there are; None where they need one another evenly.

    Asked at every beat, or of long frames at the marks of `hdl.layers.passage.needs`, evenly between.  Both are ports
    of the layer, or have wider beats, of several that pass as one."""
    kept = needs(layer)[source.name].get(sink.name)
    ends = np.arange(1, source.beats + 1) * source.lanes
    if source.beats <= MOST_ASKED:
        wanted = np.array([layer.required(source.name, int(end)).get(sink.name, 0) for end in ends], np.float64)
    elif kept is None:
        return np.zeros(source.beats, np.int64), np.full(sink.beats, source.beats, np.int64)
    else:
        own = layer.port(source.name)
        wanted = np.interp(ends, marks(own.tensor, own.lanes, layer.turns(own.name), own.padding), kept)
    beats = np.ceil(wanted / sink.lanes - 1e-9).astype(np.int64)
    beats = np.minimum(np.maximum.accumulate(beats), sink.beats)
    even = -(-np.arange(1, source.beats + 1) * sink.beats // source.beats)
    if np.array_equal(beats, even):
        return None
    return beats, np.searchsorted(beats, np.arange(1, sink.beats + 1)).astype(np.int64)


def _gates(room: FloatArray, stored: FloatArray, sink: _PortRow) -> IntArray:
    """The strip, counted from the frame's first, that must have ended before each beat of a stored map may come.

    Of a run of which a strip needs some that must have ended before its last beat comes, or that begins just then:
    before its first beat comes, as beats come while strips before it are at work."""
    port, strips = sink.port, len(room)
    before = np.maximum.accumulate(np.concatenate([room - 2 * port.elements, room - port.elements, room]))
    ends = np.arange(1, port.beats + 1) * port.lanes
    first, last = (
        np.searchsorted(before, last) - 2 * strips - 1 for last in (ends - port.lanes + port.lanes // sink.run, ends)
    )
    user = np.searchsorted(stored, ends - port.lanes, side="right")
    return np.where(last >= user - 1, first, last).astype(np.int64)


def _shares(strips: Strips, port: Port, giving: int) -> FloatArray:
    """Share of a strip that is over when each beat of its results is made, in whole words of a pixel."""
    channels, elements = port.tensor.shape[-1], port.tensor.elements // giving
    word = strips.words.get(port.name, port.lanes)
    pixel = -(-channels // word) * word
    within = np.arange(1, elements // port.lanes + 1) * port.lanes
    made = within // channels * pixel + np.ceil(within % channels / word) * word
    return np.asarray(np.minimum(1.0, made / (elements // channels * pixel)), np.float64)
