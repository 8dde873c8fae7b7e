"""The FIFO: one block for every depth, with named cases."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from myhdl import Signal, always, always_comb, block, intbv

from hdl.memory import address_width, simple_dual_port
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import m2s_pipe, same_width, wire

# the greatest depth that is kept in flip-flops
REGISTER_DEPTH = 4


class QueueKind(Enum):
    """What a queue is made of."""

    # depth 0: a wire
    BYPASS = "bypass"
    # depth 1: `m2s_pipe`; the only non-empty queue whose ready depends on the ready behind it
    STAGE = "stage"
    # up to `REGISTER_DEPTH`: a shift register
    REGISTERS = "registers"
    # deeper: a memory (MLAB or M20K, as the part's threshold says) and an output register
    MEMORY = "memory"


def queue_kind(depth: int) -> QueueKind:
    """The kind of a queue of ``depth`` beats.  Raises ValueError for a negative depth."""
    if depth < 0:
        raise ValueError(f"a queue can't be {depth} beats deep; use 0 for a wire")
    if depth <= 1:
        return QueueKind.STAGE if depth else QueueKind.BYPASS
    return QueueKind.REGISTERS if depth <= REGISTER_DEPTH else QueueKind.MEMORY


def queue_latency(depth: int) -> int:
    """Cycles from a beat's entry into an empty queue to its first cycle at the output."""
    return {QueueKind.BYPASS: 0, QueueKind.STAGE: 1, QueueKind.REGISTERS: 1, QueueKind.MEMORY: 3}[queue_kind(depth)]


@block
def queue(domain: ClockReset, x: Stream, y: Stream, *, depth: int) -> Instances:
    """A FIFO that holds exactly ``depth`` beats and passes one a cycle.

    Cost: 0, nothing; 1, payload + 1 flip-flops; 2 to 4, depth × payload flip-flops and a few for control; more,
    a memory of depth × payload bits, payload flip-flops and about 4 log2(depth) for control.
    Latency: `queue_latency`.  From depth 2 on, ready, and for every depth but 0 valid and payload, come from registers.

    Ports:
        x: in, stream of any width.
        y: out, stream as wide as ``x``, `queue_latency` cycles later.
    """
    same_width("queue", x, y)
    kinds = {QueueKind.BYPASS: wire, QueueKind.STAGE: m2s_pipe}
    kind = queue_kind(depth)
    if kind in kinds:
        inside = kinds[kind](domain, x, y)
    elif kind is QueueKind.REGISTERS:
        inside = register_queue(domain, x, y, depth=depth)
    else:
        inside = memory_queue(domain, x, y, depth=depth)
    return inside


@block
def register_queue(domain: ClockReset, x: Stream, y: Stream, *, depth: int) -> Instances:
    """A shift register whose lowest slot is the output; see `queue`.

    Ports:
        x: in, stream of any width; its ready from a register.
        y: out, stream as wide as ``x``, 1 cycle later; valid and payload from registers.
    """
    width = same_width("register_queue", x, y)
    slots = [Signal(intbv(0)[width:]) for _ in range(depth)]
    count = Signal(intbv(0, min=0, max=depth + 1))
    ready, valid = Signal(bool(1)), Signal(bool(0))
    push, pop = Signal(bool(0)), Signal(bool(0))
    last = depth - 1

    @always_comb
    def handshake() -> None:
        push.next = x.valid and ready
        pop.next = valid and y.ready

    @always_comb
    def out() -> None:
        x.ready.next = ready
        y.valid.next = valid
        y.payload.next = slots[0]

    @always(domain.clk.posedge)
    def shift() -> None:
        if pop:
            for i in range(last):
                slots[i].next = slots[i + 1]
        for i in range(depth):
            if push and ((not pop and count == i) or (pop and count == i + 1)):
                slots[i].next = x.payload

    @always(domain.clk.posedge)
    def step() -> None:
        if push and not pop:
            count.next = count + 1
            valid.next = True
            ready.next = count != last
        elif pop and not push:
            count.next = count - 1
            valid.next = count != 1
            ready.next = True
        if domain.rst:
            count.next = 0
            valid.next = False
            ready.next = True

    return handshake, out, shift, step


@block
def memory_queue(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    *,
    depth: int,
    preload: int = 0,
    contents: Sequence[int] | None = None,
    public: str | None = None,
) -> Instances:
    """A ring in a memory, prefetched through the memory's output into a register of its own; see `queue`.

    ``preload`` beats stand in it after reset, from ``contents`` or the image named ``public`` (``depth`` words).

    Ports:
        x: in, stream of any width; its ready from a register.
        y: out, stream as wide as ``x``, 3 cycles later; valid and payload from registers.
    """
    width = same_width("memory_queue", x, y)
    if not 0 <= preload <= depth or depth < 2:
        raise ValueError(f"a queue of {depth} beats can't start with {preload}; depth must be at least 2")
    word, payload = Signal(intbv(0)[width:]), Signal(intbv(0)[width:])
    write_at, read_at = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    # beats in all, beats in the memory that aren't being fetched
    count = Signal(intbv(0, min=0, max=depth + 1))
    stored = Signal(intbv(0, min=0, max=depth + 1))
    # fetched: `word` holds a beat; valid: `payload` does
    ready, fetched, valid = Signal(bool(0)), Signal(bool(0)), Signal(bool(0))
    push, pop, fetch, move = (Signal(bool(0)) for _ in range(4))
    last = depth - 1
    first_write = preload % depth
    ready_first = preload < depth
    store = simple_dual_port(
        domain.clk,
        push,
        write_at,
        x.payload,
        fetch,
        read_at,
        word,
        depth=depth,
        width=width,
        contents=contents,
        image=public,
    )

    @always_comb
    def handshake() -> None:
        push.next = x.valid and ready
        pop.next = valid and y.ready

    @always_comb
    def advance() -> None:
        move.next = fetched and (y.ready or not valid)
        fetch.next = stored != 0 and (not fetched or y.ready or not valid)

    @always_comb
    def out() -> None:
        x.ready.next = ready
        y.valid.next = valid
        y.payload.next = payload

    @always(domain.clk.posedge)
    def prefetch() -> None:
        if move:
            payload.next = word
            valid.next = True
        elif pop:
            valid.next = False
        if fetch:
            fetched.next = True
        elif move:
            fetched.next = False
        if domain.rst:
            valid.next = False
            fetched.next = False

    @always(domain.clk.posedge)
    def addresses() -> None:
        if push:
            if write_at == last:
                write_at.next = 0
            else:
                write_at.next = write_at + 1
        if fetch:
            if read_at == last:
                read_at.next = 0
            else:
                read_at.next = read_at + 1
        if domain.rst:
            write_at.next = first_write
            read_at.next = 0

    @always(domain.clk.posedge)
    def counts() -> None:
        if push and not fetch:
            stored.next = stored + 1
        elif fetch and not push:
            stored.next = stored - 1
        if push and not pop:
            count.next = count + 1
            ready.next = count != last
        elif pop and not push:
            count.next = count - 1
            ready.next = True
        else:
            ready.next = count != depth
        if domain.rst:
            stored.next = preload
            count.next = preload
            ready.next = ready_first

    return store, handshake, advance, out, prefetch, addresses, counts
