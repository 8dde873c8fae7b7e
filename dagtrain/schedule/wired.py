"""A placed graph with what lies on its edges: all that its timing follows from, beside what layers declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from dagtrain.graph.ir import PlacedGraph
from dagtrain.schedule.batch_clock import ONE_CLOCK, Way
from dagtrain.schedule.batch_time import BatchTime, batch_time, edge_ways
from dagtrain.schedule.network import Hop


@dataclass(frozen=True)
class Wired:
    """A folded, streaming graph on devices, and its streams."""

    graph: PlacedGraph
    # edge -> beats of the FIFO in front of its consumer
    fifo_beats: Mapping[str, int]
    # edges that cross the network -> their way
    hops: Mapping[str, Hop] = field(default_factory=dict)
    # edges that go through DRAM -> cycles that it adds
    stored: Mapping[str, int] = field(default_factory=dict)
    # nodes on devices of another clock than the cluster's -> what a cycle there lasts in cycles of that
    periods: Mapping[str, Fraction] = field(default_factory=lambda: ONE_CLOCK)
    # of a word on the network, with its header; 0 where none crosses it
    word_bits: int = 0

    @property
    def ways(self) -> dict[str, Way]:
        """What `batch_time` is asked with."""
        return edge_ways(self.graph, self.fifo_beats, self.hops, self.stored, self.periods)

    @property
    def batch_time(self) -> BatchTime:
        """The cycles of a batch."""
        return batch_time(self.graph, self.ways, self.periods)
