"""Where compressed gradients pay: frames a second of copies of a network, by what the links between them carry.

    python -m benchmarks.compression_pays                  # the tables of docs/compression-pays.md, from what is kept
    python -m benchmarks.compression_pays --plots docs     # … and the pictures beside them
    python -m benchmarks.compression_pays --anew           # counts traffic, measures ratios, prices a codec anew
    python -m benchmarks.compression_pays --write          # … into the page

Each copy of a whole network stands on an FPGA of its own; the first one has the host, deals frames out and takes the
loss.  Nothing is searched or solved.  Frames a second are the least of two bounds of `dagtrain place`:

    multipliers   all of all boards' DSP blocks that may be used, none ever idle
    links         of each board and direction, what its port carries a frame, of which a tensor that goes once a batch
                  takes its part: `network_links`, as the planner sums them over a placement

So no plan is faster; one may be slower, since neither block memory, DRAM, nor the end of a batch is counted.

Copies exchange gradients by a ring (`import --exchange ring`): without a codec exact sums go to the copy with the last
one, and 16 bits an element go round.  With the integer codec both are words of few bits, by the ratio that `dagtrain
train` would state of two copies of the digits network.  INCEPTIONN's codecs of float32, as printed and bounded, have no
circuits here; they are counted as if elements went in as many bits as theirs take of the digits network's gradients.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import onnx

from benchmarks.beside_paper import print_table
from benchmarks.fpdeep import forward as chain_of_layers
from benchmarks.inceptionn import DIGITS, shares
from dagtrain.files import write_text
from dagtrain.flow.train_step import lower_quartile
from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.exchange import COPY, Exchanging, parse_exchange
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import replicate
from dagtrain.planning.link_costs import PortCosts, most_credit_words, network_links
from dagtrain.report.chart import line_chart
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import load_digits
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Resources, fit
from hdl.engine.codec.coding import Coding
from hdl.engine.codec.integer_codec import IntegerCodec
from hdl.errors import DagtrainError
from hdl.fixed import Fixed
from hdl.parts.catalogue import PARTS
from hdl.recipe import Recipe
from hdl.tensor import Kind, Port, Tensor
from importers.onnx import NormMode, import_model
from importers.onnx.skeleton import fill, load_skeleton

KEPT = Path(__file__).with_name("compression_pays.json")
DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "compression-pays.md"
MODELS = Path(__file__).parent.parent / "examples" / "models"
BEGIN, END = "<!-- begin: benchmarks/compression_pays.py -->", "<!-- end: benchmarks/compression_pays.py -->"
NETS = ("ResNet-18", "ResNet-50", "VGG-16")
# drawn weights of a tensor: their values don't matter
DRAWN = 1000
PART, CLOCK_HZ, DSP_SHARE = PARTS["AGFB014"], 200e6, 0.9
# of words of the network: bursts of the codec's circuits at 16 elements
WORD_BITS, ELEMENT_BITS = 256, 16
COPIES, BATCHES = (2, 4, 8), (32, 256, 2048)
# of what codecs save, by the fewest of them
MOST = 0.9
# of pictures
SHOWN_COPIES, SHOWN_BATCH = 8, 256
RATES_GBPS = (1, 2, 5, 10, 25, 50, 100, 200, 400)
# error bounds of 2^-10: of the gradient's range, or of float32
BOUND_BITS = 10
INTEGER, FEEDBACK = f"bounded:{BOUND_BITS}", ",feedback"
# batches in which ratios are measured, with `Recipe` of the digits example
EPOCHS, CALIBRATED = 2, 16
NONE, LITERAL, BOUNDED, INTEGERS = "none", "literal", "bounded", "integer"
CODECS = (NONE, LITERAL, BOUNDED, INTEGERS)


@dataclass(frozen=True)
class PortLoad:
    """What a board's port carries in one direction, bits."""

    # with every frame of all copies, and once a batch
    frame: float
    batch: float

    def fps(self, rate_bps: float, batch: int) -> float:
        """Frames a second of all copies at most."""
        return rate_bps / (self.frame + self.batch / batch)


@dataclass(frozen=True)
class Traffic:
    """Of copies of a network, by the codec on gradients."""

    net: str
    copies: int
    codec: str
    # of every board, what it sends and what it receives
    ports: tuple[PortLoad, ...]
    # ends of codecs on the board that has most: on all streams that can be coded, and on the fewest with `MOST` of what
    # all of them save
    ends: int
    most_ends: int

    def fps(self, rate_bps: float, batch: int) -> float:
        """Frames a second of all copies that links allow."""
        return min(port.fps(rate_bps, batch) for port in self.ports)


@dataclass(frozen=True)
class Kept:
    """What takes long, and is kept."""

    # codec → bits of an element on links, on average of what is counted on
    element_bits: Mapping[str, float]
    # ALMs of both ends of a coded stream
    codec_alm: int
    # multiplications of training, a frame, by network
    macs: Mapping[str, int]
    traffic: tuple[Traffic, ...]

    def of(self, net: str, copies: int, codec: str) -> Traffic:
        """Of one case."""
        (found,) = (each for each in self.traffic if (each.net, each.copies, each.codec) == (net, copies, codec))
        return found

    def multipliers_fps(self, net: str, copies: int) -> float:
        """Frames a second that multipliers allow."""
        return copies * multipliers() * CLOCK_HZ / self.macs[net]

    def fps(self, net: str, copies: int, codec: str, batch: int, rate_gbps: float) -> float:
        """Frames a second that both allow."""
        return min(self.multipliers_fps(net, copies), self.of(net, copies, codec).fps(rate_gbps * 1e9, batch))

    def enough_gbps(self, net: str, copies: int, codec: str, batch: int) -> float:
        """Of links, from where on they don't bind."""
        return self.multipliers_fps(net, copies) / self.of(net, copies, codec).fps(1e9, batch)

    def gain(self, net: str, copies: int, codec: str, batch: int, rate_gbps: float) -> float:
        """Times as fast as without a codec."""
        return self.fps(net, copies, codec, batch, rate_gbps) / self.fps(net, copies, NONE, batch, rate_gbps)


@cache
def multipliers() -> int:
    """Of 16 x 16 bits that a board has."""
    some = 1000
    blocks = fit(Resources(multipliers={(ELEMENT_BITS, ELEMENT_BITS): some}), PART).dsp
    return int(PART.dsp * DSP_SHARE * some / blocks)


# ---- traffic


@cache
def training(net: str) -> Graph:
    """Its training graph, norms left out."""
    recipe = Recipe(batch=SHOWN_BATCH)
    if net == "VGG-16":
        return differentiate(chain_of_layers(net, recipe=recipe))
    skeleton = MODELS / f"{net.lower().replace('-', '')}-torchscript-training.skeleton.gz"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(fill(load_skeleton(skeleton), DRAWN), path)
        return differentiate(import_model(path, norm=NormMode.NONE, recipe=recipe))


def way(codec: str, element_bits: Mapping[str, float]) -> Exchanging:
    """How copies exchange gradients; floats as if they were integers of as many bits."""
    if codec == NONE:
        return parse_exchange("ring", "none")
    found = parse_exchange("ring", INTEGER)
    return replace(found, ratio_percent=int(100 * ELEMENT_BITS / element_bits[codec]))


def boards_of(graph: Graph) -> dict[str, int]:
    """Node → board: copies on theirs, and what hands on to one copy alone beside it; all else on the first."""
    found = {node.name: int(node.layer_of.rpartition(COPY)[2]) if COPY in node.layer_of else 0 for node in graph.nodes}
    # what hands on to another one that does comes before it
    for node in reversed(graph.nodes):
        readers = {found[reader.name] for edge in node.outputs.values() for reader, _ in graph.consumers[edge]}
        if node.role is Role.FORK and COPY not in node.layer_of and len(readers) == 1:
            found[node.name] = readers.pop()
    return found


def traffic(net: str, copies: int, codec: str, element_bits: Mapping[str, float]) -> Traffic:
    """Of a network with so many copies of all its layers, as the planner counts links."""
    graph = insert_forks(replicate(training(net), {"*": copies}, way(codec, element_bits)))
    boards = boards_of(graph)
    frame: dict[tuple[int, str], float] = defaultdict(float)
    batch: dict[tuple[int, str], float] = defaultdict(float)
    for link in network_links(graph, WORD_BITS, most_credit_words(graph, WORD_BITS)):
        for source, target, bits in link.ways:
            start, stop = boards[source], boards[target]
            if start == stop:
                continue
            for port in ((start, "sends"), (stop, "receives")):
                if link.kind.per_batch:
                    batch[port] += float(bits) * SHOWN_BATCH
                else:
                    frame[port] += float(bits)
    ports = tuple(PortLoad(frame[port], batch[port]) for port in sorted(frame.keys() | batch.keys()))
    coded = sorted(_coded(graph, boards), reverse=True)
    saved, fewest = MOST * sum(words for words, _ in coded), 0
    while saved > 0:
        saved -= coded[fewest][0]
        fewest += 1
    return Traffic(net, copies, codec, ports, _ends(coded), _ends(coded[:fewest]))


def _coded(graph: Graph, boards: Mapping[str, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Words that a codec saves a batch on a stream between boards, and these."""
    for edge, producer, _source, consumer, sink in graph.streams:
        coding, ends = graph.coding(edge), (boards[producer.name], boards[consumer.name])
        bursts = coding.bursts(sink.elements, WORD_BITS) if coding else None
        if ends[0] != ends[1] and coding is not None and bursts is not None:
            yield bursts.count - coding.words(bursts), ends


def _ends(coded: Sequence[tuple[int, tuple[int, int]]]) -> int:
    """Of these streams, on the board that has most."""
    return max(Counter(board for _, ends in coded for board in ends).values(), default=0)


# ---- what is measured


def ratios() -> dict[str, float]:
    """Codec → bits of an element, of gradients of the digits network."""
    found = {NONE: float(ELEMENT_BITS), INTEGERS: ELEMENT_BITS / integer_ratio()}
    for kind, bound, *_, ratio in shares(EPOCHS):
        if bound == f"2^-{BOUND_BITS}":
            found[kind] = 32 / float(ratio)
    return found


def integer_ratio() -> float:
    """What `dagtrain train` states of two copies."""
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    graph = differentiate(import_model(DIGITS / "digits.onnx", norm=NormMode.NONE, recipe=recipe))
    data = load_digits()
    feeds = Emulator(graph, Mode.REFERENCE).feeds
    order = list(data.batches(recipe.batch, 1, 0))
    graph = calibrate(graph, [feeds(data, index) for index in order[:CALIBRATED]])
    emulator = Emulator(insert_forks(replicate(graph, {"*": 2}, parse_exchange("ring", INTEGER + FEEDBACK))))
    return lower_quartile(list(_batch_ratios(emulator, EPOCHS)))


def _batch_ratios(emulator: Emulator, epochs: int) -> Iterator[float]:
    data = load_digits()
    for epoch in range(epochs):
        for index in data.batches(emulator.graph.recipe.batch, 1, epoch):
            emulator.train_batch(data, index)
            assert emulator.ratio is not None, "copies exchange coded gradients"
            yield emulator.ratio


def codec_alm() -> int:
    """Of compressor and decompressor of a stream of a million elements."""
    costs = PortCosts.of(max(COPIES), WORD_BITS, [PART], Estimator())
    port = Port("g", Tensor((1 << 20,), Fixed(ELEMENT_BITS, 8), Kind.GRADIENT), WORD_BITS // ELEMENT_BITS)
    coding = Coding(IntegerCodec.relative(BOUND_BITS))
    ends = ((costs.sender(port, port, each), costs.receiver(port, port, each)) for each in (coding, None))
    coded, plain = (sum(usage.alm for usage in both) for both in ends)
    return coded - plain


def counted() -> Kept:
    """All of it, in some CPU minutes."""
    element_bits = ratios()
    found = []
    for net in NETS:
        for copies in COPIES:
            found += [traffic(net, copies, codec, element_bits) for codec in CODECS]
            print(net, copies, flush=True)
    macs = {net: sum(node.layer.macs for node in training(net).nodes) for net in NETS}
    return Kept(element_bits, codec_alm(), macs, tuple(found))


def kept(path: Path = KEPT) -> Kept:
    """What was counted before."""
    document = json.loads(path.read_text())
    cases = tuple(
        Traffic(**{**each, "ports": tuple(PortLoad(**port) for port in each["ports"])}) for each in document["traffic"]
    )
    return Kept(document["element_bits"], document["codec_alm"], document["macs"], cases)


# ---- what is shown


def sections(found: Kept) -> Iterator[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """(what a table is of, its heads, its rows)."""
    yield "Bits of an element on links between copies", ("codec", "bits", "of"), list(_bits(found))
    heads = ("network", "copies", "batch", "frames/s", *(f"{codec}: enough from" for codec in CODECS), *(
        f"integer at {rate} Gb/s" for rate in (1, 10, 100)
    ))  # fmt: skip
    yield (
        "Gb/s of links from which on multipliers bind, and times as fast as without a codec",
        heads,
        list(_rows(found)),
    )
    heads = ("network", "copies", "ends a board", "ALMs", "of the board", f"for {MOST:.0%}", "ALMs", "of the board")
    yield (
        "Ends of the integer codec on the board that has most: on all streams between copies that can be coded, and on "
        f"the fewest that save {MOST:.0%} of the words that all save",
        heads,
        list(_costs(found)),
    )


def _bits(found: Kept) -> Iterator[Sequence[str]]:
    of = {
        NONE: "gradients that go round; exact sums before that take more",
        LITERAL: "float32, as printed, 2^-10: no circuit here",
        BOUNDED: "float32, bound kept, 2^-10: no circuit here",
        INTEGERS: f"`--compress {INTEGER}{FEEDBACK}`, two copies",
    }
    for codec in CODECS:
        yield codec, f"{found.element_bits[codec]:.2f}", of[codec]


def _rows(found: Kept) -> Iterator[Sequence[str]]:
    for net in NETS:
        for copies in COPIES:
            for batch in BATCHES:
                enough = (f"{found.enough_gbps(net, copies, codec, batch):.2f}" for codec in CODECS)
                gains = (f"{found.gain(net, copies, INTEGERS, batch, rate):.2f}" for rate in (1, 10, 100))
                yield net, str(copies), str(batch), f"{found.multipliers_fps(net, copies):,.0f}", *enough, *gains


def _costs(found: Kept) -> Iterator[Sequence[str]]:
    for net in NETS:
        for copies in COPIES:
            case = found.of(net, copies, INTEGERS)
            cells: list[str] = []
            for ends in (case.ends, case.most_ends):
                alm = ends * found.codec_alm // 2
                cells += [str(ends), f"{alm:,}", f"{alm / PART.alm:.0%}"]
            yield net, str(copies), *cells


def plots(found: Kept) -> dict[str, str]:
    """File name → SVG text."""
    drawn = {}
    for net in NETS:
        series = {
            codec: [(rate, found.fps(net, SHOWN_COPIES, codec, SHOWN_BATCH, rate)) for rate in RATES_GBPS]
            for codec in CODECS
        }
        title = f"{net}: {SHOWN_COPIES} copies, batch {SHOWN_BATCH}, at most"
        name = f"compression-pays-{net.lower()}.svg"
        drawn[name] = line_chart(title, "Gb/s of links", "frames/s", series, logarithmic=True)
    return drawn


def text(found: Kept) -> str:
    """What stands in the page."""
    parts = []
    for title, heads, rows in sections(found):
        lines = [heads, ("---",) * len(heads), *rows]
        parts.append("\n".join([f"{title}:", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    return "\n\n".join(parts)


def with_text(page: str, found: Kept) -> str:
    """The page with the tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise DagtrainError(f"{PAGE.name} has no tables", f"write {BEGIN} and {END} where they should stand")
    return f"{before}{BEGIN}\n{text(found)}\n{END}{after}"


def main() -> None:
    """Print what is known, after counting it if so asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anew", action="store_true", help="count, measure and price anew, some CPU minutes")
    parser.add_argument("--write", action="store_true", help=f"the tables into docs/{PAGE.name}")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="also write compression-pays-*.svg there")
    options = parser.parse_args()
    if options.anew:
        write_text(KEPT, json.dumps(asdict(counted()), indent=1) + "\n")
    found = kept()
    for title, heads, rows in sections(found):
        print(f"{title}:\n")
        print_table(heads, rows)
        print()
    if options.write:
        write_text(PAGE, with_text(PAGE.read_text(), found))
    for name, drawn in plots(found).items() if options.plots else ():
        write_text(options.plots / name, drawn)
        print(options.plots / name)


if __name__ == "__main__":
    main()
