"""DenseNet-121 (Huang et al., "Densely Connected Convolutional Networks", CVPR 2017) in plain PyTorch.

Structure and parameter names are those of torchvision's ``densenet121``.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from blocks import relu
from torch import nn
from torch.nn import functional

GROWTH, BOTTLENECK, STEM = 32, 4, 64
BLOCKS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    """Normalisation, relu and convolution, twice: 1x1 and 3x3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = relu()
        self.conv1 = nn.Conv2d(channels, BOTTLENECK * GROWTH, kernel_size=1, bias=False)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK * GROWTH)
        self.relu2 = relu()
        self.conv2 = nn.Conv2d(BOTTLENECK * GROWTH, GROWTH, kernel_size=3, padding=1, bias=False)

    def forward(self, maps: list[torch.Tensor]) -> torch.Tensor:
        """All maps before this one in the block -> (N, GROWTH, H, W)."""
        x = self.conv1(self.relu1(self.norm1(torch.cat(maps, 1))))
        return self.conv2(self.relu2(self.norm2(x)))


class DenseBlock(nn.ModuleDict):
    """Layers each of which sees all maps before it."""

    def __init__(self, channels: int, count: int) -> None:
        super().__init__({f"denselayer{i + 1}": DenseLayer(channels + i * GROWTH) for i in range(count)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, channels + count * GROWTH, H, W)."""
        maps = [x]
        for layer in self.values():
            maps.append(layer(maps))
        return torch.cat(maps, 1)


def transition(channels: int) -> nn.Sequential:
    """Half as many channels, half the height and width."""
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(channels),
            relu=relu(),
            conv=nn.Conv2d(channels, channels // 2, kernel_size=1, bias=False),
            pool=nn.AvgPool2d(kernel_size=2, stride=2),
        )
    )


class DenseNet(nn.Module):
    """Stem, four dense blocks, classifier; images from 32x32 on."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(3, STEM, kernel_size=7, stride=2, padding=3, bias=False),
            norm0=nn.BatchNorm2d(STEM),
            relu0=relu(),
            pool0=nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        channels = STEM
        for index, count in enumerate(BLOCKS, 1):
            layers[f"denseblock{index}"] = DenseBlock(channels, count)
            channels += count * GROWTH
            if index < len(BLOCKS):
                layers[f"transition{index}"] = transition(channels)
                channels //= 2
        layers[f"norm{len(BLOCKS) + 1}"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(layers)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        x = functional.relu(self.features(x), inplace=True)
        return self.classifier(torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1))
