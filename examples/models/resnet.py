"""ResNets in plain PyTorch: ResNet-18 … 152, Wide ResNet-50-2 and ResNeXt-50 32x4d.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; Zagoruyko and Komodakis, "Wide Residual Networks",
BMVC 2016; Xie et al., "Aggregated Residual Transformations", CVPR 2017.  Structure, parameter names and initialisation
are those of torchvision (the stride of a bottleneck lies in its 3x3 convolution), so that exports of these modules are
what people export.
"""

from __future__ import annotations

import torch
from torch import nn


def conv3x3(channels: int, filters: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """3x3 convolution that keeps the map's size at stride 1."""
    return nn.Conv2d(channels, filters, kernel_size=3, stride=stride, padding=1, groups=groups, bias=False)


def conv1x1(channels: int, filters: int, stride: int = 1) -> nn.Conv2d:
    """1x1 convolution."""
    return nn.Conv2d(channels, filters, kernel_size=1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(F(x) + shortcut(x))."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut; the 3x3 one in ``groups`` of so many channels a 64 of ``width``."""

    expansion = 4

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int,
        downsample: nn.Module | None,
        groups: int = 1,
        group_width: int = 64,
    ) -> None:
        super().__init__()
        inner = width * group_width // 64 * groups
        self.conv1 = conv1x1(channels, inner)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = conv3x3(inner, inner, stride, groups)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = conv1x1(inner, width * self.expansion)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(F(x) + shortcut(x))."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Stem, four stages of blocks, global average pool, classifier."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], blocks: list[int], classes: int = 1000, **grouping: int
    ) -> None:
        super().__init__()
        self.channels = 64
        self.grouping = grouping
        self.conv1 = nn.Conv2d(3, self.channels, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(self.channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._stage(block, 64, blocks[0], 1)
        self.layer2 = self._stage(block, 128, blocks[1], 2)
        self.layer3 = self._stage(block, 256, blocks[2], 2)
        self.layer4 = self._stage(block, 512, blocks[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _stage(self, block: type[BasicBlock] | type[Bottleneck], width: int, count: int, stride: int) -> nn.Sequential:
        wide = width * block.expansion
        downsample = None
        if stride != 1 or self.channels != wide:
            downsample = nn.Sequential(conv1x1(self.channels, wide, stride), nn.BatchNorm2d(wide))
        layers = [block(self.channels, width, stride, downsample, **self.grouping)]
        layers += [block(wide, width, 1, None, **self.grouping) for _ in range(1, count)]
        self.channels = wide
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))
