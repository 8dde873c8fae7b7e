"""`dagtrain place --explain`: what keeps the plan from being faster, and what would help.

The questions are asked of the search that found the plan: all levels that were priced, network ports and memories as
estimates.  Two numbers stand side by side: what the placement gains as it stands or was found to gain, and by how much
the proven bound moves; the truth lies between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dagtrain.files import write_text
from dagtrain.flow.import_step import IMPORT_COMMAND, imported_form
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions, parse_pins, search_options
from dagtrain.flow.placed import COMMAND, load_placed_graph, load_plan, load_plan_cluster, load_searched
from dagtrain.flow.records import ExplainRecord, ImportRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.ir import Graph
from dagtrain.passes.exchange import NO_CODEC
from dagtrain.passes.replicate import NormSync
from dagtrain.planning.codec import CodecWorth, codec_worths
from dagtrain.planning.copying import Slow, slow_layers
from dagtrain.planning.planner import Planner
from dagtrain.planning.problem import DealStreams, MultiplyConstants
from dagtrain.progress import Progress
from dagtrain.rates import rate_text, training_text
from hdl.costs.estimate import Estimator
from placement.bounds.bound import alone
from placement.problem.clocks import in_time
from placement.problem.instance import Instance
from placement.problem.plan import Plan
from placement.problem.restrict import restrict
from placement.search.search import SearchOptions
from placement.search.whatif import (
    CAPACITIES,
    Growth,
    NextLevel,
    ShadowPrice,
    growth,
    next_level,
    scarcity,
    shadow_prices,
)

# annealing moves for each question that is searched
MOVES = 400_000
# how much more of a resource is asked about
MORE = 0.1
# answers printed; the file has all
PRINTED = 8


@dataclass(frozen=True)
class Explanation:
    """All answers about one plan."""

    plan: Plan
    next_level: NextLevel | None
    prices: tuple[ShadowPrice, ...]
    growth: tuple[Growth, ...]
    # part → resource → share of what binds
    scarcity: Mapping[str, Mapping[str, float]]
    # layers that are too slow for the next level on a device of their own
    slow: tuple[Slow, ...] = ()
    # of codecs on links, all of them first
    codecs: tuple[CodecWorth, ...] = ()


def run(workspace: Workspace, options: PlaceOptions, progress: Progress) -> StepResult:
    """Explain unless nothing changed."""
    search = search_options(options)
    depends = {"place": workspace.fingerprint("place")}
    done = workspace.run("explain", depends, lambda folder: _work(folder, workspace, options, search, progress))
    folder = workspace.folder("explain")
    data = read_json(folder / "explain.json", f"{COMMAND} --explain", ExplainRecord)
    return StepResult("explain", folder, done, tuple(data["lines"]), data)


def _work(folder: Path, workspace: Workspace, options: PlaceOptions, search: SearchOptions, progress: Progress) -> None:
    searched = load_searched(workspace)
    problem = restrict(searched.instance, search.same_device, search.exclude).instance
    found = explain(problem, searched.plan, search.seed, progress)
    slow = slow_at(problem, found.next_level, load_placed_graph(workspace), imported_form(workspace).norm_sync)
    found = replace(found, slow=slow, codecs=tuple(_codecs(workspace, options, search, progress)))
    document = {
        "schema_version": SCHEMA_VERSION,
        "throughput_fps": searched.plan.throughput_fps,
        "bound_fps": searched.plan.bound_fps,
        "any_bound_fps": searched.plan.any_bound_fps,
        "levels": list(searched.levels),
        "next_level": asdict(found.next_level) if found.next_level else None,
        "shadow_prices": [asdict(price) for price in found.prices],
        "growth": [asdict(grown) for grown in found.growth],
        "scarcity": found.scarcity,
        "slow": [asdict(layer) for layer in found.slow],
        "codecs": [asdict(codec) for codec in found.codecs],
        "lines": list(lines(found)),
    }
    write_text(folder / "explain.json", json.dumps(document, indent=1) + "\n")


def _codecs(
    workspace: Workspace, options: PlaceOptions, search: SearchOptions, progress: Progress
) -> Iterator[CodecWorth]:
    """Nothing where copies exchange gradients as they are."""
    imported = read_json(workspace.require("import", IMPORT_COMMAND) / "import.json", IMPORT_COMMAND, ImportRecord)
    if imported["compress"] == NO_CODEC:
        return
    graph, cluster, levers = load_placed_graph(workspace), load_plan_cluster(workspace), levers_wanted(options)
    planner = Planner(
        graph, cluster, Estimator(), search, parse_pins(options.pins, graph, cluster), progress,
        multiply=levers.multiply_constants is MultiplyConstants.AUTO, deal=levers.deal_streams is DealStreams.AUTO,
    )  # fmt: skip
    yield from codec_worths(planner.searcher, load_plan(workspace), PRINTED)


def explain(problem: Instance, plan: Plan, seed: int, progress: Progress) -> Explanation:
    """Ask all questions; each search is one step of the progress bar."""
    progress.begin("what if")

    def answered(note: str) -> None:
        progress.advance(note=note)

    found = Explanation(
        plan=plan,
        next_level=next_level(problem, plan),
        prices=shadow_prices(problem, plan, more=MORE, moves=MOVES, seed=seed, on_answer=answered),
        # on cables nothing says where one more board would be joined
        growth=() if problem.cables else growth(problem, plan, moves=MOVES, seed=seed, on_answer=answered),
        scarcity=scarcity(problem, plan),
    )
    progress.end()
    return found


def slow_at(problem: Instance, level: NextLevel | None, graph: Graph, norm_sync: NormSync) -> tuple[Slow, ...]:
    """The layers of the model in the way of the next level, and how many copies of each are not."""
    if level is None:
        return ()
    timed = in_time(problem)
    ceiling = max(c.cycles_per_frame for item in timed.items for cs in item.configurations.values() for c in cs)
    return tuple(slow_layers(graph, alone(timed, ceiling), level.cycles_per_frame, norm_sync).values())


def lines(found: Explanation) -> Iterator[str]:
    """The answers in words."""
    plan = found.plan
    yield (
        f"the search found {rate_text(plan.steady_fps)} frames/s inside a batch, proven bound "
        f"{rate_text(plan.bound_fps)} at the levels priced, {rate_text(plan.any_bound_fps)} for any folding; ports and "
        "memories as estimates"
    )
    yield from (f"binds: {binding.kind}: {binding.reason}" for binding in plan.binding)
    yield from _next_level(found.next_level)
    yield from _slow(found.slow)
    if found.next_level is not None and not found.next_level.missing:
        yield from (
            f"scarce on {part}: " + ", ".join(f"{CAPACITIES[name]} {share:.0%}" for name, share in _largest(shares))
            for part, shares in found.scarcity.items()
            if _largest(shares)
        )
    gaining = [price for price in found.prices if max(_gains(price)) > 0]
    yield from map(str, gaining[:PRINTED])
    if not gaining:
        yield f"{MORE:+.0%} of any one resource of any one device gains nothing, and moves no bound"
    yield from map(_codec, found.codecs)
    yield from (
        f"one more {grown.part}: {rate_text(grown.throughput_fps)} frames/s found, bound {rate_text(grown.bound_fps)}"
        for grown in found.growth
    )
    if plan.cables:
        yield "one more board: not asked, for nothing says to which others its cables would go"


def _codec(worth: CodecWorth) -> str:
    """What the codec is worth on some links."""
    many = len(worth.nodes) > 1
    what = f"all {len(worth.nodes)} tensors that it may be on" if many else f"what {worth.nodes[0]} makes"
    ways = "" if many else f" ({', '.join(f'{start} to {stop}' for start, stop in worth.ways)})"
    cost = "" if worth.alm is None else f", with {worth.alm:,} logic cells"
    gains = "" if worth.gain is None else f" ({worth.gain:+.2%})"
    advice = ": see --codec auto" if worth.has else ", and the plan is without it"
    return (
        f"codec on {what}{ways}: {worth.coded_bits:,} bits a batch are planned{cost}, {worth.plain_bits:,} without; "
        f"this placement, priced and timed anew, {_rate(worth.with_fps)} with it and {_rate(worth.without_fps)} "
        f"without{gains}: " + ("worth it" if worth.is_worth_it else f"not worth it{advice}")
    )


def _rate(fps: float | None) -> str:
    return "does not hold" if fps is None else f"trains {training_text(fps)} frames/s"


def _slow(layers: Sequence[Slow]) -> Iterator[str]:
    if not layers:
        return
    single = [layer.layer for layer in layers if layer.copies is None]
    options = " ".join(f"--copy {layer.layer}={layer.copies}" for layer in layers if layer.copies is not None)
    yield (
        "too slow for the next level with the best device to themselves: "
        + ", ".join(f"{layer.layer} ({layer.cycles_per_frame:,} cycles a frame)" for layer in layers)
        + (f"; copies are fast enough: dagtrain place {options}" if options else "")
        + (f"; copies don't help {', '.join(single)}" if single else "")
    )


def _gains(price: ShadowPrice) -> tuple[float, float, float]:
    return price.sure_gain, price.possible_gain, price.searched_gain or 0.0


def _largest(shares: Mapping[str, float]) -> Sequence[tuple[str, float]]:
    return sorted(((name, share) for name, share in shares.items() if share >= 0.005), key=lambda pair: -pair[1])


def _next_level(level: NextLevel | None) -> Iterator[str]:
    if level is None:
        yield "next level: none; every configuration priced is at its fastest"
        return
    needs = ", ".join(f"{need:,} of {have:,} {CAPACITIES[name]}" for name, (need, have) in level.demand.items())
    verdict = "proven impossible on this cluster" if level.refuted else "not excluded by a bound"
    missing = f"; no configuration that fast for {', '.join(level.missing[:4])}" if level.missing else ""
    yield (
        f"next level: {rate_text(level.throughput_fps)} frames/s at {level.cycles_per_frame:,} cycles a frame needs at "
        f"least {needs}: {verdict}{missing}"
    )
