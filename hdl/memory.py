"""Block memories: arrays that synthesis maps to M20K or MLAB blocks.

Words are raw unsigned vectors; take ``.signed()`` where they are used.  A read beside a write to the same
address returns the old word.  An address at or past ``depth`` is an error in MyHDL and undefined in Verilog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from myhdl import Signal, always, block, intbv

from hdl.signals import Bit, Bits, Clock, Instances

_unsimulated: ContextVar[bool] = ContextVar("unsimulated", default=False)


@contextmanager
def unsimulated() -> Iterator[None]:
    """Blocks elaborated inside are counted or converted, never simulated.

    All words of a memory without contents are one signal, so that a hundred thousand words cost no more than ten."""
    token = _unsimulated.set(True)
    try:
        yield
    finally:
        _unsimulated.reset(token)


# memories of at most so many words are made of logic (MLABs, two of 32 words): a block memory would stay almost empty,
# and takes as much of a device as several of them.  `hdl.convert.verilog` says so to synthesis
LOGIC_MEMORY_WORDS = 64

# words of one memory of logic, and of a block memory that is as wide as it can be, an M20K or a RAMB36
LOGIC_ROWS, BLOCK_ROWS = 32, 512

# words for which every part has block memories deep enough, of the fewest blocks (2 048 × 10 of an M20K, 2 048 × 9 of
# half a RAMB36): what is deeper chooses between blocks when it is read
BLOCK_WORDS = 2048


def several_blocks(depth: int) -> bool:
    """Whether a memory of ``depth`` words has blocks one above the other, so that a read ends in a multiplexer.

    The next register must follow at once, without other logic: `output_register` of `simple_dual_port`, that of
    `hdl.streams.reads`, or one of the reader's own."""
    return depth > BLOCK_WORDS


def filled(words: int) -> int:
    """Words for which a memory of ``words`` wide words has room: those of all its blocks."""
    rows = LOGIC_ROWS if words <= LOGIC_MEMORY_WORDS else BLOCK_ROWS
    return -(-words // rows) * rows


def address_width(depth: int) -> int:
    """Bits of an address of ``depth`` words; at least 1, since no signal has 0 bits."""
    return max(1, (depth - 1).bit_length())


def checked_contents(contents: Sequence[int] | None, depth: int, width: int) -> list[int]:
    """``contents`` as a list of ``depth`` raw words, zeros for None.  Raises ValueError when they don't fit."""
    if depth < 1 or width < 1:
        raise ValueError(f"a memory needs depth and width of at least 1, not {depth} x {width}")
    if contents is None:
        return [0] * depth
    words = [int(word) for word in contents]
    if len(words) != depth:
        raise ValueError(f"contents of {len(words)} words given for a memory of {depth}")
    for address, word in enumerate(words):
        if not 0 <= word < 1 << width:
            raise ValueError(f"word {word} at address {address} does not fit {width} unsigned bits")
    return words


class _OneWord(list[Bits]):
    """A list of ``depth`` words that are all the same signal, of which iteration meets one."""

    def __init__(self, word: Bits, depth: int) -> None:
        super().__init__([word])
        self._depth = depth

    def __len__(self) -> int:
        return self._depth

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(0 if index < self._depth else index)


def memory_words(contents: Sequence[int] | None, depth: int, width: int) -> list[Bits]:
    """A signal for each word of a memory; zeros if there are no contents."""
    words = checked_contents(contents, depth, width)
    if contents is None and _unsimulated.get():
        return _OneWord(Signal(intbv(0)[width:]), depth)
    return [Signal(intbv(word)[width:]) for word in words]


@block
def simple_dual_port(
    clk: Clock,
    write_enable: Bit,
    write_address: Bits,
    write_data: Bits,
    read_enable: Bit,
    read_address: Bits,
    read_data: Bits,
    *,
    depth: int,
    width: int,
    contents: Sequence[int] | None = None,
    output_register: bool = False,
    image: str | None = None,  # read by hdl.convert.verilog
) -> Instances:
    """A memory with one write port and one read port on one clock.

    Costs ``depth * width`` memory bits.

    Ports:
        write_enable: in, 1 bit.
        write_address: in, `address_width` ``(depth)`` bits, with ``write_enable``.
        write_data: in, ``width`` bits, with ``write_enable``; read from the next cycle on.
        read_enable: in, 1 bit.
        read_address: in, `address_width` ``(depth)`` bits, with ``read_enable``.
        read_data: out, ``width`` bits, 1 cycle after ``read_enable``, 2 with ``output_register``; then held until the
            next read.

    Args:
        contents: raw words at power-up; zeros if None.
        output_register: one more register behind the memory: two cycles, the second one in every clock
            cycle whatever ``read_enable`` says, and a faster clock.
        image: public name under which `hdl.convert.verilog` lets the contents be loaded from a file; then
            ``contents`` are no part of the Verilog text.
    """
    mem = memory_words(contents, depth, width)
    word = Signal(intbv(0)[width:])

    @always(clk.posedge)
    def write() -> None:
        if write_enable:
            mem[write_address].next = write_data

    if output_register:

        @always(clk.posedge)
        def read() -> None:
            if read_enable:
                word.next = mem[read_address]

        @always(clk.posedge)
        def output() -> None:
            read_data.next = word

        return write, read, output

    @always(clk.posedge)
    def read_directly() -> None:
        if read_enable:
            read_data.next = mem[read_address]

    return write, read_directly


@block
def dual_clock(
    write_clk: Clock,
    write_enable: Bit,
    write_address: Bits,
    write_data: Bits,
    read_clk: Clock,
    read_enable: Bit,
    read_address: Bits,
    read_data: Bits,
    *,
    depth: int,
    width: int,
) -> Instances:
    """A memory that is written at one clock and read at another; a word is to be read only when its write is long over.

    Costs ``depth * width`` memory bits.

    Ports:
        write_clk: in, 1 bit.
        write_enable: in, 1 bit.
        write_address: in, `address_width` ``(depth)`` bits, with ``write_enable``.
        write_data: in, ``width`` bits, with ``write_enable``.
        read_clk: in, 1 bit.
        read_enable: in, 1 bit.
        read_address: in, `address_width` ``(depth)`` bits, with ``read_enable``.
        read_data: out, ``width`` bits, 1 cycle of ``read_clk`` after ``read_enable``; then held until the next read.
    """
    mem = memory_words(None, depth, width)

    @always(write_clk.posedge)
    def write() -> None:
        if write_enable:
            mem[write_address].next = write_data

    @always(read_clk.posedge)
    def read() -> None:
        if read_enable:
            read_data.next = mem[read_address]

    return write, read


@block
def true_dual_port(
    clk: Clock,
    write_enable: Bit,
    write_data: Bits,
    read_enable: Bit,
    address: Bits,
    read_data: Bits,
    other_enable: Bit,
    other_address: Bits,
    other_data: Bits,
    *,
    depth: int,
    width: int,
    contents: Sequence[int] | None = None,
    image: str | None = None,  # read by hdl.convert.verilog
) -> Instances:
    """A memory with a port that writes or reads, and a port that reads, on one clock; output registers at both.

    Costs ``depth * width`` memory bits in blocks of both ports (`hdl.parts.part.Part.dual_shapes`); of few words, made
    of logic, two copies.  Arguments as in `simple_dual_port`.

    Ports:
        write_enable: in, 1 bit.
        write_data: in, ``width`` bits, with ``write_enable``; read from the next cycle on.
        read_enable: in, 1 bit; a read beside a write is left out.
        address: in, `address_width` ``(depth)`` bits, with either.
        read_data: out, ``width`` bits, 2 cycles after ``read_enable``; then held until the next read.
        other_enable: in, 1 bit.
        other_address: in, `address_width` ``(depth)`` bits, with ``other_enable``.
        other_data: out, ``width`` bits, 2 cycles after ``other_enable``; then held until the next read.
    """
    mem = memory_words(contents, depth, width)
    word, other_word = (Signal(intbv(0)[width:]) for _ in range(2))

    @always(clk.posedge)
    def access() -> None:
        if write_enable:
            mem[address].next = write_data
        elif read_enable:
            word.next = mem[address]

    @always(clk.posedge)
    def other_read() -> None:
        if other_enable:
            other_word.next = mem[other_address]

    @always(clk.posedge)
    def output() -> None:
        read_data.next = word
        other_data.next = other_word

    return access, other_read, output


@block
def read_only(
    clk: Clock,
    read_enable: Bit,
    read_address: Bits,
    read_data: Bits,
    *,
    depth: int,
    width: int,
    contents: Sequence[int] | None = None,
    output_register: bool = False,
    image: str | None = None,  # read by hdl.convert.verilog
) -> Instances:
    """A memory that is only read; arguments and cost as in `simple_dual_port`.

    Ports:
        read_enable: in, 1 bit.
        read_address: in, `address_width` ``(depth)`` bits, with ``read_enable``.
        read_data: out, ``width`` bits, 1 cycle after ``read_enable``, 2 with ``output_register``; then held until the
            next read.
    """
    mem = memory_words(contents, depth, width)
    word = Signal(intbv(0)[width:])

    if output_register:

        @always(clk.posedge)
        def read() -> None:
            if read_enable:
                word.next = mem[read_address]

        @always(clk.posedge)
        def output() -> None:
            read_data.next = word

        return read, output

    @always(clk.posedge)
    def read_directly() -> None:
        if read_enable:
            read_data.next = mem[read_address]

    return read_directly


@block
def running_count(
    clk: Clock,
    more: Bits,
    *,
    depth: int = 1,
    width: int,
    contents: Sequence[int] | None = None,
    image: str | None = None,  # read by hdl.convert.verilog
) -> Instances:
    """A word that grows by ``more`` in every cycle and wraps at its width; nothing in the circuit reads it.

    It is for whoever looks from outside, a simulation or a logic analyser; `hdl.convert.verilog` tells synthesis to
    keep it.

    Costs an adder and ``width`` registers.  ``depth`` is 1; ``contents`` and ``image`` as in `simple_dual_port`.

    Ports:
        more: in, fewer bits than ``width``, unsigned.
    """
    mem = memory_words(contents, depth, width)

    @always(clk.posedge)
    def grow() -> None:
        mem[0].next = mem[0] + more

    return grow
