"""The Ethernet port of a device, from words of its streams to beats of the MAC and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from myhdl import Signal, always_comb, block, intbv

from hdl.link.ethernet.anew import begin_anew
from hdl.link.ethernet.packer import Packer, packer
from hdl.link.ethernet.peers import Faults, Heard, Saying, Timing, peer_state
from hdl.link.ethernet.receiver import COUNTER_BITS, Cause, receiver
from hdl.link.ethernet.replay import replay_ring
from hdl.link.ethernet.sink import FrameSink
from hdl.link.ethernet.tag import KEY_BITS
from hdl.link.ethernet.tagging import append_tags, check_tags
from hdl.link.ethernet.transmitter import DIGEST_BITS, EPOCH_BITS, OWN_BITS, PEER_BITS, transmitter
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fork_join import row_of
from hdl.unit import Unit


@dataclass(frozen=True, kw_only=True)
class EthernetPort(Unit):
    """Words ``xs0`` … for each peer leave in frames ``tx``; frames ``rx`` bring ``words``.

    Inputs: ``own``, ``others``, ``digest`` (`hdl.link.ethernet.transmitter.transmitter`), ``epoch``, that after reset.
    Outputs: counters ``dropped`` (`Cause`), ``faults``, three bits a peer (`hdl.link.ethernet.peers.Faults`),
    ``malformed``; ``reset``, for the rest of the device beside its own: the host wants all to begin anew
    (`hdl.link.ethernet.anew`); ``current``, the epoch now.
    With a key, frames have tags (`hdl.link.ethernet.tagging`), and ``key`` is one more input: the circuit itself is the
    same for every key.
    """

    packer: Packer
    timing: Timing = field(default_factory=Timing)
    # of the last peer, where that is the host; its window is that of all
    host_timing: Timing | None = None

    def __post_init__(self) -> None:
        if self.host_timing is not None and self.host_timing.window != self.timing.window:
            raise ValueError(f"windows of {self.timing.window} frames, and of {self.host_timing.window} for the host")

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Of each peer."""
        return *[self.timing] * (self.packer.peers - 1), self.host_timing or self.timing

    @property
    def sink(self) -> FrameSink:
        """Sizes of the receiver."""
        return FrameSink(frames=self.packer.frames, form=self.packer.form, peers=self.packer.peers)

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {
            **self.packer.streams,
            "tx": self.packer.frames.word_bits + 1,
            "rx": self.sink.beat_bits,
            "words": self.packer.form.payload_bits,
        }

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        peers = self.packer.peers
        known = {"own": OWN_BITS, "others": peers * PEER_BITS, "epoch": EPOCH_BITS, "digest": DIGEST_BITS}
        return known if self.packer.frames.key is None else {**known, "key": KEY_BITS}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        flags = {"faults": 3 * self.packer.peers, "malformed": 1, "reset": 1, "current": EPOCH_BITS}
        return {"dropped": len(Cause) * COUNTER_BITS, **flags}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        xs = [streams[name] for name in self.packer.streams]
        tx, rx, words = (streams[name] for name in ("tx", "rx", "words"))
        inputs, outputs = self.signals(self.inputs), self.signals(self.outputs)
        if self.packer.frames.key is None:
            return ethernet_port(domain, xs, tx, rx, words, *inputs, *outputs, unit=self)
        return keyed_ethernet_port(domain, xs, tx, rx, words, *inputs, *outputs, unit=self)


@block
def keyed_ethernet_port(
    domain: ClockReset,
    xs: Sequence[Stream],
    tx: Stream,
    rx: Stream,
    words: Stream,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    key: Bits,
    dropped: Bits,
    faults: Bits,
    malformed: Bit,
    reset: Bit,
    current: Bits,
    *,
    unit: EthernetPort,
) -> Instances:
    """`ethernet_port` whose frames have tags.  Cost: that, `append_tags`, `check_tags`.

    Ports:
        xs, words: in, out, as `ethernet_port` has them.
        tx: out, stream of beats of frames, as `append_tags` gives them.
        rx: in, stream of beats of frames, as `check_tags` takes them.
        own, others, epoch, digest: in, as `ethernet_port` has them.
        key: in, 64 bits, constant.
        dropped, faults, malformed, reset, current: out, as `ethernet_port` has them.
    """
    made, judged = Stream(tx.width), Stream(unit.sink.judged_bits)
    port = ethernet_port(
        domain, xs, made, judged, words, own, others, epoch, digest, dropped, faults, malformed, reset, current,
        unit=unit,
    )  # fmt: skip
    append = append_tags(domain, key, made, tx, frames=unit.packer.frames)
    check = check_tags(domain, key, rx, judged, sink=unit.sink)
    return port, append, check


@block
def ethernet_port(
    domain: ClockReset,
    xs: Sequence[Stream],
    tx: Stream,
    rx: Stream,
    words: Stream,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    dropped: Bits,
    faults: Bits,
    malformed: Bit,
    reset: Bit,
    current: Bits,
    *,
    unit: EthernetPort,
) -> Instances:
    """See `EthernetPort`.  Cost: `packer`, the replay memory, `transmitter`, `receiver`, and of each peer `peer_state`
    and `replay_ring`; `begin_anew`.

    Ports:
        xs: in, streams of `LinkFormat.payload_bits` bits, valid and payload from registers.
        tx: out, stream of beats of frames, as `transmitter` gives them.
        rx: in, stream of beats of frames, as `receiver` takes them: always ready.
        words: out, stream of `LinkFormat.payload_bits` bits.
        own, others, digest: in, as `transmitter` takes them, constant.
        epoch: in, 16 bits, constant: after ``domain``'s reset.
        dropped: out, `COUNTER_BITS` bits a `Cause`, from registers.
        faults: out, 3 bits a peer, lost, stranger and unsent from the lowest, from registers.
        malformed: out, 1 bit, from a register.
        reset: out, 1 bit, from a register: whatever words come from and go to is to begin anew.
        current: out, 16 bits, from registers: the epoch.
    """
    words_of, timing, sink = unit.packer, unit.timing, unit.sink
    peers, bits, beats_bits = words_of.peers, words_of.address_bits, words_of.beats_bits
    word_bits = words_of.frames.word_bits
    sayings, hears = [Saying(timing) for _ in range(peers)], [Heard() for _ in range(peers)]
    wrongs = [Faults() for _ in range(peers)]
    rooms = [Signal(bool(0)) for _ in range(peers)]
    heads, starts = ([Signal(intbv(0)[bits:]) for _ in range(peers)] for _ in range(2))
    lengths = [Signal(intbv(0)[beats_bits:]) for _ in range(peers)]
    said = Signal(intbv(0)[peers:])
    idle, write, made, fetch = (Signal(bool(0)) for _ in range(4))
    write_at, made_end, fetch_at = (Signal(intbv(0)[bits:]) for _ in range(3))
    write_data, word = (Signal(intbv(0)[word_bits:]) for _ in range(2))
    made_peer = Signal(intbv(0)[address_width(peers) :])
    made_beats = Signal(intbv(0)[beats_bits:])
    room, all_heads = row_of(rooms), row_of(heads)
    # of frames that are heard, that the host wants, and of those that are sent
    now, told, stamp = (Signal(intbv(0)[EPOCH_BITS:]) for _ in range(3))
    resets, holds, resetting = (Signal(bool(0)) for _ in range(3))
    anew = ClockReset(domain.clk)
    keeper = begin_anew(domain, resets, told, epoch, idle, now, stamp, resetting, holds)
    wrong = row_of([flag for found in wrongs for flag in (found.lost, found.stranger, found.unsent)])
    packs = packer(
        anew, xs, room, all_heads, idle, write, write_at, write_data, made, made_peer, made_beats, made_end,
        unit=words_of,
    )  # fmt: skip
    replay = simple_dual_port(
        domain.clk, write, write_at, write_data, fetch, fetch_at, word, depth=words_of.depth, width=word_bits
    )
    keeps = [
        port_peer(anew, made, made_peer, made_beats, made_end, hears[i], said, sayings[i], wrongs[i],
                  rooms[i], heads[i], starts[i], lengths[i], index=i, unit=words_of, timing=each)
        for i, each in enumerate(unit.timings)
    ]  # fmt: skip
    sends = transmitter(
        domain, sayings, said, row_of(starts), row_of(lengths), own, others, stamp, digest, fetch, fetch_at, word, tx,
        idle, unit=words_of,
    )  # fmt: skip
    takes = receiver(
        domain, anew, rx, row_of([saying.acknowledge for saying in sayings]), own, others, now, digest, hears, resets,
        told, words, dropped, malformed, sink=sink,
    )  # fmt: skip

    @always_comb
    def begin() -> None:
        anew.rst.next = domain.rst or holds

    @always_comb
    def out() -> None:
        faults.next = wrong
        reset.next = resetting
        current.next = now

    return keeper, packs, replay, keeps, sends, takes, begin, out


@block
def port_peer(
    domain: ClockReset,
    made: Bit,
    made_peer: Bits,
    made_beats: Bits,
    made_end: Bits,
    heard: Heard,
    said: Bits,
    saying: Saying,
    faults: Faults,
    room: Bit,
    head: Bits,
    start: Bits,
    length: Bits,
    *,
    index: int,
    unit: Packer,
    timing: Timing,
) -> Instances:
    """What a port keeps of one of its peers: `peer_state` and `replay_ring`.

    Ports:
        made: in, 1 bit: a payload is complete, for peer ``made_peer``.
        made_peer: in, `address_width` ``(unit.peers)`` bits.
        made_beats, made_end: in, as wide as ``length`` and ``head``.
        heard: in, of this peer.
        said: in, a bit a peer.
        saying: out, of this peer.
        faults: out, from registers.
        room: out, 1 bit.
        head, start: out, ``unit.address_bits`` bits.
        length: out, ``unit.beats_bits`` bits.
    """
    mine, told = (Signal(bool(0)) for _ in range(2))
    freed = Signal(intbv(0)[timing.slot_bits + 1 :])
    state = peer_state(domain, mine, heard, told, saying, freed, faults, timing=timing)
    ring = replay_ring(
        domain, mine, made_beats, made_end, freed, faults.lost, told, saying.slot, room, head, start, length,
        first=unit.starts[index], region=unit.regions[index], most=unit.frames.payload_beats, timing=timing,
    )  # fmt: skip

    @always_comb
    def select() -> None:
        mine.next = made and made_peer == index
        told.next = said[index]

    return state, ring, select
