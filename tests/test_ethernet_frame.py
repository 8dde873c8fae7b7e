"""Frames over Ethernet: what the codec builds is read by scapy and other packages, and comes back as it was."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from fractions import Fraction

import google_crc32c
import pytest
import siphash24
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.fields import BitEnumField, BitField, ByteField, IntField, ShortField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from hdl.link.ethernet.frame import (
    CABLE_BYTES,
    DTL_START,
    HEADER,
    HEADER_BYTES,
    HOST,
    MOST_WORDS,
    WORD_BITS,
    Address,
    Burst,
    Drop,
    Dropped,
    Frame,
    FrameFormat,
    FrameType,
    crc32c,
    ends_of,
    ip_checksum,
)
from hdl.link.ethernet.keyed import siphash

HERE = Address(number=3, mac=0x02_00_00_00_00_03, ip=0x0A000003)
THERE = Address(number=HOST, mac=0x02_00_00_00_FF_FF, ip=0x0A0000FE)
KEY = 0x0123_4567_89AB_CDEF


class Dtl(Packet):  # type: ignore[misc, no-any-unimported]
    """The header as docs/network.md tells it, written anew."""

    name = "DTL"
    fields_desc = [  # noqa: RUF012
        BitField("version", 1, 4),
        BitEnumField("type", 1, 4, ["", "DATA", "ACK", "NAK", "HELLO", "READY", "RESET", "CONTROL"]),
        ByteField("flags", 0),
        ShortField("source", 0),
        ShortField("target", 0),
        ShortField("epoch", 0),
        IntField("sequence", 0),
        IntField("acknowledge", 0),
        ShortField("beats", 0),
        IntField("digest", 0),
    ]


bind_layers(UDP, Dtl, sport=0x4454, dport=0x4454)


def words_by_hand(payload: bytes, word_bytes: int) -> list[tuple[int, int, int, int]]:
    """(stream, sequence, last, word) of each word and (stream, -1, 0, credits) of each return of a payload."""
    found, at = [], 0
    while at < len(payload):
        announced = []
        for k in range(at, at + word_bytes, 8):
            stream, words, sequence, flags = int.from_bytes(payload[k : k + 2], "big"), *payload[k + 2 : k + 5]
            if flags & 2:
                found.append((stream, -1, 0, int.from_bytes(payload[k + 5 : k + 8], "big")))
            announced.append((stream, words, sequence, flags & 1))
        at += word_bytes
        for stream, words, sequence, last in announced:
            for k in range(words):
                word = int.from_bytes(payload[at : at + word_bytes], "little")
                found.append((stream, (sequence + k) % 256, int(last and k == words - 1), word))
                at += word_bytes
    assert at == len(payload)
    return found


def words_sent(bursts: list[Burst]) -> list[tuple[int, int, int, int]]:
    """As `words_by_hand`, of bursts; credits before the words of their group, so both sort alike by stream."""
    found = []
    for burst in bursts:
        if burst.credits:
            found.append((burst.stream, -1, 0, burst.credits))
        for k, word in enumerate(burst.words):
            last = int(burst.last and k == len(burst.words) - 1)
            found.append((burst.stream, (burst.sequence + k) % 256, last, word))
    return found


def of_stream(words: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """In the order of streams, each stream's words in theirs, its credits before."""
    return sorted(words, key=lambda word: (word[0], word[1] >= 0))


def random_words(rng: random.Random, form: FrameFormat, count: int) -> tuple[int, ...]:
    full = (1 << form.word_bits) - 1
    return tuple(rng.choice([0, 1, full, full >> 1, rng.getrandbits(form.word_bits)]) for _ in range(count))


def random_bursts(seed: int, form: FrameFormat, count: int) -> list[Burst]:
    rng, found = random.Random(seed), []
    for _ in range(count):
        stream = rng.choice([0, 1, 0xFFFF, rng.randrange(1 << 16)])
        if rng.random() < 0.3:
            found.append(Burst(stream=stream, credits=rng.choice([1, 16, (1 << 24) - 1])))
        else:
            words = random_words(rng, form, rng.choice([1, 2, 31, 32, 33, MOST_WORDS]))
            found.append(Burst(stream=stream, words=words, sequence=rng.randrange(256), last=rng.random() < 0.5))
    return found


def a_frame(form: FrameFormat, seed: int) -> Frame:
    rng = random.Random(seed)
    payload = form.payload_of(form.fill(random_bursts(seed, form, 5))[0])
    return Frame(
        kind=FrameType.DATA,
        source=3,
        target=HOST,
        epoch=rng.choice([0, 0xFFFF]),
        sequence=rng.choice([0, 0xFFFFFFFF]),
        acknowledge=rng.choice([0, 0xFFFFFFFF]),
        digest=rng.getrandbits(32),
        payload=payload,
    )


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "keyed"])
@pytest.mark.parametrize("word_bits", WORD_BITS)
def test_scapy_reads_what_the_codec_builds(word_bits: int, key: int | None) -> None:
    form = FrameFormat(word_bits=word_bits, mtu=1500, key=key)
    for seed in range(8):
        frame = a_frame(form, seed)
        data = form.build(frame, HERE, THERE)
        seen = Ether(data)
        assert (seen.dst, seen.src, seen.type) == ("02:00:00:00:ff:ff", "02:00:00:00:00:03", 0x800), f"seed {seed}"
        ip, udp, dtl = seen[IP], seen[UDP], seen[Dtl]
        assert (ip.src, ip.dst, ip.ihl, ip.flags, ip.frag, ip.proto) == ("10.0.0.3", "10.0.0.254", 5, "DF", 0, 17)
        assert ip.len == len(data) - 14 <= 1500
        assert udp.len == len(data) - 34
        assert (udp.sport, udp.dport, udp.chksum) == (0x4454, 0x4454, 0)
        # scapy computes the checksum where there is none
        del ip.chksum
        assert IP(bytes(ip)).chksum == Ether(data)[IP].chksum
        assert (dtl.version, dtl.type, dtl.flags, dtl.source, dtl.target) == (1, 1, int(key is not None), 3, HOST)
        told = (dtl.epoch, dtl.sequence, dtl.acknowledge, dtl.digest)
        assert told == (frame.epoch, frame.sequence, frame.acknowledge, frame.digest)
        assert dtl.beats * word_bits // 8 == len(frame.payload)
        end = 64 + len(frame.payload)
        assert data[64:end] == frame.payload
        assert data[end : end + 4] == google_crc32c.value(data[42:end]).to_bytes(4, "big")
        if key is None:
            assert len(data) == end + 4
        else:
            low, high = key.to_bytes(8, "little"), (key ^ int.from_bytes(b"dagtrain", "little")).to_bytes(8, "little")
            tag = siphash24.siphash24(data[42:64] + data[end : end + 4], key=low + high).digest()
            assert data[end + 4 :] == tag[::-1]


@pytest.mark.parametrize("word_bits", WORD_BITS)
def test_a_parser_written_by_hand_finds_the_sender_s_words(word_bits: int) -> None:
    form = FrameFormat(word_bits=word_bits, mtu=1500)
    for seed in range(6):
        bursts = random_bursts(seed, form, 12)
        payloads = [form.payload_of(part) for part in form.fill(bursts)]
        assert all(len(payload) <= form.payload_beats * form.word_bytes for payload in payloads)
        seen = [word for payload in payloads for word in words_by_hand(payload, form.word_bytes)]
        assert of_stream(seen) == of_stream(words_sent(bursts)), f"seed {seed}"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(WORD_BITS), st.sampled_from([576, 1500, 4160, 9216]), st.booleans())
def test_words_and_frames_come_back_as_they_were(seed: int, word_bits: int, mtu: int, keyed: bool) -> None:
    form = FrameFormat(word_bits=word_bits, mtu=mtu, key=KEY if keyed else None)
    bursts = random_bursts(seed, form, 6)
    back: list[Burst] = []
    for part in form.fill(bursts):
        frame = replace(a_frame(form, seed), payload=form.payload_of(part))
        data = form.build(frame, HERE, THERE)
        assert form.parse(data) == frame
        assert ends_of(data) == (HERE, THERE)
        # a UDP socket neither gives nor gets what stands before DTL
        assert form.datagram(frame) == data[DTL_START:]
        assert form.parse_datagram(data[DTL_START:]) == frame
        assert form.bursts_of(frame.payload) == part
        back += part
    assert words_sent(back) == words_sent(bursts)


@pytest.mark.parametrize("kind", [kind for kind in FrameType if kind is not FrameType.DATA])
def test_frames_without_payload_come_back(kind: FrameType) -> None:
    form = FrameFormat(word_bits=64, mtu=576)
    frame = replace(a_frame(form, 0), kind=kind, payload=b"")
    data = form.build(frame, HERE, THERE)
    # longer than the 60 bytes that a MAC fills up to
    assert len(data) == 68
    assert form.parse(data) == frame


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_sums_agree_with_other_packages(data: bytes) -> None:
    assert crc32c(data) == google_crc32c.value(data)
    halves = (KEY.to_bytes(8, "little"), (KEY + 1).to_bytes(8, "little"))
    assert siphash(data, KEY, KEY + 1) == int.from_bytes(
        siphash24.siphash24(data, key=b"".join(halves)).digest(), "little"
    )


def changed(data: bytes, at: int, by: int) -> bytes:
    return data[:at] + bytes([data[at] ^ by]) + data[at + 1 :]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "keyed"])
def test_every_changed_bit_is_seen(key: int | None) -> None:
    """But of MAC addresses, which are for who knows the peers, and of UDP's checksum, which operating systems set."""
    form = FrameFormat(word_bits=64, mtu=576, key=key)
    frame = a_frame(form, 1)
    data = form.build(frame, HERE, THERE)
    for at in range(len(data)):
        other = changed(data, at, 1 << at % 8)
        if at < 12 or at in (40, 41):
            assert form.parse(other) == frame
            continue
        with pytest.raises(Dropped):
            form.parse(other)
    for end in range(len(data)):
        with pytest.raises(Dropped):
            form.parse(data[:end])


def test_causes_are_told_apart() -> None:
    form = FrameFormat(word_bits=64, mtu=576, key=KEY)
    frame = a_frame(form, 1)
    data = form.build(frame, HERE, THERE)

    def cause(data: bytes, form: FrameFormat = form) -> Drop:
        with pytest.raises(Dropped) as caught:
            form.parse(data)
        return caught.value.cause

    assert cause(data[:60]) is Drop.SHORT
    assert cause(changed(data, 13, 6)) is Drop.FOREIGN
    assert cause(changed(data, 15, 1)) is Drop.CHECKSUM
    assert cause(changed(data, 23, 1)) is Drop.FOREIGN
    assert cause(changed(data, DTL_START, 0x10)) is Drop.VERSION
    assert cause(changed(data, DTL_START, 0x08)) is Drop.VERSION
    assert cause(data + bytes(8)) is Drop.LENGTH
    assert cause(changed(data, HEADER_BYTES, 1)) is Drop.CRC
    assert cause(changed(data, len(data) - 1, 1)) is Drop.TAG
    assert cause(data, replace(form, key=KEY ^ 1)) is Drop.TAG
    assert cause(data, replace(form, key=None)) is Drop.TAG
    assert cause(replace(form, key=None).build(frame, HERE, THERE)) is Drop.TAG


def test_what_operating_systems_and_routers_set_is_not_looked_at() -> None:
    form = FrameFormat(word_bits=64, mtu=576)
    frame = a_frame(form, 1)
    seen = Ether(form.build(frame, HERE, THERE))
    seen[IP].ttl, seen[IP].id, seen[IP].tos, seen[IP].flags = 3, 0xBEEF, 0xB8, 0
    del seen[IP].chksum
    del seen[UDP].chksum
    data = bytes(seen)
    assert data[40:42] != b"\0\0"
    assert form.parse(data) == frame
    for flags, fragment in ((1, 0), (0, 1)):
        seen[IP].flags, seen[IP].frag = flags, fragment
        del seen[IP].chksum
        with pytest.raises(Dropped, match=r"^foreign: "):
            form.parse(bytes(seen))


def test_a_frame_with_another_payload_needs_another_tag() -> None:
    form = FrameFormat(word_bits=64, mtu=576, key=KEY)
    frame = a_frame(form, 1)
    data = form.build(frame, HERE, THERE)
    forged = changed(data[:-12], HEADER_BYTES + 9, 1)
    forged += crc32c(forged[DTL_START:]).to_bytes(4, "big") + data[-8:]
    with pytest.raises(Dropped, match=r"^tag: "):
        form.parse(forged)


def descriptor(stream: int = 1, words: int = 0, sequence: int = 0, flags: int = 0, credits: int = 0) -> bytes:
    return bytes([0, stream, words, sequence, flags]) + credits.to_bytes(3, "big")


@pytest.mark.parametrize(
    "payload",
    [
        descriptor(words=2) + bytes(24),
        descriptor(words=3) + bytes(24),
        bytes(16) + descriptor(words=1) + bytes(8) + bytes(16),
        bytes(8) + descriptor(words=1) + bytes(16),
        descriptor(words=1, flags=4) + bytes(24),
        descriptor(words=1, flags=2, credits=1) + bytes(24),
        descriptor(words=1, credits=1) + bytes(24),
        descriptor(flags=2) + bytes(8),
        descriptor(flags=1) + bytes(8),
        descriptor(flags=2, credits=1, sequence=1) + bytes(8),
    ],
)
def test_a_payload_that_is_none_is_dropped_whole(payload: bytes) -> None:
    form = FrameFormat(word_bits=128, mtu=576)
    with pytest.raises(Dropped, match=r"^payload: "):
        form.bursts_of(payload)


def test_random_bytes_are_dropped_and_never_an_error() -> None:
    rng = random.Random(7)
    form = FrameFormat(word_bits=128, mtu=576, key=KEY)
    data = form.build(a_frame(form, 2), HERE, THERE)
    for _ in range(2000):
        cut = rng.randrange(len(data))
        fuzzed = data[:cut] + rng.randbytes(rng.choice([0, 1, 4, len(data) - cut]))
        if fuzzed != data:
            with pytest.raises(Dropped):
                form.parse(fuzzed)
        with contextlib.suppress(Dropped):
            form.bursts_of(rng.randbytes(16 * rng.randrange(8)))


@pytest.mark.parametrize(
    ("word_bits", "mtu", "told"),
    [
        # 67 beats: two groups of 33, and one beat too many
        (64, 590, "0.826"),
        (512, 1500, "0.896"),
        (512, 4160, "0.963"),
        (512, 9000, "0.983"),
        (256, 1500, "0.919"),
        (256, 9000, "0.979"),
        (64, 1500, "0.909"),
        (64, 9000, "0.960"),
    ],
)
def test_efficiency_is_that_of_the_bytes_on_the_cable(word_bits: int, mtu: int, told: str) -> None:
    for key in (None, KEY):
        form = FrameFormat(word_bits=word_bits, mtu=mtu, key=key)
        bursts = [Burst(stream=k, words=(k,) * 32) for k in range(400)]
        first, second = form.fill(bursts)[:2]
        data = form.build(replace(a_frame(form, 0), payload=form.payload_of(first)), HERE, THERE)
        words = sum(len(burst.words) for burst in first)
        assert form.efficiency() == Fraction(words * word_bits // 8, len(data) + CABLE_BYTES)
        assert CABLE_BYTES == 8 + 4 + 12
        assert len(data) - 14 <= mtu < len(data) - 14 + 2 * word_bits // 8
        assert second
    assert f"{float(FrameFormat(word_bits=word_bits, mtu=mtu).efficiency()):.3f}" == told


def test_the_header_is_one_number_to_a_circuit() -> None:
    form = FrameFormat(word_bits=512, mtu=1500)
    frame = a_frame(form, 3)
    header = int.from_bytes(form.build(frame, HERE, THERE)[:64], "big")
    assert HEADER["dtl.digest"].low == 0
    assert header & 0xFFFFFFFF == frame.digest
    assert HEADER["eth.target"].of(header) == THERE.mac
    assert HEADER["ip.source"].of(header) == HERE.ip
    assert sum(field.bits for field in HEADER.values()) == 512


@pytest.mark.parametrize("wrong", [{"word_bits": 32}, {"mtu": 575}, {"mtu": 9217}, {"key": 1 << 64}])
def test_formats_that_there_are_no_frames_of_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"bits|bytes"):
        FrameFormat(**({"word_bits": 64, "mtu": 1500} | wrong))


def test_what_does_not_fit_is_refused() -> None:
    form = FrameFormat(word_bits=64, mtu=576)
    frame = a_frame(form, 0)
    for wrong in ({"payload": bytes(8 * (form.payload_beats + 1))}, {"payload": bytes(7)}, {"payload": b""}):
        with pytest.raises(ValueError, match=r"payload"):
            form.build(replace(frame, **wrong), HERE, THERE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^dtl\.epoch = 65536: needs a number of 16 bits$"):
        form.build(replace(frame, epoch=1 << 16), HERE, THERE)
    for bad in (
        {},
        {"words": (1,) * 256},
        {"words": (1,), "credits": 1},
        {"credits": 1 << 24},
        {"credits": 1, "last": True},
    ):
        with pytest.raises(ValueError, match=r"descriptor|credits"):
            Burst(stream=0, **bad)  # type: ignore[arg-type]


def test_the_checksum_carries_round() -> None:
    assert ip_checksum(bytes.fromhex("45000073000040004011" + "0000" + "c0a80001c0a800c7")) == 0xB861
    assert ip_checksum(bytes.fromhex("45000073000040004011" + "b861" + "c0a80001c0a800c7")) == 0
