"""dagtrain from Python: what the commands do, as methods of a network, with their options as keywords.

    import dagtrain

    net = dagtrain.load("model.onnx", data="digits")
    plan = net.place("cluster.toml", time_limit_seconds=60)
    print(plan.throughput_fps, plan.device_of("conv1"))

A network is a working folder with a model in it.  Results lie there as the commands leave them, so both can be mixed,
and a step whose inputs are unchanged costs nothing.  The command line is written on top of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from dagtrain import flow
from dagtrain.flow.import_options import ImportOptions
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import BY_PROGRAM, Workspace
from dagtrain.progress import Progress, Silent
from hdl.errors import DagtrainError, Problem

if TYPE_CHECKING:
    from dagtrain.graph.ir import Graph
    from dagtrain.graph.summary import Summary
    from placement.problem.plan import DeviceUse, Plan

P = ParamSpec("P")
Options = TypeVar("Options")
D = TypeVar("D", bound="Done")

FilePath = Path | str


# ---- what methods return


@dataclass(frozen=True)
class Done:
    """What a step left; printed as the command prints it."""

    network: Network
    result: StepResult

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.result.folder

    @property
    def data(self) -> Mapping[str, Any]:
        """What the command prints with --json."""
        return self.result.data

    @property
    def passed(self) -> bool:
        """False when the step ran and its verdict is negative."""
        return self.result.passed

    def __str__(self) -> str:
        return "\n".join(self.result.lines)


@dataclass(frozen=True)
class Placed(Done):
    """A plan that holds, and what is proven of it."""

    @cached_property
    def plan(self) -> Plan:
        """All of it."""
        return flow.placed.load_plan(self.network.workspace)

    @property
    def throughput_fps(self) -> float:
        """Frames a second of training in whole batches, by the recipe."""
        return self.plan.throughput_fps

    @property
    def steady_fps(self) -> float:
        """Frames a second inside a batch."""
        return self.plan.steady_fps

    @property
    def bound_fps(self) -> float:
        """Frames a second inside a batch that no plan exceeds at the levels priced."""
        return self.plan.bound_fps

    @property
    def devices(self) -> tuple[DeviceUse, ...]:
        """What is in use of every FPGA."""
        return tuple(self.plan.devices)

    def device_of(self, node: str) -> str:
        """Where a node of the training graph stands.

        Raises `DagtrainError` for a name that is none."""
        placed = {item.item: item.device for item in self.plan.items}
        if node not in placed:
            raise DagtrainError(f"the plan has no node {node!r}", f"there are {', '.join(sorted(placed)[:8])}, …")
        return placed[node]


@dataclass(frozen=True)
class Emitted(Done):
    """Verilog of every FPGA."""

    @property
    def files(self) -> dict[str, list[Path]]:
        """Device -> the files to synthesise, as its `files.f` lists them."""
        return {
            device["name"]: [
                self.folder / device["name"] / line
                for line in (self.folder / device["name"] / "files.f").read_text().split()
            ]
            for device in self.data["devices"]
        }


@dataclass(frozen=True)
class Cosimulated(Done):
    """Training in the emitted Verilog, beside the emulator."""

    @property
    def equal(self) -> bool:
        """Whether every word that was compared is equal."""
        return bool(self.data["equal"])

    @property
    def mismatches(self) -> Sequence[str]:
        """What is not, with tensor, layer, device, frame and batch."""
        return list(self.data["mismatches"])

    @property
    def losses(self) -> npt.NDArray[np.float64]:
        """Of every frame, in order."""
        return np.asarray(self.data["losses"], np.float64)


@dataclass(frozen=True)
class Trained(Done):
    """A training with the hardware's arithmetic."""

    @property
    def epochs(self) -> Sequence[Mapping[str, float]]:
        """Of every epoch: epoch, train_loss, train_accuracy, held_out_loss, held_out_accuracy."""
        return list(self.data["epochs"])

    @property
    def accuracy(self) -> float:
        """On the held-out frames, after the last epoch."""
        return float(self.epochs[-1]["held_out_accuracy"])

    def weights(self) -> dict[str, npt.NDArray[np.float64]]:
        """Name of a weight in the graph -> its value, the integers of the hardware at their binary points."""
        return {
            name: np.asarray(value)
            for name, value in flow.trained.load_trained(self.network.workspace).executor.parameters().items()
        }


@dataclass(frozen=True)
class Judged(Done):
    """A trained network on data that it has not seen."""

    @property
    def accuracy(self) -> float:
        """Share of the frames whose class is right."""
        return float(self.data["accuracy"])

    @property
    def confusion(self) -> npt.NDArray[np.int64]:
        """(classes, classes): of each class, how many frames were taken for which."""
        return np.asarray(self.data["confusion"], np.int64)


@dataclass(frozen=True)
class Exported(Done):
    """The trained network as an ONNX file."""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.data["path"])


# ---- methods from steps


def _step(
    options: Callable[P, Options], run: Callable[[Workspace, Options, Progress], StepResult], done: type[D]
) -> Callable[Concatenate[Network, P], D]:
    """A method that does a step; its keywords are the fields of the step's options."""

    def method(network: Network, /, *words: P.args, **keywords: P.kwargs) -> D:
        asked = _built(options, words, keywords)
        return done(network, run(network.workspace, asked, network.progress))

    return _documented(method, options, run)


def _step_on_file(
    options: Callable[Concatenate[Path, P], Options],
    run: Callable[[Workspace, Options, Progress], StepResult],
    done: type[D],
) -> Callable[Concatenate[Network, FilePath | Options, P], D]:
    """The same for a step on a file, its first word; all options in one object may stand there instead."""

    def method(network: Network, file: FilePath | Options, /, *words: P.args, **keywords: P.kwargs) -> D:
        asked = _built(options, (file, *words), keywords) if isinstance(file, (str, Path)) else file
        return done(network, run(network.workspace, asked, network.progress))

    return _documented(method, options, run)


class _Method(Generic[P, D]):
    """A method of networks whose step is imported when somebody calls it, or asks for its options or what it does."""

    def __init__(self, make: Callable[[], Callable[Concatenate[Network, P], D]]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @cached_property
    def function(self) -> Callable[Concatenate[Network, P], D]:
        """The method itself."""
        function = self._make()
        function.__name__, function.__qualname__ = self._name, f"Network.{self._name}"
        return function

    @overload
    def __get__(self, network: None, owner: type) -> Callable[Concatenate[Network, P], D]: ...

    @overload
    def __get__(self, network: Network, owner: type) -> Callable[P, D]: ...

    def __get__(self, network: Network | None, owner: type) -> object:
        return cast(Any, self.function).__get__(network, owner)


M = TypeVar("M", bound=Callable[..., Any])


def _documented(method: M, options: Callable[..., Any], run: Callable[..., Any]) -> M:
    parameters = [Parameter("network", Parameter.POSITIONAL_ONLY), *signature(options).parameters.values()]
    method.__doc__ = run.__doc__
    vars(method)["__signature__"] = Signature(parameters)
    return method


def _built(options: Callable[..., Options], words: Sequence[object], keywords: Mapping[str, object]) -> Options:
    """Options of words as users write them: text for paths, any sequence for tuples.

    Raises `DagtrainError` naming all keywords that are none, and what there is."""
    kinds = {one.name: str(one.type) for one in fields(cast(Any, options))}
    wrong = [name for name in keywords if name not in kinds]
    if wrong:
        problems = [Problem(f"no option {name!r}") for name in wrong]
        raise DagtrainError.listing("", problems, f"there are {', '.join(kinds)}")
    return options(
        *(_as_declared(kind, word) for kind, word in zip([*kinds.values(), *[""] * len(words)], words, strict=False)),
        **{name: _as_declared(kinds[name], value) for name, value in keywords.items()},
    )


def _as_declared(kind: str, value: object) -> object:
    if kind.startswith("Path") and isinstance(value, str):
        return Path(value)
    if not kind.startswith("tuple"):
        return value
    texts = [value] if isinstance(value, (str, Path)) else list(cast(Sequence[object], value))
    return tuple(Path(str(text)) if "Path" in kind else text for text in texts)


def _checked(_: Workspace, options: ImportOptions, _progress: Progress) -> StepResult:
    """What would become of a model; nothing is written."""
    return flow.check_step.run(options)


# ---- networks


class Network:
    """A working folder with a model in it; ``progress`` listens to long work, and results say which ``command`` made
    them."""

    def __init__(self, out: FilePath = "build", progress: Progress | None = None, *, command: str = BY_PROGRAM) -> None:
        self.workspace = Workspace(Path(out), command)
        self.progress = progress or Silent()

    def __repr__(self) -> str:
        return f"Network({str(self.workspace.root)!r})"

    @property
    def summary(self) -> Summary:
        """Layers with shapes, weights and multiplications."""
        return flow.show.load_summary(self.workspace)

    @property
    def graph(self) -> Graph:
        """The training graph."""
        return flow.import_step.load_training_graph(self.workspace)

    load = _Method(lambda: _step_on_file(ImportOptions, flow.import_step.run, Done))
    check = _Method(lambda: _step_on_file(ImportOptions, _checked, Done))
    place = _Method(lambda: _step_on_file(flow.place_options.PlaceOptions, flow.place_step.run, Placed))
    walls = _Method(lambda: _step_on_file(flow.place_options.PlaceOptions, flow.walls_step.run, Done))
    explain = _Method(lambda: _step_on_file(flow.place_options.PlaceOptions, flow.explain_step.run, Done))
    mapping = _Method(lambda: _step_on_file(flow.mapping_step.MappingOptions, flow.mapping_step.run, Done))
    sweep = _Method(lambda: _step_on_file(flow.sweep_step.SweepOptions, flow.sweep_step.run, Done))
    emit = _Method(lambda: _step(flow.emit_step.EmitOptions, flow.emit_step.run, Emitted))
    cosim = _Method(lambda: _step(flow.cosim_step.CosimOptions, flow.cosim_step.run, Cosimulated))
    simulate = _Method(lambda: _step(flow.simulate_step.SimulateOptions, flow.simulate_step.run, Done))
    debug = _Method(lambda: _step(flow.debug_step.DebugOptions, flow.debug_step.run, Done))
    probe = _Method(lambda: _step(flow.probe_step.ProbeOptions, flow.probe_step.run, Done))
    train = _Method(lambda: _step(flow.train_step.TrainOptions, flow.train_step.run, Trained))
    serve = _Method(lambda: _step(flow.serve_step.ServeOptions, flow.serve_step.run, Done))
    drive = _Method(lambda: _step(flow.drive_step.DriveOptions, flow.drive_step.run, Done))
    bring_up = _Method(lambda: _step(flow.bring_up_step.BringUpOptions, flow.bring_up_step.run, Done))
    self_test = _Method(lambda: _step(flow.selftest_step.SelfTestOptions, flow.selftest_step.run, Done))
    profile = _Method(lambda: _step(flow.profile_step.ProfileOptions, flow.profile_step.run, Done))
    evaluate = _Method(lambda: _step(flow.evaluate_step.EvaluateOptions, flow.evaluate_step.run, Judged))
    estimate = _Method(lambda: _step(flow.estimate_step.EstimateOptions, flow.estimate_step.run, Done))
    timing = _Method(lambda: _step(flow.timing_step.TimingOptions, flow.timing_step.run, Done))
    parallelize = _Method(lambda: _step(flow.parallelize_step.ParallelizeOptions, flow.parallelize_step.run, Done))

    export = _Method(lambda: _step(flow.export_step.ExportOptions, flow.export_step.run, Exported))

    def report(self) -> Done:
        """One self-contained page of all that the steps left."""
        return Done(self, flow.report_step.run(self.workspace, self.progress))

    def nothing_to_train_on(self, data: str | None = None) -> Done | None:
        """What to say of a training that there are no data for; None where there are."""
        left_out = flow.train_step.left_out(self.workspace, flow.train_step.TrainOptions(data=data))
        return Done(self, left_out) if left_out else None

    def status(self) -> Done:
        """How the result of every step stands."""
        return Done(self, flow.status_step.run(self.workspace))

    def cleanable(self, *steps: str) -> flow.clean_step.Found:
        """What `clean` would remove."""
        return flow.clean_step.found(self.workspace, steps)

    def clean(self, *steps: str) -> Done:
        """Remove what steps left, all of it without any named.  Asks nobody."""
        return Done(self, flow.clean_step.run(self.cleanable(*steps)))


def load(model: FilePath, out: FilePath = "build", progress: Progress | None = None, **options: Any) -> Network:
    """The network of an ONNX file: its training graph, with number formats, in the working folder ``out``.

    ``options``: those of `Network.load`: norm, recipe, aux, data, splits, freeze, bits, counted.
    Raises `DagtrainError` naming all that is wrong with model, recipe, data or options."""
    network = Network(out, progress)
    network.load(model, **options)
    return network
