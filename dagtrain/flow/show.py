"""The model summary in a file, and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from dagtrain.files import write_text
from dagtrain.flow.workspace import SCHEMA_VERSION, MissingStep, Workspace, read_json
from dagtrain.graph.summary import LayerSummary, Summary


def write_summary(summary: Summary, path: Path) -> None:
    """Write the summary as JSON."""
    document = {"schema_version": SCHEMA_VERSION, **asdict(summary)}
    write_text(path, json.dumps(document, indent=1) + "\n")


def load_summary(workspace: Workspace) -> Summary:
    """The summary that `dagtrain import` left."""
    command = "dagtrain import MODEL.onnx"
    path = workspace.require("import", command) / "summary.json"
    document = read_json(path, command)
    try:
        layers = tuple(
            LayerSummary(**{**layer, "output_shape": tuple(layer["output_shape"])}) for layer in document["layers"]
        )
    except TypeError as error:
        raise MissingStep(f"{path} is damaged ({error}); run `{command}` again") from error
    return Summary(document["name"], layers)
