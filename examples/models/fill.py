"""Writes full ONNX files from the skeletons in this folder: the same structure with seeded random weights.

    python examples/models/fill.py                            # all of them, into build/models/
    python examples/models/fill.py resnet18-dynamo-eval --out /data
    python examples/models/fill.py small/vgg16-torchscript-training

Needs no PyTorch.  The weights are random, so the files are for importing and planning, not for their answers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from importers.onnx.skeleton import fill, load_skeleton

FOLDER = Path(__file__).parent
SUFFIX = ".skeleton.gz"


def main() -> None:
    """Parse and write."""
    known = sorted(str(path.relative_to(FOLDER)).removesuffix(SUFFIX) for path in FOLDER.rglob(f"*{SUFFIX}"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"names of files below {FOLDER}; default: all")
    parser.add_argument("--out", type=Path, default=Path("build/models"))
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in known]
    if unknown:
        parser.error(f"unknown models {', '.join(unknown)}; there are {', '.join(known)}")
    for name in options.models or known:
        path = options.out / f"{name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(fill(load_skeleton(FOLDER / f"{name}{SUFFIX}")), path)
        print(path)


if __name__ == "__main__":
    main()
