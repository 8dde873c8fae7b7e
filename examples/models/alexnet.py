"""AlexNet in the one-column form of Krizhevsky, "One weird trick for parallelizing CNNs" (2014), in plain PyTorch.

Structure and parameter names are those of torchvision's ``alexnet``.
"""

from __future__ import annotations

import torch
from blocks import relu
from torch import nn


class AlexNet(nn.Module):
    """Five convolutions, three max pools, three dense layers; images from 63x63 on."""

    def __init__(self, classes: int = 1000, grid: int = 6) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            relu(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            relu(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            relu(),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            relu(),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            relu(),
            nn.MaxPool2d(3, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((grid, grid))
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(256 * grid * grid, 4096),
            relu(),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            relu(),
            nn.Linear(4096, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
