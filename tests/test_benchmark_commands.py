"""Commands of benchmarks that docs, and benchmarks themselves, tell: every one can be typed."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

import pytest

from tests.import_support import ROOT

COMMAND = re.compile(r"python (?:-m benchmarks\.|benchmarks/)(\w+)(?:\.py)?")
PAGES = ("README.md", "CHANGELOG.md", "docs/*.md", "benchmarks/*.py", "examples/**/*.toml")
# of extras that the tests are not installed with
EXTRA = {"torch_step"}


@cache
def told() -> dict[str, str]:
    """Command -> the benchmark that it runs."""
    pages = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    return {match[0]: match[1] for page in pages for match in COMMAND.finditer(page.read_text())}


def test_benchmarks_that_are_told_are_there() -> None:
    assert len(told()) > 30
    assert [name for name in told().values() if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(command for command, name in told().items() if name not in EXTRA))
def test_every_command_helps(command: str) -> None:
    """As it is typed in the project's folder: a script of benchmarks/ has that folder in front of the packages."""
    words = [sys.executable, *command.split()[1:], "--help"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("usage: ")
