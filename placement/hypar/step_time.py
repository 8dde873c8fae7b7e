"""How long a step of training takes on the paper's array (6.1): computing and communicating by turns, nothing beside
something else.

The paper gives 1 600 Mb/s a link, 16 of them, which in an H-tree of switches are all in use at every level: a level up
pairs are half as many, with twice the links each.  How many processing units a memory cube holds is not given.
Memory bandwidth (320 GB/s) binds none of the ten networks' layers and is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from placement.hypar.communication import BYTES, Choices, Counting, amounts
from placement.hypar.network import Net

# forward, error, gradient
PASSES = 3
# multiplications of a processing unit a second: 168 engines at 250 MHz (84.0 GOPS/s)
UNIT_MACS_PER_S = 168 * 250e6
LINK_BITS_PER_S = 1600e6


class Links(StrEnum):
    """What a pair of groups has between them, and what all pairs of a level have together."""

    # as many links a level: twice as many a pair a level up
    FAT = "fat"
    # as many links a pair
    CONSTANT = "constant"


@dataclass(frozen=True)
class Array:
    """Accelerators in an H-tree."""

    # processing units of an accelerator
    units: int = 12
    links: Links = Links.FAT

    def level_bits_per_s(self, level: int, levels: int) -> float:
        """Of all pairs of a level together, H1 is level 0; each accelerator has a link at the lowest one."""
        links = 1 << levels if self.links is Links.FAT else 1 << (level + 1)
        return links * LINK_BITS_PER_S

    def seconds(self, net: Net, choices: Choices, counting: Counting) -> float:
        """Of a step: all work is shared out evenly, whatever the choices."""
        between = amounts(net, choices, counting)
        return self.computing_seconds(net, counting.batch, len(between)) + sum(
            8 * BYTES * amount / self.level_bits_per_s(level, len(between)) for level, amount in enumerate(between)
        )

    def computing_seconds(self, net: Net, batch: int, levels: int) -> float:
        """Without communication."""
        macs = PASSES * batch * sum(layer.macs for layer in net.layers)
        return macs / ((1 << levels) * self.units * UNIT_MACS_PER_S)
