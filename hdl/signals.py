"""What circuits are given: a clock, bits, vectors.  MyHDL's signals are all of these; it has no types of its own.

How wide a vector is, what it holds and when stands in the docstring of the block that takes it, under "Ports": a line
for each port with its direction as the block sees it, its width in terms of the parameters, and its timing.  What
stands in double quotes is an expression of the parameters (``n`` codes of ``a_fixed``, ``n + 1`` bits, as wide as
``x``); tests/test_ports.py evaluates it, and holds directions and widths against the circuits of all layers.  A
``domain`` is a `ClockReset`; a block that nothing resets has ``clk`` alone, and works on its rising edges.  These are
not said again.  A stream is in if its beats come in; where it is only watched, the block gives no ready.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from myhdl import Signal

# what `myhdl.block` makes of instances, generators and lists of them
Instances: TypeAlias = Any


class Clock(Protocol):
    """A clock; circuits here work on rising edges only."""

    @property
    def posedge(self) -> Any:
        """For `myhdl.always`."""


class Bits(Protocol):
    """A signal of ``len`` bits, read as a number; inside a generator ``next`` takes what it becomes."""

    @property
    def next(self) -> Any:
        """The value after this step."""

    @next.setter
    def next(self, value: Any) -> None: ...

    @property
    def posedge(self) -> Any:
        """For `myhdl.always`."""

    @property
    def min(self) -> Any:
        """The least value; None of a single bit."""

    @property
    def max(self) -> Any:
        """One more than the greatest value; None of a single bit."""

    @property
    def val(self) -> Any:
        """The value now, outside a generator."""

    def signed(self) -> int:
        """The same bits in two's complement."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int | slice) -> Any: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __invert__(self) -> Any: ...
    def __neg__(self) -> Any: ...
    def __add__(self, other: Any) -> Any: ...
    def __radd__(self, other: Any) -> Any: ...
    def __sub__(self, other: Any) -> Any: ...
    def __rsub__(self, other: Any) -> Any: ...
    def __mul__(self, other: Any) -> Any: ...
    def __rmul__(self, other: Any) -> Any: ...
    def __and__(self, other: Any) -> Any: ...
    def __rand__(self, other: Any) -> Any: ...
    def __or__(self, other: Any) -> Any: ...
    def __ror__(self, other: Any) -> Any: ...
    def __xor__(self, other: Any) -> Any: ...
    def __rxor__(self, other: Any) -> Any: ...
    def __lshift__(self, other: Any) -> Any: ...
    def __rshift__(self, other: Any) -> Any: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: Any) -> bool: ...
    def __le__(self, other: Any) -> bool: ...
    def __gt__(self, other: Any) -> bool: ...
    def __ge__(self, other: Any) -> bool: ...


# one wire
Bit: TypeAlias = Bits


class ClockReset:
    """The clock of a circuit and its reset: rising edges of ``clk`` count; ``rst`` is 1 bit, synchronous, high.

    As a port, whatever its name, it becomes ``clk`` and ``rst``.  Signals that are not given are its own.
    """

    def __init__(self, clk: Clock | None = None, rst: Bit | None = None) -> None:
        self.clk: Clock = Signal(bool(0)) if clk is None else clk
        self.rst: Bit = Signal(bool(0)) if rst is None else rst
