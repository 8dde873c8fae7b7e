"""Contents of circuits by configuration, kept on disk: elaborated once for each version of the code.

The key is the configuration's text and the fingerprint of all circuit code (`hdl.cache`), so a change of any
circuit forgets what was known.
"""

from __future__ import annotations

import gc
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from hdl.cache import cache_folder, code_hash
from hdl.costs.resources import Resources, count
from hdl.elaboration.patches import forgotten_signals
from hdl.elaboration.processes import in_processes
from hdl.layers.base import Layer
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.stream import Stream

# seconds to wait for another process that writes
LOCK_TIMEOUT_S = 30.0


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
        self._database = sqlite3.connect(path or cache_folder() / "resources.sqlite", timeout=LOCK_TIMEOUT_S)
        self._database.execute("CREATE TABLE IF NOT EXISTS resources (key TEXT PRIMARY KEY, contents TEXT)")

    def layer(self, layer: Layer) -> Resources:
        """The contents of a layer's circuit."""
        return self._contents(Circuit.of_layer(layer)) if layer.sinks and layer.sources else Resources()

    def prepare(self, wanted: Mapping[str, Circuit], on_done: Callable[[int], None] = lambda _: None) -> None:
        """Elaborate the circuits that aren't known yet, in several processes where that pays; by their keys.

        ``on_done`` gets the number of circuits that just became known; what it raises ends the work, and what is known
        by then is kept."""
        missing = {key: circuit for key, circuit in wanted.items() if key not in self._known and not self._load(key)}
        on_done(len(wanted) - len(missing))
        # closed at once when it is interrupted, also where the traceback of that lives on
        with closing(in_processes(_elaborated, missing, LEAST_TO_START)) as results:
            for key, contents in results:
                self._known[key] = contents
                self._keep(key, contents)
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
        if key not in self._known:
            found = self._load(key)
            if found is None:
                found = _elaborated(circuit)
                self._keep(key, found)
            self._known[key] = found
        return self._known[key]

    def _keep(self, key: str, contents: Resources) -> None:
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO resources VALUES (?, ?)", (key, _to_json(contents)))

    def _load(self, key: str) -> Resources | None:
        row = self._database.execute("SELECT contents FROM resources WHERE key = ?", (key,)).fetchone()
        return _from_json(row[0]) if row else None


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


_SHAPED = (
    *("multipliers", "memories", "dual_memories", "memory_registers"),
    *("constant_multipliers", "constants", "bare_bits", "shared_bits"),
)


def _to_json(resources: Resources) -> str:
    record = {name: getattr(resources, name) for name in Resources.__dataclass_fields__}
    for name in _SHAPED:
        record[name] = [[*shape, number] for shape, number in record[name].items()]
    record["tables"] = list(record["tables"].items())
    return json.dumps(record)


def _from_json(text: str) -> Resources:
    record = json.loads(text)
    for name in _SHAPED:
        record[name] = {(a, b): number for a, b, number in record[name]}
    record["tables"] = dict(record["tables"])
    return Resources(**record)
