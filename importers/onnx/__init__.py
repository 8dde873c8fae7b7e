"""ONNX files to forward graphs."""

from __future__ import annotations

from pathlib import Path

from dagtrain.ir import Graph
from hdl.recipe import Recipe
from importers.onnx import operators as operators
from importers.onnx.load import load
from importers.onnx.translate import NormMode, translate

__all__ = ["NormMode", "import_model"]


def import_model(path: Path, *, norm: NormMode = NormMode.ONLINE, recipe: Recipe | None = None) -> Graph:
    """The forward graph (Stage.FORWARD) of an ONNX file, its loss behind its output.

    Raises `ImportProblem`, one error that lists everything wrong with the file, its shapes, weights and operators."""
    return translate(load(path), norm, recipe or Recipe())
