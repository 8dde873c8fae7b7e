"""The cycles that a batch of training takes: what a placed and folded graph, its recipe and its links make of it.

Analysis, not transformation.  Inside a batch a frame leaves every T cycles, T the interval of the slowest engine.  At
its end there is more to pay, which depends on the staleness D: frame t wants the weights after ⌊(t - D) / B⌋ updates.
An update is complete only when the last frame of its batch has gone forward, come back as an error and been summed,
the sums have left and gone through the update, and the new weights lie at their users.  With D = 0 the first frame of a
batch waits for all that, so a batch takes B T and nearly the whole round trip; with D at least the pipeline's depth in
frames nobody waits, and there remain the rests of gradient engines while their sums leave, and of engines that keep a
single version of their weights while they load the next one.

So a batch's cycles follow from when everything happens, which `batch_time` finds frame by frame, node by node, by the
recurrence of `hdl.layers.passage`.  Along an edge everything is later by the cycles of its FIFO, or of the network,
where it waits besides for what shares its ports (`dagtrain.schedule.network`).  What is faster than the rest runs ahead
as far as the FIFOs behind it have room for whole frames.  What goes once a batch has little room on its way, and a
gradient engine rests until its sums have left (`dagtrain.schedule.departures`).  The recurrence goes on until batches
take as long as one another, where they take longest.  Where ports are full it matters who is served first (`Order`).

Cycles are those of the cluster's clock; a layer on a device of another clock goes through its frames in its own.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush
from types import MappingProxyType

from dagtrain.graph.ir import Graph, Node, is_delayed
from dagtrain.schedule.departures import Departures, Taking
from dagtrain.schedule.network import Hop, Network, Transfer, port_cycles_per_frame
from hdl.layers.passage import LONG_AGO, Flow, Passage
from hdl.recipe import Dealt, Recipe
from hdl.streams import queue_latency
from hdl.streams.width import AdapterKind, adapter_kind
from hdl.tensor import Port

# of the nodes of a cluster of one clock
ONE_CLOCK: Mapping[str, Fraction] = MappingProxyType({})

# batches that take as long as one another when it repeats, with staleness 0, where a batch knows of the one before
# only, and with more; batches after which it does, if ever
ALIKE_DRAINED, ALIKE = 2, 3
MOST_BATCHES = 12
# cycles, or the share of a batch, by which batches may differ that are called alike: flows are kept at some elements
# only, and where ports are busy what waits for new weights finds another queue in every batch
SAME_CYCLES, SAME_SHARE = 0.5, 5e-4
# of sums of fractions
ROUNDED = 1e-6
# pieces in which tensors cross the network where streams have turns at its ports
PIECES = 12
# where a port takes longer for a frame than the slowest engine, turns matter; but for batches that take no more of its
# time than so
ALL_BUSY = 1.01

# batches so many times as long are reckoned from two that are a frame apart, of at least so many frames
MUCH_LONGER = 4
SHORT_BATCH = 4


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


@dataclass(frozen=True)
class BatchTime:
    """The time of training in whole batches."""

    # frames a batch
    batch: int
    # from one batch to the next, once all batches take as long
    cycles: int

    @property
    def cycles_per_frame(self) -> Fraction:
        """Of training."""
        return Fraction(self.cycles, self.batch)


class Order(enum.Enum):
    """What comes next of all that can be worked out."""

    # what happens first, in so small pieces that all streams at a port have their turns: as arbiters do it
    TURNS = "turns"
    # the oldest frame: the least that new weights can wait
    OLDEST = "oldest"


class _When(enum.Enum):
    """What comes at a sink."""

    # a tensor with every frame
    FRAME = "frame"
    # one with the last frame of a batch
    BATCH = "batch"
    # the weights of a frame's version, which left a batch or more before
    VERSION = "version"


@dataclass(frozen=True)
class _Step:
    """A node, with what it is asked for every frame worked out."""

    passage: Passage
    # (sink, edge, when it comes)
    sinks: tuple[tuple[str, str, _When], ...]
    # source -> (edge, whether it leaves once a batch)
    sources: Mapping[str, tuple[str, bool]]
    # what a cycle of its device lasts, in cycles of the cluster's clock
    period: float = 1.0
    # which frames it gets; None: all
    dealt: Dealt | None = None

    @classmethod
    def of(cls, node: Node, period: Fraction | None, dealt: Dealt | None) -> _Step:
        """Of a node of the folded graph."""
        layer = node.layer

        def when(port: Port) -> _When:
            if is_delayed(layer, port):
                return _When.VERSION
            return _When.BATCH if port.tensor.kind.per_batch else _When.FRAME

        sinks = ((port.name, node.inputs[port.name], when(port)) for port in layer.sinks)
        sources = {
            port.name: (node.outputs[port.name], port.tensor.kind.per_batch)
            for port in layer.sources
            if port.name in node.outputs
        }
        return cls(Passage(layer), tuple(sinks), sources, float(period or 1), dealt)

    @property
    def begins(self) -> float:
        """The cycle before which the engine has no time for the next frame."""
        return max(self.passage.free, self.passage.began) * self.period

    @property
    def cycles_per_frame(self) -> float:
        """Of the cluster's clock."""
        return self.passage.cycles_per_frame * self.period

    def frame(self, arriving: Mapping[str, Flow], weights: float, *, ends_batch: bool) -> Mapping[str, Flow]:
        """How a frame leaves: the passage counts in cycles of its device."""
        if self.period == 1.0:
            return self.passage.frame(arriving, weights, ends_batch=ends_batch) if self.sinks else self.passage.host()
        own = {name: flow.scaled(1 / self.period) for name, flow in arriving.items()}
        weights = weights if weights == LONG_AGO else weights / self.period
        made = self.passage.frame(own, weights, ends_batch=ends_batch) if self.sinks else self.passage.host()
        return {name: flow.scaled(self.period) for name, flow in made.items()}


class BatchClock:
    """A folded streaming graph, in the order of time."""

    def __init__(
        self,
        graph: Graph,
        ways: Mapping[str, Way],
        recipe: Recipe,
        periods: Mapping[str, Fraction] = ONE_CLOCK,
        order: Order = Order.OLDEST,
    ) -> None:
        self.recipe = recipe
        graph, ways = graph.computing, _computing_ways(graph, ways)

        def dealt(found: Mapping[str, Dealt]) -> dict[str, Dealt]:
            return {name: replace(one, batch=recipe.batch, staleness=recipe.staleness) for name, one in found.items()}

        # edge that not all frames pass -> which do
        self.dealt, nodes = dealt(graph.dealt_edges), dealt(graph.dealt)
        self.steps = [_Step.of(node, periods.get(node.name), nodes.get(node.name)) for node in graph.nodes]
        index = {node.name: number for number, node in enumerate(graph.nodes)}
        # node -> the other one that reads the same weights
        self.beside: dict[int, int] = {}
        for name, lender in graph.lenders.items():
            pair = index[name], index[lender.name]
            for one, other in (pair, pair[::-1]):
                self.beside[one] = other
                self.steps[one].passage.beside = self.steps[other].passage
        self.makers = {edge: number for number, step in enumerate(self.steps) for edge, _ in step.sources.values()}
        self.users: dict[str, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            for _, edge, _ in step.sinks:
                self.users[edge].append(number)
        self.ways, self.order = ways, order
        hops = {edge: way.hop for edge, way in ways.items() if way.hop}
        self.network = Network(hops, math.ceil(own_cycles(graph, periods)), turns=order is Order.TURNS)
        # node -> (frames that it may be ahead of who reads behind it, cycles until it knows of room there, who that
        # is, on which edge), where a node may run ahead of older frames
        self.rooms: list[list[tuple[float, float, int, str]]] = [[] for _ in self.steps]
        if order is Order.TURNS:
            for number, step in enumerate(self.steps):
                edges = [edge for edge, per_batch in step.sources.values() if ways[edge].room and not per_batch]
                self.rooms[number] = [(*ways[edge].ahead, self.users[edge][0], edge) for edge in edges]
        # edge -> when each version of its weights had left, the first one of an update first; when the last tensor of
        # each batch had passed at the producer
        self.versions: dict[str, list[float]] = {}
        self.ends: dict[str, list[float]] = defaultdict(list)
        # node -> the frame that it does next; when it had done each of its frames before
        self.frames = [self._first_frame(step, 0) for step in self.steps]
        self.done: list[list[float]] = [[] for _ in self.steps]
        # (edge, frame) -> how that comes to its consumer; edge -> what waits to cross the network, the first on its way
        self.arriving: dict[tuple[str, int], Flow] = {}
        self.leaving: dict[str, deque[tuple[int, bool, Transfer]]] = defaultdict(deque)
        # of tensors of a batch: what has not left, of which gradient engines rest
        self.departures = Departures()
        # edge of sums of a batch -> the share of them that leaves beside the engine's work
        self.aside = {
            edge: min(1.0, strips.sum_word / step.passage.ports[name].port.elements)
            for step in self.steps
            if (strips := step.passage.strips) is not None
            for name, (edge, per_batch) in step.sources.items()
            if per_batch
        }
        # what can be worked out, in order: a node's next frame, or the next piece on an edge
        self.pending: list[tuple[int, float, int, str]] = []
        self.known: set[int | str] = set()
        self.batches = 0
        # whether a node waited for nothing but its weights
        self.waited = False
        for number in range(len(self.steps)):
            self._look(number)

    def _first_frame(self, step: _Step, frame: int) -> int:
        """The first frame from this one on that a node has work with."""
        if step.passage.works_per_batch:
            return self._last_of_batch(frame)
        return frame if step.dealt is None else step.dealt.frame(step.dealt.index(frame))

    def _last_of_batch(self, frame: int) -> int:
        """The last frame of a frame's batch."""
        return (frame // self.recipe.batch + 1) * self.recipe.batch - 1

    def batch(self) -> list[float]:
        """Takes one more batch through the graph; when the last tensor of it had passed, of every edge."""
        self.waited = False
        self.batches += 1
        goal = self.batches * self.recipe.batch
        behind = sum(frame < goal for frame in self.frames)
        while behind:
            *_, number, edge = heappop(self.pending)
            self.known.discard(edge or number)
            if edge:
                self._carry(edge)
            else:
                before = self.frames[number]
                self._take(number)
                behind -= self.frames[number] >= goal > before
        return [ends[self.batches - 1] for ends in self.ends.values()]

    # ---- what can be worked out

    def _look(self, number: int) -> None:
        """Note a node's next frame if all that it takes is known."""
        if number not in self.known:
            begins = self._begins(number)
            if begins is not None:
                self.known.add(number)
                self._note(self.frames[number], begins, number, "")

    def _note(self, frame: int, begins: float, number: int, edge: str) -> None:
        heappush(self.pending, (frame if self.order is Order.OLDEST else 0, begins, number, edge))

    def _begins(self, number: int) -> float | None:
        """About when a node's next frame begins; None if something that it waits for is not known."""
        step, frame = self.steps[number], self.frames[number]
        begins, ends_batch = step.begins, self._ends_batch(frame, step.dealt)
        if number in self.departures.making and (step.passage.strips or ends_batch):
            return None
        version = self.recipe.version(frame)
        beside = self.beside.get(number)
        if beside is not None and self.frames[beside] < frame:
            before = frame - 1 if step.dealt is None or not frame else step.dealt.frame(step.dealt.index(frame) - 1)
            if version > self.recipe.version(before):
                return None
        for _, edge, when in step.sinks:
            if when is _When.VERSION:
                versions = self.versions.get(edge, [])
                if len(versions) < version:
                    return None
                if version:
                    begins = max(begins, versions[version - 1])
            elif ends_batch if when is _When.BATCH else self._passes(edge, frame):
                flow = self.arriving.get(self._key(edge, frame, when))
                if flow is None:
                    return None
                begins = max(begins, flow.first)
        room = self._room(number)
        return None if room is None else max(begins, room)

    def _ends_batch(self, frame: int, dealt: Dealt | None) -> bool:
        """Whether a frame is the last one of its batch, among those that are dealt so."""
        return (frame + 1) % self.recipe.batch == 0 if dealt is None else dealt.ends_batch(frame)

    def _passes(self, edge: str, frame: int) -> bool:
        """Whether a frame passes an edge, of which the producer or the consumer has it."""
        dealt = self.dealt.get(edge)
        return dealt is None or dealt.gets(frame)

    def _key(self, edge: str, frame: int, when: _When) -> tuple[str, int]:
        """What comes at a sink with a frame, in `arriving`: of a batch, with the last one of all."""
        return edge, frame if when is _When.FRAME else self._last_of_batch(frame)

    def _room(self, number: int) -> float | None:
        """The cycle from which the FIFOs behind a node have room for all of its next frame when that ends; None if that
        is not known.

        A FIFO of 2.3 frames has room for frame 5 when 0.7 of frame 3 are out."""
        found = LONG_AGO
        for room, back, user, edge in self.rooms[number]:
            frame, dealt = self.frames[number], self.dealt.get(edge)
            if dealt is not None:
                if not self._passes(edge, frame):
                    continue
                frame = dealt.index(frame)
            frame -= int(room)
            if frame >= 0:
                done, (earlier, last) = self.done[user], (max(0, frame - 1), frame)
                if dealt is not None and self.steps[user].dealt is None:
                    # all frames are the user's
                    earlier, last = dealt.frame(earlier), dealt.frame(last)
                if last >= len(done):
                    return None
                found = max(found, done[last] - (room - int(room)) * (done[last] - done[earlier]) + back)
        return found - self.steps[number].cycles_per_frame

    # ---- working it out

    def _take(self, number: int) -> None:
        """The next frame of a node."""
        step, frame = self.steps[number], self.frames[number]
        version, ends_batch = self.recipe.version(frame), self._ends_batch(frame, step.dealt)
        room = self._room(number)
        assert room is not None, "a frame is taken once all is known"
        step.passage.hold(room / step.period)
        arriving: dict[str, Flow] = {}
        weights = LONG_AGO
        for name, edge, when in step.sinks:
            if when is _When.VERSION:
                if version:
                    weights = max(weights, self.versions[edge][version - 1])
            elif ends_batch if when is _When.BATCH else self._passes(edge, frame):
                arriving[name] = self.arriving.pop(self._key(edge, frame, when))
        made = step.frame(arriving, weights, ends_batch=ends_batch)
        self.waited |= step.passage.waited
        done = [made[name].last for name, (_, per_batch) in step.sources.items() if name in made and not per_batch]
        self.done[number].append(max([step.begins, *done]))
        self.frames[number] = self._first_frame(step, frame + 1)
        offered = {
            edge: self._rested_for(edge, made[name])
            for name, (edge, per_batch) in step.sources.items()
            if per_batch and name in made
        }
        if offered or step.passage.works_per_batch:
            self._left(self.departures.make(number, offered, self._taking(step, arriving)))
        for name, (edge, per_batch) in step.sources.items():
            if name in made and (per_batch or self._passes(edge, frame)):
                self._offer(edge, self._last_of_batch(frame) if per_batch else frame, made[name], per_batch)
        self._look(number)
        for _, edge, _ in step.sinks:
            self._look(self.makers[edge])
        if number in self.beside:
            self._look(self.beside[number])

    def _offer(self, edge: str, frame: int, flow: Flow, per_batch: bool) -> None:
        """A tensor leaves its producer."""
        if self._ends_batch(frame, self.dealt.get(edge)):
            self.ends[edge].append(flow.last)
        hop = self.ways[edge].hop
        if hop is None:
            self._come(edge, frame, flow, per_batch)
            return
        self.leaving[edge].append(
            (frame, per_batch, Transfer.of(hop, flow, PIECES if self.order is Order.TURNS else 1))
        )
        self._look_at(edge)

    def _look_at(self, edge: str) -> None:
        """Note the next piece that crosses the network on an edge."""
        if self.leaving[edge] and edge not in self.known:
            self.known.add(edge)
            frame, _, transfer = self.leaving[edge][0]
            self._note(frame, self.network.begins(edge, transfer), -1, edge)

    def _carry(self, edge: str) -> None:
        frame, per_batch, transfer = self.leaving[edge][0]
        self.network.carry(edge, transfer)
        flow = transfer.flow
        if flow is not None:
            self.leaving[edge].popleft()
            self._come(edge, frame, flow, per_batch)
        self._look_at(edge)

    def _come(self, edge: str, frame: int, flow: Flow, per_batch: bool) -> None:
        """A tensor comes to its consumers."""
        way, sent = self.ways[edge], flow.last
        flow = flow.later(way.cycles)
        self.arriving[edge, frame] = flow
        if per_batch:
            self.versions.setdefault(edge, []).append(flow.last)
            sent = (self.network.last[edge] if way.hop else sent) - flow.last + self._rested_for(edge, flow)
            if way.room and any(self.steps[user].passage.works_per_batch for user in self.users[edge]):
                self.departures.send(edge, sent)
            else:
                # its user holds all of it
                self._left(self.departures.leave(self.makers[edge], edge, sent))
        for user in self.users[edge]:
            self._look(user)

    def _taking(self, step: _Step, arriving: Mapping[str, Flow]) -> dict[str, Taking]:
        """What a node has taken for what it makes, if it works once a batch."""
        if not step.passage.works_per_batch:
            return {}
        # element by element of all
        first = max(flow.first for flow in arriving.values())
        last = max(step.passage.ports[name].last for name in arriving) * step.period
        return {
            edge: Taking(self.makers[edge], first, last, min(1.0, way.room + self.aside.get(edge, 0.0)))
            for _, edge, _ in step.sinks
            if (way := self.ways[edge]).room
        }

    def _rested_for(self, edge: str, flow: Flow) -> float:
        """When the last element of a tensor passes for which its maker rests."""
        return flow.last - self.aside.get(edge, 0.0) * (flow.last - flow.first)

    def _left(self, nodes: Iterable[tuple[int, float]]) -> None:
        """What these nodes made of a batch has left, by so many cycles later than it was offered.

        Only gradient engines rest for it: what others give is a vector, which they hold beside their work."""
        for number, late in nodes:
            step = self.steps[number]
            if step.passage.strips:
                step.passage.hold(step.passage.free + late / step.period)
            self._look(number)


def batch_time(graph: Graph, ways: Mapping[str, Way], periods: Mapping[str, Fraction] = ONE_CLOCK) -> BatchTime:
    """Cycles of one batch in the long run: as many as everything takes, and no port of the network carries it in fewer.

    Args:
        graph: folded, streaming.
        ways: edge -> what lies on it (`edge_ways`).
        periods: nodes on devices of another clock than the cluster's -> what a cycle there lasts in cycles of that."""
    recipe, port = graph.recipe, _busiest_port(graph, ways)
    cycles = _batch_cycles(graph, ways, periods)
    least = recipe.batch * port
    # where the oldest frames first keep a port busy all the time, so do turns
    if port > slowest_engine(graph, periods) and cycles > ALL_BUSY * least:
        cycles = _batch_cycles(graph, ways, periods, Order.TURNS)
    return BatchTime(recipe.batch, math.ceil(max(cycles, least) - ROUNDED))


def _batch_cycles(
    graph: Graph, ways: Mapping[str, Way], periods: Mapping[str, Fraction], order: Order = Order.OLDEST
) -> float:
    """Cycles of one batch in the long run, from when everything happens.

    Each further frame of a batch adds its interval at most, and beyond some length of the batch exactly that: what
    batches cost beside is paid once each.  So long batches are reckoned from short ones, once a frame more costs as
    much as the slowest engine or port takes.  Where a whole batch may be stale that is not before new weights, from its
    last frame on, take less time than a batch, which is as long as one frame that waits for those of the frame before:
    shorter ones are not tried, but where ports are full, and hold up what new weights wait for.  What waits for them
    all the same, with room to run ahead in longer batches, does so in these too."""
    recipe = graph.recipe
    slowest = max(slowest_engine(graph, periods), _busiest_port(graph, ways))
    # frames after which turns of copies come again; batches of no whole number of these are worked out as they are
    turns = math.lcm(*(len(frames.turns) for frames in graph.dealt.values()))
    if recipe.batch % turns:
        return _long_run(graph, ways, recipe.batch, recipe.staleness, periods, order, SAME_SHARE)[0]
    short = SHORT_BATCH * turns
    there_and_back = 0.0
    if order is Order.OLDEST and min(recipe.staleness, recipe.batch // MUCH_LONGER) >= short:
        there_and_back, _ = _long_run(graph, ways, turns, 0, periods, order)
    while short * MUCH_LONGER <= recipe.batch:
        # the frames that may be stale are some of one batch, or so many that nothing ever waits
        some, all_of_it = 2 * (recipe.staleness + 1) <= short, recipe.staleness >= short
        if some or (all_of_it and short * slowest >= there_and_back):
            cycles, waited = _long_run(graph, ways, short, min(recipe.staleness, short), periods, order)
            if waited and not some:
                break
            less = short - turns
            fewer, _ = _long_run(graph, ways, less, min(recipe.staleness, less), periods, order)
            more = (cycles - fewer) / turns
            if more >= slowest - 2 * SAME_CYCLES:
                return cycles + (recipe.batch - short) * more
        short *= 2
    return _long_run(graph, ways, recipe.batch, recipe.staleness, periods, order, SAME_SHARE)[0]


def _busiest_port(graph: Graph, ways: Mapping[str, Way]) -> float:
    """Cycles that a frame takes of it, with its share of what goes once a batch."""
    sources = ((edge, source, ways[edge].hop) for edge, _p, source, _c, _s in graph.streams)
    return port_cycles_per_frame(
        (hop, math.ceil(source.elements / hop.word) * _tensors_per_frame(graph, edge, source))
        for edge, source, hop in sources
        if hop
    )


def _tensors_per_frame(graph: Graph, edge: str, source: Port) -> float:
    """Those that pass an edge."""
    return 1 / graph.recipe.batch if source.tensor.kind.per_batch else float(graph.passing(edge))


def _long_run(
    graph: Graph,
    ways: Mapping[str, Way],
    batch: int,
    staleness: int,
    periods: Mapping[str, Fraction] = ONE_CLOCK,
    order: Order = Order.OLDEST,
    same: float = 0.0,
) -> tuple[float, bool]:
    """Cycles of a batch once all take as long, and whether anything waited for weights in the last one.

    Where ports are full no two take as long: the mean of the last ones once they differ by less than ``same`` of a
    batch, or of the later half of `MOST_BATCHES`."""
    clock = BatchClock(graph, ways, replace(graph.recipe, batch=batch, staleness=staleness), periods, order)
    alike = ALIKE if staleness else ALIKE_DRAINED
    ends: list[list[float]] = []
    slowest: list[float] = []
    for _ in range(MOST_BATCHES):
        ends.append(clock.batch())
        if len(ends) > 1:
            slowest.append(_slowest_edge(ends, 1))
        if len(slowest) >= alike:
            apart = max(slowest[-alike:]) - min(slowest[-alike:])
            if apart < SAME_CYCLES:
                return slowest[-1], clock.waited
            if apart < same * slowest[-1]:
                return _slowest_edge(ends, alike), clock.waited
    return _slowest_edge(ends, MOST_BATCHES // 2), clock.waited


def _slowest_edge(ends: Sequence[Sequence[float]], batches: int) -> float:
    """Cycles a batch of the last ones, where they took longest; ``ends``: by batch and edge."""
    return max(end - earlier for end, earlier in zip(ends[-1], ends[-1 - batches], strict=True)) / batches


def _computing_ways(graph: Graph, ways: Mapping[str, Way]) -> Mapping[str, Way]:
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


def slowest_engine(graph: Graph, periods: Mapping[str, Fraction] = ONE_CLOCK) -> float:
    """Cycles a frame; of one of several copies, a frame of all."""
    return _slowest(graph, periods)[0]


def own_cycles(graph: Graph, periods: Mapping[str, Fraction] = ONE_CLOCK) -> float:
    """Cycles that the slowest engine takes for a frame; of one of several copies, a frame that it gets."""
    return -_slowest(graph, periods)[1]


def _slowest(graph: Graph, periods: Mapping[str, Fraction]) -> tuple[float, float]:
    """Cycles a frame of the slowest engine, and, less than 0, those that it takes for one: the fewest of equal ones."""
    engines = ((node.layer.cycles_per_frame * periods.get(node.name, 1), graph.busy(node.name)) for node in graph.nodes)
    return max((float(cycles * busy), -float(cycles)) for cycles, busy in engines)


def edge_ways(
    graph: Graph,
    fifo_beats: Mapping[str, int],
    hops: Mapping[str, Hop],
    stored: Mapping[str, int] | None = None,
    periods: Mapping[str, Fraction] = ONE_CLOCK,
) -> dict[str, Way]:
    """Edge -> what lies on it: a width adapter where lanes differ and a FIFO, or the network; then DRAM, if stored.

    Args:
        hops: edges that cross the network -> their way.
        stored: edges that go through DRAM -> cycles that it adds.
        periods: as in `batch_time`."""
    found: dict[str, Way] = {}
    outside = stored or {}
    for edge, _producer, source, consumer, sink in graph.edges:
        behind, period = outside.get(edge, 0), float(periods.get(consumer.name, 1))
        holds = hops[edge].credits * hops[edge].word if edge in hops else fifo_beats[edge] * sink.lanes
        room = holds / source.elements
        room = 0.0 if edge in outside else min(1.0, room) if source.tensor.kind.per_batch else max(1.0, room)
        if edge in hops:
            found[edge] = Way(behind * period, hops[edge], room)
        else:
            adapter = adapter_kind(source.lanes, sink.lanes) is not AdapterKind.WIRE
            found[edge] = Way((adapter + queue_latency(fifo_beats[edge]) + behind) * period, room=room)
    return found
