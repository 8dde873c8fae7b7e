"""What is to be planned: one graph on one cluster, and what the user asks of the plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

from dagtrain.graph.ir import Graph
from dagtrain.passes.insert_relays import insert_relays, remove_relays
from dagtrain.rates import rate_text, training_text
from hdl.errors import InfeasibleError
from placement.problem.cluster import Cluster
from placement.problem.instance import Device
from placement.problem.plan import Plan
from placement.search.search import SearchOptions

# cycles a frame that no network needs
SLOWEST = 1 << 40


class MultiplyConstants(Enum):
    """Whether norms and updates multiply by constants on multipliers instead of adders."""

    # where a plan is faster for it
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Codec(Enum):
    """Which links carry in few words what a codec has left few bits of."""

    ALWAYS = "always"
    # where training is faster for it
    AUTO = "auto"


class RaggedTiles(Enum):
    """Whether tiles of weights may leave places empty where they do not divide the filters."""

    # where that takes fewer multipliers
    AUTO = "auto"
    NEVER = "never"


class ShareStatistics(Enum):
    """Whether norms advance the statistics of few channels at a time."""

    # as few as the pace leaves time for
    AUTO = "auto"
    NEVER = "never"


class SmallBuffers(Enum):
    """Whether engines of convolutions store few pixels of their maps."""

    # all that can
    AUTO = "auto"
    NEVER = "never"


class DealStreams(Enum):
    """Whether a stream to DRAM may be dealt out over memory channels of its device."""

    # where none carries it at the pace
    AUTO = "auto"
    NEVER = "never"


@dataclass(frozen=True)
class Problem:
    """One graph on one cluster."""

    graph: Graph
    cluster: Cluster
    # goals and budgets of the last search; those before it get less
    search: SearchOptions
    # node -> device
    pins: Mapping[str, str]
    # whether products with constants may be made by multipliers
    multiply: bool = False
    # whether streams to DRAM may be dealt out over memory channels
    deal: bool = False
    # whether links may carry as it is what a codec has left few bits of
    choose_codec: bool = False
    # whether engines that lend their weights have two versions of them on chip
    lend_two: bool = False
    # whether slower levels are tried where the first one has no plan
    patient: bool = True
    # pace inside a batch that is priced first, frames a second
    first_fps: float | None = None

    @property
    def devices(self) -> list[Device]:
        """Devices that a plan may use."""
        return [device for device in self.cluster.placement_devices() if device.name not in self.search.exclude]

    def capacity(self, resource: str) -> float:
        """Blocks that a plan may use, of "dsp", "m20k" or "alm", each as many as it is worth at the cluster's clock."""
        clock = self.cluster.clock_hz
        return sum(
            int(getattr(device, resource)) * (device.clock_hz / clock if device.clock_hz else 1)
            for device in self.devices
        )

    def with_relays(self, edges: Collection[str]) -> Problem:
        """The same with relays on these edges."""
        return replace(self, graph=insert_relays(self.graph, edges))

    def without_relays(self, edges: Collection[str]) -> Problem:
        """The same without those on these edges."""
        return replace(self, graph=remove_relays(self.graph, edges))

    def without(self, devices: Collection[str], slowest: Fraction) -> Problem:
        """The same with these devices left empty too, at a pace of at most so many cycles a frame."""
        search = replace(self.search, exclude=(*self.search.exclude, *devices))
        return replace(self, search=self._no_slower(search, slowest))

    def with_layers_whole(self, layers: Iterable[str], slowest: Fraction) -> Problem:
        """The same with each of these layers on one device, at a pace of at most so many cycles a frame."""
        groups = tuple((layer,) for layer in layers)
        search = replace(self.search, same_device=(*self.search.same_device, *groups))
        return replace(self, search=self._no_slower(search, slowest))

    def with_copies_together(self, alike: Iterable[tuple[str, ...]], *, patient: bool) -> Problem:
        """The same with all copies of a node on one device, of each of these nodes; ``patient``: at slower levels too,
        where there is no plan at the first one."""
        return replace(self, search=replace(self.search, alike=tuple(alike)), patient=patient)

    def lending_two(self, slowest: Fraction) -> Problem:
        """The same with two versions on chip of weights that engines share, at a pace of at most so many cycles a
        frame."""
        return replace(self, search=self._no_slower(self.search, slowest), lend_two=True)

    def _no_slower(self, search: SearchOptions, slowest: Fraction) -> SearchOptions:
        return replace(search, least_fps=float(self.cluster.clock_hz / slowest))

    # ---- the rate of training wanted

    @property
    def slowest_cycles(self) -> int:
        """The most cycles a frame at which training could be as fast as the user wants it at least."""
        least = self.search.least_fps
        return SLOWEST if least is None else int(self.cluster.clock_hz // least)

    def first_cycles(self, least: int, ratio: float) -> int:
        """Cycles a frame of the level priced first: as the user says, else so much slower than the ``least`` that
        multipliers allow, but no slower than the user wants it at least."""
        first = round(least * ratio) if self.first_fps is None else int(self.cluster.clock_hz // self.first_fps)
        return min(max(least, first), max(least, self.slowest_cycles))

    def fast_enough(self, plan: Plan) -> bool:
        """Whether training with a plan is as fast as the user wants it at least."""
        least = self.search.least_fps
        return least is None or Fraction(plan.clock_hz) / plan.training_cycles >= least

    def reached(self, plan: Plan) -> bool:
        """Whether the pace of a plan is proven to be within the user's gap of what any folding could bring; never for a
        gap of 0, where there is more to do for a plan that is as fast as can be."""
        above = plan.cycles_per_frame - plan.any_bound_cycles_per_frame
        return self.search.gap > 0 and above <= Fraction(self.search.gap) * plan.cycles_per_frame

    def too_slow(self, plan: Plan) -> InfeasibleError:
        """What to say of the best plan when it is not."""
        return InfeasibleError(
            f"{plan.instance}: the best plan found trains {training_text(plan.throughput_fps)} frames/s in batches of "
            f"{plan.batch_frames} with staleness {plan.staleness_frames}, and {self.search.least_fps:g} are wanted",
            f"inside a batch it has {rate_text(plan.steady_fps)}: raise the recipe's staleness or batch, or relax "
            "--least-fps",
        )
