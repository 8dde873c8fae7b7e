"""Data sets: images with labels as their source stores them, and how they become what a graph takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.errors import DagtrainError
from hdl.fixed import FloatArray, IntArray

Labels = npt.NDArray[np.int64]
NCHW, NHWC = "NCHW", "NHWC"
# (epoch, batch) from which augmentation draws
Draw = tuple[int, int]


class DataError(DagtrainError):
    """A data set that can't be used; the message lists all problems."""


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What training changes at random in its images; drawn by (seed, epoch, batch)."""

    # half of the images are mirrored, left for right
    flip: bool = False
    # pixels by which an image moves at most, up or down and left or right; what comes in is 0
    shift: int = 0
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """From stored images to frames, in this order: layout, scale, size, augmentation, mean and deviation."""

    # NCHW or NHWC; "": whichever the model takes
    layout: str = ""
    # by which stored numbers are multiplied
    scale: float = 1.0
    # of a channel each, or one for all: frames are (x - mean) / std
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    # smaller images are surrounded by 0; larger ones are cut, at random in training, else to their middle
    pad: bool = False
    crop: bool = False
    # (height, width) of frames; None: as stored
    size: tuple[int, int] | None = None
    augment: Augment = dataclasses.field(default_factory=Augment)

    def frames(self, stored: npt.NDArray[Any], draw: Draw | None = None) -> FloatArray:
        """(count, height, width, channels) of some stored images; ``draw``: augmented."""
        found: FloatArray = (stored if self.layout == NHWC else stored.transpose(0, 2, 3, 1)).astype(np.float64)
        if self.scale != 1:
            found *= self.scale
        rng = None if draw is None else np.random.default_rng((self.augment.seed, *draw))
        found = self._sized(found, rng)
        if rng is not None:
            found = self._augmented(found, rng)
        if self.mean:
            found = found - np.array(self.mean)
        if self.std:
            found = found / np.array(self.std)
        return np.ascontiguousarray(found)

    def _sized(self, frames: FloatArray, rng: np.random.Generator | None) -> FloatArray:
        if self.size is None or frames.shape[1:3] == self.size:
            return frames
        rows, columns = (max(0, wanted - given) for wanted, given in zip(self.size, frames.shape[1:3], strict=True))
        around = ((0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2), (0, 0))
        frames = np.pad(frames, around)
        spare = [given - wanted for wanted, given in zip(self.size, frames.shape[1:3], strict=True)]
        shape = (len(frames), 2)
        starts = np.full(shape, np.array(spare) // 2) if rng is None else rng.integers(0, np.array(spare) + 1, shape)
        return _windows(frames, starts, self.size)

    def _augmented(self, frames: FloatArray, rng: np.random.Generator) -> FloatArray:
        augment = self.augment
        if augment.shift:
            by = augment.shift
            wide = np.pad(frames, ((0, 0), (by, by), (by, by), (0, 0)))
            frames = _windows(wide, rng.integers(0, 2 * by + 1, (len(frames), 2)), frames.shape[1:3])
        if augment.flip:
            mirrored = rng.integers(0, 2, len(frames)).astype(bool)
            frames = np.where(mirrored[:, None, None, None], frames[:, :, ::-1], frames)
        return frames


def _windows(frames: FloatArray, starts: IntArray, size: tuple[int, ...]) -> FloatArray:
    """Of each frame the part of that size from its own (row, column) on."""
    height, width = size
    parts = [frame[row : row + height, left : left + width] for frame, (row, left) in zip(frames, starts, strict=True)]
    return np.stack(parts)


@dataclass(frozen=True)
class Dataset:
    """``images`` as stored: (count, channels, height, width), or channels last; perhaps a memory map, which is never
    read as a whole.  ``labels`` (count,): class numbers from 0.  `Dataset.frames` is what a graph takes."""

    images: npt.NDArray[Any]
    labels: Labels
    prepare: Preparation = dataclasses.field(default_factory=Preparation)
    # those of the stored images that belong to it, in their order; None: all
    rows: IntArray | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.images.ndim != 4:
            problems.append(
                f"images must be (count, channels, height, width) or (count, height, width), not {self.images.shape}"
            )
        if self.labels.shape != self.images.shape[:1]:
            problems.append(f"labels must be one an image, ({len(self.images)},), not {self.labels.shape}")
        if not np.issubdtype(self.labels.dtype, np.integer):
            problems.append(f"labels must be integers from 0, not {self.labels.dtype}")
        elif self.labels.size and self.labels.min() < 0:
            problems.append(f"labels must be class numbers from 0, the least is {self.labels.min()}")
        if not isinstance(self.images, np.memmap) and not np.isfinite(self.images).all():
            problems.append("images hold NaN or infinity")
        if not len(self.images):
            problems.append("the data set is empty")
        if problems:
            raise DataError.listing("", problems)

    def __len__(self) -> int:
        return len(self.labels if self.rows is None else self.rows)

    def frames(self, index: IntArray | None = None, draw: Draw | None = None) -> FloatArray:
        """(count, height, width, channels) of the images at ``index``, or of all; ``draw``: augmented by that."""
        stored = self.images[self._stored(index)]
        if isinstance(self.images, np.memmap) and not np.isfinite(stored).all():
            raise DataError("images hold NaN or infinity", "clean the file")
        return self.prepare.frames(stored, draw)

    def classes(self, index: IntArray | None = None) -> Labels:
        """Labels of the images at ``index``, or of all."""
        return self.labels[self._stored(index)]

    def _stored(self, index: IntArray | None) -> IntArray:
        rows = np.arange(len(self.labels)) if self.rows is None else self.rows
        return rows if index is None else rows[index]

    def split(self, held_out: float = 0.2, seed: int = 0, stratify: bool = False) -> tuple[Dataset, Dataset]:
        """(training part, held-out part) of a seeded shuffle; ``held_out`` is the fraction 0 < f < 1 of the latter.

        ``stratify``: of each class."""
        if not 0 < held_out < 1:
            raise DataError(f"the held-out fraction must lie in (0, 1), not {held_out}")
        order = np.random.default_rng(seed).permutation(len(self))
        groups = [order]
        if stratify:
            labels = self.classes(order)
            groups = [order[labels == label] for label in np.unique(labels)]
        counts = [round(len(group) * held_out) for group in groups]
        if not 0 < sum(counts) < len(self):
            raise DataError(f"{len(self)} images can't be split with a held-out fraction of {held_out}")
        apart = np.concatenate([group[:count] for group, count in zip(groups, counts, strict=True)])
        rest = np.concatenate([group[count:] for group, count in zip(groups, counts, strict=True)])
        return self.take(rest), self.take(apart)

    def take(self, index: IntArray) -> Dataset:
        """The images at ``index``, in its order."""
        return dataclasses.replace(self, rows=self._stored(index))

    def batches(self, size: int, seed: int, epoch: int) -> Iterator[IntArray]:
        """Indices of each full batch of an epoch, shuffled by (seed, epoch); a smaller rest is left out."""
        if len(self) < size:
            raise DataError(f"a batch of {size} does not fit into {len(self)} images", "make the batch smaller")
        order = np.random.default_rng((seed, epoch)).permutation(len(self))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]

    def fitted(self, shape: tuple[int, int, int]) -> Dataset:
        """The same with frames of (height, width, channels); `DataError` where its images don't fit."""
        height, width, channels = shape
        for name in ("mean", "std"):
            count = len(getattr(self.prepare, name))
            if count not in (0, 1, channels):
                raise DataError(f"its {name} has {count} numbers", f"give one, or one a channel: {channels}")
        given = self.images.shape[1:]
        layouts = [self.prepare.layout] if self.prepare.layout else [NCHW, NHWC]
        for layout in layouts:
            size, depth = (given[1:], given[0]) if layout == NCHW else (given[:2], given[2])
            smaller = any(own < wanted for own, wanted in zip(size, (height, width), strict=True))
            larger = any(own > wanted for own, wanted in zip(size, (height, width), strict=True))
            if depth == channels and not (smaller and not self.prepare.pad) and not (larger and not self.prepare.crop):
                prepare = dataclasses.replace(self.prepare, layout=layout, size=(height, width))
                return dataclasses.replace(self, prepare=prepare)
        raise DataError(
            f"its images are {given}, the model takes (channels, height, width) = {channels, height, width}",
            f"give other data{self._cure(shape)}",
        )

    def _cure(self, shape: tuple[int, int, int]) -> str:
        """How else these images could fit."""
        height, width, channels = shape
        given = self.images.shape[1:]
        for name, axes in (("images.transpose(0, 3, 1, 2)", (2, 0, 1)), ("images.transpose(0, 2, 3, 1)", (1, 2, 0))):
            if tuple(given[axis] for axis in axes) == (channels, height, width):
                return f", or transpose them: {name}"
        depth, size = (given[0], given[1:]) if given[0] == channels else (given[-1], given[:2])
        if depth != channels:
            return ""
        small = any(own < wanted for own, wanted in zip(size, (height, width), strict=True))
        return f", or set `{'pad' if small else 'crop'} = true` in a data.toml (docs/data.md)"
