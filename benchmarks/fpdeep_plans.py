"""FPDeep's mapping beside a plan of ours, for the networks of docs/fpdeep.md.

    python -m benchmarks.fpdeep_plans                    # the tables of what is kept
    python -m benchmarks.fpdeep_plans --plan vggmini     # plans it anew first: minutes
    python -m benchmarks.fpdeep_plans --plan alexnet --seconds 500
    python -m benchmarks.fpdeep_plans --write            # … the tables into docs/fpdeep.md

A step is the command that a user types, in a process of its own.  What is kept, in `fpdeep_plans.json`, is the
`mapping.json` that `dagtrain place --mapping fpdeep` leaves, with the bound of the plan beside it; where no plan was
found in so many seconds, the mapping alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.beside_paper import print_table, with_table
from dagtrain.files import write_text
from dagtrain.flow.workspace import program_hash
from dagtrain.rates import rate_text

ROOT = Path(__file__).parent.parent
OUT = Path(__file__).with_name("fpdeep_plans.json")
DOCS = ROOT / "docs" / "fpdeep.md"


@dataclass(frozen=True)
class Case:
    """A network on a cluster."""

    # script under examples/models, and the name of its model
    script: str
    model: str
    cluster: str
    importing: str = ""

    def commands(self, folder: str = "build", seconds: int | None = None) -> list[str]:
        """That a user types."""
        limit = "" if seconds is None else f" --time-limit {seconds}"
        return [
            f"python examples/models/{self.script}.py {self.model} --out {folder}/models",
            f"dagtrain import {folder}/models/{self.model}.onnx{self.importing} --out {folder}",
            f"dagtrain place --devices examples/clusters/{self.cluster}.toml --mapping fpdeep{limit} --out {folder}",
        ]


CASES = {
    "vggmini": Case("poster_nets", "vggmini", "vggmini-poster"),
    "alexnet": Case("hypar_nets", "alexnet", "fpdeep-15", " --norm as-is"),
}


def planned(case: Case, seconds: int | None) -> dict[str, Any]:
    """What the commands leave.  Raises `CalledProcessError` where one but the search for a plan fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command in case.commands(name, seconds):
            words = shlex.split(command)
            start = [sys.executable, *(["-m", "dagtrain.cli"] if words[0] == "dagtrain" else [])]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run([*start, *words[1:]], cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
            if not (folder / "mapping").exists():
                done.check_returncode()
        found = json.loads((folder / "mapping" / "mapping.json").read_text())
        plan = json.loads((folder / "place" / "plan.json").read_text()) if found["ours"] else None
    return {
        "mapping": {key: value for key, value in found.items() if key != "schema_version"},
        "any_bound_fps": plan["clock_hz"] / plan["any_bound_cycles_per_frame"] if plan else None,
        "seconds": seconds,
        "program": program_hash()[:12],
    }


def known(path: Path = OUT) -> dict[str, dict[str, Any]]:
    """Case -> what is kept of it."""
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def multipliers_table(record: dict[str, Any]) -> Table:
    """Where multipliers decide."""
    mapping = record["mapping"]
    ours, boards = mapping["ours"], mapping["boards"]
    proven = ", proven best for any folding" if ours["fps"] >= record["any_bound_fps"] * (1 - 1e-6) else ""
    bound = proven or f"; no folding has more than {rate_text(record['any_bound_fps'])}"
    theirs = ", ".join(f"{board['dsp_share']:.1%}" for board in boards)
    mine = ", ".join(f"{ours['dsp_share'].get(board['device'], 0.0):.1%}" for board in boards)
    fps = rate_text(mapping["fps"]), rate_text(mapping["whole_passes_fps"]), f"{rate_text(ours['fps'])}{bound}"
    idle = (f"{share:.1%}" for share in (mapping["idle"], mapping["whole_passes_idle"], ours["idle"]))
    return ("", "FPDeep's mapping", "with whole passes", "our plan"), [
        ("frames/s inside a batch", *fps),
        ("idle multipliers", *idle),
        ("DSP blocks of each board", theirs, theirs, mine),
        ("counted", "multipliers", "multipliers", "circuits with their logic, memory and links"),
    ]


def dram_table(record: dict[str, Any]) -> Table:
    """Where the memory of dense weights decides."""
    mapping = record["mapping"]
    ours = mapping["ours"]
    read = max(board["dram_bytes_per_frame"] for board in mapping["boards"])
    rate = mapping["dram_bytes_per_s"]
    wanted = f"{read * mapping['fps'] / 1e9:.0f} GB/s wanted, {rate / 1e9:.1f} usable"
    title = f"the same, if the board with most dense weights reads its {read / 2e6:.1f} M once a frame from DRAM"
    rows = [
        ("FPDeep's mapping, by its multipliers", rate_text(mapping["fps"])),
        (f"{title} ({wanted})", rate_text(min(mapping["fps"], rate / read))),
    ]
    if ours is not None:
        bound = f"no folding has more than {rate_text(record['any_bound_fps'])}"
        idle = f"{ours['idle']:.0%} of multipliers' cycles idle"
        rows.append((f"our plan, inside a batch; {bound}; {idle}", rate_text(ours["fps"])))
    return ("", "frames/s"), rows


TABLES = {"vggmini": multipliers_table, "alexnet": dram_table}


def tables() -> dict[str, Table]:
    """Case -> its table, of those that are kept."""
    found = known()
    return {name: TABLES[name](found[name]) for name in CASES if name in found}


def marks(name: str) -> tuple[str, str]:
    """Of a table in the page."""
    return f"<!-- begin: benchmarks/fpdeep_plans.py {name} -->", f"<!-- end: benchmarks/fpdeep_plans.py {name} -->"


def main() -> None:
    """Plans what is asked for, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", nargs="+", choices=list(CASES), default=[], help="plan these anew")
    parser.add_argument("--seconds", type=int, help="of the search for a plan (as long as it takes)")
    parser.add_argument("--write", action="store_true", help="the tables into docs/fpdeep.md")
    options = parser.parse_args()
    for name in options.plan:
        found = known() | {name: planned(CASES[name], options.seconds)}
        write_text(OUT, json.dumps(found, indent=1, sort_keys=True) + "\n")
    for name, (heads, cells) in tables().items():
        print("\n".join(["", *CASES[name].commands(), ""]))
        print_table(heads, cells)
        if options.write:
            write_text(DOCS, with_table(DOCS.read_text(), DOCS, marks(name), heads, cells))


if __name__ == "__main__":
    main()
