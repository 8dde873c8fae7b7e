"""Go-back-N between two peers, as pure state machines: the golden model of the transmit and receive circuits.

Every state is a frozen value; every step takes one and gives the next, so a test can explore all of them.  Time is a
count of cycles that the caller hands in.

* `Sender` numbers payloads, holds them until they are acknowledged, goes back to the oldest one.
* `Receiver` takes the frame that it expects and no other; a gap makes one NAK, whatever follows.
* `Peer` is both, with the timers, HELLO and READY, epoch and plan digest.  Its two steps are `hear`, for a frame that
  `FrameFormat.parse` let through, and `speak`, which says what to send now, if anything.

Of what `speak` may send it chooses, in this order: READY, HELLO, NAK, DATA, ACK.  Every frame acknowledges.

What is delivered is what was offered, each payload once and in its order, whatever the network loses, doubles and
reorders, while it keeps no frame for longer than 2³² others take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from hdl.link.ethernet.frame import HOST, SEQUENCES, Drop, Frame, FrameType

EPOCHS = 1 << 16
State = TypeVar("State")


def replace(state: State, **changes: Any) -> State:
    """The state with other values in these fields: as `dataclasses.replace`, in a seventh of its time, since the
    constructor, which checks nothing here, is not called.  A host makes some states for every frame."""
    after = object.__new__(type(state))
    after.__dict__.update(state.__dict__, **changes)
    return after


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What both ends of a pair agree on."""

    # frames on their way at most
    window: int
    # beats of payload that the sender holds at most: its region of the replay memory
    replay_beats: int
    # bytes of a beat
    word_bytes: int
    # cycles without progress after which all from the oldest are sent again, and HELLO: 4 round trips
    timer_cycles: int
    # cycles after which a frame is acknowledged by a frame of its own
    ack_cycles: int
    # times that the timer may run out without progress in between before the peer is lost
    retries: int = 64
    # sequence numbers
    sequences: int = SEQUENCES

    def after(self, number: int, other: int) -> int:
        """How far a sequence number is behind another one, going round."""
        return (number - other) % self.sequences

    def stale(self, number: int, other: int) -> bool:
        """Whether a sequence number is one of those before another."""
        return 0 < self.after(other, number) <= self.sequences // 2


@dataclass(frozen=True, kw_only=True)
class Sender:
    """The sending half towards one peer."""

    # oldest ≤ cursor ≤ sent ≤ next, going round: the first frame not acknowledged, the one to be transmitted next,
    # behind those that ever were, behind those accepted
    oldest: int = 0
    cursor: int = 0
    sent: int = 0
    next: int = 0
    # of the frames from oldest on
    payloads: tuple[bytes, ...] = ()
    # a NAK of the oldest was heeded: others of it are echoes
    went_back: bool = False
    # times that the timer ran out since the oldest moved
    tries: int = 0

    def accepts(self, payload: bytes, rules: Rules) -> bool:
        """Whether there is room for one more frame: in the window and in the replay memory."""
        held = sum(map(len, self.payloads)) + len(payload)
        return len(self.payloads) < rules.window and held <= rules.replay_beats * rules.word_bytes

    def accepted(self, payload: bytes, rules: Rules) -> Sender:
        """With one more frame."""
        return replace(self, next=(self.next + 1) % rules.sequences, payloads=(*self.payloads, payload))

    def payload(self, sequence: int, rules: Rules) -> bytes:
        """Of a frame that is held."""
        return self.payloads[rules.after(sequence, self.oldest)]

    def transmitted(self, rules: Rules) -> Sender:
        """The frame at the cursor is on its way."""
        cursor = (self.cursor + 1) % rules.sequences
        return replace(self, cursor=cursor, sent=cursor if self.cursor == self.sent else self.sent)

    def unsent(self, number: int, rules: Rules) -> bool:
        """Whether an acknowledgement is of frames that were never sent."""
        return rules.after(number, self.oldest) > rules.after(self.sent, self.oldest) and not rules.stale(
            number, self.oldest
        )

    def acknowledged(self, number: int, rules: Rules) -> Sender:
        """All frames before this one have arrived.  Stale numbers and those of frames never sent change nothing."""
        count = rules.after(number, self.oldest)
        if not 0 < count <= rules.after(self.sent, self.oldest):
            return self
        passed = rules.after(self.cursor, self.oldest) < count
        return replace(
            self,
            oldest=number,
            cursor=number if passed else self.cursor,
            payloads=self.payloads[count:],
            went_back=False,
            tries=0,
        )

    def refused(self, number: int, rules: Rules) -> Sender:
        """The peer expects this frame and saw a later one.  The first such word goes back; its echoes don't."""
        moved = self.acknowledged(number, rules)
        if number != moved.oldest or moved.cursor == moved.oldest or moved.went_back:
            return moved
        return replace(moved, cursor=moved.oldest, went_back=True)

    def expired(self) -> Sender:
        """The timer ran out: all from the oldest again."""
        return replace(self, cursor=self.oldest, went_back=False, tries=self.tries + 1)


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """The receiving half from one peer."""

    # the only sequence number that is taken
    expected: int = 0
    # this gap has made its NAK
    complained: bool = False
    # which has not been sent yet
    nak: bool = False
    # frames taken since the last acknowledgement
    owed: int = 0
    # the sender lacks an acknowledgement: it sent again what had arrived
    due: bool = False

    def received(self, sequence: int, rules: Rules) -> tuple[Receiver, Drop | None]:
        """After a DATA frame; None: it was taken."""
        if sequence == self.expected:
            return Receiver(expected=(sequence + 1) % rules.sequences, owed=self.owed + 1, due=self.due), None
        if rules.stale(sequence, self.expected):
            return replace(self, due=True), Drop.DUPLICATE
        return replace(self, complained=True, nak=self.nak or not self.complained), Drop.GAP

    def told(self) -> Receiver:
        """A frame that acknowledges is on its way."""
        return replace(self, owed=0, due=False)


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a frame brought."""

    # why it is not heard, or None
    cause: Drop | None = None
    # of a DATA frame that was taken, or of CONTROL
    payload: bytes | None = None
    # the host wants all to begin anew with this epoch
    reset: int | None = None


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One end of a pair of devices."""

    # numbers of this device and of the peer
    number: int
    other: int
    epoch: int
    digest: int
    sender: Sender = field(default_factory=Sender)
    receiver: Receiver = field(default_factory=Receiver)
    # a frame of this epoch and plan came: the peer is there
    greeted: bool = False
    # READY is to be sent
    ready: bool = False
    # sticky: the timer ran out too often; a HELLO of another plan came; frames were acknowledged that were never sent
    lost: bool = False
    stranger: bool = False
    unsent: bool = False
    # cycles at which the timer runs out, an acknowledgement is sent by itself, the next HELLO is sent
    resend_at: int | None = None
    ack_at: int | None = None
    hello_at: int = 0

    def accepts(self, payload: bytes, rules: Rules) -> bool:
        """Whether there is room for one more payload."""
        return not self.lost and self.sender.accepts(payload, rules)

    def offered(self, payload: bytes, rules: Rules) -> Peer:
        """With one more payload to send.

        Raises:
            ValueError: it has no room (`accepts`), or is empty."""
        if not payload or not self.accepts(payload, rules):
            raise ValueError(f"no room for a payload of {len(payload)} bytes")
        return replace(self, sender=self.sender.accepted(payload, rules))

    def restarted(self, epoch: int) -> Peer:
        """As after reset, in another epoch: nothing sent, nothing expected."""
        return Peer(number=self.number, other=self.other, epoch=epoch, digest=self.digest)

    # -------------------------------------------------------------------------------------------- hearing

    def hear(self, frame: Frame, now: int, rules: Rules) -> tuple[Peer, Heard]:
        """After a frame, whose CRC and tag are right, and what it brought.  A frame that is dropped changes no more
        than `stranger`, and one out of turn no more than what `Receiver.received` says."""
        if (frame.source, frame.target) != (self.other, self.number):
            return self, Heard(cause=Drop.ADDRESS)
        if frame.kind is FrameType.RESET:
            heard = self._reset(frame)
            return (replace(self, stranger=True) if heard.cause is Drop.DIGEST else self), heard
        if frame.epoch != self.epoch:
            return self, Heard(cause=Drop.EPOCH)
        if frame.digest != self.digest:
            return replace(self, stranger=True), Heard(cause=Drop.DIGEST)
        peer = replace(
            self,
            greeted=True,
            ready=self.ready or frame.kind is FrameType.HELLO,
            unsent=self.unsent or self.sender.unsent(frame.acknowledge, rules),
        )
        peer = peer._told_of(frame, now, rules)
        if frame.kind is FrameType.CONTROL:
            return peer, Heard(payload=frame.payload)
        return peer._taken(frame, now, rules) if frame.kind is FrameType.DATA else (peer, Heard())

    def _reset(self, frame: Frame) -> Heard:
        """Only the host's word counts, of the same plan and a later epoch."""
        if frame.source != HOST:
            return Heard(cause=Drop.ADDRESS)
        if not 0 < (frame.epoch - self.epoch) % EPOCHS < EPOCHS // 2:
            return Heard(cause=Drop.EPOCH)
        return Heard(reset=frame.epoch) if frame.digest == self.digest else Heard(cause=Drop.DIGEST)

    def _told_of(self, frame: Frame, now: int, rules: Rules) -> Peer:
        """After the acknowledgement that every frame carries."""
        refused = frame.kind is FrameType.NAK
        old = self.sender
        sender = old.refused(frame.acknowledge, rules) if refused else old.acknowledged(frame.acknowledge, rules)
        if sender.oldest == old.oldest:
            return replace(self, sender=sender)
        waiting = sender.sent != sender.oldest
        return replace(self, sender=sender, resend_at=now + rules.timer_cycles if waiting else None)

    def _taken(self, frame: Frame, now: int, rules: Rules) -> tuple[Peer, Heard]:
        """After a DATA frame."""
        receiver, cause = self.receiver.received(frame.sequence, rules)
        late = now + rules.ack_cycles if receiver.owed and self.ack_at is None else self.ack_at
        payload = frame.payload if cause is None else None
        return replace(self, receiver=receiver, ack_at=late), Heard(cause=cause, payload=payload)

    # -------------------------------------------------------------------------------------------- speaking

    def speak(self, now: int, rules: Rules) -> tuple[Peer, Frame | None]:
        """What the port sends now, when it is this peer's turn."""
        peer = self._timed(now, rules)
        if peer.ready:
            return peer._said(FrameType.READY, replace(peer, ready=False))
        if not peer.greeted:
            if now < peer.hello_at:
                return peer, None
            return peer._said(FrameType.HELLO, replace(peer, hello_at=now + rules.timer_cycles))
        if peer.receiver.nak:
            return peer._said(FrameType.NAK, replace(peer, receiver=replace(peer.receiver, nak=False)))
        sender = peer.sender
        if sender.cursor != sender.next and not peer.lost:
            after = replace(peer, sender=sender.transmitted(rules))
            if sender.cursor == sender.oldest:
                after = replace(after, resend_at=now + rules.timer_cycles)
            return peer._said(FrameType.DATA, after, sender.payload(sender.cursor, rules))
        half = 2 * peer.receiver.owed >= rules.window
        late = peer.ack_at is not None and now >= peer.ack_at
        if peer.receiver.due or half or late:
            return peer._said(FrameType.ACK, peer)
        return peer, None

    def _timed(self, now: int, rules: Rules) -> Peer:
        """After the timer, if it has run out."""
        if self.resend_at is None or now < self.resend_at or self.lost:
            return self
        if self.sender.tries == rules.retries:
            return replace(self, lost=True, resend_at=None)
        return replace(self, sender=self.sender.expired(), resend_at=now + rules.timer_cycles)

    def _said(self, kind: FrameType, after: Peer, payload: bytes = b"") -> tuple[Peer, Frame]:
        """The frame of this state, and the state after it."""
        frame = Frame(
            kind=kind,
            source=self.number,
            target=self.other,
            epoch=self.epoch,
            sequence=self.sender.cursor if kind is FrameType.DATA else self.sender.next,
            acknowledge=self.receiver.expected,
            digest=self.digest,
            payload=payload,
        )
        return replace(after, receiver=after.receiver.told(), ack_at=None), frame


@dataclass(frozen=True, kw_only=True)
class Device:
    """All that a device keeps of its peers."""

    peers: tuple[Peer, ...]

    @property
    def epoch(self) -> int:
        """Of all of them."""
        return self.peers[0].epoch

    def hear(self, frame: Frame, now: int, rules: Rules) -> tuple[Device, Heard]:
        """As `Peer.hear`, of whichever peer it came from.  When the host resets, all begin anew."""
        at = next((at for at, peer in enumerate(self.peers) if peer.other == frame.source), None)
        if at is None:
            return self, Heard(cause=Drop.ADDRESS)
        after, heard = self.peers[at].hear(frame, now, rules)
        if heard.reset is not None:
            return self.restarted(heard.reset), heard
        return self.with_peer(at, after), heard

    def restarted(self, epoch: int) -> Device:
        """As after reset, in another epoch."""
        return Device(peers=tuple(peer.restarted(epoch) for peer in self.peers))

    def with_peer(self, at: int, peer: Peer) -> Device:
        """With another state of one peer."""
        return Device(peers=(*self.peers[:at], peer, *self.peers[at + 1 :]))
