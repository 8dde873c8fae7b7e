"""The training recipe: everything about learning that hardware and emulator must agree on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hdl.spelling import spelt


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
        if problems:
            raise ValueError("; ".join(problems))

    __repr__ = spelt

    def version(self, frame: int) -> int:
        """The number of updates behind the weights with which ``frame`` is computed."""
        return max(0, (frame - self.staleness) // self.batch)
