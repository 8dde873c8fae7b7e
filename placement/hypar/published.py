"""The ten networks of the paper's evaluation, by their hyper-parameters.

SFC and SCONV stand in the paper (Table 3), Lenet-c's layers follow from 3.4 and 6.3.1.  Cifar-c is not given: it is
Caffe's cifar10_quick here.  AlexNet is that of its paper without the two groups, which the formula for W (2.1) doesn't
know; VGG-A to VGG-E are as in theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hdl.errors import DagtrainError
from placement.hypar.network import Layer, Net


@dataclass(frozen=True)
class Pool:
    """A max pool; ``ceil``: the last window may stand over the edge, as in Caffe."""

    size: int
    stride: int
    ceil: bool = False

    def after(self, side: int) -> int:
        """Pixels on a side of its map."""
        return (side - self.size + (self.stride - 1) * self.ceil) // self.stride + 1


@dataclass(frozen=True)
class Conv:
    """A convolution on a square map, and the pool behind it."""

    name: str
    filters: int
    kernel: int
    padding: int = 0
    stride: int = 1
    pool: Pool | None = None

    def after(self, side: int) -> int:
        """Pixels on a side of its map."""
        return (side + 2 * self.padding - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class Dense:
    """A fully connected layer."""

    name: str
    outputs: int


@dataclass(frozen=True)
class Published:
    """A network's hyper-parameters."""

    name: str
    # pixels on a side and channels of an image
    side: int
    channels: int
    layers: tuple[Conv | Dense, ...]

    @property
    def net(self) -> Net:
        """Its tensors."""
        return Net(self.name, tuple(self._layers()))

    def _layers(self) -> Iterator[Layer]:
        side, channels = self.side, self.channels
        inputs: tuple[str, ...] = ()
        for layer in self.layers:
            taken, taps = side * side * channels, 1
            if isinstance(layer, Conv):
                taps = layer.kernel**2
                kernel = taps * channels
                side, channels = layer.after(side), layer.filters
                macs, output = kernel * channels * side * side, channels * side * side
                side = layer.pool.after(side) if layer.pool else side
            else:
                kernel, side, channels = taken, 1, layer.outputs
                macs = kernel * channels
                output = channels
            yield Layer(
                name=layer.name, weights=kernel * channels, macs=macs, taps=taps, input=taken, output=output,
                pooled=channels * side * side, inputs=inputs,
            )  # fmt: skip
            inputs = (layer.name,)


HALF, CAFFE, OVERLAPPING = Pool(2, 2), Pool(3, 2, ceil=True), Pool(3, 2)


def _dense(*outputs: int) -> tuple[Dense, ...]:
    return tuple(Dense(f"fc{number}", count) for number, count in enumerate(outputs, 1))


def _vgg(letter: str, stages: Sequence[Sequence[int]]) -> Published:
    """Of the kernels of every stage; a stage ends in a pool, its convolutions keep the map's size."""
    convs = tuple(
        Conv(f"conv{stage}_{number}", filters, kernel, kernel // 2, pool=HALF if number == len(kernels) else None)
        for stage, (filters, kernels) in enumerate(zip((64, 128, 256, 512, 512), stages, strict=True), 1)
        for number, kernel in enumerate(kernels, 1)
    )
    return Published(f"vgg-{letter}", 224, 3, (*convs, *_dense(4096, 4096, 1000)))


PUBLISHED = {
    network.name: network
    for network in (
        Published("sfc", 28, 1, _dense(8192, 8192, 8192, 10)),
        Published(
            "sconv", 28, 1,
            (
                Conv("conv1", 20, 5),
                Conv("conv2", 50, 5, pool=HALF),
                Conv("conv3", 50, 5),
                Conv("conv4", 10, 5, pool=HALF),
            ),
        ),
        Published(
            "lenet-c", 28, 1,
            (Conv("conv1", 20, 5, pool=HALF), Conv("conv2", 50, 5, pool=HALF), *_dense(500, 10)),
        ),
        Published(
            "cifar-c", 32, 3,
            (
                *(Conv(f"conv{number}", filters, 5, 2, pool=CAFFE) for number, filters in enumerate((32, 32, 64), 1)),
                *_dense(64, 10),
            ),
        ),
        Published(
            "alexnet", 227, 3,
            (
                Conv("conv1", 96, 11, stride=4, pool=OVERLAPPING),
                Conv("conv2", 256, 5, 2, pool=OVERLAPPING),
                Conv("conv3", 384, 3, 1),
                Conv("conv4", 384, 3, 1),
                Conv("conv5", 256, 3, 1, pool=OVERLAPPING),
                *_dense(4096, 4096, 1000),
            ),
        ),
        _vgg("a", ((3,), (3,), (3, 3), (3, 3), (3, 3))),
        _vgg("b", ((3, 3),) * 5),
        _vgg("c", ((3, 3), (3, 3), (3, 3, 1), (3, 3, 1), (3, 3, 1))),
        _vgg("d", ((3, 3), (3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3))),
        _vgg("e", ((3, 3), (3, 3), (3,) * 4, (3,) * 4, (3,) * 4)),
    )
}  # fmt: skip


def published(name: str) -> Net:
    """The network of that name.  Raises `DagtrainError` for any other."""
    if name not in PUBLISHED:
        raise DagtrainError(f"--net {name} is unknown", f"choose one of {', '.join(PUBLISHED)}")
    return PUBLISHED[name].net
