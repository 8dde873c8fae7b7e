"""What engines did and how full FIFOs were while a batch trained among others, as a co-simulation counted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from markupsafe import Markup

# of a strip, units of the picture: height, and pixels a stretch
TALL, WIDE = 10, 3


@dataclass(frozen=True)
class EngineRow:
    """An engine over the batch: shares of its cycles, and how they lie in time."""

    node: str
    device: str
    busy: float
    starved: float
    blocked: float
    # SVG
    strip: Markup


@dataclass(frozen=True)
class FifoRow:
    """A FIFO over the batch."""

    # words
    highest: int
    strip: Markup


def engine_rows(timeline: Mapping[str, Any]) -> tuple[EngineRow, ...]:
    """Of every engine that was counted."""
    found = []
    for engine in timeline["engines"]:
        parts = [engine[what] for what in ("busy", "starved", "blocked")]
        totals = [sum(of) for of in zip(*parts, strict=True)]
        busy, starved, blocked = (sum(part) / max(1, sum(totals)) for part in parts)
        under = [b / max(1, t) for b, t in zip(parts[0], totals, strict=True)]
        over = [(b + s) / max(1, t) for b, s, t in zip(parts[0], parts[1], totals, strict=True)]
        title = f"{engine['node']}: busy {busy:.0%}, starved {starved:.0%}, blocked {blocked:.0%}"
        strip = _strip(title, len(totals), [("blocked", [1.0] * len(totals)), ("starved", over), ("busy", under)])
        found.append(EngineRow(engine["node"], engine["device"], busy, starved, blocked, strip))
    return tuple(found)


def fifo_rows(timeline: Mapping[str, Any]) -> dict[tuple[str, str], FifoRow]:
    """(FPGA, name) -> what lay there."""
    found = {}
    for fifo in timeline["fifos"]:
        levels, depth = fifo["highest"], fifo["depth"]
        title = f"{fifo['name']}: at most {max(levels)} of {depth} words"
        strip = _strip(title, len(levels), [("busy", [level / depth for level in levels])])
        found[fifo["device"], fifo["name"]] = FifoRow(max(levels), strip)
    return found


def _strip(title: str, stretches: int, areas: Sequence[tuple[str, Sequence[float]]]) -> Markup:
    """Areas of heights from 0 to 1, each before the one before it."""
    paths = "".join(f'<path class="{name}" d="{_steps(heights)}"/>' for name, heights in areas)
    return Markup(
        f'<svg class="strip" viewBox="0 0 {stretches} {TALL}" width="{WIDE * stretches}" height="{TALL + 6}" '
        f'preserveAspectRatio="none" role="img"><title>{escape(title)}</title>{paths}</svg>'
    )


def _steps(heights: Sequence[float]) -> str:
    tops = "".join(f"V{TALL * (1 - height):.4g}H{at}" for at, height in enumerate(heights, 1))
    return f"M0 {TALL}{tops}V{TALL}z"
