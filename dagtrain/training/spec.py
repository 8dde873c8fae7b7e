"""What `--data` says: a source, or a TOML file that also says how its images are prepared; see docs/data.md."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, TypeAdapter, ValidationError

from dagtrain.training.data import NCHW, Augment, DataError, Dataset
from dagtrain.training.sources import BUILT_IN, files_of, read_source
from hdl.errors import Problem
from hdl.records import listed, shown

# of the images, held out of training
HELD_OUT = 0.2

Side = Annotated[int, Field(ge=1)]
Deviation = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _listed(value: Any) -> Any:
    """A number stands for a list of one."""
    return [value] if isinstance(value, int | float) else value


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The keys of a table ``[data]``; a source alone has the defaults."""

    source: str
    # a fraction of the source, or a source of its own
    held_out: Annotated[float, Field(gt=0, lt=1)] | str = HELD_OUT
    # whether the fraction is one of each class
    stratify: bool = False
    layout: Literal["", "NCHW", "NHWC"] = ""
    # channels, height, width of a row of a CSV file
    shape: tuple[Side, Side, Side] | None = None
    # None: 1/255 for 8-bit images, else 1
    scale: FiniteFloat | None = None
    mean: Annotated[tuple[FiniteFloat, ...], BeforeValidator(_listed)] = ()
    std: Annotated[tuple[Deviation, ...], BeforeValidator(_listed)] = ()
    # None: as the source has it
    pad: bool | None = None
    crop: bool | None = None
    # of training only
    flip: bool = False
    shift: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0)] = 1

    def load(self, base: Path) -> Dataset:
        """The images of the source, prepared but not split."""
        return self._prepared(read_source(self.source, base, self.shape), training=True)

    def parts(self, base: Path, seed: int) -> tuple[Dataset, Dataset]:
        """(training part, held-out part)."""
        if isinstance(self.held_out, float):
            train, held_out = self.load(base).split(self.held_out, seed, self.stratify)
            return train, self._prepared(held_out, training=False)
        found, problems = [], list[Problem]()
        for source in (self.source, self.held_out):
            try:
                found.append(read_source(source, base, self.shape))
            except DataError as error:
                problems += error.problems
        if problems:
            raise DataError.listing("", problems)
        return self._prepared(found[0], training=True), self._prepared(found[1], training=False)

    def files(self, base: Path) -> tuple[Path, ...]:
        """All that it names."""
        apart = files_of(self.held_out, base) if isinstance(self.held_out, str) else ()
        return (*files_of(self.source, base), *apart)

    def _prepared(self, data: Dataset, *, training: bool) -> Dataset:
        own: dict[str, Any] = {name: getattr(self, name) for name in ("layout", "scale", "pad", "crop")}
        given = {name: value for name, value in own.items() if value not in (None, "")}
        if data.prepare.layout == NCHW and data.images.shape[1] == 1:
            # first or last, one channel has the same pixels
            given.pop("layout", None)
        augment = Augment(flip=self.flip, shift=self.shift, seed=self.seed) if training else Augment()
        prepare = dataclasses.replace(data.prepare, **given, mean=self.mean, std=self.std, augment=augment)
        return dataclasses.replace(data, prepare=prepare)


@dataclass(frozen=True)
class DataChoice:
    """A specification and the folder that its paths are relative to."""

    spec: DataSpec
    base: Path = Path()
    # as the user named it
    name: str = ""

    @property
    def digest(self) -> str:
        """What identifies the data: the specification and its files; of folders and .npy files, which may be large,
        names, sizes and times."""
        found = hashlib.sha256(json.dumps(dataclasses.asdict(self.spec), sort_keys=True).encode())
        for path in self.spec.files(self.base):
            found.update(str(path.name).encode())
            large = sorted(path.rglob("*")) if path.is_dir() else [path] if path.suffix == ".npy" else []
            for file in large:
                if file.is_file():
                    status = file.stat()
                    found.update(f"{file.relative_to(path.parent)} {status.st_size} {status.st_mtime_ns}".encode())
            if path.is_file() and not large:
                with path.open("rb") as opened:
                    found.update(hashlib.file_digest(opened, "sha256").digest())
        return found.hexdigest()

    @property
    def names(self) -> tuple[str, str]:
        """Of the training part's data and the held-out part's, which may have a source of its own."""
        return self.name, self.spec.held_out if isinstance(self.spec.held_out, str) else self.name

    def load(self) -> Dataset:
        """All images of the source."""
        return self.spec.load(self.base)

    def parts(self, seed: int) -> tuple[Dataset, Dataset]:
        """(training part, held-out part)."""
        return self.spec.parts(self.base, seed)


def choose_data(name: str, held_out: str | None = None, stratify: bool = False) -> DataChoice:
    """What ``--data``, ``--held-out`` and ``--stratify`` say; the options go before the file.

    Raises `DataError` with all that is wrong in a TOML file."""
    path = Path(name)
    if path.suffix == ".toml":
        choice = DataChoice(_read_spec(path), path.parent, name)
    else:
        choice = DataChoice(DataSpec(source=name), Path(), name)
    changes: dict[str, Any] = {"stratify": True} if stratify else {}
    if held_out is not None:
        changes["held_out"] = _fraction_or_source(held_out)
    spec = dataclasses.replace(choice.spec, **changes)
    if spec.stratify and isinstance(spec.held_out, str):
        what = f"{name}: held-out data of its own, {spec.held_out}, can't be stratified"
        raise DataError(what, "leave `stratify` out, or hold out a fraction")
    return dataclasses.replace(choice, spec=spec)


def _fraction_or_source(text: str) -> float | str:
    try:
        fraction = float(text)
    except ValueError:
        # an option's path is relative to where the command runs, not to the file
        return text if text in BUILT_IN else ",".join(str(Path(part).resolve()) for part in text.split(","))
    if not 0 < fraction < 1:
        raise DataError(f"--held-out {text} is no fraction in (0, 1)", "give a fraction of the images, or a source")
    return fraction


def _read_spec(path: Path) -> DataSpec:
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "give the path of a data.toml") from error
    except RecursionError:
        raise DataError(f"{path} is not TOML: values are nested too deep", "remove the brackets") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not TOML: {error}") from error
    problems = [
        Problem(f"unknown key {key}", "everything stands in the table [data]") for key in table if key != "data"
    ]
    given = table.get("data", {})
    if not isinstance(given, dict):
        raise DataError(f"{path}: data is no table", "write [data] above its keys")
    known = set(DataSpec.__dataclass_fields__)
    every = f"known are {', '.join(sorted(known))}"
    problems += [Problem(f"unknown key data.{key}", every) for key in given if key not in known]
    spec = None
    try:
        spec = TypeAdapter(DataSpec).validate_python({key: given[key] for key in given if key in known})
    except ValidationError as error:
        # of what may be a number or a text, both are told
        told = [text for text in listed(error, "data") if not text.startswith("data.held_out.")]
        if len(told) < error.error_count():
            what = f"data.held_out = {shown(given['held_out'])} is neither a fraction in (0, 1) nor a source"
            problems.append(Problem(what, "give 0.2, say, or a file"))
        problems += map(Problem, told)
    if problems or spec is None:
        raise DataError.listing(str(path), problems, lines=True)
    return spec
