"""What the tables of a cluster file are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hdl.errors import Problem


def _number(value: object) -> object:
    """Only TOML numbers are numbers: neither strings that look like one nor true and false."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("is not a number")
    return value


Number = Annotated[Decimal, BeforeValidator(_number)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", description="a name of letters, digits, _ and -")]


class Table(BaseModel):
    """A TOML table: unknown keys are errors, values are not changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def entries(raw: Mapping[str, Any], table: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The well-formed entries of an array of tables, whatever else is wrong with the file."""
    rows = raw.get(table, [])
    for index, row in enumerate(rows if isinstance(rows, list) else []):
        if isinstance(row, dict):
            yield index, row


def device_names(row: Mapping[str, Any]) -> list[str]:
    """Of a [[device]] as it stands in the file."""
    name, count = row.get("name"), row.get("count")
    if not isinstance(name, str):
        return []
    return [f"{name}-{k}" for k in range(count)] if isinstance(count, int) and 0 < count <= 10_000 else [name]


def repeated(what: str, names: list[tuple[str, Any]]) -> list[Problem]:
    """A problem for each value that several places, (path, value), have."""
    counts = Counter(name for _, name in names if isinstance(name, str))
    return [
        Problem(
            f"{' and '.join(dict.fromkeys(path for path, other in names if other == name))} = {name!r}: "
            f"{count} times the same {what}",
            "give each its own",
        )
        for name, count in counts.items()
        if count > 1
    ]
