"""Streams between devices whose elements a codec has left few bits of: in few words, with nothing lost."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dagtrain.cosim.network import read_frames
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.ethernet import Ethernet
from dagtrain.emission.links import Crossing, NetworkModel, hops_of, receiving_units, sending_units
from dagtrain.emission.manifest import CodedRecord, read_manifest
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.import_step import load_training_graph
from dagtrain.graph.ir import Graph, GraphError
from dagtrain.passes.exchange import Exchanging, parse_exchange
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.insert_relays import insert_relays
from dagtrain.passes.replicate import replicate
from dagtrain.planning.link_costs import CodedTraffic, PortCosts, network_links
from dagtrain.progress import Silent
from dagtrain.simulate.control import DataDependentError
from dagtrain.simulate.exact import ExactOptions, simulate_exactly
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.convert.tools import lint_verilog
from hdl.convert.verilog import convert
from hdl.costs.estimate import Estimator
from hdl.engine.codec import coding
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.coding import Coding, CompressedEnd, DecompressedEnd, coded_words
from hdl.engine.codec.collective import Collective
from hdl.engine.codec.integer_codec import Cut, IntegerCodec
from hdl.engine.loss.numbers import METRICS
from hdl.errors import DagtrainError
from hdl.fixed import Fixed, IntArray
from hdl.layers.exchange.exchange import Exchange
from hdl.link.egress import Egress
from hdl.link.ethernet.frame import FrameFormat, FrameType
from hdl.link.format import LinkFormat
from hdl.link.ingress import Ingress
from hdl.parts.catalogue import PARTS
from hdl.signals import ClockReset
from hdl.simulate import Backend
from hdl.simulate.models.ethernet import Faults
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor
from tests.cosim_support import DEVICES, TINY_DRAM, deliver, simulate_design
from tests.flow_support import Case, new_case, with_few_dsp
from tests.mutated import Mutator
from tests.suites import quick
from tests.test_compression import drawn, named, run, seeded
from tests.test_copies import BATCHES, CYCLES, SETS, copy_of, net, trained
from tests.test_ethernet_emission import ethernet

CODEC = IntegerCodec(4)
CODED = Exchanging(Collective.CHAIN, (4, 7, Cut.STOCHASTIC))
LIBRARY = ModuleLibrary(cache_folder() / "modules")
# bursts, elements a beat of the stream: as many, fewer, more, a number that is no power of two
ENDS = [
    (Bursts(codec=CODEC, elements=24, lanes=4), 4),
    (Bursts(codec=CODEC, elements=18, lanes=4), 2),
    (Bursts(codec=CODEC, elements=27, lanes=4), 9),
    (Bursts(codec=IntegerCodec(2, width=12), elements=40, lanes=8), 20),
    (Bursts(codec=CODEC, elements=33, lanes=16), 1),
]


def elements_of(bursts: Bursts, lanes: int, tensor: IntArray) -> list[int]:
    """Beats of so many elements."""
    mask, width = (1 << bursts.codec.width) - 1, bursts.codec.width
    return [
        sum((int(element) & mask) << place * width for place, element in enumerate(beat))
        for beat in tensor.reshape(-1, lanes)
    ]


def both(backend: Backend, bursts: Bursts, lanes: int, tensors: Sequence[IntArray], stall: float) -> tuple[int, int]:
    """Cycles of both ends, which pass the tensors."""
    elements = [beat for tensor in tensors for beat in elements_of(bursts, lanes, tensor)]
    words = [word for tensor in tensors for word in bursts.pack(tensor)]
    return (
        run(backend, CompressedEnd(bursts=bursts, lanes=lanes), elements, words, stall).cycles,
        run(backend, DecompressedEnd(bursts=bursts, lanes=lanes), words, elements, stall).cycles,
    )


def coded_graph(way: Exchanging = CODED, name: str = "two of all") -> Graph:
    return insert_forks(replicate(net(5, 3), SETS[name], way))


# ---- ends


@pytest.mark.parametrize(("bursts", "lanes"), quick(2, ENDS), ids=lambda it: named(it) if hasattr(it, "codec") else it)
def test_ends_pass_elements_of_any_number_a_beat(bursts: Bursts, lanes: int) -> None:
    both(Backend.MYHDL, bursts, lanes, drawn(bursts, 6, seeded()), 0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("bursts", "lanes"), ENDS, ids=lambda it: named(it) if hasattr(it, "codec") else it)
def test_ends_pass_them_in_verilog(bursts: Bursts, lanes: int) -> None:
    for backend in (Backend.ICARUS, Backend.VERILATOR):
        for stall in (0.0, 0.4):
            both(backend, bursts, lanes, drawn(bursts, 60, seeded()), stall)


@pytest.mark.parametrize(("bursts", "lanes"), quick(1, ENDS), ids=lambda it: named(it) if hasattr(it, "codec") else it)
def test_no_tool_warns_of_ends(bursts: Bursts, lanes: int, tmp_path: Path) -> None:
    for unit in (CompressedEnd(bursts=bursts, lanes=lanes), DecompressedEnd(bursts=bursts, lanes=lanes)):
        path = tmp_path / "end.v"
        streams = {name: Stream(width) for name, width in unit.streams.items()}
        path.write_text(convert(unit.build(ClockReset(), streams), "coded_end").text)
        lint_verilog([path], "coded_end")


@pytest.mark.parametrize(("burst", "lanes"), [(2, 1), (4, 4), (4, 2), (8, 1)])
def test_ends_take_the_cycles_that_they_say(burst: int, lanes: int) -> None:
    bursts = Bursts(codec=CODEC, elements=2 * burst, lanes=burst)
    beats = bursts.elements // lanes
    sent, got = both(Backend.MYHDL, bursts, lanes, [np.zeros(bursts.elements, np.int64)], 0.0)
    assert sent - beats == CompressedEnd(bursts=bursts, lanes=lanes).latency_cycles
    assert got - beats == DecompressedEnd(bursts=bursts, lanes=lanes).latency_cycles


@pytest.mark.parametrize(("end", "ways"), [("compressed_end", "entered, whole"), ("decompressed_end", "whole, y")])
def test_tensors_that_fill_no_burst_and_are_not_filled_up_are_found(
    end: str, ways: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bursts = Bursts(codec=CODEC, elements=18, lanes=4)
    Mutator(monkeypatch, tmp_path)(coding, coding, end, {
        f"{ways}, element_bits=bursts.codec.width, flush_every=bursts.elements":
        f"{ways}, element_bits=bursts.codec.width, flush_every=0",
    })  # fmt: skip
    with pytest.raises((AssertionError, DagtrainError)):
        both(Backend.MYHDL, bursts, 2, drawn(bursts, 3, np.random.default_rng(3)), 0.0)


# ---- which edges, and what they take


def test_all_that_hands_on_values_of_a_codec_is_coded_and_nothing_else() -> None:
    graph = insert_relays(coded_graph(), ["conv2.gradient.g.ring@0"])
    coded = {edge for edge, *_ in graph.streams if graph.coding(edge)}
    exchanged = {edge for edge, node, *_ in graph.streams if isinstance(node.layer, Exchange)}
    assert exchanged < coded
    # round to the other copies, through forks, and over the relay
    found = {edge.removeprefix("conv2.gradient.g") for edge in coded if edge.startswith("conv2.gradient.g")}
    assert found == {".ring@0", ".ring@0.relay.y0", ".sum", "@0", "@1"}
    assert {graph.tensor(edge).kind for edge in coded} == {Kind.GRADIENT}
    exact = coded_graph(Exchanging(Collective.CHAIN))
    assert not any(exact.coding(edge) for edge, *_ in exact.streams)


def test_tensors_of_a_burst_and_words_of_an_element_are_not_coded() -> None:
    assert coded_words(4, 16, 64, Coding(CODEC)) == (1, 1)
    assert coded_words(5, 16, 64, Coding(CODEC, Fraction(2))) == (1, 3)
    assert coded_words(50, 16, 24, Coding(CODEC)) == (50, 50)
    assert coded_words(50, 15, 64, Coding(IntegerCodec(2, width=15))) == (13, 13)
    assert coded_words(64, 16, 64, None) == (16, 16)
    # 16 words, and a mark of a sixteenth before each
    assert coded_words(64, 16, 64, Coding(CODEC)) == (17, 17)
    assert coded_words(64, 16, 64, Coding(CODEC, Fraction(8))) == (2, 17)


@pytest.mark.parametrize("ratio", [Fraction(1, 2), Fraction(81, 10)])
def test_a_ratio_that_no_elements_have_is_refused(ratio: Fraction) -> None:
    with pytest.raises(ValueError, match=r"is impossible: take 1 to 8, since each element of 16 bits has a tag of 2"):
        Coding(CODEC, ratio)


def test_links_are_planned_for_the_ratio_that_is_stated_and_else_for_the_worst() -> None:
    def bits(way: Exchanging) -> dict[tuple[str, str], Fraction]:
        links = network_links(coded_graph(way), 64)
        return {(link.source, link.target): 5 * link.bits_per_frame / 64 for link in links}

    worst, stated = bits(CODED), bits(replace(CODED, ratio_percent=300))
    # of 81 elements: 21 words and two marks of a sixteenth, or a third
    ends = "conv2.gradient.g.exchange@0", "conv2.gradient.g.exchange@1"
    assert (worst[ends], stated[ends]) == (23, 7)
    changed = {pair for pair in worst if worst[pair] != stated[pair]}
    assert all(stated[pair] < worst[pair] for pair in changed)
    makers = {source.rpartition(".")[2].partition("@")[0] for source, _ in changed}
    assert makers == {"exchange", "spread"}


def test_what_a_codec_takes_off_links_is_counted() -> None:
    graph = fold_graph(coded_graph(replace(CODED, ratio_percent=300), "a convolution"), CYCLES)
    placed = {node.name: DEVICES[copy_of(node) == 1] for node in graph.nodes}
    # from copy to copy and back, 81 elements each
    assert CodedTraffic.of(graph, placed, DEVICES, 64) == CodedTraffic(2, 2 * 21, 2 * 7)
    assert CodedTraffic.of(graph, dict.fromkeys(placed, DEVICES[0]), DEVICES, 64) == CodedTraffic(0, 0, 0)


def coded_crossing(lanes: int = 2, elements: int = 64) -> Crossing:
    port = Port("x", Tensor((elements,), Fixed(16, 8), Kind.GRADIENT), lanes)
    return Crossing("g", 3, "alpha", "beta", 0, 1, port, port, Coding(CODEC))


def test_a_link_carries_words_and_the_ends_of_the_codec_stand_around_it() -> None:
    form = LinkFormat(word_bits=64, streams=4, devices=2)
    crossing = coded_crossing()
    compress, send = sending_units(crossing, form, 20)
    receive, decompress = receiving_units(crossing, form, 20)
    assert isinstance(send, Egress)
    assert isinstance(receive, Ingress)
    assert (send.element_bits, send.lanes, send.elements) == (64, 1, 0) == (
        receive.element_bits, receive.lanes, receive.elements,
    )  # fmt: skip
    assert compress.streams == {"x": 32, "y": 64}
    assert decompress.streams == {"x": 64, "y": 32}
    plain, coded = (hops_of([each], form, {"g": 8}, 100)["g"] for each in (replace(crossing, coding=None), crossing))
    assert coded.cycles - plain.cycles == compress.latency_cycles + decompress.latency_cycles - 2
    assert (plain.word, coded.word) == (4, 4)
    stated = replace(crossing, coding=Coding(CODEC, Fraction(5, 2)))
    assert hops_of([stated], form, {"g": 8}, 100)["g"].word == 10


def test_words_and_credits_have_each_their_way_through_ports() -> None:
    form, port = LinkFormat(word_bits=64, streams=16, devices=2), replace(coded_crossing(), coding=None)
    # nine streams there, whose words meet in fours and then in three; five back, whose words leave the splits first
    there = [replace(port, edge=f"there{n}", number=n) for n in range(9)]
    ends = {"source_device": port.target_device, "target_device": port.source_device}
    back = [replace(port, edge=f"back{n}", number=9 + n, **ends) for n in range(5)]
    found = hops_of([*there, *back], form, {each.edge: 8 for each in (*there, *back)}, 100)
    (send,), (receive,) = sending_units(port, form, 20), receiving_units(port, form, 20)
    out, into = send.latency_cycles, receive.latency_cycles
    # merges of words and the last one, with credits; splits of eight
    assert found["there0"].cycles == 100 + out + (2 + 1) + 1 + into
    assert found["there8"].cycles == 100 + out + (1 + 1) + 2 + into
    assert found["back4"].cycles == 100 + out + (1 + 1) + 1 + into
    # two cycles to the credit, its merges, the splits behind those of words that the other end receives, two to a word
    assert found["there0"].back_cycles == 100 + 2 + (2 + 1) + 1 + 2 - out
    assert found["there8"].back_cycles == 100 + 2 + (1 + 1) + 2 + 2 - out
    assert found["back4"].back_cycles == 100 + 2 + (1 + 1) + 2 + 2 - out


def test_ends_of_the_codec_are_counted_on_devices() -> None:
    costs = PortCosts.of(2, 64, list(PARTS.values())[:1], Estimator(":memory:"))
    port = coded_crossing().source
    plain, coded = costs.sender(port, port), costs.sender(port, port, Coding(CODEC))
    assert coded.alm > plain.alm + 200
    plain, coded = costs.receiver(port, port), costs.receiver(port, port, Coding(CODEC))
    assert coded.alm > plain.alm + 200


# ---- what users say


def test_a_bound_of_the_range_drops_what_each_width_lets_it() -> None:
    way = parse_exchange("chain", "bounded:10,feedback,ratio=2.5")
    assert way.record == {"exchange": "chain", "compress": "bounded:10:7:truncate,ratio=2.5,feedback"}
    assert parse_exchange(*way.record.values()) == way
    layers = [node.layer for node in coded_graph(way).nodes if isinstance(node.layer, Exchange)]
    assert {(layer.codec, layer.feedback) for layer in layers} == {(IntegerCodec.relative(10), True)}
    assert {layer.coding(layer.sources[0].name) for layer in layers} == {
        Coding(IntegerCodec.relative(10), Fraction(5, 2))
    }


@pytest.mark.parametrize(
    ("compress", "message"),
    [
        ("integer:5,ratio=", "--compress: 'ratio=' says nothing of a codec; give feedback, or ratio=R, by which"),
        ("integer:5,ratio=0.5", "'ratio=0.5' says nothing"),
        ("integer:5,ratio=2,ratio=3", "'ratio=2,ratio=3' says nothing"),
        ("integer:5,fast", "'fast' says nothing"),
        ("integer:5,feedback,feedback", "'feedback,feedback' says nothing"),
        ("bounded:0", "--compress 'bounded:0' bounds nothing; give 1 or more"),
    ],
)
def test_what_says_nothing_of_a_codec_is_refused(compress: str, message: str) -> None:
    with pytest.raises(DagtrainError) as caught:
        parse_exchange("chain", compress)
    assert message in str(caught.value)


def test_bounds_and_ratios_that_gradients_have_not_are_refused() -> None:
    with pytest.raises(GraphError, match=r"drops -1 bits and keeps 7, and gradients of conv2\.gradient have 15 and"):
        coded_graph(parse_exchange("chain", "bounded:16"), "a convolution")
    with pytest.raises(GraphError, match=r"a ratio of 9, and gradients of conv2.gradient have 16 bits with a tag"):
        coded_graph(parse_exchange("chain", "integer:4,ratio=9"), "a convolution")
    with pytest.raises(GraphError, match=r"takes nothing of gradients of conv2.gradient that could be fed back; leave"):
        coded_graph(parse_exchange("chain", "integer:0,feedback"), "a convolution")


def test_training_measures_what_plans_may_count_on(tmp_path: Path) -> None:
    case = new_case(tmp_path)
    way = "--copy", "*=2", "--exchange", "chain", "--compress", "integer:6"
    assert case.step("import", *way).code == 0
    outcome = case.step("train", "--data", case.data(), "--epochs", 2)
    assert outcome.code == 0, outcome.error
    record = json.loads((case.out / "train" / "train.json").read_text())
    ratios = [
        line["gradient_ratio"]
        for line in map(json.loads, (case.out / "train" / "metrics.jsonl").read_text().splitlines())
        if "gradient_ratio" in line
    ]
    assert len(ratios) > 2
    assert record["gradient_ratio"] == math.floor(100 * sorted(ratios)[len(ratios) // 4]) / 100
    assert sum(ratio >= record["gradient_ratio"] for ratio in ratios) >= 0.75 * len(ratios)
    said = f"ratio={record['gradient_ratio']:.2f}`" if record["gradient_ratio"] > 1 else "gains no bits"
    assert said in outcome.out


def test_words_are_counted_as_they_are_packed() -> None:
    for bursts, _ in ENDS:
        for tensor in drawn(bursts, 20, seeded()):
            assert bursts.words(tensor) == len(bursts.pack(tensor))


# ---- clusters


def apart(graph: Graph, ethernet: Ethernet | None = None) -> ClusterDesign:
    """The second copy stands on a device of its own."""
    placed = {node.name: DEVICES[copy_of(node) == 1] for node in graph.nodes}
    return design_cluster(graph, placed, DEVICES, CYCLES, LIBRARY, word_bits=64, dram=TINY_DRAM, ethernet=ethernet)


def test_a_manifest_says_how_elements_lie_in_words(tmp_path: Path) -> None:
    graph = coded_graph(name="a convolution")
    deliver(apart(graph), LIBRARY, tmp_path)
    manifests = [read_manifest(path) for path in sorted(tmp_path.glob("*/manifest.json"))]
    coded = {crossing.edge: crossing.coded for one in manifests for crossing in one.egress if crossing.coded}
    assert coded == {edge: CodedRecord(4, 7, 4) for edge in ("conv2.gradient.g.ring@0", "conv2.gradient.g@0")}
    text = (tmp_path / DEVICES[0] / "manifest.json").read_text()
    assert '"coded": null' not in text


def test_what_a_codec_makes_of_data_is_not_simulated_without_them(tmp_path: Path) -> None:
    graph = coded_graph(name="a convolution")
    delivered = deliver(apart(graph), LIBRARY, tmp_path)
    how = ExactOptions(batches=1, network=NetworkModel(), memory=MemoryModel(), host_stall_256=0, seed=1)
    with pytest.raises(DataDependentError) as caught:
        simulate_exactly(delivered, graph, LIBRARY, tmp_path / "exact", how, Silent(), optimise=False)
    head, *lines = str(caught.value).splitlines()
    assert head == "control depends on data, so the cluster cannot be simulated without:"
    # a stream there and one back, and nothing but them
    form = re.compile(r"  (\w+): in how many words conv2\.gradient\.\S+ is coded(; .*--level fast.*)?$")
    told = [form.match(line) for line in lines]
    assert [(line[1], line[2] is not None) for line in told if line] == [("alpha", False), ("beta", True)]
    assert None not in told


@pytest.mark.slow
def test_a_coded_chain_over_an_ethernet_that_loses_frames_trains_to_the_bits_of_the_emulator(tmp_path: Path) -> None:
    graph = coded_graph(name="a convolution")
    design = apart(graph, ethernet())
    feeds = [synthetic_feeds(graph, 5, 100 + n) for n in range(BATCHES)]
    network = NetworkModel(latency_cycles=60, stall_256=16, faults=Faults(loss=2e-2, reorder=2e-2), seed=4)
    ran = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False
    )
    assert ran.mismatches == ()
    assert sum(pair.lost for pair in ran.pairs) > 0
    records = np.concatenate([each.reshape(-1, 2) for each in trained(graph)[1]])
    assert np.array_equal(ran.losses, METRICS.decode(records[:, 0]))


LOSSY = (
    with_few_dsp(0.003).replace("s = 100\n", "s = 10\n")
    + """
[network]
kind = "ethernet"
mtu = 576
rtt_us = 5
host_rtt_us = 5
host_mac = "02:00:00:00:ff:ff"
"""
)


def lost_words(case: Case, frames: FrameFormat) -> Counter[int]:
    """Stream -> words of it in frames that the network lost: those that entered and never left."""
    entered, left = Counter[bytes](), Counter[bytes]()
    for passed in read_frames(case.out / "cosim" / "bench"):
        (left if passed.arrives else entered)[passed.frame] += 1
    found = Counter[int]()
    for data, count in (entered - left).items():
        frame = frames.parse(data)
        if frame.kind is FrameType.DATA:
            for burst in frames.bursts_of(frame.payload):
                found[burst.stream] += count * len(burst.words)
    return found


@pytest.mark.slow
def test_commands_train_two_copies_in_a_coded_ring_through_frames_that_a_network_loses(tmp_path: Path) -> None:
    """The run of docs/replicas.md in small: each copy on a board of its own, so that all hops of the ring cross."""
    case = new_case(tmp_path, LOSSY)
    recipe = case.write("recipe.toml", "batch = 6\nstaleness = 3\n")
    way = "--copy", "*=2", "--exchange", "ring", "--compress", "bounded:10,ratio=2.5"
    assert case.step("import", "--recipe", recipe, *way).code == 0
    boards = {"@0": "head", "@1": "worker"}
    copies = {node.layer_of for node in load_training_graph(case.workspace).nodes if node.layer_of[-2:] in boards}
    pins = [word for name in sorted(copies) for word in ("--pin", f"{name}={boards[name[-2:]]}")]
    placed = case.step("place", *pins, "--gap", "0.3", "--time-limit", "60")
    assert placed.code == 0, placed.error
    assert "exchange: ring, 4 streams of gradients between devices: " in placed.out
    case.must("emit")
    ran = case.step("cosim", "--batches", 8, "--loss", 2e-2, "--seed", 3, "--pcap", "--no-efficiency")
    assert ran.code == 0, ran.error
    result = json.loads((case.out / "cosim" / "cosim.json").read_text())
    assert (result["equal"], result["mismatches"], len(result["losses"])) == (True, [], 8 * 6)
    for count in ("lost", "retransmitted"):
        assert sum(pair[count] for pair in result["network"]["pairs"]) > 0, count
    manifests = [read_manifest(path) for path in sorted((case.out / "emit").glob("*/manifest.json"))]
    coded = {crossing.stream_number for one in manifests for crossing in one.egress if crossing.coded}
    assert len(coded) == 4
    # frames of the ring were among those that were lost
    assert coded & lost_words(case, FrameFormat(word_bits=64, mtu=576)).keys()
