"""From a path to protocol buffers: reading, external weights, local functions.  Nothing is judged but the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto, external_data_helper, inliner

from hdl.errors import ImportProblem
from importers.onnx.problems import Problems
from importers.onnx.skeleton import is_skeleton

# first bytes of files that people take for ONNX: what they are, and the cure
FOREIGN = {
    b"PK": ("a ZIP archive, perhaps a PyTorch checkpoint", "export it with torch.onnx.export"),
    b"\x89HDF": ("an HDF5 file, perhaps a Keras model", "convert it with tf2onnx"),
    b"\x1f\x8b": ("gzip-compressed", "unpack it first"),
    b"version https://git-lfs": ("a Git LFS pointer", "fetch the file itself with `git lfs pull`"),
    b"<": ("an HTML or XML page, perhaps a download that failed", "download it again"),
}
AGAIN = "export or download it again"


def load_proto(path: Path) -> ModelProto:
    """The model of a file with all weights inside it and all local functions inlined; `ImportProblem` else."""
    problems = Problems(str(path))
    model = _parse_file(path, problems)
    problems.raise_if_any()
    if is_skeleton(model):
        problems.add("", "holds the structure of a model without its weights", "fill it with examples/models/fill.py")
    _load_external(model, path.parent, problems)
    problems.raise_if_any()
    return _inline(model, path)


def external_files(path: Path) -> list[Path]:
    """Files beside a model that hold weights of it, whether they are there or not; none for what is no model."""
    problems = Problems(str(path))
    data = _read(path, problems)
    # the key of each such entry; a model of hundreds of megabytes is not parsed for none
    if b"location" not in data:
        return []
    model = _parse(data, problems)
    return sorted({path.parent / location for location in map(_location, _tensors(model.graph)) if location})


def _parse_file(path: Path, problems: Problems) -> ModelProto:
    data = _read(path, problems)
    return ModelProto() if list(problems) else _parse(data, problems)


def _location(tensor: TensorProto) -> str:
    """The file of a tensor's data; "" where they are inside."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return ""
    return next((str(entry.value) for entry in tensor.external_data if entry.key == "location"), "")


def _read(path: Path, problems: Problems) -> bytes:
    if path.is_dir():
        problems.add("", "it is a folder", "give the path of an ONNX file")
        return b""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        problems.add("", "it does not exist", "give the path of an ONNX file")
        return b""
    except OSError as error:
        problems.add("", f"it can't be read ({error.strerror})", "make it readable")
        return b""
    if not data:
        problems.add("", "it is empty", AGAIN)
    return data


def _parse(data: bytes, problems: Problems) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
        is_model = bool(model.ir_version) and model.HasField("graph")
    except DecodeError:
        is_model = False
    if not is_model:
        no_model = (f"it is no ONNX model, or a truncated one of {len(data)} bytes", AGAIN)
        foreign = (("it is " + what, cure) for start, (what, cure) in FOREIGN.items() if data.startswith(start))
        problems.add("", *next(foreign, no_model))
    elif not model.graph.node:
        problems.add("", "its graph has no nodes", AGAIN)
    else:
        for where, text in _not_text(model, "model"):
            problems.add("", f"{where} is {text!r}, which is not UTF-8", AGAIN)
    return model


def _not_text(message: Any, where: str) -> Iterator[tuple[str, bytes]]:
    """Names and other texts that are none, which protobuf leaves as bytes: (where, what)."""
    if isinstance(message, TensorProto):
        # listing its fields would copy the weights
        for name in ("name", "doc_string"):
            if isinstance(getattr(message, name), bytes):
                yield f"{name} of {where}", getattr(message, name)
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            texts = [value] if isinstance(value, str | bytes) else value
            yield from ((f"{field.name} of {where}", text) for text in texts if isinstance(text, bytes))
        elif field.type == field.TYPE_MESSAGE:
            if isinstance(value, Message):
                yield from _not_text(value, field.name)
            else:
                for index, part in enumerate(value):
                    yield from _not_text(part, f"{field.name} {index}")


def _load_external(model: ModelProto, folder: Path, problems: Problems) -> None:
    """Fetch weights that stand in files beside the model."""
    for tensor in _tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        where = f"weights {tensor.name}"
        location = _location(tensor)
        try:
            external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            problems.add(where, f"their data file {location!r} can't be read ({reason})", "put it beside the model")
            continue
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _tensors(graph: GraphProto) -> list[TensorProto]:
    attributes = [item.t for node in graph.node for item in node.attribute if item.HasField("t")]
    return [*graph.initializer, *attributes]


def _inline(model: ModelProto, path: Path) -> ModelProto:
    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise ImportProblem(
            f"{path} can't be imported: its local functions can't be inlined ({error})", "export it without functions"
        ) from error
