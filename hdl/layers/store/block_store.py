"""A block memory between two streams, under one of the rules of `hdl.dram.rules`: a burst is one beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always_comb, block, intbv

from hdl.dram.rules import Bursts, constant_rule, replay_rule, ring_rule, tensor_position
from hdl.memory import address_width, read_only, simple_dual_port
from hdl.recipe import first_frames
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter
from hdl.streams.reads import output_register, output_register_latency, read_stream

# public name of the contents
IMAGE = "held"


@dataclass(frozen=True, kw_only=True)
class BlockStore:
    """A memory, as numbers."""

    # beats of a tensor
    beats: int
    # tensors that there is room for, and that stand there at the start
    tensors: int
    preload: int
    # frames that read a version, and those of a batch that read the one before; 0: what is read is gone
    batch: int = 0
    staleness: int = 0

    @property
    def depth(self) -> int:
        """Words: beats."""
        return self.tensors * self.beats

    @property
    def first_frames(self) -> int:
        """Frames that read the first version."""
        return first_frames(self.batch, self.staleness, loaded=not self.preload)

    @property
    def latency(self) -> int:
        """Cycles from a beat that is written to the same beat at the output, where it is read at once."""
        return 3 + output_register_latency(self.depth)


@block
def block_store(
    domain: ClockReset, x: Stream, y: Stream, *, store: BlockStore, contents: Sequence[int] | None = None
) -> Instances:
    """Costs ``store.depth`` words of ``x.width`` bits, and the counters of the rule; a beat a cycle in and out.

    Ports:
        x: in, stream of any width; ``ready`` follows registers alone.
        y: out, stream as wide as ``x``; valid and payload from registers.
    """
    depth, width = store.depth, x.width
    writes, reads = Bursts(), Bursts()
    slot, written = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    word, out = Signal(intbv(0)[width:]), Stream(width)
    writing = tensor_position(domain, writes.started, writes.first, writes.last, bursts=store.beats)
    reading = tensor_position(domain, reads.started, reads.first, reads.last, bursts=store.beats)
    filling = counter(domain, writes.started, written, count=depth, start=store.preload * store.beats % depth)
    if store.batch:
        rule = replay_rule(
            domain, slot, writes, reads,
            bursts=store.beats, batch=store.batch, first=store.first_frames, preload=store.preload,
        )  # fmt: skip
    else:
        rule = ring_rule(domain, slot, writes, reads, slots=depth, preload=store.preload * store.beats)
    memory = simple_dual_port(
        domain.clk, writes.started, written, x.payload, reads.started, slot, word,
        depth=depth, width=width, contents=contents, image="held",
    )  # fmt: skip
    leave = read_stream(domain, reads.may_start, reads.started, word, out)
    behind = output_register(domain, out, y, depth=depth)

    @always_comb
    def take() -> None:
        writes.started.next = x.valid and writes.may_start
        x.ready.next = writes.may_start

    @always_comb
    def done() -> None:
        # a beat is there, and its place free, from the next cycle on
        writes.done.next = x.valid and writes.may_start
        writes.tensor_done.next = x.valid and writes.may_start and writes.last
        reads.done.next = reads.started
        reads.tensor_done.next = reads.started and reads.last

    return writing, reading, filling, rule, memory, leave, behind, take, done


@block
def constant_store(
    domain: ClockReset, y: Stream, *, store: BlockStore, contents: Sequence[int] | None = None
) -> Instances:
    """What nobody writes, again and again.  Costs ``store.depth`` words of ``y.width`` bits and a counter; a beat a
    cycle.

    Ports:
        y: out, stream of any width; valid and payload from registers.
    """
    depth, width = store.depth, y.width
    reads = Bursts()
    slot, word, out = Signal(intbv(0)[address_width(depth) :]), Signal(intbv(0)[width:]), Stream(width)
    rule = constant_rule(domain, slot, reads, bursts=depth)
    memory = read_only(domain.clk, reads.started, slot, word, depth=depth, width=width, contents=contents, image="held")
    leave = read_stream(domain, reads.may_start, reads.started, word, out)
    return rule, memory, leave, output_register(domain, out, y, depth=depth)
