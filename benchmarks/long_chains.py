"""What a long chain of boards gives: FPDeep's networks on boards that cables join in a row, beside a switch.

    python -m benchmarks.long_chains                       # the table of what is kept
    python -m benchmarks.long_chains --boards 5 --anew     # simulated anew first: minutes
    python -m benchmarks.long_chains --write               # … into docs/fpdeep.md
    python -m benchmarks.long_chains --boards 40 --planned # what both are planned for, without simulation

Boards, folding and simulation are those of `benchmarks.simulate_fast`: multipliers and links decide, memory is not
counted.  Each cable has 150 Gbit/s each direction, as a port at the switch has.  Three ways to stand:

    packed, switch   the largest engines first, each into the fullest board that has room, as in `simulate_fast`
    in row, switch   engines in the order of the network, each on the board of the one before it or on the next one
    in row, chain    the same over the cables of a chain

So the second beside the first is what the order costs, and the third beside the second what the cables do.

    of bound    pace beside that of all usable multipliers of all boards that never idle
    stale       frames for which old weights are used where nothing waits for new ones
    fill        cycles from a batch's first beat to its first result
    fullest     Gbit/s of the port or the cable that carries most, in its fuller direction, from batch to batch
    cables      that a bit goes over in the mean, of those that leave their board, and the farthest one

A way is a process.  Results are kept in `long_chains.json`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.beside_paper import print_table
from benchmarks.beside_paper import with_table as filled
from benchmarks.by_multipliers import Board, Packing, fastest, in_parts, in_row, packed, placed, trained
from benchmarks.fpdeep import CLOCK_HZ, DSP, NETS, PART, forward
from benchmarks.simulate_fast import BATCHES, CHAIN, GIB, LINK_GBPS, RUNS, SWITCH, cluster_of, laid, ports
from dagtrain.files import write_text
from dagtrain.flow.workspace import program_hash
from dagtrain.progress import Silent
from dagtrain.schedule.wired import Wired
from dagtrain.simulate.fast import simulate_fast
from dagtrain.simulate.result import HZ_PER_MHZ, Simulation
from placement.problem.routes import Routing

OUT = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parent.parent / "docs" / "fpdeep.md"
MARKS = "<!-- begin: benchmarks/long_chains.py -->", "<!-- end: benchmarks/long_chains.py -->"
# how engines stand, and what joins boards
WAYS: dict[str, tuple[Packing, str]] = {
    "packed, switch": (packed, SWITCH),
    "in row, switch": (in_row, SWITCH),
    "in row, chain": (in_row, CHAIN),
}


@dataclass(frozen=True)
class Point:
    """A network on so many boards, in one of the `WAYS`; cycles of 200 MHz."""

    net: str
    boards: int
    way: str
    # a frame
    bound_cycles: float
    planned_cycles: int
    simulated_cycles: float
    # frames
    staleness: int
    batch: int
    # of the last batch
    fill_cycles: int
    # multipliers without work from batch to batch, mean of boards
    idle_mean: float
    # Gbit/s, and where
    fullest_gbps: float
    fullest: str
    # that a bit goes over; 1 over a switch
    cables_mean: float
    cables_most: int
    # most at work
    binds: str
    runs: int
    # processor seconds, of memory
    simulate_s: float
    gib: float
    program: str

    @property
    def key(self) -> tuple[str, int, int]:
        """By which points are ordered and known."""
        return self.net, self.boards, list(WAYS).index(self.way)

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        return (
            self.net, str(self.boards), self.way, f"{self.planned_cycles:,}", f"{self.simulated_cycles:,.0f}",
            f"{CLOCK_HZ / self.simulated_cycles:,.1f}", f"{self.bound_cycles / self.simulated_cycles:.1%}",
            f"{self.idle_mean:.1%}", str(self.staleness), f"{self.fill_cycles:,}",
            f"{self.fullest_gbps:.0f} at {self.fullest}", f"{self.cables_mean:.2f}, {self.cables_most}",
        )  # fmt: skip


HEADS = (
    "network", "boards", "way", "planned", "simulated", "frames/s", "of bound", "idle", "stale", "fill", "fullest",
    "cables",
)  # fmt: skip


def walked(wired: Wired, routing: Routing) -> tuple[float, int]:
    """Cables that a bit goes over, in the mean of all that leave their board, and the most."""
    at = {name: index for index, name in enumerate(routing.devices)}
    placed, batch = wired.graph.placed, wired.graph.recipe.batch
    total = passed = 0.0
    most = 0
    for _edge, producer, source, consumer, _sink in wired.graph.crossing:
        cables = routing.distance[at[placed[producer.name]]][at[placed[consumer.name]]]
        bits = source.tensor.bits / (batch if source.tensor.kind.per_batch else 1)
        total, passed, most = total + bits, passed + bits * cables, max(most, cables)
    return (passed / total, most) if total else (0.0, 0)


def planned(net: str, boards: int) -> str:
    """What a chain gives at the pace of its slowest engine, what its fullest cable carries then, and a switch."""
    cluster = cluster_of(boards, topology=CHAIN)
    routing = cluster.routing
    if routing is None:
        return f"{net} on {boards} boards: no cables"
    training = trained(forward(net))
    board = Board(PART, cluster.devices[0].board.dsp, LINK_GBPS * 1e9 / CLOCK_HZ)
    switch, chosen = fastest(training, boards, board), fastest(training, boards, board, in_row)
    folded = in_parts(forward(net), chosen)
    where = placed(folded, chosen, routing.devices)
    at = {name: index for index, name in enumerate(routing.devices)}
    loads = [0.0] * len(routing.wires)
    for _edge, producer, source, consumer, _sink in folded.streams:
        bits = source.tensor.bits / (folded.recipe.batch if source.tensor.kind.per_batch else 1)
        for wire in routing.way(at[where[producer.name]], at[where[consumer.name]]):
            loads[wire] += bits
    most = max(range(len(loads)), key=loads.__getitem__)
    bound = sum(node.layer.macs for node in training.nodes) / (boards * DSP)
    gbps = loads[most] / chosen.cycles * CLOCK_HZ / 1e9

    def pace(cycles: int) -> str:
        return f"{cycles:,} cycles a frame, {CLOCK_HZ / cycles:,.1f} frames/s, {bound / cycles:.1%} of bound"

    return (
        f"{net} on {boards} boards in a chain, planned: {pace(chosen.cycles)}; fullest cable {routing.names[most]}: "
        f"{gbps:.1f} of {LINK_GBPS} Gbit/s\nover a switch, packed: {pace(switch.cycles)}"
    )


def fullest(simulation: Simulation, topology: str) -> tuple[float, str]:
    """Gbit/s from batch to batch of the port, or of the cable, that carries most, and where."""
    cycles = (simulation.batch_interval or 0.0) * len(simulation.batches)
    if topology == SWITCH:
        return ports(simulation)[0], "a port"
    most = max(simulation.cables, key=lambda cable: cable.bits)
    return most.bits / cycles * CLOCK_HZ / 1e9, f"{most.source} -> {most.target}"


def point(net: str, boards: int, way: str, runs: int = RUNS) -> Point:
    """Folds, places and simulates.  Raises `DagtrainError` where nothing finds room."""
    packing, topology = WAYS[way]
    cluster = cluster_of(boards, topology=topology)
    board = Board(PART, cluster.devices[0].board.dsp, LINK_GBPS * 1e9 / CLOCK_HZ)
    training = trained(forward(net))
    chosen = fastest(training, boards, board, packing)
    wired = laid(net, chosen, cluster)
    begun = time.process_time()
    simulation = simulate_fast(wired, BATCHES, CLOCK_HZ / HZ_PER_MHZ, Silent(), runs=runs)
    done = time.process_time()
    idle = [one.in_training for one in simulation.idle_by_device if one.in_training is not None]
    gbps, where = fullest(simulation, topology)
    mean, most = walked(wired, cluster.routing) if cluster.routing is not None else (1.0, 1)
    last = simulation.batches[-1]
    return Point(
        net=net,
        boards=boards,
        way=way,
        bound_cycles=sum(node.layer.macs for node in training.nodes) / (boards * DSP),
        planned_cycles=chosen.cycles,
        simulated_cycles=(simulation.batch_interval or 0.0) / simulation.batch,
        staleness=wired.graph.recipe.staleness,
        batch=simulation.batch,
        fill_cycles=last.first_result - last.first_cycle,
        idle_mean=sum(idle) / len(idle),
        fullest_gbps=gbps,
        fullest=where,
        cables_mean=mean,
        cables_most=most,
        binds=simulation.binds.name,
        runs=runs,
        simulate_s=done - begun,
        gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        program=program_hash()[:12],
    )


def known(path: Path = OUT) -> list[Point]:
    """What is kept."""
    found = [Point(**row) for row in json.loads(path.read_text())] if path.exists() else []
    return sorted(found, key=lambda one: one.key)


def _point(words: tuple[str, int, str]) -> Point:
    return point(*words)


def main() -> None:
    """Simulates what is asked for anew, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=list(NETS), default="VGG-16")
    parser.add_argument("--boards", nargs="+", type=int, default=[40])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--anew", action="store_true", help="simulate these")
    parser.add_argument("--planned", action="store_true", help="print what these are planned for alone")
    parser.add_argument("--write", action="store_true", help="the table into docs/fpdeep.md")
    options = parser.parse_args()
    if options.planned:
        print("\n".join(planned(options.net, boards) for boards in options.boards))
        return
    wanted = [(options.net, boards, way) for boards in options.boards for way in options.ways]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for one in pool.imap(_point, wanted if options.anew else []):
            found = {each.key: each for each in known()} | {one.key: one}
            write_text(OUT, json.dumps([asdict(found[key]) for key in sorted(found)], indent=1) + "\n")
    print_table(HEADS, table(known()))
    if options.write:
        write_text(DOCS, with_table(DOCS.read_text(), known()))


def table(points: Iterable[Point]) -> list[Sequence[str]]:
    """Rows of the table."""
    return [one.cells for one in points]


def with_table(page: str, points: Iterable[Point]) -> str:
    """The page with the table between its marks."""
    return filled(page, DOCS, MARKS, HEADS, table(points))


if __name__ == "__main__":
    main()
