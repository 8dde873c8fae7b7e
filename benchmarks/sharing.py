"""Two ways to keep the weights of a convolution once for its forward and its error engine, beside two memories.

python benchmarks/sharing.py                        # layer3_0_conv1 of ResNet-18 at 112 896 cycles a frame
python benchmarks/sharing.py --layer 7,7,512,512,3 --cycles 112896

*apart*: two engines, each with its memory.  *two ports*: two engines at one memory both of whose ports read
(`hdl.layers.conv.pair`).  *taking turns*: one array of twice the multipliers, which works for both engines in turn,
half of the frame's cycles for each.  Of the last its multipliers are elaborated here, with a choice of operands in
front of them and adder trees of both engines behind them; rings, walks and results are those of engines folded for half
of the cycles.  Blocks are those of `hdl.costs.resources.fit`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from hdl.costs.estimate import Circuit, elaborated_contents
from hdl.costs.resources import Resources, Usage, fit
from hdl.engine.arithmetic.mac import MacShape, adder_trees, mac_array, operand_bits, signed_signal, weight_lanes
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv, ConvError, engine_shape
from hdl.layers.conv.pair import ConvPair
from hdl.layers.storage import Home
from hdl.parts.catalogue import PARTS
from hdl.parts.part import Part
from hdl.signals import Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of

# rows, columns, channels, filters, kernel, stride of `layer3_0_conv1`
LAYER = (28, 28, 128, 256, 3, 2)
CYCLES = 112_896


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", help="rows,columns,channels,filters,kernel[,stride]")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="a frame")
    parser.add_argument("--part", choices=list(PARTS), default="AGFB014")
    options = parser.parse_args()
    sizes = tuple(int(word) for word in options.layer.split(",")) if options.layer else LAYER
    part = PARTS[options.part]
    forward, error = engines(sizes, options.cycles, part)
    print(f"{forward.name} on {part.name}: tile {forward.tile}, {forward.words} words of {forward.tile.size} weights")
    print("| design | versions | cycles a frame | M20K | of weights | ALM | DSP blocks |\n|" + " --- |" * 7)
    for home, versions in ((Home.ON_CHIP, 2), (Home.PARKED, 1)):
        apart = [dataclasses.replace(engine, weights=home) for engine in (forward, error)]
        pair = ConvPair.of(apart[0], apart[1])  # type: ignore[arg-type]
        rows: dict[str, tuple[int, Usage, Sequence[Layer]]] = {
            "apart": (max(engine.cycles_per_frame for engine in apart), _sum(_usage(e, part) for e in apart), apart),
            "two ports": (pair.cycles_per_frame, _usage(pair, part), [pair]),
            "taking turns": taking_turns(sizes, options.cycles, part, home),
        }
        for label, (cycles, usage, held) in rows.items():
            weights = sum(_weight_blocks(layer, part) for layer in held)
            cells = (label, versions, f"{cycles:,}", f"{usage.m20k:,}", f"{weights:,}", f"{usage.alm:,}", usage.dsp)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def engines(sizes: tuple[int, ...], cycles: int, part: Part) -> tuple[Conv, ConvError]:
    """Forward and error engine of one tile."""
    height, width, channels, filters, kernel, *stride = sizes
    step = stride[0] if stride else 1
    fields: dict[str, Any] = {
        "height": height, "width": width, "channels": channels, "filters": filters, "kernel": (kernel, kernel),
        "stride": (step, step), "padding": (kernel // 2,) * 4,
    }  # fmt: skip
    forward, error = Conv(**fields), ConvError(**fields)
    tile = next(tile for tile in forward.tiles(cycles, [part]) if error.suits(tile, cycles))
    return forward.fold(cycles, tile), error.fold(cycles, tile)


def taking_turns(sizes: tuple[int, ...], cycles: int, part: Part, home: Home) -> tuple[int, Usage, list[Layer]]:
    """Cycles a frame, blocks, and the layer whose weight memory is the one there is."""
    fast = [dataclasses.replace(engine, weights=home) for engine in engines(sizes, cycles // 2, part)]
    shapes = [engine_shape(engine).mac for engine in fast]
    whole = _sum(_usage(engine, part) for engine in fast)
    arrays = _sum(fit(_contents(_plain_widths(shape), _Plain(shape)), part) for shape in shapes)
    both = fit(_contents(_turns_widths(*shapes), _Turns(*shapes)), part)
    memory = _weight_blocks(fast[1], part)
    usage = Usage(
        dsp=whole.dsp - arrays.dsp + both.dsp,
        m20k=whole.m20k - memory,
        alm=whole.alm - arrays.alm + both.alm,
    )
    return sum(engine.cycles_per_frame for engine in fast), usage, [fast[0]]


# ---- multipliers that work for two engines


@block
def turning_macs(
    clk: Clock, weight: Bits, x: Bits, e: Bits, turn: Bits, y: Bits, dx: Bits, *, forward: MacShape, error: MacShape
) -> Instances:
    """Products of a weight word with words of one tap of either map, summed as both engines want them."""
    size = forward.results * forward.terms
    bits, width = operand_bits(forward.operand), forward.operand.width
    weights = [signed_signal(operand_bits(forward.weight)) for _ in range(size)]
    operands = [signed_signal(bits) for _ in range(size)]
    products = [signed_signal(forward.product_bits) for _ in range(size)]
    turned = [signed_signal(forward.product_bits) for _ in range(size)]
    channels, filters = forward.summed, forward.results
    split = weight_lanes(clk, weight, weights, fixed=forward.weight)

    @always(clk.posedge)
    def choose() -> None:
        for filter_lane in range(filters):
            for channel in range(channels):
                if turn:
                    operands[filter_lane * channels + channel].next = e[bits_of(filter_lane, width)].signed()
                else:
                    operands[filter_lane * channels + channel].next = x[bits_of(channel, width)].signed()

    @always(clk.posedge)
    def multiply() -> None:
        for at in range(size):
            products[at].next = weights[at] * operands[at]

    @always_comb
    def turn_round() -> None:
        for filter_lane in range(filters):
            for channel in range(channels):
                turned[channel * filters + filter_lane].next = products[filter_lane * channels + channel]

    ys = [signed_signal(forward.sum_bits) for _ in range(filters)]
    dxs = [signed_signal(error.sum_bits) for _ in range(channels)]
    trees = [
        adder_trees(clk, products, ys, terms=channels),
        adder_trees(clk, turned, dxs, terms=filters),
        _joined(clk, ys, y, width=forward.sum_bits),
        _joined(clk, dxs, dx, width=error.sum_bits),
    ]
    return split, choose, multiply, turn_round, trees


@block
def _joined(clk: Clock, sums: Any, y: Bits, *, width: int) -> Instances:
    count = len(sums)

    @always(clk.posedge)
    def join() -> None:
        for at in range(count):
            y.next[bits_of(at, width)] = sums[at]

    return join


@block
def _macs(clk: Clock, weight: Bits, x: Bits, y: Bits, *, shape: MacShape) -> Instances:
    inside = [Signal(bool(1))]
    word = Signal(intbv(0)[len(x) :])
    sums = [signed_signal(shape.sum_bits) for _ in range(shape.sums)]

    @always_comb
    def within() -> None:
        inside[0].next = True
        word.next = x

    return (
        within,
        mac_array(clk, weight, [word], inside, sums, shape=shape),
        _joined(clk, sums, y, width=shape.sum_bits),
    )


@dataclasses.dataclass(frozen=True)
class _Plain:
    """Builds the multipliers of one engine."""

    shape: MacShape

    def __call__(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Any:
        ports = (streams[name].payload for name in ("w", "x", "y"))
        return _macs(domain.clk, *ports, shape=self.shape)


@dataclasses.dataclass(frozen=True)
class _Turns:
    """Builds those of two engines."""

    forward: MacShape
    error: MacShape

    def __call__(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Any:
        ports = (streams[name].payload for name in ("w", "x", "e", "turn", "y", "dx"))
        return turning_macs(domain.clk, *ports, forward=self.forward, error=self.error)


def _plain_widths(shape: MacShape) -> dict[str, int]:
    weights = shape.sums * shape.terms * shape.weight.width
    return {"w": weights, "x": shape.operands * shape.operand.width, "y": shape.sums * shape.sum_bits}


def _turns_widths(forward: MacShape, error: MacShape) -> dict[str, int]:
    ours, other = _plain_widths(forward), _plain_widths(error)
    return {**ours, "e": other["x"], "turn": 1, "dx": other["y"]}


# ---- blocks


def _contents(widths: Mapping[str, int], build: Callable[..., Any]) -> Resources:
    return elaborated_contents(widths, build)


def _usage(layer: Layer, part: Part) -> Usage:
    circuit = Circuit.of_layer(layer)
    return fit(elaborated_contents(circuit.widths, circuit.build), part)


def _weight_blocks(layer: Layer, part: Part) -> int:
    (memory,) = layer.memories()
    dual = isinstance(layer, ConvPair)
    shape = {(memory.depth, memory.width): 1}
    return fit(Resources(dual_memories=shape) if dual else Resources(memories=shape), part).m20k


def _sum(found: Any) -> Usage:
    return sum(found, Usage())


if __name__ == "__main__":
    main()
