"""FPDeep's published numbers beside ours (paper, ours, quotient, verdict), and curves from 5 to 100 boards.

    python -m benchmarks.fpdeep                # the tables of docs/fpdeep.md, within a minute
    python -m benchmarks.fpdeep --plots docs   # also docs/fpdeep-*.svg

What the papers print stands in benchmarks/papers/fpdeep.toml, with the sentence.  Operations come from graphs of the
networks (`chain`), what is mapped from `placement.fpdeep`, what is simulated from `benchmarks.simulate_fast`, whose
results are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fpdeep_shapes
from benchmarks.beside_paper import HEADS, PAPERS, Row, Value, print_table, rows_of
from benchmarks.fpdeep_designs import DESIGNS, METRICS, crossover, ranks, topologies, values
from dagtrain.files import write_text
from dagtrain.flow.mapping_step import chain_of
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.report.chart import line_chart
from dagtrain.schedule.schedule import needed_staleness, schedule
from hdl.fixed import FloatArray
from hdl.parts.catalogue import PARTS
from hdl.recipe import Recipe
from placement.fpdeep.chain import Chain
from placement.fpdeep.mapping import Mapping as Mapped
from placement.fpdeep.mapping import fastest, rounded
from placement.hypar.published import PUBLISHED, Conv

# name in the paper -> in `PUBLISHED`
NETS = {"AlexNet": "alexnet", "VGG-16": "vgg-d", "VGG-19": "vgg-e"}
# with the two groups of its own paper, which FPDeep's hours speak against
GROUPED = {"AlexNet": ("conv2", "conv4", "conv5")}
PART = PARTS["XC7VX690T"]
CLOCK_HZ, CAP, BOARDS, WORD_BITS = 200e6, 0.8, 15, 16
DSP = int(PART.dsp * CAP)
# two operations a DSP and cycle, at 200 MHz, on 80 % of the DSPs
BOUND_GOPS = 2 * DSP * CLOCK_HZ / 1e9
IMAGES = 1_281_167
# Gbit/s of a board, each direction or both: see the docs
RATES = (150, 250)
SIZES = tuple(range(5, 101, 5))
# what `benchmarks.simulate_fast` keeps
SIMULATED = Path(__file__).with_name("simulate_fast.json")


class Bare(GraphBuilder):
    """Graphs whose weights take no memory: all are 0."""

    def _he(self, shape: tuple[int, ...]) -> FloatArray:
        return np.broadcast_to(np.float64(0), shape)


def forward(net: str, grouped: bool = False, recipe: Recipe | None = None) -> Graph:
    """One of `NETS`, with relus behind all layers but the last."""
    published = PUBLISHED[NETS[net]]
    groups = GROUPED.get(net, ()) if grouped else ()
    build = Bare(net, recipe or Recipe())
    x = build.input(published.side, published.side, published.channels)
    for layer in published.layers:
        if isinstance(layer, Conv):
            shared = 2 if layer.name in groups else 1
            x = build.conv(x, layer.filters, layer.kernel, layer.stride, layer.padding, groups=shared)
        else:
            x = build.gemm(x, layer.outputs, bias=False)
        if layer is not published.layers[-1]:
            x = build.relu(x)
        if isinstance(layer, Conv) and layer.pool:
            x = build.max_pool(x, layer.pool.size, layer.pool.stride)
    return build.classify(x)


@cache
def training(net: str, grouped: bool = False) -> Graph:
    """Its training graph."""
    return insert_forks(differentiate(forward(net, grouped)))


@cache
def chain(net: str, grouped: bool = False) -> Chain:
    """As FPDeep counts it: all three phases for every layer, the first one too."""
    found = chain_of(training(net, grouped))
    return replace(
        found,
        layers=tuple(
            replace(layer, name=published.name, error_macs=layer.forward_macs)
            for layer, published in zip(found.layers, PUBLISHED[NETS[net]].layers, strict=True)
        ),
    )


@cache
def mapped(net: str, boards: int) -> Mapped:
    """On boards of 80 % of their DSPs."""
    return fastest(chain(net), boards, DSP)


def gop(net: str, grouped: bool = False) -> float:
    """10⁹ operations of training, an image."""
    return chain(net, grouped).operations / 1e9


def fps(net: str, boards: int) -> float:
    """Frames/s of its mapping at 200 MHz."""
    return float(CLOCK_HZ / mapped(net, boards).cycles)


# ---- beside the paper


def tables() -> dict[str, Any]:
    """What the paper prints."""
    return tomllib.loads((PAPERS / "fpdeep.toml").read_text())


@cache
def printed() -> dict[str, dict[str, float]]:
    """Table 6: network -> column -> number."""
    return {row["net"]: row for row in tables()["table6"]}


def rows() -> list[Row]:
    """All published numbers beside ours."""
    return rows_of("fpdeep", measures())


def measures() -> dict[str, Value]:
    """Measure -> ours."""
    return {
        **_inter_layer(),
        **_table_6(),
        **_links(),
        **_boards(),
        **_idle(),
        **_simulated_idle(),
        **_table_5(),
        **_old_weights(),
    }


def _inter_layer() -> dict[str, Value]:
    """FPL III.A."""
    strict = [DSP_EXAMPLE * share / sum(EXAMPLE) for share in EXAMPLE]
    return {"DSPs of layer 1 of 2": strict[0], "DSPs of layer 2 of 2": strict[1]}


# M operations of two layers, and DSPs of seven boards
EXAMPLE, DSP_EXAMPLE = (182, 83), 7 * 2700


def _table_6() -> dict[str, Value]:
    found: dict[str, Value] = {}
    for net in printed():
        found[f"{net} GOPS a board"] = BOUND_GOPS
        found[f"{net} hours an epoch"] = hours(net)
    others = {row["device"]: row for row in tables()["others"] if row["net"] == "AlexNet"}
    for told, device in (("Titan X", "Titan X"), ("earlier FPGAs", "FPGA [43]"), ("K80", "K80")):
        found[f"energy over {told}"] = printed()["AlexNet"]["gops_per_joule"] / others[device]["gops_per_joule"]
    return found


def hours(net: str, grouped: bool = False) -> float:
    """Of an epoch, by the GOPS that the paper prints."""
    return gop(net, grouped) * IMAGES / (BOARDS * printed()[net]["gops"]) / 3600


def in_and_out(net: str) -> tuple[str, int]:
    """The layer whose input and output maps have most words together: a cut in front of nearly all of its channels."""
    layer = max(chain(net).layers, key=lambda layer: layer.input_words + layer.output_words)
    return layer.name, layer.input_words + layer.output_words


def linear_boards(net: str, gbit_per_s: float, words: int) -> float:
    """To which so many words a frame, forward and as many back, leave room on a link of that rate."""
    return gbit_per_s * 1e9 / (2 * words * WORD_BITS) * gop(net) / printed()[net]["gops"]


def need(net: str) -> float:
    """Gbit/s of a cut in front of nearly all of the channels of that layer, one way, at the paper's GOPS."""
    return in_and_out(net)[1] * WORD_BITS * printed_fps(net) / 1e9


def printed_fps(net: str) -> float:
    """Frames/s that the paper's GOPS are."""
    return BOARDS * printed()[net]["gops"] / gop(net)


def dense_gb_per_s(net: str) -> float:
    """Of DRAM, where dense weights are read once a frame at that rate."""
    weights = sum(layer.weights for layer in chain(net).layers if layer.off_chip)
    return weights * WORD_BITS / 8 * printed_fps(net) / 1e9


def _links() -> dict[str, Value]:
    found: dict[str, Value] = {
        "widest need Gb/s": max(map(need, NETS)),
        "widest need of the mapping Gb/s": max(widest(net, BOARDS) * fps(net, BOARDS) for net in NETS) / 1e9,
    }
    for net in NETS:
        for rate in RATES:
            found[f"{net} boards at {rate} Gb/s"] = linear_boards(net, rate, in_and_out(net)[1])
    layers = {layer.name: layer for layer in chain("AlexNet").layers}
    image_and_second = layers["conv1"].input_words + layers["conv2"].output_words
    found["AlexNet boards at 150 Gb/s, image and conv2"] = linear_boards("AlexNet", 150, image_and_second)
    return found


def widest(net: str, boards: int) -> int:
    """Bits a frame across the widest cut of the mapping, in its fuller direction."""
    return max(WORD_BITS * max(cut.forward, cut.backward) for cut in mapped(net, boards).cuts)


def dense_boards(net: str) -> list[int]:
    """Boards with dense layers, from 0."""
    of = mapped(net, BOARDS)
    return sorted({part.board for part in of.parts if of.layer(part).off_chip})


def memory_shares(net: str) -> list[float]:
    """Of all block memory of each board, 16-bit weights and gradients, not balanced."""
    of = mapped(net, BOARDS)
    return [2 * WORD_BITS * of.weights(board) / (PART.m20k * PART.m20k_bits) for board in range(BOARDS)]


def _boards() -> dict[str, Value]:
    """Figure 14."""
    found: dict[str, Value] = {}
    for net in NETS:
        of = mapped(net, BOARDS)
        shares = [of.dsp_of(board) / PART.dsp for board in range(BOARDS)]
        found[f"{net} mean DSP share %"] = 100 * sum(shares) / BOARDS
        first = min(dense_boards(net))
        found[f"{net} boards of convolutions alone"] = f"1-{first}"
        memory = memory_shares(net)
        fits = max(memory[:-1]) if net == "AlexNet" else sum(memory) / BOARDS
        found[f"{net} weights and gradients below 80 % of block memory"] = "yes" if fits < 0.8 else "no"
    return found


def _idle() -> dict[str, Value]:
    """6.3.3, by rounding DSPs of whole layers to K × K alone, which it names as the reason."""
    sizes = range(5, 86)
    most = {net: {size: rounded(chain(net), size * DSP) for size in sizes} for net in NETS}
    falls = all(
        max(of[size] for size in sizes if size > 30) < max(of[size] for size in sizes if size <= 30)
        for of in most.values()
    )
    return {
        "idle below 5 % by rounding of layers": "yes" if max(max(of.values()) for of in most.values()) < 0.05 else "no",
        "idle falls with boards by rounding of layers": "yes" if falls else "no",
        "most idle % above 30 boards, of the mapping": 100
        * max(mapped(net, size).idle(mapped(net, size).cycles) for net in NETS for size in SIZES if 30 < size <= 85),
    }


def simulated(net: str = "") -> list[dict[str, Any]]:
    """What was simulated of a network, or of all."""
    points = json.loads(SIMULATED.read_text())
    return [point for point in points if net in ("", point["net"])]


def _simulated_idle() -> dict[str, Value]:
    found: dict[str, Value] = {}
    for title, nets in (("both VGGs", ("VGG-16", "VGG-19")), ("AlexNet", ("AlexNet",))):
        below = all(point["idle_mean"] < 0.05 for net in nets for point in simulated(net))
        found[f"idle below 5 % in simulation, mean of boards, {title}"] = "yes" if below else "no"
    large = [100 * point["idle_mean"] for point in simulated() if point["boards"] > 30]
    return found | ({"most idle % above 30 boards, in simulation": max(large)} if large else {})


def _table_5() -> dict[str, Value]:
    found: dict[str, Value] = {
        f"ranks by {metric}": " ".join(str(ranked[design]) for design in DESIGNS)
        for metric, ranked in ranks(chain("VGG-16"), DSP).items()
    }
    found["boards above which 1-D is better"] = crossover(chain("VGG-16"), DSP)
    found["better of 4 boards"] = next(iter(topologies(chain("VGG-16"), DSP)))[5]
    found["boards above which 1-D is better, over cables"] = fpdeep_shapes.crossover(chain("VGG-16"), DSP)
    over_cables = fpdeep_shapes.compared(chain("VGG-16"), DSP)
    found["better of 4 boards, over cables"] = over_cables[0].better
    leads = [one.chain.words / one.grid.words for one in over_cables if one.better == "1-D"]
    found["1-D gains with boards, over cables"] = "yes" if leads == sorted(leads, reverse=True) else "no"
    return found


def _old_weights() -> dict[str, Value]:
    return {"samples with old weights at 100 boards": float(staleness("VGG-16", 100))}


@cache
def staleness(net: str, boards: int) -> int:
    """Frames of a batch that our pipeline of the same pace takes before all weights of the batch before are new."""
    cycles = math.ceil(mapped(net, boards).cycles)
    folded = fold_graph(training(net), cycles, (PART,))
    return needed_staleness(folded, schedule(folded, cycles))


# ---- what is printed beside


def _operations() -> Iterator[tuple[str, ...]]:
    for net in NETS:
        row = printed()[net]
        watts = row["gops"] / row["gops_per_joule"]
        megahertz = row["gops"] * 1e3 / (2 * DSP)
        share = row["gops"] * 1e9 / (2 * CLOCK_HZ * PART.dsp)
        ratio = row["hours"] / hours(net)
        yield (
            net, f"{gop(net):.2f}", f"{gop(net, True):.2f}" if net in GROUPED else "", f"{megahertz:.1f}",
            f"{share:.1%}", f"{ratio:.3f}", f"{watts:.1f}", in_and_out(net)[0], f"{need(net):.1f}",
            f"{dense_gb_per_s(net):.0f}",
        )  # fmt: skip


def _sizes() -> Iterator[tuple[str, ...]]:
    for net in NETS:
        for size in (5, 10, BOARDS, 30, 56, 70, 83, 100):
            of = mapped(net, size)
            yield (
                net, str(size), of.dealing.value, f"{fps(net, size):,.0f}",
                f"{fps(net, size) * gop(net) / size:,.0f}", f"{of.idle(of.cycles):.1%}",
                f"{of.idle(of.whole_cycles):.1%}", f"{rounded(chain(net), size * DSP):.2%}",
                f"{widest(net, size) * fps(net, size) / 1e9:.1f}",
            )  # fmt: skip


def _each_board() -> Iterator[tuple[str, ...]]:
    for net in NETS:
        of, memory = mapped(net, BOARDS), memory_shares(net)
        yield (
            net, " ".join(f"{100 * of.dsp_of(board) / PART.dsp:.0f}" for board in range(BOARDS)),
            " ".join(f"{100 * share:.0f}" for share in memory), f"{sum(memory) / BOARDS:.0%}",
        )  # fmt: skip


def _designs() -> Iterator[tuple[str, ...]]:
    """Values of the metrics of Table 5."""
    of = values(chain("VGG-16"), DSP)
    for design in DESIGNS:
        yield design, *(f"{of[metric][design]:.4g}" for metric in METRICS)


def plots() -> Mapping[str, str]:
    """File name -> SVG text."""
    found = {}
    for net in NETS:
        made: dict[str, list[tuple[float, float]]] = {
            "mapping": [(size, fps(net, size) * gop(net) / 1e3) for size in SIZES],
            "bound": [(size, size * BOUND_GOPS / 1e3) for size in (SIZES[0], SIZES[-1])],
        }
        made["simulated"] = [(point["boards"], point["fps"] * gop(net) / 1e3) for point in simulated(net)]
        for rate in RATES:
            limit = linear_boards(net, rate, in_and_out(net)[1]) * printed()[net]["gops"] / 1e3
            made[f"{rate} Gb/s"] = [(SIZES[0], limit), (SIZES[-1], limit)]
        made["paper"] = [(BOARDS, BOARDS * printed()[net]["gops"] / 1e3)]
        others = {row["device"]: (1.0, row["gops"] / 1e3) for row in tables()["others"] if row["net"] == net}
        if others:
            made["others"] = list(others.values())[:1]
        rings = {"others": others} if others else {}
        title = f"{net}: what multipliers and links allow"
        found[f"fpdeep-{net.lower()}.svg"] = line_chart(title, "boards", "TOPS of all", made, rings=rings)
    idle = {net: [(size, 100 * mapped(net, size).idle(mapped(net, size).cycles)) for size in SIZES] for net in NETS}
    for net in NETS:
        idle[f"{net}, simulated"] = [(point["boards"], 100 * point["idle_mean"]) for point in simulated(net)]
    idle["5 %"] = [(SIZES[0], 5), (SIZES[-1], 5)]
    found["fpdeep-idle.svg"] = line_chart(
        "Idle multipliers of the mapping, and of ours in simulation", "boards", "%", idle
    )
    return found


def sections() -> Iterator[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """(what a table is of, its heads, its rows)."""
    yield "", HEADS, [row.cells for row in rows()]
    heads: tuple[str, ...]
    heads = (
        "network", "GOP an image", "in groups", "MHz at 80 %", "DSPs at 200 MHz", "hours over ours", "W a board",
        "widest layer", "its need Gb/s", "dense weights GB/s",
    )  # fmt: skip
    yield "What Table 6 implies", heads, list(_operations())
    heads = (
        "network", "boards", "channels", "frames/s", "GOPS a board", "idle", "idle, whole passes",
        "idle, rounding alone", "widest cut Gb/s",
    )  # fmt: skip
    yield "The mapping at 200 MHz and 80 % of the DSPs", heads, list(_sizes())
    heads = ("network", "DSP %", "weights and gradients, % of block memory", "balanced")
    yield "Each of 15 boards (Figure 14)", heads, list(_each_board())
    yield "VGG-16 on 8 boards, batch 128 (Table 5)", ("design", *METRICS), list(_designs())
    heads = ("boards", "1-D", "cut at", "2-D", "link at", "better", "2-D: links of that board")
    title = "Widest link in M words a frame and port, CONV3 to CONV5 of VGG-16 (Figure 10)"
    yield title, heads, list(topologies(chain("VGG-16"), DSP))
    title = "The same over the cables of a chain and of grids, in the best order of the boards"
    yield title, fpdeep_shapes.HEADS, list(fpdeep_shapes.rows(chain("VGG-16"), DSP))


def main() -> None:
    """Print all tables, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="also write fpdeep-*.svg there")
    options = parser.parse_args()
    for title, heads, cells in sections():
        if title:
            print(f"{title}:\n")
        print_table(heads, cells)
        print()
    for name, text in plots().items() if options.plots else ():
        write_text(options.plots / name, text)
        print(options.plots / name)


if __name__ == "__main__":
    main()
