"""Contents of circuits on disk, by key: a cache, without which all goes on, only slower."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hdl.costs.resources import Resources

# seconds to wait for another process that writes
LOCK_TIMEOUT_S = 30.0

Found = TypeVar("Found")
log = logging.getLogger(__name__)


class Kept:
    """Contents by key in an SQLite file (":memory:" keeps nothing).

    A file that can't be used (damaged, locked, of another user, on a full disk) is told of once and left alone from
    then on."""

    def __init__(self, path: Path | str, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = path
        self._database = self._used(lambda: _opened(path, timeout_s))

    def load(self, key: str) -> Resources | None:
        """What is kept under the key; None: nothing."""
        if (database := self._database) is None:
            return None
        wanted = "SELECT contents FROM resources WHERE key = ?"
        row = self._used(lambda: database.execute(wanted, (key,)).fetchone())
        return _from_json(row[0]) if row else None

    def keep(self, key: str, contents: Resources) -> None:
        """Put contents under the key."""
        if (database := self._database) is None:
            return

        def write() -> None:
            with database:
                database.execute("INSERT OR REPLACE INTO resources VALUES (?, ?)", (key, _to_json(contents)))

        self._used(write)

    def _used(self, work: Callable[[], Found]) -> Found | None:
        """What ``work`` on the file gives; None, and no more work on it, where it can't be used."""
        try:
            return work()
        except sqlite3.Error as error:
            self._database = None
            cure = "nothing is lost; if this comes again, delete the file"
            log.warning("%s: %s; costs of circuits are computed anew (%s)", self.path, error, cure)
            return None


def _opened(path: Path | str, timeout_s: float) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=timeout_s)
    # readers and a writer don't wait for each other, and a circuit more costs no wait for the disk
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE IF NOT EXISTS resources (key TEXT PRIMARY KEY, contents TEXT)")
    return database


_SHAPED = (
    *("multipliers", "memories", "dual_memories", "memory_registers"),
    *("constant_multipliers", "constants", "bare_bits", "shared_bits"),
    *("multiplier_registers", "product_sums", "output_registers"),
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
        record[name] = {tuple(shape): number for *shape, number in record[name]}
    record["tables"] = dict(record["tables"])
    return Resources(**record)
