"""The gradient engine of a convolution: every tile of sums is read, added to and written back once a pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.mac import operand_bits, operand_lanes, signed_signal, weight_lanes
from hdl.engine.weights.access import Begin, counter_link
from hdl.engine.weights.gradient_rounding import Rounding, leaving
from hdl.engine.window.map_reader import map_reader
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import Steps
from hdl.fixed import Fixed
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import output_register, queue, read_stream, width_adapter
from hdl.tensor import Tile

# from this many tiles on, sums lie in a memory: it takes four cycles from reading a tile to having written it
MEMORY_TILES = 4
# error words that may wait; more than the cycles from an operation's start to its error
ERRORS = 16
# cycles from the start of a batch's last operation until its sum is written, at most
FLUSH = 12


@dataclass(frozen=True)
class GradientShape:
    """Everything that a gradient engine is built from."""

    walk: Walk
    tile: Tile
    # of the weights
    weight_shape: tuple[int, int, int, int]
    # tiles in all weights
    words: int
    ring_rows: int
    x: Fixed
    e: Fixed
    g: Fixed
    # bits of a sum over a batch
    sum_bits: int
    # bits of it that are cut off
    shift: int
    # frames a batch
    batch: int
    # gradients a beat
    lanes: int
    # of the random bits
    key: int
    # groups of a tile, of which each has filters and channels of its own
    groups: int = 1
    # bits of a product that are cut before it is added, to sums that wrap; 0 for exact sums
    cut: int = 0
    # batches of an earlier training
    begun: int = 0
    # whether sums leave as they are
    exact: bool = False

    @property
    def channels(self) -> int:
        """Channels of a tile."""
        return self.groups * self.tile.pi

    @property
    def ragged_channels(self) -> int:
        """Channels a pixel where they are no whole number of tiles; else 0."""
        return self.weight_shape[1] if self.weight_shape[1] % self.tile.pi else 0

    @property
    def ragged_filters(self) -> int:
        """Filters likewise."""
        return self.weight_shape[0] if self.weight_shape[0] % self.tile.po else 0

    @property
    def rounding(self) -> Rounding | None:
        """Of the sums of a batch."""
        return (
            None
            if self.exact
            else Rounding(self.weight_shape, self.tile, self.lanes, self.shift, self.g, self.key, self.begun)
        )


class Update:
    """An operation's place among the sums, as products arrive: all registered."""

    def __init__(self, words: int) -> None:
        self.valid, self.fresh = Signal(bool(0)), Signal(bool(0))
        self.word = Signal(intbv(0)[address_width(words) :])


@block
def gradient(
    domain: ClockReset,
    x: Stream,
    e: Stream,
    g: Stream,
    *,
    shape: GradientShape,
    by_channel: bool = False,
    begin: Begin | None = None,
) -> Instances:
    """Reads maps and errors, writes the rounded sums after every batch; rates as `Walk.cycles` says.

    One operation multiplies the errors of ``po`` filters with ``pi`` channels at ``pk`` taps.  An error word serves
    successive operations and is then dropped.  After a batch the engine rests until its sums have left.

    Ports:
        x: in, stream of codes of ``shape.x``, any number a beat.
        e: in, stream of codes of ``shape.e``, any number a beat.
        g: out, stream of ``shape.lanes`` codes of ``shape.g``, in the stream order of the weights.  What the last words
            of a pixel of ``x`` and ``e`` lack of a ragged tile is zeros, and so are the sums there.
        begin: in, as of `gradient_rounding`.

    Args:
        by_channel: each error meets only its own channel, ``po`` of them at a time.
    """
    tile = shape.tile
    steps, update = Steps(shape.walk, shape.ring_rows), Update(shape.words)
    error_words = Stream(tile.po * shape.e.width)
    adapt_e = width_adapter(domain, e, error_words, element_bits=shape.e.width, flush_every=shape.ragged_filters)
    rest, drained = Signal(bool(0)), Signal(bool(0))
    products = product_signals(shape)
    multiply = error_products(domain, x, error_words, rest, steps, products, shape=shape, by_channel=by_channel)
    batches = batch_end(domain, steps, rest, drained, batch=shape.batch)
    place = update_place(domain, steps, update, drained, words=shape.words)
    tiles, beats = Stream(tile.size * shape.sum_bits), Stream(shape.lanes * shape.sum_bits)
    store = memory_sums if shape.words >= MEMORY_TILES else register_sums
    sums = store(domain, products, update, steps.valid, rest, drained, tiles, shape=shape)
    adapt_g = width_adapter(domain, tiles, beats, element_bits=shape.sum_bits)
    rounding = leaving(shape.rounding, begin)(domain, beats, g)
    return adapt_e, multiply, batches, place, sums, adapt_g, rounding


@block
def counted_gradient(
    domain: ClockReset,
    x: Stream,
    e: Stream,
    g: Stream,
    load: Stream,
    dump: Stream,
    *,
    shape: GradientShape,
    by_channel: bool = False,
) -> Instances:
    """`gradient`, with a number of batches behind it that comes by a stream.

    Ports:
        x: in, stream as that of `gradient`.
        e: in, stream as that of `gradient`.
        g: out, stream as that of `gradient`.
        load: in, stream of 65 bits.
        dump: out, stream as wide as ``load``.
    """
    begin = Begin()
    link = counter_link(domain, load, dump, begin)
    return link, gradient(domain, x, e, g, shape=shape, by_channel=by_channel, begin=begin)


def product_signals(shape: GradientShape) -> list[Bits]:
    """Of all products of an operation, in the order of a tile."""
    return [signed_signal(operand_bits(shape.x) + operand_bits(shape.e)) for _ in range(shape.tile.size)]


@block
def error_products(
    domain: ClockReset,
    x: Stream,
    errors: Stream,
    blocked: Bit,
    steps: Steps,
    products: Sequence[Bits],
    *,
    shape: GradientShape,
    by_channel: bool = False,
) -> Instances:
    """The walk over the map, and the products of each operation with its error word.

    Ports:
        x: in, stream of codes of ``shape.x``, any number a beat.
        errors: in, stream of error words, ``tile.po`` codes of ``shape.e``.
        blocked: in, 1 bit, from registers: no operation may start.
        steps: out, when as said there.
        products: out, ``tile.size`` signed signals, 2 cycles after ``steps.valid``.
    """
    walk, tile = shape.walk, shape.tile
    map_words = Stream((tile.po if by_channel else shape.channels) * shape.x.width)
    waiting = Stream(errors.width)
    words = [Signal(intbv(0)[map_words.width :]) for _ in range(walk.taps)]
    claim, claimable, may = (Signal(bool(0)) for _ in range(3))
    multiply = lane_products if by_channel else outer_products
    return (
        width_adapter(domain, x, map_words, element_bits=shape.x.width, flush_every=shape.ragged_channels),
        queue(domain, errors, waiting, depth=ERRORS),
        map_reader(
            domain, map_words, words, claim, claimable, may, steps, walk=walk, ring_rows=shape.ring_rows, weights=None
        ),
        error_gate(domain, errors, waiting, claimable, may, blocked, steps),
        multiply(domain.clk, words, steps.inside, waiting.payload, products, shape=shape),
    )


@block
def error_gate(
    domain: ClockReset, pushed: Stream, errors: Stream, claimable: Bit, may: Bit, rest: Bit, steps: Steps
) -> Instances:
    """Counts error words that no operation has finished with, and drops one with the last operation that uses it.

    Ports:
        pushed: in, stream of error words into the queue, watched.
        errors: in, stream of error words out of the queue; taken with the last operation of each.
        claimable: out, 1 bit: high unless ``rst``.
        may: out, 1 bit, combinational in ``rest``: there is an error word for the next operation.
        rest: in, 1 bit, from registers: no operation may start.
        steps: in, ``issue_last``, ``valid`` and ``last`` alone.
    """
    waiting = Signal(intbv(0, min=0, max=ERRORS + 2))
    push = Signal(bool(0))

    @always_comb
    def decide() -> None:
        push.next = pushed.valid and pushed.ready
        may.next = waiting != 0 and not rest
        claimable.next = not domain.rst
        errors.ready.next = steps.valid and steps.last

    @always(domain.clk.posedge)
    def count() -> None:
        if push and not steps.issue_last:
            waiting.next = waiting + 1
        elif steps.issue_last and not push:
            waiting.next = waiting - 1
        if domain.rst:
            waiting.next = 0

    return decide, count


@block
def batch_end(domain: ClockReset, steps: Steps, rest: Bit, drained: Bit, *, batch: int) -> Instances:
    """``rest`` from the start of a batch's last operation until its sums have left.

    Ports:
        steps: in, ``issue_frame_last`` alone.
        rest: out, 1 bit, from a register.
        drained: in, 1 bit: the last sum was taken.
    """
    frame = Signal(intbv(0, min=0, max=batch + 1))
    last_frame = batch - 1

    @always(domain.clk.posedge)
    def count() -> None:
        if steps.issue_frame_last:
            if frame == last_frame:
                frame.next = 0
                rest.next = True
            else:
                frame.next = frame + 1
        if drained:
            rest.next = False
        if domain.rst:
            frame.next = 0
            rest.next = False

    return count


@block
def outer_products(
    clk: Clock,
    words: Sequence[Bits],
    inside: Sequence[Bit],
    error_word: Bits,
    products: Sequence[Bits],
    *,
    shape: GradientShape,
) -> Instances:
    """All products of an operation, in the order of a tile.

    Ports:
        words: in, a vector a tap: ``shape.channels`` codes of ``shape.x``.
        inside: in, 1 bit a tap, with the words: whether the tap counts (else zeros).
        error_word: in, ``tile.po`` codes of ``shape.e``, with the words.
        products: out, ``tile.size`` signed signals, 2 cycles later.
    """
    po, pi, pk = shape.tile.po, shape.tile.pi, shape.tile.pk
    groups, every = shape.groups, shape.channels
    rows = po // groups
    operands = [signed_signal(operand_bits(shape.x)) for _ in range(every * pk)]
    errors = [signed_signal(operand_bits(shape.e)) for _ in range(po)]
    split = operand_lanes(clk, words, inside, operands, fixed=shape.x)
    split_errors = weight_lanes(clk, error_word, errors, fixed=shape.e)

    if groups == 1:

        @always(clk.posedge)
        def multiply() -> None:
            for row in range(po):
                for lane in range(pi):
                    for tap in range(pk):
                        products[(row * pi + lane) * pk + tap].next = errors[row] * operands[tap * pi + lane]

    else:

        @always(clk.posedge)
        def multiply() -> None:
            for group in range(groups):
                for row in range(rows):
                    for lane in range(pi):
                        for tap in range(pk):
                            products[((group * rows + row) * pi + lane) * pk + tap].next = (
                                errors[group * rows + row] * operands[tap * every + group * pi + lane]
                            )

    return split, split_errors, multiply


@block
def lane_products(
    clk: Clock,
    words: Sequence[Bits],
    inside: Sequence[Bit],
    error_word: Bits,
    products: Sequence[Bits],
    *,
    shape: GradientShape,
) -> Instances:
    """The product of each channel's error with its operands at all taps, in the order of a tile.

    Ports:
        words: in, a vector a tap: ``tile.po`` codes of ``shape.x``.
        inside: in, 1 bit a tap, with the words: whether the tap counts (else zeros).
        error_word: in, ``tile.po`` codes of ``shape.e``, with the words.
        products: out, ``tile.size`` signed signals, 2 cycles later.
    """
    lanes, taps = shape.tile.po, shape.tile.pk
    operands = [signed_signal(operand_bits(shape.x)) for _ in range(lanes * taps)]
    errors = [signed_signal(operand_bits(shape.e)) for _ in range(lanes)]
    split = operand_lanes(clk, words, inside, operands, fixed=shape.x)
    split_errors = weight_lanes(clk, error_word, errors, fixed=shape.e)

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(lanes):
            for tap in range(taps):
                products[lane * taps + tap].next = errors[lane] * operands[tap * lanes + lane]

    return split, split_errors, multiply


@block
def update_place(domain: ClockReset, steps: Steps, update: Update, drained: Bit, *, words: int) -> Instances:
    """Counts tiles as operations arrive from the row store; the first pixel of a batch starts its sums afresh.

    Ports:
        steps: in, ``valid`` alone.
        update: out, with ``steps.valid``.
        drained: in, 1 bit: the last sum of a batch was taken.
    """
    final = words - 1
    fresh = Signal(bool(1))

    @always(domain.clk.posedge)
    def count() -> None:
        if steps.valid:
            if update.word == final:
                update.word.next = 0
                fresh.next = False
            else:
                update.word.next = update.word + 1
        if drained:
            fresh.next = True
        if domain.rst:
            update.word.next = 0
            fresh.next = True

    @always_comb
    def out() -> None:
        update.valid.next = steps.valid
        update.fresh.next = fresh

    return count, out


@block
def drain_control(
    domain: ClockReset, rest: Bit, tile: Bits, tiles: Stream, fetch: Bit, at: Bits, drained: Bit, *, words: int
) -> Instances:
    """Fetches tiles in order once the last sum is written.

    Ports:
        rest: in, 1 bit, from a register: the batch is over.
        tile: in, as wide as ``tiles``, from the cycle after ``fetch`` on.
        tiles: out, stream of any width; its payload is ``tile`` itself.
        fetch: out, 1 bit, combinational in ``tiles.ready``: read a tile.
        at: out, `address_width` ``(words)`` bits, from a register: which one.
        drained: out, 1 bit, combinational in ``tiles.ready``: the last tile was taken.
    """
    wait = Signal(intbv(FLUSH, min=0, max=FLUSH + 1))
    left = Signal(bool(0))
    may_read, moved = Signal(bool(0)), Signal(bool(0))
    final = words - 1
    reading = read_stream(domain, may_read, fetch, tile, tiles)

    @always_comb
    def decide() -> None:
        may_read.next = rest and left and wait == 0
        moved.next = tiles.valid and tiles.ready

    @always_comb
    def finish() -> None:
        drained.next = moved and not left

    @always(domain.clk.posedge)
    def step() -> None:
        if not rest:
            wait.next = FLUSH
            left.next = True
        elif wait != 0:
            wait.next = wait - 1
        if fetch:
            if at == final:
                at.next = 0
                left.next = False
            else:
                at.next = at + 1
        if drained:
            left.next = True
            wait.next = FLUSH
        if domain.rst:
            wait.next = FLUSH
            left.next = True
            at.next = 0

    return reading, decide, finish, step


@block
def add_products(clk: Clock, before: Bits, products: Sequence[Bits], summed: Bits, *, bits: int) -> Instances:
    """The sums of a tile with an operation's products.

    Ports:
        before: in, signed sums of ``bits`` bits, one a product.
        products: in, signed signals.
        summed: out, as wide as ``before``, 1 cycle later.
    """
    size, bound = len(products), 1 << (bits - 1)

    @always(clk.posedge)
    def add() -> None:
        old = intbv(0, min=-bound, max=bound)
        total = intbv(0, min=-bound, max=bound)
        for lane in range(size):
            old[:] = before[bits_of(lane, bits)].signed()
            total[:] = old + products[lane]
            summed.next[bits_of(lane, bits)] = total[bits:]

    return add


@block
def add_cut_products(
    clk: Clock, before: Bits, products: Sequence[Bits], summed: Bits, *, bits: int, cut: int
) -> Instances:
    """`add_products` of products less ``cut`` bits each, above 0 (`hdl.fixed.cut_product`), to sums that wrap.

    Ports:
        before: in, signed sums of ``bits`` bits, one a product.
        products: in, signed signals.
        summed: out, as wide as ``before``, 1 cycle later.
    """
    size, kept = len(products), len(products[0]) - cut + 1
    terms = [signed_signal(kept) for _ in range(size)]
    cutting = cut_terms(products, terms, cut=cut)
    bound = 1 << max(bits + 1, kept)

    @always(clk.posedge)
    def add() -> None:
        old = intbv(0)[bits + 1 :]
        first = intbv(0, min=-bound, max=bound)
        for lane in range(size):
            old[:] = before[bits_of(lane, bits)]
            old[:] = (old << 1) | 1
            first[:] = old[bits + 1 :].signed()
            first[:] = first + terms[lane]
            summed.next[bits_of(lane, bits)] = first[bits + 1 : 1]

    return cutting, add


@block
def cut_terms(products: Sequence[Bits], terms: Sequence[Bits], *, cut: int) -> Instances:
    """What is added of products: all but ``cut`` bits, and below them whether they are rounded up.

    To a sum with a one below it, so that the carry of the two lowest bits does the rounding and takes no adder.

    Ports:
        products: in, signed signals.
        terms: out, signed signals, ``cut - 1`` bits narrower, in the same cycle.
    """
    size, width = len(products), len(products[0])
    kept = width - cut + 1
    # of a tie: whether the number would be odd; else whether it is above one
    others = (1 << cut) | ((1 << (cut - 1)) - 1)

    @always_comb
    def choose() -> None:
        low = intbv(0)[cut + 1 :]
        up = intbv(0)[1:]
        term = intbv(0)[kept:]
        for lane in range(size):
            low[:] = products[lane][cut + 1 :]
            up[:] = low[cut - 1] and (low & others) != 0
            term[:] = products[lane][width:cut]
            term[:] = (term << 1) | up
            terms[lane].next = term[kept:].signed()

    return choose


@block
def memory_sums(
    domain: ClockReset,
    products: Sequence[Bits],
    update: Update,
    valid: Bit,
    rest: Bit,
    drained: Bit,
    tiles: Stream,
    *,
    shape: GradientShape,
) -> Instances:
    """Sums in a memory of one tile a word: read, one cycle; register; add; write.

    The register is cleared for the first products of a batch: flip-flops do that without logic.

    Ports:
        products: in, ``tile.size`` signed signals, 2 cycles after ``valid``.
        update: in, with ``valid``.
        valid: in, 1 bit: an operation.
        rest: in, 1 bit, from a register: the batch is over, and its sums may leave.
        drained: out, 1 bit, combinational in ``tiles.ready``: the last of them was taken.
        tiles: out, stream of ``tile.size`` sums of ``shape.sum_bits`` bits.
    """
    words, bits, size = shape.words, shape.sum_bits, shape.tile.size
    width = size * bits
    before, summed, read_word = (Signal(intbv(0)[width:]) for _ in range(3))
    read_at, drain_at = (Signal(intbv(0)[address_width(words) :]) for _ in range(2))
    places = [Signal(intbv(0)[address_width(words) :]) for _ in range(3)]
    flags = [Signal(bool(0)) for _ in range(3)]
    fresh = Signal(bool(0))
    write, write_at = flags[2], places[2]
    read, fetch = Signal(bool(0)), Signal(bool(0))
    read_tiles = Stream(width)
    store = simple_dual_port(domain.clk, write, write_at, summed, read, read_at, read_word, depth=words, width=width)
    drain = drain_control(domain, rest, read_word, read_tiles, fetch, drain_at, drained, words=words)
    leave = output_register(domain, read_tiles, tiles, depth=words)
    if shape.cut:
        add = add_cut_products(domain.clk, before, products, summed, bits=bits, cut=shape.cut)
    else:
        add = add_products(domain.clk, before, products, summed, bits=bits)

    @always_comb
    def choose() -> None:
        read.next = valid or fetch
        if fetch:
            read_at.next = drain_at
        else:
            read_at.next = update.word

    @always(domain.clk.posedge)
    def delay() -> None:
        flags[0].next = valid and not domain.rst
        places[0].next = update.word
        fresh.next = update.fresh
        for stage in range(2):
            flags[stage + 1].next = flags[stage] and not domain.rst
            places[stage + 1].next = places[stage]
        if fresh:
            before.next = 0
        else:
            before.next = read_word

    return store, drain, leave, add, choose, delay


@block
def register_sums(
    domain: ClockReset,
    products: Sequence[Bits],
    update: Update,
    valid: Bit,
    rest: Bit,
    drained: Bit,
    tiles: Stream,
    *,
    shape: GradientShape,
) -> Instances:
    """Sums in registers, for fewer tiles than the memory's latency.

    Ports:
        products: in, ``tile.size`` signed signals, 2 cycles after ``valid``.
        update: in, with ``valid``.
        valid: in, 1 bit: an operation.
        rest: in, 1 bit, from a register: the batch is over, and its sums may leave.
        drained: out, 1 bit, combinational in ``tiles.ready``: the last of them was taken.
        tiles: out, stream of ``tile.size`` sums of ``shape.sum_bits`` bits.
    """
    words, bits, size = shape.words, shape.sum_bits, shape.tile.size
    sums = [signed_signal(bits) for _ in range(words * size)]
    current = [signed_signal(bits) for _ in range(size)]
    total = [signed_signal(bits) for _ in range(size)]
    flags = [Signal(bool(0)) for _ in range(2)]
    fresh = [Signal(bool(0)) for _ in range(2)]
    places = [Signal(intbv(0)[address_width(words) :]) for _ in range(2)]
    drain_at, at = (Signal(intbv(0)[address_width(words) :]) for _ in range(2))
    fetch = Signal(bool(0))
    tile = Signal(intbv(0)[tiles.width :])
    drain = drain_control(domain, rest, tile, tiles, fetch, drain_at, drained, words=words)

    @always(domain.clk.posedge)
    def delay() -> None:
        flags[0].next = valid and not domain.rst
        flags[1].next = flags[0] and not domain.rst
        fresh[0].next = update.fresh
        fresh[1].next = fresh[0]
        places[0].next = update.word
        places[1].next = places[0]

    @always_comb
    def choose() -> None:
        for lane in range(size):
            current[lane].next = sums[lane]
            for word in range(1, words):
                if at == word:
                    current[lane].next = sums[word * size + lane]

    @always_comb
    def place() -> None:
        at.next = places[1]
        if rest and not flags[1]:
            at.next = drain_at

    if shape.cut:
        add = add_cut_registers(current, fresh[1], products, total, cut=shape.cut)
    else:

        @always_comb
        def add() -> None:
            for lane in range(size):
                if fresh[1]:
                    total[lane].next = products[lane]
                else:
                    total[lane].next = current[lane] + products[lane]

    @always(domain.clk.posedge)
    def keep() -> None:
        if flags[1]:
            for word in range(words):
                if places[1] == word:
                    for lane in range(size):
                        sums[word * size + lane].next = total[lane]

    @always(domain.clk.posedge)
    def out() -> None:
        if fetch:
            for lane in range(size):
                tile.next[bits_of(lane, bits)] = current[lane][bits:]

    return drain, delay, choose, place, add, keep, out


@block
def add_cut_registers(
    current: Sequence[Bits], fresh: Bit, products: Sequence[Bits], total: Sequence[Bits], *, cut: int
) -> Instances:
    """As `add_cut_products`, of sums in registers.

    Ports:
        current: in, signed signals, one a product.
        fresh: in, 1 bit: they count as zeros.
        products: in, signed signals.
        total: out, signed signals as wide as ``current``, in the same cycle.
    """
    size, bits, kept = len(products), len(total[0]), len(products[0]) - cut + 1
    terms = [signed_signal(kept) for _ in range(size)]
    cutting = cut_terms(products, terms, cut=cut)
    bound = 1 << max(bits + 1, kept)

    @always_comb
    def add() -> None:
        old = intbv(0)[bits + 1 :]
        first = intbv(0, min=-bound, max=bound)
        for lane in range(size):
            old[:] = current[lane][bits:]
            if fresh:
                old[:] = 0
            old[:] = (old << 1) | 1
            first[:] = old[bits + 1 :].signed()
            first[:] = first + terms[lane]
            total[lane].next = first[bits + 1 : 1].signed()

    return cutting, add
