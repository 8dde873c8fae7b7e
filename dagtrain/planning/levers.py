"""Levers: what would make nodes cheaper, as rules over the circuits that the planner prices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from dagtrain.graph.ir import Node, Role
from dagtrain.planning.menus import Lever, Situation, weights_of
from dagtrain.planning.offers import Offer, Piece, Use
from hdl.costs.resources import Resources
from hdl.layers.capabilities import Padding, Summing, Tiled, Updating, is_engine
from hdl.layers.windowed import Windowed

# bits of a sum of gradients
SUM_BITS = 32
# share of its logic that a DRAM unit keeps with words of 128 bits, its place among the arbiters included
NARROW_UNIT = Fraction(616, 1744)

# (words, bits) -> memories
Memories = dict[tuple[int, int], int]


# ---- rules


def _short_sums(_: Situation, _node: Node, offer: Offer) -> Offer | None:
    layer = offer.layer
    if not isinstance(layer, Summing) or not isinstance(layer, Tiled) or layer.sum_bits <= SUM_BITS:
        return None
    size, bits = layer.tile.size, layer.sum_bits
    if layer.rings:
        share = Fraction(SUM_BITS, bits)
        rings = {ring.name for ring in layer.rings}
        return _with(offer, lambda piece: _moving(piece, share) if piece.port in rings else piece)
    return _with_engine(
        offer,
        lambda contents: _remembering(
            contents, lambda words, width: (words, size * SUM_BITS if width == size * bits else width)
        ),
    )


def _one_copy(situation: Situation, node: Node, offer: Offer) -> Offer | None:
    weights = weights_of(offer.layer.memories()) if is_engine(offer.layer) else set()
    if node.layer_of not in situation.twice_weighted or not weights:
        return None
    return _with_engine(
        offer,
        lambda contents: _remembering(
            contents, lambda words, width: (words, -(-width // 2) if (words, width) in weights else width)
        ),
    )


def _narrow_units(_: Situation, _node: Node, offer: Offer) -> Offer | None:
    def narrow(piece: Piece) -> Piece:
        return replace(piece, contents=_less_logic(piece.contents, NARROW_UNIT, also_memories=True))

    return _with(offer, lambda piece: narrow(piece) if piece.use is Use.DRAM else piece)


def _one_lane(situation: Situation, node: Node, offer: Offer) -> Offer | None:
    if node.role is not Role.UPDATE:
        return None
    gradient = offer.layer.sinks[0]
    needed = -(-gradient.tensor.elements // (situation.graph.recipe.batch * situation.costs.cycles))
    if needed >= gradient.lanes:
        return None
    share = Fraction(needed, gradient.lanes)

    def narrower(contents: Resources) -> Resources:
        kept = _less_logic(contents, share)
        return _remembering(kept, lambda words, width: (math.ceil(words / share), math.ceil(width * share)))

    return _with_engine(offer, narrower)


def _made_again(situation: Situation, node: Node, offer: Offer) -> Offer | None:
    sinks = {sink for name, sink in situation.made_again if name == node.name}
    kept = tuple(piece for piece in offer.pieces if piece.port not in sinks or piece.use is Use.PORT)
    return replace(offer, pieces=kept) if len(kept) < len(offer.pieces) else None


def _half_lines(_: Situation, _node: Node, offer: Offer) -> Offer | None:
    layer = offer.layer
    if not isinstance(layer, Windowed):
        return None
    weights = weights_of(layer.memories())
    sums = layer.tile.size * layer.sum_bits if isinstance(layer, Summing) and isinstance(layer, Tiled) else None

    def halved(words: int, width: int) -> tuple[int, int]:
        return (words if (words, width) in weights or width == sums else -(-words // 2)), width

    return _with_engine(offer, lambda contents: _remembering(contents, halved))


def _ragged_tiles(situation: Situation, node: Node, offer: Offer) -> Offer | None:
    share = situation.ragged_shares.get(node.name)
    if share is None or not is_engine(offer.layer):
        return None

    def fewer(contents: Resources) -> Resources:
        kept = {bits: math.ceil(count * share) for bits, count in contents.multipliers.items()}
        return replace(_less_logic(contents, share, also_memories=True), multipliers=kept)

    return _with_engine(offer, fewer)


def _tiles_are_ragged(situation: Situation) -> bool:
    return any(isinstance(node.layer, Padding) and node.layer.ragged for node in situation.graph.nodes)


def _sums_are_short(situation: Situation) -> bool:
    return any(isinstance(node.layer, Summing) and node.layer.sum_width for node in situation.graph.nodes)


def _weights_are_shared(situation: Situation) -> bool:
    return bool(situation.graph.lenders)


def _units_are_narrow(situation: Situation) -> bool:
    return bool(situation.costs.dram.narrow_formats)


def _maps_are_made_again(situation: Situation) -> bool:
    return any(node.role is Role.RECOMPUTE for node in situation.graph.nodes)


def _updates_are_spread(situation: Situation) -> bool:
    return any(isinstance(node.layer, Updating) and node.layer.update_frames > 1 for node in situation.graph.nodes)


LEVERS = (
    Lever(
        "32-bit sums",
        f"sums of gradients of weights have {SUM_BITS} bits, on chip and on the way to DRAM",
        _short_sums,
        in_force=_sums_are_short,
    ),
    Lever(
        "one copy of weights",
        "where forward and error engine both hold their weights on chip, each pays half of one copy",
        _one_copy,
        in_force=_weights_are_shared,
    ),
    Lever(
        "narrow DRAM units",
        f"a DRAM unit with its queues and its place among the arbiters takes {float(NARROW_UNIT):.0%} of its ALMs",
        _narrow_units,
        in_force=_units_are_narrow,
    ),
    Lever(
        "one-lane updates",
        "an update has as few lanes as the batch leaves time for, its logic shrinks as they do; drain is not counted",
        _one_lane,
        in_force=_updates_are_spread,
    ),
    Lever(
        "recompute, no stash",
        "a stash that follows element by element from another one takes no FIFO, no DRAM; making it again is free "
        "(--recompute auto, which counts what it takes)",
        _made_again,
        in_force=_maps_are_made_again,
    ),
    Lever(
        "half line buffers",
        "memories of engines with a window that hold neither weights nor sums have half of their words",
        _half_lines,
    ),
    Lever(
        "ragged tiles",
        "an engine has as few multipliers as a tile that need not divide its filters, and as much less of all else "
        "(--ragged-tiles auto)",
        _ragged_tiles,
        in_force=_tiles_are_ragged,
    ),
    Lever(
        "constants on multipliers",
        "norms and updates may multiply by constants on multipliers instead of adders (--multiply-constants auto)",
        taken=lambda offer: offer.choice.multiplied,
        offered=lambda problem: problem.multiply,
    ),
    Lever(
        "dealt streams",
        "streams to DRAM that no memory channel carries at the pace are dealt out over several (--deal-streams auto)",
        taken=lambda offer: bool(offer.choice.dealt),
        offered=lambda problem: problem.deal,
    ),
)


# ---- what rules are made of


def _with(offer: Offer, change: Callable[[Piece], Piece]) -> Offer | None:
    pieces = tuple(map(change, offer.pieces))
    return replace(offer, pieces=pieces) if pieces != offer.pieces else None


def _with_engine(offer: Offer, change: Callable[[Resources], Resources]) -> Offer | None:
    return _with(offer, lambda p: replace(p, contents=change(p.contents)) if p.use is Use.ENGINE else p)


def _moving(piece: Piece, share: Fraction) -> Piece:
    return replace(piece, dram_bytes_per_frame=piece.dram_bytes_per_frame * share)


def _remembering(contents: Resources, change: Callable[[int, int], tuple[int, int]]) -> Resources:
    """The contents with other memories."""
    memories: Memories = {}
    for (words, width), count in contents.memories.items():
        shape = change(words, width)
        memories[shape] = memories.get(shape, 0) + count
    return replace(contents, memories=memories)


def _less_logic(contents: Resources, share: Fraction, also_memories: bool = False) -> Resources:
    """The contents with a share of their logic, and of the width of their memories."""

    def some(count: int) -> int:
        return math.ceil(count * share)

    less = replace(
        contents,
        registers=some(contents.registers),
        memory_registers={shape: some(count) for shape, count in contents.memory_registers.items()},
        constant_adder_bits=some(contents.constant_adder_bits),
        carry_bits=some(contents.carry_bits),
        three_bits=some(contents.three_bits),
        full_adders=some(contents.full_adders),
        tables={inputs: some(count) for inputs, count in contents.tables.items()},
        constants={(words, some(width)): count for (words, width), count in contents.constants.items()},
        choices=some(contents.choices),
        # what is free isn't overstated
        output_registers={shape: int(count * share) for shape, count in contents.output_registers.items()},
        multiplier_registers={around: int(count * share) for around, count in contents.multiplier_registers.items()},
        product_sums={summed: int(count * share) for summed, count in contents.product_sums.items()},
    )
    return _remembering(less, lambda words, width: (words, some(width))) if also_memories else less
