"""`dagtrain parallelize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dagtrain.cli.perform import Jobs


def parallelize(
    model: Annotated[Path | None, typer.Argument(help="The ONNX file.", show_default=False)] = None,
    net: Annotated[
        str | None,
        typer.Option(
            help="Instead of a file, a network of the paper: sfc, sconv, lenet-c, cifar-c, alexnet, vgg-a … vgg-e.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples a step.")] = 256,
    levels: Annotated[int, typer.Option(help="How often the array is halved: 2 to that power accelerators.")] = 4,
    exact: Annotated[
        bool, typer.Option("--exact", help="The least communication of all levels together, not level by level.")
    ] = False,
    convention: Annotated[
        str,
        typer.Option(
            help="How amounts are counted, which the paper leaves open: 3.4, twin, or three words such as "
            "one-way,before,none (docs/hypar.md).",
        ),
    ] = "3.4",
    topology: Annotated[
        str, typer.Option(help="What joins accelerators where a step is simulated: htree (fat) or torus.")
    ] = "htree",
    units: Annotated[int, typer.Option(help="Processing units of an accelerator, 168 engines at 250 MHz each.")] = 12,
) -> Jobs:
    """Data or model parallelism for every layer on an array of accelerators, by least communication (HyPar)."""
    return (
        lambda network: network.parallelize(
            model=model,
            net=net,
            batch=batch,
            levels=levels,
            exact=exact,
            convention=convention,
            topology=topology,
            units=units,
        ),
    )
