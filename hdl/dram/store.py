"""Streams through DRAM: a FIFO for stashes, a ring for optimiser state, a replay buffer for weights.

All three are one machine (`dram_store`): elements are packed into words, words go out in bursts, come back in
bursts, and are unpacked.  They differ in who may write and read which burst when:

* `DramFifo`: a burst may be written while the ring has room, read once its write was answered.
* `DramFifo` with ``preload``: the same, but the ring starts with bursts from the memory's image: optimiser state that
  is read in order and written back in order.
* `DramReplay`: one tensor a batch, read once a frame.  Frame t reads version max(0, (t - D) // B); version 0 is the
  memory's image, later ones come from the stream.  Two buffers: version v is written where version v - 2 was, when
  the last frame of that has been read, and first read when its last word was written.

A tensor starts a new word and a new burst: a word waits for the rest of its burst, but never for the next tensor.
Tensors lie in memory from ``base`` on, each at a multiple of `tensor_bursts` bursts, its words side by side.
``base`` must be a multiple of the burst length.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.axi import Axi, AxiFormat
from hdl.link.units import elements_per_word, wire_words
from hdl.memory import address_width
from hdl.stream import Stream
from hdl.streams.fifo import queue
from hdl.streams.width import width_adapter
from hdl.unit import Unit


@dataclass(frozen=True, kw_only=True)
class DramUnit(Unit):
    """What the stores have in common.

    Streams: ``x`` elements in, ``y`` elements out, ``m_aw`` … ``m_r`` the AXI port.  Input: ``base``, the first word
    address.  Output: ``error``, sticky: the memory answered with an error.
    """

    format: AxiFormat
    # bits of one element
    element_bits: int
    # elements a beat of x
    x_lanes: int
    # elements a beat of y
    y_lanes: int
    # elements of a tensor
    elements: int
    # words a burst: a power of two
    burst: int = 16
    # words that may be under way or waiting behind the memory: its latency × the words a cycle, and two bursts
    prefetch: int = 128

    def __post_init__(self) -> None:
        if self.burst & (self.burst - 1) or not 1 <= self.burst <= self.format.max_burst:
            raise ValueError(f"a burst must be a power of two up to {self.format.max_burst} words, not {self.burst}")
        if self.prefetch < self.burst:
            raise ValueError(f"prefetch ({self.prefetch} words) must hold a burst ({self.burst} words)")
        if self.elements < 1 or self.elements % self.x_lanes or self.elements % self.y_lanes:
            lanes = f"{self.x_lanes} and {self.y_lanes}"
            raise ValueError(f"{lanes} lanes must divide a tensor of {self.elements} elements")

    @property
    @abstractmethod
    def ring_bursts(self) -> int:
        """Bursts that the region in memory holds."""

    @property
    @abstractmethod
    def preload_bursts(self) -> int:
        """Bursts that stand in memory at the start."""

    @property
    def tensor_words(self) -> int:
        """Words of a tensor."""
        return wire_words(self.elements, self.element_bits, self.format.data_bits)

    @property
    def tensor_bursts(self) -> int:
        """Bursts of a tensor."""
        return -(-self.tensor_words // self.burst)

    @property
    def region_words(self) -> int:
        """Words of memory from ``base``."""
        return self.ring_bursts * self.burst

    def words(self, beats: Sequence[int], lanes: int) -> list[int]:
        """Memory words of one tensor given as beats of ``lanes`` elements."""
        per_word = elements_per_word(self.element_bits, self.format.data_bits)
        return regroup(beats, self.element_bits * lanes, self.element_bits * per_word)

    def image(self, tensors: Sequence[Sequence[int]], lanes: int) -> list[int]:
        """Contents of the region that holds these tensors (beats of ``lanes`` elements) from its start on."""
        region = [0] * self.region_words
        for index, beats in enumerate(tensors):
            words = self.words(beats, lanes)
            at = index * self.tensor_bursts * self.burst
            region[at : at + len(words)] = words
        return region

    def beats(self, region: Sequence[int], index: int, lanes: int) -> list[int]:
        """Tensor ``index`` of a region, as beats of ``lanes`` elements: the inverse of `image`."""
        bits, mask = self.element_bits, (1 << self.element_bits) - 1
        per_word = elements_per_word(bits, self.format.data_bits)
        at = index * self.tensor_bursts * self.burst
        flat = [word >> (bits * i) & mask for word in region[at : at + self.tensor_words] for i in range(per_word)][
            : self.elements
        ]
        groups = [flat[at : at + lanes] for at in range(0, len(flat), lanes)]
        return [sum(element << (bits * i) for i, element in enumerate(group)) for group in groups]

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        bits = self.element_bits
        return {"x": self.x_lanes * bits, "y": self.y_lanes * bits, **self.format.ports("m")}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"base": self.format.address_bits}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"error": 1}

    def build(self, clk: Any, rst: Any, streams: Mapping[str, Stream]) -> Any:
        """See the base class."""
        (base,), (error,) = self.signals(self.inputs), self.signals(self.outputs)
        return dram_store(clk, rst, base, streams["x"], streams["y"], Axi.of(streams, "m"), error, unit=self)


@dataclass(frozen=True, kw_only=True)
class DramFifo(DramUnit):
    """A FIFO of whole bursts.  With `preload` tensors in it at the start it is a ring of optimiser state."""

    # tensors that the region in memory holds
    capacity: int
    # tensors that stand in it at the start
    preload: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.preload <= self.capacity or self.capacity < 1:
            raise ValueError(f"a FIFO for {self.capacity} tensors can't start with {self.preload}")

    @property
    def ring_bursts(self) -> int:
        """See the base class."""
        return self.capacity * self.tensor_bursts

    @property
    def preload_bursts(self) -> int:
        """See the base class."""
        return self.preload * self.tensor_bursts


@dataclass(frozen=True, kw_only=True)
class DramReplay(DramUnit):
    """A double-buffered tensor, read once a frame under the version rule of `hdl.recipe.Recipe`."""

    # frames a batch
    batch: int
    # frames, 0 … batch
    staleness: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.staleness <= self.batch or self.batch < 1:
            raise ValueError(f"staleness must lie in 0..batch = 0..{self.batch}, not {self.staleness}")

    @property
    def ring_bursts(self) -> int:
        """See the base class."""
        return 2 * self.tensor_bursts

    @property
    def preload_bursts(self) -> int:
        """See the base class."""
        return self.tensor_bursts


def regroup(beats: Sequence[int], beat_bits: int, word_bits: int) -> list[int]:
    """The same bits, low ones first, cut into words; the last is filled with zeros."""
    if beat_bits % 8 == word_bits % 8 == 0:
        text = b"".join(beat.to_bytes(beat_bits // 8, "little") for beat in beats)
        size = word_bits // 8
        return [int.from_bytes(text[at : at + size], "little") for at in range(0, len(text), size)]
    words, held, bits = [], 0, 0
    for beat in beats:
        held |= beat << bits
        bits += beat_bits
        while bits >= word_bits:
            words.append(held & ((1 << word_bits) - 1))
            held >>= word_bits
            bits -= word_bits
    return [*words, held] if bits else words


# ------------------------------------------------------------------------------------------------ blocks


@block
def dram_store(clk: Any, rst: Any, base: Any, x: Stream, y: Stream, m: Axi, error: Any, *, unit: DramUnit) -> Any:
    """See the module.  Cost: a queue of two bursts, one of ``prefetch`` words, two width adapters, counters.

    Latency from the last word of a burst in to its first word out: the memory's, and about 12 cycles.  One word a
    cycle in and one out, less two cycles a burst."""
    bits = unit.element_bits
    word_bits = elements_per_word(bits, unit.format.data_bits) * bits
    packed, out, fetched = Stream(word_bits), Stream(word_bits), Stream(word_bits)
    pack = width_adapter(clk, rst, x, packed, element_bits=bits, flush_every=unit.elements)
    unpack = width_adapter(clk, rst, out, y, element_bits=bits, flush_every=unit.elements)
    fifo = queue(clk, rst, fetched, out, depth=unit.prefetch)
    slot = Signal(intbv(0)[address_width(unit.ring_bursts) :])
    may_write, written, tensor_written, write_error = (Signal(bool(0)) for _ in range(4))
    write_first, write_started = Signal(bool(0)), Signal(bool(0))
    may_read, read_started, read_done, tensor_read, read_error = (Signal(bool(0)) for _ in range(5))
    read_first, read_last = Signal(bool(0)), Signal(bool(0))
    popped, bad = Signal(bool(0)), Signal(bool(0))
    writer = _burst_writer(
        clk, rst, base, packed, m.aw, m.w, m.b,
        may_write, write_first, write_started, written, tensor_written, write_error, unit=unit,
    )  # fmt: skip
    reader = _burst_reader(
        clk, rst, base, slot, m.ar, m.r, fetched, popped,
        may_read, read_first, read_last, read_started, read_done, tensor_read, read_error, unit=unit,
    )  # fmt: skip
    if isinstance(unit, DramReplay):
        rule = _replay_rule(
            clk, rst, slot, may_write, write_first, write_started, tensor_written,
            may_read, read_last, read_started, tensor_read, unit=unit,
        )  # fmt: skip
    else:
        rule = _ring_rule(
            clk, rst, slot, may_write, write_started, written, may_read, read_started, read_done,
            slots=unit.ring_bursts, preload=unit.preload_bursts,
        )  # fmt: skip

    @always_comb
    def watch() -> None:
        popped.next = out.valid and out.ready
        error.next = bad

    @always(clk.posedge)
    def keep() -> None:
        bad.next = bad or write_error or read_error
        if rst:
            bad.next = False

    return pack, unpack, fifo, writer, reader, rule, watch, keep


@block
def _ring_rule(
    clk: Any, rst: Any, slot: Any, may_write: Any, write_started: Any, written: Any,
    may_read: Any, read_started: Any, read_done: Any, *, slots: int, preload: int,
) -> Any:  # fmt: skip
    """A burst may be written where one was read, and read where one was written."""
    room = Signal(intbv(0, min=0, max=slots + 1))
    filled = Signal(intbv(0, min=0, max=slots + 1))
    empty, last = slots - preload, slots - 1

    @always_comb
    def allow() -> None:
        may_write.next = room != 0
        may_read.next = filled != 0

    @always(clk.posedge)
    def count() -> None:
        if read_done and not write_started:
            room.next = room + 1
        elif write_started and not read_done:
            room.next = room - 1
        if written and not read_started:
            filled.next = filled + 1
        elif read_started and not written:
            filled.next = filled - 1
        if read_started:
            if slot == last:
                slot.next = 0
            else:
                slot.next = slot + 1
        if rst:
            room.next = empty
            filled.next = preload
            slot.next = 0

    return allow, count


@block
def _replay_rule(
    clk: Any, rst: Any, slot: Any, may_write: Any, write_first: Any, write_started: Any, tensor_written: Any,
    may_read: Any, read_last: Any, read_started: Any, tensor_read: Any, *, unit: DramReplay,
) -> Any:  # fmt: skip
    """A version may be written when the one before the last is out of use, and read when it is written."""
    bursts = unit.tensor_bursts
    later = unit.batch - 1
    first = unit.batch + unit.staleness - 1
    # frames still to start, and to end, with the version
    to_start, to_end = (Signal(intbv(0, min=0, max=first + 1)) for _ in range(2))
    room, versions = (Signal(intbv(0, min=0, max=3)) for _ in range(2))
    upper, fresh, retired, entered = (Signal(bool(0)) for _ in range(4))

    @always_comb
    def allow() -> None:
        may_write.next = not write_first or room != 0
        may_read.next = not fresh or versions != 0
        retired.next = tensor_read and to_end == 0
        entered.next = read_started and fresh

    @always(clk.posedge)
    def count() -> None:
        if retired and not (write_started and write_first):
            room.next = room + 1
        elif write_started and write_first and not retired:
            room.next = room - 1
        if tensor_written and not entered:
            versions.next = versions + 1
        elif entered and not tensor_written:
            versions.next = versions - 1
        if rst:
            room.next = 1
            versions.next = 1

    @always(clk.posedge)
    def frames() -> None:
        if read_started:
            fresh.next = False
            if not read_last:
                slot.next = slot + 1
            elif to_start == 0:
                to_start.next = later
                fresh.next = True
                upper.next = not upper
                if upper:
                    slot.next = 0
                else:
                    slot.next = bursts
            else:
                to_start.next = to_start - 1
                if upper:
                    slot.next = bursts
                else:
                    slot.next = 0
        if tensor_read:
            if to_end == 0:
                to_end.next = later
            else:
                to_end.next = to_end - 1
        if rst:
            to_start.next = first
            to_end.next = first
            slot.next = 0
            upper.next = False
            fresh.next = True

    return allow, count, frames


@block
def _tensor_position(clk: Any, rst: Any, step: Any, first: Any, last: Any, *, bursts: int) -> Any:
    """Counts bursts: ``first`` and ``last`` say whether the coming one begins or ends a tensor."""
    final = bursts - 1
    position = Signal(intbv(0)[address_width(bursts) :])

    @always_comb
    def out() -> None:
        first.next = position == 0
        last.next = position == final

    @always(clk.posedge)
    def count() -> None:
        if step:
            if position == final:
                position.next = 0
            else:
                position.next = position + 1
        if rst:
            position.next = 0

    return out, count


@block
def _burst_writer(
    clk: Any, rst: Any, base: Any, x: Stream, aw: Stream, w: Stream, b: Stream,
    may_start: Any, first: Any, started: Any, written: Any, tensor_written: Any, error: Any, *, unit: DramUnit,
) -> Any:  # fmt: skip
    """Collects a burst, then sends it; answers are counted, nothing waits for them but the rule."""
    burst, data_bits = unit.burst, x.width
    last_length = unit.tensor_words - (unit.tensor_bursts - 1) * burst
    final_slot, first_slot = unit.ring_bursts - 1, unit.preload_bursts % unit.ring_bursts
    waiting = Stream(data_bits)
    store = queue(clk, rst, x, waiting, depth=2 * burst)
    last, answered_first, answered_last = (Signal(bool(0)) for _ in range(3))
    position = _tensor_position(clk, rst, started, first, last, bursts=unit.tensor_bursts)
    answers = _tensor_position(clk, rst, written, answered_first, answered_last, bursts=unit.tensor_bursts)
    slot = Signal(intbv(0)[address_width(unit.ring_bursts) :])
    # words of the coming burst, and one less
    length = Signal(intbv(0, min=0, max=burst + 1))
    shorter = Signal(intbv(0, min=0, max=burst))
    collected = Signal(intbv(0, min=0, max=2 * burst + 1))
    left = Signal(intbv(0, min=0, max=burst + 1))
    address = Signal(intbv(0)[unit.format.address_bits :])
    beats = Signal(intbv(0, min=0, max=burst))
    request, came, sent = (Signal(bool(0)) for _ in range(3))
    address_bits, total_bits = unit.format.address_bits, unit.format.data_bits
    request_bits, shift = aw.width, burst.bit_length() - 1

    @always_comb
    def next_burst() -> None:
        if last:
            length.next = last_length
            shorter.next = last_length - 1
        else:
            length.next = burst
            shorter.next = burst - 1

    @always_comb
    def start() -> None:
        started.next = may_start and left == 0 and not request and collected >= length

    @always_comb
    def out() -> None:
        aw.valid.next = request
        aw.payload.next[address_bits:] = address
        aw.payload.next[request_bits:address_bits] = beats
        w.valid.next = waiting.valid and left != 0
        w.payload.next[total_bits:] = waiting.payload
        w.payload.next[total_bits] = left == 1
        waiting.ready.next = w.ready and left != 0
        b.ready.next = True

    @always_comb
    def observe() -> None:
        came.next = x.valid and x.ready
        sent.next = waiting.valid and w.ready and left != 0
        written.next = b.valid
        error.next = b.valid and b.payload != 0
        tensor_written.next = b.valid and answered_last

    @always(clk.posedge)
    def collect() -> None:
        if started and came:
            collected.next = collected - shorter
        elif started:
            collected.next = collected - length
        elif came:
            collected.next = collected + 1
        if rst:
            collected.next = 0

    @always(clk.posedge)
    def send() -> None:
        if request and aw.ready:
            request.next = False
        if sent:
            left.next = left - 1
        if started:
            request.next = True
            left.next = length
            beats.next = shorter
            address.next = base + (slot << shift)
            if slot == final_slot:
                slot.next = 0
            else:
                slot.next = slot + 1
        if rst:
            request.next = False
            left.next = 0
            slot.next = first_slot

    return store, position, answers, next_burst, start, out, observe, collect, send


@block
def _burst_reader(
    clk: Any, rst: Any, base: Any, slot: Any, ar: Stream, r: Stream, y: Stream, popped: Any,
    may_start: Any, first: Any, last: Any, started: Any, done: Any, tensor_done: Any, error: Any, *, unit: DramUnit,
) -> Any:  # fmt: skip
    """Asks for a burst when all of it has room in the queue behind; ``popped``: a word left that queue."""
    burst, data_bits = unit.burst, y.width
    last_length = unit.tensor_words - (unit.tensor_bursts - 1) * burst
    room_at_start = unit.prefetch
    done_first, done_last = Signal(bool(0)), Signal(bool(0))
    position = _tensor_position(clk, rst, started, first, last, bursts=unit.tensor_bursts)
    answers = _tensor_position(clk, rst, done, done_first, done_last, bursts=unit.tensor_bursts)
    room = Signal(intbv(0, min=0, max=unit.prefetch + 1))
    # words of the coming burst, and one less
    length = Signal(intbv(0, min=0, max=burst + 1))
    shorter = Signal(intbv(0, min=0, max=burst))
    address = Signal(intbv(0)[unit.format.address_bits :])
    beats = Signal(intbv(0, min=0, max=burst))
    request = Signal(bool(0))
    address_bits, total_bits = unit.format.address_bits, unit.format.data_bits
    request_bits, shift = ar.width, burst.bit_length() - 1
    last_at = r.width - 1

    @always_comb
    def next_burst() -> None:
        if last:
            length.next = last_length
            shorter.next = last_length - 1
        else:
            length.next = burst
            shorter.next = burst - 1

    @always_comb
    def start() -> None:
        started.next = may_start and room >= length and (not request or ar.ready)

    @always_comb
    def out() -> None:
        ar.valid.next = request
        ar.payload.next[address_bits:] = address
        ar.payload.next[request_bits:address_bits] = beats
        y.valid.next = r.valid
        y.payload.next = r.payload[data_bits:]
        r.ready.next = y.ready

    @always_comb
    def observe() -> None:
        done.next = r.valid and y.ready and r.payload[last_at]
        error.next = r.valid and r.payload[last_at:total_bits] != 0
        tensor_done.next = r.valid and y.ready and r.payload[last_at] and done_last

    @always(clk.posedge)
    def ask() -> None:
        if started and popped:
            room.next = room - shorter
        elif started:
            room.next = room - length
        elif popped:
            room.next = room + 1
        if started:
            request.next = True
            address.next = base + (slot << shift)
            beats.next = shorter
        elif ar.ready:
            request.next = False
        if rst:
            request.next = False
            room.next = room_at_start

    return position, answers, next_burst, start, out, observe, ask
