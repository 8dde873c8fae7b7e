"""What every accelerator does in a step of training, and what waits for what.

All accelerators do the same, each with its share of the tensors: a *work* computes a pass of a layer, an *exchange* at
a level sends words to the mirror image in the other group and gets as many from it.  Amounts are those of
`communication`, spread evenly.  Where partial sums of 2^k accelerators become whole ones in all of them (Table 1), they
do so by halving and doubling: from the lowest level up each sends half of what it still sums, and from the top down
what it has summed.  That is what Table 1 says of pairs of groups, each tensor halved by the levels above: with equal
choices at all levels accelerators send 2 (2^k - 1) A in all, as Algorithm 2 counts.  (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from placement.hypar.communication import DP, MP, Above, Choices, Counting
from placement.hypar.network import Layer, Net

# forward, error, gradient
PASSES = 3
# rows of a unit's engines: 12 × 14 (6.1), each column makes a row of the map
COLUMNS = 14


@dataclass(frozen=True, kw_only=True)
class Work:
    """Computing, of one accelerator."""

    name: str
    # tasks that are done before
    after: tuple[int, ...]
    # multiplications with their additions
    macs: float
    # words read and written
    dram: float
    sram: float


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Words to the mirror image, of one accelerator, and as many from there."""

    name: str
    after: tuple[int, ...]
    # H1 is level 0
    level: int
    words: float
    # whether the taker adds them to its own
    sums: bool


Task = Work | Exchange


def iteration(net: Net, choices: Choices, counting: Counting) -> tuple[Task, ...]:
    """A step from the first layer forward to the last update, each task behind those that it waits for."""
    program = _Program(net, choices, counting)
    for layer in net.layers:
        program.forward(layer)
    for layer in reversed(net.layers):
        program.backward(layer)
    return tuple(program.tasks)


def by_turns(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The same one behind the other, nothing beside something else."""
    return tuple(replace(task, after=(index - 1,) if index else ()) for index, task in enumerate(tasks))


@dataclass
class _Program:
    net: Net
    choices: Choices
    counting: Counting
    tasks: list[Task] = field(default_factory=list)
    # layer -> the task that makes its F whole, and those that its E waits for
    maps: dict[str, int] = field(default_factory=dict)
    errors: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.levels = len(next(iter(self.choices.values())))

    def put(self, task: Task) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1

    def forward(self, layer: Layer) -> None:
        """F of the layers before, where this one wants it; F of this one."""
        shares = self._shares(layer)
        came = []
        for name in layer.inputs:
            border, _ = self._border(self.net.by_name[name], layer)
            came.append(self._exchange(f"{name} {layer.name} F", self.maps[name], border))
        done = self._work(layer, "forward", came, shares.forward)
        self.maps[layer.name] = self._summed(f"{layer.name} sum F", done, layer, MP)

    def backward(self, layer: Layer) -> None:
        """E for the layers before, where they want it; ΔW and the update."""
        shares = self._shares(layer)
        # the loss makes the first error
        came = self.errors.get(layer.name) or [self.maps[layer.name]]
        done = self._work(layer, "error", came, shares.error)
        for name in layer.inputs:
            _, border = self._border(self.net.by_name[name], layer)
            self.errors.setdefault(name, []).append(self._exchange(f"{name} {layer.name} E", done, border))
        if not layer.is_join:
            done = self._work(layer, "gradient", came, shares.gradient)
            done = self._summed(f"{layer.name} sum ΔW", done, layer, DP)
            self._work(layer, "update", [done], shares.update)

    def _work(self, layer: Layer, name: str, after: Iterable[int], amounts: tuple[float, float, float]) -> int:
        macs, dram, sram = amounts
        after = tuple(dict.fromkeys(after))
        return self.put(Work(name=f"{layer.name} {name}", after=after, macs=macs, dram=dram, sram=sram))

    def _exchange(self, name: str, after: int, words: Mapping[int, float]) -> int:
        """From level to level, H1 first: each sends what it has got so far."""
        for level, count in words.items():
            if count:
                after = self.put(Exchange(name=name, after=(after,), level=level, words=count, sums=False))
        return after

    def _summed(self, name: str, after: int, layer: Layer, choice: int) -> int:
        """Partial sums, which ``choice`` makes, added by halving and sent round by doubling."""
        words = self._sent(
            self.counting.intra(layer, above, now) if now == choice else 0.0 for above, now in self._above(layer)
        )
        for level, count in reversed(words.items()):
            if count:
                after = self.put(Exchange(name=name, after=(after,), level=level, words=count / 2, sums=True))
        return self._exchange(name, after, {level: count / 2 for level, count in words.items()})

    def _border(self, maker: Layer, taker: Layer) -> tuple[dict[int, float], dict[int, float]]:
        """What an accelerator sends of F and of E at a border, by level."""
        ends = zip(self._above(maker), self._above(taker), strict=True)
        parts = [self.counting.inter_parts(maker, taker, (a, b), (now, then)) for (a, now), (b, then) in ends]
        return self._sent(maps for maps, _ in parts), self._sent(errors for _, errors in parts)

    def _sent(self, between: Iterable[float]) -> dict[int, float]:
        """Level -> words an accelerator sends, of what a pair of groups communicates there."""
        return {level: 2.0 ** (level - self.levels) * words for level, words in enumerate(between)}

    def _above(self, layer: Layer) -> list[tuple[Above, int]]:
        """(choices above, choice) of every level."""
        found, above = [], Above()
        for choice in self.choices[layer.name]:
            found.append((above, choice))
            above = above.below(choice)
        return found

    def _shares(self, layer: Layer) -> _Shares:
        chosen = self.choices[layer.name]
        return _Shares(layer, self.counting, chosen.count(DP), chosen.count(MP))


@dataclass(frozen=True)
class _Shares:
    """What an accelerator has of a layer: of each pass (multiplications, words of DRAM, words of SRAM).

    Each tensor of a pass is read or written in DRAM once.  A unit is row-stationary (section 5): a word of a map is
    read from SRAM once for all taps of the kernel, a sum over the taps is read and written once, a weight stays for a
    row of the map in every column of engines, in a dense layer for all samples.  In the gradient pass E takes the place
    of the sums, and sums that of the weights."""

    layer: Layer
    counting: Counting
    dp: int
    mp: int

    @property
    def macs(self) -> float:
        return self.counting.batch * self.layer.macs / 2.0 ** (self.dp + self.mp)

    @property
    def weights(self) -> float:
        """W and ΔW."""
        return self.layer.weights / 2.0**self.mp

    @property
    def taken(self) -> float:
        """F and E on the side of the layers before (L tensors of 3.2): mp takes a part of the channels."""
        return self.counting.batch * self.layer.input / 2.0 ** (self.dp + self.mp)

    @property
    def made(self) -> float:
        """F and E on the side of the layers behind (R tensors): whole for mp."""
        return self.counting.map(self.layer) / 2.0**self.dp

    @property
    def kept(self) -> float:
        """Multiplications that a weight stays for."""
        if self.layer.is_join or self.layer.is_dense:
            return max(1.0, self.counting.batch / 2.0**self.dp)
        pixels = self.layer.macs / self.layer.weights
        return min(COLUMNS * math.sqrt(pixels), pixels)

    @property
    def forward(self) -> tuple[float, float, float]:
        per_mac = (1 + 2) / self.layer.taps + 1 / self.kept
        return self.macs, self.taken + self.weights + self.made, self.macs * per_mac

    @property
    def error(self) -> tuple[float, float, float]:
        """Reads F too, for f'(F) of equation 2."""
        per_mac = (1 + 2) / self.layer.taps + 1 / self.kept
        return self.macs, self.made + self.weights + 2 * self.taken, self.macs * per_mac

    @property
    def gradient(self) -> tuple[float, float, float]:
        per_mac = (1 + 1) / self.layer.taps + 2 / self.kept
        return self.macs, self.taken + self.made + self.weights, self.macs * per_mac

    @property
    def update(self) -> tuple[float, float, float]:
        """Reads W and ΔW, writes W."""
        return self.weights, 3 * self.weights, 3 * self.weights
