"""Watchers of the streams inside all FPGAs, and what holds those streams up, in Verilog beside the delivered files.

Every stream between two parts of a top is held to the contract of `hdl.stream`: also that neither end follows the
other within a cycle, which shows whenever a stream is held up or let go.  FIFOs and forks must give what they
get, all of it, once and in order; FIFOs hold as many beats as the manifest says.  Width adapters and units in front of
DRAM must give the elements that they get, in order; weights that every frame reads, as often as they should.  Senders
never spend more credits than they have, nor wait for any that they have, and receivers give back all
(`dagtrain_bench_watch.v`).  Each watcher works at the clock of what it watches.

A stream is held up by a gate in its valid and ready, which neither end can tell from a neighbour that stalls; never
while a beat is offered and not taken, since valid may not fall then.  The gates stand in copies of the delivered tops,
which instantiate the delivered modules as the tops do; the modules themselves are compiled as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from dagtrain.cosim.clocks import clock_at, clock_of
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.device import ADAPTER_ROLE
from dagtrain.emission.links import NETWORK_ROLE, receiver_role, sender_role
from dagtrain.emission.manifest import CrossingRecord, MemoryRecord, RegionRecord, StreamRecord
from dagtrain.emission.memory import COLLECT_ROLE, DEAL_ROLE, fifo_regions, store_port, store_role
from dagtrain.emission.modules import verilog_name
from hdl.link.format import LinkFormat

# in a top: the beginning of an instance, and a pin of it
_INSTANCE = re.compile(r"^(\w+) (?:#\(|\w+ \()$")
_PIN = re.compile(r"^    \.(\w+)\(")
_OUTPUT = re.compile(r"^output (?:signed )?(?:\[\d+:\d+\] )?(\w+);", re.MULTILINE)

# the modules of the watchers
WATCHERS = Path(__file__).with_name("dagtrain_bench_watch.v")
# parts named to which traffic did not do what it should
SHOWN_PARTS = 10
# of the words of the bench's counters
COUNT_BITS = 32
# between two streams that are held, none is for so small a part of the time
FREE_PART = 4
# a stream whose next beat does not come in so many times the time is passed over
WAITED_PART = 20
# how far on the next one stands among all
GOLDEN = 0.618
# words of the memory port that stand in the queues and adapters of a unit in front of DRAM, at most
QUEUED_WORDS = 4096
# times that what nobody writes is read at most
FOREVER = 1 << 31


class Kind(Enum):
    """What is watched."""

    STREAM = "streams"
    FIFO = "FIFOs"
    BRANCH = "branches of forks"
    LINK = "links"
    ADAPTER = "width adapters"
    STORE = "DRAM units"

    @property
    def module(self) -> str:
        """That watches it."""
        elements = self in (Kind.ADAPTER, Kind.STORE)
        return f"dagtrain_bench_{'elements' if elements else self.name.lower()}"


# what traffic must have done to a part at least once, for a fault there to show
WANTED = {
    Kind.FIFO: "were full and empty",
    Kind.BRANCH: "were taken last",
    Kind.LINK: "were out of credits",
    Kind.ADAPTER: "kept both ends waiting",
    Kind.STORE: "kept both ends waiting",
}


@dataclass(frozen=True)
class Watched:
    """One watcher."""

    kind: Kind
    # where it stands, or where the sender does
    device: str
    # as messages call it
    part: str
    # the stream whose beats it counts
    net: str


@dataclass(frozen=True)
class Loaded:
    """A file of what a watcher starts with."""

    words: tuple[int, ...]
    # a word
    bits: int


@dataclass
class Watch:
    """The Verilog of all watchers, for the outermost module of the bench."""

    declarations: list[str] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    # streams that can be held up, by their Verilog names below the bench -> their clocks
    held: dict[str, str] = field(default_factory=dict)
    # of these, those whose way back to another stream must fill before they have been held for long enough
    fills: dict[str, str] = field(default_factory=dict)
    # by name
    files: dict[str, Loaded] = field(default_factory=dict)

    def add(self, watched: Watched, clk: str, parameters: Mapping[str, int | str], ports: Mapping[str, str]) -> None:
        """An instance of the watcher's module, at a clock."""
        number = len(self.watched)
        self.watched.append(watched)
        values = ", ".join(f".{name}({value})" for name, value in {"NUMBER": number, **parameters}.items())
        nets = {"clk": clk, "rst": "rst", "told": "told", **ports, "broken": f"broken[{number}]"}
        connections = ", ".join(f".{port}({net})" for port, net in nets.items())
        self.declarations.append(f"{watched.kind.module} #({values}) watcher{number} ({connections});")


def watch(
    devices: Sequence[DeliveredDevice], reads: Callable[[bool], tuple[int, int]], prefix: str = "dut.fpga_"
) -> Watch:
    """Watchers of all that the manifests tell of; the tops are instances ``<prefix><top>``.

    ``reads``: frames that read the first version of weights, and every later one, by whether these are loaded."""
    found = Watch()
    for device in devices:
        manifest = device.manifest
        paths = {stream.net: f"{prefix}{manifest.top}.{stream.net}" for stream in manifest.streams}
        for stream in manifest.streams:
            path, clk = paths[stream.net], clock_at(device, stream.net)
            ports = {**_stream(path), "payload": f"{path}_payload"}
            ports |= {f"own_{end}": f"{path}_{end}" for end in ("valid", "ready")}
            flip = {"flip": f"flip_{clk}", "flips": f"flips[{len(found.held)}]", "waits": f"waits[{len(found.held)}]"}
            part = f"{stream.net}, from {stream.writer} to {stream.reader}"
            watched = Watched(Kind.STREAM, manifest.device, part, stream.net)
            found.add(watched, clk, {"WIDTH": stream.payload_bits}, ports | flip)
            found.held[path] = clk
    for device in devices:
        own = f"{prefix}{device.manifest.top}."
        _watch_copies(found, device, own)
        _watch_adapters(found, device, own)
        _watch_stores(found, device, own, reads)
    for device in devices:
        for crossing in device.manifest.egress:
            target = next(other for other in devices if other.manifest.device == crossing.target)
            _watch_link(found, crossing, (device, target), prefix)
    return found


def _stream(path: str, name: str = "") -> dict[str, str]:
    """Ports of a watcher for the handshake of a stream."""
    return {f"{name}{end}": f"{path}_{end}_open" for end in ("valid", "ready")}


def _watch_copies(found: Watch, device: DeliveredDevice, prefix: str) -> None:
    manifest, clk = device.manifest, clock_of(device)
    readers = {stream.reader: stream for stream in manifest.streams}
    for copy in manifest.copies:
        x = readers[copy.part]
        ys = [stream for stream in manifest.streams if stream.writer == copy.part]
        into, bits = prefix + x.net, {"WIDTH": x.payload_bits}
        came = {**_stream(into, "x_"), "x_payload": f"{into}_payload"}
        for y in ys:
            path = prefix + y.net
            ports = {**came, **_stream(path, "y_"), "y_payload": f"{path}_payload", "report": "over"}
            if copy.depth:
                found.fills[path] = into
                watched = Watched(Kind.FIFO, manifest.device, copy.part, y.net)
                found.add(watched, clk, {**bits, "DEPTH": copy.depth}, {**ports, "y_held": f"{path}_hold"})
            else:
                others = [prefix + other.net for other in ys if other is not y]
                taken = " || ".join(f"{other}_valid_open && {other}_ready_open" for other in others) or "1'b0"
                part = f"{copy.part} towards {y.reader}"
                watched = Watched(Kind.BRANCH, manifest.device, part, y.net)
                found.add(watched, clk, bits, {**ports, "other": taken})


@dataclass(frozen=True)
class _Between:
    """A part that gives the elements that it gets, in beats of another width."""

    watched: Watched
    # streams in and out; none in: it gives what it starts with, for ever
    x: StreamRecord | None
    y: StreamRecord

    @property
    def bits(self) -> int:
        """Of the parts that the beats of both are made of."""
        return math.gcd(*(stream.payload_bits for stream in (self.x, self.y) if stream is not None))

    def watch(self, found: Watch, device: DeliveredDevice, prefix: str, held: int, more: Mapping[str, Any]) -> None:
        """A watcher of it, which holds so many bits at most; ``more``: parameters."""
        x_parts = 1 if self.x is None else self.x.payload_bits // self.bits
        y_parts = self.y.payload_bits // self.bits
        sizes = {"PART": self.bits, "X_PARTS": x_parts, "Y_PARTS": y_parts}
        # the next power of two
        room = 1 << (held // self.bits - 1).bit_length()
        y = prefix + self.y.net
        ports = {**_stream(y, "y_"), "y_payload": f"{y}_payload", "y_held": f"{y}_hold", "report": "over"}
        if self.x is None:
            # it is full from the start
            ports |= {"x_valid": "1'b1", "x_ready": "1'b0", "x_payload": f"{self.bits}'b0"}
        else:
            x = prefix + self.x.net
            ports |= {**_stream(x, "x_"), "x_payload": f"{x}_payload"}
            # what comes back in the end can't fill it
            if "LOADED" not in more:
                found.fills[y] = x
        parameters = {**sizes, "ROOM": room, "TENSOR": y_parts, **more}
        found.add(self.watched, clock_of(device), parameters, ports)


def _watch_adapters(found: Watch, device: DeliveredDevice, prefix: str) -> None:
    """Width adapters between layers."""
    manifest = device.manifest
    writers = {stream.writer: stream for stream in manifest.streams}
    for x in manifest.streams:
        if x.reader.startswith(ADAPTER_ROLE) and x.reader not in manifest.nodes:
            y = writers[x.reader]
            adapter = _Between(Watched(Kind.ADAPTER, manifest.device, x.reader, y.net), x, y)
            adapter.watch(found, device, prefix, 2 * (x.payload_bits + y.payload_bits), {})


def _watch_stores(found: Watch, device: DeliveredDevice, prefix: str, reads: Callable[[bool], tuple[int, int]]) -> None:
    """Units in front of DRAM, and streams that are dealt out to several."""
    manifest = device.manifest
    # region -> bits
    held: dict[str, int] = {}
    for memory in manifest.memory or ():
        image = dict(device.memory_words(memory))
        for region in memory.regions:
            role, axi = store_role(region.name), f"{store_port(region.name)}_"
            xs, (y, *others) = (
                [one for one in manifest.streams if getattr(one, end) == role and not one.net.startswith(axi)]
                for end in ("reader", "writer")
            )
            if others:
                # a link of the chain of state, whose words are compared
                continue
            store = _Between(Watched(Kind.STORE, manifest.device, role, y.net), xs[0] if xs else None, y)
            more = {"PATIENCE": 0, **_contents(found, manifest.top, store, memory, region, image, reads)}
            held[region.name] = (region.words + QUEUED_WORDS) * memory.format.data_bits
            store.watch(found, device, prefix, held[region.name], more)
    for x in manifest.streams:
        if x.reader.startswith(DEAL_ROLE) and x.reader not in manifest.nodes:
            edge = x.reader.removeprefix(DEAL_ROLE)
            parts = sum(stream.writer == x.reader for stream in manifest.streams)
            (y,) = (stream for stream in manifest.streams if stream.writer == f"{COLLECT_ROLE}{edge}")
            whole = _Between(Watched(Kind.STORE, manifest.device, store_role(edge), y.net), x, y)
            room = sum(held[region] for region in fifo_regions(edge, parts))
            whole.watch(found, device, prefix, room, {"PATIENCE": 0})


def _contents(
    found: Watch,
    top: str,
    store: _Between,
    memory: MemoryRecord,
    region: RegionRecord,
    image: Mapping[int, Sequence[int]],
    reads: Callable[[bool], tuple[int, int]],
) -> dict[str, int | str]:
    """Parameters of a watcher for what stands in a region at the start; ``image``: first word -> words."""
    held = region.contents
    if held is None:
        return {}
    bits, parts = store.bits, store.y.payload_bits // store.bits
    loaded: dict[str, int | str] = {"LOADED": 0}
    if not held.loaded:
        beats = held.beats(image[region.base], memory.format)
        words = tuple(beat >> (bits * part) & ((1 << bits) - 1) for beat in beats for part in range(parts))
        name = f"{top}.{verilog_name(region.name)}.watched.mem"
        found.files[name] = Loaded(words, bits)
        loaded = {"LOADED": len(words), "FILE": f'"{name}"'}
    if held.is_state and store.x is not None:
        return loaded
    # weights, which every frame reads
    first, later = (FOREVER, FOREVER) if store.x is None else reads(held.loaded)
    return {**loaded, "TENSOR": held.elements * held.element_bits // bits, "FIRST": first, "LATER": later}


def _watch_link(
    found: Watch, crossing: CrossingRecord, ends: tuple[DeliveredDevice, DeliveredDevice], prefix: str
) -> None:
    source, target = (device.manifest for device in ends)
    clk, far_clk = map(clock_of, ends)
    sender, receiver = sender_role(crossing.edge), receiver_role(crossing.edge)
    x, back = _apart([stream for stream in source.streams if stream.reader == sender], "writer")
    (sent,) = (stream for stream in source.streams if stream.writer == sender)
    (got,) = (stream for stream in target.streams if stream.reader == receiver)
    y, freed = _apart([stream for stream in target.streams if stream.writer == receiver], "reader")
    ports: dict[str, str] = {}
    for name, manifest, stream in (
        ("x", source, x), ("sent", source, sent), ("back", source, back),
        ("got", target, got), ("y", target, y), ("freed", target, freed),
    ):  # fmt: skip
        path = f"{prefix}{manifest.top}.{stream.net}"
        ports |= _stream(path, f"{name}_")
        if name in ("sent", "y", "freed"):
            ports[f"{name}_held"] = f"{path}_hold"
    del ports["y_ready"]
    ports["far_clk"] = far_clk
    found.fills[f"{prefix}{target.top}.{y.net}"] = f"{prefix}{source.top}.{x.net}"
    assert source.network
    ports["back_words"] = _data(source.network.format, f"{prefix}{source.top}.{back.net}_payload")
    sizes = {"CREDITS": crossing.words, "RETURNED": crossing.credit_batch}
    part = f"link of {crossing.edge} to {crossing.target}"
    found.add(Watched(Kind.LINK, source.device, part, sent.net), clk, sizes, {**ports, "report": "over"})


def _apart(streams: Sequence[StreamRecord], end: str) -> tuple[StreamRecord, StreamRecord]:
    """A stream of elements, and one of credits, whose other end is the network port."""
    (elements,) = (stream for stream in streams if getattr(stream, end) != NETWORK_ROLE)
    (credits,) = (stream for stream in streams if getattr(stream, end) == NETWORK_ROLE)
    return elements, credits


def _data(form: LinkFormat, payload: str) -> str:
    """The data of a word as a number."""
    low, _ = form.fields["data"]
    return f"{payload}[{low + min(form.word_bits, COUNT_BITS) - 1}:{low}]"


def watch_text(found: Watch, hold_cycles: int, seed: int) -> str:
    """Verilog statements of the outermost module: watchers, and what holds one stream after the other, for so long from
    when it has a beat, or what lies before it is full.

    They use the clocks, ``rst``, ``settling`` (nothing is held any more) and ``over`` (rises at the end), write to the
    file ``told``, and set ``broken``.  Streams are shut and opened while their clock is low, when nothing else at it
    moves, so that their watchers see what follows within the cycle."""
    count = len(found.held)
    stride = next(step for step in range(int(count * GOLDEN) or 1, 2 * count) if math.gcd(step, count) == 1)
    free = -(-hold_cycles // FREE_PART)
    return "\n".join(
        [
            f"reg [31:0] turn = {seed % count}, waited = 0, stretch = 0, free = {free};",
            f"wire [{count - 1}:0] wanted, waits, offered, flips;",
            f"assign wanted = free == 0 && !rst && !settling ? {count}'d1 << turn : {count}'d0;",
            *(_offered(found, index, net) for index, net in enumerate(found.held)),
            f"assign flips = (wanted & ~waits) ^ {{{', '.join(f'{net}_hold' for net in reversed(found.held))}}};",
            *(_flip(found, clk) for clk in dict.fromkeys(found.held.values())),
            *found.declarations,
            "wire any_broken = |broken;",
            "always @(posedge any_broken) $fflush(told);",
            "always @(posedge clk) begin",
            "    if (free != 0) begin",
            "        free <= free - 1;",
            f"        if (free == 1) begin turn <= (turn + {stride}) % {count}; waited <= 0; stretch <= 0; end",
            "    end else begin",
            "        waited <= waited + 1;",
            "        if (offered[turn]) stretch <= stretch + 1;",
            f"        if (stretch == {hold_cycles} || waited == {hold_cycles * WAITED_PART}) free <= {free};",
            "    end",
            "end",
            "",
        ]
    )


def _flip(found: Watch, clk: str) -> str:
    """Streams at a clock are shut or opened while it is low."""
    own = [(index, net) for index, (net, at) in enumerate(found.held.items()) if at == clk]
    turned = " || ".join(f"flips[{index}]" for index, _ in own)
    held = [f"    {net}_hold <= wanted[{index}] && !waits[{index}];" for index, net in own]
    wire = f"wire flip_{clk} = ({turned}) && !{clk};"
    return "\n".join([wire, f"always @(posedge flip_{clk}) begin", *held, "end"])


def _offered(found: Watch, index: int, net: str) -> str:
    """When a stream that is held up keeps others waiting."""
    before = found.fills.get(net)
    full = f"{before}_valid && !{before}_ready" if before else f"{net}_valid"
    return f"assign offered[{index}] = {full} && {net}_hold;"


def cut(top: str, streams: Sequence[str], outputs: Mapping[str, Set[str]]) -> str:
    """The Verilog of a device's top with a gate in every stream.

    What reads valid or ready of a stream ``net`` reads ``<net>_valid_open`` and ``<net>_ready_open`` instead, which are
    low while the register ``<net>_hold`` is high.  ``outputs`` are the output ports of the modules that the top
    instantiates."""
    read = re.compile(rf"\b({'|'.join(streams)})_(valid|ready)\b")
    lines, module = [], ""
    for line in top.splitlines():
        begun, pin = _INSTANCE.match(line), _PIN.match(line)
        if begun:
            module = begun[1]
        if pin and pin[1] not in outputs.get(module, frozenset()):
            line = read.sub(r"\1_\2_open", line)
        elif line.startswith("assign "):
            target, value = line.split("=", 1)
            line = "=".join([target, read.sub(r"\1_\2_open", value)])
        lines.append(line)
    gates = [
        f"reg {net}_hold = 0;\nwire {net}_valid_open = {net}_valid && !{net}_hold;\n"
        f"wire {net}_ready_open = {net}_ready && !{net}_hold;"
        for net in streams
    ]
    at = lines.index(");") + 1
    declared = max(index for index, line in enumerate(lines) if line.startswith("wire ")) + 1
    return "\n".join([*lines[: max(at, declared)], *gates, *lines[max(at, declared) :], ""])


def outputs_of(text: str) -> frozenset[str]:
    """The output ports of a module that is not a top."""
    return frozenset(_OUTPUT.findall(text))


def traffic_line(watched: Sequence[Watched], seen: Set[int]) -> str:
    """What traffic did to the watched parts, in one line; "" if none was watched."""
    told, missed = [], []
    for kind, wanted in WANTED.items():
        numbers = [number for number, one in enumerate(watched) if one.kind is kind]
        done = [number for number in numbers if number in seen]
        missed += [f"{watched[n].part} ({watched[n].device})" for n in numbers if n not in seen]
        if numbers:
            told.append(f"{len(done)} of {len(numbers)} {kind.value} {wanted}")
    more = f", and {len(missed) - SHOWN_PARTS} more" if len(missed) > SHOWN_PARTS else ""
    names = f"; not {', '.join(missed[:SHOWN_PARTS])}{more}" if missed else ""
    return f"held up inside: {', '.join(told)}{names}" if told else ""
