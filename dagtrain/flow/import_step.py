"""`dagtrain import`: ONNX file -> training graph with number formats, in `graph.json` and `graph.npz`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from dagtrain.files import write_text
from dagtrain.flow.import_options import ImportOptions
from dagtrain.flow.records import ImportRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.show import write_summary
from dagtrain.flow.workspace import COMMANDS, SCHEMA_VERSION, MissingStep, Workspace, digest, file_digest, read_json
from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph, Node
from dagtrain.graph.storage import StorageError, load_graph, save_graph
from dagtrain.graph.summary import summarise
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import CalibrationOptions, calibrate
from dagtrain.passes.count_saturations import count_saturations
from dagtrain.passes.exchange import Exchanging, parse_exchange
from dagtrain.passes.form import Form
from dagtrain.passes.freeze_layers import freeze_layers
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import (
    NormSync,
    copies_from_json,
    copies_to_json,
    parse_copies,
    parse_norm_sync,
    replicate,
    told,
)
from dagtrain.passes.split_layers import Parts, by_rows, split_layers
from dagtrain.passes.split_rows import split_rows
from dagtrain.passes.widths import Widths
from dagtrain.progress import Progress
from dagtrain.training.feeds import check_dataset, feeds_of, synthetic_feeds
from dagtrain.training.spec import choose_data
from hdl.errors import DagtrainError, Problem
from hdl.recipe import SETTINGS, Recipe
from hdl.records import listed
from importers.onnx import Imported, NormChoice, NormMode, external_files, import_model, import_with_notes
from importers.onnx.norm import Fate

IMPORT_COMMAND = COMMANDS["import"]
# batches of the float reference from which binary points are chosen
CALIBRATION_BATCHES = 16
# elements of all frames of a batch that calibration holds as float64: of one map, and of all, most of which are dropped
# after their last reader
LARGEST_MAP = 1 << 26
LARGEST_GRAPH = 1 << 33
# frames a calibration batch may have without data: large models cost seconds a frame
SYNTHETIC_FRAMES = 2


class RecipeError(DagtrainError):
    """A training recipe that cannot be used."""


@dataclass(frozen=True)
class Numbers:
    """What the user said of number formats."""

    widths: Widths
    # patterns of edges behind which saturations are counted
    counted: tuple[str, ...]

    @property
    def record(self) -> dict[str, list[str]]:
        """For ``import.json``."""
        return {"bits": list(self.widths.texts), "counted": list(self.counted)}

    @classmethod
    def of_record(cls, record: ImportRecord) -> Numbers:
        """The inverse of `record`."""
        return cls(Widths.parse(record["bits"]), tuple(record["counted"]))


def run(workspace: Workspace, options: ImportOptions, progress: Progress) -> StepResult:
    """Import unless nothing changed."""
    if not options.model.is_file():
        what = "is no file" if options.model.exists() else "does not exist"
        raise DagtrainError(f"{options.model} {what}", "give the path of an ONNX file")
    recipe = chosen_recipe(options)
    norm = parse_norm(options.norm)
    splits = parse_splits(options.splits)
    copies = parse_copies(options.copies)
    exchange, norm_sync = parse_exchange(options.exchange, options.compress), parse_norm_sync(options.norm_sync)
    numbers = Numbers(Widths.parse(options.bits), options.counted)
    # path: from where `place` imports it again if it splits layers
    source = _source(options.model, options.data)
    depends = {
        **source,
        "name": options.model.stem,
        "norm": norm.value,
        "recipe": asdict(recipe),
        "splits": parts_to_json(splits),
        **numbers.record,
        "freeze": list(options.freeze),
        "copies": copies_to_json(copies),
        "norm_sync": norm_sync.value,
        **exchange.record,
    }
    work = partial(
        _work, options=options, source=source, recipe=recipe, norm=norm, form=Form(splits, copies, norm_sync),
        exchange=exchange, numbers=numbers, progress=progress,
    )  # fmt: skip
    done = workspace.run("import", depends, work)
    folder = workspace.folder("import")
    meta = read_json(folder / "import.json", f"dagtrain import {options.model}", ImportRecord)
    lines = (
        f"{meta['name']}: {meta['layers']} layers, {meta['nodes']} nodes in the training graph, "
        f"{meta['weights']:,} weights" + (f", {meta['frozen']:,} of them frozen" if meta["frozen"] else ""),
        f"multiplications a frame: {meta['forward_macs']:,} forward, {meta['error_macs']:,} error, "
        f"{meta['gradient_macs']:,} gradient; stash {meta['stash_bits']:,} bits",
        *meta.get("notes", []),
    )
    return StepResult("import", folder, done, lines, meta)


def load_training_graph(workspace: Workspace) -> Graph:
    """The training graph that `import` left."""
    return read_graph(workspace.require("import", IMPORT_COMMAND) / "graph.json", IMPORT_COMMAND)


def read_graph(path: Path, command: str) -> Graph:
    """The graph of a step's result.  Raises `MissingStep` for a bad file, with the command that makes it again."""
    try:
        return load_graph(path)
    except StorageError as error:
        raise MissingStep(error.what, f"run `{command}` again") from error


def load_recipe(path: Path | None) -> Recipe:
    """The recipe of a TOML file; the defaults without one.  Unknown keys and bad values are errors, all at once."""
    if path is None:
        return Recipe()
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}", "give the path of a recipe") from error
    except RecursionError:
        raise RecipeError(f"{path} is not TOML: values are nested too deep", "remove the brackets") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error
    known = set(SETTINGS)
    every = f"known are {', '.join(sorted(known))}"
    problems = [Problem(f"unknown key {key}", every) for key in table if key not in known]
    given = {key: value for key, value in table.items() if key in known}
    recipe = None
    while recipe is None:
        try:
            recipe = TypeAdapter(Recipe).validate_python(given)
        except ValidationError as error:
            wrong = {item["loc"][0] for item in error.errors() if item["loc"]}
            problems += map(Problem, listed(error) if wrong else _out_of_range(error))
            # what is in no range is told beside what is of no type
            given = {key: value for key, value in given.items() if key not in wrong} if wrong else {}
    if problems:
        raise RecipeError.listing(str(path), problems, lines=True)
    return recipe


def _out_of_range(error: ValidationError) -> list[str]:
    """What the recipe itself says of its values."""
    return [text for item in error.errors() for text in item["msg"].removeprefix("Value error, ").split("; ")]


def chosen_recipe(options: ImportOptions) -> Recipe:
    """The recipe, with the weight of auxiliary heads that the options name."""
    recipe = load_recipe(options.recipe)
    if options.aux is None:
        return recipe
    try:
        return replace(recipe, auxiliary=options.aux)
    except ValueError as error:
        raise RecipeError(f"--aux {options.aux:g}: {error}", "0.3 is usual") from None


def parse_norm(text: str) -> NormMode:
    """The mode of that name; `DagtrainError` for any other."""
    try:
        return NormMode(text)
    except ValueError:
        choices = ", ".join(mode.value for mode in NormMode)
        raise DagtrainError(f"--norm {text} is unknown", f"choose one of {choices}") from None


def parse_splits(texts: tuple[str, ...]) -> dict[str, Parts]:
    """Layer -> parts of ``layer=parts`` options."""
    found: dict[str, Parts] = {}
    problems = []
    for text in texts:
        layer, _, parts = text.partition("=")
        if not layer:
            problems.append(Problem(f"--split {text!r} is not LAYER=PARTS: no layer is named"))
            continue
        if layer in found:
            problems.append(Problem(f"--split names {layer} twice"))
            continue
        try:
            found[layer] = Parts.parse(parts)
        except DagtrainError as error:
            problems.append(Problem(f"--split {text!r} is not LAYER=PARTS: {error.what}", error.cure))
    if problems:
        raise DagtrainError.listing("", problems)
    return found


def parts_to_json(parts: Mapping[str, Parts]) -> dict[str, str]:
    """As `Parts.parse` reads them."""
    return {layer: str(how) for layer, how in parts.items()}


def parts_from_json(record: Mapping[str, str]) -> dict[str, Parts]:
    """The inverse of `parts_to_json`."""
    return {layer: Parts.parse(text) for layer, text in record.items()}


def model_digest(model: Path) -> str:
    """What identifies a model: the bytes of its file and of the files beside it that hold its weights."""
    return digest([file_digest(model), *(file_digest(path) for path in external_files(model) if path.is_file())])


def data_digest(source: str | None) -> str:
    """What identifies a data set."""
    return str(source) if source is None else choose_data(source).digest


def check_size(graph: Graph, frames: int) -> None:
    """Raises `DagtrainError` for a training graph that calibration could not hold in memory, before it tries."""
    largest = max(graph.nodes, key=_map_elements)
    total = sum(map(_map_elements, graph.nodes)) + sum(value.size for value in graph.parameters.values())
    for elements, most, what in (
        (_map_elements(largest), LARGEST_MAP, f"the map of {largest.name}"),
        (total, LARGEST_GRAPH, f"all maps of {graph.name}"),
    ):
        if elements * frames > most:
            raise DagtrainError(
                f"{graph.name} is too large to be calibrated: {what}, {elements:,} elements a frame, would take "
                f"{elements * frames * 8 / 2**30:,.1f} GiB for {frames} frames, more than {most * 8 / 2**30:.1f}",
                "export the model for smaller images, or choose a smaller batch",
            )


def _map_elements(node: Node) -> int:
    """Elements a frame that a node makes."""
    return sum(port.tensor.elements for port in node.layer.sources if not port.tensor.kind.per_batch)


def _work(
    folder: Path,
    *,
    options: ImportOptions,
    source: Mapping[str, str],
    recipe: Recipe,
    norm: NormMode,
    form: Form,
    exchange: Exchanging,
    numbers: Numbers,
    progress: Progress,
) -> None:
    progress.begin("import", 4)
    imported = import_with_notes(options.model, norm=norm, recipe=recipe)
    forward = split_layers(freeze_layers(imported.graph, options.freeze), form.parts)
    progress.advance(note=f"{len(forward.nodes)} layers")
    training = differentiate(forward)
    progress.advance(note="training graph")
    graph = _with_formats(training, options.data, numbers, form, exchange)
    progress.advance(note="number formats")
    save_graph(graph, folder / "graph.json")
    summary = summarise(graph)
    write_summary(summary, folder / "summary.json")
    meta = {
        "schema_version": SCHEMA_VERSION,
        "model": options.model.name,
        "source": dict(source),
        "splits": parts_to_json(form.parts),
        "freeze": list(options.freeze),
        "copies": copies_to_json(form.copies),
        "norm_sync": form.norm_sync.value,
        **exchange.record,
        "frozen": summary.frozen,
        "name": graph.name,
        "norm": norm.value,
        "data": options.data,
        **numbers.record,
        "layers": len(forward.nodes),
        "nodes": len(graph.nodes),
        "weights": summary.weights,
        "forward_macs": summary.forward_macs,
        "error_macs": summary.error_macs,
        "gradient_macs": summary.gradient_macs,
        "stash_bits": summary.stash_bits,
        "notes": [*_notes(imported), *told(graph, form.norm_sync)],
        "norms": [{"node": item.node, "fate": item.fate.value, "why": item.why} for item in imported.norms],
    }
    write_text(folder / "import.json", json.dumps(meta, indent=1) + "\n")
    progress.end(note=f"{len(graph.nodes)} nodes")


def _notes(imported: Imported) -> list[str]:
    """What was dropped or changed, and where normalisation stands."""
    return [*imported.notes, *norm_lines(imported.norms)]


def norm_lines(norms: Sequence[NormChoice], most: int = 3) -> list[str]:
    """What becomes of normalisation, a line for every reason."""
    groups: dict[tuple[Fate, str], list[str]] = {}
    for choice in norms:
        groups.setdefault((choice.fate, choice.why), []).append(choice.node)
    lines = []
    for (fate, why), nodes in groups.items():
        more = f" and {len(nodes) - most} more" if len(nodes) > most else ""
        cure = "; `--norm as-is` leaves it out" if fate is Fate.PUT_BACK else ""
        lines.append(f"normalisation {fate.value} at {', '.join(nodes[:most])}{more}: {why}{cure}")
    return lines


def _source(model: Path, data: str | None) -> dict[str, str]:
    """Where a graph came from."""
    return {"path": str(model.resolve()), "model": model_digest(model), "data": data_digest(data)}


def imported_form(workspace: Workspace) -> Form:
    """The layers that `import` split, and of which it made copies."""
    meta = read_json(workspace.require("import", IMPORT_COMMAND) / "import.json", IMPORT_COMMAND, ImportRecord)
    return Form(parts_from_json(meta["splits"]), copies_from_json(meta["copies"]), NormSync(meta["norm_sync"]))


def import_again(workspace: Workspace, form: Form) -> Graph:
    """The training graph of the model that was imported, in this form instead of the one that it got then.

    Raises `MissingStep` when the model or the data isn't there any more or has changed."""
    meta = read_json(workspace.require("import", IMPORT_COMMAND) / "import.json", IMPORT_COMMAND, ImportRecord)
    model = Path(meta["source"]["path"])
    try:
        unchanged = dict(meta["source"]) == _source(model, meta["data"])
    except OSError as error:
        raise MissingStep(f"{model} cannot be read: {error.strerror}", f"run `{IMPORT_COMMAND}` again") from error
    if not unchanged:
        raise MissingStep(f"{model}, or its data, has changed since it was imported", f"run `{IMPORT_COMMAND}` again")
    recipe = load_training_graph(workspace).recipe
    whole = freeze_layers(import_model(model, norm=NormMode(meta["norm"]), recipe=recipe), meta["freeze"])
    forward = split_layers(whole, form.parts)
    exchange = parse_exchange(meta["exchange"], meta["compress"])
    return _with_formats(differentiate(forward), meta["data"], Numbers.of_record(meta), form, exchange)


def _with_formats(training: Graph, data: str | None, numbers: Numbers, form: Form, exchange: Exchanging) -> Graph:
    """The streaming graph with the number formats that data, or synthetic frames, ask for, parts of layers by rows, and
    copies of layers."""
    check_size(training, SYNTHETIC_FRAMES if data is None else training.recipe.batch)
    frames = _frames(training, data, training.recipe)
    mode = Mode.SINGLE if data is None else Mode.REFERENCE
    calibrated = calibrate(training, frames, CalibrationOptions(width=numbers.widths, mode=mode))
    split = split_rows(calibrated, by_rows(form.parts))
    copied = replicate(split, form.copies, exchange, form.norm_sync)
    return insert_forks(count_saturations(copied, numbers.counted))


def _frames(graph: Graph, source: str | None, recipe: Recipe) -> Iterator[Mapping[str, npt.ArrayLike]]:
    """Batches for calibration: of the data set, or synthetic frames of unit variance with random labels."""
    if source is not None:
        dataset = check_dataset(graph, choose_data(source).load(), source)
        for count, index in enumerate(dataset.batches(recipe.batch, recipe.seed, 0)):
            if count == CALIBRATION_BATCHES:
                return
            yield feeds_of(graph, dataset, index)
        return
    yield synthetic_feeds(graph, min(SYNTHETIC_FRAMES, recipe.batch), recipe.seed)
