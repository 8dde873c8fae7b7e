"""`dagtrain import --check`: what would become of an ONNX file, without calibration; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dagtrain.flow.import_options import ImportOptions
from dagtrain.flow.import_step import chosen_recipe, parse_norm
from dagtrain.flow.result import StepResult
from hdl.errors import DagtrainError
from importers.onnx import attempt


def run(options: ImportOptions) -> StepResult:
    """All that can be said of a model without data; passed if it can be imported."""
    unread = {
        "--recipe": options.recipe,
        "--data": options.data,
        "--split": options.splits,
        "--bits": options.bits,
        "--count-saturations": options.counted,
        "--freeze": options.freeze,
        "--copy": options.copies,
    }
    given = ", ".join(name for name, value in unread.items() if value)
    if given:
        raise DagtrainError(f"--check looks at the model alone and would not read {given}", "leave it out")
    norm = parse_norm(options.norm)
    tried = attempt(options.model, norm=norm, recipe=chosen_recipe(options))
    passed = not tried.problems
    lines: list[str] = []
    if tried.operators:
        rows = [(name, str(item.nodes), item.text) for name, item in sorted(tried.operators.items())]
        lines += _table(("operator", "nodes", "becomes"), rows)
    if tried.folded:
        lines.append(f"{tried.folded} nodes on constants and shapes are computed ahead")
    lines += [
        f"{name}: spelt out {count} time{'s' if count > 1 else ''}, rewritten" for name, count in tried.idioms.items()
    ]
    if tried.norms:
        norms = [(choice.node, choice.fate.value, choice.why) for choice in tried.norms]
        lines += _table(("layer", "normalisation", "since"), norms)
    lines += [f"note: {note}" for note in tried.notes]
    lines += [f"problem: {problem}" for problem in tried.problems]
    layers = "" if tried.graph is None else f": {len(tried.graph.nodes)} layers"
    count = len(tried.problems)
    verdict = f"can be imported{layers}" if passed else f"can't be imported, {count} problem{'s' if count > 1 else ''}"
    lines.append(f"{options.model} {verdict}")
    data = {"model": str(options.model), **tried.as_data()}
    return StepResult("check", Path(), done=True, lines=tuple(lines), data=data, passed=passed)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns side by side."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
