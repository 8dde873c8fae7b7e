"""What is read from files, held against the type that it should have: all problems at once, in a file's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from hdl.errors import DagtrainError

T = TypeVar("T")

# pydantic's reader of a type, made once
adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
# of a type that is read: a key that it does not have is an error
exact = with_config(ConfigDict(extra="forbid"))
# characters of a wrong value that a message shows
SHOWN = 60
# problems of one file that a message lists
LISTED = 20


def parse_json(text: str) -> Any:
    """The document of a JSON text.

    Raises `ValueError` where there is none, also of brackets without end, and of texts that UTF-8 can't write."""
    try:
        document = json.loads(text)
        if "\\ud" in text.lower():
            # a surrogate, which belongs beside another
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("values are nested too deep") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"a text holds {error.object[error.start]!a}, half of a character") from None
    return document


def misfits(kind: Any, value: Any) -> list[str]:
    """Each place of a JSON document that is not as ``kind``, a type of plain data, says: place, value, complaint."""
    try:
        adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        return listed(error)
    return []


def read_record(text: str, what: str, schema: int, kind: type[T], cure: str) -> T:
    """The dataclass that a JSON text holds, whose key ``schema`` is this version's number.

    Raises:
        DagtrainError: with ``what`` it is, every place that is wrong, and ``cure``.
    """
    try:
        record = parse_json(text)
    except ValueError as error:
        raise DagtrainError(f"{what} cannot be read: {error}", cure) from error
    if not isinstance(record, dict):
        raise DagtrainError(f"{what} cannot be read: no JSON object", cure)
    found = record.pop("schema", None)
    if found != schema:
        raise DagtrainError(f"{what} has schema {shown(found)}, this version reads {schema}", cure)
    try:
        read: T = adapter(kind).validate_python(record)
        return read
    except ValidationError as error:
        raise DagtrainError.listing(f"{what} cannot be read", first(listed(error)), cure) from error


def listed(error: ValidationError, root: str = "") -> list[str]:
    """What pydantic found, a line a place; ``root`` is the place of the whole value in its file."""
    return [_problem(entry, root) for entry in error.errors(include_url=False)]


def first(problems: Sequence[str]) -> list[str]:
    """As many problems as a message lists, the last of them with how many more there are."""
    shown_problems = list(problems[:LISTED])
    if len(problems) > LISTED:
        shown_problems[-1] += f" and {len(problems) - LISTED} more"
    return shown_problems


def key_path(location: Sequence[Any], root: str = "") -> str:
    """``("nodes", 3, "name")`` as ``nodes[3].name``."""
    path = root
    for key in location:
        path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else str(key)
    return path


def shown(value: object) -> str:
    """A value as a message shows it, cut."""
    text = ascii(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _problem(entry: Mapping[str, Any], root: str) -> str:
    path = key_path(entry["loc"], root) or "the document"
    if entry["type"] == "missing":
        return f"{path} is missing"
    if entry["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{path} = {shown(entry['input'])}: unknown key"
    message = str(entry["msg"]).removeprefix("Value error, ")
    return f"{path} = {shown(entry['input'])}: {message[0].lower()}{message[1:]}"
