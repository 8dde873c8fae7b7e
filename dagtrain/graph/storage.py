"""Graphs in files: the structure as readable JSON, the parameters beside it as ``.npz``.

Files are whole or not there (`dagtrain.files`), so an interrupted step leaves the earlier ones intact.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from typing_extensions import TypedDict

from dagtrain.files import open_archive, replaced_file, uninterrupted, write_text
from dagtrain.graph.ir import Graph, GraphError, Node, Role, Stage, verify
from hdl.errors import DagtrainError, Problem
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.layers.capabilities import Batched
from hdl.layers.registry import load_layers
from hdl.recipe import Recipe
from hdl.records import adapter, exact, first, listed, misfits, parse_json, shown

T = TypeVar("T")

# raised whenever the meaning of the file changes
GRAPH_SCHEMA = 3
# the greatest whole number among a layer's settings: identifiers are 32 bits wide
LARGEST_SETTING = (1 << 32) - 1


@exact
class NodeRecord(TypedDict):
    """A node in a file; ``settings`` are the fields of its layer, without its recipe where that is the graph's."""

    name: str
    layer: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    outputs: dict[str, str]
    parameters: dict[str, str]
    role: str
    layer_of: str
    whole: str


@exact
class GraphRecord(TypedDict):
    """A graph in a file, parameters by name, names of what is carried by node."""

    format: str
    schema: int
    name: str
    recipe: dict[str, Any]
    parameters: list[str]
    carried: dict[str, list[str]]
    nodes: list[NodeRecord]


class StorageError(DagtrainError):
    """A file that can't be read; the message says which and why."""


def save_graph(graph: Graph, path: Path) -> None:
    """Write ``path`` (JSON) and ``path`` with the suffix ``.npz`` (initial parameters, what is carried)."""
    carried = [value for kept in graph.carried.values() for value in kept.values()]
    arrays = {f"p{index}": value for index, value in enumerate(graph.parameters.values())}
    arrays |= {f"c{index}": value for index, value in enumerate(carried)}
    save_arrays(path.with_suffix(".npz"), arrays)
    write_text(path, json.dumps(graph_to_json(graph), indent=1) + "\n")


def load_graph(path: Path, stage: Stage = Stage.STREAMING) -> Graph:
    """Inverse of `save_graph`: a legal graph of ``stage`` whose parameters have the shapes that its layers want.

    Raises `StorageError` on a missing, damaged or foreign file, and on a graph that is not legal, with all breaches."""
    document = load_json(path, GRAPH_SCHEMA, "dagtrain graph")
    graph = graph_from_json(document, str(path))
    beside, keys = path.with_suffix(".npz"), document["parameters"]
    kept = [(node, name) for node, names in document["carried"].items() for name in names]
    arrays = load_arrays(beside)
    wanted = {f"{kind}{index}" for kind, items in (("p", keys), ("c", kept)) for index in range(len(items))}
    if arrays.keys() != wanted:
        raise StorageError(
            f"{path} names {len(wanted)} parameters, {beside} holds {len(arrays)}"
            f"{'' if len(wanted) != len(arrays) else ' of other names'}: they were not written together",
            "make both again",
        )
    carried: dict[str, dict[str, FloatArray]] = {}
    for index, (node, name) in enumerate(kept):
        carried.setdefault(node, {})[name] = arrays[f"c{index}"]
    parameters = {key: arrays[f"p{index}"] for index, key in enumerate(keys)}
    graph = dataclasses.replace(graph, parameters=parameters, carried=carried)
    try:
        verify(graph, stage)
    except GraphError as error:
        raise StorageError(f"{path}: {error}", "make the file again") from None
    problems = [f"{beside}: {problem}" for problem in _parameter_problems(graph)]
    if problems:
        raise StorageError.listing("", first(problems), "make the file again")
    return graph


def _parameter_problems(graph: Graph) -> Iterator[str]:
    """Initial values that are not finite numbers in the shape that the layers want."""
    kept = {f"{node}.{name}": value for node, values in graph.carried.items() for name, value in values.items()}
    for key, value in {**graph.parameters, **kept}.items():
        if value.dtype not in (np.float32, np.float64) or not np.isfinite(value).all():
            yield f"{key} holds {value.dtype}, not finite numbers of 32 or 64 bits"
    wanted = {key: node.layer.port(port).tensor.shape for node in graph.nodes for port, key in node.parameters.items()}
    for key, shape in wanted.items():
        if graph.parameters[key].shape != shape:
            yield f"{key} has shape {graph.parameters[key].shape}, not {shape}"
    for name, values in graph.carried.items():
        node = graph.by_name.get(name)
        known = {} if node is None else node.layer.carried(node.layer.start(_initial_weights(graph, node)))
        for what, value in values.items():
            if what not in known:
                yield f"{name} carries {what}, of which this graph knows nothing"
            elif value.shape != known[what].shape:
                yield f"{name}.{what} has shape {value.shape}, not {known[what].shape}"


def _initial_weights(graph: Graph, node: Node) -> dict[str, FloatArray]:
    return {port: graph.parameters[key] for port, key in node.parameters.items()}


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """The graph without the values of its parameters.  A layer's recipe is left out where it is the graph's."""
    return {
        "format": "dagtrain graph",
        "schema": GRAPH_SCHEMA,
        "name": graph.name,
        "recipe": adapter(Recipe).dump_python(graph.recipe, mode="json"),
        "parameters": list(graph.parameters),
        "carried": {node: list(kept) for node, kept in graph.carried.items()},
        "nodes": [_node_to_json(node, graph.recipe) for node in graph.nodes],
    }


def graph_from_json(document: Mapping[str, Any], where: str = "the graph") -> Graph:
    """Inverse of `graph_to_json`, parameters aside; ``where`` names the document in errors.

    Raises `StorageError` with everything that is not as `GraphRecord` and the layers say; what joins the nodes is
    checked by `dagtrain.graph.ir.verify`."""
    misfitting = misfits(GraphRecord, document)
    if misfitting:
        raise StorageError.listing(where, first(misfitting), "make the file again")
    recipe = _build(Recipe, document["recipe"], f"{where}: recipe")
    nodes: list[Node] = []
    problems: list[Problem] = []
    for item in document["nodes"]:
        try:
            nodes.append(_node_from_json(item, recipe, where))
        except StorageError as error:
            problems.append(Problem(error.what, error.cure))
    if problems:
        raise StorageError.listing("", problems)
    return Graph(document["name"], tuple(nodes), recipe)


def layer_to_json(layer: Layer) -> dict[str, Any]:
    """Kind and settings of a layer."""
    return {"layer": type(layer).__name__, "settings": adapter(type(layer)).dump_python(layer, mode="json")}


def layer_from_json(item: Mapping[str, Any], where: str) -> Layer:
    """Inverse of `layer_to_json`; ``where`` names the layer in errors."""
    kind = load_layers().get(item["layer"])
    if kind is None:
        raise StorageError(f"{where} is of the unknown layer {item['layer']}", "make the file again")
    problems = [
        f"{field.name} = {shown(value)}: not a whole number from {least} to {LARGEST_SETTING}"
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.type == "int"
        and (value := item["settings"].get(field.name)) is not None
        # identifiers, and lanes that follow from others, are 0 if nothing else is said
        and not _is_whole(value, least := int(field.default != 0))
    ]
    if problems:
        raise StorageError.listing(where, first(problems), "make the file again")
    layer = _build(kind, item["settings"], where)
    try:
        # ports check their lanes when they are made
        for port in (*layer.sinks, *layer.sources):
            assert port.lanes
    except ValueError as error:
        raise StorageError(f"{where}: {error}", "make the file again") from None
    return layer


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST_SETTING


def _node_to_json(node: Node, recipe: Recipe) -> dict[str, Any]:
    item = layer_to_json(node.layer)
    if isinstance(node.layer, Batched):
        if node.layer.recipe.loaded:
            raise ValueError(f"node {node.name} loads its state; graphs are stored before that is asked for")
        if node.layer.recipe == recipe:
            del item["settings"]["recipe"]
    return {
        "name": node.name,
        **item,
        "inputs": dict(node.inputs),
        "outputs": dict(node.outputs),
        "parameters": dict(node.parameters),
        "role": node.role.value,
        "layer_of": node.layer_of,
        "whole": node.whole,
    }


def _node_from_json(item: Mapping[str, Any], recipe: Recipe, where: str) -> Node:
    settings, kind = dict(item["settings"]), load_layers().get(item["layer"])
    if kind and any(field.name == "recipe" for field in dataclasses.fields(kind)):  # type: ignore[arg-type]
        settings.setdefault("recipe", recipe)
    layer = layer_from_json({**item, "settings": settings}, f"{where}: node {item['name']}")
    try:
        role = Role(item["role"])
    except ValueError:
        known = ", ".join(role.value for role in Role)
        what = f"{where}: node {item['name']} has the role {shown(item['role'])}, which is none of {known}"
        raise StorageError(what, "make the file again") from None
    edges = dict(item["inputs"]), dict(item["outputs"]), dict(item["parameters"])
    return Node(item["name"], layer, *edges, role, item["layer_of"], item["whole"])


def _build(kind: type[T], settings: Mapping[str, Any], where: str) -> T:
    """A dataclass from its fields; unknown ones are errors, and missing ones unless they came later (`QUIET`)."""
    known = {field.name: "quiet" in field.metadata for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    foreign = sorted(name for name in settings.keys() ^ known.keys() if not known.get(name, False))
    if foreign:
        raise StorageError(
            f"{where}: fields of {kind.__name__} differ from this version's ({', '.join(foreign)})",
            "make the file again",
        )
    try:
        made: T = adapter(kind).validate_python(settings)
        return made
    except ValidationError as error:
        raise StorageError.listing(where, first(listed(error)), "make the file again") from None
    except DagtrainError as error:
        raise StorageError(f"{where}: {error}", "make the file again") from None


# ---- files ----------------------------------------------------------------------------------------------


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an ``.npz`` in one step; the same arrays give the same bytes."""
    with replaced_file(path) as file, uninterrupted(), zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, value in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(value), allow_pickle=False)


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an ``.npz``."""

    def read() -> dict[str, npt.NDArray[Any]]:
        with open_archive(path) as file:
            return {name: file[name] for name in file.files}

    return _reading(path, read)


def load_json(path: Path, schema: int, what: str) -> dict[str, Any]:
    """A JSON document whose ``format`` is ``what`` and whose ``schema`` is this version's."""
    document: Any = _reading(path, lambda: parse_json(path.read_text()))
    if not isinstance(document, dict) or document.get("format") != what:
        raise StorageError(f"{path} is not a {what}", "give the right file or make it again")
    if document.get("schema") != schema:
        raise StorageError(
            f"{path} has schema {document.get('schema')}, this version reads schema {schema}", "make the file again"
        )
    return document


def _reading(path: Path, read: Callable[[], T]) -> T:
    """What ``read`` gives; every way in which a file can be bad becomes a `StorageError`."""
    try:
        return read()
    except FileNotFoundError:
        raise StorageError(f"{path} does not exist", "run the step that makes it first") from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} can't be read: {error}", "make it again") from None
