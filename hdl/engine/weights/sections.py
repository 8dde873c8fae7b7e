"""Memories of any shape as words of state: one after the other, and each of their words in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.weights.records import WORD_BITS
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream


class MemoryAccess:
    """A second way to a memory, while nobody else works on it."""

    def __init__(self, depth: int, width: int) -> None:
        self.depth, self.width = depth, width
        # the word at `at` is read, or `word` written there, at this edge
        self.read: Bit = Signal(bool(0))
        self.write: Bit = Signal(bool(0))
        self.at: Bits = Signal(intbv(0)[address_width(depth) :])
        self.word: Bits = Signal(intbv(0)[width:])
        # of the memory: what was read, 2 cycles after `read`, until the next
        self.held: Bits = Signal(intbv(0)[width:])


def pieces_of(width: int) -> int:
    """Words of state that a word of a memory takes."""
    return -(-width // WORD_BITS)


def split_words(words: Sequence[int], width: int) -> list[int]:
    """Words of a memory in pieces, low bits first."""
    mask = (1 << WORD_BITS) - 1
    return [word >> WORD_BITS * piece & mask for word in words for piece in range(pieces_of(width))]


def joined_words(pieces: Sequence[int], width: int) -> list[int]:
    """The inverse of `split_words`."""
    size = pieces_of(width)
    return [
        sum(piece << WORD_BITS * index for index, piece in enumerate(pieces[at : at + size]))
        for at in range(0, len(pieces), size)
    ]


@block
def accessed_dual_port(
    clk: Clock,
    write: Bit,
    write_at: Bits,
    data: Bits,
    read: Bit,
    read_at: Bits,
    old: Bits,
    access: MemoryAccess,
    *,
    depth: int,
    contents: Sequence[int] | None,
    public: str,
    output_register: bool = True,
) -> Instances:
    """`simple_dual_port` with a second way to it.  Costs multiplexers.

    Ports:
        write: in, 1 bit.
        write_at: in, `address_width` ``(depth)`` bits, with ``write``.
        data: in, as wide as ``old``, with ``write``.
        read: in, 1 bit.
        read_at: in, `address_width` ``(depth)`` bits, with ``read``.
        old: out, a word of any width, 2 cycles after ``read``; 1 without an output register.
        access: in and out; drives ``held``.
    """
    any_write, any_read = Signal(bool(0)), Signal(bool(0))
    written_at, from_at = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    written = Signal(intbv(0)[len(old) :])
    store = simple_dual_port(
        clk, any_write, written_at, written, any_read, from_at, old,
        depth=depth, width=len(old), contents=contents, output_register=output_register, image=public,
    )  # fmt: skip

    @always_comb
    def choose() -> None:
        any_write.next = write or access.write
        any_read.next = read or access.read
        access.held.next = old
        if access.write:
            written_at.next = access.at
            written.next = access.word
        else:
            written_at.next = write_at
            written.next = data
        if access.read:
            from_at.next = access.at
        else:
            from_at.next = read_at

    return store, choose


@block
def state_sections(
    domain: ClockReset,
    taken: Stream,
    given: Stream,
    giving: Bit,
    memories: Sequence[MemoryAccess],
    *,
    order: tuple[int, ...],
) -> Instances:
    """Writes what is taken into memories, and gives what they hold, in the same order.

    Costs two registers of the widest word, and counters.

    Ports:
        taken: in, stream of `WORD_BITS` bits: state that is loaded.
        given: out, stream of `WORD_BITS` bits: state, while ``giving``; valid and payload from registers.
        giving: in, 1 bit: state is wanted.
        memories: in and out; drives all of them but ``held``.

    Args:
        order: memories, one after the other; those that stand there several times are gone through as often.
    """
    count, pieces = len(order), tuple(pieces_of(memories[index].width) for index in order)
    most, deepest = max(pieces), max(memory.depth for memory in memories)
    last_pieces = tuple(number - 1 for number in pieces)
    last_places = tuple(memories[index].depth - 1 for index in order)
    last_section = count - 1
    section = Signal(intbv(0)[address_width(count) :])
    target = Signal(intbv(0)[address_width(len(memories)) :])
    place, last_place = (Signal(intbv(0)[address_width(deepest) :]) for _ in range(2))
    piece, last_piece = (Signal(intbv(0)[address_width(most) :]) for _ in range(2))
    parts = [Signal(intbv(0)[WORD_BITS:]) for _ in range(most)]
    whole, out = Signal(intbv(0)[WORD_BITS * most :]), Signal(intbv(0)[WORD_BITS * most :])
    # a word is written, is read, is in the memory, is in its output, is there; all have been given
    writing, reading, asked, coming, there, ended = (Signal(bool(0)) for _ in range(6))
    came, left = Signal(bool(0)), Signal(bool(0))
    advance = Signal(bool(0))
    fetched = Signal(intbv(0)[WORD_BITS * most :])
    ways = [
        memory_way(memory, target, place, whole, writing, reading, number=number)
        for number, memory in enumerate(memories)
    ]
    choose = chosen_word(memories, target, fetched)

    @always_comb
    def where() -> None:
        target.next = order[section]

    @always_comb
    def where_last() -> None:
        last_place.next = last_places[section]

    @always_comb
    def how_many() -> None:
        last_piece.next = last_pieces[section]

    @always_comb
    def join_parts() -> None:
        for index in range(most):
            whole.next[index * WORD_BITS + WORD_BITS : index * WORD_BITS] = parts[index]

    @always_comb
    def handshake() -> None:
        taken.ready.next = not writing
        came.next = taken.valid and not writing
        given.valid.next = there
        given.payload.next = out[WORD_BITS:]
        left.next = there and given.ready

    @always_comb
    def decide() -> None:
        reading.next = giving and not ended and not asked and not coming and not there
        advance.next = writing or (left and piece == last_piece)

    @always(domain.clk.posedge)
    def pass_on() -> None:
        writing.next = came and piece == last_piece
        asked.next = reading
        coming.next = asked
        if came:
            for index in range(most):
                if piece == index:
                    parts[index].next = taken.payload
        if coming:
            out.next = fetched
            there.next = True
        elif left:
            out.next = out >> WORD_BITS
            if piece == last_piece:
                there.next = False
        if came or left:
            if piece == last_piece:
                piece.next = 0
            else:
                piece.next = piece + 1
        if domain.rst:
            writing.next = False
            asked.next = False
            coming.next = False
            there.next = False
            piece.next = 0

    @always(domain.clk.posedge)
    def count_words() -> None:
        if not giving:
            ended.next = False
        if advance:
            if place == last_place:
                place.next = 0
                if section == last_section:
                    section.next = 0
                    ended.next = giving
                else:
                    section.next = section + 1
            else:
                place.next = place + 1
        if domain.rst:
            place.next = 0
            section.next = 0
            ended.next = False

    return ways, choose, where, where_last, how_many, join_parts, handshake, decide, pass_on, count_words


@block
def memory_way(
    memory: MemoryAccess, target: Bits, place: Bits, whole: Bits, writing: Bit, reading: Bit, *, number: int
) -> Instances:
    """What a memory is told where it is the ``number``th.

    Ports:
        memory: out, all of it but ``held``.
        target: in, of any width: the number of the memory that is meant.
        place: in, at least as wide as ``memory.at``.
        whole: in, at least as wide as ``memory.word``.
        writing, reading: in, 1 bit each.
    """
    width, bits = memory.width, len(memory.at)

    @always_comb
    def tell() -> None:
        memory.write.next = writing and target == number
        memory.read.next = reading and target == number
        memory.at.next = place[bits:]
        memory.word.next = whole[width:]

    return tell


@block
def chosen_word(memories: Sequence[MemoryAccess], target: Bits, word: Bits) -> Instances:
    """What one of several memories holds.

    Ports:
        memories: in, ``held`` alone.
        target: in, of any width: the number of the memory.
        word: out, at least as wide as the widest of them.
    """
    held = [Signal(intbv(0)[len(word) :]) for _ in memories]
    wide = [wide_word(memory.held, each) for memory, each in zip(memories, held, strict=True)]
    count = len(held)

    @always_comb
    def choose() -> None:
        word.next = 0
        for index in range(count):
            if target == index:
                word.next = held[index]

    return wide, choose


@block
def wide_word(word: Bits, wide: Bits) -> Instances:
    """A word with zeros above it.

    Ports:
        word: in, of any width.
        wide: out, at least as wide.
    """

    @always_comb
    def widen() -> None:
        wide.next = word

    return widen
