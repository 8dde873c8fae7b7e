"""The frames a second that training with a plan gets: whole batches, not the pace inside one."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from dagtrain.emission.cables import cabled_devices, wire_rates
from dagtrain.emission.device import stored_edges
from dagtrain.emission.links import allowed_cycles, crossings_of, hops_of, link_format, receiver_beats
from dagtrain.emission.stored import DramUse
from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.place import place
from dagtrain.planning.choices import chosen_dram, chosen_graph, plan_choices, plan_pace
from dagtrain.schedule.batch_clock import ONE_CLOCK
from dagtrain.schedule.batch_time import BatchTime
from dagtrain.schedule.buffers import fifo_beats
from dagtrain.schedule.schedule import schedule
from dagtrain.schedule.wired import Wired
from hdl.streams.width import elements_per_word
from placement.problem.cluster import Cluster
from placement.problem.plan import Plan, with_batch


def with_rate(plan: Plan, graph: Graph, cluster: Cluster, network_cycles: int | None = None) -> Plan:
    """The plan with the rate of training in whole batches; ``network_cycles`` as in `plan_time`.

    ``graph`` is the one that is placed; relays may be in it or not."""
    time = plan_time(plan, graph, cluster, network_cycles)
    return with_batch(plan, time.batch, graph.recipe.staleness, time.cycles)


def plan_time(
    plan: Plan,
    graph: Graph,
    cluster: Cluster,
    network_cycles: int | None = None,
    *,
    together: bool = False,
) -> BatchTime:
    """Cycles of a batch with the engines, FIFOs, memories and links of a plan; arguments as of `wired`."""
    return wired(plan, graph, cluster, network_cycles, together=together).batch_time


def wired(
    plan: Plan,
    graph: Graph,
    cluster: Cluster,
    network_cycles: int | None = None,
    *,
    together: bool = False,
) -> Wired:
    """The folded graph of a plan with its FIFOs, memories and links.

    ``network_cycles``: from network port to network port, over the switch or one cable; None: as the cluster's network
    is taken to need.
    ``together``: as if all of it stood on one device."""
    choices, pace = plan_choices(plan), plan_pace(plan)
    chosen = chosen_graph.run(graph, choices)
    folded = fold_graph.run(chosen, pace.folds, pace.parts)
    dram = chosen_dram(chosen, choices, cluster, pace.interval)
    first = cluster.devices[0].name
    placed = {item.item: first if together else item.device for item in plan.items}
    return wired_graph(folded, placed, cluster, pace.interval, dram, pace.periods, network_cycles)


def wired_graph(
    folded: Graph,
    placed: Mapping[str, str],
    cluster: Cluster,
    interval: int,
    dram: DramUse,
    periods: Mapping[str, Fraction] = ONE_CLOCK,
    network_cycles: int | None = None,
    link_words: int = 0,
) -> Wired:
    """A folded graph on devices, by node, with the FIFOs that it needs for a frame in so many cycles, and its links,
    whose receivers hold at least ``link_words``.

    Raises `GraphError` where ``placed`` lacks nodes, or has the host's elsewhere than on the first device."""
    devices = [device.name for device in cluster.devices]
    standing = place.run(folded, placed, devices)
    crossings = crossings_of(standing, devices)
    routing = cluster.routing
    delays = allowed_cycles(crossings, cluster.network_cycles, routing)
    depths = fifo_beats(folded, schedule(folded, interval, delays, periods))
    outside = stored_edges(folded, dram)
    stored = {
        edge: dram.at(periods.get(consumer.name), folded.busy(consumer.name)).delay_cycles(
            sink, dram.dealt.get(edge, 1)
        )
        for edge, _p, _s, consumer, sink in folded.streams
        if edge in outside
    }
    form = link_format(len(crossings), len(cluster.devices), cluster.link_word_bits, pooled=cluster.network.pooled)
    behind = {
        crossing.edge: max(
            link_words * elements_per_word(crossing.element_bits, form.word_bits) // crossing.sink.lanes,
            receiver_beats(
                crossing.sink, depths[crossing.edge], crossing.edge in outside, interval, delays[crossing.edge]
            ),
        )
        for crossing in crossings
    }
    word_rate = cluster.link_word_bits * cluster.clock_hz
    rates = {
        device.name: min(
            1.0,
            # cables have rates of their own
            1.0 if routing else float(device.board.link_bits_per_s * cluster.network.efficiency / word_rate),
            device.board.clock_hz / cluster.clock_hz,
        )
        for device in cluster.devices
    }
    under_way = cluster.way_cycles if network_cycles is None else network_cycles
    used = () if routing is None else cabled_devices(routing, set(placed.values()))
    wires = () if routing is None else wire_rates(routing, cluster.link_word_bits, cluster.clock_hz)
    hops = hops_of(crossings, form, behind, under_way, rates, cluster.periods, routing, used, wires)
    return Wired(standing, depths, hops, stored, periods, form.payload_bits if crossings else 0)
