"""Devices of unlike clocks: a problem of engines that count in cycles of their own, as one that counts in time.

T and everything that is searched are in cycles of the instance's clock.  An engine that takes c cycles a frame at a
clock of d Hz is usable at T where c / d ≤ T / clock, which for whole T is ⌈c · clock / d⌉ ≤ T: exact, without a
fraction.  Rates are a second anyway.  So an instance is the same problem as the one `in_time` gives, whose devices all
have its clock: there every part is one part a clock, with as many configurations in the same order.
"""

from __future__ import annotations

from dataclasses import replace

from placement.problem.instance import Device, Instance, ticks


def in_time(instance: Instance) -> Instance:
    """The same problem with one clock: items, devices and configurations stand where they stood, cycles are those of
    the instance's clock.  The instance itself where all devices have its clock."""
    if not any(device.clock_hz for device in instance.devices):
        return instance
    kinds = {_kind(device): device for device in instance.devices}
    items = []
    for item in instance.items:
        menus = {
            kind: tuple(
                replace(c, cycles_per_frame=ticks(c.cycles_per_frame, instance.clock_hz, device.clock_hz))
                for c in item.configurations[device.part]
            )
            for kind, device in kinds.items()
            if device.part in item.configurations
        }
        items.append(replace(item, configurations=menus))
    devices = tuple(replace(device, part=_kind(device), clock_hz=0) for device in instance.devices)
    return replace(instance, items=tuple(items), devices=devices)


def _kind(device: Device) -> str:
    """A part at a clock."""
    return f"{device.part} at {device.clock_hz} Hz" if device.clock_hz else device.part
