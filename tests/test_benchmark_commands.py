"""Commands of benchmarks that docs, and benchmarks themselves, tell: every one can be typed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from tests.import_support import ROOT

COMMAND = re.compile(r"python (?:-m benchmarks\.(\w+)|benchmarks/(\w+)\.py)")
PAGES = ("README.md", "CHANGELOG.md", "docs/*.md", "benchmarks/*.py", "examples/**/*.toml")
# of an extra that the tests are not installed with
EXTRA = {"torch_step"}


@cache
def told() -> dict[str, str]:
    """Command -> the first page that tells it."""
    found: dict[str, str] = {}
    for page in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        for match in COMMAND.finditer(page.read_text()):
            found.setdefault(match[0], str(page.relative_to(ROOT)))
    return found


def words(command: str) -> Iterator[str]:
    """Behind python's name."""
    yield from command.split()[1:]


def test_benchmarks_that_are_told_are_there() -> None:
    assert len(told()) > 30
    missing = {
        command: page
        for command, page in told().items()
        if not (ROOT / "benchmarks" / f"{next(filter(None, COMMAND.fullmatch(command).groups()))}.py").exists()  # type: ignore[union-attr]
    }
    assert missing == {}


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(told()))
def test_every_command_helps(command: str) -> None:
    """As it is typed in the project's folder: a script of benchmarks/ has that folder in front of the packages."""
    if any(command.endswith((f".{name}", f"/{name}.py")) for name in EXTRA):
        pytest.skip("needs an extra")
    ran = subprocess.run(
        [sys.executable, *words(command), "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("usage: ")
