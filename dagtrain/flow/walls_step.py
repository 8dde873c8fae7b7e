"""`dagtrain place --walls`: which resource of the whole cluster binds, which falls next, what levers would bring."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagtrain.files import write_text
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.levers import levers_wanted, with_levers
from dagtrain.flow.place_options import (
    PlaceOptions,
    read_options_cluster,
    search_options,
)
from dagtrain.flow.placed import COMMAND
from dagtrain.flow.records import WallsRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, file_digest, program_hash, read_json
from dagtrain.planning.prices import Prices
from dagtrain.planning.problem import DealStreams, MultiplyConstants, Problem
from dagtrain.planning.walls import Outlook, Outlooker, Row
from dagtrain.progress import Progress
from dagtrain.rates import rate_text
from hdl.costs.estimate import Estimator
from placement.diagnosis.walls import PACE, Fallen
from placement.problem.deadline import Deadline

# wall -> what it is called
NAMES = {
    "dsp": "DSP blocks", "m20k": "block memories", "alm": "logic cells", "dram": "DRAM bandwidth",
    PACE: "fastest circuits",
}  # fmt: skip
ALL = "all together"
HEADINGS = ("lever", "frames/s", "ratio", "binds", "then")
NOTHING = "-"
# behind a lever that is in force today
TAKEN = " (taken)"


def run(workspace: Workspace, options: PlaceOptions, progress: Progress) -> StepResult:
    """Ask unless nothing changed; the search itself is not needed for it.

    Raises `OutOfTimeError` where the time limit ends the pricing, `InfeasibleError` where nothing has room."""
    depends = {
        "import": workspace.fingerprint("import"),
        "devices": file_digest(options.devices),
        "program": program_hash(),
        "caps": options.caps,
        "exclude": options.exclude,
        "pins": options.pins,
        "ragged_tiles": options.ragged_tiles,
        "recompute": options.recompute,
        "share_weights": options.share_weights,
        "multiply_constants": options.multiply_constants,
        "update_frames": options.update_frames,
        "share_statistics": options.share_statistics,
        "deal_streams": options.deal_streams,
        "small_buffers": options.small_buffers,
    }
    done = workspace.run("walls", depends, lambda folder: _work(folder, workspace, options, progress))
    folder = workspace.folder("walls")
    data = read_json(folder / "walls.json", f"{COMMAND} --walls", WallsRecord)
    return StepResult("walls", folder, done, tuple(data["lines"]), data, table=list(_table(data)))


def _work(folder: Path, workspace: Workspace, options: PlaceOptions, progress: Progress) -> None:
    imported, cluster, search = load_training_graph(workspace), read_options_cluster(options), search_options(options)
    deadline = Deadline(search.time_limit_seconds)
    graph = with_levers(imported, cluster, search, options)
    prices = Prices(graph, cluster, Estimator(), {}, progress, multiply=True, deal=True)
    levers = levers_wanted(options)
    multiply, deal = levers.multiply_constants is not MultiplyConstants.NEVER, levers.deal_streams is DealStreams.AUTO
    found = Outlooker(Problem(graph, cluster, search, {}, multiply, deal), prices).look(deadline)
    write_text(folder / "walls.json", json.dumps(_document(found), indent=1) + "\n")


def _document(found: Outlook) -> dict[str, Any]:
    def fallen(wall: str, cycles: float) -> dict[str, Any]:
        return {"wall": wall, "cycles_per_frame": cycles, "fps": found.clock_hz / cycles}

    def falling(walls: Sequence[Fallen]) -> list[dict[str, Any]]:
        return [fallen(wall.wall, wall.cycles_per_frame) for wall in walls]

    def lever(row: Row) -> dict[str, Any]:
        alone = row.levers[0] if len(row.levers) == 1 else None
        return {
            "lever": alone.name if alone else ALL,
            "rule": alone.says if alone else "",
            "taken": alone is not None and alone.name in found.taken,
            "ratio": found.today.cycles_per_frame / row.cycles_per_frame,
            "falling": falling(row.falling),
        }

    alone = {
        wall: None if stand is None or stand.binding == PACE else fallen(wall, stand.cycles_per_frame)
        for wall, stand in found.alone.items()
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "lines": list(lines(found)),
        "levels": list(found.levels),
        "today": falling(found.today.falling),
        "in_use": found.standing.use if found.standing else {},
        "alone": alone,
        "levers": [lever(row) for row in (*found.rows, found.together)],
        "slowest_item": found.slowest_item,
        "streams": found.streams,
        "too_wide_today": found.too_wide[0],
        "too_wide_with_all_levers": found.too_wide[1],
    }


def lines(found: Outlook) -> Iterator[str]:
    """The answers in words."""

    def rate(cycles: float) -> str:
        return rate_text(found.clock_hz / cycles)

    priced = ", ".join(f"{level:,}" for level in found.levels)
    yield (
        f"all devices as one, links and hops left out, circuits at {priced} cycles a frame and mixtures of them: "
        "ratios, not promises; with circuits of other paces a plan may be some per cent faster"
    )
    first, *further = found.today.falling
    use = found.standing.use if found.standing else {}
    shares = ", ".join(f"{use[wall]:.0%} of {NAMES[wall]}" for wall in use)
    yield f"binds first: {NAMES[first.wall]}, {rate(first.cycles_per_frame)} frames/s inside a batch; in use: {shares}"
    for wall in further:
        yield f"falls next: {NAMES[wall.wall]}, {rate(wall.cycles_per_frame)} frames/s without those before"
    alone = [
        f"{NAMES[wall]} {rate(stand.cycles_per_frame)}"
        for wall, stand in found.alone.items()
        if stand is not None and stand.binding != PACE
    ]
    never = [NAMES[wall] for wall, stand in found.alone.items() if stand is not None and stand.binding == PACE]
    yield f"each wall alone, frames/s: {', '.join(alone) or 'none binds'}" + (
        f"; not before the fastest circuits: {', '.join(never)}" if never else ""
    )
    yield f"fastest circuits: {found.slowest_item} is the slowest with its own"
    today, together = found.too_wide
    yield (
        f"links: {today} of {found.streams} streams carry more than the slowest port at that rate, {together} with all "
        "levers; what else crosses, a placement alone says"
    )
    yield from (f"{row.levers[0].name}: {row.levers[0].says}" for row in found.rows)


def _table(data: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """A row for today, each lever, all together: the first wall and where the second one stands."""
    yield HEADINGS
    for name, ratio, falling in (
        ("today", 1.0, data["today"]),
        *((row["lever"] + TAKEN * row["taken"], row["ratio"], row["falling"]) for row in data["levers"]),
    ):
        first, *further = falling
        then = f"{NAMES[further[0]['wall']]} at {rate_text(further[0]['fps'])}" if further else NOTHING
        yield name, rate_text(first["fps"]), f"{ratio:.2f}", NAMES[first["wall"]], then
