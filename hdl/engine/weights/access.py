"""State on its way in and out: the circuits' end of the chain that `hdl.engine.weights.records` tells of."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.engine.weights.records import (
    CHAIN_BITS,
    COUNT_AT,
    COUNT_BITS,
    COUNTER_BITS,
    HEADER,
    KIND_BITS,
    WORD_BITS,
    header,
)
from hdl.engine.weights.records import Kind as Records
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import half_pipe

# what a link of the chain does: hands on, takes its state, gives its state
PASS, TAKE, GIVE = range(3)


class Begin:
    """The counters with which training begins, for circuits that wait for them."""

    def __init__(self) -> None:
        # high unless a START has come, from a register: whoever counts is in reset
        self.held: Bit = Signal(bool(1))
        # batches and frames behind, from registers, while ``held`` and after it
        self.batches: Bits = Signal(intbv(0)[COUNTER_BITS:])
        self.frames: Bits = Signal(intbv(0)[COUNTER_BITS:])

    def domain(self, domain: ClockReset) -> ClockReset:
        """The clock with a reset that lasts until then."""
        return ClockReset(domain.clk, self.held)


class Batches:
    """What a circuit is allowed to train, and when its state may be taken."""

    def __init__(self) -> None:
        # so many batches more in this cycle: from registers
        self.more: Bit = Signal(bool(0))
        self.count: Bits = Signal(intbv(0)[COUNTER_BITS:])
        # one less
        self.others: Bits = Signal(modbv(0)[COUNTER_BITS:])
        # of the circuit: they are trained, and all its state is written
        self.rests: Bit = Signal(bool(0))
        # state is wanted, word by word: from a register
        self.giving: Bit = Signal(bool(0))


@block
def counter_link(domain: ClockReset, load: Stream, dump: Stream, begin: Begin) -> Instances:
    """Hands on all records, and tells of a START.  Costs a stage of the chain and the counters.

    Ports:
        load: in, stream of `CHAIN_BITS` bits.
        dump: out, stream as wide, 1 cycle later; a word in two cycles.
        begin: out, all of it.
    """
    stage = half_pipe(domain, load, dump)
    passes = Signal(bool(0))

    @always_comb
    def watch() -> None:
        passes.next = load.valid and load.ready

    return stage, watch, begin_counter(domain, passes, load.payload, begin)


@block
def begin_counter(domain: ClockReset, passes: Bit, word: Bits, begin: Begin) -> Instances:
    """Keeps what stands behind the header of a START.

    Ports:
        passes: in, 1 bit: ``word`` is handed on at this edge.
        word: in, `CHAIN_BITS` bits.
        begin: out, all of it.
    """
    starts, known = Signal(bool(0)), Signal(bool(0))
    kind = int(Records.START)

    @always(domain.clk.posedge)
    def keep() -> None:
        if passes:
            starts.next = word[HEADER] and word[KIND_BITS:] == kind
            if starts:
                begin.batches.next = word[COUNTER_BITS:]
                begin.frames.next = word[WORD_BITS:COUNTER_BITS]
                known.next = True
        # counters are in reset for a cycle more, in which they take what is known
        begin.held.next = not known
        if domain.rst:
            starts.next = False
            known.next = False
            begin.held.next = True

    return keep


@block
def state_link(
    domain: ClockReset,
    load: Stream,
    dump: Stream,
    taken: Stream,
    given: Stream,
    begin: Begin,
    batches: Batches,
    *,
    words: int,
) -> Instances:
    """A link of the chain with ``words`` words of state: takes the first LOAD of so many behind a START, and sends as
    many with every DUMP.  A word in two cycles.  Costs a stage of the chain, its multiplexers and counters.

    Ports:
        load: in, stream of `CHAIN_BITS` bits.
        dump: out, stream as wide, 1 cycle later; valid and payload from registers.
        taken: out, stream of `WORD_BITS` bits: state that is loaded.
        given: in, stream of `WORD_BITS` bits: state, while ``batches.giving``.
        begin: out, all of it.
        batches: out, all of it but ``rests``, which is in: from registers.
    """
    made = Stream(CHAIN_BITS)
    mode = Signal(intbv(PASS)[2:])
    left = Signal(intbv(0, min=0, max=words + 1))
    # it had its LOAD; it sent its state; a word of batches follows
    had, sent, runs = (Signal(bool(0)) for _ in range(3))
    mine, asked, passes = (Signal(bool(0)) for _ in range(3))
    start_kind, load_kind, run_kind, dump_kind = (
        int(kind) for kind in (Records.START, Records.LOAD, Records.RUN, Records.DUMP)
    )
    own = 1 << HEADER | header(Records.STATE, words)
    end = COUNT_AT + COUNT_BITS
    stage = half_pipe(domain, made, dump)
    begins = begin_counter(domain, passes, load.payload, begin)

    @always_comb
    def judge() -> None:
        mine.next = (
            load.payload[HEADER] and load.payload[KIND_BITS:] == load_kind and load.payload[end:COUNT_AT] == words
            and not had
        )  # fmt: skip
        asked.next = load.payload[HEADER] and load.payload[KIND_BITS:] == dump_kind and not sent

    @always_comb
    def route() -> None:
        first = intbv(0)[CHAIN_BITS:]
        first[:] = intbv(own)[CHAIN_BITS:]
        if mode == GIVE:
            made.valid.next = given.valid
            made.payload.next = given.payload
        elif mode == TAKE or mine:
            made.valid.next = False
            made.payload.next = load.payload
        elif asked:
            made.valid.next = load.valid and batches.rests
            made.payload.next = first
        else:
            made.valid.next = load.valid
            made.payload.next = load.payload

    @always_comb
    def hand_in() -> None:
        taken.valid.next = load.valid and mode == TAKE
        taken.payload.next = load.payload[WORD_BITS:]

    # apart from what is valid, so that no process of an event-driven simulator starts itself again
    @always_comb
    def answer() -> None:
        given.ready.next = made.ready and mode == GIVE
        if mode == TAKE:
            load.ready.next = taken.ready
        elif mode == GIVE:
            load.ready.next = False
        elif mine:
            load.ready.next = batches.rests
        elif asked:
            load.ready.next = False
        else:
            load.ready.next = made.ready

    @always_comb
    def hand_on() -> None:
        passes.next = mode == PASS and load.valid and not mine and not asked and made.ready
        batches.giving.next = mode == GIVE

    @always(domain.clk.posedge)
    def step() -> None:
        others = modbv(0)[COUNTER_BITS:]
        batches.more.next = False
        if mode == PASS:
            if mine:
                if load.valid and batches.rests:
                    mode.next = TAKE
                    left.next = words
            elif asked:
                if load.valid and batches.rests and made.ready:
                    mode.next = GIVE
                    left.next = words
            elif passes:
                sent.next = False
                runs.next = load.payload[HEADER] and load.payload[KIND_BITS:] == run_kind
                if load.payload[HEADER] and load.payload[KIND_BITS:] == start_kind:
                    had.next = False
                if runs:
                    batches.more.next = True
                    batches.count.next = load.payload[COUNTER_BITS:]
                    others[:] = load.payload[COUNTER_BITS:]
                    batches.others.next = others - 1
        elif (mode == TAKE and load.valid and taken.ready) or (mode == GIVE and given.valid and made.ready):
            left.next = left - 1
            if left == 1:
                had.next = had or mode == TAKE
                sent.next = mode == GIVE
                mode.next = PASS
        if domain.rst:
            mode.next = PASS
            had.next = False
            sent.next = False
            runs.next = False
            batches.more.next = False

    return stage, begins, judge, route, hand_in, answer, hand_on, step


@block
def chain_entry(domain: ClockReset, x: Stream, y: Stream) -> Instances:
    """Marks the headers of records that come from outside.  A word in two cycles.  Costs a stage and a counter.

    Ports:
        x: in, stream of `WORD_BITS` bits, of which the first word after reset is a header.
        y: out, stream of `CHAIN_BITS` bits, 1 cycle later; valid and payload from registers.
    """
    marked = Stream(CHAIN_BITS)
    # words until the next header
    left = Signal(intbv(0)[COUNT_BITS:])
    end = COUNT_AT + COUNT_BITS
    stage = half_pipe(domain, marked, y)

    @always_comb
    def mark() -> None:
        marked.valid.next = x.valid
        marked.payload.next[WORD_BITS:] = x.payload
        marked.payload.next[HEADER] = left == 0
        x.ready.next = marked.ready

    @always(domain.clk.posedge)
    def count() -> None:
        if x.valid and marked.ready:
            if left == 0:
                left.next = x.payload[end:COUNT_AT]
            else:
                left.next = left - 1
        if domain.rst:
            left.next = 0

    return stage, mark, count


@block
def batches_left(domain: ClockReset, batches: Batches, trained: Bit, left: Bits) -> Instances:
    """How many batches may be trained.  Costs an adder.

    Ports:
        batches: in, ``more``, ``count`` and ``others`` alone.
        trained: in, 1 bit, only while ``left`` is not 0: the last of a batch is done at this edge.
        left: out, `COUNTER_BITS` bits, from a register.
    """
    next_left = Signal(modbv(0)[COUNTER_BITS:])

    change = Signal(intbv(0)[COUNTER_BITS:])
    less = (1 << COUNTER_BITS) - 1

    @always_comb
    def choose() -> None:
        change.next = 0
        if batches.more:
            if trained:
                change.next = batches.others
            else:
                change.next = batches.count
        elif trained:
            change.next = intbv(less)[COUNTER_BITS:]

    @always_comb
    def add() -> None:
        total = modbv(0)[COUNTER_BITS:]
        total[:] = left
        total[:] = total + change
        next_left.next = total

    @always(domain.clk.posedge)
    def keep() -> None:
        left.next = next_left
        if domain.rst:
            left.next = 0

    return choose, add, keep
