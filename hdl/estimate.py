"""Contents of circuits by configuration, kept on disk: elaborated once for each version of the code.

The key is the configuration's text and the fingerprint of all circuit code (`hdl.sources`), so a change of any
circuit forgets what was known.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from myhdl import Signal

from hdl.elaboration import forgotten_signals
from hdl.layers.base import Layer
from hdl.memory import only_counted
from hdl.resources import Resources, count
from hdl.simulate.design import cache_folder
from hdl.sources import COUNTING, code_hash
from hdl.stream import Stream

# seconds to wait for another process that writes
LOCK_TIMEOUT_S = 30.0


class Estimator:
    """Contents of layers and other blocks; ``path`` is an SQLite file (":memory:" keeps nothing)."""

    def __init__(self, path: Path | str | None = None) -> None:
        self._known: dict[str, Resources] = {}
        self._database = sqlite3.connect(path or cache_folder() / "resources.sqlite", timeout=LOCK_TIMEOUT_S)
        self._database.execute("CREATE TABLE IF NOT EXISTS resources (key TEXT PRIMARY KEY, contents TEXT)")

    def layer(self, layer: Layer) -> Resources:
        """The contents of a layer's circuit."""
        beside = [port for ring in layer.rings for port in (ring.back, ring.out)]
        widths = {port.name: port.payload_bits for port in (*layer.sinks, *layer.sources, *beside)}
        if not (layer.sinks and layer.sources):
            return Resources()
        return self.block(repr(layer), widths, lambda clk, rst, streams: layer.circuit(clk, rst, streams))

    def block(
        self, configuration: str, widths: Mapping[str, int], build: Callable[[Any, Any, Mapping[str, Stream]], Any]
    ) -> Resources:
        """The contents of any block between streams of these payload widths; the text must determine the circuit."""
        key = f"{code_hash(COUNTING)}|{configuration}|{sorted(widths.items())}"
        if key not in self._known:
            self._known[key] = self._load(key) or self._elaborate(key, widths, build)
        return self._known[key]

    def _elaborate(
        self, key: str, widths: Mapping[str, int], build: Callable[[Any, Any, Mapping[str, Stream]], Any]
    ) -> Resources:
        streams = {name: Stream(width) for name, width in widths.items()}
        with only_counted(), forgotten_signals():
            found = count(build(Signal(bool(0)), Signal(bool(0)), streams))
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO resources VALUES (?, ?)", (key, _to_json(found)))
        return found

    def _load(self, key: str) -> Resources | None:
        row = self._database.execute("SELECT contents FROM resources WHERE key = ?", (key,)).fetchone()
        return _from_json(row[0]) if row else None


_SHAPED = ("multipliers", "memories", "roms", "memory_registers", "constant_multipliers")


def _to_json(resources: Resources) -> str:
    record = {name: getattr(resources, name) for name in Resources.__dataclass_fields__}
    for name in _SHAPED:
        record[name] = [[*shape, number] for shape, number in record[name].items()]
    return json.dumps(record)


def _from_json(text: str) -> Resources:
    record = json.loads(text)
    for name in _SHAPED:
        record[name] = {(a, b): number for a, b, number in record[name]}
    return Resources(**record)
