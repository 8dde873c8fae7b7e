"""Exports the networks of this folder from PyTorch to ONNX, in every way people do.

    python examples/models/export_models.py vgg16 --exporter dynamo --mode eval --out build/models
    python examples/models/export_models.py --small --opset 11   # all of them, for small images and 10 classes
    python examples/models/export_models.py --skeletons examples/models

Needs the optional extra: ``pip install -e .[torch]``.  ``--skeletons FOLDER`` exports what tests and benchmarks use and
writes it there without weights (see ``importers.onnx.skeleton`` and fill.py); those files are committed.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import onnx
import torch
from alexnet import AlexNet
from convnext import CNBlock, ConvNeXt
from densenet import DenseNet
from efficientnet import EfficientNet
from googlenet import GoogLeNet
from inception_v3 import InceptionV3
from mnasnet import MnasNet
from mobilenet_v2 import MobileNetV2
from mobilenet_v3 import MobileNetV3
from published import FAMILIES, NETWORKS, OPSETS, UNEXPORTABLE
from regnet import RegNet
from resnet import BasicBlock, Bottleneck, ResNet
from shufflenet_v2 import ShuffleNetV2
from squeezenet import SqueezeNet
from torch import nn
from vgg import VGG

from importers.onnx.skeleton import save_skeleton, strip

# takes the number of classes
MODELS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": AlexNet,
    **{f"vgg{depth}{'_bn' * norm}": partial(VGG, depth, norm) for depth in (11, 16, 19) for norm in (False, True)},
    "resnet18": partial(ResNet, BasicBlock, [2, 2, 2, 2]),
    "resnet34": partial(ResNet, BasicBlock, [3, 4, 6, 3]),
    "resnet50": partial(ResNet, Bottleneck, [3, 4, 6, 3]),
    "resnet101": partial(ResNet, Bottleneck, [3, 4, 23, 3]),
    "resnet152": partial(ResNet, Bottleneck, [3, 8, 36, 3]),
    "wide_resnet50_2": partial(ResNet, Bottleneck, [3, 4, 6, 3], group_width=128),
    "resnext50_32x4d": partial(ResNet, Bottleneck, [3, 4, 6, 3], groups=32, group_width=4),
    "squeezenet1_0": partial(SqueezeNet, "1.0"),
    "squeezenet1_1": partial(SqueezeNet, "1.1"),
    "googlenet": GoogLeNet,
    "googlenet_aux": partial(GoogLeNet, auxiliary=True),
    "inception_v3": InceptionV3,
    "inception_v3_aux": partial(InceptionV3, auxiliary=True),
    "densenet121": DenseNet,
    "shufflenet_v2": ShuffleNetV2,
    "mnasnet": MnasNet,
    "mobilenetv2": MobileNetV2,
    "mobilenetv3_small": partial(MobileNetV3, "small"),
    "mobilenetv3_large": partial(MobileNetV3, "large"),
    "efficientnet_b0": EfficientNet,
    "regnet_y_400mf": RegNet,
    "convnext_tiny": ConvNeXt,
}
# networks whose dense layers see a map of fixed size: for small images that size is 1x1
GRIDS = {name for name in MODELS if name.startswith(("alexnet", "vgg"))}
EXPORTERS = ("torchscript", "dynamo")
MODES = ("eval", "training")
SMALL_CLASSES = 10
# networks of which there are files with normalisation that no exporter folded, in either mode
KEPT_NORM = {"resnet18", "resnet50", "mobilenetv2"}
SEED = 2026


def seasoned(model: nn.Module) -> nn.Module:
    """The model with normalisation parameters and statistics as after some training, not 0 and 1."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
            if isinstance(module, CNBlock):
                module.layer_scale.uniform_(0.1, 0.5)
    return model


def build(name: str, small: bool = False) -> nn.Module:
    """A fresh network; ``small`` is its form for images of `published.Published.small` and few classes."""
    if not small:
        return MODELS[name]()
    return MODELS[name](classes=SMALL_CLASSES, **({"grid": 1} if name in GRIDS else {}))


class Variant(NamedTuple):
    """What is exported, and how."""

    name: str
    exporter: str
    mode: str
    # without the constant folding that merges normalisation into weights
    keep_norm: bool = False
    # for images of `published.Published.small` and few classes
    small: bool = False
    # the exporter's choice if None
    opset: int | None = None

    @property
    def file(self) -> str:
        """Name of its file below a folder, without suffix."""
        parts = [self.name, self.exporter, self.mode]
        parts += ["norm"] * self.keep_norm + ([] if self.opset is None else [f"opset{self.opset}"])
        return "small/" * self.small + "-".join(parts)


def export(variant: Variant, path: Path, size: int | None = None) -> nn.Module:
    """Write one model, and return it; ``size`` is the image's height and width if not the network's own."""
    torch.manual_seed(SEED)
    model = build(variant.name, variant.small)
    # fresh models have equal vectors of ones and zeros, which exporters merge; that case is wanted as well
    model = seasoned(model) if variant.mode == "eval" else model
    return write(model, variant, path, size)


def write(model: nn.Module, variant: Variant, path: Path, size: int | None = None) -> nn.Module:
    """As `export`, of this network; it is left in the mode of the export."""
    name, exporter, mode, keep_norm, small, opset = variant
    model.train(mode == "training")
    size = size or (NETWORKS[name].small if small else NETWORKS[name].size)
    image = torch.randn(2, 3, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "torchscript":
            _torchscript(model, image, path, mode, keep_norm, opset)
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
                opset_version=opset,
            )
    return model


def _torchscript(
    model: nn.Module, image: torch.Tensor, path: Path, mode: str, keep_norm: bool, opset: int | None
) -> None:
    training = torch.onnx.TrainingMode.TRAINING if mode == "training" else torch.onnx.TrainingMode.EVAL
    outputs = ["output", "aux2", "aux1"] if mode == "training" and getattr(model, "aux1", None) else ["output"]
    torch.onnx.export(
        model,
        (image,),
        path,
        dynamo=False,
        training=training,
        do_constant_folding=not keep_norm,
        opset_version=opset,
        input_names=["input"],
        output_names=outputs,
        dynamic_axes={name: {0: "batch"} for name in ("input", *outputs)},
    )


def variants() -> Iterator[Variant]:
    """The committed skeletons."""
    for name in MODELS:
        for exporter in EXPORTERS:
            for mode in MODES:
                yield Variant(name, exporter, mode, small=True)
                variant = Variant(name, exporter, mode)
                if variant.file not in UNEXPORTABLE:
                    yield variant
                # the TorchScript exporter keeps normalisation in training mode as it is
                if name in KEPT_NORM and exporter == "dynamo":
                    yield variant._replace(keep_norm=True)
    # operators that later opsets have, spelt out; attributes that later opsets have as inputs
    for name in FAMILIES:
        for exporter, opset in OPSETS.items():
            yield Variant(name, exporter, "eval", small=True, opset=opset)
    yield Variant("convnext_tiny", "torchscript", "training", small=True, opset=11)


def main() -> None:
    """Parse and export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--exporter", choices=EXPORTERS, default="dynamo")
    parser.add_argument("--mode", choices=MODES, default="eval")
    parser.add_argument("--keep-norm", action="store_true", help="keep BatchNormalization nodes")
    parser.add_argument("--opset", type=int, help="default: the exporter's choice")
    parser.add_argument("--size", type=int, help="height and width of the image; default: the published one")
    parser.add_argument("--small", action="store_true", help=f"for small images and {SMALL_CLASSES} classes")
    parser.add_argument("--out", type=Path, default=Path("build/models"))
    parser.add_argument("--skeletons", type=Path, help="write all variants without weights into this folder")
    parser.add_argument("--missing", action="store_true", help="with --skeletons: only those that are not there")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"unknown models {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if options.skeletons is not None:
        for variant in variants():
            path = options.skeletons / f"{variant.file}.skeleton.gz"
            if options.missing and path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                full = Path(folder) / "model.onnx"
                export(variant, full)
                save_skeleton(strip(onnx.load(full)), path)
            print(f"{path}: {path.stat().st_size} bytes", flush=True)
        return
    for name in options.models or MODELS:
        variant = Variant(name, options.exporter, options.mode, options.keep_norm, options.small, options.opset)
        path = options.out / f"{variant.file}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        export(variant, path, options.size)
        print(path)


if __name__ == "__main__":
    main()
