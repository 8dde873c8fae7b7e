"""`dagtrain import`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from dagtrain.cli.options import Copies, Data
from dagtrain.cli.perform import Jobs, network, tell
from dagtrain.console import Voice
from dagtrain.flow.import_options import ImportOptions

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
        help="What copies leave of gradients that they exchange: none takes nothing of exact sums; "
        "integer:DROP[:WINDOW[:ROUNDING]], as integer:5:7:nearest, takes DROP bits of those below 2^(DROP+WINDOW), by "
        "truncate, nearest or stochastic; bounded:BITS[:WINDOW[:ROUNDING]] takes so many that errors stay below "
        "2^-BITS of the format's range. "
        "Behind it ,feedback keeps what is taken, and adds it to the next batch's. Links carry what is left in fewer "
        "words; ,ratio=R behind it plans for R times fewer, as `dagtrain train` measures it; without, for none fewer.",
    ),
]
NormSyncBy = Annotated[
    str,
    typer.Option(
        "--norm-sync",
        help="Statistics of online normalisation, where layers have copies: together, where there is one of each norm "
        "for the frames of all copies, which have the bits of one; apart, where each copy of a norm has its own, over "
        "its own frames, and bits depend on the number of copies.",
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


def import_options(
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
    norm_sync: NormSyncBy = "together",
) -> ImportOptions:
    """Read an ONNX model and derive its training graph: forward, error, gradient, update, number formats."""
    return ImportOptions(
        model, norm=norm, recipe=recipe, aux=aux, data=data, splits=tuple(split or ()), bits=tuple(bits or ()),
        counted=tuple(count_saturations or ()), freeze=tuple(freeze or ()), copies=tuple(copy or ()),
        exchange=exchange, compress=compress, norm_sync=norm_sync,
    )  # fmt: skip


@wraps(import_options)
def import_(**given: Any) -> Jobs:
    """Read a model."""
    options = import_options(**given)
    return (lambda net: net.load(options),)


def or_check(command: Callable[..., None]) -> Callable[..., None]:
    """The command `import`, with an option that leaves it at looking."""
    names = inspect.signature(import_options).parameters

    def checked(*, check: bool, **given: Any) -> None:
        if not check:
            command(**given)
            return
        options = import_options(**{name: given[name] for name in names})
        tell(network(given["out"]).check(options), Voice(given["as_json"], given["quiet"], given["verbose"]))

    added = inspect.Parameter("check", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Check)
    parameters = [*inspect.signature(command).parameters.values(), added]
    checked.__doc__ = command.__doc__
    vars(checked)["__signature__"] = inspect.Signature(parameters)
    checked.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return checked
