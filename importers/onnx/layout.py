"""Transposes vanish: maps that a file keeps as (N, height, width, channels) for a while are computed channels first.

A tensor that a Transpose makes becomes a `View` of the tensor it was made of.  What works on single elements then works
on that tensor, and its result is a view again; axes are renamed, constants turned, a MatMul over the last axis is a
convolution of 1x1, and rows of the weights that read a flattened view are put in order.  Only where nothing of this
helps, the Transpose stays, or a Reshape where the axes that move have size 1.

So the linear layers of ConvNeXt become convolutions, and networks written channels last (Keras) lose their Transposes,
that of the image among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from importers.onnx.idioms.norms import channel_norm
from importers.onnx.model import Array, OnnxModel, OnnxNode

# operators on single elements of their first input
ELEMENTWISE = {
    "Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Gelu", "Tanh", "Elu", "Softplus", "Mish",
    "Erf", "Sqrt", "Exp", "Abs", "Neg", "Reciprocal", "Identity", "Cast", "Dropout",
    "dagtrain.Silu", "dagtrain.StochasticDepth",
}  # fmt: skip
# of several tensors that broadcast
BROADCASTING = {"Add", "Mul", "Sub", "Div", "Sum", "Max", "Min", "Pow"}
# channels last, as a view of channels first, and how a Transpose gets there and back
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclass(frozen=True)
class View:
    """A tensor whose axis i is axis ``order[i]`` of another one; flattened behind the batch if ``flat``."""

    of: str
    order: tuple[int, ...]
    # before it was flattened
    shape: tuple[int, ...]
    flat: bool = False
    # the node that turned it
    turn: str = ""

    @property
    def source_shape(self) -> tuple[int, ...]:
        """The shape of the other tensor."""
        return tuple(self.shape[self.order.index(axis)] for axis in range(len(self.order)))

    @property
    def is_order_kept(self) -> bool:
        """Whether elements stand in the order of the other tensor: only axes of size 1 have moved."""
        moved = [axis for axis in self.order if self.source_shape[axis] != 1]
        return moved == sorted(moved)


@dataclass
class _Turning:
    """The model in the making."""

    model: OnnxModel
    shapes: Mapping[str, tuple[int, ...]]
    nodes: list[OnnxNode] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    # tensors that are others: of Transposes that undo one another
    same: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def constant(self, node: OnnxNode, what: str, value: Array) -> str:
        """A new constant."""
        name = f"{node.name}//{what}"
        self.constants[name] = value
        return name

    def known(self, name: str) -> Array | None:
        """A constant, of the file or new."""
        return self.constants.get(name, self.model.constants.get(name))

    def turned(self, node: OnnxNode, view: View, inputs: Sequence[str], **changes: Any) -> None:
        """The node works on what its input is a view of; its result is a view of the same kind."""
        result = f"{node.outputs[0]}//turned"
        self.nodes.append(replace(node, inputs=tuple(inputs), outputs=(result, *node.outputs[1:]), **changes))
        shape = self.shapes.get(node.outputs[0], view.shape)
        self.views[node.outputs[0]] = View(result, view.order, view.shape if view.flat else shape, view.flat, view.turn)

    def plain(self, name: str) -> str:
        """The tensor itself: a view is made at last."""
        view = self.views.get(name)
        if view is None or name in self.made:
            return name
        self.made.add(name)
        source = view.of
        if not view.is_order_kept:
            turned = name if not view.flat else f"{name}//channels last"
            attributes = {"perm": list(view.order)}
            # under its own name, unless several tensors come of it
            taken = any(node.name == view.turn for node in self.nodes)
            label = f"{name}//transpose" if taken or not view.turn else view.turn
            self.nodes.append(OnnxNode(label, "Transpose", (source,), (turned,), attributes))
            source = turned
        if source != name:
            shape = np.array((view.shape[0], -1) if view.flat else view.shape)
            target = f"{name}//shape"
            self.constants[target] = shape
            self.nodes.append(OnnxNode(f"{name}//reshape", "Reshape", (source, target), (name,)))
        return name


def channels_first(model: OnnxModel, shapes: Mapping[str, tuple[int, ...]]) -> OnnxModel:
    """The model without Transposes, as far as that is possible."""
    if not any(node.op == "Transpose" for node in model.nodes):
        return model
    state = _Turning(model, shapes)
    image, image_shape, notes = model.image, model.image_shape, list(model.notes)
    if _is_channels_last(model):
        image = f"{model.image}//channels first"
        state.views[model.image] = View(image, LAST, image_shape)
        image_shape = state.views[model.image].source_shape
        notes.append(f"input {model.image} is (N, height, width, channels) in the file; its channels are the last axis")
    for node in model.nodes:
        inputs = tuple(state.same.get(name, name) for name in node.inputs)
        _turn(replace(node, inputs=inputs) if inputs != node.inputs else node, state)
    output, *heads = (state.plain(state.same.get(name, name)) for name in model.results)
    constants = {**model.constants, **state.constants}
    return replace(
        model,
        nodes=tuple(state.nodes),
        constants=constants,
        output=output,
        heads=tuple(heads),
        image=image,
        image_shape=image_shape,
        notes=tuple(notes),
    ).live()


def _is_channels_last(model: OnnxModel) -> bool:
    """Whether the image, after arithmetic on single elements, is transposed to channels first before all else."""
    waiting, seen = [model.image], 0
    while waiting:
        name = waiting.pop()
        for node in model.readers(name):
            if node.op == "Transpose":
                if tuple(node.attributes.get("perm", ())) != FIRST:
                    return False
                seen += 1
            elif node.op in ELEMENTWISE | BROADCASTING | {"Pad"} and all(
                other == name or other in model.constants or not other for other in node.inputs
            ):
                waiting.append(node.outputs[0])
            else:
                return False
    return seen > 0 and len(model.image_shape) == 4


def _turn(node: OnnxNode, state: _Turning) -> None:
    if node.op == "Transpose":
        _transpose(node, state)
        return
    view = next((state.views[name] for name in node.inputs if name in state.views), None)
    if view is not None:
        handler = _HANDLERS.get(node.op)
        if handler is not None and handler(node, view, state):
            return
    state.nodes.append(replace(node, inputs=tuple(state.plain(name) for name in node.inputs)))


def _transpose(node: OnnxNode, state: _Turning) -> None:
    name = node.inputs[0]
    shape = state.shapes.get(node.outputs[0])
    if shape is None or (name in state.views and state.views[name].flat):
        state.nodes.append(replace(node, inputs=(state.plain(name),)))
        return
    order = tuple(node.attributes.get("perm", range(len(shape))[::-1]))
    before = state.views.get(name)
    if before is not None:
        name, order = before.of, tuple(before.order[axis] for axis in order)
    if order == tuple(range(len(order))):
        state.same[node.outputs[0]] = name
    else:
        state.views[node.outputs[0]] = View(name, order, shape, turn=node.name)


# ---- one function an operator, or several; False where the view has to be made after all


def _elementwise(node: OnnxNode, view: View, state: _Turning) -> bool:
    if node.inputs[0] not in state.views or any(name in state.views for name in node.inputs[1:]):
        return False
    state.turned(node, view, (view.of, *node.inputs[1:]))
    return True


def _broadcasting(node: OnnxNode, view: View, state: _Turning) -> bool:
    """Views of one order, constants, and tensors whose axes can move since they have size 1."""
    inputs = []
    for index, name in enumerate(node.inputs):
        other, value, shape = state.views.get(name), state.known(name), state.shapes.get(name)
        if other is not None:
            if (other.order, other.flat) != (view.order, view.flat):
                return False
            inputs.append(other.of)
        elif view.flat:
            # a vector of the flattened map, in another order
            if value is None or value.size != 1:
                return False
            inputs.append(name)
        elif value is not None:
            inputs.append(state.constant(node, f"input {index}", _spread(value, view)))
        elif shape is not None and len(shape) == len(view.order):
            turned = View(name, tuple(view.order.index(axis) for axis in range(len(shape))), ())
            new = View(name, turned.order, tuple(shape[axis] for axis in turned.order))
            if not new.is_order_kept:
                return False
            target = state.constant(node, f"shape {index}", np.array(new.shape))
            state.nodes.append(
                OnnxNode(f"{node.name}//reshape {index}", "Reshape", (name, target), (f"{node.name}//input {index}",))
            )
            inputs.append(f"{node.name}//input {index}")
        else:
            return False
    state.turned(node, view, inputs)
    return True


def _spread(value: Array, view: View) -> Array:
    """A constant with all axes, in the order of the tensor that the view is of."""
    full = value.reshape((1,) * (len(view.order) - value.ndim) + value.shape)
    return np.ascontiguousarray(full.transpose([view.order.index(axis) for axis in range(len(view.order))]))


def _along_an_axis(node: OnnxNode, view: View, state: _Turning) -> bool:
    """Concat and Split: their axis has another number."""
    if any(name in state.views and state.views[name].order != view.order for name in node.inputs):
        return False
    if view.flat or (node.op == "Concat" and not all(name in state.views for name in node.inputs)):
        return False
    axis = view.order[node.attributes.get("axis", 0) % len(view.order)]
    attributes = {**node.attributes, "axis": axis}
    if node.op == "Concat":
        state.turned(node, view, [state.views[name].of for name in node.inputs], attributes=attributes)
        return True
    results = tuple(f"{name}//turned" for name in node.outputs)
    inputs = (view.of, *node.inputs[1:])
    state.nodes.append(replace(node, inputs=inputs, outputs=results, attributes=attributes))
    for name, result in zip(node.outputs, results, strict=True):
        state.views[name] = View(result, view.order, state.shapes.get(name, view.shape), turn=view.turn)
    return True


def _slice(node: OnnxNode, view: View, state: _Turning) -> bool:
    axes = state.known(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else None
    if view.flat or axes is None or node.inputs[0] not in state.views:
        return False
    renamed = np.array([view.order[int(axis) % len(view.order)] for axis in axes])
    state.turned(node, view, (view.of, *node.inputs[1:3], state.constant(node, "axes", renamed), *node.inputs[4:]))
    return True


def _pad(node: OnnxNode, view: View, state: _Turning) -> bool:
    pads = state.known(node.inputs[1]) if len(node.inputs) > 1 else None
    if view.flat or pads is None or len(node.inputs) > 3 or pads.size != 2 * len(view.order):
        return False
    back = [view.order.index(axis) for axis in range(len(view.order))]
    turned = state.constant(node, "pads", pads.reshape(2, -1)[:, back].reshape(-1))
    state.turned(node, view, (view.of, turned, *node.inputs[2:]))
    return True


def _reduce(node: OnnxNode, view: View, state: _Turning) -> bool:
    """ReduceMean, ReduceMax: their axes have other numbers; those that stay must do so in order, or all stay."""
    known = state.known(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    given = np.atleast_1d(known).tolist() if known is not None else node.attributes.get("axes", [])
    if view.flat or not given:
        return False
    rank = len(view.order)
    chosen = {int(axis) % rank for axis in given}
    axes = sorted(view.order[axis] for axis in chosen)
    rest = [view.order[axis] for axis in range(rank) if axis not in chosen]
    keeps = bool(node.attributes.get("keepdims", 1))
    if not keeps and rest != sorted(rest):
        return False
    inputs, attributes = [view.of], dict(node.attributes)
    if known is not None:
        inputs.append(state.constant(node, "axes", np.array(axes)))
    else:
        attributes["axes"] = axes
    if keeps:
        state.turned(node, view, inputs, attributes=attributes)
    else:
        state.nodes.append(replace(node, inputs=tuple(inputs), attributes=attributes))
    return True


def _matmul(node: OnnxNode, view: View, state: _Turning) -> bool:
    """Over the channels of every pixel: a convolution of 1x1.  Over a flattened map: rows of the weights in order."""
    weight = state.known(node.inputs[1])
    if weight is None or weight.ndim != 2 or node.inputs[0] not in state.views:
        return False
    if view.flat:
        return _flat_product(node, view, weight, state)
    if node.op != "MatMul" or view.order != LAST or view.shape[-1] != weight.shape[0]:
        return False
    kernel = state.constant(node, "kernel", np.ascontiguousarray(weight.T)[:, :, None, None])
    state.turned(node, view, (view.of, kernel), op="Conv", attributes={})
    return True


def _flat_product(node: OnnxNode, view: View, weight: Array, state: _Turning) -> bool:
    if node.op == "Gemm" and node.attributes.get("transA", 0):
        return False
    by_rows = weight.T if node.op == "Gemm" and node.attributes.get("transB", 0) else weight
    # features in the order of the tensor that the view is of, by their numbers in the view
    numbers = np.arange(int(np.prod(view.shape[1:]))).reshape((1, *view.shape[1:]))
    back = [view.order.index(axis) for axis in range(len(view.order))]
    rows = by_rows[numbers.transpose(back).reshape(-1)]
    turned = rows.T if by_rows is not weight else rows
    flat = f"{node.name}//flat"
    state.nodes.append(OnnxNode(f"{node.name}//flatten", "Flatten", (view.of,), (flat,)))
    inputs = (flat, state.constant(node, "weight", np.ascontiguousarray(turned)), *node.inputs[2:])
    state.nodes.append(replace(node, inputs=inputs))
    return True


def _layer_norm(node: OnnxNode, view: View, state: _Turning) -> bool:
    rank = len(view.order)
    if view.flat or node.attributes.get("axis", -1) % rank != rank - 1 or view.order[-1] != 1:
        return False
    made = channel_norm(node, view.of)
    state.turned(node, view, made.inputs, op=made.op, attributes=made.attributes)
    return True


def _flatten(node: OnnxNode, view: View, state: _Turning) -> bool:
    """Behind the batch; other reshapes need the tensor itself."""
    shape = state.shapes.get(node.outputs[0])
    if view.flat or view.is_order_kept or shape is None or len(shape) != 2 or shape[0] != view.shape[0]:
        return False
    if view.order[0] != 0:
        return False
    state.views[node.outputs[0]] = replace(view, flat=True)
    return True


_HANDLERS: dict[str, Callable[[OnnxNode, View, _Turning], bool]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(BROADCASTING, _broadcasting),
    "Concat": _along_an_axis,
    "Split": _along_an_axis,
    "Slice": _slice,
    "Pad": _pad,
    "ReduceMean": _reduce,
    "ReduceMax": _reduce,
    "MatMul": _matmul,
    "Gemm": _matmul,
    "LayerNormalization": _layer_norm,
    "Flatten": _flatten,
    "Reshape": _flatten,
}
