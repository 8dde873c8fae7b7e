"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[
    Path, typer.Option("--out", envvar="DAGTRAIN_OUT", help="Working folder that holds the results of all steps.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also say what is noted on the way; without a terminal, a line a task.")
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Training data: `digits`, `mnist5k`, .npz, .csv or IDX file, folder of pictures, IMAGES.npy,LABELS.npy, "
        "or a data.toml (docs/data.md). Also used to choose binary points; without it, random frames are."
    ),
]
Devices = Annotated[Path, typer.Option(help="TOML file that describes the cluster.", show_default=False)]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result, byte for byte.")]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="A checkpoint that the hardware begins from, weights, momenta and statistics: what `dagtrain train` left "
        "(build/train), or a state.npz of it. Without it, the model's weights.",
        show_default=False,
    ),
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
Copies = Annotated[
    list[str] | None,
    typer.Option(
        "--copy",
        help="layer=copies, as 'conv2=2' or 'layer1*=3': so many copies of the layers of such a name or pattern, each "
        "of which gets some of a batch's frames, with the same bits as one; '*=3:2' makes two, of which the first gets "
        "3 of 5 frames, for boards of unlike clocks, ports or memory; '*=2' is all but losses, what is the "
        "host's, and norms, unless these are `apart` by `import --norm-sync`; may be given several times.",
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
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write TensorBoard's event files (needs the extra `tensorboard`).")
]
Epochs = Annotated[int, typer.Option(help="Passes over the training data.")]
