"""What docs/ says of commands, keys of files, the API and pictures is what there is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from dagtrain import cli
from dagtrain.training.spec import DataSpec
from hdl.recipe import SETTINGS, Recipe
from placement.problem.cluster import BoardTable, ClusterTable, DeviceTable, UtilisationTable
from tests.import_support import ROOT

DOCS = ROOT / "docs"
# made for the site
MADE = {"index.md", "commands.md", "api.md"}
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.glob("*.md") if path.name not in MADE)]
# in spans of code, in indented code, behind a prompt
COMMAND = re.compile(r"(?:`|^    |^\$ |-m slow.*`|\.venv/bin/)dagtrain ([a-z]+(?:-[a-z]+)*)\b([^`\n]*)", re.MULTILINE)
MAKE = re.compile(r"`make ([\w-]+)[^`]*`|^    make ([\w-]+)", re.MULTILINE)


def rows(text: str, heading: str = "") -> Iterator[list[str]]:
    """Cells of the rows of the tables below a heading, without headings of columns."""
    if heading:
        text = text.split(f"\n{heading}", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_every_command_and_option_in_docs_is_one() -> None:
    known: dict[str, set[str]] = {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in typer.main.get_command(cli.app).commands.items()  # type: ignore[attr-defined]
    }
    found = [(page.name, *words) for page in PAGES for words in COMMAND.findall(page.read_text())]
    assert len(found) > 100
    wrong = [f"{page}: {name}" for page, name, _ in found if name not in known]
    wrong += [
        f"{page}: {name} {option}"
        for page, name, words in found
        for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", words.split("#")[0])
        if option not in known.get(name, {option}) | {"--help"}
    ]
    assert not wrong


def test_every_target_of_make_in_docs_is_one() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = {name for page in PAGES for names in MAKE.findall(page.read_text()) for name in names if name}
    assert {"demo", "test"} <= found <= targets


def told(value: Any) -> str:
    """A default as pages write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'`"{value}"`' if isinstance(value, str) else f"{value:g}"


def test_the_recipe_page_has_every_key_with_its_default() -> None:
    page = {row[0]: row[2] for row in rows((DOCS / "recipe.md").read_text())}
    assert page == {f"`{field.name}`": told(field.default) for field in fields(Recipe) if field.name in SETTINGS}


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("## `[cluster]`", ClusterTable),
        ("## `[[board]]`", BoardTable),
        ("### `[board.utilisation]`", UtilisationTable),
        ("## `[[device]]`", DeviceTable),
    ],
)
def test_the_cluster_page_has_every_key_with_its_default(heading: str, table: type[BaseModel]) -> None:
    found = {row[0].strip("`"): row[-2] for row in rows((DOCS / "cluster-file.md").read_text(), heading)}
    assert set(found) == set(table.model_fields)
    for name, field in table.model_fields.items():
        assert (found[name] == "required") == field.is_required(), name
        if isinstance(field.default, (bool, int)) or hasattr(field.default, "as_tuple"):
            assert found[name] == told(field.default), name


def test_the_data_page_has_every_key() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "data.md").read_text(), re.DOTALL)
    assert set(tomllib.loads(text)["data"]) == {field.name for field in fields(DataSpec)}


# ---- the comparison


def compared() -> Iterator[tuple[str, list[str]]]:
    """(feature, cells) of the comparison."""
    for line in (DOCS / "comparison.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 7 and cells[0] and not cells[0].startswith("---"):
            yield cells[0], cells[1:]


def test_every_feature_that_is_claimed_names_its_command() -> None:
    found = list(compared())
    assert len(found) > 25
    for feature, (own, *_) in found:
        assert own.startswith(("✓", "(✓)", "–")), feature
        assert own.startswith("–") or re.search(r"`(dagtrain|make) \w+", own), feature
    assert any(own == "–" for _, (own, *_) in found)


def test_every_statement_on_others_has_its_source() -> None:
    text = (DOCS / "comparison.md").read_text()
    defined = set(re.findall(r"^\[(\w\d)\]: ", text, re.MULTILINE))
    used = set(re.findall(r"\[(\w\d)\]", text.split("## What was read")[0]))
    assert used == defined
    for feature, (_, *others) in compared():
        for cell in others:
            assert not re.match(r"✓|\(✓\)", cell) or re.search(r"\[\w\d\]", cell), (feature, cell)


# ---- pictures

IMAGE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")
PICTURES = sorted(DOCS.glob("*.svg"))
# what text must reach against its ground
LEAST_CONTRAST = 4.5


def test_every_picture_is_shown_beside_the_command_that_makes_it() -> None:
    shown: set[str] = set()
    for page in PAGES:
        for section in re.split(r"^#+ ", page.read_text(), flags=re.MULTILINE):
            pictures = {Path(name).name for name in IMAGE.findall(section)}
            shown |= pictures
            made = re.search(r"`make \w+`|^    (?:make|\.venv/bin/)", section, re.MULTILINE)
            assert made or not pictures, (page.name, pictures)
    assert shown == {path.name for path in DOCS.iterdir() if path.suffix in (".svg", ".png", ".jpg", ".gif")}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_readable_in_both_schemes(path: Path) -> None:
    text = path.read_text()
    style = re.search(r"<style>(.*?)@media \(prefers-color-scheme: dark\) \{(.*)\}\s*</style>", text, re.DOTALL)
    assert style, f"{path.name} is drawn for one scheme"
    for rules in style.groups():
        fills = dict(re.findall(r"\.([\w-]+) \{ fill: (#\w+); \}", rules))
        (paper,) = (colour for name, colour in fills.items() if name.endswith("-paper"))
        assert re.search(r'<rect class="\w+-paper" width="(\d+)" height="(\d+)"/>', text)
        root = re.match(r'<svg class="(\w+)"', text)
        for attributes in re.findall(r"<text ([^>]*)>", text):
            own = re.search(r'class="([\w-]+)"', attributes)
            drawn = re.search(r'fill="(#?\w+)"', attributes)
            name = own[1] if own else root[1] if root else ""
            # text of a colour of its own stands on a coloured ground, the same in both schemes
            assert drawn or contrast(fills[name], paper) >= LEAST_CONTRAST, attributes


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 defines it."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
