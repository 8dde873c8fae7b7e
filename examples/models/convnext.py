"""ConvNeXt-Tiny (Liu et al., "A ConvNet for the 2020s", CVPR 2022) in plain PyTorch.

Structure, parameter names and initialisation are those of torchvision's ``convnext_tiny``.
"""

from __future__ import annotations

import torch
from blocks import StochasticDepth
from torch import nn
from torch.nn import functional

# channels and blocks of the stages
STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
EPSILON = 1e-6
# initial value of the scale of a block's output, and the probability with which the last block is left out
SCALE, DROPPED = 1e-6, 0.1


class LayerNorm2d(nn.LayerNorm):
    """Normalisation over the channels of every pixel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) -> the same shape."""
        x = functional.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    """The axes in another order."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any tensor of as many axes."""
        return torch.permute(x, self.order)


class CNBlock(nn.Module):
    """7x7 depthwise convolution, layer normalisation, two dense layers a pixel; scaled, added to the input."""

    def __init__(self, channels: int, dropped: float) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, kernel_size=7, padding=3, groups=channels),
            Permute([0, 2, 3, 1]),
            nn.LayerNorm(channels, eps=EPSILON),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            Permute([0, 3, 1, 2]),
        )
        self.layer_scale = nn.Parameter(torch.ones(channels, 1, 1) * SCALE)
        self.stochastic_depth = StochasticDepth(dropped)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x + scale * F(x), with F(x) left out at times."""
        return self.stochastic_depth(self.layer_scale * self.block(x)) + x


class ConvNeXt(nn.Module):
    """4x4 patches, four stages, classifier; images from 32x32 on."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        channels = STAGES[0][0]
        layers: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(3, channels, kernel_size=4, stride=4), LayerNorm2d(channels, eps=EPSILON))
        ]
        total, done = sum(count for _, count in STAGES), 0
        for filters, count in STAGES:
            if filters != channels:
                norm = LayerNorm2d(channels, eps=EPSILON)
                layers.append(nn.Sequential(norm, nn.Conv2d(channels, filters, kernel_size=2, stride=2)))
                channels = filters
            layers.append(
                nn.Sequential(*(CNBlock(channels, DROPPED * (done + i) / (total - 1.0)) for i in range(count)))
            )
            done += count
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(channels, eps=EPSILON), nn.Flatten(1), nn.Linear(channels, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return self.classifier(self.avgpool(self.features(x)))
