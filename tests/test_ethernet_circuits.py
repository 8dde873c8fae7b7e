"""The circuits of the Ethernet port against the codec of `hdl.link.ethernet.frame`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, Simulation, StopSimulation, always, always_comb, block, delay, instance, intbv

from benchmarks.network_ports import ports
from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.link.ethernet.crc import CRC_CYCLES, Crc32c, crc32c_beats
from hdl.link.ethernet.frame import DTL_START, FrameFormat, FrameType, crc32c
from hdl.link.ethernet.packer import Packer, packer
from hdl.link.ethernet.peers import Faults, Heard, Saying, Timing, peer_state
from hdl.link.format import Word
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.simulate.drivers import Source
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream
from hdl.unit import Unit
from tests.ethernet_support import bursts_of, form_of, packer_of, traffic, words_of

FRAMES = FrameFormat(word_bits=64, mtu=576)
WIDE = FrameFormat(word_bits=256, mtu=1500)


UNITS: dict[str, Unit] = {
    "crc": Crc32c(word_bits=128),
    "packer, one peer": packer_of(FRAMES, 1),
    "packer, three peers": packer_of(WIDE, 3),
}


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_the_ports_of_a_unit_are_those_it_declares_and_its_verilog_is_clean(unit: Unit, tmp_path: Path) -> None:
    streams = {name: Stream(width) for name, width in unit.streams.items()}
    with unsimulated():
        module = convert(unit.build(ClockReset(), streams), "unit")
    found = {port.name: port for port in module.ports}
    expected = {"clk": 1, "rst": 1, **unit.inputs, **unit.outputs}
    for name, width in unit.streams.items():
        expected |= {f"{name}_valid": 1, f"{name}_ready": 1, f"{name}_payload": width}
    assert {name: port.width for name, port in found.items()} == expected
    assert all(found[name].direction is Direction.IN for name in unit.inputs)
    assert all(found[name].direction is Direction.OUT for name in unit.outputs)
    path = module.write(tmp_path)
    lint_verilog([path], "unit")
    compile_icarus([path], "unit")
    check_yosys([path], "unit")


# ----------------------------------------------------------------------------------------------- check sequence


@block
def checked_frames(domain: ClockReset, x: Stream, y: Stream, *, unit: Crc32c) -> Any:
    """Beats in, marked: the message begins, it ends, the beat does not count; check sequences out."""
    bits = unit.word_bits
    advance, start, counts, told = (Signal(bool(0)) for _ in range(4))
    data = Signal(intbv(0)[bits:])
    ends = Signal(intbv(0)[CRC_CYCLES:])
    crc = Signal(intbv(0)[32:])
    check = crc32c_beats(domain, advance, start, counts, data, crc, skip=unit.skip)
    top = CRC_CYCLES - 1

    @always_comb
    def connect() -> None:
        advance.next = y.ready or told or not ends[top]
        counts.next = x.valid and not x.payload[bits + 2]
        x.ready.next = y.ready or told or not ends[top]
        start.next = x.valid and x.payload[bits]
        data.next = x.payload[bits:]
        y.valid.next = ends[top] and not told
        y.payload.next = crc

    @always(domain.clk.posedge)
    def step() -> None:
        if advance:
            ends.next[CRC_CYCLES:1] = ends[top:]
            ends.next[0] = x.valid and x.payload[bits + 1]
        told.next = ends[top] and (y.ready or told) and not advance
        if domain.rst:
            ends.next = 0

    return check, connect, step


@pytest.mark.parametrize(
    ("word_bits", "backend", "messages"),
    [(64, Backend.MYHDL, 12), (64, Backend.ICARUS, 6), (256, Backend.MYHDL, 8), (512, Backend.MYHDL, 3)],
)
def test_the_check_sequence_of_frames_is_that_of_the_codec(word_bits: int, backend: Backend, messages: int) -> None:
    seed = word_bits + 3
    rng = random.Random(seed)
    unit = Crc32c(word_bits=word_bits)
    size = word_bits // 8
    beats, sums = [], []
    for number in range(messages):
        header = (unit.start_beat + 1) * size
        fill = {0: 0, 1: 0xFF}.get(number)
        length = header + size * rng.randrange(0, 9)
        frame = rng.randbytes(length) if fill is None else bytes([fill]) * length
        sums.append(crc32c(frame[DTL_START:]))
        last = length // size - 1
        for index in range(last + 1):
            marks = (index == unit.start_beat) | (index == last) << 1
            beats.append(int.from_bytes(frame[index * size : (index + 1) * size], "little") | marks << word_bits)
            if rng.random() < 0.2 and index < last:
                beats.append(rng.getrandbits(word_bits) | 4 << word_bits)

    def factory(_images: Any) -> Any:
        return checked_frames(ClockReset(), Stream(word_bits + 3), Stream(32), unit=unit)

    ports = StreamPort("x", word_bits + 3, Direction.IN), StreamPort("y", 32, Direction.OUT)
    for stall in (0.0, 0.4):
        design = Design(f"checked_{word_bits}", factory, ports)
        run = run_streams(backend, design, {"x": beats}, {"y": messages}, seed=seed, stall_probability=stall)
        assert run.outputs["y"] == sums, f"seed {seed}"


# ------------------------------------------------------------------------------------------------- packer


@dataclass
class Packed:
    """What a packer made."""

    # (peer, payload), in the order in which they were complete
    payloads: list[tuple[int, bytes]] = field(default_factory=list)
    cycles: int = 0


def pack(
    unit: Packer,
    words: Sequence[Sequence[Word]],
    seed: int,
    *,
    stall: float = 0.0,
    idle: float = 0.0,
    free: float = 1.0,
) -> Packed:
    """Words of each peer through a packer in MyHDL, beside a replay memory whose payloads leave at random times."""
    rng = random.Random(f"{seed}/pack")
    xs = [Stream(width) for width in unit.streams.values()]
    sources = [
        Source(f"xs{peer}", unit.form.payload_bits, [unit.form.encode(word) for word in some], rng, stall)
        for peer, some in enumerate(words)
    ]
    domain = ClockReset()
    inputs, outputs = unit.signals(unit.inputs), unit.signals(unit.outputs)
    found = Packed()
    with fresh_simulator():
        dut = packer(domain, xs, *inputs, *outputs, unit=unit)
        bench = packer_bench(domain, xs, inputs, outputs, unit, sources, found, (rng, idle, free))
        simulation = Simulation(dut, bench)
        try:
            simulation.run(60_000, quiet=1)
        finally:
            if not simulation._finished:
                simulation.quit()
    assert all(source.taken == len(source.beats) for source in sources), f"seed {seed}"
    return found


@block
def packer_bench(domain: Any, xs: Any, inputs: Any, outputs: Any, unit: Any, sources: Any, found: Any, how: Any) -> Any:
    room, heads, idle = inputs
    write, write_at, write_data, made, made_peer, made_beats, made_end = outputs
    rng, idle_share, free_share = how
    memory: dict[int, int] = {}
    places = list(unit.starts)
    waiting: list[list[int]] = [[] for _ in places]
    complete: list[tuple[int, int, int]] = []
    quiet, edges = [0], [0]
    size = unit.frames.word_bytes

    def step(cycle: int) -> None:
        if write:
            memory[int(write_at)] = int(write_data)
        # the last beat of a payload is written a cycle after it is made
        for peer, start, length in complete:
            addresses = [
                unit.starts[peer] + (start - unit.starts[peer] + k) % unit.regions[peer] for k in range(length)
            ]
            payload = b"".join(memory.pop(address).to_bytes(size, "little") for address in addresses)
            found.payloads.append((peer, payload))
        complete.clear()
        if made:
            peer, length = int(made_peer), int(made_beats)
            complete.append((peer, places[peer], length))
            waiting[peer].append(length)
            assert sum(waiting[peer]) <= unit.regions[peer], f"peer {peer}, cycle {cycle}: its region is overrun"
            places[peer] = int(made_end)
        rooms = 0
        for peer, some in enumerate(waiting):
            if some and rng.random() < free_share:
                some.pop(0)
            space = unit.regions[peer] - sum(some)
            rooms |= (space >= unit.frames.payload_beats) << peer
        room.next = rooms
        for peer, x in enumerate(xs):
            sources[peer].step(cycle, bool(x.ready))
            x.valid.next, x.payload.next = sources[peer].valid, sources[peer].payload
        heads.next = sum(place << peer * unit.address_bits for peer, place in enumerate(places))
        idle.next = rng.random() < idle_share
        quiet[0] = 0 if any(source.taken < len(source.beats) for source in sources) else quiet[0] + 1
        found.cycles = cycle
        if quiet[0] > unit.flush_cycles + 8:
            raise StopSimulation

    @instance
    def tick() -> Iterator[object]:
        while True:
            yield delay(1)
            domain.clk.next = not domain.clk

    @always(domain.clk.posedge)
    def run() -> None:
        edges[0] += 1
        domain.rst.next = edges[0] < 3
        if edges[0] > 3:
            step(edges[0])

    return tick, run


@pytest.mark.parametrize("frames", [FRAMES, WIDE], ids=["64 bit", "256 bit"])
def test_a_busy_packer_fills_payloads_as_the_codec_does_and_loses_a_cycle_a_frame(frames: FrameFormat) -> None:
    seed = frames.word_bits
    unit = packer_of(frames, 1)
    words = traffic(unit.form, seed, 60)
    found = pack(unit, [words], seed)
    payloads = [frames.payload_of(bursts) for bursts in frames.fill(bursts_of(words))]
    assert [payload for _, payload in found.payloads] == payloads, f"seed {seed}"
    beats = sum(len(payload) for payload in payloads) // frames.word_bytes
    credits = sum(word.credit for word in words)
    # beyond: cycles until it stops, and of reset
    assert found.cycles <= beats + credits + 3 * len(payloads) + 2 * unit.flush_cycles + 20


@pytest.mark.parametrize(
    ("peers", "stall", "idle", "free"),
    [(1, 0.5, 0.3, 0.1), (3, 0.0, 0.0, 0.02), (3, 0.6, 0.2, 1.0), (4, 0.9, 1.0, 0.3)],
)
def test_words_of_all_peers_are_packed_in_their_order(peers: int, stall: float, idle: float, free: float) -> None:
    seed = peers * 10 + int(10 * stall)
    unit = packer_of(FRAMES, peers, spare=5)
    # so much that a region fills where payloads stay in it
    words = [traffic(unit.form, seed + peer, 70 if free < 0.05 else 25) for peer in range(peers)]
    found = pack(unit, words, seed, stall=stall, idle=idle, free=free)
    for peer in range(peers):
        payloads = [payload for whose, payload in found.payloads if whose == peer]
        bursts = [burst for payload in payloads for burst in FRAMES.bursts_of(payload)]
        assert words_of(bursts) == words[peer], f"peer {peer}, seed {seed}"
        assert max(map(len, payloads)) <= FRAMES.payload_beats * FRAMES.word_bytes


def test_a_peer_alone_with_words_waits_for_room_before_its_next_payload() -> None:
    """`next_peer` passes over the peer whose frame is open, whose room is not yet what that frame leaves."""
    unit = packer_of(FRAMES, 2, spare=5)
    words = [Word(number, 0, number % 256, 7, 0, 0) for number in range(400)]
    found = pack(unit, [words, []], 1, free=0.005)
    assert [word for _, payload in found.payloads for word in words_of(FRAMES.bursts_of(payload))] == words


def test_of_acknowledgements_in_successive_cycles_the_last_counts() -> None:
    """They are cumulative: what the last one says is what all of them say."""
    timing = Timing(window=16, timer_cycles=500, ack_cycles=400)
    made, said, freed, heard = Signal(bool(0)), Signal(bool(0)), Signal(intbv(0)[5:]), Heard()
    saying, faults, domain = Saying(timing), Faults(), ClockReset()
    told = {60 + at: number for at, number in enumerate((1, 2, 4, 5, 6, 9, 10))} | {90: 12, 92: 11, 120: 14}
    counted, edges = [0], [0]

    @block
    def bench() -> Any:
        @instance
        def tick() -> Iterator[object]:
            while True:
                yield delay(1)
                domain.clk.next = not domain.clk

        @always(domain.clk.posedge)
        def step() -> None:
            edges[0] += 1
            cycle = edges[0]
            domain.rst.next = cycle < 3
            made.next = 5 <= cycle < 19
            # greeted by the first one; then each frame is said as soon as it can be
            heard.valid.next = cycle == 4 or cycle in told
            heard.kind.next = int(FrameType.ACK)
            heard.acknowledge.next = told.get(cycle, 0)
            said.next = bool(saying.wants) and not said and cycle > 20
            counted[0] += int(freed)

        return tick, step

    with fresh_simulator():
        simulation = Simulation(peer_state(domain, made, heard, said, saying, freed, faults, timing=timing), bench())
        simulation.run(280, quiet=1)
        assert (counted[0], bool(faults.unsent)) == (14, False)
        simulation.quit()


def test_a_descriptor_announces_no_more_words_than_it_can_count() -> None:
    frames = FrameFormat(word_bits=64, mtu=9000)
    unit = packer_of(frames, 1)
    words = [Word(number, 0, number % 256, 7, 0, 0) for number in range(600)]
    ((_, payload),) = pack(unit, [words], 1).payloads
    assert [len(burst.words) for burst in frames.bursts_of(payload)] == [255, 255, 90]
    assert words_of(frames.bursts_of(payload)) == words


def test_an_idle_port_sends_a_word_at_once_and_a_busy_one_waits_for_more() -> None:
    unit = packer_of(FRAMES, 1, flush_cycles=40)
    words = traffic(unit.form, 5, 40, longest=3)
    idle, busy = (pack(unit, [words], 5, stall=0.8, idle=share) for share in (1.0, 0.0))
    assert len(idle.payloads) > 3 * len(busy.payloads)


def test_a_packer_refuses_words_of_another_width_and_too_small_regions() -> None:
    with pytest.raises(ValueError, match=r"^frames of 64 bits take words as wide, numbered in 8 bits, not LinkFormat"):
        Packer(frames=FRAMES, form=form_of(WIDE), regions=(500,))
    with pytest.raises(ValueError, match=r"^regions of \(129,\) beats: a peer needs two payloads of 65$"):
        Packer(frames=FRAMES, form=form_of(FRAMES), regions=(129,))


def test_the_page_says_what_a_port_costs() -> None:
    page = (Path(__file__).parent.parent / "docs" / "network.md").read_text()
    begin = "<!-- begin: benchmarks/network_ports.py --estimate -->\n"
    lines = page[page.index(begin) + len(begin) :].split("\n<!-- end -->")[0].splitlines()
    # the others take seconds each
    assert lines[:8] == list(ports([64], estimated=True))
    port = next(line for line in lines if "| 256 | 40G | `EthernetPort`" in line)
    assert float(port.split("|")[5].strip(" %")) <= 15
