"""ONNX in, forward graph out: load, check, normalise, rewrite, place normalisation, lower; see docs/importing.md.

Nothing behind `check` sees protocol buffers; what becomes of an operator stands in `handlers` alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from dagtrain.graph.ir import Graph
from hdl.recipe import Recipe
from importers.onnx.check import check_model
from importers.onnx.handlers import HANDLERS
from importers.onnx.idioms import rewrite
from importers.onnx.load import external_files, load_proto
from importers.onnx.lower import lower, report_unknown
from importers.onnx.norm import NormMode, place_norm
from importers.onnx.normalise import normalise
from importers.onnx.problems import Problems

__all__ = ["Imported", "NormMode", "external_files", "import_model", "import_with_notes"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Imported:
    """What came of a file."""

    # at Stage.FORWARD: HostInput, layers, SoftmaxCrossEntropy, whose label and result follow with differentiation
    graph: Graph
    # what was dropped or changed and the user may want to know
    notes: tuple[str, ...]


def import_model(path: Path, *, norm: NormMode = NormMode.ONLINE, recipe: Recipe | None = None) -> Graph:
    """The forward graph of an ONNX file; notes go to the log.

    Raises `hdl.errors.ImportProblem` with everything that is wrong with the file."""
    imported = import_with_notes(path, norm=norm, recipe=recipe)
    for note in imported.notes:
        log.info("%s: %s", path, note)
    return imported.graph


def import_with_notes(path: Path, *, norm: NormMode = NormMode.ONLINE, recipe: Recipe | None = None) -> Imported:
    """As `import_model`, with the notes."""
    proto = load_proto(path)
    problems = Problems(str(path))
    checked = check_model(proto, path, problems)
    model = rewrite(normalise(checked.model, problems), HANDLERS, problems)
    if not checked.sound:
        report_unknown(model, problems)
        problems.raise_if_any()
    graph, notes = lower(place_norm(model, norm), recipe or Recipe(), problems)
    return Imported(graph, notes)
