"""Files that can't be imported: one clear error, with everything that is wrong, where, and the cure."""

from __future__ import annotations

import gzip
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, external_data_helper, helper

from hdl.errors import ImportProblem
from importers.onnx import import_model, import_with_notes
from importers.onnx.skeleton import fill, is_skeleton, load_skeleton, save_skeleton, strip
from tests.import_support import MODELS, example, model, node, save

W = np.ones((3, 72)) * np.linspace(-1, 1, 72)
KERNEL = np.random.default_rng(41).standard_normal((3, 2, 3, 3))
HEAD = (node("Flatten", "m", "flat"), node("Gemm", "flat w", "y", transB=1))


V = np.ones((3, 2))
POOLED = (
    node("Sigmoid", "r", "m"),
    node("GlobalAveragePool", "m", "p1"),
    node("Flatten", "p1", "f"),
    node("Gemm", "f v", "y", transB=1),
)


def good() -> ModelProto:
    """Imports without complaint; the cases below spoil it."""
    return model([node("Relu", "x", "m"), *HEAD], {"w": W})


def conv(**attributes: Any) -> ModelProto:
    """One convolution with these attributes, then global pooling."""
    nodes = [node("Conv", "x k", "c", **attributes), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "y")]
    return model(nodes, {"k": KERNEL})


def message(path: Path) -> str:
    """The error's message, without the name of the file."""
    with pytest.raises(ImportProblem) as caught:
        import_model(path)
    text = str(caught.value)
    assert text.startswith(f"{path} can't be imported")
    return text.removeprefix(f"{path} can't be imported").removeprefix(": ")


def test_the_file_that_the_cases_spoil_is_good(tmp_path: Path) -> None:
    assert len(import_model(save(good(), tmp_path)).nodes) == 4
    assert len(import_model(save(conv(), tmp_path)).nodes) == 4


# ---- files

FILES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "it does not exist; give the path of an ONNX file"),
    "empty": (b"", "it is empty; export or download it again"),
    "text": (b"hello, world\n", "it is no ONNX model, or a truncated one of 13 bytes; export or download it again"),
    "page": (
        b"<html><body>404</body></html>",
        "it is an HTML or XML page, perhaps a download that failed; download it again",
    ),
    "compressed": (gzip.compress(good().SerializeToString(), mtime=0), "it is gzip-compressed; unpack it first"),
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "it is a Git LFS pointer; fetch the file itself with `git lfs pull`",
    ),
    "not text": (
        good().SerializeToString().replace(b"Relu", b"R\xfflu", 1),
        "op_type of node 0 is b'R\\xfflu', which is not UTF-8; export or download it again",
    ),
    "nodeless": (
        helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString(),
        "its graph has no nodes; export or download it again",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_model(name: str, tmp_path: Path) -> None:
    data, wanted = FILES[name]
    path = tmp_path / "net.onnx"
    if data is not None:
        path.write_bytes(data)
    assert message(path) == wanted


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_never_imported(share: float, tmp_path: Path) -> None:
    data = good().SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    assert re.search(
        r"truncated one of \d+ bytes; export or download it again|cut|damaged|has 0 outputs", message(path)
    )


def test_a_folder(tmp_path: Path) -> None:
    assert message(tmp_path) == "it is a folder; give the path of an ONNX file"


def test_a_checkpoint_of_pytorch(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x")
    assert message(path) == "it is a ZIP archive, perhaps a PyTorch checkpoint; export it with torch.onnx.export"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = save(good(), tmp_path)
    path.chmod(0)
    assert message(path) == "it can't be read (Permission denied); make it readable"


def test_a_skeleton_without_weights(tmp_path: Path) -> None:
    path = save(strip(good()), tmp_path)
    assert message(path) == ("holds the structure of a model without its weights; fill it with examples/models/fill.py")


def test_external_weights_that_are_not_there(tmp_path: Path) -> None:
    proto = good()
    external_data_helper.convert_model_to_external_data(proto, location="net.data", size_threshold=0)
    onnx.save(proto, tmp_path / "net.onnx")
    (tmp_path / "net.data").unlink()
    wanted = r"weights w: their data file 'net.data' can't be read \(.+\); put it beside the model"
    assert re.fullmatch(wanted, message(tmp_path / "net.onnx"))


def test_external_weights_that_were_cut(tmp_path: Path) -> None:
    proto = good()
    external_data_helper.convert_model_to_external_data(proto, location="net.data", size_threshold=0)
    onnx.save(proto, tmp_path / "net.onnx")
    data = (tmp_path / "net.data").read_bytes()
    (tmp_path / "net.data").write_bytes(data[:100])
    assert re.match(
        r"weights w: their data (file 'net.data' can't be read|do not fit the shape \[3, 72\])",
        message(tmp_path / "net.onnx"),
    )


# ---- models

Spoil = Callable[[], ModelProto]
CASES: list[tuple[str, Spoil, str]] = []


def case(name: str, wanted: str) -> Callable[[Spoil], Spoil]:
    """Register a spoilt model and the regular expression of its whole message."""

    def register(spoil: Spoil) -> Spoil:
        CASES.append((name, spoil, wanted))
        return spoil

    return register


@case(
    "unknown operators",
    r"uses operators that are not supported: Sin \(2, first at a_node\), Softplus \(1, first at g_node\), "
    r"com\.maker\.Magic \(1, first at q_node\); supported are Add, .*",
)
def _unknown() -> ModelProto:
    proto = model(
        [
            node("Sin", "x", "a"),
            node("Sin", "a", "b"),
            node("Softplus", "b", "g"),
            node("Magic", "g", "q", domain="com.maker"),
            node("Relu", "q", "m"),
            *HEAD,
        ],
        {"w": W},
        opset=20,
    )
    proto.opset_import.append(helper.make_opsetid("com.maker", 1))
    return proto


@case(
    "dynamic height and width",
    r"input x: has shape \[N, 2, H, \?\] with dynamic height, width; export with fixed height, width; .*",
)
def _dynamic() -> ModelProto:
    return model([node("Relu", "x", "m"), *HEAD], {"w": W}, ("N", 2, "H", None))


@case(
    "missing shape",
    r"input x: has no shape; export with the shape \(N, channels, height, width\), or \(N, features\)",
)
def _shapeless() -> ModelProto:
    return model([node("Relu", "x", "m"), *HEAD], {"w": W}, None)


@case(
    "film",
    r"input x: has shape \[N, 4, 2, 6, 6\]; export with the shape \(N, channels, height, width\), or \(N, features\)",
)
def _film() -> ModelProto:
    return model([node("Relu", "x", "m"), *HEAD], {"w": W}, ("N", 4, 2, 6, 6))


@case(
    "dynamic number of features",
    r"input x: has shape \[N, F\] with dynamic features; export with fixed features; only the batch may be dynamic",
)
def _features() -> ModelProto:
    return model([node("Gemm", "x w", "y", transB=1)], {"w": W}, ("N", "F"))


@case("image without pixels", r"input x: has shape \[N, 2, 0, 6\]; all sizes must be positive")
def _no_pixels() -> ModelProto:
    return model([node("Relu", "x", "m"), *HEAD], {"w": W}, ("N", 2, 0, 6))


@case(
    "image beyond memory",
    r"input x: has shape \[N, 2, 1000000, 1000000\]; an image may have 67,108,864 elements: export for smaller images",
)
def _beyond_memory() -> ModelProto:
    return model([node("Relu", "x", "m"), *HEAD], {"w": W}, ("N", 2, 10**6, 10**6))


@case(
    "padding beyond reason",
    r"node c_node \(Conv\): pads \[1, 1, 100000, 1\] are not supported; export with four pads from 0 to 4096",
)
def _beyond_reason() -> ModelProto:
    return conv(pads=[1, 1, 10**5, 1])


@case("image of bytes", r"input x: has type UINT8; export with float images; .*")
def _bytes() -> ModelProto:
    proto = good()
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    return proto


@case(
    "two inputs", r"has 2 inputs \(x, z\); export a model with one input, the image; if the others are labels that .*"
)
def _two_inputs() -> ModelProto:
    proto = model([node("Relu", "x", "r"), node("Add", "r z", "m"), *HEAD], {"w": W})
    proto.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 2, 6, 6]))
    return proto


@case("no input", r"has 0 inputs \(none\); export a model with one input, the image\n.*reads tensor x.*")
def _no_input() -> ModelProto:
    proto = good()
    del proto.graph.input[:]
    return proto


@case("output that nothing makes", r"output z: is made by nothing; the file is damaged or was cut: export it again")
def _lost_output() -> ModelProto:
    proto = good()
    proto.graph.output[0].name = "z"
    return proto


@case("NaN weights", r"weights w: 2 of 216 are not finite, the first is nan at \[1, 5\]; the training diverged: .*")
def _nan() -> ModelProto:
    value = W.copy()
    value[1, 5], value[2, 0] = np.nan, np.inf
    return model([node("Relu", "x", "m"), *HEAD], {"w": value})


@case("weights cut short", r"weights w: their data do not fit the shape \[3, 72\]: .*; the file is damaged: .*")
def _short() -> ModelProto:
    proto = good()
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-8]
    return proto


@case("cycle", r"the graph has a cycle: a_node -> m_node -> a_node; remove one of these edges; ONNX graphs are acyclic")
def _cycle() -> ModelProto:
    return model([node("Add", "x m", "a"), node("Relu", "a", "m"), *HEAD], {"w": W})


@case(
    "dangling input",
    r"node a_node \(Add\): reads tensor nowhere, which nothing makes; the file is damaged or was cut.*",
)
def _dangling() -> ModelProto:
    return model([node("Add", "x nowhere", "a"), node("Relu", "a", "m"), *HEAD], {"w": W})


@case(
    "graph in two parts",
    r"output y: does not depend on the input x; the graph is cut in two: export the model again",
)
def _two_parts() -> ModelProto:
    return model([node("Relu", "x", "m"), node("Gemm", "c w", "y", transB=1)], {"w": W, "c": np.ones((2, 72))})


@case("tensor made twice", r"node m_again \(Relu\): makes tensor m, which m_node makes too; give it another name")
def _twice() -> ModelProto:
    again = helper.make_node("Relu", ["x"], ["m"], name="m_again")
    return model([node("Relu", "x", "m"), again, *HEAD], {"w": W})


@case("old opset", r"opset 8 is not supported; export with an opset in 9\.\.\d+, or use onnx\.version_converter")
def _old() -> ModelProto:
    return model([node("Relu", "x", "m"), *HEAD], {"w": W}, opset=8)


@case("no opset", r"names no version of ONNX's operators; export with an opset in 9\.\.\d+")
def _no_opset() -> ModelProto:
    proto = good()
    del proto.opset_import[:]
    return proto


@case("dilation", r"node c_node \(Conv\): dilations \[0, 2\] are not supported; export with two positive dilations")
def _dilation() -> ModelProto:
    return conv(dilations=[0, 2])


@case("groups", r"node c_node \(Conv\): weights of shape \[5, 2, 3, 3\] meet 4 channels in 2 groups; export again")
def _groups() -> ModelProto:
    nodes = [node("Conv", "x k", "c", group=2), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "y")]
    return model(nodes, {"k": np.random.default_rng(42).standard_normal((5, 2, 3, 3))}, ("N", 4, 6, 6))


@case("wrong channels", r"node c_node \(Conv\): weights of shape \[3, 2, 3, 3\] meet 5 channels; export again")
def _channels() -> ModelProto:
    nodes = [node("Conv", "x k", "c"), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "y")]
    return model(nodes, {"k": KERNEL}, ("N", 5, 6, 6))


@case("unknown padding", r"node c_node \(Conv\): auto_pad=SAME is unknown; use NOTSET, VALID, .*")
def _padding() -> ModelProto:
    return conv(auto_pad="SAME")


@case("unknown attribute", r"node c_node \(Conv\): attribute activation=relu is not supported; export without it")
def _attribute() -> ModelProto:
    return conv(activation="relu")


@case("kernel beyond the map", r"node c_node \(Conv\): .*kernel \(3, 3\).* does not fit the map; .*")
def _kernel() -> ModelProto:
    nodes = [node("Conv", "x k", "c"), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "y")]
    return model(nodes, {"k": KERNEL}, ("N", 2, 2, 6))


@case(
    "weights that are computed",
    r"node c_node \(Conv\): input 1 \(k\) is computed by the network; it must be a constant",
)
def _computed() -> ModelProto:
    nodes = [node("Relu", "x", "k"), node("Conv", "x k", "c"), node("GlobalAveragePool", "c", "p")]
    return model([*nodes, node("Flatten", "p", "y")])


@case("tied weights", r"node b_node \(Conv\): shares weights k with a_node; export with a weight for each node")
def _tied() -> ModelProto:
    nodes = [node("Conv", "x k", "a"), node("Conv", "a k", "b"), node("GlobalAveragePool", "b", "p")]
    kernel = np.random.default_rng(43).standard_normal((2, 2, 3, 3))
    return model([*nodes, node("Flatten", "p", "y")], {"k": kernel})


@case(
    "clip at a list",
    r"node m_node \(Clip\): input 2 \(high\) is of shape 4 and float32; it must be a number",
)
def _clip_at_a_list() -> ModelProto:
    values = {"low": np.float32(0), "high": np.full(4, 6, np.float32)}
    return model([node("Clip", "x low high", "m"), *HEAD], {"w": W, **values})


@case("clip below 0", r"node m_node \(Clip\): clips at min=-1\.0; only min=0 \(relu, relu6\) is supported")
def _clip() -> ModelProto:
    return model([node("Clip", "x low", "m"), *HEAD], {"w": W, "low": np.float32(-1)})


@case(
    "products of rows",
    r"node m_node \(Mul\): multiplies tensors of shapes \[2, 2, 6, 6\] and \[2, 72\]; shapes must be equal, or one .*",
)
def _() -> ModelProto:
    return model([node("Flatten", "x", "f"), node("Mul", "x f", "m"), *HEAD], {"w": W})


@case(
    "a product with constants of rows",
    r"node m_node \(Mul\): a constant of shape \[6\] meets \[2, 2, 6, 6\]; only one number a channel .*",
)
def _() -> ModelProto:
    return model([node("Mul", "x k", "m"), *HEAD], {"w": W, "k": np.ones(6) * 0.5})


@case(
    "a product with a vector that was flattened", r"node m_node \(Mul\): multiplies tensors of shapes .* \[2, 2\]; .*"
)
def _() -> ModelProto:
    nodes = [node("GlobalAveragePool", "x", "g"), node("Flatten", "g", "f"), node("Mul", "x f", "m"), *HEAD]
    return model(nodes, {"w": W})


@case("broadcast", r"node m_node \(Add\): adds tensors of shapes \[2, 2, 6, 6\] and \[2, 2, 1, 1\]; broadcasting .*")
def _broadcast() -> ModelProto:
    return model([node("GlobalAveragePool", "x", "g"), node("Add", "x g", "m"), *HEAD], {"w": W})


@case("concat of rows", r"node m_node \(Concat\): joins tensors along axis 2; only axis 1, the channels, is supported")
def _rows() -> ModelProto:
    return model([node("Concat", "x x", "m", axis=2), *HEAD], {"w": np.ones((3, 144))})


@case(
    "concat of unequal maps",
    r"node m_node \(Concat\): joins tensors of shapes \[2, 2, 6, 6\] and \[2, 2, 1, 1\]; all but the channels must .*",
)
def _unequal() -> ModelProto:
    return model([node("GlobalAveragePool", "x", "g"), node("Concat", "x g", "m", axis=1), *HEAD], {"w": W})


@case(
    "concat of flattened maps",
    r"node m_node \(Concat\): joins flattened maps of shapes \[2, 72\] and \[2, 72\]; join the maps before .*",
)
def _flat() -> ModelProto:
    nodes = [node("Flatten", "x", "f"), node("Concat", "f f", "m", axis=1), node("Gemm", "m w", "y", transB=1)]
    return model(nodes, {"w": np.ones((3, 144))})


@case(
    "slice of rows from the last one on",
    r"node m_node \(Slice\): takes \[4:0:-1\] of axis 2 of shape \[2, 2, 6, 6\]; only channels, rows and columns .*",
)
def _sliced_rows() -> ModelProto:
    nodes = [node("Slice", "x from to axis step", "m"), *HEAD]
    numbers = {"from": [4], "to": [0], "axis": [2], "step": [-1]}
    return model(nodes, {name: np.array(value) for name, value in numbers.items()} | {"w": np.ones((3, 48))})


@case("slice of frames", r"node r_node \(Slice\): takes \[0:1:1\] of axis 0 of shape \[2, 2, 6, 6\]; only channels, .*")
def _sliced_frames() -> ModelProto:
    nodes = [node("Slice", "x from to axis", "r"), *POOLED]
    return model(nodes, {"from": np.array([0]), "to": np.array([1]), "axis": np.array([0]), "v": V})


@case(
    "every other channel of an odd number",
    r"node r_node \(Slice\): takes one of 2 channels from 0 to 5 of 5; the step must divide the channels, .*",
)
def _stepping() -> ModelProto:
    nodes = [node("Slice", "x from to axis step", "r"), *POOLED]
    numbers = {"from": [0], "to": [9], "axis": [1], "step": [2]}
    constants = {name: np.array(value) for name, value in numbers.items()}
    return model(nodes, {**constants, "v": np.ones((3, 3))}, ("N", 5, 4, 4))


@case("no channel", r"node m_node \(Slice\): takes \[2:2:1\] of axis 1 of .*, which is nothing; export again")
def _no_channel() -> ModelProto:
    nodes = [node("Slice", "x from to axis", "m"), *HEAD]
    return model(nodes, {"from": np.array([2]), "to": np.array([2]), "axis": np.array([1]), "w": W})


@case(
    "slice of an axis that is not there",
    r"node m_node \(Slice\): takes axes \[4\] of shape \[2, 2, 6, 6\] with 1 starts.*",
)
def _no_axis() -> ModelProto:
    nodes = [node("Slice", "x from to axis", "m"), *HEAD]
    return model(nodes, {"from": np.array([0]), "to": np.array([1]), "axis": np.array([4]), "w": W})


@case(
    "slice of a flattened map",
    r"node m_node \(Slice\): takes part of a flattened map of 2x6x6; slice or split the map before Flatten or Reshape",
)
def _sliced_flat() -> ModelProto:
    nodes = [node("Flatten", "x", "f"), node("Slice", "f from to axis", "m"), node("Gemm", "m w", "y", transB=1)]
    return model(nodes, {"from": np.array([0]), "to": np.array([9]), "axis": np.array([1]), "w": np.ones((3, 9))})


@case("split of rows", r"node a_node \(Split\): splits axis 2 of shape \[2, 2, 6, 6\]; only axis 1, the channels, .*")
def _split_rows() -> ModelProto:
    return model([node("Split", "x", "a b", axis=2), node("Add", "a b", "m"), *HEAD], {"w": np.ones((3, 36))})


@case(
    "split into too much", r"node a_node \(Split\): splits 2 channels into parts of \[1, 2\]; parts must be positive .*"
)
def _split_sizes() -> ModelProto:
    nodes = [node("Split", "x sizes", "a b", axis=1), node("Add", "a b", "m"), *HEAD]
    return model(nodes, {"sizes": np.array([1, 2]), "w": np.ones((3, 36))})


@case(
    "groups that divide no channels",
    r"node m_node \(.*ChannelShuffle\): shuffles 2 channels in 3 groups; groups must .*",
)
def _groups() -> ModelProto:
    return model([node("ChannelShuffle", "x", "m", groups=3, domain="dagtrain"), *HEAD], {"w": W})


@case(
    "layer norm of other channels",
    r"node m_node \(.*LayerNorm\): scale of shape \[3\] meets 2 channels; export again",
)
def _layer_norm_scale() -> ModelProto:
    return model([node("LayerNorm", "x scale", "m", domain="dagtrain"), *HEAD], {"w": W, "scale": np.ones(3)})


@case("layer norm of one channel", r"node m_node \(.*LayerNorm\): ChannelNorm of 1 channels .*: one channel has no .*")
def _layer_norm_of_one() -> ModelProto:
    nodes = [node("LayerNorm", "x", "m", domain="dagtrain"), *HEAD]
    return model(nodes, {"w": np.ones((3, 36))}, image=("N", 1, 6, 6))


@case("lrn that adds nothing", r"node m_node \(LRN\): LocalResponseNorm: bias is 0\.0; it must be positive and finite")
def _lrn() -> ModelProto:
    return model([node("LRN", "x", "m", size=3, bias=0.0), *HEAD], {"w": W})


@case(
    "reshape of the batch",
    r"node flat_node \(Reshape\): reshapes \[2, 2, 6, 6\] \(batch 2\) to \[1, 144\]; .*leave the batch.*",
)
def _batch() -> ModelProto:
    nodes = [node("Reshape", "x s", "flat"), node("Gemm", "flat w", "y", transB=1)]
    return model(nodes, {"s": np.array([1, -1]), "w": np.ones((3, 144))})


@case(
    "reshape across channels",
    r"node m_node \(MaxPool\): input 0 of shape \[2, 8, 3, 3\] is a reshaped map of 2x6x6; .*",
)
def _mixing() -> ModelProto:
    nodes = [node("Reshape", "x s", "r"), node("MaxPool", "r", "m", kernel_shape=[2, 2])]
    return model([*nodes, *HEAD], {"s": np.array([0, 8, 3, 3]), "w": np.ones((3, 32))})


@case(
    "mean over channels", r"node m_node \(ReduceMean\): averages axes \[1\] .*; only the mean over height and width .*"
)
def _mean() -> ModelProto:
    return model([node("ReduceMean", "x", "m", axes=[1]), *HEAD], {"w": np.ones((3, 36))})


def _pad(pads: list[int], **attributes: Any) -> ModelProto:
    return model([node("Pad", "x p", "r", **attributes), *POOLED], {"p": np.array(pads), "v": V})


@case(
    "rows turned round", r"node r_node \(Gather\): gathers \[1, 0\] of axis 2; only rows and columns in their order .*"
)
def _turned_rows() -> ModelProto:
    return model([node("Gather", "x p", "r", axis=2), *POOLED], {"p": np.array([1, 0]), "v": V})


@case("channels picked", r"node r_node \(Gather\): gathers 2 of axis 1 of shape .*; only rows and columns of a map .*")
def _picked_channels() -> ModelProto:
    places = {"p": np.array([1, 0]), "w": W}
    return model([node("Gather", "x p", "r", axis=1), node("Sigmoid", "r", "m"), *HEAD], places)


@case("a pad that reflects", r"node r_node \(Pad\): pads in mode reflect; only constants are supported: export with .*")
def _reflecting() -> ModelProto:
    return _pad([0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")


@case("a pad of edges", r"node r_node \(Pad\): pads in mode edge; only constants .*, or pad the images beforehand")
def _edges() -> ModelProto:
    return _pad([0, 0, 1, 1, 0, 0, 1, 1], mode="edge")


@case("a pad of much", r"node r_node \(Pad\): pads with -inf; export with a constant from -64 to 64")
def _pad_of_much() -> ModelProto:
    pads = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "low": np.float32(-np.inf), "v": V}
    return model([node("Pad", "x p low", "r"), *POOLED], pads)


@case(
    "a pad of channels", r"node r_node \(Pad\): pads \[0, 1, 0, 0, 0, 0, 0, 0\]; only pads around height and width .*"
)
def _pad_of_channels() -> ModelProto:
    return model([node("Pad", "x p", "r"), *POOLED], {"p": np.array([0, 1, 0, 0, 0, 0, 0, 0]), "v": np.ones((3, 3))})


@case("a pad of another length", r"node r_node \(Pad\): pads \[0, 1\] on 4 axes; export with two pads an axis")
def _short_pads() -> ModelProto:
    return _pad([0, 1])


@case(
    "normalisation of rows",
    r"node m_node \(LayerNormalization\): normalises the last 1 axes of shape .*; only over the channels .*",
)
def _rows_normalised() -> ModelProto:
    return model([node("LayerNormalization", "x o", "m"), *HEAD], {"w": W, "o": np.ones(6)})


@case(
    "shuffle of rows",
    r"node t_node \(Transpose\): puts axes of shape \[2, 2, 2, 3, 6\] in the order \[0, 1, 3, 2, 4\]; only .*",
)
def _shuffled_rows() -> ModelProto:
    nodes = [
        node("Reshape", "x s", "a"),
        node("Transpose", "a", "t", perm=[0, 1, 3, 2, 4]),
        node("Reshape", "t u", "m"),
    ]
    return model([*nodes, *HEAD], {"w": W, "s": np.array([0, 2, 2, 3, 6]), "u": np.array([0, 2, 6, 6])})


@case(
    "a signal",
    r"node c_node \(Conv\): weights have shape \[3, 6, 3\]; only two-dimensional convolution is supported",
)
def _signal() -> ModelProto:
    nodes = [node("Conv", "x k", "c"), node("Flatten", "c", "f"), node("Gemm", "f v", "y", transB=1)]
    return model(nodes, {"k": np.ones((3, 6, 3)), "v": np.ones((3, 30))}, ("N", 6, 12))


@case(
    "normalisation of a flattened map",
    r"node n_node \(BatchNormalization\): input 0 of shape \[2, 72\] is a flattened map of 2x6x6; put it before .*",
)
def _flattened_normalised() -> ModelProto:
    nodes = [
        node("Flatten", "x", "f"),
        node("BatchNormalization", "f o o o o", "n"),
        node("Gemm", "n w", "y", transB=1),
    ]
    return model(nodes, {"w": W, "o": np.ones(72)})


@case("softmax inside", r"node m_node \(Softmax\): stands elsewhere than at the end over the classes; .*")
def _softmax() -> ModelProto:
    return model([node("Softmax", "x", "m"), *HEAD], {"w": W})


@case(
    "a map as result",
    r"output y: has shape \['N', 2, 6, 6\]; the result must be class scores of shape \(N, classes\).*",
)
def _map() -> ModelProto:
    return model([node("Relu", "x", "y")])


@case("one class", r"output y: has a single class; softmax needs at least two classes")
def _one_class() -> ModelProto:
    return model([node("Relu", "x", "m"), *HEAD], {"w": W[:1]})


@case("the image as result", r"output x: is not computed from the image; export the whole model")
def _image() -> ModelProto:
    return model([node("Identity", "x", "y")])


@case("dropout of everything", r"node m_node \(Dropout\): ratio is 1\.0; it must lie in \[0, 1\)")
def _dropout() -> ModelProto:
    return model([node("Dropout", "x r", "m"), *HEAD], {"w": W, "r": np.float32(1)})


@case(
    "a leaky relu that is steeper below",
    r"node m_node \(LeakyRelu\): alpha is 1\.5; it must lie between 1\.5.*e-05 and 1",
)
def _steep() -> ModelProto:
    return model([node("LeakyRelu", "x", "m", alpha=1.5), *HEAD], {"w": W})


@case("a leaky relu that turns", r"node m_node \(LeakyRelu\): alpha is -0\.5; it must lie between 1\.5.*e-05 and 1")
def _turning() -> ModelProto:
    return model([node("LeakyRelu", "x", "m", alpha=-0.5), *HEAD], {"w": W})


@case("a hard sigmoid that falls", r"node m_node \(HardSigmoid\): alpha is nan; it must lie between 1\.5.*e-05 and 1")
def _falling() -> ModelProto:
    return model([node("HardSigmoid", "x", "m", alpha=float("nan")), *HEAD], {"w": W})


@case("a hard sigmoid far away", r"node m_node \(HardSigmoid\): beta is inf; it must lie between -65536 and 65536")
def _far() -> ModelProto:
    return model([node("HardSigmoid", "x", "m", beta=float("inf")), *HEAD], {"w": W})


@case("every image dropped", r"node m_node \(dagtrain\.StochasticDepth\): ratio is 1\.0; it must lie in \[0, 1\)")
def _() -> ModelProto:
    return model([node("StochasticDepth", "x", "m", domain="dagtrain", ratio=1.0), *HEAD], {"w": W})


@case("an elu with a jump", r"node m_node \(Elu\): alpha is 2\.0; it must lie above 0 and be at most 1")
def _() -> ModelProto:
    return model([node("Elu", "x", "m", alpha=2.0), *HEAD], {"w": W})


@case("a gelu in another way", r"node m_node \(Gelu\): approximate is 'sigmoid'; it must be none or tanh")
def _() -> ModelProto:
    return model([node("Gelu", "x", "m", approximate="sigmoid"), *HEAD], {"w": W}, opset=20)


@case("a swish of another slope", r"node m_node \(Swish\): alpha=2\.0 is not supported; export with alpha=1\.0")
def _() -> ModelProto:
    return model([node("Swish", "x", "m", alpha=2.0), *HEAD], {"w": W}, opset=24)


@case("a slope that is a list", r"node m_node \(HardSigmoid\): attribute alpha is of type FLOATS; .*")
def _list() -> ModelProto:
    return model([node("HardSigmoid", "x", "m", alpha=[0.5, 0.25]), *HEAD], {"w": W})


@case("bias of another size", r"node c_node \(Conv\): bias of shape \[4\] meets 3 channels; export again")
def _bias() -> ModelProto:
    nodes = [node("Conv", "x k b", "c"), node("Relu", "c", "r"), node("Conv", "r j", "s")]
    tail = [node("GlobalAveragePool", "s", "p"), node("Flatten", "p", "y")]
    norm = node("BatchNormalization", "x o o o o", "n")
    constants = {"k": KERNEL, "b": np.arange(4.0), "j": np.random.default_rng(44).standard_normal((2, 3, 1, 1))}
    nodes[0] = node("Conv", "n k b", "c")
    return model([norm, *nodes, *tail], {**constants, "o": np.ones(2)})


@pytest.mark.parametrize(("name", "spoil", "wanted"), CASES, ids=[name for name, _, _ in CASES])
def test_a_spoilt_model_is_refused_with_one_clear_message(name: str, spoil: Spoil, wanted: str, tmp_path: Path) -> None:
    text = message(save(spoil(), tmp_path))
    assert re.search(wanted, text, re.DOTALL), f"{name}: {text}"
    # a case says so where more than one problem is told
    if "\\n" not in wanted:
        assert re.fullmatch(wanted, text, re.DOTALL), f"{name}: {text}"


def test_all_problems_of_a_file_come_in_one_error(tmp_path: Path) -> None:
    spoilt = np.full((3, 72), np.nan)
    nodes = [node("Softsign", "x", "a"), node("Sin", "a", "m"), *HEAD]
    proto = model(nodes, {"w": spoilt}, ("N", 2, "H", 6), opset=8)
    lines = message(save(proto, tmp_path)).splitlines()
    assert lines[0] == ", 4 problems:"
    starts = ["  opset 8", "  weights w: 216 of 216", "  input x: has shape", "  uses operators that are not supported"]
    assert [line.startswith(start) for line, start in zip(lines[1:], starts, strict=True)] == [True] * 4


def test_operators_that_are_not_supported_hide_nothing_behind_them(tmp_path: Path) -> None:
    spoilt = W.copy()
    spoilt[0, 0] = np.nan
    nodes = [
        node("MaxPool", "x", "a", kernel_shape=[2, 2], dilations=[0, 2]),
        node("Sin", "x", "b"),
        # what follows from an operator that is not supported, its shape among it, reports nothing
        node("Shape", "b", "size"),
        node("Reshape", "b size", "r"),
        node("Clip", "x low", "c"),
        node("Concat", "a r c", "m", axis=1),
        *HEAD,
    ]
    lines = message(save(model(nodes, {"w": spoilt, "low": np.float32(1)}), tmp_path)).splitlines()
    assert lines[0] == ", 4 problems:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "weights w",
        "node a_node (MaxPool)",
        "node c_node (Clip)",
        "uses operators that are not supported",
    ]


def test_what_follows_from_an_operator_that_is_not_supported_is_looked_at_by_its_shape(tmp_path: Path) -> None:
    nodes = [
        node("Sin", "x", "a"),
        node("Clip", "a low", "b"),
        node("Softplus", "b", "d"),
        node("Conv", "d k", "e", group=2),
        # what fits as far as is known says nothing
        node("Add", "d a", "f"),
        node("GlobalAveragePool", "f", "p"),
        node("GlobalAveragePool", "e", "q"),
        node("Concat", "p q", "g", axis=1),
        node("LeakyRelu", "g", "l", alpha=2.0),
        node("Flatten", "l", "flat"),
        node("Clip", "flat low", "h"),
        node("Gemm", "h v", "y", transB=1),
    ]
    constants = {"k": KERNEL, "v": np.ones((3, 5)), "low": np.float32(1)}
    lines = message(save(model(nodes, constants), tmp_path)).splitlines()
    assert [line.split(";")[0].strip() for line in lines[1:]] == [
        "node b_node (Clip): clips at min=1.0",
        "node e_node (Conv): weights of shape [3, 2, 3, 3] meet 2 channels in 2 groups",
        "node l_node (LeakyRelu): alpha is 2.0",
        "node h_node (Clip): clips at min=1.0",
        "uses operators that are not supported: Sin (1, first at a_node), Softplus (1, first at d_node)",
    ]


def test_what_is_wrong_whatever_the_size_of_the_image_is_told_beside_a_size_that_is_not_known(tmp_path: Path) -> None:
    nodes = [
        node("Clip", "x low", "a"),
        node("Pad", "a pads", "b", mode="reflect"),
        node("Conv", "b k", "c"),
        # these depend on the size: nobody knows whether they are wrong
        node("AveragePool", "c", "d", kernel_shape=[4, 4]),
        node("Flatten", "d", "flat"),
        node("Gemm", "flat w", "y", transB=1),
    ]
    constants = {"low": np.float32(-1), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "k": KERNEL, "w": np.ones((3, 12))}
    lines = message(save(model(nodes, constants, ("N", 2, "H", "W")), tmp_path)).splitlines()
    assert [line.split(";")[0].strip() for line in lines[1:]] == [
        "input x: has shape [N, 2, H, W] with dynamic height, width",
        "node a_node (Clip): clips at min=-1.0",
        "node b_node (Pad): pads in mode reflect",
    ]


def test_a_second_input_hides_nothing_but_what_reads_it(tmp_path: Path) -> None:
    nodes = [node("Clip", "x low", "a"), node("Add", "a z", "m"), *HEAD]
    proto = model(nodes, {"w": W, "low": np.float32(-1)})
    proto.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 2, 6, 6]))
    lines = message(save(proto, tmp_path)).splitlines()
    assert [line.split(";")[0].strip() for line in lines[1:]] == [
        "has 2 inputs (x, z)",
        "node a_node (Clip): clips at min=-1.0",
    ]


def test_what_does_not_lead_to_the_class_scores_reports_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "m"),
        node("Tanh", "m", "dead"),
        node("Conv", "dead k", "end", dilations=[0, 2], pads=[1]),
        *HEAD,
    ]
    imported = import_with_notes(save(model(nodes, {"w": W, "k": np.full((2, 2, 3, 3), np.nan)}), tmp_path))
    assert len(imported.graph.nodes) == 4
    assert imported.notes == (
        "2 nodes that do not lead to the output y were dropped: node dead_node (Tanh), node end_node (Conv)",
    )


def test_a_damaged_node_hides_only_what_follows_from_it(tmp_path: Path) -> None:
    nodes = [
        node("Clip", "x low", "a"),
        helper.make_node("Conv", ["a"], ["b"], name="b_node"),
        node("MaxPool", "b", "c", kernel_shape=[2, 2], dilations=[0, 2]),
        node("LeakyRelu", "x", "d", alpha=1.5),
        node("Add", "c d", "m"),
        *HEAD,
    ]
    lines = message(save(model(nodes, {"w": W, "low": np.float32(1)}), tmp_path)).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "node b_node (Conv)",
        "node a_node (Clip)",
        "node d_node (LeakyRelu)",
    ]


def test_random_numbers_are_not_cured_by_fixed_shapes(tmp_path: Path) -> None:
    nodes = [node("RandomNormal", "", "r", shape=[2, 2, 6, 6]), node("Add", "x r", "m"), *HEAD]
    wanted = "node r_node (RandomNormal): draws random numbers; only dropout and stochastic depth may draw: "
    assert message(save(model(nodes, {"w": W}), tmp_path)) == wanted + "export in evaluation mode"


def test_problems_of_several_nodes_come_in_one_error_without_those_that_follow_from_them(tmp_path: Path) -> None:
    nodes = [
        node("Clip", "x low", "a"),
        node("MaxPool", "a", "b", kernel_shape=[2, 2]),
        node("MaxPool", "x", "c", kernel_shape=[2, 2], dilations=[0, 2]),
        node("Add", "b c", "m"),
        *HEAD,
    ]
    lines = message(save(model(nodes, {"w": W, "low": np.float32(1)}), tmp_path)).splitlines()
    assert lines[0] == ", 2 problems:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["node a_node (Clip)", "node c_node (MaxPool)"]


# ---- skeletons


def test_a_filled_skeleton_is_the_same_every_time_and_has_the_recipes_statistics() -> None:
    bare = load_skeleton(MODELS / "resnet18-dynamo-eval.skeleton.gz")
    assert is_skeleton(bare)
    full = fill(bare)
    assert not is_skeleton(full)
    assert full.SerializeToString(deterministic=True) == fill(bare).SerializeToString(deterministic=True)
    kernel = next(item for item in full.graph.initializer if item.name == "layer4.1.conv2.weight")
    assert onnx.numpy_helper.to_array(kernel).std() == pytest.approx(np.sqrt(2 / (512 * 9)), rel=0.3)
    again = strip(full)
    assert [item.dims for item in again.graph.initializer] == [item.dims for item in bare.graph.initializer]


def test_a_skeleton_survives_its_file(tmp_path: Path) -> None:
    bare = strip(example("resnet18-torchscript-eval"))
    save_skeleton(bare, tmp_path / "a.gz")
    save_skeleton(bare, tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert load_skeleton(tmp_path / "a.gz") == bare


@pytest.mark.parametrize(
    "data",
    # a time in the gzip header would name the test anew every second
    [b"", b"no gzip", gzip.compress(b"\xff\xff no protocol buffer", mtime=0)],
    ids=["empty", "not-gzip", "no-message-inside"],
)
def test_a_damaged_skeleton_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.skeleton.gz"
    path.write_bytes(data)
    with pytest.raises(ImportProblem, match=r"is no skeleton of a model: .*; make it with export_models.py"):
        load_skeleton(path)
