"""`dagtrain emit`, and what is asked of circuits: `estimate`, `timing`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dagtrain.cli.options import AsJson, Out, Quiet, Verbose, Weights
from dagtrain.cli.perform import Jobs, perform
from dagtrain.console import Voice
from hdl.costs.synthesis import FABRIC
from hdl.costs.timing import NET_PS

StateAccess = Annotated[
    str,
    typer.Option(
        "--state-access",
        help="How weights, momenta and counters come in: none (they stand in images of memories) or ports (every FPGA "
        "has a stream by which a host loads them, and one by which it dumps them).",
    ),
]
HostAccess = Annotated[
    str | None,
    typer.Option(
        "--host",
        help="How the host is reached: network (images, labels, results, state are streams of the Ethernet ports) or "
        "ports (they are ports of a device). [default: network on Ethernet, else ports]",
        show_default=False,
    ),
]
NetPs = Annotated[int, typer.Option("--net-ps", help="Delay of a net between two cells, in picoseconds.")]


def emit(weights: Weights = None, state_access: StateAccess = "none", host: HostAccess = None) -> Jobs:
    """Write one folder of Verilog for each FPGA: sources, memory images, constraints, project, manifest."""
    return (lambda net: net.emit(weights=weights, state_access=state_access, host=host),)


def estimate(
    check: Annotated[bool, typer.Option("--check", help="Synthesise each layer with Yosys and compare.")] = False,
    layer: Annotated[list[str] | None, typer.Option(help="Only these nodes; default: one of each kind.")] = None,
    cycles: Annotated[int | None, typer.Option(help="Fold to this many cycles a frame; default: the plan's.")] = None,
    sample: Annotated[int | None, typer.Option(help="Only so many circuits, drawn by --seed of all kinds.")] = None,
    seed: Annotated[int, typer.Option(help="Of --sample.")] = 1,
    part: Annotated[str, typer.Option(help="Count the blocks of this part.")] = FABRIC,
    out: Out = Path("build"),
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Resources of every layer, read off its elaborated circuit; --check sets them beside synthesis."""
    layers = tuple(layer or ())
    perform(
        out,
        Voice(as_json, quiet, verbose),
        lambda net: net.estimate(check=check, layers=layers, cycles=cycles, sample=sample, seed=seed, part=part),
    )


def timing(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Verilog files of one module each, instead of what emit left.", show_default=False),
    ] = None,
    net_ps: NetPs = NET_PS,
    module_ps: Annotated[int, typer.Option("--module-ps", help="Limit of a module's slowest path.")] = 4000,
    top_ps: Annotated[int, typer.Option("--top-ps", help="Limit of a device's slowest path.")] = 4500,
    out: Out = Path("build"),
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Static timing of the emitted Verilog: the slowest path of every module and of every device, worst first.

    Yosys maps each module to the cells of Cyclone 10 GX (the fabric of Arria 10), whose delays it ships; every net
    between two cells has the same delay, and ports count as registers next door.  A device is timed with its hierarchy
    kept: from the delays of its modules between their ports.

    Exits with 1 if a module or a device takes longer than its limit, a multiplier does not stand between registers of
    its own, or a path of ready signals enters more than two modules.  Mapping takes seconds to a minute a module; what
    was mapped once is kept by the digest of its text, so an interrupted run goes on where it was."""
    perform(
        out,
        Voice(as_json, quiet, verbose),
        lambda net: net.timing(files=tuple(files or ()), net_ps=net_ps, module_ps=module_ps, top_ps=top_ps),
    )
