"""What a simulation of a cluster reports, of both levels alike: plain data, with what follows from it.

Cycles are those of the network's clock, counted from the end of the reset as a bench counts them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

HZ_PER_MHZ = 1e6


class Level(StrEnum):
    """How a cluster is simulated."""

    # the control of its Verilog, cycle for cycle
    EXACT = "exact"
    # events of what layers declare
    FAST = "fast"


class Bound(StrEnum):
    """What a cluster waits for."""

    ENGINE = "engine"
    CABLE = "cable"


@dataclass(frozen=True)
class Span:
    """When a node worked on a frame, or for a batch: the cycles of the first beat that it took or gave for it, and of
    the last."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class NodeWork:
    """A node of the placed graph."""

    node: str
    device: str
    # what it works on: frames, in the order in which it gets them, or batches, of what passes once a batch alone
    per_batch: bool
    spans: tuple[Span, ...]
    # that its circuit has
    multipliers: int
    # sum over cycles of the multipliers at work in them
    busy_multiplier_cycles: int

    def interval(self, frames: Sequence[int]) -> float:
        """Mean cycles between the ends of its work on tensors of these numbers, which follow one another."""
        return (self.spans[frames[-1]].last - self.spans[frames[0]].last) / (len(frames) - 1)


@dataclass(frozen=True, kw_only=True)
class CableWork:
    """What went from one device to another."""

    source: str
    target: str
    # with headers and credits
    bits: int
    # that could have gone in a cycle
    bits_per_cycle: float


@dataclass(frozen=True, kw_only=True)
class BatchWork:
    """A batch."""

    # first beat of a map of its first frame that any node took or gave
    first_cycle: int
    # the results of its first and of its last frame have come to the host
    first_result: int
    last_result: int
    # the last of the new weights was sent; None where nothing is trained
    last_weights: int | None

    @property
    def fill_cycles(self) -> int:
        """From its first beat to its first result."""
        return self.first_result - self.first_cycle

    @property
    def drain_cycles(self) -> int:
        """From its last result to the last of the new weights."""
        return 0 if self.last_weights is None else self.last_weights - self.last_result


@dataclass(frozen=True)
class Binding:
    """What works in the greatest share of all cycles, and so holds all others up."""

    kind: Bound
    # of a node, or of the devices at the ends of a cable
    name: str
    # of cycles
    share: float


@dataclass(frozen=True)
class Idle:
    """A board."""

    device: str
    multipliers: int
    # of all cycles, of filling and draining the pipeline too
    share: float
    # of those from batch to batch; None of a single batch
    in_training: float | None


@dataclass(frozen=True, kw_only=True)
class FullWork:
    """While every engine works on one batch: between the results of two frames, the first behind which all engines
    have ended a frame, and the last before any of them has ended its last one."""

    # of the batch, counted from 0
    first_frame: int
    last_frame: int
    # mean, of the results or of the engine that is slowest meanwhile: what is in front of it runs ahead for a while
    cycles_per_frame: float
    # how much longer a frame takes in the later half of them than in the earlier, as a share, by the results: away from
    # 0 while FIFOs between engines of unlike paces fill.  None of fewer than two intervals
    drift: float | None
    # 1 - busy multiplier cycles / (multipliers * cycles), of the cluster and of each board
    idle: float
    idle_by_device: Mapping[str, float]


def full_work(
    nodes: Sequence[NodeWork], works: Mapping[str, Sequence[int]], results: Sequence[int], shares: Mapping[str, float]
) -> FullWork | None:
    """Of a batch whose results came in these cycles, ``works`` being the multiplier cycles of each engine until then,
    and ``shares`` the part of all frames that it gets; None where no two frames are as `FullWork` says."""
    engines = [node for node in nodes if node.multipliers and not node.per_batch]
    if not engines or not all(node.spans for node in engines):
        return None
    begun = max(node.spans[0].last for node in engines)
    # by then one that has ended its part of as many frames may have ended all
    through = [node for node in engines if len(node.spans) >= len(results) * shares[node.node]]
    ended = min((node.spans[-1].last for node in through), default=results[-1])
    inside = [frame for frame, cycle in enumerate(results) if begun <= cycle <= ended]
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    cycles = results[last] - results[first]
    intervals = [cycles / (last - first)]
    for node in engines:
        ends = [span.last for span in node.spans if results[first] <= span.last <= results[last]]
        if len(ends) > 1:
            intervals.append((ends[-1] - ends[0]) / (len(ends) - 1) * shares[node.node])
    there: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    for node in nodes:
        if node.multipliers:
            there[node.device] += node.multipliers
            busy[node.device] += works[node.node][last] - works[node.node][first] if node.node in works else 0
    return FullWork(
        first_frame=first,
        last_frame=last,
        cycles_per_frame=max(intervals),
        drift=_drift(results[first : last + 1]),
        idle=1 - busy.total() / (there.total() * cycles),
        idle_by_device={device: 1 - busy[device] / (count * cycles) for device, count in there.items()},
    )


def _drift(results: Sequence[int]) -> float | None:
    """How much longer the later half of the intervals between these cycles are than the earlier, in the mean."""
    count = len(results) - 1
    if count < 2:
        return None
    half = count // 2
    before, later = (results[half] - results[0]) / half, (results[-1] - results[half]) / (count - half)
    return later / before - 1


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A run of several batches, or of the first frames of one."""

    level: Level
    clock_mhz: float
    # frames a batch
    batch: int
    # until the results of the last frame had come
    cycles: int
    # until all was done, and the last of the new weights where they are used
    worked_cycles: int
    # in which the results of each frame had come to the host
    frame_cycles: tuple[int, ...]
    nodes: tuple[NodeWork, ...]
    cables: tuple[CableWork, ...]
    batches: tuple[BatchWork, ...]
    binds: Binding
    # of one batch
    full: FullWork | None = None

    @property
    def batch_interval(self) -> float | None:
        """Mean cycles from batch to batch over the later half of them, of the results or of the node that is slowest:
        what runs ahead of it does so until the FIFOs between are full.  None of a single batch."""
        count = len(self.batches)
        if count == 1:
            return None
        since = min(count // 2, count - 2)
        return max((last[-1] - last[since]) / (count - 1 - since) for last in self._ends)

    @property
    def drift(self) -> float | None:
        """How much longer the last interval is than the one before, as a share, of the node of which one of these is
        longest: away from 0 while FIFOs fill.  None of fewer than three batches."""
        if len(self.batches) < 3:
            return None
        before, last = max(((b - a, c - b) for *_, a, b, c in self._ends), key=max)
        return (last - before) / before

    @property
    def _ends(self) -> list[list[int]]:
        """When each batch ends, of the results and of every node that works on frames."""
        count = len(self.batches)
        ends = [[batch.last_result for batch in self.batches]]
        for node in self.nodes:
            # what copies take in turns is no whole number of frames a batch
            if not node.per_batch and node.spans and len(node.spans) % count == 0:
                frames = len(node.spans) // count
                ends.append([span.last for span in node.spans[frames - 1 :: frames]])
        return ends

    @property
    def frame_interval(self) -> float | None:
        """Mean cycles between results inside the last batch; None of a single frame of it."""
        last, frames = self.batches[-1], len(self.frame_cycles) - self.batch * (len(self.batches) - 1)
        return (last.last_result - last.first_result) / (frames - 1) if frames > 1 else None

    @property
    def frames_per_second(self) -> float | None:
        """In training, what is between batches included."""
        return self.batch * self._hz / self.batch_interval if self.batch_interval else None

    @property
    def frames_per_second_inside(self) -> float | None:
        """Inside a batch."""
        return self._hz / self.frame_interval if self.frame_interval else None

    @property
    def idle_by_device(self) -> tuple[Idle, ...]:
        """1 - busy multiplier cycles / (multipliers * cycles) of every board that has multipliers (FPDeep, IEEE TC
        2020, 6.3.3): of all cycles, and of the batches' intervals, as all batches have equal work."""
        there: Counter[str] = Counter()
        busy: Counter[str] = Counter()
        for node in self.nodes:
            there[node.device] += node.multipliers
            busy[node.device] += node.busy_multiplier_cycles
        interval = self.batch_interval

        def idle(device: str, cycles: float) -> float:
            return 1 - busy[device] / (there[device] * cycles)

        return tuple(
            Idle(
                device,
                count,
                idle(device, self.worked_cycles),
                idle(device, interval * len(self.batches)) if interval else None,
            )
            for device, count in there.items()
            if count
        )

    def idle(self, node: NodeWork) -> float | None:
        """The same of one node's engine; None where it has no multipliers."""
        return 1 - node.busy_multiplier_cycles / (node.multipliers * self.worked_cycles) if node.multipliers else None

    def cable_bits_per_second(self, cable: CableWork) -> float:
        """Mean over the run."""
        return cable.bits / self.worked_cycles * self._hz

    @property
    def _hz(self) -> float:
        return self.clock_mhz * HZ_PER_MHZ

    def to_record(self) -> dict[str, Any]:
        """Everything, as it is written to ``simulate.json``."""
        nodes = [
            {
                **asdict(node),
                "spans": [[span.first, span.last] for span in node.spans],
                "idle": _rounded(self.idle(node)),
            }
            for node in self.nodes
        ]
        cables = [
            {**asdict(cable), "bits_per_second": _rounded(self.cable_bits_per_second(cable))} for cable in self.cables
        ]
        batches = [
            {**asdict(batch), "fill_cycles": batch.fill_cycles, "drain_cycles": batch.drain_cycles}
            for batch in self.batches
        ]
        return {
            "level": self.level.value,
            "clock_mhz": self.clock_mhz,
            "batch": self.batch,
            "cycles": self.cycles,
            "worked_cycles": self.worked_cycles,
            "frame_cycles": list(self.frame_cycles),
            "batch_interval": _rounded(self.batch_interval),
            "drift": _rounded(self.drift),
            "frame_interval": _rounded(self.frame_interval),
            "frames_per_second": _rounded(self.frames_per_second),
            "frames_per_second_inside": _rounded(self.frames_per_second_inside),
            "binds": {"kind": self.binds.kind.value, "name": self.binds.name, "share": _rounded(self.binds.share)},
            "idle_by_device": [
                {**asdict(one), "share": _rounded(one.share), "in_training": _rounded(one.in_training)}
                for one in self.idle_by_device
            ],
            "nodes": nodes,
            "cables": cables,
            "batches": batches,
            "full": None if self.full is None else _full_record(self.full),
        }


def binding(nodes: Iterable[NodeWork], cables: Iterable[CableWork], cycles: int) -> Binding:
    """What works in the greatest share of so many cycles, all in which anything did: an engine with multipliers, or a
    cable."""
    engines = [
        Binding(Bound.ENGINE, node.node, node.busy_multiplier_cycles / (node.multipliers * cycles))
        for node in nodes
        if node.multipliers
    ]
    links = [
        Binding(Bound.CABLE, f"{cable.source} -> {cable.target}", cable.bits / (cable.bits_per_cycle * cycles))
        for cable in cables
    ]
    return max(itertools.chain(engines, links), key=lambda one: one.share)


def _full_record(full: FullWork) -> dict[str, Any]:
    idle = {device: _rounded(share) for device, share in full.idle_by_device.items()}
    return {**asdict(full), "cycles_per_frame": _rounded(full.cycles_per_frame), "idle": _rounded(full.idle)} | {
        "idle_by_device": idle
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
