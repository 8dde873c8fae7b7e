"""Runs a graph batch by batch: the meaning of every node in topological order, exactly or in floating point.

All timing is gone: because circuits talk through streams only and read them in a fixed order, this gives the
same bits as any timing of the hardware (see `hdl.layers.base`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dagtrain.graph.ir import Graph, GraphError, Node, is_delayed
from dagtrain.graph.stores import images_of
from hdl.fixed import Fixed, FloatArray
from hdl.layers.base import Layer
from hdl.layers.capabilities import without_staleness
from hdl.layers.meaning import Meaning, State
from hdl.tensor import Kind, Port

Array = npt.NDArray[Any]
Observer = Callable[[str, Array], None]


class Mode(Enum):
    """What an executor computes."""

    # integer codes, every bit as the hardware
    GOLDEN = "golden"
    # float64 values, no rounding
    REFERENCE = "reference"
    # the same in float32: half the memory and time, for magnitudes
    SINGLE = "single"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the arrays on edges."""
        return np.dtype({Mode.GOLDEN: np.int64, Mode.REFERENCE: np.float64, Mode.SINGLE: np.float32}[self])


@dataclass(frozen=True)
class Action:
    """One node, prepared: which arrays it reads, writes, and which nobody needs after it."""

    node: Node
    # sink -> edge
    inputs: tuple[tuple[str, str], ...]
    # sink -> weight slot, read one batch after it was written
    weights: tuple[tuple[str, str], ...]
    # source -> edge
    outputs: tuple[tuple[str, str], ...]
    # edges that are weight slots of delayed readers
    slots: tuple[str, ...]
    # edges whose last reader this is
    release: tuple[str, ...]

    @cached_property
    def is_input(self) -> bool:
        """Whether the host feeds it."""
        return not self.node.layer.sinks

    @cached_property
    def frame_sinks(self) -> tuple[str, ...]:
        """Sinks that take a tensor with every frame."""
        layer = self.node.layer
        return tuple(sink for sink, _ in self.inputs if not layer.port(sink).tensor.kind.per_batch)

    @cached_property
    def is_output(self) -> bool:
        """Whether the host reads it."""
        return not self.node.layer.sources


class Executor:
    """Executes a training, streaming or forward graph.

    Per-frame arrays are ``(frames, height, width, channels)``; weights and gradients have their parameter's shape.
    GOLDEN works on int64 codes, the others on values.  Stores, and edges to and from them, have no meaning of their own
    (`Graph.computing`).  Weight edges are read one batch after they were
    written: at batch ``n`` an engine gets version ``n``, the initial weights being version 0.

    A subclass may do some of the ``nodes`` alone, in a topological order of its own, and see to it that what others
    make arrives (`_fetch`, `_hand_on`)."""

    def __init__(self, graph: Graph, mode: Mode = Mode.GOLDEN, nodes: Sequence[str] | None = None) -> None:
        self.graph = graph
        self.mode = mode
        # of each node, after the batches so far
        self.states: dict[str, State] = {}
        # weights that engines read at the next batch, by edge (by ``node.sink`` where a forward graph has no edge)
        self.weights: dict[str, Array] = {}
        # batches done, those of an earlier training included
        self.batches = graph.begun
        # what layers start from
        self._given = graph
        if mode is not Mode.GOLDEN:
            values = {key: np.asarray(value, mode.dtype) for key, value in graph.parameters.items()}
            self._given = replace(graph, parameters=values)
        self._actions = _plan(graph.computing, nodes)
        self._copied = copied_weights(graph.computing)
        for action in self._actions:
            self._start(action)
        self._feeds = {action.node.name: action.node.layer.sources[0] for action in self._actions if action.is_input}

    def images(self, node: str) -> dict[str, list[int]]:
        """`Layer.images` of a node as it stands; of a store, of what the layer whose memory it is has there."""
        return images_of(self.graph, self.graph.by_name[node], self.states)

    def step(
        self,
        feeds: Mapping[str, npt.ArrayLike],
        observe: Observer | None = None,
        instead: Mapping[str, Array] | None = None,
        *,
        last: bool = False,
    ) -> dict[str, Array]:
        """One batch: values by host input in, arrays (codes or values) by host output out.

        ``feeds`` are values, not codes; GOLDEN rounds them into the input's format.  ``observe`` sees every edge
        with its array as it is made.  Readers of an edge in ``instead`` get the array there, not the one that was made.
        After the ``last`` one nothing is left for another: what nodes and weights become is let go at once.
        Changes the states; raises `GraphError` on missing or misshapen feeds."""
        results = self._step(self._encode(feeds), observe, instead, last)
        self.batches += 1
        self._check_copies()
        return results

    def _step(
        self, given: Mapping[str, Array], observe: Observer | None, instead: Mapping[str, Array] | None, last: bool
    ) -> dict[str, Array]:
        """`step` of host inputs ``given``, but for the count."""
        edges: dict[str, Array] = {}
        results: dict[str, Array] = {}
        arriving: dict[str, Array] = {}
        for action in self._actions:
            node = action.node
            self._fetch(action, edges)
            if action.is_input:
                made: Mapping[str, Array] = {action.outputs[0][0]: given[node.name]}
            elif action.is_output:
                results[node.name] = edges[action.inputs[0][1]]
                made = {}
            else:
                made = self._call(node.layer, node.layer, self.states[node.name], self._inputs(action, edges))
            for source, edge in action.outputs:
                edges[edge] = made[source]
                if observe is not None:
                    observe(edge, made[source])
                if instead is not None and edge in instead:
                    edges[edge] = instead[edge]
                self._hand_on(edge, edges[edge])
            # arrays are as large as the maps: none is held while the next node works
            made = {}
            if last:
                self.states.pop(node.name, None)
            else:
                for edge in action.slots:
                    arriving[edge] = edges[edge]
            for edge in action.release:
                del edges[edge]
        self.weights.update(arriving)
        return results

    def _check_copies(self) -> None:
        """Copies that learn apart have equal weights after every batch."""
        if self.mode is not Mode.GOLDEN:
            return
        for key, (first, *others) in self._copied.items():
            weights = self.weights[first]
            # forks give one array to all
            others = [slot for slot in others if self.weights[slot] is not weights]
            apart = [slot for slot in others if not np.array_equal(self.weights[slot], weights)]
            if apart:
                raise GraphError(f"copies of {key} differ after batch {self.batches}: {first} and {', '.join(apart)}")

    def evaluate(self, feeds: Mapping[str, npt.ArrayLike], observe: Observer | None = None) -> dict[str, Array]:
        """As `step`, without learning: every frame with the newest weights and the statistics as they stand.

        Only nodes that a host output depends on work, each as `Layer.evaluating` says; no state changes.  ``observe``
        sees the edges between them."""
        given = self._encode(feeds)
        return self._evaluate(given, max(map(len, given.values())), observe)

    def _evaluate(self, given: Mapping[str, Array], frames: int, observe: Observer | None) -> dict[str, Array]:
        """`evaluate` of ``frames`` frames, those of host inputs ``given``."""
        edges: dict[str, Array] = {}
        results: dict[str, Array] = {}
        for action, layer in self._evaluation:
            name = action.node.name
            self._fetch(action, edges)
            if action.is_input:
                edges[action.outputs[0][1]] = given[name]
            elif action.is_output:
                results[name] = edges[action.inputs[0][1]]
            else:
                inputs = self._inputs(action, edges)
                if any(len(inputs[sink]) for sink in action.frame_sinks):
                    made = self._call(layer, *layer.evaluating(self.states[name], frames), inputs)
                else:
                    # a copy, of fewer frames than there are copies
                    made = self._nothing(layer)
                for source, edge in action.outputs:
                    edges[edge] = made[source]
                    if observe is not None:
                        observe(edge, made[source])
            for _, edge in action.outputs:
                self._hand_on(edge, edges[edge])
        return results

    def _fetch(self, action: Action, edges: dict[str, Array]) -> None:
        """Put what a node reads, and others make, where it reads it."""

    def _hand_on(self, edge: str, array: Array) -> None:
        """Give others what has been made here."""

    @cached_property
    def _evaluation(self) -> list[tuple[Action, Layer]]:
        """Nodes behind the host outputs, with layers that know no staleness."""
        needed = judging(self.graph.computing)
        actions = (action for action in self._actions if action.node.name in needed)
        return [(action, without_staleness(action.node.layer)) for action in actions]

    def snapshot(self) -> tuple[dict[str, State], dict[str, Array]]:
        """(state of each node, weights that engines read at the next batch) after the batches so far."""
        return self.states, self.weights

    def restore(self, states: dict[str, State], weights: dict[str, Array], batches: int) -> None:
        """Go on from what `snapshot` gave behind so many batches."""
        self.states, self.weights, self.batches = states, weights, batches

    def parameters(self) -> dict[str, FloatArray]:
        """Values of all parameters after the batches so far, by key."""
        values: dict[str, FloatArray] = {}
        for action in self._actions:
            for port in action.node.layer.held_parameters:
                key = action.node.parameters[port.name]
                values[key] = self._decode(port, self._array(port.tensor.fixed, self.graph.parameters[key]))
            for sink, slot in action.weights:
                port = action.node.layer.port(sink)
                values[action.node.parameters[sink]] = self._decode(port, self.weights[slot])
        return values

    def _nothing(self, layer: Layer) -> Mapping[str, Array]:
        """What a layer makes of no frames."""
        return {port.name: np.empty((0, *port.tensor.shape), self.mode.dtype) for port in layer.sources}

    def _inputs(self, action: Action, edges: Mapping[str, Array]) -> dict[str, Array]:
        """What a node reads, by sink."""
        inputs = {sink: edges[edge] for sink, edge in action.inputs}
        for sink, slot in action.weights:
            inputs[sink] = self.weights[slot]
        return inputs

    def _call(self, of: Layer, layer: Meaning, state: State, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """What ``layer`` makes, which may stand for ``of``."""
        call: Any = layer.golden if self.mode is Mode.GOLDEN else layer.reference
        made: Mapping[str, Array] = call(state, inputs)
        if self.mode is Mode.SINGLE:
            # constants of a layer may be float64, and what is made with them
            made = {source: np.asarray(array, _single(of, source)) for source, array in made.items()}
        return made

    def _start(self, action: Action) -> None:
        node = action.node
        values = self._given.initial(node)
        start = node.layer.start if self.mode is Mode.GOLDEN else node.layer.start_reference
        self.states[node.name] = start(values)
        for sink, slot in action.weights:
            if slot not in self.weights:
                self.weights[slot] = self._array(node.layer.port(sink).tensor.fixed, values[sink])

    def _array(self, fixed: Fixed, values: npt.ArrayLike) -> Array:
        return fixed.encode(values) if self.mode is Mode.GOLDEN else np.asarray(values, self.mode.dtype)

    def _decode(self, port: Port, array: Array) -> FloatArray:
        return port.tensor.fixed.decode(array) if self.mode is Mode.GOLDEN else array

    def _encode(self, feeds: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """Arrays of all host inputs, checked."""
        problems = [f"unknown host input {name}" for name in feeds.keys() - self._feeds.keys()]
        problems += [f"no values for host input {name}" for name in self._feeds.keys() - feeds.keys()]
        arrays: dict[str, Array] = {}
        for name, port in self._feeds.items():
            if name in feeds:
                arrays[name] = self._array(port.tensor.fixed, feeds[name])
                if arrays[name].shape[1:] != port.tensor.shape:
                    problems.append(f"host input {name} takes (frames, *{port.tensor.shape}), not {arrays[name].shape}")
        if len({len(array) for array in arrays.values() if array.ndim}) > 1:
            counts = ", ".join(f"{name}: {len(array)}" for name, array in arrays.items())
            problems.append(f"host inputs have different numbers of frames: {counts}")
        if problems:
            raise GraphError.listing(f"graph {self.graph.name} can't run", problems)
        return arrays


def _single(layer: Layer, source: str) -> npt.DTypeLike:
    """Of what a layer makes in float32: masks, which are 0 and 1 and wait for the way back, take a byte."""
    fixed = layer.port(source).tensor.fixed
    return np.uint8 if (fixed.width, fixed.fraction_bits, fixed.signed) == (1, 0, False) else np.float32


def judging(graph: Graph) -> set[str]:
    """The nodes that host outputs depend on within a batch: those that `Executor.evaluate` asks."""
    edges: set[str] = set()
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if not node.layer.sources or not edges.isdisjoint(node.outputs.values()):
            read = {node.layer.port(sink): edge for sink, edge in node.inputs.items()}
            edges.update(edge for port, edge in read.items() if not is_delayed(node.layer, port))
            found.add(node.name)
    return found


def _plan(graph: Graph, names: Sequence[str] | None) -> tuple[Action, ...]:
    """Actions of the nodes with these names, in their order, or of all, in topological order, with every edge released
    after its last reader among them."""
    nodes = graph.nodes if names is None else [graph.by_name[name] for name in names]
    last: dict[str, str] = {}
    slots: set[str] = set()
    for node in nodes:
        last.update(dict.fromkeys(node.outputs.values(), node.name))
    for node in nodes:
        for sink, edge in node.inputs.items():
            if is_delayed(node.layer, node.layer.port(sink)):
                slots.add(edge)
            else:
                last[edge] = node.name
    release: dict[str, list[str]] = {}
    for edge, name in last.items():
        release.setdefault(name, []).append(edge)
    return tuple(_action(node, slots, tuple(release.get(node.name, ()))) for node in nodes)


def copied_weights(graph: Graph) -> dict[str, list[str]]:
    """Parameter -> slots of its weights, where there are several."""
    found: dict[str, dict[str, None]] = {}
    for node in graph.nodes:
        for sink, edge in node.inputs.items():
            if is_delayed(node.layer, node.layer.port(sink)):
                found.setdefault(node.parameters[sink], {})[edge] = None
    return {key: list(slots) for key, slots in found.items() if len(slots) > 1}


def weight_slots(graph: Graph) -> list[str]:
    """Names of all weights that engines read, in the order of `Executor.weights`."""
    return list(dict.fromkeys(slot for action in _plan(graph.computing, None) for _, slot in action.weights))


def _action(node: Node, slots: set[str], release: tuple[str, ...]) -> Action:
    inputs: list[tuple[str, str]] = []
    weights: list[tuple[str, str]] = []
    for port in node.layer.sinks:
        edge = node.inputs.get(port.name)
        if edge is not None and not is_delayed(node.layer, port):
            inputs.append((port.name, edge))
        elif port.tensor.kind is Kind.WEIGHT:
            weights.append((port.name, edge or f"{node.name}.{port.name}"))
    written = tuple(edge for edge in node.outputs.values() if edge in slots)
    return Action(node, tuple(inputs), tuple(weights), tuple(node.outputs.items()), written, release)
