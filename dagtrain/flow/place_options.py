"""What the user of `dagtrain place` said: checked, and turned into a cluster, a search and pins."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.remote_memory import storable
from dagtrain.passes.replicate import Copies, copies_of_text, parse_copies
from hdl.errors import DagtrainError, Problem
from hdl.layers.capabilities import is_engine
from placement.problem.cluster import CAPPED, Cluster, read_cluster, with_caps, without_dram
from placement.search.search import SearchOptions, Solver


@dataclass(frozen=True)
class PlaceOptions:
    """What the user said."""

    devices: Path
    _: KW_ONLY
    # "layer=device"
    pins: tuple[str, ...] = ()
    # "a,b": layers or nodes that stand on one device
    same_device: tuple[str, ...] = ()
    # devices to leave empty
    exclude: tuple[str, ...] = ()
    # "dsp=0.9": the share of a resource that a plan may fill on every board, instead of the cluster file's
    caps: tuple[str, ...] = ()
    # slowest acceptable throughput, frames a second
    least_fps: float | None = None
    # pace inside a batch that is priced first, frames a second
    first_fps: float | None = None
    # share of the bound at which to stop
    gap: float = 0.0
    time_limit_seconds: float | None = None
    # of `placement.problem.settings.Solver`
    solver: str = "fast"
    seed: int = 1
    # whether layers may be made in parts
    split: bool = True
    # "pattern=copies": besides those of `import`; see `dagtrain.passes.replicate`
    copies: tuple[str, ...] = ()
    # how many copies of all layers, or their shares ("3:2"), or `AUTO`: of those of which copies make a faster plan
    replicas: str = "1"
    # nodes, or layers for all their engines, whose memory is in a store; see `dagtrain.passes.remote_memory`
    remote: tuple[str, ...] = ()
    # whether the planner may put memories into stores, and into DRAM
    stores: bool = True
    dram: bool = True
    # of `dagtrain.planning.sharing.ShareWeights`
    share_weights: str = "never"
    # of `dagtrain.planning.problem.MultiplyConstants`
    multiply_constants: str = "never"
    # of `dagtrain.planning.recomputing.Recompute`
    recompute: str = "never"
    # frames' time in which gradients and new weights of a batch should pass
    update_frames: float = 1.0
    # of `dagtrain.planning.problem.RaggedTiles`
    ragged_tiles: str = "never"
    # of `dagtrain.planning.problem.ShareStatistics`
    share_statistics: str = "never"
    # of `dagtrain.planning.problem.DealStreams`
    deal_streams: str = "never"
    # of `dagtrain.planning.problem.SmallBuffers`
    small_buffers: str = "never"
    # of `dagtrain.planning.problem.Codec`
    codec: str = "always"


# of `PlaceOptions.replicas`
AUTO = "auto"


def copies_wanted(options: PlaceOptions) -> dict[str, Copies]:
    """Pattern of layers -> copies that the user wants, of `--copy` and `--replicas`.  Raises `DagtrainError`."""
    copies = parse_copies(options.copies)
    if options.replicas == AUTO:
        if Solver(options.solver) is Solver.LITERAL:
            raise DagtrainError(
                f"--replicas {AUTO} with --solver {options.solver}: only the fast search chooses copies",
                "say how many, or leave the solver out",
            )
        return copies
    try:
        replicas = copies_of_text(options.replicas)
    except ValueError:
        what = f"--replicas {options.replicas} is no number of copies"
        raise DagtrainError(what, f"write {AUTO}, or e.g. 2, or 3:2 for copies of unlike shares") from None
    if replicas != 1 and copies:
        raise DagtrainError(
            f"--replicas {options.replicas} and --copy: both say how many copies there are", "give one of them"
        )
    return copies if replicas == 1 else {"*": replicas}


def remote_wanted(options: PlaceOptions, graph: Graph, cluster: Cluster) -> frozenset[str]:
    """Nodes whose memory the user wants in a store, of `--remote`.  Raises `DagtrainError` naming all that is wrong."""
    problems: list[Problem] = []
    found: set[str] = set()
    able = {node.name: node for node in storable(graph)}
    if options.remote and not options.stores:
        problems.append(Problem("--remote and --no-remote are both given", "leave one of them out"))
    if options.remote and len(cluster.devices) - len(set(options.exclude)) < 2:
        problems.append(
            Problem("--remote without a network: there is one device", "give the cluster another, or leave it out")
        )
    for name in options.remote:
        # a layer is called as its forward node is
        layer = {node.name for node in able.values() if node.layer_of == name and is_engine(node.layer)}
        nodes = layer or {name} & able.keys()
        known = any(name in (node.name, node.layer_of) for node in graph.nodes)
        where = f"--remote {name}"
        if not known:
            problems.append(Problem(f"no layer or node {name}", "`dagtrain show` lists them", where))
        elif not nodes:
            problems.append(Problem("has no memory that could lie in a store", "leave it out", where))
        found |= nodes
    if problems:
        raise DagtrainError.listing("", problems)
    return frozenset(found)


def read_options_cluster(options: PlaceOptions) -> Cluster:
    """The cluster with the caps of the command line.  Raises `DagtrainError` naming all that is wrong."""
    problems: list[Problem] = []
    shares: dict[str, Decimal] = {}
    for cap in options.caps:
        resource, _, text = cap.partition("=")
        try:
            share = Decimal(text)
        except InvalidOperation:
            share = Decimal("NaN")
        if resource not in CAPPED:
            problems.append(Problem(f"no resource {resource!r}", f"one of {', '.join(CAPPED)}", f"--cap {cap}"))
        elif not (share.is_finite() and 0 < share <= 1):
            what = f"{text!r} is no share above 0 and at most 1"
            problems.append(Problem(what, f"write e.g. {resource}=0.9", f"--cap {cap}"))
        elif shares.setdefault(resource, share) != share:
            what = f"{resource} is already capped at {shares[resource]}"
            problems.append(Problem(what, "give it once", f"--cap {cap}"))
    if problems:
        raise DagtrainError.listing("", problems)
    cluster = with_caps(read_cluster(options.devices), shares)
    return cluster if options.dram else without_dram(cluster)


def search_options(options: PlaceOptions) -> SearchOptions:
    """The search that the user wants.  Raises `DagtrainError`."""
    solvers = [solver.value for solver in Solver]
    if options.solver not in solvers:
        raise DagtrainError(f"--solver {options.solver}: no such solver", f"one of {', '.join(solvers)}")
    groups = tuple(tuple(name.strip() for name in group.split(",")) for group in options.same_device)
    alone = [group for group, names in zip(options.same_device, groups, strict=True) if len(names) < 2]
    if alone:
        raise DagtrainError(f"--same-device {', '.join(alone)}: name two layers at least, as a,b")
    if options.first_fps is not None and not options.first_fps > 0:
        raise DagtrainError(f"--first-fps {options.first_fps:g} is no pace", "write frames a second, e.g. 500")
    return SearchOptions(
        seed=options.seed,
        least_fps=options.least_fps,
        gap=options.gap,
        time_limit_seconds=options.time_limit_seconds,
        same_device=groups,
        exclude=options.exclude,
        solver=Solver(options.solver),
    )


def check_words(graph: Graph, cluster: Cluster, file: Path) -> None:
    """Raises `DagtrainError` where words of the network are narrower than what may have to cross it."""
    bits = {f"{node.name}.{port.name}": port.tensor.fixed.width for node in graph.nodes for port in node.layer.sources}
    widest = max(bits, key=lambda name: bits[name])
    if len(cluster.devices) > 1 and cluster.link_word_bits < bits[widest]:
        fitting = -(-bits[widest] // 8) * 8
        raise DagtrainError(
            f"{file}: cluster.link_word_bits = {cluster.link_word_bits}: elements of {widest} have {bits[widest]} "
            f"bits, and a word carries whole elements",
            f"write at least {fitting}, or leave it out",
        )


def parse_pins(pins: tuple[str, ...], graph: Graph, cluster: Cluster) -> dict[str, str]:
    """Node -> device, from ``layer=device``: a layer's name stands for all nodes that serve it."""
    problems: list[Problem] = []
    found: dict[str, str] = {}
    devices = {device.name for device in cluster.devices}
    for pin in pins:
        layer, _, device = pin.partition("=")
        # a store stands where there is room, unless it is named
        nodes = [
            node.name
            for node in graph.nodes
            if layer == node.name or (layer == node.layer_of and node.role is not Role.STORE)
        ]
        if not device:
            problems.append(Problem(f"--pin {pin} is not of the form layer=device"))
        elif device not in devices:
            known = f"the cluster has {', '.join(sorted(devices))}"
            problems.append(Problem(f"no device {device}", known, f"--pin {pin}"))
        elif not nodes:
            problems.append(Problem(f"no layer {layer}", "`dagtrain show` lists them", f"--pin {pin}"))
        for node in nodes:
            if found.setdefault(node, device) != device:
                problems.append(Problem(f"{node} is already pinned to {found[node]}", where=f"--pin {pin}"))
    if problems:
        raise DagtrainError.listing("", problems)
    return found
