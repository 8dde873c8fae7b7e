"""What the header of a frame says, and whether a device may believe it: `header_claims`.

Each field is looked at in stages that move in every cycle, so the claims of a header are there a fixed time after it.
"""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.link.ethernet.frame import (
    ETH_BYTES,
    HEADER,
    HEADER_BYTES,
    HOST,
    IP_BYTES,
    VERSION,
    FrameFlag,
    FrameFormat,
    FrameType,
)
from hdl.link.ethernet.peers import KIND_BITS, SEQUENCE_BITS
from hdl.link.ethernet.transmitter import (
    EPOCH_BITS,
    IP_BITS,
    LENGTH_BITS,
    MAC_BITS,
    NUMBER_BITS,
    PEER_BITS,
)
from hdl.signals import Bit, Bits, Clock, Instances
from hdl.stream import bits_of

# from a header in its register to its claims
CLAIMS_CYCLES = 4


class Claims:
    """What the header of a frame says: whether it is one of ours, whose, of which kind.  ``beats`` are there a cycle
    before."""

    def __init__(self, peers: int) -> None:
        self.foreign: Bit = Signal(bool(0))
        self.checksum: Bit = Signal(bool(0))
        self.version: Bit = Signal(bool(0))
        # it says that it has a tag and there is no key, or the other way round
        self.unkeyed: Bit = Signal(bool(0))
        self.length: Bit = Signal(bool(0))
        self.address: Bit = Signal(bool(0))
        self.epoch: Bit = Signal(bool(0))
        self.digest: Bit = Signal(bool(0))
        self.beats: Bits = Signal(intbv(0)[HEADER["dtl.beats"].bits :])
        self.kind: Bits = Signal(intbv(0)[KIND_BITS:])
        self.acknowledge: Bits = Signal(intbv(0)[SEQUENCE_BITS:])
        # a bit a peer
        self.source: Bits = Signal(intbv(0)[peers:])
        # the epoch that it is of, and whether the host sent it
        self.told: Bits = Signal(intbv(0)[EPOCH_BITS:])
        self.host: Bit = Signal(bool(0))
        # DATA that is expected, or came before
        self.expected: Bit = Signal(bool(0))
        self.stale: Bit = Signal(bool(0))


@block
def header_claims(
    clk: Clock,
    header: Bits,
    expected: Bits,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    claims: Claims,
    *,
    frames: FrameFormat,
    peers: int,
) -> Instances:
    """What the header of a frame says; stages that move in every cycle.

    Ports:
        header: in, 512 bits, the first byte lowest.
        expected: in, 32 bits a peer, as of two cycles before ``claims``.
        own, others, epoch, digest: in, as in `hdl.link.ethernet.receiver.receiver`.
        claims: out, `CLAIMS_CYCLES` after ``header``, from registers; ``checksum`` a cycle later.
    """
    top = HEADER_BYTES - 1
    number = Signal(intbv(0)[HEADER_BYTES * 8 :])
    first = Claims(peers)
    sequence = Signal(intbv(0)[SEQUENCE_BITS:])
    fixed = fixed_fields(clk, number, first.foreign, first.version, first.unkeyed, keyed=frames.key is not None)
    sums = ip_sums(clk, number, claims.checksum)
    lengths = told_lengths(clk, number, first.length, frames=frames)
    ahead = Signal(modbv(0)[EPOCH_BITS:])
    places = address_fields(clk, number, own, others, epoch, digest, first, ahead, peers=peers)
    kept = late_claims(clk, first, sequence, ahead, expected, claims, peers=peers)
    kind_at, sequence_at, acknowledge_at, beats_at = (
        HEADER[f"dtl.{name}"].low for name in ("type", "sequence", "acknowledge", "beats")
    )
    kind_end, sequence_end = kind_at + KIND_BITS, sequence_at + SEQUENCE_BITS
    acknowledge_end, beats_end = acknowledge_at + SEQUENCE_BITS, beats_at + len(first.beats)

    @always_comb
    def swap() -> None:
        for i in range(top + 1):
            number.next[bits_of(i, 8)] = header[bits_of(top - i, 8)]

    @always(clk.posedge)
    def hold() -> None:
        first.kind.next = number[kind_end:kind_at]
        first.acknowledge.next = number[acknowledge_end:acknowledge_at]
        first.beats.next = number[beats_end:beats_at]
        sequence.next = number[sequence_end:sequence_at]

    return fixed, sums, lengths, places, kept, swap, hold


@block
def fixed_fields(clk: Clock, number: Bits, foreign: Bit, version: Bit, unkeyed: Bit, *, keyed: bool) -> Instances:
    """Whether fields that must have one value have another one.

    Ports:
        number: in, a header, the first byte highest.
        foreign: out, 1 bit, 1 cycle later: in Ethernet, IPv4 or UDP.
        version: out, 1 bit, 1 cycle later: there is no such version, type or flag.
        unkeyed: out, 1 bit, 1 cycle later: the flag of a tag is not ``keyed``.
    """
    fields = [field for field in HEADER.values() if field.required and field.layer != "dtl"]
    mask = sum(((1 << field.bits) - 1) << field.low for field in fields)
    value = sum((field.constant or 0) << field.low for field in fields)
    wide = len(number)
    different = Signal(intbv(0)[wide:])
    version_at, kind_at, flags_at = (HEADER[f"dtl.{name}"].low for name in ("version", "type", "flags"))
    version_end, kind_end, flags_end = version_at + 4, kind_at + KIND_BITS, flags_at + 8
    only, most, keyed_flag, wanted = VERSION, max(FrameType), FrameFlag.KEYED.bit_length(), bool(keyed)

    @always_comb
    def compare() -> None:
        different.next = (number ^ intbv(value)[512:]) & intbv(mask)[512:]

    @always(clk.posedge)
    def judge() -> None:
        foreign.next = different != 0
        version.next = (
            number[version_end:version_at] != only
            or number[kind_end:kind_at] == 0
            or number[kind_end:kind_at] > most
            or number[flags_end : flags_at + keyed_flag] != 0
        )
        unkeyed.next = number[flags_at] != wanted

    return compare, judge


@block
def ip_sums(clk: Clock, number: Bits, wrong: Bit) -> Instances:
    """Whether the IPv4 header's checksum is wrong.

    Ports:
        number: in, a header, the first byte highest.
        wrong: out, 1 bit, 5 cycles later.
    """
    low = (HEADER_BYTES - ETH_BYTES - IP_BYTES) * 8
    pairs = [Signal(intbv(0)[17:]) for _ in range(5)]
    more = [Signal(intbv(0)[18:]) for _ in range(3)]
    most = Signal(intbv(0)[19:])
    rest = Signal(intbv(0)[17:])
    total = Signal(intbv(0)[20:])
    folded = Signal(intbv(0)[17:])

    @always(clk.posedge)
    def add_words() -> None:
        for i in range(5):
            pairs[i].next = number[bits_of(2 * i, 16, low)] + number[bits_of(2 * i + 1, 16, low)]

    @always(clk.posedge)
    def add_pairs() -> None:
        more[0].next = pairs[0] + pairs[1]
        more[1].next = pairs[2] + pairs[3]
        more[2].next = pairs[4]

    @always(clk.posedge)
    def add_all() -> None:
        most.next = more[0] + more[1]
        rest.next = more[2]
        total.next = most + rest

    @always_comb
    def fold() -> None:
        folded.next = total[16:] + total[20:16]

    @always(clk.posedge)
    def judge() -> None:
        wrong.next = folded != 0xFFFF

    return add_words, add_pairs, add_all, fold, judge


@block
def told_lengths(clk: Clock, number: Bits, wrong: Bit, *, frames: FrameFormat) -> Instances:
    """Whether lengths of IPv4, UDP and DTL disagree, or a type of frame has a payload that it can't have.

    Ports:
        number: in, a header, the first byte highest.
        wrong: out, 1 bit, 1 cycle later, not from a register.
    """
    ip_at, udp_at, beats_at, kind_at = (
        HEADER[name].low for name in ("ip.length", "udp.length", "dtl.beats", "dtl.type")
    )
    ip_end, udp_end, beats_end, kind_end = ip_at + 16, udp_at + 16, beats_at + 16, kind_at + KIND_BITS
    size, bare, ip_bytes = frames.word_bytes, frames.frame_bytes(0) - ETH_BYTES, IP_BYTES
    data_kind, control_kind = int(FrameType.DATA), int(FrameType.CONTROL)
    told, whole = (Signal(intbv(0)[16 + size.bit_length() :]) for _ in range(2))
    length = Signal(intbv(0)[16:])
    empty, data, bare_kind = (Signal(bool(0)) for _ in range(3))

    @always(clk.posedge)
    def add() -> None:
        told.next = number[beats_end:beats_at] * size + bare
        whole.next = number[udp_end:udp_at] + ip_bytes
        length.next = number[ip_end:ip_at]
        empty.next = number[beats_end:beats_at] == 0
        data.next = number[kind_end:kind_at] == data_kind
        bare_kind.next = number[kind_end:kind_at] != data_kind and number[kind_end:kind_at] != control_kind

    @always_comb
    def judge() -> None:
        wrong.next = told != length or whole != length or (data and empty) or (bare_kind and not empty)

    return add, judge


@block
def address_fields(
    clk: Clock,
    number: Bits,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    claims: Claims,
    ahead: Bits,
    *,
    peers: int,
) -> Instances:
    """Whether a frame is for this device, and which peer's.

    Ports:
        number: in, a header, the first byte highest.
        own, others, epoch, digest: in, as in `hdl.link.ethernet.receiver.receiver`.
        claims: out, ``address`` (to another device), ``told``, ``host``, ``digest`` and ``source``, 1 cycle later.
        ahead: out, 16 bits, 1 cycle later: how far its epoch is behind this one, going round.
    """
    count, host = peers, HOST
    mac_at, target_at, source_at = (HEADER[name].low for name in ("eth.target", "ip.target", "ip.source"))
    to_at, from_at, epoch_at, digest_at = (
        HEADER[f"dtl.{name}"].low for name in ("target", "source", "epoch", "digest")
    )
    mac_end, target_end, source_end = mac_at + MAC_BITS, target_at + IP_BITS, source_at + IP_BITS
    to_end, from_end, epoch_end, digest_end = to_at + 16, from_at + 16, epoch_at + 16, digest_at + 32
    ip_low, mac_low, own_top = NUMBER_BITS, NUMBER_BITS + IP_BITS, NUMBER_BITS + IP_BITS + MAC_BITS
    # device number and IP address of a peer, behind its sum
    told = Signal(intbv(0)[NUMBER_BITS + IP_BITS :])
    low, half = LENGTH_BITS, NUMBER_BITS + IP_BITS

    @always_comb
    def source() -> None:
        told.next[ip_low:] = number[from_end:from_at]
        told.next[half:ip_low] = number[source_end:source_at]

    @always(clk.posedge)
    def judge() -> None:
        claims.address.next = (
            number[mac_end:mac_at] != own[own_top:mac_low]
            or number[target_end:target_at] != own[mac_low:ip_low]
            or number[to_end:to_at] != own[ip_low:]
        )
        claims.told.next = number[epoch_end:epoch_at]
        claims.host.next = number[from_end:from_at] == host
        ahead.next = number[epoch_end:epoch_at] - epoch
        claims.digest.next = number[digest_end:digest_at] != digest
        for i in range(count):
            claims.source.next[i] = told == others[bits_of(0, half, i * PEER_BITS + low)]

    return source, judge


@block
def late_claims(
    clk: Clock, first: Claims, sequence: Bits, ahead: Bits, expected: Bits, claims: Claims, *, peers: int
) -> Instances:
    """Claims in the cycle of the verdict, and where epoch and sequence number stand.

    Ports:
        first: in, but for ``checksum``, ``epoch``, ``expected`` and ``stale``.
        sequence: in, 32 bits, with ``first``.
        ahead: in, 16 bits, with ``first``.
        expected: in, 32 bits a peer, two cycles before ``claims``.
        claims: out, but for ``checksum``, 3 cycles after ``first``, ``beats`` a cycle earlier, from registers.
    """
    count, half = peers, 1 << (SEQUENCE_BITS - 1)
    second, third = Claims(peers), Claims(peers)
    later, wanted = (Signal(intbv(0)[SEQUENCE_BITS:]) for _ in range(2))
    beats = Signal(intbv(0)[len(first.beats) :])
    behind = Signal(modbv(0)[SEQUENCE_BITS:])
    epochs = epoch_claims(clk, first, ahead, second)
    holds = [_hold_claims(clk, a, b) for a, b in ((first, second), (second, third), (third, claims))]
    holds += [_hold_epoch(clk, a, b) for a, b in ((second, third), (third, claims))]

    @always_comb
    def choose() -> None:
        wanted.next = expected[SEQUENCE_BITS:]
        for i in range(1, count):
            if second.source[i]:
                wanted.next = expected[bits_of(i, SEQUENCE_BITS)]

    @always(clk.posedge)
    def compare() -> None:
        later.next = sequence
        beats.next = first.beats
        claims.beats.next = beats
        behind.next = wanted - later
        claims.expected.next = behind == 0
        claims.stale.next = behind != 0 and behind <= half

    return epochs, holds, choose, compare


@block
def epoch_claims(clk: Clock, first: Claims, ahead: Bits, second: Claims) -> Instances:
    """Frames are of this epoch.  RESET alone is of a later one, and the host's alone.

    Ports:
        first: in; ``kind``, ``address`` and ``host``.
        ahead: in, 16 bits, with ``first``.
        second: out; ``epoch`` and ``address``, 1 cycle later.
    """
    reset_kind, half = int(FrameType.RESET), 1 << (EPOCH_BITS - 1)

    @always(clk.posedge)
    def judge() -> None:
        second.address.next = first.address or (first.kind == reset_kind and not first.host)
        second.epoch.next = ahead != 0
        if first.kind == reset_kind:
            second.epoch.next = ahead == 0 or ahead >= half

    return judge


@block
def _hold_claims(clk: Clock, x: Claims, y: Claims) -> Instances:
    @always(clk.posedge)
    def hold() -> None:
        y.foreign.next = x.foreign
        y.version.next = x.version
        y.unkeyed.next = x.unkeyed
        y.length.next = x.length
        y.digest.next = x.digest
        y.kind.next = x.kind
        y.acknowledge.next = x.acknowledge
        y.source.next = x.source
        y.told.next = x.told

    return hold


@block
def _hold_epoch(clk: Clock, x: Claims, y: Claims) -> Instances:
    @always(clk.posedge)
    def hold() -> None:
        y.address.next = x.address
        y.epoch.next = x.epoch

    return hold
