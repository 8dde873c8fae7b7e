"""Each ONNX operator that the importer takes, in all the ways it is written, against ONNX's own evaluator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, external_data_helper, helper, numpy_helper

from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.norm.channel_norm import ChannelNorm
from hdl.layers.norm.local_response_norm import LocalResponseNorm
from hdl.layers.pointwise.bias import Bias
from hdl.layers.pointwise.channel_affine import ChannelAffine
from hdl.layers.pointwise.dropout import Dropout
from hdl.layers.pointwise.elu import Elu
from hdl.layers.pointwise.gelu import Gelu
from hdl.layers.pointwise.hard_sigmoid import HardSigmoid
from hdl.layers.pointwise.hard_swish import HardSwish
from hdl.layers.pointwise.leaky_relu import LeakyRelu
from hdl.layers.pointwise.mul import Mul, Scale
from hdl.layers.pointwise.relu import Relu
from hdl.layers.pointwise.sigmoid import Sigmoid
from hdl.layers.pointwise.silu import Silu
from hdl.layers.pointwise.stochastic_depth import StochasticDepth
from hdl.layers.pointwise.tanh import Tanh
from hdl.layers.pool.average_pool import AveragePool
from hdl.layers.pool.max_pool import MaxPool
from hdl.layers.wiring.channel_shuffle import ChannelShuffle
from hdl.layers.wiring.channel_slice import ChannelSlice
from hdl.layers.wiring.concat import Concat, Split
from hdl.layers.wiring.pixel_slice import PixelSlice
from importers.onnx import NormMode, import_model, import_with_notes
from importers.onnx.check import DYNAMIC_BATCH
from tests.import_support import Array, assert_close, evaluate, forward, model, node, save

RNG = np.random.default_rng(21)


def weights(*shape: int) -> Array:
    """Random."""
    return RNG.standard_normal(shape)


def agrees(
    folder: Path,
    nodes: Sequence[NodeProto],
    constants: Mapping[str, Any] | None = None,
    image: Sequence[int | str] = ("N", 2, 6, 6),
    opset: int = 17,
    classes: int | None = None,
) -> list[object]:
    """Import, compare with the evaluator on two random images, return the layers.

    With ``classes``, a global average pool and a fully connected layer to so many classes follow tensor ``m``."""
    nodes, constants = list(nodes), dict(constants or {})
    if classes is not None:
        channels = _channels(nodes, constants, image, opset)
        nodes += [
            node("GlobalAveragePool", "m", "pooled"),
            node("Flatten", "pooled", "flat"),
            node("Gemm", "flat scores_w", "y", transB=1),
        ]
        constants["scores_w"] = weights(classes, channels)
    proto = model(nodes, constants, image, opset=opset)
    batch = image[0] if isinstance(image[0], int) else DYNAMIC_BATCH
    frames = np.random.default_rng(22).standard_normal((batch, *image[1:]))
    graph = import_model(save(proto, folder), norm=NormMode.NONE)
    assert_close(forward(graph, frames), evaluate(proto, frames), 1e-5)
    return [item.layer for item in graph.nodes]


def _channels(nodes: list[NodeProto], constants: Mapping[str, Any], image: Sequence[int | str], opset: int) -> int:
    sizes = [2 if isinstance(size, str) else size for size in image]
    proto = model(nodes, constants, sizes, ["m"], opset)
    return int(evaluate(proto, np.zeros(sizes)).shape[1])


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 1, 1, 1]},
        {"pads": [0, 1, 2, 1], "strides": [2, 1]},
        {"auto_pad": "VALID", "strides": [1, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "NOTSET", "kernel_shape": [3, 2], "dilations": [1, 1], "group": 1},
        {"pads": [2, 1, 1, 2], "dilations": [2, 3]},
        {"auto_pad": "SAME_UPPER", "dilations": [3, 2]},
    ],
    ids=str,
)
def test_convolutions_with_every_way_of_padding(attributes: dict[str, Any], tmp_path: Path) -> None:
    constants = {"w": weights(3, 2, 3, 2), "b": weights(3)}
    layers = agrees(tmp_path, [node("Conv", "x w b", "m", **attributes)], constants, ("N", 2, 8, 7), classes=4)
    assert sum(isinstance(layer, Bias) for layer in layers) == 1


def test_a_convolution_with_one_group_a_channel_is_depthwise(tmp_path: Path) -> None:
    constants = {"w": weights(4, 1, 3, 3), "b": weights(4)}
    conv = node("Conv", "x w b", "m", group=4, pads=[1, 1, 1, 1], strides=[2, 2])
    layers = agrees(tmp_path, [conv], constants, ("N", 4, 6, 6), classes=3)
    assert sum(isinstance(layer, DepthwiseConv) for layer in layers) == 1


@pytest.mark.parametrize(("channels", "filters", "groups"), [(6, 4, 2), (4, 8, 4), (6, 2, 2)])
def test_a_convolution_in_groups_keeps_them(channels: int, filters: int, groups: int, tmp_path: Path) -> None:
    constants = {"w": weights(filters, channels // groups, 3, 2), "b": weights(filters)}
    conv = node("Conv", "x w b", "m", group=groups, pads=[1, 1, 1, 0], strides=[2, 1])
    layers = agrees(tmp_path, [conv], constants, ("N", channels, 6, 5), classes=3)
    assert [layer.groups for layer in layers if isinstance(layer, Conv) and layer.filters == filters] == [groups]


@pytest.mark.parametrize("opset", [9, 10])
def test_clip_takes_its_bounds_from_attributes_before_opset_11(opset: int, tmp_path: Path) -> None:
    layers = agrees(tmp_path, [node("Clip", "x", "m", min=0.0, max=0.5)], opset=opset, classes=3)
    assert [layer.ceiling for layer in layers if isinstance(layer, Relu)] == [0.5]


@pytest.mark.parametrize(
    ("inputs", "ceiling"), [("x zero half", 0.5), ("x zero", None), ("x zero -", None), ("x zero huge", None)]
)
def test_clip_takes_its_bounds_from_inputs(inputs: str, ceiling: float | None, tmp_path: Path) -> None:
    constants = {"zero": np.float32(0), "half": np.float32(0.5), "huge": np.finfo(np.float32).max}
    layers = agrees(tmp_path, [node("Clip", inputs, "m")], constants, classes=3)
    assert [layer.ceiling for layer in layers if isinstance(layer, Relu)] == [ceiling]


def test_clip_takes_its_bounds_from_constant_nodes(tmp_path: Path) -> None:
    zero = helper.make_tensor("zero", onnx.TensorProto.FLOAT, [], [0.0])
    nodes = [
        helper.make_node("Constant", [], ["low"], value=zero),
        helper.make_node("Constant", [], ["high"], value_float=0.5),
        node("Clip", "x low high", "m"),
    ]
    layers = agrees(tmp_path, nodes, classes=3)
    assert [layer.ceiling for layer in layers if isinstance(layer, Relu)] == [0.5]


@pytest.mark.parametrize("opset", [9, 16])
@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.2}, {"alpha": 1.0}, {"alpha": 2.0**-16}], ids=str)
def test_leaky_relu_keeps_its_slope(attributes: dict[str, float], opset: int, tmp_path: Path) -> None:
    layers = agrees(tmp_path, [node("LeakyRelu", "x", "m", **attributes)], opset=opset, classes=3)
    slopes = [layer.alpha for layer in layers if isinstance(layer, LeakyRelu)]
    assert slopes == pytest.approx([attributes.get("alpha", 0.01)])


def test_leaky_relu_without_a_slope_is_relu(tmp_path: Path) -> None:
    layers = agrees(tmp_path, [node("LeakyRelu", "x", "m", alpha=0.0)], classes=3)
    assert [layer.ceiling for layer in layers if isinstance(layer, Relu)] == [None]


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(
    "attributes", [{}, {"alpha": 1 / 6}, {"alpha": 1.0, "beta": 0.25}, {"alpha": 0.75, "beta": -0.5}], ids=str
)
def test_hard_sigmoid_keeps_its_ramp(attributes: dict[str, float], opset: int, tmp_path: Path) -> None:
    layers = agrees(tmp_path, [node("HardSigmoid", "x", "m", **attributes)], opset=opset, classes=3)
    ramps = [(layer.alpha, layer.beta) for layer in layers if isinstance(layer, HardSigmoid)]
    assert ramps == [pytest.approx((attributes.get("alpha", 0.2), attributes.get("beta", 0.5)))]


@pytest.mark.parametrize("opset", [9, 17])
def test_sigmoid_is_a_layer_in_the_middle_and_behind_a_gemm(opset: int, tmp_path: Path) -> None:
    layers = agrees(tmp_path, [node("Sigmoid", "x", "m")], opset=opset, classes=3)
    assert sum(isinstance(layer, Sigmoid) for layer in layers) == 1
    nodes = [node("Flatten", "x", "flat"), node("Gemm", "flat w", "h", transB=1), node("Sigmoid", "h", "s")]
    nodes.append(node("Gemm", "s v", "y", transB=1))
    constants = {"w": weights(5, 72), "v": weights(3, 5)}
    found = agrees(tmp_path, nodes, constants, opset=opset)
    assert [layer.shape for layer in found if isinstance(layer, Sigmoid)] == [(1, 1, 5)]


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "wanted"),
    [
        ("HardSwish", 14, {}, HardSwish),
        ("Gelu", 20, {}, Gelu),
        ("Gelu", 20, {"approximate": "none"}, Gelu),
        ("Gelu", 20, {"approximate": "tanh"}, Gelu),
        ("Tanh", 9, {}, Tanh),
        ("Elu", 9, {}, Elu),
        ("Elu", 22, {"alpha": 0.25}, Elu),
        ("Swish", 24, {}, Silu),
        ("Swish", 24, {"alpha": 1.0}, Silu),
    ],
    ids=str,
)
def test_activations_from_tables(
    op: str, opset: int, attributes: dict[str, Any], wanted: type[Layer], tmp_path: Path
) -> None:
    layers = agrees(tmp_path, [node(op, "x", "m", **attributes)], opset=opset, classes=3)
    assert sum(isinstance(layer, wanted) for layer in layers) == 1


def test_silu_is_an_operator_of_our_own(tmp_path: Path) -> None:
    nodes = [node("Silu", "x", "m", domain="dagtrain"), node("Flatten", "m", "f"), node("Gemm", "f w", "y", transB=1)]
    w, frames = weights(3, 72), weights(2, 2, 6, 6)
    graph = import_model(save(model(nodes, {"w": w}), tmp_path), norm=NormMode.NONE)
    wanted = (frames / (1 + np.exp(-frames))).reshape(2, 72) @ w.T
    assert_close(forward(graph, frames), wanted, 1e-6)


@pytest.mark.parametrize(
    ("opset", "attributes", "inputs"),
    [
        (13, {"axes": [2, 3], "keepdims": 1}, "x"),
        (13, {"axes": [-1, -2], "keepdims": 0}, "x"),
        (18, {"keepdims": 1}, "x axes"),
        (18, {"keepdims": 0}, "x axes"),
    ],
)
def test_mean_over_the_map_is_a_global_average_pool(
    opset: int, attributes: dict[str, Any], inputs: str, tmp_path: Path
) -> None:
    nodes = [
        node("ReduceMean", inputs, "mean", **attributes),
        node("Flatten", "mean", "flat"),
        node("Gemm", "flat w", "y", transB=1),
    ]
    agrees(tmp_path, nodes, {"axes": np.array([-1, -2]), "w": weights(3, 2)}, opset=opset)


def test_mean_over_a_map_whose_pixels_were_flattened(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x shape", "pixels"),
        node("ReduceMean", "pixels", "mean", axes=[2], keepdims=0),
        node("Gemm", "mean w", "y", transB=1),
    ]
    agrees(tmp_path, nodes, {"shape": np.array([0, 2, 36]), "w": weights(3, 2)}, opset=13)


def test_average_pool_over_the_whole_map(tmp_path: Path) -> None:
    nodes = [
        node("AveragePool", "x", "mean", kernel_shape=[6, 6]),
        node("Squeeze", "mean axes", "flat"),
        node("Gemm", "flat w", "y", transB=1),
    ]
    agrees(tmp_path, nodes, {"axes": np.array([2, 3]), "w": weights(3, 2)})


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [0, 1, 1, 0], "storage_order": 0, "dilations": [1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 2, 0], "dilations": [2, 3], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1},
    ],
    ids=str,
)
def test_max_pools(attributes: dict[str, Any], tmp_path: Path) -> None:
    layers = agrees(tmp_path, [node("MaxPool", "x", "m", **attributes)], image=("N", 2, 6, 8), classes=3)
    assert sum(isinstance(layer, MaxPool) for layer in layers) == 1


@pytest.mark.parametrize(
    ("attributes", "opset"),
    [
        ({"kernel_shape": [2, 3]}, 9),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, 11),
        ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, 11),
        ({"kernel_shape": [3, 2], "strides": [2, 1], "pads": [0, 1, 1, 0], "dilations": [1, 2]}, 19),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}, 11),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 20),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1, "count_include_pad": 1}, 20),
        ({"kernel_shape": [1, 1], "strides": [2, 2]}, 17),
    ],
    ids=str,
)
def test_average_pools(attributes: dict[str, Any], opset: int, tmp_path: Path) -> None:
    nodes = [node("AveragePool", "x", "m", **attributes)]
    layers = agrees(tmp_path, nodes, image=("N", 2, 6, 8), classes=3, opset=opset)
    assert sum(isinstance(layer, AveragePool) for layer in layers) == 1


@pytest.mark.parametrize(
    ("inputs", "attributes", "opset"),
    [
        ("x", {"pads": [0, 0, 2, 1, 0, 0, 0, 3]}, 10),
        ("x around", {}, 11),
        ("x around zero", {"mode": "constant"}, 13),
        ("x ends zero axes", {}, 18),
    ],
)
def test_a_pad_in_front_of_other_layers_puts_zeros_around(
    inputs: str, attributes: dict[str, Any], opset: int, tmp_path: Path
) -> None:
    constants = {"around": np.array([0, 0, 2, 1, 0, 0, 0, 3]), "zero": np.float32(0)}
    constants |= {"ends": np.array([3, 2, 0, 1]), "axes": np.array([-1, 2])}
    used = {name: constants[name] for name in inputs.split()[1:]}
    nodes = [node("Pad", inputs, "p", **attributes), node("Sigmoid", "p", "m")]
    layers = agrees(tmp_path, nodes, used, image=("N", 2, 4, 5), classes=3, opset=opset)
    assert sum(isinstance(layer, AveragePool) for layer in layers) == 1


def test_rows_and_columns_are_picked_and_all_of_them_are_nothing(tmp_path: Path) -> None:
    places = {"rows": np.array([0, 2, -1]), "columns": np.array([1, 3]), "every": np.arange(3)}
    nodes = [node("Gather", "x rows", "a", axis=2), node("Gather", "a columns", "b", axis=-1)]
    nodes += [node("Gather", "b every", "c", axis=2), node("Sigmoid", "c", "m")]
    layers = agrees(tmp_path, nodes, places, image=("N", 2, 4, 5), classes=3)
    picked = [(layer.rows, layer.columns) for layer in layers if isinstance(layer, PixelSlice)]
    assert picked == [((0, 2, 3), (0, 1, 2, 3, 4)), ((0, 1, 2), (1, 3))]


@pytest.mark.parametrize("turned", [False, True])
def test_a_slice_of_rows_and_columns_picks_them(turned: bool, tmp_path: Path) -> None:
    numbers = {"from": [-4, 1], "to": [2**62, -1], "axes": [2, -1], "step": [2, 3]}
    if turned:
        numbers = {name: value[::-1] for name, value in numbers.items()}
    nodes = [node("Slice", "x from to axes step", "a"), node("Sigmoid", "a", "m")]
    constants = {name: np.array(value) for name, value in numbers.items()}
    layers = agrees(tmp_path, nodes, constants, image=("N", 2, 5, 7), classes=3)
    assert [(layer.rows, layer.columns) for layer in layers if isinstance(layer, PixelSlice)] == [((1, 3), (1, 4))]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("opset", [9, 13, 18])
def test_a_pad_puts_a_constant_around_that_nothing_trains(opset: int, channels: int, tmp_path: Path) -> None:
    constants: dict[str, Any] = (
        {} if opset < 11 else {"around": np.array([0, 0, 2, 1, 0, 0, 0, 3]), "v": np.float32(-1.5)}
    )
    attributes = {} if constants else {"pads": [0, 0, 2, 1, 0, 0, 0, 3], "value": -1.5}
    constants["k"] = np.random.default_rng(5).standard_normal((channels, channels, 1, 1))
    nodes = [node("Conv", "x k", "c"), node("Pad", "c around v" if opset > 10 else "c", "p", **attributes)]
    nodes.append(node("Sigmoid", "p", "m"))
    layers = agrees(tmp_path, nodes, constants, image=("N", channels, 4, 5), classes=3, opset=opset)
    shifts = [layer for layer in layers if isinstance(layer, Bias)]
    assert [layer.frozen for layer in shifts] == [True, True]


def test_a_fully_connected_layer_sees_a_flattened_map_in_the_order_of_onnx(tmp_path: Path) -> None:
    nodes = [node("Flatten", "x", "flat"), node("Gemm", "flat w b", "y", transB=1, alpha=0.5, beta=2.0)]
    layers = agrees(tmp_path, nodes, {"w": weights(5, 72), "b": weights(5)})
    assert [layer.kernel for layer in layers if isinstance(layer, Conv)] == [(6, 6)]


def test_gemm_without_transposition_and_with_one_number_as_bias(tmp_path: Path) -> None:
    nodes = [node("Flatten", "x", "flat"), node("Gemm", "flat w b", "y")]
    agrees(tmp_path, nodes, {"w": weights(72, 5), "b": weights(1)})


def test_matmul_and_add_are_a_fully_connected_layer_with_a_bias(tmp_path: Path) -> None:
    nodes = [node("Flatten", "x", "flat"), node("MatMul", "flat w", "product"), node("Add", "b product", "y")]
    agrees(tmp_path, nodes, {"w": weights(72, 5), "b": weights(5)})


def test_two_fully_connected_layers_with_relu_and_dropout_between_stay_flat(tmp_path: Path) -> None:
    nodes = [
        node("Flatten", "x", "flat"),
        node("Relu", "flat", "positive"),
        node("Gemm", "positive w1", "hidden", transB=1),
        node("Relu", "hidden", "act"),
        node("Gemm", "act w2", "y", transB=1),
    ]
    agrees(tmp_path, nodes, {"w1": weights(7, 72), "w2": weights(3, 7)})


@pytest.mark.parametrize("shape", [[-1, 72], [0, -1], [2, 72], [2, -1]], ids=str)
def test_reshape_flattens(shape: list[int], tmp_path: Path) -> None:
    nodes = [node("Reshape", "x shape", "flat"), node("Gemm", "flat w", "y", transB=1)]
    agrees(tmp_path, nodes, {"shape": np.array(shape), "w": weights(3, 72)}, (2, 2, 6, 6))


def test_reshape_by_a_shape_that_is_computed_from_the_map(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "size"),
        node("Gather", "size first", "batch", axis=0),
        node("Unsqueeze", "batch zero", "batches"),
        node("Concat", "batches rest", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("Gemm", "flat w", "y", transB=1),
    ]
    constants = {"first": np.array(0), "zero": np.array([0]), "rest": np.array([-1]), "w": weights(3, 72)}
    layers = agrees(tmp_path, nodes, constants)
    assert len(layers) == 3


def test_shapes_of_shapes_fold_in_several_rounds(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "size"),
        node("Slice", "size zero one", "batch"),
        node("Concat", "batch rest", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("Shape", "flat", "flat_size"),
        node("Reshape", "flat flat_size", "again"),
        node("Gemm", "again w", "y", transB=1),
    ]
    constants = {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1]), "w": weights(3, 72)}
    assert len(agrees(tmp_path, nodes, constants)) == 3


def test_sums_of_one_two_and_three_maps(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Sum", "a x", "two"),
        node("Sum", "two", "one"),
        node("Sum", "one a x", "three"),
        node("Add", "three three", "m"),
    ]
    agrees(tmp_path, nodes, classes=3)


@pytest.mark.parametrize("opset", [9, 17])
def test_products_of_maps_and_of_flat_tensors(opset: int, tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Mul", "a x", "b"),
        node("Mul", "b b", "c"),
        node("Flatten", "c", "flat"),
        node("Gemm", "flat w", "h", transB=1),
        node("Mul", "h h", "h2"),
        node("Gemm", "h2 v", "y", transB=1),
    ]
    layers = agrees(tmp_path, nodes, {"w": weights(5, 72), "v": weights(3, 5)}, opset=opset)
    assert [layer.shape for layer in layers if isinstance(layer, Mul)] == [(6, 6, 2), (6, 6, 2), (1, 1, 5)]


@pytest.mark.parametrize("order", ["x s", "s x"])
@pytest.mark.parametrize("image", [("N", 2, 6, 6), ("N", 2, 1, 6), ("N", 2, 1, 1)], ids=str)
def test_squeeze_and_excitation_scales_each_channel(order: str, image: tuple[int | str, ...], tmp_path: Path) -> None:
    nodes = [
        node("GlobalAveragePool", "x", "mean"),
        node("Conv", "mean w", "h"),
        node("Sigmoid", "h", "s"),
        node("Mul", order, "m"),
    ]
    layers = agrees(tmp_path, nodes, {"w": weights(2, 2, 1, 1)}, image, classes=3)
    kind = Mul if image[2:] == (1, 1) else Scale
    assert sum(isinstance(layer, kind) for layer in layers) == 1


@pytest.mark.parametrize("axis", [1, -3])
def test_maps_side_by_side(axis: int, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("Concat", "a x a", "three", axis=axis),
        node("Concat", "three", "one", axis=1),
        node("Concat", "one x", "m", axis=1),
    ]
    layers = agrees(tmp_path, nodes, {"w": weights(3, 2, 1, 1)}, classes=3)
    assert [(layer.a_channels, layer.b_channels) for layer in layers if isinstance(layer, Concat)] == [
        (3, 2),
        (5, 3),
        (8, 2),
    ]


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "part"),
    [
        (9, "x", {"starts": [1], "ends": [3], "axes": [1]}, (1, 2)),
        (9, "x", {"starts": [0, 1], "ends": [9, 9]}, (1, 4)),
        (10, "x from to axis", {}, (1, 3)),
        (17, "x from to axis one", {}, (1, 3)),
        (17, "x zeros sizes", {}, (0, 2)),
    ],
)
def test_channels_from_one_to_another_are_a_slice(
    opset: int, inputs: str, attributes: dict[str, Any], part: tuple[int, int], tmp_path: Path
) -> None:
    numbers = {"from": [-4], "to": [4], "axis": [-3], "one": [1], "zeros": [0] * 4, "sizes": [9, 2, 6, 2**62]}
    constants = {name: np.array(value) for name, value in numbers.items() if name in inputs.split()}
    image = ("N", 5, 6, 6) if opset != 17 else (2, 5, 6, 6)
    layers = agrees(tmp_path, [node("Slice", inputs, "m", **attributes)], constants, image, opset, classes=3)
    assert [(layer.first, layer.part) for layer in layers if isinstance(layer, ChannelSlice)] == [part]


def test_a_slice_of_all_is_nothing_and_one_behind_a_gemm_takes_features(tmp_path: Path) -> None:
    nodes = [
        node("Slice", "x zero many axis", "all"),
        node("Flatten", "all", "flat"),
        node("Gemm", "flat w", "h", transB=1),
        node("Slice", "h zero four one", "y"),
    ]
    numbers = {"zero": [0], "many": [2**31 - 1], "axis": [2], "four": [4], "one": [1]}
    constants = {name: np.array(value) for name, value in numbers.items()} | {"w": weights(5, 72)}
    layers = agrees(tmp_path, nodes, constants)
    assert [(layer.channels, layer.part) for layer in layers if isinstance(layer, ChannelSlice)] == [(5, 4)]


@pytest.mark.parametrize("step", [2, 3])
def test_every_other_channel_is_a_slice_of_shuffled_channels(step: int, tmp_path: Path) -> None:
    nodes = [node("Slice", f"x from{place} many axis step", f"p{place}") for place in range(step)]
    nodes += [node("Relu", "p0", "r"), node("Concat", f"r p{step - 1}", "m", axis=1)]
    numbers = {f"from{place}": [place] for place in range(step)} | {"many": [2**62], "axis": [1], "step": [step]}
    constants = {name: np.array(value) for name, value in numbers.items()}
    layers = agrees(tmp_path, nodes, constants, ("N", 12, 3, 3), classes=3)
    # shuffled once for all that read some of them
    assert [layer.groups for layer in layers if isinstance(layer, ChannelShuffle)] == [12 // step]
    assert [layer.first for layer in layers if isinstance(layer, ChannelSlice)] == [0, (step - 1) * 12 // step]


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "parts"),
    [
        (11, "x", {"axis": 1, "split": [1, 3, 2]}, [(1, 5), (3, 2)]),
        (11, "x", {"axis": -3}, [(2, 4), (2, 2)]),
        (13, "x sizes", {"axis": 1}, [(3, 3), (1, 2)]),
        (18, "x", {"axis": 1, "num_outputs": 3}, [(2, 4), (2, 2)]),
    ],
)
def test_channels_in_three_parts_are_split_twice(
    opset: int, inputs: str, attributes: dict[str, Any], parts: list[tuple[int, int]], tmp_path: Path
) -> None:
    nodes = [node("Split", inputs, "a b c", **attributes), node("Concat", "c a b", "m", axis=1)]
    constants = {"sizes": np.array([3, 1, 2])} if "sizes" in inputs else {}
    layers = agrees(tmp_path, nodes, constants, ("N", 6, 5, 4), opset, classes=3)
    assert [(layer.a_channels, layer.b_channels) for layer in layers if isinstance(layer, Split)] == parts


def test_of_a_split_with_parts_that_nobody_reads_the_others_are_slices(tmp_path: Path) -> None:
    nodes = [node("Split", "x", "a b c", axis=1), node("Concat", "c a", "m", axis=1)]
    layers = agrees(tmp_path, nodes, {}, ("N", 6, 5, 4), 13, classes=3)
    assert sorted((layer.first, layer.part) for layer in layers if isinstance(layer, ChannelSlice)) == [(0, 2), (4, 2)]


@pytest.mark.parametrize("inputs", ["x", "x scale", "x scale shift"])
def test_layer_norm_over_channels_is_a_norm_a_scale_and_a_shift(inputs: str, tmp_path: Path) -> None:
    given = {"scale": weights(6), "shift": weights(6)}
    vectors = {name: value for name, value in given.items() if name in inputs}
    tail = [node("Flatten", "m", "flat"), node("Gemm", "flat w", "y", transB=1)]
    head = {"w": weights(3, 24)} | vectors
    named = [node("LayerNorm", inputs, "m", epsilon=1e-3, domain="dagtrain"), *tail]
    spelt = [
        node("Transpose", "x", "last", perm=[0, 2, 3, 1]),
        node("LayerNormalization", f"last scale{' shift' if 'shift' in vectors else ''}", "n", epsilon=1e-3),
        node("Transpose", "n", "m", perm=[0, 3, 1, 2]),
        *tail,
    ]
    image = ("N", 6, 2, 2)
    frames = np.random.default_rng(24).standard_normal((2, *image[1:]))
    written = model(spelt, {"scale": np.ones(6)} | head, image)
    wanted = evaluate(written, frames)
    graph = import_model(save(model(named, head, image), tmp_path), norm=NormMode.NONE)
    assert_close(forward(graph, frames), wanted, 1e-5)
    kinds = [type(item.layer).__name__ for item in graph.nodes[1 : 1 + len(inputs.split())]]
    assert kinds == ["ChannelNorm", "DepthwiseConv", "Bias"][: len(inputs.split())]
    # and as it is written between Transposes
    assert_close(forward(import_model(save(written, tmp_path), norm=NormMode.NONE), frames), wanted, 1e-5)


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(
    "attributes",
    [{"size": 5}, {"size": 3, "alpha": 0.5, "beta": 0.5, "bias": 10.0}, {"size": 4, "alpha": 0.2}],
    ids=str,
)
def test_local_response_normalisation_is_what_onnx_says_it_is(
    opset: int, attributes: dict[str, Any], tmp_path: Path
) -> None:
    numbers = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0} | attributes
    weight = weights(3, 28)
    nodes = [node("LRN", "x", "m", **attributes), node("Flatten", "m", "flat"), node("Gemm", "flat w", "y", transB=1)]
    graph = import_model(save(model(nodes, {"w": weight}, ("N", 7, 2, 2), opset=opset), tmp_path), norm=NormMode.NONE)
    (layer,) = (item.layer for item in graph.nodes if isinstance(item.layer, LocalResponseNorm))
    assert {name: getattr(layer, name) for name in numbers} == pytest.approx(numbers)
    # ONNX's evaluator sums squares for as many channels as there are frames; this is its text, channel by channel
    x = np.random.default_rng(25).standard_normal((2, 7, 2, 2))
    y = np.empty_like(x)
    for c in range(7):
        first = max(0, c - math.floor((numbers["size"] - 1) / 2))
        last = min(6, c + math.ceil((numbers["size"] - 1) / 2))
        squares = (x[:, first : last + 1] ** 2).sum(1)
        y[:, c] = x[:, c] / (numbers["bias"] + numbers["alpha"] / numbers["size"] * squares) ** numbers["beta"]
    assert_close(forward(graph, x), y.reshape(2, -1) @ weight.T, 1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_of_features_is_over_the_channels_of_a_pixel(axis: int, tmp_path: Path) -> None:
    nodes = [
        node("GlobalAveragePool", "x", "pooled"),
        node("Flatten", "pooled", "flat"),
        node("LayerNormalization", "flat scale shift", "n", axis=axis),
        node("Gemm", "n w", "y", transB=1),
    ]
    constants = {"scale": weights(5), "shift": weights(5), "w": weights(3, 5)}
    layers = agrees(tmp_path, nodes, constants, ("N", 5, 4, 4))
    assert [layer.epsilon for layer in layers if isinstance(layer, ChannelNorm)] == pytest.approx([1e-5])


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_a_channel_shuffle_is_two_reshapes_and_a_transposition(groups: int, tmp_path: Path) -> None:
    def net(shuffle: list[NodeProto]) -> onnx.ModelProto:
        nodes = [*shuffle, node("Flatten", "m", "flat"), node("Gemm", "flat w", "y", transB=1)]
        constants = {
            "rows": np.array([0, groups, 6 // groups, 2, 2]),
            "whole": np.array([0, 6, 2, 2]),
            "w": np.linspace(-1, 1, 72).reshape(3, 24),
        }
        return model(nodes, constants, ("N", 6, 2, 2))

    spelt = [
        node("Reshape", "x rows", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "t whole", "m"),
    ]
    named = net([node("ChannelShuffle", "x", "m", groups=groups, domain="dagtrain")])
    frames = np.random.default_rng(23).standard_normal((2, 6, 2, 2))
    graph = import_model(save(named, tmp_path), norm=NormMode.NONE)
    assert_close(forward(graph, frames), evaluate(net(spelt), frames), 1e-5)
    # one row or column stays as it is
    shuffles = [item.layer.groups for item in graph.nodes if isinstance(item.layer, ChannelShuffle)]
    assert shuffles == ([groups] if groups in (2, 3) else [])


@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 2, 1, 1), (1,), ()], ids=str)
def test_adding_one_number_a_channel_is_a_bias_and_one_for_all_a_constant(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [node("Add", "x b", "a"), node("Conv", "a k", "c"), node("Relu", "c", "r"), node("Add", "r b2", "m")]
    constants = {"b": weights(*shape), "b2": weights(*shape), "k": weights(2, 2, 1, 1)}
    layers = agrees(tmp_path, nodes, constants, classes=3)
    # what comes before all that learns prepares the data
    assert [layer.frozen for layer in layers if isinstance(layer, Bias)] == [True, 2 not in shape]


@pytest.mark.parametrize("inputs", ["x s", "s x"])
@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 2, 1, 1), (1,), ()], ids=str)
def test_multiplying_by_constants_is_not_trained(shape: tuple[int, ...], inputs: str, tmp_path: Path) -> None:
    layers = agrees(tmp_path, [node("Mul", inputs, "m")], {"s": weights(*shape)}, classes=3)
    assert [layer.shifted for layer in layers if isinstance(layer, ChannelAffine)] == [False]


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1), (1,), ()], ids=str)
def test_one_number_a_channel_behind_what_learns_is_trained_as_pytorch_does(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [node("Conv", "x k", "c"), node("Relu", "c", "r"), node("Mul", "s r", "m")]
    layers = agrees(tmp_path, nodes, {"k": weights(3, 2, 1, 1), "s": weights(*shape)}, classes=3)
    wanted = DepthwiseConv if 3 in shape else ChannelAffine
    assert sum(isinstance(layer, wanted) for layer in layers) == 1


def test_a_layer_scale_that_an_exporter_merged_becomes_a_parameter_of_each_branch(tmp_path: Path) -> None:
    nodes = [node("Conv", "x k", "c"), node("Mul", "c s", "a"), node("Relu", "a", "r"), node("Mul", "r s", "m")]
    layers = agrees(tmp_path, nodes, {"k": weights(3, 2, 1, 1), "s": np.full((3, 1, 1), 0.125)}, classes=3)
    assert sum(isinstance(layer, DepthwiseConv) for layer in layers) == 2


def test_constants_of_channels_that_are_not_trained_are_named_in_a_note(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x s", "a"),
        node("Mul", "a t", "m"),
        node("Flatten", "m", "f"),
        node("Gemm", "f w", "y", transB=1),
    ]
    constants = {"s": weights(2, 1, 1), "t": np.array(0.5), "w": weights(3, 72)}
    imported = import_with_notes(save(model(nodes, constants), tmp_path))
    assert imported.notes == ("node a_node (Mul) multiplies channels by constants, s: nothing trains them",)


def test_preprocessing_in_the_file_is_constants_before_all_that_learns(tmp_path: Path) -> None:
    nodes = [node("Sub", "x mean", "a"), node("Div", "a deviation", "m")]
    constants = {"mean": weights(2, 1, 1), "deviation": np.array([[[0.25]], [[4.0]]])}
    layers = agrees(tmp_path, nodes, constants, classes=3)
    assert sum(isinstance(layer, ChannelAffine) for layer in layers) == 1
    assert [layer.frozen for layer in layers if isinstance(layer, Bias)] == [True]


@pytest.mark.parametrize("last", ["Softmax", "LogSoftmax"])
def test_softmax_at_the_end_is_dropped_with_a_note(last: str, tmp_path: Path) -> None:
    nodes = [
        node("Flatten", "x", "flat"),
        node("Gemm", "flat w", "scores", transB=1),
        node(last, "scores", "y", axis=1),
    ]
    imported = import_with_notes(save(model(nodes, {"w": weights(3, 72)}), tmp_path))
    assert len(imported.graph.nodes) == 3
    assert [note.partition(" was")[0] for note in imported.notes] == [f"node y_node ({last}) at the end"]


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes"),
    [(9, "x", {"ratio": 0.25}), (13, "x ratio yes", {}), (13, "x ratio", {"seed": 3})],
)
def test_dropout_is_kept_in_every_mode(opset: int, inputs: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    nodes = [
        node("Dropout", inputs, "m", **attributes),
        node("Flatten", "m", "flat"),
        node("Gemm", "flat w", "y", transB=1),
    ]
    constants = {"ratio": np.float32(0.25), "yes": np.array(True), "w": weights(3, 72)}
    graph = import_model(save(model(nodes, constants, opset=opset), tmp_path))
    assert [item.layer.ratio for item in graph.nodes if isinstance(item.layer, Dropout)] == [0.25]


def test_stochastic_depth_is_an_operator_of_our_own(tmp_path: Path) -> None:
    nodes = [
        node("StochasticDepth", "x", "a", domain="dagtrain", ratio=0.25),
        node("StochasticDepth", "a", "m", domain="dagtrain", ratio=0.0),
        node("Flatten", "m", "flat"),
        node("Gemm", "flat w", "y", transB=1),
    ]
    graph = import_model(save(model(nodes, {"w": weights(3, 72)}), tmp_path))
    assert [item.layer.ratio for item in graph.nodes if isinstance(item.layer, StochasticDepth)] == [0.25]


def test_dropout_of_ratio_0_vanishes(tmp_path: Path) -> None:
    layers = agrees(tmp_path, [node("Dropout", "x ratio", "m")], {"ratio": np.float32(0)}, classes=3)
    assert not any(isinstance(layer, Dropout) for layer in layers)


def test_weights_behind_identity_and_made_by_constant_nodes(tmp_path: Path) -> None:
    value = numpy_helper.from_array(weights(3, 2, 3, 3).astype(np.float32))
    nodes = [
        helper.make_node("Constant", [], ["raw"], value=value),
        node("Identity", "raw", "w"),
        node("ConstantOfShape", "size", "b", value=helper.make_tensor("v", 1, [1], [0.5])),
        node("Identity", "x", "image"),
        node("Conv", "image w b", "m"),
    ]
    agrees(tmp_path, nodes, {"size": np.array([3])}, classes=3)


def test_equal_vectors_that_an_exporter_merged_become_separate_parameters(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w1 b", "a"), node("Conv", "a w2 b", "m")]
    constants = {"w1": weights(2, 2, 1, 1), "w2": weights(2, 2, 1, 1), "b": np.full(2, 0.5)}
    layers = agrees(tmp_path, nodes, constants, classes=3)
    assert sum(isinstance(layer, Bias) for layer in layers) == 2


def test_a_merged_vector_lends_its_name_to_none_of_its_nodes(tmp_path: Path) -> None:
    names = ["s.weight", "s.bias", "mean", "variance"]
    norms = [
        helper.make_node("BatchNormalization", [source, *names], [result], name=f"/{result}/BatchNormalization")
        for source, result in (("x", "first"), ("first", "m"))
    ]
    nodes = [*norms, node("Flatten", "m", "flat"), node("Gemm", "flat w", "y", transB=1)]
    constants = {"s.weight": np.ones(2), "s.bias": np.zeros(2), "mean": np.zeros(2), "variance": np.ones(2)}
    graph = import_model(save(model(nodes, {**constants, "w": weights(3, 72)}), tmp_path))
    assert [item.name for item in graph.nodes[1:3]] == ["first", "m"]


def test_initialisers_may_be_listed_as_inputs_as_old_files_do(tmp_path: Path) -> None:
    proto = model([node("Flatten", "x", "flat"), node("Gemm", "flat w", "y", transB=1)], {"w": weights(3, 72)})
    proto.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 72]))
    assert len(import_model(save(proto, tmp_path)).nodes) == 3


def test_weights_in_half_and_double_precision_are_kept_exactly(tmp_path: Path) -> None:
    nodes = [node("Flatten", "x", "flat"), node("Gemm", "flat w b", "y", transB=1)]
    proto = model(nodes, {"w": weights(3, 72).astype(np.float16)})
    bias = weights(3).astype(np.float64) + 2.0**-40
    proto.graph.initializer.append(numpy_helper.from_array(bias, "b"))
    graph = import_model(save(proto, tmp_path))
    # 32 bits where they hold the file's numbers
    assert [value.dtype for value in graph.parameters.values()] == [np.float32, np.float64]
    np.testing.assert_array_equal(list(graph.parameters.values())[1], bias)


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    proto = model([node("Flatten", "x", "flat"), node("Gemm", "flat w", "y", transB=1)], {"w": weights(3, 72)})
    wanted = numpy_helper.to_array(proto.graph.initializer[0]).reshape(3, 2, 6, 6)
    external_data_helper.convert_model_to_external_data(proto, location="net.data", size_threshold=0)
    onnx.save(proto, tmp_path / "net.onnx")
    assert (tmp_path / "net.data").stat().st_size == 3 * 72 * 4
    graph = import_model(tmp_path / "net.onnx")
    np.testing.assert_array_equal(graph.parameters["y_node.w"], wanted)


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    body = [helper.make_node("Relu", ["a"], ["c"]), helper.make_node("Flatten", ["c"], ["b"])]
    function = helper.make_function("mine", "Front", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    call = helper.make_node("Front", ["x"], ["flat"], domain="mine")
    proto = model([call, node("Gemm", "flat w", "y", transB=1)], {"w": weights(3, 72)})
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    proto.functions.append(function)
    graph = import_model(save(proto, tmp_path))
    assert [type(item.layer).__name__ for item in graph.nodes[:3]] == ["HostInput", "Relu", "Conv"]


def test_names_are_safe_in_verilog_unique_and_close_to_the_files(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="/layer1/layer1.0/relu/Relu"),
        helper.make_node("Relu", ["a"], ["b"], name="module"),
        helper.make_node("Relu", ["b"], ["c"], name="1-odd name"),
        helper.make_node("Relu", ["c"], ["d"], name="Module_"),
        helper.make_node("Relu", ["d"], ["e"], name="loss"),
        helper.make_node("Relu", ["e"], ["f"], name="same"),
        helper.make_node("Relu", ["f"], ["flat"], name="same"),
        helper.make_node("Flatten", ["flat"], ["vector"]),
        helper.make_node("Gemm", ["vector", "head.0.weight"], ["y"], transB=1, name="/head/0/Gemm"),
    ]
    graph = import_model(save(model(nodes, {"head.0.weight": weights(3, 72)}), tmp_path))
    names = [item.name for item in graph.nodes]
    assert names == [
        "image", "layer1_0_relu_Relu", "module_", "n_1_odd_name", "Module_2", "loss_2", "f", "flat", "head_0", "loss",
    ]  # fmt: skip
    assert graph.by_name["head_0"].parameters == {"w": "head_0.w"}
