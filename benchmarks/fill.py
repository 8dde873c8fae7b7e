"""How full the whole cluster must be at a rate, and of what: what the walls of a network are made of.

python -m benchmarks.fill build/resnet18 examples/clusters/resnet18-poster.toml --fps 1771 2100 --levels 95256 112896
python -m benchmarks.fill build/mobilenetv2 CLUSTER --fps 1500 --levels 83413 113209 131000 --small-buffers auto

The program of `placement.diagnosis.walls` asks how fast the cluster is; this one asks for the least share u of every
resource with which a rate can be kept: all devices in one, links, ports and packing left out, every node a mixture of
its circuits at the levels given.  So u above 1 forbids the rate with these circuits, and a u little below leaves no
room for ports.  A resource whose price is 0 is not what binds.  Folders are those of `dagtrain import`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ortools.linear_solver import pywraplp

from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.levers import levers_wanted, with_levers
from dagtrain.flow.place_options import PlaceOptions, read_options_cluster, search_options
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.ir import Node
from dagtrain.passes.fold import weight_groups
from dagtrain.planning.levers import LEVERS
from dagtrain.planning.menus import Menu
from dagtrain.planning.offers import Offer, Use
from dagtrain.planning.prices import Prices
from dagtrain.planning.problem import DealStreams, MultiplyConstants, Problem
from dagtrain.progress import Silent
from hdl.costs.estimate import Estimator
from hdl.parts.part import Part

RESOURCES = ("dsp", "m20k", "alm", "dram")
# words of `PlaceOptions` that may be said here
LEVER_OPTIONS = tuple(
    field.name for field in fields(PlaceOptions) if field.type == "str" and field.name not in ("solver",)
)
# shares of a circuit that are none; kinds of circuits that fill less of everything are not shown
LEAST_SHARE, LEAST_SHOWN = 1e-9, 0.005


@dataclass(frozen=True)
class Way:
    """A way to build a node on a part."""

    menu: Menu
    node: Node
    offer: Offer
    part: Part
    # DSP blocks, block memories, ALMs, bytes of DRAM a frame
    costs: tuple[int, int, int, int]

    def pieces(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """What is built, by kind, and what it costs."""
        for piece in self.offer.pieces:
            kind = type(self.node.layer).__name__ if piece.use is Use.ENGINE else piece.use.value
            dsp, m20k, alm = self.menu.costs(Offer(self.offer.choice, self.offer.layer, (piece,), (), None), self.part)
            yield kind, (dsp, m20k, alm, float(piece.dram_bytes_per_frame))


@dataclass(frozen=True)
class Fill:
    """How full the cluster is at a rate."""

    # of the fullest resource
    share: float
    # resource -> by how much the share falls a unit of relief there; they add up to 1
    prices: dict[str, float]
    # kind of circuit -> shares of the resources
    kinds: dict[str, list[float]]


@dataclass(frozen=True)
class Filler:
    """Asks about one problem at given levels."""

    clock_hz: int
    # resource -> what the whole cluster has of it; bytes of DRAM a second
    capacities: Mapping[str, float]
    # node -> the first one of its weight group
    groups: Mapping[str, str]
    # node -> the ways to build it
    ways: Mapping[str, Sequence[Way]]

    @classmethod
    def of(cls, problem: Problem, prices: Prices, levels: Sequence[int]) -> Filler:
        """Of a problem whose circuits are priced at these cycles a frame."""
        groups = {node.name: group[0].name for group in weight_groups(problem.graph) for node in group}
        taken = [lever for lever in LEVERS if lever.taken is not None and lever.offered(problem)]
        ways: dict[str, list[Way]] = defaultdict(list)
        for menu in [Menu.of(prices.costs(cycles), LEVERS) for cycles in levels]:
            for node, offer in menu.with_levers(taken):
                for part in menu.parts:
                    costs = (*menu.costs(offer, part), offer.dram_bytes_per_frame)
                    ways[node.name].append(Way(menu, node, offer, part, costs))
        bandwidth = sum(device.dram_bytes_per_s for device in problem.cluster.placement_devices())
        has = {name: float(problem.capacity(name)) for name in RESOURCES[:3]}
        return cls(problem.cluster.clock_hz, has | {"dram": float(bandwidth)}, groups, ways)

    def at(self, fps: float) -> Fill | None:
        """The least fill at a rate; None where a node has no circuit for it."""
        solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        share = solver.NumVar(0.0, solver.infinity(), "")
        rows = {name: solver.Constraint(-solver.infinity(), 0.0) for name in RESOURCES}
        # of DRAM a frame
        capacities = {**self.capacities, "dram": self.capacities["dram"] / fps}
        for row in rows.values():
            row.SetCoefficient(share, -1.0)
        groups: dict[str, list[dict[Any, list[Any]]]] = defaultdict(list)
        chosen: list[tuple[Any, Way]] = []
        cycles = self.clock_hz / fps
        for name, ways in self.ways.items():
            fast = [way for way in ways if way.offer.cycles_per_frame <= cycles]
            if not fast:
                return None
            by_tile: dict[Any, list[Any]] = defaultdict(list)
            for way in fast:
                x = solver.NumVar(0.0, 1.0, "")
                by_tile[way.offer.tile].append(x)
                chosen.append((x, way))
                for resource, cost in zip(RESOURCES, way.costs, strict=True):
                    if cost:
                        rows[resource].SetCoefficient(x, cost / max(1, capacities[resource]))
            groups[self.groups.get(name, name)].append(by_tile)
        for members in groups.values():
            self._agree(solver, members)
        solver.Minimize(share)
        if solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        prices = {name: -row.dual_value() for name, row in rows.items()}
        return Fill(share.solution_value(), prices, self._kinds(chosen, capacities))

    @staticmethod
    def _agree(solver: Any, members: Sequence[dict[Any, list[Any]]]) -> None:
        """Every node is built once, and members of a weight group have the same share of every tile."""
        shares = {tile: solver.NumVar(0.0, 1.0, "") for tile in dict.fromkeys(t for member in members for t in member)}
        solver.Add(sum(shares.values()) == 1.0)
        for member in members:
            for tile, share in shares.items():
                solver.Add(sum(member.get(tile, ()), solver.NumVar(0.0, 0.0, "")) == share)

    @staticmethod
    def _kinds(chosen: Sequence[tuple[Any, Way]], capacities: Mapping[str, float]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(RESOURCES))
        for x, way in chosen:
            part = x.solution_value()
            if part < LEAST_SHARE:
                continue
            for kind, costs in way.pieces():
                for at, (resource, cost) in enumerate(zip(RESOURCES, costs, strict=True)):
                    found[kind][at] += part * cost / max(1.0, capacities[resource])
        return dict(sorted(found.items(), key=lambda item: -max(item[1])))


def main() -> None:
    """Print a line a rate, and a table of what fills it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of `dagtrain import`")
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--fps", type=float, nargs="+", required=True)
    parser.add_argument("--levels", type=int, nargs="+", required=True, help="cycles a frame that are priced")
    parser.add_argument("--update-frames", type=float, default=1.0)
    usual = {field.name: field.default for field in fields(PlaceOptions)}
    for name in LEVER_OPTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", default=usual[name], help="as of `dagtrain place`")
    said = parser.parse_args()
    levers = {name: getattr(said, name) for name in LEVER_OPTIONS}
    options = PlaceOptions(said.cluster, update_frames=said.update_frames, **levers)
    cluster, search, wanted = read_options_cluster(options), search_options(options), levers_wanted(options)
    graph = with_levers(load_training_graph(Workspace(said.out)), cluster, search, options)
    multiply, deal = (
        wanted.multiply_constants is MultiplyConstants.AUTO,
        wanted.deal_streams is DealStreams.AUTO,
    )
    prices = Prices(graph, cluster, Estimator(), {}, Silent(), multiply=multiply, deal=deal)
    filler = Filler.of(Problem(graph, cluster, search, {}, multiply, deal), prices, said.levels)
    for fps in said.fps:
        fill = filler.at(fps)
        if fill is None:
            print(f"{fps:,.0f} frames/s: a node has no circuit for it at these levels")
            continue
        binds = ", ".join(f"{name} {price:.2f}" for name, price in fill.prices.items() if price > LEAST_SHARE)
        print(f"{fps:,.0f} frames/s: {fill.share:.1%} full; binds: {binds}\n| circuits |", " | ".join(RESOURCES), "|")
        print("|---" * (len(RESOURCES) + 1) + "|")
        for kind, shares in fill.kinds.items():
            if max(shares) >= LEAST_SHOWN:
                print(f"| {kind} |", " | ".join(f"{share:.1%}" for share in shares), "|", flush=True)


if __name__ == "__main__":
    main()
