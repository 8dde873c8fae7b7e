"""Slice, Split, ChannelShuffle: some channels of a map, or all in another order."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from dagtrain.graph.ir import Node
from hdl.layers.wiring.channel_shuffle import ChannelShuffle
from hdl.layers.wiring.channel_slice import ChannelSlice
from hdl.layers.wiring.concat import Split
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.pixels import pick
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing

FLATTENED = "slice or split the map before Flatten or Reshape"


@handles("dagtrain.ChannelShuffle")
def channel_shuffle(node: OnnxNode, state: Lowering) -> None:
    """``groups`` rows of channels, column by column; one row or column is nothing."""
    attributes = Attributes(node)
    groups = attributes.get("groups", 1)
    attributes.finish()
    x = state.map_of(node)
    height, width, channels = x.map
    if groups < 1 or channels % groups:
        raise Unsupported(f"shuffles {channels} channels in {groups} groups", "groups must divide the channels")
    if groups in (1, channels):
        state.give(node, x)
        return
    layer = ChannelShuffle(height=height, width=width, channels=channels, groups=groups)
    state.give(node, state.emit(node, layer, {"x": x}, view=x.shape))


@handles("Slice")
def slice_map(node: OnnxNode, state: Lowering) -> None:
    """Rows, columns, channels from one to another, or every other one; bounds are inputs since opset 10, attributes
    before.  All of an axis is nothing."""
    x = state.value(node)
    result = x
    taken = _taken(node, state, x)
    for axis, places in taken.items():
        what = f"takes [{places.start}:{places.stop}:{places.step}] of axis {axis} of shape {list(x.shape)}"
        if not places:
            raise Unsupported(f"{what}, which is nothing", "export again")
        if places.step < 1 or axis == 0 or (axis > 1 and x.shape[2:] != x.map[:2]):
            raise Unsupported(what, "only channels, rows and columns of a map, in their order, are supported")
    height, width, _ = x.map
    if taken.keys() & {2, 3}:
        rows, columns = (tuple(taken.get(axis, range(size))) for axis, size in ((2, height), (3, width)))
        result = pick(node, state, x, rows, columns)
    if 1 in taken:
        result = _channels(node, state, result, taken[1])
    state.give(node, result)


def _taken(node: OnnxNode, state: Lowering, x: Value) -> dict[int, range]:
    """Axis -> what a Slice takes of it, where that is not all."""
    attributes = Attributes(node)
    given = {name: attributes.get(name, None) for name in ("starts", "ends", "axes")}
    attributes.finish()
    for index, name in enumerate(("starts", "ends", "axes", "steps"), 1):
        if state.has(node, index):
            given[name] = state.constant(node, index).reshape(-1).tolist()
    if given["starts"] is None or given["ends"] is None:
        raise Unsupported("has no starts or no ends", "export again")
    rank, count = len(x.shape), len(given["starts"])
    axes, steps = given["axes"] or list(range(count)), given.get("steps") or [1] * count
    if not len(given["ends"]) == len(axes) == len(steps) == count or not all(-rank <= axis < rank for axis in axes):
        raise Unsupported(f"takes axes {axes} of shape {list(x.shape)} with {count} starts", "export again")
    if 0 in steps:
        raise Unsupported(f"takes steps of {steps}", "export again")
    every = {
        axis % rank: range(x.shape[axis])[start:end:step]
        for start, end, axis, step in zip(given["starts"], given["ends"], axes, steps, strict=True)
    }
    return {axis: places for axis, places in every.items() if places != range(x.shape[axis])}


def _channels(node: OnnxNode, state: Lowering, x: Value, places: range) -> Value:
    """Some channels; every other one stands beside the next once all are shuffled."""
    first, part = places.start, len(places)
    if part > 1 and places.step > 1:
        *_, channels = _channelwise(x)
        groups = channels // places.step
        if channels % places.step or places != range(channels)[first % places.step :: places.step]:
            what = f"takes one of {places.step} channels from {places.start} to {places.stop} of {channels}"
            cure = "the step must divide the channels, and all of them that it meets be taken"
            raise Unsupported(what, cure)
        first = places.start * groups
        if groups > 1:
            x = _shuffled(node, state, x, groups)
    return _part(node, state, x, first, part)


def _shuffled(node: OnnxNode, state: Lowering, x: Value, groups: int) -> Value:
    """The map with its channels shuffled, once for all that read it."""
    height, width, channels = x.map
    layer = ChannelShuffle(height=height, width=width, channels=channels, groups=groups)
    for made in state.nodes:
        if made.layer == layer and made.inputs["x"] == x.edge:
            return replace(x, edge=made.outputs["y"])
    return state.emit(node, layer, {"x": x}, name=f"{node.label}_shuffle", view=x.shape)


@handles("Split")
def split(node: OnnxNode, state: Lowering) -> None:
    """Parts of the channels, two at a time; where one is not used, each of the others by itself.

    Sizes are an input since opset 13, an attribute before; without them the parts are equal, but for the last."""
    attributes = Attributes(node)
    axis, sizes = attributes.get("axis", 0), attributes.get("split", None)
    attributes.ignore("num_outputs")
    attributes.finish()
    if state.has(node, 1):
        sizes = np.atleast_1d(state.constant(node, 1)).tolist()
    x = state.value(node)
    if axis % len(x.shape) != 1:
        raise Unsupported(f"splits axis {axis} of shape {list(x.shape)}", "only axis 1, the channels, is supported")
    whole, parts = x.shape[1], len(node.outputs)
    if sizes is None:
        size = -(-whole // parts)
        sizes = [*[size] * (parts - 1), whole - size * (parts - 1)]
    if len(sizes) != parts or sum(sizes) != whole or min(sizes) < 1:
        raise Unsupported(f"splits {whole} channels into parts of {sizes}", "parts must be positive and make the whole")
    if parts > 1 and all(name and state.model.uses[name] for name in node.outputs):
        _split_all(node, state, x, sizes)
        return
    for index, (first, last) in enumerate(pairwise(accumulate(sizes, initial=0))):
        if node.outputs[index] and state.model.uses[node.outputs[index]]:
            state.give(node, _part(node, state, x, first, last - first), index)


def _split_all(node: OnnxNode, state: Lowering, x: Value, sizes: list[int]) -> None:
    """The first part and the rest, of which the first part and the rest, …"""
    height, width, channels = _channelwise(x)
    rest = x
    for index, size in enumerate(sizes[:-1]):
        channels -= size
        layer = Split(height=height, width=width, a_channels=size, b_channels=channels)
        edges = state.add(node.label, layer, {"x": rest})
        part, rest = (
            Value(edges[port], (height, width, count), (x.shape[0], count, *x.shape[2:]))
            for port, count in (("a", size), ("b", channels))
        )
        state.give(node, part, index)
    state.give(node, rest, len(sizes) - 1)


def _part(node: OnnxNode, state: Lowering, x: Value, first: int, part: int) -> Value:
    height, width, channels = _channelwise(x)
    if part == channels:
        return x
    layer = ChannelSlice(height=height, width=width, channels=channels, first=first, part=part)
    return state.emit(node, layer, {"x": x}, view=(x.shape[0], part, *x.shape[2:]))


def _channelwise(x: Value) -> tuple[int, int, int]:
    """The map, if axis 1 of its view are its channels."""
    if x.shape[1] != x.map[2]:
        height, width, channels = x.map
        raise Unsupported(f"takes part of a flattened map of {channels}x{height}x{width}", FLATTENED)
    return x.map


@writes(ChannelShuffle)
def write_channel_shuffle(node: Node, state: Writing) -> None:
    """The channels as a matrix, transposed."""
    layer = node.layer
    assert isinstance(layer, ChannelShuffle)
    rows, columns = layer.groups, layer.channels // layer.groups
    matrix, turned = f"{node.name}.matrix", f"{node.name}.turned"
    apart = state.constant(node, "apart", [0, rows, columns, layer.height, layer.width], np.int64)
    together = state.constant(node, "together", [0, layer.channels, layer.height, layer.width], np.int64)
    state.add(node, "Reshape", state.tensor(node), apart, outputs=[matrix])
    state.add(node, "Transpose", matrix, outputs=[turned], perm=[0, 2, 1, 3, 4])
    state.add(node, "Reshape", turned, together)


@writes(ChannelSlice)
def write_channel_slice(node: Node, state: Writing) -> None:
    """Some channels side by side."""
    layer = node.layer
    assert isinstance(layer, ChannelSlice)
    bounds = {"starts": layer.first, "ends": layer.first + layer.part, "axes": 1}
    constants = (state.constant(node, name, [value], np.int64) for name, value in bounds.items())
    state.add(node, "Slice", state.tensor(node), *constants)


@writes(Split)
def write_split(node: Node, state: Writing) -> None:
    """Both parts, also where one has no reader."""
    layer = node.layer
    assert isinstance(layer, Split)
    sizes = state.constant(node, "sizes", [layer.a_channels, layer.b_channels], np.int64)
    parts = [node.outputs.get(part, f"{node.name}.{part}") for part in ("a", "b")]
    state.add(node, "Split", state.tensor(node), sizes, outputs=parts, axis=1)
