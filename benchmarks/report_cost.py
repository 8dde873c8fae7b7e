"""What does the report cost the main job?  Prints one table: the co-simulation of `make demo` with nothing measured
for the report, with the timeline, with the engines' cycles too, each with no simulator built before; and the report.

python benchmarks/report_cost.py
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "digits"


def main() -> None:
    """Run everything in caches of its own."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["DAGTRAIN_CACHE"] = str(_cache(Path(name)))
        rows = _rows(Path(name))
    print(f"{'digits':<40}{'seconds':>10}{'CPU seconds':>13}")
    for label, clock, cpu in rows:
        print(f"{label:<40}{clock:>10.1f}{cpu:>13.1f}")
    (_, bare, _), _, (_, whole, _), (_, report, _) = rows
    print(f"what the report adds: {whole + report - bare:.1f} s")


def _rows(root: Path) -> list[tuple[str, float, float]]:
    from dagtrain.cosim.cluster import simulate_cluster
    from dagtrain.cosim.simulator import Simulator
    from dagtrain.flow import cosim_step, emit_step, import_step, place_step, report_step
    from dagtrain.flow.emit_step import library
    from dagtrain.flow.import_options import ImportOptions
    from dagtrain.flow.place_options import PlaceOptions
    from dagtrain.flow.workspace import Workspace
    from dagtrain.progress import Silent

    space, silent = Workspace(root / "digits"), Silent()
    model = ImportOptions(model=EXAMPLE / "digits.onnx", recipe=EXAMPLE / "recipe.toml", data="digits")
    import_step.run(space, model, silent)
    place_step.run(space, PlaceOptions(devices=EXAMPLE / "cluster.toml"), silent)
    emit_step.run(space, emit_step.EmitOptions(), silent)
    plain = cosim_step.CosimOptions(efficiency=False)
    ready = cosim_step.prepared(space, plain)

    def bare() -> None:
        simulate_cluster(
            ready.delivered, ready.graph, library(), ready.feeds, root / "bare", Simulator(plain.simulator),
            ready.network, ready.stall_256, plain.seed, silent, memory=ready.memory,
        )  # fmt: skip

    works: dict[str, Callable[[], object]] = {
        "co-simulation, nothing measured": bare,
        "co-simulation with a timeline": partial(cosim_step.run, space, plain, silent),
        "co-simulation as in the demo": partial(cosim_step.run, space, cosim_step.CosimOptions(), silent),
        "report": partial(report_step.run, space, silent),
    }
    rows = []
    for label, work in works.items():
        shutil.rmtree(_cache(root) / "verilator", ignore_errors=True)
        rows.append(_timed(label, work))
    return rows


def _cache(root: Path) -> Path:
    return root / "cache"


def _timed(label: str, work: Callable[[], object]) -> tuple[str, float, float]:
    """(label, seconds, CPU seconds with those of children)."""
    start, used = time.perf_counter(), _cpu_s()
    work()
    return label, time.perf_counter() - start, _cpu_s() - used


def _cpu_s() -> float:
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, whose))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
