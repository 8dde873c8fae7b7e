"""Set-up of every test process."""

from __future__ import annotations

import gc
import signal

import pytest

# allocations, and collections of the younger generation, after which Python looks for cycles: MyHDL makes millions of
# objects that live as long as their test, and to look through them all at Python's own pace takes a fifth of the time
RARELY = 50_000, 50, 100


def pytest_configure() -> None:
    """Ctrl-C interrupts, also where the shell started this process in the background with SIGINT ignored: tests send
    it, and child processes inherit what holds here."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their file run in one process, where it is made once."""
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("xdist_group"):
            used = item._fixtureinfo.name2fixturedefs.values()
            if any(fixture.scope == "module" for fixtures in used for fixture in fixtures):
                item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and collected tests stay until the end: the collector need not look at them again.

    The run stops where pytest-xdist doesn't tell groups of tests in this pytest: each process would make all that they
    share for itself."""
    if getattr(session.config.option, "loadgroup", False):
        grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
        if not all("@" in item.nodeid for item in grouped):
            session.shouldstop = "groups of tests are lost between pytest-xdist and this pytest; run `make setup`"
    gc.collect()
    gc.freeze()
    gc.set_threshold(*RARELY)
