"""What of a family of cases `make test` runs; `make test-slow` runs the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(count: int, cases: Iterable[Any], id: Callable[[Any], str] | None = None) -> list[Any]:
    """The first cases, and behind them the others, marked as slow."""
    found = []
    for at, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.slow] * (at >= count)
        found.append(pytest.param(*values, marks=marks, id=id(case) if id else None))
    return found
