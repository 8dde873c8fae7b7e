"""The cluster file: which boards there are, and which devices stand on them. docs/cluster-file.md lists every key.

Numbers keep the unit in their name and are read as exact decimals, so 38.4 GB/s is 38 400 000 000 bytes/s. All
problems of a file are reported in one error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from hdl.errors import DagtrainError, Problem
from hdl.parts.catalogue import PARTS
from hdl.parts.part import Part
from placement.problem.instance import Device
from placement.problem.network import (
    WORDS,
    CableTable,
    Ip,
    Mac,
    MacBits,
    MacKind,
    MacPort,
    Network,
    NetworkTable,
    Ports,
    network_of,
    network_problems,
    word_problems,
)
from placement.problem.routes import Routing
from placement.problem.tables import Name, Number, Table, device_names, entries, repeated

Share = Annotated[Number, Field(gt=0, le=1, description="a share above 0 and at most 1")]
Clock = Annotated[Number, Field(ge=Decimal("0.001"), le=2000, description="the clock in MHz, 0.001 to 2000")]
# in 10⁹ bytes, bytes/s or bits/s: no board comes near it
MOST_GB = 10**6
DEFAULT_SHARE = Decimal("0.85")
# bits a beat of the MAC port where the file says none: an element of any stream fits, however slow the link
LEAST_WORD_BITS = 64
# and at most
MOST_WORD_BITS = 2048
# widths of an AXI4 data bus that serve a memory and are chosen where the file says none, and the widest of them: the
# port of a memory controller for one channel of 64-bit DDR4
DRAM_WORD_BITS = (64, 128, 256, 512)
CHANNEL_WORD_BITS = DRAM_WORD_BITS[-1]
# the clock of a board is at most so many times as fast as that of the network, or as slow: crossings are tested so far
MOST_CLOCK_RATIO = 3
# memory channels of a board: twice those of two stacks of HBM2
MOST_CHANNELS = 64


class UtilisationTable(Table):
    """Shares of a part's blocks that a plan may use: a device filled to the brim does not close timing."""

    dsp: Share = DEFAULT_SHARE
    m20k: Share = DEFAULT_SHARE
    alm: Share = DEFAULT_SHARE


# what can be capped
CAPPED = tuple(UtilisationTable.model_fields)


class ClusterTable(Table):
    """[cluster]: what all boards share."""

    name: Annotated[str, Field(min_length=1, description="a name for reports")]
    clock_mhz: Clock
    link_word_bits: Annotated[
        int | None,
        Field(
            strict=True,
            ge=8,
            le=MOST_WORD_BITS,
            multiple_of=8,
            description="bits a beat of the MAC port: 8, 16, … 2048",
        ),
    ] = None
    dram_word_bits: Annotated[
        Literal[64, 128, 256, 512, 1024] | None,
        Field(description="bits a beat of a memory port, each direction: 64, 128, 256, 512 or 1024"),
    ] = None
    dram_unit_bits: Annotated[
        Literal[64, 128, 256, 512] | None,
        Field(description="bits a word of the narrowest streams to DRAM: 64, 128, 256 or 512"),
    ] = None
    dram_apart: Annotated[
        bool, Field(strict=True, description="true where reads and writes share the memory's bandwidth as they come")
    ] = False


class BoardTable(Table):
    """[[board]]: a type of board."""

    name: Name
    part: Annotated[str, Field(description="the FPGA on the board")]
    clock_mhz: Annotated[Clock | None, Field(description="the clock in MHz, 0.001 to 2000")] = None
    dram_gb_per_s: Annotated[
        Number, Field(ge=0, le=MOST_GB, description="peak DRAM bandwidth in 10⁹ bytes/s, 0 without DRAM, at most 10⁶")
    ]
    dram_gbyte: Annotated[
        Number, Field(ge=0, le=MOST_GB, description="DRAM size in 10⁹ bytes, 0 without DRAM, at most 10⁶")
    ]
    dram_efficiency: Share = Decimal("0.7")
    dram_channels: Annotated[
        int, Field(strict=True, ge=1, le=MOST_CHANNELS, description="a whole number of memory channels, 1 to 64")
    ] = 1
    link_gbit_per_s: Annotated[
        Number,
        Field(
            ge=0, le=MOST_GB, description="network rate in 10⁹ bits/s, each direction, 0 without network, at most 10⁶"
        ),
    ]
    mac: MacPort = "axi-stream"
    mac_clock_mhz: Annotated[Clock | None, Field(description="the clock of the MAC in MHz, 0.001 to 2000")] = None
    mac_word_bits: MacBits = None
    ports: Ports = 1
    utilisation: UtilisationTable = UtilisationTable()


class DeviceTable(Table):
    """[[device]]: one device, or `count` of them named name-0, name-1 …"""

    name: Name
    board: Annotated[str, Field(description="the name of a [[board]]")]
    count: Annotated[
        int | None, Field(strict=True, ge=1, le=10_000, description="a whole number of devices, at least 1")
    ] = None
    ip: Ip = None
    mac: Mac = None


class FileTables(Table):
    """A whole cluster file."""

    cluster: ClusterTable
    board: Annotated[tuple[BoardTable, ...], Field(min_length=1, description="at least one [[board]]")]
    device: Annotated[tuple[DeviceTable, ...], Field(min_length=1, description="at least one [[device]]")]
    network: NetworkTable = NetworkTable()
    cable: Annotated[tuple[CableTable, ...], Field(description="[[cable]] tables")] = ()


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board type with all defaults filled in."""

    name: str
    part: Part
    clock_hz: int
    # usable bandwidth: peak × efficiency, or what the memory ports carry if that is less, in both directions, or where
    # reads and writes count apart in one
    dram_bytes_per_s: int
    dram_bytes: int
    # memory channels that share both equally, each with a port
    dram_channels: int
    # of a port, each direction; ports, which cables want several of
    link_bits_per_s: int
    ports: int
    # ports of the MAC, of use with Ethernet; clock and bits a beat of one with clocks of its own, else 0
    mac: MacKind
    mac_clock_hz: int
    mac_word_bits: int
    # usable blocks
    dsp: int
    m20k: int
    alm: int


@dataclass(frozen=True, kw_only=True)
class ClusterDevice:
    """One FPGA."""

    name: str
    board: Board


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster; its first device carries the host interface, so the network's input and output are there."""

    name: str
    # of the network, in whose cycles plans count; the one clock of all devices, or of those that have none of their own
    clock_hz: int
    # bits a beat of every MAC port; word × clock carries the fastest link
    link_word_bits: int
    # bits a beat of every memory port, in each direction
    dram_word_bits: int
    # bits a word of the narrowest streams to DRAM; 0: all are as wide as the port
    dram_unit_bits: int
    # whether reads and writes count apart
    dram_apart: bool
    devices: tuple[ClusterDevice, ...]
    network: Network = WORDS

    def placement_devices(self) -> tuple[Device, ...]:
        """The devices as the planner sees them: usable capacities only."""
        return tuple(
            Device(
                name=device.name,
                part=device.board.part.name,
                dsp=device.board.dsp,
                m20k=device.board.m20k,
                alm=device.board.alm,
                dram_bytes_per_s=device.board.dram_bytes_per_s,
                link_bits_per_s=self.routing.bits_per_s(n) if self.routing else device.board.link_bits_per_s,
                dram_channels=device.board.dram_channels,
                clock_hz=device.board.clock_hz if device.name in self.periods else 0,
                link_efficiency=self.network.efficiency,
            )
            for n, device in enumerate(self.devices)
        )

    @property
    def way_cycles(self) -> int:
        """Cycles that a word is taken to need from network port to network port."""
        return self.network.way_cycles(self.clock_hz)

    @property
    def network_cycles(self) -> int:
        """Cycles between two devices that buffers allow for."""
        return self.network.allowed_cycles(self.clock_hz)

    @property
    def most_network_cycles(self) -> int:
        """The same between the two that are farthest apart."""
        cables = max(map(max, self.routing.distance)) if self.routing is not None else 1
        return self.network_cycles * cables

    @cached_property
    def routing(self) -> Routing | None:
        """By which cables words go; None: all devices hang on one switch."""
        network = self.network
        names = tuple(device.name for device in self.devices)
        return Routing(names, network.cables, network.mesh_columns) if network.cables else None

    @cached_property
    def periods(self) -> Mapping[str, Fraction]:
        """Device -> what one of its cycles lasts, in cycles of the cluster's clock, of devices of another clock."""
        return {
            device.name: Fraction(self.clock_hz, device.board.clock_hz)
            for device in self.devices
            if device.board.clock_hz != self.clock_hz
        }


def with_mtu(cluster: Cluster, mtu: int) -> Cluster:
    """The cluster with frames of another MTU; itself where words cross the network without frames."""
    frames = cluster.network.frames
    if frames is None or frames.mtu == mtu:
        return cluster
    return replace(cluster, network=replace(cluster.network, frames=replace(frames, mtu=mtu)))


def with_caps(cluster: Cluster, shares: Mapping[str, Decimal]) -> Cluster:
    """The cluster with other utilisation caps on all boards: resource of `CAPPED` → share of the part's blocks."""

    def capped(board: Board) -> Board:
        blocks: dict[str, Any] = {name: int(getattr(board.part, name) * share) for name, share in shares.items()}
        return replace(board, **blocks)

    return replace(cluster, devices=tuple(replace(device, board=capped(device.board)) for device in cluster.devices))


def without_dram(cluster: Cluster) -> Cluster:
    """The cluster of boards whose DRAM nobody uses."""
    boards = {device.name: replace(device.board, dram_bytes_per_s=0, dram_bytes=0) for device in cluster.devices}
    return replace(cluster, devices=tuple(replace(device, board=boards[device.name]) for device in cluster.devices))


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    Raises:
        DagtrainError: the file cannot be read, is no TOML (with the line), or says something impossible; then every
            problem is one line `file: key = value: what is wrong; cure`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DagtrainError(f"{path}: cannot read the cluster file: {error}", "give the path of a TOML file") from error
    return parse_cluster(text, str(path))


def parse_cluster(text: str, file: str = "cluster.toml") -> Cluster:
    """The cluster that a file's text describes; `file` names it in errors (see `read_cluster`)."""
    try:
        raw = tomllib.loads(text, parse_float=Decimal)
    except RecursionError:
        raise DagtrainError(f"{file}: not TOML: values are nested too deep", "remove the brackets") from None
    except tomllib.TOMLDecodeError as error:
        where = f"{error}, line {len(text.splitlines())}" if "line" not in str(error) else str(error)
        raise DagtrainError(f"{file}: not TOML: {where}", "correct that line") from error
    problems: list[Problem] = []
    tables: FileTables | None = None
    try:
        tables = FileTables.model_validate(raw)
    except ValidationError as error:
        problems += [_schema_problem(dict(entry)) for entry in error.errors() if not _is_consequence(dict(entry))]
    problems += _cross_problems(raw)
    if tables is not None and not problems:
        problems += _link_problems(tables) + _unit_problems(tables)
        problems += word_problems(tables.cluster.link_word_bits, _link_word_bits(tables), tables.network)
        problems += network_problems(tables.network, tables.cable, raw)
        if tables.network.kind == "ethernet":
            problems += _mac_problems(tables)
    if problems or tables is None:
        raise DagtrainError.listing("", (replace(problem, where=file) for problem in problems), lines=True)
    return _cluster(tables, raw)


def _is_consequence(entry: Mapping[str, Any]) -> bool:
    """pydantic calls an array too short if all its entries are wrong; those are reported themselves."""
    return bool(entry["type"] == "too_short" and entry["input"])


def _schema_problem(entry: Mapping[str, Any]) -> Problem:
    """One problem that pydantic found: key path, value, what is wrong, cure."""
    location = list(entry["loc"])
    path = _path(location)
    expected = _description(location)
    if entry["type"] == "missing":
        return Problem(f"{path} is missing", f"add {expected}")
    if entry["type"] == "extra_forbidden":
        cure = f"remove it, or correct it to one of {_keys(location)}"
        return Problem(f"{path} = {_show(entry['input'])}: unknown key", cure)
    return Problem(f"{path} = {_show(entry['input'])}: {_complaint(entry)}", f"write {expected}")


def _complaint(entry: Mapping[str, Any]) -> str:
    """pydantic's message, in the words of a TOML file."""
    if entry["type"] in ("model_type", "model_attributes_type"):
        return "is not a table"
    if entry["type"] == "tuple_type":
        return "is not an array of tables"
    message: str = entry["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _path(location: list[Any]) -> str:
    path = ""
    for key in location:
        path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else str(key)
    return path


def _show(value: object) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)


_TABLES: Mapping[str, type[Table]] = {
    "cluster": ClusterTable,
    "board": BoardTable,
    "device": DeviceTable,
    "utilisation": UtilisationTable,
    "network": NetworkTable,
    "cable": CableTable,
}


def _table_of(location: list[Any]) -> type[Table]:
    names = [key for key in location[:-1] if key in _TABLES]
    return _TABLES[names[-1]] if names else FileTables


def _keys(location: list[Any]) -> str:
    return ", ".join(_table_of(location).model_fields)


def _description(location: list[Any]) -> str:
    fields = _table_of(location).model_fields
    name = next((key for key in reversed(location) if isinstance(key, str)), "")
    field = fields.get(name)
    if name in ("cluster", "network", "utilisation") and (field is None or field.description is None):
        return f"a table with the keys {', '.join(_TABLES[name].model_fields)}"
    return field.description if field is not None and field.description else "a value as docs/cluster-file.md says"


def _cross_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """What no single value shows: unknown parts and boards, duplicate names, clocks far apart, halves of a DRAM."""
    problems = []
    boards = {name: row for _, row in entries(raw, "board") if isinstance(name := row.get("name"), str)}
    for index, row in entries(raw, "board"):
        part = row.get("part")
        if isinstance(part, str) and part not in PARTS:
            known = f"known parts are {', '.join(PARTS)}"
            problems.append(Problem(f"board[{index}].part = {part!r}: unknown part", known))
        rate, size = row.get("dram_gb_per_s"), row.get("dram_gbyte")
        if isinstance(rate, int | Decimal) and isinstance(size, int | Decimal) and (rate == 0) != (size == 0):
            what = (
                f"board[{index}].dram_gbyte = {size} with dram_gb_per_s = {rate}: DRAM has both a size and a bandwidth"
            )
            problems.append(Problem(what, "set both to 0 for a board without DRAM"))
        channels = row.get("dram_channels")
        if rate == 0 and isinstance(channels, int):
            what = f"board[{index}].dram_channels = {channels} with dram_gb_per_s = {rate}: channels without DRAM"
            problems.append(Problem(what, "leave it out, or say how fast the DRAM is"))
    problems += repeated("board name", [(f"board[{i}].name", row.get("name")) for i, row in entries(raw, "board")])
    names = [(f"device[{i}].name", name) for i, row in entries(raw, "device") for name in device_names(row)]
    problems += repeated("device name", names)
    for index, row in entries(raw, "device"):
        board = row.get("board")
        if isinstance(board, str) and board not in boards:
            known = ", ".join(str(name) for name in boards) or "none"
            what = f"device[{index}].board = {board!r}: no such board"
            problems.append(Problem(what, f"boards of this file are {known}"))
    return problems + _clock_problems(raw, boards)


def _clock_problems(raw: Mapping[str, Any], boards: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Boards in use whose clock is too far from the network's, where they differ."""
    cluster = raw.get("cluster")
    default = cluster.get("clock_mhz") if isinstance(cluster, dict) else None
    clocks: dict[str, int | Decimal] = {}
    for _, row in entries(raw, "device"):
        name = row.get("board")
        board = boards.get(name) if isinstance(name, str) else None
        clock = board.get("clock_mhz", default) if board is not None else None
        if isinstance(clock, int | Decimal) and clock > 0:
            clocks[str(name)] = clock
    if len(set(clocks.values())) < 2 or not isinstance(default, int | Decimal):
        return []
    return [
        Problem(
            f"board {name!r}: clock_mhz = {clock}: the network's clock, cluster.clock_mhz = {default}, is more than "
            f"{MOST_CLOCK_RATIO} times as fast or as slow",
            f"write at least {default / MOST_CLOCK_RATIO:g} and at most {default * MOST_CLOCK_RATIO:g}",
        )
        for name, clock in clocks.items()
        if clock * MOST_CLOCK_RATIO < default or clock > default * MOST_CLOCK_RATIO
    ]


def _link_problems(tables: FileTables) -> list[Problem]:
    given = tables.cluster.link_word_bits
    if given is None:
        return [
            Problem(
                f"board[{index}].link_gbit_per_s = {board.link_gbit_per_s}: more than the widest word of "
                f"{MOST_WORD_BITS} bits carries at {_port_hz(tables, board) / 1e6:g} MHz",
                f"write at most {MOST_WORD_BITS * _port_hz(tables, board) / 1e9:g}",
            )
            for index, board in enumerate(tables.board)
            if _word_bits(board, _port_hz(tables, board)) > MOST_WORD_BITS
        ]
    return [
        Problem(
            f"cluster.link_word_bits = {given}: at {_port_hz(tables, board) / 1e6:g} MHz carries "
            f"{given * _port_hz(tables, board) / 1e9:g} Gbit/s, less than board {board.name!r} has with "
            f"{board.link_gbit_per_s}",
            f"write at least {_word_bits(board, _port_hz(tables, board))}, or leave it out",
        )
        for board in tables.board
        if given * _port_hz(tables, board) < board.link_gbit_per_s * 10**9
    ]


def _mac_problems(tables: FileTables) -> list[Problem]:
    """MACs whose clock or width does not suit their board."""
    found = []
    for index, board in enumerate(tables.board):
        where, own, clock = f"board[{index}]", _clock_hz(tables, board), board.mac_clock_mhz
        if clock is None:
            if board.mac_word_bits is not None:
                what = f"{where}.mac_word_bits = {board.mac_word_bits} without mac_clock_mhz"
                found.append(Problem(f"{what}: at the board's own clock a beat is a word", "add mac_clock_mhz"))
            continue
        if not own <= MOST_CLOCK_RATIO * clock * 10**6 <= MOST_CLOCK_RATIO**2 * own:
            least, most = own / MOST_CLOCK_RATIO / 1e6, own * MOST_CLOCK_RATIO / 1e6
            what = f"{where}.mac_clock_mhz = {clock}: the board's clock, {own / 1e6:g} MHz, is more than "
            cure = f"write at least {least:g} and at most {most:g}"
            found.append(Problem(f"{what}{MOST_CLOCK_RATIO} times as fast or as slow", cure))
        bits = _mac_word_bits(tables, board)
        if bits * clock * 10**6 < board.link_gbit_per_s * 10**9:
            what = f"{where}.mac_clock_mhz = {clock}: beats of {bits} bits carry {bits * clock / 1000:g} Gbit/s"
            cure = "write a higher clock, or more mac_word_bits"
            found.append(Problem(f"{what}, less than link_gbit_per_s = {board.link_gbit_per_s}", cure))
    return found


def _mac_word_bits(tables: FileTables, board: BoardTable) -> int:
    """Of a MAC with clocks of its own."""
    return board.mac_word_bits or _link_word_bits(tables)


def _unit_problems(tables: FileTables) -> list[Problem]:
    bits, port = tables.cluster.dram_unit_bits, _dram_word_bits(tables)
    if bits is None or bits <= port:
        return []
    what = f"cluster.dram_unit_bits = {bits}: streams wider than the memory port of {port} bits"
    return [Problem(what, f"write at most {port}, or leave it out")]


def _word_bits(board: BoardTable, clock_hz: int) -> int:
    """The narrowest power of two, from `LEAST_WORD_BITS`, that carries the board's link at the clock."""
    bits = LEAST_WORD_BITS
    while bits * clock_hz < board.link_gbit_per_s * 10**9:
        bits *= 2
    return bits


def _link_word_bits(tables: FileTables) -> int:
    """As given, or what the fastest link needs."""
    needed = max(_word_bits(table, _port_hz(tables, table)) for table in tables.board)
    return tables.cluster.link_word_bits or needed


def _dram_word_bits(tables: FileTables) -> int:
    """As given, or the narrowest AXI4 port that carries a channel's part of the fastest board's usable bandwidth, both
    directions busy, or one alone where reads and writes count apart; no wider than the port of a 64-bit DDR4 channel,
    for every stream to DRAM has queues of that width."""
    if tables.cluster.dram_word_bits is not None:
        return tables.cluster.dram_word_bits
    bits = max(_dram_bits_per_s(table) / table.dram_channels / _clock_hz(tables, table) for table in tables.board)
    return next((word for word in DRAM_WORD_BITS if _busy(tables) * word >= bits), CHANNEL_WORD_BITS)


def _busy(tables: FileTables) -> int:
    """Directions of a port that all the bandwidth counted can go through."""
    return 1 if tables.cluster.dram_apart else 2


def _dram_bits_per_s(board: BoardTable) -> int:
    """Usable bandwidth, reads and writes together."""
    return 8 * int(board.dram_gb_per_s * 10**9 * board.dram_efficiency)


def _clock_hz(tables: FileTables, board: BoardTable) -> int:
    return int((board.clock_mhz or tables.cluster.clock_mhz) * 10**6)


def _network_hz(tables: FileTables) -> int:
    """The one clock of all boards in use, or the cluster's where these differ."""
    used = {device.board for device in tables.device}
    clocks = {_clock_hz(tables, board) for board in tables.board if board.name in used}
    return clocks.pop() if len(clocks) == 1 else int(tables.cluster.clock_mhz * 10**6)


def _port_hz(tables: FileTables, board: BoardTable) -> int:
    """The clock at which a board passes words to the network: the slower one of its own and the network's."""
    used = {device.board for device in tables.device}
    own = _clock_hz(tables, board)
    return min(own, _network_hz(tables)) if board.name in used else own


def _cluster(tables: FileTables, raw: Mapping[str, Any]) -> Cluster:
    boards = {table.name: _board(tables, table) for table in tables.board}
    devices = [
        ClusterDevice(name=name, board=boards[table.board])
        for table in tables.device
        for name in device_names(table.model_dump())
    ]
    return Cluster(
        name=tables.cluster.name,
        clock_hz=_network_hz(tables),
        link_word_bits=_link_word_bits(tables),
        dram_word_bits=_dram_word_bits(tables),
        dram_unit_bits=tables.cluster.dram_unit_bits or 0,
        dram_apart=tables.cluster.dram_apart,
        devices=tuple(devices),
        network=network_of(
            tables.network,
            tables.cable,
            raw,
            _link_word_bits(tables),
            clocked=any(device.board.mac_clock_hz for device in devices),
        ),
    )


def _board(tables: FileTables, table: BoardTable) -> Board:
    part, clock_hz, port_bits = PARTS[table.part], _clock_hz(tables, table), _dram_word_bits(tables)
    return Board(
        name=table.name,
        part=part,
        clock_hz=clock_hz,
        dram_bytes_per_s=min(_dram_bits_per_s(table), table.dram_channels * _busy(tables) * port_bits * clock_hz) // 8,
        dram_bytes=int(table.dram_gbyte * 10**9),
        dram_channels=table.dram_channels,
        link_bits_per_s=int(table.link_gbit_per_s * 10**9),
        ports=table.ports,
        mac=table.mac,
        mac_clock_hz=int((table.mac_clock_mhz or 0) * 10**6),
        mac_word_bits=_mac_word_bits(tables, table) if table.mac_clock_mhz else 0,
        dsp=int(part.dsp * table.utilisation.dsp),
        m20k=int(part.m20k * table.utilisation.m20k),
        alm=int(part.alm * table.utilisation.alm),
    )
