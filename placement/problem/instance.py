"""The placement problem as plain data: items with Pareto configurations, links between them, devices.

Nothing here knows a solver. All quantities are integers (bits a frame may be a fraction), so that the search,
the bound and the validator compare exactly the same numbers.

Units: cycles a frame, T at the clock of the instance, those of an engine at the clock of its device; DSP blocks, M20K
blocks and ALMs; bytes and bits a frame; capacities in bytes and bits a second. A rate is demanded at S = clock / T
frames a second, so a sum of `b` bits a frame fits a link of `c` bits a second when b · clock ≤ c · T, and an engine of
`c` cycles at `d` Hz keeps up when c · clock ≤ T · d: no division, no rounding.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import lcm
from typing import Any

from hdl.errors import DagtrainError
from hdl.records import exact, read_record
from hdl.tensor import Kind
from placement.problem.routes import Cable, Routing, neighbours, unreached

INSTANCE_SCHEMA = 3

RESOURCES = ("dsp", "m20k", "alm")
# those that a network port takes
PORT_RESOURCES = ("m20k", "alm")


@exact
@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One way to build an item on one part type."""

    # unique among the configurations of an item on a part
    label: str
    # initiation interval in cycles of its device: usable at T when that takes no longer than T (`ticks`)
    cycles_per_frame: int
    # DSP blocks
    dsp: int = 0
    # M20K blocks (block memories)
    m20k: int = 0
    # ALMs
    alm: int = 0
    # bytes moved to and from DRAM a frame (reads and writes together)
    dram_bytes_per_frame: int = 0
    # what they are the sum of, stream by stream, each of which goes through one memory channel; empty: one stream
    dram_streams: tuple[int, ...] = ()
    # weight tile shape; all items of a tile group must choose configurations of one tile
    tile: str | None = None
    # for the caller: what to build; the placement never reads it
    payload: str = ""

    @property
    def costs(self) -> tuple[int, int, int, int]:
        """(DSP, M20K, ALM, DRAM bytes a frame)."""
        return (self.dsp, self.m20k, self.alm, self.dram_bytes_per_frame)

    @property
    def streams(self) -> tuple[int, ...]:
        """Bytes a frame of each stream to DRAM."""
        whole = (self.dram_bytes_per_frame,) if self.dram_bytes_per_frame else ()
        return self.dram_streams or whole


@exact
@dataclass(frozen=True, kw_only=True)
class Item:
    """One node of the training graph, to be placed exactly once."""

    # unique
    name: str
    # part type → its configurations; a part type without an entry cannot hold the item
    configurations: Mapping[str, tuple[Configuration, ...]]
    # device name this item must be on
    pinned: str | None = None
    # items with the same group choose configurations of the same tile
    tile_group: str | None = None
    # the forward layer this item serves (its error, gradient, update …); shown in plans, steers the first guess
    layer: str = ""
    # items with the same value are placed on the same device
    same_device: str | None = None
    # engines that frames are dealt out to
    copies: int = 1


@exact
@dataclass(frozen=True, kw_only=True)
class Link:
    """A stream from one item to another."""

    # item names
    source: str
    target: str
    kind: Kind
    # bits a frame, exact; weights and gradients move once a batch, so their share of a frame may be a fraction
    bits_per_frame: Fraction
    # … and those the other way where the ends stand on different devices: words that give credits back
    credit_bits_per_frame: Fraction = Fraction(0)
    # blocks that the network port takes where the ends stand on different devices: on the source's, on the target's
    sender_m20k: int = 0
    sender_alm: int = 0
    receiver_m20k: int = 0
    receiver_alm: int = 0

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """M20K blocks and ALMs of the sender and of the receiver."""
        return (self.sender_m20k, self.sender_alm), (self.receiver_m20k, self.receiver_alm)

    @property
    def ways(self) -> tuple[tuple[str, str, Fraction], ...]:
        """(from, to, bits a frame) where the ends stand on different devices: the stream, and its credits back."""
        credits = ((self.target, self.source, self.credit_bits_per_frame),) if self.credit_bits_per_frame else ()
        return (self.source, self.target, self.bits_per_frame), *credits


@exact
@dataclass(frozen=True, kw_only=True)
class NetworkPort:
    """What the Ethernet port of a device takes, where anything stands on it: by the number of other devices that it
    exchanges words with, none, one and so on.  The host is a peer of every device and comes on top."""

    # blocks without senders and receivers of streams; more peers never take less
    m20k: tuple[int, ...]
    alm: tuple[int, ...]
    # words that the replay memory holds
    replay_words: tuple[int, ...]
    # bits a frame of streams from the host and to it, credits among them
    host_in_bits_per_frame: Fraction = Fraction(0)
    host_out_bits_per_frame: Fraction = Fraction(0)

    def blocks(self, peers: int) -> tuple[int, int]:
        """M20K blocks and ALMs with so many other devices."""
        return self.m20k[peers], self.alm[peers]


@exact
@dataclass(frozen=True, kw_only=True)
class Device:
    """One FPGA of the cluster, capacities after the utilisation caps."""

    name: str
    part: str
    # usable DSP blocks, M20K blocks and ALMs
    dsp: int
    m20k: int
    alm: int
    # usable DRAM bandwidth, bytes a second
    dram_bytes_per_s: int
    # of its cable to the switch or of all its cables, each direction, bits a second
    link_bits_per_s: int
    # memory channels, each with an equal part of the bandwidth
    dram_channels: int = 1
    # at which its engines work, Hz; 0: that of the instance
    clock_hz: int = 0
    # part of the cable's rate that frames leave for words: as the instance's framing has it, 1 without
    link_efficiency: Fraction = Fraction(1)
    # of its frames; None: without frames a port is no more than its senders and receivers
    port: NetworkPort | None = None

    @property
    def capacities(self) -> tuple[int, int, int]:
        """(DSP, M20K, ALM)."""
        return (self.dsp, self.m20k, self.alm)

    @cached_property
    def word_bits_per_s(self) -> Fraction:
        """Egress, and the same again ingress: what the cable carries of words."""
        return self.link_bits_per_s * self.link_efficiency

    @property
    def host_bits(self) -> tuple[Fraction, Fraction]:
        """Bits a frame to the host, and from there."""
        port = self.port
        return (port.host_out_bits_per_frame, port.host_in_bits_per_frame) if port else (Fraction(0), Fraction(0))

    def port_blocks(self, peers: int) -> tuple[int, int]:
        """M20K blocks and ALMs of its port with so many other devices, without senders and receivers."""
        return self.port.blocks(peers) if self.port else (0, 0)

    @property
    def shape(self) -> tuple[Hashable, ...]:
        """Everything but the name: devices of equal shape hold the same.  Which ones are interchangeable says
        `Instance.sorts`."""
        rates = (self.dram_bytes_per_s, self.word_bits_per_s, self.dram_channels, self.clock_hz)
        return (self.part, self.dsp, self.m20k, self.alm, *rates, self.port)


@exact
@dataclass(frozen=True, kw_only=True)
class Framing:
    """Of what the frames are in which words cross the network (`hdl.link.ethernet.frame`)."""

    # bytes of the greatest IP packet
    mtu: int
    # bits of a beat
    word_bits: int
    # whether each frame ends in a tag
    keyed: bool
    # cycles of the instance's clock until what is sent is known to have arrived
    round_trip_cycles: int


@exact
@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A sum over the copies of an item, which each of them needs."""

    item: str
    # bits that a copy gives and takes
    bits_per_batch: Fraction


@exact
@dataclass(frozen=True, kw_only=True)
class Instance:
    """A placement problem. Device 0 is the first device and carries the host interface.

    Raises:
        DagtrainError: on creation, listing every inconsistency at once (unknown names, duplicates, negative
            numbers, a tile group without a common tile, a cycle of hop links, differing pins of coupled items).
    """

    name: str
    # in whose cycles T counts, Hz: that of every device that has none of its own
    clock_hz: int
    items: tuple[Item, ...]
    links: tuple[Link, ...]
    devices: tuple[Device, ...]
    # None: words cross the network as they are
    framing: Framing | None = None
    # none: all devices hang on one switch
    cables: tuple[Cable, ...] = ()
    # of a mesh, whose devices stand row by row, which decides by which cables words go (`placement.problem.routes`)
    mesh_columns: int = 0
    exchanges: tuple[Exchange, ...] = ()
    # free text carried into the plan (model file, cluster file …)
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise DagtrainError.listing(f"placement instance {self.name!r}", problems)

    @cached_property
    def item_index(self) -> dict[str, int]:
        """Item name → position in `items`."""
        return {item.name: index for index, item in enumerate(self.items)}

    @cached_property
    def device_index(self) -> dict[str, int]:
        """Device name → position in `devices`."""
        return {device.name: index for index, device in enumerate(self.devices)}

    @cached_property
    def tile_groups(self) -> dict[str, tuple[int, ...]]:
        """Tile group → positions of its items."""
        groups: dict[str, list[int]] = {}
        for index, item in enumerate(self.items):
            if item.tile_group is not None:
                groups.setdefault(item.tile_group, []).append(index)
        return {name: tuple(members) for name, members in groups.items()}

    @cached_property
    def link_scale(self) -> int:
        """What bits a frame are multiplied by to be integers."""
        denominators = {bits.denominator for link in self.links for *_, bits in link.ways}
        return lcm(*denominators, *(bits.denominator for device in self.devices for bits in device.host_bits))

    @property
    def routing(self) -> Routing | None:
        """By which cables words go; None: all devices hang on one switch."""
        return _routing(tuple(self.device_index), self.cables, self.mesh_columns) if self.cables else None

    @cached_property
    def distance(self) -> tuple[tuple[int, ...], ...]:
        """distance[source][target]: hops from device to device, 1 over a switch, else cables."""
        if self.routing is not None:
            return self.routing.distance
        count = range(len(self.devices))
        return tuple(tuple(int(source != target) for target in count) for source in count)

    @cached_property
    def link_rates(self) -> tuple[Fraction, ...]:
        """Bits of words a second of all that a stream may have to go through, one direction: what each device has at a
        switch, else each cable."""
        if self.cables:
            return tuple(Fraction(cable.bits_per_s) for cable in self.cables)
        return tuple(device.word_bits_per_s for device in self.devices)

    @cached_property
    def sorts(self) -> tuple[Hashable, ...]:
        """Device -> its sort: devices of one sort are interchangeable, but for pins.  On cables each is one of its
        own, for it matters where it stands."""
        return tuple((device.shape, n if self.cables else 0) for n, device in enumerate(self.devices))

    def configurations(self, item: int, device: int) -> tuple[Configuration, ...]:
        """Configurations of an item (position) on a device (position); empty if the part cannot hold it."""
        return self.items[item].configurations.get(self.devices[device].part, ())

    def with_pins(self, pins: Mapping[str, str]) -> Instance:
        """The same instance with items pinned to devices (both by name), over pins it already has.

        Raises:
            DagtrainError: an unknown item or device; the message lists all of them.
        """
        unknown = [f"no item named {name!r}" for name in pins if name not in self.item_index]
        if unknown:
            raise DagtrainError.listing(f"placement instance {self.name!r}", unknown)
        items = tuple(replace(item, pinned=pins.get(item.name, item.pinned)) for item in self.items)
        return replace(self, items=items)


# instances that differ in their items alone share the tables
_routing = lru_cache(maxsize=64)(Routing)


def ticks(cycles: int, clock_hz: int, device_hz: int) -> int:
    """The least whole number of cycles at ``clock_hz`` that last as long as so many at ``device_hz``, of a device;
    0 Hz: of the same clock."""
    return -(-cycles * clock_hz // device_hz) if device_hz else cycles


def pareto(configurations: Iterable[Configuration]) -> tuple[Configuration, ...]:
    """Those configurations that no other one beats or equals in cycles, DSP, M20K, ALM and DRAM.

    Configurations of different tiles do not compete: a tile is chosen for a whole group. Of equals, the first
    by label stays. The result is ordered by tile, cycles, costs and label, whatever the order given.
    """

    def key(c: Configuration) -> tuple[str, int, tuple[int, int, int, int], str]:
        return (c.tile or "", c.cycles_per_frame, c.costs, c.label)

    kept: list[Configuration] = []
    for candidate in sorted(configurations, key=key):
        if not any(_dominates(other, candidate) for other in kept if other.tile == candidate.tile):
            kept.append(candidate)
    return tuple(kept)


def _dominates(a: Configuration, b: Configuration) -> bool:
    cheaper = a.cycles_per_frame <= b.cycles_per_frame and all(x <= y for x, y in zip(a.costs, b.costs, strict=True))
    return cheaper and streams_fit(a, b)


def streams_fit(a: Configuration, b: Configuration) -> bool:
    """Whether the streams to DRAM of ``a`` have room on any channels where those of ``b`` have."""
    ours, theirs = sorted(a.streams, reverse=True), sorted(b.streams, reverse=True)
    return len(ours) <= len(theirs) and all(x <= y for x, y in zip(ours, theirs, strict=False))


def hop_order(instance: Instance) -> list[int]:
    """Item positions in a topological order of the hop-matching links; shorter than `items` if they form a cycle."""
    successors: list[list[int]] = [[] for _ in instance.items]
    missing = [0] * len(instance.items)
    for link in instance.links:
        if link.kind.hops_must_match:
            source, target = instance.item_index[link.source], instance.item_index[link.target]
            successors[source].append(target)
            missing[target] += 1
    ready = [index for index in reversed(range(len(missing))) if not missing[index]]
    order: list[int] = []
    while ready:
        current = ready.pop()
        order.append(current)
        for successor in successors[current]:
            missing[successor] -= 1
            if not missing[successor]:
                ready.append(successor)
    return order


def _problems(instance: Instance) -> list[str]:
    """Every inconsistency of an instance, each with the names and values at fault."""
    problems = [f"clock_hz is {instance.clock_hz}, must be positive"] if instance.clock_hz < 1 else []
    if not instance.devices:
        problems.append("has no devices")
    if not instance.items:
        problems.append("has no items")
    problems += _duplicates("item", [item.name for item in instance.items])
    problems += _duplicates("device", [device.name for device in instance.devices])
    later: dict[str, tuple[Any, ...]] = {"exchanges": instance.exchanges}
    later["copies of items"] = tuple(item for item in instance.items if item.copies != 1)
    problems += [f"{what}: not built yet" for what, found in later.items() if found]
    for device in instance.devices:
        if not 0 < device.link_efficiency <= 1 or (instance.framing is None and device.link_efficiency != 1):
            problems.append(f"device {device.name!r}: words are {device.link_efficiency} of its link's rate")
        problems += _negatives(f"device {device.name!r}", device)
        if device.dram_channels < 1:
            problems.append(f"device {device.name!r}: {device.dram_channels} memory channels")
        problems += _port_problems(instance, device)
    problems += _cable_problems(instance)
    problems += [problem for item in instance.items for problem in _item_problems(instance, item)]
    names = {item.name for item in instance.items}
    for link in instance.links:
        problems += [
            f"link {link.source!r} → {link.target!r}: no item named {end!r}"
            for end in (link.source, link.target)
            if end not in names
        ]
        problems += [
            f"link {link.source!r} → {link.target!r}: {bits} bits a frame" for *_, bits in link.ways if bits < 0
        ]
        problems += _negatives(f"link {link.source!r} → {link.target!r}", link)
    if problems:
        return problems
    return _group_problems(instance)


def _port_problems(instance: Instance, device: Device) -> list[str]:
    port, where = device.port, f"device {device.name!r}"
    if (port is None) != (instance.framing is None):
        return [f"{where}: a port of frames there is where words cross the network in frames, and nowhere else"]
    if port is None:
        return []
    found = [f"{where}: {bits} bits a frame between it and the host" for bits in device.host_bits if bits < 0]
    for name in ("m20k", "alm", "replay_words"):
        told: tuple[int, ...] = getattr(port, name)
        if len(told) < len(instance.devices):
            found.append(f"{where}: {name} of a port with 0 to {len(told) - 1} of {len(instance.devices)} devices")
        elif list(told) != sorted(told) or told[0] < 0:
            found.append(f"{where}: {name} of a port are {', '.join(map(str, told))}, less with more peers")
    return found


def _cable_problems(instance: Instance) -> list[str]:
    """What is wrong with cables, each by the names of its ends."""
    cables, names = instance.cables, [device.name for device in instance.devices]
    columns, found = instance.mesh_columns, list[str]()
    if columns < 0 or (columns and not cables):
        found.append(f"a mesh of {columns} columns with {len(cables)} cables")
    if cables and instance.framing is not None:
        found.append("words cross the network in frames, and over cables without a switch: only one of both")
    ports: Counter[tuple[str, int]] = Counter()
    for cable in cables:
        where = f"cable {cable.a!r} - {cable.b!r}"
        found += [f"{where}: no device named {end!r}" for end in (cable.a, cable.b) if end not in names]
        found += _negatives(where, cable)
        if not cable.bits_per_s:
            found.append(f"{where}: bits_per_s is 0")
        if cable.a == cable.b:
            found.append(f"{where}: from a device to itself")
        ports.update([(cable.a, cable.a_port), (cable.b, cable.b_port)])
    found += [f"port {port} of {name!r} has {count} cables" for (name, port), count in ports.items() if count > 1]
    pairs = Counter(frozenset((cable.a, cable.b)) for cable in cables)
    found += [f"{' and '.join(sorted(pair))} are joined {count} times" for pair, count in pairs.items() if count > 1]
    if found or not cables or len(set(names)) < len(names):
        return found
    found = [f"no cables lead to {name!r}" for name in unreached(names, cables)]
    if columns and (len(names) % columns or set(pairs) != {frozenset(pair) for pair in neighbours(names, columns)}):
        found.append(f"cables are not those of a mesh of {len(names)} devices in {columns} columns")
    rates: Counter[str] = Counter()
    for cable in cables:
        rates.update({cable.a: cable.bits_per_s, cable.b: cable.bits_per_s})
    return found + [
        f"device {device.name!r}: link_bits_per_s is {device.link_bits_per_s}, its cables have {rates[device.name]}"
        for device in instance.devices
        if device.link_bits_per_s != rates[device.name]
    ]


def _item_problems(instance: Instance, item: Item) -> list[str]:
    problems = []
    if item.pinned is not None and item.pinned not in {device.name for device in instance.devices}:
        known = ", ".join(device.name for device in instance.devices)
        problems.append(f"item {item.name!r} is pinned to {item.pinned!r}; devices are {known}")
    if not any(item.configurations.get(device.part) for device in instance.devices):
        problems.append(f"item {item.name!r} has no configuration on any part of the cluster")
    for part, configurations in item.configurations.items():
        where = f"item {item.name!r} on {part}"
        problems += _duplicates(f"{where}: configuration", [c.label for c in configurations])
        for c in configurations:
            problems += _negatives(f"{where}, configuration {c.label!r}", c)
            if c.dram_streams and (min(c.dram_streams) < 0 or sum(c.dram_streams) != c.dram_bytes_per_frame):
                problems.append(
                    f"{where}, configuration {c.label!r}: streams of {', '.join(map(str, c.dram_streams))} bytes to "
                    f"DRAM, {c.dram_bytes_per_frame} in all"
                )
            if (c.tile is None) != (item.tile_group is None):
                problems.append(
                    f"{where}, configuration {c.label!r}: tile {c.tile!r} but tile group {item.tile_group!r}"
                )
    return problems


def _group_problems(instance: Instance) -> list[str]:
    problems = []
    for group, members in instance.tile_groups.items():
        tiles = [{c.tile for part in instance.items[m].configurations.values() for c in part} for m in members]
        if not set.intersection(*tiles):
            names = ", ".join(instance.items[m].name for m in members)
            problems.append(f"tile group {group!r}: no tile is offered by all of {names}")
    pins: dict[str, set[str]] = {}
    for item in instance.items:
        if item.same_device is not None and item.pinned is not None:
            pins.setdefault(item.same_device, set()).add(item.pinned)
    problems += [
        f"items coupled by same_device {key!r} are pinned to different devices {', '.join(sorted(devices))}"
        for key, devices in pins.items()
        if len(devices) > 1
    ]
    if len(hop_order(instance)) < len(instance.items):
        stuck = sorted({item.name for item in instance.items} - {instance.items[i].name for i in hop_order(instance)})
        problems.append(f"activation and error links form a cycle through {', '.join(stuck[:8])}")
    return problems


def _duplicates(what: str, names: list[str]) -> list[str]:
    return [f"{what} {name!r} appears {count} times" for name, count in Counter(names).items() if count > 1]


def _negatives(where: str, record: Any) -> list[str]:
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return [f"{where}: {name} is {value}" for name, value in values.items() if isinstance(value, int) and value < 0]


# --- JSON ------------------------------------------------------------------------------------------------------


def instance_to_json(instance: Instance) -> str:
    """The instance as JSON text, one line for each item, link and device; byte-identical for equal instances."""
    head = {
        "schema": INSTANCE_SCHEMA,
        "name": instance.name,
        "clock_hz": instance.clock_hz,
        "notes": dict(instance.notes),
    }
    if instance.framing is not None:
        head["framing"] = vars_of(instance.framing)
    if instance.mesh_columns:
        head["mesh_columns"] = instance.mesh_columns
    rows = {"cables": list(map(vars_of, instance.cables))} if instance.cables else {}
    rows |= {
        "devices": [_device_record(device) for device in instance.devices],
        "items": [_item_record(item) for item in instance.items],
        "links": [_link_record(link) for link in instance.links],
    }
    lines = [f"{json.dumps(key)}: {_dumps(value)}" for key, value in head.items()]
    lines += [f"{json.dumps(key)}: [\n" + ",\n".join(map(_dumps, row)) + "\n]" for key, row in rows.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dumps(record: Any) -> str:
    return json.dumps(record, sort_keys=True, ensure_ascii=False)


def _device_record(device: Device) -> dict[str, Any]:
    port = None
    if device.port is not None:
        host = ("host_in_bits_per_frame", "host_out_bits_per_frame")
        port = {**vars_of(device.port), **{name: str(getattr(device.port, name)) for name in host}}
    return _without_defaults({**vars_of(device), "link_efficiency": str(device.link_efficiency), "port": port})


def _item_record(item: Item) -> dict[str, Any]:
    names = [f.name for f in fields(Configuration)]
    menu = {
        part: [_without_defaults({name: getattr(c, name) for name in names}) for c in configurations]
        for part, configurations in item.configurations.items()
    }
    return _without_defaults({**vars_of(item), "configurations": menu})


def _link_record(link: Link) -> dict[str, Any]:
    bits = {name: str(getattr(link, name)) for name in ("bits_per_frame", "credit_bits_per_frame")}
    return _without_defaults({**vars_of(link), "kind": link.kind.value, **bits})


def instance_from_json(text: str) -> Instance:
    """The instance that `instance_to_json` wrote.

    Raises:
        DagtrainError: not JSON, another schema version, or a key missing, misspelt or of the wrong kind; it lists all.
    """
    cure = "write it again with the step that made it"
    instance: Instance = read_record(text, "placement instance", INSTANCE_SCHEMA, Instance, cure)
    return instance


def _without_defaults(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what says that there is one memory channel, one clock, one copy, no frames, and that no credits
    go back."""
    plain: dict[str, Any] = {
        "dram_streams": (),
        "dram_channels": 1,
        "clock_hz": 0,
        "credit_bits_per_frame": "0",
        "copies": 1,
    }
    plain |= {"link_efficiency": "1", "port": None}
    return {key: value for key, value in record.items() if key not in plain or value != plain[key]}


def vars_of(record: Any) -> dict[str, Any]:
    """Fields of a dataclass instance by name, not recursing."""
    return {f.name: getattr(record, f.name) for f in fields(record)}
