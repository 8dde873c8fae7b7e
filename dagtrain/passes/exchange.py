"""How copies of a layer come to one gradient: added in one place, or from copy to copy, exactly or compressed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dagtrain.graph.ir import Graph, Node, Role
from hdl.engine.codec.collective import Collective
from hdl.engine.codec.element_codec import TAG_BITS
from hdl.engine.codec.integer_codec import WINDOW_BITS, Cut, IntegerCodec
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
RATIO, FEEDBACK = "ratio=", "feedback"
FORM = (
    f"{NO_CODEC}, or {INTEGER}:DROP[:WINDOW[:ROUNDING]] or {BOUNDED}:BITS[:WINDOW[:ROUNDING]] with "
    f"{', '.join(cut.value for cut in Cut)}, and behind it ,{FEEDBACK} to keep what is taken for the next batch, "
    f",{RATIO}R to plan links for that"
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
    # whether copies keep what coding took, and add it to the next batch's
    feedback: bool = False

    @property
    def record(self) -> dict[str, str]:
        """As the options say it."""
        if self.codec is None:
            return {"exchange": self.collective.value, "compress": NO_CODEC}
        first, window, cut = self.codec
        said = f"{BOUNDED if self.bounded else INTEGER}:{first}:{window}:{cut.value}"
        if self.ratio_percent:
            said += f",{RATIO}{self.ratio_percent / 100:g}"
        if self.feedback:
            said += f",{FEEDBACK}"
        return {"exchange": self.collective.value, "compress": said}

    def problems(self, graph: Graph, copied: Collection[str]) -> Iterator[Problem | str]:
        """What is wrong with it for copies of these nodes."""
        if self.codec is None:
            return
        widths = {
            sums.g_fixed.width: name
            for name in copied
            if isinstance(layer := graph.by_name[name].layer, RoundedApart)
            for sums in layer.roundings.values()
            if isinstance(sums, GradientSum)
        }
        if not copied:
            yield Problem("--compress, and no layer has copies that exchange gradients", "give --copy, too")
        for width, name in sorted(widths.items()):
            drop, window, _ = self._of_width(width)
            if not 0 <= drop < width - window:
                what = f"drops {drop} bits and keeps {window}, and gradients of {name} have {width - 1} and a sign"
                least = f"{INTEGER}:{max(0, width - 1 - WINDOW_BITS)}"
                yield Problem(f"--compress {what}", f"take at most {width - 1} together, as {least}")
            elif self.feedback and not drop:
                what = f"--compress takes nothing of gradients of {name} that could be fed back"
                yield Problem(what, f"leave {FEEDBACK} out, or drop bits")
            elif self.ratio_percent > (most := 100 * width // TAG_BITS):
                what = f"--compress counts on a ratio of {self.ratio_percent / 100:g}, and gradients of {name} have"
                cure = f"take at most {RATIO}{most / 100:g}, or what was measured"
                yield Problem(f"{what} {width} bits with a tag of {TAG_BITS}", cure)

    @property
    def apart(self) -> bool:
        """Whether each copy has an update of its own."""
        return self.collective is not Collective.CENTRAL

    @property
    def exact(self) -> bool:
        """Whether what copies sum goes to one place as it is."""
        return not self.apart and self.codec is None

    def firsts(self, sizes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Edge of gradients -> the copy with which their sum begins: of a chain the first, of a ring that of their
        block.  Blocks are whole tensors, one a copy, as even as these let them be: the largest first, each to the block
        that has least.

        ``sizes``: edge -> elements, copies."""
        if self.collective is not Collective.RING:
            return dict.fromkeys(sizes, 0)
        blocks = {copies: [0] * copies for _, copies in sizes.values()}
        found: dict[str, int] = {}
        for edge, (elements, copies) in sorted(sizes.items(), key=lambda item: (-item[1][0], item[0])):
            block = blocks[copies]
            found[edge] = block.index(min(block))
            block[found[edge]] += elements
        return found

    def nodes(self, node: Node, edge: str, rounded: GradientSum, widths: tuple[int, ...], first: int) -> Iterator[Node]:
        """What makes gradients of ``<edge>.own@0``, …: see `_handed_on` and `_gathered`.  Of sums that are not
        `exact`.

        ``rounded``: what would round the sum of one engine; ``widths``: bits of each copy's sums; ``first``: the copy
        with which a sum that is handed on begins."""
        if self.apart:
            return self._handed_on(node, edge, rounded, widths, first)
        return self._gathered(node, edge, rounded, widths)

    def _gathered(self, node: Node, edge: str, rounded: GradientSum, widths: tuple[int, ...]) -> Iterator[Node]:
        """What makes ``edge``: a code of each copy's sum, and what adds what is decoded of all."""
        copies = range(len(widths))
        for copy in copies:
            inputs, outputs = {"g": named(f"{edge}.own", copy)}, {"g_out": named(f"{edge}.coded", copy)}
            yield self._hop(node, edge, rounded, widths, copy, copy, inputs, outputs)
        layer = replace(rounded, copies=len(widths), s_fixed=rounded.g_fixed, widths=(), wraps=False)
        inputs = {f"s{copy}": named(f"{edge}.coded", copy) for copy in copies}
        yield Node(f"{edge}.sum", layer, inputs, {"g": edge}, {}, Role.SUM, named(node.layer_of, 0), node.whole)

    def _hop(
        self, node: Node, edge: str, rounded: GradientSum, widths: Sequence[int], hop: int, copy: int,
        inputs: Mapping[str, str], outputs: Mapping[str, str],
    ) -> Node:  # fmt: skip
        """``<edge>.exchange@<copy>``, the hop of that number; ``widths`` of all, in the order of hops."""
        layer = Exchange.of(
            rounded,
            widths,
            hop,
            codec=self._codec(rounded),
            ratio_percent=self.ratio_percent,
            feedback=self.feedback,
            gathered=not self.apart,
        )
        name, layer_of = named(f"{edge}.exchange", copy), named(node.layer_of, copy)
        return Node(name, layer, inputs, outputs, {}, Role.SUM, layer_of, node.whole)

    def _handed_on(
        self, node: Node, edge: str, rounded: GradientSum, widths: tuple[int, ...], first: int
    ) -> Iterator[Node]:
        """What makes ``<edge>@0``, …: hops from copy ``first`` on round all, and what hands the sum round."""
        copies = len(widths)
        order = [(first + hop) % copies for hop in range(copies)]
        made = f"{edge}.sum"
        for hop, copy in enumerate(order):
            inputs = {"g": named(f"{edge}.own", copy)}
            if hop:
                inputs["ring_in"] = named(f"{edge}.ring", order[hop - 1])
            last = hop == copies - 1
            outputs = {"g_sum": made} if last else {"ring_out": named(f"{edge}.ring", copy)}
            yield self._hop(node, edge, rounded, [widths[each] for each in order], hop, copy, inputs, outputs)
        yield from self._round(node, edge, rounded, [order[-1], *order[:-1]])

    def _round(self, node: Node, edge: str, rounded: GradientSum, order: Sequence[int]) -> Iterator[Node]:
        """From copy to copy, in this order; the last one has nobody to tell."""
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
    built = [collective.value for collective in (Collective.CENTRAL, Collective.CHAIN, Collective.RING)]
    if exchange not in built:
        cure = f"take {', '.join(built[:-1])} or {built[-1]}"
        problems.append(Problem(f"--exchange {exchange!r} is no way to exchange gradients", cure))
    codec, percent, feedback = None, 0, False
    if compress != NO_CODEC:
        text, *more = compress.split(",")
        found, further = _parse_codec(text), _parse_further(more)
        problems += [problem for problem in (found, further) if isinstance(problem, Problem)]
        if not isinstance(found, Problem):
            codec = found
        if not isinstance(further, Problem):
            percent, feedback = further
    if problems:
        raise DagtrainError.listing("", problems)
    return Exchanging(Collective(exchange), codec, compress.startswith(BOUNDED), percent, feedback)


def _parse_further(said: Sequence[str]) -> tuple[int, bool] | Problem:
    """What stands behind a codec: percent of a ratio, 0 where nothing is said, and whether there is feedback."""
    ratios = [word.removeprefix(RATIO) for word in said if word.startswith(RATIO)]
    fit = all(re.fullmatch(r"\d+(\.\d{1,2})?", number) and float(number) >= 1 for number in ratios)
    if len(ratios) + said.count(FEEDBACK) < len(said) or max(len(ratios), said.count(FEEDBACK)) > 1 or not fit:
        what = f"--compress: {','.join(said)!r} says nothing of a codec"
        cure = f"give {FEEDBACK}, or {RATIO}R, by which gradients got smaller, 1 or more with at most two decimals"
        return Problem(what, cure)
    return round(100 * float(ratios[0])) if ratios else 0, FEEDBACK in said


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
