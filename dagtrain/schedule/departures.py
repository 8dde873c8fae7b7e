"""When tensors of a batch have left the nodes that make them: gradients and new weights find little room on their way.

Analysis, not transformation.  Their FIFOs hold a few beats, their receivers a few words, and an update or a fork gives
a beat for every one that it takes.  So where new weights go over a link of few credits, the update in front of it, and
the gradient engine in front of that, give their tensors no faster, but for what finds room between them.  Users hold a
whole tensor.  `Departures` is told when tensors are offered, taken, and sent as far as their way lets them, and follows
what is late against the streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Taking:
    """A tensor on its way into a node that works once a batch."""

    # the node that makes it
    maker: int
    # when its first and its last element are taken, if what the node makes of them leaves as it is offered
    first: float
    last: float
    # share of it that finds room in front of the node, or with its maker beside its work
    room: float


@dataclass
class Departures:
    """Tensors of a batch that have not left yet."""

    # node -> edges of its last batch that have not left, with the cycle at which their last element is offered
    making: dict[int, dict[str, float]] = field(default_factory=dict)
    # … and by how much the others left later than they were offered
    _late: dict[int, float] = field(default_factory=dict)
    # node that works once a batch -> edge -> what it takes
    _taking: dict[int, Mapping[str, Taking]] = field(default_factory=dict)
    # edge to such a node -> when the last element went as far as its way lets it
    _sent: dict[str, float] = field(default_factory=dict)

    def make(
        self, node: int, offered: Mapping[str, float], taking: Mapping[str, Taking]
    ) -> Iterator[tuple[int, float]]:
        """A node offers tensors: edge -> when the last element for which it rests is offered.  See `leave`.

        ``taking``: what it makes them of, if it works once a batch."""
        self.making[node], self._late[node], self._taking[node] = dict(offered), 0.0, taking
        if not offered:
            yield from self._all_left(node)

    def send(self, edge: str, cycle: float) -> None:
        """The last element of a tensor to a node that works once a batch has come as far as its way lets it."""
        self._sent[edge] = cycle

    def leave(self, node: int, edge: str, cycle: float) -> Iterator[tuple[int, float]]:
        """The last element of a tensor has left the node that made it: the nodes all of whose tensors have left by
        that, each with the cycles by which they left later than they were offered."""
        self._late[node] = max(self._late[node], cycle - self.making[node].pop(edge))
        if not self.making[node]:
            yield from self._all_left(node)

    def _all_left(self, node: int) -> Iterator[tuple[int, float]]:
        del self.making[node]
        late = self._late.pop(node)
        yield node, late
        for edge, taken in self._taking.pop(node).items():
            last = taken.last + late
            room = taken.room * (last - taken.first)
            yield from self.leave(taken.maker, edge, max(self._sent.pop(edge), last - room))
