"""The cache folder stays within its limit, and keeps what somebody may be at work with."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hdl import cache
from hdl.cache import DAY_S, cache_folder, prune

SIZE = 100


def fill(folder: Path, ages_s: dict[str, float]) -> None:
    """Files of `SIZE` bytes by the seconds since they were used."""
    for name, age in ages_s.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(SIZE))
        os.utime(path, (time.time() - age,) * 2)


def kept(folder: Path) -> set[str]:
    """Names of the files that are left."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_was_used_least_recently_goes_and_what_was_used_today_stays(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {"a/oldest": 4 * DAY_S, "b/c/old": 3 * DAY_S, "a/later": 2 * DAY_S, "a/new": 60, "database": 9 * DAY_S},
    )
    prune(tmp_path, 4 * SIZE)
    assert kept(tmp_path) == {"a/oldest", "b/c/old", "a/later", "a/new", "database"}
    prune(tmp_path, 3 * SIZE - 1)
    assert kept(tmp_path) == {"a/later", "a/new", "database"}
    prune(tmp_path, 0)
    assert kept(tmp_path) == {"a/new", "database"}


def test_reading_a_file_is_a_use(tmp_path: Path) -> None:
    fill(tmp_path, {"a/read": 4 * DAY_S, "a/unread": 3 * DAY_S})
    os.utime(tmp_path / "a/read", (time.time() - 2 * DAY_S, time.time() - 4 * DAY_S))
    prune(tmp_path, SIZE)
    assert kept(tmp_path) == {"a/read"}


def test_it_is_pruned_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGTRAIN_CACHE", str(tmp_path))
    pruned: list[Path] = []
    monkeypatch.setattr(cache, "prune", pruned.append)
    assert [cache_folder(), cache_folder()] == [tmp_path, tmp_path]
    assert pruned == [tmp_path]
    os.utime(tmp_path / "pruned", (time.time() - DAY_S - 1,) * 2)
    cache_folder()
    assert len(pruned) == 2
