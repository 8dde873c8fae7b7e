"""Ports of Ethernet as a search counts with them: what a port takes with no other device as its peer is not there.

A device on which anything stands has a port, which takes some blocks whatever other devices it exchanges words with.
So an instance is the same problem as the one `beside_ports` gives, whose devices have these blocks less, and whose
ports take only what more peers add.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from placement.problem.instance import Device, Instance, NetworkPort

# share of a device's blocks that is given away so that nobody needs to count peers
SPARED = Fraction(3, 100)


def beside_ports(instance: Instance) -> Instance:
    """The same problem where ports without peers take nothing.  The instance itself where words cross the network
    without frames."""
    if instance.framing is None:
        return instance
    return replace(instance, devices=tuple(map(_beside_port, instance.devices)))


def _beside_port(device: Device) -> Device:
    port = device.port
    assert port is not None
    m20k, alm = port.blocks(0)
    more = replace(port, m20k=_beyond(port.m20k), alm=_beyond(port.alm))
    return replace(device, m20k=max(0, device.m20k - m20k), alm=max(0, device.alm - alm), port=more)


def _beyond(told: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(blocks - told[0] for blocks in told)


def with_all_peers(instance: Instance) -> Instance:
    """A stricter problem, in which ports always take what they would with every other device for a peer: a placement
    of it is one of the instance's.  Searches that need not count peers are quicker, so it is what they look at where
    it costs next to nothing; the instance itself where it costs some device more than `SPARED`."""
    if instance.framing is None:
        return instance
    devices = []
    for device in instance.devices:
        port = device.port
        assert port is not None
        m20k, alm = port.blocks(len(instance.devices) - 1)
        if m20k > SPARED * device.m20k or alm > SPARED * device.alm:
            return instance
        none = (0,) * len(port.m20k)
        flat = replace(port, m20k=none, alm=none)
        devices.append(replace(device, m20k=device.m20k - m20k, alm=device.alm - alm, port=flat))
    return replace(instance, devices=tuple(devices))


def added_by_peers(port: NetworkPort | None, name: str) -> tuple[int, ...]:
    """Blocks, of "m20k" or "alm", that the first peer of a port adds, then the second and so on."""
    told: tuple[int, ...] = getattr(port, name) if port else ()
    return tuple(after - before for before, after in pairwise(told))
