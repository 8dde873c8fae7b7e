"""Internet scale on paper: 1 000 boards in racks, as copies of pipelines whose pace `dagtrain simulate` tells.

    python -m benchmarks.scaling                                  # the tables of docs/scaling.md, in seconds
    python -m benchmarks.scaling --boards 2000 --rack 40 --oversubscription 8 --watts-board 60
    python -m benchmarks.scaling --racks-apart-us 10000 --json    # racks at other places, for programs
    python -m benchmarks.scaling --lay                            # lays out what is not kept: 20 CPU s a pipeline
    python -m benchmarks.scaling --learn                          # trains the digits network at all shares of staleness
    python -m benchmarks.scaling --write                          # … the tables and docs/scaling.svg, too

A *pipeline* is a network on 5, 15 or 100 boards of `benchmarks.simulate_fast`, simulated there.  *Copies* of it share
each batch, and their gradients go round a ring of copies (`--exchange ring`).  Boards fill racks one after the other,
a pipeline's along the network; a rack's switch carries all that its boards say to one another, and its uplink as much
as all its links over the oversubscription.  From these follow

    pace        the least of: what was simulated; what ports of boards carry; what uplinks carry; a batch in the time
                that new weights take to be used (`loop`), where more staleness than a batch would be wanted
    stale       share of a batch whose frames see weights that are one update old (`Recipe.staleness`); digits %: what
                the digits network learns at that share (`--learn`), or at the next larger one that was measured
    port        Gbit/s of the board that sends or receives most, in its fuller direction: its streams, and gradients
    uplink      the same of a rack, in percent of what its uplink carries
    images      Gbit/s of all images, from hosts
    exchange    share of the time in which frames wait while a batch's gradients go round
    held        MB that a board holds of gradients under way between racks, so that none waits for credits
    sums        bits of the widest exact sum of a batch; hardware has none of more than 62

What holds of each formula is compared with the simulator: `checks` with the pipelines that are kept, `copied` with
small networks in several copies, simulated there and then (`--check`).
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import math
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import simulate_fast
from benchmarks.beside_paper import print_table, with_table
from benchmarks.by_multipliers import Board, fastest, trained
from benchmarks.fpdeep import CLOCK_HZ, DSP, NETS, PART, Bare, forward
from benchmarks.learning import DIGITS, Run, train
from dagtrain.files import write_text
from dagtrain.flow.workspace import program_hash
from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph, PlacedGraph, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.exchange import COPY, Exchanging
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import replicate
from dagtrain.planning.choices import cluster_dram
from dagtrain.planning.rate import wired_graph
from dagtrain.progress import Silent
from dagtrain.report.chart import line_chart
from dagtrain.schedule.schedule import needed_staleness, schedule
from dagtrain.schedule.wired import Wired
from dagtrain.simulate.fast import simulate_fast as simulated
from dagtrain.simulate.result import HZ_PER_MHZ
from hdl.engine.codec.collective import Collective
from hdl.fixed import FloatArray
from hdl.layers.capabilities import RoundedApart
from hdl.layers.conv.roles import GradientEngine
from hdl.layers.exchange.exchange import Exchange
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.link.format import credit_batch
from hdl.recipe import Recipe

OUT = Path(__file__).with_name("scaling.json")
FOLDER = Path(__file__).parent.parent / "docs"
DOCS, PLOT = FOLDER / "scaling.md", "scaling.svg"
# boards of all, by which tables go
SIZES = (100, 200, 500, 1000)
OVERSUBSCRIPTIONS = (1, 2, 4, 8, 16, 32)
BATCHES = (256, 1024, 4096, 16384)
GBIT = 1e9
# pipelines that are laid out
LAID = (("VGG-16", 5), ("VGG-16", 15), ("VGG-16", 100))
# milliseconds from place to place, in us, and frames of a batch there
FAR_US, FAR_BATCH = (1e3, 1e4, 5e4), 16384
# of the calibration of the digits network
CALIBRATED_BATCHES = 16
# (name, heads, rows)
Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Gradients:
    """Of a weight, where they are summed up."""

    board: int
    elements: int
    # of an exact sum over the frames of a batch, and of what it is rounded to
    sum_bits: int
    bits: int


@dataclass(frozen=True)
class Pipeline:
    """A network on boards, laid out; they are numbered along the network."""

    net: str
    boards: int
    # multiplications a frame, of all three phases
    macs: int
    # a frame, of the slowest engine
    cycles: int
    # frames of a batch
    batch: int
    # frames that see old weights so that no engine waits
    staleness: int
    # from the last frame of a batch on until its new weights are used everywhere, where frames wait for them
    lap_cycles: float
    # bits of an image
    image_bits: int
    # layers, by which streams cross from rack to rack and back
    layers: int
    # bits of a word, and words a cycle of a port each way; cycles from port to port
    word_bits: int
    rate: float
    hop_cycles: int
    # (from, to, bits a frame, bits a batch) of words, their credits' among them
    streams: tuple[tuple[int, int, float, float], ...]
    gradients: tuple[Gradients, ...]
    program: str
    # of the engines that can be slowest, by the frames of a batch: cycles a frame, and of a rest once a batch
    engines: tuple[tuple[int, int], ...] = ()

    def cycles_with_rests(self, share: int) -> float:
        """A frame of the slowest engine in batches of so many."""
        return max((cycles + rest / share for cycles, rest in self.engines), default=float(self.cycles))

    @property
    def port_bits(self) -> float:
        """A cycle, each way."""
        return self.word_bits * self.rate

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Pipeline:
        """As `asdict` has it."""
        return cls(
            **{
                **record,
                "streams": tuple((int(a), int(b), float(c), float(d)) for a, b, c, d in record["streams"]),
                "gradients": tuple(Gradients(**one) for one in record["gradients"]),
                "engines": tuple((int(cycles), int(rest)) for cycles, rest in record["engines"]),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Racks:
    """How boards stand, what lies between, and what all take."""

    # a rack
    boards: int = 20
    # links of a rack's boards over its uplink
    oversubscription: float = 4.0
    # more, from rack to rack
    apart_us: float = 2.0
    # of a board, and of a rack beside its boards; None: nobody said
    watts_board: float | None = None
    watts_rack: float = 0.0

    def problems(self) -> Iterator[str]:
        """What is wrong."""
        if self.boards < 1:
            yield f"--rack must be at least 1, not {self.boards}"
        for name, value in (("--oversubscription", self.oversubscription), ("--watts-board", self.watts_board)):
            if value is not None and not 0 < value < math.inf:
                yield f"{name} must be positive and finite, not {value:g}"
        for name, value in (("--racks-apart-us", self.apart_us), ("--watts-rack", self.watts_rack)):
            if not 0 <= value < math.inf:
                yield f"{name} must be finite and not negative: {value:g}"


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """So many boards."""

    net: str
    # of a pipeline, and copies of that
    boards: int
    copies: int
    # frames of a batch: of all copies, and of each
    batch: int
    share: int
    # frames/s of all, and beside all multipliers that never idle
    fps: float
    of_bound: float
    binds: str
    # share of the time in which frames wait while gradients go round
    exchanging: float
    # frames of a copy's share of a batch that see old weights, at most all; how many would be wanted
    staleness: int
    wanted: float
    # Gbit/s: of the busiest board's streams, of its gradients; of the busiest rack; of all images
    streams_gbps: float
    gradients_gbps: float
    uplink_gbps: float
    # that an uplink carries each way
    uplink_rate_gbps: float
    images_gbps: float
    racks: int
    # a board
    held_mb: float
    # of an exact sum over all frames of a batch, the widest
    sum_bits: int
    kilowatts: float | None

    @property
    def stale(self) -> float:
        """Share of the batch."""
        return self.staleness / self.share

    @property
    def digits(self) -> float | None:
        """Held-out accuracy of the digits network at that share, or the next larger one that was measured."""
        return accuracy(known().learnt, self.stale)

    @property
    def joules(self) -> float | None:
        """A frame."""
        return None if self.kilowatts is None else self.kilowatts * 1e3 / self.fps

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the tables."""
        power = () if self.kilowatts is None else (f"{self.kilowatts:.1f}", f"{self.joules:.2f}")
        return (
            self.net, str(self.boards * self.copies), f"{self.copies} × {self.boards}", f"{self.batch:,}",
            f"{self.fps:,.0f}", f"{self.of_bound:.1%}", self.binds, f"{self.exchanging:.0%}",
            f"{self.stale:.0%}", "–" if self.digits is None else f"{100 * self.digits:.1f}",
            f"{self.streams_gbps:.0f} + {self.gradients_gbps:.0f}", f"{self.uplink_gbps / self.uplink_rate_gbps:.0%}",
            f"{self.images_gbps:.1f}", f"{self.held_mb:.2f}", str(self.sum_bits), *power,
        )  # fmt: skip


HEADS = (
    "network", "boards", "copies", "batch", "frames/s", "of bound", "binds", "exchange", "stale", "digits %",
    "port Gb/s", "uplink", "images Gb/s", "held MB", "sums",
)  # fmt: skip
POWER = ("kW", "J a frame")


# ---- pipelines


def lay(net: str, boards: int) -> Pipeline:
    """As `simulate_fast.point` does, with its batches; what is simulated are batches too short for its staleness."""
    point = simulate_fast.known().get((net, boards))
    batch = simulate_fast.FRAMES if point is None else point.batch
    cluster = simulate_fast.cluster_of(boards)
    board = Board(PART, cluster.devices[0].board.dsp, simulate_fast.LINK_GBPS * GBIT / CLOCK_HZ)
    training = trained(forward(net, recipe=Recipe(batch=batch)))
    chosen = fastest(training, boards, board, update_frames=simulate_fast.UPDATE_FRAMES)
    found = pipeline_of(net, simulate_fast.laid(net, chosen, cluster, batch=batch), chosen.cycles)
    share = max(1, found.staleness // SHORT)
    short = simulate_fast.laid(net, chosen, cluster, Recipe(batch=share, staleness=share))
    macs = sum(node.layer.macs for node in training.nodes)
    return replace(found, macs=macs, lap_cycles=lap(short, found.cycles))


# part of the staleness that is wanted of which batches are where a lap is timed, and how many of them
SHORT, LAPS = 3, 5


def lap(wired: Wired, cycles: int) -> float:
    """Of batches that wait for the weights of the last one but one: two batches take a lap and their first one's
    frames."""
    run = simulated(wired, LAPS, CLOCK_HZ / HZ_PER_MHZ, Silent(), runs=simulate_fast.RUNS)
    assert wired.graph.recipe.staleness == run.batch
    return run.batches[-1].last_result - run.batches[-3].last_result - (run.batch - 1) * cycles


def pipeline_of(net: str, wired: Wired, cycles: int) -> Pipeline:
    """What stands on boards, at an interval of so many cycles; a lap as the schedule has it."""
    graph, found = wired.graph, defaultdict[tuple[int, int], list[float]](lambda: [0.0, 0.0])
    place = {device: number for number, device in enumerate(along(graph))}
    for edge, _producer, source, _consumer, _sink in graph.crossing:
        hop, per_batch = wired.hops[edge], source.tensor.kind.per_batch
        bits = -(-source.elements // hop.word) * wired.word_bits
        found[place[hop.source], place[hop.target]][per_batch] += bits
        found[place[hop.target], place[hop.source]][per_batch] += bits / hop.credit_batch
    hops = list(wired.hops.values())
    delays = {edge: hop.cycles for edge, hop in wired.hops.items()}
    staleness = needed_staleness(graph, schedule(graph, cycles, delays), delays)
    images = [node for node in graph.nodes if not node.layer.sinks and not node.layer.works_per_batch]
    engines = _slowest(graph)
    return Pipeline(
        net=net,
        boards=len(place),
        macs=0,
        cycles=max(pace for pace, _ in engines),
        batch=graph.recipe.batch,
        staleness=staleness,
        lap_cycles=(staleness + 1) * cycles,
        image_bits=sum(port.tensor.bits for node in images for port in node.layer.sources),
        layers=len({node.whole for node in graph.nodes if node.role is Role.UPDATE}),
        word_bits=wired.word_bits,
        rate=min((min(hop.source_rate, hop.target_rate) for hop in hops), default=1.0),
        hop_cycles=max((hop.cycles for hop in hops), default=0),
        streams=tuple(
            (source, target, round(frame, 1), round(batch, 1))
            for (source, target), (frame, batch) in sorted(found.items())
        ),
        gradients=tuple(_gradients(graph, place)),
        program=program_hash()[:12],
        engines=engines,
    )


def _slowest(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Cycles a frame and of a rest of all that work on frames, each longer than those before in the one and shorter in
    the other."""
    layers = [node.layer for node in graph.nodes if not node.layer.works_per_batch]
    pairs = {(one.cycles_per_frame, one.drain_cycles if isinstance(one, GradientEngine) else 0) for one in layers}
    found: list[tuple[int, int]] = []
    for pace, rest in sorted(pairs, reverse=True):
        if not found or rest > found[-1][1]:
            found.append((pace, rest))
    return tuple(reversed(found))


def along(graph: PlacedGraph) -> list[str]:
    """Boards by the mean place in the network of what their multipliers work for, so that racks hold neighbours."""
    layers: dict[str, int] = {}
    for node in graph.nodes:
        layers.setdefault(node.whole, len(layers))
    weight, total = defaultdict[str, float](float), defaultdict[str, float](float)
    for node in graph.nodes:
        weight[graph.placed[node.name]] += node.layer.multipliers
        total[graph.placed[node.name]] += node.layer.multipliers * layers[node.whole]
    used = [device for device in graph.devices if device in weight]
    return sorted(used, key=lambda device: total[device] / weight[device] if weight[device] else 0.0)


def _gradients(graph: PlacedGraph, place: Mapping[str, int]) -> Iterator[Gradients]:
    for node in graph.nodes:
        if node.role is not Role.UPDATE:
            continue
        producer, source = graph.producers[node.inputs["g"]]
        layer = producer.layer
        if isinstance(layer, Exchange):
            width = layer.rounded.total.width
        elif isinstance(layer, GradientSum):
            width = layer.total.width
        else:
            rounded = layer.roundings[source.name] if isinstance(layer, RoundedApart) else None
            assert isinstance(rounded, GradientSum), producer.name
            width = rounded.s_fixed.width
        board = place[graph.placed[producer.name]]
        yield Gradients(board, source.elements, width, source.tensor.fixed.width)


# ---- copies in racks


@dataclass(frozen=True)
class _Load:
    """Of every board, or rack: bits a frame of a copy, and a batch; out and in."""

    frame: FloatArray
    batch: FloatArray

    def most(self, share: int) -> FloatArray:
        """Bits a frame of each, in its fuller direction."""
        return np.asarray(np.max(self.frame + self.batch / share, axis=0))


def scaled(pipe: Pipeline, copies: int, batch: int, racks: Racks, cycles: float | None = None) -> Scaled:
    """So many copies of a pipeline with batches of so many frames, rounded down to as many for each copy.

    ``cycles``: a frame, if a simulation tells."""
    share = max(1, batch // copies)
    ring = ring_bits(pipe, copies, share)
    streams, exchange, uplinks, between = _loads(pipe, ring, racks.boards)
    uplink = pipe.port_bits * racks.boards / racks.oversubscription
    apart = racks.apart_us * 1e-6 * CLOCK_HZ
    limits = {
        "multipliers": cycles or float(pipe.cycles),
        "port": float(streams.most(share).max()) / pipe.port_bits,
        "uplink": float(uplinks.most(share).max()) / uplink,
    }
    pace, binds = max(limits.values()), max(limits, key=lambda name: limits[name])
    # engines have room for no second sum, so frames wait while a batch's is taken
    taken = max(float(exchange.batch.max()) / pipe.port_bits, float(between.batch.max()) / uplink)
    racks_used = len(uplinks.frame[0])
    # sums go round once, and gradients do
    late = 2 * ((copies - 1) * pipe.hop_cycles + _far_hops(ring, racks.boards) * apart) + taken
    if pipe.boards > racks.boards:
        late += 2 * pipe.layers * apart
    # a batch begins with the weights of the last one but one at the latest
    cycles_of_batch = max(share * pace + taken, loop := ((share - 1) * pace + pipe.lap_cycles + late) / 2)
    interval = cycles_of_batch / share
    wanted = pipe.staleness + late / pace
    per_second = CLOCK_HZ / interval
    fps = copies * per_second
    gbps = per_second / GBIT
    most = np.unravel_index(np.argmax(streams.frame + (streams.batch + exchange.batch) / share), streams.frame.shape)
    exchanged = float(exchange.batch[most]) / share * gbps
    watts = racks.watts_board
    return Scaled(
        net=pipe.net,
        boards=pipe.boards,
        copies=copies,
        batch=share * copies,
        share=share,
        fps=fps,
        of_bound=pipe.macs * fps / (copies * pipe.boards * DSP * CLOCK_HZ),
        binds="loop" if loop == cycles_of_batch else binds,
        exchanging=taken / cycles_of_batch,
        staleness=min(share, math.ceil(wanted)),
        wanted=wanted,
        streams_gbps=float(streams.frame[most] + streams.batch[most] / share) * gbps,
        gradients_gbps=exchanged,
        uplink_gbps=float(np.max(uplinks.most(share) + between.most(share))) * gbps,
        uplink_rate_gbps=uplink * CLOCK_HZ / GBIT,
        images_gbps=pipe.image_bits * fps / GBIT,
        racks=racks_used,
        held_mb=min(pipe.port_bits * 2 * (apart + pipe.hop_cycles), float(exchange.batch.max())) / 8e6,
        sum_bits=max(_widened(one, pipe, copies, share) for one in pipe.gradients),
        kilowatts=None if watts is None else (copies * pipe.boards * watts + racks_used * racks.watts_rack) / 1e3,
    )


def _widened(one: Gradients, pipe: Pipeline, copies: int, share: int) -> int:
    """Bits of a sum over all frames of such a batch."""
    return one.sum_bits + max(0, math.ceil(math.log2(share * copies / pipe.batch)))


def ring_bits(pipe: Pipeline, copies: int, share: int) -> FloatArray:
    """[copy, board]: that the board sends to its fellow of the next copy for a batch.

    An exact sum begins with the copy that `Exchanging.firsts` says and goes once round all others, as does the gradient
    from the last of them on."""
    bits = np.zeros((copies, pipe.boards))
    if copies == 1:
        return bits
    sizes = {str(number): (one.elements, copies) for number, one in enumerate(pipe.gradients)}
    firsts = Exchanging(Collective.RING).firsts(sizes)
    for number, one in enumerate(pipe.gradients):
        first = firsts[str(number)]
        for width, ends in ((_widened(one, pipe, copies, share), first - 1), (one.bits, first - 2)):
            sent = -(-one.elements // (pipe.word_bits // width)) * pipe.word_bits
            bits[:, one.board] += sent
            bits[ends % copies, one.board] -= sent
    return bits


def _far_hops(ring: FloatArray, rack: int) -> int:
    """Of the ring, those that go from rack to rack on some board."""
    copies, size = ring.shape
    first = np.arange(copies)[:, None] * size + np.arange(size)
    after = (first + size) % (copies * size)
    return int(np.any((ring > 0) & (first // rack != after // rack), axis=1).sum())


# words of gradients for each word of credits
CREDITED = credit_batch(simulate_fast.LINK_WORDS)


def _loads(pipe: Pipeline, ring: FloatArray, rack: int) -> tuple[_Load, _Load, _Load, _Load]:
    """Of every board its streams, and what it exchanges; of every rack what of both goes to others."""
    copies, size = ring.shape
    boards = copies * size
    racks = -(-boards // rack)
    streams, exchange, uplinks, between = (
        _Load(np.zeros((2, count)), np.zeros((2, count))) for count in (boards, boards, racks, racks)
    )

    def add(loads: tuple[_Load, _Load], source: int, target: int, per_frame: float, per_batch: float) -> None:
        for load, out, into in zip(loads, (source, source // rack), (target, target // rack), strict=True):
            if out != into:
                load.frame[0, out] += per_frame
                load.frame[1, into] += per_frame
                load.batch[0, out] += per_batch
                load.batch[1, into] += per_batch

    for copy in range(copies):
        first, after = copy * size, (copy + 1) % copies * size
        for source, target, per_frame, per_batch in pipe.streams:
            add((streams, uplinks), first + source, first + target, per_frame, per_batch)
        for board, bits in enumerate(ring[copy]):
            if bits:
                add((exchange, between), first + board, after + board, 0.0, bits)
                add((exchange, between), after + board, first + board, 0.0, bits / CREDITED)
    return streams, exchange, uplinks, between


# ---- what is known


@dataclass(frozen=True)
class Learnt:
    """Held-out accuracy of the digits network at 16 bits where a share of each batch sees weights one update old."""

    # frames
    staleness: int
    batch: int
    epochs: int
    # after the last epoch, by seed from 1 on
    accuracies: tuple[float, ...]

    @property
    def share(self) -> float:
        """Of a batch."""
        return self.staleness / self.batch

    @property
    def mean(self) -> float:
        """Of all seeds."""
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        every = " ".join(f"{100 * one:.2f}" for one in self.accuracies)
        return f"{self.share:.0%}", str(self.staleness), every, f"{100 * self.mean:.2f}"


@dataclass(frozen=True)
class Known:
    """The file of results."""

    pipelines: tuple[Pipeline, ...]
    learnt: tuple[Learnt, ...]


@cache
def known(path: Path = OUT) -> Known:
    """What was laid out, and learnt."""
    record = json.loads(path.read_text()) if path.exists() else {"pipelines": [], "learnt": []}
    return Known(
        tuple(map(Pipeline.of, record["pipelines"])),
        tuple(Learnt(**{**one, "accuracies": tuple(one["accuracies"])}) for one in record["learnt"]),
    )


def _keep(found: Known, path: Path) -> None:
    """Streams of a pipeline on a line, since there are many."""
    write_text(path, json.dumps(asdict(found), separators=(",", ":")).replace("},{", "},\n{") + "\n")
    known.cache_clear()


def cycles_of(pipe: Pipeline, share: int) -> float | None:
    """A frame in batches of ``share``, by rests of engines once a batch, as much longer as was simulated."""
    point = simulate_fast.known().get((pipe.net, pipe.boards))
    if point is None:
        return None
    return point.simulated_cycles / pipe.cycles_with_rests(point.batch) * pipe.cycles_with_rests(share)


def rows(nets: Sequence[str], sizes: Sequence[int], batch: int, racks: Racks) -> list[Scaled]:
    """For each number of boards, copies of every pipeline of these networks that is no larger."""
    return [
        scaled(pipe, copies, batch, racks, cycles_of(pipe, batch // copies))
        for pipe in known().pipelines
        for size in sizes
        if pipe.net in nets and size >= pipe.boards and (copies := size // pipe.boards) <= batch
    ]


# shares of a batch that see old weights, in sixteenths, by which the digits network is trained; seeds, epochs
STALE_SIXTEENTHS, SEEDS, EPOCHS = (0, 8, 16), 3, 5


def learn(sixteenths: int) -> Learnt:
    """The digits network by its own recipe, with another staleness."""
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    staleness = recipe.batch * sixteenths // 16
    runs = [
        Run(seed, Mode.GOLDEN, replace(recipe, seed=seed, staleness=staleness), EPOCHS, CALIBRATED_BATCHES)
        for seed in range(1, SEEDS + 1)
    ]
    return Learnt(staleness, recipe.batch, EPOCHS, tuple(train(run)[-1] for run in runs))


def accuracy(learnt: Sequence[Learnt], share: float) -> float | None:
    """Of the least share measured that is no smaller."""
    return next((one.mean for one in sorted(learnt, key=lambda one: one.share) if one.share >= share - 1e-9), None)


# ---- beside the simulator


@dataclass(frozen=True)
class Check:
    """A number by formula and as it was simulated."""

    what: str
    formula: float
    simulated: float

    @property
    def quotient(self) -> float:
        """Of the formula's."""
        return self.formula / self.simulated

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        return self.what, f"{self.formula:,.4g}", f"{self.simulated:,.4g}", f"{self.quotient:.4f}"


def checks() -> list[Check]:
    """Pipelines that are kept beside `simulate_fast`'s points: pace, ports, staleness."""
    found = []
    for pipe in known().pipelines:
        point = simulate_fast.known().get((pipe.net, pipe.boards))
        if point is None:
            continue
        # words are counted at the pace that was simulated
        told = scaled(pipe, 1, point.batch, Racks(), pipe.cycles_with_rests(point.batch))
        one = scaled(pipe, 1, point.batch, Racks(), point.simulated_cycles)
        streams, _, _, _ = _loads(pipe, np.zeros((1, pipe.boards)), pipe.boards)
        both = float(np.max(streams.frame.sum(axis=0) + streams.batch.sum(axis=0) / point.batch)) * one.fps / GBIT
        title = f"{pipe.net}, {pipe.boards} boards"
        found += [
            Check(f"{title}: cycles a frame", CLOCK_HZ / told.fps, point.simulated_cycles),
            Check(f"{title}: Gb/s of the busiest port", one.streams_gbps, point.port_gbps),
            Check(f"{title}: both ways", both, point.port_both_gbps),
        ]
    return found


def small(recipe: Recipe) -> Graph:
    """Four convolutions and a dense layer, whose gradients are as large as its maps."""
    build = Bare("small", recipe)
    x = build.max_pool(build.relu(build.conv(build.input(12, 12, 2), 8, 3, padding=1)), 2, 2)
    x = build.relu(build.conv(build.relu(build.conv(x, 16, 3, padding=1)), 16, 3, padding=1))
    return build.classify(build.gemm(build.relu(build.conv(x, 16, 3, padding=1)), 10, bias=False))


# cycles a frame of the small network, boards of a copy
SMALL_CYCLES, SMALL_BOARDS = 3_000, 2
# batches that are simulated; frames of a copy's share where engines decide, and where a batch is too short; Gbit/s of
# links that are no matter, of such on which frames wait for gradients, and of such that are full with both
SMALL_BATCHES, LONG_SHARE, SHORT_SHARE, FAST_GBPS, SLOW_GBPS, FULL_GBPS = 7, 16, 3, 150.0, 4.0, 2.0
ENGINES, LAPS_DECIDE, LINKS, FULL = (
    (LONG_SHARE, FAST_GBPS), (SHORT_SHARE, FAST_GBPS), (LONG_SHARE, SLOW_GBPS), (LONG_SHARE, FULL_GBPS)
)  # fmt: skip


def small_wired(copies: int, share: int, link_gbps: float) -> Wired:
    """Copies of the small network on two boards each, a ring between them, staleness as long as a batch."""
    batch = copies * share
    training = differentiate(small(Recipe(batch=batch, staleness=batch)))
    several = replicate(training, {"*": copies} if copies > 1 else {}, Exchanging(Collective.RING))
    folded = fold_graph(insert_forks(several), SMALL_CYCLES // copies, (PART,))
    cluster = simulate_fast.cluster_of(copies * SMALL_BOARDS, link_gbps)
    devices = [device.name for device in cluster.devices]
    layers = list(dict.fromkeys(node.whole for node in folded.nodes))
    where = {}
    for node in folded.nodes:
        _, _, copy = node.layer_of.partition(COPY)
        half = SMALL_BOARDS * layers.index(node.whole) // len(layers)
        where[node.name] = devices[0 if node.layer.pinned_to_host else int(copy or 0) * SMALL_BOARDS + half]
    dram = cluster_dram(cluster, SMALL_CYCLES)
    return wired_graph(folded, where, cluster, SMALL_CYCLES // copies, dram, link_words=simulate_fast.LINK_WORDS)


def copied(
    numbers: Sequence[int] = (2, 4), cases: Sequence[tuple[int, float]] = (ENGINES, LAPS_DECIDE, LINKS, FULL)
) -> Iterator[Check]:
    """So many copies of the small network beside their simulation, with so many frames each, over links of so many
    Gbit/s."""
    lap_cycles = lap(small_wired(1, SHORT_SHARE - 1, FAST_GBPS), SMALL_CYCLES)
    for share, gbps in cases:
        pipe = pipeline_of("small", small_wired(1, share, gbps), SMALL_CYCLES)
        pipe = replace(pipe, cycles=SMALL_CYCLES, lap_cycles=lap_cycles)
        for copies in numbers:
            run = simulated(small_wired(copies, share, gbps), SMALL_BATCHES, CLOCK_HZ / HZ_PER_MHZ, Silent())
            one = scaled(pipe, copies, copies * share, Racks(boards=copies * SMALL_BOARDS))
            ends = [batch.last_result for batch in run.batches]
            title = f"{copies} copies, {share} frames each, {gbps:g} Gb/s: cycles a batch"
            yield Check(title, share * copies / one.fps * CLOCK_HZ, (ends[-1] - ends[-5]) / 4)


# ---- what is printed


def sections(nets: Sequence[str], sizes: Sequence[int], batch: int, racks: Racks) -> Iterator[Section]:
    """(name, heads, rows) of all tables; those beside the first at the largest size."""
    heads = (*HEADS, *(() if racks.watts_board is None else POWER))
    yield "boards", heads, [one.cells for one in rows(nets, sizes, batch, racks)]
    largest = max(sizes)
    several = [replace(racks, oversubscription=each) for each in OVERSUBSCRIPTIONS]
    found = [(f"{each.oversubscription:g}", *one.cells) for each in several for one in best(nets, largest, batch, each)]
    yield "oversubscription", ("oversubscription", *heads), found
    found = [one.cells for each in BATCHES for one in best(nets, largest, each, racks)]
    yield "batches", heads, found
    apart = [replace(racks, boards=100, oversubscription=150, apart_us=each) for each in FAR_US]
    found = [(f"{each.apart_us / 1e3:g}", *one.cells) for each in apart for one in best(nets, largest, FAR_BATCH, each)]
    yield "places", ("ms apart", *heads), found
    yield "stale", ("stale", "frames of 16", "accuracy of each seed", "mean"), [one.cells for one in known().learnt]
    yield "checks", ("pipelines", "formula", "simulated", "quotient"), [one.cells for one in checks()]


def best(nets: Sequence[str], size: int, batch: int, racks: Racks) -> list[Scaled]:
    """Of each network, the copies that are fastest on so many boards."""
    found = rows(nets, [size], batch, racks)
    return [max((one for one in found if one.net == net), key=lambda one: one.fps) for net in nets if found]


def plot(nets: Sequence[str], batch: int, racks: Racks) -> str:
    """Frames/s over boards, of pipelines of each size."""
    series: dict[str, list[tuple[float, float]]] = {}
    for pipe in known().pipelines:
        if pipe.net in nets:
            counts = sorted({max(1, round(pipe.boards * 10 ** (step / 8) / pipe.boards)) for step in range(33)})
            series[f"{pipe.net}, pipelines of {pipe.boards}"] = [
                (one.boards * one.copies, one.fps)
                for count in counts
                if count <= batch and count * pipe.boards <= max(SIZES)
                for one in [scaled(pipe, count, batch, racks, cycles_of(pipe, batch // count))]
            ]
            first = pipe
    bound = [(size, size * DSP * CLOCK_HZ / first.macs) for size in (SIZES[0] / 20, SIZES[-1])]
    series["all multipliers"] = bound
    title = f"Batches of {batch:,} frames, racks of {racks.boards}, uplinks {racks.oversubscription:g} times too narrow"
    return line_chart(title, "boards", "frames/s", series, logarithmic=True, unmarked=("all multipliers",))


def marks(name: str) -> tuple[str, str]:
    """Of a table in the page."""
    return f"<!-- begin: benchmarks/scaling.py {name} -->", f"<!-- end: benchmarks/scaling.py {name} -->"


def main() -> int:
    """Lays out and trains what is asked for, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=["VGG-16"])
    parser.add_argument("--boards", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--batch", type=int, default=1024, help="frames of all copies (1024, as the paper)")
    parser.add_argument("--rack", type=int, default=Racks.boards, help=f"boards a rack ({Racks.boards})")
    parser.add_argument("--oversubscription", type=float, default=Racks.oversubscription, help="of uplinks (4)")
    parser.add_argument("--racks-apart-us", type=float, default=Racks.apart_us, help="more from rack to rack (2)")
    parser.add_argument("--watts-board", type=float, help="if given, power is told")
    parser.add_argument("--watts-rack", type=float, default=0.0, help="of a rack beside its boards (0)")
    parser.add_argument("--lay", nargs="*", metavar="NET:BOARDS", help="lay out these, or what is not kept")
    parser.add_argument("--learn", action="store_true", help="train the digits network at all shares of staleness")
    parser.add_argument("--check", action="store_true", help="simulate copies of a small network, too")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--write", action="store_true", help=f"the tables into docs/{DOCS.name}, and docs/{PLOT}")
    parser.add_argument("--out", type=Path, default=OUT, help="file of results (%(default)s)")
    options = parser.parse_args()
    racks = Racks(
        boards=options.rack, oversubscription=options.oversubscription, apart_us=options.racks_apart_us,
        watts_board=options.watts_board, watts_rack=options.watts_rack,
    )  # fmt: skip
    problems = [*racks.problems(), *(f"--boards must be at least 1, not {one}" for one in options.boards if one < 1)]
    if options.batch < 1:
        problems.append(f"--batch must be at least 1, not {options.batch}")
    if problems:
        raise SystemExit("\n".join(problems))
    if options.lay is not None:
        _lay_out(options.lay, options.out)
    if options.learn:
        for sixteenths in STALE_SIXTEENTHS:
            one, found = learn(sixteenths), known(options.out)
            others = [each for each in found.learnt if each.staleness != one.staleness]
            learnt = sorted([*others, one], key=lambda each: each.staleness)
            _keep(replace(found, learnt=tuple(learnt)), options.out)
    every = list(sections(options.nets, options.boards, options.batch, racks))
    if options.check:
        every.append(("copies", ("copies", "formula", "simulated", "quotient"), [one.cells for one in copied()]))
    if options.json:
        table = rows(options.nets, options.boards, options.batch, racks)
        print(
            json.dumps(
                [{**asdict(one), "stale": one.stale, "digits": one.digits, "joules": one.joules} for one in table],
                indent=1,
            )
        )
    else:
        for name, heads, cells in every:
            print(f"{name}:\n")
            print_table(heads, cells)
            print()
    if options.write:
        page = DOCS.read_text()
        for name, heads, cells in every:
            page = with_table(page, DOCS, marks(name), heads, cells)
        write_text(DOCS, page)
        write_text(FOLDER / PLOT, plot(options.nets, options.batch, racks))
    return 0


def _lay_out(words: Sequence[str], path: Path) -> None:
    """Keeps each as soon as it is there."""
    have = {(pipe.net, pipe.boards) for pipe in known(path).pipelines}
    wanted = [(net, int(boards)) for net, _, boards in (word.rpartition(":") for word in words)]
    for net, boards in wanted or [each for each in LAID if each not in have]:
        pipe, found = lay(net, boards), known(path)
        others = [each for each in found.pipelines if (each.net, each.boards) != (net, boards)]
        kept = sorted([*others, pipe], key=lambda each: (each.net, each.boards))
        _keep(replace(found, pipelines=tuple(kept)), path)


if __name__ == "__main__":
    raise SystemExit(main())
