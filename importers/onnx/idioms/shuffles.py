"""Channels put in another order by Reshape and Transpose (ShuffleNet), or picked by Gather.

Reshape (N, g, c/g, …), Transpose of axes 1 and 2, Reshape back             -> dagtrain.ChannelShuffle(groups=g)
Reshape (N c/2, 2, …), Transpose of axes 0 and 1, Reshape (2, N, c/2, …), Gather: every other channel
                                                                            -> dagtrain.ChannelShuffle, Slice
Concat of Slices of every g-th channel, from the first one, the second one, …  -> dagtrain.ChannelShuffle(groups=c/g)
Gather of one channel, Unsqueeze; Gather of channels side by side           -> Slice
Gather of all channels in the order of a shuffle                            -> dagtrain.ChannelShuffle
"""

from __future__ import annotations

import numpy as np

from importers.onnx.idioms.idiom import Idiom, Rewrite, in_place
from importers.onnx.idioms.pattern import Constant, Op, Scene, Tensor, first_match
from importers.onnx.model import Array, OnnxNode

X = Tensor("x")
VIEW = Constant()
TURNED = Op("Reshape", Op("Transpose", Op("Reshape", X, VIEW, name="parts"), name="turned"), VIEW)
STRIDED = Op("Slice", X, *(Constant(name) for name in ("start", "end", "axis", "step")))
EVERY_OTHER = Op("Gather", TURNED, Constant("which"), name="picked")


def _shuffle(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(TURNED, node.outputs[0], scene)
    if found is None:
        return None
    shape, parts = scene.shape(found["x"]), scene.shape(found["parts"])
    order = list(scene.made(found, "turned").attributes.get("perm", ()))
    if shape is None or parts is None or len(shape) != 4 or scene.shape(node.outputs[0]) != shape:
        return None
    split = parts[:1] == shape[:1] and len(parts) >= 3 and parts[1] * parts[2] == shape[1]
    if not split or order != [0, 2, 1, *range(3, len(parts))]:
        return None
    return Rewrite((in_place(node, "dagtrain.ChannelShuffle", found["x"], attributes={"groups": parts[1]}),))


def _every_other(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(EVERY_OTHER, node.outputs[0], scene)
    if found is None or node.attributes.get("axis", 0) != 0:
        return None
    shape, parts, which = scene.shape(found["x"]), scene.shape(found["parts"]), scene.number(found["which"])
    order = list(scene.made(found, "turned").attributes.get("perm", ()))
    if shape is None or parts is None or which is None or len(shape) != 4 or len(parts) < 2:
        return None
    batch, channels, height, width = shape
    step = parts[1]
    rows = scene.shape(node.inputs[0])
    if parts[0] * step != batch * channels or channels % step or order != [1, 0, *range(2, len(parts))]:
        return None
    if rows != (step, batch, channels // step, height, width):
        return None
    shuffled = f"{node.name}//shuffled"
    groups = channels // step
    shuffle = OnnxNode(
        f"{node.name}//shuffle", "dagtrain.ChannelShuffle", (found["x"],), (shuffled,), {"groups": groups}
    )
    return sliced(node, shuffled, int(which) % step * groups, groups, before=(shuffle,))


def _strided(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """Every g-th channel from each of the first g on, side by side."""
    step = len(node.inputs)
    x, shape = "", scene.shape(node.outputs[0])
    if shape is None or len(shape) != 4 or step < 2 or shape[1] % step or node.attributes.get("axis") not in (1, -3):
        return None
    for first, tensor in enumerate(node.inputs):
        found = first_match(STRIDED, tensor, scene)
        if found is None or found["x"] != (x or found["x"]) or scene.shape(found["x"]) != shape:
            return None
        x = found["x"]
        start, end, axis, by = (scene.number(found[name]) for name in ("start", "end", "axis", "step"))
        if start is None or end is None or by != step or axis not in (1, -3):
            return None
        if range(shape[1])[int(start) : int(end) : step] != range(shape[1])[first::step]:
            return None
    groups = shape[1] // step
    return Rewrite((in_place(node, "dagtrain.ChannelShuffle", x, attributes={"groups": groups}),))


def _gather(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """Gather of neighbouring channels, or of all of them shuffled; of one channel without its axis, the Unsqueeze that
    puts the axis back."""
    gather = scene.producer(node.inputs[0]) if node.op == "Unsqueeze" else node
    if gather is None or gather.op != "Gather":
        return None
    shape, which = scene.shape(gather.inputs[0]), scene.constant(gather.inputs[1])
    if shape is None or which is None or len(shape) != 4 or gather.attributes.get("axis", 0) not in (1, -3):
        return None
    if (which.ndim == 0) != (node.op == "Unsqueeze") or scene.shape(node.outputs[0]) != (
        shape[0],
        which.size,
        *shape[2:],
    ):
        return None
    chosen = [int(index) % shape[1] for index in which.reshape(-1)]
    if chosen and chosen == list(range(chosen[0], chosen[0] + which.size)):
        return sliced(node, gather.inputs[0], chosen[0], which.size)
    columns = chosen[1] if len(chosen) == shape[1] else 0
    if columns > 1 and chosen == [place for first in range(columns) for place in range(shape[1])[first::columns]]:
        attributes = {"groups": shape[1] // columns}
        return Rewrite((in_place(node, "dagtrain.ChannelShuffle", gather.inputs[0], attributes=attributes),))
    return None


def sliced(node: OnnxNode, x: str, first: int, channels: int, before: tuple[OnnxNode, ...] = ()) -> Rewrite:
    """Channels of x, side by side."""
    limits: dict[str, Array] = {
        f"{node.name}//starts": np.array([first]),
        f"{node.name}//ends": np.array([first + channels]),
        f"{node.name}//axes": np.array([1]),
    }
    return Rewrite((*before, in_place(node, "Slice", x, *limits)), limits)


SHUFFLES = (
    Idiom("channel shuffle", ("Reshape",), _shuffle),
    Idiom("channel shuffle", ("Concat",), _strided),
    Idiom("every other channel", ("Gather",), _every_other),
    Idiom("channels by Gather", ("Gather", "Unsqueeze"), _gather),
)
