"""`dagtrain place --mapping fpdeep`: a published mapping of the same network to the same cluster, beside the plan.

FPDeep's engines are not ours: what it is told to reach is what its paper counts, multipliers alone, with neither the
logic and memory around them nor the latency of links.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from pathlib import Path

from dagtrain.files import write_text
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.place_options import PlaceOptions, read_options_cluster
from dagtrain.flow.placed import COMMAND, load_folded_graph, load_plan
from dagtrain.flow.records import MappedBoardRecord, MappingRecord, OursRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, file_digest, program_hash, read_json
from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.graph.summary import summarise
from dagtrain.progress import Progress
from dagtrain.rates import rate_text
from hdl.errors import DagtrainError, Problem
from hdl.parts.part import Part
from hdl.tensor import Kind
from placement.fpdeep.chain import Chain, Layer
from placement.fpdeep.mapping import Mapping as Mapped
from placement.fpdeep.mapping import fastest
from placement.problem.cluster import Board, Cluster

FPDEEP = "fpdeep"
MAPPINGS = (FPDEEP,)
# bits of all numbers: "fixed 16" (FPL Table I)
WORD_BITS = 16


@dataclass(frozen=True)
class MappingOptions(PlaceOptions):
    """What the user said."""

    _: KW_ONLY
    # one of `MAPPINGS`
    mapping: str = FPDEEP
    # whether the plan that `place` left stands beside it
    beside: bool = False


def run(workspace: Workspace, options: MappingOptions, progress: Progress) -> StepResult:
    """Map unless nothing changed.  Raises `DagtrainError` for networks with joins, unlike boards, and what has no
    room."""
    if options.mapping not in MAPPINGS:
        raise DagtrainError(f"--mapping {options.mapping}: no such mapping", f"one of {', '.join(MAPPINGS)}")
    depends = {
        "import": workspace.fingerprint("import"),
        "place": workspace.fingerprint("place") if options.beside else "",
        "program": program_hash(),
        "devices": file_digest(options.devices),
        "exclude": options.exclude,
        "caps": options.caps,
    }
    done = workspace.run("mapping", depends, lambda folder: _work(folder, workspace, options, progress))
    folder = workspace.folder("mapping")
    data = read_json(folder / "mapping.json", f"{COMMAND} --mapping {options.mapping}", MappingRecord)
    return StepResult("mapping", folder, done, tuple(_lines(data)), data, table=list(_table(data)))


def _work(folder: Path, workspace: Workspace, options: MappingOptions, progress: Progress) -> None:
    progress.begin("mapping", 1)
    graph, cluster = load_training_graph(workspace), read_options_cluster(options)
    names = [device.name for device in cluster.devices if device.name not in options.exclude]
    board = one_board(cluster, names, options.exclude)
    chain = chain_of(graph)
    each = multipliers_a_block(board.part)
    mapped = fastest(chain, len(names), board.dsp * each)
    record = _record(mapped, names, board, _known_share(graph, chain))
    record["ours"] = _ours(workspace, names, board) if options.beside else None
    write_text(folder / "mapping.json", json.dumps(record, indent=1) + "\n")
    progress.end(note=f"{rate_text(record['fps'])} frames/s")


def one_board(cluster: Cluster, names: Sequence[str], exclude: Sequence[str]) -> Board:
    """The board that these devices stand on.  Raises `DagtrainError` where they are none, unknown, or of several
    types."""
    unknown = sorted(set(exclude) - {device.name for device in cluster.devices})
    problems = [Problem(f"no device {name}", where="--exclude") for name in unknown]
    if not names:
        problems.append(Problem("no device is left", "exclude fewer"))
    boards = {device.board.name: device.board for device in cluster.devices if device.name in names}
    if len(boards) > 1:
        types = ", ".join(f"{board.name} ({board.part.name})" for board in boards.values())
        problems.append(Problem(f"boards differ: {types}", "FPDeep maps to equal boards: exclude the others"))
    problems += [] if problems else list(_gaps(cluster, names))
    if problems:
        raise DagtrainError.listing(f"--mapping {FPDEEP}", problems)
    return next(iter(boards.values()))


def _gaps(cluster: Cluster, names: Sequence[str]) -> Iterator[Problem]:
    """Neighbours in the row of boards that no cable joins, or a slower one than their ports."""
    joined = {frozenset((cable.a, cable.b)): cable.bits_per_s for cable in cluster.network.cables}
    rates = {device.name: device.board.link_bits_per_s for device in cluster.devices}
    for a, b in pairwise(names) if joined else ():
        if joined.get(frozenset((a, b)), 0) < rates[a]:
            what = f"{a} and {b} are joined by no cable as fast as their ports"
            yield Problem(what, "FPDeep maps to a row of boards: name them in the order of their cables")


def multipliers_a_block(part: Part) -> int:
    """Products of two words that one DSP block does in a cycle."""
    return max((mode.multipliers for mode in part.dsp_modes if mode.fits(WORD_BITS, WORD_BITS)), default=1)


# ---- networks as FPDeep sees them


def chain_of(graph: Graph) -> Chain:
    """A training graph as a row of layers whose weights have more than one axis; what lies between is not counted.

    Raises `DagtrainError` naming all places where maps meet or branch: FPDeep knows chains alone."""
    forward = [node for node in graph.nodes if node.is_layer and node.role in (Role.FORWARD, Role.HOST)]
    problems = list(_joins(graph, forward))
    if problems:
        head = f"--mapping {FPDEEP}: {graph.name} is no chain of layers"
        raise DagtrainError.listing(head, problems, "FPDeep names such networks as future work; use the search alone")
    macs = {layer.name: layer for layer in summarise(graph).layers}
    layers = []
    for node in forward:
        shape = _weight_shape(node)
        if shape and node.layer.macs:
            known = macs[node.name]
            layers.append(_layer(node, shape, (known.forward_macs, known.error_macs, known.gradient_macs)))
    return Chain(graph.name, tuple(layers))


def _joins(graph: Graph, forward: Sequence[Node]) -> Iterator[Problem]:
    """Where several maps meet in a forward layer, and where one is taken by several of them."""
    takers: dict[str, list[str]] = {}
    for node in forward:
        maps = [edge for sink, edge in node.inputs.items() if node.layer.port(sink).tensor.kind is Kind.ACTIVATION]
        if len(maps) > 1:
            yield Problem(f"{len(maps)} maps meet in it", where=node.name)
        for edge in maps:
            takers.setdefault(_maker(graph, edge), []).append(node.name)
    for maker, names in takers.items():
        if len(names) > 1:
            yield Problem(f"{', '.join(names)} take its map", where=maker)


def _maker(graph: Graph, edge: str) -> str:
    """The forward layer that an edge comes from, by way of forks."""
    node, _ = graph.producers[edge]
    while node.role is Role.FORK:
        node, _ = graph.producers[next(iter(node.inputs.values()))]
    return node.name


def _weight_shape(node: Node) -> tuple[int, ...]:
    """Of what a layer multiplies by, trained or frozen; () without, or where it is a vector."""
    ports = (*(port for port in node.layer.sinks if port.tensor.kind is Kind.WEIGHT), *node.layer.held_parameters)
    return next((port.tensor.shape for port in ports if len(port.tensor.shape) > 1), ())


def _layer(node: Node, shape: tuple[int, ...], macs: tuple[int, int, int]) -> Layer:
    taken, made = node.layer.port("x").tensor, node.layer.port("y").tensor
    # one pixel of output: a dense layer, each of whose inputs is a channel
    dense = math.prod(made.shape[:-1]) == 1
    return Layer(
        name=node.name,
        inputs=taken.elements if dense else taken.shape[-1],
        outputs=made.shape[-1],
        taps=1 if dense else math.prod(shape[2:]),
        input_words=taken.elements,
        output_words=made.elements,
        forward_macs=macs[0],
        error_macs=macs[1],
        gradient_macs=macs[2],
        groups=taken.shape[-1] // shape[1],
        off_chip=dense,
    )


def _known_share(graph: Graph, chain: Chain) -> float:
    """Of all multiplications of training, those in the chain."""
    total = summarise(graph)
    return chain.operations / (2 * (total.forward_macs + total.error_macs + total.gradient_macs))


# ---- what is told


def _record(mapped: Mapped, names: Sequence[str], board: Board, known: float) -> MappingRecord:
    clock = board.clock_hz
    fps, whole = (float(clock / cycles) for cycles in (mapped.cycles, mapped.whole_cycles))
    widest = max(mapped.cuts, key=lambda cut: max(cut.forward, cut.backward), default=None)
    bits = WORD_BITS * max(widest.forward, widest.backward) if widest else 0
    return {
        "schema_version": SCHEMA_VERSION,
        "mapping": FPDEEP,
        "name": mapped.chain.name,
        "dealing": mapped.dealing.value,
        "known_share": known,
        "fps": fps,
        "idle": mapped.idle(mapped.cycles),
        "whole_passes_fps": whole,
        "whole_passes_idle": mapped.idle(mapped.whole_cycles),
        "link_bits_per_frame": bits,
        "link_bits_per_s": board.link_bits_per_s,
        "widest_cut": widest.layer if widest else "",
        "dram_bytes_per_s": board.dram_bytes_per_s,
        "boards": [_board(mapped, index, name, board) for index, name in enumerate(names)],
        "ours": None,
    }


def _board(mapped: Mapped, index: int, name: str, board: Board) -> MappedBoardRecord:
    weights = mapped.weights(index)
    blocks = -(-mapped.dsp_of(index) // multipliers_a_block(board.part))
    return {
        "device": name,
        "channels": {mapped.layer(part).name: part.channels for part in mapped.parts if part.board == index},
        "dsp": blocks,
        "dsp_share": blocks / board.part.dsp,
        "idle": mapped.idle(mapped.cycles, index),
        # a weight and its gradient
        "weights_share": 2 * WORD_BITS * weights / (board.part.m20k * board.part.m20k_bits),
        # each read once a frame, the least there is where frames follow one another
        "dram_bytes_per_frame": mapped.weights(index, off_chip=True) * WORD_BITS // 8,
    }


def _ours(workspace: Workspace, names: Sequence[str], board: Board) -> OursRecord:
    """Of the plan: what idles is counted alike, multiplications against multipliers built."""
    plan, folded = load_plan(workspace), load_folded_graph(workspace)
    homes = {item.item: item.device for item in plan.items}
    # of the boards' own clock
    cycles = plan.cycles_per_frame * board.clock_hz / plan.clock_hz
    work, built = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for node in folded.nodes:
        if node.layer.macs and node.layer.multipliers:
            work[homes[node.name]] += node.layer.macs * float(folded.busy(node.name))
            built[homes[node.name]] += node.layer.multipliers * cycles
    uses = {use.device: use for use in plan.devices}
    total = sum(built.values())
    return {
        "fps": plan.steady_fps,
        "training_fps": plan.throughput_fps,
        "bound_fps": plan.bound_fps,
        "idle": 1 - sum(work.values()) / total if total else 0.0,
        "dsp_share": {name: uses[name].dsp / board.part.dsp for name in names if name in uses},
        "idle_share": {name: 1 - work[name] / built[name] if built[name] else 0.0 for name in names if name in uses},
    }


def _lines(data: MappingRecord) -> Iterator[str]:
    yield (
        f"FPDeep's mapping of {data['name']} to {len(data['boards'])} boards, channels dealt as {data['dealing']}: "
        f"{rate_text(data['fps'])} frames/s by its multipliers, {data['idle']:.1%} idle; with whole passes over the "
        f"channels of a pixel {rate_text(data['whole_passes_fps'])}, {data['whole_passes_idle']:.1%} idle"
    )
    if data["widest_cut"]:
        need, rate = data["link_bits_per_frame"] * data["fps"], data["link_bits_per_s"]
        limit = f"; they allow {rate_text(rate / data['link_bits_per_frame'])} frames/s" if need > rate else ""
        yield (
            f"widest cut: at {data['widest_cut']}, {need / 1e9:.4g} Gbit/s each direction of {rate / 1e9:.4g} that "
            f"links carry{limit}"
        )
    yield (
        f"{data['known_share']:.1%} of all multiplications are in layers that it maps; logic, memory around engines "
        "and latency are not counted"
    )
    busiest = max(data["boards"], key=lambda board: board["dram_bytes_per_frame"])
    if busiest["dram_bytes_per_frame"]:
        read, rate = busiest["dram_bytes_per_frame"], data["dram_bytes_per_s"]
        limit = f"; that allows {rate_text(rate / read)} frames/s" if read * data["fps"] > rate else ""
        yield (
            f"weights off the chip, each read once a frame: {busiest['device']} needs "
            f"{read * data['fps'] / 1e9:.4g} GB/s of {rate / 1e9:.4g} that its DRAM carries{limit}"
        )
    full = [board["device"] for board in data["boards"] if board["weights_share"] > 1]
    if full:
        yield f"weights and gradients do not fit, without balancing, on {', '.join(full)}"
    ours = data["ours"]
    if ours is not None:
        yield (
            f"our plan, in circuits: {rate_text(ours['fps'])} frames/s inside a batch (bound "
            f"{rate_text(ours['bound_fps'])}), {ours['idle']:.1%} idle; {ours['fps'] / data['fps']:.2f} times FPDeep's"
        )


def _table(data: MappingRecord) -> Iterator[Sequence[str]]:
    ours = data["ours"]
    more = () if ours is None else ("our DSP", "our idle")
    yield "board", "channels of layers", "DSP", "idle", "weights", *more
    for board in data["boards"]:
        channels = ", ".join(f"{layer} {count}" for layer, count in board["channels"].items())
        row = (f"{board['dsp_share']:.1%}", f"{board['idle']:.1%}", f"{board['weights_share']:.0%}")
        name = board["device"]
        both = () if ours is None else tuple(_share(ours[key], name) for key in ("dsp_share", "idle_share"))
        yield name, channels, *row, *both


def _share(shares: Mapping[str, float], name: str) -> str:
    return f"{shares[name]:.1%}" if name in shares else "-"
