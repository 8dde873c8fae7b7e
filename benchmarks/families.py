"""One small network a family of well-known networks, for studies of what learns: `FAMILIES`; and two whole: `WHOLE`.

Those of a family have its blocks at a size that trains in seconds: a stem, two stages of which the second halves the
map, a classifier.  Digits of 8x8 keep their size in the stem; larger images are halved there once or twice.
Whole ones have all published blocks and channels, in the usual form for images of 32x32: a 3x3 stem in place of
ResNet-18's 7x7 and its pool, and stride 1 in MobileNetV2's stem and second stage.
"""

from __future__ import annotations

from collections.abc import Callable

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from hdl.layers.pointwise.gelu import Gelu
from hdl.layers.pointwise.hard_sigmoid import HardSigmoid
from hdl.layers.pointwise.hard_swish import HardSwish
from hdl.recipe import Recipe

CLASSES = 10
# height of images that a stem leaves as they are
SMALL = 8
# height from which on a stem halves twice
LARGE = 24


def stem(net: GraphBuilder, x: str, filters: int, norm: bool = True) -> str:
    """A 3x3 convolution, normalisation, relu; of large images every other pixel, and a max pool."""
    height, _, _ = net.shapes[x]
    x = net.conv(x, filters, 3, stride=1 if height <= SMALL else 2, padding=1, bias=not norm)
    x = net.relu(net.norm(x) if norm else x)
    return net.max_pool(x, 2, 2) if height >= LARGE else x


def head(net: GraphBuilder, x: str) -> str:
    """Means of the channels, and a dense layer."""
    return net.gemm(net.global_average_pool(x), CLASSES)


def residual(net: GraphBuilder, x: str, filters: int, stride: int) -> str:
    """Two 3x3 convolutions beside the identity, or beside a 1x1 projection where shapes change."""
    y = net.relu(net.norm(net.conv(x, filters, 3, stride=stride, padding=1)))
    y = net.norm(net.conv(y, filters, 3, padding=1))
    if stride != 1 or net.shapes[x][2] != filters:
        x = net.norm(net.conv(x, filters, 1, stride=stride))
    return net.relu(net.add(y, x))


def resnet(net: GraphBuilder, x: str) -> str:
    """ResNet: two basic blocks."""
    x = stem(net, x, 16)
    x = residual(net, x, 16, 1)
    return head(net, residual(net, x, 24, 2))


def squeeze_excite(net: GraphBuilder, x: str, squeezed: int) -> str:
    """Every channel times a factor computed from the means of all channels, as MobileNetV3 has it."""
    channels = net.shapes[x][2]
    s = net.relu(net.gemm(net.global_average_pool(x), squeezed))
    return net.mul(x, net.activation(HardSigmoid, net.gemm(s, channels)))


def inverted(
    net: GraphBuilder,
    x: str,
    filters: int,
    stride: int,
    activation: Callable[[str], str],
    squeeze: bool = False,
    expansion: int = 3,
) -> str:
    """1x1 expansion, depthwise 3x3, squeeze and excite perhaps, 1x1 projection; added to its input where it fits."""
    channels = net.shapes[x][2]
    y = activation(net.norm(net.conv(x, channels * expansion, 1)))
    y = activation(net.norm(net.depthwise(y, 3, stride=stride, padding=1)))
    if squeeze:
        y = squeeze_excite(net, y, channels)
    y = net.norm(net.conv(y, filters, 1))
    return net.add(y, x) if stride == 1 and filters == channels else y


def mobilenet_v2(net: GraphBuilder, x: str) -> str:
    """MobileNetV2: three inverted residuals with relu6."""

    def relu6(y: str) -> str:
        return net.relu(y, ceiling=6.0)

    x = stem(net, x, 16)
    x = inverted(net, x, 16, 1, relu6)
    x = inverted(net, x, 24, 2, relu6)
    return head(net, inverted(net, x, 24, 1, relu6))


def mobilenet_v3(net: GraphBuilder, x: str) -> str:
    """MobileNetV3: three inverted residuals, with hard swish, and squeeze and excite."""

    def swish(y: str) -> str:
        return net.activation(HardSwish, y)

    x = stem(net, x, 16)
    x = inverted(net, x, 16, 1, net.relu, squeeze=True)
    x = inverted(net, x, 24, 2, swish, squeeze=True)
    return head(net, inverted(net, x, 24, 1, swish, squeeze=True))


def densenet(net: GraphBuilder, x: str) -> str:
    """DenseNet: two blocks of three layers that each see all maps before, a transition between."""

    def layer(x: str) -> str:
        y = net.conv(net.relu(net.norm(x)), 16, 1)
        return net.concat(x, net.conv(net.relu(net.norm(y)), 8, 3, padding=1))

    x = layer(layer(layer(stem(net, x, 16))))
    x = net.average_pool(net.conv(net.relu(net.norm(x)), 20, 1), 2, 2)
    return head(net, net.relu(net.norm(layer(layer(layer(x))))))


def shufflenet_v2(net: GraphBuilder, x: str) -> str:
    """ShuffleNetV2: a unit that halves the map, and two that take half of the channels."""

    def branch(x: str, filters: int, stride: int) -> str:
        y = net.relu(net.norm(net.conv(x, filters, 1)))
        y = net.norm(net.depthwise(y, 3, stride=stride, padding=1))
        return net.relu(net.norm(net.conv(y, filters, 1)))

    def unit(x: str) -> str:
        channels = net.shapes[x][2]
        kept, changed = net.split(x, channels // 2)
        return net.channel_shuffle(net.concat(kept, branch(changed, channels // 2, 1)), 2)

    def halving(x: str, filters: int) -> str:
        y = net.norm(net.depthwise(x, 3, stride=2, padding=1))
        y = net.relu(net.norm(net.conv(y, filters // 2, 1)))
        return net.channel_shuffle(net.concat(y, branch(x, filters // 2, 2)), 2)

    x = unit(stem(net, x, 24))
    x = unit(unit(halving(x, 48)))
    return head(net, net.relu(net.norm(net.conv(x, 48, 1))))


def convnext(net: GraphBuilder, x: str) -> str:
    """ConvNeXt: two blocks of a depthwise 5x5 convolution and two dense layers a pixel, layer normalisation."""

    def block(x: str) -> str:
        channels = net.shapes[x][2]
        y = net.channel_norm(net.depthwise(x, 5, padding=2))
        y = net.activation(Gelu, net.conv(y, 3 * channels, 1, bias=True))
        return net.add(net.conv(y, channels, 1, bias=True), x)

    patch = 1 if net.shapes[x][0] <= SMALL else 4
    kernel = patch if patch > 1 else 3
    x = net.conv(x, 16, kernel, stride=patch, padding=int(patch == 1))
    # not 0, but as PyTorch begins: black pixels would be flat, and where channels are all alike their normalisation
    # multiplies the error by 1 / sqrt(epsilon)
    x = net.channel_norm(net.bias(x, spread=1 / kernel))
    x = net.conv(net.channel_norm(block(x)), 32, 2, stride=2, bias=True)
    return head(net, net.channel_norm(block(x)))


def vgg(net: GraphBuilder, x: str) -> str:
    """VGG: four 3x3 convolutions with biases and without normalisation, two max pools, two dense layers."""
    x = stem(net, x, 16, norm=False)
    x = net.relu(net.conv(x, 16, 3, padding=1, bias=True))
    x = net.max_pool(x, 2, 2)
    x = net.relu(net.conv(x, 32, 3, padding=1, bias=True))
    x = net.relu(net.conv(x, 32, 3, padding=1, bias=True))
    x = net.max_pool(x, 2, 2)
    return net.gemm(net.relu(net.gemm(x, 48)), CLASSES)


def resnet18(net: GraphBuilder, x: str) -> str:
    """ResNet-18 for images of 32x32 (He et al., "Deep residual learning for image recognition", table 1)."""
    x = net.relu(net.norm(net.conv(x, 64, 3, padding=1)))
    for filters, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            x = residual(net, x, filters, stride)
    return head(net, x)


def mobilenet_v2_whole(net: GraphBuilder, x: str) -> str:
    """MobileNetV2 for images of 32x32 (Sandler et al., "MobileNetV2", table 2)."""

    def relu6(y: str) -> str:
        return net.relu(y, ceiling=6.0)

    x = relu6(net.norm(net.conv(x, 32, 3, padding=1)))
    y = relu6(net.norm(net.depthwise(x, 3, padding=1)))
    x = net.norm(net.conv(y, 16, 1))
    for filters, blocks, first in ((24, 2, 1), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)):
        for stride in (first, *(1,) * (blocks - 1)):
            x = inverted(net, x, filters, stride, relu6, expansion=6)
    return head(net, relu6(net.norm(net.conv(x, 1280, 1))))


FAMILIES: dict[str, Callable[[GraphBuilder, str], str]] = {
    "ResNet": resnet,
    "MobileNetV2": mobilenet_v2,
    "MobileNetV3": mobilenet_v3,
    "DenseNet": densenet,
    "ShuffleNetV2": shufflenet_v2,
    "ConvNeXt": convnext,
    "VGG": vgg,
}

WHOLE: dict[str, Callable[[GraphBuilder, str], str]] = {
    "ResNet-18, 32x32": resnet18,
    "MobileNetV2, 32x32": mobilenet_v2_whole,
}


def forward(family: str, recipe: Recipe, height: int, seed: int) -> Graph:
    """The forward graph for grey square images of that height."""
    net = GraphBuilder(family, recipe, seed)
    return net.classify((FAMILIES | WHOLE)[family](net, net.input(height, height, 1)))
