"""The host's side of a cluster on Ethernet, against devices that share no code with it (`tests/ethernet_peer.py`)."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.graph.executor import Executor
from dagtrain.host.chunks import Chunk, chunks_of, payload_of
from dagtrain.host.cluster import Cluster
from dagtrain.host.connection import Settings
from dagtrain.host.endpoint import FIRST_TIMER_US, LEAST_TIMER_US, RESUME, DeviceReset, Endpoint, Pair, now_us
from dagtrain.host.streams import Incoming, Layout, LinkFault, Outgoing
from dagtrain.host.wiring import Wiring, WiringError, read_wiring, wiring_text
from dagtrain.training.emulator import Emulator
from hdl.engine.weights.records import StateError
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import HOST, WORD_BITS, Burst, Drop, Dropped, Frame, FrameFormat, FrameType
from hdl.link.ethernet.protocol import Peer, Receiver, Rules, Sender
from hdl.simulate.models.ethernet import Faults
from tests.host_support import counts_of, expected_losses, feeds_of, lossy, played, small_net, train_all, wiring_of

KEY = 0x0123456789ABCDEF
# seconds in which anything here is done
LIMIT = 60.0


# ---- payloads and words


@pytest.mark.parametrize("word_bits", WORD_BITS)
def test_payloads_are_those_of_the_frame_s_own_codec(word_bits: int) -> None:
    form, seed = FrameFormat(word_bits=word_bits, mtu=9000), 7
    rng, refused = random.Random(seed), 0
    for _ in range(60):
        bursts = [
            Burst(stream=rng.choice([0, 1, 65535]), credits=rng.choice([1, (1 << 24) - 1]))
            if rng.random() < 0.3
            else Burst(
                stream=rng.randrange(1 << 16),
                words=tuple(rng.getrandbits(word_bits) for _ in range(rng.randint(1, 5))),
                sequence=rng.choice([0, 1, 255]),
                last=rng.random() < 0.5,
            )
            for _ in range(rng.randint(1, 12))
        ]
        size = form.word_bytes
        chunks = [
            Chunk(b.stream, b"".join(w.to_bytes(size, "little") for w in b.words), b.sequence, b.last, b.credits)
            for b in bursts
        ]
        payload = form.payload_of(bursts)
        assert payload_of(chunks, form) == payload
        assert chunks_of(payload, form) == chunks
        for _ in range(20):
            bad = bytearray(payload)
            bad[rng.randrange(min(len(bad), 2 * size))] ^= 1 << rng.randrange(8)
            try:
                told = [(b.stream, b.words, b.sequence, b.last, b.credits) for b in form.bursts_of(bytes(bad))]
            except Dropped:
                refused += 1
                with pytest.raises(Dropped):
                    chunks_of(bytes(bad), form)
                continue
            assert told == [(c.stream, _numbers(c.words, size), c.sequence, c.last, c.credits)
                            for c in chunks_of(bytes(bad), form)], f"seed {seed}"  # fmt: skip
    assert refused > 20


def _numbers(words: bytes, size: int) -> tuple[int, ...]:
    return tuple(int.from_bytes(words[at : at + size], "little") for at in range(0, len(words), size))


@pytest.mark.parametrize(("bits", "elements"), [(1, 3), (5, 30), (8, 16), (16, 9), (24, 7), (64, 2)])
def test_numbers_lie_in_words_from_the_lowest_bit_on(bits: int, elements: int) -> None:
    layout, seed = Layout(word_bits=128, element_bits=bits, elements=elements), 3
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << min(bits, 62), (3, elements))
    codes[0, :2] = 0, (1 << min(bits, 62)) - 1
    words = layout.encode(codes)
    numbers = np.array(_numbers(words, 16), object).reshape(3, layout.words)
    for row, tensor in zip(numbers, codes, strict=True):
        for place, code in enumerate(tensor):
            word, at = divmod(place, 128 // bits)
            assert row[word] >> bits * at & (1 << bits) - 1 == code, f"seed {seed}"
    np.testing.assert_array_equal(layout.decode(words), codes)
    if bits < 62:
        half = 1 << bits - 1
        np.testing.assert_array_equal(layout.decode(words, signed=True), (codes + half) % (2 * half) - half)


def test_ends_of_streams_see_what_breaks_their_rules() -> None:
    layout = Layout(word_bits=64, element_bits=64, elements=3)
    incoming = Incoming(1, layout, 4)
    word = bytes(8)
    for chunk, said in (
        (Chunk(1, word, sequence=1), "word 1 came where 0 was due"),
        (Chunk(1, word * 5), "without credits"),
        (Chunk(1, word * 4), "came where 3 were due"),
        (Chunk(1, word * 3), "came where 3 were due"),
        (Chunk(1, word * 2, last=True), "last of a tensor"),
    ):
        assert said in incoming.fault(chunk)
    right = Chunk(1, word * 3, last=True)
    assert not incoming.fault(right)
    incoming.put(right)
    assert "without credits" in incoming.fault(Chunk(1, word * 2, sequence=3))
    incoming.get()
    # freed, but not yet paid: the sender can't know
    assert "without credits" in incoming.fault(Chunk(1, word * 2, sequence=3))
    outgoing = Outgoing(2, layout, 4)
    assert "came back" in outgoing.fault(Chunk(2, credits=1))
    outgoing.offer(word * 3)
    assert outgoing.take(2) == Chunk(2, word * 2)
    assert outgoing.take(9) == Chunk(2, word, sequence=2, last=True)
    assert not outgoing.fault(Chunk(2, credits=3))
    assert outgoing.fault(Chunk(2, credits=4))


# ---- two endpoints


def _end(
    number: int, other: int, form: FrameFormat, *, first: int = 0, digest: int = 1, credits: int = 8,
    kind: type[Endpoint] = Endpoint,
) -> Endpoint:  # fmt: skip
    """An end of a pair with a stream each way, whose numbers begin at ``first``."""
    rules = Rules(
        window=8, replay_beats=8 * form.payload_beats, word_bytes=form.word_bytes, timer_cycles=1, ack_cycles=2000
    )
    layout = Layout(word_bits=form.word_bits, element_bits=form.word_bits // 8, elements=20)
    out, into = (1, 2) if number == HOST else (2, 1)

    def pairs(epoch: int) -> list[Pair]:
        sender = Sender(oldest=first, cursor=first, sent=first, next=first)
        peer = Peer(
            number=number, other=other, epoch=epoch, digest=digest, sender=sender, receiver=Receiver(expected=first)
        )
        return [
            Pair(
                name=f"end {other}",
                place=("127.0.0.1", 1),
                peer=peer,
                rules=rules,
                outgoing={out: Outgoing(out, layout, credits)},
                incoming={into: Incoming(into, layout, credits)},
            )
        ]

    return kind(number, form, 5, pairs)


def test_numbers_of_frames_go_round_between_two_endpoints() -> None:
    form, seed = FrameFormat(word_bits=64, mtu=576), 5
    rng = np.random.default_rng(seed)
    sent = rng.integers(0, 256, (400, 20))

    async def talk() -> None:
        ends = [_end(HOST, 3, form, first=2**32 - 4), _end(3, HOST, form, first=2**32 - 4)]
        places = [end.open(("127.0.0.1", 0)) for end in ends]
        streams = []
        for end, place in zip(ends, reversed(places), strict=True):
            (pair,) = end.pairs.values()
            pair.place = place
            (outgoing,), (incoming,) = pair.outgoing.values(), pair.incoming.values()
            outgoing.offer(outgoing.layout.encode(sent))
            streams.append(incoming)
            end.soon()
        for end, incoming in zip(ends, streams, strict=True):
            found = []
            while len(found) < len(sent):
                await end.until(lambda incoming=incoming: bool(incoming.tensors))
                found += [incoming.layout.decode(incoming.get())[0] for _ in range(len(incoming.tensors))]
                end.soon()
            np.testing.assert_array_equal(found, sent, err_msg=f"seed {seed}")
        for end in ends:
            (pair,) = end.pairs.values()
            assert 4 < pair.peer.sender.next < 2**31
            assert not end.fault
            end.close()

    asyncio.run(asyncio.wait_for(talk(), LIMIT))


@pytest.mark.parametrize("keyed", [False, True])
def test_nothing_that_is_no_frame_of_the_cluster_changes_what_is_known(keyed: bool) -> None:
    """10 000 random and mutated frames each: none is taken, each is counted."""
    form, seed = FrameFormat(word_bits=64, mtu=1500, key=KEY if keyed else None), 11
    rng = random.Random(seed)
    end = _end(HOST, 3, form)
    (pair,) = end.pairs.values()
    words = Chunk(2, rng.randbytes(8 * 3), last=True)
    payload = payload_of([words], end.form)
    frame = Frame(
        kind=FrameType.DATA, source=3, target=HOST, epoch=5, sequence=0, acknowledge=0, digest=1, payload=payload
    )
    right = end.form.datagram(frame)
    # without the key where there is one, or with another
    strangers = [replace(end.form, key=None), replace(end.form, key=KEY ^ 1)] if keyed else [end.form]
    wanted: Counter[Drop] = Counter()
    before = (pair.peer, pair.incoming[2].held)
    for number in range(10_000):
        case = number % 5
        place = pair.place
        if case == 0:
            data, cause = rng.randbytes(rng.randrange(0, 1600)), None
        elif case == 1:
            data, cause = _flipped(right, rng), None
        elif case == 2:
            # the right sum of wrong fields: an epoch, a plan, a device
            field, value, cause = rng.choice(
                [
                    ("epoch", rng.choice([0, 4, 6, 65535]), Drop.EPOCH),
                    ("digest", rng.choice([0, 2, 2**32 - 1]), Drop.DIGEST),
                    ("target", rng.choice([0, 3, 4]), Drop.ADDRESS),
                    ("source", rng.choice([0, 4, HOST]), Drop.ADDRESS),
                ]
            )
            data = rng.choice(strangers).datagram(replace(frame, **{field: value}))
            cause = Drop.TAG if keyed else cause
        elif case == 3:
            data, place, cause = right, ("127.0.0.1", rng.randrange(2, 65536)), Drop.ADDRESS
        else:
            data, cause = right[: rng.randrange(len(right))], None
        end.hear(data, place, now_us())
        wanted[cause or Drop.SHORT] += 1
    counted = pair.drops + end.drops
    # of those that are of one cause alone, each is counted under it
    assert counted.total() == 10_000, f"seed {seed}"
    for cause in (Drop.EPOCH, Drop.DIGEST, Drop.TAG):
        assert counted[cause] >= wanted[cause], f"seed {seed}"
    assert counted[Drop.ADDRESS] == wanted[Drop.ADDRESS]
    assert not end.fault
    assert (replace(pair.peer, stranger=False), pair.incoming[2].held) == before
    end.hear(right, pair.place, now_us())
    assert pair.incoming[2].held == 3
    assert not end.fault


@pytest.mark.parametrize("keyed", [False, True])
def test_what_a_peer_says_wrongly_ends_in_a_count_or_a_word(keyed: bool) -> None:
    """2 000 payloads of a device of the cluster, sums right, descriptors random: none raises, no more is held than
    was given credits for, and a broken rule is told, once."""
    form, seed = FrameFormat(word_bits=128, mtu=1500, key=KEY if keyed else None), 12
    rng, faults, taken = random.Random(seed), 0, 0
    end = _end(HOST, 3, form)
    for _ in range(2_000):
        if end.fault:
            assert "end 3 broke the rules of stream" in end.fault
            faults += 1
            end.reset(5)
        (pair,) = end.pairs.values()
        frame = Frame(
            kind=FrameType.DATA,
            source=3,
            target=HOST,
            epoch=5,
            sequence=pair.peer.receiver.expected,
            acknowledge=0,
            digest=1,
            payload=_random_payload(rng, form),
        )
        before = pair.heard
        end.hear(end.form.datagram(frame), pair.place, now_us())
        taken += pair.heard - before
        assert pair.incoming[2].held + pair.incoming[2].freed <= pair.incoming[2].depth, f"seed {seed}"
        assert pair.outgoing[1].credits <= pair.outgoing[1].most, f"seed {seed}"
    dropped = sum(pair.drops[Drop.PAYLOAD] for pair in end.pairs.values())
    assert dropped > 300, f"seed {seed}"
    assert faults > 50, f"seed {seed}"
    assert dropped + taken == 2_000, f"seed {seed}"


def _random_payload(rng: random.Random, form: FrameFormat) -> bytes:
    """Groups with descriptors of likely and unlikely streams, lengths, flags and credits."""
    parts = []
    for _ in range(rng.randint(1, 4)):
        told, words = b"", 0
        for _ in range(rng.randint(1, form.descriptors)):
            count, credits = rng.choice([(0, 0), (0, 1), (0, 2**24 - 1), (1, 0), (2, 0), (255, 0), (3, 7)])
            flags = rng.choice([0, 1, 2 if credits else 0, 2 if credits else 1, rng.randrange(256)])
            stream, sequence = rng.choice([1, 1, 2, 2, 2, 9, 65535]), rng.choice([0, 0, 0, 255])
            told += struct.pack(">HBBI", stream, count, sequence, flags << 24 | credits)
            words += count
        words = max(0, words + rng.choice([0, 0, 0, 0, -1, 1]))
        parts += [told.ljust(form.word_bytes, b"\0"), rng.randbytes(min(words, 8) * form.word_bytes)]
    return b"".join(parts)[: form.payload_beats * form.word_bytes]


def test_a_length_of_state_is_not_believed(tmp_path: Path) -> None:
    """A header that announces more words than any record of the device has ends training at once."""
    del tmp_path
    graph = small_net()
    cluster = Cluster(wiring_of(graph), graph)
    device, stream = next(cluster._state_streams("dump"))
    (incoming,) = (
        pair.incoming[stream.number] for pair in cluster._endpoint.pairs.values() if pair.name == device.name
    )

    async def read(header: int) -> None:
        cluster._endpoint.open(("127.0.0.1", 0))
        incoming.put(Chunk(stream.number, header.to_bytes(8, "little"), incoming.sequence))
        try:
            await asyncio.wait_for(cluster._read_dumps(device, stream), 2)
        finally:
            cluster._endpoint.close()
            incoming.tensors.clear()

    with pytest.raises(StateError, match=r"fpga-0 speaks of 4294967295 words of state, where \d+ are the most"):
        asyncio.run(read(5 | 0xFFFFFFFF << 32))
    with pytest.raises(StateError, match="no header of a record"):
        asyncio.run(read(9))


def _flipped(data: bytes, rng: random.Random) -> bytes:
    bad = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
    return bytes(bad) if bytes(bad) != data else bytes([bad[0] ^ 1, *bad[1:]])


# ---- a cluster


@pytest.mark.parametrize(
    ("staleness", "word_bits", "mtu"), [(0, 64, 576), (1, 64, 1500), (1, 512, 9000)], ids=lambda value: f"{value}"
)
def test_a_cluster_trains_keeps_its_state_and_goes_on(staleness: int, word_bits: int, mtu: int, tmp_path: Path) -> None:
    graph = small_net(staleness)
    wiring = wiring_of(graph, word_bits=word_bits, mtu=mtu)
    fresh = counts_of(Executor(graph), wiring)
    file = tmp_path / "state.npz"

    async def train() -> list[list[float]]:
        found = []
        async with Cluster(reached, graph) as cluster:
            found.append(await train_all(cluster, range(3)))
            assert await cluster.save_state(file, {"mine": 1}) == 3
            found.append(await train_all(cluster, range(3, 5)))
            assert await cluster.save_state(tmp_path / "end.npz") == 5
        async with Cluster(reached, graph) as cluster:
            assert await cluster.load_state(file) == {"mine": 1}
            found.append(await train_all(cluster, range(3, 5), every=1))
            assert await cluster.save_state(tmp_path / "again.npz") == 5
            with pytest.raises(StateError, match="once after a reset"):
                await cluster.load_state(file)
        return found

    with played(wiring, tmp_path) as reached:
        first, rest, again = asyncio.run(asyncio.wait_for(train(), LIMIT))
    assert first + rest == expected_losses(graph, range(5), fresh)
    assert again == rest
    ends = [Emulator(graph) for _ in range(2)]
    for emulator, name in zip(ends, ("end", "again"), strict=True):
        emulator.load(tmp_path / f"{name}.npz")
    assert [counts_of(e.executor, wiring) for e in ends] == [counts_of(ends[0].executor, wiring)] * 2
    assert counts_of(ends[0].executor, wiring) != fresh
    for edge, codes in ends[0].executor.weights.items():
        np.testing.assert_array_equal(codes, ends[1].executor.weights[edge])


def test_a_network_that_loses_doubles_reorders_and_corrupts_changes_no_bit(tmp_path: Path) -> None:
    graph = small_net(1)
    wiring, seed = wiring_of(graph), 21
    fresh = counts_of(Executor(graph), wiring)
    faults = Faults(loss=0.03, duplicate=0.03, reorder=0.03, corrupt=0.03)

    async def train() -> list[float]:
        network = await lossy(reached, faults, seed)
        async with Cluster(network.wiring, graph) as cluster:
            losses = await train_all(cluster, range(8), every=2)
            assert await cluster.save_state(tmp_path / "state.npz") == 8
            devices = cluster.devices
        network.close()
        befell = network.faults
        assert all(befell[what] for what in ("lost", "doubled", "reordered", "corrupted")), befell
        drops = sum((Counter(device.drops) for device in devices), Counter())
        assert drops["duplicate"]
        assert drops["crc"] + drops["length"] + drops["version"] + drops["short"]
        assert sum(device.retransmitted for device in devices)
        return losses

    with played(wiring, tmp_path) as reached:
        losses = asyncio.run(asyncio.wait_for(train(), LIMIT))
    assert losses == expected_losses(graph, range(8), fresh), f"seed {seed}"


def test_devices_of_every_epoch_begin_anew(tmp_path: Path) -> None:
    """Behind a session that left them at an epoch: at the same one, the one before and after, half way round."""
    graph = small_net()

    async def train() -> None:
        epoch = 65_000
        for step in (0, -1, 1, 32_767, 32_768, 32_769):
            async with Cluster(reached, graph, Settings(epoch=(epoch + step) % 65_536)) as cluster:
                losses.append(await train_all(cluster, range(1)))
                epoch = cluster._endpoint.epoch

    losses: list[list[float]] = []
    with played(wiring_of(graph), tmp_path) as reached:
        asyncio.run(asyncio.wait_for(train(), LIMIT))
    assert losses == [losses[0]] * 6


def test_training_stops_where_its_state_can_be_kept(tmp_path: Path) -> None:
    graph = small_net(1)

    async def train() -> None:
        async with Cluster(reached, graph) as cluster:
            done = 0
            async for trained in cluster.train(feeds_of(graph, n) for n in range(1000)):
                done = trained.batch
                if done == 2:
                    cluster.stop()
            assert 2 < done < 10
            assert await cluster.save_state(tmp_path / "state.npz") == done == cluster.batches

    with played(wiring_of(graph), tmp_path) as reached:
        asyncio.run(asyncio.wait_for(train(), LIMIT))


# ---- what can be wrong


def test_all_devices_that_cannot_be_reached_are_named(tmp_path: Path) -> None:
    graph = small_net()
    settings = Settings(answer_seconds=1.5)

    async def enter(wiring: object) -> None:
        async with Cluster(wiring, graph, settings):
            pass

    with played(wiring_of(graph), tmp_path, "--digest", "00c0ffee") as reached, pytest.raises(LinkFault) as other:
        asyncio.run(enter(reached))
    assert str(other.value).count("runs plan 00c0ffee, the host plan 0badcafe; emit, build and load the same plan") == 2
    silent = wiring_of(graph)
    device = silent.device[1].model_copy(update={"mac": "02:00:00:00:00:01", "ip": "127.0.0.1"})
    with pytest.raises(LinkFault, match=r"device 0 \(fpga-0\) at 127.0.0.1:17492: no answer within 1.5 s") as none:
        asyncio.run(enter(silent.model_copy(update={"device": (silent.device[0], device)})))
    assert "device 1 (fpga-1)" in str(none.value)


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    del tmp_path
    graph = small_net()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))

        async def enter(place: tuple[str, int]) -> None:
            async with Cluster(wiring_of(graph), graph, Settings(bind=place)):
                pass

        with pytest.raises(
            LinkFault,
            match=rf"UDP port 127.0.0.1:{taken.getsockname()[1]} is in use; end the other program, or choose",
        ):
            asyncio.run(enter(taken.getsockname()))
    with pytest.raises(LinkFault, match=r"203.0.113.7 is no address of this machine; `ip address add"):
        asyncio.run(enter(("203.0.113.7", 0)))


def test_a_device_that_falls_silent_is_named(tmp_path: Path) -> None:
    graph = small_net()

    async def train() -> None:
        async with Cluster(reached, graph) as cluster:
            pair = cluster._endpoint.pairs[1]
            pair.rules = replace(pair.rules, retries=2)
            pair.place = ("127.0.0.1", 9)
            await train_all(cluster, range(3))
            await cluster.save_state(tmp_path / "state.npz")

    with played(wiring_of(graph), tmp_path) as reached, pytest.raises(LinkFault, match=r"fpga-1 at .* any more; reset"):
        asyncio.run(asyncio.wait_for(train(), LIMIT))


def test_a_device_that_loses_all_is_brought_back_from_the_last_checkpoint(tmp_path: Path) -> None:
    graph, losses, behind, told = small_net(), dict[int, float](), list[int](), list[str]()

    async def train(reached: Wiring) -> None:
        async with Cluster(reached, graph) as cluster:
            while len(losses) < 8:
                try:
                    async for done in cluster.train((feeds_of(graph, n) for n in range(cluster.batches, 8)), 2):
                        assert losses.setdefault(done.batch, done.metrics.loss) == done.metrics.loss
                except DeviceReset as fault:
                    told.append(str(fault))
                    behind.append(await cluster.begin_anew())

    # in the middle of the fifth batch
    with played(wiring := wiring_of(graph), tmp_path, "--anew", "9") as reached:
        asyncio.run(asyncio.wait_for(train(reached), LIMIT))
    # a state that was on its way is gone with the device
    assert behind in ([0], [2], [4])
    assert told == [f"fpga-0 has begun anew, and lost its state; {RESUME}"]
    assert list(losses.values()) == expected_losses(graph, range(8), counts_of(Executor(graph), wiring))


def test_the_timer_allows_for_round_trips_that_differ() -> None:
    rules = Rules(window=8, replay_beats=8, word_bytes=8, timer_cycles=1, ack_cycles=1)

    def timer(*samples_us: int) -> int:
        pair = Pair("fpga-0", ("127.0.0.1", 9), Peer(number=HOST, other=0, epoch=0, digest=0), rules, {}, {})
        for sample in samples_us:
            pair.probe = pair.peer.sender.oldest, 0
            pair.measure(sample)
        return pair.timed_rules().timer_cycles

    assert timer() == FIRST_TIMER_US
    # of the first alone: three times as long
    assert timer(100_000) == 300_000
    assert 100_000 <= timer(*[100_000] * 30) < 102_000
    assert timer(*[50_000, 150_000] * 15) > 250_000
    assert timer(*[500] * 30) == LEAST_TIMER_US


class _Queued(Endpoint):
    """An end at a time that it is told, whose frames wait to be taken."""

    time_us = 0

    def __init__(self, *given: Any) -> None:
        self.queue: deque[bytes] = deque()
        super().__init__(*given)

    @property
    def is_open(self) -> bool:
        return True

    def now(self) -> int:
        return self.time_us

    def _send(self, pair: Pair, frame: Frame) -> None:
        del pair
        self.queue.append(self.form.datagram(frame))

    def _set_timer(self, now: int) -> None:
        pass


@pytest.mark.parametrize("frame_ms", [5, 20, 60])
def test_little_is_sent_again_where_frames_queue_for_longer_than_the_timer(frame_ms: int) -> None:
    """A device in simulation takes a window of frames in no time known before, behind a cable that loses none."""
    form = FrameFormat(word_bits=64, mtu=576)
    ends = [_end(a, b, form, credits=1 << 12, kind=_Queued) for a, b in ((HOST, 3), (3, HOST))]
    host, device = (end for end in ends if isinstance(end, _Queued))
    (pair,), (answering,) = host.pairs.values(), device.pairs.values()
    (outgoing,), (incoming,) = pair.outgoing.values(), answering.incoming.values()
    tensors = np.arange(20 * 30_000).reshape(-1, 20) % 251
    outgoing.offer(outgoing.layout.encode(tensors))

    def pass_ms(count: int, each_ms: int) -> None:
        for _ in range(count):
            host.time_us = device.time_us = host.time_us + 1000
            for end in (host, device):
                end.work()
            while device.queue:
                host.hear(device.queue.popleft(), pair.place, host.now())
            for _ in range(1 if host.time_us // 1000 % each_ms == 0 else 0):
                if host.queue:
                    device.hear(host.queue.popleft(), answering.place, device.now())
            while incoming.tensors:
                incoming.get()

    pass_ms(200 * frame_ms, frame_ms)
    assert pair.sent[FrameType.DATA] > 100
    assert pair.retransmitted < 0.2 * pair.sent[FrameType.DATA]
    assert pair.rtt_us is not None
    assert pair.rtt_us > 4000 * frame_ms
    # where the cable is fast again the timer follows
    pass_ms(1500, 1)
    assert pair.timed_rules().timer_cycles < 2 * LEAST_TIMER_US


def test_a_file_of_addresses_is_read_as_it_was_written(tmp_path: Path) -> None:
    wiring = wiring_of(small_net(), key="0123456789abcdef")
    file = tmp_path / "addresses.toml"
    file.write_text(wiring_text(wiring))
    assert read_wiring(file) == wiring


def test_all_that_is_wrong_with_a_file_of_addresses_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "addresses.toml"
    text = wiring_text(wiring_of(small_net()))
    changed = text.replace('"0badcafe"', '"0bad"').replace("mtu = 1500", "mtu = 10").replace("batch = 2", "batches = 2")
    file.write_text(changed)
    with pytest.raises(WiringError) as shape:
        read_wiring(file)
    for said in ("digest", "mtu", "batch: Field required", "batches: Extra"):
        assert said in str(shape.value)
    more = text.replace("number = 1\n", "number = 0\n").replace('carries = "label"', 'carries = "image"')
    file.write_text(more.replace('device = "fpga-1"', 'device = "fpga-9"'))
    with pytest.raises(WiringError) as sense:
        read_wiring(file)
    for said in ("'fpga-9': there is no such device", "carry image: 2, not 1", "carry label: 0", "fpga-1 with 1 links"):
        assert said in str(sense.value)
    for missing in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(DagtrainError, match="cannot read"):
            read_wiring(missing)
