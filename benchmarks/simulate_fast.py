"""What N boards give: FPDeep's networks on 5 to 100 boards, simulated by `dagtrain simulate`'s fast level.

    python -m benchmarks.simulate_fast                                   # what is not known yet, then the table
    python -m benchmarks.simulate_fast --nets VGG-16 --boards 100 --anew # one point, in a minute
    python -m benchmarks.simulate_fast --table --json                    # what is known, for programs
    python -m benchmarks.simulate_fast --table --write                   # … as the table of docs/fpdeep.md

Boards are FPDeep's: XC7VX690T at 200 MHz, 80 % of whose 3 600 DSPs may be used, links of 150 Gbit/s each direction.
Networks stand on them by `benchmarks.by_multipliers`: engines, parts of layers, FIFOs and links are those of circuits,
but no memory is counted.  So what is told is what multipliers and links allow.

    planned     cycles a frame of the slowest engine
    simulated   cycles a frame from batch to batch, of the slowest node: rests of gradient engines while their sums
                leave are in it, so it is less with longer batches
    of bound    pace beside that of all multipliers of all boards (80 %) that never idle
    idle        1 - busy multiplier cycles / (multipliers * cycles) from batch to batch (FPDeep, TC 6.3.3); mean, worst
    empty       share of the slots of multipliers built, from batch to batch, without a multiplication: idle cycles, and
                places of tiles and rows of unequal parts that nothing fills
    DSP         multipliers built, of those that may be used
    port        Gbit/s of the board that sends or receives most, in its fuller direction and in both

Each point is a process.  Results are kept in --out, a file that is committed, by network and boards, with the digest of
the program that they are of; a run goes on where another stopped.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import multiprocessing
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.beside_paper import print_table
from benchmarks.beside_paper import with_table as filled
from benchmarks.by_multipliers import Board, ByMultipliers, fastest, in_parts, placed, trained
from benchmarks.fpdeep import CAP, CLOCK_HZ, DSP, NETS, PART, SIMULATED, forward
from dagtrain.emission.links import allowed_cycles, crossings_of
from dagtrain.files import write_text
from dagtrain.flow.workspace import program_hash
from dagtrain.planning.choices import cluster_dram
from dagtrain.planning.rate import wired_graph
from dagtrain.progress import Silent
from dagtrain.schedule.schedule import needed_staleness, schedule
from dagtrain.schedule.wired import Wired
from dagtrain.simulate.fast import simulate_fast
from dagtrain.simulate.result import HZ_PER_MHZ, Simulation
from hdl.errors import DagtrainError
from hdl.recipe import Recipe
from placement.problem.cluster import Cluster, parse_cluster

OUT = SIMULATED
DOCS = Path(__file__).parent.parent / "docs" / "fpdeep.md"
BEGIN, END = "<!-- begin: benchmarks/simulate_fast.py -->", "<!-- end: benchmarks/simulate_fast.py -->"
BOARDS = (5, 10, 15, 30, 60, 100)
# runs of beats in which a tensor passes; more take longer and follow a stream more closely (`--runs`).  32 are not held
# against more; 64 were, on VGG-16 with 5 boards: their interval is that of 512 to 1e-5
RUNS = 32
# words of receivers: a block memory that is as wide as a word holds no fewer
LINK_WORDS = 512
LINK_GBPS = 150
SWITCH, CHAIN = "switch", "chain"
# part of a frame's time in which sums and new weights of a batch pass, where lanes allow it
UPDATE_FRAMES = 0.25
# batches that are simulated, the last of which count, of as many times so many frames as staleness needs
BATCHES, FRAMES = 4, 16
# of a batch, of the rows that are kept
BATCH = 128
GIB = 1 << 30


@dataclass(frozen=True)
class Point:
    """A network on so many boards; cycles of 200 MHz."""

    net: str
    boards: int
    # a frame
    bound_cycles: float
    planned_cycles: int
    simulated_cycles: float
    fps: float
    # shares
    idle_mean: float
    idle_worst: float
    empty: float
    dsp_share: float
    # Gbit/s
    port_gbps: float
    port_both_gbps: float
    # frames
    batch: int
    staleness: int
    frames: int
    # of beats in which a tensor passed, at least
    runs: int
    engines: int
    # most at work
    binds: str
    # processor seconds: to fold and place, to simulate; of memory
    plan_s: float
    simulate_s: float
    gib: float
    program: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        return (
            self.net, str(self.boards), f"{self.planned_cycles:,}", f"{self.simulated_cycles:,.0f}", f"{self.fps:,.0f}",
            f"{self.bound_cycles / self.simulated_cycles:.1%}", f"{self.idle_mean:.1%}", f"{self.idle_worst:.1%}",
            f"{self.empty:.1%}", f"{self.dsp_share:.1%}", f"{self.port_gbps:.0f}", f"{self.port_both_gbps:.0f}",
            str(self.batch), str(self.staleness), f"{self.simulate_s:.0f}", f"{self.gib:.2f}",
        )  # fmt: skip


HEADS = (
    "network", "boards", "planned", "simulated", "frames/s", "of bound", "idle", "worst", "empty", "DSP", "port",
    "both", "batch", "stale", "CPU s", "GiB",
)  # fmt: skip


def cluster_of(boards: int, link_gbps: float = LINK_GBPS, topology: str = SWITCH) -> Cluster:
    """FPDeep's, with so many boards and such links."""
    return parse_cluster(f"""
[cluster]
name = "fpdeep-{boards}"
clock_mhz = {CLOCK_HZ / HZ_PER_MHZ:g}
[network]
topology = "{topology}"
[[board]]
name = "virtex"
part = "{PART.name}"
dram_gb_per_s = 25.6
dram_gbyte = 8
dram_efficiency = 0.7
link_gbit_per_s = {link_gbps:g}
ports = {1 if topology == SWITCH else 2}
utilisation = {{ dsp = {CAP}, m20k = 1.0, alm = 1.0 }}
[[device]]
name = "fpga"
board = "virtex"
count = {boards}
""")


def laid(net: str, chosen: ByMultipliers, cluster: Cluster, recipe: Recipe | None = None, batch: int = FRAMES) -> Wired:
    """The network on the cluster; unless a recipe is given, its batches are as long as the staleness that it needs, and
    ``batch`` at least."""
    staleness, frames = 0, batch
    while True:
        folded = in_parts(forward(net, recipe=recipe or Recipe(batch=frames, staleness=staleness)), chosen)
        where = placed(folded, chosen, [device.name for device in cluster.devices])
        dram = cluster_dram(cluster, chosen.cycles)
        wired = wired_graph(folded, where, cluster, chosen.cycles, dram, link_words=LINK_WORDS)
        crossings = crossings_of(wired.graph, [device.name for device in cluster.devices])
        delays = allowed_cycles(crossings, cluster.network_cycles, cluster.routing)
        needed = needed_staleness(wired.graph, schedule(wired.graph, chosen.cycles, delays), delays)
        if recipe is not None or needed <= staleness:
            return wired
        staleness, frames = needed, max(batch, -(-needed // FRAMES) * FRAMES)


def point(net: str, boards: int, runs: int = RUNS, batch: int = FRAMES) -> Point:
    """Folds, places and simulates.  Raises `DagtrainError` where nothing finds room."""
    begun = time.process_time()
    cluster = cluster_of(boards)
    board = Board(PART, cluster.devices[0].board.dsp, LINK_GBPS * 1e9 / CLOCK_HZ)
    training = trained(forward(net, recipe=Recipe(batch=batch)))
    macs = sum(node.layer.macs for node in training.nodes)
    chosen = fastest(training, boards, board, update_frames=UPDATE_FRAMES)
    wired = laid(net, chosen, cluster, batch=batch)
    planned = time.process_time()
    simulation = simulate_fast(wired, BATCHES, CLOCK_HZ / HZ_PER_MHZ, Silent(), runs=runs)
    done = time.process_time()
    interval = (simulation.batch_interval or 0.0) / simulation.batch
    idle = [one.in_training for one in simulation.idle_by_device if one.in_training is not None]
    built = sum(node.multipliers for node in simulation.nodes)
    sent, both = ports(simulation)
    return Point(
        net=net,
        boards=boards,
        bound_cycles=macs / (boards * DSP),
        planned_cycles=chosen.cycles,
        simulated_cycles=interval,
        fps=CLOCK_HZ / interval,
        idle_mean=sum(idle) / len(idle),
        idle_worst=max(idle),
        empty=1 - macs / (built * interval),
        dsp_share=built / (boards * DSP),
        port_gbps=sent,
        port_both_gbps=both,
        batch=simulation.batch,
        staleness=wired.graph.recipe.staleness,
        frames=len(simulation.frame_cycles),
        runs=runs,
        engines=sum(one.way.engines for one in chosen.chosen.values()),
        binds=simulation.binds.name,
        plan_s=planned - begun,
        simulate_s=done - planned,
        gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        program=program_hash()[:12],
    )


def ports(simulation: Simulation) -> tuple[float, float]:
    """Gbit/s from batch to batch of the busiest port: in its fuller direction, and in both."""
    cycles = (simulation.batch_interval or 0.0) * len(simulation.batches)
    sent: dict[str, float] = defaultdict(float)
    received: dict[str, float] = defaultdict(float)
    for cable in simulation.cables:
        rate = cable.bits / cycles * CLOCK_HZ / 1e9
        sent[cable.source] += rate
        received[cable.target] += rate
    devices = sent.keys() | received.keys()
    return (
        max((max(sent[device], received[device]) for device in devices), default=0.0),
        max((sent[device] + received[device] for device in devices), default=0.0),
    )


def known(path: Path = OUT) -> dict[tuple[str, int], Point]:
    """What was simulated, by network and boards."""
    rows = json.loads(path.read_text()) if path.exists() else []
    points = [Point(**row) for row in rows]
    return {(one.net, one.boards): one for one in sorted(points, key=lambda one: (one.net, one.boards))}


def _point(words: tuple[str, int, int, int]) -> Point | str:
    try:
        return point(*words)
    except DagtrainError as error:
        return f"{words[0]} on {words[1]} boards: {error}"


def main() -> int:
    """Simulates what is not known, and prints the table; 1 where a point found no room."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--boards", nargs="+", type=int, default=list(BOARDS))
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of beats in which a tensor passes, at least ({RUNS})")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"frames of a batch, at least ({BATCH})")
    parser.add_argument("--jobs", type=int, default=1, help="points at once (1)")
    parser.add_argument("--anew", action="store_true", help="also what is known")
    parser.add_argument("--table", action="store_true", help="simulate nothing")
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    parser.add_argument("--write", action="store_true", help="the table into docs/fpdeep.md")
    parser.add_argument("--out", type=Path, default=OUT, help="file of results (%(default)s)")
    options = parser.parse_args()
    found, failed = known(options.out), []
    wanted = [(net, boards, options.runs, options.batch) for boards in options.boards for net in options.nets]
    left = [one for one in wanted if options.anew or one[:2] not in found]
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for one in pool.imap_unordered(_point, [] if options.table else left):
            if isinstance(one, str):
                failed.append(one)
                continue
            found = dict(sorted((known(options.out) | {(one.net, one.boards): one}).items()))
            write_text(options.out, json.dumps([asdict(each) for each in found.values()], indent=1) + "\n")
    if options.json:
        print(json.dumps([asdict(one) for one in found.values()], indent=1))
    else:
        print_table(HEADS, table(found.values()))
    if options.write:
        write_text(DOCS, with_table(DOCS.read_text(), found.values()))
    print("\n".join(failed), end="\n" if failed else "")
    return 1 if failed else 0


def table(points: Iterable[Point]) -> list[Sequence[str]]:
    """Rows of the table."""
    return [one.cells for one in points]


def with_table(page: str, points: Iterable[Point]) -> str:
    """The page with the table between its marks."""
    return filled(page, DOCS, (BEGIN, END), HEADS, table(points))


if __name__ == "__main__":
    raise SystemExit(main())
