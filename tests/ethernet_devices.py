"""Devices in Python that exchange words of streams with credits through frames and a switch that loses them."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from hdl.link.ethernet.frame import Address, Burst, Dropped, FrameFormat
from hdl.link.ethernet.protocol import Peer, Rules
from hdl.simulate.models.ethernet import EthernetSwitch

DIGEST = 0xC0FFEE11
# words of a tensor of every stream
TENSOR_WORDS = 5


def address(number: int) -> Address:
    """Of a device."""
    return Address(number=number, mac=0x020000000000 + number, ip=0x0A000001 + number)


@dataclass
class StreamEnd:
    """Either end of a stream: what it has sent or got, and credits."""

    number: int
    credits: int
    waiting: deque[int] = field(default_factory=deque)
    # of the next word
    place: int = 0
    # words in the receiver's region, and freed ones whose credits have not gone back
    held: int = 0
    freed: int = 0
    taken: list[int] = field(default_factory=list)


@dataclass
class ModelDevice:
    """A device: one go-back-N pair for each peer, streams to and from them."""

    number: int
    form: FrameFormat
    rules: Rules
    rng: random.Random
    peers: dict[int, Peer] = field(default_factory=dict)
    # (peer, stream) → end
    sending: dict[tuple[int, int], StreamEnd] = field(default_factory=dict)
    receiving: dict[tuple[int, int], StreamEnd] = field(default_factory=dict)
    drops: Counter[str] = field(default_factory=Counter)
    frames: Counter[str] = field(default_factory=Counter)

    def meet(self, other: int) -> None:
        """A peer."""
        self.peers[other] = Peer(number=self.number, other=other, epoch=1, digest=DIGEST)

    def hear(self, data: bytes, now: int) -> None:
        """A frame from the MAC."""
        try:
            frame = self.form.parse(data)
        except Dropped as dropped:
            self.drops[dropped.cause.value] += 1
            return
        if frame.source not in self.peers:
            self.drops["address"] += 1
            return
        self.peers[frame.source], heard = self.peers[frame.source].hear(frame, now, self.rules)
        if heard.cause is not None:
            self.drops[heard.cause.value] += 1
        if heard.payload is not None:
            for burst in self.form.bursts_of(heard.payload):
                self._take(frame.source, burst)

    def _take(self, other: int, burst: Burst) -> None:
        if burst.credits:
            self.sending[other, burst.stream].credits += burst.credits
            return
        end = self.receiving[other, burst.stream]
        assert burst.sequence == len(end.taken) % 256, "order of words"
        end.taken += burst.words
        end.held += len(burst.words)
        assert end.held <= end.credits, "room of the receiver"
        assert burst.last == (len(end.taken) % TENSOR_WORDS == 0), "last word of a tensor"

    def work(self) -> None:
        """Consumers take a word of each stream, or none; what is ready to be sent is packed."""
        for end in self.receiving.values():
            if end.held and self.rng.random() < 0.7:
                end.held -= 1
                end.freed += 1
        for other in self.peers:
            self._pack(other)

    def _pack(self, other: int) -> None:
        bursts, freed = [], []
        for (peer, number), end in self.receiving.items():
            if peer == other and end.freed >= 4:
                bursts.append(Burst(stream=number, credits=end.freed))
                freed.append(end)
        sent = []
        for (peer, number), end in self.sending.items():
            count = min(end.credits, len(end.waiting), TENSOR_WORDS - end.place % TENSOR_WORDS)
            if peer == other and count:
                words = tuple(list(end.waiting)[:count])
                last = (end.place + count) % TENSOR_WORDS == 0
                bursts.append(Burst(stream=number, words=words, sequence=end.place % 256, last=last))
                sent.append((end, count))
        parts = self.form.fill(bursts)
        # one frame at a time: what goes on in a second one waits
        if len(parts) != 1 or not self.peers[other].accepts(payload := self.form.payload_of(parts[0]), self.rules):
            return
        self.peers[other] = self.peers[other].offered(payload, self.rules)
        for end in freed:
            end.freed = 0
        for end, count in sent:
            end.credits -= count
            end.place += count
            for _ in range(count):
                end.waiting.popleft()

    def speak(self, now: int) -> bytes | None:
        """The next frame to the MAC, peers in a random order."""
        for other in self.rng.sample(sorted(self.peers), len(self.peers)):
            self.peers[other], frame = self.peers[other].speak(now, self.rules)
            if frame is not None:
                self.frames[frame.kind.name] += 1
                return self.form.build(frame, address(self.number), address(other))
        return None


@dataclass
class ModelNetwork:
    """Devices that all exchange two streams each way, over a switch."""

    devices: list[ModelDevice]
    switch: EthernetSwitch
    words: int

    @property
    def done(self) -> bool:
        """Whether every word has arrived, been acknowledged and paid for."""
        return all(
            not end.waiting and device.peers[other].sender.payloads == ()
            for device in self.devices
            for (other, _), end in device.sending.items()
        ) and all(
            len(end.taken) == self.words and not end.held
            for device in self.devices
            for end in device.receiving.values()
        )

    def run(self, cycles: int) -> int:
        """Until all is delivered; the cycles that took.

        Raises `AssertionError` where it is not after so many."""
        for now in range(cycles):
            for port, data in self.switch.leave(now):
                self.devices[port].hear(data, now)
            for device in self.devices:
                device.work()
                if now % 4 == 0 and (sent := device.speak(now)) is not None:
                    self.switch.enter(device.number, sent, now)
            if self.done:
                return now
        raise AssertionError(f"not delivered after {cycles} cycles")


def network(
    switch: EthernetSwitch, form: FrameFormat, rules: Rules, *, seed: int, devices: int = 3, words: int = 60
) -> ModelNetwork:
    """Devices with random words of which each stream has so many."""
    rng = random.Random(seed)
    made = [ModelDevice(number, form, rules, random.Random(seed + number)) for number in range(devices)]
    number = 0
    for device in made:
        for other in made:
            if device is other:
                continue
            device.meet(other.number)
            for _ in range(2):
                full = (1 << form.word_bits) - 1
                data = [rng.choice([0, 1, full, rng.getrandbits(form.word_bits)]) for _ in range(words)]
                device.sending[other.number, number] = StreamEnd(number, 16, deque(data))
                other.receiving[device.number, number] = StreamEnd(number, 16)
                number += 1
    return ModelNetwork(made, switch, words)


def check_words(
    switch: EthernetSwitch, form: FrameFormat, rules: Rules, *, seed: int, cycles: int = 40_000
) -> ModelNetwork:
    """Every stream's words arrive, each once, in order, and every credit comes back."""
    net = network(switch, form, rules, seed=seed)
    sent = {key: list(end.waiting) for device in net.devices for key, end in _by_stream(device)}
    net.run(cycles)
    for device in net.devices:
        for (_, number), end in device.receiving.items():
            assert end.taken == sent[number], f"words of stream {number}, seed {seed}"
    credits = {number: end.credits for device in net.devices for (_, number), end in device.sending.items()}
    for device in net.devices:
        for (_, number), end in device.receiving.items():
            assert credits[number] + end.freed == 16, f"credits of stream {number}, seed {seed}"
        assert not any(peer.lost or peer.unsent or peer.stranger for peer in device.peers.values())
    return net


def _by_stream(device: ModelDevice) -> list[tuple[int, StreamEnd]]:
    return [(number, end) for (_, number), end in device.sending.items()]
