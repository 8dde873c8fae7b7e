"""Constants that meet a tensor of the network with one number a channel, or one for all."""

from __future__ import annotations

import numpy as np

from hdl.fixed import FloatArray
from importers.onnx.context import Value
from importers.onnx.problems import Unsupported


def per_channel(x: Value, constant: FloatArray) -> FloatArray:
    """The constant as (channels,); `Unsupported` where it is no such one."""
    _, _, channels = x.map
    # ONNX aligns shapes at their ends; the axis of channels is the second of the tensor
    sizes = (1,) * (len(x.shape) - constant.ndim) + constant.shape
    others = sizes[:1] + sizes[2:]
    if len(sizes) != len(x.shape) or x.shape[1] != channels or sizes[1] not in (1, channels) or set(others) != {1}:
        what = f"a constant of shape {list(constant.shape)} meets {list(x.shape)}"
        raise Unsupported(what, "only one number a channel is supported")
    return np.broadcast_to(constant.reshape(-1), (channels,)).copy()
