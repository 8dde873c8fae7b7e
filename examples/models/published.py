"""What is published of the networks in this folder; needs no PyTorch.

Parameters and multiplications are those that torchvision documents (``num_params`` and ``_ops`` of its weights).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A network of 1000 classes."""

    parameters: int
    # multiplications of its convolutions and dense layers for one image in evaluation mode, 10^9
    gmacs: float
    # height and width of the image
    size: int = 224
    # of the smallest image that this folder exports it for
    small: int = 32


NETWORKS = {
    "alexnet": Published(61_100_840, 0.714, small=63),
    "vgg11": Published(132_863_336, 7.609),
    "vgg11_bn": Published(132_868_840, 7.609),
    "vgg16": Published(138_357_544, 15.470),
    "vgg16_bn": Published(138_365_992, 15.470),
    "vgg19": Published(143_667_240, 19.632),
    "vgg19_bn": Published(143_678_248, 19.632),
    "resnet18": Published(11_689_512, 1.814),
    "resnet34": Published(21_797_672, 3.664),
    "resnet50": Published(25_557_032, 4.089),
    "resnet101": Published(44_549_160, 7.801),
    "resnet152": Published(60_192_808, 11.514),
    "wide_resnet50_2": Published(68_883_240, 11.398),
    "resnext50_32x4d": Published(25_028_904, 4.230),
    "squeezenet1_0": Published(1_248_424, 0.819),
    "squeezenet1_1": Published(1_235_496, 0.349),
    "googlenet": Published(6_624_904, 1.498, small=64),
    # with the classifiers in the middle of the network, which have outputs of their own in training mode
    "googlenet_aux": Published(13_004_888, 1.498, small=64),
    "inception_v3": Published(23_834_568, 5.713, size=299, small=75),
    "inception_v3_aux": Published(27_161_264, 5.713, size=299, small=299),
    "densenet121": Published(7_978_856, 2.834),
    "shufflenet_v2": Published(2_278_604, 0.145),
    "mnasnet": Published(4_383_312, 0.314),
    "mobilenetv2": Published(3_504_872, 0.301),
    "mobilenetv3_small": Published(2_542_856, 0.057),
    "mobilenetv3_large": Published(5_483_032, 0.217),
    "efficientnet_b0": Published(5_288_548, 0.386),
    "regnet_y_400mf": Published(4_344_144, 0.402),
    "convnext_tiny": Published(28_589_128, 4.456),
}

# one network of each family
FAMILIES = (
    "alexnet", "vgg11_bn", "resnet18", "resnext50_32x4d", "squeezenet1_1", "googlenet", "inception_v3", "densenet121",
    "shufflenet_v2", "mnasnet", "mobilenetv2", "mobilenetv3_small", "efficientnet_b0", "regnet_y_400mf",
    "convnext_tiny",
)  # fmt: skip
# the oldest and the newest opset of which there are files, beside those of the exporters' choice, by exporter
OPSETS = {"torchscript": 11, "dynamo": 23}

# what PyTorch can't export at the published size; why
UNEXPORTABLE = {
    "googlenet_aux-torchscript-training": "its TorchScript exporter has no adaptive average pool from 14x14 to 4x4"
}
