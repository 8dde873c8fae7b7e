"""How long an iteration takes on an array, by events (6.1): accelerators compute one thing at a time, what flows on a
link shares it fairly.

An event is the end of a work or of a flow.  Between two events every flow has the rate that max-min fairness gives:
rates grow alike until a link is full, what crosses it stays as it is, the rest goes on growing (Bertsekas and Gallager,
"Data Networks", 6.5.2).  Flows go through all links of their way at once; links have no latency.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from placement.hypar.communication import BYTES, Choices, Counting
from placement.hypar.iteration import Exchange, Task, Work, by_turns, iteration
from placement.hypar.network import Net
from placement.hypar.topology import HTree, Topology

# multiplications of a processing unit a second: 168 engines at 250 MHz (84.0 GOPS/s)
UNIT_MACS_PER_S = 168 * 250e6
DRAM_BYTES_PER_S = 320e9
# what may be left of a flow that has ended, as a share of its bits
ROUNDING = 1e-9


@dataclass(frozen=True)
class Accelerator:
    """A memory cube with processing units on its logic die."""

    # how many it holds is not given
    units: int = 12
    dram_bytes_per_s: float = DRAM_BYTES_PER_S

    def seconds(self, work: Work) -> float:
        """Of computing, or of memory where that takes longer."""
        return max(work.macs / (self.units * UNIT_MACS_PER_S), BYTES * work.dram / self.dram_bytes_per_s)


@dataclass(frozen=True)
class Run:
    """What a simulation found."""

    seconds: float
    # of the accelerator that computes longest
    computing_seconds: float
    # that crossed each link
    link_bits: tuple[float, ...]
    # (begin, end) of every task in the accelerator numbered 0; an exchange begins when its words may leave
    spans: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Array:
    """Accelerators of a kind, joined, and what they may do at once."""

    accelerator: Accelerator = Accelerator()
    # by levels
    topology: Callable[[int], Topology] = HTree.of_one
    # computing beside communicating, wherever no result is waited for; else one thing at a time
    overlapped: bool = False

    def run(self, net: Net, choices: Choices, counting: Counting) -> Run:
        """A step of training."""
        levels = len(next(iter(choices.values())))
        tasks = iteration(net, choices, counting)
        return simulate(tasks if self.overlapped else by_turns(tasks), self.topology(levels), self.accelerator)

    def seconds(self, net: Net, choices: Choices, counting: Counting) -> float:
        """Of a step."""
        return self.run(net, choices, counting).seconds


def simulate(tasks: Sequence[Task], topology: Topology, accelerator: Accelerator) -> Run:
    """All accelerators with the same tasks, one iteration."""
    return _Simulation(tasks, topology, accelerator).run()


@dataclass
class _Flow:
    source: int
    target: int
    task: int
    route: tuple[int, ...]
    bits: float
    left: float
    rate: float = 0.0


@dataclass
class _Simulation:
    tasks: Sequence[Task]
    topology: Topology
    accelerator: Accelerator
    now: float = 0.0
    flows: list[_Flow] = field(default_factory=list)
    # (end, accelerator, task) of works in hand
    ends: list[tuple[float, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        everyone = range(self.topology.accelerators)
        self.behind: list[list[int]] = [[] for _ in self.tasks]
        for index, task in enumerate(self.tasks):
            for before in task.after:
                self.behind[before].append(index)
        self.waits_for = [[len(task.after) for task in self.tasks] for _ in everyone]
        # exchanges whose words have come, before their taker was ready for them or after
        self.come: list[set[int]] = [set() for _ in everyone]
        # works that nothing holds up, the first of the program first
        self.ready: list[list[int]] = [[] for _ in everyone]
        self.is_busy = [False for _ in everyone]
        self.computed = [0.0 for _ in everyone]
        self.link_bits = [0.0 for _ in self.topology.rates]
        self.spans = [[0.0, 0.0] for _ in self.tasks]
        self.known: dict[tuple[tuple[int, ...], ...], list[float]] = {}
        self.undone = len(self.tasks) * len(everyone)

    def run(self) -> Run:
        for accelerator in range(self.topology.accelerators):
            for index, task in enumerate(self.tasks):
                if not task.after:
                    self._free(accelerator, index)
            self._compute(accelerator)
        while self.flows or self.ends:
            self._step()
        assert not self.undone, "no task waits for itself"
        spans = tuple((begin, end) for begin, end in self.spans)
        return Run(self.now, max(self.computed), tuple(self.link_bits), spans)

    def _step(self) -> None:
        """To the next event: all that ends then, and what begins."""
        self._share()
        last = min((flow.left / flow.rate for flow in self.flows), default=float("inf"))
        passed = min(last, self.ends[0][0] - self.now) if self.ends else last
        for flow in self.flows:
            flow.left -= flow.rate * passed
        self.now = self.ends[0][0] if self.ends and passed < last else self.now + passed
        arrived = [flow for flow in self.flows if flow.left <= ROUNDING * flow.bits]
        self.flows = [flow for flow in self.flows if flow.left > ROUNDING * flow.bits]
        while self.ends and self.ends[0][0] <= self.now:
            _, accelerator, index = heapq.heappop(self.ends)
            self.is_busy[accelerator] = False
            self._done(accelerator, index)
        for flow in arrived:
            self.come[flow.target].add(flow.task)
            if not self.waits_for[flow.target][flow.task]:
                self._done(flow.target, flow.task)
        for accelerator in range(self.topology.accelerators):
            self._compute(accelerator)

    def _share(self) -> None:
        """Rates of all flows."""
        routes = tuple(flow.route for flow in self.flows)
        if routes not in self.known:
            self.known[routes] = fair_rates(routes, self.topology.rates)
        for flow, rate in zip(self.flows, self.known[routes], strict=True):
            flow.rate = rate

    def _free(self, accelerator: int, index: int) -> None:
        """Nothing holds up a task any more."""
        task = self.tasks[index]
        self._note(accelerator, index, 0)
        if isinstance(task, Work):
            heapq.heappush(self.ready[accelerator], index)
            return
        self._send(accelerator, index, task)
        if index in self.come[accelerator]:
            self._done(accelerator, index)

    def _send(self, accelerator: int, index: int, task: Exchange) -> None:
        route, bits = self.topology.route(accelerator, task.level), 8 * BYTES * task.words
        self.flows.append(_Flow(accelerator, self.topology.mirror(accelerator, task.level), index, route, bits, bits))
        for link in route:
            self.link_bits[link] += bits

    def _compute(self, accelerator: int) -> None:
        """Take the next work in hand."""
        if self.is_busy[accelerator] or not self.ready[accelerator]:
            return
        index = heapq.heappop(self.ready[accelerator])
        work = self.tasks[index]
        assert isinstance(work, Work)
        seconds = self.accelerator.seconds(work)
        self.is_busy[accelerator] = True
        self.computed[accelerator] += seconds
        self._note(accelerator, index, 0)
        heapq.heappush(self.ends, (self.now + seconds, accelerator, index))

    def _done(self, accelerator: int, index: int) -> None:
        self.undone -= 1
        self._note(accelerator, index, 1)
        for behind in self.behind[index]:
            self.waits_for[accelerator][behind] -= 1
            if not self.waits_for[accelerator][behind]:
                self._free(accelerator, behind)

    def _note(self, accelerator: int, index: int, end: int) -> None:
        if accelerator == 0:
            self.spans[index][end] = self.now


def fair_rates(routes: Sequence[tuple[int, ...]], capacities: Sequence[float]) -> list[float]:
    """Max-min fair rates of flows, by the links each crosses."""
    # flows of a way are alike
    counts = Counter(routes)
    crossing: dict[int, list[tuple[int, ...]]] = {}
    for route in counts:
        for link in route:
            crossing.setdefault(link, []).append(route)
    room = {link: capacities[link] for link in crossing}
    growing = {link: sum(counts[route] for route in found) for link, found in crossing.items()}
    rates: dict[tuple[int, ...], float] = {}
    while len(rates) < len(counts):
        shares = {link: room[link] / count for link, count in growing.items() if count}
        least = min(shares.values())
        full = [link for link, share in shares.items() if share <= least * (1 + ROUNDING)]
        for route in dict.fromkeys(route for link in full for route in crossing[link] if route not in rates):
            rates[route] = least
            for link in route:
                growing[link] -= counts[route]
                room[link] -= counts[route] * least
    return [rates[route] for route in routes]
