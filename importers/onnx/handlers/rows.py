"""What stands between parts of a layer by rows, on the way back: Slice and Concat."""

from __future__ import annotations

import numpy as np

from dagtrain.graph.ir import Node
from hdl.layers.wiring.row_deal import RowDeal
from hdl.layers.wiring.row_gather import RowGather
from importers.onnx.handlers.registry import writes
from importers.onnx.writing import Writing


@writes(RowDeal)
def write_row_deal(node: Node, state: Writing) -> None:
    """A slice of rows for each part."""
    layer = node.layer
    assert isinstance(layer, RowDeal)
    for part, (first, end) in enumerate(layer.ranges):
        if edge := node.outputs.get(f"y{part}"):
            bounds = [
                state.constant(node, f"{name}{part}", [value], np.int64)
                for name, value in (("first", first), ("end", end), ("axis", 2))
            ]
            state.add(node, "Slice", state.tensor(node), *bounds, outputs=[edge])


@writes(RowGather)
def write_row_gather(node: Node, state: Writing) -> None:
    """The rows of all parts, one below the other."""
    state.add(node, "Concat", axis=2)
