"""What the clocks of a bench are called."""

from __future__ import annotations

from collections.abc import Sequence

from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.links import NETWORK_NETS

# of the network, in whose cycles plans count and a bench counts
CLUSTER_CLOCK = "clk"


def clock_of(device: DeliveredDevice) -> str:
    """The clock of a device in the bench: the network's, or its own."""
    return CLUSTER_CLOCK if device.manifest.network_mhz is None else f"clk_{device.manifest.top}"


def clock_at(device: DeliveredDevice, net: str) -> str:
    """The clock in the bench of a stream inside a device."""
    of_network = NETWORK_NETS.fullmatch(net) is not None and device.manifest.ethernet is None
    return CLUSTER_CLOCK if of_network else clock_of(device)


def mac_clocks(devices: Sequence[DeliveredDevice]) -> dict[str, tuple[str, str]]:
    """Device on Ethernet -> clocks of the bench at which its MAC takes and gives beats: its own, or the device's."""
    framed = [device for device in devices if device.manifest.ethernet]
    return {
        device.manifest.device: (clock_of(device), clock_of(device))
        if device.manifest.ethernet and device.manifest.ethernet.mac_mhz is None
        else (f"{mac_prefix(number)}_tx_clk", f"{mac_prefix(number)}_rx_clk")
        for number, device in enumerate(framed)
    }


def mac_prefix(number: int) -> str:
    """What ports of the bench begin with that belong to the MAC at this port of the switch."""
    return f"mac{number}"
