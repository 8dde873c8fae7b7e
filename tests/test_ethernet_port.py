"""The Ethernet port as a circuit among peers that are the golden model, over a network that loses, doubles, reorders
and corrupts frames: every stream's words arrive, each once and in order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.link.ethernet import claims, peers, port, receiver, replay, transmitter
from hdl.link.ethernet.frame import Dropped, Frame, FrameFormat, FrameType
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.port import EthernetPort
from hdl.link.ethernet.receiver import Cause
from hdl.link.format import Word
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.simulate.cosimulation import Engine, build_cosimulation
from hdl.simulate.models.ethernet import Faults
from hdl.stream import Stream
from tests.ethernet_support import DIGEST, EPOCH, OWN, Exchanged, Network, address_of, form_of, traffic
from tests.mutated import Mutator
from tests.suites import quick

NARROW = FrameFormat(word_bits=64, mtu=576)
WIDE = FrameFormat(word_bits=512, mtu=1500)
TIMING = Timing(window=4, timer_cycles=400, ack_cycles=60)


def network(seed: int, peers: int = 1, runs: int = 25, frames: FrameFormat = NARROW, **options: Any) -> Network:
    """Random words both ways."""
    form = form_of(frames)
    return Network(
        frames=frames,
        timing=options.pop("timing", TIMING),
        seed=seed,
        there=[traffic(form, seed + peer, runs) for peer in range(peers)],
        back=[traffic(form, seed + 50 + peer, runs) for peer in range(peers)],
        **options,
    )


def delivered(given: Network, found: Exchanged) -> None:
    """Every word came, once and in its order, and nothing is wrong."""
    where = f"seed {given.seed}, {found.cycles} cycles"
    for peer, words in enumerate(given.there):
        assert found.got[peer] == words, f"to peer {peer}, {where}"
    assert interleaved(found.words, given.back), where
    assert found.faults == [(False, False, False)] * len(given.there), where
    assert not found.malformed, where


def interleaved(words: Sequence[Word], queues: Sequence[Sequence[Word]]) -> bool:
    """Whether words are those of all queues, each queue's in its order."""
    # how many of each queue may have come
    states = {(0,) * len(queues)}
    for word in words:
        states = {
            (*state[:at], state[at] + 1, *state[at + 1 :])
            for state in states
            for at, queue in enumerate(queues)
            if state[at] < len(queue) and queue[state[at]] == word
        }
    return tuple(map(len, queues)) in states


def test_words_cross_a_good_network_and_nothing_is_sent_twice() -> None:
    given = network(1, runs=12, stalls=(0.1, 0.2, 0.0))
    found = given.run()
    delivered(given, found)
    assert not any(found.dropped.values())
    parsed = [NARROW.parse(data) for data in found.sent]
    numbers = [frame.sequence for frame in parsed if frame.kind is FrameType.DATA]
    assert numbers == list(range(len(numbers)))
    assert {frame.kind for frame in parsed} <= {FrameType.HELLO, FrameType.READY, FrameType.DATA, FrameType.ACK}


@pytest.mark.parametrize(
    ("seed", "peers", "faults"),
    quick(
        1,
        [
            (6, 2, Faults(loss=0.1, duplicate=0.1, reorder=0.1, corrupt=0.1)),
            (2, 1, Faults(loss=0.3)),
            (3, 1, Faults(duplicate=0.5)),
            (4, 1, Faults(reorder=0.4)),
            (5, 1, Faults(corrupt=0.3)),
        ],
    ),
    ids=["all, two peers", "loss", "doubled", "reordered", "corrupted"],
)
def test_words_cross_a_bad_network(seed: int, peers: int, faults: Faults) -> None:
    given = network(seed, peers, 8, faults=faults, stalls=(0.2, 0.2, 0.1))
    found = given.run()
    delivered(given, found)


@pytest.mark.slow
def test_frames_of_512_bits_cross_too() -> None:
    given = network(7, 1, 6, WIDE, faults=Faults(loss=0.1, corrupt=0.1), stalls=(0.2, 0.2, 0.1))
    delivered(given, given.run())


@pytest.fixture(scope="module")
def verilog(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The port's Verilog in Icarus, in place of the block."""
    folder = tmp_path_factory.mktemp("port")
    unit = network(1).unit
    with unsimulated():
        module = convert(unit.build(ClockReset(), {n: Stream(w) for n, w in unit.streams.items()}), "port")
    path = module.write(folder)
    lint_verilog([path], "port")
    compile_icarus([path], "port")
    check_yosys([path], "port")
    return build_cosimulation(Engine.ICARUS, "port", module.ports, [path], folder / "built")


def test_the_verilog_of_a_port_does_the_same_in_every_cycle(verilog: Any) -> None:
    faults = Faults(loss=0.1, duplicate=0.1, reorder=0.1, corrupt=0.1)

    def attach(_unit: EthernetPort, signals: Mapping[str, Any]) -> Any:
        return verilog.attach(signals)

    given = network(8, runs=8, faults=faults, stalls=(0.2, 0.2, 0.1))
    block, text = given.run(), network(8, runs=8, faults=faults, stalls=(0.2, 0.2, 0.1), attach=attach).run()
    delivered(given, text)
    assert (text.sent, text.words, text.cycles, text.dropped) == (block.sent, block.words, block.cycles, block.dropped)


def test_after_faults_have_ceased_all_is_delivered_within_two_timers() -> None:
    given = network(9, runs=6, faults=Faults(loss=1.0), faults_until=1500, max_cycles=1500 + 2 * 400 + 300)
    found = given.run()
    delivered(given, found)
    assert found.cycles > 1500


@pytest.mark.slow
def test_a_peer_that_says_nothing_more_is_lost_and_named() -> None:
    timing = Timing(window=4, timer_cycles=300, ack_cycles=60, retries=2)
    given = network(10, 2, 5, timing=timing, faults=Faults(down=((2, 60, 1 << 60),)), max_cycles=1500)
    found = given.run()
    assert found.faults == [(False, False, False), (True, False, False)]
    assert found.got[0] == given.there[0]


@pytest.mark.slow
def test_a_host_that_stands_still_is_waited_for_where_a_device_is_given_up() -> None:
    timing = Timing(window=4, timer_cycles=200, ack_cycles=60, retries=2)
    host = Timing(window=4, timer_cycles=300, ack_cycles=60, retries=50)
    down = Faults(down=((1, 60, 2000), (2, 60, 2000)))
    given = network(12, 2, 5, timing=timing, host_timing=host, faults=down, max_cycles=3000)
    found = given.run()
    assert found.faults == [(True, False, False), (False, False, False)]
    assert found.got[1] == given.there[1]
    assert [word for word in found.words if word in given.back[1]] == given.back[1]
    with pytest.raises(ValueError, match="windows of 4 frames, and of 8 for the host"):
        EthernetPort(packer=given.unit.packer, timing=timing, host_timing=Timing(window=8))


def test_a_peer_of_another_plan_is_refused_and_named() -> None:
    given = network(11, 2, runs=4, digests={1: DIGEST ^ 1}, max_cycles=700)
    found = given.run()
    assert found.faults == [(False, False, False), (False, True, False)]
    assert found.dropped[Cause.DIGEST] > 0
    assert found.got[0] == given.there[0]
    assert found.got[1] == []
    assert sorted(found.words, key=str) == sorted(given.back[0], key=str)


# -------------------------------------------------------------------------------------------------- bad frames


def data_frame(**changes: Any) -> bytes:
    """A frame that the circuit's first peer might send as its first one, but for what is changed."""
    payload = changes.pop("payload", NARROW.payload_of([]) or bytes.fromhex("0001010000000000") + bytes(8))
    values = {
        "kind": FrameType.DATA,
        "source": OWN + 1,
        "target": OWN,
        "epoch": EPOCH,
        "sequence": 0,
        "acknowledge": 0,
        "digest": DIGEST,
        "payload": payload,
        **changes,
    }
    return NARROW.build(Frame(**values), address_of(values["source"]), address_of(values["target"]))


def changed(data: bytes, at: int, value: int) -> bytes:
    """With another byte."""
    return data[:at] + bytes([value]) + data[at + 1 :]


BAD: dict[str, tuple[bytes, Cause]] = {
    "too short": (data_frame()[:66], Cause.SHORT),
    "another type of Ethernet": (changed(data_frame(), 12, 0x86), Cause.FOREIGN),
    "another UDP port": (changed(data_frame(), 37, 0x55), Cause.FOREIGN),
    "checksum of IPv4": (changed(data_frame(), 24, 0x55), Cause.CHECKSUM),
    "another version": (changed(data_frame(), 42, 0x21), Cause.VERSION),
    "unknown flags": (changed(data_frame(), 43, 0x80), Cause.VERSION),
    "a beat less": (data_frame()[:-12] + data_frame()[-4:], Cause.LENGTH),
    "a byte more": (data_frame() + b"\0", Cause.LENGTH),
    "check sequence": (changed(data_frame(), 70, 0x55), Cause.CRC),
    "to another device": (data_frame(target=OWN + 2), Cause.ADDRESS),
    "of no peer": (data_frame(source=OWN + 9), Cause.ADDRESS),
    "another epoch": (data_frame(epoch=EPOCH + 1), Cause.EPOCH),
    "another plan": (data_frame(digest=DIGEST ^ 1 << 31), Cause.DIGEST),
    "ahead": (data_frame(sequence=5), Cause.GAP),
    "behind": (data_frame(sequence=(1 << 32) - 1), Cause.DUPLICATE),
}


@pytest.mark.parametrize(("data", "cause"), BAD.values(), ids=BAD)
def test_a_bad_frame_is_dropped_for_its_cause(data: bytes, cause: Cause) -> None:
    given = network(12, runs=0, injected={40: data}, max_cycles=120)
    given.there, given.back = [[]], [[Word(1, 0, 0, 0, 0, 0)] * 1000]
    given.latency = 1000
    found = given.run()
    assert {found_cause for found_cause, count in found.dropped.items() if count} == {cause}
    assert found.dropped[cause] == 1
    assert found.words == []


def alone(injected: Mapping[int, bytes], words: list[Word], cycles: int) -> Exchanged:
    """A port whose peer says nothing but what is injected."""
    given = network(15, runs=0, injected=injected, max_cycles=cycles, latency=100_000, spare=600)
    given.there, given.back = [words], [[Word(1, 0, 0, 0, 0, 0)] * 1000]
    return given.run()


def test_no_more_frames_are_on_their_way_than_the_window_has() -> None:
    words = [Word(number, 0, number % 256, 9, 0, 0) for number in range(500)]
    found = alone({20: data_frame(kind=FrameType.READY, payload=b"")}, words, 420)
    numbers = [frame.sequence for frame in map(NARROW.parse, found.sent) if frame.kind is FrameType.DATA]
    assert numbers == list(range(TIMING.window))


def test_frames_that_were_never_sent_are_not_taken_for_acknowledged() -> None:
    words = [Word(number, 0, number, 9, 0, 0) for number in range(100)]
    ack = data_frame(kind=FrameType.ACK, payload=b"", acknowledge=3)
    found = alone({20: data_frame(kind=FrameType.READY, payload=b""), 60: ack}, words, 700)
    assert found.faults == [(False, False, True)]
    numbers = [frame.sequence for frame in map(NARROW.parse, found.sent) if frame.kind is FrameType.DATA]
    # the timer goes back to the first one
    assert numbers.count(0) == 2


def test_a_nak_goes_back_once_and_its_echoes_do_not() -> None:
    words = [Word(number, 0, number, 9, 0, 0) for number in range(100)]
    nak = data_frame(kind=FrameType.NAK, payload=b"")
    injected = {20: data_frame(kind=FrameType.READY, payload=b""), 200: nak, 240: nak, 280: nak}
    # the timer would go back too, later
    found = alone(injected, words, 560)
    numbers = [frame.sequence for frame in map(NARROW.parse, found.sent) if frame.kind is FrameType.DATA]
    once = list(range(max(numbers) + 1))
    assert numbers == once + once


def test_a_gap_makes_one_nak_and_the_next_gap_another() -> None:
    ready = data_frame(kind=FrameType.READY, payload=b"")
    gaps = {60 + 20 * k: data_frame(sequence=k + 1) for k in range(4)}
    found = alone({20: ready, **gaps, 200: data_frame(), 240: data_frame(sequence=3)}, [], 300)
    told = [(frame.kind, frame.acknowledge) for frame in map(NARROW.parse, found.sent)]
    assert [number for kind, number in told if kind is FrameType.NAK] == [0, 1]
    assert found.dropped[Cause.GAP] == 5


def test_random_and_mutated_frames_bring_no_word_and_are_counted_as_the_codec_says() -> None:
    seed = 13
    rng = random.Random(seed)
    good = [data_frame(), data_frame(kind=FrameType.ACK, payload=b""), data_frame(sequence=1)]
    frames = []
    for _ in range(36):
        data = bytearray(rng.choice(good))
        if rng.random() < 0.3:
            data = bytearray(rng.randbytes(rng.randint(1, 200)))
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.2:
            data = data[: rng.randint(1, len(data))]
        try:
            NARROW.parse(bytes(data))
        except Dropped as error:
            frames.append((bytes(data), error.cause))
    given = network(seed, runs=0, injected={40 + 30 * k: data for k, (data, _) in enumerate(frames)})
    given.there, given.back, given.latency = [[]], [[Word(1, 0, 0, 0, 0, 0)] * 1000], 100_000
    given.max_cycles = 40 + 30 * (len(frames) + 1)
    found = given.run()
    expected = {cause: sum(c.name == cause.name for _, c in frames) for cause in Cause}
    assert found.dropped == expected, f"seed {seed}"
    assert found.words == [] and not found.malformed  # noqa: PT018


def test_descriptors_that_announce_too_much_are_reported_and_bring_no_word_of_the_next_frame() -> None:
    words = bytes.fromhex("0001090000000000") + bytes(range(8))
    given = network(14, runs=0, injected={40: data_frame(payload=words), 60: data_frame(sequence=1)}, max_cycles=150)
    given.there, given.back, given.latency = [[]], [[Word(1, 0, 0, 0, 0, 0)] * 1000], 1000
    found = given.run()
    assert found.malformed
    assert [(word.stream, word.sequence) for word in found.words] == [(1, 0), (1, 0)]


# ------------------------------------------------------------------------------------------- faults of the circuit


def check_cause(name: str) -> None:
    """A bad frame is dropped for its cause."""
    test_a_bad_frame_is_dropped_for_its_cause(*BAD[name])


def check_a_region_of_two_payloads() -> None:
    """More words than a region holds, to a peer that is far away."""
    given = network(16, runs=0, latency=150, spare=3)
    given.there, given.back = [[Word(number, 0, number % 256, 9, 0, 0) for number in range(270)]], [[]]
    delivered(given, given.run())


def check_lost_credits() -> None:
    """Frames of credits alone, of which the network loses some."""
    given = network(21, runs=0, faults=Faults(loss=0.35), max_cycles=1800, stalls=(0.9, 0.0, 0.0))
    given.there, given.back = [[Word(number + 1, 1, 0, 9, 1, 0) for number in range(6)]], [[]]
    delivered(given, given.run())


def check_window() -> None:
    """Of short frames no more are sent than the window has, while none is acknowledged."""
    ready = data_frame(kind=FrameType.READY, payload=b"")
    given = network(18, runs=0, injected={20: ready}, max_cycles=260, latency=100_000, stalls=(0.8, 0.0, 0.0))
    given.there, given.back = [[Word(k, 0, k, 9, 0, 0) for k in range(60)]], [[Word(1, 0, 0, 0, 0, 0)] * 1000]
    numbers = [frame.sequence for frame in map(NARROW.parse, given.run().sent) if frame.kind is FrameType.DATA]
    assert numbers == list(range(TIMING.window))


Seeded = tuple[Callable[[], None], tuple[Any, Any, str, dict[str, str]]]
SEEDED: dict[str, Seeded] = {
    "an acknowledgement of the unsent": (
        test_frames_that_were_never_sent_are_not_taken_for_acknowledged,
        (peers, peers, "acknowledged", {"moves.next = compared and behind <= sent and": "moves.next = compared and",
                                        "        if compared and behind <= sent:": "        if compared:"}),
    ),
    "a window one too wide": (
        check_window,
        (port, replay, "replay_ring", {"held != window and": "held != window + 1 and",
                                       "max=window + 1)) for": "max=window + 2)) for"}),
    ),
    "the check sequence not looked at": (
        lambda: check_cause("check sequence"),
        (receiver, receiver, "frame_verdict", {"not claims.unkeyed and ending.corrupt": "False"}),
    ),
    "a stale epoch": (
        lambda: check_cause("another epoch"),
        (claims, claims, "epoch_claims", {"second.epoch.next = ahead != 0": "second.epoch.next = False"}),
    ),
    "a NAK for each frame behind a gap": (
        test_a_gap_makes_one_nak_and_the_next_gap_another,
        (peers, peers, "receive_state", {"            if not complained:": "            if True:"}),
    ),
    "every echo of a NAK heeded": (
        test_a_nak_goes_back_once_and_its_echoes_do_not,
        (peers, peers, "send_state", {"and (moves or not went_back)": ""}),
    ),
    "credits lost with a dropped frame": (
        check_lost_credits,
        (peers, peers, "send_state", {"        if back or expired or passed:": "        if back or passed:",
                                      "jumps.next = back or expired or passed": "jumps.next = back or passed"}),
    ),
    "the replay region overrun": (
        check_a_region_of_two_payloads,
        (port, replay, "replay_ring", {"taken <= limit and held": "held",
                                       "taken = Signal(intbv(0, min=0, max=region + 1))":
                                       "taken = Signal(intbv(0, min=0, max=4 * region))"}),
    ),
    "valid dropped in mid packet": (
        test_words_cross_a_good_network_and_nothing_is_sent_twice,
        (transmitter, transmitter, "frame_steps", {"marks.valid.next = header or fetched or trailer":
                                                   "marks.valid.next = header or trailer or (fetched and left != 1)"}),
    ),
    "a duplicate taken twice": (
        lambda: check_cause("behind"),
        (claims, claims, "late_claims", {"claims.expected.next = behind == 0": "claims.expected.next = behind <= 1",
                                         "claims.stale.next = behind != 0 and": "claims.stale.next = behind > 1 and"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("check", quick(1, [check_window, check_a_region_of_two_payloads, check_lost_credits]))
def test_what_faults_are_seen_by_holds_without_them(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(("check", "fault"), quick(5, SEEDED.values()), ids=SEEDED)
def test_a_seeded_fault_of_the_circuit_is_seen(
    check: Callable[[], None],
    fault: tuple[Any, Any, str, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    Mutator(monkeypatch, tmp_path)(*fault)
    with pytest.raises((AssertionError, ValueError, Dropped)):
        check()
