"""The host's network port without socket and clock: what comes goes in, what is to be sent comes out.

Each device is a peer (`hdl.link.ethernet.protocol.Peer`).  Words of streams travel with credits as between devices: a
sender has as many as its receiver holds, spends one a word, and gets them back many at a time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import google_crc32c

from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import (
    DESCRIPTOR,
    HOST,
    MOST_WORDS,
    Burst,
    Drop,
    Dropped,
    Frame,
    FrameFormat,
    FrameType,
)
from hdl.link.ethernet.protocol import Peer, Rules
from hdl.link.format import credit_batch

_ORDERS = 1 << DESCRIPTOR["descriptor.sequence"].bits


@dataclass(frozen=True, kw_only=True)
class HostStream:
    """A stream between the host and a device."""

    # in the cluster
    number: int
    # of the device in the cluster
    device: int
    # of a tensor
    words: int
    # words that its receiver holds: the credits of its sender
    room: int


@dataclass
class _Outgoing:
    """The sending end of a stream."""

    stream: HostStream
    credits: int
    waiting: deque[int] = field(default_factory=deque)
    # words sent
    place: int = 0

    def burst(self, most: int) -> Burst | None:
        """The next words for which there are credits, at most so many, none behind the end of a tensor."""
        left = self.stream.words - self.place % self.stream.words
        count = min(most, self.credits, len(self.waiting), left, MOST_WORDS)
        if count < 1:
            return None
        words = tuple(self.waiting.popleft() for _ in range(count))
        found = Burst(stream=self.stream.number, words=words, sequence=self.place % _ORDERS, last=count == left)
        self.place += count
        self.credits -= count
        return found


@dataclass
class _Incoming:
    """The receiving end of a stream."""

    stream: HostStream
    held: deque[int] = field(default_factory=deque)
    # words taken off the network; of which so many were taken from here, and not paid back
    place: int = 0
    freed: int = 0

    def add(self, burst: Burst) -> None:
        """Words off the network.

        Raises:
            DagtrainError: they are not those that come next; no network does that, only a device that is wrong."""
        stream = self.stream
        end = self.place + len(burst.words)
        fits = self.place // stream.words == (end - 1) // stream.words and burst.last == (end % stream.words == 0)
        if burst.sequence != self.place % _ORDERS or not fits or len(self.held) + len(burst.words) > stream.room:
            raise DagtrainError(
                f"stream {stream.number}: device {stream.device} sent {len(burst.words)} words from number "
                f"{burst.sequence} on, after {self.place} words in tensors of {stream.words}",
                "the device is of another plan, or damaged: program it again",
            )
        self.held.extend(burst.words)
        self.place = end

    def credits(self) -> Burst | None:
        """What goes back to the sender, when it is worth it."""
        if self.freed < credit_batch(self.stream.room):
            return None
        found = Burst(stream=self.stream.number, credits=self.freed)
        self.freed = 0
        return found


class HostPort:
    """See the module.  Times are whole numbers of any unit, that of ``rules``."""

    def __init__(
        self,
        form: FrameFormat,
        rules: Rules,
        *,
        digest: int,
        epoch: int,
        devices: Iterable[int],
        outgoing: Sequence[HostStream] = (),
        incoming: Sequence[HostStream] = (),
    ) -> None:
        # a frame's CRC in Python takes longer than the frame
        self.form, self.rules = replace(form, sum=google_crc32c.value), rules
        self.peers = {number: Peer(number=HOST, other=number, epoch=epoch, digest=digest) for number in devices}
        self._out = {stream.number: _Outgoing(stream, stream.room) for stream in outgoing}
        self._in = {stream.number: _Incoming(stream) for stream in incoming}
        # device → what came and went: kinds of frames, "again" for those sent before, causes of dropped ones
        self.counts: dict[int, Counter[str]] = {number: Counter() for number in self.peers}
        # datagrams of no peer
        self.strangers: Counter[str] = Counter()
        # which stream is the first of the next frame
        self._turn = 0

    # ---------------------------------------------------------------------------------------------- words

    def give(self, stream: int, words: Iterable[int]) -> None:
        """Words to send."""
        self._out[stream].waiting.extend(words)

    def waiting(self, stream: int) -> int:
        """Words given that have not been packed."""
        return len(self._out[stream].waiting)

    def take(self, stream: int) -> tuple[int, ...] | None:
        """The words of the next tensor, or None as long as it is not whole and its stream has room for more."""
        end = self._in[stream]
        if len(end.held) < end.stream.words:
            return None
        end.freed += end.stream.words
        return tuple(end.held.popleft() for _ in range(end.stream.words))

    @property
    def problem(self) -> DagtrainError | None:
        """What keeps a device from going on, if anything: every such device in one message."""
        texts = []
        for number, peer in self.peers.items():
            if peer.stranger:
                texts.append(f"device {number} runs another plan")
            if peer.lost:
                texts.append(f"device {number} has not answered {self.rules.retries} times")
            if peer.unsent:
                texts.append(f"device {number} acknowledges what was not sent: it was reset")
        if not texts:
            return None
        return DagtrainError.listing("the network", texts, "program the devices with this plan, then reset them")

    # ---------------------------------------------------------------------------------------------- frames

    def hear(self, data: bytes, device: int | None, now: int) -> None:
        """A datagram from the address of a device, or from another one (None).  Whatever its bytes are, it is heard or
        counted.

        Raises:
            DagtrainError: words that are not those that come next."""
        frame, bursts = self._parsed(data, device)
        if frame is None or device is None:
            return
        counts = self.counts[device]
        self.peers[device], heard = self.peers[device].hear(frame, now, self.rules)
        counts[heard.cause.value if heard.cause else frame.kind.name] += 1
        if heard.payload is not None:
            self._unpack(device, bursts)

    def _parsed(self, data: bytes, device: int | None) -> tuple[Frame | None, tuple[Burst, ...]]:
        """The frame of a datagram, if this host hears it, and what a DATA frame carries."""
        counts = self.strangers if device is None else self.counts[device]
        try:
            frame = self.form.parse_datagram(data)
            bursts = self.form.bursts_of(frame.payload) if frame.kind is FrameType.DATA else ()
        except Dropped as dropped:
            counts[dropped.cause.value] += 1
            return None, ()
        if device is None:
            counts[Drop.ADDRESS.value] += 1
        return frame, bursts

    def _unpack(self, device: int, bursts: Iterable[Burst]) -> None:
        for burst in bursts:
            ends: Mapping[int, _Outgoing | _Incoming] = self._out if burst.credits else self._in
            end = ends.get(burst.stream)
            if end is None or end.stream.device != device:
                what = "credits for" if burst.credits else "words of"
                raise DagtrainError(f"device {device} sent {what} stream {burst.stream}, which it has none of")
            if isinstance(end, _Outgoing):
                end.credits += burst.credits
            else:
                end.add(burst)

    def speak(self, now: int) -> list[tuple[int, bytes]]:
        """(device, datagram) of all that is to be sent now."""
        found = []
        for number in self.peers:
            self._pack(number)
            while True:
                before = self.peers[number]
                after, frame = before.speak(now, self.rules)
                self.peers[number] = after
                if frame is None:
                    break
                again = frame.kind is FrameType.DATA and before.sender.cursor != before.sender.sent
                self.counts[number]["again" if again else f"sent {frame.kind.name}"] += 1
                found.append((number, self.form.datagram(frame)))
                self._pack(number)
        return found

    def due_at(self) -> int | None:
        """When `speak` has something to say though nothing comes; None: never."""
        times = []
        for peer in self.peers.values():
            times += [at for at in (peer.resend_at, peer.ack_at) if at is not None and not peer.lost]
            times += [] if peer.greeted else [peer.hello_at]
        return min(times, default=None)

    def _pack(self, device: int) -> None:
        """Frames of what there are words, credits and room for."""
        full = bytes(self.form.payload_beats * self.form.word_bytes)
        while self.peers[device].accepts(full, self.rules) and (bursts := self._bursts(device)):
            self.peers[device] = self.peers[device].offered(self.form.payload_of(bursts), self.rules)

    def _bursts(self, device: int) -> list[Burst]:
        """What the next frame carries: credits, then words of the streams in turns."""
        found: list[Burst] = []
        beats = self.form.payload_beats

        def room() -> int:
            """Words for which there is place beside their descriptor."""
            return beats - (len(found) % self.form.descriptors == 0)

        ends: list[_Incoming | _Outgoing] = [end for end in self._in.values() if end.stream.device == device]
        senders = [end for end in self._out.values() if end.stream.device == device]
        turn = self._turn % max(1, len(senders))
        ends += senders[turn:] + senders[:turn]
        self._turn += 1
        for end in ends:
            if room() < 1:
                break
            burst = end.credits() if isinstance(end, _Incoming) else end.burst(room())
            if burst is not None:
                beats = room() - len(burst.words)
                found.append(burst)
        return found
