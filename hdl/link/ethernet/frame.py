"""What a frame looks like, once for circuits, Python and Wireshark.

Bytes from the first one on, numbers in network byte order::

    Ethernet 14 | IPv4 20 | UDP 8 | DTL 22 | payload: beats of word_bits | CRC-32C 4 | tag 8, if keyed

then the MAC adds its FCS.  Ethernet, IPv4 and UDP have no options, so the payload begins at byte 64 and at a beat of
every width.  DTL is the header of this project.  The CRC covers DTL and payload; the tag, which only clusters with a
key have, covers DTL and CRC (`hdl.link.ethernet.keyed`).

The payload is a sequence of *groups*: a beat of descriptors (`DESCRIPTOR`, 64 bits each, the first one in its first 8
bytes, unused ones zero and behind the others), then the words that these announce, in their order.  A descriptor
announces up to 255 words of one stream, of which only the last may end a tensor, or returns credits.  A word fills a
beat; its bits 7:0 are the beat's first byte.

To a circuit the 64 header bytes are one number of 512 bits, the first byte highest, in which a field is
``header[low + bits - 1 : low]`` (`Field.low`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum, IntEnum, IntFlag
from fractions import Fraction
from functools import cached_property

from hdl.link.ethernet.keyed import tag_of

# UDP port of every device and of the host
UDP_PORT = 0x4454
ETHERTYPE_IPV4, PROTOCOL_UDP, TIME_TO_LIVE = 0x0800, 17, 64
# version of DTL
VERSION = 1
# device number of the host
HOST = 0xFFFF
# widths of a beat that frames are defined for
WORD_BITS = (64, 128, 256, 512)
# greatest IP packet, bytes
LEAST_MTU, MOST_MTU = 576, 9216
CRC_BYTES, TAG_BYTES = 4, 8
# what goes over the cable beside the frame: preamble and start 8, FCS 4, gap 12
CABLE_BYTES = 24
# words of a stream that the planner counts to a descriptor
BURST_WORDS = 32
DESCRIPTOR_BITS = 64
# CRC-32C (Castagnoli), least significant bit of each byte first; starts and is inverted with all ones
CRC_POLYNOMIAL = 0x82F63B78
ALL_ONES = 0xFFFFFFFF


# fields that every frame of ours has at a constant and that receivers don't look at: a UDP socket sets them as its
# operating system likes, and a router counts the time to live
UNHEEDED = frozenset({"ip.service", "ip.identification", "ip.dont_fragment", "ip.time_to_live", "udp.checksum"})


class FrameType(IntEnum):
    """What a frame is for.  Only DATA has a payload and takes a sequence number; every type acknowledges."""

    DATA = 1
    # a frame without payload that only acknowledges
    ACK = 2
    # as ACK; and what was sent since then is to be sent again
    NAK = 3
    # "I am here", with epoch and plan digest; repeated until READY comes
    HELLO = 4
    # the answer to HELLO of the same epoch and digest
    READY = 5
    # from the host: start anew with this epoch
    RESET = 6
    # from the host and back: what is no stream (counters)
    CONTROL = 7


_KINDS = {int(kind): kind for kind in FrameType}


class FrameFlag(IntFlag):
    """Field ``flags`` of DTL; all other bits are 0."""

    # a tag stands behind the CRC
    KEYED = 1


_KEYED = int(FrameFlag.KEYED)


class DescriptorFlag(IntFlag):
    """Field ``flags`` of a descriptor; all other bits are 0."""

    # the last of the words ends a tensor
    LAST = 1
    # no words: ``credits`` come back to the sender of the stream
    CREDIT = 2


class Drop(Enum):
    """Why a frame is not heard; the first cause in this order is counted.

    The first eight are seen by the frame alone, the others by who receives it."""

    SHORT = "short"
    # not from a port of ours: another EtherType, protocol, UDP port; fragments, options
    FOREIGN = "foreign"
    # IPv4's header checksum
    CHECKSUM = "checksum"
    # version, type or flags that there are none of
    VERSION = "version"
    # lengths of IPv4, UDP and DTL that disagree with one another or with the frame
    LENGTH = "length"
    CRC = "crc"
    # without the cluster's key.  That there is no tag, or one and no key, is seen before the length
    TAG = "tag"
    # descriptors that announce other words than there are
    PAYLOAD = "payload"
    # to another device, or from none that is a peer, or with addresses that are not its own
    ADDRESS = "address"
    EPOCH = "epoch"
    # of another plan
    DIGEST = "digest"
    # came before
    DUPLICATE = "duplicate"
    # one before it is missing
    GAP = "gap"


class Dropped(Exception):
    """A frame that is not heard, for its ``cause``."""

    def __init__(self, cause: Drop, text: str) -> None:
        super().__init__(f"{cause.value}: {text}")
        self.cause = cause


@dataclass(frozen=True)
class Field:
    """A field of a table of fields, numbers with the most significant bit first."""

    layer: str
    name: str
    bits: int
    # of every frame that is sent; None: differs
    constant: int | None
    # bits of the table before it, and behind it
    offset: int
    low: int
    # what it says, for readers
    meaning: str

    @property
    def label(self) -> str:
        """Its name in the whole table."""
        return f"{self.layer}.{self.name}"

    @property
    def required(self) -> bool:
        """Whether a frame with another value is not heard."""
        return self.constant is not None and self.label not in UNHEEDED

    def of(self, table: int) -> int:
        """Its value in the number that the whole table is."""
        return table >> self.low & ((1 << self.bits) - 1)


Row = tuple[str, str, int, int | None, str]


def _table(rows: Sequence[Row]) -> Mapping[str, Field]:
    """Fields by label, one behind the other."""
    total, offset = sum(bits for _, _, bits, _, _ in rows), 0
    found = {}
    for layer, name, bits, constant, meaning in rows:
        field = Field(layer, name, bits, constant, offset, total - offset - bits, meaning)
        found[field.label] = field
        offset += bits
    return found


_OUTER_ROWS: list[Row] = [
    ("eth", "target", 48, None, "MAC address"),
    ("eth", "source", 48, None, "MAC address"),
    ("eth", "type", 16, ETHERTYPE_IPV4, "IPv4"),
    ("ip", "version", 4, 4, ""),
    ("ip", "header_words", 4, 5, "no options"),
    ("ip", "service", 8, 0, ""),
    ("ip", "length", 16, None, "bytes from here to the end of the frame"),
    ("ip", "identification", 16, 0, "of no use without fragments"),
    ("ip", "reserved", 1, 0, ""),
    ("ip", "dont_fragment", 1, 1, ""),
    ("ip", "more_fragments", 1, 0, ""),
    ("ip", "fragment_offset", 13, 0, ""),
    ("ip", "time_to_live", 8, TIME_TO_LIVE, ""),
    ("ip", "protocol", 8, PROTOCOL_UDP, "UDP"),
    ("ip", "checksum", 16, None, "of the IPv4 header"),
    ("ip", "source", 32, None, ""),
    ("ip", "target", 32, None, ""),
    ("udp", "source", 16, UDP_PORT, ""),
    ("udp", "target", 16, UDP_PORT, ""),
    ("udp", "length", 16, None, "bytes from this header to the end of the frame"),
    ("udp", "checksum", 16, 0, "none: the CRC is stronger"),
]
_DTL_ROWS: list[Row] = [
    ("dtl", "version", 4, VERSION, ""),
    ("dtl", "type", 4, None, "DATA, ACK …"),
    ("dtl", "flags", 8, None, "bit 0: keyed"),
    ("dtl", "source", 16, None, "number of the device, 0xFFFF of the host"),
    ("dtl", "target", 16, None, ""),
    ("dtl", "epoch", 16, None, "counts the resets of the cluster"),
    ("dtl", "sequence", 32, None, "of DATA: its number; else that of the next DATA"),
    ("dtl", "acknowledge", 32, None, "number of the DATA frame that is expected next"),
    ("dtl", "beats", 16, None, "of the payload"),
    ("dtl", "digest", 32, None, "first bits of the plan's SHA-256"),
]
# what a UDP socket does not see, what it sees of a header, and both
OUTER, DTL, HEADER = _table(_OUTER_ROWS), _table(_DTL_ROWS), _table([*_OUTER_ROWS, *_DTL_ROWS])
DESCRIPTOR = _table(
    [
        ("descriptor", "stream", 16, None, "number in the cluster"),
        ("descriptor", "words", 8, None, "that follow, of this stream"),
        ("descriptor", "sequence", 8, None, "of the first of them"),
        ("descriptor", "flags", 8, None, "bit 0: the last word ends a tensor; bit 1: credits, no words"),
        ("descriptor", "credits", 24, None, "that come back to the stream's sender"),
    ]
)


def _bytes_of(layers: Iterable[str]) -> int:
    return sum(field.bits for field in HEADER.values() if field.layer in layers) // 8


ETH_BYTES, IP_BYTES, UDP_BYTES, DTL_BYTES = (_bytes_of([layer]) for layer in ("eth", "ip", "udp", "dtl"))
HEADER_BYTES = ETH_BYTES + IP_BYTES + UDP_BYTES + DTL_BYTES
DTL_START = HEADER_BYTES - DTL_BYTES
MOST_WORDS = (1 << DESCRIPTOR["descriptor.words"].bits) - 1
MOST_CREDITS = (1 << DESCRIPTOR["descriptor.credits"].bits) - 1
SEQUENCES = 1 << HEADER["dtl.sequence"].bits
# by bits, for `struct`
_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}


def pack_fields(table: Mapping[str, Field], values: Mapping[str, int]) -> bytes:
    """The bytes of a table of fields: its constants and ``values`` by label.

    Raises:
        ValueError: a value is missing, is no field's, or does not fit its field.
    """
    total, number = 0, 0
    unknown = set(values) - set(table)
    for label, field in table.items():
        value = values.get(label, field.constant)
        if value is None or not 0 <= value < 1 << field.bits:
            raise ValueError(f"{label} = {value}: needs a number of {field.bits} bits")
        number |= value << field.low
        total += field.bits
    if unknown:
        raise ValueError(f"no fields {', '.join(sorted(unknown))}")
    return number.to_bytes(total // 8, "big")


def unpack_fields(table: Mapping[str, Field], data: bytes) -> dict[str, int]:
    """Label → value of the bytes of a table of fields."""
    number = int.from_bytes(data, "big")
    return {label: field.of(number) for label, field in table.items()}


def struct_of(table: Mapping[str, Field]) -> struct.Struct:
    """What unpacks a table of fields as numbers of whole bytes; fields of less than a byte are one number together."""
    codes, bits = ">", 0
    for field in table.values():
        bits += field.bits
        if bits % 8 == 0:
            codes, bits = codes + _CODES[bits], 0
    return struct.Struct(codes)


def ip_checksum(header: bytes) -> int:
    """IPv4's checksum of a header whose own checksum is 0; 0 of one with the right checksum."""
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (CRC_POLYNOMIAL if byte & 1 else 0)
    return byte


_CRC_OF_BYTE = tuple(map(_crc_of_byte, range(256)))


def crc32c(data: bytes) -> int:
    """CRC-32C of bytes."""
    crc = ALL_ONES
    for byte in data:
        crc = crc >> 8 ^ _CRC_OF_BYTE[(crc ^ byte) & 255]
    return crc ^ ALL_ONES


# version and type, flags, source, target, epoch, sequence, acknowledge, beats, digest
_DTL = struct_of(DTL)
_KIND_BITS = DTL["dtl.type"].bits


@dataclass(frozen=True)
class Address:
    """Where a device or the host is found."""

    # number in the cluster, or `HOST`
    number: int
    # 48 and 32 bits
    mac: int
    ip: int

    @property
    def mac_text(self) -> str:
        """As "02:00:00:00:00:01"."""
        return ":".join(f"{byte:02x}" for byte in self.mac.to_bytes(6, "big"))

    @property
    def ip_text(self) -> str:
        """As "10.0.0.1"."""
        return ".".join(str(byte) for byte in self.ip.to_bytes(4, "big"))


def ends_of(data: bytes) -> tuple[Address, Address]:
    """From where and to where a frame goes, by what it says.  One whose ends are not those that the cluster has for
    these numbers is dropped as `Drop.ADDRESS`."""
    told = unpack_fields(HEADER, data[:HEADER_BYTES])
    source, target = (
        Address(number=told[f"dtl.{end}"], mac=told[f"eth.{end}"], ip=told[f"ip.{end}"]) for end in ("source", "target")
    )
    return source, target


def wrapped(datagram: bytes, source: Address, target: Address) -> bytes:
    """A frame of a datagram (DTL to trailer), as the MAC gets it.  Raises `ValueError` as `pack_fields`."""
    length = DTL_START - ETH_BYTES + len(datagram)
    values = {
        "eth.target": target.mac,
        "eth.source": source.mac,
        "ip.length": length,
        "ip.checksum": 0,
        "ip.source": source.ip,
        "ip.target": target.ip,
        "udp.length": length - IP_BYTES,
    }
    values["ip.checksum"] = ip_checksum(pack_fields(OUTER, values)[ETH_BYTES : ETH_BYTES + IP_BYTES])
    return pack_fields(OUTER, values) + datagram


def unwrapped(data: bytes) -> bytes:
    """The datagram of a frame that a MAC delivers, without FCS, as an operating system gives it to a UDP socket.

    Raises:
        Dropped: it is short or foreign, or its IPv4 checksum or a length is wrong.
    """
    if len(data) < HEADER_BYTES + CRC_BYTES:
        raise Dropped(Drop.SHORT, f"{len(data)} bytes")
    values = _outer(data)
    if not values["ip.length"] == len(data) - ETH_BYTES == values["udp.length"] + IP_BYTES:
        raise Dropped(Drop.LENGTH, f"{len(data)} bytes, {values['ip.length']} of IPv4, {values['udp.length']} of UDP")
    return data[DTL_START:]


def _outer(data: bytes) -> dict[str, int]:
    """Fields in front of DTL.  Raises `Dropped` where they are not those of a frame of ours."""
    outer = data[:DTL_START]
    values = unpack_fields(OUTER, outer)
    for label, field in OUTER.items():
        if field.required and values[label] != field.constant:
            raise Dropped(Drop.FOREIGN, f"{label} = {values[label]:#x}")
    if ip_checksum(outer[ETH_BYTES : ETH_BYTES + IP_BYTES]):
        raise Dropped(Drop.CHECKSUM, f"{values['ip.checksum']:#06x}")
    return values


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a frame says, between two known addresses."""

    kind: FrameType
    # numbers of the devices
    source: int
    target: int
    epoch: int
    sequence: int
    acknowledge: int
    # first 32 bits of the plan's SHA-256
    digest: int
    # whole beats
    payload: bytes = b""


def _misfit(frame: Frame) -> str:
    """The first number of a frame that does not fit its field."""
    numbers = ((field, getattr(frame, field.name)) for field in DTL.values() if hasattr(frame, field.name))
    field, value = next((field, value) for field, value in numbers if not 0 <= value < 1 << field.bits)
    return f"{field.label} = {value}: needs a number of {field.bits} bits"


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What a descriptor announces: words of one stream, or credits for it."""

    stream: int
    # each of `FrameFormat.word_bits` bits
    words: tuple[int, ...] = ()
    # number of the first of them
    sequence: int = 0
    # whether the last of them ends a tensor
    last: bool = False
    # more than 0 where there are no words
    credits: int = 0

    def __post_init__(self) -> None:
        if len(self.words) > MOST_WORDS or not 0 <= self.credits <= MOST_CREDITS:
            raise ValueError(f"{len(self.words)} words and {self.credits} credits do not fit a descriptor")
        if bool(self.words) == bool(self.credits):
            raise ValueError(f"stream {self.stream}: a descriptor has either words or credits")
        if self.credits and (self.last or self.sequence):
            raise ValueError(f"stream {self.stream}: credits have no sequence number and end no tensor")

    @property
    def descriptor(self) -> bytes:
        """Its descriptor."""
        flags = DescriptorFlag.CREDIT if self.credits else DescriptorFlag.LAST if self.last else DescriptorFlag(0)
        return pack_fields(
            DESCRIPTOR,
            {
                "descriptor.stream": self.stream,
                "descriptor.words": len(self.words),
                "descriptor.sequence": self.sequence,
                "descriptor.flags": int(flags),
                "descriptor.credits": self.credits,
            },
        )


@dataclass(frozen=True, kw_only=True)
class FrameFormat:
    """Frames of one cluster.

    Raises:
        ValueError: on creation, of a width or an MTU that there are no frames of.
    """

    # bits of a beat
    word_bits: int
    # bytes of the greatest IP packet
    mtu: int
    # 64 bits; None: frames have no tag
    key: int | None = None
    # computes CRC-32C: `crc32c`, or as that one, faster
    sum: Callable[[bytes], int] = dataclass_field(default=crc32c, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.word_bits not in WORD_BITS:
            raise ValueError(f"frames have beats of {', '.join(map(str, WORD_BITS))} bits, not {self.word_bits}")
        if not LEAST_MTU <= self.mtu <= MOST_MTU:
            raise ValueError(f"an MTU is {LEAST_MTU} to {MOST_MTU} bytes, not {self.mtu}")
        if self.key is not None and not 0 <= self.key < 1 << 64:
            raise ValueError("a key has 64 bits")

    @cached_property
    def word_bytes(self) -> int:
        """Bytes of a beat."""
        return self.word_bits // 8

    @cached_property
    def descriptors(self) -> int:
        """Descriptors of a beat."""
        return self.word_bits // DESCRIPTOR_BITS

    @property
    def trailer_bytes(self) -> int:
        """CRC, and the tag if there is one."""
        return CRC_BYTES if self.key is None else CRC_BYTES + TAG_BYTES

    @property
    def last_bytes(self) -> int:
        """Bytes of a frame's last beat."""
        return self.trailer_bytes % self.word_bytes

    @cached_property
    def payload_beats(self) -> int:
        """Beats of the longest payload."""
        return (self.mtu - (HEADER_BYTES - ETH_BYTES) - self.trailer_bytes) // self.word_bytes

    def frame_bytes(self, beats: int) -> int:
        """Bytes of a frame with so many beats of payload, as the MAC gets it: without FCS."""
        return HEADER_BYTES + beats * self.word_bytes + self.trailer_bytes

    def full_words(self, burst: int = BURST_WORDS) -> int:
        """Words of the longest payload where each descriptor announces so many."""
        groups, rest = divmod(self.payload_beats, 1 + self.descriptors * burst)
        return groups * self.descriptors * burst + max(0, rest - 1)

    def full_beats(self, burst: int = BURST_WORDS) -> int:
        """Beats of that payload: no descriptors stand at its end without words."""
        return self.payload_beats - (self.payload_beats % (1 + self.descriptors * burst) == 1)

    def efficiency(self, burst: int = BURST_WORDS) -> Fraction:
        """Part of a cable's rate that is left for words: of longest frames, with what else goes over the cable."""
        frame = self.frame_bytes(self.full_beats(burst)) + CABLE_BYTES
        return Fraction(self.full_words(burst) * self.word_bytes, frame)

    # -------------------------------------------------------------------------------------------- frames

    def build(self, frame: Frame, source: Address, target: Address) -> bytes:
        """The bytes of a frame, as the MAC gets them.

        Raises:
            ValueError: as `datagram`, or an address does not fit its field.
        """
        return wrapped(self.datagram(frame), source, target)

    def datagram(self, frame: Frame) -> bytes:
        """What a frame is to a UDP socket: from DTL on.

        Raises:
            ValueError: the payload is no whole number of beats or too long, or a number does not fit its field.
        """
        beats, rest = divmod(len(frame.payload), self.word_bytes)
        if rest or beats > self.payload_beats:
            raise ValueError(
                f"a payload of {len(frame.payload)} bytes: at most {self.payload_beats} beats of {self.word_bytes} fit"
            )
        if bool(beats) != (frame.kind is FrameType.DATA) and frame.kind is not FrameType.CONTROL:
            raise ValueError(f"{frame.kind.name} with {beats} beats of payload: DATA and no other type has some")
        try:
            dtl = _DTL.pack(
                VERSION << _KIND_BITS | frame.kind,
                0 if self.key is None else _KEYED,
                frame.source,
                frame.target,
                frame.epoch,
                frame.sequence,
                frame.acknowledge,
                beats,
                frame.digest,
            )
        except struct.error:
            raise ValueError(_misfit(frame)) from None
        covered = dtl + frame.payload
        return covered + self.trailer(covered)

    def trailer(self, covered: bytes) -> bytes:
        """CRC and tag of a frame, of which these are DTL and payload."""
        crc = self.sum(covered).to_bytes(CRC_BYTES, "big")
        return crc if self.key is None else crc + tag_of(self.key, covered[:DTL_BYTES] + crc).to_bytes(TAG_BYTES, "big")

    def parse(self, data: bytes) -> Frame:
        """The frame of the bytes that a MAC delivers, without FCS.

        Descriptors (`bursts_of`), epoch, digest and device numbers are for who receives it.

        Raises:
            Dropped: the first cause, in the order of `Drop`, not to hear it.
        """
        if len(data) < HEADER_BYTES + CRC_BYTES:
            raise Dropped(Drop.SHORT, f"{len(data)} bytes")
        values = _outer(data)
        lengths = values["ip.length"] == len(data) - ETH_BYTES == values["udp.length"] + IP_BYTES
        return self._parsed(data[DTL_START:], lengths)

    def parse_datagram(self, data: bytes) -> Frame:
        """As `parse`, of what a UDP socket gives."""
        if len(data) < DTL_BYTES + CRC_BYTES:
            raise Dropped(Drop.SHORT, f"{len(data)} bytes")
        return self._parsed(data, True)

    def _parsed(self, data: bytes, lengths: bool) -> Frame:
        """The frame from DTL on, whose outer lengths agree or not."""
        first, flags, source, target, epoch, sequence, acknowledge, beats, digest = _DTL.unpack_from(data)
        version, number = first >> _KIND_BITS, first & ((1 << _KIND_BITS) - 1)
        kind = _KINDS.get(number)
        if version != VERSION or kind is None or flags & ~_KEYED:
            raise Dropped(Drop.VERSION, f"version {version}, type {number}, flags {flags:#x}")
        keyed = bool(flags)
        if keyed != (self.key is not None):
            raise Dropped(Drop.TAG, "a tag in a cluster without key" if keyed else "no tag")
        told = DTL_BYTES + beats * self.word_bytes + CRC_BYTES + keyed * TAG_BYTES
        if not lengths or told != len(data) or beats > self.payload_beats:
            raise Dropped(Drop.LENGTH, f"{len(data)} bytes from DTL on, {beats} beats")
        if bool(beats) != (kind is FrameType.DATA) and kind is not FrameType.CONTROL:
            raise Dropped(Drop.LENGTH, f"{beats} beats in a frame of type {number}")
        end = len(data) - self.trailer_bytes
        covered, found = data[:end], data[end:]
        right = self.trailer(covered)
        if found[:CRC_BYTES] != right[:CRC_BYTES]:
            raise Dropped(Drop.CRC, found[:CRC_BYTES].hex())
        if found != right:
            raise Dropped(Drop.TAG, found[CRC_BYTES:].hex())
        return Frame(
            kind=kind,
            source=source,
            target=target,
            epoch=epoch,
            sequence=sequence,
            acknowledge=acknowledge,
            digest=digest,
            payload=covered[DTL_BYTES:],
        )

    # -------------------------------------------------------------------------------------------- payloads

    def payload_of(self, bursts: Sequence[Burst]) -> bytes:
        """The payload of bursts, each group filled with as many as have descriptors in a beat."""
        parts = []
        for start in range(0, len(bursts), self.descriptors):
            group = bursts[start : start + self.descriptors]
            parts.append(b"".join(burst.descriptor for burst in group).ljust(self.word_bytes, b"\0"))
            parts += [word.to_bytes(self.word_bytes, "little") for burst in group for word in burst.words]
        return b"".join(parts)

    def bursts_of(self, payload: bytes) -> tuple[Burst, ...]:
        """The bursts of a payload of whole beats.

        Raises:
            Dropped: descriptors announce more words than there are, or are none; then no burst of it counts.
        """
        return tuple(self._bursts(payload))

    def _bursts(self, payload: bytes) -> Iterator[Burst]:
        size, at = self.word_bytes, 0
        while at < len(payload):
            group = [payload[at + k : at + k + 8] for k in range(0, size, 8)]
            at += size
            used = [descriptor for descriptor in group if any(descriptor)]
            if not used or used != group[: len(used)]:
                raise Dropped(Drop.PAYLOAD, "descriptors behind unused ones")
            for descriptor in used:
                told = unpack_fields(DESCRIPTOR, descriptor)
                count, flags = told["descriptor.words"], told["descriptor.flags"]
                if at + count * size > len(payload) or flags & ~int(DescriptorFlag.LAST | DescriptorFlag.CREDIT):
                    raise Dropped(Drop.PAYLOAD, f"{count} words with flags {flags:#x} at byte {at}")
                if bool(flags & DescriptorFlag.CREDIT) != bool(told["descriptor.credits"]):
                    raise Dropped(Drop.PAYLOAD, f"{told['descriptor.credits']} credits with flags {flags:#x}")
                words = [payload[at + k * size : at + (k + 1) * size] for k in range(count)]
                at += count * size
                yield _burst(told, tuple(int.from_bytes(word, "little") for word in words))

    def fill(self, bursts: Iterable[Burst]) -> list[tuple[Burst, ...]]:
        """Bursts cut into as few payloads as there must be, in their order; a burst may go on in the next payload."""
        done: list[tuple[Burst, ...]] = []
        current: list[Burst] = []
        beats = 0
        for burst in bursts:
            rest: Burst | None = burst
            while rest is not None:
                new = len(current) % self.descriptors == 0
                room = self.payload_beats - beats - new
                if room < bool(rest.words):
                    done.append(tuple(current))
                    current, beats = [], 0
                    continue
                head, rest = _cut(rest, room)
                current.append(head)
                beats += new + len(head.words)
        return [*done, tuple(current)] if current else done


def _burst(told: Mapping[str, int], words: tuple[int, ...]) -> Burst:
    """The burst of a descriptor and its words."""
    try:
        return Burst(
            stream=told["descriptor.stream"],
            words=words,
            sequence=told["descriptor.sequence"],
            last=bool(told["descriptor.flags"] & DescriptorFlag.LAST),
            credits=told["descriptor.credits"],
        )
    except ValueError as error:
        raise Dropped(Drop.PAYLOAD, str(error)) from None


def _cut(burst: Burst, words: int) -> tuple[Burst, Burst | None]:
    """At most so many words of a burst, and what is left."""
    if len(burst.words) <= words:
        return burst, None
    sequence = (burst.sequence + words) % (1 << DESCRIPTOR["descriptor.sequence"].bits)
    head = Burst(stream=burst.stream, words=burst.words[:words], sequence=burst.sequence)
    return head, Burst(stream=burst.stream, words=burst.words[words:], sequence=sequence, last=burst.last)
