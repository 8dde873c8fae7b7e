"""Networks that nobody chose for dagtrain: does `dagtrain import` take the convolutional networks of timm?

    python benchmarks/other_networks.py [--torch-python PATH] [--only NAME ...] [--new] [--write]

A small network of each of timm's convolutional families is exported with drawn weights (TorchScript, evaluation, opset
17), in this interpreter or in the one that ``--torch-python`` names, which has torch, timm and onnx; what becomes of it
stands in benchmarks/other_networks.json, and ``--write`` puts the table into docs/importing.md.  ``--new``: those that
are not there yet.  Attention, mixers and transformers are left out: dagtrain is for convolutions.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from dagtrain.files import write_text
from importers.onnx import attempt

ROOT = Path(__file__).parents[1]
STORE = ROOT / "benchmarks" / "other_networks.json"
DOCS, BEGIN, END = (
    ROOT / "docs" / "importing.md",
    "<!-- begin: benchmarks/other_networks.py -->",
    "<!-- end: benchmarks/other_networks.py -->",
)
# of timm, by family
NETWORKS = """
    resnet18 resnet26d resnet33ts resnet50_gn resnetv2_50 resnetv2_50x1_bit resnext50_32x4d wide_resnet50_2
    legacy_seresnet18 seresnext26d_32x4d ecaresnet26t gcresnext26ts res2net50_26w_4s resnest14d skresnet18 selecsls42
    dla34 dla60_res2net dpn48b densenet121 densenetblur121d rdnet_tiny cspresnet50 cspdarknet53 darknet53
    efficientnet_b0 tf_efficientnet_b0 efficientnetv2_rw_t tf_efficientnetv2_b0 mixnet_s tinynet_e mnasnet_small
    spnasnet_100 fbnetc_100 fbnetv3_b hardcorenas_a lcnet_050 mobilenetv2_050 mobilenetv3_small_050
    tf_mobilenetv3_small_minimal_100 mobilenetv4_conv_small mobilenet_edgetpu_v2_xs mobileone_s0 ghostnet_050
    ghostnetv2_100 repghostnet_050 rexnet_100 regnetx_002 regnety_002 regnetz_005 hrnet_w18_small inception_v3
    inception_v4 inception_resnet_v2 xception41 xception65p legacy_xception nasnetalarge pnasnet5large vgg11 vgg11_bn
    vovnet39a ese_vovnet19b_dw convnext_atto convnextv2_atto convmixer_768_32 repvgg_a0 nfnet_l0 eca_nfnet_l0
    nf_resnet50 nf_regnet_b0 tresnet_m hgnet_tiny hgnetv2_b0 fasternet_t0 starnet_s1 inception_next_atto
    poolformer_s12 repvit_m0_9
""".split()  # noqa: SIM905
EXPORT = """
import sys, warnings
import timm, torch
warnings.filterwarnings("ignore")
torch.manual_seed(1)
name, path = sys.argv[1:]
model = timm.create_model(name).eval()
torch.onnx.export(model, torch.zeros(1, *model.default_cfg["input_size"]), path, opset_version=17, dynamo=False)
"""
# of what is told of an export that failed, and of a problem
LAST_CHARACTERS, FIRST_CHARACTERS = 200, 160


class Row(TypedDict):
    """What became of a network."""

    imports: bool
    # nodes of the graph; 0 where there is none
    layers: int
    # kinds of problems, each told once
    problems: list[str]


def main() -> int:
    """Prints the table; 1 where a network could not even be exported."""
    options = parse()
    found: dict[str, Row] = json.loads(STORE.read_text()) if STORE.exists() else {}
    failed = []
    for name in options.only or NETWORKS:
        if options.new and name in found:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            made = subprocess.run(
                [options.torch_python, "-c", EXPORT, name, str(path)], capture_output=True, text=True, check=False
            )
            if not path.exists() or made.returncode:
                failed.append(f"{name} can't be exported: {made.stderr[-LAST_CHARACTERS:].strip()}")
                continue
            found[name] = tried(path)
        rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found))
        write_text(STORE, "{\n" + rows + "\n}\n")
        print(f"{name}: {'imports' if found[name]['imports'] else '; '.join(found[name]['problems'])}", flush=True)
    text = "\n".join(table(found))
    print(text, *failed, sep="\n")
    if options.write:
        before, rest = DOCS.read_text().split(BEGIN)
        write_text(DOCS, f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")
    return 1 if failed else 0


def tried(path: Path) -> Row:
    """What becomes of a file."""
    outcome = attempt(path)
    layers = 0 if outcome.graph is None else len(outcome.graph.nodes)
    kinds = dict.fromkeys(kind(str(problem)) for problem in outcome.problems)
    return {"imports": not outcome.problems, "layers": layers, "problems": list(kinds)}


def kind(problem: str) -> str:
    """A problem without its node, and without what is supported instead."""
    if problem.startswith("node "):
        _, _, named = problem.partition(" (")
        operator, _, problem = named.partition("): ")
        problem = f"{operator}: {problem}"
    return re.sub(r" \(\d+, first at [^)]*\)", "", problem.split("; ")[0])[:FIRST_CHARACTERS]


def table(found: dict[str, Row]) -> Iterator[str]:
    """Markdown: the networks that import, then the others with their problems."""
    good = [name for name in sorted(found) if found[name]["imports"]]
    yield f"{len(good)} of {len(found)} networks import: {', '.join(good)}."
    yield ""
    yield "| refused | for |"
    yield "|---|---|"
    for name in sorted(found):
        if not found[name]["imports"]:
            yield f"| {name} | {'; '.join(found[name]['problems'])} |"


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch, timm and onnx")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these alone, of timm's names")
    parser.add_argument("--new", action="store_true", help="only what was never tried")
    parser.add_argument("--write", action="store_true", help="the table into docs/importing.md")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
