"""The training recipe: everything about learning that hardware and emulator must agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Self

from hdl.spelling import QUIET, spelt

# segments of straight lines that a cosine is made of: off by at most (pi / COSINE_SEGMENTS)**2 / 16 = 1.7e-4 of it
COSINE_SEGMENTS = 60
# bends of a schedule at most: batches at which its line changes direction
MOST_BENDS = 256
# the smallest weight of an auxiliary head's loss: circuits keep its error in as many bits more as it is smaller
LEAST_WEIGHT = 0.01
# a step to less than this share of the learning rate is a step to nothing: circuits keep 17 bits of it
LEAST_SHARE = 2.0**-18


class Schedule(StrEnum):
    """How the learning rate goes on after the warm-up."""

    CONSTANT = "constant"
    # times `Recipe.step_factor` every `Recipe.period` batches
    STEP = "step"
    # down to `Recipe.final_rate` within `Recipe.period` batches along half a cosine, then constant
    COSINE = "cosine"


class Loss(StrEnum):
    """What training makes small."""

    CROSS_ENTROPY = "cross-entropy"
    # of the scores, against 1 for the label's class and 0 for all others
    MEAN_SQUARED_ERROR = "mean-squared-error"


@lru_cache
def turns_of(shares: Sequence[int]) -> tuple[int, ...]:
    """Which copy gets each of so many frames as the shares of all copies add up to, each as evenly as can be: those of
    a copy stand in the middle of as many equal parts of all.  3 and 2 take the turns 0, 1, 0, 1, 0."""
    middles = (
        (Fraction(2 * number + 1, 2 * share), copy) for copy, share in enumerate(shares) for number in range(share)
    )
    return tuple(copy for _, copy in sorted(middles))


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """Which frames of a training one of several copies of a layer gets: every so many of each batch.

    Frames are dealt anew in every batch, so that a copy gets equally many of each, whether or not the copies divide a
    batch: its engines are those of a smaller batch.

    Raises `ValueError` where some copy gets no frame of a batch."""

    copy: int
    copies: int
    # of the training
    batch: int
    staleness: int
    # how many of as many frames as they add up to each copy gets; none: one each
    shares: tuple[int, ...] = field(default=(), metadata=QUIET)

    def __post_init__(self) -> None:
        if not 0 <= self.copy < self.copies:
            raise ValueError(f"copy {self.copy} of {self.copies}")
        if self.shares and (len(self.shares) != self.copies or min(self.shares) < 1):
            raise ValueError(f"shares of {self.copies} copies: {self.shares}")
        if not self.all_get_some(self.batch):
            shares = f", which get {self.shares} of {len(self.turns)} frames," if self.shares else ""
            raise ValueError(
                f"copy {self.copy} of {self.copies}{shares} in batches of {self.batch}: each copy needs a frame of "
                "every batch"
            )

    __repr__ = spelt

    @cached_property
    def turns(self) -> tuple[int, ...]:
        """Which copy gets each frame of a batch; after these they come again."""
        return turns_of(self.shares or (1,) * self.copies)

    @cached_property
    def _own(self) -> tuple[int, ...]:
        """The places of the copy in these."""
        return tuple(place for place, copy in enumerate(self.turns) if copy == self.copy)

    @cached_property
    def _frames(self) -> int:
        """Of a batch that are the copy's."""
        return self.share(self.batch)

    @property
    def are_uneven(self) -> bool:
        """Whether a copy's frames come sooner after one another here than there."""
        return self.batch % len(self.turns) > 0 or len({*self.shares}) > 1

    def all_get_some(self, frames: int) -> bool:
        """Whether all copies get some of the first frames of a batch."""
        return len({*self.turns[:frames]}) == self.copies

    def share(self, frames: int) -> int:
        """How many of the first frames of a batch are the copy's."""
        return self._share_of(self.copy, frames)

    def _share_of(self, copy: int, frames: int) -> int:
        rounds, rest = divmod(frames, len(self.turns))
        return rounds * self.turns.count(copy) + self.turns[:rest].count(copy)

    def gets(self, frame: int) -> bool:
        """Whether a frame of the training is the copy's."""
        return self.turns[frame % self.batch % len(self.turns)] == self.copy

    def frame(self, index: int) -> int:
        """Which frame of the training is the copy's frame ``index``."""
        batch, place = divmod(index, self._frames)
        rounds, rest = divmod(place, len(self._own))
        return batch * self.batch + rounds * len(self.turns) + self._own[rest]

    def index(self, frame: int) -> int:
        """How many of the frames of the training before this one are the copy's."""
        batch, place = divmod(frame, self.batch)
        return batch * self._frames + self.share(place)

    def ends_batch(self, frame: int) -> bool:
        """Whether a frame of the copy is its last one of a batch."""
        return self.share(frame % self.batch + 1) == self._frames

    @property
    def busy(self) -> Fraction:
        """Share of all frames that the copy gets, or the busiest one of those of the same share."""
        alike = [copy for copy in range(self.copies) if not self.shares or self.shares[copy] == self.shares[self.copy]]
        return Fraction(max(self._share_of(copy, self.batch) for copy in alike), self.batch)

    @cached_property
    def late(self) -> Fraction:
        """By how many turns the copy begins a frame behind its coming, at most, where it takes as long for each as its
        share of all lets it: frames that come sooner after one another wait for those before."""
        late, free = Fraction(0), Fraction(0)
        for index in range(2 * self._frames):
            frame = self.frame(index)
            late = max(late, free - frame)
            free = max(free, Fraction(frame)) + 1 / self.busy
        return late

    @property
    def as_first(self) -> Self:
        """The same of the first copy of the same share."""
        return replace(self, copy=self.shares.index(self.shares[self.copy]) if self.shares else 0)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Mini-batch SGD with momentum and weight decay under a fixed staleness.

    Frame ``t`` is computed, forward and backward, with the weights after ``max(0, (t - staleness) // batch)``
    updates.  Staleness 0 drains the pipeline at each batch (plain SGD); staleness = batch is the two-buffer
    scheme of PipeDream-2BW; in between, the first ``staleness`` frames of a batch see weights one update old
    ("slightly unaligned" update, FPDeep, IEEE TC 2020, section 4.4).
    """

    # frames a batch
    batch: int = 16
    # frames, 0 <= staleness <= batch
    staleness: int = 0
    # of the mean gradient over the batch
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 0.0
    # seeds the counter-based random bits of stochastic rounding and dropout
    seed: int = 1
    # online normalisation: decay of the forward statistics (Chiley et al. 2019, alpha_f)
    norm_forward_decay: float = 0.999
    # online normalisation: decay of the backward control process (alpha_b)
    norm_backward_decay: float = 0.99
    # frames by which normalisation statistics lag, beyond the one frame of the published equations
    norm_lag: int = 1
    # of the learning rate
    schedule: Schedule = field(default=Schedule.CONSTANT, metadata=QUIET)
    # batches in which the learning rate rises to its full value, batch n having (n + 1) / warm_up of it
    warm_up: int = field(default=0, metadata=QUIET)
    # batches between two steps; of a cosine, from its top to its end
    period: int = field(default=0, metadata=QUIET)
    # by which a step multiplies the learning rate
    step_factor: float = field(default=0.1, metadata=QUIET)
    # share of the learning rate at which a cosine ends
    final_rate: float = field(default=0.0, metadata=QUIET)
    # whether the momentum looks ahead (Nesterov's, as torch.optim.SGD has it)
    nesterov: bool = field(default=False, metadata=QUIET)
    # largest magnitude of an element of the mean gradient; 0: any
    clip: float = field(default=0.0, metadata=QUIET)
    loss: Loss = field(default=Loss.CROSS_ENTROPY, metadata=QUIET)
    # share of the target that cross-entropy deals out to all classes alike
    label_smoothing: float = field(default=0.0, metadata=QUIET)
    # weight of the loss of every auxiliary head; 0: they are dropped
    auxiliary: float = field(default=0.0, metadata=QUIET)
    # of a copy of a layer, whose batch and staleness are its share of the training's; nothing that users set
    dealt: Dealt | None = field(default=None, metadata=QUIET)

    def __post_init__(self) -> None:
        problems = []
        if self.batch < 1:
            problems.append(f"batch must be at least 1, not {self.batch}")
        if not 0 <= self.staleness <= self.batch:
            problems.append(f"staleness must lie in 0..batch = 0..{self.batch}, not {self.staleness}")
        if not 0 < self.learning_rate < math.inf:
            problems.append(f"learning_rate must be positive and finite, not {self.learning_rate}")
        if not 0 <= self.momentum < 1:
            problems.append(f"momentum must lie in [0, 1), not {self.momentum}")
        if not 0 <= self.weight_decay < math.inf:
            problems.append(f"weight_decay must be finite and not negative: {self.weight_decay}")
        if self.seed < 0:
            problems.append(f"seed must not be negative: {self.seed}")
        if self.norm_lag < 0:
            problems.append(f"norm_lag must not be negative: {self.norm_lag}")
        for name in ("norm_forward_decay", "norm_backward_decay"):
            if not 0 < getattr(self, name) < 1:
                problems.append(f"{name} must lie in (0, 1), not {getattr(self, name)}")
        if self.nesterov and not self.momentum:
            problems.append("nesterov needs a momentum above 0")
        if not 0 <= self.clip < math.inf:
            problems.append(f"clip must be finite and not negative (0: none): {self.clip}")
        if not 0 <= self.label_smoothing < 1:
            problems.append(f"label_smoothing must lie in [0, 1), not {self.label_smoothing}")
        elif self.label_smoothing and self.loss is not Loss.CROSS_ENTROPY:
            problems.append(f"label_smoothing is for the loss {Loss.CROSS_ENTROPY.value}, not {self.loss.value}")
        if self.auxiliary and not LEAST_WEIGHT <= self.auxiliary <= 1:
            problems.append(f"auxiliary must lie in [{LEAST_WEIGHT}, 1], or be 0 to drop heads, not {self.auxiliary}")
        problems += self._schedule_problems()
        if problems:
            raise ValueError("; ".join(problems))

    __repr__ = spelt

    def version(self, frame: int) -> int:
        """The number of updates behind the weights with which ``frame`` is computed."""
        return max(0, (frame - self.staleness) // self.batch)

    def of_copy(self, copy: int, copies: int, shares: tuple[int, ...] = ()) -> Self:
        """The recipe of a copy of a layer: the same version for each of its frames as in one layer that gets all;
        ``shares`` as in `Dealt`.

        Raises `ValueError` where some copy would have no frame in a batch."""
        dealt = Dealt(copy=copy, copies=copies, batch=self.batch, staleness=self.staleness, shares=shares)
        return replace(self, batch=dealt.share(self.batch), staleness=dealt.share(self.staleness), dealt=dealt)

    def frame(self, index: int) -> int:
        """Which frame of the training is frame ``index`` of a layer with this recipe."""
        return self.dealt.frame(index) if self.dealt else index

    @property
    def loaded(self) -> bool:
        """Whether version 0 of weights, and all state, comes by streams (`LoadedRecipe`)."""
        return False

    # ---- the learning rate

    @property
    def is_scheduled(self) -> bool:
        """Whether the learning rate depends on the batch."""
        return self.schedule is not Schedule.CONSTANT or self.warm_up > 1

    def share(self, batch: int) -> float:
        """What the update after batch ``batch`` (0, 1, …) takes of the learning rate, from 0 to 1."""
        if batch < self.warm_up:
            return (batch + 1) / self.warm_up
        since = batch - self.warm_up
        if self.schedule is Schedule.STEP:
            share = self.step_factor ** (since // self.period)
            return share if share >= LEAST_SHARE else 0.0
        if self.schedule is Schedule.COSINE:
            turn = math.pi * min(since, self.period) / self.period
            return self.final_rate + (1 - self.final_rate) * (1 + math.cos(turn)) / 2
        return 1.0

    def rate(self, batch: int) -> float:
        """The learning rate of the update after batch ``batch`` (0, 1, …)."""
        return self.learning_rate * self.share(batch)

    @property
    def bends(self) -> tuple[int, ...]:
        """Batches, from 0 on, between which circuits take the learning rate from straight lines."""
        top = self.warm_up
        # a line rises to the last batch of the warm-up, which has the full rate, as the next one has
        found = {0, max(0, top - 1), top}
        if self.schedule is Schedule.STEP:
            # the last batch before a step still has the rate of the first
            steps = top + self.period * self._steps
            found.update(range(top, steps + 1, self.period))
            found.update(range(top + self.period - 1, steps, self.period))
        if self.schedule is Schedule.COSINE:
            found.update(top + round(self.period * index / COSINE_SEGMENTS) for index in range(COSINE_SEGMENTS + 1))
        return tuple(sorted(found))

    @property
    def _steps(self) -> int:
        """Steps until nothing is left."""
        return math.floor(math.log(LEAST_SHARE) / math.log(self.step_factor)) + 1

    def _schedule_problems(self) -> list[str]:
        problems = []
        if self.warm_up < 0:
            problems.append(f"warm_up must not be negative: {self.warm_up}")
        if self.schedule is Schedule.CONSTANT and self.period:
            problems.append(f"period is that of a step or a cosine: a constant schedule has none, not {self.period}")
        if self.schedule is not Schedule.CONSTANT and self.period < 1:
            problems.append(f"schedule {self.schedule.value} needs a period of at least 1 batch, not {self.period}")
        if not 0 < self.step_factor < 1:
            problems.append(f"step_factor must lie in (0, 1), not {self.step_factor}")
        elif self.schedule is Schedule.STEP and self.period > 0 and 2 * self._steps + 3 > MOST_BENDS:
            least = LEAST_SHARE ** (2 / (MOST_BENDS - 5))
            problems.append(f"step_factor must be at most {math.floor(least * 1000) / 1000}, not {self.step_factor}")
        if not 0 <= self.final_rate <= 1:
            problems.append(f"final_rate is a share of learning_rate in [0, 1], not {self.final_rate}")
        if max(self.warm_up, self.period) >= 1 << 31:
            problems.append("warm_up and period must be less than 2**31 batches")
        return problems


def first_frames(batch: int, staleness: int, loaded: bool) -> int:
    """Frames that read the first version of weights: version 0, or the first one of those that are loaded."""
    return (staleness or batch) if loaded else batch + staleness


# what users set
SETTINGS = tuple(name for name in Recipe.__dataclass_fields__ if name != "dealt")


class LoadedRecipe(Recipe):
    """The recipe of circuits whose state is loaded by streams instead of standing in images of their memories.

    At staleness above 0 two versions come before the first frame: the first ``staleness`` frames read the one before
    the newest, as they do at the beginning of any later batch."""

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """The same training."""
        return cls(**{name: getattr(recipe, name) for name in Recipe.__dataclass_fields__})

    @property
    def loaded(self) -> bool:
        """It does."""
        return True

    @property
    def rounds(self) -> int:
        """Versions of weights that come before the first frame."""
        return 2 if self.staleness else 1

    def loaded_version(self, frame: int) -> int:
        """Which of all versions that come a frame reads, `rounds` - 1 being the newest one that was loaded."""
        return max(0, (frame - self.staleness) // self.batch + self.rounds - 1)
