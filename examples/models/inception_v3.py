"""Inception v3 (Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016) in plain PyTorch.

Structure and parameter names are those of torchvision's ``inception_v3``; images of 299x299, from 75x75 on without the
auxiliary classifier.
"""

from __future__ import annotations

from functools import partial

import torch
from googlenet import BasicConv2d
from torch import nn
from torch.nn import functional

Conv = BasicConv2d
average = partial(functional.avg_pool2d, kernel_size=3, stride=1, padding=1)
across = partial(Conv, kernel_size=(1, 7), padding=(0, 3))
down = partial(Conv, kernel_size=(7, 1), padding=(3, 0))


class InceptionA(nn.Module):
    """1x1, 5x5, twice 3x3, averages."""

    def __init__(self, channels: int, pool: int) -> None:
        super().__init__()
        self.branch1x1 = Conv(channels, 64, kernel_size=1)
        self.branch5x5_1 = Conv(channels, 48, kernel_size=1)
        self.branch5x5_2 = Conv(48, 64, kernel_size=5, padding=2)
        self.branch3x3dbl_1 = Conv(channels, 64, kernel_size=1)
        self.branch3x3dbl_2 = Conv(64, 96, kernel_size=3, padding=1)
        self.branch3x3dbl_3 = Conv(96, 96, kernel_size=3, padding=1)
        self.branch_pool = Conv(channels, pool, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, 224 + pool, H, W)."""
        five = self.branch5x5_2(self.branch5x5_1(x))
        three = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), five, three, self.branch_pool(average(x))], 1)


class InceptionB(nn.Module):
    """Halves the map's size: 3x3, twice 3x3, max pool."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch3x3 = Conv(channels, 384, kernel_size=3, stride=2)
        self.branch3x3dbl_1 = Conv(channels, 64, kernel_size=1)
        self.branch3x3dbl_2 = Conv(64, 96, kernel_size=3, padding=1)
        self.branch3x3dbl_3 = Conv(96, 96, kernel_size=3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, 480 + channels, H', W')."""
        three = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), three, functional.max_pool2d(x, kernel_size=3, stride=2)], 1)


class InceptionC(nn.Module):
    """1x1, 7x7 as 1x7 and 7x1, the same twice, averages."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.branch1x1 = Conv(channels, 192, kernel_size=1)
        self.branch7x7_1 = Conv(channels, width, kernel_size=1)
        self.branch7x7_2 = across(width, width)
        self.branch7x7_3 = down(width, 192)
        self.branch7x7dbl_1 = Conv(channels, width, kernel_size=1)
        self.branch7x7dbl_2 = down(width, width)
        self.branch7x7dbl_3 = across(width, width)
        self.branch7x7dbl_4 = down(width, width)
        self.branch7x7dbl_5 = across(width, 192)
        self.branch_pool = Conv(channels, 192, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, 768, H, W)."""
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), seven, double, self.branch_pool(average(x))], 1)


class InceptionD(nn.Module):
    """Halves the map's size: 3x3, 7x7 and 3x3, max pool."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch3x3_1 = Conv(channels, 192, kernel_size=1)
        self.branch3x3_2 = Conv(192, 320, kernel_size=3, stride=2)
        self.branch7x7x3_1 = Conv(channels, 192, kernel_size=1)
        self.branch7x7x3_2 = across(192, 192)
        self.branch7x7x3_3 = down(192, 192)
        self.branch7x7x3_4 = Conv(192, 192, kernel_size=3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, 512 + channels, H', W')."""
        three = self.branch3x3_2(self.branch3x3_1(x))
        seven = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([three, seven, functional.max_pool2d(x, kernel_size=3, stride=2)], 1)


class InceptionE(nn.Module):
    """1x1, 3x3 as 1x3 beside 3x1, the same after a 3x3, averages."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch1x1 = Conv(channels, 320, kernel_size=1)
        self.branch3x3_1 = Conv(channels, 384, kernel_size=1)
        self.branch3x3_2a = Conv(384, 384, kernel_size=(1, 3), padding=(0, 1))
        self.branch3x3_2b = Conv(384, 384, kernel_size=(3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = Conv(channels, 448, kernel_size=1)
        self.branch3x3dbl_2 = Conv(448, 384, kernel_size=3, padding=1)
        self.branch3x3dbl_3a = Conv(384, 384, kernel_size=(1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = Conv(384, 384, kernel_size=(3, 1), padding=(1, 0))
        self.branch_pool = Conv(channels, 192, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, 2048, H, W)."""
        three = self.branch3x3_1(x)
        three = torch.cat([self.branch3x3_2a(three), self.branch3x3_2b(three)], 1)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        double = torch.cat([self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)], 1)
        return torch.cat([self.branch1x1(x), three, double, self.branch_pool(average(x))], 1)


class Auxiliary(nn.Module):
    """A classifier on a map in the middle of the network."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv0 = Conv(channels, 128, kernel_size=1)
        self.conv1 = Conv(128, 768, kernel_size=5)
        self.fc = nn.Linear(768, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, 17, 17) -> (N, classes)."""
        x = self.conv1(self.conv0(functional.avg_pool2d(x, kernel_size=5, stride=3)))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1))


class InceptionV3(nn.Module):
    """Stem, eleven inception modules, classifier; with ``auxiliary``, one more classifier in training mode."""

    def __init__(self, classes: int = 1000, auxiliary: bool = False) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Conv(3, 32, kernel_size=3, stride=2)
        self.Conv2d_2a_3x3 = Conv(32, 32, kernel_size=3)
        self.Conv2d_2b_3x3 = Conv(32, 64, kernel_size=3, padding=1)
        self.maxpool1 = nn.MaxPool2d(kernel_size=3, stride=2)
        self.Conv2d_3b_1x1 = Conv(64, 80, kernel_size=1)
        self.Conv2d_4a_3x3 = Conv(80, 192, kernel_size=3)
        self.maxpool2 = nn.MaxPool2d(kernel_size=3, stride=2)
        self.Mixed_5b = InceptionA(192, 32)
        self.Mixed_5c = InceptionA(256, 64)
        self.Mixed_5d = InceptionA(288, 64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, 128)
        self.Mixed_6c = InceptionC(768, 160)
        self.Mixed_6d = InceptionC(768, 160)
        self.Mixed_6e = InceptionC(768, 192)
        self.AuxLogits = Auxiliary(768, classes) if auxiliary else None
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(2048, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """(N, 3, H, W) -> (N, classes); with the auxiliary classifier in training (main, auxiliary)."""
        x = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        x = self.Mixed_6a(self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x))))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(x))))
        further = self.AuxLogits(x) if self.training and self.AuxLogits is not None else None
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        x = self.fc(torch.flatten(self.dropout(self.avgpool(x)), 1))
        return x if further is None else (x, further)
