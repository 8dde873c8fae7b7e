"""What users say of `dagtrain import`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path


@dataclass(frozen=True)
class ImportOptions:
    """What the user said."""

    model: Path
    _: KW_ONLY
    # "online", "none" or "as-is"
    norm: str = "online"
    recipe: Path | None = None
    # weight of the loss of auxiliary heads, instead of the recipe's; None: as the recipe says
    aux: float | None = None
    data: str | None = None
    # "layer=parts", "layer=parts:inputs"
    splits: tuple[str, ...] = ()
    # patterns of names of layers
    freeze: tuple[str, ...] = ()
    # "pattern=copies"; see `dagtrain.passes.replicate`
    copies: tuple[str, ...] = ()
    # see `dagtrain.passes.exchange`
    exchange: str = "central"
    compress: str = "none"
    # "together" or "apart"; see `dagtrain.passes.replicate`
    norm_sync: str = "together"
    # see `dagtrain.passes.widths`
    bits: tuple[str, ...] = ()
    # patterns of edges; see `dagtrain.passes.count_saturations`
    counted: tuple[str, ...] = ()
