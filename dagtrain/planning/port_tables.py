"""The Ethernet ports of a cluster's devices as searches and placements are charged with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dagtrain.emission.cables import device_cables
from dagtrain.emission.links import port_rest
from dagtrain.graph.ir import Graph
from dagtrain.planning.frame_ports import NO_BITS, FramePorts, free_ports, host_bits, pool_rest
from dagtrain.planning.link_costs import many_streams
from dagtrain.planning.priced import PricedLevel
from hdl.costs.estimate import Circuit, Contents, Wanted
from hdl.costs.resources import Usage, fit
from hdl.link.clocks import ClockCrossing
from hdl.link.format import LinkFormat
from hdl.parts.catalogue import PARTS
from hdl.unit import Unit
from placement.problem.cluster import Cluster
from placement.problem.deadline import Deadline
from placement.problem.instance import Device, Link, NetworkPort, ticks


@dataclass
class PortTables:
    """Device -> its port, of one graph on one cluster."""

    graph: Graph
    cluster: Cluster
    estimator: Contents
    # elaborates circuits: what a bar calls them, circuits by their keys, when to end
    prepare: Callable[[str, Mapping[str, Circuit], Deadline], None]
    # what was asked before, by what words look like
    known: dict[LinkFormat, dict[str, NetworkPort]] = field(default_factory=dict, init=False)

    @property
    def framed(self) -> bool:
        """Whether words go in frames."""
        return self.cluster.network.frames is not None

    @property
    def many(self) -> LinkFormat:
        """Words of the cluster before it is known how many streams cross its network."""
        devices = 1 if self.framed else len(self.cluster.devices)
        return many_streams(devices, self.cluster.link_word_bits, pooled=self.cluster.network.pooled)

    def clock_crossings(self, part: str) -> int:
        """ALMs, on a part, of the crossings between a device's clock and that of the network, one either way; they hold
        few words and take no block memory."""
        unit = ClockCrossing(payload_bits=self.many.payload_bits)
        contents = self.estimator.block(repr(unit), dict(unit.streams), unit.build)
        return 2 * fit(contents, PARTS[part]).alm

    def rest(self, device: Device) -> Usage:
        """What a device's port has beyond the shares of its streams, what passes on words from cable to cable among it;
        nothing where there is no network, or where that stands with its frames."""
        if self.framed or len(self.cluster.devices) == 1:
            return Usage()
        units: list[Unit] = [*port_rest(self.many, framed=False)]
        if self.cluster.routing is not None:
            names = self.cluster.routing.devices
            units.append(device_cables(self.cluster.routing, names, device.name, self.many).unit)
        found = (self.estimator.block(repr(unit), dict(unit.streams), unit.build) for unit in units)
        part = PARTS[device.part]
        return sum((fit(contents, part) for contents in found), pool_rest(self.many, part))

    def of(
        self, levels: Sequence[PricedLevel], links: Sequence[Link], places: Mapping[str, str] | None
    ) -> Mapping[str, NetworkPort]:
        """None where words cross the network without frames.  Words have the fields that the crossings of a placement
        need, or before there is one those of many.  Where levels reserve nothing, since a bound is asked for, ports
        take nothing either.  ``places``: node -> device, of a placement."""
        if self.cluster.network.frames is None:
            return {}
        if not any(level.reserved for level in levels):
            return free_ports(self.graph, self.cluster)
        forms = {level.form for level in levels}
        form = (forms.pop() if len(forms) == 1 else None) or self.many
        if places is None and form in self.known:
            return self.known[form]
        bits = host_bits(self.graph, self.cluster)
        rates = self._rates(levels, links, places, bits) if places is not None else None

        def ports(estimator: Contents) -> dict[str, NetworkPort]:
            made = FramePorts(self.cluster, form, estimator, bits)
            return {
                device.name: made.of(device) if rates is None else made.placed(device, rates[device.name])
                for device in self.cluster.devices
            }

        wanted = Wanted()
        ports(wanted)
        self.prepare("circuits of Ethernet ports", wanted.circuits, Deadline())
        found = ports(self.estimator)
        if rates is None:
            self.known[form] = found
        return found

    def _rates(
        self,
        levels: Sequence[PricedLevel],
        links: Sequence[Link],
        places: Mapping[str, str],
        host: Mapping[str, tuple[Fraction, Fraction]],
    ) -> dict[str, list[Fraction]]:
        """Device -> words a cycle that it sends to each of its peers, the host the last, at the fastest pace that its
        engines allow."""
        devices = {device.name: device for device in self.cluster.placement_devices()}
        least = max(
            min(
                ticks(c.cycles_per_frame, self.cluster.clock_hz, devices[place].clock_hz)
                for level in levels
                for c in level.offers[name][devices[place].part]
            )
            for name, place in places.items()
        )
        sent: dict[str, dict[str, Fraction]] = {name: {} for name in devices}
        for link in links:
            for source, target, bits in (
                (link.source, link.target, link.bits_per_frame), (link.target, link.source, link.credit_bits_per_frame),
            ):  # fmt: skip
                here, there = places[source], places[target]
                if here != there:
                    sent[here][there] = sent[here].get(there, Fraction(0)) + bits
        word = self.cluster.link_word_bits * max(1, least)
        return {
            name: [bits / word for bits in (*others.values(), host.get(name, NO_BITS)[1])]
            for name, others in sent.items()
        }
