"""What nodes cost at one level of cycles a frame, as it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagtrain.planning.choices import Choice, plan_choices
from hdl.costs.resources import Usage
from hdl.errors import InfeasibleError, Problem
from hdl.layers.storage import Home
from hdl.link.format import LinkFormat
from placement.problem.cluster import Cluster
from placement.problem.instance import Configuration
from placement.problem.plan import Plan

# no node has its memory elsewhere
ON_CHIP: Mapping[str, Home] = {}


@dataclass(frozen=True)
class PricedLevel:
    """Configurations at one number of cycles a frame."""

    # node -> part -> configurations
    offers: Mapping[str, Mapping[str, Sequence[Configuration]]]
    # nodes of weight groups with a tile
    tiled: frozenset[str]
    # (node, what is built of it) -> bytes of each stream that lie in DRAM
    dram_bytes: Mapping[tuple[str, Choice], tuple[int, ...]]
    # (node, what is built of it, part) -> memories made of logic
    mlabs: Mapping[tuple[str, Choice, str], int]
    # part -> what groups of narrow streams to DRAM may take of a memory channel beyond what its nodes are counted with
    reserved: Mapping[str, Usage] = field(default_factory=dict)
    # whether configurations tell each stream to DRAM; else the memory channels of a device are melted into one
    tells_streams: bool = False
    # edge that may cross the network -> words that a credit word stands for
    credit_words: Mapping[str, int] = field(default_factory=dict)
    # what words look like, of the placement that it was priced for; None: there is none yet
    form: LinkFormat | None = None

    def told_apart(self, words: str) -> PricedLevel:
        """The same with these words behind every label, beside levels that have configurations of the same names."""
        offers = {
            node: {part: [replace(one, label=f"{one.label} {words}") for one in menu] for part, menu in menus.items()}
            for node, menus in self.offers.items()
        }
        return replace(self, offers=offers)


def level_key(
    cycles: int,
    homes: Mapping[str, Home] = ON_CHIP,
    assignment: Mapping[str, str] | None = None,
    free: bool = True,
    folds: Mapping[str, int] | None = None,
) -> tuple[Any, ...]:
    """What the prices of a level depend on."""
    return cycles, *(frozenset(part.items()) if part else None for part in (homes, assignment, folds)), free


def check_memories(plan: Plan, level: PricedLevel, cluster: Cluster) -> None:
    """Raises `InfeasibleError` when what lies in a device's DRAM is larger than it, or it has too few MLABs."""
    # by device and channel
    dram: Counter[tuple[str, int]] = Counter()
    mlabs: Counter[str] = Counter()
    parts = {device.name: device.board.part for device in cluster.devices}
    for device in cluster.devices:
        mlabs[device.name] = device.board.dram_channels * level.reserved[device.board.part.name].mlab
    choices = plan_choices(plan)
    for item in plan.items:
        sizes = level.dram_bytes[item.item, choices[item.item]]
        for channel, size in zip(item.dram_channels or [0] * len(sizes), sizes, strict=True):
            dram[item.device, channel] += size
        mlabs[item.device] += level.mlabs[item.item, choices[item.item], parts[item.device].name]
    problems = [
        Problem(
            f"{device.name} would hold {size:,} bytes in DRAM{where} and has {room:,}",
            "raise dram_gbyte or add devices",
        )
        for device in cluster.devices
        for channel in range(device.board.dram_channels)
        for room in [device.board.dram_bytes // device.board.dram_channels]
        for size in [dram[device.name, channel]]
        for where in [f" channel {channel}" if device.board.dram_channels > 1 else ""]
        if size > room
    ]
    problems += [
        Problem(
            f"{name} would need {mlabs[name]:,} memories made of logic and has {part.lut_memory.blocks:,}",
            "add devices",
        )
        for name, part in parts.items()
        if mlabs[name] > part.lut_memory.blocks
    ]
    if problems:
        raise InfeasibleError.listing(plan.instance, problems)
