"""Prices of every node at levels of cycles a frame, and the placement problem that they make.

What a node costs (`dagtrain.planning.costs`) is asked once for each level, and kept: searches come back to levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dagtrain.graph.ir import Graph, Node
from dagtrain.passes.fold import fold_graph, weight_groups
from dagtrain.planning.choices import Choice, Dealing, cluster_dealing, cluster_dram
from dagtrain.planning.clocks import paces, periods_of
from dagtrain.planning.costs import LevelCosts
from dagtrain.planning.link_costs import NO_CREDITS, PortCosts, network_links
from dagtrain.planning.port_tables import PortTables
from dagtrain.planning.priced import ON_CHIP, PricedLevel, level_key
from dagtrain.planning.timetable import CIRCUITS, spending
from dagtrain.progress import Progress
from hdl.costs.estimate import Circuit, Estimator, Wanted
from hdl.costs.resources import Usage
from hdl.errors import FoldingError
from hdl.layers.storage import Home
from hdl.parts.part import Part
from placement.problem.cluster import Cluster
from placement.problem.deadline import Deadline
from placement.problem.instance import Configuration, Device, Instance, Item, Link, NetworkPort, pareto


@dataclass
class Prices:
    """What the nodes of one graph cost on one cluster."""

    graph: Graph
    cluster: Cluster
    estimator: Estimator
    pins: Mapping[str, str]
    progress: Progress
    # what circuits may be: products with constants on multipliers, streams to DRAM dealt out over memory channels, two
    # versions on chip of all weights that an engine lends
    multiply: bool = field(default=False, kw_only=True)
    deal: bool = field(default=False, kw_only=True)
    lend_two: bool = field(default=False, kw_only=True)
    # seconds by what they went into
    spent: MutableMapping[str, float] = field(default_factory=lambda: defaultdict(float))
    # distinct circuits of the level priced last, and those of them that are known
    wanted_circuits: int = field(default=0, init=False)
    known_circuits: int = field(default=0, init=False)
    # links with their ports, priced with the first levels
    ported: tuple[Link, ...] | None = field(default=None, init=False)
    # what was priced, by `level_key`: rounds of refinement ask again
    known: dict[tuple[Any, ...], PricedLevel] = field(default_factory=dict, init=False)

    def forget_ports(self) -> None:
        """Price the ports of links with the levels that are asked for next."""
        self.ported = None

    def instance(self, levels: Iterable[int], deadline: Deadline | None = None) -> Instance:
        """The placement problem with the choices of every node at each level that all layers can keep.

        Raises `Ended` at the deadline."""
        wanted, priced = [own for cycles in levels for own in paces(self.cluster, cycles)], list[PricedLevel]()
        for cycles in wanted:
            # folding is not monotonic: lanes that suit more cycles can be too few for somewhat fewer
            try:
                priced.append(self.level(cycles, deadline=deadline))
            except FoldingError:
                if not priced and cycles == wanted[-1]:
                    raise
        if self.ported is None:
            # once: a plan found at other levels is to hold with the same ports
            self.ported = tuple(self._links_with_ports(max(wanted), priced[-1].credit_words, deadline or Deadline()))
        return self.of_levels(priced, self.ported)

    def knows(self, cycles: int) -> bool:
        """Whether a level is priced, at each clock that devices have."""
        return all(level_key(own) in self.known for own in paces(self.cluster, cycles))

    def level(
        self,
        cycles: int,
        homes: Mapping[str, Home] = ON_CHIP,
        assignment: Mapping[str, str] | None = None,
        free: bool = True,
        folds: Mapping[str, int] | None = None,
        deadline: Deadline | None = None,
    ) -> PricedLevel:
        """Every node's configurations by part at one level, or folded as ``folds`` says; priced once.

        Raises `Ended` at the deadline."""
        key = level_key(cycles, homes, assignment, free, folds)
        if key not in self.known:
            deadline = deadline or Deadline()
            with spending(self.spent, CIRCUITS, deadline):
                self.known[key] = self._priced(cycles, homes, assignment, free, folds, deadline)
        return self.known[key]

    def _priced(
        self,
        cycles: int,
        homes: Mapping[str, Home],
        assignment: Mapping[str, str] | None,
        free: bool,
        folds: Mapping[str, int] | None,
        deadline: Deadline,
    ) -> PricedLevel:
        level = self.costs(cycles, homes, assignment, free, folds, deadline)
        self.progress.begin("costs", len(level.folded.nodes))
        offers: dict[str, dict[str, list[Configuration]]] = {}
        sizes: dict[tuple[str, Choice], tuple[int, ...]] = {}
        mlabs: dict[tuple[str, Choice, str], int] = {}
        for node in level.folded.nodes:
            offers[node.name] = {part.name: [] for part in self.parts}
            for offer in level.offers(node):
                deadline.check()
                sizes[node.name, offer.choice] = offer.dram_bytes
                for part in self.parts:
                    usage = offer.usage(part)
                    offers[node.name][part.name].append(offer.configuration(usage, self.has_channels))
                    mlabs[node.name, offer.choice, part.name] = usage.mlab
            self.progress.advance(note=node.name)
        self.progress.end()
        reserved = {part.name: level.reserved(part) for part in self.parts}
        return PricedLevel(
            offers,
            frozenset(level.tiles),
            sizes,
            mlabs,
            reserved,
            tells_streams=True,
            credit_words=level.credit_words,
            form=level.links.form if level.links.placed else None,
        )

    def costs(
        self,
        cycles: int,
        homes: Mapping[str, Home] = ON_CHIP,
        assignment: Mapping[str, str] | None = None,
        free: bool = True,
        folds: Mapping[str, int] | None = None,
        deadline: Deadline | None = None,
    ) -> LevelCosts:
        """What every node can be at one level, its circuits elaborated.

        Raises `Ended` at the deadline, and `FoldingError` when the level is too fast for a layer."""
        level = LevelCosts(
            graph=self.graph,
            cycles=cycles,
            homes=homes,
            dram=cluster_dram(self.cluster, cycles),
            parts=self.parts,
            estimator=self.estimator,
            assignment=assignment,
            devices=[device.name for device in self.cluster.devices],
            link_word_bits=self.cluster.link_word_bits,
            network_cycles=self.cluster.network_cycles,
            host_on_network=self.cluster.network.frames is not None,
            pooled=self.cluster.network.pooled,
            free=free,
            folds=folds,
            multiply=self.multiply,
            lend_two=self.lend_two,
            dealing=cluster_dealing(self.cluster, cycles) if self.deal else Dealing(),
            periods=periods_of(self.cluster, assignment or {}),
            routing=self.cluster.routing,
        )
        self._elaborate(level, deadline or Deadline())
        return level

    def _elaborate(self, level: LevelCosts, deadline: Deadline) -> None:
        """Make the circuits of a level known, each distinct one once."""
        circuits = level.circuits()
        self.wanted_circuits, self.known_circuits = len(circuits), 0

        def known(count: int) -> None:
            self.known_circuits += count

        self._prepare(f"circuits at {level.cycles:,} cycles a frame", circuits, deadline, known)

    def _prepare(
        self,
        label: str,
        circuits: Mapping[str, Circuit],
        deadline: Deadline,
        on_done: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.progress.begin(label, len(circuits))

        def known(count: int) -> None:
            on_done(count)
            self.progress.advance(count)
            deadline.check()

        self.estimator.prepare(circuits, known)
        self.progress.end()

    def of_levels(
        self, levels: Sequence[PricedLevel], links: Iterable[Link], places: Mapping[str, str] | None = None
    ) -> Instance:
        """The placement problem with the configurations of all these levels, of which none costs more than another in
        everything.  ``places``: node -> device, if ports are to be those of this placement."""
        items, links = [], tuple(links)
        ports = self._frame_ports.of(levels, links, places)
        for node in self._by_layer():
            offers = {
                part.name: pareto(c for level in levels for c in level.offers[node.name][part.name])
                for part in self.parts
            }
            items.append(self._item(node, offers, any(node.name in level.tiled for level in levels)))
        instance = Instance(
            name=f"{self.graph.name} on {self.cluster.name}",
            clock_hz=self.cluster.clock_hz,
            items=tuple(items),
            links=links,
            devices=tuple(self._devices(levels, ports)),
            **self.cluster.network.of_instance(self.cluster.clock_hz),
        )
        return instance.with_pins(self.pins) if self.pins else instance

    def _by_layer(self) -> list[Node]:
        """Nodes layer by layer in the order of the network, as the search's first guess wants them."""
        order: dict[str, int] = {}
        for node in self.graph.nodes:
            order.setdefault(node.layer_of, len(order))
        return sorted(self.graph.nodes, key=lambda node: order[node.layer_of])

    def _item(self, node: Node, offers: Mapping[str, tuple[Configuration, ...]], tiled: bool) -> Item:
        return Item(
            name=node.name,
            configurations=offers,
            pinned=self.cluster.devices[0].name if node.layer.pinned_to_host else None,
            tile_group=self._groups[node.name] if tiled else None,
            layer=node.layer_of,
            same_device=self._pairs.get(node.name),
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Part types of the cluster, each once."""
        return tuple({device.board.part.name: device.board.part for device in self.cluster.devices}.values())

    def _devices(self, levels: Sequence[PricedLevel], ports: Mapping[str, NetworkPort]) -> Iterable[Device]:
        """The devices with their ports, less what is reserved on them."""
        for device in self.cluster.placement_devices():
            found = [level.reserved[device.part] for level in levels if level.reserved]
            m20k, alm = (max((getattr(usage, name) for usage in found), default=0) for name in ("m20k", "alm"))
            rest = self._frame_ports.rest(device) if found else Usage()
            port, channels = ports.get(device.name), device.dram_channels
            m20k, alm = device.m20k - channels * m20k - rest.m20k, device.alm - channels * alm - rest.alm
            if device.clock_hz and not ports:
                alm -= self._frame_ports.clock_crossings(device.part)
            told = channels if all(level.tells_streams for level in levels) else 1
            yield replace(device, m20k=max(0, m20k), alm=max(0, alm), dram_channels=told, port=port)

    @cached_property
    def _frame_ports(self) -> PortTables:
        return PortTables(self.graph, self.cluster, self.estimator, self._prepare)

    @cached_property
    def has_channels(self) -> bool:
        """Whether streams to DRAM are on channels of their device."""
        return any(device.board.dram_channels > 1 for device in self.cluster.devices)

    @cached_property
    def _groups(self) -> dict[str, str]:
        """Node -> the first node of its weight group."""
        return {member.name: members[0].name for members in weight_groups(self.graph) for member in members}

    @cached_property
    def _pairs(self) -> dict[str, str]:
        """Node of two that share a memory -> that which lends it."""
        pairs = self.graph.lenders.items()
        return {member: lender.name for name, lender in pairs for member in (name, lender.name)}

    def _links_with_ports(self, cycles: int, credit_words: Mapping[str, int], deadline: Deadline) -> Iterable[Link]:
        """Links with what their ends take of a network port, folded for these cycles.

        Raises `Ended` at the deadline."""
        costs = PortCosts(self._frame_ports.many, self.parts, self.estimator, self._frame_ports.framed)
        folded = fold_graph.run(self.graph, cycles, self.parts)
        ends = [(source, sink, folded.coding(edge)) for edge, _producer, source, _consumer, sink in folded.streams]
        with spending(self.spent, CIRCUITS, deadline):
            wanted = Wanted()
            asking = replace(costs, estimator=wanted)
            links = list(self.links(credit_words, folded))
            for link, end in zip(links, ends, strict=True):
                asking.of_link(link, *end)
            self._prepare("circuits of network ports", wanted.circuits, deadline)
        return [costs.of_link(link, *end) for link, end in zip(links, ends, strict=True)]

    def links(self, credit_words: Mapping[str, int] = NO_CREDITS, folded: Graph | None = None) -> Iterable[Link]:
        """Edges with the bits that they carry a frame, without ports (`network_links`); ``folded``: the graph folded,
        whose tiles may have empty places that pass too; None: the least."""
        bits, back = self.cluster.link_word_bits, self.cluster.network.credit_bits
        return network_links(folded or self.graph, bits, credit_words, back)
