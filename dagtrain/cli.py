"""The command line: parses, calls the flow, prints, sets the exit code.  Nothing else lives here.

What does the work is imported when a command is performed: who asks for help, or for the next word of a line, waits for
no solver, compiler or reader of models."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer
from rich.console import Console

from dagtrain import threads as threads
from dagtrain.console import Voice, error_json, summary_table
from dagtrain.flow.import_options import ImportOptions
from hdl.costs.synthesis import FABRIC
from hdl.costs.timing import NET_PS
from hdl.errors import DagtrainError, Problem
from hdl.link.ethernet.frame import UDP_PORT

if TYPE_CHECKING:
    from dagtrain.api import Done, Network
    from dagtrain.flow.result import StepResult
    from dagtrain.progress import Progress

# exit codes of a fault of this program (EX_SOFTWARE of sysexits.h), and of Ctrl-C as shells have it
CRASHED, INTERRUPTED = 70, 130
# shares a simulation among ranks; options of every command, which change no result: the first one has a value
MPI_WORD, OUT_WORD, VOICE_WORDS = "--mpi", "--out", frozenset({"--json", "--quiet", "-q", "--verbose", "-v"})
# words that no command knows, whatever typer is built on
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dagtrain {version('dagtrain')}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Turns an ONNX model into streaming FPGA hardware that trains it, layer-parallel, on a cluster.\n\n"
    "Each command takes what the one before it left in the working folder (build/ unless told otherwise):\n"
    "import, place, emit, cosim, train, report.  `dagtrain run` does them all.  Rerunning an unchanged step "
    "costs nothing.",
)


@app.callback()
def _dagtrain(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del show_version


Out = Annotated[
    Path, typer.Option("--out", envvar="DAGTRAIN_OUT", help="Working folder that holds the results of all steps.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also say what is noted on the way; without a terminal, a line a task.")
]
Model = Annotated[Path, typer.Argument(help="The ONNX file.", show_default=False)]
Norm = Annotated[
    str,
    typer.Option(
        help="online: online normalisation wherever the model normalises, or did before folding; "
        "none: fold normalisation into the weights; as-is: as the file has it; "
        "frozen: as the file has it, by its running statistics, and not trained."
    ),
]
Recipe = Annotated[
    Path | None,
    typer.Option(
        help="TOML file: batch, staleness, learning_rate, schedule, momentum, nesterov, weight_decay, clip, loss, "
        "seed, …; docs/recipe.md lists all keys."
    ),
]
Aux = Annotated[
    float | None,
    typer.Option(
        help="Train auxiliary heads too (GoogLeNet, Inception v3), each loss counting so much, such as 0.3; "
        "without it they are dropped. Takes the place of the recipe's `auxiliary`.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Training data: `digits`, `mnist5k`, .npz, .csv or IDX file, folder of pictures, IMAGES.npy,LABELS.npy, "
        "or a data.toml (docs/data.md). Also used to choose binary points; without it, random frames are."
    ),
]
Splits = Annotated[
    list[str] | None,
    typer.Option(
        "--split",
        help="layer=parts, or layer=parts:inputs: make a convolution or matrix product of several, each with some of "
        "its output channels, or of its input channels; layer=parts:rows: a convolution, pool or activation of "
        "several, each with some rows of its map, to the same bits; may be given several times.",
    ),
]
Bits = Annotated[
    list[str] | None,
    typer.Option(
        "--bits",
        help="Bits of numbers by kind of tensor, else 16: activation=12,weight=16,error=16,gradient=16,"
        "stash=8 (activations that wait for the way back), sum=32 (sums of gradients, else exact), master=24, "
        "momentum=16 (what an update keeps, else 32 and 24); of some layers 'layer1*:activation=10'; "
        "may be given several times, the last that fits holds.",
    ),
]
Counted = Annotated[
    list[str] | None,
    typer.Option(
        "--count-saturations",
        help="Tensors behind which hardware and emulator count, all through training, the numbers at an end of their "
        "format: 'conv1.y', '*.error.dx', '*'; may be given several times.",
    ),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(
        help="Pattern of names of layers (`dagtrain show` prints them), such as 'layer1*', whose weights stay as they "
        "are: no gradient, no update, less hardware; may be given several times.",
    ),
]
Copies = Annotated[
    list[str] | None,
    typer.Option(
        "--copy",
        help="layer=copies, as 'conv2=2' or 'layer1*=3': so many copies of the layers of such a name or pattern, each "
        "of which gets some of a batch's frames, with the same bits as one; '*=2' is all but losses and what is the "
        "host's; may be given several times.",
    ),
]
ExchangeBy = Annotated[
    str,
    typer.Option(
        "--exchange",
        help="How copies come to one gradient: central, where one update gives weights to all; chain, where sums go "
        "from copy to copy and each has an update of its own; ring, where each copy begins with some of the tensors, "
        "so that all links carry alike. All have the bits of one layer.",
    ),
]
Compress = Annotated[
    str,
    typer.Option(
        "--compress",
        help="What a chain leaves of gradients: none takes nothing of exact sums; integer:DROP[:WINDOW[:ROUNDING]], as "
        "integer:5:7:nearest, takes DROP bits of those below 2^(DROP+WINDOW), by truncate, nearest or stochastic; "
        "bounded:BITS[:WINDOW[:ROUNDING]] takes so many that errors stay below 2^-BITS of the format's range. "
        "Links carry what is left in fewer words; ,ratio=R behind it plans for R times fewer, as `dagtrain train` "
        "measures it; without, for none fewer.",
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Only say what would become of the model: layers, normalisation, notes, all problems. Writes nothing; "
        "exits with 1 if there are problems.",
    ),
]
Devices = Annotated[Path, typer.Option(help="TOML file that describes the cluster.", show_default=False)]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result, byte for byte.")]
Pins = Annotated[list[str] | None, typer.Option("--pin", help="layer=device; may be given several times.")]
LeastFps = Annotated[float | None, typer.Option(help="Slowest acceptable throughput in frames a second.")]
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
        help="How many copies there are of all layers, with frames dealt out; `auto`: the planner makes copies of the "
        "layers of which they make a faster plan. The bits of a trained network don't depend on it (docs/placing.md)."
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
ShareWeights = Annotated[
    str,
    typer.Option(
        "--share-weights",
        help="Forward and error engine of a layer with one weight memory on one FPGA: auto (where that saves block "
        "memories), always or never.",
    ),
]
MultiplyConstants = Annotated[
    str,
    typer.Option(
        "--multiply-constants",
        help="Products with constants, of norms and updates, on multipliers instead of adders: auto (where a plan is "
        "faster for it), always or never.",
    ),
]
UpdateFrames = Annotated[
    int,
    typer.Option(
        "--update-frames",
        help="Frames' time that gradients and new weights of a batch may take on their way: updates have fewer lanes, "
        "and gradient engines rest longer once a batch.",
    ),
]
ShareStatistics = Annotated[
    str,
    typer.Option(
        "--share-statistics",
        help="Norms advance the statistics of few channels at a time, which others wait for: auto (as few as the pace "
        "leaves time for) or never.",
    ),
]
SmallBuffers = Annotated[
    str,
    typer.Option(
        "--small-buffers",
        help="Convolutions store few pixels of their maps: those that see one pixel parts of rows, others by tiles "
        "whose taps read few copies: auto or never.",
    ),
]
DealStreams = Annotated[
    str,
    typer.Option(
        "--deal-streams",
        help="Streams to DRAM that no memory channel carries at the pace are dealt out over several: auto (over the "
        "fewest that do, on boards with several) or never.",
    ),
]
Recompute = Annotated[
    str,
    typer.Option(
        "--recompute",
        help="What follows from a map that waits for the way back anyway is made of it again, instead of waiting too: "
        "auto (where that saves block memories), always or never.",
    ),
]
RaggedTiles = Annotated[
    str,
    typer.Option(
        "--ragged-tiles",
        help="Tiles of weights that do not divide a layer's filters, so that some multipliers of the last ones idle: "
        "auto (where that takes fewer multipliers) or never.",
    ),
]
Solver = Annotated[
    str, typer.Option(help="fast; or literal: the poster's equations by bisection to 5 %, for small problems.")
]
Batches = Annotated[int, typer.Option(help="Batches to train in co-simulation.")]
Stall = Annotated[float, typer.Option(help="Share of cycles in which hosts and network stall at random.")]
Latency = Annotated[int, typer.Option(help="Cycles that a word spends in the network.")]
LinkDown = Annotated[
    list[str] | None,
    typer.Option("--link-down", help="Nothing passes a port of the Ethernet, fpga1:2000:12000; several times."),
]
Reset = Annotated[
    list[str] | None,
    typer.Option("--reset", help="A device on the Ethernet loses all it holds in a cycle, fpga1@50000; several times."),
]
Pcap = Annotated[bool, typer.Option("--pcap", help="Also write all Ethernet frames for Wireshark.")]
Rate = Annotated[float, typer.Option(help="Share of Ethernet frames to which the network does this.")]
Hold = Annotated[
    int,
    typer.Option(
        help="Also watch every stream inside the FPGAs, and hold one after the other up for so many cycles, so that "
        "FIFOs fill and credits run out. 0: neither."
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="A checkpoint that the hardware begins from, weights, momenta and statistics: what `dagtrain train` left "
        "(build/train), or a state.npz of it. Without it, the model's weights.",
        show_default=False,
    ),
]
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
HeldOut = Annotated[
    str | None,
    typer.Option(
        "--held-out",
        help="What is kept from training to judge by: a fraction of the data, or data of its own. [default: 0.2]",
        show_default=False,
    ),
]
Stratify = Annotated[bool, typer.Option("--stratify", help="Hold the fraction out of each class.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from what is there, and fail where that can't be.")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write TensorBoard's event files (needs the extra `tensorboard`).")
]
Epochs = Annotated[int, typer.Option(help="Passes over the training data.")]
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
NetPs = Annotated[int, typer.Option("--net-ps", help="Delay of a net between two cells, in picoseconds.")]
Efficiency = Annotated[
    bool,
    typer.Option(
        "--efficiency/--no-efficiency",
        help="Also run every MAC engine alone in Verilator and measure how many of its slots it uses; "
        "measurements are kept, so a second run costs nothing.",
    ),
]


Job: TypeAlias = "Callable[[Network], Done]"
Jobs: TypeAlias = Sequence[Job]


def _network(out: Path, progress: Progress | None = None) -> Network:
    """What does the work, with all rooms that it brings."""
    from dagtrain.api import Network

    return Network(out, progress, command=typed(sys.argv[1:]))


def _perform(out: Path, voice: Voice, *jobs: Job, served: bool = False) -> None:
    """Run steps in order; every failure a user can cause ends here, as one message and an exit code.

    ``served``: others work beside a cluster that is served; no other process works in the folder of other results."""
    from dagtrain.files import working_folder
    from dagtrain.flow.serve_step import SERVED

    results: list[StepResult] = []
    try:
        with working_folder(out / SERVED if served else out), voice.progress() as progress:
            for job in jobs:
                result = job(_network(out, progress)).result
                results.append(result)
                voice.begin(result)
    except KeyboardInterrupt as stop:
        # here and not in `main`: click turns it into an exit without a word
        told = str(stop) or "interrupted; the results of earlier steps are as they were"
        print(f"\n{told}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    voice.end(results)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def typed(words: Sequence[str]) -> str:
    """A command as it was typed, but for the options of every command: where it works and how much it says."""
    told, rest = ["dagtrain"], iter(words)
    for word in rest:
        if word == OUT_WORD:
            next(rest, "")
        elif word not in VOICE_WORDS and not word.startswith(f"{OUT_WORD}="):
            told.append(word)
    return shlex.join(told)


def _tell(done: Done, voice: Voice) -> None:
    """What leaves no files."""
    voice.facts(done.result)
    if not done.passed:
        raise typer.Exit(1)


def _command(*steps: Callable[..., Jobs]) -> Callable[..., None]:
    """A command that does these steps in order, each with its own of the options of all.

    A step is a function of options, annotated as typer reads them, that returns what is to be done; an option that
    several of them have is one, with the default of the first."""
    found: dict[str, inspect.Parameter] = {}
    all_of: tuple[Callable[..., Any], ...] = (*steps, _everywhere)
    for step in all_of:
        for parameter in inspect.signature(step, eval_str=True).parameters.values():
            found.setdefault(parameter.name, parameter)
    parameters = sorted(found.values(), key=lambda parameter: parameter.default is not inspect.Parameter.empty)

    def command(*, out: Path, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        jobs = [
            job
            for step in steps
            for job in step(**{name: options[name] for name in inspect.signature(step).parameters})
        ]

        def perform() -> None:
            _perform(out, Voice(as_json, quiet, verbose), *jobs, served=_serve in steps)

        if not options.get("mpi"):
            perform()
            return
        from dagtrain.flow.cosim_ranks import on_ranks

        if not on_ranks(out, perform, INTERRUPTED):
            raise typer.Exit(1)

    command.__doc__ = steps[0].__doc__
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _everywhere(
    out: Out = Path("build"), as_json: AsJson = False, quiet: Quiet = False, verbose: Verbose = False
) -> None:
    """Options of every command."""
    del out, as_json, quiet, verbose


def _import_options(
    model: Model,
    norm: Norm = "online",
    recipe: Recipe = None,
    aux: Aux = None,
    data: Data = None,
    split: Splits = None,
    bits: Bits = None,
    count_saturations: Counted = None,
    freeze: Freeze = None,
    copy: Copies = None,
    exchange: ExchangeBy = "central",
    compress: Compress = "none",
) -> ImportOptions:
    """Read an ONNX model and derive its training graph: forward, error, gradient, update, number formats."""
    return ImportOptions(
        model, norm=norm, recipe=recipe, aux=aux, data=data, splits=tuple(split or ()), bits=tuple(bits or ()),
        counted=tuple(count_saturations or ()), freeze=tuple(freeze or ()), copies=tuple(copy or ()),
        exchange=exchange, compress=compress,
    )  # fmt: skip


@wraps(_import_options)
def _import(**given: Any) -> Jobs:
    """Read a model."""
    options = _import_options(**given)
    return (lambda net: net.load(options),)


def _place(
    devices: Devices,
    pin: Pins = None,
    same_device: SameDevice = None,
    exclude: Exclude = None,
    cap: Caps = None,
    least_fps: LeastFps = None,
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
    share_weights: ShareWeights = "never",
    multiply_constants: MultiplyConstants = "never",
    recompute: Recompute = "never",
    update_frames: UpdateFrames = 1,
    ragged_tiles: RaggedTiles = "never",
    share_statistics: ShareStatistics = "never",
    deal_streams: DealStreams = "never",
    small_buffers: SmallBuffers = "never",
    explain: Explain = False,
    mapping: MappingWord = None,
    sweep: Sweep = False,
    runner: RunsOn = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> Jobs:
    """Choose a configuration and an FPGA for every layer, with a proven bound on the throughput.

    Ctrl-C ends the search with the best plan so far; the same command then goes on from it.  Plans are written as they
    are found."""
    from dagtrain.flow.mapping_step import MappingOptions
    from dagtrain.flow.place_options import PlaceOptions
    from dagtrain.flow.sweep_step import SweepOptions

    options = PlaceOptions(
        devices, pins=tuple(pin or ()), same_device=tuple(same_device or ()), exclude=tuple(exclude or ()),
        caps=tuple(cap or ()), least_fps=least_fps, gap=gap, time_limit_seconds=time_limit, solver=solver, seed=seed,
        split=not no_split, copies=tuple(copy or ()), replicas=replicas, remote=tuple(remote or ()),
        stores=not no_remote, dram=not no_dram, share_weights=share_weights,
        multiply_constants=multiply_constants, recompute=recompute,
        update_frames=update_frames, ragged_tiles=ragged_tiles, share_statistics=share_statistics,
        deal_streams=deal_streams, small_buffers=small_buffers,
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


def _emit(weights: Weights = None, state_access: StateAccess = "none", host: HostAccess = None) -> Jobs:
    """Write one folder of Verilog for each FPGA: sources, memory images, constraints, project, manifest."""
    return (lambda net: net.emit(weights=weights, state_access=state_access, host=host),)


def _cosim(
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


def _simulate(
    level: Annotated[
        str,
        typer.Option(
            help="exact: the control of the emitted Verilog, cycle for cycle as cosim; fast: the plan alone, by events "
            "of what layers declare."
        ),
    ] = "exact",
    batches: Batches = 4,
    frames: Annotated[int | None, typer.Option(help="At least so many frames, in whole batches, instead.")] = None,
    stall: Annotated[
        float | None,
        typer.Option(
            help="Share of cycles in which hosts and network stall (exact). [default: 0.25]", show_default=False
        ),
    ] = None,
    latency: Latency = 200,
    seed: Seed = 1,
) -> Jobs:
    """How fast the cluster trains, simulated without the values that it computes: frames/s, idle multipliers, bits on
    cables, what fills and drains around batches."""
    return (
        lambda net: net.simulate(
            level=level, batches=batches, frames=frames, stall=stall, latency_cycles=latency, seed=seed
        ),
    )


def _debug(
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


def _train(
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
) -> Jobs:
    """Train with the hardware's exact arithmetic, in the fast emulator.

    More --epochs of the same training, or the same command after Ctrl-C, go on where it was."""
    return (
        lambda net: net.train(
            epochs=epochs, data=data, held_out=held_out, stratify=stratify, seed=seed, resume=resume,
            checkpoint=checkpoint, tensorboard=tensorboard,
        ),
    )  # fmt: skip


def _drive(
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


def _serve(
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


def _bring_up(
    devices: Devices,
    lint: Annotated[bool, typer.Option(help="Check the Verilog with Verilator.")] = True,
) -> Jobs:
    """Write tops that test the boards of a cluster on Ethernet before anything is trained: words over every link, a
    march through every memory channel, counters that `dagtrain self-test` reads."""
    return (lambda net: net.bring_up(devices=devices, lint=lint),)


def _self_test(
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


@wraps(_train)
def _train_on_data(**given: Any) -> Jobs:
    """As `_train`, where there is data to train on."""
    (train,) = _train(**given)
    return (lambda net: net.nothing_to_train_on(given["data"]) or train(net),)


def _profile(
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


def _export(
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


def _report() -> Jobs:
    """Write one self-contained HTML page: graph, plan, bottleneck, resources, efficiency, curves."""
    return (lambda net: net.report(),)


def _evaluate(
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


def _parallelize(
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
) -> Jobs:
    """Data or model parallelism for every layer on an array of accelerators, by least communication (HyPar)."""
    return (
        lambda network: network.parallelize(
            model=model, net=net, batch=batch, levels=levels, exact=exact, convention=convention
        ),
    )


COMMANDS: dict[str, tuple[Callable[..., Jobs], ...]] = {
    "import": (_import,),
    "place": (_place,),
    "emit": (_emit,),
    "cosim": (_cosim,),
    "simulate": (_simulate,),
    "debug": (_debug,),
    "train": (_train,),
    "serve": (_serve,),
    "drive": (_drive,),
    "bring-up": (_bring_up,),
    "self-test": (_self_test,),
    "profile": (_profile,),
    "report": (_report,),
    "export": (_export,),
    "evaluate": (_evaluate,),
    "parallelize": (_parallelize,),
}
# the steps of `run`
ALL = (_import, _place, _emit, _cosim, _train_on_data, _report)


def _or_check(command: Callable[..., None]) -> Callable[..., None]:
    """The command `import`, with an option that leaves it at looking."""
    names = inspect.signature(_import_options).parameters

    def checked(*, check: bool, **given: Any) -> None:
        if not check:
            command(**given)
            return
        options = _import_options(**{name: given[name] for name in names})
        _tell(_network(given["out"]).check(options), Voice(given["as_json"], given["quiet"], given["verbose"]))

    added = inspect.Parameter("check", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Check)
    parameters = [*inspect.signature(command).parameters.values(), added]
    checked.__doc__ = command.__doc__
    vars(checked)["__signature__"] = inspect.Signature(parameters)
    checked.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return checked


for _name, _steps in COMMANDS.items():
    app.command(_name)(_or_check(_command(*_steps)) if _steps == (_import,) else _command(*_steps))
app.command("run", help="All steps: import, place, emit, cosim, train, report.")(_command(*ALL))


@app.command()
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
    _perform(
        out,
        Voice(as_json, quiet, verbose),
        lambda net: net.estimate(check=check, layers=layers, cycles=cycles, sample=sample, seed=seed, part=part),
    )


@app.command()
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
    _perform(
        out,
        Voice(as_json, quiet, verbose),
        lambda net: net.timing(files=tuple(files or ()), net_ps=net_ps, module_ps=module_ps, top_ps=top_ps),
    )


@app.command()
def show(out: Out = Path("build"), as_json: AsJson = False) -> None:
    """Print the training graph as a model summary: layer, shape, weights, multiplications, stash.

    On a narrow terminal, the multiplications of the three passes are one number, and counts have three digits."""
    summary = _network(out).summary
    if as_json:
        print(json.dumps({"name": summary.name, "layers": [vars(layer) for layer in summary.layers]}))
    else:
        console = Console()
        console.print(summary_table(summary, console.width))


@app.command()
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
        done = _network(out, progress).probe(
            what, batch=batch, frame=frame, row=row, column=column, channel=channel, limit=limit, data=data, seed=seed
        )
    _tell(done, voice)


@app.command()
def status(out: Out = Path("build"), as_json: AsJson = False) -> None:
    """What the steps left in the working folder, whether it still holds, and what to run next.

    Changes nothing."""
    _tell(_network(out).status(), Voice(as_json))


@app.command()
def clean(
    steps: Annotated[
        list[str] | None,
        typer.Argument(help="Steps whose results go; default: all.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    out: Out = Path("build"),
    as_json: AsJson = False,
) -> None:
    """Remove what steps left in the working folder, and nothing else that lies there.

    Asks first, as training may have taken hours; without a terminal --yes must be said."""
    from dagtrain.files import working_folder

    with working_folder(out):
        net, named = _network(out), tuple(steps or ())
        found = net.cleanable(*named)
        if found.folders and not yes:
            if not sys.stdin.isatty():
                raise DagtrainError(f"{found.text} would be removed, and there is nobody to ask", "say --yes")
            typer.confirm(f"Remove {found.text}?", abort=True, err=True)
        _tell(net.clean(*named), Voice(as_json))


def crash_report(error: Exception, words: Sequence[str]) -> str:
    """Writes what is known of a fault of this program to a file; returns what to tell the user."""
    text = "".join(traceback.format_exception(error))
    versions = f"dagtrain {version('dagtrain')}, Python {sys.version.split()[0]}, {sys.platform}"
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        path = folder / f"dagtrain-crash-{os.getpid()}.txt"
        try:
            path.write_text(f"{versions}\n{shlex.join(words)}\n\n{text}")
        except OSError:
            continue
        kept = f"{path} holds the details: please report it with that file"
        break
    else:
        kept = "the details could not be written anywhere:\n" + text
    return f"a fault of dagtrain itself, {type(error).__name__}: {error}; earlier results are untouched; {kept}"


def main() -> None:
    """The entry point: one clear message and a non-zero exit code for everything a user can cause; with --json the
    message is a document on standard output too."""
    as_json = "--json" in sys.argv[1:]
    try:
        # words that no command knows are told by typer to people, here to programs
        code = app(prog_name="dagtrain", standalone_mode=not as_json)
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Abort:
        sys.exit(_failed("aborted", (Problem("aborted, nothing was changed"),), 1, as_json))
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "dagtrain"
        problem = Problem(error.format_message(), f"`{where} --help` tells what there is")
        sys.exit(_failed("usage", (problem,), error.exit_code, as_json))
    except DagtrainError as error:
        sys.exit(_failed(type(error).__name__, error.problems, 1, as_json, str(error)))
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        where = f"{error.filename}" if error.filename else ""
        problem = Problem(str(error.strerror or error), "free the place or choose another --out", where)
        sys.exit(_failed("system", (problem,), 1, as_json))
    except MemoryError:
        problem = Problem("out of memory", "close other programs, or take a smaller model or batch")
        sys.exit(_failed("memory", (problem,), 1, as_json))
    except Exception as error:
        sys.exit(_failed("crash", (Problem(crash_report(error, sys.argv)),), CRASHED, as_json))


def _failed(kind: str, problems: Sequence[Problem], code: int, as_json: bool, message: str = "") -> int:
    """Say what went wrong, of ranks that share a simulation the first one; returns the exit code."""
    if MPI_WORD in sys.argv:
        from dagtrain.cosim.mpi import started_first

        if not started_first():
            return code
    message = message or "; ".join(map(str, problems))
    if as_json:
        print(error_json(kind, problems, code, message))
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
