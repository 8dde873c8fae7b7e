"""The design of a whole cluster: the folded graph, its buffers, the streams between FPGAs, every FPGA's top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dagtrain.emission.cables import cabled_devices, device_cables
from dagtrain.emission.device import DeviceDesign, design_device, stored_edges
from dagtrain.emission.ethernet import Ethernet, HostStream, device_port, host_streams
from dagtrain.emission.links import (
    NETWORK_CYCLES,
    Crossing,
    allowed_cycles,
    crossings_of,
    link_format,
    receiver_beats,
)
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.stored import DramUse
from dagtrain.graph.ir import Graph, PlacedGraph
from dagtrain.passes.access_state import access_state
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.place import place
from dagtrain.schedule.buffers import fifo_beats
from dagtrain.schedule.schedule import needed_staleness, schedule
from hdl.errors import DagtrainError
from hdl.link.format import LinkFormat
from hdl.parts.catalogue import DEFAULT_PARTS
from hdl.parts.part import Part
from placement.problem.routes import Routing


@dataclass(frozen=True)
class ClusterDesign:
    """Everything that emission and co-simulation need to know."""

    graph: PlacedGraph
    # pipeline interval the design is folded for
    cycles_per_frame: int
    fifo_beats: Mapping[str, int]
    crossings: tuple[Crossing, ...]
    devices: tuple[DeviceDesign, ...]
    # least staleness D, in frames, at which the pipeline never waits for weights
    needed_staleness: int
    # words on the network
    form: LinkFormat
    # device of another clock than the network's -> what a cycle there lasts in cycles of that
    periods: Mapping[str, Fraction] = field(default_factory=dict)
    # None: words go over the network as they are
    ethernet: Ethernet | None = None
    # of the host, over the network
    host_streams: tuple[HostStream, ...] = ()
    # of edges that cross, behind the receiver
    receiver_beats: Mapping[str, int] = field(default_factory=dict)


def design_cluster(
    graph: Graph,
    placed: Mapping[str, str],
    devices: Sequence[str],
    cycles: int,
    library: ModuleLibrary,
    *,
    word_bits: int,
    network_cycles: int = NETWORK_CYCLES,
    fifo_override: Mapping[str, int] | None = None,
    dram: DramUse | None = None,
    folds: Mapping[str, int] | None = None,
    parts: Sequence[Part] = DEFAULT_PARTS,
    periods: Mapping[str, Fraction] | None = None,
    state_access: bool = False,
    ethernet: Ethernet | None = None,
    pooled: bool = False,
    routing: Routing | None = None,
) -> ClusterDesign:
    """Design every device of ``devices`` that holds a node, for ``cycles`` a frame.

    ``periods``: device of another clock than the network's, in whose cycles all this counts -> what a cycle there lasts
    in cycles of that.
    ``folds`` says what each node is folded for, if not for ``cycles``; ``parts`` are those of the cluster.
    ``fifo_override`` replaces analysed FIFO depths (beats by edge), to see what a wrong depth does.
    ``state_access``: whether every device has streams by which state is loaded and dumped (docs/state.md).
    ``ethernet``: the network is Ethernet.  ``pooled``: all receivers of a device have one memory.
    ``routing``: by which cables words go, each in ``network_cycles``, where there is no switch; devices that hold
    nothing and pass words on have a design too.
    ``dram`` names the edges whose FIFO lies in DRAM; layers that keep a memory outside use it in any case.
    Raises `DagtrainError` for an edge in DRAM that doesn't exist, and for state that can't be loaded."""
    built = fold_graph(graph, folds or cycles, parts)
    folded = place(access_state(built) if state_access else built, placed, devices)
    used, use = _designed(placed, devices, routing), dram or DramUse()
    unknown = sorted(use.edges - {edge for edge, *_ in folded.edges})
    if unknown:
        raise DagtrainError(f"graph {graph.name} has no edges {', '.join(unknown)} that could lie in DRAM")
    crossings = crossings_of(folded, used)
    streams = host_streams(folded, used, len(crossings), ethernet, cycles) if ethernet else ()
    form = link_format(len(crossings) + len(streams), len(used), word_bits, ethernet is not None, pooled=pooled)
    delays = allowed_cycles(crossings, network_cycles, routing)
    clocks = periods or {}
    lasting = {name: clocks[device] for name, device in placed.items() if device in clocks}
    timing = schedule(folded, cycles, delays, lasting)
    library.prepare(node.layer for node in folded.circuits)
    depths = {**fifo_beats(folded, timing), **(fifo_override or {})}
    stored = stored_edges(folded, use)
    behind = {
        c.edge: receiver_beats(c.sink, depths[c.edge], c.edge in stored, cycles, delays[c.edge]) for c in crossings
    }
    tops = []
    for number, name in enumerate(used):
        port = None
        shared = any(name in (crossing.source_device, crossing.target_device) for crossing in crossings)
        if ethernet is not None and (shared or ethernet.host):
            period = clocks.get(name, Fraction(1))
            port = device_port(ethernet, name, crossings, streams, form, cycles, folded.recipe.batch, period)
        own = name in clocks and port is None
        cables = None if routing is None or len(used) < 2 else device_cables(routing, used, name, form)
        tops.append(
            design_device(
                name,
                folded,
                depths,
                crossings,
                behind,
                library,
                form,
                number,
                use.at(clocks.get(name)),
                own,
                port,
                cables,
            )
        )
    staleness = needed_staleness(folded, timing, delays)
    return ClusterDesign(
        folded, cycles, depths, crossings, tuple(tops), staleness, form, clocks, ethernet, streams, behind
    )


def _designed(placed: Mapping[str, str], devices: Sequence[str], routing: Routing | None) -> list[str]:
    """Devices that hold a node, and those that pass on words between them."""
    used = [name for name in devices if name in set(placed.values())]
    return used if routing is None else list(cabled_devices(routing, set(used)))
