"""The judge of plans: recomputes every constraint and the objective from the instance and the plan alone.

It shares no code with the search, the model or the code that writes plans (it imports only the plain data
types), works in exact integers and fractions, and reports every violation with its numbers. No plan that it
rejects is ever written.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from placement.problem.instance import Configuration, Framing, Instance, instance_to_json
from placement.problem.plan import Plan


class Rule(enum.Enum):
    """Which promise a plan breaks; the numbers are the poster's equations."""

    INSTANCE = "the plan speaks of another instance"
    PLACED_ONCE = "(1) each item once, with one known configuration on a known device"
    TILES = "items of a tile group share one tile"
    SAME_DEVICE = "coupled items share one device"
    RESOURCES = "(2) blocks of a device"
    DRAM = "(2) DRAM bandwidth of a device, and of its memory channels"
    NETWORK = "(3) network bandwidth of a device, or of a cable in one direction"
    ROUTES = "ways of words over cables"
    REPLAY = "words that a device keeps until they have arrived"
    HOPS = "(4) equal hops where branches join"
    PINS = "(5) pinned items"
    OBJECTIVE = "(6) throughput"
    BOUND = "bound, gap and status"
    RECORD = "numbers repeated in the plan"


@dataclass(frozen=True)
class Violation:
    """One broken rule, with the numbers."""

    rule: Rule
    message: str

    def __str__(self) -> str:
        return f"{self.rule.name.lower()}: {self.message}"


def violations(instance: Instance, plan: Plan) -> list[Violation]:
    """Everything wrong with a plan of an instance; an empty list means it is valid.

    If items are missing, doubled or unknown, only that is reported: the rest would have no meaning.
    """
    found = _instance_violations(instance, plan) + _placement_violations(instance, plan)
    if found:
        return found
    facts = _Facts(instance, plan)
    checks = (
        _tile_violations, _same_device_violations, _resource_violations, _dram_violations, _network_violations,
        _cable_violations, _route_violations, _replay_violations,
        _hop_violations, _pin_violations, _objective_violations, _bound_violations, _item_record_violations,
        _device_record_violations, _crossing_record_violations, _cable_record_violations,
    )  # fmt: skip
    return [violation for check in checks for violation in check(facts)]


# bytes of a frame beside its words, told here anew: Ethernet's header; those of IPv4, UDP and our own, and the CRC; the
# tag of a keyed frame; preamble, FCS and gap. A descriptor has 64 bits and announces 32 words
_LINK_HEADER, _PACKET_HEADERS, _TAG, _BETWEEN = 14, 20 + 8 + 22 + 4, 8, 8 + 4 + 12
_ANNOUNCED = 32


def _words_share(framing: Framing | None) -> Fraction:
    """Part of a cable's rate that words have."""
    if framing is None:
        return Fraction(1)
    words, _beats, size = _longest_frame(framing)
    return Fraction(words * framing.word_bits // 8, size)


def _longest_frame(framing: Framing) -> tuple[int, int, int]:
    """Words and beats of the longest frame, laid out beat after beat, and its bytes on the cable."""
    beat, group = framing.word_bits // 8, framing.word_bits // 64 * _ANNOUNCED
    size, words, left = _PACKET_HEADERS + _TAG * framing.keyed, 0, 0
    while size + beat <= framing.mtu:
        size += beat
        # a beat of descriptors where all words announced have come, else a word
        words, left = (words + 1, left - 1) if left else (words, group)
    if left == group:
        # descriptors that announce nothing are not sent
        size -= beat
    beats = (size - _PACKET_HEADERS - _TAG * framing.keyed) // beat
    return words, beats, _LINK_HEADER + size + _BETWEEN


class _Facts:
    """What a plan says about devices and configurations, and the sums that follow from it."""

    def __init__(self, instance: Instance, plan: Plan) -> None:
        self.instance, self.plan = instance, plan
        parts = {device.name: device.part for device in instance.devices}
        placed = {entry.item: entry for entry in plan.items}
        self.device: dict[str, str] = {}
        self.configuration: dict[str, Configuration] = {}
        self.dram: dict[str, int] = dict.fromkeys(parts, 0)
        # of each memory channel, where the plan says which streams go through it; what is wrong with what it says
        self.channels: dict[str, list[int]] = {device.name: [0] * device.dram_channels for device in instance.devices}
        self.unknown_channels: list[str] = []
        share = _words_share(instance.framing)
        # bits of words a second that a device sends at most, and takes
        self.rate = {device.name: device.link_bits_per_s * share for device in instance.devices}
        self.egress: dict[str, Fraction] = dict.fromkeys(parts, Fraction(0))
        self.ingress: dict[str, Fraction] = dict.fromkeys(parts, Fraction(0))
        # (device, resource) → blocks of senders and receivers, then of the rest of ports
        self.port: Counter[tuple[str, str]] = Counter()
        # ways over cables; (device, device that a cable leads to) → bits a frame of all that goes through it
        self.ways = _Ways(instance) if instance.cables else None
        self.cables: dict[tuple[str, str], Fraction] = {
            ends: Fraction(0) for cable in instance.cables for ends in ((cable.a, cable.b), (cable.b, cable.a))
        }
        # device → device that it sends words or credits to → bits a frame
        self.sent: dict[str, dict[str, Fraction]] = {name: {} for name in parts}
        for item in instance.items:
            entry = placed[item.name]
            offered = {c.label: c for c in item.configurations[parts[entry.device]]}
            self.device[item.name] = entry.device
            self.configuration[item.name] = offered[entry.configuration]
            self.dram[entry.device] += offered[entry.configuration].dram_bytes_per_frame
            self._add_streams(item.name, entry.device, entry.dram_channels)
        for link in instance.links:
            source, target = self.device[link.source], self.device[link.target]
            if source != target:
                self.egress[source] += link.bits_per_frame
                self.ingress[target] += link.bits_per_frame
                # words that give credits back go the other way
                self.egress[target] += link.credit_bits_per_frame
                self.ingress[source] += link.credit_bits_per_frame
                self.port[source, "m20k"] += link.sender_m20k
                self.port[source, "alm"] += link.sender_alm
                self.port[target, "m20k"] += link.receiver_m20k
                self.port[target, "alm"] += link.receiver_alm
                for here, there, bits in (
                    (source, target, link.bits_per_frame), (target, source, link.credit_bits_per_frame),
                ):  # fmt: skip
                    self.sent[here][there] = self.sent[here].get(there, Fraction(0)) + bits
                    for hop in pairwise(self.ways.between(here, there) if self.ways else ()):
                        self.cables[hop] += bits
        for port, name in ((d.port, d.name) for d in instance.devices if d.name in self.device.values()):
            if port is not None:
                self.port[name, "m20k"] += port.m20k[len(self.sent[name])]
                self.port[name, "alm"] += port.alm[len(self.sent[name])]
                self.egress[name] += port.host_out_bits_per_frame
                self.ingress[name] += port.host_in_bits_per_frame

    def _add_streams(self, item: str, device: str, channels: tuple[int, ...]) -> None:
        streams, loads = self.configuration[item].streams, self.channels[device]
        wanted = len(streams) if len(loads) > 1 else 0
        if len(channels) != wanted or not all(0 <= channel < len(loads) for channel in channels):
            self.unknown_channels.append(
                f"item {item!r} has channels {list(channels)} for {len(streams)} streams to DRAM; {device} has "
                f"{len(loads)} memory channels"
            )
            return
        for channel, size in zip(channels or (0,) * len(streams), streams, strict=True):
            loads[channel] += size

    def used(self, device: str, resource: str) -> int:
        items = (
            int(getattr(self.configuration[item], resource)) for item, place in self.device.items() if place == device
        )
        return self.port[device, resource] + sum(items)

    def pace(self, item: str) -> Fraction:
        """Cycles of the instance's clock that the engine of an item takes a frame."""
        clock = self.instance.clock_hz
        own = next(device.clock_hz for device in self.instance.devices if device.name == self.device[item])
        return Fraction(self.configuration[item].cycles_per_frame * clock, own or clock)

    def _apart(self, source: str, target: str) -> int:
        """Hops from one device to another."""
        return len(self.ways.between(source, target)) - 1 if self.ways else int(source != target)

    def hops(self) -> tuple[dict[str, int], list[Violation]]:
        """Hops of every item by walking the links from the input, and each link that disagrees."""
        predecessors: dict[str, list[str]] = {item: [] for item in self.device}
        for link in self.instance.links:
            if link.kind.hops_must_match:
                predecessors[link.target].append(link.source)
        levels: dict[str, int] = {}
        found: list[Violation] = []
        waiting = list(self.device)
        while waiting:
            later = []
            for item in waiting:
                if any(p not in levels for p in predecessors[item]):
                    later.append(item)
                    continue
                arrivals = {p: levels[p] + self._apart(self.device[p], self.device[item]) for p in predecessors[item]}
                levels[item] = max(arrivals.values(), default=0)
                if len(set(arrivals.values())) > 1:
                    ways = ", ".join(f"{hops} over {p!r}" for p, hops in arrivals.items())
                    found.append(Violation(Rule.HOPS, f"branches join at {item!r} with unequal hops: {ways}"))
            waiting = later
        return levels, found


class _Ways:
    """Ways over cables, from the two rules anew (`placement.problem.routes` says them, and nothing of it is used).

    In a mesh along the row, then along the column.  Elsewhere a cable leads up to its end with fewer cables to the
    first device, of two with as few to the one that stands first.  A device sends words down where all of their way can
    lead down, else up, and so that the rest of their way is shortest; of ways as short, by the cable that stands
    first."""

    def __init__(self, instance: Instance) -> None:
        self.columns = instance.mesh_columns
        self.names = [device.name for device in instance.devices]
        # in the order of cables
        self.joined: dict[str, list[str]] = {name: [] for name in self.names}
        for cable in instance.cables:
            self.joined[cable.a].append(cable.b)
            self.joined[cable.b].append(cable.a)
        order = {self.names[0]: 0}
        queue = [self.names[0]]
        for name in queue:
            for other in self.joined[name]:
                if other not in order:
                    order[other] = order[name] + 1
                    queue.append(other)
        self.height = {name: (-order[name], -place) for place, name in enumerate(self.names)}
        self.known: dict[tuple[str, str], tuple[str, ...]] = {}

    def between(self, source: str, target: str) -> tuple[str, ...]:
        """All devices of a way, both ends among them."""
        if (source, target) not in self.known:
            found = self._grid(source, target) if self.columns else self._climbed(source, target)
            self.known[source, target] = tuple(found)
        return self.known[source, target]

    def _grid(self, source: str, target: str) -> list[str]:
        (row, column), (to_row, to_column) = (divmod(self.names.index(name), self.columns) for name in (source, target))
        along = range(column, to_column, 1 if to_column > column else -1)
        down = range(row, to_row, 1 if to_row > row else -1)
        places = [(row, at) for at in along] + [(at, to_column) for at in down]
        return [self.names[y * self.columns + x] for y, x in places] + [target]

    def _climbed(self, source: str, target: str) -> list[str]:
        # devices from which words can go down to the target all the way, and by how many cables, from the target up
        below = {target: 0}
        queue = [target]
        for name in queue:
            for upper in self.joined[name]:
                if self.height[upper] > self.height[name] and upper not in below:
                    below[upper] = below[name] + 1
                    queue.append(upper)
        if source in below:
            found = [source]
            while found[-1] != target:
                here = found[-1]
                lower = (n for n in self.joined[here] if self.height[n] < self.height[here])
                found.append(next(n for n in lower if below.get(n) == below[here] - 1))
            return found
        uppers = [n for n in self.joined[source] if self.height[n] > self.height[source]]
        return [source, *min((self.between(upper, target) for upper in uppers), key=len)]


def _instance_violations(instance: Instance, plan: Plan) -> list[Violation]:
    digest = hashlib.sha256(instance_to_json(instance).encode()).hexdigest()
    found = []
    if plan.instance != instance.name or plan.instance_digest != digest:
        found.append(
            f"plan is for {plan.instance!r} with digest {plan.instance_digest[:12]}…, "
            f"instance is {instance.name!r} with {digest[:12]}…"
        )
    mtu = instance.framing.mtu if instance.framing else 0
    if plan.mtu != mtu:
        found.append(f"plan has frames of an MTU of {plan.mtu}, the instance of {mtu}")
    if plan.clock_hz != instance.clock_hz:
        found.append(f"plan's clock is {plan.clock_hz} Hz, the instance's {instance.clock_hz} Hz")
    return [Violation(Rule.INSTANCE, message) for message in found]


def _placement_violations(instance: Instance, plan: Plan) -> list[Violation]:
    found = []
    counts = Counter(entry.item for entry in plan.items)
    items = {item.name: item for item in instance.items}
    parts = {device.name: device.part for device in instance.devices}
    found += [f"item {name!r} is not placed" for name in items if not counts[name]]
    found += [f"item {name!r} is placed {count} times" for name, count in counts.items() if count > 1]
    found += [f"item {name!r} is unknown to the instance" for name in counts if name not in items]
    for entry in plan.items:
        if entry.device not in parts:
            found.append(f"item {entry.item!r} is on unknown device {entry.device!r}")
        elif entry.item in items:
            offered = items[entry.item].configurations.get(parts[entry.device], ())
            if entry.configuration not in {c.label for c in offered}:
                found.append(
                    f"item {entry.item!r} has configuration {entry.configuration!r}, "
                    f"which is none of the {len(offered)} offered on {parts[entry.device]}"
                )
    return [Violation(Rule.PLACED_ONCE, message) for message in found]


def _tile_violations(facts: _Facts) -> list[Violation]:
    tiles: dict[str, dict[str | None, list[str]]] = {}
    for item in facts.instance.items:
        if item.tile_group is not None:
            by_tile = tiles.setdefault(item.tile_group, {})
            by_tile.setdefault(facts.configuration[item.name].tile, []).append(item.name)
    return [
        Violation(
            Rule.TILES,
            f"tile group {group!r} mixes tiles: "
            + ", ".join(f"{tile} in {' '.join(names)}" for tile, names in by_tile.items()),
        )
        for group, by_tile in tiles.items()
        if len(by_tile) > 1
    ]


def _same_device_violations(facts: _Facts) -> list[Violation]:
    places: dict[str, set[str]] = {}
    for item in facts.instance.items:
        if item.same_device is not None:
            places.setdefault(item.same_device, set()).add(facts.device[item.name])
    return [
        Violation(Rule.SAME_DEVICE, f"items coupled as {key!r} are spread over {', '.join(sorted(devices))}")
        for key, devices in places.items()
        if len(devices) > 1
    ]


def _resource_violations(facts: _Facts) -> list[Violation]:
    found = []
    for device in facts.instance.devices:
        for resource in ("dsp", "m20k", "alm"):
            used, capacity = facts.used(device.name, resource), getattr(device, resource)
            if used > capacity:
                found.append(Violation(Rule.RESOURCES, f"{device.name}: {used} {resource} used of {capacity}"))
    return found


def _dram_violations(facts: _Facts) -> list[Violation]:
    clock, cycles = facts.instance.clock_hz, facts.plan.cycles_per_frame
    found = [Violation(Rule.DRAM, message) for message in facts.unknown_channels]
    found += [
        Violation(
            Rule.DRAM,
            f"{device.name}: {facts.dram[device.name]} bytes a frame × {clock} Hz / {cycles} cycles "
            f"exceeds {device.dram_bytes_per_s} bytes/s",
        )
        for device in facts.instance.devices
        if facts.dram[device.name] * clock > device.dram_bytes_per_s * cycles
    ]
    found += [
        Violation(
            Rule.DRAM,
            f"{device.name}: memory channel {channel} with {load} bytes a frame × {clock} Hz / {cycles} cycles "
            f"exceeds its part, 1 of {device.dram_channels}, of {device.dram_bytes_per_s} bytes/s",
        )
        for device in facts.instance.devices
        if device.dram_channels > 1
        for channel, load in enumerate(facts.channels[device.name])
        if load * device.dram_channels * clock > device.dram_bytes_per_s * cycles
    ]
    return found


def _network_violations(facts: _Facts) -> list[Violation]:
    clock, cycles = facts.instance.clock_hz, facts.plan.cycles_per_frame
    share = _words_share(facts.instance.framing)
    found = [
        Violation(
            Rule.NETWORK,
            f"{device.name}: words have {device.link_efficiency} of the link's rate in the instance, {share} in truth",
        )
        for device in facts.instance.devices
        if device.link_efficiency != share
    ]
    return found + [
        Violation(
            Rule.NETWORK,
            f"{device.name}: {direction} of {load[device.name]} bits a frame × {clock} Hz / {cycles} cycles "
            f"exceeds {facts.rate[device.name]} bits/s",
        )
        for device in facts.instance.devices
        for direction, load in (("egress", facts.egress), ("ingress", facts.ingress))
        if load[device.name] * clock > facts.rate[device.name] * cycles
    ]


def _cable_violations(facts: _Facts) -> list[Violation]:
    clock, cycles = facts.instance.clock_hz, facts.plan.cycles_per_frame
    return [
        Violation(
            Rule.NETWORK,
            f"cable {source} -> {target}: {facts.cables[source, target]} bits a frame × {clock} Hz / {cycles} cycles "
            f"exceeds {cable.bits_per_s} bits/s",
        )
        for cable in facts.instance.cables
        for source, target in ((cable.a, cable.b), (cable.b, cable.a))
        if facts.cables[source, target] * clock > cable.bits_per_s * cycles
    ]


def _route_violations(facts: _Facts) -> list[Violation]:
    """Of any two devices that exchange words the plan says the way, over cables that there are, through no device
    twice, as the rule has it; and of no others."""
    plan, ways = facts.plan, facts.ways
    if ways is None:
        return [Violation(Rule.ROUTES, f"{len(plan.routes)} routes over a switch")] if plan.routes else []
    found = []
    left = {(source, target) for source, sent in facts.sent.items() for target in sent}
    for route in plan.routes:
        source, target = route.from_device, route.to_device
        where, way = f"{source} to {target}", (source, *route.through, target)
        if (source, target) not in left:
            found.append(f"{where}: a route again, or of devices that exchange no words")
            continue
        left.remove((source, target))
        found += [f"{where}: the route goes in a circle by {name}" for name, n in Counter(way).items() if n > 1]
        found += [f"{where}: no cable joins {a} and {b}" for a, b in pairwise(way) if (a, b) not in facts.cables]
        if way != ways.between(source, target):
            rule = ", ".join(ways.between(source, target)[1:-1]) or "no other device"
            found.append(f"{where}: the route goes through {', '.join(route.through) or 'no other device'}, not {rule}")
    found += [f"{source} to {target}: the route is missing from the plan" for source, target in sorted(left)]
    return [Violation(Rule.ROUTES, message) for message in found]


def _replay_violations(facts: _Facts) -> list[Violation]:
    """Of each peer, the host one of them, a device keeps two longest frames at least, and all that leaves for it until
    the peer is known to have it."""
    framing, found = facts.instance.framing, []
    if framing is None:
        return []
    words, beats, _size = _longest_frame(framing)
    # beats of a frame for a bit of words, on their way at this pace
    held = Fraction(beats * framing.round_trip_cycles, words * framing.word_bits * max(1, facts.plan.cycles_per_frame))
    for device in facts.instance.devices:
        if device.port is None or device.name not in facts.device.values():
            continue
        sent = [*facts.sent[device.name].values(), device.port.host_out_bits_per_frame]
        needed = sum(max(2 * beats, -int(-bits * held // 1)) for bits in sent)
        has = device.port.replay_words[len(sent) - 1]
        if has < needed:
            message = f"{device.name}: {has} words for {len(sent)} peers, who need {needed}"
            found.append(Violation(Rule.REPLAY, message))
    return found


def _hop_violations(facts: _Facts) -> list[Violation]:
    return facts.hops()[1]


def _pin_violations(facts: _Facts) -> list[Violation]:
    return [
        Violation(Rule.PINS, f"item {item.name!r} is pinned to {item.pinned!r} but on {facts.device[item.name]!r}")
        for item in facts.instance.items
        if item.pinned is not None and item.pinned != facts.device[item.name]
    ]


def _objective_violations(facts: _Facts) -> list[Violation]:
    """T must be exactly the least that engines, DRAM and links allow, and the throughput clock / T."""
    plan, clock = facts.plan, facts.instance.clock_hz
    if plan.cycles_per_frame < 1:
        return [Violation(Rule.OBJECTIVE, f"cycles a frame is {plan.cycles_per_frame}, must be at least 1")]
    paces = {item: facts.pace(item) for item in facts.configuration}
    slowest = max(paces, key=lambda item: paces[item])
    least = max(Fraction(1), paces[slowest])
    for device in facts.instance.devices:
        name = device.name
        rates = [(Fraction(max(facts.channels[name]) * device.dram_channels), Fraction(device.dram_bytes_per_s))]
        rates += [(load[name], facts.rate[name]) for load in (facts.egress, facts.ingress)]
        # without capacity any demand is a violation above, and sets no finite T here
        least = max([least] + [demand * clock / capacity for demand, capacity in rates if capacity])
    for cable in facts.instance.cables:
        both = facts.cables[cable.a, cable.b], facts.cables[cable.b, cable.a]
        least = max(least, max(both) * clock / cable.bits_per_s)
    found = []
    if not plan.cycles_per_frame - 1 < least <= plan.cycles_per_frame:
        found.append(
            f"plan says {plan.cycles_per_frame} cycles a frame, its engines, DRAM and links need {float(least):.3f} "
            f"(slowest engine {slowest!r} takes {float(paces[slowest]):g})"
        )
    steady = float(Fraction(clock, plan.cycles_per_frame))
    if plan.steady_fps != steady:
        found.append(
            f"plan says {plan.steady_fps} frames/s in a batch, {clock} Hz / {plan.cycles_per_frame} is {steady}"
        )
    return [Violation(Rule.OBJECTIVE, message) for message in found + _training_problems(facts)]


def _training_problems(facts: _Facts) -> list[str]:
    """What is wrong with what the plan says of whole batches."""
    plan, clock = facts.plan, facts.instance.clock_hz
    if plan.batch_frames < 1 or not 0 <= plan.staleness_frames <= plan.batch_frames:
        return [f"a batch of {plan.batch_frames} frames with staleness {plan.staleness_frames} is impossible"]
    found = []
    least = plan.batch_frames * plan.cycles_per_frame
    if plan.batch_cycles < least:
        found.append(f"a batch takes {plan.batch_cycles} cycles, its frames alone take {least}")
    throughput = float(Fraction(clock * plan.batch_frames, max(1, plan.batch_cycles)))
    if plan.throughput_fps != throughput:
        found.append(
            f"plan says {plan.throughput_fps} frames/s, {clock} Hz * {plan.batch_frames} / {plan.batch_cycles} is "
            f"{throughput}"
        )
    return found


def _bound_violations(facts: _Facts) -> list[Violation]:
    plan, clock = facts.plan, facts.instance.clock_hz
    if not 1 <= plan.any_bound_cycles_per_frame <= plan.bound_cycles_per_frame <= plan.cycles_per_frame:
        return [
            Violation(
                Rule.BOUND,
                f"bound of {plan.bound_cycles_per_frame} cycles a frame, {plan.any_bound_cycles_per_frame} for any "
                f"configurations, plan has {plan.cycles_per_frame}: a bound lies between 1 and the plan, that for any "
                "configurations below the other",
            )
        ]
    found = []
    best = Fraction(clock, plan.bound_cycles_per_frame)
    throughput = Fraction(clock * max(1, plan.batch_frames), max(1, plan.batch_cycles))
    steady = Fraction(clock, max(1, plan.cycles_per_frame))
    if plan.bound_fps != float(best):
        found.append(f"bound of {plan.bound_fps} frames/s, {clock} Hz / {plan.bound_cycles_per_frame} is {float(best)}")
    any_fps = float(Fraction(clock, plan.any_bound_cycles_per_frame))
    if plan.any_bound_fps != any_fps:
        found.append(
            f"bound for any configurations of {plan.any_bound_fps} frames/s, {clock} Hz / "
            f"{plan.any_bound_cycles_per_frame} is {any_fps}"
        )
    if plan.gap != float((best - throughput) / best):
        found.append(f"gap {plan.gap}, (bound − throughput) / bound is {float((best - throughput) / best)}")
    if plan.steady_gap != float((best - steady) / best):
        found.append(f"gap {plan.steady_gap} inside a batch, (bound − rate) / bound is {float((best - steady) / best)}")
    status = "optimal as priced" if plan.bound_cycles_per_frame == plan.cycles_per_frame else "feasible"
    status = "optimal" if plan.any_bound_cycles_per_frame == plan.cycles_per_frame else status
    if plan.status != status:
        found.append(f"status {plan.status!r}, should be {status!r}")
    return [Violation(Rule.BOUND, message) for message in found]


def _item_record_violations(facts: _Facts) -> list[Violation]:
    found = []
    levels, _ = facts.hops()
    layers = {item.name: item.layer for item in facts.instance.items}
    for entry in facts.plan.items:
        c = facts.configuration[entry.item]
        true: dict[str, object] = {
            "layer": layers[entry.item], "tile": c.tile, "payload": c.payload, "cycles_per_frame": c.cycles_per_frame,
            "dsp": c.dsp, "m20k": c.m20k, "alm": c.alm, "dram_bytes_per_frame": c.dram_bytes_per_frame,
            "hops": levels[entry.item],
        }  # fmt: skip
        found += _differences(f"item {entry.item!r}", entry, true)
    return found


def _device_record_violations(facts: _Facts) -> list[Violation]:
    names = [device.name for device in facts.instance.devices]
    if [entry.device for entry in facts.plan.devices] != names:
        listed = ", ".join(entry.device for entry in facts.plan.devices)
        return [Violation(Rule.RECORD, f"plan lists devices {listed}; the instance has {', '.join(names)}")]
    found = []
    clock, cycles = facts.instance.clock_hz, max(1, facts.plan.cycles_per_frame)
    for device, entry in zip(facts.instance.devices, facts.plan.devices, strict=True):
        name = device.name
        true: dict[str, object] = {"part": device.part, "clock_hz": device.clock_hz}
        true["items"] = sum(d == name for d in facts.device.values())
        for resource in ("dsp", "m20k", "alm"):
            true[resource] = facts.used(name, resource)
            true[f"{resource}_capacity"] = getattr(device, resource)
        true["dram_bytes_per_frame"] = facts.dram[name]
        true["dram_bytes_per_s"] = -(-facts.dram[name] * clock // cycles)
        true["dram_capacity_bytes_per_s"] = device.dram_bytes_per_s
        true["dram_channel_bytes_per_frame"] = tuple(facts.channels[name]) if device.dram_channels > 1 else ()
        for direction, load in (("egress", facts.egress[name]), ("ingress", facts.ingress[name])):
            true[f"{direction}_bits_per_frame"] = str(load)
            true[f"{direction}_bits_per_s"] = -(-load * clock // cycles)
        true["link_capacity_bits_per_s"] = -(-facts.rate[name] // 1)
        port, peers = (device.port if true["items"] else None), len(facts.sent[name])
        true["peers"] = peers if port else 0
        for what in ("m20k", "alm"):
            true[f"port_{what}"] = getattr(port, what)[peers] if port else 0
        true["replay_words"] = port.replay_words[peers] if port else 0
        found += _differences(f"device {name!r}", entry, true)
    return found


def _crossing_record_violations(facts: _Facts) -> list[Violation]:
    """The plan's crossings are exactly the links between devices, each as often as the instance has it."""
    true: Counter[tuple[str, ...]] = Counter()
    for link in facts.instance.links:
        source, target = facts.device[link.source], facts.device[link.target]
        if source != target:
            true[(link.source, link.target, link.kind.value, source, target, str(link.bits_per_frame))] += 1
    said: Counter[tuple[str, ...]] = Counter(
        (c.source, c.target, c.kind, c.from_device, c.to_device, c.bits_per_frame) for c in facts.plan.crossings
    )
    found = [f"crossing {' '.join(key)} is missing from the plan" for key in (true - said)]
    found += [f"crossing {' '.join(key)} is in the plan but not in the placement" for key in (said - true)]
    return [Violation(Rule.RECORD, message) for message in found]


def _cable_record_violations(facts: _Facts) -> list[Violation]:
    clock, cycles = facts.instance.clock_hz, max(1, facts.plan.cycles_per_frame)
    rates = {(c.a, c.b): c.bits_per_s for c in facts.instance.cables}
    ends = [ends for a, b in rates for ends in ((a, b), (b, a))]
    listed = [(entry.from_device, entry.to_device) for entry in facts.plan.cables]
    if listed != ends:
        told = ", ".join(f"{a} -> {b}" for a, b in listed)
        return [Violation(Rule.RECORD, f"plan lists cables {told}; the instance has {len(rates)}, each both ways")]
    found = []
    for (source, target), entry in zip(ends, facts.plan.cables, strict=True):
        bits = facts.cables[source, target]
        true: dict[str, object] = {"bits_per_frame": str(bits), "bits_per_s": -(-bits * clock // cycles)}
        true["capacity_bits_per_s"] = rates.get((source, target)) or rates[target, source]
        found += _differences(f"cable {source} -> {target}", entry, true)
    return found


def _differences(where: str, entry: object, true: dict[str, object]) -> list[Violation]:
    return [
        Violation(Rule.RECORD, f"{where}: {key} is {getattr(entry, key)!r} in the plan, {value!r} in truth")
        for key, value in true.items()
        if getattr(entry, key) != value
    ]
