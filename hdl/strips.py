"""How an engine goes through a frame strip by strip: what `dagtrain.schedule` reckons with.  Numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hdl.fixed import FloatArray


@dataclass(frozen=True, kw_only=True)
class Strips:
    """Strips of a frame, in order; counts are of elements since the frame's first."""

    # sink -> elements that must be there before each strip
    stored: Mapping[str, FloatArray]
    # sink -> elements that find room before each strip ends, of those in `stored`
    room: Mapping[str, FloatArray]
    # of those in `stored`, one that comes on its own; beats of the others are taken together
    apart: str = ""
    # sink -> elements that are used up by the end of each strip, one after another while it goes on
    along: Mapping[str, FloatArray] = field(default_factory=dict)
    # cycles of each
    cycles: tuple[int, ...]
    # port -> elements that go in or out at a time inside, behind its width adapter
    words: Mapping[str, int]
    # from the last stored element at its port to the first operation of the strip
    begin_cycles: int
    # from an element taken along to the first of the operations on it, and cycles that these take
    along_cycles: int = 0
    along_work: int = 0
    # words taken along that wait inside, and cycles from the last operation on one until there is room for another
    along_words: int = 1
    along_free: int = 0
    # from the end of a result's operations until it leaves; of a sum over a batch, until its first part leaves
    result_cycles: int
    # from the end of a strip until there is room where it was the last to read
    free_cycles: int
    # words of results that may be on their way: the engine waits where so many have not left
    results: int = 1
    # for which the engine rests after a batch
    rest_cycles: int = 0
    # elements of a sum over a batch, the last ones, that leave beside the engine's work; 0: it rests for all of them
    sum_word: int = 0
    # between the last operation of one version of the weights and the first one of the next, at least
    load_cycles: int = 0
    # strips of a pass over the map, where they are parts of its rows; else 0
    parts: int = 0
    # results leave after the last strip of all, instead of with the strips of the last pass
    reordered: bool = False
