"""Arrays side by side in one, for compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Pool:
    """Arrays of one type, each of which is kept once."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        # by identity: those that are asked about are alive
        self._known: dict[int, int] = {}
        self._parts: list[npt.NDArray[Any]] = []
        self._length = 0

    def at(self, array: npt.NDArray[Any]) -> int:
        """Where an array begins."""
        if id(array) not in self._known:
            self._known[id(array)] = self._length
            self._parts.append(array)
            self._length += array.size
        return self._known[id(array)]

    @property
    def joined(self) -> npt.NDArray[Any]:
        """All of them."""
        return np.concatenate([np.empty(0), *map(np.ravel, self._parts)]).astype(self._kind)


class Scratch:
    """Places in an array that is worked in."""

    def __init__(self) -> None:
        self.size = 0

    def at(self, size: int) -> int:
        """Where so many more begin."""
        self.size += size
        return self.size - size
