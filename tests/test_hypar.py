"""HyPar's search: the amounts and choices that the paper names, the exact optimum beside all choices there are, the
command."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from dagtrain.flow.parallelize_step import weighted_layers
from examples.models import hypar_nets
from hdl.errors import DagtrainError
from importers.onnx import import_model
from placement.exact.model import Effort, solve
from placement.hypar import bounded, communication, elimination
from placement.hypar.bounded import Pair, Table
from placement.hypar.communication import DP, MP, TABLE_2, Above, Choices, Counting, amounts, column, total
from placement.hypar.convention import EVERY, NAMED, SECTION_3_4, Convention, Directions, Halving, Pooling
from placement.hypar.domination import undominated
from placement.hypar.elimination import MOST_ENTRIES, TooClose, least
from placement.hypar.network import Layer, Net
from placement.hypar.published import PUBLISHED, published
from placement.hypar.search import data_parallelism, exact, greedy, model_parallelism, optimum, weird_trick
from placement.hypar.simulation import Accelerator, Array
from placement.hypar.topology import Torus
from tests.flow_support import call, tiny_model
from tests.import_support import model, node, save

BATCH, LEVELS = 256, 4
PRINTED = Counting(BATCH, SECTION_3_4)


def dense(name: str, inputs: int, outputs: int, *before: str) -> Layer:
    """A fully connected layer."""
    return Layer(
        name=name, weights=inputs * outputs, macs=inputs * outputs, input=inputs, output=outputs, pooled=outputs,
        inputs=before,
    )  # fmt: skip


def words(choices: Choices) -> dict[str, str]:
    """Choices as the paper writes them: H1 first, 0 is dp and 1 mp."""
    return {name: "".join(map(str, chosen)) for name, chosen in choices.items()}


# ---- what the paper prints


def test_amounts_of_section_3_4() -> None:
    counting, top = Counting(32, SECTION_3_4), Above()
    full = dense("full", 70, 100)
    conv = Layer(name="conv", weights=5 * 5 * 20 * 50, macs=1, input=12 * 12 * 20, output=8 * 8 * 50, pooled=8 * 8 * 50)
    printed = {(full, DP): 56_000, (full, MP): 25_600, (conv, DP): 200_000, (conv, MP): 819_200}
    assert {key: 4 * counting.intra(key[0], top, key[1]) for key in printed} == printed


def test_table_2() -> None:
    maker, taker = dense("a", 3, 100), dense("b", 100, 7, "a")
    counting, tops = Counting(1, SECTION_3_4), (Above(), Above())
    found = {ends: counting.inter(maker, taker, tops, ends) for ends in itertools.product((DP, MP), repeat=2)}
    assert found == {(DP, DP): 0, (DP, MP): 0.25 * 100 + 0.25 * 100, (MP, MP): 0.5 * 100, (MP, DP): 0.5 * 100}


def as_printed(convention: Convention) -> dict[str, bool]:
    """Network -> whether Algorithm 2 makes the choices that the text names (6.2.1, 6.3.1, 6.3.2)."""
    counting = Counting(BATCH, convention)
    sfc, sconv, lenet, vgg = (
        words(greedy(published(name), LEVELS, counting)) for name in ("sfc", "sconv", "lenet-c", "vgg-a")
    )
    rows = ["".join(chosen[level] for chosen in lenet.values()) for level in (0, 3)]
    return {
        "sfc": sfc == {"fc1": "1101", "fc2": "1111", "fc3": "1111", "fc4": "1111"},
        "sconv": set(sconv.values()) == {"0000"},
        "lenet-c": rows == ["0011", "0011"],
        "vgg-a": (vgg["conv5_2"], vgg["fc1"]) == ("0001", "1111"),
    }


def test_the_default_convention_makes_all_choices_that_the_text_names() -> None:
    assert as_printed(SECTION_3_4) == dict.fromkeys(("sfc", "sconv", "lenet-c", "vgg-a"), True)


def test_which_conventions_make_all_choices_that_the_text_names() -> None:
    fitting = {convention for convention in EVERY if all(as_printed(convention).values())}
    assert len(EVERY) == 24
    assert fitting == {
        Convention(Directions.INTRA, Pooling.AFTER, halving)
        for halving in (Halving.LAYER, Halving.MAKER, Halving.TAKER)
    }
    assert set(NAMED.values()) <= fitting


def test_a_wrong_factor_of_table_2_breaks_a_choice_that_the_text_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (((0.0, 0.25), (0.5, 0.5)), ((0.0, 0.5), (0.5, 1.0))):
        monkeypatch.setattr(communication, "TABLE_2", wrong)
        assert not all(as_printed(SECTION_3_4).values()), wrong


def test_the_search_is_not_always_the_least() -> None:
    found = {}
    for name in PUBLISHED:
        net = published(name)
        printed, best = (total(net, search(net, LEVELS, PRINTED), PRINTED) for search in (greedy, exact))
        assert best <= printed
        found[name] = printed / best
    assert {name: round(ratio, 3) for name, ratio in found.items() if ratio > 1} == {"sfc": 1.015, "cifar-c": 1.010}


# ---- against all choices there are


def literal(net: Net, levels: int, counting: Counting) -> dict[str, tuple[int, ...]]:
    """Algorithms 1 and 2 line by line, for layers one behind the other and halving by layer."""
    convention = counting.convention
    weights = [float(layer.weights) for layer in net.layers]
    maps = [float(counting.map(layer)) for layer in net.layers]
    chosen: list[list[int]] = [[] for _ in net.layers]
    for _ in range(levels):
        best = [(0.0, []), (0.0, [])]
        for index in range(len(net.layers)):
            crossing = convention.inter_ways * maps[index - 1] if index else 0.0
            intra = convention.intra_ways * weights[index], convention.intra_ways * maps[index]
            found = []
            for choice in (DP, MP):
                costs = [best[before][0] + TABLE_2[before][choice] * crossing for before in (DP, MP)]
                before = DP if costs[DP] <= costs[MP] else MP
                found.append((costs[before] + intra[choice], [*best[before][1], choice]))
            best = found
        choices = min(best, key=lambda path: path[0])[1]
        for index, choice in enumerate(choices):
            chosen[index].append(choice)
            if convention.halving is not Halving.NONE:
                weights[index] /= 2 if choice == MP else 1
                maps[index] /= 2 if choice == DP else 1
    return {layer.name: tuple(found) for layer, found in zip(net.layers, chosen, strict=True)}


sizes = st.integers(1, 5000)


@st.composite
def nets(draw: st.DrawFn, most: int, joins: bool) -> Net:
    """Layers one behind the other, or where ``joins`` each behind any before it, some of them without weights."""
    layers: list[Layer] = []
    for index in range(draw(st.integers(1, most))):
        names = [layer.name for layer in layers]
        before = names[-1:]
        if joins and names:
            before = draw(st.lists(st.sampled_from(names), unique=True, max_size=2))
        is_join = len(before) > 1 and draw(st.booleans())
        made = draw(sizes)
        weights = 0 if is_join else draw(sizes)
        layer = dense(f"l{index}", 1, weights, *before)
        layers.append(replace(layer, output=made + draw(sizes), pooled=made))
    return Net("random", tuple(layers))


def all_choices(net: Net, levels: int) -> Sequence[Mapping[str, tuple[int, ...]]]:
    """Of so many there are."""
    names = [layer.name for layer in net.layers]
    columns = [column(number, levels) for number in range(2**levels)]
    return [dict(zip(names, found, strict=True)) for found in itertools.product(columns, repeat=len(names))]


@settings(max_examples=60, deadline=None)
@given(net=nets(12, False), levels=st.integers(1, 4), batch=st.integers(1, 64), convention=st.sampled_from(EVERY))
def test_the_search_is_the_paper_s(net: Net, levels: int, batch: int, convention: Convention) -> None:
    if convention.halving in (Halving.MAKER, Halving.TAKER):
        convention = Convention(convention.directions, convention.pooling, Halving.LAYER)
    counting = Counting(batch, convention)
    assert greedy(net, levels, counting) == literal(net, levels, counting)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), levels=st.integers(1, 4), batch=st.integers(1, 64), convention=st.sampled_from(EVERY))
@pytest.mark.parametrize("joins", [False, True])
def test_no_choices_communicate_less(
    joins: bool, data: st.DataObject, levels: int, batch: int, convention: Convention
) -> None:
    net = data.draw(nets(8 // levels, joins))
    counting = Counting(batch, convention)
    costs = [total(net, choices, counting) for choices in all_choices(net, levels)]
    assert total(net, exact(net, levels, counting), counting) == min(costs)
    assert total(net, greedy(net, levels, counting), counting) >= min(costs)


@pytest.mark.parametrize(("name", "least_bytes"), [("sfc", 831_827_968), ("lenet-c", 16_630_240)])
def test_the_least_of_all_65536(name: str, least_bytes: int) -> None:
    net = published(name)
    # choice of every layer at every level, all of them at once; costs as the paper has them
    bits = (np.arange(2**16)[:, None] >> np.arange(16) & 1).reshape(-1, 4, 4)
    costs = np.zeros(2**16)
    for level in range(LEVELS):
        mp = bits[:, :, :level].sum(axis=2)
        dp, now = level - mp, bits[:, :, level]
        for index, layer in enumerate(net.layers):
            mine, made = now[:, index], BATCH * layer.pooled * 0.5 ** dp[:, index]
            costs += 2**level * 2 * np.where(mine == MP, made, layer.weights * 0.5 ** mp[:, index])
            if index + 1 < len(net.layers):
                costs += 2**level * np.array(TABLE_2)[mine, now[:, index + 1]] * made
    assert 4 * costs.min() == least_bytes
    assert 4 * total(net, exact(net, LEVELS, PRINTED), PRINTED) == least_bytes


# ---- parts


def test_levels_are_counted_once_a_pair() -> None:
    net = Net("one", (dense("a", 3, 5),))
    assert amounts(net, data_parallelism(net, 3), Counting(7, SECTION_3_4)) == (2 * 15, 2 * 2 * 15, 4 * 2 * 15)
    # its W is halved from level to level
    assert amounts(net, {"a": (MP, DP, DP)}, Counting(7, SECTION_3_4)) == (2 * 35, 2 * 15, 4 * 15)


def test_what_each_halving_leaves_of_a_map_at_a_border() -> None:
    maker, taker = Above(dp=1, mp=2), Above(dp=5, mp=3)
    left = {Halving.NONE: 1, Halving.LAYER: 2**-1, Halving.MAKER: 2 ** -(1 + 2), Halving.TAKER: 2 ** -(1 + 3)}
    for halving, share in left.items():
        counting = Counting(1, Convention(Directions.INTRA, Pooling.AFTER, halving))
        assert counting.border_share(maker, taker) == share


def test_equal_choices_meet_for_nothing() -> None:
    join = Layer(name="sum", weights=0, macs=0, input=8, output=4, pooled=4, inputs=("a", "b"))
    net = Net("residual", (dense("a", 3, 4), dense("b", 5, 4), join))
    counting = Counting(1, SECTION_3_4)

    def joined(a: int, b: int, at: int) -> float:
        inside = sum(counting.intra(net.by_name[name], Above(), choice) for name, choice in (("a", a), ("b", b)))
        return total(net, {"a": (a,), "b": (b,), "sum": (at,)}, counting) - inside

    assert [joined(choice, choice, choice) for choice in (DP, MP)] == [0, 0]
    assert {joined(DP, MP, at) for at in (DP, MP)} == {0.5 * 4}
    assert joined(DP, DP, MP) == joined(MP, MP, DP) == 2 * 0.5 * 4


def test_elimination_of_nodes_that_all_touch_is_refused() -> None:
    names = [f"n{index}" for index in range(8)]
    single = {name: np.zeros(16) for name in names}
    pairs = [(a, b, np.zeros((16, 16))) for a, b in itertools.combinations(names, 2)]
    with pytest.raises(TooClose, match=rf"n0 depends on 7 others at once .* at most {MOST_ENTRIES:,}"):
        least(single, pairs)


def costs_of(labels: Sequence[int], single: Mapping[str, Table], pairs: Sequence[Pair]) -> float:
    """Of labels in the order of nodes."""
    of = dict(zip(single, labels, strict=True))
    return sum(table[of[name]] for name, table in single.items()) + sum(table[of[a], of[b]] for a, b, table in pairs)


def closely_joined(seed: int, nodes: int, labels: int, most: int) -> tuple[dict[str, Table], list[Pair]]:
    """All joined with all, costs in quarters."""
    rng = np.random.default_rng(seed)
    names = [f"n{index}" for index in range(nodes)]
    single = {name: rng.integers(0, most, labels) / 4 for name in names}
    return single, [(a, b, rng.integers(0, 40, (labels, labels)) / 4) for a, b in itertools.combinations(names, 2)]


@pytest.mark.parametrize(("seed", "most"), [(1, 40), (2, 400), (3, 400), (4, 1000)])
def test_no_least_sum_has_a_dominated_label(seed: int, most: int) -> None:
    single, pairs = closely_joined(seed, 4, 5, most)
    costs = {labels: costs_of(labels, single, pairs) for labels in itertools.product(range(5), repeat=4)}
    kept = undominated(single, pairs)
    # what is left out changes with how much nodes cost by themselves
    assert (sum(map(len, kept.values())) < 20) == (most > 40)
    for labels, cost in costs.items():
        if cost == min(costs.values()):
            assert all(label in kept[name] for name, label in zip(single, labels, strict=True))


@pytest.mark.parametrize(("seed", "most"), [(1, 40), (2, 400)])
def test_the_solver_finds_and_proves_the_least_sum(seed: int, most: int) -> None:
    single, pairs = closely_joined(seed, 4, 5, most)
    least_cost = min(costs_of(labels, single, pairs) for labels in itertools.product(range(5), repeat=4))
    found = bounded.least(single, pairs, Effort(deterministic_seconds=20))
    assert found.cost == found.bound == least_cost == costs_of(list(found.labels.values()), single, pairs)
    # elimination says the same
    assert least(single, pairs)[0] == least_cost


def test_where_the_solver_finds_nothing_nodes_go_by_their_own_costs() -> None:
    single, pairs = closely_joined(7, 9, 12, 40)
    found = bounded.least(single, pairs, Effort(deterministic_seconds=0.001))
    assert found.labels == {name: int(table.argmin()) for name, table in single.items()}
    assert 0 < found.bound < found.cost == costs_of(list(found.labels.values()), single, pairs)


def test_what_is_found_but_not_proven_has_the_solver_s_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        """Of a search that was ended when it had proven half."""

        def __init__(self, solver: cp_model.CpSolver) -> None:
            self.value, self.best_objective_bound = solver.value, solver.best_objective_bound / 2

    def ended(model: cp_model.CpModel, effort: Effort) -> tuple[Ended, cp_model.CpSolverStatus]:
        return Ended(solve(model, effort)[0]), cp_model.FEASIBLE

    single, pairs = closely_joined(1, 4, 5, 40)
    least_cost = bounded.least(single, pairs, Effort(deterministic_seconds=20)).cost
    monkeypatch.setattr(bounded, "solve", ended)
    found = bounded.least(single, pairs, Effort(deterministic_seconds=20))
    assert (found.cost, found.bound) == (least_cost, least_cost / 2)


def test_too_many_choices_of_what_is_closely_joined_are_refused() -> None:
    with pytest.raises(DagtrainError, match="65 choices of each are too many; ask for fewer levels"):
        bounded.least({"a": np.zeros(65)}, [], Effort(deterministic_seconds=1))


@settings(max_examples=10, deadline=None)
@given(data=st.data(), levels=st.integers(1, 3), convention=st.sampled_from(EVERY))
def test_networks_too_close_for_elimination_have_the_least_too(
    data: st.DataObject, levels: int, convention: Convention
) -> None:
    net, counting = data.draw(nets(6 // levels, True)), Counting(3, convention)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elimination, "MOST_ENTRIES", 0)
        found, by_level = optimum(net, levels, counting), greedy(net, levels, counting)
    costs = [total(net, choices, counting) for choices in all_choices(net, levels)]
    assert total(net, found.choices, counting) == found.bound == min(costs)
    if levels == 1:
        assert total(net, by_level, counting) == min(costs)


def test_the_trick_goes_by_kind_of_layer() -> None:
    assert words(weird_trick(published("lenet-c"), 2)) == {"conv1": "00", "conv2": "00", "fc1": "11", "fc2": "11"}


# ---- the command


@pytest.mark.parametrize("name", ["lenet-c", "sconv", "cifar-c"])
def test_a_network_from_a_file_is_that_of_the_paper(name: str, tmp_path: Path) -> None:
    path = save(hypar_nets.model(PUBLISHED[name]), tmp_path, f"{name}.onnx")
    assert weighted_layers(import_model(path)).layers == published(name).layers


def test_a_residual_network_is_layers_and_joins(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    constants = {"k": rng.standard_normal((2, 2, 3, 3)), "p": rng.standard_normal((2, 2, 1, 1)), "w": np.ones((3, 18))}
    nodes = [
        node("Conv", "x k", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "r"),
        node("Conv", "r p", "b"),
        node("Add", "r b", "s"),
        node("MaxPool", "s", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "m", "f"),
        node("Gemm", "f w", "y", transB=1),
    ]
    path = save(model(nodes, constants), tmp_path)
    net = weighted_layers(import_model(path))
    assert [(layer.name, layer.inputs, layer.weights, layer.output, layer.pooled) for layer in net.layers] == [
        ("a_node", (), 36, 72, 72),
        ("b_node", ("a_node",), 4, 72, 72),
        ("s_node", ("a_node", "b_node"), 0, 72, 18),
        ("y_node", ("s_node",), 54, 3, 3),
    ]


def test_the_command_tells_and_leaves_what_it_found(tmp_path: Path) -> None:
    asked = "parallelize", "--net", "sfc", "--exact", "--out", tmp_path / "build"
    outcome = call(*asked, "--json")
    assert outcome.code == 0, outcome.error
    told = json.loads(outcome.out)
    assert (told["bytes"], told["accelerators"]) == (831_827_968, 16)
    assert told["bound_bytes"] == told["bytes"]
    assert told["compared"]["greedy"] == 844_410_880
    assert told["compared"]["model parallelism"] == 4 * total(
        published("sfc"), model_parallelism(published("sfc"), 4), PRINTED
    )
    left = json.loads((tmp_path / "build/parallelize/parallelize.json").read_text())
    assert left == {key: told[key] for key in left}
    counting, net = Counting(256, SECTION_3_4), published("sfc")
    assert told["steps"]["chosen"]["seconds"] == Array().seconds(net, exact(net, 4, counting), counting)
    model = told["steps"]["model parallelism"]
    assert model["overlapped_seconds"] < model["seconds"]
    assert model["joules"] > told["steps"]["chosen"]["joules"]
    picture = (tmp_path / "build/parallelize/parallelize.svg").read_text()
    assert picture.count(">mp</text>") == sum(layer["choices"].count("1") for layer in told["layers"])
    again = call(*asked)
    assert "unchanged" in again.out or "nothing" in again.out, again.out
    assert "831" in again.out.replace(".", "")
    torus = json.loads(call(*asked, "--topology", "torus", "--units", 3, "--json").out)
    array = Array(Accelerator(3), Torus)
    assert (torus["topology"], torus["units"], torus["bytes"]) == ("torus", 3, told["bytes"])
    assert torus["steps"]["chosen"]["seconds"] == array.seconds(net, exact(net, 4, counting), counting)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--net", "vgg-z"), "--net vgg-z is unknown; choose one of sfc, sconv"),
        ((), "no network is named"),
        (("net.onnx", "--net", "sfc"), "both net.onnx and --net sfc are named.*net.onnx does not exist"),
        (("--net", "sfc", "--levels", 0, "--batch", -3), "--batch must be at least 1, not -3; --levels must .* not 0"),
        (("--net", "sfc", "--levels", 11), "--levels must be one of 1 to 10, not 11"),
        (
            ("--net", "sfc", "--topology", "ring", "--units", 0),
            "--units must .* not 0; --topology ring is unknown.*htree",
        ),
        (("--net", "sfc", "--topology", "torus", "--levels", 7), "torus is simulated up to 64 accelerators, not 128"),
        (("--net", "sfc", "--convention", "3.5"), "--convention '3.5' is unknown; say 3.4 or twin.*one-way.intra.both"),
        (("--net", "sfc", "--convention", "both,after"), "--convention 'both,after' is unknown"),
    ],
)
def test_what_a_user_can_do_wrong(asked: tuple[object, ...], said: str, tmp_path: Path) -> None:
    outcome = call("parallelize", *asked, "--out", tmp_path / "build")
    assert outcome.code == 1
    assert outcome.error.startswith("error: ")
    assert "Traceback" not in outcome.error
    assert not (tmp_path / "build").exists()
    assert re.search(said, outcome.error), outcome.error


def test_a_model_without_sizes_is_refused(tmp_path: Path) -> None:
    proto = tiny_model()
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    outcome = call("parallelize", save(proto, tmp_path), "--out", tmp_path / "build")
    assert outcome.code == 1
    assert "height" in outcome.error
    assert "Traceback" not in outcome.error
