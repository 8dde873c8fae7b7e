"""Data sets: images with labels, split into a training and a held-out part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagtrain.files import open_archive
from hdl.errors import DagtrainError

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class DataError(DagtrainError):
    """A data set that can't be used; the message lists all problems."""


@dataclass(frozen=True)
class Dataset:
    """``images`` (count, channels, height, width) and ``labels`` (count,), class numbers from 0."""

    images: Images
    labels: Labels

    def __post_init__(self) -> None:
        problems = []
        if self.images.ndim != 4:
            problems.append(f"images must be (count, channels, height, width), not {self.images.shape}")
        if self.labels.shape != self.images.shape[:1]:
            problems.append(f"labels must be one an image, ({len(self.images)},), not {self.labels.shape}")
        if not np.issubdtype(self.labels.dtype, np.integer) or (self.labels.size and self.labels.min() < 0):
            problems.append(f"labels must be integers from 0, not {self.labels.dtype}")
        if not np.isfinite(self.images).all():
            problems.append("images hold NaN or infinity")
        if not len(self.images):
            problems.append("the data set is empty")
        if problems:
            raise DataError.listing("", problems)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def frames(self) -> npt.NDArray[np.float64]:
        """Images as the graph takes them: (count, height, width, channels)."""
        return np.ascontiguousarray(self.images.transpose(0, 2, 3, 1), dtype=np.float64)

    def split(self, held_out: float = 0.2, seed: int = 0) -> tuple[Dataset, Dataset]:
        """(training part, held-out part) of a seeded shuffle; ``held_out`` is the fraction 0 < f < 1 of the latter."""
        if not 0 < held_out < 1:
            raise DataError(f"the held-out fraction must lie in (0, 1), not {held_out}")
        order = np.random.default_rng(seed).permutation(len(self))
        count = round(len(self) * held_out)
        if not 0 < count < len(self):
            raise DataError(f"{len(self)} images can't be split with a held-out fraction of {held_out}")
        return self.take(order[count:]), self.take(order[:count])

    def take(self, index: npt.NDArray[np.int64]) -> Dataset:
        """The images at ``index``, in its order."""
        return Dataset(self.images[index], self.labels[index])

    def batches(self, size: int, seed: int, epoch: int) -> Iterator[npt.NDArray[np.int64]]:
        """Indices of each full batch of an epoch, shuffled by (seed, epoch); a smaller rest is left out."""
        if len(self) < size:
            raise DataError(f"a batch of {size} does not fit into {len(self)} images", "make the batch smaller")
        order = np.random.default_rng((seed, epoch)).permutation(len(self))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]


def load_dataset(source: str | Path) -> Dataset:
    """The data set ``digits`` (built in, needs scikit-learn), or that of an ``.npz`` file with images and labels."""
    return load_digits() if str(source) == "digits" else load_npz(Path(source))


def load_npz(path: Path) -> Dataset:
    """A file with ``images`` (count, channels, height, width), floating point, and ``labels`` (count,), integers."""
    try:
        with open_archive(path) as file:
            missing = [name for name in ("images", "labels") if name not in file]
            if missing:
                raise DataError(f"{path} holds {', '.join(file.files) or 'nothing'}, but no {' and no '.join(missing)}")
            images, labels = file["images"], file["labels"]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable .npz file: {error}") from None
    if not np.issubdtype(images.dtype, np.floating):
        raise DataError(f"{path}: images must be floating point, scaled to about -1..1, not {images.dtype}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{path}: labels must be integers, not {labels.dtype}")
    return Dataset(images.astype(np.float32), labels.astype(np.int64))


def load_digits() -> Dataset:
    """The 1 797 scanned 8x8 digits inside scikit-learn (UCI optical recognition test set), scaled to 0..1."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError:
        raise DataError("the digits data set ships inside scikit-learn", "install it with `make setup`") from None
    pixels, labels = load(return_X_y=True)
    images = np.asarray(pixels, np.float32).reshape(-1, 1, 8, 8) / np.float32(16)
    return Dataset(images, np.asarray(labels, np.int64))
