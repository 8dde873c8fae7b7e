"""The profile of a network's numbers as one HTML page: a histogram and the chosen format for every tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from dagtrain.report.templates import page_environment
from dagtrain.training.divergence import TrainedBeside, first_to_leave
from dagtrain.training.profile import TensorProfile

TEMPLATE = "profile.html.j2"
# of a histogram, pixels
OCTAVE, HEIGHT, LABELS = 9, 44, 14
# shares above which a tensor stands out
MANY_SATURATED, MANY_LOST = 1e-4, 0.05


def render_profile(
    name: str, profiles: Sequence[TensorProfile], frames: int, source: str, training: TrainedBeside | None = None
) -> str:
    """The HTML text.  ``source`` says what the network was fed with; ``training`` beside float64 is shown if there is
    one."""
    environment = page_environment()
    environment.filters["share"] = share
    environment.filters["error"] = error_text
    environment.filters["decibels"] = lambda value: "exact" if value == math.inf else f"{value:.1f}"
    low = min((min(one.octaves, default=0) for one in profiles), default=0)
    high = max((max(one.octaves, default=0) for one in profiles), default=0)
    rows = [(one, Markup(histogram(one, low, high)), remark(one)) for one in profiles]
    first = first_to_leave(training.tensors) if training else None
    return environment.get_template(TEMPLATE).render(
        name=name, rows=rows, frames=frames, source=source, training=training, first=first
    )


def share(value: float) -> str:
    """A share, with digits where it is small."""
    return "0" if not value else f"{value:.2%}" if value >= 1e-4 else f"{value:.1e}"


def error_text(value: float | None) -> str:
    """A relative error; None or infinite where there is nothing that it could be relative to."""
    return "no measure" if value is None or value == math.inf else f"{value:.2%}"


def remark(one: TensorProfile) -> str:
    """What a designer would do about a tensor; "" where its format fits."""
    found = []
    if one.saturation > MANY_SATURATED and not one.clipped:
        found.append("saturates: more head room, or more bits")
    if one.lost > MANY_LOST:
        found.append("too coarse: more bits, or less head room")
    if one.wrapped_sums:
        found.append(f"{one.wrapped_sums:,} sums wrapped: more bits of sums")
    return "; ".join(found)


def histogram(one: TensorProfile, low: int, high: int) -> str:
    """SVG text: numbers by octave from 2**low to 2**(high + 1), over the octaves that the format covers."""
    width = (high - low + 1) * OCTAVE
    most = max(one.octaves.values(), default=1)
    # of the least code that is not 0 and of the greatest
    first, last = -one.fixed.fraction_bits, math.log2(one.fixed.high * one.fixed.step)
    start, end = ((min(max(octave, low), high + 1) - low) * OCTAVE for octave in (first, last))
    title = f"{one.edge}: 2^{low} to 2^{high + 1}; {one.fixed} covers 2^{first} to 2^{last:.1f}"
    parts = [
        f'<svg viewBox="0 0 {width} {HEIGHT + LABELS}" width="{width}" height="{HEIGHT + LABELS}" role="img">'
        f"<title>{escape(title)}</title>",
        f'<rect class="covered" x="{start:.1f}" y="0" width="{max(0.0, end - start):.1f}" height="{HEIGHT}"/>',
    ]
    for octave, count in one.octaves.items():
        tall = max(1.0, HEIGHT * count / most)
        x, y = (octave - low) * OCTAVE, HEIGHT - tall
        parts.append(f'<rect class="count" x="{x}" y="{y:.1f}" width="{OCTAVE - 1}" height="{tall:.1f}"/>')
    ticks = [octave for octave in range(low, high + 2) if octave % 8 == 0]
    parts += [f'<text x="{(octave - low) * OCTAVE}" y="{HEIGHT + LABELS - 3}">2^{octave}</text>' for octave in ticks]
    return "".join(parts) + "</svg>"
