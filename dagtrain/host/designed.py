"""What a host has to know of a cluster, from the design of its devices."""

from __future__ import annotations

from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.state import rounds
from dagtrain.host.wiring import SCHEMA, DeviceTable, HostTable, LinkTable, Wiring


def designed_wiring(design: ClusterDesign) -> Wiring:
    """The wiring of a design whose host speaks over Ethernet."""
    ethernet = design.ethernet
    assert ethernet is not None
    assert ethernet.host is not None
    frames, recipe = ethernet.frames, design.graph.recipe
    devices: list[DeviceTable] = []
    for device in design.devices:
        own = ethernet.addresses[device.name]
        links = tuple(LinkTable(node=link.node, words=link.words) for link in device.links)
        devices.append(DeviceTable(name=device.name, number=own.number, ip=own.ip_text, mac=own.mac_text, link=links))
    streams = [
        {
            "number": stream.number,
            "device": stream.device,
            "carries": stream.carries,
            "credits": stream.words,
            "element_bits": stream.element_bits,
            "elements": stream.elements,
        }
        for stream in design.host_streams
    ]
    values = {
        "schema_version": SCHEMA,
        "digest": f"{ethernet.digest:08x}",
        "word_bits": frames.word_bits,
        "mtu": frames.mtu,
        "window": ethernet.timing.window,
        "key": None if frames.key is None else f"{frames.key:016x}",
        "batch": recipe.batch,
        "rounds": rounds(recipe.staleness),
        "host": HostTable(ip=ethernet.host.ip_text, mac=ethernet.host.mac_text),
        "device": devices,
        "stream": streams,
    }
    return Wiring.model_validate(values)
