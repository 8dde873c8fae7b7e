"""RegNet-Y 400MF (Radosavovic et al., "Designing Network Design Spaces", CVPR 2020) in plain PyTorch.

Structure, parameter names and initialisation are those of torchvision's ``regnet_y_400mf``.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from blocks import ConvNorm, SqueezeExcite, relu
from torch import nn

# filters and blocks of the stages; channels a group; squeezed channels as a share of the block's input
STAGES = ((48, 1), (104, 3), (208, 6), (440, 6))
GROUP, SQUEEZED = 8, 0.25
STEM = 32


class Block(nn.Module):
    """1x1, grouped 3x3 with squeeze and excite, 1x1; beside a shortcut."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        changes = stride != 1 or channels != filters
        self.proj = ConvNorm(channels, filters, 1, stride, activation=None) if changes else None
        self.f = nn.Sequential(
            OrderedDict(
                a=ConvNorm(channels, filters, 1),
                b=ConvNorm(filters, filters, 3, stride, filters // GROUP),
                se=SqueezeExcite(filters, round(SQUEEZED * channels)),
                c=ConvNorm(filters, filters, 1, activation=None),
            )
        )
        self.activation = relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(shortcut(x) + F(x))."""
        return self.activation((x if self.proj is None else self.proj(x)) + self.f(x))


class RegNet(nn.Module):
    """Stem, four stages, classifier; images from 32x32 on."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = ConvNorm(3, STEM, 3, 2)
        stages: OrderedDict[str, nn.Module] = OrderedDict()
        channels = STEM
        for index, (filters, count) in enumerate(STAGES, 1):
            blocks: OrderedDict[str, nn.Module] = OrderedDict()
            for block in range(count):
                blocks[f"block{index}-{block}"] = Block(channels, filters, 2 if block == 0 else 1)
                channels = filters
            stages[f"block{index}"] = nn.Sequential(blocks)
        self.trunk_output = nn.Sequential(stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, mean=0.0, std=(2.0 / fan_out) ** 0.5)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, mean=0.0, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return self.fc(self.avgpool(self.trunk_output(self.stem(x))).flatten(start_dim=1))
