"""Real networks from ONNX to Verilog: what the plan gives, how long each step takes, how much memory.

python benchmarks/networks.py                       # all cases, in order
python benchmarks/networks.py resnet18 --out build/networks
python benchmarks/networks.py resnet18 --bits sum=fit  # with numbers of other bits
python benchmarks/networks.py resnet18 --place="--share-weights auto"  # with further options of `dagtrain place`
python benchmarks/networks.py --poster              # plans for the poster's five rows beside its own

Weights are drawn from a seed (`examples/models/fill.py`, `poster_nets.py`); shapes and graph of ResNets and MobileNetV2
are those of PyTorch's exporter.  A step is the command that a user types, in a process of its own.  Verilog is
generated and linted twice: with an empty cache of modules, then from the cache.  A case without a plan shows the
planner's message.

The poster (Kreowsky, Knapheide, Stabernack: training CNNs on network-attached FPGA clusters) counts one multiplication
a DSP block and cycle; a block of ours multiplies twice.  So its rows are planned with half of the blocks that the
cluster files allow.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# case -> model under examples/models, cluster under examples/clusters, further options of `dagtrain place`
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "vggmini": ("vggmini", "vggmini-poster", ()),
    "demo": ("demo", "demo-poster", ()),
    "resnet18": ("resnet18-dynamo-eval-norm", "resnet18-poster", ()),
    # the same, the Agilex at the clock that is plausible for them
    "resnet18-clocks": ("resnet18-dynamo-eval-norm", "resnet18-poster-clocks", ()),
    "mobilenetv2-agilex": ("mobilenetv2-dynamo-eval-norm", "mobilenetv2-agilex-poster", ()),
    # the same boards, their memory channels one by one
    "mobilenetv2-channels": ("mobilenetv2-dynamo-eval-norm", "mobilenetv2-agilex-channels", ()),
    # twice as many of them, and two copies of the network
    "mobilenetv2-eight": ("mobilenetv2-dynamo-eval-norm", "mobilenetv2-agilex-eight", ("--replicas", "2")),
    "mobilenetv2-arria": ("mobilenetv2-dynamo-eval-norm", "mobilenetv2-arria-poster", ()),
    # the same with more of every device's block memories
    "mobilenetv2-arria-95": ("mobilenetv2-dynamo-eval-norm", "mobilenetv2-arria-poster", ("--cap", "m20k=0.95")),
    "resnet50": ("resnet50-dynamo-eval-norm", "resnet18-poster", ()),
    "resnet50-32": ("resnet50-dynamo-eval-norm", "agilex-32", ()),
    # four copies of the network
    "resnet50-100": ("resnet50-dynamo-eval-norm", "agilex-100", ("--replicas", "4")),
}
# case -> further options of `dagtrain import`
IMPORTS: dict[str, tuple[str, ...]] = {
    # each copy with statistics of its own
    "mobilenetv2-eight": ("--norm-sync", "apart"),
    "resnet50-100": ("--norm-sync", "apart"),
}
# case -> frames/s and share of DSP blocks in the poster's table
POSTER: dict[str, tuple[float, float]] = {
    "vggmini": (600, 0.385),
    "demo": (558, 0.722),
    "mobilenetv2-agilex": (516, 0.378),
    "mobilenetv2-arria-95": (696, 0.812),
    "resnet18": (800, 0.881),
}
# share of the DSP blocks that the cluster files allow, and what one multiplication a block leaves of it
DSP_CAP, MACS_A_BLOCK = 0.85, 2


@dataclass(frozen=True)
class Planned:
    """What a plan comes to."""

    # frames/s
    steady_fps: float
    training_fps: float
    # of the levels priced; of any folding; what multipliers would do that never idle
    bound_fps: float
    any_bound_fps: float
    never_idle_fps: float
    # between FPGAs
    streams: int
    # of all devices together
    dsp_share: float
    m20k_share: float
    alm_share: float
    place_seconds: float
    # rather than ended by its limit
    finished: bool

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Planned:
        """From what `dagtrain place --json` prints, or leaves in its folder."""
        dsp, m20k, alm = (
            sum(use[resource] for use in plan["devices"]) / sum(use[f"{resource}_capacity"] for use in plan["devices"])
            for resource in ("dsp", "m20k", "alm")
        )
        return cls(
            steady_fps=plan["steady_fps"],
            training_fps=plan["throughput_fps"],
            bound_fps=plan["bound_fps"],
            any_bound_fps=plan["any_bound_fps"],
            never_idle_fps=plan["never_idle_fps"],
            streams=len(plan["crossings"]),
            dsp_share=dsp,
            m20k_share=m20k,
            alm_share=alm,
            place_seconds=plan["seconds"],
            finished=plan["finished"],
        )

    @property
    def shares(self) -> str:
        """Of what all devices have, in words."""
        return f"{self.dsp_share:.0%} DSP, {self.m20k_share:.0%} M20K, {self.alm_share:.0%} ALM"


@dataclass(frozen=True)
class Step:
    """How a command went."""

    seconds: float
    # peak resident memory of the process or any of its children, GiB
    memory: float
    # what --json printed; empty if it failed
    result: dict[str, Any]
    error: str
    # user and system time of the process and all that it started
    cpu_seconds: float


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("build/networks"), help="where the results stay")
    parser.add_argument("--poster", action="store_true", help="only plan, at one multiplication a DSP block")
    parser.add_argument("--bits", action="append", default=[], help="as `dagtrain import` takes it")
    parser.add_argument("--recipe", type=Path, help="as `dagtrain import` takes it: benchmarks/batch-256.toml, say")
    parser.add_argument("--place", default="", help="further options of `dagtrain place`, in quotes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    asked = tuple(shlex.split(options.place))
    numbers = [word for text in options.bits for word in ("--bits", text)]
    numbers += ["--recipe", options.recipe] if options.recipe else []
    known = POSTER if options.poster else CASES
    unknown = [case for case in options.cases if case not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; cases are {', '.join(known)}")
    if options.poster:
        print("| case | poster fps | poster DSP | fps | proven bound | DSP | place s |\n|" + " --- |" * 7, flush=True)
        for case in options.cases or POSTER:
            print(poster_row(case, options.out / f"{case}-poster", numbers, asked), flush=True)
        return
    for case in options.cases or CASES:
        for line in run(case, options.out / case, numbers, asked):
            print(line, flush=True)


def run(case: str, out: Path, numbers: Sequence[object], asked: tuple[str, ...]) -> list[str]:
    """All steps of a case; the lines of its table."""
    model, cluster, further = CASES[case]
    further += asked
    imported, placed = planned(case, further, out, numbers)
    lines = [
        " ".join([f"{case}: {model} on {cluster}", *further, *map(str, numbers)]),
        f"  import {imported.seconds:.0f} s, {imported.memory:.1f} GiB",
    ]
    if placed.error:
        return [*lines, f"  place {placed.seconds:.0f} s: {placed.error}"]
    plan = Planned.of(placed.result["place"])
    lines += [
        f"  place {placed.seconds:.0f} s, {placed.memory:.1f} GiB: {plan.training_fps:,.0f} frames/s in training; "
        f"inside a batch {plan.steady_fps:,.1f}, proven bound {plan.bound_fps:,.1f}, "
        f"gap {1 - plan.steady_fps / plan.bound_fps:.1%}; {plan.streams} streams between FPGAs",
        f"  {plan.steady_fps / plan.never_idle_fps:.1%} of {plan.never_idle_fps:,.0f}, what multipliers "
        "would do that never idle",
        "  in use: " + plan.shares,
        *(f"  {layer} in {parts} parts" for layer, parts in placed.result["place"]["splits"].items()),
    ]
    return [*lines, *emitted(out)]


def emitted(out: Path) -> list[str]:
    """Generate and lint the Verilog twice; the lines of the table."""
    lines = []
    with tempfile.TemporaryDirectory() as cache:
        for label in ("cold", "from cache"):
            shutil.rmtree(out / "emit", ignore_errors=True)
            step = dagtrain("emit", "--out", out, cache=cache)
            what = step.error or "every FPGA clean under verilator --lint-only -Wall"
            lines.append(f"  emit {label} {step.seconds:.0f} s, {step.memory:.1f} GiB: {what}")
    return lines


def planned(case: str, further: tuple[str, ...], out: Path, numbers: Sequence[object] = ()) -> tuple[Step, Step]:
    """Import and place a case, whose model is made if it is not there."""
    model, cluster, _ = CASES[case]
    path = ROOT / "build" / "models" / f"{model}.onnx"
    if not path.exists():
        skeleton = ROOT / "examples" / "models" / f"{model}.skeleton.gz"
        script = "fill.py" if skeleton.exists() else "poster_nets.py"
        subprocess.run([sys.executable, f"examples/models/{script}", model], cwd=ROOT, check=True, stdout=sys.stderr)
    devices = ROOT / "examples" / "clusters" / f"{cluster}.toml"
    imported = dagtrain("import", path, *numbers, *IMPORTS.get(case, ()), "--out", out)
    return imported, dagtrain("place", "--devices", devices, *further, "--out", out)


def poster_row(case: str, out: Path, numbers: Sequence[object], asked: tuple[str, ...]) -> str:
    """A row of the poster's table beside our rate inside a batch; the share of all blocks if each multiplied once."""
    fps, share = POSTER[case]
    further = (*CASES[case][2], *asked, "--cap", f"dsp={DSP_CAP / MACS_A_BLOCK}")
    _, placed = planned(case, further, out, numbers)
    if placed.error:
        return f"| {case} | {fps:,.0f} | {share:.1%} | {placed.error} | | | {placed.seconds:.0f} |"
    plan = placed.result["place"]
    used, capacity = (sum(use[key] for use in plan["devices"]) for key in ("dsp", "dsp_capacity"))
    return (
        f"| {case} | {fps:,.0f} | {share:.1%} | {plan['steady_fps']:,.0f} | {plan['bound_fps']:,.0f} | "
        f"{used / capacity * DSP_CAP:.1%} | {placed.seconds:.0f} |"
    )


def dagtrain(command: str, *words: object, cache: str | None = None) -> Step:
    """Run a command with --json."""
    environment = dict(os.environ) | ({"DAGTRAIN_CACHE": cache} if cache else {})
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        arguments = [str(Path(sys.executable).with_name("dagtrain")), command, *map(str, words), "--json"]
        child = subprocess.Popen(arguments, cwd=ROOT, stdout=output, stderr=errors, env=environment)
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            # it would go on for nobody
            child.terminate()
            raise
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        text, error = output.read(), errors.read().strip()
    seconds, memory = time.perf_counter() - start, usage.ru_maxrss / 2**20
    cpu_seconds = usage.ru_utime + usage.ru_stime
    # a verdict that is negative is a result too
    if child.returncode and not text:
        return Step(seconds, memory, {}, error or f"exit code {child.returncode}", cpu_seconds)
    result = json.loads(text)
    return Step(seconds, memory, {command: result}, result.get("error", {}).get("message", ""), cpu_seconds)


if __name__ == "__main__":
    main()
