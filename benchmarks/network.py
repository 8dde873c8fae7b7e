"""The numbers of docs/network.md: the frame, what is left of a cable's rate for words, and what keyed checks cost.

python benchmarks/network.py --frame          # fields of a frame and of a descriptor
python benchmarks/network.py --efficiency     # words' part of the cable, by formula, held against built frames
python benchmarks/network.py --keyed          # cells of candidates for the keyed check (Yosys)
python benchmarks/network.py --loss           # what go-back-N leaves of the rate where frames are lost
python benchmarks/network.py --plans          # a placement with words and with frames: rates, ports (a minute)
python benchmarks/network.py --host           # what the host's endpoint gets through in Python, over a loop-back socket
python benchmarks/network.py --faults build   # a cluster that was emitted there trains in Verilator while the network
                                              # loses, doubles, reorders and damages frames (--seeds, --batches)
python benchmarks/network.py --campaign build # the same and a port down, a device reset, by seed; kept as they end
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.network_campaign import campaign, campaign_table
from benchmarks.network_faults import faults_table
from benchmarks.network_plans import plans_table
from dagtrain.host.endpoint import ACK_US, Endpoint, Pair
from dagtrain.host.streams import Incoming, Layout, Outgoing
from hdl.convert.verilog import VerilogModule, convert
from hdl.costs.synthesis import synthesise
from hdl.errors import DagtrainError
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


# tensors that an end keeps ready to be sent
AHEAD = 64


def host_table(seconds: float = 2.0) -> str:
    """What the host's endpoint sends to a program that sends it back, over a loop-back socket, as Markdown."""
    lines = [
        "| bits a beat | MTU | frames/s each way | sent again | Gbit/s each way | by CPU second | CPU µs a frame |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for word_bits, mtu in ((512, 9000), (512, 1500), (64, 9000)):
        ours, theirs = multiprocessing.Pipe()
        other = multiprocessing.get_context("spawn").Process(target=_echo, args=(theirs, word_bits, mtu))
        other.start()
        frames, again, tensors, cpu, wall = asyncio.run(_send(ours, word_bits, mtu, seconds))
        other.join()
        bits = tensors * FrameFormat(word_bits=word_bits, mtu=mtu).full_words() * word_bits
        row = (
            f"{frames / wall:,.0f}",
            f"{again / frames:.1%}",
            f"{bits / wall / 1e9:.2f}",
            f"{bits / cpu / 1e9:.2f}",
            f"{cpu / frames * 1e6:.0f}",
        )
        lines.append(f"| {word_bits} | {mtu} | {' | '.join(row)} |")
    return "\n".join(lines)


def _end(number: int, word_bits: int, mtu: int) -> Endpoint:
    """An end of a pair with a stream each way, of which a tensor fills a frame."""
    form = FrameFormat(word_bits=word_bits, mtu=mtu)
    words, other, window = form.full_words(), 0 if number == HOST else HOST, 64
    layout = Layout(word_bits=word_bits, element_bits=word_bits, elements=words)
    out, into = (0, 1) if number == HOST else (1, 0)
    rules = Rules(
        window=window,
        replay_beats=window * form.payload_beats,
        word_bytes=form.word_bytes,
        timer_cycles=1,
        ack_cycles=ACK_US,
    )

    def pairs(epoch: int) -> list[Pair]:
        return [
            Pair(
                name="echo",
                place=("127.0.0.1", 0),
                peer=Peer(number=number, other=other, epoch=epoch, digest=0),
                rules=rules,
                outgoing={out: Outgoing(out, layout, window * words)},
                incoming={into: Incoming(into, layout, window * words)},
            )
        ]

    return Endpoint(number, form, 0, pairs)


def _meet(end: Endpoint, connection: Connection) -> tuple[Pair, Outgoing, Incoming]:
    """Open an end and tell the other where it is."""
    connection.send(end.open(("127.0.0.1", 0)))
    (pair,) = end.pairs.values()
    pair.place = connection.recv()
    (outgoing,), (incoming,) = pair.outgoing.values(), pair.incoming.values()
    return pair, outgoing, incoming


async def _send(connection: Connection, word_bits: int, mtu: int, seconds: float) -> tuple[int, int, int, float, float]:
    """(frames, those sent again, tensors that came back, CPU seconds, seconds) of the host."""
    end = _end(HOST, word_bits, mtu)
    pair, outgoing, incoming = _meet(end, connection)
    tensor = bytes(outgoing.layout.words * word_bits // 8)
    started, cpu, back = time.monotonic(), time.process_time(), 0
    while time.monotonic() - started < seconds:
        while outgoing.backlog < AHEAD * len(tensor):
            outgoing.offer(tensor)
        end.soon()
        await end.until(lambda: bool(incoming.tensors))
        while incoming.tensors:
            assert incoming.get() == tensor
            back += 1
    cpu, wall = time.process_time() - cpu, time.monotonic() - started
    figures = pair.sent[FrameType.DATA], pair.retransmitted, back, cpu, wall
    connection.send("end")
    end.close()
    return figures


def _echo(connection: Connection, word_bits: int, mtu: int) -> None:
    """Sends every tensor back until the host has ended."""

    async def work() -> None:
        end = _end(0, word_bits, mtu)
        _, outgoing, incoming = _meet(end, connection)

        def may_send() -> bool:
            return bool(incoming.tensors) and outgoing.backlog < AHEAD * len(incoming.tensors[0])

        while not connection.poll():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await end.until(may_send)
            while may_send():
                outgoing.offer(incoming.get())
            end.soon()
        end.close()

    asyncio.run(work())


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


TABLES = {
    "frame": frame_table,
    "efficiency": efficiency_table,
    "keyed": keyed_table,
    "loss": loss_table,
    "plans": plans_table,
}


def main() -> None:
    """Prints the tables asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, table in {**TABLES, "host": host_table}.items():
        parser.add_argument(f"--{name}", action="store_true", help=(table.__doc__ or "").split("\n")[0])
    parser.add_argument("--faults", type=Path, metavar="OUT", help=f"{(faults_table.__doc__ or '').strip()}")
    parser.add_argument("--campaign", type=Path, metavar="OUT", help="A run of each seed that is not kept yet.")
    parser.add_argument("--seeds", type=int, default=3, help="of a campaign")
    parser.add_argument("--batches", type=int, default=2, help="of each of its runs")
    options = vars(parser.parse_args())
    if options["faults"]:
        try:
            print(faults_table(options["faults"], options["seeds"], options["batches"]))
        except DagtrainError as error:
            raise SystemExit(f"error: {error}") from None
        return
    if options["campaign"]:
        try:
            for line in campaign(options["campaign"], options["seeds"]):
                print(line, flush=True)
        except DagtrainError as error:
            raise SystemExit(f"error: {error}") from None
        except KeyboardInterrupt:
            print("stopped; the same command goes on where this one was", file=sys.stderr)
            raise SystemExit(130) from None
        results, right = campaign_table()
        print(results)
        raise SystemExit(not right)
    wanted = [name for name in TABLES if options[name]] or list(TABLES)
    tables = [TABLES[name]() for name in wanted if not options["host"] or options[name]]
    print("\n\n".join([*tables, host_table()] if options["host"] else tables))


if __name__ == "__main__":
    main()
