"""ONNX in, forward graph out: load, check, normalise, rewrite, place normalisation, lower; see docs/importing.md.

Nothing behind `check` sees protocol buffers; what becomes of an operator stands in `handlers` alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagtrain.graph.ir import Graph
from hdl.errors import ImportProblem, Problem
from hdl.recipe import Recipe
from importers.onnx.check import check_model
from importers.onnx.handlers import HANDLERS
from importers.onnx.idioms import rewrite
from importers.onnx.load import external_files, load_proto
from importers.onnx.lower import lower, report_unknown
from importers.onnx.model import OnnxModel
from importers.onnx.norm import Fate, NormChoice, NormMode, place_norm
from importers.onnx.normalise import normalise
from importers.onnx.problems import Problems
from importers.onnx.report import Attempt, Operator

__all__ = [
    "Attempt",
    "Imported",
    "NormChoice",
    "NormMode",
    "attempt",
    "external_files",
    "import_model",
    "import_with_notes",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Imported:
    """What came of a file."""

    # at Stage.FORWARD: HostInput, layers, a loss for every head, whose label and result follow with differentiation
    graph: Graph
    # what was dropped or changed and the user may want to know
    notes: tuple[str, ...]
    # of every convolution
    norms: tuple[NormChoice, ...] = ()


def import_model(path: Path, *, norm: NormMode = NormMode.ONLINE, recipe: Recipe | None = None) -> Graph:
    """The forward graph of an ONNX file; notes go to the log.

    Raises `hdl.errors.ImportProblem` with everything that is wrong with the file."""
    imported = import_with_notes(path, norm=norm, recipe=recipe)
    for note in imported.notes:
        log.info("%s: %s", path, note)
    return imported.graph


def import_with_notes(path: Path, *, norm: NormMode = NormMode.ONLINE, recipe: Recipe | None = None) -> Imported:
    """As `import_model`, with the notes."""
    problems = Problems(str(path))
    tried = _attempt(path, norm, recipe or Recipe(), problems)
    problems.raise_if_any()
    assert tried.graph is not None, "without problems there is a graph"
    return Imported(tried.graph, tried.notes, tried.norms)


def attempt(path: Path, *, norm: NormMode = NormMode.ONLINE, recipe: Recipe | None = None) -> Attempt:
    """What would become of a file, its problems among it."""
    try:
        return _attempt(path, norm, recipe or Recipe(), Problems(str(path)))
    except ImportProblem as error:
        # not even a model
        return Attempt(problems=error.problems)


def _attempt(path: Path, norm: NormMode, recipe: Recipe, problems: Problems) -> Attempt:
    checked = check_model(load_proto(path), path, problems, recipe.auxiliary)
    normal = normalise(checked.model, problems)
    model = rewrite(normal, HANDLERS, problems)
    operators: dict[str, Operator] = {}
    graph, notes = None, model.notes
    norms: tuple[NormChoice, ...] = ()
    if checked.sound:
        model, norms = place_norm(model, norm)
        graph, notes = lower(model, recipe, problems, operators)
        if "BatchNormalization" in operators:
            # those of the file
            operators["BatchNormalization"].nodes -= sum(choice.fate is Fate.PUT_BACK for choice in norms)
    else:
        if checked.other is not None:
            problems.extend(_whatever_the_size((checked.model, checked.other), norm, recipe, problems))
        report_unknown(model, problems)
    folded = len(checked.model.nodes) - len(normal.nodes)
    return Attempt(graph, notes, norms, Counter(model.rewritten), folded, operators, tuple(problems))


def _whatever_the_size(
    models: Sequence[OnnxModel], norm: NormMode, recipe: Recipe, known: Problems
) -> Iterable[Problem]:
    """What is wrong, beside what is ``known``, with each of several models that are one but for the image's size."""
    found = []
    for model in models:
        problems = Problems(model.file, list(known))
        placed, _ = place_norm(rewrite(normalise(model, problems), HANDLERS, problems), norm)
        lower(placed, recipe, problems, {})
        found.append(list(problems))
    return [problem for problem in found[0] if all(problem in others for others in found[1:])]
