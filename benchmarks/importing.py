"""Which networks go through, and how far: model x exporter x mode x (imports, trains, plans, emits).

    python benchmarks/importing.py                           # all that is not known of this source, then the table
    python benchmarks/importing.py --only vgg --steps imports trains --jobs 2
    python benchmarks/importing.py --new --write             # what was never tried; the table into docs/importing.md
    python benchmarks/importing.py --steps --write           # the table alone

Models are those of `examples/models` (published size and small images), the ``light_*`` files of the onnx package, and
two written in the style of Keras' and scikit-learn's exporters.  What a column says:

* imports: the file at the published size and the one for small images become graphs.
* trains: calibration, then eight batches of the emulator at the small size (two of networks with more than 2**24
  weights), all of the same four frames with random labels; their loss, evaluated without dropout, is lower than before.
  The learning rate is 0.001; 0.0002 where the loss does not fall so (VGG's, in float as well); and where it does not
  fall so either, 0.01 in eight batches with gradients clipped by 0.001, which deep chains of layers without shortcuts
  take whose norms begin with the statistics of four frames: errors grow by a fifth to a third from layer to layer.
  Where the loss does not fall at all, the reason tells what float64 does.  Weights are drawn
  (fill.py) and then scaled, engine by engine, so that every convolution and matrix product has results of unit
  variance, as those of a trained network have (LSUV: Mishkin and Matas, "All you need is a good init", ICLR 2016).
* plans: `dagtrain place` finds a plan at the published size on a large cluster within a time limit; the first will do.
* emits: at the small size, the circuits of every kind of layer in the training graph become Verilog that is clean under
  ``verilator --lint-only -Wall``, two of each kind.

Each step is a process of its own, with a limit of time and of memory.  Results are kept in ``--out``, a file that is
committed, by the digest of the model, with the commit of the source that they are of, so that a run goes on where
another stopped; rows whose graphs are equal but for weights and epsilons share what comes after the import.
"""

from __future__ import annotations

import os

# one BLAS thread a process
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import dataclasses
import hashlib
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import onnx

from dagtrain.emission.modules import ModuleLibrary
from dagtrain.files import write_text
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.training.feeds import synthetic_feeds
from examples.models.published import NETWORKS, UNEXPORTABLE
from examples.models.styles import STYLES
from hdl.cache import cache_folder
from hdl.convert.tools import lint_verilog
from hdl.engine.loss.numbers import METRICS
from hdl.errors import DagtrainError
from hdl.layers.conv.engine import WindowEngine
from hdl.recipe import Recipe
from importers.onnx import import_model
from importers.onnx.skeleton import fill, load_skeleton

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "examples" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
CLUSTER = "agilex-100"
# between two looks for a plan
POLL_SECONDS = 0.5
EXPORTERS, MODES = ("torchscript", "dynamo"), ("eval", "training")
# step -> packages whose source its result depends on
IMPORTING = ("hdl", "importers", "dagtrain/graph", "dagtrain/passes", "dagtrain/schedule", "dagtrain/training")
STEPS = {
    "imports": IMPORTING,
    "trains": IMPORTING,
    "plans": ("hdl", "importers", "placement", "dagtrain"),
    "emits": (*IMPORTING, "dagtrain/emission"),
}
# weights of a tensor that are drawn where only the graph matters
DRAWN = 1 << 12
# of training: batches, those of large networks, of so many weights, and frames of each
BATCHES, FEW_BATCHES, FRAMES = 8, 2, 4
LARGE = 1 << 24
# how it is tried, of which the first does that lets the loss fall
RECIPES = tuple(
    Recipe(batch=FRAMES, learning_rate=rate, clip=clip) for rate, clip in ((0.001, 0.0), (0.0002, 0.0), (0.01, 0.001))
)
# cycles a frame for which circuits are folded that are emitted: few lanes, quick to convert
SLOW = 1 << 24
# circuits of a kind that are emitted
CIRCUITS = 2
# what is kept of what a step took
COSTS = {"cpu_seconds": "CPU s", "gigabytes": "GiB"}
DONE, FAILED, BARRED, OPEN = "✓", "✗", "–", "·"
DOCS, BEGIN, END = ROOT / "docs" / "importing.md", "<!-- begin: benchmarks/importing.py -->", "<!-- end -->"


@dataclass(frozen=True)
class Row:
    """A file, at the published size and for small images; the same where there is but one."""

    network: str
    # exporter and mode, or in whose style it is
    variant: str
    # below examples/models, without suffix; or a file; or one of STYLES
    published: str
    small: str

    @property
    def name(self) -> str:
        """As `--only` finds it."""
        return f"{self.network}-{self.variant}"


def rows() -> Iterator[Row]:
    """All rows of the table."""
    for network in NETWORKS:
        for exporter in EXPORTERS:
            for mode in MODES:
                name = f"{network}-{exporter}-{mode}"
                yield Row(network, f"{exporter}-{mode}", name, f"small/{name}")
    for path in sorted(LIGHT.glob("light_*.onnx")):
        yield Row(path.stem, "onnx", str(path), str(path))
    for style in STYLES:
        yield Row(style, "onnx", style, style)


# ---- one step, in a process of its own


def saved(source: str, folder: Path, drawn: int | None = None) -> Path:
    """The model as a file with weights, ``drawn`` as `fill` takes it."""
    if source.endswith(".onnx"):
        return Path(source)
    if source in UNEXPORTABLE:
        raise DagtrainError(f"PyTorch can't write this file: {UNEXPORTABLE[source]}")
    path = folder / f"{Path(source).name}.onnx"
    skeleton = MODELS / f"{source}.skeleton.gz"
    onnx.save(STYLES[source]() if source in STYLES else fill(load_skeleton(skeleton), drawn), path)
    return path


def graph_digest(graph: Graph) -> str:
    """Of layers and edges, whatever they are called, without weights and the constants added to variances."""
    numbers = {edge: str(number) for number, edge in enumerate(graph.producers)}
    lines = []
    for node in graph.nodes:
        layer = re.sub(r"\b(tensor_id|seed|epsilon)=[^,)]*", "", repr(node.layer))
        lines.append(f"{layer} {[numbers[edge] for edge in node.inputs.values()]} {sorted(node.parameters)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def imports(row: Row, folder: Path) -> dict[str, Any]:
    """Digests of both graphs."""
    graphs = {"small": import_model(saved(row.small, folder, DRAWN))}
    same = row.published == row.small
    graphs["published"] = graphs["small"] if same else import_model(saved(row.published, folder, DRAWN))
    return {size: graph_digest(graph) for size, graph in graphs.items()}


def settled(graph: Graph, feeds: Mapping[str, Any]) -> Graph:
    """The training graph with the weights of every engine scaled for results of unit variance."""
    forward = {
        node.outputs["y"]: node.parameters["w"]
        for node in graph.nodes
        if isinstance(node.layer, WindowEngine) and "w" in node.parameters and "y" in node.outputs
    }
    parameters = dict(graph.parameters)

    def scale(edge: str, result: Any) -> None:
        if edge in forward:
            deviation = max(float(np.sqrt(np.mean(np.square(result)))), 1e-9)
            # what comes behind sees the scaled result
            result /= deviation
            parameters[forward[edge]] = parameters[forward[edge]] / deviation

    Executor(graph, Mode.REFERENCE).step(feeds, scale)
    return dataclasses.replace(graph, parameters=parameters)


def training_graph(row: Row, folder: Path, recipe: Recipe = RECIPES[0]) -> tuple[Graph, Mapping[str, Any]]:
    """The calibrated graph of the small form, and a batch."""
    graph = differentiate(import_model(saved(row.small, folder), recipe=recipe))
    feeds = synthetic_feeds(graph, FRAMES, seed=1)
    return calibrate(settled(graph, feeds), [feeds]), feeds


def trains(row: Row, folder: Path) -> dict[str, Any]:
    """Losses before and after, of evaluation, and the recipe."""
    tried = []
    for recipe in RECIPES:
        graph, feeds = training_graph(row, folder, recipe)
        large = sum(weights.size for weights in graph.parameters.values()) > LARGE
        batches = FEW_BATCHES if large and not recipe.clip else BATCHES
        losses = losses_of(Executor(graph), feeds, batches)
        told = {"learning_rate": recipe.learning_rate, **({"clip": recipe.clip} if recipe.clip else {})}
        if losses[1] < losses[0]:
            return {"losses": losses, "batches": batches, **told}
        with np.errstate(all="ignore"):
            floats = losses_of(Executor(graph, Mode.REFERENCE), feeds, batches)
        words = " and ".join(f"a {name.replace('_', ' ')} of {value}" for name, value in told.items())
        tried.append(
            f"{losses[0]:.3g}, then {losses[1]:.3g} in {batches} batches at {words} (in float64 {floats[1]:.3g})"
        )
    raise DagtrainError(f"the loss does not fall: {'; '.join(tried)}")


def losses_of(executor: Executor, feeds: Mapping[str, Any], batches: int) -> tuple[float, float]:
    """Mean loss of a batch before and after training on it, codes or not."""
    before = executor.evaluate(feeds)
    for _ in range(batches):
        executor.step(feeds)
    return loss(before, executor.mode), loss(executor.evaluate(feeds), executor.mode)


def loss(results: Mapping[str, Any], mode: Mode) -> float:
    """Mean of the records that the loss layer leaves."""
    (records,) = results.values()
    losses = records.reshape(-1, 2)[:, 0]
    return float((METRICS.decode(losses) if mode is Mode.GOLDEN else losses).mean())


def plans(row: Row, folder: Path, seconds: float) -> dict[str, Any]:
    """What the first plan promises; the search for better ones is broken off."""
    devices = ROOT / "examples" / "clusters" / f"{CLUSTER}.toml"
    out = folder / "out"
    place = ["place", "--devices", devices, "--time-limit", seconds, "--no-split"]
    for words in (["import", saved(row.published, folder, DRAWN)], place):
        command = [Path(sys.executable).with_name("dagtrain"), *words, "--out", out, "--json"]
        run_until([str(word) for word in command], out / "place" / "plan.json", folder / "errors")
    return {"frames_per_second": json.loads((out / "place" / "plan.json").read_text())["throughput_fps"]}


def run_until(command: list[str], wanted: Path, told: Path) -> None:
    """Run a command until it ends, or press Ctrl-C as soon as ``wanted`` is there, which comes as a whole.

    Raises `DagtrainError` with the last line that it left in ``told`` where it fails."""
    # what was started in the background ignores Ctrl-C, and what it starts would, too
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with (
        told.open("w") as file,
        subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, preexec_fn=heard) as process,
    ):
        while process.poll() is None and not wanted.exists():
            time.sleep(POLL_SECONDS)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    if process.returncode and not wanted.exists():
        raise DagtrainError((told.read_text().strip().splitlines() or [f"exit code {process.returncode}"])[-1])


def emits(row: Row, folder: Path) -> dict[str, Any]:
    """Names of the modules that are clean."""
    graph = fold_graph(insert_forks(training_graph(row, folder)[0]), SLOW)
    kinds: dict[tuple[object, ...], dict[str, Any]] = {}
    for node in graph.nodes:
        if node.layer.sinks and node.layer.sources:
            window = tuple(getattr(node.layer, name, None) for name in ("kernel", "stride"))
            kinds.setdefault((type(node.layer).__name__, *window), {}).setdefault(repr(node.layer), node.layer)
    library = ModuleLibrary(cache_folder() / "modules")
    names = []
    for layers in kinds.values():
        for layer in list(layers.values())[-CIRCUITS:]:
            module = library.layer(layer)
            path = folder / f"{module.name}.v"
            path.write_text(module.verilog.text)
            lint_verilog([path], module.name)
            names.append(module.name)
    return {"kinds": len(kinds), "modules": names}


def child(step: str, name: str, seconds: float, gigabytes: float) -> int:
    """Do a step of a row and print what came of it as JSON."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 2**30),) * 2)
    works: dict[str, Callable[[Row, Path], dict[str, Any]]] = {
        "imports": imports,
        "trains": trains,
        "plans": partial(plans, seconds=seconds),
        "emits": emits,
    }
    work, row = works[step], next(row for row in rows() if row.name == name)
    with tempfile.TemporaryDirectory(prefix="importing-") as folder:
        try:
            result = {"ok": True, **work(row, Path(folder))}
        except DagtrainError as error:
            further = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
            result = {"ok": False, "reason": str(error.problems[0]).splitlines()[0] + further}
        except MemoryError:
            result = {"ok": False, "reason": f"takes more than {gigabytes:g} GiB"}
    print(json.dumps({**result, **taken()}))
    return 0


def taken() -> dict[str, float]:
    """What this process and those that it started have taken: CPU seconds of all, the memory of the largest in GiB."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "cpu_seconds": round(sum(each.ru_utime + each.ru_stime for each in used), 1),
        "gigabytes": round(max(each.ru_maxrss for each in used) / 2**20, 2),
    }


# ---- all steps


@dataclass(frozen=True)
class Limits:
    """Of one step."""

    seconds: float
    gigabytes: float


@cache
def source_digest(step: str) -> str:
    """Of our source as far as a step depends on it."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for package in STEPS[step]:
        for path in sorted((ROOT / package).rglob("*.py")):
            found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


@cache
def model_digest(source: str) -> str:
    """Of a model's file."""
    if source in UNEXPORTABLE:
        return source
    if source in STYLES:
        return hashlib.sha256(source.encode() + (MODELS / "styles.py").read_bytes()).hexdigest()
    path = Path(source) if source.endswith(".onnx") else MODELS / f"{source}.skeleton.gz"
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def commit() -> str:
    """The newest one, and its date."""
    words = ["git", "log", "-1", "--format=%h of %cs"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


class Results:
    """What is known, in a file."""

    def __init__(self, file: Path, limits: Limits) -> None:
        self.file = file
        self.limits = limits
        self.known: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
        self._lock = threading.Lock()

    def key(self, step: str, row: Row) -> str | None:
        """Under which the result is kept; None if the row's import is not known or failed."""
        if step == "imports":
            what = model_digest(row.published) + model_digest(row.small)
        else:
            imported = self.get("imports", row)
            if imported is None or not imported["ok"]:
                return None
            what = imported["published" if step == "plans" else "small"]
        return f"{step} {hashlib.sha256(what.encode()).hexdigest()[:20]}"

    def get(self, step: str, row: Row) -> dict[str, Any] | None:
        """The result if it is known, of whatever source."""
        key = self.key(step, row)
        return None if key is None else self.known.get(key)

    def is_due(self, step: str, row: Row, new: bool) -> bool:
        """Whether to do the step: it is not known of this source (or, if only what is ``new`` is wanted, of any), or a
        smaller limit cut it off."""
        found = self.get(step, row)
        if found is None:
            return self.key(step, row) is not None
        cut = found.get("limit")
        if cut and (cut["seconds"] < self.limits.seconds or cut["gigabytes"] < self.limits.gigabytes):
            return True
        return not new and found["source"] != source_digest(step)

    def make(self, step: str, row: Row) -> dict[str, Any]:
        """Do the step."""
        key = self.key(step, row)
        assert key is not None, "asked for where the import succeeded"
        result = {"row": row.name, "commit": commit(), "source": source_digest(step), **self._run(step, row)}
        with self._lock:
            self.known[key] = result
            self.save()
        return result

    def save(self) -> None:
        """Write the file, a line a result."""
        lines = (f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in sorted(self.known.items()))
        write_text(self.file, "{\n" + ",\n".join(lines) + "\n}\n")

    def _run(self, step: str, row: Row) -> dict[str, Any]:
        limit = vars(self.limits)
        words = ["--child", step, row.name, "--seconds", str(limit["seconds"]), "--memory", str(limit["gigabytes"])]
        process = subprocess.Popen(
            [sys.executable, __file__, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            # `dagtrain place` keeps the limit itself, after an import
            output, errors = process.communicate(timeout=self.limits.seconds * (2 if step == "plans" else 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"ok": False, "reason": f"not done after {limit['seconds']:g} s", "limit": limit}
        if process.returncode:
            last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            return {"ok": False, "reason": f"crash: {last}"}
        result = dict(json.loads(output.splitlines()[-1]))
        if (step == "plans" and not result["ok"]) or "takes more than" in result.get("reason", ""):
            result["limit"] = limit
        return result


def run(results: Results, chosen: list[Row], steps: list[str], jobs: int, *, new: bool = False) -> None:
    """Do what is not known, step by step, with a line for each; ``new``: only what was never tried."""
    for step in steps:
        wanted: dict[str, Row] = {}
        for row in chosen:
            key = results.key(step, row)
            if key is not None and results.is_due(step, row, new):
                wanted.setdefault(key, row)
        print(f"{step}: {len(wanted)} to do", file=sys.stderr, flush=True)
        number = iter(range(1, len(wanted) + 1))

        def work(row: Row, step: str = step, number: Iterator[int] = number, total: int = len(wanted)) -> None:
            start = time.perf_counter()
            result = results.make(step, row)
            told = DONE if result["ok"] else f"{FAILED} {result['reason']}"
            seconds = time.perf_counter() - start
            costs = "".join(f", {result[name]} {unit}" for name, unit in COSTS.items() if name in result)
            line = f"[{next(number)}/{total}] {row.name} {step} {seconds:.0f} s{costs} {told}"
            print(line, file=sys.stderr, flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, wanted.values()))


# ---- the table


def table(results: Results) -> list[str]:
    """Markdown: a line a network, its variants in one cell, the reasons below."""
    reasons: dict[str, int] = {}

    def mark(step: str, row: Row) -> str:
        found, result = state(results, step, row), results.get(step, row)
        if found != FAILED or result is None:
            return found
        return f"{FAILED}{reasons.setdefault(general(result['reason']), len(reasons) + 1)}"

    networks: dict[str, list[Row]] = {}
    for row in rows():
        networks.setdefault(row.network, []).append(row)
    lines = [f"| model | {' | '.join(STEPS)} |", "|---" * (len(STEPS) + 1) + "|"]
    for network, variants in networks.items():
        cells = []
        for step in STEPS:
            marks = [mark(step, row) for row in variants]
            cells.append(marks[0] if len(set(marks)) == 1 else " ".join(marks))
        lines.append(f"| {network} | {' | '.join(cells)} |")
    if reasons:
        lines += ["", *(f"* {FAILED}{number}: {reason}" for reason, number in reasons.items())]
    return lines


def state(results: Results, step: str, row: Row) -> str:
    """How a cell stands."""
    result = results.get(step, row)
    if result is None:
        imported = results.get("imports", row)
        return OPEN if imported is None or imported["ok"] else BARRED
    return DONE if result["ok"] else FAILED


def sums(results: Results) -> list[str]:
    """Markdown: how many rows stand how at every step, and what a row takes, of those of which that is kept."""
    lines = [f"| step | {DONE} | {FAILED} | {BARRED} | {OPEN} | CPU s, median | most | GiB, most |", "|---" * 8 + "|"]
    for step in STEPS:
        states = Counter(state(results, step, row) for row in rows())
        tried = {key: found for row in rows() if (key := results.key(step, row)) and (found := results.known.get(key))}
        seconds, memory = ([found[name] for found in tried.values() if name in found] for name in COSTS)
        costs = f"{median(seconds):.0f} | {max(seconds):.0f} | {max(memory):.1f}" if seconds else "| |"
        lines.append(f"| {step} | {' | '.join(str(states[mark]) for mark in (DONE, FAILED, BARRED, OPEN))} | {costs} |")
    return lines


def general(reason: str) -> str:
    """A reason without what differs between exporters: names of nodes."""
    reason = re.sub(r"^node \S+ \(", "(", reason)
    return re.sub(r"; supported are .*", "", reason).replace("|", "\\|")


def explained(results: Results) -> str:
    """The table with its legend."""
    legend = f"""Cells of PyTorch's networks stand for TorchScript evaluation, TorchScript training, dynamo evaluation,
dynamo training, one mark where all four agree: {DONE} yes, {FAILED} no, for the reason below, {BARRED} can't be tried,
since it does not import, {OPEN} not run. The first table counts files; costs are of those that ran since costs are
kept. `light_*` are files of the onnx package, of one exporter and of 224×224 alone, where to train takes minutes to
hours; `keras` and `mlp` are written in the style of tf2onnx and skl2onnx. Marks are of {oldest(results)}."""
    return "\n".join([legend, "", *sums(results), "", *table(results)])


def oldest(results: Results) -> str:
    """Of which commits the results are, in words."""
    dates: dict[str, str] = {}
    for found in filter(None, (results.get(step, row) for row in rows() for step in STEPS)):
        name, _, date = found["commit"].partition(" of ")
        dates[name] = date
    listed = sorted(dates, key=dates.__getitem__)
    return (
        f"commits {', '.join(listed)} ({min(dates.values())} to {max(dates.values())})" if listed else "no commit yet"
    )


def write_docs(text: str) -> None:
    """Put the table between its markers."""
    docs = DOCS.read_text()
    before, rest = docs.split(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name holds one of these")
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=list(STEPS))
    parser.add_argument("--new", action="store_true", help="only what was never tried, of whatever source")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--seconds", type=float, default=600, help="after which a step is given up")
    parser.add_argument("--memory", type=float, default=8, help="GiB that a step may take")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"), help="where results are kept")
    parser.add_argument("--write", action="store_true", help=f"write the table into {DOCS.relative_to(ROOT)}")
    parser.add_argument("--child", nargs=2, metavar=("STEP", "ROW"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        step, name = options.child
        return child(step, name, options.seconds, options.memory)
    chosen = [row for row in rows() if any(text in row.name for text in options.only)]
    if not chosen:
        parser.error(f"no row's name holds {' or '.join(options.only)}")
    results = Results(options.out, Limits(options.seconds, options.memory))
    run(results, chosen, options.steps, options.jobs, new=options.new)
    print(explained(results))
    if options.write:
        write_docs(explained(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
