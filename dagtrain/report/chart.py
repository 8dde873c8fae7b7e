"""Line charts as SVG text: axes with round numbers, one line a series, points where a series has only one, and rings
that have names."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]
# name -> place
Rings = Mapping[str, tuple[float, float]]

WIDTH = 560
HEIGHT = 280
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 34, 42
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")
STYLE = """<style>
.chart-paper { fill: #ffffff; } .chart { fill: #22262c; } .chart-grid { stroke: #dddddd; }
@media (prefers-color-scheme: dark) { .chart-paper { fill: #16191d; } .chart { fill: #d5dae1; }
.chart-grid { stroke: #3a414a; } }
</style>"""
# lines that a chart with more points than this draws without markers
MOST_MARKERS = 40
# decades of a logarithmic axis with ticks between the powers of ten
MOST_FINE_DECADES = 4


@dataclass(frozen=True)
class Axis:
    """A range with round tick values that cover it."""

    ticks: tuple[float, ...]
    # whether equal steps are equal factors
    logarithmic: bool = False

    @property
    def low(self) -> float:
        """Value at the start."""
        return self.ticks[0]

    @property
    def high(self) -> float:
        """Value at the end."""
        return self.ticks[-1]

    def share(self, value: float) -> float:
        """Place of a value, 0 at the start and 1 at the end."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def axis(low: float, high: float, most_ticks: int = 7) -> Axis:
    """Ticks at multiples of 1, 2 or 5 times a power of ten that enclose [low, high]; a single value gets room."""
    if high <= low:
        pad = abs(low) / 2 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / max(1, most_ticks - 2)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(tuple(step * index for index in range(first, last + 1)))


def logarithmic_axis(low: float, high: float) -> Axis:
    """Ticks at 1, 2 and 5 times powers of ten that enclose [low, high], which is positive; over many decades only at
    the powers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= MOST_FINE_DECADES else (1,)
    fine = [factor * 10.0**power for power in range(first, max(last, first + 1) + 1) for factor in factors]
    start = max(tick for tick in fine if tick <= low * (1 + 1e-9))
    end = min(tick for tick in fine if tick >= high * (1 - 1e-9) and tick > start)
    return Axis(tuple(tick for tick in fine if start <= tick <= end), logarithmic=True)


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Points],
    logarithmic: bool = False,
    unmarked: Collection[str] = (),
    rings: Mapping[str, Rings] | None = None,
) -> str:
    """The SVG text of a chart.  Points that are not finite interrupt their line; a chart without any says so.

    ``logarithmic``: both axes, for positive values.  ``unmarked``: series of lines without points on them.
    ``rings``: drawn in the colour of a series, by its name; theirs appear on hovering."""
    rings = rings or {}
    every = (*series.values(), *(list(each.values()) for each in rings.values()))
    finite = [point for points in every for point in points if all(map(math.isfinite, point))]
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="11" role="img"><title>{escape(title)}</title>',
        STYLE,
        f'<rect class="chart-paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="{LEFT}" y="14" font-weight="bold">{escape(title)}</text>',
    ]
    if finite:
        scale = logarithmic_axis if logarithmic else axis
        across = scale(min(x for x, _ in finite), max(x for x, _ in finite))
        upwards = scale(min(y for _, y in finite), max(y for _, y in finite))
        parts += [
            *_grid(across, upwards, x_label, y_label),
            *_lines(series, across, upwards, unmarked),
            *_rings(rings, list(series), across, upwards),
            *_legend(series),
        ]
    else:
        parts.append(f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT / 2:.0f}" text-anchor="middle">no finite values</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(across: Axis, value: float) -> float:
    return LEFT + across.share(value) * (WIDTH - LEFT - RIGHT)


def _y(upwards: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - upwards.share(value) * (HEIGHT - TOP - BOTTOM)


def _grid(across: Axis, upwards: Axis, x_label: str, y_label: str) -> Iterator[str]:
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    for tick in upwards.ticks:
        y = _y(upwards, tick)
        yield f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="chart-grid"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
    for tick in across.ticks:
        x = _x(across, tick)
        yield f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}" stroke="#888888"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_number(tick)}</text>'
    yield f'<path d="M{left},{top} V{bottom} H{right}" fill="none" stroke="#888888"/>'
    yield f'<text x="{(left + right) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    middle = (top + bottom) / 2
    yield (
        f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">'
        f"{escape(y_label)}</text>"
    )


def _lines(series: Mapping[str, Points], across: Axis, upwards: Axis, unmarked: Collection[str]) -> Iterator[str]:
    for index, (name, points) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path, pen = [], "M"
        for x, y in points:
            if math.isfinite(x) and math.isfinite(y):
                path.append(f"{pen}{_x(across, x):.1f},{_y(upwards, y):.1f}")
                pen = "L"
            else:
                pen = "M"
        if path:
            yield f'<path d="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        if len(path) <= MOST_MARKERS and name not in unmarked:
            for x, y in points:
                if math.isfinite(x) and math.isfinite(y):
                    yield (
                        f'<circle cx="{_x(across, x):.1f}" cy="{_y(upwards, y):.1f}" r="3" fill="{colour}">'
                        f"<title>{escape(name)}: {_number(y)} at {_number(x)}</title></circle>"
                    )


def _rings(rings: Mapping[str, Rings], series: Sequence[str], across: Axis, upwards: Axis) -> Iterator[str]:
    for of, each in rings.items():
        colour = COLOURS[series.index(of) % len(COLOURS)]
        for name, (x, y) in each.items():
            yield (
                f'<circle cx="{_x(across, x):.1f}" cy="{_y(upwards, y):.1f}" r="4" fill="transparent" '
                f'stroke="{colour}" stroke-width="1.5">'
                f"<title>{escape(name)} ({escape(of)}): {_number(y)} at {_number(x)}</title></circle>"
            )


def _legend(series: Mapping[str, Points]) -> Iterator[str]:
    x = float(LEFT)
    for index, name in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        yield f'<line x1="{x}" y1="26" x2="{x + 18}" y2="26" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{x + 22}" y="30">{escape(name)}</text>'
        x += 40 + 6.5 * len(name)


def _number(value: float) -> str:
    """A short text of a number."""
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3g}"
