"""What a host has to know of a cluster, from the design of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.ethernet import Ethernet, HostStream
from dagtrain.emission.selftest import SelfTest
from dagtrain.emission.state import rounds
from dagtrain.host.wiring import SCHEMA, DeviceTable, HostTable, LinkTable, Wiring


def designed_wiring(design: ClusterDesign) -> Wiring:
    """The wiring of a design whose host speaks over Ethernet."""
    ethernet = design.ethernet
    assert ethernet is not None
    recipe = design.graph.recipe
    devices: list[DeviceTable] = []
    for device in design.devices:
        own = ethernet.addresses[device.name]
        links = tuple(LinkTable(node=link.node, words=link.words) for link in device.links)
        devices.append(DeviceTable(name=device.name, number=own.number, ip=own.ip_text, mac=own.mac_text, link=links))
    values = {
        **_network(ethernet, design.host_streams),
        "batch": recipe.batch,
        "rounds": rounds(recipe.staleness),
        "device": devices,
    }
    return Wiring.model_validate(values)


def selftest_wiring(test: SelfTest) -> Wiring:
    """The wiring of the self-test of a cluster."""
    devices = []
    for name, values in test.values.items():
        own = test.ethernet.addresses[name]
        end = {"name": name, "number": own.number, "ip": own.ip_text, "mac": own.mac_text}
        devices.append(DeviceTable.model_validate({**end, "values": values, "bursts": test.bursts[name]}))
    return Wiring.model_validate({**_network(test.ethernet, test.streams), "batch": 1, "device": devices})


def _network(ethernet: Ethernet, streams: Sequence[HostStream]) -> dict[str, Any]:
    """What all hosts of an Ethernet are told of it."""
    assert ethernet.host is not None
    frames = ethernet.frames
    return {
        "schema_version": SCHEMA,
        "digest": f"{ethernet.digest:08x}",
        "word_bits": frames.word_bits,
        "mtu": frames.mtu,
        "window": ethernet.timing.window,
        "key": None if frames.key is None else f"{frames.key:016x}",
        "host": HostTable(ip=ethernet.host.ip_text, mac=ethernet.host.mac_text),
        "stream": [
            {
                "number": stream.number,
                "device": stream.device,
                "carries": stream.carries,
                "credits": stream.words,
                "element_bits": stream.element_bits,
                "elements": stream.elements,
            }
            for stream in streams
        ],
    }
