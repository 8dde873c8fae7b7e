"""What the command line says, and to whom: bars, results, tables and errors, for people or for programs."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from dagtrain.progress import Progress, Silent
from dagtrain.rates import short_count
from hdl.errors import Problem

if TYPE_CHECKING:
    from dagtrain.flow.result import StepResult
    from dagtrain.graph.summary import LayerSummary, Summary

# of the model summary in its wide form, two lines each
WIDE_HEADINGS = (
    "\nlayer", "\nkind", "output\nH, W, C", "\nweights", "MACs\nforward", "MACs\nerror", "MACs\ngradient",
    "stash bits\na frame",
)  # fmt: skip
# columns that names of layers have at least in that form, where they need them
NAME_COLUMNS = 24


class _Bars(RichProgress):
    """Bars, and a table below them."""

    panel: Table | None = None

    def get_renderables(self) -> Iterator[RenderableType]:
        """See the base class."""
        yield from super().get_renderables()
        if self.panel is not None:
            yield self.panel


class BarProgress:
    """Progress bars on standard error; silence where that is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._bars = _Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=False,
            disable=not console.is_terminal,
        )
        self._task: Any = None

    def __enter__(self) -> BarProgress:
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()

    def begin(self, label: str, total: int | None = None) -> None:
        """A new bar."""
        self._task = self._bars.add_task(label, total=total, note="")

    def advance(self, units: int = 1, note: str = "") -> None:
        """Move the newest bar, unless it has ended."""
        if self._task is not None:
            self._bars.update(self._task, advance=units)
            self._note(note)

    def end(self, note: str = "") -> None:
        """Fill the newest bar."""
        if self._task is None:
            return
        task = self._bars.tasks[self._task]
        total = task.total if task.total is not None else max(task.completed, 1)
        self._bars.update(self._task, total=total, completed=total)
        self._note(note)
        self._task = None

    def show(self, rows: Sequence[Sequence[str]]) -> None:
        """A table below the bars, in place of the one before."""
        self._bars.panel = _columns(rows)

    @property
    def tasks(self) -> list[Task]:
        """All bars."""
        return list(self._bars.tasks)

    def _note(self, note: str) -> None:
        if note:
            self._bars.update(self._task, note=note)


class LineProgress:
    """A line on standard error as a task begins, and one as it ends: for logs."""

    def __init__(self) -> None:
        self._label, self._note, self._begun = "", "", 0.0

    def begin(self, label: str, total: int | None = None) -> None:
        """Say what begins."""
        self._label, self._note, self._begun = label, "", time.monotonic()
        print(f"{label} …" if total is None else f"{label}: {total:,} to do …", file=sys.stderr, flush=True)

    def advance(self, units: int = 1, note: str = "") -> None:
        """Keep the newest figure."""
        del units
        self._note = note or self._note

    def end(self, note: str = "") -> None:
        """Say what has ended, with its last figure."""
        said = note or self._note
        seconds = time.monotonic() - self._begun
        print(f"{self._label}: {said + ', ' if said else ''}{seconds:.1f} s", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Voice:
    """How a command speaks: to a program (one JSON document on standard output) or to people."""

    as_json: bool = False
    # nothing but errors and warnings
    quiet: bool = False
    # also what the program notes as it goes
    verbose: bool = False

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Who listens to long work: bars on a terminal, with ``verbose`` lines elsewhere, else nobody."""
        console = Console(stderr=True)
        if self.quiet:
            yield Silent()
        elif self.verbose and not console.is_terminal:
            with _noting(console):
                yield LineProgress()
        else:
            with BarProgress(console) as bars, _noting(console if self.verbose else None):
                yield bars

    def begin(self, result: StepResult) -> None:
        """A step's result, as soon as it is there."""
        if self.as_json:
            return
        if self.quiet:
            self._warnings(result)
        else:
            _print_result(result)

    def end(self, results: Sequence[StepResult]) -> None:
        """All results."""
        if self.as_json:
            print(json.dumps([_as_data(result) for result in results] if len(results) > 1 else _as_data(results[0])))

    def facts(self, result: StepResult) -> None:
        """A result that leaves no files."""
        if self.as_json:
            print(json.dumps({"step": result.step, "passed": result.passed, **result.data}))
        elif not self.quiet:
            if result.table:
                Console().print(_columns(result.table))
            print("\n".join(result.lines))

    def _warnings(self, result: StepResult) -> None:
        if not result.passed:
            print("\n".join(result.lines), file=sys.stderr)
        else:
            for line in result.lines:
                if line.startswith("warning: "):
                    print(line, file=sys.stderr)


@contextmanager
def _noting(console: Console | None) -> Iterator[None]:
    """Notes of the program on a console while it works; none without one."""
    if console is None:
        yield
        return
    handler, root = RichHandler(console=console, show_path=False), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


def _print_result(result: StepResult) -> None:
    state = "left out" if result.left_out else "done" if result.done else "unchanged, nothing to do"
    print(f"{result.step}: {state}")
    for line in result.lines:
        print(f"  {line}")
    if result.table:
        Console().print(_columns(result.table))
    if not result.left_out:
        print(f"  -> {result.folder}")
    sys.stdout.flush()


def _columns(rows: Sequence[Sequence[str]]) -> Table:
    """Rows under their headings; what is read as a number stands on the right."""
    table = Table()
    for heading, cells in zip(rows[0], zip(*rows[1:], strict=True), strict=True):
        numbers = all(cell[-1:].isdigit() for cell in cells)
        table.add_column(heading, justify="right" if numbers else "left")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _as_data(result: StepResult) -> dict[str, Any]:
    return {
        "step": result.step,
        "folder": str(result.folder),
        "done": result.done,
        "left_out": result.left_out,
        "passed": result.passed,
        **result.data,
    }


# ---- errors


def error_json(kind: str, problems: Sequence[Problem], code: int, message: str) -> str:
    """An error for programs: everything that is wrong, each with its cure, and the exit code."""
    listed = [{"where": one.where, "what": one.what, "cure": one.cure} for one in problems]
    return json.dumps({"error": {"kind": kind, "message": message, "problems": listed, "exit_code": code}})


# ---- the model summary


def summary_table(summary: Summary, columns: int) -> Table:
    """The layers of a model, long names on several lines; in a narrow form where so many columns are too few."""
    rows = [_wide_row(layer) for layer in summary.layers]
    sums = (summary.weights, summary.forward_macs, summary.error_macs, summary.gradient_macs, summary.stash_bits)
    total = ("total", "", "", *(f"{count:,}" for count in sums))
    lines = [*zip(*(heading.split("\n") for heading in WIDE_HEADINGS), strict=True), *rows, total]
    taken = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    # beside them a line and a blank at either side of each
    needed = min(taken[0], NAME_COLUMNS) + sum(taken[1:]) + 3 * len(taken) + 1
    return _wide(summary.name, rows, total) if needed <= columns else _narrow(summary)


def _wide_row(layer: LayerSummary) -> tuple[str, ...]:
    counts = (layer.weights, layer.forward_macs, layer.error_macs, layer.gradient_macs, layer.stash_bits)
    return layer.name, _kind(layer), _shape(layer), *(f"{count:,}" if count else "" for count in counts)


def _wide(name: str, rows: Sequence[tuple[str, ...]], total: tuple[str, ...]) -> Table:
    table = Table(title=f"{name}: training graph", title_justify="left")
    names, kinds, *counts = WIDE_HEADINGS
    table.add_column(names, overflow="fold")
    table.add_column(kinds, no_wrap=True)
    for heading in counts:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    table.add_section()
    table.add_row(*total)
    return table


def _narrow(summary: Summary) -> Table:
    """One column for the multiplications of all three passes, counts of three digits."""
    table = Table(title=f"{summary.name}: training graph", title_justify="left", box=None, pad_edge=False)
    table.add_column("layer", overflow="fold", ratio=1)
    table.add_column("kind", no_wrap=True)
    table.add_column("H, W, C", justify="right", no_wrap=True)
    for heading in ("weights", "MACs", "stash bits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in summary.layers:
        macs = layer.forward_macs + layer.error_macs + layer.gradient_macs
        counts = (layer.weights, macs, layer.stash_bits)
        table.add_row(
            layer.name, _kind(layer), _shape(layer), *(short_count(count) if count else "" for count in counts)
        )
    macs = summary.forward_macs + summary.error_macs + summary.gradient_macs
    table.add_section()
    table.add_row("total", "", "", *map(short_count, (summary.weights, macs, summary.stash_bits)))
    return table


def _kind(layer: LayerSummary) -> str:
    return f"{layer.kind}, frozen" if layer.frozen else layer.kind


def _shape(layer: LayerSummary) -> str:
    return "x".join(map(str, layer.output_shape))
