"""What coding takes of each element, added to the next tensor's: error feedback as a circuit.

    elements ─▶ + ─▶ cut ─▶ less what was coded ─┬▶ what is left
                ▲                                ▼
                └──── residuals, by element ◀────┘

Source: the golden model is `hdl.engine.codec.integer_codec.with_feedback`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.engine.arithmetic.rounding import sum_cycles, sum_stream
from hdl.engine.codec.cut import CUT_CYCLES, cut_stream
from hdl.engine.codec.integer_codec import Cut, IntegerCodec
from hdl.engine.codec.stages import next_stage
from hdl.engine.weights.access import Batches, batches_left
from hdl.engine.weights.records import COUNTER_BITS
from hdl.engine.weights.sections import MemoryAccess, accessed_dual_port
from hdl.engine.weights.update import tensor_ends
from hdl.fixed import Fixed
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter, join, queue
from hdl.streams.reads import output_register, output_register_latency, read_stream

# public name of the memory
RESIDUAL = "residual"


@dataclass(frozen=True)
class ResidualStreams:
    """Residuals that lie outside, in the order of elements, tensor by tensor."""

    back: Stream
    out: Stream


@dataclass(frozen=True)
class ResidualState:
    """Residuals that are loaded and dumped."""

    batches: Batches
    memory: MemoryAccess


def residual_fixed(codec: IntegerCodec, element: Fixed) -> Fixed:
    """Of what coding takes of an element: less than ``2**drop`` either way."""
    return Fixed(codec.drop + 1, element.fraction_bits)


def feedback_cycles(codec: IntegerCodec, element: Fixed) -> int:
    """Of `feedback_stream`, from an element to what is left of it: the sum, the cut, and the difference."""
    return sum_cycles(element, residual_fixed(codec, element), element) + CUT_CYCLES + 1


def loop_cycles(codec: IntegerCodec, element: Fixed, beats: int) -> int:
    """Cycles from one tensor of ``beats`` to the next at least: a residual is written before it is read again."""
    return 1 + output_register_latency(beats) + feedback_cycles(codec, element) + 1


@block
def feedback_stream(
    domain: ClockReset,
    x: Stream,
    noise: Stream | None,
    y: Stream,
    *,
    codec: IntegerCodec,
    element: Fixed,
    lanes: int,
    beats: int,
    contents: Sequence[int] | None,
    state: ResidualState | None = None,
    outside: ResidualStreams | None = None,
) -> Instances:
    """Elements and their residuals, coded; what that took is kept.

    Costs `cut_stream`, two adders a lane, and a memory of ``drop`` + 1 bits an element; one beat a cycle, but no tensor
    sooner than `loop_cycles` after another.

    Ports:
        x: in, stream of ``lanes`` codes of ``element``, ``beats`` a tensor.
        noise: in, stream of 16 random bits a lane; None but for `Cut.STOCHASTIC`.
        y: out, stream of ``lanes`` codes of ``element``, from registers.
        state: in and out, as of `residual_memory`.
        outside: in and out, where residuals don't lie here: those of ``x`` come by its ``back``, and go by its ``out``.
    """
    kept = residual_fixed(codec, element)
    bits, width, drop = lanes * kept.width, lanes * element.width, codec.drop
    old, wanted = (Stream(bits) if outside is None else outside.back), Stream(width)
    cut, both, less = wanted, Stream(2 * width), Stream(bits + width)
    drawn: Instances = ()
    if codec.cut is Cut.STOCHASTIC:
        assert noise is not None
        cut = Stream(width + noise.width)
        drawn = join(domain, [wanted, noise], cut)
    computed = Signal(intbv(0)[bits + width :])
    stage = next_stage(domain, both, computed, less)
    residuals = Signal(intbv(0)[bits:])
    element_bits, kept_bits, bound = element.width, kept.width, 1 << drop + 1

    @always_comb
    def subtract() -> None:
        # a residual has no more bits
        whole = intbv(0)[kept_bits:]
        left = intbv(0)[kept_bits:]
        total = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            left[:] = both.payload[lane * element_bits + kept_bits : lane * element_bits]
            whole[:] = both.payload[width + lane * element_bits + kept_bits : width + lane * element_bits]
            total[:] = whole
            total[:] = total - left
            residuals.next[bits_of(lane, kept_bits)] = total[kept_bits:]

    @always_comb
    def beside() -> None:
        computed.next = concat(residuals, both.payload[width:])

    return (
        sum_stream(domain, x, old, wanted, lanes=lanes, a_fixed=element, b_fixed=kept, target=element),
        drawn,
        cut_stream(domain, cut, both, codec=codec, lanes=lanes, beside=True),
        subtract,
        beside,
        stage,
        residual_memory(domain, less, y, old, beats=beats, contents=contents, state=state)
        if outside is None
        else residuals_out(domain, less, y, outside.out),
    )


@block
def residuals_out(domain: ClockReset, x: Stream, y: Stream, out: Stream) -> Instances:
    """What is left and the residuals beside it, each its way, together.  Costs a queue of two words.

    Ports:
        x: in, stream of as much as ``y`` has, and above it residuals.
        y: out, stream of any width, in the same cycle.
        out: out, stream of residuals, from registers.
    """
    low, high = y.width, x.width
    residuals = Stream(out.width)

    @always_comb
    def part() -> None:
        y.valid.next = x.valid and residuals.ready
        y.payload.next = x.payload[low:]
        residuals.valid.next = x.valid and y.ready
        residuals.payload.next = x.payload[high:low]
        x.ready.next = y.ready and residuals.ready

    return part, queue(domain, residuals, out, depth=2)


@block
def residual_memory(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    old: Stream,
    *,
    beats: int,
    contents: Sequence[int] | None,
    state: ResidualState | None = None,
) -> Instances:
    """Gives a tensor's residuals in the order in which they came, each once it is written.  Costs the memory and three
    counters.

    Ports:
        x: in, stream of as much as ``y`` has, and above it residuals.
        y: out, stream of any width, in the same cycle.
        old: out, stream of residuals; those of ``contents`` first.
        state: in and out, of which batches residuals are given, and what is loaded and dumped between them; drives
            ``batches.rests`` and what the memory holds.  None: of all.
    """
    low, high, most = y.width, x.width, beats
    read_at, write_at = (Signal(intbv(0)[address_width(beats) :]) for _ in range(2))
    # residuals that were read and not written anew
    out = Signal(intbv(0, min=0, max=beats + 1))
    wanted, fetch, write = (Signal(bool(0)) for _ in range(3))
    word, new = (Signal(intbv(0)[old.width :]) for _ in range(2))
    words = Stream(old.width)
    if state is None:
        limits: Instances = ()
        store = simple_dual_port(
            domain.clk, write, write_at, new, fetch, read_at, word, depth=beats, width=old.width, contents=contents,
            image=RESIDUAL,
        )  # fmt: skip

        @always_comb
        def decide() -> None:
            wanted.next = out != most

    else:
        opened = Signal(bool(0))
        limits = tensors_left(domain, state.batches, fetch, out, opened, beats=beats)
        store = accessed_dual_port(
            domain.clk, write, write_at, new, fetch, read_at, word, state.memory, depth=beats, contents=contents,
            public=RESIDUAL, output_register=False,
        )  # fmt: skip

        @always_comb
        def decide() -> None:
            wanted.next = opened and out != most

    @always_comb
    def pass_on() -> None:
        y.valid.next = x.valid
        y.payload.next = x.payload[low:]
        x.ready.next = y.ready
        write.next = x.valid and y.ready
        new.next = x.payload[high:low]

    @always(domain.clk.posedge)
    def count() -> None:
        if fetch and not write:
            out.next = out + 1
        elif write and not fetch:
            out.next = out - 1
        if domain.rst:
            out.next = 0

    return (
        store,
        limits,
        decide,
        pass_on,
        count,
        counter(domain, fetch, read_at, count=beats),
        counter(domain, write, write_at, count=beats),
        read_stream(domain, wanted, fetch, word, words),
        output_register(domain, words, old, depth=beats),
    )


@block
def tensors_left(domain: ClockReset, batches: Batches, fetch: Bit, out: Bits, opened: Bit, *, beats: int) -> Instances:
    """Residuals of as many batches as are said are given; between them all are written.  Costs two counters.

    Ports:
        batches: in and out; drives ``rests``, from registers.
        fetch: in, 1 bit, only while ``opened``: a residual is read at this edge.
        out: in, of any width: residuals that were read and not written anew.
        opened: out, 1 bit, from a register: one may be.
    """
    left = Signal(intbv(0)[COUNTER_BITS:])
    trained = Signal(bool(0))
    ends = tensor_ends(domain, fetch, trained, beats=beats)
    count = batches_left(domain, batches, trained, left)

    @always_comb
    def decide() -> None:
        opened.next = left != 0
        batches.rests.next = left == 0 and out == 0 and not batches.more

    return ends, count, decide
