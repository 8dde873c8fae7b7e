"""What `dagtrain train` leaves, for the steps that rest on it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.placed import load_current_graph, load_placed_graph
from dagtrain.flow.records import TrainedOnRecord
from dagtrain.flow.workspace import COMMANDS, MissingStep, Workspace, read_json
from dagtrain.graph.ir import Graph
from dagtrain.graph.storage import StorageError
from dagtrain.training.emulator import Emulator
from hdl.layers.capabilities import going_on

COMMAND = COMMANDS["train"]
# the checkpoint after the last epoch, in the step's folder
STATE = "state.npz"


def load_trained(workspace: Workspace) -> Emulator:
    """The emulator as training left it, of the graph that was trained."""
    folder = workspace.require("train", COMMAND)
    split = workspace.made_from("train", "place")
    emulator = Emulator(load_placed_graph(workspace) if split else load_training_graph(workspace))
    try:
        emulator.load(folder / STATE)
    except StorageError as error:
        raise MissingStep(error.what, f"run `{COMMAND}` again") from error
    return emulator


def load_checkpoint(workspace: Workspace, path: Path) -> Emulator:
    """The emulator as a checkpoint of the current graph says."""
    emulator = Emulator(load_current_graph(workspace))
    emulator.load(path)
    return emulator


def begun_from(graph: Graph, path: Path) -> Graph:
    """The graph with what a checkpoint of it has: weights, masters, momenta, statistics, the number of batches behind
    it.  Its first batch reads the newest weights alone, as that of a training does.

    Raises `StorageError` for a checkpoint of another graph."""
    file = path / STATE if path.is_dir() else path
    emulator = Emulator(graph)
    try:
        emulator.load(file)
    except StorageError as error:
        cure = "give what `dagtrain train` left of this plan; where `dagtrain place` split layers since, train again"
        raise StorageError(error.what, cure) from error
    states = emulator.executor.states
    carried = {node.name: node.layer.carried(states[node.name]) for node in graph.nodes}
    kept = {name: values for name, values in carried.items() if values}
    batches = emulator.executor.batches
    nodes = tuple(replace(node, layer=going_on(node.layer, batches)) for node in graph.nodes)
    parameters = {**graph.parameters, **emulator.executor.parameters()}
    return replace(graph, nodes=nodes, parameters=parameters, carried=kept)


def weights_digest(graph: Graph) -> str:
    """What identifies a state to begin from: weights, what is carried over and counted on from, whatever file it came
    from."""
    arrays = {**graph.parameters, **{f"{n}.{k}": v for n, kept in graph.carried.items() for k, v in kept.items()}}
    arrays["begun"] = np.array(graph.begun)
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + np.ascontiguousarray(arrays[name], np.float64).tobytes())
    return found.hexdigest()


def train_record(workspace: Workspace) -> TrainedOnRecord:
    """What `train` tells of itself."""
    return read_json(workspace.require("train", COMMAND) / "train.json", COMMAND, TrainedOnRecord)
