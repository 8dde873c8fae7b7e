"""Random and mutated frames into an Ethernet port in Verilator, and into the golden model: after each of them both have
counted the same, are in the same epoch, think the same of their peers, and have given the same words."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hdl.convert.tools import run_tool
from hdl.convert.verilog import convert
from hdl.link.ethernet.anew import RESET_CYCLES, SETTLE_CYCLES
from hdl.link.ethernet.frame import (
    CRC_BYTES,
    DTL_BYTES,
    DTL_START,
    ETH_BYTES,
    HEADER,
    HEADER_BYTES,
    HOST,
    IP_BYTES,
    TAG_BYTES,
    WORD_BITS,
    Burst,
    Dropped,
    Frame,
    FrameFormat,
    FrameType,
    crc32c,
    ends_of,
    ip_checksum,
)
from hdl.link.ethernet.keyed import tag_of
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.port import EthernetPort
from hdl.link.ethernet.protocol import EPOCHS, Device, Peer, Rules
from hdl.link.ethernet.receiver import COUNTER_BITS, Cause
from hdl.link.ethernet.transmitter import PEER_BITS, own_constant, peer_constant
from hdl.link.format import Word
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.simulate.verilator import compile_verilog
from hdl.stream import Stream
from tests.ethernet_support import DIGEST, EPOCH, OWN, address_of, packer_of, words_of

PLAIN = FrameFormat(word_bits=64, mtu=576)
KEY = 0x0123_4567_89AB_CDEF
KEYED = replace(PLAIN, key=KEY)
PEERS = (HOST, OWN + 2)
# its timers do not run out
TIMING = Timing(window=4, timer_cycles=1 << 20, ack_cycles=1 << 20)
RULES = Rules(window=4, replay_beats=260, word_bytes=8, timer_cycles=1 << 20, ack_cycles=1 << 20)
# of a port without a key, and with one: from the cycle of a frame's last beat to that in which what it changed can be
# seen, and idle cycles behind it: a refusal is judged, and an answer sent, before the next one counts
SEEN, REST = {False: 7, True: 38}, {False: 40, True: 70}


def seen_after(frames: FrameFormat) -> int:
    """`SEEN` of frames; a tag that begins in the last beat but one is compared a cycle later."""
    return SEEN[frames.key is not None] + (frames.trailer_bytes > frames.word_bytes)


@dataclass
class Reference:
    """A device as the golden models have it."""

    frames: FrameFormat
    device: Device = field(
        default_factory=lambda: Device(
            peers=tuple(Peer(number=OWN, other=other, epoch=EPOCH, digest=DIGEST) for other in PEERS)
        )
    )
    dropped: Counter[Cause] = field(default_factory=Counter)
    words: list[Word] = field(default_factory=list)
    # answers that are due: READY and NAK
    said: Counter[tuple[FrameType, int]] = field(default_factory=Counter)

    def hear(self, data: bytes) -> bool:
        """A frame; whether all began anew."""
        try:
            frame = self.frames.parse(data)
            source, target = ends_of(data)
            addressed = target == address_of(OWN) and replace(source, mac=0) == replace(
                address_of(source.number), mac=0
            )
            cause = "" if addressed else "ADDRESS"
        except Dropped as error:
            frame, cause = None, error.cause.name
        if frame is None or cause:
            self.dropped[Cause[cause]] += 1
            return False
        self.device, heard = self.device.hear(frame, 0, RULES)
        if heard.cause is not None:
            self.dropped[Cause[heard.cause.name]] += 1
        if heard.payload is not None and frame.kind is FrameType.DATA:
            self.words += words_of(self.frames.bursts_of(heard.payload))
        for at, first in enumerate(self.device.peers):
            peer = first
            while peer.ready or peer.receiver.nak:
                peer, answer = peer.speak(0, RULES)
                assert answer is not None
                if answer.kind is not FrameType.HELLO:
                    self.said[answer.kind, peer.other] += 1
            self.device = self.device.with_peer(at, peer)
        return heard.reset is not None

    @property
    def faults(self) -> int:
        """As the circuit says them."""
        return sum(
            (peer.lost | peer.stranger << 1 | peer.unsent << 2) << 3 * at for at, peer in enumerate(self.device.peers)
        )

    @property
    def counters(self) -> int:
        """As the circuit says them."""
        return sum(count << COUNTER_BITS * cause for cause, count in self.dropped.items())


def fuzzed(reference: Reference, rng: random.Random) -> bytes:
    """A frame that may be right; most are changed, and of these half have check sequences and tags that fit."""
    frames, peer = reference.frames, rng.choice(reference.device.peers)
    if rng.random() < 0.15:
        return rng.randbytes(rng.randint(1, 200))
    kind = rng.choice((*FrameType, FrameType.DATA, FrameType.DATA))
    expected = peer.receiver.expected
    count = min(rng.choice((1, 2, rng.randint(1, 50))), frames.payload_beats - 1)
    words = tuple(map(rng.getrandbits, [frames.word_bits] * count))
    payload = frames.payload_of([Burst(stream=rng.randrange(300), words=words)])
    frame = Frame(
        kind=kind,
        source=peer.other,
        target=OWN,
        epoch=(peer.epoch + (kind is FrameType.RESET) * rng.choice((1, 1, 0, 7, EPOCHS // 2, -1))) % EPOCHS,
        sequence=(expected + rng.choice((0, 0, 0, 1, 5, -1, -(2**31), 2**31 - 1))) % 2**32,
        acknowledge=rng.choice((0, 0, 0, 0, 2**32 - 1, 2**31, 1)),
        digest=DIGEST ^ (rng.random() < 0.05),
        payload=payload if kind in (FrameType.DATA, FrameType.CONTROL) else b"",
    )
    other = rng.random()
    form = replace(frames, key=None if frames.key is None or other < 0.02 else frames.key ^ (other < 0.05))
    data = bytearray(form.build(frame, address_of(peer.other), address_of(OWN)))
    if rng.random() < 0.3:
        return bytes(data)
    fits = rng.random() < 0.5
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(HEADER_BYTES if fits else len(data))] ^= 1 << rng.randrange(8)
    if fits:
        mended(data, frames)
    elif rng.random() < 0.2:
        data = data[: rng.randint(1, len(data))]
    elif rng.random() < 0.1:
        data += rng.randbytes(rng.randint(1, 20))
    return bytes(data)


def mended(data: bytearray, frames: FrameFormat) -> None:
    """With the check sequences and the tag that fit what was changed."""
    checksum = HEADER["ip.checksum"].offset // 8
    data[checksum : checksum + 2] = bytes(2)
    data[checksum : checksum + 2] = ip_checksum(bytes(data[ETH_BYTES : ETH_BYTES + IP_BYTES])).to_bytes(2, "big")
    end = len(data) - CRC_BYTES - (0 if frames.key is None else TAG_BYTES)
    data[end : end + CRC_BYTES] = crc32c(bytes(data[DTL_START:end])).to_bytes(CRC_BYTES, "big")
    if frames.key is not None:
        dtl = bytes(data[DTL_START : DTL_START + DTL_BYTES] + data[end : end + CRC_BYTES])
        data[end + CRC_BYTES :] = tag_of(frames.key, dtl).to_bytes(TAG_BYTES, "big")


@dataclass
class Said:
    """What the circuit said."""

    # cycle → counters, faults, malformed, reset, epoch, from then on
    states: list[tuple[int, tuple[int, ...]]]
    words: list[tuple[int, int]]
    sent: list[Frame]

    def at(self, cycle: int) -> tuple[int, ...]:
        """What it said in a cycle."""
        return next(state for since, state in reversed(self.states) if since <= cycle)


def beats_of(data: bytes, frames: FrameFormat) -> Iterator[str]:
    """Lines of a frame."""
    size, bits = frames.word_bytes, frames.word_bits
    for start in range(0, len(data), size):
        part = data[start : start + size]
        last = start + size >= len(data)
        yield f"beat {int.from_bytes(part, 'little') | last << bits | len(part) << bits + 2:x}\n"


def run_circuit(frames: FrameFormat, lines: Sequence[str], folder: Path, optimise: bool) -> Said:
    """The port in Verilator."""
    unit = EthernetPort(packer=packer_of(frames, len(PEERS)), timing=TIMING)
    with unsimulated():
        module = convert(unit.build(ClockReset(), {n: Stream(w) for n, w in unit.streams.items()}), "port")
    path = module.write(folder)
    harness = Path(__file__).with_name("ethernet_fuzz.cpp")
    program = compile_verilog(folder, "port", [path], harness, optimise=optimise)
    (folder / "stimulus.txt").write_text("".join(lines))
    own = address_of(OWN)
    others = sum(peer_constant(own, address_of(number)) << at * PEER_BITS for at, number in enumerate(PEERS))
    arguments = [f"{value:x}" for value in (own_constant(own), others, EPOCH, DIGEST, frames.key or 0)]
    found = Said([], [], [])
    frame = bytearray()
    for line in run_tool([program, *arguments], folder).splitlines():
        what, cycle, *values = line.split()
        numbers = tuple(int(value, 16) for value in values)
        if what == "S":
            found.states.append((int(cycle), numbers))
        elif what == "W":
            found.words.append((int(cycle), numbers[0]))
        else:
            beat, last = numbers[0] & (1 << frames.word_bits) - 1, numbers[0] >> frames.word_bits
            frame += beat.to_bytes(frames.word_bytes, "little")[: frames.last_bytes if last else None]
            if last:
                found.sent.append(frames.parse(bytes(frame)))
                frame.clear()
    return found


def fuzz(frames: FrameFormat, seed: int, count: int, folder: Path, optimise: bool = False) -> Reference:
    """So many frames into both."""
    rng, reference, keyed = random.Random(seed), Reference(frames), frames.key is not None
    lines: list[str] = ["idle 60\n"]
    cycle, expected = 60, []
    for _ in range(count):
        data = fuzzed(reference, rng)
        began = reference.hear(data)
        lines += beats_of(data, frames)
        cycle += -(-len(data) // frames.word_bytes)
        expected.append((cycle - 1, data, reference.counters, reference.faults, reference.device.epoch, began))
        idle = REST[keyed] + (RESET_CYCLES + SETTLE_CYCLES + 40) * began + rng.randrange(8)
        lines.append(f"idle {idle}\n")
        cycle += idle
    said = run_circuit(frames, [*lines, "idle 100\n"], folder, optimise)
    before = 0, 0, 0, 0, EPOCH
    for number, (last, data, counters, faults, epoch, began) in enumerate(expected):
        where = f"seed {seed}, frame {number}, cycle {last}: {data.hex()}"
        seen = last + seen_after(frames)
        # a cycle earlier nothing has changed but the flags of what was acknowledged
        assert said.at(seen - 1)[::4] == before[::4], where
        assert said.at(seen)[::4] == (counters, epoch), where
        assert said.at(seen)[3] == began, where
        before = said.at(last + REST[keyed])
        assert before[1:3] == (faults, 0), where
        before = (before[0], before[1], before[2], 0, before[4])
    form = EthernetPort(packer=packer_of(frames, len(PEERS)), timing=TIMING).packer.form
    assert [form.decode(payload) for _, payload in said.words] == reference.words, f"seed {seed}"
    answers = Counter((frame.kind, frame.target) for frame in said.sent)
    assert {key: answers[key] for key in reference.said} == reference.said, f"seed {seed}"
    return reference


def check_met(reference: Reference, causes: set[Cause]) -> None:
    """Every cause was counted, and words came, too."""
    assert {cause for cause, count in reference.dropped.items() if count} == causes
    assert len(reference.words) > 20


EVERY = set(Cause) - {Cause.OVERRUN}


def test_frames_of_any_kind_change_what_the_model_says(tmp_path: Path) -> None:
    check_met(fuzz(KEYED, 1, 400, tmp_path), EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, KEY], ids=["no key", "key"])
@pytest.mark.parametrize("word_bits", WORD_BITS[1:])
def test_frames_of_wider_beats_change_what_the_model_says(word_bits: int, key: int | None, tmp_path: Path) -> None:
    frames = FrameFormat(word_bits=word_bits, mtu=1500, key=key)
    check_met(fuzz(frames, word_bits, 5000, tmp_path, optimise=True), EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("frames", [PLAIN, KEYED], ids=["no key", "key"])
def test_twenty_thousand_frames_change_what_the_model_says(frames: FrameFormat, tmp_path: Path) -> None:
    check_met(fuzz(frames, 2, 20_000, tmp_path, optimise=True), EVERY)
