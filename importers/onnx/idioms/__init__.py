"""Idioms: operators that files spell out in several nodes, rewritten to one operator each, on ONNX's own level.

The operator is ONNX's where ONNX has one at any opset (Gelu, HardSwish, LRN, LayerNormalization); else one of our own
domain:

    dagtrain.Silu(x)                            x * sigmoid(x)
    dagtrain.StochasticDepth(x; ratio)          whole images dropped; the others divided by 1 - ratio
    dagtrain.ChannelShuffle(x; groups)          (groups, channels / groups) transposed
    dagtrain.AdaptiveAveragePool(x; size)       means of what overlaps each of so many equal shares of rows, columns
    dagtrain.LayerNorm(x, scale, shift; epsilon)    over axis 1, the channels of every pixel

An idiom matches backwards from its last node, which is replaced; nodes before it go where nobody else reads them.
Nodes that mean an idiom wherever they stand, and did not become it, are named with the node where the idiom breaks
(`explain`).
"""

from __future__ import annotations

from collections.abc import Collection

from importers.onnx.idioms.activations import ACTIVATIONS
from importers.onnx.idioms.arithmetic import BIAS, BROADCAST, CEILINGS, CHANNELS, NEUTRALS, PLAIN
from importers.onnx.idioms.dropout import DROPOUT
from importers.onnx.idioms.explain import explain
from importers.onnx.idioms.idiom import Idiom, apply
from importers.onnx.idioms.norms import NORMS
from importers.onnx.idioms.pools import POOLS
from importers.onnx.idioms.shuffles import SHUFFLES
from importers.onnx.idioms.views import VIEWS
from importers.onnx.layout import channels_first
from importers.onnx.model import OnnxModel
from importers.onnx.normalise import drop_identities, infer_shapes
from importers.onnx.problems import Problems

__all__ = ["IDIOMS", "rewrite"]

# in this order: each may build on those before it
IDIOMS: tuple[Idiom, ...] = (
    NEUTRALS, *VIEWS, BROADCAST, CEILINGS, *DROPOUT, *ACTIVATIONS, *SHUFFLES, *NORMS, CHANNELS, PLAIN, BIAS, *POOLS,
)  # fmt: skip


def _apply_all(model: OnnxModel) -> tuple[OnnxModel, dict[str, tuple[int, ...]]]:
    """(after all idioms; shapes of tensors of the model and of what it was)."""
    shapes = infer_shapes(model)
    for idiom in IDIOMS:
        model = drop_identities(apply(idiom, model, shapes))
    return model, {**shapes, **infer_shapes(model)}


def rewrite(model: OnnxModel, known: Collection[str], problems: Problems) -> OnnxModel:
    """The model with every idiom that is recognised rewritten.

    Operators that mean an idiom, are not ``known`` as such, and are no part of one go to ``problems``."""
    model, shapes = _apply_all(model)
    turned = channels_first(model, shapes)
    if turned is not model:
        model, shapes = _apply_all(turned)
    return explain(model, shapes, IDIOMS, known, problems)
