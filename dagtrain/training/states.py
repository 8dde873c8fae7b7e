"""States of layers as plain data with arrays beside it, for checkpoints and for other processes."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt


def pack(value: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    """A JSON document of a state, with its arrays put aside into ``arrays``."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray():
            name = f"a{len(arrays)}"
            arrays[name] = value
            return {"array": name}
        case np.integer() | np.floating() | np.bool_():
            return value.item()
        case dict():
            return {"dict": {key: pack(item, arrays) for key, item in value.items()}}
        case list() | tuple() | deque():
            return {type(value).__name__: [pack(item, arrays) for item in value]}
    raise TypeError(f"a layer's state holds a {type(value).__name__}, which a checkpoint can't keep; use arrays")


def unpack(value: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    """Inverse of `pack`."""
    match value:
        case {"array": str(name)}:
            return arrays[name]
        case {"dict": dict(items)}:
            return {key: unpack(item, arrays) for key, item in items.items()}
        case {"list": list(items)}:
            return [unpack(item, arrays) for item in items]
        case {"deque": list(items)}:
            return deque(unpack(item, arrays) for item in items)
        case {"tuple": list(items)}:
            return tuple(unpack(item, arrays) for item in items)
    return value


def fits(start: Any, saved: Any) -> bool:
    """Whether a saved state has the structure of a start state; layers may have added entries since the start."""
    match start:
        case np.ndarray():
            return isinstance(saved, np.ndarray) and (saved.shape, saved.dtype) == (start.shape, start.dtype)
        case dict():
            return isinstance(saved, dict) and all(key in saved and fits(start[key], saved[key]) for key in start)
        case list() | tuple() | deque():
            return type(saved) is type(start) and len(saved) == len(start) and all(map(fits, start, saved))
    return type(saved) is type(start)
