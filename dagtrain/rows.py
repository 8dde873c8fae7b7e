"""Tables of numbers that compiled code reads and writes field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[Any]


def row_type(**fields: type) -> np.dtype[Any]:
    """Of a row with these fields: 64 bits each, whole numbers for ``int``, others for ``float``."""
    return np.dtype([(name, np.int64 if kind is int else np.float64) for name, kind in fields.items()])


def rows_of(kind: np.dtype[Any], fields: Sequence[Mapping[str, float]]) -> Rows:
    """A table with these fields; what is not said is 0."""
    rows = np.zeros(len(fields), kind)
    for row, told in zip(rows, fields, strict=True):
        for name, value in told.items():
            row[name] = value
    return rows
