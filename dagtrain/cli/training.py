"""Commands that train in the emulator, and what becomes of it: `dagtrain train`, `profile`, `export`, `evaluate`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from dagtrain.cli.options import Data, Epochs, HeldOut, Seed, Stratify, TensorBoard
from dagtrain.cli.perform import Jobs

Resume = Annotated[bool, typer.Option("--resume", help="Go on from what is there, and fail where that can't be.")]


def train(
    epochs: Epochs = 8,
    data: Data = None,
    held_out: HeldOut = None,
    stratify: Stratify = False,
    seed: Seed = 1,
    resume: Resume = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Go on from this one of the same training, as `dagtrain drive` leaves.", show_default=False),
    ] = None,
    tensorboard: TensorBoard = False,
    replicas: Annotated[
        int,
        typer.Option(
            help="Processes that train at once, each with some of the copies of layers that `dagtrain import --copy` "
            "or `place --replicas` made: the same bits, sooner (docs/replicas.md)."
        ),
    ] = 1,
    runner: Annotated[
        str,
        typer.Option(
            "--runner",
            help="Who runs the processes of --replicas: local (this machine) or dask (workers of Dask distributed, "
            "here or, with --scheduler, anywhere).",
        ),
    ] = "local",
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="The Dask scheduler whose workers train, one a replica, tcp://10.0.0.1:8786.", show_default=False
        ),
    ] = None,
) -> Jobs:
    """Train with the hardware's exact arithmetic, in the fast emulator.

    More --epochs of the same training, or the same command after Ctrl-C, go on where it was."""
    return (
        lambda net: net.train(
            epochs=epochs, data=data, held_out=held_out, stratify=stratify, seed=seed, resume=resume,
            checkpoint=checkpoint, tensorboard=tensorboard, replicas=replicas, runner=runner, scheduler=scheduler,
        ),
    )  # fmt: skip


def train_on_data(**given: Any) -> Jobs:
    """As `train` in one process, where there is data to train on."""
    (training,) = train(**given)
    return (lambda net: net.nothing_to_train_on(given["data"]) or training(net),)


# other steps have options of these names
_OWN = frozenset({"replicas", "runner", "scheduler"})
_ALL = inspect.signature(train, eval_str=True)
vars(train_on_data)["__signature__"] = _ALL.replace(
    parameters=[parameter for name, parameter in _ALL.parameters.items() if name not in _OWN]
)


def profile(
    batches: Annotated[int, typer.Option(help="Batches to train.")] = 16,
    train: Annotated[
        bool,
        typer.Option("--train", help="Also train epochs in both arithmetics, and name the layer that leaves float64."),
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Of --train, 3 if nothing is said.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Of --train: relative error that a tensor may have of its own, 0.05 by default."),
    ] = None,
    data: Data = None,
    seed: Seed = 1,
) -> Jobs:
    """Train some batches in float64 and in the hardware's arithmetic side by side, and show what flows on every edge:
    magnitudes beside the chosen format, saturation, resolution.  Formats that do not fit are named; `dagtrain import
    --bits` changes them."""
    return (
        lambda net: net.profile(batches=batches, data=data, seed=seed, train=train, epochs=epochs, threshold=threshold),
    )


def export(
    weights: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint of `dagtrain train` or `drive`, or a folder that has one; default: the last training.",
            show_default=False,
        ),
    ] = None,
) -> Jobs:
    """Write the trained network as an ONNX file: weights and statistics as the hardware has them."""
    return (lambda net: net.export(weights=weights),)


def evaluate(
    what: Annotated[
        Path | None,
        typer.Argument(
            help="An ONNX file, or a checkpoint of the working folder's graph (.npz, or a folder that `dagtrain train` "
            "left); default: what was trained last.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Data to judge by, all of it; default: what `dagtrain train` held out.", show_default=False),
    ] = None,
) -> Jobs:
    """Accuracy, loss and confusion of a trained network on data that it has not been trained on."""
    return (lambda net: net.evaluate(what=what, data=data),)
