"""Views in other words: all elements in one row, then picked one after another into another shape (`as_strided`)."""

from __future__ import annotations

import math

import numpy as np

from importers.onnx.idioms.idiom import Idiom, Rewrite, in_place
from importers.onnx.idioms.pattern import Constant, Op, Scene, Tensor, first_match
from importers.onnx.model import OnnxNode

PICKED = Op("Gather", Op("Reshape", Tensor("x"), Constant(), name="row"), Constant("places"))


def _in_order(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """Gather of every element of a row in its order is a Reshape to the shape of the places."""
    found = first_match(PICKED, node.outputs[0], scene)
    row = scene.shape(found["row"]) if found is not None else None
    places = scene.constant(found["places"]) if found is not None else None
    if found is None or row is None or places is None or len(row) != 1 or node.attributes.get("axis", 0) != 0:
        return None
    if places.size != math.prod(row) or not np.array_equal(places.reshape(-1) % row[0], np.arange(row[0])):
        return None
    target = f"{node.name}//shape"
    return Rewrite((in_place(node, "Reshape", found["x"], target),), {target: np.array(places.shape)})


VIEWS = (Idiom("a view by Gather", ("Gather",), _in_order),)
