"""MnasNet 1.0 (Tan et al., "MnasNet: Platform-Aware Neural Architecture Search", CVPR 2019) in plain PyTorch.

Structure, parameter names and initialisation are those of torchvision's ``mnasnet1_0``.
"""

from __future__ import annotations

import torch
from blocks import relu
from torch import nn

# filters, kernel, stride of the first, expansion, repetitions
STAGES = ((24, 3, 2, 3, 3), (40, 5, 2, 3, 3), (80, 5, 2, 6, 3), (96, 3, 1, 6, 2), (192, 5, 2, 6, 4), (320, 3, 1, 6, 1))


def norm(channels: int) -> nn.BatchNorm2d:
    """Normalisation with statistics that follow slowly."""
    return nn.BatchNorm2d(channels, momentum=1 - 0.9997)


def depthwise(channels: int, kernel: int, stride: int) -> nn.Conv2d:
    """Convolution of each channel."""
    return nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False)


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise convolution, linear 1x1 projection; added to the input where shapes allow."""

    def __init__(self, channels: int, filters: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.apply_residual = channels == filters and stride == 1
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            norm(wide),
            relu(),
            depthwise(wide, kernel, stride),
            norm(wide),
            relu(),
            nn.Conv2d(wide, filters, 1, bias=False),
            norm(filters),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """F(x), or F(x) + x."""
        return self.layers(x) + x if self.apply_residual else self.layers(x)


class MnasNet(nn.Module):
    """Stem with a separable convolution, six stages, 1x1 convolution, classifier; images from 32x32 on."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1, stride=2, bias=False), norm(32), relu()]
        layers += [depthwise(32, 3, 1), norm(32), relu(), nn.Conv2d(32, 16, 1, bias=False), norm(16)]
        channels = 16
        for filters, kernel, stride, expansion, count in STAGES:
            blocks = [InvertedResidual(channels, filters, kernel, stride, expansion)]
            blocks += [InvertedResidual(filters, filters, kernel, 1, expansion) for _ in range(count - 1)]
            layers.append(nn.Sequential(*blocks))
            channels = filters
        layers += [nn.Conv2d(channels, 1280, 1, bias=False), norm(1280), relu()]
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(p=0.2, inplace=True), nn.Linear(1280, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.kaiming_uniform_(module.weight, mode="fan_out", nonlinearity="sigmoid")
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return self.classifier(self.layers(x).mean([2, 3]))
