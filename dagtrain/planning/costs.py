"""What building a node costs: its engine, the FIFO in front of each sink, link units, DRAM units.

Every number is read off an elaborated circuit (`hdl.costs.estimate`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction

from dagtrain.emission.links import NETWORK_CYCLES, Share
from dagtrain.emission.memory import deal_units, group_share
from dagtrain.emission.stored import DramUse, Stored, can_be_dealt
from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.passes.fold import fold_graph, weight_tiles
from dagtrain.passes.memory_home import move_memories, own_homes
from dagtrain.planning.choices import Choice, Dealing, memory_bits
from dagtrain.planning.fifo_costs import channel_resources, queue_resources
from dagtrain.planning.link_costs import LinkCosts
from dagtrain.planning.offers import Offer, Piece, Use
from dagtrain.schedule.buffers import REGISTER_BEATS, fifo_beats
from dagtrain.schedule.schedule import Schedule, schedule
from hdl.costs.estimate import Circuit, Contents, Wanted
from hdl.costs.resources import Resources, Usage, fit
from hdl.dram.axi import AxiFormat, AxiMerge
from hdl.dram.widen import AxiWiden
from hdl.errors import FoldingError
from hdl.layers.base import Layer
from hdl.layers.capabilities import is_plain, multiplies, on_multipliers, recipe_of
from hdl.layers.storage import Home
from hdl.parts.part import Part
from hdl.tensor import Port, Tile
from hdl.unit import Unit
from placement.problem.routes import Routing

# block memories that a FIFO or a layer's memory must take on chip before DRAM is worth its queues and adapters
LEAST_DRAM_BLOCKS = 8


@dataclass
class LevelCosts:
    """All offers at one number of cycles a frame, depths and links as they are when memories live in ``homes``."""

    graph: Graph
    cycles: int
    homes: Mapping[str, Home]
    dram: DramUse
    parts: Sequence[Part]
    estimator: Contents
    assignment: Mapping[str, str] | None
    devices: Sequence[str]
    link_word_bits: int
    network_cycles: int = NETWORK_CYCLES
    # whether the host's streams come over the network too
    host_on_network: bool = False
    # whether all receivers of a device have one memory
    pooled: bool = False
    # whether every node may also have its memory where ``homes`` doesn't say
    free: bool = True
    # cycles a frame that each node is folded for, if not all for ``cycles``
    folds: Mapping[str, int] | None = None
    # whether every node that multiplies by constants may also do so on multipliers
    multiply: bool = False
    # whether those that lend their weights have two versions on chip
    lend_two: bool = False
    # over which streams to DRAM may be dealt out that no memory channel carries
    dealing: Dealing = field(default_factory=Dealing)
    # of nodes on devices of another clock than the cluster's, what a cycle there lasts in cycles of that
    periods: Mapping[str, Fraction] = field(default_factory=dict)
    # by which cables words go; None: over a switch
    routing: Routing | None = None
    # what follows from all these, worked out once: the folded graph with the tiles of its weights, its links, when
    # frames flow on each edge, and beats of the FIFO there
    tiles: Mapping[str, Tile] = field(init=False)
    folded: Graph = field(init=False)
    links: LinkCosts = field(init=False)
    flows: Schedule = field(init=False)
    depths: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Raises `FoldingError` when the level is too fast for a layer."""
        chosen = move_memories.run(self.graph, self.homes)
        self.tiles = weight_tiles(chosen, self.folds or self.cycles, self.parts)
        self.folded = fold_graph.run(chosen, self.folds or self.cycles, self.parts, self.tiles)
        self.links = LinkCosts.of(
            self.folded, self.assignment, self.devices, self.link_word_bits, self.network_cycles, self.host_on_network,
            self.pooled, self.routing,
        )  # fmt: skip
        self.flows = schedule(self.folded, self.cycles, self.links.delays, self.periods)
        self.depths = fifo_beats(self.folded, self.flows)

    def circuits(self) -> Mapping[str, Circuit]:
        """All circuits that `offers` will want the contents of, by their keys."""
        wanted, asking = Wanted(), copy(self)
        asking.estimator = wanted
        for node in self.folded.nodes:
            for _ in asking.offers(node):
                pass
        for form in self.dram.narrow_formats:
            asking.widening(form)
        return wanted.circuits

    def offers(self, node: Node) -> Iterator[Offer]:
        """Of a node of ``folded``: its memory and each of its large FIFOs on chip or in DRAM."""
        for memory, layer in self._ways(node):
            if not layer.borrowed and self.folded.circuit_of(node, layer) is None:
                continue
            parts = {port.name: self._parts(node, port) for port in layer.sinks}
            fifos = [sink for sink, found in parts.items() if found]
            for count in range(len(fifos) + 1):
                for chosen in itertools.combinations(fifos, count):
                    whole, dealt = ({sink: parts[sink][at] for sink in chosen} for at in (0, -1))
                    yield self._offer(node, layer, memory, whole)
                    if dealt != whole:
                        yield self._offer(node, layer, memory, dealt)

    @property
    def credit_words(self) -> dict[str, int]:
        """Edge -> words of it that a credit word stands for (`LinkCosts.credit_words`)."""
        streams = self.folded.streams
        waiting = {edge for edge, _, _, consumer, sink in streams if self._may_lie_in_dram(consumer, sink)}
        return self.links.credit_words(self.folded, self.depths, waiting, self.cycles)

    def _ways(self, node: Node) -> Iterator[tuple[Home, Layer]]:
        """With adders for products by constants, and on multipliers if that is offered."""
        for memory, layer in self._layers(node):
            other = on_multipliers(layer) if self.multiply else None
            yield from ((memory, each) for each in dict.fromkeys((layer, other or layer)))

    def _layers(self, node: Node) -> Iterator[tuple[Home, Layer]]:
        original = self.graph.by_name[node.name].layer
        if node.layer.borrowed:
            yield Home.LENT, node.layer
            return
        here = self.homes.get(node.name, Home.ON_CHIP)
        yield here, node.layer
        ports = (*original.sinks, *original.sources, *original.held_parameters)
        bits = max(map(memory_bits, ports), default=0)
        least = LEAST_DRAM_BLOCKS * min(part.m20k_bits for part in self.parts)
        if not self.free or bits < least:
            return
        lends = self.lend_two and node.name in self.graph.borrowers
        for home, variant in own_homes(original).items():
            if home is not here and not (lends and home is Home.PARKED):
                try:
                    own = self.folded.cycles_for(node.name, self._fold_cycles(node))
                    folded = variant.fold(own, self.tiles.get(node.name))
                except FoldingError:
                    continue
                # a word a cycle is all that DRAM delivers
                if all(folded.port(name).payload_bits <= self.dram.format.data_bits for name in folded.parked):
                    yield home, folded

    def _fold_cycles(self, node: Node) -> int:
        return self.folds[node.name] if self.folds is not None else self.cycles

    def _dram_of(self, node: Node) -> DramUse:
        """At the clock of the node's device, and the node's own pace."""
        return self.dram.at(self.periods.get(node.name), self.folded.busy(node.name))

    def _parts(self, node: Node, port: Port) -> list[int]:
        """To how many parts a FIFO in DRAM may be dealt out: the fewest with which units keep up, up to the fewest that
        memory channels carry too, or as many as there can be; empty if it can't lie there."""
        if not self._may_lie_in_dram(node, port):
            return []
        lanes, depth, dram = self._stored_lanes(node, port), self.depths[node.inputs[port.name]], self._dram_of(node)
        found: list[int] = []
        for parts in range(1, self.dealing.channels + 1):
            if can_be_dealt(lanes, port, parts) and self._may_lie_in_dram(node, port, parts):
                stored = dram.fifo(lanes, port, depth, parts)
                found += [parts] if stored.keeps_up else []
                moved = dram.bytes_per_frame(stored) * self.folded.busy(node.name)
                if found and moved <= self.dealing.channel_bytes:
                    break
        return found

    def _stored_lanes(self, node: Node, port: Port) -> int:
        """Of the stream that goes to DRAM in front of a sink: what comes over the network has the sink's already."""
        edge = node.inputs[port.name]
        return port.lanes if edge in self.links.crossings else self.folded.producers[edge][1].lanes

    def _may_lie_in_dram(self, node: Node, port: Port, parts: int = 1) -> bool:
        """Whether a FIFO is deep, and all that goes through it waits longer than the way through DRAM takes, dealt out
        to so many parts."""
        if port.tensor.kind.of_parameter:
            return False
        edge = node.inputs[port.name]
        depth, width = self.depths[edge], port.payload_bits
        if max(part.m20k_blocks(depth, width) for part in self.parts) < LEAST_DRAM_BLOCKS:
            return False
        offered, taken = self.flows.offered[edge], self.flows.taken[edge]
        waits = min(taken.first - offered.first, taken.last - offered.last) - self.links.delays.get(edge, 0)
        return waits >= self._dram_of(node).delay_cycles(port, parts) * self.periods.get(node.name, 1)

    def _offer(self, node: Node, layer: Layer, memory: Home, fifos: Mapping[str, int]) -> Offer:
        """``fifos``: sinks whose FIFO lies in DRAM -> memory channels that it is dealt out over."""
        circuit = self.folded.circuit_of(node, layer)
        pieces = [Piece(Use.ENGINE, self.estimator.layer(circuit))] if circuit is not None else []
        units: list[tuple[str, Stored]] = []
        dram = self._dram_of(node)
        for port in (port for port in layer.sinks if port.name not in layer.borrowed):
            edge = node.inputs[port.name]
            crosses = edge in self.links.crossings
            stored = port.name in fifos or port.name in layer.replayed or port.name in layer.parked
            if crosses:
                beats = self.links.behind(edge, port, self.depths[edge], stored, self.cycles)
                pieces += self._port_pieces(port.name, self.links.receiving(edge, beats))
            elif not stored:
                found = channel_resources(self.folded, edge, port, self.depths[edge], self.estimator)
                pieces += _pieces(Use.FIFO, port.name, found)
            if stored:
                lanes = self._stored_lanes(node, port)
                queues = self._queues(lanes * port.tensor.fixed.width, port.payload_bits)
                pieces += _pieces(Use.DRAM, port.name, queues)
                if port.name in fifos:
                    parts = fifos[port.name]
                    units += [(port.name, dram.fifo(lanes, port, self.depths[edge], parts))] * parts
                    if parts > 1:
                        pieces += _pieces(Use.DRAM, port.name, self._units(deal_units(lanes, port, parts)))
                elif port.name in layer.parked:
                    batch = recipe_of(layer, self.graph.recipe).batch
                    units.append((port.name, dram.parked(lanes, port, layer.parked[port.name], batch)))
                else:
                    units.append((port.name, dram.replay(lanes, port, recipe_of(layer, self.graph.recipe))))
        for ring in layer.rings:
            pieces += _pieces(Use.DRAM, ring.name, self._queues(ring.out.payload_bits, ring.back.payload_bits))
            units.append((ring.name, dram.ring(ring)))
        for port in layer.fetched:
            pieces += _pieces(Use.DRAM, port.name, self._queues(port.payload_bits))
            units.append((port.name, dram.constant(port)))
        for port in layer.sources:
            crossing = node.outputs.get(port.name)
            if crossing is not None and crossing in self.links.crossings:
                pieces += self._port_pieces(port.name, self.links.sending(crossing, self.depths[crossing], self.cycles))
        if node.role is Role.HOST and self.host_on_network:
            for name, ends in self.links.host_ends(layer, self.cycles):
                pieces += self._port_pieces(name, ends)
        busy = self.folded.busy(node.name)
        pieces += [piece for name, stored in units for piece in self._stored(name, stored, busy)]
        sizes = tuple(stored.unit.region_words * (stored.unit.format.data_bits // 8) for _, stored in units)
        relay_on = node.inputs["x"] if node.role is Role.RELAY else None
        dealt = tuple(fifos.values()) if any(parts > 1 for parts in fifos.values()) else ()
        choice = Choice(
            cycles=self._fold_cycles(node), memory=memory, fifos=tuple(fifos), relay_on=relay_on,
            multiplied=multiplies(layer), dealt=dealt, plain=is_plain(layer),
            queued=self.links.queued(node),
        )  # fmt: skip
        return Offer(choice, layer, tuple(pieces), sizes, self.tiles.get(node.name), busy)

    def _stored(self, name: str, stored: Stored, busy: Fraction) -> Iterator[Piece]:
        """A unit, its place in the tree of arbiters, and what it shares with others of a group; ``busy``: share of all
        frames that it works on."""
        (contents,), form = self._units([stored.unit]), stored.unit.format
        yield Piece(Use.DRAM, contents, name, self.dram.bytes_per_frame(stored) * busy)
        yield Piece(Use.DRAM, self._arbiter(form), name)
        if form != self.dram.format:
            for shared in self.widening(form):
                yield Piece(Use.DRAM, shared, name, share=group_share(stored.load))

    def _port_pieces(self, port: str, shares: Iterable[Share]) -> list[Piece]:
        """What a stream has of the network port at one of its ends."""
        units, parts = zip(*shares, strict=True)
        return [
            Piece(Use.PORT, contents, port, share=part)
            for contents, part in zip(self._units(units), parts, strict=True)
        ]

    def _queues(self, *payload_bits: int) -> list[Resources]:
        """The small queues around a store."""
        return [queue_resources(bits, REGISTER_BEATS, self.estimator) for bits in payload_bits]

    def widening(self, narrow: AxiFormat) -> tuple[Resources, ...]:
        """What a group of narrow units takes: its widener, and the place of that in the tree of arbiters."""
        unit = AxiWiden(narrow=narrow, wide=self.dram.format, burst=self.dram.group_burst(narrow))
        return *self._units([unit]), self._arbiter(self.dram.format)

    def reserved(self, part: Part) -> Usage:
        """What the groups of narrow units on a channel may take beyond the shares that units are counted with: one
        group of each width (`grouped`)."""
        groups = [fit(found, part) for form in self.dram.narrow_formats for found in self.widening(form)]
        return sum(groups, Usage())

    def _arbiter(self, form: AxiFormat) -> Resources:
        """A master's place in a tree of arbiters, a third of which cut their paths."""
        whole, cut = self._units(AxiMerge(format=form, cut=cut) for cut in (False, True))
        registers = cut.registers - whole.registers
        tables = {inputs: number - whole.tables.get(inputs, 0) for inputs, number in cut.tables.items()}
        thirds = {inputs: -(-number // 3) for inputs, number in tables.items() if number > 0}
        return whole + Resources(registers=-(-registers // 3), tables=thirds)

    def _units(self, units: Iterable[Unit]) -> list[Resources]:
        return [self.estimator.block(repr(unit), dict(unit.streams), unit.build) for unit in units]


def _pieces(use: Use, port: str, contents: Iterable[Resources]) -> list[Piece]:
    return [Piece(use, resources, port) for resources in contents]
