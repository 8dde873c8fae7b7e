"""What tiles that do not divide the channels would save: the least DSP blocks of all engines at a pace, by arithmetic.

    python -m benchmarks.padded_tiles build/networks/resnet18 examples/clusters/resnet18-poster.toml 1950 1993

reads the training graph that `dagtrain import` left in a folder.  For each rate it prints the share of the cluster's
DSP blocks that engines need at least, with the tiles there are and with tiles the last of which in a row may be partly
empty; then the fastest pace at which multipliers suffice, and that at which the engines, and nothing else, are found to
fit into the devices.  The three engines of a convolution have one tile, as circuits have.  Memories, ALMs, DRAM
and links are free, so it says what is in vain, not what is possible.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ortools.sat.python import cp_model

from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import weight_groups
from hdl.layers.capabilities import is_engine
from hdl.layers.conv.engine import WindowEngine
from hdl.layers.folding import divisors
from hdl.parts.part import Part
from hdl.tensor import Tile
from placement.problem.cluster import read_cluster

OPERAND = (16, 16)
# CP-SAT's deterministic seconds for a packing
DECISION_SECONDS = 20.0


def sizes(channels: int, padded: bool) -> list[int]:
    """Lanes that a tile may have: divisors, or the least for each number of tiles."""
    return sorted({-(-channels // count) for count in range(1, channels + 1)}) if padded else divisors(channels)


@dataclass(frozen=True, eq=False)
class Convolution:
    """The engines of a convolution."""

    engines: tuple[WindowEngine, ...]
    part: Part

    @cached_property
    def divided(self) -> list[tuple[int, int]]:
        """(cycles a frame, least DSP blocks of each engine there) with tiles that divide the channels."""
        return self._steps(padded=False)

    @cached_property
    def padded(self) -> list[tuple[int, int]]:
        """The same with any tile."""
        return self._steps(padded=True)

    def _steps(self, padded: bool) -> list[tuple[int, int]]:
        filters, channels = self.engines[0].weight_shape[:2]
        taps = set.intersection(*(set(engine.tap_groups) for engine in self.engines))
        tiles = [Tile(po, pi, pk) for po in sizes(filters, padded) for pi in sizes(channels, padded) for pk in taps]
        found: dict[int, int] = {}
        for tile in tiles:
            paces = [engine.least_cycles(tile) for engine in self.engines]
            # depthwise engines have no tile that is partly empty
            if None not in paces:
                cycles = max(pace for pace in paces if pace is not None)
                found[cycles] = min(found.get(cycles, tile.size), tile.size)
        steps, least = list[tuple[int, int]](), math.inf
        for cycles, size in sorted(found.items()):
            if size < least:
                least = size
                steps.append((cycles, self.part.dsp_blocks({OPERAND: size})))
        return steps


def blocks_at(steps: Sequence[tuple[int, int]], cycles: int) -> int | None:
    """DSP blocks of an engine at a pace; None if it is too fast."""
    return next((blocks for pace, blocks in reversed(steps) if pace <= cycles), None)


def convolutions(graph: Graph, part: Part) -> Counter[Convolution]:
    """The convolutions of a graph, like ones counted, without those in groups, whose tiles have rules of their own."""
    found: Counter[Convolution] = Counter()
    known: dict[tuple[str, ...], Convolution] = {}
    for group in weight_groups(graph):
        engines = [node.layer for node in group if is_engine(node.layer)]
        windows = tuple(engine for engine in engines if isinstance(engine, WindowEngine))
        if windows and getattr(windows[0], "groups", 1) == 1:
            like = tuple(f"{type(e).__name__} {e.name} {e.stride} {e.padding} {e.dilation}" for e in windows)
            found[known.setdefault(like, Convolution(windows, part))] += 1
    return found


def items_at(found: Mapping[Convolution, int], cycles: int, padded: bool) -> list[int] | None:
    """DSP blocks of every engine at a pace, largest first; None if one is not that fast."""
    items: list[int] = []
    for convolution, count in found.items():
        blocks = blocks_at(convolution.padded if padded else convolution.divided, cycles)
        if blocks is None:
            return None
        items += [blocks] * (count * len(convolution.engines))
    return sorted(items, reverse=True)


def fit(items: Sequence[int], devices: Sequence[int]) -> bool:
    """Whether a way is found to put items into devices."""
    if sum(items) > sum(devices):
        return False
    counts, model = Counter(items), cp_model.CpModel()
    put = {(size, n): model.new_int_var(0, count, "") for size, count in counts.items() for n in range(len(devices))}
    for size, count in counts.items():
        model.add(sum(put[size, n] for n in range(len(devices))) == count)
    for n, capacity in enumerate(devices):
        model.add(sum(size * put[size, n] for size in counts) <= capacity)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = DECISION_SECONDS
    return solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def paces(found: Mapping[Convolution, int], padded: bool) -> list[int]:
    """All cycles a frame at which some engine has another tile."""
    return sorted({pace for each in found for pace, _ in (each.padded if padded else each.divided)})


def lines(
    found: Mapping[Convolution, int], devices: Sequence[int], clock_hz: int, rates: Iterable[int]
) -> Iterator[str]:
    """The table."""
    whole = sum(devices)
    for rate in rates:
        shares = []
        for padded in (False, True):
            items = items_at(found, clock_hz // rate, padded)
            shares.append("too fast" if items is None else f"{sum(items) / whole:.1%}")
        yield f"{rate:,} frames/s: {shares[0]} of the DSP blocks with tiles that divide channels, {shares[1]} with any"
    for padded in (False, True):
        name = "any tile" if padded else "tiles that divide"
        fits = [(pace, items) for pace in paces(found, padded) if (items := items_at(found, pace, padded)) is not None]
        pooled = next(pace for pace, items in fits if sum(items) <= whole)
        packed = next(pace for pace, items in fits if fit(items, devices))
        yield (
            f"{name}: multipliers suffice at {pooled:,} cycles a frame ({clock_hz / pooled:,.0f} frames/s), engines "
            f"are found to fit the devices at {packed:,} ({clock_hz / packed:,.0f})"
        )


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `dagtrain import --out` left")
    parser.add_argument("cluster", type=Path)
    parser.add_argument("rates", type=int, nargs="*", help="frames/s")
    options = parser.parse_args()
    cluster = read_cluster(options.cluster)
    found = convolutions(load_training_graph(Workspace(options.folder)), cluster.devices[0].board.part)
    devices = [device.dsp for device in cluster.placement_devices()]
    print("\n".join(lines(found, devices, cluster.clock_hz, options.rates)))


if __name__ == "__main__":
    main()
