"""What the clocks of a bench are called."""

from __future__ import annotations

from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.links import NETWORK_NETS


def clock_of(device: DeliveredDevice) -> str:
    """The clock of a device in the bench: the network's, or its own."""
    return "clk" if device.manifest.network_mhz is None else f"clk_{device.manifest.top}"


def clock_at(device: DeliveredDevice, net: str) -> str:
    """The clock in the bench of a stream inside a device."""
    return "clk" if net in NETWORK_NETS else clock_of(device)
