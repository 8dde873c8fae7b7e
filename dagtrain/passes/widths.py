"""How many bits a number has, by kind of tensor and by layer: what the user chooses and calibration keeps to.

activation=12,weight=16,error=16,stash=8        of all layers
layer1*:activation=10,weight=8                  of layers of the model with such names; the last that fits holds
sum=32                                          of sums of gradients of convolutions and matrix products, else exact
sum=fit                                         the fewest that cost less than rounding the sum does, layer by layer
master=24,momentum=16                           of what updates keep of each weight, else 16 more than it has, and 24
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hdl.errors import DagtrainError, Problem
from hdl.tensor import Kind

DEFAULT_BITS = 16
# below, a format has no room for head room and a digit; above, a product takes more than half a DSP block
LEAST_BITS, MOST_BITS = 4, 18
# sums of gradients over a batch, which no edge carries
SUM = "sum"
# below, nothing is left beside the gradient; above, exact ones take no more
LEAST_SUM, MOST_SUM = 12, 48
# bits of a sum that follow from how many products it has
FIT, FIT_WORD = 0, "fit"
# what an update keeps of a weight from batch to batch
MASTER, MOMENTUM = "master", "momentum"
LEAST_KEPT, MOST_KEPT = 8, 34
KINDS = (*(kind.value for kind in Kind if not kind.of_store), SUM, MASTER, MOMENTUM)
# least and most bits, where they are not those of a tensor
LIMITS = {SUM: (LEAST_SUM, MOST_SUM), MASTER: (LEAST_KEPT, MOST_KEPT), MOMENTUM: (LEAST_KEPT, MOST_KEPT)}
FORM = "write KIND=BITS,… or LAYERS:KIND=BITS,…, e.g. activation=12,stash=8 or 'layer1*:weight=8'"


class WidthError(DagtrainError):
    """Numbers of bits that can't be had; the message lists all problems."""


@dataclass(frozen=True)
class Widths:
    """Bits of a number."""

    # of all layers, by what of `KINDS` has them
    default: Mapping[str, int]
    # (pattern of names of layers, bits) in the order in which they were given
    layers: tuple[tuple[str, Mapping[str, int]], ...] = ()
    # as `parse` reads it
    texts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Widths:
        """Of options as the module's docstring shows them.  Raises `WidthError` with all that is wrong."""
        problems: list[Problem] = []
        default: dict[str, int] = {}
        layers: list[tuple[str, Mapping[str, int]]] = []
        for text in texts:
            pattern, colon, rest = text.rpartition(":")
            found = dict(_entries(text, rest, problems))
            if not colon:
                default |= found
            elif pattern:
                layers.append((pattern, found))
            else:
                problems.append(Problem(f"--bits {text!r} names no layer before the colon", FORM))
        if problems:
            raise WidthError.listing("", problems)
        return cls(default, tuple(layers), tuple(texts))

    def chosen(self, layer: str, kind: Kind) -> int | None:
        """Bits that somebody chose for tensors of a kind that a layer of the model makes; None for none."""
        return self.chosen_beside(layer, kind.value)

    def chosen_beside(self, layer: str, what: str) -> int | None:
        """Bits that somebody chose for a layer's `SUM` (which may be `FIT`), `MASTER` or `MOMENTUM`; None for none."""
        found = self.default.get(what)
        for pattern, bits in self.layers:
            if what in bits and fnmatchcase(layer, pattern):
                found = bits[what]
        return found

    def of(self, layer: str, kind: Kind) -> int:
        """Bits of tensors of a kind that a layer of the model makes."""
        return self.chosen(layer, kind) or DEFAULT_BITS

    def check(self, layers: Iterable[str]) -> None:
        """Raises `WidthError` where a pattern fits none of the layers."""
        names = sorted(set(layers))
        problems = [
            Problem(f"--bits {pattern}: no layer has such a name", near(pattern, names))
            for pattern, _ in self.layers
            if not any(fnmatchcase(name, pattern) for name in names)
        ]
        if problems:
            raise WidthError.listing("", problems)


def near(pattern: str, names: Sequence[str]) -> str:
    """A cure for a pattern that fits no name."""
    close = get_close_matches(pattern.strip("*"), names, n=3, cutoff=0.3) or list(names[:3])
    return f"names are like {', '.join(close)} (`dagtrain show` lists them)"


def _entries(text: str, rest: str, problems: list[Problem]) -> Iterable[tuple[str, int]]:
    """Kinds and bits of one option; what is wrong goes to ``problems``."""
    seen: set[str] = set()
    for entry in rest.split(","):
        name, equals, bits = (part.strip() for part in entry.partition("="))
        least, most = LIMITS.get(name, (LEAST_BITS, MOST_BITS))
        if not equals:
            problems.append(Problem(f"--bits {text!r}: {entry!r} is not KIND=BITS", FORM))
        elif name not in KINDS:
            problems.append(Problem(f"--bits {text!r}: {name!r} is no kind of tensor", f"kinds are {', '.join(KINDS)}"))
        elif name in seen:
            problems.append(Problem(f"--bits {text!r} gives {name} twice", "leave one out"))
        elif name == SUM and bits == FIT_WORD:
            seen.add(name)
            yield name, FIT
        elif not bits.isdecimal() or not least <= int(bits) <= most:
            what = f"--bits {text!r}: {name} of {bits or 'no'} bits can't be built"
            problems.append(Problem(what, f"choose {least} to {most}{f', or {FIT_WORD}' if name == SUM else ''}"))
        else:
            seen.add(name)
            yield name, int(bits)
