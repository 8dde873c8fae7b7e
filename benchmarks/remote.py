"""Parameter balancing: plans with memories in stores on other boards, and without, beside each other.

python benchmarks/remote.py                                  # all cases
python benchmarks/remote.py digits --remote block2_conv2     # with this layer's memories in stores in any case
python benchmarks/remote.py mobilenetv2-arria --place="--time-limit 900 --no-dram"

S is the largest share of block memory of any board, as in equation (12) of FPDeep (Wang, Geng et al., IEEE TC 2020).
A case without a plan shows the planner's message.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.networks import CASES, ROOT, Step, dagtrain, planned

DIGITS = ROOT / "examples" / "digits"
# the trained network, and those of the poster's clusters on which block memory binds
ALL = ("digits", "resnet18", "mobilenetv2-arria")


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(ALL)}; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "remote", help="where the results stay")
    parser.add_argument("--remote", action="append", default=[], help="as `dagtrain place` takes it")
    parser.add_argument("--place", default="", help="further options of `dagtrain place`, in quotes")
    options = parser.parse_args()
    unknown = [case for case in options.cases if case not in ALL]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; cases are {', '.join(ALL)}")
    asked = tuple(shlex.split(options.place))
    named = tuple(word for name in options.remote for word in ("--remote", name))
    print("| case | stores | frames/s inside a batch | gap | S | s |\n|" + " --- |" * 6, flush=True)
    for case in options.cases or ALL:
        for stores, further in ((False, ("--no-remote",)), (True, named)):
            print(row(case, stores, place(case, (*asked, *further), options.out / f"{case}-{stores}")), flush=True)


def place(case: str, further: Sequence[str], out: Path) -> Step:
    """Import and place a case."""
    if case in CASES:
        return planned(case, (*CASES[case][2], *further), out)[1]
    words = DIGITS / "digits.onnx", "--data", "digits", "--recipe", DIGITS / "recipe.toml"
    imported = dagtrain("import", *words, "--out", out)
    if imported.error:
        return imported
    return dagtrain("place", "--devices", DIGITS / "cluster.toml", *further, "--out", out)


def row(case: str, stores: bool, placed: Step) -> str:
    """A line of the table."""
    if placed.error:
        return f"| {case} | {'offered' if stores else 'none'} | {placed.error} | | | {placed.seconds:.0f} |"
    plan: dict[str, Any] = placed.result["place"]
    share = max(use["m20k"] / use["m20k_capacity"] for use in plan["devices"])
    told = f"of {len(plan['remote'])} nodes" if plan["remote"] else "offered, none chosen" if stores else "none"
    return (
        f"| {case} | {told} | {plan['steady_fps']:,.0f} | {plan['steady_gap']:.1%} | {share:.1%} | "
        f"{placed.seconds:.0f} |"
    )


if __name__ == "__main__":
    main()
