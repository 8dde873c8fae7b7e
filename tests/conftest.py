"""Set-up of every test process."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C interrupts, also where the shell started this process in the background with SIGINT ignored: tests send
    it, and child processes inherit what holds here."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
