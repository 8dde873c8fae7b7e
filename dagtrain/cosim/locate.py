"""Which element of a layer's state stands in a bit of one of its memories.

`Layer.images` says how a state is laid out, one way only.  Asked of states with some elements changed it also tells
the way back: with all lowest bits flipped it shows where elements begin, and with those of the elements whose number
has bit k set it spells the number of the one that was found, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.layers.meaning import State

Codes = npt.NDArray[np.int64]
# where an array stands in a state: keys one below the other
Path = tuple[str, ...]


def element_at(
    images: Callable[[State], Mapping[str, Sequence[int]]], state: State, image: str, word: int, bit: int
) -> str:
    """The element whose bits hold ``bit`` of a word of an image, as ``master[1, 0, 2, 1]``; "" if none does.

    ``images``: those of a state."""
    plain = images(state)[image][word]

    def flips(path: Path, mask: Codes) -> int:
        return images(_changed(state, path, mask))[image][word] ^ plain

    found: tuple[int, Path, tuple[int, ...]] | None = None
    for path, array in _arrays(state):
        starts = flips(path, np.ones(array.shape, np.int64)) & ((2 << bit) - 1)
        if starts and (found is None or starts.bit_length() - 1 > found[0]):
            found = starts.bit_length() - 1, path, array.shape
    if found is None:
        return ""
    start, path, shape = found
    number = _number(lambda mask: bool(flips(path, mask) >> start & 1), shape)
    index = ", ".join(str(int(part)) for part in np.unravel_index(number, shape))
    return f"{'.'.join(path)}[{index}]"


def _number(flips: Callable[[Codes], bool], shape: tuple[int, ...]) -> int:
    """The flat number of the one element that ``flips`` tells of, when it is in the mask."""
    numbers = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    bits = range(max(1, int(numbers.size - 1).bit_length()))
    return sum(1 << k for k in bits if flips(numbers >> k & 1))


def _arrays(state: State, above: Path = ()) -> Iterator[tuple[Path, Codes]]:
    """Arrays of codes in a state."""
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _arrays(value, (*above, key))
        elif isinstance(value, np.ndarray) and value.dtype == np.int64 and value.size:
            yield (*above, key), value


def _changed(state: State, path: Path, mask: Codes) -> State:
    """The state with one array changed in the lowest bits that the mask has."""
    key, *below = path
    value: Any = state[key]
    return {**state, key: _changed(value, tuple(below), mask) if below else value ^ mask}
