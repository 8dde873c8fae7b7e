"""Forward graphs written in Python: what an importer makes of a file, made by calls.

>>> net = GraphBuilder("net", Recipe(), seed=0)
>>> x = net.relu(net.norm(net.conv(net.input(8, 8, 1), 16, kernel=3, padding=1)))
>>> graph = net.classify(net.gemm(net.global_average_pool(x), 10))
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from dagtrain.graph.heads import loss_node
from dagtrain.graph.ir import Graph, Node, Role, Stage, verify
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.conv.gemm import gemm
from hdl.layers.norm.channel_norm import ChannelNorm
from hdl.layers.norm.local_response_norm import LocalResponseNorm
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.pointwise.add import Add
from hdl.layers.pointwise.base import Pointwise
from hdl.layers.pointwise.bias import Bias
from hdl.layers.pointwise.channel_affine import ChannelAffine
from hdl.layers.pointwise.dropout import Dropout
from hdl.layers.pointwise.mul import Mul, Scale
from hdl.layers.pointwise.relu import Relu
from hdl.layers.pointwise.stochastic_depth import StochasticDepth
from hdl.layers.pool.average_pool import AveragePool
from hdl.layers.pool.global_average_pool import GlobalAveragePool
from hdl.layers.pool.max_pool import MaxPool
from hdl.layers.wiring.channel_shuffle import ChannelShuffle
from hdl.layers.wiring.channel_slice import ChannelSlice
from hdl.layers.wiring.concat import Concat, Split
from hdl.layers.wiring.host import HostInput
from hdl.layers.wiring.pixel_slice import PixelSlice
from hdl.recipe import Recipe


class GraphBuilder:
    """Collects nodes; every method takes and returns edges, and names its node after itself and a number.

    Initial weights are He et al. 2015 (normal, variance 2 / fan-in), seeded; scales are 1, shifts 0,
    and so are biases unless said."""

    def __init__(self, name: str, recipe: Recipe, seed: int = 0) -> None:
        self.name = name
        self.recipe = recipe
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        # nodes by what they are named after
        self.counts: Counter[str] = Counter()
        self.parameters: dict[str, FloatArray] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def input(self, height: int, width: int, channels: int) -> str:
        """The images."""
        return self._add("input", HostInput(height=height, width=width, channels=channels), {})

    def conv(
        self,
        x: str,
        filters: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
        groups: int = 1,
        dilation: int = 1,
    ) -> str:
        """A convolution with a square kernel and equal padding on all sides."""
        height, width, channels = self.shapes[x]
        layer = Conv(
            height=height,
            width=width,
            channels=channels,
            filters=filters,
            groups=groups,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            padding=(padding,) * 4,
            dilation=(dilation, dilation),
            recipe=self.recipe,
        )
        y = self._add("conv", layer, {"x": x}, {"w": self._he(layer.weight_shape)})
        return self.bias(y) if bias else y

    def depthwise(self, x: str, kernel: int, stride: int = 1, padding: int = 0) -> str:
        """A depthwise convolution with a square kernel and equal padding on all sides."""
        height, width, channels = self.shapes[x]
        layer = DepthwiseConv(
            height=height,
            width=width,
            channels=channels,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            padding=(padding,) * 4,
            recipe=self.recipe,
        )
        return self._add("depthwise", layer, {"x": x}, {"w": self._he((channels, 1, kernel, kernel))})

    def gemm(self, x: str, filters: int, bias: bool = True) -> str:
        """A dense layer over the whole map; output (1, 1, filters)."""
        height, width, channels = self.shapes[x]
        layer = gemm(height, width, channels, filters, self.recipe)
        y = self._add("gemm", layer, {"x": x}, {"w": self._he((filters, channels, height, width))})
        return self.bias(y) if bias else y

    def bias(self, x: str, spread: float = 0.0) -> str:
        """A learnt number a channel, added; begins with 0, or uniformly drawn from -``spread`` to ``spread``."""
        height, width, channels = self.shapes[x]
        layer = Bias(height=height, width=width, channels=channels, recipe=self.recipe)
        values = self.rng.uniform(-spread, spread, channels) if spread else np.zeros(channels)
        return self._add("bias", layer, {"x": x}, {"b": values})

    def norm(self, x: str) -> str:
        """Online normalisation with scale and shift."""
        height, width, channels = self.shapes[x]
        layer = OnlineNorm(height=height, width=width, channels=channels, recipe=self.recipe)
        return self._add("norm", layer, {"x": x}, {"gamma": np.ones(channels), "beta": np.zeros(channels)})

    def channel_norm(self, x: str) -> str:
        """Layer normalisation over the channels of each pixel, with scale and shift."""
        height, width, channels = self.shapes[x]
        y = self._add("channel_norm", ChannelNorm(height=height, width=width, channels=channels), {"x": x})
        layer = DepthwiseConv(height=height, width=width, channels=channels, kernel=(1, 1), recipe=self.recipe)
        return self.bias(self._add("scale", layer, {"x": y}, {"w": np.ones((channels, 1, 1, 1))}))

    def channel_affine(self, x: str, scale: FloatArray, offset: FloatArray | None = None) -> str:
        """scale * x + offset, by constants of shape (channels,)."""
        height, width, channels = self.shapes[x]
        layer = ChannelAffine(height=height, width=width, channels=channels, shifted=offset is not None)
        return self._add("affine", layer, {"x": x}, {"scale": scale, **({} if offset is None else {"offset": offset})})

    def local_response_norm(self, x: str, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> str:
        """x by a power of the squares of neighbouring channels."""
        height, width, channels = self.shapes[x]
        layer = LocalResponseNorm(
            height=height, width=width, channels=channels, size=size, alpha=alpha, beta=beta, bias=bias
        )
        return self._add("local_response_norm", layer, {"x": x})

    def relu(self, x: str, ceiling: float | None = None) -> str:
        """max(x, 0), cut off at ``ceiling`` if given (relu6: 6.0)."""
        height, width, channels = self.shapes[x]
        return self._add("relu", Relu(height=height, width=width, channels=channels, ceiling=ceiling), {"x": x})

    def activation(self, kind: type[Pointwise], x: str, **parameters: Any) -> str:
        """Any activation, with its parameters."""
        height, width, channels = self.shapes[x]
        layer = kind(height=height, width=width, channels=channels, **parameters)
        return self._add(kind.__name__.lower(), layer, {"x": x})

    def dropout(self, x: str, ratio: float, per_frame: bool = False) -> str:
        """Elements zeroed at random while training; of ``per_frame``, whole frames (stochastic depth)."""
        height, width, channels = self.shapes[x]
        kind = StochasticDepth if per_frame else Dropout
        return self._add(
            "dropout", kind(height=height, width=width, channels=channels, ratio=ratio, recipe=self.recipe), {"x": x}
        )

    def max_pool(self, x: str, kernel: int, stride: int, padding: int = 0) -> str:
        """The largest of each square window."""
        height, width, channels = self.shapes[x]
        layer = MaxPool(
            height=height,
            width=width,
            channels=channels,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            padding=(padding,) * 4,
        )
        return self._add("max_pool", layer, {"x": x})

    def average_pool(self, x: str, kernel: int, stride: int, padding: int = 0, counted: int = 0) -> str:
        """The mean of each square window, in which so much of the equal padding counts."""
        height, width, channels = self.shapes[x]
        layer = AveragePool(
            height=height,
            width=width,
            channels=channels,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            padding=(padding,) * 4,
            counted=(counted,) * 4,
        )
        return self._add("average_pool", layer, {"x": x})

    def adaptive_average_pool(self, x: str, rows: int, columns: int) -> str:
        """The mean of all that overlaps each of so many equal shares of the map."""
        height, width, channels = self.shapes[x]
        layer = AveragePool.sharing(height, width, (rows, columns), channels=channels)
        return self._add("average_pool", layer, {"x": x})

    def global_average_pool(self, x: str) -> str:
        """The mean of each channel; output (1, 1, channels)."""
        height, width, channels = self.shapes[x]
        return self._add("average", GlobalAveragePool(height=height, width=width, channels=channels), {"x": x})

    def add(self, a: str, b: str) -> str:
        """a + b."""
        height, width, channels = self.shapes[a]
        return self._add("add", Add(height=height, width=width, channels=channels), {"a": a, "b": b})

    def mul(self, a: str, b: str) -> str:
        """a * b; b may be a vector of (1, 1, channels), which multiplies every pixel."""
        height, width, channels = self.shapes[a]
        if self.shapes[a] != self.shapes[b] == (1, 1, channels):
            return self._add("scale", Scale(height=height, width=width, channels=channels), {"x": a, "s": b})
        return self._add("mul", Mul(height=height, width=width, channels=channels), {"a": a, "b": b})

    def concat(self, a: str, b: str) -> str:
        """The channels of a, then those of b."""
        height, width, a_channels = self.shapes[a]
        layer = Concat(height=height, width=width, a_channels=a_channels, b_channels=self.shapes[b][2])
        return self._add("concat", layer, {"a": a, "b": b})

    def split(self, x: str, channels: int) -> tuple[str, str]:
        """The first ``channels`` channels of x, and the others."""
        height, width, total = self.shapes[x]
        a = self._add(
            "split", Split(height=height, width=width, a_channels=channels, b_channels=total - channels), {"x": x}
        )
        return a, f"{a.removesuffix('.a')}.b"

    def channel_slice(self, x: str, first: int, part: int) -> str:
        """``part`` channels of x from ``first`` on."""
        height, width, channels = self.shapes[x]
        layer = ChannelSlice(height=height, width=width, channels=channels, first=first, part=part)
        return self._add("slice", layer, {"x": x})

    def pixel_slice(self, x: str, rows: tuple[int, ...], columns: tuple[int, ...]) -> str:
        """Some rows and columns of x."""
        height, width, channels = self.shapes[x]
        layer = PixelSlice(height=height, width=width, channels=channels, rows=rows, columns=columns)
        return self._add("pixels", layer, {"x": x})

    def channel_shuffle(self, x: str, groups: int) -> str:
        """The channels of x, ``groups`` rows of them, column by column."""
        height, width, channels = self.shapes[x]
        layer = ChannelShuffle(height=height, width=width, channels=channels, groups=groups)
        return self._add("shuffle", layer, {"x": x})

    def classify(self, logits: str, *auxiliary: str) -> Graph:
        """The finished, verified graph, with the recipe's loss; ``auxiliary`` are logits of auxiliary heads."""
        heads = {f"head{number}": edge for number, edge in enumerate(auxiliary, 1)}
        for name, edge in (heads | {"loss1": logits}).items():
            _, _, classes = self.shapes[edge]
            self.nodes.append(loss_node(name, self.recipe, edge, classes, auxiliary=name in heads))
        return verify(Graph(self.name, tuple(self.nodes), self.recipe, dict(self.parameters)), Stage.FORWARD)

    def _add(
        self, kind: str, layer: Layer, inputs: Mapping[str, str], weights: Mapping[str, FloatArray] | None = None
    ) -> str:
        """Add a node; returns its first output edge."""
        self.counts[kind] += 1
        name = f"{kind}{self.counts[kind]}"
        outputs = {port.name: f"{name}.{port.name}" for port in layer.sources}
        keys = {sink: f"{name}.{sink}" for sink in weights or {}}
        self.parameters.update((keys[sink], value) for sink, value in (weights or {}).items())
        self.nodes.append(Node(name, layer, dict(inputs), outputs, keys, Role.forward(layer)))
        self.shapes.update((outputs[port.name], port.tensor.shape) for port in layer.sources)
        return next(iter(outputs.values()))

    def _he(self, shape: tuple[int, ...]) -> FloatArray:
        return self.rng.normal(0.0, math.sqrt(2 / math.prod(shape[1:])), shape)
