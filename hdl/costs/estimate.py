"""Contents of circuits by configuration, kept on disk: elaborated once for each version of the code.

The key is the configuration's text and the fingerprint of all circuit code (`hdl.cache`), so a change of any
circuit forgets what was known.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from hdl.cache import cache_folder, code_hash
from hdl.costs.kept import Kept
from hdl.costs.resources import Resources, count
from hdl.elaboration.patches import forgotten_signals
from hdl.elaboration.processes import in_processes
from hdl.layers.base import Layer
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.stream import Stream

# circuits that are worth starting processes for: most are small
LEAST_TO_START = 48

Builder: TypeAlias = Callable[[ClockReset, Mapping[str, Stream]], Any]


@dataclass(frozen=True)
class Circuit:
    """A block between streams of these payload widths; the text must determine it."""

    configuration: str
    widths: Mapping[str, int]
    # can be sent to another process
    build: Builder
    # of an engine
    multipliers: int = 0

    @classmethod
    def of_layer(cls, layer: Layer) -> Circuit:
        """The circuit of a layer that has sinks and sources."""
        built = layer.built
        widths = {port.name: port.payload_bits for port in (*built.sinks, *built.sources, *built.beside)}
        return cls(repr(built), widths, built.circuit, built.multipliers)

    @property
    def key(self) -> str:
        """What determines it, the code of all circuits included."""
        return f"{code_hash()}|{self.configuration}|{sorted(self.widths.items())}"


class Contents(Protocol):
    """Whoever tells contents of circuits."""

    def layer(self, layer: Layer) -> Resources:
        """The contents of a layer's circuit."""

    def block(self, configuration: str, widths: Mapping[str, int], build: Builder) -> Resources:
        """The contents of any block between streams of these payload widths; the text must determine the circuit.

        ``build`` must be something that can be sent to another process."""


class Wanted:
    """Takes an estimator's place, and notes what it is asked for: every circuit is empty."""

    def __init__(self) -> None:
        # by key
        self.circuits: dict[str, Circuit] = {}

    def layer(self, layer: Layer) -> Resources:
        """Of a layer."""
        return self._note(Circuit.of_layer(layer)) if layer.sinks and layer.sources else Resources()

    def block(self, configuration: str, widths: Mapping[str, int], build: Builder) -> Resources:
        """Of any block."""
        return self._note(Circuit(configuration, widths, build))

    def _note(self, circuit: Circuit) -> Resources:
        self.circuits[circuit.key] = circuit
        return Resources()


class Estimator:
    """Contents of layers and other blocks; ``path`` is an SQLite file (":memory:" keeps nothing)."""

    def __init__(self, path: Path | str | None = None) -> None:
        self._known: dict[str, Resources] = {}
        self._kept = Kept(path or cache_folder() / "resources.sqlite")

    def layer(self, layer: Layer) -> Resources:
        """The contents of a layer's circuit."""
        return self._contents(Circuit.of_layer(layer)) if layer.sinks and layer.sources else Resources()

    def prepare(self, wanted: Mapping[str, Circuit], on_done: Callable[[int], None] = lambda _: None) -> None:
        """Elaborate the circuits that aren't known yet, in several processes where that pays; by their keys.

        ``on_done`` gets the number of circuits that just became known; what it raises ends the work, and what is known
        by then is kept."""
        missing = {key: circuit for key, circuit in wanted.items() if not self._is_known(key)}
        on_done(len(wanted) - len(missing))
        # closed at once when it is interrupted, also where the traceback of that lives on
        with closing(in_processes(_elaborated, missing, LEAST_TO_START)) as results:
            for key, contents in results:
                self._known[key] = contents
                self._kept.keep(key, contents)
                on_done(1)
        for key, circuit in missing.items():
            if key not in self._known:
                self._contents(circuit)
                on_done(1)

    def block(self, configuration: str, widths: Mapping[str, int], build: Builder) -> Resources:
        """The contents of any block between streams of these payload widths; the text must determine the circuit."""
        return self._contents(Circuit(configuration, widths, build))

    def _contents(self, circuit: Circuit) -> Resources:
        key = circuit.key
        if not self._is_known(key):
            self._known[key] = _elaborated(circuit)
            self._kept.keep(key, self._known[key])
        return self._known[key]

    def _is_known(self, key: str) -> bool:
        """Whether it need not be elaborated."""
        if key not in self._known and (kept := self._kept.load(key)) is not None:
            self._known[key] = kept
        return key in self._known


def elaborated_contents(widths: Mapping[str, int], build: Builder) -> Resources:
    """The contents of a block between streams of these payload widths, elaborated for the count alone."""
    streams = {name: Stream(width) for name, width in widths.items()}
    with _uncollected(), unsimulated(), forgotten_signals():
        return count(build(ClockReset(), streams))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Cyclic garbage waits until a circuit is counted: none of it could go before, and looking for it takes a tenth."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _elaborated(circuit: Circuit) -> Resources:
    return elaborated_contents(circuit.widths, circuit.build)
