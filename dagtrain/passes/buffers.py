"""How deep the FIFO on each edge must be so that the pipeline keeps its interval.

Analysis, not transformation.  In steady state an element waits on an edge from when its producer offers it to
when its consumer takes it; frames follow each other every ``cycles``.  The depth is the most that lies there at any
time, plus the burst by which an engine may run ahead of the even rate: producers compute row by row, so one
row of the map on either side, and a few beats for registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dagtrain.ir import Graph
from dagtrain.passes.schedule import Schedule

# beats that registers at both ends of an edge may hold or demand at once
REGISTER_BEATS = 4
# elements of a per-batch stream that wait between two engines; their users hold a whole tensor themselves
PER_BATCH_BEATS = 2


def fifo_beats(graph: Graph, plan: Schedule) -> Mapping[str, int]:
    """Depth in beats (of the consumer's lanes) of the FIFO in front of each edge's consumer."""
    depths: dict[str, int] = {}
    for edge, _producer, source, _consumer, sink in graph.edges:
        if source.tensor.kind.per_batch:
            depths[edge] = PER_BATCH_BEATS
            continue
        waiting = plan.frames_waiting(edge) * source.tensor.elements
        depths[edge] = math.ceil((waiting + burst_elements(source.tensor.shape)) / sink.lanes) + REGISTER_BEATS
    return depths


def burst_elements(shape: tuple[int, ...]) -> int:
    """Elements by which producer and consumer of a map may differ from the even rate: a row at either end.

    Rows of a map of height 1 (vectors) come and go as a whole."""
    height, width, channels = shape
    return 2 * width * channels if height > 1 else width * channels
