"""The model summary in a file, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def saturated(counts: Mapping[str, int], most: int = 5) -> str:
    """What was counted by tensor, in one line, most first; "" where nothing counts."""
    if not counts:
        return ""
    some = sorted((edge for edge in counts if counts[edge]), key=lambda edge: (-counts[edge], edge))
    if not some:
        return f"saturations: none behind {len(counts)} tensors"
    named = ", ".join(f"{edge} {counts[edge]:,}" for edge in some[:most])
    more = f" and {len(some) - most} more" if len(some) > most else ""
    return f"saturations: {named}{more}, of {len(counts)} tensors that are counted"
