"""What several of the networks in this folder are made of, with the parameter names of torchvision's blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

Activation = Callable[[], nn.Module]
Norm = Callable[[int], nn.Module]
# in place, as in the published networks
relu: Activation = partial(nn.ReLU, inplace=True)
relu6: Activation = partial(nn.ReLU6, inplace=True)
silu: Activation = partial(nn.SiLU, inplace=True)
hard_swish: Activation = partial(nn.Hardswish, inplace=True)


def divisible(channels: float, divisor: int = 8) -> int:
    """The multiple of ``divisor`` nearest to ``channels`` that is not more than a tenth below it."""
    found = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return found + divisor if found < 0.9 * channels else found


class ConvNorm(nn.Sequential):
    """Convolution without bias that keeps the map's size at stride 1, normalisation, activation if any."""

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        activation: Activation | None = relu,
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        conv = nn.Conv2d(channels, filters, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
        super().__init__(conv, norm(filters), *([] if activation is None else [activation()]))


class SqueezeExcite(nn.Module):
    """Every channel times a factor computed from the means of all channels (Hu et al., CVPR 2018)."""

    def __init__(
        self, channels: int, squeezed: int, activation: Activation = relu, gate: Activation = nn.Sigmoid
    ) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = activation()
        self.scale_activation = gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) -> the same shape."""
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale)) * x


class StochasticDepth(nn.Module):
    """In training, a whole frame's branch set to 0 with probability ``p`` (Huang et al., ECCV 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) -> the same shape."""
        if not self.training or self.p == 0.0:
            return x
        survival = 1.0 - self.p
        noise = torch.empty([x.shape[0], 1, 1, 1], dtype=x.dtype, device=x.device).bernoulli_(survival)
        return x * noise.div_(survival)
