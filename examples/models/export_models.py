"""Exports ResNet-18, ResNet-50 and MobileNetV2 from PyTorch to ONNX, in every way people do.

    python examples/models/export_models.py --exporter dynamo --mode eval --out build/models
    python examples/models/export_models.py --skeletons examples/models

Needs the optional extra: ``pip install -e .[torch]``.  ``--skeletons FOLDER`` exports all variants and writes them
there without weights (see ``importers.onnx.skeleton`` and fill.py); those files are committed.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import torch
from mobilenet_v2 import mobilenet_v2
from resnet import resnet18, resnet50
from torch import nn

from importers.onnx.skeleton import save_skeleton, strip

MODELS: dict[str, Callable[[], nn.Module]] = {"resnet18": resnet18, "resnet50": resnet50, "mobilenetv2": mobilenet_v2}
SEED = 2026


def seasoned(model: nn.Module) -> nn.Module:
    """The model with normalisation parameters and statistics as after some training, not 0 and 1."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model


def export(name: str, exporter: str, mode: str, path: Path, keep_norm: bool = False, size: int = 224) -> None:
    """Write one model.  ``keep_norm`` switches the constant folding off that merges normalisation into weights."""
    torch.manual_seed(SEED)
    model = MODELS[name]()
    # fresh models have equal vectors of ones and zeros, which exporters merge; that case is wanted as well
    model = seasoned(model) if mode == "eval" else model
    model.train(mode == "training")
    image = torch.randn(2, 3, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "torchscript":
            _torchscript(model, image, path, mode, keep_norm)
        else:
            torch.onnx.export(
                model,
                (image,),
                path,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                optimize=not keep_norm,
                external_data=False,
                verbose=False,
            )


def _torchscript(model: nn.Module, image: torch.Tensor, path: Path, mode: str, keep_norm: bool) -> None:
    training = torch.onnx.TrainingMode.TRAINING if mode == "training" else torch.onnx.TrainingMode.EVAL
    torch.onnx.export(
        model,
        (image,),
        path,
        dynamo=False,
        training=training,
        do_constant_folding=not keep_norm,
        input_names=["input"],
        output_names=["output"],
        dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
    )


def variants() -> Iterator[tuple[str, str, str, bool]]:
    """(model, exporter, mode, keep_norm) of all variants."""
    for name in MODELS:
        for exporter in ("torchscript", "dynamo"):
            for mode in ("eval", "training"):
                yield name, exporter, mode, False
                # the TorchScript exporter keeps normalisation in training mode as it is
                if exporter == "dynamo":
                    yield name, exporter, mode, True


def variant_name(name: str, exporter: str, mode: str, keep_norm: bool) -> str:
    """File name without suffix."""
    return "-".join([name, exporter, mode, *(["norm"] if keep_norm else [])])


def main() -> None:
    """Parse and export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", choices=["torchscript", "dynamo"], default="dynamo")
    parser.add_argument("--mode", choices=["eval", "training"], default="eval")
    parser.add_argument("--keep-norm", action="store_true", help="keep BatchNormalization nodes")
    parser.add_argument("--size", type=int, default=224, help="height and width of the image")
    parser.add_argument("--out", type=Path, default=Path("build/models"))
    parser.add_argument("--skeletons", type=Path, help="write all variants without weights into this folder")
    options = parser.parse_args()
    if options.skeletons is not None:
        options.skeletons.mkdir(parents=True, exist_ok=True)
        for variant in variants():
            path = options.skeletons / f"{variant_name(*variant)}.skeleton.gz"
            with tempfile.TemporaryDirectory() as folder:
                full = Path(folder) / "model.onnx"
                export(*variant[:3], full, variant[3])
                save_skeleton(strip(onnx.load(full)), path)
            print(f"{path}: {path.stat().st_size} bytes")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        path = options.out / f"{variant_name(name, options.exporter, options.mode, options.keep_norm)}.onnx"
        export(name, options.exporter, options.mode, path, options.keep_norm, options.size)
        print(path)


if __name__ == "__main__":
    main()
