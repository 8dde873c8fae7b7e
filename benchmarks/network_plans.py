"""A placement with words and with frames on its network: rates of training, and what ports take.

python benchmarks/network.py --plans              # the digits network on its three boards, planned first: a minute
python benchmarks/network_plans.py FOLDER         # of what `dagtrain place` left there, say ResNet-18 on eleven

The placement of the plan is priced anew on each network, with engines folded as they are, and held by the validator.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from dagtrain.flow import import_step, place_step
from dagtrain.flow.import_options import ImportOptions
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.flow.placed import load_placed_graph, load_plan, load_plan_cluster
from dagtrain.flow.workspace import Workspace
from dagtrain.planning.carry import places_of
from dagtrain.planning.choices import memory_homes, plan_choices, plan_pace, queueing
from dagtrain.planning.offers import Use
from dagtrain.planning.problem import Problem
from dagtrain.planning.realise import Realiser
from dagtrain.planning.results import Planned
from dagtrain.planning.searcher import Searcher
from dagtrain.planning.timetable import Timetable
from dagtrain.progress import Silent
from dagtrain.rates import rate_text, training_text
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Usage, fit
from hdl.errors import InfeasibleError
from hdl.link.ethernet.frame import FrameFormat
from placement.problem.cluster import Cluster
from placement.problem.deadline import Deadline
from placement.problem.network import WORDS, Network
from placement.search.search import SearchOptions

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits"
# bits a beat → Gbit/s of the cable that it is for; MTUs of the frames
LINKS = {64: 10, 256: 40}
MTUS = (1500, 9000)
# share of a device's logic that its port is to take at most
TARGET = Fraction(15, 100)


def networks(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """The cluster with each cable, with words and with frames on it."""
    for bits, gbit in LINKS.items():
        devices = tuple(
            replace(device, board=replace(device.board, link_bits_per_s=gbit * 10**9)) for device in cluster.devices
        )
        wired = replace(cluster, link_word_bits=bits, devices=devices)
        yield f"{gbit}G, {bits} | words", replace(wired, network=WORDS)
        for mtu in MTUS:
            frames = Network(frames=FrameFormat(word_bits=bits, mtu=mtu))
            yield f"{gbit}G, {bits} | Ethernet, MTU {mtu}", replace(wired, network=frames)


def port_usage(searcher: Searcher, planned: Planned) -> Counter[tuple[str, str]]:
    """(device, "alm" or "m20k") -> what ends of streams and the port take there."""
    plan, cluster = planned.plan, searcher.problem.cluster
    places, choices = places_of(plan), plan_choices(plan)
    homes, folds = memory_homes(choices), plan_pace(plan).folds
    level = searcher.queueing(queueing(choices)).prices.costs(
        max(plan_pace(plan).interval, 1), homes, places, folds=folds
    )
    parts = {device.name: device.board.part for device in cluster.devices}
    found: Counter[tuple[str, str]] = Counter()
    for node in level.folded.nodes:
        device = places[node.name]
        (offer,) = (offer for offer in level.offers(node) if offer.choice == choices[node.name])
        ends = [fit(piece.contents, parts[device]) for piece in offer.pieces if piece.use is Use.PORT]
        usage = sum(ends, Usage())
        found += Counter({(device, "alm"): usage.alm, (device, "m20k"): usage.m20k})
    for use in plan.devices:
        found += Counter({(use.device, "alm"): use.port_alm, (use.device, "m20k"): use.port_m20k})
    return found


def rows(folder: Path) -> Iterator[str]:
    """The table of a placement, line by line."""
    space = Workspace(folder)
    graph, plan, cluster = load_placed_graph(space), load_plan(space), load_plan_cluster(space)
    yield "| cable, bits a beat | network | frames/s in training | in a batch | ALMs of a port | of the device | M20K |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    estimator = Estimator()
    for label, wired in networks(cluster):
        problem = Problem(graph, wired, SearchOptions(), {})
        searcher = Searcher.of(problem, estimator, Silent(), Timetable(Deadline()), lambda _: None)
        try:
            homes = memory_homes(plan_choices(plan))
            planned = Realiser(searcher).fixed(places_of(plan), plan_pace(plan).folds, homes, explain=False)
        except InfeasibleError:
            yield f"| {label} | does not hold | | | | |"
            continue
        used = port_usage(searcher, planned)
        shares = {device.name: Fraction(used[device.name, "alm"], device.board.part.alm) for device in wired.devices}
        worst = max(shares, key=lambda name: shares[name])
        missed = "" if shares[worst] <= TARGET else f", above {float(TARGET):.0%}"
        rates = training_text(planned.plan.throughput_fps), rate_text(planned.plan.steady_fps)
        part = next(device.board.part.name for device in wired.devices if device.name == worst)
        yield (
            f"| {label} | {rates[0]} | {rates[1]} | {used[worst, 'alm']:,} | {float(shares[worst]):.1%} of a "
            f"{part}{missed} | {max(used[name, 'm20k'] for name in shares)} |"
        )


def plans_table() -> str:
    """Rates and ports of the digits network's placement with words and with frames, as Markdown."""
    with tempfile.TemporaryDirectory() as name:
        space, silent = Workspace(Path(name)), Silent()
        model = ImportOptions(model=EXAMPLE / "digits.onnx", recipe=EXAMPLE / "recipe.toml", data="digits")
        import_step.run(space, model, silent)
        place_step.run(space, PlaceOptions(devices=EXAMPLE / "cluster.toml"), silent)
        return "\n".join(rows(Path(name)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where `dagtrain place` left a plan")
    for line in rows(parser.parse_args().folder):
        print(line, flush=True)


if __name__ == "__main__":
    main()
