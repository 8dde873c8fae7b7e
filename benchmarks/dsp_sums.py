"""What blocks hold beside multipliers and words, by kind of circuit of a network.

    .venv/bin/python -m benchmarks.dsp_sums mobilenetv2 62720
    .venv/bin/python -m benchmarks.dsp_sums resnet18 2007040 --part 10AX115
    .venv/bin/python -m benchmarks.dsp_sums chains

folds every circuit for the cycles a frame, and prints ALMs as `hdl.costs.resources.fit` counts them: with nothing but
multipliers and words in the blocks, with the registers around products and behind memories in them, and with sums of
two products too.  ``chains`` is arithmetic on one engine, an upper bound of what chains of blocks would save: the
adders and registers of sums that they would take over, less the registers that hold operands back for later blocks.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Resources, fit
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv
from hdl.parts.catalogue import PARTS
from hdl.parts.part import Part
from hdl.recipe import Recipe
from hdl.tensor import Tile
from importers.onnx import import_model

# bits of weights and operands
WIDTH = 16
# part -> cycles for which a block's own registers hold operands back: the second pipeline registers of Agilex 7
FREE = {"AGFB014": 1, "10AX115": 0}
ROOT = Path(__file__).parent.parent
MODELS = {
    "mobilenetv2": "mobilenetv2-dynamo-eval-norm",
    "resnet18": "resnet18-dynamo-eval-norm",
    "resnet50": "resnet50-dynamo-eval-norm",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=[*MODELS, "chains"])
    parser.add_argument("cycles", type=int, nargs="?", default=62_720, help="a frame")
    parser.add_argument("--part", choices=list(PARTS), default="AGFB014")
    options = parser.parse_args()
    if options.network == "chains":
        chains()
        return
    estimator, part = Estimator(), PARTS[options.part]
    found: defaultdict[str, list[Resources]] = defaultdict(list)
    for layer in circuits(options.network, options.cycles):
        contents = estimator.layer(layer)
        if contents.multipliers:
            found[type(layer).__name__].append(contents)
    print(f"{options.network} at {options.cycles:,} cycles a frame, {part.name}\n")
    heads = (
        "kind",
        "circuits",
        "multipliers",
        "of these summed",
        "ALM, multipliers alone",
        "registers too",
        "sums too",
    )
    print("| " + " | ".join((*heads, "ALM a multiplier", "DSP")) + " |\n|" + " --- |" * 9)
    for kind, contents_of in sorted(found.items(), key=lambda item: -sum(one.multiplier_count for one in item[1])):
        print(row(kind, contents_of, part))
    print(row("**all**", [one for contents_of in found.values() for one in contents_of], part))


def row(kind: str, circuits_of: Iterable[Resources], part: Part) -> str:
    """A line of the table."""
    total: Counter[str] = Counter()
    for contents in circuits_of:
        bare = dataclasses.replace(contents, multiplier_registers={}, product_sums={}, output_registers={})
        held = dataclasses.replace(contents, product_sums={})
        total["circuits"] += 1
        total["multipliers"] += contents.multiplier_count
        total["summed"] += 2 * sum(contents.product_sums.values())
        for name, one in (("bare", bare), ("held", held), ("sums", contents)):
            total[name] += fit(one, part).alm
        total["dsp"] += fit(contents, part).dsp
    count = total["multipliers"]
    cells = [f"{total[name]:,}" for name in ("circuits", "multipliers", "summed", "bare", "held", "sums")]
    each = f"{total['bare'] / count:.1f} → {total['sums'] / count:.1f}"
    return "| " + " | ".join([kind, *cells, each, f"{total['dsp']:,}"]) + " |"


def chains() -> None:
    """The table of one engine by the number of blocks in a chain."""
    engine = Conv(
        height=56, width=56, channels=64, filters=64, kernel=(3, 3), padding=(1, 1, 1, 1), tile=Tile(po=16, pi=64)
    )  # fmt: skip
    contents, count = Estimator().layer(engine), engine.tile.size
    (_, _, _, _, bits, _), _ = next(iter(contents.product_sums.items()))
    print(f"3×3, 64 channels and filters, tile 16×64, {count} multipliers\n")
    print("| blocks in a chain | weights | " + " | ".join(f"ALM on {name}" for name in FREE) + " |\n|" + " --- |" * 4)
    for blocks, late in ((1, False), (2, False), (2, True), (4, False), (4, True)):
        cells = []
        for name, free in FREE.items():
            # levels of the tree above pairs that a chain takes over, each a bit wider
            saved = sum(blocks // 2**level * (bits + level) for level in range(1, blocks.bit_length()))
            # two weights a block, and two operands that all filters of the tile share
            held = 2 * WIDTH * (1 - late) + 2 * WIDTH // engine.tile.po
            delays = held * sum(max(0, block - free) for block in range(blocks))
            groups = count // (2 * blocks)
            changed = dataclasses.replace(
                contents,
                carry_bits=contents.carry_bits - groups * saved,
                registers=contents.registers - groups * (saved - delays),
            )
            alm = fit(changed, PARTS[name]).alm
            cells.append(f"{alm:,}, {alm / count:.1f} a multiplier")
        weights = "read later" if late else "held back" if blocks > 1 else ""
        print(f"| {blocks} | {weights} | {' | '.join(cells)} |")


def circuits(network: str, cycles: int) -> list[Layer]:
    """Layers of a network's training graph, folded."""
    model = MODELS[network]
    path = ROOT / "build" / "models" / f"{model}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, "examples/models/fill.py", model], cwd=ROOT, check=True, stdout=sys.stderr)
    graph = insert_forks(differentiate(import_model(path, recipe=Recipe(batch=256))))
    return [node.layer for node in fold_graph(graph, cycles).nodes]


if __name__ == "__main__":
    main()
