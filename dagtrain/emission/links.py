"""The network port of an FPGA: every stream that leaves or enters gets its number, its credits and its place.

Structure of a port (units of `hdl.link`)::

    egress streams ─▶ Egress ─▶ Merge tree ───────────────┐
                                                          ├─▶ Merge ─▶ AXI4-Stream transmit port
    ingress credits ─▶ narrow Merge tree ─▶ CreditWord ───┘
    AXI4-Stream receive port ─▶ Split chain ─▶ Ingress ─▶ FIFO ─▶ consumers;  credits ─▶ Egress;  Drain at the end

A merge takes four streams, a split takes eight out, and credits are a few bits wide until all of them are one stream:
what a stream has of the port costs half of what it costs where each has a merge and a split of its own
(``python -m benchmarks.crossings``).

Where the device's clock is not the network's, both AXI4-Stream ports are at `net_clk`, and a `ClockCrossing` stands
behind each.

Where cables join devices, each cable's port <p> has a transmit and a receive port of its own, `net_tx_<p>` and
`net_rx_<p>`, and a `Forward` stands between them and all that, at the network's clock.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.emission.assembly import Assembly
from dagtrain.emission.cables import DeviceCables, cables_between, way_cycles, way_outputs
from dagtrain.emission.modules import ModuleLibrary, StreamModule, verilog_name
from dagtrain.graph.ir import PlacedGraph
from dagtrain.schedule.buffers import REGISTER_BEATS
from dagtrain.schedule.network import SENDER_WORDS, Hop
from hdl.convert.netlist import Direction
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.coding import Coding, CompressedEnd, DecompressedEnd, coded_words
from hdl.link.clocks import CROSSING_CYCLES, ClockCrossing
from hdl.link.egress import Egress
from hdl.link.ethernet.frame import BURST_WORDS
from hdl.link.format import LinkFormat, credit_batch, depth_for, merge_tree, merges_passed
from hdl.link.ingress import Ingress
from hdl.link.pool import WORD_CYCLES, ReceivePool, stage_words
from hdl.link.routing import MOST_TAPS, BurstStage, CreditWord, Drain, Merge, Split
from hdl.memory import filled
from hdl.simulate.models.ethernet import Faults
from hdl.streams.merge import MOST_MERGED
from hdl.streams.width import elements_per_word
from hdl.tensor import Port
from hdl.unit import Unit
from placement.problem.network import WORDS_ALLOWED_CYCLES
from placement.problem.routes import Routing

# receivers of which a memory is priced, each of which has its part
POOLED = 16
# words that a receiver's FIFO holds at least: those of one MLAB, since new weights, which pass once a batch, wait for
# credits all the way, and a batch for them
LEAST_LINK_WORDS = 32
# cycles that buffers allow for between leaving one FPGA and arriving at the next, where nothing is said of the network
NETWORK_CYCLES = WORDS_ALLOWED_CYCLES


# connections of what takes words from the network's clock to the device's, and back
HERE = {"write_clk": "net_clk", "write_rst": "net_rst", "read_clk": "clk", "read_rst": "rst"}
THERE = {"write_clk": "clk", "write_rst": "rst", "read_clk": "net_clk", "read_rst": "net_rst"}

# word streams of a network port before the way to the device's clock, behind the way from it, and at the device's
# clock; those that no receiver's memory took
ARRIVING, LEFT, ARRIVED, UNPOOLED = "arriving", "left", "arrived", "unpooled"
# those of a device that passes words on and has none of its own; of cables, each with the number of its port
SILENT, CABLE_IN, CABLE_OUT = "silent", "cable_in_", "cable_out_"
NETWORK_NETS = re.compile(rf"{ARRIVING}|{LEFT}|{SILENT}|(?:{CABLE_IN}|{CABLE_OUT})\d+")

# what messages call the switches and arbiters of a network port
NETWORK_ROLE = "network port"


def sender_role(edge: str) -> str:
    """What messages call the sending end of an edge between devices."""
    return f"sender of {edge}"


def compressor_role(edge: str) -> str:
    """What messages call what codes an edge on its way between devices."""
    return f"compressor of {edge}"


def receiver_role(edge: str) -> str:
    """What messages call the receiving end of an edge between devices."""
    return f"receiver of {edge}"


def receiver_name(edge: str) -> str:
    """The instance of it."""
    return f"ingress_{verilog_name(edge)}"


@dataclass(frozen=True)
class Crossing:
    """A stream that passes over the network."""

    # the edge of the graph
    edge: str
    # number in the cluster
    number: int
    source_device: str
    target_device: str
    # position of the devices in the cluster
    source_index: int
    target_index: int
    source: Port
    sink: Port
    # how elements are coded on the way, if they are
    coding: Coding | None = None
    # words that may wait at the sender
    queued: int = 0

    @property
    def element_bits(self) -> int:
        """Bits of an element."""
        return self.source.tensor.fixed.width

    @property
    def elements(self) -> int:
        """Elements of a tensor."""
        return self.source.elements

    def words(self, word_bits: int) -> int:
        """Words on the wire for one tensor; of one that is coded, those that a plan counts on."""
        words, _ = coded_words(self.elements, self.element_bits, word_bits, self.coding)
        return words

    def bursts(self, word_bits: int) -> Bursts | None:
        """How elements lie in words where they are coded."""
        return self.coding.bursts(self.elements, word_bits) if self.coding else None

    def elements_per_word(self, word_bits: int) -> int:
        """As many as a plan counts on."""
        bursts = self.bursts(word_bits)
        if self.coding is None or bursts is None:
            return elements_per_word(self.element_bits, word_bits)
        return self.coding.elements_per_word(bursts)


@dataclass(frozen=True, kw_only=True)
class NetworkModel:
    """The network of a co-simulation."""

    # cycles from port to port
    latency_cycles: int = 200
    # a link moves `words` words in `cycles` cycles
    words: int = 1
    cycles: int = 1
    # device -> bits/s that its link carries each way, if less than that
    bits_per_s: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # of 256 cycles, those in which a port stalls
    stall_256: int = 32
    seed: int = 1
    # (first cycle, cycle behind the last) of which the host's program does nothing: frames for it wait
    host_pauses: tuple[tuple[int, int], ...] = ()
    # (port, first cycle, cycle behind the last) in which an FPGA is in reset, by nobody's word but its own
    resets: tuple[tuple[int, int, int], ...] = ()
    # what an Ethernet does to frames, and whether all of them are kept
    faults: Faults = dataclasses.field(default_factory=Faults)
    capture: bool = False


def crossings_of(graph: PlacedGraph, devices: Sequence[str]) -> tuple[Crossing, ...]:
    """All edges between devices, numbered in the order of the graph's edges; ``devices`` are those on the network."""
    index = {device: position for position, device in enumerate(devices)}
    found: list[Crossing] = []
    for edge, producer, source, consumer, sink in graph.crossing:
        start, stop = graph.placed[producer.name], graph.placed[consumer.name]
        way = start, stop, index[start], index[stop]
        found.append(Crossing(edge, len(found), *way, source, sink, graph.coding(edge), graph.queued.get(edge, 0)))
    return tuple(found)


def allowed_cycles(crossings: Sequence[Crossing], network_cycles: int, routing: Routing | None) -> dict[str, int]:
    """Edge -> cycles from port to port that buffers allow for, ``network_cycles`` over the switch or each cable."""
    return {
        crossing.edge: network_cycles * cables_between(crossing.source_device, crossing.target_device, routing)
        for crossing in crossings
    }


def link_format(
    streams: int, devices: int, word_bits: int, framed: bool = False, *, pooled: bool = False
) -> LinkFormat:
    """The header that suits a cluster.

    Args:
        framed: words go in frames, which say for which device they are.
        pooled: all receivers of a port have one memory."""
    return LinkFormat(word_bits=word_bits, streams=max(1, streams), devices=1 if framed else devices, pooled=pooled)


def link_words(crossing: Crossing, fifo_beats: int, word_bits: int) -> int:
    """Words that the receiver's FIFO holds, so that what the analysis asks for on this edge finds room: packed into
    words, of which the last of each tensor is filled up."""
    return receiver_words(crossing.sink, fifo_beats, word_bits, crossing.coding)


def held_words(crossing: Crossing, form: LinkFormat, words: int) -> int:
    """Words that the receiver's FIFO holds where the analysis asks for so many: where words may wait at the sender, as
    many as its memory has room for, since a port that keeps words waiting sends several in a row then."""
    return filled(words) if crossing.queued and not form.pooled else words


def receiver_words(sink: Port, fifo_beats: int, word_bits: int, coding: Coding | None = None) -> int:
    """As `link_words`, of a stream that may cross the network; of one that is coded, whatever its data are."""
    _, words = coded_words(sink.elements, sink.tensor.fixed.width, word_bits, coding)
    return max(LEAST_LINK_WORDS, depth_for(-(-fifo_beats * sink.lanes * words // sink.elements) + 2))


def receiver_beats(sink: Port, fifo_beats: int, stored: bool, cycles: int, network_cycles: int = NETWORK_CYCLES) -> int:
    """Depth in beats of the FIFO behind a receiver: the edge's own or, where the stream goes on to DRAM, what comes in
    a round trip of its credits at ``cycles`` a frame; of a tensor that comes once a batch, for which engines rest or
    wait, what has to be under way so that all of it comes within one frame's time."""
    if sink.tensor.kind.per_batch:
        return max(fifo_beats, min(network_cycles, sink.beats, -(-sink.beats * network_cycles // cycles)))
    if not stored:
        return fifo_beats
    return min(fifo_beats, -(-sink.beats * 2 * network_cycles // cycles) + REGISTER_BEATS)


def sending_end(crossing: Crossing, form: LinkFormat) -> CompressedEnd | None:
    """What makes words of the elements of a stream that is coded."""
    bursts = crossing.bursts(form.word_bits)
    return CompressedEnd(bursts=bursts, lanes=crossing.source.lanes) if bursts else None


def receiving_end(crossing: Crossing, form: LinkFormat) -> DecompressedEnd | None:
    """What makes elements of the words of a stream that is coded."""
    bursts = crossing.bursts(form.word_bits)
    return DecompressedEnd(bursts=bursts, lanes=crossing.sink.lanes) if bursts else None


def sender(crossing: Crossing, form: LinkFormat, words: int) -> Egress:
    """The sending end of a stream to a receiver that the analysis asks for so many words."""
    carried, credits = _carried(crossing, form, crossing.source.lanes), held_words(crossing, form, words)
    return Egress(format=form, **carried, credits=credits, queued=crossing.queued)


def receiver(crossing: Crossing, form: LinkFormat, words: int) -> Ingress:
    """The receiving end of a stream, which the analysis asks for so many words."""
    carried, depth = _carried(crossing, form, crossing.sink.lanes), held_words(crossing, form, words)
    return Ingress(format=form, **carried, depth=depth, spare=depth - words, pooled=form.pooled)


def _carried(crossing: Crossing, form: LinkFormat, lanes: int) -> dict[str, int]:
    """What the ends of a link carry: elements, or of a stream that is coded words, no number of which is a tensor."""
    bursts = crossing.bursts(form.word_bits)
    if bursts is None:
        return {"element_bits": crossing.element_bits, "lanes": lanes, "elements": crossing.elements}
    return {"element_bits": bursts.burst_bits, "lanes": 1, "elements": 0}


def sending_units(crossing: Crossing, form: LinkFormat, words: int) -> tuple[Egress | CompressedEnd, ...]:
    """All of the sending end."""
    coded = sending_end(crossing, form)
    return (*((coded,) if coded else ()), sender(crossing, form, words))


def receiving_units(crossing: Crossing, form: LinkFormat, words: int) -> tuple[Ingress | DecompressedEnd, ...]:
    """All of the receiving end."""
    coded = receiving_end(crossing, form)
    return (receiver(crossing, form, words), *((coded,) if coded else ()))


@dataclass(frozen=True)
class PortCycles:
    """Through both network ports, in cycles of the network."""

    # from the sender's input to the receiver's output
    there: int
    # from a word that leaves the receiver's FIFO to the sender's input, which then takes another one; below 0 where a
    # word takes longer to the place where it waits for its credit
    back: int


def port_cycles(
    crossings: Sequence[Crossing],
    form: LinkFormat,
    beats: Mapping[str, int],
    periods: Mapping[str, Fraction] | None = None,
) -> dict[str, PortCycles]:
    """Edge -> cycles that a word of it, and its credits, take through both network ports, if nothing else is on its
    way: sender, tree of merges, chain of splits, receiver (`NetworkPort`), and from one clock to the other where the
    device has its own.

    Args:
        beats: depths of the FIFOs behind receivers.
        periods: device of another clock than the network's -> what a cycle there lasts in cycles of that."""
    leaving = Counter(crossing.source_device for crossing in crossings)
    # credits of what a device receives leave through its port as well, by merges of their own and the last one
    returning = Counter(crossing.target_device for crossing in crossings)
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    found: dict[str, PortCycles] = {}
    for crossing in crossings:
        source, target = crossing.source_device, crossing.target_device
        words = link_words(crossing, beats[crossing.edge], form.word_bits)
        receivers = receiving_units(crossing, form, words)
        units = sending_units(crossing, form, words), receivers
        sending, receiving = (sum(unit.latency_cycles for unit in each) for each in units)
        merged = merges_passed(sent[source], leaving[source]) + bool(returning[source])
        repaid = merges_passed(received[target], returning[target]) + bool(leaving[target])
        # those that streams leave before, and the own one: receivers' words, then senders' credits
        split, credit_split = received[target] // MOST_TAPS + 1, (returning[source] + sent[source]) // MOST_TAPS + 1
        if form.pooled:
            pool = pool_share(receivers[0])
            split = pool.latency_cycles(0)
            credit_split = sent[source] // MOST_TAPS + 1 + (pool.rest_cycles if returning[source] else 0)
        # a word waits for its credit at the sender's end
        known = credit_split + Egress.credit_cycles - sending
        found[crossing.edge] = PortCycles(
            _between(source, sending + merged, target, split + receiving, periods or {}),
            _between(target, Ingress.credit_cycles + repaid, source, known, periods or {}),
        )
        sent[source] += 1
        received[target] += 1
    return found


def _between(one: str, leaving: int, other: str, arriving: int, periods: Mapping[str, Fraction]) -> int:
    """Cycles of the network for so many of a device and then so many of another one, each by its clock."""
    leaves, arrives = Fraction(leaving), Fraction(arriving)
    if one in periods:
        leaves = leaves * periods[one] + CROSSING_CYCLES
    if other in periods:
        arrives = (arrives + CROSSING_CYCLES) * periods[other]
    return math.ceil(leaves + arrives)


def hops_of(
    crossings: Sequence[Crossing],
    form: LinkFormat,
    beats: Mapping[str, int],
    network_cycles: int,
    rates: Mapping[str, float] | None = None,
    periods: Mapping[str, Fraction] | None = None,
    routing: Routing | None = None,
    devices: Sequence[str] = (),
    wires: Sequence[Fraction] = (),
) -> dict[str, Hop]:
    """Edge -> its way over the network.

    Args:
        beats: depths of the FIFOs behind receivers.
        network_cycles: from port to port, over the switch or one cable.
        rates: device -> words a cycle that its port carries, if fewer than one.
        periods: as in `port_cycles`.
        routing: by which cables words go between ``devices``; None: all hang on one switch.
        wires: of that, words a cycle that each direction of a cable carries; none: one."""
    ports, found = port_cycles(crossings, form, beats, periods), {}
    for crossing in crossings:
        words = link_words(crossing, beats[crossing.edge], form.word_bits)
        ends = crossing.source_device, crossing.target_device
        there, back = (way_cycles(*way, network_cycles, routing, devices) for way in (ends, ends[::-1]))
        outputs = (way_outputs(*w, network_cycles, routing, tuple(devices), tuple(wires)) for w in (ends, ends[::-1]))
        way, returning = outputs
        found[crossing.edge] = Hop(
            source=crossing.source_device,
            target=crossing.target_device,
            cycles=there + ports[crossing.edge].there,
            back_cycles=max(0, back + ports[crossing.edge].back),
            word=crossing.elements_per_word(form.word_bits),
            credits=held_words(crossing, form, words),
            credit_batch=credit_batch(words),
            sender_words=SENDER_WORDS + crossing.queued,
            least_word_cycles=float(WORD_CYCLES) if form.pooled else 1.0,
            source_rate=(rates or {}).get(crossing.source_device, 1.0),
            target_rate=(rates or {}).get(crossing.target_device, 1.0),
            way=way,
            back=returning,
        )
    return found


def axi_stream_widths(form: LinkFormat) -> dict[str, int]:
    """Signals of the AXI4-Stream port beside TVALID and TREADY, and their widths."""
    return {
        "tdata": form.width("data"),
        "tlast": form.width("last"),
        "tid": form.width("stream"),
        "tdest": form.width("device"),
        "tuser": form.width("credit") + form.width("sequence"),
    }


def axi_stream_signals(form: LinkFormat, payload: str) -> dict[str, str]:
    """The port's signals as Verilog expressions of a word ``payload``."""
    field = {name: form.verilog_field(payload, name) for name in form.fields}
    return {
        "tdata": field["data"],
        "tlast": field["last"],
        "tid": field["stream"],
        "tdest": field["device"],
        "tuser": f"{{{field['credit']}, {field['sequence']}}}",
    }


def link_word(form: LinkFormat, port: str) -> str:
    """A word as a Verilog expression of the signals of the AXI4-Stream port ``port``."""
    sequence_bits = form.width("sequence")
    parts = {
        "data": f"{port}_tdata",
        "last": f"{port}_tlast",
        "stream": f"{port}_tid",
        "device": f"{port}_tdest",
        "credit": f"{port}_tuser[{sequence_bits}]",
        "sequence": f"{port}_tuser[{sequence_bits - 1}:0]",
    }
    return "{" + ", ".join(parts[name] for name in reversed(list(form.fields))) + "}"


def pool_of(receivers: Sequence[Ingress]) -> ReceivePool:
    """The memory of receivers of one port."""
    stages = tuple(stage_words(unit.lanes * unit.element_bits, unit.format.word_bits) for unit in receivers)
    return ReceivePool(format=receivers[0].format, regions=tuple(unit.depth for unit in receivers), stages=stages)


def pool_share(unit: Unit) -> ReceivePool:
    """A memory of `POOLED` receivers like this one."""
    assert isinstance(unit, Ingress)
    return pool_of([unit] * POOLED)


# what a stream has of a unit that several share
Share = tuple[Unit, Fraction]
WHOLE = Fraction(1)


def port_share(form: LinkFormat, *, framed: bool, sends: bool) -> tuple[Share, ...]:
    """What a stream has of a device's network port beside its end: its part of the split that words or credits are
    taken out by, and of a tree of merges, of words or of credits; of one that sends in frames the stage of words that
    wait to leave in a row."""
    split, merged = Split(format=form), word_merge(form, framed=framed) if sends else credit_merge(form, framed=framed)
    stage = ((BurstStage(format=form, words=BURST_WORDS), WHOLE),) if framed and sends else ()
    return (split, Fraction(1, split.taps)), (merged, Fraction(1, merged.sides - 1)), *stage


def port_rest(form: LinkFormat, *, framed: bool) -> tuple[Unit, ...]:
    """What merges take beyond the shares of their streams: that of words with credits, and of trees that aren't full
    two more, or in frames, where each peer has trees of few streams, none."""
    pair = word_merge(form, framed=framed, sides=2)
    return (pair,) if framed else (pair, pair, pair, Split(format=form))


def word_merge(form: LinkFormat, *, framed: bool, sides: int = MOST_MERGED) -> Merge:
    """A merge of words that leave."""
    return Merge(format=form, sides=sides, longest=BURST_WORDS if framed else 1)


def credit_merge(form: LinkFormat, *, framed: bool, sides: int = MOST_MERGED) -> Merge:
    """A merge of credits that leave."""
    return replace(word_merge(form, framed=framed, sides=sides), returned=True)


def unit_module(library: ModuleLibrary, kind: str, unit: Unit) -> StreamModule:
    """The module of a unit."""
    return library.block(kind, repr(unit), dict(unit.streams), unit.build)


@dataclass
class NetworkPort:
    """The network port of one device under construction."""

    assembly: Assembly
    library: ModuleLibrary
    form: LinkFormat
    # whether the device's clock is another than the network's
    own_clock: bool = False
    # None: all devices hang on one switch
    cables: DeviceCables | None = None
    # streams that want to leave, of words and of credits, and the place of the device that each goes to
    leaving: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    returning: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    # (net, number) of streams that arrive, and of those whose credits come back
    taking: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    repaid: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    # … whose words wait in one memory, each with its receiver
    pooled: list[tuple[Ingress, str, int]] = dataclasses.field(default_factory=list)
    # error flags of receivers
    errors: list[str] = dataclasses.field(default_factory=list)

    def stream(self, name: str) -> str:
        """A word stream."""
        return self.assembly.stream(name, self.form.payload_bits)

    def returned(self, name: str) -> str:
        """A stream of credits that leave."""
        return self.assembly.stream(name, self.form.returned_bits)

    def unit(
        self,
        kind: str,
        unit: Unit,
        name: str,
        streams: Mapping[str, str],
        ports: Mapping[str, str],
        role: str = NETWORK_ROLE,
    ) -> None:
        """An instance of a unit."""
        self.assembly.instance(unit_module(self.library, kind, unit), name, streams, ports, role=role)

    def constant(self, field: str, value: int) -> str:
        """A header field's value as Verilog."""
        return f"{self.form.width(field)}'d{value}"

    def place(self, device: int) -> str:
        """The place of a device in the cluster as Verilog."""
        return self.constant("device", device)

    def add_egress(self, crossing: Crossing, net: str, words: int) -> None:
        """The sending end of a stream whose elements are on ``net``, to a receiver that is asked for so many words."""
        coded, edge = sending_end(crossing, self.form), crossing.edge
        if coded is not None:
            bursts = self.assembly.stream(f"coded_{verilog_name(edge)}", coded.bursts.burst_bits)
            streams = {"x": net, "y": bursts}
            self.unit("compressed_end", coded, f"compress_{verilog_name(edge)}", streams, {}, compressor_role(edge))
            net = bursts
        self.send(edge, sender(crossing, self.form, words), crossing.number, crossing.target_index, net)

    def add_ingress(self, crossing: Crossing, net: str, words: int) -> None:
        """The receiving end of a stream, which is asked for so many words; its elements leave on ``net``."""
        coded, edge = receiving_end(crossing, self.form), crossing.edge
        if coded is not None:
            bursts = self.assembly.stream(f"coded_{verilog_name(edge)}", coded.bursts.burst_bits)
            name, role = f"decompress_{verilog_name(edge)}", f"decompressor of {edge}"
            self.unit("decompressed_end", coded, name, {"x": bursts, "y": net}, {}, role)
            net = bursts
        self.receive(edge, receiver(crossing, self.form, words), crossing.number, crossing.source_index, net)

    def send(self, edge: str, unit: Egress, number: int, device: int, net: str) -> None:
        """A sender of what is on ``net``, to the device at this place."""
        name = verilog_name(edge)
        words, returned = self.stream(f"tx_{name}"), self.stream(f"back_{name}")
        ports = {"number": self.constant("stream", number), "device": self.place(device)}
        streams = {"x": net, "credits": returned, "y": words}
        self.unit("link_egress", unit, f"egress_{name}", streams, ports, sender_role(edge))
        self.leaving.append((words, device))
        self.repaid.append((returned, number))

    def receive(self, edge: str, unit: Ingress, number: int, device: int, net: str) -> None:
        """A receiver of a stream from the device at this place, to ``net``."""
        name = verilog_name(edge)
        words, returned = self.stream(f"rx_{name}"), self.returned(f"credit_{name}")
        error = self.assembly.wire(f"error_{name}")
        self.errors.append(error)
        ports = {"number": self.constant("stream", number), "device": self.place(device), "error": error}
        streams = {"x": words, "y": net, "credits": returned}
        self.unit("link_ingress", unit, receiver_name(edge), streams, ports, receiver_role(edge))
        self.returning.append((returned, device))
        if unit.pooled:
            self.pooled.append((unit, words, number))
        else:
            self.taking.append((words, number))

    def finish(self) -> None:
        """The chains of splits and merges, the two ports, the error flag."""
        if self.own_clock:
            self.assembly.port("net_clk", 1, Direction.IN)
            self.assembly.port("net_rst", 1, Direction.IN)
        self.deal_out(self._crossed(self._arriving(), ARRIVED, HERE))
        words, credits = ([net for net, _ in nets] for nets in (self.leaving, self.returning))
        if words or credits:
            leaving = self._crossed(self.merged(words, credits), LEFT, THERE)
        else:
            leaving = self.stream(SILENT)
            self.assembly.silence(leaving, self.form.payload_bits)
        self._leave(leaving)
        self.assembly.port("net_error", 1, Direction.OUT)
        self.assembly.assigns.append(("net_error", " | ".join(self.errors)))

    def deal_out(self, arriving: str) -> None:
        """The chain of splits, from words that arrive to receivers and senders, and what finds that one is nobody's."""
        if self.pooled:
            arriving = self._from_pool(arriving)
        wanted = [(net, number, 0) for net, number in self.taking] + [(net, number, 1) for net, number in self.repaid]
        bits = self.form.width("stream")
        for position, at in enumerate(range(0, len(wanted), MOST_TAPS)):
            group, rest = wanted[at : at + MOST_TAPS], self.stream(f"rest{position}")
            split = Split(format=self.form, taps=len(group))
            numbers = sum(number << bits * tap for tap, (_, number, _) in enumerate(group))
            credits = sum(credit << tap for tap, (_, _, credit) in enumerate(group))
            ports = {"numbers": f"{bits * len(group)}'d{numbers}", "credits": f"{len(group)}'d{credits}"}
            mine = {name: net for name, (net, _, _) in zip(split.names, group, strict=True)}
            self.unit("link_split", split, f"split{position}", {"x": arriving, **mine, "rest": rest}, ports)
            arriving = rest
        stray = self.assembly.wire("error_stray")
        self.errors.append(stray)
        self.unit("link_drain", Drain(format=self.form), "drain", {"x": arriving}, {"error": stray})

    def _crossed(self, words: str, name: str, clocks: Mapping[str, str]) -> str:
        """The word stream at the other clock, where there is one."""
        if not self.own_clock:
            return words
        out = self.stream(name)
        unit = ClockCrossing(payload_bits=self.form.payload_bits)
        self.unit("clock_crossing", unit, f"crossing_{name}", {"x": words, "y": out}, clocks)
        return out

    def _arriving(self) -> str:
        """Words for this device, from its one receive port or from the cables."""
        if self.cables is None:
            return self._receive_port("net_rx", ARRIVING)
        return self.stream(ARRIVING)

    def _leave(self, words: str) -> None:
        """Words of this device go to its one transmit port, or to the cables."""
        if self.cables is None:
            self._transmit_port("net_tx", words)
            return
        streams = {"own": words, "mine": ARRIVING}
        for at, port in enumerate(self.cables.ports):
            streams[f"rx{at}"] = self._receive_port(port.receives, f"{CABLE_IN}{port.number}")
            streams[f"tx{at}"] = self.stream(f"{CABLE_OUT}{port.number}")
            self._transmit_port(port.sends, streams[f"tx{at}"])
        error = self.assembly.wire("error_forward")
        self.errors.append(error)
        clocks = {"clk": "net_clk", "rst": "net_rst"} if self.own_clock else {}
        self.unit("link_forward", self.cables.unit, "forward", streams, {**clocks, "error": error})

    def _receive_port(self, port: str, net: str) -> str:
        """An AXI4-Stream slave, as a word stream."""
        words = self.stream(net)
        self.assembly.writers[words] = NETWORK_ROLE
        self.assembly.port(f"{port}_tvalid", 1, Direction.IN)
        self.assembly.port(f"{port}_tready", 1, Direction.OUT)
        for signal, width in axi_stream_widths(self.form).items():
            self.assembly.port(f"{port}_{signal}", width, Direction.IN)
        self.assembly.assigns += [
            (f"{words}_valid", f"{port}_tvalid"),
            (f"{words}_payload", link_word(self.form, port)),
            (f"{port}_tready", f"{words}_ready"),
        ]
        return words

    def _transmit_port(self, port: str, words: str) -> None:
        """The AXI4-Stream master of a word stream."""
        self.assembly.readers[words] = NETWORK_ROLE
        self.assembly.port(f"{port}_tvalid", 1, Direction.OUT)
        self.assembly.port(f"{port}_tready", 1, Direction.IN)
        self.assembly.assigns += [(f"{port}_tvalid", f"{words}_valid"), (f"{words}_ready", f"{port}_tready")]
        signals = axi_stream_signals(self.form, f"{words}_payload")
        for signal, width in axi_stream_widths(self.form).items():
            self.assembly.assigns.append(
                (self.assembly.port(f"{port}_{signal}", width, Direction.OUT), signals[signal])
            )

    def _from_pool(self, arriving: str) -> str:
        """The memory of all receivers, from words that arrive to those that are nobody's there."""
        pool, bits = pool_of([unit for unit, _, _ in self.pooled]), self.form.width("stream")
        numbers = sum(number << bits * at for at, (_, _, number) in enumerate(self.pooled))
        rest, error = self.stream(UNPOOLED), self.assembly.wire("error_pool")
        self.errors.append(error)
        ports = {"numbers": f"{bits * len(self.pooled)}'d{numbers}", "error": error}
        out = {name: net for name, (_, net, _) in zip(pool.names, self.pooled, strict=True)}
        self.unit("receive_pool", pool, "pool", {"x": arriving, **out, "rest": rest}, ports)
        return rest

    @property
    def framed(self) -> bool:
        """Whether words leave in frames."""
        return False

    def merged(self, leaving: Sequence[str], returning: Sequence[str], label: str = "") -> str:
        """Streams of words and of credits in one of words, by balanced trees; there is one at least."""
        ends = []
        if leaving:
            ends.append(self._tree(word_merge(self.form, framed=self.framed), leaving, f"merge{label}"))
        if returning:
            credits = self._tree(credit_merge(self.form, framed=self.framed), returning, f"returned{label}")
            words = self.stream(f"repaid{label}")
            self.unit("credit_word", CreditWord(format=self.form), f"repay{label}", {"x": credits, "y": words}, {})
            ends.append(words)
        return self._tree(word_merge(self.form, framed=self.framed), ends, f"join{label}")

    def _tree(self, unit: Merge, nets: Sequence[str], label: str) -> str:
        """Streams in one, by merges like this one."""
        joined = list(nets)
        for number, sides in enumerate(merge_tree(len(nets))):
            merge = replace(unit, sides=len(sides))
            out = self.assembly.stream(f"{label}_{number}_y", merge.streams["y"])
            streams = {name: joined[side] for name, side in zip(merge.names, sides, strict=True)}
            self.unit("link_merge", merge, f"{label}_{number}", {**streams, "y": out}, {})
            joined.append(out)
        return joined[-1]
