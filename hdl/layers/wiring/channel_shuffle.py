"""Channel shuffle (ShuffleNet): the channels of every pixel, ``groups`` rows of them, go column by column.

    y[h, v, j * groups + i] = x[h, v, i * channels / groups + j]        for i below groups

Backwards it is a shuffle with ``channels / groups`` groups.  No value changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.constants import constant_stream
from hdl.engine.arithmetic.lanes import join_lanes
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.elementwise import OfMap
from hdl.layers.storage import Memory
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import m2s_pipe, output_register, output_register_latency, read_stream
from hdl.tensor import Kind, Port, Tensor

# cycles from the last beat of a pixel to its first one out: it counts, a word is read, one is chosen
READ_CYCLES = 3


@dataclass(frozen=True)
class Read:
    """What a lane of y does in the beats of a pixel: lanes of x that it ever takes, and in each beat, from which beat
    of x, and which of those lanes."""

    lanes: tuple[int, ...]
    beats: tuple[int, ...]
    choices: tuple[int, ...]

    @property
    def choice_bits(self) -> int:
        """Bits of a choice; 0 where there is none."""
        return (len(self.lanes) - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class ChannelShuffle(OfMap):
    """Sink ``x``, source ``y``, in the format of x.

    All channels a beat: wires and a register.  Else a pixel is written while the one before is read, from a memory for
    every lane of y, in an order that stands in a read-only memory.  A lane of y keeps only those lanes of x that it
    takes, one to ``groups`` of them as a rule."""

    # that divide the channels
    groups: int = 2
    # ACTIVATION forwards, ERROR backwards
    kind: Kind = Kind.ACTIVATION
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1 or self.channels % self.groups:
            raise ShapeError(
                f"ChannelShuffle: {self.groups} groups do not divide {self.channels} channels",
                "choose groups that divide them",
            )

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.shape, self.x_fixed, self.kind), self.lanes),)

    @property
    def order(self) -> IntArray:
        """Channel of y -> channel of x."""
        return np.arange(self.channels).reshape(self.groups, -1).T.reshape(-1)

    # ---- cycles

    @property
    def depth(self) -> int:
        """Words of two pixels, each in a half of its own."""
        return 2 << address_width(self.pixel_beats)

    @property
    def pipeline_cycles(self) -> int:
        """From the last beat of a pixel to its first one out, and on to its last."""
        return self.latency_cycles("y") + self.pixel_beats - 1

    def latency_cycles(self, source: str) -> int:
        """A register, or a read."""
        del source
        return 1 if self.pixel_beats == 1 else READ_CYCLES + output_register_latency(self.depth)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Whole pixels."""
        del source
        return {"x": -(-elements // self.channels) * self.channels}

    # ---- meaning

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The channels in another order."""
        del state
        return {"y": self._shuffled(inputs["x"])}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The channels in another order."""
        del state
        return {"y": self._shuffled(inputs["x"])}

    def _shuffled(self, x: Any) -> Any:
        rows = x.reshape(*x.shape[:-1], self.groups, self.channels // self.groups)
        return np.ascontiguousarray(rows.swapaxes(-1, -2)).reshape(x.shape)

    def backward(self, tape: Tape) -> None:
        """The errors, back in their order."""
        if tape.needs_error("x"):
            engine = ChannelShuffle(
                height=self.height, width=self.width, channels=self.channels,
                groups=self.channels // self.groups, kind=Kind.ERROR,
            )  # fmt: skip
            tape.give_error("x", tape.add("error", engine, {"x": tape.error("y")})["y"])

    # ---- hardware

    @property
    def reads(self) -> tuple[Read, ...]:
        """By lane of y."""
        found = []
        for of_lane in self.order.reshape(self.pixel_beats, self.lanes).T:
            lanes = tuple(sorted({int(channel) % self.lanes for channel in of_lane}))
            beats = tuple(int(channel) // self.lanes for channel in of_lane)
            found.append(Read(lanes, beats, tuple(lanes.index(int(channel) % self.lanes) for channel in of_lane)))
        return tuple(found)

    @property
    def order_bits(self) -> int:
        """Bits of a word of the order: the beat of every lane, the choice of every lane, whether it is the last."""
        return self.lanes * address_width(self.pixel_beats) + sum(read.choice_bits for read in self.reads) + 1

    def memories(self) -> tuple[Memory, ...]:
        """The order."""
        return (Memory("order", self.pixel_beats, self.order_bits),) if self.pixel_beats > 1 else ()

    def images(self, state: State) -> dict[str, list[int]]:
        """Word by beat of y."""
        del state
        if self.pixel_beats == 1:
            return {}
        words = []
        for beat in range(self.pixel_beats):
            word, at = 0, 0
            for read in self.reads:
                word |= read.beats[beat] << at
                at += address_width(self.pixel_beats)
            for read in self.reads:
                word |= read.choices[beat] << at
                at += read.choice_bits
            words.append(word | int(beat == self.pixel_beats - 1) << at)
        return {"order": words}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        if self.pixel_beats == 1:
            return shuffle_beat(domain, streams["x"], streams["y"], groups=self.groups, channels=self.channels)
        contents = images["order"] if images else None
        return shuffle_pixel(domain, streams["x"], streams["y"], cfg=self, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """One lane, several that do and do not divide a group, all; two groups of many, many of two; one pixel."""
        return (
            cls(height=2, width=3, channels=8, lanes=2),
            cls(height=2, width=2, channels=12, lanes=1, groups=3, x_fixed=Fixed(12, 3)),
            cls(height=2, width=2, channels=6, lanes=6, groups=3),
            cls(height=1, width=3, channels=12, lanes=4, groups=6, kind=Kind.ERROR),
            cls(height=1, width=1, channels=10, lanes=5),
        )


@block
def shuffle_beat(domain: ClockReset, x: Stream, y: Stream, *, groups: int, channels: int) -> Instances:
    """Beats of all channels, wired in another order, and a register.

    Ports:
        x: in, stream of ``channels`` codes of any width.
        y: out, stream as wide as ``x``, 1 cycle later, from registers.
    """
    width, rows = x.width // channels, channels // groups
    wired = Stream(x.width)
    register = m2s_pipe(domain, wired, y)

    @always_comb
    def wires() -> None:
        for group in range(groups):
            for row in range(rows):
                wired.payload.next[bits_of(row * groups + group, width)] = x.payload[bits_of(group * rows + row, width)]

    @always_comb
    def handshake() -> None:
        wired.valid.next = x.valid
        x.ready.next = wired.ready

    return register, wires, handshake


@block
def shuffle_pixel(
    domain: ClockReset, x: Stream, y: Stream, *, cfg: ChannelShuffle, contents: Sequence[int] | None = None
) -> Instances:
    """One pixel is written in order while the one before is read out of order.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``; its ready from registers.
        y: out, stream as wide as ``x``, `READ_CYCLES` after the last beat of a pixel, one more where a read ends in an
            `output_register`; valid and payload from registers.
    """
    lanes, width, beats, reads = cfg.lanes, cfg.x_fixed.width, cfg.pixel_beats, cfg.reads
    bits = address_width(beats)
    orders, order_bits = Stream(cfg.order_bits), cfg.order_bits
    fire, fetch, wanted, last = (Signal(bool(0)) for _ in range(4))
    there, write_half, read_half = (Signal(bool(0)) for _ in range(3))
    place = Signal(intbv(0)[bits:])
    write_at = Signal(intbv(0)[bits + 1 :])
    read_at = [Signal(intbv(0)[bits + 1 :]) for _ in range(lanes)]
    words = [Signal(intbv(0)[len(read.lanes) * width :]) for read in reads]
    chosen = [Signal(intbv(0)[width:]) for _ in range(lanes)]
    # words of all lanes, then their choices, if any lane has some
    choices_at, choice_bits = lanes * bits, sum(read.choice_bits for read in reads)
    choices = Signal(intbv(0)[max(1, choice_bits) :])
    parts = [*words, choices] if choice_bits else words
    flat = ConcatSignal(*reversed(parts)) if len(parts) > 1 else words[0]
    read, held, picked = Stream(len(flat)), Stream(len(flat)), Stream(y.width)
    order = constant_stream(domain, orders, depth=beats, public="order", contents=contents)
    halves = pixel_halves(domain, fire, fetch, last, write_half, read_half, place, x, there, beats=beats)
    stores = [
        lane_store(domain.clk, fire, write_at, x.payload, fetch, read_at[lane], words[lane],
                   taken=reads[lane].lanes, width=width, depth=cfg.depth)
        for lane in range(lanes)
    ]  # fmt: skip
    reader = read_stream(domain, wanted, fetch, flat, read)
    hold = output_register(domain, read, held, depth=cfg.depth)
    starts = [sum(len(read.lanes) for read in reads[:lane]) * width for lane in range(lanes)]
    choice_starts = [len(flat) - choice_bits + sum(read.choice_bits for read in reads[:lane]) for lane in range(lanes)]
    choosers = [
        choose_lane(held.payload, chosen[lane], start=starts[lane], count=len(reads[lane].lanes),
                    choice_at=choice_starts[lane], choice_bits=reads[lane].choice_bits)
        for lane in range(lanes)
    ]  # fmt: skip
    joined = join_lanes(chosen, picked.payload)
    leave = m2s_pipe(domain, picked, y)

    @always_comb
    def addresses() -> None:
        write_at.next[bits:] = place
        write_at.next[bits] = write_half
        for lane in range(lanes):
            read_at[lane].next[bits:] = orders.payload[bits_of(lane, bits)]
            read_at[lane].next[bits] = read_half

    @always_comb
    def decide() -> None:
        wanted.next = orders.valid and there
        orders.ready.next = there and (read.ready or not read.valid)
        last.next = orders.payload[order_bits - 1]

    @always_comb
    def hand_on() -> None:
        picked.valid.next = held.valid
        held.ready.next = picked.ready

    if not choice_bits:
        return order, halves, stores, reader, hold, choosers, joined, leave, addresses, decide, hand_on

    @always(domain.clk.posedge)
    def keep() -> None:
        if fetch:
            choices.next = orders.payload[choices_at + choice_bits : choices_at]

    return order, halves, stores, reader, hold, choosers, joined, leave, addresses, decide, hand_on, keep


@block
def pixel_halves(
    domain: ClockReset,
    fire: Bit,
    fetch: Bit,
    last: Bit,
    write_half: Bit,
    read_half: Bit,
    place: Bits,
    x: Stream,
    there: Bit,
    *,
    beats: int,
) -> Instances:
    """Two halves of a memory, of a pixel each: which is written, which is read, and whether they may be.

    Ports:
        fire: out, 1 bit: a beat of x is written at this edge.
        fetch: in, 1 bit: a beat is read at this edge.
        last: in, 1 bit, with ``fetch``: it is the last of its pixel.
        write_half, read_half: out, 1 bit each, from registers.
        place: out, `address_width` ``(beats)`` bits, from registers: of the beat that is written.
        x: in, stream of any width, of which valid is read and ready driven, from registers.
        there: out, 1 bit, from registers: a pixel is complete and not read.
    """
    final = beats - 1
    pixels = Signal(intbv(0, min=0, max=3))
    room, came, went = (Signal(bool(0)) for _ in range(3))

    @always_comb
    def judge() -> None:
        room.next = pixels != 2
        there.next = pixels != 0

    @always_comb
    def accept() -> None:
        fire.next = x.valid and room
        x.ready.next = room

    @always_comb
    def finish() -> None:
        came.next = fire and place == final
        went.next = fetch and last

    @always(domain.clk.posedge)
    def step() -> None:
        if fire:
            if place == final:
                place.next = 0
                write_half.next = not write_half
            else:
                place.next = place + 1
        if went:
            read_half.next = not read_half
        if came and not went:
            pixels.next = pixels + 1
        elif went and not came:
            pixels.next = pixels - 1
        if domain.rst:
            place.next = 0
            write_half.next = False
            read_half.next = False
            pixels.next = 0

    return judge, accept, finish, step


@block
def lane_store(
    clk: Clock,
    fire: Bit,
    write_at: Bits,
    beat: Bits,
    fetch: Bit,
    read_at: Bits,
    word: Bits,
    *,
    taken: tuple[int, ...],
    width: int,
    depth: int,
) -> Instances:
    """A memory of some lanes of the beats of two pixels.

    Ports:
        fire: in, 1 bit: a beat is written at this edge.
        write_at: in, an address, with ``fire``.
        beat: in, lanes of ``width`` bits, with ``fire``.
        fetch: in, 1 bit: a word is read at this edge.
        read_at: in, an address, with ``fetch``.
        word: out, ``len(taken)`` codes, 1 cycle after ``fetch``, until the next.
    """
    kept = [Signal(intbv(0)[width:]) for _ in taken]
    flat = ConcatSignal(*reversed(kept)) if len(kept) > 1 else kept[0]
    picks = [lane_of(beat, kept[index], lane=taken[index]) for index in range(len(taken))]
    memory = simple_dual_port(clk, fire, write_at, flat, fetch, read_at, word, depth=depth, width=width * len(taken))
    return picks, memory


@block
def lane_of(beat: Bits, code: Bits, *, lane: int) -> Instances:
    """One lane of a beat; no cost.

    Ports:
        beat: in, lanes as wide as ``code``.
        code: out, of any width, in the same cycle.
    """
    width = len(code)

    @always_comb
    def pick() -> None:
        code.next = beat[bits_of(lane, width)]

    return pick


@block
def choose_lane(flat: Bits, code: Bits, *, start: int, count: int, choice_at: int, choice_bits: int) -> Instances:
    """One of ``count`` codes from bit ``start`` of a vector on, which bits from ``choice_at`` on number.

    Ports:
        flat: in, of any width.
        code: out, of any width, in the same cycle.
    """
    width = len(code)
    if count == 1:

        @always_comb
        def only() -> None:
            code.next = flat[start + width : start]

        return only

    @always_comb
    def choose() -> None:
        choice = intbv(0)[choice_bits:]
        choice[:] = flat[choice_at + choice_bits : choice_at]
        code.next = flat[start + width : start]
        for index in range(1, count):
            if choice == index:
                code.next = flat[bits_of(index, width, start)]

    return choose
