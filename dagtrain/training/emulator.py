"""Training without hardware: the same arithmetic, bit for bit, as fast as NumPy goes.

The meaning is `dagtrain.graph.executor`'s; this is the loop around it: epochs, evaluation, metrics, checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagtrain.graph.executor import Array, Executor, Mode
from dagtrain.graph.heads import main_loss
from dagtrain.graph.ir import Graph, GraphError
from dagtrain.graph.storage import StorageError, load_arrays, save_arrays
from dagtrain.training.data import Dataset, Draw
from dagtrain.training.feeds import host_ports
from dagtrain.training.states import fits, pack, unpack
from hdl.engine.codec.bursts import Bursts
from hdl.engine.loss.numbers import METRICS
from hdl.fixed import FloatArray, IntArray
from hdl.layers.meaning import State
from hdl.records import parse_json

# of links for which it is measured how few words they take: the bursts that INCEPTIONN has
RATIO_WORD_BITS = 256
# raised whenever the meaning of a checkpoint changes
CHECKPOINT_SCHEMA = 2


@dataclass(frozen=True)
class Metrics:
    """Means over some frames."""

    frames: int
    # cross-entropy, nats
    loss: float
    # fraction of frames whose largest probability is the label's
    accuracy: float

    def __add__(self, other: Metrics) -> Metrics:
        frames = self.frames + other.frames
        if not frames:
            return self
        share = other.frames / frames
        return Metrics(
            frames,
            self.loss * (1 - share) + other.loss * share,
            self.accuracy * (1 - share) + other.accuracy * share,
        )

    def __str__(self) -> str:
        return f"loss {self.loss:.4f}, accuracy {self.accuracy:.2%} of {self.frames}"


NO_METRICS = Metrics(0, 0.0, 0.0)


@dataclass(frozen=True)
class Checkpoint:
    """What a file has of a training."""

    # as `Executor.snapshot` gives them
    states: dict[str, State]
    weights: dict[str, Array]
    batches: int
    # of `Emulator.save`
    record: Any


class Emulator:
    """Trains a graph on images.  The same graph, data and seed give the same bits, whether resumed or not.

    The graph has one image input, one label input and one output, that of the loss.  Raises `GraphError` else."""

    def __init__(self, graph: Graph, mode: Mode = Mode.GOLDEN, executor: Executor | None = None) -> None:
        """``executor``: of this graph and mode, where it is of a kind of its own."""
        self.graph = graph
        self.executor = executor or Executor(graph, mode)
        self.image, self.label, self.output = host_ports(graph)
        self._scores = main_loss(graph).inputs["x"]
        # edge -> bursts in which a link would carry it, of those that layers code
        self._coded = coded_edges(graph) if mode is Mode.GOLDEN else {}
        # bits of what was coded to those of its words, of the last batch; None: nothing was
        self.ratio: float | None = None

    def feeds(self, data: Dataset, index: IntArray, draw: Draw | None = None) -> dict[str, FloatArray]:
        """What `Executor.step` takes for the images at ``index``; ``draw``: augmented by that."""
        labels = data.classes(index).astype(np.float64).reshape(-1, 1, 1, 1)
        return {self.image: data.frames(index, draw), self.label: labels}

    def train_batch(self, data: Dataset, index: IntArray, draw: Draw | None = None) -> Metrics:
        """One batch of the recipe's size and its update; ``draw``: its images augmented by that."""
        if len(index) != self.graph.recipe.batch:
            raise GraphError(f"a batch of this recipe has {self.graph.recipe.batch} frames, not {len(index)}")
        if not self._coded:
            return self._metrics(self.executor.step(self.feeds(data, index, draw)))
        words: dict[str, int] = {}

        def watch(edge: str, array: Array) -> None:
            if edge in self._coded:
                words[edge] = self._coded[edge].words(array)

        results = self.executor.step(self.feeds(data, index, draw), watch)
        plain = sum(bursts.elements * bursts.codec.width for bursts in self._coded.values())
        coded = sum(count * self._coded[edge].burst_bits for edge, count in words.items())
        self.ratio = plain / coded
        return self._metrics(results)

    def train_epoch(
        self, data: Dataset, seed: int, epoch: int, after_batch: Callable[[int, Metrics], None] | None = None
    ) -> Metrics:
        """All full batches of ``data`` in the order of (seed, epoch); ``after_batch`` gets their number and metrics.

        Batches that a checkpoint has behind it are not done again: epoch e consists of batches
        e * n … (e + 1) * n - 1, n full batches fitting into the data."""
        total = NO_METRICS
        size = self.graph.recipe.batch
        first = epoch * (len(data) // size)
        for number, index in enumerate(data.batches(size, seed, epoch), first):
            if number < self.executor.batches:
                continue
            metrics = self.train_batch(data, index, (epoch, number))
            total += metrics
            if after_batch is not None:
                after_batch(number, metrics)
        return total

    def evaluate(self, data: Dataset, frames: int = 256) -> Metrics:
        """All of ``data``, ``frames`` at once: newest weights, frozen statistics, no change (`Executor.evaluate`)."""
        return self.judge(data, frames)[0]

    def judge(self, data: Dataset, frames: int = 256) -> tuple[Metrics, FloatArray]:
        """As `evaluate`, with the scores (frames, classes) that the loss read."""
        total = NO_METRICS
        scores: list[FloatArray] = []
        fixed = self.graph.tensor(self._scores).fixed

        def watch(edge: str, array: Array) -> None:
            if edge == self._scores:
                values = fixed.decode(array) if self.executor.mode is Mode.GOLDEN else array
                scores.append(values.reshape(len(array), -1))

        for start in range(0, len(data), frames):
            index = np.arange(start, min(start + frames, len(data)))
            total += self._metrics(self.executor.evaluate(self.feeds(data, index), watch))
        return total, np.concatenate(scores)

    def _metrics(self, results: Mapping[str, Array]) -> Metrics:
        """Of records [loss; 1 if right]; the loss alone is a fraction (see `hdl.layers.wiring.host`)."""
        records = results[self.output].reshape(-1, 2)
        golden = self.executor.mode is Mode.GOLDEN
        loss = METRICS.decode(records[:, 0]) if golden else records[:, 0]
        return Metrics(len(records), float(loss.mean()), float(records[:, 1].mean()))

    def save(self, path: Path, record: Any = None) -> None:
        """Write a checkpoint, one file; an interrupted write leaves the earlier one intact.

        ``record`` is plain data that belongs to this state, such as the losses so far."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        states, weights = self.executor.snapshot()
        document = {
            "schema": CHECKPOINT_SCHEMA,
            "graph": self.graph.name,
            "mode": self.executor.mode.value,
            "batches": self.executor.batches,
            "states": pack(states, arrays),
            "weights": pack(weights, arrays),
            "record": record,
        }
        arrays["document"] = np.array(json.dumps(document))
        save_arrays(path, arrays)

    def load(self, path: Path) -> Any:
        """Take up a checkpoint of the same graph; returns its record.  Raises `StorageError` on another's."""
        checkpoint = self.read(path)
        self.take_up(checkpoint)
        return checkpoint.record

    def take_up(self, checkpoint: Checkpoint) -> None:
        """Go on from there."""
        self.executor.restore(checkpoint.states, checkpoint.weights, checkpoint.batches)

    def read(self, path: Path) -> Checkpoint:
        """A checkpoint of the same graph.  Raises `StorageError` on another's."""
        arrays = load_arrays(path)
        if "document" not in arrays:
            raise StorageError(f"{path} is not a checkpoint", f"it holds {', '.join(arrays) or 'nothing'}")
        try:
            document = parse_json(str(arrays["document"]))
            missing = {"states", "weights", "batches", "record"} - set(document)
        except (ValueError, TypeError, RecursionError):
            missing = {"readable document"}
        if missing:
            raise StorageError(f"{path} has no {', '.join(sorted(missing))}", "train from the beginning")
        wanted = {"schema": CHECKPOINT_SCHEMA, "graph": self.graph.name, "mode": self.executor.mode.value}
        for name, value in wanted.items():
            if document.get(name) != value:
                raise StorageError(f"{path} is of {name} {document.get(name)}, not {value}", "train from the beginning")
        batches = document["batches"]
        if type(batches) is not int or batches < 0:
            raise StorageError(f"{path} has {batches!r} batches behind it", "train from the beginning")
        try:
            states, weights = unpack(document["states"], arrays), unpack(document["weights"], arrays)
        except KeyError as error:
            raise StorageError(f"{path} has no array {error}", "train from the beginning") from None
        known_states, known_weights = self.executor.snapshot()
        if not (fits(known_states, states) and fits(known_weights, weights)):
            raise StorageError(f"{path} is of another version of graph {self.graph.name}", "train from the beginning")
        return Checkpoint(states, weights, batches, document["record"])


def coded_edges(graph: Graph) -> dict[str, Bursts]:
    """Edges that a layer codes, with their bursts as of links whose words have `RATIO_WORD_BITS`."""
    found: dict[str, Bursts] = {}
    for edge, (node, port) in graph.producers.items():
        coding = node.layer.coding(port.name)
        bursts = coding.bursts(port.elements, RATIO_WORD_BITS) if coding else None
        if bursts is not None:
            found[edge] = bursts
    return found
