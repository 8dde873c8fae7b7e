"""How fast are the steps?  Prints one table: import, place, emit of the digits network, and estimates a second.

python benchmarks/flow.py            # with an empty cache (cold), then again (warm)
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "digits"


def main() -> None:
    """Run everything in a cache of its own."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["DAGTRAIN_CACHE"] = str(Path(name) / "cache")
        rows = [("cold", *_steps(Path(name) / "cold")), ("warm", *_steps(Path(name) / "warm"))]
        estimates = _estimates()
    print(f"{'cache':<8}{'import s':>10}{'place s':>10}{'emit s':>10}{'import … emit s':>18}")
    for label, *seconds in rows:
        print(f"{label:<8}" + "".join(f"{value:>10.1f}" for value in seconds) + f"{sum(seconds):>18.1f}")
    for label, rate in estimates:
        print(f"estimates {label}: {rate:,.0f} layer configurations a second")


def _steps(out: Path) -> tuple[float, float, float]:
    from dagtrain.flow import emit_step, import_step, place_step
    from dagtrain.flow.import_options import ImportOptions
    from dagtrain.flow.place_options import PlaceOptions
    from dagtrain.flow.workspace import Workspace
    from dagtrain.progress import Silent

    space, silent = Workspace(out), Silent()
    model = ImportOptions(model=EXAMPLE / "digits.onnx", recipe=EXAMPLE / "recipe.toml", data="digits")
    return (
        _timed(lambda: import_step.run(space, model, silent)),
        _timed(lambda: place_step.run(space, PlaceOptions(devices=EXAMPLE / "cluster.toml"), silent)),
        _timed(lambda: emit_step.run(space, emit_step.EmitOptions(), silent)),
    )


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _estimates() -> list[tuple[str, float]]:
    """Configurations a second of the digits network at several intervals: elaborated, then read back."""
    from dagtrain.flow.import_step import load_training_graph
    from dagtrain.flow.workspace import Workspace
    from dagtrain.passes.fold import fold_graph
    from hdl.costs.estimate import Estimator

    graph = load_training_graph(Workspace(Path(os.environ["DAGTRAIN_CACHE"]).parent / "cold"))
    layers = {
        repr(node.layer): node.layer
        for cycles in (3000, 6000)
        for node in fold_graph(graph, cycles).nodes
        if node.layer.sinks and node.layer.sources
    }
    store = Path(os.environ["DAGTRAIN_CACHE"]) / "benchmark.sqlite"
    rates = []
    for label in ("uncached", "from cache"):
        seconds = _timed(lambda: [*map(Estimator(store).layer, layers.values())])
        rates.append((label, len(layers) / seconds))
    return rates


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
