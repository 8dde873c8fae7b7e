"""Ethernet ports with a key: tags are made and asked for, and without the right one nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.link.ethernet import port, receiver, tagging
from hdl.link.ethernet.frame import HOST, Burst, Dropped, Frame, FrameFormat, FrameType
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.port import EthernetPort
from hdl.link.ethernet.receiver import Cause
from hdl.link.format import Word
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.simulate.models.ethernet import Faults
from hdl.stream import Stream
from tests.ethernet_support import DIGEST, EPOCH, OWN, Exchanged, Network, address_of, form_of, packer_of, traffic
from tests.mutated import Mutator

KEY = 0x0123_4567_89AB_CDEF
KEYED = FrameFormat(word_bits=64, mtu=576, key=KEY)
WIDE = FrameFormat(word_bits=512, mtu=1500, key=KEY)
TIMING = Timing(window=4, timer_cycles=600, ack_cycles=60)
PEERS = (HOST, OWN + 2)


def network(seed: int, frames: FrameFormat, **options: Any) -> Network:
    """The circuit among two peers, random words both ways, over a bad network."""
    form = form_of(frames)
    return Network(
        frames=frames,
        timing=TIMING,
        seed=seed,
        there=[traffic(form, seed + peer, 5) for peer in range(2)],
        back=[traffic(form, seed + 50 + peer, 5) for peer in range(2)],
        faults=Faults(loss=0.1, duplicate=0.1, reorder=0.1, corrupt=0.1),
        stalls=(0.2, 0.2, 0.1),
        **options,
    )


def check_delivered(given: Network, found: Exchanged) -> None:
    """Every word came, once and in its order, and nothing is wrong; the bench parses each frame with its tag."""
    where = f"seed {given.seed}, {found.cycles} cycles"
    assert found.got == given.there, where
    assert sorted(map(str, found.words)) == sorted(str(word) for words in given.back for word in words), where
    assert found.faults == [(False, False, False)] * 2, where
    assert not found.malformed, where


@pytest.mark.parametrize("frames", [KEYED, WIDE], ids=["64 bit", "512 bit"])
def test_words_cross_a_bad_network_in_frames_with_tags(frames: FrameFormat) -> None:
    given = network(frames.word_bits, frames)
    check_delivered(given, given.run())


# ---------------------------------------------------------------------------------------------- without the key


def told(kind: FrameType, frames: FrameFormat = KEYED, **changes: Any) -> bytes:
    """A frame from the host."""
    values = {"kind": kind, "source": HOST, "target": OWN, "epoch": EPOCH, "digest": DIGEST}
    frame = Frame(**(values | {"sequence": 0, "acknowledge": 0} | changes))
    return frames.build(frame, address_of(HOST), address_of(OWN))


def alone(injected: Mapping[int, bytes], cycles: int, words: Sequence[Word] = ()) -> Exchanged:
    """The circuit, while nobody speaks but who is injected."""
    silent = [Word(1, 0, 0, 0, 0, 0)] * 100
    given = Network(
        frames=KEYED, timing=TIMING, seed=1, there=[list(words), []], back=[silent, silent], numbers=PEERS,
        injected=injected, latency=100_000, max_cycles=cycles,
    )  # fmt: skip
    return given.run()


def causes(found: Exchanged) -> dict[Cause, int]:
    """Counters that have counted."""
    return {cause: count for cause, count in found.dropped.items() if count}


ANOTHER, NONE = replace(KEYED, key=KEY ^ 1), replace(KEYED, key=None)
PAYLOAD = KEYED.payload_of([Burst(stream=1, words=(5, 6))])


def check_nothing_without_the_key(frames: FrameFormat) -> None:
    """Neither words, acknowledgements, greetings, refusals nor resets."""
    words = [Word(number, 0, number, 9, 0, 0) for number in range(3)]
    spoofed = [
        told(FrameType.DATA, frames, payload=PAYLOAD),
        told(FrameType.RESET, frames, epoch=EPOCH + 1),
        told(FrameType.HELLO, frames),
        told(FrameType.NAK, frames, acknowledge=1),
        told(FrameType.ACK, frames, acknowledge=1),
        told(FrameType.ACK, frames, acknowledge=9),
        told(FrameType.HELLO, frames, digest=DIGEST ^ 1),
    ]
    found = alone({20 + 60 * at: data for at, data in enumerate(spoofed)}, 480, words)
    assert causes(found) == {Cause.TAG: len(spoofed)}
    assert (found.words, found.epoch, found.resets) == ([], EPOCH, [])
    assert found.faults == [(False, False, False)] * 2
    # nobody was greeted
    assert {KEYED.parse(data).kind for data in found.sent} == {FrameType.HELLO}


@pytest.mark.parametrize("frames", [ANOTHER, NONE], ids=["another key", "no key"])
def test_a_frame_without_the_key_changes_nothing(frames: FrameFormat) -> None:
    check_nothing_without_the_key(frames)


def test_a_tag_in_a_cluster_without_a_key_is_counted() -> None:
    given = Network(
        frames=NONE, timing=TIMING, seed=1, there=[[], []], back=[[Word(1, 0, 0, 0, 0, 0)] * 9] * 2, numbers=PEERS,
        injected={20: told(FrameType.HELLO)}, latency=100_000, max_cycles=60,
    )  # fmt: skip
    assert causes(given.run()) == {Cause.TAG: 1}


def test_frames_that_come_faster_than_tags_are_made_wait() -> None:
    """Ten acknowledgements and a payload without a gap: each is judged, and the payload comes."""
    burst = [told(FrameType.ACK)] * 10
    found = alone({20: told(FrameType.DATA, payload=PAYLOAD), **{21 + at: data for at, data in enumerate(burst)}}, 460)
    assert causes(found) == {}
    assert [word.data for word in found.words] == [5, 6]


def test_each_length_is_dropped_for_the_cause_that_the_codec_gives() -> None:
    data = told(FrameType.DATA, payload=PAYLOAD)
    frames = [data[:length] for length in range(63, len(data))]
    frames += [data + bytes(extra) for extra in (1, 4, 8, 9)]
    expected: dict[Cause, int] = {}
    for frame in frames:
        with pytest.raises(Dropped) as dropped:
            KEYED.parse(frame)
        cause = Cause[dropped.value.cause.name]
        expected[cause] = expected.get(cause, 0) + 1
    found = alone({20 + 32 * at: frame for at, frame in enumerate(frames)}, 60 + 32 * len(frames))
    assert causes(found) == expected
    assert found.words == []


# ------------------------------------------------------------------------------------------- faults of the circuit

Check = Callable[[], None]


def check_a_good_network() -> None:
    """A few words there and back."""
    given = network(1, KEYED, max_cycles=900)
    given.faults, given.stalls = Faults(), (0.1, 0.3, 0.0)
    check_delivered(given, given.run())


FAULTS: dict[str, tuple[Check, tuple[Any, Any, str, dict[str, str]]]] = {
    "every tag is right": (
        lambda: check_nothing_without_the_key(ANOTHER),
        (tagging, tagging, "tag_judge", {"tag.payload != x.payload[end:COVERED_BITS]": "False"}),
    ),
    "a wrong tag is counted and heard": (
        lambda: check_nothing_without_the_key(ANOTHER),
        (receiver, receiver, "frame_verdict", {"claims.unkeyed or ending.untagged": "claims.unkeyed"}),
    ),
    "a frame starts too early": (
        check_a_good_network,
        (port, tagging, "append_tags", {"(ends == 0 and used >= start)": "used >= 2"}),
    ),
}


@pytest.mark.parametrize(("check", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_seeded_fault_is_seen(
    check: Check, fault: tuple[Any, Any, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Mutator(monkeypatch, tmp_path)(*fault)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("word_bits", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_the_verilog_of_a_port_with_a_key_is_clean(word_bits: int, tmp_path: Path) -> None:
    unit = EthernetPort(packer=packer_of(FrameFormat(word_bits=word_bits, mtu=576, key=KEY), 2), timing=TIMING)
    with unsimulated():
        module = convert(unit.build(ClockReset(), {n: Stream(w) for n, w in unit.streams.items()}), "port")
    path = module.write(tmp_path)
    lint_verilog([path], "port")
    compile_icarus([path], "port")
    check_yosys([path], "port")
