"""An Ethernet port as a circuit, among peers that are the golden model, on a network that does what it likes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myhdl import Simulation, StopSimulation, always, block, delay, instance

from hdl.link.ethernet.frame import Address, Burst, Drop, Dropped, FrameFormat
from hdl.link.ethernet.packer import Packer
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.port import EthernetPort
from hdl.link.ethernet.protocol import Peer, Rules
from hdl.link.ethernet.receiver import COUNTER_BITS, Cause
from hdl.link.ethernet.transmitter import PEER_BITS, own_constant, peer_constant
from hdl.link.format import LinkFormat, Word
from hdl.signals import ClockReset
from hdl.simulate.drivers import Sink, Source
from hdl.simulate.models.ethernet import EthernetSwitch, Faults
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream

EPOCH, DIGEST = 7, 0xDA7A_6E7D
# the circuit's own number; peers follow
OWN = 3


def form_of(frames: FrameFormat) -> LinkFormat:
    """Words of a beat."""
    return LinkFormat(word_bits=frames.word_bits, streams=300, devices=4)


def packer_of(frames: FrameFormat, peers: int, spare: int = 0, flush_cycles: int = 12) -> Packer:
    """A packer whose regions are not alike."""
    regions = tuple(2 * frames.payload_beats + spare + peer for peer in range(peers))
    return Packer(frames=frames, form=form_of(frames), regions=regions, flush_cycles=flush_cycles)


def traffic(form: LinkFormat, seed: int, runs: int, longest: int = 40) -> list[Word]:
    """Runs of words of random streams, numbered in each; some end tensors, and credits in between."""
    rng = random.Random(f"{seed}/traffic")
    numbers: dict[int, int] = {}
    words = []
    for _ in range(runs):
        stream = rng.choice((0, 1, 2, 255, 256, form.streams - 1))
        if rng.random() < 0.25:
            words.append(Word(rng.choice((1, 32, (1 << 24) - 1)), 1, 0, stream, 1, 0))
            continue
        for _ in range(rng.choice((1, 2, rng.randint(1, longest)))):
            number = numbers.get(stream, 0)
            numbers[stream] = (number + 1) % 256
            data = rng.choice((0, 1, (1 << form.word_bits) - 1, rng.getrandbits(form.word_bits)))
            words.append(Word(data, int(rng.random() < 0.1), number, stream, 0, 0))
    return words


def bursts_of(words: Sequence[Word]) -> list[Burst]:
    """What the words are announced as: runs of a stream, ended by the last word of a tensor or after 255."""
    bursts: list[Burst] = []
    run: list[Word] = []

    def end() -> None:
        if run:
            data = tuple(word.data for word in run)
            bursts.append(Burst(stream=run[0].stream, words=data, sequence=run[0].sequence, last=bool(run[-1].last)))
        run.clear()

    for word in words:
        if run and (word.credit or word.stream != run[-1].stream or run[-1].last or len(run) == 255):
            end()
        if word.credit:
            bursts.append(Burst(stream=word.stream, credits=word.data))
        else:
            run.append(word)
    end()
    return bursts


def words_of(bursts: Sequence[Burst]) -> list[Word]:
    """Words that bursts stand for, without the device that they go to."""
    words = []
    for burst in bursts:
        if burst.credits:
            words.append(Word(burst.credits, 1, 0, burst.stream, 1, 0))
        for index, data in enumerate(burst.words):
            last = burst.last and index == len(burst.words) - 1
            words.append(Word(data, int(last), (burst.sequence + index) % 256, burst.stream, 0, 0))
    return words


def address_of(number: int) -> Address:
    """Of a device."""
    return Address(number=number, mac=0x0200_0000_1000 + number, ip=0x0A00_0000 + number)


@dataclass
class Opponent:
    """A peer of the circuit: the golden model, which sends some payloads and keeps what it gets."""

    frames: FrameFormat
    rules: Rules
    peer: Peer
    to_send: deque[bytes]
    got: list[Burst] = field(default_factory=list)
    dropped: list[Drop] = field(default_factory=list)
    # its cable is free from then on
    free_at: int = 0

    def hear(self, data: bytes, now: int) -> None:
        """A frame that came."""
        try:
            frame = self.frames.parse(data)
        except Dropped as error:
            self.dropped.append(error.cause)
            return
        self.peer, heard = self.peer.hear(frame, now, self.rules)
        if heard.cause is not None:
            self.dropped.append(heard.cause)
        if heard.payload is not None:
            self.got += self.frames.bursts_of(heard.payload)

    def speak(self, now: int) -> bytes | None:
        """The frame that it sends now, if any."""
        if self.to_send and self.peer.accepts(self.to_send[0], self.rules):
            self.peer = self.peer.offered(self.to_send.popleft(), self.rules)
        if now < self.free_at:
            return None
        self.peer, frame = self.peer.speak(now, self.rules)
        if frame is None:
            return None
        data = self.frames.build(frame, address_of(self.peer.number), address_of(self.peer.other))
        self.free_at = now + -(-(len(data) + 24) // self.frames.word_bytes)
        return data


@dataclass
class Exchanged:
    """What a run came to."""

    # words that each opponent got, and those that the circuit gave
    got: list[list[Word]]
    words: list[Word]
    cycles: int
    # frames that the circuit sent
    sent: list[bytes]
    dropped: dict[Cause, int]
    # (lost, stranger, unsent) a peer
    faults: list[tuple[bool, bool, bool]]
    malformed: bool
    opponents: list[Opponent]
    switch: EthernetSwitch
    # the circuit's epoch, and (first cycle, cycle behind the last) of each time that it said reset
    epoch: int
    resets: list[tuple[int, int]]


@dataclass(kw_only=True)
class Network:
    """A port and its opponents."""

    frames: FrameFormat
    timing: Timing
    seed: int
    # what each opponent is sent, and sends
    there: Sequence[Sequence[Word]]
    back: Sequence[Sequence[Word]]
    # with the last opponent, where that is the host
    host_timing: Timing | None = None
    faults: Faults = field(default_factory=Faults)
    latency: int = 20
    # shares of cycles in which words come late, the MAC is not ready, words are not taken
    stalls: tuple[float, float, float] = (0.0, 0.0, 0.0)
    # from then on the network loses nothing
    faults_until: int = 1 << 60
    max_cycles: int = 20_000
    # frames from elsewhere: cycle → frame at the circuit
    injected: Mapping[int, bytes] = field(default_factory=dict)
    spare: int = 20
    # the circuit is made by it from the unit's block; for Verilog in its place
    attach: Callable[[EthernetPort, Mapping[str, Any]], Any] | None = None
    # what peers believe
    digests: Mapping[int, int] = field(default_factory=dict)
    # cycles that must pass after the last word
    rest: int = 0
    # of the peers; else those that follow the circuit's
    numbers: Sequence[int] | None = None
    # cycle → opponent → epoch in which it begins anew
    restarts: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    def number_of(self, peer: int) -> int:
        """Of a peer."""
        return OWN + 1 + peer if self.numbers is None else self.numbers[peer]

    @property
    def unit(self) -> EthernetPort:
        """The circuit."""
        words = packer_of(self.frames, len(self.there), self.spare)
        return EthernetPort(packer=words, timing=self.timing, host_timing=self.host_timing)

    def run(self) -> Exchanged:
        """Until all words have come, or `max_cycles`."""
        unit = self.unit
        with fresh_simulator():
            domain, streams = ClockReset(), {name: Stream(width) for name, width in unit.streams.items()}
            dut = unit.build(domain, streams)
            ports = dict(
                zip([*unit.inputs, *unit.outputs], dut.args[-len(unit.inputs) - len(unit.outputs) :], strict=True)
            )
            bench = _Bench(self, unit, streams, ports)
            if self.attach is not None:
                signals = {"clk": domain.clk, "rst": domain.rst, **ports}
                for name, stream in streams.items():
                    signals |= {f"{name}_{part}": getattr(stream, part) for part in ("valid", "ready", "payload")}
                dut = self.attach(unit, signals)
            simulation = Simulation(dut, _clocked(domain, bench))
            try:
                simulation.run(quiet=1)
            finally:
                if not simulation._finished:
                    simulation.quit()
        assert bench.found is not None
        return bench.found


@block
def _clocked(domain: Any, bench: Any) -> Any:
    edges = [0]

    @instance
    def tick() -> Iterator[object]:
        while True:
            yield delay(1)
            domain.clk.next = not domain.clk

    @always(domain.clk.posedge)
    def step() -> None:
        edges[0] += 1
        domain.rst.next = edges[0] < 4
        bench.constants()
        if edges[0] > 4 and bench.step(edges[0] - 5):
            # signals are as they began when the simulation has ended
            bench.found = bench.result()
            raise StopSimulation

    return tick, step


class _Bench:
    def __init__(
        self, network: Network, unit: EthernetPort, streams: Mapping[str, Stream], ports: Mapping[str, Any]
    ) -> None:
        self.network, self.unit, self.streams, self.ports = network, unit, streams, ports
        frames, peers = network.frames, len(network.there)
        self.rng = random.Random(f"{network.seed}/bench")
        late, self.unready, untaken = network.stalls
        form = unit.packer.form
        self.late, self.untaken, self.form = late, untaken, form
        self.resets: list[tuple[int, int]] = []
        self.begin_words()
        self.sent: list[bytes] = []
        self.frame = bytearray()
        self.was: int | None = None
        self.arriving: deque[int] = deque()
        self.cycle = 0
        self.found: Exchanged | None = None
        self.rest = network.rest
        self.rules = [
            Rules(
                window=timing.window,
                replay_beats=4 * frames.payload_beats,
                word_bytes=frames.word_bytes,
                timer_cycles=timing.timer_cycles,
                ack_cycles=timing.ack_cycles,
                retries=timing.retries,
            )
            for timing in unit.timings
        ]
        self.opponents = [self.opponent(peer, EPOCH) for peer in range(peers)]
        numbers = [OWN, *map(network.number_of, range(peers))]
        self.switch = EthernetSwitch(
            ports={address_of(number).mac: port for port, number in enumerate(numbers)},
            latency=network.latency,
            faults=network.faults,
            seed=network.seed,
        )

    def begin_words(self) -> None:
        """What streams of the device send and get, from the beginning."""
        self.sources = [
            Source(f"xs{peer}", self.form.payload_bits, [self.form.encode(word) for word in words], self.rng, self.late)
            for peer, words in enumerate(self.network.there)
        ]
        self.sink = Sink("words", None, self.rng, self.untaken)

    def opponent(self, peer: int, epoch: int) -> Opponent:
        """As it begins."""
        network = self.network
        number, frames = network.number_of(peer), network.frames
        return Opponent(
            frames,
            self.rules[peer],
            Peer(number=number, other=OWN, epoch=epoch, digest=network.digests.get(peer, DIGEST)),
            deque(frames.payload_of(bursts) for bursts in frames.fill(bursts_of(network.back[peer]))),
        )

    def constants(self) -> None:
        own = address_of(OWN)
        self.ports["own"].next = own_constant(own)
        self.ports["others"].next = sum(
            peer_constant(own, address_of(self.network.number_of(peer))) << peer * PEER_BITS
            for peer in range(len(self.opponents))
        )
        self.ports["epoch"].next, self.ports["digest"].next = EPOCH, DIGEST
        if self.network.frames.key is not None:
            self.ports["key"].next = self.network.frames.key

    def step(self, cycle: int) -> bool:
        self.cycle = cycle
        network, switch = self.network, self.switch
        self._words(cycle)
        self._transmitted(cycle)
        if cycle == network.faults_until:
            switch.faults = Faults()
        for number, epoch in network.restarts.get(cycle, {}).items():
            self.opponents[number] = self.opponent(number, epoch)
        for number, opponent in enumerate(self.opponents):
            data = opponent.speak(cycle)
            if data is not None:
                switch.enter(number + 1, data, cycle)
        for port, data in switch.leave(cycle):
            if port:
                self.opponents[port - 1].hear(data, cycle)
            else:
                self._arrive(data)
        if cycle in network.injected:
            self._arrive(network.injected[cycle])
        self._received()
        return self._done()

    def _words(self, cycle: int) -> None:
        """The device's streams, which begin anew when the port says so."""
        if self.ports["reset"]:
            since = self.resets.pop()[0] if self.resets and self.resets[-1][1] == cycle else cycle
            self.resets.append((since, cycle + 1))
            self.begin_words()
        elif self.resets and self.resets[-1][1] == cycle:
            # what is left of the words before would come now
            self.sink = Sink("words", None, self.rng, 0.0)
        for source in self.sources:
            x = self.streams[source.name]
            if not self.ports["reset"]:
                source.step(cycle, bool(x.ready))
            x.valid.next, x.payload.next = source.valid, source.payload
        words = self.streams["words"]
        self.sink.step(cycle, bool(words.valid), int(words.payload))
        words.ready.next = self.sink.ready

    def _transmitted(self, cycle: int) -> None:
        """The MAC takes a beat, if there is one."""
        tx, bits = self.streams["tx"], self.network.frames.word_bits
        valid, payload, ready = bool(tx.valid), int(tx.payload), bool(tx.ready)
        assert valid or not self.frame, f"cycle {cycle}: valid fell inside a frame"
        assert self.was is None or (valid and payload == self.was), f"cycle {cycle}: a beat that waits changed"
        self.was = payload if valid and not ready else None
        if valid and ready:
            beat = (payload & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
            last = payload >> bits
            self.frame += beat[: self.network.frames.last_bytes] if last else beat
            if last:
                data = bytes(self.frame)
                self.frame.clear()
                self.network.frames.parse(data)
                self.sent.append(data)
                self.switch.enter(0, data, cycle)
        tx.ready.next = self.rng.random() >= self.unready

    def _arrive(self, data: bytes) -> None:
        """A frame from the MAC, as beats."""
        size, bits = self.network.frames.word_bytes, self.network.frames.word_bits
        for start in range(0, len(data), size):
            part = data[start : start + size]
            last = start + size >= len(data)
            number = int.from_bytes(part, "little") | self.rng.getrandbits(8 * (size - len(part)) + 1) >> 1 << 8 * len(
                part
            )
            self.arriving.append(number | last << bits | len(part) << bits + 2)
        self.arriving.extend([-1] * self.rng.choice((0, 0, 1, 24 // size + 1)))

    def _received(self) -> None:
        rx = self.streams["rx"]
        beat = self.arriving.popleft() if self.arriving and self.rng.random() < 0.9 else -1
        rx.valid.next = beat >= 0
        rx.payload.next = beat if beat >= 0 else self.rng.getrandbits(rx.width)

    def _done(self) -> bool:
        network = self.network
        if self.cycle >= network.max_cycles:
            return True
        wanted = sum(len(words) for words in network.back)
        enough = len(self.sink.beats) >= wanted and all(
            len(words_of(opponent.got)) >= len(words)
            for opponent, words in zip(self.opponents, network.there, strict=True)
            if opponent.got or words
        )
        self.rest -= enough
        return enough and self.rest < 0

    def result(self) -> Exchanged:
        """What it came to."""
        form = self.unit.packer.form
        dropped, faults = int(self.ports["dropped"]), int(self.ports["faults"])
        flags = [[bool(faults >> 3 * peer + flag & 1) for flag in range(3)] for peer in range(len(self.opponents))]
        return Exchanged(
            got=[words_of(opponent.got) for opponent in self.opponents],
            words=[form.decode(beat) for beat in self.sink.beats],
            cycles=self.cycle,
            sent=self.sent,
            dropped={cause: dropped >> cause * COUNTER_BITS & ((1 << COUNTER_BITS) - 1) for cause in Cause},
            faults=[(lost, stranger, unsent) for lost, stranger, unsent in flags],
            malformed=bool(self.ports["malformed"]),
            opponents=self.opponents,
            switch=self.switch,
            epoch=int(self.ports["current"]),
            resets=self.resets,
        )
