"""Kernel, stride and padding of operators that slide a window over a map."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdl.layers.window import Kernel
from hdl.layers.windowed import Windowed
from importers.onnx.problems import Unsupported

if TYPE_CHECKING:
    from importers.onnx.context import Attributes
# more can only be a mistake, and would take memory before anybody else sees it
LARGEST_PAD = 1 << 12


def read_window(attributes: Attributes, size: tuple[int, int], kernel: tuple[int, ...] | None) -> Kernel:
    """The window over a map of ``size`` (height, width); ``kernel`` is that of the weights if there are any."""
    given = attributes.get("kernel_shape", None)
    shape = tuple(given) if given is not None else kernel
    if shape is None or len(shape) != 2:
        raise Unsupported(f"kernel_shape is {given}", "export with a kernel of (height, width)")
    if kernel is not None and shape != tuple(kernel):
        raise Unsupported(f"kernel_shape {list(shape)} differs from the weights' {list(kernel)}", "export again")
    dilations = attributes.get("dilations", [1, 1])
    if len(dilations) != 2 or min(dilations) < 1:
        raise Unsupported(f"dilations {dilations} are not supported", "export with two positive dilations")
    strides = attributes.get("strides", [1, 1])
    if len(strides) != 2 or min(strides) < 1:
        raise Unsupported(f"strides {strides} are not supported", "export with two positive strides")
    pads = attributes.get("pads", [0, 0, 0, 0])
    if len(pads) != 4 or not all(0 <= pad <= LARGEST_PAD for pad in pads):
        raise Unsupported(f"pads {pads} are not supported", f"export with four pads from 0 to {LARGEST_PAD}")
    stride = (int(strides[0]), int(strides[1]))
    window = Kernel((int(shape[0]), int(shape[1])), stride, (0, 0, 0, 0), (int(dilations[0]), int(dilations[1])))
    automatic = attributes.get("auto_pad", "NOTSET") or "NOTSET"
    return replace(window, padding=_padding(automatic, pads, size, window.extent, stride))


def _padding(
    automatic: str, pads: list[int], size: tuple[int, int], extent: tuple[int, int], stride: tuple[int, int]
) -> tuple[int, int, int, int]:
    if automatic == "NOTSET":
        return (int(pads[0]), int(pads[1]), int(pads[2]), int(pads[3]))
    if automatic == "VALID":
        return (0, 0, 0, 0)
    if automatic not in ("SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"auto_pad={automatic} is unknown", "use NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    before, after = [], []
    for axis in range(2):
        outputs = -(-size[axis] // stride[axis])
        total = max(0, (outputs - 1) * stride[axis] + extent[axis] - size[axis])
        small, large = total // 2, total - total // 2
        before.append(small if automatic == "SAME_UPPER" else large)
        after.append(large if automatic == "SAME_UPPER" else small)
    return (before[0], before[1], after[0], after[1])


def rounded_up(spec: Kernel, size: tuple[int, int]) -> Kernel:
    """The window with so much more padding at the ends that rounding down gives what ``ceil_mode`` gives."""
    ends = []
    for axis in range(2):
        start, end = spec.padding[axis], spec.padding[axis + 2]
        reach = size[axis] + start + end - spec.extent[axis]
        last = -(-reach // spec.stride[axis])
        if last * spec.stride[axis] >= size[axis] + start:
            last -= 1
        ends.append(max(end, last * spec.stride[axis] + spec.extent[axis] - size[axis] - start))
    return replace(spec, padding=(spec.padding[0], spec.padding[1], ends[0], ends[1]))


def write_window(layer: Windowed) -> dict[str, Any]:
    """The attributes of an operator that slides this layer's window."""
    window = {"kernel_shape": layer.kernel, "strides": layer.stride, "pads": layer.padding}
    if layer.dilation != (1, 1):
        window["dilations"] = layer.dilation
    return {name: list(sizes) for name, sizes in window.items()}
