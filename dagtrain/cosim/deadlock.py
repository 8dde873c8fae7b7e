"""Who waits for whom when nothing moves any more, told from `valid` and `ready` of every stream in the device tops.

Rules, for a stream from W to R:

* offered and not taken: W waits for R, which has no room, or wants something else first;
* wanted and not offered: R waits for W;
* neither: R waits for W only if R refuses another stream and nothing that R offers is refused;
* the sender of an edge that refuses elements while its words are taken has no credits: it waits for the receiver;
* the receiver of an edge that offers nothing waits for the sender.

A deadlock of bounded FIFOs is a circle with at least one stream in it that is offered and not taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from dagtrain.emission.delivered import Delivered
from dagtrain.emission.links import NETWORK_ROLE, receiver_role, sender_role
from dagtrain.emission.manifest import Manifest
from dagtrain.emission.memory import MEMORY_ROLE

# shared by many streams: who waits there waits for all of them
SHARED = (NETWORK_ROLE, MEMORY_ROLE)
# waits listed where there is no circle
SHOWN_WAITS = 20

# (device, part): a node, or a part such as "FIFO of <edge>"
Part = tuple[str, str]
# (top module, net) -> (valid, ready)
Nets = Mapping[tuple[str, str], tuple[bool, bool]]


@dataclass(frozen=True)
class Wait:
    """One part waits for another."""

    waiting: Part
    on: Part
    why: str
    # the stream is full or out of credits, not empty
    blocked: bool

    def __str__(self) -> str:
        (device, part), (other, on) = self.waiting, self.on
        return f"{part} ({device}) waits for {on}{f' ({other})' if other != device else ''}: {self.why}"


def explain(delivered: Delivered, nets: Nets) -> str:
    """The shortest circle of waits, or all of them where there is none, a line each."""
    waits = list(all_waits(delivered, nets))
    circle = shortest_circle(waits)
    if circle:
        return "these wait for one another in a circle:\n  " + "\n  ".join(map(str, circle))
    listed = [str(wait) for wait in sorted(waits, key=lambda wait: (not wait.blocked, wait.waiting))]
    more = f"\n  and {len(listed) - SHOWN_WAITS} more" if len(listed) > SHOWN_WAITS else ""
    return "these wait, in no circle:\n  " + "\n  ".join(listed[:SHOWN_WAITS]) + more


def all_waits(delivered: Delivered, nets: Nets) -> Iterable[Wait]:
    """Every wait that the rules tell."""
    for device in delivered.devices:
        yield from _device_waits(device.manifest, nets)


def shortest_circle(waits: Iterable[Wait]) -> list[Wait]:
    """The shortest circle with a blocked stream in it, without the shared ports if there is one; empty if none."""
    waits = list(waits)
    for found in ([wait for wait in waits if wait.on[1] not in SHARED and wait.waiting[1] not in SHARED], waits):
        graph = nx.DiGraph()
        for wait in found:
            if not graph.has_edge(wait.waiting, wait.on) or wait.blocked:
                graph.add_edge(wait.waiting, wait.on, wait=wait)
        circles = []
        for wait in found:
            if wait.blocked and nx.has_path(graph, wait.on, wait.waiting):
                circles.append([wait.waiting, *nx.shortest_path(graph, wait.on, wait.waiting)])
        if circles:
            parts = min(circles, key=lambda circle: (len(circle), circle))
            return [graph.edges[pair]["wait"] for pair in pairwise(parts)]
    return []


def _device_waits(manifest: Manifest, nets: Nets) -> Iterable[Wait]:
    name = manifest.device
    known = [
        (stream, *nets[manifest.top, stream.net]) for stream in manifest.streams if (manifest.top, stream.net) in nets
    ]
    refusing = {stream.reader for stream, valid, ready in known if valid and not ready}
    refused = {stream.writer for stream, valid, ready in known if valid and not ready}
    # those that want something else than what they are offered
    choosy = refusing - refused
    senders = {sender_role(crossing.edge): crossing for crossing in manifest.egress}
    receivers = {receiver_role(crossing.edge): crossing for crossing in manifest.ingress}
    for stream, valid, ready in known:
        writer, reader = (name, stream.writer), (name, stream.reader)
        if valid and not ready:
            yield Wait(writer, reader, f"{stream.net} is offered and not taken", True)
        elif not valid and stream.writer not in SHARED and (ready or stream.reader in choosy):
            yield Wait(reader, writer, f"{stream.net} is empty", False)
    for role in sorted(choosy & senders.keys()):
        crossing = senders[role]
        other = (crossing.target, receiver_role(crossing.edge))
        yield Wait((name, role), other, "it has no credits left", True)
    offering = {stream.writer for stream, valid, _ in known if valid and not stream.net.startswith("credit_")}
    for role in sorted(receivers.keys() - offering):
        crossing = receivers[role]
        yield Wait((name, role), (crossing.source, sender_role(crossing.edge)), "no word has come", False)
