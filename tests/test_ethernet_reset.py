"""HELLO, READY and RESET: every state that the host and two devices can reach, and the circuit that begins anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hdl.link.ethernet import anew, claims, port, receiver
from hdl.link.ethernet.frame import HOST, Burst, Drop, Frame, FrameFormat, FrameType
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.protocol import EPOCHS, Device, Heard, Peer, Rules
from hdl.link.ethernet.receiver import Cause
from hdl.link.format import Word
from hdl.simulate.models.ethernet import Faults
from tests.ethernet_support import DIGEST, EPOCH, OWN, Exchanged, Network, address_of, form_of, traffic
from tests.mutated import Mutator

WORD = 8
RULES = Rules(window=2, replay_beats=4, word_bytes=WORD, timer_cycles=1, ack_cycles=1)
# places of the nodes
NUMBERS = (HOST, 1, 2)
HOST_AT, A, B = range(3)

# ------------------------------------------------------------------------------------------ every interleaving

Nodes = tuple[Device, Device, Device]


@dataclass(frozen=True)
class World:
    """The host and two devices, and every frame that was ever on its way: any of them may arrive now, again, or
    never."""

    nodes: Nodes
    frames: frozenset[Frame] = frozenset()


@dataclass(frozen=True)
class Case:
    """Who speaks with whom, who sends a payload to whom, and to which epochs the host resets from 0 on; where it does
    not speak itself, its resets may arrive whenever they like."""

    speaks: frozenset[tuple[int, int]]
    sends: frozenset[tuple[int, int]]
    resets: tuple[int, ...]

    def begun(self, place: int, epoch: int) -> Device:
        """A node as after reset, with what it has to send."""
        peers = []
        for other in range(3):
            if other != place:
                peer = Peer(number=NUMBERS[place], other=NUMBERS[other], epoch=epoch, digest=DIGEST)
                sends = (place, other) in self.sends
                peers.append(peer.offered(payload_of(place, epoch), RULES) if sends else peer)
        return Device(peers=tuple(peers))

    def first(self) -> World:
        """Devices in epoch 0."""
        last = self.resets[-1]
        resets = {reset_frame(number, epoch) for number in NUMBERS[1:] for epoch in self.resets}
        world = World((self.begun(HOST_AT, last), self.begun(A, 0), self.begun(B, 0)), frozenset(resets))
        for place in range(3):
            world = self.told_by(world, place, 0)
        return world

    def told_by(self, world: World, place: int, now: int) -> World:
        """After all that a node has to say at once.  To say it later is to have it arrive later, which it may."""
        device, frames = world.nodes[place], set(world.frames)
        for at, first in enumerate(device.peers):
            if (place, NUMBERS.index(first.other)) in self.speaks:
                peer, said = spoken(first, now, RULES)
                frames.update(said)
                device = device.with_peer(at, settled(peer, now))
        return World(with_node(world.nodes, place, device), frozenset(frames))

    def heard(self, world: World, frame: Frame) -> World:
        """After a frame arrives."""
        place = NUMBERS.index(frame.target)
        before = world.nodes[place]
        after, found = self.taken(before, place, frame, 0, RULES)
        if found.payload is not None:
            assert found.payload == payload_of(NUMBERS.index(frame.source), before.epoch), "a word of another epoch"
        after = Device(peers=tuple(settled(peer, 0) for peer in after.peers))
        return (
            world
            if after == before
            else self.told_by(World(with_node(world.nodes, place, after), world.frames), place, 0)
        )

    def taken(self, node: Device, place: int, frame: Frame, now: int, rules: Rules) -> tuple[Device, Heard]:
        """A node after a frame; one that is reset has something to send again."""
        after, found = node.hear(frame, now, rules)
        if found.reset is None:
            return after, found
        assert 0 < (found.reset - node.epoch) % EPOCHS < EPOCHS // 2, "back to an epoch that has been"
        assert frame.source == HOST, "reset by a device"
        return self.begun(place, found.reset), found

    def successors(self, world: World) -> Iterator[World]:
        """Every world one step on."""
        for frame in world.frames:
            yield self.heard(world, frame)
        for place in range(3):
            yield self.told_by(world, place, 1)

    def check(self) -> int:
        """Every reachable world takes words of its own epoch only, and, once the network is a cable, comes to the last
        epoch and delivers its words within two timers.  The number of worlds."""
        first = self.first()
        seen, waiting = {first}, [first]
        while waiting:
            for after in self.successors(waiting.pop()):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
        for nodes in {world.nodes for world in seen}:
            self.check_comes_to_its_end(nodes)
        return len(seen)

    def check_comes_to_its_end(self, nodes: Nodes) -> None:
        """Over a cable of a cycle, from here on; the host resets until it is answered."""
        rules = replace(RULES, timer_cycles=8, ack_cycles=2)
        last = self.resets[-1]
        under_way: list[Frame] = []
        for now in range(2 * rules.timer_cycles + 8):
            if now % rules.timer_cycles == 0:
                under_way += [reset_frame(number, last) for number in NUMBERS[1:]]
            for frame in under_way:
                place = NUMBERS.index(frame.target)
                after, _ = self.taken(nodes[place], place, frame, now, rules)
                nodes = with_node(nodes, place, after)
            under_way = []
            for place, device in enumerate(nodes):
                for at, first in enumerate(device.peers):
                    if (place, NUMBERS.index(first.other)) in self.speaks:
                        peer, frame_or_none = first.speak(now, rules)
                        under_way += [] if frame_or_none is None else [frame_or_none]
                        nodes = with_node(nodes, place, nodes[place].with_peer(at, peer))
        for place, device in enumerate(nodes):
            assert device.epoch == last, "the last epoch"
            for peer in device.peers:
                if (place, NUMBERS.index(peer.other)) in self.speaks:
                    assert peer.greeted, "greeted within two timers"
                    assert not peer.sender.payloads, "acknowledged within two timers"
                    assert (peer.unsent, peer.stranger, peer.lost) == (False, False, False)


def payload_of(source: int, epoch: int) -> bytes:
    """What a device sends in an epoch."""
    return bytes([source, epoch]) * (WORD // 2)


def reset_frame(number: int, epoch: int, **changes: Any) -> Frame:
    """RESET, as the host says it."""
    values = {"kind": FrameType.RESET, "source": HOST, "target": number, "epoch": epoch, "digest": DIGEST}
    return Frame(**(values | {"sequence": 0, "acknowledge": 0} | changes))


def spoken(peer: Peer, now: int, rules: Rules) -> tuple[Peer, list[Frame]]:
    """All that a peer says at once."""
    said = []
    while True:
        peer, frame = peer.speak(now, rules)
        if frame is None:
            return peer, said
        said.append(frame)


def settled(peer: Peer, now: int) -> Peer:
    """With time begun anew, and tries forgotten, so that there are few states."""

    def earlier(at: int | None) -> int | None:
        return None if at is None else max(0, at - now)

    sender = replace(peer.sender, tries=0)
    return replace(peer, sender=sender, resend_at=earlier(peer.resend_at), ack_at=earlier(peer.ack_at), hello_at=0)


def with_node(nodes: Nodes, place: int, node: Device) -> Nodes:
    """With another state of one of them."""
    first, second, third = (node if at == place else other for at, other in enumerate(nodes))
    return first, second, third


EVERYBODY = frozenset((a, b) for a in range(3) for b in range(3) if a != b)
GREETINGS = Case(EVERYBODY, frozenset(), (1,))
TWICE = Case(frozenset({(A, B), (B, A)}), frozenset({(A, B)}), (1, 2))


@pytest.mark.parametrize(
    ("case", "least"), [(GREETINGS, 900), (TWICE, 3000)], ids=["the host and two devices", "two resets"]
)
def test_every_interleaving_of_greetings_and_resets_ends_in_the_last_epoch(case: Case, least: int) -> None:
    # as many as there are: fewer would mean that something is not explored any more
    assert case.check() > least


def stale_epoch_accepted(patch: pytest.MonkeyPatch) -> None:
    right = Peer.hear

    def hear(self: Peer, frame: Frame, *rest: Any) -> tuple[Peer, Heard]:
        return right(self, frame if frame.kind is FrameType.RESET else replace(frame, epoch=self.epoch), *rest)

    patch.setattr(Peer, "hear", hear)


def earlier_reset_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Peer, "_reset", lambda _, frame: Heard(reset=frame.epoch))


def hello_unanswered(patch: pytest.MonkeyPatch) -> None:
    """HELLO greets, and no READY comes of it."""
    right = Peer.hear

    def hear(self: Peer, *rest: Any) -> tuple[Peer, Heard]:
        after, found = right(self, *rest)
        return replace(after, ready=False), found

    patch.setattr(Peer, "hear", hear)


@pytest.mark.parametrize(
    ("fault", "case"),
    [(stale_epoch_accepted, TWICE), (earlier_reset_accepted, TWICE), (hello_unanswered, GREETINGS)],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_seeded_fault_of_the_epoch_is_seen(
    fault: Callable[[pytest.MonkeyPatch], None], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        case.check()


def test_a_reset_of_another_plan_is_refused_and_named() -> None:
    device = GREETINGS.begun(A, 0)
    after, found = device.hear(reset_frame(1, 1, digest=DIGEST ^ 1), 0, RULES)
    assert (found.cause, after.epoch, after.peers[0].stranger) == (Drop.DIGEST, 0, True)


# --------------------------------------------------------------------------------------------------- the circuit

NARROW = FrameFormat(word_bits=64, mtu=576)
TIMING = Timing(window=4, timer_cycles=300, ack_cycles=60)
PEERS = (HOST, OWN + 2)


def sent_by_host(**changes: Any) -> bytes:
    """RESET to the circuit."""
    frame = reset_frame(OWN, changes.pop("epoch", EPOCH + 1), **changes)
    return NARROW.build(frame, address_of(frame.source), address_of(OWN))


def begins_anew(at: int, seed: int, runs: int = 5, **options: Any) -> tuple[Network, Exchanged]:
    """The circuit, its host and a device, reset in mid traffic, each at a time of its own."""
    form = form_of(NARROW)
    given = Network(
        frames=NARROW,
        timing=TIMING,
        seed=seed,
        there=[traffic(form, seed + peer, runs) for peer in range(2)],
        back=[traffic(form, seed + 50 + peer, runs) for peer in range(2)],
        numbers=PEERS,
        injected={at: sent_by_host()},
        restarts={at - 40: {0: EPOCH + 1}, at + 120: {1: EPOCH + 1}},
        stalls=(0.1, 0.2, 0.0),
        max_cycles=6000,
        rest=30,
        **options,
    )
    return given, given.run()


def check_begins_anew(at: int = 230, seed: int = 3, **options: Any) -> Exchanged:
    """Every word of the new epoch comes, once and in order, and none of the old one."""
    given, found = begins_anew(at, seed, **options)
    where = f"seed {seed}, {found.cycles} cycles"
    assert found.epoch == EPOCH + 1, where
    ((since, until),) = found.resets
    assert until - since >= anew.RESET_CYCLES, where
    for peer, words in enumerate(given.there):
        assert found.got[peer] == words, f"to peer {peer}, {where}"
    assert sorted(map(str, found.words)) == sorted(str(word) for words in given.back for word in words), where
    assert found.faults == [(False, False, False)] * 2, where
    assert not found.malformed, where
    epochs = [NARROW.parse(data).epoch for data in found.sent]
    assert epochs == sorted(epochs), where
    assert set(epochs) == {EPOCH, EPOCH + 1}, where
    return found


def test_the_host_resets_a_device_in_mid_traffic() -> None:
    found = check_begins_anew()
    # the other device was not reset yet
    assert found.dropped[Cause.EPOCH] > 0


def test_a_reset_survives_a_bad_network() -> None:
    given, found = begins_anew(260, 5, faults=Faults(loss=0.1, duplicate=0.1, reorder=0.1, corrupt=0.1))
    assert found.got == given.there
    assert found.epoch == EPOCH + 1


REFUSED = {
    "by a device": ({"source": OWN + 2}, Cause.ADDRESS),
    "to the epoch that is": ({"epoch": EPOCH}, Cause.EPOCH),
    "to one that has been": ({"epoch": EPOCH - 1}, Cause.EPOCH),
    "to one half a round ahead": ({"epoch": EPOCH + EPOCHS // 2}, Cause.EPOCH),
    "of another plan": ({"digest": DIGEST ^ 1}, Cause.DIGEST),
}


def alone(
    injected: dict[int, bytes], cycles: int, words: Sequence[Word] = (), untaken: float = 0.0, late: float = 0.0
) -> Exchanged:
    """The circuit, while nobody speaks but who is injected."""
    silent = [Word(1, 0, 0, 0, 0, 0)] * 100
    given = Network(
        frames=NARROW, timing=TIMING, seed=1, there=[list(words), []], back=[silent, silent], numbers=PEERS,
        injected=injected, latency=100_000, max_cycles=cycles, stalls=(late, 0.0, untaken), spare=400,
    )  # fmt: skip
    return given.run()


@pytest.mark.parametrize(("changes", "cause"), REFUSED.values(), ids=REFUSED)
def test_a_reset_is_refused_and_counted(changes: dict[str, Any], cause: Cause) -> None:
    found = alone({20: sent_by_host(**changes)}, 60)
    assert {cause: count for cause, count in found.dropped.items() if count} == {cause: 1}
    assert (found.epoch, found.resets) == (EPOCH, [])
    assert found.faults[0] == (False, cause is Cause.DIGEST, False)


def test_a_reset_acts_at_once_and_once() -> None:
    """Five cycles behind its last beat, and one for the register; the second one is of an epoch that is."""
    found = alone({20: sent_by_host(), 40: sent_by_host()}, 220)
    ((since, until),) = found.resets
    assert until - since == anew.RESET_CYCLES
    assert {cause: count for cause, count in found.dropped.items() if count} == {Cause.EPOCH: 1}
    kinds = [(frame.kind, frame.target, frame.epoch) for frame in map(NARROW.parse, found.sent)]
    greetings = [(FrameType.HELLO, number, epoch) for epoch in (EPOCH, EPOCH + 1) for number in PEERS]
    assert sorted(kinds) == sorted(greetings)


def from_host(kind: FrameType, epoch: int = EPOCH, payload: bytes = b"", sequence: int = 0) -> bytes:
    """A frame from the host to the circuit."""
    frame = reset_frame(OWN, epoch, kind=kind, payload=payload, sequence=sequence)
    return NARROW.build(frame, address_of(HOST), address_of(OWN))


def check_frames_keep_their_epoch() -> None:
    """Frames that are chosen when the reset comes leave with the old epoch: none has the new one and old words."""
    # short frames, of which the next one waits while one is sent
    words = [Word(number, 0, number, 9, 0, 0) for number in range(40)]
    found = alone({100: from_host(FrameType.READY), 120: sent_by_host()}, 260, words, late=0.8)
    parsed = [NARROW.parse(data) for data in found.sent]
    assert any(frame.kind is FrameType.DATA for frame in parsed)
    # nobody has greeted the circuit in the new epoch
    assert {frame.kind for frame in parsed if frame.epoch == EPOCH + 1} == {FrameType.HELLO}
    assert [frame.epoch for frame in parsed] == sorted(frame.epoch for frame in parsed)


def check_stored_words_are_forgotten() -> None:
    """Words that nobody has taken yet are those of the old epoch, and so is a frame whose beats still come."""
    burst = Burst(stream=1, words=tuple(range(60)))
    first, second = (
        from_host(FrameType.DATA, payload=NARROW.payload_of([burst]), sequence=sequence) for sequence in range(2)
    )
    found = alone({20: first, 30: second, 60: sent_by_host()}, 400, untaken=1.0)
    assert found.words == []
    assert not found.malformed


def check_stale_epochs() -> None:
    """A frame of another epoch brings nothing."""
    data = from_host(FrameType.DATA, EPOCH - 1, NARROW.payload_of([Burst(stream=1, words=(1, 2))]))
    found = alone({20: data, 60: sent_by_host(), 160: from_host(FrameType.DATA, payload=data[64:88])}, 220)
    assert found.words == []
    assert found.dropped[Cause.EPOCH] == 2
    assert all(frame.acknowledge == 0 for frame in map(NARROW.parse, found.sent))


# ------------------------------------------------------------------------------------------- faults of the circuit

Check = Callable[[], None]
CHECKS: tuple[Check, ...] = (check_frames_keep_their_epoch, check_stored_words_are_forgotten, check_stale_epochs)
FAULTS: dict[str, tuple[Check, tuple[Any, Any, str, dict[str, str]]]] = {
    "old frames with the new epoch": (
        check_frames_keep_their_epoch,
        (port, anew, "begin_anew", {"epoch.next = told": "epoch.next = told\n            stamp.next = told"}),
    ),
    "words stay in the store": (
        check_stored_words_are_forgotten,
        (port, receiver, "receiver", {"frame_store(anew,": "frame_store(domain,"}),
    ),
    "words stay behind the store": (
        check_stored_words_are_forgotten,
        (port, receiver, "receiver", {"unpack_words(anew,": "unpack_words(domain,"}),
    ),
    "any epoch is heard": (
        check_stale_epochs,
        (claims, claims, "epoch_claims", {"second.epoch.next = ahead != 0": "second.epoch.next = False"}),
    ),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_of_a_reset(check: Check) -> None:
    check()


@pytest.mark.parametrize(("check", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_seeded_fault_of_the_circuit_is_seen(
    check: Check, fault: tuple[Any, Any, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Mutator(monkeypatch, tmp_path)(*fault)
    with pytest.raises(AssertionError):
        check()
