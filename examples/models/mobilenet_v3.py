"""MobileNetV3 (Howard et al., "Searching for MobileNetV3", ICCV 2019) in plain PyTorch.

Structure, parameter names and initialisation are those of torchvision's ``mobilenet_v3_small`` and ``_large``.
"""

from __future__ import annotations

from functools import partial

import torch
from blocks import ConvNorm, SqueezeExcite, divisible, hard_swish, relu
from torch import nn

# kernel, expanded channels, filters, squeeze and excite, hard swish (else relu), stride
SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)
LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
# stages and width of the dense layer before the last
SIZES = {"small": (SMALL, 1024), "large": (LARGE, 1280)}
conv_norm = partial(ConvNorm, norm=partial(nn.BatchNorm2d, eps=0.001, momentum=0.01))


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise convolution, squeeze and excite, linear 1x1 projection; added where shapes allow."""

    def __init__(
        self, channels: int, kernel: int, wide: int, filters: int, squeeze: bool, swish: bool, stride: int
    ) -> None:
        super().__init__()
        activation = hard_swish if swish else relu
        self.has_shortcut = stride == 1 and channels == filters
        layers: list[nn.Module] = []
        if wide != channels:
            layers.append(conv_norm(channels, wide, 1, activation=activation))
        layers.append(conv_norm(wide, wide, kernel, stride, wide, activation))
        if squeeze:
            layers.append(SqueezeExcite(wide, divisible(wide // 4), gate=nn.Hardsigmoid))
        layers.append(conv_norm(wide, filters, 1, activation=None))
        self.block = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """F(x), or F(x) + x."""
        return self.block(x) + x if self.has_shortcut else self.block(x)


class MobileNetV3(nn.Module):
    """Stem, inverted residuals, 1x1 convolution, two dense layers; images from 32x32 on."""

    def __init__(self, size: str, classes: int = 1000) -> None:
        super().__init__()
        stages, hidden = SIZES[size]
        channels = 16
        layers: list[nn.Module] = [conv_norm(3, channels, 3, 2, activation=hard_swish)]
        for stage in stages:
            layers.append(InvertedResidual(channels, *stage))
            channels = stage[2]
        layers.append(conv_norm(channels, 6 * channels, 1, activation=hard_swish))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * channels, hidden), hard_swish(), nn.Dropout(0.2, inplace=True), nn.Linear(hidden, classes)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
