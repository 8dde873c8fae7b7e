"""How copies of a layer come to one gradient: added in one place, or from copy to copy, exactly or compressed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dagtrain.graph.ir import Graph, Node, Role
from hdl.engine.codec.collective import Collective
from hdl.engine.codec.integer_codec import TAG_BITS, WINDOW_BITS, Cut, IntegerCodec
from hdl.errors import DagtrainError, Problem
from hdl.layers.capabilities import RoundedApart
from hdl.layers.exchange.exchange import Exchange
from hdl.layers.wiring.fork import Fork
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.random_bits import ROUNDING_BITS
from hdl.tensor import Kind

# between the name of a layer, or an edge, and the number of its copy
COPY = "@"
# what ``--compress`` takes
NO_CODEC, INTEGER = "none", "integer"
# an error bound in bits below the format's range instead of bits that are dropped
BOUNDED = "bounded"
# what may stand behind a codec
RATIO = "ratio="
FORM = (
    f"{NO_CODEC}, or {INTEGER}:DROP[:WINDOW[:ROUNDING]] or {BOUNDED}:BITS[:WINDOW[:ROUNDING]] with "
    f"{', '.join(cut.value for cut in Cut)}, and behind it ,{RATIO}R if links are to be planned for that"
)


def named(name: str, copy: int) -> str:
    """A copy of a node, or of an edge."""
    return f"{name}{COPY}{copy}"


@dataclass(frozen=True)
class Exchanging:
    """What users say of ``--exchange`` and ``--compress``."""

    collective: Collective = Collective.CENTRAL
    # bits that are dropped of small elements, bits of these that are kept, rounding; None: exact sums
    codec: tuple[int, int, Cut] | None = None
    # whether the first of these counts from the top: small elements are off by less than 2^-it of the format's range
    bounded: bool = False
    # percent of the words' bits that elements have, as plans count on; 0: nobody said
    ratio_percent: int = 0

    @property
    def record(self) -> dict[str, str]:
        """As the options say it."""
        if self.codec is None:
            return {"exchange": self.collective.value, "compress": NO_CODEC}
        first, window, cut = self.codec
        said = f"{BOUNDED if self.bounded else INTEGER}:{first}:{window}:{cut.value}"
        if self.ratio_percent:
            said += f",{RATIO}{self.ratio_percent / 100:g}"
        return {"exchange": self.collective.value, "compress": said}

    def problems(self, graph: Graph, counts: Mapping[str, int]) -> Iterator[Problem | str]:
        """What is wrong with it for copies of these nodes."""
        if self.codec is None:
            return
        widths = {
            sums.g_fixed.width: name
            for name, count in counts.items()
            if count > 1 and isinstance(layer := graph.by_name[name].layer, RoundedApart)
            for sums in layer.roundings.values()
            if isinstance(sums, GradientSum)
        }
        if not any(count > 1 for count in counts.values()):
            yield Problem("--compress, and no layer has copies that exchange gradients", "give --copy, too")
        for width, name in sorted(widths.items()):
            drop, window, _ = self._of_width(width)
            if not 0 <= drop < width - window:
                what = f"drops {drop} bits and keeps {window}, and gradients of {name} have {width - 1} and a sign"
                least = f"{INTEGER}:{max(0, width - 1 - WINDOW_BITS)}"
                yield Problem(f"--compress {what}", f"take at most {width - 1} together, as {least}")
            elif self.ratio_percent > (most := 100 * width // TAG_BITS):
                what = f"--compress counts on a ratio of {self.ratio_percent / 100:g}, and gradients of {name} have"
                cure = f"take at most {RATIO}{most / 100:g}, or what was measured"
                yield Problem(f"{what} {width} bits with a tag of {TAG_BITS}", cure)

    def nodes(self, node: Node, edge: str, rounded: GradientSum, widths: tuple[int, ...]) -> Iterator[Node]:
        """What makes ``<edge>@0``, … of ``<edge>.own@0``, …: hops of the chain, and what hands its end round.

        ``rounded``: what would round the sum of one engine; ``widths``: bits of each copy's sums."""
        copies = len(widths)
        made = f"{edge}.sum"
        for copy in range(copies):
            inputs = {"g": named(f"{edge}.own", copy)}
            if copy:
                inputs["ring_in"] = named(f"{edge}.ring", copy - 1)
            last = copy == copies - 1
            outputs = {"g_sum": made} if last else {"ring_out": named(f"{edge}.ring", copy)}
            layer = Exchange(
                shape=rounded.shape,
                recipe=rounded.recipe,
                tile=rounded.tile,
                w_lanes=rounded.w_lanes,
                tensor_id=rounded.tensor_id,
                copy=copy,
                copies=copies,
                widths=widths,
                fraction_bits=rounded.s_fixed.fraction_bits,
                g_fixed=rounded.g_fixed,
                codec=self._codec(rounded),
                ratio_percent=self.ratio_percent,
                begun=rounded.begun,
            )
            name, layer_of = named(f"{edge}.exchange", copy), named(node.layer_of, copy)
            yield Node(name, layer, inputs, outputs, {}, Role.SUM, layer_of, node.whole)
        yield from self._round(node, edge, rounded, copies)

    def _round(self, node: Node, edge: str, rounded: GradientSum, copies: int) -> Iterator[Node]:
        """From the last copy to the first one, and from copy to copy; the one before the last has nobody to tell."""
        order = [copies - 1, *range(copies - 1)]
        comes = f"{edge}.sum"
        for copy, after in pairwise(order):
            goes = named(edge, after) if after == order[-1] else named(f"{edge}.round", after)
            layer = Fork(shape=rounded.shape, x_fixed=rounded.g_fixed, kinds=(Kind.GRADIENT, Kind.GRADIENT))
            outputs = {"y0": named(edge, copy), "y1": goes}
            name, layer_of = named(f"{edge}.spread", copy), named(node.layer_of, copy)
            yield Node(name, layer, {"x": comes}, outputs, {}, Role.FORK, layer_of, node.whole)
            comes = goes

    def _codec(self, rounded: GradientSum) -> IntegerCodec | None:
        if self.codec is None:
            return None
        width = rounded.g_fixed.width
        drop, window, cut = self._of_width(width)
        return IntegerCodec(drop, width, window, cut)

    def _of_width(self, width: int) -> tuple[int, int, Cut]:
        """Bits that are dropped and kept of elements of so many bits."""
        assert self.codec is not None
        first, window, cut = self.codec
        return (width - 1 - first, min(window, first), cut) if self.bounded else self.codec


CENTRAL = Exchanging()


def parse_exchange(exchange: str, compress: str) -> Exchanging:
    """Of ``--exchange`` and ``--compress``.  Raises `DagtrainError` with all that is wrong."""
    problems: list[Problem] = []
    built = (Collective.CENTRAL.value, Collective.CHAIN.value)
    if exchange == Collective.RING.value:
        problems.append(Problem("--exchange ring wants a buffer of each tensor, and no circuit has one", "take chain"))
    elif exchange not in built:
        problems.append(
            Problem(f"--exchange {exchange!r} is no way to exchange gradients", f"take {' or '.join(built)}")
        )
    codec, percent = None, 0
    if compress != NO_CODEC:
        text, *more = compress.split(",")
        for found in (_parse_codec(text), _parse_ratio(more)):
            if isinstance(found, Problem):
                problems.append(found)
            elif isinstance(found, int):
                percent = found
            else:
                codec = found
        if exchange == Collective.CENTRAL.value:
            problems.append(
                Problem("--compress is for gradients that go from copy to copy", "give --exchange chain, too")
            )
    if problems:
        raise DagtrainError.listing("", problems)
    return Exchanging(Collective(exchange), codec, compress.startswith(BOUNDED), percent)


def _parse_ratio(said: Sequence[str]) -> int | Problem:
    """Percent; 0 where nothing is said."""
    if not said:
        return 0
    number = said[0].removeprefix(RATIO)
    if len(said) > 1 or number == said[0] or not re.fullmatch(r"\d+(\.\d{1,2})?", number) or float(number) < 1:
        what = f"--compress: {','.join(said)!r} says nothing of a codec"
        return Problem(what, f"give {RATIO}R, by which gradients got smaller, 1 or more with at most two decimals")
    return round(100 * float(number))


def _parse_codec(text: str) -> tuple[int, int, Cut] | Problem:
    kind, *numbers = text.split(":")
    cut = numbers.pop() if len(numbers) == 3 else Cut.TRUNCATE.value
    known = {each.value: each for each in Cut}
    whole = [int(number) for number in numbers if number.isascii() and number.isdecimal()]
    if kind not in (INTEGER, BOUNDED) or not 1 <= len(numbers) == len(whole) <= 2 or cut not in known:
        return Problem(f"--compress {text!r} is no codec", f"give {FORM}")
    drop, window = whole if len(whole) == 2 else (whole[0], WINDOW_BITS)
    if window < 1:
        return Problem(f"--compress {text!r} keeps {window} bits of small gradients", "keep at least 1")
    if kind == BOUNDED and not drop:
        return Problem(f"--compress {text!r} bounds nothing", "give 1 or more")
    if kind == INTEGER and known[cut] is Cut.STOCHASTIC and drop > ROUNDING_BITS:
        what = f"--compress {text!r} rounds {drop} bits away by {ROUNDING_BITS} random ones"
        return Problem(what, f"drop {ROUNDING_BITS} or fewer, or round to the nearest")
    return drop, window, known[cut]
