"""How fast and how well placements are found, and how close to proven: one table, the literal model beside ours.

    python -m benchmarks.searching                                   # everything, five seeds: an hour
    python -m benchmarks.searching --only vgg-mini resnet18 --seeds 1 --seconds 20 --literal-seconds 0
    python -m benchmarks.searching --scaling build/scaling.svg       # time against layers, devices; 15 min
    python -m benchmarks.searching --seconds 60 --instances build/networks/*/place/searched-instance.json

Instances are training graphs with the stated cost model of `benchmarks.synthetic` at 200 MHz, devices filled to at most
85 % of their blocks and 70 % of their DRAM bandwidth. Every run is a process of its own (so its memory can be told),
with the compiled kernel loaded before the clock starts; bounds are inside the time. Of several seeds the worst value of
every column stands in the table. Times are seconds; "–": not reached. The literal model is the poster's method:
equations (1)–(6), bisection to 5 %; its gap is against our bound of the same run. `--instances` takes problems with
costs of elaborated circuits, as `dagtrain place` leaves them behind.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.synthetic import (
    POSTER_CLUSTER,
    Builder,
    Tensor,
    demo,
    devices,
    instance_of,
    mobilenet_v2,
    resnet18,
    resnet50,
    resnet152,
    small_residual,
    vgg_mini,
)  # fmt: skip
from dagtrain.files import write_text
from dagtrain.report.chart import line_chart
from hdl.errors import DagtrainError
from placement.problem.instance import Instance, instance_from_json
from placement.problem.plan import Plan
from placement.search.search import Progress, SearchOptions, Solver, find_plan

Network = Callable[[Builder], Tensor]


@dataclass(frozen=True)
class Case:
    """An instance to search."""

    network: Network
    # (count, part) of the cluster
    cluster: tuple[tuple[int, str], ...]
    # time limit of one run of ours
    seconds: float
    # multiplications a frame above which a convolution becomes two engines
    split_above: int = 2**62


# 3×3 convolutions of ResNet-152, and all but its stem
SPLIT, SPLIT_ALL = 100_000_000, 51_000_000
INSTANCES: dict[str, Case] = {
    "vgg-mini": Case(vgg_mini, ((2, "10AX115"),), 10),
    "demo": Case(demo, ((4, "10AX115"),), 10),
    "mobilenetv2-arria": Case(mobilenet_v2, ((6, "10AX115"),), 60),
    "mobilenetv2-agilex": Case(mobilenet_v2, ((4, "AGFB014"),), 120),
    "resnet18": Case(resnet18, POSTER_CLUSTER, 30),
    "resnet50": Case(resnet50, POSTER_CLUSTER, 60),
    "resnet152": Case(resnet152, POSTER_CLUSTER, 60),
    "resnet152-32": Case(resnet152, ((32, "AGFB014"),), 60),
    "resnet152-split-100": Case(resnet152, ((100, "AGFB014"),), 300, SPLIT),
}
# time limit of a search of a problem from a file
FILE_SECONDS = 60.0
GOALS = (0.05, 0.01, 0.0)
# networks of more and more layers on eight devices, and ResNet-50 on more and more devices
FIXED_DEVICES, DEVICE_COUNTS, SCALING_SECONDS = 8, (2, 4, 8, 16, 32, 64, 100), 60.0
GROWING: dict[str, Case] = {
    f"{label} on {FIXED_DEVICES}": Case(network, ((FIXED_DEVICES, "AGFB014"),), SCALING_SECONDS, above)
    for label, network, above in (
        *(
            (network.__name__, network, 2**62)
            for network in (vgg_mini, demo, resnet18, mobilenet_v2, resnet50, resnet152)
        ),
        ("resnet152, 3×3 split", resnet152, SPLIT),
        ("resnet152, all split", resnet152, SPLIT_ALL),
    )
}
SPREADING: dict[str, Case] = {
    f"resnet50 on {count} FPGAs": Case(resnet50, ((count, "AGFB014"),), SCALING_SECONDS) for count in DEVICE_COUNTS
}
HEADS = ("instance", "layers", "devices", "solver", "first s", "5 % s", "1 % s", "proof s", "total s", "fps",
         "bound fps", "gap", "DSP", "MB")  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One search."""

    layers: int
    devices: int
    # seconds until the first plan, within 5 % and 1 % of the bound, and proven; None: not reached
    first: float | None
    within: tuple[float | None, ...]
    seconds: float
    fps: float
    bound_fps: float
    dsp_share: float
    megabytes: int
    failure: str = ""


def build(name: str) -> Instance:
    """An instance of the table by name, or of a file."""
    if name.endswith(".json"):
        return instance_from_json(Path(name).read_text(encoding="utf-8"))
    case = (INSTANCES | GROWING | SPREADING)[name]
    return instance_of(name, case.network, devices(*case.cluster), split_above=case.split_above)


def search(name: str, seed: int, seconds: float, solver: Solver, gap: float = 0.0) -> Run:
    """Run one search in this process."""
    warm = instance_of("warm", small_residual, devices((2, "10AX115")))
    find_plan(warm, SearchOptions(exact_choices=0, anneal_moves=1_000, anneal_budget=5_000, window_seconds=0.5))
    instance = build(name)
    times: dict[float, float] = {}
    best: list[Progress] = []
    began = time.perf_counter()

    def watch(progress: Progress) -> None:
        now = time.perf_counter() - began
        best.append(progress)
        if progress.gap is not None:
            times.setdefault(1.0, now)
            for goal in GOALS:
                if progress.gap <= goal:
                    times.setdefault(goal, now)

    try:
        options = SearchOptions(seed=seed, time_limit_seconds=seconds, solver=solver, gap=gap, anneal_budget=10**9)
        plan: Plan | None = find_plan(instance, options, watch)
        failure = ""
    except DagtrainError as error:
        plan, failure = None, type(error).__name__
    spent = time.perf_counter() - began
    used = sum(use.dsp for use in plan.devices) if plan else 0
    return Run(
        len(instance.items), len(instance.devices), times.get(1.0), tuple(times.get(goal) for goal in GOALS), spent,
        plan.throughput_fps if plan else 0.0, plan.bound_fps if plan else best[-1].bound_fps if best else 0.0,
        used / sum(device.dsp for device in instance.devices),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, failure,
    )  # fmt: skip


def in_child(name: str, seed: int, seconds: float, solver: Solver, gap: float = 0.0) -> Run:
    """Run one search in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(search, name, seed, seconds, solver, gap).result()


def worst(values: list[float | None]) -> str:
    """The largest of some times, or a dash if one was not reached."""
    reached = [value for value in values if value is not None]
    return f"{max(reached):.2f}" if len(reached) == len(values) else "–"


def row(name: str, solver: Solver, runs: list[Run], bound_fps: float) -> str:
    """One line of the table, of the worst values over the seeds."""
    failed = next((run.failure for run in runs if run.failure), "")
    fps = min(run.fps for run in runs)
    label = Path(name).parent.parent.name if name.endswith(".json") else name
    within = [worst([run.within[k] for run in runs]) for k in range(len(GOALS))]
    cells = [
        label, str(runs[0].layers), str(runs[0].devices), solver.value, worst([run.first for run in runs]), *within,
        f"{max(run.seconds for run in runs):.1f}", failed or f"{fps:.1f}", f"{bound_fps:.1f}",
        "–" if failed or not bound_fps else f"{1 - fps / bound_fps:.2%}",
        f"{min(run.dsp_share for run in runs):.1%}", str(max(run.megabytes for run in runs)),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def scaling(path: Path, seed: int) -> None:
    """Print how long instances of growing size take, and write the log-log plots: against layers, and devices."""
    runs = {}
    print("| " + " | ".join(HEADS) + " |\n|" + " --- |" * len(HEADS), flush=True)
    for name, case in (GROWING | SPREADING).items():
        runs[name] = in_child(name, seed, case.seconds, Solver.FAST)
        print(row(name, Solver.FAST, [runs[name]], runs[name].bound_fps), flush=True)
    growing, spreading = [runs[name] for name in GROWING], [runs[name] for name in SPREADING]
    studies: tuple[tuple[str, list[Run], Callable[[Run], int]], ...] = (
        (f"layers, on {FIXED_DEVICES} devices", growing, lambda run: run.layers),
        (f"devices, for {spreading[0].layers} layers", spreading, lambda run: run.devices),
    )
    for label, chosen, size in studies:
        chosen = sorted(chosen, key=size)
        series = {"first plan": [(size(run), run.first or math.nan) for run in chosen]}
        for k, goal in enumerate(GOALS[:-1]):
            series[f"within {goal:.0%}"] = [(size(run), run.within[k] or math.nan) for run in chosen]
        what = label.partition(",")[0]
        chart = line_chart("Planning time", label, "seconds", series, logarithmic=True)
        write_text(path.with_name(f"{path.stem}-{what}{path.suffix}"), chart)


def main() -> None:
    """Print the table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(INSTANCES), default=list(INSTANCES), help="instances to run")
    parser.add_argument("--seeds", type=int, default=5, help="seeds for each instance; the worst is shown")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--seconds", type=float, help="time limit of one run (default: as the table of instances says)")
    parser.add_argument("--gap", type=float, default=0.0, help="stop a run of ours this close to the bound")
    parser.add_argument("--literal-seconds", type=float, default=300.0, help="time limit of the literal model; 0: skip")
    parser.add_argument("--scaling", type=Path, help="measure growing instances instead; plots go beside this SVG file")
    parser.add_argument("--instances", nargs="+", type=Path, help="search these JSON files instead of the table")
    arguments = parser.parse_args()
    if arguments.scaling:
        scaling(arguments.scaling, seed=arguments.seed or 0)
        return
    print("| " + " | ".join(HEADS) + " |\n|" + " --- |" * len(HEADS), flush=True)
    for name in map(str, arguments.instances or arguments.only):
        seconds = arguments.seconds or (FILE_SECONDS if arguments.instances else INSTANCES[name].seconds)
        seeds = range(arguments.seeds) if arguments.seed is None else [arguments.seed]
        runs = [in_child(name, seed, seconds, Solver.FAST, arguments.gap) for seed in seeds]
        bounds = [run.bound_fps for run in runs if run.bound_fps]
        bound = min(bounds) if bounds else 0.0
        print(row(name, Solver.FAST, runs, bound), flush=True)
        if arguments.literal_seconds > 0:
            literal = in_child(name, seeds[0], arguments.literal_seconds, Solver.LITERAL)
            print(row(name, Solver.LITERAL, [literal], bound), flush=True)


if __name__ == "__main__":
    main()
