"""Commands that simulate a cluster: `dagtrain cosim`, `simulate`, `debug`, `probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dagtrain.cli.options import (
    AsJson,
    Batches,
    Data,
    Latency,
    LinkDown,
    Out,
    Pcap,
    Quiet,
    Rate,
    Reset,
    Seed,
    Stall,
    Verbose,
    Weights,
)
from dagtrain.cli.perform import MPI_WORD, Jobs, network, tell
from dagtrain.console import Voice

Hold = Annotated[
    int,
    typer.Option(
        help="Also watch every stream inside the FPGAs, and hold one after the other up for so many cycles, so that "
        "FIFOs fill and credits run out. 0: neither."
    ),
]
Simulator = Annotated[
    str, typer.Option(help="verilator or icarus: a Verilog testbench; myhdl: a MyHDL testbench that plays the host.")
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="What runs the FPGAs under --simulator myhdl: verilator (the default) or icarus (over VPI, slow).",
        show_default=False,
    ),
]
Efficiency = Annotated[
    bool,
    typer.Option(
        "--efficiency/--no-efficiency",
        help="Also run every MAC engine alone in Verilator and measure how many of its slots it uses; "
        "measurements are kept, so a second run costs nothing.",
    ),
]


def cosim(
    batches: Batches = 4,
    stall: Stall = 0.25,
    latency: Latency = 200,
    hold: Hold = 0,
    simulator: Simulator = "verilator",
    engine: Engine = None,
    data: Data = None,
    weights: Weights = None,
    seed: Seed = 1,
    efficiency: Efficiency = True,
    waves: Annotated[str | None, typer.Option(help="Also write waveforms of streams: vcd or fst.")] = None,
    wave_nodes: Annotated[
        list[str] | None, typer.Option("--wave-nodes", help="Only of nodes whose names match, 'conv1*'; several times.")
    ] = None,
    wave_frames: Annotated[
        str | None, typer.Option("--wave-frames", help="Only while these frames pass, 3 or 3:8, counted from 1.")
    ] = None,
    wave_cycles: Annotated[str | None, typer.Option("--wave-cycles", help="Only these cycles, 1000:2000.")] = None,
    wave_inside: Annotated[
        bool, typer.Option("--wave-inside", help="Also all signals inside the circuits of those nodes.")
    ] = False,
    loss: Rate = 0.0,
    duplicate: Rate = 0.0,
    reorder: Rate = 0.0,
    corrupt: Rate = 0.0,
    link_down: LinkDown = None,
    reset: Reset = None,
    host_pause: Annotated[
        str | None,
        typer.Option("--host-pause", help="In these cycles the host on the network does nothing, 50000:90000."),
    ] = None,
    pcap: Pcap = False,
    mpi: Annotated[
        bool,
        typer.Option(
            MPI_WORD,
            help="Share the FPGAs among the ranks that mpirun has started, on one machine or several: "
            "`mpirun -n 4 dagtrain cosim --mpi`, the same bits and cycles (docs/cosimulation.md).",
        ),
    ] = False,
) -> Jobs:
    """Train in the emitted Verilog of all FPGAs at once and compare every bit of state with the emulator."""
    return (
        lambda net: net.cosim(
            batches=batches, stall=stall, latency_cycles=latency, hold_cycles=hold, simulator=simulator, engine=engine,
            data=data, weights=weights, seed=seed, efficiency=efficiency, waves=waves,
            wave_nodes=tuple(wave_nodes or ()), wave_frames=wave_frames, wave_cycles=wave_cycles,
            wave_inside=wave_inside,
            loss=loss, duplicate=duplicate, reorder=reorder, corrupt=corrupt, link_down=tuple(link_down or ()),
            host_pause=host_pause, reset=tuple(reset or ()), pcap=pcap, mpi=mpi,
        ),
    )  # fmt: skip


def simulate(
    level: Annotated[
        str,
        typer.Option(
            help="exact: the control of the emitted Verilog, cycle for cycle as cosim; fast: the plan alone, by events "
            "of what layers declare."
        ),
    ] = "exact",
    batches: Batches = 4,
    frames: Annotated[
        int | None,
        typer.Option(
            help="Instead, if fewer than a batch: only its first frames. Else at least so many, in whole batches.",
            show_default=False,
        ),
    ] = None,
    stall: Annotated[
        float | None,
        typer.Option(
            help="Share of cycles in which hosts and network stall (exact). [default: 0.25]", show_default=False
        ),
    ] = None,
    latency: Latency = 200,
    seed: Seed = 1,
    loss: Rate = 0.0,
    duplicate: Rate = 0.0,
    reorder: Rate = 0.0,
    corrupt: Rate = 0.0,
    link_down: LinkDown = None,
) -> Jobs:
    """How fast the cluster trains, simulated without the values that it computes: frames/s, idle multipliers, bits on
    cables, what fills and drains around batches."""
    return (
        lambda net: net.simulate(
            level=level, batches=batches, frames=frames, stall=stall, latency_cycles=latency, seed=seed,
            loss=loss, duplicate=duplicate, reorder=reorder, corrupt=corrupt, link_down=tuple(link_down or ()),
        ),
    )  # fmt: skip


def debug(
    batches: Annotated[int, typer.Option(help="Batches to train in co-simulation.")] = 2,
    stall: Stall = 0.25,
    latency: Latency = 200,
    simulator: Annotated[str, typer.Option(help="verilator or icarus.")] = "verilator",
    data: Data = None,
    weights: Weights = None,
    seed: Seed = 1,
    waves: Annotated[str, typer.Option(help="Of the waveform around the first wrong word: vcd or fst.")] = "vcd",
    wave_inside: Annotated[
        bool, typer.Option(help="With all signals inside the circuit that made it; that takes another build.")
    ] = True,
) -> Jobs:
    """Find the first wrong word: every beat of every stream inside the FPGAs beside the emulator, down to layer, batch,
    frame, row, column and channel, and the circuit that made it.  `dagtrain cosim` compares results alone."""
    return (
        lambda net: net.debug(
            batches=batches, stall=stall, latency_cycles=latency, simulator=simulator, data=data, weights=weights,
            seed=seed, waves=waves, wave_inside=wave_inside,
        ),
    )  # fmt: skip


def probe(
    what: Annotated[str, typer.Argument(help="A tensor: layer.port, such as conv1.y or conv1.error.dx.")],
    batch: Annotated[int, typer.Option(help="Of which batch, counted from 1.")] = 1,
    frame: Annotated[int, typer.Option(help="Of which frame of the batch, counted from 1.")] = 1,
    row: Annotated[int | None, typer.Option(help="Only this row of the map, counted from 0.")] = None,
    column: Annotated[int | None, typer.Option(help="Only this column.")] = None,
    channel: Annotated[int | None, typer.Option(help="Only this channel.")] = None,
    limit: Annotated[int, typer.Option(help="Show so many numbers: of more, those that differ most.")] = 24,
    data: Data = None,
    seed: Seed = 1,
    out: Out = Path("build"),
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Print a tensor as the emulator, the float reference and the simulated hardware have it, side by side.

    What the hardware had is what the last `dagtrain debug` saw."""
    voice = Voice(as_json, quiet, verbose)
    with voice.progress() as progress:
        done = network(out, progress).probe(
            what, batch=batch, frame=frame, row=row, column=column, channel=channel, limit=limit, data=data, seed=seed
        )
    tell(done, voice)
