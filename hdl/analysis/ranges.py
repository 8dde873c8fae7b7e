"""Intervals of integers, the ranges of MyHDL's objects, and how MyHDL declares local variables in Verilog."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from myhdl import intbv
from myhdl._enum import EnumItemType
from myhdl._Signal import _Signal

from hdl.errors import ConversionError


class UnknownConstruct(ConversionError):
    """The analysis met something it has no rule for; the message has file and line."""


# --------------------------------------------------------------------------------------------- intervals


class Interval(NamedTuple):
    """All integers from ``low`` to ``high``, both included."""

    low: int
    high: int

    @property
    def width(self) -> int:
        """Bits of the narrowest vector that holds every value (two's complement if any is negative)."""
        if self.low >= 0:
            return max(1, self.high.bit_length())
        return max((-self.low - 1).bit_length(), self.high.bit_length() if self.high > 0 else 0) + 1

    @property
    def signed(self) -> bool:
        """Some value is negative."""
        return self.low < 0

    @property
    def constant(self) -> int | None:
        """The only value, or None if there are several."""
        return self.low if self.low == self.high else None

    def join(self, other: Interval) -> Interval:
        """The smallest interval that has both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def fits(self, width: int, signed: bool) -> bool:
        """Every value is represented exactly by ``width`` bits."""
        space = signed_range(width) if signed else unsigned_range(width)
        return space.low <= self.low and self.high <= space.high


BIT = Interval(0, 1)


def unsigned_range(width: int) -> Interval:
    """0 … 2**width - 1."""
    return Interval(0, (1 << width) - 1)


def signed_range(width: int) -> Interval:
    """-2**(width-1) … 2**(width-1) - 1."""
    return Interval(-(1 << (width - 1)), (1 << (width - 1)) - 1)


def hull(values: list[int]) -> Interval:
    """The smallest interval that has all values."""
    return Interval(min(values), max(values))


def combine(op: ast.operator, a: Interval, b: Interval) -> Interval:
    """The interval of ``a op b`` in Python's arithmetic.  Raises KeyError for an unknown operator."""
    result: Interval = _OPERATIONS[type(op)](a, b)
    return result


def _bitwise(a: Interval, b: Interval) -> Interval:
    width = max(a.width + (b.signed and not a.signed), b.width + (a.signed and not b.signed))
    return signed_range(width) if a.signed or b.signed else unsigned_range(width)


def _and(a: Interval, b: Interval) -> Interval:
    limits = [x.high for x in (a, b) if not x.signed]
    return Interval(0, min(limits)) if limits else _bitwise(a, b)


def _divide(a: Interval, b: Interval) -> Interval:
    divisors = [x for x in (b.low, b.high, -1, 1) if b.low <= x <= b.high and x]
    if not divisors:
        raise ZeroDivisionError("division by a constant 0")
    return hull([x // y for x in (a.low, a.high) for y in divisors])


def _modulo(a: Interval, b: Interval) -> Interval:
    if b.low > 0 and a.low >= 0:
        return a if a.high < b.low else Interval(0, min(a.high, b.high - 1))
    return Interval(min(0, b.low + 1), max(0, b.high - 1))


def shift_left(a: Interval, b: Interval) -> Interval:
    """``a << b`` for counts that aren't negative."""
    counts = (max(0, b.low), max(0, b.high))
    return hull([x << n for x in (a.low, a.high) for n in counts])


def shift_right(a: Interval, b: Interval) -> Interval:
    """``a >> b`` for counts that aren't negative."""
    counts = (max(0, b.low), max(0, b.high))
    return hull([x >> n for x in (a.low, a.high) for n in counts])


def _power(a: Interval, b: Interval) -> Interval:
    if a.constant is None or b.constant is None or b.low < 0:
        raise KeyError("**")
    return Interval(a.low**b.low, a.low**b.low)


_OPERATIONS: Mapping[type[ast.operator], Any] = {
    ast.Add: lambda a, b: Interval(a.low + b.low, a.high + b.high),
    ast.Sub: lambda a, b: Interval(a.low - b.high, a.high - b.low),
    ast.Mult: lambda a, b: hull([x * y for x in (a.low, a.high) for y in (b.low, b.high)]),
    ast.FloorDiv: _divide,
    ast.Mod: _modulo,
    ast.LShift: shift_left,
    ast.RShift: shift_right,
    ast.BitAnd: _and,
    ast.BitOr: _bitwise,
    ast.BitXor: _bitwise,
    ast.Pow: _power,
}


# ----------------------------------------------------------------------------------------- MyHDL's objects


@dataclass(frozen=True)
class Declaration:
    """How MyHDL declares a variable in Verilog.  A Python int becomes an ``integer``: 32 bits, signed."""

    width: int
    signed: bool
    # an intbv: its length is known to Python too
    sized: bool = False
    # MyHDL believes that it may be negative, and leaves it as it is in signed expressions
    negative: bool = False


# a number that MyHDL takes for possibly negative, and one that it takes for not negative
INTEGER = Declaration(32, True, negative=True)
NATURAL = Declaration(32, True)
ONE_BIT = Declaration(1, False)


class Local(NamedTuple):
    """A local variable: what it is in Verilog, and what it can be now."""

    declaration: Declaration
    interval: Interval
    # length of the intbv it is now, None for a Python number
    bits: int | None = None
    # range of the intbv it was made as; what any write keeps within
    declared: Interval | None = None
    # counts assignments, so that equal names with different contents aren't taken for equal
    version: int = 0
    loop: bool = False


class Value(NamedTuple):
    """An evaluated expression; ``bits`` is the length of an intbv, None for a Python number."""

    interval: Interval
    bits: int | None = None


def declared_range(item: Any) -> Value | None:
    """Range of a signal, an intbv, an enum item or a number; None for anything else."""
    if isinstance(item, _Signal):
        if item._type is bool:
            return Value(BIT)
        if isinstance(item._init, EnumItemType):
            return Value(unsigned_range(item._nrbits), item._nrbits)
        return Value(_bounds(item._min, item._max, item._nrbits), item._nrbits)
    if isinstance(item, intbv):
        if not item._nrbits:
            return None
        return Value(_bounds(item._min, item._max, item._nrbits), item._nrbits)
    if isinstance(item, EnumItemType):
        return Value(unsigned_range(item._nrbits), item._nrbits)
    if isinstance(item, bool | int):
        return Value(Interval(int(item), int(item)))
    return None


def _bounds(low: int | None, high: int | None, width: int) -> Interval:
    if low is None or high is None:
        return unsigned_range(width)
    return Interval(low, high - 1)


def declaration_of(item: Any) -> Declaration:
    """How MyHDL declares a local that is assigned this object."""
    found = declared_range(item)
    if found is None:
        return INTEGER
    if found.bits is None:
        if isinstance(item, int) and not isinstance(item, bool):
            return INTEGER if item < 0 else NATURAL
        return ONE_BIT
    return Declaration(found.bits, found.interval.signed, sized=True, negative=found.interval.signed)
