"""When a layer's results leave, given when its inputs come: a recurrence over frames, without simulating a cycle.

A `Flow` says when each element of a tensor passes a port, kept at the first and the last beat of every row.  `Passage`
takes one layer through its frames in order.  What it knows of the layer is declared there: `Layer.required` and
`Layer.pipeline_cycles`, or of an engine that works strip by strip its `Strips`, rests at the end of a batch
(`drain_cycles`), loads of weights (`load_cycles`).  Within a frame nothing waits for room: FIFOs are deep enough for
the steady interval (`dagtrain.schedule.buffers`).

With a(n) the cycle at which element n has come, an engine of strips 0, 1, … in one frame has

    begin(i) = max(end(i - 1), a(stored(i)) + begin_cycles, a'(along(i - 1) + a word) + along_cycles,
                   weights + weight_cycles)
    end(i)   = max(begin(i) + cycles(i), a'(along(i)) + along_cycles + along_work)

where end(-1) is the end of the frame before, or of the engine's rest after the batch before, or load_cycles later when
it keeps one version of its weights and the frame wants the next one, counted from the end of the slower one of two
engines that keep it together; row i of its result has
left at end(i) + result_cycles.  Any other layer gives element n at max over its sinks of a(required(n)) +
pipeline_cycles.  No port passes more than a beat a cycle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce

import numpy as np
from numba import njit

from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.strips import Strips
from hdl.tensor import Port, Tensor

# before everything
LONG_AGO = -1e18
# ports whose marks, and layers whose needs, are remembered
KEPT_MARKS, KEPT_LAYERS = 1 << 12, 1 << 10


@dataclass(frozen=True)
class Flow:
    """When the elements of a tensor pass: cycles at some of them, evenly between."""

    # counts, ascending
    elements: FloatArray
    # by which so many have passed
    cycles: FloatArray

    @property
    def first(self) -> float:
        """The cycle of the first beat."""
        return float(self.cycles[0])

    @property
    def last(self) -> float:
        """The cycle of the last beat."""
        return float(self.cycles[-1])

    def at(self, elements: FloatArray) -> FloatArray:
        """When so many have passed."""
        if elements is self.elements:
            # at its own marks, which are above 0
            return self.cycles
        return _between(elements, self.elements, self.cycles)

    def later(self, cycles: float) -> Flow:
        """The same flow, later."""
        return Flow(self.elements, self.cycles + cycles)

    def scaled(self, factor: float) -> Flow:
        """The same flow in cycles of another clock, of which ``factor`` last as long as one."""
        return Flow(self.elements, self.cycles * factor)


@lru_cache(maxsize=KEPT_MARKS)
def marks(tensor: Tensor, lanes: int, turns: tuple[int, ...] = (), padding: int = 0) -> FloatArray:
    """The elements at which a flow is kept: the ends of the first beat, of the first pixel and of the last beat of
    every row, and those in its last pixel after which another part follows (`Layer.turns`); ports alike have the same
    array, which is never changed."""
    if tensor.kind.of_parameter:
        elements = tensor.elements + padding
        rows, within = 1, {min(lanes, elements), elements}
    else:
        rows, columns, channels = tensor.shape
        within = {min(lanes, columns * channels), channels, columns * channels}
        within |= {(columns - 1) * channels + turn for turn in turns}
    row = tensor.elements // rows
    found = np.array([start * row + count for start in range(rows) for count in sorted(within)], np.float64)
    found.flags.writeable = False
    return found


@dataclass
class Passing:
    """A port, and when its last beat passed."""

    port: Port
    # cycles that a beat holds the port
    beat_cycles: int = 1
    turns: tuple[int, ...] = ()
    last: float = LONG_AGO

    @cached_property
    def marks(self) -> FloatArray:
        """See `marks`."""
        return marks(self.port.tensor, self.port.lanes, self.turns, self.port.padding)

    @cached_property
    def _even(self) -> FloatArray:
        """Cycles from the first beat to those of the marks at full rate."""
        return (np.ceil(self.marks / self.port.lanes) - 1) * self.beat_cycles

    @property
    def full_rate_cycles(self) -> float:
        """From the first beat to the last one at full rate."""
        return float(self._even[-1])

    def passed_on(self, cycles: FloatArray) -> Flow:
        """The last tensor, as it passes where it is held up, later than it had without."""
        flow = Flow(self.marks, _one_beat_a_cycle(cycles, self._even, LONG_AGO))
        self.last = flow.last
        return flow

    def passed(self, cycles: FloatArray) -> Flow:
        """A tensor of which so many elements are offered by ``cycles``, at the marks, as it passes."""
        flow = Flow(self.marks, _one_beat_a_cycle(cycles, self._even, self.last + self.beat_cycles))
        self.last = flow.last
        return flow


@lru_cache(maxsize=KEPT_LAYERS)
def needs(layer: Layer) -> Mapping[str, Mapping[str, FloatArray]]:
    """Source of frames -> sink -> elements that must have come for those at the source's marks; layers alike have the
    same arrays, which are never changed."""
    found: dict[str, dict[str, FloatArray]] = {}
    for port in layer.sources:
        if not port.tensor.kind.per_batch:
            at = marks(port.tensor, port.lanes, layer.turns(port.name), port.padding)
            wanted = [layer.required(port.name, int(count)) for count in at]
            found[port.name] = {sink: np.array([need[sink] for need in wanted], np.float64) for sink in wanted[0]}
            for counts in found[port.name].values():
                counts.flags.writeable = False
    return found


@njit(cache=True)
def _between(counts: FloatArray, elements: FloatArray, cycles: FloatArray) -> FloatArray:
    """As `numpy.interp`, and long ago where nothing is wanted; fast where counts ascend."""
    found, last, here = np.empty(len(counts)), len(elements) - 1, 0
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
    return found


@njit(cache=True)
def _one_beat_a_cycle(offered: FloatArray, even: FloatArray, least: float) -> FloatArray:
    """When marks pass that are offered so, which take ``even`` cycles at full rate; the first beat at ``least`` or
    later."""
    found = np.empty(len(offered))
    for mark in range(len(offered)):
        least = max(least, offered[mark] - even[mark])
        found[mark] = least + even[mark]
    return found


@njit(cache=True)
def _one_after_another(
    cycles: FloatArray, there: FloatArray, through: FloatArray, clock: float
) -> tuple[FloatArray, FloatArray]:
    """When each strip begins and ends, from when the engine is free: see the recurrence of this module."""
    begins, ends = np.empty(len(cycles)), np.empty(len(cycles))
    for strip in range(len(cycles)):
        begins[strip] = max(clock, there[strip])
        ends[strip] = clock = max(begins[strip] + cycles[strip], through[strip])
    return begins, ends


@dataclass
class Passage:
    """One layer, frame after frame."""

    layer: Layer
    # the engine is free; the weights in use came; the last frame began
    free: float = LONG_AGO
    weights: float = LONG_AGO
    began: float = LONG_AGO
    # the other engine that reads the same place for its weights; the version in use was loaded
    beside: Passage | None = None
    loaded: float = LONG_AGO
    # whether the last frame waited for its weights when all else was there
    waited: bool = False
    ports: dict[str, Passing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # asked once: layers work it out anew, and every frame needs it
        self.strips = self.layer.strips
        self.works_per_batch = self.layer.works_per_batch
        self.sources = [(port, port.tensor.kind.per_batch) for port in self.layer.sources]
        self.weight_cycles, self.cycles_per_frame = self.layer.weight_cycles, self.layer.cycles_per_frame
        widths = self.strips.words if self.strips else {}
        for port in (*self.layer.sinks, *self.layer.sources):
            beat_cycles = max(1, port.lanes // widths.get(port.name, port.lanes))
            self.ports[port.name] = Passing(port, beat_cycles, self.layer.turns(port.name))

    def frame(self, offered: Mapping[str, Flow], weights: float = LONG_AGO, *, ends_batch: bool) -> dict[str, Flow]:
        """Flows of the sources, by port, of the next frame.

        ``offered``: at the sinks of frames, and with the last frame of a batch of gradients.
        ``weights``: the cycle at which the last weight of its version came.
        ``ends_batch``: the frame is its batch's last, with which go gradients and new weights."""
        taken = {name: self._taken(name, flow) for name, flow in offered.items()}
        if self.strips is None:
            return self._at_once(taken, weights + self.weight_cycles, ends_batch)
        return self._in_strips(self.strips, taken, weights, ends_batch)

    def hold(self, cycle: float) -> None:
        """The next frame begins no sooner."""
        self.free = max(self.free, cycle)
        self.began = max(self.began, cycle - self.cycles_per_frame)

    def host(self) -> dict[str, Flow]:
        """Flows of a layer without sinks: a host that always has the next beat."""
        return {
            port.name: self.ports[port.name].passed(np.zeros(len(self.ports[port.name].marks)))
            for port in self.layer.sources
        }

    def _taken(self, name: str, flow: Flow) -> Flow:
        passing = self.ports[name]
        return passing.passed(flow.at(passing.marks))

    @cached_property
    def _needs(self) -> Mapping[str, Mapping[str, FloatArray]]:
        """See `needs`."""
        return needs(self.layer)

    @cached_property
    def _strip_cycles(self) -> FloatArray:
        """Of the engine's work on each strip."""
        assert self.strips is not None
        return np.array(self.strips.cycles, np.float64)

    @cached_property
    def _slow_along(self) -> frozenset[str]:
        """Sinks taken along that pass in more cycles than the engine works: what it holds up is not made up for."""
        assert self.strips is not None
        work = sum(self.strips.cycles)
        return frozenset(sink for sink in self.strips.along if self.ports[sink].full_rate_cycles >= work)

    @cached_property
    def _latencies(self) -> dict[str, int]:
        """Source -> cycles from its elements' inputs, or its engine's begin, until they leave."""
        return {port.name: self.layer.latency_cycles(port.name) for port in self.layer.sources}

    @cached_property
    def _before(self) -> dict[str, FloatArray]:
        """Sink taken along -> elements of it that must be there when each strip begins."""
        strips = self.strips
        assert strips is not None
        return {
            sink: np.concatenate([[0.0], counts[:-1]]) + strips.words[sink] for sink, counts in strips.along.items()
        }

    def _at_once(self, taken: Mapping[str, Flow], ready: float, ends_batch: bool) -> dict[str, Flow]:
        made: dict[str, Flow] = {}
        # the engine's own work, where it takes longer than to pass the beats, begins no sooner than a frame later
        began = max(self.began + self.cycles_per_frame, ready)
        # with its first element of any source
        begins = math.inf
        for port, per_batch in self.sources:
            if not per_batch:
                # of what takes frames in turns, the one whose turn it is
                times = (taken[sink].at(count) for sink, count in self._needs[port.name].items() if sink in taken)
                offered = reduce(np.maximum, times)
                begins = min(begins, float(offered[0]))
                offered = np.maximum(offered, began) + self._latencies[port.name]
                made[port.name] = self.ports[port.name].passed(offered)
        if made:
            self.waited = ready > max(self.began + self.cycles_per_frame, begins)
            self.began = max(began, begins)
        last = max(flow.last for flow in taken.values())
        for port, per_batch in self.sources:
            if per_batch and ends_batch:
                # of a batch: with what comes once a batch, or after the last frame
                first = max(flow.first for flow in taken.values()) if self.works_per_batch else last
                passing = self.ports[port.name]
                made[port.name] = passing.passed(
                    np.linspace(first, last, len(passing.marks)) + self._latencies[port.name]
                )
        return made

    def _free_for(self, weights: float, load_cycles: int) -> float:
        """When the engine is free for a frame whose weights came then: a version that is loaded in the place of the one
        before comes when that is out of use, by both engines that read it."""
        if weights <= self.weights:
            return self.free
        if self.beside is not None and self.beside.weights >= weights:
            return max(self.free, self.beside.loaded)
        if load_cycles:
            self.loaded = load_cycles + max(self.free, self.beside.free if self.beside is not None else LONG_AGO)
            return self.loaded
        return self.free

    def _in_strips(
        self, strips: Strips, taken: Mapping[str, Flow], weights: float, ends_batch: bool
    ) -> dict[str, Flow]:
        free = self._free_for(weights, strips.load_cycles)
        clock = max(free, weights + self.weight_cycles)
        self.weights = weights
        there = np.full(len(strips.cycles), LONG_AGO)
        for sink, counts in strips.stored.items():
            there = np.maximum(there, taken[sink].at(counts) + strips.begin_cycles)
        through = np.full(len(strips.cycles), LONG_AGO)
        for sink, counts in strips.along.items():
            there = np.maximum(there, taken[sink].at(self._before[sink]) + strips.along_cycles)
            if clock > there[0] and sink in self._slow_along:
                taken = {**taken, sink: self._held_up(sink, taken[sink], strips, clock - strips.along_cycles)}
            through = np.maximum(through, taken[sink].at(counts) + strips.along_cycles + strips.along_work)
        self.waited = weights + self.weight_cycles > max(free, float(there[0]))
        begins, ends = _one_after_another(self._strip_cycles, there, through, clock)
        self.free = clock = float(ends[-1])
        made: dict[str, Flow] = {}
        for port, per_batch in self.sources:
            passing = self.ports[port.name]
            if not per_batch:
                made[port.name] = passing.passed(self._results(strips, port, begins, ends))
            elif ends_batch:
                made[port.name] = passing.passed(np.full(len(passing.marks), clock + strips.result_cycles))
        if ends_batch:
            self.free = clock + strips.rest_cycles
        return made

    def _held_up(self, sink: str, taken: Flow, strips: Strips, begins: float) -> Flow:
        """How a tensor is taken along by an engine that begins so late: what doesn't wait inside till then, behind
        that."""
        passing = self.ports[sink]
        behind = passing.marks - strips.along_words * strips.words[sink]
        late = np.where(behind > 0, begins + behind / passing.port.lanes * passing.beat_cycles, LONG_AGO)
        return passing.passed_on(np.maximum(taken.cycles, late))

    def _results(self, strips: Strips, port: Port, begins: FloatArray, ends: FloatArray) -> FloatArray:
        """When the marks of a source are offered, of its strips."""
        count = len(self.ports[port.name].marks)
        rows = port.tensor.shape[0]
        if strips.reordered:
            return np.full(count, ends[-1] + strips.result_cycles)
        word, channels = strips.words.get(port.name, port.lanes), port.tensor.shape[-1]
        # what is left of the last word when its first beat has left
        left = max(0, math.ceil((channels % word or word) / port.lanes) - 1)
        # in elements, the last word of a pixel as long as the others
        pixel = -(-channels // word) * word
        elements = port.tensor.elements // rows
        row = elements // channels * pixel
        if strips.parts:
            return self._results_of_parts(strips, port, begins, ends, (word, pixel, left))
        begins, ends = begins[-rows:, None], ends[-rows:, None]
        within = self.ports[port.name].marks[: count // rows]
        made = within // channels * pixel + np.ceil(within % channels / word) * word
        share = np.minimum(row, made) / row
        offered = begins + (ends - begins) * share + left * (within == elements) + strips.result_cycles
        return np.asarray(offered, np.float64).reshape(-1)

    def _results_of_parts(
        self, strips: Strips, port: Port, begins: FloatArray, ends: FloatArray, words: tuple[int, int, int]
    ) -> FloatArray:
        """`_results` of strips that are parts of rows.  ``words``: elements of a word, of a pixel's words, beats that
        are left of the last one."""
        (word, pixel, left), channels = words, port.tensor.shape[-1]
        elements = port.tensor.elements // strips.parts
        marks = self.ports[port.name].marks
        strip = (np.ceil(marks / elements) - 1).astype(int)
        within = marks - strip * elements
        part = elements // channels * pixel
        made = within // channels * pixel + np.ceil(within % channels / word) * word
        share = np.minimum(part, made) / part
        offered = begins[strip] + (ends - begins)[strip] * share + left * (within == elements) + strips.result_cycles
        return np.asarray(offered, np.float64)
