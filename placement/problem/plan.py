"""A finished plan: where every item stands, with what configuration, at what throughput, and what binds.

A plan is plain data and its JSON is byte-identical for the same instance and seed: no wall-clock time is in it.
It repeats what can be recomputed (loads, hops, utilisation) so that people and later steps can read it alone;
`placement.problem.validate` recomputes all of that from the instance and rejects a plan that disagrees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

from pydantic import TypeAdapter

from hdl.errors import DagtrainError
from hdl.records import exact, read_record
from placement.problem.channels import spread
from placement.problem.instance import Configuration, Instance, hop_order, instance_to_json, ticks, vars_of

PLAN_SCHEMA = 2


@dataclass(frozen=True)
class Assignment:
    """A solution as the search handles it; positions, not names."""

    # item position → device position
    devices: tuple[int, ...]
    # item position → position in Instance.configurations(item, device)
    configurations: tuple[int, ...]
    # item position → memory channels of its streams to DRAM; None: as `placement.problem.channels` spreads them
    channels: tuple[tuple[int, ...], ...] | None = None


@exact
@dataclass(frozen=True, kw_only=True)
class PlacedItem:
    """One item of the plan, with the resources of its configuration."""

    item: str
    layer: str
    device: str
    configuration: str
    tile: str | None
    payload: str
    cycles_per_frame: int
    dsp: int
    m20k: int
    alm: int
    dram_bytes_per_frame: int
    # network hops from the input along activation and error links: one over a switch, else one a cable
    hops: int
    # the memory channel of each of its streams to DRAM, on a device with several
    dram_channels: tuple[int, ...] = ()


@exact
@dataclass(frozen=True, kw_only=True)
class Crossing:
    """One link whose ends stand on different devices: a stream on the network."""

    source: str
    target: str
    kind: str
    from_device: str
    to_device: str
    # exact, as a decimal integer or a ratio "n/d"
    bits_per_frame: str


@exact
@dataclass(frozen=True, kw_only=True)
class Route:
    """The way of all words from one device to another over cables."""

    from_device: str
    to_device: str
    # devices that pass them on, in turn
    through: tuple[str, ...]


@exact
@dataclass(frozen=True, kw_only=True)
class CableUse:
    """One direction of a cable: what all words take that go through it, beside its rate."""

    from_device: str
    to_device: str
    # exact, "n" or "n/d"
    bits_per_frame: str
    # at the plan's throughput, rounded up
    bits_per_s: int
    capacity_bits_per_s: int


@exact
@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """What the plan takes of one device, beside what there is (after utilisation caps)."""

    device: str
    part: str
    items: int
    dsp: int
    dsp_capacity: int
    m20k: int
    m20k_capacity: int
    alm: int
    alm_capacity: int
    dram_bytes_per_frame: int
    # bytes a second at the plan's throughput, rounded up, and usable bandwidth
    dram_bytes_per_s: int
    dram_capacity_bytes_per_s: int
    # exact bits a frame leaving and entering, "n" or "n/d", without what a device on cables passes on
    egress_bits_per_frame: str
    ingress_bits_per_frame: str
    # bits a second at the plan's throughput, rounded up, and what frames leave of the link's rate (each direction)
    egress_bits_per_s: int
    ingress_bits_per_s: int
    link_capacity_bits_per_s: int
    # bytes a frame through each memory channel, of a device with several; a channel has its part of the capacity
    dram_channel_bytes_per_frame: tuple[int, ...] = ()
    # of its engines, Hz, where that is not the plan's: `cycles_per_frame` of its items count at it
    clock_hz: int = 0
    # where words cross the network in frames, of a device that holds anything: other devices that it exchanges words
    # with, the blocks of its port, which `m20k` and `alm` contain, and the words of the port's replay memory
    peers: int = 0
    port_m20k: int = 0
    port_alm: int = 0
    replay_words: int = 0


@exact
@dataclass(frozen=True, kw_only=True)
class Binding:
    """One thing that keeps the throughput from being higher."""

    # dsp, m20k, alm, dram, links, granularity, hops, configurations
    kind: str
    # with the numbers
    reason: str


@exact
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan. `status` is "optimal" when none can have a smaller T, "optimal as priced" when none can with the
    configurations that were priced, else "feasible"."""

    instance: str
    # SHA-256 of the instance's JSON: the plan speaks of exactly that instance
    instance_digest: str
    # in whose cycles T and batches count; that of every device that has none of its own
    clock_hz: int
    # T: the interval between frames inside a batch
    cycles_per_frame: int
    # training in whole batches: frames a batch, staleness of its weights in frames, cycles from one batch to the next.
    # At least batch · T; what is beyond goes to filling and draining the pipeline while it waits for new weights, to
    # rests and to loads of weights.  Of a plan of no particular recipe: a batch of one frame that nobody waits for
    batch_frames: int
    staleness_frames: int
    batch_cycles: int
    # what training gets, clock_hz · batch_frames / batch_cycles, and the rate inside a batch, clock_hz / T
    throughput_fps: float
    steady_fps: float
    # no plan can have fewer cycles a frame than this (proven), and what the proof rests on
    bound_cycles_per_frame: int
    bound_fps: float
    bound_basis: str
    # the same for any other configurations that its items could be given: those that were priced are some of them
    any_bound_cycles_per_frame: int
    any_bound_fps: float
    any_bound_basis: str
    # (bound − throughput) / bound, and the same of the rate inside a batch: the bound is one of T, so also of training
    gap: float
    steady_gap: float
    # of the rate inside a batch
    status: str
    seed: int
    binding: tuple[Binding, ...]
    items: tuple[PlacedItem, ...]
    devices: tuple[DeviceUse, ...]
    crossings: tuple[Crossing, ...]
    # of the frames in which words cross the network; 0: there are none
    mtu: int = 0
    # of devices on cables: between which of them words go and by which way, and what cables carry
    routes: tuple[Route, ...] = ()
    cables: tuple[CableUse, ...] = ()

    @property
    def training_cycles(self) -> Fraction:
        """Cycles a frame of training in whole batches."""
        return Fraction(self.batch_cycles, self.batch_frames)

    def to_json(self) -> str:
        """The plan as JSON text."""
        record = {**vars_of(self), "schema": PLAN_SCHEMA}
        for key in ("mtu", "routes", "cables"):
            if not record[key]:
                del record[key]
        for key in record.keys() & {"binding", "items", "devices", "crossings", "routes", "cables"}:
            record[key] = [_without_defaults(vars_of(entry)) for entry in record[key]]
        return json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _without_defaults(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what only devices with several memory channels, a clock of their own or frames say."""
    said = (
        "dram_channels",
        "dram_channel_bytes_per_frame",
        "clock_hz",
        "peers",
        "port_m20k",
        "port_alm",
        "replay_words",
    )
    return {key: value for key, value in record.items() if key not in said or value}


def plan_schema() -> dict[str, Any]:
    """The JSON schema of what `Plan.to_json` writes."""
    schema: dict[str, Any] = TypeAdapter(Plan).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["schema"] = {"const": PLAN_SCHEMA, "title": "Schema"}
    schema["required"] = sorted([*schema["required"], "schema"])
    for record in (schema, *schema["$defs"].values()):
        record["additionalProperties"] = False
    return schema


def plan_from_json(text: str) -> Plan:
    """The plan that `Plan.to_json` wrote.

    Raises:
        DagtrainError: not JSON, another schema version, or a key missing, misspelt or of the wrong kind; it lists all.
    """
    plan: Plan = read_record(text, "plan", PLAN_SCHEMA, Plan, "run `dagtrain place` again")
    return plan


def instance_digest(instance: Instance) -> str:
    """SHA-256 of the instance's JSON, hexadecimal."""
    return hashlib.sha256(instance_to_json(instance).encode()).hexdigest()


def chosen(instance: Instance, assignment: Assignment) -> list[Configuration]:
    """The configuration of every item, in item order."""
    return [
        instance.configurations(item, device)[configuration]
        for item, (device, configuration) in enumerate(zip(assignment.devices, assignment.configurations, strict=True))
    ]


@dataclass(frozen=True)
class Loads:
    """What an assignment demands of each device: rates a frame, and the blocks of its network port."""

    # device position → bytes a frame, and those through each of its memory channels
    dram: tuple[int, ...]
    channels: tuple[tuple[int, ...], ...]
    # device position → bits a frame, leaving and entering
    egress: tuple[Fraction, ...]
    ingress: tuple[Fraction, ...]
    # device position → M20K blocks and ALMs of its port, senders and receivers among them; devices that it exchanges
    # words with
    port_m20k: tuple[int, ...]
    port_alm: tuple[int, ...]
    peers: tuple[int, ...]
    # wire -> bits a frame; without cables there is none
    wires: tuple[Fraction, ...]


def loads_of(instance: Instance, assignment: Assignment) -> Loads:
    """DRAM and network demand of every device, exact, a frame; the blocks of its network port."""
    count = len(instance.devices)
    dram, egress, ingress = [0] * count, [Fraction(0)] * count, [Fraction(0)] * count
    m20k, alm = [0] * count, [0] * count
    met: list[set[int]] = [set() for _ in instance.devices]
    channels = [[0] * device.dram_channels for device in instance.devices]
    routing = instance.routing
    wires = [Fraction(0)] * (len(routing.wires) if routing else 0)
    configurations = chosen(instance, assignment)
    for place, configuration, placed in zip(
        assignment.devices, configurations, channels_of(instance, assignment), strict=True
    ):
        dram[place] += configuration.dram_bytes_per_frame
        for channel, size in zip(placed, configuration.streams, strict=True):
            channels[place][channel] += size
    for link in instance.links:
        source = assignment.devices[instance.item_index[link.source]]
        target = assignment.devices[instance.item_index[link.target]]
        if source != target:
            egress[source] += link.bits_per_frame
            ingress[target] += link.bits_per_frame
            egress[target] += link.credit_bits_per_frame
            ingress[source] += link.credit_bits_per_frame
            if routing is not None:
                both = ((source, target, link.bits_per_frame), (target, source, link.credit_bits_per_frame))
                for wire, bits in ((wire, bits) for a, b, bits in both for wire in routing.way(a, b)):
                    wires[wire] += bits
            for end, other, blocks in zip((source, target), (target, source), link.ends, strict=True):
                m20k[end] += blocks[0]
                alm[end] += blocks[1]
                met[end].add(other)
    for n in set(assignment.devices):
        device = instance.devices[n]
        port_m20k, port_alm = device.port_blocks(len(met[n]))
        m20k[n] += port_m20k
        alm[n] += port_alm
        egress[n] += device.host_bits[0]
        ingress[n] += device.host_bits[1]
    through = tuple(map(tuple, channels))
    peers = tuple(map(len, met))
    return Loads(tuple(dram), through, tuple(egress), tuple(ingress), tuple(m20k), tuple(alm), peers, tuple(wires))


def channels_of(instance: Instance, assignment: Assignment) -> tuple[tuple[int, ...], ...]:
    """The memory channel of every stream to DRAM, by item."""
    if assignment.channels is not None:
        return assignment.channels
    configurations = chosen(instance, assignment)
    found = [[0] * len(configuration.streams) for configuration in configurations]
    for n, device in enumerate(instance.devices):
        if device.dram_channels > 1:
            here = [
                (item, stream)
                for item, placed in enumerate(assignment.devices)
                if placed == n
                for stream in range(len(configurations[item].streams))
            ]
            sizes = [configurations[item].streams[stream] for item, stream in here]
            for (item, stream), channel in zip(here, spread(sizes, device.dram_channels), strict=True):
                found[item][stream] = channel
    return tuple(map(tuple, found))


def cycles_needed(demand: Fraction | int, capacity_per_s: Fraction | int, clock_hz: int) -> int | None:
    """Least integer T at which a demand a frame fits a capacity a second: ⌈demand · clock / capacity⌉, 0 for no
    demand, None if nothing fits because the capacity is 0."""
    if not demand:
        return 0
    if not capacity_per_s:
        return None
    return -int(-(Fraction(demand) * clock_hz) // capacity_per_s)


def least_cycles(instance: Instance, assignment: Assignment) -> int | None:
    """The objective: least T this assignment runs at, from its slowest engine, DRAM and link; None if some device
    must use DRAM or links it does not have. Blocks (DSP, M20K, ALM), hops and pins are not looked at."""
    loads = loads_of(instance, assignment)
    engines = zip(chosen(instance, assignment), assignment.devices, strict=True)
    needs: list[int | None] = [1]
    needs.append(max(ticks(c.cycles_per_frame, instance.clock_hz, instance.devices[n].clock_hz) for c, n in engines))
    for n, device in enumerate(instance.devices):
        fullest = max(loads.channels[n]) * device.dram_channels
        needs.append(cycles_needed(fullest, device.dram_bytes_per_s, instance.clock_hz))
        for demand in (loads.egress[n], loads.ingress[n]):
            needs.append(cycles_needed(demand, device.word_bits_per_s, instance.clock_hz))
    for demand, wire in zip(loads.wires, instance.routing.wires if instance.routing else (), strict=True):
        needs.append(cycles_needed(demand, wire.bits_per_s, instance.clock_hz))
    known = [need for need in needs if need is not None]
    return max(known) if len(known) == len(needs) else None


def hop_levels(instance: Instance, devices: tuple[int, ...]) -> list[int]:
    """Hops of every item from the input: 0 without hop-matching predecessors, else the most over them."""
    predecessors: list[list[int]] = [[] for _ in instance.items]
    for link in instance.links:
        if link.kind.hops_must_match:
            predecessors[instance.item_index[link.target]].append(instance.item_index[link.source])
    levels = [0] * len(instance.items)
    for item in hop_order(instance):
        arrivals = (levels[p] + instance.distance[devices[p]][devices[item]] for p in predecessors[item])
        levels[item] = max(arrivals, default=0)
    return levels


def unequal_joins(instance: Instance, devices: tuple[int, ...]) -> list[str]:
    """Every join of activation or error links that branches reach after different numbers of hops, in words."""
    levels = hop_levels(instance, devices)
    arrivals: dict[str, dict[str, int]] = {}
    for link in instance.links:
        if link.kind.hops_must_match:
            source, target = instance.item_index[link.source], instance.item_index[link.target]
            hops = levels[source] + instance.distance[devices[source]][devices[target]]
            arrivals.setdefault(link.target, {})[link.source] = hops
    return [
        f"at {target!r} " + " and ".join(f"{hops} hops over {source!r}" for source, hops in ways.items())
        for target, ways in arrivals.items()
        if len(set(ways.values())) > 1
    ]


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on cycles a frame, and what it rests on."""

    cycles_per_frame: int
    basis: str


def build_plan(
    instance: Instance,
    assignment: Assignment,
    bound: Bound,
    *,
    seed: int,
    any_bound: Bound | None = None,
    binding: tuple[Binding, ...] = (),
) -> Plan:
    """The plan of an assignment at its least T.

    Args:
        any_bound: for whatever configurations its items could be given; None: those of the instance are all.

    Raises:
        DagtrainError: the assignment needs DRAM or links on a device that has none.
    """
    cycles = least_cycles(instance, assignment)
    if cycles is None:
        raise DagtrainError(
            f"placement instance {instance.name!r}: the assignment uses DRAM or links of a device that has none",
            "give the device bandwidth in the cluster file or place its items elsewhere",
        )
    levels = hop_levels(instance, assignment.devices)
    return Plan(
        instance=instance.name,
        instance_digest=instance_digest(instance),
        clock_hz=instance.clock_hz,
        cycles_per_frame=cycles,
        batch_frames=1,
        staleness_frames=1,
        batch_cycles=cycles,
        throughput_fps=float(Fraction(instance.clock_hz, cycles)),
        steady_fps=float(Fraction(instance.clock_hz, cycles)),
        **_bound_fields(instance.clock_hz, cycles, Fraction(cycles), bound, any_bound or bound),
        seed=seed,
        binding=binding,
        items=tuple(_placed_items(instance, assignment, levels)),
        devices=tuple(_device_uses(instance, assignment, cycles)),
        crossings=tuple(_crossings(instance, assignment)),
        mtu=instance.framing.mtu if instance.framing else 0,
        routes=tuple(_routes(instance, assignment)),
        cables=tuple(_cable_uses(instance, assignment, cycles)),
    )


def with_bound(plan: Plan, bound: Bound, any_bound: Bound) -> Plan:
    """The plan with another bound, and another one for any configurations, both at most its own cycles a frame. The
    first is raised to the second, which holds for the configurations priced too."""
    most = min(any_bound.cycles_per_frame, plan.cycles_per_frame)
    least = min(bound.cycles_per_frame, plan.cycles_per_frame)
    kept = replace(bound, cycles_per_frame=least) if least >= most else replace(any_bound, cycles_per_frame=most)
    any_kept = replace(any_bound, cycles_per_frame=most)
    fields = _bound_fields(plan.clock_hz, plan.cycles_per_frame, plan.training_cycles, kept, any_kept)
    return replace(plan, **fields)


def with_batch(plan: Plan, batch_frames: int, staleness_frames: int, cycles: int) -> Plan:
    """The plan with what training gets of it, a batch of frames in so many cycles, or at the pace inside a batch if
    links or memory need longer."""
    lasts = max(cycles, batch_frames * plan.cycles_per_frame)
    bound = Bound(plan.bound_cycles_per_frame, plan.bound_basis)
    any_bound = Bound(plan.any_bound_cycles_per_frame, plan.any_bound_basis)
    return replace(
        plan,
        batch_frames=batch_frames,
        staleness_frames=staleness_frames,
        batch_cycles=lasts,
        throughput_fps=float(Fraction(plan.clock_hz * batch_frames, lasts)),
        **_bound_fields(plan.clock_hz, plan.cycles_per_frame, Fraction(lasts, batch_frames), bound, any_bound),
    )


def _bound_fields(clock_hz: int, cycles: int, training: Fraction, bound: Bound, any_bound: Bound) -> dict[str, Any]:
    """What a plan of so many cycles a frame, inside a batch and in training, says of its bounds. Rates are exact until
    they are written: a quotient of two rounded ones may differ in the last digit from what the validator computes."""
    best = Fraction(clock_hz, bound.cycles_per_frame)
    return {
        "bound_cycles_per_frame": bound.cycles_per_frame,
        "bound_fps": float(best),
        "bound_basis": bound.basis,
        "any_bound_cycles_per_frame": any_bound.cycles_per_frame,
        "any_bound_fps": float(Fraction(clock_hz, any_bound.cycles_per_frame)),
        "any_bound_basis": any_bound.basis,
        "gap": float((best - clock_hz / training) / best),
        "steady_gap": float((best - Fraction(clock_hz, cycles)) / best),
        "status": _status(cycles, bound, any_bound),
    }


def _status(cycles: int, bound: Bound, any_bound: Bound) -> str:
    if any_bound.cycles_per_frame == cycles:
        return "optimal"
    return "optimal as priced" if bound.cycles_per_frame == cycles else "feasible"


def assignment_of(instance: Instance, plan: Plan) -> Assignment:
    """The assignment a plan describes, for warm starts and forced placements.

    Raises:
        DagtrainError: the plan names an item, device or configuration that the instance does not have.
    """
    by_name: Mapping[str, PlacedItem] = {placed.item: placed for placed in plan.items}
    devices, configurations, channels = [], [], []
    for index, item in enumerate(instance.items):
        placed = by_name.get(item.name)
        device = instance.device_index.get(placed.device) if placed else None
        if placed is None or device is None:
            raise DagtrainError(f"plan of {plan.instance!r} does not place item {item.name!r} on a known device")
        labels = [c.label for c in instance.configurations(index, device)]
        if placed.configuration not in labels:
            raise DagtrainError(f"plan gives item {item.name!r} the unknown configuration {placed.configuration!r}")
        devices.append(device)
        configurations.append(labels.index(placed.configuration))
        streams = instance.configurations(index, device)[configurations[-1]].streams
        channels.append(placed.dram_channels or (0,) * len(streams))
    several = any(placed.dram_channels for placed in plan.items)
    return Assignment(tuple(devices), tuple(configurations), tuple(channels) if several else None)


def _placed_items(instance: Instance, assignment: Assignment, levels: list[int]) -> list[PlacedItem]:
    return [
        PlacedItem(
            item=item.name,
            layer=item.layer,
            device=instance.devices[device].name,
            configuration=c.label,
            tile=c.tile,
            payload=c.payload,
            cycles_per_frame=c.cycles_per_frame,
            dsp=c.dsp,
            m20k=c.m20k,
            alm=c.alm,
            dram_bytes_per_frame=c.dram_bytes_per_frame,
            hops=hops,
            dram_channels=channels if instance.devices[device].dram_channels > 1 else (),
        )
        for item, device, c, hops, channels in zip(
            instance.items,
            assignment.devices,
            chosen(instance, assignment),
            levels,
            channels_of(instance, assignment),
            strict=True,
        )
    ]


def _device_uses(instance: Instance, assignment: Assignment, cycles: int) -> list[DeviceUse]:
    loads = loads_of(instance, assignment)
    configurations = chosen(instance, assignment)

    def a_second(a_frame: Fraction | int) -> int:
        return _a_second(instance, a_frame, cycles)

    uses = []
    for n, device in enumerate(instance.devices):
        here = [c for c, placed in zip(configurations, assignment.devices, strict=True) if placed == n]
        port = device.port if here else None
        port_m20k, port_alm = port.blocks(loads.peers[n]) if port else (0, 0)
        uses.append(
            DeviceUse(
                device=device.name,
                part=device.part,
                items=len(here),
                dsp=sum(c.dsp for c in here),
                dsp_capacity=device.dsp,
                m20k=sum(c.m20k for c in here) + loads.port_m20k[n],
                m20k_capacity=device.m20k,
                alm=sum(c.alm for c in here) + loads.port_alm[n],
                alm_capacity=device.alm,
                dram_bytes_per_frame=loads.dram[n],
                dram_bytes_per_s=a_second(loads.dram[n]),
                dram_capacity_bytes_per_s=device.dram_bytes_per_s,
                egress_bits_per_frame=str(loads.egress[n]),
                ingress_bits_per_frame=str(loads.ingress[n]),
                egress_bits_per_s=a_second(loads.egress[n]),
                ingress_bits_per_s=a_second(loads.ingress[n]),
                link_capacity_bits_per_s=ceil(device.word_bits_per_s),
                dram_channel_bytes_per_frame=loads.channels[n] if device.dram_channels > 1 else (),
                clock_hz=device.clock_hz,
                peers=loads.peers[n] if port else 0,
                port_m20k=port_m20k,
                port_alm=port_alm,
                replay_words=port.replay_words[loads.peers[n]] if port else 0,
            )
        )
    return uses


def _a_second(instance: Instance, a_frame: Fraction | int, cycles: int) -> int:
    """What so much a frame is a second at T, rounded up."""
    return -int(-(Fraction(a_frame) * instance.clock_hz) // cycles)


def _routes(instance: Instance, assignment: Assignment) -> Iterator[Route]:
    """Ways between devices that exchange words, in the order of devices."""
    routing = instance.routing
    if routing is None:
        return
    place = dict(zip((item.name for item in instance.items), assignment.devices, strict=True))
    joined = {(place[link.source], place[link.target]) for link in instance.links}
    # credits go back
    pairs = joined | {(target, source) for source, target in joined}
    for source, target in sorted(pair for pair in pairs if pair[0] != pair[1]):
        through = tuple(routing.devices[at] for at in routing.through(source, target))
        yield Route(from_device=routing.devices[source], to_device=routing.devices[target], through=through)


def _cable_uses(instance: Instance, assignment: Assignment, cycles: int) -> Iterator[CableUse]:
    routing = instance.routing
    if routing is None:
        return
    for wire, bits in zip(routing.wires, loads_of(instance, assignment).wires, strict=True):
        yield CableUse(
            from_device=routing.devices[wire.source],
            to_device=routing.devices[wire.target],
            bits_per_frame=str(bits),
            bits_per_s=_a_second(instance, bits, cycles),
            capacity_bits_per_s=wire.bits_per_s,
        )


def _crossings(instance: Instance, assignment: Assignment) -> list[Crossing]:
    crossings = []
    for link in instance.links:
        source = assignment.devices[instance.item_index[link.source]]
        target = assignment.devices[instance.item_index[link.target]]
        if source != target:
            crossings.append(
                Crossing(
                    source=link.source,
                    target=link.target,
                    kind=link.kind.value,
                    from_device=instance.devices[source].name,
                    to_device=instance.devices[target].name,
                    bits_per_frame=str(link.bits_per_frame),
                )
            )
    return crossings
