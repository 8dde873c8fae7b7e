"""Commands that work with a cluster on Ethernet: `dagtrain drive`, `serve`, `bring-up`, `self-test`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dagtrain.cli.options import (
    Data,
    Devices,
    Epochs,
    HeldOut,
    Latency,
    LinkDown,
    Pcap,
    Rate,
    Reset,
    Seed,
    Stratify,
    TensorBoard,
)
from dagtrain.cli.perform import Jobs
from hdl.link.ethernet.frame import UDP_PORT


def drive(
    host: Annotated[
        str | None,
        typer.Option(
            help="ADDRESS[:PORT] to which all frames go; default: each device's own address.", show_default=False
        ),
    ] = None,
    epochs: Epochs = 1,
    data: Data = None,
    held_out: HeldOut = None,
    stratify: Stratify = False,
    seed: Seed = 1,
    save: Annotated[Path | None, typer.Option(help="Checkpoint to write, all along.", show_default=False)] = None,
    resume: Annotated[Path | None, typer.Option(help="Checkpoint to go on from.", show_default=False)] = None,
    every: Annotated[int, typer.Option(help="Batches between checkpoints within an epoch.")] = 50,
    addresses: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with devices, addresses and streams; default: as emitted, network/addresses.toml.",
            show_default=False,
        ),
    ] = None,
    bind: Annotated[
        str | None, typer.Option(help="ADDRESS[:PORT] to take here; default: as that file says.", show_default=False)
    ] = None,
    answer_seconds: Annotated[float, typer.Option(help="In which every device must answer.")] = 10.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Train the same in the emulator, and compare every loss and all state.")
    ] = False,
    tensorboard: TensorBoard = False,
) -> Jobs:
    """Train a cluster on Ethernet over UDP: feed it, watch losses and the network, keep checkpoints of what it holds.

    Ctrl-C ends training behind the next batch whose state can be kept; --resume goes on from there."""
    return (
        lambda net: net.drive(
            host=host, bind=bind, addresses=addresses, epochs=epochs, data=data, held_out=held_out, stratify=stratify,
            seed=seed, save=save, resume=resume, every=every, answer_seconds=answer_seconds, compare=compare,
            tensorboard=tensorboard,
        ),
    )  # fmt: skip


def serve(
    port: Annotated[int, typer.Option(help="UDP port of 127.0.0.1 to take; 0: any.")] = UDP_PORT,
    latency: Latency = 200,
    loss: Rate = 0.0,
    duplicate: Rate = 0.0,
    reorder: Rate = 0.0,
    corrupt: Rate = 0.0,
    link_down: LinkDown = None,
    reset: Reset = None,
    pcap: Pcap = False,
    seed: Seed = 1,
    optimise: Annotated[
        bool, typer.Option(help="Compile for long runs, which takes two to three times as long to compile.")
    ] = True,
) -> Jobs:
    """Simulate the emitted Verilog of all FPGAs behind a UDP socket, until Ctrl-C: `dagtrain drive --host
    127.0.0.1:17492`, or any other host program, trains it as it would train FPGAs."""
    return (
        lambda net: net.serve(
            port=port, latency_cycles=latency, seed=seed, optimise=optimise, loss=loss, duplicate=duplicate,
            reorder=reorder, corrupt=corrupt, link_down=tuple(link_down or ()), reset=tuple(reset or ()), pcap=pcap,
        ),
    )  # fmt: skip


def bring_up(
    devices: Devices,
    lint: Annotated[bool, typer.Option(help="Check the Verilog with Verilator.")] = True,
) -> Jobs:
    """Write tops that test the boards of a cluster on Ethernet before anything is trained: words over every link, a
    march through every memory channel, counters that `dagtrain self-test` reads."""
    return (lambda net: net.bring_up(devices=devices, lint=lint),)


def self_test(
    host: Annotated[
        str | None,
        typer.Option(
            help="ADDRESS[:PORT] to which all frames go; default: each device's own address.", show_default=False
        ),
    ] = None,
    words: Annotated[int, typer.Option(help="To send over each link.")] = 1_000_000,
    bursts: Annotated[
        int | None,
        typer.Option(help="Of each memory channel, to march through; default: all of it.", show_default=False),
    ] = None,
    addresses: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with devices and addresses; default: that of `dagtrain bring-up`.", show_default=False
        ),
    ] = None,
    bind: Annotated[
        str | None, typer.Option(help="ADDRESS[:PORT] to take here; default: as that file says.", show_default=False)
    ] = None,
    answer_seconds: Annotated[float, typer.Option(help="In which every device must answer.")] = 10.0,
) -> Jobs:
    """Have boards with the tops of `dagtrain bring-up` test themselves, and read over UDP what they counted."""
    return (
        lambda net: net.self_test(
            host=host, bind=bind, addresses=addresses, words=words, bursts=bursts, answer_seconds=answer_seconds
        ),
    )  # fmt: skip
