"""What DSP blocks hold beside multipliers, by kind of circuit of a network: sums of two products, and registers.

    .venv/bin/python -m benchmarks.dsp_sums mobilenetv2 112896
    .venv/bin/python -m benchmarks.dsp_sums resnet18 2007040 --part 10AX115

folds every circuit for the cycles a frame, and prints ALMs as `hdl.costs.resources.fit` counts them: with nothing but
multipliers in the blocks, with the registers around products in them, and with sums of two products too.
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
from hdl.parts.catalogue import PARTS
from hdl.parts.part import Part
from hdl.recipe import Recipe
from importers.onnx import import_model

ROOT = Path(__file__).parent.parent
MODELS = {
    "mobilenetv2": "mobilenetv2-dynamo-eval-norm",
    "resnet18": "resnet18-dynamo-eval-norm",
    "resnet50": "resnet50-dynamo-eval-norm",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=list(MODELS))
    parser.add_argument("cycles", type=int, help="a frame")
    parser.add_argument("--part", choices=list(PARTS), default="AGFB014")
    options = parser.parse_args()
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
        bare = dataclasses.replace(contents, multiplier_registers={}, product_sums={})
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
