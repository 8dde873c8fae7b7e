"""ShuffleNetV2 x1.0 (Ma et al., "ShuffleNet V2: Practical Guidelines", ECCV 2018) in plain PyTorch.

Structure and parameter names are those of torchvision's ``shufflenet_v2_x1_0``.
"""

from __future__ import annotations

import torch
from blocks import relu
from torch import nn

# repetitions of the stages and their channels
STAGES = ((4, 116), (8, 232), (4, 464))
STEM, LAST = 24, 1024


def shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Channels of ``groups`` groups taken in turn."""
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batch, channels, height, width)


def depthwise(channels: int, stride: int) -> nn.Conv2d:
    """3x3 convolution of each channel."""
    return nn.Conv2d(channels, channels, kernel_size=3, stride=stride, padding=1, groups=channels, bias=False)


def pointwise(channels: int, filters: int) -> list[nn.Module]:
    """1x1 convolution, normalisation, relu."""
    return [nn.Conv2d(channels, filters, kernel_size=1, bias=False), nn.BatchNorm2d(filters), relu()]


class InvertedResidual(nn.Module):
    """Half of the channels through 1x1, 3x3 depthwise and 1x1, then shuffled; at stride 2 all, twice."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = filters // 2
        self.branch1 = nn.Sequential(
            *([depthwise(channels, stride), nn.BatchNorm2d(channels), *pointwise(channels, half)] if stride > 1 else [])
        )
        self.branch2 = nn.Sequential(
            *pointwise(channels if stride > 1 else half, half),
            depthwise(half, stride),
            nn.BatchNorm2d(half),
            *pointwise(half, half),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, filters, H', W')."""
        if self.stride == 1:
            kept, x = x.chunk(2, dim=1)
            out = torch.cat((kept, self.branch2(x)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return shuffle(out, 2)


class ShuffleNetV2(nn.Module):
    """Stem, three stages, 1x1 convolution, classifier; images from 32x32 on."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(3, STEM, 3, 2, 1, bias=False), nn.BatchNorm2d(STEM), relu())
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        channels = STEM
        for index, (count, filters) in enumerate(STAGES, 2):
            blocks = [InvertedResidual(channels, filters, 2)]
            blocks += [InvertedResidual(filters, filters, 1) for _ in range(count - 1)]
            self.add_module(f"stage{index}", nn.Sequential(*blocks))
            channels = filters
        self.conv5 = nn.Sequential(*pointwise(channels, LAST))
        self.fc = nn.Linear(LAST, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        x = self.maxpool(self.conv1(x))
        x = self.conv5(self.stage4(self.stage3(self.stage2(x))))
        return self.fc(x.mean([2, 3]))
