"""What streams over the network cost at their ends: of the edges that a placement has cross, and of any edge before one
is found."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dagtrain.emission.ethernet import host_words
from dagtrain.emission.links import (
    LEAST_LINK_WORDS,
    NETWORK_CYCLES,
    WHOLE,
    Crossing,
    Share,
    allowed_cycles,
    crossings_of,
    link_format,
    link_words,
    pool_share,
    port_share,
    receiver_beats,
    receiver_words,
    receiving_units,
    sending_units,
)
from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.passes.place import place
from dagtrain.passes.queue_words import Room
from dagtrain.schedule.buffers import PER_BATCH_BEATS, REGISTER_BEATS, burst_elements, frame_inputs
from hdl.costs.estimate import Contents
from hdl.costs.resources import Usage, fit
from hdl.engine.codec.coding import Coding, coded_words
from hdl.layers.base import Layer
from hdl.link.egress import Egress
from hdl.link.format import LinkFormat, credit_batch, depth_for
from hdl.link.ingress import Ingress
from hdl.parts.part import Part
from hdl.tensor import Port, Tensor
from hdl.unit import Unit
from placement.problem.instance import Link
from placement.problem.routes import Routing

# streams over the network that the header of words has room for where it isn't known how many there are
MANY_STREAMS = 1024
# nothing is known of receivers
NO_CREDITS: Mapping[str, int] = {}
# tensors that lie on an edge at most, beside what is under way: those that go once a batch; those of frames where their
# consumer takes nothing else with a frame, or nothing but what comes of nodes before the edge
MOST_PER_BATCH, MOST_ALONE, MOST_BEHIND = PER_BATCH_BEATS, 1, 3


def many_streams(devices: int, word_bits: int, *, pooled: bool = False) -> LinkFormat:
    """Words of a cluster where it isn't known yet how many streams cross its network."""
    return LinkFormat(word_bits=word_bits, streams=MANY_STREAMS, devices=devices, pooled=pooled)


def network_links(
    graph: Graph,
    word_bits: int,
    credit_words: Mapping[str, int] = NO_CREDITS,
    credit_bits: Fraction | None = None,
) -> Iterator[Link]:
    """Edges with the bits that they carry a frame, whole words of the network; without ports.

    Args:
        credit_words: edge -> words that a credit word stands for; of others credits are left out.
        credit_bits: what a credit word takes; None: as much as any word."""
    back_bits = Fraction(word_bits) if credit_bits is None else credit_bits
    for edge, producer, _source, consumer, sink in graph.streams:
        tensor = sink.tensor
        words, _ = coded_words(sink.elements, tensor.fixed.width, word_bits, graph.coding(edge))
        # whole bits: depths of FIFOs, which tell how many words a credit word stands for, have few common divisors
        back = math.ceil(words * back_bits / credit_words[edge]) if edge in credit_words else 0
        frames = graph.recipe.batch if tensor.kind.per_batch else 1
        yield Link(
            source=producer.name, target=consumer.name, kind=tensor.kind,
            bits_per_frame=Fraction(words * word_bits, frames) * graph.passing(edge),
            credit_bits_per_frame=Fraction(back, frames) * graph.passing(edge),
        )  # fmt: skip


def most_credit_words(graph: Graph, word_bits: int, network_cycles: int = NETWORK_CYCLES) -> dict[str, int]:
    """Edge -> words of it that a credit word stands for at most, however nodes are folded and wherever they stand, of a
    placement or before there is one; what may wait for long, and has next to no credits then, is not in it.

    No frame takes longer than the interval T to flow on an edge (`dagtrain.schedule.schedule`).  So with u the cycle in
    which a frame begins to be taken, and v that by which it is offered, at most 1 + (u - v) / T frames lie there.
    Where its consumer takes nothing else with it, u - v is no more than the cycles under way, of a word or less each.
    Where all else comes of nodes before the edge, that is offered within 2 T of the frame's first element."""
    before: dict[str, frozenset[str]] = {}
    found: dict[str, int] = {}
    for node in graph.nodes:
        makers = {graph.producers[edge][0].name for _, edge in frame_inputs(node)}
        before[node.name] = frozenset({node.name}).union(*(before[name] for name in makers))
    for edge, producer, source, consumer, sink in graph.streams:
        per_batch, of_store = sink.tensor.kind.per_batch, sink.tensor.kind.of_store
        others = {graph.producers[other][0].name for _, other in frame_inputs(consumer) if other != edge}
        if per_batch or of_store:
            tensors, beyond = MOST_PER_BATCH, 0
        elif Role.RECOMPUTE in (producer.role, consumer.role) or not others <= before[producer.name]:
            continue
        else:
            tensors = MOST_BEHIND if others else MOST_ALONE
            # of copies, those that come one turn sooner from one batch to the next
            tensors += graph.turns_are_uneven(edge)
            beyond = burst_elements(source.tensor.shape) + (REGISTER_BEATS + 1) * sink.tensor.shape[-1]
        _, words = coded_words(sink.elements, sink.tensor.fixed.width, word_bits, graph.coding(edge))
        lying = tensors * words + -(-beyond * words // sink.elements) + 2 * tensors
        under_way = 0 if per_batch else network_cycles
        found[edge] = credit_batch(max(LEAST_LINK_WORDS, depth_for(lying + under_way)))
    return found


@dataclass(frozen=True)
class CodedTraffic:
    """What is coded where it crosses the network, of a placement."""

    streams: int
    # a batch: as they would be, and as a plan counts on
    plain_words: int
    words: int

    @classmethod
    def of(cls, graph: Graph, assignment: Mapping[str, str], devices: Sequence[str], word_bits: int) -> CodedTraffic:
        """Of a folded graph with nodes there."""
        coded = [
            each for each in crossings_of(place.run(graph, assignment, devices), devices) if each.bursts(word_bits)
        ]
        plain = sum(replace(each, coding=None).words(word_bits) for each in coded)
        return cls(len(coded), plain, sum(each.words(word_bits) for each in coded))


@dataclass(frozen=True)
class LinkCosts:
    """Which edges cross the network, and the units at their ends."""

    crossings: Mapping[str, Crossing]
    form: LinkFormat
    # whether it is known where nodes stand
    placed: bool
    # cycles under way that buffers allow for, over a switch or a cable
    network_cycles: int = NETWORK_CYCLES
    # whether words go in frames
    framed: bool = False
    # by which cables words go; None: over a switch
    routing: Routing | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        assignment: Mapping[str, str] | None,
        devices: Sequence[str],
        word_bits: int,
        network_cycles: int = NETWORK_CYCLES,
        host_on_network: bool = False,
        pooled: bool = False,
        routing: Routing | None = None,
    ) -> LinkCosts:
        """Of a placement; of none yet: no edge crosses.  ``host_on_network``: the host's streams are there too, of
        Ethernet.  ``pooled``: all receivers of a device have one memory."""
        found = crossings_of(place.run(graph, assignment, devices), devices) if assignment else ()
        hosts = sum(node.role is Role.HOST for node in graph.nodes) if host_on_network else 0
        form = link_format(len(found) + hosts, len(devices), word_bits, host_on_network, pooled=pooled)
        crossings = {crossing.edge: crossing for crossing in found}
        return cls(crossings, form, bool(assignment), network_cycles, host_on_network, routing)

    @cached_property
    def delays(self) -> dict[str, int]:
        """Crossing edge -> cycles under way."""
        return allowed_cycles(tuple(self.crossings.values()), self.network_cycles, self.routing)

    def queued(self, node: Node) -> tuple[Room, ...]:
        """Sources of a node with words that may wait at their senders."""
        found = [(source, self.crossings[edge]) for source, edge in node.outputs.items() if edge in self.crossings]
        return tuple((source, crossing.queued) for source, crossing in found if crossing.queued)

    def behind(self, edge: str, sink: Port, beats: int, stored: bool, cycles: int) -> int:
        """Beats of the FIFO behind the receiver of an edge that crosses (`receiver_beats`)."""
        return receiver_beats(sink, beats, stored, cycles, self.delays[edge])

    def credit_words(
        self, graph: Graph, depths: Mapping[str, int], waiting: Collection[str], cycles: int
    ) -> dict[str, int]:
        """Edge -> words of it that a credit word stands for.  Of edges that cross the network, as few as anything that
        nodes can be makes of it.  Before there is a placement, as many as where a word comes in every cycle: links are
        not called fuller than they will be.

        Args:
            depths: edge -> beats of the FIFO there.
            waiting: edges that may go through DRAM."""
        found = {}
        for edge, _producer, _source, _consumer, sink in graph.streams:
            beats, bits = depths[edge], self.form.word_bits
            if edge in self.crossings:
                beats = self.behind(edge, sink, beats, edge in waiting, cycles)
                found[edge] = credit_batch(receiver_words(sink, beats, bits, graph.coding(edge)))
            elif not self.placed:
                beats = receiver_beats(sink, beats, False, cycles, self.network_cycles)
                under_way = 0 if sink.tensor.kind.per_batch else self.network_cycles
                found[edge] = credit_batch(receiver_words(sink, beats, bits, graph.coding(edge)) + under_way)
        return found

    def sending(self, edge: str, beats: int, cycles: int) -> tuple[Share, ...]:
        """What is at the sending end, of an edge with such a FIFO at so many cycles a frame: the sender, its parts of
        what gets its credits and of the tree of merges."""
        crossing = self.crossings[edge]
        behind = self.behind(edge, crossing.sink, beats, False, cycles)
        ends = sending_units(crossing, self.form, link_words(crossing, behind, self.form.word_bits))
        return shares(*ends, form=self.form, framed=self.framed, sends=True)

    def receiving(self, edge: str, beats: int) -> tuple[Share, ...]:
        """What is at the receiving end, its FIFO of so many beats included (`behind`)."""
        crossing = self.crossings[edge]
        ends = receiving_units(crossing, self.form, link_words(crossing, beats, self.form.word_bits))
        return shares(*ends, form=self.form, framed=self.framed, sends=False)

    def host_ends(self, layer: Layer, cycles: int) -> Iterator[tuple[str, tuple[Share, ...]]]:
        """(port, units at this end) of each stream of the host's that a layer brings or takes, at so many cycles a
        frame."""
        for port in (*layer.sources, *layer.sinks):
            arrives = port in layer.sources
            words = host_words(port, cycles, self.network_cycles, self.form.word_bits, arrives=arrives)
            bits = port.tensor.fixed.width
            shape = {"element_bits": bits, "lanes": port.lanes, "elements": port.elements}
            end: Unit = Egress(format=self.form, **shape, credits=words)
            if arrives:
                end = Ingress(format=self.form, **shape, depth=words, pooled=self.form.pooled)
            yield port.name, shares(end, form=self.form, framed=self.framed, sends=not arrives)


def shares(*ends: Unit, form: LinkFormat, framed: bool, sends: bool) -> tuple[Share, ...]:
    """The units at one end of a stream, and what it has of those that streams share."""
    shared = port_share(form, framed=framed, sends=sends)
    if form.pooled and not sends:
        pool = pool_share(ends[0])
        # no split takes its words out
        shared = ((pool, Fraction(1, len(pool.regions))), *shared[1:])
    return *((unit, WHOLE) for unit in ends), *shared


@dataclass
class PortCosts:
    """What either end of a stream takes of the network port, before a placement says which streams cross.

    Senders and receivers are alike but for their counters and the depth of the receiver's FIFO, which takes the place
    of the FIFO on chip.  So what they cost is read off those for a power of two of beats."""

    form: LinkFormat
    parts: Sequence[Part]
    estimator: Contents
    # whether words go in frames
    framed: bool = False

    @classmethod
    def of(cls, devices: int, word_bits: int, parts: Sequence[Part], estimator: Contents) -> PortCosts:
        """Of a cluster."""
        return cls(many_streams(devices, word_bits), parts, estimator)

    def of_link(self, link: Link, source: Port, sink: Port, coding: Coding | None = None) -> Link:
        """A link with what its ends take; ``coding``: how its edge is coded, if it is."""
        sender, receiver = self.sender(source, sink, coding), self.receiver(source, sink, coding)
        return replace(
            link, sender_m20k=sender.m20k, sender_alm=sender.alm, receiver_m20k=receiver.m20k,
            receiver_alm=receiver.alm,
        )  # fmt: skip

    def sender(self, source: Port, sink: Port, coding: Coding | None = None) -> Usage:
        """Of a stream that leaves; the most on any part."""
        crossing = self._crossing(source, sink, coding)
        return self._usage(sending_units(crossing, self.form, LEAST_LINK_WORDS), sends=True)

    def receiver(self, source: Port, sink: Port, coding: Coding | None = None) -> Usage:
        """Of a stream that arrives; the most on any part."""
        crossing = self._crossing(source, sink, coding)
        return self._usage(receiving_units(crossing, self.form, LEAST_LINK_WORDS), sends=False)

    def _crossing(self, source: Port, sink: Port, coding: Coding | None) -> Crossing:
        """Between two devices, of a tensor of a power of two of beats."""
        step = math.lcm(source.lanes, sink.lanes)
        beats = -(-source.elements // step)
        tensor = Tensor((step << (beats - 1).bit_length(),), source.tensor.fixed, source.tensor.kind)
        start, stop = (Port(port.name, tensor, port.lanes) for port in (source, sink))
        return Crossing("", 0, "", "", 0, 0, start, stop, coding)

    def _usage(self, ends: tuple[Unit, ...], *, sends: bool) -> Usage:
        found = [
            (self.estimator.block(repr(unit), dict(unit.streams), unit.build), share)
            for unit, share in shares(*ends, form=self.form, framed=self.framed, sends=sends)
        ]
        usages = [sum((fit(contents, part).scaled(share) for contents, share in found), Usage()) for part in self.parts]
        return Usage(m20k=max(usage.m20k for usage in usages), alm=max(usage.alm for usage in usages))
