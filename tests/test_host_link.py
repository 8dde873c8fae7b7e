"""The host's end of the network, against a device that shares no code with it, over real UDP sockets."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dagtrain.host.link import HostLink
from dagtrain.host.port import HostPort, HostStream
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import HOST, Burst, Drop, Frame, FrameFormat, FrameType
from hdl.link.ethernet.protocol import Rules
from tests.udp_peer import EchoDevice

DIGEST, EPOCH, WORDS, ROOM = 0xDA67AA11, 7, 5, 24
LOCAL = ("127.0.0.1", 0)
RULES = Rules(window=8, replay_beats=400, word_bytes=16, timer_cycles=30_000, ack_cycles=2_000, retries=200)
FORM = FrameFormat(word_bits=128, mtu=1500)


def host_port(devices: int = 1, **changes: Any) -> HostPort:
    """Streams 2n to device n and 2n + 1 back."""
    streams = [HostStream(number=k, device=k // 2, words=WORDS, room=ROOM) for k in range(2 * devices)]
    said: dict[str, Any] = {"digest": DIGEST, "epoch": EPOCH, "devices": range(devices)} | changes
    return HostPort(FORM, RULES, outgoing=streams[::2], incoming=streams[1::2], **said)


@contextmanager
def echo(number: int, **changes: Any) -> Iterator[EchoDevice]:
    said: dict[str, Any] = {"digest": DIGEST, "epoch": EPOCH, "seed": number} | changes
    device = EchoDevice(
        number=number, word_bytes=16, heard=2 * number, said=2 * number + 1, words=WORDS, room=ROOM, **said
    )
    device.start()
    try:
        yield device
    finally:
        device.ended.set()
        device.join(5)
        assert device.failure == ""


def random_words(rng: random.Random, tensors: int) -> list[int]:
    return [rng.choice([0, 1, (1 << 128) - 1, rng.getrandbits(128)]) for _ in range(WORDS * tensors)]


async def exchange(port: HostPort, places: dict[int, tuple[str, int]], tensors: int) -> None:
    """Every device says every word back, complemented."""

    async def one(link: HostLink, device: int) -> None:
        words = random_words(random.Random(device), tensors)
        sending = asyncio.create_task(link.send(2 * device, words))
        back: list[int] = []
        for _ in range(tensors):
            back += await link.receive(2 * device + 1)
        await sending
        assert back == [word ^ (1 << 128) - 1 for word in words]

    async with HostLink(port, places, LOCAL) as link, asyncio.timeout(60):
        await asyncio.gather(*(one(link, device) for device in places))


def test_two_devices_say_every_word_back() -> None:
    with echo(0) as a, echo(1) as b:
        port = host_port(2)
        asyncio.run(exchange(port, {0: a.place, 1: b.place}, 60))
    assert all(not peer.lost for peer in port.peers.values())
    assert port.counts[0][Drop.CRC.value] == 0


def test_words_survive_a_device_that_loses_doubles_and_corrupts() -> None:
    with echo(0, trouble=0.08) as device:
        port = host_port()
        asyncio.run(exchange(port, {0: device.place}, 40))
    counts = port.counts[0]
    assert counts["again"] > 0
    assert counts[Drop.CRC.value] > 0
    assert counts[Drop.DUPLICATE.value] > 0


def test_a_device_of_another_plan_is_named() -> None:
    port = host_port()
    strange = Frame(kind=FrameType.HELLO, source=0, target=HOST, epoch=EPOCH, sequence=0, acknowledge=0, digest=1)
    port.hear(FORM.datagram(strange), 0, 0)
    assert port.counts[0][Drop.DIGEST.value] == 1
    assert str(port.problem) == (
        "the network: device 0 runs another plan; program the devices with this plan, then reset them"
    )


def test_a_port_in_use_is_told() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))

        async def run() -> None:
            async with HostLink(host_port(), {}, taken.getsockname()):
                pass

        with pytest.raises(DagtrainError, match=r"^UDP port \d+ of 127\.0\.0\.1: .*; end the program that has it"):
            asyncio.run(run())


def test_who_waits_for_a_device_that_is_wrong_is_told() -> None:
    """It sends words that were never asked for."""
    wrong = Burst(stream=1, words=(1,), sequence=9)
    data = FORM.datagram(
        Frame(
            kind=FrameType.DATA, source=0, target=HOST, epoch=EPOCH, sequence=0, acknowledge=0, digest=DIGEST,
            payload=FORM.payload_of([wrong]),
        )
    )  # fmt: skip

    async def run() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
            device.bind(("127.0.0.1", 0))
            async with HostLink(host_port(), {0: device.getsockname()}, LOCAL) as link, asyncio.timeout(5):
                assert link._transport is not None
                device.sendto(data, link._transport.get_extra_info("sockname"))
                await link.receive(1)

    with pytest.raises(DagtrainError, match=r"^stream 1: device 0 sent 1 words from number 9 on, after 0 words"):
        asyncio.run(run())


def valid(rng: random.Random, form: FrameFormat, number: int) -> bytes:
    kind = rng.choice(list(FrameType))
    payload = b""
    if kind is FrameType.DATA:
        payload = form.payload_of([Burst(stream=1, words=(rng.getrandbits(128),) * WORDS, last=True)])
    return form.datagram(
        Frame(
            kind=kind, source=0, target=HOST, epoch=EPOCH, sequence=number, acknowledge=0, digest=DIGEST,
            payload=payload,
        )
    )  # fmt: skip


@pytest.mark.parametrize("key", [None, 5], ids=["plain", "keyed"])
def test_whatever_bytes_come_nothing_but_counters_changes(key: int | None) -> None:
    """10 000 datagrams of random bytes and of frames with bytes changed, cut off, added or swapped; each is counted
    once, none is an error, no state changes."""
    rng = random.Random(17)
    form = FrameFormat(word_bits=128, mtu=576, key=key)
    port = HostPort(
        form, RULES, digest=DIGEST, epoch=EPOCH, devices=[0],
        incoming=[HostStream(number=1, device=0, words=WORDS, room=ROOM)],
    )  # fmt: skip
    before = port.peers[0]
    for _ in range(10_000):
        data = bytearray(valid(rng, form, 0))
        way = rng.randrange(5)
        if way == 0:
            data = bytearray(rng.randbytes(rng.randrange(200)))
        elif way == 1:
            del data[rng.randrange(len(data)) :]
        elif way == 2:
            data += rng.randbytes(rng.randrange(1, 40))
        else:
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        port.hear(bytes(data), rng.choice([0, 0, None]), 0)
    assert port.peers[0] == before
    assert port.take(1) is None
    assert port.problem is None
    told = port.counts[0] + port.strangers
    assert sum(told.values()) == 10_000
    assert set(told) <= {drop.value for drop in Drop} - {"duplicate", "gap", "digest", "epoch", "foreign", "checksum"}


def test_frames_without_the_key_change_nothing() -> None:
    rng = random.Random(3)
    keyed = FrameFormat(word_bits=128, mtu=1500, key=5)
    port = HostPort(
        keyed, RULES, digest=DIGEST, epoch=EPOCH, devices=[0],
        incoming=[HostStream(number=1, device=0, words=WORDS, room=ROOM)],
    )  # fmt: skip
    before = port.peers[0]
    for number in range(200):
        for form in (FORM, FrameFormat(word_bits=128, mtu=1500, key=4)):
            port.hear(valid(rng, form, number % 3), 0, 0)
    assert port.peers[0] == before
    assert port.counts[0] == {Drop.TAG.value: 400}
    while port.counts[0]["DATA"] == 0:
        port.hear(valid(rng, keyed, 0), 0, 0)
    assert port.take(1) is not None


def test_a_stranger_s_frame_is_counted_and_not_heard() -> None:
    port = host_port()
    before = port.peers[0]
    port.hear(valid(random.Random(1), FORM, 0), None, 0)
    assert port.peers[0] == before
    assert port.strangers == {Drop.ADDRESS.value: 1}
