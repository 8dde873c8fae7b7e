"""Jobs that tests have run in other processes: functions of a module that those can import."""

from __future__ import annotations

import os
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from hdl.errors import DagtrainError


def square(number: int) -> int:
    """The square."""
    return number * number


def where(_: int) -> tuple[int, tuple[int, ...]]:
    """Process and cores."""
    return os.getpid(), tuple(sorted(os.sched_getaffinity(0)))


def refused(number: int) -> int:
    """Fails on purpose where the number is odd."""
    if number % 2:
        raise DagtrainError(f"{number} is odd", "double it")
    return number


def broken(number: int) -> float:
    """A fault of the program."""
    return 1 / number


def forgetful(_: int) -> None:
    """A fault of the program: what it imports is not there."""
    import_module("no_such_module")


def killed_at_first(number: int, folder: Path, times: int) -> int:
    """The square, but its first tries kill the worker as a system does that is out of memory."""
    tried = folder / f"tried-{number}"
    count = len(tried.read_text()) if tried.exists() else 0
    tried.write_text("x" * (count + 1))
    if count < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def noted(number: int, folder: Path, seconds: float) -> int:
    """The square after a while; notes its process before."""
    (folder / f"{number}-{os.getpid()}").touch()
    time.sleep(seconds)
    return number * number


def total(shared: Any, number: int) -> int:
    """Of what all jobs have in common."""
    return int(shared.sum()) + number


def program() -> str:
    """Fingerprint of sources."""
    return "the same"


def program_of_its_process() -> str:
    """As if each process had other sources."""
    return str(os.getpid())
