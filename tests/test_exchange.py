"""Copies that hand gradients on from one to the next: bits of one layer, or of the codec's golden model hop by hop."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dagtrain.emission import device, links
from dagtrain.emission.links import Crossing, link_words
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, GraphError, Node
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.passes.exchange import COPY, Exchanging, parse_exchange
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import keep_in_dram
from dagtrain.passes.remote_memory import remote_memory
from dagtrain.passes.replicate import replicate
from dagtrain.training.feeds import synthetic_feeds
from hdl.engine.codec import collective, cut, feedback
from hdl.engine.codec.collective import Collective
from hdl.engine.codec.integer_codec import Cut, IntegerCodec
from hdl.errors import DagtrainError, ShapeError
from hdl.fixed import Fixed, IntArray
from hdl.layers.exchange import exchange
from hdl.layers.exchange.exchange import Exchange
from hdl.layers.storage import Home
from hdl.random_bits import hash32, high_half, requantise_by_element
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import Kind
from tests.flow_support import new_case
from tests.layer_support import assert_equal_bits, design_of, make_case
from tests.mutated import Mutator
from tests.suites import quick
from tests.test_copies import SETS, check_circuits, copy_of, net, of_one, same, trained

CHAIN = Exchanging(Collective.CHAIN)
CODED = Exchanging(Collective.CHAIN, (4, 7, Cut.STOCHASTIC))
FED_BACK = replace(CODED, feedback=True)
CENTRAL = replace(CODED, collective=Collective.CENTRAL)
CENTRAL_FED_BACK = replace(CENTRAL, feedback=True)
RING, CODED_RING = (replace(way, collective=Collective.RING) for way in (CHAIN, CODED))
SHAPE = (3, 5)


def chained(name: str, way: Exchanging, batch: int = 5, staleness: int = 3) -> Graph:
    return insert_forks(replicate(net(batch, staleness), SETS[name], way))


def weights_of(executor: Executor) -> dict[str, list[IntArray]]:
    """By parameter, those of all copies."""
    found: dict[str, list[IntArray]] = {}
    for node in executor.graph.nodes:
        for sink, key in node.parameters.items():
            if sink in node.inputs and node.inputs[sink] in executor.weights:
                found.setdefault(key, []).append(executor.weights[node.inputs[sink]])
    return found


@pytest.mark.parametrize("name", quick(3, SETS))
@pytest.mark.parametrize("way", [CHAIN, RING], ids=["chain", "ring"])
def test_exact_sums_from_copy_to_copy_have_the_bits_of_one(way: Exchanging, name: str) -> None:
    one, wanted = of_one(5, 3)
    several, results = trained(chained(name, way))
    assert same(results, wanted)
    weights, wanted_weights = several.parameters(), one.parameters()
    assert all(np.array_equal(weights[key], wanted_weights[key]) for key in wanted_weights)


@pytest.mark.parametrize("codec", [(4, 7, cut) for cut in Cut] + [(0, 15, Cut.TRUNCATE)], ids=str)
@pytest.mark.parametrize(("copies", "feedback"), [(2, False), (2, True), (4, False), (4, True)])
def test_hops_of_a_codec_are_those_of_its_golden_model(
    copies: int, feedback: bool, codec: tuple[int, int, Cut]
) -> None:
    # of what takes nothing there is none
    feedback = feedback and codec[0] > 0
    # gradients of few bits, of which much is taken, or of any
    smallest, taken = 8 * feedback, False
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    integers = IntegerCodec(codec[0], 16, codec[1], codec[2])
    hops = [
        Exchange(
            shape=SHAPE, recipe=Recipe(batch=8, seed=9), tensor_id=77, copy=copy, copies=copies, widths=(30,) * copies,
            fraction_bits=18, g_fixed=Fixed(16, 8), codec=integers, feedback=feedback,
        )
        for copy in range(copies)
    ]  # fmt: skip
    states = [hop.start({}) for hop in hops]
    whole = collective.AllReduce(Collective.CHAIN, integers, feedback)
    for batch in range(5):
        sums = [rng.integers(-(1 << 27), 1 << 27, SHAPE) >> int(rng.integers(smallest, 20)) for _ in hops]
        made: dict[str, IntArray] = {}
        for hop, state, own in zip(hops, states, sums, strict=True):
            (came,) = made.values() if made else (None,)
            made = hop.golden(state, {"g": own} if came is None else {"g": own, "ring_in": came})
        rounded = [
            requantise_by_element(own, 18, hop.g_fixed, batch, hop.key("copy"))
            for hop, own in zip(hops, sums, strict=True)
        ]

        def noise(copy: int, first: int, end: int, batch: int = batch) -> IntArray:
            return high_half(hash32(np.arange(first, end), batch, hops[copy].key("hop")))

        assert np.array_equal(made["g_sum"], whole.run(rounded, noise))
        if feedback:
            kept = [state["residual"].ravel() for state in states]
            assert all(map(np.array_equal, kept, whole.residuals))
            taken |= any(residual.any() for residual in kept)
    assert taken == feedback


@pytest.mark.parametrize("feedback", [False, True], ids=["as it is", "with feedback"])
@pytest.mark.parametrize("name", quick(1, ["a convolution", "two of all", "three of all", "unlike numbers"]))
def test_what_is_sent_coded_to_one_place_is_that_of_its_golden_model(name: str, feedback: bool) -> None:
    """Gradients of all parameters over some batches: each copy's own sum is rounded and coded, what is decoded is added
    as integers and saturated once."""
    graph = chained(name, replace(CENTRAL, feedback=feedback))
    codec = IntegerCodec(4, cut=Cut.STOCHASTIC)
    hops = {
        edge: [node.layer for node in found if isinstance(node.layer, Exchange)]
        for edge, found in exchanges(graph).items()
    }
    assert hops
    models = {edge: collective.AllReduce(Collective.CENTRAL, codec, feedback) for edge in hops}
    executor = Executor(graph)
    for batch in range(3):
        seen: dict[str, IntArray] = {}
        executor.step(synthetic_feeds(graph, 5, 50 + batch), seen.__setitem__)
        for edge, layers in hops.items():
            own = [seen[f"{edge}.own{COPY}{layer.copy}"] for layer in layers]
            rounded = [
                requantise_by_element(sums, layer.fraction_bits, layer.g_fixed, batch, layer.key("copy"))
                for sums, layer in zip(own, layers, strict=True)
            ]

            def noise(copy: int, first: int, end: int, batch: int = batch, layers: list[Exchange] = layers) -> IntArray:
                return high_half(hash32(np.arange(first, end), batch, layers[copy].key("hop")))

            assert np.array_equal(seen[edge], models[edge].run(rounded, noise)), edge
    assert any(residual.any() for model in models.values() for residual in model.residuals) == feedback


def test_sums_in_one_place_are_saturated_once() -> None:
    """So they don't depend on whose gradient comes first."""
    most, least = (1 << 15) - 1, -(1 << 15)
    gradients = [np.array([most, least, most, 0]), np.array([most, least, 1, 0]), np.array([least, most, 0, -1])]
    for order in permutations(gradients):
        assert collective.AllReduce(Collective.CENTRAL).run(order).tolist() == [most - 1, least, most, -1]
        coded = collective.AllReduce(Collective.CENTRAL, IntegerCodec(1)).run(order)
        assert coded.tolist() == [most - 1, least, most, 0]


def exchanges(graph: Graph) -> dict[str, list[Node]]:
    """Edge of a sum -> hops that make it, in their order."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if isinstance(node.layer, Exchange):
            found.setdefault(node.name.rpartition(".exchange")[0], []).append(node)
    return {edge: sorted(hops, key=place_of) for edge, hops in found.items()}


def place_of(hop: Node) -> int:
    assert isinstance(hop.layer, Exchange)
    return hop.layer.copy


@pytest.mark.parametrize("copies", [2, 3])
def test_a_ring_is_algorithm_1_over_all_gradients_in_blocks_of_whole_tensors(copies: int) -> None:
    """Beside the golden model of the collective, which messages from copy to copy have made (`test_collective`)."""
    graph = chained("two of all" if copies == 2 else "three of all", CODED_RING)
    hops = exchanges(graph)
    first = {edge: copy_of(found[0]) for edge, found in hops.items()}
    assert set(first.values()) == set(range(copies))
    # block by block, as Algorithm 1 cuts one vector
    edges = sorted(hops, key=lambda edge: (first[edge], edge))
    sizes = {edge: hops[edge][0].layer.elements for edge in edges}  # type: ignore[attr-defined]
    ends = tuple(sum(sizes[edge] for edge in edges if first[edge] <= block) for block in range(copies))
    whole = collective.AllReduce(Collective.RING, IntegerCodec(4, cut=Cut.STOCHASTIC), ends=ends)
    executor = Executor(graph)
    for batch in range(3):
        seen: dict[str, IntArray] = {}
        executor.step(synthetic_feeds(graph, 5, 50 + batch), seen.__setitem__)
        gradients, noise = [], []
        for copy in range(copies):
            own, drawn = [], []
            for edge in edges:
                (layer,) = (hop.layer for hop in hops[edge] if copy_of(hop) == copy)
                assert isinstance(layer, Exchange)
                sums = seen[f"{edge}.own{COPY}{copy}"]
                rounded = requantise_by_element(sums, layer.fraction_bits, layer.g_fixed, batch, layer.key("copy"))
                own.append(rounded.ravel())
                drawn.append(high_half(hash32(np.arange(sums.size), batch, layer.key("hop"))))
            gradients.append(np.concatenate(own))
            noise.append(np.concatenate(drawn))
        made = whole.run(gradients, lambda copy, start, end, noise=noise: noise[copy][start:end])
        assert np.array_equal(made, np.concatenate([seen[f"{edge}.sum"].ravel() for edge in edges]))
        for edge in edges:
            assert all(np.array_equal(seen[f"{edge}{COPY}{copy}"], seen[f"{edge}.sum"]) for copy in range(copies))


def test_blocks_of_a_ring_are_as_even_as_whole_tensors_let_them_be() -> None:
    sizes = {"a": (50, 3), "b": (40, 3), "c": (30, 3), "d": (30, 3), "e": (20, 3), "f": (7, 2), "g": (7, 2)}
    assert RING.firsts(sizes) == {"a": 0, "b": 1, "c": 2, "d": 2, "e": 1, "f": 0, "g": 1}
    assert set(CHAIN.firsts(sizes).values()) == {0}


def test_a_ring_has_no_copy_that_sends_twice_what_all_do_on_average() -> None:
    """Copies of a chain that are neither its first nor its last send each tensor twice."""

    def most(way: Exchanging) -> float:
        graph = chained("three of all", way)
        sent = Counter[int]()
        for _, producer, source, consumer, sink in graph.streams:
            if sink.tensor.kind is Kind.GRADIENT and copy_of(producer) != copy_of(consumer):
                sent[copy_of(producer)] += source.tensor.elements
        return max(sent.values()) / sum(sent.values()) * 3

    assert most(CHAIN) == 1.5
    assert most(RING) < 1.2


def test_blocks_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks that end at \[2, 4\] are not those of 2 copies of 5 elements"):
        collective.AllReduce(Collective.RING, ends=(2, 4)).run([np.zeros(5, np.int64)] * 2)


def test_residuals_are_carried_over_and_kept_in_images() -> None:
    layer = next(layer for layer in Exchange.examples() if layer.feedback and layer.copy)
    state, rng = layer.start({}), np.random.default_rng(2)
    for _ in range(2):
        layer.golden(state, {port.name: rng.integers(-9999, 9999, layer.shape) for port in layer.sinks})
    assert state["residual"].any()
    later = replace(layer, begun=2).start(layer.carried(state))
    assert later["batch"] == state["batch"]
    assert np.array_equal(later["residual"], state["residual"])
    (memory,) = layer.memories()
    words = layer.images(later)[memory.name]
    assert len(words) == memory.depth
    assert any(words)
    assert not any(layer.images(layer.start({}))[memory.name])


def test_copies_of_a_coded_chain_stay_equal_and_learn_otherwise_than_one() -> None:
    executor, results = trained(chained("two of all", CODED))
    assert not same(results, of_one(5, 3)[1])
    weights = weights_of(executor)
    assert all(np.array_equal(each, copies[0]) for copies in weights.values() for each in copies)
    assert any(len({id(each) for each in copies}) > 1 for copies in weights.values())
    again, same_results = trained(chained("two of all", CODED))
    assert same(results, same_results)
    assert np.array_equal(again.batches, executor.batches)


def test_a_copy_that_drifts_is_named() -> None:
    graph = chained("a convolution", CODED)
    executor = Executor(graph)
    update = next(name for name in executor.states if name.startswith("conv2.") and name.endswith(f"update{COPY}1"))
    executor.step(synthetic_feeds(graph, 5, 1))
    for name, value in executor.states[update].items():
        if isinstance(value, np.ndarray):
            executor.states[update][name] = value + (1 << 20)
    with pytest.raises(GraphError, match=r"^copies of conv2\.w differ after batch 2: .*@0.* and .*@1"):
        executor.step(synthetic_feeds(graph, 5, 2))


def test_a_chain_is_kept_in_files(tmp_path: Path) -> None:
    graph = chained("two of all", CODED)
    save_graph(graph, tmp_path / "graph.json")
    assert str(load_graph(tmp_path / "graph.json")) == str(graph)
    assert same(trained(load_graph(tmp_path / "graph.json"), 2)[1], trained(graph, 2)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("a convolution", CHAIN),
        ("a convolution", CODED),
        ("a convolution", FED_BACK),
        ("a convolution", CENTRAL_FED_BACK),
        ("three of all", CHAIN),
        ("three of all", CENTRAL),
        ("three of all", CODED_RING),
    ],
    ids=["exact", "coded", "with feedback", "to one place", "three exact", "three to one place", "ring of three"],
)
def test_circuits_of_a_chain_on_slow_links_train_to_the_bits_of_the_emulator(
    name: str, way: Exchanging, tmp_path: Path
) -> None:
    graph = chained(name, way)
    losses = None if way.codec is None else trained(graph)[1]
    check_circuits(graph, 5, 3, tmp_path, losses)


# words that a receiver holds: the fewest there are
LEAST_WORDS = 2
# from copy to copy: of each tensor one fewer than copies to the last one, and as many back
WAYS = {"a convolution": 2, "three of all": 5 * 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [("a convolution", CHAIN), ("a convolution", CODED), ("three of all", RING), ("three of all", CODED_RING)],
    ids=["chain of two", "coded", "ring of three", "coded ring of three"],
)
def test_hops_with_the_least_credits_train_to_the_bits_of_the_emulator(
    name: str, way: Exchanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that copies hand on and get back; other streams keep the buffers that branches which join need."""
    graph = chained(name, way)
    hops = set()

    def least(crossing: Crossing, fifo_beats: int, word_bits: int) -> int:
        if not crossing.source.tensor.kind.per_batch:
            return link_words(crossing, fifo_beats, word_bits)
        hops.add(crossing.edge)
        return LEAST_WORDS

    for module in (links, device):
        monkeypatch.setattr(module, "link_words", least)
    check_circuits(graph, 5, 3, tmp_path, None if way.codec is None else trained(graph)[1])
    assert len(hops) == WAYS[name]


@pytest.mark.slow
@pytest.mark.parametrize("outside", [keep_in_dram, remote_memory], ids=["in DRAM", "in stores"])
def test_circuits_whose_residuals_lie_outside_train_to_the_bits_of_the_emulator(
    outside: Callable[[Graph, Collection[str]], Graph], tmp_path: Path
) -> None:
    graph = chained("a convolution", FED_BACK)
    hops = [node.name for node in graph.nodes if isinstance(node.layer, Exchange)]
    assert len(hops) > 1
    check_circuits(outside(graph, hops), 5, 3, tmp_path, trained(graph)[1])


def test_residuals_lie_outside_only_where_there_are_some() -> None:
    fed_back = Exchange(shape=(3,), recipe=Recipe(batch=1), codec=IntegerCodec(4), feedback=True)
    coded = replace(fed_back, feedback=False)
    assert {home for home in Home if fed_back.at(home)} == {Home.ON_CHIP, Home.DRAM, Home.REMOTE}
    assert {home for home in Home if coded.at(home)} == {Home.ON_CHIP}
    away = fed_back.at(Home.DRAM)
    assert away is not None
    assert not away.memories()
    # three beats, which need not wait until those of the batch before are written
    assert away.cycles_per_batch == 3 < fed_back.cycles_per_batch
    with pytest.raises(ShapeError, match="no residuals that could lie outside"):
        replace(coded, residuals=Home.DRAM)


FAULTS: dict[str, tuple[ModuleType, str, dict[str, str]]] = {
    "the last copy keeps what it does not send": (
        exchange,
        "coded_hop",
        {"return *inside, cut_stream(domain, cut, left, codec=codec, lanes=lanes), queue(domain, left, y,":
         "return *inside, queue(domain, total, y,"},
    ),
    "residuals lie a place further in each tensor": (
        feedback, "residual_memory", {"counter(domain, write, write_at, count=beats)":
                                      "counter(domain, write, write_at, count=max(1, beats - 1))"},
    ),
    "a residual is read before it is written": (feedback, "residual_memory", {
        "most = y.width, x.width, beats": "most = y.width, x.width, beats + 2", "max=beats + 1)": "max=beats + 3)",
    }),
    "what was coded is kept": (feedback, "feedback_stream", {"total[:] = total - left": "total[:] = left"}),
    "all hops draw the bits of the first": (exchange, "coded_hop", {'cfg.key("hop"), cfg.begun': "1, cfg.begun"}),
    "signs are lost": (cut, "cut_stream", {"element[:] = element << drop": "element[:] = abs(element << drop)"}),
    "the greatest is cut": (cut, "cut_stream", {"half, spare = codec.raw_from,": "half, spare = 1 << 15,"}),
}  # fmt: skip


def has_noise(layer: Exchange) -> bool:
    return layer.codec is not None and layer.codec.cut is Cut.STOCHASTIC


@pytest.mark.parametrize("name", quick(2, FAULTS))
def test_seeded_faults_of_hops_are_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, block, changes = FAULTS[name]
    Mutator(monkeypatch, tmp_path)(feedback if block == "residual_memory" else exchange, home, block, changes)
    layers = [layer for layer in Exchange.examples() if layer.feedback is (home is feedback)]
    # a tensor that passes sooner than what is taken of it is known, or one that is rounded by random bits
    layer = min(layers, key=lambda layer: layer.elements) if "before" in name else next(filter(has_noise, layers))
    case = make_case(layer)
    with pytest.raises((AssertionError, DagtrainError)):
        assert_equal_bits(case, design_of(case), Backend.MYHDL, seed=11)


# ---- bad input


def test_sums_of_no_copy_and_codecs_of_other_widths_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"copy 2 of 2, with sums of 2 copies; give the sums of all copies"):
        Exchange(shape=(4,), copy=2)
    with pytest.raises(ShapeError, match=r"a codec of 12 bits for gradients of 16; take one of their width$"):
        Exchange(shape=(4,), codec=IntegerCodec(2, width=12))
    with pytest.raises(ShapeError, match=r"feedback of what no codec takes; take one that drops bits, or no feedback"):
        Exchange(shape=(4,), codec=IntegerCodec(0), feedback=True)
    with pytest.raises(ShapeError, match=r"exact sums that are added in one place need no exchange; add them as they"):
        Exchange(shape=(4,), gathered=True)
    with pytest.raises(ShapeError, match="more than 62"):
        Exchange(shape=(4,), copy=1, widths=(62, 62))


@pytest.mark.parametrize(
    ("way", "compress", "message"),
    [
        ("star", "none", "--exchange 'star' is no way to exchange gradients; take central, chain or ring"),
        ("chain", "float:5", "--compress 'float:5' is no codec; give none, or integer:DROP"),
        ("chain", "integer:-1", "--compress 'integer:-1' is no codec; give none, or integer:DROP"),
        ("chain", "integer:5:7:up", "--compress 'integer:5:7:up' is no codec; give none, or integer:DROP"),
        (
            "chain",
            "integer:17:2:stochastic",
            "rounds 17 bits away by 16 random ones; drop 16 or fewer, or round to the",
        ),
        ("chain", "integer:5:0", "--compress 'integer:5:0' keeps 0 bits of small gradients; keep at least 1"),
    ],
)
def test_what_is_no_exchange_is_refused(way: str, compress: str, message: str) -> None:
    with pytest.raises(DagtrainError) as caught:
        parse_exchange(way, compress)
    assert message in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(DagtrainError) as caught:
        parse_exchange("star", "float")
    assert "--exchange 'star'" in str(caught.value)
    assert "--compress 'float'" in str(caught.value)
    assert parse_exchange("chain", "integer:5").record == {"exchange": "chain", "compress": "integer:5:7:truncate"}


def test_a_codec_that_does_not_fit_the_gradients_and_one_without_copies_are_refused() -> None:
    with pytest.raises(GraphError, match=r"drops 9 bits and keeps 7, and gradients of conv2\.gradient have 15 and"):
        replicate(net(5, 3), {"conv2": 2}, Exchanging(Collective.CHAIN, (9, 7, Cut.TRUNCATE)))
    with pytest.raises(GraphError, match="no layer has copies that exchange gradients; give --copy, too"):
        replicate(net(5, 3), {}, CODED)


def test_import_keeps_how_copies_exchange(tmp_path: Path) -> None:
    case = new_case(tmp_path)
    outcome = case.step("import", "--copy", "c*=2", "--exchange", "chain", "--compress", "integer:5")
    assert outcome.code == 0, outcome.error
    record = json.loads((tmp_path / "build" / "import" / "import.json").read_text())
    assert (record["exchange"], record["compress"]) == ("chain", "integer:5:7:truncate")
    refused = case.step("import", "--exchange", "chain", "--compress", "integer:5")
    assert refused.code == 1
    assert "no layer has copies" in refused.error
