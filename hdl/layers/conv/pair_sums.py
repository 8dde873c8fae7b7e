"""The inner loop of products of codes, as LLVM's instructions: numba's own loops make no use of the ones that multiply
pairs of 16 bits and add both products (``pmaddwd``), at twice the pace of float64.

Numba's cache of compiled functions does not see a change here: change `narrow_kernel.py` with it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic


def _tile() -> tuple[int, int]:
    """Rows and lanes of a tile of results: what the registers hold of the processor that numba compiles for.

    Asked of what its cache of compiled functions goes by, so that none is taken up for another tile."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return (8, 16) if "+avx512bw" in features.split(",") else (6, 8)


ROWS, LANES = _tile()
# codes of a pair of one factor's parts: all lanes' high ones, then their low ones
PAIR_CODES = 4 * LANES
# pairs whose sum fits 32 bits: a product of a code and a part is at most 2**15 * 2**7
MOST_PAIRS = (1 << 31) // (2 << 22) - 1

_SHORT, _WORD, _LONG = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_PAIRS, _PRODUCTS = ir.VectorType(_SHORT, 2 * LANES), ir.VectorType(_WORD, 2 * LANES)
_SUMS, _TOTALS = ir.VectorType(_WORD, LANES), ir.VectorType(_LONG, LANES)


def _number(value: int) -> Any:
    return ir.Constant(_LONG, value)


def _every(kind: Any, values: list[int]) -> Any:
    return ir.Constant(kind, values)


def _pair_everywhere(builder: Any, address: Any) -> Any:
    """The two codes at an address, in all lanes."""
    undefined = ir.Constant(_SUMS, ir.Undefined)
    word = builder.load(builder.bitcast(address, _WORD.as_pointer()), align=2)
    first = builder.insert_element(undefined, word, ir.Constant(_WORD, 0))
    return builder.bitcast(builder.shuffle_vector(first, undefined, _every(_SUMS, [0] * LANES)), _PAIRS)


def _add_products(builder: Any, total: Any, left: Any, right: Any) -> Any:
    """``total`` and the sum of both products of each pair; the form that becomes one instruction."""
    products = builder.mul(builder.sext(left, _PRODUCTS), builder.sext(right, _PRODUCTS))
    undefined = ir.Constant(_PRODUCTS, ir.Undefined)
    halves = [
        builder.shuffle_vector(products, undefined, _every(_SUMS, list(range(half, 2 * LANES, 2)))) for half in (0, 1)
    ]
    return builder.add(total, builder.add(*halves))


class _Loop:
    """``count`` passes, at least one, of a block that carries values; made by hand, so that they stay in registers."""

    def __init__(self, builder: Any, count: Any, carried: list[Any]) -> None:
        self.builder, self.count, before = builder, count, builder.block
        self.head = builder.append_basic_block("loop")
        builder.branch(self.head)
        builder.position_at_end(self.head)
        self.phis = [builder.phi(value.type) for value in (_number(0), *carried)]
        for phi, value in zip(self.phis, (_number(0), *carried), strict=True):
            phi.add_incoming(value, before)
        self.index, *self.values = self.phis

    def close(self, carried: list[Any]) -> None:
        """Goes round with new values; what follows stands behind the loop."""
        builder = self.builder
        after = builder.add(self.index, _number(1))
        end, behind = builder.block, builder.append_basic_block("behind")
        for phi, value in zip(self.phis, (after, *carried), strict=True):
            phi.add_incoming(value, end)
        builder.cbranch(builder.icmp_signed("<", after, self.count), self.head, behind)
        builder.position_at_end(behind)


def _add_pair_sums(
    typing_context: Any,
    codes: Any,
    origins: Any,
    offsets: Any,
    first: Any,
    segments: Any,
    pairs: Any,
    step: Any,
    parts: Any,
    at: Any,
    totals: Any,
    tile: Any,
) -> Any:
    """Adds to the tile of `ROWS` by `LANES` numbers at ``totals[tile]`` the products of codes and the parts at
    ``parts[at]``, summed over ``segments`` of ``pairs`` pairs each: no more than `MOST_PAIRS` together.

    Row r reads pairs from ``codes[origins[r] + offsets[first + segment]]`` on, ``step`` codes apart; ``parts`` lie one
    after another, `PAIR_CODES` a pair."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        def data(at: int) -> Any:
            return cgutils.create_struct_proxy(signature.args[at])(context, builder, value=given[at]).data

        def moved(address: Any, by: Any) -> Any:
            return builder.gep(address, [by])

        base, starts, moves = data(0), data(1), moved(data(2), given[3])
        rows = [moved(base, builder.load(moved(starts, _number(row)))) for row in range(ROWS)]
        zeros = [_every(_SUMS, [0] * LANES)] * (2 * ROWS)
        outer = _Loop(builder, given[4], [moved(data(7), given[8]), *zeros])
        offset = builder.load(moved(moves, outer.index))
        inner = _Loop(builder, given[5], [offset, *outer.values])
        place, part, *sums = inner.values
        high, low = (
            builder.load(builder.bitcast(moved(part, _number(half)), _PAIRS.as_pointer()), align=2)
            for half in (0, PAIR_CODES // 2)
        )
        made = []
        for row in range(ROWS):
            pair = _pair_everywhere(builder, moved(rows[row], place))
            made.append(_add_products(builder, sums[2 * row], pair, high))
            made.append(_add_products(builder, sums[2 * row + 1], pair, low))
        behind = moved(part, _number(PAIR_CODES))
        inner.close([builder.add(place, given[6]), behind, *made])
        outer.close([behind, *made])
        for row in range(ROWS):
            address = builder.bitcast(moved(moved(data(9), given[10]), _number(LANES * row)), _TOTALS.as_pointer())
            highs, lows = (builder.sext(made[2 * row + half], _TOTALS) for half in (0, 1))
            both = builder.add(builder.shl(highs, _every(_TOTALS, [8] * LANES)), lows)
            builder.store(builder.add(builder.load(address, align=8), both), address, align=8)
        return context.get_dummy_value()

    arguments = (codes, origins, offsets, first, segments, pairs, step, parts, at, totals, tile)
    return types.void(*arguments), generate


# called without the typing context
add_pair_sums: Any = intrinsic(_add_pair_sums)
