"""The operators of ONNX that have a layer, or that only say how a tensor is to be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hdl.layers.add import Add
from hdl.layers.bias import Bias
from hdl.layers.conv import Conv
from hdl.layers.depthwise import DepthwiseConv
from hdl.layers.dropout import Dropout
from hdl.layers.gemm import gemm
from hdl.layers.global_average_pool import GlobalAveragePool
from hdl.layers.max_pool import MaxPool
from hdl.layers.online_norm import OnlineNorm
from hdl.layers.relu import Relu
from importers.onnx.load import Constant, Operation
from importers.onnx.translate import NormMode, Translation, Unsupported, Value, handles


def _dims(value: Value) -> dict[str, int]:
    height, width, channels = value.shape
    return {"height": height, "width": width, "channels": channels}


def _window(operation: Operation, value: Value, kernel: tuple[int, int]) -> dict[str, Any]:
    """Stride and padding of a window, as the layers take them."""
    attributes = operation.attributes
    if any(item != 1 for item in attributes.get("dilations", ())):
        raise Unsupported(f"dilations {list(attributes['dilations'])} are not supported; only 1")
    if attributes.get("ceil_mode", 0):
        raise Unsupported("ceil_mode 1 is not supported; choose an image size at which it makes no difference")
    stride = tuple(attributes.get("strides", (1, 1)))
    automatic = attributes.get("auto_pad", b"NOTSET").decode()
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same(value.shape[:2], kernel, stride, automatic == "SAME_UPPER")
    else:
        pads = tuple(attributes.get("pads", (0, 0, 0, 0))) if automatic == "NOTSET" else (0, 0, 0, 0)
    return {"stride": stride, "padding": pads}


def _same(size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, ...], upper: bool) -> tuple[int, ...]:
    """(top, left, bottom, right) so that the output is the input's size over the stride, rounded up."""
    before, after = [], []
    for length, extent, step in zip(size, kernel, stride, strict=True):
        total = max(0, (math.ceil(length / step) - 1) * step + extent - length)
        small, large = total // 2, total - total // 2
        before.append(small if upper else large)
        after.append(large if upper else small)
    return (*before, *after)


def _vector(array: Constant, channels: int, what: str) -> Constant:
    """A constant with one number a channel, whatever dimensions of 1 surround it."""
    flat = np.asarray(array).reshape(-1)
    if flat.size == 1:
        flat = np.repeat(flat, channels)
    if flat.size != channels:
        raise Unsupported(f"{what} has {flat.size} values for {channels} channels")
    return flat


def _with_bias(translation: Translation, operation: Operation, value: Value, bias: Constant) -> Value:
    layer = Bias(**_dims(value), recipe=translation.recipe)
    weights = {"b": _vector(bias, value.shape[2], "the bias")}
    return translation.add(operation, layer, {"x": value}, weights, suffix="_bias")


def _with_norm(
    translation: Translation, operation: Operation, value: Value, scale: Constant, shift: Constant, suffix: str
) -> Value:
    layer = OnlineNorm(**_dims(value), recipe=translation.recipe)
    channels = value.shape[2]
    weights = {"gamma": _vector(scale, channels, "the scale"), "beta": _vector(shift, channels, "the shift")}
    return translation.add(operation, layer, {"x": value}, weights, suffix=suffix)


@handles("Conv")
def _conv(translation: Translation, operation: Operation) -> None:
    """Dense or depthwise; a bias becomes a layer of its own, or the norm that it stands for."""
    value, weight = translation.value(operation), translation.constant(operation, 1)
    if weight.ndim != 4:
        raise Unsupported(f"weights of shape {weight.shape}; only convolutions of images (4 dimensions) are supported")
    group = operation.attributes.get("group", 1)
    kernel = (weight.shape[2], weight.shape[3])
    fields = {**_dims(value), "kernel": kernel, "recipe": translation.recipe, **_window(operation, value, kernel)}
    channels = value.shape[2]
    if group == 1:
        made = translation.add(operation, Conv(filters=weight.shape[0], **fields), {"x": value}, {"w": weight})
    elif group == channels == weight.shape[0]:
        made = translation.add(operation, DepthwiseConv(**fields), {"x": value}, {"w": weight})
    else:
        raise Unsupported(
            f"{group} groups of {channels} channels into {weight.shape[0]} filters; supported are 1 group, and "
            "depthwise with one filter a channel"
        )
    if len(operation.inputs) > 2 and operation.inputs[2]:
        bias = translation.constant(operation, 2)
        if translation.norm is NormMode.ONLINE and not _has_norms(translation):
            ones = np.ones(made.shape[2])
            made = _with_norm(translation, operation, made, ones, np.zeros(made.shape[2]), "_norm")
        else:
            made = _with_bias(translation, operation, made, bias)
    translation.result(operation, made)


def _has_norms(translation: Translation) -> bool:
    """Whether the model still has its normalisation, so that a bias is only a bias."""
    return any(item.op == "BatchNormalization" for item in translation.model.operations)


@handles("BatchNormalization")
def _batch_norm(translation: Translation, operation: Operation) -> None:
    """Online normalisation, or scale and shift folded into the convolution before it."""
    value = translation.value(operation)
    scale, shift, mean, variance = (
        _vector(translation.constant(operation, index), value.shape[2], what)
        for index, what in enumerate(("the scale", "the shift", "the mean", "the variance"), start=1)
    )
    if translation.norm is not NormMode.NONE:
        translation.result(operation, _with_norm(translation, operation, value, scale, shift, ""))
        return
    factor = scale / np.sqrt(variance + operation.attributes.get("epsilon", 1e-5))
    translation.result(operation, _folded(translation, operation, value, factor, shift - mean * factor))


def _folded(
    translation: Translation, operation: Operation, value: Value, factor: Constant, offset: Constant
) -> Value:
    """Scale the weights of the convolution that made ``value``, and add a bias."""
    maker = next(node for node in translation.nodes.values() if value.edge in node.outputs.values())
    if "w" not in maker.parameters or translation.uses[operation.inputs[0]] != 1:
        raise Unsupported("--norm none folds into the convolution before it, but there is none; use --norm online")
    weight = translation.parameters[maker.parameters["w"]]
    shape = (-1, *(1,) * (weight.ndim - 1))
    translation.parameters[maker.parameters["w"]] = weight * np.asarray(factor, np.float64).reshape(shape)
    return _with_bias(translation, operation, value, offset)


@handles("Relu")
def _relu(translation: Translation, operation: Operation) -> None:
    """max(x, 0)."""
    value = translation.value(operation)
    translation.result(operation, translation.add(operation, Relu(**_dims(value)), {"x": value}))


@handles("Clip")
def _clip(translation: Translation, operation: Operation) -> None:
    """relu6 and its like; limits as inputs (from opset 11) or attributes."""
    value, attributes = translation.value(operation), operation.attributes
    if "min" in attributes or "max" in attributes:
        low, high = attributes.get("min", -math.inf), attributes.get("max", math.inf)
    else:
        low = float(translation.constant(operation, 1, np.array(-math.inf)))
        high = float(translation.constant(operation, 2, np.array(math.inf)))
    if low != 0 or not high > 0:
        raise Unsupported(f"limits {low} … {high}; supported are 0 and anything above")
    layer = Relu(**_dims(value), ceiling=None if math.isinf(high) else high)
    translation.result(operation, translation.add(operation, layer, {"x": value}))


@handles("Add", "Sum")
def _add(translation: Translation, operation: Operation) -> None:
    """Two maps of one shape, or a map and a constant a channel."""
    if len(operation.inputs) != 2:
        raise Unsupported(f"{len(operation.inputs)} operands; only 2 are supported")
    constant = [index for index in (0, 1) if operation.inputs[index] in translation.model.constants]
    if constant:
        value = translation.value(operation, 1 - constant[0])
        made = _with_bias(translation, operation, value, translation.constant(operation, constant[0]))
        translation.result(operation, Value(made.edge, made.shape, value.flat))
        return
    a, b = translation.value(operation, 0), translation.value(operation, 1)
    if a.shape != b.shape:
        raise Unsupported(f"operands of shapes {a.shape} and {b.shape} (H, W, C); broadcasting is not supported")
    made = translation.add(operation, Add(**_dims(a)), {"a": a, "b": b})
    translation.result(operation, Value(made.edge, made.shape, a.flat))


@handles("MaxPool")
def _max_pool(translation: Translation, operation: Operation) -> None:
    """A square or rectangular window."""
    value = translation.value(operation)
    kernel = tuple(operation.attributes["kernel_shape"])
    layer = MaxPool(**_dims(value), kernel=kernel, **_window(operation, value, kernel))
    translation.result(operation, translation.add(operation, layer, {"x": value}))


@handles("GlobalAveragePool")
def _global_average_pool(translation: Translation, operation: Operation) -> None:
    """The mean of each channel."""
    value = translation.value(operation)
    translation.result(operation, translation.add(operation, GlobalAveragePool(**_dims(value)), {"x": value}))


@handles("AveragePool")
def _average_pool(translation: Translation, operation: Operation) -> None:
    """Supported where the window covers the map."""
    value = translation.value(operation)
    kernel = tuple(operation.attributes["kernel_shape"])
    if kernel != value.shape[:2] or any(operation.attributes.get("pads", ())):
        raise Unsupported(f"a window of {kernel} on a map of {value.shape[:2]}; only one that covers the map is supported")
    _global_average_pool(translation, operation)


@handles("ReduceMean")
def _reduce_mean(translation: Translation, operation: Operation) -> None:
    """The mean over height and width; axes as attribute, or as input from opset 18."""
    given = operation.attributes.get("axes")
    axes = translation.constant(operation, 1).tolist() if given is None else given
    if sorted(axis % 4 for axis in axes) != [2, 3]:
        raise Unsupported(f"axes {list(axes)}; only the mean over height and width is supported")
    _global_average_pool(translation, operation)
    value = translation.values[operation.outputs[0]]
    flat = not operation.attributes.get("keepdims", 1)
    translation.result(operation, Value(value.edge, value.shape, flat))


@handles("Flatten", "Reshape", "Squeeze")
def _flatten(translation: Translation, operation: Operation) -> None:
    """(N, C, H, W) to (N, C H W): the order of the next layer's weights takes care of it."""
    value = translation.value(operation)
    shape = translation.model.shapes.get(operation.outputs[0])
    size = math.prod(value.shape)
    if shape is None:
        raise Unsupported("the result has no static shape; export with a fixed image size")
    if shape == (1, size):
        translation.result(operation, Value(value.edge, value.shape, flat=True))
    elif shape == (1, value.shape[2], *value.shape[:2]):
        translation.result(operation, Value(value.edge, value.shape))
    else:
        raise Unsupported(f"a reshape to {shape}; only to (N, {size}) is supported")


@handles("Gemm", "MatMul")
def _gemm(translation: Translation, operation: Operation) -> None:
    """A dense layer: a convolution whose kernel covers the map."""
    value, weight = translation.value(operation), translation.constant(operation, 1)
    attributes: Mapping[str, Any] = operation.attributes
    if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0:
        raise Unsupported("transA and alpha are not supported; fold them into the weights")
    weight = weight if attributes.get("transB", 0) else weight.T
    height, width, channels = value.shape
    if weight.ndim != 2 or weight.shape[1] != height * width * channels:
        raise Unsupported(f"weights of shape {weight.shape} for {height * width * channels} inputs")
    layer = gemm(height, width, channels, weight.shape[0], recipe=translation.recipe)
    kernel = weight.reshape(weight.shape[0], channels, height, width)
    made = translation.add(operation, layer, {"x": value}, {"w": kernel})
    if len(operation.inputs) > 2 and operation.inputs[2]:
        bias = translation.constant(operation, 2) * attributes.get("beta", 1.0)
        made = _with_bias(translation, operation, made, bias)
    translation.result(operation, Value(made.edge, made.shape, flat=True))


@handles("Dropout")
def _dropout(translation: Translation, operation: Operation) -> None:
    """Kept whatever the export's mode, since it is there to train."""
    value = translation.value(operation)
    given = operation.attributes.get("ratio")
    ratio = float(translation.constant(operation, 1, np.array(0.5))) if given is None else given
    if ratio == 0:
        translation.result(operation, value)
        return
    made = translation.add(operation, Dropout(**_dims(value), ratio=ratio, recipe=translation.recipe), {"x": value})
    translation.result(operation, Value(made.edge, made.shape, value.flat))


@handles("Identity")
def _identity(translation: Translation, operation: Operation) -> None:
    """Nothing."""
    translation.result(operation, translation.value(operation))


@handles("Softmax", "LogSoftmax")
def _softmax(translation: Translation, operation: Operation) -> None:
    """Dropped at the end: the loss has it."""
    if operation.outputs[0] != translation.model.output:
        raise Unsupported("softmax is supported at the end only, where the loss takes it over")
    translation.result(operation, translation.value(operation))
