"""FPDeep beside other ways to share a network out (TC 3.3, Table 5), and 1-D beside 2-D (TC 4.2, Figure 10), counted.

The papers define four metrics and print ranks; what is counted for each stands here, a sentence a design.  B frames a
batch, n boards, P weights, A elements of all layers' inputs, of a frame; numbers of 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from placement.fpdeep.chain import Chain
from placement.fpdeep.mapping import fastest
from placement.fpdeep.partition import coarse

DESIGNS = ("DP", "LP", "MP", "FPDeep")
METRICS = ("parallel options", "FLOP utilisation", "storage", "footprint", "bandwidth")
# of which less is better
COSTS = ("storage", "footprint", "bandwidth")
# VGG-16 with a batch of 128 (3.3); n is a choice of ours, as all designs still work there
BATCH, BOARDS = 128, 8
CLOCK_HZ, LINK_BITS_PER_S, WORD_BITS = 200e6, 150e9, 16
# "let us assume 10 board-to-board interconnections ports" (4.2)
PORTS = 10
# frames of which FPDeep's fine-grained pipeline keeps inputs: on the way there, back, and being read
KEPT_FRAMES = 3


@dataclass(frozen=True)
class Design:
    """Of a batch."""

    # boards at most: 3.3 counts samples, layers and channels
    most_boards: int
    # seconds of a batch, and of them those in which all DSPs work
    seconds: float
    busy: float
    # words of all boards
    storage: float
    # words that pass from board to board
    footprint: float

    @property
    def metrics(self) -> dict[str, float]:
        """By `METRICS`."""
        bandwidth = self.footprint / self.seconds
        return dict(
            zip(METRICS, (self.most_boards, self.busy / self.seconds, self.storage, self.footprint, bandwidth),
                strict=True)
        )  # fmt: skip


def designs(chain: Chain, dsp: int, boards: int = BOARDS) -> dict[str, Design]:
    """All four on so many boards."""
    speed = 2 * dsp * CLOCK_HZ
    weights = sum(layer.weights for layer in chain.layers)
    inputs = [layer.input_words for layer in chain.layers]
    # if nothing ever waited
    least = BATCH * chain.operations / (boards * speed)

    def on_links(words: float) -> float:
        """Seconds, where every board has a link."""
        return words * WORD_BITS / (boards * LINK_BITS_PER_S)

    # a ring sums gradients over all boards and hands sums round, when all have computed; every board has everything
    passed = 2.0 * (boards - 1) * weights
    found = {
        "DP": Design(BATCH, least + on_links(passed), least, boards * (2 * weights + sum(inputs)), passed),
        "LP": _layers(chain, boards, speed, least),
    }
    # a layer's weights are shared out; what all make of it is summed and handed to all, both ways, and waited for
    exchanged = [layer.output_words + layer.input_words for layer in chain.layers]
    exchanged[0] -= chain.layers[0].input_words
    passed = 2.0 * (boards - 1) * BATCH * sum(exchanged)
    channels = min(min(layer.inputs, layer.outputs) for layer in chain.layers[1:])
    storage = 2 * weights + boards * sum(inputs)
    found["MP"] = Design(channels, least + on_links(passed), least, storage, passed)
    mapping = fastest(chain, boards, dsp)
    found["FPDeep"] = Design(
        sum(layer.outputs for layer in chain.layers),
        BATCH * float(mapping.cycles) / CLOCK_HZ,
        least,
        2 * weights + KEPT_FRAMES * sum(inputs),
        BATCH * sum(cut.both for cut in mapping.cuts),
    )
    return found


def _layers(chain: Chain, boards: int, speed: float, least: float) -> Design:
    """Whole layers in a row, whole frames from one to the next: board s of n, from 1, keeps 2(n − s) + 1 of them."""
    loads = coarse(chain, boards)
    ends = list(accumulate(loads))
    done = list(accumulate(layer.operations for layer in chain.layers))
    board_of = [next(index for index, end in enumerate(ends) if reached <= end) for reached in done]
    kept = sum(
        layer.input_words * (2 * (boards - 1 - board) + 1) for layer, board in zip(chain.layers, board_of, strict=True)
    )
    crossing = sum(
        layer.input_words
        for layer, before, board in zip(chain.layers[1:], board_of, board_of[1:], strict=False)
        if before != board
    )
    weights = sum(layer.weights for layer in chain.layers)
    return Design(len(chain.layers), BATCH * max(loads) / speed, least, 2 * weights + kept, 2.0 * BATCH * crossing)


def values(chain: Chain, dsp: int) -> dict[str, dict[str, float]]:
    """Metric -> design -> value."""
    found = {name: design.metrics for name, design in designs(chain, dsp).items()}
    return {metric: {name: found[name][metric] for name in DESIGNS} for metric in METRICS}


def ranks(chain: Chain, dsp: int) -> dict[str, dict[str, int]]:
    """Metric -> design -> rank, from 1 (worst) to 4 (best); equal values have the worse one."""
    return {metric: _ranks(of, metric in COSTS) for metric, of in values(chain, dsp).items()}


def _ranks(of: Mapping[str, float], cost: bool) -> dict[str, int]:
    sign = -1 if cost else 1
    return {name: 1 + sum(sign * other < sign * value for other in of.values()) for name, value in of.items()}


# ---- one dimension or two

FIGURE_10 = range(4, 9)


def middle(chain: Chain) -> Chain:
    """CONV3 to CONV5 of VGG-16, which has two convolutions in front of them in each of two stages."""
    return Chain("CONV3 to CONV5", tuple(layer for layer in chain.layers[4:] if not layer.off_chip))


@dataclass(frozen=True)
class Widest:
    """The widest link."""

    # a frame, and port of the boards at its ends
    words: float
    # what passes it
    layers: str
    # links of the board that has most of them, of both
    degree: int


def one_dimension(chain: Chain, dsp: int, boards: int) -> Widest:
    """Where every board has two neighbours and half of its ports for each."""
    cut = max(fastest(chain, boards, dsp).cuts, key=lambda cut: max(cut.forward, cut.backward))
    return Widest(max(cut.forward, cut.backward) / (PORTS // 2), cut.layer, 2)


# (from, to) -> layer that sends or sums -> words a frame
Flows = dict[tuple[int, int], dict[str, Fraction]]


def flows(chain: Chain, dsp: int, boards: int) -> Flows:
    """Where boards send to each other directly, as "the reduction operation of each DNN layer is centralized": on the
    last board of a layer.

    There partial sums of all outputs arrive, from there go their errors; to each board of the next layer the channels
    that it takes, from it their errors."""
    parts = fastest(chain, boards, dsp).parts
    found: Flows = {}

    def both_ways(a: int, b: int, layer: str, words: Fraction) -> None:
        for way in ((a, b), (b, a)) if a != b else ():
            passed = found.setdefault(way, {})
            passed[layer] = passed.get(layer, Fraction(0)) + words

    centre = {part.layer: part.board for part in parts}
    for part in parts:
        layer = chain.layers[part.layer]
        made = Fraction(1) if part.by_inputs else Fraction(part.channels, layer.outputs)
        both_ways(part.board, centre[part.layer], layer.name, made * layer.output_words)
        if part.layer:
            taken = Fraction(part.channels, layer.inputs) if part.by_inputs else Fraction(1)
            before = part.layer - 1
            both_ways(centre[before], part.board, chain.layers[before].name, taken * layer.input_words)
    return found


def two_dimensions(chain: Chain, dsp: int, boards: int) -> Widest:
    """Where a board shares its ports out among its links."""
    between = flows(chain, dsp, boards)
    degrees = [len({b for a, b in between if a == board}) for board in range(boards)]
    links = []
    for (a, b), passed in between.items():
        degree = max(degrees[a], degrees[b])
        links.append(Widest(float(sum(passed.values()) / (PORTS // degree)), ", ".join(passed), degree))
    return max(links, key=lambda link: link.words)


def compared(chain: Chain, dsp: int) -> list[tuple[int, Widest, Widest]]:
    """(boards, 1-D, 2-D) of Figure 10."""
    stages = middle(chain)
    return [(n, one_dimension(stages, dsp, n), two_dimensions(stages, dsp, n)) for n in FIGURE_10]


def topologies(chain: Chain, dsp: int) -> Iterator[Sequence[str]]:
    """The same as text, M words."""
    for boards, row, square in compared(chain, dsp):
        better = "equal" if row.words == square.words else "1-D" if row.words < square.words else "2-D"
        yield (
            str(boards), f"{row.words / 1e6:.3f}", row.layers, f"{square.words / 1e6:.3f}", square.layers, better,
            str(square.degree),
        )  # fmt: skip


def crossover(chain: Chain, dsp: int) -> str:
    """From how many boards on 1-D is better at all sizes; or that there is no such size."""
    better = [(boards, row.words < square.words) for boards, row, square in compared(chain, dsp)]
    for index, (boards, _) in enumerate(better):
        if all(first for _, first in better[index:]):
            return "all" if index == 0 else str(boards - 1)
    return "none"
