"""A step of training on HyPar's array, simulated: against cases computed by hand, closed forms, and what the exchanges
are for, done on vectors."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.hypar.communication import BYTES, DP, MP, Choices, Counting, amounts, column, total
from placement.hypar.convention import EVERY, SECTION_3_4, Convention
from placement.hypar.energy import Prices, joules
from placement.hypar.iteration import Exchange, Task, Work, by_turns, iteration
from placement.hypar.network import Layer, Net
from placement.hypar.published import published
from placement.hypar.search import data_parallelism, greedy
from placement.hypar.simulation import Accelerator, Array, fair_rates, simulate
from placement.hypar.topology import HTree, Layout, Links, Topology, Torus
from tests.test_hypar import dense, nets

RATE, UNIT = 1.6e9, 168 * 250e6
# memory that never binds
FAST = Accelerator(units=1, dram_bytes_per_s=1e30)
PHYSICAL = Convention.parse("both,after,layer")


@st.composite
def cases(draw: st.DrawFn, most_levels: int = 3, most: int = 5) -> tuple[Net, Choices, Counting]:
    """A network with joins, choices, and how they are counted."""
    net, levels = draw(nets(most, True)), draw(st.integers(1, most_levels))
    choices = {layer.name: column(draw(st.integers(0, 2**levels - 1)), levels) for layer in net.layers}
    return net, choices, Counting(draw(st.integers(1, 64)), draw(st.sampled_from(EVERY)))


def levels_of(choices: Choices) -> int:
    """Of an array."""
    return len(next(iter(choices.values())))


def works(tasks: tuple[Task, ...]) -> list[Work]:
    """Without what is exchanged."""
    return [task for task in tasks if isinstance(task, Work)]


def exchanges(tasks: tuple[Task, ...]) -> list[Exchange]:
    """Without what is computed."""
    return [task for task in tasks if isinstance(task, Exchange)]


# ---- by hand


def test_two_accelerators_with_one_layer() -> None:
    net, counting = Net("one", (dense("a", 3000, 5000),)), Counting(8, SECTION_3_4)
    weights, made = 3000 * 5000, 8 * 5000
    computing = 3 * 8 * weights / 2 / UNIT
    for choice, sent in ((DP, weights), (MP, made)):
        # each sends half of its partial sums, and then half of the sums; then W, all of it or a half, is updated
        update = weights / (1 if choice == DP else 2) / UNIT
        expected = computing + update + 2 * 32 * sent / 2 / RATE
        for way in (False, True):
            found = Array(FAST, HTree, way).seconds(net, {"a": (choice,)}, counting)
            assert found == pytest.approx(expected)


def test_gradients_cross_beside_computing() -> None:
    net, counting = Net("two", (dense("a", 2000, 1000), dense("b", 1000, 4000, "a"))), Counting(32, SECTION_3_4)
    a, b = 2000 * 1000, 1000 * 4000
    pass_a, pass_b = 32 * a / 2 / UNIT, 32 * b / 2 / UNIT
    cross_a, cross_b, update = 32 * a / RATE, 32 * b / RATE, (a + b) / UNIT
    choices = {"a": (DP,), "b": (DP,)}
    turns = Array(FAST, HTree).seconds(net, choices, counting)
    assert turns == pytest.approx(3 * (pass_a + pass_b) + cross_a + cross_b + update)
    # b's gradient is made behind its error and crosses while a's passes are computed; then both share the link, and b's
    # is the last to end, when all has crossed
    made = (pass_a + pass_b) + 2 * pass_b
    run = Array(FAST, HTree, overlapped=True).run(net, choices, counting)
    assert cross_b > 2 * pass_a
    assert run.seconds == pytest.approx(made + cross_b + cross_a + b / UNIT)
    assert run.computing_seconds == pytest.approx(3 * (pass_a + pass_b) + update)


def test_sums_of_maps_hold_up_what_is_behind() -> None:
    net, counting = Net("two", (dense("a", 2000, 1000), dense("b", 1000, 4000, "a"))), Counting(32, SECTION_3_4)
    tasks = iteration(net, {"a": (MP,), "b": (MP,)}, counting)
    assert [task.name for task in tasks] == [
        "a forward", "a sum F", "a sum F", "b forward", "b sum F", "b sum F",
        "b error", "a b E", "b gradient", "b update", "a error", "a gradient", "a update",
    ]  # fmt: skip
    # Table 1: 2 × A(F); Table 2: 0.5 × A(E); two accelerators
    assert [task.words for task in exchanges(tasks)] == [16_000, 16_000, 64_000, 64_000, 8_000]
    run = Array(FAST, HTree, overlapped=True).run(net, {"a": (MP,), "b": (MP,)}, counting)
    pass_a, pass_b = 32 * 2_000_000 / 2 / UNIT, 32 * 4_000_000 / 2 / UNIT
    error_crosses = 32 * 8_000 / RATE
    assert error_crosses < pass_b
    crosses = 32 * (2 * 16_000 + 2 * 64_000) / RATE
    # updates: b's is done before a's error only if a's waits for more than b's gradient; it doesn't, so all is computed
    assert run.seconds == pytest.approx(3 * (pass_a + pass_b) + crosses + 3_000_000 / UNIT)


def test_an_error_waits_for_what_it_is_made_of() -> None:
    net, counting = Net("two", (dense("a", 10, 1000), dense("b", 1000, 10, "a"))), Counting(32, SECTION_3_4)
    run = Array(FAST, HTree, overlapped=True).run(net, {"a": (MP,), "b": (MP,)}, counting)
    a_pass = b_pass = 32 * 10_000 / 2 / UNIT
    update = 5_000 / UNIT
    error_crosses = 32 * 8_000 / RATE
    # b's gradient and update are done meanwhile
    assert error_crosses > b_pass + update
    crosses = 32 * (2 * 16_000 + 2 * 160) / RATE
    assert run.seconds == pytest.approx(a_pass + b_pass + crosses + b_pass + error_crosses + 2 * a_pass + update)


def test_memory_binds_where_it_takes_longer() -> None:
    layer = dense("a", 1000, 1000)
    net, counting = Net("one", (layer,)), Counting(2, SECTION_3_4)
    # words: forward F, W, F'; error E', W, and E and F; gradient F, E', ΔW; update W, ΔW, W
    words = (1000 + 10**6 + 1000) + (1000 + 10**6 + 2 * 1000) + (1000 + 1000 + 10**6) + 3 * 10**6
    found = Array(Accelerator(units=10**9), HTree).run(net, {"a": (DP,)}, counting)
    assert found.computing_seconds == pytest.approx(BYTES * words / 320e9)


def test_fair_rates_by_hand() -> None:
    # a long flow and a short one on link 0, where 4 fit; the long one and another on link 1, where 10 fit
    assert fair_rates([(0,), (0, 1), (1,)], [4.0, 10.0]) == [2.0, 2.0, 8.0]
    assert fair_rates([(0,), (0, 1), (1,)], [4.0, 3.0]) == [2.5, 1.5, 1.5]
    assert fair_rates([(0,), (0,), (1,)], [3.0, 5.0]) == [1.5, 1.5, 5.0]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_flow_has_a_full_link_where_none_is_faster(data: st.DataObject) -> None:
    links = data.draw(st.integers(1, 6))
    capacities = data.draw(st.lists(st.floats(0.5, 50), min_size=links, max_size=links))
    ways = st.lists(st.integers(0, links - 1), min_size=1, unique=True).map(tuple)
    routes = data.draw(st.lists(ways, min_size=1, max_size=12))
    rates = fair_rates(routes, capacities)
    load = [sum(rate for rate, route in zip(rates, routes, strict=True) if link in route) for link in range(links)]
    assert all(used <= room * (1 + 1e-6) for used, room in zip(load, capacities, strict=True))
    for rate, route in zip(rates, routes, strict=True):
        full = [link for link in route if load[link] >= capacities[link] * (1 - 1e-6)]
        most = [
            max(other for other, way in zip(rates, routes, strict=True) if link in way) <= rate * (1 + 1e-6)
            for link in full
        ]
        assert any(most)


# ---- closed forms and what is kept


@settings(max_examples=40, deadline=None)
@given(case=cases(), links=st.sampled_from(Links))
def test_by_turns_a_tree_takes_the_sum_of_its_levels(case: tuple[Net, Choices, Counting], links: Links) -> None:
    net, choices, counting = case
    levels = levels_of(choices)
    macs = 3 * counting.batch * sum(layer.macs for layer in net.layers) / 2**levels
    macs += sum(layer.weights / 2 ** choices[layer.name].count(MP) for layer in net.layers)
    # links of all pairs of a level together, one way each
    between = [2**levels if links is Links.FAT else 2 ** (level + 1) for level in range(levels)]
    crossing = sum(
        32 * words / (many * RATE) for words, many in zip(amounts(net, choices, counting), between, strict=True)
    )
    found = Array(FAST, lambda levels: HTree(levels, links)).seconds(net, choices, counting)
    assert found == pytest.approx(macs / UNIT + crossing)


@settings(max_examples=60, deadline=None)
@given(case=cases(4))
def test_exchanges_are_what_is_counted(case: tuple[Net, Choices, Counting]) -> None:
    net, choices, counting = case
    levels = levels_of(choices)
    sent = [0.0] * levels
    for task in exchanges(iteration(net, choices, counting)):
        assert task.words > 0
        sent[task.level] += 2**levels * task.words
    assert sent == pytest.approx(list(amounts(net, choices, counting)))


@settings(max_examples=60, deadline=None)
@given(case=cases(4))
def test_all_multiplications_are_shared_out(case: tuple[Net, Choices, Counting]) -> None:
    net, choices, counting = case
    done = Counter[str]()
    for work in works(iteration(net, choices, counting)):
        name, kind = work.name.split()
        done[kind] += round(2 ** levels_of(choices) * work.macs)
        assert name in net.by_name
    macs = counting.batch * sum(layer.macs for layer in net.layers)
    joins = sum(layer.macs for layer in net.layers if layer.is_join)
    assert joins == 0
    assert done["forward"] == done["error"] == done["gradient"] == macs


@settings(max_examples=25, deadline=None)
@given(case=cases(), overlapped=st.booleans(), torus=st.sampled_from([None, *Layout]))
def test_every_word_crosses_every_link_of_its_way(
    case: tuple[Net, Choices, Counting], overlapped: bool, torus: Layout | None
) -> None:
    net, choices, counting = case
    topology = HTree(levels_of(choices)) if torus is None else Torus(levels_of(choices), torus)
    run = Array(topology=lambda _: topology, overlapped=overlapped).run(net, choices, counting)
    expected = [0.0] * len(topology.rates)
    for level, words in enumerate(amounts(net, choices, counting)):
        for accelerator in range(topology.accelerators):
            for link in topology.route(accelerator, level):
                expected[link] += 32 * words / topology.accelerators
    assert run.link_bits == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(case=cases(), links=st.sampled_from(Links), overlapped=st.booleans())
def test_one_accelerator_of_a_tree_stands_for_all(
    case: tuple[Net, Choices, Counting], links: Links, overlapped: bool
) -> None:
    runs = [
        Array(topology=topology, overlapped=overlapped).run(*case)
        for topology in (lambda levels: HTree(levels, links), lambda levels: HTree.of_one(levels, links))
    ]
    assert runs[0].seconds == pytest.approx(runs[1].seconds)
    assert np.allclose(runs[0].spans, runs[1].spans)


@settings(max_examples=25, deadline=None)
@given(case=cases(), torus=st.sampled_from([None, *Layout]))
def test_overlapped_lies_between_its_bounds(case: tuple[Net, Choices, Counting], torus: Layout | None) -> None:
    levels = levels_of(case[1])
    topology = HTree(levels) if torus is None else Torus(levels, torus)
    tasks = iteration(*case)
    turns, run = (simulate(program, topology, Accelerator()) for program in (by_turns(tasks), tasks))
    busiest = max((bits / rate for bits, rate in zip(run.link_bits, topology.rates, strict=True)), default=0.0)
    assert max(run.computing_seconds, busiest) <= run.seconds * (1 + 1e-9)
    # a fat tree's leaves have a link that is never idle while something waits for it
    assert torus or run.seconds <= turns.seconds * (1 + 1e-9)
    for task, (begin, end) in zip(tasks, run.spans, strict=True):
        assert begin <= end
        assert all(run.spans[before][1] <= begin for before in task.after)
    computing = sorted(span for task, span in zip(tasks, run.spans, strict=True) if isinstance(task, Work))
    assert all(first[1] <= second[0] * (1 + 1e-12) for first, second in itertools.pairwise(computing))


# ---- what exchanges are for


@settings(max_examples=30, deadline=None)
@given(levels=st.integers(1, 4), number=st.integers(0, 15), choice=st.sampled_from([DP, MP]))
def test_halving_and_doubling_sums_with_the_words_that_are_counted(levels: int, number: int, choice: int) -> None:
    chosen = column(number % 2**levels, levels)
    # outputs and weights that can be halved at every level
    layer = replace(dense("a", 16, 16), weights=256, output=64, pooled=64)
    counting = Counting(16, SECTION_3_4)
    tasks = exchanges(iteration(Net("one", (layer,)), {"a": chosen}, counting))
    mine = [task for task in tasks if task.name == ("a sum F" if choice == MP else "a sum ΔW")]
    of = [level for level in range(levels) if chosen[level] == choice]
    whole = 256 if choice == DP else 16 * 64
    # one partial sum each of those elements that the other choices leave
    size = whole >> (levels - len(of))
    rng = np.random.default_rng(number)
    partial = rng.integers(0, 1000, (2**levels, size))
    expected = [
        sum(partial[other] for other in range(2**levels) if not (other ^ number) & ~_mask(of, levels))
        for number in range(2**levels)
    ]
    held: list[dict[int, npt.NDArray[np.int64]]] = [
        dict(enumerate(partial[index].reshape(2 ** len(of), -1))) for index in range(2**levels)
    ]
    for task in mine:
        bit = levels - 1 - task.level
        place = len(of) - 1 - of.index(task.level)
        before = [dict(blocks) for blocks in held]
        for index, blocks in enumerate(held):
            theirs = before[index ^ 1 << bit]
            if task.sums:
                kept = {part for part in blocks if part >> place & 1 == index >> bit & 1}
                sent = sum(block.size for part, block in before[index].items() if part not in kept)
                held[index] = {part: before[index][part] + theirs[part] for part in kept}
            else:
                sent = sum(block.size for block in before[index].values())
                held[index] = blocks | theirs
            assert sent == task.words
    for index in range(2**levels):
        assert np.concatenate([held[index][part] for part in range(2 ** len(of))]).tolist() == list(expected[index])


def _mask(of: list[int], levels: int) -> int:
    """Bits of an accelerator's number that such levels are."""
    return sum(1 << levels - 1 - level for level in of)


@pytest.mark.parametrize(("maker", "taker"), [((MP, MP), (MP, MP)), ((MP, MP), (DP, DP)), ((DP, DP), (MP, MP))])
def test_borders_move_with_both_ways_counted_what_accelerators_lack(
    maker: tuple[int, int], taker: tuple[int, int]
) -> None:
    """Samples × channels of 4 × 4; who has what before, and who wants what."""
    net = Net("two", (dense("a", 4, 4), dense("b", 4, 4, "a")))
    tasks = exchanges(iteration(net, {"a": maker, "b": taker}, Counting(4, PHYSICAL)))
    words = {(task.name, task.level): task.words for task in tasks}
    quarters = [{(s, c) for s in range(4) for c in range(4) if c == index} for index in range(4)]
    if taker == (DP, DP):
        quarters = [{(s, c) for s, c in itertools.product(range(4), repeat=2) if s == index} for index in range(4)]
    if maker == (MP, MP):
        # E: each has its quarter, all want all
        held = quarters
        for level in range(2):
            assert words["a b E", level] == len(held[0])
            held = [held[index] | held[index ^ 2 >> level] for index in range(4)]
        assert all(len(has) == 16 for has in held)
        assert ("a b F", 0) not in words
    else:
        # F: each has a sample, and wants a channel of all; what isn't its own goes level by level
        held = [{(index, c) for c in range(4)} for index in range(4)]
        for level in range(2):
            bit = 2 >> level
            leaving = [{(s, c) for s, c in held[index] if (c ^ index) & bit} for index in range(4)]
            assert words["a b F", level] == words["a b E", level] == len(leaving[0])
            held = [(held[index] - leaving[index]) | leaving[index ^ bit] for index in range(4)]
        assert held == [{(s, index) for s in range(4)} for index in range(4)]


# ---- the torus


def test_where_accelerators_stand_on_the_torus() -> None:
    halves, rows = Torus(4), Torus(4, Layout.ROWS)
    assert [halves.position(index) for index in (0, 1, 2, 3, 4, 8, 15)] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (3, 3),
    ]  # fmt: skip
    assert [rows.position(index) for index in (0, 1, 4, 15)] == [(0, 0), (1, 0), (0, 1), (3, 3)]
    for torus in (halves, rows, Torus(3), Torus(5, Layout.ROWS)):
        columns, lines = torus.sides
        places = {torus.position(index) for index in range(torus.accelerators)}
        assert places == set(itertools.product(range(columns), range(lines)))


def reached(torus: Torus, accelerator: int, route: tuple[int, ...]) -> tuple[int, int]:
    """Where a route ends that begins at an accelerator, every link beside the one before."""
    column, row = torus.position(accelerator)
    for link in route:
        node, direction = divmod(link, 4)
        assert divmod(node, torus.sides[0]) == (row, column)
        column = (column + (1, -1, 0, 0)[direction]) % torus.sides[0]
        row = (row + (0, 0, 1, -1)[direction]) % torus.sides[1]
    return column, row


def test_ways_as_long_both_ways_round_go_up() -> None:
    torus = Torus(4)
    # from columns 0 and 2 of row 0 to the other one; from rows 0 and 2 of column 0
    assert [torus.route(index, 0) for index in (0, 8)] == [(0, 4), (8, 12)]
    assert [torus.route(index, 1) for index in (0, 4)] == [(2, 18), (34, 50)]
    # neighbours, to the right and back
    assert [torus.route(index, 2) for index in (0, 2)] == [(0,), (5,)]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5, 6])
def test_routes_on_the_torus_end_where_they_should(levels: int, layout: Layout) -> None:
    torus = Torus(levels, layout)
    for accelerator, level in itertools.product(range(torus.accelerators), range(levels)):
        mirror = torus.mirror(accelerator, level)
        route = torus.route(accelerator, level)
        assert reached(torus, accelerator, route) == torus.position(mirror)
        here, there = torus.position(accelerator), torus.position(mirror)
        around = [min((a - b) % side, (b - a) % side) for a, b, side in zip(here, there, torus.sides, strict=True)]
        assert len(route) == sum(around)


@pytest.mark.parametrize(("layout", "loads"), [(Layout.HALVES, (2, 2, 1, 1)), (Layout.ROWS, (2, 1, 2, 1))])
def test_how_many_flows_meet_on_a_link_of_the_torus(layout: Layout, loads: tuple[int, ...]) -> None:
    torus = Torus(4, layout)
    for level, load in enumerate(loads):
        used = Counter(link for index in range(16) for link in torus.route(index, level))
        assert set(used.values()) == {load}
        # and so long takes an exchange of a word of each
        task = Exchange(name="all", after=(), level=level, words=1000, sums=False)
        assert simulate((task,), torus, FAST).seconds == pytest.approx(load * 32 * 1000 / RATE)


def test_flows_of_two_levels_share_a_link_of_the_torus() -> None:
    tasks = (
        Exchange(name="H1", after=(), level=0, words=1000, sums=False),
        Exchange(name="H3", after=(), level=2, words=1000, sums=False),
    )
    # to the right of columns 0 and 2: two flows of H1 and one of H3; each has a third, and all end together; links to
    # the right of columns 1 and 3 carry the same two of H1, which wait for that
    third = 3 * 32_000 / RATE
    assert simulate(tasks, Torus(4), FAST).seconds == pytest.approx(third)
    # H1 alone would have taken 2 000 words' time, both on links of their own no longer than that
    assert simulate(tasks, HTree(4), FAST).seconds == pytest.approx(2 * 32_000 / RATE)


def test_an_unlike_way_makes_accelerators_wait_for_each_other() -> None:
    class Slow(HTree):
        """The link up from the last accelerator is ten times as slow."""

        @property
        def rates(self) -> tuple[float, ...]:
            found = list(HTree(self.levels).rates)
            found[2 * self.accelerators - 3] /= 10
            return tuple(found)

    net, counting = Net("one", (dense("a", 100, 100),)), Counting(8, SECTION_3_4)
    normal, slow = (Array(FAST, topology).seconds(net, {"a": (DP, DP)}, counting) for topology in (HTree, Slow))
    sent = 32 * 1.5 * 100 * 100 / RATE
    assert slow - normal == pytest.approx(9 * sent)


# ---- energy


def test_the_energy_of_one_layer() -> None:
    layer = Layer(name="a", weights=9 * 2 * 4, macs=9 * 2 * 4 * 36, taps=9, input=2 * 64, output=144, pooled=144)
    net, counting = Net("one", (layer,)), Counting(8, SECTION_3_4)
    # two accelerators with four samples each
    macs, weights, taken, made = 4 * layer.macs, 72, 4 * 128, 4 * 144
    # the map has six rows, all in columns of their own: a weight stays for 36 multiplications
    sram = 2 * macs * (3 / 9 + 1 / 36) + macs * (2 / 9 + 2 / 36) + 3 * weights
    dram = (taken + weights + made) + (made + weights + 2 * taken) + (taken + made + weights) + 3 * weights
    found = joules(iteration(net, {"a": (DP,)}, counting), 2, Prices(link=7.0))
    assert found.operations == pytest.approx(2 * (0.9 + 3.7) * (3 * macs + weights) * 1e-12)
    assert found.sram == pytest.approx(2 * 5.0 * sram * 1e-12)
    assert found.dram == pytest.approx(2 * 640 * dram * 1e-12)
    # half is read, sent, and added to what is read there; then half is read, sent and written
    halves = 36 * (3 * 640 + 0.9 + 7) + 36 * (2 * 640 + 7)
    assert found.exchanges == pytest.approx(2 * halves * 1e-12)
    assert found.total == pytest.approx(found.operations + found.sram + found.dram + found.exchanges)


def test_a_dense_layer_keeps_a_weight_for_its_samples() -> None:
    tasks = works(iteration(Net("one", (dense("a", 20, 30),)), {"a": (DP, MP)}, Counting(8, SECTION_3_4)))
    macs = 8 * 600 / 4
    assert [work.sram for work in tasks] == pytest.approx(
        [macs * (3 + 1 / 4), macs * (3 + 1 / 4), macs * (2 + 2 / 4), 3 * 300]
    )


@settings(max_examples=40, deadline=None)
@given(case=cases(4))
def test_energy_is_that_of_all_accelerators(case: tuple[Net, Choices, Counting]) -> None:
    net, choices, counting = case
    accelerators = 2 ** levels_of(choices)
    only_links = Prices(addition=0, multiplication=0, sram=0, dram=0, link=1)
    found = joules(iteration(net, choices, counting), accelerators, only_links)
    assert found.total == pytest.approx(1e-12 * total(net, choices, counting))
    assert found.exchanges == found.total


# ---- the paper's networks


def test_where_nothing_is_exchanged_nothing_is_gained_by_overlapping() -> None:
    net = published("lenet-c")
    free = replace(Array(), topology=Free)
    for choices in (data_parallelism(net, 4), greedy(net, 4, Counting(256, SECTION_3_4))):
        turns, overlapped = (
            replace(free, overlapped=way).seconds(net, choices, Counting(256, SECTION_3_4)) for way in (False, True)
        )
        assert overlapped == pytest.approx(turns, rel=1e-6)


class Free(HTree):
    """Links that take no time to speak of."""

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(1e12 * rate for rate in HTree(self.levels).rates)


def test_topologies_say_how_many_they_simulate() -> None:
    found: list[Topology] = [HTree(3), HTree.of_one(3), Torus(3)]
    assert [topology.accelerators for topology in found] == [8, 1, 8]
    assert [topology.mirror(0, 0) for topology in found] == [4, 0, 4]
