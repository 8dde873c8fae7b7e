"""`dagtrain parallelize`: data or model parallelism for every layer on an array of accelerators, as HyPar has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagtrain.files import write_text
from dagtrain.flow.import_step import model_digest
from dagtrain.flow.records import ParallelRecord, ParallelStepRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.ir import Graph, Node
from dagtrain.progress import Progress
from dagtrain.report.parallelism import parallelism_picture
from hdl.errors import DagtrainError, Problem
from hdl.layers.windowed import Windowed
from hdl.tensor import Kind
from importers.onnx import import_model
from placement.hypar.communication import BYTES, Choices, Counting, amounts, total
from placement.hypar.convention import Convention
from placement.hypar.energy import Prices, joules
from placement.hypar.iteration import by_turns, iteration
from placement.hypar.network import Layer, Net
from placement.hypar.published import published
from placement.hypar.search import Optimum, data_parallelism, greedy, model_parallelism, optimum, weird_trick
from placement.hypar.simulation import Accelerator, simulate
from placement.hypar.topology import HTree, Topology, Torus

COMMAND = "dagtrain parallelize"
MOST_LEVELS = 10
# by name: what joins accelerators, and the most levels that are simulated in reasonable time
TOPOLOGIES: Mapping[str, tuple[Callable[[int], Topology], int]] = {
    "htree": (HTree.of_one, MOST_LEVELS),
    "torus": (Torus, 6),
}


@dataclass(frozen=True, kw_only=True)
class ParallelizeOptions:
    """What the user said."""

    # one of them: an ONNX file, or a network of the paper
    model: Path | None = None
    net: str | None = None
    # samples
    batch: int = 256
    # halvings of the array: 2**levels accelerators
    levels: int = 4
    # the least communication instead of the paper's search
    exact: bool = False
    # see `placement.hypar.convention`
    convention: str = "3.4"
    # what joins accelerators, and processing units of each
    topology: str = "htree"
    units: int = 12


def run(workspace: Workspace, options: ParallelizeOptions, progress: Progress) -> StepResult:
    """Search unless nothing changed."""
    counting = _checked(options)
    depends = {
        "model": None if options.model is None else [str(options.model), model_digest(options.model)],
        "net": options.net,
        "batch": options.batch,
        "levels": options.levels,
        "exact": options.exact,
        "convention": str(counting.convention),
        "topology": options.topology,
        "units": options.units,
    }
    done = workspace.run("parallelize", depends, lambda folder: _work(folder, options, counting, progress))
    folder = workspace.folder("parallelize")
    meta = read_json(folder / "parallelize.json", COMMAND, ParallelRecord)
    return StepResult("parallelize", folder, done, tuple(_lines(meta)), meta, table=tuple(_table(meta)))


def _checked(options: ParallelizeOptions) -> Counting:
    """How amounts are counted.  Raises `DagtrainError` naming all options that can't be."""
    problems: list[Problem] = []
    if (options.model is None) == (options.net is None):
        what = (
            "no network is named" if options.net is None else f"both {options.model} and --net {options.net} are named"
        )
        problems.append(Problem(what, "give the path of an ONNX file, or --net and one of the paper's"))
    if options.model is not None and not options.model.is_file():
        problems.append(Problem(f"{options.model} does not exist", "give the path of an ONNX file"))
    if options.batch < 1:
        problems.append(Problem(f"--batch must be at least 1, not {options.batch}"))
    if not 1 <= options.levels <= MOST_LEVELS:
        problems.append(Problem(f"--levels must be one of 1 to {MOST_LEVELS}, not {options.levels}"))
    problems += _array_problems(options)
    convention = None
    try:
        convention = Convention.parse(options.convention)
    except DagtrainError as error:
        problems += error.problems
    if options.net is not None:
        try:
            published(options.net)
        except DagtrainError as error:
            problems += error.problems
    if problems or convention is None:
        raise DagtrainError.listing("", problems)
    return Counting(options.batch, convention)


def _array_problems(options: ParallelizeOptions) -> Iterator[Problem]:
    if options.units < 1:
        yield Problem(f"--units must be at least 1, not {options.units}")
    if options.topology not in TOPOLOGIES:
        yield Problem(f"--topology {options.topology} is unknown", f"choose one of {', '.join(TOPOLOGIES)}")
        return
    most = TOPOLOGIES[options.topology][1]
    if most < options.levels <= MOST_LEVELS:
        what = f"--topology {options.topology} is simulated up to {2**most} accelerators, not {2**options.levels}"
        yield Problem(what, f"ask for --levels {most} at most, or for --topology htree")


def _work(folder: Path, options: ParallelizeOptions, counting: Counting, progress: Progress) -> None:
    progress.begin("parallelize", 2)
    net = published(options.net) if options.net else weighted_layers(import_model(_given(options.model)))
    progress.advance(note=f"{len(net.weighted)} weighted layers")
    levels = options.levels
    # Algorithm 2 proves nothing over all levels
    found = optimum(net, levels, counting) if options.exact else Optimum(greedy(net, levels, counting), 0.0)
    chosen = found.choices
    record = _record(net, found, options, counting)
    write_text(folder / "parallelize.json", json.dumps(record, indent=1) + "\n")
    columns = {layer.name: chosen[layer.name] for layer in net.weighted}
    write_text(folder / "parallelize.svg", parallelism_picture(net.name, columns))
    progress.end(note=f"{record['bytes'] / 1e9:.4g} GB a step")


def _given(model: Path | None) -> Path:
    assert model is not None, "one of the two is named"
    return model


def weighted_layers(graph: Graph) -> Net:
    """A forward graph as the search sees it: layers with weights of more than one axis, and where several maps meet.

    What lies between (norms, biases, activations, pools) belongs to the layer before it."""
    found: dict[str, Layer] = {}
    # edge -> the layer or join whose map it carries; "" of the network's input
    carried: dict[str, str] = {}
    for node in graph.nodes:
        maps = [edge for sink, edge in node.inputs.items() if node.layer.port(sink).tensor.kind is Kind.ACTIVATION]
        makers = dict.fromkeys(carried[edge] for edge in maps)
        outputs = {
            edge: node.layer.port(source).tensor.elements
            for source, edge in node.outputs.items()
            if node.layer.port(source).tensor.kind is Kind.ACTIVATION
        }
        weights = _weights(node)
        owner = next(iter(makers), "")
        if weights or len(maps) > 1:
            owner = node.name
            found[owner] = Layer(
                name=owner,
                weights=weights,
                macs=node.layer.macs if weights else 0,
                taps=_taps(node, weights),
                input=sum(graph.tensor(edge).elements for edge in maps),
                output=max(outputs.values()),
                pooled=0,
                inputs=tuple(maker for maker in makers if maker),
            )
        carried |= dict.fromkeys(outputs, owner)
    if not any(layer.weights for layer in found.values()):
        raise DagtrainError(f"{graph.name} has no layer with weights", "there is nothing to choose a parallelism for")
    return Net(graph.name, tuple(_with_pools(graph, found, carried)))


def _weights(node: Node) -> int:
    """Elements of what a node multiplies by, trained or frozen; vectors scale and shift, and are not counted."""
    ports = (*(port for port in node.layer.sinks if port.tensor.kind is Kind.WEIGHT), *node.layer.held_parameters)
    return sum(port.tensor.elements for port in ports if len(port.tensor.shape) > 1)


def _taps(node: Node, weights: int) -> int:
    """Of its kernel; where that covers the map every weight multiplies once, as in a dense layer."""
    is_dense = not weights or node.layer.macs == weights
    return node.layer.window.taps if isinstance(node.layer, Windowed) and not is_dense else 1


def _with_pools(graph: Graph, found: Mapping[str, Layer], carried: Mapping[str, str]) -> Iterator[Layer]:
    """Each with the largest map that leaves it for another one, or for the loss."""
    taken = dict.fromkeys(found, 0)
    for edge, _, _, consumer, sink in graph.edges:
        owner = carried.get(edge, "")
        leaves = consumer.name in found or not any(edge in carried for edge in consumer.outputs.values())
        if owner and leaves and sink.tensor.kind is Kind.ACTIVATION:
            taken[owner] = max(taken[owner], graph.tensor(edge).elements)
    for name, layer in found.items():
        yield Layer(**{**vars(layer), "pooled": taken[name]})


# ---- what is told

CHOSEN = "chosen"


def _record(net: Net, found: Optimum, options: ParallelizeOptions, counting: Counting) -> ParallelRecord:
    levels, chosen = options.levels, found.choices
    compared = {
        "data parallelism": data_parallelism(net, levels),
        "model parallelism": model_parallelism(net, levels),
        "one weird trick": weird_trick(net, levels),
    }
    if options.exact:
        compared["greedy"] = greedy(net, levels, counting)
    between = amounts(net, chosen, counting)
    return {
        "schema_version": SCHEMA_VERSION,
        "name": net.name,
        "batch": options.batch,
        "accelerators": 2**levels,
        "search": "exact" if options.exact else "greedy",
        "convention": str(counting.convention),
        "switches": list(counting.convention.switches),
        "bytes": BYTES * sum(between),
        "bound_bytes": BYTES * found.bound if options.exact else None,
        "level_bytes": [BYTES * amount for amount in between],
        "compared": {name: BYTES * total(net, choices, counting) for name, choices in compared.items()},
        "topology": options.topology,
        "units": options.units,
        "steps": {
            name: _step(net, choices, options, counting) for name, choices in {CHOSEN: chosen, **compared}.items()
        },
        "layers": [
            {
                "name": layer.name,
                "weights": layer.weights,
                "map": layer.pooled,
                "choices": "".join(map(str, chosen[layer.name])),
            }
            for layer in net.layers
        ],
    }


def _step(net: Net, choices: Choices, options: ParallelizeOptions, counting: Counting) -> ParallelStepRecord:
    """A step of training on the array."""
    tasks, topology = iteration(net, choices, counting), TOPOLOGIES[options.topology][0](options.levels)
    turns, overlapped = (
        simulate(program, topology, Accelerator(options.units)).seconds for program in (by_turns(tasks), tasks)
    )
    return {
        "seconds": turns,
        "overlapped_seconds": overlapped,
        "joules": joules(tasks, 2**options.levels, Prices()).total,
    }


def _lines(meta: ParallelRecord) -> Iterator[str]:
    directions, pooling, halving = meta["switches"]
    bound, least = meta["bound_bytes"], meta["bytes"]
    yield (
        f"{meta['name']}, batch {meta['batch']}, {meta['accelerators']} accelerators, {meta['search']} search: "
        f"{_gigabytes(meta['bytes'])} a step, by level " + ", ".join(map(_gigabytes, meta["level_bytes"]))
    )
    yield f"convention {meta['convention']}: both ways {directions}, F {pooling} pools, halved {halving}"
    yield (
        f"on {meta['topology']}, {meta['units']} units an accelerator: {_told(meta['steps'][CHOSEN])}; by turns means "
        "that nothing is computed while words cross"
    )
    if bound is not None:
        gap = "that is the least there is" if bound >= least else f"at most {1 - bound / least:.2%} less is possible"
        yield f"no choices communicate less than {_gigabytes(bound)}: {gap}"
    for name, count in meta["compared"].items():
        ratio = f", {count / least:.4g} times as much" if least else ""
        yield f"{name}: {_gigabytes(count)}{ratio}, {_told(meta['steps'][name])}"


def _told(step: ParallelStepRecord) -> str:
    return (
        f"{_quantity(step['seconds'], 's')} by turns, {_quantity(step['overlapped_seconds'], 's')} overlapped, "
        f"{_quantity(step['joules'], 'J')}"
    )


def _quantity(value: float, unit: str) -> str:
    return f"{value:.4g} {unit}" if value >= 1 else f"{1000 * value:.4g} m{unit}"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.4g} GB"


def _table(meta: ParallelRecord) -> Iterator[Sequence[str]]:
    """A row a layer: 0 is data parallelism, 1 model parallelism, as in the paper's Figure 9."""
    yield "layer", "weights", "map", *(f"H{level + 1}" for level in range(len(meta["level_bytes"])))
    for layer in meta["layers"]:
        weights = f"{layer['weights']:,}" if layer["weights"] else "join"
        yield layer["name"], weights, f"{layer['map']:,}", *("mp" if bit == "1" else "dp" for bit in layer["choices"])
