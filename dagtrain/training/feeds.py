"""What a graph's host inputs are fed with: frames and labels, of a data set or made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dagtrain.graph.heads import main_loss
from dagtrain.graph.ir import Graph, GraphError
from dagtrain.training.data import DataError, Dataset, Draw
from hdl.errors import Problem
from hdl.tensor import Kind


def host_ports(graph: Graph) -> tuple[str, str, str]:
    """Names of the image input, the label input and the output of a graph; `GraphError` unless it has one of each."""
    inputs = [node for node in graph.nodes if not node.layer.sinks]
    images = [node.name for node in inputs if node.layer.sources[0].tensor.kind is Kind.ACTIVATION]
    labels = [node.name for node in inputs if node.layer.sources[0].tensor.kind is Kind.STASH]
    outputs = [node.name for node in graph.nodes if not node.layer.sources]
    if (len(images), len(labels), len(outputs)) != (1, 1, 1):
        raise GraphError(
            f"graph {graph.name} has image inputs {images}, label inputs {labels} and outputs {outputs}",
            "training needs one of each",
        )
    return images[0], labels[0], outputs[0]


def host_inputs(graph: Graph) -> tuple[str, str]:
    """Names of the image input and the label input of a graph."""
    return host_ports(graph)[:2]


def feeds_of(
    graph: Graph, dataset: Dataset, index: npt.NDArray[np.int64], draw: Draw | None = None
) -> dict[str, npt.NDArray[Any]]:
    """What `Executor.step` takes, for the images at ``index``; ``draw``: augmented by that."""
    images, labels = host_inputs(graph)
    return {images: dataset.frames(index, draw), labels: dataset.classes(index).reshape(-1, 1, 1, 1)}


def check_dataset(graph: Graph, dataset: Dataset, source: str) -> Dataset:
    """The data set with frames of the graph's shape, if its labels are of the graph's classes; else `DataError` naming
    ``source``."""
    images, _labels = host_inputs(graph)
    height, width, channels = graph.by_name[images].layer.sources[0].tensor.shape
    problems: list[Problem | str] = []
    try:
        dataset = dataset.fitted((height, width, channels))
    except DataError as error:
        problems += error.problems
    count = classes(graph)
    if dataset.labels.max() >= count:
        problems.append(
            Problem(
                f"its labels go up to {dataset.labels.max()}, the model tells {count} classes, 0 to {count - 1}",
                "give other data",
            )
        )
    if problems:
        raise DataError.listing(f"data {source} does not fit {graph.name}", problems)
    return dataset


def classes(graph: Graph) -> int:
    """Classes that the graph's loss tells apart."""
    return main_loss(graph).layer.sinks[0].tensor.shape[-1]


def synthetic_feeds(graph: Graph, frames: int, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Frames of unit variance with random labels, for models that come without data."""
    images, labels = host_inputs(graph)
    rng = np.random.default_rng(seed)
    shape = graph.by_name[images].layer.sources[0].tensor.shape
    return {
        images: rng.standard_normal((frames, *shape)),
        labels: rng.integers(0, classes(graph), (frames, 1, 1, 1)),
    }
