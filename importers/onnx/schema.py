"""Nodes against ONNX's own definition of their operator: numbers of inputs and outputs, attributes and their types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

DAMAGED = "the file is damaged or was made by hand: export it again"


def type_name(number: int) -> str:
    """The name of an element type, or its number."""
    try:
        return str(TensorProto.DataType.Name(number))
    except ValueError:
        return f"number {number}, which ONNX does not define"


def attribute_type(number: int) -> str:
    """The name of a type of attributes, or its number."""
    try:
        return str(AttributeProto.AttributeType.Name(number))
    except ValueError:
        return f"number {number}, which ONNX does not define"


def _number(known: Any) -> int:
    """The type of an attribute as the file writes it."""
    return int(known.type.value)


def schema_problems(item: NodeProto, opset: int) -> Iterator[tuple[str, str]]:
    """What is wrong with a node, and the cure.  Of operators that ONNX does not define nothing is known."""
    if item.domain not in ("", "ai.onnx"):
        return
    try:
        schema = onnx.defs.get_schema(item.op_type, opset)
    except onnx.defs.SchemaError:
        return
    yield from _counted(item, schema)
    for attribute in item.attribute:
        known = schema.attributes.get(attribute.name)
        if attribute.ref_attr_name:
            yield f"attribute {attribute.name} refers to one of a function, {attribute.ref_attr_name}", DAMAGED
        elif known is None:
            # the handler says so, in words of its own
            continue
        elif attribute.type != _number(known):
            wanted, found = attribute_type(_number(known)), attribute_type(attribute.type)
            yield f"attribute {attribute.name} is of type {found}; {item.op_type} takes {wanted}", DAMAGED
    given = {attribute.name for attribute in item.attribute}
    for name, known in schema.attributes.items():
        if known.required and name not in given:
            yield f"has no attribute {name}, without which {item.op_type} means nothing", DAMAGED


def _counted(item: NodeProto, schema: onnx.defs.OpSchema) -> Iterator[tuple[str, str]]:
    # what a later version made optional is read without it
    newest = onnx.defs.get_schema(item.op_type, onnx.defs.onnx_opset_version())
    for what, names, least, most in (
        ("inputs", item.input, min(schema.min_input, newest.min_input), schema.max_input),
        ("outputs", item.output, min(schema.min_output, newest.min_output), schema.max_output),
    ):
        if not least <= len(names) <= most:
            limits = str(least) if least == most else f"{least} or more" if most > 1000 else f"{least} to {most}"
            yield f"has {len(names)} {what}; {item.op_type} has {limits}", DAMAGED
        elif not all(names[:least]):
            yield f"leaves out one of its first {least} {what}, which {item.op_type} needs", DAMAGED
