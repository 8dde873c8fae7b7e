"""Slow arithmetic for once a frame and channel: squares, square roots, reciprocals, a few bits a cycle.

All take a list of lanes at once.  Operands are taken with ``load`` and needn't be held; results hold until the next
``load``, which must not come before the result is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import signed_lanes
from hdl.signals import Bit, Bits, Clock, Instances

# bits of a number by which it is multiplied in a cycle, to square it
DIGIT_BITS = 4


def square_latency(bits: int) -> int:
    """Cycles from ``load`` to the square of a magnitude of ``bits`` bits."""
    return -(-bits // DIGIT_BITS) + 3


@block
def serial_square(clk: Clock, load: Bit, numbers: Sequence[Bits], squares: Sequence[Bits], *, bits: int) -> Instances:
    """``squares = numbers**2``, `DIGIT_BITS` bits a cycle, `square_latency`; magnitudes are below ``2**bits``.

    A digit times the number in two steps, then it is added above what stands already; costs seven registers of about
    ``bits`` and four adders a lane.

    Ports:
        load: in, 1 bit.
        numbers: in, signed signals of at least ``bits + 1`` bits, with ``load``.
        squares: out, unsigned signals of ``2 * bits`` bits, `square_latency` cycles after ``load``.
    """
    lanes = len(numbers)
    rounds = -(-bits // DIGIT_BITS)
    low_bits = rounds * DIGIT_BITS
    high_bits, out_bits = bits + 1, len(squares[0])
    ones = (1 << (bits + 1)) - 1
    magnitude = [Signal(intbv(0)[bits:]) for _ in range(lanes)]
    digits, lows = ([Signal(intbv(0)[low_bits:]) for _ in range(lanes)] for _ in range(2))
    # a number times the low and the high half of a digit, times the digit, and what stands above `lows`
    times_low, times_high = ([Signal(intbv(0)[bits + 2 :]) for _ in range(lanes)] for _ in range(2))
    parts = [Signal(intbv(0)[bits + DIGIT_BITS :]) for _ in range(lanes)]
    highs = [Signal(intbv(0)[high_bits:]) for _ in range(lanes)]
    left = Signal(intbv(0, min=0, max=rounds + 1))
    halved, whole = Signal(bool(0)), Signal(bool(0))

    @always(clk.posedge)
    def count() -> None:
        halved.next = left != 0
        whole.next = halved
        if load:
            left.next = rounds
        elif left != 0:
            left.next = left - 1

    @always(clk.posedge)
    def multiply() -> None:
        number = intbv(0)[bits + 1 :]
        one = intbv(0)[1:]
        once = intbv(0)[bits + 2 :]
        twice = intbv(0)[bits + 2 :]
        low = intbv(0)[bits + DIGIT_BITS :]
        high = intbv(0)[bits + DIGIT_BITS :]
        for lane in range(lanes):
            if load:
                number[:] = numbers[lane][bits + 1 :]
                one[:] = numbers[lane][bits]
                if numbers[lane][bits]:
                    number[:] = number ^ intbv(ones)[bits + 1 :]
                number[:] = number + one
                magnitude[lane].next = number[bits:]
                digits[lane].next = number[bits:]
            else:
                digits[lane].next = digits[lane] >> 4
            once[:] = 0
            if digits[lane][0]:
                once[:] = magnitude[lane]
            twice[:] = 0
            if digits[lane][1]:
                twice[:] = magnitude[lane]
                twice[:] = twice << 1
            times_low[lane].next = once + twice
            once[:] = 0
            if digits[lane][2]:
                once[:] = magnitude[lane]
            twice[:] = 0
            if digits[lane][3]:
                twice[:] = magnitude[lane]
                twice[:] = twice << 1
            times_high[lane].next = once + twice
            low[:] = times_low[lane]
            high[:] = times_high[lane]
            high[:] = high << 2
            parts[lane].next = low + high

    @always(clk.posedge)
    def add() -> None:
        total = intbv(0)[bits + DIGIT_BITS + 1 :]
        part = intbv(0)[bits + DIGIT_BITS + 1 :]
        for lane in range(lanes):
            if load:
                highs[lane].next = 0
            elif whole:
                total[:] = highs[lane]
                part[:] = parts[lane]
                total[:] = total + part
                highs[lane].next = total[bits + DIGIT_BITS + 1 : DIGIT_BITS]
                lows[lane].next = concat(total[DIGIT_BITS:], lows[lane][low_bits:DIGIT_BITS])

    @always_comb
    def out() -> None:
        for lane in range(lanes):
            squares[lane].next = concat(highs[lane][out_bits - low_bits :], lows[lane])

    return count, multiply, add, out


@block
def whole_square(clk: Clock, load: Bit, numbers: Sequence[Bits], squares: Sequence[Bits], *, bits: int) -> Instances:
    """As `serial_square`, of one multiplier a lane, and there before `square_latency`.

    Ports:
        load: in, 1 bit.
        numbers: in, signed signals of at least ``bits + 1`` bits, with ``load``; that many fit a multiplier.
        squares: out, unsigned signals of ``2 * bits`` bits, 2 cycles after ``load``.
    """
    lanes, width, out_bits = len(numbers), bits + 1, 2 * bits
    held = signed_lanes(lanes, width)
    products = signed_lanes(lanes, 2 * width)

    @always(clk.posedge)
    def hold() -> None:
        for lane in range(lanes):
            if load:
                held[lane].next = numbers[lane][width:].signed()

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(lanes):
            products[lane].next = held[lane] * held[lane]

    @always_comb
    def out() -> None:
        for lane in range(lanes):
            squares[lane].next = products[lane][out_bits:]

    return hold, multiply, out


def root_latency(bits: int) -> int:
    """Cycles from ``load`` to a root of ``bits`` bits."""
    return bits + 1


@block
def serial_root(clk: Clock, load: Bit, numbers: Sequence[Bits], roots: Sequence[Bits], *, bits: int) -> Instances:
    """``roots = floor(sqrt(numbers))``, a bit a cycle, `root_latency`; numbers are unsigned, of ``2 * bits`` bits.

    Costs registers of about ``4 * bits`` and a subtractor a lane.

    Ports:
        load: in, 1 bit.
        numbers: in, unsigned signals of ``2 * bits`` bits, with ``load``.
        roots: out, unsigned signals of ``bits`` bits, `root_latency` cycles after ``load``.
    """
    lanes = len(numbers)
    rest = [Signal(intbv(0)[2 * bits :]) for _ in range(lanes)]
    remainder = [Signal(intbv(0)[bits + 2 :]) for _ in range(lanes)]
    left = Signal(intbv(0, min=0, max=bits + 1))

    @always(clk.posedge)
    def count() -> None:
        if load:
            left.next = bits
        elif left != 0:
            left.next = left - 1

    @always(clk.posedge)
    def step() -> None:
        trial = intbv(0)[bits + 2 :]
        test = intbv(0)[bits + 2 :]
        for lane in range(lanes):
            if load:
                rest[lane].next = numbers[lane]
                remainder[lane].next = 0
                roots[lane].next = 0
            elif left != 0:
                rest[lane].next = concat(rest[lane][2 * bits - 2 :], intbv(0)[2:])
                trial[:] = concat(remainder[lane][bits:], rest[lane][2 * bits : 2 * bits - 2])
                test[:] = concat(roots[lane], intbv(1)[2:])
                if trial >= test:
                    trial[:] = trial - test
                    remainder[lane].next = trial
                    roots[lane].next = concat(roots[lane][bits - 1 :], intbv(1)[1:])
                else:
                    remainder[lane].next = trial
                    roots[lane].next = concat(roots[lane][bits - 1 :], intbv(0)[1:])

    return count, step


def reciprocal_latency(bits: int) -> int:
    """Cycles from ``load`` to a quotient of ``bits`` bits."""
    return bits + 2


@block
def serial_reciprocal(
    clk: Clock, load: Bit, divisors: Sequence[Bits], quotients: Sequence[Bits], *, exponent: int
) -> Instances:
    """``quotients = min(round(2**exponent / divisors), highest)``, a bit a cycle, `reciprocal_latency`; divisors are
    above 1.

    Rounds to nearest, ties up: what remains at the end, doubled, is not below the divisor.
    Costs registers of about three divisors, a subtractor and an adder a lane.

    Ports:
        load: in, 1 bit.
        divisors: in, unsigned signals of any width, with ``load``.
        quotients: out, unsigned signals of any width, `reciprocal_latency` cycles of that width after ``load``.
    """
    lanes, bits = len(divisors), len(quotients[0])
    rounds = min(bits, exponent)
    width = max(len(divisors[0]), exponent - rounds + 1) + 1
    first = 1 << (exponent - rounds)
    highest = (1 << bits) - 1
    divisor = [Signal(intbv(0)[width:]) for _ in range(lanes)]
    remainder = [Signal(intbv(0)[width:]) for _ in range(lanes)]
    partial = [Signal(intbv(0)[bits:]) for _ in range(lanes)]
    over = [Signal(bool(0)) for _ in range(lanes)]
    left = Signal(intbv(0, min=0, max=rounds + 2))

    @always(clk.posedge)
    def count() -> None:
        if load:
            left.next = rounds + 1
        elif left != 0:
            left.next = left - 1

    @always(clk.posedge)
    def step() -> None:
        trial = intbv(0)[width + 1 :]
        for lane in range(lanes):
            if load:
                divisor[lane].next = divisors[lane]
                partial[lane].next = 0
                if divisors[lane] <= first:
                    over[lane].next = True
                    remainder[lane].next = 0
                else:
                    over[lane].next = False
                    remainder[lane].next = first
            elif left > 1:
                trial[:] = concat(remainder[lane], intbv(0)[1:])
                if trial >= divisor[lane]:
                    trial[:] = trial - divisor[lane]
                    remainder[lane].next = trial[width:]
                    partial[lane].next = concat(partial[lane][bits - 1 :], intbv(1)[1:])
                else:
                    remainder[lane].next = trial[width:]
                    partial[lane].next = concat(partial[lane][bits - 1 :], intbv(0)[1:])
            elif left == 1:
                trial[:] = concat(remainder[lane], intbv(0)[1:])
                if over[lane]:
                    quotients[lane].next = highest
                elif trial >= divisor[lane] and partial[lane] != highest:
                    quotients[lane].next = partial[lane] + 1
                else:
                    quotients[lane].next = partial[lane]

    return count, step


def unsigned_lanes(count: int, bits: int) -> list[Bits]:
    """A list of unsigned signals."""
    return [Signal(intbv(0)[bits:]) for _ in range(count)]


__all__ = [
    "reciprocal_latency",
    "root_latency",
    "serial_reciprocal",
    "serial_root",
    "serial_square",
    "signed_lanes",
    "square_latency",
    "unsigned_lanes",
    "whole_square",
]
