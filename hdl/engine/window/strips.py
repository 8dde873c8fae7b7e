"""The strips of engines with a walk, and the cycles of the parts that all of them share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hdl.engine.arithmetic.requantise import ACCUMULATE_LATENCY, REQUANTISE_LATENCY
from hdl.engine.weights.gradient_rounding import leave_cycles
from hdl.engine.window.convolution import RESULTS
from hdl.engine.window.gradient import FLUSH
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import DATA_AFTER
from hdl.fixed import FloatArray
from hdl.streams import output_register_latency, queue_latency
from hdl.streams.width import AdapterKind, adapter_kind
from hdl.strips import Strips
from hdl.tensor import Port

# cycles from the last word of a row at the row store to the first operation that needs it
ROW_LATENCY = 3
# cycles from a word that is taken along to its first operation
WORD_LATENCY = 4
# cycles from the last word of a version at the weight buffer to the first operation with it
WEIGHT_LATENCY = 2
# cycles from the last operation with a version to the first write of the next one in its place: the read of its weight,
# and the switch after it
PLACE_FREE = 3
# cycles from a frame's last result to the first one that leaves, where passes are put in order
REORDER_READ = 3
# cycles from the part of a sum that the last pass makes to the sum of all passes
FRAME_SUMS = 3


def adapter_cycles(lanes: int, word: int) -> int:
    """From the last beat of a word, or of several words, to the last of these words behind a width adapter."""
    if adapter_kind(lanes, word) is AdapterKind.WIRE:
        return 0
    return max(1, lanes // word)


def stored_rows(walk: Walk, port: Port) -> FloatArray:
    """Elements of a stored map that must be there before each strip: whole rows."""
    return np.array(walk.strip_needs, np.float64) * (port.tensor.elements // walk.rows.stored)


def results_along(walk: Walk, port: Port) -> FloatArray:
    """Elements of a map like that of results by the end of each strip; all where passes take it in other orders."""
    if walk.passes > 1:
        return np.full(len(walk.strip_cycles), float(port.tensor.elements))
    return np.arange(1, walk.rows.outputs + 1, dtype=np.float64) * (port.tensor.elements // walk.rows.outputs)


def result_strips(
    walk: Walk,
    stored: Mapping[str, tuple[Port, int]],
    results: Mapping[str, tuple[Port, int]],
    sum_cycles: int,
    rounding_cycles: int = REQUANTISE_LATENCY,
    load_cycles: int = 0,
    reordered_words: int = 0,
) -> Strips:
    """Of an engine that stores maps and gives maps, each a port with the elements of a word inside.

    ``sum_cycles``: from the words of the ring to the sum of one operation.
    ``reordered_words``: of the memory in which passes are put in order."""
    words = {name: word for name, (_, word) in (*stored.items(), *results.items())}
    reordered = walk.outer_repeat and not walk.sums_repeats
    if reordered:
        leave = REORDER_READ + output_register_latency(reordered_words)
    elif walk.sums_repeats:
        leave = FRAME_SUMS + queue_latency(walk.pixels * walk.reduce + RESULTS)
    else:
        leave = queue_latency(RESULTS)
    return Strips(
        stored={name: stored_rows(walk, port) for name, (port, _) in stored.items()},
        cycles=tuple(walk.strip_cycles),
        words=words,
        begin_cycles=_entry_cycles(stored),
        result_cycles=DATA_AFTER - 1 + sum_cycles + ACCUMULATE_LATENCY + rounding_cycles + leave
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
    rest_cycles: int,
    sum_words: int,
    *,
    exact: bool,
) -> Strips:
    """Of an engine that sums products of a stored map and of errors that meet their row at work.

    ``rest_cycles``: after a batch, while the sums leave.
    ``sum_words``: of the memory of sums.
    ``exact``: whether sums leave as they are."""
    (x, x_word), (e, e_word), (g, tile) = stored, along, gradient
    return Strips(
        stored={x.name: stored_rows(walk, x)},
        along={e.name: results_along(walk, e)},
        cycles=tuple(walk.strip_cycles),
        words={x.name: x_word, e.name: e_word},
        begin_cycles=_entry_cycles({x.name: stored}),
        along_cycles=WORD_LATENCY + adapter_cycles(e.lanes, e_word),
        along_work=max(walk.row_cycles) // (walk.columns.outputs * walk.repeat),
        result_cycles=FLUSH + 1 + leave_cycles(exact=exact) + output_register_latency(sum_words)
        + min(1, adapter_cycles(tile, g.lanes)),
        rest_cycles=rest_cycles,
    )  # fmt: skip


def _entry_cycles(stored: Mapping[str, tuple[Port, int]]) -> int:
    """From the last element of a row at its port to the first operation that needs it, of the slowest adapter."""
    return ROW_LATENCY + max(adapter_cycles(port.lanes, word) for port, word in stored.values())
