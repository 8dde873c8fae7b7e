"""The numbers of docs/network.md: the frame, what is left of a cable's rate for words, and what keyed checks cost.

python benchmarks/network.py --frame          # fields of a frame and of a descriptor
python benchmarks/network.py --efficiency     # words' part of the cable, by formula, held against built frames
python benchmarks/network.py --keyed          # cells of candidates for the keyed check (Yosys)
python benchmarks/network.py --loss           # what go-back-N leaves of the rate where frames are lost
python benchmarks/network.py --host           # what the host's port gets through in Python, by CPU seconds
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import google_crc32c

from dagtrain.host.port import HostPort, HostStream
from hdl.convert.verilog import VerilogModule, convert
from hdl.costs.synthesis import synthesise
from hdl.link.ethernet.frame import (
    BURST_WORDS,
    CABLE_BYTES,
    DESCRIPTOR,
    HEADER,
    HOST,
    Address,
    Burst,
    Field,
    Frame,
    FrameFormat,
    FrameType,
)
from hdl.link.ethernet.protocol import Peer, Rules
from hdl.link.ethernet.tag import KeyedTag
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.simulate.models.ethernet import Faults, Purpose, chance
from hdl.stream import Stream

# (cable, Gbit/s, bits of a beat) and MTUs of the table
CABLES = (("100G", 512), ("40G", 256), ("25G", 128), ("10G", 64))
MTUS = (576, 1500, 4160, 9000)

# a product over GF(2⁶⁴) whose second factor is known only at run time
PRODUCT = """
module field_product(input clk, input [63:0] x, input [63:0] h, output reg [63:0] y);
reg [126:0] p, q;
integer i;
always @* begin
    p = 0;
    for (i = 0; i < 64; i = i + 1) p = p ^ (x[i] ? ({63'b0, h} << i) : 127'b0);
end
always @(posedge clk) begin
    q <= p;
    y <= q[63:0] ^ q[126:64] ^ {q[125:64], 1'b0} ^ {q[123:64], 3'b0} ^ {q[122:64], 4'b0};
end
endmodule
"""


def frame_table() -> str:
    """Fields of the header and of a descriptor, as Markdown."""
    return "\n\n".join(_fields(table) for table in (HEADER, DESCRIPTOR))


def _fields(table: Mapping[str, Field]) -> str:
    lines = ["| field | byte | bits | value | |", "| --- | --- | --- | --- | --- |"]
    for field in table.values():
        value = "" if field.constant is None else f"{field.constant:#x}"
        note = field.meaning
        if field.constant is not None and not field.required:
            note += f"{'; ' if note else ''}receivers don't look at it"
        place = f"{field.offset // 8}" + (f", bit {field.offset % 8}" if field.offset % 8 or field.bits % 8 else "")
        lines.append(f"| `{field.label}` | {place} | {field.bits} | {value} | {note} |")
    return "\n".join(lines)


def measured(form: FrameFormat) -> Fraction:
    """Words' part of the cable's bytes in a full frame that the codec builds."""
    bursts = [Burst(stream=k % 4, words=(k,) * BURST_WORDS) for k in range(form.payload_beats)]
    part = form.fill(bursts)[0]
    here = Address(number=0, mac=0x020000000000, ip=0x0A000001)
    frame = Frame(
        kind=FrameType.DATA,
        source=0,
        target=0,
        epoch=0,
        sequence=0,
        acknowledge=0,
        digest=0,
        payload=form.payload_of(part),
    )
    words = sum(len(burst.words) for burst in part)
    return Fraction(words * form.word_bytes, len(form.build(frame, here, here)) + CABLE_BYTES)


def efficiency_table() -> str:
    """Efficiency by cable and MTU, without and with key, as Markdown; each number is that of the bytes of a frame.

    Raises `SystemExit` where formula and bytes differ."""
    lines = ["| cable, bits a beat | key | " + " | ".join(f"MTU {mtu}" for mtu in MTUS) + " |"]
    lines.append("| --- | --- |" + " --- |" * len(MTUS))
    for cable, word_bits in CABLES:
        for key in (None, 1):
            cells = []
            for mtu in MTUS:
                form = FrameFormat(word_bits=word_bits, mtu=mtu, key=key)
                if (found := measured(form)) != form.efficiency():
                    raise SystemExit(f"{word_bits} bits, MTU {mtu}: {form.efficiency()} by formula, {found} in bytes")
                cells.append(f"{float(found):.3f}")
            lines.append(f"| {cable}, {word_bits} | {'no' if key is None else 'yes'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def keyed_table() -> str:
    """ALMs of a direction at 512 bits for each candidate, as Markdown."""
    unit = KeyedTag()
    with unsimulated():
        built = convert(unit.build(ClockReset(), {name: Stream(bits) for name, bits in unit.streams.items()}), "tag")
    core = synthesise(built).alm
    product = synthesise(VerilogModule("field_product", PRODUCT, (), {})).alm
    rows = [
        ("SipHash-2-4 over header and CRC", f"{core}", "1 core, 24 halves of a round a frame"),
        (
            "the same over all words",
            f"{33 * core}",
            "32 lanes, each a word in four clocks, and one core for what they leave",
        ),
        ("polynomial over GF(2⁶⁴) of all words", f"{8 * product + core}", "8 products, and a core that hides the sum"),
    ]
    return "\n".join(
        [
            "| function | ALMs a direction, 512 bits | |",
            "| --- | --- | --- |",
            *(f"| {a} | {b} | {c} |" for a, b, c in rows),
        ]
    )


def host_table(tensors: int = 400) -> str:
    """Gbit/s of words that the host's port packs and unpacks a CPU second, as Markdown; without sockets."""
    lines = ["| bits a beat | MTU | sends, Gbit/s | receives, Gbit/s |", "| --- | --- | --- | --- |"]
    for word_bits, mtu in ((512, 9000), (512, 1500), (64, 9000)):
        form = FrameFormat(word_bits=word_bits, mtu=mtu)
        words = form.full_words()
        ends = {"words": words, "device": 0, "room": words * tensors}
        out, into = HostStream(number=0, **ends), HostStream(number=1, **ends)
        rules = Rules(
            window=64, replay_beats=1 << 20, word_bytes=word_bits // 8, timer_cycles=1 << 40, ack_cycles=1 << 40
        )
        port = HostPort(form, rules, digest=0, epoch=0, devices=[0], outgoing=[out], incoming=[into])
        answer = {"source": 0, "target": HOST, "epoch": 0, "digest": 0}
        full = [(1 << word_bits) - 1 - k for k in range(words)]
        bursts = [
            Burst(stream=1, words=tuple(full[k : k + BURST_WORDS]), sequence=k % 256, last=k + BURST_WORDS >= words)
            for k in range(0, words, BURST_WORDS)
        ]
        started = time.process_time()
        for number in range(tensors):
            port.give(0, full)
            port.speak(number)
            sent = port.peers[0].sender.sent
            ack = Frame(kind=FrameType.ACK, sequence=number, acknowledge=sent, **answer)
            port.hear(form.datagram(ack), 0, number)
        middle = time.process_time()
        payload, datagrams = b"", []
        for number in range(tensors):
            shifted = [replace(burst, sequence=(burst.sequence + number * words) % 256) for burst in bursts]
            payload = form.payload_of(shifted)
            frame = Frame(kind=FrameType.DATA, sequence=number, acknowledge=0, payload=payload, **answer)
            datagrams.append(replace(form, sum=google_crc32c.value).datagram(frame))
        begun = time.process_time()
        for number, datagram in enumerate(datagrams):
            port.hear(datagram, 0, number)
            port.take(1)
        ended = time.process_time()
        bits = tensors * words * word_bits / 1e9
        lines.append(f"| {word_bits} | {mtu} | {bits / (middle - started):.2f} | {bits / (ended - begun):.2f} |")
    return "\n".join(lines)


# round trip in times of a frame, and frames a run
ROUND_TRIP, RUN = 32, 20_000
LOSSES = (0.0, 1e-4, 1e-3, 1e-2)


def delivered(loss: float, seed: int = 1) -> int:
    """Frames that arrive in `RUN` times of a frame where a peer always has one to send and this part of all is lost."""
    rules = Rules(
        window=2 * ROUND_TRIP, replay_beats=2 * ROUND_TRIP, word_bytes=1, timer_cycles=4 * ROUND_TRIP, ack_cycles=4
    )
    a, b = (Peer(number=k, other=1 - k, epoch=0, digest=0, greeted=True) for k in range(2))
    way = ROUND_TRIP // 2
    there: deque[Frame | None] = deque([None] * way)
    back: deque[Frame | None] = deque([None] * way)
    faults, taken = Faults(loss=loss), 0
    for now in range(RUN):
        while a.accepts(b"x", rules):
            a = a.offered(b"x", rules)
        a, sent = a.speak(now, rules)
        b, answer = b.speak(now, rules)
        for port, frame, cable in ((0, sent, there), (1, answer, back)):
            cable.append(None if faults.hits(loss, chance(seed, port, now, Purpose.LOSS)) else frame)
        if (frame := there.popleft()) is not None:
            b, heard = b.hear(frame, now, rules)
            taken += heard.payload is not None
        if (frame := back.popleft()) is not None:
            a, _ = a.hear(frame, now, rules)
    return taken


def loss_table() -> str:
    """Part of the rate that is left where frames are lost, both ways, beside 1 / (1 + p · W), as Markdown."""
    lines = ["| lost | left | 1 / (1 + p · W) |", "| --- | --- | --- |"]
    for loss in LOSSES:
        lines.append(f"| {loss:g} | {delivered(loss) / RUN:.3f} | {1 / (1 + loss * ROUND_TRIP):.3f} |")
    return "\n".join(lines)


TABLES = {"frame": frame_table, "efficiency": efficiency_table, "keyed": keyed_table, "loss": loss_table}


def main() -> None:
    """Prints the tables asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, table in {**TABLES, "host": host_table}.items():
        parser.add_argument(f"--{name}", action="store_true", help=(table.__doc__ or "").split("\n")[0])
    options = vars(parser.parse_args())
    wanted = [name for name in TABLES if options[name]] or list(TABLES)
    tables = [TABLES[name]() for name in wanted if not options["host"] or options[name]]
    print("\n\n".join([*tables, host_table()] if options["host"] else tables))


if __name__ == "__main__":
    main()
