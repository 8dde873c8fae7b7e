"""PyTorch, CPU, float32: seconds a training step of the digits net.  Needs nothing but torch.

    python benchmarks/torch_digits.py [batch] [steps]

The same blocks as examples/digits, with batch normalisation instead of online normalisation, which PyTorch lacks and
which a loop over frames would make slower: the comparison is in PyTorch's favour.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn


class Residual(nn.Module):
    """Two 3x3 convolutions beside the identity or a projection."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *conv(channels, filters, 3, stride), nn.ReLU(inplace=True), *conv(filters, filters, 3)
        )
        plain = stride == 1 and channels == filters
        self.short = nn.Identity() if plain else nn.Sequential(*conv(channels, filters, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(main + short)."""
        return torch.relu(self.main(x) + self.short(x))


class Inverted(nn.Module):
    """Expansion, depthwise, projection, added to the input."""

    def __init__(self, channels: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.main = nn.Sequential(
            *conv(channels, wide, 1),
            nn.ReLU6(),
            *conv(wide, wide, 3, groups=wide),
            nn.ReLU6(),
            *conv(wide, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """main + x."""
        return self.main(x) + x


def conv(channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, nn.Module]:
    """Convolution and normalisation."""
    padding = kernel // 2
    layer = nn.Conv2d(channels, filters, kernel, stride, padding, groups=groups, bias=False)
    return layer, nn.BatchNorm2d(filters)


def digits_net() -> nn.Module:
    """The net of examples/digits."""
    return nn.Sequential(
        *conv(1, 16, 3),
        nn.ReLU(inplace=True),
        Residual(16, 16, 1),
        Residual(16, 16, 2),
        Inverted(16, 2),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def main() -> None:
    """Prints the median seconds of a step."""
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    torch.manual_seed(0)
    net = digits_net()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    images, labels = torch.rand(batch, 1, 8, 8), torch.randint(0, 10, (batch,))
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss_of(net(images), labels).backward()
        optimiser.step()
        seconds.append(time.perf_counter() - start)
    print(statistics.median(seconds[steps // 10 :]))


if __name__ == "__main__":
    main()
