"""What the paper leaves open in counting what is communicated, a switch each.

Table 1 and Table 2 give amounts between two groups.  Open are whether an amount counts one way or both, whether F is
the map before or behind a pool, and by which choices at higher levels a tensor has become smaller.  `SECTION_3_4` gives
all choices of parallelism that the text names (tests/test_hypar.py); so do two others, which differ from it in
`Halving` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hdl.errors import DagtrainError


class Directions(StrEnum):
    """Which amounts are counted both ways, as 3.4 counts Table 1's (56 KB = 2 × 70 × 100 × 4 B)."""

    ONE_WAY = "one-way"
    # Table 1's; Table 2 as printed
    INTRA = "intra"
    BOTH = "both"


class Pooling(StrEnum):
    """Which map F is, where a pool follows a layer."""

    AFTER = "after"
    BEFORE = "before"


class Halving(StrEnum):
    """What a choice at a level halves for the levels below: dp of a layer the F and E that it makes, mp its W."""

    NONE = "none"
    LAYER = "layer"
    # and mp of the layer before a border what crosses there
    MAKER = "maker"
    # and mp of the layer behind a border what crosses there
    TAKER = "taker"


@dataclass(frozen=True)
class Convention:
    """How amounts are counted."""

    directions: Directions
    pooling: Pooling
    halving: Halving

    def __str__(self) -> str:
        return next((name for name, known in NAMED.items() if known == self), ",".join(self.switches))

    @property
    def switches(self) -> tuple[str, str, str]:
        """As `parse` takes them."""
        return self.directions.value, self.pooling.value, self.halving.value

    @property
    def intra_ways(self) -> int:
        """How often an amount of Table 1 counts."""
        return 1 if self.directions is Directions.ONE_WAY else 2

    @property
    def inter_ways(self) -> int:
        """How often an amount of Table 2 counts."""
        return 2 if self.directions is Directions.BOTH else 1

    @classmethod
    def parse(cls, text: str) -> Convention:
        """The convention of a name or of three switches.  Raises `DagtrainError` for any other text."""
        if text in NAMED:
            return NAMED[text]
        words = [word.strip() for word in text.split(",")]
        kinds = (Directions, Pooling, Halving)
        allowed = "; ".join("|".join(kind) for kind in kinds)
        try:
            directions, pooling, halving = words
            return cls(Directions(directions), Pooling(pooling), Halving(halving))
        except ValueError:
            cure = f"say {' or '.join(NAMED)}, or three words with commas between them: {allowed}"
            raise DagtrainError(f"--convention {text!r} is unknown", cure) from None


SECTION_3_4 = Convention(Directions.INTRA, Pooling.AFTER, Halving.LAYER)
NAMED = {
    "3.4": SECTION_3_4,
    "twin": Convention(Directions.INTRA, Pooling.AFTER, Halving.MAKER),
}
EVERY = tuple(Convention(*words) for words in ((d, p, h) for d in Directions for p in Pooling for h in Halving))
