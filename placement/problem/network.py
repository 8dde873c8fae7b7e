"""The network of a cluster file: which kind, its frames and addresses, its cables.

The whole schema is read and checked; what is not built yet is a problem that says so.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from hdl.errors import Problem
from hdl.link.ethernet.frame import DESCRIPTOR_BITS, LEAST_MTU, MOST_MTU, WORD_BITS, Address, FrameFormat
from hdl.link.ethernet.packer import FLUSH_CYCLES
from placement.problem.instance import Framing
from placement.problem.routes import LEAST_RING, Cable, topology_cables, unreached
from placement.problem.tables import Number, Table, device_names, entries, repeated

# of a device without a MAC address of its own: locally administered, then its number
LOCAL_MAC = 0x02_00_00_00_00_00
MULTICAST = 1 << 40
DEFAULT_SUBNET = "10.0.0.0/24"
# cycles that a network of words is taken to need from port to port, a microsecond at 200 MHz, and those that buffers
# allow for; with half as many each way, credits are back in them too
WORDS_CYCLES, WORDS_ALLOWED_CYCLES = 200, 512
# round trips of any cluster; to the host's program, and how long that may be silent
MOST_RTT_US = 10_000
MOST_HOST_RTT_US, MOST_SILENCE_S = 1_000_000, 1_000_000
MOST_GBIT = 10**6
NOT_YET = "is not built yet"
# what boards have with Ethernet alone
ONLY_FRAMED = ("mac", "mac_clock_mhz", "mac_word_bits")
# what a planner chooses from where the file leaves it the MTU, and where it searches for a placement first: the least,
# Ethernet's own, 4 KiB of payload with headers, jumbo frames
MTUS = (576, 1500, 4160, 9000)
SEARCHED_MTU = 4160


def _pattern(pattern: str, what: str) -> AfterValidator:
    """Holds a text against a pattern."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"is no {what}")
        return text

    return AfterValidator(check)


def _address(text: str) -> str:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError("is no IPv4 address") from None
    return text


def _subnet(text: str) -> str:
    try:
        ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"is no IPv4 network ({error})") from None
    return text


def _mtu(value: object) -> object:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError('is neither a whole number nor "auto"')
    if isinstance(value, int) and not LEAST_MTU <= value <= MOST_MTU:
        raise ValueError(f"is not in {LEAST_MTU} to {MOST_MTU}")
    return value


Ip = Annotated[str | None, AfterValidator(_address), Field(description='an IPv4 address as "10.0.0.1"')]
Mac = Annotated[
    str | None,
    _pattern(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", "MAC address"),
    Field(description='a MAC address as "02:00:00:00:00:01"'),
]
MacKind = Literal["axi-stream", "avalon-st"]
MacPort = Annotated[
    MacKind,
    Field(description='the ports of the MAC beside the design: "axi-stream" or "avalon-st"'),
]
MacBits = Annotated[Literal[64, 128, 256, 512] | None, Field(description="bits a beat of the MAC: 64, 128, 256 or 512")]
Side = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Ports = Annotated[int, Field(strict=True, ge=1, le=16, description="a whole number of network ports, 1 to 16")]


class NetworkTable(Table):
    """[network]: what goes over the cables between devices."""

    kind: Annotated[Literal["words", "ethernet"], Field(description='"words" or "ethernet"')] = "words"
    mtu: Annotated[
        int | Literal["auto"],
        BeforeValidator(_mtu),
        Field(description=f'bytes of the greatest IP packet, {LEAST_MTU} to {MOST_MTU}, or "auto"'),
    ] = 1500
    rtt_us: Annotated[
        Number, Field(gt=0, le=MOST_RTT_US, description="the round trip in µs, above 0 and at most 10 000")
    ] = Decimal(10)
    host_rtt_us: Annotated[
        Number,
        Field(
            gt=0,
            le=MOST_HOST_RTT_US,
            description="the round trip to the host's program in µs, above 0 and at most 1 000 000",
        ),
    ] = Decimal(2500)
    host_silence_s: Annotated[
        Number,
        Field(
            gt=0,
            le=MOST_SILENCE_S,
            description="how long the host may be silent in seconds, above 0 and at most 1 000 000",
        ),
    ] = Decimal(3600)
    topology: Annotated[
        Literal["switch", "cables", "chain", "ring", "mesh"],
        Field(description='"switch", "cables", "chain", "ring" or "mesh"'),
    ] = "switch"
    shape: Annotated[
        tuple[Side, Side] | None,
        Field(description="rows and columns of a mesh as [2, 4]: whole numbers of 1 to 10 000"),
    ] = None
    receivers: Annotated[Literal["fifos", "pool"], Field(description='"fifos" or "pool"')] = "fifos"
    ip: Annotated[str, AfterValidator(_subnet), Field(description='an IPv4 network as "10.0.0.0/24"')] = DEFAULT_SUBNET
    host_ip: Ip = None
    host_mac: Mac = None
    key: Annotated[
        str | None,
        _pattern(r"[0-9A-Fa-f]{16}", "number of 16 hexadecimal digits"),
        Field(description="16 hexadecimal digits in quotation marks"),
    ] = None


class CableTable(Table):
    """[[cable]]: two ports with a cable between them."""

    a: Annotated[str, Field(description='an end as "device:port"')]
    b: Annotated[str, Field(description='an end as "device:port"')]
    gbit_per_s: Annotated[
        Number | None,
        Field(gt=0, le=MOST_GBIT, description="the rate in 10⁹ bits/s, each direction, above 0 and at most 10⁶"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network of a cluster with all defaults filled in."""

    # None: words go over the network as they are
    frames: FrameFormat | None = None
    # MAC and IP address of each device in the order of devices; empty without frames
    addresses: tuple[Address, ...] = ()
    # where the host is, if its MAC address is known
    host_ip: int | None = None
    host_mac: int | None = None
    rtt_us: Fraction = Fraction(10)
    # to the host's program, and how long that may be silent
    host_rtt_us: Fraction = Fraction(2500)
    host_silence_s: Fraction = Fraction(3600)
    # whether the MTU is the planner's choice
    chooses_mtu: bool = False
    # whether a device has a MAC with clocks of its own, between which and the device's frames cross whole
    clocked: bool = False
    # whether all receivers of a device have one memory, and none a FIFO of its own
    pooled: bool = False
    # "chain", "ring" or "mesh" of the devices in their order; "cables" one by one; or all on a "switch"
    topology: str = "switch"
    # between which devices, where there is no switch; of a mesh, its columns
    cables: tuple[Cable, ...] = ()
    mesh_columns: int = 0

    @property
    def efficiency(self) -> Fraction:
        """Part of a cable's rate that is left for words."""
        return Fraction(1) if self.frames is None else self.frames.efficiency()

    def way_cycles(self, clock_hz: int) -> int:
        """Cycles that a word is taken to need from port to port: half a round trip, and in a full frame that waits for
        more, that is stored before it leaves, and once more before its words are taken, and wherever it crosses between
        the clocks of a MAC and its device."""
        if self.frames is None:
            return WORDS_CYCLES
        frame = -(-self.frames.frame_bytes(self.frames.payload_beats) // self.frames.word_bytes)
        return ceil(self.rtt_us * clock_hz / (2 * 10**6)) + FLUSH_CYCLES + (4 if self.clocked else 2) * frame

    def allowed_cycles(self, clock_hz: int) -> int:
        """Cycles under way that buffers allow for: credits are back in them."""
        return WORDS_ALLOWED_CYCLES if self.frames is None else 2 * self.way_cycles(clock_hz)

    def host_cycles(self, clock_hz: int) -> tuple[int, int]:
        """Of the round trip to the host's program, and those for which it may be silent."""
        return ceil(self.host_rtt_us * clock_hz / 10**6), ceil(self.host_silence_s * clock_hz)

    def joining(self, devices: Sequence[str], rates: Sequence[int]) -> Network:
        """The same of other devices, joined as these are, which are on no single cables; ``rates`` of their ports in
        bits/s."""
        if self.topology == "switch":
            return self
        return replace(self, cables=topology_cables(self.topology, devices, rates, self.mesh_columns))

    def of_instance(self, clock_hz: int) -> dict[str, Any]:
        """Fields of an instance on this network."""
        return {"framing": self.framing(clock_hz), "cables": self.cables, "mesh_columns": self.mesh_columns}

    def framing(self, clock_hz: int) -> Framing | None:
        """What an instance says of the frames."""
        form = self.frames
        if form is None:
            return None
        return Framing(
            mtu=form.mtu,
            word_bits=form.word_bits,
            keyed=form.key is not None,
            round_trip_cycles=self.allowed_cycles(clock_hz),
        )

    @property
    def credit_bits(self) -> Fraction | None:
        """What credits that go back take of what a cable carries of words, in bits, where words leave in frames: a
        descriptor, beside as many words as a full frame has for its beats.  None: a word."""
        form = self.frames
        return None if form is None else Fraction(DESCRIPTOR_BITS * form.full_words(), form.full_beats())

    def replay_regions(self, rates: Sequence[Fraction], clock_hz: int) -> tuple[int, ...]:
        """Words of the replay memory that each peer needs to which so many words a cycle go: those of two longest
        frames, or what leaves for it until it is known to have arrived."""
        form = self.frames
        assert form is not None
        beats = Fraction(form.full_beats() * self.allowed_cycles(clock_hz), form.full_words())
        return tuple(max(2 * form.payload_beats, ceil(rate * beats)) for rate in rates)

    def most_regions(self, peers: int, rate: Fraction, clock_hz: int) -> tuple[int, ...]:
        """No smaller in all than `replay_regions` of so many peers to which so many words a cycle go in all, however
        they are spread: as where all go to one, and a word for each of the others that would be rounded up."""
        first, *others = self.replay_regions([rate, *[Fraction(0)] * (peers - 1)], clock_hz)
        return first + len(others), *others


# keys that say something without Ethernet
FOR_WORDS = ("kind", "receivers", "topology", "shape")
# the network that is no Ethernet
WORDS = Network()


def network_of(
    table: NetworkTable, cables: Sequence[CableTable], raw: Mapping[str, Any], word_bits: int, *, clocked: bool = False
) -> Network:
    """The network of a file without problems."""
    if table.kind == "words":
        columns = table.shape[1] if table.shape and table.topology == "mesh" else 0
        wired = _cables(table, cables, raw) if table.topology != "switch" else ()
        return replace(
            WORDS, pooled=table.receivers == "pool", topology=table.topology, cables=wired, mesh_columns=columns
        )
    mtu = SEARCHED_MTU if table.mtu == "auto" else table.mtu
    assert isinstance(mtu, int)
    rows = list(_rows(raw))
    ips = _default_ips(table, len(rows))
    key = None if table.key is None else int(table.key, 16)
    return Network(
        frames=FrameFormat(word_bits=word_bits, mtu=mtu, key=key),
        addresses=tuple(
            Address(
                number=number,
                mac=_mac(row["mac"]) if "mac" in row else LOCAL_MAC + number,
                ip=int(ipaddress.IPv4Address(row.get("ip", ips[number]))),
            )
            for number, (_, row, _) in enumerate(rows)
        ),
        host_ip=int(ipaddress.IPv4Address(table.host_ip or _default_host(table))),
        host_mac=None if table.host_mac is None else _mac(table.host_mac),
        rtt_us=Fraction(table.rtt_us),
        host_rtt_us=Fraction(table.host_rtt_us),
        host_silence_s=Fraction(table.host_silence_s),
        chooses_mtu=table.mtu == "auto",
        clocked=clocked,
        pooled=table.receivers == "pool",
    )


def network_problems(table: NetworkTable, cables: Sequence[CableTable], raw: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the network of a file whose single values are right."""
    found = _topology_problems(table, cables, raw)
    return found + (_idle_problems(raw) if table.kind == "words" else _address_problems(table, raw))


def word_problems(given: int | None, bits: int, table: NetworkTable) -> list[Problem]:
    """A word that there are no frames of."""
    if table.kind == "words" or bits in WORD_BITS:
        return []
    widths = f"{', '.join(map(str, WORD_BITS[:-1]))} or {WORD_BITS[-1]}"
    if given is None:
        what = f"board.link_gbit_per_s: the fastest needs words of {bits} bits; frames have {widths}"
        return [Problem(what, "write a lower rate, or a higher clock_mhz")]
    return [Problem(f"cluster.link_word_bits = {given} with network.kind = 'ethernet'", f"write {widths}")]


def _rows(raw: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any], str]]:
    """(place of the table, its row, name) of every device."""
    for index, row in entries(raw, "device"):
        for name in device_names(row):
            yield index, row, name


def _mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def _mac_text(mac: int) -> str:
    return ":".join(f"{byte:02x}" for byte in mac.to_bytes(6, "big"))


def _default_ips(table: NetworkTable, devices: int) -> list[str]:
    """First addresses of the network; fewer than asked for where it has no more."""
    subnet = ipaddress.IPv4Network(table.ip)
    last = min(devices, max(0, subnet.num_addresses - 2))
    return [str(subnet[1 + number]) for number in range(last)]


def _default_host(table: NetworkTable) -> str:
    """The last address of the network that a host may have."""
    subnet = ipaddress.IPv4Network(table.ip)
    return str(subnet[max(0, subnet.num_addresses - 2)])


def _idle_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """What only Ethernet has, in a file without it."""
    given = raw.get("network")
    found = [f"network.{key}" for key in (given if isinstance(given, dict) else {}) if key not in FOR_WORDS]
    found += [f"board[{i}].{key}" for i, row in entries(raw, "board") for key in ONLY_FRAMED if key in row]
    found += [f"device[{i}].{key}" for i, row in entries(raw, "device") for key in ("ip", "mac") if key in row]
    cure = 'write network.kind = "ethernet", or remove it'
    return [Problem(f"{key} with network.kind = 'words': only Ethernet has that", cure) for key in found]


def _topology_problems(table: NetworkTable, cables: Sequence[CableTable], raw: Mapping[str, Any]) -> list[Problem]:
    """What the topology, the devices and the cables of a file do not agree about."""
    named, found = table.topology, []
    if named != "switch" and table.kind == "ethernet":
        what = f"network.topology = {named!r} with network.kind = 'ethernet': {NOT_YET}"
        found.append(Problem(what, 'write kind = "words", or topology = "switch"'))
    if table.shape is not None and named != "mesh":
        what = f"network.shape = {list(table.shape)} with network.topology = {named!r}: only a mesh has that"
        found.append(Problem(what, "remove it"))
    if cables and named != "cables":
        what = f"cable[0] with network.topology = {named!r}: "
        what += "all devices hang on the switch" if named == "switch" else "it says which cables there are"
        found.append(Problem(what, 'remove the [[cable]] tables, or write topology = "cables"'))
    if named == "switch":
        return found + [
            Problem(f"board[{index}].ports = {row['ports']} with network.topology = 'switch': a device has one port to "
                    "the switch", "write 1, or leave it out")
            for index, row in entries(raw, "board")
            if row.get("ports", 1) != 1
        ]  # fmt: skip
    found += _size_problems(table, len(list(_rows(raw))))
    if named == "cables":
        found += _cable_problems(cables, raw)
    if found:
        return found
    devices, wired = [name for *_, name in _rows(raw)], _cables(table, cables, raw)
    return [*_reach_problems(devices, wired), *_port_problems(wired, raw), *_rate_problems(cables, raw)]


def _size_problems(table: NetworkTable, devices: int) -> list[Problem]:
    """Numbers of devices that the topology has not."""
    if table.topology == "mesh" and table.shape is None:
        return [Problem("network.shape is missing: a mesh has rows and columns", "write it as [2, 4]")]
    if table.topology == "mesh" and table.shape is not None and table.shape[0] * table.shape[1] != devices:
        rows, columns = table.shape
        what = f"network.shape = [{rows}, {columns}]: {rows * columns} devices, and the file has {devices}"
        return [Problem(what, "write rows and columns whose product is the number of devices")]
    if table.topology == "ring" and devices < LEAST_RING:
        what = f"network.topology = 'ring' with {devices} devices"
        return [Problem(what, f'a ring has {LEAST_RING} at least: write "chain"')]
    return []


def _reach_problems(devices: Sequence[str], cables: Sequence[Cable]) -> list[Problem]:
    """Devices that no cables lead to; two cables between the same two."""
    pairs = Counter(frozenset((cable.a, cable.b)) for cable in cables)
    twice = [sorted(pair) for pair, count in pairs.items() if count > 1]
    cure = "words between them would take one alone: remove the others"
    found = [Problem(f"cable: {a!r} and {b!r} are joined more than once", cure) for a, b in twice]
    away = unreached(devices, cables)
    if away:
        cure = f"every device needs a way to {devices[0]!r}: add [[cable]] tables"
        found.append(Problem(f"cable: no cables lead to {', '.join(away)}", cure))
    return found


def _port_problems(cables: Sequence[Cable], raw: Mapping[str, Any]) -> list[Problem]:
    """Boards with fewer ports than the topology's cables need."""
    needed: Counter[str] = Counter()
    for cable in cables:
        for name, port in ((cable.a, cable.a_port), (cable.b, cable.b_port)):
            needed[name] = max(needed[name], port + 1)
    boards = _boards_of(raw)
    most: Counter[str] = Counter()
    for name, count in needed.items():
        most[str(boards[name].get("name"))] = max(most[str(boards[name].get("name"))], count)
    return [
        Problem(f"board[{index}].ports = {row.get('ports', 1)}: its devices need {most[row['name']]} for their cables",
                f"write {most[row['name']]} if the board has them")
        for index, row in entries(raw, "board")
        if row.get("ports", 1) < most[row.get("name", "")]
    ]  # fmt: skip


def _rate_problems(cables: Sequence[CableTable], raw: Mapping[str, Any]) -> list[Problem]:
    """Cables that are faster than a port at one of their ends."""
    boards = _boards_of(raw)
    return [
        Problem(
            f"cable[{index}].gbit_per_s = {cable.gbit_per_s}: a port of {end!r} has {rate}", f"write at most {rate}"
        )
        for index, cable in enumerate(cables)
        for end in (cable.a, cable.b)
        if cable.gbit_per_s is not None and cable.gbit_per_s > (rate := _gbit(boards[end.rpartition(":")[0]]))
    ]


def _boards_of(raw: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Device -> the [[board]] that it is."""
    boards = {row.get("name"): row for _, row in entries(raw, "board")}
    return {name: boards[row.get("board")] for _, row, name in _rows(raw)}


def _gbit(board: Mapping[str, Any]) -> Decimal:
    """Of a port of a board, 10⁹ bits/s."""
    return Decimal(board["link_gbit_per_s"])


def _cables(table: NetworkTable, cables: Sequence[CableTable], raw: Mapping[str, Any]) -> tuple[Cable, ...]:
    """The cables of a topology, those of the file or the ones that it stands for."""
    boards = _boards_of(raw)
    rates = [int(_gbit(board) * 10**9) for board in boards.values()]
    if table.topology != "cables":
        return topology_cables(table.topology, list(boards), rates, table.shape[1] if table.shape else 0)
    found = []
    for cable in cables:
        (a, _, a_port), (b, _, b_port) = (end.rpartition(":") for end in (cable.a, cable.b))
        rate = cable.gbit_per_s if cable.gbit_per_s is not None else min(_gbit(boards[a]), _gbit(boards[b]))
        found.append(Cable(a=a, a_port=int(a_port), b=b, b_port=int(b_port), bits_per_s=int(rate * 10**9)))
    return tuple(found)


def _address_problems(table: NetworkTable, raw: Mapping[str, Any]) -> list[Problem]:
    """Addresses that are no device's own, or none that a device can have."""
    rows, subnet = list(_rows(raw)), ipaddress.IPv4Network(table.ip)
    found = [
        Problem(f"device[{index}].{key} = {row[key]!r} with count = {row['count']}", "give each device its own table")
        for index, row in entries(raw, "device")
        for key in ("ip", "mac")
        if key in row and row.get("count", 1) != 1
    ]
    default = _default_ips(table, len(rows))
    if len(default) < len(rows) or subnet.num_addresses < len(rows) + 3:
        what = f"network.ip = {table.ip!r}: {len(rows)} devices and the host do not fit"
        return [*found, Problem(what, "write a larger network")]
    ips = [
        (f"device[{index}].ip" if "ip" in row else f"address of {name!r}", row.get("ip", default[number]))
        for number, (index, row, name) in enumerate(rows)
    ]
    ips.append(("network.host_ip" if table.host_ip else "address of the host", table.host_ip or _default_host(table)))
    macs = [
        (
            f"device[{index}].mac" if "mac" in row else f"MAC address of {name!r}",
            str(row.get("mac", _mac_text(LOCAL_MAC + number))).lower(),
        )
        for number, (index, row, name) in enumerate(rows)
    ]
    macs += [("network.host_mac", table.host_mac.lower())] if table.host_mac else []
    for where, text in ips:
        address = ipaddress.IPv4Address(text)
        if address not in subnet or address in (subnet.network_address, subnet.broadcast_address):
            found.append(Problem(f"{where} = {text!r}: is no address of a device in {table.ip}", "write another one"))
    for where, text in macs:
        if _mac(text) & MULTICAST or not _mac(text):
            found.append(Problem(f"{where} = {text!r}: a multicast address, or none", "write a device's own address"))
    return found + repeated("IP address", _once(ips)) + repeated("MAC address", _once(macs))


def _once(places: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without devices that one table gives the same address, which is said elsewhere."""
    return list(dict.fromkeys(places))


def _cable_problems(cables: Sequence[CableTable], raw: Mapping[str, Any]) -> list[Problem]:
    """Ends that are no port, ports with two cables, cables from a device to itself."""
    boards = {row.get("name"): row.get("ports", 1) for _, row in entries(raw, "board")}
    ports = {name: boards.get(row.get("board"), 1) for _, row, name in _rows(raw)}
    found, used = [], Counter[str]()
    for index, cable in enumerate(cables):
        for key, end in (("a", cable.a), ("b", cable.b)):
            name, _, number = end.rpartition(":")
            where = f"cable[{index}].{key} = {end!r}"
            if name not in ports or not re.fullmatch(r"\d{1,2}", number):
                found.append(Problem(f"{where}: no such port", f"ends are device:port; devices are {', '.join(ports)}"))
            elif int(number) >= ports[name]:
                has = f"ports of {name} are 0 to {ports[name] - 1}"
                found.append(Problem(f"{where}: no such port", has))
            used[end] += 1
        if cable.a.rpartition(":")[0] == cable.b.rpartition(":")[0]:
            found.append(Problem(f"cable[{index}]: from {cable.a!r} to {cable.b!r}", "name two devices"))
    more = [end for end, count in used.items() if count > 1]
    return found + [Problem(f"cable: {end!r} has {used[end]} cables", "a port takes one") for end in more]
