"""Two versions of a layer's weights, or one, for two engines that read them: the forward engine and the error engine.

An error comes back for a frame while the forward engine is many frames further on, so at the end of a batch one engine
reads a version and the other one the next.  Each follows the version rule by itself.  A version comes into a place when
both engines have read all frames of the one that lay there.  With two places that is no wait: version ``v + 2`` is made
of the errors of all frames that read version ``v``, and the error engine takes the same errors.  With one place the
forward engine rests until the error engine is as far, once a batch.

Nothing can lock: a frame waits for versions made of frames before it, and a version waits for frames before those that
read it.  And no bit can change: a reader waits for its version, the writer for its place, and neither can ask.
"""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.weights.versions import VersionRule, version_reader, version_writer
from hdl.memory import address_width, true_dual_port
from hdl.recipe import Recipe
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream

# cycles from a pause of the writing port until its effect is at the memory, at most
PAUSE_LATENCY = 3


class WeightPort:
    """Between an engine and a weight memory that it shares: signals as of `hdl.engine.weights.buffer.weight_buffer`,
    and ``pause``: in this cycle no operation may start."""

    def __init__(self, words: int, width: int) -> None:
        self.claim, self.claimable, self.advance, self.frame_last, self.pause = (Signal(bool(0)) for _ in range(5))
        self.offset = Signal(intbv(0)[address_width(words) :])
        self.word = Signal(intbv(0)[width:])


@block
def shared_weight_buffer(
    domain: ClockReset,
    w: Stream,
    first: WeightPort,
    second: WeightPort,
    *,
    words: int,
    recipe: Recipe,
    slots: int = 2,
    contents: Sequence[int] | None = None,
) -> Instances:
    """A memory of ``slots * words`` words with the image "weights"; version 0 is its first place at power-up.

    Frame ``t`` of each reader reads version ``recipe.version(t)``.  Words of the next version are written through the
    port of ``first`` in cycles in which that reads nothing, a word in two cycles at most; where it reads in every
    cycle, ``pause`` makes room, a cycle a word.

    Costs the memory, with both ports reading, and the counters of two readers.

    Ports:
        w: in, stream of any width, a word a beat; ready from a register.
        first, second: out, all of them but ``claim``, ``advance``, ``offset`` and ``frame_last``, which are in.
            ``word`` comes 3 cycles after ``advance``; ``pause`` is from a register, and of ``first`` alone.
    """
    rule = VersionRule.of(recipe, words, slots)
    depth = rule.depth
    write_at = Signal(intbv(rule.starts_at)[address_width(depth) :])
    bases = [Signal(intbv(0)[address_width(depth) :]) for _ in range(2)]
    first_base, second_base = bases
    address, other_address = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    room = [Signal(bool(0)) for _ in range(2)]
    first_room, second_room = room
    # a word that waits has its place; it is written in this cycle; the last of a version is
    wanted, write, complete = (Signal(bool(0)) for _ in range(3))
    read, other_read = (Signal(bool(0)) for _ in range(2))
    # cycles for which no other pause is worth asking for
    paused = Signal(intbv(0)[PAUSE_LATENCY:])
    squeeze = Signal(bool(0))
    store = true_dual_port(
        domain.clk, write, w.payload, read, address, first.word, other_read, other_address, second.word,
        depth=depth, width=w.width, contents=contents, image="weights",
    )  # fmt: skip
    writer = version_writer(domain, write, write_at, complete, rule=rule)
    readers = [
        version_reader(
            domain, port.claim, port.claimable, port.advance, port.frame_last, complete, port_room, base, rule=rule
        )
        for port, port_room, base in zip((first, second), room, bases, strict=True)
    ]

    @always_comb
    def decide() -> None:
        wanted.next = w.valid and not write and first_room and second_room
        w.ready.next = write
        squeeze.next = wanted and first.advance and paused == 0

    @always(domain.clk.posedge)
    def ports() -> None:
        if first.advance:
            address.next = first_base + first.offset
        else:
            address.next = write_at
        read.next = first.advance
        write.next = wanted and not first.advance and not domain.rst
        other_address.next = second_base + second.offset
        other_read.next = second.advance

    @always(domain.clk.posedge)
    def make_room() -> None:
        first.pause.next = squeeze
        second.pause.next = False
        paused.next[PAUSE_LATENCY:1] = paused[PAUSE_LATENCY - 1 :]
        paused.next[0] = squeeze
        if domain.rst:
            first.pause.next = False
            paused.next = 0

    return store, writer, readers, decide, ports, make_room
