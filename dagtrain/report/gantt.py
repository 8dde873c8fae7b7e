"""When engines worked on which frame, as `dagtrain simulate` told it: a Gantt chart as SVG text; and what FPGAs did.

A bar reaches from the first beat of a frame that a node took or gave to the last one; of frames in a pipeline the next
one begins before, so they take turns on two lanes of a row.  Colours are batches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

from dagtrain.report.chart import COLOURS, STYLE, Axis, axis
from dagtrain.report.roofline import NETWORK, Roofline, Simulated

# units of the picture: across, of a lane, of a row, and around
WIDTH, LANE, ROW, LEFT, RIGHT, TOP, BOTTOM = 1120, 5, 13, 240, 16, 24, 30
# frames in a row at most, and bars of all: those of the last frames are shown
MOST_FRAMES, MOST_BARS = 64, 6000
# frames that a row shows at least, if there are so many
FEWEST_FRAMES = 4
HZ_PER_MHZ = 1_000_000


@dataclass(frozen=True)
class Shown:
    """Frames that the chart shows, from 0, of how many."""

    first: int
    frames: int


@dataclass(frozen=True)
class DeviceRow:
    """What an FPGA did."""

    device: str
    # share of multipliers' cycles, from batch to batch if there are several; None without multipliers
    idle: float | None
    # multiplications a second, and beside what its DSP blocks could do
    rate: Fraction
    of_peak: Fraction
    # bits a second to others and from them, with headers and credits
    sent: float
    received: float


def shown(simulation: Mapping[str, Any]) -> Shown:
    """The last ones, as many as the chart has room for."""
    frames, rows = len(simulation["frame_cycles"]), max(1, len(_engines(simulation)))
    count = min(frames, MOST_FRAMES, max(FEWEST_FRAMES, MOST_BARS // rows))
    return Shown(frames - count, frames)


def gantt(simulation: Mapping[str, Any]) -> str:
    """SVG text: a row for each node that multiplies, in the order of FPGAs."""
    engines, window = _engines(simulation), shown(simulation)
    bars = {node["node"]: list(_bars(node, simulation, window)) for node in engines}
    cycles = [cycle for row in bars.values() for _, first, last in row for cycle in (first, last)]
    if not cycles:
        return ""
    across = axis(min(cycles), max(cycles))
    height = TOP + ROW * len(engines) + BOTTOM
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="10" role="img"><title>frames in engines</title>',
        STYLE,
        f'<rect class="chart-paper" width="{WIDTH}" height="{height}"/>',
    ]
    for tick in across.ticks:
        x = _x(across, tick)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - BOTTOM}" class="chart-grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - BOTTOM + 14}" text-anchor="middle">{tick:,.0f}</text>')
    for number, node in enumerate(engines):
        top, title = TOP + ROW * number, f"{node['node']} on {node['device']}"
        parts.append(f'<text x="{LEFT - 6}" y="{top + LANE + 4}" text-anchor="end">{escape(title)}</text>')
        for frame, first, last in bars[node["node"]]:
            batch = frame if node["per_batch"] else frame // simulation["batch"]
            what = "batch" if node["per_batch"] else "frame"
            x, end = _x(across, first), _x(across, last)
            parts.append(
                f'<rect x="{x:.1f}" y="{top + LANE * (frame % 2)}" width="{max(end - x, 0.5):.1f}" height="{LANE}" '
                f'fill="{COLOURS[batch % len(COLOURS)]}"><title>{escape(title)}: {what} {frame}, '
                f"cycles {first:,} to {last:,}</title></rect>"
            )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{height - 4}" text-anchor="middle">cycle</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def simulated(simulation: Mapping[str, Any], roofs: Sequence[Roofline]) -> dict[str, Simulated]:
    """FPGA -> what the simulation says of its multiplications and bytes."""
    fps, frames = _fps(simulation), len(simulation["frame_cycles"])
    sent, received = _bits(simulation)
    return {
        roof.device: Simulated(
            rate=roof.macs * fps,
            bytes_per_frame={NETWORK: Fraction(max(sent[roof.device], received[roof.device]), 8 * frames)},
        )
        for roof in roofs
    }


def device_rows(simulation: Mapping[str, Any], roofs: Sequence[Roofline]) -> tuple[DeviceRow, ...]:
    """Of every FPGA of the plan."""
    which = "share" if simulation["batch_interval"] is None else "in_training"
    idle = {one["device"]: one[which] for one in simulation["idle_by_device"]}
    sent, received = _bits(simulation)
    seconds = simulation["worked_cycles"] / (simulation["clock_mhz"] * HZ_PER_MHZ)
    found = simulated(simulation, roofs)
    return tuple(
        DeviceRow(
            device=roof.device,
            idle=idle.get(roof.device),
            rate=found[roof.device].rate,
            of_peak=found[roof.device].rate / roof.peak if roof.peak else Fraction(0),
            sent=sent[roof.device] / seconds,
            received=received[roof.device] / seconds,
        )
        for roof in roofs
    )


def _fps(simulation: Mapping[str, Any]) -> Fraction:
    """Frames a second in training; of a single batch, over the whole run."""
    told = simulation["frames_per_second"]
    if told is not None:
        return Fraction(told)
    hertz = Fraction(simulation["clock_mhz"]) * HZ_PER_MHZ
    return hertz * len(simulation["frame_cycles"]) / int(simulation["worked_cycles"])


def _bits(simulation: Mapping[str, Any]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Of every FPGA, sent and received."""
    sent, received = defaultdict[str, int](int), defaultdict[str, int](int)
    for cable in simulation["cables"]:
        sent[cable["source"]] += cable["bits"]
        received[cable["target"]] += cable["bits"]
    return sent, received


def _engines(simulation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    devices: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for node in simulation["nodes"]:
        if node["multipliers"] and node["spans"]:
            devices[node["device"]].append(node)
    return [node for device in sorted(devices) for node in devices[device]]


def _bars(node: Mapping[str, Any], simulation: Mapping[str, Any], window: Shown) -> Iterator[tuple[int, int, int]]:
    """(frame or batch, first cycle, last cycle) of the frames that are shown; of copies, which get some frames alone,
    in the same part of the run."""
    count, whole = len(node["spans"]), len(simulation["frame_cycles"])
    first = math.floor(window.first * count / whole)
    for number in range(first, count):
        begun, ended = node["spans"][number]
        yield number, int(begun), int(ended)


def _x(across: Axis, value: float) -> float:
    return LEFT + across.share(value) * (WIDTH - LEFT - RIGHT)
