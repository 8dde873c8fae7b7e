"""Stochastic depth (Huang et al. 2016): a frame is zeroed with probability ``ratio`` or else scaled by 1 / (1 - ratio).

    y = keep * x / (1 - ratio)        dx = keep * e / (1 - ratio)

As dropout, but ``keep`` is a function of (frame, seed, tensor): one draw for all elements of a frame.  It stands at the
end of a residual branch, which a frame then takes or skips.
"""

from __future__ import annotations

from dataclasses import dataclass

from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.pointwise.dropout import Dropout, DropoutError
from hdl.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class StochasticDepth(Dropout):
    """Sink ``x``, source ``y``."""

    per_frame = True

    def error(self) -> StochasticDepthError:
        """The same draws on the error."""
        return StochasticDepthError(**self.map, **self._drawn)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """A factor of a power of two and not, one beat a frame, nothing dropped, other formats."""
        return (
            cls(height=2, width=3, channels=4, lanes=2, tensor_id=3),
            cls(height=2, width=1, channels=3, ratio=0.2, y_fixed=Fixed(16, 7)),
            cls(height=1, width=1, channels=3, lanes=3, ratio=0.4),
            cls(height=1, width=1, channels=5, ratio=0.0, recipe=Recipe(seed=9)),
        )


@dataclass(frozen=True, kw_only=True)
class StochasticDepthError(DropoutError):
    """Sink ``e``, source ``dx``."""

    per_frame = True
