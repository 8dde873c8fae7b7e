"""What the clocks of a bench are called."""

from __future__ import annotations

from dagtrain.emission.delivered import DeliveredDevice


def clock_of(device: DeliveredDevice) -> str:
    """The clock of a device in the bench: the network's, or its own."""
    return "clk" if device.manifest.network_mhz is None else f"clk_{device.manifest.top}"
