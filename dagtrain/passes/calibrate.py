"""Calibration: a binary point for every edge, from what really flows there in floating point on sample data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dagtrain.graph.executor import Array, Executor, Mode
from dagtrain.graph.ir import Graph, Node, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.formats import free_sources, propagate_formats
from dagtrain.passes.narrow_stashes import narrow_stashes
from dagtrain.passes.narrow_sums import narrow_sums
from dagtrain.passes.narrow_updates import narrow_updates
from dagtrain.passes.widths import SUM, Widths
from hdl.errors import DagtrainError
from hdl.fixed import Fixed, FloatArray
from hdl.layers.capabilities import Freezable
from hdl.layers.wiring.update import MOMENTUM_HEADROOM
from hdl.tensor import Kind

# bits of a whole number that float32 holds exactly
SINGLE_BITS = 24
# of a parameter that are rounded at a time
PART_BYTES = 1 << 22


class CalibrationError(DagtrainError):
    """Sample data from which no number format follows."""


def _headroom() -> dict[Kind, int]:
    # octaves by which peaks grow in a whole training of small networks of seven families (benchmarks/headroom.py)
    return {Kind.ACTIVATION: 3, Kind.STASH: 2, Kind.ERROR: 4, Kind.GRADIENT: 4, Kind.WEIGHT: 1}


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """How to choose formats."""

    # bits of a number, by kind and layer
    width: Widths = field(default_factory=lambda: Widths.parse(()))
    # bits kept free above the largest magnitude seen, by kind
    headroom: Mapping[Kind, int] = field(default_factory=_headroom)
    # weights are allowed to reach at least this magnitude, since many start at zero
    least_weight: float = 1.0
    # maps get at least this range: what is smaller in all of them is nothing beside a bias, and sums with one grow wide
    least_activation: float = 2.0**-16
    # inputs of a loss get at least this range: they grow until training is done, and cut off they would teach wrongly
    least_logit: float = 32.0
    # arithmetic of the reference: SINGLE where data are made up
    mode: Mode = Mode.REFERENCE


@graph_pass(Stage.TRAINING, Stage.TRAINING)
def calibrate(
    graph: Graph, batches: Iterable[Mapping[str, npt.ArrayLike]], options: CalibrationOptions | None = None
) -> Graph:
    """The training graph with formats fitted to ``batches`` and initial weights rounded onto their grid.

    ``batches`` are feeds of `Executor.step`, in values.  The reference trains on them, so errors and
    gradients are seen as they are when training begins.
    1. A free source of a kind gets the finest format whose range holds the largest magnitude seen, times
       2**headroom; sinks and formats that follow from it change along (`propagate_formats`).  Maps, weights, and
       what comes between the last matrix and a loss, get at least the range that the options name; what a layer holds
       counts as a weight, too; what it can only hold gets the finest format that has room for it.  A gradient whose
       elements the recipe clips needs no room for more, but where its sum has so few bits that it might wrap.
    2. An edge that stayed zero keeps its format.
    3. A port narrower or wider than its kind's width by its layer's choice (a mask, a counter) is not free.
    4. Activations wait for the way back in the bits that the options name for stashes (`narrow_stashes`), and sums of
       gradients, masters and momenta have those for them (`narrow_sums`, `narrow_updates`).
    5. What a layer takes from the first data that it meets (`Meaning.settled`) it takes from the first batch, unless an
       earlier training left it.
    Raises `CalibrationError` when there are no batches or a value is not finite."""
    chosen_options = options or CalibrationOptions()
    chosen_options.width.check(node.whole for node in graph.nodes)
    peaks, settled = _observed(graph, batches, chosen_options.mode)
    graph = replace(graph, carried=settled)
    logits = set(_logits(graph))
    clipped = _clipped(graph, chosen_options) if graph.recipe.clip else None
    chosen = {}
    for node in graph.nodes:
        for port in free_sources(node.layer):
            if port not in node.outputs:
                continue
            edge = node.outputs[port]
            tensor = graph.tensor(edge)
            peak = peaks[edge]
            if tensor.kind is Kind.WEIGHT:
                peak = max(peak, _peak(graph.parameters[node.parameters[port]]), chosen_options.least_weight)
            if tensor.kind is Kind.ACTIVATION and peak > 0:
                peak = max(peak, chosen_options.least_activation)
            if edge in logits:
                peak = max(peak, chosen_options.least_logit / 2.0 ** chosen_options.headroom[tensor.kind])
            if peak > 0:
                width = chosen_options.width.of(node.whole, tensor.kind)
                headroom = chosen_options.headroom[tensor.kind]
                chosen[edge] = fitting(peak, width, headroom, signed=tensor.fixed.signed)
                sums = chosen_options.width.chosen_beside(node.whole, SUM)
                if tensor.kind is Kind.GRADIENT and clipped is not None and sums is None:
                    finer = fitting(clipped, width, 0, signed=tensor.fixed.signed)
                    chosen[edge] = max(chosen[edge], finer, key=lambda fixed: fixed.fraction_bits)
    held = _with_held_formats(graph, chosen_options)
    fitted = propagate_formats.run(held, chosen)
    calibrated = fitted
    for narrow in (narrow_stashes, narrow_sums, narrow_updates):
        calibrated = narrow.run(calibrated, chosen_options.width)
    return replace(calibrated, parameters=_on_grid(calibrated))


def _with_held_formats(graph: Graph, options: CalibrationOptions) -> Graph:
    """The graph with formats for what layers hold."""

    def fitted(node: Node) -> Node:
        weight = isinstance(node.layer, Freezable)
        least, headroom = (options.least_weight, options.headroom[Kind.WEIGHT]) if weight else (0.0, 0)
        width, formats = options.width.of(node.whole, Kind.WEIGHT), {}
        for port in node.layer.held_parameters:
            peak = max(_peak(graph.parameters[node.parameters[port.name]]), least)
            if peak > 0:
                formats[port.name] = fitting(peak, width, headroom, signed=port.tensor.fixed.signed)
        return replace(node, layer=node.layer.with_formats(formats)) if formats else node

    return replace(graph, nodes=tuple(map(fitted, graph.nodes)))


def _clipped(graph: Graph, options: CalibrationOptions) -> float:
    """The largest sum of a gradient over a batch that anybody can tell from a larger one; a momentum, which has
    `MOMENTUM_HEADROOM` octaves more, holds what such gradients and the decay of weights come to."""
    recipe = graph.recipe
    weight = max([options.least_weight, *map(_peak, graph.parameters.values())]) * 2.0 ** options.headroom[Kind.WEIGHT]
    collected = (recipe.clip + recipe.weight_decay * weight) / (1 - recipe.momentum)
    return recipe.batch * max(recipe.clip, collected / 2.0**MOMENTUM_HEADROOM)


def fitting(peak: float, width: int, headroom: int, *, signed: bool) -> Fixed:
    """The finest format of so many bits whose range holds ``peak * 2**headroom``."""
    integer_bits = math.floor(math.log2(peak)) + 1 + headroom
    return Fixed(width, width - signed - integer_bits, signed)


def _logits(graph: Graph) -> Iterator[str]:
    """Edges from the last layer with a weight matrix to a loss."""
    for loss in graph.nodes:
        if not any(port.tensor.kind is Kind.ERROR for port in loss.layer.sources):
            continue
        node = loss
        while len(maps := [port.name for port in node.layer.sinks if port.tensor.kind is Kind.ACTIVATION]) == 1:
            edge = node.inputs[maps[0]]
            yield edge
            node = graph.producers[edge][0]
            if any(len(shape) > 1 for shape in node.layer.parameter_shapes().values()):
                break


def _observed(
    graph: Graph, batches: Iterable[Mapping[str, npt.ArrayLike]], mode: Mode
) -> tuple[dict[str, float], dict[str, Mapping[str, FloatArray]]]:
    """(the largest magnitude on every edge while the reference trains, by edge; what is carried into the training, by
    node)."""
    peaks = dict.fromkeys(graph.producers, 0.0)
    carried = dict(graph.carried)

    def observe(edge: str, array: Array) -> None:
        peak = _peak(array)
        if not math.isfinite(peak):
            raise CalibrationError(
                f"edge {edge} is not finite in batch {executor.batches} of the calibration",
                "check the data's scale and the learning rate",
            )
        peaks[edge] = max(peaks[edge], peak)
        if executor.batches:
            return
        for node, port in graph.consumers[edge]:
            # its first batch is still to come
            if node.name not in carried and (settled := node.layer.settled({port.name: array})):
                carried[node.name] = settled
                executor.states[node.name] = node.layer.start_reference({**graph.initial(node), **settled})

    executor = Executor(graph, mode)
    left = iter(batches)
    feeds = next(left, None)
    while feeds is not None:
        further = next(left, None)
        executor.step(feeds, observe, last=further is None)
        feeds = further
    if not executor.batches:
        raise CalibrationError(f"graph {graph.name} can't be calibrated without data", "give at least one batch")
    return peaks, carried


def _peak(array: npt.ArrayLike) -> float:
    values = np.asarray(array)
    # of two reductions, since magnitudes would be as large again
    return float(np.maximum(values.max(initial=0.0), -values.min(initial=0.0)))


def _on_grid(graph: Graph) -> dict[str, FloatArray]:
    """Parameters rounded to the formats of the updates that write them, or the layers that hold them."""
    rounded = dict(graph.parameters)
    for node in graph.nodes:
        held = {port.name for port in node.layer.held_parameters}
        for port, key in node.parameters.items():
            if port in node.outputs or port in held:
                fixed = node.layer.port(port).tensor.fixed
                rounded[key] = _rounded(graph.parameters[key], fixed)
    return rounded


def _rounded(values: FloatArray, fixed: Fixed) -> FloatArray:
    """Values on the grid of a format; in 32 bits where they had no more, since as few hold a code."""
    made = np.empty(values.shape, values.dtype if fixed.width <= SINGLE_BITS else np.float64)
    # part by part: codes and what they decode to take 64 bits each
    parts = 1 + values.nbytes // PART_BYTES
    for given, part in zip(np.array_split(values, parts), np.array_split(made, parts), strict=True):
        part[...] = fixed.decode(fixed.encode(given))
    return made
