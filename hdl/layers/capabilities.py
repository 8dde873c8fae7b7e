"""What some layers have and others not, by which a pass asks for them: `isinstance(layer, Randomised)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from hdl.layers.base import Layer
from hdl.layers.storage import Home
from hdl.recipe import LoadedRecipe, Recipe
from hdl.tensor import Tile


@runtime_checkable
class Tiled(Protocol):
    """Works on weights tile by tile; shares the tile with all engines of the same weight."""

    @property
    def tile(self) -> Tile:
        """The weights of a cycle."""


@runtime_checkable
class Randomised(Protocol):
    """Draws random bits, told from those of other layers by a number."""

    @property
    def tensor_id(self) -> int:
        """Of the tensor that is rounded, or dropped from; 32 bits."""


@runtime_checkable
class Batched(Protocol):
    """Knows batches: counts frames, or follows the versions of weights."""

    @property
    def recipe(self) -> Recipe:
        """The training recipe."""


@runtime_checkable
class Counting(Protocol):
    """Counts batches, or the frames of them: its random bits or its learning rate depend on how many there were."""

    @property
    def begun(self) -> int:
        """Batches of an earlier training, from which it counts on when it starts."""


@runtime_checkable
class Composed(Protocol):
    """Is the circuit of several layers, each with ports, pace and meaning of its own."""

    @property
    def engines(self) -> tuple[Layer, ...]:
        """These layers; sinks of one name are one."""


@runtime_checkable
class Freezable(Protocol):
    """Has parameters, and a variant that holds them as they are (`Shape.held_parameters`)."""

    @property
    def frozen(self) -> bool:
        """Whether it does."""


@runtime_checkable
class Summing(Protocol):
    """Sums over a batch, exactly or in so many bits; its state counts those that did not fit as ``wrapped``."""

    @property
    def sum_width(self) -> int:
        """Bits that were chosen for a sum; 0: as many as an exact one takes."""

    @property
    def sum_bits(self) -> int:
        """Bits of a sum."""

    @property
    def least_sum_width(self) -> int:
        """The fewest that can be chosen."""

    @property
    def fitting_sum_width(self) -> int:
        """The fewest that cost no more than a part of what rounding the sum costs."""


@runtime_checkable
class RoundedApart(Protocol):
    """Sums gradients over a batch, and can leave their rounding to others."""

    @property
    def exact(self) -> bool:
        """Whether gradients leave as exact sums."""

    @property
    def roundings(self) -> Mapping[str, Layer]:
        """Source -> the layer that rounds what leaves there if it is exact, to the same bits."""


def rounded_apart(layer: Layer) -> Layer:
    """The layer with exact gradients, if it has any.  Raises `ShapeError` where its sums must be rounded in place."""
    return _changed(layer, exact=True) if isinstance(layer, RoundedApart) else layer


@runtime_checkable
class Remembering(Protocol):
    """Keeps a finer copy of a weight, and a momentum, from batch to batch."""

    @property
    def master_width(self) -> int:
        """Bits that were chosen for the copy; 0 for as many as are usual."""

    @property
    def momentum_width(self) -> int:
        """Bits of the momentum."""

    @property
    def least_master_width(self) -> int:
        """The fewest that can be chosen."""

    @property
    def least_momentum_width(self) -> int:
        """The fewest that can be chosen."""


@runtime_checkable
class Updating(Protocol):
    """Sends gradients, makes new weights of them or takes these, once a batch, by lanes that follow from its pace."""

    @property
    def update_frames(self) -> float:
        """Frames' time in which a tensor should pass."""


def updating_within(layer: Layer, frames: float) -> Layer:
    """The layer with lanes for tensors that pass once a batch in so many frames' time, if it has such."""
    return _changed(layer, update_frames=frames) if isinstance(layer, Updating) else layer


@runtime_checkable
class Padding(Protocol):
    """Can be folded for tiles that do not divide its filters."""

    @property
    def ragged(self) -> bool:
        """Whether folding may choose one."""


@runtime_checkable
class Advancing(Protocol):
    """Advances statistics once a frame and channel."""

    @property
    def statistics_shared(self) -> bool:
        """Whether those of few channels at a time, as the pace leaves time for."""


def sharing_statistics(layer: Layer) -> Layer:
    """The layer with statistics of few channels at a time, if it has any."""
    return _changed(layer, statistics_shared=True) if isinstance(layer, Advancing) else layer


@runtime_checkable
class Scaling(Protocol):
    """Multiplies by constants, with adders or on multipliers."""

    @property
    def multiplied(self) -> bool:
        """Whether on multipliers."""


def multiplies(layer: Layer) -> bool:
    """Whether it multiplies by constants, on multipliers."""
    return isinstance(layer, Scaling) and layer.multiplied


def on_multipliers(layer: Layer) -> Layer | None:
    """The layer with its products by constants on multipliers; None where it has none."""
    if not isinstance(layer, Scaling):
        return None
    found = _changed(layer, multiplied=True)
    return found if layer.multiplied or found.multipliers > layer.multipliers else None


@runtime_checkable
class Compressing(Protocol):
    """Hands on what a codec has left few bits of, in few words of links or as it is: the same values."""

    @property
    def codec(self) -> object | None:
        """That codec; None: there is none."""

    @property
    def plain(self) -> bool:
        """Whether links carry it as it is."""


def is_plain(layer: Layer) -> bool:
    """Whether links carry as it is what a codec has left few bits of."""
    return isinstance(layer, Compressing) and layer.codec is not None and layer.plain


def sent_plain(layer: Layer, plain: bool = True) -> Layer | None:
    """The layer whose values links carry as they are, or not; None where no codec has left few bits of them."""
    if not isinstance(layer, Compressing) or layer.codec is None:
        return None
    return _changed(layer, plain=plain)


def frozen(layer: Layer) -> Layer | None:
    """The layer with all its parameters held; None where it has no such variant."""
    return _changed(layer, frozen=True) if isinstance(layer, Freezable) else None


def engines_of(layer: Layer) -> tuple[Layer, ...]:
    """The layers that a circuit is of: mostly the one."""
    return layer.engines if isinstance(layer, Composed) else (layer,)


def with_own_memory(layer: Layer) -> Layer:
    """The layer, its memory its own where it borrows one."""
    return (layer.at(Home.ON_CHIP) or layer) if layer.borrowed else layer


def is_engine(layer: Layer) -> bool:
    """Whether a layer multiplies tile by tile."""
    return isinstance(layer, Tiled) and bool(layer.macs and layer.multipliers)


def of_copy(layer: Layer, copy: int, copies: int, shares: tuple[int, ...] = ()) -> Layer:
    """The layer with its recipe of one of several copies, if it knows batches; ``shares`` as in `Dealt`."""
    if not isinstance(layer, Batched):
        return layer
    return _changed(layer, recipe=layer.recipe.of_copy(copy, copies, shares))


def is_further_copy(layer: Layer) -> bool:
    """Whether it is one of several copies, and not the first."""
    return isinstance(layer, Batched) and layer.recipe.dealt is not None and layer.recipe.dealt.copy > 0


def as_first_copy(layer: Layer) -> Layer:
    """The layer as if it were the first of several copies with as many frames as it has."""
    if not isinstance(layer, Batched) or layer.recipe.dealt is None:
        return layer
    return _changed(layer, recipe=dataclasses.replace(layer.recipe, dealt=layer.recipe.dealt.as_first))


def recipe_of(layer: Layer, recipe: Recipe) -> Recipe:
    """That of the layer, or the training's where it has none."""
    return layer.recipe if isinstance(layer, Batched) else recipe


def with_random_bits_of(layer: Layer, tensor_id: int) -> Layer:
    """The layer with the random bits of this number, if it draws any."""
    return _changed(layer, tensor_id=tensor_id) if isinstance(layer, Randomised) else layer


def going_on(layer: Layer, batches: int) -> Layer:
    """The layer after so many batches of an earlier training, if it counts them."""
    return _changed(layer, begun=batches) if isinstance(layer, Counting) else layer


def with_loaded_state(layer: Layer) -> Layer:
    """The layer whose state, and version 0 of its weights, come by streams, if it has a recipe that says so."""
    if not isinstance(layer, Batched):
        return layer
    return _changed(layer, recipe=LoadedRecipe.of(layer.recipe))


def with_ragged_tiles(layer: Layer) -> Layer:
    """The layer with ragged tiles among those that it can be folded for, if there are such."""
    return _changed(layer, ragged=True) if isinstance(layer, Padding) else layer


@runtime_checkable
class Buffering(Protocol):
    """Stores pixels of a map, and can be folded so that these take few block memories."""

    @property
    def small_buffers(self) -> bool:
        """Whether it is."""


def with_small_buffers(layer: Layer) -> Layer:
    """The layer with small buffers of its map, if it has such."""
    return _changed(layer, small_buffers=True) if isinstance(layer, Buffering) else layer


def with_sums_of(layer: Layer, bits: int) -> Layer:
    """The layer with sums of so many bits, if it sums over a batch."""
    return _changed(layer, sum_width=bits) if isinstance(layer, Summing) else layer


def with_memory_of(layer: Layer, **bits: int) -> Layer:
    """The layer with so many bits of ``master_width`` or ``momentum_width``, if it keeps such."""
    return _changed(layer, **bits) if isinstance(layer, Remembering) else layer


def without_staleness(layer: Layer) -> Layer:
    """The layer, computing all frames of a batch with the newest weights."""
    if not isinstance(layer, Batched):
        return layer
    return _changed(layer, recipe=dataclasses.replace(layer.recipe, staleness=0))


def _changed(layer: Layer, **fields: Any) -> Layer:
    found: Layer = dataclasses.replace(layer, **fields)  # type: ignore[type-var]
    return found
