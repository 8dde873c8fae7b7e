"""Estimates beside synthesis, of circuits drawn by seed from ResNet-18, ResNet-50 and MobileNetV2 at 224 × 224.

    .venv/bin/python benchmarks/alms.py                          # draw, synthesise, print the table
    .venv/bin/python benchmarks/alms.py --seed 2 mobilenetv2

Each network is folded for the cycles a frame that stand in `CASES`, which are those of plans on a few FPGAs: the widest
circuits of the fastest plans take Yosys hours.  What Yosys made of a circuit is kept under the digest of its Verilog,
of Yosys' version and of its commands: on this machine at once, so a run that is ended early goes on where it was, and
in tests/synthesised.json when its network is done, in place of what the same draw kept there before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from dagtrain.files import write_text
from hdl.costs.synthesis import keep_synthesis, kept_synthesis

ROOT = Path(__file__).parent.parent
# case -> model under examples/models, cycles a frame
CASES: dict[str, tuple[str, int]] = {
    "mobilenetv2": ("mobilenetv2-dynamo-eval-norm", 802_816),
    "resnet18": ("resnet18-dynamo-eval-norm", 2_007_040),
    "resnet50": ("resnet50-dynamo-eval-norm", 4_014_080),
}
# draw -> digest -> cells by type
KEPT = ROOT / "tests" / "synthesised.json"
# circuits of more ALMs are judged
LARGE_ALM = 200


def main() -> None:
    """Draw, estimate, synthesise; the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--sample", type=int, default=28, help="circuits of each network")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/alms"))
    options = parser.parse_args()
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; cases are {', '.join(CASES)}")
    for netlists in load_kept().values():
        for digest, cells in netlists.items():
            if not kept_synthesis(digest).exists():
                keep_synthesis(digest, cells)
    rows: list[dict[str, Any]] = []
    for case in options.cases or CASES:
        found = drawn(case, options.sample, options.seed, options.out)
        keep(f"{case}, {options.sample} of seed {options.seed}", [row["digest"] for row in found if "digest" in row])
        rows += found
    print("| network | layer | node | ALM estimated | synthesised | error | registers |\n|" + " --- |" * 7)
    for row in rows:
        print(line(row))
    errors = [checked(row, "alm")["error"] for row in rows if "check" in row and large(row)]
    near = sum(abs(error) <= 0.12 for error in errors)
    print(
        f"\n{len(rows)} circuits, {len(errors)} of more than {LARGE_ALM} ALMs: within 12 % in {near}, "
        f"mean size of the error {fmean(map(abs, errors)):.1%}, mean error {fmean(errors):+.1%}; registers at most "
        f"{max(abs(checked(row, 'registers')['error']) for row in rows if 'check' in row and large(row)):.1%} off"
    )


def drawn(case: str, sample: int, seed: int, out: Path) -> list[dict[str, Any]]:
    """The rows of a network's estimate, with its name."""
    model, cycles = CASES[case]
    path = ROOT / "build" / "models" / f"{model}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, "examples/models/fill.py", model], cwd=ROOT, check=True, stdout=sys.stderr)
    folder = out / case
    dagtrain("import", path, "--out", folder)
    dagtrain("estimate", "--check", "--sample", sample, "--seed", seed, "--cycles", cycles, "--out", folder)
    rows = json.loads((folder / "estimate" / "estimate.json").read_text())["layers"]
    return [{"network": case, **row} for row in rows]


def load_kept() -> dict[str, dict[str, dict[str, int]]]:
    """Cells by type of circuits synthesised before, by draw and digest."""
    found: dict[str, dict[str, dict[str, int]]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found


def keep(draw: str, digests: Sequence[str]) -> None:
    """Write down what Yosys made of the circuits of a draw; what other draws keep stays."""
    made = {digest: json.loads(kept_synthesis(digest).read_text()) for digest in digests}
    kept = {**load_kept(), draw: made}
    draws = []
    for name, netlists in sorted(kept.items()):
        lines = [
            f"{json.dumps(digest)}: {json.dumps(cells, sort_keys=True)}" for digest, cells in sorted(netlists.items())
        ]
        draws.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    write_text(KEPT, "{\n" + ",\n".join(draws) + "\n}\n")


def dagtrain(*words: object) -> None:
    """Run a command."""
    arguments = [str(Path(sys.executable).with_name("dagtrain")), *map(str, words)]
    ended = subprocess.run(arguments, cwd=ROOT, check=False, stdout=sys.stderr)
    if ended.returncode:
        sys.exit(ended.returncode)


def checked(row: dict[str, Any], quantity: str) -> dict[str, Any]:
    """Estimate and synthesis of one quantity."""
    found: dict[str, Any] = next(item for item in row["check"] if item["quantity"] == quantity)
    return found


def large(row: dict[str, Any]) -> bool:
    """Whether a circuit is judged."""
    return bool(checked(row, "alm")["synthesis"] > LARGE_ALM)


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    head = f"| {row['network']} | {row['layer']} | {row['node']} | {row['alm']:,} |"
    if "check" not in row:
        return f"{head} {row['unchecked']} | | |"
    alm, registers = checked(row, "alm"), checked(row, "registers")
    head = f"| {row['network']} | {row['layer']} | {row['node']} | {alm['estimate']:,} |"
    return f"{head} {alm['synthesis']:,} | {alm['error']:+.1%} | {registers['error']:+.1%} |"


if __name__ == "__main__":
    main()
