"""What is read from a memory, as a stream."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block

from hdl.memory import several_blocks
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import m2s_pipe, wire


def output_register_latency(depth: int) -> int:
    """Cycles of `output_register`."""
    return int(several_blocks(depth))


@block
def output_register(domain: ClockReset, x: Stream, y: Stream, *, depth: int) -> Instances:
    """What leaves a memory of ``depth`` words, through an `m2s_pipe` if it is chosen between blocks, else as it is.

    A read then ends at this register: the blocks' words, the row that was read, a multiplexer.  Cost and latency: those
    of the stage, `output_register_latency`; one beat a cycle.

    Ports:
        x: in, stream of any width.
        y: out, stream as wide as ``x``, `output_register_latency` cycles later.
    """
    stage = m2s_pipe if several_blocks(depth) else wire
    return stage(domain, x, y)


@block
def read_stream(domain: ClockReset, wanted: Bit, fetch: Bit, word: Bits, y: Stream) -> Instances:
    """Words of a memory, read one ahead; its output is the buffer.

    Cost: a flip-flop.  Latency: 1, one beat a cycle.  ``y`` goes through an `output_register`.

    Ports:
        wanted: in, 1 bit: there is a word to read.
        fetch: out, 1 bit, combinational in ``wanted`` and ``y.ready``: read it now.
        word: in, as wide as ``y``: what was read, from the cycle after ``fetch`` until the next read.
        y: out, stream of words, 1 cycle after ``fetch``; its payload is ``word`` itself.
    """
    fetched = Signal(bool(0))

    @always_comb
    def decide() -> None:
        fetch.next = wanted and (y.ready or not fetched)

    @always_comb
    def out() -> None:
        y.valid.next = fetched
        y.payload.next = word

    @always(domain.clk.posedge)
    def step() -> None:
        if y.ready or not fetched:
            fetched.next = wanted
        if domain.rst:
            fetched.next = False

    return decide, out, step
