"""What plans of real networks come to with every lever: the rows of docs/networks.md, and whether they still do.

    python -m benchmarks.levers                      # the rows as they were planned last, in a table
    python -m benchmarks.levers resnet18             # plan anew, from nothing; 1 if it trains slower than its row says
    python -m benchmarks.levers resnet18 --write     # … and let the row say what it comes to now, here and in the docs
    python -m benchmarks.levers resnet18 --emit      # … and generate its Verilog twice, from an empty cache and from it
    python -m benchmarks.levers resnet18 --known build/networks/resnet18 --by 561594aa   # a plan that this commit made

All of them take hours, a core each: `dagtrain place` ends by the limit that its row names, on a slow machine with a
plan that a faster one betters.  So a row says whether its search came to its end, and which commit planned it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.beside_paper import print_table, with_table
from benchmarks.networks import CASES, ROOT, Planned, emitted, planned
from dagtrain.files import write_text

STORE = Path(__file__).with_suffix(".json")
DOCS = ROOT / "docs" / "networks.md"
MARKS = "<!-- begin: benchmarks/levers.py -->", "<!-- end: benchmarks/levers.py -->"
HEADS = (
    "network, cluster",
    "0.1.0, without levers",
    "inside a batch",
    "in training",
    "target",
    "bound for any folding",
    "never idle",
    "in use: DSP, M20K, ALM",
    "streams",
    "planned in",
)
NUMBERS = ("--bits", "sum=fit", "--recipe", ROOT / "benchmarks" / "batch-256.toml")
# a plan that trains by more than so much slower than its row has lost it
LOST = 0.01


@dataclass(frozen=True)
class Row:
    """A network on a cluster."""

    label: str
    # of `dagtrain place`
    options: str
    # frames/s inside a batch: what was asked for, of how version 0.1.0 planned it
    target: str
    before: str = ""


ROWS: Mapping[str, Row] = {
    "resnet18": Row("ResNet-18, poster's eleven", "--levers auto --time-limit 3000", "2 100", "1 771"),
    "resnet18-clocks": Row(
        "ResNet-18, poster's eleven, the Agilex at 280 MHz", "--levers auto --time-limit 4000", "2 631"
    ),
    "resnet50": Row("ResNet-50, poster's eleven", "--levers auto --time-limit 3600", "600", "221"),
    "resnet50-32": Row("ResNet-50, 32 × AGFB014", "--levers auto --time-limit 2700", "2 000"),
    "resnet50-100": Row(
        "ResNet-50 in four copies, 100 × AGFB014",
        "--levers auto --first-fps 9600 --time-limit 5400",
        "70 % of what never idles",
    ),
    "mobilenetv2-channels": Row(
        "MobileNetV2, 4 × AGFB014, memory channels one by one", "--levers auto --time-limit 1500", "3 200", "1 752"
    ),
    "mobilenetv2-eight": Row(
        "MobileNetV2 in two copies, 8 × AGFB014, memory channels one by one",
        "--levers auto --time-limit 2400",
        "6 732",
    ),
    "mobilenetv2-arria": Row(
        "MobileNetV2, 6 × 10AX115 at 85 % of M20Ks",
        "--small-buffers auto --share-statistics auto --multiply-constants auto --ragged-tiles auto "
        "--deal-streams auto --time-limit 1300",
        "1 500",
        "no plan",
    ),
}


@dataclass(frozen=True)
class Known:
    """A row as it was planned."""

    # short hash
    commit: str
    plan: Planned


def main(words: Sequence[str] | None = None) -> int:
    """Plan the rows that are named, and print the table."""
    options = parse(words)
    rows, good = known(), True
    for case in options.rows:
        folder = options.known or options.out / case
        found = plan_row(case, folder) if options.known is None else there(folder)
        good &= not isinstance(found, str) and verdict(case, found, rows.get(case))
        if isinstance(found, str):
            print(f"{case}: {found}", flush=True)
            continue
        if options.emit:
            print("\n".join(emitted(folder)), flush=True)
        rows[case] = Known(options.by or commit(), found)
        if options.write:
            write_text(STORE, json.dumps({each: asdict(rows[each]) for each in ROWS if each in rows}, indent=1) + "\n")
            write_text(DOCS, page(DOCS.read_text(), rows))
    print_table(HEADS, table(rows))
    return 0 if good else 1


def plan_row(case: str, out: Path) -> Planned | str:
    """From nothing; the planner's message where there is no plan."""
    # `dagtrain place` would go on from a plan that is there
    shutil.rmtree(out, ignore_errors=True)
    _, placed = planned(case, (*CASES[case][2], *ROWS[case].options.split()), out, NUMBERS)
    return placed.error or Planned.of(placed.result["place"])


def there(folder: Path) -> Planned:
    """The plan in a folder."""
    record, plan = (json.loads((folder / "place" / f"{name}.json").read_text()) for name in ("place", "plan"))
    return Planned.of({**record, **plan})


def verdict(case: str, found: Planned, before: Known | None) -> bool:
    """Whether the row still trains as fast as it did; says so."""
    if before is None:
        print(f"{case}: {found.training_fps:,.1f} frames/s in training, and no row to compare it with", flush=True)
        return True
    share = found.training_fps / before.plan.training_fps
    word = "LOST" if share < 1 - LOST else "gained" if share > 1 + LOST else "as it was"
    print(
        f"{case}: {found.training_fps:,.1f} frames/s in training, {share:.3f} of {before.plan.training_fps:,.1f} as of "
        f"{before.commit}: {word}",
        flush=True,
    )
    return share >= 1 - LOST


def known(path: Path = STORE) -> dict[str, Known]:
    """Rows as they were planned last."""
    return {case: Known(row["commit"], Planned(**row["plan"])) for case, row in json.loads(path.read_text()).items()}


def table(rows: Mapping[str, Known]) -> list[Sequence[str]]:
    """Lines of the table."""
    return [cells(ROWS[case], rows[case].plan) for case in ROWS if case in rows]


def cells(row: Row, plan: Planned) -> Sequence[str]:
    """Of the table."""
    end = "" if plan.finished else ", ended early"
    return (
        row.label,
        row.before,
        _number(plan.steady_fps, 1),
        _number(plan.training_fps),
        row.target,
        _number(plan.any_bound_fps),
        f"{_number(plan.never_idle_fps)}, {plan.steady_fps / plan.never_idle_fps:.1%} of it",
        ", ".join(f"{share:.0%}" for share in (plan.dsp_share, plan.m20k_share, plan.alm_share)),
        str(plan.streams),
        f"{_number(plan.place_seconds)} s{end}",
    )


def _number(number: float, digits: int = 0) -> str:
    return f"{number:,.{digits}f}".replace(",", " ")


def page(text: str, rows: Mapping[str, Known]) -> str:
    """The page with the table between its marks."""
    return with_table(text, DOCS, MARKS, HEADS, table(rows))


def commit() -> str:
    """Of the sources at work."""
    words = ("git", "describe", "--always", "--dirty", "--exclude", "*")
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; default: none is planned")
    parser.add_argument("--out", type=Path, default=Path("build/networks"), help="where the results stay")
    parser.add_argument("--write", action="store_true", help=f"keep what they come to, in {STORE.name} and in the docs")
    parser.add_argument("--emit", action="store_true", help="generate and lint the Verilog too")
    parser.add_argument("--known", type=Path, help="a folder with the plan of the one row named, instead of planning")
    parser.add_argument("--by", help="the commit that made it")
    options = parser.parse_args(words)
    unknown = [case for case in options.rows if case not in ROWS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; rows are {', '.join(ROWS)}")
    if (options.known is None) != (options.by is None) or (options.known is not None and len(options.rows) != 1):
        parser.error("--known is the plan of one row, which must be named, and --by says what made it")
    return options


if __name__ == "__main__":
    sys.exit(main())
