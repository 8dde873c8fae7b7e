"""Choices of data or model parallelism as an SVG picture: a column a layer, a row a level, as in HyPar's Figure 5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

CELL, LEFT, TOP, BOTTOM, MARGIN = 26, 44, 56, 10, 8
CHARACTER_WIDTH = 6.2
# white text on them has a contrast of 4.5 at least
COLOURS = {0: "#416d9c", 1: "#b35900"}
WORDS = {0: "dp", 1: "mp"}
STYLE = """<style>
.parallelism-paper { fill: #ffffff; } .parallelism { fill: #22262c; }
@media (prefers-color-scheme: dark) { .parallelism-paper { fill: #16191d; } .parallelism { fill: #d5dae1; } }
</style>"""


def parallelism_picture(name: str, columns: Mapping[str, Sequence[int]]) -> str:
    """Layer -> choice at H1, H2, …"""
    levels = max(len(column) for column in columns.values())
    names_height = CHARACTER_WIDTH * max(map(len, columns))
    width = LEFT + CELL * len(columns) + MARGIN
    height = TOP + CELL * levels + names_height + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'height="{height:.0f}" font-family="sans-serif" font-size="11">',
        STYLE,
        '<rect class="parallelism-paper" width="100%" height="100%"/>',
        f'<text class="parallelism" x="{MARGIN}" y="18" font-size="13">{escape(name)}</text>',
        *_legend(),
        *(
            f'<text class="parallelism" x="{MARGIN}" y="{TOP + CELL * level + 17}">H{level + 1}</text>'
            for level in range(levels)
        ),
    ]
    for index, (layer, column) in enumerate(columns.items()):
        parts += _column(layer, column, LEFT + CELL * index)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    for choice, words in ((0, "data parallelism (dp)"), (1, "model parallelism (mp)")):
        x = MARGIN + 160 * choice
        yield f'<rect x="{x}" y="28" width="12" height="12" fill="{COLOURS[choice]}"/>'
        yield f'<text class="parallelism" x="{x + 17}" y="38">{words}</text>'


def _column(layer: str, column: Sequence[int], x: float) -> Iterator[str]:
    for level, choice in enumerate(column):
        y = TOP + CELL * level
        yield (
            f'<g><title>{escape(layer)} at H{level + 1}: {WORDS[choice]}</title><rect x="{x}" y="{y}" '
            f'width="{CELL - 2}" height="{CELL - 2}" fill="{COLOURS[choice]}"/><text x="{x + CELL / 2 - 1}" '
            f'y="{y + 16}" fill="#ffffff" text-anchor="middle" font-size="10">{WORDS[choice]}</text></g>'
        )
    foot = TOP + CELL * len(column) + 4
    middle = x + CELL / 2 + 2
    yield (
        f'<text class="parallelism" transform="translate({middle} {foot}) rotate(-90)" text-anchor="end">'
        f"{escape(layer)}</text>"
    )
