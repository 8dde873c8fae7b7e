"""What nodes may be at a level, with levers or without.

A *lever* is something that would change costs: a rule from an offer to one that costs less, beside the circuits there
are (`dagtrain.planning.levers`).  One that the planner comes to offer needs no rule: `Lever.taken` then tells its
offers, priced off elaborated circuits like all others, from those without it, and stands in the rule's place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.passes.fold import weight_tiles
from dagtrain.passes.ragged_tiles import ragged_tiles
from dagtrain.planning.costs import LevelCosts
from dagtrain.planning.offers import Offer
from dagtrain.planning.problem import Problem
from hdl.costs.resources import Resources, Usage, fit
from hdl.layers.capabilities import is_engine
from hdl.layers.storage import Memory
from hdl.layers.windowed import Windowed
from hdl.parts.part import Part
from hdl.tensor import Kind, Port

# a stash of so few bits an element holds a mask, nothing that a map could be made of again
MASK_BITS = 1


# an offer of a node at a level, changed; None where the lever changes nothing
Rule = Callable[["Situation", Node, Offer], Offer | None]


@dataclass(frozen=True)
class Lever:
    """Something that would change costs."""

    # unique
    name: str
    # what it does to costs, in words
    says: str
    rule: Rule | None = None
    # of a lever that the planner offers: whether an offer takes it
    taken: Callable[[Offer], bool] | None = None
    # … and whether it does so in a problem
    offered: Callable[[Problem], bool] = lambda _: False
    # whether it has been taken already, in the graph or in the cluster file
    in_force: Callable[[Situation], bool] = lambda _: False


@dataclass(frozen=True)
class Situation:
    """What rules know beside an offer: all nodes, folded for one level."""

    costs: LevelCosts

    @property
    def graph(self) -> Graph:
        """Folded."""
        return self.costs.folded

    @cached_property
    def ragged_shares(self) -> Mapping[str, Fraction]:
        """Node with a tile -> the share of its multipliers that are left if tiles may be ragged, where that is less."""
        costs = self.costs
        tiles = weight_tiles(ragged_tiles.run(costs.graph), costs.folds or costs.cycles, costs.parts)
        shares = {name: Fraction(tile.size, costs.tiles[name].size) for name, tile in tiles.items()}
        return {name: share for name, share in shares.items() if share < 1}

    @cached_property
    def twice_weighted(self) -> frozenset[str]:
        """Layers whose weights a forward and an error engine hold, each a copy."""
        roles: dict[str, set[Role]] = {}
        for node in self.graph.nodes:
            if is_engine(node.layer) and weights_of(node.layer.memories()):
                roles.setdefault(node.layer_of, set()).add(node.role)
        return frozenset(layer for layer, found in roles.items() if {Role.FORWARD, Role.ERROR} <= found)

    @cached_property
    def made_again(self) -> frozenset[tuple[str, str]]:
        """(node, sink) of stashes that follow, element by element, from a map that is stashed anyway."""
        found = set()
        for node in self.graph.nodes:
            for port in node.layer.sinks:
                if port.tensor.kind is Kind.STASH and self._follows(*self.graph.producers[node.inputs[port.name]]):
                    found.add((node.name, port.name))
        return frozenset(found)

    def _follows(self, node: Node, port: Port) -> bool:
        """Whether a stash that leaves a node there follows from another one."""
        elements = port.tensor.elements
        first = True
        while node.role is not Role.RECOMPUTE:
            maps = [sink for sink in node.layer.sinks if not sink.tensor.kind.per_batch]
            kept = [source for source in node.layer.sources if _is_full_stash(source)]
            if node.role is not Role.FORK and any(source.tensor.elements == elements for source in kept):
                # what the node keeps of its own input is not made again
                return not (first and port in kept)
            if len(maps) != len(node.layer.sinks) or len(maps) != 1 or isinstance(node.layer, Windowed):
                return False
            if maps[0].tensor.elements != elements:
                return False
            first = first and node.role is Role.FORK
            node, port = self.graph.producers[node.inputs[maps[0].name]]
        return False


def _is_full_stash(port: Port) -> bool:
    return port.tensor.kind is Kind.STASH and port.tensor.fixed.width > MASK_BITS


@dataclass
class Menu:
    """The offers of all nodes at one level, with levers or without."""

    situation: Situation
    parts: Sequence[Part]
    # node -> its offers, those of levers that the planner offers among them
    offers: Mapping[str, Sequence[Offer]]
    known: Sequence[Lever]
    # what circuits take of a part; circuits are kept, so that none gets the number of another
    _fitted: dict[tuple[int, str], tuple[Resources, Usage]] = field(default_factory=dict)

    @classmethod
    def of(cls, costs: LevelCosts, known: Sequence[Lever]) -> Menu:
        """Of a level whose circuits are elaborated; ``known``: all levers there are."""
        offers = {node.name: tuple(costs.offers(node)) for node in costs.folded.nodes}
        return cls(Situation(costs), costs.parts, offers, known)

    def with_levers(self, levers: Collection[Lever]) -> Iterator[tuple[Node, Offer]]:
        """Every offer of every node, or one that costs no more in anything."""
        others = [lever.taken for lever in self.known if lever.taken is not None and lever not in levers]
        for node in self.situation.graph.nodes:
            found = [offer for offer in self.offers[node.name] if not any(taken(offer) for taken in others)]
            for lever in levers:
                if lever.rule is not None:
                    found = [offer for before in found for offer in self._changed(lever.rule, node, before)]
            yield from ((node, offer) for offer in found)

    def _changed(self, rule: Rule, node: Node, offer: Offer) -> list[Offer]:
        """The offer changed by a rule, and as it was where that is better in anything."""
        changed = rule(self.situation, node, offer)
        if changed is None:
            return [offer]
        no_worse = changed.dram_bytes_per_frame <= offer.dram_bytes_per_frame and all(
            after <= before
            for part in self.parts
            for after, before in zip(self.costs(changed, part), self.costs(offer, part), strict=True)
        )
        return [changed] if no_worse else [changed, offer]

    def costs(self, offer: Offer, part: Part) -> tuple[int, int, int]:
        """DSP blocks, M20K blocks, ALMs."""
        usages = [self._usage(piece.contents, part).scaled(piece.share) for piece in offer.pieces]
        return sum(use.dsp for use in usages), sum(use.m20k for use in usages), sum(use.alm for use in usages)

    def _usage(self, contents: Resources, part: Part) -> Usage:
        key = (id(contents), part.name)
        if key not in self._fitted:
            self._fitted[key] = contents, fit(contents, part)
        return self._fitted[key][1]


def weights_of(memories: Sequence[Memory]) -> set[tuple[int, int]]:
    """(words, bits) of memories of weights."""
    return {(memory.depth, memory.width) for memory in memories if memory.name == "weights"}
