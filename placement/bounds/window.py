"""The window bound: a stretch of layers, with all its engines and links, that alone has no placement at T.

The network often binds in one place: early layers move pictures fatter than any link, so their engines must share a
device that cannot hold them all. The sub-graph of a few consecutive layers (forward, error and gradient) shows that,
however many devices stand around. Kept are configurations, tiles, couplings, blocks, DRAM, links, and equal hops around
cycles inside the window; dropped are pins, and everything outside. On cables all devices stay where they stand, with
the ways between them: what the rest of the network sends over the same cables is dropped.

Each window is first given to the annealing: what has a placement refutes nothing, and most windows have one at once.
Only the others go to CP-SAT, those that refuted a smaller T first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from placement.annealing import anneal, encode
from placement.annealing.settle import settle
from placement.exact.model import (
    MOST_WIRE_TERMS,
    NO_FAMILY,
    Answer,
    Effort,
    Family,
    Model,
    build_model,
    decide,
    order_equal_devices,
    walked,
    wire_terms,
)
from placement.problem.flat import Flat, flatten
from placement.problem.instance import Instance, Item
from placement.problem.options import OptionTable
from placement.problem.plan import Assignment

# items of a window, smallest and largest
SIZES = (12, 24, 40)
# moves of annealing that may save a window from CP-SAT
SCREEN_MOVES = 30_000
# deterministic seconds of CP-SAT for one window at one T, at most
WINDOW_SECONDS = 4.0


@dataclass
class _Window:
    """A stretch of layers as an instance of its own."""

    name: str
    instance: Instance
    flat: Flat
    table: OptionTable
    # T at which it was last refuted; the larger, the more promising
    refuted_at: int = 0
    # least T at which it is known to have a placement
    placed_at: int = 1 << 62


class Windows:
    """The windows of an instance, and what is known of each."""

    def __init__(
        self, instance: Instance, flat: Flat, seed: int, seconds: float, effort: Callable[[float], Effort]
    ) -> None:
        self.seed, self.effort = seed, effort
        self.seconds_left = seconds
        self.instance, self.flat = instance, flat
        self._windows: list[_Window] | None = None
        self.last = "a window of layers"

    @property
    def basis(self) -> str:
        """What a refutation rests on, with the window that gave the last one."""
        return f"the layers {self.last} alone; pins and the rest dropped"

    def refuted(self, cycles: int) -> bool:
        """Whether some window is proven to have no placement at T."""
        if self._windows is None:
            self._windows = [self._window(members) for members in window_members(self.instance)]
        for window in sorted(self._windows, key=lambda w: -w.refuted_at):
            if window.refuted_at >= cycles:
                self.last = window.name
                return True
            if window.placed_at > cycles and self._refuted(window, cycles):
                window.refuted_at = cycles
                self.last = window.name
                return True
        return False

    def _window(self, members: list[int]) -> _Window:
        instance = sub_instance(self.instance, members)
        layers = list(dict.fromkeys(item.layer or item.name for item in instance.items))
        return _Window(f"{layers[0]} … {layers[-1]}", instance, flatten(instance), OptionTable(instance))

    def _refuted(self, window: _Window, cycles: int) -> bool:
        encoded = encode.encode(window.instance, window.flat, cycles, merge=False, grounded=False)
        if encoded is not None:
            start = encode.mirror_start(encoded.problem, None)
            energy, state = anneal.anneal(encoded.problem, start, moves=SCREEN_MOVES, seed=self.seed)
            if energy <= 0.0 and isinstance(settle(encoded, window.instance, state), Assignment):
                window.placed_at = cycles
                return False
        if self.seconds_left <= 0:
            return False
        if wire_terms(window.instance) > MOST_WIRE_TERMS:
            return False
        options = window.table.at(cycles)
        if options.without_choice() or not all(options.tiles.values()):
            return True
        model = build_model(window.instance, options, without=NO_FAMILY | {Family.HOPS, Family.PINS})
        equal_hops_inside(model)
        order_equal_devices(model)
        effort = self.effort(min(WINDOW_SECONDS, self.seconds_left))
        answer, _ = decide(model, effort, spent=self._spend)
        if answer is Answer.FEASIBLE:
            window.placed_at = cycles
        return answer is Answer.INFEASIBLE

    def _spend(self, seconds: float) -> None:
        self.seconds_left -= seconds


def window_members(instance: Instance) -> list[list[int]]:
    """Items of each window: of consecutive layers, as many as fit each of the sizes, starting at every other layer."""
    layers: dict[str, list[int]] = {}
    for i, item in enumerate(instance.items):
        layers.setdefault(item.layer or item.name, []).append(i)
    groups = list(layers.values())
    found: dict[tuple[int, ...], None] = {}
    for size in SIZES:
        for first in range(0, len(groups), 2):
            members: list[int] = []
            for group in groups[first:]:
                if members and len(members) + len(group) > size:
                    break
                members += group
            found[tuple(sorted(members))] = None
    return [list(members) for members in found if len(members) > 1]


def sub_instance(instance: Instance, members: list[int]) -> Instance:
    """The items of a window with the links between them, unpinned, on as many devices of each sort as they could use;
    on cables, where each is one of its own, on all of them.

    Tile groups keep the members inside the window only."""
    items: list[Item] = [replace(instance.items[i], pinned=None) for i in members]
    names = {item.name for item in items}
    links = tuple(link for link in instance.links if link.source in names and link.target in names)
    devices = []
    count: Counter[object] = Counter()
    for device, sort in zip(instance.devices, instance.sorts, strict=True):
        count[sort] += 1
        if count[sort] <= len(items):
            devices.append(device)
    return replace(
        instance, name=f"{instance.name} window", items=tuple(items), links=links, devices=tuple(devices)
    )  # fmt: skip


def equal_hops_inside(model: Model) -> None:
    """Hops along the two ways around every cycle of the window are equal. Those at its entrances are free."""
    for cycle in encode.hop_cycles(model.instance, grounded=False):
        model.solver.add(sum(sign * walked(model, source, target) for (source, target), sign in cycle.items()) == 0)
