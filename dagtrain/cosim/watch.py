"""Watchers of the streams inside all FPGAs, and what holds those streams up, in Verilog beside the delivered files.

Every stream between two parts of a top is held to the contract of `hdl.stream`: also that neither end follows the
other within a cycle, which shows whenever a stream is held up or let go.  FIFOs and forks must give what they
get, all of it, once and in order; FIFOs hold as many beats as the manifest says; senders never spend more credits than
they have, nor wait for any that they have, and receivers give back all (`dagtrain_bench_watch.v`).

A stream is held up by a gate in its valid and ready, which neither end can tell from a neighbour that stalls; never
while a beat is offered and not taken, since valid may not fall then.  The gates stand in copies of the delivered tops,
which instantiate the delivered modules as the tops do; the modules themselves are compiled as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.links import NETWORK_ROLE, receiver_role, sender_role
from dagtrain.emission.manifest import CrossingRecord, Manifest, StreamRecord
from hdl.link.format import LinkFormat, credit_batch

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


class Kind(Enum):
    """What is watched."""

    STREAM = "streams"
    FIFO = "FIFOs"
    BRANCH = "branches of forks"
    LINK = "links"


# what traffic must have done to a part at least once, for a fault there to show
WANTED = {Kind.FIFO: "full and empty", Kind.BRANCH: "taken last", Kind.LINK: "out of credits"}


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


@dataclass
class Watch:
    """The Verilog of all watchers, for the outermost module of the bench."""

    declarations: list[str] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    # streams that can be held up, by their Verilog names below the bench
    held: list[str] = field(default_factory=list)
    # of these, those whose way back to another stream must fill before they have been held for long enough
    fills: dict[str, str] = field(default_factory=dict)

    def add(self, watched: Watched, parameters: dict[str, int], ports: dict[str, str]) -> None:
        """An instance of the watcher's module."""
        number = len(self.watched)
        self.watched.append(watched)
        values = ", ".join(f".{name}({value})" for name, value in {"NUMBER": number, **parameters}.items())
        module = f"dagtrain_bench_{watched.kind.name.lower()}"
        nets = {"clk": "clk", "rst": "rst", **ports, "broken": f"broken[{number}]"}
        connections = ", ".join(f".{port}({net})" for port, net in nets.items())
        self.declarations.append(f"{module} #({values}) watcher{number} ({connections});")


def watch(devices: Sequence[DeliveredDevice], prefix: str = "dut.fpga_") -> Watch:
    """Watchers of all that the manifests tell of; the tops are instances ``<prefix><top>``."""
    found = Watch()
    for device in devices:
        manifest = device.manifest
        paths = {stream.net: f"{prefix}{manifest.top}.{stream.net}" for stream in manifest.streams}
        for stream in manifest.streams:
            path = paths[stream.net]
            ports = {**_stream(path), "payload": f"{path}_payload"}
            ports |= {f"own_{end}": f"{path}_{end}" for end in ("valid", "ready")}
            ports |= {"flip": "flip", "flips": f"flips[{len(found.held)}]", "waits": f"waits[{len(found.held)}]"}
            part = f"{stream.net}, from {stream.writer} to {stream.reader}"
            watched = Watched(Kind.STREAM, manifest.device, part, stream.net)
            found.add(watched, {"WIDTH": stream.payload_bits}, ports)
            found.held.append(path)
    manifests = [device.manifest for device in devices]
    for manifest in manifests:
        _watch_copies(found, manifest, f"{prefix}{manifest.top}.")
    for manifest in manifests:
        for crossing in manifest.egress:
            target = next(other for other in manifests if other.device == crossing.target)
            _watch_link(found, crossing, (manifest, target), prefix)
    return found


def _stream(path: str, name: str = "") -> dict[str, str]:
    """Ports of a watcher for the handshake of a stream."""
    return {f"{name}{end}": f"{path}_{end}_open" for end in ("valid", "ready")}


def _watch_copies(found: Watch, manifest: Manifest, prefix: str) -> None:
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
                found.add(watched, {**bits, "DEPTH": copy.depth}, {**ports, "y_held": f"{path}_hold"})
            else:
                others = [prefix + other.net for other in ys if other is not y]
                taken = " || ".join(f"{other}_valid_open && {other}_ready_open" for other in others) or "1'b0"
                part = f"{copy.part} towards {y.reader}"
                found.add(Watched(Kind.BRANCH, manifest.device, part, y.net), bits, {**ports, "other": taken})


def _watch_link(found: Watch, crossing: CrossingRecord, ends: tuple[Manifest, Manifest], prefix: str) -> None:
    source, target = ends
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
    found.fills[f"{prefix}{target.top}.{y.net}"] = f"{prefix}{source.top}.{x.net}"
    assert source.network
    ports["back_words"] = _data(source.network.format, f"{prefix}{source.top}.{back.net}_payload")
    sizes = {"CREDITS": crossing.words, "RETURNED": credit_batch(crossing.words)}
    part = f"link of {crossing.edge} to {crossing.target}"
    found.add(Watched(Kind.LINK, source.device, part, sent.net), sizes, {**ports, "report": "over"})


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

    They use ``clk``, ``rst``, ``settling`` (nothing is held any more) and ``over`` (for one cycle), and set
    ``broken``.  Streams are shut and opened while the clock is low, when nothing else moves, so that their watchers see
    what follows within the cycle."""
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
            "wire flip = |flips && !clk;",
            *found.declarations,
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
            "always @(posedge flip) begin",
            *(f"    {net}_hold <= wanted[{index}] && !waits[{index}];" for index, net in enumerate(found.held)),
            "end",
            "",
        ]
    )


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
            told.append(f"{len(done)} of {len(numbers)} {kind.value} were {wanted}")
    more = f", and {len(missed) - SHOWN_PARTS} more" if len(missed) > SHOWN_PARTS else ""
    names = f"; not {', '.join(missed[:SHOWN_PARTS])}{more}" if missed else ""
    return f"held up inside: {', '.join(told)}{names}" if told else ""
