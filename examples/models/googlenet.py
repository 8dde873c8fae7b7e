"""GoogLeNet (Szegedy et al., "Going Deeper with Convolutions", CVPR 2015) in plain PyTorch, with normalisation.

Structure and parameter names are those of torchvision's ``googlenet``, whose "5x5" branches have 3x3 kernels.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

# of each module: input channels, 1x1, 3x3 reduced, 3x3, 5x5 reduced, 5x5, pooled
INCEPTIONS = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}


class BasicConv2d(nn.Module):
    """Convolution, normalisation, relu."""

    def __init__(self, channels: int, filters: int, **window: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, bias=False, **window)
        self.bn = nn.BatchNorm2d(filters, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, filters, H', W')."""
        return functional.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """Four branches side by side."""

    def __init__(self, channels: int, one: int, three_in: int, three: int, five_in: int, five: int, pool: int) -> None:
        super().__init__()
        self.branch1 = BasicConv2d(channels, one, kernel_size=1)
        self.branch2 = nn.Sequential(
            BasicConv2d(channels, three_in, kernel_size=1), BasicConv2d(three_in, three, kernel_size=3, padding=1)
        )
        self.branch3 = nn.Sequential(
            BasicConv2d(channels, five_in, kernel_size=1), BasicConv2d(five_in, five, kernel_size=3, padding=1)
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True), BasicConv2d(channels, pool, kernel_size=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, one + three + five + pool, H, W)."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class Auxiliary(nn.Module):
    """A classifier on a map in the middle of the network."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = BasicConv2d(channels, 128, kernel_size=1)
        self.fc1 = nn.Linear(2048, 1024)
        self.fc2 = nn.Linear(1024, classes)
        self.dropout = nn.Dropout(0.7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, classes)."""
        x = torch.flatten(self.conv(functional.adaptive_avg_pool2d(x, (4, 4))), 1)
        return self.fc2(self.dropout(functional.relu(self.fc1(x), inplace=True)))


class GoogLeNet(nn.Module):
    """Stem, nine inception modules, classifier; with ``auxiliary``, two more classifiers in training mode."""

    def __init__(self, classes: int = 1000, auxiliary: bool = False) -> None:
        super().__init__()
        self.conv1 = BasicConv2d(3, 64, kernel_size=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = BasicConv2d(64, 64, kernel_size=1)
        self.conv3 = BasicConv2d(64, 192, kernel_size=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        for name, shape in INCEPTIONS.items():
            self.add_module(f"inception{name}", Inception(*shape))
        self.maxpool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        self.aux1 = Auxiliary(512, classes) if auxiliary else None
        self.aux2 = Auxiliary(528, classes) if auxiliary else None
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1024, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """(N, 3, H, W) -> (N, classes); with auxiliary classifiers in training (main, second, first)."""
        x = self.conv3(self.conv2(self.maxpool1(self.conv1(x))))
        x = self.inception3b(self.inception3a(self.maxpool2(x)))
        x = self.inception4a(self.maxpool3(x))
        further = self.training and self.aux1 is not None
        first = self.aux1(x) if further else None
        x = self.inception4d(self.inception4c(self.inception4b(x)))
        second = self.aux2(x) if further else None
        x = self.inception5b(self.inception5a(self.maxpool4(self.inception4e(x))))
        x = self.fc(self.dropout(torch.flatten(self.avgpool(x), 1)))
        return (x, second, first) if further else x
