"""Streams to DRAM on the memory channels of their device: each on one, none fuller than it must be.

A stream can't be cut, so which channel it is on is part of a plan where a device has several.  Placements are searched
with the channels of a device melted into one; what its fullest channel carries then says how fast a placement runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placement.problem.instance import Configuration, Device, Instance, Item

# streams up to which every distribution is tried that could be better, and how many of these at most
FEW_STREAMS = 14
MOST_TRIED = 50_000


def in_channels(instance: Instance) -> Instance:
    """The same problem, of devices with one clock, where a configuration takes as many cycles a frame at least as a
    memory channel of any device of its part is busy with its largest stream: faster it is of no use.  The instance
    itself where no device has several channels."""
    if not any(device.dram_channels > 1 for device in instance.devices):
        return instance
    devices: dict[str, list[Device]] = {}
    for device in instance.devices:
        if device.dram_bytes_per_s:
            devices.setdefault(device.part, []).append(device)

    def slowed(c: Configuration, part: str) -> Configuration:
        stream = max(c.streams, default=0) * instance.clock_hz
        busy = min((-(-stream * d.dram_channels // d.dram_bytes_per_s) for d in devices.get(part, ())), default=0)
        return replace(c, cycles_per_frame=busy) if busy > c.cycles_per_frame else c

    def of(item: Item) -> Item:
        menus = {part: tuple(slowed(c, part) for c in menu) for part, menu in item.configurations.items()}
        return replace(item, configurations=menus)

    return replace(instance, items=tuple(map(of, instance.items)))


def spread(sizes: Sequence[int], channels: int) -> tuple[int, ...]:
    """The channel of each stream of so many bytes: the largest first, each on the emptiest channel; a few streams so
    that the fullest channel has as little as possible."""
    order = sorted(range(len(sizes)), key=lambda stream: -sizes[stream])
    loads = [0] * channels
    found = [0] * len(sizes)
    for stream in order:
        channel = min(range(channels), key=lambda c: loads[c])
        loads[channel] += sizes[stream]
        found[stream] = channel
    if channels > 1 and len(sizes) <= FEW_STREAMS:
        return _Search(sizes, order, channels, max(loads, default=0), tuple(found)).result()
    return tuple(found)


class _Search:
    """Depth first, the largest stream first; channels with equal loads are alike."""

    def __init__(self, sizes: Sequence[int], order: Sequence[int], channels: int, best: int, found: tuple[int, ...]):
        self.sizes, self.order, self.found, self.best = sizes, order, found, best
        self.least = max(-(-sum(sizes) // channels), max(sizes, default=0))
        self.loads, self.chosen, self.tried = [0] * channels, [0] * len(sizes), 0

    def result(self) -> tuple[int, ...]:
        self._place(0)
        return self.found

    def _place(self, position: int) -> None:
        self.tried += 1
        if position == len(self.order):
            self.best, self.found = max(self.loads), tuple(self.chosen)
            return
        stream = self.order[position]
        for channel, load in enumerate(self.loads):
            if self.best == self.least or self.tried > MOST_TRIED:
                return
            if load in self.loads[:channel] or load + self.sizes[stream] >= self.best:
                continue
            self.loads[channel] += self.sizes[stream]
            self.chosen[stream] = channel
            self._place(position + 1)
            self.loads[channel] = load
