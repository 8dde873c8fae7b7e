"""The circuit of a `Walk`: says every cycle what to read, and where zeros stand in for padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.engine.arithmetic.tables import look_up, registered_look_up, signal_for
from hdl.engine.window.walk import FRAME, LEVELS, SHARED_END, Axis, Walk
from hdl.memory import address_width
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances

# cycles from `issue` to the read at the row store, and from there to the words (`row_store.READ_LATENCY`)
READ_AFTER = 3
DATA_AFTER = READ_AFTER + 2
# granted rows that may wait for work
GRANTS = 3


class Steps:
    """What a walker says about its operations, as they pass through the pipeline."""

    def __init__(self, walk: Walk, ring_rows: int, weight_words: int = 1) -> None:
        flag = [Signal(bool(0)) for _ in range(11)]
        # in the cycle of the decision (combinational): an operation starts; it completes a result
        self.issue, self.issue_last = flag[0], flag[1]
        # ... and it is the last of its frame
        self.issue_frame_last = flag[2]
        # ... and completes a result of the last pass; and is the last of its pass
        self.issue_final, self.issue_pass_last = flag[9], flag[10]
        # two cycles later, for `weight_buffer`: read `weight`; this is the last of a pass over the map
        self.weight_read, self.weight_pass_last = flag[3], flag[4]
        self.weight = Signal(intbv(0)[address_width(weight_words) :])
        # three cycles later, for `row_store`
        self.read = flag[5]
        depth = ring_rows * walk.row_words
        self.addresses = [Signal(intbv(0)[address_width(depth) :]) for _ in range(walk.taps)]
        self.freed = signal_for([walk.freed_at_once])
        # five cycles later, beside the words of the row store: an operation, the first or last of a result, and
        # which of the parallel taps lie inside the map
        self.valid, self.first, self.last = flag[6], flag[7], flag[8]
        self.inside = [Signal(bool(0)) for _ in range(walk.taps)]

    @property
    def reads(self) -> tuple[Bits, Bit, Sequence[Bits]]:
        """What `row_store` is told: rows that are free, the enable and the addresses of a read."""
        return self.freed, self.read, self.addresses


class Operation:
    """What `loop_nest` says of an operation, 1 cycle after it: all registered."""

    def __init__(self, walk: Walk) -> None:
        # there is one
        self.issued: Bit = Signal(bool(0))
        # it ends its strip; its pixel has taps
        self.frees: Bit = Signal(bool(0))
        self.live: Bit = Signal(bool(0))
        # it begins a result; ends one; ends a pass over the map
        self.first: Bit = Signal(bool(0))
        self.last: Bit = Signal(bool(0))
        self.pass_last: Bit = Signal(bool(0))
        # which strip of its frame
        self.strip: Bits = Signal(intbv(0)[address_width(walk.strips_told_apart) :])
        # how the loops move behind it: a row of `Walk.deltas`, of those that `shared_moves` adds none
        self.move = signal_for([LEVELS * walk.moves_a_level - 1])


class Placed:
    """What is known of an operation 2 cycles after it, beside where it reads: all registered."""

    def __init__(self, walk: Walk) -> None:
        # as of `Operation`; ``frees`` and ``valid`` only where there is one
        self.valid: Bit = Signal(bool(0))
        self.first: Bit = Signal(bool(0))
        self.last: Bit = Signal(bool(0))
        self.live: Bit = Signal(bool(0))
        self.frees: Bit = Signal(bool(0))
        # rows that end with its strip
        self.freed = signal_for([walk.freed_at_once])


@dataclass(frozen=True)
class WeightSteps:
    """How the weight word moves: word = Σ step * index over (repeat, reduce, tap row, tap column) groups, and
    ``shared`` more for each ``walk.sharing`` repeat groups."""

    repeat: int
    reduce: int
    tap_row: int
    tap_column: int
    shared: int = 0

    def table(self, walk: Walk) -> tuple[int, ...]:
        """`Walk.deltas` of the weight word."""
        return walk.deltas(lambda *indices: self.word(walk, *indices))

    def word(self, walk: Walk, row: int, column: int, repeat: int, reduce: int, tap_h: int, tap_w: int, _: int) -> int:
        """The word of a set of loop indices."""
        group_h = walk.rows.tap_group(walk.rows.phase(row), tap_h)
        group_w = walk.columns.tap_group(walk.columns.phase(column), tap_w)
        at = repeat * self.repeat + repeat // walk.sharing * self.shared + reduce * self.reduce
        return at + group_h * self.tap_row + group_w * self.tap_column


@block
def walker(
    domain: ClockReset,
    row_written: Bit,
    claim: Bit,
    claimable: Bit,
    may: Bit,
    steps: Steps,
    *,
    walk: Walk,
    ring_rows: int,
    weights: WeightSteps | None,
) -> Instances:
    """One operation a cycle in the order of ``walk``, as soon as the rows it needs are written.

    Ports:
        row_written: in, 1 bit: a cycle for each stored row that can be read from now on.
        claim: out, 1 bit, combinational in ``claimable``: a pass over the map starts; passes start in order, each once.
        claimable: in, 1 bit: the weights of the next pass are there.
        may: in, 1 bit, from registers: the consumer takes an operation in this cycle.
        steps: out, when as said there.

    Args:
        ring_rows: rows of the ring to which ``steps`` has addresses.
        weights: how the weight word moves; None when nothing reads weights.
    """
    token, taken = Signal(bool(0)), Signal(bool(0))
    if walk.cut:
        grant = even_grants(domain, row_written, claim, claimable, token, taken, walk=walk, ring_rows=ring_rows)
    else:
        grant = row_grants(domain, row_written, claim, claimable, token, taken, walk=walk)
    operation, placed = Operation(walk), Placed(walk)
    move = operation.move if walk.sharing == 1 else signal_for([walk.levels * walk.moves_a_level - 1])
    nest = loop_nest(domain, token, may, taken, steps, operation, walk=walk)
    flags = second_stage(domain.clk, operation, placed, steps, walk=walk)
    places = ring_addresses(domain, move, steps, walk=walk, ring_rows=ring_rows)
    inside = map_bounds(domain, move, placed, steps, walk=walk)
    tail = flag_pipeline(domain.clk, placed, steps)
    parts = [grant, nest, flags, places, inside, tail]
    if walk.sharing > 1:
        ticks = (steps.issue_last, steps.issue_final)
        if walk.outer_repeat:
            ticks = (steps.issue_pass_last, steps.issue_frame_last)
        parts.append(shared_moves(domain, *ticks, operation.move, move, walk=walk))
    if weights is not None:
        start = weights.word(walk, *[0] * 7)
        parts.append(weight_words(domain, move, steps, table=weights.table(walk), start=start))
    return parts


@block
def row_grants(
    domain: ClockReset, row_written: Bit, claim: Bit, claimable: Bit, token: Bit, taken: Bit, *, walk: Walk
) -> Instances:
    """Looks ahead over strips: ``token`` says that the strip at work has all its inputs; ``taken`` ends it.

    Ports:
        row_written, claimable: in, 1 bit each, of `walker`.
        claim: out, 1 bit, combinational in ``claimable``.
        token: out, 1 bit, from registers.
        taken: in, 1 bit, only while ``token``.
    """
    needs = walk.strip_needs
    after = [*needs[1:], walk.rows.stored + needs[0]]
    growth = tuple(later - now for now, later in zip(needs, after, strict=True))
    first_need = needs[0]
    last_strip = len(needs) - 1
    bound = 4 * walk.rows.stored + 16
    # stored rows written less those that the next strip to be granted needs
    slack = Signal(intbv(-first_need, min=-bound, max=bound))
    sign = len(slack) - 1
    # what a grant takes, and what it takes while a row is written
    shorter = tuple(more - 1 for more in growth)
    step, short_step = signal_for(growth, growth[0]), signal_for(shorter, shorter[0])
    # the first strip of a pass claims the weights of that pass
    opening = tuple(int(index % walk.rows.outputs == 0) for index in range(len(needs)))
    opens = Signal(intbv(1)[1:])
    # of the strip after, looked up meanwhile
    strip_ahead = min(1, last_strip)
    strip = Signal(intbv(strip_ahead)[address_width(len(needs)) :])
    step_ahead, short_step_ahead, opens_ahead = signal_for(growth), signal_for(shorter), Signal(intbv(0)[1:])
    tokens = Signal(intbv(0, min=0, max=GRANTS + 1))
    grant = Signal(bool(0))
    first_step, first_short_step = growth[0], shorter[0]
    roms = [
        look_up(strip, step_ahead, table=growth),
        look_up(strip, short_step_ahead, table=shorter),
        look_up(strip, opens_ahead, table=opening),
    ]

    @always_comb
    def decide() -> None:
        grant.next = not slack[sign] and tokens != GRANTS and (opens == 0 or claimable)
        token.next = tokens != 0

    @always_comb
    def start() -> None:
        claim.next = grant and opens != 0

    @always(domain.clk.posedge)
    def count() -> None:
        if grant and row_written:
            slack.next = slack - short_step
        elif grant:
            slack.next = slack - step
        elif row_written:
            slack.next = slack + 1
        if grant:
            step.next = step_ahead
            short_step.next = short_step_ahead
            opens.next = opens_ahead
            if strip == last_strip:
                strip.next = 0
            else:
                strip.next = strip + 1
        if grant and not taken:
            tokens.next = tokens + 1
        elif taken and not grant:
            tokens.next = tokens - 1
        if domain.rst:
            slack.next = -first_need
            step.next = first_step
            short_step.next = first_short_step
            opens.next = 1
            strip.next = strip_ahead
            tokens.next = 0

    return roms, decide, start, count


@block
def even_grants(
    domain: ClockReset,
    row_written: Bit,
    claim: Bit,
    claimable: Bit,
    token: Bit,
    taken: Bit,
    *,
    walk: Walk,
    ring_rows: int,
) -> Instances:
    """`row_grants` of short rows: a strip for each stored row, in one pass a frame, so nothing is looked up.

    Ports:
        row_written, claimable: in, 1 bit each, of `walker`.
        claim: out, 1 bit, combinational in ``claimable``.
        token: out, 1 bit, from registers.
        taken: in, 1 bit, only while ``token``.
    """
    last_row = walk.rows.stored - 1
    row = Signal(intbv(0)[address_width(walk.rows.stored) :])
    opens: Bit = Signal(True)
    # rows written for which no strip was granted
    written = Signal(intbv(0, min=0, max=ring_rows + 1))
    tokens = Signal(intbv(0, min=0, max=GRANTS + 1))
    grant = Signal(bool(0))

    @always_comb
    def decide() -> None:
        grant.next = written != 0 and tokens != GRANTS and (not opens or claimable)
        token.next = tokens != 0

    @always_comb
    def start() -> None:
        claim.next = grant and opens

    @always(domain.clk.posedge)
    def count() -> None:
        if grant and not row_written:
            written.next = written - 1
        elif row_written and not grant:
            written.next = written + 1
        if grant:
            opens.next = row == last_row
            if row == last_row:
                row.next = 0
            else:
                row.next = row + 1
        if grant and not taken:
            tokens.next = tokens + 1
        elif taken and not grant:
            tokens.next = tokens - 1
        if domain.rst:
            row.next = 0
            opens.next = True
            written.next = 0
            tokens.next = 0

    return decide, start, count


def _phase_tables(walk: Walk) -> dict[str, tuple[int, ...]]:
    """By phase: last indices of the inner loops, whether there are taps, the phases of the next pixels."""
    limits = [walk.limits(phase) for phase in range(walk.phases)]
    wide = walk.columns.phases
    first_column = walk.columns.phase(0)
    return {
        "tap_column": tuple(limit[0] - 1 for limit in limits),
        "tap_row": tuple(limit[1] - 1 for limit in limits),
        "reduce": tuple(limit[2] - 1 for limit in limits),
        "live": tuple(int(limit[3]) for limit in limits),
        "next_column": tuple(p // wide * wide + (p % wide + 1) % wide for p in range(walk.phases)),
        "next_row": tuple((p // wide + 1) % walk.rows.phases * wide + first_column for p in range(walk.phases)),
    }


@block
def loop_nest(
    domain: ClockReset, token: Bit, may: Bit, taken: Bit, steps: Steps, operation: Operation, *, walk: Walk
) -> Instances:
    """The counters; everything but ``taken`` and the ``issue`` signals is registered.

    Ports:
        token, may: in, 1 bit each, from registers: the strip at work has its inputs; the consumer takes an operation.
        taken: out, 1 bit, combinational in both: the last operation of a strip.
        steps: out, the signals of ``issue`` alone.
        operation: out, 1 cycle after an operation.
    """
    tables = _phase_tables(walk)
    limits = {name: signal_for(tables[name]) for name in tables}
    start_phase = walk.first_index
    phase = signal_for([walk.moves_a_level - 1], start_phase)
    if walk.many_phases:
        limits |= {name: signal_for([walk.moves_a_level - 1]) for name in ("next_column", "next_row")}
        lookups = [look_ups_apart(phase, limits, walk=walk, tables=tables)]
    else:
        lookups = [look_up(phase, limits[name], table=tables[name]) for name in tables]
    end_tap_column, end_tap_row, end_reduce, has_taps, column_phase, row_phase = limits.values()
    tap_column, tap_row, reduce = (signal_for(tables[name]) for name in ("tap_column", "tap_row", "reduce"))
    repeats, columns, rows = walk.repeat, walk.columns.outputs, walk.rows.outputs
    repeat, column, row = (signal_for([count - 1]) for count in (repeats, columns, rows))
    at_strip = Signal((modbv if walk.cut else intbv)(0)[len(operation.strip) :])
    level = Signal(intbv(0, min=0, max=LEVELS))
    issue, fresh = Signal(bool(0)), Signal(bool(0))
    moves, whole = walk.moves_a_level, 0 if walk.sums_repeats else 1
    on_result, on_repeat, on_column, on_row = walk.result_level, walk.repeat_level, walk.column_level, walk.row_level
    # whether a counter is at its last value, told in time: nothing is compared before a move is known
    repeat_ends, column_ends, row_ends = (Signal(bool(count == 1)) for count in (repeats, columns, rows))
    one_repeat, one_column, one_row = repeats == 1, columns == 1, rows == 1
    before_repeat, before_column, before_row = (max(0, count - 2) for count in (repeats, columns, rows))
    ends = {on_repeat: repeat_ends, on_column: column_ends, on_row: row_ends}
    inner_ends, middle_ends, outer_ends = (ends[level] for level in (3, 4, 5))

    @always_comb
    def rank() -> None:
        if tap_column != end_tap_column:
            level.next = 0
        elif tap_row != end_tap_row:
            level.next = 1
        elif reduce != end_reduce:
            level.next = 2
        elif not inner_ends:
            level.next = 3
        elif not middle_ends:
            level.next = 4
        elif not outer_ends:
            level.next = 5
        else:
            level.next = 6

    @always_comb
    def decide() -> None:
        issue.next = token and may
        fresh.next = tap_column == 0 and tap_row == 0 and (whole == 0 or reduce == 0)

    @always_comb
    def announce() -> None:
        taken.next = issue and level > on_column
        steps.issue.next = issue
        steps.issue_last.next = issue and level >= on_result
        steps.issue_final.next = issue and level >= on_result and repeat_ends
        steps.issue_frame_last.next = issue and level == FRAME
        steps.issue_pass_last.next = issue and level > on_row

    @always(domain.clk.posedge)
    def count() -> None:
        if issue:
            if level == 0:
                tap_column.next = tap_column + 1
            else:
                tap_column.next = 0
            if level == 1:
                tap_row.next = tap_row + 1
            elif level > 1:
                tap_row.next = 0
            if level == 2:
                reduce.next = reduce + 1
            elif level > 2:
                reduce.next = 0
            if level == on_repeat:
                repeat.next = repeat + 1
                repeat_ends.next = repeat == before_repeat
            elif level > on_repeat:
                repeat.next = 0
                repeat_ends.next = one_repeat
            if level == on_column:
                column.next = column + 1
                column_ends.next = column == before_column
            elif level > on_column:
                column.next = 0
                column_ends.next = one_column
            if level == on_row:
                row.next = row + 1
                row_ends.next = row == before_row
            elif level > on_row:
                row.next = 0
                row_ends.next = one_row
            if level == on_column:
                phase.next = column_phase
            elif level == on_row:
                phase.next = row_phase
            elif level > on_row:
                phase.next = start_phase
            if level == FRAME:
                at_strip.next = 0
            elif level > on_column:
                at_strip.next = at_strip + 1
        if domain.rst:
            tap_column.next = 0
            tap_row.next = 0
            reduce.next = 0
            repeat.next = 0
            column.next = 0
            row.next = 0
            repeat_ends.next = one_repeat
            column_ends.next = one_column
            row_ends.next = one_row
            at_strip.next = 0
            phase.next = start_phase

    @always(domain.clk.posedge)
    def register() -> None:
        operation.issued.next = issue and not domain.rst
        operation.frees.next = level > on_column
        operation.strip.next = at_strip
        operation.live.next = has_taps != 0
        operation.first.next = fresh
        operation.last.next = level >= on_result
        operation.pass_last.next = level > on_row
        operation.move.next = level * moves + phase

    return lookups, rank, decide, announce, count, register


@block
def look_ups_apart(
    phase: Bits, limits: Mapping[str, Bits], *, walk: Walk, tables: Mapping[str, tuple[int, ...]]
) -> Instances:
    """What a pixel's phase decides, of many phases: by that of its row and by that of its column, each of which has
    taps, so that no table is large.

    Ports:
        phase: in, an index of `Walk.phase_at`.
        limits: out, combinational, of each of `_phase_tables`; next phases are indices, too.
    """
    column_bits, column_last, row_last = walk.column_phase_bits, walk.columns.phases - 1, walk.rows.phases - 1
    column_first = walk.columns.phase(0)
    column = Signal(intbv(0)[column_bits:])
    row = Signal(intbv(0)[len(phase) - column_bits :])
    row_after, column_after = Signal(intbv(0)[len(row) :]), Signal(intbv(0)[column_bits:])
    by_column = tables["tap_column"][: column_last + 1]
    by_row = {name: tables[name][:: column_last + 1] for name in ("tap_row", "reduce", "live")}
    lookups = [look_up(row, limits[name], table=by_row[name]) for name in by_row]
    lookups.append(look_up(column, limits["tap_column"], table=by_column))
    next_column, next_row = limits["next_column"], limits["next_row"]

    @always_comb
    def cut() -> None:
        column.next = phase[column_bits:]
        row.next = phase[:column_bits]

    @always_comb
    def turn() -> None:
        if column == column_last:
            column_after.next = 0
        else:
            column_after.next = column + 1
        if row == row_last:
            row_after.next = 0
        else:
            row_after.next = row + 1

    @always_comb
    def join() -> None:
        next_column.next = (row << column_bits) | column_after
        next_row.next = (row_after << column_bits) | column_first

    return lookups, cut, turn, join


@block
def shared_moves(domain: ClockReset, tick: Bit, ends: Bit, within: Bits, move: Bits, *, walk: Walk) -> Instances:
    """Tells ticks of the repeat loop behind which other stored words are read from the others.

    Ports:
        tick: in, 1 bit, combinational: an operation ends a repeat group.
        ends: in, 1 bit, with ``tick``: the last one, so that an outer loop ticks.
        within: in, as `Operation.move`, with it.
        move: out, as `signal_for` ``walk.levels * walk.moves_a_level - 1``, with ``within``: the row of `Walk.deltas`.
    """
    beyond = (SHARED_END - walk.repeat_level) * walk.moves_a_level
    final = walk.sharing - 1
    before_final = final - 1
    at = signal_for([final])
    at_final, shared_end = (Signal(bool(0)) for _ in range(2))

    @always_comb
    def choose() -> None:
        if shared_end:
            move.next = within + beyond
        else:
            move.next = within

    @always(domain.clk.posedge)
    def count() -> None:
        shared_end.next = at_final and tick and not ends
        if tick:
            at_final.next = at == before_final
            if at_final:
                at.next = 0
            else:
                at.next = at + 1
        if domain.rst:
            at.next = 0
            at_final.next = False

    return choose, count


@block
def second_stage(clk: Clock, operation: Operation, placed: Placed, steps: Steps, *, walk: Walk) -> Instances:
    """Flags beside the moves that were just looked up.

    Ports:
        operation: in, all of it but ``move``.
        placed: out, 1 cycle later.
        steps: out, ``weight_read`` and ``weight_pass_last`` alone.
    """
    frees_after = [1, 2] if walk.cut else walk.strip_frees
    table = tuple(now - then for then, now in zip([0, *frees_after[:-1]], frees_after, strict=True))
    rom = registered_look_up(clk, operation.strip, placed.freed, table=table)

    @always(clk.posedge)
    def delay() -> None:
        placed.valid.next = operation.issued
        placed.first.next = operation.first
        placed.last.next = operation.last
        placed.live.next = operation.live
        placed.frees.next = operation.issued and operation.frees
        steps.weight_pass_last.next = operation.pass_last
        steps.weight_read.next = operation.issued

    return rom, delay


@block
def flag_pipeline(clk: Clock, placed: Placed, steps: Steps) -> Instances:
    """Third stage: the read at the row store; fourth and fifth: its latency.

    Ports:
        placed: in, all of it but ``live``.
        steps: out, ``read`` and ``freed`` 1 cycle later, ``valid``, ``first`` and ``last`` 3 cycles later.
    """
    valid = [Signal(bool(0)) for _ in range(2)]
    first = [Signal(bool(0)) for _ in range(2)]
    last = [Signal(bool(0)) for _ in range(2)]

    @always(clk.posedge)
    def third() -> None:
        steps.read.next = placed.valid
        if placed.frees:
            steps.freed.next = placed.freed
        else:
            steps.freed.next = 0
        valid[0].next = placed.valid
        first[0].next = placed.first
        last[0].next = placed.last

    @always(clk.posedge)
    def rest() -> None:
        valid[1].next = valid[0]
        first[1].next = first[0]
        last[1].next = last[0]
        steps.valid.next = valid[1]
        steps.first.next = first[1]
        steps.last.next = last[1]

    return third, rest


@block
def ring_addresses(domain: ClockReset, move: Bits, steps: Steps, *, walk: Walk, ring_rows: int) -> Instances:
    """The address of each parallel tap, modulo the ring.

    Ports:
        move: in, a row of `Walk.deltas`, 1 cycle after an operation: how the loops move behind it.
        steps: in and out; takes ``weight_read``, drives ``addresses``.
    """
    total = ring_rows * walk.row_words
    forward = tuple(delta % total for delta in walk.deltas(walk.address))
    # two's complement, a bit wider than an address
    back = tuple((delta - total) % (2 << address_width(total)) for delta in forward)
    ahead, behind = signal_for(forward), signal_for(back)
    roms = (
        registered_look_up(domain.clk, move, ahead, table=forward),
        registered_look_up(domain.clk, move, behind, table=back),
    )
    first = walk.address(0, 0, 0, 0, 0, 0, 0)
    advance = steps.weight_read
    places = [
        ring_address(domain, advance, ahead, behind, steps.addresses[tap], start=(first + offset) % total, total=total)
        for tap, offset in enumerate(walk.tap_offsets())
    ]
    return roms, places


@block
def ring_address(
    domain: ClockReset, advance: Bit, ahead: Bits, behind: Bits, out: Bits, *, start: int, total: int
) -> Instances:
    """``at`` moves by ``ahead`` modulo ``total``; ``behind`` is ``ahead - total`` in a bit more than an address has.

    Ports:
        advance: in, 1 bit: an operation reads here and moves on.
        ahead: in, at most as wide as ``out``, with ``advance``.
        behind: in, at most 1 bit wider than ``out``, with ``advance``.
        out: out, `address_width` ``(total)`` bits, 1 cycle after ``advance``: the operation's address.
    """
    width = len(out)
    at = Signal(intbv(start)[width:])

    @always(domain.clk.posedge)
    def step() -> None:
        # both sums beside each other, and only then the choice
        onward = modbv(0)[width + 1 :]
        wrapped = modbv(0)[width + 1 :]
        out.next = at
        onward[:] = at + ahead
        wrapped[:] = at + behind
        if advance:
            if wrapped[width]:
                at.next = onward[width:]
            else:
                at.next = wrapped[width:]
        if domain.rst:
            at.next = start

    return step


@block
def weight_words(domain: ClockReset, move: Bits, steps: Steps, *, table: tuple[int, ...], start: int) -> Instances:
    """The weight word of each

    Ports:
        move: in, a row of `Walk.deltas`, 1 cycle after an operation: how the loops move behind it.
        steps: in and out; takes ``weight_read``, drives ``weight``.
    """
    delta = signal_for(table)
    rom = registered_look_up(domain.clk, move, delta, table=table)

    @always(domain.clk.posedge)
    def step() -> None:
        if steps.weight_read:
            steps.weight.next = steps.weight + delta
        if domain.rst:
            steps.weight.next = start

    return rom, step


@block
def map_bounds(domain: ClockReset, move: Bits, placed: Placed, steps: Steps, *, walk: Walk) -> Instances:
    """Which parallel taps lie inside the map, beside the words of the row store.

    Ports:
        move: in, a row of `Walk.deltas`, 1 cycle after an operation: how the loops move behind it.
        placed: in, ``valid`` and ``live`` alone.
        steps: out, ``inside`` alone.
    """
    row_begun, row_open = ([Signal(bool(0)) for _ in range(walk.rows.parallel)] for _ in range(2))
    column_begun, column_open = ([Signal(bool(0)) for _ in range(walk.columns.parallel)] for _ in range(2))
    inside = [Signal(bool(0)) for _ in range(walk.taps)]
    live = Signal(bool(0))
    row_deltas = walk.deltas(lambda row, _c, _p, _r, tap, _w, _f: walk.rows.position(row, tap))
    column_deltas = walk.deltas(lambda _r, column, _p, _d, _h, tap, _f: walk.columns.position(column, tap))
    rows = axis_bounds(domain, move, placed.valid, row_begun, row_open, axis=walk.rows, table=row_deltas)
    columns = axis_bounds(domain, move, placed.valid, column_begun, column_open, axis=walk.columns, table=column_deltas)
    tall, wide = walk.rows.parallel, walk.columns.parallel
    result = steps.inside

    @always(domain.clk.posedge)
    def combine() -> None:
        live.next = placed.live
        for row in range(tall):
            for column in range(wide):
                inside[row * wide + column].next = (
                    row_begun[row] and row_open[row] and column_begun[column] and column_open[column] and live
                )

    @always(domain.clk.posedge)
    def out() -> None:
        for tap in range(tall * wide):
            result[tap].next = inside[tap]

    return rows, columns, combine, out


@block
def axis_bounds(
    domain: ClockReset,
    move: Bits,
    advance: Bit,
    begun: Sequence[Bit],
    open_: Sequence[Bit],
    *,
    axis: Axis,
    table: tuple[int, ...],
) -> Instances:
    """Tracks the stored position along one axis; registered verdicts on all its parallel taps: a tap is inside where
    both are true, which is told a cycle later, since a comparison alone takes most of one.

    Ports:
        move: in, a row of `Walk.deltas`, 1 cycle after an operation: how the loops move behind it.
        advance: in, 1 bit, 1 cycle after ``move``: an operation judges here and moves on.
        begun, open_: out, 1 bit each of ``axis.parallel`` taps, 1 cycle after ``advance``: it is not before the map;
            not behind it.
    """
    start = axis.position(0, 0)
    most = max(axis.count(phase) for phase in range(axis.phases))
    ends = [axis.position(output, step) for output in (0, axis.outputs - 1) for step in (0, max(most, 1) - 1)]
    margin = axis.kernel * axis.dilation
    low, high = min(*ends, 0) - margin, max(*ends, axis.stored) + margin
    at = signal_for([low, high], start)
    delta = signal_for(table)
    rom = registered_look_up(domain.clk, move, delta, table=table)
    taps = axis.parallel
    distance, stored = axis.tap_distance, axis.stored

    # a tap's position is never made: comparing the first one's with what the tap is away saves an adder
    @always(domain.clk.posedge)
    def judge() -> None:
        for tap in range(taps):
            begun[tap].next = at >= 0 - tap * distance
            open_[tap].next = at < stored - tap * distance

    @always(domain.clk.posedge)
    def step() -> None:
        if advance:
            at.next = at + delta
        if domain.rst:
            at.next = start

    return rom, judge, step
