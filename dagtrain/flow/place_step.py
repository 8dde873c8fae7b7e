"""`dagtrain place`: training graph and cluster file -> `plan.json`, judged by the validator."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dagtrain.flow.import_step import IMPORT_COMMAND, import_again, imported_form, load_training_graph
from dagtrain.flow.levers import levers_wanted, sparing, with_levers
from dagtrain.flow.place_options import (
    AUTO,
    PlaceOptions,
    check_words,
    copies_wanted,
    parse_pins,
    read_options_cluster,
    remote_wanted,
    search_options,
)
from dagtrain.flow.placed import (
    COMMAND,
    load_folded_graph,
    load_placed_graph,
    load_plan,
    load_plan_cluster,
    load_start,
    write_placed,
)
from dagtrain.flow.records import ImportRecord, PlaceRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import (
    MissingStep,
    Workspace,
    digest,
    file_digest,
    program_hash,
    read_json,
)
from dagtrain.graph.ir import Graph
from dagtrain.passes.exchange import NO_CODEC
from dagtrain.passes.form import Form
from dagtrain.passes.insert_relays import relay_of
from dagtrain.passes.remote_memory import remote_memory
from dagtrain.passes.replicate import NormSync, told
from dagtrain.planning.balancing import Balancer, memory_share
from dagtrain.planning.choices import plan_choices, queueing, relayed
from dagtrain.planning.copying import Copier
from dagtrain.planning.former import FormedPlan, Former, FormMissingError
from dagtrain.planning.ladder import NoRoomError
from dagtrain.planning.link_costs import CodedTraffic
from dagtrain.planning.planner import Planner
from dagtrain.planning.problem import Codec, DealStreams, MultiplyConstants
from dagtrain.planning.results import Start
from dagtrain.planning.splitting import Splitter
from dagtrain.progress import Progress
from dagtrain.rates import rate_text, training_text
from hdl.costs.estimate import Estimator
from hdl.errors import InfeasibleError
from hdl.parts.catalogue import part
from placement.problem.deadline import Deadline, Ended
from placement.problem.plan import DeviceUse, Plan
from placement.search.search import Solver

# options that say how long to search and not what for: an unfinished search goes on under others
EFFORT = ("gap", "time_limit_seconds", "first_fps")
WITHOUT_LEVERS = (
    "warning: with weights that engines share, or maps that are made again, the block memories are too few; this plan "
    "is without them, as of --share-weights never --recompute never"
)


@dataclass(frozen=True)
class Question:
    """What is asked of `place`, beside what it found when it was asked last."""

    # what the result depends on, for its stamp
    depends: Mapping[str, Any]
    # what the result notes of itself, so that a later search can go on from it
    notes: Mapping[str, Any]
    # the search of the same problem that was ended early
    unfinished: Start | None
    # whether there was an earlier result that cannot be read
    lost: bool


def run(
    workspace: Workspace, options: PlaceOptions, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> StepResult:
    """Plan unless nothing changed.  Plans are written as they are found, the best one last.

    Raises `KeyboardInterrupt` when Ctrl-C came before the first plan."""
    cluster, search, estimator = read_options_cluster(options), search_options(options), Estimator()
    levers = levers_wanted(options)
    multiply, deal = levers.multiply_constants is MultiplyConstants.AUTO, levers.deal_streams is DealStreams.AUTO
    choose_codec = levers.codec is Codec.AUTO
    deadline = Deadline(search.time_limit_seconds, clock)
    imported, form = load_training_graph(workspace), imported_form(workspace)
    copies = copies_wanted(options)
    own, form = form, replace(form, copies={**form.copies, **copies})
    graph = import_again(workspace, form) if copies else imported
    form = replace(form, remote=remote_wanted(options, graph, cluster))
    graph = remote_memory(graph, form.remote) if form.remote else graph

    # with the levers that are in force, and whether slower levels are tried
    attempts = _attempts(options)
    wanted, patient = attempts[0]

    def planner_of(graph: Graph) -> Planner:
        made = with_levers(graph, cluster, search, wanted)
        pins = parse_pins(options.pins, made, cluster)
        return Planner(
            made, cluster, estimator, search, pins, progress, deadline, multiply, deal, choose_codec, patient,
            options.first_fps,
        )  # fmt: skip

    def in_form(form: Form) -> Planner:
        plain = replace(form, remote=frozenset())
        try:
            made = imported if plain == own else import_again(workspace, plain)
            return planner_of(remote_memory(made, form.remote) if form.remote else made)
        except MissingStep as error:
            raise FormMissingError(error.what, error.cure) from error

    # wrong pins and words are told before anything is done
    planner = planner_of(graph)
    check_words(graph, cluster, options.devices)
    question = _question(workspace, options)

    def leave(found: FormedPlan) -> None:
        def write(folder: Path) -> None:
            notes = {**question.notes, "seconds": round(deadline.spent_seconds, 1)}
            write_placed(folder, found, imported, options.devices, notes)

        workspace.leave("place", question.depends, write)

    done = not workspace.unchanged("place", question.depends)
    if done:
        former = Former(in_form, _named(options, graph), deadline, leave)
        begun, start = form, question.unfinished
        if start is not None and start.form != form:
            planner, begun = planner_of(load_placed_graph(workspace)), start.form
        elif start is not None and not _is_of(start, planner):
            # it was ended with other levers than are tried first
            attempts = [*attempts[1:], *attempts[:1]]
            wanted, patient = attempts[0]
            planner = planner_of(graph)
        with deadline.listening():
            for further in (*attempts[1:], None):
                try:
                    found = _plan(former, begun, planner, options, start)
                    break
                except InfeasibleError:
                    if further is None or deadline.over:
                        raise
                wanted, patient = further
                planner, begun, start = planner_of(graph), form, None
            if wanted is not options:
                found = found.warned(WITHOUT_LEVERS)
            if question.lost:
                warning = f"warning: the search starts over, {workspace.folder('place')} of the earlier one is damaged"
                found = replace(found, warnings=(warning, *found.warnings))
            leave(found)
    return _told(workspace, done)


def _attempts(options: PlaceOptions) -> list[tuple[PlaceOptions, bool]]:
    """Levers to plan with, one after the other until there is a plan, and whether slower levels are tried: where some
    levers may take more memory than they save, those with a plan at the faster level are taken."""
    fewer = sparing(options)
    ways = [options] if fewer is None else [options, fewer]
    return [(way, patient) for patient in ((True,) if fewer is None else (False, True)) for way in ways]


def _is_of(start: Start, planner: Planner) -> bool:
    """Whether an earlier plan places the nodes of the graph that a planner has, and relays."""
    relays = {relay_of(edge) for edge in relayed(plan_choices(start.plan))}
    return {item.item for item in start.plan.items} - relays == planner.problem.graph.by_name.keys()


def _question(workspace: Workspace, options: PlaceOptions) -> Question:
    problem = {
        "import": workspace.fingerprint("import"),
        "devices": file_digest(options.devices),
        "program": program_hash(),
        **{name: value for name, value in asdict(options).items() if name not in ("devices", *EFFORT)},
    }
    earlier = _earlier(workspace, digest(problem))
    unfinished = None
    if earlier is not None and not earlier["finished"]:
        # the unfinished search is an input of the one that goes on from it
        begun_from, unfinished = workspace.fingerprint("place"), load_start(workspace)
    else:
        begun_from = earlier["begun_from"] if earlier is not None else ""
    damaged = bool(workspace.fingerprint("place")) and not workspace.intact("place")
    lost = damaged or (earlier is not None and not earlier["finished"] and unfinished is None)
    depends = {**problem, **{name: getattr(options, name) for name in EFFORT}, "begun_from": begun_from}
    return Question(depends, {"problem": digest(problem), "begun_from": begun_from}, unfinished, lost)


def _beside_never_idle(plan: Plan, fps: float | None) -> Iterator[str]:
    if fps is not None:
        yield (
            f"multipliers that never idle would train {rate_text(fps)} frames/s: the plan has "
            f"{plan.steady_fps / fps:.1%} of that inside a batch, {plan.throughput_fps / fps:.1%} in training"
        )


def _told(workspace: Workspace, done: bool) -> StepResult:
    """What the user reads of the plan on disk."""
    folder = workspace.folder("place")
    plan = load_plan(workspace)
    meta = read_json(folder / "place.json", COMMAND, PlaceRecord)
    lines = (
        f"{training_text(plan.throughput_fps)} frames/s in training: a batch of {plan.batch_frames} frames with "
        f"staleness {plan.staleness_frames} takes {plan.batch_cycles:,} cycles",
        f"{rate_text(plan.steady_fps)} frames/s inside a batch: {plan.cycles_per_frame:,} cycles a frame "
        f"({plan.status}); no plan has more than {rate_text(plan.bound_fps)} there at the levels priced, nor than "
        f"{rate_text(plan.any_bound_fps)} with any folding (proven), and training is no faster than that; gap inside a "
        f"batch {plan.steady_gap:.2%}, in training {plan.gap:.2%}",
        *_beside_never_idle(plan, meta["never_idle_fps"]),
        *(f"binds: {binding.kind}: {binding.reason}" for binding in plan.binding),
        *(
            f"{use.device} ({use.part}): {use.items} nodes, {use.dsp}/{use.dsp_capacity} DSP, "
            f"{use.m20k}/{use.m20k_capacity} {part(use.part).block_memory}, "
            f"{use.alm}/{use.alm_capacity} {part(use.part).logic_cell.name}{_port(use)}"
            for use in plan.devices
        ),
        *([f"frames: IP packets of at most {plan.mtu} bytes"] if plan.mtu else []),
        *_cables(plan),
        *_splits(meta["splits"]),
        *_copies(workspace, meta),
        *_coded(workspace, plan),
        *_stores(plan, meta),
        *_relays(plan),
        *_queues(plan),
        *meta["warnings"],
        *(() if meta["finished"] else ("the search was ended early: the same command goes on from this plan",)),
    )
    # beside the plan, whose bytes depend on its inputs alone
    measured = {
        name: meta[name]
        for name in (
            "seconds",
            "finished",
            "splits",
            "copies",
            "norm_sync",
            "remote",
            "share_without_stores",
            "never_idle_fps",
        )
    }
    return StepResult("place", folder, done, lines, {**json.loads(plan.to_json()), **measured})


def _plan(former: Former, form: Form, planner: Planner, options: PlaceOptions, start: Start | None) -> FormedPlan:
    """The best plan, with layers in parts, memories in stores and copies where that pays; ``form`` to begin with, whose
    planner that is."""
    literal = Solver(options.solver) is Solver.LITERAL
    balancer = Balancer(former, planner.problem.cluster) if options.stores and not literal else None
    try:
        try:
            if options.split and not literal:
                found = Splitter(former).run(form, planner, start)
            else:
                found = former.plan(form, planner, start)
        except InfeasibleError as failed:
            if balancer is None or isinstance(failed, NoRoomError):
                raise
            found = balancer.rescue(form, planner, failed)
        if balancer is not None:
            found = balancer.run(found)
        return Copier(former).run(found) if options.replicas == AUTO else found
    except Ended:
        if former.deadline.interrupted:
            raise KeyboardInterrupt from None
        raise


def _named(options: PlaceOptions, graph: Graph) -> set[str]:
    """Layers of the model that the user speaks of by name."""
    named = {name.partition("=")[0] for name in options.pins} | {
        name.strip() for group in options.same_device for name in group.split(",")
    }
    return {graph.by_name[name].whole if name in graph.by_name else name for name in named}


def _port(use: DeviceUse) -> str:
    """What a device's Ethernet port takes of that."""
    if not use.port_alm:
        return ""
    taken = f"{use.port_m20k} {part(use.part).block_memory}, {use.port_alm} {part(use.part).logic_cell.name}"
    return f"; of them its Ethernet port, with {use.peers} other devices: {taken}"


def _cables(plan: Plan) -> Iterator[str]:
    """The fullest cable, of a cluster without a switch."""
    if plan.cables:
        fullest = max(plan.cables, key=lambda cable: Fraction(cable.bits_per_s, cable.capacity_bits_per_s))
        longest = max((len(route.through) for route in plan.routes), default=0)
        yield (
            f"cables: the fullest, {fullest.from_device} -> {fullest.to_device}, carries "
            f"{fullest.bits_per_s / 1e9:.4g} of {fullest.capacity_bits_per_s / 1e9:.4g} Gbit/s; at most {longest} "
            "devices between two pass their words on"
        )


def _splits(parts: Mapping[str, str]) -> list[str]:
    """What a user should know of layers in parts."""
    if not parts:
        return []
    return [f"in parts: {', '.join(f'{layer}={count}' for layer, count in parts.items())} (as `import --split` does)"]


def _copies(workspace: Workspace, meta: PlaceRecord) -> list[str]:
    """What a user should know of copies, and of statistics that run from frame to frame."""
    several = ", ".join(f"{layer}={how}" for layer, how in meta["copies"].items() if how != 1)
    if not several:
        return []
    statistics = told(load_placed_graph(workspace), NormSync(meta["norm_sync"]))
    return [f"copies: {several} (as --copy makes)", *statistics]


def _coded(workspace: Workspace, plan: Plan) -> list[str]:
    """What a user should know of gradients that copies exchange in few bits: what that takes off links."""
    imported = read_json(workspace.require("import", IMPORT_COMMAND) / "import.json", IMPORT_COMMAND, ImportRecord)
    if imported["compress"] == NO_CODEC:
        return []
    placed, bits = {item.item: item.device for item in plan.items}, load_plan_cluster(workspace).link_word_bits
    devices = [use.device for use in plan.devices]
    found = CodedTraffic.of(load_folded_graph(workspace), placed, devices, bits)
    many = f"{found.streams} streams of gradients between devices"
    gain = f"{bits * found.words:,} bits a batch are planned, {bits * found.plain_words:,} without --compress"
    return [f"exchange: {imported['exchange']}, {many}: {gain} {imported['compress']}"]


def _stores(plan: Plan, meta: PlaceRecord) -> list[str]:
    """What a user should know of memories in stores, and S of FPDeep's equation (12)."""
    if not meta["remote"]:
        return []
    before = meta["share_without_stores"]
    without = "" if before is None else f", {before:.1%} in the best plan without stores"
    block = part(plan.devices[0].part).block_memory
    return [
        f"memories on other boards: of {', '.join(meta['remote'])} (as --remote makes)",
        f"largest share of {block} of any board: {memory_share(plan):.1%}{without}",
    ]


def _relays(plan: Plan) -> list[str]:
    """What a user should know of relays."""
    edges = relayed(plan_choices(plan))
    return [f"relays: so that hops are equal, {', '.join(edges)} go by way of another device"] if edges else []


def _queues(plan: Plan) -> list[str]:
    """What a user should know of words that wait at senders."""
    counts = Counter(words for rooms in queueing(plan_choices(plan)).values() for _, words in rooms)
    several = " and ".join(f"{words} words of each of {count} streams" for words, count in sorted(counts.items()))
    return [f"full ports: {several} may wait at their senders"] if counts else []


def _earlier(workspace: Workspace, problem: str) -> PlaceRecord | None:
    """What the last `place` noted of itself, if it was asked the same problem."""
    if not workspace.intact("place"):
        return None
    try:
        meta = read_json(workspace.folder("place") / "place.json", COMMAND, PlaceRecord)
        return meta if meta["problem"] == problem else None
    except MissingStep:
        return None
