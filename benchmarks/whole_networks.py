"""Whole networks trained in the Verilog of all FPGAs of the poster's clusters, bit for bit as the emulator trains them.

python benchmarks/whole_networks.py                        # ResNet-18 on eleven FPGAs, then MobileNetV2 on four
python benchmarks/whole_networks.py resnet18 --out build/whole

The networks are PyTorch's, in the form for 32x32 images (`examples/models/small`), with weights drawn from a seed and
random images; batches are of two frames (`benchmarks/batch-2.toml`).  Each step is the command that a user types, in a
process of its own.  The first plans that the planner finds will do, so its search is cut short.  Printed are
CPU seconds and the peak memory of the largest process of each step, and what was compared: losses, all new weights on
their way, and all state behind the last batch.  The exit code is 1 where a bit differs, or an FPGA stood idle.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import onnx

from benchmarks.networks import ROOT, Step, dagtrain
from importers.onnx.skeleton import fill, load_skeleton

# case -> skeleton below examples/models, cluster below examples/clusters, seconds in which circuits are elaborated and
# a plan is found on a busy core
CASES = {
    "resnet18": ("small/resnet18-torchscript-training", "resnet18-poster", 240.0),
    "mobilenetv2": ("small/mobilenetv2-torchscript-training", "mobilenetv2-agilex-poster", 1800.0),
}
RECIPE = ROOT / "benchmarks" / "batch-2.toml"


@dataclass(frozen=True)
class Options:
    """What the user said."""

    out: Path
    batches: int
    # None: those of the case
    place_seconds: float | None


def main() -> None:
    """Print what each case took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("build/whole"), help="where the results stay")
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--place-seconds", type=float, help="after which the best plan is taken")
    given = parser.parse_args()
    unknown = [case for case in given.cases if case not in CASES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; cases are {', '.join(CASES)}")
    options, passed = Options(given.out, given.batches, given.place_seconds), True
    for case in given.cases or CASES:
        passed &= trained(case, options)
    sys.exit(not passed)


def trained(case: str, options: Options) -> bool:
    """All steps of a case, told as they end; whether every bit was equal, and every FPGA had a part."""
    skeleton, cluster, seconds = CASES[case]
    out = options.out / case
    out.mkdir(parents=True, exist_ok=True)
    model = out / "model.onnx"
    onnx.save(fill(load_skeleton(ROOT / "examples" / "models" / f"{skeleton}.skeleton.gz")), model)
    devices = ROOT / "examples" / "clusters" / f"{cluster}.toml"
    print(f"{case}: {skeleton} on {cluster}, {options.batches} batches\n{'':10}{'CPU s':>8}{'s':>8}{'GiB':>8}")
    found: dict[str, Step] = {}
    for name, words in (
        ("import", [model, "--recipe", RECIPE]),
        ("place", ["--devices", devices, "--time-limit", options.place_seconds or seconds]),
        ("emit", []),
        ("cosim", ["--batches", options.batches, "--stall", 0, "--no-efficiency"]),
    ):
        step = found[name] = dagtrain(name, *words, "--out", out)
        print(f"{name:10}{step.cpu_seconds:8.0f}{step.seconds:8.0f}{step.memory:8.2f}", flush=True)
        if step.error:
            print(step.error)
            return False
    for line in told(out, found):
        print(line)
    place, cosim = found["place"].result["place"], found["cosim"].result["cosim"]
    return bool(cosim["passed"]) and all(device["items"] for device in place["devices"])


def told(out: Path, found: dict[str, Step]) -> Iterator[str]:
    """What was planned, emitted and compared."""
    place, cosim = found["place"].result["place"], found["cosim"].result["cosim"]
    used = [device for device in place["devices"] if device["items"]]
    yield (
        f"  {len(used)} of {len(place['devices'])} FPGAs, {sum(device['items'] for device in used)} nodes, "
        f"{len(place['crossings'])} streams between them, planned {cosim['planned_batch_cycles']:,} cycles a batch"
    )
    # a circuit that several FPGAs have is compiled once
    files = {path.name: path for path in sorted(out.glob("emit/*/rtl/*.v"))}
    lines = sum(path.read_bytes().count(b"\n") for path in files.values())
    yield f"  {lines:,} lines of Verilog in {len(files):,} modules"
    verdict = "every bit equal" if cosim["passed"] else "MISMATCH: " + "; ".join(cosim["mismatches"])
    yield f"  {cosim['cycles']:,} cycles, {cosim['compared_words']:,} words compared: {verdict}"


if __name__ == "__main__":
    main()
