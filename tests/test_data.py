"""Where images come from and how they become frames: kinds of files, preparation, splits, all that can be wrong."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dagtrain.training.data import Augment, DataError, Dataset, Preparation
from dagtrain.training.sources import load_digits, load_mnist5k, read_source
from dagtrain.training.spec import choose_data
from tests.flow_support import Case, new_case

RNG = np.random.default_rng(4)
PIXELS = RNG.integers(0, 256, (12, 3, 6, 5), np.uint8)
LABELS = np.arange(12) % 3


def idx(array: np.ndarray) -> bytes:
    """As MNIST's files are."""
    kinds = {"uint8": 8, "int32": 12, "float32": 13}
    head = struct.pack(">HBB", 0, kinds[array.dtype.name], array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def written(kind: str, folder: Path) -> str:
    """The images of `PIXELS`, or their first channel, in files of a kind; the source that names them."""
    grey = PIXELS[:, 0]
    if kind == "npz":
        np.savez(folder / "data.npz", images=PIXELS.astype(np.float32) / np.float32(255), labels=LABELS)
    elif kind == "npz of bytes, channels last":
        np.savez(folder / "data.npz", images=PIXELS.transpose(0, 2, 3, 1), labels=LABELS.astype(np.uint8))
    elif kind == "npz of one channel":
        np.savez(folder / "data.npz", images=grey, labels=LABELS)
    elif kind == "npy":
        np.save(folder / "images.npy", PIXELS)
        np.save(folder / "labels.npy", LABELS)
        return f"{folder}/images.npy,{folder}/labels.npy"
    elif kind == "idx":
        (folder / "train-images-idx3-ubyte").write_bytes(idx(grey))
        (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS.astype(np.uint8)))
        return f"{folder}/train-images-idx3-ubyte"
    elif kind == "idx.gz":
        (folder / "pixels.gz").write_bytes(gzip.compress(idx(PIXELS)))
        (folder / "classes.gz").write_bytes(gzip.compress(idx(LABELS.astype(np.int32))))
        return f"{folder}/pixels.gz,{folder}/classes.gz"
    elif kind == "csv":
        rows = [",".join(map(str, (label, *image.ravel()))) for label, image in zip(LABELS, grey[:, :5], strict=True)]
        (folder / "data.csv").write_text("\n".join(rows) + "\n")
        return f"{folder}/data.csv"
    elif kind == "csv with names":
        rows = [",".join(map(str, (*image.ravel(), label))) for label, image in zip(LABELS, grey[:, :5], strict=True)]
        names = ",".join([*(f"pixel{index}" for index in range(25)), "label"])
        (folder / "data.csv").write_text("\n".join([names, *rows]) + "\n")
        return f"{folder}/data.csv"
    elif kind == "folder":
        for index, (label, image) in enumerate(zip(LABELS, PIXELS, strict=True)):
            place = folder / "pictures" / "abc"[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{index:02d}.png")
        return f"{folder}/pictures"
    return f"{folder}/data.npz"


KINDS = {
    "npz": PIXELS,
    "npz of bytes, channels last": PIXELS,
    "npz of one channel": PIXELS[:, :1],
    "npy": PIXELS,
    "idx": PIXELS[:, :1],
    "idx.gz": PIXELS,
    "csv": PIXELS[:, :1, :5],
    "csv with names": PIXELS[:, :1, :5],
    "folder": PIXELS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_images_come_out_of_files_of_every_kind(kind: str, tmp_path: Path) -> None:
    wanted = KINDS[kind].transpose(0, 2, 3, 1) / 255
    data = read_source(written(kind, tmp_path)).fitted(wanted.shape[1:])
    # a folder has its pictures class by class
    order = np.argsort(LABELS, kind="stable") if kind == "folder" else np.arange(12)
    np.testing.assert_array_equal(data.classes(), LABELS[order])
    np.testing.assert_allclose(data.frames(), wanted[order], atol=1e-7)
    np.testing.assert_allclose(data.frames(np.array([5, 1])), wanted[order][[5, 1]], atol=1e-7)


def test_mnist5k_has_500_images_of_each_digit_and_pads_to_what_a_model_wants() -> None:
    data = load_mnist5k()
    assert (len(data), data.images.shape[1:]) == (5000, (1, 28, 28))
    np.testing.assert_array_equal(np.bincount(data.classes()), [500] * 10)
    wide = data.fitted((32, 32, 1)).frames(np.arange(3))
    assert wide.shape == (3, 32, 32, 1)
    assert wide.max() == 1
    np.testing.assert_array_equal(wide[:, 2:30, 2:30], data.fitted((28, 28, 1)).frames(np.arange(3)))
    assert np.count_nonzero(wide) == np.count_nonzero(wide[:, 2:30, 2:30])


def test_memory_maps_are_read_where_they_are_needed_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "images.npy", PIXELS)
    np.save(tmp_path / "labels.npy", LABELS)
    train, held_out = choose_data(f"{tmp_path}/images.npy,{tmp_path}/labels.npy", "0.25").parts(seed=3)
    read: list[int] = []
    make = Preparation.frames

    def count(self: Preparation, stored: np.ndarray, draw: object = None) -> np.ndarray:
        read.append(len(stored))
        return make(self, stored, draw)

    monkeypatch.setattr(Preparation, "frames", count)
    for part in (train, held_out):
        assert isinstance(part.images, np.memmap)
    batches = list(train.fitted((6, 5, 3)).batches(4, 1, 0))
    frames = train.fitted((6, 5, 3)).frames(batches[0])
    assert read == [4]
    stored = np.random.default_rng(3).permutation(12)[3:][batches[0]]
    np.testing.assert_allclose(frames, PIXELS[stored].transpose(0, 2, 3, 1) / 255)


def test_a_memory_map_may_be_larger_than_memory(tmp_path: Path) -> None:
    shape = (3, 224, 224)
    count = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // math.prod(shape)
    # a file of holes, which take no room, but where images are written
    images = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.uint8, (count, *shape))
    np.save(tmp_path / "labels.npy", np.arange(count) % 10)
    before = resident_bytes()
    train, held_out = choose_data(f"{tmp_path}/images.npy,{tmp_path}/labels.npy", "0.25").parts(seed=3)
    assert len(train) + len(held_out) == count
    order = np.random.default_rng(3).permutation(count)[round(count / 4) :]
    for index in itertools.islice(train.fitted((224, 224, 3)).batches(4, 1, 0), 3):
        images[order[index]] = index.reshape(-1, 1, 1, 1) % 251
        frames = train.fitted((224, 224, 3)).frames(index)
        np.testing.assert_allclose(frames, np.broadcast_to((index % 251 / 255).reshape(-1, 1, 1, 1), frames.shape))
        np.testing.assert_array_equal(train.classes(index), order[index] % 10)
    assert resident_bytes() - before < 100e6


def resident_bytes() -> int:
    """What this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nan_in_a_memory_map_is_found_when_it_is_read(tmp_path: Path) -> None:
    images = np.zeros((4, 1, 2, 2), np.float32)
    images[2, 0, 1, 1] = np.nan
    np.save(tmp_path / "i.npy", images)
    np.save(tmp_path / "l.npy", np.zeros(4, int))
    data = read_source(f"{tmp_path}/i.npy,{tmp_path}/l.npy")
    data.frames(np.array([0, 1, 3]))
    with pytest.raises(DataError, match="images hold NaN or infinity"):
        data.frames(np.array([1, 2]))


# ---- splits and preparation


def test_a_stratified_split_keeps_the_share_of_each_class() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    data = Dataset(np.arange(100, dtype=np.float32).reshape(100, 1, 1, 1), labels)
    train, held_out = data.split(0.2, seed=5, stratify=True)
    np.testing.assert_array_equal(np.bincount(held_out.classes()), [12, 6, 2])
    assert sorted([*train.frames().ravel(), *held_out.frames().ravel()]) == list(range(100))
    np.testing.assert_array_equal(held_out.frames(), data.split(0.2, 5, stratify=True)[1].frames())


def test_a_split_without_classes_is_the_one_it_has_always_been() -> None:
    order = np.random.default_rng(7).permutation(1797)
    train, held_out = load_digits().split(0.2, seed=7)
    np.testing.assert_array_equal(held_out.frames(), load_digits().images[order[:359]].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(train.classes(), load_digits().labels[order[359:]])


def test_frames_are_scaled_sized_and_normalised_in_this_order() -> None:
    stored = np.arange(2 * 2 * 2 * 2).reshape(2, 2, 2, 2).astype(np.uint8)
    prepare = Preparation(layout="NCHW", scale=0.5, mean=(1.0, 2.0), std=(2.0,), pad=True, size=(3, 4))
    frames = Dataset(stored, np.zeros(2, int), prepare).frames()
    assert frames.shape == (2, 3, 4, 2)
    wanted = (np.pad(stored * 0.5, ((0, 0), (0, 0), (0, 1), (1, 1))).transpose(0, 2, 3, 1) - [1, 2]) / 2
    np.testing.assert_array_equal(frames, wanted)


def test_augmentation_moves_cuts_and_mirrors_the_same_way_for_the_same_draw() -> None:
    rng = np.random.default_rng(2)
    stored = rng.integers(1, 255, (64, 1, 8, 8), np.uint8)
    prepare = Preparation(layout="NCHW", crop=True, size=(6, 6), augment=Augment(flip=True, shift=1, seed=9))
    data = Dataset(stored, np.zeros(64, int), prepare)
    np.testing.assert_array_equal(data.frames(), stored[:, 0, 1:7, 1:7, None])
    drawn = data.frames(draw=(0, 3))
    np.testing.assert_array_equal(drawn, data.frames(draw=(0, 3)))
    assert not np.array_equal(drawn, data.frames(draw=(1, 3)))
    assert not np.array_equal(drawn, data.frames(draw=(0, 4)))
    seen = set()
    for image, frame in zip(stored[:, 0], drawn[..., 0], strict=True):
        found = [
            (top, left, down, right, flip)
            for top in range(3)
            for left in range(3)
            for down in (0, 1, 2)
            for right in (0, 1, 2)
            for flip in (1, -1)
            if np.array_equal(
                np.pad(image[top : top + 6, left : left + 6], 1)[down : down + 6, right : right + 6][:, ::flip], frame
            )
        ]
        assert found
        seen.update(found)
    assert {flip for *_, flip in seen} == {1, -1}
    assert {down for _, _, down, _, _ in seen} == {right for _, _, _, right, _ in seen} == {0, 1, 2}


def test_only_training_is_augmented(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text('[data]\nsource = "digits"\nflip = true\nshift = 2\n')
    train, held_out = choose_data(str(tmp_path / "data.toml")).parts(seed=1)
    assert not np.array_equal(train.frames(np.arange(5), (0, 0)), train.frames(np.arange(5)))
    np.testing.assert_array_equal(held_out.frames(draw=(0, 0)), held_out.frames())


# ---- the file


def test_a_data_file_says_all_of_it_with_paths_beside_it(tmp_path: Path) -> None:
    for name, part in (("train", slice(0, 9)), ("test", slice(9, 12))):
        np.savez(tmp_path / f"{name}.npz", images=PIXELS[part].transpose(0, 2, 3, 1), labels=LABELS[part])
    (tmp_path / "data.toml").write_text(
        '[data]\nsource = "train.npz"\nheld_out = "test.npz"\nlayout = "NHWC"\nmean = [0.1, 0.2, 0.3]\nstd = 0.5\n'
    )
    train, held_out = choose_data(str(tmp_path / "data.toml")).parts(seed=1)
    assert (len(train), len(held_out)) == (9, 3)
    wanted = (PIXELS[9:].transpose(0, 2, 3, 1) / 255 - [0.1, 0.2, 0.3]) / 0.5
    np.testing.assert_allclose(held_out.fitted((6, 5, 3)).frames(), wanted)


def test_one_channel_is_the_same_first_or_last(tmp_path: Path) -> None:
    source = Path(written("idx", tmp_path)).name
    (tmp_path / "data.toml").write_text(f'[data]\nsource = "{source}"\nlayout = "NHWC"\n')
    frames = choose_data(str(tmp_path / "data.toml")).load().fitted((6, 5, 1)).frames()
    np.testing.assert_allclose(frames, PIXELS[:, 0, :, :, None] / 255)


def test_options_go_before_the_file_and_a_held_out_path_is_relative_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "below"
    folder.mkdir()
    (folder / "data.toml").write_text('[data]\nsource = "digits"\nheld_out = 0.5\n')
    np.savez(tmp_path / "test.npz", images=np.zeros((2, 1, 8, 8), np.uint8), labels=[0, 1])
    monkeypatch.chdir(tmp_path)
    assert len(choose_data("below/data.toml").parts(1)[1]) == 898
    assert len(choose_data("below/data.toml", "0.1").parts(1)[1]) == 180
    assert len(choose_data("below/data.toml", "test.npz").parts(1)[1]) == 2


def test_what_identifies_data_follows_the_file_and_all_that_it_names(tmp_path: Path) -> None:
    source = written("folder", tmp_path)
    (tmp_path / "data.toml").write_text('[data]\nsource = "pictures"\n')
    digests = [choose_data(str(tmp_path / "data.toml")).digest]
    assert choose_data(str(tmp_path / "data.toml")).digest == digests[0]
    Image.new("RGB", (5, 6)).save(Path(source) / "a" / "new.png")
    digests.append(choose_data(str(tmp_path / "data.toml")).digest)
    (tmp_path / "data.toml").write_text('[data]\nsource = "pictures"\nshift = 1\n')
    digests.append(choose_data(str(tmp_path / "data.toml")).digest)
    digests.append(choose_data(str(tmp_path / "data.toml"), "0.3").digest)
    assert len(set(digests)) == 4


# ---- what can be wrong


def broken(kind: str, folder: Path) -> str:
    """A source that can't be used."""
    match kind:
        case "missing":
            return f"{folder}/nowhere.npz"
        case "misspelt":
            return "digit"
        case "suffix":
            (folder / "data.h5").write_bytes(b"\x89HDF")
            return f"{folder}/data.h5"
        case "no archive":
            (folder / "data.npz").write_text("hello")
            return f"{folder}/data.npz"
        case "no labels":
            np.savez(folder / "data.npz", images=PIXELS)
            return f"{folder}/data.npz"
        case "no rows" | "nothing in it":
            (folder / "data.csv").write_text("label,a\n\n" if kind == "no rows" else "")
            return f"{folder}/data.csv"
        case "no pixels":
            (folder / "data.csv").write_text("1\n2\n")
            return f"{folder}/data.csv"
        case "one of two":
            np.save(folder / "images.npy", PIXELS)
            return f"{folder}/images.npy"
        case "both missing":
            return f"{folder}/a.npy,{folder}/b.npy"
        case "objects":
            np.savez(folder / "data.npz", images=np.array([None, 1]), labels=LABELS)
            return f"{folder}/data.npz"
        case "objects in npy":
            np.save(folder / "i.npy", np.array([{}, 1]))
            np.save(folder / "l.npy", LABELS)
            return f"{folder}/i.npy,{folder}/l.npy"
        case "short idx":
            (folder / "x-images-idx3-ubyte").write_bytes(idx(PIXELS[:, 0])[:-1])
            (folder / "x-labels-idx1-ubyte").write_bytes(idx(LABELS.astype(np.uint8)))
            return f"{folder}/x-images-idx3-ubyte"
        case "cut gz":
            (folder / "i.gz").write_bytes(gzip.compress(idx(PIXELS))[:-30])
            (folder / "l.gz").write_bytes(gzip.compress(idx(LABELS.astype(np.uint8))))
            return f"{folder}/i.gz,{folder}/l.gz"
        case "words":
            (folder / "data.csv").write_text("label,a\n1,2\n3,four\n")
            return f"{folder}/data.csv"
        case "a short row":
            (folder / "data.csv").write_text("0,1,2,3,4\n1,2,3,4\n")
            return f"{folder}/data.csv"
        case "no square":
            (folder / "data.csv").write_text("0.5,2,3,4\n1,2,3,4\n")
            return f"{folder}/data.csv"
        case "no subfolders":
            (folder / "empty").mkdir()
            return f"{folder}/empty"
        case "bad pictures":
            source = written("folder", folder)
            (Path(source) / "a" / "torn.png").write_bytes(b"\x89PNG\r\n")
            Image.new("RGB", (9, 9)).save(Path(source) / "b" / "wide.png")
            return source
        case "integers and floats":
            np.savez(folder / "data.npz", images=PIXELS.astype(int), labels=LABELS / 2)
            return f"{folder}/data.npz"
    raise AssertionError(kind)


BROKEN = {
    "missing": ("nowhere.npz: No such file; give `digits`",),
    "misspelt": ("digit: No such file or data set; give `digits`, `mnist5k`",),
    "suffix": ("data.h5 is of no known kind; give `digits`",),
    "no archive": ("data.npz is not a readable .npz file: it is no archive of arrays; save it by numpy.savez",),
    "no labels": ("data.npz holds images, but no labels; save it by numpy.savez",),
    "no rows": ("data.csv has no rows; write one an image",),
    "nothing in it": ("data.csv has no rows; write one an image",),
    "no pixels": ("its rows have no pixels; write a label, then all pixels",),
    "one of two": ("holds images or labels, not both; give both: --data .*images.npy,LABELS.npy",),
    "both missing": ("a.npy: No such file", "b.npy: No such file"),
    "objects": ("images holds Python objects, not numbers; save it with a numeric dtype",),
    "objects in npy": ("i.npy holds Python objects, not numbers",),
    "short idx": (r"has 375 bytes, not those of uint8 numbers of \(12, 6, 5\); download it again",),
    "cut gz": ("i.gz can't be read",),
    "words": ("data.csv is no table of numbers", "four"),
    "a short row": (
        "data.csv is no table of numbers: .*from 5 to 4 at row 2; write a label and as many pixels in each",
    ),
    "no square": ("its rows have 3 pixels", r"set `shape = \[channels", "its labels are no whole numbers"),
    "no subfolders": ("it has no subfolders, one a class",),
    "bad pictures": ("torn.png is no readable picture", r"wide.png is \(9, 9, 3\), the first picture is \(6, 5, 3\)"),
    "integers and floats": ("images must be floating point.*not int64", "labels must be integers, not float64"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_source_that_cannot_be_used_is_told_with_all_that_is_wrong(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_source(broken(kind, tmp_path))
    for pattern in BROKEN[kind]:
        assert caught.match(pattern)


FILES = {
    "nothing": ("", ("data.source is missing",)),
    "all at once": (
        'source = "digits"\nheld_out = 1.5\nsize = 3\nshift = -1\nstd = [0.0]\nlayout = "HWC"\n[other]\n',
        (
            "unknown key other",
            "unknown key data.size; known are crop, flip",
            r"data.held_out = 1.5 is neither a fraction in \(0, 1\) nor a source",
            "data.shift = -1: input should be greater",
            "data.std",
            "data.layout = 'HWC': input should be ",
        ),
    ),
    "stratified files": ('source = "digits"\nheld_out = "digits"\nstratify = true\n', ("can't be stratified",)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_data_file_is_refused_with_all_that_is_wrong(name: str, tmp_path: Path) -> None:
    text, patterns = FILES[name]
    (tmp_path / "data.toml").write_text(f"[data]\n{text}")
    with pytest.raises(DataError) as caught:
        choose_data(str(tmp_path / "data.toml"))
    for pattern in patterns:
        assert caught.match(pattern)


@pytest.mark.parametrize("text", ["data = 3", "[data", "\xff"])
def test_what_is_no_table_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"data\.toml"):
        choose_data(str(tmp_path / "data.toml"))


def test_images_that_do_not_fit_are_told_with_what_would_make_them_fit() -> None:
    labels = np.zeros(2, int)

    def said(shape: tuple[int, ...], wanted: tuple[int, int, int], layout: str = "") -> str:
        with pytest.raises(DataError) as caught:
            Dataset(np.zeros((2, *shape), np.uint8), labels, Preparation(layout=layout)).fitted(wanted)
        return str(caught.value)

    assert (
        "its images are (3, 32, 32), the model takes (channels, height, width) = (1, 32, 32); give other data"
        in said((3, 32, 32), (32, 32, 1))
    )
    assert "images.transpose(0, 3, 1, 2)" in said((8, 6, 3), (8, 6, 3), "NCHW")
    assert "`pad = true`" in said((1, 28, 28), (32, 32, 1))
    assert "`crop = true`" in said((36, 36, 3), (32, 32, 3))
    with pytest.raises(DataError, match=r"its mean has 2 numbers; give one, or one a channel: 3"):
        Dataset(np.zeros((2, 3, 4, 4)), labels, Preparation(mean=(0.0, 1.0))).fitted((4, 4, 3))


# ---- through the command line


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return new_case(tmp_path / "case")


def test_every_step_takes_a_data_file(case: Case) -> None:
    rng = np.random.default_rng(1)
    np.save(case.root / "images.npy", rng.integers(0, 256, (48, 6, 6, 2), np.uint8))
    np.save(case.root / "labels.npy", rng.integers(0, 3, 48))
    spec = case.write("data.toml", '[data]\nsource = "images.npy,labels.npy"\nstratify = true\nshift = 1\nmean = 0.5\n')
    assert case.step("import", "--data", spec).code == 0
    outcome = case.step("train", "--epochs", 1, "--held-out", 0.25)
    assert outcome.code == 0, outcome.error
    record = json.loads((case.out / "train" / "train.json").read_text())
    assert abs(record["held_out_frames"] - 12) <= 1
    assert record["train_frames"] + record["held_out_frames"] == 48
    assert case.step("evaluate").code == 0
    assert case.step("evaluate", "--data", spec).code == 0
    assert json.loads((case.out / "evaluate" / "evaluate.json").read_text())["frames"] == 48


def test_augmented_training_is_the_same_again_and_not_that_of_plain_images(case: Case) -> None:
    case.data()
    plain = case.write("plain.toml", '[data]\nsource = "data.npz"\n')
    moved = case.write("moved.toml", '[data]\nsource = "data.npz"\nshift = 2\nflip = true\n')
    assert case.step("import", "--data", plain).code == 0
    weights = []
    for spec in (plain, moved, plain, moved):
        assert case.step("train", "--epochs", 1, "--data", spec).code == 0
        weights.append((case.out / "train" / "weights.npz").read_bytes())
    assert weights[0] == weights[2]
    assert weights[1] == weights[3]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("held_out", ["1.5", "0", "nowhere.npz"])
def test_a_held_out_part_that_cannot_be_is_told(held_out: str, case: Case) -> None:
    case.must("import")
    outcome = case.step("train", "--data", case.data(), "--held-out", held_out)
    assert outcome.code == 1
    assert held_out in outcome.error
    assert "Traceback" not in outcome.error


def test_held_out_data_that_do_not_fit_are_named_and_not_those_of_the_training(case: Case) -> None:
    case.must("import")
    path = case.data().rename(case.root / "rest.npz")
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, images=arrays["images"], labels=arrays["labels"] + 1)
    outcome = case.step("train", "--data", case.data(), "--held-out", path)
    assert outcome.code == 1
    assert f"data {path} does not fit net: its labels go up to 3" in outcome.error
