"""Constants in a read-only memory, as a stream."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, block, intbv

from hdl.engine.arithmetic.lanes import always_on
from hdl.memory import address_width, read_only
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, output_register, read_stream


@block
def constant_stream(
    domain: ClockReset, words: Stream, *, depth: int, public: str, contents: Sequence[int] | None = None
) -> Instances:
    """The ``depth`` words of a read-only memory, in order, again and again.

    Ports:
        words: out, stream of words of any width; valid from a register, payload from the memory, or from a register
            behind it where it is of several blocks.
    """
    width = words.width
    at = Signal(intbv(0)[address_width(depth) :])
    word = Signal(intbv(0)[width:])
    read = Stream(width)
    fetch, wanted = Signal(bool(0)), Signal(bool(0))
    always_wanted = always_on(domain.clk, wanted)
    store = read_only(domain.clk, fetch, at, word, depth=depth, width=width, contents=contents, image=public)
    reads = read_stream(domain, wanted, fetch, word, read)
    leave = output_register(domain, read, words, depth=depth)
    move = counter(domain, fetch, at, count=depth)
    return always_wanted, store, reads, leave, move
