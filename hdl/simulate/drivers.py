"""Seeded random sources and sinks of streams, and the bench that steps them all once a clock cycle.

Independent of any simulator: a bench gets the values just before a clock edge and says what to drive after it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from hdl.errors import ContractViolation, DeadlockError
from hdl.simulate.design import Design, Run
from hdl.streams.checker import StreamChecker

# clock edges with reset high at the start of every run
RESET_CYCLES = 4
# share of beats for which a stalling sink waits for ``valid`` before it gives ``ready``
PATIENT_SHARE = 0.25
# every so many cycles one stream is probed between two clock edges
PROBE_CYCLES = 4


class Source:
    """Offers beats in order; waits a random number of cycles before each, with garbage as payload."""

    def __init__(self, name: str, width: int, beats: Sequence[int], rng: random.Random, stall: float) -> None:
        for index, beat in enumerate(beats):
            if not 0 <= beat < 1 << width:
                raise ValueError(f"beat {index} of stream {name} is {beat:#x}, which is not {width} bits")
        self.name, self.width, self.beats = name, width, beats
        self._rng, self._stall = rng, stall
        self.checker = StreamChecker(name)
        self.taken = 0
        self.fires: list[int] = []
        self.valid = False
        self.payload = 0

    def step(self, cycle: int, ready: bool) -> None:
        """One clock edge: afterwards `valid` and `payload` are what to drive."""
        if self.checker.observe(cycle, self.valid, ready, self.payload):
            self.fires.append(cycle)
            self.taken += 1
            self.valid = False
        self.offer()

    def offer(self) -> None:
        """Decide about the next cycle unless a beat is waiting."""
        if self.valid:
            return
        self.valid = self.taken < len(self.beats) and self._rng.random() >= self._stall
        self.payload = self.beats[self.taken] if self.valid else self._rng.getrandbits(self.width)

    def missing(self) -> str:
        """The progress, for a message."""
        return f"input {self.name}: {self.taken} of {len(self.beats)} beats taken"


class Sink:
    """Takes beats at random times; now and then gives ``ready`` only after it has seen ``valid``."""

    def __init__(self, name: str, expected: int | None, rng: random.Random, stall: float) -> None:
        self.name, self.expected = name, expected
        self._rng, self._stall = rng, stall
        self.checker = StreamChecker(name)
        self._patient = False
        self.beats: list[int] = []
        self.fires: list[int] = []
        self.ready = stall == 0

    def step(self, cycle: int, valid: bool, payload: int) -> None:
        """One clock edge: afterwards `ready` is what to drive.  Raises `ContractViolation`."""
        if self.checker.observe(cycle, valid, self.ready, payload):
            self.beats.append(payload)
            self.fires.append(cycle)
            self._patient = self._stall > 0 and self._rng.random() < PATIENT_SHARE
            if self.expected is not None and len(self.beats) > self.expected:
                raise ContractViolation(
                    f"output {self.name}, cycle {cycle}: beat {len(self.beats)} came, only {self.expected} expected"
                )
        self.ready = self._rng.random() >= self._stall and (valid or not self._patient)

    @property
    def done(self) -> bool:
        """All expected beats came."""
        return self.expected is None or len(self.beats) >= self.expected

    def missing(self) -> str:
        """The progress, for a message."""
        wanted = "any number" if self.expected is None else str(self.expected)
        return f"output {self.name}: {len(self.beats)} of {wanted} beats"


class Bench:
    """All sources and sinks of a design."""

    def __init__(
        self,
        design: Design,
        inputs: Mapping[str, Sequence[int]],
        expected: Mapping[str, int],
        seed: int,
        stall: float,
        max_cycles: int,
        drain: int,
    ) -> None:
        check_names(design, inputs, expected)
        self.design, self._max_cycles, self._drain = design, max_cycles, drain
        rngs = {port.name: random.Random(f"{seed}/{port.name}") for port in design.streams}
        self.sources = [Source(p.name, p.width, inputs[p.name], rngs[p.name], stall) for p in design.inputs]
        self.sinks = [Sink(p.name, expected.get(p.name), rngs[p.name], stall) for p in design.outputs]
        self.cycle = 0
        self._done_at: int | None = None

    def finished(self) -> bool:
        """Call after each step.  Raises `DeadlockError` at the cycle limit."""
        if self._done_at is None and all(sink.done for sink in self.sinks):
            self._done_at = self.cycle
        if self._done_at is not None:
            return self.cycle >= self._done_at + self._drain
        if self.cycle >= self._max_cycles:
            raise DeadlockError(deadlock(self.design.name, self.cycle, [p.missing() for p in self.progress()]))
        return False

    def progress(self) -> list[Source | Sink]:
        """Everything that can be stuck."""
        return [*self.sources, *self.sinks]

    def result(self) -> Run:
        """What came out."""
        fires = {port.name: port.fires for port in self.progress()}
        assert self._done_at is not None
        return Run({sink.name: sink.beats for sink in self.sinks}, fires, self._done_at)


def check_names(design: Design, inputs: Mapping[str, Sequence[int]], expected: Mapping[str, int]) -> None:
    """Beats for every input, counts only for outputs, at least one count.  Raises ValueError."""
    names_in, names_out = {p.name for p in design.inputs}, {p.name for p in design.outputs}
    if set(inputs) != names_in:
        raise ValueError(f"{design.name}: inputs are {sorted(names_in)}, beats were given for {sorted(inputs)}")
    if not expected or not set(expected) <= names_out:
        raise ValueError(f"{design.name}: outputs are {sorted(names_out)}, counts were given for {sorted(expected)}")


def deadlock(name: str, cycles: int, progress: Sequence[str]) -> str:
    """The message of a `DeadlockError`."""
    return f"{name}: not done after {cycles} cycles: " + "; ".join(progress)
