"""Go-back-N between two peers: every interleaving of a small case, random networks, and faults that must be seen."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdl.link.ethernet.frame import HOST, SEQUENCES, Drop, Dropped, Frame, FrameFormat, FrameType
from hdl.link.ethernet.protocol import Peer, Receiver, Rules, Sender
from hdl.simulate.models.ethernet import EthernetSwitch, Faults, chance, mixed
from tests.ethernet_devices import address, check_words

DIGEST = 0xC0FFEE11
WORD = 8
# three payloads of one beat, over two windows
PAYLOADS = tuple(bytes([k]) * WORD for k in range(3))
SMALL = Rules(window=2, replay_beats=4, word_bytes=WORD, timer_cycles=1, ack_cycles=1, sequences=8)


# ------------------------------------------------------------------------------------------ every interleaving


@dataclass(frozen=True)
class World:
    """Two peers of which the first sends, and every frame that was ever on its way: any of them may arrive now, again,
    or never."""

    a: Peer
    b: Peer
    to_b: frozenset[Frame] = frozenset()
    to_a: frozenset[Frame] = frozenset()
    offered: int = 0
    taken: tuple[bytes, ...] = ()


def settled(peer: Peer, now: int) -> Peer:
    """With time begun anew at 0, and tries forgotten, so that there are few states."""

    def earlier(at: int | None) -> int | None:
        return None if at is None else max(0, at - now)

    sender = replace(peer.sender, tries=0)
    return replace(peer, sender=sender, resend_at=earlier(peer.resend_at), ack_at=earlier(peer.ack_at), hello_at=0)


def start(first: int = 6) -> World:
    """Peers that know each other; the sequence number goes round on its third frame."""
    sender, receiver = Sender(oldest=first, cursor=first, sent=first, next=first), Receiver(expected=first)
    a = Peer(number=0, other=1, epoch=5, digest=DIGEST, sender=sender, greeted=True)
    return World(a, Peer(number=1, other=0, epoch=5, digest=DIGEST, receiver=receiver, greeted=True))


def successors(world: World) -> Iterator[World]:
    """Every world one step on."""
    a, b = world.a, world.b
    if world.offered < len(PAYLOADS) and a.accepts(PAYLOADS[world.offered], SMALL):
        yield replace(world, a=a.offered(PAYLOADS[world.offered], SMALL), offered=world.offered + 1)
    for now in (0, 1):
        after, frame = a.speak(now, SMALL)
        yield replace(world, a=settled(after, now), to_b=world.to_b | ({frame} if frame else set()))
        after, frame = b.speak(now, SMALL)
        yield replace(world, b=settled(after, now), to_a=world.to_a | ({frame} if frame else set()))
    for frame in world.to_b:
        after, heard = b.hear(frame, 0, SMALL)
        taken = world.taken if heard.payload is None else (*world.taken, heard.payload)
        yield replace(world, b=settled(after, 0), taken=taken)
    for frame in world.to_a:
        yield replace(world, a=settled(a.hear(frame, 0, SMALL)[0], 0))


def check_every_interleaving() -> int:
    """Every reachable world has taken a beginning of what was offered, sends what it sent before, claims nothing, and,
    once the network is a cable, comes to its end within two timers.  The number of worlds."""
    first = start()
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        assert world.taken == PAYLOADS[: len(world.taken)], "order of payloads"
        assert len(world.a.sender.payloads) <= SMALL.window, "window"
        assert not world.a.unsent, "acknowledgement of what was never sent"
        told = {(frame.sequence, frame.payload) for frame in world.to_b if frame.kind is FrameType.DATA}
        assert len({sequence for sequence, _ in told}) == len(told), "sent again as it was"
        for after in successors(world):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    for world in seen:
        check_comes_to_its_end(world)
    return len(seen)


def check_comes_to_its_end(world: World) -> None:
    """Over a cable of a cycle, from here on."""
    rules = replace(SMALL, timer_cycles=8, ack_cycles=2)
    a, b, taken, offered = world.a, world.b, list(world.taken), world.offered
    to_a: Frame | None = None
    to_b: Frame | None = None
    for now in range(2 * rules.timer_cycles + 8):
        if offered < len(PAYLOADS) and a.accepts(PAYLOADS[offered], rules):
            a, offered = a.offered(PAYLOADS[offered], rules), offered + 1
        if to_a is not None:
            a, _ = a.hear(to_a, now, rules)
        if to_b is not None:
            b, heard = b.hear(to_b, now, rules)
            taken += [] if heard.payload is None else [heard.payload]
        a, to_b = a.speak(now, rules)
        b, to_a = b.speak(now, rules)
    assert tuple(taken) == PAYLOADS, "delivered within two timers"
    assert not a.sender.payloads, "acknowledged within two timers"


def test_every_interleaving_keeps_the_order_and_comes_to_its_end() -> None:
    # as many as there are: fewer would mean that something is not explored any more
    assert check_every_interleaving() > 400


# ------------------------------------------------------------------------------------------------ a network

FORM = FrameFormat(word_bits=64, mtu=576)
RULES = Rules(window=8, replay_beats=64, word_bytes=WORD, timer_cycles=120, ack_cycles=30)
PORTS = {address(number).mac: number for number in range(3)}


def lossy(seed: int, **faults: float) -> EthernetSwitch:
    return EthernetSwitch(ports=PORTS, latency=12, faults=Faults(**faults), seed=seed)  # type: ignore[arg-type]


def check_a_bad_network() -> None:
    """Words, order and credits over a network that loses, doubles, reorders and corrupts one frame in twenty each."""
    for seed in range(3):
        rates = {"loss": 0.05, "duplicate": 0.05, "reorder": 0.05, "corrupt": 0.05}
        net = check_words(lossy(seed, **rates), FORM, RULES, seed=seed)
        befallen = sum(net.switch.counts.values(), Counter())
        assert min(befallen[what] for what in ("lost", "doubled", "reordered", "corrupted")) > 0


def test_words_and_credits_survive_a_bad_network() -> None:
    check_a_bad_network()


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([64, 512]),
    st.sampled_from([0.0, 0.001, 0.1]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.3]),
    st.booleans(),
)
def test_any_network_keeps_words_and_credits(
    seed: int, word_bits: int, loss: float, duplicate: float, reorder: float, keyed: bool
) -> None:
    form = FrameFormat(word_bits=word_bits, mtu=1500, key=7 if keyed else None)
    rules = replace(RULES, word_bytes=word_bits // 8)
    check_words(lossy(seed, loss=loss, duplicate=duplicate, reorder=reorder), form, rules, seed=seed)


def test_a_cable_that_was_pulled_costs_time_and_nothing_else() -> None:
    down = EthernetSwitch(ports=PORTS, latency=12, faults=Faults(down=((1, 300, 2300),)), seed=1)
    net = check_words(down, FORM, RULES, seed=1)
    assert net.switch.counts[0, 1]["down"]
    assert net.switch.counts[1, 0]["down"]
    assert not net.switch.counts[0, 2]["down"]


def test_without_faults_nothing_is_sent_twice() -> None:
    net = check_words(lossy(1), FORM, RULES, seed=1)
    assert sum((device.drops for device in net.devices), Counter()) == Counter()
    assert all(device.frames["NAK"] == 0 for device in net.devices)


# ------------------------------------------------------------------------------------------------ single steps


def pair() -> tuple[Peer, Peer]:
    a = Peer(number=0, other=1, epoch=5, digest=DIGEST, greeted=True)
    return a, Peer(number=1, other=0, epoch=5, digest=DIGEST, greeted=True)


def told(peer: Peer, kind: FrameType, **values: Any) -> Frame:
    """A frame as the other end of a peer would send."""
    base: dict[str, Any] = {"epoch": peer.epoch, "digest": peer.digest, "sequence": 0, "acknowledge": 0}
    return Frame(kind=kind, source=peer.other, target=peer.number, **(base | values))


def sending(count: int, rules: Rules) -> tuple[Peer, list[Frame]]:
    """A peer that has sent so many frames."""
    peer, sent = pair()[0], []
    for k in range(count):
        peer, frame = peer.offered(bytes([k]) * WORD, rules).speak(0, rules)
        assert frame is not None
        sent.append(frame)
    return peer, sent


def check_acknowledgement_of_the_unsent() -> None:
    peer, _ = sending(2, RULES)
    peer = peer.offered(PAYLOADS[2], RULES)
    after, _ = peer.hear(told(peer, FrameType.ACK, acknowledge=3), 0, RULES)
    assert after.unsent
    assert after.sender == peer.sender
    after, _ = peer.hear(told(peer, FrameType.ACK, acknowledge=2), 0, RULES)
    assert not after.unsent
    assert len(after.sender.payloads) == 1


def check_stale_epochs() -> None:
    _, sent = sending(2, RULES)
    other = pair()[1].restarted(6)
    for frame in sent:
        other, heard = other.hear(frame, 0, RULES)
        assert heard.cause is Drop.EPOCH
        assert heard.payload is None
    assert other == pair()[1].restarted(6)


def check_echoes_of_a_nak() -> None:
    """However often a gap is told of, what is on its way is sent again once."""
    peer, _ = sending(6, RULES)
    again = 0
    for _ in range(10):
        peer, _ = peer.hear(told(peer, FrameType.NAK, acknowledge=2), 0, RULES)
        peer, frame = peer.speak(0, RULES)
        again += frame is not None
    assert again == 4


def check_one_nak_a_gap() -> None:
    _, sent = sending(6, RULES)
    other, naks = pair()[1], 0
    for frame in sent[1:]:
        other, _ = other.hear(frame, 0, RULES)
        other, answer = other.speak(0, RULES)
        naks += answer is not None and answer.kind is FrameType.NAK
    assert naks == 1


def check_replay_region() -> None:
    """Frames of different lengths never hold more beats than there are."""
    rng, peer = random.Random(1), pair()[0]
    for _ in range(300):
        payload = bytes(WORD * rng.randrange(1, 40))
        if peer.accepts(payload, RULES):
            peer = peer.offered(payload, RULES)
        held = sum(len(frame) for frame in peer.sender.payloads) // WORD
        assert held <= RULES.replay_beats, "beats held"
        peer, _ = peer.speak(0, RULES)
        oldest = (peer.sender.oldest + rng.randrange(2)) % SEQUENCES
        peer, _ = peer.hear(told(peer, FrameType.ACK, acknowledge=oldest), 0, RULES)


@pytest.mark.parametrize(
    "check",
    [
        check_acknowledgement_of_the_unsent,
        check_stale_epochs,
        check_echoes_of_a_nak,
        check_one_nak_a_gap,
        check_replay_region,
    ],
)
def test_a_single_step(check: Callable[[], None]) -> None:
    check()


def test_a_peer_of_another_plan_is_named_and_not_heard() -> None:
    a, _ = pair()
    after, heard = a.hear(told(a, FrameType.HELLO, digest=1), 0, RULES)
    assert heard.cause is Drop.DIGEST
    assert after == replace(a, stranger=True)


def test_a_frame_for_another_device_changes_nothing() -> None:
    a, _ = pair()
    for wrong in ({"source": 2}, {"target": 3}):
        after, heard = a.hear(replace(told(a, FrameType.DATA, payload=PAYLOADS[0]), **wrong), 0, RULES)
        assert (after, heard.cause) == (a, Drop.ADDRESS)


def test_peers_greet_each_other_before_they_send() -> None:
    a, b = (Peer(number=k, other=1 - k, epoch=0, digest=DIGEST) for k in range(2))
    a, hello = a.offered(PAYLOADS[0], RULES).speak(0, RULES)
    assert hello is not None
    assert hello.kind is FrameType.HELLO
    # lost; it comes again after the timer
    a, nothing = a.speak(RULES.timer_cycles - 1, RULES)
    assert nothing is None
    a, hello = a.speak(RULES.timer_cycles, RULES)
    assert hello is not None
    b, _ = b.hear(hello, 0, RULES)
    b, ready = b.speak(0, RULES)
    assert ready is not None
    assert ready.kind is FrameType.READY
    a, _ = a.hear(ready, 0, RULES)
    a, data = a.speak(0, RULES)
    assert data is not None
    assert data.kind is FrameType.DATA
    b, heard = b.hear(data, 0, RULES)
    assert heard.payload == PAYLOADS[0]


def test_a_peer_that_never_answers_is_lost_after_its_retries() -> None:
    rules = replace(RULES, retries=3)
    peer, _ = sending(2, rules)
    sent = []
    for now in range(1, 10 * rules.timer_cycles):
        peer, frame = peer.speak(now, rules)
        sent += [] if frame is None else [frame.sequence]
    assert sent == [0, 1] * 3
    assert peer.lost
    assert not peer.accepts(PAYLOADS[0], rules)


def test_only_the_host_resets_and_only_to_a_later_epoch() -> None:
    device = Peer(number=1, other=HOST, epoch=0xFFFF, digest=DIGEST)
    assert device.hear(told(device, FrameType.RESET, epoch=0), 0, RULES)[1].reset == 0
    assert device.hear(told(device, FrameType.RESET), 0, RULES)[1].cause is Drop.EPOCH
    assert device.hear(told(device, FrameType.RESET, epoch=0xFFFE), 0, RULES)[1].cause is Drop.EPOCH
    assert device.hear(told(device, FrameType.RESET, epoch=0, digest=1), 0, RULES)[1].cause is Drop.DIGEST
    a, _ = pair()
    assert a.hear(told(a, FrameType.RESET, epoch=6), 0, RULES)[1].cause is Drop.ADDRESS


def test_control_is_handed_on_and_takes_no_number() -> None:
    device = Peer(number=1, other=HOST, epoch=1, digest=DIGEST)
    after, heard = device.hear(told(device, FrameType.CONTROL, payload=b"counters"), 0, RULES)
    assert heard.payload == b"counters"
    assert after.receiver == device.receiver


# ------------------------------------------------------------------------------------------------ seeded faults

Patch = Callable[[pytest.MonkeyPatch], None]


def unsent_believed(patch: pytest.MonkeyPatch) -> None:
    def acknowledged(self: Sender, number: int, rules: Rules) -> Sender:
        count = rules.after(number, self.oldest)
        return replace(self, oldest=number, cursor=number, payloads=self.payloads[count:])

    patch.setattr(Sender, "acknowledged", acknowledged)


def acknowledged_too_early(patch: pytest.MonkeyPatch) -> None:
    right = Peer._said

    def said(self: Peer, kind: FrameType, after: Peer, payload: bytes = b"") -> tuple[Peer, Frame]:
        peer, frame = right(self, kind, after, payload)
        return peer, replace(frame, acknowledge=(frame.acknowledge + 1) % SMALL.sequences)

    patch.setattr(Peer, "_said", said)


def window_off_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "accepts", lambda self, _, rules: len(self.payloads) <= rules.window)


def crc_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FrameFormat, "trailer", lambda *_: bytes(4))


def stale_epoch_accepted(patch: pytest.MonkeyPatch) -> None:
    right = Peer.hear
    patch.setattr(Peer, "hear", lambda self, frame, *rest: right(self, replace(frame, epoch=self.epoch), *rest))


def every_nak_heeded(patch: pytest.MonkeyPatch) -> None:
    right = Sender.refused

    def refused(self: Sender, number: int, rules: Rules) -> Sender:
        return right(replace(self, went_back=False), number, rules)

    patch.setattr(Sender, "refused", refused)


def every_gap_told(patch: pytest.MonkeyPatch) -> None:
    right = Receiver.received
    patch.setattr(Receiver, "received", lambda self, *rest: right(replace(self, complained=False), *rest))


def credits_lost_with_a_frame(patch: pytest.MonkeyPatch) -> None:
    """What is sent again has the words, and no credits."""
    right = Sender.payload

    def payload(self: Sender, sequence: int, rules: Rules) -> bytes:
        held = right(self, sequence, rules)
        bursts = FORM.bursts_of(held) if len(held) > WORD else ()
        if sequence == self.sent or not any(burst.words for burst in bursts):
            return held
        return FORM.payload_of([burst for burst in bursts if burst.words])

    patch.setattr(Sender, "payload", payload)


def replay_region_overrun(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "accepts", lambda self, _, rules: len(self.payloads) < rules.window)


def duplicate_taken_twice(patch: pytest.MonkeyPatch) -> None:
    def received(self: Receiver, sequence: int, rules: Rules) -> tuple[Receiver, Drop | None]:
        after = (sequence + 1) % rules.sequences
        return Receiver(expected=after, owed=self.owed + 1), None

    patch.setattr(Receiver, "received", received)


def timer_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "expired", lambda self: self)


def cursor_left_behind(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement of what is being sent again leaves the cursor where it was."""
    right = Sender.acknowledged

    def acknowledged(self: Sender, number: int, rules: Rules) -> Sender:
        return replace(right(self, number, rules), cursor=self.cursor)

    patch.setattr(Sender, "acknowledged", acknowledged)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (unsent_believed, check_acknowledgement_of_the_unsent),
        (acknowledged_too_early, check_every_interleaving),
        (window_off_by_one, check_every_interleaving),
        (crc_not_checked, check_a_bad_network),
        (stale_epoch_accepted, check_stale_epochs),
        (every_nak_heeded, check_echoes_of_a_nak),
        (every_gap_told, check_one_nak_a_gap),
        (credits_lost_with_a_frame, check_a_bad_network),
        (replay_region_overrun, check_replay_region),
        (duplicate_taken_twice, check_every_interleaving),
        (timer_forgotten, check_every_interleaving),
        (cursor_left_behind, check_every_interleaving),
    ],
    ids=lambda function: function.__name__,
)
def test_a_seeded_fault_is_seen(fault: Patch, check: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, Dropped, KeyError, IndexError)):
        check()


# ------------------------------------------------------------------------------------------------ the switch


def test_random_numbers_are_those_of_splitmix64() -> None:
    # the first outputs of the reference implementation from state 1234567
    state, found = 1234567, []
    for _ in range(3):
        found.append(mixed(state))
        state = (state + 0x9E3779B97F4A7C15) % (1 << 64)
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert chance(1, 0, 0, 0) == mixed(mixed(mixed(mixed(1) ^ 0) ^ 0) ^ 0)


def test_a_switch_gives_every_frame_its_port_and_its_time() -> None:
    switch = EthernetSwitch(ports={5: 0, 6: 1, 7: 2}, latency=10, bits_per_cycle=Fraction(64))
    frame = (6).to_bytes(6, "big") + bytes(62)
    switch.enter(0, frame, 0)
    switch.enter(2, frame, 0)
    # 68 bytes and 24 beside them at 8 bytes a cycle
    assert switch.leave(21) == []
    assert switch.leave(22) == [(1, frame)]
    assert switch.leave(33) == [(1, frame)]
    switch.enter(0, bytes(68), 40)
    assert [port for port, _ in switch.leave(100)] == [1, 2]
    assert switch.idle


def test_faults_come_as_often_as_told_and_the_same_again() -> None:
    def run() -> tuple[dict[tuple[int, int], Counter[str]], list[bytes]]:
        rates = Faults(loss=0.1, duplicate=0.2, reorder=0.1, corrupt=0.3)
        switch = EthernetSwitch(ports={5: 0, 6: 1}, latency=10, faults=rates, seed=3)
        found = []
        for now in range(2000):
            switch.enter(0, (6).to_bytes(6, "big") + now.to_bytes(62, "big"), now)
            found += [frame for _, frame in switch.leave(now)]
        return switch.counts, found

    counts, found = run()
    assert run() == (counts, found)
    count = counts[0, 1]
    for what, share in (("lost", 0.1), ("doubled", 0.18), ("reordered", 0.09), ("corrupted", 0.27)):
        assert abs(count[what] - 2000 * share) < 5 * (2000 * share) ** 0.5, what
    assert len(set(found)) < len(found)


@pytest.mark.parametrize("wrong", [{"loss": -0.1}, {"corrupt": 1.5}])
def test_probabilities_that_are_none_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"a probability is 0 to 1$"):
        Faults(**wrong)  # type: ignore[arg-type]
