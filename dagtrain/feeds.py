"""What a graph's host inputs are fed with: frames and labels, of a data set or made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dagtrain.data import Dataset
from dagtrain.ir import Graph
from hdl.tensor import Kind


def host_inputs(graph: Graph) -> tuple[str, str]:
    """Names of the image input and the label input of a graph."""
    inputs = [node for node in graph.nodes if not node.layer.sinks]
    images = next(node.name for node in inputs if node.layer.sources[0].tensor.kind is not Kind.STASH)
    labels = next(node.name for node in inputs if node.layer.sources[0].tensor.kind is Kind.STASH)
    return images, labels


def feeds_of(graph: Graph, dataset: Dataset, index: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """What `Executor.step` takes, for the images at ``index``."""
    images, labels = host_inputs(graph)
    chosen = dataset.take(index)
    return {images: chosen.frames, labels: chosen.labels.reshape(-1, 1, 1, 1)}


def synthetic_feeds(graph: Graph, frames: int, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Frames of unit variance with random labels, for models that come without data."""
    images, labels = host_inputs(graph)
    rng = np.random.default_rng(seed)
    shape = graph.by_name[images].layer.sources[0].tensor.shape
    loss = next(node for node in graph.nodes if labels in _producers(graph, node.name))
    classes = loss.layer.sinks[0].tensor.shape[-1]
    return {
        images: rng.standard_normal((frames, *shape)),
        labels: rng.integers(0, classes, (frames, 1, 1, 1)),
    }


def _producers(graph: Graph, name: str) -> set[str]:
    return {graph.producers[edge][0].name for edge in graph.by_name[name].inputs.values()}
