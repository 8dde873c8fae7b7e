"""One UDP socket and the peers behind it: `hdl.link.ethernet.protocol` with real time, streams with credits.

An `Endpoint` is the host, or a device in software: what differs is its number, and that the host alone resets.  It runs
in an event loop; nothing it hears raises anything there.  What is dropped is counted by cause (`Pair.drops`, of unknown
senders `Endpoint.drops`).  Times are microseconds of the monotonic clock.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from google_crc32c import value as fast_crc32c

from dagtrain.host.chunks import Chunk, chunks_of, payload_of
from dagtrain.host.streams import Incoming, LinkFault, Outgoing
from hdl.link.ethernet.frame import HOST, Drop, Dropped, Frame, FrameFormat, FrameType
from hdl.link.ethernet.protocol import EPOCHS, Heard, Peer, Rules

# an address of a UDP socket
Place = tuple[str, int]
# timers: the least and the greatest, the first, and how often it doubles while nothing comes back
LEAST_TIMER_US, MOST_TIMER_US, FIRST_TIMER_US, DOUBLINGS = 50_000, 2_000_000, 100_000, 6
# a frame is acknowledged by one of its own after that
ACK_US = 2_000
# weight of a new round trip in the mean, and in the mean distance from it; the timer allows for so many (RFC 6298)
RTT_SHARE, SPREAD_SHARE, SPREADS = 0.125, 0.25, 4
# receive and send buffers of the socket, bytes; datagrams taken in one turn; the longest
BUFFER_BYTES, TURN, LONGEST = 1 << 22, 64, 1 << 16
# steps of the epoch in a search for one that all devices think later than theirs: a third of all
EPOCH_STEP = EPOCHS // 3
RESUME = "reset the cluster and resume from the last checkpoint"
# greetings of a device in another epoch, and no frame of this one between them, by which it has begun anew: one or two
# may be stragglers of a network that reorders
STRANGE_HELLOS = 3


@dataclass
class Pair:
    """This end of a pair: a peer, the streams to and from it, counters."""

    name: str
    place: Place
    peer: Peer
    rules: Rules
    outgoing: dict[int, Outgoing]
    incoming: dict[int, Incoming]
    # frames that were dropped, by cause; sent, by type; and how often one was sent again
    drops: Counter[Drop] = field(default_factory=Counter)
    sent: Counter[FrameType] = field(default_factory=Counter)
    retransmitted: int = 0
    heard: int = 0
    # mean round trip, and the mean distance from it; None: not yet measured
    rtt_us: float | None = None
    rtt_spread_us: float = 0.0
    # of another plan, as its own HELLO said
    foreign: int | None = None
    # when RESET is sent next
    reset_at: int = 0
    # greetings in another epoch since a frame of this one was heard
    strange: int = 0
    # (acknowledgement, time) by which a round trip is being measured
    probe: tuple[int, int] | None = None
    # times that the timer was doubled since then: of what was sent again no round trip is known, so a timer that is
    # shorter would stay so (Karn and Partridge, SIGCOMM 1987)
    doublings: int = 0

    def timed_rules(self) -> Rules:
        """The rules with the timer that the measured round trip and the tries since ask for (RFC 6298)."""
        base = FIRST_TIMER_US if self.rtt_us is None else int(self.rtt_us + SPREADS * self.rtt_spread_us)
        timer = max(LEAST_TIMER_US, base) << self.doublings
        return replace(self.rules, timer_cycles=min(MOST_TIMER_US, timer))

    def pack(self, form: FrameFormat) -> bytes:
        """The next payload: credits first, then the streams in turn; empty if there is nothing to send."""
        chunks: list[Chunk] = []
        beats = form.payload_beats
        for incoming in self.incoming.values():
            new = len(chunks) % form.descriptors == 0
            if incoming.paid and beats >= new:
                chunks.append(Chunk(incoming.number, credits=incoming.paid))
                incoming.freed = 0
                beats -= new
        more = True
        while more and beats:
            more = False
            for outgoing in self.outgoing.values():
                new = len(chunks) % form.descriptors == 0
                chunk = outgoing.take(beats - new)
                if chunk is not None:
                    chunks.append(chunk)
                    beats -= new + len(chunk.words) // form.word_bytes
                    more = True
        return payload_of(chunks, form)

    def take(self, chunks: Sequence[Chunk]) -> str:
        """What a frame brought; what is wrong with it, or ""."""
        for chunk in chunks:
            end = (self.outgoing if chunk.credits else self.incoming).get(chunk.stream)
            why = "there is no such stream" if end is None else end.fault(chunk)
            if why:
                return f"{self.name} broke the rules of stream {chunk.stream}: {why}"
            if isinstance(end, Outgoing):
                end.credits += chunk.credits
            elif end is not None:
                end.put(chunk)
        return ""

    def measure(self, now: int) -> None:
        """The round trip, once the frame that it is measured by is acknowledged."""
        if self.probe is None:
            return
        number, since = self.probe
        rules = self.rules
        if number == self.peer.sender.oldest or rules.stale(number, self.peer.sender.oldest):
            sample = now - since
            if self.rtt_us is None:
                self.rtt_us, self.rtt_spread_us = sample, sample / 2
            else:
                error = sample - self.rtt_us
                self.rtt_spread_us += SPREAD_SHARE * (abs(error) - self.rtt_spread_us)
                self.rtt_us += RTT_SHARE * error
            self.probe, self.doublings = None, 0


class DeviceReset(LinkFault):
    """A device was reset, and not by the host: what it held is gone, and all are to begin anew from a checkpoint."""


# makes the pairs of an epoch
Pairs = Callable[[int], Sequence[Pair]]


def now_us() -> int:
    """Now, on the clock of all times here."""
    return time.monotonic_ns() // 1000


def not_bound(bind: Place, error: OSError, option: str) -> LinkFault:
    """What a system says that does not give a port, and by which option another can be had."""
    where = f"{bind[0] or '0.0.0.0'}:{bind[1]}"
    if error.errno == errno.EADDRINUSE:
        return LinkFault(f"UDP port {where} is in use", f"end the other program, or choose another with {option}")
    if error.errno == errno.EADDRNOTAVAIL:
        return LinkFault(f"{bind[0]} is no address of this machine", f"`ip address add {bind[0]}/24 dev INTERFACE`")
    return LinkFault(f"cannot take UDP port {where}: {error.strerror}", f"choose another with {option}")


class Endpoint:
    """A socket with its pairs.  `open` it, then `reset` (the host) or wait; `until` waits for anything.

    ``pairs`` makes them anew for each epoch, with streams of which nothing has passed."""

    def __init__(self, number: int, form: FrameFormat, epoch: int, pairs: Pairs) -> None:
        self.number = number
        self.form = replace(form, sum=fast_crc32c)
        self._longest = bytes(self.form.payload_beats * self.form.word_bytes)
        self.epoch = epoch
        self.pairs: dict[int, Pair] = {}
        # frames from no peer
        self.drops: Counter[Drop] = Counter()
        # why nothing more will pass; devices that were reset by somebody else in this epoch
        self.fault = ""
        self.begun_anew: list[str] = []
        # what the system said of a frame that it did not send
        self.unsendable = ""
        # told when the host reset this device
        self.on_reset: Callable[[], None] = lambda: None
        self._make = pairs
        self._socket: socket.socket | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._turn = 0
        self._resetting = False
        self._begin(epoch)

    # -------------------------------------------------------------------------------------------- life

    def open(self, bind: Place) -> Place:
        """Take a port in the running event loop; the address that it has.  Raises `OSError`."""
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                opened.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            opened.bind(bind)
        except OSError:
            opened.close()
            raise
        self._socket = opened
        asyncio.get_running_loop().add_reader(opened.fileno(), self._readable)
        self.work()
        place: Place = opened.getsockname()
        return place

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._socket is not None

    def now(self) -> int:
        """On the clock of all times here."""
        return now_us()

    def close(self) -> None:
        """Give the port back; nothing more is heard or sent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._wake()

    def reset(self, epoch: int) -> None:
        """The host alone: all devices begin anew with this epoch."""
        self._resetting = self.number == HOST
        self._begin(epoch)
        self.work()

    def _begin(self, epoch: int) -> None:
        """Pairs as after reset; what was counted goes on."""
        self.epoch = epoch % EPOCHS
        old = self.pairs
        self.pairs = {pair.peer.other: pair for pair in self._make(self.epoch)}
        for number, pair in self.pairs.items():
            if number in old:
                before = old[number]
                pair.drops, pair.sent = before.drops, before.sent
                pair.rtt_us, pair.rtt_spread_us = before.rtt_us, before.rtt_spread_us
                pair.retransmitted, pair.heard, pair.foreign = before.retransmitted, before.heard, before.foreign
        self.fault = ""
        self.begun_anew = []

    async def until(self, ready: Callable[[], bool]) -> None:
        """Until this is true.  Raises `LinkFault` when nothing more will pass."""
        while not ready():
            if self.begun_anew:
                raise DeviceReset(self.fault, RESUME)
            if self.fault or not self.is_open:
                raise LinkFault(self.fault or "the socket is closed", RESUME)
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def soon(self) -> None:
        """Work once the running task waits: streams have more to send, or have been read."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.work)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # -------------------------------------------------------------------------------------------- hearing

    def _readable(self) -> None:
        now = self.now()
        for _ in range(TURN):
            if self._socket is None:
                return
            try:
                data, place = self._socket.recvfrom(LONGEST)
            except BlockingIOError:
                break
            except OSError:
                # an earlier frame was refused (ICMP); this one counts for nothing
                continue
            self.hear(data, place, now)
        self.work()

    def hear(self, data: bytes, place: Place, now: int) -> None:
        """A datagram from a place; whatever it is, it is taken or counted."""
        try:
            frame = self.form.parse_datagram(data)
            pair = self.pairs.get(frame.source)
            if pair is None or pair.place != place:
                raise Dropped(Drop.ADDRESS, f"from {place} as device {frame.source}")
        except Dropped as dropped:
            by_place = next((pair for pair in self.pairs.values() if pair.place == place), None)
            (self.drops if by_place is None else by_place.drops)[dropped.cause] += 1
            return
        try:
            chunks = chunks_of(frame.payload, self.form) if frame.kind is FrameType.DATA else []
        except Dropped as dropped:
            pair.drops[dropped.cause] += 1
            return
        if frame.digest != pair.peer.digest and frame.target == self.number:
            pair.foreign = frame.digest
        if frame.kind is FrameType.HELLO and frame.epoch != self.epoch and pair.peer.greeted:
            self._greeted_anew(pair)
        pair.peer, heard = pair.peer.hear(frame, now, pair.timed_rules())
        self._heard(pair, heard, chunks, now)

    def _greeted_anew(self, pair: Pair) -> None:
        """A device that was there greets in another epoch: a reset that is not the host's took all it held."""
        pair.strange += 1
        if pair.strange == STRANGE_HELLOS and self.number == HOST:
            self.begun_anew.append(pair.name)
            self.fault = self.fault or f"{pair.name} has begun anew, and lost its state"

    def _heard(self, pair: Pair, heard: Heard, chunks: Sequence[Chunk], now: int) -> None:
        if heard.reset is not None:
            self._begin(heard.reset)
            self.on_reset()
            return
        if heard.cause is not None:
            pair.drops[heard.cause] += 1
        else:
            pair.heard += 1
            pair.strange = 0
        pair.measure(now)
        if heard.payload is not None and chunks:
            self.fault = self.fault or pair.take(chunks)
        if pair.peer.unsent:
            self.fault = self.fault or f"{pair.name} acknowledged frames that were never sent"

    # -------------------------------------------------------------------------------------------- speaking

    def work(self) -> None:
        """Pack what streams have, send what is to be sent, set the timer, wake who waits."""
        self._due = False
        if not self.is_open:
            return
        now = self.now()
        pairs = list(self.pairs.values())
        self._turn = (self._turn + 1) % max(1, len(pairs))
        for pair in pairs[self._turn :] + pairs[: self._turn]:
            self._speak(pair, now)
            if pair.peer.lost and not self.fault:
                self.fault = f"{pair.name} at {pair.place[0]}:{pair.place[1]} does not answer any more"
        self._set_timer(now)
        self._wake()

    def _speak(self, pair: Pair, now: int) -> None:
        rules = pair.timed_rules()
        if self._resetting and not pair.peer.greeted and now >= pair.reset_at:
            pair.reset_at = now + rules.timer_cycles
            pair.sent[FrameType.RESET] += 1
            self._send(pair, self._reset_frame(pair))
        if pair.peer.greeted:
            self._fill(pair, rules)
        while True:
            before = pair.peer.sender
            pair.peer, frame = pair.peer.speak(now, rules)
            if pair.peer.sender.tries > before.tries:
                # all that it is asked from now on; what is sent again sets the timer anew
                pair.doublings = min(DOUBLINGS, pair.doublings + 1)
                rules = pair.timed_rules()
            if frame is None:
                return
            pair.sent[frame.kind] += 1
            if frame.kind is FrameType.DATA:
                if pair.peer.sender.sent == before.sent:
                    pair.retransmitted += 1
                    pair.probe = None
                elif pair.probe is None:
                    pair.probe = (pair.peer.sender.sent, now)
            self._send(pair, frame)

    def _fill(self, pair: Pair, rules: Rules) -> None:
        """Offer payloads while a longest one has room."""
        while pair.peer.accepts(self._longest, rules):
            payload = pair.pack(self.form)
            if not payload:
                return
            pair.peer = pair.peer.offered(payload, rules)

    def _reset_frame(self, pair: Pair) -> Frame:
        peer = pair.peer
        return Frame(
            kind=FrameType.RESET,
            source=peer.number,
            target=peer.other,
            epoch=self.epoch,
            sequence=0,
            acknowledge=0,
            digest=peer.digest,
        )

    def _send(self, pair: Pair, frame: Frame) -> None:
        """Hand a frame to the system; one that it does not take is lost as on the network, and sent again."""
        assert self._socket is not None
        try:
            self._socket.sendto(self.form.datagram(frame), pair.place)
        except BlockingIOError:
            return
        except OSError as error:
            self.unsendable = f"{pair.name} at {pair.place[0]}:{pair.place[1]}: {error.strerror or error}"

    def _set_timer(self, now: int) -> None:
        """Work again when the next timer of a pair runs out."""
        if self._timer is not None:
            self._timer.cancel()
        ends = []
        for pair in self.pairs.values():
            peer = pair.peer
            if not peer.greeted:
                ends.append(min(peer.hello_at, pair.reset_at) if self._resetting else peer.hello_at)
            ends += [end for end in (peer.resend_at, peer.ack_at) if end is not None and not peer.lost]
        if ends:
            wait = max(100, min(ends) - now) / 1e6
            self._timer = asyncio.get_running_loop().call_later(wait, self.work)
