"""What crosses between boards where VGG-16's conv1_2 is in parts: by outputs, by inputs, by rows.

    python -m benchmarks.row_splits
    python -m benchmarks.row_splits --boards 2 3 4 --json

Boards stand in a chain, as FPDeep's: the image comes in at the first one, board p has the p-th part of conv1_2 (its
forward, error and gradient engine), and all that comes behind conv1 is beyond the last one.  The graphs are those that
`dagtrain import --split` makes, the bits a frame those of their links (`dagtrain.planning.link_costs`), weights and
gradients that cross once a batch among them.  What has no multipliers may stand on any board: of each cut between two
boards the least is taken that must cross it, a minimum cut of the graph.  (Minimum cuts of ends that are nested are
nested, so one placement has all of them.)  A stream to several boards crosses a cut once.

Four ways: conv1_2 alone by outputs, inputs, rows; and *all of conv1* by rows, conv1_1 and the pool too, so that boards
exchange halos, and rows of the image and of the pooled map alone go along the chain.

With b bits a frame through the widest cut, both directions together as FPDeep counts them, a chain trains linearly up
to N = rate / b × operations a frame / operations a second of a board (TC, 6.3.3): 56 boards at 150 Gb/s for four maps
of 16 bits, which is what b goes towards by inputs.  Rows wait, for one another and for a longer way back, so what lies
in all FIFOs of the graph at once is named beside it, at an interval of `CYCLES` (`dagtrain.schedule.schedule`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf

import networkx as nx

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.split_layers import Parts, by_rows, split_layers
from dagtrain.passes.split_rows import split_rows
from dagtrain.planning.link_costs import network_links
from dagtrain.schedule.schedule import schedule
from hdl.layers.capabilities import is_engine
from hdl.recipe import Recipe
from placement.hypar.published import PUBLISHED

# FPDeep, TC: operations a second of a board (Table 6, VGG-16), bits a second of its links, images a batch
BOARD_GOPS, LINK_GBPS, BATCH = 1197, 150, 128
# forward, error and gradient, a multiplication and an addition each
OPERATIONS = 6 * sum(layer.macs for layer in PUBLISHED["vgg-d"].net.layers)
# of all layers that are in parts where conv1 is as a whole
BLOCK = ("conv1", "relu1", "conv2", "relu2", "max_pool1")
WAYS = ("outputs", "inputs", "rows", "all of conv1 by rows")
# of links that carry whole words of so many bits
WORD_BITS = 64
# a frame, at which what waits is counted: about 300 frames a second at 250 MHz
CYCLES = 224 * 224 * 16


@dataclass(frozen=True)
class Cut:
    """Between two boards of a chain."""

    way: str
    boards: int
    # the first so many boards, and the others
    between: int
    # a frame, both directions together
    bits: float
    # that wait in all FIFOs of the network
    waiting_bits: float = 0.0

    @property
    def linear_boards(self) -> float:
        """Of a chain whose links carry no more than `LINK_GBPS`."""
        return LINK_GBPS * 1e9 / self.bits * OPERATIONS / (BOARD_GOPS * 1e9)


def conv1(side: int = 224, filters: int = 64) -> Graph:
    """VGG-16's first block, and an end that costs nothing beside it: the forward graph."""
    build = GraphBuilder("vgg16-conv1", Recipe(batch=BATCH), seed=1)
    x = build.relu(build.conv(build.input(side, side, 3), filters, 3, padding=1))
    x = build.max_pool(build.relu(build.conv(x, filters, 3, padding=1)), 2, 2)
    return build.classify(build.gemm(build.global_average_pool(x), 10))


def in_parts(forward: Graph, way: str, boards: int) -> Graph:
    """The streaming graph, in as many parts as there are boards."""
    how = Parts(boards, by_inputs=way == "inputs", by_rows="rows" in way)
    parts = dict.fromkeys(BLOCK if way.startswith("all") else ("conv2",), how)
    return insert_forks(split_rows(differentiate(split_layers(forward, parts)), by_rows(parts)))


def board_of(node: Node, boards: int, block: bool) -> int | None:
    """Where a node stands; None: anywhere."""
    whole = node.whole in (BLOCK if block else ("conv2",))
    if whole and is_engine(node.layer):
        number = node.layer_of.rpartition("_")[2].removeprefix("part").removeprefix("rows")
        return int(number)
    if not (is_engine(node.layer) or node.role is Role.HOST):
        return None
    # the image and what makes conv1_2's input, and all that comes behind
    return 0 if node.whole in ("input1", "conv1") else boards - 1


def cuts(graph: Graph, way: str, boards: int) -> Iterator[Cut]:
    """The least that crosses between every two neighbours."""
    places = {node.name: board_of(node, boards, way.startswith("all")) for node in graph.nodes}
    # what a fork gives to several boards crosses once: a stream is torn if its ends are not all on one side
    ends: dict[str, set[str]] = {}
    bits: dict[str, float] = {}
    forks = {node.name for node in graph.nodes if node.role is Role.FORK}
    for link in network_links(graph, WORD_BITS):
        stream = link.source if link.source in forks else f"{link.source} > {link.target}"
        ends.setdefault(stream, {link.source}).add(link.target)
        bits[stream] = bits.get(stream, 0.0) + float(link.bits_per_frame) * (stream not in forks)
        if stream in forks:
            bits[stream] = max(bits[stream], float(link.bits_per_frame))
    for between in range(1, boards):
        flow = nx.DiGraph()
        for stream, nodes in ends.items():
            into, out = f"{stream} into", f"{stream} out"
            flow.add_edge(into, out, capacity=bits[stream])
            for name in nodes:
                flow.add_edge(name, into, capacity=inf)
                flow.add_edge(out, name, capacity=inf)
        for name, place in places.items():
            if place is not None and name in flow:
                side = ("first", name) if place < between else (name, "others")
                flow.add_edge(*side, capacity=inf)
        yield Cut(way, boards, between, float(nx.minimum_cut_value(flow, "first", "others")))


def widest(forward: Graph, way: str, boards: int) -> Cut:
    """The cut that most crosses."""
    graph = in_parts(forward, way, boards)
    found = max(cuts(graph, way, boards), key=lambda cut: cut.bits)
    return replace(found, waiting_bits=waiting(graph))


def waiting(graph: Graph) -> float:
    """Bits of maps and errors that lie on all edges in steady state."""
    folded = fold_graph(graph, CYCLES)
    times = schedule(folded, CYCLES)
    tensors = {edge: sink.tensor for edge, _, _, _, sink in folded.streams if not sink.tensor.kind.per_batch}
    return sum(times.frames_waiting(edge) * tensor.bits for edge, tensor in tensors.items())


def table(found: Mapping[tuple[str, int], Cut], boards: Sequence[int]) -> Iterator[str]:
    """Rows of the table."""
    yield "| parts | " + " | ".join(WAYS) + " |"
    yield "|---" * (1 + len(WAYS)) + "|"
    for count in boards:
        of = [found[way, count] for way in WAYS]
        cells = [f"{cut.bits / 1e6:.1f} · {cut.linear_boards:.0f} · {cut.waiting_bits / 1e6:.0f}" for cut in of]
        yield f"| {count} | " + " | ".join(cells) + " |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, nargs="+", default=list(range(2, 9)), help="parts of conv1_2 (2 … 8)")
    parser.add_argument("--json", action="store_true", help="all widest cuts, for programs")
    options = parser.parse_args()
    forward = conv1()
    found = {(way, count): widest(forward, way, count) for count in options.boards for way in WAYS}
    if options.json:
        print(json.dumps([asdict(cut) | {"linear_boards": cut.linear_boards} for cut in found.values()], indent=1))
        return
    print(*table(found, options.boards), sep="\n")
    print("\nMb a frame through the widest cut · boards up to which a chain is linear · Mb that wait in all FIFOs")
    print(f"without parts {waiting(insert_forks(differentiate(forward))) / 1e6:.0f} Mb wait")
    print(f"linear: boards of {BOARD_GOPS} GOPS at {LINK_GBPS} Gb/s, {OPERATIONS / 1e9:.1f} GOP a frame")


if __name__ == "__main__":
    main()
