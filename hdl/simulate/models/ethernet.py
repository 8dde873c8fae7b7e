"""A network that loses, doubles, reorders and corrupts frames: the specification of every switch model.

What befalls a frame is a pure function of the seed, the port that it came from, and its number among the frames from
there (`chance`), so every model of the same seed decides alike, in whatever language it is written and whatever else
is on its way.  ``ethernet.h`` is the same switch in C++.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction

from hdl.link.ethernet.frame import CABLE_BYTES

_MASK = (1 << 64) - 1
# SplitMix64: G. L. Steele Jr., D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014
_GAMMA = 0x9E3779B97F4A7C15
# bits of a corrupted frame that are turned over at most
MOST_FLIPS = 8
# faults that have a probability
RATES = ("loss", "duplicate", "reorder", "corrupt")
# frames overtaken by one that is reordered are those of so many latencies at most
REORDER_LATENCIES = 4


def mixed(word: int) -> int:
    """SplitMix64's output of a 64-bit state."""
    word = (word + _GAMMA) & _MASK
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK
    return word ^ word >> 31


class Purpose(IntEnum):
    """What a random number decides."""

    LOSS = 0
    DUPLICATE = 1
    REORDER = 2
    # cycles by which a reordered frame, or the second of a doubled one, comes later
    DELAY = 3
    SECOND_DELAY = 4
    CORRUPT = 5
    FLIPS = 6
    # the places of turned bits are decided by numbers from here on
    PLACE = 16


def chance(seed: int, port: int, number: int, purpose: int) -> int:
    """The 64-bit random number that decides ``purpose`` for a frame: the ``number``-th from ``port``."""
    word = mixed(seed & _MASK)
    for part in (port, number, purpose):
        word = mixed(word ^ part)
    return word


def share_of(probability: float) -> int:
    """How many of 2³² random numbers decide for what has this probability."""
    return int(probability * (1 << 32))


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What the network does to frames: probabilities, each by itself, of a frame from a port.

    Raises:
        ValueError: a probability outside 0 to 1.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    # (port, first cycle, cycle behind the last): nothing gets in or out of the port
    down: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in RATES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: a probability is 0 to 1")

    def hits(self, probability: float, word: int) -> bool:
        """Whether a random number decides for what has this probability."""
        return word >> 32 < share_of(probability)


@dataclass(kw_only=True)
class EthernetSwitch:
    """Switches frames between ports by their target's MAC address; what it does not know goes to all others.

    A frame that comes in whole at cycle ``now`` (`enter`) goes out at ``now + latency`` or later: each output sends one
    frame after another at the cable's rate."""

    # MAC address → port
    ports: Mapping[int, int]
    # from having the whole of a frame to sending its first byte, cycles
    latency: int
    # that a cable carries a cycle; None: a frame takes no time
    bits_per_cycle: Fraction | None = None
    faults: Faults = field(default_factory=Faults)
    seed: int = 1
    # (from, to) → what befell its frames: "in", "lost", "doubled", "reordered", "corrupted", "down", "out"
    counts: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers: Counter[int] = Counter()
        # (cycle from which it may go out, cycle in which it came, from, number of those from there, copy of it, to,
        # frame): the order of those that may go out at once depends on no other port
        self._under_way: list[tuple[int, int, int, int, int, int, bytes]] = []
        # to → (cycle at which it has gone out whole, from, frame)
        self._leaving: dict[int, deque[tuple[Fraction, int, bytes]]] = {
            port: deque() for port in sorted(set(self.ports.values()))
        }
        # to → cycle from which its cable is free
        self._free: dict[int, Fraction] = dict.fromkeys(self._leaving, Fraction(0))

    @property
    def text(self) -> str:
        """What its twin in C++ (``ethernet.h``) reads to be the same from the start."""
        rate, faults = self.bits_per_cycle or Fraction(0), self.faults
        numbers = {
            "seed": self.seed & _MASK,
            "latency": self.latency,
            "bits": rate.numerator,
            "per_cycles": rate.denominator,
            **{name: share_of(getattr(faults, name)) for name in RATES},
        }
        lines = [f"{name} {number}" for name, number in numbers.items()]
        lines += [f"down {port} {first} {end}" for port, first, end in faults.down]
        lines += [f"port {mac} {port}" for mac, port in self.ports.items()]
        return "\n".join([*lines, ""])

    @property
    def idle(self) -> bool:
        """Whether no frame is on its way."""
        return not self._under_way and not any(self._leaving.values())

    def enter(self, port: int, frame: bytes, now: int) -> None:
        """A whole frame has come from a port, without preamble and FCS."""
        number = self._numbers[port]
        self._numbers[port] += 1
        known = self.ports.get(int.from_bytes(frame[:6], "big"))
        for target in [known] if known is not None else [other for other in self._leaving if other != port]:
            self._forward(port, target, frame, number, now)

    def leave(self, now: int) -> list[tuple[int, bytes]]:
        """(port, frame) of all that have gone out whole by this cycle since the last call, in the order of ports."""
        while self._under_way and self._under_way[0][0] <= now:
            ready, _, source, _, _, target, frame = heapq.heappop(self._under_way)
            ends = max(Fraction(ready), self._free[target]) + self._cycles(frame)
            self._free[target] = ends
            self._leaving[target].append((ends, source, frame))
        found = []
        for port, queue in self._leaving.items():
            while queue and queue[0][0] <= now:
                ends, source, frame = queue.popleft()
                if self._down(port, int(ends)):
                    self._count(source, port, "down")
                else:
                    self._count(source, port, "out")
                    found.append((port, frame))
        return found

    def _cycles(self, frame: bytes) -> Fraction:
        """Cycles that a frame occupies a cable."""
        return 8 * (len(frame) + CABLE_BYTES) / self.bits_per_cycle if self.bits_per_cycle else Fraction(0)

    def _down(self, port: int, now: int) -> bool:
        return any(port == other and first <= now < end for other, first, end in self.faults.down)

    def _count(self, source: int, target: int, what: str) -> None:
        self.counts.setdefault((source, target), Counter())[what] += 1

    def _forward(self, source: int, target: int, frame: bytes, number: int, now: int) -> None:
        """What befalls a frame on its way to one port."""

        def word(purpose: int) -> int:
            return chance(self.seed, source, number, purpose)

        faults = self.faults
        self._count(source, target, "in")
        if self._down(source, now):
            self._count(source, target, "down")
            return
        if faults.hits(faults.loss, word(Purpose.LOSS)):
            self._count(source, target, "lost")
            return
        if faults.hits(faults.corrupt, word(Purpose.CORRUPT)):
            self._count(source, target, "corrupted")
            frame = self._corrupted(frame, source, number)
        delays = [0]
        span = max(1, REORDER_LATENCIES * self.latency)
        if faults.hits(faults.reorder, word(Purpose.REORDER)):
            self._count(source, target, "reordered")
            delays = [1 + word(Purpose.DELAY) % span]
        if faults.hits(faults.duplicate, word(Purpose.DUPLICATE)):
            self._count(source, target, "doubled")
            delays.append(word(Purpose.SECOND_DELAY) % span)
        for copy, delay in enumerate(delays):
            ready = now + self.latency + delay
            heapq.heappush(self._under_way, (ready, now, source, number, copy, target, frame))

    def _corrupted(self, frame: bytes, source: int, number: int) -> bytes:
        """With 1 to `MOST_FLIPS` different bits turned over, as a MAC lets through what its FCS does not see."""
        flips = 1 + chance(self.seed, source, number, Purpose.FLIPS) % MOST_FLIPS
        places = {chance(self.seed, source, number, Purpose.PLACE + flip) % (8 * len(frame)) for flip in range(flips)}
        return bytes(
            byte ^ sum(1 << bit for bit in range(8) if 8 * at + bit in places) for at, byte in enumerate(frame)
        )
