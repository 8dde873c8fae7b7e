"""`dagtrain place`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from dagtrain.cli.options import Copies, Devices, Seed
from dagtrain.cli.perform import Job, Jobs

Pins = Annotated[list[str] | None, typer.Option("--pin", help="layer=device; may be given several times.")]
LeastFps = Annotated[float | None, typer.Option(help="Slowest acceptable throughput in frames a second.")]
FirstFps = Annotated[
    float | None,
    typer.Option(
        help="Pace inside a batch, in frames a second, whose circuits are elaborated and searched first; else one well "
        "below what multipliers allow, or of small circuits. Of use for large networks, if you know about what is "
        "possible."
    ),
]
Gap = Annotated[
    float,
    typer.Option(help="Stop at a plan proven to be within this share of the best one at the levels priced, e.g. 0.01."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(help="Seconds after which the best plan so far is taken: elaboration, pricing and searches together."),
]
SameDevice = Annotated[
    list[str] | None,
    typer.Option("--same-device", help="layers or nodes that stand on one device: a,b,…; may be given several times."),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", help="A device to leave empty; may be given several times.")
]
Caps = Annotated[
    list[str] | None,
    typer.Option(
        "--cap",
        help="dsp=0.9, m20k=… or alm=…: the share of the blocks of every FPGA that a plan may fill, instead of the "
        "cluster file's; may be given several times.",
    ),
]
NoSplit = Annotated[
    bool,
    typer.Option(
        "--no-split",
        help="Keep layers whole. Else what fits no FPGA, or is large and faster in parts, becomes several engines.",
    ),
]
Remote = Annotated[
    list[str] | None,
    typer.Option(
        "--remote",
        metavar="NODE",
        help="A node, or a layer for its engines, whose weights, sums of gradients or optimiser state lie in block "
        "memory that may stand on another board (docs/placing.md); may be given several times.",
    ),
]
NoRemote = Annotated[
    bool,
    typer.Option(
        "--no-remote",
        help="Keep memories of layers on their board. Else, where block memory binds or there is no plan, the planner "
        "tries them in stores on boards with room, as FPDeep balances parameters.",
    ),
]
NoDram = Annotated[
    bool,
    typer.Option("--no-dram", help="Keep all memories on chip: as if no board had DRAM."),
]
Replicas = Annotated[
    str,
    typer.Option(
        help="How many copies there are of all layers, with frames dealt out, or their shares, as 3:2 for two of which "
        "one gets 3 of 5 frames; `auto`: the planner makes copies of the layers of which they make a faster plan, with "
        "shares that it chooses. The bits of a trained network don't depend on it (docs/placing.md), "
        "unless `import --norm-sync apart` gives copies of norms statistics of their own."
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Also say what binds, what the next faster level needs, of which layers copies would help, what more of "
        "each resource and one more board of each type would bring.",
    ),
]
ShowWalls = Annotated[
    bool,
    typer.Option(
        "--walls",
        help="First say which resource of the whole cluster binds, which falls next, and what each lever would bring: "
        "ratios, not promises.",
    ),
]
Sweep = Annotated[
    bool,
    typer.Option(
        "--sweep",
        help="Also plan for fewer and more devices, up to twice the cluster, and plot throughput against their number.",
    ),
]
RunsOn = Annotated[
    str,
    typer.Option(
        "--runner",
        help="Where the plans of --sweep are made: local (processes of this machine) or dask (workers of Dask "
        "distributed, here or, with --scheduler, anywhere).",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="How many plans of --sweep are made at once, each with its share of the cores. [default: one a core]",
        show_default=False,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="The Dask scheduler whose workers make the plans of --sweep, tcp://10.0.0.1:8786 (docs/placing.md).",
        show_default=False,
    ),
]
MappingWord = Annotated[
    str | None,
    typer.Option(
        "--mapping",
        help="fpdeep: also map the layers to the boards as FPDeep does (docs/fpdeep.md), beside the plan: frames/s, "
        "DSP blocks and idle multipliers by board. For chains of layers and equal boards.",
        show_default=False,
    ),
]
# of all circuits that the planner may offer beside the plain ones
LEVERS = ("auto", "never")
LeversWord = Annotated[
    str,
    typer.Option(
        help="What those of --share-weights, --multiply-constants, --recompute, --ragged-tiles, --share-statistics, "
        "--deal-streams and --small-buffers are that are not given: auto, which takes the search longer and may find "
        "twice the frames/s (docs/networks.md), or never. No bit of what is trained depends on them.",
    ),
]
ShareWeights = Annotated[
    str | None,
    typer.Option(
        "--share-weights",
        help="Forward and error engine of a layer with one weight memory on one FPGA: auto (where that saves block "
        "memories), always or never.",
        show_default=False,
    ),
]
MultiplyConstants = Annotated[
    str | None,
    typer.Option(
        "--multiply-constants",
        help="Products with constants, of norms and updates, on multipliers instead of adders: auto (where a plan is "
        "faster for it), always or never.",
        show_default=False,
    ),
]
UpdateFrames = Annotated[
    float,
    typer.Option(
        "--update-frames",
        help="Frames' time that gradients and new weights of a batch may take on their way. With more than 1 updates "
        "have fewer lanes, and gradient engines rest longer once a batch; with less, 0.25 say, it is the other way "
        "round.",
    ),
]
ShareStatistics = Annotated[
    str | None,
    typer.Option(
        "--share-statistics",
        help="Norms advance the statistics of few channels at a time, which others wait for: auto (as few as the pace "
        "leaves time for) or never.",
        show_default=False,
    ),
]
SmallBuffers = Annotated[
    str | None,
    typer.Option(
        "--small-buffers",
        help="Convolutions store few pixels of their maps: those that see one pixel parts of rows, others by tiles "
        "whose taps read few copies: auto or never.",
        show_default=False,
    ),
]
Codec = Annotated[
    str,
    typer.Option(
        "--codec",
        help="Which links carry in few words what `import --compress` has left few bits of, with a codec at either "
        "end: always, or auto (where training is faster for it). No bit of what is trained depends on it.",
    ),
]
DealStreams = Annotated[
    str | None,
    typer.Option(
        "--deal-streams",
        help="Streams to DRAM that no memory channel carries at the pace are dealt out over several: auto (over the "
        "fewest that do, on boards with several) or never.",
        show_default=False,
    ),
]
Recompute = Annotated[
    str | None,
    typer.Option(
        "--recompute",
        help="What follows from a map that waits for the way back anyway is made of it again, instead of waiting too: "
        "auto (where that saves block memories), always or never.",
        show_default=False,
    ),
]
RaggedTiles = Annotated[
    str | None,
    typer.Option(
        "--ragged-tiles",
        help="Tiles of weights that do not divide a layer's filters, so that some multipliers of the last ones idle: "
        "auto (where that takes fewer multipliers) or never.",
        show_default=False,
    ),
]
Solver = Annotated[
    str, typer.Option(help="fast; or literal: the poster's equations by bisection to 5 %, for small problems.")
]


def place(
    devices: Devices,
    pin: Pins = None,
    same_device: SameDevice = None,
    exclude: Exclude = None,
    cap: Caps = None,
    least_fps: LeastFps = None,
    first_fps: FirstFps = None,
    gap: Gap = 0.0,
    time_limit: TimeLimit = None,
    solver: Solver = "fast",
    seed: Seed = 1,
    no_split: NoSplit = False,
    copy: Copies = None,
    replicas: Replicas = "1",
    remote: Remote = None,
    no_remote: NoRemote = False,
    no_dram: NoDram = False,
    walls: ShowWalls = False,
    levers: LeversWord = "never",
    share_weights: ShareWeights = None,
    multiply_constants: MultiplyConstants = None,
    recompute: Recompute = None,
    update_frames: UpdateFrames = 1,
    ragged_tiles: RaggedTiles = None,
    share_statistics: ShareStatistics = None,
    deal_streams: DealStreams = None,
    small_buffers: SmallBuffers = None,
    codec: Codec = "always",
    explain: Explain = False,
    mapping: MappingWord = None,
    sweep: Sweep = False,
    runner: RunsOn = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> Jobs:
    """Choose a configuration and an FPGA for every layer, with a proven bound on the throughput.

    Ctrl-C, or SIGTERM, ends the search with the best plan so far; the same command then goes on from it.  Plans are
    written as they are found."""
    from dagtrain.flow.mapping_step import MappingOptions
    from dagtrain.flow.place_options import PlaceOptions
    from dagtrain.flow.sweep_step import SweepOptions
    from hdl.errors import DagtrainError

    if levers not in LEVERS:
        raise DagtrainError(f"--levers {levers}: no such way", f"one of {', '.join(LEVERS)}")
    options = PlaceOptions(
        devices, pins=tuple(pin or ()), same_device=tuple(same_device or ()), exclude=tuple(exclude or ()),
        caps=tuple(cap or ()), least_fps=least_fps, first_fps=first_fps, gap=gap, time_limit_seconds=time_limit,
        solver=solver, seed=seed, split=not no_split, copies=tuple(copy or ()), replicas=replicas,
        remote=tuple(remote or ()), stores=not no_remote, dram=not no_dram, update_frames=update_frames, codec=codec,
        share_weights=share_weights or levers, multiply_constants=multiply_constants or levers,
        recompute=recompute or levers, ragged_tiles=ragged_tiles or levers,
        share_statistics=share_statistics or levers, deal_streams=deal_streams or levers,
        small_buffers=small_buffers or levers,
    )  # fmt: skip
    sizes = SweepOptions(**vars(options), runner=runner, workers=workers, scheduler=scheduler)
    jobs: list[Job] = [lambda net: net.place(options)]
    if walls:
        jobs.insert(0, lambda net: net.walls(options))
    if mapping is not None:
        # before the search, which may take long and find nothing, and beside its plan
        mapped = MappingOptions(**vars(options), mapping=mapping)
        jobs.insert(0, lambda net: net.mapping(mapped))
        jobs.append(lambda net: net.mapping(replace(mapped, beside=True)))
    if explain:
        jobs.append(lambda net: net.explain(options))
    if sweep:
        jobs.append(lambda net: net.sweep(sizes))
    return jobs
