"""Mean squared error, one class a cycle: differences; their squares and sum; errors."""

from __future__ import annotations

from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.mac import signed_signal
from hdl.engine.arithmetic.rounding import round_stream, scale_stream
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.loss.numbers import METRICS
from hdl.fixed import Fixed
from hdl.memory import address_width
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, fork, join, m2s_pipe, queue, take_bits, width_adapter

# marks of a frame that wait for its loss: more than are under way
MARKS = 16


@dataclass(frozen=True)
class SquaredShape:
    """Everything that the circuit is built from."""

    classes: int
    x: Fixed
    error: Fixed
    # of the loss, by which its error is multiplied
    weight: float = 1.0

    @property
    def fraction_bits(self) -> int:
        """Of a difference: those of x, but one is a code too."""
        return max(self.x.fraction_bits, 0)

    @property
    def grow(self) -> int:
        """Bits by which codes of x are shifted into a difference."""
        return self.fraction_bits - self.x.fraction_bits

    @property
    def difference_bits(self) -> int:
        """Of x less 0 or 1."""
        return max(self.x.width + self.grow, self.fraction_bits + 2) + 1

    @property
    def sum_bits(self) -> int:
        """Of a sum of squares, and a sign."""
        return 2 * self.difference_bits + (self.classes - 1).bit_length() + 1

    @property
    def error_factor(self) -> Scalar:
        """2 / classes times the weight, of differences into errors."""
        return Scalar.of(2 / self.classes * self.weight, self.fraction_bits, self.error.fraction_bits)

    @property
    def loss_factor(self) -> Scalar:
        """1 / classes, of sums of squares into `METRICS`."""
        return Scalar.of(1 / self.classes, 2 * self.fraction_bits, METRICS.fraction_bits)


@block
def mean_squared_error(
    domain: ClockReset, x: Stream, label: Stream, error: Stream, metrics: Stream, *, shape: SquaredShape
) -> Instances:
    """Costs a multiplier, two products by constants and a few registers.

    Ports:
        x: in, stream of a code of ``shape.x``, ``shape.classes`` beats a frame.
        label: in, stream of as many bits as number a class; a beat a frame, taken with the frame's last code.
        error: out, stream of a code of ``shape.error``, one of ``x`` each, as late as
            `MeanSquaredError.latency_cycles` says.
        metrics: out, stream of one or two words of `METRICS`, two words a frame; as late as is said there.
    """
    bits, sum_bits = shape.difference_bits, shape.sum_bits
    for_error, for_loss = shape.error_factor, shape.loss_factor
    # difference, code, and three marks
    marked, held = (Stream(bits + shape.x.width + 3) for _ in range(2))
    parts = [Stream(held.width) for _ in range(2)]
    differences, held_differences = Stream(bits), Stream(bits)
    scaled = Stream(for_error.product_bits(bits))
    records = Stream(sum_bits + 1)
    halves = [Stream(records.width) for _ in range(2)]
    totals, held_totals = Stream(sum_bits), Stream(sum_bits)
    scaled_totals = Stream(for_loss.product_bits(sum_bits))
    losses, rights, held_rights = (Stream(METRICS.width) for _ in range(3))
    both = Stream(2 * METRICS.width)
    return (
        subtract_hot(domain, x, label, marked, shape=shape),
        m2s_pipe(domain, marked, held),
        fork(domain, held, parts),
        take_bits(parts[0], differences, low=0),
        m2s_pipe(domain, differences, held_differences),
        scale_stream(domain, held_differences, scaled, lanes=1, factor=for_error.mantissa),
        round_stream(domain, scaled, error, lanes=1, shift=for_error.shift, target=shape.error),
        square_sums(domain, parts[1], records, shape=shape),
        fork(domain, records, halves),
        take_bits(halves[0], totals, low=0),
        m2s_pipe(domain, totals, held_totals),
        scale_stream(domain, held_totals, scaled_totals, lanes=1, factor=for_loss.mantissa),
        round_stream(domain, scaled_totals, losses, lanes=1, shift=for_loss.shift, target=METRICS),
        widened_mark(halves[1], rights, at=sum_bits),
        queue(domain, rights, held_rights, depth=MARKS),
        join(domain, [losses, held_rights], both),
        width_adapter(domain, both, metrics, element_bits=METRICS.width),
    )


@block
def subtract_hot(domain: ClockReset, x: Stream, label: Stream, marked: Stream, *, shape: SquaredShape) -> Instances:
    """Each code less 1 where its class is the label's.

    Ports:
        x: in, stream of a code of ``shape.x``.
        label: in, stream of as many bits as number a class; needed with each ``x``, taken with the last of its frame.
        marked: out, stream, in the same cycle.  From the low bits on: the difference (``shape.difference_bits``), the
            code, whether its class is the label's, whether it is the first of its frame, the last.
    """
    classes, width, bits = shape.classes, shape.x.width, shape.difference_bits
    last, grow, one = classes - 1, shape.grow, 1 << shape.fraction_bits
    bound = 1 << (bits - 1)
    marks = bits + width
    place = Signal(intbv(0)[address_width(classes) :])
    fire, ends, hot = (Signal(bool(0)) for _ in range(3))
    counting = counter(domain, fire, place, count=classes)

    @always_comb
    def decide() -> None:
        ends.next = place == last
        hot.next = place == label.payload
        fire.next = x.valid and label.valid and marked.ready

    @always_comb
    def handshake() -> None:
        marked.valid.next = x.valid and label.valid
        x.ready.next = label.valid and marked.ready
        label.ready.next = x.valid and marked.ready and ends

    @always_comb
    def subtract() -> None:
        difference = intbv(0, min=-bound, max=bound)
        difference[:] = x.payload.signed()
        difference[:] = difference << grow
        if hot:
            difference[:] = difference - one
        marked.payload.next[bits:] = difference[bits:]
        marked.payload.next[marks:bits] = x.payload
        marked.payload.next[marks] = hot
        marked.payload.next[marks + 1] = place == 0
        marked.payload.next[marks + 2] = ends

    return counting, decide, handshake, subtract


@block
def square_sums(domain: ClockReset, marked: Stream, records: Stream, *, shape: SquaredShape) -> Instances:
    """The sum of squares of a frame, and whether its first largest code is the label's.

    Ports:
        marked: in, stream as `subtract_hot` makes it.
        records: out, stream of a sum of ``shape.sum_bits``, above it a mark, 3 cycles after the last of a frame, from
            registers.
    """
    width, bits, sum_bits = shape.x.width, shape.difference_bits, shape.sum_bits
    marks = bits + width
    difference, product = signed_signal(bits), signed_signal(2 * bits)
    code, record = signed_signal(width), signed_signal(width)
    total = signed_signal(sum_bits)
    valid, first, final = ([Signal(bool(0)) for _ in range(2)] for _ in range(3))
    hot, best, right, complete, go = (Signal(bool(0)) for _ in range(5))

    @always_comb
    def decide() -> None:
        go.next = records.ready or not complete

    @always_comb
    def handshake() -> None:
        marked.ready.next = go
        records.valid.next = complete
        records.payload.next[sum_bits:] = total[sum_bits:]
        records.payload.next[sum_bits] = right

    @always(domain.clk.posedge)
    def multiply() -> None:
        if go:
            difference.next = marked.payload[bits:].signed()
            code.next = marked.payload[marks:bits].signed()
            hot.next = marked.payload[marks]
            first[0].next = marked.payload[marks + 1]
            final[0].next = marked.payload[marks + 2]
            product.next = difference * difference
            first[1].next = first[0]
            final[1].next = final[0]

    @always(domain.clk.posedge)
    def sum_up() -> None:
        if go:
            valid[0].next = marked.valid
            valid[1].next = valid[0]
            if valid[0] and (first[0] or code > record):
                record.next = code
                best.next = hot
            complete.next = valid[1] and final[1]
            if valid[1]:
                right.next = best
                if first[1]:
                    total.next = product
                else:
                    total.next = total + product
        if domain.rst:
            valid[0].next = False
            valid[1].next = False
            complete.next = False

    return decide, handshake, multiply, sum_up


@block
def widened_mark(x: Stream, y: Stream, *, at: int) -> Instances:
    """One bit of a payload as a word.

    Ports:
        x: in, stream of more than ``at`` bits.
        y: out, stream of any width, in the same cycle.
    """

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        y.payload.next = x.payload[at]
        x.ready.next = y.ready

    return connect
