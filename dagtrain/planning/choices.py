"""What a plan says of every node beside its device: the cycles it is folded for, and what of it lies in DRAM.

Nodes may be folded for different cycles: what a slower fold saves depends on the layer.

A choice travels through the placement as the payload of a configuration; emission reads it back from the plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from pydantic import ValidationError

from dagtrain.emission.device import stored_streams
from dagtrain.emission.stored import DramUse
from dagtrain.graph.ir import Graph, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_relays import with_relays_on
from dagtrain.passes.memory_home import move_memories
from dagtrain.passes.multiply_constants import multiply_constants
from dagtrain.passes.plain_links import plain_links
from dagtrain.passes.queue_words import Room, queue_words
from dagtrain.passes.share_weights import share_weights
from dagtrain.planning.clocks import plan_periods
from hdl.dram.axi import AxiFormat
from hdl.errors import DagtrainError
from hdl.layers.storage import Home
from hdl.parts.catalogue import DEFAULT_PARTS, part
from hdl.parts.part import Part
from hdl.records import adapter, exact
from hdl.tensor import Port
from placement.problem.cluster import Cluster
from placement.problem.plan import Plan


@exact
@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is built of a node."""

    # cycles a frame that it is folded for
    cycles: int
    # of the layer's own large memory: weights, sums of gradients, optimiser state
    memory: Home = Home.ON_CHIP
    # sinks whose FIFO lies in DRAM
    fifos: tuple[str, ...] = ()
    # the edge that the node is a relay on, if it is one
    relay_on: str | None = None
    # whether products with constants are made by multipliers instead of adders
    multiplied: bool = False
    # memory channels that the stream of each of `fifos` is dealt out over; empty: each goes through one
    dealt: tuple[int, ...] = ()
    # whether links carry what it makes as it is, though a codec has left few bits of it
    plain: bool = False
    # sources, each with words that may wait at its sender
    queued: tuple[Room, ...] = ()

    def __post_init__(self) -> None:
        if self.dealt and (len(self.dealt) != len(self.fifos) or min(self.dealt) < 1):
            raise ValueError(f"{len(self.fifos)} FIFOs in DRAM dealt out over {self.dealt} memory channels")

    @property
    def parts(self) -> dict[str, int]:
        """Sink whose FIFO lies in DRAM -> memory channels that its stream is dealt out over."""
        return dict(zip(self.fifos, self.dealt or (1,) * len(self.fifos), strict=True))

    @property
    def label(self) -> str:
        """Short and unique among the choices of a node."""
        if self.memory is Home.LENT:
            memory, lent = [], " weights shared"
        else:
            memory, lent = {Home.ON_CHIP: [], Home.PARKED: ["next weights"], Home.DRAM: ["memory"]}[self.memory], ""
        outside = [*memory, *(f"{sink} dealt to {parts}" if parts > 1 else sink for sink, parts in self.parts.items())]
        how = (" multiplied" if self.multiplied else "") + (" plain" if self.plain else "")
        how += "".join(f" {words} words of {source} queued" for source, words in self.queued)
        return f"T{self.cycles}{lent}{how}" + (f" DRAM: {', '.join(outside)}" if outside else "")

    def to_payload(self) -> str:
        """As text."""
        relay = {} if self.relay_on is None else {"relay_on": self.relay_on}
        multiplied = {"multiplied": True} if self.multiplied else {}
        dealt = {"dealt": self.dealt} if self.dealt else {}
        plain = {"plain": True} if self.plain else {}
        queued = {"queued": self.queued} if self.queued else {}
        place = {"cycles": self.cycles, "memory": self.memory.value, "fifos": self.fifos}
        return json.dumps({**place, **relay, **multiplied, **dealt, **plain, **queued})

    @classmethod
    def from_payload(cls, text: str) -> Choice:
        """The inverse of `to_payload`.

        Raises `DagtrainError` for any other text."""
        try:
            choice: Choice = adapter(cls).validate_json(text, strict=True)
            return choice
        except ValidationError as error:
            raise DagtrainError(
                f"{text!r} does not say what to build of a node", "run `dagtrain place` again"
            ) from error


def plan_choices(plan: Plan) -> dict[str, Choice]:
    """Node -> what the plan builds of it."""
    return {item.item: Choice.from_payload(item.payload) for item in plan.items}


def relayed(choices: Mapping[str, Choice]) -> tuple[str, ...]:
    """The edges that the choices put relays on."""
    return tuple(choice.relay_on for choice in choices.values() if choice.relay_on is not None)


@dataclass(frozen=True)
class Pace:
    """How fast engines are: what buffers are made for, cycles a frame of the cluster's clock, and what each node is
    folded for, cycles a frame of its device's."""

    interval: int
    folds: Mapping[str, int]
    # on which the cluster stands; which of equally fast tiles is the best depends on them
    parts: tuple[Part, ...] = DEFAULT_PARTS
    # of nodes on devices of another clock than the cluster's, what a cycle there lasts in cycles of that
    periods: Mapping[str, Fraction] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        graph: Graph,
        folds: Mapping[str, int],
        parts: Sequence[Part] = DEFAULT_PARTS,
        periods: Mapping[str, Fraction] | None = None,
    ) -> Pace:
        """Of a graph folded so.  Raises `FoldingError` when some layer can't be."""
        folded = fold_graph.run(graph, folds, parts)
        engines = {node.name: folded.cycles_per_frame(node) for node in folded.nodes}
        return cls._of(folds, engines, parts, periods or {})

    @classmethod
    def _of(
        cls,
        folds: Mapping[str, int],
        engines: Mapping[str, int],
        parts: Iterable[Part],
        periods: Mapping[str, Fraction],
    ) -> Pace:
        """The interval is what all nodes are folded for, if that is the same at one clock, else the pace of the slowest
        engine."""
        levels, by_name = set(folds.values()), {part.name: part for part in parts}
        slowest = max(math.ceil(cycles * periods.get(name, 1)) for name, cycles in engines.items())
        interval = levels.pop() if len(levels) == 1 and not periods else slowest
        return cls(interval, folds, tuple(by_name[name] for name in sorted(by_name)), periods)

    def fold(self, graph: Graph) -> Graph:
        """The graph, folded so."""
        return fold_graph(graph, self.folds, self.parts)


def plan_pace(plan: Plan) -> Pace:
    """The pace of a plan's engines; the same as `Pace.of` the graph that the plan chose."""
    folds = {name: choice.cycles for name, choice in plan_choices(plan).items()}
    engines = {item.item: item.cycles_per_frame for item in plan.items}
    return Pace._of(folds, engines, (part(device.part) for device in plan.devices), plan_periods(plan))


def memory_homes(choices: Mapping[str, Choice]) -> dict[str, Home]:
    """Where the memories lie of nodes that do not have all of them on chip."""
    here = (Home.ON_CHIP, Home.LENT)
    return {name: choice.memory for name, choice in choices.items() if choice.memory not in here}


def memory_bits(port: Port) -> int:
    """Bits of a tensor that passes once a batch: of the memory that holds it, about; 0 for others."""
    return port.tensor.elements * port.tensor.fixed.width if port.tensor.kind.per_batch else 0


def borrowing(choices: Mapping[str, Choice]) -> tuple[str, ...]:
    """Nodes that read their weights in the memory of another one."""
    return tuple(name for name, choice in choices.items() if choice.memory is Home.LENT)


def multiplying(choices: Mapping[str, Choice]) -> tuple[str, ...]:
    """Nodes that multiply by constants on multipliers."""
    return tuple(name for name, choice in choices.items() if choice.multiplied)


def uncoded(choices: Mapping[str, Choice]) -> tuple[str, ...]:
    """Nodes of whose values a codec has left few bits, and which links carry as they are."""
    return tuple(name for name, choice in choices.items() if choice.plain)


def queueing(choices: Mapping[str, Choice]) -> dict[str, tuple[Room, ...]]:
    """Node -> its sources of which words may wait at their senders, and how many."""
    return {name: choice.queued for name, choice in choices.items() if choice.queued}


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def chosen_graph(graph: Graph, choices: Mapping[str, Choice]) -> Graph:
    """The training graph with the relays that the choices know of, the memories of layers where they put them,
    products by constants, values of a codec on links, and words at senders as they say."""
    shared = share_weights.run(with_relays_on(graph, relayed(choices)), borrowing(choices))
    moved = plain_links.run(move_memories.run(shared, memory_homes(choices)), uncoded(choices))
    return queue_words.run(multiply_constants.run(moved, multiplying(choices)), queueing(choices))


def folded_graph(graph: Graph, plan: Plan) -> Graph:
    """The training graph as the plan builds it."""
    return plan_pace(plan).fold(chosen_graph(graph, plan_choices(plan)))


def chosen_dram(graph: Graph, choices: Mapping[str, Choice], cluster: Cluster, cycles: int) -> DramUse:
    """The edges of the chosen graph that the choices put into DRAM, and units for the pace of ``cycles`` a frame."""
    edges = {
        graph.by_name[name].inputs[sink]: parts
        for name, choice in choices.items()
        for sink, parts in choice.parts.items()
    }
    dealt = {edge: parts for edge, parts in edges.items() if parts > 1}
    return replace(cluster_dram(cluster, cycles), edges=frozenset(edges), dealt=dealt)


def planned_channels(graph: Graph, plan: Plan) -> dict[str, int]:
    """The memory channel of every region of the chosen graph, on devices with several."""
    choices = plan_choices(plan)
    return {
        region: channel
        for item in plan.items
        if item.dram_channels
        for region, channel in zip(
            stored_streams(graph.by_name[item.item], choices[item.item].parts), item.dram_channels, strict=True
        )
    }


def cluster_dram(cluster: Cluster, cycles: int) -> DramUse:
    """Units on the memory ports of a cluster, for the pace of ``cycles`` a frame."""
    several = {device.name: device.board.dram_channels for device in cluster.devices if device.board.dram_channels > 1}
    return DramUse(
        format=dram_format(cluster),
        unit_bits=cluster.dram_unit_bits,
        channels=several,
        apart=cluster.dram_apart,
        cycles_per_frame=cycles,
    )


@dataclass(frozen=True)
class Dealing:
    """What streams to DRAM may be dealt out over."""

    # memory channels of a board, at most; 1: they are not dealt out
    channels: int = 1
    # bytes a frame that one carries
    channel_bytes: int = 0


def cluster_dealing(cluster: Cluster, cycles: int) -> Dealing:
    """Of the boards with several memory channels, the slowest of these, at a pace of ``cycles`` a frame."""
    boards = [device.board for device in cluster.devices if device.board.dram_channels > 1]
    if not boards:
        return Dealing()
    rate = min(Fraction(board.dram_bytes_per_s, board.dram_channels) for board in boards)
    return Dealing(max(board.dram_channels for board in boards), math.floor(rate * cycles / cluster.clock_hz))


def dram_format(cluster: Cluster) -> AxiFormat:
    """The memory ports of a cluster: all alike, with addresses for the largest memory behind one."""
    boards = [device.board for device in cluster.devices]
    largest = max((board.dram_bytes // board.dram_channels for board in boards), default=0)
    words = max(1, largest * 8 // cluster.dram_word_bits)
    return AxiFormat(data_bits=cluster.dram_word_bits, address_bits=max(8, (words - 1).bit_length()))
