"""Compiled recurrence of `dagtrain.schedule.batch_time`: when frames pass the nodes of a placed graph, one after
another, and what crosses the network.

A *flow* says when each element of a tensor passes a port, kept at the first and the last beat of every row
(`hdl.layers.passage.marks`).  A node takes a frame whole: from how its tensors come follows how what it makes leaves.
Within a frame nothing waits for room: FIFOs are deep enough for the steady interval (`dagtrain.schedule.buffers`).

With a(n) the cycle at which element n has come, an engine of strips 0, 1, … in one frame has

    begin(i) = max(end(i - 1), a(stored(i)) + begin_cycles, a'(along(i - 1) + a word) + along_cycles,
                   weights + weight_cycles)
    end(i)   = max(begin(i) + cycles(i), a'(along(i)) + along_cycles + along_work)

where end(-1) is the end of the frame before, or of the engine's rest after the batch before, or load_cycles later when
it keeps one version of its weights and the frame wants the next one, counted from the end of the slower one of two
engines that keep it together; row i of its result has left at end(i) + result_cycles.  Any other layer gives element n
at max over its sinks of a(required(n)) + pipeline_cycles.  No port passes more than a beat a cycle.

All stands in one file: numba keeps compiled code as long as the file of its function is the same, and would not see a
change of what a function calls elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dagtrain.rows import Rows, row_type
from hdl.compiled import inner, kernel, view
from hdl.fixed import FloatArray, IntArray
from hdl.layers.passage import LONG_AGO

NEVER = 1e300
# what comes at a sink: a tensor with every frame; one with the last frame of a batch; the weights of a frame's version,
# which left a batch or more before
FRAME, BATCH, VERSION = 0, 1, 2
# below which part of a word nothing is left to send
NO_WORD = 1e-6
# … and nothing differs
EXACT = 1e-9

# a layer
NODE = row_type(
    # ports: sinks from first to middle, sources from there to end
    first=int, middle=int, end=int,
    # strips of an engine, 0: works at once; where their cycles lie; whether results leave after the last one
    strips=int, cycles_at=int, reordered=int,
    begin_cycles=float, along_cycles=float, along_work=float, result_cycles=float, rest_cycles=float, load_cycles=float,
    # what they want of sinks: of those that are stored, and behind those of what is taken along
    stored_at=int, along_at=int, along_end=int,
    weight_cycles=float, cycles_per_frame=float,
    # whether it works on batches alone; the other node that reads the same weights; -1: none
    per_batch=int, beside=int,
    # which frames it gets (-1: all); what a cycle of its device lasts, in cycles of the cluster; rooms behind it
    dealt=int, period=float, rooms_at=int, rooms_end=int,
    # worked out so far, in its own cycles: the engine is free; the weights in use came; the last frame began; the
    # version in use was loaded; whether the last frame waited for its weights when all else was there
    free=float, weights=float, began=float, loaded=float, waited=int,
    # where the cycles of its strips are worked out
    strips_at=int,
    # the frame that it does next; frames done; whether that is among what can be worked out
    frame=int, done=int, known=int,
    # of its last batch: whether tensors of it have not left yet, how many, and by how much others left later than they
    # were offered
    making=int, outstanding=int, late=float,
)  # fmt: skip

# a sink or a source of a node, nodes in order
PORT = row_type(
    # -1: nobody reads it
    edge=int,
    # of sinks: FRAME, BATCH or VERSION; of sources, whether it goes once a batch
    kind=int, per_batch=int,
    # where its marks lie, how many, and the cycles from the first beat to each at full rate; cycles of a beat
    marks_at=int, marks=int, even_at=int, beat_cycles=float,
    # of sinks taken along: cycles from an engine's begin to the marks that don't wait inside till then
    behind_at=int,
    # of sources: cycles from what is needed until it leaves; of layers at once what they want of sinks; of strips, the
    # strip of each mark, the share of it that is over, and beats that are left
    latency=float, wants_at=int, wants_end=int, strip_at=int, share_at=int, left_at=int,
    # where the flow is worked out, and whether it is there; when the last beat of the last one passed
    at=int, there=int, last=float,
)  # fmt: skip

# elements of a sink that must be there for each mark of a source, or each strip
WANT = row_type(
    port=int, counts_at=int,
    # of what is taken along: elements used up by the end of each strip; whether it passes in more cycles than the
    # engine works, so that what it holds up is not made up for
    through_at=int, slow=int,
)  # fmt: skip

# what lies between a source and who reads it
EDGE = row_type(
    maker=int, users_at=int, users_end=int,
    # that every element takes; the way over the network (-1: none); frames that it holds
    cycles=float, hop=int, room=float,
    # which frames pass (-1: all)
    dealt=int,
    # whether tensors pass once a batch, anybody takes its flows one by one, a user works on batches alone
    per_batch=int, taken=int, to_batches=int,
    # share of sums that leaves beside the engine's work
    aside=float,
    marks_at=int, marks=int,
    # flows that came and were not taken, in a ring; what waits to cross the network, with its frame, in another one
    come_at=int, come_size=int, came=int, gone=int,
    leave_at=int, leave_size=int, offered=int, left=int,
    # of the tensor that crosses: words and pieces that have left, where its arrival is worked out, counts that are
    # there, when it was first offered; when the last word left; whether the next piece is among what can be worked out
    sent=float, pieces=int, arrived_at=int, arrived=int, crossing=float, last=float, known=int,
    # tensors of batches that came, and that had passed at the producer
    versions=int, ends=int,
    # of the last batch: when the last element was offered for which the maker rests; when it went as far as its way
    # lets it; whether it is taken for what its user makes, when first and last, share that finds room in front of it
    offer=float, went=float, taking=int, first_taken=float, last_taken=float, room_taken=float,
)  # fmt: skip

# a way over the network
HOP = row_type(
    # cycles from one word to the next at least; words whose credits go back together
    word_cycles=float, credit_batch=float,
    # of a tensor: for each of its marks the word that it is in; ascending counts of words, the last mark of each, the
    # elements in as many words as each mark is in; the last word of each piece
    words_at=int, counts_at=int, counts=int, last_at=int, whole_at=int, ends_at=int, pieces=int,
    # counts at which its arrival is kept, at most
    arrivals=int,
    # where words pass, one after another, the sender's port first, and their credits
    stops_at=int, back_at=int, back_end=int,
)  # fmt: skip

# where words of a stream wait, and the cycles behind it; -1: they don't; whether it is where credits leave
STOP = row_type(calendar=int, stream=int, cycles=float, credits=int)

# room behind a node: frames that it may be ahead of who reads there, cycles until it knows of it
ROOM = row_type(frames=float, back=float, user=int, edge=int)

# one direction of a port, or an output towards a cable
CALENDAR = row_type(
    # words in each bin of so many cycles, by stream and merge; bins that are kept, that find room there, and that may
    # be kept behind a tensor that crosses; whether the past is forgotten
    at=int, bins=int, space=int, columns=int, most=int, forgets=int,
    # cycles of a bin; words that it carries
    width=int, words=float,
    # of streams, the ways from the port (`dagtrain.schedule.ports.Merges`)
    streams=int, ways_at=int, longest=int, lengths_at=int, beside_at=int, sides_at=int,
    # the first bin that is kept; behind which all are empty
    first=int, end=int,
)  # fmt: skip

# which frames of a training a copy gets (`hdl.recipe.Dealt`)
DEALT = row_type(
    # its frames of a batch; who gets which of some frames in turns, which of them are its own, and how many before each
    share=int, copy=int, turns_at=int, turns=int, own_at=int, own=int, before_at=int,
)  # fmt: skip


class Tables(NamedTuple):
    """What stays."""

    wants: Rows
    hops: Rows
    stops: Rows
    rooms: Rows
    dealt: Rows
    # what rows point to: marks, counts and cycles; streams, merges, users and turns
    numbers: FloatArray
    integers: IntArray
    # frames of a batch, of which so many may be stale; bins that are remembered for words that come late; whether the
    # oldest frame comes next, or what happens first
    batch: int
    staleness: int
    kept_bins: int
    oldest: bool


class State(NamedTuple):
    """What changes."""

    nodes: Rows
    ports: Rows
    edges: Rows
    calendars: Rows
    # flows and strips that are worked out; one more of them, as long as the longest; of a piece that crosses the rows
    # that are named below; words of each stream that have had no turn yet
    scratch: FloatArray
    more: FloatArray
    piece: FloatArray
    again: FloatArray
    # words of all calendars
    used: FloatArray
    # rings of flows
    flows: FloatArray
    # node, frame -> when it was done; edge, batch -> when the tensor had come, and when it had passed at the producer
    done: FloatArray
    versions: FloatArray
    ends: FloatArray
    # what can be worked out, a heap: a frame, if the oldest comes next, when it begins, and which: nodes from 0 on,
    # edges below, in order
    heap_frame: IntArray
    heap_time: FloatArray
    heap_which: IntArray
    # nodes whose tensors of a batch have left, each made of those of the one before, and the next sink to be looked at
    left_node: IntArray
    left_port: IntArray
    # entries of the heap; whether something is full; whether a node waited for nothing but its weights; words of
    # calendars that are in use, and that are wanted
    counters: IntArray


LENGTH, FULL, WAITED, USED, WANTED = 0, 1, 2, 3, 4
COUNTERS = 5
# rows of `State.piece`: counts of words, those that have not left before, of credits; cycles by which they are offered,
# ready or there, have passed a stop; of what enters there the cycles from which on, and by which it came
COUNTS, WORDS, CREDITS, OFFERED, READY, PASSED, ENTERS, CAME = 0, 1, 2, 3, 4, 5, 6, 7
PIECE_ROWS = 8


# ---- frames and copies


@inner
def _gets(t: Tables, dealt: int, frame: int) -> bool:
    """Whether a frame of the training is the copy's."""
    d = t.dealt[dealt]
    return bool(t.integers[d.turns_at + frame % t.batch % d.turns] == d.copy)


@inner
def _share(t: Tables, dealt: int, frames: int) -> int:
    """How many of the first frames of a batch are the copy's."""
    d = t.dealt[dealt]
    return int(frames // d.turns * d.own + t.integers[d.before_at + frames % d.turns])


@inner
def _dealt_frame(t: Tables, dealt: int, index: int) -> int:
    """Which frame of the training is the copy's frame ``index``."""
    d = t.dealt[dealt]
    batch, place = index // d.share, index % d.share
    return int(batch * t.batch + place // d.own * d.turns + t.integers[d.own_at + place % d.own])


@inner
def _dealt_index(t: Tables, dealt: int, frame: int) -> int:
    """How many of the frames of the training before this one are the copy's."""
    return int(frame // t.batch * t.dealt[dealt].share + _share(t, dealt, frame % t.batch))


@inner
def _ends_batch(t: Tables, dealt: int, frame: int) -> bool:
    """Whether a frame is the last one of its batch, among those that are dealt so."""
    if dealt < 0:
        return (frame + 1) % t.batch == 0
    return bool(_share(t, dealt, frame % t.batch + 1) == t.dealt[dealt].share)


@inner
def _passes(t: Tables, s: State, edge: int, frame: int) -> bool:
    """Whether a frame passes an edge, of which the producer or the consumer has it."""
    return s.edges[edge].dealt < 0 or _gets(t, s.edges[edge].dealt, frame)


@inner
def _version(t: Tables, frame: int) -> int:
    """Updates behind the weights with which a frame is computed."""
    return max(0, (frame - t.staleness) // t.batch)


@inner
def _own_frame(t: Tables, s: State, node: int, frame: int) -> int:
    """The first frame from this one on that a node has work with."""
    if s.nodes[node].per_batch:
        return (frame // t.batch + 1) * t.batch - 1
    dealt = s.nodes[node].dealt
    return frame if dealt < 0 else _dealt_frame(t, dealt, _dealt_index(t, dealt, frame))


# ---- flows


@inner
def _interpolated(counts: FloatArray, elements: FloatArray, cycles: FloatArray, found: FloatArray) -> None:
    """As `numpy.interp`, and long ago where nothing is wanted; fast where counts ascend."""
    last, here = len(elements) - 1, 0
    for index in range(len(counts)):
        count = counts[index]
        while here > 0 and elements[here] > count:
            here -= 1
        while here < last and elements[here + 1] <= count:
            here += 1
        if count <= 0.0:
            found[index] = LONG_AGO
        elif here == last or count <= elements[here]:
            found[index] = cycles[here]
        else:
            slope = (cycles[here + 1] - cycles[here]) / (elements[here + 1] - elements[here])
            found[index] = slope * (count - elements[here]) + cycles[here]


@inner
def _at(t: Tables, counts_at: int, count: int, marks_at: int, cycles: FloatArray, found: FloatArray) -> None:
    """When so many elements of a flow have passed."""
    if counts_at == marks_at:
        # at its own marks, which are above 0
        for mark in range(count):
            found[mark] = cycles[mark]
    else:
        counts, elements = t.numbers[counts_at : counts_at + count], t.numbers[marks_at : marks_at + len(cycles)]
        _interpolated(counts, elements, cycles, found)


@inner
def _fill(array: FloatArray, value: float) -> None:
    for index in range(len(array)):
        array[index] = value


@view
def _flow(s: State, port: int) -> FloatArray:
    """Where it is worked out how a tensor passes a port."""
    at = s.ports[port].at
    return s.scratch[at : at + s.ports[port].marks]


@inner
def _passed(t: Tables, s: State, port: int, least: float) -> None:
    """A tensor passes that is offered at its marks as its flow says, the first beat at ``least`` or later."""
    p, flow = s.ports[port], _flow(s, port)
    for mark in range(len(flow)):
        even = t.numbers[p.even_at + mark]
        least = max(least, flow[mark] - even)
        flow[mark] = least + even
    p.last = flow[-1]
    p.there = 1


@kernel
def take_flow(t: Tables, s: State, port: int, marks_at: int, cycles: FloatArray, factor: float) -> None:
    """A tensor comes so, at these marks, at a sink; ``factor``: cycles of its device in one."""
    p, own = s.ports[port], s.more[: len(cycles)]
    for mark in range(len(cycles)):
        own[mark] = cycles[mark] * factor
    _at(t, p.marks_at, p.marks, marks_at, own, _flow(s, port))
    _passed(t, s, port, p.last + p.beat_cycles)


@inner
def _give(t: Tables, s: State, port: int) -> None:
    """A tensor leaves a source that is offered as its flow says."""
    _passed(t, s, port, s.ports[port].last + s.ports[port].beat_cycles)


@inner
def _wait_for(t: Tables, s: State, port: int, counts_at: int, cycles: float, work: float, times: FloatArray) -> None:
    """What happens at these times waits until so many elements have come at a sink, and longer."""
    more = s.more[: len(times)]
    _at(t, counts_at, len(times), s.ports[port].marks_at, _flow(s, port), more)
    for index in range(len(times)):
        times[index] = max(times[index], more[index] + cycles + work)


# ---- one layer and frame


@kernel
def pass_frame(t: Tables, s: State, node: int, weights: float, ends_batch: bool) -> None:
    """How sources leave with the next frame, whose sinks have come as their flows say.

    ``weights``: the cycle at which the last weight of its version came.
    ``ends_batch``: the frame is its batch's last, with which go gradients and new weights."""
    n = s.nodes[node]
    for port in range(n.middle, n.end):
        s.ports[port].there = 0
    if n.first == n.middle:
        # a host that always has the next beat
        for port in range(n.middle, n.end):
            _fill(_flow(s, port), 0.0)
            _give(t, s, port)
    elif n.strips:
        _in_strips(t, s, node, weights, ends_batch)
    else:
        _at_once(t, s, node, weights + n.weight_cycles, ends_batch)


@inner
def _hold(s: State, node: int, cycle: float) -> None:
    """The next frame of a node begins no sooner."""
    n = s.nodes[node]
    n.free = max(n.free, cycle)
    n.began = max(n.began, cycle - n.cycles_per_frame)


@inner
def _at_once(t: Tables, s: State, node: int, ready: float, ends_batch: bool) -> None:
    n = s.nodes[node]
    # the engine's own work, where it takes longer than to pass the beats, begins no sooner than a frame later
    began = max(n.began + n.cycles_per_frame, ready)
    # with its first element of any source
    begins, made = np.inf, False
    for port in range(n.middle, n.end):
        p = s.ports[port]
        if p.per_batch:
            continue
        offered, made = _flow(s, port), True
        _fill(offered, -np.inf)
        for want in range(p.wants_at, p.wants_end):
            # of what takes frames in turns, the one whose turn it is
            if s.ports[t.wants[want].port].there:
                _wait_for(t, s, t.wants[want].port, t.wants[want].counts_at, 0.0, 0.0, offered)
        begins = min(begins, offered[0])
        for mark in range(len(offered)):
            offered[mark] = max(offered[mark], began) + p.latency
        _give(t, s, port)
    if made:
        n.waited = ready > max(n.began + n.cycles_per_frame, begins)
        n.began = max(began, begins)
    if ends_batch:
        _give_batch(t, s, node)


@inner
def _give_batch(t: Tables, s: State, node: int) -> None:
    """What leaves once a batch: with what comes so, or after the last frame."""
    n, first, last = s.nodes[node], -np.inf, -np.inf
    for port in range(n.first, n.middle):
        if s.ports[port].there:
            flow = _flow(s, port)
            first, last = max(first, flow[0]), max(last, flow[-1])
    if not n.per_batch:
        first = last
    for port in range(n.middle, n.end):
        p = s.ports[port]
        if p.per_batch:
            flow = _flow(s, port)
            step = (last - first) / max(1, len(flow) - 1)
            for mark in range(len(flow)):
                flow[mark] = (last if 0 < mark == len(flow) - 1 else mark * step + first) + p.latency
            _give(t, s, port)


@inner
def _free_for(s: State, node: int, weights: float) -> float:
    """When the engine is free for a frame whose weights came then: a version that is loaded in the place of the one
    before comes when that is out of use, by both engines that read it."""
    n = s.nodes[node]
    if weights <= n.weights:
        return float(n.free)
    if n.beside >= 0 and s.nodes[n.beside].weights >= weights:
        return float(max(n.free, s.nodes[n.beside].loaded))
    if n.load_cycles:
        n.loaded = n.load_cycles + (max(n.free, s.nodes[n.beside].free) if n.beside >= 0 else n.free)
        return float(n.loaded)
    return float(n.free)


@inner
def _in_strips(t: Tables, s: State, node: int, weights: float, ends_batch: bool) -> None:
    n = s.nodes[node]
    free = _free_for(s, node, weights)
    clock = max(free, weights + n.weight_cycles)
    n.weights = weights
    begins = s.scratch[n.strips_at : n.strips_at + n.strips]
    ends = s.scratch[n.strips_at + n.strips : n.strips_at + 2 * n.strips]
    _fill(begins, LONG_AGO)
    _fill(ends, LONG_AGO)
    for want in range(n.stored_at, n.along_at):
        _wait_for(t, s, t.wants[want].port, t.wants[want].counts_at, n.begin_cycles, 0.0, begins)
    for want in range(n.along_at, n.along_end):
        port = t.wants[want].port
        _wait_for(t, s, port, t.wants[want].counts_at, n.along_cycles, 0.0, begins)
        if clock > begins[0] and t.wants[want].slow:
            _hold_up(t, s, port, clock - n.along_cycles)
        _wait_for(t, s, port, t.wants[want].through_at, n.along_cycles, n.along_work, ends)
    n.waited = weights + n.weight_cycles > max(free, begins[0])
    for strip in range(n.strips):
        begins[strip] = max(clock, begins[strip])
        ends[strip] = clock = max(begins[strip] + t.numbers[n.cycles_at + strip], ends[strip])
    n.free = clock
    for port in range(n.middle, n.end):
        p, flow = s.ports[port], _flow(s, port)
        if p.per_batch:
            if not ends_batch:
                continue
            _fill(flow, clock + n.result_cycles)
        elif n.reordered:
            _fill(flow, ends[-1] + n.result_cycles)
        else:
            for mark in range(len(flow)):
                strip = int(t.numbers[p.strip_at + mark])
                made = begins[strip] + (ends[strip] - begins[strip]) * t.numbers[p.share_at + mark]
                flow[mark] = made + t.numbers[p.left_at + mark] + n.result_cycles
        _give(t, s, port)
    if ends_batch:
        n.free = clock + n.rest_cycles


@inner
def _hold_up(t: Tables, s: State, port: int, begins: float) -> None:
    """A tensor is taken along by an engine that begins so late: what doesn't wait inside till then, behind that."""
    p, flow = s.ports[port], _flow(s, port)
    for mark in range(len(flow)):
        flow[mark] = max(flow[mark], begins + t.numbers[p.behind_at + mark])
    _passed(t, s, port, LONG_AGO)


# ---- ports of devices, and cables


@kernel
def enter(
    t: Tables, s: State, calendar: int, stream: int, words: FloatArray, cycles: FloatArray, passed: FloatArray
) -> None:
    """When these words have passed, in ``passed``; ``words``, ascending counts, of which so many have come by
    ``cycles``, of a stream.  There is room for them (`has_room`)."""
    c, come = s.calendars[calendar], s.piece[ENTERS, : len(words)]
    for index in range(len(words)):
        come[index] = max(cycles[index], float(c.first * c.width))
    begin = max(c.first, int((come[0] - words[0]) // c.width))
    last = _last_bin(s, calendar, come[-1], words[-1])
    if last >= c.first + c.bins:
        _reach(t, s, calendar, begin, last)
    bins = s.used[c.at : c.at + c.bins * c.columns].reshape(c.bins, c.columns)
    ways = t.integers[c.ways_at : c.ways_at + c.streams * c.longest].reshape(c.streams, c.longest)
    lengths = t.integers[c.lengths_at : c.lengths_at + c.streams]
    beside = t.integers[c.beside_at : c.beside_at + c.columns]
    sides = t.integers[c.sides_at : c.sides_at + 2 * c.columns].reshape(c.columns, 2)
    again, came = s.again[: c.streams], s.piece[CAME]
    end = _serve(
        bins, c.first, c.width, c.words, ways, lengths, beside, sides, stream, words, come, passed, again, came
    )
    c.end = max(c.end, end)


@inner
def _last_bin(s: State, calendar: int, cycle: float, words: float) -> int:
    """By which so many words have passed, of which the last one comes in this cycle: bins behind the end, or behind its
    coming, have nothing else to carry."""
    c = s.calendars[calendar]
    return int(max(c.end, int(cycle // c.width)) + int(words / c.words) + 4)


@kernel
def has_room(t: Tables, s: State, edge: int) -> bool:
    """Whether there is room for the next piece on an edge, wherever it waits."""
    e = s.edges[edge]
    h, words = t.hops[e.hop], t.numbers[t.hops[e.hop].ends_at + e.pieces] - e.sent
    wanted, last = 0, max(e.last, _offered(t, s, edge)[h.counts - 1]) + words * h.word_cycles
    for stop in range(h.stops_at, h.back_end):
        calendar = t.stops[stop].calendar
        if calendar >= 0:
            c = s.calendars[calendar]
            # no more credits than words
            bin = _last_bin(s, calendar, last, words)
            if bin >= c.first + c.bins:
                wanted += 2 * max(2 * c.bins, bin + 1 - c.first) * c.columns
            last = float((bin + 1) * c.width)
        last += t.stops[stop].cycles
    s.counters[WANTED] = s.counters[USED] + wanted
    return bool(s.counters[WANTED] <= len(s.used))


@inner
def _reach(t: Tables, s: State, calendar: int, begin: int, last: int) -> None:
    """Makes bins up to the last one.  Of streams in turns, tensors come about in the order of time."""
    c, since = s.calendars[calendar], begin
    for edge in range(len(s.edges)):
        if s.edges[edge].crossing != NEVER:
            since = min(since, int(s.edges[edge].crossing // c.width))
    past = max(since, min(begin, last - c.most)) - t.kept_bins - c.first
    forgotten = past if c.forgets and 2 * past > c.bins else 0
    kept = c.bins - forgotten
    bins = kept + max(kept, last + 1 - c.first - forgotten - kept)
    at, here = c.at, c.at + forgotten * c.columns
    if bins > c.space:
        at, c.space = s.counters[USED], 2 * bins
        s.counters[USED] = at + c.space * c.columns
    words = kept * c.columns
    for place in range(words):
        s.used[at + place] = s.used[here + place]
    _fill(s.used[at + words : at + bins * c.columns], 0.0)
    c.at, c.bins, c.first = at, bins, c.first + forgotten


@inner
def _serve(
    used: FloatArray,
    first: int,
    width: int,
    room: float,
    ways: IntArray,
    lengths: IntArray,
    beside: IntArray,
    sides: IntArray,
    stream: int,
    words: FloatArray,
    cycles: FloatArray,
    passed_by: FloatArray,
    again: FloatArray,
    came: FloatArray,
) -> int:
    """Enters words of a stream that come so, and says by when they have passed; the bin behind the last one that is
    used."""
    count = len(words)
    # words that were given back and have had no turn yet, by stream, and of all
    waiting = 0.0
    _fill(again, 0.0)
    way = ways[stream, : lengths[stream]]
    come, gone = 0.0, 0.0
    at, coming, going = 0, 0, 0
    bin = max(0, int((cycles[0] - words[0]) // width) - first)
    last, alone = bin, len(lengths) == 1
    while going < count or waiting > EXACT:
        if waiting > 0.0 and _serve_again(used[bin], ways, lengths, beside, sides, room, again):
            last, waiting = max(last, bin), _sum(again)
        if going == count:
            bin += 1
            continue
        begin, end = float((first + bin) * width), float((first + bin + 1) * width)
        # by the end of the bin
        while at < count and cycles[at] <= end:
            at += 1
        if at == count:
            now = words[count - 1]
        elif at == 0:
            now = max(0.0, words[0] - (cycles[0] - end))
        else:
            share = (end - cycles[at - 1]) / (cycles[at] - cycles[at - 1])
            now = words[at - 1] + share * (words[at] - words[at - 1])
        passed = 0.0
        if alone:
            passed = max(0.0, min(room - used[bin, 0], now - gone))
            used[bin, 0] += passed
            last = bin
        elif now > gone:
            passed = max(0.0, min(_sure(used[bin], way, beside, room), now - gone))
            if passed > 0.0:
                if _take_words(used[bin], way, passed, beside, sides, room, again):
                    waiting = _sum(again)
                last = max(last, bin)
        while coming < count and now >= words[coming] - NO_WORD:
            came[coming] = begin + min(1.0, max(0.0, (words[coming] - come) / max(now - come, NO_WORD))) * width
            coming += 1
        while going < coming and gone + passed >= words[going] - NO_WORD:
            left = begin + min(1.0, max(0.0, (words[going] - gone) / max(passed, NO_WORD))) * width
            passed_by[going] = cycles[going] + max(0.0, left - came[going])
            if going > 0:
                passed_by[going] = max(passed_by[going], passed_by[going - 1])
            going += 1
        come, gone = now, gone + passed
        bin += 1
    return first + last + 1


@inner
def _sum(array: FloatArray) -> float:
    total = 0.0
    for value in array:
        total += value
    return total


@inner
def _sure(used: FloatArray, way: IntArray, beside: IntArray, room: float) -> float:
    """Words more of a stream that a bin has room for: what others leave, or half at every merge."""
    for node in way[1:]:
        room = max(room - used[beside[node]], room / 2)
    return float(room - used[way[-1]])


@inner
def _take_words(
    used: FloatArray, way: IntArray, words: float, beside: IntArray, sides: IntArray, room: float, again: FloatArray
) -> bool:
    """A stream has words more in a bin; others that have more than they are sure of give theirs back: ``again``, by
    stream; whether any do."""
    for node in way:
        used[node] += words
    if used[way[0]] <= room + EXACT:
        return False
    for node in way[1:]:
        other = beside[node]
        over = min(used[other] - room / 2, used[node] + used[other] - room)
        if over > 0.0:
            _give_back(used, other, over, sides, again)
        room = max(room - used[other], room / 2)
    for node in way[-2::-1]:
        used[node] = used[sides[node, 0]] + used[sides[node, 1]]
    return True


@inner
def _give_back(used: FloatArray, node: int, words: float, sides: IntArray, again: FloatArray) -> None:
    """So many words less of a merge or stream in a bin, of the side first that has more."""
    used[node] -= words
    if sides[node, 0] < 0:
        again[node] += words
        return
    more, less = sides[node, 0], sides[node, 1]
    if used[more] < used[less]:
        more, less = less, more
    first = min(words, used[more] - used[less])
    both = (words - first) / 2
    if first + both > 0.0:
        _give_back(used, more, first + both, sides, again)
    if both > 0.0:
        _give_back(used, less, both, sides, again)


@inner
def _serve_again(
    used: FloatArray, ways: IntArray, lengths: IntArray, beside: IntArray, sides: IntArray, room: float,
    again: FloatArray,
) -> bool:  # fmt: skip
    """Words that were given back in bins before take their turns in this one; whether any do."""
    found = False
    for stream in range(len(again)):
        if again[stream] > 0.0:
            way = ways[stream, : lengths[stream]]
            words = min(again[stream], _sure(used, way, beside, room))
            if words > 0.0:
                again[stream] -= words
                _take_words(used, way, words, beside, sides, room, again)
                found = True
    return found


# ---- the network


@kernel
def leave(t: Tables, s: State, edge: int, frame: int, cycles: FloatArray) -> None:
    """A tensor is offered so to the network, behind what waits there."""
    e = s.edges[edge]
    h = t.hops[e.hop]
    whole = s.more[: e.marks]
    _at(t, h.whole_at, e.marks, e.marks_at, cycles, whole)
    slot = e.leave_at + e.offered % e.leave_size * (h.counts + 1)
    s.flows[slot] = frame
    # the latest of all marks until then
    latest, mark = -np.inf, 0
    for count in range(h.counts):
        while mark <= t.numbers[h.last_at + count]:
            latest = max(latest, whole[mark])
            mark += 1
        s.flows[slot + 1 + count] = latest
    e.offered += 1
    if e.offered - e.left == e.leave_size:
        s.counters[FULL] = 1


@view
def _offered(t: Tables, s: State, edge: int) -> FloatArray:
    """When the words of the tensor that crosses, or is the next to, are offered."""
    e = s.edges[edge]
    counts = t.hops[e.hop].counts
    slot = e.leave_at + e.left % e.leave_size * (counts + 1)
    return s.flows[slot + 1 : slot + 1 + counts]


@kernel
def piece_begins(t: Tables, s: State, edge: int) -> float:
    """When the next piece of a tensor may leave: its first word is offered, and the last one has left."""
    e = s.edges[edge]
    h = t.hops[e.hop]
    counts, found = s.piece[COUNTS, :1], s.piece[OFFERED, :1]
    counts[0] = e.sent + 1
    _interpolated(counts, t.numbers[h.counts_at : h.counts_at + h.counts], _offered(t, s, edge), found)
    return float(max(found[0], e.last))


@kernel
def carry(t: Tables, s: State, edge: int) -> None:
    """The next piece of a tensor passes, for which there is room (`has_room`)."""
    e = s.edges[edge]
    h, offered = t.hops[e.hop], _offered(t, s, edge)
    if e.crossing == NEVER:
        e.crossing = offered[0]
    count, end = _counts(t, s, edge), t.numbers[h.ends_at + e.pieces]
    counts, words, credits = s.piece[COUNTS, :count], s.piece[WORDS, :count], s.piece[CREDITS, :count]
    times, ready, passed = s.piece[OFFERED, :count], s.piece[READY, :count], s.piece[PASSED, :count]
    _interpolated(counts, t.numbers[h.counts_at : h.counts_at + h.counts], offered, times)
    # not before the last word, with so many cycles from one to the next
    last = e.last
    for index in range(count):
        words[index] = counts[index] - e.sent
        credits[index] = words[index] / h.credit_batch
        passing = words[index] * h.word_cycles
        last = max(last, times[index] - passing)
        ready[index] = last + passing
    e.last = _pass_stops(t, s, h.stops_at, h.back_at, words, ready, passed)
    arrived = e.arrived_at + e.arrived
    for index in range(count):
        s.scratch[arrived + index] = counts[index]
        s.scratch[arrived + h.arrivals + index] = ready[index]
    e.arrived += count
    _pass_stops(t, s, h.back_at, h.back_end, credits, ready, passed)
    e.sent, e.pieces = end, e.pieces + 1


@inner
def _counts(t: Tables, s: State, edge: int) -> int:
    """The counts of words of the next piece at which its passing is kept, in `State.piece`; how many these are."""
    e = s.edges[edge]
    h, end, count = t.hops[e.hop], t.numbers[t.hops[e.hop].ends_at + e.pieces], 0
    # not all of them, or the first word is in no mark
    first = h.pieces > 1 or t.numbers[h.counts_at] > 1
    if first and e.sent + 1 < end:
        s.piece[COUNTS, 0], count = e.sent + 1, 1
    for place in range(h.counts_at, h.counts_at + h.counts):
        words = t.numbers[place]
        if words > e.sent + int(first) and words < end:
            s.piece[COUNTS, count] = words
            count += 1
    s.piece[COUNTS, count] = end
    return count + 1


@inner
def _pass_stops(
    t: Tables, s: State, begin: int, end: int, words: FloatArray, cycles: FloatArray, passed: FloatArray
) -> float:
    """Words pass these stops, one after another, and are behind them by ``cycles``; when the last one has left where
    they come from."""
    left = 0.0
    for stop in range(begin, end):
        if t.stops[stop].calendar >= 0:
            enter(t, s, t.stops[stop].calendar, t.stops[stop].stream, words, cycles, passed)
            if stop == begin:
                left = passed[-1]
            if not t.stops[stop].credits:
                # credits go on as if none waited where they leave
                for index in range(len(words)):
                    cycles[index] = passed[index]
        for index in range(len(words)):
            cycles[index] += t.stops[stop].cycles
    return left


@kernel
def through(t: Tables, s: State, edge: int) -> bool:
    """Whether all pieces of the tensor that crosses have arrived."""
    return bool(s.edges[edge].pieces == t.hops[s.edges[edge].hop].pieces)


@kernel
def arrive(t: Tables, s: State, edge: int, flow: FloatArray) -> None:
    """How the tensor that crossed arrives; the next one may cross."""
    e = s.edges[edge]
    h = t.hops[e.hop]
    words = s.scratch[e.arrived_at : e.arrived_at + e.arrived]
    cycles = s.scratch[e.arrived_at + h.arrivals : e.arrived_at + h.arrivals + e.arrived]
    _interpolated(t.numbers[h.words_at : h.words_at + e.marks], words, cycles, flow)
    e.left += 1
    e.sent, e.pieces, e.arrived, e.crossing = 0.0, 0, 0, NEVER


# ---- what can be worked out


@inner
def _before(s: State, a: int, b: int) -> bool:
    """Which of two entries of the heap comes first."""
    if s.heap_frame[a] != s.heap_frame[b]:
        return bool(s.heap_frame[a] < s.heap_frame[b])
    if s.heap_time[a] != s.heap_time[b]:
        return bool(s.heap_time[a] < s.heap_time[b])
    return bool(s.heap_which[a] < s.heap_which[b])


@inner
def _swap(s: State, a: int, b: int) -> None:
    s.heap_frame[a], s.heap_frame[b] = s.heap_frame[b], s.heap_frame[a]
    s.heap_time[a], s.heap_time[b] = s.heap_time[b], s.heap_time[a]
    s.heap_which[a], s.heap_which[b] = s.heap_which[b], s.heap_which[a]


@inner
def _note(t: Tables, s: State, frame: int, begins: float, which: int) -> None:
    at = s.counters[LENGTH]
    s.counters[LENGTH] = at + 1
    s.heap_frame[at], s.heap_time[at], s.heap_which[at] = frame if t.oldest else 0, begins, which
    while at > 0 and _before(s, at, (at - 1) // 2):
        _swap(s, at, (at - 1) // 2)
        at = (at - 1) // 2


@inner
def _next(s: State) -> int:
    """What comes next; it is no longer noted."""
    which, count = int(s.heap_which[0]), s.counters[LENGTH] - 1
    s.counters[LENGTH] = count
    _swap(s, 0, count)
    at = 0
    while 2 * at + 1 < count:
        below = 2 * at + 1
        if below + 1 < count and _before(s, below + 1, below):
            below += 1
        if not _before(s, below, at):
            break
        _swap(s, at, below)
        at = below
    return which


@inner
def _look(t: Tables, s: State, node: int) -> None:
    """Notes a node's next frame if all that it takes is known."""
    if not s.nodes[node].known:
        begins = _begins(t, s, node)
        if begins != NEVER:
            s.nodes[node].known = 1
            _note(t, s, s.nodes[node].frame, begins, node)


@inner
def _look_at(t: Tables, s: State, edge: int) -> None:
    """Notes the next piece that crosses the network on an edge."""
    e = s.edges[edge]
    if e.left < e.offered and not e.known:
        e.known = 1
        frame = int(s.flows[e.leave_at + e.left % e.leave_size * (t.hops[e.hop].counts + 1)])
        _note(t, s, frame, piece_begins(t, s, edge), edge - len(s.edges))


@inner
def _takes(t: Tables, s: State, port: int, frame: int, ends_batch: bool) -> bool:
    """Whether a tensor comes at a sink with a frame, other than weights."""
    if s.ports[port].kind == BATCH:
        return ends_batch
    return bool(s.ports[port].kind == FRAME and _passes(t, s, s.ports[port].edge, frame))


@inner
def _begins(t: Tables, s: State, node: int) -> float:
    """About when a node's next frame begins; `NEVER` if something that it waits for is not known."""
    n = s.nodes[node]
    frame, begins = n.frame, max(n.free, n.began) * n.period
    ends_batch = _ends_batch(t, n.dealt, frame)
    if n.making and (n.strips or ends_batch):
        return NEVER
    version = _version(t, frame)
    if n.beside >= 0 and s.nodes[n.beside].frame < frame:
        before = frame - 1
        if n.dealt >= 0 and frame > 0:
            before = _dealt_frame(t, n.dealt, _dealt_index(t, n.dealt, frame) - 1)
        if version > _version(t, before):
            return NEVER
    for port in range(n.first, n.middle):
        edge = s.ports[port].edge
        e = s.edges[edge]
        if s.ports[port].kind == VERSION:
            if e.versions < version:
                return NEVER
            if version:
                begins = max(begins, s.versions[edge, version - 1])
        elif _takes(t, s, port, frame, ends_batch):
            if e.gone == e.came:
                return NEVER
            begins = max(begins, s.flows[e.come_at + e.gone % e.come_size * e.marks])
    room = _room(t, s, node)
    return NEVER if room == NEVER else max(begins, room)


@inner
def _room(t: Tables, s: State, node: int) -> float:
    """The cycle from which the FIFOs behind a node have room for all of its next frame when that ends; `NEVER` if that
    is not known.

    A FIFO of 2.3 frames has room for frame 5 when 0.7 of frame 3 are out."""
    n, found = s.nodes[node], LONG_AGO
    for number in range(n.rooms_at, n.rooms_end):
        r, frame = t.rooms[number], n.frame
        dealt = s.edges[r.edge].dealt
        if dealt >= 0:
            if not _gets(t, dealt, frame):
                continue
            frame = _dealt_index(t, dealt, frame)
        whole = int(r.frames)
        frame -= whole
        if frame >= 0:
            earlier, last = max(0, frame - 1), frame
            if dealt >= 0 and s.nodes[r.user].dealt < 0:
                # all frames are the user's
                earlier, last = _dealt_frame(t, dealt, earlier), _dealt_frame(t, dealt, last)
            if last >= s.nodes[r.user].done:
                return NEVER
            out = s.done[r.user, last]
            found = max(found, out - (r.frames - whole) * (out - s.done[r.user, earlier]) + r.back)
    return float(found - n.cycles_per_frame * n.period)


# ---- working it out


@inner
def _take(t: Tables, s: State, node: int) -> None:
    """The next frame of a node."""
    n = s.nodes[node]
    frame, ends_batch = int(n.frame), _ends_batch(t, n.dealt, n.frame)
    _hold(s, node, _room(t, s, node) / n.period)
    weights, first, last = _receive(t, s, node, ends_batch)
    pass_frame(t, s, node, weights, ends_batch)
    s.counters[WAITED] |= n.waited
    outstanding = _made(t, s, node)
    n.frame = _own_frame(t, s, node, frame + 1)
    if outstanding or n.per_batch:
        n.making, n.outstanding, n.late = 1, outstanding, 0.0
        if n.per_batch:
            _take_batch(s, node, first, last)
        if not outstanding:
            _left(t, s, node, -1, 0.0)
    for port in range(n.middle, n.end):
        p = s.ports[port]
        if p.there and p.edge >= 0 and (p.per_batch or _passes(t, s, p.edge, frame)):
            _offer(t, s, p.edge, (frame // t.batch + 1) * t.batch - 1 if p.per_batch else frame, _flow(s, port))
    _look(t, s, node)
    for port in range(n.first, n.middle):
        _look(t, s, s.edges[s.ports[port].edge].maker)
    if n.beside >= 0:
        _look(t, s, n.beside)


@inner
def _receive(t: Tables, s: State, node: int, ends_batch: bool) -> tuple[float, float, float]:
    """What comes at the sinks of a node with its next frame; when the last weight of its version came, in its own
    cycles, and when the first and last elements of all came, in those of the cluster."""
    n, weights, first, last = s.nodes[node], LONG_AGO, -np.inf, -np.inf
    version = _version(t, n.frame)
    for port in range(n.first, n.middle):
        p = s.ports[port]
        p.there = 0
        if p.kind == VERSION:
            if version:
                weights = max(weights, s.versions[p.edge, version - 1] / n.period)
        elif _takes(t, s, port, n.frame, ends_batch):
            e = s.edges[p.edge]
            slot = e.come_at + e.gone % e.come_size * e.marks
            e.gone += 1
            first = max(first, s.flows[slot])
            take_flow(t, s, port, e.marks_at, s.flows[slot : slot + e.marks], 1 / n.period)
            last = max(last, p.last * n.period)
    return weights, first, last


@inner
def _made(t: Tables, s: State, node: int) -> int:
    """A node has made tensors of a frame: from now on in cycles of the cluster.  How many go once a batch."""
    n, done, outstanding = s.nodes[node], -np.inf, 0
    for port in range(n.middle, n.end):
        p = s.ports[port]
        if not p.there:
            continue
        flow = _flow(s, port)
        for mark in range(len(flow)):
            flow[mark] *= n.period
        if p.edge >= 0 and p.per_batch:
            outstanding += 1
            s.edges[p.edge].offer = _rested_for(s, p.edge, flow)
        elif p.edge >= 0:
            done = max(done, flow[-1])
    if not t.oldest:
        s.done[node, n.done] = max(done, max(n.free, n.began) * n.period)
        n.done += 1
        if n.done == s.done.shape[1]:
            s.counters[FULL] = 1
    return outstanding


@inner
def _rested_for(s: State, edge: int, flow: FloatArray) -> float:
    """When the last element of a tensor passes for which its maker rests."""
    return float(flow[-1] - s.edges[edge].aside * (flow[-1] - flow[0]))


@inner
def _offer(t: Tables, s: State, edge: int, frame: int, flow: FloatArray) -> None:
    """A tensor leaves its producer."""
    e = s.edges[edge]
    if _ends_batch(t, e.dealt, frame):
        s.ends[edge, e.ends] = flow[-1]
        e.ends += 1
        if e.ends == s.ends.shape[1]:
            s.counters[FULL] = 1
    if e.hop < 0:
        _come(t, s, edge, flow)
    else:
        leave(t, s, edge, frame, flow)
        _look_at(t, s, edge)


@inner
def _come(t: Tables, s: State, edge: int, flow: FloatArray) -> None:
    """A tensor comes to its consumers."""
    e = s.edges[edge]
    first, last = flow[0] + e.cycles, flow[-1] + e.cycles
    if e.taken:
        slot = e.come_at + e.came % e.come_size * e.marks
        for mark in range(e.marks):
            s.flows[slot + mark] = flow[mark] + e.cycles
        e.came += 1
        if e.came - e.gone == e.come_size:
            s.counters[FULL] = 1
    if e.per_batch:
        s.versions[edge, e.versions] = last
        e.versions += 1
        if e.versions == s.versions.shape[1]:
            s.counters[FULL] = 1
        went = (e.last if e.hop >= 0 else flow[-1]) - last + (last - e.aside * (last - first))
        if e.room and e.to_batches:
            e.went = went
        else:
            # its user holds all of it
            _left(t, s, e.maker, edge, went)
    for user in range(e.users_at, e.users_end):
        _look(t, s, t.integers[user])


# ---- when tensors of a batch have left the nodes that make them
#
# Gradients and new weights find little room on their way: their FIFOs hold a few beats, their receivers a few words,
# and an update or a fork gives a beat for every one that it takes.  So where new weights go over a link of few credits,
# the update in front of it, and the gradient engine in front of that, give their tensors no faster, but for what finds
# room between them.  Users hold a whole tensor.  What is late is followed against the streams.


@inner
def _take_batch(s: State, node: int, first: float, last: float) -> None:
    """A node that works once a batch takes tensors, element by element of all, by these cycles if what it makes of them
    leaves as it is offered."""
    for port in range(s.nodes[node].first, s.nodes[node].middle):
        e = s.edges[s.ports[port].edge]
        if e.room:
            e.taking, e.first_taken, e.last_taken = 1, first, last
            e.room_taken = min(1.0, e.room + e.aside)


@inner
def _left(t: Tables, s: State, node: int, edge: int, cycle: float) -> None:
    """The last element of a tensor (-1: there is none) has left the node that made it by this cycle.  If all tensors of
    its batch have, what it took them of has left, too."""
    depth = int(_has_left(t, s, node, edge, cycle))
    s.left_node[0], s.left_port[0] = node, s.nodes[node].first
    while depth:
        node, port = s.left_node[depth - 1], s.left_port[depth - 1]
        n = s.nodes[node]
        if port == n.middle:
            depth -= 1
            continue
        s.left_port[depth - 1] = port + 1
        edge = s.ports[port].edge
        e = s.edges[edge]
        if e.taking:
            e.taking = 0
            last = e.last_taken + n.late
            if _has_left(t, s, e.maker, edge, max(e.went, last - e.room_taken * (last - e.first_taken))):
                s.left_node[depth], s.left_port[depth] = e.maker, s.nodes[e.maker].first
                depth += 1


@inner
def _has_left(t: Tables, s: State, node: int, edge: int, cycle: float) -> bool:
    """Whether with this tensor all of a node's batch have left, by some cycles later than they were offered: if so, it
    goes on.

    Only gradient engines rest for it: what others give is a vector, which they hold beside their work."""
    n = s.nodes[node]
    if edge >= 0:
        n.late = max(n.late, cycle - s.edges[edge].offer)
        n.outstanding -= 1
    if n.outstanding:
        return False
    n.making = 0
    if n.strips:
        _hold(s, node, n.free + n.late / n.period)
    _look(t, s, node)
    return True


@kernel
def begin(t: Tables, s: State) -> None:
    """Notes all nodes that may begin with their first frame."""
    for node in range(len(s.nodes)):
        s.nodes[node].frame = _own_frame(t, s, node, 0)
    for node in range(len(s.nodes)):
        _look(t, s, node)


@kernel
def run_batch(t: Tables, s: State, goal: int) -> bool:
    """Takes all frames before this one through the graph; whether it is done, or something is full first."""
    behind = 0
    for node in range(len(s.nodes)):
        behind += s.nodes[node].frame < goal
    while behind and s.counters[LENGTH] and not s.counters[FULL]:
        which = _next(s)
        if which >= 0:
            s.nodes[which].known = 0
            before = s.nodes[which].frame
            _take(t, s, which)
            if before < goal <= s.nodes[which].frame:
                behind -= 1
            continue
        edge = which + len(s.edges)
        s.edges[edge].known = 0
        if not has_room(t, s, edge):
            s.counters[FULL] = 1
        else:
            carry(t, s, edge)
            if through(t, s, edge):
                flow = s.more[: s.edges[edge].marks]
                arrive(t, s, edge, flow)
                _come(t, s, edge, flow)
        _look_at(t, s, edge)
    return not behind
