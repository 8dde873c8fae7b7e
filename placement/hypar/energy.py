"""Energy of a step of training (6.1, Figure 7): operations and accesses of `iteration`, at the paper's prices.

It gives four of them.  How often SRAM is read and what a link takes it doesn't: the first follows from its units
(`iteration`), the second is a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.hypar.iteration import Exchange, Task, Work

PICO = 1e-12


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Picojoules, of 32 bits."""

    addition: float = 0.9
    multiplication: float = 3.7
    sram: float = 5.0
    dram: float = 640.0
    # of a word from an accelerator to its mirror image, whatever the way; not given
    link: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Joules:
    """Of all accelerators, a step."""

    operations: float
    sram: float
    # operands and results of passes
    dram: float
    # DRAM at both ends, links, additions of partial sums
    exchanges: float

    @property
    def total(self) -> float:
        """Of everything."""
        return self.operations + self.sram + self.dram + self.exchanges


def joules(tasks: Sequence[Task], accelerators: int, prices: Prices) -> Joules:
    """Of an iteration.

    A word that is exchanged is read here and written there; one that is added to another is besides that one's read and
    an addition."""
    works = [task for task in tasks if isinstance(task, Work)]
    exchanges = [task for task in tasks if isinstance(task, Exchange)]
    copied = sum(task.words for task in exchanges)
    added = sum(task.words for task in exchanges if task.sums)
    scale = PICO * accelerators
    return Joules(
        operations=scale * (prices.addition + prices.multiplication) * sum(work.macs for work in works),
        sram=scale * prices.sram * sum(work.sram for work in works),
        dram=scale * prices.dram * sum(work.dram for work in works),
        exchanges=scale * ((2 * prices.dram + prices.link) * copied + (prices.dram + prices.addition) * added),
    )
