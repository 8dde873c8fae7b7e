"""The engine behind the forward and the error circuit of a convolution: stored map times streamed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always_comb, block, intbv

from hdl.engine.arithmetic.mac import MacShape, mac_array, signed_signal
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import REQUANTISE_LATENCY, accumulator, delay_line, requantise_lanes
from hdl.engine.weights.buffer import weight_buffer
from hdl.engine.weights.shared import WeightPort, shared_weight_buffer
from hdl.engine.window.frame_buffers import frame_sums, reorder_frame
from hdl.engine.window.map_reader import map_reader
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import Steps, WeightSteps
from hdl.fixed import Fixed
from hdl.recipe import Recipe
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import queue, width_adapter

# results that may be on their way; more than the latency of the pipeline, so that it never limits the rate
RESULTS = 32


@dataclass(frozen=True)
class EngineShape:
    """Everything that a convolution engine is built from."""

    walk: Walk
    mac: MacShape
    weights: WeightSteps
    # weight words a version; of one pass over the map if they are streamed
    words: int
    # rows of the ring
    ring_rows: int
    # of the sums: bits that are cut off
    shift: int
    result: Fixed
    recipe: Recipe
    # frames of results that are put in order at a time, for streamed weights
    frames: int = 2
    # passes whose weights are there at a time, for streamed weights
    slots: int = 2
    # elements a pixel of the stored map, and of the results, where the last word of a pixel is not full; else 0
    stored_pixel: int = 0
    result_pixel: int = 0

    @property
    def streamed(self) -> bool:
        """Whether weights come once a frame, a pass at a time, instead of once a batch."""
        return self.walk.outer_repeat

    @property
    def frame_bits(self) -> int:
        """Bits of a sum over all passes."""
        return self.total_bits + (self.walk.repeat - 1).bit_length()

    @property
    def total_bits(self) -> int:
        """Bits of a complete sum of one pass."""
        return self.mac.sum_bits + (self.walk.operations - 1).bit_length()


@block
def convolution(
    domain: ClockReset,
    x: Stream,
    w: Stream | None,
    y: Stream,
    *,
    shape: EngineShape,
    contents: Sequence[int] | None = None,
    port: WeightPort | None = None,
) -> Instances:
    """Reads a map and weight versions, writes results in the order of the walk; rates as `Walk.cycles` says.

    The pipeline runs freely: an operation starts only when a place for its result is free, so nothing in it stalls.
    Latency from the start of a result's last operation: 15 cycles and the levels of the adder tree.

    The empty places of a ragged tile meet zeros: what is left of a pixel's last stored word is filled with them, and
    what is left of its last word of results does not leave.

    When weights are streamed, ``w`` brings all of them once a frame and there is a pass over the map for each group of
    them.  Then results are put in order, or summed over the passes, in a memory of whole frames.

    Ports:
        x: in, stream of codes of ``shape.mac.operand``, any number a beat.
        w: in, stream of codes of ``shape.mac.weight``, any number a beat, in the stream order of the weights; None
            where they stay as they are.
        y: out, stream of codes of ``shape.result``, any number a beat.

    Args:
        port: of a weight memory elsewhere, which then has version 0 and is given the others.
    """
    walk, mac = shape.walk, shape.mac
    steps = Steps(walk, shape.ring_rows, shape.words)
    map_words = Stream(mac.operands * mac.operand.width)
    weight_words = Stream(mac.sums * mac.terms * mac.weight.width)
    adapt_x = width_adapter(domain, x, map_words, element_bits=mac.operand.width, flush_every=shape.stored_pixel)
    adapt_w = [] if w is None else width_adapter(domain, w, weight_words, element_bits=mac.weight.width)
    claim, claimable, may, done = (Signal(bool(0)) for _ in range(4))
    words = [Signal(intbv(0)[map_words.width :]) for _ in range(walk.taps)]
    weight = Signal(intbv(0)[weight_words.width :])
    if port is None:
        versions = weight_buffer(
            domain,
            None if w is None else weight_words,
            claim,
            claimable,
            steps.weight_read,
            steps.weight,
            steps.weight_pass_last,
            weight,
            words=shape.words,
            recipe=shape.recipe,
            contents=contents,
            streamed=shape.streamed,
            slots=shape.slots,
        )
    else:
        claim, claimable, weight, room = port.claim, port.claimable, port.word, Signal(bool(0))
        versions = weight_access(port, steps, room, may)
    read = map_reader(
        domain,
        map_words,
        words,
        claim,
        claimable,
        may,
        steps,
        walk=walk,
        ring_rows=shape.ring_rows,
        weights=shape.weights,
    )
    sums = [signed_signal(mac.sum_bits) for _ in range(mac.sums)]
    multiply = mac_array(domain.clk, weight, words, steps.inside, sums, shape=mac)
    late = [Signal(bool(0)) for _ in range(3)]
    flags = [
        delay_line(domain.clk, source, late[flag], cycles=mac.latency)
        for flag, source in enumerate((steps.valid, steps.first, steps.last))
    ]
    totals = [signed_signal(shape.total_bits) for _ in range(mac.sums)]
    accumulate = accumulator(domain.clk, late[0], late[1], late[2], sums, totals, done)
    leave = leave_by_frame if shape.streamed else leave_at_once
    leaving = leave(domain, steps, totals, done, may if port is None else room, y, shape=shape)
    return adapt_x, adapt_w, versions, read, multiply, flags, accumulate, leaving


@block
def weight_access(port: WeightPort, steps: Steps, room: Bit, may: Bit) -> Instances:
    """Asks a memory elsewhere for what a walk reads.  Costs a gate.

    Ports:
        port: out, ``advance``, ``offset`` and ``frame_last`` alone; ``pause`` is in.
        steps: in, ``weight_read``, ``weight`` and ``weight_pass_last`` alone.
        room: in, 1 bit: the consumer takes an operation in this cycle.
        may: out, 1 bit: so does the memory.
    """

    @always_comb
    def ask() -> None:
        port.advance.next = steps.weight_read
        port.offset.next = steps.weight
        port.frame_last.next = steps.weight_pass_last

    @always_comb
    def gate() -> None:
        may.next = room and not port.pause

    return ask, gate


@block
def convolution_pair(
    domain: ClockReset,
    x: Stream,
    e: Stream,
    w: Stream,
    y: Stream,
    dx: Stream,
    *,
    forward: EngineShape,
    error: EngineShape,
    contents: Sequence[int] | None = None,
) -> Instances:
    """Two engines with one weight memory: see `convolution` and `hdl.engine.weights.shared`.

    Ports:
        x: in, stream of codes of ``forward.mac.operand``, any number a beat.
        e: in, stream of codes of ``error.mac.operand``, any number a beat.
        w: in, stream of codes of ``forward.mac.weight``, any number a beat, in the stream order of the weights.
        y: out, stream of codes of ``forward.result``, any number a beat.
        dx: out, stream of codes of ``error.result``, any number a beat.
    """
    mac = forward.mac
    weight_words = Stream(mac.sums * mac.terms * mac.weight.width)
    ports = [WeightPort(forward.words, weight_words.width) for _ in range(2)]
    return (
        width_adapter(domain, w, weight_words, element_bits=mac.weight.width),
        shared_weight_buffer(domain, weight_words, *ports, words=forward.words, recipe=forward.recipe,
                             slots=forward.slots, contents=contents),
        convolution(domain, x, None, y, shape=forward, port=ports[0]),
        convolution(domain, e, None, dx, shape=error, port=ports[1]),
    )  # fmt: skip


@block
def leave_at_once(
    domain: ClockReset, steps: Steps, totals: Sequence[Bits], done: Bit, may: Bit, y: Stream, *, shape: EngineShape
) -> Instances:
    """Rounds results and hands them out in the order in which they come.

    Ports:
        steps: in, ``issue_last`` alone.
        totals: in, signed signals of ``shape.total_bits`` bits.
        done: in, 1 bit, with ``totals`` that are complete.
        may: out, 1 bit, from registers: there is room for a result.
        y: out, stream of codes of ``shape.result``, any number a beat.
    """
    results, taken = (Stream(len(totals) * shape.result.width) for _ in range(2))
    rounding = requantise_lanes(domain.clk, totals, results.payload, shift=shape.shift, target=shape.result)
    mark = delay_line(domain.clk, done, results.valid, cycles=REQUANTISE_LATENCY)
    hold = queue(domain, results, taken, depth=RESULTS)
    places = result_places(domain, steps.issue_last, taken, may, places=RESULTS)
    adapt = width_adapter(domain, taken, y, element_bits=shape.result.width, flush_every=shape.result_pixel)
    return rounding, mark, hold, places, adapt


@block
def leave_by_frame(
    domain: ClockReset, steps: Steps, totals: Sequence[Bits], done: Bit, may: Bit, y: Stream, *, shape: EngineShape
) -> Instances:
    """Sums results over passes, or puts those of all passes into raster order; rounds them and hands them out.

    Ports:
        steps: in, ``issue_final`` or ``issue_frame_last`` alone.
        totals: in, signed signals of ``shape.total_bits`` bits.
        done: in, 1 bit, with ``totals`` that are complete for their pass.
        may: out, 1 bit, from registers: there is room for a result of the last pass, or for the frame at work.
        y: out, stream of codes of ``shape.result``, any number a beat.
    """
    walk = shape.walk
    results, taken = (Stream(len(totals) * shape.result.width) for _ in range(2))
    adapt = width_adapter(domain, taken, y, element_bits=shape.result.width, flush_every=shape.result_pixel)
    if walk.sums_repeats:
        words = walk.pixels * walk.reduce
        sums = [signed_signal(shape.frame_bits) for _ in range(len(totals))]
        summed = Signal(bool(0))
        adding = frame_sums(domain, totals, done, sums, summed, words=words, passes=walk.repeat)
        rounding = requantise_lanes(domain.clk, sums, results.payload, shift=shape.shift, target=shape.result)
        mark = delay_line(domain.clk, summed, results.valid, cycles=REQUANTISE_LATENCY)
        # the last pass brings a frame's results faster than they leave
        hold = queue(domain, results, taken, depth=words + RESULTS)
        places = result_places(domain, steps.issue_final, taken, may, places=words + RESULTS)
        return adding, rounding, mark, hold, places, adapt
    rounding = requantise_lanes(domain.clk, totals, results.payload, shift=shape.shift, target=shape.result)
    mark = delay_line(domain.clk, done, results.valid, cycles=REQUANTISE_LATENCY)
    order = reorder_frame(
        domain,
        results,
        taken,
        steps.issue_frame_last,
        may,
        pixels=walk.pixels,
        repeat=walk.repeat,
        frames=shape.frames,
    )
    return rounding, mark, order, adapt
