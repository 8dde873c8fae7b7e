"""Commands that look at a working folder: `dagtrain report`, `show`, `status`, `clean`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dagtrain.cli.options import AsJson, Out
from dagtrain.cli.perform import Jobs, network, tell
from dagtrain.console import Voice, summary_table
from hdl.errors import DagtrainError


def report() -> Jobs:
    """Write one self-contained HTML page: graph, plan, bottleneck, resources, efficiency, curves."""
    return (lambda net: net.report(),)


def show(out: Out = Path("build"), as_json: AsJson = False) -> None:
    """Print the training graph as a model summary: layer, shape, weights, multiplications, stash.

    On a narrow terminal, the multiplications of the three passes are one number, and counts have three digits."""
    summary = network(out).summary
    if as_json:
        print(json.dumps({"name": summary.name, "layers": [vars(layer) for layer in summary.layers]}))
    else:
        console = Console()
        console.print(summary_table(summary, console.width))


def status(out: Out = Path("build"), as_json: AsJson = False) -> None:
    """What the steps left in the working folder, whether it still holds, and what to run next.

    Changes nothing."""
    tell(network(out).status(), Voice(as_json))


def clean(
    steps: Annotated[
        list[str] | None,
        typer.Argument(help="Steps whose results go; default: all.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    out: Out = Path("build"),
    as_json: AsJson = False,
) -> None:
    """Remove what steps left in the working folder, and nothing else that lies there.

    Asks first, as training may have taken hours; without a terminal --yes must be said."""
    from dagtrain.files import working_folder

    with working_folder(out):
        net, named = network(out), tuple(steps or ())
        found = net.cleanable(*named)
        if found.folders and not yes:
            if not sys.stdin.isatty():
                raise DagtrainError(f"{found.text} would be removed, and there is nobody to ask", "say --yes")
            typer.confirm(f"Remove {found.text}?", abort=True, err=True)
        tell(net.clean(*named), Voice(as_json))
