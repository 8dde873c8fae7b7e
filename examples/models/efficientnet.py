"""EfficientNet-B0 (Tan and Le, "EfficientNet: Rethinking Model Scaling", ICML 2019) in plain PyTorch.

Structure, parameter names and initialisation are those of torchvision's ``efficientnet_b0``.
"""

from __future__ import annotations

import torch
from blocks import ConvNorm, SqueezeExcite, StochasticDepth, silu
from torch import nn

# expansion, kernel, stride of the first, filters, repetitions
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
# probability with which the last block would be left out, had it a shortcut
DROPPED = 0.2


class MBConv(nn.Module):
    """1x1 expansion, depthwise convolution, squeeze and excite, linear 1x1 projection; added where shapes allow."""

    def __init__(self, channels: int, expansion: int, kernel: int, stride: int, filters: int, dropped: float) -> None:
        super().__init__()
        wide = channels * expansion
        self.has_shortcut = stride == 1 and channels == filters
        layers: list[nn.Module] = [] if expansion == 1 else [ConvNorm(channels, wide, 1, activation=silu)]
        layers += [
            ConvNorm(wide, wide, kernel, stride, wide, silu),
            SqueezeExcite(wide, max(1, channels // 4), silu),
            ConvNorm(wide, filters, 1, activation=None),
        ]
        self.block = nn.Sequential(*layers)
        self.stochastic_depth = StochasticDepth(dropped)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """F(x), or F(x) + x with F(x) left out at times."""
        return self.stochastic_depth(self.block(x)) + x if self.has_shortcut else self.block(x)


class EfficientNet(nn.Module):
    """Stem, seven stages, 1x1 convolution, classifier; images from 32x32 on."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = [ConvNorm(3, channels, 3, 2, activation=silu)]
        total, done = sum(stage[-1] for stage in STAGES), 0
        for expansion, kernel, stride, filters, count in STAGES:
            blocks = []
            for index in range(count):
                first = index == 0
                blocks.append(
                    MBConv(channels, expansion, kernel, stride if first else 1, filters, DROPPED * done / total)
                )
                channels, done = filters, done + 1
            layers.append(nn.Sequential(*blocks))
        layers.append(ConvNorm(channels, 4 * channels, 1, activation=silu))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(4 * channels, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.uniform_(module.weight, -(module.out_features**-0.5), module.out_features**-0.5)
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
