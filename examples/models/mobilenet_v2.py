"""MobileNetV2 (Sandler et al., "Inverted Residuals and Linear Bottlenecks", CVPR 2018) in plain PyTorch.

Structure, parameter names and initialisation are those of torchvision's ``mobilenet_v2``, so that exports of this
module are what people export.
"""

from __future__ import annotations

import torch
from torch import nn

# expansion, filters, repetitions, stride of the first
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def conv_bn_relu6(channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, normalisation, relu6."""
    return nn.Sequential(
        nn.Conv2d(channels, filters, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise, linear 1x1 projection; added to the input where shapes allow."""

    def __init__(self, channels: int, filters: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.has_shortcut = stride == 1 and channels == filters
        layers: list[nn.Module] = [] if expansion == 1 else [conv_bn_relu6(channels, wide, 1)]
        layers += [
            conv_bn_relu6(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, filters, 1, bias=False),
            nn.BatchNorm2d(filters),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """F(x), or x + F(x)."""
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """Stem, inverted residuals, 1x1 convolution to 1280 channels, global average pool, dropout, classifier."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = [conv_bn_relu6(3, channels, 3, 2)]
        for expansion, filters, count, stride in STAGES:
            for index in range(count):
                layers.append(InvertedResidual(channels, filters, stride if index == 0 else 1, expansion))
                channels = filters
        layers.append(conv_bn_relu6(channels, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))
