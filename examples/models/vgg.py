"""VGG (Simonyan and Zisserman, "Very Deep Convolutional Networks", ICLR 2015) in plain PyTorch.

Structure and parameter names are those of torchvision's ``vgg11`` … ``vgg19_bn``.
"""

from __future__ import annotations

import torch
from blocks import relu
from torch import nn

# convolutions of each of the five stages
DEPTHS = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
FILTERS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """Stages of 3x3 convolutions and a max pool each, three dense layers; images from 32x32 on."""

    def __init__(self, depth: int, norm: bool, classes: int = 1000, grid: int = 7) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for count, filters in zip(DEPTHS[depth], FILTERS, strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(channels, filters, 3, padding=1), *([nn.BatchNorm2d(filters)] if norm else [])]
                layers.append(relu())
                channels = filters
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((grid, grid))
        self.classifier = nn.Sequential(
            nn.Linear(512 * grid * grid, 4096),
            relu(),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            relu(),
            nn.Dropout(0.5),
            nn.Linear(4096, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
