"""Random words and stochastic rounding as circuits; `hdl.random_bits` says which bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from myhdl import Signal, always, always_comb, block, concat, intbv, modbv

from hdl.engine.arithmetic.tables import GATE_BITS, signal_for
from hdl.errors import FoldingError
from hdl.fixed import Fixed, IntArray
from hdl.random_bits import ROUNDING_BITS, ROUNDS, WORD, round_keys
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import bits_of
from hdl.tensor import Tile

# cycles of `hash32_pipeline`, counted in cycles with ``enable``
HASH_LATENCY = ROUNDS + 1
# cycles of `round_stochastically`, counted in cycles with ``enable``
ROUNDING_LATENCY = 2


@block
def hash32_pipeline(clk: Clock, enable: Bit, index: Bits, step: Bits, key: int, result: Bits) -> Instances:
    """`hash32` for a vector of elements, one round a cycle, `HASH_LATENCY` cycles; stalls while ``enable`` is low.

    Costs 64 registers and a 32-bit adder a round and lane, and registers for ``index`` and ``step``, which come from
    adders of their own.

    Ports:
        enable: in, 1 bit.
        index: in, any number of lanes of `WORD` bits, lane 0 in the low bits, with ``enable``.
        step: in, 32 bits, for all lanes, with ``index``.
        result: out, as wide as ``index``, `HASH_LATENCY` cycles later, held while ``enable`` is low.

    Args:
        key: constant.
    """
    words = round_keys(key)
    x = [Signal(intbv(0)[len(index) :]) for _ in range(ROUNDS)]
    y = [Signal(intbv(0)[len(index) :]) for _ in range(ROUNDS)]
    held_index, held_step = Signal(intbv(0)[len(index) :]), Signal(intbv(0)[WORD:])
    whiten = hash32_whitening(held_index, held_step, words[0], words[1], x[0], y[0])
    x_last = Signal(intbv(0)[len(index) :])
    x_next, y_next = [*x[1:], x_last], [*y[1:], result]
    rounds = [
        hash32_round(clk, enable, x[stage], y[stage], words[2 + stage], x_next[stage], y_next[stage])
        for stage in range(ROUNDS)
    ]

    @always(clk.posedge)
    def hold() -> None:
        if enable:
            held_index.next = index
            held_step.next = step

    return whiten, rounds, hold


@block
def hash32_whitening(index: Bits, step: Bits, word_x: int, word_y: int, x: Bits, y: Bits) -> Instances:
    """The key whitening before the first round, combinational.

    Ports:
        index: in, any number of lanes of `WORD` bits.
        step: in, 32 bits.
        x, y: out, as wide as ``index``, in the same cycle.
    """
    lanes = len(x) // WORD

    @always_comb
    def whiten() -> None:
        for lane in range(lanes):
            x.next[bits_of(lane, 32)] = index[bits_of(lane, 32)] ^ intbv(word_x)[32:]
            y.next[bits_of(lane, 32)] = step ^ intbv(word_y)[32:]

    return whiten


@block
def hash32_round(clk: Clock, enable: Bit, x: Bits, y: Bits, word: int, x_next: Bits, y_next: Bits) -> Instances:
    """One round of Speck-64 with a constant round key on all lanes, registered.

    Ports:
        enable: in, 1 bit.
        x, y: in, any number of lanes of `WORD` bits each, with ``enable``.
        x_next, y_next: out, as wide, 1 cycle later, held while ``enable`` is low.
    """
    lanes = len(x) // WORD

    @always(clk.posedge)
    def one_round() -> None:
        old_x = intbv(0)[32:]
        old_y = intbv(0)[32:]
        total = modbv(0)[32:]
        if enable:
            for lane in range(lanes):
                old_x[:] = x[bits_of(lane, 32)]
                old_y[:] = y[bits_of(lane, 32)]
                total[:] = concat(old_x[8:], old_x[32:8]) + old_y
                total[:] = total ^ intbv(word)[32:]
                x_next.next[bits_of(lane, 32)] = total
                y_next.next[bits_of(lane, 32)] = concat(old_y[29:], old_y[32:29]) ^ total

    return one_round


@block
def gather_lanes(lanes: Sequence[Bits], vector: Bits) -> Instances:
    """A list of equally wide signals as one flat vector, lane 0 in the low bits; combinational.

    Ports:
        lanes: in, of any width.
        vector: out, as wide as all lanes together, in the same cycle.
    """
    count = len(lanes)
    width = len(lanes[0])

    @always_comb
    def gather() -> None:
        for lane in range(count):
            vector.next[bits_of(lane, width)] = lanes[lane]

    return gather


@block
def round_stochastically(
    clk: Clock, enable: Bit, codes: Bits, random: Bits, result: Bits, *, lanes: int, shift: int, target: Fixed
) -> Instances:
    """`stochastic_round_shift` and saturation for a vector, `ROUNDING_LATENCY` cycles; stalls without ``enable``.

    Costs an adder of the width of a code and two registers a lane.

    Ports:
        enable: in, 1 bit.
        codes: in, ``lanes`` equally wide signed codes, lane 0 in the low bits, with ``enable``.
        random: in, ``16 * lanes`` bits, with ``codes``.
        result: out, ``lanes`` codes of ``target``, `ROUNDING_LATENCY` cycles later, held while ``enable`` is low.

    Args:
        shift: bits to cut off; may be negative.
    """
    width = len(codes) // lanes
    cut = max(shift, 0)
    grow = max(-shift, 0)
    # bits of the number before saturation
    kept = max(width + 1 - cut + grow, target.width + 1)
    total = 1 << (kept + cut - 1)
    sums = [Signal(intbv(0, min=-total, max=total)) for _ in range(lanes)]
    out_width = target.width
    low, high = target.low & ((1 << out_width) - 1), target.high
    sign = 1 if target.signed else 0
    noise_bits = min(cut, ROUNDING_BITS)
    noise_shift = cut - noise_bits
    spare = ROUNDING_BITS - noise_bits

    if cut == 0:

        @always(clk.posedge)
        def add() -> None:
            code = intbv(0, min=-total, max=total)
            if enable:
                for lane in range(lanes):
                    code[:] = codes[bits_of(lane, width)].signed()
                    sums[lane].next = code << grow

    else:

        @always(clk.posedge)
        def add() -> None:
            code = intbv(0, min=-total, max=total)
            noise = intbv(0, min=-total, max=total)
            if enable:
                for lane in range(lanes):
                    code[:] = codes[bits_of(lane, width)].signed()
                    noise[:] = random[lane * 16 + 16 : lane * 16 + spare]
                    noise[:] = noise << noise_shift
                    sums[lane].next = code + noise

    @always(clk.posedge)
    def saturate() -> None:
        number = intbv(0)[kept:]
        over = intbv(0)[kept - out_width + sign :]
        if enable:
            for lane in range(lanes):
                number[:] = sums[lane][kept + cut : cut]
                over[:] = number[kept : out_width - sign]
                if number[kept - 1]:
                    if sign == 1 and over == (1 << (kept - out_width + sign)) - 1:
                        result.next[bits_of(lane, out_width)] = number[out_width:]
                    else:
                        result.next[bits_of(lane, out_width)] = intbv(low)[out_width:]
                elif over == 0:
                    result.next[bits_of(lane, out_width)] = number[out_width:]
                else:
                    result.next[bits_of(lane, out_width)] = intbv(high)[out_width:]

    return add, saturate


def index_plan(shape: tuple[int, ...], tile: Tile, lanes: int) -> IntArray:
    """Offsets (beats a tile, lanes) of elements from the first element of their tile, for `stream_indices`.

    A vector counts as tiles of ``lanes`` elements in natural order.  Raises `FoldingError` unless ``lanes``
    divides a tile."""
    if len(shape) == 1:
        return np.arange(lanes, dtype=np.int64).reshape(1, lanes)
    if tile.size % lanes:
        raise FoldingError(
            f"{lanes} lanes of weights or gradients do not divide a tile of {tile.size} ({tile})",
            "choose lanes with hdl.layers.folding.weight_lanes",
        )
    return tile.order(shape)[: tile.size].reshape(-1, lanes)


@block
def stream_indices(
    domain: ClockReset, advance: Bit, index: Bits, *, shape: tuple[int, ...], tile: Tile, lanes: int
) -> Instances:
    """The canonical element indices of successive beats of a parameter's stream, in the order `Tile.order`.

    ``index`` (``32 * lanes`` bits) belongs to the current beat; at a clock edge with ``advance`` it moves on, and
    after the last beat of the tensor starts anew.  That of an empty place is any number.  Costs counters and a 32-bit
    adder a lane (a narrow one after synthesis, since the offsets are constants); where a tile takes many beats, a
    register of the offset too.

    Ports:
        advance: in, 1 bit: on to the next beat at this edge.
        index: out, ``32 * lanes`` bits, lane 0 in the low bits, of the current beat; the first one's after reset.
    """
    plan = index_plan(shape, tile, lanes)
    beats = len(plan)
    if len(shape) == 1:
        runs = (1, 1, shape[0] // lanes)
        steps = (lanes, lanes, lanes)
    else:
        channels, taps = shape[1], math.prod(shape[2:])
        filter_runs, channel_runs, tap_runs = tile.counts(shape)
        runs = (tap_runs, channel_runs, filter_runs)
        next_channel = tile.pk + (tile.pi - 1) * taps
        # from the last taps of the last channels of a tile of filters
        next_filter = tile.pk - taps - (channel_runs - 1) * tile.pi * taps + tile.po * channels * taps
        steps = (tile.pk, next_channel, next_filter)
    indices = [Signal(modbv(0)[WORD:]) for _ in range(lanes)]
    offsets = [tuple(int(row[lane]) for row in plan) for lane in range(lanes)]
    base = Signal(intbv(0)[WORD:])
    phase = Signal(intbv(0)[max(1, (beats - 1).bit_length()) :])
    gather = gather_lanes(indices, index)
    if beats <= 1 << GATE_BITS:
        count_base = tile_bases(domain, advance, phase, base, beats, runs, steps)
        return count_base, [add_offset(base, phase, offsets[lane], indices[lane]) for lane in range(lanes)], gather
    # tables of many gates: the counters run a beat ahead, and the beat's base and offsets stand in registers
    ahead = tile_bases(domain, advance, phase, base, beats, runs, steps, start_phase=1)
    held = Signal(intbv(0)[WORD:])
    chosen = [signal_for(offsets[lane], offsets[lane][0]) for lane in range(lanes)]
    reads = [held_offset(domain, advance, phase, chosen[lane], offsets[lane]) for lane in range(lanes)]
    adders = [add_chosen(held, chosen[lane], indices[lane]) for lane in range(lanes)]
    return ahead, hold_base(domain, advance, base, held), reads, adders, gather


@block
def hold_base(domain: ClockReset, advance: Bit, base: Bits, held: Bits) -> Instances:
    """The base of the current beat, from a counter that is a beat ahead.

    Ports:
        advance: in, 1 bit.
        base: in, 32 bits, of the next beat, with ``advance``.
        held: out, 32 bits, 1 cycle later.
    """

    @always(domain.clk.posedge)
    def hold() -> None:
        if domain.rst:
            held.next = 0
        elif advance:
            held.next = base

    return hold


@block
def held_offset(domain: ClockReset, advance: Bit, phase: Bits, chosen: Bits, offsets: tuple[int, ...]) -> Instances:
    """The offset of the current beat, from a counter that is a beat ahead.

    Ports:
        advance: in, 1 bit.
        phase: in, as wide as an index of ``offsets``, of the next beat, with ``advance``.
        chosen: out, as wide as the greatest offset, 1 cycle later.
    """
    first = offsets[0]

    @always(domain.clk.posedge)
    def hold() -> None:
        if domain.rst:
            chosen.next = first
        elif advance:
            chosen.next = offsets[int(phase)]

    return hold


@block
def add_chosen(base: Bits, offset: Bits, index: Bits) -> Instances:
    """Their sum modulo 2**32, combinational.

    Ports:
        base: in, 32 bits.
        offset: in, at most 32 bits.
        index: out, 32 bits, in the same cycle.
    """

    @always_comb
    def add() -> None:
        index.next = base + offset

    return add


@block
def tile_bases(
    domain: ClockReset,
    advance: Bit,
    phase: Bits,
    base: Bits,
    beats: int,
    runs: tuple[int, int, int],
    steps: tuple[int, int, int],
    start_phase: int = 0,
) -> Instances:
    """Counts beats in a tile (``phase``, from ``start_phase`` on after reset) and the first element of the tile
    (``base``).

    Ports:
        advance: in, 1 bit: on to the next beat at this edge.
        phase: out, as wide as an index of the ``beats`` of a tile, from a register.
        base: out, 32 bits, from a register.

    Args:
        runs: how often the tile moves along taps, channels, filters.
        steps: distance to the next tile within the taps, to the next channels, to the next filters.
    """
    tap_runs, channel_runs, filter_runs = runs
    tap_step, channel_step, filter_step = steps
    tap = Signal(intbv(0, min=0, max=max(2, tap_runs)))
    channel = Signal(intbv(0, min=0, max=max(2, channel_runs)))
    filter_group = Signal(intbv(0, min=0, max=max(2, filter_runs)))

    @always(domain.clk.posedge)
    def count() -> None:
        if domain.rst:
            phase.next = start_phase
            base.next = 0
            tap.next = 0
            channel.next = 0
            filter_group.next = 0
        elif advance:
            if phase != beats - 1:
                phase.next = phase + 1
            else:
                phase.next = 0
                if tap != tap_runs - 1:
                    tap.next = tap + 1
                    base.next = base + tap_step
                else:
                    tap.next = 0
                    if channel != channel_runs - 1:
                        channel.next = channel + 1
                        base.next = base + channel_step
                    else:
                        channel.next = 0
                        if filter_group != filter_runs - 1:
                            filter_group.next = filter_group + 1
                            base.next = base + filter_step
                        else:
                            filter_group.next = 0
                            base.next = 0

    return count


@block
def add_offset(base: Bits, phase: Bits, offsets: tuple[int, ...], index: Bits) -> Instances:
    """A constant, chosen by the beat of the tile, added to its base, modulo 2**32; combinational.

    Ports:
        base: in, 32 bits.
        phase: in, as wide as an index of ``offsets``.
        index: out, 32 bits, in the same cycle.
    """
    if len(offsets) == 1:
        constant = offsets[0]

        @always_comb
        def add_constant() -> None:
            index.next = base + constant

        return add_constant

    @always_comb
    def add() -> None:
        offset = intbv(0)[WORD:]
        offset[:] = offsets[int(phase)]
        index.next = base + offset

    return add
