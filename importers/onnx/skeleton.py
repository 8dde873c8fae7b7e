"""Models without their weights: files of a few kilobytes from which deterministic weights are made again.

`strip` takes the values out of every float initialiser of more than `KEPT` elements and leaves a recipe for them in the
tensor's metadata: mean, standard deviation, least and greatest value.  `fill` draws normal numbers from that recipe,
seeded by the tensor's name, so that the same skeleton always gives the same model.  Structure, names, attributes and
small constants stay as the exporter wrote them; source locations are dropped.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto, numpy_helper

from hdl.errors import ImportProblem

# elements up to which a tensor keeps its values
KEPT = 8
KEY = "dagtrain.weights"
SEED = 20261121
FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16}


def is_skeleton(model: ModelProto) -> bool:
    """Whether weights are missing."""
    return any(_recipe(tensor) is not None for tensor in model.graph.initializer)


def strip(model: ModelProto) -> ModelProto:
    """A copy without weights; weights must not be external."""
    bare = ModelProto()
    bare.CopyFrom(model)
    for tensor in bare.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if tensor.data_type not in FLOATS or value.size <= KEPT:
            continue
        recipe = {
            "mean": round(float(value.mean()), 7),
            "deviation": round(float(value.std()), 7),
            "low": round(float(value.min()), 7),
            "high": round(float(value.max()), 7),
        }
        for part in ("raw_data", "float_data", "double_data", "int32_data"):
            tensor.ClearField(part)
        del tensor.metadata_props[:]
        tensor.metadata_props.add(key=KEY, value=json.dumps(recipe))
    _drop_locations(bare)
    return bare


def _drop_locations(model: ModelProto) -> None:
    """Take out what speaks of the exporter's source code."""
    graph = model.graph
    del model.metadata_props[:], graph.metadata_props[:]
    graph.doc_string = model.doc_string = ""
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output):
        item.doc_string = ""
        del item.metadata_props[:]


def fill(model: ModelProto, drawn: int | None = None) -> ModelProto:
    """A copy with weights drawn by the recipes in its metadata; with ``drawn``, so many of a tensor, again and again,
    which is quick where values do not matter."""
    full = ModelProto()
    full.CopyFrom(model)
    for tensor in full.graph.initializer:
        recipe = _recipe(tensor)
        if recipe is None:
            continue
        rng = np.random.default_rng([SEED, zlib.crc32(tensor.name.encode())])
        dims = tuple(tensor.dims)
        size = math.prod(dims)
        value = rng.normal(recipe["mean"], recipe["deviation"], dims if drawn is None else min(size, drawn))
        # gathered values stay in the range of the original: variances must be positive
        value = np.clip(value, recipe["low"], recipe["high"])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        whole = np.resize(value.astype(dtype), dims)
        tensor.CopyFrom(numpy_helper.from_array(whole, tensor.name))
    return full


def _recipe(tensor: TensorProto) -> dict[str, float] | None:
    text = next((item.value for item in tensor.metadata_props if item.key == KEY), None)
    return None if text is None else json.loads(text)


def save_skeleton(model: ModelProto, path: Path) -> None:
    """Write a stripped model, compressed; the same model gives the same bytes."""
    path.write_bytes(gzip.compress(model.SerializeToString(deterministic=True), mtime=0))


def load_skeleton(path: Path) -> ModelProto:
    """Inverse of `save_skeleton`."""
    model = ModelProto()
    reason = "it holds no graph"
    try:
        model.ParseFromString(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, DecodeError) as error:
        reason = str(error)
    if not model.graph.node:
        raise ImportProblem(f"{path} is no skeleton of a model: {reason}", "make it with export_models.py")
    return model
