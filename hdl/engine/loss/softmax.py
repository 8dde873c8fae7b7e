"""Softmax and cross-entropy, one class a cycle: four stages on successive frames, with queues between them."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.engine.arithmetic.mac import WIDEST_FACTOR, signed_signal
from hdl.engine.arithmetic.rounding import round_stream
from hdl.engine.arithmetic.tables import large_look_up, registered_look_up, signal_for
from hdl.engine.loss.numbers import (
    EXPONENT_BITS,
    HALF_BITS,
    LOG_BITS,
    METRICS,
    TABLE_BITS,
    VALUE_BITS,
    SoftmaxNumbers,
)
from hdl.fixed import Fixed
from hdl.memory import address_width
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, fork, m2s_pipe, queue, take_bits, width_adapter

# cycles of a division beyond `SoftmaxNumbers.quotient_shift`: the first rank, loading, handing over
DIVIDER_EXTRA = 3
# cycles from a code to its exponential
EXPONENTIAL_LATENCY = 7
# classes that wait beyond those of one frame, so that neither stage stops for the other
SLACK = 16
# bits that shift an exponential: its whole exponent is cut off at VALUE_BITS + 2
WHOLE_BITS = (VALUE_BITS + 2).bit_length()


@block
def softmax_cross_entropy(
    domain: ClockReset,
    x: Stream,
    label: Stream,
    error: Stream,
    metrics: Stream,
    *,
    numbers: SoftmaxNumbers,
    target: Fixed,
) -> Instances:
    """Maximum; exponentials and their sum; reciprocal and logarithm; errors.

    Costs two multipliers, two queues of about ``classes`` words, a serial divider and three tables.

    Ports:
        x: in, stream of a code of ``numbers.x``, ``numbers.classes`` beats a frame.
        label: in, stream of as many bits as number a class; a beat a frame.
        error: out, stream of a code of ``target``, ``numbers.classes`` beats a frame; from a frame's last ``x`` to the
            first as many cycles as `SoftmaxCrossEntropy.latency_cycles` says.
        metrics: out, stream of one or two words of `METRICS`, two words a frame; as late as is said there.
    """
    classes, width = numbers.classes, numbers.x.width
    place_bits, label_bits = address_width(classes), label.width
    codes, held_codes = Stream(width), Stream(width)
    best, held_best = (Stream(width + place_bits) for _ in range(2))
    values, held_values = (Stream(VALUE_BITS + 1) for _ in range(2))
    # sum, distance of the label's class, whether it is the largest, label
    summary_bits = numbers.sum_bits + numbers.distance_bits + 1 + label_bits
    sums, held_sums = Stream(summary_bits), Stream(summary_bits)
    # reciprocal and label; loss and correctness
    factor_bits = numbers.quotient_shift + 1 + label_bits
    quotients = Stream(factor_bits + 2 * METRICS.width)
    factors, held_factors = Stream(factor_bits), Stream(factor_bits)
    records, held_records = Stream(2 * METRICS.width), Stream(2 * METRICS.width)
    products = Stream(VALUE_BITS + numbers.quotient_shift + 3)
    lowered = Stream(products.width) if numbers.cold else products
    shares = [subtract_share(domain, products, lowered, share=numbers.cold)] if numbers.cold else []
    parts = [Stream(quotients.width) for _ in range(2)]
    return (
        largest(domain, x, codes, best, classes=classes),
        queue(domain, codes, held_codes, depth=classes + SLACK),
        queue(domain, best, held_best, depth=2),
        exponentials(domain, held_codes, held_best, label, values, sums, numbers=numbers),
        queue(domain, values, held_values, depth=classes + numbers.quotient_shift + 2 * SLACK),
        queue(domain, sums, held_sums, depth=2),
        divide(domain, held_sums, quotients, numbers=numbers, label_bits=label_bits),
        fork(domain, quotients, parts),
        take_bits(parts[0], factors, low=0),
        take_bits(parts[1], records, low=factor_bits),
        queue(domain, factors, held_factors, depth=2),
        m2s_pipe(domain, records, held_records),
        width_adapter(domain, held_records, metrics, element_bits=METRICS.width),
        subtract_label(domain, held_values, held_factors, products, numbers=numbers),
        round_stream(
            domain,
            lowered,
            error,
            lanes=1,
            shift=VALUE_BITS + numbers.quotient_shift - target.fraction_bits,
            target=target,
        ),
        *shares,
    )


@block
def subtract_share(domain: ClockReset, x: Stream, y: Stream, *, share: int) -> Instances:
    """What every class has of a smooth label's target, subtracted; a register.

    Ports:
        x: in, stream of a signed code; valid and payload from registers.
        y: out, stream as wide, 1 cycle later, from registers; the difference must fit.
    """
    width, share_bits = x.width, share.bit_length()
    bound = 1 << (width - 1)
    computed = Stream(width)
    register = m2s_pipe(domain, computed, y)

    @always_comb
    def subtract() -> None:
        code = intbv(0, min=-bound, max=bound)
        code[:] = x.payload.signed()
        code[:] = code - intbv(share)[share_bits:]
        computed.valid.next = x.valid
        computed.payload.next = code[width:]
        x.ready.next = computed.ready

    return register, subtract


@block
def largest(domain: ClockReset, x: Stream, codes: Stream, best: Stream, *, classes: int) -> Instances:
    """Passes codes on; after each frame, the largest (low bits) and the place of the first such.

    Ports:
        x: in, stream of a signed code, ``classes`` beats a frame.
        codes: out, stream as wide as ``x``, in the same cycle.
        best: out, stream of `address_width` of ``classes`` bits more than ``x``, 1 cycle after the last code of a
            frame, from registers.
    """
    width = x.width
    total = best.width
    last = classes - 1
    place, at = (Signal(intbv(0)[address_width(classes) :]) for _ in range(2))
    record = signed_signal(width)
    code = signed_signal(width)
    found, go, fire = (Signal(bool(0)) for _ in range(3))

    @always_comb
    def split() -> None:
        code.next = x.payload.signed()
        go.next = codes.ready and (best.ready or not found)

    @always_comb
    def handshake() -> None:
        fire.next = x.valid and go
        x.ready.next = go
        codes.valid.next = x.valid and (best.ready or not found)
        codes.payload.next = x.payload
        best.valid.next = found
        best.payload.next[width:] = record[width:]
        best.payload.next[total:width] = at

    @always(domain.clk.posedge)
    def step() -> None:
        if best.ready:
            found.next = False
        if fire:
            if place == 0 or code > record:
                record.next = code
                at.next = place
            if place == last:
                place.next = 0
                found.next = True
            else:
                place.next = place + 1
        if domain.rst:
            place.next = 0
            found.next = False

    return split, handshake, step


@block
def exponentials(
    domain: ClockReset,
    x: Stream,
    best: Stream,
    label: Stream,
    values: Stream,
    sums: Stream,
    *,
    numbers: SoftmaxNumbers,
) -> Instances:
    """exp(x - largest) of each class; after each frame their sum and what the loss needs to know.

    Ports:
        x: in, stream of a code of ``numbers.x``.
        best: in, stream as `largest` makes it; needed with each ``x``, taken with the last of its frame.
        label: in, stream of as many bits as number a class; needed and taken as ``best``.
        values: out, stream of ``VALUE_BITS + 1`` bits, unsigned, `EXPONENTIAL_LATENCY` cycles after each ``x``.
        sums: out, stream, 1 cycle after the last value of a frame, from registers.  From the low bits on: the sum
            (``numbers.sum_bits``), the distance of the label's class (``numbers.distance_bits``), whether its code is
            the first largest (1 bit), the label.
    """
    classes, width, bits = numbers.classes, numbers.x.width, numbers.distance_bits
    last = classes - 1
    place = Signal(intbv(0)[address_width(classes) :])
    go, fire, ends, starts = (Signal(bool(0)) for _ in range(4))
    counting = counter(domain, fire, place, count=classes)
    code, record = signed_signal(width), signed_signal(width)
    distance, label_distance = (Signal(intbv(0)[bits:]) for _ in range(2))
    value = Signal(intbv(0)[VALUE_BITS + 1 :])
    # beside each stage: a class is there, the first, the last, the label's
    valid, first, final, labelled = ([Signal(bool(0)) for _ in range(EXPONENTIAL_LATENCY)] for _ in range(4))
    distances = [Signal(intbv(0)[bits:]) for _ in range(EXPONENTIAL_LATENCY - 1)]
    places = [Signal(intbv(0)[label.width + 1 :]) for _ in range(EXPONENTIAL_LATENCY)]
    total = Signal(intbv(0)[numbers.sum_bits :])
    complete, right = Signal(bool(0)), Signal(bool(0))
    kept_label = Signal(intbv(0)[label.width :])
    sum_bits, label_bits, payload_bits = numbers.sum_bits, label.width, sums.width
    end = EXPONENTIAL_LATENCY - 1
    reach = 1 << width
    power = exponential(domain.clk, go, distance, value, numbers=numbers)

    @always_comb
    def split() -> None:
        code.next = x.payload[width:].signed()
        record.next = best.payload[width:].signed()
        go.next = values.ready and (sums.ready or not complete)
        starts.next = place == 0
        ends.next = place == last

    @always_comb
    def handshake() -> None:
        fire.next = x.valid and best.valid and label.valid and go
        x.ready.next = best.valid and label.valid and go
        best.ready.next = x.valid and label.valid and go and ends
        label.ready.next = x.valid and best.valid and go and ends

    @always_comb
    def out() -> None:
        values.valid.next = valid[end] and (sums.ready or not complete)
        values.payload.next = value
        sums.valid.next = complete
        sums.payload.next[sum_bits:] = total
        sums.payload.next[sum_bits + bits : sum_bits] = label_distance
        sums.payload.next[sum_bits + bits] = right
        sums.payload.next[payload_bits : sum_bits + bits + 1] = kept_label

    @always(domain.clk.posedge)
    def enter() -> None:
        difference = intbv(0, min=-reach, max=reach)
        if go:
            difference[:] = record - code
            distance.next = difference[bits:]
            valid[0].next = fire
            first[0].next = starts
            final[0].next = ends
            labelled[0].next = place == label.payload
            places[0].next[label_bits:] = label.payload
            places[0].next[label_bits] = best.payload[width + label_bits : width] == label.payload
            distances[0].next = distance
            for stage in range(1, end):
                distances[stage].next = distances[stage - 1]
            for stage in range(1, end + 1):
                valid[stage].next = valid[stage - 1]
                first[stage].next = first[stage - 1]
                final[stage].next = final[stage - 1]
                labelled[stage].next = labelled[stage - 1]
                places[stage].next = places[stage - 1]
        if domain.rst:
            for stage in range(end + 1):
                valid[stage].next = False

    @always(domain.clk.posedge)
    def add() -> None:
        if sums.ready:
            complete.next = False
        if go and valid[end]:
            if first[end]:
                total.next = value
            else:
                total.next = total + value
            if labelled[end]:
                label_distance.next = distances[end - 1]
            complete.next = final[end]
            right.next = places[end][label_bits]
            kept_label.next = places[end][label_bits:]
        if domain.rst:
            complete.next = False

    return power, split, handshake, out, enter, counting, add


@block
def exponential(clk: Clock, go: Bit, distance: Bits, value: Bits, *, numbers: SoftmaxNumbers) -> Instances:
    """`SoftmaxNumbers.exponentials`, six cycles with ``go``: scale, round, look up, multiply, shift, round.

    Ports:
        go: in, 1 bit: everything moves on at this edge.
        distance: in, ``numbers.distance_bits``, unsigned.
        value: out, ``VALUE_BITS + 1`` bits, unsigned, 6 cycles with ``go`` later.
    """
    scale, shift = numbers.scale, numbers.exponent_shift
    scaled_bits = len(distance) + scale.bit_length()
    cut, grow = max(shift, 0), max(-shift, 0)
    half = (1 << cut) >> 1
    exponent_bits = max(scaled_bits + 1 + grow, EXPONENT_BITS + WHOLE_BITS + 1)
    scaled = Signal(intbv(0)[scaled_bits:])
    part, high_part, low_part = (Signal(intbv(0)[bits:]) for bits in (EXPONENT_BITS, HALF_BITS, HALF_BITS))
    whole = [Signal(intbv(0)[WHOLE_BITS:]) for _ in range(3)]
    shifted = Signal(intbv(0)[VALUE_BITS + 2 :])
    coarse, fine = signal_for(numbers.coarse), signal_for(numbers.fine)
    product = Signal(intbv(0)[2 * (TABLE_BITS + 1) :])
    most, dropped = VALUE_BITS + 2, 2 * TABLE_BITS - VALUE_BITS - 1
    product_bits, value_bits = len(product), VALUE_BITS + 1
    tables = (
        enabled_look_up(clk, go, high_part, coarse, table=numbers.coarse),
        enabled_look_up(clk, go, low_part, fine, table=numbers.fine),
    )

    @always_comb
    def halves() -> None:
        high_part.next = part[EXPONENT_BITS:HALF_BITS]
        low_part.next = part[HALF_BITS:]

    @always(clk.posedge)
    def round_exponent() -> None:
        exponent = intbv(0)[exponent_bits + cut :]
        if go:
            scaled.next = distance * scale
            exponent[:] = scaled
            exponent[:] = exponent << grow
            exponent[:] = exponent + half
            exponent[:] = exponent >> cut
            part.next = exponent[EXPONENT_BITS:]
            exponent[:] = exponent >> EXPONENT_BITS
            if exponent > most:
                exponent[:] = most
            whole[0].next = exponent[WHOLE_BITS:]

    @always(clk.posedge)
    def multiply() -> None:
        kept = intbv(0)[product_bits:]
        if go:
            product.next = coarse * fine
            whole[1].next = whole[0]
            whole[2].next = whole[1]
            kept[:] = product >> dropped
            for level in range(WHOLE_BITS):
                if whole[2][level]:
                    kept[:] = kept >> (1 << level)
            shifted.next = kept[value_bits + 1 :]
            kept[:] = shifted
            kept[:] = kept + 1
            kept[:] = kept >> 1
            value.next = kept[value_bits:]

    return tables, halves, round_exponent, multiply


@block
def enabled_look_up(clk: Clock, go: Bit, index: Bits, value: Bits, *, table: tuple[int, ...]) -> Instances:
    """``value = table[index]``, one cycle with ``go``.

    Ports:
        go: in, 1 bit: the table is read at this edge.
        index: in, unsigned, of any width.
        value: out, as `signal_for` the table or wider, 1 cycle with ``go`` later.
    """

    @always(clk.posedge)
    def read() -> None:
        if go:
            value.next = table[int(index)]

    return read


@block
def divide(
    domain: ClockReset, sums: Stream, quotients: Stream, *, numbers: SoftmaxNumbers, label_bits: int
) -> Instances:
    """Reciprocal of the sum, a rank a cycle; meanwhile its logarithm and the loss.

    Ports:
        sums: in, stream as `exponentials` makes it; ready from registers, while nothing is at work.
        quotients: out, stream, ``numbers.quotient_shift + 2`` cycles later, from registers.  From the low bits on: the
            weighted reciprocal (``numbers.quotient_shift + 1`` bits), the label (``label_bits``), the loss and whether
            the guess was right (a word of `METRICS` each).
    """
    bits, steps = numbers.sum_bits, numbers.quotient_shift + 1
    one = numbers.one
    first_power = bits - 1 - VALUE_BITS
    top = bits - 1
    divisor, mantissa = (Signal(intbv(0)[bits:]) for _ in range(2))
    remainder = Signal(intbv(0)[bits + 1 :])
    quotient = Signal(intbv(0)[steps:])
    left = Signal(intbv(0, min=0, max=steps + 1))
    power = Signal(intbv(0, min=0, max=max(first_power, 1) + 1))
    rest = Signal(intbv(0)[sums.width - bits :])
    valid, free = Signal(bool(0)), Signal(bool(0))
    loss = Signal(intbv(0)[METRICS.width :])
    logarithms = log_loss(domain.clk, mantissa, power, rest, loss, numbers=numbers)
    rest_bits, sum_width = len(rest), sums.width
    distance_bits, metric_bits = numbers.distance_bits, METRICS.width
    loss_at = steps + label_bits
    right_at, whole_bits = loss_at + metric_bits, quotients.width

    @always_comb
    def handshake() -> None:
        free.next = left == 0 and not valid

    @always_comb
    def out() -> None:
        sums.ready.next = free
        quotients.valid.next = valid
        quotients.payload.next[steps:] = quotient
        quotients.payload.next[loss_at:steps] = rest[rest_bits : distance_bits + 1]
        quotients.payload.next[right_at:loss_at] = loss
        quotients.payload.next[whole_bits:right_at] = rest[distance_bits]

    @always(domain.clk.posedge)
    def step() -> None:
        difference = modbv(0)[bits + 2 :]
        difference[:] = remainder - divisor
        if free and sums.valid:
            divisor.next = sums.payload[bits:]
            mantissa.next = sums.payload[bits:]
            rest.next = sums.payload[sum_width:bits]
            remainder.next = one
            power.next = first_power
            left.next = steps
        elif left != 0:
            if difference[bits + 1]:
                quotient.next = quotient[steps - 1 :] << 1
                remainder.next = remainder[bits:] << 1
            else:
                quotient.next = (quotient[steps - 1 :] << 1) | 1
                remainder.next = difference[bits:] << 1
            if not mantissa[top]:
                mantissa.next = mantissa[top:] << 1
                power.next = power - 1
            left.next = left - 1
            valid.next = left == 1
        elif quotients.ready:
            valid.next = False
        if domain.rst:
            left.next = 0
            valid.next = False

    return logarithms, handshake, out, step


@block
def log_loss(clk: Clock, mantissa: Bits, power: Bits, rest: Bits, loss: Bits, *, numbers: SoftmaxNumbers) -> Instances:
    """The loss, five cycles after mantissa and power have settled.

    Ports:
        mantissa: in, ``numbers.sum_bits``: the sum, shifted until its first one is the highest bit.
        power: in, index into ``numbers.log_of_exponent`` of the sum's power of two.
        rest: in, at least ``numbers.distance_bits``: the distance of the label's class in the low bits.
        loss: out, a word of `METRICS`, 5 cycles later.
    """
    bits, distance_bits = numbers.sum_bits, numbers.distance_bits
    index = Signal(intbv(0)[LOG_BITS:])
    of_mantissa, of_power = signal_for(numbers.log_of_mantissa), signal_for(numbers.log_of_exponent)
    tables = (
        large_look_up(clk, index, of_mantissa, table=numbers.log_of_mantissa),
        registered_look_up(clk, power, of_power, table=numbers.log_of_exponent),
    )
    shift = numbers.x.fraction_bits - METRICS.fraction_bits
    cut, grow = max(shift, 0), max(-shift, 0)
    half = (1 << cut) >> 1
    away = Signal(intbv(0)[distance_bits + 1 + grow :])
    wide = max(len(away), METRICS.width) + 2
    partial, total = Signal(intbv(0)[METRICS.width + 1 :]), Signal(intbv(0)[wide:])
    top, low = bits - 1, bits - 1 - LOG_BITS
    high, metric_bits = METRICS.high, METRICS.width

    @always_comb
    def choose() -> None:
        index.next = mantissa[top:low]

    @always(clk.posedge)
    def distance() -> None:
        number = intbv(0)[distance_bits + 1 + cut + grow :]
        number[:] = rest[distance_bits:]
        number[:] = number << grow
        number[:] = number + half
        away.next = number >> cut

    @always(clk.posedge)
    def add() -> None:
        partial.next = of_mantissa + of_power
        total.next = partial + away

    @always(clk.posedge)
    def saturate() -> None:
        if total[wide:metric_bits] != 0:
            loss.next = intbv(high)[metric_bits:]
        else:
            loss.next = total[metric_bits:]

    return tables, choose, distance, add, saturate


@block
def subtract_label(
    domain: ClockReset, values: Stream, factors: Stream, y: Stream, *, numbers: SoftmaxNumbers
) -> Instances:
    """Exponential times reciprocal, less the label's class's lead of the target over the others, which is one if labels
    are not smooth; registers for the factors, the product (`product_cycles`) and the difference.

    Ports:
        values: in, stream of ``VALUE_BITS + 1`` bits, unsigned, ``numbers.classes`` beats a frame.
        factors: in, stream of a reciprocal of ``numbers.quotient_shift + 1`` bits and above it the label; needed with
            each of ``values``, taken with the last of its frame.
        y: out, stream of ``VALUE_BITS + numbers.quotient_shift + 3`` bits, signed, `product_cycles` + 2
            cycles later, from registers.
    """
    classes, steps = numbers.classes, numbers.quotient_shift + 1
    last, factor_width = classes - 1, factors.width
    place = Signal(intbv(0)[address_width(classes) :])
    left, right = Signal(intbv(0)[VALUE_BITS + 1 :]), Signal(intbv(0)[steps:])
    product = Signal(intbv(0)[VALUE_BITS + 1 + steps :])
    end = 1 + product_cycles(numbers)
    hot = [Signal(bool(0)) for _ in range(end)]
    valid = [Signal(bool(0)) for _ in range(end + 1)]
    go, fire, ends = (Signal(bool(0)) for _ in range(3))
    result = Signal(intbv(0)[y.width :])
    bound = 1 << (y.width - 1)
    one = numbers.hot - numbers.cold
    width, one_bits = y.width, VALUE_BITS + steps
    multiply = whole_product if steps <= WIDEST_FACTOR else product_of_halves
    multiplier = multiply(domain.clk, go, left, right, product)
    places = counter(domain, fire, place, count=classes)

    @always_comb
    def decide() -> None:
        go.next = y.ready or not valid[end]
        ends.next = place == last

    @always_comb
    def handshake() -> None:
        fire.next = values.valid and factors.valid and go
        values.ready.next = factors.valid and go
        factors.ready.next = values.valid and go and ends

    @always_comb
    def out() -> None:
        y.valid.next = valid[end]
        y.payload.next = result

    @always(domain.clk.posedge)
    def step() -> None:
        difference = intbv(0, min=-bound, max=bound)
        if go:
            valid[0].next = fire
            for stage in range(1, end + 1):
                valid[stage].next = valid[stage - 1]
            left.next = values.payload
            right.next = factors.payload[steps:]
            hot[0].next = factors.payload[factor_width:steps] == place
            for stage in range(1, end):
                hot[stage].next = hot[stage - 1]
            difference[:] = product
            if hot[end - 1]:
                difference[:] = difference - intbv(one)[one_bits:]
            result.next = difference[width:]
        if domain.rst:
            for stage in range(end + 1):
                valid[stage].next = False

    return multiplier, places, decide, handshake, out, step


def product_cycles(numbers: SoftmaxNumbers) -> int:
    """Cycles of the product of an exponential and a reciprocal; one too wide for a multiplier is made of two."""
    return 1 if numbers.quotient_shift + 1 <= WIDEST_FACTOR else 2


@block
def whole_product(clk: Clock, go: Bit, left: Bits, right: Bits, product: Bits) -> Instances:
    """``left * right``, a cycle with ``go``; one multiplier.

    Ports:
        go: in, 1 bit: a product is taken at this edge.
        left, right: in, unsigned, of any width.
        product: out, as wide as both together, 1 cycle with ``go`` later.
    """

    @always(clk.posedge)
    def multiply() -> None:
        if go:
            product.next = left * right

    return multiply


@block
def product_of_halves(clk: Clock, go: Bit, left: Bits, right: Bits, product: Bits) -> Instances:
    """``left * right``, two cycles with ``go``: the halves of ``right`` in two multipliers, then their sum.

    Ports:
        go: in, 1 bit: everything moves on at this edge.
        left, right: in, unsigned, of any width.
        product: out, as wide as both together, 2 cycles with ``go`` later.
    """
    cut, bits = len(right) // 2, len(right)
    low, high = (Signal(intbv(0)[len(left) + width :]) for width in (cut, bits - cut))
    low_right, high_right = Signal(intbv(0)[cut:]), Signal(intbv(0)[bits - cut :])

    @always_comb
    def halves() -> None:
        low_right.next = right[cut:]
        high_right.next = right[bits:cut]

    @always(clk.posedge)
    def multiply() -> None:
        if go:
            low.next = left * low_right
            high.next = left * high_right
            product.next = (high << cut) + low

    return halves, multiply
