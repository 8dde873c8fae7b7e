"""What full ports cost: the pace of a pipeline, by events, against how full its ports are and what streams may wait in.

    python -m benchmarks.full_ports                                     # a small residual network on four boards
    python -m benchmarks.full_ports --plan build/networks/resnet50-32   # a plan, with ports as full as it has them
    python -m benchmarks.full_ports --plan … --without-room             # … with senders as small as can be
    python -m benchmarks.full_ports --plan … --rooms 1 5                # with some of the rooms alone, by number

A plan counts the words that pass a port in a frame's time, and takes a port that has time for all of them to let them
pass when they come.  Streams that meet there take turns, though, and what waits for its turn holds its engine up: of an
engine that works all the time, for good.  Room in front of senders' ports and behind receivers takes that up, and plans
have it there (`dagtrain.planning.queues`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import families, simulate_fast
from benchmarks.beside_paper import print_table, with_table
from benchmarks.fpdeep import PART
from benchmarks.networks import ROOT
from dagtrain.files import write_text
from dagtrain.flow.placed import load_placed_graph, load_plan, load_plan_cluster
from dagtrain.flow.simulate_step import plan_in_bench
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.builder import GraphBuilder
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.planning.choices import Choice, cluster_dram
from dagtrain.planning.rate import wired_graph
from dagtrain.schedule.batch_time import busy_ports, slowest_engine
from dagtrain.schedule.network import SENDER_WORDS
from dagtrain.schedule.wired import Wired
from dagtrain.simulate.events import simulate_events
from hdl.memory import filled
from hdl.recipe import Recipe
from placement.problem.network import WORDS_CYCLES

DOCS = ROOT / "docs" / "simulating.md"
MARKS = "<!-- begin: benchmarks/full_ports.py -->", "<!-- end: benchmarks/full_ports.py -->"
# of the small network: frames a batch, cycles a frame, boards, and a frame's time of which ports are busy
BATCH, CYCLES, BOARDS = 32, 16_384, 4
FILLS = (0.8, 0.9, 0.95, 0.97, 0.99)
# results that are waited for, and from which on the pace is taken
FRAMES, STEADY = 28, 14


@dataclass(frozen=True)
class Room:
    """What streams over the network may wait in."""

    name: str
    # words in front of the sender's port, if there are fewer
    sender: int = SENDER_WORDS
    # receivers hold as many words as their block memories have room for, and so many more
    filled: bool = False
    further: int = 0

    def of(self, credits: int) -> int:
        """Words of a receiver that holds so many."""
        return (filled(credits) if self.filled else credits) + self.further


ROOMS = (
    Room("as planned"),
    Room("receivers fill their memories", filled=True),
    Room("32 words at senders", sender=32),
    Room("both", sender=32, filled=True),
    Room("512 words at senders, receivers fill theirs", sender=512, filled=True),
    Room("4,096 more at receivers too", sender=512, filled=True, further=4096),
)


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="a folder in which `dagtrain place` left a plan")
    parser.add_argument("--frames", type=int, default=FRAMES, help=f"results that are waited for; {FRAMES} if not said")
    numbers = range(1, len(ROOMS) + 1)
    parser.add_argument(
        "--rooms", type=int, nargs="+", choices=numbers, default=[*numbers], help="which; all if not said"
    )
    parser.add_argument("--without-room", action="store_true", help="of a plan, as if no words could wait at senders")
    parser.add_argument("--write", action="store_true", help=f"the table of the small network into {DOCS.name}")
    options = parser.parse_args(words)
    if options.write and (options.plan is not None or options.rooms != [*numbers]):
        parser.error("--write is of the small network with all rooms: leave --plan and --rooms away")
    if options.without_room and options.plan is None:
        parser.error("--without-room is of a plan: say --plan")
    rooms = [ROOMS[number - 1] for number in options.rooms]
    if options.plan is not None:
        told = of_plan(options.plan, rooms, options.frames, without_room=options.without_room)
        heads = ["room", "cycles a frame", "of the plan's"]
    else:
        told = of_small(rooms, options.frames)
        heads = ["room", *(f"{fill:.0%}" for fill in FILLS)]
    rows = []
    for row in told:
        print(" ".join(row), file=sys.stderr, flush=True)
        rows.append(row)
    print_table(heads, rows)
    if options.write:
        write_text(DOCS, with_table(DOCS.read_text(), DOCS, MARKS, heads, rows))
    return 0


def of_small(rooms: Sequence[Room], frames: int) -> Iterator[list[str]]:
    """Of the small network, a row for each room: how much longer a frame takes than the slowest engine."""
    laid = small()
    filled = [filled_ports(laid, fill, CYCLES) for fill in FILLS]
    for room in rooms:
        longer = [pace(with_room(each, room), frames) / CYCLES - 1 for each in filled]
        # + 0: what is a little less than none is none
        yield [room.name, *(f"{round(share, 3) + 0:.1%}" for share in longer)]


def of_plan(folder: Path, rooms: Sequence[Room], frames: int, *, without_room: bool = False) -> Iterator[list[str]]:
    """Of a plan; ``without_room``: as if its senders had none."""
    workspace = Workspace(folder)
    graph, plan, cluster = load_placed_graph(workspace), load_plan(workspace), load_plan_cluster(workspace)
    items = [replace(item, payload=unqueued(item.payload) if without_room else item.payload) for item in plan.items]
    laid = plan_in_bench(replace(plan, items=tuple(items)), graph, cluster, WORDS_CYCLES)
    for room in rooms:
        cycles = pace(with_room(laid, room), frames)
        yield [room.name, f"{cycles:,.0f}", f"{cycles / plan.cycles_per_frame:.1%}"]


def unqueued(payload: str) -> str:
    """What a plan builds of a node, without room for words at its senders."""
    return replace(Choice.from_payload(payload), queued=()).to_payload()


def small() -> Wired:
    """A residual network of 32x32 pixels whose layers are dealt out to the boards in turn."""
    net = GraphBuilder("small", Recipe(batch=BATCH, staleness=BATCH), seed=5)
    x = net.relu(net.norm(net.conv(net.input(32, 32, 3), 16, 3, padding=1)))
    for filters, stride in ((16, 1), (16, 1), (32, 2)):
        x = families.residual(net, x, filters, stride)
    graph = insert_forks(differentiate(net.classify(families.head(net, x))))
    folded = fold_graph(graph, CYCLES, (PART,))
    cluster = simulate_fast.cluster_of(BOARDS, 100)
    layers = list(dict.fromkeys(node.layer_of for node in folded.nodes))
    devices = [device.name for device in cluster.devices]
    where = {
        node.name: devices[0 if node.layer.pinned_to_host else layers.index(node.layer_of) % BOARDS]
        for node in folded.nodes
    }
    laid = wired_graph(folded, where, cluster, CYCLES, cluster_dram(cluster, CYCLES))
    assert slowest_engine(laid.graph, laid.periods) == CYCLES
    return laid


def filled_ports(laid: Wired, fill: float, frame_cycles: int) -> Wired:
    """With ports of such rates that the busier direction of each is busy for that share of so many cycles a frame."""
    whole = {edge: replace(hop, source_rate=1.0, target_rate=1.0) for edge, hop in laid.hops.items()}
    busy: dict[str, float] = {}
    for end, cycles in busy_ports(laid.graph, whole).items():
        assert isinstance(end, tuple)
        busy[end[0]] = max(busy.get(end[0], 0.0), cycles)
    rates = {device: min(1.0, cycles / (fill * frame_cycles)) for device, cycles in busy.items()}
    hops = {
        edge: replace(hop, source_rate=rates[hop.source], target_rate=rates[hop.target]) for edge, hop in whole.items()
    }
    return replace(laid, hops=hops)


def with_room(laid: Wired, room: Room) -> Wired:
    """With so much room on all ways over the network."""
    hops = {
        edge: replace(hop, sender_words=max(hop.sender_words, room.sender), credits=room.of(hop.credits))
        for edge, hop in laid.hops.items()
    }
    return replace(laid, hops=hops)


def pace(laid: Wired, frames: int) -> float:
    """Cycles from result to result once frames come steadily."""
    happened = simulate_events(laid, 1, frames=frames)
    ends: Iterable[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = (
        happened.last[node.name] for node in laid.graph.nodes if node.layer.sinks and not node.layer.sources
    )
    results = np.maximum.reduce([end for end in ends if len(end) == laid.graph.recipe.batch])[:frames]
    since = min(STEADY, frames // 2)
    return float(results[-1] - results[since]) / (frames - 1 - since)


if __name__ == "__main__":
    sys.exit(main())
