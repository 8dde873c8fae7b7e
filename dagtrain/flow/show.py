"""The model summary in a file, and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from dagtrain.files import write_text
from dagtrain.flow.records import SummaryRecord
from dagtrain.flow.workspace import COMMANDS, SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.summary import LayerSummary, Summary
from hdl.records import adapter


def write_summary(summary: Summary, path: Path) -> None:
    """Write the summary as JSON."""
    document = {"schema_version": SCHEMA_VERSION, **asdict(summary)}
    write_text(path, json.dumps(document, indent=1) + "\n")


def load_summary(workspace: Workspace) -> Summary:
    """The summary that `dagtrain import` left."""
    path = workspace.require("import", COMMANDS["import"]) / "summary.json"
    document = read_json(path, COMMANDS["import"], SummaryRecord)
    layers = (adapter(LayerSummary).validate_python(layer) for layer in document["layers"])
    return Summary(document["name"], tuple(layers))
