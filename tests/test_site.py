"""docs/ builds as a site without a warning: every page is reached, no link is broken, commands and API are in it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
import typer

import dagtrain.api
import dagtrain.flow
from dagtrain import cli
from tests.import_support import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    # a warning is an error: a link that leads nowhere, a page that nobody names
    words = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        out / "trees",
        ROOT / "docs",
        out / "html",
    ]
    built = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert built.returncode == 0, built.stderr
    return out / "html"


class Fetched(HTMLParser):
    """What a page loads from elsewhere when it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects addresses."""
        given = dict(attrs)
        address = (
            given.get("src") if tag in ("script", "img", "iframe") else given.get("href") if tag == "link" else None
        )
        if address and re.match(r"(https?:)?//", address):
            self.found.append(address)


def test_all_pages_are_there_and_fetch_nothing(site: Path) -> None:
    pages = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "commands", "api", "search"} <= pages
    for path in site.glob("*.html"):
        fetched = Fetched()
        fetched.feed(path.read_text())
        assert not fetched.found, path


def test_commands_and_api_are_made_of_the_code(site: Path) -> None:
    names = [command.name or getattr(command.callback, "__name__", "") for command in cli.app.registered_commands]
    text = re.sub(r"<[^>]*>", "", (site / "commands.html").read_text())
    assert all(f"dagtrain {name}" in text for name in names), text
    sections = dict(
        re.findall(
            r"^## `dagtrain ([\w-]+)`\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "commands.md").read_text(), re.M | re.S
        )
    )
    for name, command in typer.main.get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        missing = [
            option
            for parameter in command.params
            for option in parameter.opts
            if option[:2] == "--" and option not in sections[name]
        ]
        assert not missing, (name, missing)
    api = (site / "api.html").read_text()
    assert all(word in api for word in ("throughput_fps", "device_of", "time_limit_seconds", "wave_frames"))
    # what methods return, and the options that they take
    shown = [
        kind
        for name, kind in vars(dagtrain.api).items()
        if inspect.isclass(kind) and kind.__module__ == "dagtrain.api" and name[0] != "_"
    ]
    steps = [import_module(f"dagtrain.flow.{module.name}") for module in iter_modules(dagtrain.flow.__path__)]
    flow = [kind for step in steps for name, kind in vars(step).items() if name.endswith("Options")]
    shown += [kind for kind in flow if kind.__module__.startswith("dagtrain.flow")]
    assert len(shown) > 15
    assert not [kind for kind in shown if f'id="{kind.__module__}.{kind.__name__}"' not in api]


def test_the_search_knows_words_of_all_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert all(word in index for word in ("deadlock", "staleness", "probe", "cluster", "leakyrelu"))
