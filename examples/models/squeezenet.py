"""SqueezeNet 1.0 and 1.1 (Iandola et al., "SqueezeNet: AlexNet-level accuracy", 2016) in plain PyTorch.

Structure and parameter names are those of torchvision's ``squeezenet1_0`` and ``squeezenet1_1``.
"""

from __future__ import annotations

import torch
from blocks import relu
from torch import nn

# filters of the squeezing and of each expanding convolution of the eight fire modules
FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
# fire modules before which a max pool stands, in the two versions
POOLS = {"1.0": (0, 3, 7), "1.1": (0, 2, 4)}


class Fire(nn.Module):
    """1x1 convolution to few channels; 1x1 and 3x3 convolutions of them, side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, kernel_size=1)
        self.squeeze_activation = relu()
        self.expand1x1 = nn.Conv2d(squeezed, expanded, kernel_size=1)
        self.expand1x1_activation = relu()
        self.expand3x3 = nn.Conv2d(squeezed, expanded, kernel_size=3, padding=1)
        self.expand3x3_activation = relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) -> (N, 2 * expanded, H, W)."""
        x = self.squeeze_activation(self.squeeze(x))
        return torch.cat(
            [self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))], 1
        )


class SqueezeNet(nn.Module):
    """Stem, eight fire modules, a convolution as classifier; images from 32x32 on."""

    def __init__(self, version: str, classes: int = 1000) -> None:
        super().__init__()
        channels, kernel = (96, 7) if version == "1.0" else (64, 3)
        layers: list[nn.Module] = [nn.Conv2d(3, channels, kernel_size=kernel, stride=2), relu()]
        for index, (squeezed, expanded) in enumerate(FIRES):
            if index in POOLS[version]:
                layers.append(nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True))
            layers.append(Fire(channels, squeezed, expanded))
            channels = 2 * expanded
        self.features = nn.Sequential(*layers)
        final = nn.Conv2d(channels, classes, kernel_size=1)
        self.classifier = nn.Sequential(nn.Dropout(0.5), final, relu(), nn.AdaptiveAvgPool2d((1, 1)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, 0.01) if module is final else nn.init.kaiming_uniform_(
                    module.weight
                )
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes)."""
        return torch.flatten(self.classifier(self.features(x)), 1)
