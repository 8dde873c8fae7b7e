"""Graphs in files: the structure as readable JSON, the parameters beside it as ``.npz``.

Files are whole or not there (`dagtrain.files`), so an interrupted step leaves the earlier ones intact.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from dagtrain.files import write_bytes, write_text
from dagtrain.graph.ir import Graph, Node
from hdl.errors import DagtrainError
from hdl.layers.base import Layer
from hdl.layers.capabilities import Batched
from hdl.layers.registry import load_layers
from hdl.recipe import Recipe

T = TypeVar("T")

# raised whenever the meaning of the file changes
GRAPH_SCHEMA = 1


class StorageError(DagtrainError):
    """A file that can't be read; the message says which and why."""


def save_graph(graph: Graph, path: Path) -> None:
    """Write ``path`` (JSON) and ``path`` with the suffix ``.npz`` (initial parameters)."""
    arrays = {f"p{index}": value for index, value in enumerate(graph.parameters.values())}
    save_arrays(path.with_suffix(".npz"), arrays)
    write_text(path, json.dumps(graph_to_json(graph), indent=1) + "\n")


def load_graph(path: Path) -> Graph:
    """Inverse of `save_graph`; raises `StorageError` on a missing, damaged or foreign file."""
    document = load_json(path, GRAPH_SCHEMA, "dagtrain graph")
    arrays = load_arrays(path.with_suffix(".npz"))
    keys = document.get("parameters", [])
    if len(keys) != len(arrays):
        raise StorageError(
            f"{path} names {len(keys)} parameters, {path.with_suffix('.npz')} holds {len(arrays)}: they were not "
            "written together; make both again"
        )
    parameters = {key: arrays[f"p{index}"] for index, key in enumerate(keys)}
    return dataclasses.replace(graph_from_json(document, str(path)), parameters=parameters)


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """The graph without the values of its parameters.  A layer's recipe is left out where it is the graph's."""
    return {
        "format": "dagtrain graph",
        "schema": GRAPH_SCHEMA,
        "name": graph.name,
        "recipe": _adapter(Recipe).dump_python(graph.recipe, mode="json"),
        "parameters": list(graph.parameters),
        "nodes": [_node_to_json(node, graph.recipe) for node in graph.nodes],
    }


def graph_from_json(document: Mapping[str, Any], where: str = "the graph") -> Graph:
    """Inverse of `graph_to_json`, parameters aside; ``where`` names the document in errors."""
    try:
        recipe = _build(Recipe, document["recipe"], f"{where}: recipe")
        nodes = tuple(_node_from_json(item, recipe, where) for item in document["nodes"])
        return Graph(document["name"], nodes, recipe)
    except KeyError as error:
        raise StorageError(f"{where} has no field {error}; make it again") from None


def layer_to_json(layer: Layer) -> dict[str, Any]:
    """Kind and settings of a layer."""
    return {"layer": type(layer).__name__, "settings": _adapter(type(layer)).dump_python(layer, mode="json")}


def layer_from_json(item: Mapping[str, Any], where: str) -> Layer:
    """Inverse of `layer_to_json`; ``where`` names the layer in errors."""
    kind = load_layers().get(item["layer"])
    if kind is None:
        raise StorageError(f"{where} is of the unknown layer {item['layer']}; make the file again")
    return _build(kind, item["settings"], where)


def _node_to_json(node: Node, recipe: Recipe) -> dict[str, Any]:
    item = layer_to_json(node.layer)
    if isinstance(node.layer, Batched) and node.layer.recipe == recipe:
        del item["settings"]["recipe"]
    return {
        "name": node.name,
        **item,
        "inputs": dict(node.inputs),
        "outputs": dict(node.outputs),
        "parameters": dict(node.parameters),
    }


def _node_from_json(item: Mapping[str, Any], recipe: Recipe, where: str) -> Node:
    settings, kind = dict(item["settings"]), load_layers().get(item["layer"])
    if kind and any(field.name == "recipe" for field in dataclasses.fields(kind)):  # type: ignore[arg-type]
        settings.setdefault("recipe", recipe)
    layer = layer_from_json({**item, "settings": settings}, f"{where}: node {item['name']}")
    return Node(item["name"], layer, dict(item["inputs"]), dict(item["outputs"]), dict(item["parameters"]))


_adapters: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def _build(kind: type[T], settings: Mapping[str, Any], where: str) -> T:
    """A dataclass from its fields; missing and unknown ones are errors."""
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    foreign = sorted(settings.keys() ^ known)
    if foreign:
        raise StorageError(
            f"{where}: fields of {kind.__name__} differ from this version's ({', '.join(foreign)}); make the file again"
        )
    try:
        made: T = _adapter(kind).validate_python(settings)
        return made
    except ValidationError as error:
        raise StorageError(f"{where}: {error}") from None


# ---- files ----------------------------------------------------------------------------------------------


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an ``.npz`` in one step; the same arrays give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, value in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(value), allow_pickle=False)
    write_bytes(path, buffer.getvalue())


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an ``.npz``."""

    def read() -> dict[str, npt.NDArray[Any]]:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    return _reading(path, read)


def load_json(path: Path, schema: int, what: str) -> dict[str, Any]:
    """A JSON document whose ``format`` is ``what`` and whose ``schema`` is this version's."""
    document: Any = _reading(path, lambda: json.loads(path.read_text()))
    if not isinstance(document, dict) or document.get("format") != what:
        raise StorageError(f"{path} is not a {what}; give the right file or make it again")
    if document.get("schema") != schema:
        raise StorageError(
            f"{path} has schema {document.get('schema')}, this version reads schema {schema}; make the file again"
        )
    return document


def _reading(path: Path, read: Callable[[], T]) -> T:
    """What ``read`` gives; every way in which a file can be bad becomes a `StorageError`."""
    try:
        return read()
    except FileNotFoundError:
        raise StorageError(f"{path} does not exist; run the step that makes it first") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise StorageError(f"{path} can't be read: {error}; make it again") from None
