"""The strips of engines with a walk, and the cycles of the parts that all of them share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hdl.engine.arithmetic.requantise import ACCUMULATE_LATENCY, REQUANTISE_LATENCY
from hdl.engine.weights.gradient_rounding import leave_cycles
from hdl.engine.window.convolution import RESULTS
from hdl.engine.window.gradient import ERRORS, FLUSH
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import DATA_AFTER
from hdl.fixed import FloatArray
from hdl.streams import output_register_latency, queue_latency
from hdl.streams.width import AdapterKind, adapter_kind
from hdl.strips import Strips
from hdl.tensor import Port

# cycles from the last word of a row at the row store to the first operation that needs it
ROW_LATENCY = 3
# cycles from a word that is taken along to its first operation: it is counted, while it goes through its queue
WORD_LATENCY = 1
# from the last operation on a word until another one may come in its place in that queue: the three stages of the
# walker, and the count of the queue
WORD_FREE = 4
# cycles from the last word of a version at the weight buffer to the first operation with it
WEIGHT_LATENCY = 2
# cycles from the last operation with a version to the first write of the next one in its place: the read of its weight,
# and the switch after it
PLACE_FREE = 3
# cycles from a frame's last result to the first one that leaves, where passes are put in order
REORDER_READ = 3
# cycles from the part of a sum that the last pass makes to the sum of all passes
FRAME_SUMS = 3
# cycles from the last operation on a row, over three stages of the walker and the count of rows, until another one may
# come in its place, counted from the end of the strip, which is a cycle later than the operation
ROW_FREE = 3


def adapter_cycles(lanes: int, word: int) -> int:
    """From the last beat of a word, or of several words, to the last of these words behind a width adapter."""
    if adapter_kind(lanes, word) is AdapterKind.WIRE:
        return 0
    return max(1, lanes // word)


def stored_rows(walk: Walk, port: Port) -> FloatArray:
    """Elements of a stored map that must be there before each strip: whole rows."""
    return np.array(walk.strip_needs, np.float64) * (port.tensor.elements // walk.rows.stored)


def room_rows(walk: Walk, port: Port, word: int, ring_rows: int) -> FloatArray:
    """Elements of a stored map that find room while each strip is at work: rows of the ring, of which those before have
    freed some, and a word in the adapter before it."""
    freed = np.array([0, *walk.strip_frees[:-1]], np.float64) + ring_rows
    waiting = 0 if adapter_kind(port.lanes, word) is AdapterKind.WIRE else max(port.lanes, word)
    return freed * (port.tensor.elements // walk.rows.stored) + waiting


def results_along(walk: Walk, port: Port) -> FloatArray:
    """Elements of a map like that of results by the end of each strip of one pass."""
    return np.arange(1, walk.rows.outputs + 1, dtype=np.float64) * (port.tensor.elements // walk.rows.outputs)


def made_cycles(sum_cycles: int, rounding_cycles: int = REQUANTISE_LATENCY) -> int:
    """From a result's last operation, which is in a strip's last cycle, to its entry into the queue."""
    return DATA_AFTER - 1 + sum_cycles + ACCUMULATE_LATENCY + rounding_cycles


def result_strips(
    walk: Walk,
    stored: Mapping[str, tuple[Port, int]],
    results: Mapping[str, tuple[Port, int]],
    rings: Mapping[str, int],
    sum_cycles: int,
    rounding_cycles: int = REQUANTISE_LATENCY,
    load_cycles: int = 0,
    reordered_words: int = 0,
) -> Strips:
    """Of an engine that stores maps and gives maps, each a port with the elements of a word inside.

    ``rings``: rows of each stored map that are held.
    ``sum_cycles``: from the words of the ring to the sum of one operation.
    ``reordered_words``: of the memory in which passes are put in order."""
    words = {name: word for name, (_, word) in (*stored.items(), *results.items())}
    reordered = walk.outer_repeat and not walk.sums_repeats
    places = RESULTS + (walk.pixels * walk.reduce if walk.sums_repeats else 0)
    if reordered:
        leave = REORDER_READ + output_register_latency(reordered_words)
    else:
        leave = queue_latency(places) + (FRAME_SUMS if walk.sums_repeats else 0)
    return Strips(
        stored={name: stored_rows(walk, port) for name, (port, _) in stored.items()},
        room={name: room_rows(walk, port, word, rings[name]) for name, (port, word) in stored.items()},
        free_cycles=ROW_FREE,
        results=places,
        cycles=tuple(walk.strip_cycles),
        words=words,
        begin_cycles=_entry_cycles(stored),
        result_cycles=made_cycles(sum_cycles, rounding_cycles) + leave
        + max(min(1, adapter_cycles(word, port.lanes)) for port, word in results.values()),
        load_cycles=load_cycles,
        parts=walk.rows.outputs if walk.cut else 0,
        reordered=reordered,
    )  # fmt: skip


def gradient_strips(
    walk: Walk,
    stored: tuple[Port, int],
    along: tuple[Port, int],
    gradient: tuple[Port, int],
    ring_rows: int,
    rest_cycles: int,
    sum_words: int,
    *,
    exact: bool,
    error_frames: int,
) -> Strips:
    """Of an engine that sums products of a stored map and of errors that meet their row at work.

    ``error_frames``: that are held and put in order, where passes over the map take errors in other orders; else 0.
    ``ring_rows``: of the stored map that are held.
    ``rest_cycles``: after a batch, while the sums leave.
    ``sum_words``: of the memory of sums.
    ``exact``: whether sums leave as they are."""
    (x, x_word), (e, e_word), (g, tile) = stored, along, gradient
    needed, room = {x.name: stored_rows(walk, x)}, {x.name: room_rows(walk, x, x_word, ring_rows)}
    if error_frames:
        whole = np.full(len(walk.strip_cycles), float(e.tensor.elements))
        needed, room = needed | {e.name: whole}, room | {e.name: error_frames * whole}
    return Strips(
        stored=needed,
        room=room,
        apart=e.name if error_frames else "",
        free_cycles=ROW_FREE,
        along={} if error_frames else {e.name: results_along(walk, e)},
        cycles=tuple(walk.strip_cycles),
        words={x.name: x_word, e.name: e_word},
        begin_cycles=_entry_cycles({x.name: stored} | ({e.name: along} if error_frames else {})),
        along_cycles=WORD_LATENCY + adapter_cycles(e.lanes, e_word),
        along_words=ERRORS,
        along_free=WORD_FREE,
        along_work=max(walk.row_cycles) // (walk.columns.outputs * walk.repeat),
        result_cycles=FLUSH + 1 + leave_cycles(exact=exact) + output_register_latency(sum_words)
        + min(1, adapter_cycles(tile, g.lanes)),
        rest_cycles=rest_cycles,
        sum_word=tile,
    )  # fmt: skip


def _entry_cycles(stored: Mapping[str, tuple[Port, int]]) -> int:
    """From the last element of a row at its port to the first operation that needs it, of the slowest adapter."""
    return ROW_LATENCY + max(adapter_cycles(port.lanes, word) for port, word in stored.values())
