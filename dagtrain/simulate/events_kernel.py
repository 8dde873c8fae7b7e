"""Compiled events of `dagtrain.simulate.events`: every beat of every stream, in runs as long as all that they wait for
is known.

A node is a process that reads and writes channels.  When it is its turn it advances every port beat by beat until it
needs a time that nobody has worked out yet, and wakes those who wait for what it did.  Whoever has the earliest news is
next, so ports of the network, which many channels share, serve words in the order of time; all else may run ahead,
since a channel has one writer and one reader (Kahn, "The Semantics of a Simple Language for Parallel Programming",
1974): times follow from times, whoever is worked out first.

Beats of a channel are numbered from its first one on; their times lie in rings.  With W(p) the cycle in which beat p is
written, and R(b) that in which beat b is read:

    R(b) >= W(beat with the last element of b) + latency        W(p) >= R(beat that leaves room for p) + 1

and what the process asks for beside: see `_take` and `_give` of layers that work at once, `_store`, `_queue`, `_along`,
`_make` and `_strip` of engines that go strip by strip, which work as `dagtrain.schedule.batch_kernel` says.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from dagtrain.rows import Rows, row_type
from hdl.fixed import FloatArray, IntArray

NEVER = 1e300
# of sums of fractions; cycles of a cable that are saved up: nearly one (`hdl.simulate.models.link.link_gate`)
ROUNDED, SAVED = 1e-6, 0.999
# kinds of processes
HOST, AT_ONCE, STRIPS = 0, 1, 2
# what comes at a port: a tensor with every frame, one with every batch, the weights of a frame's version
FRAME, BATCH, VERSION = 0, 1, 2
# how a sink is used: strips store it, or take it along; it lies in the memory of another node
STORED, ALONG, BORROWED = 0, 1, 2


# a stream
CHANNEL = row_type(
    writer=int, reader=int,
    # elements of a tensor, of a beat, and beats of a tensor, at both ends
    elements=int, write_lanes=int, read_lanes=int, write_beats=int, read_beats=int,
    # cycles from one beat to the next at least; from writing to reading; from reading until there is room
    write_step=float, read_step=float, latency=float, room_latency=float,
    # elements that find room; tensors that pass in the whole run
    room=int, tensors=int,
    # rings of times: where they begin, and of how many beats
    write_at=int, write_size=int, read_at=int, read_size=int,
    # of the network: elements of a word (0: none), words of a tensor, words of the wire that are one here, elements
    # of a run that waits in front of words, words that a sender holds beside the one that leaves, cycles to the other
    # device's port and behind it, words that the receiver holds, and whose credits go back together, devices, rings of
    # times at which words left, arrived, and credits came back; whether what arrives goes on into a FIFO in DRAM of
    # that room, and whether an adapter makes beats of words
    stored=int, adapted=int, word=int, words=int, at_once=int, door=int, sender_words=int, cycles=float, behind=float,
    credits_behind=float, credits=int, credit_batch=int,
    source=int, target=int,
    sent_at=int, sent_size=int, arrived_at=int, arrived_size=int, credit_at=int, credit_size=int,
    # worked out so far: beats written and read, words sent and arrived, batches of credits that left and that came
    # back; cycles that the writer waited for room, and the first in which it did
    written=int, read=int, sent=int, arrived=int, returned=int, repaid=int, blocked=float, full=float,
)  # fmt: skip

# a sink or a source of a node: sinks of a node before its sources, nodes in order
PORT = row_type(
    # -1: nobody reads it
    channel=int, kind=int,
    # frames of the node that pass: where that lies in `Tables.turns`; -1: all
    turns=int,
    # of sources: cycles from what is needed until it leaves; beats that wait inside; of sinks taken along, words
    latency=float, holds=int,
    # of sinks: STORED, ALONG or BORROWED; beats of a word that is taken along, or of sums those that leave beside the
    # work; where it lies when the last operations on the last words began
    use=int, unit=int, words_at=int,
    # of those that are stored, whether beats of others are taken with it
    joined=int,
    # where its tables lie
    table=int,
    # worked out so far: the frame of the node, or batch, and the beat in it; of strips, when the last of them was at
    # work; when the last frame began
    frame=int, beat=int, work=float, began=float,
    # words that operations began on; beats of which the other end of the channel was told
    done=int, told=int,
)  # fmt: skip

# a process
NODE = row_type(
    kind=int,
    # ports: sinks from first to middle, sources from there to end
    first=int, middle=int, end=int,
    # whether it works on batches alone; frames of the training that are its own (`Tables.turns`; -1: all), and how many
    # of a batch; how many frames, or batches
    per_batch=int, turns=int, share=int, frames=int,
    # in cycles of the cluster
    cycles_per_frame=float, weight_cycles=float,
    # of strips: how many, those at the end that give results, where their cycles lie, whether results are put in order;
    # cycles of `hdl.strips.Strips`
    strips=int, giving=int, cycles_at=int, reordered=int,
    begin_cycles=float, along_cycles=float, along_work=float, along_free=float, result_cycles=float, rest_cycles=float,
    load_cycles=float, free_cycles=float,
    # versions of the weights that find room; 0: any; the other node that reads the same ones; -1: none
    places=int, beside=int,
    # where the first and last cycles of its frames lie, and the ends of its last strips
    first_at=int, last_at=int, ends_at=int, ends_size=int,
    # worked out so far: strips that ended, whether the next one began and when, when the engine is free, when the
    # weights in use were loaded, their version, batches whose sums have left
    strip=int, busy=int, begun=float, clock=float, loaded=float, version=int, left=int,
)  # fmt: skip

# a port of a device
DEVICE = row_type(
    # words a cycle; its channels in `Tables.leaving`; the twos that take turns, in
    # `Tables.sides`, and in `Tables.into`; where cables join devices, the queue that what leaves goes to; -1: a switch
    rate=float, leaving_at=int, leaving_end=int, twos_at=int, into_at=int, queue=int,
    # worked out so far: free to send, to receive
    send_free=float, receive_free=float,
)  # fmt: skip

# an output of what passes words on from cable to cable (`hdl.link.forward`)
OUTPUT = row_type(
    # as of a device, but that what takes turns are queues
    rate=float, leaving_at=int, leaving_end=int, twos_at=int, into_at=int,
    # cycles to the queue behind; which one that is; -1: words leave for their receivers
    cycles=float, queue=int,
    # worked out so far: when it may take the next word; when the last one left, and the next one may; how many have
    # passed
    free=float, left=float, due=float, passed=int,
)  # fmt: skip

# an input of it, with the cable before it
QUEUE = row_type(
    # whose; in the heap, who sends there; words of which one more finds room; the ring of what waits
    device=int, sender=int, room=int, at=int, size=int,
    # worked out so far: what has come and gone; words that wait; from when on the next one may go
    came=int, gone=int, held=int, free=float,
)  # fmt: skip


class Tables(NamedTuple):
    """What rows point to."""

    # of (source, sink) pairs of nodes that work at once, where in `needed` lie beats of the sink that each beat of the
    # source needs, and the first beat of the source that needs each of the sink; -1: they need one another evenly
    pair: IntArray
    needed: IntArray
    # of sinks of strips: beats before each strip, or by its end; the strip that must have ended before each beat of a
    # stored map may come
    counts: IntArray
    gates: IntArray
    # of copies: of every frame of a batch, and of what is behind it, how many before are their own, and which these are
    turns: IntArray
    # channels that leave each device, then queues before each output
    leaving: IntArray
    # who takes turns there (`hdl.link.format.turns_taken`), numbered for each of them: channels or queues, then twos of
    # them; of each two both sides, and of a channel or two the two of which it is a side, -1: it is the port
    sides: IntArray
    into: IntArray
    # device, device for which a word is -> the output by which it leaves
    onward: IntArray
    # cycles of strips; of sources of strips the share of a strip that is over when each beat is made
    cycles: FloatArray
    shares: FloatArray


class State(NamedTuple):
    """What a run has worked out, beside what rows say."""

    # rings and spans
    times: FloatArray
    # node, batch -> when the last beat of a map that it reads for it was read
    sums: FloatArray
    # channel, version -> when it came
    versions: FloatArray
    # node, version -> when it went out of use
    freed: FloatArray
    # heap of (cycle, who); who -> the cycle that it is in the heap with; entries of the heap
    heap_time: FloatArray
    heap_who: IntArray
    queued: FloatArray
    length: IntArray
    # whose turn it is of those that take turns: the second side's; places of those still to be asked
    turns: IntArray
    asked: IntArray
    # rings of queues: from when on a word may go; twice its channel, and 1 if it is a credit
    waiting_time: FloatArray
    waiting_word: IntArray


@njit(cache=True)
def _push(s: State, time: float, who: int) -> None:
    """Somebody has news from this cycle on."""
    if s.queued[who] <= time:
        return
    s.queued[who] = time
    at = s.length[0]
    if at == len(s.heap_time):
        raise OverflowError
    s.length[0] += 1
    while at > 0:
        above = (at - 1) // 2
        if s.heap_time[above] <= time:
            break
        s.heap_time[at], s.heap_who[at] = s.heap_time[above], s.heap_who[above]
        at = above
    s.heap_time[at], s.heap_who[at] = time, who


@njit(cache=True)
def _pop(s: State) -> tuple[float, int]:
    """The earliest news."""
    time, who = s.heap_time[0], s.heap_who[0]
    s.length[0] -= 1
    count = s.length[0]
    last_time, last_who = s.heap_time[count], s.heap_who[count]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and s.heap_time[below + 1] < s.heap_time[below]:
            below += 1
        if s.heap_time[below] >= last_time:
            break
        s.heap_time[at], s.heap_who[at] = s.heap_time[below], s.heap_who[below]
        at = below
    s.heap_time[at], s.heap_who[at] = last_time, last_who
    return time, who


@njit(cache=True)
def arrival(c: Rows, s: State, channel: int, beat: int) -> float:
    """When a beat could be read; `NEVER` if that is not known yet."""
    beats = c[channel].read_beats
    tensor, inside = beat // beats, beat % beats
    last = min((inside + 1) * c[channel].read_lanes, c[channel].elements)
    if c[channel].word:
        word = tensor * c[channel].words + (last - 1) // c[channel].word
        if word >= c[channel].arrived:
            return NEVER
        return float(s.times[c[channel].arrived_at + word % c[channel].arrived_size] + c[channel].latency)
    written = tensor * c[channel].write_beats + (last - 1) // c[channel].write_lanes
    if written >= c[channel].written:
        return NEVER
    return float(s.times[c[channel].write_at + written % c[channel].write_size] + c[channel].latency)


@njit(cache=True)
def _read_time(c: Rows, s: State, channel: int, beat: int) -> float:
    """When a beat was read; long ago for those before the first."""
    if beat < 0:
        return -NEVER
    return float(s.times[c[channel].read_at + beat % c[channel].read_size])


@njit(cache=True)
def _there(c: Rows, s: State, channel: int, beat: int) -> float:
    """When a beat was read, or could be, if it was not yet."""
    return _read_time(c, s, channel, beat) if beat < c[channel].read else arrival(c, s, channel, beat)


@njit(cache=True)
def _write_time(c: Rows, s: State, channel: int, beat: int) -> float:
    """When a beat was written; long ago for those before the first."""
    if beat < 0:
        return -NEVER
    return float(s.times[c[channel].write_at + beat % c[channel].write_size])


@njit(cache=True)
def room_for(c: Rows, s: State, channel: int, beat: int) -> float:
    """From when there is room for a beat; `NEVER` if that is not known yet."""
    beats, elements = c[channel].write_beats, c[channel].elements
    tensor, inside = beat // beats, beat % beats
    last = min((inside + 1) * c[channel].write_lanes, elements)
    if c[channel].word:
        word = tensor * c[channel].words + (last - 1 - c[channel].door) // c[channel].word - c[channel].sender_words
        if word < 0:
            return -NEVER
        if word >= c[channel].sent:
            return NEVER
        return float(s.times[c[channel].sent_at + word % c[channel].sent_size] + c[channel].room_latency)
    need = tensor * elements + last - c[channel].room
    if need <= 0:
        return -NEVER
    before = (need - 1) // elements
    within = need - before * elements
    read = before * c[channel].read_beats + (within - 1) // c[channel].read_lanes
    if read >= c[channel].read:
        return NEVER
    return float(s.times[c[channel].read_at + read % c[channel].read_size] + c[channel].room_latency)


@njit(cache=True)
def _span(n: Rows, s: State, node: int, frame: int, time: float) -> None:
    first, last = n[node].first_at + frame, n[node].last_at + frame
    s.times[first] = min(s.times[first], time)
    s.times[last] = max(s.times[last], time)


@njit(cache=True)
def _write(c: Rows, s: State, channel: int, ready: float, room: float) -> float:
    """The next beat of a channel, which is ready then; when it is written."""
    beat = c[channel].written
    time = max(ready, _write_time(c, s, channel, beat - 1) + c[channel].write_step)
    if room > time:
        c[channel].blocked += room - time
        c[channel].full = min(c[channel].full, time)
        time = room
    s.times[c[channel].write_at + beat % c[channel].write_size] = time
    c[channel].written = beat + 1
    return float(time)


@njit(cache=True)
def _reading(c: Rows, s: State, channel: int, time: float) -> None:
    """The next beat of a channel is read then."""
    beat = c[channel].read
    s.times[c[channel].read_at + beat % c[channel].read_size] = time
    c[channel].read = beat + 1


@njit(cache=True)
def _passing(t: Tables, frame: int, turns: int, batch: int) -> int:
    """How many of the frames before this one pass a port."""
    if turns < 0:
        return frame
    return int(frame // batch * t.turns[turns + batch] + t.turns[turns + frame % batch])


@njit(cache=True)
def _passes(t: Tables, frame: int, turns: int, batch: int) -> bool:
    place = turns + frame % batch
    return turns < 0 or t.turns[place] < t.turns[place + 1]


@njit(cache=True)
def _of_training(t: Tables, frame: int, turns: int, batch: int) -> int:
    """The frame of the training that is a node's own frame of this number."""
    if turns < 0:
        return frame
    share = t.turns[turns + batch]
    return int(frame // share * batch + t.turns[turns + batch + 1 + frame % share])


@njit(cache=True)
def _weights(
    p: Rows, n: Rows, t: Tables, s: State, node: int, frame: int, batch: int, staleness: int
) -> tuple[int, float]:
    """The version that a frame of a node wants, and when it came; `NEVER` if that is not known yet."""
    version = max(0, (_of_training(t, frame, n[node].turns, batch) - staleness) // batch)
    time = -NEVER
    for port in range(n[node].first, n[node].middle):
        if p[port].kind == VERSION and version > 0:
            time = max(time, s.versions[p[port].channel, version - 1])
    return version, time


@njit(cache=True)
def _needs(c: Rows, p: Rows, n: Rows, t: Tables, node: int, source: int, sink: int, beat: int) -> int:
    """Beats of a sink that a beat of a source needs."""
    at = t.pair[p[source].table + 2 * (sink - n[node].first)]
    if at < 0:
        mine, its = c[p[source].channel].write_beats, c[p[sink].channel].read_beats
        return int(((beat + 1) * its + mine - 1) // mine)
    return int(t.needed[at + beat])


@njit(cache=True)
def _user(c: Rows, p: Rows, n: Rows, t: Tables, node: int, source: int, sink: int, beat: int) -> int:
    """The first beat of a source that needs a beat of a sink; the beats of the source if none does."""
    at = t.pair[p[source].table + 2 * (sink - n[node].first) + 1]
    if at < 0:
        mine, its = c[p[source].channel].write_beats, c[p[sink].channel].read_beats
        return int(beat * mine // its)
    return int(t.needed[at + beat])


@njit(cache=True)
def _take(c: Rows, p: Rows, n: Rows, t: Tables, s: State, node: int, sink: int, batch: int, staleness: int) -> bool:
    """Reads beats of frames at a sink of a node that works at once; whether any.

    A beat is read when what is used with it is there, and when the results in front of its own have left, but for
    those that wait inside."""
    channel, moved = p[sink].channel, False
    turns = p[sink].turns
    beats = c[channel].read_beats
    while p[sink].frame < n[node].frames:
        frame, beat = p[sink].frame, p[sink].beat
        if not _passes(t, frame, turns, batch):
            p[sink].frame += 1
            continue
        time = arrival(c, s, channel, c[channel].read)
        if time == NEVER:
            break
        time = max(time, _read_time(c, s, channel, c[channel].read - 1) + c[channel].read_step)
        if beat == 0 and not n[node].per_batch:
            _, came = _weights(p, n, t, s, node, frame, batch, staleness)
            if came == NEVER:
                break
            time = max(time, came + n[node].weight_cycles, p[sink].began + n[node].cycles_per_frame)
        for source in range(n[node].middle, n[node].end):
            gives = p[source].channel
            if gives < 0 or (p[source].kind == BATCH and not n[node].per_batch):
                continue
            if not _passes(t, frame, p[source].turns, batch):
                continue
            used = _user(c, p, n, t, node, source, sink, beat)
            if used >= c[gives].write_beats:
                continue
            before = _passing(t, frame, p[source].turns, batch) * c[gives].write_beats
            held = before + used - p[source].holds
            if held >= c[gives].written:
                time = NEVER
                break
            time = max(time, _write_time(c, s, gives, held))
            for other in range(n[node].first, n[node].middle):
                if other == sink or (p[other].kind != FRAME and not n[node].per_batch):
                    continue
                if not _passes(t, frame, p[other].turns, batch):
                    continue
                with_it = p[other].channel
                even = ((beat + 1) * c[with_it].read_beats + beats - 1) // beats
                least = min(even, _needs(c, p, n, t, node, source, other, used))
                if least > 0:
                    at = _passing(t, frame, p[other].turns, batch) * c[with_it].read_beats + least - 1
                    time = max(time, _there(c, s, with_it, at))
            if time == NEVER:
                break
        if time == NEVER:
            break
        if beat == 0:
            p[sink].began = time
        _reading(c, s, channel, time)
        _span(n, s, node, frame, time)
        moved = True
        p[sink].beat += 1
        if p[sink].beat == beats:
            if not n[node].per_batch:
                own_batch = frame // n[node].share
                s.sums[node, own_batch] = max(s.sums[node, own_batch], time)
            p[sink].beat = 0
            p[sink].frame += 1
    return moved


@njit(cache=True)
def _give(c: Rows, p: Rows, n: Rows, t: Tables, s: State, node: int, source: int, batch: int) -> bool:
    """Writes beats of frames at a source of a node that works at once; whether any.

    Where nothing waits inside it hands on what stands before it, else what it has read."""
    channel, moved = p[source].channel, False
    turns = p[source].turns
    while p[source].frame < n[node].frames:
        frame, beat = p[source].frame, p[source].beat
        if not _passes(t, frame, turns, batch):
            p[source].frame += 1
            continue
        ready = 0.0
        for sink in range(n[node].first, n[node].middle):
            if p[sink].kind != FRAME and not n[node].per_batch:
                continue
            if not _passes(t, frame, p[sink].turns, batch):
                continue
            need = _needs(c, p, n, t, node, source, sink, beat)
            if need == 0:
                continue
            comes = p[sink].channel
            at = _passing(t, frame, p[sink].turns, batch) * c[comes].read_beats + need - 1
            if at < c[comes].read:
                # of what is handed on, when it stood there
                time = _read_time(c, s, comes, at)
                if p[source].holds == 0:
                    time = max(arrival(c, s, comes, at), _read_time(c, s, comes, at - 1) + c[comes].read_step)
            elif p[source].holds == 0 and at == c[comes].read:
                time = arrival(c, s, comes, at)
                if time != NEVER:
                    time = max(time, _read_time(c, s, comes, at - 1) + c[comes].read_step)
            else:
                time = NEVER
            ready = max(ready, time)
        if ready == NEVER:
            break
        room = room_for(c, s, channel, c[channel].written)
        if room == NEVER:
            break
        time = _write(c, s, channel, ready + p[source].latency, room)
        _span(n, s, node, frame, time)
        moved = True
        p[source].beat += 1
        if p[source].beat == c[channel].write_beats:
            p[source].beat = 0
            p[source].frame += 1
    return moved


@njit(cache=True)
def _give_sums(c: Rows, p: Rows, n: Rows, s: State, node: int, source: int) -> bool:
    """Writes what a node gives once a batch, after the last beats that it read for that; whether any."""
    channel, moved = p[source].channel, False
    share = n[node].share
    while p[source].frame * share < n[node].frames:
        ready = s.sums[node, p[source].frame]
        for sink in range(n[node].first, n[node].middle):
            if p[sink].kind == FRAME and p[sink].frame < (p[source].frame + 1) * share:
                ready = NEVER
        if n[node].kind == STRIPS:
            done = (p[source].frame + 1) * share * n[node].strips - 1
            ready = s.times[n[node].ends_at + done % n[node].ends_size] if done < n[node].strip else NEVER
        if ready == NEVER:
            break
        room = room_for(c, s, channel, c[channel].written)
        if room == NEVER:
            break
        time = _write(c, s, channel, ready + p[source].latency, room)
        moved = True
        p[source].beat += 1
        if n[node].kind == STRIPS and p[source].beat == max(1, c[channel].write_beats - p[source].unit):
            on_time = ready + p[source].latency + (p[source].beat - 1) * c[channel].write_step
            n[node].clock = max(n[node].clock, ready + n[node].rest_cycles + time - on_time)
            n[node].left += 1
        if p[source].beat == c[channel].write_beats:
            p[source].beat = 0
            p[source].frame += 1
    return moved


@njit(cache=True)
def _take_free(c: Rows, p: Rows, n: Rows, s: State, node: int, sink: int) -> bool:
    """Reads what comes once a batch and finds room in the node: weights; whether any."""
    channel, moved = p[sink].channel, False
    if p[sink].use == BORROWED:
        return False
    while c[channel].read < c[channel].tensors * c[channel].read_beats:
        time = arrival(c, s, channel, c[channel].read)
        if time == NEVER:
            break
        time = max(time, _read_time(c, s, channel, c[channel].read - 1) + c[channel].read_step)
        # in the place of the version before the one before
        version = c[channel].read // c[channel].read_beats
        if n[node].places == 2 and version > 0:
            free = s.freed[node, version - 1]
            if n[node].beside >= 0:
                free = max(free, s.freed[n[node].beside, version - 1])
            if free == NEVER:
                break
            time = max(time, free + n[node].free_cycles)
        _reading(c, s, channel, time)
        moved = True
        if c[channel].read % c[channel].read_beats == 0:
            s.versions[channel, c[channel].read // c[channel].read_beats - 1] = time
    return moved


@njit(cache=True)
def _store(c: Rows, p: Rows, n: Rows, t: Tables, s: State, node: int, sink: int) -> bool:
    """Reads beats of a map of which an engine holds rows, where there is room for them; whether any."""
    channel, moved = p[sink].channel, False
    beats, strips = c[channel].read_beats, n[node].strips
    while p[sink].frame < n[node].frames:
        frame, beat = p[sink].frame, p[sink].beat
        time = arrival(c, s, channel, c[channel].read)
        if time == NEVER:
            break
        gate = frame * strips + t.gates[p[sink].table + beat]
        if gate >= n[node].strip:
            break
        time = max(time, _read_time(c, s, channel, c[channel].read - 1) + c[channel].read_step)
        for other in range(n[node].first, n[node].middle):
            if other != sink and p[other].kind == FRAME and p[other].use == STORED and p[sink].joined * p[other].joined:
                with_it = p[other].channel
                even = ((beat + 1) * c[with_it].read_beats + beats - 1) // beats
                time = max(time, _there(c, s, with_it, frame * c[with_it].read_beats + even - 1))
        if time == NEVER:
            break
        if gate >= 0:
            time = max(time, s.times[n[node].ends_at + gate % n[node].ends_size] + n[node].free_cycles)
        _reading(c, s, channel, time)
        _span(n, s, node, frame, time)
        moved = True
        p[sink].beat += 1
        if p[sink].beat == beats:
            p[sink].beat = 0
            p[sink].frame += 1
    return moved


@njit(cache=True)
def _begin(c: Rows, p: Rows, n: Rows, t: Tables, s: State, node: int, batch: int, staleness: int) -> bool:
    """Begins the next strip of an engine, if what it waits for is known."""
    frame, strip = n[node].strip // n[node].strips, n[node].strip % n[node].strips
    if frame >= n[node].frames:
        return False
    time = n[node].clock
    share = n[node].share
    if strip == 0:
        for source in range(n[node].middle, n[node].end):
            if p[source].kind == BATCH and p[source].channel >= 0 and n[node].left < frame // share:
                return False
            if n[node].reordered and p[source].kind == FRAME and frame > 1:
                held = (frame - 1) * c[p[source].channel].write_beats - 1
                if held >= c[p[source].channel].written:
                    return False
                time = max(time, _write_time(c, s, p[source].channel, held))
        version, came = _weights(p, n, t, s, node, frame, batch, staleness)
        if came == NEVER:
            return False
        beside = n[node].beside
        if version > n[node].version and n[node].load_cycles > 0.0:
            if beside >= 0 and n[beside].version >= version:
                time = max(time, n[beside].loaded)
            else:
                if beside >= 0:
                    its = n[beside].strip // n[beside].strips
                    if its < n[beside].frames:
                        wants, _ = _weights(p, n, t, s, beside, its, batch, staleness)
                        if wants < version:
                            return False
                    time = max(time, n[beside].clock)
                time += n[node].load_cycles
                n[node].loaded = time
        n[node].version = version
        time = max(time, came + n[node].weight_cycles)
    for sink in range(n[node].first, n[node].middle):
        if p[sink].kind != FRAME:
            continue
        channel = p[sink].channel
        count = t.counts[p[sink].table + c[channel].read_beats + strip]
        if p[sink].use == STORED:
            if count == 0:
                continue
            beat = frame * c[channel].read_beats + count - 1
            if beat >= c[channel].read:
                return False
            time = max(time, _read_time(c, s, channel, beat) + n[node].begin_cycles)
            continue
        before = t.counts[p[sink].table + c[channel].read_beats + strip - 1] if strip > 0 else 0
        if count > before:
            # the first word of what is taken along
            beat = frame * c[channel].read_beats + min(count, before + p[sink].unit) - 1
            if beat >= c[channel].read:
                return False
            time = max(time, _read_time(c, s, channel, beat) + n[node].along_cycles)
    n[node].begun, n[node].busy = time, 1
    for port in range(n[node].first, n[node].end):
        p[port].work = time
    return True


@njit(cache=True)
def _queue(c: Rows, p: Rows, n: Rows, s: State, node: int, sink: int) -> bool:
    """Reads beats of what an engine takes along, for which there is room in its queue; whether any."""
    channel, moved = p[sink].channel, False
    beats, unit = c[channel].read_beats, p[sink].unit
    words = (beats + unit - 1) // unit
    while p[sink].frame < n[node].frames:
        time = arrival(c, s, channel, c[channel].read)
        if time == NEVER:
            break
        time = max(time, _read_time(c, s, channel, c[channel].read - 1) + c[channel].read_step)
        before = p[sink].frame * words + p[sink].beat // unit - p[sink].holds
        if before >= p[sink].done:
            break
        if before >= 0:
            time = max(time, s.times[p[sink].words_at + before % p[sink].holds] + n[node].along_free)
        _reading(c, s, channel, time)
        _span(n, s, node, p[sink].frame, time)
        moved = True
        p[sink].beat += 1
        if p[sink].beat == beats:
            p[sink].beat = 0
            p[sink].frame += 1
    return moved


@njit(cache=True)
def _along(c: Rows, p: Rows, n: Rows, t: Tables, s: State, node: int, sink: int) -> int:
    """Works on the words that a strip takes along; 1 if any, 2 if all, 3 if both."""
    channel, moved, unit = p[sink].channel, 0, p[sink].unit
    beats = c[channel].read_beats
    words = (beats + unit - 1) // unit
    frame, strip = n[node].strip // n[node].strips, n[node].strip % n[node].strips
    counts = p[sink].table + beats
    before = t.counts[counts + strip - 1] if strip > 0 else 0
    count = t.counts[counts + strip]
    if count == before:
        return 2
    first, end = frame * words + before // unit, frame * words + (count + unit - 1) // unit
    step = t.cycles[n[node].cycles_at + strip] / (end - first)
    while p[sink].done < end:
        word = p[sink].done
        last = frame * beats + min(count, (word - frame * words + 1) * unit) - 1
        if last >= c[channel].read:
            return moved
        begins = _read_time(c, s, channel, last) + n[node].along_cycles
        p[sink].work = max(begins, p[sink].work + (step if word > first else 0.0))
        s.times[p[sink].words_at + word % p[sink].holds] = p[sink].work + step - 1.0
        p[sink].done += 1
        moved = 1
    return moved | 2


@njit(cache=True)
def _make(c: Rows, p: Rows, n: Rows, t: Tables, s: State, node: int, source: int) -> int:
    """Writes the results of the strip at work; as `_along`."""
    channel, moved = p[source].channel, 0
    strips, giving = n[node].strips, n[node].giving
    strip = n[node].strip % strips
    if strip < strips - giving:
        return 2
    frame = n[node].strip // strips
    beats = c[channel].write_beats // giving
    end = (strip - (strips - giving) + 1) * beats
    cycles = t.cycles[n[node].cycles_at + strip]
    while p[source].beat < end:
        at = p[source].beat - (end - beats)
        room = room_for(c, s, channel, c[channel].written)
        held = c[channel].written - p[source].holds
        if room == NEVER or held >= c[channel].written:
            return moved
        share = t.shares[p[source].table + at] - (t.shares[p[source].table + at - 1] if at else 0.0)
        made = max(p[source].work + share * cycles, _write_time(c, s, channel, held))
        p[source].work = made
        time = _write(c, s, channel, made + n[node].result_cycles, room)
        _span(n, s, node, frame, time)
        moved = 1
        p[source].beat += 1
    return moved | 2


@njit(cache=True)
def _give_reordered(c: Rows, p: Rows, n: Rows, s: State, node: int, source: int) -> bool:
    """Writes frames that are put in order first, after the last strip of each; whether any."""
    channel, moved = p[source].channel, False
    while p[source].frame < n[node].frames:
        done = (p[source].frame + 1) * n[node].strips - 1
        if done >= n[node].strip:
            break
        room = room_for(c, s, channel, c[channel].written)
        if room == NEVER:
            break
        ready = s.times[n[node].ends_at + done % n[node].ends_size] + n[node].result_cycles
        time = _write(c, s, channel, ready, room)
        _span(n, s, node, p[source].frame, time)
        moved = True
        p[source].beat += 1
        if p[source].beat == c[channel].write_beats:
            p[source].beat = 0
            p[source].frame += 1
    return moved


@njit(cache=True)
def _strip(c: Rows, p: Rows, n: Rows, t: Tables, s: State, node: int, batch: int, staleness: int) -> bool:
    """Goes on with the strip at work, or begins the next one; whether anything moved."""
    moved = False
    if not n[node].busy:
        if not _begin(c, p, n, t, s, node, batch, staleness):
            return False
        moved = True
    frame, strip = n[node].strip // n[node].strips, n[node].strip % n[node].strips
    end = n[node].begun + t.cycles[n[node].cycles_at + strip]
    done = True
    for sink in range(n[node].first, n[node].middle):
        if p[sink].kind == FRAME and p[sink].use == ALONG:
            found = _along(c, p, n, t, s, node, sink)
            moved |= found & 1 > 0
            done &= found & 2 > 0
            if p[sink].work > n[node].begun:
                end = max(end, p[sink].work + n[node].along_work)
    for source in range(n[node].middle, n[node].end):
        if p[source].kind == FRAME and p[source].channel >= 0 and not n[node].reordered:
            found = _make(c, p, n, t, s, node, source)
            moved |= found & 1 > 0
            done &= found & 2 > 0
            end = max(end, p[source].work)
    if not done:
        return moved
    s.times[n[node].ends_at + n[node].strip % n[node].ends_size] = end
    n[node].clock = end
    _span(n, s, node, frame, end)
    n[node].busy = 0
    n[node].strip += 1
    if strip == n[node].strips - 1:
        for port in range(n[node].first, n[node].end):
            if port >= n[node].middle and p[port].kind == FRAME and not n[node].reordered:
                p[port].beat = 0
        if frame % n[node].share == n[node].share - 1:
            n[node].clock = end + n[node].rest_cycles
        of_it = _of_training(t, frame, n[node].turns, batch)
        behind = _of_training(t, frame + 1, n[node].turns, batch)
        for past in range(max(0, (of_it - staleness) // batch), max(0, (behind - staleness) // batch)):
            if past < s.freed.shape[1]:
                s.freed[node, past] = end
    return True


@njit(cache=True)
def _host(c: Rows, p: Rows, n: Rows, s: State, node: int) -> bool:
    """Writes all that finds room, a beat a cycle; whether any."""
    moved = False
    for source in range(n[node].middle, n[node].end):
        channel = p[source].channel
        if channel < 0:
            continue
        while c[channel].written < c[channel].tensors * c[channel].write_beats:
            room = room_for(c, s, channel, c[channel].written)
            if room == NEVER:
                break
            frame = c[channel].written // c[channel].write_beats
            _span(n, s, node, frame, _write(c, s, channel, 0.0, room))
            moved = True
    return moved


@njit(cache=True)
def _advance(c: Rows, p: Rows, n: Rows, t: Tables, s: State, node: int, batch: int, staleness: int) -> bool:
    """Lets a node do all that is known; whether it did anything."""
    if n[node].kind == HOST:
        return _host(c, p, n, s, node)
    any_moved, moved = False, True
    while moved:
        moved = False
        for source in range(n[node].middle, n[node].end):
            if p[source].channel < 0:
                continue
            if p[source].kind == BATCH and not n[node].per_batch:
                moved |= _give_sums(c, p, n, s, node, source)
            elif n[node].kind == AT_ONCE:
                moved |= _give(c, p, n, t, s, node, source, batch)
            elif n[node].reordered:
                moved |= _give_reordered(c, p, n, s, node, source)
        for sink in range(n[node].first, n[node].middle):
            if p[sink].kind != FRAME and not n[node].per_batch:
                moved |= _take_free(c, p, n, s, node, sink)
            elif n[node].kind == AT_ONCE:
                moved |= _take(c, p, n, t, s, node, sink, batch, staleness)
            elif p[sink].use == ALONG:
                moved |= _queue(c, p, n, s, node, sink)
            elif p[sink].use == STORED:
                moved |= _store(c, p, n, t, s, node, sink)
        if n[node].kind == STRIPS:
            moved |= _strip(c, p, n, t, s, node, batch, staleness)
        any_moved |= moved
    return any_moved


@njit(cache=True)
def _word_ready(c: Rows, s: State, channel: int) -> float:
    """When the next word of a channel may leave; `NEVER` if that is not known yet."""
    word = c[channel].sent
    tensor, inside = word // c[channel].words, word % c[channel].words
    last = min((inside + 1) * c[channel].word, c[channel].elements)
    beat = tensor * c[channel].write_beats + (last - 1) // c[channel].write_lanes
    if beat >= c[channel].written:
        return NEVER
    ready = float(s.times[c[channel].write_at + beat % c[channel].write_size])
    missing = word + 1 - c[channel].credits
    if missing > 0:
        batches = (missing + c[channel].credit_batch - 1) // c[channel].credit_batch
        if batches > c[channel].repaid:
            return NEVER
        ready = max(ready, s.times[c[channel].credit_at + (batches - 1) % c[channel].credit_size])
    return ready


@njit(cache=True)
def _next_output(c: Rows, q: Rows, t: Tables, queue: int, word: int) -> int:
    """The output by which a word leaves that waits in a queue."""
    channel = word // 2
    return int(t.onward[q[queue].device, c[channel].source if word % 2 else c[channel].target])


@njit(cache=True)
def _passes_by(c: Rows, q: Rows, t: Tables, s: State, queue: int, output: int) -> float:
    """From when on the first word of a queue may pass by an output; `NEVER` if none is there, or it has another way."""
    if q[queue].gone == q[queue].came:
        return NEVER
    at = q[queue].at + q[queue].gone % q[queue].size
    if _next_output(c, q, t, queue, s.waiting_word[at]) != output:
        return NEVER
    return float(max(s.waiting_time[at], q[queue].free))


@njit(cache=True)
def _choose(
    c: Rows, q: Rows, t: Tables, s: State, first: int, count: int, twos: int, output: int, time: float
) -> tuple[int, float]:
    """The place of whose turn it is at a port, of those that have a word by then, channels or, before an ``output``,
    queues; -1: of none, and when one will have."""
    soonest = NEVER
    # the port, which is all that leaves
    s.asked[0], waiting = max(0, 2 * count - 2), 1
    while waiting > 0:
        waiting -= 1
        place = s.asked[waiting]
        if place >= count:
            two = twos + place - count
            s.asked[waiting] = t.sides[two, 1 - s.turns[two]]
            s.asked[waiting + 1] = t.sides[two, s.turns[two]]
            waiting += 2
            continue
        one = t.leaving[first + place]
        ready = _word_ready(c, s, one) if output < 0 else _passes_by(c, q, t, s, one, output)
        if ready <= time:
            return place, time
        soonest = min(soonest, ready)
    return -1, soonest


@njit(cache=True)
def _took_turn(t: Tables, s: State, into: int, twos: int, count: int, place: int) -> None:
    """At all twos of which one is a side it is the other's turn next."""
    for _ in range(count):
        two = t.into[into + place]
        if two < 0:
            break
        s.turns[twos + two] = int(t.sides[twos + two, 0] == place)
        place = count + two


@njit(cache=True)
def _arrive(c: Rows, s: State, channel: int, time: float, nodes: int, devices: int) -> None:
    """The next word of a channel is there."""
    word = c[channel].arrived
    s.times[c[channel].arrived_at + word % c[channel].arrived_size] = time
    c[channel].arrived = word + 1
    if c[channel].stored or c[channel].adapted:
        _push(s, time, nodes + devices + channel)
    _push(s, time, c[channel].reader)


@njit(cache=True)
def _repay(c: Rows, s: State, channel: int, time: float, nodes: int) -> None:
    """The next credits of a channel are back."""
    s.times[c[channel].credit_at + c[channel].repaid % c[channel].credit_size] = time
    c[channel].repaid += 1
    _push(s, time, nodes + c[channel].source)


@njit(cache=True)
def _enter(c: Rows, q: Rows, t: Tables, s: State, queue: int, word: int, time: float, outputs: int) -> None:
    """A word comes to a queue, from which it may go from then on; ``outputs``: where these begin in the heap."""
    at = q[queue].at + q[queue].came % q[queue].size
    s.waiting_time[at], s.waiting_word[at] = time, word
    q[queue].came += 1
    q[queue].held += 1 if word % 2 else c[word // 2].at_once
    if q[queue].came == q[queue].gone + 1:
        _push(s, max(time, q[queue].free), outputs + _next_output(c, q, t, queue, word))


@njit(cache=True)
def _serve(c: Rows, d: Rows, q: Rows, t: Tables, s: State, device: int, nodes: int, time: float) -> None:
    """A device's port sends a word, of the channels whose turn it is, if one is there."""
    queue = d[device].queue
    if queue >= 0 and q[queue].held >= q[queue].room:
        return
    time = max(time, d[device].send_free)
    first, twos = d[device].leaving_at, d[device].twos_at
    count = d[device].leaving_end - first
    place, soonest = _choose(c, q, t, s, first, count, twos, -1, time)
    if place < 0:
        if soonest != NEVER:
            _push(s, soonest, nodes + device)
        return
    _took_turn(t, s, d[device].into_at, twos, count, place)
    channel = t.leaving[first + place]
    word, target = c[channel].sent, c[channel].target
    d[device].send_free = time + c[channel].at_once / d[device].rate
    s.times[c[channel].sent_at + word % c[channel].sent_size] = time
    c[channel].sent = word + 1
    if queue >= 0:
        _enter(c, q, t, s, queue, 2 * channel, time, nodes + len(d) + len(c))
    else:
        there = max(time + c[channel].cycles, d[target].receive_free)
        d[target].receive_free = there + c[channel].at_once / d[target].rate
        _arrive(c, s, channel, there + c[channel].behind, nodes, len(d))
    _push(s, time, c[channel].writer)
    _push(s, d[device].send_free, nodes + device)


@njit(cache=True)
def _pass_on(c: Rows, d: Rows, o: Rows, q: Rows, t: Tables, s: State, output: int, nodes: int, time: float) -> None:
    """An output passes a word on, of the queues whose turn it is, if one is there and it finds room."""
    outputs, behind = nodes + len(d) + len(c), o[output].queue
    free = max(o[output].free, np.ceil(time - ROUNDED))
    if free > time:
        _push(s, free, outputs + output)
        return
    if behind >= 0 and q[behind].held >= q[behind].room:
        return
    first, twos = o[output].leaving_at, o[output].twos_at
    count = o[output].leaving_end - first
    place, soonest = _choose(c, q, t, s, first, count, twos, output, time)
    if place < 0:
        if soonest != NEVER:
            _push(s, soonest, outputs + output)
        return
    _took_turn(t, s, o[output].into_at, twos, count, place)
    queue = t.leaving[first + place]
    word = s.waiting_word[q[queue].at + q[queue].gone % q[queue].size]
    channel = word // 2
    words = 1 if word % 2 else c[channel].at_once
    q[queue].gone += 1
    q[queue].held -= words
    q[queue].free = time + words
    _push(s, time, q[queue].sender)
    if q[queue].gone < q[queue].came:
        at = q[queue].at + q[queue].gone % q[queue].size
        following = _next_output(c, q, t, queue, s.waiting_word[at])
        _push(s, max(s.waiting_time[at], q[queue].free), outputs + following)
    # in whole cycles; of two words that it holds one must have left before the next finds room
    leaves = max(time, np.ceil(o[output].due - ROUNDED))
    o[output].free, o[output].left = max(time + words, o[output].left), leaves
    o[output].due = max(o[output].due, leaves - SAVED) + words / o[output].rate
    o[output].passed += words
    _push(s, o[output].free, outputs + output)
    if behind >= 0:
        _enter(c, q, t, s, behind, word, leaves + o[output].cycles, outputs)
    elif word % 2:
        _repay(c, s, channel, leaves + c[channel].credits_behind, nodes)
    else:
        _arrive(c, s, channel, leaves + c[channel].behind, nodes, len(d))


@njit(cache=True)
def _freed(c: Rows, s: State, channel: int, word: int) -> float:
    """When the receiver of a channel had given a word on; `NEVER` if that is not known yet."""
    elements, arrived = c[channel].elements, -NEVER
    tensor, inside = word // c[channel].words, word % c[channel].words
    last = min((inside + 1) * c[channel].word, elements)
    if c[channel].stored or c[channel].adapted:
        if word >= c[channel].arrived:
            return NEVER
        arrived = float(s.times[c[channel].arrived_at + word % c[channel].arrived_size])
    if c[channel].stored:
        # the element whose place in DRAM it takes
        need = tensor * elements + last - c[channel].room
        if need <= 0:
            return arrived
        tensor, last = (need - 1) // elements, (need - 1) % elements + 1
    beat = tensor * c[channel].read_beats + (last - 1) // c[channel].read_lanes
    if c[channel].adapted and not c[channel].stored:
        # an adapter takes a word as soon as all beats without it were read
        beat = tensor * c[channel].read_beats + inside * c[channel].word // c[channel].read_lanes - 1
    if beat < 0:
        return arrived
    if beat >= c[channel].read:
        return NEVER
    return max(arrived, float(s.times[c[channel].read_at + beat % c[channel].read_size]))


@njit(cache=True)
def _credit(c: Rows, d: Rows, q: Rows, t: Tables, s: State, channel: int, nodes: int, time: float) -> None:
    """The receiver of a channel gives back credits of words that it has given on, if it is time for that."""
    freed = _freed(c, s, channel, (c[channel].returned + 1) * c[channel].credit_batch - 1)
    if freed == NEVER:
        return
    if freed > time:
        _push(s, freed, nodes + len(d) + channel)
        return
    source, target = c[channel].source, c[channel].target
    leaves = max(time, d[target].send_free)
    d[target].send_free = leaves + 1.0 / d[target].rate
    c[channel].returned += 1
    if d[target].queue >= 0:
        _enter(c, q, t, s, d[target].queue, 2 * channel + 1, leaves, nodes + len(d) + len(c))
    else:
        there = max(leaves + c[channel].cycles, d[source].receive_free)
        d[source].receive_free = there + 1.0 / d[source].rate
        _repay(c, s, channel, there + c[channel].credits_behind, nodes)
    _push(s, time, nodes + len(d) + channel)


@njit(cache=True)
def begin(n: Rows, s: State) -> None:
    """Everybody has a turn."""
    for node in range(len(n)):
        _push(s, 0.0, node)


@njit(cache=True)
def _wake(c: Rows, p: Rows, n: Rows, d: Rows, s: State, node: int) -> None:
    """Tells those at the other ends of a node's channels what it did since it was asked last."""
    nodes = len(n)
    for port in range(n[node].first, n[node].end):
        channel = p[port].channel
        if channel < 0 or p[port].use == BORROWED:
            continue
        if port < n[node].middle:
            told, p[port].told = p[port].told, c[channel].read
            if c[channel].read > told:
                first = _read_time(c, s, channel, told)
                _push(s, first, nodes + len(d) + channel if c[channel].word else c[channel].writer)
        else:
            told, p[port].told = p[port].told, c[channel].written
            if c[channel].written > told:
                first = _write_time(c, s, channel, told)
                if c[channel].word:
                    _push(s, first, nodes + c[channel].source)
                else:
                    _push(s, first + c[channel].latency, c[channel].reader)


@njit(cache=True)
def run(
    c: Rows, p: Rows, n: Rows, d: Rows, o: Rows, q: Rows, t: Tables, s: State, batch: int, staleness: int, most: int,
    watched: int, frames: int,
) -> int:  # fmt: skip
    """Lets what can happen, in so many turns at most, and until a node that is ``watched`` has taken so many frames;
    how many turns there were."""
    nodes, devices = len(n), len(d)
    turns = 0
    while s.length[0] and turns < most:
        time, who = _pop(s)
        if s.queued[who] != time:
            continue
        s.queued[who] = NEVER
        turns += 1
        if who >= nodes + devices + len(c):
            _pass_on(c, d, o, q, t, s, who - nodes - devices - len(c), nodes, time)
        elif who >= nodes + devices:
            _credit(c, d, q, t, s, who - nodes - devices, nodes, time)
        elif who >= nodes:
            _serve(c, d, q, t, s, who - nodes, nodes, time)
        elif _advance(c, p, n, t, s, who, batch, staleness):
            _wake(c, p, n, d, s, who)
            if n[who].beside >= 0:
                _push(s, time, n[who].beside)
            if who == watched and p[n[who].first].frame >= frames:
                break
    return turns
