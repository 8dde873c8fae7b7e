"""docs/ as a site with search: `make docs`.  The first page is the README; commands and API are made of the code."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import typer
from sphinx.application import Sphinx
from typer.cli import get_docs_for_click

from dagtrain.cli import app as commands

ROOT = Path(__file__).resolve().parent.parent

project = "dagtrain"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "dagtrain"
exclude_patterns = ["conf.py"]
# links to headings, as GitHub names them
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# links that lead out of docs/: the site has none of those files, so they become names
OUT_OF_DOCS = re.compile(r"\[([^\]]*)\]\((?:\.\./|CHANGELOG)[^)]*\)")

CONTENTS = """
```{toctree}
:hidden:
:caption: Tutorial
tutorial
python
```
```{toctree}
:hidden:
:caption: How to
own-data
own-cluster
refused-model
slow-plan
boards
bring-up
formats
circuits
mismatch
importing
data
placing
cosimulation
simulating
testbenches
adding-a-layer
```
```{toctree}
:hidden:
:caption: Reference
commands
api
cluster-file
network
state
recipe
files
```
```{toctree}
:hidden:
:caption: Explanation
architecture
numerics
resources
timing
formal
learning
networks
hypar
inceptionn
fpdeep
scaling
replicas
compression-pays
comparison
benchmarks
trust
```
"""
# what is shown of each module, in order
API = {
    "dagtrain.api": ["load", "Network", "Done", "Placed", "Emitted", "Cosimulated", "Trained", "Judged", "Exported"],
    "placement.problem.plan": ["Plan", "DeviceUse"],
    "dagtrain.graph.summary": ["Summary", "LayerSummary"],
    "dagtrain.flow.result": ["StepResult"],
    "dagtrain.progress": ["Progress"],
    "dagtrain.flow.import_options": ["ImportOptions"],
    "dagtrain.flow.place_options": ["PlaceOptions"],
    "dagtrain.flow.sweep_step": ["SweepOptions"],
    "dagtrain.flow.mapping_step": ["MappingOptions"],
    "dagtrain.flow.emit_step": ["EmitOptions"],
    "dagtrain.flow.cosim_step": ["CosimOptions"],
    "dagtrain.flow.cosim_network": ["FaultOptions", "NetworkOptions"],
    "dagtrain.flow.simulate_step": ["SimulateOptions"],
    "dagtrain.flow.debug_step": ["DebugOptions"],
    "dagtrain.flow.probe_step": ["ProbeOptions"],
    "dagtrain.flow.train_step": ["TrainOptions"],
    "dagtrain.flow.serve_step": ["ServeOptions"],
    "dagtrain.flow.drive_step": ["DriveOptions"],
    "dagtrain.flow.export_step": ["ExportOptions"],
    "dagtrain.flow.profile_step": ["ProfileOptions"],
    "dagtrain.flow.evaluate_step": ["EvaluateOptions"],
    "dagtrain.flow.parallelize_step": ["ParallelizeOptions"],
    "dagtrain.flow.estimate_step": ["EstimateOptions"],
    "dagtrain.flow.timing_step": ["TimingOptions"],
    "dagtrain.flow.bring_up_step": ["BringUpOptions"],
    "dagtrain.flow.selftest_step": ["SelfTestOptions"],
    "hdl.errors": ["DagtrainError", "Problem"],
}


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("config-inited", _write_pages)
    app.connect("source-read", _without_links_out)


def _write_pages(app: Sphinx, _config: Any) -> None:
    """The pages that stand in no file of docs/; they are made anew for every site and belong to nobody."""
    readme = (ROOT / "README.md").read_text().replace("](docs/", "](").replace('="docs/', '="')
    for name, text in {"index": f"{readme}\n{CONTENTS}", "commands": _commands(), "api": _api()}.items():
        path = Path(app.srcdir) / f"{name}.md"
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def _without_links_out(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = OUT_OF_DOCS.sub(r"\1", source[0])


def _commands() -> str:
    """All commands with their options, as --help has them."""
    command = typer.main.get_command(commands)
    context = command.make_context("dagtrain", [], resilient_parsing=True)
    return html.unescape(get_docs_for_click(obj=command, ctx=context, name="dagtrain", title="Commands"))


def _api() -> str:
    parts = [
        "# Python API\n",
        "[dagtrain from Python](python.md) is the way in; this page is made of the docstrings. Keywords of a method "
        "that does a step are the fields of its options, which stand below the methods.\n",
    ]
    for module, names in API.items():
        for name in names:
            kind = "autofunction" if name[0].islower() else "autoclass"
            members = "" if kind == "autofunction" else "   :members:\n   :undoc-members:\n"
            parts.append(f"```{{eval-rst}}\n.. {kind}:: {module}.{name}\n{members}```\n")
    return "\n".join(parts)
