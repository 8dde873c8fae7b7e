"""What `dagtrain train` leaves, for the steps that rest on it."""

from __future__ import annotations

from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.placed import load_placed_graph
from dagtrain.flow.records import TrainedOnRecord
from dagtrain.flow.workspace import COMMANDS, MissingStep, Workspace, read_json
from dagtrain.graph.storage import StorageError
from dagtrain.training.emulator import Emulator

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


def train_record(workspace: Workspace) -> TrainedOnRecord:
    """What `train` tells of itself."""
    return read_json(workspace.require("train", COMMAND) / "train.json", COMMAND, TrainedOnRecord)
