"""Place and route on an ECP5, beside what `dagtrain timing` says of the same circuits.

python -m pip install -e ".[ecp5]"     # nextpnr-ecp5, once
python benchmarks/ecp5.py              # circuits of each kind of the demo, units of ImageNet's size, one small FPGA
python benchmarks/ecp5.py --only conv  # those whose name holds the word
python benchmarks/ecp5.py --seeds 3    # the median of three placements

Results are kept by the digest of the Verilog, so a run that was interrupted goes on where it was.  The first run takes
half an hour of CPU time.  docs/timing.md says what the table can tell.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.circuits import circuits_of_each_kind, kind_of
from benchmarks.timing import MODULE
from dagtrain.console import BarProgress
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.project import used_modules
from dagtrain.progress import Progress
from hdl.cache import cache_folder
from hdl.costs.ecp5 import Routed, nextpnr_version, place_and_route
from hdl.costs.timing import NET_PS, ModuleTiming, time_module
from hdl.errors import DagtrainError
from tests.cosim_support import tiny_design

# one FPGA of the tests' smallest cluster: a convolution and a normalisation with their training, links, memory in DRAM
DEVICE = "beta"


@dataclass(frozen=True)
class Row:
    """A circuit with both timings."""

    name: str
    # placements with several seeds, that of the median path first
    routed: tuple[Routed, ...]
    timing: ModuleTiming


def circuits() -> dict[str, tuple[str, str]]:
    """Circuit -> (name of its Verilog module, text), the smallest of each kind; always the same."""
    found = {
        f"{name} (ImageNet)" if module == MODULE else kind_of(name).replace("_", " "): (module, text)
        for name, (module, text) in circuits_of_each_kind().modules.items()
    }
    library = ModuleLibrary(cache_folder() / "modules")
    device = next(device for device in tiny_design(library).devices if device.name == DEVICE)
    inside = "".join(module.text for module in used_modules(device.top, library))
    found["a whole small FPGA"] = device.top.name, inside + device.top.to_verilog()
    # what is done first is shown first
    return dict(sorted(found.items(), key=lambda item: len(item[1][1])))


def measure(wanted: Mapping[str, tuple[str, str]], seeds: int, progress: Progress) -> Iterator[Row]:
    """Both timings of every circuit.  Raises `ToolError`, `ToolMissing`."""
    progress.begin(f"place and route, {nextpnr_version()}", len(wanted))
    for name, (module, text) in wanted.items():
        folder = cache_folder() / "ecp5"
        routed = [place_and_route(text, module, seed=seed + 1, folder=folder) for seed in range(seeds)]
        order = sorted(routed, key=lambda found: found.worst.ps)
        middle = order.pop((len(order) - 1) // 2)
        timing = time_module(text, module, NET_PS, cache_folder() / "timing")
        progress.advance(note=name)
        yield Row(name, (middle, *order), timing)
    progress.end()


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's, ties by their mean rank."""

    def ranks(values: Sequence[float]) -> list[float]:
        order = sorted(values)
        return [order.index(value) + (order.count(value) - 1) / 2 for value in values]

    return statistics.correlation(ranks(a), ranks(b))


HEAD = (
    "| circuit | LUT4 | FF | DSP, registered | 18 kbit | fmax, MHz | ns | of it wires | timing, ns | ratio | path |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    """Of the table."""
    routed, ns = row.routed[0], row.timing.worst.ps / 1000
    path, spread = routed.worst, ""
    if len(row.routed) > 1:
        ends = [other.worst.ps / 1000 for other in row.routed]
        spread = f" ({min(ends):.1f} to {max(ends):.1f})"
    products = f"{routed.multipliers}, {routed.registered_multipliers}" if routed.multipliers else "0"
    return (
        f"| {row.name} | {routed.tables} | {routed.flip_flops} | {products} | {routed.block_memories} "
        f"| {routed.fmax_mhz:.0f} | {path.ps / 1000:.2f}{spread} | {path.wire_ps / path.ps:.0%} | {ns:.2f} "
        f"| {path.ps / row.timing.worst.ps:.2f} | `{path.start}` → `{path.end}` |"
    )


def summary(rows: Sequence[Row]) -> list[str]:
    """How far the two agree."""
    lines = []
    # in ECP5 a product without registers in its block is slower than anything else
    plain = [row for row in rows if row.routed[0].multipliers == row.routed[0].registered_multipliers]
    for label, some in (("all", rows), ("without loose products", plain)):
        if len(some) > 2:
            ecp5 = [row.routed[0].worst.ps / 1000 for row in some]
            said = [row.timing.worst.ps / 1000 for row in some]
            ratios = [a / b for a, b in zip(ecp5, said, strict=True)]
            lines.append(
                f"{label}: {len(some)} circuits, rank correlation {rank_correlation(ecp5, said):.2f}, "
                f"ratio {min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}"
            )
    wires = [row.routed[0].worst.wire_ps / row.routed[0].worst.ps for row in rows]
    lines.append(f"wires take {statistics.median(wires):.0%} of the slowest path, {min(wires):.0%} to {max(wires):.0%}")
    return lines


def main() -> int:
    """Place, route, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="circuits whose name holds this")
    parser.add_argument("--seeds", type=int, default=1, help="placements of each circuit")
    options = parser.parse_args()
    rows: list[Row] = []
    stopped = False
    try:
        nextpnr_version()
        wanted = {name: circuit for name, circuit in circuits().items() if options.only in name}
        with BarProgress() as progress:
            for row in measure(wanted, max(options.seeds, 1), progress):
                rows.append(row)
    except DagtrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this one was", file=sys.stderr)
        stopped = True
    rows.sort(key=lambda row: -row.routed[0].worst.ps)
    if rows:
        print("\n".join([HEAD, *map(line, rows), *summary(rows)]))
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
