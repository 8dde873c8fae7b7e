"""Set-up of every test process."""

from __future__ import annotations

import gc
import signal

# allocations, and collections of the younger generation, after which Python looks for cycles: MyHDL makes millions of
# objects that live as long as their test, and to look through them all at Python's own pace takes a fifth of the time
RARELY = 50_000, 50, 100


def pytest_configure() -> None:
    """Ctrl-C interrupts, also where the shell started this process in the background with SIGINT ignored: tests send
    it, and child processes inherit what holds here."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Modules and collected tests stay until the end: the collector need not look at them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*RARELY)
