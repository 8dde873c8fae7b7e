"""PyTorch, CPU, float32: seconds a training step of a net.  Needs nothing but torch.

    python benchmarks/torch_step.py digits|resnet18 [batch] [steps]

The same blocks as in benchmarks/emulator.py, with batch normalisation instead of online normalisation, which PyTorch
lacks and which a loop over frames would make slower: the comparison is in PyTorch's favour.
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


def resnet18() -> nn.Module:
    """ResNet-18 in its form for images of 32x32: a 3x3 stem, no pool after it."""
    blocks: list[nn.Module] = []
    channels = 64
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Residual(channels, filters, stride), Residual(filters, filters, 1)]
        channels = filters
    stem = (*conv(3, 64, 3), nn.ReLU(inplace=True))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


NETS = {"digits": (digits_net, (1, 8, 8)), "resnet18": (resnet18, (3, 32, 32))}


def main() -> None:
    """Prints the median seconds of a step; with a fourth word the CPU's, of one thread."""
    name = sys.argv[1]
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    clock = time.process_time if len(sys.argv) > 4 else time.perf_counter
    if len(sys.argv) > 4:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    build, shape = NETS[name]
    net = build()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    images, labels = torch.rand(batch, *shape), torch.randint(0, 10, (batch,))
    seconds = []
    for _ in range(steps):
        start = clock()
        optimiser.zero_grad()
        loss_of(net(images), labels).backward()
        optimiser.step()
        seconds.append(clock() - start)
    print(statistics.median(seconds[steps // 10 :]))


if __name__ == "__main__":
    main()
